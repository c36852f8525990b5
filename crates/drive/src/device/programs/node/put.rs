//! `node-put`: requests that store and remove records of a node, run in order.
//!
//! ```text
//! requests: condition u8 · zero 3 bytes · record bytes u32 · stamp u64 · record, one behind the other
//!           condition: 0 always, 1 the key is absent, 2 it is there, 3 it is there with `stamp`
//! output:   the page, and an outcome for each request:
//!            0       8         9           10     12          32
//!            +-------+---------+-----------+------+-----------+
//!            | stamp | outcome | extension | zero | reference |
//!            | u64   | u8      | u8        | u16  | 20 bytes  |
//!            +-------+---------+-----------+------+-----------+
//! result:   bytes of page and outcomes · requests that took effect
//!           an output of a page alone, and one request: stamp · outcome, and from bit 8 on the bytes that the node uses
//!                                   up to 16 requests: outcomes of four bits, the first one's lowest · as of one, but how many took effect
//! ```
//! An output of only a page (which may be a page in place that has no room behind it) has no room for a reference. So if a record to be
//! replaced or removed names an extension, or one of several requests' records does, the program changes nothing and answers
//! [`OUTPUT_SHORT`] with the number of that request, unless the host knows the extension ([`NodeFlags::EXTENSION_KNOWN`]).
//!
//! A record is encoded as in [`tapetum_kernels::record`], with a crc of zero and no keyspace. A tombstone removes. An outcome's `stamp` is that of the record that was there; `extension` is 1 if the value of the replaced or removed
//! record was in the extension that `reference` names. Conditions treat a dead record as absent. After a request that finds no room, no
//! further one is tried, because a later one may be for the same key.

use super::super::OUTPUT_SHORT;
use super::{INVALID, NODE_PUT, NODE_REQUESTS_MAX, NOT_ALL, NodeArguments, NodeFlags, corrupt};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::fail_point;
use crate::protocol::Status;
use tapetum_kernels::ordered::extension::{ExtensionReference, REFERENCE_BYTES};
use tapetum_kernels::ordered::{NODE_BYTES, NodeError, NodeMut, ReplacedRecord};
use tapetum_kernels::record::{Codec, Kind, Record};

/// Stores records and removes them.
pub struct NodePut;

const FLAGS: NodeFlags = NodeFlags::CHECK
    .with(NodeFlags::SEAL)
    .with(NodeFlags::IN_PLACE)
    .with(NodeFlags::ALL)
    .with(NodeFlags::EXTENSION_KNOWN);
const REQUEST_HEAD_BYTES: usize = 16;
pub const NODE_OUTCOME_BYTES: usize = 32;
/// The most requests of one command whose output is only a page.
pub const NODE_BARE_REQUESTS_MAX: usize = u64::BITS as usize / BARE_OUTCOME_BITS;
const BARE_OUTCOME_BITS: usize = 4;
const REFERENCE_AT: usize = NODE_OUTCOME_BYTES - REFERENCE_BYTES;
const _: () = assert!(REFERENCE_AT == 12);

/// Bytes of output that so many requests need.
pub const fn put_output_bytes(requests: usize) -> usize {
    NODE_BYTES + requests * NODE_OUTCOME_BYTES
}

/// Condition for a request to take effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutCondition {
    Always,
    Absent,
    Present,
    Stamp(u64),
}

impl PutCondition {
    fn parts(self) -> (u8, u64) {
        match self {
            PutCondition::Always => (0, 0),
            PutCondition::Absent => (1, 0),
            PutCondition::Present => (2, 0),
            PutCondition::Stamp(stamp) => (3, stamp),
        }
    }

    fn of_parts(parts: (u8, u64)) -> Option<PutCondition> {
        match parts {
            (0, 0) => Some(PutCondition::Always),
            (1, 0) => Some(PutCondition::Absent),
            (2, 0) => Some(PutCondition::Present),
            (3, stamp) => Some(PutCondition::Stamp(stamp)),
            _ => None,
        }
    }

