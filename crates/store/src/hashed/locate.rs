//! Finds a key of a hashed keyspace: in a write buffer, or in which bytes of which segment. For tools; a get has a faster path.

use crate::hashed::HashedEngine;
use crate::hashed::segment::view::Segment;
use std::sync::Arc;
use tapetum_base::engine::key_place::{KeyPlace, RecordFacts, SegmentPlace};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::io::Io;
use tapetum_base::media::transfer::Transfer;
use tapetum_kernels::data_page::{FoundRecord, PageRun};
use tapetum_kernels::hash::HashKey;

/// Finds the place of a key of a hashed keyspace.
pub async fn locate_hashed(
    engine: &Arc<HashedEngine>,
    io: &Io,
    keyspace: KeyspaceId,
    key: &[u8],
) -> Result<KeyPlace, Error> {
    let hash = engine.hash(keyspace, key);
    loop {
        if let Some(place) = in_buffer(engine, hash) {
            return Ok(place);
        }
        let Some(segment) = engine.candidate(hash) else {
            // The key may have arrived, or moved to a segment, between the two looks.
            if in_buffer(engine, hash).is_none() && engine.candidate(hash).is_none() {
                return Ok(KeyPlace::Nowhere { segment: None });
            }
            continue;
        };
        return match in_segment(engine, io, &segment, hash, keyspace, key).await? {
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
    keyspace: KeyspaceId,
    key: &[u8],
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
            .find(segment.salt, keyspace.0, key)
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
