//! The figures of `stats` and Prometheus: counters of each worker, the server's settings, and the store's figures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tapetum::{Keyspace, KeyspaceId, KeyspaceWrites, SlabClass, Stats, StoreFigure};
use tapetum_access::gate::LoginFigures;
use tapetum_drive::engine::{ApplicationSnapshot, StageSnapshot};

use crate::logging::LogLosses;
use crate::store::failure_log::FailureLog;
use crate::store::hot_keys::WarmProgress;
use device_stats::{DeviceFigures, HeldDevices};
use latencies::RequestLatencies;
use observers::Observers;
use slow_requests::SlowRequests;

pub mod application_stats;
pub mod device_stats;
mod drive_stats;
pub mod exporter_names;
pub mod exposition;
pub mod keyspace_stats;
pub mod latencies;
mod metric_names;
pub mod observers;
pub mod slab_stats;
pub mod slow_requests;
mod stage_stats;

/// One figure, which `stats`, `stats --json` and Prometheus each show in their own form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    pub name: &'static str,
    pub kind: FigureKind,
    /// One sentence, without the full stop.
    pub help: &'static str,
    pub value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// Only grows, since the store was opened or the last `stats reset`.
    Counter,
    /// A current level.
    Gauge,
    /// Not a number.
    Text,
    /// The commit that the binary was built of. Prometheus is told the version with it.
    Build,
}

impl Figure {
    pub(crate) fn new(name: &'static str, kind: FigureKind, help: &'static str, value: impl ToString) -> Figure {
        Figure { name, kind, help, value: value.to_string() }
    }
}

/// Names and values for `stats`.
pub fn lines(figures: Vec<Figure>) -> Vec<(String, String)> {
    figures.into_iter().map(|figure| (figure.name.to_string(), figure.value)).collect()
}

/// Declares each counter once, for fields, sums, names, help and reset.
macro_rules! counters {
    ($($name:ident: $help:literal,)*) => {
        /// One set for each worker, which alone adds to it; any thread reads.
        #[derive(Debug, Default)]
        pub struct Counters { $(pub $name: AtomicU64,)* }

        impl Counters {
            /// The sum of every counter over `all`, in memcached's order.
            pub fn sums<'a>(all: impl Iterator<Item = &'a Counters> + Clone) -> Vec<Figure> {
                let sum = |counter: fn(&Counters) -> &AtomicU64| -> u64 {
                    all.clone().map(|one| counter(one).load(Ordering::Relaxed)).sum()
                };
                vec![$(Figure::new(stringify!($name), FigureKind::Counter, $help, sum(|one| &one.$name)),)*]
            }

            pub fn reset(&self) {
                $(self.$name.store(0, Ordering::Relaxed);)*
            }
        }
    };
}

counters!(
    total_connections: "Connections that were accepted",
    rejected_connections: "Connections that were refused because there were too many",
    idle_kicks: "Connections that were closed because they asked for nothing for longer than they may",
    listen_disabled_num: "Times that a worker accepted nobody for a second, for want of what the system gives",
    time_in_listen_disabled_us: "How long these took that are over",
    conn_yields: "Times that a connection with more to say gave way to others",
    cmd_get: "Keys that gets asked for",
    cmd_set: "Storage commands",
    cmd_flush: "flush_all commands",
    cmd_touch: "touch and gat commands",
    cmd_meta: "me commands",
    get_hits: "Keys that gets found",
    get_misses: "Keys that gets did not find",
    delete_misses: "Deletes of keys that were not there",
    delete_hits: "Deletes of keys that were there",
    incr_misses: "incr of keys that were not there",
    incr_hits: "incr of keys that were there",
    decr_misses: "decr of keys that were not there",
    decr_hits: "decr of keys that were there",
    cas_misses: "cas of keys that were not there",
    cas_hits: "cas that stored",
    cas_badval: "cas that came too late",
    touch_hits: "touch and gat of keys that were there",
    touch_misses: "touch and gat of keys that were not there",
    store_too_large: "Values refused for their size",
    store_no_memory: "Writes refused because flash or the index was full",
    store_damaged: "Requests that failed because bytes on flash are damaged",
    bytes_read: "Bytes that clients sent",
    bytes_written: "Bytes that were sent to clients",
    total_items: "Items that were stored",
    udp_received: "Datagrams that came",
    udp_answered: "Requests in datagrams that were answered",
    udp_sent: "Datagrams that were sent",
    udp_refused_size: "Of those answered, requests whose reply was too large to be sent, and said so",
    udp_dropped_no_request: "Datagrams without an answer that were malformed, or held a part of a request",
    udp_dropped_fragment: "Datagrams met with silence that were parts of a request",
    udp_dropped_not_allowed: "Datagrams met with silence that asked for what only trusted peers may",
    udp_dropped_rate: "Datagrams met with silence whose peers had been sent enough",
    udp_dropped_port: "Datagrams met with silence that came from the port of a service",
    udp_dropped_busy: "Requests in datagrams that were given up for want of memory",
    udp_dropped_unsent: "Datagrams that the system did not send",
);

