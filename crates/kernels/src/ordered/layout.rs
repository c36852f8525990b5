//! The node: a slotted page of 4 KiB.
//!
//! ```text
//!  0      4         5       6          8     16      24        32      34     36     38      40      42     44       48
//!  +------+---------+-------+----------+-----+-------+---------+-------+------+------+-------+-------+------+--------+
//!  | crc  | version | flags | keyspace | id  | stamp | durable | count | heap | dead | low   | high  | zero | round  |
//!  | u32  | u8      | u8    | u16      | u64 | u64   | u64     | u16   | u16  | u16  | bytes | bytes | 2    | images |
//!  |      |         |       |          |     |       |         |       |      |      | u16   | u16   |      | u32    |
//!  +------+---------+-------+----------+-----+-------+---------+-------+------+------+-------+-------+------+--------+
//!  48                                                          heap                               4096
//!  +-------------------------------------+--- ··· ---+---------+-----------------+------+-----+
//!  | slots, in blocks of 16:             | free      | records, unsorted,        | high | low |
//!  | 16 fingerprints u8, 16 offsets u16  |           | and bytes of dead ones    |      |     |
//!  +-------------------------------------+-----------+---------------------------+------+-----+
//!  flags: bit 0 the high fence is infinite
//! ```
//! All numbers are little-endian. A slot's offset says where its record begins. When a slot is removed, the last of
//! `count` slots takes its place. All stamps up to `durable` were durable when the image was made. `round images`
//! counts the keyspace's images with stamps up to `durable` that were written since the manifest last named its slots;
//! 0 means that nobody counted. `dead` counts the bytes between `heap` and the fences that belong to no record. Fences
//! are keys: `low` is the first key that the node covers, and empty if there is no lower key; `high` is the first key
//! that the node does not cover.
//!
//! A record has the layout of [`crate::record`], but without its crc, which the node's crc replaces. All records are
//! values, without a keyspace of their own. Keys have 1 to 1024 bytes. If a record's codec is `OutOfLine`, it stores
//! the reference to an extension ([`super::extension`]).
//!
//! The crc covers all bytes behind it, salted with the store, the slot and the version of the slot's group. The bytes
//! of slots behind `count` and of dead records are ignored.

use super::NodeError;
use super::fingerprint::FINGERPRINTS;
use crate::record::Header;

pub const NODE_BYTES: usize = 4096;
/// The longest key of an ordered keyspace.
pub const NODE_KEY_BYTES_MAX: usize = 1024;
pub const NODE_VERSION: u8 = 1;
pub const HEAD_BYTES: usize = 48;
/// Bytes of a block of sixteen slots.
pub const BLOCK_BYTES: usize = FINGERPRINTS + 2 * FINGERPRINTS;
/// Bytes of a record's crc, which a record in a node lacks.
pub(super) const CRC_BYTES: usize = 4;
/// The longest record in a node: it fits beside the longest fences.
pub const NODE_RECORD_BYTES_MAX: usize = NODE_BYTES - HEAD_BYTES - BLOCK_BYTES - 2 * NODE_KEY_BYTES_MAX;
/// The shortest record: tag, stamp, two lengths, a key of one byte, no value.
const RECORD_BYTES_MIN: usize = 1 + 6 + 1 + 1 + 1;
/// More slots than the shortest records can fill.
pub const NODE_SLOTS_MAX: usize = 20 * FINGERPRINTS;
const _: () = assert!(BLOCK_BYTES == 48 && NODE_RECORD_BYTES_MAX == 1952);
// Twenty full blocks of the shortest records do not fit, even without fences.
const _: () = assert!(slots_end(NODE_SLOTS_MAX) + NODE_SLOTS_MAX * RECORD_BYTES_MIN > NODE_BYTES);

pub type NodePage = [u8; NODE_BYTES];

const CRC: usize = 0;
const VERSION: usize = 4;
const FLAGS: usize = 5;
const KEYSPACE: usize = 6;
const ID: usize = 8;
const STAMP: usize = 16;
const DURABLE: usize = 24;
const COUNT: usize = 32;
const HEAP: usize = 34;
const DEAD: usize = 36;
const LOW_BYTES: usize = 38;
const HIGH_BYTES: usize = 40;
const ZERO: usize = 42;
const ROUND_IMAGES: usize = 44;
const _: () = assert!(CRC + 4 == VERSION && VERSION + 1 == FLAGS && FLAGS + 1 == KEYSPACE && KEYSPACE + 2 == ID);
const _: () = assert!(ID + 8 == STAMP && STAMP + 8 == DURABLE && DURABLE + 8 == COUNT);
const _: () = assert!(COUNT + 2 == HEAP && HEAP + 2 == DEAD && DEAD + 2 == LOW_BYTES);
const _: () = assert!(
    LOW_BYTES + 2 == HIGH_BYTES && HIGH_BYTES + 2 == ZERO && ZERO + 2 == ROUND_IMAGES && ROUND_IMAGES + 4 == HEAD_BYTES
);

const FLAG_NO_HIGH: u8 = 1;

/// The offset at which the slots of `count` records end.
pub(super) const fn slots_end(count: usize) -> usize {
    HEAD_BYTES + count.div_ceil(FINGERPRINTS) * BLOCK_BYTES
}

#[inline]
pub(super) fn fingerprint_at(slot: usize) -> usize {
    HEAD_BYTES + slot / FINGERPRINTS * BLOCK_BYTES + slot % FINGERPRINTS
}

#[inline]
pub(super) fn offset_at(slot: usize) -> usize {
    HEAD_BYTES + slot / FINGERPRINTS * BLOCK_BYTES + FINGERPRINTS + 2 * (slot % FINGERPRINTS)
}

