//! The records of a snapshot, part by part: those of write buffers, then segment by segment, each read from its beginning to its end. Segments that
//! have no item of the keyspace are not read.

use super::HashedEngine;
use super::catalog::Bitmap;
use super::collect::victim::VictimCursor;
use super::large::verify::read_value;
use super::segment::view::Segment;
use super::snapshot::{BufferedRecords, Snapshot};
use std::collections::HashSet;
use std::sync::Arc;
use tapetum_base::engine::scan_layout::LayoutError;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::io::Io;
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::record::{Codec, Header, Kind, Record};
use tapetum_kernels::reference::Reference;

/// Bytes of a segment that a part reads, about.
const PART_BYTES: usize = 1 << 20;

/// A record, whose value has not been read yet.
pub struct WalkedRecord {
    pub key: Vec<u8>,
    pub header: Header,
    /// The value as the record has it: compressed, or the name of extents of its own.
    stored: Vec<u8>,
}

pub struct SnapshotWalk {
    engine: Arc<HashedEngine>,
    io: Io,
    keyspace: KeyspaceId,
    prefix: Vec<u8>,
    snapshot: Snapshot,
    buffered: Arc<BufferedRecords>,
    /// The next segment, by its place in the snapshot.
    place: usize,
    segment: Option<SegmentWalk>,
}

/// How far a segment has been read. Nothing of it is held between steps but by the snapshot.
struct SegmentWalk {
    valid: Bitmap,
    replaced: HashSet<Vec<u8>>,
    page_next: u32,
}

impl SnapshotWalk {
    /// The records of a snapshot of this keyspace, of keys that begin so.
    pub fn new(
        engine: Arc<HashedEngine>,
        io: Io,
        keyspace: KeyspaceId,
        snapshot: Snapshot,
        prefix: &[u8],
    ) -> SnapshotWalk {
        let (buffered, prefix) = (snapshot.records(), prefix.to_vec());
        SnapshotWalk { engine, io, keyspace, prefix, snapshot, buffered, place: 0, segment: None }
    }

    /// Adds the records of the next part; whether there may be more.
    ///
    /// # Errors
    /// [`LayoutError::TooOld`] if the flash that the snapshot held was needed.
    pub async fn step(&mut self, into: &mut Vec<WalkedRecord>) -> Result<bool, LayoutError> {
        let buffered = std::mem::take(&mut self.buffered);
        into.extend(buffered.items.iter().filter(|item| item.key.starts_with(&self.prefix)).map(|item| WalkedRecord {
            key: item.key.clone(),
            header: item.header,
            stored: item.stored.clone(),
        }));
        into.extend(buffered.elsewhere.iter().filter(|(_, record)| record.key.starts_with(&self.prefix)).map(
            |(header, record)| WalkedRecord {
                key: record.key.to_vec(),
                header: *header,
                stored: record.reference.to_vec(),
            },
        ));
        self.snapshot.check()?;
        while self.place < self.snapshot.segments() && !self.snapshot.may_have(self.place) {
            self.snapshot.release(self.place);
            self.place += 1;
        }
        if self.place == self.snapshot.segments() {
            return Ok(false);
        }
        let segment = self.snapshot.segment(self.place).ok_or(LayoutError::TooOld)?;
        let mut read = self.segment.take().unwrap_or_else(|| self.begun(&segment));
        let pages_max = (PART_BYTES / segment.page_size().bytes()).max(1) as u32;
        let pages_end = segment.descriptor.data_pages.min(read.page_next + pages_max);
        let (pages, number) = (read.page_next..pages_end, segment.descriptor.number);
        let (local, hasher) = (self.engine.drive.local(), self.engine.hasher.clone());
        let is_last = pages_end == segment.descriptor.data_pages;
        let mut cursor = VictimCursor::within(segment, pages, &self.io, local, hasher).await?;
        cursor.advance(&read.valid).await?;
        while cursor.head().is_some() {
            let damaged =
                || Error::Corrupt(format!("a record in data page {} of segment {number}", cursor.page().unwrap_or(0)));
            let record = Record::parse(cursor.record()).map_err(|_| damaged())?;
            if self.is_of_it(&record) && !read.replaced.contains(record.key) {
                let stored = record.stored.to_vec();
                into.push(WalkedRecord { key: record.key.to_vec(), header: record.header, stored });
            }
            cursor.advance(&read.valid).await?;
        }
        if is_last {
            self.snapshot.release(self.place);
            self.place += 1;
        } else {
            read.page_next = pages_end;
            self.segment = Some(read);
        }
        Ok(true)
    }

    /// The value of a record of this walk.
    pub async fn read(&self, record: &WalkedRecord) -> Result<Vec<u8>, LayoutError> {
        let WalkedRecord { key, header, stored } = record;
        let damaged = || Error::Corrupt(format!("the value of the key {key:?}"));
        if header.codec == Codec::OutOfLine {
            let reference = Reference::parse(stored).map_err(|_| damaged())?;
            let (engine, raw_bytes) = (&self.engine, header.raw_bytes);
            let read = read_value(&self.io, &engine.geometry, engine.store_id, &reference, raw_bytes).await;
            // Where its extents were not held any more, others may have written there.
            self.snapshot.check()?;
            return Ok(read?);
        }
        let mut decompressor = Decompressor::new().map_err(|error| Error::Io(error.to_string()))?;
        let mut value = Vec::new();
        let record = Record { header: *header, key, stored };
        decompressor.inflate(&record, &mut value).map_err(|_| damaged())?;
        Ok(value)
    }

    fn begun(&self, segment: &Segment) -> SegmentWalk {
        let valid = Bitmap::of_words(self.snapshot.valid(self.place), segment.descriptor.entries);
        SegmentWalk { valid, replaced: self.snapshot.replaced(self.place).iter().cloned().collect(), page_next: 0 }
    }

    fn is_of_it(&self, record: &Record<'_>) -> bool {
        let header = record.header;
        header.kind == Kind::Value
            && KeyspaceId::of(&header) == self.keyspace
            && header.stamp > self.snapshot.deleted_through()
            && !header.expiry.has_passed(self.snapshot.now_ms())
            && record.key.starts_with(&self.prefix)
    }
}
