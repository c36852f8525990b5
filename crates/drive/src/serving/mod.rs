//! A drive that runs by itself: it serves its flash, cut into partitions, to hosts in other processes.
//!
//! ```text
//!  socket ─► Service ─► Session, one a host ─► attach a partition, local memory, queue pairs
//!               │                                   │
//!               └─ table of partitions, on flash    └─► thread: controllers ─► partition's flash, programs
//! ```
//! 1. A partition has one host at a time. Each attachment raises its epoch, durably, before the host hears of it.
//! 2. Before somebody else gets a partition, everything has ended that its host had on the way ([`session`]).
//! 3. A session that fails, breaks off or stops harms no other: it has threads, local memory and rings of its own. Flushes of a namespace
//!    are all of its hosts' ([`flush_turns`]).

mod flush_turns;
mod partition_flash;
mod partitions;
mod session;

use crate::device::shares::Shares;
use crate::env::Env;
use crate::flash::{Flash, Size};
use crate::host::Drive;
use crate::link::frame::{Frame, Refusal};
use crate::locks::whole;
use crate::memory::LocalMemory;
use partition_flash::{Namespace, PartitionFlash};
use partitions::{Partition, PartitionError, Partitions};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use session::Session;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Hosts at a time.
const SESSIONS_MAX: usize = 256;
/// Local memory beside a host's, for what its pipelines keep.
const PIPELINES_BYTES_MIN: u64 = 8 << 20;
const TABLE_MEMORY_BYTES: usize = 64 << 10;
pub const COMMANDS_AT_ONCE: u32 = 64;
/// A partition whose size is not given has half of what is free, and no more than this.
const PARTITION_BYTES_DEFAULT_MAX: u64 = 10 << 30;

/// How a drive serves.
#[derive(Clone, Debug)]
pub struct ServingOptions {
    /// Hosts find it here.
    pub socket: PathBuf,
    /// Local memory of all hosts together.
    pub memory_bytes: u64,
    /// How often a thread looks for commands before it sleeps.
    pub polls: u32,
    /// Results are copied to every host: none reads local memory. Those of other users never do.
    pub copies_results: bool,
    /// Other users may have partitions too. If not, its socket is its own user's.
    pub any_user: bool,
    /// While so many commands are on their way for all hosts, the weights of their partitions decide whose start.
    pub commands_at_once: u32,
    /// Weights of partitions, by name; others have 1.
    pub weights: Vec<(String, u32)>,
}

impl ServingOptions {
    /// A drive at this socket, with `memory_bytes` for all hosts.
    pub fn new(socket: PathBuf, memory_bytes: u64) -> ServingOptions {
        ServingOptions {
            socket,
            memory_bytes,
            polls: 0,
            copies_results: false,
            any_user: false,
            commands_at_once: COMMANDS_AT_ONCE,
            weights: Vec::new(),
        }
    }
}

/// State that its sessions share.
struct Service {
    namespaces: Vec<Namespace>,
    state: Mutex<ServiceState>,
    /// A partition was freed.
    freed: Condvar,
    memory_bytes: u64,
    memory_left_bytes: Mutex<u64>,
    polls: u32,
    copies_results: bool,
    shares: Arc<Shares>,
    weights: HashMap<String, u32>,
    env: Env,
}

struct ServiceState {
    /// A table for each namespace. A name is one partition's, whichever of them it is in.
    tables: Vec<Partitions>,
    /// By the name of the partition.
    holders: HashMap<String, Holder>,
}

/// The host that has a partition.
struct Holder {
    socket: Arc<OwnedFd>,
    process: i32,
}

impl ServiceState {
    /// The namespace of a partition, and what its table says of it.
    fn find(&self, name: &str) -> Option<(usize, Partition)> {
        let found = self.tables.iter().enumerate().find_map(|(number, table)| Some((number, table.find(name)?)));
        found.map(|(number, partition)| (number, partition.clone()))
    }

