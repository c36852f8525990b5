//! The ordered engine beside RocksDB and LMDB under YCSB's workloads. RocksDB takes part twice: as Retina's authors had it, with direct
//! I/O, no cache and no filters, and tuned, with a cache as large as the store's memory.

use tapetum_bench::turn::Report;

use super::arena::{Arena, Entrant, Load, Shape};
use super::outcome::{Outcome, Reach};
use super::peers::ORDERED;
use super::series::Series;
use crate::Failure;
use crate::arguments::Arguments;
use std::time::Duration;

const VALUE_BYTES: u64 = 1008;
/// Mix, what is wanted most in it, and the least that the store is to come to beside RocksDB without a cache, and tuned.
const WORKLOADS: [Workload; 9] = [
    Workload::new("a", "uniform", 1.5, 1.0),
    Workload::new("a", "zipfian", 1.5, 1.0),
    Workload::new("b", "uniform", 2.0, 1.5),
    Workload::new("b", "zipfian", 2.0, 1.5),
    Workload::new("c", "uniform", 2.0, 1.5),
    Workload::new("c", "zipfian", 2.0, 1.5),
    Workload::new("d", "latest", 0.0, 0.0),
    Workload::new("e", "zipfian", 0.0, 0.0),
    Workload::new("f", "zipfian", 0.0, 0.0),
];
/// The most CPU of an operation ÷ that of RocksDB without a cache, where the least of a rate stands.
const CPU_MOST: f64 = 0.25;

struct Workload {
    mix: &'static str,
    distribution: &'static str,
    plain_least: f64,
    tuned_least: f64,
}

impl Workload {
    const fn new(mix: &'static str, distribution: &'static str, plain_least: f64, tuned_least: f64) -> Workload {
        Workload { mix, distribution, plain_least, tuned_least }
    }

    fn label(&self) -> String {
        format!("{}, {}", self.mix.to_uppercase(), self.distribution)
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = shape(arguments, 5_000_000)?;
    let rounds = arguments.number("rounds", 5)?;
    let mixes = arguments.text("mixes").unwrap_or("abcdef").to_owned();
    let sync = is_synced(arguments, "no")?;
    let names = [ORDERED, "tapetum", "rocksdb-plain", "rocksdb", "lmdb"];
    let mut arena = Arena::open(arguments, "ordered", &shape, &names, &[ORDERED, "rocksdb-plain", "rocksdb", "lmdb"])?;
    let synced = if sync { "each write synced" } else { "sync off" };
    let about = format!("{} items of {} bytes, ordered, {synced}", shape.items, shape.value_bytes);
    println!("ordered: {about}");
    arena.load(0)?;
    arena.start_all(sync)?;
    let mut outcome = Outcome::new(arguments, "ordered", about);
    for workload in WORKLOADS.iter().filter(|workload| mixes.contains(workload.mix)) {
        let load = Load { distribution: workload.distribution, ..Load::of(workload.mix) };
        let entrants = arena.best_of(candidates(workload.mix), &load.clone().lasting(Duration::from_millis(700)), 2)?;
        let series = arena.rounds(&entrants, &load, rounds)?;
        hold(&mut outcome, workload, &entrants, series);
    }
    arena.end_all()?;
    outcome.end()
}

/// Whether each write is to be durable before it is answered, by `--sync`.
pub fn is_synced(arguments: &Arguments, usual: &str) -> Result<bool, Failure> {
    match arguments.text("sync").unwrap_or(usual) {
        "no" => Ok(false),
        "always" => Ok(true),
        other => Err(format!("--sync takes no or always, not {other}").into()),
    }
}

/// As [`Shape::parse`], with room for nodes that are half full and for those that are replaced.
pub fn shape(arguments: &Arguments, items: u64) -> Result<Shape, Failure> {
    shape_of(arguments, items, VALUE_BYTES)
}

/// The same with values of another size.
pub fn shape_of(arguments: &Arguments, items: u64, value_bytes: u64) -> Result<Shape, Failure> {
    let shape = Shape::parse(arguments, items, value_bytes)?;
    let data_bytes = shape.items * (super::KEY_BYTES + shape.value_bytes);
    let capacity_bytes = arguments.size("capacity", data_bytes / 2 * 5 + (512 << 20))?;
    Ok(Shape { capacity_bytes, ..shape })
}

/// The best of each group stands for its contender.
fn candidates(mix: &str) -> Vec<Vec<Entrant>> {
    let by_threads = |name, threads: &[u64]| threads.iter().map(|&count| Entrant::new(name, "get", count, 1)).collect();
    let by_depth = |name, depths: &[(u64, u64)]| {
        depths.iter().map(|&(threads, depth)| Entrant::new(name, "session", threads, depth)).collect()
    };
    let mut groups = vec![
        by_depth(ORDERED, &[(1, 32), (1, 128), (2, 64)]),
        by_threads("rocksdb-plain", &[8, 16, 32, 64]),
        by_threads("rocksdb", &[8, 16, 32, 64]),
        by_threads("lmdb", &[4, 8, 16]),
    ];
    if mix != "e" {
        groups.push(by_depth("tapetum", &[(1, 128)]));
    }
    groups
}

fn hold(outcome: &mut Outcome, workload: &Workload, entrants: &[Entrant], mut series: Vec<Series>) {
    let label = workload.label();
    let find = |name: &str| entrants.iter().position(|entrant| entrant.contender == name).map(|place| &series[place]);
    let at_least = |least: f64| if least > 0.0 { Reach::AtLeast(least) } else { Reach::Reported };
    if let Some(ordered) = find(ORDERED) {
        let leasts = [
            ("rocksdb-plain", workload.plain_least),
            ("rocksdb", workload.tuned_least),
            ("lmdb", workload.tuned_least),
        ];
        for (name, least) in leasts {
            let Some(other) = find(name) else { continue };
            let ratio = ordered.ratio(other, Report::operations_per_second);
            outcome.hold(format!("{label}: operations/s ÷ {name}'s"), ratio, at_least(least));
            let cpu = ordered.ratio(other, Report::cpu_us_per_operation);
            let is_held = name == "rocksdb-plain" && ["b", "c"].contains(&workload.mix);
            let reach = if is_held { Reach::AtMost(CPU_MOST) } else { Reach::Reported };
            outcome.hold(format!("{label}: CPU an operation ÷ {name}'s"), cpu, reach);
        }
    }
    series.iter_mut().for_each(|series| series.label = format!("{label}: {}", series.label));
    outcome.series(series);
}
