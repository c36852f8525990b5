//! Maintenance: a list of jobs ([`Job`]), the log's clock, freeing of extents, in bounded steps that one caller drives.
//!
//! In production that is one thread a store; in the simulator it is the simulator. A step gives each job a step, which polls each
//! of its tasks once; a task gives way after at most a partition or a few hundred kilobytes.

mod growth;
mod keyspace_job;
pub mod resize;
pub mod room;

use crate::base::Base;
use crate::engine::Engine;
use crate::engine::job::{Job, Others};
use crate::maintenance::growth::GrowthJob;
use crate::maintenance::keyspace_job::KeyspaceJob;
use crate::media::io::{Io, lock};
use crate::phase::Phase;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// There is more to do at once.
    Busy,
    /// Something is on its way to or from flash, or one task waits for another.
    Waiting,
    /// There is nothing to do.
    Idle,
}

/// However long it was away, it gives way again after this.
const WORKS_US_MAX: u64 = 10_000;

pub struct Maintenance {
    base: Arc<Base>,
    /// All tasks share it, so that what comes for one wakes the thread whatever the others wait for.
    io: Io,
    /// In the order of their steps.
    jobs: Vec<Box<dyn Job>>,
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
    pub fn new(base: &Arc<Base>, engines: &[Arc<dyn Engine>], io: Io) -> Maintenance {
        let mut jobs: Vec<_> = engines.iter().flat_map(|engine| engine.clone().jobs(&io)).collect();
        jobs.push(Box::new(KeyspaceJob::new(base)));
        jobs.push(Box::new(GrowthJob::new(base)));
        Maintenance { base: base.clone(), io, jobs, over: false }
    }

    /// One step. A failure poisons the store: it is not tried again.
    pub fn step(&mut self) -> Step {
        if self.over {
            return Step::Idle;
        }
        let base = self.base.clone();
        base.log.advance(false, base.drive.env().now_us());
        let mut any = self.io.pump();
        if let Err(error) = base.log.poisoned() {
            self.jobs.iter_mut().for_each(|job| job.fail(&error));
            self.give_up_tasks();
            return Step::Idle;
        }
        for number in 0..self.jobs.len() {
            let others = self.others_of(number);
            any |= self.jobs[number].step(others);
            if base.log.poisoned().is_err() {
                return Step::Idle;
            }
        }
        any |= self.io.gave_way();
        match (any, self.jobs.iter().all(|job| job.rests())) {
            (true, _) => Step::Busy,
            (false, true) => Step::Idle,
            (false, false) => Step::Waiting,
        }
    }

    fn others_of(&self, number: usize) -> Others {
        let mut others = self.jobs.iter().enumerate().filter(|(other, _)| *other != number);
        Others { are_changing: others.any(|(_, job)| job.is_changing()) }
    }

    /// A step towards the end: what is in the middle of an install comes to its end, the rest is given up, as a crash
    /// would have it, and nothing is begun. Whether it is over; then the installer is there, or was lost with a failure.
    pub fn wind_down(&mut self) -> bool {
        self.io.pump();
        if lock(&self.base.installer).is_some() || self.base.log.poisoned().is_err() {
            // Nothing is half installed, or nothing will be whole any more.
            if !self.give_up_tasks() {
                return false;
            }
        }
        self.jobs.iter_mut().for_each(|job| job.wind_down());
        self.over = !self.jobs.iter().any(|job| job.is_changing());
        if self.over {
            self.jobs.iter_mut().for_each(|job| job.close());
        }
        self.over
    }

    /// Drops the tasks of all jobs, with the local memory that they hold: reads need it, of a failed store too. Whether it could; tasks must
    /// not leave buffers that the drive still uses.
    fn give_up_tasks(&mut self) -> bool {
        let is_drained = self.io.in_flight() == 0;
        if is_drained {
            self.jobs.iter_mut().for_each(|job| job.give_up());
        }
        is_drained
    }

    pub fn manifest_io(&self) -> &Io {
        &self.io
    }

    /// What waits between its steps. Whoever steps lets go of this maintenance before: others ask it for its phases.
    pub fn rest(&self) -> Rest {
        Rest { base: self.base.clone(), io: self.io.clone(), gives_way_from_us: 0 }
    }

    /// What its jobs are doing: flush, collector and a resize of hashed keyspaces first, in this order.
    pub fn phases(&self) -> Vec<Phase> {
        self.jobs.iter().flat_map(|job| job.phases()).collect()
    }
}

/// Waits between the steps of a [`Maintenance`], without it.
pub struct Rest {
    base: Arc<Base>,
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
            Step::Waiting => self.base.wakeup.sleep(Duration::from_micros(200)),
            Step::Idle => self.base.wakeup.sleep(Duration::from_millis(50)),
        }
    }

    /// Lets whoever waits for this processor go first, and then works for as long as that took: a session is back in some
    /// microseconds, but another program that computes keeps a processor for milliseconds each time.
    fn give_way(&mut self) {
        let gave_us = self.base.drive.env().now_us();
        if gave_us >= self.gives_way_from_us {
            std::thread::yield_now();
            let back_us = self.base.drive.env().now_us();
            self.gives_way_from_us = back_us + back_us.saturating_sub(gave_us).min(WORKS_US_MAX);
        }
    }
}
