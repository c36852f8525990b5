//! A served store, as a door asks it: what an asker may not have done is refused, and what an admin had done is noted.
//!
//! Threads: any.

#![allow(clippy::disallowed_methods)] // The server is above the simulator: clocks and pauses are the system's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tapetum::{Place, Store};
use tapetum_service::audit;
use tapetum_service::caller::{Caller, CallerLeft, Gathering};
use tapetum_service::execute::{OpenStore, execute};
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::reply::Reply;
use tapetum_service::request::Request;
use tapetum_service::serving_store::ServingStore;

use crate::asker::{Asker, ReadableKeyspaces, keyspace_of, without_names};

/// How often it looks whether there is memory again.
const MEMORY_LOOK: Duration = Duration::from_millis(2);
/// The longest wait for memory.
const MEMORY_PATIENCE: Duration = Duration::from_secs(60);
/// A client may hold so much without asking, so that small answers go on when there is no memory.
const FREE_BYTES: usize = 16 << 10;

/// See the [module](self).
pub struct Served {
    pub source: Box<dyn ServingStore>,
    place: Place,
    compute_units: Vec<(String, u16)>,
    is_stopping: AtomicBool,
    /// Tells the door's clients from those of other doors, which share the memory.
    clients: u64,
    client_next: AtomicU64,
}

/// Memory that was taken. The drop gives it back.
pub struct Charge {
    served: Arc<Served>,
    client: u64,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.served.source.give_memory(self.client, self.bytes, true);
    }
}

impl Served {
    /// `clients` is a bit of its own for each door.
    pub fn new(source: Box<dyn ServingStore>, place: Place, compute_units: Vec<(String, u16)>, clients: u64) -> Served {
        let (is_stopping, client_next) = (AtomicBool::new(false), AtomicU64::new(0));
        Served { source, place, compute_units, is_stopping, clients, client_next }
    }

    /// The store, or why there is none.
    ///
    /// # Errors
    /// While the server opens it again.
    pub fn store(&self) -> Result<Arc<Store>, Failure> {
        self.source.store().map_err(|error| Failure::new(FailureKind::Unavailable, error.to_string()))
    }

    /// Lets requests that fail from now on say that the server stops.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    /// Whether work that takes long is to end.
    pub fn is_ending(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire) || self.source.store().is_err()
    }

    /// Waits until the server has memory for so many bytes.
    ///
    /// # Errors
    /// If `is_wanted` says that nobody needs it any more, or there was none for a minute.
    pub fn charge(
        self: &Arc<Self>,
        bytes: usize,
        mut is_wanted: impl FnMut() -> bool,
    ) -> Result<Option<Charge>, CallerLeft> {
        if bytes <= FREE_BYTES {
            return Ok(None);
        }
        let client = self.client_next.fetch_add(1, Ordering::Relaxed) | self.clients;
        if !self.source.take_memory(client, bytes) {
            self.source.wait_for_memory(true);
            let since = Instant::now();
            let is_taken = loop {
                std::thread::sleep(MEMORY_LOOK);
                if self.source.take_memory(client, bytes) {
                    break true;
                }
                if !is_wanted() || since.elapsed() >= MEMORY_PATIENCE {
                    break false;
                }
            };
            self.source.wait_for_memory(false);
            if !is_taken {
                return Err(CallerLeft);
            }
        }
        Ok(Some(Charge { served: Arc::clone(self), client, bytes }))
    }

    /// Answers a request, whatever it is, if the asker may have it done. A request of an admin leaves an audit line.
    ///
    /// # Errors
    /// Also if the server's lease has ended: nobody may be told of anything then.
    pub fn execute(&self, asker: &Asker, request: Request, caller: &mut dyn Caller) -> Result<(), Failure> {
        let what = audit::words(&request);
        let done = match asker.allow(&request) {
            Ok(()) => self.execute_allowed(asker, request, caller),
            Err(refused) => Err(refused),
        };
        if let Some(what) = what {
            asker.note(&what, &done);
        }
        done
    }

    /// Asks for what is told in few replies.
    ///
    /// # Errors
    /// As [`Served::execute`].
    pub fn gather(&self, asker: &Asker, request: Request) -> Result<Vec<Reply>, Failure> {
        let mut gathering = Gathering::default();
        self.execute(asker, request, &mut gathering)?;
        Ok(gathering.replies)
    }

    fn execute_allowed(&self, asker: &Asker, request: Request, caller: &mut dyn Caller) -> Result<(), Failure> {
        let keyspace = keyspace_of(&request).map(str::to_owned);
        let done = match request {
            Request::Promote { force } => return Ok(caller.take(Reply::Promoted(self.source.promote(force)?))?),
            Request::Keyspaces { name: None, .. } => {
                self.execute_open(request, &mut ReadableKeyspaces { asker, caller })
            }
            request => self.execute_open(request, caller),
        };
        done.map_err(|failure| without_names(asker, keyspace.as_deref(), failure))
    }

    fn execute_open(&self, request: Request, caller: &mut dyn Caller) -> Result<(), Failure> {
        let store = self.store()?;
        let (place, compute_units) = (&self.place, &self.compute_units[..]);
        let open = OpenStore { store: &store, place, compute_units, server: Some(&*self.source) };
        let done = execute(open, request, caller);
        match (done, self.source.store()) {
            _ if self.source.is_fenced() => {
                Err(Failure::new(FailureKind::Unavailable, tapetum::Error::Fenced.to_string()))
            }
            (Err(_), _) if self.is_stopping.load(Ordering::Acquire) => {
                Err(Failure::new(FailureKind::Unavailable, "the server stops: ask again when it serves again"))
            }
            // The reason is a better one.
            (Err(Failure { kind: FailureKind::Cancelled, .. }), Err(error)) => {
                Err(Failure::new(FailureKind::Unavailable, error.to_string()))
            }
            (done, _) => done,
        }
    }
}

#[cfg(test)]
#[path = "served_tests.rs"]
mod tests;
