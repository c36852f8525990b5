//! The ordered engine's part of a batch: the pages of its keys, all taken at once, and its records.
//!
//! ```text
//! prepare ─► values in extensions? ─► lock: writers' list ─► pages, in the order of keys ─► one group of the log ─► pages changed,
//!    └─ no: asked for, busy            split where there is too little room ─┘ └─ absent: asked for, busy           given back, listed
//! ```
//! 1. All pages are taken, and have room for all records, before the log has one of them. So nothing can fail between the append and the change.
//! 2. Stamps are given while all pages are taken: an image of one of them with a higher stamp has the batch's changes.
//! 3. Pages are given back when all are changed, so that nobody sees one page from before the batch and another one from after it.
//! 4. A batch that finds a page taken or absent gives all pages back and is submitted again: it never waits while it holds pages.

use super::attempt::refuse;
use super::context::Context;
use super::in_hand::Ops;
use super::looks::damaged;
use super::merges::Merges;
use super::op_state::TakenPage;
use super::page_reads::{PageRead, PageReader, PageReads};
use super::preparation::{BatchValue, Preparation};
use super::purges::share_of;
use super::splits::{Split, try_split};
use crate::ordered::batches::{BatchList, BatchWriter};
use crate::ordered::cache::durability_ticket::DurabilityTicket;
use crate::ordered::cache::page_meta::PageUse;
use crate::ordered::cache::{PageLook, WAYS};
use crate::ordered::gate::{GatePass, Passing};
use crate::ordered::node_table::NodeId;
use crate::ordered::slabs::SlotShare;
use crate::ordered::tree::OrderedTree;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_base::error::Error;
use tapetum_base::log::Draft;
use tapetum_base::session::batch::{BatchPart, BatchStop, Write};
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::node::{NodeCutAt, PutResult};
use tapetum_drive::{LocalBuffer, Purpose};
use tapetum_kernels::ordered::extension::REFERENCE_BYTES;
use tapetum_kernels::ordered::{
    Arrival, NODE_BYTES, NodeCut, NodeError, NodeMut, NodeOrder, NodePage, NodeRef, ReplacedRecord, node_record_bytes,
    split_off,
};
use tapetum_kernels::record::{Codec, Header, Kind, Record};

/// A batch takes at most one such part of the cache's pages. Other operations go on meanwhile.
const CACHE_PART: usize = 4;

/// A taken page of a batch.
struct BatchPage {
    tree: Arc<OrderedTree>,
    node: NodeId,
    page: LocalBuffer,
    /// This page's writes, among the writes in the order of their keys.
    writes: Range<usize>,
}

/// The parts of its session that a batch uses.
pub(super) struct SessionParts<'a> {
    pub cx: &'a mut Context,
    pub preparation: &'a mut Preparation,
    pub reads: &'a PageReads,
    pub merges: &'a mut Merges,
}

pub struct OrderedBatch<'a> {
    session: SessionParts<'a>,
    list: &'a BatchList,
    writes: &'a [Write<'a>],
    /// The values in extensions, each at the index of its write; empty if there are none.
    values: Vec<Option<BatchValue>>,
    references: Vec<[u8; REFERENCE_BYTES]>,
    /// The indexes of the writes, sorted by keyspace and key. Equal keys keep their order.
    order: Vec<usize>,
    pages: Vec<BatchPage>,
    pass: &'a GatePass,
    /// No freeze is made from when the batch takes pages until they are changed.
    passing: Option<Passing<'a>>,
    writer: Option<BatchWriter<'a>>,
}

