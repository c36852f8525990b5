//! Figures of each keyspace.

use std::fmt::Write as _;

use tapetum::{Keyspace, KeyspaceId, KeyspaceWrites};

use crate::stats::exposition::{family, label};
use tapetum_service::escapes;

const ITEMS_HELP: &str = "Items of each keyspace, about: those that have expired count until their room is taken back";
const WRITTEN_HELP: &str = "Bytes of records of each keyspace that went into segments, by who wrote them; the log, which all share, comes to that";

/// For Prometheus: a sample for each keyspace.
pub fn append(page: &mut String, keyspace_items: &[(Keyspace, u64)], writes: &[(KeyspaceId, KeyspaceWrites)]) {
    if keyspace_items.is_empty() {
        return;
    }
    family(page, "tapetum_keyspace_items", "gauge", ITEMS_HELP);
    for (keyspace, items) in keyspace_items {
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "tapetum_keyspace_items{{keyspace={},kind=\"{}\"}} {items}",
            label(&keyspace.name),
            keyspace.kind
        );
    }
    let named: Vec<(String, &KeyspaceWrites)> = (keyspace_items.iter())
        .filter_map(|(keyspace, _)| {
            let (_, writes) = writes.iter().find(|(id, _)| *id == keyspace.id)?;
            Some((label(&keyspace.name), writes))
        })
        .collect();
    family(page, "tapetum_keyspace_segment_bytes_total", "counter", WRITTEN_HELP);
    for (name, KeyspaceWrites { flushed_bytes, collected_bytes, .. }) in &named {
        for (by, bytes) in [("flush", flushed_bytes), ("collector", collected_bytes)] {
            let _ = writeln!(page, "tapetum_keyspace_segment_bytes_total{{keyspace={name},by=\"{by}\"}} {bytes}");
        }
    }
}

/// The lines that `tapetum stats` prints.
pub fn lines(keyspace_items: Vec<(Keyspace, u64)>) -> impl Iterator<Item = (String, String)> {
    let line = |(keyspace, items): (Keyspace, u64)| {
        (format!("keyspace_items:{}", escapes::word(&keyspace.name)), items.to_string())
    };
    keyspace_items.into_iter().map(line)
}
