//! The hashed engine of a store that is being opened: the data that it reads and verifies before anything is written, and how it comes into memory.
//!
//! ```text
//! catalog, log ─► extents of segments and large values claimed ─► fences of segments ─► (the record "opened") ─► engine, its index empty
//!                                                                                        log records replayed ─► index filled
//! ```
//! Damaged fences are rebuilt: they are the first data written, after all the rest was verified.

pub mod claims;
mod fences;

use crate::hashed::HashedEngine;
use crate::hashed::buffer::write_buffers::WriteBuffers;
use crate::hashed::catalog::Catalog;
use crate::hashed::hashed_engine::{Counters, Levels};
use crate::hashed::index::checkpoint::{self, Checkpoint, CheckpointSource};
use crate::hashed::index::{GlobalIndex, IndexGeometry, index_recovery};
use crate::hashed::large::{Claims, LargeEntries, LargeExtents, LargeSpace, value_bytes_max};
use crate::hashed::manifest_room::ManifestRoom;
use crate::hashed::segment::segment_names::SegmentNames;
use crate::hashed::segment::segment_table::SegmentTable;
use crate::hashed::segment::view::Segment;
use crate::hashed::snapshot::SnapshotDesk;
use crate::hashed::tier::Tier;
use crate::hashed::tier::access::AccessClock;
use arc_swap::ArcSwapOption;
use claims::{claim_large, claim_log};
use fences::{open_segments, segment_table};
use std::sync::{Arc, Mutex};
use tapetum_base::base::Base;
use tapetum_base::error::Error;
use tapetum_base::log::Place;
use tapetum_base::media::extents::Extents;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::{Io, lock};
use tapetum_base::needs::DrivePrograms;
use tapetum_base::options::StoreOptions;
use tapetum_base::recover::{FoundBase, FoundLog, OfEngines};
use tapetum_drive::{Drive, fail_point};
use tapetum_kernels::hash::HashKey;

/// State of hashed keyspaces that is read before the engine exists.
pub struct FoundHashed {
    programs: DrivePrograms,
    checkpoint: Option<Checkpoint>,
    generation_before: u64,
    large: LargeSpace,
    large_in_segments: Vec<(u32, LargeEntries)>,
    large_in_log: Vec<(HashKey, Place, Arc<LargeExtents>)>,
    segments: Vec<ArcSwapOption<Segment>>,
    buffers: WriteBuffers,
    stamp_durable: u64,
}

/// State that the engine takes in after the log was replayed.
pub struct HashedRest {
    checkpoint: Option<Checkpoint>,
    generation_before: u64,
    large_in_log: Vec<(HashKey, Place, Arc<LargeExtents>)>,
}

impl FoundHashed {
    /// Claims the extents of large values, and of the checkpoint. Those of segments are claimed.
    pub fn claim(
        programs: DrivePrograms,
        base: &mut FoundBase,
        log: &FoundLog,
        extents: &Arc<Mutex<Extents>>,
    ) -> Result<FoundHashed, Error> {
        let large = LargeSpace::new(extents.clone());
        let mut claims = Claims::new(large.clone());
        let mut large_in_segments = Vec::new();
        for descriptor in base.installer.of::<Catalog>().segments.values().map(|state| &state.descriptor) {
            large_in_segments.push((descriptor.number, claim_large(&mut claims, descriptor)?));
        }
        let large_in_log = claim_log(&mut claims, &log.replayed)?;
        let checkpoint = base.installer.of_mut::<Catalog>().checkpoint.take();
        let geometry = &base.superblock.geometry;
        Ok(FoundHashed {
            programs,
            checkpoint: checkpoint.filter(|checkpoint| checkpoint.is_apart(&mut lock(extents))),
            generation_before: base.generation_before,
            large,
            large_in_segments,
            large_in_log,
            segments: segment_table(geometry),
            buffers: WriteBuffers::new(geometry, log.replayed.oldest())?,
            stamp_durable: log.stamp_durable,
        })
    }

