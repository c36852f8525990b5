//! `node-merge`: two neighbours become one node, with the left one's id. Their pages stay as they were.
//!
//! ```text
//! inputs:  the left node's page, the right one's
//! request: the most bytes that the merged node may use, u32
//! output:  the merged node's page
//! result:  bytes that the merged node uses · 0; the same with [`NO_ROOM`], when it may not use so many
//! ```

use super::split::page_of;
use super::{INVALID, NO_ROOM, NODE_MERGE, NodeArguments, NodeFlags, corrupt, forget_last};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::fail_point;
use crate::protocol::Status;
use tapetum_kernels::ordered::{NodeRef, merge, merged_bytes};

pub struct NodeMerge;

/// Encodes the parameters of `node-merge`.
pub fn encode_merge(arguments: &NodeArguments, used_bytes_max: usize, parameters: &mut Vec<u8>) {
    parameters.clear();
    arguments.encode(parameters);
    parameters.extend_from_slice(&(used_bytes_max as u32).to_le_bytes());
}

impl Program for NodeMerge {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: NODE_MERGE.0, version: NODE_MERGE.1, is_stream: false }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        run(context).unwrap_or_else(|failure| failure)
    }
}

fn run(Context { parameters, inputs, output, .. }: Context<'_>) -> Result<ProgramResult, ProgramResult> {
    let (arguments, request) = NodeArguments::parse(parameters, NodeFlags::NONE).ok_or(INVALID)?;
    let used_bytes_max = u32::from_le_bytes(request.try_into().map_err(|_| INVALID)?);
    let &[left, right] = inputs else { return Err(INVALID) };
    let (left, right) = (arguments.node(left)?, NodeRef::look(right).map_err(corrupt)?);
    let used = merged_bytes(&left, &right).map_err(corrupt)? as u64;
    if used > used_bytes_max.into() {
        return Err((NO_ROOM, [used, 0]));
    }
    let merged = page_of(output)?;
    merge(&left, &right, merged).map_err(corrupt)?;
    if fail_point!(OrderedMergeDrops) {
        forget_last(merged);
    }
    Ok((Status::Success, [used, 0]))
}
