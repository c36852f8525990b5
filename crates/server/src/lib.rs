//! The front doors of Tapetum and its command line. The binary is a few lines over this library, so that tests can run
//! the same server over another store.

pub mod arrivals;
pub mod cli;
pub mod commands;
pub mod connection;
pub mod doors;
pub mod engine;
pub mod errands;
pub mod exporter_names;
pub mod full_log;
pub mod gets;
pub mod hot_keys;
pub mod item_limit;
pub mod limits;
pub mod listen;
pub mod logging;
mod meta_commands;
pub mod metrics;
pub mod opening;
pub mod os;
pub mod out;
pub mod packets;
pub mod pipeline;
pub mod protocol;
pub mod remote;
pub mod server;
pub mod size;
pub mod slab_stats;
pub mod slots;
pub mod stats;
pub mod store_open;
pub mod tools;
pub mod udp;
mod unfinished;
pub mod worker;
