//! DRAM bytes of the index per entry, as the store grows without a hint of its size: at every count between two, and at a large one; the
//! growth while a partition is rebuilt; and a projection to far larger drives.
//!
//! Resident memory is measured empty, with its pools touched, and again at rest with the entries; key tables are excluded, because they are
//! kept only if the budget has room. The index is measured by `stats`, a thousand times a second during the load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tapetum::index::IndexGeometry;
use tapetum::{KeyspaceRef, Stats, Store, StoreOptions};

use super::embedded::{Embedded, VALUE_BYTES, store_items, touch_pools};
use super::mebibytes;
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use tapetum_bench::embedded::settle;
use tapetum_bench::process;

/// The most DRAM bytes per entry, at every count and at the last.
const EACH_MOST: f64 = 3.0;
const LAST_MOST: f64 = 2.6;
/// How far the store's own count may differ from the process's memory.
const APART_MOST: f64 = 0.15;
const PEAK_MOST: f64 = 1.1;
/// Stops between the two counts at which the store is idle and its memory is measured.
const STOPS: u64 = 20;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let from = arguments.number("from", 20_000_000)?;
    let to = arguments.number("to", 40_000_000)?.max(from);
    let last = arguments.number("final", 100_000_000)?;
    let threads = arguments.number("threads", 2)?.max(1);
    let capacity = arguments.size("capacity", 22 << 30)?;
    let memory = arguments.size("memory", 1536 << 20)?;
    arguments.finish()?;
    let about = format!("{from} to {to} entries, then {last}; capacity {} MiB", mebibytes(capacity));
    let mut outcome = Outcome::new(arguments, "index-scale", about);
    let count = arguments.sized(STOPS, 1);
    // As in the server, so that resident memory is memory in use.
    tapetum_server::os::return_freed_memory();
    let bench = Embedded::start("index-scale", capacity, memory)?;
    let store = &bench.store;
    touch_pools(store, arguments)?;
    let empty = Rest::take(store)?;

    let watch = Watch { from, to, done: AtomicBool::new(false) };
    let (stops, end, seen) = std::thread::scope(|scope| -> Result<_, Failure> {
        let watcher = scope.spawn(|| watch.run(store));
        let work = || -> Result<(Vec<Rest>, Option<Rest>), Failure> {
            let mut stops = Vec::new();
            let mut stored = 0;
            for stop in 0..=count {
                let until = from + (to - from) * stop / count;
                stops.push(load_to(store, &mut stored, until, threads)?);
            }
            let end = if last > to { Some(load_to(store, &mut stored, last, threads)?) } else { None };
            Ok((stops, end))
        };
        let done = work();
        watch.done.store(true, Ordering::Relaxed);
        let seen = watcher.join().expect("the watcher panicked");
        let (stops, end) = done?;
        Ok((stops, end, seen))
    })?;

    outcome.columns(&["entries, at rest", "as resident memory grew, B an entry", "by stats, B an entry"]);
    for rest in stops.iter().chain(&end) {
        let each = [rest.resident_each(&empty), rest.stated_each()];
        outcome.line(rest.stats.index_entries.to_string(), each.map(Spread::once).into());
    }
    let worst_of = |each: &dyn Fn(&Rest) -> f64| stops.iter().map(each).fold(0.0, f64::max);
    let worst_resident = worst_of(&|rest| rest.resident_each(&empty));
    let worst_stated = seen.worst_each.max(worst_of(&Rest::stated_each));
    let mut hold = |what: &str, found: f64, most: f64| outcome.hold_once(what, found, Reach::AtMost(most));
    hold("B an entry, the worst at rest, as resident memory grew", worst_resident, EACH_MOST);
    hold("B an entry, the worst at any moment, by stats", worst_stated, EACH_MOST);
    if let Some(end) = &end {
        let entries = end.stats.index_entries;
        hold(&format!("B an entry at {entries}, as resident memory grew"), end.resident_each(&empty), LAST_MOST);
        hold(&format!("B an entry at {entries}, by stats"), end.stated_each(), LAST_MOST);
    }
    let basis = end.as_ref().or(stops.last()).expect("there is a stop");
    let apart = (basis.resident_each(&empty) / basis.stated_each() - 1.0).abs();
    hold("resident memory and stats at the last count, apart by", apart, APART_MOST);
    hold("the index while a partition is built ÷ before, the most", seen.peak, PEAK_MOST);
    outcome.hold_once("times that a partition was seen growing", seen.windows as f64, Reach::AtLeast(1.0));
    outcome.report("partitions built", store.stats().partitions_rebuilt as f64);
    projection(&mut outcome, &basis.stats, capacity, memory)?;
    store.close()?;
    outcome.end()
}

