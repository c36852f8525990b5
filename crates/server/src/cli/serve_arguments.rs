//! The command line of `tapetum serve`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tapetum::{Options, TierSize};
use tapetum_depot::Destination;
use tapetum_drive::{DRIVE_THREADS_MAX, Size};

use crate::cli::access_arguments::AccessArguments;
use crate::cli::arguments::{CapacityArguments, PRESETS_HELP, StoreArguments};
use crate::cli::backup_arguments::destination;
use crate::cli::keyspace_arguments::{DEFAULT_NAME, keyspace_name};
use crate::cli::ranges::{
    IDLE_SECONDS_MAX, item_size, node_cache, slab_factor, slab_size, tier, udp_rate, write_buffer,
};
use crate::doors::memcached::udp::UdpOptions;
use crate::doors::memcached::udp::guard::Network;
use crate::net::listen::{Address, Listening, LoopbackAddress, tcp_address};
use crate::store::hot_keys::HotKeys;
use tapetum_service::size;

// An address in square brackets is no link.
#[allow(rustdoc::broken_intra_doc_links)]
#[derive(Debug, Args)]
#[command(after_help = PRESETS_HELP, group = clap::ArgGroup::new("tiered").args(["tier", "cache"]).multiple(true))]
// A server opens the store itself, and says so if it is told of another one.
#[cfg_attr(feature = "flight", command(mut_arg("server", |option| option.hide(true))))]
#[cfg_attr(feature = "flight", command(mut_arg("server_ca", |option| option.hide(true))))]
#[cfg_attr(feature = "flight", command(mut_arg("user", |option| option.hide(true))))]
#[cfg_attr(feature = "flight", command(mut_arg("password_file", |option| option.hide(true))))]
pub struct ServeArguments {
    #[command(flatten)]
    pub store: StoreArguments,
    #[command(flatten)]
    pub capacity: CapacityArguments,
    /// The address for memcached clients: HOST:PORT (at every address of HOST), a port on loopback, or unix:PATH; may be given several
    /// times. [::] is IPv6 alone: give 0.0.0.0 too for both. notls:HOST:PORT has no TLS, as at the other doors. none serves no memcached
    /// clients
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:11211")]
    memcached: Vec<Listening>,
    /// The keyspace that clients see and flush: given once, of every --memcached, and of datagrams; given as often as --memcached, each
    /// of the one at the same place, and the first of datagrams [default: default]
    #[arg(long, value_name = "NAME", value_parser = keyspace_name())]
    pub keyspace: Vec<String>,
    /// The address at which NBD clients find the store's block devices, each under its keyspace's name: HOST:PORT or unix:PATH; may be
    /// given several times
    #[arg(long, value_name = "ADDR")]
    pub nbd: Vec<Address>,
    /// A block device that NBD clients may read only; may be given several times
    #[arg(long, value_name = "NAME", requires = "nbd", value_parser = keyspace_name())]
    pub nbd_read_only: Vec<String>,
    /// Figures for Prometheus over HTTP, at /metrics: HOST:PORT, or a port on loopback; at every address of HOST
    #[arg(long, value_name = "ADDR", num_args = 0..=1, value_parser = tcp_address,
          default_missing_value = crate::doors::metrics::ADDRESS_DEFAULT)]
    pub metrics: Option<Address>,
    /// Flight and Flight SQL over gRPC, for queries, items and rows of programs in any language: HOST:PORT, a port on loopback, or
    /// unix:PATH
    #[cfg(feature = "flight")]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = crate::doors::flight::ADDRESS_DEFAULT)]
    pub flight: Option<Address>,
    /// The console, a page for browsers that shows what the server does and asks its store: HOST:PORT, or a port on loopback
    #[arg(long, value_name = "ADDR", num_args = 0..=1, value_parser = tcp_address,
          default_missing_value = crate::doors::console::ADDRESS_DEFAULT)]
    pub console: Option<Address>,
    #[command(flatten)]
    udp: UdpArguments,
    #[command(flatten)]
    pub access: AccessArguments,
    /// Worker threads [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Threads that do the drive's work, moving bytes and running programs, up to 64; with 0 each worker does its own
    #[arg(long, value_name = "N", default_value = "0",
          value_parser = clap::value_parser!(u8).range(0..=DRIVE_THREADS_MAX as i64))]
    pub drive_threads: u8,
    /// Threads of the drive for its programs, which queries, graphs, pipelines, pictures and operations of all clients share: PROGRAM=NUMBER,
    /// with commas between them, such as scan=2,node-get=1; without, whoever waits for one computes it
    #[arg(long, value_name = "UNITS", value_delimiter = ',')]
    pub compute_units: Vec<String>,
    /// Pin these threads, each to a core
    #[arg(long, requires = "compute_units")]
    pub pin: bool,
    /// Applications and their weights, by which the time of these threads, or of cores, is divided while several wait: NAME=WEIGHT, 1 to 1024, with
    /// commas between them; `scan`, `graph` and `pipeline run` say with --application whose they are
    #[arg(long, value_name = "WEIGHTS", value_delimiter = ',', value_parser = weight)]
    pub weight: Vec<(String, u32)>,
    /// Other defaults, for a cache: --sync everysec, --full evict, and half of --memory as --tier
    #[arg(long)]
    pub cache: bool,
    /// The size of each of a new store's two write buffers, out of --memory: a power of two. With large ones, values that are overwritten
    /// soon never go to flash [default: by --memory and --capacity, at most 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = write_buffer)]
    pub write_buffer: Option<u64>,
    /// The part of --memory for copies in DRAM of items that are often asked for; 0 is none [default: none]
    #[arg(long, value_name = "SIZE", value_parser = tier)]
    pub tier: Option<u64>,
    /// With --tier: the ratio between one slot size and the next, 1.1 to 16
    #[arg(long, value_name = "FACTOR", requires = "tiered", default_value = "1.25", value_parser = slab_factor)]
    pub slab_factor: f64,
    /// With --tier: bytes given to one slot size at a time, and so the largest item there [default: a 64th of the tier, or of a sixteenth
    /// of a large one, at most 10MB]
    #[arg(long, value_name = "SIZE", requires = "tiered", value_parser = slab_size)]
    pub slab_size: Option<u64>,
    /// The list of the keys in DRAM, from which it is warmed after a restart [default: beside the data; none for a block device]
    #[arg(long, value_name = "FILE", requires = "tiered")]
    pub hot_keys: Option<PathBuf>,
    /// How often that list is saved, in seconds; 0 is never, and nothing is warmed
    #[arg(long, value_name = "SECONDS", requires = "tiered", default_value = "300",
          value_parser = clap::value_parser!(u32).range(0..=86_400))]
    hot_keys_every: u32,
    /// The part of --memory for cached nodes of ordered keyspaces [default: a sixteenth]
    #[arg(long, value_name = "SIZE", value_parser = node_cache)]
    pub node_cache: Option<u64>,
    /// Write nodes of ordered keyspaces in place, though the drive does not promise that writes of 4 KiB are atomic: where they are not, a
    /// power failure may lose nodes
    #[arg(long)]
    pub assume_atomic_writes: bool,
    /// Take the partition of --drive from another process that has it, such as one that hangs: that one has it no more
    #[arg(long, requires = "drive")]
    pub take_over: bool,
    /// What a new store on several drives has beside each byte, so that it goes on when one drive is lost [default: none]
    #[arg(long, value_enum, requires = "drive")]
    pub redundancy: Option<RedundancyArgument>,
    /// Serve a mirror of which one drive is missing although the other was not told of that: what only the missing one has is lost
    #[arg(long, requires = "drive")]
    pub force: bool,
    /// When a write is acknowledged [default: always]
    #[arg(long, value_enum)]
    sync: Option<SyncArgument>,
    /// How a write is handled when there is no room [default: error]
    #[arg(long, value_enum)]
    full: Option<FullArgument>,
    /// Refuse flush_all, which deletes all of a client's keyspace at once
    #[arg(long)]
    pub no_flush_all: bool,
    /// Clients at a time
    #[arg(long, value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections: u32,
    /// Clients that may wait at each address to be accepted; the kernel's net.core.somaxconn limits it
    #[arg(long, value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub backlog: u32,
    /// Close clients that ask for nothing for longer, in seconds; 0 is never. They count as idle_kicks
    #[arg(long, value_name = "SECONDS", default_value = "0",
          value_parser = clap::value_parser!(u32).range(0..=IDLE_SECONDS_MAX))]
    pub idle_timeout: u32,
    #[command(flatten)]
    pub backups: BackupArguments,
    /// The largest value, 1KiB to 16MiB [default: 16MiB, or what --memory and --capacity allow: an eighth and a sixteenth of them]
    #[arg(long, value_name = "SIZE", value_parser = item_size)]
    pub item_size: Option<u64>,
}

