//! One engine for all queue pairs of a drive with compute units.
//!
//! ```text
//! queue pairs ── submit ─► core, under one lock ◄── take, complete ── threads of the units, by program
//!      ▲                       │         ▲
//!      └── mailboxes ◄─ ends ──┘         └───────── the mover: sources, sinks, programs without units
//! ```
//! 1. One lock guards the core. Nobody holds it while a task runs or while asleep.
//! 2. A thread that changes the core wakes, when it unlocks, those that have work now: a unit of each program that has a task, the mover,
//!    the queue pairs whose pipelines have ended. A woken unit wakes the next if there is more.
//! 3. A queue pair that leaves waits until all its pipelines have ended, so that no task touches what its host lent.
//! 4. The engine's threads hold no reference to the engine. They end when the last reference is dropped.

use super::core::EngineCore;
use super::mailbox::Mailbox;
use super::mover::Mover;
use super::{EngineCounters, EngineOptions, JobEnd, units};
use crate::counters::DriveCounters;
use crate::device::program::Program;
use crate::env::Env;
use crate::event::Event;
use crate::flash::Flash;
use crate::locks::whole;
use crate::memory::LocalMemory;
use crate::protocol::ProgramId;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The parts of a drive that an engine works with.
pub(crate) struct EngineGround<'a> {
    pub flash: &'a dyn Flash,
    pub local: &'a LocalMemory,
    pub programs: &'a Arc<[Box<dyn Program>]>,
    pub env: &'a Env,
    pub stages: &'a Arc<EngineCounters>,
    pub counters: &'a Arc<DriveCounters>,
}

pub(super) struct EngineState {
    pub core: EngineCore,
    /// By owner.
    mailboxes: BTreeMap<u64, Arc<Mailbox>>,
    owner_next: u64,
    /// Sleeping units, by pool.
    idle: Vec<usize>,
    /// Until when the mover sleeps. `None` if it is awake or was woken.
    pub mover_sleeps_until_us: Option<u64>,
    pub is_stopping: bool,
}

/// The units of one program.
struct UnitPool {
    program: ProgramId,
    has_task: Condvar,
}

/// State that the engine's threads share.
pub(super) struct EngineShared {
    pub programs: Arc<[Box<dyn Program>]>,
    pub local: LocalMemory,
    pub env: Env,
    state: Mutex<EngineState>,
    pools: Vec<UnitPool>,
    pub mover_event: Event,
    /// A pipeline of a leaving queue pair has ended.
    has_left: Condvar,
    /// The mover has panicked: the engine makes no further progress.
    is_lost: AtomicBool,
    /// Programs of commands that units run now, over what hosts lent.
    executing: AtomicUsize,
}

/// The locked core. Dropping the guard wakes the threads that have something to do.
pub(crate) struct EngineGuard<'a> {
    shared: &'a EngineShared,
    /// `None` only during drop and sleep.
    state: Option<MutexGuard<'a, EngineState>>,
}

/// A unit runs a program of a command.
pub(super) struct ExecutionMark<'a>(&'a AtomicUsize);

impl Drop for ExecutionMark<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Threads to wake.
#[derive(Default)]
struct EngineNews {
    ends: Vec<(Arc<Mailbox>, JobEnd)>,
    /// Pools that have both a task and a sleeping unit.
    pools: Vec<usize>,
    mover: bool,
    has_left: bool,
}

