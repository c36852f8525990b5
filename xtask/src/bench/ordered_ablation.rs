//! What each part of the ordered engine brings, under YCSB A with small values: Retina's figure 6.4. The base writes each change to a log
//! first, as a batch of its own, and has next to no cache; then images of nodes with stamps, and no log; then the mirror cache too.

use tapetum_bench::turn::Report;

use super::arena::{Arena, Entrant, Load};
use super::ordered::{is_synced, shape_of};
use super::outcome::{Outcome, Reach};
use super::peers::{ORDERED, ORDERED_UNCACHED};
use crate::Failure;
use crate::arguments::Arguments;

const VALUE_BYTES: u64 = 128;
const THREADS: u64 = 32;
const DISTRIBUTIONS: [&str; 2] = ["uniform", "zipfian"];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = shape_of(arguments, 1_000_000, VALUE_BYTES)?;
    let rounds = arguments.number("rounds", 9)?;
    let sync = is_synced(arguments, "always")?;
    let names = [ORDERED_UNCACHED, ORDERED];
    let mut arena = Arena::open(arguments, "ordered-ablation", &shape, &names, &names)?;
    let synced = if sync { "each write synced" } else { "sync off" };
    let about = format!("{} items of {} bytes, {THREADS} threads, {synced}", shape.items, shape.value_bytes);
    println!("ordered-ablation: {about}");
    arena.load(0)?;
    arena.start_all(sync)?;
    let mut outcome = Outcome::new(arguments, "ordered-ablation", about);
    let mut entrants = vec![
        ("a log", Entrant::new(ORDERED_UNCACHED, "batches", THREADS, 1)),
        ("stamped images, no log", Entrant::new(ORDERED_UNCACHED, "blocking", THREADS, 1)),
        ("and the mirror cache", Entrant::new(ORDERED, "blocking", THREADS, 1)),
    ];
    entrants.iter_mut().for_each(|(step, entrant)| entrant.label = (*step).to_owned());
    let entrants: Vec<Entrant> = entrants.into_iter().map(|(_, entrant)| entrant).collect();
    for distribution in DISTRIBUTIONS {
        let load = Load { distribution, ..Load::of("a") };
        let mut series = arena.rounds(&entrants, &load, rounds)?;
        for step in series.windows(2) {
            let gain = step[1].ratio(&step[0], Report::operations_per_second);
            let what = format!("{distribution}, {}: operations/s ÷ {}'s", step[1].label, step[0].label);
            outcome.hold(what, gain, Reach::AtLeast(1.0));
        }
        series.iter_mut().for_each(|series| series.label = format!("{distribution}: {}", series.label));
        outcome.series(series);
    }
    arena.end_all()?;
    outcome.end()
}
