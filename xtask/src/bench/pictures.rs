//! The two pictures of docs/BENCHMARKS.md: how throughput grows with what is asked at once, and how latencies grow with load.

use std::time::Duration;

use super::arena::{Arena, Entrant, Load, Shape};
use super::outcome::Outcome;
use super::picture::{self, Chart, Line, Scale};
use super::series::{Series, read_quantile};
use crate::Failure;
use crate::arguments::Arguments;

const TOGETHER: [u64; 7] = [1, 4, 8, 16, 32, 64, 128];
/// Parts of what RocksDB serves at most.
const LOADS: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 0.9];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, 2_000_000, 1008)?;
    let rounds = arguments.number("rounds", 3)?;
    let names = ["tapetum", "limit", "rocksdb", "rocksdb-blob", "lmdb"];
    let mut arena = Arena::open(arguments, "pictures", &shape, &names, &names)?;
    let about = format!("uniform GETs of {} items of {} bytes, cold", shape.items, shape.value_bytes);
    println!("pictures: {about}");
    arena.load(0)?;
    arena.start_all(false)?;
    let mut outcome = Outcome::new(arguments, "pictures", about.clone());
    let most = throughput(arguments, &mut arena, (rounds, &about), &mut outcome)?;
    if arena.has("tapetum") && arena.has("rocksdb") {
        latencies(arguments, &mut arena, (rounds, most), &mut outcome)?;
    }
    arena.end_all()?;
    outcome.end()
}

/// A line of the first picture, and its entrant at each place.
type Way = (&'static str, fn(u64) -> Entrant);

/// Draws it; the most that RocksDB's Get reached.
fn throughput(
    arguments: &Arguments,
    arena: &mut Arena,
    (rounds, about): (u64, &str),
    outcome: &mut Outcome,
) -> Result<f64, Failure> {
    let ways: [Way; 6] = [
        ("tapetum, one thread", |depth| Entrant::new("tapetum", "session", 1, depth)),
        ("the limit, one thread", |depth| Entrant::new("limit", "read", 1, depth)),
        ("RocksDB Get, threads", |threads| Entrant::new("rocksdb", "get", threads, 1)),
        ("RocksDB MultiGet, one thread", |depth| Entrant::new("rocksdb", "multiget", 1, depth.max(2))),
        ("BlobDB Get, threads", |threads| Entrant::new("rocksdb-blob", "get", threads, 1)),
        ("LMDB, threads", |threads| Entrant::new("lmdb", "get", threads, 1)),
    ];
    let ways: Vec<_> = ways.into_iter().filter(|(_, entrant)| arena.has(entrant(1).contender)).collect();
    let entrants: Vec<Entrant> = ways.iter().flat_map(|(_, entrant)| TOGETHER.map(entrant)).collect();
    let series = arena.rounds(&entrants, &Load::of("c").lasting(Duration::from_millis(700)), rounds)?;
    let lines: Vec<Line> = ways
        .iter()
        .zip(series.chunks(TOGETHER.len()))
        .map(|((label, _), series)| {
            let rates = series.iter().map(|series| series.throughput().median);
            let points = TOGETHER.iter().map(|count| *count as f64).zip(rates).collect();
            Line { label: (*label).to_owned(), points }
        })
        .collect();
    let title = format!("Throughput: {about}");
    let x_label = "threads, or operations on their way in one thread";
    picture::save(arguments, "throughput.svg", &chart(&title, x_label, "operations a second", lines))?;
    let get = series.iter().filter(|series| series.label.starts_with("rocksdb get"));
    let most = get.map(|series| series.throughput().median).fold(0.0, f64::max);
    outcome.series(series);
    Ok(most)
}

fn latencies(
    arguments: &Arguments,
    arena: &mut Arena,
    (rounds, most): (u64, f64),
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let entrants = [Entrant::new("tapetum", "session", 1, 128), Entrant::new("rocksdb", "get", 32, 1)];
    let mut by_load: Vec<(f64, Vec<Series>)> = Vec::new();
    for part in LOADS {
        let rate = most * part;
        let load = Load { rate: Some(rate), ..Load::of("c") };
        let mut series = arena.rounds(&entrants, &load, rounds)?;
        series.iter_mut().for_each(|series| series.label += &format!(", {rate:.0} a second"));
        by_load.push((rate, series));
    }
    let mut lines = Vec::new();
    for (name, quantile) in [("P50", 0.5), ("P99", 0.99), ("P99.9", 0.999)] {
        for (place, contender) in ["tapetum", "RocksDB Get"].into_iter().enumerate() {
            let points =
                by_load.iter().map(|(rate, series)| (*rate, series[place].spread(read_quantile(quantile)).median));
            lines.push(Line { label: format!("{contender} {name}"), points: points.collect() });
        }
    }
    picture::save(
        arguments,
        "latency-by-load.svg",
        &chart("Latency of cold GETs by load", "GETs a second", "microseconds", lines),
    )?;
    by_load.into_iter().for_each(|(_, series)| outcome.series(series));
    Ok(())
}

fn chart(title: &str, x_label: &str, y_label: &str, lines: Vec<Line>) -> String {
    let scale = Scale::Logarithmic;
    Chart { title, x_label, y_label, scale, lines, mark: None, notes: Vec::new() }.svg()
}
