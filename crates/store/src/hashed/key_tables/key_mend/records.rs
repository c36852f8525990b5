//! Reads records of a segment one after the other, at places that key tables lead to, whatever the pages around them are: an unreadable page affects
//! only the records that lie in it.

use crate::hashed::segment::view::Segment;
use tapetum_base::error::Error;
use tapetum_base::keyspace::hasher::KeyHasher;
use tapetum_base::media::flash_run::FlashRun;
use tapetum_base::media::io::Io;
use tapetum_drive::{HostView, LocalBuffer};
use tapetum_kernels::data_page::{PageRun, Trailer};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::key_table::Entry;
use tapetum_kernels::record::Header;

/// Pages that are read at once, beside those that the longest record takes.
const WINDOW_PAGES: u32 = 16;

pub struct Records<'a> {
    segment: &'a Segment,
    io: &'a Io,
    hasher: KeyHasher,
    /// Pages that hold any record which starts in the first of them.
    pages_per_record: u32,
    view: HostView,
    first_page: u32,
    /// How many pages the view holds.
    pages: u32,
}

impl<'a> Records<'a> {
    pub async fn new(segment: &'a Segment, io: &'a Io, hasher: KeyHasher) -> Result<Records<'a>, Error> {
        let page_size = segment.page_size();
        let pages_per_record = 1 + segment.descriptor.record_bytes_max.div_ceil(page_size.payload_bytes() as u32);
        let pages = (pages_per_record + WINDOW_PAGES).min(segment.descriptor.data_pages);
        let buffer = io.allocate(pages as usize * page_size.bytes()).await?;
        let view = io.view(buffer, 0..0);
        Ok(Records { segment, io, hasher, pages_per_record, view, first_page: 0, pages: 0 })
    }

    /// The key-table entry of the record at `address`; `None` when there is no record, or it is damaged.
    pub async fn entry(&mut self, address: u64) -> Option<Entry> {
        let segment = self.segment;
        let run = self.run_from(segment.page_size().page_of(address)).await?;
        let record = run.record(segment.salt, address).ok()?;
        let mut key = vec![0; record.header.key_bytes as usize];
        run.copy(record.key_address(), &mut key);
        Some(self.hasher.entry_of(&record.header, &key))
    }

    /// Copies the record at `address` to `out`, and returns its header; `None` when there is none, or it is damaged.
    pub async fn copy(&mut self, address: u64, out: &mut Vec<u8>) -> Option<Header> {
        let segment = self.segment;
        let run = self.run_from(segment.page_size().page_of(address)).await?;
        let record = run.record(segment.salt, address).ok()?;
        out.resize(record.header.record_bytes(), 0);
        run.copy(address, out);
        Some(record.header)
    }

    /// The key that the record at `address` seems to have. The only check is that its hash key is `hash`.
    pub async fn key_of(&mut self, address: u64, hash: HashKey) -> Option<Vec<u8>> {
        let hasher = self.hasher.clone();
        let run = self.run_from(self.segment.page_size().page_of(address)).await?;
        let record = run.header(address).ok()?;
        let mut key = vec![0; record.header.key_bytes as usize];
        run.copy(record.key_address(), &mut key);
        (hasher.hash_of(&record.header, &key) == hash).then_some(key)
    }

    /// The number of the first record that starts in `page` or behind it; `None` when that is damaged.
    pub async fn entry_first(&mut self, page: u32) -> Option<u32> {
        self.trailer(page).await.map(|trailer| trailer.entry_first)
    }

    /// The trailer of a page, which describes the records that start in it; `None` when it is damaged.
    pub async fn trailer(&mut self, page: u32) -> Option<Trailer> {
        let salt = self.segment.salt;
        let run = self.run_from(page).await?;
        let bytes = &run.bytes[(page - run.first_page) as usize * run.page_size.bytes()..][..run.page_size.bytes()];
        Trailer::parse(salt, page, bytes).ok()
    }

    /// Pages that hold all records which start in `page`; `None` when there is no such page.
    async fn run_from(&mut self, page: u32) -> Option<PageRun<'_>> {
        let data_pages = self.segment.descriptor.data_pages;
        if page >= data_pages {
            return None;
        }
        let end = (page + self.pages_per_record).min(data_pages);
        if page < self.first_page || end > self.first_page + self.pages {
            self.read(page).await;
        }
        let page_size = self.segment.page_size();
        Some(PageRun { bytes: self.view.bytes(), first_page: self.first_page, page_size })
    }

    /// Reads the pages from `page` on; those that cannot be read are zeros.
    async fn read(&mut self, page: u32) {
        let page_bytes = self.segment.page_size().bytes();
        let mut buffer = self.view.take();
        let pages = (buffer.len() / page_bytes) as u32;
        (self.first_page, self.pages) = (page, pages.min(self.segment.descriptor.data_pages - page));
        for run in self.segment.data_runs(page, self.pages * page_bytes as u32) {
            if self.read_run(run, &mut buffer).await.is_err() {
                for at in (0..run.length).step_by(page_bytes) {
                    let one = FlashRun { flash: run.flash + u64::from(at), at: run.at + at, length: page_bytes as u32 };
                    if self.read_run(one, &mut buffer).await.is_err() {
                        let at = one.at as usize;
                        self.io.fill(&mut buffer, at..at + page_bytes).fill(0);
                    }
                }
            }
        }
        self.view = self.io.view(buffer, 0..self.pages as usize * page_bytes);
    }

    async fn read_run(&self, run: FlashRun, buffer: &mut LocalBuffer) -> Result<(), Error> {
        self.io.read(run.flash, buffer, run.at as usize, run.length as usize).await
    }
}