/// The store's own figures, which `tapetum stats` prints for a store without a server.
pub fn store_figures(store: &Stats) -> Vec<Figure> {
    let figure = |of: StoreFigure| {
        let kind = if of.is_counter { FigureKind::Counter } else { FigureKind::Gauge };
        Figure::new(of.name, kind, of.help, of.value)
    };
    store.figures().into_iter().map(figure).collect()
}

/// Figures of memcached that are always zero here. Clients and dashboards expect them.
const NEVER: [(&str, &str); 4] = [
    ("moves_to_cold", "Items that moved into a cold queue: there is none"),
    ("lru_crawler_starts", "Runs of a crawler for expired items: here the collector drops them"),
    ("crawler_items_checked", "Items that such a crawler looked at"),
    ("crawler_reclaimed", "Items that such a crawler freed"),
];

/// Figures of the store under memcached's names for its hash table and its storage on flash.
fn memcached_figures(store: &Stats) -> [Figure; 10] {
    use FigureKind::{Counter, Gauge};
    let is_growing = u8::from(store.partitions_rebuilding > 0);
    [
        Figure::new("hash_bytes", Gauge, "As index_bytes", store.index_bytes),
        Figure::new("hash_is_expanding", Gauge, "Whether a part of the index is being built anew, 1 or 0", is_growing),
        Figure::new("extstore_limit_maxbytes", Gauge, "As flash_limit_bytes", store.flash_limit_bytes),
        Figure::new("extstore_bytes_used", Gauge, "As flash_used_bytes", store.flash_used_bytes),
        Figure::new("extstore_bytes_written", Counter, "As flash_write_bytes", store.flash_write_bytes),
        Figure::new("extstore_bytes_read", Counter, "As flash_to_local_bytes", store.flash_to_local_bytes),
        Figure::new("extstore_objects_used", Gauge, "As index_entries", store.index_entries),
        Figure::new("extstore_objects_read", Counter, "As get_from_flash", store.get_from_flash),
        Figure::new("extstore_objects_evicted", Counter, "As evictions", store.evictions),
        Figure::new("extstore_page_evictions", Counter, "As segments_evicted", store.segments_evicted),
    ]
}

/// memcached's figures of logins, at every door; 0 without users.
fn login_figures(LoginFigures { logins, failures }: LoginFigures) -> [Figure; 2] {
    use FigureKind::Counter;
    [
        Figure::new("auth_cmds", Counter, "Logins that were tried, whether right or wrong", logins + failures),
        Figure::new("auth_errors", Counter, "Of these, those that were wrong", failures),
    ]
}

/// Sums over the classes of the DRAM tier.
fn class_figures(classes: &[SlabClass]) -> [Figure; 3] {
    use FigureKind::{Counter, Gauge};
    let sum = |value: fn(&SlabClass) -> u64| -> u64 { classes.iter().map(value).sum() };
    [
        Figure::new("total_malloced", Gauge, "Bytes of DRAM in slots", slab_stats::total_malloced(classes)),
        Figure::new(
            "moves_to_warm",
            Counter,
            "Items in DRAM that were asked for again, and so moved on into the main queue",
            sum(|class| class.moves_to_main),
        ),
        Figure::new(
            "moves_within_lru",
            Counter,
            "Turns of the main queue that let an item stay",
            sum(|class| class.moves_within_main),
        ),
    ]
}

