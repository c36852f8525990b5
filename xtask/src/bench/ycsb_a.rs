//! Half reads, half overwrites, where a store is at its worst: as full as it may be, after three times as many overwrites as it
//! has items. Once with every write synced, once without, on both sides.

use std::time::Duration;

use tapetum_bench::turn::Report;

use super::arena::{Arena, Entrant, Load, Shape};
use super::outcome::{Outcome, Reach};
use crate::Failure;
use crate::arguments::Arguments;

/// What an item takes on flash beside key and value: the record's head, its entry in a key table, its part of a page's trailer.
const STORED_MORE_BYTES: u64 = 34;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut shape = Shape::parse(arguments, 5_000_000, 1008)?;
    let fill_percent = arguments.number("fill", 80)?;
    let rounds = arguments.number("rounds", 9)?;
    let overwrites = arguments.number("overwrites", 3)?;
    let stored_bytes = shape.items * (super::KEY_BYTES + shape.value_bytes + STORED_MORE_BYTES);
    shape.capacity_bytes = arguments.size("capacity", stored_bytes * 100 / fill_percent)?;
    let mut arena =
        Arena::open(arguments, "ycsb-a", &shape, &["tapetum", "rocksdb", "rocksdb-blob"], &["tapetum", "rocksdb"])?;
    let about = format!(
        "YCSB A, uniform, {} items of {} bytes, {fill_percent} % full, after {overwrites} × overwrites",
        shape.items, shape.value_bytes
    );
    println!("ycsb-a: {about}");
    arena.load(overwrites)?;
    let mut outcome = Outcome::new(arguments, "ycsb-a", about);
    for (sync, named) in [(false, "sync off"), (true, "every write synced")] {
        arena.start_all(sync)?;
        let sweep = Load::of("a").lasting(Duration::from_millis(1500));
        let entrants = arena.best_of(candidates(), &sweep, 2)?;
        let mut series = arena.rounds(&entrants, &Load::of("a").lasting(Duration::from_secs(3)), rounds)?;
        arena.end_all()?;
        if let Some((tapetum, rivals)) = series.split_first().filter(|_| entrants[0].contender == "tapetum") {
            for rival in rivals {
                let what = format!("operations/s ÷ {}, {named}", rival.label);
                outcome.hold(what, tapetum.ratio(rival, Report::operations_per_second), Reach::AtLeast(2.0));
            }
        }
        series.iter_mut().for_each(|series| series.label += &format!(", {named}"));
        outcome.series(series);
    }
    outcome.end()
}

/// The best of each group stands for its contender.
fn candidates() -> Vec<Vec<Entrant>> {
    let threads = [8, 16, 32, 64];
    vec![
        [(1, 128), (1, 512), (2, 128), (2, 512)]
            .map(|(threads, depth)| Entrant::new("tapetum", "session", threads, depth))
            .into(),
        threads
            .map(|threads| Entrant::new("rocksdb", "get", threads, 1))
            .into_iter()
            .chain([(4, 32), (16, 32)].map(|(threads, batch)| Entrant::new("rocksdb", "multiget", threads, batch)))
            .collect(),
        threads.map(|threads| Entrant::new("rocksdb-blob", "get", threads, 1)).into(),
    ]
}
