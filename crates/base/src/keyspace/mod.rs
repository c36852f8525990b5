//! Keyspaces: their names, ids, kinds of content and states, and which keys are whose.

pub mod block_device;
pub mod by_id;
pub mod catalogue;
pub mod changing;
pub mod deletion_mark;
pub mod hasher;
pub mod states;

use tapetum_kernels::record::Header;

/// Says which keyspace: part of what is hashed, of records, key tables and of what the manifest says. Reused only after nothing of the
/// keyspace that had it is left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct KeyspaceId(pub u16);

impl KeyspaceId {
    /// The keyspace `default`: always there.
    pub const DEFAULT: KeyspaceId = KeyspaceId(0);

    pub fn of(header: &Header) -> KeyspaceId {
        KeyspaceId(header.keyspace)
    }
}
