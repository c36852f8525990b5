//! A scan in progress: the rest of its range, and its items so far.
//!
//! It continues from a key: behind its last item, or at the fence of the last node. So each key that exists throughout is seen once, in order,
//! whatever is split or merged meanwhile.

use super::extension_read::ExtensionRead;
use super::scan_ahead::{AheadRead, ScanAhead};
use super::scratch;
use crate::ordered::cache::durability_ticket::DurabilityTicket;
use crate::ordered::cache::page_meta::PageUse;
use crate::ordered::node_table::{NodeHome, NodeId};
use std::collections::VecDeque;
use std::sync::Arc;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::request::key_range::{KeyBound, KeyRange, ScannedItem};
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::node::{ItemPlace, ItemReader, ScanBound, scan_has_more};
use tapetum_drive::{LocalBuffer, Purpose, fail_point};
use tapetum_kernels::ordered::extension::ExtensionReference;
use tapetum_kernels::ordered::{NODE_BYTES, NodeRef};

/// The approximate bytes of a part's items.
const PART_BYTES: usize = 64 << 10;
/// A scan of more items at once counts as long.
const SHORT_ITEMS_MAX: usize = 256;

/// The bound in the form of the program's parameters.
pub(super) fn bound(bound: &KeyBound) -> ScanBound<'_> {
    match bound {
        KeyBound::Unbounded => ScanBound::Unbounded,
        KeyBound::Included(key) => ScanBound::Included(key),
        KeyBound::Excluded(key) => ScanBound::Excluded(key),
    }
}

pub(super) enum ScanStage {
    Begins,
    /// The cached page is with a program.
    Looks(NodeId),
    Reads(NodeId, NodeHome),
    /// The page of its node is being read ahead.
    AwaitsAhead,
    /// A page that was read ahead is with a program.
    LooksAhead(NodeId, NodeHome, Arc<AheadRead>),
    /// The extension of an item is read.
    ReadsExtension(OutsideItem, Box<ExtensionRead>),
    /// It has its part, and waits until that is durable.
    Holds,
}

/// An item whose value is in an extension, and was not read yet.
#[derive(Clone, Copy)]
pub(super) struct OutsideItem {
    /// The index of the item.
    pub place: usize,
    pub reference: ExtensionReference,
    pub value_bytes: usize,
}

pub(super) struct ScanOp {
    pub token: u64,
    pub keyspace: KeyspaceRef,
    pub range: KeyRange,
    pub items: Vec<ScannedItem>,
    pub items_max: usize,
    pub bytes: usize,
    pub outside: VecDeque<OutsideItem>,
    pub ahead: ScanAhead,
    /// The extension that was not found in its slot.
    pub mismatched: Option<ExtensionReference>,
    /// Tickets of pages with changes that are not durable.
    pub tickets: Vec<Arc<DurabilityTicket>>,
    /// The last deletion of everything that may have deleted items.
    pub deleted_by: u64,
    /// Nothing of the range is left.
    pub is_over: bool,
    pub stage: ScanStage,
}

/// The progress of a scan in a node.
pub(super) struct NodeScanned {
    /// The number of items before this node; below, their bytes.
    pub items_before: usize,
    pub bytes_before: usize,
    /// The low fence of the node, if all its records are dead.
    pub dead: Option<Vec<u8>>,
    /// The rest of the range behind this node; `None`: there is none. The same range if this was the wrong node.
    pub rest: Option<KeyRange>,
}

impl ScanOp {
    /// Takes the items that a program returned. `None`: they are invalid.
    pub fn go_on(
        &mut self,
        core: &SessionCore,
        page: &LocalBuffer,
        at: usize,
        scratch: &LocalBuffer,
        [filled, word]: [u64; 2],
    ) -> Option<NodeScanned> {
        let node = NodeRef::look(core.queue.look(Purpose::Scan, page, at..at + NODE_BYTES)).ok()?;
        let (items_before, bytes_before) = (self.items.len(), self.bytes);
        if !self.begins_in(&node) {
            return Some(NodeScanned { items_before, bytes_before, dead: None, rest: Some(self.range.clone()) });
        }
        let (count, mut has_more) = scan_has_more(word);
        let mut seen = 0;
        for item in ItemReader::new(scratch::filled(&core.queue, Purpose::Scan, scratch, filled)) {
            seen += 1;
            // The values are long: the rest comes with the next part.
            if self.bytes >= PART_BYTES {
                has_more = true;
                continue;
            }
            let value = match item.place {
                ItemPlace::Here(value) => value,
                ItemPlace::Extension(reference) => {
                    let (place, value_bytes) = (self.items.len(), item.raw_bytes as usize);
                    self.outside.push_back(OutsideItem { place, reference, value_bytes });
                    &[]
                }
                _ => return None,
            };
            let value_bytes = item.raw_bytes as usize;
            let item = ScannedItem {
                key: item.key.to_vec(),
                value: value.to_vec(),
                flags: item.flags,
                expiry: item.expiry,
                stamp: item.stamp,
            };
            self.bytes += item.key.len() + value_bytes;
            self.items.push(item);
        }
        if seen != count {
            return None;
        }
        let is_dead = seen == 0 && !has_more && !node.is_empty() && self.range_has(&node);
        let dead = is_dead.then(|| node.low_fence().to_vec());
        let mut rest = self.rest_behind(&node, has_more);
        if let Some(KeyRange { from: from @ KeyBound::Included(_), .. }) = &mut rest
            && fail_point!(OrderedScanSkips)
        {
            *from = KeyBound::Excluded(from.key().to_vec());
        }
        Some(NodeScanned { items_before, bytes_before, dead, rest })
    }

