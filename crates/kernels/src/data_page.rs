//! The data page: 2 or 4 KiB of a segment's record stream, and how a record is found in it.
//!
//! ```text
//!  0                                n - 12      n - 10       n - 8             n - 4     n = 2048 or 4096
//!  +--------------------------------+-----------+------------+-----------------+---------+
//!  | n - 12 bytes of record stream  | first u16 | starts u16 | entry first u32 | crc u32 |
//!  +--------------------------------+-----------+------------+-----------------+---------+
//! ```
//! All pages of a segment have one size, which its descriptor says. Records lie in the stream one behind the other,
//! sorted by hash key, and cross pages freely (see the segment writer for extents). `first` is the offset of the first
//! record that starts in the page. `starts` is the number of records that start in it. `entry first` is the first one's
//! number in the segment, by which its validity is looked up. The trailer's crc covers these fields, salted with the
//! page's number and the segment's version. Each record carries its own crc.

use crate::checksum::{Salt, checksum, crc32c_append};
use crate::record::{HEADER_BYTES_MAX, Header, Kind};

/// The pages of key tables and fences, and the larger data pages.
pub const PAGE_BYTES: usize = 4096;
const TRAILER_BYTES: usize = 12;
const FIELDS_BYTES: usize = TRAILER_BYTES - 4;

/// The size of a segment's data pages. Small pages take more fences, but the read of a record is shorter by the
/// difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum PageSize {
    Small = 2048,
    Large = 4096,
}

const _: () = assert!(PageSize::Small.payload_bytes() == 2036);
const _: () = assert!(PageSize::Large.payload_bytes() == 4084 && PageSize::Large.bytes() == PAGE_BYTES);

impl PageSize {
    /// The size of `bytes` bytes, if there is one.
    pub fn of(bytes: u32) -> Option<PageSize> {
        [PageSize::Small, PageSize::Large].into_iter().find(|size| size.bytes() == bytes as usize)
    }

    pub const fn bytes(self) -> usize {
        self as usize
    }

    /// Bytes of the record stream in a page.
    pub const fn payload_bytes(self) -> usize {
        self.bytes() - TRAILER_BYTES
    }

    /// The stream address of the page's first byte.
    pub fn address(self, page: u32) -> u64 {
        u64::from(page) * self.payload_bytes() as u64
    }

    /// The page in which a byte of the stream lies.
    pub fn page_of(self, address: u64) -> u32 {
        (address / self.payload_bytes() as u64) as u32
    }
}

/// Keeps page trailers, key-table pages and records apart in the salt's address.
const ADDRESS_PAGE: u64 = 1 << 62;

/// The values that the checksums of a segment's parts are bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentSalt {
    pub store: u64,
    pub version: u64,
}

