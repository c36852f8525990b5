//! A session: a queue pair and the operations on their way over it. One thread at a time, or one for good.
//!
//! ```text
//! submit ─► refused? ─► the engine of the keyspace's kind: HashedSession, or an EngineSession ─► commands, replies
//! poll ──► completions to the engines that sent them ─► what waits is attempted ─► what is durable is replied
//!                             all share SessionCore: queue pair, local memory, replies
//! ```
//! No session waits for another to poll. Operations on one key take effect in the order of submission: one that is not decided yet
//! keeps the later ones waiting, unless it asks ([`order`]).
//!
//! In a forked child, whatever is submitted or was on its way is answered with [`Error::Forked`]; nothing waits, and nothing is dropped.

pub mod asks;
pub mod batch;
mod block_holes;
#[cfg(test)]
mod keyspace_tests;
mod staged;
mod through;

use crate::hashed::HashedEngine;
use crate::hashed::session::{HashedSession, limits};
use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tapetum_base::engine::Engine;
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::keyspace::catalogue::Keyspace;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::request::key_range::{KeyRange, ScanReply};
use tapetum_base::request::{Outcome, Reply, Request, ValueRange};
use tapetum_base::session::engine_session::{EngineSession, EngineSlot, EngineWait, OtherEngines};
use tapetum_base::session::order::OpTarget;
use tapetum_base::session::refuse;
use tapetum_base::session::session_core::SessionCore;
use tapetum_base::wake::shared_event::{SharedEvent, Sleep};
use tapetum_drive::{OfProcess, QueuePair};

pub use crate::hashed::session::limits::{Limits, value_bytes_max};
pub use crate::hashed::session::{KeyDigest, PlainPut};
pub use batch::Busy;
pub use tapetum_base::session::KEPT_BYTES_MAX;
pub use tapetum_base::session::asks::Ask;
pub use tapetum_base::session::batch::Write;
pub use through::{Application, ItemPipeline};

/// The most operations that one session has on their way.
pub const OPERATIONS_MAX: usize = 1 << 16;
/// How often a session that waits for memory or room checks again.
const MEMORY_LOOK: Duration = Duration::from_millis(10);

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the session has no room: poll it, and submit again")
    }
}

impl std::error::Error for Busy {}

/// Many operations on their way at once, of one thread: submit, poll for replies, wait. Operations of one key are done in
/// the order in which they were submitted, but for those that ask ([`Session::submit_within`]).
pub struct Session {
    // First: its queue pair goes before what operations hold.
    pub(crate) core: OfProcess<SessionCore>,
    pub(crate) hashed: OfProcess<HashedSession>,
    pub(crate) others: OfProcess<OtherEngines>,
    pub(crate) hashed_engine: Arc<HashedEngine>,
    engines: Arc<[Arc<dyn Engine>]>,
}

impl Session {
    pub(crate) fn new(
        hashed_engine: Arc<HashedEngine>,
        engines: Arc<[Arc<dyn Engine>]>,
        queue: QueuePair,
    ) -> Result<Session, Error> {
        let core = SessionCore::new(hashed_engine.base.clone(), queue);
        let hashed = OfProcess::new(HashedSession::new(&hashed_engine)?);
        let others = OfProcess::new(OtherEngines::default());
        Ok(Session { core: OfProcess::new(core), hashed, others, hashed_engine, engines })
    }

    /// Whether [`Session::submit`] takes a request: fewer than [`OPERATIONS_MAX`] are on their way, and of keys and values they
    /// and their replies keep less than [`KEPT_BYTES_MAX`], or than a quarter of the store's memory.
    pub fn has_room(&self) -> bool {
        self.in_flight() < OPERATIONS_MAX && self.kept_bytes() < self.core.kept_bytes_max
    }

    fn kept_bytes(&self) -> usize {
        if !self.core.is_here() {
            return 0;
        }
        let others: usize = self.others.iter().map(|part| part.kept_bytes()).sum();
        self.core.held_bytes() + self.hashed.kept_bytes() + others
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
        self.submit_within(keyspace, token, request, usize::MAX)
    }