/// `NAME=WEIGHT`. How large a weight may be is said when the store is opened.
pub fn weight(text: &str) -> Result<(String, u32), String> {
    let named = text.split_once('=').and_then(|(name, weight)| Some((name.to_owned(), weight.parse().ok()?)));
    named.ok_or_else(|| "give NAME=WEIGHT, such as train=4".into())
}

/// Requests in datagrams. Sizes are for strangers: a sender's address can be forged, and they are the ones it may be.
#[derive(Debug, Args)]
struct UdpArguments {
    /// Take requests over UDP too: HOST:PORT, or a port on loopback; at every address of HOST
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = crate::doors::memcached::udp::ADDRESS_DEFAULT)]
    udp: Option<LoopbackAddress>,
    /// Peers that may send any request over UDP; all others get little, and change single items quietly [default: loopback]
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',', requires = "udp", default_value = "127.0.0.0/8,::1")]
    udp_allow: Vec<Network>,
    /// Bytes a second that each other peer is sent over UDP; 0 is none
    #[arg(long, value_name = "SIZE", value_parser = udp_rate, requires = "udp", default_value = "1MiB")]
    udp_rate: u32,
    /// The longest datagram to send
    #[arg(long, value_name = "BYTES", requires = "udp", default_value = "1400",
          value_parser = clap::value_parser!(u16).range(508..=65507))]
    udp_datagram: u16,
}