    fn table(&mut self, name: &str) -> Result<&mut Partitions, PartitionError> {
        self.tables.iter_mut().find(|table| table.find(name).is_some()).ok_or(PartitionError::NotFound)
    }

    /// In the first namespace that has room; of 0 bytes, in that with most of it.
    fn make(&mut self, name: &str, bytes: u64, owner: u32) -> Result<(), PartitionError> {
        let free = |table: &Partitions| table.free_bytes_max();
        let place = match bytes {
            0 => self.tables.iter_mut().max_by_key(|table| free(table)),
            _ => {
                let place = self.tables.iter().position(|table| free(table) >= bytes).unwrap_or(0);
                self.tables.get_mut(place)
            }
        };
        let table = place.ok_or(PartitionError::NotFound)?;
        let bytes = if bytes == 0 { (free(table) / 2).min(PARTITION_BYTES_DEFAULT_MAX) } else { bytes };
        table.make(name, bytes, owner)
    }
}

impl Service {
    fn weight(&self, partition: &str) -> u32 {
        self.weights.get(partition).copied().unwrap_or(1)
    }

    fn take_memory(&self, bytes: u64) -> Result<(), String> {
        let mut left = whole(self.memory_left_bytes.lock());
        match left.checked_sub(bytes) {
            Some(after) => *left = after,
            None => {
                return Err(format!(
                    "{} of local memory are asked for, and the drive has {} left: give the store less memory, or the drive more \
                     (--memory)",
                    Size(bytes),
                    Size(*left)
                ));
            }
        }
        Ok(())
    }

    fn give_memory(&self, bytes: u64) {
        *whole(self.memory_left_bytes.lock()) += bytes;
    }

    fn wait_freed<'a>(
        &'a self,
        state: MutexGuard<'a, ServiceState>,
        timeout: Duration,
    ) -> (MutexGuard<'a, ServiceState>, bool) {
        let (state, waited) = whole(self.freed.wait_timeout(state, timeout));
        (state, waited.timed_out())
    }

    fn free(&self, name: &str) {
        whole(self.state.lock()).holders.remove(name);
        self.freed.notify_all();
    }
}

/// A drive that listens.
pub struct Serving {
    service: Arc<Service>,
    listener: OwnedFd,
    socket: PathBuf,
    sessions: Vec<(Arc<OwnedFd>, std::thread::JoinHandle<()>)>,
}

impl Serving {
    /// Reads or makes the table of partitions of each namespace, and listens.
    ///
    /// # Errors
    /// If flash holds something else, another process listens there, or the operating system's.
    pub fn start(namespaces: Vec<Arc<dyn Flash>>, options: &ServingOptions, env: &Env) -> io::Result<Serving> {
        let namespace = |flash| Namespace { flash, turns: Arc::default() };
        let namespaces: Vec<Namespace> = namespaces.into_iter().map(namespace).collect();
        let table = |namespace: &Namespace| {
            let local = LocalMemory::new(TABLE_MEMORY_BYTES)?;
            // Its flushes take turns too.
            let flash = PartitionFlash::new(namespace, "table", 0, namespace.flash.capacity_bytes());
            Partitions::open(&Drive::new(Arc::new(flash), local, Vec::new(), env.clone()))
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", namespace.flash.place())))
        };
        let tables = namespaces.iter().map(table).collect::<io::Result<Vec<Partitions>>>()?;
        let state = Mutex::new(ServiceState { tables, holders: HashMap::new() });
        let service = Arc::new(Service {
            namespaces,
            state,
            freed: Condvar::new(),
            memory_bytes: options.memory_bytes,
            memory_left_bytes: Mutex::new(options.memory_bytes),
            polls: options.polls,
            copies_results: options.copies_results,
            shares: Shares::new(options.commands_at_once, env.clone()),
            weights: options.weights.iter().cloned().collect(),
            env: env.clone(),
        });
        let listener = listen(&options.socket, options.any_user)?;
        Ok(Serving { service, listener, socket: options.socket.clone(), sessions: Vec::new() })
    }

