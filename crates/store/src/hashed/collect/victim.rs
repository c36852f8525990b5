//! Reads a segment's valid records from front to back, each one checked, for the collector's merge and for `check`. A cursor may be limited to the
//! records that start in some of the pages.
//!
//! Pages pass through a window; the next windows are read while this one is looked at.

use crate::hashed::catalog::Bitmap;
use crate::hashed::segment::view::Segment;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::keyspace::hasher::KeyHasher;
use tapetum_base::media::io::Io;
use tapetum_base::media::transfer::Transfer;
use tapetum_drive::{HostView, LocalMemory};
use tapetum_kernels::data_page::{FoundRecord, PageRun, PageSize, Trailer};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::Header;

/// Bytes read at once, where local memory is not small.
const WINDOW_BYTES_MAX: usize = 256 << 10;
/// Windows that are read ahead at once: behind many readers each takes a while.
const DEPTH: usize = 3;
/// Pages kept free in front of what is read ahead, for the end of the window before it: a record may lie in both.
const TAIL_PAGES_MAX: u32 = 4;

pub struct VictimCursor {
    segment: Arc<Segment>,
    hasher: KeyHasher,
    io: Io,
    local: LocalMemory,
    /// The pages whose records are passed: those that start in them.
    pages: Range<u32>,
    window: Window,
    /// In the order of their pages.
    ahead: VecDeque<Ahead>,
    /// The page whose records are being passed, and how many of those that start in it are left.
    page: Option<u32>,
    starts_left: u16,
    address_next: u64,
    entries_passed: u32,
    current: Option<(HashKey, FoundRecord)>,
    record: Vec<u8>,
}

/// Neighbouring pages of the segment in local memory.
struct Window {
    view: HostView,
    first_page: u32,
    pages: u32,
    page_size: PageSize,
}

impl Window {
    fn run(&self) -> PageRun<'_> {
        PageRun { bytes: self.view.bytes(), first_page: self.first_page, page_size: self.page_size }
    }

    fn end(&self) -> u32 {
        self.first_page + self.pages
    }

    /// Puts the last pages of the window before this one in front, from page `from` on.
    fn prepend(&mut self, io: &Io, before: &Window, from: u32) {
        let pages = before.end() - from;
        let tail = &before.run().bytes[(from - before.first_page) as usize * self.page_size.bytes()..];
        io.prepend(&mut self.view, tail);
        self.first_page = from;
        self.pages += pages;
    }
}

/// A window that is being read.
struct Ahead {
    transfer: Transfer,
    at: usize,
    first_page: u32,
    pages: u32,
}

impl Ahead {
    fn end(&self) -> u32 {
        self.first_page + self.pages
    }
}

impl VictimCursor {
    pub async fn new(
        segment: Arc<Segment>,
        io: &Io,
        local: &LocalMemory,
        hasher: KeyHasher,
    ) -> Result<VictimCursor, Error> {
        let pages = 0..segment.descriptor.data_pages;
        VictimCursor::within(segment, pages, io, local, hasher).await
    }

    /// A cursor over the records that start in these pages of the segment.
    pub async fn within(
        segment: Arc<Segment>,
        pages: Range<u32>,
        io: &Io,
        local: &LocalMemory,
        hasher: KeyHasher,
    ) -> Result<VictimCursor, Error> {
        let page_size = segment.page_size();
        let buffer = io.allocate(page_size.bytes()).await?;
        Ok(VictimCursor {
            segment,
            hasher,
            io: io.clone(),
            local: local.clone(),
            pages,
            window: Window { view: io.view(buffer, 0..0), first_page: 0, pages: 0, page_size },
            ahead: VecDeque::new(),
            page: None,
            starts_left: 0,
            address_next: 0,
            entries_passed: 0,
            current: None,
            record: Vec::new(),
        })
    }

    /// The hash key of the record the cursor is at; `None` at the end.
    pub fn head(&self) -> Option<HashKey> {
        self.current.as_ref().map(|(hash, _)| *hash)
    }

