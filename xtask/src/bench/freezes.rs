//! What freezes cost: GETs and PUTs of both engines beside a freeze that is held, and without one, in turns; the pause of writers, by the nodes that
//! differ from flash; and what a freeze keeps of flash and memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tapetum::{FreezeOptions, FreezeReport, KeyspaceKind, Options, Store, Sync};

use super::mixed_load::Workload;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use crate::{Failure, workspace};

const MEMORY_BYTES: u64 = 512 << 20;
const CAPACITY_BYTES: u64 = 6 << 30;
const VALUE_BYTES: usize = 400;
/// The least of the throughput beside a freeze.
const KEPT_LEAST: f64 = 0.95;
const PAUSE_MS_MOST: f64 = 500.0;
const PAUSE_FEW_MS_MOST: f64 = 50.0;
/// Nodes that are changed before a freeze; the last one is more than a second's write-back leaves.
const CHANGED: [u64; 4] = [0, 100, 1000, 20_000];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let items = arguments.number("items", 1_000_000)?;
    let rounds = arguments.number("rounds", 7)?;
    let seconds = arguments.number("seconds", 10)?;
    arguments.finish()?;
    let scratch = workspace::Scratch::new("freezes")?;
    let options = Options::new().capacity_bytes(CAPACITY_BYTES).memory_bytes(MEMORY_BYTES).sync(Sync::EverySecond);
    let store = options.open(scratch.folder().join("data"))?;
    let about = format!("{items} items of {VALUE_BYTES} bytes in a keyspace of each kind; 512 MiB of memory, everysec");
    let mut outcome = Outcome::new(arguments, "freezes", about);
    for (name, kind) in [("hashed", KeyspaceKind::Hashed), ("ordered", KeyspaceKind::Ordered)] {
        let keyspace = store.create_keyspace_of(name, kind)?;
        let mut load = Workload::new(&store, &keyspace, items, vec![7; VALUE_BYTES])?;
        load.fill()?;
        for gets in [true, false] {
            beside(&mut outcome, (&store, &mut load), (name, gets), rounds, Duration::from_secs(seconds))?;
        }
        if kind == KeyspaceKind::Ordered {
            pauses(&mut outcome, &store, &mut load, rounds)?;
            pause_under_load(&mut outcome, &store, &mut load, rounds)?;
        }
    }
    store.close()?;
    outcome.end()
}

fn options() -> FreezeOptions {
    FreezeOptions { owner: "bench".into(), lasts: Duration::from_secs(3600), flash_bytes_max: Some(u64::MAX) }
}

/// Turns without a freeze and beside one, which is taken before its turn.
fn beside(
    outcome: &mut Outcome,
    (store, load): (&Store, &mut Workload<'_>),
    (name, gets): (&str, bool),
    rounds: u64,
    length: Duration,
) -> Result<(), Failure> {
    let (mut kept, mut held) = (Vec::new(), Vec::new());
    load.turn(gets, length)?;
    for round in 0..rounds {
        let mut rates = [0.0; 2];
        // The order changes from round to round.
        for with_freeze in [round % 2 == 0, round % 2 == 1] {
            let freeze = if with_freeze { Some(store.freeze(&options())?) } else { None };
            rates[usize::from(with_freeze)] = load.turn(gets, length)?;
            if let Some(freeze) = freeze {
                freeze.check()?;
                held.push(freeze.report());
            }
        }
        kept.push(rates[1] / rates[0]);
    }
    let what = if gets { "GETs" } else { "half PUTs" };
    let kept = Spread::of(kept);
    println!("  {name}, {what}: {}", kept.shown());
    outcome.hold(format!("{name}, {what} beside a freeze ÷ without"), kept, Reach::AtLeast(KEPT_LEAST));
    let mib = |bytes: fn(&FreezeReport) -> u64| Spread::of(held.iter().map(|report| bytes(report) as f64 / 1048576.0));
    outcome.hold(
        format!("{name}, {what}: MiB of flash held after {} s", length.as_secs()),
        mib(|report| report.flash_bytes),
        Reach::Reported,
    );
    outcome.hold(format!("{name}, {what}: MiB of memory"), mib(|report| report.memory_bytes), Reach::Reported);
    Ok(())
}

/// The pause of those who write to ordered keyspaces.
fn pauses(outcome: &mut Outcome, store: &Store, load: &mut Workload<'_>, rounds: u64) -> Result<(), Failure> {
    for changed in CHANGED {
        let (mut pauses, mut whole, mut copied) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            while store.stats().node_cache_dirty_bytes > 0 {
                std::thread::sleep(Duration::from_millis(50));
            }
            load.put(changed)?;
            let begun = Instant::now();
            let freeze = store.freeze(&options())?;
            whole.push(begun.elapsed().as_secs_f64() * 1e3);
            let report = freeze.report();
            pauses.push(report.pause_us as f64 / 1e3);
            copied.push(report.copied_nodes as f64);
        }
        let named = format!("{changed} keys changed just before");
        let most = if changed < 1000 { PAUSE_FEW_MS_MOST } else { PAUSE_MS_MOST };
        outcome.hold(format!("{named}: pause of writers, ms"), Spread::of(pauses), Reach::AtMost(most));
        outcome.hold(format!("{named}: nodes copied"), Spread::of(copied), Reach::Reported);
        outcome.hold(format!("{named}: until the freeze is there, ms"), Spread::of(whole), Reach::Reported);
    }
    Ok(())
}

/// The pause beside one who writes as fast as it goes.
fn pause_under_load(outcome: &mut Outcome, store: &Store, load: &mut Workload<'_>, rounds: u64) -> Result<(), Failure> {
    let is_over = AtomicBool::new(false);
    let reports = std::thread::scope(|scope| -> Result<Vec<FreezeReport>, Failure> {
        let writes = scope.spawn(|| -> Result<(), String> {
            while !is_over.load(Ordering::Relaxed) {
                load.put(4096).map_err(|error| error.to_string())?;
            }
            Ok(())
        });
        let freeze = |_| {
            std::thread::sleep(Duration::from_secs(1));
            Ok(store.freeze(&options())?.report())
        };
        let reports = (0..rounds).map(freeze).collect();
        is_over.store(true, Ordering::Relaxed);
        writes.join().map_err(|_| "the writer panicked")??;
        reports
    })?;
    let of = |figure: fn(&FreezeReport) -> f64| Spread::of(reports.iter().map(figure));
    let pause = of(|report| report.pause_us as f64 / 1e3);
    outcome.hold("under full load: pause of writers, ms", pause, Reach::AtMost(PAUSE_MS_MOST));
    outcome.hold("under full load: nodes copied", of(|report| report.copied_nodes as f64), Reach::Reported);
    Ok(())
}
