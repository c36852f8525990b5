//! How long it takes to store many random keys through the API, until flush and collector have come to rest.

use std::time::{Duration, Instant};

use super::embedded::{Embedded, KEY_BYTES, VALUE_BYTES, store_items};
use super::{hold, mebibytes, row, seconds};
use crate::Failure;
use crate::arguments::Arguments;
use tapetum::KeyspaceRef;
use tapetum_bench::embedded::settle;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let items = arguments.number("items", 20_000_000)?;
    let threads = arguments.number("threads", 2)?.max(1);
    let capacity = arguments.size("capacity", 10 << 30)?;
    let memory = arguments.size("memory", 1 << 30)?;
    arguments.finish()?;
    println!(
        "load: {items} items of {KEY_BYTES} + {VALUE_BYTES} bytes, {threads} threads, memory {}",
        mebibytes(memory)
    );
    let bench = Embedded::start("load", capacity, memory)?;
    let store = &bench.store;
    let begun = Instant::now();
    let longest = store_items((store, KeyspaceRef::DEFAULT), 0..items, VALUE_BYTES, threads)?;
    let acknowledged = begun.elapsed();
    let settled = settle(store)?.duration_since(begun).max(acknowledged);
    let stats = store.stats();
    let rate = |time: Duration| format!("{:.0}/s", items as f64 / time.as_secs_f64());
    let each = |count: u64| count as f64 / items as f64;
    row("until the last item is acknowledged (durable)", seconds(acknowledged), &rate(acknowledged));
    row("until settled", seconds(settled), &format!("{}; reported", rate(settled)));
    row("the longest wait for an acknowledgement", seconds(longest), "");
    row("written to flash for an item: the log", format!("{:.1} B", each(stats.log_write_bytes)), "");
    let rest = stats.flash_write_bytes - stats.log_write_bytes;
    row("written to flash for an item: the rest", format!("{:.1} B", each(rest)), "");
    row("key-check reads for an item", format!("{:.5}", each(stats.key_check_reads)), "");
    row("index partitions rebuilt", stats.partitions_rebuilt.to_string(), "");
    row("runs of the collector", stats.collections.to_string(), "");
    let buffered = items.saturating_sub(stats.index_entries);
    row("items in a write buffer still", buffered.to_string(), "");
    store.close()?;
    hold(stats.index_entries <= items && stats.index_entries > 0, "no item counted twice")
}
