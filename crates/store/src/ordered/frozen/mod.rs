//! An ordered keyspace at one moment: its nodes as they were, and a hold of the flash that they need.
//!
//! ```text
//! gate closed ─► nodes from the search layer on ─┬─ page equals its image ─► its slot ─┐
//!                                                └─ changed since ─► a copy of it ─────┴─► all slots in use held ─► gate opened
//! ```
//! 1. While the gate is closed no page changes, and what a page equals stays its node's image. So slots that are held after the walk are those that
//!    the walk found.
//! 2. Extensions are held with all others in use: who names them is in the pages alone. A page that changed has a share of those that it ceased to name
//!    until its image has landed, so those of a copied page are in use, too.
//! 3. The drop of the hold, or [`FrozenTree::give_up`], lets the flash go. Whoever reads after that is told so ([`FrozenTree::check`]).
//!
//! Threads: any.

mod copies;
pub mod image_lists;
pub mod images;
pub mod lists;
mod nodes;
pub mod scan;
mod take;

use super::cache::durability_ticket::DurabilityTicket;
use super::cache::page_meta::PageUse;
use super::cache::{CleanHome, PageLook, lost};
use super::gate::ClosedGate;
use super::node_table::NodeId;
use super::search::AnchorKey;
use super::slabs::hold::SlotHold;
use super::slabs::keyspace_slots::KeyspaceSlots;
use super::slabs::slot_class::{PAGE_BYTES, SlotClass};
use super::tree::{OrderedState, OrderedTree, of_search};
pub use copies::CopyTo;
use copies::{PATIENCE, PageCopy, PageCopying, concat_of};
use nodes::FrozenNodes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tapetum_base::engine::scan_layout::LayoutError;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::log::Sync;
use tapetum_base::media::io::lock;
use tapetum_base::request::key_range::{KeyBound, KeyRange};
use tapetum_drive::{Purpose, QueuePair, fail_point};
use tapetum_kernels::ordered::{NODE_BYTES, NODE_KEY_BYTES_MAX, NodePage};

/// Copies in local memory of all moments of a store, about: 4 MiB, as others need it too. More are in the host's.
const LOCAL_COPIES_MAX: usize = 1024;

/// What a moment is, beside its nodes.
#[derive(Clone, Copy, Debug)]
pub struct TreeMoment {
    /// Records up to this stamp were deleted together.
    pub deleted_through: u64,
    /// The stamp of the deletion of everything that may have deleted records; 0 if there was none.
    pub deleted_by: u64,
    /// Unix milliseconds.
    pub now_ms: u64,
}

/// A range of keys, by the least key in it and the least one above it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeySpan {
    pub from: Vec<u8>,
    pub to: Option<Vec<u8>>,
}

impl KeySpan {
    /// # Errors
    /// [`Error::KeyTooLong`]: no node holds such a key.
    pub fn of(range: &KeyRange) -> Result<KeySpan, Error> {
        if range.from.key().len().max(range.to.key().len()) > NODE_KEY_BYTES_MAX {
            return Err(Error::KeyTooLong { limit_bytes: NODE_KEY_BYTES_MAX });
        }
        let behind = |key: &[u8]| [key, &[0]].concat();
        let from = match &range.from {
            KeyBound::Unbounded => Vec::new(),
            KeyBound::Included(key) => key.clone(),
            KeyBound::Excluded(key) => behind(key),
        };
        let to = match &range.to {
            KeyBound::Unbounded => None,
            KeyBound::Included(key) => Some(behind(key)),
            KeyBound::Excluded(key) => Some(key.clone()),
        };
        Ok(KeySpan { from, to })
    }

    pub fn is_empty(&self) -> bool {
        self.to.as_ref().is_some_and(|to| *to <= self.from)
    }

    pub fn has(&self, key: &[u8]) -> bool {
        self.from[..] <= *key && self.to.as_ref().is_none_or(|to| *key < to[..])
    }
}

/// See the [module](self).
pub struct FrozenTree {
    state: Arc<OrderedState>,
    pub keyspace: KeyspaceId,
    pub slots: KeyspaceSlots,
    nodes: FrozenNodes,
    pub moment: TreeMoment,
    /// No image that it shows has a higher stamp, and each that is made later has.
    image_stamp_max: u64,
    /// The tickets of changes that it shows and that are not durable yet.
    tickets: Mutex<Vec<Arc<DurabilityTicket>>>,
    held: Mutex<Vec<SlotHold>>,
    is_over: AtomicBool,
}

