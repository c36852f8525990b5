//! Queries. They take no lock, and see the tree while it changes.
//!
//! A query on its way down records the nodes that it passes and the bytes that it has tried, and goes back up if it finds nothing. A node that was
//! replaced meanwhile shows the tree as it was at that moment, which was during the query. So an anchor that exists throughout is below each node of
//! its path, old or new.

use super::node::{NodeView, PrefixMatch};
use super::tree_memory::TreeMemory;
use super::{AnchorKey, KEY_BYTES_MAX, ROOT, SearchError, SearchTree, TreeRef, leaf};

/// Above every byte: all children of a node are left to try.
const ALL_BELOW: u16 = 256;
/// In a walk upwards: the terminator and all children are left to try.
const WITH_TERMINATOR: u16 = u16::MAX;

/// The nodes that a query passed.
pub struct QueryPath {
    /// Each node with its bound: the bytes beyond it were tried.
    steps: Vec<(u32, u16)>,
}

impl QueryPath {
    /// Room for the longest path: the root, and a node for each byte of a key.
    const STEPS_MAX: usize = KEY_BYTES_MAX + 1;

    pub fn new() -> Result<QueryPath, SearchError> {
        let mut steps = Vec::new();
        steps.try_reserve_exact(QueryPath::STEPS_MAX).map_err(|_| SearchError::out_of_memory())?;
        Ok(QueryPath { steps })
    }

