//! A session: a queue pair and the operations on their way over it. One thread at a time, or one for good.
//!
//! ```text
//!            ┌─ answer known ──────────────────────────────► held until durable ─► reply
//! submit ─► attempt ─ needs flash ─► reading ─► attempt again, or answer
//!    │       ├─ no room / no memory ─► waiting ─► attempt again at a later poll
//!    │       └─ behind an earlier one of its key ─► waiting, when that is decided
//!    └ get ─► gathered ─► looked up with the others of this poll ─► reading ─► answer
//!                 ▲            └─ long ─► asks (if it is to) ─┐
//!                 └────────────────── allowed ◄────────────────┘
//! ```
//! A read-modify-write holds nothing across its flash read: it remembers where its key was in the write buffers and starts
//! over if somebody wrote it meanwhile (docs/decisions). So no session waits for another to poll. Operations on one key take
//! effect in the order of submission: one that is not decided yet keeps the later ones waiting, unless it asks.

mod asks;
mod attempt;
mod batch;
mod change;
mod flash_read;
#[cfg(test)]
mod keyspace_tests;
mod large;
mod lookup;
mod near;
#[cfg(test)]
mod near_tests;
mod order;
mod owned;
mod reads;
mod replies;
mod staged;

use crate::error::Error;
use crate::hashed::buffer::Seen;
use crate::hashed::large::inline_bytes_max;
use crate::hashed::tier::{HitCounts, Item};
use crate::keyspace::notify::Notifier;
use crate::keyspace::request::{Outcome, Reply, Request, ValueRange};
use crate::keyspace::states::KeyspaceRef;
use crate::maintenance::pace::Share;
use crate::shared::Shared;
use flash_read::{FlashRead, SpareBuffers};
use large::{LargeOp, OutOfLine};
use lookup::Miss;
use near::NearGet;
use order::{Undecided, closed};
use owned::OwnedRequest;
use reads::GetCount;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tapetum_drive::{QueuePair, Returned};
use tapetum_kernels::codec::{Compressor, Decompressor};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{HEADER_BYTES_MAX, KEY_BYTES_MAX};

pub use asks::Ask;
use asks::Asks;
pub use batch::{Busy, Write};
pub use near::ItemPipeline;
use staged::FoundLately;
pub use staged::KeyDigest;

/// The most operations that one session has on their way.
pub const OPERATIONS_MAX: usize = 1 << 16;
/// With so many bytes of keys and values kept, a session takes no operation: eight of the largest values.
pub const KEPT_BYTES_MAX: usize = 128 << 20;
/// Larger buffers are given back when a poll ends.
const KEEP_BYTES: usize = 1 << 20;
/// Memory that is waited for is looked for so often.
const MEMORY_LOOK: Duration = Duration::from_millis(10);

/// What an operation is about.
#[derive(Clone, Copy, Default)]
struct Target {
    /// The caller's name for it.
    token: u64,
    keyspace: KeyspaceRef,
    hash: HashKey,
}

#[derive(Default)]
struct Op {
    token: u64,
    keyspace: KeyspaceRef,
    /// Counts the session's kept operations: the order of submission.
    sequence: u64,
    hash: HashKey,
    /// The one after it of those of its hash key that are not decided.
    next_of_key: Option<usize>,
    request: OwnedRequest,
    /// What it brings without asking.
    value_bytes_allowed: usize,
    /// Of its key and its value.
    kept_bytes: usize,
    /// `None` while it waits to be attempted.
    read: Option<FlashRead>,
    /// What it does with a large value, if it has come to that.
    large: Option<Box<LargeOp>>,
    /// Of a get whose value goes through programs of the drive.
    near: Option<Box<NearGet>>,
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
    seen: Seen,
    /// The value is in `scratch`, if it is needed. `None`: flash does not have it.
    found: Option<Item>,
    /// Where the value lies, if that is in extents of its own.
    large: Option<OutOfLine>,
    /// The stamp of the deletion that took it; 0 if none did.
    shown_by: u64,
}

enum Attempt {
    Answered,
    NeedsFlash {
        read: FlashRead,
    },
    /// It shows a longer value than it may bring.
    Asks {
        value_bytes: usize,
    },
    /// A large value is to be read or written.
    Large(Box<LargeOp>),
    Waits,
}

