//! A node that is changed in place. Sealing it makes its checksum right again.

use super::extension::ExtensionReference;
use super::fingerprint::fingerprint;
use super::layout::{
    CRC_BYTES, ImageSeal, NodeHead, covered, fingerprint_at, offset_at, put_crc, put_u16, slots_end, u16_at,
};
use super::{
    NODE_BYTES, NODE_KEY_BYTES_MAX, NODE_RECORD_BYTES_MAX, NODE_SLOTS_MAX, NodeError, NodePage, NodeRecord, NodeRef,
    SlotSalt, node_record_bytes,
};
use crate::checksum::checksum;
use crate::record::{Codec, HEADER_BYTES_MAX, Kind, Record};

/// A node whose head is consistent, and that nobody else reads.
pub struct NodeMut<'a> {
    bytes: &'a mut NodePage,
    head: NodeHead,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewNode<'k> {
    pub keyspace: u16,
    pub id: u64,
    pub low_fence: &'k [u8],
    /// `None`: the node covers all keys from the low fence on.
    pub high_fence: Option<&'k [u8]>,
}

/// A record that was replaced or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplacedRecord {
    pub stamp: u64,
    /// The reference to its value, if it is in an extension. The extension is dead once the node is durable.
    pub extension: Option<ExtensionReference>,
}

impl ReplacedRecord {
    fn of(record: &NodeRecord<'_>) -> Result<ReplacedRecord, NodeError> {
        Ok(ReplacedRecord { stamp: record.header.stamp, extension: record.extension()? })
    }
}

