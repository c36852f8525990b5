//! The node table: the place of each data node's newest durable image.
//!
//! ```text
//! node id ─► chunk ─► slot u32 · stamp u64 · bytes used u8        13 bytes a node
//! ```
//! 1. A node's entry is read and written under the lock of its set of the mirror cache, as its two words belong together.
//! 2. An entry without a slot belongs to a node that was never durable or does not exist any more.
//! 3. A freed id is reused. A holder of the old id then finds another stamp or keyspace, or fences that do not cover the key.
//! 4. The bytes that a node uses are noted for merges, without a lock. A merge checks them in the page.
//!
//! Threads: any.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use tapetum_base::media::io::lock;
use tapetum_kernels::ordered::NODE_BYTES;

const CHUNK_NODES: usize = 1 << 14;
const NO_SLOT: u32 = u32::MAX;
/// The unit of the bytes used.
const USED_UNIT: usize = NODE_BYTES / 256;
/// The bytes used were never noted.
const USED_UNKNOWN: u8 = 0;

/// The number of a data node, which the search layer holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

/// The newest durable image of a node: the number of its slot, and its stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeHome {
    pub slot: u32,
    pub stamp: u64,
}

/// A node, and its newest durable image.
#[derive(Clone, Copy)]
pub struct HomedNode {
    pub node: NodeId,
    pub home: NodeHome,
}

struct NodeChunk {
    slots: Box<[AtomicU32]>,
    stamps: Box<[AtomicU64]>,
    used: Box<[AtomicU8]>,
}

impl NodeChunk {
    fn new() -> NodeChunk {
        NodeChunk {
            slots: (0..CHUNK_NODES).map(|_| AtomicU32::new(NO_SLOT)).collect(),
            stamps: (0..CHUNK_NODES).map(|_| AtomicU64::new(0)).collect(),
            used: (0..CHUNK_NODES).map(|_| AtomicU8::new(USED_UNKNOWN)).collect(),
        }
    }
}

#[derive(Default)]
struct FreeIds {
    freed: Vec<u32>,
    /// Ids from this one on were never given.
    next: u32,
}

pub struct NodeTable {
    chunks: Box<[OnceLock<NodeChunk>]>,
    free: Mutex<FreeIds>,
}

impl NodeTable {
    /// A table for at most `nodes_max` nodes.
    pub fn new(nodes_max: u32) -> NodeTable {
        let chunks = (nodes_max as usize).div_ceil(CHUNK_NODES).max(1);
        NodeTable { chunks: (0..chunks).map(|_| OnceLock::new()).collect(), free: Mutex::default() }
    }

    /// Takes an unused id. `None`: there are as many nodes as there may be.
    pub fn give(&self) -> Option<NodeId> {
        let mut free = lock(&self.free);
        if let Some(id) = free.freed.pop() {
            return Some(NodeId(id));
        }
        let id = free.next;
        if id as usize >= self.chunks.len() * CHUNK_NODES {
            return None;
        }
        free.next += 1;
        Some(NodeId(id))
    }

    /// Whether there are as many nodes as there may be.
    pub fn is_full(&self) -> bool {
        let free = lock(&self.free);
        free.freed.is_empty() && free.next as usize >= self.chunks.len() * CHUNK_NODES
    }

    /// Frees the id of a node that no longer exists and that nothing leads to. The lock of its set is held.
    pub fn free(&self, node: NodeId) {
        let chunk = self.chunk(node);
        chunk.slots[place(node)].store(NO_SLOT, Ordering::Relaxed);
        chunk.used[place(node)].store(USED_UNKNOWN, Ordering::Relaxed);
        lock(&self.free).freed.push(node.0);
    }

    fn chunk(&self, NodeId(id): NodeId) -> &NodeChunk {
        self.chunks[id as usize / CHUNK_NODES].get_or_init(NodeChunk::new)
    }

    pub fn home(&self, node: NodeId) -> Option<NodeHome> {
        let chunk = self.chunk(node);
        let slot = chunk.slots[place(node)].load(Ordering::Relaxed);
        (slot != NO_SLOT).then(|| NodeHome { slot, stamp: chunk.stamps[place(node)].load(Ordering::Relaxed) })
    }

