//! `tapetum serve`: opens the store and the sockets, serves until a signal comes, and closes them.

use std::collections::BTreeSet;
use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use tapetum::backup::{self, lease::Lease};
use tapetum::{Fence, Keyspace, Slabs};
use tapetum_depot::Destination;
use tapetum_drive::{Env, Size};
use tapetum_kernels::record;

use crate::cli::serve_arguments::{BackupArguments, FullArgument, RedundancyArgument, ServeArguments, SyncArgument};
use crate::doors::Doors;
use crate::doors::console::live::OpenDoor;
use crate::doors::console::{CLIENTS, ConsoleServer};
#[cfg(feature = "flight")]
use crate::doors::flight::FlightServer;
use crate::doors::memcached::MemcachedOptions;
use crate::doors::nbd::NbdOptions;
use crate::doors::nbd::exports::Exports;
use crate::doors::options::{Access, Options};
use crate::logging::{Log, LogLosses};
use crate::net::limits::Limits;
use crate::net::listen::{Address, Listener};
use crate::protocol::VERSION;
use crate::server::{ServedStore, Server};
use crate::store::backups::{BackupKeeper, BackupPlan};
use crate::store::follower::{FollowError, Follower};
use crate::store::hot_keys::{self, WarmProgress};
use crate::store::opening::Opening;
use crate::store::standby::Standby;
use crate::store::standby_claim::StandbyClaim;
use crate::store::steward::Steward;
use crate::store::store_slot::StoreSlot;
use crate::{machine, os, service_manager};
use tapetum_access::served::Served;
use tapetum_service::backups;
use tapetum_service::item_limit;
use tapetum_service::opening::{self, OpenError};
use tapetum_service::pipelines;
use tapetum_service::socket::listener::ServiceListener;
use tapetum_service::{escapes, size};

use super::commands::{Outcome, check_memory, expect_store_of, offline_options};
use super::reach::refuse_server;

/// How others see this process.
const COMMAND: &str = "tapetum serve";
/// File descriptors besides the clients': store, listeners, logs, and for each worker those of its session and door.
const OTHER_FILES: u64 = 256;
const FILES_PER_WORKER: u64 = 16;
/// How often the steward checks the store.
const STEWARD_LOOK: Duration = Duration::from_secs(1);
/// How often a standby looks for a later backup.
const STANDBY_LOOK: Duration = Duration::from_millis(200);