    fn start(&mut self, keyspace: KeyspaceRef, token: u64, request: &Request<'_>, value_bytes_allowed: usize) {
        if keyspace.kind() != KeyspaceKind::Hashed {
            return self.start_elsewhere(keyspace, token, request, value_bytes_allowed);
        }
        let hashed_engine = &*self.hashed_engine;
        if let Err(error) = limits::refuse(hashed_engine, keyspace, request) {
            return self.core.answer(token, Outcome::Failed(error));
        }
        hashed_engine.check_watermark();
        let hash = hashed_engine.hasher.hash_in(keyspace, request.key());
        let target = OpTarget { token, keyspace, hash, value_bytes_allowed };
        self.hashed.start((&mut self.core, hashed_engine), target, request);
    }

    /// Starts an operation on a keyspace that is not a hashed one.
    #[cold]
    fn start_elsewhere(
        &mut self,
        keyspace: KeyspaceRef,
        token: u64,
        request: &Request<'_>,
        value_bytes_allowed: usize,
    ) {
        if let Some((slot, target)) = self.target_elsewhere(keyspace, token, request, value_bytes_allowed) {
            self.others.get(slot).start(&mut self.core, target, request);
        }
    }

    /// The part that an operation on a keyspace that is not a hashed one goes to. `None`: it was refused and answered.
    fn target_elsewhere(
        &mut self,
        keyspace: KeyspaceRef,
        token: u64,
        request: &Request<'_>,
        value_bytes_allowed: usize,
    ) -> Option<(EngineSlot, OpTarget)> {
        let refused = refuse(&self.core.base, keyspace, request);
        let slot = match refused.and_then(|()| self.engine_of(keyspace.kind())) {
            Ok(slot) => slot,
            Err(error) => {
                self.core.answer(token, Outcome::Failed(error));
                return None;
            }
        };
        self.hashed_engine.check_watermark();
        let hash = self.core.base.hasher.hash(keyspace.id, request.key());
        Some((slot, OpTarget { token, keyspace, hash, value_bytes_allowed }))
    }

    /// The part for keyspaces of a kind, which is opened if it was not.
    fn engine_of(&mut self, kind: KeyspaceKind) -> Result<EngineSlot, Error> {
        if kind == KeyspaceKind::Hashed {
            return Ok(EngineSlot::HASHED);
        }
        if let Some(slot) = self.others.find(kind) {
            return Ok(slot);
        }
        let engine = self.engines.iter().find(|engine| engine.kind() == kind);
        let engine = engine.ok_or(Error::Keyspace(KeyspaceError::OtherKind { kind }))?;
        self.others.add(kind, |slot| engine.clone().open_session(slot))
    }

    /// Answers [`Outcome::Done`] when every write to a hashed keyspace that was acknowledged before is durable, whichever session it
    /// came through. Where writes are acknowledged when they are durable, that is at once.
    ///
    /// # Errors
    /// As [`Session::submit`].
    pub fn submit_sync(&mut self, token: u64) -> Result<(), Busy> {
        if !self.has_room() {
            return Err(Busy);
        }
        match self.core.base.refuse_forked() {
            Ok(()) => self.core.answer_when_durable(token),
            Err(error) => self.core.answer(token, Outcome::Failed(error)),
        }
        Ok(())
    }

    /// How often keyspaces have been created, dropped, renamed or given other options since the store was opened. One load: a caller that
    /// keeps [`KeyspaceRef`]s compares it before it uses them, and looks the names up again if it has changed.
    pub fn keyspace_edits(&self) -> u64 {
        self.hashed_engine.keyspaces.edits()
    }

    /// The open keyspaces, and how requests name them.
    pub fn open_keyspaces(&self) -> Vec<(Keyspace, KeyspaceRef)> {
        self.hashed_engine.keyspaces.list_open()
    }

