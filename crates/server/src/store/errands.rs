//! Errands: requests that take long, such as inspections and resizes. One thread runs them one after the other, and puts each answer into
//! the mailbox of the worker that sent the errand. No worker ever waits.
//!
//! ```text
//! door: request, queue ─► this thread: the store's blocking call ─► mailbox ─► door: reply in its turn
//! ```

// The server is above the simulator: this is a system thread.
#![allow(clippy::disallowed_methods)]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use tapetum::{KeyspaceRef, ListCursor, Store};

use tapetum_access::gate::Verdict;

use crate::protocol::dump::KeyDump;
use crate::protocol::text::Size;

use crate::machine;
use crate::store::store_slot::StoreSlot;
use tapetum_service::inspect_lines;

/// Limits on one step of a list: its most parts, and the length of text after which it stops.
const LIST_PARTS_MAX: usize = 16;
const LIST_TEXT_BYTES: usize = 64 << 10;
/// The most lists of keys in progress. memcached allows one; here a client that reads its list slowly keeps no other waiting.
const LISTS_MAX: usize = 8;
/// The most waiting errands. At the limit a client is told to try again.
const WAITING_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Errand {
    /// An inspection of the store.
    Inspect,
    /// Says where a key lives.
    Locate {
        keyspace: KeyspaceRef,
        key: Vec<u8>,
    },
    Resize {
        size: Size,
        bytes: u64,
    },
    /// A step of a list of keys.
    List(ListOrder),
    /// The connected clients, which the workers report.
    Connections,
}

/// The position of a list of keys, and the form of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOrder {
    pub keyspace: KeyspaceRef,
    pub cursor: ListCursor,
    pub dump: KeyDump,
}

/// The result of an errand. The door puts it into the words of its protocol.
pub enum Answer {
    /// Names and values.
    Lines(Vec<(String, String)>),
    Done,
    /// Lines of a list. `None`: the list ends with these.
    Listed {
        text: Vec<u8>,
        next: Option<ListOrder>,
    },
    Failed(tapetum::Error),
    LoggedIn(Verdict),
}

/// An errand, and the destination of its answer.
pub struct Order {
    pub errand: Errand,
    pub worker: usize,
    pub token: u64,
}

/// The sending end of the thread's queue. `None` in the queue wakes the thread so that it sees that it must end.
#[derive(Clone)]
pub struct Errands {
    sender: SyncSender<Option<Order>>,
    /// Passes an answer to its worker.
    answered: Arc<OnceLock<Answering>>,
    ended: Arc<AtomicBool>,
    lists: Arc<AtomicUsize>,
}

/// The right to have one list of keys in progress.
pub struct ListSeat(Arc<AtomicUsize>);

impl Drop for ListSeat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The thread's end of the queue.
pub struct Orders {
    receiver: Receiver<Option<Order>>,
    ended: Arc<AtomicBool>,
}

impl Orders {
    /// Waits for the next errand. `None` when the thread must end.
    fn next(&self) -> Option<Order> {
        self.receiver.recv().ok().flatten().filter(|_| !self.ended.load(Ordering::Acquire))
    }
}

impl Errands {
    pub fn queue() -> (Errands, Orders) {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let ended = Arc::new(AtomicBool::new(false));
        (
            Errands { sender, answered: Arc::default(), ended: Arc::clone(&ended), lists: Arc::default() },
            Orders { receiver, ended },
        )
    }

    /// Somebody passes answers on from now on.
    pub fn answer_by(&self, answered: Answering) {
        assert!(self.answered.set(answered).is_ok(), "there is one who does");
    }

    /// A way to answer a worker's request that others work on.
    pub fn answer_to(&self, worker: usize, token: u64) -> impl FnOnce(Answer) + Send + 'static {
        let answered = Arc::clone(&self.answered);
        move |answer| {
            if let Some(answered) = answered.get() {
                answered(worker, token, answer);
            }
        }
    }

    /// Queues an errand. Returns whether there was room.
    pub fn send(&self, order: Order) -> bool {
        self.sender.try_send(Some(order)).is_ok()
    }

    /// The right to begin a list. `None` while the most lists are in progress.
    pub fn list_seat(&self) -> Option<ListSeat> {
        let more = |lists: usize| (lists < LISTS_MAX).then_some(lists + 1);
        self.lists.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(ListSeat(Arc::clone(&self.lists)))
    }

    /// Makes the thread end after its current errand. Answers are no longer awaited.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        // A full queue wakes the thread too. If there is no receiver, the thread has ended.
        let _ = self.sender.try_send(None);
    }
}

