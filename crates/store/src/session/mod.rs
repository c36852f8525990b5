//! A session: a queue pair and the operations on their way over it. One thread at a time.
//!
//! ```text
//!            ┌─ answer known ──────────────────────────────► held until durable ─► reply
//! submit ─► attempt ─ needs flash ─► reading ─► attempt again, or answer
//!            ├─ no room / no memory ─► waiting ─► attempt again at a later poll
//!            └─ behind an earlier one of its key ─► waiting
//! ```
//! A read-modify-write holds nothing across its flash read: it remembers the version of its key's stripe and starts over
//! if somebody wrote meanwhile (docs/decisions). So no session waits for another to poll. Operations on one key take
//! effect in the order of submission: one that is not decided yet keeps the later ones waiting.

pub mod change;
mod flash_read;
mod owned;

use crate::buffer::Shard;
use crate::error::Error;
use crate::io::lock;
use crate::log::{AppendError, Draft};
use crate::notify::Notifier;
use crate::planted::Bug;
use crate::request::{Condition, Outcome, Reply, Request, ValueRange};
use crate::shared::{Admission, Shared};
use change::{Answer, Current, Decision, NewValue, decide, needs_current};
use flash_read::{FlashRead, ReadCount, SpareBuffers, Step};
use owned::OwnedRequest;
use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tapetum_drive::programs::match_record::Matched;
use tapetum_drive::{Completion, QueuePair};
use tapetum_kernels::codec::{Compressor, Decompressor};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Codec, Header, KEY_BYTES_MAX, Kind, Record, VALUE_BYTES_MAX};

const TAG_EXECUTE: u64 = 1;
/// Larger buffers are given back when a poll ends.
const KEEP_BYTES: usize = 1 << 20;

/// One write of a batch.
#[derive(Clone, Copy, Debug)]
pub enum Write<'a> {
    Put { key: &'a [u8], value: &'a [u8], flags: u32, expiry: u32 },
    Delete { key: &'a [u8] },
}

/// There is no room now: poll, and submit again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy;

struct Op {
    token: u64,
    /// Counts the session's kept operations: the order of submission.
    sequence: u64,
    hash: HashKey,
    request: OwnedRequest,
    /// `None` while it waits to be attempted.
    read: Option<FlashRead>,
}

/// An answer that waits for its record to be durable.
struct Held {
    token: u64,
    stamp: u64,
    outcome: Outcome,
    value: Vec<u8>,
}

/// The item as flash has it.
struct FromFlash {
    version: u32,
    /// Flags, expiry, stamp; the value is in `scratch`. `None`: flash does not have it.
    found: Option<(u32, u32, u64)>,
    /// The stamp of the deletion that took it; 0 if none did.
    shown_by: u64,
}

enum Attempt {
    Answered,
    NeedsFlash { read: FlashRead },
    Waits,
}

pub struct Session {
    shared: Arc<Shared>,
    local: Local,
}

