//! The latency of GETs over TCP at a steady rate, by the share that DRAM answers and by the size of values; drawn.
//!
//! For each size of values a store is loaded. A part of the GETs goes to one percent of the items, which the DRAM tier soon holds. The rest
//! goes evenly to all other items, few of which the tier holds. Reads from flash are counted.

use std::time::Duration;

use tapetum_bench::budget::Budget;
use tapetum_bench::caches::Cache;
use tapetum_bench::sockets;
use tapetum_bench::turn::Turn;
use tapetum_bench::workload::{Population, Values};

use super::KEY_BYTES;
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::chart::{Chart, Line, Scale};
use crate::results::outcome::Outcome;
use crate::results::picture::Picture;
use crate::results::series::read_quantile;
use crate::results::spread::Spread;
use crate::workspace::Scratch;

const VALUES_BYTES: [u64; 5] = [64, 1024, 4096, 16_384, 65_536];
/// Percentages of GETs for items in DRAM.
const HOT_PERCENTS: [u64; 5] = [100, 99, 90, 50, 0];
/// The median first.
const QUANTILES: [f64; 3] = [0.5, 0.99, 0.999];
/// More items would need more DRAM for the index than allowed.
const ITEMS_MAX: u64 = 1_000_000;
const CONNECTIONS: u64 = 32;
const TURN: Duration = Duration::from_secs(1);
/// More than enough for every hot item to get into the tier.
const WARM_UP: Duration = Duration::from_secs(2);

/// Measurements of one size of values with one share of hot GETs.
struct Place {
    from_flash: Vec<f64>,
    quantiles_us: [Vec<f64>; 3],
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let data_bytes = arguments.size("data", 512 << 20)?;
    let memory_bytes = arguments.size("memory", 64 << 20)?;
    let rate = arguments.number("rate", 4000)?.max(1);
    let rounds = arguments.number("rounds", 3)?;
    arguments.finish()?;
    let binary = arguments.measured_server(None)?;
    let about = format!(
        "{rate} GETs a second over {CONNECTIONS} TCP connections, {} MiB of items or a million of them, {} MiB of DRAM, one server thread",
        data_bytes >> 20,
        memory_bytes >> 20
    );
    let mut outcome = Outcome::new(arguments, "latency", about);
    outcome.columns(&["value, GETs of what DRAM holds", "read from flash", "P50 µs", "P99 µs", "P99.9 µs"]);
    let mut sizes = Vec::new();
    for value_bytes in VALUES_BYTES {
        let scratch = Scratch::new("bench-latency")?;
        let budget = Budget { memory_bytes, flash_bytes: data_bytes * 2 + (256 << 20) };
        let mut cache = Cache::tapetum(&binary, scratch.folder(), budget)?;
        cache.start()?;
        let items = (data_bytes / (KEY_BYTES + value_bytes)).min(ITEMS_MAX);
        let population = Population::new(items, Values::new(value_bytes as usize, 100));
        sockets::load(cache.address(), &population, 0..items)?;
        cache.settle()?;
        println!("  {items} items of {value_bytes} bytes are loaded");
        let places = measure(arguments, &cache, &population, rate as f64, rounds)?;
        for (percent, place) in HOT_PERCENTS.iter().zip(&places) {
            let figures = std::iter::once(&place.from_flash).chain(&place.quantiles_us);
            let figures = figures.map(|figures| Spread::of(figures.iter().copied())).collect();
            outcome.line(format!("{value_bytes} bytes, {percent} %"), figures);
        }
        sizes.push(places);
    }
    outcome.picture(picture(rate, &sizes));
    outcome.end()
}

/// Measures each share of hot GETs.
fn measure(
    arguments: &Arguments,
    cache: &Cache,
    population: &Population,
    rate: f64,
    rounds: u64,
) -> Result<Vec<Place>, Failure> {
    let turn = |percent: u64, length: Duration, rate: Option<f64>, seed: u64| Turn {
        distribution: format!("hot-{percent}"),
        rate,
        ..Turn::zipfian_gets(CONNECTIONS, 1, arguments.time(length), seed)
    };
    sockets::run(cache.address(), population, &turn(100, WARM_UP, None, 0))?;
    let new = |_: &u64| Place { from_flash: Vec::new(), quantiles_us: Default::default() };
    let mut places: Vec<Place> = HOT_PERCENTS.iter().map(new).collect();
    for round in 1..=rounds {
        for (percent, place) in HOT_PERCENTS.into_iter().zip(&mut places) {
            let before = read_from_flash(cache)?;
            // Each percentage gets its own seed, so that it does not ask for items that the one before it brought into the tier.
            let report = cache.turn(population, &turn(percent, TURN, Some(rate), round * 1000 + percent))?;
            cache.resume();
            if report.latencies.missing > 0 {
                return Err(format!("{} items that were loaded are not there", report.latencies.missing).into());
            }
            let from_flash = read_from_flash(cache)? - before;
            place.from_flash.push(from_flash as f64 / report.latencies.operations() as f64);
            for (quantiles_us, quantile) in place.quantiles_us.iter_mut().zip(QUANTILES) {
                quantiles_us.push(read_quantile(quantile)(&report));
            }
        }
    }
    Ok(places)
}

fn read_from_flash(cache: &Cache) -> Result<u64, Failure> {
    cache.stats("")?.get("get_from_flash").copied().ok_or_else(|| "the server's stats have no get_from_flash".into())
}

/// The median, with a line for each share of hot GETs. Other quantiles are only in the table, because tails of such short turns cross each
/// other.
fn picture(rate: u64, sizes: &[Vec<Place>]) -> Picture {
    let title = format!("P50 of GETs over TCP, {rate} a second");
    let lines = HOT_PERCENTS.iter().enumerate().map(|(share, percent)| line(sizes, share, *percent)).collect();
    let chart = Chart::new(&title, ["bytes of a value", "microseconds"], Scale::Logarithmic, lines);
    Picture::new("latency", vec![chart])
}

fn line(sizes: &[Vec<Place>], share: usize, percent: u64) -> Line {
    let median_us = |places: &Vec<Place>| Spread::of(places[share].quantiles_us[0].iter().copied());
    let points = VALUES_BYTES.iter().map(|bytes| *bytes as f64).zip(sizes.iter().map(median_us));
    Line::new(format!("{percent} % from DRAM"), points)
}
