//! Resizing an open store, as the hashed engine does it: more of the drive, more or less memory for the index.
//!
//! ```text
//! flash grows  →  superblock, copy by copy  →  extents  →  index partitions with wider payloads, one by one  →  segment numbers
//! (the caller)    (from here on, a task of maintenance's)
//! ```
//! Each step is of use to a later one alone, and a crash between any two leaves a store of the old or of the new size: a
//! drive that is larger than its store says, or a store whose copies of the superblock differ, which opening mends. No
//! extent is given out before both copies are durable, no segment number before every partition of the index has the bits
//! for it. The partitions are rebuilt with the installer held for one at a time, so flushes go on between them; readers
//! notice nothing.

use crate::hashed::HashedEngine;
use crate::hashed::catalog::Catalog;
use crate::hashed::index::partition_load::rebuild;
use crate::hashed::key_tables::key_reader::DEPTH_BESIDE_READERS;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_base::base::Resizing;
use tapetum_base::engine::job::{Job, Others};
use tapetum_base::error::Error;
use tapetum_base::media::io::{Io, Task, lock, poll_once};
use tapetum_base::media::superblock::Superblock;
use tapetum_base::options::{Full, StoreOptions};
use tapetum_base::phase::{Phase, PhaseCell};
use tapetum_drive::machine::memory_and_swap_bytes;
use tapetum_drive::{Size, fail_point};

/// The job of maintenance that does what was asked for.
pub struct ResizeJob {
    engine: Arc<HashedEngine>,
    io: Io,
    task: Option<Task<Result<(), Error>>>,
    phase: Arc<PhaseCell>,
}

impl ResizeJob {
    pub fn new(engine: &Arc<HashedEngine>, io: &Io) -> ResizeJob {
        ResizeJob { engine: engine.clone(), io: io.clone(), task: None, phase: Arc::default() }
    }

    /// A resize that was asked for and is not over.
    fn asked(&self) -> Option<Resizing> {
        lock(&self.engine.resizing).clone().filter(|resizing| resizing.result().is_none())
    }

    fn end(&self, result: Result<(), Error>) {
        self.asked().into_iter().for_each(|resizing| resizing.end(result.clone()));
    }
}

impl Job for ResizeJob {
    fn step(&mut self, _others: Others) -> bool {
        let Some(resizing) = self.asked() else { return false };
        let task = self.task.get_or_insert_with(|| {
            let (engine, io, phase) = (self.engine.clone(), self.io.clone(), self.phase.clone());
            Box::pin(grow(engine, io, phase, *resizing.asked()))
        });
        let Some(done) = poll_once(task) else { return false };
        self.task = None;
        resizing.end(done);
        true
    }

    fn is_changing(&self) -> bool {
        self.task.is_some()
    }

    fn give_up(&mut self) {
        self.task = None;
    }

    fn wind_down(&mut self) {
        if let Some(done) = self.task.as_mut().and_then(poll_once) {
            self.task = None;
            self.end(done);
        }
    }

    fn fail(&mut self, error: &Error) {
        self.end(Err(error.clone()));
    }

    fn close(&mut self) {
        self.end(Err(Error::Closed));
    }

    fn phases(&self) -> Vec<Phase> {
        vec![self.phase.get()]
    }
}

/// Takes over what the flash has grown by. Dropped at any point, it leaves the store whole.
pub async fn grow(engine: Arc<HashedEngine>, io: Io, phase: Arc<PhaseCell>, capacity_bytes: u64) -> Result<(), Error> {
    phase.set(Phase::Resize);
    let done = grow_to(&engine, &io, &phase, capacity_bytes).await;
    phase.set(Phase::Idle);
    // Sessions that wait for room check again.
    engine.log.wake();
    done
}

async fn grow_to(engine: &Arc<HashedEngine>, io: &Io, phase: &PhaseCell, capacity_bytes: u64) -> Result<(), Error> {
    let now = *lock(&engine.superblock);
    let superblock = Superblock { capacity_bytes, generation: now.generation + 1, ..now };
    if fail_point!(TakeRoomEarly) {
        take_room(engine, superblock).await;
        for _ in 0..1000 {
            io.step().await;
        }
    }
    if superblock.capacity_bytes > now.capacity_bytes {
        let written = superblock.write(io, &[0, 1]).await;
        if let Err(error) = written {
            // It is unknown which copy was written: the next opening checks.
            engine.log.poison("a resize", error.clone());
            return Err(error);
        }
        take_room(engine, superblock).await;
    }
    widen_index(engine, io, phase, capacity_bytes).await?;
    engine.segments.names.raise_limit(engine.geometry.segments(capacity_bytes));
    Ok(())
}

async fn take_room(engine: &Arc<HashedEngine>, superblock: Superblock) {
    // With the installer, so that the levels count the new extents.
    let _installer = engine.take_installer().await;
    lock(&engine.extents).grow(engine.geometry.extents(superblock.capacity_bytes));
    *lock(&engine.superblock) = superblock;
}