/// A session without what it shares.
struct Local {
    queue: QueuePair,
    ops: Vec<Option<Op>>,
    ops_free: Vec<usize>,
    /// Operations to attempt at the next poll, in order.
    waiting: VecDeque<usize>,
    /// Operations a hash key has that are not decided.
    undecided: HashMap<HashKey, u32>,
    /// Deletions of everything among them.
    deletions_undecided: usize,
    held: Vec<Held>,
    ready: Vec<Reply>,
    /// Values of this poll's replies and of the last one's.
    values: [Vec<u8>; 2],
    values_now: usize,
    scratch: Vec<u8>,
    inflated: Vec<u8>,
    compressor: Compressor,
    decompressor: Decompressor,
    spare_buffers: SpareBuffers,
    spare_keys: Vec<Vec<u8>>,
    completions: Vec<Completion>,
    /// Read commands of gets that are not in the counters yet.
    flash_reads: ReadCount,
    sequence_next: u64,
    notifier: Arc<Notifier>,
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, depth: u32) -> Result<Session, Error> {
        let io = |error: std::io::Error| Error::Io(error.to_string());
        let queue = shared.drive.queue_pair(depth).map_err(io)?;
        let notifier = Arc::new(Notifier::default());
        // Made now, so that no notification comes before it.
        notifier.event_fd();
        shared.log.register(notifier.clone());
        let local = Local {
            queue,
            ops: Vec::new(),
            ops_free: Vec::new(),
            waiting: VecDeque::new(),
            undecided: HashMap::new(),
            deletions_undecided: 0,
            held: Vec::new(),
            ready: Vec::new(),
            values: [Vec::new(), Vec::new()],
            values_now: 0,
            scratch: Vec::new(),
            inflated: Vec::new(),
            compressor: Compressor::new().map_err(io)?,
            decompressor: Decompressor::new().map_err(io)?,
            spare_buffers: SpareBuffers::new((shared.options.pool_bytes() as usize / 2).min(8 << 20)),
            spare_keys: Vec::new(),
            completions: Vec::new(),
            flash_reads: ReadCount::default(),
            sequence_next: 0,
            notifier,
        };
        Ok(Session { shared, local })
    }

    /// Starts an operation. Never blocks; every outcome, refusals too, comes as a reply with `token`.
    pub fn submit(&mut self, token: u64, request: Request<'_>) {
        let shared = &*self.shared;
        if let Err(error) = refuse(shared, &request) {
            return self.local.answer(token, Outcome::Failed(error));
        }
        shared.check_watermark();
        let hash = shared.hash(request.key());
        if self.local.must_wait(hash, &request) {
            return self.local.wait(token, hash, &request);
        }
        match self.local.attempt(shared, token, hash, &request, None) {
            Attempt::Answered => {}
            Attempt::NeedsFlash { read } => {
                let number = self.local.keep(token, hash, &request);
                let Some(op) = self.local.ops[number].take() else { unreachable!("the operation was just kept") };
                self.local.begin_read(shared, number, op, read);
            }
            Attempt::Waits => self.local.wait(token, hash, &request),
        }
    }

    /// Writes several keys at once: all of them or none, also across a crash.
    pub fn submit_batch(&mut self, token: u64, writes: &[Write<'_>]) -> Result<(), Busy> {
        self.shared.check_watermark();
        self.local.batch(&self.shared, token, writes)
    }

    /// Advances everything without blocking, and appends the replies that are ready.
    pub fn poll(&mut self, replies: &mut Vec<Reply>) {
        let shared = &*self.shared;
        shared.check_watermark();
        self.local.reap(shared);
        // Before the attempts: what changes after one of them must wake the session.
        self.local.notifier.set_waiting(!self.local.waiting.is_empty() || !self.local.held.is_empty());
        self.local.attempt_waiting(shared);
        self.local.reap(shared);
        self.local.release_held(shared);
        replies.append(&mut self.local.ready);
        self.local.turn_values();
    }

    /// The bytes of a value; readable until the poll after the one that replied.
    pub fn bytes(&self, value: ValueRange) -> &[u8] {
        const LOW: usize = usize::MAX >> 1;
        let half = usize::from(value.start > LOW);
        &self.local.values[half][value.start & LOW..value.end & LOW]
    }

    /// Operations that were submitted and not replied to.
    pub fn in_flight(&self) -> usize {
        self.local.ops.len() - self.local.ops_free.len() + self.local.held.len() + self.local.ready.len()
    }

    /// Descriptors that are readable when a poll may make progress.
    pub fn event_fds(&self) -> Vec<RawFd> {
        let fds = [self.local.queue.event_fd(), self.shared.log.event_fd(), self.local.notifier.event_fd()];
        fds.into_iter().flatten().collect()
    }

    /// Blocks until a poll may make progress, or for `timeout`.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        if !self.local.ready.is_empty() {
            return;
        }
        self.local.notifier.set_waiting(true);
        if self.local.held.is_empty() && self.local.waiting.is_empty() {
            // Flash reads alone: the queue pair wakes us with one system call.
            return self.local.queue.wait(timeout);
        }
        let mut fds: Vec<libc::pollfd> =
            self.event_fds().into_iter().map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        let timeout_ms = timeout.map_or(-1, |timeout| timeout.as_millis().clamp(1, 1000) as i32);
        // SAFETY: the array is valid for its length; poll writes only into it.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
        self.local.notifier.drain();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.log.unregister(&self.local.notifier);
        // The drive writes into the buffers of reads on their way: they stay until it has.
        while self.local.queue.in_flight() > 0 {
            self.local.queue.wait(Some(Duration::from_millis(10)));
            self.local.completions.clear();
            if self.local.queue.poll(&mut self.local.completions) == 0 && self.local.queue.event_fd().is_none() {
                // A simulated drive that stopped never answers, and never writes either.
                return;
            }
        }
    }
}

