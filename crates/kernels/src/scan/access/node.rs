//! Data nodes of an ordered keyspace ([`crate::ordered`]): a range of its keys, by the pages of the nodes that have them.
//!
//! Nothing keeps a node from being changed, split or merged while its pages are on their way, nor its slot from being another's. What is
//! shown follows from what the pages say themselves:
//!
//! 1. The accessor goes from key to key: each page shows the keys from there to its high fence, so that no key is shown twice.
//! 2. Keys that no page covers are told to be missed: those of a slot that holds something else, or of a node that was split or merged
//!    since the list was made.
//! 3. A page in a slot counts if its checksum is right and its stamp is not above the list's: then it is what the slot held when the list
//!    was made. Copies of cached pages are as they were when they were copied.

use super::key_span::{self, COPIES, KeySpanHead};
use super::page_parts::PageParts;
use super::plain_entry::PlainEntry;
use super::{AccessError, EntryAccessor, EntrySink, LAYOUT_NODES};
use crate::ordered::{NODE_BYTES, NodeRef, SlotAddress, SlotSalt};
use crate::record::Header;
use crate::scan::wire::{ScanReader, WireError};

/// Pages that lie one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRun {
    pub place: NodePlace,
    pub pages: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodePlace {
    /// In slots of one extent, from this one on; the version is of their group.
    Slots { first: SlotAddress, version: u64 },
    /// Copies of pages in local memory.
    Copies,
}

/// The nodes that have a range of keys, ascending.
///
/// ```text
///  0        1          9           17         19      21      23    24       28
///  +--------+----------+-----------+----------+-------+-------+-----+--------+------+----+---------
///  | layout | store id | stamp max | keyspace | from  | to    | has | runs   | from | to | run ...
///  | u8     | u64      | u64       | u16      | bytes | bytes | to  | u32    |      |    |
///  +--------+----------+-----------+----------+-------+-------+-----+--------+------+----+---------
///  run: slot u64 (all ones: copies) · version u64 · pages u32
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PieceOfNodes {
    pub store: u64,
    pub keyspace: u16,
    /// The last stamp that was given when the list was made.
    pub stamp_max: u64,
    /// The first key; of no bytes for the first of all.
    pub from: Vec<u8>,
    /// The key to end before.
    pub to: Option<Vec<u8>>,
    pub runs: Vec<NodeRun>,
}

impl PieceOfNodes {
    pub const HEAD_BYTES: usize = 28;
    pub const RUN_BYTES: usize = key_span::RUN_BYTES;

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(LAYOUT_NODES);
        out.extend_from_slice(&self.store.to_le_bytes());
        out.extend_from_slice(&self.stamp_max.to_le_bytes());
        key_span::encode(self.keyspace, &self.from, self.to.as_deref(), self.runs.len(), out);
        for NodeRun { place, pages } in &self.runs {
            let (slot, version) = match place {
                NodePlace::Slots { first, version } => (first.word(), *version),
                NodePlace::Copies => (COPIES, 0),
            };
            key_span::encode_run((slot, version), *pages, out);
        }
    }

    /// Reads a piece, behind its layout, from the front of `reader`, which may go on behind it.
    pub fn decode(reader: &mut ScanReader<'_>) -> Result<PieceOfNodes, WireError> {
        let (store, stamp_max) = (reader.u64()?, reader.u64()?);
        let KeySpanHead { keyspace, from, to, runs } = KeySpanHead::decode(reader)?;
        let run = |reader: &mut ScanReader<'_>| -> Result<NodeRun, WireError> {
            let (slot, version, pages) = (reader.u64()?, reader.u64()?, reader.u32()?);
            let place = match (slot, version) {
                (COPIES, 0) => NodePlace::Copies,
                (word, version) => {
                    let first = SlotAddress::from_word(word).ok_or(WireError::Malformed)?;
                    NodePlace::Slots { first, version }
                }
            };
            let last =
                |first: SlotAddress| first.page().checked_add(pages).is_some_and(|end| end <= SlotAddress::PAGES_MAX);
            let is_right = pages > 0 && if let NodePlace::Slots { first, .. } = place { last(first) } else { true };
            if is_right { Ok(NodeRun { place, pages }) } else { Err(WireError::Malformed) }
        };
        let runs = (0..runs).map(|_| run(reader)).collect::<Result<Vec<NodeRun>, WireError>>()?;
        Ok(PieceOfNodes { store, keyspace, stamp_max, from, to, runs })
    }
}

pub struct NodeAccessor {
    piece: PieceOfNodes,
    /// All keys before this one were shown, or told to be missed. `None`: all of the range.
    next: Option<Vec<u8>>,
    /// The run that is looked at, and its pages that were.
    run: usize,
    passed: u32,
    parts: PageParts,
}

