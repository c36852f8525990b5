//! Errands: requests that take long, such as looking inside and resizing. One thread does them, one after the other, and
//! puts each answer into the mailbox of the worker that sent the errand; no worker ever waits.
//!
//! ```text
//! door: request, queue ─► this thread: the store's blocking call ─► mailbox ─► door: reply in its turn
//! ```

// The server is above the simulator: this is a thread of the system.
#![allow(clippy::disallowed_methods)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tapetum::{KeyspaceRef, ListCursor};

use crate::doors::memcached::protocol::dump::KeyDump;

use crate::machine;
use crate::store::engine::Store;
use crate::tools::inspect_lines;

/// What a step of a list takes at most, and the text that is enough for one.
const LIST_PARTS_MAX: usize = 16;
const LIST_TEXT_BYTES: usize = 64 << 10;
/// Lists of keys that are under way at once. memcached has one; here one whose client reads slowly keeps no other waiting.
const LISTS_MAX: usize = 8;
/// Errands that wait. At the limit a client is told to try again.
const WAITING_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Errand {
    /// An inspection of the store.
    Inspect,
    /// Where a key lives.
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
    /// Who is connected, which the workers tell.
    Connections,
}

/// Where a list of keys goes on, and how its lines look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOrder {
    pub keyspace: KeyspaceRef,
    pub cursor: ListCursor,
    pub dump: KeyDump,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Capacity,
    Memory,
}

/// The result of an errand. The door words it for its protocol.
#[derive(Debug)]
pub enum Answer {
    /// Names and values.
    Lines(Vec<(String, String)>),
    Done,
    /// Lines of a list; `None`: it ends with these.
    Listed {
        text: Vec<u8>,
        next: Option<ListOrder>,
    },
    Failed(tapetum::Error),
}

/// An errand, and where its answer goes.
pub struct Order {
    pub errand: Errand,
    pub worker: usize,
    pub token: u64,
}

/// Errands to the thread; `None` wakes it, to see that it is to end.
#[derive(Clone)]
pub struct Errands {
    sender: SyncSender<Option<Order>>,
    ended: Arc<AtomicBool>,
    lists: Arc<AtomicUsize>,
}

/// Whoever holds it has one of the lists of keys that may be under way.
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
    /// Waits for the next one; `None` when the thread is to end.
    fn next(&self) -> Option<Order> {
        self.receiver.recv().ok().flatten().filter(|_| !self.ended.load(Ordering::Acquire))
    }
}

impl Errands {
    pub fn queue() -> (Errands, Orders) {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let ended = Arc::new(AtomicBool::new(false));
        (Errands { sender, ended: Arc::clone(&ended), lists: Arc::default() }, Orders { receiver, ended })
    }

    /// Whether there was room.
    pub fn send(&self, order: Order) -> bool {
        self.sender.try_send(Some(order)).is_ok()
    }

    /// The right to begin a list; `None` while there are as many as may be.
    pub fn list_seat(&self) -> Option<ListSeat> {
        let more = |lists: usize| (lists < LISTS_MAX).then_some(lists + 1);
        self.lists.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(ListSeat(Arc::clone(&self.lists)))
    }

    /// The thread ends after the errand that it does. Nobody waits for the answers any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        // A queue that is full wakes it too, and without a receiver it has ended.
        let _ = self.sender.try_send(None);
    }
}

/// Starts the thread. `answered` takes each answer to its worker; `take_census` asks the workers for who sent a request, and they answer it.
pub fn run<S: Store>(
    store: Arc<S>,
    orders: Orders,
    memory: MemoryShares,
    take_census: impl Fn((usize, u64)) + Send + 'static,
    answered: impl Fn(usize, u64, Answer) + Send + 'static,
) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("errands".into()).spawn(move || {
        while let Some(Order { errand, worker, token }) = orders.next() {
            match errand {
                Errand::Connections => take_census((worker, token)),
                errand => answered(worker, token, perform(&*store, &memory, &errand)),
            }
        }
    });
    thread.map(drop)
}

/// The front doors' fixed part of the whole budget of memory, and where the whole is noted.
pub struct MemoryShares {
    pub front_bytes: u64,
    pub set_total_bytes: Box<dyn Fn(u64) + Send>,
}

fn perform<S: Store>(store: &S, memory: &MemoryShares, errand: &Errand) -> Answer {
    match errand {
        Errand::Inspect => lines(store.inspect().map(|inspection| inspect_lines::to_lines(&inspection))),
        Errand::Locate { keyspace, key } => {
            lines(store.locate(*keyspace, key).map(|location| inspect_lines::location_lines(&location)))
        }
        Errand::Connections => unreachable!("the workers tell"),
        Errand::List(order) => list(store, order.clone()).unwrap_or_else(Answer::Failed),
        Errand::Resize { size: Size::Capacity, bytes } => resized(store.resize_capacity(*bytes), "capacity", *bytes),
        Errand::Resize { size: Size::Memory, bytes } => resized(resize_memory(store, memory, *bytes), "memory", *bytes),
    }
}

/// Takes parts of a list until it has some text, or others' errands should have their turn.
fn list<S: Store>(store: &S, order: ListOrder) -> Result<Answer, tapetum::Error> {
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

fn resize_memory<S: Store>(store: &S, memory: &MemoryShares, bytes: u64) -> Result<(), tapetum::Error> {
    if let Some(why) = machine::why_too_much(bytes) {
        return Err(tapetum::Error::Options(why));
    }
    match store.resize_memory(bytes.saturating_sub(memory.front_bytes)) {
        Ok(()) => {
            (memory.set_total_bytes)(bytes);
            Ok(())
        }
        // The store counts its own part.
        Err(tapetum::Error::TooLittleMemory { least_bytes, needed_for, .. }) => {
            let front = tapetum_drive::Size(memory.front_bytes);
            Err(tapetum::Error::TooLittleMemory {
                memory_bytes: bytes,
                least_bytes: least_bytes.saturating_add(memory.front_bytes),
                needed_for: format!("{needed_for}, beside the {front} of the front doors"),
            })
        }
        Err(error) => Err(error),
    }
}

fn lines(lines: Result<Vec<(String, String)>, tapetum::Error>) -> Answer {
    lines.map_or_else(Answer::Failed, Answer::Lines)
}

fn resized(done: Result<(), tapetum::Error>, what: &str, bytes: u64) -> Answer {
    match done {
        Ok(()) => {
            tracing::info!("{what} is {} now", crate::size::shown(bytes));
            Answer::Done
        }
        Err(error) => Answer::Failed(error),
    }
}