fn refuse(shared: &Shared, request: &Request<'_>) -> Result<(), Error> {
    let key = request.key();
    if key.is_empty() && !matches!(request, Request::DeleteAll { .. }) {
        return Err(Error::KeyEmpty);
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::KeyTooLong { limit_bytes: KEY_BYTES_MAX });
    }
    check_value(shared, request.payload_bytes() - key.len())?;
    // A record must fit into an empty write buffer.
    let record_bytes_max = shared.geometry.segment_bytes as usize / 8 * 7;
    if request.payload_bytes() > record_bytes_max {
        return Err(Error::KeyTooLong { limit_bytes: record_bytes_max / 2 });
    }
    Ok(())
}

/// The largest value that a store takes.
pub(crate) fn value_bytes_max(shared: &Shared) -> usize {
    VALUE_BYTES_MAX.min(shared.geometry.segment_bytes as usize / 2)
}

fn check_value(shared: &Shared, bytes: usize) -> Result<(), Error> {
    let limit_bytes = value_bytes_max(shared);
    if bytes > limit_bytes { Err(Error::ValueTooLarge { limit_bytes }) } else { Ok(()) }
}

enum WriteError {
    NoRoom,
    Refused(Error),
}

/// Appends a record and lets readers find it. The caller holds the shard.
fn append(shared: &Shared, shard: &mut Shard, hash: HashKey, draft: Draft<'_>) -> Result<u64, WriteError> {
    if shard.is_full() {
        return Err(WriteError::NoRoom);
    }
    let mut given = (0, 0);
    match shared.log.append(&[draft], |_, stamp, place| given = (stamp, place)) {
        Ok(()) => {
            shard.insert(hash, given.1);
            Ok(given.0)
        }
        Err(AppendError::BufferFull) => Err(WriteError::NoRoom),
        Err(AppendError::Poisoned) => Err(WriteError::Refused(poison(shared))),
    }
}

fn poison(shared: &Shared) -> Error {
    shared.log.poisoned().err().unwrap_or_else(|| Error::Poisoned("unknown".into()))
}

impl Local {
    fn answer(&mut self, token: u64, outcome: Outcome) {
        self.ready.push(Reply { token, outcome });
    }

    /// Answers when the record with `stamp` may be shown.
    fn answer_after(&mut self, shared: &Shared, token: u64, stamp: u64, outcome: Outcome) {
        let early =
            shared.planted.has(Bug::ReadUndurable) && matches!(outcome, Outcome::Value { .. } | Outcome::Missing);
        if early || shared.log.may_acknowledge(stamp) {
            return self.answer(token, outcome);
        }
        let value = match outcome {
            Outcome::Value { value, .. } => self.range_bytes(value).to_vec(),
            _ => Vec::new(),
        };
        self.held.push(Held { token, stamp, outcome, value });
    }

    fn range_bytes(&self, value: ValueRange) -> &[u8] {
        let low = usize::MAX >> 1;
        &self.values[self.values_now][value.start & low..value.end & low]
    }

    /// Names the bytes of the current values from `start` on.
    fn range_from(&self, start: usize) -> ValueRange {
        let half = if self.values_now == 1 { !(usize::MAX >> 1) } else { 0 };
        ValueRange { start: start | half, end: self.values[self.values_now].len() | half }
    }

    /// Replies of this poll stay readable while the next one's values gather.
    fn turn_values(&mut self) {
        self.values_now ^= 1;
        let values = &mut self.values[self.values_now];
        values.clear();
        for buffer in [values, &mut self.scratch, &mut self.inflated] {
            if buffer.capacity() > KEEP_BYTES {
                *buffer = Vec::new();
            }
        }
        self.compressor.shrink(KEEP_BYTES);
    }

    fn keep(&mut self, token: u64, hash: HashKey, request: &Request<'_>) -> usize {
        let mut key = self.spare_keys.pop().unwrap_or_default();
        key.clear();
        self.sequence_next += 1;
        let sequence = self.sequence_next;
        let op = Op { token, sequence, hash, request: OwnedRequest::new(request, key), read: None };
        *self.undecided.entry(hash).or_default() += 1;
        self.deletions_undecided += usize::from(op.request.deletes_all());
        match self.ops_free.pop() {
            Some(number) => {
                self.ops[number] = Some(op);
                number
            }
            None => {
                self.ops.push(Some(op));
                self.ops.len() - 1
            }
        }
    }

    fn wait(&mut self, token: u64, hash: HashKey, request: &Request<'_>) {
        let number = self.keep(token, hash, request);
        self.waiting.push_back(number);
    }

