//! One client's side of the protocol: its requests in order, and what is still to be sent to it. Bytes come and go through a
//! socket ([`Stream`]) or in datagrams (`doors/memcached/udp`).
//!
//! Input is consumed from its first byte, frame by frame; what a frame asks for is submitted at once, and the bytes that
//! are left (a frame that has not arrived whole) stay with whoever brought them. It takes no more while it is *blocked*: its
//! requests or unsent replies are at their limit, the shared budget is spent, one of its gets asks for room, or the next request would
//! change what a get of its own may still have to ask for. Owned by one worker.

mod alone;
mod asked;
mod stream;

pub use alone::Alone;
pub use asked::TRIED_BYTES;
pub use stream::Stream;

use tapetum::Outcome;

use crate::doors::memcached::pipeline::{Came, Pipeline, Taken};
use crate::doors::memcached::protocol::reply::Form;
use crate::doors::memcached::protocol::{BINARY_MAGIC, Parsed, binary, text};
use crate::doors::memcached::slots::Slots;
use crate::net::gets::Gets;
use crate::net::limits::{Budget, FREE_BYTES, Limits};
use crate::net::out::{OutQueue, Pool};
use crate::stats::{Counters, Figures, count};
use crate::store::engine::Session;
use crate::store::errands::Errands;

/// A request's own cost beside its value: slot, key, what the store keeps.
const REQUEST_BYTES: usize = 256;

/// What a worker lends a connection.
pub struct Context<'a, S> {
    pub session: &'a mut S,
    pub limits: &'a Limits,
    pub budget: &'a Budget,
    pub figures: &'a Figures,
    pub errands: &'a Errands,
    /// The number of the worker.
    pub worker: usize,
    pub counters: &'a Counters,
    pub pool: &'a mut Pool,
    pub scratch: &'a mut Vec<u8>,
    /// Unix seconds.
    pub now: u32,
    pub gets: &'a mut Gets,
    pub pipeline: &'a mut Pipeline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// No byte has come yet.
    Open,
    Text,
    Binary,
}

/// A text get whose keys are being submitted one by one.
pub struct ManyKeys {
    /// What is left of the list of keys.
    pub list_bytes: usize,
    /// What follows it: the end of the line, or nothing if it `goes_on`.
    pub end_bytes: usize,
    pub goes_on: bool,
    pub touch: Option<u32>,
    pub stamps: bool,
}

impl ManyKeys {
    /// Whether the next key is yet to be found.
    pub fn is_spent(&self) -> bool {
        self.goes_on && self.list_bytes == 0
    }
}

/// What a connection wants of the shared budget, which has not as much.
#[derive(Clone, Copy)]
struct Wait {
    bytes: usize,
    wanted_for: WantedFor,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WantedFor {
    /// Input that comes, or a value that asks for room.
    Bytes,
    Request,
    /// A get that may be tried.
    Get,
}

/// What comes after a line that is thrown away.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ThenClose(pub bool);

pub struct Connection {
    pub(crate) id: u32,
    /// Its name at the budget.
    who: u64,
    protocol: Protocol,
    /// No frame before the input holds as many.
    need_bytes: usize,
    /// So many bytes of the input hold no line end.
    scanned_bytes: usize,
    /// Input to throw away.
    pub(crate) skip_bytes: usize,
    /// Input is thrown away up to the end of the line; whether the connection is closed there.
    pub(crate) skipped_line: Option<ThenClose>,
    pub(crate) many: Option<ManyKeys>,
    pub(crate) slots: Slots,
    pub(crate) out: OutQueue,
    /// Nothing more is taken before all that was submitted is answered.
    barrier: bool,
    /// Nothing more is taken at all; close when everything is answered and sent.
    pub(crate) closing: bool,
    /// Nothing can be sent any more.
    gone: bool,
    /// Why consuming stopped: a limit, not a lack of bytes.
    blocked: bool,
    /// The limit is the worker's number of gets.
    capped: bool,
    /// The limit is the shared budget.
    wait: Option<Wait>,
    charged_bytes: usize,
    /// Nothing is answered at once beyond so many bytes of unsent replies.
    answers_bytes_max: usize,
    /// Nothing is sent before all is answered: what is to be sent makes no room by waiting.
    is_sent_whole: bool,
    /// Requests that were answered at once and that nobody has asked about.
    answered_at_once: usize,
    /// Gets that ask for room for their values, in their order.
    asked: Vec<asked::Asked>,
    /// What its gets brought lately; `None` before the first.
    value_bytes_expected: Option<usize>,
}

impl Connection {
    pub fn new(worker: usize, id: u32) -> Connection {
        Connection {
            id,
            who: (worker as u64 + 1) << 32 | u64::from(id),
            protocol: Protocol::Open,
            need_bytes: 0,
            scanned_bytes: 0,
            skip_bytes: 0,
            skipped_line: None,
            many: None,
            slots: Slots::default(),
            out: OutQueue::default(),
            barrier: false,
            closing: false,
            gone: false,
            blocked: false,
            capped: false,
            wait: None,
            charged_bytes: 0,
            answers_bytes_max: usize::MAX,
            is_sent_whole: false,
            answered_at_once: 0,
            asked: Vec::new(),
            value_bytes_expected: None,
        }
    }

