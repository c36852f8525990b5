//! The ordered engine by host threads, requests on their way and threads of the drive's own: Retina's figures 6.1 and 6.2.

use std::time::Duration;

use super::arena::{Arena, Entrant, Load};
use super::peers::{ORDERED, ORDERED_ON_ONE, ORDERED_ON_TWO};
use super::shape::{Room, Shape};
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::chart::{Chart, Line, Scale};
use crate::results::outcome::Outcome;
use crate::results::picture::Picture;
use crate::results::series::Series;

const VALUE_BYTES: u64 = 1008;
const DEPTHS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
const HOST_THREADS: [u64; 2] = [1, 2];
/// The contender, and where the drive's half runs.
const DRIVES: [(&str, &str); 3] =
    [(ORDERED, "inline"), (ORDERED_ON_ONE, "1 drive thread"), (ORDERED_ON_TWO, "2 drive threads")];
/// Mix, and its part of a title.
const MIXES: [(&str, &str); 2] = [("c", "reads"), ("a", "half reads, half updates")];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, 500_000, VALUE_BYTES, Room::Nodes)?;
    let rounds = arguments.number("rounds", 3)?;
    let names = DRIVES.map(|(name, _)| name);
    let mut arena = Arena::open(arguments, "ordered-threads", &shape, &names, &names)?;
    let about = format!("{} items of {} bytes, ordered, uniform", shape.items, shape.value_bytes);
    arena.load(0)?;
    arena.start_all(false)?;
    let mut outcome = Outcome::new(arguments, "ordered-threads", about.clone());
    let mut charts = Vec::new();
    let titles = MIXES.map(|(_, what)| format!("Ordered, {what}: {about}"));
    for ((mix, _), title) in MIXES.iter().zip(&titles) {
        charts.push(throughput(&mut arena, mix, title, rounds, &mut outcome)?);
    }
    arena.end_all()?;
    outcome.picture(Picture::new("ordered-threads", charts));
    outcome.end()
}

fn throughput(
    arena: &mut Arena,
    mix: &'static str,
    title: &str,
    rounds: u64,
    outcome: &mut Outcome,
) -> Result<Chart, Failure> {
    let mut lines = Vec::new();
    let load = Load::of(mix).lasting(Duration::from_millis(500));
    for (name, place) in DRIVES.into_iter().filter(|(name, _)| arena.has(name)).collect::<Vec<_>>() {
        for threads in HOST_THREADS {
            let entrants = DEPTHS.map(|depth| Entrant::new(name, "session", threads, depth));
            let mut series = arena.rounds(&entrants, &load, rounds)?;
            let rates = series.iter().map(Series::throughput);
            let points = DEPTHS.iter().map(|depth| *depth as f64).zip(rates);
            let plural = if threads == 1 { "" } else { "s" };
            lines.push(Line::new(format!("{threads} host thread{plural}, {place}"), points));
            series.iter_mut().for_each(|series| series.label = format!("{}: {}", mix.to_uppercase(), series.label));
            outcome.series(series);
        }
    }
    let axes = ["requests on their way in a thread", "operations a second"];
    Ok(Chart::new(title, axes, Scale::Logarithmic, lines))
}
