//! Programs over the nodes of ordered keyspaces (Retina, section 4.7): `node-get`, `node-put`, `node-scan` and `node-realign` work on one page of
//! 4 KiB in local memory, `node-split` and `node-split-rest` make two of one, and `node-merge` makes one of two.
//!
//! ```text
//! parameters:
//!  0       8      16        24    32      40          48          56        64       72        78      80
//!  +-------+------+---------+-----+-------+-----------+-----------+---------+--------+---------+-------+----------
//!  | store | slot | version | id  | stamp | watermark | new stamp | durable | round  | now     | flags | requests
//!  | u64   | u64  | u64     | u64 | u64   | u64       | u64       | u64     | images | 48 bits | u16   |
//!  |       |      |         |     |       |           |           |         | u64    |         |       |
//!  +-------+------+---------+-----+-------+-----------+-----------+---------+--------+---------+-------+----------
//! ```
//! `store`, `slot` and `version` are what checksums are salted with: of the page with [`NodeFlags::CHECK`], and of the image that is
//! made with [`NodeFlags::SEAL`], which has `new stamp`, `durable` and `round images`. `id` and `stamp` are those that the page must have; a `stamp` of 0 is any,
//! and an `id` of all ones.
//! A record is dead if its stamp is not above `watermark`, or its expiry not above `now`, in milliseconds since 1970. What requests are is each program's.
//!
//! 1. Lengths are exact: parameters with bytes behind the last request are refused.
//! 2. The page is the input, and programs that change it write the new page to the output's first 4 KiB. With [`NodeFlags::IN_PLACE`] there
//!    is no input, and the page is already in the output.
//! 3. For damaged bytes a program answers [`CORRUPT`]; the result's first word says why ([`corrupt_reason`]). A page that was being changed
//!    in place is then lost.

mod get;
mod item;
mod merge;
mod put;
mod realign;
mod scan;
mod split;
#[cfg(test)]
mod structure_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use get::{GetRequests, NodeGet};
pub use item::{ItemPlace, ItemReader, NODE_ITEM_HEAD_BYTES, NodeItem};
pub use merge::{NodeMerge, encode_merge};
pub use put::{
    NODE_BARE_REQUESTS_MAX, NODE_OUTCOME_BYTES, NodePut, PutCondition, PutOutcome, PutRequests, PutResult,
    put_output_bytes, put_request_bytes,
};
pub use realign::{NodeRealign, Realigned, RecordRoom, encode_record_question, removed_extensions};
pub use scan::{NodeScan, NodeScanRequest, ScanBound, scan_has_more};
pub use split::{NodeCutAt, NodeSplit, NodeSplitRequest, NodeSplitRest, SplitHalves};

use super::{CORRUPT, OUTPUT_SHORT};
use crate::device::program::ProgramResult;
use crate::protocol::Status;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::ordered::{ImageSeal, NODE_BYTES, NodeError, NodeMut, NodeRef, SlotAddress, SlotSalt};
use tapetum_kernels::record::Header;

pub const NODE_PROGRAM_VERSION: u16 = 3;
pub const NODE_GET: (&str, u16) = ("node-get", NODE_PROGRAM_VERSION);
pub const NODE_PUT: (&str, u16) = ("node-put", NODE_PROGRAM_VERSION);
pub const NODE_SCAN: (&str, u16) = ("node-scan", NODE_PROGRAM_VERSION);
pub const NODE_REALIGN: (&str, u16) = ("node-realign", NODE_PROGRAM_VERSION);
pub const NODE_SPLIT: (&str, u16) = ("node-split", NODE_PROGRAM_VERSION);
pub const NODE_SPLIT_REST: (&str, u16) = ("node-split-rest", NODE_PROGRAM_VERSION);
pub const NODE_MERGE: (&str, u16) = ("node-merge", NODE_PROGRAM_VERSION);

/// The page's id or stamp differs from the one asked for. The result is the page's id and stamp.
pub const ANOTHER_NODE: Status = Status::Program(5);
/// Not all requests took effect, and [`NodeFlags::ALL`] wants all of them. The outcomes say why; the page in the output must not be used.
pub const NOT_ALL: Status = Status::Program(6);

/// The merged node would use more bytes than it may.
pub const NO_ROOM: Status = Status::Program(7);

/// Requests of one command.
pub const NODE_REQUESTS_MAX: usize = 128;
pub const ARGUMENTS_BYTES: usize = 80;
/// An `id` that any node has.
pub const ANY_NODE: u64 = u64::MAX;

/// Options of a program. A program refuses flags that it does not use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeFlags(u16);

impl NodeFlags {
    pub const NONE: NodeFlags = NodeFlags(0);
    /// The page comes from flash: check all of it, its checksum first. Without the flag, the page was checked when it came.
    pub const CHECK: NodeFlags = NodeFlags(1);
    /// The new page gets a stamp and a checksum. For `node-put` and `node-realign`.
    pub const SEAL: NodeFlags = NodeFlags(1 << 1);
    /// The page is in the output. For `node-put` and `node-realign`.
    pub const IN_PLACE: NodeFlags = NodeFlags(1 << 2);
    /// All requests take effect or none. For `node-put`, and not in place.
    pub const ALL: NodeFlags = NodeFlags(1 << 3);
    /// From the highest key to the lowest. For `node-scan`.
    pub const REVERSE: NodeFlags = NodeFlags(1 << 4);
    /// Keys without values. For `node-scan`.
    pub const KEYS_ONLY: NodeFlags = NodeFlags(1 << 5);
    /// Values that are not compressed stay in the page. For `node-get` and `node-scan`.
    pub const RAW_IN_PAGE: NodeFlags = NodeFlags(1 << 6);
    /// The host knows the extensions of the records that are replaced or removed. For `node-put` and `node-realign` whose output is only a page.
    pub const EXTENSION_KNOWN: NodeFlags = NodeFlags(1 << 7);