    /// Makes it another client's, with its rooms and with what the last ones taught of values, and one whose replies go together.
    /// Nothing is answered at once beyond `answers_bytes_max` of replies.
    pub(crate) fn renew(&mut self, value_bytes_expected: Option<usize>, answers_bytes_max: usize) {
        let Connection { id, who, .. } = *self;
        let (slots, out) = (std::mem::take(&mut self.slots), std::mem::take(&mut self.out));
        // Without the request that was given up, if one was.
        let slots = if slots.is_empty() { slots } else { Slots::default() };
        *self = Connection {
            id,
            who,
            slots,
            out,
            value_bytes_expected,
            answers_bytes_max,
            is_sent_whole: true,
            ..Connection::new(0, 0)
        };
    }

    /// What its gets brought lately.
    pub(crate) fn value_bytes_learned(&self) -> Option<usize> {
        self.value_bytes_expected
    }

    /// Whether it waits for others to give memory back.
    pub fn waits(&self) -> bool {
        self.wait.is_some()
    }

    /// Whether one that waits would get further now, though nothing happened to it.
    pub fn may_go_on(&self, budget: &Budget) -> bool {
        self.wait.is_none_or(|wait| budget.allows(self.who, wait.bytes)) || self.needs_no_budget()
    }

    /// Whether its request that waits may go on, spent as the budget is: it is so little by now that nobody is asked, or a get
    /// that may be tried.
    fn needs_no_budget(&self) -> bool {
        let Some(Wait { bytes, wanted_for }) = self.wait else { return false };
        let little = self.slots.held_bytes() + self.out.unsent_bytes() + bytes <= FREE_BYTES;
        (wanted_for != WantedFor::Bytes && little) || self.may_try()
    }

    /// Whether it waits for gets of its worker to be answered.
    pub fn capped(&self) -> bool {
        self.capped
    }

    /// Whether the budget has `bytes` more for it; if not, it waits until it has.
    fn may_take(&mut self, bytes: usize, wanted_for: WantedFor, budget: &Budget) -> bool {
        let allowed = budget.allows(self.who, bytes);
        if !allowed {
            (self.blocked, self.wait) = (true, Some(Wait { bytes, wanted_for }));
        }
        allowed
    }

    /// Drops what cannot be sent.
    pub fn give_up(&mut self) {
        self.gone = true;
        self.closing = true;
    }

