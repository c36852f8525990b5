//! Resizing an open store: more of the drive, more or less memory for the index.
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

use crate::error::Error;
use crate::hashed::index::partition_load::rebuild;
use crate::hashed::key_tables::key_reader::DEPTH_BESIDE_READERS;
use crate::maintenance::job::{Job, Others};
use crate::media::geometry::whole_pages;
use crate::media::io::{Io, Task, lock, poll_once};
use crate::media::superblock::Superblock;
use crate::opening::options::{Full, StoreOptions};
use crate::phase::{Phase, PhaseCell};
use crate::planted::Bug;
use crate::shared::Shared;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tapetum_drive::FlashError;

/// A resize under way, for who waits for it and for maintenance, which does it. Clones share it.
#[derive(Clone)]
pub struct Resizing {
    state: Arc<State>,
}

struct State {
    capacity_bytes: u64,
    result: Mutex<Option<Result<(), Error>>>,
    ended: Condvar,
}

impl Resizing {
    /// What it came to, once it is over.
    pub fn result(&self) -> Option<Result<(), Error>> {
        lock(&self.state.result).clone()
    }

    /// Waits until it is over, or for `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let result = lock(&self.state.result);
        drop(self.state.ended.wait_timeout_while(result, timeout, |result| result.is_none()));
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.state.capacity_bytes
    }

    pub(crate) fn end(&self, result: Result<(), Error>) {
        *lock(&self.state.result) = Some(result);
        self.state.ended.notify_all();
    }
}

/// Leaves a resize for maintenance to do; one at a time.
pub fn ask(shared: &Shared, capacity_bytes: u64) -> Result<Resizing, Error> {
    let mut asked = lock(&shared.resizing);
    if asked.as_ref().is_some_and(|resizing| resizing.result().is_none()) {
        return Err(Error::Options("the store is being resized already: try again when that is done".into()));
    }
    let state = State { capacity_bytes, result: Mutex::new(None), ended: Condvar::new() };
    let resizing = Resizing { state: Arc::new(state) };
    *asked = Some(resizing.clone());
    shared.wakeup.wake();
    Ok(resizing)
}

/// Makes the flash large enough; blocks for as long as the system takes to reserve it. Returns the capacity to go for.
pub fn grow_flash(shared: &Shared, capacity_bytes: u64) -> Result<u64, Error> {
    let capacity_bytes = whole_pages(capacity_bytes);
    let (now_bytes, most_bytes) = (shared.capacity_bytes(), shared.geometry.capacity_max_bytes());
    if capacity_bytes < now_bytes {
        return Err(Error::Options(format!(
            "the store has {now_bytes} bytes and cannot shrink to {capacity_bytes}: give {now_bytes} or more, or load its \
             items into a new store"
        )));
    }
    if capacity_bytes > most_bytes {
        return Err(Error::Options(format!(
            "a store made with {} bytes can grow to {most_bytes} and not to {capacity_bytes}: give {most_bytes} or less, \
             or load its items into a new store",
            shared.geometry.created_bytes
        )));
    }
    match shared.drive.flash().grow(capacity_bytes) {
        Ok(()) => Ok(capacity_bytes),
        // These say what to do about it.
        Err(error @ (FlashError::NoSpace { .. } | FlashError::TooSmall { .. } | FlashError::FileSizeLimit { .. })) => {
            Err(Error::Options(error.to_string()))
        }
        Err(error) => Err(Error::Io(error.to_string())),
    }
}

/// The job of maintenance that does what was asked for.
pub struct ResizeJob {
    shared: Arc<Shared>,
    io: Io,
    task: Option<Task<Result<(), Error>>>,
    phase: Arc<PhaseCell>,
}

impl ResizeJob {
    pub fn new(shared: &Arc<Shared>, io: &Io) -> ResizeJob {
        ResizeJob { shared: shared.clone(), io: io.clone(), task: None, phase: Arc::default() }
    }

    /// A resize that was asked for and is not over.
    fn asked(&self) -> Option<Resizing> {
        lock(&self.shared.resizing).clone().filter(|resizing| resizing.result().is_none())
    }

    fn end(&self, result: Result<(), Error>) {
        self.asked().into_iter().for_each(|resizing| resizing.end(result.clone()));
    }
}