/// Serves until a signal comes. A log that nobody reads does not block the server.
pub fn run(arguments: &ServeArguments, level: tracing::Level) -> ExitCode {
    // In this order, because the log's thread must not take the signals.
    let started = os::server_signals(rereads(arguments)).and_then(|signals| Ok((signals, Log::of_server(level)?)));
    let (signals, mut log) = match started {
        Ok(started) => started,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: the system refused a descriptor or a thread: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = serve(arguments, signals.as_fd(), log.losses());
    if let Err(error) = &outcome {
        log.say(&format!("error: {error}\n"));
    }
    log.end();
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn serve(arguments: &ServeArguments, signals: BorrowedFd<'_>, log: LogLosses) -> Outcome {
    refuse_server(&arguments.store.place, "serve")?;
    check_memory(arguments.store.memory)?;
    arguments.check_memory_parts()?;
    let progress = Arc::new(WarmProgress::default());
    let mut server_options = server_options(arguments, Arc::clone(&progress), log)?;
    let access = server_options.access.clone();
    // Hashes, keys, and the credentials by which backups are kept.
    if arguments.access.has_files() || std::env::var_os("AWS_SECRET_ACCESS_KEY").is_some() {
        os::hide_memory()?;
    }
    let options = open_options(arguments)?;
    let place = arguments.store.place();
    let keyspaces = arguments.keyspaces()?;
    keyspaces.iter().try_for_each(|keyspace| expect_store_of(&place, keyspace))?;
    if let Some(list) = &arguments.hot_keys {
        hot_keys::check_place(list)?;
    }
    // The first store of a standby is restored with its devices.
    if arguments.backups.follow.is_none() {
        check_devices(arguments, &place)?;
    }
    // Check addresses before a store is made: an error must leave no empty store behind.
    let mut doors = Doors::bind(&server_options)?;
    #[cfg(feature = "flight")]
    let flight = std::mem::take(&mut doors.flight);
    let console = std::mem::take(&mut doors.console);
    let lease = take_lease(&arguments.backups)?;
    let was_there = place.path().exists();
    let opening = Opening::watch(signals)?;
    let (store, follower) = match &arguments.backups.follow {
        None => (opening::open(&place, &options)?, None),
        Some(from) => follow(from, &place, &options)?,
    };
    drop(opening);
    refuse_devices(&store, &keyspaces)?;
    doors.give(&door_options(&store, &place, &keyspaces, !arguments.no_flush_all)?);
    doors.nbd_options = nbd_options(&store, arguments, server_options.threads)?;
    let memcached_count = doors.memcached.len();
    if let Some(list) = &arguments.hot_keys {
        // Check again: the list may name the very file that was just made.
        hot_keys::check_place(list)?;
    }
    let items = store.stats().items;
    if was_there || items > 0 {
        tracing::info!("restored {} {}", size::grouped(items), if items == 1 { "item" } else { "items" });
    }
    server_options.limits.item_bytes_max = store.value_bytes_max();
    say_item_limit(&store, arguments.item_size);
    let (slot, keeper) = keep_backups(store, &arguments.backups, lease)?;
    let server = Server::start_behind(doors, Arc::clone(&slot), server_options)?;
    let (ordering, orders) = channel();
    let ordering = follower.is_some().then_some(ordering);
    let service = start_service(server.served_store(&slot, ordering.clone()), &place, &options);
    #[cfg(feature = "flight")]
    let flight = FlightServer::start(
        flight,
        arguments.backlog,
        Box::new(server.served_store(&slot, ordering)),
        place.clone(),
        options.compute_units.clone(),
        &access,
    )?;
    #[cfg(feature = "flight")]
    let flight_addresses: Vec<Address> = flight.addresses().collect();
    #[cfg(not(feature = "flight"))]
    let flight_addresses = Vec::new();
    let served =
        Served::new(Box::new(server.served_store(&slot, None)), place.clone(), options.compute_units.clone(), CLIENTS);
    let doors = open_doors(&server, memcached_count, &flight_addresses, &console);
    let live = server.live_figures(doors.clone());
    let console = ConsoleServer::start(console, arguments.backlog, served, Box::new(live), &access)?;
    if arguments.is_without_list() {
        tracing::info!(
            "DRAM will not be warmed after a restart: there is no place for the list of hot keys beside a block device; give --hot-keys FILE"
        );
    }
    let steward = |slot: &Arc<StoreSlot>| {
        let (slot, progress) = (Arc::clone(slot), Arc::clone(&progress));
        Steward::new(slot, place.clone(), options.clone(), arguments.hot_keys(), progress, signals)
    };
    let mut care = match follower {
        None => Care::Store { steward: Box::new(steward(&slot)?), keeper },
        Some(follower) => {
            let plan = plan(&arguments.backups);
            Care::Backups(Box::new(Standby::new(follower, &slot, &place, &options, plan, orders)))
        }
    };
    say_durability(arguments);
    warn_of_memory(arguments.memory());
    warn_of_strangers(&doors, &access);
    warn_of_unknown_keyspaces(&access, &slot);
    say_addresses(&server, memcached_count, &place, service.as_ref());
    say_metrics(&server, access.tls.is_some());
    #[cfg(feature = "flight")]
    flight
        .addresses()
        .for_each(|address| tracing::info!("and to Flight's clients at {}", shown(&address, access.tls.is_some())));
    console
        .addresses()
        .for_each(|address| tracing::info!("the console is at {}", web(address, access.tls.is_some(), "/")));
    service_manager::tell_ready(&format!("serving {}", place.path().display()));
    let signal = loop {
        match os::wait_for_signal_until(signals, care.pause())? {
            Some(libc::SIGHUP) if rereads(arguments) => reload(&access, &slot),
            Some(signal) => break os::signal_name(signal),
            None => care = care.look(|| steward(&slot))?,
        }
    };
    service_manager::tell_stopping();
    tracing::info!("stopping after {signal}: answering the requests that have come, then closing the store");
    #[cfg(feature = "flight")]
    flight.stop();
    console.stop();
    if let Some(service) = service {
        service.stop();
    }
    let stopped = server.stop();
    care.end(&slot)?;
    tracing::info!("closed");
    Ok(stopped?)
}

/// Whether SIGHUP has files read again, rather than the server stop.
fn rereads(arguments: &ServeArguments) -> bool {
    arguments.access.has_files() || service_manager::is_there()
}

/// Reads users and certificates again.
fn reload(access: &Access, slot: &StoreSlot) {
    access.reload();
    warn_of_unknown_keyspaces(access, slot);
}

fn warn_of_unknown_keyspaces(access: &Access, slot: &StoreSlot) {
    if let Ok(store) = slot.store() {
        access.warn_of_unknown_keyspaces(&store.keyspaces());
    }
}

/// Whoever looks after the served store does it by one of these.
enum Care {
    Store {
        steward: Box<Steward>,
        keeper: Option<BackupKeeper>,
    },
    /// A standby, until it is promoted.
    Backups(Box<Standby>),
}

impl Care {
    /// How long it does nothing by itself.
    fn pause(&self) -> Duration {
        match self {
            Care::Store { .. } => STEWARD_LOOK,
            Care::Backups(_) => STANDBY_LOOK,
        }
    }

    fn look(self, steward: impl FnOnce() -> std::io::Result<Steward>) -> Result<Care, Box<dyn Error>> {
        match self {
            Care::Store { mut steward, keeper } => {
                steward.look();
                Ok(Care::Store { steward, keeper })
            }
            Care::Backups(mut standby) => match standby.look() {
                None => Ok(Care::Backups(standby)),
                Some(keeper) => Ok(Care::Store { steward: Box::new(steward()?), keeper: Some(keeper) }),
            },
        }
    }

    /// The server has stopped.
    fn end(self, slot: &StoreSlot) -> Outcome {
        match self {
            Care::Store { steward, keeper } => {
                if let Some(keeper) = keeper {
                    keeper.stop();
                }
                Ok(steward.close()?)
            }
            Care::Backups(_) => Ok(slot.store().and_then(|store| store.close())?),
        }
    }
}

/// The store of a standby, which is read, and who follows the backups.
fn follow(
    from: &Destination,
    place: &tapetum::Place,
    options: &tapetum::Options,
) -> Result<(tapetum::Store, Option<Follower>), Box<dyn Error>> {
    let depot = from.open()?;
    let claim = StandbyClaim::take(place, COMMAND)?;
    let follower = Follower::new(&depot, place, &Standby::reading(options), claim, COMMAND).map_err(of_both_stores)?;
    let store = follower.open().map_err(of_both_stores)?;
    tracing::info!(
        "a standby of {}, at its backup {}: read it; `tapetum promote {}` lets it take the place of the server that it follows",
        depot.place(),
        follower.number(),
        depot.place()
    );
    Ok((store, Some(follower)))
}

/// Names the memory that was given, and the memory to give: each of a standby's two stores gets half of it.
fn of_both_stores(error: FollowError) -> FollowError {
    match error {
        FollowError::Open(OpenError::Store(tapetum::OpenError::Memory { path, memory_bytes, tier, least_bytes })) => {
            let (memory_bytes, least_bytes) = (2 * memory_bytes, 2 * least_bytes);
            OpenError::Store(tapetum::OpenError::Memory { path, memory_bytes, tier, least_bytes }).into()
        }
        error => error,
    }
}

fn plan(arguments: &BackupArguments) -> BackupPlan {
    BackupPlan {
        every: Duration::from_secs(arguments.every.into()),
        keep: arguments.keep as usize,
        lease_ms: u64::from(arguments.lease) * 1000,
    }
}

/// The lease of the place of backups, if there is one. One that a killed server held is waited for.
fn take_lease(arguments: &BackupArguments) -> Result<UnusedLease, Box<dyn Error>> {
    let Some(to) = &arguments.backup_to else { return Ok(UnusedLease(None)) };
    let depot = to.make()?;
    let lease = backups::take_lease(&depot, COMMAND, plan(arguments).lease_ms, &mut || true)?;
    Ok(UnusedLease(Some(lease)))
}

/// A lease that is given back if the server does not start: nobody has to wait for its end.
struct UnusedLease(Option<Lease>);

impl Drop for UnusedLease {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(backups::release);
    }
}

/// The slot of the store, fenced if backups are kept.
fn keep_backups(
    store: tapetum::Store,
    arguments: &BackupArguments,
    mut unused: UnusedLease,
) -> Result<(Arc<StoreSlot>, Option<BackupKeeper>), Box<dyn Error>> {
    if let Some(lease) = &unused.0 {
        // Before anybody is served whose writes could not be backed up.
        backup::refuse_other_store(&**lease.depot(), store.id())?;
        backup::last_of_history(&**lease.depot(), store.history()?)?;
    }
    let Some(lease) = unused.0.take() else { return Ok((Arc::new(StoreSlot::new(store)), None)) };
    let fence = Fence::at(&Env::system(), lease.ends_ms());
    let slot = Arc::new(StoreSlot::fenced(store, fence.clone()));
    let keeper = BackupKeeper::start(Arc::clone(&slot), plan(arguments), lease, fence)?;
    Ok((slot, Some(keeper)))
}

/// Makes the socket for commands. Clients of the other doors are served without it.
fn start_service(source: ServedStore, place: &tapetum::Place, options: &tapetum::Options) -> Option<ServiceListener> {
    match ServiceListener::start(Box::new(source), place.clone(), options.compute_units.clone()) {
        Ok(service) => Some(service),
        Err(error) => {
            tracing::warn!(
                "no socket for commands at {}: {error}; while this serves, only its other doors are open",
                place.socket().display()
            );
            None
        }
    }
}

/// An error if the system does not allow as many open files as the clients need.
fn server_options(
    arguments: &ServeArguments,
    progress: Arc<WarmProgress>,
    log: LogLosses,
) -> Result<Options, Box<dyn Error>> {
    let threads = arguments.threads.map_or_else(cores, usize::from);
    let files_needed = u64::from(arguments.connections) + threads as u64 * FILES_PER_WORKER + OTHER_FILES;
    let files = os::allow_open_files(files_needed)?;
    if files < files_needed {
        return Err(format!(
            "{} clients need {files_needed} open files, and the system allows {files}: raise `ulimit -n`, or lower --connections",
            arguments.connections,
        )
        .into());
    }
    let limits = Limits {
        connections: arguments.connections as usize,
        in_flight_bytes: opening::front_bytes(arguments.memory()) as usize,
        idle_seconds: arguments.idle_timeout,
        backlog: arguments.backlog,
        ..Limits::default()
    };
    let drive = escapes::word(&arguments.store.place().path().display().to_string());
    Ok(Options {
        addresses: arguments.memcached()?,
        nbd: arguments.nbd.clone(),
        threads,
        limits,
        settings: vec![
            ("evictions", if matches!(arguments.full(), FullArgument::Evict) { "on" } else { "off" }.into()),
            ("growth_factor", format!("{:.2}", arguments.slab_factor)),
            ("sync", arguments.sync().name().into()),
            ("drive", drive),
        ],
        memory_bytes: arguments.memory(),
        metrics: arguments.metrics.clone(),
        #[cfg(feature = "flight")]
        flight: arguments.flight.clone(),
        #[cfg(not(feature = "flight"))]
        flight: None,
        console: arguments.console.clone(),
        udp: arguments.udp(),
        hot_keys: progress,
        log,
        access: arguments.access.open()?,
    })
}

/// Queries and pipelines of commands run on threads of their own, where the drive has none for their programs. Half of the cores are left to
/// clients, however many ask.
fn turns_of_commands() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))
}