impl SegmentSalt {
    pub fn at(self, address: u64) -> Salt {
        Salt { store: self.store, address, version: self.version }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trailer {
    /// Offset in the payload of the first record that starts here; 0 when none does.
    pub first: u16,
    /// How many records start here.
    pub starts: u16,
    /// The number in the segment of the first record that starts here or later.
    pub entry_first: u32,
}

/// A check of the bytes failed. The caller's error names the place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt;

impl Trailer {
    /// Writes it to the end of `out`, which is page number `page`.
    pub fn encode(self, salt: SegmentSalt, page: u32, out: &mut [u8]) {
        let (_, trailer) = out.split_at_mut(out.len() - TRAILER_BYTES);
        let mut fields = [0u8; FIELDS_BYTES];
        fields[..2].copy_from_slice(&self.first.to_le_bytes());
        fields[2..4].copy_from_slice(&self.starts.to_le_bytes());
        fields[4..].copy_from_slice(&self.entry_first.to_le_bytes());
        let crc = checksum(salt.at(ADDRESS_PAGE | u64::from(page)), &[&fields]);
        trailer[..FIELDS_BYTES].copy_from_slice(&fields);
        trailer[FIELDS_BYTES..].copy_from_slice(&crc.to_le_bytes());
    }

    /// The offset at which a page's first record seems to start. It is unchecked, so it is only a hint.
    pub fn first_hint(page: &[u8]) -> usize {
        match page.split_last_chunk::<TRAILER_BYTES>() {
            Some((_, trailer)) => usize::from(u16::from_le_bytes([trailer[0], trailer[1]])),
            None => 0,
        }
    }

    /// Reads the trailer of page number `page`, which is all of `bytes`.
    pub fn parse(salt: SegmentSalt, page: u32, bytes: &[u8]) -> Result<Trailer, Corrupt> {
        let (payload, trailer) = bytes.split_last_chunk::<TRAILER_BYTES>().ok_or(Corrupt)?;
        let (fields, crc) = trailer.split_at(FIELDS_BYTES);
        if crc != checksum(salt.at(ADDRESS_PAGE | u64::from(page)), &[fields]).to_le_bytes() {
            return Err(Corrupt);
        }
        let first = u16::from_le_bytes([fields[0], fields[1]]);
        let starts = u16::from_le_bytes([fields[2], fields[3]]);
        let entry_first = u32::from_le_bytes([fields[4], fields[5], fields[6], fields[7]]);
        let numbered = entry_first.checked_add(starts.into()).is_some();
        match numbered && usize::from(first) < payload.len() {
            true => Ok(Trailer { first, starts, entry_first }),
            false => Err(Corrupt),
        }
    }
}

/// Consecutive data pages as they were read; the last may be cut short.
#[derive(Clone, Copy)]
pub struct PageRun<'a> {
    pub bytes: &'a [u8],
    pub first_page: u32,
    pub page_size: PageSize,
}

/// The places of `length` bytes of the stream from `address` on, in a run of pages that starts with `first_page`: for
/// each page an offset in the run and a length.
pub fn stream_ranges(
    page_size: PageSize,
    first_page: u32,
    address: u64,
    length: usize,
) -> impl Iterator<Item = (usize, usize)> {
    let payload_bytes = page_size.payload_bytes();
    let mut at = (address - page_size.address(first_page)) as usize;
    let mut left = length;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let within = at % payload_bytes;
        let range = (at / payload_bytes * page_size.bytes() + within, left.min(payload_bytes - within));
        at += range.1;
        left -= range.1;
        Some(range)
    })
}

