//! The tree of one ordered keyspace, and the state that all trees share.

use super::cache::MirrorCache;
use super::gate::WriterGate;
use super::node_programs::NodePrograms;
use super::node_table::{NodeHome, NodeId};
use super::search::{AnchorChange, SearchError, SearchLimits, SearchTree};
use super::slabs::SlotSpace;
use super::slabs::keyspace_slots::KeyspaceSlots;
use super::slabs::slot_class::SlotClass;
use super::write_back::WriteBack;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tapetum_base::base::Base;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::io::lock;
use tapetum_base::memory::region::Account;
use tapetum_drive::programs::node::PutResult;
use tapetum_kernels::ordered::extension::ExtensionClass;
use tapetum_kernels::ordered::{NewNode, NodeMut};

/// The keyspace grows when so many of the last 32 puts had new keys.
const INSERTS_MIN: u32 = 8;

/// One ordered keyspace: the map of keys to nodes, and the slots of its images.
pub struct OrderedTree {
    pub keyspace: KeyspaceId,
    pub search: Arc<SearchTree>,
    pub nodes: SlotSpace,
    slots: KeyspaceSlots,
    /// Flash has no more room: writes that could take slots are refused.
    pub is_full: AtomicBool,
    is_dropped: AtomicBool,
    /// Records in all nodes.
    items: AtomicU64,
    /// A bit for each of the last puts: whether its key was new.
    inserts: AtomicU32,
    /// Some wishes to merge were not carried out at once.
    wants_sweep: AtomicBool,
    /// The first node has a page, or an image on flash.
    is_made: AtomicBool,
    /// The first node, while it has neither.
    unmade: Mutex<Option<NodeId>>,
}

impl OrderedTree {
    /// The keyspace was dropped: nothing of it may be read or written any more.
    pub fn is_dropped(&self) -> bool {
        self.is_dropped.load(Ordering::SeqCst)
    }

    /// Counts the effect of a put on the items. The holder of the node's page calls this before giving it back.
    pub fn note(&self, result: PutResult) {
        let is_new = match result {
            PutResult::Stored => {
                self.items.fetch_add(1, Ordering::Relaxed);
                true
            }
            PutResult::Replaced => false,
            PutResult::Removed => {
                self.items.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            _ => return,
        };
        // If two are noted at the same time, one may be lost.
        let inserts = self.inserts.load(Ordering::Relaxed);
        self.inserts.store(inserts << 1 | u32::from(is_new), Ordering::Relaxed);
    }

    /// Whether the last puts brought so many new keys that the next one probably needs more room in its node.
    pub fn grows(&self) -> bool {
        self.inserts.load(Ordering::Relaxed).count_ones() >= INSERTS_MIN
    }

    /// Adds the items of nodes that were not read.
    pub fn count_items(&self, items: u64) {
        self.items.fetch_add(items, Ordering::Relaxed);
    }

    /// Whether its first node has a page, or an image on flash.
    pub fn is_made(&self) -> bool {
        self.is_made.load(Ordering::SeqCst)
    }

    /// The number of items. Expired ones, and those deleted with everything else, count as long as their records exist.
    pub fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }

    pub fn slots(&self) -> &KeyspaceSlots {
        &self.slots
    }

    /// The slots of extensions of this size.
    pub fn extensions(&self, class: ExtensionClass) -> &SlotSpace {
        self.slots.of_class(SlotClass::of_extension(class))
    }
}

/// Finds the trees that a session names.
pub trait TreeSource: Send + Sync {
    /// # Errors
    /// When the keyspace was dropped, or there is no memory for its tree.
    fn find_tree(&self, keyspace: KeyspaceId) -> Result<Arc<OrderedTree>, Error>;
}

/// The limits of an ordered engine.
#[derive(Clone, Copy, Debug)]
pub struct OrderedLimits {
    /// Pages of the mirror cache.
    pub cache_pages: usize,
    pub nodes_max: u32,
    /// An image may overwrite the one that it replaces, if no other image needs that one.
    pub in_place: bool,
    /// The limits of each tree's search layer. All of them share the index's part of memory.
    pub search: SearchLimits,
}

#[derive(Clone, Debug)]
pub struct FoundNode {
    /// The node's low fence.
    pub anchor: Vec<u8>,
    pub home: NodeHome,
    /// The number of its records.
    pub records: u16,
}

