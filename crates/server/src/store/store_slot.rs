//! Holds the served store. The store can be exchanged while clients stay connected, because a failed store must be reopened as another
//! object over the same drive.
//!
//! ```text
//!   StoreSlot ── store (errands and figures borrow it) ── withdraw ─► nobody has it any more ─► put
//!       └ a port a worker ── Handover ─► the worker's Seat: with a session, or empty
//! ```
//! Invariants:
//! 1. Only its worker touches a seat. Others leave handovers in its port, and the worker takes them between two requests.
//! 2. When `withdraw` returns a store, no session, errand or figure holds it: the caller has the last handle.
//! 3. A request in flight when its session is withdrawn is answered once, with the reason. So is each request at an empty seat.
//!
//! Threads: any; a seat belongs to one. A single thread, which may block, calls `withdraw`, `refuse` and `put`.

// The server is above the simulator: the thread that exchanges the store waits for its users.
#![allow(clippy::disallowed_methods)]

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tapetum::{
    AbsentBlocks, Access, Ask, BlockDevice, DramItem, Error, Inspection, KeyDigest, Keyspace, KeyspaceId, KeyspaceRef,
    KeyspaceWrites, ListCursor, ListPart, Location, Outcome, Reply, Request, SlabClass, Stats, ValueRange,
};
use tapetum_drive::Event;
use tapetum_drive::engine::StageSnapshot;

use crate::store::engine::{Session, Store};
use tapetum::PlainPut;

/// How often a withdrawal checks whether the last errand has ended.
const BORROWERS_LOOK: Duration = Duration::from_millis(5);

/// The most refusals that an empty seat keeps until they are taken: about a session's most requests.
const REFUSALS_MAX: usize = 4096;

/// The store, or the reason why there is none.
enum Occupant<T> {
    Store(Arc<T>),
    Absent {
        why: Error,
        stats: Box<Stats>,
        keyspace_items: Vec<(Keyspace, u64)>,
        slabs: Vec<SlabClass>,
        stages: Vec<StageSnapshot>,
    },
}

/// A step that a worker must take with its seat.
enum Handover<S> {
    /// Drop the session, then the sender.
    Leave(Error, Sender<()>),
    Take(S),
}

/// The handovers of one worker.
struct Port<S> {
    event: Event,
    /// The oldest first. `None` when the seat is dropped.
    handovers: Mutex<Option<VecDeque<Handover<S>>>>,
}

impl<S> Port<S> {
    fn hand(&self, handover: Handover<S>) {
        if let Some(handovers) = &mut *lock(&self.handovers) {
            handovers.push_back(handover);
        }
        self.event.raise();
    }

