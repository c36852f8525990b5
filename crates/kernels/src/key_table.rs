//! The key table: a segment's sorted list of hash keys, in 4 KiB pages.
//!
//! ```text
//!  0      4       6          8             12        16            38
//!  +------+-------+----------+-------------+---------+-------------+----- ... up to 185 entries
//!  | crc  | count | zero u16 | first entry | zero    | entry 0     | entry 1
//!  | u32  | u16   |          | u32         | u32     | 22 bytes    |
//!  +------+-------+----------+-------------+---------+-------------+-----
//!  entry: hash key u128 · size u32 (bytes of the record in the stream) · route u16
//! ```
//! The entry's number in the segment (`first entry` + its place) is its bit in the segment's validity map. `route` has
//! room for a cluster's slot. The crc covers the page behind it, salted with the page's number and the segment's version.

use crate::checksum::checksum;
use crate::data_page::{Corrupt, PAGE_BYTES, SegmentSalt};
use crate::hash::HashKey;

const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 22;
/// Entries in a full page.
pub const ENTRIES_PER_PAGE: usize = (PAGE_BYTES - HEADER_BYTES) / ENTRY_BYTES;
const _: () = assert!(ENTRIES_PER_PAGE == 185);
const ADDRESS_KEY_TABLE: u64 = 1 << 63;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub hash: HashKey,
    /// Bytes of the record in the segment's stream.
    pub size_bytes: u32,
    pub route: u16,
}

/// Pages of a key table with `entries` entries.
pub fn pages(entries: u32) -> u32 {
    entries.div_ceil(ENTRIES_PER_PAGE as u32)
}

/// Writes page `page`, which holds `entries` (all pages but the last are full).
pub fn encode(salt: SegmentSalt, page: u32, entries: &[Entry], out: &mut [u8]) {
    assert!(entries.len() <= ENTRIES_PER_PAGE && out.len() == PAGE_BYTES);
    out.fill(0);
    out[4..6].copy_from_slice(&(entries.len() as u16).to_le_bytes());
    out[8..12].copy_from_slice(&(page * ENTRIES_PER_PAGE as u32).to_le_bytes());
    for (entry, bytes) in entries.iter().zip(out[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES)) {
        bytes[..16].copy_from_slice(&entry.hash.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&entry.size_bytes.to_le_bytes());
        bytes[20..].copy_from_slice(&entry.route.to_le_bytes());
    }
    let crc = checksum(salt.at(ADDRESS_KEY_TABLE | u64::from(page)), &[&out[4..]]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
}

/// A checked page.
#[derive(Clone, Copy)]
pub struct KeyPage<'a> {
    entries: &'a [u8],
    /// The number of its first entry in the segment.
    pub first_entry: u32,
}

impl<'a> KeyPage<'a> {
    pub fn parse(salt: SegmentSalt, page: u32, bytes: &'a [u8]) -> Result<KeyPage<'a>, Corrupt> {
        let bytes = bytes.get(..PAGE_BYTES).ok_or(Corrupt)?;
        let crc = checksum(salt.at(ADDRESS_KEY_TABLE | u64::from(page)), &[&bytes[4..]]);
        let count = usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
        let first_entry = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if bytes[..4] != crc.to_le_bytes() || count > ENTRIES_PER_PAGE || first_entry != page * ENTRIES_PER_PAGE as u32
        {
            return Err(Corrupt);
        }
        Ok(KeyPage { entries: &bytes[HEADER_BYTES..HEADER_BYTES + count * ENTRY_BYTES], first_entry })
    }

    pub fn count(self) -> usize {
        self.entries.len() / ENTRY_BYTES
    }

    pub fn entry(self, place: usize) -> Entry {
        let bytes = &self.entries[place * ENTRY_BYTES..][..ENTRY_BYTES];
        let mut hash = [0; 16];
        hash.copy_from_slice(&bytes[..16]);
        Entry {
            hash: HashKey(u128::from_le_bytes(hash)),
            size_bytes: u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]),
            route: u16::from_le_bytes([bytes[20], bytes[21]]),
        }
    }

    /// The place of the first entry whose hash key is not below `hash`; the count when there is none.
    pub fn lower_bound(self, hash: HashKey) -> usize {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low.midpoint(high);
            if self.entry(middle).hash < hash { low = middle + 1 } else { high = middle }
        }
        low
    }

    pub fn entries(self) -> impl Iterator<Item = Entry> + 'a {
        (0..self.count()).map(move |place| self.entry(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: SegmentSalt = SegmentSalt { store: 5, version: 9 };

    fn page() -> (Vec<Entry>, Vec<u8>) {
        let entries: Vec<Entry> =
            (0..100u32).map(|n| Entry { hash: HashKey(u128::from(n) << 100 | 7), size_bytes: n, route: 3 }).collect();
        let mut bytes = vec![0; PAGE_BYTES];
        encode(SALT, 2, &entries, &mut bytes);
        (entries, bytes)
    }

    #[test]
    fn what_is_written_is_read() {
        let (entries, bytes) = page();
        let page = KeyPage::parse(SALT, 2, &bytes).unwrap();
        assert_eq!(page.entries().collect::<Vec<_>>(), entries);
        assert_eq!(page.first_entry, 370);
        assert_eq!(page.lower_bound(HashKey(50 << 100)), 50);
        assert_eq!(page.lower_bound(HashKey(50 << 100 | 8)), 51);
        assert_eq!(page.lower_bound(HashKey(u128::MAX)), 100);
    }

    #[test]
    fn damage_or_another_place_or_version_is_an_error() {
        let (_, bytes) = page();
        assert!(KeyPage::parse(SALT, 1, &bytes).is_err());
        assert!(KeyPage::parse(SegmentSalt { version: 1, ..SALT }, 2, &bytes).is_err());
        for at in (0..PAGE_BYTES).step_by(7) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(KeyPage::parse(SALT, 2, &damaged).is_err(), "byte {at}");
        }
    }
}
