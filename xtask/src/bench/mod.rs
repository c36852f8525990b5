//! The store beside its rivals and the limit: `cargo x bench ROW`, for each row of docs/BENCHMARKS.md. The contenders are separate
//! processes (crates/bench) that load the same items and then run in turns.

mod arena;
mod block;
mod contender;
mod contest;
mod delta_lookup;
mod dispatch;
mod dram;
mod embedded;
mod extstore;
mod filter_scan;
mod floods;
pub mod images;
mod latency;
mod latency_by_load;
mod load;
mod mariadb;
mod ordered;
mod ordered_threads;
mod packets;
mod peers;
mod protocol;
mod queries;
mod read_latency;
mod runner;
mod scan_rows;
mod shape;
mod snappy_table;
mod transfer;
mod trees;
mod two_applications;
mod walk;

use crate::Failure;
use crate::arguments::{Arguments, Mode};
use crate::results::report;
use crate::row::Row;

/// Bytes of every key.
const KEY_BYTES: u64 = 16;

/// Each row with its options for a smoke run: contenders that need no compiling, and as few items as possible.
pub const ROWS: [Row; 35] = [
    Row {
        name: "quick",
        run: |arguments| runner::run(arguments, &embedded::QUICK),
        smoke: "--items 2000 --rounds 1 --contenders tapetum,limit,server,memcached,extstore",
    },
    Row {
        name: "cold-get",
        run: |arguments| runner::run(arguments, &embedded::COLD_GET),
        smoke: "--items 2000 --rounds 1 --contenders tapetum,limit",
    },
    Row {
        name: "ycsb",
        run: |arguments| runner::run(arguments, &embedded::YCSB),
        smoke: "--items 2000 --rounds 1 --contenders tapetum",
    },
    Row {
        name: "ycsb-a",
        run: |arguments| runner::run(arguments, &embedded::YCSB_A),
        smoke: "--items 2000 --rounds 1 --overwrites 1 --capacity 256MiB --contenders tapetum",
    },
    Row { name: "read-latency", run: read_latency::run, smoke: "--items 2000 --rounds 1 --contenders tapetum" },
    Row { name: "load", run: load::run, smoke: "--items 2000 --contenders tapetum" },
    Row {
        name: "blocking-get",
        run: |arguments| runner::run(arguments, &embedded::BLOCKING_GET),
        smoke: "--items 2000 --rounds 1 --contenders tapetum,limit",
    },
    Row {
        name: "memcached-get",
        run: |arguments| runner::run(arguments, &protocol::MEMCACHED_GET),
        smoke: "--items 2000 --rounds 1",
    },
    Row {
        name: "misses",
        run: |arguments| runner::run(arguments, &protocol::MISSES),
        smoke: "--items 2000 --rounds 1",
    },
    Row {
        name: "dram-get",
        run: |arguments| runner::run(arguments, &protocol::DRAM_GET),
        smoke: "--items 5000 --rounds 1",
    },
    Row {
        name: "idle-export",
        run: |arguments| runner::run(arguments, &protocol::IDLE_EXPORT),
        smoke: "--items 5000 --rounds 1",
    },
    Row { name: "packets", run: packets::run, smoke: "--items 2000 --rounds 1 --tier 64MiB --write-buffer 1MiB" },
    Row { name: "latency", run: latency::run, smoke: "--data 1MiB --rounds 1" },
    Row { name: "extstore", run: extstore::run, smoke: "--items 5000 --value 200 --flash 256MiB --rounds 1" },
    Row { name: "delta-lookup", run: delta_lookup::run, smoke: "--entries 1100000 --rounds 1" },
    Row { name: "dispatch", run: dispatch::run, smoke: "--commands 6400 --rounds 1" },
    Row { name: "snappy-table", run: snappy_table::run, smoke: "--data 1MiB --rounds 1" },
    Row { name: "two-applications", run: two_applications::run, smoke: "--rounds 1" },
    Row {
        name: "drive-thread",
        run: |arguments| runner::run(arguments, &embedded::DRIVE_THREAD),
        smoke: "--items 2000 --rounds 1 --contenders tapetum,tapetum-drive-thread",
    },
    Row { name: "floods", run: floods::run, smoke: "--items 1000 --rounds 1" },
    Row { name: "latency-by-load", run: latency_by_load::run, smoke: "--items 2000 --rounds 1 --contenders tapetum" },
    Row {
        name: "ordered",
        run: |arguments| runner::run(arguments, &ordered::ORDERED_YCSB),
        smoke: "--items 2000 --rounds 1 --contenders tapetum-ordered",
    },
    Row {
        name: "ordered-threads",
        run: ordered_threads::run,
        smoke: "--items 2000 --rounds 1 --contenders tapetum-ordered",
    },
    Row {
        name: "ordered-ablation",
        run: |arguments| runner::run(arguments, &ordered::ORDERED_ABLATION),
        smoke: "--items 2000 --rounds 1",
    },
    Row {
        name: "ordered-scan",
        run: |arguments| runner::run(arguments, &ordered::ORDERED_SCAN),
        smoke: "--items 2000 --rounds 1 --contenders tapetum-ordered",
    },
    Row {
        name: "filter-scan",
        run: filter_scan::run,
        smoke: "--items 2000 --rounds 1 --contenders tapetum,tapetum-ordered",
    },
    Row {
        name: "filter-scan-json",
        run: filter_scan::run_json,
        smoke: "--items 2000 --rounds 1 --contenders tapetum,tapetum-ordered",
    },
    Row {
        name: "fields-get",
        run: |arguments| runner::run(arguments, &queries::FIELDS_GET),
        smoke: "--items 500 --rounds 1 --contenders tapetum,tapetum-unit,tapetum-ordered",
    },
    Row {
        name: "graph",
        run: |arguments| runner::run(arguments, &queries::GRAPH),
        smoke: "--items 3000 --rounds 1 --contenders tapetum,tapetum-units,tapetum-ordered",
    },
    Row { name: "scan-rows", run: scan_rows::run, smoke: "--rounds 1" },
    Row { name: "transfer", run: transfer::run, smoke: "--items 2000 --rounds 1 --contenders tapetum,tapetum-ordered" },
    Row { name: "walk", run: walk::run, smoke: "--scale 0.0005 --rounds 1" },
    Row { name: "block", run: block::run, smoke: "--device 64MiB --rounds 1 --seconds 1 --depths 4" },
    Row { name: "mariadb", run: mariadb::run, smoke: "--rows 4000 --rounds 1 --seconds 2" },
    Row { name: "trees", run: trees::run, smoke: "--items 1000 --rounds 1 --other THIS" },
];

/// Runs a row, or a command over the results of rows.
pub fn run(name: &str, words: &[String], mode: Mode) -> Result<(), Failure> {
    match name {
        "report" => return report::write(&Arguments::parse(words, mode)?),
        "keep" => {
            let (row, words) = words.split_first().ok_or("bench keep needs the name of a row")?;
            return report::keep(row, &Arguments::parse(words, mode)?);
        }
        _ => {}
    }
    let Some(row) = ROWS.iter().find(|row| row.name == name) else {
        let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        return Err(format!("there is no row {name}; there are {}", names.join(", ")).into());
    };
    row.start("bench", words, mode)
}
