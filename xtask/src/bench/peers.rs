//! The contenders' binaries: the store's and the limit's in this workspace, each rival's in one of its own
//! (`crates/bench/peers`), which is built only when a row needs it: RocksDB compiles for twenty minutes, once.

use std::path::PathBuf;
use std::process::Command;

use tapetum_bench::turn::{Length, Turn};

use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace::{self, cargo, succeed};

/// The store with the device half of its drive on a thread of its own.
pub const ON_DRIVE_THREAD: &str = "tapetum-drive-thread";

/// The store with one and two compute units for each program of queries.
pub const ON_UNIT: &str = "tapetum-unit";
pub const ON_UNITS: &str = "tapetum-units";

/// The store with the items in an ordered keyspace, for which it has a cache as large as the rest of its memory.
pub const ORDERED: &str = "tapetum-ordered";
/// The same with next to no cache.
pub const ORDERED_UNCACHED: &str = "tapetum-ordered-uncached";
/// The first with one and two threads of the drive's own.
pub const ORDERED_ON_ONE: &str = "tapetum-ordered-drive-thread";
pub const ORDERED_ON_TWO: &str = "tapetum-ordered-drive-threads";
/// `tapetum serve` with a block device beside the items, exported to a client that asks for nothing.
pub const EXPORTING: &str = "server-exporting";
const EXPORT_BYTES: u64 = 1 << 30;
/// As few cached nodes as operations go on with.
const NODE_CACHE_BYTES_LEAST: u64 = 256 << 10;

/// The package of each rival.
const PEERS: [(&str, &str); 4] = [
    ("rocksdb", "peer-rocksdb"),
    ("rocksdb-blob", "peer-rocksdb"),
    ("rocksdb-plain", "peer-rocksdb"),
    ("lmdb", "peer-lmdb"),
];

/// Builds what is needed for these contenders, and says where each is. A smoke run has them built already, but for the rivals.
pub fn binaries(arguments: &Arguments, names: &[&'static str]) -> Result<Vec<(&'static str, PathBuf)>, Failure> {
    let binary = |name: &str| {
        let name = match name {
            EXPORTING => "server",
            name if name.starts_with("tapetum") => "tapetum",
            name => name,
        };
        match arguments.smoke_binaries() {
            Some(folder) => Ok(folder.join(format!("contender-{name}"))),
            None => build_binary(name),
        }
    };
    names.iter().map(|name| Ok((*name, binary(name)?))).collect()
}

fn build_binary(name: &str) -> Result<PathBuf, Failure> {
    let peer = PEERS.iter().find(|(peer, _)| *peer == name);
    let target = match peer {
        None => {
            build(&["--package", "tapetum-bench", "--package", "tapetum-server"], None)?;
            workspace::target()
        }
        Some((_, package)) => {
            // One by one: together they would share features, and RocksDB be compiled again for another's sake.
            let manifest = workspace::root().join("crates/bench/peers/Cargo.toml");
            build(&["--manifest-path", &manifest.to_string_lossy(), "--package", package], Some(peers_target()))?;
            peers_target()
        }
    };
    Ok(target.join("release").join(format!("contender-{name}")))
}

/// memcached's own path from key to reply, in a process that is asked in its place: builds it and says where it is.
pub fn memcached_core() -> Result<PathBuf, Failure> {
    let folder = peers_target().join("memcached");
    succeed(
        Command::new(workspace::root().join("crates/bench/peers/memcached/build")).arg(&folder),
        "memcached's source does not build (make setup-bench installs what it needs); why is above",
    )?;
    Ok(folder.join("memcached-core"))
}

/// A target folder of their own: their profile is not ours, and they stay built when ours is cleaned.
fn peers_target() -> PathBuf {
    match std::env::var_os("PEERS_TARGET_DIR") {
        Some(folder) => workspace::root().join(folder),
        None => workspace::target().join("peers"),
    }
}

fn build(which: &[&str], target: Option<PathBuf>) -> Result<(), Failure> {
    let mut cargo = cargo(&["build", "--release", "--locked", "--quiet", "--bins"]);
    cargo.args(which);
    if let Some(target) = target {
        if !target.join("release").exists() {
            println!("building the rivals in {}: some twenty minutes, once", target.display());
        }
        cargo.env("CARGO_TARGET_DIR", target);
    }
    succeed(&mut cargo, "the contenders do not build; cargo's message is above")
}

/// Those that are asked over sockets, by one client thread with many connections.
pub fn is_server(name: &str) -> bool {
    ["server", "server-other", EXPORTING, "memcached", "extstore"].contains(&name)
}

/// Threads of the drive's own that this one has.
pub fn drive_threads(name: &str) -> u64 {
    match name {
        ON_DRIVE_THREAD | ORDERED_ON_ONE => 1,
        ORDERED_ON_TWO => 2,
        _ => 0,
    }
}

/// Compute units that each program of queries has there.
pub fn compute_units(name: &str) -> u64 {
    match name {
        ON_UNIT => 1,
        ON_UNITS => 2,
        _ => 0,
    }
}

/// What this one has for cached nodes, if its items are in an ordered keyspace.
pub fn node_cache_bytes(name: &str, memory_bytes: u64) -> Option<u64> {
    match name {
        ORDERED | ORDERED_ON_ONE | ORDERED_ON_TWO => Some(memory_bytes),
        ORDERED_UNCACHED => Some(NODE_CACHE_BYTES_LEAST),
        _ => None,
    }
}

/// The size of the block device that this one exports.
pub fn export_bytes(name: &str) -> u64 {
    if name == EXPORTING { EXPORT_BYTES } else { 0 }
}

/// What such a one loaded is gone when it ends.
pub fn keeps_nothing(name: &str) -> bool {
    ["memcached", "extstore"].contains(&name)
}

/// How a contender overwrites most quickly when nobody measures.
pub fn overwrite(name: &str, writes: u64) -> Turn {
    let (api, ways) = if name.starts_with("tapetum") { ("session", (1, 512)) } else { ("get", (8, 1)) };
    Turn::uniform(("write", api), ways, Length::Operations(writes), 77)
}