    #[must_use]
    pub const fn with(self, other: NodeFlags) -> NodeFlags {
        NodeFlags(self.0 | other.0)
    }

    pub const fn has(self, other: NodeFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The arguments with which the parameters of all these programs begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeArguments {
    pub salt: SlotSalt,
    /// The node's id; [`ANY_NODE`] for any.
    pub id: u64,
    /// The page's stamp; 0 for any.
    pub stamp: u64,
    /// Records up to this stamp are dead.
    pub watermark: u64,
    /// Contents of the new image's seal.
    pub seal: ImageSeal,
    /// Milliseconds since 1970.
    pub now_ms: u64,
    pub flags: NodeFlags,
}

impl NodeArguments {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let SlotSalt { store, slot, version } = self.salt;
        let ImageSeal { stamp, durable, round_images } = self.seal;
        let of_page = [store, slot.word(), version, self.id, self.stamp, self.watermark];
        for word in of_page.into_iter().chain([stamp, durable, round_images.into()]) {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let now = Expiry::from_millis(self.now_ms).millis();
        out.extend_from_slice(&(now | u64::from(self.flags.0) << 48).to_le_bytes());
    }

    /// The arguments, and the requests behind them. `None` if the form is invalid, or a flag is not in `flags`.
    fn parse(parameters: &[u8], flags: NodeFlags) -> Option<(NodeArguments, &[u8])> {
        let (head, requests) = parameters.split_first_chunk::<ARGUMENTS_BYTES>()?;
        let (words, _) = head.as_chunks::<8>();
        let [store, slot, version, id, stamp, watermark, new_stamp, durable, round_images, last] =
            <[[u8; 8]; 10]>::try_from(words).ok()?.map(u64::from_le_bytes);
        let salt = SlotSalt { store, slot: SlotAddress::from_word(slot)?, version };
        let (now_ms, given) = (last << 16 >> 16, NodeFlags((last >> 48) as u16));
        let seal = ImageSeal { stamp: new_stamp, durable, round_images: round_images.try_into().ok()? };
        let arguments = NodeArguments { salt, id, stamp, watermark, seal, now_ms, flags: given };
        flags.has(given).then_some((arguments, requests))
    }

    /// Whether a record is live.
    fn is_live(&self, header: &Header) -> bool {
        header.stamp > self.watermark && !header.expiry.has_passed(self.now_ms)
    }

    /// The node in a page, if it is the node asked for.
    fn node<'a>(&self, page: &'a [u8]) -> Result<NodeRef<'a>, ProgramResult> {
        let node = match self.flags.has(NodeFlags::CHECK) {
            true => NodeRef::check(page, self.salt),
            false => NodeRef::look(page),
        };
        let node = node.map_err(corrupt)?;
        let is_id = self.id == ANY_NODE || node.id() == self.id;
        let is_meant = is_id && (self.stamp == 0 || node.stamp() == self.stamp);
        if is_meant { Ok(node) } else { Err((ANOTHER_NODE, [node.id(), node.stamp()])) }
    }

    /// The page to change, checked, and the rest of the output behind it, of which `behind` bytes are needed.
    fn page_to_change<'a>(
        &self,
        inputs: &[&[u8]],
        output: &'a mut [u8],
        behind: usize,
    ) -> Result<(&'a mut [u8], &'a mut [u8]), ProgramResult> {
        let needed = NODE_BYTES + behind;
        if output.len() < needed {
            return Err((OUTPUT_SHORT, [needed as u64, 0]));
        }
        let (page, behind) = output.split_at_mut(NODE_BYTES);
        let is_in_place = self.flags.has(NodeFlags::IN_PLACE);
        match inputs {
            [input] if !is_in_place => {
                self.node(input)?;
                page.copy_from_slice(input);
            }
            inputs if is_in_place && inputs.iter().all(|input| input.is_empty()) => {
                self.node(page)?;
            }
            _ => return Err(INVALID),
        }
        Ok((page, behind))
    }
}

const INVALID: ProgramResult = (Status::InvalidField, [0; 2]);

/// Decodes, from the result's first word, why a page is [`CORRUPT`].
pub fn corrupt_reason(word: u64) -> NodeError {
    match word {
        1 => NodeError::Blank,
        2 => NodeError::Checksum,
        3..0x103 => NodeError::Version((word - 3) as u8),
        _ => NodeError::Damaged,
    }
}

/// Removes a page's last record, for planted bugs.
fn forget_last(page: &mut [u8]) {
    let last = NodeRef::look(page).ok().and_then(|node| node.records().flatten().last());
    let key = last.map(|record| record.key.to_vec());
    if let (Some(key), Ok(mut node)) = (key, NodeMut::look(page)) {
        // A planted bug does what it can.
        let _ = node.remove(&key);
    }
}

fn corrupt(error: NodeError) -> ProgramResult {
    let reason = match error {
        NodeError::Blank => 1,
        NodeError::Checksum => 2,
        NodeError::Version(version) => 3 + u64::from(version),
        _ => 0x103,
    };
    (CORRUPT, [reason, 0])
}