    fn push(&mut self, node: u32, bound: u16) {
        assert!(self.steps.len() < QueryPath::STEPS_MAX, "each node of a path has a byte of a key");
        self.steps.push((node, bound));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntrySlot {
    Terminator,
    Child(u8),
}

impl EntrySlot {
    pub fn entry<W: tapetum_base::memory::memory_word::Word>(self, view: NodeView<W>) -> TreeRef {
        match self {
            EntrySlot::Terminator => view.header.terminator(),
            EntrySlot::Child(byte) => view.child(byte),
        }
    }
}

/// The place in the tree to which a key leads.
pub struct KeyPlace {
    /// The node above `node`, and the byte that leads down. The root has none.
    pub parent: Option<(u32, u8)>,
    pub node: u32,
    /// Bytes of the key before `node`'s prefix.
    pub depth: usize,
    pub found: PlaceFound,
}

/// The entry there, in `node`.
#[derive(Clone, Copy)]
pub enum PlaceFound {
    /// The anchor.
    Anchor(EntrySlot, TreeRef),
    /// An empty slot.
    Nothing(EntrySlot),
    /// The leaf of another anchor.
    OtherLeaf(u8, TreeRef),
    /// The key leaves the node's prefix at this byte of it, or ends there.
    OtherPrefix(usize),
}

impl<M: TreeMemory> SearchTree<M> {
    /// Follows a key down.
    pub(super) fn walk(&self, key: &[u8]) -> KeyPlace {
        let (mut parent, mut node, mut depth) = (None, ROOT, 0);
        let found = loop {
            let view = self.node(node);
            match view.match_prefix(&key[depth..]) {
                PrefixMatch::Whole => {}
                PrefixMatch::Before(at) | PrefixMatch::Behind(at) => break PlaceFound::OtherPrefix(at),
            }
            let at = depth + view.header.prefix_bytes();
            let Some(&byte) = key.get(at) else {
                let terminator = view.header.terminator();
                let slot = EntrySlot::Terminator;
                break if terminator.is_none() {
                    PlaceFound::Nothing(slot)
                } else {
                    PlaceFound::Anchor(slot, terminator)
                };
            };
            let child = view.child(byte);
            if child.is_none() {
                break PlaceFound::Nothing(EntrySlot::Child(byte));
            }
            if child.is_leaf() {
                let is_same = leaf::compare(self.leaf_words(child), key).is_eq();
                break if is_same {
                    PlaceFound::Anchor(EntrySlot::Child(byte), child)
                } else {
                    PlaceFound::OtherLeaf(byte, child)
                };
            }
            (parent, node, depth) = (Some((node, byte)), child.index(), at + 1);
        };
        KeyPlace { parent, node, depth, found }
    }

    pub(super) fn lookup(&self, key: &[u8]) -> Option<u64> {
        match self.walk(key).found {
            PlaceFound::Anchor(_, leaf) => Some(leaf::value(self.leaf_words(leaf))),
            _ => None,
        }
    }

    /// The number of nodes on the way towards a key.
    pub(super) fn depth(&self, key: &[u8]) -> u32 {
        let (mut node, mut at, mut depth) = (ROOT, 0, 1);
        loop {
            let view = self.node(node);
            if !matches!(view.match_prefix(&key[at..]), PrefixMatch::Whole) {
                return depth;
            }
            at += view.header.prefix_bytes();
            let child = key.get(at).map_or(TreeRef::NONE, |byte| view.child(*byte));
            if child.is_none() || child.is_leaf() {
                return depth;
            }
            (node, at, depth) = (child.index(), at + 1, depth + 1);
        }
    }

    /// The leaf of the greatest anchor below `key`, or of `key` itself if `or_equal`.
    pub(super) fn at_most(&self, path: &mut QueryPath, key: &[u8], or_equal: bool) -> Option<TreeRef> {
        path.steps.clear();
        let (mut node, mut depth) = (ROOT, 0);
        loop {
            let view = self.node(node);
            match view.match_prefix(&key[depth..]) {
                PrefixMatch::Whole => {}
                PrefixMatch::Before(_) => break,
                PrefixMatch::Behind(_) => {
                    path.push(node, ALL_BELOW);
                    break;
                }
            }
            let at = depth + view.header.prefix_bytes();
            let Some(&byte) = key.get(at) else {
                let terminator = view.header.terminator();
                if or_equal && !terminator.is_none() {
                    return Some(terminator);
                }
                break;
            };
            path.push(node, u16::from(byte));
            let child = view.child(byte);
            if child.is_none() {
                break;
            }
            if child.is_leaf() {
                let order = leaf::compare(self.leaf_words(child), key);
                if order.is_lt() || order.is_eq() && or_equal {
                    return Some(child);
                }
                break;
            }
            (node, depth) = (child.index(), at + 1);
        }
        self.greatest_left(path)
    }

    /// The leaf of the greatest anchor.
    pub(super) fn last(&self, path: &mut QueryPath) -> Option<TreeRef> {
        path.steps.clear();
        path.push(ROOT, ALL_BELOW);
        self.greatest_left(path)
    }

    /// The leaf of the greatest anchor among the untried ones.
    fn greatest_left(&self, path: &mut QueryPath) -> Option<TreeRef> {
        while let Some((node, bound)) = path.steps.last_mut() {
            let view = self.node(*node);
            let Some((byte, child)) = view.below(*bound) else {
                let terminator = view.header.terminator();
                if !terminator.is_none() {
                    return Some(terminator);
                }
                path.steps.pop();
                continue;
            };
            if child.is_leaf() {
                return Some(child);
            }
            *bound = u16::from(byte);
            path.push(child.index(), ALL_BELOW);
        }
        None
    }

    /// The leaf of the smallest anchor above `key`.
    pub(super) fn above(&self, path: &mut QueryPath, key: &[u8]) -> Option<TreeRef> {
        path.steps.clear();
        let (mut node, mut depth) = (ROOT, 0);
        loop {
            let view = self.node(node);
            match view.match_prefix(&key[depth..]) {
                PrefixMatch::Whole => {}
                PrefixMatch::Behind(_) => break,
                PrefixMatch::Before(_) => {
                    path.push(node, WITH_TERMINATOR);
                    break;
                }
            }
            let at = depth + view.header.prefix_bytes();
            let Some(&byte) = key.get(at) else {
                path.push(node, 0);
                break;
            };
            path.push(node, u16::from(byte) + 1);
            let child = view.child(byte);
            if child.is_none() {
                break;
            }
            if child.is_leaf() {
                if leaf::compare(self.leaf_words(child), key).is_gt() {
                    return Some(child);
                }
                break;
            }
            (node, depth) = (child.index(), at + 1);
        }
        self.smallest_left(path)
    }

    /// The leaf of the smallest anchor among the untried ones.
    fn smallest_left(&self, path: &mut QueryPath) -> Option<TreeRef> {
        while let Some((node, from)) = path.steps.last_mut() {
            let view = self.node(*node);
            if *from == WITH_TERMINATOR {
                *from = 0;
                let terminator = view.header.terminator();
                if !terminator.is_none() {
                    return Some(terminator);
                }
            }
            let Some((byte, child)) = view.at_least(*from) else {
                path.steps.pop();
                continue;
            };
            if child.is_leaf() {
                return Some(child);
            }
            *from = u16::from(byte) + 1;
            path.push(child.index(), WITH_TERMINATOR);
        }
        None
    }

    /// Copies a leaf's key out. Returns its value.
    pub(super) fn read_leaf(&self, leaf: TreeRef, anchor: &mut AnchorKey) -> u64 {
        let words = self.leaf_words(leaf);
        leaf::copy_key(words, anchor);
        leaf::value(words)
    }
}
