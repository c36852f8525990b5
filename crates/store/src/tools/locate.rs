//! Where a key lives: of a hashed keyspace, in a write buffer, or in which bytes of which segment; of an ordered one, in which data node.
//! For tools; a get takes a faster way.

use crate::base::Base;
use crate::error::Error;
use crate::hashed::HashedEngine;
use crate::hashed::segment::view::Segment;
use crate::keyspace::KeyspaceId;
use crate::keyspace::catalogue::KeyspaceKind;
use crate::keyspace::keyspace_error::KeyspaceError;
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
    /// The index partition, which is the shard of the write buffers too. An ordered keyspace has no index of hash keys.
    pub partition: Option<u64>,
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
    /// In the range of a data node, whether that has it or not.
    Node(NodePlace),
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

/// The data node whose range a key of an ordered keyspace lies in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Its number in memory; it may have another one when the store is opened again.
    pub node: u32,
    /// Nodes of the search layer on the way to it.
    pub depth: u32,
    /// Its newest image on flash; none of what was never written.
    pub image: Option<ImagePlace>,
    pub is_cached: bool,
    /// What is said here of its records is not all in that image yet.
    pub is_dirty: bool,
    /// The first key that it has, and the first behind these; `None` where there is none.
    pub low: Vec<u8>,
    pub high: Option<Vec<u8>>,
    pub records: u64,
    pub used_bytes: u64,
    /// The key's.
    pub record: Option<RecordFacts>,
    pub extension: Option<ExtensionPlace>,
}

/// Where the image of a data node lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePlace {
    pub extent: u32,
    /// Its page of the extent.
    pub page: u32,
    pub flash_bytes: u64,
    pub stamp: u64,
}

/// Where a value lies that no data node takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtensionPlace {
    pub extent: u32,
    /// The page of the extent that it begins in.
    pub page: u32,
    /// `None`: no such place is on this drive.
    pub flash_bytes: Option<u64>,
    /// What it takes on flash.
    pub length_bytes: u64,
    pub stamp: u64,
    /// It is there, and its checksums are right.
    pub is_whole: bool,
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

impl RecordFacts {
    /// Of a record whose header says its keyspace.
    pub fn of(base: &Base, header: &Header) -> RecordFacts {
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
            live: header.kind == Kind::Value && base.is_live(header, base.now()),
        }
    }
}

/// Finds where a key of a keyspace lives in an open store.
pub fn locate(store: &Store, keyspace: KeyspaceRef, key: &[u8]) -> Result<Location, Error> {
    store.refuse_forked()?;
    let base = store.base();
    if keyspace.is_grouped() {
        return Err(Error::Keyspace(KeyspaceError::IsGrouped));
    }
    let io = Io::new(base.drive.queue_pair(16).map_err(|error| Error::Io(error.to_string()))?).of(Purpose::Check);
    let kind = keyspace.kind();
    let no_engine = || Error::Keyspace(KeyspaceError::OtherKind { kind });
    let engine = store.engines().iter().find(|engine| engine.kind() == kind).ok_or_else(no_engine)?;
    let finding = engine.clone().locate(io.clone(), keyspace.id, key.to_vec());
    let place = run(&io, finding, || false).ok_or_else(|| Error::Io("the drive stopped answering".into()))??;
    let hash = base.hasher.hash(keyspace.id, key);
    let partition = (kind == KeyspaceKind::Hashed).then(|| hash.partition(base.geometry.partition_bits) as u64);
    Ok(Location { hash: hash.0, partition, place })
}

/// Where a key of a hashed keyspace lives.
pub async fn locate_hashed(engine: &Arc<HashedEngine>, io: &Io, key: (KeyspaceId, &[u8])) -> Result<KeyPlace, Error> {
    let hash = engine.hash(key.0, key.1);
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
    let record = RecordFacts::of(engine, &unsafe { engine.log.record(place.buffer, place.place) }.header);
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
        record: RecordFacts::of(engine, &found.header),
    }
}
