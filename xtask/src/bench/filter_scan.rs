//! Cold scans with a condition on values: at the drive, over a hashed and an ordered keyspace, beside RocksDB's iterator with the same
//! filter on the host, and beside a sequential read of the same file; and their cost for gets beside them. Values have a fixed format or,
//! in a row of its own, are JSON documents.

use std::time::Duration;

use tapetum_bench::filter::{FLASH_BYTES, KEPT, KEPT_BYTES, LOOKED_AT, RETURNED_BYTES, SENT_BYTES, WAKE_UPS};
use tapetum_bench::turn::{Length, Report};

use super::arena::{Arena, Entrant, Load};
use super::peers::ORDERED;
use super::shape::{Room, Shape};
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::series::{Series, read_quantile};
use crate::results::spread::Spread;

const VALUE_BYTES: u64 = 100;
/// Items kept of a thousand, and the least speed of the store's scans ÷ RocksDB's.
const SELECTIVITIES: [(u64, f64); 4] = [(1, 5.0), (10, 5.0), (100, 2.0), (1000, 0.0)];
/// The most bytes across ÷ the result's bytes, without a page.
const ACROSS_MOST: f64 = 1.05;
const PAGE_BYTES: f64 = 4096.0;
/// The least bandwidth of a scan ÷ that of a sequential read.
const BANDWIDTH_LEAST: f64 = 0.8;
/// The greatest P99 of gets beside a scan ÷ without one.
const P99_MOST: f64 = 2.0;
/// Rate of the gets that are timed beside a scan, per second.
const GET_RATE: f64 = 2000.0;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    run_over(arguments, "filter-scan", false)
}

/// The same row over JSON documents.
pub fn run_json(arguments: &Arguments) -> Result<(), Failure> {
    run_over(arguments, "filter-scan-json", true)
}

fn run_over(arguments: &Arguments, row: &'static str, json: bool) -> Result<(), Failure> {
    let shape = Shape { json, ..Shape::parse(arguments, 10_000_000, VALUE_BYTES, Room::Nodes)? };
    let rounds = arguments.number("rounds", 5)?;
    let names = ["tapetum", ORDERED, "rocksdb", "limit"];
    let mut arena = Arena::open(arguments, row, &shape, &names, &names)?;
    let of = if json { ", documents of JSON" } else { "" };
    let about = format!("filtered scans of {} items of {} bytes{of}", shape.items, shape.value_bytes);
    let mut outcome = Outcome::new(arguments, row, about);
    arena.load(0)?;
    arena.start_all(false)?;
    for (permille, least) in SELECTIVITIES {
        let reach = if least > 0.0 && !json { Reach::AtLeast(least) } else { Reach::Reported };
        scans(&mut arena, &mut outcome, rounds, permille, mix_of(permille, json), reach)?;
    }
    if !json {
        gets_beside(&mut arena, &mut outcome, rounds)?;
    }
    arena.end_all()?;
    outcome.end()
}

fn mix_of(permille: u64, json: bool) -> &'static str {
    match (permille, json) {
        (1, false) => "filter-1",
        (10, false) => "filter-10",
        (100, false) => "filter-100",
        (_, false) => "filter-1000",
        (1, true) => "filter-json-1",
        (10, true) => "filter-json-10",
        (100, true) => "filter-json-100",
        (_, true) => "filter-json-1000",
    }
}

