//! A job of maintenance: work that comes again and again, in bounded steps.
//!
//! 1. A step never waits: it begins what is due, and polls what is under way once.
//! 2. A failure that leaves the store in doubt poisons the log; then no job gets another step.
//! 3. A task that is dropped leaves the store as a crash at this point would, unless it has the installer.

use crate::error::Error;
use crate::phase::Phase;

/// What a job hears of the others.
#[derive(Clone, Copy)]
pub struct Others {
    /// One of them is changing what the store is made of.
    pub are_changing: bool,
}

pub trait Job: Send {
    /// Begins what is due, and takes a step of what is under way; whether something came to its end.
    fn step(&mut self, others: Others) -> bool;

    /// Whether a task is under way that changes what the store is made of. Such a task comes to its end before the store closes, if it
    /// is in the middle of an install.
    fn is_changing(&self) -> bool;

    /// Whether maintenance may sleep long, as far as this job knows.
    fn rests(&self) -> bool {
        !self.is_changing()
    }

    /// Drops what is under way.
    fn give_up(&mut self);

    /// Takes a step of what is under way, and begins nothing.
    fn wind_down(&mut self);

    /// The store has failed: whoever waits for this job is told.
    fn fail(&mut self, _error: &Error) {}

    /// Nothing is under way, and nothing will be any more: whoever waits for this job is told.
    fn close(&mut self) {}

    /// What it is doing, for whoever watches.
    fn phases(&self) -> Vec<Phase> {
        Vec::new()
    }
}
