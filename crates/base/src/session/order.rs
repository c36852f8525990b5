//! A session's operations of one engine, and their order: an undecided operation blocks the later ones of its key.
//!
//! Undecided operations of one hash key form a chain in the order of submission. Only the first is attempted, reads or waits. When it is decided,
//! the next one takes its place. A deletion of everything in a keyspace affects many keys: it waits until all earlier operations are decided, and
//! all later ones wait for it. An operation that asks for room ([`super::asks`]) leaves its place and takes another one later.
//!
//! 1. An operation has a number from when it is kept until it ends. It is in its slot, except while it is worked on.
//! 2. Operations in `waiting` are the first of their keys, in the order of the attempts.
//!
//! Threads: the session's.

use super::joined_bytes::joined_bytes_of;
use super::owned::OwnedRequest;
use crate::keyspace::states::KeyspaceRef;
use crate::request::Request;
use crate::session::engine_session::EngineWait;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use tapetum_drive::ProcessMark;
use tapetum_kernels::hash::HashKey;

/// Boxes of ended operations that are kept for reuse, and the longest key buffer that is kept with one.
const SPARE_OPS: usize = 512;
const SPARE_KEY_BYTES: usize = 1 << 10;
/// The sequence of an operation that asks: after all others.
const NO_PLACE: u64 = u64::MAX;

/// The undecided operations of each hash key.
type Undecided = HashMap<HashKey, KeyChain, BuildHasherDefault<DigestHasher>>;

/// The first and the last operation of a chain, by number. Each operation knows the next one.
struct KeyChain {
    first: usize,
    last: usize,
}

/// A hash key is a digest under a secret, so its own bits serve as hash.
#[derive(Default)]
struct DigestHasher(u64);

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

/// The subject of an operation.
#[derive(Clone, Copy)]
pub struct OpTarget {
    /// The caller's id of the operation.
    pub token: u64,
    pub keyspace: KeyspaceRef,
    pub hash: HashKey,
    /// The longest value that it may show. For a longer one the operation asks.
    pub value_bytes_allowed: usize,
}

impl OpTarget {
    /// Whether the operation must ask before it answers with a value of `value_bytes` bytes.
    pub fn must_ask_for(&self, request: &Request<'_>, value_bytes: usize) -> bool {
        value_bytes > self.value_bytes_allowed && request.shows_value()
    }
}

/// An operation that was not answered at once, with its engine's state.
#[derive(Default)]
pub struct Op<K> {
    pub token: u64,
    pub keyspace: KeyspaceRef,
    /// The number of the submission, in their order.
    sequence: u64,
    pub hash: HashKey,
    /// The next undecided operation of its hash key.
    next_of_key: Option<usize>,
    pub request: OwnedRequest,
    /// The longest value that it may show without asking.
    pub value_bytes_allowed: usize,
    /// Bytes of its key and its value.
    kept_bytes: usize,
    pub kept: K,
}

impl<K> Op<K> {
    pub fn target(&self) -> OpTarget {
        let Op { token, keyspace, hash, value_bytes_allowed, .. } = *self;
        OpTarget { token, keyspace, hash, value_bytes_allowed }
    }

    /// The next undecided operation of its key.
    pub fn next_of_key(&self) -> Option<usize> {
        self.next_of_key
    }

    /// As [`OpTarget::must_ask_for`].
    pub fn must_ask_for(&self, value_bytes: usize) -> bool {
        self.target().must_ask_for(&self.request.borrow(), value_bytes)
    }

    /// The bytes for which the operation must ask, if any, before it builds a new value from an out-of-line one of `value_bytes` bytes. An operation
    /// that shows the value has asked for it already.
    pub fn must_ask_to_join(&self, value_bytes: usize) -> Option<usize> {
        let bytes = joined_bytes_of(value_bytes);
        (bytes > self.value_bytes_allowed && !self.request.borrow().shows_value()).then_some(bytes)
    }
}

