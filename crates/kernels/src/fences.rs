//! Fences: in which page of a segment does the record of a hash key start?
//!
//! Records are sorted by hash key, so it is enough to know the first hash prefix of every page. Prefixes are uniform, so
//! they are kept to about 1/1024 of a page's share, as an Elias-Fano list: of each page's fence, scaled to 1024 units a
//! page, [`LOW_BITS`] low bits as they are, and the high bits as a unary count of fences for each of their values. That
//! is 12 bits a page and a select sample.
//!
//! A key whose scaled prefix equals a fence may be on either side of it, and two pages are named. The fence is put into
//! the gap before the page, between the last prefix of the page before and its own first one, where there is no key:
//! about one key in a thousand has two pages.
//!
//! A page in which no record starts (it lies inside a record) repeats the fence of the next page and is marked in a
//! bitmap, which is there only if there is such a page.
//!
//! Encoded, for flash (little-endian; what can be computed is not there):
//! ```text
//!  pages u32 · fenced u32 · bytes of starts u32 · zero u32 · highs u64 … · lows u64 … · starts u64 …
//! ```
//! Immutable, so any number of threads may ask.

use crate::bits::{BitWriter, Portable, ones_from, read_bits, select_zero, write_bits};
use crate::prefetch::prefetch;
use std::ops::RangeInclusive;

/// Bits of a fence below its page's share of the hash range.
const LOW_BITS: u32 = 10;
/// One select sample for so many zeros, which lie in about 4 words.
const SAMPLE: u64 = 128;

/// See the [module](self).
#[derive(PartialEq, Eq, Debug)]
pub struct Fences {
    pages: u32,
    /// The number of pages that have a fence: those up to the last one in which a record starts.
    fenced: u32,
    /// For each value of the high bits, a one for each fence that has it, and then a zero.
    highs: Box<[u64]>,
    /// The bit of `highs` at which the value 128 · i begins.
    samples: Box<[u32]>,
    lows: Box<[u64]>,
    /// Whether a record starts in a page; empty if one starts in each page that has a fence.
    starts: Box<[u64]>,
}

/// The top 64 bits of the hash keys of the first and of the last record that start in a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageStarts {
    pub first: u64,
    pub last: u64,
}

impl Fences {
    /// Builds the fences from the top 64 bits of the hash keys of the first and the last record that start in each
    /// page, ascending.
    pub fn build(pages: &[Option<PageStarts>]) -> Fences {
        assert!(u32::try_from(pages.len()).is_ok_and(|pages| pages < 1 << 30), "{} pages", pages.len());
        let fenced = pages.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let mut fences = Fences {
            pages: pages.len() as u32,
            fenced: fenced as u32,
            highs: vec![0; (2 * fenced).div_ceil(64)].into(),
            samples: vec![0; fenced.div_ceil(SAMPLE as usize)].into(),
            lows: vec![0; (fenced * LOW_BITS as usize).div_ceil(64)].into(),
            starts: Box::default(),
        };
        if pages[..fenced].contains(&None) {
            fences.starts = vec![0; fenced.div_ceil(64)].into();
        }
        let mut counts = vec![0u32; fenced];
        let mut last_before = None;
        let mut page = 0;
        while page < fenced {
            // A page without a fence takes the fence of the next page that has one.
            let inside = pages[page..fenced].iter().take_while(|starts| starts.is_none()).count();
            let start = page + inside;
            let Some(PageStarts { first, last }) = pages[start] else { break };
            assert!(last_before.is_none_or(|before: PageStarts| before.first <= first), "fences ascend");
            let scaled = match last_before {
                // The first unit that lies wholly in the gap, if there is one.
                Some(before) => fences.scale(first).min(fences.scale(before.last.min(first)) + 1),
                None => fences.scale(first),
            };
            counts[(scaled >> LOW_BITS) as usize] += inside as u32 + 1;
            for page in page..=start {
                let low = scaled & ((1 << LOW_BITS) - 1);
                write_bits(&mut fences.lows, page * LOW_BITS as usize, LOW_BITS, low);
            }
            if !fences.starts.is_empty() {
                fences.starts[start / 64] |= 1 << (start % 64);
            }
            last_before = Some(PageStarts { first, last });
            page = start + 1;
        }
        let mut highs = BitWriter::new(&mut fences.highs, 0);
        for (high, &count) in counts.iter().enumerate() {
            if (high as u64).is_multiple_of(SAMPLE) {
                fences.samples[high / SAMPLE as usize] = highs.position() as u32;
            }
            highs.push_unary(count as usize);
        }
        fences
    }

    /// A prefix in units of 1/1024 of a page's share of the hash range.
    fn scale(&self, prefix: u64) -> u64 {
        ((u128::from(prefix) * (u128::from(self.fenced) << LOW_BITS)) >> 64) as u64
    }

