//! Holds the served store. The store can be exchanged while clients stay connected, because a failed store must be reopened as another
//! object over the same drive.
//!
//! ```text
//!   StoreSlot ── store (errands and figures borrow it) ─┬─ withdraw ─► nobody has it any more ─► put
//!       │                                              └─ replace: each seat goes over to another store when nothing is in flight there
//!       └ a port a worker ── Handover ─► the worker's Seat: with a session, or empty
//! ```
//! Invariants:
//! 1. Only its worker touches a seat. Others leave handovers in its port, and the worker takes them between two requests.
//! 2. When `withdraw` returns a store, no session, errand or figure holds it: the caller has the last handle.
//! 3. A request in flight when its session is withdrawn is answered once, with the reason. So is each request at an empty seat.
//! 4. A store that is replaced answers all requests that came to it; a seat that is to go over takes no more before.
//!
//! Threads: any; a seat belongs to one. A single thread, which may block, calls `withdraw`, `refuse` and `put`.

// The server is above the simulator: the thread that exchanges the store waits for its users.
#![allow(clippy::disallowed_methods)]

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tapetum::{
    AbsentBlocks, Ask, BlockDevice, Busy, Error, Fence, Keyspace, KeyspaceId, KeyspaceRef, KeyspaceWrites, Outcome,
    Reply, Request, Session, SlabClass, Stats, Store, ValueRange,
};
use tapetum_drive::Event;
use tapetum_drive::engine::{ApplicationSnapshot, StageSnapshot};

use crate::store::backup_progress::BackupProgress;

/// How often a withdrawal checks whether the last errand has ended.
const BORROWERS_LOOK: Duration = Duration::from_millis(5);

/// The most refusals that an empty seat keeps until they are taken: about a session's most requests.
const REFUSALS_MAX: usize = 4096;

/// The store, or the reason why there is none.
enum Occupant {
    Store(Arc<Store>),
    Absent { why: Error, last: Box<LastFigures> },
}

/// Figures of a store that was taken out.
struct LastFigures {
    stats: Stats,
    keyspace_items: Vec<(Keyspace, u64)>,
    slabs: Vec<SlabClass>,
    stages: Vec<StageSnapshot>,
}

/// A step that a worker must take with its seat.
enum Handover {
    /// Drop the session, then the sender.
    Leave(Error, Sender<()>),
    /// Take this session, then drop the sender.
    Take(Box<Session>, Sender<()>),
    /// Go over to this session when nothing is in flight, drop the one before, then the sender.
    GoOver(Box<Session>, Sender<()>),
}

/// The handovers of one worker.
struct Port {
    event: Event,
    /// The oldest first. `None` when the seat is dropped.
    handovers: Mutex<Option<VecDeque<Handover>>>,
}

impl Port {
    fn hand(&self, handover: Handover) {
        if let Some(handovers) = &mut *lock(&self.handovers) {
            handovers.push_back(handover);
        }
        self.event.raise();
    }

