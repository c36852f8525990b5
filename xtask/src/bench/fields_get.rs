//! Two fields of a large value (nKV's figure 7), by four stacks: RocksDB's Get and the host takes the value apart; the store's get, and the
//! host does; the drive does, on the thread that asks; a unit of the drive does. Caches are tiny.

use std::time::Duration;

use tapetum_bench::turn::Report;

use super::arena::{Arena, Entrant, Load};
use super::ordered::shape_of;
use super::outcome::{Outcome, Reach};
use super::peers::{ON_UNIT, ORDERED};
use super::series::Series;
use crate::Failure;
use crate::arguments::Arguments;

const VALUE_BYTES: u64 = 16 << 10;
/// The least of the store's rate at the drive ÷ RocksDB's.
const LEAST: f64 = 1.4;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = shape_of(arguments, 60_000, VALUE_BYTES)?;
    let rounds = arguments.number("rounds", 7)?;
    let names = ["tapetum", ON_UNIT, ORDERED, "rocksdb"];
    let mut arena = Arena::open(arguments, "fields-get", &shape, &names, &names)?;
    let about = format!("two fields of one of {} values of {} bytes", shape.items, shape.value_bytes);
    println!("fields-get: {about}");
    let mut outcome = Outcome::new(arguments, "fields-get", about);
    arena.load(0)?;
    arena.start_all(false)?;
    let load = Load::of("c");
    let ways = [("tapetum", "fields"), (ON_UNIT, "fields"), ("tapetum", "fields-host"), (ORDERED, "fields")];
    let candidates = ways.into_iter().chain([("rocksdb", "fields")]).map(|(name, api)| {
        let threads: &[u64] = if name == "rocksdb" { &[2, 4, 8, 16] } else { &[2, 4, 8] };
        threads.iter().map(|threads| Entrant::new(name, api, *threads, 1)).collect()
    });
    let mut entrants = arena.best_of(candidates.collect(), &load.clone().lasting(Duration::from_millis(500)), 2)?;
    // One after the other as well: what a single answer takes.
    for alone in entrants.clone() {
        entrants.push(Entrant::new(alone.contender, alone.api, 1, 1));
    }
    let series = arena.rounds(&entrants, &load, rounds)?;
    arena.end_all()?;
    let (many, alone) = series.split_at(series.len() / 2);
    hold(&mut outcome, "many threads", &entrants, many);
    hold(&mut outcome, "one thread", &entrants, alone);
    outcome.series(series);
    outcome.end()
}

/// Holds each way of the store beside RocksDB's, which is the last.
fn hold(outcome: &mut Outcome, load: &str, entrants: &[Entrant], series: &[Series]) {
    let Some((rocksdb, others)) = series.split_last() else { return };
    if !rocksdb.label.starts_with("rocksdb") {
        return;
    }
    for (entrant, own) in entrants.iter().zip(others) {
        let label = format!("{load}, {} {}", entrant.contender, entrant.api);
        let is_held = entrant.api == "fields" && entrant.contender != ORDERED;
        let reach = if is_held { Reach::AtLeast(LEAST) } else { Reach::Reported };
        outcome.hold(format!("{label}: gets ÷ rocksdb's"), own.ratio(rocksdb, Report::operations_per_second), reach);
        let cpu = own.ratio(rocksdb, Report::cpu_us_per_operation);
        outcome.hold(format!("{label}: CPU ÷ rocksdb's"), cpu, Reach::Reported);
    }
}
