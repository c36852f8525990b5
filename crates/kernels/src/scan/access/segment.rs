//! Hashed segments: data pages, and the validity map of their records ([`crate::data_page`]).
//!
//! A dead record's checksum is not checked, so its lengths may be damaged. The walk proves that none was, and that each
//! record is judged by its own bit: lengths lead from start to start, as many as each page has, and to the numbers that
//! the pages state.

use super::plain_entry::PlainRecord;
use super::{AccessError, Entry, EntryAccessor, EntrySink};
use crate::data_page::{FoundRecord, PageRun, PageSize, SegmentSalt, Trailer};
use crate::record::Header;
use crate::scan::wire::{ScanReader, WireError};

/// The records that start in some pages of a segment.
///
/// ```text
///  0        1          9         17           21           25         29       33       37      38
///  +--------+----------+---------+------------+------------+----------+--------+--------+-------+---------+
///  | layout | store id | version | page bytes | first page | pages    | entry  | entry  | has   | valid   |
///  | u8     | u64      | u64     | u32        | u32        | end u32  | first  | count  | dead  | u64 ... |
///  +--------+----------+---------+------------+------------+----------+--------+--------+-------+---------+
/// ```
/// The records are those that start from `first page` on, up to number `entry first` + `entry count`: others may follow in
/// the pages, which end where the last of these does, or behind. If some are dead, bit n of `valid` says whether record
/// `entry first` + n of the segment is alive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PieceOfSegment {
    pub salt: SegmentSalt,
    pub page_size: PageSize,
    pub first_page: u32,
    pub pages_end: u32,
    pub entry_first: u32,
    pub entry_count: u32,
    /// `None`: all records are alive.
    pub valid: Option<Vec<u64>>,
}

/// The place at which an accessor goes on: records before `entry_next` were shown, and `page` begins with a record or
/// with the rest of one.
///
/// ```text
///  0      4            8            12
///  +------+------------+------------+
///  | page | entry first| entry next |
///  | u32  | u32        | u32        |
///  +------+------------+------------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentPlace {
    pub page: u32,
    /// The number of the first record that starts in the page, or behind it.
    pub entry_first: u32,
    pub entry_next: u32,
}

impl SegmentPlace {
    pub fn encode(&self) -> Vec<u8> {
        [self.page, self.entry_first, self.entry_next].iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// `None` if the bytes are no place.
    pub fn decode(bytes: &[u8]) -> Option<SegmentPlace> {
        let mut reader = ScanReader::new(bytes);
        let (page, entry_first, entry_next) = (reader.u32().ok()?, reader.u32().ok()?, reader.u32().ok()?);
        let is_one = reader.is_empty() && entry_first <= entry_next;
        is_one.then_some(SegmentPlace { page, entry_first, entry_next })
    }
}

impl PieceOfSegment {
    pub const HEAD_BYTES: usize = 38;

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(super::LAYOUT_SEGMENT);
        out.extend_from_slice(&self.salt.store.to_le_bytes());
        out.extend_from_slice(&self.salt.version.to_le_bytes());
        let page_bytes = self.page_size.bytes() as u32;
        for number in [page_bytes, self.first_page, self.pages_end, self.entry_first, self.entry_count] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.push(u8::from(self.valid.is_some()));
        self.valid.iter().flatten().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    }