/// Whether the served store takes writes, and how its backups go.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreCondition {
    pub has_failed: bool,
    /// Nothing is acknowledged, because the lease of the backups is over.
    pub is_fenced: bool,
    pub is_standby: bool,
    pub backup_every_seconds: u64,
    /// 0: there is none.
    pub backup_moment_ms: u64,
    pub backups_made: u64,
    pub backups_failed: u64,
}

impl StoreCondition {
    fn figures(self) -> [Figure; 7] {
        use FigureKind::{Counter, Gauge};
        let moment_seconds = self.backup_moment_ms / 1000;
        [
            Figure::new(
                "store_failed",
                Gauge,
                "Whether the store takes no writes until it is opened again, 1 or 0",
                u8::from(self.has_failed),
            ),
            Figure::new(
                "store_fenced",
                Gauge,
                "Whether writes are refused because the lease of the backups is over, 1 or 0",
                u8::from(self.is_fenced),
            ),
            Figure::new("standby", Gauge, "Whether the server is a standby, 1 or 0", u8::from(self.is_standby)),
            Figure::new(
                "backup_every_seconds",
                Gauge,
                "How often a backup is to be made; 0: the server neither makes nor follows backups",
                self.backup_every_seconds,
            ),
            Figure::new(
                "backup_moment",
                Gauge,
                "Unix seconds of the last backup that was made, or that a standby serves; 0: there is none",
                moment_seconds,
            ),
            Figure::new(
                "backups",
                Counter,
                "Backups that were made, or that a standby went over to",
                self.backups_made,
            ),
            Figure::new(
                "backups_failed",
                Counter,
                "Tries to make or follow a backup that came to an error",
                self.backups_failed,
            ),
        ]
    }
}