struct Rest {
    /// Without key tables, which are kept only if the budget has room.
    resident_bytes: u64,
    stats: Stats,
}

impl Rest {
    fn take(store: &Store) -> Result<Rest, Failure> {
        let stats = store.stats();
        let resident_bytes = process::read(std::process::id())?.resident_bytes;
        Ok(Rest { resident_bytes: resident_bytes - stats.key_tables_bytes, stats })
    }

    fn resident_each(&self, empty: &Rest) -> f64 {
        let grown = self.resident_bytes.saturating_sub(empty.resident_bytes);
        grown as f64 / self.stats.index_entries.saturating_sub(empty.stats.index_entries).max(1) as f64
    }

    fn stated_each(&self) -> f64 {
        each(&self.stats)
    }
}

fn each(stats: &Stats) -> f64 {
    stats.index_bytes as f64 / stats.index_entries.max(1) as f64
}

/// Stores items from `stored` on until the index has so many entries; the last items wait in a write buffer.
fn load_to(store: &Store, stored: &mut u64, entries: u64, threads: u64) -> Result<Rest, Failure> {
    while store.stats().index_entries < entries {
        let more = (entries - store.stats().index_entries).max(entries / 200);
        store_items(store, KeyspaceRef::DEFAULT, *stored..*stored + more, VALUE_BYTES, threads)?;
        *stored += more;
        settle(store)?;
    }
    Rest::take(store)
}

/// Measures the index while it grows.
struct Watch {
    from: u64,
    to: u64,
    done: AtomicBool,
}

#[derive(Default)]
struct Seen {
    windows: u64,
    /// The most bytes per entry between the two counts.
    worst_each: f64,
    /// The greatest ratio of bytes while partitions were rebuilt to bytes before.
    peak: f64,
}

impl Watch {
    fn run(&self, store: &Store) -> Seen {
        let mut seen = Seen::default();
        let mut settled = store.stats();
        let mut growing = false;
        while !self.done.load(Ordering::Relaxed) {
            let stats = store.stats();
            if (self.from..=self.to).contains(&stats.index_entries) {
                seen.worst_each = seen.worst_each.max(each(&stats));
            }
            if stats.partitions_rebuilding == 0 {
                (settled, growing) = (stats, false);
            } else if settled.index_entries >= self.from {
                seen.windows += u64::from(!growing);
                growing = true;
                seen.peak = seen.peak.max(stats.index_bytes as f64 / settled.index_bytes as f64);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        seen
    }
}

/// Projects the bytes per entry to larger drives, from the code's own sizes: the delta table with wider pointers and the current load, and
/// the current part of segments.
fn projection(outcome: &mut Outcome, now: &Stats, capacity: u64, memory: u64) -> Result<(), Failure> {
    let entries = now.index_entries.max(1) as f64;
    let segments_each = now.index_segment_bytes as f64 / entries;
    let table_each = (now.index_bytes - now.index_segment_bytes) as f64 / entries;
    let options = StoreOptions::new(capacity, memory);
    let shape = IndexGeometry::at(&options, capacity)?;
    let load = table_each / shape.entry_bytes();
    let mut line = |drive: String, bytes: u64, bits: u32, table_each: f64| {
        outcome.report(format!("a drive of {drive}: bits of a pointer"), f64::from(bits));
        outcome.report(format!("a drive of {drive}: B an entry"), table_each + segments_each);
        let xdp = ((bytes as f64).log2() - 21.0) / 8.0;
        outcome.report(format!("a drive of {drive}: XDP's Y - 21 bits for 2^Y bytes, B"), xdp);
    };
    let bits = now.index_pointer_bits as u32;
    line(format!("{} MiB, as measured", mebibytes(capacity)), capacity, bits, table_each);
    for tebibytes in [1_u64, 32] {
        for segment_bytes in [64 << 20, 2 << 30] {
            let bytes = tebibytes << 40;
            let shape = IndexGeometry::at(&StoreOptions { segment_bytes, ..options }, bytes)?;
            let drive = format!("{tebibytes} TiB, segments of {} MiB", mebibytes(segment_bytes));
            line(drive, bytes, shape.payload_bits, shape.entry_bytes() * load);
        }
    }
    Ok(())
}
