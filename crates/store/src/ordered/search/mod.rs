//! The search layer: an adaptive radix tree in host memory, from anchor keys to the caller's words (data nodes).
//!
//! The main query is [`SearchHandle::floor`]: it finds the data node in whose range a key lies. That is the node of the greatest anchor not above
//! the key. The empty key is always an anchor, so there is one.
//!
//! ```text
//! SearchHandle ─► SearchTree: nodes (node, leaf) ─► blocks of atomic words (blocks) ─► chunks (tree_memory)
//!   pins itself (epochs)      queries, changes, locks
//! ```
//!
//! Invariants:
//! 1. The path of bytes to a node or leaf never changes during its life (`node`, 1). To change a prefix, a kind or a leaf's key, a change copies the
//!    node and makes its parent's slot lead to the copy.
//! 2. The root is a Node256 without a prefix, and is never replaced. Every other node has at least two entries: children
//!    and terminator.
//! 3. A block is retired after the last slot that led to it was changed, and reused when no handle can see it (`epochs`).
//! 4. A replaced node is marked obsolete before its lock is released. A change that locks it later starts again.
//! 5. Nothing recurses. A walk takes at most one step for each byte of a key.
//!
//! # Threads
//! Any number of handles, up to the tree's limit, each used by one thread at a time. Queries take no lock and wait for nobody. Changes lock the one
//! to three nodes that they store into, parents first (ROWEX); then, for blocks, the allocator's lock. A change that finds another tree than it
//! walked through starts again.
//!
//! A query concurrent with changes sees every anchor that exists during the whole query, and each anchor that it sees existed at some moment of it.
//! So `floor`, `next` and `previous` skip no anchor that stays. They are no snapshot: `floor` may return an anchor whose range ended while it ran.
//! The caller compares the key with the data node's fences, and retries.

mod anchor_key;
mod blocks;
mod change;
mod epochs;
mod leaf;
mod match16;
mod node;
mod node_locks;
mod query;
mod search_error;
mod tree_memory;

#[cfg(test)]
mod models;
#[cfg(test)]
mod stress;
#[cfg(test)]
mod test_memory;
#[cfg(test)]
mod tests;

pub use anchor_key::AnchorKey;
pub use change::AnchorChange;
pub use search_error::SearchError;
pub use tree_memory::{Exclusive, MappedMemory, TreeMemory};

use blocks::{Blocks, Purpose};
use node::{NodeImage, NodeKind, NodeView};
use query::QueryPath;
use std::sync::Arc;
use tapetum_base::memory::region::Account;

/// The longest anchor.
pub const KEY_BYTES_MAX: usize = 1024;

/// The root's block, which is claimed first.
const ROOT: u32 = blocks::FIRST;

/// A reference to a leaf or a node: the index of its block's first word, and a bit for which of them it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TreeRef(u32);

impl TreeRef {
    const NONE: TreeRef = TreeRef(0);

    fn leaf(index: u32) -> TreeRef {
        TreeRef(index << 1 | 1)
    }

    fn node(index: u32) -> TreeRef {
        TreeRef(index << 1)
    }

    fn is_none(self) -> bool {
        self == TreeRef::NONE
    }

    fn is_leaf(self) -> bool {
        self.0 & 1 == 1
    }

    fn index(self) -> u32 {
        self.0 >> 1
    }
}

#[derive(Clone, Copy, Debug)]
pub struct SearchLimits {
    /// Bytes of chunks, rounded down to whole chunks, at least one. Removals may take one more.
    pub bytes_max: usize,
    /// Handles at the same time. Each takes a cache line.
    pub handles_max: usize,
}

/// The tree. Handles query and change it.
pub struct SearchTree<M: TreeMemory = MappedMemory> {
    blocks: Blocks<M>,
}

impl SearchTree {
    /// A tree with one anchor, the empty key, in mapped memory that `account` counts.
    pub fn new(limits: SearchLimits, leftmost_value: u64, account: &Account) -> Result<Arc<SearchTree>, SearchError> {
        SearchTree::over(MappedMemory { account: account.clone() }, limits, leftmost_value)
    }
}

impl<M: TreeMemory> SearchTree<M> {
    /// A tree with one anchor, the empty key.
    pub fn over(memory: M, limits: SearchLimits, leftmost_value: u64) -> Result<Arc<SearchTree<M>>, SearchError> {
        let blocks = Blocks::new(memory, limits.bytes_max, limits.handles_max)?;
        let mut image = NodeImage::new(&[]);
        let words = [node::words_for(NodeKind::Node256, 0), leaf::words_for(0)];
        let [root, leftmost] = blocks.claim(words, 0, Purpose::Insert)?;
        assert_eq!(root, ROOT, "the first block of an empty tree");
        leaf::write(blocks.words(leftmost), b"", leftmost_value);
        image.terminator = TreeRef::leaf(leftmost);
        image.write_as(NodeKind::Node256, blocks.words(root));
        Ok(Arc::new(SearchTree { blocks }))
    }

