//! memcached's options, each with the nearest of `tapetum serve`. Constant. `docs/COMING-FROM.md` has the same table.

use tapetum_service::size;

/// An option of memcached 1.6.
pub struct Flag {
    /// As it is typed, with its dashes; the first is its short name. Of those behind `-o`, the name before `=`.
    pub names: &'static [&'static str],
    pub takes_value: bool,
    pub ours: Ours,
}

/// The counterpart of `tapetum serve`.
pub enum Ours {
    /// The words for this value; empty if none are needed. `None`: ours does not take this value.
    Words(fn(&str, &Given<'_>) -> Option<String>),
    /// The option is there under this name.
    Same,
    /// There is none, for this reason.
    Nothing(&'static str),
}

use Ours::{Nothing, Same, Words};

/// Options of a command line that others depend on.
#[derive(Default)]
pub struct Given<'a> {
    pub listen: Option<&'a str>,
    pub port: Option<&'a str>,
    pub extended: Vec<(&'a str, &'a str)>,
}

const fn flag(names: &'static [&'static str], ours: Ours) -> Flag {
    Flag { names, takes_value: false, ours }
}

const fn valued(names: &'static [&'static str], ours: Ours) -> Flag {
    Flag { names, takes_value: true, ours }
}

/// In the order of `memcached -h`.
pub const FLAGS: [Flag; 37] = [
    valued(
        &["-p", "--port"],
        Words(|port, given| match given.listen {
            None => Some(format!("--memcached 127.0.0.1:{}", number(port)?)),
            // Its address takes the port.
            Some(_) => Some(String::new()),
        }),
    ),
    valued(
        &["-U", "--udp-port"],
        Words(|port, _| match port {
            "0" => Some(String::new()),
            port => Some(format!("--udp 127.0.0.1:{}", number(port)?)),
        }),
    ),
    valued(&["-s", "--unix-socket"], Words(|path, _| Some(format!("--memcached unix:{path}")))),
    valued(&["-a", "--unix-mask"], Nothing("a Unix socket is its owner's alone")),
    flag(&["-A", "--enable-shutdown"], Nothing("SIGTERM stops the server")),
    valued(
        &["-l", "--listen", "--bind"],
        Words(|addresses, given| {
            let listeners = addresses.split(',').map(|address| of_address(address, given.port));
            Some(listeners.collect::<Vec<_>>().join(" "))
        }),
    ),
    flag(&["-d", "--daemon"], Nothing("systemd keeps it running, by packaging/tapetum.service")),
    flag(&["-r", "--enable-coredumps"], Nothing("`ulimit -c` and systemd's LimitCORE are what counts")),
    valued(&["-u", "--user"], Nothing("start it as the user that it is to be, by systemd's User= or DynamicUser=")),
    valued(&["-m", "--memory-limit"], Words(|megabytes, _| of_megabytes("--memory", megabytes))),
    flag(&["-M", "--disable-evictions"], Words(|_, _| Some("--full error".into()))),
    valued(&["-c", "--conn-limit"], Words(|count, _| Some(format!("--connections {}", number(count)?)))),
    flag(
        &["-k", "--lock-memory"],
        Nothing("a machine without swap, or systemd's MemorySwapMax=0, keeps memory in DRAM"),
    ),
    flag(&["-v", "--verbose"], Same),
    flag(&["-h", "--help"], Same),
    flag(&["-i", "--license"], Nothing("the files LICENSE-MIT and LICENSE-APACHE have it")),
    flag(&["-V", "--version"], Same),
    valued(&["-P", "--pidfile"], Nothing("systemd knows the process, and so does `stats` (pid)")),
    valued(&["-f", "--slab-growth-factor"], Words(|factor, _| Some(format!("--cache --slab-factor {factor}")))),
    valued(
        &["-n", "--slab-min-size"],
        Nothing("items on flash have no slots; those of the DRAM tier follow --slab-factor"),
    ),
    flag(&["-L", "--enable-largepages"], Nothing("the kernel's own setting of transparent huge pages counts")),
    valued(&["-D"], Nothing("prefixes end at a colon; `stats detail on` counts them")),
    valued(&["-t", "--threads"], Words(|count, _| Some(format!("--threads {}", number(count)?)))),
    valued(&["-R", "--max-reqs-per-event"], Nothing("a connection that has much to say gives way by itself")),
    flag(&["-C", "--disable-cas"], Nothing("every item has its CAS number")),
    valued(&["-b", "--listen-backlog"], Words(|count, _| Some(format!("--backlog {}", number(count)?)))),
    valued(&["-B", "--protocol"], Nothing("each connection speaks text or binary, as its first byte says")),
    valued(
        &["-I", "--max-item-size"],
        Words(|text, _| {
            let bytes = size::within(text, 1 << 10, 16 << 20).ok()?;
            Some(format!("--item-size {}", size::typed(bytes)))
        }),
    ),
    flag(&["-S", "--enable-sasl"], Words(|_, _| Some("--users-file FILE".into()))),
    flag(&["-F", "--disable-flush-all"], Words(|_, _| Some("--no-flush-all".into()))),
    flag(&["-X", "--disable-dumping"], Nothing("with --users-file only users who may read list keys")),
    flag(&["-W", "--disable-watch"], Nothing("with --users-file only admins watch")),
    valued(&["-Y", "--auth-file"], Words(|_, _| Some("--users-file FILE".into()))),
    valued(&["-e", "--memory-file"], Nothing("items outlast a restart as they are")),
    flag(
        &["-Z", "--enable-ssl"],
        Words(|_, given| {
            let has_certificate = given.extended.iter().any(|(name, _)| *name == "ssl_chain_cert");
            Some(if has_certificate { String::new() } else { "--ssl-chain-cert FILE --ssl-key FILE".into() })
        }),
    ),
    valued(&["-N", "--napi_ids"], Nothing("connections are not told apart by NAPI ids")),
    valued(&["-o", "--extended"], Words(|_, _| Some(String::new()))),
];

