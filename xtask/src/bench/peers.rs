//! The contenders' binaries: the store's and the limit's in this workspace, each rival's in one of its own
//! (`crates/bench/peers`), which is built only when a row needs it: RocksDB compiles for twenty minutes, once.

use std::path::PathBuf;
use std::process::Command;

use tapetum_bench::turn::{Length, Turn};

use crate::Failure;
use crate::workspace;

const OURS: [&str; 2] = ["tapetum", "limit"];

/// Builds what is needed for these contenders, and says where each is.
pub fn binaries(names: &[&'static str]) -> Result<Vec<(&'static str, PathBuf)>, Failure> {
    let ours = names.iter().any(|name| OURS.contains(name));
    let theirs = names.iter().any(|name| !OURS.contains(name));
    if ours {
        build(&["--package", "tapetum-bench"], None)?;
    }
    let peers = workspace::root().join("crates/bench/peers");
    if theirs {
        build(&["--manifest-path", &peers.join("Cargo.toml").to_string_lossy()], Some(peers_target()))?;
    }
    let place = |name: &'static str| {
        let target = if OURS.contains(&name) { workspace::target() } else { peers_target() };
        (name, target.join("release").join(format!("contender-{name}")))
    };
    Ok(names.iter().map(|name| place(name)).collect())
}

/// A target folder of their own: their profile is not ours, and they stay built when ours is cleaned.
fn peers_target() -> PathBuf {
    match std::env::var_os("PEERS_TARGET_DIR") {
        Some(folder) => workspace::root().join(folder),
        None => workspace::target().join("peers"),
    }
}

fn build(which: &[&str], target: Option<PathBuf>) -> Result<(), Failure> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(workspace::root()).args(["build", "--release", "--locked", "--quiet", "--bins"]).args(which);
    if let Some(target) = target {
        if !target.join("release").exists() {
            println!("building the rivals in {}: some twenty minutes, once", target.display());
        }
        cargo.env("CARGO_TARGET_DIR", target);
    }
    if cargo.status()?.success() { Ok(()) } else { Err("the contenders do not build; cargo's message is above".into()) }
}

/// How a contender overwrites most quickly when nobody measures.
pub fn overwrite(name: &str, writes: u64) -> Turn {
    let (api, threads, depth) = if name == "tapetum" { ("session", 1, 512) } else { ("get", 8, 1) };
    Turn {
        mix: "write".into(),
        distribution: "uniform".into(),
        api: api.into(),
        threads,
        depth,
        length: Length::Operations(writes),
        rate: None,
        seed: 77,
    }
}
