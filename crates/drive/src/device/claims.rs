//! Sectors of a host's local memory that commands on their way have: none is had by two.
//!
//! A host's own process keeps that rule by leases, but another process need not believe it: two commands with one buffer would let flash
//! write below a program that reads. A bit for each 512 bytes, since parts of a buffer may be with several commands; taken and given back by
//! whichever thread runs the command.

use crate::memory::BLOCK_BYTES;
use crate::protocol::{LeasedRanges, LocalRange};
use std::sync::atomic::{AtomicU64, Ordering};

/// The least sector of flash, at multiples of which parts of buffers begin.
const UNIT_BYTES: u64 = 512;

pub struct Claims {
    words: Vec<AtomicU64>,
    bytes: u64,
}

impl Claims {
    /// For so many blocks, from the start of local memory on.
    pub fn new(blocks: u32) -> Claims {
        let bytes = u64::from(blocks) * BLOCK_BYTES as u64;
        let words = (0..bytes.div_ceil(64 * UNIT_BYTES)).map(|_| AtomicU64::new(0)).collect();
        Claims { words, bytes }
    }

    /// Takes all sectors of the ranges, or none: somebody has one of them, or they are not the host's.
    pub fn take(&self, leased: &LeasedRanges) -> bool {
        for (number, range) in leased.ranges.iter().enumerate() {
            if !self.take_range(*range) {
                leased.ranges[..number].iter().for_each(|taken| self.give_back_range(*taken));
                return false;
            }
        }
        true
    }

    /// Those of a command that has ended.
    pub fn give_back(&self, leased: &LeasedRanges) {
        leased.ranges.iter().for_each(|range| self.give_back_range(*range));
    }

    fn take_range(&self, range: LocalRange) -> bool {
        let end = range.offset.checked_add(u64::from(range.length));
        if end.is_none_or(|end| end > self.bytes) {
            return false;
        }
        for (number, (word, bits)) in words_of(range).enumerate() {
            let before = self.words[word].fetch_or(bits, Ordering::Acquire);
            if before & bits != 0 {
                self.words[word].fetch_and(!(bits & !before), Ordering::Release);
                words_of(range).take(number).for_each(|(word, bits)| self.give_back_word(word, bits));
                return false;
            }
        }
        true
    }

    fn give_back_range(&self, range: LocalRange) {
        words_of(range).for_each(|(word, bits)| self.give_back_word(word, bits));
    }

    fn give_back_word(&self, word: usize, bits: u64) {
        let before = self.words[word].fetch_and(!bits, Ordering::Release);
        assert!(before & bits == bits, "sectors {bits:#x} of word {word} were given back twice");
    }
}

/// The words of a range's sectors, and its bits in each.
fn words_of(range: LocalRange) -> impl Iterator<Item = (usize, u64)> {
    let first = range.offset / UNIT_BYTES;
    let end = if range.length == 0 { first } else { range.end().div_ceil(UNIT_BYTES) };
    (first / 64..end.div_ceil(64)).filter_map(move |word| {
        let from = first.saturating_sub(word * 64).min(64);
        let to = (end - word * 64).min(64);
        let below = |bit: u64| if bit == 64 { u64::MAX } else { (1 << bit) - 1 };
        let bits = below(to) & !below(from);
        (bits != 0).then_some((word as usize, bits))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{LEASED_RANGES_MAX, RegionId};

    fn leased(ranges: &[(u64, u32)]) -> LeasedRanges {
        let mut all = [LocalRange::EMPTY; LEASED_RANGES_MAX];
        for (place, (block, blocks)) in all.iter_mut().zip(ranges) {
            *place = LocalRange { offset: block * BLOCK_BYTES as u64, length: blocks * BLOCK_BYTES as u32 };
        }
        LeasedRanges { region: RegionId::LOCAL, ranges: all }
    }

    #[test]
    fn a_block_is_had_by_one_command() {
        let claims = Claims::new(300);
        let first = leased(&[(0, 1), (60, 200)]);
        assert!(claims.take(&first));
        for other in [&[(0, 1)][..], &[(10, 5), (259, 41)], &[(61, 1)], &[(1, 1), (2, 60)]] {
            assert!(!claims.take(&leased(other)), "{other:?}");
        }
        assert!(claims.take(&leased(&[(1, 59), (260, 40)])), "what was refused kept nothing");
        claims.give_back(&first);
        assert!(claims.take(&first));
    }

    #[test]
    fn what_is_not_the_hosts_is_nobodys() {
        let claims = Claims::new(4);
        assert!(!claims.take(&leased(&[(4, 1)])));
        assert!(!claims.take(&leased(&[(0, 5)])));
        let range = LocalRange { offset: u64::MAX, length: 4096 };
        let ranges = [range, LocalRange::EMPTY, LocalRange::EMPTY, LocalRange::EMPTY];
        assert!(!claims.take(&LeasedRanges { region: RegionId::LOCAL, ranges }));
        assert!(claims.take(&leased(&[(0, 4)])));
    }

    #[test]
    fn one_command_names_no_block_twice() {
        assert!(!Claims::new(4).take(&leased(&[(0, 2), (1, 1)])));
    }

    #[test]
    fn parts_of_sectors_count_as_whole_ones() {
        let claims = Claims::new(4);
        let range = |offset, length| {
            let ranges = [LocalRange { offset, length }, LocalRange::EMPTY, LocalRange::EMPTY, LocalRange::EMPTY];
            LeasedRanges { region: RegionId::LOCAL, ranges }
        };
        assert!(claims.take(&range(4095, 2)));
        assert!(!claims.take(&range(3584, 1)) && !claims.take(&range(4607, 1)) && claims.take(&range(4608, 1)));
        assert!(claims.take(&range(5000, 0)), "nothing is nobody's");
    }
}
