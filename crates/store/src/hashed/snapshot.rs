//! A hashed keyspace at one moment: its segments with the validity of their records, and the records of its write buffers.
//!
//! 1. The moment is one at which the installer and every shard are held: each key is in a write buffer or in the one segment where it is valid,
//!    and no write comes between two shards. The shards are let go at once. They note where keys were that are written before they have been
//!    copied, one after the other; the installer is held until then, so no buffer is released.
//! 2. Segments and large values are held until the snapshot releases them, so their extents are not overwritten meanwhile, whatever flush and
//!    collector do. A snapshot that keeps too much flash loses all of them ([`SnapshotPins`]).
//! 3. The bitmaps are copies, and so are the records of write buffers, which are few against segments.
//! 4. A key whose latest record is in a buffer is noted with the one segment that may have an older one.
//! 5. Those who waited for the installer when the moment came share it ([`SnapshotDesk`]).

use super::HashedEngine;
use super::buffer::{Place, Shard};
use super::catalog::Catalog;
use super::large::LargeExtents;
use super::segment::snapshot_pins::SnapshotPins;
use super::segment::view::Segment;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
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
use tapetum_kernels::record::{Codec, Header, Kind};
use tapetum_kernels::scan::result::DeferredRecord;

pub struct Snapshot {
    moment: Arc<Moment>,
    records: Arc<BufferedRecords>,
}

/// What several snapshots may share.
struct Moment {
    segments: Vec<SegmentSnapshot>,
    /// Records up to this stamp were deleted together.
    deleted_through: u64,
    /// Unix milliseconds.
    now_ms: u64,
    geometry: Geometry,
    pins: Arc<SnapshotPins>,
}

pub struct SegmentSnapshot {
    pub valid: Vec<u64>,
    /// Keys whose latest record, deletions too, is in a write buffer, and of which this segment may have a record.
    pub replaced: Vec<Vec<u8>>,
}

/// Live records of write buffers.
#[derive(Default)]
pub struct BufferedRecords {
    pub items: Vec<BufferedItem>,
    /// Those whose values lie in extents of their own.
    pub elsewhere: Vec<(Header, DeferredRecord)>,
}

pub struct BufferedItem {
    pub key: Vec<u8>,
    pub header: Header,
    pub value: Vec<u8>,
}

impl BufferedRecords {
    pub fn count(&self) -> usize {
        self.items.len() + self.elsewhere.len()
    }
}

impl Snapshot {
    /// Takes a snapshot. If writes are acknowledged when they are durable, everything that it shows is durable.
    pub async fn take(engine: Arc<HashedEngine>, io: Io, keyspace: KeyspaceRef) -> Result<Snapshot, Error> {
        let waiting = Waiting::begin(&engine, keyspace.id());
        let installer = engine.take_installer().await;
        let Taken { moment, records, stamp } = match waiting.shared() {
            Some(taken) => taken,
            None => {
                // Those who begin to wait from here on wait for a later moment.
                let at = waiting.turn();
                let taken = Copy::of(&engine, keyspace.id())?.take(&engine, &installer)?;
                waiting.share(at, &taken);
                taken
            }
        };
        drop((installer, waiting));
        if engine.log.sync() == Sync::Always {
            engine.log.make_durable(&io, stamp, || engine.drive.env().now_us()).await?;
        }
        Ok(Snapshot { moment, records })
    }

    pub fn segments(&self) -> &[SegmentSnapshot] {
        &self.moment.segments
    }

    /// The records of write buffers, which it has no more.
    pub fn take_records(&mut self) -> Arc<BufferedRecords> {
        std::mem::take(&mut self.records)
    }

    /// Records up to this stamp were deleted together.
    pub fn deleted_through(&self) -> u64 {
        self.moment.deleted_through
    }

    pub fn now_ms(&self) -> u64 {
        self.moment.now_ms
    }

    pub fn geometry(&self) -> Geometry {
        self.moment.geometry
    }

    /// A segment, held.
    pub fn segment(&self, place: usize) -> Option<Arc<Segment>> {
        self.moment.pins.segment(place)
    }

    /// A segment was read. Where others may still read it, it is held until they end.
    pub fn release(&self, place: usize) {
        if Arc::strong_count(&self.moment) == 1 {
            self.moment.pins.release(place);
        }
    }

    /// An error if the flash that it held was needed: nothing is read by it any more.
    pub fn check(&self) -> Result<(), LayoutError> {
        if self.moment.pins.is_too_old() { Err(LayoutError::TooOld) } else { Ok(()) }
    }
}

#[derive(Clone)]
struct Taken {
    moment: Arc<Moment>,
    records: Arc<BufferedRecords>,
    /// The last one that it shows.
    stamp: u64,
}

/// Copies what write buffers have of a keyspace at a moment.
struct Copy {
    keyspace: KeyspaceId,
    decompressor: Decompressor,
    now_ms: u64,
    stamp: u64,
    deleted_through: u64,
    records: BufferedRecords,
    replaced: BTreeMap<u32, Vec<Vec<u8>>>,
    large: Vec<Arc<LargeExtents>>,
}

impl Copy {
    /// The moment is now.
    fn of(engine: &HashedEngine, keyspace: KeyspaceId) -> Result<Copy, Error> {
        let decompressor = Decompressor::new().map_err(|error| Error::Io(error.to_string()))?;
        // Ascending, as everywhere.
        let mut shards: Vec<_> = engine.buffers.shards().iter().map(lock).collect();
        let (stamp, deleted_through) = (engine.log.stamp_last(), engine.keyspaces.watermark(keyspace));
        shards.iter_mut().for_each(|shard| shard.begin_moment());
        drop(shards);
        let (records, replaced, large) = Default::default();
        Ok(Copy { keyspace, decompressor, now_ms: engine.now_ms(), stamp, deleted_through, records, replaced, large })
    }