pub struct Operations<K> {
    slots: Vec<Option<Box<Op<K>>>>,
    free: Vec<usize>,
    /// Operations to attempt at the next poll, in order.
    waiting: VecDeque<usize>,
    /// One of them was submitted since the last poll: the event it waits for may have come before anybody was registered to be woken.
    waits_anew: bool,
    /// The number of operations at the front that may go on, as earlier ones were decided.
    woken: usize,
    undecided: Undecided,
    /// The sequences of undecided deletions of everything.
    deletions_undecided: VecDeque<u64>,
    sequence_next: u64,
    /// Bytes of keys and values.
    kept_bytes: usize,
    /// Boxes of ended operations, with their key buffers.
    spare: Vec<Box<Op<K>>>,
    made: ProcessMark,
}

impl<K> Default for Operations<K> {
    fn default() -> Operations<K> {
        Operations {
            slots: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            waits_anew: false,
            woken: 0,
            undecided: Undecided::default(),
            deletions_undecided: VecDeque::new(),
            sequence_next: 0,
            kept_bytes: 0,
            spare: Vec::new(),
            made: ProcessMark::now(),
        }
    }
}

impl<K: Default> Operations<K> {
    pub fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Bytes of keys and values that the operations hold.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    pub fn tokens(&self) -> impl Iterator<Item = u64> {
        self.slots.iter().flatten().map(|op| op.token)
    }

