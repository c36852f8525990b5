//! The limits of one client, and what it waits for: the side of a connection that a door works with.
//!
//! A client is *blocked* while a limit keeps it from going on: its unanswered requests or unsent replies are at their limit, the shared
//! budget is spent, the worker has as many gets as it may, one of its gets asks for room, or its door waits until all is answered.
//! Then its input stays unread, so that the client feels it. Owned by one worker.

use std::os::fd::RawFd;

use tapetum::{KeyspaceRef, Request};

use super::asked::{AskedValue, TRIED_BYTES};
use crate::net::context::Context;
use crate::net::door::Load;
use crate::net::gets::Gets;
use crate::net::limits::{Budget, FREE_BYTES, Limits};
use crate::net::out::{OutQueue, Pool};
use crate::store::engine::Session;
use crate::store::errands::{Errand, Order};

/// A request's own cost beside its value: the door's note of it, its key, the store's state.
pub(super) const REQUEST_BYTES: usize = 256;

/// The part of the shared budget that a client waits for.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub bytes: usize,
    wanted_for: WantedFor,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WantedFor {
    /// Input that comes, or a value that asks for room.
    Bytes,
    Request,
    /// A get, which may be tried.
    Get,
}

/// Leave to submit one request.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// What the request is charged with until its outcome comes. The door keeps it, and gives it back to [`Client::got`].
    pub charge_bytes: usize,
    /// For a get, the longest value that comes without asking for room; for an append, what it may take for values.
    value_bytes_unasked: Option<usize>,
}

impl Admission {
    /// Leave for a request that reads a value to make another of it: of a long one it asks for room first, as a get does.
    pub fn to_join<S, W>(self, cx: &Context<'_, S, W>) -> Admission {
        let unasked = cx.gets.value_bytes_unasked(cx.budget).max(TRIED_BYTES);
        Admission { value_bytes_unasked: Some(unasked), ..self }
    }
}

/// The room for replies to requests that are answered at once: see [`Client::answer_room`].
pub struct AnswerRoom<'a> {
    who: u64,
    budget: &'a Budget,
    /// Replies before this one hold so many.
    held_bytes: usize,
    bytes_max: usize,
}

impl AnswerRoom<'_> {
    /// Whether `bytes` of replies fit.
    pub fn has(&self, bytes: usize) -> bool {
        let bytes = self.held_bytes + bytes + REQUEST_BYTES;
        bytes <= self.bytes_max && (bytes <= FREE_BYTES || self.budget.allows(self.who, bytes - self.held_bytes))
    }
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// One side wished it.
    Normal,
    /// The client broke the protocol.
    Error,
    /// It asked for nothing for too long.
    Idle,
}

pub struct Client {
    id: u32,
    /// Of its socket, by which others are told of it; -1 without one of its own.
    descriptor: RawFd,
    /// Its name at the budget.
    pub(super) who: u64,
    /// No frame ends before the input holds so many bytes.
    pub(super) need_bytes: usize,
    /// Input to throw away.
    pub(super) skip_bytes: usize,
    pub out: OutQueue,
    /// Nothing more is taken before all that was submitted is answered.
    barrier: bool,
    /// Nothing more is taken at all; closed when everything is answered and sent.
    pub(crate) closing: bool,
    pub(super) close_reason: CloseReason,
    /// Nothing can be sent any more.
    pub(super) gone: bool,
    pub(crate) blocked: bool,
    /// Blocked by the worker's number of gets.
    pub(super) capped: bool,
    /// Blocked by the shared budget.
    pub(super) wait: Option<Wait>,
    pub(crate) charged_bytes: usize,
    /// Nothing is answered at once beyond so many bytes of unsent replies.
    answers_bytes_max: usize,
    /// Nothing is sent before all is answered: unsent replies make no room by waiting.
    is_sent_whole: bool,
    /// Requests that were answered at once since the last look.
    pub(super) answered_at_once: usize,
    /// Gets and appends that ask for room for their values, in the order of their replies.
    pub(super) asked: Vec<AskedValue>,
    /// One of its requests has asked: it has to do with long values.
    pub(super) has_asked: bool,
    /// The size of values that its gets brought lately; `None` before the first.
    value_bytes_expected: Option<usize>,
}

