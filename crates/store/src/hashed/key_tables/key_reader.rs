//! Reads ranges of key-table pages, or of the fence pages behind them, several at once, and hands them out, checked, in the order they were asked
//! for. Pages that are damaged or cannot be read are rebuilt, unless the reader is to report them.

use crate::hashed::key_tables::key_mend;
use crate::hashed::segment::view::Segment;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::keyspace::hasher::KeyHasher;
use tapetum_base::media::io::Io;
use tapetum_base::media::transfer::Transfer;
use tapetum_drive::{HostView, LocalBuffer, LocalMemory};
use tapetum_kernels::data_page::PAGE_BYTES;
use tapetum_kernels::fence_page;
use tapetum_kernels::key_table::KeyPage;

/// Reads on their way at once.
pub const DEPTH: usize = 32;
/// The same for work that is not urgent: a GET that comes behind these reads hardly waits.
pub const DEPTH_BESIDE_READERS: usize = 3;
pub const PAGES_PER_READ: u32 = 16;

pub struct KeyReader<'a, T> {
    io: &'a Io,
    local: &'a LocalMemory,
    /// The hasher of keys for rebuilding pages; `None` for a reader that reports them.
    mends_with: Option<KeyHasher>,
    depth: usize,
    pending: VecDeque<Pending<T>>,
    spare: Vec<LocalBuffer>,
    reads: u64,
}

struct Pending<T> {
    segment: Arc<Segment>,
    pages: Range<u32>,
    transfer: Transfer,
    context: T,
}

pub struct KeyPages<T> {
    pub segment: Arc<Segment>,
    pub context: T,
    pages: Range<u32>,
    view: HostView,
}

/// The name of a page of a key table, or of the fences behind it.
pub fn page_name(segment: &Segment, page: u32) -> String {
    let number = segment.descriptor.number;
    match page.checked_sub(segment.key_pages()) {
        Some(fence_page) => format!("page {fence_page} of the fences of segment {number}"),
        None => format!("page {page} of the key table of segment {number}"),
    }
}

impl<T> KeyPages<T> {
    /// The payload of the pages, which are fence pages.
    pub fn fences(&self) -> impl Iterator<Item = Result<&[u8], Error>> {
        let first = self.segment.fence_pages().start;
        self.raw().map(move |(page, bytes)| {
            fence_page::parse(self.segment.salt, page - first, bytes).map_err(|_| self.corrupt(page))
        })
    }

    /// The pages, which are key-table pages.
    pub fn pages(&self) -> impl Iterator<Item = KeyPage<'_>> {
        self.raw().map(|(_, bytes)| KeyPage::trusted(bytes))
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = self.raw().find(|(page, bytes)| !key_mend::holds(&self.segment, *page, bytes));
        wrong.map_or(Ok(()), |(page, _)| Err(self.corrupt(page)))
    }

    fn corrupt(&self, page: u32) -> Error {
        Error::Corrupt(page_name(&self.segment, page))
    }

    fn raw(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.pages.clone().zip(self.view.bytes().chunks_exact(PAGE_BYTES))
    }

    /// The pages as they lie on flash.
    pub fn bytes(&self) -> &[u8] {
        self.view.bytes()
    }

    pub fn first_page(&self) -> u32 {
        self.pages.start
    }
}

