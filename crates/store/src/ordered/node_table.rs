//! The node table: where the newest durable image of each data node is.
//!
//! ```text
//! node id ─► chunk ─► slot u32 · stamp u64        12 bytes a node
//! ```
//! 1. A node's entry is read and written with the lock of its set of the mirror cache held; its two words belong together.
//! 2. An entry without a slot is of a node that was never durable, or is none any more.
//! 3. An id is given again after it was freed. Whoever kept the old one finds another stamp, or another keyspace, or fences that do not
//!    cover his key.
//!
//! Threads: any.

use crate::media::io::lock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

const CHUNK_NODES: usize = 1 << 14;
const NO_SLOT: u32 = u32::MAX;

/// A data node, as the search layer names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

/// The newest durable image of a node: the number of its slot, and its stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeHome {
    pub slot: u32,
    pub stamp: u64,
}

struct NodeChunk {
    slots: Box<[AtomicU32]>,
    stamps: Box<[AtomicU64]>,
}

impl NodeChunk {
    fn new() -> NodeChunk {
        NodeChunk {
            slots: (0..CHUNK_NODES).map(|_| AtomicU32::new(NO_SLOT)).collect(),
            stamps: (0..CHUNK_NODES).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

#[derive(Default)]
struct FreeIds {
    freed: Vec<u32>,
    /// No id from this one on was ever given.
    next: u32,
}

pub struct NodeTable {
    chunks: Box<[OnceLock<NodeChunk>]>,
    free: Mutex<FreeIds>,
}

impl NodeTable {
    /// A table for so many nodes at most.
    pub fn new(nodes_max: u32) -> NodeTable {
        let chunks = (nodes_max as usize).div_ceil(CHUNK_NODES).max(1);
        NodeTable { chunks: (0..chunks).map(|_| OnceLock::new()).collect(), free: Mutex::default() }
    }

    /// An id that no node has. `None`: there are as many nodes as there may be.
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

    /// The node is none any more, and nothing leads to it. With the lock of its set held.
    pub fn free(&self, node: NodeId) {
        self.chunk(node).slots[place(node)].store(NO_SLOT, Ordering::Relaxed);
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

    /// Nodes that there are.
    pub fn count(&self) -> u32 {
        let free = lock(&self.free);
        free.next - free.freed.len() as u32
    }

    /// Bytes that it takes in memory.
    pub fn bytes(&self) -> usize {
        let chunks = self.chunks.iter().filter(|chunk| chunk.get().is_some()).count();
        chunks * CHUNK_NODES * (size_of::<AtomicU32>() + size_of::<AtomicU64>())
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
