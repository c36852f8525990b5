//! The contenders' binaries: the store's and the limit's are in this workspace; each rival has its own (`crates/bench/peers`), which is
//! built only when a row needs it, because compiling RocksDB takes twenty minutes.

use std::path::PathBuf;
use std::process::Command;

use tapetum_bench::turn::{Length, Turn};

use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace::{self, cargo, succeed};

/// The store with the device half of its drive on a separate thread.
pub const ON_DRIVE_THREAD: &str = "tapetum-drive-thread";

/// The store with its drive in a process of its own.
pub const DRIVE_PROCESS: &str = "tapetum-drive-process";
/// The same, and that polls for a few microseconds before it sleeps.
pub const DRIVE_PROCESS_POLLING: &str = "tapetum-drive-process-polling";

/// The store with one and two compute units for each program of queries.
pub const ON_UNIT: &str = "tapetum-unit";
pub const ON_UNITS: &str = "tapetum-units";

/// The store with the items in an ordered keyspace, with a cache as large as the rest of its memory.
pub const ORDERED: &str = "tapetum-ordered";
/// `ORDERED` of another tree.
pub const ORDERED_OTHER: &str = "tapetum-ordered-other";
/// `ORDERED` with almost no cache.
pub const ORDERED_UNCACHED: &str = "tapetum-ordered-uncached";
/// `ORDERED` with one and two drive threads.
pub const ORDERED_ON_ONE: &str = "tapetum-ordered-drive-thread";
pub const ORDERED_ON_TWO: &str = "tapetum-ordered-drive-threads";
/// `tapetum serve` with a block device beside the items, exported to an idle client.
pub const EXPORTING: &str = "server-exporting";
const EXPORT_BYTES: u64 = 1 << 30;
/// The least cache of nodes with which operations can run.
const NODE_CACHE_BYTES_LEAST: u64 = 256 << 10;

/// The package of each rival.
const PEERS: [(&str, &str); 4] = [
    ("rocksdb", "peer-rocksdb"),
    ("rocksdb-blob", "peer-rocksdb"),
    ("rocksdb-plain", "peer-rocksdb"),
    ("lmdb", "peer-lmdb"),
];

/// Builds the binaries of these contenders and returns their paths. In a smoke run they are already built, except rivals'.
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
            // One by one: built together they would share features, and RocksDB would be compiled again for another rival.
            let manifest = workspace::root().join("crates/bench/peers/Cargo.toml");
            build(&["--manifest-path", &manifest.to_string_lossy(), "--package", package], Some(peers_target()))?;
            peers_target()
        }
    };
    Ok(target.join("release").join(format!("contender-{name}")))
}

/// Builds memcached's own path from key to reply, as a process, and returns its path.
pub fn memcached_core() -> Result<PathBuf, Failure> {
    let folder = peers_target().join("memcached");
    succeed(
        Command::new(workspace::root().join("crates/bench/peers/memcached/build")).arg(&folder),
        "memcached's source does not build (make setup-bench installs what it needs); why is above",
    )?;
    Ok(folder.join("memcached-core"))
}

/// Their own target folder: their profile differs from ours, and they survive a cleaning of ours.
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

/// Whether the contender is asked over sockets, by one client thread with many connections.
pub fn is_server(name: &str) -> bool {
    ["server", "server-other", EXPORTING, "memcached", "extstore"].contains(&name)
}

/// Number of drive threads of this contender.
pub fn drive_threads(name: &str) -> u64 {
    match name {
        ON_DRIVE_THREAD | ORDERED_ON_ONE => 1,
        ORDERED_ON_TWO => 2,
        _ => 0,
    }
}

/// How often the drive's process polls, for a contender that has one.
pub fn drive_process(name: &str) -> Option<u32> {
    match name {
        DRIVE_PROCESS => Some(0),
        DRIVE_PROCESS_POLLING => Some(1000),
        _ => None,
    }
}

/// Number of compute units for each program of queries, for this contender.
pub fn compute_units(name: &str) -> u64 {
    match name {
        ON_UNIT => 1,
        ON_UNITS => 2,
        _ => 0,
    }
}

/// Cache of nodes of this contender, if its items are in an ordered keyspace.
pub fn node_cache_bytes(name: &str, memory_bytes: u64) -> Option<u64> {
    match name {
        ORDERED | ORDERED_OTHER | ORDERED_ON_ONE | ORDERED_ON_TWO => Some(memory_bytes),
        ORDERED_UNCACHED => Some(NODE_CACHE_BYTES_LEAST),
        _ => None,
    }
}

/// Size of the block device that this contender exports.
pub fn export_bytes(name: &str) -> u64 {
    if name == EXPORTING { EXPORT_BYTES } else { 0 }
}

/// Whether the contender loses its items when it ends.
pub fn keeps_nothing(name: &str) -> bool {
    ["memcached", "extstore"].contains(&name)
}

/// The fastest way to overwrite for this contender, for turns that are not measured.
pub fn overwrite(name: &str, writes: u64) -> Turn {
    let (api, threads, depth) = if name.starts_with("tapetum") { ("session", 1, 512) } else { ("get", 8, 1) };
    Turn::uniform("write", api, threads, depth, Length::Operations(writes), 77)
}
