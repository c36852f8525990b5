//! Uniform overwrites of incompressible values while the live data is a given part of `--capacity`: how many bytes reach
//! the drive for a byte the user writes, and whether the space limit is kept at every moment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::{Bench, hold, mebibytes, row};
use crate::Failure;
use crate::arguments::Arguments;
use crate::load::{in_parallel, stats, store_all};
use crate::random::{Random, key16, mix};

const CONNECTIONS: u64 = 32;
const KEY_BYTES: u64 = 16;
const BATCH: u64 = 32;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let capacity = arguments.size("capacity", 4 << 30)?;
    let value_bytes = arguments.size("value", 1024)?;
    let fill_percent = arguments.number("fill", 80)?;
    let rounds = arguments.number("rounds", 3)?;
    let options = ["--capacity", &capacity.to_string(), "--memory", "256MiB"];
    let bench = Bench::start("overwrites", arguments, &options)?;
    let address = bench.server().address();

    let items = capacity * fill_percent / 100 / (KEY_BYTES + value_bytes);
    let generation = AtomicU64::new(0);
    let fill_value = |value: &mut Vec<u8>| {
        value.resize(value_bytes as usize, 0);
        Random::new(mix(generation.fetch_add(1, Ordering::Relaxed))).fill(value);
    };
    let watch = SpaceWatch::default();
    std::thread::scope(|scope| -> Result<(), Failure> {
        let watcher = scope.spawn(|| watch.run(&bench));
        let work = || -> Result<(), Failure> {
            store_all(address, CONNECTIONS, items, |index, value| {
                fill_value(value);
                key16(index)
            })?;
            println!("  loaded {items} items of {value_bytes} bytes: {fill_percent} % of {}", mebibytes(capacity));
            for round in 1..=rounds {
                overwrite(&bench, round, items, capacity / value_bytes, fill_value)?;
            }
            Ok(())
        };
        let done = work();
        watch.done.store(true, Ordering::Relaxed);
        watcher.join().expect("the watcher panicked")?;
        done
    })?;
    let limit = stats(address)?.get("flash_limit_bytes")?;
    let (used, on_disk) = (watch.used_max.load(Ordering::Relaxed), watch.on_disk_max.load(Ordering::Relaxed));
    row("flash_limit_bytes", mebibytes(limit), "");
    row("flash_used_bytes, the most seen", mebibytes(used), "never over the limit");
    row("the data directory on disk, the most seen", mebibytes(on_disk), "never over the limit");
    bench.end()?;
    hold(used <= limit && on_disk <= limit.max(capacity), "space never over the limit")
}

/// One round: as many bytes as the capacity, each write to a key drawn uniformly.
fn overwrite(
    bench: &Bench,
    round: u64,
    items: u64,
    writes: u64,
    fill_value: impl Fn(&mut Vec<u8>) + Sync,
) -> Result<(), Failure> {
    let address = bench.server().address();
    let before = stats(address)?;
    in_parallel(address, CONNECTIONS, |connection_index, connection| {
        let mut random = Random::new(mix(round << 32 | connection_index));
        let mut value = Vec::new();
        let mut left = writes / CONNECTIONS;
        while left > 0 {
            let batch = left.min(BATCH);
            for _ in 0..batch {
                fill_value(&mut value);
                connection.queue_set(&key16(random.below(items)), 0, &value);
            }
            connection.flush()?;
            for _ in 0..batch {
                crate::load::expect_stored(connection)?;
            }
            left -= batch;
        }
        Ok(())
    })?;
    let after = stats(address)?;
    let user = after.since(&before, "user_write_bytes")?;
    let drive = after.since(&before, "flash_write_bytes")?;
    let log = after.since(&before, "log_write_bytes")?;
    let per_user_byte = |bytes: u64| format!("{:.2}", bytes as f64 / user.max(1) as f64);
    println!("  round {round}: {} overwritten", mebibytes(user));
    row("device bytes ÷ user bytes, with the log", per_user_byte(drive), "reported");
    row("device bytes ÷ user bytes, without the log", per_user_byte(drive.saturating_sub(log)), "reported");
    Ok(())
}

/// Looks at the space used, by the server's word and by the disk's, many times a second.
#[derive(Default)]
struct SpaceWatch {
    done: AtomicBool,
    used_max: AtomicU64,
    on_disk_max: AtomicU64,
}

impl SpaceWatch {
    fn run(&self, bench: &Bench) -> Result<(), Failure> {
        while !self.done.load(Ordering::Relaxed) {
            let used = stats(bench.server().address())?.get("flash_used_bytes")?;
            self.used_max.fetch_max(used, Ordering::Relaxed);
            self.on_disk_max.fetch_max(bytes_on_disk(&bench.data)?, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// What `du` would say of the folder.
fn bytes_on_disk(folder: &std::path::Path) -> Result<u64, Failure> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let metadata = entry?.metadata()?;
        if metadata.is_file() {
            bytes += metadata.blocks() * 512;
        }
    }
    Ok(bytes)
}