/// Adds `by` to a counter of this worker's own.
pub fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// The figures of all workers, from which `stats` is computed.
pub struct Figures {
    /// One set for each worker.
    pub counters: Vec<Counters>,
    /// One set for each worker.
    pub latencies: Vec<RequestLatencies>,
    pub slow: SlowRequests,
    pub devices: Box<dyn Fn() -> DeviceFigures + Send + Sync>,
    pub observers: Arc<Observers>,
    pub connections: AtomicUsize,
    /// Number of workers that accept connections.
    pub workers_listening: AtomicUsize,
    /// Names and values for `stats settings`.
    pub settings: Vec<(&'static str, String)>,
    /// The whole memory budget, which can change; 0 if unknown.
    pub memory_bytes: AtomicU64,
    pub connections_max: usize,
    pub started_unix_seconds: u32,
    pub hot_keys: Arc<WarmProgress>,
    pub failure_log: FailureLog,
    pub store: Box<dyn Fn() -> Stats + Send + Sync>,
    pub keyspace_items: Box<dyn Fn() -> Vec<(Keyspace, u64)> + Send + Sync>,
    pub keyspace_writes: Box<dyn Fn() -> Vec<(KeyspaceId, KeyspaceWrites)> + Send + Sync>,
    pub slabs: Box<dyn Fn() -> Vec<SlabClass> + Send + Sync>,
    pub stages: Box<dyn Fn() -> Vec<StageSnapshot> + Send + Sync>,
    pub applications: Box<dyn Fn() -> Vec<ApplicationSnapshot> + Send + Sync>,
    pub requests_held_bytes: Box<dyn Fn() -> usize + Send + Sync>,
    pub condition: Box<dyn Fn() -> StoreCondition + Send + Sync>,
    pub logins: Box<dyn Fn() -> LoginFigures + Send + Sync>,
    pub udp_dropped_unseen: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    pub log: LogLosses,
}

impl Default for Figures {
    /// One worker, no connection, and a store without figures.
    fn default() -> Figures {
        Figures {
            counters: vec![Counters::default()],
            latencies: vec![RequestLatencies::default()],
            slow: SlowRequests::default(),
            devices: Box::new(DeviceFigures::default),
            observers: Arc::default(),
            connections: AtomicUsize::new(0),
            workers_listening: AtomicUsize::new(0),
            settings: Vec::new(),
            memory_bytes: AtomicU64::new(0),
            connections_max: 1,
            started_unix_seconds: 0,
            hot_keys: Arc::default(),
            failure_log: FailureLog::default(),
            store: Box::new(Stats::default),
            keyspace_items: Box::new(Vec::new),
            keyspace_writes: Box::new(Vec::new),
            slabs: Box::new(Vec::new),
            stages: Box::new(Vec::new),
            applications: Box::new(Vec::new),
            requests_held_bytes: Box::new(|| 0),
            condition: Box::new(StoreCondition::default),
            logins: Box::new(LoginFigures::default),
            udp_dropped_unseen: Box::new(|| Some(0)),
            log: LogLosses::default(),
        }
    }
}

/// Calls `tell` with the store's figures of block devices, taken from its keyspaces.
fn held_devices(
    items: &[(Keyspace, u64)],
    writes: &[(KeyspaceId, KeyspaceWrites)],
    tell: impl FnOnce(&HeldDevices<'_>),
) {
    let items_of = |id: KeyspaceId| items.iter().find(|(keyspace, _)| keyspace.id == id).map_or(0, |(_, items)| *items);
    let writes_of = |id: KeyspaceId| {
        writes.iter().find(|(other, _)| *other == id).map_or_else(Default::default, |(_, writes)| *writes)
    };
    tell(&HeldDevices { items: &items_of, writes: &writes_of });
}

impl Figures {
    /// memcached's general figures, as far as they apply, then the store's.
    pub fn general(&self, now: u32) -> Vec<Figure> {
        self.general_with(now, &(self.slabs)())
    }

    /// The same for a client of one keyspace: `curr_items` counts only that keyspace.
    pub fn general_of(&self, keyspace: KeyspaceId, now: u32) -> Vec<Figure> {
        let mut figures = self.general(now);
        let of_all = (self.keyspace_items)();
        if let Some((_, items)) = of_all.into_iter().find(|(other, _)| other.id == keyspace) {
            let own = figures.iter_mut().filter(|figure| figure.name == "curr_items");
            own.for_each(|figure| figure.value = items.to_string());
        }
        figures
    }

    /// Lines for each served block device, with the device's name in front.
    pub fn device_lines(&self) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        let devices = (self.devices)();
        if devices.are_there() {
            let (items, writes) = ((self.keyspace_items)(), (self.keyspace_writes)());
            held_devices(&items, &writes, |held| lines = devices.lines(held));
        }
        lines
    }

    fn general_with(&self, now: u32, classes: &[SlabClass]) -> Vec<Figure> {
        use FigureKind::{Counter, Gauge, Text};
        let store = (self.store)();
        let (user_us, system_us) = crate::os::cpu_time_us();
        let resident_bytes = crate::os::resident_memory_bytes().unwrap_or(0);
        let drive_us = tapetum_drive::drive_cpu_us();
        let host_us = (user_us + system_us).saturating_sub(drive_us);
        let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
        let uptime = now.saturating_sub(self.started_unix_seconds);
        let connections = self.connections.load(Ordering::Relaxed);
        let accepting = self.workers_listening.load(Ordering::Relaxed) > 0;
        let mut figures = vec![
            Figure::new("pid", Gauge, "The server's process", std::process::id()),
            Figure::new("uptime", Gauge, "Time since the server began to serve", uptime),
            Figure::new("time", Gauge, "Unix seconds by the server's clock", now),
            Figure::new("version", Text, "The version", crate::protocol::VERSION),
            Figure::new("build", FigureKind::Build, "The commit that the server was built of", crate::version::build()),
            Figure::new("pointer_size", Gauge, "The size of a pointer", usize::BITS),
            Figure::new("rusage_user", Counter, "Processor time in the server itself", seconds(user_us)),
            Figure::new("rusage_system", Counter, "Processor time in the kernel", seconds(system_us)),
            Figure::new("cpu_host", Counter, "Of both, that of threads other than the drive's", seconds(host_us)),
            Figure::new("cpu_drive", Counter, "Of both, that of the drive's own threads", seconds(drive_us)),
            Figure::new(
                "resident_memory_bytes",
                Gauge,
                "Memory of the server's process that is in DRAM",
                resident_bytes,
            ),
            Figure::new(
                "requests_held_bytes",
                Gauge,
                "Memory that requests and answers hold, beyond what each connection has for itself",
                (self.requests_held_bytes)(),
            ),
            Figure::new("max_connections", Gauge, "Connections that there may be", self.connections_max),
            Figure::new("curr_connections", Gauge, "Connections that there are", connections),
            Figure::new(
                "connection_structures",
                Gauge,
                "Connections that memory is held for: those there are",
                connections,
            ),
            Figure::new("accepting_conns", Gauge, "Whether connections are accepted, 1 or 0", u8::from(accepting)),
        ];
        figures.extend((self.condition)().figures());
        figures.extend(login_figures((self.logins)()));
        figures.push(Figure::new(
            "lru_crawler_running",
            Gauge,
            "Whether a crawler for expired items runs: there is none",
            0,
        ));
        figures.extend(NEVER.map(|(name, help)| Figure::new(name, Counter, help, 0)));
        figures.extend(Counters::sums(self.counters.iter()));
        let help = "Datagrams that the kernel dropped before anybody saw them: it had no room, or they were damaged";
        let unseen = (self.udp_dropped_unseen)();
        figures.extend(unseen.map(|count| Figure::new("udp_dropped_unseen", Counter, help, count)));
        let help = "Lines of the log that were dropped, as whoever reads it was too slow, or could not be written";
        figures.push(Figure::new("log_lines_dropped", Counter, help, self.log.lines()));
        figures.extend([
            Figure::new("threads", Gauge, "Worker threads", self.counters.len()),
            Figure::new("limit_maxbytes", Gauge, "Flash that the store may use", store.flash_limit_bytes),
            Figure::new("bytes", Gauge, "Flash that the store uses", store.flash_used_bytes),
        ]);
        figures.extend(self.watched());
        figures.extend(class_figures(classes));
        figures.extend(memcached_figures(&store));
        figures.extend(store_figures(&store));
        figures.extend((self.devices)().figures());
        figures.extend(drive_stats::figures(&store.drive_bytes));
        figures.extend(stage_stats::figures(&(self.stages)()));
        figures.extend(self.hot_keys());
        figures
    }

    fn watched(&self) -> [Figure; 3] {
        use FigureKind::{Counter, Gauge};
        let (watchers, sent, skipped) = self.observers.watched();
        [
            Figure::new("log_watchers", Gauge, "Clients that watch others' requests", watchers),
            Figure::new("log_watcher_sent", Counter, "Lines that these were given", sent),
            Figure::new("log_watcher_skipped", Counter, "Lines that they were not, as they were too slow", skipped),
        ]
    }

    fn hot_keys(&self) -> [Figure; 6] {
        use FigureKind::{Counter, Gauge};
        let WarmProgress { warming, listed, warmed, gone, saved, saves } = &*self.hot_keys;
        let figure = |name, kind, help, value: &AtomicU64| Figure::new(name, kind, help, value.load(Ordering::Relaxed));
        [
            figure("warming", Gauge, "Whether DRAM is being warmed from the list of hot keys, 1 or 0", warming),
            figure("hot_keys_listed", Gauge, "Keys in the list that was there at the start", listed),
            figure("hot_keys_warmed", Gauge, "Of these, keys whose items DRAM has since", warmed),
            figure(
                "hot_keys_gone",
                Gauge,
                "Of these, keys that flash did not have any more, or not as the newest",
                gone,
            ),
            figure("hot_keys_saved", Gauge, "Keys in the list that was saved last", saved),
            figure("hot_keys_saves", Counter, "How often the list was saved", saves),
        ]
    }

    /// The whole page for Prometheus: under our names, and under those of memcached's exporter.
    pub fn page(&self, now: u32) -> String {
        let classes = (self.slabs)();
        let figures = self.general_with(now, &classes);
        let mut page = exposition::exposition(&figures);
        latencies::append(&mut page, &self.latencies);
        let (items, writes) = ((self.keyspace_items)(), (self.keyspace_writes)());
        held_devices(&items, &writes, |held| (self.devices)().append(&mut page, held));
        keyspace_stats::append(&mut page, &items, &writes);
        application_stats::append(&mut page, &(self.applications)());
        exporter_names::append(&mut page, &figures, &classes);
        page
    }

    /// The settings of `stats settings`.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let mut lines = self.settings.clone();
        lines.push(("detail_enabled", if self.observers.counts_prefixes() { "yes" } else { "no" }.into()));
        lines.push(("maxbytes", self.memory_bytes.load(Ordering::Relaxed).to_string()));
        lines
    }

