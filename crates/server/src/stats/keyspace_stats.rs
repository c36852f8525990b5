//! What is told of each keyspace.

use std::fmt::Write as _;

use tapetum::Keyspace;

use crate::doors::metrics::{family, label};

const HELP: &str = "Items of each keyspace, about: those that have expired count until their room is taken back";

/// For Prometheus, a sample a keyspace.
pub fn append(page: &mut String, keyspace_items: &[(Keyspace, u64)]) {
    if keyspace_items.is_empty() {
        return;
    }
    family(page, "tapetum_keyspace_items", "gauge", HELP);
    for (keyspace, items) in keyspace_items {
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "tapetum_keyspace_items{{keyspace={},kind=\"{}\"}} {items}",
            label(&keyspace.name),
            keyspace.kind
        );
    }
}

/// As `tapetum stats` prints them.
pub fn lines(keyspace_items: Vec<(Keyspace, u64)>) -> impl Iterator<Item = (String, String)> {
    keyspace_items.into_iter().map(|(keyspace, items)| (format!("keyspace_items:{}", keyspace.name), items.to_string()))
}
