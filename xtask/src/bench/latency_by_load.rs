//! How latencies of cold GETs grow with their rate, beside RocksDB's; drawn.

use std::time::Duration;

use super::arena::{Arena, Entrant, Load};
use super::shape::{Room, Shape};
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::chart::{Chart, Line, Scale};
use crate::results::outcome::Outcome;
use crate::results::picture::Picture;
use crate::results::series::{Series, read_quantile};

const RIVAL_THREADS: u64 = 32;
/// Parts of RocksDB's highest rate.
const LOADS: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 0.9];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, 2_000_000, 1008, Room::Ample)?;
    let rounds = arguments.number("rounds", 3)?;
    let names = ["tapetum", "rocksdb"];
    let mut arena = Arena::open(arguments, "latency-by-load", &shape, &names, &names)?;
    let about = format!("uniform GETs of {} items of {} bytes, cold", shape.items, shape.value_bytes);
    let mut outcome = Outcome::new(arguments, "latency-by-load", about);
    arena.load(0)?;
    arena.start_all(false)?;
    let entrants = [Entrant::new("tapetum", "session", 1, 128), Entrant::new("rocksdb", "get", RIVAL_THREADS, 1)];
    let entrants: Vec<Entrant> = entrants.into_iter().filter(|entrant| arena.has(entrant.contender)).collect();
    // The highest rate of the last entrant: RocksDB, or the store in a smoke run.
    let short = Load::of("c").lasting(Duration::from_millis(700));
    let most = arena.rounds(&entrants[entrants.len() - 1..], &short, rounds)?[0].throughput().median;
    let mut by_load: Vec<(f64, Vec<Series>)> = Vec::new();
    for part in LOADS {
        let rate = most * part;
        let load = Load { rate: Some(rate), ..Load::of("c") };
        let mut series = arena.rounds(&entrants, &load, rounds)?;
        series.iter_mut().for_each(|series| series.label += &format!(", {rate:.0} a second"));
        by_load.push((rate, series));
    }
    arena.end_all()?;
    outcome.picture(picture(&entrants, &by_load));
    by_load.into_iter().for_each(|(_, series)| outcome.series(series));
    outcome.end()
}

fn picture(entrants: &[Entrant], by_load: &[(f64, Vec<Series>)]) -> Picture {
    let mut lines = Vec::new();
    for (name, quantile) in [("P50", 0.5), ("P99", 0.99)] {
        for (place, entrant) in entrants.iter().enumerate() {
            let points = by_load.iter().map(|(rate, series)| (*rate, series[place].spread(read_quantile(quantile))));
            lines.push(Line::new(format!("{} {name}", entrant.contender), points));
        }
    }
    let axes = ["GETs a second", "microseconds"];
    Picture::new("latency-by-load", vec![Chart::new("Latency of cold GETs by load", axes, Scale::Logarithmic, lines)])
}
