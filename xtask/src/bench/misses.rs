//! GETs over memcached's protocol that DRAM cannot answer, pipelined, by one server thread and by two, beside the limit of the
//! disk.

use std::time::Duration;

use tapetum_bench::turn::Report;

use super::arena::{Arena, Entrant, Load, Shape};
use super::outcome::{Outcome, Reach};
use crate::Failure;
use crate::arguments::Arguments;

const SERVER_THREADS: [u64; 2] = [1, 2];
/// Connections, and GETs on their way in each: it runs as it is fastest.
const WAYS: [(u64, u64); 5] = [(16, 16), (32, 16), (64, 16), (128, 8), (256, 4)];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, 2_000_000, 1008)?;
    let rounds = arguments.number("rounds", 11)?;
    let names = ["server", "limit"];
    let mut arena = Arena::open(arguments, "misses", &shape, &names, &names)?;
    let about = format!("pipelined GETs of {} items of {} bytes over loopback, cold", shape.items, shape.value_bytes);
    println!("misses: {about}");
    arena.load(0)?;
    let mut outcome = Outcome::new(arguments, "misses", about);
    for threads in SERVER_THREADS {
        arena.set_server_threads(threads);
        arena.start_all(false)?;
        let limits = [64, 128, 256].map(|depth| Entrant::new("limit", "read", 1, depth));
        let servers = WAYS.map(|(connections, depth)| Entrant::new("server", "get", connections, depth));
        let load = Load::of("c").lasting(Duration::from_millis(400));
        let mut entrants = arena.best_of(vec![limits.into(), servers.into()], &load, 3)?;
        entrants[1].label += &format!(", {threads} server thread{}", if threads == 1 { "" } else { "s" });
        let series = arena.rounds(&entrants, &Load::of("c"), rounds)?;
        arena.end_all()?;
        let what = format!("{} ÷ the limit's operations/s", series[1].label);
        outcome.hold(what, series[1].ratio(&series[0], Report::operations_per_second), Reach::AtLeast(0.9));
        outcome.series(series);
    }
    outcome.end()
}
