//! The server as a whole: sockets, workers, and how they stop. One thread a worker; `stop` may come from any thread.

// The server is above the simulator: its workers are threads of the system.
#![allow(clippy::disallowed_methods)]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use crate::doors::memcached::udp::{Door, Terminal, UdpOptions};
use crate::doors::metrics::MetricsServer;
use crate::doors::{DoorError, Doors};
use crate::logging::LogLosses;
use crate::net::limits::{Budget, Limits};
use crate::net::listen::{Address, Listener, LoopbackAddress};
use crate::net::worker::{Mailbox, Shared, Worker, unix_seconds};
use crate::os;
use crate::stats::{Counters, Figures};
use crate::store::engine::Store;
use crate::store::errands::{self, Errands};
use crate::store::full_log::FullLog;
use crate::store::hot_keys::Progress;

pub struct Options {
    pub addresses: Vec<Address>,
    pub threads: usize,
    pub limits: Limits,
    /// What `stats settings` says beside what the server knows by itself.
    pub settings: Vec<(&'static str, String)>,
    /// The whole budget of memory, the front doors' part included.
    pub memory_bytes: u64,
    /// Where Prometheus finds the figures, if it is to.
    pub metrics: Option<LoopbackAddress>,
    /// Where requests come in datagrams, if they may.
    pub udp: Option<UdpOptions>,
    /// How far the warming of DRAM is, for the figures.
    pub hot_keys: Arc<Progress>,
    /// What of the log was lost, for the figures.
    pub log: LogLosses,
}

pub struct Server {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<io::Result<()>>>,
    metrics: Option<MetricsServer>,
    udp: Option<Arc<Terminal>>,
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

/// A worker that panics takes the process with it: what it shared may be half-changed. In the binary its hook has done so before
/// (see [`crate::logging`]).
struct AbortWithWorker;

impl Drop for AbortWithWorker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Server {
    /// Listens, and returns when clients can connect.
    pub fn start<S: Store>(store: Arc<S>, options: Options) -> Result<Server, StartError> {
        let doors = Doors::bind(&options)?;
        Server::start_behind(doors, store, options)
    }

    /// [`Server::start`] with doors that were bound before.
    pub fn start_behind<S: Store>(doors: Doors, store: Arc<S>, options: Options) -> Result<Server, StartError> {
        assert!(options.threads > 0, "a server has at least one worker");
        doors.listen(options.limits.backlog)?;
        let Doors { memcached: listeners, metrics, udp } = doors;
        let (terminal, mut sockets) = udp.map(|udp| (udp.terminal, udp.sockets)).unzip();
        let mailboxes = (0..options.threads).map(|_| Mailbox::new()).collect::<io::Result<Vec<_>>>()?;
        let settings = settings(&options, &listeners, terminal.as_deref());
        let [figures_store, slabs_store, stages_store] = std::array::from_fn(|_| Arc::clone(&store));
        let figures_udp = terminal.clone();
        let figures = Figures {
            counters: (0..options.threads).map(|_| Counters::default()).collect(),
            connections: AtomicUsize::new(0),
            workers_listening: AtomicUsize::new(0),
            settings,
            memory_bytes: AtomicU64::new(options.memory_bytes),
            connections_max: options.limits.connections,
            started_unix_seconds: unix_seconds(),
            hot_keys: options.hot_keys,
            full_log: FullLog::default(),
            log: options.log,
            store: Box::new(move || figures_store.stats()),
            slabs: Box::new(move || slabs_store.slabs()),
            stages: Box::new(move || stages_store.stages()),
            udp_dropped_unseen: Box::new(move || figures_udp.as_ref().map_or(Some(0), |udp| udp.dropped_unseen())),
        };
        let budget = Budget::new(options.limits.in_flight_bytes);
        let stopping = AtomicBool::new(false);
        let (errands, orders) = Errands::queue();
        let front_bytes = options.limits.in_flight_bytes as u64;
        let shared = Shared { limits: options.limits, budget, figures, errands, listeners, mailboxes, stopping };
        let shared = Arc::new(shared);
        // Every worker is whole before the first one runs, so that a failure leaves nothing behind.
        let mut workers = Vec::new();
        for index in 0..options.threads {
            let session = store.session().map_err(StartError::Session)?;
            let sockets = sockets.as_mut().and_then(Vec::pop);
            let door = terminal.as_ref().zip(sockets).map(|(udp, sockets)| Door::new(Arc::clone(udp), sockets, index));
            workers.push(Worker::new(index, Arc::clone(&shared), session, door)?);
        }
        let metrics = (!metrics.is_empty()).then(|| {
            let shared = Arc::clone(&shared);
            MetricsServer::start(metrics, Box::new(move || shared.figures.page(unix_seconds())))
        });
        let metrics = metrics.transpose()?;
        // A resize may outlast the server, and must not keep its sockets.
        let (noting, answering) = (Arc::downgrade(&shared), Arc::downgrade(&shared));
        let set_total_bytes = Box::new(move |bytes| {
            if let Some(shared) = noting.upgrade() {
                shared.figures.memory_bytes.store(bytes, Ordering::Relaxed);
            }
        });
        errands::run(store, orders, errands::Memory { front_bytes, set_total_bytes }, move |worker, token, answer| {
            if let Some(shared) = answering.upgrade() {
                shared.mailboxes[worker].answer(token, answer);
            }
        })?;
        let mut server = Server { shared, workers: Vec::new(), metrics, udp: terminal };
        for (index, worker) in workers.into_iter().enumerate() {
            let thread = std::thread::Builder::new().name(format!("worker-{index}"));
            let life = move || {
                let _guard = AbortWithWorker;
                // Its clients would wait for ever: the process is asked to stop, and the reason comes out where workers are waited for.
                worker.run().inspect_err(|error| {
                    tracing::error!("a worker stopped: {error}");
                    os::terminate_this_process();
                })
            };
            match thread.spawn(life) {
                Ok(handle) => server.workers.push(handle),
                Err(error) => {
                    let _ = server.stop();
                    return Err(error.into());
                }
            }
        }
        Ok(server)
    }

