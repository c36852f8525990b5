//! Places of backups: opens a folder, or a bucket of object storage (the feature `object-storage`).
//!
//! ```text
//!  a command line, a request ──► Destination ──┬► FolderDepot (of the crate tapetum)
//!                                              └► ObjectDepot ──► S3, or what speaks its protocol
//! ```
//! Invariants:
//! 1. A destination names no credentials: those are of the environment, and stay out of URLs, manifests, logs and errors.
//! 2. Whoever opens a destination learns at once if it cannot be reached.
//!
//! Threads: a depot of object storage has one of its own; any thread may use it.

pub mod address;
pub mod destination;
#[cfg(feature = "object-storage")]
pub mod object_storage;

pub use destination::{Destination, DestinationError};
