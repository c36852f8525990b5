//! What one operation of an ordered keyspace takes: its latency, and the reads and writes of flash that it needs, by what it finds. One
//! operation at a time, each write durable before it is answered. Retina's figure 6.5, and its promise of O(1) lookups.

use std::time::{Duration, Instant};

use tapetum::{KeyspaceHandle, KeyspaceKind, Stats, StoreOptions, Sync};
use tapetum_bench::embedded::{create_as, ordered_options, settle, usable};
use tapetum_bench::random::{Random, key16};

use super::embedded::{fill_value, store_items};
use super::row;
use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace::Scratch;

const NAME: &str = "ordered";
const PAGE_BYTES: u64 = 4096;
/// Values that no node takes.
const LONG_BYTES: u64 = 5000;
/// Keys with such values, behind those of all others.
const LONG_FROM: u64 = 1 << 40;
/// The most reads of a lookup in a node and in an extension, and the writes of an update.
const READS_MOST: [u64; 2] = [1, 2];
const WRITES_MOST: u64 = 1;

/// Operations that found the same.
#[derive(Default)]
struct Class {
    label: &'static str,
    took: Vec<Duration>,
    reads: Vec<u64>,
    pages_written: Vec<u64>,
}

impl Class {
    fn new(label: &'static str) -> Class {
        Class { label, ..Class::default() }
    }

    fn add(&mut self, (took, before, after): (Duration, Stats, Stats)) {
        self.took.push(took);
        self.reads.push(after.flash_read_commands - before.flash_read_commands);
        self.pages_written.push((after.flash_write_bytes - before.flash_write_bytes) / PAGE_BYTES);
    }

    fn show(&mut self) {
        if self.took.is_empty() {
            return row(self.label, "none came".into(), "");
        }
        let count = self.took.len();
        let mean = |numbers: &[u64]| numbers.iter().sum::<u64>() as f64 / count as f64;
        self.took.sort_unstable();
        let (median, tail) = (self.took[count / 2].as_micros(), self.took[count * 99 / 100].as_micros());
        let flash = format!("{:.2} reads, {:.2} pages written", mean(&self.reads), mean(&self.pages_written));
        row(self.label, format!("{median} µs, P99 {tail}"), &format!("{flash}, of {count}"));
    }

    fn median(numbers: &[u64]) -> u64 {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }
}

struct Operations {
    keyspace: KeyspaceHandle,
    random: Random,
    items: u64,
    value_bytes: u64,
    value: Vec<u8>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let items = arguments.number("items", 300_000)?;
    let operations = arguments.number("operations", 4000)?;
    let value_bytes = arguments.size("value", 1008)?;
    let capacity = usable(arguments.size("capacity", items * value_bytes * 3 + (512 << 20))?);
    let memory = arguments.size("memory", (items * value_bytes / 8).max(32 << 20))?;
    arguments.finish()?;
    for assume_atomic_writes in [false, true] {
        let way = if assume_atomic_writes { "in place" } else { "shadowed" };
        println!(
            "ordered-operations: {items} items of {value_bytes} bytes, images written {way}, one operation at a time"
        );
        let scratch = Scratch::new("ordered-operations")?;
        let options =
            StoreOptions { assume_atomic_writes, ..ordered_options((capacity, memory), memory, Sync::Always) };
        let store = create_as(&scratch.folder().join("data"), capacity, &options)?;
        let keyspace = store.create_keyspace_of(NAME, KeyspaceKind::Ordered)?;
        store_items((&store, keyspace.keyspace()), 0..items, value_bytes, 1)?;
        let random = Random::new(7);
        let mut all = Operations { keyspace, random, items, value_bytes, value: Vec::new() };
        let long = operations.min(items / 16).max(1);
        for index in 0..long {
            fill_value(index, 0, LONG_BYTES, &mut all.value);
            all.keyspace.put(&key16(LONG_FROM + index), &all.value)?;
        }
        settle(&store)?;
        all.reads(operations, long)?;
        all.writes(operations)?;
        store.close()?;
    }
    Ok(())
}

impl Operations {
    /// Runs an operation, and says how long it took and what the store counted before and after.
    fn timed<T>(
        &mut self,
        run: impl FnOnce(&mut Operations) -> Result<T, Failure>,
    ) -> Result<(T, (Duration, Stats, Stats)), Failure> {
        let before = self.keyspace.store().stats();
        let begun = Instant::now();
        let told = run(self)?;
        let took = begun.elapsed();
        Ok((told, (took, before, self.keyspace.store().stats())))
    }

    fn get(&mut self, index: u64) -> Result<(Duration, Stats, Stats), Failure> {
        let (found, taken) = self.timed(|all| Ok(all.keyspace.get(&key16(index))?))?;
        found.map(|_| taken).ok_or_else(|| "an item that was stored is missing".into())
    }

    fn put(&mut self, index: u64) -> Result<(Duration, Stats, Stats), Failure> {
        fill_value(index, 1, self.value_bytes, &mut self.value);
        let put = |all: &mut Operations| Ok(all.keyspace.put(&key16(index), &all.value).map(drop)?);
        self.timed(put).map(|((), taken)| taken)
    }

    fn reads(&mut self, operations: u64, long: u64) -> Result<(), Failure> {
        let [mut hit, mut missed, mut extension] =
            ["read, node cached", "read, node not cached", "read, value in an extension"].map(Class::new);
        for _ in 0..operations {
            let index = self.random.below(self.items);
            let taken = self.get(index)?;
            if taken.2.node_cache_misses > taken.1.node_cache_misses { &mut missed } else { &mut hit }.add(taken);
            let again = self.get(index)?;
            hit.add(again);
            let index = LONG_FROM + self.random.below(long);
            extension.add(self.get(index)?);
        }
        [&mut hit, &mut missed, &mut extension].into_iter().for_each(Class::show);
        let most = [missed, extension].map(|class| class.reads.into_iter().max().unwrap_or_default());
        row(
            "the most reads of a lookup: in a node; in an extension",
            format!("{}; {}", most[0], most[1]),
            "at most 1; 2",
        );
        super::hold(most[0] <= READS_MOST[0] && most[1] <= READS_MOST[1], "reads of a lookup")
    }

    fn writes(&mut self, operations: u64) -> Result<(), Failure> {
        let [mut hit, mut missed, mut inserted, mut split] =
            ["update, node cached", "update, node not cached", "insert", "insert that splits a node"].map(Class::new);
        for _ in 0..operations {
            let index = self.random.below(self.items);
            let taken = self.put(index)?;
            if taken.2.node_cache_misses > taken.1.node_cache_misses { &mut missed } else { &mut hit }.add(taken);
            let again = self.put(index)?;
            hit.add(again);
        }
        for index in self.items..self.items + operations {
            let taken = self.put(index)?;
            // A new key is one more record in its node's page, or in one of two.
            if taken.2.flash_write_bytes - taken.1.flash_write_bytes > PAGE_BYTES { &mut split } else { &mut inserted }
                .add(taken);
        }
        let writes = [&hit, &missed].map(|class| Class::median(&class.pages_written));
        [&mut hit, &mut missed, &mut inserted, &mut split].into_iter().for_each(Class::show);
        row(
            "pages written by an update: cached; not cached",
            format!("{}; {}", writes[0], writes[1]),
            "1; 1, and no log",
        );
        super::hold(writes.iter().all(|writes| *writes <= WRITES_MOST), "pages written by an update")
    }
}