    /// Where it listens in fact.
    pub fn addresses(&self) -> Vec<Address> {
        self.shared.listeners.iter().map(Listener::address).collect()
    }

    /// Where Prometheus finds the figures.
    pub fn metrics_addresses(&self) -> &[Address] {
        self.metrics.as_ref().map_or(&[], MetricsServer::addresses)
    }

    /// Where it takes datagrams.
    pub fn udp_addresses(&self) -> &[SocketAddr] {
        self.udp.as_ref().map_or(&[], |udp| &udp.addresses)
    }

    /// Accepts no more, serves what has come, and waits for the workers, which wait a bounded time for slow clients.
    pub fn stop(self) -> io::Result<()> {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.mailboxes.iter().for_each(Mailbox::wake);
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

/// `stats settings`: memcached's names where they mean something here.
fn settings(options: &Options, listeners: &[Listener], udp: Option<&Terminal>) -> Vec<(&'static str, String)> {
    let (mut port, mut inter, mut socket) = (0, String::from("NULL"), String::from("NULL"));
    for listener in listeners {
        match listener.address() {
            Address::Unix(path) => socket = path.display().to_string(),
            Address::Tcp(text) => {
                let (host, number) = text.rsplit_once(':').unwrap_or((&text, "0"));
                inter = if port == 0 { host.to_string() } else { format!("{inter},{host}") };
                port = number.parse().unwrap_or(0u16);
            }
        }
    }
    let mut lines = vec![
        ("maxconns", options.limits.connections.to_string()),
        ("tcpport", port.to_string()),
        ("udpport", udp.map_or(0, |udp| udp.addresses[0].port()).to_string()),
        ("inter", inter),
        ("verbosity", "0".into()),
        ("domain_socket", socket),
        ("umask", "700".into()),
        ("num_threads", options.threads.to_string()),
        ("cas_enabled", "yes".into()),
        ("binding_protocol", "auto-negotiate".into()),
        ("auth_enabled_sasl", "no".into()),
        ("auth_enabled_ascii", "no".into()),
        ("item_size_max", options.limits.item_bytes_max.to_string()),
        ("maxconns_fast", "yes".into()),
        ("tcp_backlog", options.limits.backlog.to_string()),
        ("idle_timeout", options.limits.idle_seconds.to_string()),
        ("num_threads_per_udp", options.threads.to_string()),
        ("shutdown_command", "no".into()),
        ("detail_enabled", "no".into()),
        ("track_sizes", "no".into()),
        ("dump_enabled", "no".into()),
        ("lru_crawler", "no".into()),
        ("temp_lru", "no".into()),
        ("ssl_enabled", "no".into()),
        ("hash_algorithm", "siphash13".into()),
        ("flush_enabled", "yes".into()),
        ("in_flight_bytes_max", options.limits.in_flight_bytes.to_string()),
    ];
    lines.extend(options.settings.iter().cloned());
    lines
}
