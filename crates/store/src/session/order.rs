//! The order of a session's operations: one that is not decided keeps the later ones of its key behind it.
//!
//! Undecided operations of one hash key are a chain in the order of submission. Only its first is attempted, reads or waits;
//! when it is decided, the next one takes its place. A deletion of everything in a keyspace touches many keys: it waits until all before it
//! are decided, and all after it wait for it. What asks for room ([`super::asks`]) leaves its place and takes another later.

use super::{Local, Op, Target};
use crate::error::Error;
use crate::keyspace::request::{Outcome, Request};
use crate::shared::Shared;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::Ordering;
use tapetum_kernels::hash::HashKey;

/// The operations of each hash key that are not decided.
pub(super) type Undecided = HashMap<HashKey, Chain, BuildHasherDefault<DigestHasher>>;

/// Numbers of operations; each knows the next one.
pub(super) struct Chain {
    first: usize,
    last: usize,
}

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

/// The sequence of an operation that asks: behind everything.
pub(super) const NO_PLACE: u64 = u64::MAX;

/// Boxes of operations that a session keeps, and the longest room for a key that it keeps with them.
const SPARE_OPS: usize = 512;
const SPARE_KEY_BYTES: usize = 1 << 10;

/// What an operation that waits is told when the store is closed.
pub(super) fn closed() -> Error {
    Error::Io("the store was closed while the operation waited: open it again".into())
}

impl Local {
    pub(super) fn keep(&mut self, Target { token, keyspace, hash }: Target, request: &Request<'_>) -> usize {
        let mut op = self.spare_ops.pop().unwrap_or_default();
        (op.token, op.keyspace, op.hash) = (token, keyspace, hash);
        op.value_bytes_allowed = self.asks.value_bytes_allowed();
        op.request.assign(request);
        op.kept_bytes = request.payload_bytes();
        self.kept_bytes += op.kept_bytes;
        let number = self.ops_free.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len() - 1
        });
        self.enter(number, op);
        number
    }

    /// Keeps an operation that goes on at once.
    pub(super) fn keep_at_hand(&mut self, target: Target, request: &Request<'_>) -> (usize, Box<Op>) {
        let number = self.keep(target, request);
        let Some(op) = self.ops[number].take() else { unreachable!("the operation was just kept") };
        (number, op)
    }

    /// Gives an operation its place: behind all that have one.
    pub(super) fn enter(&mut self, number: usize, mut op: Box<Op>) {
        self.sequence_next += 1;
        op.sequence = self.sequence_next;
        if op.request.deletes_all() {
            self.deletions_undecided.push_back(op.sequence);
        }
        let hash = op.hash;
        self.ops[number] = Some(op);
        match self.undecided.entry(hash) {
            Entry::Vacant(none) => drop(none.insert(Chain { first: number, last: number })),
            Entry::Occupied(mut chain) => {
                let before = std::mem::replace(&mut chain.get_mut().last, number);
                let Some(before) = &mut self.ops[before] else { unreachable!("an undecided operation is kept") };
                before.next_of_key = Some(number);
            }
        }
    }

    /// Keeps an operation that is to be attempted later, or after those before it.
    pub(super) fn wait(&mut self, target: Target, request: &Request<'_>) {
        let number = self.keep(target, request);
        self.wait_for_turn(target.hash, number);
    }

    /// An operation that has its place is attempted later, or after those before it.
    pub(super) fn wait_for_turn(&mut self, hash: HashKey, number: usize) {
        if self.undecided[&hash].first == number {
            self.waiting.push_back(number);
            self.waits_anew = true;
        }
    }

    /// Takes its place from an operation, the first of its key: the next one may go on.
    pub(super) fn leave(&mut self, number: usize, op: &mut Op) {
        let Entry::Occupied(mut chain) = self.undecided.entry(op.hash) else { unreachable!("it was undecided") };
        assert_eq!(chain.get().first, number, "operations of a key are decided in order");
        match op.next_of_key.take() {
            None => drop(chain.remove()),
            Some(next) => {
                chain.get_mut().first = next;
                self.waiting.push_front(next);
                self.woken += 1;
            }
        }
    }

    /// Ends an operation that is decided: the next one of its key may go on.
    pub(super) fn forget(&mut self, number: usize, mut op: Box<Op>) {
        self.leave(number, &mut op);
        if op.request.deletes_all() {
            assert_eq!(self.deletions_undecided.pop_front(), Some(op.sequence), "deletions are decided in order");
            self.woken = self.waiting.len();
        }
        self.end(number, op);
    }

    /// Ends an operation that has no place.
    pub(super) fn end(&mut self, number: usize, mut op: Box<Op>) {
        self.end_read(&mut op);
        self.kept_bytes -= op.kept_bytes;
        (op.large, op.near) = (None, None);
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

    /// Attempts what waits, in order, and what that wakes.
    pub(super) fn attempt_waiting(&mut self, shared: &Shared) {
        (self.waits_anew, self.woken) = (false, 0);
        if shared.closed.load(Ordering::SeqCst) {
            self.fail_waiting();
            return self.reap(shared);
        }
        let mut count = self.waiting.len();
        // Who gets a reply polls again.
        while count > 0 {
            self.attempt_front(shared, count);
            self.reap(shared);
            count = if self.ready.is_empty() { std::mem::take(&mut self.woken) } else { 0 };
        }
    }

    /// Attempts so many of those that wait.
    fn attempt_front(&mut self, shared: &Shared, count: usize) {
        let mut left = count;
        while left > 0 {
            let Some(number) = self.waiting.pop_front() else { unreachable!("so many wait") };
            let Some(op) = self.ops[number].take() else { unreachable!("a waiting operation is kept") };
            left -= 1;
            // In this order: what stays behind a deletion takes no share of what may be written.
            if self.is_behind_deletion(&op) || !op.request.is_get() && self.is_paced(shared, &op.request.borrow()) {
                self.ops[number] = Some(op);
                self.waiting.push_back(number);
                continue;
            }
            self.attempt_op(shared, number, op, None);
            left = (left + std::mem::take(&mut self.woken)).min(self.waiting.len());
        }
    }

    /// Ends what waits: nobody makes room any more.
    fn fail_waiting(&mut self) {
        while let Some(number) = self.waiting.pop_front() {
            let Some(op) = self.ops[number].take() else { unreachable!("a waiting operation is kept") };
            self.refuse(number, op, closed());
        }
        self.woken = 0;
    }

    /// Whether a deletion of everything is undecided.
    pub(super) fn deletes_all(&self) -> bool {
        !self.deletions_undecided.is_empty()
    }

    /// Whether a new operation must stay behind one that is undecided.
    pub(super) fn must_wait(&self, hash: HashKey, request: &Request<'_>) -> bool {
        match request {
            Request::DeleteAll { .. } => !self.undecided.is_empty(),
            _ => self.deletes_all() || self.undecided.contains_key(&hash),
        }
    }

    /// Whether a deletion of everything keeps the first operation of a key waiting, or is that and has others before it.
    fn is_behind_deletion(&self, op: &Op) -> bool {
        match op.request.deletes_all() {
            false => self.deletions_undecided.front().is_some_and(|&deletion| deletion < op.sequence),
            true => self.ops.iter().flatten().any(|other| other.sequence < op.sequence),
        }
    }
}