/// Backups that the server makes, and those that it follows.
#[derive(Debug, Args)]
pub struct BackupArguments {
    /// Keep backups of the store in this folder, or at s3://BUCKET/PREFIX, from where a standby follows it: see `tapetum backup`. The server
    /// holds a lease there, and acknowledges nothing when it can renew that no more
    #[arg(long, value_name = "PLACE", group = "backups_in", value_parser = destination())]
    pub backup_to: Option<Destination>,
    /// Be a standby of the server that keeps backups there: serve its last backup to read, and go over to each later one, until
    /// `tapetum promote` lets this server take its place, which keeps its own backups there from then on. The data takes twice the flash
    #[arg(long, value_name = "PLACE", group = "backups_in", value_parser = destination(), conflicts_with_all = ["capacity", "write_buffer"])]
    pub follow: Option<Destination>,
    /// How often a backup is made, in seconds
    #[arg(long, value_name = "SECONDS", requires = "backups_in", default_value = "60",
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub every: u32,
    /// How many backups stay, about
    #[arg(long, value_name = "N", requires = "backups_in", default_value = "48", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: u32,
    /// How long the lease lasts without being renewed, in seconds: a standby waits for so long before it takes over
    #[arg(long, value_name = "SECONDS", requires = "backups_in", default_value = "10",
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub lease: u32,
}