fn open_options(arguments: &ServeArguments) -> Result<tapetum::Options, Box<dyn Error>> {
    Ok(tapetum::Options {
        compute_units: pipelines::named_units(&arguments.compute_units)?,
        pin_units: arguments.pin,
        weights: arguments.weight.clone(),
        turns: Some(turns_of_commands()),
        memory_bytes: Some(arguments.memory()),
        memory_beside: opening::front_bytes,
        write_buffer_bytes: arguments.write_buffer,
        tier: arguments.tier(),
        slabs: Slabs { factor: arguments.slab_factor, slab_bytes: arguments.slab_size },
        node_cache_bytes: arguments.node_cache.unwrap_or(0),
        assume_atomic_writes: arguments.assume_atomic_writes,
        take_over: arguments.take_over,
        redundancy: arguments.redundancy.and_then(RedundancyArgument::redundancy),
        force: arguments.force,
        value_bytes_max: arguments.item_size.map_or(usize::MAX, |bytes| bytes as usize),
        sync: arguments.sync().into(),
        full: arguments.full().into(),
        drive_threads: usize::from(arguments.drive_threads),
        create: true,
        capacity_bytes: arguments.capacity.capacity,
        ..offline_options(&arguments.store)
    })
}

/// The options of each memcached listener.
fn door_options(
    store: &tapetum::Store,
    place: &tapetum::Place,
    keyspaces: &[&str],
    may_flush: bool,
) -> Result<Vec<MemcachedOptions>, OpenError> {
    let options = keyspaces.iter().map(|name| {
        let keyspace = store.keyspace(name).map_err(OpenError::of_open(store, place))?.keyspace();
        Ok(MemcachedOptions { keyspace, keyspace_name: (*name).into(), may_flush, ..MemcachedOptions::default() })
    });
    options.collect()
}

