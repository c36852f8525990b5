//! The install: one change of the catalog, first made durable, then visible.
//!
//! ```text
//! segment's bytes  →  flush  →  manifest record  →  catalog and segment table  →  index, partition by partition
//! ```
//! One at a time: the caller holds the installer. A partition that the change would overfill, or leave far too empty, is
//! built anew from the key tables, which by then say exactly what must be in it.
//!
//! Before the index has all of a change, a key may be in the write buffer and in a segment that the index does not name for it. If the store
//! fails then, the installer is lost, so that nobody reads this state.

use crate::hashed::HashedEngine;
use crate::hashed::catalog::{Catalog, Install};
use crate::hashed::flush::key_check::Checked;
use crate::hashed::index::IndexChange;
use crate::hashed::index::partition_load::rebuild;
use crate::hashed::key_tables::key_reader::DEPTH_BESIDE_READERS;
use crate::hashed::manifest_client::InstallFrame;
use crate::hashed::segment::view::Segment;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::installer::Installer;
use tapetum_base::media::io::{Io, lock};
use tapetum_base::phase::{Phase, PhaseCell};
use tapetum_drive::fail_point;
use tapetum_kernels::hash::HashKey;

/// The change of one key's place in the index by an install.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moved {
    /// It is in the new segment, and was in none.
    In {
        near: Option<HashKey>,
    },
    /// It is in the new segment, and was in another.
    Over,
    /// It is in no segment any more.
    Out,
    Nothing,
}

impl Moved {
    pub fn from_check(live: bool, checked: Checked) -> Moved {
        match (live, checked) {
            (_, Checked::Unclear) => unreachable!("every key was checked"),
            (true, Checked::New) => Moved::In { near: None },
            (true, Checked::Near { hash, .. }) => Moved::In { near: Some(hash) },
            (true, Checked::Older { .. }) => Moved::Over,
            (false, Checked::Older { .. }) => Moved::Out,
            (false, _) => Moved::Nothing,
        }
    }

    /// How many more keys are on flash.
    pub fn items(self) -> i64 {
        match self {
            Moved::In { .. } => 1,
            Moved::Out => -1,
            Moved::Over | Moved::Nothing => 0,
        }
    }

    fn change(self, hash: HashKey, payload: u32) -> Option<IndexChange> {
        match self {
            Moved::In { near } => Some(IndexChange::Insert { hash, payload, neighbor: near }),
            Moved::Over => Some(IndexChange::Replace { hash, payload }),
            Moved::Out => Some(IndexChange::Remove { hash }),
            Moved::Nothing => None,
        }
    }
}

/// A key that an install moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MovedKey {
    pub hash: HashKey,
    pub moved: Moved,
    /// The number of the new segment, if one has it.
    pub segment: u32,
}

impl MovedKey {
    /// A key that is in no segment any more.
    pub fn out(hash: HashKey) -> MovedKey {
        MovedKey { hash, moved: Moved::Out, segment: 0 }
    }
}

/// Makes an install durable, with the rest of its frame, and then visible. `segments` are those that it adds; `moved` gives a partition's keys,
/// sorted.
pub async fn apply(
    engine: &Arc<HashedEngine>,
    io: &Io,
    phase: &PhaseCell,
    installer: &mut Installer,
    frame: &InstallFrame,
    segments: Vec<Arc<Segment>>,
    moved: impl Fn(usize) -> Vec<MovedKey>,
) -> Result<(), Error> {
    let evicts = phase.get() == Phase::Evict;
    if !(fail_point!(EvictUndurably) && phase.get() == Phase::Evict) {
        make_durable(engine, io, installer, frame).await?;
    }
    let install = &frame.install;
    phase.set(Phase::Merge);
    engine.segments.turn();
    installer.begin_change();
    frame.apply(installer)?;
    engine.item_count.by_keyspace.note(&frame.tally);
    for segment in segments {
        segment.attach(&installer.of::<Catalog>().segments[&segment.descriptor.number].valid);
        engine.segments.open(segment);
    }
    forget_large(engine, install);
    for partition in 0..engine.geometry.partitions() {
        let moved = moved(partition);
        if evicts {
            begin_eviction(engine, partition, &moved);
        }
        let merged = merge_partition(engine, io, phase, installer, partition, moved).await;
        if evicts {
            lock(&engine.buffers.shards()[partition]).turn_eviction();
        }
        merged?;
        io.step().await;
    }
    engine.segments.retire(&install.dropped);
    installer.end_change();
    Ok(())
}

