//! RocksDB without a cache of its own and without filters.

use std::process::ExitCode;

use peer_rocksdb::{RocksDb, options_plain};
use tapetum_bench::contend::contend;

fn main() -> ExitCode {
    contend(|setup| RocksDb::open(setup, &options_plain(setup)))
}
