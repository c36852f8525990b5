//! The time from a restart until DRAM answers as much as before, at a steady rate of zipfian GETs: with the list of hot keys, and without.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::mebibytes;
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use crate::workspace::Scratch;
use tapetum_bench::client::Connection;
use tapetum_bench::server::{Server, ServerOptions};
use tapetum_bench::sockets;
use tapetum_bench::turn::Turn;
use tapetum_bench::workload::{Population, Values};

const VALUE_BYTES: usize = 200;
const KEY_BYTES: u64 = 16;
/// Size of the data as a multiple of DRAM.
const DATA_PARTS: u64 = 8;
const CONNECTIONS: u64 = 16;
/// How often the share that DRAM answers is measured.
const SLICE: Duration = Duration::from_millis(200);
/// The store counts as warm at this part of the share before.
const WARM: f64 = 0.95;
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let memory = arguments.size("memory", 64 << 20)?;
    let items = arguments.optional_number("items")?;
    let rate = arguments.number("rate", 10_000)? as f64;
    let runs = arguments.number("runs", 3)?.max(1);
    let warm_up = Duration::from_secs(arguments.number("warm-up-seconds", 6)?);
    let binary = arguments.server();
    arguments.finish()?;
    let binary = arguments.measured_server(binary)?;
    let scratch = Scratch::new("warm")?;
    let data_bytes = memory * DATA_PARTS;
    let items = items.unwrap_or(data_bytes / (KEY_BYTES + VALUE_BYTES as u64));
    let population = Population::new(items, Values::new(VALUE_BYTES, 100));
    let memory_mib = mebibytes(memory);
    let about = format!("{items} items, --memory {memory_mib}MiB, {rate} zipfian GETs a second after each start");
    let mut outcome = Outcome::new(arguments, "warm", about);
    let [memory, capacity] = [memory, data_bytes * 2].map(|bytes| bytes.to_string());
    let options = ["--cache", "--threads", "1", "--memory", &memory, "--capacity", &capacity];
    let with_list = ServerOptions::new(&binary, &scratch.folder().join("data"), &options)?;
    let mut without_list = with_list.clone();
    without_list.options.extend(["--hot-keys-every", "0"].map(str::to_owned));

    let server = with_list.start()?;
    sockets::load(with_list.address, &population, 0..items)?;
    sockets::settle(server.process())?;
    // At full speed, so that it gets as warm as possible.
    dram_share(&server, &population, &turn(arguments.time(warm_up), None, 1))?;
    let before = dram_share(&server, &population, &turn(arguments.time(Duration::from_secs(2)), Some(rate), 2))?;
    server.terminate()?;
    outcome.report("part of the GETs that DRAM answered before", before);
    let patience = arguments.time(PATIENCE);
    let mut took = [Vec::new(), Vec::new()];
    for run in 1..=runs {
        for ((options, name), took) in [(&without_list, "without"), (&with_list, "with")].into_iter().zip(&mut took) {
            let warmed = Warmed::measure(options, &population, before * WARM, patience, rate, run)?;
            println!(
                "  run {run}: {:.3} at first {name} the list; of {} listed keys {} are in DRAM",
                warmed.first, warmed.stats["hot_keys_listed"], warmed.stats["hot_keys_warmed"],
            );
            took.push(warmed.after.unwrap_or(patience).as_secs_f64());
        }
    }
    let [without, with] = took;
    let ratios = with.iter().zip(&without).map(|(with, without)| with / without);
    let what = "until DRAM answers 95 % of that again, with the list ÷ without";
    outcome.hold(what, Spread::of(ratios), Reach::AtMost(0.5));
    outcome.hold("the same in seconds, with the list", Spread::of(with), Reach::Reported);
    outcome.hold("the same in seconds, without it", Spread::of(without), Reach::Reported);
    outcome.end()
}

/// Results of one start.
struct Warmed {
    /// The share of the first GETs that DRAM answered.
    first: f64,
    after: Option<Duration>,
    stats: BTreeMap<String, String>,
}

impl Warmed {
    /// Starts the server, sends GETs until DRAM answers `share` of them, and stops it.
    fn measure(
        options: &ServerOptions,
        population: &Population,
        share: f64,
        patience: Duration,
        rate: f64,
        seed: u64,
    ) -> Result<Warmed, Failure> {
        let server = options.start()?;
        let begun = Instant::now();
        let (mut first, mut after) = (None, None);
        for slice in 0.. {
            let found = dram_share(&server, population, &turn(SLICE, Some(rate), seed << 32 | slice))?;
            first.get_or_insert(found);
            if found >= share {
                after = Some(begun.elapsed());
            }
            if after.is_some() || begun.elapsed() > patience {
                break;
            }
        }
        let stats = Connection::open(server.address())?.stats("")?;
        server.terminate()?;
        Ok(Warmed { first: first.unwrap_or(0.0), after, stats })
    }
}

/// The share of a turn's GETs that DRAM answered.
fn dram_share(server: &Server, population: &Population, turn: &Turn) -> Result<f64, Failure> {
    let before = answered(server)?;
    sockets::run(server.address(), population, turn)?;
    let after = answered(server)?;
    Ok((after[0] - before[0]) as f64 / (after[1] - before[1]).max(1) as f64)
}

/// Numbers of GETs that DRAM answered, and of all GETs that found an item.
fn answered(server: &Server) -> Result<[u64; 2], Failure> {
    let stats = Connection::open(server.address())?.stats("")?;
    let figure = |name: &str| stats.get(name).and_then(|text| text.parse().ok()).ok_or(format!("no {name} in stats"));
    Ok([figure("get_from_tier")?, figure("get_hits")?])
}

fn turn(time: Duration, rate: Option<f64>, seed: u64) -> Turn {
    Turn { rate, ..Turn::zipfian_gets(CONNECTIONS, 1, time, seed) }
}
