//! The nodes that a change has locked.
//!
//! Invariants:
//! 1. Locks are taken parents first, so that no two changes wait for each other.
//! 2. The drop releases all locks, each with the header that the node must have.
//! 3. A locked node is not obsolete, so it is linked: only the holder of its lock makes it obsolete.

use super::node::{NodeHeader, NodeView};
use super::tree_memory::TreeMemory;
use super::{SearchError, SearchTree};
use std::sync::atomic::Ordering::{Acquire, Release};
use tapetum_base::memory::memory_word::Word;

/// Every change locks a parent and a node, a removal also one of its children.
const LOCKS_MAX: usize = 3;

/// The reason why a change did not end.
#[derive(Debug)]
pub enum ChangeHalt {
    /// The tree is not the one of the walk: start again.
    Conflict,
    Failed(SearchError),
}

impl From<SearchError> for ChangeHalt {
    fn from(error: SearchError) -> ChangeHalt {
        ChangeHalt::Failed(error)
    }
}

pub struct NodeLocks<'t, M: TreeMemory> {
    tree: &'t SearchTree<M>,
    held: [(u32, NodeHeader); LOCKS_MAX],
    count: usize,
}

impl<'t, M: TreeMemory> NodeLocks<'t, M> {
    pub fn new(tree: &'t SearchTree<M>) -> Self {
        NodeLocks { tree, held: [(0, NodeHeader(0)); LOCKS_MAX], count: 0 }
    }

    fn position(&self, node: u32) -> Option<usize> {
        self.held[..self.count].iter().position(|held| held.0 == node)
    }

    /// Locks a node, unless it is locked by this change already, and returns it.
    pub fn lock(&mut self, node: u32) -> Result<NodeView<'t, M::Word>, ChangeHalt> {
        if self.position(node).is_none() {
            let word = &self.tree.blocks.words(node)[0];
            let mut tries = 0;
            let header = loop {
                let seen = NodeHeader(word.load(Acquire));
                if seen.is_obsolete() {
                    return Err(ChangeHalt::Conflict);
                }
                if !seen.is_locked() && word.replace(seen.0, seen.locked().0).is_ok() {
                    // Pairs with the release of the previous lock: every store under it is visible.
                    M::Word::fence(Acquire);
                    break seen;
                }
                tries += 1;
                M::Word::pause(tries);
            };
            self.held[self.count] = (node, header);
            self.count += 1;
        }
        Ok(self.view(node))
    }

    fn view(&self, node: u32) -> NodeView<'t, M::Word> {
        let at = self.position(node).expect("the node is locked");
        NodeView::locked(self.tree.blocks.words(node), self.held[at].1)
    }

    /// Sets the header with which a locked node is released.
    pub fn set_header(&mut self, node: u32, header: NodeHeader) {
        let at = self.position(node).expect("the node is locked");
        self.held[at].1 = header;
    }

    /// Releases all locks. Changes of headers are visible from here on.
    pub fn release(&mut self) {
        for (node, header) in self.held[..self.count].iter().rev() {
            self.tree.blocks.words(*node)[0].store(header.unlocked().0, Release);
        }
        self.count = 0;
    }

    /// Marks a locked node as obsolete: it was replaced, and nothing leads to it any more.
    pub fn set_obsolete(&mut self, node: u32) {
        let header = self.view(node).header;
        self.set_header(node, header.obsolete());
    }
}

impl<M: TreeMemory> Drop for NodeLocks<'_, M> {
    fn drop(&mut self) {
        self.release();
    }
}