/// Many operations on their way at once, of one thread: submit, poll for replies, wait. Operations of one key are done in
/// the order in which they were submitted, but for those that ask ([`Session::submit_within`]).
pub struct Session {
    shared: Arc<Shared>,
    local: Local,
}

/// A session without what it shares.
struct Local {
    // First: when it is dropped, the drive has ended what it does for operations, and extents that they hold may be free.
    queue: QueuePair,
    ops: Vec<Option<Box<Op>>>,
    ops_free: Vec<usize>,
    /// Gets to look up at the next poll.
    gathered: Vec<usize>,
    /// Those that are looked up now and in no write buffer.
    misses: Vec<Miss>,
    asks: Asks,
    /// Operations to attempt at the next poll, in order.
    waiting: VecDeque<usize>,
    /// One of them was submitted since the last poll: what it waits for may have come before anybody was to be woken.
    waits_anew: bool,
    /// So many at its front may go on now, as what was before them is decided.
    woken: usize,
    /// A batch was told to come again, and nobody has waited for it since.
    batch_waits: bool,
    undecided: Undecided,
    /// The sequences of the deletions of everything among them.
    deletions_undecided: VecDeque<u64>,
    /// Writes wait for flush and collector: later ones stay behind them.
    paced: bool,
    share: Share,
    held: Vec<Held>,
    /// Bytes that operations and held replies keep of keys and values.
    kept_bytes: usize,
    ready: Vec<Reply>,
    /// Values of this poll's replies and of the last one's.
    values: [Vec<u8>; 2],
    values_now: usize,
    scratch: Vec<u8>,
    inflated: Vec<u8>,
    compressor: Compressor,
    decompressor: Decompressor,
    spare_buffers: SpareBuffers,
    /// Boxes of operations that are over, with their room for a key.
    #[expect(clippy::vec_box, reason = "boxes go from list to list; operations stay where they are")]
    spare_ops: Vec<Box<Op>>,
    completions: Vec<Returned>,
    /// Gets whose pipelines the drive runs.
    near_in_flight: usize,
    /// Gets that are not in the store's counters yet.
    gets: GetCount,
    /// Those that the DRAM tier answered, where there is one.
    hits: Option<HitCounts>,
    found_lately: FoundLately,
    sequence_next: u64,
    notifier: Arc<Notifier>,
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, queue: QueuePair) -> Result<Session, Error> {
        let io = |error: std::io::Error| Error::Io(error.to_string());
        let notifier = Arc::new(Notifier::default());
        // Made now, so that no notification comes before it.
        notifier.event_fd();
        shared.log.register(notifier.clone());
        let local = Local {
            queue,
            ops: Vec::new(),
            ops_free: Vec::new(),
            gathered: Vec::new(),
            misses: Vec::new(),
            asks: Asks::default(),
            waiting: VecDeque::new(),
            waits_anew: false,
            woken: 0,
            batch_waits: false,
            undecided: Undecided::default(),
            deletions_undecided: VecDeque::new(),
            paced: false,
            share: Share::default(),
            held: Vec::new(),
            kept_bytes: 0,
            ready: Vec::new(),
            values: [Vec::new(), Vec::new()],
            values_now: 0,
            scratch: Vec::new(),
            inflated: Vec::new(),
            compressor: Compressor::new().map_err(io)?,
            decompressor: Decompressor::new().map_err(io)?,
            spare_buffers: SpareBuffers::new(
                shared.drive.local().clone(),
                shared.options.local_memory_bytes() as usize,
            ),
            spare_ops: Vec::new(),
            completions: Vec::new(),
            near_in_flight: 0,
            gets: GetCount::default(),
            hits: shared.tier.as_ref().map(|tier| tier.hits().counts()),
            found_lately: FoundLately::default(),
            sequence_next: 0,
            notifier,
        };
        Ok(Session { shared, local })
    }

    /// Whether [`Session::submit`] takes a request: fewer than [`OPERATIONS_MAX`] are on their way, and of keys and values they
    /// and their replies keep less than [`KEPT_BYTES_MAX`].
    pub fn has_room(&self) -> bool {
        self.in_flight() < OPERATIONS_MAX && self.local.kept_bytes < KEPT_BYTES_MAX
    }

    /// Starts an operation. Never blocks; every outcome, refusals too, comes as a reply with `token`.
    ///
    /// # Errors
    /// [`Busy`] when there is no room ([`Session::has_room`]); then nothing was done and no reply comes. A poll that gives replies
    /// makes room.
    pub fn submit(&mut self, token: u64, request: Request<'_>) -> Result<(), Busy> {
        self.submit_to(KeyspaceRef::DEFAULT, token, request)
    }

    /// As [`Session::submit`], of a key of this keyspace.
    ///
    /// # Errors
    /// As [`Session::submit`].
    pub fn submit_to(&mut self, keyspace: KeyspaceRef, token: u64, request: Request<'_>) -> Result<(), Busy> {
        if !self.has_room() {
            return Err(Busy);
        }
        self.start(keyspace, token, request);
        Ok(())
    }

    fn start(&mut self, keyspace: KeyspaceRef, token: u64, request: Request<'_>) {
        let shared = &*self.shared;
        if let Err(error) = refuse(shared, keyspace, &request) {
            return self.local.answer(token, Outcome::Failed(error));
        }
        shared.check_watermark();
        let hash = shared.hash(keyspace.id, request.key());
        let target = Target { token, keyspace, hash };
        if !request.reads() && self.local.is_paced(shared, &request) {
            shared.counters.writes_paced.fetch_add(1, Ordering::Relaxed);
            return self.local.wait(target, &request);
        }
        if self.local.must_wait(hash, &request) {
            return self.local.wait(target, &request);
        }
        if request.reads() {
            return self.local.gather(target, &request);
        }
        let allowed = self.local.asks.value_bytes_allowed();
        match self.local.attempt(shared, target, &request, None, allowed) {
            Attempt::Answered => {}
            Attempt::Asks { value_bytes } => {
                let (number, op) = self.local.keep_at_hand(target, &request);
                self.local.ask(number, op, value_bytes);
            }
            Attempt::NeedsFlash { read } => {
                let (number, op) = self.local.keep_at_hand(target, &request);
                self.local.begin_read(shared, number, op, read);
            }
            Attempt::Large(large) => {
                let (number, op) = self.local.keep_at_hand(target, &request);
                self.local.go_on_large(shared, number, op, large);
            }
            Attempt::Waits => self.local.wait(target, &request),
        }
    }

    /// Writes several keys at once, of one keyspace or of several: all of them or none, also across a crash.
    pub fn submit_batch(&mut self, token: u64, writes: &[Write<'_>]) -> Result<(), Busy> {
        if let Err(error) = self.shared.refuse_to_write() {
            self.local.answer(token, Outcome::Failed(error));
            return Ok(());
        }
        self.shared.check_watermark();
        if !self.has_room() {
            return Err(Busy);
        }
        // Before the attempt: what makes room after it must wake the session.
        self.local.notifier.set_waiting(true);
        let submitted = self.local.batch(&self.shared, token, writes);
        if submitted == Err(Busy) && self.shared.closed.load(Ordering::SeqCst) {
            self.local.answer(token, Outcome::Failed(closed()));
            return Ok(());
        }
        self.local.batch_waits = submitted.is_err();
        submitted
    }

    /// Advances everything without blocking, and appends the replies that are ready. As long as operations are on their way, the
    /// session holds what they read: others may wait for that to be free.
    pub fn poll(&mut self, replies: &mut Vec<Reply>) {
        let shared = &*self.shared;
        shared.check_watermark();
        // What changes after an attempt that had to wait must wake the session. Nobody writes for one that asks for nothing.
        self.local.notifier.set_waiting(self.in_flight() > 0 || self.local.batch_waits);
        self.local.reap(shared);
        // Who was told to wait may not have come back.
        self.local.paced = false;
        if !self.local.waiting.is_empty() {
            self.local.attempt_waiting(shared);
        }
        self.local.release_held(shared);
        self.local.share.set_waiting(&shared.pace, self.local.paced);
        replies.append(&mut self.local.ready);
        self.local.turn_values();
        if self.in_flight() == self.local.asks.count() {
            self.local.spare_buffers.rest();
        }
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

    /// The tokens of those operations.
    pub fn tokens_in_flight(&self) -> Vec<u64> {
        let Local { ops, held, ready, .. } = &self.local;
        let ops = ops.iter().flatten().map(|op| op.token);
        ops.chain(held.iter().map(|held| held.token)).chain(ready.iter().map(|reply| reply.token)).collect()
    }

    /// Whether another poll gets further at once: pipelines take many steps, and a poll runs a few. Whoever sleeps on the descriptors asks
    /// first.
    pub fn is_ready(&self) -> bool {
        self.local.queue.is_ready()
    }

    /// Descriptors that are readable when a poll may make progress, after one that gave nothing.
    pub fn event_fds(&self) -> Vec<RawFd> {
        let fds = [self.local.queue.event_fd(), self.shared.log.event_fd(), self.local.notifier.event_fd()];
        fds.into_iter().flatten().collect()
    }

    /// Starts what was submitted and blocks until some of it is there, with one system call, if that is flash reads and
    /// nothing else: they come without anybody's doing. Returns at once otherwise.
    pub fn wait_for_flash(&mut self) {
        let local = &mut self.local;
        local.look_up_gathered(&self.shared);
        let quiet = local.ready.is_empty() && local.gathered.is_empty() && !local.asks.are_new();
        if quiet && local.held.is_empty() && local.waiting.is_empty() {
            local.queue.wait(None);
        }
    }

    /// Blocks until a poll may make progress, or for `timeout`.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        // Before the look: what changes after it must wake the session.
        self.local.notifier.set_waiting(true);
        self.local.look_up_gathered(&self.shared);
        if !self.local.ready.is_empty()
            || !self.local.gathered.is_empty()
            || self.local.asks.are_new()
            || self.local.waits_anew
            || self.local.woken > 0
            || self.is_ready()
        {
            return;
        }
        if self.local.held.is_empty() && self.local.waiting.is_empty() && !self.local.batch_waits {
            // Flash reads alone: the queue pair wakes us with one system call.
            return self.local.queue.wait(timeout);
        }
        let mut fds: Vec<libc::pollfd> =
            self.event_fds().into_iter().map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        // Starts what was submitted. What this takes is for the next poll.
        self.local.queue.poll(&mut self.local.completions);
        if !self.local.completions.is_empty() {
            return;
        }
        // Nobody tells that memory was given back, nor that another session has sealed the buffer in which a batch had no room.
        let look_again = (!self.local.waiting.is_empty() || self.local.batch_waits).then_some(MEMORY_LOOK);
        let timeout = [timeout, look_again].into_iter().flatten().min();
        let timeout_ms = timeout.map_or(-1, |timeout| timeout.as_millis().clamp(1, 1000) as i32);
        // SAFETY: the array is valid for its length; poll writes only into it.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
        self.local.notifier.drain();
        self.local.batch_waits = false;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.log.unregister(&self.local.notifier);
        self.local.share.set_waiting(&self.shared.pace, false);
    }
}

