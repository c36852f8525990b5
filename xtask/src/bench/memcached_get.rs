//! GETs over memcached's protocol, each a flash read, by one server thread; beside memcached answering from DRAM, and the limit
//! of the disk: who serves from flash can be no faster than the slower of the two.

use std::time::Duration;

use tapetum_bench::turn::Report;

use super::arena::{Arena, Entrant, Load, Shape};
use super::outcome::{Outcome, Reach};
use super::series::{Series, Spread};
use crate::Failure;
use crate::arguments::Arguments;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, 2_000_000, 1008)?;
    let rounds = arguments.number("rounds", 11)?;
    let names = ["server", "memcached", "limit"];
    let mut arena = Arena::open(arguments, "memcached-get", &shape, &names, &names)?;
    let about =
        format!("GETs of {} items of {} bytes over loopback, one server thread", shape.items, shape.value_bytes);
    println!("memcached-get: {about}");
    arena.load(0)?;
    arena.start_all(false)?;
    let depths = [64, 128, 256].map(|depth| Entrant::new("limit", "read", 1, depth));
    let limit = arena.best_of(vec![depths.into()], &Load::of("c").lasting(Duration::from_millis(400)), 2)?;
    // Each contender runs over as many connections as it is fastest with. Replies of a connection come in order, so that many of its
    // reads are done and wait for a slow one: many connections keep the disk busy.
    let ways: [(&str, &'static str, &[u64], u64, f64); 3] = [
        ("single GETs", "get", &[64, 128, 256, 512], 1, 0.7),
        ("pipelined GETs", "get", &[16, 32, 64], 16, 0.85),
        ("multi-gets", "multiget", &[16, 32, 64], 16, 0.85),
    ];
    let mut groups = Vec::new();
    for (_, api, connections, depth, _) in ways {
        for name in ["server", "memcached"] {
            groups.push(connections.iter().map(|&count| Entrant::new(name, api, count, depth)).collect());
        }
    }
    let mut entrants = limit;
    entrants.extend(arena.best_of(groups, &Load::of("c").lasting(Duration::from_millis(400)), 5)?);
    let series = arena.rounds(&entrants, &Load::of("c"), rounds)?;
    arena.end_all()?;

    let mut outcome = Outcome::new(arguments, "memcached-get", about);
    for ((named, .., least), pair) in ways.iter().zip(series[1..].chunks(2)) {
        let what = format!("{named}: operations/s ÷ the smaller of memcached's and the limit's");
        outcome.hold(what, over_smaller(&pair[0], &pair[1], &series[0]), Reach::AtLeast(*least));
        let what = format!("{named}: operations/s ÷ memcached's from DRAM");
        outcome.hold(what, pair[0].ratio(&pair[1], Report::operations_per_second), Reach::Reported);
    }
    outcome.series(series);
    outcome.end()
}

fn over_smaller(mine: &Series, one: &Series, other: &Series) -> Spread {
    let rates = |series: &Series| series.reports.iter().map(Report::operations_per_second).collect::<Vec<f64>>();
    let smaller: Vec<f64> = rates(one).into_iter().zip(rates(other)).map(|(one, other)| one.min(other)).collect();
    Spread::of(rates(mine).into_iter().zip(smaller).map(|(mine, smaller)| mine / smaller))
}
