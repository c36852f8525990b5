//! Read-ahead of scans: while a node is scanned, the pages of the next ones are read.
//!
//! ```text
//! search layer: the nodes behind this one ─► those that are not cached ─► neighbouring slots: one read for up to four ─► pages
//!                                                                         ─► scanned in turn, each if it is the node as it is
//! ```
//! 1. Pages read ahead belong to the scan, and are dropped with it. Only those used by a short scan go into the cache.
//! 2. The pages ahead of a scan are limited by the number of nodes behind it, and by the need of its part, judged by the last node.
//! 3. A page that was read ahead is scanned like one that was just read: it counts if the node has the same home afterwards.
//!
//! Without memory or places in the queue there is no read-ahead.

use super::TAG_AHEAD;
use super::context::{Context, OrderedMeans};
use super::scan_op::ScanOp;
use crate::ordered::node_table::{HomedNode, NodeHome, NodeId};
use crate::ordered::search::AnchorKey;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tapetum_base::media::io::lock;
use tapetum_base::session::session_core::SessionCore;
use tapetum_base::session::spare_buffers::BUFFER_BYTES;
use tapetum_drive::{Lease, LocalBuffer, LocalRange, Operation, Purpose, Returned};
use tapetum_kernels::ordered::NODE_BYTES;

/// The most pages ahead of a scan: enough to keep a drive busy.
const AHEAD_PAGES_MAX: usize = 8;
/// The most pages of one read.
const READ_PAGES_MAX: usize = BUFFER_BYTES / NODE_BYTES;
/// Nodes that are looked up at once, including cached ones.
const LOOKS_MAX: usize = 2 * AHEAD_PAGES_MAX;
/// A scan of fewer items reads nothing ahead of its first node.
const ITEMS_MIN: usize = 16;

/// Pages in neighbouring slots.
pub(super) struct AheadRead {
    /// The first slot.
    slot: u32,
    state: Mutex<AheadState>,
}

pub(super) enum AheadState {
    OnItsWay,
    Here(LocalBuffer),
    /// The read failed, or its buffer is with a program.
    Gone,
}

/// A node's page in such a read.
#[derive(Clone)]
pub(super) struct AheadPage {
    node: NodeId,
    home: NodeHome,
    read: Arc<AheadRead>,
}

#[derive(Default)]
pub(super) struct ScanAhead {
    pages: VecDeque<AheadPage>,
    /// The anchor of the last node that was looked up.
    last: Option<Box<AnchorKey>>,
    /// The number of nodes that the scan has passed.
    nodes: usize,
    /// Items and bytes of the last node.
    items: usize,
    bytes: usize,
}

impl AheadRead {
    /// Takes the buffer, if it has arrived. The caller gives it back.
    pub fn take(&self) -> AheadState {
        let mut state = lock(&self.state);
        match *state {
            AheadState::OnItsWay => AheadState::OnItsWay,
            _ => std::mem::replace(&mut state, AheadState::Gone),
        }
    }

    pub fn give_back(&self, buffer: LocalBuffer) {
        *lock(&self.state) = AheadState::Here(buffer);
    }

    pub fn page_at(&self, slot: u32) -> usize {
        (slot - self.slot) as usize * NODE_BYTES
    }
}

pub(super) fn page_range(buffer: &LocalBuffer, at: usize) -> LocalRange {
    LocalRange { offset: buffer.offset() + at as u64, length: NODE_BYTES as u32 }
}

impl ScanAhead {
    /// Finds the page of a node among those read ahead. Drops the pages before it, or all if there is none.
    pub fn find(&mut self, core: &mut SessionCore, node: NodeId, home: NodeHome) -> Option<Arc<AheadRead>> {
        while let Some(page) = self.pages.front() {
            if (page.node, page.home) == (node, home) {
                return Some(page.read.clone());
            }
            let passed = self.pages.pop_front();
            let read = passed.and_then(|page| Arc::into_inner(page.read));
            let state = read.and_then(|read| read.state.into_inner().ok());
            if let Some(AheadState::Here(buffer)) = state {
                core.spare_buffers.give(buffer);
            }
        }
        self.last = None;
        None
    }

    /// Notes that a node had so many items and bytes.
    pub fn passed(&mut self, items: usize, bytes: usize) {
        (self.nodes, self.items, self.bytes) = (self.nodes + 1, items, bytes);
    }

