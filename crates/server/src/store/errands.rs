//! What clients may ask for that takes long: looking inside, resizing. One thread does it, one errand after the other, and
//! puts the answer into the mailbox of the worker that waits for it; no worker ever waits.
//!
//! ```text
//! worker: slot, queue ─► this thread: the store's blocking call ─► mailbox ─► worker: answer in its turn
//! ```

// The server is above the simulator: this is a thread of the system.
#![allow(clippy::disallowed_methods)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::store::engine::Store;
use crate::tools::inspect_lines;

/// Errands that wait; who comes later is told to try again.
const WAITING_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Errand {
    /// What is inside the store.
    Inspect,
    /// Where a key lives.
    Locate {
        key: Vec<u8>,
    },
    Resize {
        size: Size,
        bytes: u64,
    },
    /// memcached's word for a resize of the memory.
    CacheMemlimit {
        bytes: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Capacity,
    Memory,
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
        (Errands { sender, ended: Arc::clone(&ended) }, Orders { receiver, ended })
    }

    /// Whether there was room.
    pub fn send(&self, order: Order) -> bool {
        self.sender.try_send(Some(order)).is_ok()
    }

    /// The thread ends after what it does now. Nobody waits for the answers any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        // A queue that is full wakes it too, and without a receiver it has ended.
        let _ = self.sender.try_send(None);
    }
}

/// Starts the thread. `answered` takes each answer to its worker.
pub fn run<S: Store>(
    store: Arc<S>,
    orders: Orders,
    memory: Memory,
    answered: impl Fn(usize, u64, Vec<u8>) + Send + 'static,
) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("errands".into()).spawn(move || {
        while let Some(Order { errand, worker, token }) = orders.next() {
            answered(worker, token, perform(&*store, &memory, &errand));
        }
    });
    thread.map(drop)
}

/// Where the whole budget of memory is noted, of which the front doors have a fixed part.
pub struct Memory {
    pub front_bytes: u64,
    pub set_total_bytes: Box<dyn Fn(u64) + Send>,
}

fn perform<S: Store>(store: &S, memory: &Memory, errand: &Errand) -> Vec<u8> {
    match errand {
        Errand::Inspect => lines_or(store.inspect().map(|inspection| inspect_lines::to_lines(&inspection))),
        Errand::Locate { key } => lines_or(store.locate(key).map(|location| inspect_lines::location_lines(&location))),
        Errand::Resize { size: Size::Capacity, bytes } => {
            done_or("SERVER_ERROR", store.resize_capacity(*bytes), "capacity", *bytes)
        }
        Errand::Resize { size: Size::Memory, bytes } => {
            done_or("SERVER_ERROR", resize_memory(store, memory, *bytes), "memory", *bytes)
        }
        Errand::CacheMemlimit { bytes } => {
            done_or("MEMLIMIT_ADJUST_FAILED", resize_memory(store, memory, *bytes), "memory", *bytes)
        }
    }
}

fn resize_memory<S: Store>(store: &S, memory: &Memory, bytes: u64) -> Result<(), tapetum::Error> {
    match store.resize_memory(bytes.saturating_sub(memory.front_bytes)) {
        Ok(()) => {
            (memory.set_total_bytes)(bytes);
            Ok(())
        }
        // The store counts its own part.
        Err(tapetum::Error::Options(why)) => {
            let front_bytes = memory.front_bytes;
            Err(tapetum::Error::Options(format!("{why}; the front doors take {front_bytes} bytes besides")))
        }
        Err(error) => Err(error),
    }
}

fn lines_or(lines: Result<Vec<(String, String)>, tapetum::Error>) -> Vec<u8> {
    match lines {
        Ok(lines) => {
            let mut out = Vec::new();
            for (name, value) in lines {
                out.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
            }
            out.extend_from_slice(b"END\r\n");
            out
        }
        Err(error) => format!("SERVER_ERROR {error}\r\n").into_bytes(),
    }
}

fn done_or(word: &str, done: Result<(), tapetum::Error>, what: &str, bytes: u64) -> Vec<u8> {
    match done {
        Ok(()) => {
            tracing::info!("{what} is {} now", crate::size::shown(bytes));
            b"OK\r\n".to_vec()
        }
        Err(error) => format!("{word} {error}\r\n").into_bytes(),
    }
}
