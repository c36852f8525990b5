//! Calls of SNIA's Computational Storage API 1.0 for C programs, over a drive: a partition of a drive in another process, or a file.
//!
//! `include/tapetum_cs.h` is the interface, and `docs/STANDARDS.md` says which calls there are. Rust programs use `tapetum-drive`.
//!
//! ```text
//!  C ──► calls ──► library (handles) ──► queue ──► device ──► steps ──► a queue pair of the drive
//!          └── pointers, types: all that C points at is copied here
//! ```
//! 1. C holds numbers, never addresses ([`handles`]). Whatever it passes as a handle is found or refused.
//! 2. All `unsafe` is in [`pointers`].
//! 3. A request is checked as a whole before any of it runs ([`steps`]).

mod calls;
mod device;
mod events;
mod handles;
mod library;
mod opening;
mod operands;
mod pointers;
mod queue;
mod request;
mod steps;
mod types;
