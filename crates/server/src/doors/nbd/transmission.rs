//! The transmission of one client: its requests on their way, a part a block, answered in the order in which they are done.
//!
//! A step does three things, as far as each goes: the next request of a change whose block was read; what the client sent; a part of a job
//! that needs no more of the client. Jobs take turns, a part each, so a long one keeps no other waiting, and reads leave some of a client's
//! requests to the rest.

use std::collections::VecDeque;

use tapetum::{BLOCK_BYTES, BlockChange, BlockPiece, ChangeStep, Condition, Error, Outcome, Patch, Request};

use super::exports::Export;
use super::jobs::{Job, Numbered, Part, PartKind, Task};
use super::protocol::request::{Command, NbdRequest, PAYLOAD_BYTES_MAX};
use super::protocol::{Parsed, errors, reply};
use crate::net::connection::{Admission, Client};
use crate::net::context::Context;
use crate::net::door::{Load, Step};
use crate::store::engine::Session;
use crate::store::full_log::is_full;

/// Requests of one client that are not answered.
const JOBS_MAX: usize = 128;
/// Absent blocks that are passed over before others have their turn: some hundred microseconds.
const LOOKS_MAX: usize = 1024;
/// Blocks that one block status tells of: a client asks on behind them.
const STATUS_BLOCKS_MAX: u64 = 8192;
/// What a read takes beside its bytes, in parts of them: what it knows of its blocks.
const READ_BESIDE_PART: usize = BLOCK_BYTES;

static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

type NbdContext<'a, S> = Context<'a, S, ()>;

pub struct Transmission {
    export: Export,
    is_structured: bool,
    has_statuses: bool,
    is_durable_at_once: bool,
    /// The session's exchanges up to which a flush has told of what may be lost.
    exchanges_told: u64,
    jobs: Numbered<Job>,
    parts: Numbered<Part>,
    /// Jobs with parts to hand out that need no more input.
    working: VecDeque<usize>,
    /// Changes whose next request is to be submitted.
    changing: VecDeque<usize>,
    /// The write whose bytes come next.
    writing: Option<usize>,
    /// Parts that the store has.
    pending: usize,
    held_bytes: usize,
    /// The client takes its leave: what it asked for is done, and no more.
    has_left: bool,
    wants_turn: bool,
}