    /// The operations that are in their slots, with their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Op<K>)> {
        self.slots.iter_mut().enumerate().filter_map(|(number, op)| Some((number, op.as_deref_mut()?)))
    }

    pub fn get(&self, number: usize) -> Option<&Op<K>> {
        self.slots[number].as_deref()
    }

    pub fn get_mut(&mut self, number: usize) -> Option<&mut Op<K>> {
        self.slots[number].as_deref_mut()
    }

    /// Whether an operation is the first of its key. Later ones wait until it is decided.
    pub fn is_first(&self, number: usize, op: &Op<K>) -> bool {
        self.undecided.get(&op.hash).is_some_and(|chain| chain.first == number)
    }

    /// Takes an operation out of its slot, to work on it.
    pub fn take(&mut self, number: usize) -> Box<Op<K>> {
        let Some(op) = self.slots[number].take() else { unreachable!("operation {number} is in its slot") };
        op
    }

    /// Puts an operation back into its slot.
    pub fn put(&mut self, number: usize, op: Box<Op<K>>) {
        self.slots[number] = Some(op);
    }

    /// Keeps an operation, behind all that have a place. Returns its number.
    pub fn keep(&mut self, target: OpTarget, request: &Request<'_>) -> usize {
        let mut op = self.spare.pop().unwrap_or_default();
        (op.token, op.keyspace, op.hash) = (target.token, target.keyspace, target.hash);
        op.value_bytes_allowed = target.value_bytes_allowed;
        op.request.assign(request);
        op.kept_bytes = request.payload_bytes();
        self.kept_bytes += op.kept_bytes;
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.enter(number, op);
        number
    }

    /// Keeps an operation and takes it out of its slot, to continue at once.
    pub fn keep_at_hand(&mut self, target: OpTarget, request: &Request<'_>) -> (usize, Box<Op<K>>) {
        let number = self.keep(target, request);
        (number, self.take(number))
    }

    /// Gives an operation its place, behind all others.
    pub fn enter(&mut self, number: usize, mut op: Box<Op<K>>) {
        self.sequence_next += 1;
        op.sequence = self.sequence_next;
        if op.request.deletes_all() {
            self.deletions_undecided.push_back(op.sequence);
        }
        let hash = op.hash;
        self.slots[number] = Some(op);
        match self.undecided.entry(hash) {
            Entry::Vacant(none) => drop(none.insert(KeyChain { first: number, last: number })),
            Entry::Occupied(mut chain) => {
                let before = std::mem::replace(&mut chain.get_mut().last, number);
                let Some(before) = &mut self.slots[before] else { unreachable!("an undecided operation is kept") };
                before.next_of_key = Some(number);
            }
        }
    }

    /// Keeps an operation that is attempted later, or after those before it.
    pub fn wait(&mut self, target: OpTarget, request: &Request<'_>) {
        let number = self.keep(target, request);
        self.wait_for_turn(target.hash, number);
    }

    /// Queues an operation that has its place, if it is the first of its key. Otherwise its turn comes after those before it.
    pub fn wait_for_turn(&mut self, hash: HashKey, number: usize) {
        if self.undecided[&hash].first == number {
            self.waiting.push_back(number);
            self.waits_anew = true;
        }
    }

    /// Queues the first operation of its key for the next poll.
    pub fn wait_again(&mut self, number: usize, op: Box<Op<K>>) {
        self.slots[number] = Some(op);
        self.waiting.push_back(number);
    }

    /// As [`Operations::wait_again`], for an operation in its slot.
    pub fn attempt_again(&mut self, number: usize) {
        self.waiting.push_back(number);
    }

    /// Removes an operation, the first of its key, from its place. The next one may go on; if that is out of its slot, whoever works on it continues
    /// it.
    fn leave(&mut self, number: usize, op: &mut Op<K>) {
        let Entry::Occupied(mut chain) = self.undecided.entry(op.hash) else { unreachable!("it was undecided") };
        assert_eq!(chain.get().first, number, "operations of a key are decided in order");
        match op.next_of_key.take() {
            None => drop(chain.remove()),
            Some(next) => {
                chain.get_mut().first = next;
                if self.slots[next].is_some() {
                    self.waiting.push_front(next);
                    self.woken += 1;
                }
            }
        }
    }

    /// Keeps an operation without a place until [`Operations::enter`] or [`Operations::end`].
    pub fn step_aside(&mut self, number: usize, mut op: Box<Op<K>>) {
        self.leave(number, &mut op);
        op.sequence = NO_PLACE;
        self.slots[number] = Some(op);
    }

    /// Ends a decided operation. The next one of its key may go on.
    pub fn forget(&mut self, number: usize, mut op: Box<Op<K>>) {
        self.leave(number, &mut op);
        if op.request.deletes_all() {
            assert_eq!(self.deletions_undecided.pop_front(), Some(op.sequence), "deletions are decided in order");
            self.woken = self.waiting.len();
        }
        self.end(number, op);
    }

    /// Ends an operation without a place.
    pub fn end(&mut self, number: usize, mut op: Box<Op<K>>) {
        self.kept_bytes -= op.kept_bytes;
        op.kept = K::default();
        op.request.take_value();
        if self.spare.len() < SPARE_OPS && op.request.key.capacity() <= SPARE_KEY_BYTES {
            self.spare.push(op);
        }
        self.free.push(number);
    }

    /// The reason why its operations wait.
    pub fn waits(&self) -> EngineWait {
        if self.waits_anew || self.woken > 0 {
            EngineWait::Poll
        } else if self.waiting.is_empty() {
            EngineWait::Commands
        } else {
            EngineWait::Change
        }
    }

    /// Begins attempts of all waiting operations. Returns their number.
    pub fn begin_attempts(&mut self) -> usize {
        (self.waits_anew, self.woken) = (false, 0);
        self.waiting.len()
    }

    /// The number of operations that were woken since the last call.
    pub fn take_woken(&mut self) -> usize {
        std::mem::take(&mut self.woken)
    }

    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the first waiting operation.
    pub fn take_waiting(&mut self) -> Option<(usize, Box<Op<K>>)> {
        let number = self.waiting.pop_front()?;
        Some((number, self.take(number)))
    }

    /// Whether a deletion of everything is undecided.
    pub fn deletes_all(&self) -> bool {
        !self.deletions_undecided.is_empty()
    }

    /// Whether an operation of this hash key is undecided.
    pub fn has_undecided(&self, hash: HashKey) -> bool {
        self.undecided.contains_key(&hash)
    }

    /// Whether a new operation must wait behind an undecided one. In a forked child every operation must, as nothing is carried out there.
    pub fn must_wait(&self, hash: HashKey, request: &Request<'_>) -> bool {
        if !self.made.is_here() {
            return true;
        }
        match request {
            Request::DeleteAll { .. } => !self.undecided.is_empty(),
            _ => self.deletes_all() || self.undecided.contains_key(&hash),
        }
    }

    /// Whether a deletion of everything blocks this operation, or it is one itself and has others before it.
    pub fn is_behind_deletion(&self, op: &Op<K>) -> bool {
        match op.request.deletes_all() {
            false => self.deletions_undecided.front().is_some_and(|&deletion| deletion < op.sequence),
            true => self.slots.iter().flatten().any(|other| other.sequence < op.sequence),
        }
    }
}
