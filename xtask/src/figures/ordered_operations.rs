//! The cost of one operation of an ordered keyspace: its latency, and its reads and writes of flash, by the situation it finds. One
//! operation at a time, and each write durable before it is answered. Retina's figure 6.5, and its promise of O(1) lookups.

use std::time::{Duration, Instant};

use tapetum::{KeyspaceHandle, KeyspaceKind, Stats, StoreOptions, Sync};
use tapetum_bench::embedded::{create_as, ordered_options, settle, usable};
use tapetum_bench::random::{Random, key16};

use super::embedded::{fill_value, store_items};
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::bars::{Bar, BarSet, Bars};
use crate::results::chart::Scale;
use crate::results::outcome::{Outcome, Reach};
use crate::results::picture::Picture;
use crate::results::spread::Spread;
use crate::workspace::Scratch;

const NAME: &str = "ordered";
const PAGE_BYTES: u64 = 4096;
/// Length of values that do not fit into a node.
const LONG_BYTES: u64 = 5000;
/// Keys with such values follow all others.
const LONG_FROM: u64 = 1 << 40;
/// The most reads of a lookup in a node and in an extension, and the most writes of an update.
const READS_MOST: [f64; 2] = [1.0, 2.0];
const WRITES_MOST: f64 = 1.0;

/// The time of an operation, and the store's figures around it.
struct TimedOperation {
    took: Duration,
    before: Stats,
    after: Stats,
}

/// Operations in the same situation.
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

    fn add(&mut self, timed: TimedOperation) {
        let TimedOperation { took, before, after } = timed;
        self.took.push(took);
        self.reads.push(after.flash_read_commands - before.flash_read_commands);
        self.pages_written.push((after.flash_write_bytes - before.flash_write_bytes) / PAGE_BYTES);
    }

    /// A line of the table and a bar, if there were any operations.
    fn tell(&mut self, outcome: &mut Outcome, way: &mut BarSet) {
        let count = self.took.len();
        if count == 0 {
            return;
        }
        let mean = |numbers: &[u64]| numbers.iter().sum::<u64>() as f64 / count as f64;
        self.took.sort_unstable();
        let within = [count / 2, count * 99 / 100].map(|place| self.took[place].as_secs_f64() * 1e6);
        let figures = [within[0], within[1], mean(&self.reads), mean(&self.pages_written), count as f64];
        outcome.line(format!("{}: {}", way.name, self.label), figures.map(Spread::once).into());
        let bar = Spread { low: within[0], median: within[0], high: within[1], turns: Vec::new() };
        way.bars.push(Bar { label: self.label.to_owned(), value: bar });
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
    let about = format!("{items} items of {value_bytes} bytes, one durable operation at a time");
    let mut outcome = Outcome::new(arguments, "ordered-operations", about);
    outcome.columns(&["operation", "median µs", "P99 µs", "flash reads", "pages written", "seen"]);
    let mut sets = Vec::new();
    for assume_atomic_writes in [false, true] {
        let name = if assume_atomic_writes { "in place" } else { "shadowed" };
        let mut way = BarSet { name: name.to_owned(), bars: Vec::new() };
        let scratch = Scratch::new("ordered-operations")?;
        let options = StoreOptions { assume_atomic_writes, ..ordered_options(capacity, memory, memory, Sync::Always) };
        let store = create_as(&scratch.folder().join("data"), capacity, &options)?;
        let keyspace = store.create_keyspace_of(NAME, KeyspaceKind::Ordered)?;
        store_items(&store, keyspace.keyspace(), 0..items, value_bytes, 1)?;
        let random = Random::new(7);
        let mut all = Operations { keyspace, random, items, value_bytes, value: Vec::new() };
        let long = operations.min(items / 16).max(1);
        for index in 0..long {
            fill_value(index, 0, LONG_BYTES, &mut all.value);
            all.keyspace.put(&key16(LONG_FROM + index), &all.value)?;
        }
        settle(&store)?;
        all.reads(operations, long, &mut outcome, &mut way)?;
        all.writes(operations, &mut outcome, &mut way)?;
        store.close()?;
        sets.push(way);
    }
    let (title, x_label) = ("One operation of an ordered keyspace".into(), "µs: median, and up to P99".into());
    let bars = Bars { title, x_label, scale: Scale::Logarithmic, sets };
    outcome.picture(Picture::of_bars("ordered-operations", bars));
    outcome.end()
}