impl Job for ResizeJob {
    fn step(&mut self, _others: Others) -> bool {
        let Some(resizing) = self.asked() else { return false };
        let task = self.task.get_or_insert_with(|| {
            let (shared, io, phase) = (self.shared.clone(), self.io.clone(), self.phase.clone());
            Box::pin(grow(shared, io, phase, resizing.capacity_bytes()))
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
        self.end(Err(Error::Io("the store was closed before it was resized: try again".into())));
    }

    fn phases(&self) -> Vec<Phase> {
        vec![self.phase.get()]
    }
}

/// Takes over what the flash has grown by. Dropped at any point, it leaves the store whole.
pub async fn grow(shared: Arc<Shared>, io: Io, phase: Arc<PhaseCell>, capacity_bytes: u64) -> Result<(), Error> {
    phase.set(Phase::Resize);
    let done = grow_to(&shared, &io, &phase, capacity_bytes).await;
    phase.set(Phase::Idle);
    // Who waits for room looks again.
    shared.log.wake();
    done
}

async fn grow_to(shared: &Arc<Shared>, io: &Io, phase: &PhaseCell, capacity_bytes: u64) -> Result<(), Error> {
    let now = *lock(&shared.superblock);
    let superblock = Superblock { capacity_bytes, generation: now.generation + 1, ..now };
    if shared.planted.has(Bug::TakeRoomEarly) {
        take_room(shared, superblock).await;
        for _ in 0..1000 {
            io.step().await;
        }
    }
    if superblock.capacity_bytes > now.capacity_bytes {
        let written = superblock.write(io, &[0, 1]).await;
        if let Err(error) = written {
            // Nobody knows which copy is there: the next opening looks.
            shared.log.poison("a resize", error.clone());
            return Err(error);
        }
        take_room(shared, superblock).await;
    }
    widen_index(shared, io, phase, capacity_bytes).await?;
    shared.segments_limit.fetch_max(shared.geometry.segments(capacity_bytes), Ordering::SeqCst);
    Ok(())
}

async fn take_room(shared: &Arc<Shared>, superblock: Superblock) {
    // With the installer, so that the levels count the new extents.
    let installer = shared.take_installer().await;
    lock(&shared.extents).grow(shared.geometry.extents(superblock.capacity_bytes));
    *lock(&shared.superblock) = superblock;
    shared.return_installer(installer);
}

async fn widen_index(shared: &Arc<Shared>, io: &Io, phase: &PhaseCell, capacity_bytes: u64) -> Result<(), Error> {
    if shared.planted.has(Bug::KeepPayloadBits) {
        return Ok(());
    }
    shared.index.widen(shared.geometry.segment_bits(capacity_bytes));
    for partition in 0..shared.geometry.partitions() {
        let installer = shared.take_installer().await;
        let done = match shared.index.is_wide(partition) {
            true => Ok(()),
            false => {
                phase.set(Phase::Grow);
                rebuild(shared, io, &installer.catalog, partition, DEPTH_BESIDE_READERS).await.map(drop)
            }
        };
        phase.set(Phase::Resize);
        shared.return_installer(installer);
        done?;
        io.step().await;
    }
    Ok(())
}

/// Gives everything in memory another budget, of which the index gets its share at once. Pools, whose size is that of
/// the budget at opening, keep theirs until the store is opened again.
pub fn resize_memory(shared: &Shared, memory_bytes: u64) -> Result<(), Error> {
    let options = StoreOptions { memory_bytes, ..shared.options };
    options.check(shared.geometry.segment_bytes)?;
    let least_bytes = shared.pools_bytes + options.index_bytes_max();
    if memory_bytes < least_bytes {
        return Err(Error::Options(format!(
            "pools of {} bytes stay until the store is opened again, and leave the index less than its share of \
             {memory_bytes}: give {} or more, or stop the store and open it with that much",
            shared.pools_bytes,
            shared.pools_bytes * 4 / 3 + 1
        )));
    }
    let index_bytes = shared.index_bytes();
    if shared.options.full == Full::Error && index_bytes > options.index_bytes_max() {
        return Err(Error::Options(format!(
            "the index has {index_bytes} bytes, and of {memory_bytes} it may have {}: give more, or delete keys first",
            options.index_bytes_max()
        )));
    }
    shared.memory_bytes.store(memory_bytes, Ordering::SeqCst);
    // The levels follow; whoever has the installer now refreshes them when it comes back.
    let installer = lock(&shared.installer).take();
    if let Some(installer) = installer {
        shared.return_installer(installer);
    }
    shared.log.wake();
    shared.wakeup.wake();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_in_memory};
    use crate::media::io::run;
    use tapetum_drive::Env;

    #[test]
    fn who_waits_for_a_resize_sees_its_end() {
        let state = State { capacity_bytes: 1, result: Mutex::new(None), ended: Condvar::new() };
        let resizing = Resizing { state: Arc::new(state) };
        resizing.wait(Duration::from_millis(1));
        assert_eq!(resizing.result(), None);
        let maintenance = resizing.clone();
        let ending = Env::system().spawn("resize", move || maintenance.end(Ok(()))).unwrap();
        resizing.wait(Duration::from_secs(600));
        assert_eq!(resizing.result(), Some(Ok(())));
        ending.join().unwrap();
    }

    #[test]
    fn a_store_that_grows_writes_the_next_generation_of_its_superblock() {
        let (_drive, store) = store_in_memory(SMALL_BYTES, &small_options());
        let generation = || lock(&store.shared().superblock).generation;
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
            let shared = store.shared();
            let io = Io::new(drive.queue_pair(16).unwrap());
            // Nobody else looks at the levels anew.
            let installer = run(&io, shared.take_installer(), || false).unwrap();
            let share_bytes = options.index_bytes_max();
            for (index_bytes, is_refused) in [(share_bytes, false), (share_bytes + 1, full == Full::Error)] {
                shared.levels.segment_index_bytes.store(index_bytes - shared.index.bytes() as u64, Ordering::Relaxed);
                assert_eq!(resize_memory(shared, options.memory_bytes).is_err(), is_refused, "{index_bytes}");
            }
            shared.return_installer(installer);
        }
    }
}
