//! The key table: a segment's sorted list of hash keys, in 4 KiB pages.
//!
//! ```text
//!  0      4       6        7        8             12       13     16      24
//!  +------+-------+--------+--------+-------------+--------+------+-------+---------+---------+----- ...
//!  | crc  | count | offset | size   | first entry | route  | zero | base  | entry 0 | entry 1 |
//!  | u32  | u16   | bytes  | bytes  | u32         | bytes  |      | u64   |         |         |
//!  +------+-------+--------+--------+-------------+--------+------+-------+---------+---------+----- ...
//!  entry: lower half of the hash key u64 · offset · size · route (each of the page's width, little-endian)
//! ```
//! The page is a frame of reference: `base` is the upper half of its first hash key, and an entry's `offset` is its own
//! upper half minus `base`. Hash keys are uniform and sorted, so a page spans a sliver of their range, and the offset's
//! first bytes would be zero. `size` is the bytes of the record in the stream. `route` names the record's keyspace by
//! its id (bits 0-15). In a store that was made for a cluster ([`Routes::Slots`]), it also holds the slot of the
//! record's key (bits 16-29, else zero). Bits 30 and 31 are zero. The field is as wide as the page's largest route
//! needs: the default keyspace, 0, takes nothing, and ids up to 255 take a byte. All entries of a page have one width,
//! so the place of the n-th is known and a search halves. A page ends if the next entry does not fit at the widths that
//! it needs, so pages hold different numbers of entries.
//!
//! The entry's number in the segment (`first entry` + its place) is its bit in the segment's validity map. The crc
//! covers the page behind it, salted with the page's number and the segment's version.

use crate::checksum::checksum;
use crate::cluster_slot::{CLUSTER_SLOTS, cluster_slot};
use crate::data_page::{Corrupt, PAGE_BYTES, SegmentSalt};
use crate::hash::HashKey;
use crate::record::Header;

const HEADER_BYTES: usize = 24;
const LOW_BYTES: usize = 8;
const ROUTE_BYTES_MAX: usize = 4;
/// Bits of a route: a keyspace's id, and a cluster's slot.
const SLOT_SHIFT: u32 = 16;
const ROUTE_BITS: u32 = SLOT_SHIFT + 14;
const _: () = assert!(CLUSTER_SLOTS as u32 == 1 << (ROUTE_BITS - SLOT_SHIFT));
/// Bytes of the narrowest entry.
pub const ENTRY_BYTES_MIN: usize = LOW_BYTES;
/// Bytes of the widest entry: an offset and a size of full width, and a route.
const ENTRY_BYTES_MAX: usize = LOW_BYTES + 8 + 4 + ROUTE_BYTES_MAX;
/// The number of entries that any page can hold, whatever their widths.
pub const ENTRIES_PER_PAGE_MIN: usize = (PAGE_BYTES - HEADER_BYTES) / ENTRY_BYTES_MAX;
const _: () = assert!(ENTRIES_PER_PAGE_MIN == 169);
const ADDRESS_KEY_TABLE: u64 = 1 << 63;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub hash: HashKey,
    /// Bytes of the record in the segment's stream.
    pub size_bytes: u32,
    /// The keyspace's id, and above it a cluster's slot.
    pub route: u32,
}

/// The contents of the routes of a store's entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Routes {
    #[default]
    Keyspaces,
    /// Routes hold the slots of keys too, so that a slot can be moved without reading records.
    Slots,
}

impl Routes {
    pub fn route(self, keyspace: u16, key: &[u8]) -> u32 {
        let slot = if self == Routes::Slots { cluster_slot(key) } else { 0 };
        u32::from(slot) << SLOT_SHIFT | u32::from(keyspace)
    }
}

impl Entry {
    pub fn of_record(hash: HashKey, header: &Header, key: &[u8], size_bytes: u32, routes: Routes) -> Entry {
        Entry { hash, size_bytes, route: routes.route(header.keyspace, key) }
    }

    /// The keyspace that the record is in.
    pub fn keyspace(&self) -> u16 {
        self.route as u16
    }

    /// The slot of the record's key; 0 if the store keeps none.
    pub fn slot(&self) -> u16 {
        (self.route >> SLOT_SHIFT) as u16
    }
}

/// Bytes of an entry's fields in one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Widths {
    offset: usize,
    size: usize,
    route: usize,
}

fn bytes_of(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()).div_ceil(8) as usize
}

impl Widths {
    /// The widths that an entry needs in a page that begins with `base`.
    fn of(base: u64, entry: &Entry) -> Widths {
        Widths {
            offset: bytes_of(entry.hash.prefix() - base),
            size: bytes_of(u64::from(entry.size_bytes)),
            route: bytes_of(entry.route.into()),
        }
    }