impl FrozenTree {
    /// The nodes of a span of keys as they are. Their slots are held.
    ///
    /// # Errors
    /// When there is no memory for a look, or a page cannot be copied.
    pub fn take(
        state: &Arc<OrderedState>,
        _: &ClosedGate<'_>,
        (tree, slots): (&OrderedTree, &KeyspaceSlots),
        span: &KeySpan,
        (moment, to): (TreeMoment, CopyTo),
    ) -> Result<FrozenTree, Error> {
        let walked = Walk::of(state, tree, span, |walk, place| walk.copy(state, tree.keyspace, place, to))?;
        let without_extensions = fail_point!(FreezeWithoutExtensions);
        let spaces = slots.spaces().filter(|space| space.options().class == SlotClass::Nodes || !without_extensions);
        let held = spaces.map(|space| space.hold()).collect();
        Ok(FrozenTree::of(state, slots, walked, moment, held))
    }

    /// The node of one key as it is, of which nothing is held: it may be gone when it is read.
    ///
    /// # Errors
    /// As [`FrozenTree::take`].
    pub fn of_key(
        state: &Arc<OrderedState>,
        tree: &OrderedTree,
        span: &KeySpan,
        moment: TreeMoment,
    ) -> Result<FrozenTree, Error> {
        let walked = Walk::of(state, tree, span, |walk, (node, anchor)| {
            walk.nodes.push_cached(anchor, node);
            Ok(())
        })?;
        Ok(FrozenTree::of(state, tree.slots(), walked, moment, Vec::new()))
    }

    fn of(
        state: &Arc<OrderedState>,
        slots: &KeyspaceSlots,
        Walk { nodes, tickets, .. }: Walk,
        moment: TreeMoment,
        held: Vec<SlotHold>,
    ) -> FrozenTree {
        let waits = state.base.log.sync() == Sync::Always && !fail_point!(QueryUndurable);
        state.frozen_copies.fetch_add(nodes.copies(), Ordering::Relaxed);
        FrozenTree {
            state: state.clone(),
            keyspace: slots.keyspace(),
            slots: slots.clone(),
            nodes,
            moment,
            image_stamp_max: state.base.log.stamp_given(),
            tickets: Mutex::new(if waits { tickets } else { Vec::new() }),
            held: Mutex::new(held),
            is_over: AtomicBool::new(false),
        }
    }

    /// An error if its flash is no longer held: what was read since may belong to something else.
    pub fn check(&self) -> Result<(), LayoutError> {
        if self.is_over.load(Ordering::SeqCst) { Err(LayoutError::TooOld) } else { Ok(()) }
    }

    /// Whether it holds the slots of its nodes.
    fn is_held(&self) -> bool {
        !lock(&self.held).is_empty()
    }

    /// Lets its flash go.
    pub fn give_up(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        let held = std::mem::take(&mut *lock(&self.held));
        drop(held);
        self.state.base.wakeup.wake();
    }

    /// What it shows is durable when this ticket is done, too.
    fn wait_for(&self, ticket: Option<Arc<DurabilityTicket>>) {
        lock(&self.tickets).extend(ticket);
    }

