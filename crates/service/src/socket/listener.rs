//! The server's side of the socket: takes clients in, each on a thread of its own, and lets them go at the end.
//!
//! Invariants:
//! 1. Whoever makes the socket has the store open, and so its lock: a socket that is there already is one that a killed server left.
//! 2. No thread holds the store longer than one request, and each request ends soon after the store is wanted back.
//!
//! Threads: `start` and `stop` are one's; one thread accepts, and each client has one.

// The server is above the simulator: its clients have system threads.
#![allow(clippy::disallowed_methods)]

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tapetum::Place;

use super::path::SocketPath;
use super::serving;
use crate::serving_store::ServingStore;

/// The most clients at once: each has a thread.
pub const CLIENTS_MAX: usize = 64;
/// How often a server that stops looks for those that it serves: for ten seconds.
const STOP_LOOKS: u32 = 500;
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// What all clients share.
pub(super) struct ListenerShared {
    pub source: Box<dyn ServingStore>,
    pub place: Place,
    pub compute_units: Vec<(String, u16)>,
    pub is_stopping: AtomicBool,
    clients: Mutex<HashMap<u64, UnixStream>>,
    client_next: AtomicU64,
}

impl ListenerShared {
    fn clients(&self) -> MutexGuard<'_, HashMap<u64, UnixStream>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct ServiceListener {
    shared: Arc<ListenerShared>,
    listener: Arc<UnixListener>,
    path: PathBuf,
    accepting: JoinHandle<()>,
}

impl ServiceListener {
    /// Makes the socket of the store at `place`, which the caller has open, and answers whoever connects.
    ///
    /// # Errors
    /// If the socket cannot be made, or something else has its name.
    pub fn start(
        source: Box<dyn ServingStore>,
        place: Place,
        compute_units: Vec<(String, u16)>,
    ) -> io::Result<ServiceListener> {
        let path = place.socket();
        let listener = Arc::new(bind(&path)?);
        let (is_stopping, clients, client_next) = (AtomicBool::new(false), Mutex::default(), AtomicU64::new(0));
        let shared = Arc::new(ListenerShared { source, place, compute_units, is_stopping, clients, client_next });
        let accepting = {
            let (shared, listener) = (Arc::clone(&shared), Arc::clone(&listener));
            std::thread::Builder::new().name("service".into()).spawn(move || accept(&listener, &shared))?
        };
        Ok(ServiceListener { shared, listener, path, accepting })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets everybody go, removes the socket, and waits until no request holds the store; not for long, as a resize may take long.
    pub fn stop(self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        // If it is gone already, nothing is lost.
        let _ = fs::remove_file(&self.path);
        // Whoever waits in it for a client wakes up.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Read);
        let _ = self.accepting.join();
        for _ in 0..STOP_LOOKS {
            let clients = self.shared.clients();
            if clients.is_empty() {
                return;
            }
            // Those that ask nothing are woken; the others find out by themselves.
            for client in clients.values() {
                let _ = client.shutdown(Shutdown::Read);
            }
            drop(clients);
            std::thread::sleep(serving::LOOK);
        }
    }
}

/// A socket that only its owner may use. Nobody can connect before that is so.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::other("something else has its name: move it away")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Of a device; a folder of data is there.
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
        }
        Err(error) => return Err(error),
    }
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let short = SocketPath::of(path)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(short.short())?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    rustix::net::listen(&socket, CLIENTS_MAX as i32)?;
    Ok(socket.into())
}

fn accept(listener: &UnixListener, shared: &Arc<ListenerShared>) {
    while !shared.is_stopping.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Err(error) = begin(stream, shared) {
                    tracing::warn!("a command was not let in: {error}");
                }
            }
            Err(_) if shared.is_stopping.load(Ordering::Acquire) => return,
            Err(error) => {
                // Most likely there are too many open files: a moment later there may be fewer.
                tracing::warn!("no command can come in: {error}");
                std::thread::sleep(ACCEPT_AGAIN);
            }
        }
    }
}

fn begin(stream: UnixStream, shared: &Arc<ListenerShared>) -> io::Result<()> {
    if shared.clients().len() >= CLIENTS_MAX {
        serving::refuse_full(&stream);
        return Ok(());
    }
    let number = shared.client_next.fetch_add(1, Ordering::Relaxed);
    shared.clients().insert(number, stream.try_clone()?);
    let leaves = Leaves { shared: Arc::clone(shared), number };
    std::thread::Builder::new()
        .name("command".into())
        .spawn(move || serving::serve(&stream, &leaves.shared, number))?;
    Ok(())
}

/// A client is there as long as this.
struct Leaves {
    shared: Arc<ListenerShared>,
    number: u64,
}

impl Drop for Leaves {
    fn drop(&mut self) {
        self.shared.clients().remove(&self.number);
    }
}