    /// Opens the segments. Damaged fences are rebuilt and written.
    pub async fn open_segments(&mut self, drive: &Drive, io: &Io, base: &mut FoundBase) -> Result<(), Error> {
        let (superblock, hasher, catalog) = (&base.superblock, &base.hasher, base.installer.of::<Catalog>());
        open_segments(drive, io, superblock, hasher, catalog, &self.segments).await?;
        for (number, large) in std::mem::take(&mut self.large_in_segments) {
            if let Some(segment) = self.segments[number as usize].load_full() {
                segment.own_large(large);
            }
        }
        base.watch.lap("fences");
        Ok(())
    }

    /// Facts about this engine that the base needs.
    pub fn tell(&self, geometry: &Geometry, options: &StoreOptions, extents: Arc<Mutex<Extents>>) -> OfEngines {
        OfEngines {
            extents,
            pools_bytes: self.buffers.bytes() as u64 + options.tier_bytes,
            value_bytes_max: value_bytes_max(geometry, options.memory_bytes).min(options.value_bytes_max),
        }
    }

    /// The engine, with an empty index and empty write buffers.
    pub fn into_engine(self, base: &Arc<Base>, generation: u64) -> Result<(Arc<HashedEngine>, HashedRest), Error> {
        let (geometry, options, capacity_bytes) = (&base.geometry, &base.options, base.capacity_bytes());
        let index = GlobalIndex::new(IndexGeometry::of(options, geometry, capacity_bytes))
            .map_err(|error| Error::Io(format!("no memory for the index: {error}")))?;
        let names = SegmentNames::new(geometry.segments(capacity_bytes), generation);
        let engine = HashedEngine {
            base: base.clone(),
            programs: self.programs,
            buffers: self.buffers,
            block_maps: Default::default(),
            index,
            segments: SegmentTable::new(self.segments, names),
            tier: Tier::new(options.tier_bytes, options.slabs)
                .map_err(|error| Error::Io(format!("no memory for the DRAM tier: {error}")))?,
            item_count: Default::default(),
            write_counts: Default::default(),
            access_clock: AccessClock::new(self.stamp_durable, base.now()),
            large: self.large,
            purged: Default::default(),
            counters: Counters::default(),
            levels: Levels::default(),
            manifest_room: ManifestRoom::default(),
            snapshot_desk: SnapshotDesk::default(),
        };
        let FoundHashed { checkpoint, generation_before, large_in_log, .. } = self;
        Ok((Arc::new(engine), HashedRest { checkpoint, generation_before, large_in_log }))
    }
}

impl HashedRest {
    /// The log was replayed: takes in the large values that it names, and fills the index. Gives the catalog back.
    pub async fn take_in(self, engine: &Arc<HashedEngine>, io: &Io, catalog: Catalog) -> Result<Catalog, Error> {
        for (hash, place, extents) in self.large_in_log {
            let mut shard = engine.buffers.shard(hash);
            if place.buffer == shard.active() {
                engine.name_large(&mut shard, place, extents);
            } else {
                shard.insert_large(place, extents);
            }
        }
        fill_index(engine, io, catalog, self.checkpoint, self.generation_before).await
    }
}

/// Makes the index that of a checkpoint, or builds it from key tables; gives the catalog back.
async fn fill_index(
    engine: &Arc<HashedEngine>,
    io: &Io,
    catalog: Catalog,
    checkpoint: Option<Checkpoint>,
    generation: u64,
) -> Result<Catalog, Error> {
    let source = CheckpointSource {
        geometry: &engine.geometry,
        store_id: engine.store_id,
        generation,
        entries: catalog.segments.values().map(|state| u64::from(state.valid_entries)).sum(),
        trusting: fail_point!(TrustCheckpoint) || fail_point!(StaleCheckpoint),
    };
    let Some(checkpoint) = checkpoint else { return index_recovery::build(engine, io, catalog).await };
    match checkpoint::load(&source, io, engine.drive.local(), &engine.index, &checkpoint).await {
        Ok(()) => {
            engine.item_count.by_keyspace.note(&checkpoint.tally());
            Ok(catalog)
        }
        Err(amiss) => {
            tracing::warn!("the index checkpoint is passed over ({amiss}): the index is built from key tables");
            index_recovery::build(engine, io, catalog).await
        }
    }
}
