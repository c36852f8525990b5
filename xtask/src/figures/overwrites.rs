//! Overwrites of incompressible values while the live data is a given part of the capacity: how many bytes reach the drive
//! for a byte that is stored, against what theory allows a greedy collector; how long anyone waits; and whether the space
//! limit is kept at every moment.
//!
//! *Stored bytes* are what an item takes on flash once it is in a segment: the record's head and its entry in a key table
//! included. They are measured: what the first part of the load wrote beside the log, for an item. The fill is theirs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tapetum::{KeyspaceRef, Stats, Store};

use super::embedded::{Embedded, KEY_BYTES, fill_value, store_items};
use super::raw_disk;
use super::{hold, mebibytes, row, seconds};
use crate::Failure;
use crate::arguments::Arguments;
use tapetum_bench::embedded::{Answer, Pipe, keep_full, settle};
use tapetum_bench::random::{Random, Zipfian, key16, mix};

/// YCSB's.
const ZIPFIAN_EXPONENT: f64 = 0.99;
/// One operation in so many is a GET, so that the waits of readers are seen too.
const ONE_GET_IN: u64 = 64;
/// XDP's, at 20 % spare, uniform.
const XDP: f64 = 2.6;
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
    println!("overwrites: capacity {}, values of {value_bytes} bytes", mebibytes(capacity));
    let bench = Embedded::start("overwrites", capacity, memory)?;
    let store = &bench.store;
    let shape = Shape { capacity, value_bytes, rounds };
    let (raw_bytes, done) = (arguments.sized(RAW_BYTES, RAW_BYTES >> 6), AtomicBool::new(false));
    let (worked, space, raw) = std::thread::scope(|scope| {
        let space = scope.spawn(|| Space::watch(&bench, &done));
        let raw = scope.spawn(|| raw_disk::longest_write(bench.folder(), raw_bytes, &done));
        let worked = work(store, &shape, fill_percent);
        done.store(true, Ordering::Relaxed);
        (worked, space.join().expect("the watcher panicked"), raw.join().expect("the raw loop panicked"))
    });
    let (done, space, raw) = (worked?, space?, raw?);
    let limit = store.stats().flash_limit_bytes;
    let ratio = done.zipfian / done.uniform;
    row("zipfian ÷ uniform, by stored bytes", format!("{ratio:.2}"), "at most 0.8");
    row("the longest wait of any operation", seconds(done.longest), &format!("at most {}", seconds(STALL_MAX + raw)));
    row("the longest write of a raw loop on the same disk", seconds(raw), "");
    row("flash_limit_bytes", mebibytes(limit), "");
    row("flash_used_bytes, the most seen", mebibytes(space.used_max), "never over the limit");
    row("the folder by du, the least and the most seen", space.on_disk(), "the limit, within 1/1000; never over");
    store.close()?;
    hold(done.uniform <= 1.1 * done.theory, "uniform write amplification at most 1.1 times greedy theory")?;
    hold(ratio <= 0.8, "zipfian write amplification at most 0.8 times uniform")?;
    hold(done.longest <= STALL_MAX + raw, "no wait longer than 100 ms and the disk's own longest stall")?;
    let kept = space.used_max <= limit && space.on_disk_max <= limit.max(capacity);
    hold(kept, "space never over the limit")?;
    hold(space.on_disk_min.min(space.on_disk_max).abs_diff(limit) <= limit / 1000, "stats equal to what du sees")
}

struct Done {
    uniform: f64,
    zipfian: f64,
    theory: f64,
    longest: Duration,
}

fn work(store: &Store, shape: &Shape, fill_percent: u64) -> Result<Done, Failure> {
    // A tenth first, to see what an item takes.
    let user_bytes = KEY_BYTES + shape.value_bytes;
    let begun = Instant::now();
    let some = shape.capacity / 10 / user_bytes;
    let mut longest = store_items((store, KeyspaceRef::DEFAULT), 0..some, shape.value_bytes, 1)?;
    settle(store)?;
    let stats = store.stats();
    if stats.collections > 0 || stats.index_entries == 0 {
        return Err("a tenth of the load went to no segment, or was collected: give more --capacity".into());
    }
    let stored_each = written(&stats) as f64 / stats.index_entries as f64;
    let live = shape.capacity as f64 * fill_percent as f64 / 100.0;
    let items = (live / stored_each) as u64;
    longest = longest.max(store_items((store, KeyspaceRef::DEFAULT), some..items, shape.value_bytes, 1)?);
    row("stored bytes of an item", format!("{stored_each:.1} B"), &format!("{user_bytes} B of key and value"));
    row("items", items.to_string(), &format!("{fill_percent} % of {}", mebibytes(shape.capacity)));
    row("loaded in", seconds(begun.elapsed()), "");
    let usable = shape.capacity - store.stats().flash_reserve_bytes;
    let fill = live / usable as f64;
    let theory = greedy(fill)?;
    row("fill after reserves", format!("{:.1} %", fill * 100.0), &mebibytes(usable));
    row("write amplification of a greedy collector there", format!("{theory:.2}"), &format!("XDP: {XDP}"));

    let mut overwrites = Overwrites { store, shape, items, stored_each, generation: 0, longest };
    let mut random = Random::new(mix(1));
    let uniform = overwrites.distribution("uniform", || random.below(items))?;
    row("uniform ÷ greedy theory", format!("{:.2}", uniform / theory), "at most 1.1");
    let mut random = Random::new(mix(2));
    let zipfian = Zipfian::new(items, ZIPFIAN_EXPONENT);
    let zipfian = overwrites.distribution("zipfian", || zipfian.draw(&mut random))?;
    Ok(Done { uniform, zipfian, theory, longest: overwrites.longest })
}

/// Everything written beside the log.
fn written(stats: &Stats) -> u64 {
    stats.flash_write_bytes - stats.log_write_bytes
}

struct Overwrites<'a> {
    store: &'a Store,
    shape: &'a Shape,
    items: u64,
    stored_each: f64,
    generation: u64,
    longest: Duration,
}

impl Overwrites<'_> {
    /// Rounds of as many bytes as the capacity, and half a one more, over which the figure is taken: device bytes without
    /// the log for a stored byte.
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
        let longest = keep_full((self.store, KeyspaceRef::DEFAULT), next, here)?;
        self.longest = self.longest.max(longest);
        let spent = begun.elapsed().as_secs_f64();
        let after = self.store.stats();
        let device = (written(&after) - written(&before)) as f64;
        let user = (after.user_write_bytes - before.user_write_bytes) as f64;
        let stored = user / (KEY_BYTES + self.shape.value_bytes) as f64 * self.stored_each;
        let log = (after.log_write_bytes - before.log_write_bytes) as f64;
        println!(
            "  {what:<20} {:.0} writes/s, longest wait {}; written without the log: {:.2} a stored byte, {:.2} a user byte \
             (with it {:.2}); {} collections, {} items",
            writes as f64 / spent,
            seconds(longest),
            device / stored,
            device / user,
            (device + log) / user,
            after.collections - before.collections,
            self.items,
        );
        Ok(device / stored)
    }
}

/// What a collector that takes the emptiest segment first must write for each byte, with uniform overwrites and the live
/// data filling so much of the space: 1/(1−ρ), where (ρ−1)/ln ρ is the fill.
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

/// Space by the store's word and by the disk's, many times a second.
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

    fn on_disk(&self) -> String {
        format!("{} / {}", mebibytes(self.on_disk_min), mebibytes(self.on_disk_max))
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