impl EngineShared {
    pub fn lock(&self) -> EngineGuard<'_> {
        EngineGuard { shared: self, state: Some(whole(self.state.lock())) }
    }

    /// Locks even if a thread panicked with the lock held; for cleaning up.
    fn lock_in_any_case(&self) -> MutexGuard<'_, EngineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a program has threads of its own, which may be dead.
    pub fn has_units(&self, program: ProgramId) -> bool {
        self.pools.iter().any(|pool| pool.program == program)
    }

    fn settle(&self, state: &mut EngineState) -> EngineNews {
        let mut news = EngineNews::default();
        while let Some(end) = state.core.ended() {
            match state.mailboxes.get(&end.owner) {
                Some(mailbox) => news.ends.push((mailbox.clone(), end)),
                None => news.has_left = true,
            }
        }
        let mut has_moves = state.is_stopping;
        for program in state.core.waiting() {
            match self.pools.iter().position(|pool| pool.program == program) {
                Some(pool) if state.idle[pool] > 0 => news.pools.push(pool),
                Some(_) => {}
                None => has_moves = true,
            }
        }
        if let Some(until_us) = state.mover_sleeps_until_us {
            let is_sooner = state.core.deadline_next_us().is_some_and(|deadline_us| deadline_us < until_us);
            if has_moves || is_sooner {
                state.mover_sleeps_until_us = None;
                news.mover = true;
            }
        }
        news
    }

    fn tell(&self, news: EngineNews) {
        news.pools.into_iter().for_each(|pool| self.pools[pool].has_task.notify_one());
        if news.mover {
            self.mover_event.raise();
        }
        news.ends.into_iter().for_each(|(mailbox, end)| mailbox.put(end));
        if news.has_left {
            self.has_left.notify_all();
        }
    }

    /// The mover is gone while pipelines are running. Its moves have ended, and units take nothing more: only what they run now touches what hosts lent.
    pub fn lose(&self) {
        let mut state = self.lock_in_any_case();
        state.is_stopping = true;
        self.is_lost.store(true, Ordering::Release);
        state.mailboxes.values().for_each(|mailbox| mailbox.ring());
        self.has_left.notify_all();
    }

    /// Counts a program of a command that a unit has just taken, with the lock held, until the guard goes.
    pub fn begin_execution(&self) -> ExecutionMark<'_> {
        self.executing.fetch_add(1, Ordering::AcqRel);
        ExecutionMark(&self.executing)
    }
}

impl<'a> EngineGuard<'a> {
    fn state(&self) -> &EngineState {
        let Some(state) = &self.state else { unreachable!("it is away only while it is dropped") };
        state
    }

    pub(super) fn state_mut(&mut self) -> &mut EngineState {
        let Some(state) = &mut self.state else { unreachable!("it is away only while it is dropped") };
        state
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.state().is_stopping
    }

    /// Sleeps, as a unit of this pool, until there may be a task for it.
    pub(super) fn sleep(mut self, pool: usize) -> EngineGuard<'a> {
        let shared = self.shared;
        let Some(mut state) = self.state.take() else { unreachable!("it is away only while it is dropped") };
        // Called with the lock held, so a thread woken here may have to wait until `wait` releases it. That is rare.
        let news = shared.settle(&mut state);
        shared.tell(news);
        state.idle[pool] += 1;
        let mut state = whole(shared.pools[pool].has_task.wait(state));
        state.idle[pool] -= 1;
        EngineGuard { shared, state: Some(state) }
    }
}

impl Deref for EngineGuard<'_> {
    type Target = EngineCore;

    fn deref(&self) -> &EngineCore {
        &self.state().core
    }
}

impl DerefMut for EngineGuard<'_> {
    fn deref_mut(&mut self) -> &mut EngineCore {
        &mut self.state_mut().core
    }
}

impl Drop for EngineGuard<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        if std::thread::panicking() {
            drop(state);
            // The mover finds the lock poisoned and reports to the queue pairs.
            return self.shared.mover_event.raise();
        }
        let news = self.shared.settle(&mut state);
        drop(state);
        self.shared.tell(news);
    }
}

/// The engine and its threads. Dropping it waits for them.
pub(crate) struct SharedEngine {
    shared: Arc<EngineShared>,
    threads: Vec<JoinHandle<()>>,
}

