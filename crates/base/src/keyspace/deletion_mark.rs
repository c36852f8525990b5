//! What of a keyspace is deleted with everything else of it (flush_all).

use super::KeyspaceId;
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeletionMark {
    /// Records with a stamp up to this one are deleted.
    pub watermark: u64,
    /// When to raise the watermark to the stamp of that moment, in Unix seconds; 0 for never.
    pub planned_at: u32,
}

/// The marks of the keyspaces that have one.
pub type DeletionMarks = BTreeMap<KeyspaceId, DeletionMark>;
