//! Sockets, workers and connections, and the budget of what clients may hold. It knows no protocol: a [`door::Door`] does.
//!
//! ```text
//!   listen ─► worker ─ arrivals ─► connection::Stream ─ input ─► connection::Client + door::Door ─ requests ─► the store
//!                └─ datagrams                          ◄ out::OutQueue ┘            limits::Budget, gets::Gets
//! ```
//! Invariants:
//! 1. Nothing here names a protocol, and a worker calls its door statically: no allocation, no virtual call on the way of a request.
//! 2. Memory that a client holds is charged to the shared budget, but for the first 16 KiB ([`limits`]).
//! 3. A worker never blocks but in its wait for events.
//!
//! Each worker is a thread, and owns its connections with all they hold. Workers share [`worker::Shared`], by single atomic operations,
//! and the locks of [`mailbox::Mailbox`], which are held for the time of a push.

pub mod arrivals;
pub mod census;
pub mod connection;
pub mod context;
pub mod datagrams;
pub mod door;
pub mod either;
pub mod gets;
pub mod limits;
pub mod listen;
pub mod mailbox;
pub mod out;
pub mod worker;
