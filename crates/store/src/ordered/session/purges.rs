//! Purges of dead records: those that have expired, and those that were deleted with everything in their keyspace.
//!
//! ```text
//! no room for a record ──┐
//! to be merged ──────────┼─► dead records removed ─► page changed, their extensions' shares go with the old images'
//! scanned, and all dead ─┘ (by a wish to merge)
//! ```
//! So a keyspace whose items have expired shrinks as it is used. The drive removes them; the host learns how many there were, and their extensions.
//!
//! 1. A deletion of everything counts here only when it is durable: before that a crash may undo it.
//! 2. A reader of a dead record treats it as absent, so nobody waits for its removal.

use super::context::{OrderedMeans, StructureStop};
use super::looks::arguments;
use super::scratch;
use crate::ordered::cache::page_meta::PageMeta;
use crate::ordered::slabs::SlotShare;
use crate::ordered::tree::OrderedTree;
use tapetum_drive::programs::OUTPUT_SHORT;
use tapetum_drive::programs::node::{
    NodeArguments, NodeFlags, PutResult, Realigned, RecordRoom, encode_record_question, removed_extensions,
};
use tapetum_drive::{Completion, LocalBuffer, Purpose};
use tapetum_kernels::ordered::extension::ExtensionReference;
use tapetum_kernels::ordered::{Arrival, NODE_BYTES};

/// The result of a purge of a page.
pub(super) struct Purged {
    records: usize,
    /// Shares of the extensions that the removed records named.
    extensions: Vec<SlotShare>,
    /// Bytes that the node uses now.
    pub used_bytes: usize,
    /// Whether there is room for the record that was asked about.
    pub room: RecordRoom,
}

impl Purged {
    /// Nothing was removed from a node that uses so many bytes.
    pub fn none(used_bytes: usize) -> Purged {
        Purged { records: 0, extensions: Vec::new(), used_bytes, room: RecordRoom::NotAsked }
    }

    pub fn is_none(&self) -> bool {
        self.records == 0
    }

    /// Updates the page's metadata when it is given back.
    pub fn tell(self, meta: &mut PageMeta) {
        meta.is_dirty |= self.records > 0;
        meta.shared.extend(self.extensions);
    }
}

/// Removes dead records from a page that the caller has, and asks whether it then has room for a record. After [`StructureStop::Failed`] the page's
/// content is undefined.
pub(super) fn purge(
    (cx, core): OrderedMeans<'_>,
    tree: &OrderedTree,
    page: &mut LocalBuffer,
    record: Option<Arrival<'_>>,
) -> Result<Purged, StructureStop> {
    let (now_ms, watermark) = (core.base.now_ms(), core.base.keyspaces.watermark(tree.keyspace));
    let watermark = if watermark <= core.base.log.durable_stamp() { watermark } else { 0 };
    let dead = |flags| NodeArguments { now_ms, watermark, ..arguments(flags) };
    let mut gone = Vec::new();
    let mut completion = remove_dead((cx, core), &dead(NodeFlags::IN_PLACE), page, record)?;
    if completion.status == OUTPUT_SHORT {
        // Nothing was removed. The extensions of the dead must be known first.
        gone = extensions_of_dead((cx, core), &dead(NodeFlags::NONE), page)?;
        let known = NodeFlags::IN_PLACE.with(NodeFlags::EXTENSION_KNOWN);
        completion = remove_dead((cx, core), &dead(known), page, record)?;
    }
    if !completion.is_success() {
        return Err(StructureStop::Failed(completion.status));
    }
    let Realigned { removed, used_bytes, room, .. } = Realigned::of_result(completion.result);
    (0..removed).for_each(|_| tree.note(PutResult::Removed));
    let shares = gone.iter().map(|(reference, key_bytes)| share_of(tree, reference, *key_bytes));
    let extensions = shares.collect::<Option<Vec<_>>>().ok_or(StructureStop::Failed(completion.status))?;
    Ok(Purged { records: removed, extensions, used_bytes, room })
}

/// Removes dead records, if the page is all that the program needs to write.
fn remove_dead(
    (cx, core): OrderedMeans<'_>,
    arguments: &NodeArguments,
    page: &mut LocalBuffer,
    record: Option<Arrival<'_>>,
) -> Result<Completion, StructureStop> {
    let mut scratch = cx.take_scratch(core).ok_or(StructureStop::NoMemory)?;
    cx.encode(arguments);
    record.into_iter().for_each(|record| encode_record_question(record, &mut cx.parameters));
    let program = cx.state.programs.realign;
    let operation = scratch::change(&core.queue, Purpose::Structure, program, &cx.parameters, page, &mut scratch);
    let (completion, scratch) = cx.run_at(core, Purpose::Structure, operation, page, scratch)?;
    cx.give_scratch(core, scratch);
    Ok(completion)
}

/// The extensions of dead records, each with the bytes of its key. The page stays as it is.
fn extensions_of_dead(
    (cx, core): OrderedMeans<'_>,
    arguments: &NodeArguments,
    page: &mut LocalBuffer,
) -> Result<Vec<(ExtensionReference, usize)>, StructureStop> {
    let mut scratch = cx.take_scratch(core).ok_or(StructureStop::NoMemory)?;
    cx.encode(arguments);
    let (program, input) = (cx.state.programs.realign, page.range());
    let operation = scratch::look(&core.queue, Purpose::Structure, program, &cx.parameters, input, &mut scratch);
    let (completion, scratch) = cx.run_at(core, Purpose::Structure, operation, page, scratch)?;
    let listed = match completion.is_success() {
        true => {
            let Realigned { output_bytes, .. } = Realigned::of_result(completion.result);
            let behind = scratch::filled_from(&core.queue, Purpose::Structure, &scratch, NODE_BYTES, output_bytes);
            removed_extensions(behind).collect()
        }
        false => None,
    };
    cx.give_scratch(core, scratch);
    listed.ok_or(StructureStop::Failed(completion.status))
}

/// The share of an extension that a record named.
pub(super) fn share_of(tree: &OrderedTree, gone: &ExtensionReference, key_bytes: usize) -> Option<SlotShare> {
    let space = tree.extensions(gone.class(key_bytes)?);
    Some(space.resume(space.map().number(gone.slot)?))
}