#[inline]
pub(super) fn u16_at(bytes: &NodePage, at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

#[inline]
pub(super) fn put_u16(bytes: &mut NodePage, at: usize, number: usize) {
    bytes[at..at + 2].copy_from_slice(&(number as u16).to_le_bytes());
}

fn u64_at(bytes: &NodePage, at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|place| bytes[at + place]))
}

/// Bytes that a record with this header takes in a node, without its slot.
#[inline]
pub fn node_record_bytes(header: &Header) -> usize {
    header.record_bytes() - CRC_BYTES
}

/// The fields that an image of a node gets when it is made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ImageSeal {
    pub stamp: u64,
    /// All stamps up to this one were durable.
    pub durable: u64,
    /// The number of the keyspace's images with stamps up to `durable` that were written since the manifest last named
    /// its slots; 0: nobody counted.
    pub round_images: u32,
}

/// The head of a node. Its lengths are consistent, so the parts that they describe lie inside the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NodeHead {
    pub keyspace: u16,
    pub id: u64,
    pub seal: ImageSeal,
    pub count: usize,
    pub heap: usize,
    pub dead: usize,
    pub low_bytes: usize,
    /// `None`: the node covers all keys from its low fence on.
    pub high_bytes: Option<usize>,
}

impl NodeHead {
    #[inline]
    pub fn parse(bytes: &NodePage) -> Result<NodeHead, NodeError> {
        if bytes[VERSION] != NODE_VERSION {
            return Err(NodeError::Version(bytes[VERSION]));
        }
        let (flags, high_bytes) = (bytes[FLAGS], u16_at(bytes, HIGH_BYTES));
        let has_high = flags & FLAG_NO_HIGH == 0;
        let head = NodeHead {
            keyspace: u16_at(bytes, KEYSPACE) as u16,
            id: u64_at(bytes, ID),
            seal: ImageSeal {
                stamp: u64_at(bytes, STAMP),
                durable: u64_at(bytes, DURABLE),
                round_images: u32::from_le_bytes(std::array::from_fn(|place| bytes[ROUND_IMAGES + place])),
            },
            count: u16_at(bytes, COUNT),
            heap: u16_at(bytes, HEAP),
            dead: u16_at(bytes, DEAD),
            low_bytes: u16_at(bytes, LOW_BYTES),
            high_bytes: has_high.then_some(high_bytes),
        };
        let is_known = flags & !FLAG_NO_HIGH == 0 && bytes[ZERO..ROUND_IMAGES] == [0; ROUND_IMAGES - ZERO];
        // A high fence of no bytes would leave the node without keys.
        let has_fences =
            head.low_bytes <= NODE_KEY_BYTES_MAX && high_bytes <= NODE_KEY_BYTES_MAX && has_high == (high_bytes > 0);
        let is_right = is_known && has_fences && head.count <= NODE_SLOTS_MAX && {
            let end = head.records_end();
            slots_end(head.count) <= head.heap && head.heap <= end && head.dead <= end - head.heap
        };
        if is_right { Ok(head) } else { Err(NodeError::Damaged) }
    }

    /// Writes everything but the crc.
    pub fn encode(&self, bytes: &mut NodePage) {
        bytes[VERSION] = NODE_VERSION;
        bytes[FLAGS] = if self.high_bytes.is_none() { FLAG_NO_HIGH } else { 0 };
        put_u16(bytes, KEYSPACE, self.keyspace.into());
        bytes[ID..STAMP].copy_from_slice(&self.id.to_le_bytes());
        self.encode_seal(bytes);
        self.encode_counts(bytes);
        put_u16(bytes, LOW_BYTES, self.low_bytes);
        put_u16(bytes, HIGH_BYTES, self.high_bytes.unwrap_or(0));
        bytes[ZERO..ROUND_IMAGES].fill(0);
    }

    /// Writes the fields that change with a record.
    #[inline]
    pub fn encode_counts(&self, bytes: &mut NodePage) {
        put_u16(bytes, COUNT, self.count);
        put_u16(bytes, HEAP, self.heap);
        put_u16(bytes, DEAD, self.dead);
    }

    pub fn encode_seal(&self, bytes: &mut NodePage) {
        let ImageSeal { stamp, durable, round_images } = self.seal;
        bytes[STAMP..DURABLE].copy_from_slice(&stamp.to_le_bytes());
        bytes[DURABLE..COUNT].copy_from_slice(&durable.to_le_bytes());
        bytes[ROUND_IMAGES..HEAD_BYTES].copy_from_slice(&round_images.to_le_bytes());
    }

    /// The offset at which the records end and the fences begin.
    #[inline]
    pub fn records_end(&self) -> usize {
        NODE_BYTES - self.low_bytes - self.high_bytes.unwrap_or(0)
    }

    /// Bytes of all records.
    #[inline]
    pub fn live_bytes(&self) -> usize {
        self.records_end() - self.heap - self.dead
    }

    /// Bytes between slots and records.
    #[inline]
    pub fn gap_bytes(&self) -> usize {
        self.heap - slots_end(self.count)
    }
}

/// The crc that is written in a node.
pub(super) fn crc_of(bytes: &NodePage) -> u32 {
    u32::from_le_bytes([bytes[CRC], bytes[CRC + 1], bytes[CRC + 2], bytes[CRC + 3]])
}

pub(super) fn covered(bytes: &NodePage) -> &[u8] {
    &bytes[CRC + CRC_BYTES..]
}

pub(super) fn put_crc(bytes: &mut NodePage, crc: u32) {
    bytes[CRC..CRC + CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
}
