//! Purges of dead records: those that have expired, and those that were deleted with everything in their keyspace.
//!
//! ```text
//! no room for a record ──┐
//! to be merged ──────────┼─► dead records removed ─► page changed, their extensions' shares go with the old images'
//! scanned, and all dead ─┘ (by a wish to merge)
//! ```
//! So a keyspace whose items have expired shrinks as it is used.
//!
//! 1. A deletion of everything counts here only when it is durable: before that a crash may undo it.
//! 2. A reader of a dead record treats it as absent, so nobody waits for its removal.

use super::splits::page_of;
use crate::ordered::cache::page_meta::PageMeta;
use crate::ordered::slabs::SlotShare;
use crate::ordered::tree::OrderedTree;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::node::PutResult;
use tapetum_drive::{LocalBuffer, Purpose};
use tapetum_kernels::ordered::{NODE_BYTES, NodeError, NodeMut, NodeRecord, NodeRef};

/// The result of a purge of a page.
#[derive(Default)]
pub(super) struct Purged {
    records: usize,
    /// Shares of the extensions that the removed records named.
    extensions: Vec<SlotShare>,
    /// Bytes that the node uses now.
    pub used_bytes: usize,
}

impl Purged {
    pub fn is_none(&self) -> bool {
        self.records == 0
    }

    /// Updates the page's metadata when it is given back.
    pub fn tell(self, meta: &mut PageMeta) {
        meta.is_dirty |= self.records > 0;
        meta.shared.extend(self.extensions);
    }
}

/// Removes dead records from a page that the caller has.
pub(super) fn purge(core: &SessionCore, tree: &OrderedTree, page: &mut LocalBuffer) -> Result<Purged, NodeError> {
    let (now_ms, watermark) = (core.base.now_ms(), core.base.keyspaces.watermark(tree.keyspace));
    let watermark = if watermark <= core.base.log.durable_stamp() { watermark } else { 0 };
    let is_live = |record: &NodeRecord<'_>| {
        let (stamp, expiry) = (record.header.stamp, record.header.expiry);
        stamp > watermark && !expiry.has_passed(now_ms)
    };
    let node = NodeRef::look(core.queue.look(Purpose::Put, page, 0..NODE_BYTES))?;
    let mut purged = Purged::default();
    for record in node.records() {
        let record = record?;
        if is_live(&record) {
            continue;
        }
        purged.records += 1;
        tree.note(PutResult::Removed);
        if let Some(reference) = record.extension()? {
            let class = reference.class(record.key.len()).ok_or(NodeError::Damaged)?;
            let space = tree.extensions(class);
            let number = space.map().number(reference.slot).ok_or(NodeError::Damaged)?;
            purged.extensions.push(space.resume(number));
        }
    }
    if purged.records > 0 {
        let mut node = NodeMut::look(page_of(&core.queue, page)?)?;
        node.retain(is_live, |_| ())?;
        purged.used_bytes = node.view().used_bytes();
    }
    Ok(purged)
}
