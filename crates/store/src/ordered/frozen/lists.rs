//! The data nodes of a range of keys at one moment, for queries at the drive.
//!
//! ```text
//! node after node ─┬─ its slot ─────────────────────────────────────────┬─► list of pages, in the order of keys
//!                  ├─ the same page, cached ─► copied, at the drive ────┤
//!                  └─ copied at the moment ─► copied again, likewise ───┘
//! ```
//! 1. Pages name their keys. What no page covers the query misses: a page for which local memory has no room now, or one that is no longer there.
//!    Whoever runs the query reads it by a scan.
//! 2. At sync modes that wait, a list's records may be shown when what the moment shows is durable.
//!
//! Threads: the query's.

use super::copies::{PageCopy, PageCopying, concat_of};
use super::nodes::NodeAt;
use super::{FrozenTree, KeySpan};
use crate::ordered::cache::PageLook;
use crate::ordered::cache::page_meta::{PageMeta, PageUse};
use crate::ordered::node_table::NodeId;
use crate::ordered::slabs::slot_class::SlotClass;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tapetum_base::engine::scan_layout::{LayoutError, ListLimits, PageCopier, ScanLayout, ScanList};
use tapetum_base::error::Error;
use tapetum_drive::{LocalBuffer, LocalRange, ProgramId, Purpose, SourceRange};
use tapetum_kernels::ordered::extension::{ExtensionReference, front_bytes};
use tapetum_kernels::ordered::{NODE_BYTES, NODE_KEY_BYTES_MAX};
use tapetum_kernels::scan::access::{NodePlace, NodeRun, PieceOfNodes, ValueHome};
use tapetum_kernels::scan::result::{DeferredRecord, MissedKeys, StoppedRun};

/// The most copies of a list: 256 KiB of local memory.
const COPIES_MAX: usize = 64;
/// How often it looks for a page that somebody has, before the query misses the page.
const LOOKS_MAX: usize = 1000;

#[derive(Default)]
pub(super) struct GrowingList {
    runs: Vec<NodeRun>,
    ranges: Vec<SourceRange>,
    /// The slot behind the last one, if the last page was in a slot.
    slot_next: Option<u32>,
    pages: usize,
    copies: Option<LocalBuffer>,
    copied: usize,
}

pub struct FrozenLists {
    tree: Arc<FrozenTree>,
    copier: PageCopier,
    concat: ProgramId,
    pending: VecDeque<KeySpan>,
    listed: BTreeMap<u64, KeySpan>,
    id_next: u64,
}

impl FrozenLists {
    pub fn new(tree: Arc<FrozenTree>, span: KeySpan) -> Result<FrozenLists, Error> {
        let concat = concat_of(&tree.state.base.drive)?;
        let pending = if span.is_empty() { VecDeque::new() } else { VecDeque::from([span]) };
        let copier = PageCopier::default();
        Ok(FrozenLists { tree, copier, concat, pending, listed: BTreeMap::new(), id_next: 0 })
    }

    /// The most copies of a list.
    pub(super) fn copies_max(limits: &ListLimits) -> usize {
        COPIES_MAX.min(pages_max(limits))
    }

    /// Lists a span, or the front of it. Returns the end of the listed part.
    fn list(&mut self, span: &KeySpan, limits: &ListLimits) -> Result<(GrowingList, Option<Vec<u8>>), Error> {
        let tree = self.tree.clone();
        let (pages_max, copies_max) = (pages_max(limits), FrozenLists::copies_max(limits));
        let room = limits.attachment_bytes.saturating_sub(PieceOfNodes::HEAD_BYTES + 3 * NODE_KEY_BYTES_MAX);
        let runs_max = limits.ranges.min(room / PieceOfNodes::RUN_BYTES).max(1);
        let mut list = GrowingList::default();
        for place in tree.nodes.floor(&span.from)..tree.nodes.len() {
            let anchor = tree.nodes.anchor(place);
            if place > 0 && span.to.as_ref().is_some_and(|to| to[..] <= *anchor) {
                break;
            }
            let is_full = list.pages >= pages_max || list.runs.len() >= runs_max || list.copied >= copies_max;
            if is_full {
                return Ok((list, Some(anchor.to_vec())));
            }
            match tree.nodes.at(place) {
                NodeAt::Copy(copy) => self.bring(copy, copies_max, &mut list)?,
                NodeAt::Cached => self.copy_changed(tree.nodes.node(place), copies_max, &mut list)?,
                NodeAt::Slot(slot) => {
                    if !self.copy_image(tree.nodes.node(place), slot, copies_max, &mut list)? {
                        list.add_slot(&tree, slot);
                    }
                }
            }
        }
        Ok((list, span.to.clone()))
    }

