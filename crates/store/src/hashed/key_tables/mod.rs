//! Key tables in host memory, so that key checks need not read them from flash.
//!
//! A batch of uniform hash keys looks into every key table, so tables differ in value only by their age: records written lately are the likeliest to
//! be overwritten. So a table is kept from when its segment is written, and the oldest are evicted when there is no room. After a restart a table is
//! loaded when a check first asks for it, if there is room. A table that is not in memory is read from flash.
//!
//! Threads: a mutex, held for a look at the map.

pub mod key_mend;
pub mod key_reader;

use crate::hashed::HashedEngine;
use crate::hashed::key_tables::key_reader::{KeyPages, KeyReader};
use crate::hashed::segment::view::Segment;
use crate::hashed::segment::writer::SegmentWriter;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use tapetum_base::error::Error;
use tapetum_base::media::io::{Io, lock};
use tapetum_kernels::data_page::PAGE_BYTES;
use tapetum_kernels::key_table::KeyPage;

/// The pages of one segment's key table.
pub struct KeyTable {
    pages: Box<[u8]>,
}

impl KeyTable {
    /// A page, which was checked when it was made, by this process.
    pub fn page(&self, page: u32) -> KeyPage<'_> {
        KeyPage::trusted(&self.pages[page as usize * PAGE_BYTES..][..PAGE_BYTES])
    }
}

#[derive(Default)]
struct KeptTables {
    /// By the segment's version: the oldest first.
    tables: BTreeMap<u64, Arc<KeyTable>>,
    bytes: u64,
}

#[derive(Default)]
pub struct KeyTables {
    kept: Mutex<KeptTables>,
}

impl KeyTables {
    /// The key table of the segment with this version, if it is here.
    pub fn get(&self, version: u64) -> Option<Arc<KeyTable>> {
        lock(&self.kept).tables.get(&version).cloned()
    }

    /// Keeps the pages of a segment's key table.
    pub fn keep(&self, version: u64, pages: Vec<u8>) -> Arc<KeyTable> {
        let table = Arc::new(KeyTable { pages: pages.into() });
        let mut kept = lock(&self.kept);
        kept.bytes += table.pages.len() as u64;
        let before = kept.tables.insert(version, table.clone());
        assert!(before.is_none(), "a version is one segment's");
        table
    }

    /// Evicts a segment's key table, if it is here.
    pub fn forget(&self, version: u64) {
        let mut kept = lock(&self.kept);
        if let Some(table) = kept.tables.remove(&version) {
            kept.bytes -= table.pages.len() as u64;
        }
    }

    /// Evicts the oldest tables until the rest is within `bytes_max`.
    pub fn trim(&self, bytes_max: u64) {
        let mut kept = lock(&self.kept);
        while kept.bytes > bytes_max {
            let Some((_, table)) = kept.tables.pop_first() else { unreachable!("no bytes without tables") };
            kept.bytes -= table.pages.len() as u64;
        }
    }

    pub fn bytes(&self) -> u64 {
        lock(&self.kept).bytes
    }
}

/// Ends a segment and keeps its key table, as far as there is room.
pub async fn finish_segment(engine: &HashedEngine, writer: SegmentWriter) -> Result<Arc<Segment>, Error> {
    let (segment, key_table) = writer.finish().await?;
    if let Some(pages) = key_table {
        engine.segments.key_tables.keep(segment.descriptor.version, pages);
    }
    engine.segments.key_tables.trim(engine.key_tables_bytes_max());
    Ok(Arc::new(segment))
}

/// The key table of a segment: the one that is here, or the one on flash if there is room to keep it.
pub async fn find_or_load(
    engine: &HashedEngine,
    io: &Io,
    segment: &Arc<Segment>,
) -> Result<Option<Arc<KeyTable>>, Error> {
    let version = segment.descriptor.version;
    let kept = engine.segments.key_tables.get(version);
    let bytes = segment.key_pages() as usize * PAGE_BYTES;
    if kept.is_some() || engine.segments.key_tables.bytes() + bytes as u64 > engine.key_tables_bytes_max() {
        return Ok(kept);
    }
    let mut pages = Vec::with_capacity(bytes);
    let mut reader = KeyReader::new(io, engine.drive.local(), engine.hasher.clone());
    let take = |read: &KeyPages<()>| {
        pages.extend_from_slice(read.bytes());
        Ok(())
    };
    reader.each(segment, take).await?;
    engine.counters.key_check_reads.fetch_add(reader.reads(), Ordering::Relaxed);
    // A flush and a count of items read the same one at the same time.
    Ok(Some(engine.segments.key_tables.get(version).unwrap_or_else(|| engine.segments.key_tables.keep(version, pages))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_bytes_are_counted() {
        let tables = KeyTables::default();
        for version in [5, 3, 4] {
            tables.keep(version, vec![0; PAGE_BYTES]);
        }
        tables.forget(4);
        tables.forget(9);
        assert_eq!(tables.bytes(), 2 * PAGE_BYTES as u64);
        tables.trim(2 * PAGE_BYTES as u64);
        assert!(tables.get(3).is_some());
        tables.trim(PAGE_BYTES as u64);
        assert!(tables.get(3).is_none() && tables.get(5).is_some());
        tables.trim(0);
        assert_eq!(tables.bytes(), 0);
    }
}
