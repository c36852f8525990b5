//! A worker's state, lent to a connection while the worker works on it; and the same for a connection without a worker.

// The server is above the simulator: it may read the clock.
#![allow(clippy::disallowed_methods)]

use std::time::Instant;

use super::gets::Gets;
use super::limits::{Budget, Limits};
use super::out::Pool;
use crate::stats::latencies::AnsweredAtOnce;
use crate::stats::{Counters, Figures};
use crate::store::engine::Session;
use crate::store::errands::Errands;

/// `W` is the door's [`super::door::Door::PerWorker`].
pub struct Context<'a, S, W> {
    pub session: &'a mut S,
    pub limits: &'a Limits,
    pub budget: &'a Budget,
    pub figures: &'a Figures,
    pub errands: &'a Errands,
    /// The number of the worker.
    pub worker: usize,
    pub counters: &'a Counters,
    pub pool: &'a mut Pool,
    pub scratch: &'a mut Vec<u8>,
    /// Unix seconds.
    pub now: u32,
    /// When the worker learned of what it works on: by a report of the sockets, or a poll of the store.
    pub came: Instant,
    /// To be measured when all of the report is answered.
    pub at_once: &'a mut AnsweredAtOnce,
    pub gets: &'a mut Gets,
    pub door: &'a mut W,
}

impl<S, W> Context<'_, S, W> {
    /// The moment, for how long something takes.
    pub fn instant(&self) -> Instant {
        Instant::now()
    }

    /// The same context for a door that owns a part of `W`.
    pub fn of_part<V>(&mut self, part: impl FnOnce(&mut W) -> &mut V) -> Context<'_, S, V> {
        Context {
            session: self.session,
            limits: self.limits,
            budget: self.budget,
            figures: self.figures,
            errands: self.errands,
            worker: self.worker,
            counters: self.counters,
            pool: self.pool,
            scratch: self.scratch,
            now: self.now,
            came: self.came,
            at_once: self.at_once,
            gets: self.gets,
            door: part(self.door),
        }
    }
}

/// Everything that a [`Context`] lends, without a worker: for packets in memory, and for tests. One thread at a time. Nobody answers
/// errands.
pub struct Alone<S, W> {
    pub session: S,
    pub limits: Limits,
    pub budget: Budget,
    pub figures: Figures,
    pub pool: Pool,
    errands: Errands,
    scratch: Vec<u8>,
    at_once: AnsweredAtOnce,
    pub gets: Gets,
    door: W,
}

impl<S: Session, W: Default> Alone<S, W> {
    /// Sockets are read into a buffer of `scratch_bytes`.
    pub fn new(session: S, limits: Limits, scratch_bytes: usize) -> Alone<S, W> {
        Alone {
            session,
            budget: Budget::new(limits.in_flight_bytes),
            gets: Gets::new(limits.in_flight_bytes, 1),
            limits,
            figures: Figures::default(),
            pool: Pool::default(),
            errands: Errands::queue().0,
            scratch: vec![0; scratch_bytes],
            at_once: AnsweredAtOnce::default(),
            door: W::default(),
        }
    }

    pub fn context(&mut self, now: u32) -> Context<'_, S, W> {
        Context {
            session: &mut self.session,
            limits: &self.limits,
            budget: &self.budget,
            figures: &self.figures,
            errands: &self.errands,
            worker: 0,
            counters: &self.figures.counters[0],
            pool: &mut self.pool,
            scratch: &mut self.scratch,
            now,
            came: Instant::now(),
            at_once: &mut self.at_once,
            gets: &mut self.gets,
            door: &mut self.door,
        }
    }
}