/// Begins an eviction: a read that finds a partition's keys on flash is no longer believed, and the DRAM tier gives up the evicted keys.
fn begin_eviction(engine: &HashedEngine, partition: usize, moved: &[MovedKey]) {
    let mut shard = lock(&engine.buffers.shards()[partition]);
    shard.turn_eviction();
    if !fail_point!(TierOutlivesEviction) {
        for key in moved.iter().filter(|key| key.moved == Moved::Out) {
            engine.forget_in_tier(key.hash);
        }
    }
}

/// Releases the extents of large values whose records died, or were born dead.
pub fn forget_large(engine: &HashedEngine, install: &Install) {
    for deaths in &install.deaths {
        if let Some(segment) = engine.segments.get(deaths.segment) {
            segment.forget_large(&deaths.entries);
        }
    }
}

async fn make_durable(
    engine: &HashedEngine,
    io: &Io,
    installer: &mut Installer,
    frame: &InstallFrame,
) -> Result<(), Error> {
    // A watermark reaches one keyspace: ahead of the log, it would outlive earlier writes to others.
    engine.log.make_durable(io, frame.watermark(), || engine.drive.env().now_us()).await?;
    if fail_point!(InstallEarly) || fail_point!(SkipSegmentFlush) {
        return installer.append(&frame.items()).await;
    }
    let adds = !frame.install.added.is_empty();
    if fail_point!(RetryFlush) && adds && io.flush().await.is_err() {
        io.flush().await?;
        return installer.append(&frame.items()).await;
    }
    if adds {
        engine.log.flush_elsewhere(io).await?;
    }
    if fail_point!(ForgetDeath) && !frame.install.deaths.is_empty() {
        let mut forgetful = frame.clone();
        forgetful.install.deaths.remove(0);
        return installer.append(&forgetful.items()).await;
    }
    if fail_point!(ForgetOutput) && frame.install.added.len() > 1 {
        let mut forgetful = frame.clone();
        forgetful.install.added.pop();
        return installer.append(&forgetful.items()).await;
    }
    if fail_point!(SplitFrame) {
        let trim = InstallFrame { install: Install::default(), ..frame.clone() };
        installer.append(&trim.items()).await?;
        return installer.append(&InstallFrame { marks: Vec::new(), ..frame.clone() }.items()).await;
    }
    if fail_point!(ForgetLargeDeath) {
        let install = without_large_deaths(installer.of::<Catalog>(), &frame.install);
        return installer.append(&InstallFrame { install, ..frame.clone() }.items()).await;
    }
    installer.append(&frame.items()).await
}

/// For a planted bug: the install without the deaths of large entries.
fn without_large_deaths(catalog: &Catalog, install: &Install) -> Install {
    let mut forgetful = install.clone();
    for deaths in &mut forgetful.deaths {
        let large = catalog.segments.get(&deaths.segment).map_or(&[][..], |state| &state.descriptor.large);
        deaths.entries.retain(|entry| large.iter().all(|large| large.entry != *entry));
    }
    forgetful
}

async fn merge_partition(
    engine: &Arc<HashedEngine>,
    io: &Io,
    phase: &PhaseCell,
    installer: &Installer,
    partition: usize,
    moved: Vec<MovedKey>,
) -> Result<(), Error> {
    let inserts = moved.iter().filter(|key| matches!(key.moved, Moved::In { .. })).count();
    if engine.index.fits(partition, engine.index.partition_entries(partition) + inserts) {
        let changes = moved.into_iter().filter_map(|key| key.moved.change(key.hash, key.segment));
        if engine.index.merge(partition, changes).is_ok() {
            return Ok(());
        }
    }
    phase.set(Phase::Grow);
    let done = rebuild(engine, io, installer.of::<Catalog>(), partition, DEPTH_BESIDE_READERS).await;
    phase.set(Phase::Merge);
    done.map(drop)
}

#[cfg(test)]
mod models;
