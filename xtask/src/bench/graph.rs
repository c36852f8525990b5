//! Betweenness of graphs whose edges are items (nKV's figure 6): the drive scans and computes, with none, one and two units; the store's
//! items come to the host; RocksDB's iterator feeds the same code.

use tapetum_bench::filter::RETURNED_BYTES;
use tapetum_bench::graph::TOLD;
use tapetum_bench::turn::{Length, Report};

use super::arena::{Arena, Entrant, Load};
use super::ordered::shape_of;
use super::outcome::{Outcome, Reach};
use super::peers::{ON_UNIT, ON_UNITS, ORDERED};
use super::series::{Series, Spread};
use crate::Failure;
use crate::arguments::Arguments;

/// An edge and what is said of it.
const VALUE_BYTES: u64 = 32;
const EDGES: [(u64, &str); 4] =
    [(2500, "edges-2500"), (25_000, "edges-25000"), (250_000, "edges-250000"), (2_000_000, "edges-2000000")];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = shape_of(arguments, 2_000_000, VALUE_BYTES)?;
    let rounds = arguments.number("rounds", 3)?;
    let names = ["tapetum", ON_UNIT, ON_UNITS, ORDERED, "rocksdb"];
    let mut arena = Arena::open(arguments, "graph", &shape, &names, &names)?;
    let about = format!("betweenness of the first of {} edges of {} bytes", shape.items, shape.value_bytes);
    println!("graph: {about}");
    let mut outcome = Outcome::new(arguments, "graph", about);
    arena.load(0)?;
    arena.start_all(false)?;
    let ways = [
        ("tapetum", "graph"),
        (ON_UNIT, "graph"),
        (ON_UNITS, "graph"),
        ("tapetum", "graph-host"),
        (ORDERED, "graph"),
        ("rocksdb", "graph"),
    ];
    let entrants = ways.into_iter().filter(|(name, _)| arena.has(name));
    let entrants: Vec<Entrant> = entrants.map(|(name, api)| Entrant::new(name, api, 1, 1)).collect();
    for (edges, mix) in EDGES.into_iter().filter(|(edges, _)| *edges <= shape.items) {
        let load = Load { length: Length::Operations(1), ..Load::of(mix) };
        let mut series = arena.rounds(&entrants, &load, rounds)?;
        check_agreed(&series)?;
        hold(&mut outcome, edges, &entrants, &series);
        series.iter_mut().for_each(|series| series.label = format!("{edges} edges: {}", series.label));
        outcome.series(series);
    }
    arena.end_all()?;
    outcome.end()
}

/// All have computed the same.
fn check_agreed(series: &[Series]) -> Result<(), Failure> {
    let told = |report: &Report| TOLD.map(|name| report.latencies.counted(name));
    let mut all =
        series.iter().flat_map(|series| series.reports.iter().map(move |report| (&series.label, told(report))));
    let Some((_, first)) = all.next() else { return Ok(()) };
    match all.find(|(_, other)| *other != first) {
        None => Ok(()),
        Some((label, other)) => Err(format!("{label} found {other:?}, and the first {first:?}, of {TOLD:?}").into()),
    }
}

fn hold(outcome: &mut Outcome, edges: u64, entrants: &[Entrant], series: &[Series]) {
    for (entrant, own) in entrants.iter().zip(series) {
        let label = format!("{edges} edges, {} {}", entrant.contender, entrant.api);
        let rocksdb = entrants.iter().position(|other| other.contender == "rocksdb").map(|place| &series[place]);
        if let Some(rocksdb) = rocksdb.filter(|_| entrant.contender != "rocksdb") {
            let rate = own.ratio(rocksdb, Report::operations_per_second);
            outcome.hold(format!("{label}: rate ÷ rocksdb's"), rate, Reach::Reported);
        }
        let returned = Spread::of(own.reports.iter().map(|report| report.latencies.counted(RETURNED_BYTES)));
        if entrant.api == "graph" && entrant.contender != "rocksdb" {
            outcome.hold(format!("{label}: bytes returned"), returned, Reach::Reported);
        }
    }
}
