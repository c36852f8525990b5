//! One client's side of memcached's protocols.

use std::sync::Arc;
use tapetum::Expiry;

use tapetum::{KeyspaceRef, Outcome, Reply};

use super::access::{Admission, ClientAccess};
use super::listing::Listing;
use super::needs::{READ, WRITE};
use super::pipeline::{self, Came, Taken};
use super::slots::Slots;
use super::{outcomes, submit, watching};
use crate::doors::connection::Client;
use crate::doors::context::Context;
use crate::doors::door::{Load, Step};
use crate::doors::open_keyspaces::OpenKeyspaces;
use crate::net::out::Pool;
use crate::protocol::kinds;
use crate::protocol::{BINARY_MAGIC, Parsed, binary, text};
use crate::stats::count;
use crate::stats::observers::WatchSeat;
use crate::store::errands::Answer;
use tapetum_access::credentials::CREDENTIALS_BYTES_MAX;

/// The options of a listener, for all its clients. Options of `--memcached ADDR` belong here.
#[derive(Clone, Debug)]
pub struct MemcachedOptions {
    /// The keyspace whose keys the clients see: the one that has the name now.
    pub keyspace: KeyspaceRef,
    pub keyspace_name: Arc<str>,
    /// Whether clients may delete the whole keyspace at once (`flush_all`).
    pub may_flush: bool,
    pub admission: Admission,
}

impl Default for MemcachedOptions {
    fn default() -> MemcachedOptions {
        let keyspace_name = tapetum::DEFAULT_KEYSPACE_NAME.into();
        MemcachedOptions {
            keyspace: KeyspaceRef::DEFAULT,
            keyspace_name,
            may_flush: true,
            admission: Admission::Everybody,
        }
    }
}