    fn next(&self) -> Option<Handover<S>> {
        lock(&self.handovers).as_mut()?.pop_front()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the [module](self). The server uses it like any store.
pub struct StoreSlot<T: Store> {
    occupant: Mutex<Occupant<T>>,
    /// One for each seat that was ever given out.
    ports: Mutex<Vec<Arc<Port<T::Session>>>>,
}

impl<T: Store> StoreSlot<T> {
    pub fn new(store: T) -> StoreSlot<T> {
        StoreSlot { occupant: Mutex::new(Occupant::Store(Arc::new(store))), ports: Mutex::default() }
    }

    /// The store, or the reason why there is none.
    pub fn store(&self) -> Result<Arc<T>, Error> {
        match &*lock(&self.occupant) {
            Occupant::Store(store) => Ok(Arc::clone(store)),
            Occupant::Absent { why, .. } => Err(why.clone()),
        }
    }

    /// Takes the store out, if there is one, and waits until nobody holds it: first errands, while sessions still serve. From then on
    /// requests are refused with `why`.
    pub fn withdraw(&self, why: &Error) -> Option<T> {
        let mut borrowed = self.store().ok()?;
        let (stats, slabs, stages) = (Box::new(borrowed.stats()), borrowed.slabs(), borrowed.stages());
        let keyspace_items = borrowed.keyspace_items();
        *lock(&self.occupant) = Occupant::Absent { why: why.clone(), stats, keyspace_items, slabs, stages };
        let store = loop {
            match Arc::try_unwrap(borrowed) {
                Ok(store) => break store,
                Err(still_borrowed) => borrowed = still_borrowed,
            }
            std::thread::sleep(BORROWERS_LOOK);
        };
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
        let leave = |port: &Arc<Port<T::Session>>| {
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
    pub fn put(&self, store: T) -> Result<(), Error> {
        let ports = lock(&self.ports).clone();
        let sessions = ports.iter().map(|_| store.session()).collect::<Result<Vec<_>, _>>()?;
        *lock(&self.occupant) = Occupant::Store(Arc::new(store));
        ports.iter().zip(sessions).for_each(|(port, session)| port.hand(Handover::Take(session)));
        Ok(())
    }
}

impl<T: Store> Store for StoreSlot<T> {
    type Session = Seat<T::Session>;

    fn session(&self) -> Result<Seat<T::Session>, Error> {
        let session = self.store()?.session()?;
        let event = Event::new().map_err(|error| Error::Io(error.to_string()))?;
        let port = Arc::new(Port { event, handovers: Mutex::new(Some(VecDeque::new())) });
        lock(&self.ports).push(Arc::clone(&port));
        Ok(Seat { sitter: Sitter::Session(session), port, exchanges: 0 })
    }

    /// Without a store: the figures of the last one.
    fn stats(&self) -> Stats {
        let store = match &*lock(&self.occupant) {
            Occupant::Store(store) => Arc::clone(store),
            Occupant::Absent { stats, .. } => return **stats,
        };
        store.stats()
    }

    fn keyspace_items(&self) -> Vec<(Keyspace, u64)> {
        let store = match &*lock(&self.occupant) {
            Occupant::Store(store) => Arc::clone(store),
            Occupant::Absent { keyspace_items, .. } => return keyspace_items.clone(),
        };
        store.keyspace_items()
    }

    fn keyspace_writes(&self) -> Vec<(KeyspaceId, KeyspaceWrites)> {
        self.store().map_or_else(|_| Vec::new(), |store| store.keyspace_writes())
    }

    fn slabs(&self) -> Vec<SlabClass> {
        let store = match &*lock(&self.occupant) {
            Occupant::Store(store) => Arc::clone(store),
            Occupant::Absent { slabs, .. } => return slabs.clone(),
        };
        store.slabs()
    }

    fn stages(&self) -> Vec<StageSnapshot> {
        let store = match &*lock(&self.occupant) {
            Occupant::Store(store) => Arc::clone(store),
            Occupant::Absent { stages, .. } => return stages.clone(),
        };
        store.stages()
    }

    fn list_keys(&self, keyspace: KeyspaceRef, cursor: &ListCursor) -> Result<ListPart, Error> {
        self.store()?.list_keys(keyspace, cursor)
    }

    fn inspect(&self) -> Result<Inspection, Error> {
        self.store()?.inspect()
    }

    fn locate(&self, keyspace: KeyspaceRef, key: &[u8]) -> Result<Location, Error> {
        self.store()?.locate(keyspace, key)
    }

    fn resize_capacity(&self, bytes: u64) -> Result<(), Error> {
        self.store()?.resize_capacity(bytes)
    }

    fn resize_memory(&self, bytes: u64) -> Result<(), Error> {
        self.store()?.resize_memory(bytes)
    }
}

/// The part of a seat that answers requests. A boxed session would cost every get one more dereference.
enum Sitter<S> {
    Session(S),
    Nobody {
        why: Error,
        /// Refusals that were not taken yet.
        refusals: Vec<Reply>,
    },
}

/// A worker's session, or the lack of one.
pub struct Seat<S> {
    sitter: Sitter<S>,
    port: Arc<Port<S>>,
    exchanges: u64,
}

impl<S> Drop for Seat<S> {
    fn drop(&mut self) {
        // No handover will be taken any more.
        *lock(&self.port.handovers) = None;
    }
}

fn refusal(token: u64, why: &Error) -> Reply {
    Reply { token, outcome: Outcome::Failed(why.clone()), read_flash: false }
}

impl<S: Session> Session for Seat<S> {
    fn submit(&mut self, keyspace: KeyspaceRef, token: u64, request: Request<'_>) {
        match &mut self.sitter {
            Sitter::Session(session) => session.submit(keyspace, token, request),
            Sitter::Nobody { why, refusals } => refusals.push(refusal(token, why)),
        }
    }

    fn has_room(&self) -> bool {
        match &self.sitter {
            Sitter::Session(session) => session.has_room(),
            Sitter::Nobody { refusals, .. } => refusals.len() < REFUSALS_MAX,
        }
    }

    fn poll(&mut self, replies: &mut Vec<Reply>) {
        match &mut self.sitter {
            Sitter::Session(session) => session.poll(replies),
            Sitter::Nobody { refusals, .. } => replies.append(refusals),
        }
    }

    fn bytes(&self, value: ValueRange) -> &[u8] {
        match &self.sitter {
            Sitter::Session(session) => session.bytes(value),
            Sitter::Nobody { .. } => unreachable!("a refusal has no value"),
        }
    }

    fn in_flight(&self) -> usize {
        match &self.sitter {
            Sitter::Session(session) => session.in_flight(),
            Sitter::Nobody { refusals, .. } => refusals.len(),
        }
    }

    fn tokens_in_flight(&self) -> Vec<u64> {
        match &self.sitter {
            Sitter::Session(session) => session.tokens_in_flight(),
            Sitter::Nobody { refusals, .. } => refusals.iter().map(|reply| reply.token).collect(),
        }
    }

    fn event_fds(&self) -> Vec<RawFd> {
        match &self.sitter {
            Sitter::Session(session) => session.event_fds(),
            Sitter::Nobody { .. } => Vec::new(),
        }
    }

    fn exchange_fd(&self) -> Option<RawFd> {
        Some(self.port.event.as_raw_fd())
    }

    fn exchange(&mut self) -> Option<Vec<Reply>> {
        self.port.event.clear();
        let mut refused = None;
        while let Some(handover) = self.port.next() {
            let refused = refused.get_or_insert_with(Vec::new);
            let (next, leaving) = match handover {
                Handover::Leave(why, leaving) => {
                    // Even if another store follows, clients learn once that writes which were not durable may be lost.
                    self.exchanges += 1;
                    (Sitter::Nobody { why, refusals: Vec::new() }, Some(leaving))
                }
                Handover::Take(session) => (Sitter::Session(session), None),
            };
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
        refused
    }

    fn submit_within(&mut self, keyspace: KeyspaceRef, token: u64, request: Request<'_>, value_bytes: usize) {
        match &mut self.sitter {
            Sitter::Session(session) => session.submit_within(keyspace, token, request, value_bytes),
            Sitter::Nobody { why, refusals } => refusals.push(refusal(token, why)),
        }
    }

    fn submit_sync(&mut self, token: u64) {
        match &mut self.sitter {
            Sitter::Session(session) => session.submit_sync(token),
            Sitter::Nobody { why, refusals } => refusals.push(refusal(token, why)),
        }
    }

    fn has_probably(&self, keyspace: KeyspaceRef, key: &[u8]) -> bool {
        match &self.sitter {
            Sitter::Session(session) => session.has_probably(keyspace, key),
            Sitter::Nobody { .. } => true,
        }
    }

    fn absent_blocks(
        &self,
        keyspace: KeyspaceRef,
        device: BlockDevice,
        blocks: Range<u64>,
        looks_max: usize,
    ) -> AbsentBlocks {
        match &self.sitter {
            Sitter::Session(session) => session.absent_blocks(keyspace, device, blocks, looks_max),
            Sitter::Nobody { .. } => AbsentBlocks::default(),
        }
    }

    fn exchanges(&self) -> u64 {
        self.exchanges
    }

    fn take_asks(&mut self, asks: &mut Vec<Ask>) {
        if let Sitter::Session(session) = &mut self.sitter {
            session.take_asks(asks);
        }
    }

    fn allow_value(&mut self, token: u64, value_bytes: usize) {
        match &mut self.sitter {
            Sitter::Session(session) => session.allow_value(token, value_bytes),
            Sitter::Nobody { .. } => unreachable!("what asked was answered when the session left"),
        }
    }

    fn give_up_value(&mut self, token: u64) {
        match &mut self.sitter {
            Sitter::Session(session) => session.give_up_value(token),
            Sitter::Nobody { .. } => unreachable!("what asked was answered when the session left"),
        }
    }

    fn answers_from_dram(&self) -> bool {
        matches!(&self.sitter, Sitter::Session(session) if session.answers_from_dram())
    }

    fn puts_at_once(&self) -> bool {
        matches!(&self.sitter, Sitter::Session(session) if session.puts_at_once())
    }

    fn digest_each(&self, keyspace: KeyspaceRef, keys: &[&[u8]], digests: &mut [KeyDigest]) {
        if let Sitter::Session(session) = &self.sitter {
            session.digest_each(keyspace, keys, digests);
        }
    }

    fn fetch_each(&self, keys: &[KeyDigest], puts: u32) {
        if let Sitter::Session(session) = &self.sitter {
            session.fetch_each(keys, puts);
        }
    }

    fn get_from_dram(
        &mut self,
        keyspace: KeyspaceRef,
        key: KeyDigest,
        out: &mut Vec<u8>,
        head: impl FnMut(&mut Vec<u8>, &DramItem, &dyn Fn() -> Access) -> bool,
    ) -> Option<DramItem> {
        match &mut self.sitter {
            Sitter::Session(session) => session.get_from_dram(keyspace, key, out, head),
            Sitter::Nobody { .. } => None,
        }
    }

    fn put_at_once(&mut self, keyspace: KeyspaceRef, key: KeyDigest, put: PlainPut<'_>) -> Option<u64> {
        match &mut self.sitter {
            Sitter::Session(session) => session.put_at_once(keyspace, key, put),
            Sitter::Nobody { .. } => None,
        }
    }
}
