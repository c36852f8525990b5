//! The hashed engine's part of a session: its operations, from the attempt to the answer.
//!
//! ```text
//!            ┌─ answer known ──────────────────────────────► held until durable ─► reply
//! start ─► attempt ─ needs flash ─► reading ─► attempt again, or answer
//!    │       ├─ no room / no memory ─► waiting ─► attempt again at a later poll
//!    │       └─ behind an earlier one of its key ─► waiting, when that is decided
//!    └ get ─► gathered ─► looked up with the others of this poll ─► reading ─► answer
//!                 ▲            └─ long ─► asks (if it is to) ─┐
//!                 └────────────────── allowed ◄────────────────┘
//! ```
//! A read-modify-write holds nothing across its flash read. It remembers the place of its key in the write buffers and starts over if the key was
//! written meanwhile (docs/decisions). So no session waits for another to poll.
//!
//! Threads: the session's. All sessions share the [`HashedEngine`].

mod attempt;
mod batch_part;
mod change;
mod flash_read;
mod found_lately;
mod large;
mod large_write;
pub mod limits;
mod lookup;
mod near;
#[cfg(test)]
pub(crate) mod near_tests;
mod reads;
mod staged;
mod waiting;

use crate::hashed::HashedEngine;
use crate::hashed::buffer::Seen;
use crate::hashed::tier::HitCounts;
pub use attempt::PlainPut;
use flash_read::FlashRead;
use found_lately::FoundLately;
pub use found_lately::KeyDigest;
use large::{LargeOp, OutOfLine};
use lookup::Miss;
use near::HashedNear;
use reads::GetCount;
pub use reads::block_of;
use std::sync::atomic::Ordering;
use tapetum_base::base::pace::Share;
use tapetum_base::error::Error;
use tapetum_base::request::item::ItemHead;
use tapetum_base::request::{Outcome, Request};
use tapetum_base::session::joined_bytes::JoinedShare;
use tapetum_base::session::order::{Op, OpTarget, Operations};
use tapetum_base::session::session_core::SessionCore;
use tapetum_kernels::codec::{Compressor, Decompressor};

/// The engine's state of an operation.
#[derive(Default)]
struct HashedOpState {
    /// `None` while it waits to be attempted.
    read: Option<FlashRead>,
    /// Its work on a large value, if there is one.
    large: Option<Box<LargeOp>>,
    /// The memory of an operation that makes a value of a large one.
    joined: Option<JoinedShare>,
    /// State of a get whose value goes through programs of the drive.
    near: Option<Box<HashedNear>>,
    /// Gets of other blocks of the group that is read, with how their keys were seen.
    followers: Vec<(usize, Seen)>,
}

type HashedOp = Op<HashedOpState>;

struct FromFlash {
    seen: Seen,
    /// The value is in `scratch`, if it is needed. `None`: flash does not have it.
    found: Option<ItemHead>,
    /// The place of the value, if that is in extents of its own.
    large: Option<OutOfLine>,
    /// The stamp of the deletion that removed it; 0 if there was none.
    shown_by: u64,
}

enum Attempt {
    Answered,
    NeedsFlash {
        read: FlashRead,
    },
    /// The operation would show a longer value than it may bring.
    Asks {
        value_bytes: usize,
    },
    /// A large value is to be read or written.
    Large(Box<LargeOp>),
    Waits,
}

/// The means of a step: the session's core, and its engine.
type HashedMeans<'a> = (&'a mut SessionCore, &'a HashedEngine);

pub struct HashedSession {
    ops: Operations<HashedOpState>,
    /// Gets to look up at the next poll.
    gathered: Vec<usize>,
    /// Gets that are being looked up and whose keys are in no write buffer.
    misses: Vec<Miss>,
    /// Writes wait for flush and collector, and later writes stay behind them.
    paced: bool,
    share: Share,
    scratch: Vec<u8>,
    inflated: Vec<u8>,
    compressor: Compressor,
    decompressor: Decompressor,
    /// Gets whose pipelines the drive runs.
    /// Gets of blocks whose group has been read for another get.
    followers: Vec<(usize, Seen)>,
    /// Counts of gets that are not in the store's counters yet.
    gets: GetCount,
    /// Gets that the DRAM tier answered, where there is one.
    hits: Option<HitCounts>,
    found_lately: FoundLately,
}

impl HashedSession {
    pub fn new(engine: &HashedEngine) -> Result<HashedSession, Error> {
        let io = |error: std::io::Error| Error::Io(error.to_string());
        Ok(HashedSession {
            ops: Operations::default(),
            gathered: Vec::new(),
            misses: Vec::new(),
            paced: false,
            share: Share::default(),
            scratch: Vec::new(),
            inflated: Vec::new(),
            compressor: Compressor::new().map_err(io)?,
            decompressor: Decompressor::new().map_err(io)?,
            followers: Vec::new(),
            gets: GetCount::default(),
            hits: engine.tier.as_ref().map(|tier| tier.hits().counts()),
            found_lately: FoundLately::default(),
        })
    }

    pub fn start(&mut self, (core, engine): HashedMeans<'_>, target: OpTarget, request: &Request<'_>) {
        if !request.reads() && self.is_paced(engine, request) {
            engine.counters.writes_paced.fetch_add(1, Ordering::Relaxed);
            return self.ops.wait(target, request);
        }
        if self.ops.must_wait(target.hash, request) {
            return self.ops.wait(target, request);
        }
        if request.reads() {
            let number = self.ops.keep(target, request);
            return self.gathered.push(number);
        }
        match self.attempt((core, engine), target, request, None) {
            Attempt::Answered => {}
            Attempt::Waits => self.ops.wait(target, request),
            attempt => {
                let (number, op) = self.ops.keep_at_hand(target, request);
                self.go_on((core, engine), number, op, attempt);
            }
        }
    }

    /// Acts on the result of an operation's attempt.
    fn go_on(&mut self, (core, engine): HashedMeans<'_>, number: usize, op: Box<HashedOp>, attempt: Attempt) {
        match attempt {
            Attempt::Answered => self.forget(core, number, op),
            Attempt::Asks { value_bytes } => self.ask(core, number, op, value_bytes),
            Attempt::NeedsFlash { read } => self.begin_read((core, engine), number, op, read),
            Attempt::Large(large) => self.go_on_large((core, engine), number, op, large),
            Attempt::Waits => self.ops.wait_again(number, op),
        }
    }

    /// Ends an operation that is decided: the next one of its key may go on.
    fn forget(&mut self, core: &mut SessionCore, number: usize, mut op: Box<HashedOp>) {
        end_read(core, &mut op);
        self.ops.forget(number, op);
    }

    /// Ends an operation with an error.
    fn refuse(&mut self, core: &mut SessionCore, number: usize, op: Box<HashedOp>, error: Error) {
        core.answer(op.token, Outcome::Failed(error));
        self.forget(core, number, op);
    }
}

/// Releases the segment and the buffers of an operation's read.
fn end_read(core: &mut SessionCore, op: &mut HashedOp) {
    if let Some(read) = op.kept.read.take() {
        read.finish(&mut core.spare_buffers);
    }
}