impl<'a, T> KeyReader<'a, T> {
    /// A reader that rebuilds pages which are not as they were written.
    pub fn new(io: &'a Io, local: &'a LocalMemory, hasher: KeyHasher) -> KeyReader<'a, T> {
        KeyReader::with_depth(io, local, hasher, DEPTH)
    }

    /// The same with at most `depth` reads on their way.
    pub fn with_depth(io: &'a Io, local: &'a LocalMemory, hasher: KeyHasher, depth: usize) -> KeyReader<'a, T> {
        KeyReader::open(io, local, Some(hasher), depth)
    }

    /// A reader that reports pages which are not as they were written, and leaves them so.
    pub fn telling(io: &'a Io, local: &'a LocalMemory) -> KeyReader<'a, T> {
        KeyReader::open(io, local, None, DEPTH)
    }

    fn open(io: &'a Io, local: &'a LocalMemory, mends_with: Option<KeyHasher>, depth: usize) -> KeyReader<'a, T> {
        KeyReader { io, local, mends_with, depth, pending: VecDeque::new(), spare: Vec::new(), reads: 0 }
    }

    /// Whether another read may be started now: the first always, more where there is memory for them.
    pub fn has_room(&self) -> bool {
        let free = self.local.bytes_total() - self.local.bytes_used();
        let has_memory = !self.spare.is_empty() || free >= 2 * PAGES_PER_READ as usize * PAGE_BYTES;
        self.pending.is_empty() || (self.pending.len() < self.depth && has_memory)
    }

    /// Whether nothing is on its way.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Read commands so far.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    pub async fn start(&mut self, segment: Arc<Segment>, pages: Range<u32>, context: T) -> Result<(), Error> {
        assert!(!pages.is_empty() && pages.len() <= PAGES_PER_READ as usize);
        let buffer = match self.spare.iter().position(|spare| spare.len() >= pages.len() * PAGE_BYTES) {
            Some(place) => self.spare.swap_remove(place),
            None => {
                self.spare.clear();
                self.io.allocate(pages.len() * PAGE_BYTES).await?
            }
        };
        let transfer = Transfer::read(self.io, buffer, 0, segment.key_runs(pages.clone()));
        self.reads += transfer.commands() as u64;
        self.pending.push_back(Pending { segment, pages, transfer, context });
        Ok(())
    }

    /// The next pages in order; `None` when nothing is on its way.
    pub async fn next(&mut self) -> Result<Option<KeyPages<T>>, Error> {
        let Some(Pending { segment, pages, transfer, context }) = self.pending.pop_front() else { return Ok(None) };
        let (buffer, finished) = transfer.end("read of a key table").await;
        let view = self.io.view(buffer, 0..pages.len() * PAGE_BYTES);
        let mut read = KeyPages { segment, context, pages, view };
        match (finished.and_then(|()| read.check()), &self.mends_with) {
            (Ok(()), _) => {}
            (Err(error), None) => return Err(error),
            (Err(error), Some(hasher)) => self.mend(&mut read, hasher.clone(), error).await?,
        }
        Ok(Some(read))
    }

    /// Reads faulty pages again, and rebuilds them if nobody has done so meanwhile.
    async fn mend(&self, read: &mut KeyPages<T>, hasher: KeyHasher, wrong: Error) -> Result<(), Error> {
        if self.read_again(read).await.is_ok() {
            return Ok(());
        }
        if let Err(error) = key_mend::mend(&read.segment, self.io, hasher).await {
            tracing::error!("{wrong}; nor can it be made anew: {error}");
            return Err(wrong);
        }
        self.read_again(read).await
    }

    async fn read_again(&self, read: &mut KeyPages<T>) -> Result<(), Error> {
        let mut buffer = read.view.take();
        let mut result = Ok(());
        for run in read.segment.key_runs(read.pages.clone()) {
            if result.is_ok() {
                result = self.io.read(run.flash, &mut buffer, run.at as usize, run.length as usize).await;
            }
        }
        read.view = self.io.view(buffer, 0..read.pages.len() * PAGE_BYTES);
        result.and_then(|()| read.check())
    }

    /// Takes a buffer back for the next read.
    pub fn recycle(&mut self, mut pages: KeyPages<T>) {
        if self.spare.len() < self.depth {
            self.spare.push(pages.view.take());
        }
    }
}

impl KeyReader<'_, ()> {
    /// Reads a segment's key table from front to back.
    pub async fn each(
        &mut self,
        segment: &Arc<Segment>,
        mut take: impl FnMut(&KeyPages<()>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut page_next = 0;
        loop {
            while self.has_room() && page_next < segment.key_pages() {
                let end = segment.key_pages().min(page_next + PAGES_PER_READ);
                self.start(segment.clone(), page_next..end, ()).await?;
                page_next = end;
            }
            let Some(read) = self.next().await? else { return Ok(()) };
            take(&read)?;
            self.recycle(read);
        }
    }
}
