//! Checks an ordered keyspace: each data node is read as it is on flash, with its checksum, fences and stamp.

use super::engine::{OrderedEngine, OrderedShared};
use super::node_table::NodeId;
use super::search::AnchorKey;
use super::slabs::keyspace_slots::KeyspaceSlots;
use super::tree::{OrderedTree, of_search};
use crate::error::Error;
use crate::media::io::{Io, lock};
use crate::tools::check::CheckReport;
use tapetum_kernels::ordered::{NODE_BYTES, NodeRef};

/// Checks all open keyspaces. Pages that were changed and not written yet are looked at as they are on flash.
pub async fn check(engine: &OrderedEngine, io: &Io) -> Result<CheckReport, Error> {
    let mut report = CheckReport::default();
    let Some(OrderedShared { state, .. }) = engine.shared() else { return Ok(report) };
    let all: Vec<KeyspaceSlots> = lock(&engine.slots).values().cloned().collect();
    for slots in all {
        let Some(tree) = state.tree(slots.keyspace()) else { continue };
        let mut search = tree.search.handle().map_err(of_search)?;
        let mut anchor = AnchorKey::new();
        let mut next = Some(search.floor(&[], &mut anchor));
        while let Some(node) = next {
            if let Some(home) = state.cache.table.home(NodeId(node as u32)) {
                check_node(io, &tree, home.slot, home.stamp, &mut report).await?;
            }
            next = search.next(&mut anchor);
        }
    }
    Ok(report)
}

async fn check_node(io: &Io, tree: &OrderedTree, slot: u32, stamp: u64, report: &mut CheckReport) -> Result<(), Error> {
    let map = tree.nodes.map();
    let mut buffer = io.allocate(NODE_BYTES).await?;
    io.read(map.flash(slot), &mut buffer, 0, NODE_BYTES).await?;
    let bytes = io.look(&buffer, 0..NODE_BYTES);
    let salt = tree.nodes.salt(map.address(slot));
    let checked = salt.map(|salt| NodeRef::check(bytes, salt));
    match checked {
        Some(Ok(node)) if node.stamp() == stamp => {
            let records = node.records().filter(Result::is_ok).count() as u64;
            report.records += records;
            report.valid_records += records;
        }
        _ => report.problems.push(format!(
            "a data node of ordered keyspace {} at byte {} of the drive",
            tree.keyspace.0,
            map.flash(slot)
        )),
    }
    Ok(())
}
