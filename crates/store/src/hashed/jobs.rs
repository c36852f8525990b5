//! The hashed engine's jobs of maintenance: flush and collector, which wait for each other's room, and the count of items.

use crate::hashed::item_count::{self, CountPace};
use crate::hashed::purge::{self, Progress, Purge, PurgedKeyspaces};
use crate::hashed::resize::ResizeJob;
use crate::hashed::{HashedEngine, collect, flush};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_base::engine::job::{Job, Others};
use tapetum_base::error::Error;
use tapetum_base::media::extents::ExtentReservation;
use tapetum_base::media::io::{Io, Task, poll_once};
use tapetum_base::phase::{Phase, PhaseCell};
use tapetum_drive::Purpose;

/// Flush, collector and purge; resizes; the count, which comes when nothing else is under way.
pub fn hashed_jobs(engine: &Arc<HashedEngine>, io: &Io) -> Vec<Box<dyn Job>> {
    vec![
        Box::new(SegmentJob::new(engine, io)),
        Box::new(ResizeJob::new(engine, io)),
        Box::new(CountJob::new(engine, io)),
    ]
}

/// State whose change makes another collection worth a try: flushes, deletions of everything, and time, in which records expire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct JobMoment {
    flushes: u64,
    deletions: u64,
    seconds: u32,
}

impl JobMoment {
    fn now(engine: &HashedEngine) -> JobMoment {
        const SECONDS: u32 = 4;
        JobMoment {
            flushes: engine.counters.flushes.load(Ordering::Relaxed),
            deletions: engine.keyspaces.changes(),
            seconds: engine.now() / SECONDS,
        }
    }
}

/// Writes segments: flushes, collections, evictions.
struct SegmentJob {
    engine: Arc<HashedEngine>,
    io: Io,
    flush: Option<Task<Result<(), Error>>>,
    collect: Option<Task<Result<bool, Error>>>,
    purge: PurgeTurn,
    /// The buffer that found no room for its flush, and whether it needs none.
    without_room: Option<(u64, bool)>,
    flush_phase: Arc<PhaseCell>,
    collect_phase: Arc<PhaseCell>,
    /// When a collection found nothing to gain. Another one is tried when something has changed.
    fruitless_at: Option<JobMoment>,
    /// When an eviction found no segment.
    nothing_to_evict_at: Option<JobMoment>,
    /// The collection under way is an eviction.
    evicting: bool,
}

/// The purge, which takes turns with flushes.
#[derive(Default)]
struct PurgeTurn {
    task: Option<Task<(Purge, Result<Progress, Error>)>>,
    /// Between its steps.
    purge: Option<Purge>,
    purged: PurgedKeyspaces,
    /// A flush has ended since its last step.
    is_next: bool,
    phase: Arc<PhaseCell>,
}

impl SegmentJob {
    fn new(engine: &Arc<HashedEngine>, io: &Io) -> SegmentJob {
        SegmentJob {
            engine: engine.clone(),
            io: io.clone(),
            flush: None,
            collect: None,
            purge: PurgeTurn::default(),
            without_room: None,
            flush_phase: Arc::default(),
            collect_phase: Arc::default(),
            fruitless_at: None,
            nothing_to_evict_at: None,
            evicting: false,
        }
    }

    fn step_flush(&mut self, others: Others) -> bool {
        if self.flush.is_none()
            && self.purge.task.is_none()
            && let Some(buffer) = self.engine.buffers.sealed()
        {
            if let Some(reserved) = self.reserve(buffer) {
                let (io, phase) = (self.io.of(Purpose::Flush), self.flush_phase.clone());
                self.flush = Some(Box::pin(flush::flush(self.engine.clone(), io, phase, buffer, reserved)));
            } else if self.no_room_comes(others) {
                let why = format!("all room left is in {} segments", self.engine.segments.unreadable.count());
                self.poison("a flush", Error::Io(format!("{why} that cannot be read")));
            }
        }
        let Some(done) = self.flush.as_mut().and_then(poll_once) else { return false };
        self.flush = None;
        self.purge.is_next = true;
        self.give_back_memory();
        if let Err(error) = done {
            self.poison("a flush", error);
        }
        true
    }

