//! The ordered engine's part of a batch: the pages of its keys, all taken at once, and its records.
//!
//! ```text
//! prepare ─► values in extensions? ─► lock: writers' list ─► pages, in the order of keys ─► one group of the log ─► pages changed,
//!    └─ no: asked for, busy            split where there is too little room ─┘ └─ absent: asked for, busy           given back, listed
//! ```
//! 1. All pages are taken, and have room for all records, before the log has one of them. So nothing can fail between the append and the change.
//! 2. Stamps are given while all pages are taken: an image of one of them with a higher stamp has the batch's changes.
//! 3. Pages are given back when all are changed, so that nobody sees one page from before the batch and another one from after it.
//! 4. The drive changes the pages, and says whether they have room where the host does not know that.
//! 5. A batch that finds a page taken or absent gives all pages back and is submitted again: it never waits while it holds pages.

use super::attempt::refuse;
use super::batch_pages::{put, room_for};
use super::context::{Context, StructureStop};
use super::in_hand::Ops;
use super::looks::stopped_at;
use super::merges::Merges;
use super::op_state::TakenPage;
use super::page_reads::{PageRead, PageReader, PageReads};
use super::preparation::{BatchValue, Preparation};
use super::purges::share_of;
use super::splits::{Split, try_split};
use crate::ordered::batches::{BatchList, BatchWriter};
use crate::ordered::cache::durability_ticket::DurabilityTicket;
use crate::ordered::cache::page_meta::PageUse;
use crate::ordered::cache::{PageLook, WAYS, lost};
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
use tapetum_drive::LocalBuffer;
use tapetum_drive::programs::node::NodeCutAt;
use tapetum_kernels::ordered::extension::REFERENCE_BYTES;
use tapetum_kernels::ordered::{BLOCK_BYTES, node_record_bytes};
use tapetum_kernels::record::{Codec, Header, Kind, Record};

/// Slots of one block of a node.
const SLOTS_OF_BLOCK: usize = 16;
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

/// The writes of a batch, as records.
struct BatchRecords<'a> {
    writes: &'a [Write<'a>],
    /// The values in extensions, each at the index of its write; empty if there are none.
    values: Vec<Option<BatchValue>>,
    references: Vec<[u8; REFERENCE_BYTES]>,
    /// The indexes of the writes, sorted by keyspace and key. Equal keys keep their order.
    order: Vec<usize>,
}

impl BatchRecords<'_> {
    /// The record of a write for the log.
    fn draft(&self, place: usize) -> Draft<'_> {
        let write = &self.writes[place];
        match self.values.get(place) {
            Some(Some(_)) => write.draft(Codec::OutOfLine, &self.references[place]),
            _ => write.draft(Codec::Raw, write.value()),
        }
    }

    /// The write in a place of the order of keys.
    fn write(&self, at: usize) -> &Write<'_> {
        &self.writes[self.order[at]]
    }

    /// Records for a node, which itself names the keyspace. The log gives them `stamps`, each at the index of its write.
    fn in_node(&self, places: Range<usize>, stamps: impl Fn(usize) -> u64) -> Vec<Record<'_>> {
        let record = |place: &usize| {
            let Draft { header, key, stored } = self.draft(*place);
            Record { header: Header { keyspace: 0, stamp: stamps(*place), ..header }, key, stored }
        };
        self.order[places].iter().map(record).collect()
    }
}