    /// Whether a hashed keyspace may have a key, as far as memory knows: a no is certain, and a yes nearly so. For a block device with groups memory
    /// only knows which groups are on flash. Yes, too, where a get would be refused. Reads no flash.
    pub fn has_probably(&self, keyspace: KeyspaceRef, key: &[u8]) -> bool {
        let engine = &*self.hashed_engine;
        if !self.core.is_here() || !engine.keyspaces.is_open(keyspace) {
            return true;
        }
        let hash = engine.hasher.hash_in(keyspace, key);
        let on_flash = HashedEngine::flash_hash(keyspace, hash);
        keyspace.kind() != KeyspaceKind::Hashed || engine.has_live_probably(&engine.buffers.shard(hash), hash, on_flash)
    }

    /// Starts a scan of an ordered keyspace: the answer has up to `items_max` items, or fewer and what is left of the range, and comes by
    /// [`Session::take_scanned`] after polls.
    ///
    /// # Errors
    /// [`KeyspaceError::Unordered`] if the keyspace has no order of keys; [`KeyspaceError::Gone`] if it was dropped; [`Error::Options`] of a
    /// scan of no items.
    pub fn submit_scan(
        &mut self,
        keyspace: KeyspaceRef,
        token: u64,
        range: KeyRange,
        items_max: usize,
    ) -> Result<(), Error> {
        if keyspace.kind() != KeyspaceKind::Ordered {
            return Err(Error::Keyspace(KeyspaceError::Unordered));
        }
        if items_max == 0 {
            return Err(Error::Options("a scan of 0 items never ends: ask for 1 or more".into()));
        }
        self.core.base.refuse_dropped(keyspace)?;
        self.hashed_engine.check_watermark();
        let slot = self.engine_of(keyspace.kind())?;
        self.others.get(slot).start_scan(keyspace, token, range, items_max);
        Ok(())
    }

    /// Takes the answers to scans that are there.
    pub fn take_scanned(&mut self, replies: &mut Vec<ScanReply>) {
        if !self.core.is_here() {
            return;
        }
        self.others.iter_mut().for_each(|(_, part)| part.take_scanned(replies));
    }

    /// Advances everything without blocking, and appends the replies that are ready. As long as operations are on their way, the
    /// session holds what they read: others may wait for that to be free.
    pub fn poll(&mut self, replies: &mut Vec<Reply>) {
        if !self.core.is_here() {
            self.fail_all(Error::Forked);
            return replies.append(&mut self.core.ready);
        }
        self.hashed_engine.check_watermark();
        // A change after an attempt that had to wait must wake the session. A session that asks for nothing gets no wake-up.
        self.core.notifier.set_waiting(self.in_flight() > 0 || self.core.batch_waits);
        self.reap();
        self.attempt_waiting();
        let waits = self.waits() > EngineWait::Commands;
        self.core.release_held(waits);
        self.hashed.end_poll(&self.hashed_engine);
        if !self.core.ready.is_empty() && self.core.base.is_fenced() {
            self.core.ready.iter_mut().for_each(take_back);
        }
        replies.append(&mut self.core.ready);
        self.core.values.turn();
        if self.in_flight() == self.core.asks.count() {
            self.core.spare_buffers.rest();
        }
    }

    /// Answers every operation in flight with an error, once; nothing more happens to it.
    #[cold]
    fn fail_all(&mut self, error: Error) {
        if self.core.is_over {
            return;
        }
        let tokens = self.tokens_in_flight();
        self.core.ready.clear();
        self.core.is_over = true;
        tokens.into_iter().for_each(|token| self.core.answer(token, Outcome::Failed(error.clone())));
    }