/// The words behind `-o`.
pub const EXTENDED: [Flag; 53] = [
    flag(&["maxconns_fast"], Nothing("this is what the server does")),
    flag(
        &["no_maxconns_fast"],
        Nothing("a client too many is refused at once; --backlog has others wait before they are accepted"),
    ),
    valued(&["hashpower"], Nothing(INDEX)),
    flag(&["no_hashexpand"], Nothing(INDEX)),
    valued(&["hash_algorithm"], Nothing(INDEX)),
    valued(&["tail_repair_time"], Nothing(QUEUES)),
    flag(&["lru_crawler"], Nothing(EXPIRY)),
    flag(&["no_lru_crawler"], Nothing(EXPIRY)),
    valued(&["lru_crawler_sleep"], Nothing(EXPIRY)),
    valued(&["lru_crawler_tocrawl"], Nothing(EXPIRY)),
    valued(&["read_buf_mem_limit"], Nothing("requests and answers are a part of --memory")),
    flag(&["lru_maintainer"], Nothing(QUEUES)),
    flag(&["no_lru_maintainer"], Nothing(QUEUES)),
    valued(&["hot_lru_pct"], Nothing(QUEUES)),
    valued(&["warm_lru_pct"], Nothing(QUEUES)),
    valued(&["hot_max_factor"], Nothing(QUEUES)),
    valued(&["warm_max_factor"], Nothing(QUEUES)),
    valued(&["temporary_ttl"], Nothing(QUEUES)),
    valued(&["idle_timeout"], Words(|seconds, _| Some(format!("--idle-timeout {}", number(seconds)?)))),
    valued(&["slab_chunk_max"], Nothing("--slab-size is the largest item in DRAM; flash has the others")),
    flag(&["slab_reassign"], Nothing(SLABS)),
    flag(&["no_slab_reassign"], Nothing(SLABS)),
    valued(&["slab_automove"], Nothing(SLABS)),
    valued(&["slab_automove_freeratio"], Nothing(SLABS)),
    valued(&["watcher_logbuf_size"], Nothing("what a watcher may be behind is fixed")),
    valued(&["worker_logbuf_size"], Nothing("what a watcher may be behind is fixed")),
    flag(&["track_sizes"], Nothing("`stats sizes` counts nothing")),
    flag(&["modern"], Nothing("there is one way")),
    flag(&["no_modern"], Nothing("there is one way")),
    valued(&["sock_cookie_id"], Nothing("sockets get no cookie")),
    valued(
        &["ext_path"],
        Words(|place, _| {
            let (path, bytes) = place.rsplit_once(':')?;
            Some(format!("--drive {path} --capacity {}", size::typed(size::parse(bytes).ok()?)))
        }),
    ),
    valued(
        &["ext_page_size"],
        Words(|megabytes, _| {
            let fits = number(megabytes)?.is_power_of_two();
            if fits { of_megabytes("--write-buffer", megabytes) } else { None }
        }),
    ),
    valued(&["ext_wbuf_size"], Nothing("a segment is filled in DRAM and written as a whole: --write-buffer")),
    valued(&["ext_threads"], Words(|count, _| Some(format!("--drive-threads {}", number(count)?)))),
    valued(&["ext_item_size"], Nothing(ALL_ON_FLASH)),
    valued(&["ext_item_age"], Nothing(ALL_ON_FLASH)),
    valued(&["ext_low_ttl"], Nothing(ALL_ON_FLASH)),
    flag(&["ext_drop_unread"], Nothing("--full evict drops whole segments, the coldest first")),
    valued(&["ext_recache_rate"], Nothing("--tier takes items that are asked for often")),
    valued(&["ext_compact_under"], Nothing(COLLECTOR)),
    valued(&["ext_drop_under"], Nothing(COLLECTOR)),
    valued(&["ext_max_frag"], Nothing(COLLECTOR)),
    valued(&["ext_max_sleep"], Nothing(COLLECTOR)),
    valued(&["ssl_chain_cert"], Words(|file, _| Some(format!("--ssl-chain-cert {file}")))),
    valued(&["ssl_key"], Words(|file, _| Some(format!("--ssl-key {file}")))),
    valued(&["ssl_keyformat"], Nothing("keys are PEM")),
    valued(&["ssl_verify_mode"], Words(|mode, _| Some(format!("--ssl-verify-mode {mode}")))),
    valued(&["ssl_ciphers"], Nothing("--ssl-min-version is what there is to choose")),
    valued(&["ssl_ca_cert"], Words(|file, _| Some(format!("--ssl-ca-cert {file}")))),
    valued(&["ssl_wbuf_size"], Nothing("answers are a part of --memory")),
    flag(&["ssl_session_cache"], Nothing("sessions are resumed as it is")),
    flag(&["ssl_kernel_tls"], Nothing("the server encrypts by itself")),
    valued(
        &["ssl_min_version"],
        Words(|version, _| match version {
            "0" | "1" | "tlsv1.0" | "tlsv1.1" => None,
            version => Some(format!("--ssl-min-version {version}")),
        }),
    ),
];