    fn next(&self) -> Option<Handover> {
        lock(&self.handovers).as_mut()?.pop_front()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the [module](self).
pub struct StoreSlot {
    occupant: Mutex<Occupant>,
    /// One for each seat that was ever given out.
    ports: Mutex<Vec<Arc<Port>>>,
    /// From when on no store in the slot acknowledges anything.
    fence: Arc<OnceLock<Fence>>,
    backups: BackupProgress,
}

impl StoreSlot {
    pub fn new(store: Store) -> StoreSlot {
        StoreSlot {
            occupant: Mutex::new(Occupant::Store(Arc::new(store))),
            ports: Mutex::default(),
            fence: Arc::default(),
            backups: BackupProgress::default(),
        }
    }

    /// A slot whose stores have a fence.
    pub fn fenced(store: Store, fence: Fence) -> StoreSlot {
        store.fence(fence.clone());
        let slot = StoreSlot::new(store);
        slot.fence(fence);
        slot
    }

    /// Gives stores that are put from now on a fence.
    ///
    /// # Panics
    /// If they have one.
    pub fn fence(&self, fence: Fence) {
        assert!(self.fence.set(fence).is_ok(), "a slot has one fence");
    }

    /// Whether nothing may be acknowledged any more.
    pub fn is_fenced(&self) -> bool {
        self.fence.get().is_some_and(Fence::has_passed)
    }

    /// Whether writes are refused until the store is opened again.
    pub fn has_failed(&self) -> bool {
        self.store().map_or(true, |store| store.failure().is_some())
    }

    /// How the backups of the slot's stores go.
    pub fn backups(&self) -> &BackupProgress {
        &self.backups
    }

    /// The store, or the reason why there is none.
    pub fn store(&self) -> Result<Arc<Store>, Error> {
        match &*lock(&self.occupant) {
            Occupant::Store(store) => Ok(Arc::clone(store)),
            Occupant::Absent { why, .. } => Err(why.clone()),
        }
    }

    /// Takes the store out, if there is one, and waits until nobody holds it: first errands, while sessions still serve. From then on
    /// requests are refused with `why`.
    pub fn withdraw(&self, why: &Error) -> Option<Store> {
        let borrowed = self.store().ok()?;
        let last = Box::new(LastFigures {
            stats: borrowed.stats(),
            keyspace_items: borrowed.keyspace_items(),
            slabs: borrowed.slabs(),
            stages: borrowed.stage_counters(),
        });
        *lock(&self.occupant) = Occupant::Absent { why: why.clone(), last };
        let store = alone(borrowed);
        self.empty_seats(why);
        Some(store)
    }

    /// Changes the reason for refusals, if there is no store.
    pub fn refuse(&self, reason: &Error) {
        match &mut *lock(&self.occupant) {
            Occupant::Store(_) => return,
            Occupant::Absent { why, .. } => *why = reason.clone(),
        }
        self.empty_seats(reason);
    }

    /// Waits until no seat has a session.
    fn empty_seats(&self, why: &Error) {
        let leave = |port: &Arc<Port>| {
            let (leaving, left) = channel();
            port.hand(Handover::Leave(why.clone(), leaving));
            left
        };
        let all: Vec<Receiver<()>> = lock(&self.ports).iter().map(leave).collect();
        // Nothing is ever sent. The sender is dropped with the session, or with the seat.
        for left in all {
            let _ = left.recv();
        }
    }

    /// Puts a store into the empty slot, and gives each seat a session of it.
    pub fn put(&self, store: Store) -> Result<(), Error> {
        self.hand_out(store).map(drop)
    }

    /// As [`StoreSlot::put`], and waits until no seat refuses requests any more.
    pub fn put_and_wait(&self, store: Store) -> Result<(), Error> {
        for taken in self.hand_out(store)? {
            let _ = taken.recv();
        }
        Ok(())
    }

    fn hand_out(&self, store: Store) -> Result<Vec<Receiver<()>>, Error> {
        self.fence.get().into_iter().for_each(|fence| store.fence(fence.clone()));
        let ports = lock(&self.ports).clone();
        let sessions = ports.iter().map(|_| store.session()).collect::<Result<Vec<_>, _>>()?;
        *lock(&self.occupant) = Occupant::Store(Arc::new(store));
        let hand = |(port, session): (&Arc<Port>, Session)| {
            let (taking, taken) = channel();
            port.hand(Handover::Take(Box::new(session), taking));
            taken
        };
        Ok(ports.iter().zip(sessions).map(hand).collect())
    }

    /// Puts another store in the place of the one that serves, and returns that when no session holds it any more: commands may, for long.
    pub fn replace(&self, store: Store) -> Result<Arc<Store>, Error> {
        self.fence.get().into_iter().for_each(|fence| store.fence(fence.clone()));
        let ports = lock(&self.ports).clone();
        let sessions = ports.iter().map(|_| store.session()).collect::<Result<Vec<_>, _>>()?;
        let replaced = match &mut *lock(&self.occupant) {
            Occupant::Absent { why, .. } => return Err(why.clone()),
            Occupant::Store(occupant) => mem::replace(occupant, Arc::new(store)),
        };
        let hand = |(port, session): (&Arc<Port>, Session)| {
            let (leaving, left) = channel();
            port.hand(Handover::GoOver(Box::new(session), leaving));
            left
        };
        let all: Vec<Receiver<()>> = ports.iter().zip(sessions).map(hand).collect();
        for left in all {
            let _ = left.recv();
        }
        Ok(replaced)
    }

    /// A worker's seat, with a session of the store.
    pub fn seat(&self) -> Result<Seat, Error> {
        let session = self.store()?.session()?;
        let event = Event::new().map_err(|error| Error::Io(error.to_string()))?;
        let port = Arc::new(Port { event, handovers: Mutex::new(Some(VecDeque::new())) });
        lock(&self.ports).push(Arc::clone(&port));
        Ok(Seat { sitter: Sitter::Session(session), port, exchanges: 0, fence: self.fence.clone(), next: None })
    }

    /// Figures of the store; without one, those of the last.
    fn figures<F>(&self, of_store: impl FnOnce(&Store) -> F, of_last: impl FnOnce(&LastFigures) -> F) -> F {
        let store = match &*lock(&self.occupant) {
            Occupant::Store(store) => Arc::clone(store),
            Occupant::Absent { last, .. } => return of_last(last),
        };
        of_store(&store)
    }

    pub fn stats(&self) -> Stats {
        self.figures(Store::stats, |last| last.stats)
    }

    /// Each keyspace, and its approximate number of items.
    pub fn keyspace_items(&self) -> Vec<(Keyspace, u64)> {
        self.figures(Store::keyspace_items, |last| last.keyspace_items.clone())
    }

    /// Bytes written to segments for each keyspace since the store was opened.
    pub fn keyspace_writes(&self) -> Vec<(KeyspaceId, KeyspaceWrites)> {
        self.store().map_or_else(|_| Vec::new(), |store| store.keyspace_writes())
    }

    /// The classes of slots in DRAM, the smallest first.
    pub fn slabs(&self) -> Vec<SlabClass> {
        self.figures(Store::slabs, |last| last.slabs.clone())
    }

    /// Counters of the applications that have shares of the drive; none without a store.
    pub fn applications(&self) -> Vec<ApplicationSnapshot> {
        self.store().map_or_else(|_| Vec::new(), |store| store.applications())
    }

    /// Counters of the drive's programs as stages of pipelines.
    pub fn stages(&self) -> Vec<StageSnapshot> {
        self.figures(Store::stage_counters, |last| last.stages.clone())
    }
}

/// Waits until the last errand has ended.
pub fn alone(mut borrowed: Arc<Store>) -> Store {
    loop {
        match Arc::try_unwrap(borrowed) {
            Ok(store) => return store,
            Err(still_borrowed) => borrowed = still_borrowed,
        }
        std::thread::sleep(BORROWERS_LOOK);
    }
}

/// The part of a seat that answers requests. A boxed session would cost every get one more dereference.
#[allow(clippy::large_enum_variant)]
enum Sitter {
    Session(Session),
    Nobody {
        why: Error,
        /// Refusals that were not taken yet.
        refusals: Vec<Reply>,
    },
}

/// A worker's session, or the lack of one. Used by one thread at a time. Requests for one key take effect in the order of submission, except
/// one that asks for room: it takes effect when it is allowed. Replies come in any order.
pub struct Seat {
    sitter: Sitter,
    port: Arc<Port>,
    exchanges: u64,
    fence: Arc<OnceLock<Fence>>,
    /// To go over to when nothing is in flight.
    next: Option<(Box<Session>, Sender<()>)>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        // No handover will be taken any more.
        *lock(&self.port.handovers) = None;
    }
}

fn refusal(token: u64, why: &Error) -> Reply {
    Reply { token, outcome: Outcome::Failed(why.clone()), read_flash: false }
}

const ASKER_IS_GONE: &str = "requests that asked were answered when the session left";

impl Seat {
    /// Whether nothing may be acknowledged any more, also of what was polled.
    pub fn is_fenced(&self) -> bool {
        self.fence.get().is_some_and(Fence::has_passed)
    }

