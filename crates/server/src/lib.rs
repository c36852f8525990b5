//! The front doors of Tapetum and its command line. The binary is a few lines over this library, so that tests can run
//! the same server over a store in memory.
//!
//! | folder | holds |
//! |---|---|
//! | [`net`] | sockets, and the budget of what clients may hold |
//! | [`doors`] | connections, and a folder a protocol: [`doors::memcached`] over streams and datagrams, [`doors::nbd`], [`doors::metrics`] for Prometheus |
//! | [`worker`] | the event loop of each thread, over connections, listeners and a session of the store |
//! | [`store`] | the store that is served: what the doors ask of it, how it is opened, looked after and warmed |
//! | [`stats`] | the figures, under our names and memcached's |
//! | [`cli`] | the command line, and what each command does |
//! | [`tools`] | loading, listing, looking inside: plain functions that the command line calls |

pub mod cli;
#[cfg(test)]
#[path = "../../store/tests/common/mod.rs"]
mod common;
pub mod doors;
#[cfg(test)]
use common::folder;
pub mod logging;
mod machine;
pub mod net;
pub mod os;
pub mod output;
pub mod protocol;
pub mod server;
mod service_manager;
pub mod stats;
pub mod store;
pub mod tools;
pub mod version;
pub mod worker;
