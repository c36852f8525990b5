//! The records of a snapshot, part by part: those of write buffers, then segment by segment, each read from its beginning to its end, or those pages
//! of it that have items of the keyspace.

use super::HashedEngine;
use super::catalog::Bitmap;
use super::collect::victim::VictimCursor;
use super::large::verify::read_value;
use super::segment::view::Segment;
use super::snapshot::{BufferedRecords, Snapshot};
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tapetum_base::engine::scan_layout::LayoutError;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::io::{Io, lock};
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
    /// It takes longer to make than a small value takes to inflate. `None` until one is compressed.
    decompressor: Mutex<Option<Decompressor>>,
}

/// How far a segment has been read. Nothing of it is held between steps but by the snapshot.
struct SegmentWalk {
    valid: Bitmap,
    replaced: HashSet<Vec<u8>>,
    /// The pages to read.
    left: VecDeque<Range<u32>>,
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
        SnapshotWalk {
            engine,
            io,
            keyspace,
            prefix,
            snapshot,
            buffered,
            place: 0,
            segment: None,
            decompressor: Mutex::default(),
        }
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
        let mut pages_left = (PART_BYTES / segment.page_size().bytes()).max(1) as u32;
        while pages_left > 0
            && let Some(pages) = read.left.pop_front()
        {
            let end = pages.end.min(pages.start + pages_left);
            pages_left -= end - pages.start;
            if end < pages.end {
                read.left.push_front(end..pages.end);
            }
            self.read_pages(&segment, pages.start..end, &read, into).await?;
        }
        if read.left.is_empty() {
            self.snapshot.release(self.place);
            self.place += 1;
        } else {
            self.segment = Some(read);
        }
        Ok(true)
    }

    /// Adds the records that start in these pages.
    async fn read_pages(
        &self,
        segment: &Arc<Segment>,
        pages: Range<u32>,
        read: &SegmentWalk,
        into: &mut Vec<WalkedRecord>,
    ) -> Result<(), Error> {
        let number = segment.descriptor.number;
        let (local, hasher) = (self.engine.drive.local(), self.engine.hasher.clone());
        let mut cursor = VictimCursor::within(segment.clone(), pages, &self.io, local, hasher).await?;
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
        Ok(())
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
        if header.codec == Codec::Raw {
            return Ok(stored.clone());
        }
        let mut slot = lock(&self.decompressor);
        let decompressor = match &mut *slot {
            Some(decompressor) => decompressor,
            empty => empty.insert(Decompressor::new().map_err(|error| Error::Io(error.to_string()))?),
        };
        let mut value = Vec::new();
        let record = Record { header: *header, key, stored };
        decompressor.inflate(&record, &mut value).map_err(|_| damaged())?;
        Ok(value)
    }

    fn begun(&self, segment: &Segment) -> SegmentWalk {
        let own = self.snapshot.pages(self.place);
        let mut valid = self.snapshot.valid(self.place).to_vec();
        clear_outside(&mut valid, own.iter().map(|own| own.entry_first..own.entry_end));
        SegmentWalk {
            valid: Bitmap::of_words(&valid, segment.descriptor.entries),
            replaced: self.snapshot.replaced(self.place).iter().cloned().collect(),
            left: own.into_iter().map(|own| own.pages.start..own.starts_end).collect(),
        }
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

/// Clears the bits that are in none of these ranges, which ascend.
fn clear_outside(words: &mut [u64], ranges: impl Iterator<Item = Range<u32>>) {
    let (mut next, end) = (0, words.len() as u32 * 64);
    for Range { start, end } in ranges.chain(std::iter::once(end..end)) {
        (next..start).for_each(|bit| words[bit as usize / 64] &= !(1 << (bit % 64)));
        next = end;
    }
}
