//! YCSB's workloads A to F, each with the distribution that YCSB gives it or with one for all: the store beside RocksDB, with and
//! without BlobDB, and LMDB, each as it is fastest. A hashed store has no order of keys, so nobody stands for it in E.

use std::time::Duration;

use super::arena::{Arena, Entrant, Load, Shape};
use super::outcome::Outcome;
use crate::Failure;
use crate::arguments::Arguments;

/// Name, and what is wanted most in it.
const WORKLOADS: [(&str, &str); 6] =
    [("a", "zipfian"), ("b", "zipfian"), ("c", "zipfian"), ("d", "latest"), ("e", "zipfian"), ("f", "zipfian")];
const DISTRIBUTIONS: [&str; 3] = ["uniform", "zipfian", "latest"];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, 1_000_000, 1008)?;
    // Copies of what is wanted most; the rivals have their block caches in the same memory.
    let tier_bytes = arguments.size("tier", shape.memory_bytes / 2)?;
    let shape = Shape { tier_bytes, ..shape };
    let rounds = arguments.number("rounds", 5)?;
    let workloads = workloads(arguments.text("mixes"), arguments.text("distribution"))?;
    let names = ["tapetum", "rocksdb", "rocksdb-blob", "lmdb"];
    let mut arena = Arena::open(arguments, "ycsb", &shape, &names, &names[..3])?;
    let about = format!("YCSB, {} items of {} bytes, sync off", shape.items, shape.value_bytes);
    println!("ycsb: {about}");
    arena.load(0)?;
    arena.start_all(false)?;
    let mut outcome = Outcome::new(arguments, "ycsb", about);
    for (mix, distribution) in workloads {
        let load = Load { distribution, ..Load::of(mix) };
        let candidates = candidates().into_iter().filter(|group| mix != "e" || group[0].contender != "tapetum");
        let entrants = arena.best_of(candidates.collect(), &load.clone().lasting(Duration::from_millis(700)), 2)?;
        let series = arena.rounds(&entrants, &load, rounds)?;
        outcome.beside(&format!("{}, {distribution}", mix.to_uppercase()), &entrants, series);
    }
    arena.end_all()?;
    outcome.end()
}

/// Those of `mixes` (such as `abf`), or all; with one distribution, or each with its own.
fn workloads(mixes: Option<&str>, distribution: Option<&str>) -> Result<Vec<(&'static str, &'static str)>, Failure> {
    let chosen = match distribution {
        None => None,
        Some(text) => Some(
            *DISTRIBUTIONS
                .iter()
                .find(|name| **name == text)
                .ok_or_else(|| format!("there is no distribution {text}; there are {}", DISTRIBUTIONS.join(", ")))?,
        ),
    };
    let of = |mix: char| {
        let workload = WORKLOADS.iter().find(|(name, _)| name.starts_with(mix));
        let (name, own) = workload.ok_or_else(|| format!("there is no workload {mix}; there are a to f"))?;
        Ok((*name, chosen.unwrap_or(own)))
    };
    mixes.unwrap_or("abcdef").chars().map(of).collect()
}

/// The best of each group stands for its contender.
fn candidates() -> Vec<Vec<Entrant>> {
    let by_threads = |name, threads: &[u64]| threads.iter().map(|&count| Entrant::new(name, "get", count, 1)).collect();
    vec![
        [(1, 128), (1, 512), (2, 128)]
            .map(|(threads, depth)| Entrant::new("tapetum", "session", threads, depth))
            .into(),
        by_threads("rocksdb", &[8, 16, 32, 64]),
        by_threads("rocksdb-blob", &[8, 16, 32, 64]),
        by_threads("lmdb", &[4, 8, 16]),
    ]
}