    fn take(&mut self, engine: &HashedEngine, installer: &Installer) -> Result<Taken, Error> {
        let copied = engine.buffers.shards().iter().try_for_each(|shard| self.copy_shard(engine, &mut lock(shard)));
        if copied.is_err() {
            // The others are not to note on.
            engine.buffers.shards().iter().for_each(|shard| drop(lock(shard).at_moment()));
        }
        copied?;
        let (mut segments, mut held) = (Vec::new(), Vec::<Arc<Segment>>::new());
        for state in installer.of::<Catalog>().segments.values().filter(|state| state.valid_entries > 0) {
            if let Some(segment) = engine.segments.get(state.descriptor.number) {
                let replaced = self.replaced.remove(&state.descriptor.number).unwrap_or_default();
                segments.push(SegmentSnapshot { valid: state.valid.to_words(), replaced });
                self.large.extend(segment.all_large());
                held.push(segment);
            }
        }
        let pins = SnapshotPins::new(held, std::mem::take(&mut self.large));
        engine.segments.snapshots.add(&pins);
        let (deleted_through, now_ms, geometry) = (self.deleted_through, self.now_ms, engine.geometry);
        let moment = Arc::new(Moment { segments, deleted_through, now_ms, geometry, pins });
        Ok(Taken { moment, records: Arc::new(std::mem::take(&mut self.records)), stamp: self.stamp })
    }

    fn copy_shard(&mut self, engine: &HashedEngine, shard: &mut Shard) -> Result<(), Error> {
        let places: Vec<_> = shard.at_moment().collect();
        for (hash, place) in places {
            let Place { buffer, place: at } = place;
            // SAFETY: the shard named the place, and no buffer is released as long as the installer is held.
            let record = unsafe { engine.log.record(buffer, at) };
            let header = record.header;
            if KeyspaceId::of(&header) != self.keyspace {
                continue;
            }
            let forgets = fail_point!(QueryForgetReplaced);
            if let Some(segment) = engine.candidate(hash).filter(|_| !forgets) {
                self.replaced.entry(segment.descriptor.number).or_default().push(record.key.to_vec());
            }
            let is_live = header.stamp > self.deleted_through && !header.expiry.has_passed(self.now_ms);
            if header.kind != Kind::Value || !is_live {
                continue;
            }
            if header.codec == Codec::OutOfLine {
                let (key, reference) = (record.key.into(), record.stored.into());
                let record = DeferredRecord { key, raw_bytes: header.raw_bytes, reference };
                self.records.elsewhere.push((header, record));
                self.large.extend(shard.large(place));
                continue;
            }
            let mut value = Vec::new();
            let inflated = self.decompressor.inflate(&record, &mut value);
            inflated.map_err(|_| Error::Corrupt(format!("the value of the key {:?}", record.key)))?;
            self.records.items.push(BufferedItem { key: record.key.to_vec(), header, value });
        }
        Ok(())
    }
}

/// Where those meet who want a snapshot at the same time.
#[derive(Default)]
pub struct SnapshotDesk(Mutex<DeskState>);

#[derive(Default)]
struct DeskState {
    /// Of those who wait, and of moments, in their order.
    turn: u64,
    /// Who waits: since when, and for which keyspace.
    waiting: Vec<(u64, KeyspaceId)>,
    /// The last moment, as long as somebody waits who may share it.
    last: Option<(u64, KeyspaceId, Taken)>,
}

#[cfg(test)]
impl SnapshotDesk {
    /// How many have waited and how many moments there were, together; and whether one is kept.
    pub fn turns(&self) -> (u64, bool) {
        let desk = lock(&self.0);
        (desk.turn, desk.last.is_some())
    }
}

impl DeskState {
    fn take_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }
}

/// Somebody who waits for a snapshot.
struct Waiting {
    engine: Arc<HashedEngine>,
    since: u64,
    keyspace: KeyspaceId,
}

impl Waiting {
    fn begin(engine: &Arc<HashedEngine>, keyspace: KeyspaceId) -> Waiting {
        let mut desk = lock(&engine.snapshot_desk.0);
        let since = desk.take_turn();
        desk.waiting.push((since, keyspace));
        drop(desk);
        Waiting { engine: Arc::clone(engine), since, keyspace }
    }

    /// A moment since it waits.
    fn shared(&self) -> Option<Taken> {
        let desk = lock(&self.engine.snapshot_desk.0);
        let (at, keyspace, taken) = desk.last.as_ref()?;
        (*at > self.since && *keyspace == self.keyspace).then(|| taken.clone())
    }

    fn turn(&self) -> u64 {
        lock(&self.engine.snapshot_desk.0).take_turn()
    }

    fn share(&self, at: u64, taken: &Taken) {
        lock(&self.engine.snapshot_desk.0).last = Some((at, self.keyspace, taken.clone()));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut desk = lock(&self.engine.snapshot_desk.0);
        desk.waiting.retain(|(since, _)| *since != self.since);
        let DeskState { waiting, last, .. } = &mut *desk;
        let is_wanted = |(at, of, _): &(u64, KeyspaceId, Taken)| waiting.iter().any(|who| who.0 < *at && who.1 == *of);
        let forgotten = last.take_if(|last| !is_wanted(last));
        drop(desk);
        drop(forgotten);
    }
}
