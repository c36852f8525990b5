//! The service: everything that a command asks of a store is one request, answered in process or by a running server.
//!
//! ```text
//!             ┌ the store is closed: opened here ──► execute ──► caller
//!   request ──┤
//!             └ a server has it: frames through its socket ──► execute, there ──► frames ──► caller
//! ```
//! Invariants:
//! 1. A request and its replies are plain data ([`request`], [`reply`]): nothing in them is a path that a server would open.
//! 2. Both ways call the same [`execute`], so that output and errors are the same.
//! 3. Whoever asks can leave at any time: work that he asked for ends, and what it held is free.
//!
//! Threads: a [`service::Service`] belongs to one; the [`socket::listener`] has a thread for each client.

pub mod asked;
pub mod audit;
pub mod backups;
pub mod caller;
pub mod duration;
pub mod escapes;
pub mod examples;
pub mod execute;
pub mod failure;
pub mod format_check;
mod host_pipeline;
pub mod inspect_lines;
pub mod item_limit;
pub mod key_range;
pub mod opening;
pub mod pipelines;
pub mod reply;
pub mod request;
pub mod service;
pub mod serving_store;
pub mod size;
pub mod socket;
pub mod statements;
pub mod suggestion;
