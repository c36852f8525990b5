//! A hashed keyspace at one moment: its segments with the validity of their records, and what the write buffers say of it.
//!
//! 1. It is taken with the installer and every shard held: each key is in a write buffer or in the one segment where it is valid, and no
//!    write comes between two shards.
//! 2. Segments are held until the snapshot goes, so their extents are not written over meanwhile, whatever flush and collector do.
//! 3. The bitmaps are copies, and so are the records of write buffers, which are few against segments.

use crate::error::Error;
use crate::hashed::HashedEngine;
use crate::hashed::buffer::Place;
use crate::hashed::segment::view::Segment;
use crate::installer::Installer;
use crate::keyspace::KeyspaceId;
use crate::keyspace::states::KeyspaceRef;
use crate::log::Sync;
use crate::media::io::{Io, lock};
use std::sync::Arc;
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::record::{Codec, Kind};

pub(super) struct Snapshot {
    pub segments: Vec<SegmentSnapshot>,
    pub buffered: Vec<BufferedItem>,
    /// Keys on which a write buffer has the last word, deletions too.
    pub replaced: Vec<Vec<u8>>,
    /// Records up to this stamp were deleted together.
    pub deleted_through: u64,
    /// Unix seconds.
    pub now: u32,
}

pub(super) struct SegmentSnapshot {
    pub segment: Arc<Segment>,
    pub valid: Vec<u64>,
}

pub(super) struct BufferedItem {
    pub key: Vec<u8>,
    /// `None`: it lies in extents of its own, and is to be read by a get.
    pub value: Option<Vec<u8>>,
}

impl Snapshot {
    /// Takes one; where writes are acknowledged when they are durable, all that it shows is.
    pub async fn take(engine: &Arc<HashedEngine>, io: &Io, keyspace: KeyspaceRef) -> Result<Snapshot, Error> {
        let installer = engine.take_installer().await;
        let taken = Snapshot::take_now(engine, &installer, keyspace.id());
        engine.return_installer(installer);
        let (snapshot, stamp) = taken?;
        if engine.log.sync() == Sync::Always {
            engine.log.make_durable(io, stamp, || engine.drive.env().now_us()).await?;
        }
        Ok(snapshot)
    }

    fn take_now(engine: &HashedEngine, installer: &Installer, keyspace: KeyspaceId) -> Result<(Snapshot, u64), Error> {
        let mut decompressor = Decompressor::new().map_err(|error| Error::Io(error.to_string()))?;
        let mut snapshot = Snapshot {
            segments: Vec::new(),
            buffered: Vec::new(),
            replaced: Vec::new(),
            deleted_through: 0,
            now: engine.now(),
        };
        // Ascending, as everywhere.
        let shards: Vec<_> = engine.buffers.shards().iter().map(lock).collect();
        let stamp = engine.log.stamp_last();
        snapshot.deleted_through = engine.keyspaces.watermark(keyspace);
        for (_, Place { buffer, place }) in shards.iter().flat_map(|shard| shard.latest()) {
            // SAFETY: the shard names the place, and we hold it.
            let record = unsafe { engine.log.record(buffer, place) };
            let header = record.header;
            if KeyspaceId::of(&header) != keyspace {
                continue;
            }
            snapshot.replaced.push(record.key.to_vec());
            if header.kind != Kind::Value || !engine.is_live(&header, snapshot.now) {
                continue;
            }
            let mut value = None;
            if header.codec != Codec::OutOfLine {
                let inflated = decompressor.inflate(&record, value.insert(Vec::new()));
                inflated.map_err(|_| Error::Corrupt(format!("the value of the key {:?}", record.key)))?;
            }
            snapshot.buffered.push(BufferedItem { key: record.key.to_vec(), value });
        }
        for state in installer.catalog.segments.values().filter(|state| state.valid_entries > 0) {
            if let Some(segment) = engine.segments.get(state.descriptor.number) {
                snapshot.segments.push(SegmentSnapshot { segment, valid: state.valid.to_words() });
            }
        }
        drop(shards);
        Ok((snapshot, stamp))
    }
}