impl Operations {
    /// Runs an operation. Returns its latency, and the store's counters before and after.
    fn timed<T>(
        &mut self,
        run: impl FnOnce(&mut Operations) -> Result<T, Failure>,
    ) -> Result<(T, TimedOperation), Failure> {
        let before = self.keyspace.store().stats();
        let begun = Instant::now();
        let told = run(self)?;
        let took = begun.elapsed();
        Ok((told, TimedOperation { took, before, after: self.keyspace.store().stats() }))
    }

    fn get(&mut self, index: u64) -> Result<TimedOperation, Failure> {
        let (found, taken) = self.timed(|all| Ok(all.keyspace.get(&key16(index))?))?;
        found.map(|_| taken).ok_or_else(|| "an item that was stored is missing".into())
    }

    fn put(&mut self, index: u64) -> Result<TimedOperation, Failure> {
        fill_value(index, 1, self.value_bytes, &mut self.value);
        let put = |all: &mut Operations| Ok(all.keyspace.put(&key16(index), &all.value).map(drop)?);
        self.timed(put).map(|((), taken)| taken)
    }

    fn reads(&mut self, operations: u64, long: u64, outcome: &mut Outcome, way: &mut BarSet) -> Result<(), Failure> {
        let [mut hit, mut missed, mut extension] =
            ["read, node cached", "read, node not cached", "read, value in an extension"].map(Class::new);
        for _ in 0..operations {
            let index = self.random.below(self.items);
            let taken = self.get(index)?;
            if taken.after.node_cache_misses > taken.before.node_cache_misses { &mut missed } else { &mut hit }
                .add(taken);
            let again = self.get(index)?;
            hit.add(again);
            let index = LONG_FROM + self.random.below(long);
            extension.add(self.get(index)?);
        }
        [&mut hit, &mut missed, &mut extension].into_iter().for_each(|class| class.tell(outcome, way));
        for (class, most) in [missed, extension].into_iter().zip(READS_MOST) {
            let reads = class.reads.into_iter().max().unwrap_or_default();
            let what = format!("{}: flash reads of a {}, the most", way.name, class.label);
            outcome.hold_once(what, reads as f64, Reach::AtMost(most));
        }
        Ok(())
    }

    fn writes(&mut self, operations: u64, outcome: &mut Outcome, way: &mut BarSet) -> Result<(), Failure> {
        let [mut hit, mut missed, mut inserted, mut split] =
            ["update, node cached", "update, node not cached", "insert", "insert that splits a node"].map(Class::new);
        for _ in 0..operations {
            let index = self.random.below(self.items);
            let taken = self.put(index)?;
            if taken.after.node_cache_misses > taken.before.node_cache_misses { &mut missed } else { &mut hit }
                .add(taken);
            let again = self.put(index)?;
            hit.add(again);
        }
        for index in self.items..self.items + operations {
            let taken = self.put(index)?;
            // A new key adds one record to its node's page; if the node is split, two pages are written.
            if taken.after.flash_write_bytes - taken.before.flash_write_bytes > PAGE_BYTES {
                &mut split
            } else {
                &mut inserted
            }
            .add(taken);
        }
        for class in [&hit, &missed] {
            let pages = Class::median(&class.pages_written) as f64;
            outcome.hold_once(
                format!("{}: pages written by an {}", way.name, class.label),
                pages,
                Reach::AtMost(WRITES_MOST),
            );
        }
        [&mut hit, &mut missed, &mut inserted, &mut split].into_iter().for_each(|class| class.tell(outcome, way));
        Ok(())
    }
}
