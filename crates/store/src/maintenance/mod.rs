//! Maintenance: flush, collection, the log's clock, freeing of extents, in bounded steps that one caller drives.
//!
//! In production that is one thread a store; in the simulator it is the simulator. A step polls each task once; a task
//! gives way after at most a partition or a few hundred kilobytes.

pub mod pace;
pub mod resize;
pub mod room;

use crate::error::Error;
use crate::hashed::collect;
use crate::hashed::flush;
use crate::hashed::item_count::{self, CountPace};
use crate::maintenance::resize::Resizing;
use crate::media::io::{Io, Task, lock, poll_once};
use crate::phase::{Phase, PhaseCell};
use crate::shared::Shared;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tapetum_drive::Purpose;

/// What a step came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// There is more to do at once.
    Busy,
    /// Something is on its way to or from flash, or one task waits for another.
    Waiting,
    /// There is nothing to do.
    Idle,
}

/// What makes a collection worth another try: a flush, a deletion of everything, or time for records to expire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Moment {
    flushes: u64,
    watermark: u64,
    seconds: u32,
}

impl Moment {
    fn now(shared: &Shared) -> Moment {
        const SECONDS: u32 = 4;
        Moment {
            flushes: shared.counters.flushes.load(Ordering::Relaxed),
            watermark: shared.watermark.load(Ordering::SeqCst),
            seconds: shared.now() / SECONDS,
        }
    }
}

/// However long it was away, it gives way again after this.
const WORKS_US_MAX: u64 = 10_000;

pub struct Maintenance {
    shared: Arc<Shared>,
    /// All tasks share it, so that what comes for one wakes the thread whatever the others wait for.
    io: Io,
    flush: Option<Task<Result<(), Error>>>,
    collect: Option<Task<Result<bool, Error>>>,
    resize: Option<Task<Result<(), Error>>>,
    count: Option<Task<()>>,
    count_pace: CountPace,
    flush_phase: Arc<PhaseCell>,
    collect_phase: Arc<PhaseCell>,
    resize_phase: Arc<PhaseCell>,
    /// When a collection found nothing to gain: another one is tried when something has changed.
    fruitless_at: Option<Moment>,
    /// When an eviction found no segment.
    nothing_to_evict_at: Option<Moment>,
    /// The collection under way is an eviction.
    evicting: bool,
    /// It was wound down: it begins nothing any more.
    over: bool,
}

impl Drop for Maintenance {
    /// Tasks that are given up must not leave buffers that the drive still uses.
    fn drop(&mut self) {
        self.io.drain();
    }
}

impl Maintenance {
    pub fn new(shared: Arc<Shared>, io: Io) -> Maintenance {
        Maintenance {
            shared,
            io,
            flush: None,
            collect: None,
            resize: None,
            count: None,
            count_pace: CountPace::default(),
            flush_phase: Arc::default(),
            collect_phase: Arc::default(),
            resize_phase: Arc::default(),
            fruitless_at: None,
            nothing_to_evict_at: None,
            evicting: false,
            over: false,
        }
    }

    /// One step. A failure poisons the store: it is not tried again.
    pub fn step(&mut self) -> Step {
        if self.over {
            return Step::Idle;
        }
        let shared = self.shared.clone();
        shared.log.advance(false, shared.drive.env().now_us());
        shared.access_clock.advance(shared.now(), || shared.log.stamp_last());
        let mut any = self.io.pump();
        if shared.reap_retired() {
            any = true;
            // A large value may have waited for it.
            shared.log.wake();
        }
        if let Err(error) = shared.log.poisoned() {
            if let Some(resizing) = self.resize_asked() {
                resizing.end(Err(error));
            }
            return Step::Idle;
        }
        shared.check_watermark();
        for step in
            [Maintenance::step_flush, Maintenance::step_collect, Maintenance::step_resize, Maintenance::step_count]
        {
            any |= step(self);
            if shared.log.poisoned().is_err() {
                return Step::Idle;
            }
        }
        shared.set_pace(self.collect.is_some());
        any |= self.io.gave_way();
        let idle = !self.is_changing() && (self.count.is_none() || shared.item_count.rests());
        match (any, idle) {
            (true, _) => Step::Busy,
            (false, true) => Step::Idle,
            (false, false) => Step::Waiting,
        }
    }

