//! What GETs wait while a partition of the index grows, against the rest of the same run: 99.9 of 100 within so much time.
//!
//! One thread writes new keys at a steady rate, which is what makes partitions grow, and keeps so many GETs of existing
//! keys on their way. `stats` says when a partition is being built; a GET counts as *growing* when it began or ended
//! while one was.

use std::time::{Duration, Instant};

use tapetum::{KeyspaceRef, Stats};

use super::embedded::{Embedded, VALUE_BYTES, fill_value, store_items};
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use tapetum_bench::embedded::{Answer, Pipe, settle};
use tapetum_bench::random::{Random, key16};

/// New keys on their way.
const WRITES: usize = 1024;
/// How often `stats` is asked whether a partition is being built.
const LOOK: Duration = Duration::from_micros(200);
/// GETs that a 99.9th percentile needs.
const GETS_MIN: f64 = 20_000.0;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let items = arguments.number("items", 5_000_000)?;
    let rate = arguments.number("rate", 50_000)?;
    let depth = arguments.number("depth", 16)?.max(1);
    let limit = Duration::from_secs(arguments.number("seconds", 60)?);
    let capacity = arguments.size("capacity", 6 << 30)?;
    let memory = arguments.size("memory", 512 << 20)?;
    arguments.finish()?;
    let about = format!("{items} items, then {rate} new ones a second and {depth} GETs on their way");
    let mut outcome = Outcome::new(arguments, "growth-latency", about);
    let bench = Embedded::start("growth-latency", capacity, memory)?;
    let store = &bench.store;
    store_items(store, KeyspaceRef::DEFAULT, 0..items, VALUE_BYTES, 2)?;
    settle(store)?;

    let mut writer = Pipe::new(store, KeyspaceRef::DEFAULT, WRITES)?;
    let mut reader = Pipe::new(store, KeyspaceRef::DEFAULT, depth as usize)?;
    let mut random = Random::new(7);
    let mut asked = vec![(0, false); depth as usize];
    let (mut value, mut expected) = (Vec::new(), Vec::new());
    let (mut growing, mut resting) = (Vec::new(), Vec::new());
    let mut growth = Growth::new(store.stats());
    let mut written = 0;
    let begun = Instant::now();
    while begun.elapsed() < limit {
        let now = Instant::now();
        growth.look(now, || store.stats());
        let due = (now - begun).as_micros() as u64 * rate / 1_000_000;
        while written < due && writer.room() > 0 {
            let index = items + written;
            fill_value(index, 0, VALUE_BYTES, &mut value);
            writer.put(now, &key16(index), &value);
            written += 1;
        }
        while reader.room() > 0 {
            let index = random.below(items);
            let token = reader.get(now, &key16(index));
            asked[token] = (index, growth.now);
        }
        let wrote = writer.poll(|_, _, _| Ok(()))?;
        growth.look(Instant::now(), || store.stats());
        let read = reader.poll(|token, found, took| {
            let (index, growing_then) = asked[token];
            fill_value(index, 0, VALUE_BYTES, &mut expected);
            if found != Answer::Value(&expected) {
                return Err(format!("item {index} came back wrong or not at all").into());
            }
            let kind = if growing_then || growth.now { &mut growing } else { &mut resting };
            kind.push(took.as_nanos() as u64);
            Ok(())
        })?;
        if wrote + read == 0 {
            reader.wait();
        }
    }
    while !(writer.is_idle() && reader.is_idle()) {
        writer.poll(|_, _, _| Ok(()))?;
        reader.poll(|_, _, _| Ok(()))?;
    }
    let spent = begun.elapsed();
    let achieved = written as f64 / spent.as_secs_f64();
    let share = growth.time.as_secs_f64() / spent.as_secs_f64();
    let rebuilt = store.stats().partitions_rebuilt - growth.rebuilt_first;
    outcome.hold_once("new keys a second ÷ those asked for", achieved / rate as f64, Reach::AtLeast(0.95));
    outcome.report("partitions built", rebuilt as f64);
    outcome.report("part of the time in which one was", share);
    let rarer = growing.len().min(resting.len());
    outcome.hold_once("GETs of the rarer kind", rarer as f64, Reach::AtLeast(GETS_MIN));
    outcome.columns(&["of the GETs", "while a partition grows, µs", "in the rest, µs"]);
    for (name, per_mille) in [("half", 500), ("99 %", 990), ("99.9 %", 999), ("all", 1000)] {
        let within = [&mut growing, &mut resting].map(|times| percentile(times, per_mille) as f64 / 1000.0);
        outcome.line(name, within.map(Spread::once).into());
    }
    let (growing_tail, resting_tail) = (percentile(&mut growing, 999), percentile(&mut resting, 999));
    let ratio = growing_tail as f64 / resting_tail.max(1) as f64;
    outcome.hold_once("P99.9 of GETs while a partition grows ÷ in the rest", ratio, Reach::AtMost(2.0));
    outcome.report("the longest wait of a write, ms", writer.longest.as_secs_f64() * 1e3);
    store.close()?;
    outcome.end()
}

/// Whether a partition is being built.
struct Growth {
    now: bool,
    looked: Instant,
    rebuilt: u64,
    rebuilt_first: u64,
    /// How long partitions were being built.
    time: Duration,
}

impl Growth {
    fn new(stats: Stats) -> Growth {
        let rebuilt = stats.partitions_rebuilt;
        Growth { now: false, looked: Instant::now(), rebuilt, rebuilt_first: rebuilt, time: Duration::ZERO }
    }

    fn look(&mut self, now: Instant, stats: impl FnOnce() -> Stats) {
        let since = now - self.looked;
        if since < LOOK {
            return;
        }
        let stats = stats();
        // One that began and ended since the last look counts too.
        self.now = stats.partitions_rebuilding > 0 || stats.partitions_rebuilt > self.rebuilt;
        self.rebuilt = stats.partitions_rebuilt;
        self.looked = now;
        if self.now {
            self.time += since;
        }
    }
}

/// The time within which so many in a thousand fall.
fn percentile(times: &mut [u64], per_mille: usize) -> u64 {
    if times.is_empty() {
        return 0;
    }
    let place = (times.len() * per_mille).div_ceil(1000).max(1) - 1;
    *times.select_nth_unstable(place).1
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let mut times: Vec<u64> = (1..=2000).rev().collect();
        assert_eq!(percentile(&mut times, 500), 1000);
        assert_eq!(percentile(&mut times, 999), 1998);
        assert_eq!(percentile(&mut times, 1000), 2000);
        assert_eq!(percentile(&mut [], 999), 0);
    }
}