    /// Whether all keys of a node are in the range.
    fn range_has(&self, node: &NodeRef<'_>) -> bool {
        let is_below = match &self.range.to {
            KeyBound::Unbounded => true,
            KeyBound::Included(key) | KeyBound::Excluded(key) => node.high_fence().is_some_and(|high| high <= key),
        };
        self.range.from.key() <= node.low_fence() && is_below
    }

    /// Whether the node has the next keys of the range.
    fn begins_in(&self, node: &NodeRef<'_>) -> bool {
        match (self.range.is_reverse, &self.range.to) {
            (false, _) => node.covers(self.range.from.key()),
            (true, KeyBound::Unbounded) => node.high_fence().is_none(),
            (true, KeyBound::Included(key)) => node.covers(key),
            (true, KeyBound::Excluded(key)) => {
                node.low_fence() < &key[..] && node.high_fence().is_none_or(|high| key[..] <= *high)
            }
        }
    }

    /// The rest of the range behind this node or, if the node `has_more`, behind the last item.
    fn rest_behind(&self, node: &NodeRef<'_>, has_more: bool) -> Option<KeyRange> {
        let last = self.items.last().filter(|_| has_more).map(|item| item.key.clone());
        let range = match (self.range.is_reverse, last) {
            (false, Some(key)) => KeyRange { from: KeyBound::Excluded(key), ..self.range.clone() },
            (true, Some(key)) => KeyRange { to: KeyBound::Excluded(key), ..self.range.clone() },
            (false, None) => KeyRange { from: KeyBound::Included(node.high_fence()?.to_vec()), ..self.range.clone() },
            (true, None) if node.low_fence().is_empty() => return None,
            (true, None) => KeyRange { to: KeyBound::Excluded(node.low_fence().to_vec()), ..self.range.clone() },
        };
        (!is_crossed(&range)).then_some(range)
    }

    /// Drops the items of a node.
    pub fn take_back(&mut self, step: Option<&NodeScanned>) {
        if let Some(step) = step {
            self.items.truncate(step.items_before);
            self.bytes = step.bytes_before;
            // All values before this node were read.
            self.outside.clear();
        }
    }

    /// Continues from one of its items, and drops that and the later ones.
    pub fn go_back_to(&mut self, place: usize) {
        let key = self.items[place].key.clone();
        match self.range.is_reverse {
            false => self.range.from = KeyBound::Included(key),
            true => self.range.to = KeyBound::Included(key),
        }
        self.items.truncate(place);
        self.bytes = self.items.iter().map(|item| item.key.len() + item.value.len()).sum();
        self.outside.clear();
        self.is_over = false;
    }

    /// The use of the pages that it reads. A short scan's pages are worth caching, as such a range may be read again as often as a key.
    pub fn page_use(&self) -> PageUse {
        if self.items_max <= SHORT_ITEMS_MAX { PageUse::ByKey } else { PageUse::ByScan }
    }

    pub fn items_left(&self) -> usize {
        self.items_max - self.items.len()
    }

    pub fn bytes_left(&self) -> usize {
        PART_BYTES.saturating_sub(self.bytes).max(1)
    }

    /// Whether all keys of a node with this anchor are behind the range.
    pub fn is_behind(&self, anchor: &[u8]) -> bool {
        match &self.range.to {
            KeyBound::Unbounded => false,
            KeyBound::Included(key) => anchor > &key[..],
            KeyBound::Excluded(key) => anchor >= &key[..],
        }
    }

    pub fn has_enough(&self) -> bool {
        self.is_over || self.items.len() >= self.items_max || self.bytes >= PART_BYTES
    }

    /// Moves on behind a node. Returns a key of the node if all its records are dead.
    pub fn step(&mut self, step: NodeScanned) -> Option<Vec<u8>> {
        self.ahead.passed(self.items.len() - step.items_before, self.bytes - step.bytes_before);
        match step.rest {
            Some(rest) => self.range = rest,
            None => self.is_over = true,
        }
        step.dead
    }
}

/// Whether the bounds have no key between them.
pub(super) fn is_crossed(range: &KeyRange) -> bool {
    match (&range.from, &range.to) {
        (KeyBound::Unbounded, KeyBound::Excluded(to)) => to.is_empty(),
        (KeyBound::Unbounded, _) | (_, KeyBound::Unbounded) => false,
        (KeyBound::Included(from), KeyBound::Included(to)) => from > to,
        (from, to) => from.key() >= to.key(),
    }
}