    /// Reads a piece, behind its layout, from the front of `reader`, which may go on behind it.
    pub fn decode(reader: &mut ScanReader<'_>) -> Result<PieceOfSegment, WireError> {
        let salt = SegmentSalt { store: reader.u64()?, version: reader.u64()? };
        let page_size = PageSize::of(reader.u32()?).ok_or(WireError::Malformed)?;
        let (first_page, pages_end) = (reader.u32()?, reader.u32()?);
        let (entry_first, entry_count, has_dead) = (reader.u32()?, reader.u32()?, reader.u8()?);
        if first_page > pages_end || has_dead > 1 {
            return Err(WireError::Malformed);
        }
        let valid = match has_dead {
            0 => None,
            _ => {
                let words = reader.take(entry_count.div_ceil(64) as usize * 8)?.as_chunks::<8>().0;
                Some(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
            }
        };
        Ok(PieceOfSegment { salt, page_size, first_page, pages_end, entry_first, entry_count, valid })
    }

    fn entries_end(&self) -> u32 {
        self.entry_first.saturating_add(self.entry_count)
    }

    fn is_valid(&self, entry: u32) -> Option<bool> {
        let place = entry.checked_sub(self.entry_first).filter(|place| *place < self.entry_count)?;
        Some(self.valid.as_ref().is_none_or(|valid| valid[place as usize / 64] >> (place % 64) & 1 == 1))
    }
}

pub struct SegmentAccessor {
    piece: PieceOfSegment,
    /// Pages that were taken and not passed. The last one may be incomplete.
    kept: Vec<u8>,
    /// The first page of those that are walked over, or kept.
    window_first: u32,
    /// The page whose records are being passed.
    page: Option<u32>,
    /// The number of the first record that starts in that page.
    page_entry: u32,
    /// The stream address at which that page begins.
    page_address: u64,
    starts_left: u16,
    address_next: u64,
    entry_next: u32,
}

struct SegmentEntry<'a> {
    run: PageRun<'a>,
    record: &'a FoundRecord,
}

impl Entry for SegmentEntry<'_> {
    fn header(&self) -> &Header {
        &self.record.header
    }

    fn copy_key(&self, out: &mut [u8]) {
        self.run.copy(self.record.key_address(), out);
    }

    fn copy_stored(&self, out: &mut [u8]) {
        self.run.copy(self.record.stored_address(), out);
    }
}

/// The result of a step.
enum Walk {
    /// More bytes are needed.
    Short,
    Passed,
    Enough,
    AtEnd,
}

/// How a walk over some bytes ended.
enum WalkEnd {
    /// It goes on with the bytes from this place on, and more behind them.
    Short(usize),
    /// Nothing is left to walk over. Whether the sink wants more.
    Over(bool),
}

impl SegmentAccessor {
    pub fn new(piece: PieceOfSegment) -> SegmentAccessor {
        let (window_first, page_entry) = (piece.first_page, piece.entry_first);
        SegmentAccessor {
            piece,
            kept: Vec::new(),
            window_first,
            page: None,
            page_entry,
            page_address: 0,
            starts_left: 0,
            address_next: 0,
            entry_next: page_entry,
        }
    }