    /// The bit of `highs` at which the fences with high bits `high` begin.
    fn find_high(&self, high: u64) -> usize {
        let from = self.samples[(high / SAMPLE) as usize] as usize;
        match (high % SAMPLE) as u32 {
            0 => from,
            zeros => select_zero::<Portable, _>(&self.highs[..], from, zeros - 1).expect("a zero for every value") + 1,
        }
    }

    /// The pages in which the record of a hash key with these top 64 bits may start: one, or a few if a fence is too near; empty
    /// if there can be no such record. The first and the last of them have a start.
    pub fn start_pages(&self, prefix: u64) -> RangeInclusive<u32> {
        #[expect(clippy::reversed_empty_ranges, reason = "it is meant to be empty")]
        const NONE: RangeInclusive<u32> = 1..=0;
        if self.fenced == 0 {
            return NONE;
        }
        let scaled = self.scale(prefix);
        let (high, low) = (scaled >> LOW_BITS, scaled & ((1 << LOW_BITS) - 1));
        let begin = self.find_high(high);
        // Counts the fences with smaller high bits, and then those with the same high bits, in order, until one is
        // above.
        let before = begin as u64 - high;
        let (mut below, mut up_to) = (before, before);
        for page in before..before + ones_from(&self.highs[..], begin) as u64 {
            let fence = read_bits(&self.lows[..], page as usize * LOW_BITS as usize, LOW_BITS);
            below += u64::from(fence < low);
            up_to += u64::from(fence <= low);
        }
        if up_to == 0 {
            return NONE;
        }
        let last = up_to as u32 - 1;
        match below {
            // The key is at the very first fence, which pages before the first start repeat.
            0 if self.starts_in(0) => 0..=last,
            0 => self.next_start(0)..=last,
            _ => below as u32 - 1..=last,
        }
    }

    /// Prefetches the words that [`Fences::start_pages`] will read, as far as they can be foreseen.
    pub fn prefetch(&self, prefix: u64) {
        if self.fenced == 0 {
            return;
        }
        let high = (self.scale(prefix) >> LOW_BITS) as usize;
        prefetch(&self.samples[high / SAMPLE as usize]);
        // The high bits have about as many values as there are fences, so about `high` ones and `high` zeros come
        // before.
        prefetch(&self.highs[(2 * high / 64).min(self.highs.len() - 1)]);
        prefetch(&self.lows[high * LOW_BITS as usize / 64]);
    }

    fn starts_in(&self, page: u32) -> bool {
        page < self.fenced && (self.starts.is_empty() || self.starts[page as usize / 64] >> (page % 64) & 1 == 1)
    }

