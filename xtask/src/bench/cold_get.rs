//! Random reads of a store far larger than its memory: against the raw limit of the disk, and against RocksDB's two ways.

use std::time::Duration;

use tapetum_bench::turn::Report;

use super::arena::{Arena, Entrant, Load, Shape};
use super::outcome::{Outcome, Reach};
use super::series::Series;
use crate::Failure;
use crate::arguments::Arguments;

const VALUE_BYTES: u64 = 1008;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, 5_000_000, VALUE_BYTES)?;
    let rounds = arguments.number("rounds", 15)?;
    let names = ["tapetum", "limit", "rocksdb"];
    let mut arena = Arena::open(arguments, "cold-get", &shape, &names, &names)?;
    let about = format!("uniform GETs of {} items of {} bytes", shape.items, shape.value_bytes);
    println!("cold-get: {about}");
    arena.load(0)?;
    arena.start_all(false)?;

    let short = Load::of("c").lasting(Duration::from_millis(400));
    let entrants = arena.best_of(
        vec![
            [64, 128, 256].map(|depth| Entrant::new("tapetum", "session", 1, depth)).into(),
            [32, 64, 128, 256].map(|depth| Entrant::new("limit", "read", 1, depth)).into(),
            [4, 8, 16, 32, 64].map(|threads| Entrant::new("rocksdb", "get", threads, 1)).into(),
            [(1, 32), (1, 128), (2, 64), (4, 32), (8, 32)]
                .map(|(threads, batch)| Entrant::new("rocksdb", "multiget", threads, batch))
                .into(),
        ],
        &short,
        2,
    )?;
    let series = arena.rounds(&entrants, &Load::of("c"), rounds)?;
    arena.end_all()?;

    let find = |contender: &str, api: &str| {
        entrants.iter().zip(&series).find(|(entrant, _)| entrant.contender == contender && entrant.api == api)
    };
    let find = |contender: &str, api: &str| find(contender, api).map(|(_, series)| series);
    let mut outcome = Outcome::new(arguments, "cold-get", about);
    if let Some(tapetum) = find("tapetum", "session") {
        hold(&mut outcome, tapetum, find("limit", "read"), find("rocksdb", "get"), find("rocksdb", "multiget"));
    }
    outcome.series(series);
    outcome.end()
}

fn hold(
    outcome: &mut Outcome,
    tapetum: &Series,
    limit: Option<&Series>,
    get: Option<&Series>,
    multi_get: Option<&Series>,
) {
    let rate = Report::operations_per_second;
    outcome.hold("CPU µs an operation", tapetum.cpu_us(), Reach::AtMost(3.0));
    if let Some(limit) = limit {
        outcome.hold("IOPS ÷ the limit's", tapetum.ratio(limit, rate), Reach::AtLeast(0.9));
        outcome.hold("the limit's CPU µs an operation", limit.cpu_us(), Reach::Reported);
    }
    if let Some(get) = get {
        outcome.hold(
            "CPU an operation ÷ RocksDB Get's",
            tapetum.ratio(get, Report::cpu_us_per_operation),
            Reach::AtMost(0.25),
        );
        outcome.hold("operations/s ÷ RocksDB Get's", tapetum.ratio(get, rate), Reach::AtLeast(1.6));
    }
    if let Some(multi_get) = multi_get {
        // Or 0.9 of the limit, which stands above.
        let reach = match limit.map(|limit| tapetum.ratio(limit, rate).median) {
            Some(ratio) if ratio >= 0.9 => Reach::Reported,
            _ => Reach::AtLeast(1.3),
        };
        outcome.hold("operations/s ÷ RocksDB MultiGet's", tapetum.ratio(multi_get, rate), reach);
    }
}