async fn widen_index(engine: &Arc<HashedEngine>, io: &Io, phase: &PhaseCell, capacity_bytes: u64) -> Result<(), Error> {
    if fail_point!(KeepPayloadBits) {
        return Ok(());
    }
    engine.index.widen(engine.geometry.segment_bits(capacity_bytes));
    for partition in 0..engine.geometry.partitions() {
        let installer = engine.take_installer().await;
        let done = match engine.index.is_wide(partition) {
            true => Ok(()),
            false => {
                phase.set(Phase::Grow);
                rebuild(engine, io, installer.of::<Catalog>(), partition, DEPTH_BESIDE_READERS).await.map(drop)
            }
        };
        phase.set(Phase::Resize);
        drop(installer);
        done?;
        io.step().await;
    }
    Ok(())
}

/// Gives everything in memory another budget, of which the index gets its share at once. Pools, whose size is that of
/// the budget at opening, keep theirs until the store is opened again.
pub fn resize_memory(engine: &HashedEngine, memory_bytes: u64) -> Result<(), Error> {
    refuse_more_than_there_is(memory_bytes)?;
    check_memory(engine, &StoreOptions { memory_bytes, ..engine.options })?;
    engine.memory_bytes.store(memory_bytes, Ordering::SeqCst);
    // The levels follow; whoever has the installer now refreshes them when it comes back.
    drop(engine.base.try_take_installer());
    engine.log.wake();
    engine.wakeup.wake();
    Ok(())
}

/// An error if the machine does not have so much memory.
pub fn refuse_more_than_there_is(memory_bytes: u64) -> Result<(), Error> {
    let has_bytes = memory_and_swap_bytes();
    if memory_bytes <= has_bytes {
        return Ok(());
    }
    let (wanted, has) = (Size(memory_bytes), Size(has_bytes));
    Err(Error::Options(format!("{wanted} of memory are more than this machine has, {has} with its swap: give less")))
}

/// An error if the budget is too small for the store as it is, with what is enough.
fn check_memory(engine: &HashedEngine, options: &StoreOptions) -> Result<(), Error> {
    let StoreOptions { memory_bytes, tier_bytes, node_cache_bytes, .. } = *options;
    let (pools_bytes, index_bytes) = (engine.pools_bytes, engine.index_bytes());
    let buffers_bytes = engine.geometry.segment_bytes;
    // An index may have a quarter of what tier and cached nodes leave.
    let beside_bytes = tier_bytes + node_cache_bytes;
    let for_buffers = options.budget().least_bytes(buffers_bytes);
    let for_pools = (4 * pools_bytes).saturating_sub(beside_bytes).div_ceil(3);
    let for_index = if engine.options.full == Full::Error { 4 * index_bytes + beside_bytes } else { 0 };
    let needed_for = if memory_bytes < for_buffers {
        options.pools_in_words(buffers_bytes)
    } else if memory_bytes < for_pools {
        format!("the index and pools of {}, which shrink only when the store is opened with less", Size(pools_bytes))
    } else if memory_bytes < for_index {
        format!("an index of {}, which shrinks when keys are deleted", Size(index_bytes))
    } else {
        return Ok(());
    };
    Err(Error::TooLittleMemory { memory_bytes, least_bytes: for_buffers.max(for_pools).max(for_index), needed_for })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_in_memory};
    use tapetum_base::media::io::run;

    #[test]
    fn a_store_that_grows_writes_the_next_generation_of_its_superblock() {
        let (_drive, store) = store_in_memory(SMALL_BYTES, &small_options());
        let generation = || lock(&store.hashed().superblock).generation;
        let before = generation();
        store.resize_capacity(SMALL_BYTES + (1 << 20)).unwrap();
        assert_eq!(generation(), before + 1);
        store.resize_capacity(SMALL_BYTES + (1 << 20)).unwrap();
        assert_eq!(generation(), before + 1, "it has that size");
    }

    #[test]
    fn an_index_beyond_its_share_is_refused_unless_items_may_be_evicted() {
        for full in [Full::Error, Full::Evict] {
            let options = StoreOptions { full, ..small_options() };
            let (drive, store) = store_in_memory(SMALL_BYTES, &options);
            let engine = store.hashed();
            let io = Io::new(drive.queue_pair(16).unwrap());
            // Nobody else looks at the levels anew.
            let _installer = run(&io, engine.take_installer(), || false).unwrap();
            let share_bytes = options.index_bytes_max();
            for (index_bytes, is_refused) in [(share_bytes, false), (share_bytes + 1, full == Full::Error)] {
                engine.levels.segment_index_bytes.store(index_bytes - engine.index.bytes() as u64, Ordering::Relaxed);
                assert_eq!(resize_memory(engine, options.memory_bytes).is_err(), is_refused, "{index_bytes}");
            }
        }
    }
}