impl Client {
    pub fn new(worker: usize, id: u32) -> Client {
        Client {
            id,
            descriptor: -1,
            who: (worker as u64 + 1) << 32 | u64::from(id),
            need_bytes: 0,
            skip_bytes: 0,
            out: OutQueue::default(),
            barrier: false,
            closing: false,
            close_reason: CloseReason::Normal,
            gone: false,
            blocked: false,
            capped: false,
            wait: None,
            charged_bytes: 0,
            answers_bytes_max: usize::MAX,
            is_sent_whole: false,
            answered_at_once: 0,
            asked: Vec::new(),
            has_asked: false,
            value_bytes_expected: None,
        }
    }

    /// Makes it another client, whose replies are sent together, and of which `answers_bytes_max` at most are written at once. It keeps
    /// the buffers, and expects values of the given size.
    pub fn renew(&mut self, value_bytes_expected: Option<usize>, answers_bytes_max: usize) {
        let Client { id, who, .. } = *self;
        let out = std::mem::take(&mut self.out);
        *self =
            Client { id, who, out, value_bytes_expected, answers_bytes_max, is_sent_whole: true, ..Client::new(0, 0) };
    }

    /// Its number among its worker's.
    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    pub fn set_descriptor(&mut self, descriptor: RawFd) {
        self.descriptor = descriptor;
    }

    // For doors: input.

    /// A frame has been taken; `skip_bytes` of input follow that belong to it and are thrown away.
    pub fn frame_done(&mut self, skip_bytes: usize) {
        (self.need_bytes, self.skip_bytes) = (0, skip_bytes);
    }

    /// No frame ends before the input holds `total_bytes` from the next step's first byte.
    pub fn need(&mut self, total_bytes: usize) {
        self.need_bytes = total_bytes;
    }

    /// Takes no more input; the connection is closed when everything is answered and sent.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// The client does not keep to the protocol: whoever closes the connection now, that is why.
    pub fn note_error(&mut self) {
        self.close_reason = CloseReason::Error;
    }

    /// [`Client::close`] for a client that does not keep to the protocol.
    pub fn break_off(&mut self) {
        self.note_error();
        self.close();
    }

    /// Takes no more before something was answered or sent.
    pub fn block(&mut self) {
        self.blocked = true;
    }

    /// Takes no more before everything submitted is answered; whether it is already.
    pub fn wait_for_all(&mut self, load: Load) -> bool {
        self.barrier = true;
        self.blocked = load.pending > 0;
        !self.blocked
    }

    /// Takes no more after the request that is being submitted before that is answered.
    pub fn set_barrier(&mut self) {
        self.barrier = true;
    }

    /// Whether the barrier, if there is one, is passed.
    pub fn passes_barrier(&mut self, load: Load) -> bool {
        if self.barrier && load.pending > 0 {
            self.blocked = true;
            return false;
        }
        self.barrier = false;
        true
    }

    /// Whether it holds as much as it may, unanswered or unsent. Requests that need nothing from the store have no other limit.
    pub fn is_full(&mut self, load: Load, limits: &Limits, budget: &Budget) -> bool {
        let held_bytes = self.held_bytes(load);
        let spent = held_bytes > FREE_BYTES && !self.may_take(0, WantedFor::Request, budget);
        let is_empty = load.pending == 0 && self.out.is_empty();
        let full = spent || (held_bytes >= limits.connection_in_flight_bytes && !is_empty);
        self.blocked |= full;
        full
    }

    // For doors: requests.

    /// Admits a request that holds `bytes` until it is answered; `None` blocks the client. `is_get`: it brings a value, which is likely to
    /// take those bytes. A request so small that every client may have it does not ask the budget.
    pub fn admit<S: Session, W>(
        &mut self,
        load: Load,
        is_get: bool,
        bytes: usize,
        cx: &Context<'_, S, W>,
    ) -> Option<Admission> {
        if self.may_submit(load, is_get, bytes, cx) {
            // Of the room before this request takes its part.
            let unasked = is_get.then(|| bytes.max(cx.gets.value_bytes_unasked(cx.budget)));
            return Some(Admission { charge_bytes: bytes + REQUEST_BYTES, value_bytes_unasked: unasked });
        }
        let is_tried = is_get && cx.session.has_room() && self.may_try(load);
        is_tried.then(|| {
            (self.blocked, self.wait) = (false, None);
            Admission { charge_bytes: REQUEST_BYTES, value_bytes_unasked: Some(TRIED_BYTES) }
        })
    }

