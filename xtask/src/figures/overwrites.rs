//! Overwrites of incompressible values while live data takes a given part of the capacity: bytes written to the drive per stored byte,
//! compared with the theory of a greedy collector; the longest waits; and whether the space limit always holds.
//!
//! *Stored bytes* are the flash bytes of an item in a segment, including the record's head and its entry in a key table. They are measured:
//! bytes per item that the first part of the load wrote outside the log. The fill is computed from them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tapetum::{KeyspaceRef, Stats, Store};

use super::embedded::{Embedded, KEY_BYTES, fill_value, store_items};
use super::{mebibytes, raw_disk};
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use tapetum_bench::embedded::{Answer, Pipe, keep_full, settle};
use tapetum_bench::random::{Random, Zipfian, key16, mix};

/// YCSB's exponent.
const ZIPFIAN_EXPONENT: f64 = 0.99;
/// One operation in so many is a GET, so that readers' waits are measured too.
const ONE_GET_IN: u64 = 64;
/// The file of the raw loop.
const RAW_BYTES: u64 = 64 << 20;
const STALL_MAX: Duration = Duration::from_millis(100);

struct Shape {
    capacity: u64,
    value_bytes: u64,
    rounds: u64,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let capacity = arguments.size("capacity", 4 << 30)?;
    let memory = arguments.size("memory", 256 << 20)?;
    let value_bytes = arguments.size("value", 100)?;
    let fill_percent = arguments.number("fill", 80)?;
    let rounds = arguments.number("rounds", 3)?;
    arguments.finish()?;
    let capacity_mib = mebibytes(capacity);
    let about = format!("capacity {capacity_mib} MiB, {fill_percent} % full, values of {value_bytes} bytes");
    let mut outcome = Outcome::new(arguments, "overwrites", about);
    outcome.columns(&[
        "round",
        "writes/s",
        "longest wait, ms",
        "written without the log, a stored byte",
        "a user byte",
        "with the log, a user byte",
        "collections",
    ]);
    let bench = Embedded::start("overwrites", capacity, memory)?;
    let store = &bench.store;
    let shape = Shape { capacity, value_bytes, rounds };
    let (raw_bytes, done) = (arguments.sized(RAW_BYTES, RAW_BYTES >> 6), AtomicBool::new(false));
    let (worked, space, raw) = std::thread::scope(|scope| {
        let space = scope.spawn(|| Space::watch(&bench, &done));
        let raw = scope.spawn(|| raw_disk::longest_write(bench.folder(), raw_bytes, &done));
        let worked = work(&mut outcome, store, &shape, fill_percent);
        done.store(true, Ordering::Relaxed);
        (worked, space.join().expect("the watcher panicked"), raw.join().expect("the raw loop panicked"))
    });
    let (done, space, raw) = (worked?, space?, raw?);
    let limit = store.stats().flash_limit_bytes;
    let mut hold = |what: &str, found: f64, most: f64| outcome.hold_once(what, found, Reach::AtMost(most));
    hold("written a stored byte, uniform ÷ greedy theory", done.uniform / done.theory, 1.1);
    hold("written a stored byte, zipfian ÷ uniform", done.zipfian / done.uniform, 0.8);
    // No operation can wait less than the disk makes it wait.
    let wait_most_ms = (STALL_MAX + raw).as_secs_f64() * 1e3;
    hold("the longest wait of any operation, ms", done.longest.as_secs_f64() * 1e3, wait_most_ms);
    hold("flash_used_bytes ÷ flash_limit_bytes, the most seen", space.used_max as f64 / limit as f64, 1.0);
    hold("the file by du ÷ its limit, the most seen", space.on_disk_max as f64 / limit.max(capacity) as f64, 1.0);
    let apart = space.on_disk_min.min(space.on_disk_max).abs_diff(limit) as f64 / limit as f64;
    hold("the file by du and flash_limit_bytes, apart by", apart, 0.001);
    outcome.report("the longest write of a raw loop on the same disk, ms", raw.as_secs_f64() * 1e3);
    store.close()?;
    outcome.end()
}

struct Done {
    uniform: f64,
    zipfian: f64,
    theory: f64,
    longest: Duration,
}

fn work(outcome: &mut Outcome, store: &Store, shape: &Shape, fill_percent: u64) -> Result<Done, Failure> {
    // A tenth first, to measure the stored bytes of an item.
    let user_bytes = KEY_BYTES + shape.value_bytes;
    let some = shape.capacity / 10 / user_bytes;
    let mut longest = store_items(store, KeyspaceRef::DEFAULT, 0..some, shape.value_bytes, 1)?;
    settle(store)?;
    let stats = store.stats();
    if stats.collections > 0 || stats.index_entries == 0 {
        return Err("a tenth of the load went to no segment, or was collected: give more --capacity".into());
    }
    let stored_each = written(&stats) as f64 / stats.index_entries as f64;
    let live = shape.capacity as f64 * fill_percent as f64 / 100.0;
    let items = (live / stored_each) as u64;
    longest = longest.max(store_items(store, KeyspaceRef::DEFAULT, some..items, shape.value_bytes, 1)?);
    outcome.report("items", items as f64);
    outcome.report("stored bytes of an item", stored_each);
    let usable = shape.capacity - store.stats().flash_reserve_bytes;
    let fill = live / usable as f64;
    let theory = greedy(fill)?;
    outcome.report("fill after reserves", fill);
    outcome.report("write amplification of a greedy collector there (XDP says 2.6 at 0.8)", theory);

    let mut overwrites = Overwrites { outcome, store, shape, stored_each, generation: 0, longest };
    let mut random = Random::new(mix(1));
    let uniform = overwrites.distribution("uniform", || random.below(items))?;
    let mut random = Random::new(mix(2));
    let zipfian = Zipfian::new(items, ZIPFIAN_EXPONENT);
    let zipfian = overwrites.distribution("zipfian", || zipfian.draw(&mut random))?;
    Ok(Done { uniform, zipfian, theory, longest: overwrites.longest })
}