    /// Takes and submits as much of `input` as there is leave to; how many bytes that was.
    pub(crate) fn consume<S: Session>(&mut self, input: &[u8], cx: &mut Context<'_, S>) -> usize {
        if self.asks() {
            (self.blocked, self.capped) = (true, false);
            return 0;
        }
        (self.blocked, self.capped, self.wait) = (false, false, None);
        let mut at = 0;
        while at < input.len() && !self.closing && !self.gone {
            if self.skip_bytes > 0 {
                let bytes = self.skip_bytes.min(input.len() - at);
                self.skip_bytes -= bytes;
                at += bytes;
                continue;
            }
            if let Some(ThenClose(close)) = self.skipped_line {
                let end = input[at..].iter().position(|&byte| byte == b'\n');
                at = end.map_or(input.len(), |end| at + end + 1);
                if end.is_some() {
                    self.skipped_line = None;
                    self.closing |= close;
                }
                continue;
            }
            if self.many.as_ref().is_some_and(ManyKeys::is_spent) {
                match self.find_more_keys(&input[at..], cx) {
                    Some(bytes) => at += bytes,
                    None => break,
                }
                continue;
            }
            if self.barrier && self.slots.pending() > 0 {
                self.blocked = true;
                break;
            }
            self.barrier = false;
            if self.many.is_none() && input.len() - at < self.need_bytes {
                break;
            }
            if self.slots.are_at_rest() && self.scanned_bytes == 0 && cx.session.answers_at_once() {
                let taken = self.answer_at_once(&input[at..], cx);
                at += taken.input_bytes;
                if taken.requests() > 0 && !taken.stopped {
                    continue;
                }
            }
            if self.is_full(cx.limits, cx.budget) {
                self.blocked = true;
                break;
            }
            let rest = &input[at..];
            let taken = match (&self.many, self.protocol) {
                (Some(_), _) => self.many_step(rest, cx),
                (_, Protocol::Open) => {
                    self.protocol = if rest[0] == BINARY_MAGIC { Protocol::Binary } else { Protocol::Text };
                    Some(0)
                }
                (_, Protocol::Text) => self.text_step(rest, cx),
                (_, Protocol::Binary) => self.binary_step(rest, cx),
            };
            match taken {
                Some(bytes) => at += bytes,
                None => break,
            }
        }
        at
    }

    /// Whether it holds as much as it may, unanswered or unsent. Commands that need nothing from the store are told nothing else
    /// about room.
    fn is_full(&mut self, limits: &Limits, budget: &Budget) -> bool {
        let held_bytes = self.slots.held_bytes() + self.out.unsent_bytes();
        let spent = held_bytes > FREE_BYTES && !self.may_take(0, WantedFor::Request, budget);
        spent || (held_bytes >= limits.connection_in_flight_bytes && !(self.slots.is_empty() && self.out.is_empty()))
    }

    /// Answers gets and sets at the start of `rest` at once, as far as that goes. Nothing before them waits for its answer.
    fn answer_at_once<S: Session>(&mut self, rest: &[u8], cx: &mut Context<'_, S>) -> Taken {
        let many = self.many.take_if(|many| many.touch.is_none());
        if self.many.is_some() {
            return Taken::default();
        }
        let (who, budget, held_bytes) = (self.who, cx.budget, self.out.unsent_bytes());
        let may_hold = |bytes: usize| {
            let bytes = bytes + REQUEST_BYTES;
            let bytes_max = cx.limits.connection_in_flight_bytes.min(self.answers_bytes_max);
            held_bytes + bytes <= bytes_max && (held_bytes + bytes <= FREE_BYTES || budget.allows(who, bytes))
        };
        let came = Came { protocol: self.protocol, now: cx.now, item_bytes_max: cx.limits.item_bytes_max };
        let (pipeline, session) = (&mut *cx.pipeline, &mut *cx.session);
        let mut taken = self.out.append(cx.pool, |out| pipeline.run(came, rest, many, session, out, may_hold));
        self.many = taken.many.take();
        self.charge(self.charged_bytes + self.out.unsent_bytes() - held_bytes, budget);
        if taken.requests() > 0 {
            self.frame_done(0);
            self.answered_at_once += taken.requests();
        }
        if let Some(value_bytes) = taken.value_bytes {
            self.value_bytes_expected = Some(value_bytes.max(self.value_bytes_expected(cx.gets) / 2));
            count(&cx.counters.cmd_get, taken.gets as u64);
            count(&cx.counters.get_hits, taken.gets as u64);
        }
        if taken.sets > 0 {
            count(&cx.counters.cmd_set, taken.sets as u64);
            count(&cx.counters.total_items, taken.sets as u64);
        }
        taken
    }

