//! A node to read from.

use super::extension::{ExtensionReference, REFERENCE_BYTES};
use super::fingerprint::{FINGERPRINTS, fingerprint, matches};
use super::layout::{CRC_BYTES, NodeHead, covered, crc_of, fingerprint_at, offset_at, slots_end, u16_at};
use super::{NODE_BYTES, NODE_KEY_BYTES_MAX, NODE_RECORD_BYTES_MAX, NODE_SLOTS_MAX, NodeError, NodePage, SlotSalt};
use crate::checksum::checksum;
use crate::record::{Codec, Header, Kind};

/// A node whose head is consistent. A record is checked when a caller asks for it.
#[derive(Clone, Copy)]
pub struct NodeRef<'a> {
    pub(super) bytes: &'a NodePage,
    pub(super) head: NodeHead,
}

#[derive(Clone, Copy, Debug)]
pub struct NodeRecord<'a> {
    pub header: Header,
    pub key: &'a [u8],
    /// The value as stored, or the reference to it.
    pub stored: &'a [u8],
    /// The record's offset in the page, and its length there.
    pub(super) at: usize,
    pub(super) bytes: usize,
}

impl<'a> NodeRecord<'a> {
    pub fn stored_at(&self) -> usize {
        self.at + self.bytes - self.stored.len()
    }

    /// Bytes that it takes in the node, without its slot.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The reference to the value, if it is in an extension.
    ///
    /// # Errors
    /// [`NodeError::Damaged`] when the stored bytes are no reference.
    pub fn extension(&self) -> Result<Option<ExtensionReference>, NodeError> {
        if self.header.codec != Codec::OutOfLine {
            return Ok(None);
        }
        ExtensionReference::parse(self.stored).map(Some).map_err(|_| NodeError::Damaged)
    }
}

impl<'a> NodeRef<'a> {
    /// Reads a node as it came from flash, and checks all of it: the checksum, every record, its fingerprint, and that
    /// its key lies between the fences.
    ///
    /// # Errors
    /// When the page is no such node, or is damaged.
    pub fn check(bytes: &'a [u8], salt: SlotSalt) -> Result<NodeRef<'a>, NodeError> {
        let node = NodeRef::sealed(bytes, salt)?;
        node.check_content()?;
        Ok(node)
    }

    /// Reads a node as it came from flash, and checks its checksum alone: it is what was sealed, as far as that tells. A damaged record is an
    /// error for the caller that reaches it.
    ///
    /// # Errors
    /// When the page is no such node.
    pub fn sealed(bytes: &'a [u8], salt: SlotSalt) -> Result<NodeRef<'a>, NodeError> {
        let page: &NodePage = bytes.try_into().map_err(|_| NodeError::Damaged)?;
        if crc_of(page) != checksum(salt.of_node(), &[covered(page)]) {
            let is_blank = page.iter().all(|byte| *byte == 0);
            return Err(if is_blank { NodeError::Blank } else { NodeError::Checksum });
        }
        NodeRef::look(bytes)
    }

    /// Reads a node that was checked when it came from flash and has been in memory since. Neither the checksum nor the
    /// records are checked: a damaged record is an error for the caller that reaches it.
    ///
    /// # Errors
    /// When the head is inconsistent.
    #[inline]
    pub fn look(bytes: &'a [u8]) -> Result<NodeRef<'a>, NodeError> {
        let bytes: &NodePage = bytes.try_into().map_err(|_| NodeError::Damaged)?;
        Ok(NodeRef { bytes, head: NodeHead::parse(bytes)? })
    }

    fn check_content(&self) -> Result<(), NodeError> {
        let mut live = 0;
        if self.high_fence().is_some_and(|high| high <= self.low_fence()) {
            return Err(NodeError::Damaged);
        }
        for slot in 0..self.head.count {
            let record = self.record(slot)?;
            let is_right = record.bytes == super::node_record_bytes(&record.header)
                && record.bytes <= NODE_RECORD_BYTES_MAX
                && self.bytes[fingerprint_at(slot)] == fingerprint(record.key)
                && self.covers(record.key);
            if !is_right {
                return Err(NodeError::Damaged);
            }
            record.extension()?;
            live += record.bytes;
        }
        if live == self.head.live_bytes() { Ok(()) } else { Err(NodeError::Damaged) }
    }

    pub fn keyspace(&self) -> u16 {
        self.head.keyspace
    }

    pub fn id(&self) -> u64 {
        self.head.id
    }

    /// The stamp of the image: the store's when the image was sealed.
    pub fn stamp(&self) -> u64 {
        self.head.seal.stamp
    }

    /// All stamps up to this one were durable when the image was made.
    pub fn durable(&self) -> u64 {
        self.head.seal.durable
    }

    /// The number of images with stamps up to [`NodeRef::durable`] that were written to the keyspace's slots since the
    /// manifest last named them; 0: nobody counted.
    pub fn round_images(&self) -> u32 {
        self.head.seal.round_images
    }

    /// The number of records.
    pub fn count(&self) -> usize {
        self.head.count
    }

    pub fn is_empty(&self) -> bool {
        self.head.count == 0
    }

    /// The first key that the node covers; empty if there is no lower key.
    pub fn low_fence(&self) -> &'a [u8] {
        &self.bytes[NODE_BYTES - self.head.low_bytes..]
    }

    /// The first key that the node does not cover, if there is one.
    pub fn high_fence(&self) -> Option<&'a [u8]> {
        let from = self.head.records_end();
        self.head.high_bytes.map(|length| &self.bytes[from..from + length])
    }

    /// Whether the key belongs in this node.
    #[inline]
    pub fn covers(&self, key: &[u8]) -> bool {
        self.low_fence() <= key && self.high_fence().is_none_or(|high| key < high)
    }

    /// Bytes of all records.
    pub fn live_bytes(&self) -> usize {
        self.head.live_bytes()
    }

    /// Bytes of head, slots, records and fences.
    pub fn used_bytes(&self) -> usize {
        slots_end(self.head.count) + self.head.live_bytes() + (NODE_BYTES - self.head.records_end())
    }

    /// Bytes that records may still take, after compaction.
    pub fn free_bytes(&self) -> usize {
        self.head.gap_bytes() + self.head.dead
    }

    /// Whether a record of so many bytes can be put under `key`, which the node covers.
    ///
    /// # Errors
    /// As [`NodeRef::get`].
    pub fn has_room(&self, key: &[u8], record_bytes: usize) -> Result<bool, NodeError> {
        let free = self.free_bytes();
        Ok(match self.find(key)? {
            Some((_, old)) => record_bytes <= free + old.bytes,
            None => {
                let count = self.head.count;
                let slot_bytes = slots_end(count + 1) - slots_end(count);
                count < NODE_SLOTS_MAX && record_bytes + slot_bytes <= free
            }
        })
    }

    /// The record of `key`, if there is one.
    ///
    /// # Errors
    /// [`NodeError::Damaged`] when a record on the way to it is inconsistent.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<NodeRecord<'a>>, NodeError> {
        Ok(self.find(key)?.map(|(_, record)| record))
    }

    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Result<Option<(usize, NodeRecord<'a>)>, NodeError> {
        let wanted = fingerprint(key);
        for first in (0..self.head.count).step_by(FINGERPRINTS) {
            let mut found = self.matches(first, wanted);
            while found != 0 {
                let slot = first + found.trailing_zeros() as usize;
                let record = self.record(slot)?;
                if record.key == key {
                    return Ok(Some((slot, record)));
                }
                found &= found - 1;
            }
        }
        Ok(None)
    }

