//! The transmission of one client: its requests in progress, in parts of one block, answered in the order in which they finish.
//!
//! A step does three things, each as far as possible: the next request of a change whose block was read; new input; a part of a job that
//! needs no more input. Jobs take turns, with one part or the parts of one group of blocks each, so a long job delays no other; and reads
//! leave some of a client's requests to other jobs. Requests to the store are in `submitting`, their outcomes in `completing`.

mod completing;
mod submitting;

use std::collections::VecDeque;

use tapetum::{BLOCK_BYTES, Patch};

use crate::doors::connection::Client;
use crate::doors::context::Context;
use crate::doors::door::{Load, Step};
use crate::doors::nbd::exports::Export;
use crate::doors::nbd::jobs::{Job, Numbered, Part, PartKind, Task};
use crate::doors::nbd::protocol::request::{NbdCommand, NbdRequest, PAYLOAD_BYTES_MAX};
use crate::doors::nbd::protocol::{NbdParsed, reply};
use crate::doors::open_keyspaces::OpenKeyspaces;
use crate::net::limits::Limits;

/// The most unanswered requests of one client.
const JOBS_MAX: usize = 128;
/// Memory that a read takes besides its bytes, for its blocks' states, counted in parts.
const READ_BESIDE_PART: usize = BLOCK_BYTES;

pub struct Transmission {
    export: Export,
    is_structured: bool,
    has_statuses: bool,
    is_durable_at_once: bool,
    /// Value of [`Session::exchanges`] up to which a flush has reported possible losses.
    exchanges_told: u64,
    jobs: Numbered<Job>,
    parts: Numbered<Part>,
    /// Jobs that have parts to hand out and need no more input.
    working: VecDeque<usize>,
    /// Changes whose next request must be submitted.
    changing: VecDeque<usize>,
    /// The write whose bytes come next.
    writing: Option<usize>,
    /// Parts that the store is working on.
    pending: usize,
    held_bytes: usize,
    /// The client disconnects: its requests are finished, and no more taken.
    has_left: bool,
    wants_turn: bool,
}

impl Transmission {
    pub fn new(
        export: Export,
        is_structured: bool,
        has_statuses: bool,
        is_durable_at_once: bool,
        exchanges_told: u64,
    ) -> Transmission {
        Transmission {
            export,
            is_structured,
            has_statuses,
            is_durable_at_once,
            exchanges_told,
            jobs: Numbered::default(),
            parts: Numbered::default(),
            working: VecDeque::new(),
            changing: VecDeque::new(),
            writing: None,
            pending: 0,
            held_bytes: 0,
            has_left: false,
            wants_turn: false,
        }
    }

    /// The store's keyspaces have changed. Once the device is dropped, each request comes to an error.
    pub fn follow(&mut self, open: &OpenKeyspaces) {
        self.export.keyspace = open.again(self.export.keyspace);
        if let Some(name) = open.name_of(self.export.keyspace) {
            name.clone_into(&mut self.export.name);
        }
    }

    pub fn export(&mut self) -> &mut Export {
        &mut self.export
    }

    pub fn load(&self) -> Load {
        Load { pending: self.pending, held_bytes: self.held_bytes }
    }

    /// The load beside which another request is admitted. The longest read is not counted, so that others can pass it. A client that holds
    /// bytes has work in progress, even if the store has none of it yet.
    fn load_beside(&self, limits: &Limits) -> Load {
        let is_much = self.held_bytes > limits.connection_in_flight_bytes;
        let longest_bytes = if is_much { self.jobs.iter().map(|job| job.held_bytes).max() } else { None };
        let held_bytes = self.held_bytes - longest_bytes.unwrap_or(0);
        Load { pending: self.pending.max(usize::from(self.held_bytes > 0)), held_bytes }
    }

    fn is_idle(&self) -> bool {
        self.jobs.count() == 0
    }

    /// Whether it makes no progress without input.
    pub fn needs_input(&self) -> bool {
        self.pending == 0 && !self.has_work()
    }

    pub fn has_work(&self) -> bool {
        !self.working.is_empty() || !self.changing.is_empty()
    }

    pub fn wants_turn(&self) -> bool {
        self.wants_turn
    }

    pub fn charge_bytes(&self, number: u32) -> usize {
        self.parts.get(number as usize).charge_bytes
    }

    pub fn recharge(&mut self, number: u32, bytes: usize) {
        let part = self.parts.get_mut(number as usize);
        let more_bytes = bytes - part.charge_bytes;
        part.charge_bytes = bytes;
        part.held_bytes += more_bytes;
        self.held_bytes += more_bytes;
    }

