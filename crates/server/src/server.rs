//! The server as a whole: sockets, workers, and stopping. One thread for each worker; any thread may call `stop`.

// The server is above the simulator: its workers are system threads.
#![allow(clippy::disallowed_methods)]

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::doors::console::LiveFigures;
use crate::doors::console::live::{self, OpenDoor};
use crate::doors::context::unix_seconds;
use crate::doors::door::DoorOptions;
use crate::doors::http::HttpHost;
use crate::doors::memcached::access::Admission;
use crate::doors::memcached::udp::{Terminal, UdpDoor};
use crate::doors::memcached::{MemcachedOptions, settings};
use crate::doors::metrics::Metrics;
use crate::doors::nbd::exports::Exports;
use crate::doors::options::{Access, Options};
use crate::doors::{DoorError, Doors};
use crate::net::census::Census;
use crate::net::limits::Budget;
use crate::net::listen::{Address, Listener};
use crate::net::mailbox::Mailbox;
use crate::os;
use crate::stats::device_stats::DeviceFigures;
use crate::stats::latencies::RequestLatencies;
use crate::stats::slow_requests::SlowRequests;
use crate::stats::{Counters, Figures, StoreCondition};
use crate::store::errands::{self, Errands, MemoryShares, Orders};
use crate::store::failure_log::FailureLog;
use crate::store::follower::PromotionOrder;
use crate::store::store_slot::StoreSlot;
use crate::worker::{Shared, Worker};
use tapetum_access::gate::{Gate, LoginMemory};
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::reply::PromotedRow;
use tapetum_service::serving_store::ServingStore;

pub struct Server {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<io::Result<()>>>,
    metrics: Option<HttpHost>,
    udp: Option<Arc<Terminal>>,
    memory: Arc<MemoryShares>,
    gate: Option<Arc<Gate>>,
}

/// The store and the memory of a server, for requests that come through the socket of commands.
pub struct ServedStore {
    slot: Arc<StoreSlot>,
    shared: Arc<Shared>,
    memory: Arc<MemoryShares>,
    /// Where promotions are ordered, of a standby.
    promotions: Option<Mutex<Sender<PromotionOrder>>>,
}

/// The figures of a server, for the console.
pub struct ServerFigures {
    shared: Arc<Shared>,
    doors: Vec<OpenDoor>,
}

impl LiveFigures for ServerFigures {
    fn figures(&self) -> serde_json::Value {
        live::figures(&self.shared.figures, &self.doors)
    }

    fn slow(&self) -> serde_json::Value {
        live::slow(&self.shared.figures)
    }
}

/// Tells commands from connections, which share the budget.
const COMMAND: u64 = 1 << 63;
/// Tells logins from both.
const LOGIN: u64 = 1 << 62;

/// Memory in which passwords are hashed.
struct BudgetOfLogins(Arc<Shared>);

impl LoginMemory for BudgetOfLogins {
    fn take(&self, thread: usize, bytes: usize) -> bool {
        let may = self.0.budget.allows(LOGIN | (thread as u64 + 1), bytes);
        if may {
            self.0.budget.change(0, bytes);
        }
        may
    }

    fn give(&self, thread: usize, bytes: usize) {
        self.0.budget.change(bytes, 0);
        self.0.budget.release_overdraft(LOGIN | (thread as u64 + 1));
    }

    fn wait(&self, begins: bool) {
        if self.0.budget.change_waiting(begins) {
            self.0.mailboxes.iter().for_each(Mailbox::wake);
        }
    }
}

impl ServingStore for ServedStore {
    fn store(&self) -> Result<Arc<tapetum::Store>, tapetum::Error> {
        self.slot.store()
    }

    fn is_fenced(&self) -> bool {
        self.slot.is_fenced()
    }

    fn promote(&self, force: bool) -> Result<PromotedRow, Failure> {
        let none = || Failure::bad("this server follows no other: it serves writes already");
        let ended = || Failure::new(FailureKind::Unavailable, "the server stops, or serves writes already");
        let orders = self.promotions.as_ref().ok_or_else(none)?;
        let (answer, answered) = channel();
        let order = PromotionOrder { force, answer };
        let ordered = orders.lock().unwrap_or_else(PoisonError::into_inner).send(order);
        ordered.map_err(|_| ended())?;
        answered.recv().map_err(|_| ended())?.map_err(|error| Failure::new(FailureKind::Unavailable, error))
    }