    /// Reserves room for the flush of a sealed buffer. If there is none, it is checked, once, whether the buffer needs any.
    fn reserve(&mut self, buffer: u64) -> Option<ExtentReservation> {
        let engine = &self.engine;
        flush::reserve(engine).or_else(|| {
            if self.without_room.is_none_or(|(of, _)| of != buffer) {
                self.without_room = Some((buffer, flush::is_of_deletions(engine, buffer)));
            }
            self.without_room.filter(|(_, needs_none)| *needs_none).and_then(|_| flush::reserve_none(engine))
        })
    }

    /// A step of the purge, between flushes: one after each flush, and as many as there is time for while none waits.
    fn step_purge(&mut self) -> bool {
        let PurgeTurn { task, purge, purged, .. } = &mut self.purge;
        if task.is_none() {
            *purge = purge.take().or_else(|| purged.begin(&self.engine));
            let waits = self.engine.buffers.sealed().is_some() && flush::has_room(&self.engine);
            if self.flush.is_some() || (waits && !self.purge.is_next) {
                return false;
            }
            self.purge.is_next = false;
            let Some(purge) = self.purge.purge.take() else { return false };
            let (engine, io, phase) = (self.engine.clone(), self.io.of(Purpose::Collect), self.purge.phase.clone());
            self.purge.task = Some(Box::pin(purge::step(engine, io, phase, purge)));
        }
        let Some((purge, done)) = self.purge.task.as_mut().and_then(poll_once) else { return false };
        self.purge.task = None;
        match done {
            Ok(Progress::Done) => {
                self.purge.purged.end(&purge);
                self.engine.forget_count();
                // Room was made: sessions that wait for it check again.
                self.fruitless_at = None;
                self.engine.log.wake();
            }
            Ok(progress) => {
                self.purge.purge = Some(purge);
                return progress == Progress::More;
            }
            Err(error) => self.poison("a purge", error),
        }
        true
    }

    /// Whether room for a flush could come only from segments that cannot be read, so that waiting for the flush would be in vain.
    fn no_room_comes(&self, others: Others) -> bool {
        let (engine, moment) = (&self.engine, JobMoment::now(&self.engine));
        let collects = self.fruitless_at != Some(moment) && collect::is_needed(engine);
        let evicts = self.nothing_to_evict_at != Some(moment) && collect::must_evict(engine);
        let none_under_way = self.collect.is_none() && !others.are_changing && !engine.segments.has_retired();
        engine.segments.unreadable.count() > 0 && none_under_way && !collects && !evicts
    }

    fn step_collect(&mut self) -> bool {
        let moment = JobMoment::now(&self.engine);
        if self.collect.is_none() && self.fruitless_at != Some(moment) && collect::is_needed(&self.engine) {
            let phase = self.collect_phase.clone();
            self.collect = Some(Box::pin(collect::collect(self.engine.clone(), self.io.of(Purpose::Collect), phase)));
        }
        // If a collection gains nothing, an eviction does.
        if self.collect.is_none() && self.nothing_to_evict_at != Some(moment) && collect::must_evict(&self.engine) {
            self.evicting = true;
            let phase = self.collect_phase.clone();
            self.collect = Some(Box::pin(collect::evict(self.engine.clone(), self.io.of(Purpose::Collect), phase)));
        }
        let Some(done) = self.collect.as_mut().and_then(poll_once) else { return false };
        self.collect = None;
        self.give_back_memory();
        match done {
            Ok(gained) => {
                let evicted = std::mem::take(&mut self.evicting);
                match (gained, evicted) {
                    (true, _) => (self.fruitless_at, self.nothing_to_evict_at) = (None, None),
                    (false, false) => self.fruitless_at = Some(moment),
                    (false, true) => self.nothing_to_evict_at = Some(moment),
                }
                // Room was made, or none will come: sessions that wait for it check again.
                self.engine.log.wake();
            }
            Err(error) => self.poison("a collection", error),
        }
        true
    }