    /// Attempts the waiting operations, in order, and those that they wake.
    fn attempt_waiting(&mut self) {
        let mut count = self.hashed.begin_attempts();
        if count == 0 && self.others.are_none() {
            return;
        }
        let closed = self.core.base.closed.load(Ordering::SeqCst);
        let mut was_polled = false;
        for (_, part) in self.others.iter_mut().filter(|(_, part)| part.waits() > EngineWait::Commands) {
            if closed {
                part.fail_waiting(&mut self.core)
            } else {
                part.poll(&mut self.core)
            }
            was_polled = true;
        }
        if was_polled {
            // A part may have gathered commands: its owner may sleep until these have come, and no poll before that would send them.
            self.reap();
        }
        if closed && count > 0 {
            self.hashed.fail_waiting(&mut self.core);
            return self.reap();
        }
        // A caller that gets a reply polls again.
        while count > 0 {
            self.hashed.attempt_front((&mut self.core, &self.hashed_engine), count);
            self.reap();
            count = if self.core.ready.is_empty() { self.hashed.take_woken() } else { 0 };
        }
    }

    /// Starts the gathered operations, and takes completions until there are none, or an answer: its receiver may have more requests, which should be
    /// in flight before the next completions are handled.
    fn reap(&mut self) {
        let mut completions = std::mem::take(&mut self.core.completions);
        loop {
            self.send();
            let Session { core, hashed, others, hashed_engine, .. } = self;
            core.queue.poll(&mut completions);
            // Those that came while an engine waited for a command of its own.
            completions.append(&mut core.completions);
            if completions.is_empty() {
                break;
            }
            completions.iter().for_each(|returned| hashed.prefetch(&returned.completion));
            for returned in completions.drain(..) {
                match EngineSlot::of(returned.completion.tag) {
                    EngineSlot::HASHED => hashed.complete((core, hashed_engine), returned),
                    EngineSlot::NOBODY => {}
                    slot => others.get(slot).complete(core, returned),
                }
            }
            if !core.ready.is_empty() {
                break;
            }
        }
        completions.append(&mut self.core.completions);
        self.core.completions = completions;
        self.hashed.count_gets(&self.hashed_engine);
    }

    /// Sends the gathered operations.
    fn send(&mut self) {
        self.hashed.look_up_gathered((&mut self.core, &self.hashed_engine));
        self.others.iter_mut().for_each(|(_, part)| part.send(&mut self.core));
    }

    /// The bytes of a value; readable until the poll after the one that replied. Whoever keeps them longer copies them.
    ///
    /// # Panics
    /// For a range that a later poll has given up, or that is another session's, this gives the bytes of another value, or panics.
    pub fn bytes(&self, value: ValueRange) -> &[u8] {
        self.core.values.bytes(value)
    }

    /// Operations that were submitted and not replied to.
    pub fn in_flight(&self) -> usize {
        if self.core.is_over {
            return self.core.ready.len();
        }
        let others: usize = self.others.iter().map(|part| part.in_flight()).sum();
        self.core.replies() + self.hashed.in_flight() + others
    }

    /// The tokens of those operations.
    pub fn tokens_in_flight(&self) -> Vec<u64> {
        let others = self.others.iter().flat_map(|part| part.tokens());
        self.hashed.tokens().chain(others).chain(self.core.tokens()).collect()
    }

    /// Whether another poll gets further at once: pipelines take many steps, and a poll runs a few; and completions may have come while an engine
    /// waited for a command of its own. Whoever sleeps on the descriptors asks first.
    pub fn is_ready(&self) -> bool {
        self.core.queue.is_ready() || !self.core.completions.is_empty()
    }

    /// Descriptors that are readable when a poll may make progress, after a poll that gave nothing. The first operation in an ordered keyspace
    /// adds some at the end: see [`Session::event_fds_count`].
    pub fn event_fds(&self) -> Vec<RawFd> {
        self.all_fds().collect()
    }

    /// How many there are now.
    pub fn event_fds_count(&self) -> usize {
        self.all_fds().count()
    }

    fn all_fds(&self) -> impl Iterator<Item = RawFd> {
        let is_here = self.core.is_here();
        let engines = self.others.iter().filter_map(EngineSession::shared_event);
        let shared = std::iter::once(&self.core.base.log.event).chain(engines).filter_map(|event| event.fd);
        self.own_fds().chain(shared).filter(move |_| is_here)
    }