    pub fn set(&self, node: NodeId, home: NodeHome) {
        let chunk = self.chunk(node);
        chunk.stamps[place(node)].store(home.stamp, Ordering::Relaxed);
        chunk.slots[place(node)].store(home.slot, Ordering::Relaxed);
    }

    /// Notes the bytes that a node uses. Returns whether they became fewer or were unknown.
    pub fn note_used(&self, node: NodeId, bytes: usize) -> bool {
        let used = (bytes / USED_UNIT).clamp(1, u8::MAX.into()) as u8;
        let noted = &self.chunk(node).used[place(node)];
        let before = noted.load(Ordering::Relaxed);
        if used != before {
            noted.store(used, Ordering::Relaxed);
        }
        before == USED_UNKNOWN || used < before
    }

    /// The bytes that a node uses, rounded down to 16; half a node if unknown.
    pub fn used_bytes(&self, node: NodeId) -> usize {
        self.used_bytes_known(node).unwrap_or(NODE_BYTES / 2)
    }

    /// The bytes that a node uses, rounded down to 16, if they were noted since the store was opened.
    pub fn used_bytes_known(&self, node: NodeId) -> Option<usize> {
        match self.chunk(node).used[place(node)].load(Ordering::Relaxed) {
            USED_UNKNOWN => None,
            used => Some(usize::from(used) * USED_UNIT),
        }
    }

    /// The room that a node has left, rounded up to 16; all of a node if unknown.
    pub fn room_bytes(&self, node: NodeId) -> usize {
        match self.chunk(node).used[place(node)].load(Ordering::Relaxed) {
            USED_UNKNOWN => NODE_BYTES,
            used => NODE_BYTES - usize::from(used) * USED_UNIT,
        }
    }

    /// The room that a node has left at least; none if unknown.
    pub fn room_bytes_known(&self, node: NodeId) -> usize {
        match self.chunk(node).used[place(node)].load(Ordering::Relaxed) {
            USED_UNKNOWN => 0,
            used => (NODE_BYTES - usize::from(used) * USED_UNIT).saturating_sub(USED_UNIT),
        }
    }

    pub fn count(&self) -> u32 {
        let free = lock(&self.free);
        free.next - free.freed.len() as u32
    }

    /// Bytes of the table in memory.
    pub fn bytes(&self) -> usize {
        let chunks = self.chunks.iter().filter(|chunk| chunk.get().is_some()).count();
        chunks * CHUNK_NODES * (size_of::<AtomicU32>() + size_of::<AtomicU64>() + size_of::<AtomicU8>())
            + lock(&self.free).freed.capacity() * size_of::<u32>()
            + size_of_val(&*self.chunks)
    }
}

fn place(NodeId(id): NodeId) -> usize {
    id as usize % CHUNK_NODES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_given_once_until_they_are_freed() {
        let table = NodeTable::new(CHUNK_NODES as u32);
        let all: Vec<NodeId> = std::iter::from_fn(|| table.give()).collect();
        assert_eq!(all, (0..CHUNK_NODES as u32).map(NodeId).collect::<Vec<_>>());
        assert!(table.is_full());
        table.free(NodeId(7));
        assert!(!table.is_full());
        assert_eq!((table.give(), table.give(), table.count()), (Some(NodeId(7)), None, CHUNK_NODES as u32));
    }

    #[test]
    fn what_a_node_uses_is_half_of_it_before_it_is_noted_and_after_it_is_freed() {
        let table = NodeTable::new(1 << 20);
        let node = table.give().unwrap();
        assert_eq!(table.used_bytes(node), NODE_BYTES / 2);
        assert_eq!(
            [3000, 3001, 1000, 0, NODE_BYTES].map(|bytes| table.note_used(node, bytes)),
            [true, false, true, true, false]
        );
        assert_eq!(table.used_bytes(node), NODE_BYTES - USED_UNIT);
        table.free(node);
        assert_eq!(table.used_bytes(node), NODE_BYTES / 2);
    }

    #[test]
    fn a_node_has_no_home_before_it_is_durable_and_after_it_is_freed() {
        let table = NodeTable::new(1 << 20);
        let (node, home) = (table.give().unwrap(), NodeHome { slot: 9, stamp: 1 << 40 });
        assert_eq!(table.home(node), None);
        table.set(node, home);
        assert_eq!(table.home(node), Some(home));
        table.free(node);
        assert_eq!((table.home(node), table.count()), (None, 0));
    }
}