/// The state that all sessions share.
pub struct OrderedState {
    pub base: Arc<Base>,
    pub programs: NodePrograms,
    pub cache: MirrorCache,
    pub write_back: WriteBack,
    pub gate: Arc<WriterGate>,
    /// Copies of pages that freezes have ([`super::frozen`]).
    pub frozen_copies: AtomicUsize,
    pub limits: OrderedLimits,
    is_sweep_wanted: AtomicBool,
    /// A sweep is in progress.
    pub is_sweeping: AtomicBool,
    trees: Mutex<BTreeMap<KeyspaceId, Arc<OrderedTree>>>,
    /// Nodes of dropped keyspaces whose pages somebody has or whose images are in flight.
    pages_left: Mutex<BTreeMap<KeyspaceId, BTreeSet<NodeId>>>,
    /// Bytes of all search layers.
    search_bytes: Account,
}

impl OrderedState {
    /// # Errors
    /// If memory or the drive does not suffice.
    pub fn new(base: Arc<Base>, limits: OrderedLimits) -> Result<Arc<OrderedState>, Error> {
        let programs = NodePrograms::find(&base.drive.identity())?;
        let cache = MirrorCache::new(base.drive.local(), limits.cache_pages, limits.nodes_max)?;
        let write_back = WriteBack::new(&base.drive)?;
        Ok(Arc::new(OrderedState {
            base,
            programs,
            cache,
            write_back,
            gate: Arc::default(),
            frozen_copies: AtomicUsize::new(0),
            limits,
            is_sweep_wanted: AtomicBool::new(false),
            is_sweeping: AtomicBool::new(false),
            trees: Mutex::default(),
            pages_left: Mutex::default(),
            search_bytes: Arc::new(AtomicUsize::new(0)),
        }))
    }

    pub fn tree(&self, keyspace: KeyspaceId) -> Option<Arc<OrderedTree>> {
        lock(&self.trees).get(&keyspace).cloned()
    }

    pub fn trees(&self) -> Vec<Arc<OrderedTree>> {
        lock(&self.trees).values().cloned().collect()
    }

    /// Has maintenance look for nodes of a tree to merge ([`super::sweeps`]).
    pub fn want_sweep(&self, tree: &OrderedTree) {
        tree.wants_sweep.store(true, Ordering::SeqCst);
        self.is_sweep_wanted.store(true, Ordering::SeqCst);
    }

    pub fn is_sweep_wanted(&self) -> bool {
        self.is_sweep_wanted.load(Ordering::SeqCst)
    }

    /// The number of sweeps that are wanted or in progress.
    pub fn sweeps(&self) -> u64 {
        let wanted = lock(&self.trees).values().filter(|tree| tree.wants_sweep.load(Ordering::SeqCst)).count();
        wanted as u64 + u64::from(self.is_sweeping.load(Ordering::SeqCst))
    }

    /// A tree that wants a sweep, which then is in progress: the first behind `last`, in turn.
    pub fn take_tree_to_sweep(&self, last: KeyspaceId) -> Option<Arc<OrderedTree>> {
        self.is_sweep_wanted.store(false, Ordering::SeqCst);
        // Before the tree's own mark goes: nobody sees neither.
        self.is_sweeping.store(true, Ordering::SeqCst);
        let trees = lock(&self.trees);
        let in_turn = trees.range((Bound::Excluded(last), Bound::Unbounded)).chain(trees.range(..=last));
        let mut wanting = in_turn.filter(|(_, tree)| tree.wants_sweep.load(Ordering::SeqCst)).map(|(_, tree)| tree);
        let Some(tree) = wanting.next() else {
            self.is_sweeping.store(false, Ordering::SeqCst);
            return None;
        };
        if wanting.next().is_some() {
            self.is_sweep_wanted.store(true, Ordering::SeqCst);
        }
        tree.wants_sweep.store(false, Ordering::SeqCst);
        Some(tree.clone())
    }