impl ServeArguments {
    /// The addresses for memcached clients; empty for `none`.
    pub fn memcached(&self) -> Result<Vec<Address>, String> {
        let is_none = self.memcached.contains(&Listening::Nowhere);
        if is_none && self.memcached.len() > 1 {
            return Err("--memcached none stands beside another --memcached: leave one of them out".into());
        }
        if is_none && self.udp.udp.is_some() {
            return Err(
                "--udp takes memcached's requests, and --memcached none serves no such clients: leave one of them out"
                    .into(),
            );
        }
        let at = self.memcached.iter().filter_map(|listening| match listening {
            Listening::At(address) => Some(address.clone()),
            Listening::Nowhere => None,
        });
        Ok(at.collect())
    }

    /// The memory budget in bytes.
    pub fn memory(&self) -> u64 {
        self.store.memory.unwrap_or(Options::MEMORY_DEFAULT_BYTES)
    }

    /// The keyspace of each --memcached.
    pub fn keyspaces(&self) -> Result<Vec<&str>, String> {
        let (named, listeners) = (self.keyspace.len(), self.memcached()?.len());
        match &self.keyspace[..] {
            [first, ..] if listeners == 0 => Err(format!(
                "--keyspace {first} is what memcached clients see, and --memcached none serves none: leave one of them out"
            )),
            [] => Ok(vec![DEFAULT_NAME; listeners]),
            [all] => Ok(vec![all; listeners]),
            each if named == listeners => Ok(each.iter().map(String::as_str).collect()),
            _ => Err(format!(
                "--keyspace is given {named} times, and --memcached {listeners} times: give it once for all listeners, or as often as \
                 --memcached, in the same order"
            )),
        }
    }

    /// An error if one part of the memory alone exceeds the whole.
    pub fn check_memory_parts(&self) -> Result<(), String> {
        let memory = self.memory();
        let parts = [
            ("--tier", self.tier.unwrap_or(0)),
            ("--node-cache", self.node_cache.unwrap_or(0)),
            ("--write-buffer", self.write_buffer.unwrap_or(0)),
        ];
        match parts.into_iter().find(|(_, bytes)| *bytes >= memory) {
            None => Ok(()),
            Some((option, bytes)) => Err(format!(
                "{option} {} does not fit in --memory {}: give a smaller {option}, or a larger --memory",
                Size(bytes),
                size::at_most(memory)
            )),
        }
    }

    pub fn udp(&self) -> Option<UdpOptions> {
        let UdpArguments { udp, udp_allow, udp_rate, udp_datagram } = &self.udp;
        Some(UdpOptions {
            address: udp.clone()?,
            allow: udp_allow.clone(),
            rate_bytes: *udp_rate,
            datagram_bytes_max: usize::from(*udp_datagram),
        })
    }

    /// The place of the list of hot keys, if one is to be kept and there is a place for it.
    pub fn hot_keys(&self) -> Option<HotKeys> {
        if !self.has_hot_keys() {
            return None;
        }
        let path = self.hot_keys.clone().or_else(|| self.store.place().hot_keys())?;
        Some(HotKeys { path, every: Duration::from_secs(self.hot_keys_every.into()) })
    }

    /// Whether only the place is missing for a list of hot keys.
    pub fn is_without_list(&self) -> bool {
        self.has_hot_keys() && self.hot_keys().is_none()
    }

    /// Without a tier there are no hot keys.
    fn has_hot_keys(&self) -> bool {
        self.hot_keys_every > 0 && self.tier() != TierSize::Bytes(0)
    }

    pub fn sync(&self) -> SyncArgument {
        self.sync.unwrap_or(if self.cache { SyncArgument::Everysec } else { SyncArgument::Always })
    }

    pub fn full(&self) -> FullArgument {
        self.full.unwrap_or(if self.cache { FullArgument::Evict } else { FullArgument::Error })
    }

