//! The socket through which a running server answers requests: see [`frame`] for what goes over it.
//!
//! It lies beside the data ([`tapetum::Place::socket`]), and only its owner may use it. A server makes it when the store is open, so that
//! the lock of the store decides whose it is.

pub mod client;
pub mod frame;
pub mod framing;
pub mod listener;
mod path;
mod rows;
mod serving;