    /// A buffer for copies, and a queue to copy by. `None`: there is no memory now.
    fn means(&mut self, copies_max: usize, list: &mut GrowingList) -> Result<Option<LocalBuffer>, Error> {
        let drive = &self.tree.state.base.drive;
        let bytes = copies_max * NODE_BYTES;
        let lent = || self.copier.room.take_if(|room| room.len() >= bytes).or_else(|| drive.local().allocate(bytes));
        let copies = list.copies.take().or_else(lent);
        if self.copier.pair.is_none() {
            self.copier.pair = Some(drive.queue_pair(1).map_err(|error| Error::Io(error.to_string()))?);
        }
        Ok(copies)
    }

    /// Adds a copy that the moment has.
    pub(super) fn bring(&mut self, copy: &PageCopy, copies_max: usize, list: &mut GrowingList) -> Result<(), Error> {
        if let Some(page) = copy.take() {
            let (page, copied) = self.copy(page, copies_max, list);
            page.into_iter().for_each(|page| copy.give_back(page));
            return copied.map(drop);
        }
        // A drive that stopped may have it: it is missed.
        let PageCopy::Host(page) = copy else { return Ok(()) };
        let Some(mut copies) = self.means(copies_max, list)? else { return Ok(()) };
        let Some(pair) = &mut self.copier.pair else { unreachable!("it was just opened") };
        let at = list.copied * NODE_BYTES;
        pair.fill(Purpose::Scan, &mut copies, at..at + NODE_BYTES).copy_from_slice(&page[..]);
        let range = LocalRange { offset: copies.offset() + at as u64, length: NODE_BYTES as u32 };
        list.copies = Some(copies);
        list.add_copy(range);
        Ok(())
    }

    /// Copies a page that is cached as its image in this slot is. Returns whether it was copied.
    fn copy_image(
        &mut self,
        node: NodeId,
        slot: u32,
        copies_max: usize,
        list: &mut GrowingList,
    ) -> Result<bool, Error> {
        let tree = self.tree.clone();
        let keyspace = tree.keyspace.0;
        let is_it = |meta: &mut PageMeta| meta.is_image(keyspace, slot);
        let PageLook::Taken(page) = tree.state.cache.take_if(node, is_it) else { return Ok(false) };
        let (page, copied) = self.copy(page, copies_max, list);
        page.into_iter().for_each(|page| tree.state.cache.give_back(node, page, |_| ()));
        copied
    }

    /// Copies a page as it is now. One that somebody has for long, or that is gone, is missed.
    fn copy_changed(&mut self, node: NodeId, copies_max: usize, list: &mut GrowingList) -> Result<(), Error> {
        let tree = self.tree.clone();
        for _ in 0..LOOKS_MAX {
            match tree.state.cache.take(node, tree.keyspace.0, PageUse::ByScan) {
                PageLook::Taken(page) => {
                    let (page, copied) = self.copy(page, copies_max, list);
                    let Some(page) = page else { return copied.map(drop) };
                    let ticket = tree.state.cache.give_back(node, page, |meta| meta.wait_for(meta.changed_stamp));
                    tree.wait_for(ticket);
                    return copied.map(drop);
                }
                PageLook::Busy => std::thread::yield_now(),
                PageLook::Absent(_) | PageLook::Gone | PageLook::Lost => return Ok(()),
            }
        }
        Ok(())
    }

    /// Copies a page to the list's buffer. The page does not leave the drive, and if the drive stopped, it keeps the page. Returns whether it was copied.
    fn copy(
        &mut self,
        page: LocalBuffer,
        copies_max: usize,
        list: &mut GrowingList,
    ) -> (Option<LocalBuffer>, Result<bool, Error>) {
        let copies = match self.means(copies_max, list) {
            Ok(Some(copies)) => copies,
            // The page is missed, or read from flash.
            Ok(None) => return (Some(page), Ok(false)),
            Err(error) => return (Some(page), Err(error)),
        };
        let Some(pair) = &mut self.copier.pair else { unreachable!("it was just opened") };
        let (drive, concat) = (&self.tree.state.base.drive, self.concat);
        let copied = PageCopying { drive, pair, concat }.copy(page, copies, list.copied * NODE_BYTES);
        list.copies = copied.into;
        let added = copied.range.map(|range| range.map(|range| list.add_copy(range)).is_some());
        (copied.from, added)
    }
}

fn pages_max(limits: &ListLimits) -> usize {
    ((limits.read_bytes / NODE_BYTES as u64) as usize).max(1)
}

impl GrowingList {
    pub(super) fn copied(&self) -> usize {
        self.copied
    }

    /// The buffer of its copies, and where they are in it.
    pub(super) fn into_copies(self) -> (Option<LocalBuffer>, Vec<SourceRange>) {
        (self.copies, self.ranges)
    }