    pub fn header(&self) -> Header {
        self.current.as_ref().map(|(_, found)| found.header).expect("the cursor is at a record")
    }

    /// The page that the record begins in. Only when the cursor has left the page is it known that the page's records are what they seem: a damaged
    /// length could let a dead record pass for its neighbour.
    pub fn page(&self) -> Option<u32> {
        self.page
    }

    /// The record's number in the segment.
    pub fn entry(&self) -> u32 {
        self.entries_passed - 1
    }

    /// The record's bytes in one piece.
    pub fn record(&self) -> &[u8] {
        &self.record
    }

    /// Goes on to the next record that is set in `valid`.
    pub async fn advance(&mut self, valid: &Bitmap) -> Result<(), Error> {
        self.current = None;
        if let Some(found) = self.next(valid).await? {
            self.gather(&found);
            let hash = self.hasher.hash_of(&found.header, self.key(&found));
            self.current = Some((hash, found));
        }
        Ok(())
    }

    fn gather(&mut self, found: &FoundRecord) {
        self.record.resize(found.header.record_bytes(), 0);
        let copied = self.window.run().copy(found.address, &mut self.record);
        assert_eq!(copied, self.record.len());
    }

    fn key(&self, found: &FoundRecord) -> &[u8] {
        &self.record[found.header_bytes as usize..][..found.header.key_bytes as usize]
    }

    async fn next(&mut self, valid: &Bitmap) -> Result<Option<FoundRecord>, Error> {
        loop {
            let Some(address) = self.next_address().await? else { return Ok(None) };
            let page_size = self.segment.page_size();
            let page = page_size.page_of(address);
            // The lengths of dead records are not covered by a checksum that was checked. It proves that none was damaged, and that each record is
            // judged by its own bit, if the lengths lead from start to start, as many as the page has, and never to zeros.
            if self.page != Some(page) {
                return Err(self.corrupt(self.page.unwrap_or(0)));
            }
            self.need(page, page + 2).await?;
            let passed = self.window.run().header(address).map_err(|_| self.corrupt(page))?;
            let record_bytes = passed.header.record_bytes() as u64;
            // Zeros at a page's end, and what lies in the next one, may look like any header.
            let is_doubtful = page_size.page_of(passed.key_address() - 1) != page;
            self.address_next += record_bytes;
            self.starts_left -= 1;
            self.entries_passed += 1;
            if self.entries_passed > self.segment.descriptor.entries {
                return Err(self.corrupt(page));
            }
            let is_valid = valid.get(self.entry());
            if is_valid || is_doubtful {
                // It is not yet known that this record's lengths are right.
                if record_bytes > u64::from(self.segment.descriptor.record_bytes_max) {
                    return Err(self.corrupt(page));
                }
                let last_page = page_size.page_of(address + record_bytes - 1);
                self.need(page, last_page + 1).await?;
                let record = self.window.run().record(self.segment.salt, address).map_err(|_| self.corrupt(page))?;
                if is_valid {
                    return Ok(Some(record));
                }
            }
        }
    }

    /// The address of the next record: in this page, if more start in it, or in the next one in which any starts.
    async fn next_address(&mut self) -> Result<Option<u64>, Error> {
        while self.starts_left == 0 {
            let page = self.page.map_or(self.pages.start, |page| page + 1);
            if page >= self.pages.end {
                let passed = self.entries_passed == self.segment.descriptor.entries;
                let is_last = page >= self.segment.descriptor.data_pages && self.page.is_some();
                return if passed || !is_last { Ok(None) } else { Err(self.corrupt(page)) };
            }
            self.need(page, page + 1).await?;
            let page_size = self.segment.page_size();
            let at = (page - self.window.first_page) as usize * page_size.bytes();
            let bytes = &self.window.run().bytes[at..at + page_size.bytes()];
            let trailer = Trailer::parse(self.segment.salt, page, bytes);
            let trailer = trailer.map_err(|_| self.corrupt(page))?;
            if self.page.is_none() && page > 0 {
                self.entries_passed = trailer.entry_first;
            }
            if trailer.entry_first != self.entries_passed {
                return Err(self.corrupt(page));
            }
            self.page = Some(page);
            self.starts_left = trailer.starts;
            self.address_next = page_size.address(page) + u64::from(trailer.first);
        }
        Ok(Some(self.address_next))
    }

