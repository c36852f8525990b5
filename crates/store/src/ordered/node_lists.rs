//! The data nodes of a range of keys, for queries at the drive.
//!
//! ```text
//! search layer: node after node ─┬─ not cached ─► its slot ────────────────────────────────┬─► list of pages, in the order of keys
//!                                └─ cached ─────► copied beside, with a ticket of its changes ┘
//! ```
//! 1. A list has each node as it is when the list is made: as a slot with its newest durable image, or as a copy of its cached page. The pages name
//!    their keys, so nothing is held until they are read. Records that were split off, merged or overwritten meanwhile are missed, and a scan reads
//!    them.
//! 2. A copied page is given back before the list is done.
//! 3. At sync modes that wait, a list's records may be shown when its tickets are done and the last deletion of everything is durable.
//!
//! Threads: the query's.

use super::cache::PageLook;
use super::cache::durability_ticket::DurabilityTicket;
use super::cache::page_meta::PageUse;
use super::node_table::NodeId;
use super::search::{AnchorKey, SearchHandle};
use super::tree::{OrderedState, OrderedTree, of_search};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tapetum_base::engine::scan_layout::{LayoutError, ListLimits, PageCopier, ScanLayout, ScanList};
use tapetum_base::error::Error;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::log::Sync;
use tapetum_base::request::key_range::{KeyBound, KeyRange};
use tapetum_drive::{
    Command, Lease, LocalBuffer, LocalRange, Operation, ProgramId, Purpose, SourceRange, Status, fail_point,
};
use tapetum_kernels::ordered::extension::{ExtensionReference, front_bytes};
use tapetum_kernels::ordered::{NODE_BYTES, NODE_KEY_BYTES_MAX};
use tapetum_kernels::scan::access::{NodePlace, NodeRun, PieceOfNodes, ValueHome};
use tapetum_kernels::scan::result::{DeferredRecord, MissedKeys, StoppedRun};

/// The most copies of a list: 256 KiB of local memory.
const COPIES_MAX: usize = 64;
/// How often a page that somebody has is requested before it is left as missed.
const PATIENCE: usize = 1000;

/// A part of the range.
#[derive(Clone, Debug)]
struct KeySpan {
    from: Vec<u8>,
    to: Option<Vec<u8>>,
}

/// The state of a list that the drive works on.
struct ListedNodes {
    span: KeySpan,
    tickets: Vec<Arc<DurabilityTicket>>,
    /// The stamp of the last deletion of everything that may have deleted records here.
    deleted_by: u64,
}

struct GrowingList {
    runs: Vec<NodeRun>,
    ranges: Vec<SourceRange>,
    /// The slot behind the last one, if the last page was in a slot.
    slot_next: Option<u32>,
    pages: usize,
    copies: Option<LocalBuffer>,
    copies_max: usize,
    copied: usize,
    tickets: Vec<Arc<DurabilityTicket>>,
}

pub struct NodeLists {
    state: Arc<OrderedState>,
    tree: Arc<OrderedTree>,
    keyspace: KeyspaceRef,
    search: SearchHandle,
    anchor: AnchorKey,
    copier: PageCopier,
    concat: ProgramId,
    pending: VecDeque<KeySpan>,
    listed: BTreeMap<u64, ListedNodes>,
    id_next: u64,
}

/// The least key that satisfies a lower bound.
fn lower(bound: &KeyBound) -> Vec<u8> {
    match bound {
        KeyBound::Unbounded => Vec::new(),
        KeyBound::Included(key) => key.clone(),
        KeyBound::Excluded(key) => [&key[..], &[0]].concat(),
    }
}

/// The least key above an upper bound.
fn upper(bound: &KeyBound) -> Option<Vec<u8>> {
    match bound {
        KeyBound::Unbounded => None,
        KeyBound::Included(key) => Some([&key[..], &[0]].concat()),
        KeyBound::Excluded(key) => Some(key.clone()),
    }
}

impl NodeLists {
    pub fn new(
        state: Arc<OrderedState>,
        tree: Arc<OrderedTree>,
        keyspace: KeyspaceRef,
        range: &KeyRange,
    ) -> Result<NodeLists, Error> {
        if range.from.key().len().max(range.to.key().len()) > NODE_KEY_BYTES_MAX {
            return Err(Error::KeyTooLong { limit_bytes: NODE_KEY_BYTES_MAX });
        }
        let identity = state.base.drive.identity();
        let concat = identity.programs.iter().find(|program| program.name == "concat");
        let concat = concat.ok_or_else(|| Error::Io("the drive has no program concat".into()))?.id;
        let search = tree.search.handle().map_err(of_search)?;
        let whole = KeySpan { from: lower(&range.from), to: upper(&range.to) };
        let is_empty = whole.to.as_ref().is_some_and(|to| *to <= whole.from);
        let pending = if is_empty { VecDeque::new() } else { VecDeque::from([whole]) };
        let (anchor, listed) = (AnchorKey::new(), BTreeMap::new());
        let copier = PageCopier::default();
        Ok(NodeLists { state, tree, keyspace, search, anchor, copier, concat, pending, listed, id_next: 0 })
    }

