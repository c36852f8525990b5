//! Bytes of DRAM the index takes for an entry: what the process grew by, beside what `stats` says.
//!
//! The process is measured empty with its pools touched (a small set of keys overwritten until every buffer has been in
//! use), and again after the load has come to rest; the growth is divided by the entries that came. Key tables that are
//! kept where the budget leaves room are no part of the index: they are taken off what is resident.

use super::{Bench, hold, mebibytes, row};
use crate::Failure;
use crate::arguments::Arguments;
use crate::load::{Stats, quiesce, stats, store_all};
use tapetum_bench::process;
use tapetum_bench::random::{Random, key16, mix};

const CONNECTIONS: u64 = 16;
const VALUE_BYTES: usize = 100;
/// What the pools are touched with: few keys, so that they leave next to no index behind.
const TOUCH_KEYS: u64 = 1000;
const TOUCH_WRITES: u64 = 2_000_000;
/// In a smoke run: as many items fill a write buffer, so that some come into the index.
const SMOKE_MORE: u64 = 100_000;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let counts = match arguments.number("items", 0)? {
        0 => vec![1_000_000, 5_000_000],
        items => vec![items],
    };
    for count in counts {
        measure(arguments, count)?;
    }
    Ok(())
}

fn measure(arguments: &Arguments, count: u64) -> Result<(), Failure> {
    let bench = Bench::start(
        "index-memory",
        arguments,
        &["--capacity", arguments.sized("4GiB", "512MiB"), "--memory", "256MiB"],
    )?;
    let (address, process) = (bench.server().address(), bench.server().process());
    store_all(address, CONNECTIONS, arguments.sized(TOUCH_WRITES, TOUCH_WRITES / 100), |index, value| {
        fill_value(index, value);
        key16(u64::MAX - index % TOUCH_KEYS)
    })?;
    quiesce(address)?;
    let before = stats(address)?;
    let key_tables = |stats: &Stats| stats.get("key_tables_bytes");
    let empty = process::read(process)?.resident_bytes - key_tables(&before)?;

    // The last keys are still in a write buffer: more are stored until so many are in the index.
    let mut stored = 0;
    let mut indexed = 0;
    while indexed < count {
        let more = if stored == 0 { count } else { (count / 20).max(arguments.sized(0, SMOKE_MORE)) };
        store_all(address, CONNECTIONS, more, |index, value| {
            fill_value(stored + index, value);
            key16(stored + index)
        })?;
        quiesce(address)?;
        stored += more;
        indexed = stats(address)?.since(&before, "index_entries")?;
    }
    let after = stats(address)?;
    let loaded = process::read(process)?.resident_bytes - key_tables(&after)?;

    let entries = after.since(&before, "index_entries")?;
    let grown = loaded.saturating_sub(empty);
    let resident_each = grown as f64 / entries.max(1) as f64;
    let stated_each = after.since(&before, "index_bytes")? as f64 / entries.max(1) as f64;
    let apart = (resident_each - stated_each).abs() / stated_each.max(f64::MIN_POSITIVE);
    row("entries", entries.to_string(), "");
    row("resident, empty with its pools touched", mebibytes(empty), "");
    row("resident, loaded and at rest", mebibytes(loaded), "");
    row("key tables beside that", mebibytes(key_tables(&after)?), "");
    row("DRAM for an entry, as resident memory grew", format!("{resident_each:.2} B"), "at most 4 B");
    row("DRAM for an entry, as stats says", format!("{stated_each:.2} B"), "at most 4 B");
    row("the two apart by", format!("{:.1} %", apart * 100.0), "at most 15 %");
    bench.end()?;
    hold(resident_each <= 4.0 && stated_each <= 4.0, "at most 4 bytes of DRAM for an entry")?;
    hold(apart <= 0.15, "resident growth and index_bytes within 15 % of each other")
}

fn fill_value(index: u64, value: &mut Vec<u8>) {
    value.resize(VALUE_BYTES, 0);
    Random::new(mix(index)).fill(value);
}
