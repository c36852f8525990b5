//! The place of a key: a write buffer, bytes of a segment, or a data node. Plain data, for tools.

use crate::base::Base;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::record::{Header, Kind};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The 128-bit hash key.
    pub hash: u128,
    /// The index partition, which is also the shard of the write buffers. `None` for an ordered keyspace, which has no index of hash keys.
    pub partition: Option<u64>,
    pub place: KeyPlace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    /// Not in the store. `segment` is the segment that the index named, which has a record of another key there.
    Nowhere {
        segment: Option<u32>,
    },
    /// In a write buffer. `flash_bytes` is the place of its record in the log zone, written or not.
    Buffer {
        buffer: u64,
        sealed: bool,
        flash_bytes: u64,
        record: RecordFacts,
    },
    Segment(SegmentPlace),
    /// The key lies in the range of a data node, whether the node has it or not.
    Node(NodePlace),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPlace {
    pub segment: u32,
    /// The record's number in the segment.
    pub entry: u32,
    pub extent: u32,
    /// The data page in which the record starts, and the offset in that page's payload.
    pub page: u32,
    pub page_at: u32,
    /// The offset of that place on the drive.
    pub flash_bytes: u64,
    /// Bytes that a get reads for this record.
    pub read_bytes: u64,
    /// Whether the index points to this record. An overwritten record stays until it is collected.
    pub valid: bool,
    pub record: RecordFacts,
}

/// The data node whose range a key of an ordered keyspace lies in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// The node's number in memory. It may change when the store is opened again.
    pub node: u32,
    /// Nodes of the search layer on the path to it.
    pub depth: u32,
    /// Its newest image on flash; `None` if it was never written.
    pub image: Option<ImagePlace>,
    pub is_cached: bool,
    /// The newest image lacks changes that the facts here include.
    pub is_dirty: bool,
    /// The lower fence, and the upper one; `None`: the node has no upper end.
    pub low: Vec<u8>,
    pub high: Option<Vec<u8>>,
    pub records: u64,
    pub used_bytes: u64,
    /// The facts of the key's record.
    pub record: Option<RecordFacts>,
    pub extension: Option<ExtensionPlace>,
}

/// The place of a data node's image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePlace {
    pub extent: u32,
    /// The page within the extent.
    pub page: u32,
    pub flash_bytes: u64,
    pub stamp: u64,
}

/// The place of a value that is too large for a data node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtensionPlace {
    pub extent: u32,
    /// The page of the extent in which it begins.
    pub page: u32,
    /// `None`: the named place does not exist on this drive.
    pub flash_bytes: Option<u64>,
    /// Bytes that it takes on flash.
    pub length_bytes: u64,
    pub stamp: u64,
    /// The value is there and its checksums are right.
    pub is_whole: bool,
}

/// The facts in a record's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFacts {
    /// `Value`, `Tombstone` …
    pub kind: String,
    pub codec: String,
    pub record_bytes: u64,
    pub key_bytes: u64,
    /// Bytes of the value as stored, and as given.
    pub stored_bytes: u64,
    pub value_bytes: u64,
    pub flags: u32,
    pub expiry: Expiry,
    pub stamp: u64,
    /// Whether a get finds the record: it is a value, not expired, not deleted with everything else.
    pub live: bool,
}

impl RecordFacts {
    /// The facts of a record whose header names its keyspace.
    pub fn of(base: &Base, header: &Header) -> RecordFacts {
        RecordFacts {
            kind: format!("{:?}", header.kind).to_lowercase(),
            codec: format!("{:?}", header.codec).to_lowercase(),
            record_bytes: header.record_bytes() as u64,
            key_bytes: u64::from(header.key_bytes),
            stored_bytes: u64::from(header.stored_bytes),
            value_bytes: u64::from(header.raw_bytes),
            flags: header.flags,
            expiry: header.expiry,
            stamp: header.stamp,
            live: header.kind == Kind::Value && base.is_live(header, base.now_ms()),
        }
    }
}
