//! This tree beside another tree of this project, in turns: cold GETs and half GETs half PUTs of both engines, GETs over memcached's protocol, and
//! loading.
//! `--other DIR` names the other's completely built `target/release`. It compares a change with the commit before it.

use std::path::PathBuf;

use tapetum_bench::turn::Report;

use super::arena::{Arena, Entrant, Load};
use super::shape::{Room, Shape};
use super::{load, peers};
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::series::Series;
use crate::results::spread::Spread;

/// The least that must remain of each rate.
const KEPT_LEAST: f64 = 0.98;
/// Items that each tree stores before the other has its turn, in loading.
const ITEMS_A_TURN: u64 = 500_000;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let other = arguments.text("other").map(PathBuf::from).ok_or(
        "trees needs --other DIR: the target/release of another tree (there: cargo build --release --workspace)",
    )?;
    let shape = Shape::parse(arguments, 1_000_000, 1008, Room::Ample)?;
    let small = Shape { value_bytes: 100, items: 4 * shape.items, ..shape.clone() };
    let rounds = arguments.number("rounds", 21)?;
    let about = format!("this tree beside {}", other.display());
    let mut embedded = Arena::beside(arguments, "trees", &shape, ["tapetum", "tapetum-other"], &other)?;
    let mut ordered =
        Arena::beside(arguments, "trees-ordered", &shape, [peers::ORDERED, peers::ORDERED_OTHER], &other)?;
    let mut served = Arena::beside(arguments, "trees-served", &shape, ["server", "server-other"], &other)?;
    let mut loading = Arena::beside(arguments, "trees-load", &small, ["tapetum", "tapetum-other"], &other)?;
    let mut outcome = Outcome::new(arguments, "trees", about);
    for (arena, engine) in [(&mut embedded, "hashed"), (&mut ordered, "ordered")] {
        arena.load(0)?;
        arena.start_all(false)?;
        for (named, mix) in [("cold GETs", "c"), ("half PUTs", "a")] {
            let entrants: Vec<_> =
                arena.names().into_iter().map(|name| Entrant::new(name, "session", 1, 128)).collect();
            let series = arena.rounds(&entrants, &Load::of(mix), rounds)?;
            report(&mut outcome, &format!("{named}, {engine}"), series);
        }
        arena.end_all()?;
    }
    served.load(0)?;
    served.start_all(false)?;
    let entrants: Vec<_> = served.names().into_iter().map(|name| Entrant::new(name, "get", 128, 1)).collect();
    let series = served.rounds(&entrants, &Load::of("c"), rounds)?;
    report(&mut outcome, "memcached GETs", series);
    served.end_all()?;
    let series = load::in_turns(&mut loading, false, small.items, ITEMS_A_TURN)?;
    report_loads(&mut outcome, series);
    outcome.end()
}

fn report(outcome: &mut Outcome, named: &str, mut series: Vec<Series>) {
    let [this, other] = &series[..] else { unreachable!("two trees take part") };
    let rate = this.ratio(other, Report::operations_per_second);
    let cpu = this.ratio(other, Report::cpu_us_per_operation);
    hold(outcome, named, rate, cpu);
    series.iter_mut().for_each(|series| series.label = format!("{named}: {}", series.label));
    outcome.series(series);
}

/// By sums, because turns differ in the trees' background work.
fn report_loads(outcome: &mut Outcome, series: Vec<Series>) {
    let [this, other] = &series[..] else { unreachable!("two trees take part") };
    let total = |series: &Series, figure: fn(&Report) -> f64| series.reports.iter().map(figure).sum::<f64>();
    let seconds = |series| total(series, |report| report.seconds);
    let cpu_us = |series| total(series, |report| report.usage.cpu_us as f64);
    hold(outcome, "loading", Spread::once(seconds(other) / seconds(this)), Spread::once(cpu_us(this) / cpu_us(other)));
}

fn hold(outcome: &mut Outcome, named: &str, rate: Spread, cpu: Spread) {
    outcome.hold(format!("{named}: operations/s ÷ the other's"), rate, Reach::AtLeast(KEPT_LEAST));
    outcome.hold(format!("{named}: CPU an operation ÷ the other's"), cpu, Reach::Reported);
}