    /// Leave to submit one of the several requests for the store that a door makes of a client's, which was admitted with all of their
    /// bytes. `value_bytes`: it is a get, of a value that is likely to be as long.
    pub fn admit_part<S: Session, W>(
        &mut self,
        load: Load,
        value_bytes: Option<usize>,
        cx: &Context<'_, S, W>,
    ) -> Option<Admission> {
        let charge_bytes = value_bytes.unwrap_or(0) + REQUEST_BYTES;
        if load.pending >= cx.limits.connection_requests {
            self.blocked = true;
            return None;
        }
        if !cx.session.has_room() || value_bytes.is_some() && !cx.gets.may_submit(charge_bytes) {
            (self.blocked, self.capped) = (true, true);
            return None;
        }
        Some(Admission { charge_bytes, value_bytes_unasked: value_bytes })
    }

    /// Charges an admitted request whose parts are submitted by and by.
    pub fn keep(&mut self, admission: Admission, budget: &Budget) {
        self.charge(self.charged_bytes + admission.charge_bytes, budget);
    }

    /// Submits, as request `number`, a barrier that was admitted as a part: see [`tapetum::Session::submit_sync`].
    pub fn submit_sync<S: Session, W>(&mut self, number: u32, cx: &mut Context<'_, S, W>) {
        cx.session.submit_sync(self.token(number));
    }

