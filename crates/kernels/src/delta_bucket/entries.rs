//! The entries of a bucket: reading one, and comparing the fingerprints of as many as a word holds at once.

use super::EntryLayout;
use crate::bits::{Words, read_bits};

/// Masks over a word that holds as many entries as it can, the first one in its highest bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fields {
    /// How many there are.
    pub count: usize,
    /// The lowest bit of each entry's fingerprint.
    lowest: u64,
    /// The highest bit of each entry.
    highest: u64,
    /// All bits of all fingerprints.
    all: u64,
}

impl Fields {
    pub fn new(fingerprint_bits: u32, payload_bits: u32) -> Fields {
        let width = fingerprint_bits + payload_bits;
        let count = 64 / width;
        let each = |bits: u64| (1..=count).map(|place| bits << (64 - place * width)).sum();
        Fields {
            count: count as usize,
            lowest: each(1 << payload_bits),
            highest: each(1 << (width - 1)),
            all: each(((1 << fingerprint_bits) - 1) << payload_bits),
        }
    }

    /// The highest bit of each entry whose fingerprint is zero.
    #[inline(always)]
    fn zeros(self, word: u64) -> u64 {
        // Without its highest bit, a fingerprint that is not zero carries into it; no carry goes beyond.
        let (fingerprints, below) = (word & self.all, self.all & !self.highest);
        !(((fingerprints & below) + below) | fingerprints) & self.highest
    }
}

/// Entries of a bucket from some number on, as many as a word holds; nonsense where there are fewer.
#[derive(Clone, Copy)]
pub(super) struct Window(u64);

impl Window {
    /// From entry number `rank` on. `None` if they would not lie in the words.
    #[inline(always)]
    pub fn read<W: Words + ?Sized>(words: &W, layout: EntryLayout, rank: usize) -> Option<Window> {
        let start = (words.count() * 64).checked_sub(rank * layout.width() as usize + 64)?;
        Some(Window(read_bits(words, start, 64)))
    }

    /// The highest bit of each of the first `count` entries that has the fingerprint.
    #[inline(always)]
    pub fn matches(self, layout: EntryLayout, fingerprint: u32, count: usize) -> u64 {
        let fields = layout.fields;
        fields.zeros(self.0 ^ (u64::from(fingerprint) * fields.lowest)) & first(layout, count)
    }

    /// The highest bit of each of the first `count` entries that has the same fingerprint as its place in `other`.
    #[inline(always)]
    pub fn equals(self, other: Window, layout: EntryLayout, count: usize) -> u64 {
        layout.fields.zeros(self.0 ^ other.0) & first(layout, count)
    }

    /// The payload of the first entry whose bit is in `matches`, which has one.
    #[inline(always)]
    pub fn payload(self, layout: EntryLayout, matches: u64) -> u32 {
        let entry = self.0 << matches.leading_zeros() >> (64 - layout.width());
        (entry & (u64::MAX >> (64 - layout.payload_bits))) as u32
    }
}

/// The bits of the first `count` entries of a window.
#[inline(always)]
fn first(layout: EntryLayout, count: usize) -> u64 {
    let bits = layout.width() * count.min(layout.fields.count) as u32;
    !u64::MAX.checked_shr(bits).unwrap_or(0)
}

/// Reads entry number `rank` of a bucket; 0 if there is no such entry.
#[inline(always)]
pub(super) fn entry<W: Words + ?Sized>(words: &W, layout: EntryLayout, rank: usize) -> u64 {
    match (words.count() * 64).checked_sub((rank + 1) * layout.width() as usize) {
        Some(bit) => read_bits(words, bit, layout.width()),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::write_bits;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn windows_see_what_entries_are(fingerprint_bits in 0u32..17, payload_bits in 1u32..33, alike: bool,
                                        values in prop::collection::vec(any::<u64>(), 1..20)) {
            let layout = EntryLayout::new(fingerprint_bits, payload_bits);
            let mask = u64::MAX >> (64 - layout.width());
            // Few fingerprints, so that some are alike.
            let few = if alike { mask >> payload_bits.saturating_sub(1).min(layout.width() - 1) } else { 0 };
            let values: Vec<u64> = values.iter().map(|value| value & mask & !few).collect();
            let mut words = [0u64; 20];
            for (rank, &value) in values.iter().enumerate() {
                write_bits(&mut words, 20 * 64 - (rank + 1) * layout.width() as usize, layout.width(), value);
            }
            let fingerprint = |rank: usize| (values[rank] >> payload_bits) as u32;
            for from in 0..values.len() {
                let count = layout.fields.count.min(values.len() - from);
                let window = Window::read(&words[..], layout, from).unwrap();
                let places = |is: &dyn Fn(usize) -> bool| -> u64 {
                    (0..count).filter(|&at| is(from + at)).map(|at| 1 << (63 - at as u32 * layout.width())).sum()
                };
                for other in 0..values.len() {
                    let matches = window.matches(layout, fingerprint(other), values.len() - from);
                    prop_assert_eq!(matches, places(&|rank| fingerprint(rank) == fingerprint(other)));
                    if matches != 0 {
                        let first = (from..).find(|&rank| fingerprint(rank) == fingerprint(other)).unwrap();
                        prop_assert_eq!(u64::from(window.payload(layout, matches)), values[first] & (u64::MAX >> (64 - payload_bits)));
                    }
                }
                let next = Window::read(&words[..], layout, from + 1).unwrap();
                let pairs = (values.len() - from - 1).min(count);
                let equal = places(&|rank| rank + 1 < values.len() && fingerprint(rank) == fingerprint(rank + 1));
                prop_assert_eq!(window.equals(next, layout, pairs), equal);
                prop_assert_eq!(entry(&words[..], layout, from), values[from]);
            }
        }
    }
}