    fn resize_memory(&self, store: &tapetum::Store, memory_bytes: u64) -> Result<(), tapetum::Error> {
        self.memory.resize(store, memory_bytes)
    }

    fn take_memory(&self, client: u64, bytes: usize) -> bool {
        let may = self.shared.budget.allows(COMMAND | (client + 1), bytes);
        if may {
            self.shared.budget.change(0, bytes);
        }
        may
    }

    fn wait_for_memory(&self, begins: bool) {
        if self.shared.budget.change_waiting(begins) {
            // Workers that sleep are to look for clients that hold memory and do nothing.
            self.shared.mailboxes.iter().for_each(Mailbox::wake);
        }
    }

    fn is_memory_wanted(&self) -> bool {
        self.shared.budget.someone_waits()
    }

    fn give_memory(&self, client: u64, bytes: usize, is_all: bool) {
        self.shared.budget.change(bytes, 0);
        if is_all {
            self.shared.budget.release_overdraft(COMMAND | (client + 1));
        }
    }
}

#[derive(Debug)]
pub enum StartError {
    Door(DoorError),
    Session(tapetum::Error),
    System(io::Error),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StartError::Door(error) => write!(f, "{error}"),
            StartError::Session(error) => write!(f, "no session of the store for a worker: {error}"),
            StartError::System(error) => write!(f, "the system refused a thread or a descriptor: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<DoorError> for StartError {
    fn from(error: DoorError) -> StartError {
        StartError::Door(error)
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> StartError {
        StartError::System(error)
    }
}

/// A worker's panic aborts the process, because its shared state may be half-changed. In the binary, the panic hook has done so before (see
/// [`crate::logging`]).
struct AbortWithWorker;

impl Drop for AbortWithWorker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Server {
    /// Starts a server, which listens when this returns.
    pub fn start(slot: Arc<StoreSlot>, options: Options) -> Result<Server, StartError> {
        let doors = Doors::bind(&options)?;
        Server::start_behind(doors, slot, options)
    }

    /// Like [`Server::start`], with doors that are already bound.
    pub fn start_behind(doors: Doors, slot: Arc<StoreSlot>, mut options: Options) -> Result<Server, StartError> {
        assert!(options.threads > 0, "a server has at least one worker");
        doors.listen(options.limits.backlog)?;
        let access = options.access.clone();
        let Doors { memcached, mut memcached_options, nbd, nbd_options, metrics, udp, .. } = doors;
        let (udp, sockets) = udp.map(|udp| (udp.terminal, udp.sockets)).unzip();
        options.settings = settings::settings(&options, &memcached, &memcached_options, udp.as_deref());
        // Datagrams have one address, whatever the number of listeners: they use the first listener's options.
        let of_datagrams = datagram_options(&slot, &access, &memcached_options).map_err(StartError::Session)?;
        if let Some(gate) = &access.gate {
            let admission = Admission::Users(Arc::clone(gate));
            memcached_options.iter_mut().for_each(|options| options.admission = admission.clone());
        }
        let exports = nbd_options.as_ref().map(|options| Arc::clone(&options.exports));
        let memcached = memcached.into_iter().zip(memcached_options.into_iter().map(DoorOptions::Memcached));
        let nbd = nbd.into_iter().zip(nbd_options.into_iter().cycle()).map(|(listener, mut options)| {
            options.needs_tls = access.tls.is_some() && listener.may_have_tls();
            options.gate = access.gate.clone();
            (listener, DoorOptions::Nbd(options))
        });
        let (listeners, door_options): (Vec<Listener>, Vec<DoorOptions>) = memcached.chain(nbd).unzip();
        let mailboxes = (0..options.threads).map(|_| Mailbox::new()).collect::<io::Result<Vec<_>>>()?;
        let front_bytes = options.limits.in_flight_bytes as u64;
        let (limits, threads) = (options.limits.clone(), options.threads);
        let budget = Arc::new(Budget::new(limits.in_flight_bytes));
        let figures = figures(&slot, udp.clone(), exports, &budget, options);
        let stopping = AtomicBool::new(false);
        let (errands, orders) = Errands::queue();
        let shared = Arc::new(Shared {
            limits,
            budget,
            figures,
            errands,
            tls: access.tls.clone(),
            begins_with_tls: door_options.iter().map(|options| !options.has_beginning()).collect(),
            listeners,
            mailboxes,
            stopping,
        });
        // Create every worker before the first one runs, so that a failure leaves nothing behind.
        let (mut workers, mut sockets) = (Vec::new(), sockets.into_iter().flatten());
        for index in 0..threads {
            let seat = slot.seat().map_err(StartError::Session)?;
            let datagrams = udp.as_ref().zip(sockets.next());
            let datagrams =
                datagrams.map(|(udp, sockets)| UdpDoor::new(Arc::clone(udp), of_datagrams.clone(), sockets, index));
            workers.push(Worker::new(index, Arc::clone(&shared), door_options.clone(), seat, datagrams)?);
        }
        let metrics = (!metrics.is_empty()).then(|| {
            let shared = Arc::clone(&shared);
            let source = Box::new(move || shared.figures.page(unix_seconds()));
            HttpHost::start(metrics, access.tls.clone(), Metrics { source, gate: access.gate.clone() })
        });
        let metrics = metrics.transpose()?;
        let memory = Arc::new(memory_shares(front_bytes, &shared));
        do_errands(slot, orders, Arc::clone(&memory), &shared)?;
        if let Some(gate) = &access.gate {
            gate.start(Arc::new(BudgetOfLogins(Arc::clone(&shared))))?;
        }
        let mut server = Server { shared, workers: Vec::new(), metrics, udp, memory, gate: access.gate };
        for (index, worker) in workers.into_iter().enumerate() {
            match spawn(index, worker) {
                Ok(handle) => server.workers.push(handle),
                Err(error) => {
                    let _ = server.stop();
                    return Err(error.into());
                }
            }
        }
        Ok(server)
    }

    /// The store in a slot, with this server's memory.
    pub fn served_store(&self, slot: &Arc<StoreSlot>, promotions: Option<Sender<PromotionOrder>>) -> ServedStore {
        let (slot, shared, memory) = (Arc::clone(slot), Arc::clone(&self.shared), Arc::clone(&self.memory));
        ServedStore { slot, shared, memory, promotions: promotions.map(Mutex::new) }
    }

    /// The figures of this server, for the console.
    pub fn live_figures(&self, doors: Vec<OpenDoor>) -> ServerFigures {
        ServerFigures { shared: Arc::clone(&self.shared), doors }
    }

    /// The addresses in use: first those for memcached's clients, then those for block devices.
    pub fn addresses(&self) -> Vec<Address> {
        self.shared.listeners.iter().map(Listener::address).collect()
    }

    /// The addresses of Prometheus' figures.
    pub fn metrics_addresses(&self) -> &[Address] {
        self.metrics.as_ref().map_or(&[], HttpHost::addresses)
    }

    /// The addresses for datagrams.
    pub fn udp_addresses(&self) -> &[SocketAddr] {
        self.udp.as_ref().map_or(&[], |udp| &udp.addresses)
    }

    /// Accepts no more, serves requests that have come, and waits for the workers, which wait a bounded time for slow clients.
    pub fn stop(self) -> io::Result<()> {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.mailboxes.iter().for_each(Mailbox::wake);
        // First, as connections stay until their logins are answered.
        if let Some(gate) = self.gate {
            gate.stop();
        }
        let mut result = Ok(());
        for worker in self.workers {
            match worker.join() {
                Ok(outcome) => result = result.and(outcome),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        // Not waited for: a resize may take long, and ends when the store closes.
        self.shared.errands.end();
        if let Some(metrics) = self.metrics {
            metrics.stop();
        }
        result
    }
}

/// The first listener's options; with users, those of the keyspace that everybody may read.
fn datagram_options(
    slot: &StoreSlot,
    access: &Access,
    of_listeners: &[MemcachedOptions],
) -> Result<MemcachedOptions, tapetum::Error> {
    let Some(name) = access.udp_anonymous.as_ref().filter(|_| access.gate.is_some()) else {
        return Ok(of_listeners.first().cloned().unwrap_or_default());
    };
    let keyspace = slot.store()?.keyspace(name)?.keyspace();
    let (keyspace_name, admission) = (name.as_str().into(), Admission::Readers);
    Ok(MemcachedOptions { keyspace, keyspace_name, may_flush: false, admission })
}

fn figures(
    slot: &Arc<StoreSlot>,
    udp: Option<Arc<Terminal>>,
    exports: Option<Arc<Exports>>,
    budget: &Arc<Budget>,
    options: Options,
) -> Figures {
    let (budget, gate) = (Arc::clone(budget), options.access.gate.clone());
    let [
        figures_slot,
        items_slot,
        writes_slot,
        slabs_slot,
        stages_slot,
        applications_slot,
        devices_slot,
        condition_slot,
    ] = std::array::from_fn(|_| Arc::clone(slot));
    let devices = move || {
        let Some(exports) = &exports else { return DeviceFigures::default() };
        // Workers that sleep have not learned of a change.
        if let Ok(store) = devices_slot.store() {
            exports.follow(|| store.open_keyspaces());
        }
        exports.figures()
    };
    Figures {
        counters: (0..options.threads).map(|_| Counters::default()).collect(),
        latencies: (0..options.threads).map(|_| RequestLatencies::default()).collect(),
        slow: SlowRequests::default(),
        devices: Box::new(devices),
        observers: Arc::default(),
        connections: AtomicUsize::new(0),
        workers_listening: AtomicUsize::new(0),
        settings: options.settings,
        memory_bytes: AtomicU64::new(options.memory_bytes),
        connections_max: options.limits.connections,
        started_unix_seconds: unix_seconds(),
        hot_keys: options.hot_keys,
        failure_log: FailureLog::default(),
        log: options.log,
        store: Box::new(move || figures_slot.stats()),
        keyspace_items: Box::new(move || items_slot.keyspace_items()),
        keyspace_writes: Box::new(move || writes_slot.keyspace_writes()),
        slabs: Box::new(move || slabs_slot.slabs()),
        stages: Box::new(move || stages_slot.stages()),
        applications: Box::new(move || applications_slot.applications()),
        requests_held_bytes: Box::new(move || budget.used_bytes()),
        condition: Box::new(move || condition(&condition_slot)),
        logins: Box::new(move || gate.as_ref().map(|gate| gate.figures()).unwrap_or_default()),
        udp_dropped_unseen: Box::new(move || udp.as_ref().map_or(Some(0), |udp| udp.dropped_unseen())),
    }
}

fn condition(slot: &StoreSlot) -> StoreCondition {
    let backups = slot.backups();
    StoreCondition {
        has_failed: slot.has_failed(),
        is_fenced: slot.is_fenced(),
        is_standby: backups.is_standby.load(Ordering::Relaxed),
        backup_every_seconds: backups.every_seconds.load(Ordering::Relaxed),
        backup_moment_ms: backups.moment_ms.load(Ordering::Relaxed),
        backups_made: backups.made.load(Ordering::Relaxed),
        backups_failed: backups.failed.load(Ordering::Relaxed),
    }
}

/// A resize may outlast the server.
fn memory_shares(front_bytes: u64, shared: &Arc<Shared>) -> MemoryShares {
    let noting = Arc::downgrade(shared);
    let set_total_bytes = Box::new(move |bytes| {
        if let Some(shared) = noting.upgrade() {
            shared.figures.memory_bytes.store(bytes, Ordering::Relaxed);
        }
    });
    MemoryShares { front_bytes, set_total_bytes }
}

/// Starts the thread that runs errands. A resize may outlast the server, and must not keep its sockets open.
fn do_errands(slot: Arc<StoreSlot>, orders: Orders, memory: Arc<MemoryShares>, shared: &Arc<Shared>) -> io::Result<()> {
    let [answering, asking, waking] = std::array::from_fn(|_| Arc::downgrade(shared));
    shared.figures.observers.serve(move |worker, client| {
        if let Some(shared) = waking.upgrade() {
            shared.mailboxes[worker].wake_client(client);
        }
    });
    let take_census = move |asker| {
        if let Some(shared) = asking.upgrade() {
            let census = Arc::new(Census::new(asker, shared.mailboxes.len()));
            shared.mailboxes.iter().for_each(|mailbox| mailbox.ask(Arc::clone(&census)));
        }
    };
    let answered = move |worker: usize, token, answer| {
        if let Some(shared) = answering.upgrade() {
            shared.mailboxes[worker].answer(token, answer);
        }
    };
    shared.errands.answer_by(Box::new(answered.clone()));
    errands::run(slot, orders, memory, take_census, answered)
}

fn spawn(index: usize, worker: Worker) -> io::Result<JoinHandle<io::Result<()>>> {
    let thread = std::thread::Builder::new().name(format!("worker-{index}"));
    thread.spawn(move || {
        let _guard = AbortWithWorker;
        // Its clients would wait for ever, so the process is asked to stop. The error is reported where workers are joined.
        worker.run().inspect_err(|error| {
            tracing::error!("a worker stopped: {error}");
            os::terminate_this_process();
        })
    })
}
