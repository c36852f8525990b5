//! The requests of one connection that are not answered in full yet, in the order of arrival.
//!
//! Outcomes come in any order, and replies leave in the order of requests. An outcome for the first slot is written out at once; any other
//! is encoded into its slot and waits.
//!
//! ```text
//!   pending --outcome--> ready --all earlier slots gone--> out
//! ```
//! Owned by one worker.

use std::collections::VecDeque;
use std::time::Instant;

use tapetum::Outcome;
use tapetum_kernels::checksum::{Salt, checksum};

use crate::doors::memcached::watching::ObservedStore;
use crate::net::out::{OutQueue, Pool};
use crate::protocol::reply::{self, Form};

struct Slot {
    form: Form,
    state: State,
    /// Start of its key, counted from the first key that this connection ever kept.
    key_at: u64,
    key_bytes: u32,
    /// Fingerprint of its key, if the store may ask for room before it brings the value; otherwise 0.
    asker_print: u32,
    /// The store may ask for room, and the request changes its item only after that.
    changes_late: bool,
    /// Memory that the request may take until it is answered.
    charge_bytes: usize,
    /// Arrival time, if latency is measured.
    came: Option<Instant>,
    /// Facts for watchers, if there are any.
    observed: Option<Box<ObservedRequest>>,
}

/// The kind of a request that is submitted behind one that may ask for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextOfKey {
    Get,
    /// An append to a value that, as far as is known, is short.
    Append,
    Change,
}

/// Facts about a request that watchers are told with its outcome.
pub struct ObservedRequest {
    pub key: Vec<u8>,
    pub store: Option<ObservedStore>,
}

enum State {
    Pending,
    Ready { bytes: Vec<u8>, breaks_off_get: bool },
}

/// A fingerprint by which requests of the same key are recognised; never 0.
fn print(key: &[u8]) -> u32 {
    checksum(Salt { store: 0, address: 0, version: 0 }, &[key]) | 1
}

#[derive(Default)]
pub struct Slots {
    queue: VecDeque<Slot>,
    /// The number of the first slot; numbers wrap.
    first: u32,
    pending: usize,
    charged_bytes: usize,
    ready_bytes: usize,
    /// Pending requests for which the store may ask for room.
    askers: usize,
    /// Keys that replies repeat, one after the other. Those of answered requests are removed from the front now and then.
    keys: Vec<u8>,
    keys_start: u64,
    /// The text get being written has failed: its remaining replies are left out.
    get_broken_off: bool,
}

impl Slots {
    const KEYS_KEPT_BYTES: usize = 4096;
    const SLOTS_KEPT: usize = 32;
    /// A slot's own size, charged while its reply waits.
    const READY_BYTES: usize = size_of::<Slot>();

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// No request waits, and no text get is being left out: bytes written to the queue now are next in order.
    pub fn are_at_rest(&self) -> bool {
        self.queue.is_empty() && !self.get_broken_off
    }

    /// Requests submitted that have no outcome yet.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Memory that these requests hold or may come to hold.
    pub fn held_bytes(&self) -> usize {
        self.charged_bytes + self.ready_bytes
    }

    /// The number of the request that was pushed last.
    pub fn last_number(&self) -> u32 {
        self.first.wrapping_add(self.queue.len() as u32).wrapping_sub(1)
    }

    pub fn is_pending(&self, number: u32) -> bool {
        self.queue.get(self.place_of(number)).is_some_and(|slot| matches!(slot.state, State::Pending))
    }

    /// How many requests before `number` have not left yet.
    pub fn place_of(&self, number: u32) -> usize {
        number.wrapping_sub(self.first) as usize
    }

    /// The form of request `number`, which is pending.
    pub fn form(&self, number: u32) -> Form {
        self.queue[self.place_of(number)].form
    }