    fn run<'a>(&self, window: &'a [u8]) -> PageRun<'a> {
        PageRun { bytes: window, first_page: self.window_first, page_size: self.piece.page_size }
    }

    /// Whether the window holds all pages up to `end`, as far as the piece has them.
    fn has_pages(&self, window: &[u8], end: u32) -> bool {
        let wanted = end.min(self.piece.pages_end).saturating_sub(self.window_first);
        window.len() as u64 >= u64::from(wanted) * self.piece.page_size.bytes() as u64
    }

    fn corrupt(&self) -> AccessError {
        AccessError { page: self.page.unwrap_or(self.piece.first_page) }
    }

    /// Whether all records of the piece were passed.
    fn has_passed_all(&self) -> bool {
        self.page.is_some() && self.entry_next >= self.piece.entries_end()
    }

    fn next_page(&mut self, window: &[u8]) -> Result<Walk, AccessError> {
        let page = self.page.map_or(self.piece.first_page, |page| page + 1);
        if page >= self.piece.pages_end {
            return Ok(Walk::AtEnd);
        }
        if !self.has_pages(window, page + 1) {
            return Ok(Walk::Short);
        }
        let size = self.piece.page_size;
        let at = (page - self.window_first) as usize * size.bytes();
        let trailer = Trailer::parse(self.piece.salt, page, &window[at..at + size.bytes()]);
        let trailer = trailer.map_err(|_| AccessError { page })?;
        if self.page.is_none() {
            self.entry_next = trailer.entry_first;
        }
        if trailer.entry_first != self.entry_next {
            return Err(AccessError { page });
        }
        (self.page, self.page_entry, self.starts_left) = (Some(page), trailer.entry_first, trailer.starts);
        self.page_address = size.address(page);
        self.address_next = self.page_address + u64::from(trailer.first);
        Ok(Walk::Passed)
    }

    fn next_record(&mut self, window: &[u8], sink: &mut dyn EntrySink) -> Result<Walk, AccessError> {
        let Some(record) = self.plain(window) else { return self.next_of_pages(window, sink) };
        let is_valid = self.piece.is_valid(self.entry_next).ok_or(self.corrupt())?;
        let mut is_wanted = true;
        if is_valid {
            if !record.is_intact(self.piece.salt, self.address_next) {
                return Err(self.corrupt());
            }
            is_wanted = sink.plain(&record.entry, window);
        }
        Ok(self.passed(record.bytes(), is_wanted))
    }

    /// Passes a record behind the piece, in the page of its last one: lengths must lead to all starts of that page too. Of the last start the place
    /// alone counts, as the record may go on in a page that is not read.
    fn next_behind(&mut self, window: &[u8]) -> Result<Walk, AccessError> {
        let address = self.address_next;
        if self.page != Some(self.piece.page_size.page_of(address)) {
            return Err(self.corrupt());
        }
        let record_bytes = match self.starts_left {
            1 => 0,
            _ => self.run(window).header(address).map_err(|_| self.corrupt())?.header.record_bytes() as u64,
        };
        Ok(self.passed(record_bytes, true))
    }

    /// The next record, if it lies in one piece.
    #[inline(always)]
    fn plain<'a>(&self, window: &'a [u8]) -> Option<PlainRecord<'a>> {
        let size = self.piece.page_size;
        let page_at = (self.page? - self.window_first) as usize * size.bytes();
        let within = (self.address_next - self.page_address) as usize;
        PlainRecord::parse(window[page_at..page_at + size.payload_bytes()].get(within..)?)
    }

    fn next_of_pages(&mut self, window: &[u8], sink: &mut dyn EntrySink) -> Result<Walk, AccessError> {
        let (size, address) = (self.piece.page_size, self.address_next);
        let page = size.page_of(address);
        if self.page != Some(page) {
            return Err(self.corrupt());
        }
        // A header may cross into the next page.
        if !self.has_pages(window, page.saturating_add(2)) {
            return Ok(Walk::Short);
        }
        let run = self.run(window);
        let passed = run.header(address).map_err(|_| self.corrupt())?;
        let record_bytes = passed.header.record_bytes() as u64;
        let is_valid = self.piece.is_valid(self.entry_next).ok_or(self.corrupt())?;
        // Zeros at a page's end may look like any header, together with the next page's bytes.
        let is_doubtful = size.page_of(passed.key_address() - 1) != page;
        let mut is_wanted = true;
        if is_valid || is_doubtful {
            let last_page = size.page_of(address + record_bytes - 1);
            if last_page >= self.piece.pages_end {
                return Err(self.corrupt());
            }
            if !self.has_pages(window, last_page + 1) {
                return Ok(Walk::Short);
            }
            let record = run.record(self.piece.salt, address).map_err(|_| self.corrupt())?;
            if is_valid {
                is_wanted = sink.entry(&SegmentEntry { run, record: &record });
            }
        }
        Ok(self.passed(record_bytes, is_wanted))
    }

    fn passed(&mut self, record_bytes: u64, is_wanted: bool) -> Walk {
        self.address_next += record_bytes;
        self.starts_left -= 1;
        self.entry_next += 1;
        if is_wanted { Walk::Passed } else { Walk::Enough }
    }

    /// Walks over records of a window until it needs more bytes, or is over. It keeps none of the window's.
    fn walk(&mut self, window: &[u8], sink: &mut dyn EntrySink) -> Result<WalkEnd, AccessError> {
        loop {
            let walk = match self.starts_left {
                0 if self.has_passed_all() => Walk::AtEnd,
                0 => self.next_page(window)?,
                _ if self.has_passed_all() => self.next_behind(window)?,
                _ => self.next_record(window, sink)?,
            };
            let is_short = match walk {
                Walk::Passed => continue,
                Walk::Short => true,
                // Bytes behind the last record are ignored.
                Walk::AtEnd => false,
                Walk::Enough => {
                    sink.leave(window);
                    return Ok(WalkEnd::Over(false));
                }
            };
            let is_wanted = sink.leave(window);
            return Ok(if is_short && is_wanted {
                WalkEnd::Short(self.pass_pages(window))
            } else {
                WalkEnd::Over(is_wanted)
            });
        }
    }

    /// Passes the window's pages that no record to come starts in. Returns their bytes.
    fn pass_pages(&mut self, window: &[u8]) -> usize {
        let next = match self.page {
            Some(page) if self.starts_left > 0 => self.piece.page_size.page_of(self.address_next).min(page),
            Some(page) => page + 1,
            None => return 0,
        };
        let page_bytes = self.piece.page_size.bytes();
        let passed = (next.saturating_sub(self.window_first) as usize).min(window.len() / page_bytes);
        self.window_first += passed as u32;
        passed * page_bytes
    }

    /// Walks over the kept pages, with as many of the new ones as it takes to pass those. `Short`: the walk goes on at this place of the new bytes,
    /// where a page begins.
    fn walk_over_kept(&mut self, bytes: &[u8], sink: &mut dyn EntrySink) -> Result<WalkEnd, AccessError> {
        let page_bytes = self.piece.page_size.bytes();
        let (mut window, mut taken) = (std::mem::take(&mut self.kept), 0);
        while taken < bytes.len() {
            let more = (page_bytes - window.len() % page_bytes).min(bytes.len() - taken);
            window.extend_from_slice(&bytes[taken..taken + more]);
            taken += more;
            let passed = match self.walk(&window, sink)? {
                WalkEnd::Short(passed) => passed,
                over @ WalkEnd::Over(_) => return Ok(over),
            };
            let left = window.len() - passed;
            if left <= taken {
                window.clear();
                self.kept = window;
                return Ok(WalkEnd::Short(taken - left));
            }
            window.drain(..passed);
        }
        self.kept = window;
        Ok(WalkEnd::Over(true))
    }
}