/// Bytes written outside the log.
fn written(stats: &Stats) -> u64 {
    stats.flash_write_bytes - stats.log_write_bytes
}

struct Overwrites<'a> {
    outcome: &'a mut Outcome,
    store: &'a Store,
    shape: &'a Shape,
    stored_each: f64,
    generation: u64,
    longest: Duration,
}

impl Overwrites<'_> {
    /// Overwrites as many bytes as the capacity in each round, then half as many, over which it measures: device bytes without the log
    /// per stored byte.
    fn distribution(&mut self, name: &str, mut draw: impl FnMut() -> u64) -> Result<f64, Failure> {
        let round = self.shape.capacity / (KEY_BYTES + self.shape.value_bytes);
        for number in 1..=self.shape.rounds {
            self.overwrite(&format!("{name}, round {number}"), round, &mut draw)?;
        }
        self.overwrite(&format!("{name}, measured"), round / 2, &mut draw)
    }

    fn overwrite(&mut self, what: &str, writes: u64, draw: &mut impl FnMut() -> u64) -> Result<f64, Failure> {
        let before = self.store.stats();
        let begun = Instant::now();
        let mut left = writes;
        let mut value = Vec::new();
        let next = |pipe: &mut Pipe, now: Instant| {
            if left == 0 {
                return false;
            }
            let index = draw();
            if left.is_multiple_of(ONE_GET_IN) {
                pipe.get(now, &key16(index));
            } else {
                self.generation += 1;
                fill_value(index, self.generation, self.shape.value_bytes, &mut value);
                pipe.put(now, &key16(index), &value);
            }
            left -= 1;
            true
        };
        let here = |answer: Answer<'_>| match answer {
            Answer::Missing => Err("an item is not there".into()),
            _ => Ok(()),
        };
        let longest = keep_full(self.store, KeyspaceRef::DEFAULT, next, here)?;
        self.longest = self.longest.max(longest);
        let spent = begun.elapsed().as_secs_f64();
        let after = self.store.stats();
        let device = (written(&after) - written(&before)) as f64;
        let user = (after.user_write_bytes - before.user_write_bytes) as f64;
        let stored = user / (KEY_BYTES + self.shape.value_bytes) as f64 * self.stored_each;
        let log = (after.log_write_bytes - before.log_write_bytes) as f64;
        let figures = [
            writes as f64 / spent,
            longest.as_secs_f64() * 1e3,
            device / stored,
            device / user,
            (device + log) / user,
            (after.collections - before.collections) as f64,
        ];
        self.outcome.line(what, figures.map(Spread::once).into());
        Ok(device / stored)
    }
}

/// The theoretical bytes that a greedy collector (which takes the emptiest segment first) writes per byte, with uniform overwrites and live
/// data filling this part of the space: 1/(1−ρ), where (ρ−1)/ln ρ is the fill.
fn greedy(fill: f64) -> Result<f64, Failure> {
    if !(0.05..0.99).contains(&fill) {
        return Err(format!("{:.1} % of the space after reserves: give another --fill", fill * 100.0).into());
    }
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if (middle - 1.0) / middle.ln() < fill { low = middle } else { high = middle }
    }
    Ok(1.0 / (1.0 - low))
}

/// Space used according to the store and to the disk, sampled many times a second.
struct Space {
    used_max: u64,
    on_disk_min: u64,
    on_disk_max: u64,
}

impl Space {
    fn watch(bench: &Embedded, done: &AtomicBool) -> Result<Space, Failure> {
        let mut space = Space { used_max: 0, on_disk_min: u64::MAX, on_disk_max: 0 };
        while !done.load(Ordering::Relaxed) {
            space.used_max = space.used_max.max(bench.store.stats().flash_used_bytes);
            let on_disk = bench.bytes_on_disk()?;
            space.on_disk_min = space.on_disk_min.min(on_disk);
            space.on_disk_max = space.on_disk_max.max(on_disk);
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(space)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn greedy_theory_gives_the_known_points() {
        // ρ = 1/2: the fill is 0.5/ln 2.
        assert!((super::greedy(0.5 / std::f64::consts::LN_2).unwrap() - 2.0).abs() < 1e-6);
        let at_80 = super::greedy(0.8).unwrap();
        assert!((2.6..2.8).contains(&at_80), "{at_80}");
        assert!(super::greedy(1.2).is_err());
    }
}
