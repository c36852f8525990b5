//! The nodes of a range of keys at one moment: for each the key from which on it has the keys, and its page.
//!
//! ```text
//! anchor 0 | anchor 1 | …       one behind the other, where they end, each node's id then, and its image's slot and stamp, or that it is a copy
//! copies:  number of a node ─► its page
//! ```
//! A page that equals its image is that image's slot. One that does not was copied.

use super::KeySpan;
use super::copies::PageCopy;
use crate::ordered::node_table::{NodeHome, NodeId};
use std::collections::BTreeMap;
use tapetum_kernels::ordered::NODE_BYTES;

/// The slot of a node that was copied, or is read from the cache.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
pub enum NodeAt<'a> {
    Slot(u32),
    Copy(&'a PageCopy),
    /// As it is in the cache when it is read.
    Cached,
}

#[derive(Default)]
pub struct FrozenNodes {
    anchors: Vec<u8>,
    ends: Vec<u64>,
    ids: Vec<u32>,
    slots: Vec<u32>,
    /// The stamps of images; 0 of nodes that are in no slot.
    stamps: Vec<u64>,
    /// Pages, and the slots that their nodes had, if any.
    copies: BTreeMap<usize, (PageCopy, Option<u32>)>,
}

impl FrozenNodes {
    /// Adds the next node, in the order of keys.
    pub fn push_slot(&mut self, anchor: &[u8], node: NodeId, NodeHome { slot, stamp }: NodeHome) {
        debug_assert!(slot != NONE, "no slot has this number");
        self.push(anchor, node, slot, stamp);
    }

    /// As [`FrozenNodes::push_slot`], of a node whose page differs from its image, and the slot that it had, if any.
    pub fn push_copy(&mut self, anchor: &[u8], node: NodeId, page: PageCopy, had: Option<u32>) {
        self.copies.insert(self.slots.len(), (page, had));
        self.push(anchor, node, NONE, 0);
    }

    /// As [`FrozenNodes::push_slot`], of a node that is to be read from the cache.
    pub fn push_cached(&mut self, anchor: &[u8], node: NodeId) {
        self.push(anchor, node, NONE, 0);
    }

    fn push(&mut self, anchor: &[u8], node: NodeId, slot: u32, stamp: u64) {
        self.anchors.extend_from_slice(anchor);
        self.ends.push(self.anchors.len() as u64);
        self.ids.push(node.0);
        self.slots.push(slot);
        self.stamps.push(stamp);
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn copies(&self) -> usize {
        self.copies.len()
    }

    pub fn at(&self, place: usize) -> NodeAt<'_> {
        match self.slots[place] {
            NONE => self.copies.get(&place).map_or(NodeAt::Cached, |(page, _)| NodeAt::Copy(page)),
            slot => NodeAt::Slot(slot),
        }
    }

    /// The stamp of a node's image, if the node is in a slot.
    pub fn stamp(&self, place: usize) -> u64 {
        self.stamps[place]
    }

    /// The slot that a copied node had.
    pub fn slot_had(&self, place: usize) -> Option<u32> {
        self.copies.get(&place)?.1
    }

    /// The id that a node had: it may be another node's by now.
    pub fn node(&self, place: usize) -> NodeId {
        NodeId(self.ids[place])
    }

    pub fn anchor(&self, place: usize) -> &[u8] {
        let begin = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.anchors[begin as usize..self.ends[place] as usize]
    }

    /// The place of the node that has a key: the last one whose anchor is not above it. 0 if all are above.
    pub fn floor(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.anchor(middle) <= key {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low.saturating_sub(1)
    }

    /// Anchors that cut the nodes of a span of keys into so many parts of about as many nodes, in order: fewer, where a part would have less than
    /// `nodes_min`.
    pub fn separators(&self, span: &KeySpan, parts: usize, nodes_min: usize) -> Vec<&[u8]> {
        let first = self.floor(&span.from);
        let end = span.to.as_ref().map_or(self.len(), |to| (self.floor(to) + 1).min(self.len()));
        let nodes = end.saturating_sub(first);
        let parts = parts.min(nodes / nodes_min.max(1)).max(1);
        (1..parts)
            .map(|part| self.anchor(first + part * nodes / parts))
            .filter(|anchor| *anchor > &span.from[..] && span.has(anchor))
            .collect()
    }

    pub fn memory_bytes(&self) -> usize {
        let index = self.anchors.capacity() + 8 * self.ends.capacity() + 16 * self.slots.capacity();
        index + self.copies.len() * (NODE_BYTES + 4 * size_of::<usize>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_lie_within_the_span_and_cut_it_evenly() {
        let mut nodes = FrozenNodes::default();
        for (place, anchor) in [&b""[..], b"b", b"c", b"d", b"e", b"f", b"g", b"h"].into_iter().enumerate() {
            nodes.push_slot(anchor, NodeId(place as u32), NodeHome { slot: place as u32, stamp: 1 });
        }
        let span = |from: &[u8], to: Option<&[u8]>| KeySpan { from: from.to_vec(), to: to.map(<[u8]>::to_vec) };
        assert_eq!(nodes.separators(&span(b"", None), 4, 1), [b"c", b"e", b"g"]);
        assert_eq!(nodes.separators(&span(b"", None), 4, 4), [b"e"]);
        assert_eq!(nodes.separators(&span(b"", None), 4, 8), [b""; 0]);
        assert_eq!(nodes.separators(&span(b"cc", Some(b"f")), 2, 1), [b"e"]);
        assert_eq!(nodes.separators(&span(b"d", Some(b"d\0")), 4, 1), [b""; 0]);
        assert!(FrozenNodes::default().separators(&span(b"", None), 4, 1).is_empty());
    }

    #[test]
    fn the_node_of_a_key_is_the_last_one_that_begins_before_it() {
        let mut nodes = FrozenNodes::default();
        assert_eq!(nodes.floor(b"a"), 0);
        nodes.push_slot(b"", NodeId(0), NodeHome { slot: 7, stamp: 70 });
        nodes.push_copy(b"b", NodeId(1), PageCopy::Host(Box::new([1; NODE_BYTES])), Some(8));
        nodes.push_slot(b"ba", NodeId(2), NodeHome { slot: 9, stamp: 1 << 40 });
        assert_eq!((nodes.stamp(0), nodes.slot_had(1), nodes.stamp(2)), (70, Some(8), 1 << 40));
        let places: Vec<usize> = [&b""[..], b"a", b"b", b"b\0", b"ba", b"z"].map(|key| nodes.floor(key)).to_vec();
        assert_eq!(places, [0, 0, 1, 1, 2, 2]);
        assert_eq!([0, 1, 2].map(|place| nodes.anchor(place)), [&b""[..], b"b", b"ba"]);
        assert!(matches!(
            (nodes.at(0), nodes.at(1), nodes.at(2)),
            (NodeAt::Slot(7), NodeAt::Copy(PageCopy::Host(_)), NodeAt::Slot(9))
        ));
    }
}