/// Checks of block devices that are possible before there is a store; a new store has no devices.
fn check_devices(arguments: &ServeArguments, place: &tapetum::Place) -> Result<(), String> {
    if arguments.nbd.is_empty() {
        return Ok(());
    }
    if matches!(arguments.full(), FullArgument::Evict) {
        return Err("--nbd needs --full error: a block device must not lose blocks to others".into());
    }
    match place.may_have_store() {
        true => Ok(()),
        false => Err(format!(
            "there is no store at {}, and so no block device: give --data or --drive as the store has it, or make both with `tapetum \
             keyspace create NAME --block-device SIZE --create`",
            place.path().display()
        )),
    }
}

/// The options of each listener for block devices, if there are any.
fn nbd_options(
    store: &tapetum::Store,
    arguments: &ServeArguments,
    workers: usize,
) -> Result<Option<NbdOptions>, String> {
    if arguments.nbd.is_empty() {
        return Ok(None);
    }
    let exports = Exports::new(store, arguments.nbd_read_only.clone(), workers)?;
    Ok(Some(NbdOptions::new(exports, matches!(arguments.sync(), SyncArgument::Always))))
}

/// An error if memcached's clients would see a block device, whose keys and values are not for them.
fn refuse_devices(store: &tapetum::Store, keyspaces: &[&str]) -> Result<(), String> {
    let is_served = |keyspace: &Keyspace| keyspaces.contains(&keyspace.name.as_str());
    match store.keyspaces().iter().find(|keyspace| is_served(keyspace) && !keyspace.options.is_empty()) {
        None => Ok(()),
        Some(Keyspace { name, .. }) => Err(format!(
            "the keyspace {name:?} is a block device: serve it with --nbd ADDR, and others to memcached clients"
        )),
    }
}

