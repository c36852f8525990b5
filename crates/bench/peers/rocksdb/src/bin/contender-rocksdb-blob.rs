//! RocksDB with BlobDB, its own answer for large values.

use std::process::ExitCode;

use peer_rocksdb::{RocksDb, options_with_blobs};
use tapetum_bench::contend::contend;

fn main() -> ExitCode {
    contend(|setup| RocksDb::open(setup, &options_with_blobs(setup)))
}
