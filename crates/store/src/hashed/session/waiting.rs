//! Operations of the hashed engine that do not go on at once: paced, without room, behind others of their key, or asking.

use super::{HashedMeans, HashedOp, HashedSession, end_read};
use crate::hashed::HashedEngine;
use tapetum_base::error::Error;
use tapetum_base::request::Request;
use tapetum_base::session::asks::Ask;
use tapetum_base::session::engine_session::{EngineSlot, EngineWait};
use tapetum_base::session::reply_values::KEEP_BYTES;
use tapetum_base::session::session_core::SessionCore;

impl HashedSession {
    pub fn in_flight(&self) -> usize {
        self.ops.count()
    }

    /// Bytes of keys and values that operations keep.
    pub fn kept_bytes(&self) -> usize {
        self.ops.kept_bytes()
    }

    pub fn tokens(&self) -> impl Iterator<Item = u64> {
        self.ops.tokens()
    }

    /// The reason why operations wait.
    pub fn waits(&self) -> EngineWait {
        if self.gathered.is_empty() { self.ops.waits() } else { EngineWait::Poll }
    }

    /// A poll begins to attempt waiting operations. Paced operations may have waited long enough.
    pub fn begin_attempts(&mut self) -> usize {
        self.paced = false;
        self.ops.begin_attempts()
    }

    /// How many more operations may go on than at the last call.
    pub fn take_woken(&mut self) -> usize {
        self.ops.take_woken()
    }

    /// Attempts `count` of the waiting operations, and those that this wakes.
    pub fn attempt_front(&mut self, (core, engine): HashedMeans<'_>, count: usize) {
        let mut left = count;
        while left > 0 {
            let Some((number, op)) = self.ops.take_waiting() else { unreachable!("so many wait") };
            left -= 1;
            // In this order: an operation behind a deletion must take no share of the permitted writes.
            let stays =
                self.ops.is_behind_deletion(&op) || !op.request.is_get() && self.is_paced(engine, &op.request.borrow());
            if stays {
                self.ops.wait_again(number, op);
                continue;
            }
            self.attempt_op((core, engine), number, op, None);
            left = (left + self.ops.take_woken()).min(self.ops.waiting_count());
        }
    }

    /// Ends the waiting operations: nobody makes room any more.
    pub fn fail_waiting(&mut self, core: &mut SessionCore) {
        while let Some((number, op)) = self.ops.take_waiting() {
            self.refuse(core, number, op, Error::Closed);
        }
        self.ops.take_woken();
    }

    /// A poll ends: reports whether writes wait to be let on, and gives large buffers back.
    pub fn end_poll(&mut self, engine: &HashedEngine) {
        self.share.set_waiting(&engine.pace, self.paced);
        for buffer in [&mut self.scratch, &mut self.inflated] {
            if buffer.capacity() > KEEP_BYTES {
                *buffer = Vec::new();
            }
        }
        self.compressor.shrink(KEEP_BYTES);
    }

    /// The session goes.
    pub fn leave(&mut self, engine: &HashedEngine) {
        self.share.set_waiting(&engine.pace, false);
    }

    /// Whether a write is to wait for flush and collector.
    pub(super) fn is_paced(&mut self, engine: &HashedEngine, request: &Request<'_>) -> bool {
        if !self.paced && engine.log.poisoned().is_ok() {
            let bytes = request.payload_bytes() as u64;
            self.paced = !self.share.take(&engine.pace, engine.log.filled_bytes(), bytes);
        }
        self.paced
    }

    pub(super) fn wait_for_room(&mut self, core: &mut SessionCore, number: usize, mut op: Box<HashedOp>) {
        end_read(core, &mut op);
        self.ops.wait_again(number, op);
    }

    /// Releases all that an operation holds, its place too, and asks whether its value may be brought.
    pub(super) fn ask(&mut self, core: &mut SessionCore, number: usize, mut op: Box<HashedOp>, value_bytes: usize) {
        end_read(core, &mut op);
        core.asks.add(Ask { token: op.token, value_bytes }, (EngineSlot::HASHED, number));
        self.ops.step_aside(number, op);
    }

    /// An operation that asks may bring a value of this size, and takes its place again.
    pub fn allow_value(&mut self, number: usize, value_bytes: usize) {
        let mut op = self.ops.take(number);
        op.value_bytes_allowed = value_bytes;
        let hash = op.hash;
        let goes_on = op.request.is_get() && !self.ops.must_wait(hash, &op.request.borrow());
        self.ops.enter(number, op);
        match goes_on {
            true => self.gathered.push(number),
            false => self.ops.wait_for_turn(hash, number),
        }
    }

    /// Ends an operation that asks.
    pub fn give_up_value(&mut self, number: usize) {
        let op = self.ops.take(number);
        self.ops.end(number, op);
    }
}
