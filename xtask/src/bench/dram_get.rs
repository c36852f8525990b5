//! GETs over memcached's protocol, by TCP and by UDP, that the DRAM tier answers, by one server thread, beside memcached.

use std::time::Duration;

use tapetum_bench::turn::Report;

use super::arena::{Arena, Entrant, Load, Shape};
use super::outcome::{Outcome, Reach};
use crate::Failure;
use crate::arguments::Arguments;

/// In which every item comes into the tier, by far.
const WARM_UP: Duration = Duration::from_secs(10);

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, 100_000, 200)?.with_tier();
    let rounds = arguments.number("rounds", 11)?;
    let names = ["server", "memcached"];
    let mut arena = Arena::open(arguments, "dram-get", &shape, &names, &names)?;
    let about = format!(
        "GETs of {} items of {} bytes over loopback, all in DRAM, one server thread",
        shape.items, shape.value_bytes
    );
    println!("dram-get: {about}");
    arena.load(0)?;
    arena.start_all(false)?;
    let ways = [
        ("one at a time over 64 connections", "get", 64, 1, 1.0),
        ("32 deep over 4 connections", "get", 4, 32, 2.0),
        ("over UDP, 32 datagrams on their way over 4 sockets", "udp", 4, 32, 1.2),
    ];
    let entrants: Vec<Entrant> = ways
        .iter()
        .flat_map(|&(_, api, connections, depth, _)| names.map(|name| Entrant::new(name, api, connections, depth)))
        .collect();
    arena.rounds(&entrants[2..4], &Load::of("c").lasting(WARM_UP), 1)?;
    let series = arena.rounds(&entrants, &Load::of("c"), rounds)?;
    arena.end_all()?;

    let mut outcome = Outcome::new(arguments, "dram-get", about);
    for ((named, .., least), pair) in ways.iter().zip(series.chunks(2)) {
        let what = format!("{named}: operations/s ÷ memcached's");
        outcome.hold(what, pair[0].ratio(&pair[1], Report::operations_per_second), Reach::AtLeast(*least));
    }
    outcome.series(series);
    outcome.end()
}
