//! The store beside its rivals and the limit: `cargo x bench ROW`, for each row of docs/BENCHMARKS.md. The contenders are separate
//! processes (crates/bench) that load the same items and then run in turns.

mod arena;
mod backups;
mod block;
mod contender;
mod contest;
mod delta_lookup;
mod dispatch;
mod dram;
mod embedded;
mod extstore;
mod filter_scan;
mod flight;
mod floods;
mod freezes;
pub mod images;
mod latency;
mod latency_by_load;
mod load;
mod mariadb;
mod mixed_load;
mod ordered;
mod ordered_threads;
mod packets;
mod peers;
mod protocol;
mod queries;
mod read_latency;
mod runner;
mod scan_rows;
mod service;
mod shape;
mod snappy_table;
mod tls;
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

/// The row of a contest, and the options of its smoke run.
macro_rules! contest {
    ($contest:path, $smoke:literal) => {
        Row::new($contest.name, |arguments| runner::run(arguments, &$contest), $smoke)
    };
}

/// Each row with its options for a smoke run: contenders that need no compiling, and as few items as possible.
pub const ROWS: [Row; 41] = [
    contest!(embedded::QUICK, "--items 2000 --rounds 1 --contenders tapetum,limit,server,memcached,extstore"),
    contest!(embedded::COLD_GET, "--items 2000 --rounds 1 --contenders tapetum,limit"),
    contest!(embedded::YCSB, "--items 2000 --rounds 1 --contenders tapetum"),
    contest!(embedded::YCSB_A, "--items 2000 --rounds 1 --overwrites 1 --capacity 256MiB --contenders tapetum"),
    Row::new("read-latency", read_latency::run, "--items 2000 --rounds 1 --contenders tapetum"),
    Row::new("load", load::run, "--items 2000 --contenders tapetum"),
    contest!(embedded::BLOCKING_GET, "--items 2000 --rounds 1 --contenders tapetum,limit"),
    contest!(protocol::MEMCACHED_GET, "--items 2000 --rounds 1"),
    contest!(protocol::MISSES, "--items 2000 --rounds 1"),
    contest!(protocol::DRAM_GET, "--items 5000 --rounds 1"),
    contest!(protocol::IDLE_EXPORT, "--items 5000 --rounds 1"),
    Row::new("tls", tls::run, "--items 200 --rounds 1"),
    Row::new("packets", packets::run, "--items 2000 --rounds 1 --tier 64MiB --write-buffer 1MiB"),
    Row::new("latency", latency::run, "--data 1MiB --rounds 1"),
    Row::new("extstore", extstore::run, "--items 5000 --value 200 --flash 256MiB --rounds 1"),
    Row::new("delta-lookup", delta_lookup::run, "--entries 1100000 --rounds 1"),
    Row::new("dispatch", dispatch::run, "--commands 6400 --rounds 1"),
    Row::new("snappy-table", snappy_table::run, "--data 1MiB --rounds 1"),
    Row::new("two-applications", two_applications::run, "--rounds 1"),
    contest!(embedded::DRIVE_PROCESS, "--items 2000 --rounds 1 --contenders tapetum,tapetum-drive-process"),
    contest!(embedded::DRIVE_THREAD, "--items 2000 --rounds 1 --contenders tapetum,tapetum-drive-thread"),
    Row::new("floods", floods::run, "--items 1000 --rounds 1"),
    Row::new("latency-by-load", latency_by_load::run, "--items 2000 --rounds 1 --contenders tapetum"),
    contest!(ordered::ORDERED_YCSB, "--items 2000 --rounds 1 --contenders tapetum-ordered"),
    Row::new("ordered-threads", ordered_threads::run, "--items 2000 --rounds 1 --contenders tapetum-ordered"),
    contest!(ordered::ORDERED_ABLATION, "--items 2000 --rounds 1"),
    contest!(ordered::ORDERED_SCAN, "--items 2000 --rounds 1 --contenders tapetum-ordered"),
    Row::new("filter-scan", filter_scan::run, "--items 2000 --rounds 1 --contenders tapetum,tapetum-ordered"),
    Row::new("filter-scan-json", filter_scan::run_json, "--items 2000 --rounds 1 --contenders tapetum,tapetum-ordered"),
    contest!(queries::FIELDS_GET, "--items 500 --rounds 1 --contenders tapetum,tapetum-unit,tapetum-ordered"),
    contest!(queries::GRAPH, "--items 3000 --rounds 1 --contenders tapetum,tapetum-units,tapetum-ordered"),
    Row::new("scan-rows", scan_rows::run, "--rounds 1"),
    Row::new("flight", flight::run, "--items 2000 --rounds 1 --engines 0"),
    Row::new("service", service::run, "--items 2000 --rounds 1"),
    Row::new("freezes", freezes::run, "--items 2000 --rounds 1 --seconds 0"),
    Row::new("backups", backups::run, "--items 2000 --rounds 1 --seconds 1"),
    Row::new("transfer", transfer::run, "--items 2000 --rounds 1 --contenders tapetum,tapetum-ordered"),
    Row::new("walk", walk::run, "--scale 0.0005 --rounds 1"),
    Row::new("block", block::run, "--device 64MiB --rounds 1 --seconds 1 --depths 4"),
    Row::new("mariadb", mariadb::run, "--rows 4000 --rounds 1 --seconds 2"),
    Row::new("trees", trees::run, "--items 1000 --rounds 1 --other THIS"),
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
