//! `node-split` and `node-split-rest`: a node becomes two. The first makes the upper half and chooses where the node is cut; the second makes the
//! lower half of what the first left. The node's page stays as it was, so a split that fails midway changes nothing.
//!
//! ```text
//! node-split       input:    the node's page
//!                  request:  0        8     9      10          12             16
//!                            +--------+-----+------+-----------+--------------+------+
//!                            | new id | cut | zero | key bytes | record bytes | key  |
//!                            | u64    | u8  | u8   | u16       | u32          |      |
//!                            +--------+-----+------+-----------+--------------+------+
//!                            cut: 0 where it is best for a record with this key, 1 in front of this key, or in the middle where neither half
//!                            has room for it as a fence, 2 in the middle
//!                  output:   the upper half's page
//!                  result:   bytes of the separator
//! node-split-rest  inputs:   the node's page, the upper half's page
//!                  request:  none
//!                  output:   the lower half's page
//!                  result:   bytes that the lower half uses, and from bit 32 on the upper one's · bytes of the separator
//! ```
//! The separator is the upper half's low fence, which a page has at its end.

use super::{INVALID, NODE_SPLIT, NODE_SPLIT_REST, NodeArguments, NodeFlags, OUTPUT_SHORT, corrupt, forget_last};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::fail_point;
use crate::protocol::Status;
use tapetum_kernels::ordered::{
    Arrival, NODE_BYTES, NodeCut, NodeError, NodeOrder, NodePage, NodeRef, split_off, split_rest,
};

pub struct NodeSplit;
pub struct NodeSplitRest;

const REQUEST_HEAD_BYTES: usize = 16;
const AT_BEST: u8 = 0;
const AT_KEY: u8 = 1;
const AT_MIDDLE: u8 = 2;

/// The place of a cut, and the id that the upper half gets.
#[derive(Clone, Copy, Debug)]
pub struct NodeSplitRequest<'a> {
    pub upper_id: u64,
    pub cut: NodeCutAt<'a>,
}

#[derive(Clone, Copy, Debug)]
pub enum NodeCutAt<'a> {
    /// The best place for this record.
    Best(Arrival<'a>),
    /// In front of this key, or in the middle where neither half has room for it as a fence.
    Key(&'a [u8]),
    Middle,
}

impl<'a> NodeSplitRequest<'a> {
    /// Encodes the parameters.
    pub fn encode(&self, arguments: &NodeArguments, parameters: &mut Vec<u8>) {
        parameters.clear();
        arguments.encode(parameters);
        let (cut, key, record_bytes) = match self.cut {
            NodeCutAt::Best(Arrival { key, record_bytes }) => (AT_BEST, key, record_bytes),
            NodeCutAt::Key(key) => (AT_KEY, key, 0),
            NodeCutAt::Middle => (AT_MIDDLE, &[][..], 0),
        };
        parameters.extend_from_slice(&self.upper_id.to_le_bytes());
        parameters.extend_from_slice(&[cut, 0]);
        parameters.extend_from_slice(&(key.len() as u16).to_le_bytes());
        parameters.extend_from_slice(&(record_bytes as u32).to_le_bytes());
        parameters.extend_from_slice(key);
    }

    fn parse(bytes: &'a [u8]) -> Option<NodeSplitRequest<'a>> {
        let (head, key) = bytes.split_first_chunk::<REQUEST_HEAD_BYTES>()?;
        let (upper_id, rest) = head.split_first_chunk::<8>()?;
        let (&[cut, 0, low, high], record_bytes) = rest.split_first_chunk()? else { return None };
        let record_bytes = u32::from_le_bytes(record_bytes.try_into().ok()?);
        if key.len() != usize::from(u16::from_le_bytes([low, high])) {
            return None;
        }
        let cut = match (cut, record_bytes) {
            (AT_BEST, _) => NodeCutAt::Best(Arrival { key, record_bytes: record_bytes as usize }),
            (AT_KEY, 0) => NodeCutAt::Key(key),
            (AT_MIDDLE, 0) if key.is_empty() => NodeCutAt::Middle,
            _ => return None,
        };
        Some(NodeSplitRequest { upper_id: u64::from_le_bytes(*upper_id), cut })
    }
}

/// The halves that a split made, from the result of `node-split-rest`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SplitHalves {
    pub lower_used_bytes: usize,
    pub upper_used_bytes: usize,
    pub separator_bytes: usize,
}

impl SplitHalves {
    pub fn of_result([used, separator]: [u64; 2]) -> SplitHalves {
        let (lower, upper) = (used as u32 as usize, (used >> 32) as usize);
        SplitHalves { lower_used_bytes: lower, upper_used_bytes: upper, separator_bytes: separator as usize }
    }
}

impl Program for NodeSplit {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: NODE_SPLIT.0, version: NODE_SPLIT.1, is_stream: false }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        split_upper(context).unwrap_or_else(|failure| failure)
    }
}

impl Program for NodeSplitRest {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: NODE_SPLIT_REST.0, version: NODE_SPLIT_REST.1, is_stream: false }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        split_lower(context).unwrap_or_else(|failure| failure)
    }
}

/// The output's first page.
pub(super) fn page_of(output: &mut [u8]) -> Result<&mut NodePage, ProgramResult> {
    output.first_chunk_mut().ok_or((OUTPUT_SHORT, [NODE_BYTES as u64, 0]))
}

fn split_upper(Context { parameters, inputs, output, .. }: Context<'_>) -> Result<ProgramResult, ProgramResult> {
    let (arguments, request) = NodeArguments::parse(parameters, NodeFlags::CHECK).ok_or(INVALID)?;
    let NodeSplitRequest { upper_id, cut } = NodeSplitRequest::parse(request).ok_or(INVALID)?;
    let &[input] = inputs else { return Err(INVALID) };
    let node = arguments.node(input)?;
    let mut order = NodeOrder::new();
    order.sort(&node).map_err(corrupt)?;
    let upper = page_of(output)?;
    let made = match cut {
        NodeCutAt::Middle => split_off(&node, &order, NodeCut::For(None), upper_id, upper),
        NodeCutAt::Best(arrival) => split_off(&node, &order, NodeCut::For(Some(arrival)), upper_id, upper),
        NodeCutAt::Key(key) => match split_off(&node, &order, NodeCut::At(key), upper_id, upper) {
            Err(NodeError::NoRoom) => split_off(&node, &order, NodeCut::For(None), upper_id, upper),
            made => made,
        },
    };
    made.map_err(corrupt)?;
    let separator_bytes = NodeRef::look(upper).map_err(corrupt)?.low_fence().len();
    Ok((Status::Success, [separator_bytes as u64, 0]))
}

fn split_lower(Context { parameters, inputs, output, .. }: Context<'_>) -> Result<ProgramResult, ProgramResult> {
    let (arguments, request) = NodeArguments::parse(parameters, NodeFlags::CHECK).ok_or(INVALID)?;
    let (&[input, upper], true) = (inputs, request.is_empty()) else { return Err(INVALID) };
    let node = arguments.node(input)?;
    let upper = NodeRef::look(upper).map_err(corrupt)?;
    let lower = page_of(output)?;
    split_rest(&node, &upper, lower).map_err(corrupt)?;
    if fail_point!(OrderedSplitForgets) {
        forget_last(lower);
    }
    let lower_used = NodeRef::look(lower).map_err(corrupt)?.used_bytes();
    let used = lower_used as u64 | (upper.used_bytes() as u64) << 32;
    Ok((Status::Success, [used, upper.low_fence().len() as u64]))
}