    fn own_fds(&self) -> impl Iterator<Item = RawFd> + use<> {
        [self.core.queue.event_fd(), self.core.notifier.event_fd()].into_iter().flatten()
    }

    /// Events of shared work that its next poll would do.
    fn shared_events(&self) -> impl Iterator<Item = &SharedEvent> {
        let log = self.core.holds_replies().then_some(&self.core.base.log.event);
        let engines = self.others.iter().filter(|part| part.waits() > EngineWait::Commands);
        log.into_iter().chain(engines.filter_map(EngineSession::shared_event))
    }

    /// The most pressing reason why operations wait.
    fn waits(&self) -> EngineWait {
        let others = self.others.iter().map(|part| part.waits());
        others.fold(self.hashed.waits(), EngineWait::max)
    }

    /// Starts the submitted operations and blocks until some are done, with one system call, if they are flash reads and nothing else: these complete
    /// without anybody's doing. Returns at once otherwise.
    pub fn wait_for_flash(&mut self) {
        if !self.core.is_here() {
            return;
        }
        self.send();
        let quiet = self.core.ready.is_empty() && !self.core.asks.are_new() && !self.core.holds_replies();
        if quiet && self.waits() == EngineWait::Commands {
            self.core.queue.wait(None);
        }
    }

    /// Blocks until a poll may make progress, or for `timeout`.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        if !self.core.is_here() {
            return;
        }
        // Before the look: a change after it must wake the session.
        self.core.notifier.set_waiting(true);
        self.send();
        let waits = self.waits();
        let goes_on = !self.core.ready.is_empty() || self.core.asks.are_new() || waits == EngineWait::Poll;
        if goes_on || self.is_ready() {
            return;
        }
        if !self.core.holds_replies() && waits == EngineWait::Commands && !self.core.batch_waits {
            // Flash reads alone: the queue pair wakes us with one system call.
            return self.core.queue.wait(timeout);
        }
        // Starts the submitted commands. Completions that this takes are for the next poll.
        let SessionCore { queue, completions, .. } = &mut *self.core;
        queue.poll(completions);
        if !completions.is_empty() {
            return;
        }
        // Nothing signals that memory was given back, nor that another session has sealed the buffer in which a batch had no room.
        let look_again = (waits == EngineWait::Change || self.core.batch_waits).then_some(MEMORY_LOOK);
        self.sleep([timeout, look_again].into_iter().flatten().min());
        self.core.notifier.drain();
        self.core.batch_waits = false;
    }

    /// Blocks until one of its own descriptors is readable, or one that it watches for all.
    fn sleep(&self, timeout: Option<Duration>) {
        let notifier = &self.core.notifier;
        let events: Vec<(&SharedEvent, Sleep)> =
            self.shared_events().map(|event| (event, event.begin_sleep(notifier))).collect();
        let watched = events.iter().filter(|(_, sleep)| *sleep != Sleep::Waits).filter_map(|(event, _)| event.fd);
        let fds = self.own_fds().chain(watched);
        let mut fds: Vec<libc::pollfd> = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        let timeout_ms = timeout.map_or(-1, |timeout| timeout.as_millis().clamp(1, 1000) as i32);
        // SAFETY: the array is valid for its length; poll writes only into it.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
        events.into_iter().for_each(|(event, sleep)| event.end_sleep(notifier, sleep));
    }
}

/// Acknowledges nothing: the store's fence has passed.
#[cold]
fn take_back(reply: &mut Reply) {
    let is_write = !matches!(reply.outcome, Outcome::Value { .. } | Outcome::Missing | Outcome::Failed(_));
    if is_write {
        reply.outcome = Outcome::Failed(Error::Fenced);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.core.is_here() {
            // Whatever is of the parent stays, also where this is the last that has the store.
            return std::mem::forget((self.hashed_engine.clone(), self.engines.clone()));
        }
        self.core.base.log.unregister(&self.core.notifier);
        self.hashed.leave(&self.hashed_engine);
        self.others.iter_mut().for_each(|(_, part)| part.leave(&mut self.core));
    }
}