    /// Whether all that it shows is durable, where writes are acknowledged when they are. Advances the writes that it waits for.
    pub fn is_durable(&self) -> Result<bool, Error> {
        let base = &self.state.base;
        if base.log.sync() != Sync::Always {
            return Ok(true);
        }
        let mut tickets = lock(&self.tickets);
        tickets.retain(|ticket| !ticket.is_done());
        let are_written = tickets.is_empty();
        drop(tickets);
        let is_marked = base.log.may_acknowledge(self.moment.deleted_by);
        if are_written && is_marked {
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

    /// As [`FrozenNodes::separators`].
    pub fn separators(&self, span: &KeySpan, parts: usize, nodes_min: usize) -> Vec<&[u8]> {
        self.nodes.separators(span, parts, nodes_min)
    }

    /// Nodes whose pages were copied.
    pub fn copied_nodes(&self) -> usize {
        self.nodes.copies()
    }

    /// Bytes of flash that it alone, or with other freezes, keeps from writers.
    pub fn flash_bytes(&self) -> u64 {
        let is_dropped = !self.state.base.keyspaces.has(self.keyspace);
        let pages = |hold: &SlotHold| if is_dropped { hold.pages() } else { hold.pages_alone() };
        lock(&self.held).iter().map(pages).sum::<u64>() * PAGE_BYTES
    }

    /// Bytes of it in memory.
    pub fn memory_bytes(&self) -> usize {
        self.nodes.memory_bytes() + lock(&self.held).iter().map(SlotHold::memory_bytes).sum::<usize>()
    }
}

impl Drop for FrozenTree {
    fn drop(&mut self) {
        self.state.frozen_copies.fetch_sub(self.nodes.copies(), Ordering::Relaxed);
        self.state.base.wakeup.wake();
    }
}

/// A walk over the nodes of a span of keys.
#[derive(Default)]
struct Walk {
    nodes: FrozenNodes,
    tickets: Vec<Arc<DurabilityTicket>>,
    /// The queue that pages are copied by.
    pair: Option<QueuePair>,
}

impl Walk {
    /// `changed` adds a node whose page differs from its image.
    fn of(
        state: &OrderedState,
        tree: &OrderedTree,
        span: &KeySpan,
        changed: impl Fn(&mut Walk, (NodeId, &[u8])) -> Result<(), Error>,
    ) -> Result<Walk, Error> {
        let mut walk = Walk::default();
        if span.is_empty() {
            return Ok(walk);
        }
        let mut search = tree.search.handle().map_err(of_search)?;
        let mut anchor = AnchorKey::new();
        let from = &span.from[..span.from.len().min(NODE_KEY_BYTES_MAX)];
        let mut next = Some(NodeId(search.floor(from, &mut anchor) as u32));
        while let Some(node) = next {
            match state.cache.clean_home(node, tree.keyspace.0) {
                CleanHome::Image(home) => walk.nodes.push_slot(&anchor, node, home),
                CleanHome::Changed => changed(&mut walk, (node, &anchor))?,
                // It has no page and no image, and so no keys.
                CleanHome::None => {}
            }
            next = search.next(&mut anchor).map(|node| NodeId(node as u32));
            if span.to.as_ref().is_some_and(|to| to[..] <= *anchor) {
                break;
            }
        }
        Ok(walk)
    }

    /// Copies the page of a node.
    fn copy(
        &mut self,
        state: &OrderedState,
        keyspace: KeyspaceId,
        (node, anchor): (NodeId, &[u8]),
        to: CopyTo,
    ) -> Result<(), Error> {
        let (cache, drive) = (&state.cache, &state.base.drive);
        let mut looks = 0;
        let page = loop {
            match cache.take(node, keyspace.0, PageUse::ByScan) {
                PageLook::Taken(page) => break page,
                PageLook::Busy if looks == PATIENCE => return Err(Error::Io("the drive stopped answering".into())),
                // Whoever has the page gives it back without waiting for anybody.
                PageLook::Busy => {
                    looks += 1;
                    std::thread::yield_now();
                }
                PageLook::Absent(home) => {
                    // Its image has landed since, and another page needed its place.
                    self.nodes.push_slot(anchor, node, home);
                    return Ok(());
                }
                PageLook::Gone => return Ok(()),
                PageLook::Lost => return Err(lost(node)),
            }
        };
        if self.pair.is_none() {
            self.pair = drive.queue_pair(1).ok();
        }
        let (Some(pair), Ok(concat)) = (&mut self.pair, concat_of(drive)) else {
            cache.give_back(node, page, |_| ());
            return Err(Error::Io("no queue for copies of pages".into()));
        };
        let may_be_local =
            to == CopyTo::Local && state.frozen_copies.load(Ordering::Relaxed) + self.nodes.copies() < LOCAL_COPIES_MAX;
        let local = may_be_local.then(|| drive.local().allocate(NODE_BYTES)).flatten();
        let (page, copied) = match local {
            Some(into) => {
                let copied = PageCopying { drive, pair, concat }.copy(page, into, 0);
                let copy = copied.range.map(|_| copied.into.map(|into| PageCopy::Local(Mutex::new(Some(into)))));
                (copied.from, copy)
            }
            None => {
                let bytes = pair.look(Purpose::Scan, &page, 0..NODE_BYTES);
                let copy = Box::new(NodePage::try_from(bytes).expect("a page has the bytes of a node"));
                (Some(page), Ok(Some(PageCopy::Host(copy))))
            }
        };
        let mut had = None;
        if let Some(page) = page {
            let ticket = cache.give_back(node, page, |meta| {
                had = meta.slot;
                meta.wait_for(meta.changed_stamp)
            });
            self.tickets.extend(ticket);
        }
        let copy = copied?.ok_or_else(|| Error::Io("no place in a queue of one".into()))?;
        self.nodes.push_copy(anchor, node, copy, had);
        Ok(())
    }
}
