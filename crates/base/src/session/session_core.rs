//! The state that the parts of a session share, whatever their engines: the queue pair, local memory, and the replies.
//!
//! 1. A reply goes out when the records it shows are durable. Until then it is held, with a copy of its value.
//! 2. When a session is dropped, the queue pair goes first: after that the drive no longer works on its operations, and their extents and buffers
//!    may be freed.
//!
//! Threads: the session's. Any thread may notify `notifier`.

use super::asks::Asks;
use super::joined_bytes::JoinedBytes;
use super::reply_values::ReplyValues;
use super::spare_buffers::SpareBuffers;
use super::{KEPT_BYTES_MAX, KEPT_MEMORY_PART};
use crate::base::Base;
use crate::request::{Outcome, Reply};
use crate::wake::notify::Notifier;
use std::sync::Arc;
use tapetum_drive::{QueuePair, Returned, fail_point};

/// An answer that waits until its record is durable.
struct Held {
    token: u64,
    stamp: u64,
    /// The stamp must be durable, whatever the sync mode.
    is_barrier: bool,
    outcome: Outcome,
    read_flash: bool,
    value: Vec<u8>,
}

pub struct SessionCore {
    // First: see invariant 2.
    pub queue: QueuePair,
    pub completions: Vec<Returned>,
    pub spare_buffers: SpareBuffers,
    pub asks: Asks,
    /// The session takes no more operations when it keeps so many bytes of keys and values.
    pub kept_bytes_max: usize,
    pub joined_bytes: JoinedBytes,
    /// Pipelines of gets at the drive ([`super::near`]).
    pub near_in_flight: usize,
    held: Vec<Held>,
    /// Bytes of values in held replies.
    held_bytes: usize,
    /// Replies for the poll to return.
    pub ready: Vec<Reply>,
    pub values: ReplyValues,
    /// A batch was refused as busy, and nobody has waited for it since.
    pub batch_waits: bool,
    /// All operations in progress were answered with an error.
    pub is_over: bool,
    pub notifier: Arc<Notifier>,
    pub base: Arc<Base>,
}

impl SessionCore {
    pub fn new(base: Arc<Base>, queue: QueuePair) -> SessionCore {
        let notifier = Arc::new(Notifier::default());
        // Created here, so that no notification precedes it.
        notifier.event_fd();
        base.log.register(notifier.clone());
        let (local, pool_bytes) = (base.drive.local().clone(), base.options.budget().working_bytes() as usize);
        let memory_bytes = base.options.memory_bytes;
        SessionCore {
            kept_bytes_max: KEPT_BYTES_MAX.min((memory_bytes / KEPT_MEMORY_PART) as usize),
            joined_bytes: JoinedBytes::of_memory(memory_bytes),
            near_in_flight: 0,
            queue,
            completions: Vec::new(),
            spare_buffers: SpareBuffers::new(local, pool_bytes),
            asks: Asks::default(),
            held: Vec::new(),
            held_bytes: 0,
            ready: Vec::new(),
            values: ReplyValues::default(),
            batch_waits: false,
            is_over: false,
            notifier,
            base,
        }
    }

    /// Replies that were not returned yet.
    pub fn replies(&self) -> usize {
        self.held.len() + self.ready.len()
    }

    pub fn holds_replies(&self) -> bool {
        !self.held.is_empty()
    }

    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub fn tokens(&self) -> impl Iterator<Item = u64> {
        self.held.iter().map(|held| held.token).chain(self.ready.iter().map(|reply| reply.token))
    }

    pub fn answer(&mut self, token: u64, outcome: Outcome) {
        self.ready.push(Reply { token, outcome, read_flash: false });
    }

    /// Answers once the record with `stamp` may be shown.
    pub fn answer_after(&mut self, token: u64, stamp: u64, outcome: Outcome) {
        self.answer_shown(token, stamp, outcome, false);
    }

    /// As [`SessionCore::answer_after`]. `read_flash` tells whether the outcome needed a flash read.
    pub fn answer_shown(&mut self, token: u64, stamp: u64, outcome: Outcome, read_flash: bool) {
        let early = fail_point!(ReadUndurable)
            && matches!(outcome, Outcome::Value { .. } | Outcome::Leased { .. } | Outcome::Missing);
        if early || self.base.log.may_acknowledge(stamp) {
            return self.ready.push(Reply { token, outcome, read_flash });
        }
        let value = outcome.value().map(|value| self.values.bytes(value).to_vec()).unwrap_or_default();
        self.held_bytes += value.len();
        self.held.push(Held { token, stamp, is_barrier: false, outcome, read_flash, value });
    }

    /// Answers once everything acknowledged so far is durable, whoever wrote it.
    pub fn answer_when_durable(&mut self, token: u64) {
        let log = &self.base.log;
        let stamp = log.want_durable();
        if stamp <= log.durable_stamp() || fail_point!(SyncEarly) {
            let outcome = log.poisoned().map_or_else(Outcome::Failed, |()| Outcome::Done);
            return self.answer(token, outcome);
        }
        let outcome = Outcome::Done;
        self.held.push(Held { token, stamp, is_barrier: true, outcome, read_flash: false, value: Vec::new() });
    }

    /// Advances the log and releases the held answers that are durable. `waits` tells whether operations wait for other threads.
    pub fn release_held(&mut self, waits: bool) {
        if self.held.is_empty() {
            self.notifier.set_waiting(waits);
            return;
        }
        self.notifier.set_waiting(true);
        self.base.log.advance(true, self.base.drive.env().now_us());
        let poisoned = self.base.log.poisoned().err();
        let mut place = 0;
        while place < self.held.len() {
            let Held { stamp, is_barrier, .. } = self.held[place];
            let log = &self.base.log;
            let durable = if is_barrier { stamp <= log.durable_stamp() } else { log.may_acknowledge(stamp) };
            if !durable && poisoned.is_none() {
                place += 1;
                continue;
            }
            let mut held = self.held.swap_remove(place);
            self.held_bytes -= held.value.len();
            match &poisoned {
                Some(error) if !durable => self.answer(held.token, Outcome::Failed(error.clone())),
                _ => {
                    if let Some(value) = held.outcome.value_mut() {
                        *value = self.values.add(&held.value);
                    }
                    let Held { token, outcome, read_flash, .. } = held;
                    self.ready.push(Reply { token, outcome, read_flash });
                }
            }
        }
    }
}