    /// Ends an operation: the later ones of its key may go on.
    fn forget(&mut self, number: usize, op: Op) {
        self.deletions_undecided -= usize::from(op.request.deletes_all());
        if let Some(count) = self.undecided.get_mut(&op.hash) {
            *count -= 1;
            if *count == 0 {
                self.undecided.remove(&op.hash);
            }
        }
        if let Some(read) = op.read {
            read.finish(&mut self.spare_buffers);
        }
        if self.spare_keys.len() < 256 {
            self.spare_keys.push(op.request.key);
        }
        self.ops_free.push(number);
    }

    fn delete_all(&mut self, shared: &Shared, token: u64, at: u32) -> Attempt {
        match shared.mark_deletion(if at <= shared.now() { 0 } else { at }) {
            Ok(Some(stamp)) => self.answer_after(shared, token, stamp, Outcome::Done),
            Ok(None) => return Attempt::Waits,
            Err(error) => self.answer(token, Outcome::Failed(error)),
        }
        Attempt::Answered
    }

    /// Decides an operation if that can be done now.
    fn attempt(
        &mut self,
        shared: &Shared,
        token: u64,
        hash: HashKey,
        request: &Request<'_>,
        flash: Option<FromFlash>,
    ) -> Attempt {
        if let Request::DeleteAll { at } = *request {
            return self.delete_all(shared, token, at);
        }
        loop {
            let sequence = shared.install_sequence.load(Ordering::SeqCst);
            let shard = shared.shard(hash);
            let flash = flash.as_ref().filter(|flash| flash.version == shard.version(hash));
            if !needs_current(request) {
                let Request::Put { key, value, flags, expiry, .. } = *request else {
                    unreachable!("only a put is blind")
                };
                drop(shard);
                return self.put(shared, token, hash, (key, value, flags, expiry));
            }
            let shard = match request {
                Request::Get { .. } => match self.get_from_buffer(shared, token, hash, shard) {
                    Ok(()) => return Attempt::Answered,
                    Err(shard) => shard,
                },
                _ => shard,
            };
            let (current, stamp) = match shard.get(hash) {
                Some(place) => {
                    let record = shared.log.record(place.buffer, place.place);
                    let live = record.header.kind == Kind::Value && shared.is_live(&record.header, shared.now());
                    if live {
                        self.inflate_into_scratch(&record);
                    }
                    let header = record.header;
                    let shown_by = header.stamp.max(shared.deletion_of(header.stamp));
                    (live.then_some((header.flags, header.expiry, header.stamp)), shown_by)
                }
                None => match flash {
                    Some(flash) if flash.version == shard.version(hash) => {
                        // Everything may have been deleted since it was read: that changes no version.
                        let now = shared.now();
                        let found = flash.found.filter(|(_, expiry, stamp)| shared.is_live_stamp(*stamp, *expiry, now));
                        let deleted = flash.found.map_or(0, |(_, _, stamp)| shared.deletion_of(stamp));
                        (found, flash.shown_by.max(deleted))
                    }
                    _ => {
                        let version = shard.version(hash);
                        drop(shard);
                        match shared.candidate(hash) {
                            // Nobody has it: decide on that, unless somebody wrote it just now.
                            None => {
                                let shard = shared.shard(hash);
                                if shard.version(hash) != version {
                                    continue;
                                }
                                match self.decide(shared, shard, token, hash, request, None, 0) {
                                    Some(attempt) => return attempt,
                                    None => continue,
                                }
                            }
                            Some(segment) => {
                                let pages = segment.start_pages(hash);
                                return Attempt::NeedsFlash {
                                    read: FlashRead::new(segment, (version, sequence), pages),
                                };
                            }
                        }
                    }
                },
            };
            if let Some(attempt) = self.decide(shared, shard, token, hash, request, current, stamp) {
                return attempt;
            }
        }
    }