    /// The most pages ahead of a scan that needs so many more items and bytes.
    fn pages_max(&self, items_left: usize, bytes_left: usize) -> usize {
        match self.nodes {
            0 => usize::from(items_left >= ITEMS_MIN),
            // The present node brings some, too.
            nodes => {
                let of_items = items_left.div_ceil(self.items.max(1));
                let of_bytes = bytes_left.div_ceil(self.bytes.max(1));
                (2 * nodes).min(AHEAD_PAGES_MAX).min(of_items.min(of_bytes) - 1)
            }
        }
    }
}

/// Read-aheads in flight, by their numbers.
#[derive(Default)]
pub(super) struct AheadReads {
    reads: Vec<Option<Arc<AheadRead>>>,
}

impl AheadReads {
    fn add(&mut self, read: Arc<AheadRead>) -> usize {
        let free = self.reads.iter().position(Option::is_none);
        let number = free.unwrap_or(self.reads.len());
        match free {
            Some(number) => self.reads[number] = Some(read),
            None => self.reads.push(Some(read)),
        }
        number
    }

    /// Called when pages were read ahead, or the read failed.
    pub fn was_read(&mut self, number: usize, Returned { completion, lease }: Returned) {
        let Some(read) = self.reads[number].take() else { unreachable!("read {number} is on its way") };
        let buffer = lease.into_buffer();
        let is_read = completion.is_success();
        *lock(&read.state) = if is_read { AheadState::Here(buffer) } else { AheadState::Gone };
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.reads.iter().flatten().count()
    }
}

/// Starts to read the pages of the nodes behind the present one, whose anchor was just found.
pub(super) fn read_ahead((cx, core): OrderedMeans<'_>, tree: usize, scan: &mut ScanOp, aheads: &mut AheadReads) {
    let pages_max = scan.ahead.pages_max(scan.items_left(), scan.bytes_left());
    // Reads ahead only when at most half of the allowed pages are there, so that several are read at once.
    if scan.ahead.pages.len() * 2 > pages_max || pages_max == 0 {
        return;
    }
    let found = nodes_behind(cx, tree, scan, pages_max - scan.ahead.pages.len());
    let is_reverse = scan.range.is_reverse;
    let mut rest = &found[..];
    while let [first, ..] = rest {
        let follows = |pair: &[HomedNode]| {
            let (one, next) = (pair[0].home.slot, pair[1].home.slot);
            if is_reverse { next + 1 == one } else { one + 1 == next }
        };
        let count = (1 + rest.windows(2).take_while(|pair| follows(pair)).count()).min(READ_PAGES_MAX);
        let (run, behind) = rest.split_at(count);
        rest = behind;
        let slot = if is_reverse { run[count - 1].home.slot } else { first.home.slot };
        // The present node needs a place in the queue, too.
        let buffer = (core.queue.credits() > 1).then(|| core.spare_buffers.take(count * NODE_BYTES)).flatten();
        let Some(buffer) = buffer else { return };
        let read = Arc::new(AheadRead { slot, state: Mutex::new(AheadState::OnItsWay) });
        let page = |&HomedNode { node, home }: &HomedNode| AheadPage { node, home, read: read.clone() };
        scan.ahead.pages.extend(run.iter().map(page));
        let number = aheads.add(read.clone());
        let flash = cx.trees[tree].tree.nodes.map().flash(slot);
        let operation = Operation::Read { flash, local: buffer.offset(), length: (count * NODE_BYTES) as u32 };
        cx.submit(core, TAG_AHEAD | number as u64, Purpose::Scan, operation, Lease::Buffer(buffer));
    }
}

/// The next nodes of a scan that are not cached.
fn nodes_behind(cx: &mut Context, tree: usize, scan: &mut ScanOp, count: usize) -> Vec<HomedNode> {
    let (is_reverse, at_hand) = (scan.range.is_reverse, &cx.anchor);
    let passed = |last: &AnchorKey| if is_reverse { **last > **at_hand } else { **last < **at_hand };
    let mut last = scan.ahead.last.take().filter(|last| !passed(last)).unwrap_or_else(|| Box::new(at_hand.clone()));
    let search = &mut cx.trees[tree].search;
    let mut found = Vec::new();
    for _ in 0..LOOKS_MAX {
        // All keys before this node are below the range.
        let is_over = is_reverse && **last <= *scan.range.from.key();
        if found.len() == count || is_over {
            break;
        }
        let next = if is_reverse { search.previous(&mut last) } else { search.next(&mut last) };
        let Some(node) = next.filter(|_| is_reverse || !scan.is_behind(&last)) else { break };
        let node = NodeId(node as u32);
        found.extend(cx.state.cache.absent_home(node).map(|home| HomedNode { node, home }));
    }
    scan.ahead.last = Some(last);
    found
}