    /// The key of request `number`, which is pending, or the text that its reply has in its place; empty if neither was kept.
    pub fn key(&self, number: u32) -> &[u8] {
        let slot = &self.queue[self.place_of(number)];
        let from = (slot.key_at - self.keys_start) as usize;
        &self.keys[from..from + slot.key_bytes as usize]
    }

    /// The charge of request `number`, which is pending.
    pub fn charge_bytes(&self, number: u32) -> usize {
        self.queue[self.place_of(number)].charge_bytes
    }

    /// Replaces the charge of request `number`, which is pending.
    pub fn charge(&mut self, number: u32, bytes: usize) {
        let at = self.place_of(number);
        let slot = &mut self.queue[at];
        self.charged_bytes = self.charged_bytes - slot.charge_bytes + bytes;
        slot.charge_bytes = bytes;
    }

    /// Adds a request that is being submitted and returns its number.
    pub fn push(&mut self, form: Form, key: &[u8], charge_bytes: usize) -> u32 {
        let key = if form.keeps_key() { key } else { b"" };
        let key_at = self.keys_start + self.keys.len() as u64;
        self.keys.extend_from_slice(key);
        let (state, key_bytes, asker_print) = (State::Pending, key.len() as u32, 0);
        self.queue.push_back(Slot {
            form,
            state,
            key_at,
            key_bytes,
            asker_print,
            changes_late: false,
            charge_bytes,
            came: None,
            observed: None,
        });
        self.pending += 1;
        self.charged_bytes += charge_bytes;
        self.first.wrapping_add(self.queue.len() as u32 - 1)
    }

    /// Sets the arrival time of the last request added.
    pub fn last_came(&mut self, came: Instant) {
        if let Some(last) = self.queue.back_mut() {
            last.came = Some(came);
        }
    }

    /// Sets the facts for watchers of the last request added.
    pub fn last_is_observed(&mut self, observed: ObservedRequest) {
        if let Some(last) = self.queue.back_mut() {
            last.observed = Some(Box::new(observed));
        }
    }

    /// Facts for watchers about request `number`, which is pending. Given once.
    pub fn take_observed(&mut self, number: u32) -> Option<Box<ObservedRequest>> {
        let at = self.place_of(number);
        self.queue[at].observed.take()
    }

    /// The arrival time of request `number`, which is pending, if it was set.
    pub fn came(&self, number: u32) -> Option<Instant> {
        self.queue[self.place_of(number)].came
    }

    /// The last request added, of `key`, may ask for room for its value, and takes effect after that. `changes`: it changes the item.
    pub fn last_may_ask(&mut self, key: &[u8], changes: bool) {
        let Some(last) = self.queue.back_mut() else { unreachable!("it was just added") };
        (last.asker_print, last.changes_late) = (print(key), changes);
        self.askers += 1;
    }

    /// Whether request `number`, which is pending, may ask for room.
    pub fn may_ask(&self, number: u32) -> bool {
        self.queue[self.place_of(number)].asker_print != 0
    }

    /// Whether a pending request of `key` may take effect after one that is submitted now, and the order matters. It does not matter
    /// between two gets, nor between two appends that both ask, as the first gets its room first. Fingerprints of different keys may
    /// collide; the caller then waits in vain.
    pub fn may_overtake(&self, key: &[u8], next: NextOfKey) -> bool {
        if self.askers == 0 {
            return false;
        }
        let print = print(key);
        let matters = |slot: &Slot| match slot.changes_late {
            true => next != NextOfKey::Append,
            false => next != NextOfKey::Get,
        };
        self.queue.iter().any(|slot| slot.asker_print == print && matters(slot))
    }

    /// Adds a reply that needs no outcome.
    pub fn answer(&mut self, out: &mut OutQueue, pool: &mut Pool, form: Form, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = pool.take();
        write(&mut bytes);
        self.ready_bytes += bytes.len() + Slots::READY_BYTES;
        let state = State::Ready { bytes, breaks_off_get: false };
        let key_at = self.keys_start + self.keys.len() as u64;
        self.queue.push_back(Slot {
            form,
            state,
            key_at,
            key_bytes: 0,
            asker_print: 0,
            changes_late: false,
            charge_bytes: 0,
            came: None,
            observed: None,
        });
        self.release(out, pool);
    }