    /// The slots that have a fingerprint, a bit each, of the block that begins at `first`.
    #[inline]
    fn matches(&self, first: usize, wanted: u8) -> u32 {
        let Some(fingerprints) = self.bytes[fingerprint_at(first)..].first_chunk() else { return 0 };
        let in_use = (1_u32 << (self.head.count - first).min(FINGERPRINTS)) - 1;
        matches(fingerprints, wanted) & in_use
    }

    /// The record in a slot below [`NodeRef::count`]. Slots are in no order.
    ///
    /// # Errors
    /// [`NodeError::Damaged`] when the record is inconsistent, or when there is no such slot.
    #[inline]
    pub fn record(&self, slot: usize) -> Result<NodeRecord<'a>, NodeError> {
        if slot >= self.head.count {
            return Err(NodeError::Damaged);
        }
        self.record_at(u16_at(self.bytes, offset_at(slot)))
    }

    #[inline]
    pub(super) fn record_at(&self, at: usize) -> Result<NodeRecord<'a>, NodeError> {
        if at < self.head.heap {
            return Err(NodeError::Damaged);
        }
        // The header is parsed as if its crc were there, which parsing does not check.
        let bytes = self.bytes.get(at - CRC_BYTES..self.head.records_end()).ok_or(NodeError::Damaged)?;
        let (header, key_at) = Header::parse(bytes).map_err(|_| NodeError::Damaged)?;
        let (key_bytes, stored_bytes) = (header.key_bytes as usize, header.stored_bytes as usize);
        let stored_at = key_at + key_bytes;
        let is_right = header.kind == Kind::Value
            && header.keyspace == 0
            && key_bytes <= NODE_KEY_BYTES_MAX
            && (header.codec != Codec::OutOfLine || stored_bytes == REFERENCE_BYTES);
        match (bytes.get(key_at..stored_at), bytes.get(stored_at..stored_at + stored_bytes)) {
            (Some(key), Some(stored)) if is_right => {
                Ok(NodeRecord { header, key, stored, at, bytes: stored_at + stored_bytes - CRC_BYTES })
            }
            _ => Err(NodeError::Damaged),
        }
    }

    /// All records, in no order.
    pub fn records(self) -> impl Iterator<Item = Result<NodeRecord<'a>, NodeError>> {
        (0..self.head.count).map(move |slot| self.record(slot))
    }

    /// The extensions that its records name, each with the bytes of its key.
    pub fn extensions(self) -> impl Iterator<Item = Result<(ExtensionReference, usize), NodeError>> {
        let of_record = |record: NodeRecord<'_>| record.extension().map(|named| Some((named?, record.key.len())));
        self.records().filter_map(move |record| record.and_then(of_record).transpose())
    }

    /// The offset in the page at which the record of a key seems to begin. It is unchecked, so it is only a hint.
    pub fn record_hint(&self, key: &[u8]) -> Option<usize> {
        let wanted = fingerprint(key);
        let mut blocks = (0..self.head.count).step_by(FINGERPRINTS);
        blocks.find_map(|first| match self.matches(first, wanted) {
            0 => None,
            found => Some(u16_at(self.bytes, offset_at(first + found.trailing_zeros() as usize))),
        })
    }
}
