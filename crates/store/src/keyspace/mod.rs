//! Keyspaces, what callers ask of a store, and how they hear of the answer.

pub mod catalogue;
pub mod keyspace_error;
pub mod notify;
pub mod request;

/// Says which keyspace: part of what is hashed, of records, and of what the manifest says. Reused only after nothing of the
/// keyspace that had it is left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct KeyspaceId(pub u16);

impl KeyspaceId {
    /// The keyspace `default`: always there.
    pub const DEFAULT: KeyspaceId = KeyspaceId(0);
}
