//! Gets of long values that ask first: who submitted them may have no memory for the value now.
//!
//! ```text
//! get ─► gathered ─► looked up ─ not longer than is allowed ─► answer
//!           ▲            └─ longer ─► asks ─ give_up_value ─► missing
//!           └───────── allow_value ◄───┘
//! ```
//! So do all requests that show a value; one that writes is attempted again, in place of gathered. One that asks has done nothing, holds
//! neither local memory nor a segment, and keeps nobody waiting: when it is allowed it takes its place anew, behind what was submitted
//! since. What was read to find how long its value is is read again. What reading takes does not tell: behind a short record a long one
//! may begin in the same page.

use super::order::NO_PLACE;
use super::{Busy, Local, Op, Session};
use crate::keyspace::request::{Outcome, Request};
use crate::keyspace::states::KeyspaceRef;
use std::collections::HashMap;

/// A get that goes on when its caller has this much memory for its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    pub token: u64,
    pub value_bytes: usize,
}

pub(super) struct Asks {
    /// What the get that is being submitted brings without asking.
    value_bytes_allowed: usize,
    /// Not taken yet.
    new: Vec<Ask>,
    /// The tokens and numbers of operations that ask, or asked and were not told.
    asking: HashMap<u64, usize>,
}

impl Default for Asks {
    fn default() -> Asks {
        Asks { value_bytes_allowed: usize::MAX, new: Vec::new(), asking: HashMap::new() }
    }
}

impl Asks {
    pub(super) fn value_bytes_allowed(&self) -> usize {
        self.value_bytes_allowed
    }

    /// How many ask.
    pub(super) fn count(&self) -> usize {
        self.asking.len()
    }

    /// Whether some wait to be taken.
    pub(super) fn are_new(&self) -> bool {
        !self.new.is_empty()
    }
}

impl Op {
    /// Whether it may not bring as much.
    pub(super) fn must_ask_for(&self, value_bytes: usize) -> bool {
        value_bytes > self.value_bytes_allowed && self.request.borrow().shows_value()
    }
}

impl Local {
    /// Lets go of what an operation holds, its place too, and asks for it.
    pub(super) fn ask(&mut self, number: usize, mut op: Box<Op>, value_bytes: usize) {
        self.end_read(&mut op);
        self.leave(number, &mut op);
        op.sequence = NO_PLACE;
        self.asks.new.push(Ask { token: op.token, value_bytes });
        let other = self.asks.asking.insert(op.token, number);
        assert!(other.is_none(), "an operation that may ask has a token of its own");
        self.ops[number] = Some(op);
    }

    /// Takes the operation with this token from those that ask.
    fn take_asking(&mut self, token: u64) -> (usize, Box<Op>) {
        let number = self.asks.asking.remove(&token).expect("only what asks is allowed or given up");
        let Some(op) = self.ops[number].take() else { unreachable!("an operation that asks is kept") };
        (number, op)
    }
}

impl Session {
    /// As [`Session::submit_to`]; a request that shows a longer value asks before it is brought: see [`Session::take_asks`]. No other that
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
        self.local.asks.value_bytes_allowed = value_bytes;
        let submitted = self.submit_to(keyspace, token, request);
        self.local.asks.value_bytes_allowed = usize::MAX;
        submitted
    }

    /// Appends the requests that have asked since. Each waits until it is told by [`Session::allow_value`] or
    /// [`Session::give_up_value`], and is not replied to before. It has done nothing, and keeps no other waiting.
    pub fn take_asks(&mut self, asks: &mut Vec<Ask>) {
        asks.append(&mut self.local.asks.new);
    }

    /// Lets a request that asks bring so many bytes: it goes on as if it was submitted now. If its item is a longer one by then it asks
    /// again.
    pub fn allow_value(&mut self, token: u64, value_bytes: usize) {
        let (number, mut op) = self.local.take_asking(token);
        op.value_bytes_allowed = value_bytes;
        let (hash, is_get) = (op.hash, op.request.is_get());
        let goes_on = is_get && !self.local.must_wait(hash, &op.request.borrow());
        self.local.enter(number, op);
        match goes_on {
            true => self.local.gathered.push(number),
            false => self.local.wait_for_turn(hash, number),
        }
    }

    /// Ends a request that asks: it is replied to as if there was no item.
    pub fn give_up_value(&mut self, token: u64) {
        let (number, op) = self.local.take_asking(token);
        self.local.answer(token, Outcome::Missing);
        self.local.end(number, op);
    }
}
