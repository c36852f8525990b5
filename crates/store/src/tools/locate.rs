//! Where a key lives: in a write buffer, or in which bytes of which segment. For tools; a get takes a faster way.

use crate::error::Error;
use crate::hashed::HashedEngine;
use crate::hashed::segment::view::Segment;
use crate::keyspace::KeyspaceId;
use crate::keyspace::states::KeyspaceRef;
use crate::media::io::{Io, run};
use crate::media::transfer::Transfer;
use crate::store::Store;
use std::sync::Arc;
use tapetum_drive::Purpose;
use tapetum_kernels::data_page::{FoundRecord, PageRun};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Header, Kind};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The 128-bit hash key.
    pub hash: u128,
    /// The index partition, which is the shard of the write buffers too.
    pub partition: u64,
    pub place: KeyPlace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    /// Not in the store. `segment` is where the index led to, which had another key's record.
    Nowhere {
        segment: Option<u32>,
    },
    /// In a write buffer; `flash_bytes` is its record in the log zone, or will be.
    Buffer {
        buffer: u64,
        sealed: bool,
        flash_bytes: u64,
        record: RecordFacts,
    },
    Segment(SegmentPlace),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPlace {
    pub segment: u32,
    /// Its number among the segment's records.
    pub entry: u32,
    pub extent: u32,
    /// The data page in which it starts, and the byte of the page's payload.
    pub page: u32,
    pub page_at: u32,
    /// Where that is on the drive.
    pub flash_bytes: u64,
    /// What a get reads to have it.
    pub read_bytes: u64,
    /// Whether the index means this record: one that was overwritten stays until it is collected.
    pub valid: bool,
    pub record: RecordFacts,
}

/// What a record's header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFacts {
    /// `Value`, `Tombstone` …
    pub kind: String,
    pub codec: String,
    pub record_bytes: u64,
    pub key_bytes: u64,
    /// The value as it is stored, and as it was given.
    pub stored_bytes: u64,
    pub value_bytes: u64,
    pub flags: u32,
    /// Unix seconds; 0 is never.
    pub expiry: u32,
    pub stamp: u64,
    /// Whether a get finds it: it is a value, not expired, not deleted with everything else.
    pub live: bool,
}

fn facts(engine: &HashedEngine, header: &Header) -> RecordFacts {
    RecordFacts {
        kind: format!("{:?}", header.kind).to_lowercase(),
        codec: format!("{:?}", header.codec).to_lowercase(),
        record_bytes: header.record_bytes() as u64,
        key_bytes: u64::from(header.key_bytes),
        stored_bytes: u64::from(header.stored_bytes),
        value_bytes: u64::from(header.raw_bytes),
        flags: header.flags,
        expiry: header.expiry,
        stamp: header.stamp,
        live: header.kind == Kind::Value && engine.is_live(header, engine.now()),
    }
}

/// Finds where a key of a keyspace lives in an open store.
pub fn locate(store: &Store, keyspace: KeyspaceRef, key: &[u8]) -> Result<Location, Error> {
    let engine = store.hashed();
    let io = Io::new(engine.drive.queue_pair(16).map_err(|error| Error::Io(error.to_string()))?).of(Purpose::Check);
    let hash = engine.hash(keyspace.id, key);
    let place = run(&io, find(engine, &io, hash, (keyspace.id, key)), || false)
        .ok_or_else(|| Error::Io("the drive stopped answering".into()))??;
    Ok(Location { hash: hash.0, partition: hash.partition(engine.geometry.partition_bits) as u64, place })
}

async fn find(engine: &Arc<HashedEngine>, io: &Io, hash: HashKey, key: (KeyspaceId, &[u8])) -> Result<KeyPlace, Error> {
    loop {
        if let Some(place) = in_buffer(engine, hash) {
            return Ok(place);
        }
        let Some(segment) = engine.candidate(hash) else {
            // It may have come, or gone to a segment, between the two looks.
            if in_buffer(engine, hash).is_none() && engine.candidate(hash).is_none() {
                return Ok(KeyPlace::Nowhere { segment: None });
            }
            continue;
        };
        return match in_segment(engine, io, &segment, hash, key).await? {
            Some(place) => Ok(KeyPlace::Segment(place)),
            None => Ok(KeyPlace::Nowhere { segment: Some(segment.descriptor.number) }),
        };
    }
}

fn in_buffer(engine: &HashedEngine, hash: HashKey) -> Option<KeyPlace> {
    let shard = engine.buffers.shard(hash);
    let place = shard.get(hash)?;
    // SAFETY: the shard names the place, and we hold it.
    let record = facts(engine, &unsafe { engine.log.record(place.buffer, place.place) }.header);
    let flash_bytes = engine.geometry.zone_offset(place.buffer) + u64::from(place.place);
    Some(KeyPlace::Buffer { buffer: place.buffer, sealed: shard.sealed() == Some(place.buffer), flash_bytes, record })
}

async fn in_segment(
    engine: &HashedEngine,
    io: &Io,
    segment: &Segment,
    hash: HashKey,
    (keyspace, key): (KeyspaceId, &[u8]),
) -> Result<Option<SegmentPlace>, Error> {
    let number = segment.descriptor.number;
    for page in segment.start_pages(hash) {
        let read_bytes = segment.span_bytes(page);
        let room = engine.drive.local().allocate(read_bytes as usize);
        let buffer =
            room.ok_or_else(|| Error::Options("the budget of memory is too small to read a record: raise it".into()))?;
        let (buffer, result) =
            Transfer::read(io, buffer, 0, segment.data_runs(page, read_bytes)).end("read of a record").await;
        result?;
        let bytes = io.look(&buffer, 0..read_bytes as usize);
        let run = PageRun { bytes, first_page: page, page_size: segment.page_size() };
        let found = run
            .find(segment.salt, (keyspace.0, key))
            .map_err(|_| Error::Corrupt(format!("data page {page} of segment {number}")))?;
        if let Some(found) = found {
            return Ok(Some(segment_place(engine, segment, page, read_bytes, &found)));
        }
    }
    Ok(None)
}

fn segment_place(
    engine: &HashedEngine,
    segment: &Segment,
    page: u32,
    read_bytes: u32,
    found: &FoundRecord,
) -> SegmentPlace {
    let page_at = (found.address - segment.page_size().address(page)) as u32;
    let page_flash = segment.data_runs(page, 1).next().map_or(0, |run| run.flash);
    SegmentPlace {
        segment: segment.descriptor.number,
        entry: found.entry,
        extent: segment.descriptor.data_extents
            [(page / engine.geometry.pages_per_extent(segment.page_size().bytes())) as usize],
        page,
        page_at,
        flash_bytes: page_flash + u64::from(page_at),
        read_bytes: u64::from(read_bytes),
        valid: segment.is_valid(found.entry),
        record: facts(engine, &found.header),
    }
}