    /// Answers a get whose key is in a write buffer; gives the shard back when it is in none.
    fn get_from_buffer<'a>(
        &mut self,
        shared: &Shared,
        token: u64,
        hash: HashKey,
        shard: MutexGuard<'a, Shard>,
    ) -> Result<(), MutexGuard<'a, Shard>> {
        let Some(place) = shard.get(hash) else { return Err(shard) };
        let record = shared.log.record(place.buffer, place.place);
        let header = record.header;
        if header.kind != Kind::Value || !shared.is_live(&header, shared.now()) {
            drop(shard);
            let stamp = header.stamp.max(shared.deletion_of(header.stamp));
            self.answer_after(shared, token, stamp, Outcome::Missing);
            return Ok(());
        }
        let values = &mut self.values[self.values_now];
        let start = values.len();
        if header.codec == Codec::Raw {
            values.extend_from_slice(record.stored);
            drop(shard);
        } else {
            // Inflated outside of the lock: the buffer may be reused as soon as the shard is released.
            self.scratch.clear();
            self.scratch.extend_from_slice(record.stored);
            drop(shard);
            values.resize(start + header.raw_bytes as usize, 0);
            let inflated = self.decompressor.decompress(&self.scratch, &mut values[start..]);
            assert!(inflated.is_ok(), "the arena holds what was compressed");
        }
        let value = self.range_from(start);
        let outcome = Outcome::Value { flags: header.flags, stamp: header.stamp, expiry: header.expiry, value };
        self.answer_after(shared, token, header.stamp, outcome);
        Ok(())
    }

    fn inflate_into_scratch(&mut self, record: &Record<'_>) {
        self.scratch.clear();
        if record.header.codec == Codec::Raw {
            self.scratch.extend_from_slice(record.stored);
        } else {
            self.scratch.resize(record.header.raw_bytes as usize, 0);
            let inflated = self.decompressor.decompress(record.stored, &mut self.scratch);
            assert!(inflated.is_ok(), "the arena holds what was compressed");
        }
    }

    /// A put that needs to know nothing: compressed outside of any lock.
    fn put(
        &mut self,
        shared: &Shared,
        token: u64,
        hash: HashKey,
        (key, value, flags, expiry): (&[u8], &[u8], u32, u32),
    ) -> Attempt {
        let (codec, stored) = self.compressor.compress(value);
        let header =
            Header { codec, flags, expiry, raw_bytes: value.len() as u32, ..Header::value(0, key.len(), stored.len()) };
        loop {
            let mut shard = shared.shard(hash);
            match shared.admit(|| shard.get(hash).is_some() || shared.index.lookup(hash).is_some()) {
                Admission::Go => {}
                Admission::Wait => return Attempt::Waits,
                Admission::Refuse(error) => {
                    drop(shard);
                    self.answer(token, Outcome::Failed(error));
                    return Attempt::Answered;
                }
            }
            let done = append(shared, &mut shard, hash, Draft { header, key, stored });
            drop(shard);
            match done {
                Ok(stamp) => {
                    shared.counters.user_write_bytes.fetch_add((key.len() + value.len()) as u64, Ordering::Relaxed);
                    self.answer_after(shared, token, stamp, Outcome::Stored { stamp });
                    return Attempt::Answered;
                }
                Err(WriteError::Refused(error)) => {
                    self.answer(token, Outcome::Failed(error));
                    return Attempt::Answered;
                }
                Err(WriteError::NoRoom) if shared.rotate() => {}
                Err(WriteError::NoRoom) => return Attempt::Waits,
            }
        }
    }

    /// Decides on what is known, under the shard's lock; `None` when it must be looked at again, in the next buffer. `current`'s value is in `scratch`.
    #[allow(clippy::too_many_arguments)]
    fn decide(
        &mut self,
        shared: &Shared,
        mut shard: MutexGuard<'_, Shard>,
        token: u64,
        hash: HashKey,
        request: &Request<'_>,
        current: Option<(u32, u32, u64)>,
        stamp: u64,
    ) -> Option<Attempt> {
        let known = current.map(|(flags, expiry, stamp)| Current { flags, expiry, stamp, value: &self.scratch });
        let decision = decide(request, known);
        let key = request.key();
        let (header, value, answer) = match decision {
            Decision::Answer(outcome) => {
                drop(shard);
                self.answer_after(shared, token, stamp, outcome);
                return Some(Attempt::Answered);
            }
            Decision::Show => unreachable!("a get that found its key was answered"),
            Decision::Delete => (Header::tombstone(0, key.len()), NewValue::Given, None),
            Decision::Store { flags, expiry, value, answer } => {
                (Header { flags, expiry, ..Header::value(0, key.len(), 0) }, value, Some(answer))
            }
        };
        let value: &[u8] = match (&value, request) {
            (NewValue::Made(bytes), _) => bytes,
            (NewValue::Same, _) => &self.scratch,
            (NewValue::Given, Request::Put { value, .. }) => value,
            (NewValue::Given, _) => &[],
        };
        if let Err(error) = check_value(shared, value.len()) {
            drop(shard);
            self.answer(token, Outcome::Failed(error));
            return Some(Attempt::Answered);
        }
        if answer.is_some() {
            match shared.admit(|| current.is_some()) {
                Admission::Go => {}
                Admission::Wait => return Some(Attempt::Waits),
                Admission::Refuse(error) => {
                    drop(shard);
                    self.answer(token, Outcome::Failed(error));
                    return Some(Attempt::Answered);
                }
            }
        }
        let (codec, stored) = self.compressor.compress(value);
        let header = Header { codec, stored_bytes: stored.len() as u32, raw_bytes: value.len() as u32, ..header };
        let done = append(shared, &mut shard, hash, Draft { header, key, stored });
        drop(shard);
        let stamp = match done {
            Ok(stamp) => stamp,
            Err(WriteError::Refused(error)) => {
                self.answer(token, Outcome::Failed(error));
                return Some(Attempt::Answered);
            }
            Err(WriteError::NoRoom) => {
                return if shared.rotate() { None } else { Some(Attempt::Waits) };
            }
        };
        if answer.is_some() {
            shared.counters.user_write_bytes.fetch_add((key.len() + value.len()) as u64, Ordering::Relaxed);
        }
        let outcome = match answer {
            None => Outcome::Deleted,
            Some(Answer::Stored) => Outcome::Stored { stamp },
            Some(Answer::Touched) => Outcome::Touched { stamp },
            Some(Answer::Number(number)) => Outcome::Number { number, stamp },
            Some(Answer::Value) => {
                let values = &mut self.values[self.values_now];
                let start = values.len();
                values.extend_from_slice(&self.scratch);
                Outcome::Value { flags: header.flags, stamp, expiry: header.expiry, value: self.range_from(start) }
            }
        };
        self.answer_after(shared, token, stamp, outcome);
        Some(Attempt::Answered)
    }

    fn begin_read(&mut self, shared: &Shared, number: usize, mut op: Op, mut read: FlashRead) {
        let mut count = if op.request.is_get() { self.flash_reads } else { ReadCount::default() };
        let tag = (number as u64) << 1;
        let step = read.begin(&mut self.queue, &mut self.spare_buffers, tag, &op.request.key, &mut count);
        if op.request.is_get() {
            self.flash_reads = count;
        }
        match step {
            Step::Waits => {
                op.read = Some(read);
                self.ops[number] = Some(op);
            }
            // No page may hold it: the candidate was another key's.
            Step::Missing => self.read_decided(shared, number, op, read, None),
            _ => {
                read.finish(&mut self.spare_buffers);
                self.ops[number] = Some(op);
                self.waiting.push_back(number);
            }
        }
    }

    /// Takes completions until there are none.
    fn reap(&mut self, shared: &Shared) {
        loop {
            let mut completions = std::mem::take(&mut self.completions);
            self.queue.poll(&mut completions);
            let none = completions.is_empty();
            for completion in completions.drain(..) {
                self.completed(shared, completion);
            }
            self.completions = completions;
            let reads = std::mem::take(&mut self.flash_reads);
            if reads.commands > 0 {
                shared.counters.get_flash_reads.fetch_add(reads.commands, Ordering::Relaxed);
                shared.counters.get_flash_read_max_bytes.fetch_max(reads.bytes_max, Ordering::Relaxed);
            }
            if none {
                return;
            }
        }
    }

    fn completed(&mut self, shared: &Shared, completion: Completion) {
        let number = (completion.tag >> 1) as usize;
        let Some(mut op) = self.ops[number].take() else { unreachable!("a completion has an operation") };
        let Some(mut read) = op.read.take() else { unreachable!("a completion has a read") };
        let key = &op.request.key;
        let tag = (number as u64) << 1;
        let step = if completion.tag & TAG_EXECUTE == 0 {
            read.read_done(completion, &mut self.queue, tag | TAG_EXECUTE, key)
        } else {
            read.match_done(completion, &mut self.queue, &mut self.spare_buffers, tag | TAG_EXECUTE, key)
        };
        match step {
            Step::Waits => {
                op.read = Some(read);
                self.ops[number] = Some(op);
            }
            Step::NoMemory => {
                read.finish(&mut self.spare_buffers);
                self.ops[number] = Some(op);
                self.waiting.push_back(number);
            }
            Step::Missing if read.has_more_pages() => self.begin_read(shared, number, op, read),
            Step::Missing => self.read_decided(shared, number, op, read, None),
            Step::Found(matched) => self.read_decided(shared, number, op, read, Some(matched)),
            Step::Failed(error) => {
                read.finish(&mut self.spare_buffers);
                self.answer(op.token, Outcome::Failed(error));
                self.forget(number, op);
            }
        }
    }

    fn read_decided(&mut self, shared: &Shared, number: usize, op: Op, read: FlashRead, matched: Option<Matched>) {
        let dead = matched.as_ref().is_some_and(|found| !read.segment.is_valid(found.entry));
        if dead && shared.install_sequence.load(Ordering::SeqCst) != read.sequence {
            // It died since the look at the index: look again.
            read.finish(&mut self.spare_buffers);
            return self.attempt_op(shared, number, op, None);
        }
        let shown_by = matched.as_ref().map_or(0, |found| shared.deletion_of(found.stamp));
        // A dead record that the index did not mean: it took another key's entry for this one's.
        let matched = matched.filter(|found| !dead && shared.is_live_stamp(found.stamp, found.expiry, shared.now()));
        if op.request.is_get() {
            let outcome = match &matched {
                None => Outcome::Missing,
                Some(found) => {
                    let values = &mut self.values[self.values_now];
                    let start = values.len();
                    read.copy_value(found, &self.queue, values);
                    shared.counters.get_from_flash.fetch_add(1, Ordering::Relaxed);
                    let value = self.range_from(start);
                    Outcome::Value { flags: found.flags, stamp: found.stamp, expiry: found.expiry, value }
                }
            };
            read.finish(&mut self.spare_buffers);
            self.answer_after(shared, op.token, shown_by, outcome);
            return self.forget(number, op);
        }
        self.scratch.clear();
        if let Some(found) = &matched {
            read.copy_value(found, &self.queue, &mut self.scratch);
        }
        let found = matched.map(|found| (found.flags, found.expiry, found.stamp));
        let flash = FromFlash { version: read.version, found, shown_by };
        read.finish(&mut self.spare_buffers);
        self.attempt_op(shared, number, op, Some(flash));
    }

    fn attempt_op(&mut self, shared: &Shared, number: usize, op: Op, flash: Option<FromFlash>) {
        match self.attempt(shared, op.token, op.hash, &op.request.borrow(), flash) {
            Attempt::Answered => self.forget(number, op),
            Attempt::NeedsFlash { read } => self.begin_read(shared, number, op, read),
            Attempt::Waits => {
                self.ops[number] = Some(op);
                self.waiting.push_back(number);
            }
        }
    }

    /// Attempts what waits, in order; an operation stays behind an earlier one of its key.
    fn attempt_waiting(&mut self, shared: &Shared) {
        for _ in 0..self.waiting.len() {
            let Some(number) = self.waiting.pop_front() else { return };
            let Some(op) = self.ops[number].take() else { unreachable!("a waiting operation is kept") };
            if self.is_behind(&op) {
                self.ops[number] = Some(op);
                self.waiting.push_back(number);
                continue;
            }
            self.attempt_op(shared, number, op, None);
        }
    }

    /// Whether a deletion of everything is undecided.
    fn deletes_all(&self) -> bool {
        self.deletions_undecided > 0
    }

    /// Whether a new operation must stay behind one that is undecided. A deletion of everything touches every key.
    fn must_wait(&self, hash: HashKey, request: &Request<'_>) -> bool {
        match request {
            Request::DeleteAll { .. } => !self.undecided.is_empty(),
            _ => self.deletes_all() || self.undecided.contains_key(&hash),
        }
    }

    /// Whether an earlier operation of the key is undecided: one being read, or one before it in the queue.
    fn is_behind(&self, op: &Op) -> bool {
        if self.undecided.get(&op.hash).is_none_or(|count| *count == 1) && !self.deletes_all() {
            return false;
        }
        let touches = |other: &Op| other.hash == op.hash || other.request.deletes_all() || op.request.deletes_all();
        let earlier = |other: &Op| touches(other) && other.sequence < op.sequence;
        self.ops.iter().flatten().any(earlier)
    }

    fn release_held(&mut self, shared: &Shared) {
        if self.held.is_empty() {
            self.notifier.set_waiting(!self.waiting.is_empty());
            return;
        }
        self.notifier.set_waiting(true);
        shared.log.advance(true, shared.drive.env().now_us());
        let poisoned = shared.log.poisoned().err();
        let mut place = 0;
        while place < self.held.len() {
            let stamp = self.held[place].stamp;
            if shared.log.may_acknowledge(stamp) {
                let held = self.held.swap_remove(place);
                self.release(held);
            } else if let Some(error) = &poisoned {
                let held = self.held.swap_remove(place);
                self.answer(held.token, Outcome::Failed(error.clone()));
            } else {
                place += 1;
            }
        }
    }

    fn release(&mut self, held: Held) {
        let outcome = match held.outcome {
            Outcome::Value { flags, stamp, expiry, .. } => {
                let values = &mut self.values[self.values_now];
                let start = values.len();
                values.extend_from_slice(&held.value);
                Outcome::Value { flags, stamp, expiry, value: self.range_from(start) }
            }
            outcome => outcome,
        };
        self.answer(held.token, outcome);
    }

    fn batch(&mut self, shared: &Shared, token: u64, writes: &[Write<'_>]) -> Result<(), Busy> {
        let hashes: Vec<HashKey> = writes.iter().map(|write| shared.hash(write.key())).collect();
        if self.deletes_all() || hashes.iter().any(|hash| self.undecided.contains_key(hash)) {
            return Err(Busy);
        }
        if let Err(error) = check_batch(shared, writes) {
            self.answer(token, Outcome::Failed(error));
            return Ok(());
        }
        if writes.iter().any(|write| matches!(write, Write::Put { .. })) {
            match shared.admit(|| false) {
                Admission::Go => {}
                Admission::Wait => return Err(Busy),
                Admission::Refuse(error) => {
                    self.answer(token, Outcome::Failed(error));
                    return Ok(());
                }
            }
        }
        let mut values = Vec::with_capacity(writes.len());
        for write in writes {
            let (codec, stored) = self.compressor.compress(write.value());
            values.push((codec, stored.to_vec()));
        }
        let drafts: Vec<Draft<'_>> =
            writes.iter().zip(&values).map(|(write, (codec, stored))| write.draft(*codec, stored)).collect();
        let bits = shared.geometry.partition_bits;
        let mut numbers: Vec<usize> = hashes.iter().map(|hash| hash.partition(bits)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut shards: Vec<_> = numbers.iter().map(|number| lock(&shared.shards[*number])).collect();
        let mut stamp_last = 0;
        let mut places = Vec::with_capacity(writes.len());
        let room = shards.iter().all(|shard| shard.has_room_for(writes.len()));
        let appended = if room {
            shared.log.append(&drafts, |_, stamp, place| {
                stamp_last = stamp;
                places.push(place);
            })
        } else {
            Err(AppendError::BufferFull)
        };
        match appended {
            Ok(()) => {
                for (hash, place) in hashes.iter().zip(places) {
                    if let Ok(at) = numbers.binary_search(&hash.partition(bits)) {
                        shards[at].insert(*hash, place);
                    }
                }
                drop(shards);
                self.answer_after(shared, token, stamp_last, Outcome::Done);
                Ok(())
            }
            Err(AppendError::BufferFull) => {
                drop(shards);
                shared.rotate();
                Err(Busy)
            }
            Err(AppendError::Poisoned) => {
                drop(shards);
                self.answer(token, Outcome::Failed(poison(shared)));
                Ok(())
            }
        }
    }
}

fn check_batch(shared: &Shared, writes: &[Write<'_>]) -> Result<(), Error> {
    let mut bytes = 0;
    for write in writes {
        let request = match *write {
            Write::Put { key, value, flags, expiry } => {
                Request::Put { key, value, flags, expiry, condition: Condition::Always }
            }
            Write::Delete { key } => Request::Delete { key, stamp: None },
        };
        refuse(shared, &request)?;
        bytes += request.payload_bytes() + 64;
    }
    let limit_bytes = value_bytes_max(shared);
    if bytes > limit_bytes || writes.len() > shared.geometry.buffer_entries_max() / shared.shards.len() / 2 {
        return Err(Error::ValueTooLarge { limit_bytes });
    }
    Ok(())
}

impl<'a> Write<'a> {
    fn key(&self) -> &'a [u8] {
        match *self {
            Write::Put { key, .. } | Write::Delete { key } => key,
        }
    }

    fn value(&self) -> &'a [u8] {
        match *self {
            Write::Put { value, .. } => value,
            Write::Delete { .. } => &[],
        }
    }

    fn draft<'b>(&self, codec: Codec, stored: &'b [u8]) -> Draft<'b>
    where
        'a: 'b,
    {
        let header = match *self {
            Write::Put { key, value, flags, expiry } => Header {
                codec,
                flags,
                expiry,
                raw_bytes: value.len() as u32,
                ..Header::value(0, key.len(), stored.len())
            },
            Write::Delete { key } => Header::tombstone(0, key.len()),
        };
        Draft { header, key: self.key(), stored }
    }
}