    /// One text frame; the bytes taken, `None` to stop.
    fn text_step<S: Session>(&mut self, rest: &[u8], cx: &mut Context<'_, S>) -> Option<usize> {
        match text::parse(rest, self.scanned_bytes, cx.limits.item_bytes_max) {
            Parsed::Command { command, consumed_bytes, skip_bytes } => {
                let taken = self.text_command(command, &rest[..consumed_bytes], cx)?;
                self.frame_done(skip_bytes);
                Some(taken)
            }
            Parsed::NeedMore { total_bytes, scanned_bytes } => self.need_more(total_bytes, scanned_bytes),
            Parsed::Close => self.close(),
        }
    }

    fn binary_step<S: Session>(&mut self, rest: &[u8], cx: &mut Context<'_, S>) -> Option<usize> {
        match binary::parse(rest, cx.limits.item_bytes_max) {
            Parsed::Command { command: (origin, command), consumed_bytes, skip_bytes } => {
                self.binary_command(origin, command, cx)?;
                self.frame_done(skip_bytes);
                Some(consumed_bytes)
            }
            Parsed::NeedMore { total_bytes, scanned_bytes } => self.need_more(total_bytes, scanned_bytes),
            Parsed::Close => self.close(),
        }
    }

    pub(crate) fn frame_done(&mut self, skip_bytes: usize) {
        (self.need_bytes, self.scanned_bytes, self.skip_bytes) = (0, 0, skip_bytes);
    }

    /// So many bytes of the input hold no line end.
    pub(crate) fn scanned_bytes(&self) -> usize {
        self.scanned_bytes
    }

    pub(crate) fn need_more(&mut self, total_bytes: usize, scanned_bytes: usize) -> Option<usize> {
        (self.need_bytes, self.scanned_bytes) = (total_bytes, scanned_bytes);
        None
    }

    fn close(&mut self) -> Option<usize> {
        self.closing = true;
        None
    }

    /// Nothing more is taken before all that was submitted is answered; whether it is.
    pub(crate) fn wait_for_all(&mut self) -> bool {
        self.barrier = true;
        self.blocked = self.slots.pending() > 0;
        !self.blocked
    }

    /// Whether a request that holds `bytes` until it is answered may be submitted now; if not, consuming stops. What is so
    /// little that every connection may have it does not ask the budget.
    pub(crate) fn may_submit<S: Session>(&mut self, form: Form, bytes: usize, cx: &Context<'_, S>) -> bool {
        let (limits, budget) = (cx.limits, cx.budget);
        let held_bytes = self.slots.held_bytes() + self.out.unsent_bytes();
        let alone = self.slots.is_empty() && (self.out.is_empty() || self.is_sent_whole);
        let room = self.slots.pending() < limits.connection_requests
            && held_bytes + bytes + REQUEST_BYTES <= limits.connection_in_flight_bytes;
        if !alone && !room {
            self.blocked = true;
            return false;
        }
        if !cx.session.has_room() {
            (self.blocked, self.capped) = (true, true);
            return false;
        }
        if form.is_get() && !self.may_submit_get(bytes, cx.gets) {
            return false;
        }
        let bytes = bytes + REQUEST_BYTES;
        let wanted_for = if form.is_get() { WantedFor::Get } else { WantedFor::Request };
        held_bytes + bytes <= FREE_BYTES || self.may_take(bytes, wanted_for, budget)
    }

    /// Whether a get may be tried that `may_submit` made wait for the budget: most values are small, and who asks for those need
    /// not wait until others give memory back. A larger one asks.
    fn may_try(&self) -> bool {
        let get_waits = self.wait.is_some_and(|wait| wait.wanted_for == WantedFor::Get);
        get_waits && self.slots.is_empty() && self.out.unsent_bytes() <= FREE_BYTES - TRIED_BYTES
    }

