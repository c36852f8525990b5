//! The order of a session's operations: one that is not decided keeps the later ones of its key waiting.

use super::{Local, Op};
use crate::error::Error;
use crate::request::{Outcome, Request};
use crate::shared::Shared;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::Ordering;
use tapetum_kernels::hash::HashKey;

/// How many operations of a hash key are not decided.
pub(super) type Undecided = HashMap<HashKey, u32, BuildHasherDefault<DigestHasher>>;

/// A hash key is a digest under a secret: its own bits will do.
#[derive(Default)]
pub(super) struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn write_u128(&mut self, digest: u128) {
        self.0 = digest as u64;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a hash key is one number");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Boxes of operations that a session keeps, and the longest room for a key that it keeps with them.
const SPARE_OPS: usize = 512;
const SPARE_KEY_BYTES: usize = 1 << 10;

/// What an operation that waits is told when the store is closed.
pub(super) fn closed() -> Error {
    Error::Io("the store was closed while the operation waited: open it again".into())
}

impl Local {
    pub(super) fn keep(&mut self, token: u64, hash: HashKey, request: &Request<'_>) -> usize {
        let mut op = self.spare_ops.pop().unwrap_or_default();
        self.sequence_next += 1;
        (op.token, op.sequence, op.hash) = (token, self.sequence_next, hash);
        op.request.assign(request);
        *self.undecided.entry(hash).or_default() += 1;
        self.deletions_undecided += usize::from(op.request.deletes_all());
        match self.ops_free.pop() {
            Some(number) => {
                self.ops[number] = Some(op);
                number
            }
            None => {
                self.ops.push(Some(op));
                self.ops.len() - 1
            }
        }
    }

    pub(super) fn wait(&mut self, token: u64, hash: HashKey, request: &Request<'_>) {
        let number = self.keep(token, hash, request);
        self.waiting.push_back(number);
        self.waits_anew = true;
    }

    /// Ends an operation: the later ones of its key may go on.
    pub(super) fn forget(&mut self, number: usize, mut op: Box<Op>) {
        self.deletions_undecided -= usize::from(op.request.deletes_all());
        if let Some(count) = self.undecided.get_mut(&op.hash) {
            *count -= 1;
            if *count == 0 {
                self.undecided.remove(&op.hash);
            }
        }
        self.end_read(&mut op);
        op.large = None;
        op.request.take_value();
        if self.spare_ops.len() < SPARE_OPS && op.request.key.capacity() <= SPARE_KEY_BYTES {
            self.spare_ops.push(op);
        }
        self.ops_free.push(number);
    }

    /// Lets go of the segment and the buffers of an operation's read.
    pub(super) fn end_read(&mut self, op: &mut Op) {
        if let Some(read) = op.read.take() {
            read.finish(&mut self.spare_buffers);
        }
    }

    /// Ends an operation with an error.
    pub(super) fn refuse(&mut self, number: usize, op: Box<Op>, error: Error) {
        self.answer(op.token, Outcome::Failed(error));
        self.forget(number, op);
    }

    /// Whether a write is to wait for flush and collector.
    pub(super) fn is_paced(&mut self, shared: &Shared, request: &Request<'_>) -> bool {
        if !self.paced && shared.log.poisoned().is_ok() {
            let bytes = request.payload_bytes() as u64;
            self.paced = !self.share.take(&shared.pace, shared.log.filled_bytes(), bytes);
        }
        self.paced
    }

    /// Attempts what waits, in order; an operation stays behind an earlier one of its key.
    pub(super) fn attempt_waiting(&mut self, shared: &Shared) {
        (self.paced, self.waits_anew) = (false, false);
        if shared.closed.load(Ordering::SeqCst) {
            return self.fail_waiting();
        }
        for _ in 0..self.waiting.len() {
            let Some(number) = self.waiting.pop_front() else { return };
            let Some(op) = self.ops[number].take() else { unreachable!("a waiting operation is kept") };
            let paced = !op.request.is_get() && self.is_paced(shared, &op.request.borrow());
            if paced || self.is_behind(&op) {
                self.ops[number] = Some(op);
                self.waiting.push_back(number);
                continue;
            }
            self.attempt_op(shared, number, op, None);
        }
    }

    /// Ends what waits: nobody makes room any more.
    fn fail_waiting(&mut self) {
        while let Some(number) = self.waiting.pop_front() {
            let Some(op) = self.ops[number].take() else { unreachable!("a waiting operation is kept") };
            self.refuse(number, op, closed());
        }
    }

    /// Whether a deletion of everything is undecided.
    pub(super) fn deletes_all(&self) -> bool {
        self.deletions_undecided > 0
    }

    /// Whether a new operation must stay behind one that is undecided. A deletion of everything touches every key.
    pub(super) fn must_wait(&self, hash: HashKey, request: &Request<'_>) -> bool {
        match request {
            Request::DeleteAll { .. } => !self.undecided.is_empty(),
            _ => self.deletes_all() || self.undecided.contains_key(&hash),
        }
    }

    /// Whether an earlier operation of the key is undecided: one being read, or one before it in the queue.
    pub(super) fn is_behind(&self, op: &Op) -> bool {
        if self.undecided.get(&op.hash).is_none_or(|count| *count == 1) && !self.deletes_all() {
            return false;
        }
        let touches = |other: &Op| other.hash == op.hash || other.request.deletes_all() || op.request.deletes_all();
        let earlier = |other: &Op| touches(other) && other.sequence < op.sequence;
        self.ops.iter().flatten().any(|other| earlier(other))
    }
}
