//! Read-ahead of scans: while a node is scanned, the pages of the next ones are on their way.
//!
//! ```text
//! search layer: the nodes behind this one ─► those that are not cached ─► neighbouring slots: one read for up to four ─► pages
//!                                                                         ─► scanned in turn, each if it is the node as it is
//! ```
//! 1. What is read ahead is the scan's, and goes with it. None of it goes into the cache but what a short scan has used.
//! 2. A scan has so many pages ahead at most as it has nodes behind it, and needs for its part by what the last node gave.
//! 3. A page that was read ahead is scanned as one that was just read is: it counts if the node has the same home afterwards.
//!
//! Without memory or places in the queue nothing is read ahead.

use super::TAG_AHEAD;
use super::context::Context;
use super::scan_op::ScanOp;
use crate::ordered::node_table::{NodeHome, NodeId};
use crate::ordered::search::AnchorKey;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tapetum_base::media::io::lock;
use tapetum_base::session::session_core::SessionCore;
use tapetum_base::session::spare_buffers::BUFFER_BYTES;
use tapetum_drive::{Lease, LocalBuffer, LocalRange, Operation, Purpose, Returned};
use tapetum_kernels::ordered::NODE_BYTES;

/// Pages that a scan has ahead at most: what keeps a drive busy.
const AHEAD_PAGES_MAX: usize = 8;
/// Pages that one read brings at most.
const READ_PAGES_MAX: usize = BUFFER_BYTES / NODE_BYTES;
/// Nodes that are looked for at once, cached ones among them.
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
    /// It was not read, or its buffer is with a program.
    Gone,
}

/// A node's page among those.
#[derive(Clone)]
pub(super) struct AheadPage {
    node: NodeId,
    home: NodeHome,
    read: Arc<AheadRead>,
}

#[derive(Default)]
pub(super) struct ScanAhead {
    pages: VecDeque<AheadPage>,
    /// The anchor of the last node that was looked for.
    last: Option<Box<AnchorKey>>,
    /// Nodes that the scan has behind it.
    nodes: usize,
    /// What the last of them gave.
    items: usize,
    bytes: usize,
}

impl AheadRead {
    /// Takes the buffer, if it is there; it is to be given back.
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
    /// Finds the page of a node among those that are ahead; lets go of those before it, or of all if it is none of them.
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

    /// A node gave so many items and bytes.
    pub fn passed(&mut self, items: usize, bytes: usize) {
        (self.nodes, self.items, self.bytes) = (self.nodes + 1, items, bytes);
    }

    /// How many pages may be ahead of a scan that wants so many items and bytes more.
    fn pages_max(&self, items_left: usize, bytes_left: usize) -> usize {
        match self.nodes {
            0 => usize::from(items_left >= ITEMS_MIN),
            // The node at hand brings some, too.
            nodes => {
                let of_items = items_left.div_ceil(self.items.max(1));
                let of_bytes = bytes_left.div_ceil(self.bytes.max(1));
                (2 * nodes).min(AHEAD_PAGES_MAX).min(of_items.min(of_bytes) - 1)
            }
        }
    }
}

/// Reads ahead that are on their way, by their numbers.
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

    /// Pages that were read ahead are there, or not.
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

/// Starts to read the pages of nodes behind the one at hand, whose anchor was just found.
pub(super) fn read_ahead(
    (cx, core): (&mut Context, &mut SessionCore),
    tree: usize,
    scan: &mut ScanOp,
    aheads: &mut AheadReads,
) {
    let pages_max = scan.ahead.pages_max(scan.items_left(), scan.bytes_left());
    // Half of what may be ahead, so that several are read at once.
    if scan.ahead.pages.len() * 2 > pages_max || pages_max == 0 {
        return;
    }
    let found = nodes_behind(cx, tree, scan, pages_max - scan.ahead.pages.len());
    let is_reverse = scan.range.is_reverse;
    let mut rest = &found[..];
    while let [first, ..] = rest {
        let follows = |pair: &[(NodeId, NodeHome)]| {
            let (one, next) = (pair[0].1.slot, pair[1].1.slot);
            if is_reverse { next + 1 == one } else { one + 1 == next }
        };
        let count = (1 + rest.windows(2).take_while(|pair| follows(pair)).count()).min(READ_PAGES_MAX);
        let (run, behind) = rest.split_at(count);
        rest = behind;
        let slot = if is_reverse { run[count - 1].1.slot } else { first.1.slot };
        // The node at hand is to have a place, too.
        let buffer = (core.queue.credits() > 1).then(|| core.spare_buffers.take(count * NODE_BYTES)).flatten();
        let Some(buffer) = buffer else { return };
        let read = Arc::new(AheadRead { slot, state: Mutex::new(AheadState::OnItsWay) });
        let page = |(node, home): &(NodeId, NodeHome)| AheadPage { node: *node, home: *home, read: read.clone() };
        scan.ahead.pages.extend(run.iter().map(page));
        let number = aheads.add(read.clone());
        let flash = cx.trees[tree].tree.nodes.map().flash(slot);
        let operation = Operation::Read { flash, local: buffer.offset(), length: (count * NODE_BYTES) as u32 };
        cx.submit(core, (TAG_AHEAD | number as u64, Purpose::Scan), operation, Lease::Buffer(buffer));
    }
}

/// The next nodes of a scan that are not cached.
fn nodes_behind(cx: &mut Context, tree: usize, scan: &mut ScanOp, count: usize) -> Vec<(NodeId, NodeHome)> {
    let (is_reverse, at_hand) = (scan.range.is_reverse, &cx.anchor);
    let passed = |last: &AnchorKey| if is_reverse { **last > **at_hand } else { **last < **at_hand };
    let mut last = scan.ahead.last.take().filter(|last| !passed(last)).unwrap_or_else(|| Box::new(at_hand.clone()));
    let search = &mut cx.trees[tree].search;
    let mut found = Vec::new();
    for _ in 0..LOOKS_MAX {
        // All keys in front of it are below the range.
        let is_over = is_reverse && **last <= *scan.range.from.key();
        if found.len() == count || is_over {
            break;
        }
        let next = if is_reverse { search.previous(&mut last) } else { search.next(&mut last) };
        let Some(node) = next.filter(|_| is_reverse || !scan.is_behind(&last)) else { break };
        let node = NodeId(node as u32);
        found.extend(cx.state.cache.absent_home(node).map(|home| (node, home)));
    }
    scan.ahead.last = Some(last);
    found
}
