//! Requests that show a value and ask first where it is long: who submitted them may have no memory for it now. So does an append to a value
//! that lies out of line, for that value and the one that it makes.
//!
//! ```text
//! get ─► looked up ─ not longer than is allowed ─► answer
//!         ▲   └─ longer ─► asks ─ give_up_value ─► missing
//!         └── allow_value ◄──┘
//! ```
//! One that asks has done nothing, holds neither local memory nor a segment, and keeps nobody waiting: when it is allowed it takes
//! its place anew, behind what was submitted since. The pages read to learn the value's length are read a second time. What reading
//! takes does not tell: behind a short record a long one may begin in the same page.

use super::engine_session::EngineSlot;
use super::{Busy, Session};
use crate::keyspace::request::{Outcome, Request};
use crate::keyspace::states::KeyspaceRef;
use std::collections::HashMap;

/// A get that goes on when its caller has this much memory for its value, or an append that has it for the old and the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    pub token: u64,
    pub value_bytes: usize,
}

#[derive(Default)]
pub struct Asks {
    /// Not taken yet.
    new: Vec<Ask>,
    /// The tokens of operations that ask, or asked and were not told: their engines and numbers.
    asking: HashMap<u64, (EngineSlot, usize)>,
}

impl Asks {
    /// An operation asks, and has no place any more.
    pub fn add(&mut self, ask: Ask, operation: (EngineSlot, usize)) {
        self.new.push(ask);
        let other = self.asking.insert(ask.token, operation);
        assert!(other.is_none(), "an operation that may ask has a token of its own");
    }

    pub fn count(&self) -> usize {
        self.asking.len()
    }

    /// Whether some wait to be taken.
    pub fn are_new(&self) -> bool {
        !self.new.is_empty()
    }

    fn take(&mut self, token: u64) -> (EngineSlot, usize) {
        self.asking.remove(&token).expect("only what asks is allowed or given up")
    }
}

impl Session {
    /// As [`Session::submit_to`]; a request that shows a longer value, or makes a value of a long one, asks before that is brought: see [`Session::take_asks`]. No other that
    /// is on its way may have its token.
    ///
    /// # Errors
    /// As [`Session::submit`].
    pub fn submit_within(
        &mut self,
        keyspace: KeyspaceRef,
        token: u64,
        request: Request<'_>,
        value_bytes: usize,
    ) -> Result<(), Busy> {
        if !self.has_room() {
            return Err(Busy);
        }
        self.start((keyspace, token), &request, value_bytes);
        Ok(())
    }

    /// Appends the requests that have asked since. Each waits until it is told by [`Session::allow_value`] or
    /// [`Session::give_up_value`], and is not replied to before. It has done nothing, and keeps no other waiting.
    pub fn take_asks(&mut self, asks: &mut Vec<Ask>) {
        if !self.core.is_here() {
            return;
        }
        asks.append(&mut self.core.asks.new);
    }

    /// Lets a request that asks bring so many bytes: it goes on as if it was submitted now. If its item is a longer one by then it asks
    /// again.
    pub fn allow_value(&mut self, token: u64, value_bytes: usize) {
        if !self.core.is_here() {
            return;
        }
        match self.core.asks.take(token) {
            (EngineSlot::HASHED, number) => self.hashed.allow_value(number, value_bytes),
            (slot, number) => self.others.get(slot).allow_value(&mut self.core, number, value_bytes),
        }
    }

    /// Ends a request that asks: it is replied to as if there was no item.
    pub fn give_up_value(&mut self, token: u64) {
        if !self.core.is_here() {
            return;
        }
        let operation = self.core.asks.take(token);
        self.core.answer(token, Outcome::Missing);
        match operation {
            (EngineSlot::HASHED, number) => self.hashed.give_up_value(number),
            (slot, number) => self.others.get(slot).give_up_value(number),
        }
    }
}