    /// A flush and a collection work on a few megabytes of lists, which the allocator would keep. A simulation has many stores
    /// in one process.
    fn give_back_memory(&self) {
        #[cfg(target_env = "gnu")]
        if !self.engine.drive.env().is_simulated() {
            // SAFETY: no pointers; safe at any time from any thread.
            unsafe { libc::malloc_trim(0) };
        }
    }

    fn poison(&self, what: &str, error: Error) {
        tracing::error!("{what} failed: {error}");
        self.engine.log.poison(what, error);
    }
}

impl Job for SegmentJob {
    fn step(&mut self, others: Others) -> bool {
        let engine = &self.engine;
        engine.access_clock.advance(engine.now(), || engine.log.stamp_last());
        engine.check_watermark();
        let mut any = engine.segments.reap(&engine.extents, || engine.are_extents_wanted());
        if any {
            // A large value may have waited for it.
            engine.log.wake();
        }
        any |= self.step_flush(others);
        if self.engine.log.poisoned().is_err() {
            return any;
        }
        any |= self.step_purge();
        if self.engine.log.poisoned().is_err() {
            return any;
        }
        any |= self.step_collect();
        self.engine.set_pace(self.collect.is_some());
        any
    }

    fn is_changing(&self) -> bool {
        self.flush.is_some() || self.collect.is_some() || self.purge.task.is_some()
    }

    fn give_up(&mut self) {
        (self.flush, self.collect, self.purge.task) = (None, None, None);
        for phase in [&self.flush_phase, &self.collect_phase, &self.purge.phase] {
            phase.set(Phase::Idle);
        }
    }

    fn wind_down(&mut self) {
        if let Some(done) = self.flush.as_mut().and_then(poll_once) {
            self.flush = None;
            done.unwrap_or_else(|error| self.poison("a flush", error));
        }
        // A failed store gets no further steps.
        if self.engine.log.poisoned().is_ok()
            && let Some((_, done)) = self.purge.task.as_mut().and_then(poll_once)
        {
            self.purge.task = None;
            done.map(drop).unwrap_or_else(|error| self.poison("a purge", error));
        }
        if self.engine.log.poisoned().is_ok()
            && let Some(done) = self.collect.as_mut().and_then(poll_once)
        {
            self.collect = None;
            done.map(|_| ()).unwrap_or_else(|error| self.poison("a collection", error));
        }
    }

    fn close(&mut self) {
        self.engine.segments.reap(&self.engine.extents, || false);
    }

    fn phases(&self) -> Vec<Phase> {
        vec![self.flush_phase.get(), self.collect_phase.get()]
    }
}

/// Counts items, while nothing is written.
struct CountJob {
    engine: Arc<HashedEngine>,
    io: Io,
    count: Option<Task<()>>,
    pace: CountPace,
}

impl CountJob {
    fn new(engine: &Arc<HashedEngine>, io: &Io) -> CountJob {
        CountJob { engine: engine.clone(), io: io.clone(), count: None, pace: CountPace::default() }
    }
}

impl Job for CountJob {
    fn step(&mut self, others: Others) -> bool {
        let now_us = self.engine.drive.env().now_us();
        if self.count.is_none() && !others.are_changing && self.pace.is_due(&self.engine, now_us) {
            self.pace.begin(now_us);
            self.count = Some(Box::pin(item_count::count(self.engine.clone(), self.io.of(Purpose::Scan))));
        }
        let Some(()) = self.count.as_mut().and_then(poll_once) else { return false };
        self.count = None;
        self.pace.end(now_us);
        true
    }

    fn is_changing(&self) -> bool {
        false
    }

    fn rests(&self) -> bool {
        self.count.is_none() || self.engine.item_count.rests()
    }

    fn give_up(&mut self) {
        self.count = None;
    }

    fn wind_down(&mut self) {}
}
