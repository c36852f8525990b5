//! The data pages in which a keyspace's records of a shared segment lie, by the entries of its key table.
//!
//! ```text
//! key table: sizes ─► the stream's layout ─► page of each record · routes ─► whose it is
//! ```
//! So a scan reads a page an item, not the segment. A segment that is nearly all the keyspace's is read whole, without a look at its key table.

use super::HashedEngine;
use super::key_tables::find_or_load;
use super::key_tables::key_reader::{KeyPages, KeyReader, PAGES_PER_READ};
use super::segment::layout::StreamLayout;
use super::segment::view::Segment;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::io::Io;
use tapetum_kernels::data_page::PageSize;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::key_table::KeyPage;

/// A segment is read whole where that reads at most a fifth more: 6 bytes for 5.
const WHOLE_PARTS: u64 = 6;
const OWN_PARTS: u64 = 5;

/// Neighbouring data pages with records of a keyspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnPages {
    /// With the pages in which the last record goes on.
    pub pages: Range<u32>,
    /// Behind the last page in which a record of the keyspace starts.
    pub starts_end: u32,
    /// The number of the first record that starts in them.
    pub entry_first: u32,
    /// Behind the number of the last record that is the keyspace's.
    pub entry_end: u32,
}

impl OwnPages {
    pub fn none() -> OwnPages {
        OwnPages { pages: 0..0, starts_end: 0, entry_first: 0, entry_end: 0 }
    }
}

/// Whether to look at the key table: not where the segment is known to be nearly all the keyspace's.
fn is_worth_a_look(segment: &Segment, keyspace: KeyspaceId) -> bool {
    let own_bytes = segment.local_index.shares.record_bytes(keyspace);
    own_bytes.is_none_or(|own| own * WHOLE_PARTS < segment.descriptor.record_bytes * OWN_PARTS)
}

/// The pages with valid records of a keyspace, in order; `None`: the whole segment is to be read.
///
/// # Errors
/// The key table cannot be read.
pub async fn find(
    engine: &HashedEngine,
    io: &Io,
    segment: &Arc<Segment>,
    keyspace: KeyspaceId,
    valid: &[u64],
) -> Result<Option<Vec<OwnPages>>, Error> {
    if !is_worth_a_look(segment, keyspace) {
        return Ok(None);
    }
    let mut finder = PageFinder::new(segment, keyspace, valid);
    match find_or_load(engine, io, segment).await? {
        Some(table) => (0..segment.key_pages()).for_each(|page| finder.take(table.page(page))),
        None => {
            let mut reader = KeyReader::new(io, engine.drive.local(), engine.hasher.clone());
            let look = |read: &KeyPages<()>| {
                read.pages().for_each(|page| finder.take(page));
                Ok(())
            };
            reader.each(segment, look).await?;
        }
    }
    let PageFinder { found, .. } = finder;
    let pages: u64 = found.iter().map(|own| own.pages.len() as u64).sum();
    let is_most = pages * WHOLE_PARTS >= u64::from(segment.descriptor.data_pages) * OWN_PARTS;
    Ok((!is_most).then_some(found))
}

/// The pages in which records of a keyspace with these hash keys start, in order; `None`: all pages with such hash keys are to be read.
///
/// # Errors
/// The key table cannot be read.
pub async fn between(
    engine: &HashedEngine,
    io: &Io,
    segment: &Arc<Segment>,
    keyspace: KeyspaceId,
    bounds: &RangeInclusive<HashKey>,
) -> Result<Option<Vec<Range<u32>>>, Error> {
    if !is_worth_a_look(segment, keyspace) {
        return Ok(None);
    }
    let mut found: Vec<Range<u32>> = Vec::new();
    let mut take = |page: KeyPage<'_>| {
        for (number, entry) in (page.first_entry..).zip(page.entries()) {
            let is_own = entry.keyspace() == keyspace.0 && bounds.contains(&entry.hash) && segment.is_valid(number);
            let pages = if is_own { segment.start_pages(entry.hash) } else { 0..0 };
            match found.last_mut() {
                _ if pages.is_empty() => {}
                Some(last) if pages.start <= last.end => last.end = last.end.max(pages.end),
                _ => found.push(pages),
            }
        }
    };
    let pages = segment.key_pages_between(*bounds.start(), *bounds.end());
    if let Some(table) = engine.segments.key_tables.get(segment.descriptor.version) {
        pages.for_each(|page| take(table.page(page)));
        return Ok(Some(found));
    }
    let mut reader = KeyReader::new(io, engine.drive.local(), engine.hasher.clone());
    for start in pages.clone().step_by(PAGES_PER_READ as usize) {
        reader.start(segment.clone(), start..pages.end.min(start + PAGES_PER_READ), ()).await?;
        if let Some(read) = reader.next().await? {
            read.pages().for_each(&mut take);
            reader.recycle(read);
        }
    }
    Ok(Some(found))
}

/// Goes through the entries of a key table.
struct PageFinder<'a> {
    keyspace: u16,
    valid: &'a [u64],
    page_size: PageSize,
    pages_end: u32,
    layout: StreamLayout,
    entry_next: u32,
    /// The page in which the last record starts, and the number of the first one that does.
    page: u32,
    page_entry: u32,
    found: Vec<OwnPages>,
}

impl<'a> PageFinder<'a> {
    fn new(segment: &Segment, keyspace: KeyspaceId, valid: &'a [u64]) -> PageFinder<'a> {
        PageFinder {
            keyspace: keyspace.0,
            valid,
            page_size: segment.page_size(),
            pages_end: segment.descriptor.data_pages,
            layout: StreamLayout::new(segment.geometry(), segment.page_size()),
            entry_next: 0,
            page: 0,
            page_entry: 0,
            found: Vec::new(),
        }
    }

    fn take(&mut self, page: KeyPage<'_>) {
        for entry in page.entries() {
            let address = self.layout.place(entry.size_bytes.into());
            let number = self.entry_next;
            self.entry_next += 1;
            let start = self.page_size.page_of(address);
            if start != self.page {
                (self.page, self.page_entry) = (start, number);
            }
            let word = self.valid.get(number as usize / 64).copied().unwrap_or(0);
            if entry.keyspace() == self.keyspace && word >> (number % 64) & 1 == 1 {
                let end = self.page_size.page_of(address + u64::from(entry.size_bytes.max(1)) - 1) + 1;
                self.add(start, end.min(self.pages_end), number);
            }
        }
    }

    /// A record of the keyspace lies in these pages.
    fn add(&mut self, start: u32, end: u32, number: u32) {
        match self.found.last_mut() {
            // The next record may begin in the page that the last one ends in.
            Some(last) if start <= last.pages.end => {
                last.pages.end = last.pages.end.max(end);
                (last.starts_end, last.entry_end) = (start + 1, number + 1);
            }
            _ => {
                let entry_first = self.page_entry;
                let (starts_end, entry_end) = (start + 1, number + 1);
                self.found.push(OwnPages { pages: start..end, starts_end, entry_first, entry_end });
            }
        }
    }
}
