//! `node-get`: the items of some keys.
//!
//! ```text
//! requests: key length u16 · key, one behind the other
//! input:    the page
//! output:   an item for each request, in their order, without its key
//! result:   bytes filled · requests answered, less than there are where the output is full
//! ```

use super::item::{ItemFailure, ItemWriter};
use super::{INVALID, NODE_GET, NODE_REQUESTS_MAX, NodeArguments, NodeFlags, corrupt};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use tapetum_kernels::ordered::{NODE_BYTES, NODE_KEY_BYTES_MAX, NodeRef};
use tapetum_kernels::prefetch::{CACHE_LINE_BYTES, prefetch};

pub struct NodeGet;

const FLAGS: NodeFlags = NodeFlags::CHECK.with(NodeFlags::RAW_IN_PAGE);

pub struct GetRequests<'a> {
    parameters: &'a mut Vec<u8>,
}

impl<'a> GetRequests<'a> {
    /// Begins with the arguments; the keys are to follow.
    pub fn new(arguments: &NodeArguments, parameters: &'a mut Vec<u8>) -> GetRequests<'a> {
        parameters.clear();
        arguments.encode(parameters);
        GetRequests { parameters }
    }

    /// # Panics
    /// When no key is so long.
    pub fn push(&mut self, key: &[u8]) {
        assert!((1..=NODE_KEY_BYTES_MAX).contains(&key.len()), "a key of {} bytes", key.len());
        self.parameters.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.parameters.extend_from_slice(key);
    }
}

/// The first key of a list, and the rest of it.
fn split_key(requests: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = requests.split_first_chunk()?;
    let length = usize::from(u16::from_le_bytes(*length));
    (1..=NODE_KEY_BYTES_MAX).contains(&length).then_some(())?;
    rest.split_at_checked(length)
}

/// Whether it is a list of keys, to its last byte.
fn is_list(mut requests: &[u8]) -> bool {
    for _ in 0..NODE_REQUESTS_MAX {
        match split_key(requests) {
            Some((_, [])) => return true,
            Some((_, rest)) => requests = rest,
            None => return false,
        }
    }
    false
}

impl Program for NodeGet {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: NODE_GET.0, version: NODE_GET.1, is_stream: false }
    }

    fn run(&self, Context { parameters, inputs, output, .. }: Context<'_>) -> ProgramResult {
        match (NodeArguments::parse(parameters, FLAGS), inputs) {
            (Some((arguments, requests)), [page]) if is_list(requests) => get(&arguments, requests, page, output),
            _ => INVALID,
        }
    }

    fn prefetch(&self, round: usize, parameters: &[u8], inputs: &[&[u8]]) {
        let Some(page) = inputs.first().filter(|page| page.len() == NODE_BYTES) else { return };
        if round == 0 {
            prefetch(parameters.as_ptr());
            // The head and the first slots, and the fences.
            [0, CACHE_LINE_BYTES, NODE_BYTES - 1].into_iter().for_each(|at| prefetch(&page[at]));
        } else if let Some((_, requests)) = NodeArguments::parse(parameters, FLAGS)
            && let (Some((key, _)), Ok(node)) = (split_key(requests), NodeRef::look(page))
            && let Some(record) = node.record_hint(key).and_then(|at| page.get(at))
        {
            prefetch(record);
        }
    }
}

fn get(arguments: &NodeArguments, mut requests: &[u8], page: &[u8], output: &mut [u8]) -> ProgramResult {
    let node = match arguments.node(page) {
        Ok(node) => node,
        Err(failure) => return failure,
    };
    let mut items = ItemWriter::new(output);
    while let Some((key, rest)) = split_key(requests) {
        requests = rest;
        let written = match node.get(key) {
            Ok(Some(record)) => items.write(&record, false, arguments.flags),
            Ok(None) => items.missing(!node.covers(key)),
            Err(error) => return corrupt(error),
        };
        match written {
            Ok(()) => {}
            Err(ItemFailure::Full(needed)) => return items.end(needed, 0),
            Err(ItemFailure::Failed(failure)) => return failure,
        }
    }
    items.end(0, 0)
}