impl Transmission {
    pub fn new(
        export: Export,
        (is_structured, has_statuses): (bool, bool),
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

    pub fn load(&self) -> Load {
        Load { pending: self.pending, held_bytes: self.held_bytes }
    }

    fn is_idle(&self) -> bool {
        self.jobs.count() == 0
    }

    /// Whether nothing goes on without input.
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

    pub fn step<S: Session>(&mut self, input: &[u8], client: &mut Client, cx: &mut NbdContext<'_, S>) -> Step {
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

    /// Takes from the input, if something can be taken; how much that was.
    fn take<S: Session>(&mut self, input: &[u8], client: &mut Client, cx: &mut NbdContext<'_, S>) -> Option<usize> {
        if self.has_left {
            client.block();
            return None;
        }
        match self.writing {
            Some(number) => self.take_payload(number, input, client, cx),
            None => self.take_request(input, client, cx),
        }
    }

    fn take_request<S: Session>(
        &mut self,
        input: &[u8],
        client: &mut Client,
        cx: &mut NbdContext<'_, S>,
    ) -> Option<usize> {
        let (request, taken_bytes) = match NbdRequest::parse(input) {
            Parsed::Frame(request, taken_bytes) => (request, taken_bytes),
            Parsed::NeedMore(bytes) => {
                client.need(bytes);
                return None;
            }
            Parsed::Broken => {
                client.close();
                return None;
            }
        };
        if self.jobs.count() >= JOBS_MAX || client.is_full(self.load(), cx.limits, cx.budget) {
            client.block();
            return None;
        }
        if request.command == Command::Disconnect {
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

    fn refuse<S>(&self, request: &NbdRequest, error: u32, client: &mut Client, cx: &mut NbdContext<'_, S>) {
        let is_chunk = self.is_structured && matches!(request.command, Command::Read | Command::BlockStatus);
        let push = if is_chunk { reply::push_error } else { reply::push_simple };
        client.out.append(cx.pool, |out| push(out, request.cookie, error));
        match request.payload_bytes() {
            // Nobody reads through so much for a client that does not keep to what it was told.
            bytes if bytes > PAYLOAD_BYTES_MAX => client.close(),
            bytes => client.frame_done(bytes as usize),
        }
    }

    /// Makes a job of a request; `None` if it has to wait.
    fn begin<S: Session>(
        &mut self,
        request: &NbdRequest,
        client: &mut Client,
        cx: &mut NbdContext<'_, S>,
    ) -> Option<()> {
        let mut held_bytes = 0;
        if request.command == Command::Read {
            let bytes = request.length as usize;
            let admission = client.admit(self.load(), false, bytes + bytes / READ_BESIDE_PART, cx)?;
            held_bytes = admission.charge_bytes;
            client.keep(admission, cx.budget);
        }
        self.held_bytes += held_bytes;
        let job = Job::new(request, held_bytes, cx.instant());
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

    /// Takes the next block of a write, if it has come.
    fn take_payload<S: Session>(
        &mut self,
        number: usize,
        input: &[u8],
        client: &mut Client,
        cx: &mut NbdContext<'_, S>,
    ) -> Option<usize> {
        let job = self.jobs.get_mut(number);
        if job.error != 0 {
            client.frame_done((job.end - job.at) as usize);
            job.at = job.end;
            self.writing = None;
            self.settle(number, client, cx);
            return Some(0);
        }
        let piece = job.piece();
        let Some(bytes) = input.get(..piece.within.len()) else {
            client.need(piece.within.len());
            return None;
        };
        let admission = client.admit(self.load(), false, BLOCK_BYTES, cx)?;
        client.frame_done(0);
        self.jobs.get_mut(number).at += bytes.len() as u64;
        if self.jobs.get(number).is_handed_out() {
            self.writing = None;
        }
        match piece.is_whole() {
            true => self.put(number, (piece, bytes, admission.charge_bytes), admission, client, cx),
            false => self.change(number, (piece, Patch::Bytes(bytes.to_vec())), admission, client, cx),
        }
        Some(bytes.len())
    }

    /// Adds a part of a job, which was charged with `held_bytes`.
    fn add_part(&mut self, job: usize, (piece, kind): (BlockPiece, PartKind), held_bytes: usize) -> usize {
        self.jobs.get_mut(job).parts += 1;
        self.held_bytes += held_bytes;
        self.parts.add(Part { job, piece, kind, charge_bytes: 0, held_bytes })
    }

    fn put<S: Session>(
        &mut self,
        job: usize,
        (piece, value, held_bytes): (BlockPiece, &[u8], usize),
        admission: Admission,
        client: &mut Client,
        cx: &mut NbdContext<'_, S>,
    ) {
        let key = self.export.device.key(piece.block);
        let part = self.add_part(job, (piece, PartKind::Put), held_bytes);
        let put = Request::Put { key: &key, value, flags: 0, expiry: 0, condition: Condition::Always };
        self.submit(part, put, admission, client, cx);
    }

    /// Begins the change of a part of a block.
    fn change<S: Session>(
        &mut self,
        job: usize,
        (piece, patch): (BlockPiece, Patch),
        admission: Admission,
        client: &mut Client,
        cx: &mut NbdContext<'_, S>,
    ) {
        let change = BlockChange::new(piece.within.clone(), patch);
        let part = self.add_part(job, (piece, PartKind::Change(change)), admission.charge_bytes);
        client.keep(admission, cx.budget);
        cx.figures.devices[cx.worker].changes_part();
        self.changing.push_back(part);
    }

    fn submit<S: Session>(
        &mut self,
        part: usize,
        request: Request<'_>,
        admission: Admission,
        client: &mut Client,
        cx: &mut NbdContext<'_, S>,
    ) {
        self.parts.get_mut(part).charge_bytes = admission.charge_bytes;
        self.pending += 1;
        client.submit(part as u32, (self.export.keyspace, request), admission, cx);
    }

    /// Submits the next request of a change; whether one could be.
    fn go_on_changing<S: Session>(&mut self, client: &mut Client, cx: &mut NbdContext<'_, S>) -> bool {
        let Some(&number) = self.changing.front() else { return false };
        let load = self.load();
        let part = self.parts.get(number);
        if self.jobs.get(part.job).error != 0 {
            self.changing.pop_front();
            self.end_part(number, client, cx);
            return true;
        }
        let key = self.export.device.key(part.piece.block);
        let value_bytes = part.is_get().then_some(BLOCK_BYTES);
        let Some(admission) = client.admit_part(load, value_bytes, cx) else { return false };
        self.changing.pop_front();
        let part = self.parts.get_mut(number);
        part.charge_bytes = admission.charge_bytes;
        self.pending += 1;
        let PartKind::Change(change) = &part.kind else { unreachable!("only changes go on") };
        client.submit(number as u32, (self.export.keyspace, change.request(&key)), admission, cx);
        true
    }

    /// Hands out a part of the job whose turn it is; whether that could be done.
    fn work<S: Session>(&mut self, client: &mut Client, cx: &mut NbdContext<'_, S>) -> bool {
        let Some(&number) = self.working.front() else { return false };
        let job = self.jobs.get(number);
        let worked = match job.task {
            _ if job.is_handed_out() && job.needs_sync && job.error == 0 => self.sync(number, client, cx),
            _ if job.is_handed_out() => Some(()),
            Task::Read { .. } => self.read(number, client, cx),
            Task::Trim => self.free(number, client, cx),
            Task::Zero { is_allocated } if is_allocated || !job.piece().is_whole() => self.zero(number, client, cx),
            Task::Zero { .. } => self.free(number, client, cx),
            Task::Status { is_of_one } => {
                self.tell_statuses(number, is_of_one, client, cx);
                return true;
            }
            Task::Write | Task::Flush => unreachable!("both are handed out"),
        };
        if worked.is_none() {
            return false;
        }
        // The next one's turn.
        self.working.pop_front();
        match self.jobs.get(number).is_handed_out() {
            true => self.settle(number, client, cx),
            false => self.working.push_back(number),
        }
        true
    }

    /// Submits the barrier that a job ends with.
    fn sync<S: Session>(&mut self, number: usize, client: &mut Client, cx: &mut NbdContext<'_, S>) -> Option<()> {
        let admission = client.admit_part(self.load(), None, cx)?;
        let job = self.jobs.get_mut(number);
        job.needs_sync = false;
        if matches!(job.task, Task::Flush) && self.exchanges_told != cx.session.exchanges() {
            self.exchanges_told = cx.session.exchanges();
            if !self.is_durable_at_once {
                job.fail(errors::IO);
                return Some(());
            }
        }
        let part = self.add_part(number, (BlockPiece { block: 0, within: 0..0 }, PartKind::Sync), 0);
        self.parts.get_mut(part).charge_bytes = admission.charge_bytes;
        self.pending += 1;
        client.submit_sync(part as u32, cx);
        Some(())
    }

    /// Submits the get of the next block of a read.
    fn read<S: Session>(&mut self, number: usize, client: &mut Client, cx: &mut NbdContext<'_, S>) -> Option<()> {
        if self.pending >= cx.limits.connection_requests / 4 * 3 {
            client.block();
            return None;
        }
        let admission = client.admit_part(self.load(), Some(BLOCK_BYTES), cx)?;
        let piece = self.next_piece(number);
        let key = self.export.device.key(piece.block);
        let part = self.add_part(number, (piece, PartKind::Read), 0);
        self.submit(part, Request::Get { key: &key }, admission, client, cx);
        Some(())
    }

    /// Takes a job's next piece.
    fn next_piece(&mut self, number: usize) -> BlockPiece {
        let job = self.jobs.get_mut(number);
        let piece = job.piece();
        job.at += piece.within.len() as u64;
        piece
    }

    /// Deletes the next block that may be there.
    fn free<S: Session>(&mut self, number: usize, client: &mut Client, cx: &mut NbdContext<'_, S>) -> Option<()> {
        for _ in 0..LOOKS_MAX {
            let job = self.jobs.get(number);
            if job.is_handed_out() || !job.piece().is_whole() {
                return Some(());
            }
            let key = self.export.device.key(job.piece().block);
            if !cx.session.has_probably(self.export.keyspace, &key) {
                self.next_piece(number);
                continue;
            }
            let admission = client.admit_part(self.load(), None, cx)?;
            let piece = self.next_piece(number);
            let part = self.add_part(number, (piece, PartKind::Delete), 0);
            self.submit(part, Request::Delete { key: &key, stamp: None }, admission, client, cx);
            return Some(());
        }
        self.wants_turn = true;
        Some(())
    }

    /// Writes zeros to the next piece.
    fn zero<S: Session>(&mut self, number: usize, client: &mut Client, cx: &mut NbdContext<'_, S>) -> Option<()> {
        if self.jobs.get(number).piece().is_whole() {
            let admission = client.admit_part(self.load(), None, cx)?;
            let piece = self.next_piece(number);
            self.put(number, (piece, &ZEROS, 0), admission, client, cx);
            return Some(());
        }
        let admission = client.admit(self.load(), false, BLOCK_BYTES, cx)?;
        let piece = self.next_piece(number);
        let Task::Zero { is_allocated } = self.jobs.get(number).task else { unreachable!("zeros are wanted") };
        let patch = if is_allocated { Patch::Bytes(vec![0; piece.within.len()]) } else { Patch::Zeros };
        self.change(number, (piece, patch), admission, client, cx);
        Some(())
    }

    /// Answers a block status, of as many blocks as may be.
    fn tell_statuses<S: Session>(
        &mut self,
        number: usize,
        is_of_one: bool,
        client: &mut Client,
        cx: &mut NbdContext<'_, S>,
    ) {
        self.working.pop_front();
        let mut job = self.jobs.take(number);
        let mut extents: Vec<(u32, u32)> = Vec::new();
        let first = job.piece().block;
        while !job.is_handed_out() && job.piece().block - first < STATUS_BLOCKS_MAX {
            let piece = job.piece();
            let is_there = cx.session.has_probably(self.export.keyspace, &self.export.device.key(piece.block));
            let status = if is_there { 0 } else { reply::STATUS_HOLE };
            let bytes = piece.within.len() as u32;
            match extents.last_mut() {
                Some((length, last)) if *last == status => *length += bytes,
                Some(_) if is_of_one => break,
                _ => extents.push((bytes, status)),
            }
            job.at += u64::from(bytes);
        }
        count(&job, cx);
        client.out.append(cx.pool, |out| reply::push_statuses(out, job.cookie, &extents));
        self.wants_turn = true;
    }

    /// The outcome of a part has come.
    pub fn complete<S: Session>(
        &mut self,
        number: u32,
        outcome: &Outcome,
        client: &mut Client,
        cx: &mut NbdContext<'_, S>,
    ) {
        self.pending -= 1;
        let part = self.parts.get_mut(number as usize);
        let value = outcome.value().map(|value| cx.session.bytes(value));
        if part.is_get() {
            client.got(part.charge_bytes, value.map(<[u8]>::len), cx.gets);
        }
        let job = self.jobs.get_mut(part.job);
        match (&mut part.kind, outcome) {
            (kind, Outcome::Failed(error)) => job.fail(error_of(error, kind)),
            (PartKind::Put | PartKind::Delete | PartKind::Sync, _) => {}
            (PartKind::Change(change), _) => match change.take(outcome, value) {
                ChangeStep::GoesOn => return self.changing.push_back(number as usize),
                ChangeStep::NoBlock => job.fail(errors::IO),
                ChangeStep::Done => {}
            },
            // Whoever has put this here does not speak of blocks.
            (PartKind::Read, _) if value.is_some_and(|value| value.len() != BLOCK_BYTES) => job.fail(errors::IO),
            (PartKind::Read, _) => {
                job.fill(&part.piece, value);
                if value.is_none() {
                    cx.figures.devices[cx.worker].met_hole();
                }
            }
        }
        self.end_part(number as usize, client, cx);
    }

    fn end_part<S>(&mut self, number: usize, client: &mut Client, cx: &mut NbdContext<'_, S>) {
        let Part { job, held_bytes, .. } = self.parts.take(number);
        self.held_bytes -= held_bytes;
        self.jobs.get_mut(job).parts -= 1;
        self.settle(job, client, cx);
    }

    /// Answers a job if all of it is done.
    fn settle<S>(&mut self, number: usize, client: &mut Client, cx: &mut NbdContext<'_, S>) {
        let job = self.jobs.get(number);
        let is_queued = self.working.contains(&number);
        if job.parts > 0 || !job.is_handed_out() || is_queued || self.writing == Some(number) {
            return;
        }
        if job.needs_sync && job.error == 0 {
            return self.working.push_back(number);
        }
        let job = self.jobs.take(number);
        self.held_bytes -= job.held_bytes;
        count(&job, cx);
        job.reply(self.is_structured, &mut client.out, cx.pool);
        self.leave_if_done(client);
    }
}

/// Counts a job that is done.
fn count<S>(job: &Job, cx: &NbdContext<'_, S>) {
    let took = cx.instant().saturating_duration_since(job.began);
    cx.figures.devices[cx.worker].answered(job.command(), job.length, took, job.error != 0);
}

/// What a client is told of an error.
fn error_of(error: &Error, of: &PartKind) -> u32 {
    match error {
        _ if matches!(of, PartKind::Read) => errors::IO,
        Error::NoSpace { .. } => errors::NOSPC,
        error if is_full(error) => errors::NOSPC,
        Error::ReadOnly => errors::PERM,
        _ => errors::IO,
    }
}
