//! memcached with extstore: the memory budget, and the rest of each value on flash. Its page cache gets as much
//! again.

use std::process::ExitCode;

use tapetum_bench::contend::contend;
use tapetum_bench::sockets::Sockets;

fn main() -> ExitCode {
    contend(|setup| {
        let megabytes = (setup.memory_bytes >> 20).max(64).to_string();
        let path = setup.data.join("ext");
        let ext = format!("ext_path={}:{}M,ext_item_size=256", path.display(), setup.capacity_bytes >> 20);
        Sockets::memcached(setup, &["-t", "1", "-m", &megabytes, "-I", "1m", "-o", &ext])?
            .confine(setup.memory_bytes * 2)
    })
}
