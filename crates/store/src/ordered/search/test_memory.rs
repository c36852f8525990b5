//! Memory for tests: heap chunks of any size, and a check of the whole tree.

use super::node::NodeKind;
use super::tree_memory::TreeMemory;
use super::{AnchorKey, ROOT, SearchHandle, SearchLimits, SearchTree, TreeRef, leaf};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use tapetum_kernels::random::mix;

/// Small chunks, so that tests map many. Retired blocks are examined one by one.
pub struct HeapMemory;

impl TreeMemory for HeapMemory {
    type Word = AtomicU64;
    type Chunk = Vec<AtomicU64>;
    type Lock<T: Send> = Mutex<T>;

    const CHUNK_WORDS: usize = 512;
    const RETIRED_MANY: usize = 1;

    fn map(&self, words: usize) -> io::Result<Vec<AtomicU64>> {
        Ok((0..words).map(|_| AtomicU64::new(0)).collect())
    }
}

pub type HeapTree = Arc<SearchTree<HeapMemory>>;
pub type HeapHandle = SearchHandle<HeapMemory>;

/// The empty key's value.
pub const LEFTMOST: u64 = 1 << 40;

pub fn heap_tree(bytes_max: usize) -> (HeapTree, HeapHandle) {
    let tree = SearchTree::over(HeapMemory, SearchLimits { bytes_max, handles_max: 8 }, LEFTMOST).expect("memory");
    let handle = tree.handle().expect("a handle");
    (tree, handle)
}

/// The contents of a tree that nobody changes. Checks the invariants of its nodes, and that every block is accounted for.
pub fn contents<M: TreeMemory>(tree: &SearchTree<M>) -> BTreeMap<Vec<u8>, u64> {
    let mut anchors = BTreeMap::new();
    let mut words = 0;
    let mut left = vec![(TreeRef::node(ROOT), Vec::new())];
    while let Some((entry, path)) = left.pop() {
        if entry.is_leaf() {
            let mut key = AnchorKey::new();
            let value = tree.read_leaf(entry, &mut key);
            assert!(key.starts_with(&path), "{key:?} below {path:?}");
            words += leaf::words_of(tree.leaf_words(entry));
            assert!(anchors.insert(key.to_vec(), value).is_none(), "{key:?} twice");
            continue;
        }
        let view = tree.node(entry.index());
        assert!(!view.header.is_locked() && !view.header.is_obsolete());
        words += view.header.words();
        let mut prefix = [0; super::KEY_BYTES_MAX];
        let prefix_bytes = view.copy_prefix(&mut prefix);
        let path = [&path, &prefix[..prefix_bytes]].concat();
        let children: Vec<_> = view.children().collect();
        assert!(children.is_sorted_by(|a, b| a.0 < b.0) && children.len() <= view.header.kind().capacity());
        let terminator = view.header.terminator();
        if entry.index() == ROOT {
            assert_eq!((view.header.kind(), prefix_bytes), (NodeKind::Node256, 0));
        } else {
            assert!(children.len() + usize::from(!terminator.is_none()) >= 2, "a node of one entry at {path:?}");
        }
        if !terminator.is_none() {
            assert!(leaf::compare(tree.leaf_words(terminator), &path).is_eq());
            left.push((terminator, path.clone()));
        }
        for (byte, child) in children {
            left.push((child, [&path[..], &[byte]].concat()));
        }
    }
    assert_eq!(tree.anchors(), anchors.len() as u64);
    // No handle is pinned: every retired block can be reused.
    tree.blocks.reclaim_all();
    assert_eq!(tree.bytes_used(), words * 8, "blocks in use that the tree does not lead to, or the other way round");
    anchors
}

/// SplitMix64.
pub struct Chance(pub u64);

impl Chance {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound as u64) as usize
    }
}
