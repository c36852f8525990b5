//! Where a key lives: in a write buffer, in which bytes of which segment, or in which data node. Plain data, for tools.

use crate::base::Base;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::record::{Header, Kind};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The 128-bit hash key.
    pub hash: u128,
    /// The index partition, which is the shard of the write buffers too. An ordered keyspace has no index of hash keys.
    pub partition: Option<u64>,
    pub place: KeyPlace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    /// Not in the store. `segment` is where the index led to, which had another key's record.
    Nowhere {
        segment: Option<u32>,
    },
    /// In a write buffer; `flash_bytes` is its record in the log zone, or will be.
    Buffer {
        buffer: u64,
        sealed: bool,
        flash_bytes: u64,
        record: RecordFacts,
    },
    Segment(SegmentPlace),
    /// In the range of a data node, whether that has it or not.
    Node(NodePlace),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPlace {
    pub segment: u32,
    /// Its number among the segment's records.
    pub entry: u32,
    pub extent: u32,
    /// The data page in which it starts, and the byte of the page's payload.
    pub page: u32,
    pub page_at: u32,
    /// Where that is on the drive.
    pub flash_bytes: u64,
    /// What a get reads to have it.
    pub read_bytes: u64,
    /// Whether the index means this record: one that was overwritten stays until it is collected.
    pub valid: bool,
    pub record: RecordFacts,
}

/// The data node whose range a key of an ordered keyspace lies in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Its number in memory; it may have another one when the store is opened again.
    pub node: u32,
    /// Nodes of the search layer on the way to it.
    pub depth: u32,
    /// Its newest image on flash; none of what was never written.
    pub image: Option<ImagePlace>,
    pub is_cached: bool,
    /// What is said here of its records is not all in that image yet.
    pub is_dirty: bool,
    /// The first key that it has, and the first behind these; `None` where there is none.
    pub low: Vec<u8>,
    pub high: Option<Vec<u8>>,
    pub records: u64,
    pub used_bytes: u64,
    /// The key's.
    pub record: Option<RecordFacts>,
    pub extension: Option<ExtensionPlace>,
}

/// Where the image of a data node lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePlace {
    pub extent: u32,
    /// Its page of the extent.
    pub page: u32,
    pub flash_bytes: u64,
    pub stamp: u64,
}

/// Where a value lies that no data node takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtensionPlace {
    pub extent: u32,
    /// The page of the extent that it begins in.
    pub page: u32,
    /// `None`: no such place is on this drive.
    pub flash_bytes: Option<u64>,
    /// What it takes on flash.
    pub length_bytes: u64,
    pub stamp: u64,
    /// It is there, and its checksums are right.
    pub is_whole: bool,
}

/// What a record's header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFacts {
    /// `Value`, `Tombstone` …
    pub kind: String,
    pub codec: String,
    pub record_bytes: u64,
    pub key_bytes: u64,
    /// The value as it is stored, and as it was given.
    pub stored_bytes: u64,
    pub value_bytes: u64,
    pub flags: u32,
    pub expiry: Expiry,
    pub stamp: u64,
    /// Whether a get finds it: it is a value, not expired, not deleted with everything else.
    pub live: bool,
}

impl RecordFacts {
    /// Of a record whose header says its keyspace.
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