fn say_item_limit(store: &tapetum::Store, wanted_bytes: Option<u64>) {
    let limit_bytes = store.value_bytes_max() as u64;
    let limit = size::at_most(limit_bytes);
    match wanted_bytes {
        Some(wanted_bytes) if wanted_bytes > limit_bytes => {
            let advice = item_limit::advice(wanted_bytes, &store.value_limits());
            tracing::warn!("values are limited to {limit}, less than --item-size: {advice}");
        }
        None if limit_bytes < record::VALUE_BYTES_MAX as u64 => {
            tracing::info!("values are limited to {limit} by --memory and the store's size");
        }
        _ => {}
    }
}

fn say_durability(arguments: &ServeArguments) {
    let acknowledged = match arguments.sync() {
        SyncArgument::Always => "when they are on flash",
        SyncArgument::Everysec => "at once: a kill or a power failure may lose the last second or so",
        SyncArgument::No => "at once: a kill may lose the last second or so, a power failure more",
    };
    let full = match arguments.full() {
        FullArgument::Error => "refuses new keys",
        FullArgument::Evict => "drops the coldest items",
    };
    let (sync, policy) = (arguments.sync().name(), arguments.full().name());
    tracing::info!("writes are acknowledged {acknowledged} (--sync {sync}); a full store {full} (--full {policy})");
}

/// Warns of a budget beyond the machine's memory: the machine would swap, or kill the process.
fn warn_of_memory(memory_bytes: u64) {
    let limit_bytes = machine::memory_limit_bytes().filter(|limit| *limit < memory_bytes);
    let (least_bytes, whose) = match limit_bytes {
        Some(bytes) => (bytes, "the control group of this process allows"),
        None => (machine::memory_bytes(), "this machine has without swap"),
    };
    if least_bytes < memory_bytes {
        let (memory, least) = (Size(memory_bytes), size::at_most(least_bytes));
        tracing::warn!(
            "--memory {memory} is more than the {least} that {whose}: the server will be slow, or be killed; give less"
        );
    }
}

