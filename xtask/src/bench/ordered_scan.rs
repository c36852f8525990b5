//! Scans of a hundred items from a random key, cold: an ordered keyspace beside RocksDB, then both again when nine of ten keys were
//! deleted.

use tapetum_bench::turn::Report;

use super::arena::{Arena, Entrant, Load};
use super::ordered::shape;
use super::outcome::{Outcome, Reach};
use super::peers::ORDERED;
use crate::Failure;
use crate::arguments::Arguments;
use std::time::Duration;

/// What a value of up to so many bytes is called small.
const SMALL_BYTES: u64 = 256;
/// The least that the store's scans a second are to be ÷ RocksDB's: of small values, of others, and when most keys were deleted.
const SMALL_LEAST: f64 = 1.0;
const LARGE_LEAST: f64 = 0.5;
const DELETED_LEAST: f64 = 5.0;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = shape(arguments, 2_000_000)?;
    let rounds = arguments.number("rounds", 9)?;
    let names = [ORDERED, "rocksdb", "rocksdb-plain"];
    let mut arena = Arena::open(arguments, "ordered-scan", &shape, &names, &[ORDERED, "rocksdb"])?;
    let about = format!("scans of 100 of {} items of {} bytes", shape.items, shape.value_bytes);
    println!("ordered-scan: {about}");
    let mut outcome = Outcome::new(arguments, "ordered-scan", about);
    arena.load(0)?;
    arena.start_all(false)?;
    let least = if shape.value_bytes <= SMALL_BYTES { SMALL_LEAST } else { LARGE_LEAST };
    scans(&mut arena, &mut outcome, "all keys", rounds, least)?;
    arena.remove(0, shape.items / 10 * 9)?;
    scans(&mut arena, &mut outcome, "a tenth of the keys", rounds, DELETED_LEAST)?;
    arena.end_all()?;
    outcome.end()
}

fn scans(arena: &mut Arena, outcome: &mut Outcome, named: &str, rounds: u64, least: f64) -> Result<(), Failure> {
    let load = Load::of("scan");
    let rivals = |name| [2, 4, 8, 16].map(|threads| Entrant::new(name, "get", threads, 1)).into();
    let candidates = vec![
        [(1, 4), (1, 16), (1, 64), (2, 16)]
            .map(|(threads, depth)| Entrant::new(ORDERED, "session", threads, depth))
            .into(),
        rivals("rocksdb"),
        rivals("rocksdb-plain"),
    ];
    let entrants = arena.best_of(candidates, &load.clone().lasting(Duration::from_millis(700)), 2)?;
    let mut series = arena.rounds(&entrants, &load, rounds)?;
    if entrants[0].contender == ORDERED {
        for (entrant, other) in entrants.iter().zip(&series).skip(1) {
            let (name, first) = (entrant.contender, &series[0]);
            let rate = first.ratio(other, Report::operations_per_second);
            outcome.hold(format!("{named}: scans a second ÷ {name}'s"), rate, Reach::AtLeast(least));
            let cpu = first.ratio(other, Report::cpu_us_per_operation);
            outcome.hold(format!("{named}: CPU of a scan ÷ {name}'s"), cpu, Reach::Reported);
        }
    }
    series.iter_mut().for_each(|series| series.label = format!("{named}: {}", series.label));
    outcome.series(series);
    Ok(())
}
