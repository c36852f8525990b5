//! Bytes that cross between host and drive, operation by operation, for both engines: what the drive does itself.

use tapetum_bench::crossing::{Crossing, Load, measure};

use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use crate::workspace::Scratch;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let load = Load {
        items: arguments.number("items", 60_000)?,
        value_bytes: arguments.size("value", 1000)?,
        capacity_bytes: arguments.size("capacity", 1 << 30)?,
        memory_bytes: arguments.size("memory", 128 << 20)?,
    };
    arguments.finish()?;
    let about = format!("{} items of 16 + {} bytes; bytes an operation", load.items, load.value_bytes);
    let mut outcome = Outcome::new(arguments, "crossing", about);
    outcome.columns(&["operation", "user", "to the drive", "to the host", "log", "structure", "background"]);
    let scratch = Scratch::new("crossing")?;
    for crossing in measure(scratch.folder(), load)? {
        let Crossing { user, own: [to_drive, to_host], log, structure, background, .. } = crossing;
        let figures = [user, to_drive, to_host, log, structure, background].map(Spread::once);
        outcome.line(&crossing.name, figures.into());
        if let Some(most) = crossing.bound {
            outcome.hold_once(&crossing.name, crossing.own_total(), Reach::AtMost(most));
        }
    }
    outcome.end()
}