fn refuse(shared: &Shared, keyspace: KeyspaceRef, request: &Request<'_>) -> Result<(), Error> {
    shared.refuse_dropped(keyspace)?;
    if !matches!(request, Request::Get { .. }) {
        shared.refuse_to_write()?;
    }
    let key = request.key();
    if key.is_empty() && !matches!(request, Request::DeleteAll { .. }) {
        return Err(Error::KeyEmpty);
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::KeyTooLong { limit_bytes: KEY_BYTES_MAX });
    }
    check_value(shared, request.payload_bytes() - key.len())?;
    // A record must fit into an empty write buffer, and into a segment beside what pages take, with as much of a value as
    // lies in line.
    let with_value = HEADER_BYTES_MAX + inline_bytes_max(&shared.geometry);
    let limit_bytes = (shared.log.record_bytes_max() - with_value).min(shared.geometry.segment_bytes as usize / 4 * 3);
    if key.len() > limit_bytes {
        return Err(Error::KeyTooLong { limit_bytes });
    }
    Ok(())
}

/// The largest value that a store takes.
pub(crate) fn value_bytes_max(shared: &Shared) -> usize {
    shared.value_bytes_max
}

fn check_value(shared: &Shared, bytes: usize) -> Result<(), Error> {
    let limit_bytes = value_bytes_max(shared);
    if bytes > limit_bytes { Err(Error::ValueTooLarge { limit_bytes }) } else { Ok(()) }
}
