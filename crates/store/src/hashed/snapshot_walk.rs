//! The records of a snapshot, part by part: those of write buffers, then segment by segment, each read from its beginning to its end.

use super::HashedEngine;
use super::catalog::Bitmap;
use super::collect::victim::VictimCursor;
use super::large::verify::read_value;
use super::snapshot::{BufferedRecords, Snapshot};
use std::collections::HashSet;
use std::sync::Arc;
use tapetum_base::engine::scan_layout::LayoutError;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::media::io::Io;
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::record::{Codec, Header, Kind, Record};
use tapetum_kernels::reference::Reference;

/// Bytes of records that a part has, about.
const PART_BYTES: usize = 1 << 20;

/// A record, whose value has not been read yet.
pub struct WalkedRecord {
    pub key: Vec<u8>,
    pub header: Header,
    stored: StoredValue,
}

enum StoredValue {
    /// As it was put.
    Plain(Vec<u8>),
    /// As the record has it: compressed, or the name of extents of its own.
    Record(Vec<u8>),
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

struct SegmentWalk {
    valid: Bitmap,
    replaced: HashSet<Vec<u8>>,
    cursor: VictimCursor,
}

impl SnapshotWalk {
    /// Begins with a snapshot of this moment, of keys that begin so.
    pub async fn begin(
        engine: Arc<HashedEngine>,
        io: Io,
        keyspace: KeyspaceRef,
        prefix: &[u8],
    ) -> Result<SnapshotWalk, Error> {
        let mut snapshot = Snapshot::take(Arc::clone(&engine), io.clone(), keyspace).await?;
        let buffered = snapshot.take_records();
        let (keyspace, prefix) = (keyspace.id(), prefix.to_vec());
        Ok(SnapshotWalk { engine, io, keyspace, prefix, snapshot, buffered, place: 0, segment: None })
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
            stored: StoredValue::Plain(item.value.clone()),
        }));
        into.extend(buffered.elsewhere.iter().filter(|(_, record)| record.key.starts_with(&self.prefix)).map(
            |(header, record)| WalkedRecord {
                key: record.key.to_vec(),
                header: *header,
                stored: StoredValue::Record(record.reference.to_vec()),
            },
        ));
        self.snapshot.check()?;
        let mut segment = match self.segment.take() {
            Some(segment) => segment,
            None if self.place == self.snapshot.segments().len() => return Ok(false),
            None => self.open_next().await?,
        };
        let mut taken_bytes = 0;
        while segment.cursor.head().is_some() && taken_bytes < PART_BYTES {
            let record = Record::parse(segment.cursor.record()).map_err(|_| self.corrupt())?;
            if self.is_of_it(&record) && !segment.replaced.contains(record.key) {
                taken_bytes += segment.cursor.record().len();
                let stored = StoredValue::Record(record.stored.to_vec());
                into.push(WalkedRecord { key: record.key.to_vec(), header: record.header, stored });
            }
            segment.cursor.advance(&segment.valid).await?;
        }
        if segment.cursor.head().is_some() {
            self.segment = Some(segment);
        } else {
            self.snapshot.release(self.place);
            self.place += 1;
        }
        Ok(true)
    }

    /// The value of a record of this walk.
    pub async fn read(&self, record: &WalkedRecord) -> Result<Vec<u8>, LayoutError> {
        let WalkedRecord { key, header, stored } = record;
        let damaged = || Error::Corrupt(format!("the value of the key {key:?}"));
        match stored {
            StoredValue::Plain(value) => Ok(value.clone()),
            StoredValue::Record(stored) if header.codec == Codec::OutOfLine => {
                let reference = Reference::parse(stored).map_err(|_| damaged())?;
                let (engine, raw_bytes) = (&self.engine, header.raw_bytes);
                let read = read_value(&self.io, &engine.geometry, engine.store_id, &reference, raw_bytes).await;
                // Where its extents were not held any more, others may have written there.
                self.snapshot.check()?;
                Ok(read?)
            }
            StoredValue::Record(stored) => {
                let mut decompressor = Decompressor::new().map_err(|error| Error::Io(error.to_string()))?;
                let mut value = Vec::new();
                let record = Record { header: *header, key, stored };
                decompressor.inflate(&record, &mut value).map_err(|_| damaged())?;
                Ok(value)
            }
        }
    }

    async fn open_next(&self) -> Result<SegmentWalk, LayoutError> {
        let segment = self.snapshot.segment(self.place).ok_or(LayoutError::TooOld)?;
        let taken = &self.snapshot.segments()[self.place];
        let valid = Bitmap::of_words(&taken.valid, segment.descriptor.entries);
        let replaced = taken.replaced.iter().cloned().collect();
        let (local, hasher) = (self.engine.drive.local(), self.engine.hasher.clone());
        let mut cursor = VictimCursor::new(segment, &self.io, local, hasher).await?;
        cursor.advance(&valid).await?;
        Ok(SegmentWalk { valid, replaced, cursor })
    }

    fn is_of_it(&self, record: &Record<'_>) -> bool {
        let header = record.header;
        header.kind == Kind::Value
            && KeyspaceId::of(&header) == self.keyspace
            && header.stamp > self.snapshot.deleted_through()
            && !header.expiry.has_passed(self.snapshot.now_ms())
            && record.key.starts_with(&self.prefix)
    }

    fn corrupt(&self) -> Error {
        let page = self.segment.as_ref().and_then(|segment| segment.cursor.page()).unwrap_or(0);
        Error::Corrupt(format!("a record in data page {page}"))
    }
}