    /// Whether the condition holds. `stamp` is that of the live record, if there is one.
    fn holds(self, stamp: Option<u64>) -> bool {
        match self {
            PutCondition::Always => true,
            PutCondition::Absent => stamp.is_none(),
            PutCondition::Present => stamp.is_some(),
            PutCondition::Stamp(wanted) => stamp == Some(wanted),
        }
    }
}

/// The result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PutResult {
    /// A request before it found no room.
    NotTried = 0,
    /// Its key is new.
    Stored = 1,
    Replaced = 2,
    Removed = 3,
    /// No record was there to remove.
    Missing = 4,
    /// The condition does not hold.
    Refused = 5,
    /// The node has no room: it must be split.
    NoRoom = 6,
    /// The key belongs in another node.
    OutsideFences = 7,
    /// No node takes such a record: it is too long, or its header does not fit.
    Unfit = 8,
}

impl PutResult {
    const ALL: [PutResult; 9] = [
        PutResult::NotTried,
        PutResult::Stored,
        PutResult::Replaced,
        PutResult::Removed,
        PutResult::Missing,
        PutResult::Refused,
        PutResult::NoRoom,
        PutResult::OutsideFences,
        PutResult::Unfit,
    ];

    /// Whether the node is now as the request asks.
    pub fn took_effect(self) -> bool {
        matches!(self, PutResult::Stored | PutResult::Replaced | PutResult::Removed | PutResult::Missing)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutOutcome {
    pub result: PutResult,
    /// The stamp of the record that was there; 0 without one.
    pub stamp: u64,
    /// The extension of the replaced or removed record: dead once the page is durable.
    pub extension: Option<ExtensionReference>,
}

impl PutOutcome {
    const NOT_TRIED: PutOutcome = PutOutcome { result: PutResult::NotTried, stamp: 0, extension: None };

    fn of(result: PutResult, replaced: Option<ReplacedRecord>) -> PutOutcome {
        let (stamp, extension) = replaced.map_or((0, None), |replaced| (replaced.stamp, replaced.extension));
        PutOutcome { result, stamp, extension }
    }

    fn encode(&self, out: &mut [u8; NODE_OUTCOME_BYTES]) {
        out[..8].copy_from_slice(&self.stamp.to_le_bytes());
        out[8..REFERENCE_AT].copy_from_slice(&[self.result as u8, u8::from(self.extension.is_some()), 0, 0]);
        let reference = self.extension.map_or([0; REFERENCE_BYTES], |reference| reference.encode());
        out[REFERENCE_AT..].copy_from_slice(&reference);
    }

    /// The outcome of a program whose output was only a page, and the bytes that its node uses, from the result.
    pub fn of_result([stamp, word]: [u64; 2]) -> Option<(PutOutcome, usize)> {
        let result = *PutResult::ALL.get((word & 0xff) as usize)?;
        Some((PutOutcome { result, stamp, extension: None }, (word >> 8) as usize))
    }

    /// Like [`PutOutcome::of_result`], for so many requests: the result of each.
    pub fn of_results([word, used]: [u64; 2], count: usize) -> Option<([PutResult; NODE_BARE_REQUESTS_MAX], usize)> {
        let mut results = [PutResult::NotTried; NODE_BARE_REQUESTS_MAX];
        for (place, result) in results.get_mut(..count)?.iter_mut().enumerate() {
            let bits = word >> (place * BARE_OUTCOME_BITS) & ((1 << BARE_OUTCOME_BITS) - 1);
            *result = *PutResult::ALL.get(bits as usize)?;
        }
        Some((results, (used >> 8) as usize))
    }

    /// `None` if the bytes are not a valid outcome.
    pub fn parse(bytes: &[u8; NODE_OUTCOME_BYTES]) -> Option<PutOutcome> {
        let result = *PutResult::ALL.get(usize::from(bytes[8]))?;
        let stamp = u64::from_le_bytes(*bytes.first_chunk()?);
        let extension = match bytes[9] {
            0 => None,
            _ => Some(ExtensionReference::parse(&bytes[REFERENCE_AT..]).ok()?),
        };
        Some(PutOutcome { result, stamp, extension })
    }
}

pub struct PutRequests<'a> {
    parameters: &'a mut Vec<u8>,
}

impl<'a> PutRequests<'a> {
    /// Begins with the arguments; the caller adds requests.
    pub fn new(arguments: &NodeArguments, parameters: &'a mut Vec<u8>) -> PutRequests<'a> {
        parameters.clear();
        arguments.encode(parameters);
        PutRequests { parameters }
    }

    pub fn push(&mut self, condition: PutCondition, record: &Record<'_>) {
        let (kind, stamp) = condition.parts();
        let bytes = record.header.record_bytes();
        self.parameters.extend_from_slice(&[kind, 0, 0, 0]);
        self.parameters.extend_from_slice(&(bytes as u32).to_le_bytes());
        self.parameters.extend_from_slice(&stamp.to_le_bytes());
        let at = self.parameters.len();
        self.parameters.resize(at + bytes, 0);
        record.encode(&mut self.parameters[at..]);
    }
}

/// Bytes that a request for a record takes in the parameters.
pub fn put_request_bytes(record: &Record<'_>) -> usize {
    REQUEST_HEAD_BYTES + record.header.record_bytes()
}

/// A request as encoded in the parameters.
struct PutRequest<'a> {
    condition: PutCondition,
    record: Record<'a>,
}

impl<'a> PutRequest<'a> {
    /// The first request of a list, and the rest of it.
    fn split(requests: &'a [u8]) -> Option<(PutRequest<'a>, &'a [u8])> {
        let (head, rest) = requests.split_first_chunk::<REQUEST_HEAD_BYTES>()?;
        let (fields, stamp) = head.split_first_chunk::<8>()?;
        let [kind, 0, 0, 0, bytes @ ..] = *fields else { return None };
        let (record, rest) = rest.split_at_checked(u32::from_le_bytes(bytes) as usize)?;
        let condition = PutCondition::of_parts((kind, u64::from_le_bytes(*stamp.first_chunk()?)))?;
        let parsed = Record::parse(record).ok()?;
        let is_exact = parsed.header.record_bytes() == record.len() && parsed.header.kind != Kind::Control;
        is_exact.then_some((PutRequest { condition, record: parsed }, rest))
    }

