//! A worker's state, lent to a connection while the worker works on it; and the same for a connection without a worker.

// The server is above the simulator: it may read the clock.
#![allow(clippy::disallowed_methods)]

use std::time::Instant;

use tapetum_drive::env::Env;

use super::memcached::pipeline::Pipeline;
use crate::net::gets::Gets;
use crate::net::limits::{Budget, Limits};
use crate::net::out::Pool;
use crate::stats::latencies::AnsweredAtOnce;
use crate::stats::{Counters, Figures};
use crate::store::errands::Errands;
use crate::store::store_slot::Seat;

/// Unix seconds of the store's clock: see [`Env`].
pub fn unix_seconds() -> u32 {
    Env::system().unix_seconds()
}

pub struct Context<'a> {
    pub seat: &'a mut Seat,
    pub limits: &'a Limits,
    pub budget: &'a Budget,
    pub figures: &'a Figures,
    pub errands: &'a Errands,
    /// The number of the worker.
    pub worker: usize,
    pub counters: &'a Counters,
    pub pool: &'a mut Pool,
    pub scratch: &'a mut Vec<u8>,
    /// For what comes in TLS, once it is open. Empty between uses.
    pub plain: &'a mut Vec<u8>,
    /// Unix seconds.
    pub now: u32,
    /// When the worker learned of what it works on: by a report of the sockets, or a poll of the store.
    pub came: Instant,
    /// To be measured when all of the report is answered.
    pub at_once: &'a mut AnsweredAtOnce,
    pub gets: &'a mut Gets,
    pub pipeline: &'a mut Pipeline,
}

impl Context<'_> {
    /// The moment, for how long something takes.
    pub fn instant(&self) -> Instant {
        Instant::now()
    }
}

/// Everything that a [`Context`] lends, without a worker: for packets in memory, and for tests. One thread at a time. Nobody answers
/// errands.
pub struct Alone {
    pub seat: Seat,
    pub limits: Limits,
    pub budget: Budget,
    pub figures: Figures,
    pub pool: Pool,
    errands: Errands,
    scratch: Vec<u8>,
    plain: Vec<u8>,
    at_once: AnsweredAtOnce,
    pub gets: Gets,
    pipeline: Pipeline,
}

impl Alone {
    /// Sockets are read into a buffer of `scratch_bytes`.
    pub fn new(seat: Seat, limits: Limits, scratch_bytes: usize) -> Alone {
        Alone {
            seat,
            budget: Budget::new(limits.in_flight_bytes),
            gets: Gets::new(limits.in_flight_bytes, 1),
            limits,
            figures: Figures::default(),
            pool: Pool::default(),
            errands: Errands::queue().0,
            scratch: vec![0; scratch_bytes],
            plain: Vec::new(),
            at_once: AnsweredAtOnce::default(),
            pipeline: Pipeline::default(),
        }
    }

    pub fn context(&mut self, now: u32) -> Context<'_> {
        Context {
            seat: &mut self.seat,
            limits: &self.limits,
            budget: &self.budget,
            figures: &self.figures,
            errands: &self.errands,
            worker: 0,
            counters: &self.figures.counters[0],
            pool: &mut self.pool,
            scratch: &mut self.scratch,
            plain: &mut self.plain,
            now,
            came: Instant::now(),
            at_once: &mut self.at_once,
            gets: &mut self.gets,
            pipeline: &mut self.pipeline,
        }
    }
}
