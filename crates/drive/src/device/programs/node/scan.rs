//! `node-scan`: the items of a range of keys, in their order or against it. Dead ones are passed over.
//!
//! ```text
//! requests: from kind u8 · to kind u8 · from length u16 · to length u16 · limit u16 · from · to
//!           kind: 0 unbounded, 1 included, 2 excluded · limit: items at most
//! input:    the page
//! output:   items with their keys
//! result:   bytes filled · items, and bit 32 if more of the range is in this node
//! ```
//! `from` is the lower bound in either direction. A scan goes on behind the last key that it gave.

use super::item::{ItemFailure, ItemWriter};
use super::{INVALID, NODE_SCAN, NodeArguments, NodeFlags, corrupt};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::protocol::Status;
use std::cell::RefCell;
use std::ops::Range;
use tapetum_kernels::ordered::{NODE_BYTES, NODE_KEY_BYTES_MAX, NodeOrder, NodeRef};
use tapetum_kernels::prefetch::{CACHE_LINE_BYTES, prefetch};

pub struct NodeScan;

const FLAGS: NodeFlags =
    NodeFlags::CHECK.with(NodeFlags::RAW_IN_PAGE).with(NodeFlags::REVERSE).with(NodeFlags::KEYS_ONLY);
const MORE: u64 = 1 << 32;
const HEAD_BYTES: usize = 8;

/// Whether more of a scan's range is in the node, from the result's second word; the rest of which is how many items there are.
pub fn scan_has_more(word: u64) -> (u32, bool) {
    (word as u32, word & MORE != 0)
}

/// An end of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanBound<'a> {
    Unbounded,
    Included(&'a [u8]),
    Excluded(&'a [u8]),
}

impl<'a> ScanBound<'a> {
    fn parts(self) -> (u8, &'a [u8]) {
        match self {
            ScanBound::Unbounded => (0, &[]),
            ScanBound::Included(key) => (1, key),
            ScanBound::Excluded(key) => (2, key),
        }
    }

    fn of_parts(kind: u8, key: &'a [u8]) -> Option<ScanBound<'a>> {
        match (kind, key) {
            (0, []) => Some(ScanBound::Unbounded),
            (1, key) => Some(ScanBound::Included(key)),
            (2, key) => Some(ScanBound::Excluded(key)),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeScanRequest<'a> {
    pub from: ScanBound<'a>,
    pub to: ScanBound<'a>,
    /// Items at most.
    pub limit: u16,
}

impl<'a> NodeScanRequest<'a> {
    /// The parameters.
    ///
    /// # Panics
    /// When a bound is longer than a key.
    pub fn encode(&self, arguments: &NodeArguments, parameters: &mut Vec<u8>) {
        parameters.clear();
        arguments.encode(parameters);
        let ((from_kind, from), (to_kind, to)) = (self.from.parts(), self.to.parts());
        assert!(from.len().max(to.len()) <= NODE_KEY_BYTES_MAX, "a bound longer than a key");
        parameters.extend_from_slice(&[from_kind, to_kind]);
        for number in [from.len() as u16, to.len() as u16, self.limit] {
            parameters.extend_from_slice(&number.to_le_bytes());
        }
        parameters.extend_from_slice(from);
        parameters.extend_from_slice(to);
    }

    fn parse(request: &'a [u8]) -> Option<NodeScanRequest<'a>> {
        let (head, bounds) = request.split_first_chunk::<HEAD_BYTES>()?;
        let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let (from, to) = bounds.split_at_checked(half(2).into())?;
        let is_exact = to.len() == usize::from(half(4)) && from.len().max(to.len()) <= NODE_KEY_BYTES_MAX;
        let (from, to) = (ScanBound::of_parts(head[0], from)?, ScanBound::of_parts(head[1], to)?);
        is_exact.then_some(NodeScanRequest { from, to, limit: half(6) })
    }

    /// The places of its keys in the node's order.
    fn places(&self, node: &NodeRef<'_>, order: &NodeOrder) -> Range<usize> {
        let bound = |key: &[u8], is_behind: bool| {
            let at = order.lower_bound(node, key);
            at + usize::from(is_behind && at < order.count() && order.key(node, at) == key)
        };
        let from = match self.from {
            ScanBound::Unbounded => 0,
            ScanBound::Included(key) => bound(key, false),
            ScanBound::Excluded(key) => bound(key, true),
        };
        let to = match self.to {
            ScanBound::Unbounded => order.count(),
            ScanBound::Included(key) => bound(key, true),
            ScanBound::Excluded(key) => bound(key, false),
        };
        from..to.max(from)
    }
}

thread_local! {
    static ORDER: RefCell<NodeOrder> = const { RefCell::new(NodeOrder::new()) };
}

impl Program for NodeScan {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: NODE_SCAN.0, version: NODE_SCAN.1, is_stream: false }
    }

    fn run(&self, Context { parameters, inputs, output, .. }: Context<'_>) -> ProgramResult {
        let (Some((arguments, request)), [page]) = (NodeArguments::parse(parameters, FLAGS), inputs) else {
            return INVALID;
        };
        let Some(request) = NodeScanRequest::parse(request) else { return INVALID };
        match arguments.node(page) {
            Ok(node) => ORDER.with_borrow_mut(|order| scan(&arguments, &request, node, order, output)),
            Err(failure) => failure,
        }
    }

    fn prefetch(&self, round: usize, parameters: &[u8], inputs: &[&[u8]]) {
        let Some(page) = inputs.first().filter(|page| round == 0 && page.len() == NODE_BYTES) else { return };
        prefetch(parameters.as_ptr());
        (0..NODE_BYTES).step_by(CACHE_LINE_BYTES).for_each(|at| prefetch(&page[at]));
    }
}

fn scan(
    arguments: &NodeArguments,
    request: &NodeScanRequest<'_>,
    node: NodeRef<'_>,
    order: &mut NodeOrder,
    output: &mut [u8],
) -> ProgramResult {
    if let Err(error) = order.sort(&node) {
        return corrupt(error);
    }
    let mut places = request.places(&node, order);
    let mut items = ItemWriter::new(output);
    loop {
        let is_reverse = arguments.flags.has(NodeFlags::REVERSE);
        let next = if is_reverse { places.next_back() } else { places.next() };
        let Some(place) = next else { return (Status::Success, [items.filled as u64, items.items as u64]) };
        let record = match order.record(&node, place) {
            Ok(record) => record,
            Err(error) => return corrupt(error),
        };
        if !arguments.is_live(&record.header) {
            continue;
        }
        if items.items == usize::from(request.limit) {
            return (Status::Success, [items.filled as u64, items.items as u64 | MORE]);
        }
        match items.write(&record, true, arguments.flags) {
            Ok(()) => {}
            Err(ItemFailure::Full(needed)) => return items.end(needed, MORE),
            Err(ItemFailure::Failed(failure)) => return failure,
        }
    }
}
