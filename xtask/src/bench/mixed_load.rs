//! Operations on the items of one keyspace, many in flight: loads, and GETs with or without PUTs.

use std::time::{Duration, Instant};

use tapetum::{Condition, Expiry, KeyspaceHandle, Request, Store};
use tapetum_bench::random::Random;

use crate::Failure;

/// Operations in flight.
const DEPTH: usize = 64;

pub struct Workload<'a> {
    session: tapetum::Session,
    keyspace: &'a KeyspaceHandle,
    items: u64,
    random: Random,
    value: Vec<u8>,
}

impl<'a> Workload<'a> {
    /// Over so many items, of this value each.
    pub fn new(
        store: &Store,
        keyspace: &'a KeyspaceHandle,
        items: u64,
        value: Vec<u8>,
    ) -> Result<Workload<'a>, Failure> {
        let session = store.session()?;
        Ok(Workload { session, keyspace, items, random: Random::new(11), value })
    }

    pub fn fill(&mut self) -> Result<(), Failure> {
        let items = self.items;
        self.run((0..items).map(|id| (id, true)))
    }

    /// Puts so many keys, drawn from all.
    pub fn put(&mut self, count: u64) -> Result<(), Failure> {
        let ids: Vec<u64> = (0..count).map(|_| self.random.below(self.items)).collect();
        self.run(ids.into_iter().map(|id| (id, true)))
    }

    /// GETs, or half of them PUTs; operations a second.
    pub fn turn(&mut self, gets: bool, length: Duration) -> Result<f64, Failure> {
        let (begun, mut done) = (Instant::now(), 0);
        loop {
            let operations: Vec<(u64, bool)> =
                (0..4096).map(|_| (self.random.below(self.items), !gets && self.random.below(2) == 0)).collect();
            done += operations.len();
            self.run(operations.into_iter())?;
            if begun.elapsed() >= length {
                return Ok(done as f64 / begun.elapsed().as_secs_f64());
            }
        }
    }

    /// Runs operations, some at a time: keys, and whether they are put.
    pub fn run(&mut self, operations: impl Iterator<Item = (u64, bool)>) -> Result<(), Failure> {
        let (mut operations, mut in_flight, mut replies) = (operations.peekable(), 0, Vec::new());
        let of = self.keyspace.keyspace();
        loop {
            while in_flight < DEPTH
                && let Some((id, puts)) = operations.peek().copied()
            {
                let key = id.to_be_bytes();
                let expiry = Expiry::NONE;
                let put =
                    Request::Put { key: &key, value: &self.value, flags: 0, expiry, condition: Condition::Always };
                let request = if puts { put } else { Request::Get { key: &key } };
                if self.session.submit_to(of, id, request).is_err() {
                    break;
                }
                operations.next();
                in_flight += 1;
            }
            if in_flight == 0 {
                return Ok(());
            }
            self.session.poll(&mut replies);
            if replies.is_empty() {
                self.session.wait(Some(Duration::from_millis(10)));
            }
            for reply in replies.drain(..) {
                in_flight -= 1;
                if let tapetum::Outcome::Failed(error) = reply.outcome {
                    return Err(error.into());
                }
            }
        }
    }
}