    pub fn session(&self) -> Option<&Session> {
        match &self.sitter {
            Sitter::Session(session) => Some(session),
            Sitter::Nobody { .. } => None,
        }
    }

    pub fn session_mut(&mut self) -> Option<&mut Session> {
        match &mut self.sitter {
            Sitter::Session(session) => Some(session),
            Sitter::Nobody { .. } => None,
        }
    }

    /// The caller has checked `has_room`.
    fn submit_by(&mut self, token: u64, submit: impl FnOnce(&mut Session) -> Result<(), Busy>) {
        match &mut self.sitter {
            Sitter::Session(session) => submit(session).expect("the worker looks for room first"),
            Sitter::Nobody { why, refusals } => refusals.push(refusal(token, why)),
        }
    }

    /// Submits a request. Never blocks; copies what it needs. A refusal comes as a reply. The caller has checked `has_room`. Keys, here and
    /// below, are those of `keyspace`.
    pub fn submit(&mut self, keyspace: KeyspaceRef, token: u64, request: Request<'_>) {
        self.submit_by(token, |session| session.submit_to(keyspace, token, request));
    }

    /// Submits a request that asks for room before it brings a value longer than `value_bytes`: see [`Session::take_asks`].
    pub fn submit_within(&mut self, keyspace: KeyspaceRef, token: u64, request: Request<'_>, value_bytes: usize) {
        self.submit_by(token, |session| session.submit_within(keyspace, token, request, value_bytes));
    }

    /// The reply comes when all acknowledged writes are durable: see [`Session::submit_sync`]. The caller has checked `has_room`.
    pub fn submit_sync(&mut self, token: u64) {
        self.submit_by(token, |session| session.submit_sync(token));
    }