impl MemcachedOptions {
    /// Looks the keyspace up again.
    pub fn follow(&mut self, open: &OpenKeyspaces) {
        self.keyspace = open.plain(&self.keyspace_name);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// No byte has come yet.
    Open,
    Text,
    Binary,
}

/// A text get whose keys are submitted one by one.
pub struct ManyKeys {
    /// Bytes of the list of keys that are left.
    pub list_bytes: usize,
    /// Bytes of the line end behind the list; zero if it `goes_on`.
    pub end_bytes: usize,
    pub goes_on: bool,
    pub touch: Option<Expiry>,
    pub stamps: bool,
}

impl ManyKeys {
    /// Whether the current list is used up, so that the next key must be found first.
    pub fn is_spent(&self) -> bool {
        self.goes_on && self.list_bytes == 0
    }
}

/// Whether to close the connection after a line that is discarded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ThenClose(pub bool);

pub struct Memcached {
    pub(super) protocol: Protocol,
    /// The first so many bytes of the input hold no line end.
    pub(super) scanned_bytes: usize,
    /// Input is discarded up to the end of the line.
    pub(super) skipped_line: Option<ThenClose>,
    pub(super) many: Option<ManyKeys>,
    pub(super) listing: Option<Listing>,
    pub(in crate::doors) watching: Option<WatchSeat>,
    /// For watchers, the get before the next request has been submitted.
    pub(super) looked_up: bool,
    pub(in crate::doors) slots: Slots,
    pub(in crate::doors) options: MemcachedOptions,
    pub(super) access: ClientAccess,
    /// Pending requests of an admin, to be noted when they have ended.
    pub(super) audited: Vec<(u32, String)>,
}

impl Memcached {
    pub fn step(&mut self, input: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Step {
        if self.access.refresh(&self.options.keyspace_name) && self.is_taken_away() {
            self.end_taken_away(client, cx);
            return Step::Stop(0);
        }
        if self.watching.is_some() {
            return self.go_on_watching(input, client, cx);
        }
        if self.listing.is_some() {
            return self.go_on_listing(client, cx);
        }
        if let Some(then) = self.skipped_line {
            return Step::Took(self.skip_line(then, input, client));
        }
        if self.many.as_ref().is_some_and(ManyKeys::is_spent) {
            return self.find_more_keys(input, client, cx).map_or(Step::Stop(0), Step::Took);
        }
        if !client.passes_barrier(self.load()) {
            return Step::Stop(0);
        }
        let mut at = 0;
        let is_observed = cx.figures.observers.wants(kinds::REQUESTS);
        if self.slots.are_at_rest()
            && self.scanned_bytes == 0
            && cx.seat.session().is_some_and(pipeline::answers_at_once)
            && !is_observed
            && !self.access.is_nobody()
        {
            let taken = self.answer_at_once(input, client, cx);
            if taken.requests() > 0 && !taken.stopped {
                return Step::Took(taken.input_bytes);
            }
            at = taken.input_bytes;
        }
        if client.is_full(self.load(), cx.limits, cx.budget) {
            return Step::Stop(at);
        }
        match self.frame(&input[at..], client, cx) {
            Some(bytes) => Step::Took(at + bytes),
            None => Step::Stop(at),
        }
    }

    pub fn complete(&mut self, number: u32, reply: &Reply, client: &mut Client, cx: &mut Context<'_>) {
        let outcome = &reply.outcome;
        if !self.audited.is_empty() {
            let failure = if let Outcome::Failed(error) = outcome { Some(error.to_string()) } else { None };
            self.note_audited(number, failure, client);
        }
        let value = outcome.value().map_or(&b""[..], |value| cx.seat.bytes(value));
        let form = self.slots.form(number);
        if form.is_get() {
            let value_bytes = outcome.value().map(|_| value.len());
            client.got(self.slots.charge_bytes(number), value_bytes, cx.gets);
        } else if self.slots.may_ask(number) {
            cx.gets.ended(self.slots.charge_bytes(number));
        }
        outcomes::count_outcome(cx.counters, form, outcome);
        if let (Some(request), Some(came)) = (outcomes::timed(form, reply), self.slots.came(number)) {
            let took = cx.came.saturating_duration_since(came);
            cx.figures.latencies[cx.worker].add(request, 1, took);
            cx.figures.slow.note(request, took, self.options.keyspace.id, self.slots.key(number));
        }
        if let Some(observed) = self.slots.take_observed(number) {
            let (observers, descriptor) = (&cx.figures.observers, client.descriptor());
            watching::observe(observers, descriptor, &observed.key, observed.store, form, outcome, value.len());
        }
        self.slots.complete(number, outcome, value, &mut client.out, cx.pool);
    }

    pub fn complete_errand(&mut self, number: u32, answer: Answer, client: &mut Client, pool: &mut Pool) {
        let answer = match answer {
            Answer::LoggedIn(verdict) => return self.logged_in(number, verdict, client, pool),
            answer => answer,
        };
        let failure = if let Answer::Failed(error) = &answer { Some(error.to_string()) } else { None };
        self.note_audited(number, failure, client);
        if self.listing.is_some() {
            return self.listed(number, answer, client, pool);
        }
        let reply = submit::errand_reply(self.slots.form(number), &answer);
        self.slots.complete_with(number, reply, &mut client.out, pool);
    }

    pub fn load(&self) -> Load {
        let paused = self.listing.as_ref().is_some_and(Listing::is_paused);
        let lines_bytes = self.watching.as_ref().map_or(0, WatchSeat::held_bytes);
        Load { pending: self.slots.pending() - usize::from(paused), held_bytes: self.slots.held_bytes() + lines_bytes }
    }

    pub fn needs_input(&self) -> bool {
        self.listing.is_none() && self.many.as_ref().is_none_or(ManyKeys::is_spent)
    }

    pub fn has_work(&self) -> bool {
        self.listing.as_ref().is_some_and(Listing::is_paused)
            || self.watching.as_ref().is_some_and(WatchSeat::has_lines)
    }

    pub fn stalled(&self) -> &'static [u8] {
        match self.protocol {
            Protocol::Text => {
                b"SERVER_ERROR closed: the rest of the request did not come, and others need the memory\r\n"
            }
            Protocol::Open | Protocol::Binary => b"",
        }
    }

    pub fn new(options: MemcachedOptions) -> Memcached {
        Memcached {
            protocol: Protocol::Open,
            scanned_bytes: 0,
            skipped_line: None,
            many: None,
            listing: None,
            watching: None,
            looked_up: false,
            slots: Slots::default(),
            access: ClientAccess::of(&options.admission),
            audited: Vec::new(),
            options,
        }
    }

    /// Resets it for another client. Buffers are kept.
    pub(super) fn renew(&mut self) {
        let slots = std::mem::take(&mut self.slots);
        // Pending requests, if any, belong to the client that left, and are dropped.
        let slots = if slots.is_empty() { slots } else { Slots::default() };
        *self = Memcached { slots, ..Memcached::new(self.options.clone()) };
    }

