//! Counts the bytes written to segments of each keyspace since the store was opened: records of flushes and of the collector, and how well flushed
//! records were compressed.
//!
//! Threads: a flush or a collection keeps its own tally and adds it at its end; any thread asks.

use crate::hashed::HashedEngine;
use std::sync::Mutex;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::io::lock;
use tapetum_kernels::record::{Codec, Header, Kind};

/// Bytes written to segments of one keyspace.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct KeyspaceWrites {
    /// Values that were flushed, as clients wrote them; without those that lie in extents of their own.
    pub value_bytes: u64,
    /// Their records in the write buffer: compressed, with keys and headers.
    pub record_bytes: u64,
    /// Records that flushes wrote to segments; for a block device with groups, the groups.
    pub flushed_bytes: u64,
    /// Records that the collector, or an eviction, wrote to segments once more.
    pub collected_bytes: u64,
}

impl KeyspaceWrites {
    fn add(&mut self, other: KeyspaceWrites) {
        self.value_bytes += other.value_bytes;
        self.record_bytes += other.record_bytes;
        self.flushed_bytes += other.flushed_bytes;
        self.collected_bytes += other.collected_bytes;
    }
}

/// Writes by keyspace id.
#[derive(Default, Debug)]
pub struct WriteTally {
    by_id: Vec<KeyspaceWrites>,
}

impl WriteTally {
    fn of(&mut self, id: u16) -> &mut KeyspaceWrites {
        let at = usize::from(id);
        if at >= self.by_id.len() {
            self.by_id.resize(at + 1, KeyspaceWrites::default());
        }
        &mut self.by_id[at]
    }

    /// Counts a record of a write buffer that is flushed.
    pub fn buffered(&mut self, header: &Header) {
        if header.kind == Kind::Value && header.codec != Codec::OutOfLine {
            let writes = self.of(header.keyspace);
            writes.value_bytes += u64::from(header.raw_bytes);
            writes.record_bytes += header.record_bytes() as u64;
        }
    }

    /// Counts a record that a flush wrote to a segment.
    pub fn flushed(&mut self, header: &Header, record: &[u8]) {
        self.of(header.keyspace).flushed_bytes += record.len() as u64;
    }

    /// Counts a record that a collection wrote to a segment.
    pub fn collected(&mut self, header: &Header, record: &[u8]) {
        self.of(header.keyspace).collected_bytes += record.len() as u64;
    }
}

/// The sum of all tallies.
#[derive(Default)]
pub struct WriteCounts {
    tally: Mutex<WriteTally>,
}

impl WriteCounts {
    pub fn note(&self, tally: &WriteTally) {
        let sum = &mut lock(&self.tally).by_id;
        sum.resize(sum.len().max(tally.by_id.len()), KeyspaceWrites::default());
        sum.iter_mut().zip(&tally.by_id).for_each(|(sum, writes)| sum.add(*writes));
    }
}

impl HashedEngine {
    /// Bytes written to segments of a keyspace.
    pub fn writes_of(&self, KeyspaceId(id): KeyspaceId) -> KeyspaceWrites {
        lock(&self.write_counts.tally).by_id.get(usize::from(id)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_in_memory, wait_for_flush};
    use crate::{KeyspaceId, StoreOptions, Sync};

    #[test]
    fn what_goes_into_segments_is_counted_by_keyspace_with_how_well_it_was_compressed() {
        let options = StoreOptions { sync: Sync::No, ..small_options() };
        let (_drive, store) = store_in_memory(SMALL_BYTES, &options);
        let other = store.create_keyspace("other").unwrap();
        let engine = store.hashed();
        // A little of one keyspace, and ten times as much of another; both shrink to a small part.
        for number in 0..400u32 {
            other.put(&number.to_be_bytes(), &[7; 4000]).unwrap();
            if number % 10 == 0 {
                store.put(&number.to_be_bytes(), &[7; 4000]).unwrap();
            }
        }
        wait_for_flush(engine);
        assert!(engine.rotate());
        wait_for_flush(engine);
        let (own, other) = (engine.writes_of(KeyspaceId::DEFAULT), engine.writes_of(other.id()));
        assert_eq!((own.value_bytes, other.value_bytes), (40 * 4000, 400 * 4000));
        assert!(other.record_bytes > 0 && other.record_bytes < other.value_bytes / 4, "{other:?}");
        assert_eq!((own.flushed_bytes, other.flushed_bytes), (own.record_bytes, other.record_bytes));
        assert!((9..14).contains(&(other.flushed_bytes / own.flushed_bytes)), "{own:?} {other:?}");
    }
}