    fn step_flush(&mut self) -> bool {
        if self.flush.is_none()
            && let Some(buffer) = self.shared.sealed_buffer()
        {
            if flush::has_room(&self.shared) {
                let phase = self.flush_phase.clone();
                self.flush =
                    Some(Box::pin(flush::flush(self.shared.clone(), self.io.of(Purpose::Flush), phase, buffer)));
            } else if self.no_room_comes() {
                let why = format!("all room left is in {} segments", self.shared.unreadable.count());
                self.poison("a flush", Error::Io(format!("{why} that cannot be read")));
            }
        }
        let Some(done) = self.flush.as_mut().and_then(poll_once) else { return false };
        self.flush = None;
        self.give_back_memory();
        if let Err(error) = done {
            self.poison("a flush", error);
        }
        true
    }

    /// Whether what would make room for a flush cannot be read, so that whoever waits for the flush would wait in vain.
    fn no_room_comes(&self) -> bool {
        let (shared, moment) = (&self.shared, Moment::now(&self.shared));
        let flushing = self.flush_phase.get() != Phase::Idle;
        let collects = self.fruitless_at != Some(moment) && collect::is_needed(shared, flushing);
        let evicts = self.nothing_to_evict_at != Some(moment) && collect::must_evict(shared);
        let none_under_way = self.collect.is_none() && self.resize.is_none() && lock(&shared.retired).is_empty();
        shared.unreadable.count() > 0 && none_under_way && !collects && !evicts
    }

    fn step_collect(&mut self) -> bool {
        let moment = Moment::now(&self.shared);
        let flushing = self.flush_phase.get() != Phase::Idle;
        if self.collect.is_none() && self.fruitless_at != Some(moment) && collect::is_needed(&self.shared, flushing) {
            let phase = self.collect_phase.clone();
            self.collect = Some(Box::pin(collect::collect(self.shared.clone(), self.io.of(Purpose::Collect), phase)));
        }
        // Where a collection gains nothing, an eviction does.
        if self.collect.is_none() && self.nothing_to_evict_at != Some(moment) && collect::must_evict(&self.shared) {
            self.evicting = true;
            let phase = self.collect_phase.clone();
            self.collect = Some(Box::pin(collect::evict(self.shared.clone(), self.io.of(Purpose::Collect), phase)));
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
                // Room was made, or will not be: who waits for it looks again.
                self.shared.log.wake();
            }
            Err(error) => self.poison("a collection", error),
        }
        true
    }

    /// Whether flush, collector or a resize is under way.
    fn is_changing(&self) -> bool {
        self.flush.is_some() || self.collect.is_some() || self.resize.is_some()
    }

    fn step_count(&mut self) -> bool {
        let now_us = self.shared.drive.env().now_us();
        if self.count.is_none() && !self.is_changing() && self.count_pace.is_due(&self.shared, now_us) {
            self.count_pace.begin(now_us);
            self.count = Some(Box::pin(item_count::count(self.shared.clone(), self.io.of(Purpose::Scan))));
        }
        let Some(()) = self.count.as_mut().and_then(poll_once) else { return false };
        self.count = None;
        self.count_pace.end(now_us);
        true
    }

    /// A resize that was asked for and is not over.
    fn resize_asked(&self) -> Option<Resizing> {
        lock(&self.shared.resizing).clone().filter(|resizing| resizing.result().is_none())
    }

    fn step_resize(&mut self) -> bool {
        let Some(resizing) = self.resize_asked() else { return false };
        let task = self.resize.get_or_insert_with(|| {
            let (shared, io, phase) = (self.shared.clone(), self.io.clone(), self.resize_phase.clone());
            Box::pin(resize::grow(shared, io, phase, resizing.capacity_bytes()))
        });
        let Some(done) = poll_once(task) else { return false };
        self.resize = None;
        resizing.end(done);
        true
    }

    /// A step towards the end: what is in the middle of an install comes to its end, the rest is given up, as a crash
    /// would have it, and nothing is begun. Whether it is over; then the installer is there, or was lost with a failure.
    pub fn wind_down(&mut self) -> bool {
        let shared = self.shared.clone();
        self.io.pump();
        if lock(&shared.installer).is_some() || shared.log.poisoned().is_err() {
            // Nothing is half installed, or nothing will be whole any more. Tasks that are given up must not leave
            // buffers that the drive still uses.
            if self.io.in_flight() > 0 {
                return false;
            }
            (self.flush, self.collect, self.resize, self.count) = (None, None, None, None);
        }
        if let Some(done) = self.flush.as_mut().and_then(poll_once) {
            self.flush = None;
            done.unwrap_or_else(|error| self.poison("a flush", error));
        }
        // Nothing is built on what failed.
        if shared.log.poisoned().is_ok()
            && let Some(done) = self.collect.as_mut().and_then(poll_once)
        {
            self.collect = None;
            done.map(|_| ()).unwrap_or_else(|error| self.poison("a collection", error));
        }
        if let Some(done) = self.resize.as_mut().and_then(poll_once) {
            self.resize = None;
            if let Some(resizing) = self.resize_asked() {
                resizing.end(done);
            }
        }
        self.over = !self.is_changing();
        if self.over {
            if let Some(resizing) = self.resize_asked() {
                resizing.end(Err(Error::Io("the store was closed before it was resized: try again".into())));
            }
            shared.reap_retired();
        }
        self.over
    }

    /// What the manifest is written with.
    pub fn manifest_io(&self) -> &Io {
        &self.io
    }

    /// A flush and a collection work on a few megabytes of lists, which the allocator would keep. A simulation has many stores
    /// in one process.
    fn give_back_memory(&self) {
        #[cfg(target_env = "gnu")]
        if !self.shared.drive.env().is_simulated() {
            // SAFETY: no pointers; safe at any time from any thread.
            unsafe { libc::malloc_trim(0) };
        }
    }

    fn poison(&self, what: &str, error: Error) {
        tracing::error!("{what} failed: {error}");
        self.shared.log.poison(what, error);
    }

    /// What waits between its steps. Whoever steps lets go of this maintenance before: others ask it for its phases.
    pub fn rest(&self) -> Rest {
        Rest { shared: self.shared.clone(), io: self.io.clone(), gives_way_from_us: 0 }
    }

    /// What flush, collector and a resize are doing.
    pub fn phases(&self) -> [Phase; 3] {
        [self.flush_phase.get(), self.collect_phase.get(), self.resize_phase.get()]
    }
}