    pub fn step(&mut self, input: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Step {
        self.wants_turn = false;
        let mut goes_on = self.go_on_changing(client, cx);
        let taken = self.take(input, client, cx);
        goes_on |= taken.is_some();
        goes_on |= self.work(client, cx);
        self.leave_if_done(client);
        let taken_bytes = taken.unwrap_or(0);
        if goes_on && !self.wants_turn { Step::Took(taken_bytes) } else { Step::Stop(taken_bytes) }
    }

    fn leave_if_done(&self, client: &mut Client) {
        if self.has_left && self.is_idle() {
            client.close();
        }
    }

    /// Takes from the input, if possible. Returns how much.
    fn take(&mut self, input: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Option<usize> {
        if self.has_left {
            client.block();
            return None;
        }
        match self.writing {
            Some(number) => self.take_payload(number, input, client, cx),
            None => self.take_request(input, client, cx),
        }
    }

    fn take_request(&mut self, input: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Option<usize> {
        let (request, taken_bytes) = match NbdRequest::parse(input) {
            NbdParsed::Frame(request, taken_bytes) => (request, taken_bytes),
            NbdParsed::NeedMore(bytes) => {
                client.need(bytes);
                return None;
            }
            NbdParsed::Broken => {
                client.close();
                return None;
            }
        };
        if self.jobs.count() >= JOBS_MAX || client.is_full(self.load_beside(cx.limits), cx.limits, cx.budget) {
            client.block();
            return None;
        }
        if request.command == NbdCommand::Disconnect {
            self.has_left = true;
            client.frame_done(0);
            return Some(taken_bytes);
        }
        let (size_bytes, is_read_only) = (self.export.size_bytes(), self.export.is_read_only);
        match request.refusal(size_bytes, is_read_only, self.has_statuses) {
            0 => self.begin(&request, client, cx)?,
            error => self.refuse(&request, error, client, cx),
        }
        Some(taken_bytes)
    }

    fn refuse(&mut self, request: &NbdRequest, error: u32, client: &mut Client, cx: &mut Context<'_>) {
        client.frame_done(0);
        let payload_bytes = request.payload_bytes();
        if (1..=PAYLOAD_BYTES_MAX).contains(&payload_bytes) {
            self.writing = Some(self.jobs.add(Job::of_refused_write(request, error, cx.instant())));
            return;
        }
        let is_chunk = self.is_structured && matches!(request.command, NbdCommand::Read | NbdCommand::BlockStatus);
        let push = if is_chunk { reply::push_error } else { reply::push_simple };
        client.out.append(cx.pool, |out| push(out, request.cookie, error));
        if payload_bytes > 0 {
            // The client ignores the limit it was told; do not read so much only to discard it.
            client.close();
        }
    }

    /// Makes a job of a request. `None` if it must wait.
    fn begin(&mut self, request: &NbdRequest, client: &mut Client, cx: &mut Context<'_>) -> Option<()> {
        let mut held_bytes = 0;
        if request.command == NbdCommand::Read {
            let bytes = request.length as usize;
            let admission = client.admit(self.load_beside(cx.limits), false, bytes + bytes / READ_BESIDE_PART, cx)?;
            held_bytes = admission.charge_bytes;
            client.keep(admission, cx.budget);
        }
        self.held_bytes += held_bytes;
        let job = Job::new(request, held_bytes, cx);
        let needs_work = !matches!(job.task, Task::Write) && !job.is_handed_out();
        let number = self.jobs.add(job);
        match needs_work {
            true => self.working.push_back(number),
            false if request.payload_bytes() > 0 => self.writing = Some(number),
            false => self.settle(number, client, cx),
        }
        client.frame_done(0);
        Some(())
    }

    /// Takes the next block of a write, if it has arrived. A failed write's bytes are discarded; its answer follows the last of them,
    /// because clients do not read answers to a request that they are still sending.
    fn take_payload(
        &mut self,
        number: usize,
        input: &[u8],
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<usize> {
        let job = self.jobs.get_mut(number);
        let piece = job.piece();
        let Some(bytes) = input.get(..piece.within.len()) else {
            client.need(piece.within.len());
            return None;
        };
        if job.error != 0 {
            client.frame_done(0);
            job.at += bytes.len() as u64;
            self.end_payload(number);
            self.settle(number, client, cx);
            return Some(bytes.len());
        }
        let admission = client.admit(self.load_beside(cx.limits), false, BLOCK_BYTES, cx)?;
        client.frame_done(0);
        self.jobs.get_mut(number).at += bytes.len() as u64;
        self.end_payload(number);
        match piece.is_whole() {
            true => {
                let part = self.add_part(number, piece, PartKind::Put, admission.charge_bytes);
                self.put(part, bytes, admission, client, cx);
            }
            false => self.change(number, piece, Patch::Bytes(bytes.to_vec()), admission, client, cx),
        }
        Some(bytes.len())
    }

    /// To be called after each part of a write's bytes; all of them may have arrived.
    fn end_payload(&mut self, number: usize) {
        if self.jobs.get(number).is_handed_out() {
            self.writing = None;
        }
    }
}