impl<'a> PageRun<'a> {
    /// The bytes from stream address `address`, `length` of them, page by page; less when the run ends before.
    pub fn pieces(self, address: u64, length: usize) -> impl Iterator<Item = &'a [u8]> {
        stream_ranges(self.page_size, self.first_page, address, length).map_while(move |(from, want)| {
            self.bytes.get(from..self.bytes.len().min(from + want)).filter(|piece| !piece.is_empty())
        })
    }

    /// Copies from the stream into `out`; returns how many bytes there were.
    pub fn copy(self, address: u64, out: &mut [u8]) -> usize {
        let mut filled = 0;
        for piece in self.pieces(address, out.len()) {
            out[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        }
        filled
    }

    /// Reads the header of the record at `address` without checking the record's checksum.
    pub fn header(self, address: u64) -> Result<FoundRecord, Corrupt> {
        self.header_and_crc(address).map(|(record, _)| record)
    }

    fn header_and_crc(self, address: u64) -> Result<(FoundRecord, [u8; 4]), Corrupt> {
        let mut copied = [0u8; HEADER_BYTES_MAX];
        let head = match self.pieces(address, HEADER_BYTES_MAX).next() {
            Some(piece) if piece.len() == HEADER_BYTES_MAX => piece,
            _ => {
                let filled = self.copy(address, &mut copied);
                &copied[..filled]
            }
        };
        let (header, header_bytes) = Header::parse(head).map_err(|_| Corrupt)?;
        // A segment holds only values.
        if header.kind != Kind::Value {
            return Err(Corrupt);
        }
        let crc = [head[0], head[1], head[2], head[3]];
        Ok((FoundRecord { address, entry: 0, header, header_bytes: header_bytes as u32 }, crc))
    }

    /// Reads the record at `address` and checks it, whole.
    pub fn record(self, salt: SegmentSalt, address: u64) -> Result<FoundRecord, Corrupt> {
        let (record, crc_expected) = self.header_and_crc(address)?;
        let length = record.header.record_bytes();
        let mut crc = checksum(salt.at(address), &[]);
        let mut covered = 0;
        for piece in self.pieces(address + 4, length - 4) {
            crc = crc32c_append(crc, piece);
            covered += piece.len();
        }
        if covered != length - 4 || crc_expected != crc.to_le_bytes() { Err(Corrupt) } else { Ok(record) }
    }

    fn key_equals(self, record: &FoundRecord, keyspace: u16, key: &[u8]) -> bool {
        if record.header.key_bytes as usize != key.len() || record.header.keyspace != keyspace {
            return false;
        }
        let mut rest = key;
        self.pieces(record.key_address(), key.len()).all(|piece| {
            let (now, later) = rest.split_at(piece.len());
            rest = later;
            now == piece
        })
    }

    /// Finds and checks the record of a key of a keyspace among those that start in the run's first
    /// page.
    ///
    /// Other records are not checked: their headers are enough to find this one. If the walk over the headers agrees
    /// with the page's count of starts, no header on the way was damaged, and the record's number is right. If it does
    /// not agree, or if the key is not found, every record is checked.
    pub fn find(self, salt: SegmentSalt, keyspace: u16, key: &[u8]) -> Result<Option<FoundRecord>, Corrupt> {
        let page = self.bytes.get(..self.page_size.bytes()).ok_or(Corrupt)?;
        let trailer = Trailer::parse(salt, self.first_page, page)?;
        let first = self.page_size.address(self.first_page) + u64::from(trailer.first);
        let end = self.page_size.address(self.first_page + 1);
        if let Some(found) = self.find_by_headers(salt, &trailer, first, end, keyspace, key) {
            return self.record(salt, found.address).map(|record| Some(FoundRecord { entry: found.entry, ..record }));
        }
        for record in self.starting(salt)? {
            let record = record?;
            if self.key_equals(&record, keyspace, key) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// Every record that starts in the run's first page, in order. Each is checked when the iterator reaches it.
    pub fn starting(self, salt: SegmentSalt) -> Result<impl Iterator<Item = Result<FoundRecord, Corrupt>>, Corrupt> {
        let page = self.bytes.get(..self.page_size.bytes()).ok_or(Corrupt)?;
        let trailer = Trailer::parse(salt, self.first_page, page)?;
        let mut address = self.page_size.address(self.first_page) + u64::from(trailer.first);
        let mut damaged = false;
        Ok((0..u32::from(trailer.starts)).map_while(move |place| {
            let record = (!damaged).then(|| self.record(salt, address))?;
            damaged = record.is_err();
            Some(record.map(|record| {
                address += record.header.record_bytes() as u64;
                FoundRecord { entry: trailer.entry_first + place, ..record }
            }))
        }))
    }

    /// Finds the record of `key` by the headers alone. Returns it only if all of the page's starts are in the page and
    /// fill it: a length that is damaged upwards skips a record, and one that is damaged downwards leaves one over.
    fn find_by_headers(
        self,
        salt: SegmentSalt,
        trailer: &Trailer,
        first: u64,
        end: u64,
        keyspace: u16,
        key: &[u8],
    ) -> Option<FoundRecord> {
        let (mut address, mut found) = (first, None);
        for place in 0..u32::from(trailer.starts) {
            if address >= end {
                return None;
            }
            let record = self.header(address).ok()?;
            // A header that crosses into the next page may be zeros and that page's bytes, so its record is checked.
            if address + u64::from(record.header_bytes) > end {
                self.record(salt, address).ok()?;
            }
            if found.is_none() && self.key_equals(&record, keyspace, key) {
                found = Some(FoundRecord { entry: trailer.entry_first + place, ..record });
            }
            address += record.header.record_bytes() as u64;
        }
        // At the end of an extent, nothing may follow the page's last record. Then the walk proves nothing.
        found.filter(|_| address >= end)
    }
}

/// A checked record in a run of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundRecord {
    /// The record's address in the segment's record stream.
    pub address: u64,
    /// The record's number in the segment; 0 if it was read by [`PageRun::record`] alone.
    pub entry: u32,
    pub header: Header,
    pub header_bytes: u32,
}

impl FoundRecord {
    pub fn key_address(&self) -> u64 {
        self.address + u64::from(self.header_bytes)
    }

    pub fn stored_address(&self) -> u64 {
        self.key_address() + u64::from(self.header.key_bytes)
    }
}

/// The checksum that a record at `address` carries: over everything behind the crc field.
pub fn record_checksum(salt: SegmentSalt, address: u64, record: &[u8]) -> u32 {
    checksum(salt.at(address), &[&record[4..]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    const SALT: SegmentSalt = SegmentSalt { store: 5, version: 9 };

    fn run(bytes: &[u8], first_page: u32, page_size: PageSize) -> PageRun<'_> {
        PageRun { bytes, first_page, page_size }
    }

    /// Pages that hold records of the given value lengths.
    fn pages(size: PageSize, lengths: &[usize]) -> (Vec<u8>, Vec<(Vec<u8>, u64)>) {
        let mut stream = Vec::new();
        let mut keys = Vec::new();
        for (number, &length) in lengths.iter().enumerate() {
            let key = format!("key{number}").into_bytes();
            let stored = vec![number as u8; length];
            let record = Record { header: Header::value(number as u64, key.len(), length), key: &key, stored: &stored };
            let address = stream.len();
            stream.resize(address + record.header.record_bytes(), 0);
            record.encode(&mut stream[address..]);
            let crc = record_checksum(SALT, address as u64, &stream[address..]);
            stream[address..address + 4].copy_from_slice(&crc.to_le_bytes());
            keys.push((key, address as u64));
        }
        let mut bytes = Vec::new();
        for (page, payload) in stream.chunks(size.payload_bytes()).enumerate() {
            let from = size.address(page as u32);
            let here: Vec<u64> =
                keys.iter().map(|key| key.1).filter(|a| (from..size.address(page as u32 + 1)).contains(a)).collect();
            let mut image = payload.to_vec();
            image.resize(size.bytes(), 0);
            let first = here.first().map_or(0, |address| (address - from) as u16);
            let entry_first = keys.iter().filter(|key| key.1 < from).count() as u32;
            Trailer { first, starts: here.len() as u16, entry_first }.encode(SALT, page as u32, &mut image);
            bytes.extend_from_slice(&image);
        }
        (bytes, keys)
    }

    #[test]
    fn finds_each_record_in_the_page_where_it_starts() {
        for size in [PageSize::Small, PageSize::Large] {
            let (bytes, keys) = pages(size, &[10, 4000, 3000, 0, 900]);
            for (number, (key, address)) in keys.iter().enumerate() {
                let page = size.page_of(*address);
                let run = run(&bytes[page as usize * size.bytes()..], page, size);
                let found = run.find(SALT, 0, key).unwrap().expect("the key is there");
                assert_eq!((found.address, found.header.stamp, found.entry), (*address, number as u64, number as u32));
                let mut stored = vec![0xff; found.header.stored_bytes as usize];
                assert_eq!(run.copy(found.stored_address(), &mut stored), stored.len());
                assert!(stored.iter().all(|&byte| byte == number as u8));
                assert_eq!(run.find(SALT, 0, b"other"), Ok(None));
                let starting: Vec<_> = run.starting(SALT).unwrap().map(Result::unwrap).collect();
                assert!(starting.contains(&found) && starting.iter().all(|one| size.page_of(one.address) == page));
            }
            assert_eq!(Trailer::first_hint(&bytes[..size.bytes()]), 0);
            assert_eq!(Trailer::first_hint(&bytes[..2]), 0);
        }
    }

    #[test]
    fn damage_in_the_value_of_a_record_keeps_nobody_from_its_neighbours() {
        // The first record that starts in page 1 is damaged; the last one continues in page 2.
        let (mut bytes, keys) = pages(PageSize::Large, &[4050, 1000, 1500, 3000, 100]);
        let starts: Vec<u32> = keys.iter().map(|key| PageSize::Large.page_of(key.1)).collect();
        assert_eq!(starts, [0, 0, 1, 1, 2]);
        let find = |bytes: &[u8], key| run(&bytes[PAGE_BYTES..], 1, PageSize::Large).find(SALT, 0, key);
        let truth = find(&bytes, b"key3");
        assert!(matches!(truth, Ok(Some(found)) if found.entry == 3));
        bytes[PAGE_BYTES + (keys[2].1 - PageSize::Large.address(1)) as usize + 200] ^= 1;
        assert_eq!(find(&bytes, b"key3"), truth);
        assert_eq!(find(&bytes, b"key2"), Err(Corrupt));
    }

    #[test]
    fn a_header_may_lie_in_two_pages() {
        for size in [PageSize::Small, PageSize::Large] {
            for before in 1..=HEADER_BYTES_MAX {
                let first = size.payload_bytes() - before - 18;
                let (bytes, keys) = pages(size, &[first, 300, 10]);
                assert_eq!(keys[1].1 as usize, size.payload_bytes() - before, "the record begins there");
                let found = run(&bytes, 0, size).find(SALT, 0, b"key1").unwrap().expect("it is there");
                assert_eq!((found.address, found.header.stored_bytes), (keys[1].1, 300));
            }
        }
    }

    #[test]
    fn a_trailer_that_adds_up_and_makes_no_sense_is_an_error() {
        let parse = |trailer: Trailer| {
            let mut page = vec![0; PAGE_BYTES];
            trailer.encode(SALT, 3, &mut page);
            Trailer::parse(SALT, 3, &page).map(|parsed| assert_eq!(parsed, trailer))
        };
        let payload_bytes = PageSize::Large.payload_bytes() as u16;
        let good = Trailer { first: payload_bytes - 1, starts: 2, entry_first: u32::MAX - 2 };
        assert_eq!(parse(good), Ok(()));
        assert_eq!(parse(Trailer { first: payload_bytes, ..good }), Err(Corrupt));
        assert_eq!(parse(Trailer { entry_first: u32::MAX - 1, ..good }), Err(Corrupt));
    }

    /// Pins the format on flash.
    #[test]
    fn a_trailer_has_its_bytes() {
        let mut page = vec![0; PAGE_BYTES];
        Trailer { first: 0x102, starts: 0x304, entry_first: 0x0506_0708 }.encode(SALT, 5, &mut page);
        let trailer = &page[PageSize::Large.payload_bytes()..];
        assert_eq!(trailer[..FIELDS_BYTES], [2, 1, 4, 3, 8, 7, 6, 5]);
        let crc = checksum(Salt { store: 5, address: 1 << 62 | 5, version: 9 }, &[&trailer[..FIELDS_BYTES]]);
        assert_eq!(trailer[FIELDS_BYTES..], crc.to_le_bytes());
        assert_eq!(Trailer::first_hint(&page), 0x102);
    }

    #[test]
    fn a_page_has_one_of_two_sizes() {
        let sizes = [0, 2047, 2048, 4096, 8192].map(PageSize::of);
        assert_eq!(sizes, [None, None, Some(PageSize::Small), Some(PageSize::Large), None]);
    }

    #[test]
    fn damage_anywhere_is_an_error_and_never_another_answer() {
        for (size, lengths) in [(PageSize::Large, [10, 2000, 3000]), (PageSize::Small, [10, 1000, 3000])] {
            let (bytes, _) = pages(size, &lengths);
            let truth = run(&bytes, 0, size).find(SALT, 0, b"key2").unwrap();
            assert!(truth.is_some());
            for at in 0..bytes.len().min(6000) {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                match run(&damaged, 0, size).find(SALT, 0, b"key2") {
                    Err(Corrupt) => {}
                    other => assert_eq!(other, Ok(truth), "byte {at}"),
                }
            }
        }
    }

    #[test]
    fn a_damaged_length_that_leads_to_another_record_is_an_error() {
        // Each record is as long as the bit that is flipped in the length before it, so the walk skips one record and
        // goes on.
        let lengths = [1024 - 14 - 4, 1024 - 14 - 4, 900, 1100];
        let (bytes, keys) = pages(PageSize::Large, &lengths);
        let header = Record { header: Header::value(0, 4, lengths[0]), key: b"key0", stored: &[] };
        assert_eq!(header.header.record_bytes(), 1024);
        let truth = run(&bytes, 0, PageSize::Large).find(SALT, 0, b"key3").unwrap().expect("it starts there");
        for record in 0..3 {
            for (byte, bit) in (0..17).flat_map(|byte| (0..8).map(move |bit| (byte, bit))) {
                let mut damaged = bytes.clone();
                damaged[keys[record].1 as usize + byte] ^= 1 << bit;
                match run(&damaged, 0, PageSize::Large).find(SALT, 0, b"key3") {
                    Err(Corrupt) => {}
                    other => assert_eq!(other, Ok(Some(truth)), "record {record} byte {byte} bit {bit}"),
                }
            }
        }
    }

    #[test]
    fn zeros_behind_the_last_record_do_not_stand_for_records_that_were_skipped() {
        // A flipped bit skips the second record. The zeros behind the third one and the bytes that follow pass for a
        // header.
        let payload_bytes = PageSize::Large.payload_bytes();
        for gap in 1..14 {
            let (mut bytes, keys) = pages(PageSize::Large, &[1006, 1006, payload_bytes - 2048 - 18 - gap]);
            bytes.extend_from_slice(&[7; PAGE_BYTES]);
            let truth = run(&bytes, 0, PageSize::Large).find(SALT, 0, b"key2").unwrap().expect("it starts there");
            assert_eq!((keys[1].1, keys[2].1, truth.entry), (1024, 2048, 2));
            for bit in 0..8 * 17 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let found = run(&damaged, 0, PageSize::Large).find(SALT, 0, b"key2");
                assert!(found == Ok(Some(truth)) || found == Err(Corrupt), "gap {gap} bit {bit}: {found:?}");
            }
        }
    }

    #[test]
    fn another_version_store_or_place_does_not_pass() {
        let (bytes, _) = pages(PageSize::Large, &[10, 20]);
        let find = |salt| run(&bytes, 0, PageSize::Large).find(salt, 0, b"key0");
        assert!(find(SegmentSalt { version: 8, ..SALT }).is_err());
        assert!(find(SegmentSalt { store: 8, ..SALT }).is_err());
        assert!(run(&bytes, 0, PageSize::Small).find(SALT, 0, b"key0").is_err());
        assert!(run(&bytes, 1, PageSize::Large).find(SALT, 0, b"key0").is_err());
    }

    #[test]
    fn a_run_that_ends_inside_a_record_is_an_error() {
        let (bytes, _) = pages(PageSize::Large, &[10, 5000]);
        assert!(run(&bytes[..PAGE_BYTES], 0, PageSize::Large).find(SALT, 0, b"key1").is_err());
    }
}