    /// The first page after `page` in which a record starts, or the number of pages if there is none. A record that starts
    /// in `page` last of all may reach into that page, but not beyond it.
    pub fn next_start(&self, page: u32) -> u32 {
        let next = page.saturating_add(1);
        if next >= self.fenced {
            return self.pages;
        }
        if self.starts.is_empty() {
            return next;
        }
        let mut index = next as usize / 64;
        let mut word = self.starts[index] & (u64::MAX << (next % 64));
        // The last page that has a fence has a start, so this ends.
        while word == 0 {
            index += 1;
            word = self.starts[index];
        }
        index as u32 * 64 + word.trailing_zeros()
    }

    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Appends the encoded fences, a multiple of 8 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for field in [self.pages, self.fenced, self.starts.len() as u32 * 8, 0] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        for words in [&self.highs, &self.lows, &self.starts] {
            words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        }
    }

    /// Reads the fences that `encode` appended. Returns them and the bytes behind them, or `None` if they make no
    /// sense.
    pub fn parse(bytes: &[u8]) -> Option<(Fences, &[u8])> {
        let field = |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let (pages, fenced, starts_bytes) = (field(0)?, field(4)?, field(8)? as usize);
        let count = fenced as usize;
        let starts_words = count.div_ceil(64);
        if fenced > pages || pages >= 1 << 30 || (starts_bytes != 0 && starts_bytes != starts_words * 8) {
            return None;
        }
        let mut rest = bytes.get(16..)?;
        let mut words = |count: usize| -> Option<Box<[u64]>> {
            let (now, later) = rest.split_at_checked(count * 8)?;
            rest = later;
            let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            Some(now.chunks_exact(8).map(word).collect())
        };
        let highs = words((2 * count).div_ceil(64))?;
        let lows = words((count * LOW_BITS as usize).div_ceil(64))?;
        let starts = words(starts_bytes / 8)?;
        // A search relies on a one for each fence, and on a start in the last page that has a fence.
        let ones: u64 = highs.iter().map(|word| u64::from(word.count_ones())).sum();
        let last_starts = || starts[(count - 1) / 64] >> ((count - 1) % 64) == 1;
        if ones != u64::from(fenced) || (!starts.is_empty() && !last_starts()) {
            return None;
        }
        let mut samples = Vec::with_capacity(count.div_ceil(SAMPLE as usize));
        let mut position = 0;
        for high in 0..count as u64 {
            if high.is_multiple_of(SAMPLE) {
                samples.push(position as u32);
            }
            position += ones_from(&highs[..], position) + 1;
        }
        if position > 2 * count {
            return None;
        }
        Some((Fences { pages, fenced, highs, samples: samples.into(), lows, starts }, rest))
    }

    /// Bytes of memory that the fences take.
    pub fn bytes(&self) -> usize {
        let words = self.highs.len() + self.lows.len() + self.starts.len();
        size_of::<Fences>() + words * 8 + self.samples.len() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pages for records in order: the prefix and the page of each one's start.
    fn pages_of(records: &[(u64, usize)], pages: usize) -> Vec<Option<PageStarts>> {
        let mut starts: Vec<Option<PageStarts>> = vec![None; pages];
        for &(prefix, page) in records {
            starts[page].get_or_insert(PageStarts { first: prefix, last: prefix }).last = prefix;
        }
        starts
    }

    fn check(records: &[(u64, usize)], pages: usize) {
        let model = pages_of(records, pages);
        let fences = Fences::build(&model);
        assert_eq!(fences.pages() as usize, pages);
        let mut encoded = Vec::new();
        fences.encode(&mut encoded);
        encoded.push(9);
        assert_eq!(Fences::parse(&encoded).as_ref(), Some(&(Fences::build(&model), &[9][..])));
        assert_eq!(Fences::parse(&encoded[..encoded.len() - 2]), None);
        for &(prefix, page) in records {
            let range = fences.start_pages(prefix);
            assert!(range.contains(&(page as u32)), "{prefix:#x} starts in page {page}, not in {range:?}");
            assert!(model[*range.start() as usize].is_some() && model[*range.end() as usize].is_some());
        }
        for page in 0..pages {
            let next = (page + 1..pages).find(|&next| model[next].is_some()).unwrap_or(pages);
            assert_eq!(fences.next_start(page as u32) as usize, next);
        }
    }

    fn records() -> impl Strategy<Value = (Vec<(u64, usize)>, usize)> {
        // Steps over pages: 0 is many records a page, 3 is records longer than pages. Some prefixes are alike.
        let prefix = prop_oneof![4 => any::<u64>(), 1 => (0u64..4, 0u64..3).prop_map(|(a, b)| (a << 62) + b)];
        (prop::collection::vec((prefix, prop::sample::select(vec![0usize, 0, 0, 1, 3])), 0..600), 0usize..4).prop_map(
            |(mut steps, after)| {
                steps.sort_unstable_by_key(|step| step.0);
                let mut page = 0;
                let mut records = Vec::new();
                for (prefix, step) in steps {
                    page += step;
                    records.push((prefix, page));
                }
                (records, page + 1 + after)
            },
        )
    }

    proptest! {
        #[test]
        fn names_the_page_of_every_record((records, pages) in records()) {
            check(&records, pages);
        }

        #[test]
        fn a_strange_prefix_names_only_pages_with_a_start((records, pages) in records(), prefix: u64) {
            let model = pages_of(&records, pages);
            let range = Fences::build(&model).start_pages(prefix);
            prop_assert!(range.is_empty() || model[*range.start() as usize].is_some());
            prop_assert!(range.is_empty() || model[*range.end() as usize].is_some());
        }
    }

    #[test]
    fn nothing_starts_anywhere() {
        for pages in [0, 1, 5] {
            let fences = Fences::build(&vec![None; pages]);
            assert!(fences.start_pages(7).is_empty());
            assert_eq!(fences.next_start(0), pages as u32);
        }
    }

    #[test]
    fn a_segment_of_uniform_records_takes_12_bits_a_page_and_one_page_a_key() {
        let step = u64::MAX / 16384 / 13;
        let records: Vec<(u64, usize)> = (0..16384 * 13)
            .map(|i| (i * step + (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8) % step, i as usize / 13))
            .collect();
        check(&records, 16384);
        let fences = Fences::build(&pages_of(&records, 16384));
        let bits = fences.bytes() as f64 * 8.0 / 16384.0;
        assert!(bits < 12.4, "{bits} bits a page");
        let several =
            |fences: &Fences| records.iter().filter(|record| fences.start_pages(record.0).count() > 1).count();
        assert!(several(&fences) * 500 < records.len(), "{} of {}", several(&fences), records.len());
    }
}