    fn corrupt(&self, page: u32) -> Error {
        Error::Corrupt(format!("data page {page} of segment {}", self.segment.descriptor.number))
    }

    /// Sees to it that the window holds pages `from..to`, as far as there are so many.
    async fn need(&mut self, from: u32, to: u32) -> Result<(), Error> {
        let to = to.min(self.segment.descriptor.data_pages);
        if from >= self.window.first_page && to <= self.window.end() {
            return Ok(());
        }
        let mut ahead = match self.ahead.pop_front() {
            Some(ahead) => ahead,
            None => self.start(from, to - from).await?,
        };
        let tail = self.window.first_page..self.window.end();
        let mut follows = ahead.first_page == tail.end && tail.contains(&from);
        if ahead.first_page != from && !(follows && tail.end - from <= TAIL_PAGES_MAX) || ahead.end() < to {
            // A record is longer than a window. The windows read ahead are freed: the next read may wait for their memory.
            drop(ahead);
            self.ahead.clear();
            ahead = self.start(from, to - from).await?;
            follows = false;
        }
        let Ahead { transfer, at, first_page, pages } = ahead;
        let (buffer, result) = transfer.end("read of a segment").await;
        result?;
        let page_size = self.segment.page_size();
        let view = self.io.view(buffer, at..at + pages as usize * page_size.bytes());
        let mut window = Window { view, first_page, pages, page_size };
        if follows && from < tail.end {
            window.prepend(&self.io, &self.window, from);
        }
        self.window = window;
        while self.ahead.len() < DEPTH {
            let end = self.ahead.back().map_or(self.window.end(), Ahead::end);
            if end >= self.pages.end {
                break;
            }
            let next = self.start(end, 1).await?;
            self.ahead.push_back(next);
        }
        Ok(())
    }

