//! The data layer of ordered keyspaces (Retina, chapter 4): nodes of 4 KiB, which hold the records of a range of keys, and extensions,
//! which hold the values that do not fit in them.
//!
//! ```text
//! slot ─► node: low fence ≤ keys < high fence ─► record ─┬─► value
//!                                                        └─► reference ─► slot ─► extension: key, value
//! ```
//! 1. A node covers the keys from its low fence up to its high fence, without that; the fences of neighbours meet.
//! 2. For each key the image with the highest stamp whose fences cover it is live. Stamps are the store's, not the node's.
//! 3. An extension is live exactly when a live record names it with its stamp.
//! 4. Whatever the bytes are, nothing here panics or reads outside of them.
//! 5. A node that is split often enough has room for any record of up to [`NODE_RECORD_BYTES_MAX`] bytes.
//!
//! Nothing is allocated. Functions of a caller's bytes: threads are the caller's.

pub mod extension;
pub mod fingerprint;
mod layout;
mod node;
mod node_mut;
mod order;
mod slot_address;
mod split;

pub use layout::{
    BLOCK_BYTES, HEAD_BYTES, ImageSeal, NODE_BYTES, NODE_KEY_BYTES_MAX, NODE_RECORD_BYTES_MAX, NODE_SLOTS_MAX,
    NODE_VERSION, NodePage, node_record_bytes,
};
pub use node::{NodeRecord, NodeRef};
pub use node_mut::{NewNode, NodeMut, ReplacedRecord};
pub use order::NodeOrder;
pub use slot_address::{SlotAddress, SlotSalt};
pub use split::{Arrival, NodeCut, NodeSplit, SplitSide, merge, merged_bytes, separator, split_off, split_rest};

/// Why a node was not read or changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeError {
    /// Nothing but zeros: nobody wrote to the slot.
    Blank,
    /// The checksum is another one: a torn write, damage, or a node of another place, store or tenant.
    Checksum,
    /// A format that this code does not know.
    Version(u8),
    /// Fields or records that do not hold together.
    Damaged,
    /// The key is not between the fences: it belongs in another node.
    OutsideFences,
    /// There is no room for the record, not even after compaction: split the node.
    NoRoom,
    /// A record that no node takes: no value, a key of no bytes or too many, or too long as a whole.
    Unfit,
    /// There are too few records to split.
    TooFew,
    /// The fences of the two nodes do not meet, or they belong to two keyspaces.
    NotNeighbours,
}

#[cfg(test)]
mod compression_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod node_tests;
#[cfg(test)]
mod split_tests;
#[cfg(test)]
mod testing;
