//! Bits packed in 64-bit words: reading, writing, unary codes, rank and select.
//!
//! Bit `k` of a word array is bit `k % 64` of word `k / 64`, counted from the least significant. A unary code is a run
//! of ones ended by a zero. Reads go through [`Words`], so the same code reads plain words and words that another thread
//! is writing; a read past the end gives zero bits and never panics, because a reader of words under a sequence lock
//! may be misled by a half-written bucket and must come back to find out.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a cache line.
pub const LINE_WORDS: usize = 8;

/// An array of words that can be read one at a time.
pub trait Words {
    fn count(&self) -> usize;
    /// Word `index`, or 0 past the end.
    fn word(&self, index: usize) -> u64;
    /// Words `index` and `index` + 1; 0 past the end.
    fn pair(&self, index: usize) -> (u64, u64);
    /// The [`LINE_WORDS`] words from `index` on; 0 past the end.
    fn line(&self, index: usize) -> [u64; LINE_WORDS];
}

impl Words for [u64] {
    #[inline(always)]
    fn count(&self) -> usize {
        self.len()
    }
    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        self.get(index).copied().unwrap_or(0)
    }
    #[inline(always)]
    fn pair(&self, index: usize) -> (u64, u64) {
        match self.get(index..).and_then(|rest| rest.first_chunk()) {
            Some(&[low, high]) => (low, high),
            None => (self.word(index), 0),
        }
    }
    #[inline(always)]
    fn line(&self, index: usize) -> [u64; LINE_WORDS] {
        match self.get(index..).and_then(|rest| rest.first_chunk()) {
            Some(line) => *line,
            None => array::from_fn(|place| self.word(index + place)),
        }
    }
}

impl Words for [AtomicU64] {
    #[inline(always)]
    fn count(&self) -> usize {
        self.len()
    }
    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        self.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }
    #[inline(always)]
    fn pair(&self, index: usize) -> (u64, u64) {
        match self.get(index..).and_then(|rest| rest.first_chunk()) {
            Some([low, high]) => (low.load(Ordering::Relaxed), high.load(Ordering::Relaxed)),
            None => (self.word(index), 0),
        }
    }
    #[inline(always)]
    fn line(&self, index: usize) -> [u64; LINE_WORDS] {
        match self.get(index..).and_then(|rest| rest.first_chunk::<LINE_WORDS>()) {
            Some(line) => array::from_fn(|place| line[place].load(Ordering::Relaxed)),
            None => array::from_fn(|place| self.word(index + place)),
        }
    }
}

/// The `width` (0 to 64) bits that begin at `bit`.
#[inline(always)]
pub fn read_bits<W: Words + ?Sized>(words: &W, bit: usize, width: u32) -> u64 {
    debug_assert!(width <= 64);
    if width == 0 {
        return 0;
    }
    let (index, shift) = (bit / 64, (bit % 64) as u32);
    // Both words are always read: no branch predictor foresees whether a field crosses words.
    let (low, high) = words.pair(index);
    let value = low >> shift | high << 1 << (63 - shift);
    value & (u64::MAX >> (64 - width))
}

/// Sets the `width` (0 to 64) bits that begin at `bit`, which must be zero, to `value`.
#[inline(always)]
pub fn write_bits(words: &mut [u64], bit: usize, width: u32, value: u64) {
    debug_assert!(width <= 64 && (width == 64 || value >> width == 0));
    let (index, shift) = (bit / 64, (bit % 64) as u32);
    words[index] |= value << shift;
    if shift + width > 64 {
        words[index + 1] |= value >> (64 - shift);
    }
}

/// Appends to words that begin as zero.
pub struct BitWriter<'a> {
    words: &'a mut [u64],
    position: usize,
}

