//! The NBD door: block devices for clients of the network block device protocol, over TCP and Unix sockets.
//!
//! | file | holds |
//! |---|---|
//! | [`protocol`] | parsers and replies: pure functions over bytes |
//! | [`exports`] | the block devices that there are |
//! | `door` | [`Nbd`], one client's side: the handshake, then the transmission |
//! | [`access`] | who the client is, and which devices it may use |
//! | [`negotiation`] | the client's options, until it has an export |
//! | `transmission` | requests on their way, in any order: what is taken, `submitting`, `completing` |
//! | `jobs` | one request, and the parts of it that the store does |
//!
//! Invariants:
//! 1. A block of 4 KiB is an item (see [`tapetum::BlockDevice`]). A request is cut into blocks, and each is read or written at once: a
//!    write of a block is whole or absent, a longer one is its blocks.
//! 2. What covers part of a block is read, changed and put under the stamp that was read; if another write came between, once more.
//! 3. A reply goes out when all parts of its request are done, whatever other requests of the client are on their way.
//! 4. Data of a write are never gathered: each block goes to the store when it has come. Bytes of a read are charged before it begins.
//!
//! An [`Nbd`] belongs to one client, and so to one worker's thread.

pub mod access;
mod door;
pub mod exports;
mod jobs;
pub mod negotiation;
pub mod protocol;
mod transmission;

pub use door::{Nbd, NbdOptions};
