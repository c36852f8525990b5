//! The server over a store in memory: `memory_server ADDR [late]`, until SIGTERM. For comparing the protocol with
//! memcached's, apart from the store.

use std::os::fd::AsFd;
use std::sync::Arc;

use tapetum_server::os;
use tapetum_server::server::{Options, Server};

mod memory_engine;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:21211".into());
    let late = arguments.next().is_some();
    let signals = os::termination_signals()?;
    let options = Options::at(vec![address.parse()?]);
    let mut store = memory_engine::MemoryStore::new();
    store.late = late;
    let server = Server::start(Arc::new(store), options)?;
    for address in server.addresses() {
        println!("memcached at {address}");
    }
    os::wait_for_signal(signals.as_fd())?;
    Ok(server.stop()?)
}
