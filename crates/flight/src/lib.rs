//! The Flight door: a served store over gRPC, for programs of other machines and languages (Arrow Flight and Flight SQL).
//!
//! ```text
//!   client ─ GetFlightInfo ─► command: SQL, or JSON ─► moment (a freeze) ─► ticket
//!          ─ DoGet ─────────► ticket ─► execute, on a thread of its own ─ batches ─► channel of two ─► client
//!          ─ DoAction ──────► one request, answered whole
//!          ─ DoPut ─────────► rows ─► items, by the format of their keyspace
//! ```
//! Invariants:
//! 1. The door is above the service: what it answers, [`tapetum_service::execute`] has done. Nothing below it is asynchronous.
//! 2. Work that waits for the store or computes runs on threads of its own, of which there are [`answering::ANSWERS_MAX`]; the door's two
//!    threads only move bytes.
//! 3. The door keeps little for a client, and so much at most: a statement that is prepared is its own handle, and a ticket says all that it means.
//! 4. The schema that is told before the rows is theirs.
//! 5. Who asks is known before a call begins ([`doorkeeper`]), and each request is checked where it is done (`answering.rs`).
//! 6. Without users, the door refuses requests that change keyspaces or sizes: they go through the socket of the store's owner.
//!
//! `docs/FLIGHT.md` has what clients send; `docs/decisions/flight.md` says why it is so.
//!
//! Threads: [`door::FlightDoor`] has its own.

// The door is above the simulator: it has system threads, and reads the clock.
#![allow(clippy::disallowed_methods)]

mod actions;
mod answering;
mod call;
mod catalog;
pub mod client;
pub mod command;
pub mod door;
mod doorkeeper;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod incoming;
mod messages;
mod moments;
mod outlet;
mod plan;
mod prepared;
mod putting;
mod records;
mod service;
mod sql_info;
mod status;
pub mod ticket;
