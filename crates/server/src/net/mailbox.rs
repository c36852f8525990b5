//! How others reach a worker: the workers that accept its clients, and the thread that does errands. Any thread.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tapetum_drive::Event;

use super::census::Census;
use crate::store::errands::Answer;

pub struct Mailbox {
    event: Event,
    accepted: Mutex<Vec<Accepted>>,
    /// Errands that are done: the token of each, and its answer.
    answers: Mutex<Vec<(u64, Answer)>>,
    /// Asked of the worker.
    censuses: Mutex<Vec<Arc<Census>>>,
    /// Clients that something waits for, if they are still there.
    woken: Mutex<Vec<u32>>,
    /// Connections that the worker has or was handed.
    connections: AtomicUsize,
}

/// A client that another worker accepted.
pub struct Accepted {
    pub fd: OwnedFd,
    /// `None` at a Unix socket.
    pub peer: Option<SocketAddr>,
    /// The number of the listener that it came through.
    pub listener: usize,
}

pub struct Mail {
    pub accepted: Vec<Accepted>,
    pub answers: Vec<(u64, Answer)>,
    pub censuses: Vec<Arc<Census>>,
    pub woken: Vec<u32>,
}

impl Mailbox {
    pub fn new() -> io::Result<Mailbox> {
        let (accepted, answers) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let (censuses, woken) = (Mutex::default(), Mutex::default());
        Ok(Mailbox { event: Event::new()?, accepted, answers, censuses, woken, connections: AtomicUsize::new(0) })
    }

    /// Readable when somebody has woken the worker.
    pub fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    pub fn wake(&self) {
        self.event.raise();
    }

    pub fn answer(&self, token: u64, answer: Answer) {
        lock(&self.answers).push((token, answer));
        self.wake();
    }

    pub fn ask(&self, census: Arc<Census>) {
        lock(&self.censuses).push(census);
        self.wake();
    }

    /// Wakes a client of the worker.
    pub fn wake_client(&self, client: u32) {
        lock(&self.woken).push(client);
        self.wake();
    }

    /// Hands a client over, which was counted by [`Mailbox::count_connection`].
    pub fn hand_over(&self, client: Accepted) {
        lock(&self.accepted).push(client);
        self.wake();
    }

    pub fn empty(&self) -> Mail {
        self.event.clear();
        Mail {
            accepted: std::mem::take(&mut lock(&self.accepted)),
            answers: std::mem::take(&mut lock(&self.answers)),
            censuses: std::mem::take(&mut lock(&self.censuses)),
            woken: std::mem::take(&mut lock(&self.woken)),
        }
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub fn count_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub fn discount_connection(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A list is whole even if its last holder panicked.
fn lock<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