impl<'a> NodeMut<'a> {
    /// Makes an empty node, under stamp 0.
    ///
    /// # Errors
    /// [`NodeError::Unfit`] when there is no key between the fences, or one of them is longer than a key.
    pub fn format(bytes: &'a mut NodePage, node: &NewNode<'_>) -> Result<NodeMut<'a>, NodeError> {
        let NewNode { keyspace, id, low_fence, high_fence } = *node;
        let high = high_fence.unwrap_or(&[]);
        let is_range = high_fence.is_none_or(|high| low_fence < high);
        if !is_range || low_fence.len().max(high.len()) > NODE_KEY_BYTES_MAX {
            return Err(NodeError::Unfit);
        }
        let (low_bytes, high_bytes) = (low_fence.len(), high_fence.map(<[u8]>::len));
        let mut head =
            NodeHead { keyspace, id, seal: ImageSeal::default(), count: 0, heap: 0, dead: 0, low_bytes, high_bytes };
        let end = head.records_end();
        head.heap = end;
        bytes[..end].fill(0);
        bytes[end..end + high.len()].copy_from_slice(high);
        bytes[end + high.len()..].copy_from_slice(low_fence);
        head.encode(bytes);
        Ok(NodeMut { bytes, head })
    }

    /// Like [`NodeRef::look`], for changes.
    ///
    /// # Errors
    /// When the head is inconsistent.
    pub fn look(bytes: &'a mut [u8]) -> Result<NodeMut<'a>, NodeError> {
        let bytes: &mut NodePage = bytes.try_into().map_err(|_| NodeError::Damaged)?;
        let head = NodeHead::parse(bytes)?;
        Ok(NodeMut { bytes, head })
    }

    #[inline]
    pub fn view(&self) -> NodeRef<'_> {
        NodeRef { bytes: self.bytes, head: self.head }
    }

    /// Stores a record, in place of the record with its key if there is one. The header's keyspace is 0: the node has
    /// it.
    ///
    /// # Errors
    /// [`NodeError::NoRoom`] when the record does not fit; other errors when it belongs in no node, or not in this one.
    /// The node is unchanged then. If the node is damaged, its records may be lost.
    pub fn put(&mut self, record: &Record<'_>) -> Result<Option<ReplacedRecord>, NodeError> {
        let Record { header, key, stored } = record;
        let bytes = node_record_bytes(header);
        let is_record = header.kind == Kind::Value
            && header.keyspace == 0
            && (1..=NODE_KEY_BYTES_MAX).contains(&key.len())
            && (key.len(), stored.len()) == (header.key_bytes as usize, header.stored_bytes as usize)
            && bytes <= NODE_RECORD_BYTES_MAX
            && (header.codec != Codec::OutOfLine || ExtensionReference::parse(stored).is_ok());
        if !is_record {
            return Err(NodeError::Unfit);
        }
        if !self.view().covers(key) {
            return Err(NodeError::OutsideFences);
        }
        let found = self.view().find(key)?.map(|(slot, old)| Ok((slot, old.at, old.bytes, ReplacedRecord::of(&old)?)));
        let Some((slot, old_at, old_bytes, replaced)) = found.transpose()? else {
            self.insert(record, bytes)?;
            return Ok(None);
        };
        if bytes <= old_bytes {
            self.write(old_at, record);
            self.add_dead(old_bytes - bytes);
        } else if self.head.gap_bytes() >= bytes {
            self.release(old_at, old_bytes);
            self.write_to_heap(slot, record, bytes);
        } else if self.head.gap_bytes() + self.head.dead + old_bytes >= bytes {
            self.compact_without(Some(slot))?;
            // Only a damaged page gets here: its head says that there is room.
            if self.head.gap_bytes() < bytes {
                return Err(NodeError::Damaged);
            }
            self.write_to_heap(slot, record, bytes);
        } else {
            return Err(NodeError::NoRoom);
        }
        self.head.encode_counts(self.bytes);
        Ok(Some(replaced))
    }

    fn insert(&mut self, record: &Record<'_>, bytes: usize) -> Result<(), NodeError> {
        let slot = self.head.count;
        let needed = slots_end(slot + 1) + bytes;
        if slot == NODE_SLOTS_MAX || needed > self.head.heap + self.head.dead {
            return Err(NodeError::NoRoom);
        }
        if needed > self.head.heap {
            self.compact_without(None)?;
        }
        // Only a damaged page gets here: its head says that there is room.
        if needed > self.head.heap {
            return Err(NodeError::Damaged);
        }
        self.bytes[fingerprint_at(slot)] = fingerprint(record.key);
        self.head.count += 1;
        self.write_to_heap(slot, record, bytes);
        self.head.encode_counts(self.bytes);
        Ok(())
    }

    fn write_to_heap(&mut self, slot: usize, record: &Record<'_>, bytes: usize) {
        self.head.heap -= bytes;
        put_u16(self.bytes, offset_at(slot), self.head.heap);
        self.write(self.head.heap, record);
    }

    fn write(&mut self, at: usize, record: &Record<'_>) {
        let mut head = [0; HEADER_BYTES_MAX];
        let key_at = at + record.header.encode(&mut head) - CRC_BYTES;
        let stored_at = key_at + record.key.len();
        self.bytes[at..key_at].copy_from_slice(&head[CRC_BYTES..CRC_BYTES + key_at - at]);
        self.bytes[key_at..stored_at].copy_from_slice(record.key);
        self.bytes[stored_at..stored_at + record.stored.len()].copy_from_slice(record.stored);
    }

    /// Frees a record's bytes.
    fn release(&mut self, at: usize, bytes: usize) {
        if at == self.head.heap {
            self.head.heap += bytes;
            self.add_dead(0);
        } else {
            self.add_dead(bytes);
        }
    }

    /// Counts no more dead bytes than there are: records of a damaged page overlap, and their bytes are freed twice.
    fn add_dead(&mut self, bytes: usize) {
        self.head.dead = (self.head.dead + bytes).min(self.head.records_end() - self.head.heap);
    }

    /// Removes the record of `key`, if there is one.
    ///
    /// # Errors
    /// As [`NodeRef::get`].
    pub fn remove(&mut self, key: &[u8]) -> Result<Option<ReplacedRecord>, NodeError> {
        let found = self.view().find(key)?.map(|(slot, old)| Ok((slot, old.at, old.bytes, ReplacedRecord::of(&old)?)));
        let Some((slot, at, bytes, removed)) = found.transpose()? else { return Ok(None) };
        self.remove_slot(slot, at, bytes);
        self.head.encode_counts(self.bytes);
        Ok(Some(removed))
    }

    fn remove_slot(&mut self, slot: usize, at: usize, bytes: usize) {
        let last = self.head.count - 1;
        self.bytes[fingerprint_at(slot)] = self.bytes[fingerprint_at(last)];
        let offset = u16_at(self.bytes, offset_at(last));
        put_u16(self.bytes, offset_at(slot), offset);
        self.head.count = last;
        self.release(at, bytes);
    }

    /// Removes the records that `keep` rejects, and passes each to `removed`.
    ///
    /// # Errors
    /// [`NodeError::Damaged`] when a record is inconsistent; the records before it are removed.
    pub fn retain(
        &mut self,
        keep: impl Fn(&NodeRecord<'_>) -> bool,
        mut removed: impl FnMut(ReplacedRecord),
    ) -> Result<(), NodeError> {
        // Goes from the last slot on, so that the slot that takes a removed one's place was already checked.
        for slot in (0..self.head.count).rev() {
            let record = self.view().record(slot)?;
            if !keep(&record) {
                let (at, bytes) = (record.at, record.bytes);
                removed(ReplacedRecord::of(&record)?);
                self.remove_slot(slot, at, bytes);
                self.head.encode_counts(self.bytes);
            }
        }
        Ok(())
    }

    /// Moves the records together, so that no dead bytes are between them.
    ///
    /// # Errors
    /// [`NodeError::Damaged`] when a record is inconsistent.
    pub fn compact(&mut self) -> Result<(), NodeError> {
        self.compact_without(None)?;
        self.head.encode_counts(self.bytes);
        Ok(())
    }

    /// Like [`NodeMut::compact`], but the slot `without` keeps its place and loses its record.
    fn compact_without(&mut self, without: Option<usize>) -> Result<(), NodeError> {
        let before: NodePage = *self.bytes;
        let node = NodeRef { bytes: &before, head: self.head };
        let first = slots_end(self.head.count);
        let mut heap = self.head.records_end();
        for slot in (0..self.head.count).filter(|slot| Some(*slot) != without) {
            let record = node.record(slot)?;
            // Overlapping records have more bytes than there is room.
            let at = heap.checked_sub(record.bytes).filter(|at| *at >= first).ok_or(NodeError::Damaged)?;
            self.bytes[at..heap].copy_from_slice(&before[record.at..record.at + record.bytes]);
            put_u16(self.bytes, offset_at(slot), at);
            heap = at;
        }
        self.bytes[first..heap].fill(0);
        (self.head.heap, self.head.dead) = (heap, 0);
        Ok(())
    }

    /// Appends a record of another node unchanged. It does not look for the record's key.
    pub(super) fn append(&mut self, record: &NodeRecord<'_>, from: &NodePage) -> Result<(), NodeError> {
        let slot = self.head.count;
        if slot == NODE_SLOTS_MAX || slots_end(slot + 1) + record.bytes > self.head.heap {
            return Err(NodeError::NoRoom);
        }
        self.head.heap -= record.bytes;
        let at = self.head.heap;
        self.bytes[at..at + record.bytes].copy_from_slice(&from[record.at..record.at + record.bytes]);
        self.bytes[fingerprint_at(slot)] = fingerprint(record.key);
        put_u16(self.bytes, offset_at(slot), at);
        self.head.count += 1;
        self.head.encode_counts(self.bytes);
        Ok(())
    }

    /// Gives the image its stamps, and the checksum for the slot that it will be written to.
    pub fn seal(&mut self, salt: SlotSalt, seal: ImageSeal) {
        self.head.seal = seal;
        self.head.encode_seal(self.bytes);
        let crc = checksum(salt.of_node(), &[covered(self.bytes)]);
        put_crc(self.bytes, crc);
    }
}

const _: () = assert!(NODE_BYTES <= u16::MAX as usize, "offsets are of two bytes");
