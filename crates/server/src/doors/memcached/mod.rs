//! The memcached door: its text, meta and binary protocols over streams and datagrams.
//!
//! | file | holds |
//! |---|---|
//! | `door` | [`Memcached`], one client's side: which frame comes next |
//! | [`pipeline`] | gets and sets that DRAM answers, in stages over a batch, before anything is submitted |
//! | `text_commands`, `text_get`, `meta_commands`, `binary_commands` | from a parsed command to the store |
//! | `login`, `access`, `needs` | who a client is, what it may do, what each command needs |
//! | `submit` | what these share: submitting, errands, figures |
//! | `listing` | lists of keys, step by step |
//! | `watching` | `watch`, and what is told to those who do |
//! | [`slots`] | requests without a reply, in their order |
//! | [`udp`] | requests in datagrams |
//! | [`packets`] | the request path over packets in memory |
//!
//! Invariants:
//! 1. Replies leave in the order of the requests.
//! 2. The first byte of a connection says for good whether it speaks text or binary.
//! 3. A request that the pipeline does not answer goes through `commands`; both give the same bytes.
//!
//! A [`Memcached`] belongs to one client, a [`pipeline::Pipeline`] to one worker.

pub mod access;
mod binary_commands;
mod door;
mod listing;
mod login;
#[cfg(test)]
mod login_tests;
mod meta_commands;
pub mod needs;
mod outcomes;
pub mod packets;
pub mod pipeline;
pub mod settings;
pub mod slots;
#[cfg(test)]
mod stream_tests;
mod submit;
mod text_commands;
mod text_get;
pub mod udp;
mod watching;

pub use door::{Memcached, MemcachedOptions};