/// Waits between the steps of a [`Maintenance`], without it.
pub struct Rest {
    shared: Arc<Shared>,
    io: Io,
    gives_way_from_us: u64,
}

impl Rest {
    /// Waits until a step may get further than the one that came to this.
    pub fn wait(&mut self, step: Step) {
        match step {
            Step::Busy => self.give_way(),
            Step::Waiting if self.io.in_flight() > 0 => self.io.wait(Duration::from_millis(2)),
            // For the log, the installer or memory.
            Step::Waiting => self.shared.wakeup.sleep(Duration::from_micros(200)),
            Step::Idle => self.shared.wakeup.sleep(Duration::from_millis(50)),
        }
    }

    /// Lets whoever waits for this processor go first, and then works for as long as that took: a session is back in some
    /// microseconds, but another program that computes keeps a processor for milliseconds each time.
    fn give_way(&mut self) {
        let gave_us = self.shared.drive.env().now_us();
        if gave_us >= self.gives_way_from_us {
            std::thread::yield_now();
            let back_us = self.shared.drive.env().now_us();
            self.gives_way_from_us = back_us + back_us.saturating_sub(gave_us).min(WORKS_US_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_in_memory};

    #[test]
    fn phases_are_told_while_maintenance_sleeps() {
        const PATIENCE_US: u64 = 10_000_000;
        let (drive, store) = store_in_memory(SMALL_BYTES, &small_options());
        let until_us = drive.env().now_us() + PATIENCE_US;
        // It sleeps for 50 ms at a time: whoever waited for that would need twice as long as this has.
        for _ in 0..400 {
            store.phases();
            assert!(drive.env().now_us() < until_us, "each waits for the end of a sleep");
        }
    }
}
