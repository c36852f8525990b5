//! Storing small items in random order until nothing is left to be flushed, merged or collected.

use tapetum_bench::turn::{Command, Report};

use super::arena::Arena;
use super::shape::{Room, Shape};
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::series::Series;

/// A contender's turn.
const ITEMS_A_TURN: u64 = 1_000_000;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, 20_000_000, 100, Room::Ample)?;
    let names = ["tapetum", "rocksdb"];
    let sync = arguments.text("sync").is_some_and(|text| text == "always");
    let mut arena = Arena::open(arguments, "load", &shape, &names, &names)?;
    let named = if sync { "every write synced" } else { "sync off" };
    let about = format!("{} items of {} bytes, {named}, until settled", shape.items, shape.value_bytes);
    let mut outcome = Outcome::new(arguments, "load", about);
    let series = in_turns(&mut arena, sync, shape.items, ITEMS_A_TURN)?;
    let mut rates = Vec::new();
    for series in &series {
        let total = |figure: fn(&Report) -> f64| series.reports.iter().map(figure).sum::<f64>();
        let rate = shape.items as f64 / total(|report| report.seconds);
        let each = |figure| total(figure) / shape.items as f64;
        let label = &series.label;
        outcome.report(format!("{label}: items/s until settled"), rate);
        outcome.report(format!("{label}: CPU µs an item"), each(|report| report.usage.cpu_us as f64));
        outcome.report(format!("{label}: bytes written an item"), each(|report| report.usage.written_bytes as f64));
        rates.push(rate);
    }
    if let [tapetum, rocksdb] = rates[..] {
        outcome.hold_once("items/s ÷ RocksDB's", tapetum / rocksdb, Reach::AtLeast(1.5));
    }
    outcome.series(series);
    outcome.end()
}

/// Each contender stores some items in its turn, as often the first as another; the last turn of each ends when nothing is left to be
/// flushed or collected.
pub fn in_turns(arena: &mut Arena, sync: bool, items: u64, items_a_turn: u64) -> Result<Vec<Series>, Failure> {
    arena.start_all(sync)?;
    let names = arena.names();
    let mut series: Vec<Series> = names.iter().map(|name| Series::new(name)).collect();
    for (turn, from) in (0..items).step_by(items_a_turn as usize).enumerate() {
        let command = Command::Load { from, to: (from + items_a_turn).min(items) };
        for place in 0..names.len() {
            let own = (turn + place) % names.len();
            series[own].reports.push(arena.run(names[own], &command)?);
        }
    }
    for (name, series) in names.iter().zip(&mut series) {
        series.reports.push(arena.run(name, &Command::Settle)?);
    }
    arena.end_all()?;
    Ok(series)
}
