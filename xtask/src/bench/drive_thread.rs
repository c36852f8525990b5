//! Cold GETs with the device half of the drive on a thread of its own: what is left to the host, against the same store without that
//! thread and against RocksDB's whole. The thread has no core of its own: with few, both take from each other.

use std::time::Duration;

use tapetum_bench::turn::Report;

use super::arena::{Arena, Entrant, Load, Shape};
use super::outcome::{Outcome, Reach};
use super::peers::ON_DRIVE_THREAD;
use super::series::Spread;
use crate::Failure;
use crate::arguments::Arguments;

const VALUE_BYTES: u64 = 1008;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, 2_000_000, VALUE_BYTES)?;
    let rounds = arguments.number("rounds", 15)?;
    let names = [ON_DRIVE_THREAD, "tapetum", "rocksdb"];
    let mut arena = Arena::open(arguments, "drive-thread", &shape, &names, &names)?;
    let about = format!("uniform GETs of {} items of {} bytes, on one host thread", shape.items, shape.value_bytes);
    println!("drive-thread: {about}");
    arena.load(0)?;
    arena.start_all(false)?;
    let short = Load::of("c").lasting(Duration::from_millis(400));
    let entrants = arena.best_of(
        vec![
            [64, 128, 256].map(|depth| Entrant::new(ON_DRIVE_THREAD, "session", 1, depth)).into(),
            [64, 128, 256].map(|depth| Entrant::new("tapetum", "session", 1, depth)).into(),
            [4, 8, 16, 32].map(|threads| Entrant::new("rocksdb", "get", threads, 1)).into(),
        ],
        &short,
        2,
    )?;
    let series = arena.rounds(&entrants, &Load::of("c"), rounds)?;
    arena.end_all()?;

    let mut outcome = Outcome::new(arguments, "drive-thread", about);
    let find = |name: &str| {
        entrants.iter().zip(&series).find(|(entrant, _)| entrant.contender == name).map(|(_, series)| series)
    };
    if let Some(on_thread) = find(ON_DRIVE_THREAD) {
        outcome.hold("host CPU µs a GET", on_thread.spread(Report::host_cpu_us_per_operation), Reach::Reported);
        outcome.hold("drive CPU µs a GET", on_thread.spread(Report::drive_cpu_us_per_operation), Reach::Reported);
        if let Some(inline) = find("tapetum") {
            let rate = Report::operations_per_second;
            outcome.hold("operations/s ÷ without the thread", on_thread.ratio(inline, rate), Reach::Reported);
            outcome.hold("CPU µs a GET without the thread", inline.cpu_us(), Reach::Reported);
        }
        if let Some(rocksdb) = find("rocksdb") {
            let pairs = on_thread.reports.iter().zip(&rocksdb.reports);
            let shares = pairs.map(|(ours, theirs)| ours.host_cpu_us_per_operation() / theirs.cpu_us_per_operation());
            outcome.hold("host CPU a GET ÷ RocksDB's whole", Spread::of(shares), Reach::AtMost(0.125));
        }
    }
    outcome.series(series);
    outcome.end()
}
