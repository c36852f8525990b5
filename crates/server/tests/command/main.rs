//! The binary from outside, as a user runs it: commands, files and signals. One binary for all, because linking each takes seconds.

// A test is an application: it may have threads of its own.
#![allow(clippy::disallowed_methods)]

mod backup_kills;
mod backups;
mod cli;
mod depots;
mod features;
mod freezes;
mod hot_keys;
mod keyspaces;
mod listeners;
mod operation;
mod output;
mod outside;
#[cfg(feature = "images")]
mod pictures;
mod promotions;
mod queries;
mod repair;
mod served;
mod standby;
mod walk;

#[allow(dead_code)]
#[path = "../../../bench/src/nbd_client.rs"]
mod nbd_client;
