//! Maintenance: a list of jobs ([`Job`]), the log's clock and the freeing of extents, in bounded steps that one caller drives.
//!
//! In production the caller is one thread a store, in the simulator the simulator. A step gives each job a step, which polls each of its tasks once.
//! A task yields after at most a partition or a few hundred kilobytes.

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
    /// A command is in flight, or one task waits for another.
    Waiting,
    /// There is nothing to do.
    Idle,
}

/// The most microseconds of work between two yields, however long the last yield took.
const WORKS_US_MAX: u64 = 10_000;

pub struct Maintenance {
    base: Arc<Base>,
    /// All tasks share it, so that a completion for one task wakes the thread, whatever the others wait for.
    io: Io,
    /// In the order of their steps.
    jobs: Vec<Box<dyn Job>>,
    /// Maintenance was wound down and begins nothing more.
    over: bool,
}

impl Drop for Maintenance {
    /// Dropped tasks must not leave buffers that the drive still uses.
    fn drop(&mut self) {
        self.io.drain();
    }
}

impl Maintenance {
    /// The jobs of the engines, `more` jobs, and the base's own.
    pub fn new(base: &Arc<Base>, engines: &[Arc<dyn Engine>], more: Vec<Box<dyn Job>>, io: Io) -> Maintenance {
        let mut jobs: Vec<_> = engines.iter().flat_map(|engine| engine.clone().jobs(&io)).collect();
        jobs.extend(more);
        jobs.push(Box::new(KeyspaceJob::new(base)));
        jobs.push(Box::new(GrowthJob::new(base)));
        Maintenance { base: base.clone(), io, jobs, over: false }
    }

    /// Takes one step. A failure poisons the store and is not retried.
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

    /// Takes a step of winding down. A task in the middle of an install is completed, others are dropped as a crash would do, and nothing is begun.
    /// Returns whether it is over. By then the installer was given back, or was lost in a failure.
    pub fn wind_down(&mut self) -> bool {
        self.io.pump();
        if lock(&self.base.installer).is_some() || self.base.log.poisoned().is_err() {
            // Either no install is half done, or none can be completed any more.
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

    /// Drops the tasks of all jobs and frees their local memory: reads need it, also in a failed store. Returns whether that was possible: tasks
    /// must not leave buffers that the drive still uses.
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

    /// Waits between the steps. The caller releases this maintenance first, as others ask it for its phases.
    pub fn rest(&self) -> Rest {
        Rest { base: self.base.clone(), io: self.io.clone(), gives_way_from_us: 0 }
    }

    /// The phases of its jobs: flush, collector and a resize of hashed keyspaces come first, in this order.
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
    /// Waits until the next step may make more progress than the one that returned `step`.
    pub fn wait(&mut self, step: Step) {
        match step {
            Step::Busy => self.give_way(),
            Step::Waiting if self.io.in_flight() > 0 => self.io.wait(Duration::from_millis(2)),
            // For the log, the installer or memory.
            Step::Waiting => self.base.wakeup.sleep(Duration::from_micros(200)),
            Step::Idle => self.base.wakeup.sleep(Duration::from_millis(50)),
        }
    }

    /// Yields to threads that wait for this processor, then works for as long as the yield took. A session is back within microseconds, but a
    /// computing program keeps the processor for milliseconds each time.
    fn give_way(&mut self) {
        let gave_us = self.base.drive.env().now_us();
        if gave_us >= self.gives_way_from_us {
            std::thread::yield_now();
            let back_us = self.base.drive.env().now_us();
            self.gives_way_from_us = back_us + back_us.saturating_sub(gave_us).min(WORKS_US_MAX);
        }
    }
}
