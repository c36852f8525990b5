//! One thread that makes one blocking GET after the other, each a flash read, beside one that makes raw reads.

use super::arena::{Arena, Entrant, Load, Shape};
use super::outcome::{Outcome, Reach};
use super::series::read_quantile;
use crate::Failure;
use crate::arguments::Arguments;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, 2_000_000, 1008)?;
    let rounds = arguments.number("rounds", 15)?;
    let names = ["tapetum", "limit", "rocksdb"];
    let mut arena = Arena::open(arguments, "blocking-get", &shape, &names, &names)?;
    let about = format!("one thread, uniform GETs of {} items of {} bytes", shape.items, shape.value_bytes);
    println!("blocking-get: {about}");
    arena.load(0)?;
    arena.start_all(false)?;
    let entrants = [("tapetum", "blocking"), ("limit", "read"), ("rocksdb", "get")];
    let entrants = entrants.map(|(contender, api)| Entrant::new(contender, api, 1, 1));
    let entrants: Vec<Entrant> = entrants.into_iter().filter(|entrant| arena.has(entrant.contender)).collect();
    let series = arena.rounds(&entrants, &Load::of("c"), rounds)?;
    arena.end_all()?;
    let mut outcome = Outcome::new(arguments, "blocking-get", about);
    if let [tapetum, others @ ..] = &series[..] {
        for other in others {
            let reach = if other.label.starts_with("limit") { Reach::AtMost(1.3) } else { Reach::Reported };
            let ratio = tapetum.ratio(other, read_quantile(0.5));
            outcome.hold(format!("the median latency ÷ that of {}", other.label), ratio, reach);
        }
    }
    outcome.series(series);
    outcome.end()
}
