//! `node-realign`: removes dead records and moves the live ones together. It also says whether the node then has room for a record.
//!
//! ```text
//! request:  none, or of that record: bytes u32 · key
//! output:   the page, and the extensions of removed records:
//!            0           2           22
//!            +-----------+-----------+
//!            | key bytes | reference |
//!            | u16       | 20 bytes  |
//!            +-----------+-----------+
//! result:   bytes of page and extensions · records removed u16, bytes that the node uses u16, room u16: 0 not asked, 1 yes, 2 no,
//!           3 the key belongs in another node
//! ```
//! If the output has no room for all extensions, nothing is removed, and the result says how many bytes it needs; unless the host knows
//! them ([`NodeFlags::EXTENSION_KNOWN`]). A page that is not sealed and has no dead record stays as it is.

use super::{INVALID, NODE_REALIGN, NodeArguments, NodeFlags, corrupt, forget_last};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::device::programs::OUTPUT_SHORT;
use crate::fail_point;
use crate::protocol::Status;
use tapetum_kernels::ordered::extension::{ExtensionReference, REFERENCE_BYTES};
use tapetum_kernels::ordered::{Arrival, NODE_BYTES, NodeMut, NodeRef};

pub struct NodeRealign;

const FLAGS: NodeFlags =
    NodeFlags::CHECK.with(NodeFlags::SEAL).with(NodeFlags::IN_PLACE).with(NodeFlags::EXTENSION_KNOWN);
const EXTENSION_BYTES: usize = 2 + REFERENCE_BYTES;

/// The result of a realignment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Realigned {
    /// Bytes of the page and of the extensions behind it.
    pub output_bytes: usize,
    pub removed: usize,
    pub used_bytes: usize,
    pub room: RecordRoom,
}

/// Whether a node has room for a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordRoom {
    /// No record was named.
    NotAsked,
    Yes,
    No,
    /// The record's key belongs in another node.
    Elsewhere,
}

impl Realigned {
    pub fn of_result([output_bytes, word]: [u64; 2]) -> Realigned {
        let part = |from: u32| usize::from((word >> from) as u16);
        let room = match part(32) {
            0 => RecordRoom::NotAsked,
            1 => RecordRoom::Yes,
            2 => RecordRoom::No,
            _ => RecordRoom::Elsewhere,
        };
        Realigned { output_bytes: output_bytes as usize, removed: part(0), used_bytes: part(16), room }
    }

    fn result(&self) -> [u64; 2] {
        let parts = [self.removed as u64, self.used_bytes as u64, self.room as u64];
        [self.output_bytes as u64, parts[0] | parts[1] << 16 | parts[2] << 32]
    }
}

/// Appends to the arguments the question whether there is room for a record.
pub fn encode_record_question(record: Arrival<'_>, parameters: &mut Vec<u8>) {
    parameters.extend_from_slice(&(record.record_bytes as u32).to_le_bytes());
    parameters.extend_from_slice(record.key);
}

/// The extensions behind the page in an output, each with the bytes of its key. `None` stands for bytes that are none.
pub fn removed_extensions(behind: &[u8]) -> impl Iterator<Item = Option<(ExtensionReference, usize)>> + '_ {
    let (entries, _) = behind.as_chunks::<EXTENSION_BYTES>();
    entries.iter().map(|entry| {
        let (key_bytes, reference) = entry.split_first_chunk::<2>()?;
        let reference = ExtensionReference::parse(reference).ok()?;
        Some((reference, u16::from_le_bytes(*key_bytes).into()))
    })
}

impl Program for NodeRealign {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: NODE_REALIGN.0, version: NODE_REALIGN.1, is_stream: false }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        realign(context).unwrap_or_else(|failure| failure)
    }
}

fn realign(Context { parameters, inputs, output, .. }: Context<'_>) -> Result<ProgramResult, ProgramResult> {
    let (arguments, request) = NodeArguments::parse(parameters, FLAGS).ok_or(INVALID)?;
    let asked = match request.split_first_chunk::<4>() {
        Some((bytes, key)) if !key.is_empty() => Some((u32::from_le_bytes(*bytes) as usize, key)),
        None if request.is_empty() => None,
        _ => return Err(INVALID),
    };
    let (page, behind) = arguments.page_to_change(inputs, output, 0)?;
    let dead = DeadRecords::list(&arguments, page, behind)?;
    let needed = match arguments.flags.has(NodeFlags::EXTENSION_KNOWN) {
        true => NODE_BYTES,
        false => NODE_BYTES + dead.extensions * EXTENSION_BYTES,
    };
    if needed > NODE_BYTES + behind.len() {
        return Err((OUTPUT_SHORT, [needed as u64, 0]));
    }
    if dead.records > 0 && fail_point!(OrderedPurgeLive) {
        forget_last(page);
    }
    let mut node = NodeMut::look(page).map_err(corrupt)?;
    let is_sealed = arguments.flags.has(NodeFlags::SEAL);
    if dead.records > 0 {
        node.retain(|record| arguments.is_live(&record.header), |_| ()).map_err(corrupt)?;
    }
    if dead.records > 0 || is_sealed {
        node.compact().map_err(corrupt)?;
    }
    if is_sealed {
        node.seal(arguments.salt, arguments.seal);
    }
    let room = match asked {
        None => RecordRoom::NotAsked,
        Some((_, key)) if !node.view().covers(key) => RecordRoom::Elsewhere,
        Some((bytes, key)) if node.view().has_room(key, bytes).map_err(corrupt)? => RecordRoom::Yes,
        Some(_) => RecordRoom::No,
    };
    let (removed, used_bytes) = (dead.records, node.view().used_bytes());
    Ok((Status::Success, Realigned { output_bytes: needed, removed, used_bytes, room }.result()))
}

/// The number of dead records of a page, and of those that refer to extensions.
#[derive(Default)]
struct DeadRecords {
    records: usize,
    extensions: usize,
}

impl DeadRecords {
    /// Counts them, and writes their extensions as far as there is room.
    fn list(arguments: &NodeArguments, page: &[u8], behind: &mut [u8]) -> Result<DeadRecords, ProgramResult> {
        let node = NodeRef::look(page).map_err(corrupt)?;
        let (entries, _) = behind.as_chunks_mut::<EXTENSION_BYTES>();
        let mut dead = DeadRecords::default();
        for record in node.records() {
            let record = record.map_err(corrupt)?;
            if arguments.is_live(&record.header) {
                continue;
            }
            dead.records += 1;
            if let Some(reference) = record.extension().map_err(corrupt)? {
                if let Some((key_bytes, to)) =
                    entries.get_mut(dead.extensions).and_then(|entry| entry.split_first_chunk_mut::<2>())
                {
                    *key_bytes = (record.key.len() as u16).to_le_bytes();
                    to.copy_from_slice(&reference.encode());
                }
                dead.extensions += 1;
            }
        }
        Ok(dead)
    }
}
