//! Reads a segment's records from front to back, each one checked: what the collector merges and `check` verifies.

use crate::catalog::Bitmap;
use crate::error::Error;
use crate::io::{Io, succeeded};
use crate::segment::view::Segment;
use std::sync::Arc;
use tapetum_drive::{LocalBuffer, LocalMemory, Operation};
use tapetum_kernels::data_page::{FoundRecord, PAGE_BYTES, PAGE_PAYLOAD_BYTES, PageRun, Trailer};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{HEADER_BYTES_MAX, Header};

/// Pages read at once.
const WINDOW_PAGES: u32 = 64;

pub struct VictimCursor {
    segment: Arc<Segment>,
    secret: [u8; 16],
    io: Io,
    local: LocalMemory,
    window: Window,
    /// The page whose records are being passed, and how many of those that start in it are left.
    page: Option<u32>,
    starts_left: u16,
    address_next: u64,
    entries_passed: u32,
    current: Option<(HashKey, FoundRecord)>,
    record: Vec<u8>,
}

struct Window {
    buffer: LocalBuffer,
    first_page: u32,
    pages: u32,
}

impl Window {
    fn run(&self) -> PageRun<'_> {
        PageRun { bytes: &self.buffer.bytes()[..self.pages as usize * PAGE_BYTES], first_page: self.first_page }
    }

    fn end(&self) -> u32 {
        self.first_page + self.pages
    }
}

fn allocate(local: &LocalMemory, pages: u32) -> Result<LocalBuffer, Error> {
    let room = local.allocate(pages as usize * PAGE_BYTES);
    room.ok_or_else(|| Error::Options("--memory is too small to collect: raise it".into()))
}

impl VictimCursor {
    pub fn new(segment: Arc<Segment>, io: &Io, local: &LocalMemory, secret: [u8; 16]) -> Result<VictimCursor, Error> {
        let buffer = allocate(local, WINDOW_PAGES.min(segment.descriptor.data_pages.max(1)))?;
        Ok(VictimCursor {
            segment,
            secret,
            io: io.clone(),
            local: local.clone(),
            window: Window { buffer, first_page: 0, pages: 0 },
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
        loop {
            let Some(found) = self.next().await? else {
                self.current = None;
                return Ok(());
            };
            if valid.get(self.entry()) {
                self.gather(&found);
                let hash = HashKey::of(&self.secret, self.key(&found));
                self.current = Some((hash, found));
                return Ok(());
            }
        }
    }

    fn gather(&mut self, found: &FoundRecord) {
        self.record.resize(found.header.record_bytes(), 0);
        let copied = self.window.run().copy(found.address, &mut self.record);
        assert_eq!(copied, self.record.len());
    }

    fn key(&self, found: &FoundRecord) -> &[u8] {
        &self.record[found.header_bytes as usize..][..found.header.key_bytes as usize]
    }

    async fn next(&mut self) -> Result<Option<FoundRecord>, Error> {
        while self.starts_left == 0 {
            let page = self.page.map_or(0, |page| page + 1);
            if page >= self.segment.descriptor.data_pages {
                return self.ended();
            }
            self.need(page, page + 1).await?;
            let at = (page - self.window.first_page) as usize * PAGE_BYTES;
            let trailer = Trailer::parse(self.segment.salt, page, &self.window.run().bytes[at..]);
            let trailer = trailer.map_err(|_| self.corrupt(page))?;
            self.page = Some(page);
            self.starts_left = trailer.starts;
            self.address_next = u64::from(page) * PAGE_PAYLOAD_BYTES as u64 + u64::from(trailer.first);
        }
        let address = self.address_next;
        let page = (address / PAGE_PAYLOAD_BYTES as u64) as u32;
        self.need(page, page + 2).await?;
        let mut head = [0; HEADER_BYTES_MAX];
        let filled = self.window.run().copy(address, &mut head);
        let (header, _) = Header::parse(&head[..filled]).map_err(|_| self.corrupt(page))?;
        let last_page = ((address + header.record_bytes() as u64 - 1) / PAGE_PAYLOAD_BYTES as u64) as u32;
        self.need(page, last_page + 1).await?;
        let found = self.window.run().record(self.segment.salt, address).map_err(|_| self.corrupt(page))?;
        self.address_next += found.header.record_bytes() as u64;
        self.starts_left -= 1;
        self.entries_passed += 1;
        if self.entries_passed > self.segment.descriptor.entries {
            return Err(self.corrupt(page));
        }
        Ok(Some(found))
    }

    fn ended(&self) -> Result<Option<FoundRecord>, Error> {
        let passed = self.entries_passed == self.segment.descriptor.entries;
        if passed { Ok(None) } else { Err(self.corrupt(self.segment.descriptor.data_pages)) }
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
        let room = (self.window.buffer.len() / PAGE_BYTES) as u32;
        if to - from > room {
            self.window.buffer = allocate(&self.local, to - from)?;
        }
        let room = (self.window.buffer.len() / PAGE_BYTES) as u32;
        let pages = room.min(self.segment.descriptor.data_pages - from);
        self.window.pages = 0;
        let tags: Vec<_> = self
            .segment
            .data_runs(from, pages * PAGE_BYTES as u32)
            .into_iter()
            .map(|run| {
                let local = self.window.buffer.offset() + u64::from(run.at);
                self.io.start(Operation::Read { flash: run.flash, local, length: run.length })
            })
            .collect();
        let mut result = Ok(());
        for tag in tags {
            result = result.and(succeeded(self.io.finish(tag).await, "read of a segment"));
        }
        result?;
        (self.window.first_page, self.window.pages) = (from, pages);
        Ok(())
    }
}