const INDEX: &str = "the index grows by itself, within --memory";
const EXPIRY: &str = "the collector frees expired items, and a get does not see them";
const QUEUES: &str = "the queues of the DRAM tier (--tier) have shares of their own";
const SLABS: &str = "slabs go to the slot sizes that need them";
const ALL_ON_FLASH: &str = "every item goes to flash";
const COLLECTOR: &str = "the collector keeps its pace by itself";

fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

/// One address of `-l`, which may have a port.
fn of_address(address: &str, port: Option<&str>) -> String {
    let (before, host) = address.strip_prefix("notls:").map_or(("", address), |host| ("notls:", host));
    let colons = host.matches(':').count();
    let has_port = host.starts_with('[') && host.contains("]:") || colons == 1;
    let bracketed = if colons > 1 && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() };
    match has_port {
        true => format!("--memcached {before}{host}"),
        false => format!("--memcached {before}{bracketed}:{}", port.unwrap_or("11211")),
    }
}

fn of_megabytes(option: &str, megabytes: &str) -> Option<String> {
    Some(format!("{option} {}", size::typed(number(megabytes)?.checked_mul(1 << 20)?)))
}

/// The option of this name, as it is typed.
pub fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.names.contains(&name))
}

/// The option of this name behind `-o`.
pub fn find_extended(name: &str) -> Option<&'static Flag> {
    EXTENDED.iter().find(|flag| flag.names.contains(&name))
}