    /// Adds the tree of a keyspace without items: one node that covers all keys and is not on flash.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn add_empty(&self, slots: KeyspaceSlots) -> Result<Arc<OrderedTree>, Error> {
        let node = self.cache.table.give().ok_or(Error::FullIndex)?;
        let tree = self.add(slots, node)?;
        // A put that comes before maintenance has searched for slots must find one.
        let is_full = tree.nodes.spare_slots() == 0 && !tree.nodes.finds_extents(&self.base.extents);
        tree.is_full.store(is_full, Ordering::Relaxed);
        *lock(&tree.unmade) = Some(node);
        tree.is_made.store(false, Ordering::SeqCst);
        self.make(&tree);
        Ok(tree)
    }

    /// Gives the first node of a new tree its page, if it has none. False: all pages in its set of the cache must be written first.
    pub fn make(&self, tree: &OrderedTree) -> bool {
        if tree.is_made.load(Ordering::SeqCst) {
            return true;
        }
        let mut unmade = lock(&tree.unmade);
        let Some(node) = *unmade else { return true };
        let Some(mut page) = self.cache.reserve(node, tree.keyspace.0) else { return false };
        let new = NewNode { keyspace: tree.keyspace.0, id: node.0.into(), low_fence: &[], high_fence: None };
        let Some(bytes) = page.bytes_mut().first_chunk_mut() else { unreachable!("it has a page's bytes") };
        NodeMut::format(bytes, &new).expect("no fences are a range");
        self.cache.give_back(node, page, |meta| meta.is_dirty = true);
        *unmade = None;
        tree.is_made.store(true, Ordering::SeqCst);
        true
    }

    /// Adds the tree of a keyspace whose nodes are on flash. The shares of their slots were kept.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn add_found(
        &self,
        slots: &KeyspaceSlots,
        found: impl IntoIterator<Item = FoundNode>,
    ) -> Result<Arc<OrderedTree>, Error> {
        let mut made = None;
        for FoundNode { anchor, home, records } in found {
            let node = self.cache.table.give().ok_or(Error::FullIndex)?;
            self.cache.table.set(node, home);
            let (tree, search) = match &mut made {
                Some(made) => made,
                None => {
                    let tree = self.add(slots.clone(), node)?;
                    let search = tree.search.handle().map_err(of_search)?;
                    made.insert((tree, search))
                }
            };
            tree.items.fetch_add(records.into(), Ordering::Relaxed);
            if !anchor.is_empty() {
                let inserted = search.insert(&anchor, node.0.into()).map_err(of_search)?;
                assert_eq!(inserted, AnchorChange::Done, "anchors are apart");
            }
        }
        let (tree, _) = made.ok_or_else(|| Error::Corrupt("an ordered keyspace has no data node".into()))?;
        Ok(tree)
    }

    fn add(&self, slots: KeyspaceSlots, leftmost: NodeId) -> Result<Arc<OrderedTree>, Error> {
        let search = SearchTree::new(self.limits.search, leftmost.0.into(), &self.search_bytes).map_err(of_search)?;
        let (keyspace, nodes) = (slots.keyspace(), slots.nodes().clone());
        let tree = Arc::new(OrderedTree {
            keyspace,
            search,
            nodes,
            slots,
            is_full: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
            items: AtomicU64::new(0),
            inserts: AtomicU32::new(u32::MAX),
            wants_sweep: AtomicBool::new(false),
            is_made: AtomicBool::new(true),
            unmade: Mutex::default(),
        });
        let other = lock(&self.trees).insert(keyspace, tree.clone());
        assert!(other.is_none(), "a keyspace has one tree");
        Ok(tree)
    }

    /// Evicts the pages of a dropped keyspace's tree, except those that somebody has. Returns whether none is left, and none is in flight to flash.
    /// Called again until then.
    pub fn forget_tree(&self, keyspace: KeyspaceId) -> bool {
        let tree = lock(&self.trees).remove(&keyspace);
        if let Some(tree) = tree {
            tree.is_dropped.store(true, Ordering::SeqCst);
            lock(&tree.unmade).take().into_iter().for_each(|node| self.cache.table.free(node));
            self.free_absent(&tree);
        }
        let mut left = lock(&self.pages_left);
        let before = left.remove(&keyspace).unwrap_or_default();
        let left_now = self.cache.forget(keyspace.0, &before);
        let is_empty = left_now.is_empty();
        if !is_empty {
            left.insert(keyspace, left_now);
        }
        is_empty
    }

    /// Frees the ids of a dropped tree's nodes that are not cached.
    fn free_absent(&self, tree: &OrderedTree) {
        let Ok(mut search) = tree.search.handle() else { return };
        let mut anchor = super::search::AnchorKey::new();
        let mut next = Some(search.floor(&[], &mut anchor));
        while let Some(node) = next {
            self.cache.free_absent(NodeId(node as u32));
            next = search.next(&mut anchor);
        }
    }

    /// Bytes in memory without the cached pages.
    pub fn index_bytes(&self) -> u64 {
        (self.search_bytes.load(Ordering::Relaxed) + self.cache.table.bytes()) as u64
    }

    /// Whether there may be more nodes: an id is free, and all indexes together use less than their share of memory.
    pub fn may_grow(&self) -> bool {
        let others = self.base.engines.others_index_bytes(KeyspaceKind::Ordered);
        !self.cache.table.is_full() && self.index_bytes() + others < self.base.budget().index_bytes_max()
    }

    /// Lists a changed page for the write-back, unless it is listed.
    pub fn list(&self, tree: &Arc<OrderedTree>, node: NodeId) {
        let is_new = self.cache.with(node, |meta| meta.list());
        if is_new == Some(true) {
            self.write_back.list(tree, node);
        }
    }
}

/// The error for a caller of a failed search.
pub fn of_search(error: SearchError) -> Error {
    match error {
        SearchError::Full { .. } | SearchError::Memory(_) => Error::FullIndex,
        other => Error::Options(other.to_string()),
    }
}
