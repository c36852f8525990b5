//! What a worker lends to its connections, for one connection without a worker: packets in memory, and tests.

use super::Context;
use crate::doors::memcached::pipeline::Pipeline;
use crate::net::gets::Gets;
use crate::net::limits::{Budget, Limits};
use crate::net::out::Pool;
use crate::stats::Figures;
use crate::store::engine::Session;
use crate::store::errands::Errands;

/// One thread at a time. Errands are answered by nobody.
pub struct Alone<S> {
    pub session: S,
    pub limits: Limits,
    pub budget: Budget,
    pub figures: Figures,
    pub pool: Pool,
    errands: Errands,
    scratch: Vec<u8>,
    pub gets: Gets,
    pipeline: Pipeline,
}

impl<S: Session> Alone<S> {
    /// `scratch_bytes` is what a socket is read into.
    pub fn new(session: S, limits: Limits, scratch_bytes: usize) -> Alone<S> {
        Alone {
            session,
            budget: Budget::new(limits.in_flight_bytes),
            gets: Gets::new(limits.in_flight_bytes, 1),
            limits,
            figures: Figures::default(),
            pool: Pool::default(),
            errands: Errands::queue().0,
            scratch: vec![0; scratch_bytes],
            pipeline: Pipeline::default(),
        }
    }

    pub fn context(&mut self, now: u32) -> Context<'_, S> {
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
            gets: &mut self.gets,
            pipeline: &mut self.pipeline,
        }
    }
}