    /// Discards bytes up to the end of the line. Returns how many.
    fn skip_line(&mut self, ThenClose(close): ThenClose, input: &[u8], client: &mut Client) -> usize {
        let Some(end) = input.iter().position(|&byte| byte == b'\n') else { return input.len() };
        self.skipped_line = None;
        if close {
            client.close();
        }
        end + 1
    }

    /// Takes one frame, or one key of a text get. Returns the bytes taken; `None` to stop.
    fn frame(&mut self, rest: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Option<usize> {
        match (&self.many, self.protocol) {
            (Some(_), _) => self.next_key(rest, client, cx),
            (_, Protocol::Open) => {
                self.protocol = if rest[0] == BINARY_MAGIC { Protocol::Binary } else { Protocol::Text };
                Some(0)
            }
            (_, Protocol::Text) if self.access.is_nobody() => self.text_login_frame(rest, client, cx),
            (_, Protocol::Text) => self.text_frame(rest, client, cx),
            (_, Protocol::Binary) => self.binary_frame(rest, client, cx),
        }
    }

    /// Answers gets and sets at the start of `rest` at once, as far as possible. No earlier request may be waiting for its answer.
    fn answer_at_once(&mut self, rest: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Taken {
        let Some(session) = cx.seat.session_mut() else { return Taken::default() };
        let many = self.many.take_if(|many| many.touch.is_none());
        if self.many.is_some() {
            return Taken::default();
        }
        let room = client.answer_room(cx.limits, cx.budget);
        let (protocol, keyspace) = (self.protocol, self.options.keyspace);
        let (may_get, may_set) = (self.access.allows(READ), self.access.allows(WRITE));
        let came = Came { protocol, keyspace, may_get, may_set, now: cx.now, item_bytes_max: cx.limits.item_bytes_max };
        let pipeline = &mut *cx.pipeline;
        let may_hold = |bytes: usize| room.has(bytes);
        let mut taken = client.out.append(cx.pool, |out| pipeline.run(came, rest, many, session, out, may_hold));
        self.many = taken.many.take();
        client.answered(&room, taken.requests(), taken.value_bytes, cx.gets);
        if taken.requests() > 0 {
            self.frame_done(0, client);
        }
        if taken.value_bytes.is_some() {
            cx.at_once.gets += taken.gets as u64;
            count(&cx.counters.cmd_get, taken.gets as u64);
            count(&cx.counters.get_hits, taken.gets as u64);
        }
        if taken.sets > 0 {
            cx.at_once.sets += taken.sets as u64;
            count(&cx.counters.cmd_set, taken.sets as u64);
            count(&cx.counters.total_items, taken.sets as u64);
        }
        taken
    }

    fn text_frame(&mut self, rest: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Option<usize> {
        match text::parse(rest, self.scanned_bytes, cx.limits.item_bytes_max) {
            Parsed::Command { command, consumed_bytes, skip_bytes } => {
                let taken = self.text_command(command, &rest[..consumed_bytes], client, cx)?;
                self.frame_done(skip_bytes, client);
                Some(taken)
            }
            Parsed::NeedMore { total_bytes, scanned_bytes } => self.need_more(total_bytes, scanned_bytes, client),
            Parsed::Close => {
                client.break_off();
                None
            }
        }
    }

    fn binary_frame(&mut self, rest: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Option<usize> {
        match binary::parse(rest, self.value_bytes_max(cx)) {
            Parsed::Command { command: (origin, command), consumed_bytes, skip_bytes } => {
                self.binary_command(origin, command, client, cx)?;
                self.frame_done(skip_bytes, client);
                Some(consumed_bytes)
            }
            Parsed::NeedMore { total_bytes, scanned_bytes } => {
                if self.access.is_nobody() {
                    // It may be a part of a login.
                    client.note_secret();
                }
                self.need_more(total_bytes, scanned_bytes, client)
            }
            Parsed::Close => {
                client.break_off();
                None
            }
        }
    }

    /// The longest value that is taken now: before a client has logged in, that of a login.
    fn value_bytes_max(&self, cx: &Context<'_>) -> usize {
        if self.access.is_nobody() { CREDENTIALS_BYTES_MAX } else { cx.limits.item_bytes_max }
    }

    pub(super) fn frame_done(&mut self, skip_bytes: usize, client: &mut Client) {
        self.scanned_bytes = 0;
        client.frame_done(skip_bytes);
    }

    pub(super) fn need_more(&mut self, total_bytes: usize, scanned_bytes: usize, client: &mut Client) -> Option<usize> {
        self.scanned_bytes = scanned_bytes;
        client.need(total_bytes);
        None
    }
}