    fn run(&self, arguments: &NodeArguments, node: &mut NodeMut<'_>) -> Result<PutOutcome, ProgramResult> {
        let key = self.record.key;
        if !node.view().covers(key) {
            return Ok(PutOutcome::of(PutResult::OutsideFences, None));
        }
        if self.condition != PutCondition::Always {
            let found = node.view().get(key).map_err(corrupt)?;
            let live = found.filter(|record| arguments.is_live(&record.header)).map(|record| record.header.stamp);
            if !self.condition.holds(live) {
                return Ok(PutOutcome { result: PutResult::Refused, stamp: live.unwrap_or(0), extension: None });
            }
        }
        let done = match self.record.header.kind {
            Kind::Tombstone => node.remove(key).map(|removed| (PutResult::Removed, PutResult::Missing, removed)),
            _ => node.put(&self.record).map(|replaced| (PutResult::Replaced, PutResult::Stored, replaced)),
        };
        match done {
            Ok((there, absent, was)) => Ok(PutOutcome::of(if was.is_some() { there } else { absent }, was)),
            Err(NodeError::NoRoom) => Ok(PutOutcome::of(PutResult::NoRoom, None)),
            Err(NodeError::Unfit) => Ok(PutOutcome::of(PutResult::Unfit, None)),
            Err(error) => Err(corrupt(error)),
        }
    }
}

/// How many requests a list has. `None` if it is invalid or too long.
fn count(mut requests: &[u8]) -> Option<usize> {
    for number in 1..=NODE_REQUESTS_MAX {
        let (_, rest) = PutRequest::split(requests)?;
        if rest.is_empty() {
            return Some(number);
        }
        requests = rest;
    }
    None
}

impl Program for NodePut {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: NODE_PUT.0, version: NODE_PUT.1, is_stream: false }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        change(context).unwrap_or_else(|failure| failure)
    }
}

