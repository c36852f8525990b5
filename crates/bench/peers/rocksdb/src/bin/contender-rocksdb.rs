//! RocksDB as it comes, tuned.

use std::process::ExitCode;

use peer_rocksdb::{RocksDb, options};
use tapetum_bench::contend::contend;

fn main() -> ExitCode {
    contend(|setup| RocksDb::open(setup, &options(setup)))
}