    /// Adds the page in a slot. If the slot's group is gone, it is missed.
    fn add_slot(&mut self, tree: &FrozenTree, slot: u32) {
        let map = tree.slots.nodes().map();
        let (address, flash) = (map.address(slot), map.flash(slot));
        let follows = self.slot_next == Some(slot) && map.first_of(map.extent_of(slot)) != slot;
        match (self.runs.last_mut(), self.ranges.last_mut()) {
            (Some(run), Some(range)) if follows => {
                run.pages += 1;
                range.bytes += NODE_BYTES as u64;
            }
            _ => {
                let Some(salt) = tree.slots.nodes().salt(address) else { return };
                self.runs.push(NodeRun { place: NodePlace::Slots { first: address, version: salt.version }, pages: 1 });
                self.ranges.push(SourceRange { offset: flash, bytes: NODE_BYTES as u64 });
            }
        }
        self.slot_next = Some(slot + 1);
        self.pages += 1;
    }

    fn add_copy(&mut self, range: LocalRange) {
        match (self.runs.last_mut(), self.ranges.last_mut()) {
            (Some(run), Some(ranges)) if run.place == NodePlace::Copies => {
                run.pages += 1;
                ranges.bytes += u64::from(range.length);
            }
            _ => {
                self.runs.push(NodeRun { place: NodePlace::Copies, pages: 1 });
                self.ranges.push(SourceRange::of_local(range));
            }
        }
        self.slot_next = None;
        self.pages += 1;
        self.copied += 1;
    }
}

impl ScanLayout for FrozenLists {
    fn next(&mut self, limits: &ListLimits) -> Result<Option<ScanList>, LayoutError> {
        let Some(span) = self.pending.pop_front() else { return Ok(None) };
        self.check()?;
        let (listed, end) = self.list(&span, limits)?;
        // Pages of the cache tell nothing by their stamps.
        self.check()?;
        if end != span.to {
            let from = end.clone().unwrap_or_default();
            self.pending.push_front(KeySpan { from, to: span.to.clone() });
        }
        let span = KeySpan { from: span.from, to: end };
        let (runs, tree) = (listed.runs, &self.tree);
        let (from, to, stamp_max) = (span.from.clone(), span.to.clone(), tree.image_stamp_max);
        let (store, keyspace) = (tree.state.base.store_id, tree.keyspace.0);
        let piece = PieceOfNodes { store, keyspace, stamp_max, from, to, runs };
        let id = self.id_next;
        self.id_next += 1;
        let (deleted_through, now_ms) = (tree.moment.deleted_through, tree.moment.now_ms);
        let mut list = ScanList { id, deleted_through, now_ms, ..ScanList::default() };
        if piece.runs.is_empty() {
            list.missed.push(MissedKeys { from: piece.from.into(), to: piece.to.map(Vec::into_boxed_slice) });
        } else {
            piece.encode(&mut list.pieces);
            (list.piece_count, list.ranges, list.copies) = (1, listed.ranges, listed.copies);
        }
        self.listed.insert(id, span);
        Ok(Some(list))
    }

    fn again(&mut self, id: u64, stopped: Option<&StoppedRun>) -> Result<(), LayoutError> {
        let Some(span) = self.listed.remove(&id) else { return Ok(()) };
        match stopped {
            None => self.pending.push_front(span),
            Some(StoppedRun { pieces: 0, place, .. }) => {
                let is_inside = place[..] >= span.from[..] && place.len() <= NODE_KEY_BYTES_MAX + 1;
                if !is_inside {
                    return Err(LayoutError::Place);
                }
                self.pending.push_front(KeySpan { from: place.to_vec(), to: span.to });
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn may_show(&mut self, _: u64) -> Result<bool, LayoutError> {
        self.check()?;
        Ok(self.tree.is_durable()?)
    }

    fn check(&self) -> Result<(), LayoutError> {
        self.tree.check()
    }

    fn release(&mut self, id: u64) {
        self.listed.remove(&id);
    }

    fn copier(&mut self) -> Option<&mut PageCopier> {
        Some(&mut self.copier)
    }

    fn value(&self, record: &DeferredRecord) -> Result<Option<(ValueHome, Vec<SourceRange>)>, LayoutError> {
        let damaged = || Error::Corrupt("a reference to an extension; `check` says where".into());
        let reference = ExtensionReference::parse(&record.reference).map_err(|_| damaged())?;
        let Some(class) = reference.class(record.key.len()) else { return Err(damaged().into()) };
        let space = self.tree.slots.of_class(SlotClass::of_extension(class));
        let (Some(offset), Some(salt)) = (space.flash_offset(reference.slot), space.salt(reference.slot)) else {
            return Ok(None);
        };
        let home = ValueHome::Extension(reference, salt.version);
        let stored_bytes = reference.stored_bytes as usize;
        let bytes = (front_bytes(record.key.len(), stored_bytes) + stored_bytes) as u64;
        Ok(Some((home, vec![SourceRange { offset, bytes }])))
    }
}
