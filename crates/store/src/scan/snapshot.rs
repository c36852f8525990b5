//! A hashed keyspace at one moment: its segments with the validity of their records, and the records of its write buffers.
//!
//! 1. It is taken with the installer and every shard held: each key is in a write buffer or in the one segment where it is valid, and no
//!    write comes between two shards.
//! 2. Segments and large values are held until the snapshot releases them, so their extents are not overwritten meanwhile, whatever flush and
//!    collector do. A snapshot that keeps too much flash loses all of them ([`SnapshotPins`]).
//! 3. The bitmaps are copies, and so are the records of write buffers, which are few against segments.
//! 4. A key whose latest record is in a buffer is noted with the one segment that may have an older one.

use crate::hashed::HashedEngine;
use crate::hashed::buffer::Place;
use crate::hashed::catalog::Catalog;
use crate::hashed::segment::snapshot_pins::SnapshotPins;
use crate::hashed::segment::view::Segment;
use std::collections::BTreeMap;
use std::sync::Arc;
use tapetum_base::engine::scan_layout::LayoutError;
use tapetum_base::error::Error;
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::log::Sync;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::{Io, lock};
use tapetum_drive::fail_point;
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::record::{Codec, Kind};
use tapetum_kernels::scan::result::DeferredRecord;

pub(super) struct Snapshot {
    pub segments: Vec<SegmentSnapshot>,
    /// Live records of write buffers.
    pub buffered: Vec<BufferedItem>,
    /// Records among them whose values lie in extents of their own.
    pub elsewhere: Vec<DeferredRecord>,
    /// Records up to this stamp were deleted together.
    pub deleted_through: u64,
    /// Unix seconds.
    pub now_ms: u64,
    pub geometry: Geometry,
    pins: Arc<SnapshotPins>,
}

pub(super) struct SegmentSnapshot {
    pub valid: Vec<u64>,
    /// Keys whose latest record, deletions too, is in a write buffer, and of which this segment may have a record.
    pub replaced: Vec<Vec<u8>>,
}

pub(super) struct BufferedItem {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl Snapshot {
    /// Takes a snapshot. If writes are acknowledged when they are durable, everything that it shows is durable.
    pub async fn take(engine: Arc<HashedEngine>, io: Io, keyspace: KeyspaceRef) -> Result<Snapshot, Error> {
        let installer = engine.take_installer().await;
        let taken = Snapshot::take_now(&engine, &installer, keyspace.id());
        drop(installer);
        let (snapshot, stamp) = taken?;
        if engine.log.sync() == Sync::Always {
            engine.log.make_durable(&io, stamp, || engine.drive.env().now_us()).await?;
        }
        Ok(snapshot)
    }

    fn take_now(engine: &HashedEngine, installer: &Installer, keyspace: KeyspaceId) -> Result<(Snapshot, u64), Error> {
        let mut decompressor = Decompressor::new().map_err(|error| Error::Io(error.to_string()))?;
        let (now_ms, mut buffered, mut elsewhere) = (engine.now_ms(), Vec::new(), Vec::new());
        let (mut replaced, mut large) = (BTreeMap::<u32, Vec<Vec<u8>>>::new(), Vec::new());
        // Ascending, as everywhere.
        let shards: Vec<_> = engine.buffers.shards().iter().map(lock).collect();
        let stamp = engine.log.stamp_last();
        let deleted_through = engine.keyspaces.watermark(keyspace);
        for shard in &shards {
            for (hash, place) in shard.latest() {
                let Place { buffer, place: at } = place;
                // SAFETY: the shard names the place, and we hold it.
                let record = unsafe { engine.log.record(buffer, at) };
                let header = record.header;
                if KeyspaceId::of(&header) != keyspace {
                    continue;
                }
                let forgets = fail_point!(QueryForgetReplaced);
                if let Some(segment) = engine.candidate(hash).filter(|_| !forgets) {
                    replaced.entry(segment.descriptor.number).or_default().push(record.key.to_vec());
                }
                if header.kind != Kind::Value || !engine.is_live(&header, now_ms) {
                    continue;
                }
                if header.codec == Codec::OutOfLine {
                    let (key, reference) = (record.key.into(), record.stored.into());
                    elsewhere.push(DeferredRecord { key, raw_bytes: header.raw_bytes, reference });
                    large.extend(shard.large(place));
                    continue;
                }
                let mut value = Vec::new();
                let inflated = decompressor.inflate(&record, &mut value);
                inflated.map_err(|_| Error::Corrupt(format!("the value of the key {:?}", record.key)))?;
                buffered.push(BufferedItem { key: record.key.to_vec(), value });
            }
        }
        let (mut segments, mut held) = (Vec::new(), Vec::<Arc<Segment>>::new());
        for state in installer.of::<Catalog>().segments.values().filter(|state| state.valid_entries > 0) {
            if let Some(segment) = engine.segments.get(state.descriptor.number) {
                let replaced = replaced.remove(&state.descriptor.number).unwrap_or_default();
                segments.push(SegmentSnapshot { valid: state.valid.to_words(), replaced });
                large.extend(segment.all_large());
                held.push(segment);
            }
        }
        drop(shards);
        let pins = SnapshotPins::new(held, large);
        engine.segments.snapshots.add(&pins);
        let geometry = engine.geometry;
        Ok((Snapshot { segments, buffered, elsewhere, deleted_through, now_ms, geometry, pins }, stamp))
    }

    /// A segment, held.
    pub fn segment(&self, place: usize) -> Option<Arc<Segment>> {
        self.pins.segment(place)
    }

    /// A segment was read.
    pub fn release(&self, place: usize) {
        self.pins.release(place);
    }

    /// An error if the flash that it held was needed: nothing is read by it any more.
    pub fn check(&self) -> Result<(), LayoutError> {
        if self.pins.is_too_old() { Err(LayoutError::TooOld) } else { Ok(()) }
    }
}