impl SharedEngine {
    /// # Errors
    /// When local memory has no room for the sub-buffers, or the operating system no more threads, rings or descriptors.
    pub fn start(ground: EngineGround<'_>, options: &EngineOptions) -> io::Result<SharedEngine> {
        let EngineGround { flash, local, programs, env, stages, counters } = ground;
        let core = EngineCore::new(local, flash.sector_bytes(), programs, stages.clone(), options);
        let core = core.ok_or_else(|| {
            let bytes = options.sub_buffer_bytes_total();
            io::Error::other(format!("local memory has no {bytes} bytes for sub-buffers: use fewer or smaller ones"))
        })?;
        let pool = |program| UnitPool { program, has_task: Condvar::new() };
        let pools: Vec<UnitPool> = options.units.iter().map(|count| pool(count.program)).collect();
        let state = EngineState {
            core,
            mailboxes: BTreeMap::new(),
            owner_next: 1,
            idle: vec![0; pools.len()],
            mover_sleeps_until_us: None,
            is_stopping: false,
        };
        let shared = Arc::new(EngineShared {
            programs: programs.clone(),
            local: local.clone(),
            env: env.clone(),
            state: Mutex::new(state),
            pools,
            mover_event: Event::new()?,
            has_left: Condvar::new(),
            is_lost: AtomicBool::new(false),
            executing: AtomicUsize::new(0),
        });
        let queue = flash.open_queue_of_one_thread(&local.clone().into(), Mover::FLASH_DEPTH)?;
        let mut engine = SharedEngine { shared: shared.clone(), threads: Vec::new() };
        let mover = Mover::new(queue, shared.clone(), counters.clone());
        engine.threads.push(env.spawn_drive_thread("tapetum-mover", move || mover.run())?);
        units::start(&shared, options, &mut engine.threads)?;
        Ok(engine)
    }
}

impl Drop for SharedEngine {
    fn drop(&mut self) {
        self.shared.lock_in_any_case().is_stopping = true;
        self.shared.mover_event.raise();
        self.shared.pools.iter().for_each(|pool| pool.has_task.notify_all());
        self.threads.drain(..).for_each(|thread| {
            // A thread that panicked has reported it.
            let _ = thread.join();
        });
    }
}

/// A queue pair's handle to the engine. Dropping it waits until none of its pipelines is left.
pub(crate) struct EngineClient {
    engine: Arc<SharedEngine>,
    owner: u64,
    mailbox: Arc<Mailbox>,
    /// Ends taken from the mailbox.
    ends: VecDeque<JobEnd>,
}

impl EngineClient {
    pub fn join(engine: Arc<SharedEngine>) -> io::Result<EngineClient> {
        let mailbox = Arc::new(Mailbox::new()?);
        let mut guard = engine.shared.lock();
        let state = guard.state_mut();
        let owner = state.owner_next;
        state.owner_next += 1;
        state.mailboxes.insert(owner, mailbox.clone());
        drop(guard);
        Ok(EngineClient { engine, owner, mailbox, ends: VecDeque::new() })
    }

    pub fn owner(&self) -> u64 {
        self.owner
    }

    pub fn lock(&self) -> EngineGuard<'_> {
        self.engine.shared.lock()
    }

    /// The next of its pipelines that has ended.
    ///
    /// # Panics
    /// If the engine was lost, because no end would ever come.
    pub fn ended(&mut self) -> Option<JobEnd> {
        if self.ends.is_empty() {
            self.ends = self.mailbox.take();
            let is_lost = self.ends.is_empty() && self.engine.shared.is_lost.load(Ordering::Acquire);
            assert!(!is_lost, "the drive's compute engine has panicked with pipelines on their way");
        }
        self.ends.pop_front()
    }

    /// Whether a program has threads of its own, which may be dead.
    pub fn has_units(&self, program: ProgramId) -> bool {
        self.engine.shared.has_units(program)
    }

    pub fn has_ended(&self) -> bool {
        !self.ends.is_empty() || self.mailbox.has_ends()
    }

    pub fn event_fd(&self) -> RawFd {
        self.mailbox.event_fd()
    }
}

impl Drop for EngineClient {
    fn drop(&mut self) {
        let shared = &*self.engine.shared;
        let mut guard = EngineGuard { shared, state: Some(shared.lock_in_any_case()) };
        guard.state_mut().mailboxes.remove(&self.owner);
        if !shared.is_lost.load(Ordering::Acquire) {
            guard.cancel_all(self.owner);
        }
        drop(guard);
        let mut state = shared.lock_in_any_case();
        while state.core.in_flight_of(self.owner) > 0 && !shared.is_lost.load(Ordering::Acquire) {
            state = shared.has_left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        while shared.is_lost.load(Ordering::Acquire) && shared.executing.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
    }
}
