//! The limits of one client, and the reasons why it waits: the part of a connection that a door uses.
//!
//! A client is *blocked* while a limit stops it: its unanswered requests or unsent replies are at their limit, the shared budget is used
//! up, the worker has the most gets in flight, one of its gets asks for room, or its door waits until all is answered. A blocked client's
//! input is not read: back-pressure. Owned by one worker.

use std::net::IpAddr;
use std::os::fd::RawFd;

use tapetum::{KeyspaceRef, Request};

use super::asked::{AskedValue, TRIED_BYTES};
use crate::doors::context::Context;
use crate::doors::door::Load;
use crate::net::gets::Gets;
use crate::net::limits::{Budget, FREE_BYTES, Limits};
use crate::net::out::{OutQueue, Pool};
use crate::store::errands::{Errand, Order};

/// A request's own cost besides its value: the door's state for it, its key, the store's state.
pub(super) const REQUEST_BYTES: usize = 256;

/// The part of the shared budget that a client waits for.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub bytes: usize,
    wanted_for: WantedFor,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WantedFor {
    /// Input, or a value that asks for room.
    Bytes,
    Request,
    /// A get, which may be tried without the budget.
    Get,
}

/// Permission to submit one request.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// The charge of the request until its outcome comes. The door keeps it, and passes it to [`Client::got`].
    pub charge_bytes: usize,
    /// For a get, the longest value that comes without asking for room. For an append, the room for values that it may take.
    value_bytes_unasked: Option<usize>,
}

impl Admission {
    /// Permission for a request that reads a value to make another of it: for a long one it asks for room first, like a get.
    pub fn to_join(self, cx: &Context<'_>) -> Admission {
        let unasked = cx.gets.value_bytes_unasked(cx.budget).max(TRIED_BYTES);
        Admission { value_bytes_unasked: Some(unasked), ..self }
    }
}

/// The room for replies to requests that are answered at once: see [`Client::answer_room`].
pub struct AnswerRoom<'a> {
    who: u64,
    budget: &'a Budget,
    /// Bytes held by replies before these.
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
    /// One side closed it regularly.
    Normal,
    /// The client broke the protocol.
    Error,
    /// It was idle for too long.
    Idle,
}

pub struct Client {
    id: u32,
    /// The descriptor of its socket, by which watchers know it; -1 if it has no socket of its own.
    descriptor: RawFd,
    /// `None` at a Unix socket.
    address: Option<IpAddr>,
    /// The process at the other end of a Unix socket is the server's user's, or root's.
    is_owner: bool,
    /// The name in the client's certificate, which was verified.
    certificate_name: Option<Box<str>>,
    /// The client's next bytes are TLS.
    pub(super) begins_tls: bool,
    /// Input that was taken has a password in it.
    has_secret: bool,
    /// Its identity at the budget.
    pub(super) who: u64,
    /// The input holds no whole frame before it has so many bytes.
    pub(super) need_bytes: usize,
    /// Bytes of input to discard.
    pub(super) skip_bytes: usize,
    pub out: OutQueue,
    /// No more input is taken until all submitted requests are answered.
    barrier: bool,
    /// No more input is taken. Closed when everything is answered and sent.
    pub(crate) closing: bool,
    pub(super) close_reason: CloseReason,
    /// The connection cannot send any more.
    pub(super) gone: bool,
    pub(crate) blocked: bool,
    /// Blocked because the worker has the most gets in flight.
    pub(super) capped: bool,
    /// Blocked by the shared budget.
    pub(super) wait: Option<Wait>,
    pub(crate) charged_bytes: usize,
    /// With so many bytes of unsent replies, no more requests are answered at once.
    answers_bytes_max: usize,
    /// Nothing is sent before all is answered, so waiting does not make room for unsent replies.
    is_sent_whole: bool,
    /// Requests answered at once since the last look.
    pub(super) answered_at_once: usize,
    /// Gets and appends that ask for room for their values, in the order of their replies.
    pub(in crate::doors) asked: Vec<AskedValue>,
    /// One of its requests has asked for room: it uses long values.
    pub(super) has_asked: bool,
    /// The length of values that its gets returned recently; `None` before the first.
    value_bytes_expected: Option<usize>,
}

