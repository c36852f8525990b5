//! The server in this process, asked over sockets: each door, over a store in memory. One binary for all, because linking
//! each takes seconds.

// A test is an application: it may have threads of its own.
#![allow(clippy::disallowed_methods)]

mod block_devices;
mod datagrams;
mod exchange;
mod late_store;
mod memcached;
mod panics;
mod test_server;
mod two_doors;
mod vectors;
mod wrapped_flash;

#[path = "../../../store/tests/common/mod.rs"]
mod common;
// Each test takes of them what it needs.
#[allow(dead_code)]
#[path = "../../../bench/src/nbd_client.rs"]
mod nbd_client;
#[allow(dead_code)]
#[path = "../../../bench/src/nbd_model.rs"]
mod nbd_model;
#[allow(dead_code)]
#[path = "../../../bench/src/udp_client.rs"]
mod udp_client;