pub struct OrderedBatch<'a> {
    session: SessionParts<'a>,
    list: &'a BatchList,
    records: BatchRecords<'a>,
    pages: Vec<BatchPage>,
    /// For the programs that change the pages.
    scratch: Option<LocalBuffer>,
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
            records: BatchRecords { writes, values, references, order },
            pages: Vec::new(),
            scratch: None,
            pass,
            passing: None,
            writer: None,
        })
    }

    /// Takes the pages of all writes, with room for their records.
    fn take_pages(&mut self, core: &mut SessionCore) -> Result<(), BatchStop> {
        let (mut at, mut is_missing) = (0, false);
        while at < self.records.order.len() {
            let write = self.records.write(at);
            let (keyspace, key) = (write.keyspace().id(), write.key());
            let tree = self.session.cx.tree_of(keyspace).map_err(BatchStop::Refused)?;
            let node = self.session.cx.node_of(tree, key);
            let page = match self.session.cx.state.cache.take(node, keyspace.0, PageUse::ByKey) {
                PageLook::Taken(page) => page,
                PageLook::Busy | PageLook::Gone => return Err(BatchStop::Busy),
                PageLook::Lost => return Err(BatchStop::Refused(lost(node))),
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
            let writes = at..at + count_of(self.session.cx, &self.records, tree, node, at);
            let tree = self.session.cx.trees[tree].tree.clone();
            if writes.is_empty() {
                // The node was split after the lookup.
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
        if is_missing {
            return Err(BatchStop::Busy);
        }
        self.scratch = self.session.cx.take_scratch(core);
        if self.scratch.is_some() { Ok(()) } else { Err(self.without_memory()) }
    }

    /// The batch waits for memory.
    fn without_memory(&mut self) -> BatchStop {
        self.session.preparation.wants_room = true;
        BatchStop::Busy
    }

    /// Keeps a page that has room for its writes, or splits its node. Returns the next write to handle.
    fn keep_or_split(&mut self, core: &mut SessionCore, mut page: BatchPage) -> Result<usize, BatchStop> {
        let cx = &mut *self.session.cx;
        let records = self.records.in_node(page.writes.clone(), |_| 0);
        let room = match records_bytes(&records) <= cx.state.cache.table.room_bytes_known(page.node) {
            true => Ok(None),
            false => room_for((cx, core), &mut page.page, &records),
        };
        match room {
            Ok(None) => {
                let end = page.writes.end;
                self.pages.push(page);
                Ok(end)
            }
            Ok(Some(separator)) => self.split(core, page, &separator),
            Err(StructureStop::Stopped) => Err(BatchStop::Busy),
            Err(stop) => {
                let BatchPage { node, page, .. } = page;
                cx.state.cache.give_back(node, page, |_| ());
                match stop {
                    StructureStop::NoMemory => Err(self.without_memory()),
                    stop => Err(BatchStop::Refused(stopped_at(node, stop))),
                }
            }
        }
    }

    /// Splits the node of a page. Returns the first of its writes.
    fn split(&mut self, core: &mut SessionCore, page: BatchPage, separator: &[u8]) -> Result<usize, BatchStop> {
        let BatchPage { tree, node, page, writes } = page;
        let is_full = tree.is_full.load(Ordering::Relaxed);
        let cx = &mut *self.session.cx;
        match try_split((cx, core), tree.keyspace, TakenPage { node, page }, NodeCutAt::Key(separator), |_| true) {
            Ok(Split::Done) => Ok(writes.start),
            Ok(Split::Stopped) => Err(BatchStop::Busy),
            Ok(Split::NotWanted) => unreachable!("any halves are wanted"),
            Ok(Split::NotNow) if !cx.state.may_grow() => Err(BatchStop::Refused(Error::FullIndex)),
            Ok(Split::NotNow) if is_full => Err(BatchStop::Refused(Error::FullFlash)),
            Ok(Split::NotNow) => Err(self.without_memory()),
            Err(error) => Err(BatchStop::Refused(error)),
        }
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
            let puts = pages.iter().flat_map(|page| page.writes.clone()).any(|at| self.records.write(at).is_put());
            if puts && missing > 0 && is_full() {
                return Err(BatchStop::Refused(Error::FullFlash));
            }
        }
        Ok(())
    }

    /// Has the drive change a page. Returns the changes for the cache's metadata.
    fn change(
        &mut self,
        core: &mut SessionCore,
        page: &mut BatchPage,
        stamps: &[(u64, u32)],
    ) -> Result<PageChanges, StructureStop> {
        let records = self.records.in_node(page.writes.clone(), |place| stamps[place].0);
        let scratch = self.scratch.as_mut().expect("it was taken with the pages");
        let done = put((self.session.cx, core), &mut page.page, scratch, &records)?;
        let mut changes = PageChanges { used_bytes: done.used_bytes, ..PageChanges::default() };
        for (record, outcome) in records.iter().zip(done.outcomes) {
            page.tree.note(outcome.result);
            let gone = outcome.extension;
            changes.gone.extend(gone.and_then(|gone| share_of(&page.tree, &gone, record.key.len())));
            let stamp = record.header.stamp;
            changes.stamp_last = changes.stamp_last.max(stamp);
            if record.header.kind == Kind::Tombstone {
                changes.removed = changes.removed.max(Some(stamp));
            }
        }
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
        let key = self.records.write(writes.start).key();
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
        drafts.extend((0..self.records.writes.len()).map(|place| self.records.draft(place)));
    }

    fn appended(&mut self, core: &mut SessionCore, records: &[(u64, u32)]) {
        let mut pages = std::mem::take(&mut self.pages);
        let changed: Vec<_> = pages.iter_mut().map(|page| self.change(core, page, records)).collect();
        let mut tickets = Vec::with_capacity(pages.len());
        for (page, changes) in pages.into_iter().zip(changed) {
            match changes {
                // The drive keeps the page.
                Err(StructureStop::Stopped) => continue,
                // The page had room, so it was changed in between or is damaged.
                Err(stop) => {
                    core.base.log.poison("a change of a data node", stopped_at(page.node, stop));
                    self.session.cx.state.cache.with(page.node, |meta| meta.is_lost = true);
                }
                Ok(_) => {}
            }
            tickets.push(self.give_back(page, changes.unwrap_or_default()));
        }
        std::mem::take(&mut self.records.values).into_iter().flatten().for_each(BatchValue::keep);
        if let (Some(writer), Some((stamp, _))) = (&self.writer, records.first()) {
            writer.list(*stamp, tickets);
        }
    }
}

impl Drop for OrderedBatch<'_> {
    fn drop(&mut self) {
        self.session.cx.may_change = false;
        self.scratch.take().into_iter().for_each(|scratch| self.session.cx.drop_scratch(scratch));
        for BatchPage { node, page, .. } in self.pages.drain(..) {
            self.session.cx.state.cache.give_back(node, page, |_| ());
        }
        if !self.records.values.is_empty() {
            self.session.preparation.give_values(std::mem::take(&mut self.records.values));
        }
    }
}