impl<'a> BitWriter<'a> {
    pub fn new(words: &'a mut [u64], position: usize) -> BitWriter<'a> {
        BitWriter { words, position }
    }

    /// Appends `value` as a unary code of `value` + 1 bits.
    #[inline]
    pub fn push_unary(&mut self, mut value: usize) {
        while value >= 64 {
            write_bits(self.words, self.position, 64, u64::MAX);
            self.position += 64;
            value -= 64;
        }
        if value > 0 {
            write_bits(self.words, self.position, value as u32, u64::MAX >> (64 - value));
        }
        self.position += value + 1;
    }

    /// The bit at which the next one is appended.
    pub fn position(&self) -> usize {
        self.position
    }
}

/// How many ones stand from `bit` up to the next zero.
#[inline(always)]
pub fn ones_from<W: Words + ?Sized>(words: &W, bit: usize) -> usize {
    let mut ones = 0;
    loop {
        // Words past the end are zero, so this ends.
        let more = read_bits(words, bit + ones, 64).trailing_ones() as usize;
        ones += more;
        if more < 64 {
            return ones;
        }
    }
}

/// Finds the n-th one of a word. Two implementations must agree: [`Portable`] and, on x86-64 that has it, [`Bmi2`].
pub trait Select {
    /// The place of one number `rank` (from 0) of `word`, which must have more than `rank` ones.
    fn select(word: u64, rank: u32) -> u32;
}

/// Select by byte sums: no special instruction.
pub struct Portable;

impl Select for Portable {
    #[inline(always)]
    fn select(word: u64, rank: u32) -> u32 {
        const ONES: u64 = 0x0101_0101_0101_0101;
        const HIGH: u64 = 0x8080_8080_8080_8080;
        // Each byte: how many ones stand in it and below it.
        let pairs = word - ((word >> 1) & 0x5555_5555_5555_5555);
        let nibbles = (pairs & 0x3333_3333_3333_3333) + ((pairs >> 2) & 0x3333_3333_3333_3333);
        let sums = ((nibbles + (nibbles >> 4)) & 0x0f0f_0f0f_0f0f_0f0f).wrapping_mul(ONES);
        // A byte keeps its high bit where its sum is at most `rank`: those bytes lie wholly below the answer.
        let below = ((u64::from(rank) * ONES) | HIGH).wrapping_sub(sums) & HIGH;
        let shift = (below >> 7).wrapping_mul(ONES) >> 56 << 3;
        let before = (sums << 8) >> shift & 0xff;
        let mut byte = word >> shift & 0xff;
        for _ in 0..u64::from(rank) - before {
            byte &= byte - 1;
        }
        shift as u32 + byte.trailing_zeros()
    }
}

/// Select with `pdep`. Only for code that runs after BMI2 was found at run time.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Bmi2;

#[cfg(target_arch = "x86_64")]
impl Select for Bmi2 {
    #[inline(always)]
    fn select(word: u64, rank: u32) -> u32 {
        // SAFETY: whoever names this type has checked that the machine has BMI2 (see the type).
        unsafe { std::arch::x86_64::_pdep_u64(1 << rank, word).trailing_zeros() }
    }
}

/// The place of zero number `rank` (from 0) at or after `bit`, or `None` if the words end before it.
#[inline(always)]
pub fn select_zero<S: Select, W: Words + ?Sized>(words: &W, bit: usize, mut rank: u32) -> Option<usize> {
    let mut index = bit / 64;
    let mut line = words.line(index);
    line[0] |= !(u64::MAX << (bit % 64));
    while index < words.count() {
        // Halves the line down to the word that holds the zero. It does so without a branch, which would be
        // mispredicted.
        let mut place = 0;
        for half in [LINE_WORDS / 2, LINE_WORDS / 4, LINE_WORDS / 8] {
            let zeros: u32 = line[place..place + half].iter().map(|word| word.count_zeros()).sum();
            let is_past = zeros <= rank;
            rank -= if is_past { zeros } else { 0 };
            place += if is_past { half } else { 0 };
        }
        let zeros = line[place].count_zeros();
        if rank < zeros {
            // Words past the end read as zeros, so `found` may lie past the end.
            let found = index + place;
            return (found < words.count()).then(|| found * 64 + S::select(!line[place], rank) as usize);
        }
        rank -= zeros;
        index += LINE_WORDS;
        line = words.line(index);
    }
    None
}

/// How many zeros stand from `bit` up to `end`.
#[inline(always)]
pub fn count_zeros<W: Words + ?Sized>(words: &W, bit: usize, end: usize) -> u32 {
    let steps = (bit..end).step_by(64);
    steps.map(|bit| !read_bits(words, bit, 64) & u64::MAX >> (64 - (end - bit).min(64))).map(u64::count_ones).sum()
}

/// Moves the bits from `start` to `end` up by `width` (1 to 63) and leaves zeros in their place. The `width` bits from
/// `end` on must be zero.
pub fn move_up(words: &mut [u64], start: usize, end: usize, width: u32) {
    debug_assert!((1..64).contains(&width) && start <= end);
    debug_assert_eq!(read_bits(words, end, width), 0);
    let (first, last) = (start / 64, (end + width as usize - 1) / 64);
    let (below, above) = (below(words, start), above(words, end + width as usize));
    words[first] ^= below;
    words[last] ^= above;
    for index in (first + 1..=last).rev() {
        words[index] = words[index] << width | words[index - 1] >> (64 - width);
    }
    words[first] <<= width;
    words[first] |= below;
    words[last] |= above;
}

/// Moves the bits from `start` to `end` down by `width` (1 to 63) and leaves zeros in their place. The `width` bits before
/// `start` must be zero.
pub fn move_down(words: &mut [u64], start: usize, end: usize, width: u32) {
    debug_assert!((1..64).contains(&width) && width as usize <= start && start <= end);
    debug_assert_eq!(read_bits(words, start - width as usize, width), 0);
    if start == end {
        return;
    }
    let (first, last) = ((start - width as usize) / 64, (end - 1) / 64);
    let (below, above) = (below(words, start - width as usize), above(words, end));
    words[first] ^= below;
    words[last] ^= above;
    for index in first..last {
        words[index] = words[index] >> width | words[index + 1] << (64 - width);
    }
    words[last] >>= width;
    words[first] |= below;
    words[last] |= above;
}

/// Zeros the `width` (0 to 64) bits that begin at `bit`.
pub fn clear_bits(words: &mut [u64], bit: usize, width: u32) {
    let value = read_bits(words, bit, width);
    let (index, shift) = (bit / 64, (bit % 64) as u32);
    words[index] ^= value << shift;
    if shift + width > 64 {
        words[index + 1] ^= value >> (64 - shift);
    }
}

/// The bits of the word of `bit` that lie below it.
fn below(words: &[u64], bit: usize) -> u64 {
    words.word(bit / 64) & !(u64::MAX << (bit % 64))
}

/// The bits from `bit` on in the word of the bit before it.
fn above(words: &[u64], bit: usize) -> u64 {
    if bit.is_multiple_of(64) { 0 } else { words.word(bit / 64) & u64::MAX << (bit % 64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn select_slowly(word: u64, rank: u32) -> u32 {
        (0..64).filter(|i| word >> i & 1 == 1).nth(rank as usize).unwrap()
    }

    fn check_select(word: u64) {
        for rank in 0..word.count_ones() {
            let want = select_slowly(word, rank);
            assert_eq!(Portable::select(word, rank), want, "portable, {word:#x} rank {rank}");
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("bmi2") {
                assert_eq!(Bmi2::select(word, rank), want, "pdep, {word:#x} rank {rank}");
            }
        }
    }

    #[test]
    fn select_at_the_edges() {
        for word in [u64::MAX, 1, 1 << 63, 0xff, 0xff << 56, 0x8000_0000_0000_0001, 0x5555_5555_5555_5555, 0] {
            check_select(word);
        }
        (0..64).for_each(|i| check_select(u64::MAX << i));
        (0..64).for_each(|i| check_select(u64::MAX >> i));
    }

    #[test]
    fn reads_past_the_end_are_zero() {
        let words = [u64::MAX];
        assert_eq!(read_bits(&words[..], 60, 10), 0xf);
        assert_eq!(read_bits(&words[..], 640, 64), 0);
        assert_eq!(ones_from(&words[..], 3), 61);
        assert_eq!(select_zero::<Portable, _>(&words[..], 0, 0), None);
    }

    proptest! {
        #[test]
        fn select_agrees(word: u64, mask: u64) {
            check_select(word);
            check_select(word & mask);
        }

        #[test]
        fn fields_come_back(fields in prop::collection::vec((1u32..=64, any::<u64>()), 1..50), gap in 0usize..70) {
            let fields: Vec<(u32, u64)> = fields.into_iter().map(|(w, v)| (w, v & (u64::MAX >> (64 - w)))).collect();
            let mut words = vec![0u64; 60];
            let mut bit = gap;
            for &(width, value) in &fields {
                write_bits(&mut words, bit, width, value);
                bit += width as usize;
            }
            bit = gap;
            for &(width, value) in &fields {
                prop_assert_eq!(read_bits(&words[..], bit, width), value);
                bit += width as usize;
            }
        }

        #[test]
        fn moves_move_only_what_they_should(mut words in prop::collection::vec(any::<u64>(), 8),
                                            start in 64usize..400, length in 0usize..48, width in 1u32..64) {
            let end = (start + length).min(448);
            let bits = |words: &[u64]| (0..512).map(|bit| read_bits(words, bit, 1)).collect::<Vec<_>>();
            clear_bits(&mut words, end, width);
            let mut model = bits(&words);
            model.splice(start..end + width as usize, [vec![0; width as usize], model[start..end].to_vec()].concat());
            let original = words.clone();
            move_up(&mut words, start, end, width);
            prop_assert_eq!(bits(&words), model);
            move_down(&mut words, start + width as usize, end + width as usize, width);
            prop_assert_eq!(words, original);
        }

        #[test]
        fn unary_codes_come_back(values in prop::collection::vec(0usize..150, 1..40), gap in 0usize..70) {
            let mut words = vec![0u64; 120];
            let mut writer = BitWriter::new(&mut words, gap);
            values.iter().for_each(|&value| writer.push_unary(value));
            let end = writer.position();
            // The words end in zeros, as those of a bucket with room left do; codes are found by zeros alone.
            let mut bit = gap;
            for (rank, &value) in values.iter().enumerate() {
                prop_assert_eq!(ones_from(&words[..], bit), value);
                bit += value + 1;
                let zero = bit - 1;
                prop_assert_eq!(select_zero::<Portable, _>(&words[..], gap, rank as u32), Some(zero));
                prop_assert_eq!(count_zeros(&words[..], gap, zero), rank as u32);
                prop_assert_eq!(count_zeros(&words[..], gap, bit), rank as u32 + 1);
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("bmi2") {
                    prop_assert_eq!(select_zero::<Bmi2, _>(&words[..], gap, rank as u32), Some(zero));
                }
            }
            prop_assert_eq!(bit, end);
        }
    }
}