impl NodeAccessor {
    pub fn new(piece: PieceOfNodes) -> NodeAccessor {
        let next = Some(piece.from.clone());
        NodeAccessor { piece, next, run: 0, passed: 0, parts: PageParts::default() }
    }

    /// The node in the page at hand, if that is what the list means. An error is a copy that makes no sense.
    fn node<'b>(&self, place: NodePlace, page: &'b [u8]) -> Result<Option<NodeRef<'b>>, AccessError> {
        let node = match place {
            NodePlace::Slots { first, version } => {
                let slot = SlotAddress::new(first.extent(), first.page() + self.passed);
                let node = NodeRef::check(page, SlotSalt { store: self.piece.store, slot, version });
                node.ok().filter(|node| node.stamp() <= self.piece.stamp_max)
            }
            NodePlace::Copies => Some(NodeRef::look(page).map_err(|_| AccessError { page: self.passed })?),
        };
        Ok(node.filter(|node| node.keyspace() == self.piece.keyspace))
    }

    /// Looks at a page, which lies in these bytes.
    fn page(&mut self, page: &[u8], bytes: &[u8], sink: &mut dyn EntrySink) -> Result<bool, AccessError> {
        let Some(NodeRun { place, pages }) = self.piece.runs.get(self.run).copied() else {
            return Err(AccessError { page: self.passed });
        };
        let node = self.node(place, page)?;
        let at = self.passed;
        self.passed += 1;
        if self.passed == pages {
            (self.run, self.passed) = (self.run + 1, 0);
        }
        let is_wanted = match node {
            Some(node) => self.show(&node, bytes, sink).map_err(|()| AccessError { page: at })?,
            None => true,
        };
        if self.run == self.piece.runs.len() && is_wanted {
            self.end(sink);
        }
        Ok(is_wanted)
    }

    /// Shows what of a node comes next.
    fn show(&mut self, node: &NodeRef<'_>, bytes: &[u8], sink: &mut dyn EntrySink) -> Result<bool, ()> {
        let Some(next) = self.next.take() else { return Ok(true) };
        let (low, high, to) = (node.low_fence(), node.high_fence(), self.piece.to.as_deref());
        let is_before = high.is_some_and(|high| *high <= next[..]);
        let is_behind = to.is_some_and(|to| to <= low);
        if is_before || is_behind {
            self.next = Some(next);
            return Ok(true);
        }
        if next[..] < *low {
            sink.missed(&next, Some(low));
        }
        let is_wanted = show_records(node, self.piece.keyspace, (&next, to), bytes, sink)?;
        let ends_before = high.is_some_and(|high| to.is_none_or(|to| high <= to));
        self.next = high.filter(|_| ends_before).map(<[u8]>::to_vec);
        // A range that ends where the node does.
        if self.next.as_deref().is_some_and(|next| to == Some(next)) {
            self.next = None;
        }
        Ok(is_wanted)
    }

    /// All pages were looked at.
    fn end(&mut self, sink: &mut dyn EntrySink) {
        if let Some(next) = self.next.take() {
            sink.missed(&next, self.piece.to.as_deref());
        }
    }
}

impl EntryAccessor for NodeAccessor {
    fn bytes_total(&self) -> u64 {
        self.piece.runs.iter().map(|run| u64::from(run.pages) * NODE_BYTES as u64).sum()
    }

    /// The first key that was neither shown nor told to be missed.
    fn place(&self) -> Option<Vec<u8>> {
        self.next.clone()
    }

    fn take(&mut self, bytes: &[u8], sink: &mut dyn EntrySink) -> Result<bool, AccessError> {
        let mut parts = std::mem::take(&mut self.parts);
        let is_wanted = parts.take(bytes, sink, |page, bytes, sink| self.page(page, bytes, sink));
        self.parts = parts;
        is_wanted
    }
}

/// Shows the records of a node that are in a range of keys, and lie in these bytes; whether more are wanted. Records are in no order: a walk
/// that ends does so behind a node. An error is a damaged record.
pub(super) fn show_records(
    node: &NodeRef<'_>,
    keyspace: u16,
    (from, to): (&[u8], Option<&[u8]>),
    bytes: &[u8],
    sink: &mut dyn EntrySink,
) -> Result<bool, ()> {
    let ends_before = match (node.high_fence(), to) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(high), Some(to)) => high <= to,
    };
    let is_whole = from <= node.low_fence() && ends_before;
    let holds = |key: &[u8]| is_whole || from <= key && to.is_none_or(|to| key < to);
    let mut is_wanted = true;
    for record in node.records() {
        let record = record.map_err(|_| ())?;
        if holds(record.key) {
            let header = Header { keyspace, ..record.header };
            is_wanted &= sink.plain(&PlainEntry { header, key: record.key, stored: record.stored }, bytes);
        }
    }
    Ok(is_wanted)
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