    /// Submits an admitted request for a keyspace as request `number` of its door.
    pub fn submit<S: Session, W>(
        &mut self,
        number: u32,
        (keyspace, request): (KeyspaceRef, Request<'_>),
        admission: Admission,
        cx: &mut Context<'_, S, W>,
    ) {
        self.charge(self.charged_bytes + admission.charge_bytes, cx.budget);
        let token = self.token(number);
        let Some(value_bytes_unasked) = admission.value_bytes_unasked else {
            return cx.session.submit(keyspace, token, request);
        };
        cx.gets.submitted(admission.charge_bytes);
        cx.session.submit_within(keyspace, token, request, value_bytes_unasked);
    }

    /// Sends an admitted errand as request `number`; whether somebody will do it.
    pub fn send<S, W>(
        &mut self,
        number: u32,
        errand: Errand,
        admission: Admission,
        cx: &mut Context<'_, S, W>,
    ) -> bool {
        self.charge(self.charged_bytes + admission.charge_bytes, cx.budget);
        cx.errands.send(Order { errand, worker: cx.worker, token: self.token(number) })
    }

    /// Sends the next of several errands of request `number`, which was admitted with the first; whether somebody will do it.
    pub fn send_again<S, W>(&self, number: u32, errand: Errand, cx: &Context<'_, S, W>) -> bool {
        cx.errands.send(Order { errand, worker: cx.worker, token: self.token(number) })
    }

    /// Whether one of its requests has ever asked for room.
    pub fn has_asked(&self) -> bool {
        self.has_asked
    }

    /// Whether nothing is sent to it before all is answered, as in a datagram.
    pub fn is_sent_whole(&self) -> bool {
        self.is_sent_whole
    }

    /// A get that was charged with `charge_bytes` has its outcome; a value of `value_bytes`, if there was one.
    pub fn got(&mut self, charge_bytes: usize, value_bytes: Option<usize>, gets: &mut Gets) {
        gets.completed(charge_bytes, value_bytes.unwrap_or(0));
        let expected = self.value_bytes_expected(gets) / 2;
        // A miss says nothing of values: the sizes that others' gets brought count.
        let seen = value_bytes.unwrap_or_else(|| gets.value_bytes_recent());
        self.value_bytes_expected = Some(seen.max(expected));
    }

    /// What a get is likely to bring.
    pub fn value_bytes_expected(&self, gets: &Gets) -> usize {
        self.value_bytes_expected.unwrap_or_else(|| gets.value_bytes_at_first())
    }

    // For doors: replies to requests that are never submitted, as DRAM has the answer.

    /// The room for such replies.
    pub fn answer_room<'a>(&self, limits: &Limits, budget: &'a Budget) -> AnswerRoom<'a> {
        let bytes_max = limits.connection_in_flight_bytes.min(self.answers_bytes_max);
        AnswerRoom { who: self.who, budget, held_bytes: self.out.held_bytes(), bytes_max }
    }

    /// So many requests were answered within `room`, the last get among them with a value of `value_bytes`.
    pub fn answered(&mut self, room: &AnswerRoom<'_>, requests: usize, value_bytes: Option<usize>, gets: &Gets) {
        self.charge(self.charged_bytes + self.out.held_bytes() - room.held_bytes, room.budget);
        self.answered_at_once += requests;
        if let Some(value_bytes) = value_bytes {
            self.value_bytes_expected = Some(value_bytes.max(self.value_bytes_expected(gets) / 2));
        }
    }

    /// Leave to write a reply of at most `bytes` to a request that the store is not asked for; `None` blocks the client. A reply so small that
    /// every client may have it needs none.
    pub fn admit_reply<S, W>(&mut self, load: Load, bytes: usize, cx: &Context<'_, S, W>) -> Option<()> {
        let may_hold = self.is_within_limits(load, bytes, cx.limits)
            && self.is_within_budget(load, bytes, WantedFor::Request, cx.budget);
        if !may_hold {
            return None;
        }
        self.charge(self.charged_bytes + bytes, cx.budget);
        Some(())
    }

    // For the net.

    /// The size of values that its gets brought lately.
    pub fn value_bytes_learned(&self) -> Option<usize> {
        self.value_bytes_expected
    }

    /// Whether it waits for others to give memory back.
    pub fn waits(&self) -> bool {
        self.wait.is_some()
    }

    /// Whether it waits for gets of its worker to be answered.
    pub fn capped(&self) -> bool {
        self.capped
    }

    /// Drops everything unsent: the client has gone.
    pub fn give_up(&mut self) {
        self.gone = true;
        self.closing = true;
    }

    pub(super) fn held_bytes(&self, load: Load) -> usize {
        load.held_bytes + self.out.held_bytes()
    }

    /// Whether its request that waits may go on, spent as the budget is: it has become so small that nobody is asked, or it is a get
    /// that may be tried.
    pub(super) fn needs_no_budget(&self, load: Load) -> bool {
        let Some(Wait { bytes, wanted_for }) = self.wait else { return false };
        let little = self.held_bytes(load) + bytes <= FREE_BYTES;
        (wanted_for != WantedFor::Bytes && little) || self.may_try(load)
    }

    /// Whether the budget has `bytes` more for it; if not, it waits until it has.
    pub(super) fn may_take(&mut self, bytes: usize, wanted_for: WantedFor, budget: &Budget) -> bool {
        let allowed = budget.allows(self.who, bytes);
        if !allowed {
            (self.blocked, self.wait) = (true, Some(Wait { bytes, wanted_for }));
        }
        allowed
    }

    fn may_submit<S: Session, W>(&mut self, load: Load, is_get: bool, bytes: usize, cx: &Context<'_, S, W>) -> bool {
        let bytes = bytes + REQUEST_BYTES;
        if !self.is_within_limits(load, bytes, cx.limits) {
            return false;
        }
        if !cx.session.has_room() || is_get && !cx.gets.may_submit(bytes) {
            (self.blocked, self.capped) = (true, true);
            return false;
        }
        let wanted_for = if is_get { WantedFor::Get } else { WantedFor::Request };
        self.is_within_budget(load, bytes, wanted_for, cx.budget)
    }

    /// Whether its own limits allow one more request, of `bytes`.
    fn is_within_limits(&mut self, load: Load, bytes: usize, limits: &Limits) -> bool {
        let alone = load.pending == 0 && (self.out.is_empty() || self.is_sent_whole);
        let room = load.pending < limits.connection_requests
            && self.held_bytes(load) + bytes <= limits.connection_in_flight_bytes;
        self.blocked |= !alone && !room;
        alone || room
    }

    /// Whether the shared budget has `bytes` more for it, or they are so few that it is not asked.
    fn is_within_budget(&mut self, load: Load, bytes: usize, wanted_for: WantedFor, budget: &Budget) -> bool {
        self.held_bytes(load) + bytes <= FREE_BYTES || self.may_take(bytes, wanted_for, budget)
    }

    /// Whether a get that waits for the budget may be tried: most values are small, and clients that ask for those need not wait until
    /// others give memory back. A larger value asks.
    fn may_try(&self, load: Load) -> bool {
        let get_waits = self.wait.is_some_and(|wait| wait.wanted_for == WantedFor::Get);
        get_waits && load.pending == 0 && self.out.held_bytes() <= FREE_BYTES - TRIED_BYTES
    }

    pub(super) fn token(&self, number: u32) -> u64 {
        u64::from(self.id) << 32 | u64::from(number)
    }

    /// Gives everything back.
    pub fn release(&mut self, budget: &Budget, pool: &mut Pool) {
        self.out.clear(pool);
        self.charge(0, budget);
        budget.release_overdraft(self.who);
    }

    pub(super) fn charge(&mut self, bytes: usize, budget: &Budget) {
        budget.change(self.charged_bytes, bytes);
        self.charged_bytes = bytes;
    }
}