    /// Starts to read a window from page `from` on, of `pages_min` or more.
    async fn start(&self, from: u32, pages_min: u32) -> Result<Ahead, Error> {
        let page_size = self.segment.page_size();
        // Eight victims have four windows each; a good part of local memory stays for readers and the flush.
        let window_bytes = (self.local.bytes_total() / 512).min(WINDOW_BYTES_MAX);
        let pages = ((window_bytes / page_size.bytes()) as u32).max(TAIL_PAGES_MAX).max(pages_min);
        // Behind the last page lies no more than the end of a record.
        let wanted = self.pages.end.saturating_sub(from).max(pages_min);
        let pages = pages.min(wanted).min(self.segment.descriptor.data_pages - from);
        let buffer = self.io.allocate((TAIL_PAGES_MAX + pages) as usize * page_size.bytes()).await?;
        let at = TAIL_PAGES_MAX as usize * page_size.bytes();
        let runs = self.segment.data_runs(from, pages * page_size.bytes() as u32);
        Ok(Ahead { transfer: Transfer::read(&self.io, buffer, at, runs), at, first_page: from, pages })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::hashed::HashedEngine;
    use crate::{Store, StoreOptions, Sync};
    use tapetum_base::media::io::run;
    use tapetum_drive::{Drive, Env, Flash, MemoryFlash, SplitMix64, programs};

    /// Offset in a record of the length of its stored value, when its key is short.
    const STORED_BYTES_AT: usize = 12;
    const SECTOR_BYTES: usize = 512;

    #[test]
    fn the_damaged_length_of_a_dead_record_does_not_lead_out_of_the_segment() {
        // Segments of several windows.
        let options = StoreOptions::new(32 << 20, 32 << 20);
        let (drive, store) = store_in_memory(32 << 20, &options);
        let mut random = SplitMix64::new(1);
        for number in 0..2000 {
            store.put(format!("key:{number}").as_bytes(), &random.bytes(400)).unwrap();
        }
        let engine = store.hashed();
        let segment = first_segment(engine);
        assert!(segment.descriptor.data_pages > 4 * TAIL_PAGES_MAX);
        let io = Io::new(drive.queue_pair(16).unwrap());
        let dead = Bitmap::none(segment.descriptor.entries);
        let pass = async || -> Result<Option<HashKey>, Error> {
            let mut cursor = VictimCursor::new(segment.clone(), &io, drive.local(), engine.hasher.clone()).await?;
            cursor.advance(&dead).await?;
            Ok(cursor.head())
        };
        let damage = async || {
            let first = segment.data_runs(0, SECTOR_BYTES as u32).next().expect("a segment has pages").flash;
            let mut sector = io.allocate(SECTOR_BYTES).await.unwrap();
            io.read(first, &mut sector, 0, SECTOR_BYTES).await.unwrap();
            sector.bytes_mut()[STORED_BYTES_AT..][..3].copy_from_slice(&[0xff, 0xff, 0x7f]);
            io.write_durably(first, &mut sector, SECTOR_BYTES).await.unwrap();
        };
        assert_eq!(run(&io, pass(), || false).unwrap(), Ok(None));
        run(&io, damage(), || false).unwrap();
        assert!(matches!(run(&io, pass(), || false).unwrap(), Err(Error::Corrupt(_))));
    }

    #[test]
    fn the_damaged_length_of_a_dead_record_does_not_shift_the_numbers_of_those_behind_it() {
        // An extent ends with each page, so that zeros are behind its last record; or with every sixteenth.
        shift_numbers(64 << 10);
        shift_numbers(1 << 20);
    }

    pub const RECORD_BYTES: u64 = 256;

    pub const SMALL_BYTES: u64 = 8 << 20;

    /// Options of a store of [`SMALL_BYTES`] that has many segments all the same.
    pub fn small_options() -> StoreOptions {
        StoreOptions { segment_bytes: 64 << 10, partition_bits: 2, ..StoreOptions::new(SMALL_BYTES, 16 << 20) }
    }

    /// With as much local memory as such a store asks for.
    pub fn drive_of(flash: Arc<dyn Flash>, options: &StoreOptions, env: Env) -> Drive {
        let local = LocalMemory::new(options.local_memory_bytes() as usize).unwrap();
        Drive::new(flash, local, programs::built_in(), env)
    }

    pub fn drive_in_memory(capacity_bytes: u64, options: &StoreOptions, env: Env) -> Drive {
        drive_of(Arc::new(MemoryFlash::new(capacity_bytes)), options, env)
    }

    pub fn new_on(drive: &Drive, options: &StoreOptions) -> Store {
        Store::create_on(drive, options).unwrap();
        Store::open_on(drive, options).unwrap()
    }

    pub fn store_in_memory(capacity_bytes: u64, options: &StoreOptions) -> (Drive, Store) {
        let drive = drive_in_memory(capacity_bytes, options, Env::system());
        let store = new_on(&drive, options);
        (drive, store)
    }

    /// The same with nothing maintained but by steps.
    pub fn store_at_rest(capacity_bytes: u64, options: &StoreOptions, env: Env) -> (Drive, Store) {
        let drive = drive_in_memory(capacity_bytes, options, env);
        Store::create_on(&drive, options).unwrap();
        let store = Store::open_with(&drive, options, || false).unwrap();
        (drive, store)
    }

    #[test]
    fn a_header_that_would_go_on_in_another_extent_is_not_believed() {
        // Zeros too few for a header are behind the last record of a page, and of its extent.
        let payload = PageSize::Large.payload_bytes() as u64;
        let record_bytes = (151..400).find(|bytes| (9..12).contains(&(payload % bytes))).unwrap();
        let (drive, store) = store_of_equal_records(64 << 10, record_bytes);
        let engine = store.hashed();
        let segment = first_segment(engine);
        let io = Io::new(drive.queue_pair(16).unwrap());
        // The second is passed over, so that each of the others goes by its neighbour's bit: the last, which is dead, too.
        let (valid, last) = (Bitmap::full(segment.descriptor.entries), (payload / record_bytes) as u32 - 1);
        valid.clear(0);
        valid.clear(last);
        let pass = async || -> Result<u32, Error> {
            let mut cursor = VictimCursor::new(segment.clone(), &io, drive.local(), engine.hasher.clone()).await?;
            cursor.advance(&valid).await?;
            while cursor.page() == Some(0) {
                cursor.advance(&valid).await?;
            }
            Ok(cursor.entry())
        };
        assert_eq!(run(&io, pass(), || false).unwrap(), Ok(last + 1), "the first of the next page");
        run(&io, lengthen_first_record(&io, &segment, record_bytes), || false).unwrap();
        assert!(matches!(run(&io, pass(), || false).unwrap(), Err(Error::Corrupt(_))));
    }

    #[test]
    fn a_pass_reads_every_page_once_and_says_in_which_it_is() {
        let (drive, store) = store_of_equal_records(1 << 20, RECORD_BYTES);
        let engine = store.hashed();
        let io = Io::new(drive.queue_pair(16).unwrap());
        // Nobody else reads the segment.
        wait_for_flush(engine);
        let _installer = run(&io, engine.take_installer(), || false).unwrap();
        let segment = first_segment(engine);
        let (entries, pages) = (segment.descriptor.entries, segment.descriptor.data_pages);
        assert!(pages > 4 * TAIL_PAGES_MAX);
        let pass = async |valid: Bitmap| -> Result<Vec<u32>, Error> {
            let mut cursor = VictimCursor::new(segment.clone(), &io, drive.local(), engine.hasher.clone()).await?;
            let mut pages = Vec::new();
            cursor.advance(&valid).await?;
            while cursor.head().is_some() {
                pages.push(cursor.page().expect("it is at a record"));
                cursor.advance(&valid).await?;
            }
            Ok(pages)
        };
        for (valid, seen) in [(Bitmap::full(entries), 0..pages), (Bitmap::none(entries), 0..0)] {
            let before = drive.counters().flash_to_local_bytes;
            let mut pages_of = run(&io, pass(valid), || false).unwrap().unwrap();
            pages_of.dedup();
            assert_eq!(pages_of, seen.collect::<Vec<_>>());
            let read = drive.counters().flash_to_local_bytes - before;
            assert_eq!(read, u64::from(pages) * segment.page_size().bytes() as u64);
        }
    }

    #[test]
    fn records_longer_than_what_is_read_at_once_come_whole() {
        let options =
            StoreOptions { segment_bytes: 1 << 20, partition_bits: 2, ..StoreOptions::new(64 << 20, 64 << 20) };
        let (drive, store) = store_in_memory(64 << 20, &options);
        let (engine, io) = (store.hashed(), Io::new(drive.queue_pair(16).unwrap()));
        // Nothing is flushed until a buffer is full.
        let installer = run(&io, engine.take_installer(), || false).unwrap();
        let value = |number: u64| SplitMix64::new(number).bytes([100, 60_000, 125_000, 20_000][number as usize % 4]);
        let mut number = 0;
        while engine.buffers.sealed().is_none() {
            store.put(format!("key:{number:04}").as_bytes(), &value(number)).unwrap();
            number += 1;
        }
        drop(installer);
        wait_for_flush(engine);
        let segment = engine.segments.iter().next().expect("one was flushed");
        let all = Bitmap::full(segment.descriptor.entries);
        let pass = async || -> Result<u32, Error> {
            let mut cursor = VictimCursor::new(segment.clone(), &io, drive.local(), engine.hasher.clone()).await?;
            let mut seen = 0;
            cursor.advance(&all).await?;
            while cursor.head().is_some() {
                let record = cursor.record();
                let at = record.windows(4).position(|bytes| bytes == b"key:").expect("its key");
                let number = std::str::from_utf8(&record[at + 4..][..4]).unwrap().parse().unwrap();
                assert!(record[at + 8..] == value(number), "{number}");
                seen += 1;
                cursor.advance(&all).await?;
            }
            Ok(seen)
        };
        assert_eq!(run(&io, pass(), || false).unwrap(), Ok(segment.descriptor.entries));
    }

    /// A store of twice as many records of one length as a segment has room for, the keys beginning with `key:`.
    pub fn store_of_equal_records(segment_bytes: u64, record_bytes: u64) -> (Drive, Store) {
        const CAPACITY: u64 = 64 << 20;
        let options =
            StoreOptions { segment_bytes, partition_bits: 2, sync: Sync::No, ..StoreOptions::new(CAPACITY, 64 << 20) };
        let (drive, store) = store_in_memory(CAPACITY, &options);
        put_equal_records(&store, segment_bytes, record_bytes, "key");
        (drive, store)
    }

    pub fn put_equal_records(store: &Store, segment_bytes: u64, record_bytes: u64, prefix: &str) {
        let mut random = SplitMix64::new(1);
        for number in 0..2 * segment_bytes / record_bytes {
            let value = random.bytes(record_bytes as usize - 22);
            store.put(format!("{prefix}:{number:04x}").as_bytes(), &value).unwrap();
        }
    }

    pub fn first_segment(engine: &HashedEngine) -> Arc<Segment> {
        engine.segments.iter().next().expect("some were flushed")
    }

    /// Waits until maintenance has flushed what is sealed.
    pub fn wait_for_flush(engine: &HashedEngine) {
        while engine.buffers.sealed().is_some() {
            engine.log.poisoned().expect("maintenance works");
            std::thread::yield_now();
        }
    }

    /// Makes a segment's first record `by_bytes` longer, according to its header.
    pub async fn lengthen_first_record(io: &Io, segment: &Segment, by_bytes: u64) {
        let first = segment.data_runs(0, SECTOR_BYTES as u32).next().expect("a segment has pages").flash;
        let mut sector = io.allocate(SECTOR_BYTES).await.unwrap();
        io.read(first, &mut sector, 0, SECTOR_BYTES).await.unwrap();
        // The length takes two bytes, as every length of 128 and more does.
        let stored_bytes = &mut sector.bytes_mut()[STORED_BYTES_AT..][..2];
        let longer = u64::from(stored_bytes[0] & 0x7f) + (u64::from(stored_bytes[1]) << 7) + by_bytes;
        stored_bytes.copy_from_slice(&[longer as u8 | 0x80, (longer >> 7) as u8]);
        io.write_durably(first, &mut sector, SECTOR_BYTES).await.unwrap();
    }

    fn shift_numbers(segment_bytes: u64) {
        let (drive, store) = store_of_equal_records(segment_bytes, RECORD_BYTES);
        let engine = store.hashed();
        let segment = first_segment(engine);
        let (entries, record_bytes) = (segment.descriptor.entries, segment.descriptor.record_bytes);
        assert_eq!((record_bytes, segment.page_size()), (u64::from(entries) * RECORD_BYTES, PageSize::Large));
        let io = Io::new(drive.queue_pair(16).unwrap());
        let first_dead = Bitmap::full(entries);
        first_dead.clear(0);
        let pass = async || -> Result<Vec<HashKey>, Error> {
            let mut cursor = VictimCursor::new(segment.clone(), &io, drive.local(), engine.hasher.clone()).await?;
            let mut seen = Vec::new();
            cursor.advance(&first_dead).await?;
            while let Some(hash) = cursor.head() {
                seen.push(hash);
                cursor.advance(&first_dead).await?;
            }
            Ok(seen)
        };
        let seen = run(&io, pass(), || false).unwrap().unwrap();
        assert!(seen.len() as u32 == entries - 1 && seen.is_sorted());
        run(&io, lengthen_first_record(&io, &segment, RECORD_BYTES), || false).unwrap();
        assert!(matches!(run(&io, pass(), || false).unwrap(), Err(Error::Corrupt(_))));
    }
}
