//! memcached, with memory for everything: the cost of its protocol when nothing is read from a disk.

use std::process::ExitCode;

use tapetum_bench::contend::contend;
use tapetum_bench::sockets::Sockets;

fn main() -> ExitCode {
    contend(|setup| {
        // Its own heads of items, and slabs that are part empty.
        let bytes = setup.items * (setup.value_bytes + 200) / 2 * 3;
        let megabytes = (bytes >> 20).max(64).to_string();
        Sockets::memcached(setup, &["-t", "1", "-m", &megabytes])
    })
}
