//! How long reads take while both sides take the same writes: half of the most that RocksDB takes. Reads come at a steady rate,
//! and each counts from when it was due.

use std::time::Duration;

use super::arena::{Arena, Entrant, Load};
use super::shape::{Room, Shape};
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::series::read_quantile;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, 5_000_000, 1008, Room::Ample)?;
    let rounds = arguments.number("rounds", 9)?;
    let reads = arguments.number("reads-per-second", 5000)? as f64;
    let names = ["tapetum", "rocksdb"];
    let mut arena = Arena::open(arguments, "read-latency", &shape, &names, &names)?;
    let about = format!(
        "{reads:.0} reads a second of {} items of {} bytes, beside half of the most overwrites that RocksDB takes",
        shape.items, shape.value_bytes
    );
    let mut outcome = Outcome::new(arguments, "read-latency", about);
    arena.load(1)?;
    arena.start_all(false)?;

    // The most it takes for half a minute, not what its buffers swallow.
    let threads = ["rocksdb", "tapetum"].into_iter().find(|name| arena.has(name)).map_or(Vec::new(), |name| {
        let api = if name == "rocksdb" { "get" } else { "blocking" };
        [4, 8, 16].map(|threads| Entrant::new(name, api, threads, 1)).into()
    });
    let written = arena.rounds(&threads, &Load::of("write").lasting(Duration::from_secs(5)), 3)?;
    let most = written.iter().map(|series| series.throughput().median).fold(0.0, f64::max);
    let writes = most / 2.0;

    let load = Load { rate: Some(reads), overwrites: Some(writes), ..Load::of("c").lasting(Duration::from_secs(4)) };
    let entrants = [Entrant::new("tapetum", "session", 1, 256), Entrant::new("rocksdb", "get", 16, 1)];
    let entrants: Vec<Entrant> = entrants.into_iter().filter(|entrant| arena.has(entrant.contender)).collect();
    let series = arena.rounds(&entrants, &load, rounds)?;
    arena.end_all()?;
    outcome.report("overwrites a second", writes);
    for (name, quantile, reach) in
        [("P50", 0.5, Reach::Reported), ("P99", 0.99, Reach::Reported), ("P99.9", 0.999, Reach::AtMost(0.25))]
    {
        if let [tapetum, rocksdb] = &series[..] {
            outcome.hold(
                format!("{name} of reads ÷ RocksDB's"),
                tapetum.ratio(rocksdb, read_quantile(quantile)),
                reach,
            );
        }
    }
    outcome.series(series);
    outcome.end()
}