    fn and(self, other: Widths) -> Widths {
        Widths {
            offset: self.offset.max(other.offset),
            size: self.size.max(other.size),
            route: self.route.max(other.route),
        }
    }

    fn entry_bytes(self) -> usize {
        LOW_BYTES + self.offset + self.size + self.route
    }

    /// The field of `width` bytes that ends at `end`: the upper bytes of the eight that end there, which are within the
    /// entry, since the lower half comes first.
    fn field(entry: &[u8], end: usize, width: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&entry[end - 8..end]);
        u64::from_le_bytes(word).checked_shr(64 - 8 * width as u32).unwrap_or(0)
    }
}

/// Gathers the entries of one page, in ascending order of their hash keys.
#[derive(Debug, Default)]
pub struct PageBuilder {
    entries: Vec<Entry>,
    widths: Widths,
}

impl PageBuilder {
    fn widths_with(&self, entry: &Entry) -> Widths {
        let base = self.entries.first().map_or(entry.hash.prefix(), |first| first.hash.prefix());
        self.widths.and(Widths::of(base, entry))
    }

    /// Whether the page has room for an entry.
    pub fn fits(&self, entry: &Entry) -> bool {
        (self.entries.len() + 1) * self.widths_with(entry).entry_bytes() <= PAGE_BYTES - HEADER_BYTES
    }

