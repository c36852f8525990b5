//! Tools to measure the store beside its rivals: YCSB workloads, histograms of latencies, what a process used, and turns.
//!
//! Every contender (the store, a raw loop that is the limit, each rival) is a process of its own that takes commands on its
//! standard input and answers each with one line of JSON ([`contend`]). `cargo x bench` starts them, has each load the same
//! items, and lets them run in turns, a second or two each, so that a slow moment of the machine meets all of them.

// A bench measures real time with real threads; the bans of clippy.toml are for code that the simulator must own.
#![allow(clippy::disallowed_methods)]

pub mod blocking;
pub mod budget;
pub mod caches;
pub mod client;
pub mod confine;
pub mod contend;
#[cfg(feature = "store")]
pub mod crossing;
pub mod datagrams;
#[cfg(feature = "store")]
pub mod drive_process;
#[cfg(feature = "store")]
pub mod embedded;
pub mod fields;
pub mod filter;
pub mod graph;
#[cfg(feature = "store")]
pub mod kernels;
pub mod latencies;
pub mod nbd_client;
pub mod nbd_model;
pub mod pace;
pub mod process;
#[cfg(feature = "store")]
pub mod queries;
pub mod random;
pub mod readiness;
pub mod server;
pub mod sockets;
#[cfg(feature = "store")]
pub mod tls_client;
pub mod turn;
pub mod udp_client;
pub mod workload;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;
