//! The deletions of everything in a keyspace (flush_all).

use super::KeyspaceId;
use std::collections::BTreeMap;
use tapetum_kernels::record::{Header, Kind, Record};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeletionMark {
    /// Records with a stamp up to this one are deleted.
    pub watermark: u64,
    /// The time at which the watermark rises to the stamp of that moment, in Unix seconds; 0 for never.
    pub planned_at: u32,
}

/// The marks of keyspaces that have one.
pub type DeletionMarks = BTreeMap<KeyspaceId, DeletionMark>;

/// Applies a log record if it is a mark. The manifest may have a later mark, which ended older plans.
pub fn note_deletion(marks: &mut DeletionMarks, record: &Record<'_>) {
    let Header { kind, keyspace, stamp, .. } = record.header;
    let mark = marks.get(&KeyspaceId(keyspace)).copied().unwrap_or_default();
    if kind != Kind::Control || stamp <= mark.watermark {
        return;
    }
    let mut body = [0; 4];
    body.iter_mut().zip(record.stored).for_each(|(into, byte)| *into = *byte);
    let planned_at = u32::from_le_bytes(body);
    let watermark = if planned_at == 0 { stamp } else { mark.watermark };
    marks.insert(KeyspaceId(keyspace), DeletionMark { watermark, planned_at });
}
