//! The store beside its rivals and the limit: `cargo x bench ROW`, a row of docs/BENCHMARKS.md each. The contenders are
//! processes of their own (crates/bench) that load the same items and then run in turns.

mod arena;
mod beside;
mod blocking_get;
mod cold_get;
mod contender;
mod delta_lookup;
mod dram;
mod dram_get;
mod extstore;
mod floods;
mod hit_rate;
mod latency;
mod load;
mod memcached_get;
mod memcaslap;
mod misses;
mod outcome;
mod packets;
mod peers;
pub mod picture;
mod pictures;
mod quick;
mod read_latency;
mod series;
mod stalls;
mod trees;
mod ycsb;
mod ycsb_a;

use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace;

/// Of every key.
const KEY_BYTES: u64 = 16;

type Row = fn(&Arguments) -> Result<(), Failure>;

const ROWS: [(&str, Row); 20] = [
    ("quick", quick::run),
    ("cold-get", cold_get::run),
    ("ycsb", ycsb::run),
    ("ycsb-a", ycsb_a::run),
    ("read-latency", read_latency::run),
    ("load", load::run),
    ("blocking-get", blocking_get::run),
    ("memcached-get", memcached_get::run),
    ("misses", misses::run),
    ("dram-get", dram_get::run),
    ("packets", packets::run),
    ("hit-rate", hit_rate::run),
    ("latency", latency::run),
    ("extstore", extstore::run),
    ("memcaslap", memcaslap::run),
    ("delta-lookup", delta_lookup::run),
    ("floods", floods::run),
    ("pictures", pictures::run),
    ("beside", beside::run),
    ("trees", trees::run),
];

pub fn run(name: &str, words: &[String]) -> Result<(), Failure> {
    let Some((_, row)) = ROWS.iter().find(|(row, _)| *row == name) else {
        let names: Vec<&str> = ROWS.iter().map(|(name, _)| *name).collect();
        return Err(format!("there is no row {name}; there are {}", names.join(", ")).into());
    };
    if cfg!(debug_assertions) {
        // Some rows measure in this process.
        return workspace::again_in_release("bench", name, words);
    }
    row(&Arguments::parse(words)?)
}