    /// Lists a span, or the front of it. Returns the end of the listed part.
    fn list(&mut self, span: &KeySpan, limits: &ListLimits) -> Result<(GrowingList, Option<Vec<u8>>), Error> {
        let pages_max = ((limits.read_bytes / NODE_BYTES as u64) as usize).max(1);
        let mut list = GrowingList {
            runs: Vec::new(),
            ranges: Vec::new(),
            slot_next: None,
            pages: 0,
            copies: None,
            copies_max: COPIES_MAX.min(pages_max),
            copied: 0,
            tickets: Vec::new(),
        };
        let room = limits.attachment_bytes.saturating_sub(PieceOfNodes::HEAD_BYTES + 3 * NODE_KEY_BYTES_MAX);
        let runs_max = limits.ranges.min(room / PieceOfNodes::RUN_BYTES).max(1);
        let from = &span.from[..span.from.len().min(NODE_KEY_BYTES_MAX)];
        let mut node = NodeId(self.search.floor(from, &mut self.anchor) as u32);
        loop {
            self.look(node, &mut list)?;
            let Some(next) = self.search.next(&mut self.anchor) else { return Ok((list, span.to.clone())) };
            if span.to.as_ref().is_some_and(|to| to[..] <= *self.anchor) {
                return Ok((list, span.to.clone()));
            }
            let is_full = list.pages >= pages_max || list.runs.len() >= runs_max || list.copied >= list.copies_max;
            if is_full {
                return Ok((list, Some(self.anchor.to_vec())));
            }
            node = NodeId(next as u32);
        }
    }

    /// Adds a node as it is now. A node that is gone, or whose page somebody has for long, is missed.
    fn look(&mut self, node: NodeId, list: &mut GrowingList) -> Result<(), Error> {
        for _ in 0..PATIENCE {
            if let Some(home) = self.state.cache.absent_home(node) {
                list.add_slot(&self.tree, home.slot);
                return Ok(());
            }
            match self.state.cache.take(node, self.keyspace.id().0, PageUse::ByScan) {
                PageLook::Taken(page) => {
                    let (page, copied) = self.copy(page, list);
                    let Some(page) = page else { return copied };
                    let is_shown_early = fail_point!(QueryUndurable);
                    let ticket = self.state.cache.give_back(node, page, |meta| meta.wait_for(meta.changed_stamp));
                    list.tickets.extend(ticket.filter(|_| !is_shown_early));
                    return copied;
                }
                PageLook::Busy => std::thread::yield_now(),
                PageLook::Absent(_) => {}
                PageLook::Gone => return Ok(()),
            }
        }
        Ok(())
    }

    /// Copies a page to the list's buffer. The page does not leave the drive. If the drive stopped, it keeps the page.
    fn copy(&mut self, page: LocalBuffer, list: &mut GrowingList) -> (Option<LocalBuffer>, Result<(), Error>) {
        if list.copies.is_none() {
            let bytes = list.copies_max * NODE_BYTES;
            let lent = self.copier.room.take_if(|room| room.len() >= bytes);
            list.copies = lent.or_else(|| self.state.base.drive.local().allocate(bytes));
        }
        if self.copier.pair.is_none() {
            match self.state.base.drive.queue_pair(1) {
                Ok(pair) => self.copier.pair = Some(pair),
                Err(error) => return (Some(page), Err(Error::Io(error.to_string()))),
            }
        }
        let Some(pair) = &mut self.copier.pair else { unreachable!("it was just opened") };
        let Some(copies) = list.copies.take() else {
            // The page is missed, and so a scan reads it.
            return (Some(page), Ok(()));
        };
        let (at, length) = (copies.offset() + (list.copied * NODE_BYTES) as u64, NODE_BYTES as u32);
        let output = LocalRange { offset: at, length };
        let input = LocalRange { offset: page.offset(), length };
        let execute = Operation::Execute { program: self.concat, parameters: LocalRange::EMPTY, input, output };
        let command = Command::new(0, execute).of(Purpose::Scan);
        if let Err(full) = pair.submit(command, Lease::Buffers([page, copies])) {
            let Lease::Buffers([page, copies]) = full.lease else { unreachable!("it was lent both") };
            list.copies = Some(copies);
            return (Some(page), Ok(()));
        }
        let mut returned = Vec::new();
        while pair.poll(&mut returned) == 0 {
            if pair.event_fd().is_none() && !pair.is_ready() {
                // A simulated drive that stopped never answers.
                return (None, Err(Error::Io("the drive stopped answering".into())));
            }
            pair.wait(Some(Duration::from_millis(1)));
        }
        let Some(returned) = returned.pop() else { unreachable!("something was polled") };
        let Lease::Buffers([page, copies]) = returned.lease else { unreachable!("it was lent both") };
        list.copies = Some(copies);
        if returned.completion.status != Status::Success {
            let error = Error::of_command(&self.state.base.drive, "copy of a page", &returned.completion);
            return (Some(page), Err(error));
        }
        list.add_copy(output);
        (Some(page), Ok(()))
    }
}

