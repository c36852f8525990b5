//! Storing small items in random order until nothing is left to be flushed, merged or collected.

use tapetum_bench::turn::Command;

use super::arena::{Arena, Room, Shape};
use super::outcome::{Outcome, Reach};
use super::series::{Series, Spread};
use crate::Failure;
use crate::arguments::Arguments;

/// A contender's turn.
const ITEMS_A_TURN: u64 = 1_000_000;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, (20_000_000, 100), Room::Ample)?;
    let names = ["tapetum", "rocksdb"];
    let sync = arguments.text("sync").is_some_and(|text| text == "always");
    let mut arena = Arena::open(arguments, "load", &shape, &names, &names)?;
    let named = if sync { "every write synced" } else { "sync off" };
    let about = format!("{} items of {} bytes, {named}, until settled", shape.items, shape.value_bytes);
    println!("load: {about}");
    arena.start_all(sync)?;
    let names = arena.names();
    let mut series: Vec<Series> = names.iter().map(|name| Series::new(name)).collect();
    for from in (0..shape.items).step_by(ITEMS_A_TURN as usize) {
        let command = Command::Load { from, to: (from + ITEMS_A_TURN).min(shape.items) };
        for (name, series) in names.iter().zip(&mut series) {
            series.reports.push(arena.run(name, &command)?);
        }
    }
    for (name, series) in names.iter().zip(&mut series) {
        series.reports.push(arena.run(name, &Command::Settle)?);
    }
    arena.end_all()?;
    let mut outcome = Outcome::new(arguments, "load", about);
    let mut rates = Vec::new();
    for series in &series {
        let total = |figure: fn(&tapetum_bench::turn::Report) -> f64| series.reports.iter().map(figure).sum::<f64>();
        let rate = shape.items as f64 / total(|report| report.seconds);
        let each = |sum: f64| Spread::of([sum / shape.items as f64]);
        let label = &series.label;
        outcome.hold(format!("{label}: items/s until settled"), Spread::of([rate]), Reach::Reported);
        outcome.hold(
            format!("{label}: CPU µs an item"),
            each(total(|report| report.usage.cpu_us as f64)),
            Reach::Reported,
        );
        let written = each(total(|report| report.usage.written_bytes as f64));
        outcome.hold(format!("{label}: bytes written an item"), written, Reach::Reported);
        rates.push(rate);
    }
    if let [tapetum, rocksdb] = rates[..] {
        outcome.hold("items/s ÷ RocksDB's", Spread::of([tapetum / rocksdb]), Reach::AtLeast(1.5));
    }
    outcome.end()
}
