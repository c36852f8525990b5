//! Checksums of many ranges of the same bytes, which may overlap. A false claim to a long range costs no sum over all
//! of it. Short ranges are summed. The checksum of a long range is derived from the checksums of the bytes before its
//! two ends. One pass computes those, at the first long range.

use crate::checksum::{Salt, checksum};
use std::cell::OnceCell;
use std::ops::Range;

/// The longest range that is summed. Its sum is about as fast as a derivation, which takes some tens of microseconds.
const SUMMED_BYTES_MAX: usize = 128 << 10;
const BLOCK_BYTES: usize = 4096;

pub struct RangeChecksums<'a> {
    bytes: &'a [u8],
    /// CRC-32C of all before each block.
    before_block: OnceCell<Vec<u32>>,
}

impl<'a> RangeChecksums<'a> {
    pub fn of(bytes: &'a [u8]) -> RangeChecksums<'a> {
        RangeChecksums { bytes, before_block: OnceCell::new() }
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The [`checksum`] of `range`; `None` if the bytes end before it does.
    pub fn checksum(&self, salt: Salt, range: Range<usize>) -> Option<u32> {
        let covered = self.bytes.get(range.clone())?;
        if covered.len() <= SUMMED_BYTES_MAX {
            return Some(checksum(salt, &[covered]));
        }
        // The bytes before the range and the salt go through the sum alike. Carrying both over the range at once takes
        // the bytes out and puts the salt in.
        let carried = self.before(range.start) ^ checksum(salt, &[]);
        Some(crc32c::crc32c_combine(carried, self.before(range.end), covered.len()))
    }

    /// CRC-32C of all before `at`.
    fn before(&self, at: usize) -> u32 {
        let before_block = self.before_block.get_or_init(|| {
            let mut crc = 0;
            let blocks = self.bytes.chunks(BLOCK_BYTES);
            let after = blocks.map(|block| {
                crc = crc32c::crc32c_append(crc, block);
                crc
            });
            std::iter::once(0).chain(after).collect()
        });
        let block = at / BLOCK_BYTES;
        crc32c::crc32c_append(before_block[block], &self.bytes[block * BLOCK_BYTES..at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_has_the_checksum_that_summing_it_gives() {
        let bytes: Vec<u8> = (0..600_001u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let sums = RangeChecksums::of(&bytes);
        assert_eq!(sums.bytes(), bytes);
        let salt = Salt { store: 1, address: 2, version: 3 };
        for start in [0, 8, 4095, 4096, 70_008, 300_000] {
            for length in [0, 1, 100, SUMMED_BYTES_MAX, SUMMED_BYTES_MAX + 1, 200_000, 299_999] {
                let range = start..start + length;
                let expected = checksum(salt, &[&bytes[range.clone()]]);
                assert_eq!(sums.checksum(salt, range.clone()), Some(expected), "{range:?}");
            }
        }
        assert_eq!(sums.checksum(salt, 0..bytes.len()), Some(checksum(salt, &[&bytes])));
        assert_eq!(sums.checksum(salt, 5..bytes.len() + 1), None);
    }
}