    /// Whether one more request may be submitted. If not, replies make room.
    pub fn has_room(&self) -> bool {
        match &self.sitter {
            // Requests in flight are answered first.
            Sitter::Session(_) if self.next.is_some() => false,
            Sitter::Session(session) => session.has_room(),
            Sitter::Nobody { refusals, .. } => refusals.len() < REFUSALS_MAX,
        }
    }

    /// Takes replies. Never blocks. A value stays readable until the next poll.
    pub fn poll(&mut self, replies: &mut Vec<Reply>) {
        match &mut self.sitter {
            Sitter::Session(session) => session.poll(replies),
            Sitter::Nobody { refusals, .. } => replies.append(refusals),
        }
    }

    pub fn bytes(&self, value: ValueRange) -> &[u8] {
        self.session().expect("a refusal has no value").bytes(value)
    }

    pub fn in_flight(&self) -> usize {
        match &self.sitter {
            Sitter::Session(session) => session.in_flight(),
            Sitter::Nobody { refusals, .. } => refusals.len(),
        }
    }

    /// Descriptors that are readable while `poll` may make progress; `poll` drains them.
    pub fn event_fds(&self) -> Vec<RawFd> {
        self.session().map_or_else(Vec::new, Session::event_fds)
    }

    /// How many there are now: a session has more once it was asked for an ordered keyspace.
    pub fn event_fds_count(&self) -> usize {
        self.session().map_or(0, Session::event_fds_count)
    }

    /// A descriptor that is readable when the session must be exchanged.
    pub fn exchange_fd(&self) -> RawFd {
        self.port.event.as_raw_fd()
    }

    /// How often the session was exchanged. Each exchange may lose writes that were acknowledged and not yet durable.
    pub fn exchanges(&self) -> u64 {
        self.exchanges
    }

    /// Whether the seat waits for nothing more to go over to another store.
    pub fn may_go_over(&self) -> bool {
        self.next.is_some() && self.in_flight() == 0
    }

    /// Exchanges the session, if it must be, and returns the replies to all requests in flight. `event_fds` are different from then on.
    pub fn exchange(&mut self) -> Option<Vec<Reply>> {
        self.port.event.clear();
        let mut refused = None;
        while let Some(handover) = self.port.next() {
            let (next, leaving) = match handover {
                Handover::GoOver(session, leaving) => {
                    // One that nobody came to is over.
                    self.next = Some((session, leaving));
                    continue;
                }
                Handover::Leave(why, leaving) => {
                    self.next = None;
                    // Even if another store follows, clients learn once that writes which were not durable may be lost.
                    self.exchanges += 1;
                    (Sitter::Nobody { why, refusals: Vec::new() }, Some(leaving))
                }
                Handover::Take(session, taking) => (Sitter::Session(*session), Some(taking)),
            };
            let refused = refused.get_or_insert_with(Vec::new);
            match (mem::replace(&mut self.sitter, next), &self.sitter) {
                (Sitter::Session(session), Sitter::Nobody { why, .. }) => {
                    refused.extend(session.tokens_in_flight().into_iter().map(|token| refusal(token, why)));
                }
                (Sitter::Nobody { refusals, .. }, _) => refused.extend(refusals),
                (Sitter::Session(_), Sitter::Session(_)) => unreachable!("a store is put where there is none"),
            }
            // The session is dropped by now.
            drop(leaving);
        }
        if self.may_go_over()
            && let Some((session, leaving)) = self.next.take()
        {
            self.sitter = Sitter::Session(*session);
            refused.get_or_insert_with(Vec::new);
            drop(leaving);
        }
        refused
    }

    /// `false` is certain: see [`Session::has_probably`].
    pub fn has_probably(&self, keyspace: KeyspaceRef, key: &[u8]) -> bool {
        self.session().is_none_or(|session| session.has_probably(keyspace, key))
    }

    /// See [`Session::absent_blocks`].
    pub fn absent_blocks(
        &self,
        keyspace: KeyspaceRef,
        device: BlockDevice,
        blocks: Range<u64>,
        looks_max: usize,
    ) -> AbsentBlocks {
        let absent = |session: &Session| session.absent_blocks(keyspace, device, blocks, looks_max);
        self.session().map_or_else(AbsentBlocks::default, absent)
    }

    pub fn take_asks(&mut self, asks: &mut Vec<Ask>) {
        if let Some(session) = self.session_mut() {
            session.take_asks(asks);
        }
    }

    pub fn allow_value(&mut self, token: u64, value_bytes: usize) {
        self.session_mut().expect(ASKER_IS_GONE).allow_value(token, value_bytes);
    }

    pub fn give_up_value(&mut self, token: u64) {
        self.session_mut().expect(ASKER_IS_GONE).give_up_value(token);
    }
}