    /// Appends an entry that fits.
    pub fn push(&mut self, entry: Entry) {
        assert!(entry.route >> ROUTE_BITS == 0, "a route has {ROUTE_BITS} bits");
        assert!(self.fits(&entry) && self.entries.last().is_none_or(|last| last.hash < entry.hash));
        self.widths = self.widths_with(&entry);
        self.entries.push(entry);
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Writes page `page`, whose first entry is number `first_entry` of the segment, and begins the next one.
    pub fn encode(&mut self, salt: SegmentSalt, page: u32, first_entry: u32, out: &mut [u8]) {
        assert!(out.len() == PAGE_BYTES);
        let Widths { offset, size, route } = self.widths;
        let base = self.entries.first().map_or(0, |first| first.hash.prefix());
        out.fill(0);
        out[4..6].copy_from_slice(&(self.entries.len() as u16).to_le_bytes());
        (out[6], out[7], out[12]) = (offset as u8, size as u8, route as u8);
        out[8..12].copy_from_slice(&first_entry.to_le_bytes());
        out[16..24].copy_from_slice(&base.to_le_bytes());
        for (entry, bytes) in self.entries.iter().zip(out[HEADER_BYTES..].chunks_exact_mut(self.widths.entry_bytes())) {
            let (low, rest) = bytes.split_at_mut(LOW_BYTES);
            low.copy_from_slice(&(entry.hash.0 as u64).to_le_bytes());
            rest[..offset].copy_from_slice(&(entry.hash.prefix() - base).to_le_bytes()[..offset]);
            rest[offset..offset + size].copy_from_slice(&entry.size_bytes.to_le_bytes()[..size]);
            rest[offset + size..].copy_from_slice(&entry.route.to_le_bytes()[..route]);
        }
        let crc = checksum(salt.at(ADDRESS_KEY_TABLE | u64::from(page)), &[&out[4..]]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        self.entries.clear();
        self.widths = Widths::default();
    }
}

/// A checked page.
#[derive(Clone, Copy)]
pub struct KeyPage<'a> {
    entries: &'a [u8],
    widths: Widths,
    entry_bytes: usize,
    count: usize,
    base: u64,
    /// The number of its first entry in the segment.
    pub first_entry: u32,
}

impl<'a> KeyPage<'a> {
    pub fn parse(salt: SegmentSalt, page: u32, bytes: &'a [u8]) -> Result<KeyPage<'a>, Corrupt> {
        let bytes = bytes.get(..PAGE_BYTES).ok_or(Corrupt)?;
        let crc = checksum(salt.at(ADDRESS_KEY_TABLE | u64::from(page)), &[&bytes[4..]]);
        if bytes[..4] != crc.to_le_bytes() { Err(Corrupt) } else { KeyPage::of_fields(bytes).ok_or(Corrupt) }
    }

    /// A page that has not left memory since it was encoded or parsed, so its checksum is not checked.
    pub fn trusted(bytes: &'a [u8]) -> KeyPage<'a> {
        KeyPage::of_fields(bytes).expect("a page is encoded with fields that hold")
    }

    fn of_fields(bytes: &'a [u8]) -> Option<KeyPage<'a>> {
        let count = usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
        let widths = Widths { offset: bytes[6].into(), size: bytes[7].into(), route: bytes[12].into() };
        let entry_bytes = widths.entry_bytes();
        let sane = widths.offset <= 8 && widths.size <= 4 && widths.route <= ROUTE_BYTES_MAX;
        if !sane || count * entry_bytes > PAGE_BYTES - HEADER_BYTES {
            return None;
        }
        let mut base = [0; 8];
        base.copy_from_slice(&bytes[16..24]);
        Some(KeyPage {
            entries: &bytes[HEADER_BYTES..HEADER_BYTES + count * entry_bytes],
            widths,
            entry_bytes,
            count,
            base: u64::from_le_bytes(base),
            first_entry: u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
        })
    }

    pub fn count(self) -> usize {
        self.count
    }

    fn bytes(self, place: usize) -> &'a [u8] {
        &self.entries[place * self.entry_bytes..][..self.entry_bytes]
    }

    #[inline]
    pub fn hash(self, place: usize) -> HashKey {
        let bytes = self.bytes(place);
        let low = Widths::field(bytes, LOW_BYTES, 8);
        let offset = Widths::field(bytes, LOW_BYTES + self.widths.offset, self.widths.offset);
        HashKey(u128::from(self.base.wrapping_add(offset)) << 64 | u128::from(low))
    }

    #[inline]
    pub fn entry(self, place: usize) -> Entry {
        let bytes = self.bytes(place);
        let Widths { offset, size, route } = self.widths;
        Entry {
            hash: self.hash(place),
            size_bytes: Widths::field(bytes, LOW_BYTES + offset + size, size) as u32,
            route: Widths::field(bytes, LOW_BYTES + offset + size + route, route) as u32,
        }
    }

    /// The place of the first entry whose hash key is not below `hash`; the count when there is none.
    pub fn lower_bound(self, hash: HashKey) -> usize {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low.midpoint(high);
            if self.hash(middle) < hash { low = middle + 1 } else { high = middle }
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
    use proptest::prelude::*;

    const SALT: SegmentSalt = SegmentSalt { store: 5, version: 9 };

    /// The entries in as many pages as they take.
    fn pages(entries: &[Entry]) -> Vec<Vec<u8>> {
        let (mut pages, mut builder, mut first) = (Vec::new(), PageBuilder::default(), 0);
        let mut end = |builder: &mut PageBuilder, next: usize| {
            let mut bytes = vec![0; PAGE_BYTES];
            builder.encode(SALT, pages.len() as u32, first as u32, &mut bytes);
            pages.push(bytes);
            first = next;
        };
        for (number, entry) in entries.iter().enumerate() {
            if !builder.fits(entry) {
                end(&mut builder, number);
            }
            builder.push(*entry);
        }
        end(&mut builder, entries.len());
        pages
    }

    fn read(pages: &[Vec<u8>]) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (number, bytes) in pages.iter().enumerate() {
            let page = KeyPage::parse(SALT, number as u32, bytes).unwrap();
            assert_eq!(page.first_entry as usize, entries.len());
            entries.extend(page.entries());
        }
        entries
    }

    fn entries(count: u32, step: u128) -> Vec<Entry> {
        (0..count)
            .map(|n| Entry { hash: HashKey(u128::from(n) * step + (7 << 90) + 5), size_bytes: 130, route: 0 })
            .collect()
    }

    #[test]
    fn what_is_written_is_read_and_found() {
        let entries = entries(1000, 1 << 100);
        let pages = pages(&entries);
        assert_eq!(read(&pages), entries);
        let page = KeyPage::parse(SALT, 1, &pages[1]).unwrap();
        for place in [0, 1, 100, page.count() - 1] {
            let hash = entries[page.first_entry as usize + place].hash;
            assert_eq!(page.lower_bound(hash), place);
            assert_eq!(page.lower_bound(HashKey(hash.0 + 1)), place + 1);
        }
        assert_eq!(page.lower_bound(HashKey(u128::MAX)), page.count());
    }

    /// Pins the figures of docs/decisions/keyspace-ids.md.
    #[test]
    fn a_route_costs_the_bytes_that_the_largest_of_its_page_needs() {
        let bytes_each = |route: fn(u32) -> u32| {
            let mut entries = entries(500_000, u128::MAX / 500_001);
            entries.iter_mut().zip(0..).for_each(|(entry, number)| entry.route = route(number));
            let pages = pages(&entries);
            assert_eq!(read(&pages), entries);
            let count = KeyPage::parse(SALT, 0, &pages[0]).unwrap().count();
            (count, (pages.len() * PAGE_BYTES) as f64 / entries.len() as f64)
        };
        let slot_and_id = |number: u32| (16_383 - number % 8192) << 16 | 3;
        let none = bytes_each(|_| 0);
        let one = bytes_each(|number| number % 256);
        let two = bytes_each(|number| 256 + number % 1000);
        let four = bytes_each(slot_and_id);
        for (cost, bytes) in [(none, 16), (one, 17), (two, 18), (four, 20)] {
            println!("{} entries a page, {:.2} bytes each", cost.0, cost.1);
            assert_eq!(cost.0, (PAGE_BYTES - HEADER_BYTES) / bytes);
            assert!((cost.1 - bytes as f64).abs() < 0.2);
        }
    }

    #[test]
    fn a_route_is_the_keyspace_and_where_the_store_keeps_slots_that_of_the_key() {
        let header = Header { keyspace: 7, ..Header::value(1, 7, 0) };
        let entry = |routes| Entry::of_record(HashKey(1), &header, b"somekey", 20, routes);
        assert_eq!((entry(Routes::Slots).keyspace(), entry(Routes::Slots).slot()), (7, 11058));
        assert_eq!((entry(Routes::Keyspaces).route, entry(Routes::Keyspaces).slot()), (7, 0));
    }

    #[test]
    fn half_a_million_small_records_take_sixteen_bytes_each() {
        let entries = entries(500_000, u128::MAX / 500_001);
        let pages = pages(&entries).len();
        assert!(pages * PAGE_BYTES <= entries.len() * 33 / 2, "{pages} pages");
    }

    proptest! {
        #[test]
        fn any_entries_are_read_back(
            steps in proptest::collection::vec((0u32..128, any::<u128>(), any::<u32>(), 0u32..33, 0u32..40), 1..1500),
        ) {
            let mut hash = 0u128;
            let mut entries = Vec::new();
            for (shift, step, size, size_shift, route) in steps {
                let Some(next) = hash.checked_add((step >> shift).max(1)) else { break };
                hash = next;
                let size_bytes = size.checked_shr(size_shift).unwrap_or(0);
                entries.push(Entry { hash: HashKey(hash), size_bytes, route: size.checked_shr(route).unwrap_or(0) >> 2 });
            }
            let pages = pages(&entries);
            prop_assert!(pages.len() <= entries.len().div_ceil(ENTRIES_PER_PAGE_MIN).max(1));
            prop_assert_eq!(read(&pages), entries);
        }
    }

    #[test]
    fn a_page_that_adds_up_and_makes_no_sense_is_an_error() {
        let parse = |count: u16, [offset, size, route]: [u8; 3]| {
            let mut bytes = vec![0; PAGE_BYTES];
            bytes[4..6].copy_from_slice(&count.to_le_bytes());
            (bytes[6], bytes[7], bytes[12]) = (offset, size, route);
            let salt = crate::checksum::Salt { store: 5, address: 1 << 63 | 3, version: 9 };
            let crc = checksum(salt, &[&bytes[4..]]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            KeyPage::parse(SALT, 3, &bytes).map(KeyPage::count)
        };
        assert_eq!(parse(169, [8, 4, 4]).ok(), Some(169));
        assert_eq!(parse(509, [0, 0, 0]).ok(), Some(509), "to the last byte");
        for (count, widths) in [(1, [9, 4, 4]), (1, [8, 5, 4]), (1, [8, 4, 5]), (170, [8, 4, 4]), (510, [0, 0, 0])] {
            assert!(parse(count, widths).is_err(), "{count} of {widths:?}");
        }
    }

    #[test]
    fn a_builder_is_empty_until_an_entry_comes_and_after_its_page() {
        let mut builder = PageBuilder::default();
        assert!(builder.is_empty());
        builder.push(entries(1, 1)[0]);
        assert!(!builder.is_empty());
        builder.encode(SALT, 0, 0, &mut vec![0; PAGE_BYTES]);
        assert!(builder.is_empty());
    }

    #[test]
    fn damage_or_another_place_or_version_is_an_error() {
        let bytes = pages(&entries(100, 1 << 100)).remove(0);
        assert!(KeyPage::parse(SALT, 0, &bytes).is_ok());
        assert!(KeyPage::parse(SALT, 1, &bytes).is_err());
        assert!(KeyPage::parse(SegmentSalt { version: 1, ..SALT }, 0, &bytes).is_err());
        for at in (0..PAGE_BYTES).step_by(7) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(KeyPage::parse(SALT, 0, &damaged).is_err(), "byte {at}");
        }
    }
}