    /// [`Connection::may_try`]; then the get need not wait.
    pub(crate) fn try_get(&mut self) -> bool {
        let may_try = self.may_try();
        if may_try {
            (self.blocked, self.wait) = (false, None);
        }
        may_try
    }

    fn token(&self, number: u32) -> u64 {
        u64::from(self.id) << 32 | u64::from(number)
    }

    /// What a get is likely to bring.
    pub(crate) fn value_bytes_expected(&self, gets: &Gets) -> usize {
        self.value_bytes_expected.unwrap_or_else(|| gets.value_bytes_at_first())
    }

    /// Whether one more get may be submitted, as far as the worker is concerned.
    fn may_submit_get(&mut self, bytes: usize, gets: &Gets) -> bool {
        if !gets.may_submit(bytes + REQUEST_BYTES) {
            (self.blocked, self.capped) = (true, true);
            return false;
        }
        true
    }

    /// Adds the slot of a request that `may_submit` allowed; the token to submit it with.
    pub(crate) fn slot(&mut self, form: Form, key: &[u8], bytes: usize, budget: &Budget, gets: &mut Gets) -> u64 {
        let charge_bytes = bytes + REQUEST_BYTES;
        if form.is_get() {
            gets.submitted(charge_bytes);
        }
        self.charge(self.charged_bytes + charge_bytes, budget);
        let number = self.slots.push(form, key, charge_bytes);
        self.token(number)
    }

    /// A reply that needs nothing from the store.
    pub(crate) fn answer(&mut self, form: Form, pool: &mut Pool, write: impl FnOnce(&mut Vec<u8>)) {
        self.slots.answer(&mut self.out, pool, form, write);
    }

    pub fn complete<S: Session>(&mut self, number: u32, outcome: &Outcome, cx: &mut Context<'_, S>) {
        let value = outcome.value().map_or(&b""[..], |value| cx.session.bytes(value));
        let form = self.slots.form(number);
        if form.is_get() {
            cx.gets.completed(self.slots.charge_bytes(number), value.len());
            let expected = self.value_bytes_expected(cx.gets) / 2;
            // A miss says nothing of values: then what others brought counts.
            let seen = if outcome.value().is_some() { value.len() } else { cx.gets.value_bytes_recent() };
            self.value_bytes_expected = Some(seen.max(expected));
        }
        cx.counters.outcome(form, outcome);
        if let Outcome::Failed(error) = outcome {
            cx.figures.full_log.note(error, cx.now);
        }
        self.slots.complete(number, outcome, value, &mut self.out, cx.pool);
    }

    /// The errand that it was sent on is done.
    pub fn complete_errand(&mut self, number: u32, answer: Vec<u8>, pool: &mut Pool) {
        // Without a reply asked for, none is given.
        let answer = if self.slots.form(number) == Form::Silent { Vec::new() } else { answer };
        self.slots.complete_with(number, answer, &mut self.out, pool);
    }

    /// Nothing more is taken before what was submitted is answered.
    pub(crate) fn set_barrier(&mut self) {
        self.barrier = true;
    }

    /// How many answers the store owes it.
    pub(crate) fn pending(&self) -> usize {
        self.slots.pending()
    }

    /// Gives everything back.
    pub(crate) fn release(&mut self, budget: &Budget, pool: &mut Pool) {
        self.out.clear(pool);
        self.charge(0, budget);
        budget.release_overdraft(self.who);
    }

    /// Charges the budget with what is held now, `input_bytes` that wait among it.
    pub(crate) fn settle(&mut self, input_bytes: usize, budget: &Budget) {
        let held_bytes = input_bytes + self.slots.held_bytes() + self.out.unsent_bytes();
        self.charge(held_bytes.saturating_sub(FREE_BYTES), budget);
        // Who is within the budget needs it no more: others may.
        if self.charged_bytes == 0 || budget.has(0) {
            budget.release_overdraft(self.who);
        }
    }

    fn charge(&mut self, bytes: usize, budget: &Budget) {
        budget.change(self.charged_bytes, bytes);
        self.charged_bytes = bytes;
    }
}