impl GrowingList {
    /// Adds the page in a slot. If the slot's group is gone, it is missed.
    fn add_slot(&mut self, tree: &OrderedTree, slot: u32) {
        let map = tree.nodes.map();
        let (address, flash) = (map.address(slot), map.flash(slot));
        let follows = self.slot_next == Some(slot) && map.first_of(map.extent_of(slot)) != slot;
        match (self.runs.last_mut(), self.ranges.last_mut()) {
            (Some(run), Some(range)) if follows => {
                run.pages += 1;
                range.bytes += NODE_BYTES as u64;
            }
            _ => {
                let Some(salt) = tree.nodes.salt(address) else { return };
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

impl ScanLayout for NodeLists {
    fn next(&mut self, limits: &ListLimits) -> Result<Option<ScanList>, LayoutError> {
        let Some(span) = self.pending.pop_front() else { return Ok(None) };
        let base = self.state.base.clone();
        base.refuse_dropped(self.keyspace)?;
        if !self.state.make(&self.tree) {
            // A scan reads all of the span: the tree has no page yet.
            self.state.write_back.advance(&self.state, true);
        }
        // Images made from here on have later stamps.
        let stamp_max = base.log.stamp_given();
        let (listed, end) = self.list(&span, limits)?;
        if end != span.to {
            let from = end.clone().unwrap_or_default();
            self.pending.push_front(KeySpan { from, to: span.to.clone() });
        }
        let span = KeySpan { from: span.from, to: end };
        let (runs, store) = (listed.runs, base.store_id);
        let (from, to) = (span.from.clone(), span.to.clone());
        let piece = PieceOfNodes { store, keyspace: self.keyspace.id().0, stamp_max, from, to, runs };
        let id = self.id_next;
        self.id_next += 1;
        let deleted_through = base.keyspaces.watermark(self.keyspace.id());
        let deleted_by = base.keyspaces.mark(self.keyspace.id()).watermark;
        let mut list = ScanList { id, deleted_through, now_ms: base.now_ms(), ..ScanList::default() };
        if piece.runs.is_empty() {
            list.missed.push(MissedKeys { from: piece.from.into(), to: piece.to.map(Vec::into_boxed_slice) });
        } else {
            piece.encode(&mut list.pieces);
            (list.piece_count, list.ranges, list.copies) = (1, listed.ranges, listed.copies);
        }
        self.listed.insert(id, ListedNodes { span, tickets: listed.tickets, deleted_by });
        Ok(Some(list))
    }

    fn again(&mut self, id: u64, stopped: Option<&StoppedRun>) -> Result<(), LayoutError> {
        let Some(ListedNodes { span, .. }) = self.listed.remove(&id) else { return Ok(()) };
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

    fn may_show(&mut self, id: u64) -> Result<bool, LayoutError> {
        let base = self.state.base.clone();
        let waits = base.log.sync() == Sync::Always;
        let Some(listed) = self.listed.get_mut(&id) else { return Ok(true) };
        listed.tickets.retain(|ticket| waits && !ticket.is_done());
        let is_marked = base.log.may_acknowledge(listed.deleted_by);
        if listed.tickets.is_empty() && is_marked {
            return Ok(true);
        }
        base.log.poisoned()?;
        if !is_marked {
            base.log.advance(true, base.drive.env().now_us());
        }
        if self.state.write_back.has_work() {
            self.state.write_back.advance(&self.state, false);
        }
        Ok(false)
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
        let space = self.tree.extensions(class);
        let (Some(offset), Some(salt)) = (space.flash_offset(reference.slot), space.salt(reference.slot)) else {
            return Ok(None);
        };
        let home = ValueHome::Extension(reference, salt.version);
        let stored_bytes = reference.stored_bytes as usize;
        let bytes = (front_bytes(record.key.len(), stored_bytes) + stored_bytes) as u64;
        Ok(Some((home, vec![SourceRange { offset, bytes }])))
    }
}