    /// The lines of `stats` with an argument. `None` if the argument is unknown.
    pub fn group(&self, argument: &[u8]) -> Option<Vec<(String, String)>> {
        let owned = |(name, value): (&str, String)| (name.to_string(), value);
        Some(match argument {
            b"settings" => self.settings().into_iter().map(owned).collect(),
            b"slabs" => slab_stats::slabs(&(self.slabs)()),
            b"items" => slab_stats::items(&(self.slabs)()),
            // memcached's answer while sizes are not being counted.
            b"sizes" => vec![("sizes_status".into(), "disabled".into())],
            _ => return None,
        })
    }

    pub fn reset(&self) {
        self.counters.iter().for_each(Counters::reset);
        self.latencies.iter().for_each(RequestLatencies::reset);
        self.slow.reset();
        (self.devices)().reset();
        self.observers.forget_prefixes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_workers_are_summed_and_reset() {
        let all = [Counters::default(), Counters::default()];
        count(&all[0].cmd_get, 2);
        count(&all[1].cmd_get, 3);
        let value = |name| Counters::sums(all.iter()).into_iter().find(|figure| figure.name == name).unwrap().value;
        assert_eq!(value("cmd_get"), "5");
        all.iter().for_each(Counters::reset);
        assert_eq!(value("cmd_get"), "0");
    }

    #[test]
    fn logins_are_all_that_were_tried_and_errors_the_wrong_ones() {
        let logins = Box::new(|| LoginFigures { logins: 5, failures: 2 });
        let figures = Figures { logins, ..Figures::default() };
        let value = |figures: &Figures, name| {
            figures.general(0).into_iter().find(|figure| figure.name == name).map(|figure| figure.value)
        };
        assert_eq!(value(&figures, "auth_cmds").as_deref(), Some("7"));
        assert_eq!(value(&figures, "auth_errors").as_deref(), Some("2"));
        assert_eq!(value(&Figures::default(), "auth_cmds").as_deref(), Some("0"), "there are no users");
    }

    /// A new figure of the store must also be shown.
    #[test]
    fn every_field_of_the_stores_stats_is_a_figure() {
        let debugged = format!("{:?}", Stats::default());
        // The fields inside `drive_stats`.
        let (before, rest) = debugged.split_once("drive_bytes: [").unwrap();
        let debugged = format!("{before}{}", rest.split_once("], ").unwrap().1);
        let fields = debugged.trim_start_matches("Stats { ").trim_end_matches(" }").split(", ");
        let mut fields: Vec<&str> = fields.filter_map(|field| field.split(':').next()).collect();
        // Shown under memcached's name, so that no two families of metrics are called `items`.
        fields.iter_mut().filter(|field| **field == "items").for_each(|field| *field = "curr_items");
        let mut names: Vec<&str> = store_figures(&Stats::default()).iter().map(|figure| figure.name).collect();
        fields.sort_unstable();
        names.sort_unstable();
        assert_eq!(names, fields, "add the new one to store_figures!");
    }
}