    /// Names of the partitions, and bytes of each.
    pub fn partitions(&self) -> Vec<(String, u64)> {
        let state = whole(self.service.state.lock());
        let all = state.tables.iter().flat_map(|table| table.all());
        all.map(|partition| (partition.name.clone(), partition.length)).collect()
    }

    /// Serves until `stop` is readable; then the connections end, and what is on its way with them.
    ///
    /// # Errors
    /// The operating system's.
    pub fn run(mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        loop {
            let mut polled =
                [PollFd::from_borrowed_fd(stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
            match poll(&mut polled, None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            if !polled[0].revents().is_empty() {
                return Ok(());
            }
            if !polled[1].revents().is_empty() {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        self.sessions.retain(|(_, thread)| !thread.is_finished());
        let accepted = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC);
        let begun = accepted.map_err(io::Error::from).and_then(|socket| self.begin(socket));
        if let Err(error) = begun {
            tracing::warn!("a host was not served: {error}");
            // Descriptors or threads may have run out: they will be there again.
            self.service.env.rest();
        }
    }

    fn begin(&mut self, socket: OwnedFd) -> io::Result<()> {
        if self.sessions.len() == SESSIONS_MAX {
            let why = format!("the drive serves {SESSIONS_MAX} hosts, and takes no more: try again later");
            return Frame::refused(Refusal::Other, 0, why).send(&socket, &[]);
        }
        let session = Session::new(self.service.clone(), socket)?;
        let socket = session.socket().clone();
        let thread = self.service.env.spawn("drive-session", move || session.run())?;
        self.sessions.push((socket, thread));
        Ok(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Nobody finds it any more.
        let _ = std::fs::remove_file(&self.socket);
        for (socket, _) in &self.sessions {
            // It may have ended already.
            let _ = rustix::net::shutdown(&**socket, Shutdown::Both);
        }
        for (_, thread) in self.sessions.drain(..) {
            // A panic of the thread was reported by that thread.
            let _ = thread.join();
        }
    }
}

/// Listens at a path. What a drive that was killed has left there goes.
fn listen(path: &Path, any_user: bool) -> io::Result<OwnedFd> {
    let told = |error: io::Error, what: &str| {
        io::Error::new(error.kind(), format!("{} cannot be {what} as a drive's socket: {error}", path.display()))
    };
    let address = SocketAddrUnix::new(path).map_err(|error| match error {
        rustix::io::Errno::NAMETOOLONG => {
            let why = format!("{} is too long for a socket's path: give one of at most 107 bytes", path.display());
            io::Error::new(io::ErrorKind::InvalidInput, why)
        }
        error => told(error.into(), "used"),
    })?;
    let socket = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    if let Ok(found) = path.symlink_metadata() {
        if !found.file_type().is_socket() {
            let why = format!("{} is something else than a socket: give another path for the drive's", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        match rustix::net::connect(socket()?, &address) {
            Ok(()) => {
                let why = format!("{} is taken: a drive answers there; stop it, or give another path", path.display());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
            }
            Err(rustix::io::Errno::CONNREFUSED) => {
                std::fs::remove_file(path).map_err(|error| told(error, "removed"))?
            }
            Err(error) => return Err(told(error.into(), "used")),
        }
    }
    let listener = socket()?;
    // Its owner alone connects, from the first moment on; whose a partition is, the credentials tell.
    rustix::fs::fchmod(&listener, Mode::RUSR | Mode::WUSR).map_err(|error| told(error.into(), "kept to its owner"))?;
    rustix::net::bind(&listener, &address).map_err(|error| told(error.into(), "bound"))?;
    if any_user {
        // By its path: what is set before is cut by the umask.
        let all = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(path, all).map_err(|error| told(error, "opened to all users"))?;
    }
    rustix::net::listen(listener.as_fd(), 128).map_err(|error| told(error.into(), "listened at"))?;
    Ok(listener)
}