/// Warns of what --insecure lets in.
fn warn_of_strangers(doors: &[OpenDoor], access: &Access) {
    if !access.is_insecure {
        return;
    }
    let tcp = doors.iter().filter_map(|(_, address)| match address {
        Address::Tcp(text) | Address::Plain(text) => text.parse::<SocketAddr>().ok(),
        Address::Unix(_) => None,
    });
    if let Some(told) = of_strangers(tcp) {
        tracing::warn!("{told}");
    }
}

/// A warning for the addresses that other machines can reach.
fn of_strangers(addresses: impl Iterator<Item = SocketAddr>) -> Option<String> {
    let open: BTreeSet<SocketAddr> = addresses.filter(|address| !address.ip().is_loopback()).collect();
    let open: Vec<String> = open.iter().map(SocketAddr::to_string).collect();
    (!open.is_empty()).then(|| {
        format!(
            "{} can be reached from other machines, and --insecure was said: whoever connects may read, change and delete everything, or \
             read passwords on the way; let a firewall choose who does",
            open.join(" and ")
        )
    })
}

fn say_addresses(server: &Server, memcached_count: usize, place: &tapetum::Place, service: Option<&ServiceListener>) {
    if let Some(service) = service {
        let (path, socket) = (place.path(), service.path());
        tracing::info!("tapetum {VERSION} serves {} to commands at {}", path.display(), socket.display());
    }
    for (number, address) in server.addresses().into_iter().enumerate() {
        let path = place.path();
        let path = path.display();
        match number < memcached_count {
            true => tracing::info!("tapetum {VERSION} serves {path} to memcached clients at {address}"),
            false if number == 0 => {
                tracing::info!("tapetum {VERSION} serves {path}'s block devices to NBD clients at {address}")
            }
            false => tracing::info!("and its block devices to NBD clients at {address}"),
        }
    }
    for address in server.udp_addresses() {
        tracing::info!("and over UDP at {address}");
    }
}

fn say_metrics(server: &Server, has_tls: bool) {
    for address in server.metrics_addresses() {
        tracing::info!("figures for Prometheus at {}", web(address, has_tls, "/metrics"));
    }
}

/// As a browser takes an address.
fn web(address: &Address, has_tls: bool, path: &str) -> String {
    match address {
        Address::Tcp(at) if has_tls => format!("https://{at}{path}"),
        Address::Tcp(at) | Address::Plain(at) => format!("http://{at}{path}"),
        // The doors over HTTP bind none.
        Address::Unix(at) => at.display().to_string(),
    }
}

/// The doors that are open, for those who look at the console.
fn open_doors(server: &Server, memcached_count: usize, flight: &[Address], console: &[Listener]) -> Vec<OpenDoor> {
    let addresses = server.addresses();
    let (memcached, nbd) = addresses.split_at(memcached_count);
    let udp: Vec<Address> = server.udp_addresses().iter().map(|address| Address::Tcp(address.to_string())).collect();
    let console: Vec<Address> = console.iter().map(Listener::address).collect();
    let all: [(&str, &[Address]); 6] = [
        ("memcached", memcached),
        ("memcached over UDP", &udp),
        ("block devices", nbd),
        ("Flight", flight),
        ("figures", server.metrics_addresses()),
        ("console", &console),
    ];
    all.into_iter().flat_map(|(door, addresses)| addresses.iter().map(move |address| (door, address.clone()))).collect()
}

/// As clients of Flight write an address.
#[cfg(feature = "flight")]
fn shown(address: &Address, has_tls: bool) -> String {
    match address {
        Address::Tcp(at) if has_tls => format!("grpc+tls://{at}"),
        Address::Tcp(at) | Address::Plain(at) => format!("grpc://{at}"),
        Address::Unix(path) => format!("grpc+unix://{}", path.display()),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_other_machines_reach_is_named_once() {
        let told = |addresses: &[&str]| of_strangers(addresses.iter().map(|address| address.parse().unwrap()));
        assert_eq!(told(&["127.0.0.1:11211", "[::1]:11211", "127.0.0.2:1"]), None);
        let warning = told(&["0.0.0.0:11211", "127.0.0.1:1", "0.0.0.0:11211", "[::]:11212"]).unwrap();
        assert!(warning.starts_with("0.0.0.0:11211 and [::]:11212 can be reached"), "{warning}");
    }
}
