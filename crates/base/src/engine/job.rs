//! A job of maintenance: recurring work, in bounded steps.
//!
//! 1. A step never waits: it begins work that is due, and polls the task in progress once.
//! 2. A failure that leaves the store in doubt poisons the log. After that no job gets another step.
//! 3. A dropped task leaves the store as a crash at this point would. If it is in the middle of an install, the installer is lost with it.

use crate::error::Error;
use crate::phase::Phase;

/// The state of the other jobs, as far as a job must know it.
#[derive(Clone, Copy)]
pub struct Others {
    /// Another job is changing what the store is made of ([`Job::is_changing`]).
    pub are_changing: bool,
}

pub trait Job: Send {
    /// Begins work that is due and takes one step of the task in progress. Returns whether something was completed.
    fn step(&mut self, others: Others) -> bool;

    /// Whether a task is in progress that changes what the store is made of. The store does not close while such a task is in the middle of an
    /// install.
    fn is_changing(&self) -> bool;

    /// Whether maintenance may sleep for long, as far as this job knows.
    fn rests(&self) -> bool {
        !self.is_changing()
    }

    /// Drops the task in progress.
    fn give_up(&mut self);

    /// Takes a step of the task in progress, and begins nothing.
    fn wind_down(&mut self);

    /// The store has failed: tells everyone who waits for this job.
    fn fail(&mut self, _error: &Error) {}

    /// Nothing is in progress, and nothing will be begun any more: tells everyone who waits for this job.
    fn close(&mut self) {}

    /// The job's phases, for whoever watches.
    fn phases(&self) -> Vec<Phase> {
        Vec::new()
    }
}