    /// Takes the outcome of slot `number`, whose value, if any, is `value`.
    pub fn complete(&mut self, number: u32, outcome: &Outcome, value: &[u8], out: &mut OutQueue, pool: &mut Pool) {
        let at = self.place_of(number);
        let slot = &mut self.queue[at];
        assert!(matches!(slot.state, State::Pending), "one outcome a request");
        let key_from = (slot.key_at - self.keys_start) as usize;
        let key = &self.keys[key_from..key_from + slot.key_bytes as usize];
        let breaks_off_get = reply::breaks_off_get(slot.form, outcome);
        self.pending -= 1;
        self.askers -= usize::from(std::mem::take(&mut slot.asker_print) != 0);
        self.charged_bytes -= std::mem::take(&mut slot.charge_bytes);
        if at == 0 {
            let skipped = self.get_broken_off && matches!(slot.form, Form::TextGet { .. });
            if !skipped {
                out.append(pool, |out| reply::encode(out, slot.form, key, outcome, value));
                self.get_broken_off |= breaks_off_get;
            }
            self.pop();
            self.release(out, pool);
        } else {
            let mut bytes = pool.take();
            reply::encode(&mut bytes, slot.form, key, outcome, value);
            self.ready_bytes += bytes.len() + Slots::READY_BYTES;
            slot.state = State::Ready { bytes, breaks_off_get };
        }
    }

    /// Takes the reply to slot `number`, already encoded.
    pub fn complete_with(&mut self, number: u32, bytes: Vec<u8>, out: &mut OutQueue, pool: &mut Pool) {
        let at = self.place_of(number);
        let slot = &mut self.queue[at];
        assert!(matches!(slot.state, State::Pending), "one outcome a request");
        self.pending -= 1;
        self.charged_bytes -= std::mem::take(&mut slot.charge_bytes);
        self.ready_bytes += bytes.len() + Slots::READY_BYTES;
        slot.state = State::Ready { bytes, breaks_off_get: false };
        self.release(out, pool);
    }

    /// Writes out the replies that are ready at the front.
    fn release(&mut self, out: &mut OutQueue, pool: &mut Pool) {
        while let Some(Slot { form, state: State::Ready { bytes, breaks_off_get }, .. }) = self.queue.front_mut() {
            let bytes = std::mem::take(bytes);
            self.ready_bytes -= bytes.len() + Slots::READY_BYTES;
            let skipped = match form {
                Form::TextGet { .. } => self.get_broken_off,
                Form::TextGetEnd => std::mem::take(&mut self.get_broken_off),
                _ => false,
            };
            self.get_broken_off |= *breaks_off_get;
            if skipped || bytes.is_empty() {
                pool.give(bytes);
            } else {
                out.append_buffer(pool, bytes);
            }
            self.pop();
        }
    }

    fn pop(&mut self) {
        let Some(slot) = self.queue.pop_front() else { return };
        self.first = self.first.wrapping_add(1);
        if self.queue.is_empty() {
            self.forget();
            return;
        }
        let done = (slot.key_at - self.keys_start) as usize + slot.key_bytes as usize;
        if done > Slots::KEYS_KEPT_BYTES && done > self.keys.len() / 2 {
            self.keys.drain(..done);
            self.keys_start += done as u64;
        }
    }

    /// Frees the buffers, so that an idle connection keeps little.
    fn forget(&mut self) {
        self.keys_start += self.keys.len() as u64;
        self.keys.clear();
        self.keys.shrink_to(Slots::KEYS_KEPT_BYTES);
        self.queue.shrink_to(Slots::SLOTS_KEPT);
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