fn change(context: Context<'_>) -> Result<ProgramResult, ProgramResult> {
    let Context { parameters, inputs, output, .. } = context;
    let (arguments, mut requests) = NodeArguments::parse(parameters, FLAGS).ok_or(INVALID)?;
    let count = count(requests).ok_or(INVALID)?;
    let wants_all = arguments.flags.has(NodeFlags::ALL);
    if wants_all && arguments.flags.has(NodeFlags::IN_PLACE) {
        return Err(INVALID);
    }
    let is_bare = count <= NODE_BARE_REQUESTS_MAX && output.len() == NODE_BYTES && !wants_all;
    let behind_bytes = if is_bare { 0 } else { count * NODE_OUTCOME_BYTES };
    let (page, behind) = arguments.page_to_change(inputs, output, behind_bytes)?;
    let mut node = NodeMut::look(page).map_err(corrupt)?;
    if is_bare {
        return change_bare(&arguments, requests, count, &mut node);
    }
    let (outcomes, _) = behind.as_chunks_mut();
    let (mut effects, mut is_full) = (0, false);
    for outcome in &mut outcomes[..count] {
        let Some((request, rest)) = PutRequest::split(requests) else { return Err(INVALID) };
        requests = rest;
        let done = if is_full { PutOutcome::NOT_TRIED } else { request.run(&arguments, &mut node)? };
        is_full |= done.result == PutResult::NoRoom;
        effects += usize::from(done.result.took_effect());
        done.encode(outcome);
    }
    if arguments.flags.has(NodeFlags::SEAL) {
        node.seal(arguments.salt, arguments.seal);
    }
    let status = if wants_all && effects < count { NOT_ALL } else { Status::Success };
    Ok((status, [put_output_bytes(count) as u64, effects as u64]))
}

/// Runs requests over a page whose output has no room for their outcomes.
fn change_bare(
    arguments: &NodeArguments,
    requests: &[u8],
    count: usize,
    node: &mut NodeMut<'_>,
) -> Result<ProgramResult, ProgramResult> {
    let mut rest = requests;
    let mut next = || {
        let (request, behind) = PutRequest::split(rest)?;
        rest = behind;
        Some(request)
    };
    let requests: [Option<PutRequest<'_>>; NODE_BARE_REQUESTS_MAX] = std::array::from_fn(|_| next());
    let requests = requests.iter().flatten().take(count);
    if !arguments.flags.has(NodeFlags::EXTENSION_KNOWN) {
        for (place, request) in requests.clone().enumerate() {
            let there = node.view().get(request.record.key).map_err(corrupt)?;
            let named = there.map_or(Ok(None), |record| record.extension()).map_err(corrupt)?;
            let names = count > 1 && request.record.header.codec == Codec::OutOfLine;
            if named.is_some() || names {
                return Err((OUTPUT_SHORT, [put_output_bytes(count) as u64, place as u64]));
            }
        }
    }
    let (mut last, mut word, mut effects) = (PutOutcome::NOT_TRIED, 0, 0);
    for (place, request) in requests.enumerate() {
        let is_forgotten = place > 0 && place + 1 == count && fail_point!(OrderedPutForgets);
        last = match is_forgotten {
            true => PutOutcome::of(PutResult::Stored, None),
            false => request.run(arguments, node)?,
        };
        word |= (last.result as u64) << (place * BARE_OUTCOME_BITS);
        effects += u64::from(last.result.took_effect());
        if last.result == PutResult::NoRoom {
            break;
        }
    }
    if arguments.flags.has(NodeFlags::SEAL) {
        node.seal(arguments.salt, arguments.seal);
    }
    let used = (node.view().used_bytes() as u64) << 8;
    let result = if count == 1 { [last.stamp, last.result as u64 | used] } else { [word, effects | used] };
    Ok((Status::Success, result))
}