/// One scan per turn.
fn scans(
    arena: &mut Arena,
    outcome: &mut Outcome,
    rounds: u64,
    permille: u64,
    mix: &'static str,
    speed: Reach,
) -> Result<(), Failure> {
    let entrants = [
        Entrant::new("tapetum", "query", 1, 1),
        Entrant::new(ORDERED, "query", 1, 1),
        Entrant::new("rocksdb", "filter", 1, 1),
        Entrant::new("limit", "sequential", 4, 1),
    ];
    let entrants: Vec<Entrant> = entrants.into_iter().filter(|entrant| arena.has(entrant.contender)).collect();
    let scan = Load { length: Length::Operations(1), ..Load::of(mix) };
    let read = Load { mix: "c", ..scan.clone() }.lasting(Duration::from_millis(700));
    let mut series: Vec<Series> = entrants.iter().map(|entrant| Series::new(&entrant.label)).collect();
    for _ in 0..rounds {
        for (entrant, series) in entrants.iter().zip(&mut series) {
            let load = if entrant.contender == "limit" { &read } else { &scan };
            let turn = arena.rounds(std::slice::from_ref(entrant), load, 1)?;
            series.reports.extend(turn.into_iter().flat_map(|series| series.reports));
        }
    }
    let label = format!("{}.{} %", permille / 10, permille % 10);
    let find = |name: &str| entrants.iter().position(|entrant| entrant.contender == name).map(|place| &series[place]);
    for name in ["tapetum", ORDERED] {
        let Some(own) = find(name) else { continue };
        hold_bytes(outcome, &format!("{label}, {name}"), own);
        if let Some(rocksdb) = find("rocksdb") {
            let rate = own.ratio(rocksdb, Report::operations_per_second);
            outcome.hold(format!("{label}, {name}: scans a second ÷ rocksdb's"), rate, speed);
            let cpu = own.ratio(rocksdb, Report::cpu_us_per_operation);
            outcome.hold(format!("{label}, {name}: CPU of a scan ÷ rocksdb's"), cpu, Reach::Reported);
        }
        if let Some(limit) = find("limit") {
            // Not a full result, which the host takes record by record.
            let is_held = permille < 1000 && !mix.contains("json");
            let reach = if is_held { Reach::AtLeast(BANDWIDTH_LEAST) } else { Reach::Reported };
            let bandwidth = own.ratio(limit, |report| report.latencies.counted(FLASH_BYTES) / report.seconds);
            outcome.hold(format!("{label}, {name}: bytes read a second ÷ a sequential read's"), bandwidth, reach);
        }
    }
    series.iter_mut().for_each(|series| series.label = format!("{label}: {}", series.label));
    outcome.series(series);
    Ok(())
}

/// Checks the bytes across, and how often the host was woken.
fn hold_bytes(outcome: &mut Outcome, label: &str, series: &Series) {
    let of = |figure: &dyn Fn(&Report) -> f64| Spread::of(series.reports.iter().map(figure));
    let result = |report: &Report| report.latencies.counted(KEPT) * KEPT_BYTES as f64;
    let across = of(&|report| {
        let beyond_a_page =
            report.latencies.counted(RETURNED_BYTES) - PAGE_BYTES * report.latencies.operations() as f64;
        beyond_a_page.max(0.0) / result(report).max(1.0)
    });
    outcome.hold(format!("{label}: bytes returned beyond a page ÷ the result's"), across, Reach::AtMost(ACROSS_MOST));
    let sent = of(&|report| report.latencies.counted(SENT_BYTES) / report.latencies.counted(FLASH_BYTES).max(1.0));
    outcome.hold(format!("{label}: bytes sent ÷ read from flash"), sent, Reach::Reported);
    let each = |name: &'static str| {
        move |report: &Report| report.latencies.counted(name) / report.latencies.operations() as f64
    };
    outcome.hold(format!("{label}: wake-ups of a scan"), of(&each(WAKE_UPS)), Reach::Reported);
    let rows = of(&|report| report.latencies.counted(LOOKED_AT) / (report.usage.cpu_us as f64 / 1e6));
    outcome.hold(format!("{label}: rows a second of CPU"), rows, Reach::Reported);
}

/// Gets at a fixed rate, with and without a scan beside them.
fn gets_beside(arena: &mut Arena, outcome: &mut Outcome, rounds: u64) -> Result<(), Failure> {
    let load = Load { rate: Some(GET_RATE), ..Load::of("c") };
    for name in ["tapetum", ORDERED].into_iter().filter(|name| arena.has(name)).collect::<Vec<_>>() {
        let entrants = [Entrant::new(name, "session", 1, 8), Entrant::new(name, "session-beside-query", 1, 8)];
        let series = arena.rounds(&entrants, &load, rounds)?;
        let p99 = series[1].ratio(&series[0], read_quantile(0.99));
        outcome.hold(format!("{name}: P99 of gets beside a scan ÷ without one"), p99, Reach::AtMost(P99_MOST));
        outcome.series(series);
    }
    Ok(())
}