impl<'a> OrderedBatch<'a> {
    /// Prepares the writes of a batch. Requests missing pages and values; the caller submits the batch again.
    pub(super) fn prepare(
        session: SessionParts<'a>,
        ops: &Ops,
        core: &SessionCore,
        (list, pass): (&'a BatchList, &'a GatePass),
        writes: &'a [Write<'a>],
    ) -> Result<OrderedBatch<'a>, BatchStop> {
        let refused = writes.iter().try_for_each(|write| refuse(core, &write.request()));
        let failed = session.preparation.failed.take().map_or(Ok(()), Err);
        refused.and(failed).and(core.base.log.poisoned()).map_err(BatchStop::Refused)?;
        let state = &session.cx.state;
        if std::mem::take(&mut session.preparation.wants_room) {
            state.write_back.advance(state, true);
        }
        let hash = |write: &Write<'_>| core.base.hasher.hash(write.keyspace().id(), write.key());
        let is_behind = ops.deletes_all() || writes.iter().any(|write| ops.has_undecided(hash(write)));
        if core.base.is_paced() || is_behind || state.write_back.is_behind() {
            return Err(BatchStop::Busy);
        }
        let values = session.preparation.take_values(session.cx, writes)?;
        let reference = |value: &Option<BatchValue>| value.as_ref().and_then(BatchValue::reference);
        let encoded = |value| reference(value).map_or([0; REFERENCE_BYTES], |reference| reference.encode());
        let references = values.iter().map(encoded).collect();
        let mut order: Vec<usize> = (0..writes.len()).collect();
        order.sort_by_key(|place| (writes[*place].keyspace().id(), writes[*place].key()));
        Ok(OrderedBatch {
            session,
            list,
            writes,
            values,
            references,
            order,
            pages: Vec::new(),
            pass,
            passing: None,
            writer: None,
        })
    }

    /// The record of a write for the log.
    fn draft<'b>(&'b self, place: usize) -> Draft<'b>
    where
        'a: 'b,
    {
        let write = &self.writes[place];
        match self.values.get(place) {
            Some(Some(_)) => write.draft(Codec::OutOfLine, &self.references[place]),
            _ => write.draft(Codec::Raw, write.value()),
        }
    }

    /// Takes the pages of all writes, with room for their records.
    fn take_pages(&mut self, core: &mut SessionCore) -> Result<(), BatchStop> {
        let (mut at, mut is_missing) = (0, false);
        while at < self.order.len() {
            let write = &self.writes[self.order[at]];
            let (keyspace, key) = (write.keyspace().id(), write.key());
            let tree = self.session.cx.tree_of(keyspace).map_err(BatchStop::Refused)?;
            let node = self.session.cx.node_of(tree, key);
            let page = match self.session.cx.state.cache.take(node, keyspace.0, PageUse::ByKey) {
                PageLook::Taken(page) => page,
                PageLook::Busy | PageLook::Gone => return Err(BatchStop::Busy),
                PageLook::Absent(home) => {
                    self.refuse_if_crowded(core, node)?;
                    is_missing = true;
                    let is_asked = |wanted: &PageRead| wanted.node == node;
                    if !self.session.preparation.wanted.last().is_some_and(is_asked) && !self.session.reads.has(node) {
                        let read = PageRead { keyspace, node, home, key: key.to_vec(), reader: PageReader::Batch };
                        self.session.preparation.wanted.push(read);
                    }
                    at += 1;
                    continue;
                }
            };
            let tree = self.session.cx.trees[tree].tree.clone();
            let writes = at..at + self.count_of(core, &page, at);
            if writes.is_empty() {
                // The node was split after the lookup, or it is damaged.
                self.session.cx.state.cache.give_back(node, page, |_| ());
                return Err(BatchStop::Busy);
            }
            let page = BatchPage { tree, node, page, writes };
            if is_missing {
                at = page.writes.end;
                self.pages.push(page);
                continue;
            }
            at = self.keep_or_split(core, page)?;
        }
        if is_missing { Err(BatchStop::Busy) } else { Ok(()) }
    }

    /// The number of writes from `at` on, in the order of their keys, that belong to this page.
    fn count_of(&self, core: &SessionCore, page: &LocalBuffer, at: usize) -> usize {
        let keyspace = self.writes[self.order[at]].keyspace();
        let Ok(node) = NodeRef::look(core.queue.look(Purpose::Put, page, 0..NODE_BYTES)) else { return 0 };
        let rest = self.order[at..].iter().map(|place| &self.writes[*place]);
        rest.take_while(|write| write.keyspace() == keyspace && node.covers(write.key())).count()
    }

    /// Keeps a page that has room for its writes, or splits its node. Returns the next write to handle.
    fn keep_or_split(&mut self, core: &mut SessionCore, page: BatchPage) -> Result<usize, BatchStop> {
        match self.room_in(core, &page) {
            Ok(None) => {
                let end = page.writes.end;
                self.pages.push(page);
                Ok(end)
            }
            Ok(Some(separator)) => {
                let (keyspace, begin) = (page.tree.keyspace, page.writes.start);
                let is_full = page.tree.is_full.load(Ordering::Relaxed);
                let taken = TakenPage { node: page.node, page: page.page };
                match try_split((self.session.cx, core), keyspace, taken, NodeCutAt::Key(&separator)) {
                    Ok(Split::Done) => Ok(begin),
                    Ok(Split::Stopped) => Err(BatchStop::Busy),
                    Ok(Split::NotNow) if !self.session.cx.state.may_grow() => Err(BatchStop::Refused(Error::FullIndex)),
                    Ok(Split::NotNow) if is_full => Err(BatchStop::Refused(Error::FullFlash)),
                    Ok(Split::NotNow) => {
                        self.session.preparation.wants_room = true;
                        Err(BatchStop::Busy)
                    }
                    Err(error) => Err(BatchStop::Refused(error)),
                }
            }
            Err(_) => {
                let error = damaged(page.node);
                self.session.cx.state.cache.give_back(page.node, page.page, |_| ());
                Err(BatchStop::Refused(error))
            }
        }
    }

    /// Whether a page has room for its writes. If not, returns the key in front of which its node must be split.
    fn room_in(&self, core: &SessionCore, page: &BatchPage) -> Result<Option<Vec<u8>>, NodeError> {
        let bytes = core.queue.look(Purpose::Put, &page.page, 0..NODE_BYTES);
        let mut copy: NodePage = bytes.try_into().map_err(|_| NodeError::Damaged)?;
        for place in page.writes.clone() {
            let draft = self.draft(self.order[place]);
            match apply(&mut NodeMut::look(&mut copy)?, &draft, 0) {
                Ok(_) => {}
                Err(NodeError::NoRoom) => {
                    let arrival = Arrival { key: draft.key, record_bytes: node_record_bytes(&in_node(&draft, 0)) };
                    return separator_for(&copy, arrival).map(Some);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Refuses a batch whose pages can never all be in the cache.
    fn refuse_if_crowded(&self, core: &SessionCore, node: NodeId) -> Result<(), BatchStop> {
        let cache = &self.session.cx.state.cache;
        let of_its_set = self.pages.iter().filter(|page| cache.are_of_one_set(page.node, node)).count();
        let limit_writes = (cache.pages() / CACHE_PART).max(WAYS);
        if of_its_set < WAYS && self.pages.len() < limit_writes {
            return Ok(());
        }
        let limit_bytes = core.base.geometry.segment_bytes as usize / 2;
        Err(BatchStop::Refused(Error::BatchTooLarge { limit_bytes, limit_writes }))
    }

    /// Refuses puts if flash has no room for their images: one for each page, and one more if the page is split before.
    fn refuse_if_full(&self, core: &SessionCore) -> Result<(), BatchStop> {
        for pages in self.pages.chunk_by(|one, other| Arc::ptr_eq(&one.tree, &other.tree)) {
            let nodes = &pages[0].tree.nodes;
            let missing = (2 * pages.len() as u32).saturating_sub(nodes.spare_slots());
            // Others need extents, too.
            let is_full = || nodes.slots_left(&core.base.extents, 2 * missing) < 2 * missing;
            let puts =
                pages.iter().flat_map(|page| &self.order[page.writes.clone()]).any(|at| self.writes[*at].is_put());
            if puts && missing > 0 && is_full() {
                return Err(BatchStop::Refused(Error::FullFlash));
            }
        }
        Ok(())
    }

    /// Changes a page. Returns the changes for the cache's metadata.
    fn change(
        &self,
        core: &SessionCore,
        page: &mut BatchPage,
        records: &[(u64, u32)],
    ) -> Result<PageChanges, NodeError> {
        let mut node = NodeMut::look(core.queue.fill(Purpose::Put, &mut page.page, 0..NODE_BYTES))?;
        let mut changes = PageChanges::default();
        for place in self.order[page.writes.clone()].iter().copied() {
            let (draft, stamp) = (self.draft(place), records[place].0);
            let replaced = apply(&mut node, &draft, stamp)?;
            page.tree.note(match (draft.header.kind, replaced.is_some()) {
                (Kind::Tombstone, true) => PutResult::Removed,
                (Kind::Tombstone, false) => PutResult::Missing,
                (_, true) => PutResult::Replaced,
                (_, false) => PutResult::Stored,
            });
            let gone = replaced.and_then(|replaced| replaced.extension);
            changes.gone.extend(gone.and_then(|gone| share_of(&page.tree, &gone, draft.key.len())));
            changes.stamp_last = changes.stamp_last.max(stamp);
            if draft.header.kind == Kind::Tombstone {
                changes.removed = changes.removed.max(Some(stamp));
            }
        }
        changes.used_bytes = node.view().used_bytes();
        Ok(changes)
    }

    /// Gives a changed page back, to be written once the batch is durable in the log. Returns the ticket of its image.
    fn give_back(&mut self, page: BatchPage, changes: PageChanges) -> Arc<DurabilityTicket> {
        let PageChanges { stamp_last, removed, gone, used_bytes } = changes;
        let BatchPage { tree, node, page, writes } = page;
        let (ticket, is_new) = self.session.cx.state.cache.give_back(node, page, |meta| {
            meta.changed(stamp_last, false);
            removed.into_iter().for_each(|stamp| meta.changed(stamp, true));
            meta.log_stamp = meta.log_stamp.max(stamp_last);
            // The extensions are freed when the image that no longer names them is durable.
            meta.shared.extend(gone);
            (meta.ticket(), meta.list())
        });
        if is_new {
            self.session.cx.state.write_back.list(&tree, node);
        }
        let key = self.writes[self.order[writes.start]].key();
        self.session.merges.note_used(self.session.cx, tree.keyspace, key, node, used_bytes);
        ticket
    }
}

#[derive(Default)]
struct PageChanges {
    stamp_last: u64,
    /// The stamp of the last removal.
    removed: Option<u64>,
    /// Extensions that no record of the page names any more.
    gone: Vec<SlotShare>,
    used_bytes: usize,
}

impl BatchPart for OrderedBatch<'_> {
    fn lock(&mut self, core: &mut SessionCore) -> Result<(), BatchStop> {
        let passing = self.pass.pass();
        if !passing.may_change {
            return Err(BatchStop::Busy);
        }
        self.passing = Some(passing);
        self.session.cx.may_change = true;
        // There is no writer if the store is being closed.
        self.writer = Some(self.list.writer().ok_or(BatchStop::Busy)?);
        self.take_pages(core)?;
        self.refuse_if_full(core)
    }

    fn add_drafts<'a>(&'a self, drafts: &mut Vec<Draft<'a>>) {
        drafts.extend((0..self.writes.len()).map(|place| self.draft(place)));
    }

    fn appended(&mut self, core: &mut SessionCore, records: &[(u64, u32)]) {
        let mut pages = std::mem::take(&mut self.pages);
        let changed: Vec<_> = pages.iter_mut().map(|page| self.change(core, page, records)).collect();
        let mut tickets = Vec::with_capacity(pages.len());
        for (page, changes) in pages.into_iter().zip(changed) {
            if changes.is_err() {
                // The page had room, so it was changed in between or is damaged.
                core.base.log.poison("a change of a data node", damaged(page.node));
            }
            tickets.push(self.give_back(page, changes.unwrap_or_default()));
        }
        std::mem::take(&mut self.values).into_iter().flatten().for_each(BatchValue::keep);
        if let (Some(writer), Some((stamp, _))) = (&self.writer, records.first()) {
            writer.list(*stamp, tickets);
        }
    }
}

impl Drop for OrderedBatch<'_> {
    fn drop(&mut self) {
        self.session.cx.may_change = false;
        for BatchPage { node, page, .. } in self.pages.drain(..) {
            self.session.cx.state.cache.give_back(node, page, |_| ());
        }
        if !self.values.is_empty() {
            self.session.preparation.give_values(std::mem::take(&mut self.values));
        }
    }
}

/// The header of a record within a node, which itself names the keyspace.
fn in_node(draft: &Draft<'_>, stamp: u64) -> Header {
    Header { keyspace: 0, stamp, ..draft.header }
}

/// Puts or removes a record. Returns the record that was there before.
fn apply(node: &mut NodeMut<'_>, draft: &Draft<'_>, stamp: u64) -> Result<Option<ReplacedRecord>, NodeError> {
    let record = Record { header: in_node(draft, stamp), key: draft.key, stored: draft.stored };
    match record.header.kind {
        Kind::Tombstone => node.remove(draft.key),
        _ => node.put(&record),
    }
}

/// The separator at which a node would be split that has a batch's records up to one without room.
fn separator_for(copy: &NodePage, arrival: Arrival<'_>) -> Result<Vec<u8>, NodeError> {
    let (node, mut order) = (NodeRef::look(copy)?, NodeOrder::new());
    order.sort(&node)?;
    let mut right = [0; NODE_BYTES];
    split_off(&node, &order, NodeCut::For(Some(arrival)), 0, &mut right)?;
    Ok(NodeRef::look(&right)?.low_fence().to_vec())
}
