//! `node-realign`: removes dead records and moves the live ones together.
//!
//! ```text
//! requests: none
//! output:   the page, and the references to the extensions of removed records, 20 bytes each
//! result:   bytes of page and references · records that are left
//! ```
//! If the output has no room for all references, nothing is removed, and the result says how many bytes it needs.

use super::{INVALID, NODE_REALIGN, NodeArguments, NodeFlags, corrupt};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::device::programs::OUTPUT_SHORT;
use crate::protocol::Status;
use tapetum_kernels::ordered::extension::REFERENCE_BYTES;
use tapetum_kernels::ordered::{NODE_BYTES, NodeMut, NodeRef};

pub struct NodeRealign;

const FLAGS: NodeFlags = NodeFlags::CHECK.with(NodeFlags::SEAL).with(NodeFlags::IN_PLACE);

impl Program for NodeRealign {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: NODE_REALIGN.0, version: NODE_REALIGN.1, is_stream: false }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        realign(context).unwrap_or_else(|failure| failure)
    }
}

fn realign(Context { parameters, inputs, output, .. }: Context<'_>) -> Result<ProgramResult, ProgramResult> {
    let (arguments, requests) = NodeArguments::parse(parameters, FLAGS).ok_or(INVALID)?;
    if !requests.is_empty() {
        return Err(INVALID);
    }
    let (page, behind) = arguments.page_to_change(inputs, output, 0)?;
    let needed = NODE_BYTES + dead_references(&arguments, page)? * REFERENCE_BYTES;
    let (references, _) = behind.as_chunks_mut::<REFERENCE_BYTES>();
    if references.len() * REFERENCE_BYTES + NODE_BYTES < needed {
        return Err((OUTPUT_SHORT, [needed as u64, 0]));
    }
    let mut node = NodeMut::look(page).map_err(corrupt)?;
    let mut free = references.iter_mut();
    let retained = node.retain(
        |record| arguments.is_live(&record.header),
        |removed| {
            if let Some(reference) = removed.extension
                && let Some(to) = free.next()
            {
                *to = reference.encode();
            }
        },
    );
    retained.map_err(corrupt)?;
    node.compact().map_err(corrupt)?;
    if arguments.flags.has(NodeFlags::SEAL) {
        node.seal(arguments.salt, arguments.seal);
    }
    Ok((Status::Success, [needed as u64, node.view().count() as u64]))
}

/// How many dead records refer to an extension.
fn dead_references(arguments: &NodeArguments, page: &[u8]) -> Result<usize, ProgramResult> {
    let node = NodeRef::look(page).map_err(corrupt)?;
    let mut count = 0;
    for record in node.records() {
        let record = record.map_err(corrupt)?;
        let is_dead = !arguments.is_live(&record.header);
        count += usize::from(is_dead && record.extension().map_err(corrupt)?.is_some());
    }
    Ok(count)
}
