//! memcached with extstore: the memory budget, and the rest of each value on flash. Its page cache gets as much
//! again.

use std::process::ExitCode;

use tapetum_bench::budget::Budget;
use tapetum_bench::contend::contend;
use tapetum_bench::sockets::Sockets;

fn main() -> ExitCode {
    contend(|setup| {
        let budget = Budget { memory_bytes: setup.memory_bytes, flash_bytes: setup.capacity_bytes };
        Sockets::extstore(setup, budget)
    })
}
