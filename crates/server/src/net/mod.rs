//! Sockets, and the budget of what clients may hold. Nothing here names a protocol; doors and workers stand on it.
//!
//! Memory that a client holds is charged to the shared budget, but for the first 16 KiB ([`limits`]). Workers share listeners and budget by
//! single atomic operations, and the locks of [`mailbox::Mailbox`], which are held for the time of a push.

pub mod arrivals;
pub mod census;
pub mod gets;
pub mod limits;
pub mod listen;
pub mod mailbox;
pub mod out;
