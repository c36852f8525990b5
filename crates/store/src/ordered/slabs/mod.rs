//! Slabs: the room on flash for data nodes and extensions of ordered keyspaces.
//!
//! ```text
//! group: neighbouring extents, cut into slots of one class
//!   | slot 0 | slot 1 | … | slot n |      each free, or held by shares
//! ```
//! A **group** belongs to one keyspace and has one class of slots ([`slot_class`]). The manifest names the groups ([`group_table`]). A [`SlotSpace`]
//! has the groups of one keyspace and class in memory, and gives out their slots. [`growth`] makes, opens, closes and removes groups. A slot is held
//! by [`SlotShare`]s. An image that replaces others holds shares of their slots until it is durable, so that they are not overwritten before.
//!
//! 1. A slot is given out while it has no share, and is free when its last share is dropped.
//! 2. Slots of nodes are given out only in groups that the manifest names open. Groups of extensions are neither opened nor closed.
//! 3. A slot of a node is given out once in a *round*: from one edit that names the slots that may be written to the next one ([`slot_round`]). A
//!    slot that is freed rests until the next round.
//! 4. A group of nodes is closed when none of its slots is given out for writing, and everything written to it is durable. So an image with a bad
//!    checksum in a closed group is damage.
//! 5. A group leaves the manifest when none of its slots has a share. Its extents are free when that is durable.
//! 6. A group of slabs is zeroed, durably, before the manifest names it.
//! 7. A page without a slot of its own has a [`SlotPromise`]: the halves of a split, until their first images. There are as many free slots as
//!    promises, beside the reserved ones, and others get none of them.
//! 8. A slot that a freeze holds is neither free nor written in place, also without a share ([`hold`]).
//!
//! Threads: any. A space has one lock, held only briefly. A thread that changes groups holds the installer, so it is alone.

pub mod claims;
mod extent_versions;
pub mod group_table;
pub mod growth;
pub mod hold;
pub mod keyspace_slots;
pub mod large_groups;
pub mod manifest_client;
mod promise;
mod share;
mod shelves;
pub mod slot_class;
mod slot_group;
mod slot_guards;
pub mod slot_map;
pub mod slot_round;
mod space;
mod space_state;
pub mod tending;

pub use promise::SlotPromise;
pub use share::SlotShare;
pub use slot_group::SHARES_MAX;
pub use space::{RESERVED_SLOTS, SlotCounts, SlotSpace, SpaceOptions};

#[cfg(test)]
mod tests;