impl EntryAccessor for SegmentAccessor {
    fn bytes_total(&self) -> u64 {
        u64::from(self.piece.pages_end - self.piece.first_page) * self.piece.page_size.bytes() as u64
    }

    fn place(&self) -> Option<Vec<u8>> {
        if self.has_passed_all() {
            return None;
        }
        let place = match self.page {
            Some(page) if self.starts_left > 0 => {
                SegmentPlace { page, entry_first: self.page_entry, entry_next: self.entry_next }
            }
            page => {
                let page = page.map_or(self.piece.first_page, |page| page + 1);
                SegmentPlace { page, entry_first: self.entry_next, entry_next: self.entry_next }
            }
        };
        (place.page < self.piece.pages_end).then(|| place.encode())
    }

    /// Records are shown where they lie in `bytes`, but for those of the last pages, which are kept if their records go on behind them.
    fn take(&mut self, mut bytes: &[u8], sink: &mut dyn EntrySink) -> Result<bool, AccessError> {
        if !self.kept.is_empty() {
            match self.walk_over_kept(bytes, sink)? {
                WalkEnd::Short(passed) => bytes = &bytes[passed..],
                WalkEnd::Over(is_wanted) => return Ok(is_wanted),
            }
        }
        match self.walk(bytes, sink)? {
            WalkEnd::Over(is_wanted) => Ok(is_wanted),
            WalkEnd::Short(passed) => {
                self.kept.extend_from_slice(&bytes[passed..]);
                Ok(true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_page::record_checksum;
    use crate::record::Record;

    const SALT: SegmentSalt = SegmentSalt { store: 5, version: 9 };

    /// Pages of records with values of these lengths.
    fn pages(size: PageSize, lengths: &[usize]) -> Vec<u8> {
        let (mut stream, mut starts) = (Vec::new(), Vec::new());
        for (number, length) in lengths.iter().enumerate() {
            let (key, stored) = (format!("key{number}").into_bytes(), vec![number as u8; *length]);
            let record =
                Record { header: Header::value(number as u64, key.len(), *length), key: &key, stored: &stored };
            let address = stream.len();
            stream.resize(address + record.header.record_bytes(), 0);
            record.encode(&mut stream[address..]);
            let crc = record_checksum(SALT, address as u64, &stream[address..]);
            stream[address..address + 4].copy_from_slice(&crc.to_le_bytes());
            starts.push(address as u64);
        }
        let mut bytes = Vec::new();
        for (page, payload) in stream.chunks(size.payload_bytes()).enumerate() {
            let (from, end) = (size.address(page as u32), size.address(page as u32 + 1));
            let here: Vec<u64> = starts.iter().copied().filter(|start| (from..end).contains(start)).collect();
            let mut image = payload.to_vec();
            image.resize(size.bytes(), 0);
            let first = here.first().map_or(0, |start| (start - from) as u16);
            let entry_first = starts.iter().filter(|start| **start < from).count() as u32;
            Trailer { first, starts: here.len() as u16, entry_first }.encode(SALT, page as u32, &mut image);
            bytes.extend_from_slice(&image);
        }
        bytes
    }

    fn lengths() -> Vec<usize> {
        (0..60).map(|number| number * 37 % 900 + if number % 17 == 0 { 6000 } else { 0 }).collect()
    }

    fn piece(size: PageSize, pages: usize, valid: impl Fn(u32) -> bool) -> PieceOfSegment {
        let pages = pages as u32;
        let mut words = vec![0u64];
        (0..60).filter(|entry| valid(*entry)).for_each(|entry| words[0] |= 1 << entry);
        let (entry_first, entry_count) = (0, 60);
        PieceOfSegment {
            salt: SALT,
            page_size: size,
            first_page: 0,
            pages_end: pages,
            entry_first,
            entry_count,
            valid: (words[0].count_ones() < 60).then_some(words),
        }
    }

    #[derive(Default)]
    struct Keys {
        keys: Vec<String>,
        wanted: Option<usize>,
    }

    impl EntrySink for Keys {
        fn entry(&mut self, entry: &dyn Entry) -> bool {
            let mut key = vec![0; entry.header().key_bytes as usize];
            entry.copy_key(&mut key);
            let mut stored = vec![0; entry.header().stored_bytes as usize];
            entry.copy_stored(&mut stored);
            assert!(stored.iter().all(|byte| u64::from(*byte) == entry.header().stamp));
            self.keys.push(String::from_utf8(key).unwrap());
            self.wanted.is_none_or(|wanted| self.keys.len() < wanted)
        }

        fn missed(&mut self, _: &[u8], _: Option<&[u8]>) {
            panic!("a segment has all of its records");
        }
    }

    fn walk(piece: &PieceOfSegment, bytes: &[u8], part: usize) -> Result<Vec<String>, AccessError> {
        let (mut accessor, mut keys) = (SegmentAccessor::new(piece.clone()), Keys::default());
        assert_eq!(accessor.bytes_total(), bytes.len() as u64);
        for part in bytes.chunks(part) {
            assert!(accessor.take(part, &mut keys)?);
        }
        Ok(keys.keys)
    }

    #[test]
    fn valid_records_are_shown_once_in_whatever_parts_the_bytes_come() {
        for size in [PageSize::Small, PageSize::Large] {
            let bytes = pages(size, &lengths());
            for valid in [|_| true, |entry: u32| entry % 3 == 1, |_| false] {
                let piece = piece(size, bytes.len() / size.bytes(), valid);
                let expected: Vec<_> =
                    (0..60).filter(|entry| valid(*entry)).map(|entry| format!("key{entry}")).collect();
                for part in [1, 7, 512, 4096, 5000, 32 << 10, bytes.len()] {
                    assert_eq!(walk(&piece, &bytes, part).as_ref(), Ok(&expected), "parts of {part}");
                }
                let mut encoded = Vec::new();
                piece.encode(&mut encoded);
                let encoded = &encoded[1..];
                assert_eq!(PieceOfSegment::decode(&mut ScanReader::new(encoded)), Ok(piece));
                assert!(PieceOfSegment::decode(&mut ScanReader::new(&encoded[..encoded.len() - 1])).is_err());
            }
        }
    }

    /// The rest of a piece, from the place at which an accessor stopped.
    fn rest(whole: &PieceOfSegment, place: &[u8]) -> PieceOfSegment {
        let SegmentPlace { page, entry_first, entry_next } = SegmentPlace::decode(place).unwrap();
        let words = whole.valid.clone().unwrap_or_else(|| vec![u64::MAX]);
        let is_left = |entry: u32| entry >= entry_next && words[0] >> entry & 1 == 1;
        let valid =
            (entry_first..60).filter(|entry| is_left(*entry)).fold(0, |word, entry| word | 1 << (entry - entry_first));
        let entry_count = 60 - entry_first;
        PieceOfSegment { first_page: page, entry_first, entry_count, valid: Some(vec![valid]), ..whole.clone() }
    }

    #[test]
    fn another_accessor_goes_on_where_one_stopped() {
        for size in [PageSize::Small, PageSize::Large] {
            let bytes = pages(size, &lengths());
            for valid in [|_| true, |entry: u32| entry % 3 == 1] {
                let whole = piece(size, bytes.len() / size.bytes(), valid);
                let expected = walk(&whole, &bytes, 4096).unwrap();
                for (wanted, part) in [(1, 512), (2, 4096), (7, 5000)] {
                    let (mut shown, mut piece) = (Vec::new(), whole.clone());
                    loop {
                        let mut keys = Keys { wanted: Some(wanted), ..Keys::default() };
                        let mut accessor = SegmentAccessor::new(piece.clone());
                        let from = piece.first_page as usize * size.bytes();
                        assert_eq!(accessor.bytes_total(), (bytes.len() - from) as u64);
                        let mut parts = bytes[from..].chunks(part);
                        while parts.next().is_some_and(|part| accessor.take(part, &mut keys).unwrap()) {}
                        shown.extend(keys.keys);
                        let Some(place) = accessor.place() else { break };
                        piece = rest(&whole, &place);
                    }
                    assert_eq!(shown, expected, "{wanted} at a time");
                }
            }
        }
        assert_eq!(SegmentPlace::decode(&[0; 11]), None);
    }

    #[test]
    fn a_piece_ends_behind_its_last_record_wherever_its_pages_are_cut() {
        for size in [PageSize::Small, PageSize::Large] {
            let bytes = pages(size, &lengths());
            let whole = piece(size, bytes.len() / size.bytes(), |_| true);
            let trailer =
                |page: u32| Trailer::parse(SALT, page, &bytes[page as usize * size.bytes()..][..size.bytes()]).unwrap();
            let mut entry_first = 0;
            for page in 0..whole.pages_end {
                let Trailer { entry_first: first, starts, .. } = trailer(page);
                assert_eq!(first, entry_first);
                entry_first += u32::from(starts);
                for last in first..first + u32::from(starts) {
                    // The pages up to the one in which the last record ends.
                    let lies_before = |end: &u32| trailer(*end).entry_first > last && trailer(*end).starts > 0;
                    let ends = (page + 1..whole.pages_end)
                        .find(lies_before)
                        .map_or(whole.pages_end, |end| if trailer(end).first > 0 { end + 1 } else { end });
                    let cut = PieceOfSegment {
                        first_page: page,
                        pages_end: ends,
                        entry_first: first & !63,
                        entry_count: last + 1 - (first & !63),
                        valid: None,
                        ..whole.clone()
                    };
                    let expected: Vec<_> = (first..=last).map(|entry| format!("key{entry}")).collect();
                    let own = &bytes[page as usize * size.bytes()..ends as usize * size.bytes()];
                    for part in [512, 4096, own.len()] {
                        assert_eq!(walk(&cut, own, part).as_ref(), Ok(&expected), "pages {page}..{ends}");
                    }
                }
            }
        }
    }

    #[test]
    fn damage_is_an_error_or_changes_nothing() {
        let size = PageSize::Small;
        let bytes = pages(size, &lengths());
        let piece = piece(size, bytes.len() / size.bytes(), |entry| entry % 2 == 0);
        let truth = walk(&piece, &bytes, 4096).unwrap();
        for at in (0..bytes.len()).step_by(3) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            if let Ok(shown) = walk(&piece, &damaged, 4096) {
                assert_eq!(shown, truth, "byte {at}");
            }
        }
    }

    #[test]
    fn a_sink_that_has_enough_ends_the_walk() {
        let size = PageSize::Large;
        let bytes = pages(size, &lengths());
        let piece = piece(size, bytes.len() / size.bytes(), |_| true);
        let mut keys = Keys { wanted: Some(5), ..Keys::default() };
        assert_eq!(SegmentAccessor::new(piece).take(&bytes, &mut keys), Ok(false));
        assert_eq!(keys.keys.len(), 5);
    }
}
