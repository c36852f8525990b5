//! How many flash reads a GET takes that is answered from flash: random existing keys, 1 KiB values.

use super::Bench;
use crate::Failure;
use crate::arguments::Arguments;
use crate::load::{in_parallel, quiesce, stats, store_all};
use crate::results::outcome::{Outcome, Reach};
use tapetum_bench::random::{Random, key16, mix};

const CONNECTIONS: u64 = 16;
const KEYS_IN_ONE_GET: u64 = 64;
const VALUE_BYTES: usize = 1024;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let items = arguments.number("items", 1_000_000)?;
    let gets = arguments.number("gets", 1_000_000)?;
    let bench = Bench::start(
        "flash-reads",
        arguments,
        &["--capacity", arguments.sized("8GiB", "512MiB"), "--memory", "256MiB"],
    )?;
    let about = format!("{gets} GETs of {items} items of {VALUE_BYTES} bytes, {KEYS_IN_ONE_GET} to a multi-get");
    let mut outcome = Outcome::new(arguments, "flash-reads", about);
    let address = bench.server().address();
    store_all(address, CONNECTIONS, items, |index, value| {
        fill_value(index, value);
        key16(index)
    })?;
    quiesce(address)?;

    let before = stats(address)?;
    in_parallel(address, CONNECTIONS, |connection_index, connection| {
        let mut random = Random::new(mix(connection_index));
        let mut left = gets / CONNECTIONS + u64::from(connection_index < gets % CONNECTIONS);
        let mut expected = Vec::new();
        while left > 0 {
            let batch = left.min(KEYS_IN_ONE_GET);
            let indexes: Vec<u64> = (0..batch).map(|_| random.below(items)).collect();
            let keys: Vec<[u8; 16]> = indexes.iter().map(|index| key16(*index)).collect();
            connection.queue_get(keys.iter().map(|key| key.as_slice()));
            connection.flush()?;
            // Values come in the order asked for, and every key exists.
            let mut answered = 0;
            let mut wrong = 0;
            connection.read_values(|value| {
                if let Some(index) = indexes.get(answered) {
                    fill_value(*index, &mut expected);
                    wrong += usize::from(value.key != key16(*index) || value.bytes != expected);
                }
                answered += 1;
            })?;
            if wrong > 0 || answered != indexes.len() {
                return Err(format!("of {batch} keys {answered} were answered, {wrong} wrongly").into());
            }
            left -= batch;
        }
        Ok(())
    })?;
    let after = stats(address)?;

    let from_flash = after.since(&before, "get_from_flash")?;
    let reads = after.since(&before, "get_flash_reads")?;
    let read_bytes = after.since(&before, "flash_to_local_bytes")?;
    let reply_bytes = after.since(&before, "local_to_host_bytes")?;
    let each = |amount: u64, count: u64| amount as f64 / count.max(1) as f64;
    outcome.hold_once("GETs answered from flash ÷ all", each(from_flash, gets), Reach::AtLeast(0.5));
    outcome.hold_once("flash reads of a GET answered from flash", each(reads, from_flash), Reach::AtMost(1.01));
    let bytes_max = after.get("get_flash_read_max_bytes")?;
    outcome.hold_once("bytes of one flash read, the most", bytes_max as f64, Reach::AtMost(8192.0));
    outcome.report("bytes of one flash read, in the mean", each(read_bytes, reads));
    outcome.report("bytes drive to host of a GET", each(reply_bytes, gets));
    bench.end()?;
    outcome.end()
}

/// Incompressible, so that 1 KiB stays 1 KiB.
fn fill_value(index: u64, value: &mut Vec<u8>) {
    value.resize(VALUE_BYTES, 0);
    Random::new(mix(index ^ 0x5eed)).fill(value);
}