/// Passes an answer to a worker, by the request's token.
pub type Answering = Box<dyn Fn(usize, u64, Answer) + Send + Sync>;

/// Starts the thread. `answered` passes each answer to its worker. `take_census` asks the workers, which then answer the client themselves.
pub fn run(
    slot: Arc<StoreSlot>,
    orders: Orders,
    memory: Arc<MemoryShares>,
    take_census: impl Fn((usize, u64)) + Send + 'static,
    answered: impl Fn(usize, u64, Answer) + Send + 'static,
) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("errands".into()).spawn(move || {
        while let Some(Order { errand, worker, token }) = orders.next() {
            match errand {
                Errand::Connections => take_census((worker, token)),
                errand => {
                    let store = slot.store();
                    let answer = store.map_or_else(Answer::Failed, |store| perform(&store, &memory, &errand));
                    answered(worker, token, answer);
                }
            }
        }
    });
    thread.map(drop)
}

/// The front doors' fixed part of the whole memory budget, and the place where the whole is stored.
pub struct MemoryShares {
    pub front_bytes: u64,
    pub set_total_bytes: Box<dyn Fn(u64) + Send + Sync>,
}

impl MemoryShares {
    /// Changes what store and front doors have together.
    pub fn resize(&self, store: &Store, bytes: u64) -> Result<(), tapetum::Error> {
        if let Some(why) = machine::why_too_much(bytes) {
            return Err(tapetum::Error::Options(why));
        }
        match store.resize_memory(bytes.saturating_sub(self.front_bytes)) {
            Ok(()) => {
                (self.set_total_bytes)(bytes);
                Ok(())
            }
            // The store's error counts only the store's own part.
            Err(tapetum::Error::TooLittleMemory { least_bytes, needed_for, .. }) => {
                let front = tapetum_drive::Size(self.front_bytes);
                Err(tapetum::Error::TooLittleMemory {
                    memory_bytes: bytes,
                    least_bytes: least_bytes.saturating_add(self.front_bytes),
                    needed_for: format!("{needed_for}, beside the {front} of the front doors"),
                })
            }
            Err(error) => Err(error),
        }
    }
}

fn perform(store: &Store, memory: &MemoryShares, errand: &Errand) -> Answer {
    match errand {
        Errand::Inspect => lines(tapetum::inspect(store).map(|inspection| inspect_lines::to_lines(&inspection))),
        Errand::Locate { keyspace, key } => {
            lines(tapetum::locate(store, *keyspace, key).map(|location| inspect_lines::location_lines(&location)))
        }
        Errand::Connections => unreachable!("the workers tell"),
        Errand::List(order) => list(store, order.clone()).unwrap_or_else(Answer::Failed),
        Errand::Resize { size: Size::Capacity, bytes } => resized(store.resize_capacity(*bytes), "capacity", *bytes),
        Errand::Resize { size: Size::Memory, bytes } => resized(memory.resize(store, *bytes), "memory", *bytes),
    }
}

/// Takes parts of a list until it has enough text, or it is the turn of other errands.
fn list(store: &Store, order: ListOrder) -> Result<Answer, tapetum::Error> {
    let ListOrder { keyspace, mut cursor, mut dump } = order;
    let (classes, mut text) = (store.slabs(), Vec::new());
    for _ in 0..LIST_PARTS_MAX {
        let part = store.list_keys(keyspace, &cursor)?;
        let goes_on = part.keys.iter().all(|key| dump.push(&mut text, key, &classes));
        let Some(next) = part.next.filter(|_| goes_on) else { return Ok(Answer::Listed { text, next: None }) };
        cursor = next;
        if text.len() >= LIST_TEXT_BYTES {
            break;
        }
    }
    Ok(Answer::Listed { text, next: Some(ListOrder { keyspace, cursor, dump }) })
}

fn lines(lines: Result<Vec<(String, String)>, tapetum::Error>) -> Answer {
    lines.map_or_else(Answer::Failed, Answer::Lines)
}

fn resized(done: Result<(), tapetum::Error>, what: &str, bytes: u64) -> Answer {
    match done {
        Ok(()) => {
            tracing::info!("{what} is {} now", tapetum_service::size::shown(bytes));
            Answer::Done
        }
        Err(error) => Answer::Failed(error),
    }
}