impl Client {
    pub fn new(worker: usize, id: u32) -> Client {
        Client {
            id,
            descriptor: -1,
            address: None,
            is_owner: false,
            certificate_name: None,
            begins_tls: false,
            has_secret: false,
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

    /// Resets it for another client, whose replies are sent together, with at most `answers_bytes_max` bytes of them written at once.
    /// Buffers are kept, and values of the given length are expected.
    pub fn renew(&mut self, value_bytes_expected: Option<usize>, answers_bytes_max: usize) {
        let Client { id, who, .. } = *self;
        let out = std::mem::take(&mut self.out);
        *self =
            Client { id, who, out, value_bytes_expected, answers_bytes_max, is_sent_whole: true, ..Client::new(0, 0) };
    }

    /// Its number within its worker.
    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    pub fn set_address(&mut self, address: Option<IpAddr>) {
        self.address = address;
    }

    pub fn is_owner(&self) -> bool {
        self.is_owner
    }

    pub fn set_is_owner(&mut self, is_owner: bool) {
        self.is_owner = is_owner;
    }

    pub fn certificate_name(&self) -> Option<&str> {
        self.certificate_name.as_deref()
    }

    pub fn set_certificate_name(&mut self, name: Option<String>) {
        self.certificate_name = name.map(String::into_boxed_str);
    }

    /// The client's next bytes are TLS.
    pub fn begin_tls(&mut self) {
        self.begins_tls = true;
    }

    /// Whoever holds the input that was just taken wipes it.
    pub fn note_secret(&mut self) {
        self.has_secret = true;
    }

    /// Whether input that was taken since the last call has a password in it.
    pub fn take_secret(&mut self) -> bool {
        std::mem::take(&mut self.has_secret)
    }

    pub fn set_descriptor(&mut self, descriptor: RawFd) {
        self.descriptor = descriptor;
    }

    // For doors: input.

    /// A frame has been taken. The next `skip_bytes` of input belong to it and are discarded.
    pub fn frame_done(&mut self, skip_bytes: usize) {
        (self.need_bytes, self.skip_bytes) = (0, skip_bytes);
    }

    /// There is no whole frame before the input holds `total_bytes` from the next step's first byte.
    pub fn need(&mut self, total_bytes: usize) {
        self.need_bytes = total_bytes;
    }

    /// Takes no more input; the connection is closed when everything is answered and sent.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Notes that the client broke the protocol, as the reason whichever side closes the connection.
    pub fn note_error(&mut self) {
        self.close_reason = CloseReason::Error;
    }

    /// [`Client::close`], for a client that broke the protocol.
    pub fn break_off(&mut self) {
        self.note_error();
        self.close();
    }

    /// Blocks the client until something is answered or sent.
    pub fn block(&mut self) {
        self.blocked = true;
    }

    /// Takes no more input until everything submitted is answered. Returns whether it already is.
    pub fn wait_for_all(&mut self, load: Load) -> bool {
        self.barrier = true;
        self.blocked = load.pending > 0;
        !self.blocked
    }

    /// Takes no more input after the request being submitted, until that is answered.
    pub fn set_barrier(&mut self) {
        self.barrier = true;
    }

    /// Whether there is no barrier, or it is passed.
    pub fn passes_barrier(&mut self, load: Load) -> bool {
        if self.barrier && load.pending > 0 {
            self.blocked = true;
            return false;
        }
        self.barrier = false;
        true
    }

    /// Whether it holds the most that it may, unanswered or unsent. Requests that need nothing from the store have no other limit.
    pub fn is_full(&mut self, load: Load, limits: &Limits, budget: &Budget) -> bool {
        let held_bytes = self.held_bytes(load);
        let spent = held_bytes > FREE_BYTES && !self.may_take(0, WantedFor::Request, budget);
        let is_empty = load.pending == 0 && self.out.is_empty();
        let full = spent || (held_bytes >= limits.connection_in_flight_bytes && !is_empty);
        self.blocked |= full;
        full
    }

    // For doors: requests.

    /// Admits a request that holds `bytes` until it is answered. `None` blocks the client. `is_get`: it returns a value, which likely has
    /// that length. A request within every client's free allowance does not ask the budget.
    pub fn admit(&mut self, load: Load, is_get: bool, bytes: usize, cx: &Context<'_>) -> Option<Admission> {
        if self.may_submit(load, is_get, bytes, cx) {
            // Computed from the room before this request takes its part.
            let unasked = is_get.then(|| bytes.max(cx.gets.value_bytes_unasked(cx.budget)));
            return Some(Admission { charge_bytes: bytes + REQUEST_BYTES, value_bytes_unasked: unasked });
        }
        let is_tried = is_get && cx.seat.has_room() && self.may_try(load);
        is_tried.then(|| {
            (self.blocked, self.wait) = (false, None);
            Admission { charge_bytes: REQUEST_BYTES, value_bytes_unasked: Some(TRIED_BYTES) }
        })
    }

    /// Permission to submit one of several requests for the store that a door makes of one of a client's. That one was admitted with all of
    /// their bytes. `value_bytes`: it is a get, of a value that likely has this length.
    pub fn admit_part(&mut self, load: Load, value_bytes: Option<usize>, cx: &Context<'_>) -> Option<Admission> {
        let charge_bytes = value_bytes.unwrap_or(0) + REQUEST_BYTES;
        if load.pending >= cx.limits.connection_requests {
            self.blocked = true;
            return None;
        }
        if !cx.seat.has_room() || value_bytes.is_some() && !cx.gets.may_submit(charge_bytes) {
            (self.blocked, self.capped) = (true, true);
            return None;
        }
        Some(Admission { charge_bytes, value_bytes_unasked: value_bytes })
    }

    /// Charges an admitted request whose parts are submitted later.
    pub fn keep(&mut self, admission: Admission, budget: &Budget) {
        self.charge(self.charged_bytes + admission.charge_bytes, budget);
    }

    /// Submits, as request `number`, a barrier that was admitted as a part: see [`tapetum::Session::submit_sync`].
    pub fn submit_sync(&mut self, number: u32, cx: &mut Context<'_>) {
        cx.seat.submit_sync(self.token(number));
    }

    /// Submits an admitted request for a keyspace as request `number` of its door.
    pub fn submit(
        &mut self,
        number: u32,
        keyspace: KeyspaceRef,
        request: Request<'_>,
        admission: Admission,
        cx: &mut Context<'_>,
    ) {
        self.charge(self.charged_bytes + admission.charge_bytes, cx.budget);
        let token = self.token(number);
        let Some(value_bytes_unasked) = admission.value_bytes_unasked else {
            return cx.seat.submit(keyspace, token, request);
        };
        cx.gets.submitted(admission.charge_bytes);
        cx.seat.submit_within(keyspace, token, request, value_bytes_unasked);
    }

    /// Sends an admitted errand as request `number`. Returns whether it was accepted.
    pub fn send(&mut self, number: u32, errand: Errand, admission: Admission, cx: &mut Context<'_>) -> bool {
        self.charge(self.charged_bytes + admission.charge_bytes, cx.budget);
        cx.errands.send(Order { errand, worker: cx.worker, token: self.token(number) })
    }

    /// Sends the next of several errands of request `number`, which was admitted with the first. Returns whether it was accepted.
    pub fn send_again(&self, number: u32, errand: Errand, cx: &Context<'_>) -> bool {
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

    /// To be called when a get that was charged with `charge_bytes` has its outcome, with the length of the value, if there was one.
    pub fn got(&mut self, charge_bytes: usize, value_bytes: Option<usize>, gets: &mut Gets) {
        gets.completed(charge_bytes, value_bytes.unwrap_or(0));
        let expected = self.value_bytes_expected(gets) / 2;
        // A miss says nothing about values: use the length that other clients' gets returned.
        let seen = value_bytes.unwrap_or_else(|| gets.value_bytes_recent());
        self.value_bytes_expected = Some(seen.max(expected));
    }

    /// The likely length of a get's value.
    pub fn value_bytes_expected(&self, gets: &Gets) -> usize {
        self.value_bytes_expected.unwrap_or_else(|| gets.value_bytes_at_first())
    }

    // For doors: replies to requests that are never submitted, because DRAM has the answer.

    /// The room for such replies.
    pub fn answer_room<'a>(&self, limits: &Limits, budget: &'a Budget) -> AnswerRoom<'a> {
        let bytes_max = limits.connection_in_flight_bytes.min(self.answers_bytes_max);
        AnswerRoom { who: self.who, budget, held_bytes: self.out.held_bytes(), bytes_max }
    }

    /// Accounts for so many requests answered within `room`. The last get among them had a value of `value_bytes`.
    pub fn answered(&mut self, room: &AnswerRoom<'_>, requests: usize, value_bytes: Option<usize>, gets: &Gets) {
        self.charge(self.charged_bytes + self.out.held_bytes() - room.held_bytes, room.budget);
        self.answered_at_once += requests;
        if let Some(value_bytes) = value_bytes {
            self.value_bytes_expected = Some(value_bytes.max(self.value_bytes_expected(gets) / 2));
        }
    }

    /// Permission to write a reply of at most `bytes` to a request that needs nothing from the store. `None` blocks the client. A reply
    /// within every client's free allowance needs no permission.
    pub fn admit_reply(&mut self, load: Load, bytes: usize, cx: &Context<'_>) -> Option<()> {
        let may_hold = self.is_within_limits(load, bytes, cx.limits)
            && self.is_within_budget(load, bytes, WantedFor::Request, cx.budget);
        if !may_hold {
            return None;
        }
        self.charge(self.charged_bytes + bytes, cx.budget);
        Some(())
    }

    // For the net.

    /// The length of values that its gets returned recently.
    pub fn value_bytes_learned(&self) -> Option<usize> {
        self.value_bytes_expected
    }

    /// Whether it waits until others release memory.
    pub fn waits(&self) -> bool {
        self.wait.is_some()
    }

    /// Whether it waits until gets of its worker are answered.
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

    /// Whether its waiting request may go on although the budget is used up: it fits the free allowance now, or it is a get that may be
    /// tried.
    pub(super) fn needs_no_budget(&self, load: Load) -> bool {
        let Some(Wait { bytes, wanted_for }) = self.wait else { return false };
        let little = self.held_bytes(load) + bytes <= FREE_BYTES;
        (wanted_for != WantedFor::Bytes && little) || self.may_try(load)
    }

    /// Whether the budget has `bytes` more for it. If not, the client waits until it has.
    pub(super) fn may_take(&mut self, bytes: usize, wanted_for: WantedFor, budget: &Budget) -> bool {
        let allowed = budget.allows(self.who, bytes);
        if !allowed {
            (self.blocked, self.wait) = (true, Some(Wait { bytes, wanted_for }));
        }
        allowed
    }

    fn may_submit(&mut self, load: Load, is_get: bool, bytes: usize, cx: &Context<'_>) -> bool {
        let bytes = bytes + REQUEST_BYTES;
        if !self.is_within_limits(load, bytes, cx.limits) {
            return false;
        }
        if !cx.seat.has_room() || is_get && !cx.gets.may_submit(bytes) {
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

    /// Whether the shared budget has `bytes` more for it, or they fit the free allowance.
    fn is_within_budget(&mut self, load: Load, bytes: usize, wanted_for: WantedFor, budget: &Budget) -> bool {
        self.held_bytes(load) + bytes <= FREE_BYTES || self.may_take(bytes, wanted_for, budget)
    }

    /// Whether a get that waits for the budget may be tried: most values are small, and clients that ask for those need not wait for
    /// memory. A larger value asks for room.
    fn may_try(&self, load: Load) -> bool {
        let get_waits = self.wait.is_some_and(|wait| wait.wanted_for == WantedFor::Get);
        get_waits && load.pending == 0 && self.out.held_bytes() <= FREE_BYTES - TRIED_BYTES
    }

    pub(in crate::doors) fn token(&self, number: u32) -> u64 {
        u64::from(self.id) << 32 | u64::from(number)
    }

    /// Releases all its memory.
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