/// The number of writes from `at` on, in the order of their keys, that belong to a node whose page is taken: while it is, the node's anchor and the
/// next one stay.
fn count_of(cx: &mut Context, records: &BatchRecords<'_>, tree: usize, node: NodeId, at: usize) -> usize {
    let keyspace = records.write(at).keyspace();
    if cx.node_of(tree, records.write(at).key()) != node {
        return 0;
    }
    let mut behind = Box::new(cx.anchor.clone());
    let end = cx.trees[tree].search.next(&mut behind).map(|_| behind);
    let is_of = |at: &usize| {
        let write = &records.writes[*at];
        write.keyspace() == keyspace && end.as_ref().is_none_or(|end| write.key() < &end[..])
    };
    records.order[at..].iter().take_while(|place| is_of(place)).count()
}

/// The most bytes that records take in a node, with their slots.
fn records_bytes(records: &[Record<'_>]) -> usize {
    let puts = records.iter().filter(|record| record.header.kind != Kind::Tombstone);
    let (count, bytes) =
        puts.fold((0, 0), |(count, bytes), record| (count + 1, bytes + node_record_bytes(&record.header)));
    bytes + BLOCK_BYTES * usize::div_ceil(count + SLOTS_OF_BLOCK - 1, SLOTS_OF_BLOCK)
}