    /// A handle, for one thread at a time.
    pub fn handle(self: &Arc<Self>) -> Result<SearchHandle<M>, SearchError> {
        let path = QueryPath::new()?;
        let number = self.blocks.register()?;
        Ok(SearchHandle { tree: self.clone(), number, path })
    }

    /// The number of anchors, including the empty key.
    pub fn anchors(&self) -> u64 {
        self.blocks.anchors()
    }

    /// Bytes of all memory of the tree: chunks, whether their blocks are in use or free, and tables.
    pub fn bytes(&self) -> usize {
        self.blocks.bytes()
    }

    /// Bytes of nodes and leaves, including retired ones.
    pub fn bytes_used(&self) -> usize {
        self.blocks.bytes_used()
    }

    #[inline(always)]
    fn node(&self, index: u32) -> NodeView<'_, M::Word> {
        NodeView::new(self.blocks.words(index))
    }

    #[inline(always)]
    fn leaf_words(&self, leaf: TreeRef) -> &[M::Word] {
        debug_assert!(leaf.is_leaf());
        self.blocks.words(leaf.index())
    }
}

/// Access to a tree for queries and changes.
pub struct SearchHandle<M: TreeMemory = MappedMemory> {
    tree: Arc<SearchTree<M>>,
    number: usize,
    path: QueryPath,
}

impl<M: TreeMemory> SearchHandle<M> {
    /// The value of an anchor.
    pub fn lookup(&mut self, key: &[u8]) -> Option<u64> {
        let _pin = self.tree.blocks.pin(self.number);
        self.tree.lookup(key)
    }

    /// The least number of nodes that a query for a key passes.
    pub fn depth(&mut self, key: &[u8]) -> u32 {
        let _pin = self.tree.blocks.pin(self.number);
        self.tree.depth(key)
    }

    /// Finds the greatest anchor not above `key`, which may have any length. Returns its value.
    pub fn floor(&mut self, key: &[u8], anchor: &mut AnchorKey) -> u64 {
        let _pin = self.tree.blocks.pin(self.number);
        let leaf = self.tree.at_most(&mut self.path, key, true).expect("the empty key is an anchor");
        self.tree.read_leaf(leaf, anchor)
    }

    /// Finds the greatest anchor. Returns its value.
    pub fn last(&mut self, anchor: &mut AnchorKey) -> u64 {
        let _pin = self.tree.blocks.pin(self.number);
        let leaf = self.tree.last(&mut self.path).expect("the empty key is an anchor");
        self.tree.read_leaf(leaf, anchor)
    }

    /// Moves `anchor` to the next greater anchor, if there is one. It need not be an anchor itself.
    pub fn next(&mut self, anchor: &mut AnchorKey) -> Option<u64> {
        let _pin = self.tree.blocks.pin(self.number);
        let leaf = self.tree.above(&mut self.path, anchor)?;
        Some(self.tree.read_leaf(leaf, anchor))
    }

    /// Moves `anchor` to the next smaller anchor, if there is one. It need not be an anchor itself.
    pub fn previous(&mut self, anchor: &mut AnchorKey) -> Option<u64> {
        let _pin = self.tree.blocks.pin(self.number);
        let leaf = self.tree.at_most(&mut self.path, anchor, false)?;
        Some(self.tree.read_leaf(leaf, anchor))
    }

    /// Makes `key` an anchor, unless it is one.
    pub fn insert(&mut self, key: &[u8], value: u64) -> Result<AnchorChange, SearchError> {
        let _pin = self.tree.blocks.pin(self.number);
        self.tree.insert(key, value)
    }

    /// Removes an anchor, if it has the value `expected`. The empty key cannot be removed.
    pub fn remove(&mut self, key: &[u8], expected: u64) -> Result<AnchorChange, SearchError> {
        assert!(!key.is_empty(), "the leftmost data node keeps its anchor");
        let _pin = self.tree.blocks.pin(self.number);
        self.tree.remove(key, expected)
    }
}

impl<M: TreeMemory> Drop for SearchHandle<M> {
    fn drop(&mut self) {
        self.tree.blocks.leave(self.number);
    }
}