    pub fn tier(&self) -> TierSize {
        match self.tier {
            None if self.cache => TierSize::Half,
            bytes => TierSize::Bytes(bytes.unwrap_or(0)),
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SyncArgument {
    /// When it is durable
    Always,
    /// At once; made durable every second: a kill or a power failure may lose the last one
    Everysec,
    /// At once; written every second, and made durable when a buffer is full: a kill may lose the last second, a power failure the buffers
    No,
}

impl From<SyncArgument> for tapetum::Sync {
    fn from(argument: SyncArgument) -> tapetum::Sync {
        match argument {
            SyncArgument::Always => tapetum::Sync::Always,
            SyncArgument::Everysec => tapetum::Sync::EverySecond,
            SyncArgument::No => tapetum::Sync::No,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RedundancyArgument {
    /// All drives are needed
    None,
    /// Everything is on two drives
    Mirror,
    /// What is written once has a parity, what is written in place is on two drives; three drives or more
    Raid5,
}

impl RedundancyArgument {
    pub fn redundancy(self) -> Option<tapetum::Redundancy> {
        match self {
            RedundancyArgument::None => None,
            RedundancyArgument::Mirror => Some(tapetum::Redundancy::Mirror),
            RedundancyArgument::Raid5 => Some(tapetum::Redundancy::Raid5),
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum FullArgument {
    /// New keys are refused; overwrites go on while space lasts; reads and deletes always
    Error,
    /// The coldest items make room
    Evict,
}

impl From<FullArgument> for tapetum::Full {
    fn from(argument: FullArgument) -> tapetum::Full {
        match argument {
            FullArgument::Error => tapetum::Full::Error,
            FullArgument::Evict => tapetum::Full::Evict,
        }
    }
}

impl FullArgument {
    pub fn name(self) -> &'static str {
        match self {
            FullArgument::Error => "error",
            FullArgument::Evict => "evict",
        }
    }
}

impl SyncArgument {
    pub fn name(self) -> &'static str {
        match self {
            SyncArgument::Always => "always",
            SyncArgument::Everysec => "everysec",
            SyncArgument::No => "no",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments::{Cli, Command};
    use clap::Parser;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("tapetum").chain(line.split_whitespace()))
    }

    #[track_caller]
    fn serve(options: &str) -> ServeArguments {
        match parse(&format!("serve {options}")).unwrap().command {
            Command::Serve(serve) => *serve,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_server_serves_where_it_is_told() {
        let serve = serve("--memory 64MiB --memcached unix:/x --memcached [::1]:7");
        assert_eq!((serve.memory(), serve.memcached().unwrap().len(), serve.item_size), (64 << 20, 2, None));
        assert_eq!(serve.store.path_shown(), "./tapetum-data/drive");
    }

    #[test]
    fn a_keyspace_is_of_all_listeners_or_of_one() {
        let keyspaces = |line: &str| serve(line).keyspaces().map(|names| names.join(" "));
        assert_eq!(keyspaces(""), Ok("default".into()));
        assert_eq!(keyspaces("--keyspace a"), Ok("a".into()));
        let two = "--memcached unix:/x --memcached unix:/y";
        assert_eq!(keyspaces(two), Ok("default default".into()));
        assert_eq!(keyspaces(&format!("{two} --keyspace a")), Ok("a a".into()));
        assert_eq!(keyspaces(&format!("{two} --keyspace a --keyspace b")), Ok("a b".into()));
        let error = keyspaces(&format!("{two} --keyspace a --keyspace b --keyspace c")).unwrap_err();
        assert!(error.contains("given 3 times, and --memcached 2 times: give it once for all"), "{error}");
        assert!(parse("serve --keyspace=").is_err());
    }

    #[test]
    fn what_is_out_of_range_is_refused_with_what_is_not() {
        for (said, advice) in [
            ("--item-size 0", "give 1KiB to 16MiB"),
            ("--item-size 10", "give 1KiB to 16MiB"),
            ("--item-size 256MiB", "give 1KiB to 16MiB"),
            ("--capacity 10", "give 2MiB to 8PiB"),
            ("--memory 256", "give 1MiB to 1PiB"),
            ("--memory 16000000TiB", "give 1MiB to 1PiB"),
            ("--tier 10", "or 0 for none"),
            ("--cache --slab-factor 1", "give 1.1 to 16"),
            ("--cache --slab-factor nan", "give 1.1 to 16"),
            ("--cache --slab-size 5000", "a multiple of 4KiB"),
            ("--cache --slab-size 0", "a multiple of 4KiB"),
            ("--udp --udp-rate 5GiB", "less than 4GiB"),
            ("--udp --udp-datagram 5", "508"),
            ("--idle-timeout=-1", "0..="),
            ("--idle-timeout 99999999", "0..=31536000"),
            ("--backlog 0", "1..="),
            ("--connections 0", "1..="),
            ("--threads 0", "1..="),
            ("--drive-threads 65", "0..=64"),
        ] {
            let refusal = parse(&format!("serve {said}")).unwrap_err().to_string();
            assert!(refusal.contains(advice), "{said}: {refusal}");
        }
        assert_eq!(serve("--item-size 1KiB").item_size, Some(1 << 10));
        assert!(parse("resize --capacity 10").is_err() && parse("resize --memory 10 --memcached unix:/x").is_err());
    }

    #[test]
    fn a_part_of_the_memory_that_is_more_than_all_of_it_is_named() {
        let check = |line: &str| serve(line).check_memory_parts();
        assert_eq!(check("--memory 256MiB --tier 128MiB --node-cache 16MiB --write-buffer 16MiB"), Ok(()));
        let refusal = check("--tier 1GiB").unwrap_err();
        assert!(refusal.starts_with("--tier 1GiB does not fit in --memory 256MiB"), "{refusal}");
        let refusal = check("--memory 1GiB --node-cache 1.5GiB").unwrap_err();
        assert!(refusal.starts_with("--node-cache 1.5GiB does not fit in --memory 1GiB"), "{refusal}");
        assert!(check("--memory 64MiB --write-buffer 64MiB").is_err());
    }

    #[test]
    fn a_cache_has_its_own_defaults_and_what_is_said_counts() {
        let said = |line: &str| {
            let serve = serve(line);
            (
                serve.sync().name(),
                matches!(serve.full(), FullArgument::Evict),
                serve.tier().bytes_of(serve.memory()) >> 20,
            )
        };
        assert_eq!(said("--memory 64MiB"), ("always", false, 0));
        assert_eq!(said("--memory 64MiB --cache"), ("everysec", true, 32));
        assert_eq!(said("--memory 64MiB --cache --sync no --full error --tier 8MiB"), ("no", false, 8));
    }

    #[test]
    fn the_list_of_hot_keys_lies_beside_the_data_where_something_can_be_hot() {
        let list = |line: &str| serve(line).hot_keys().map(|list| list.path.display().to_string());
        assert_eq!(list(""), None);
        assert_eq!(list("--tier 0 --hot-keys x"), None);
        assert_eq!(list("--cache").as_deref(), Some("./tapetum-data/hot-keys"));
        assert_eq!(list("--tier 8MiB --data d").as_deref(), Some("d/hot-keys"));
        assert_eq!(list("--cache --drive d/file").as_deref(), Some("d/file.hot-keys"));
        assert_eq!(list("--cache --drive d/file --hot-keys x").as_deref(), Some("x"));
        assert_eq!(list("--cache --hot-keys-every 0"), None);
    }

    #[test]
    fn what_is_said_of_a_tier_that_nobody_asked_for_is_refused_with_what_to_say() {
        for said in ["--hot-keys x", "--hot-keys-every 7", "--slab-size 1MiB", "--slab-factor 2"] {
            let refusal = parse(&format!("serve {said}")).unwrap_err().to_string();
            assert!(refusal.contains("--tier <SIZE>|--cache"), "{refusal}");
            assert!(parse(&format!("serve {said} --cache")).is_ok());
            assert!(parse(&format!("serve {said} --tier 1MiB")).is_ok());
        }
    }

    impl StoreArguments {
        fn path_shown(&self) -> String {
            self.place().path().display().to_string()
        }
    }
}
