//! memcached with extstore: the memory budget, and the rest of each value on flash. Its page cache gets as much
//! again.

use std::process::ExitCode;

use tapetum_bench::contend::contend;
use tapetum_bench::sockets::Sockets;

/// Its hash table, write buffers and threads are not in what it calls its memory.
const BESIDE_BYTES: u64 = 128 << 20;

fn main() -> ExitCode {
    contend(|setup| {
        let memory_bytes = setup.memory_bytes.max(64 << 20);
        let megabytes = (memory_bytes >> 20).to_string();
        let path = setup.data.join("ext");
        let ext = format!("ext_path={}:{}M,ext_item_size=256", path.display(), setup.capacity_bytes >> 20);
        Sockets::memcached(setup, &["-t", "1", "-m", &megabytes, "-I", "1m", "-o", &ext])?
            .confine(memory_bytes * 2 + BESIDE_BYTES)
    })
}
