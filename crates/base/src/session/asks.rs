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

use crate::session::engine_session::EngineSlot;
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

    /// Appends those that nobody has taken yet.
    pub fn take_new(&mut self, into: &mut Vec<Ask>) {
        into.append(&mut self.new);
    }

    /// Whether some wait to be taken.
    pub fn are_new(&self) -> bool {
        !self.new.is_empty()
    }

    pub fn take(&mut self, token: u64) -> (EngineSlot, usize) {
        self.asking.remove(&token).expect("only what asks is allowed or given up")
    }
}
