//! Changes. A change walks to its place without locks, locks the nodes there, and checks them again; then it changes them or starts again.
//!
//! Readers see each change through one store: of a slot, or of a header with a terminator.
//!
//! ```text
//! insert   into an empty slot         node                    slot ← leaf
//!          at another anchor's leaf   node                    slot ← Node4 of both leaves
//!          within a prefix            parent, node            parent's slot ← Node4 of the leaf and a copy of the node
//!          into a full node           parent, node            parent's slot ← larger copy with the leaf
//! remove   from a node that stays     node                    slot ← none
//!          from a roomy node          parent, node            parent's slot ← smaller copy
//!          one of two entries         parent, node (, child)  parent's slot ← the other one: a leaf, or a copy of the
//!                                                             child with the node's prefix and byte before its own
//! ```

use super::blocks::Purpose;
use super::node::{NodeImage, NodeView};
use super::node_locks::{ChangeHalt, NodeLocks};
use super::query::{EntrySlot, KeyPlace, PlaceFound};
use super::tree_memory::TreeMemory;
use super::{KEY_BYTES_MAX, ROOT, SearchError, SearchTree, TreeRef, leaf};
use tapetum_base::memory::memory_word::Word;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum AnchorChange {
    Done,
    /// Nothing was changed: the anchor has this value.
    Found(u64),
    /// Nothing was changed: the key is no anchor.
    Absent,
    /// Nothing was inserted: the key is an anchor already, with this value.
    Taken(u64),
}

type Attempt = Result<AnchorChange, ChangeHalt>;

/// Retries until no other change interferes. Each failed try was overtaken by another change that did not fail.
fn until_it_ends<M: TreeMemory>(mut attempt: impl FnMut() -> Attempt) -> Result<AnchorChange, SearchError> {
    let mut tries = 0;
    loop {
        match attempt() {
            Ok(change) => return Ok(change),
            Err(ChangeHalt::Failed(error)) => return Err(error),
            Err(ChangeHalt::Conflict) => {
                tries += 1;
                M::Word::pause(tries);
            }
        }
    }
}

/// An error unless the tree is as it was during the walk.
fn expect_same(is_same: bool) -> Result<(), ChangeHalt> {
    if is_same { Ok(()) } else { Err(ChangeHalt::Conflict) }
}

fn check_length(key: &[u8]) -> Result<(), SearchError> {
    if key.len() > KEY_BYTES_MAX { Err(SearchError::KeyTooLong { bytes: key.len() }) } else { Ok(()) }
}

/// Adds a leaf to a node that is being made, whose prefix ends at `at` of the leaf's key.
fn add_leaf(image: &mut NodeImage, key: &[u8], at: usize, leaf: TreeRef) {
    match key.get(at) {
        Some(&byte) => image.add(byte, leaf),
        None => image.terminator = leaf,
    }
}

impl<M: TreeMemory> SearchTree<M> {
    pub(super) fn insert(&self, key: &[u8], value: u64) -> Result<AnchorChange, SearchError> {
        check_length(key)?;
        until_it_ends::<M>(|| self.try_insert(key, value))
    }

    pub(super) fn remove(&self, key: &[u8], expected: u64) -> Result<AnchorChange, SearchError> {
        until_it_ends::<M>(|| {
            let mut change = PlacedChange::new(self, key);
            let PlaceFound::Anchor(slot, leaf) = change.place.found else { return Ok(AnchorChange::Absent) };
            let stays = stays_without_one(&change.place, self.node(change.place.node));
            let view = if stays { change.locks.lock(change.place.node)? } else { change.lock_with_parent()? };
            expect_same(slot.entry(view) == leaf && stays_without_one(&change.place, view) == stays)?;
            let found = leaf::value(self.leaf_words(leaf));
            if found != expected {
                return Ok(AnchorChange::Found(found));
            }
            if stays { change.clear(view, slot, leaf) } else { change.shrink(view, slot, leaf) }
        })
    }

    fn try_insert(&self, key: &[u8], value: u64) -> Attempt {
        let mut change = PlacedChange::new(self, key);
        match change.place.found {
            PlaceFound::Anchor(_, leaf) => Ok(AnchorChange::Taken(leaf::value(self.leaf_words(leaf)))),
            PlaceFound::Nothing(EntrySlot::Terminator) => change.set_terminator(key, value),
            PlaceFound::Nothing(EntrySlot::Child(byte)) => {
                if self.node(change.place.node).has_room_for(byte) {
                    change.fill_slot(byte, key, value)
                } else {
                    change.grow(byte, key, value)
                }
            }
            PlaceFound::OtherLeaf(byte, other) => change.part_leaves(byte, other, key, value),
            PlaceFound::OtherPrefix(at) => change.part_prefix(at, key, value),
        }
    }

    fn new_leaf(&self, index: u32, key: &[u8], value: u64) -> TreeRef {
        leaf::write(self.blocks.words(index), key, value);
        TreeRef::leaf(index)
    }

    fn new_node(&self, index: u32, image: &NodeImage) -> TreeRef {
        image.write(self.blocks.words(index));
        TreeRef::node(index)
    }
}

/// A try of a change: the place that the walk found, and the nodes locked there so far.
struct PlacedChange<'t, M: TreeMemory> {
    tree: &'t SearchTree<M>,
    place: KeyPlace,
    locks: NodeLocks<'t, M>,
}

impl<'t, M: TreeMemory> PlacedChange<'t, M> {
    fn new(tree: &'t SearchTree<M>, key: &[u8]) -> Self {
        PlacedChange { tree, place: tree.walk(key), locks: NodeLocks::new(tree) }
    }

    /// Locks a place's node and its parent. Neither is obsolete, so the parent still leads to the node: replacing the parent, or its slot, would
    /// make one of them obsolete.
    fn lock_with_parent(&mut self) -> Result<NodeView<'t, M::Word>, ChangeHalt> {
        let (parent, byte) = self.place.parent.expect("the root is never replaced");
        let above = self.locks.lock(parent)?;
        let view = self.locks.lock(self.place.node)?;
        assert_eq!(above.child(byte), TreeRef::node(self.place.node), "a locked node is linked");
        Ok(view)
    }

    /// Makes the slot that leads to a place's node lead elsewhere. Both nodes are locked.
    fn replace_node(&mut self, by: TreeRef) -> Result<(), ChangeHalt> {
        let (parent, byte) = self.place.parent.expect("the root is never replaced");
        let header = self.locks.lock(parent)?.put(byte, by);
        self.locks.set_header(parent, header);
        self.locks.set_obsolete(self.place.node);
        Ok(())
    }

    fn set_terminator(&mut self, key: &[u8], value: u64) -> Attempt {
        let header = self.locks.lock(self.place.node)?.header;
        expect_same(header.terminator().is_none())?;
        let [leaf] = self.tree.blocks.claim([leaf::words_for(key.len())], 0, Purpose::Insert)?;
        let leaf = self.tree.new_leaf(leaf, key, value);
        self.locks.set_header(self.place.node, header.with_terminator(leaf));
        Ok(AnchorChange::Done)
    }

    fn fill_slot(&mut self, byte: u8, key: &[u8], value: u64) -> Attempt {
        let view = self.locks.lock(self.place.node)?;
        expect_same(view.child(byte).is_none() && view.has_room_for(byte))?;
        let [leaf] = self.tree.blocks.claim([leaf::words_for(key.len())], 0, Purpose::Insert)?;
        let header = view.put(byte, self.tree.new_leaf(leaf, key, value));
        self.locks.set_header(self.place.node, header);
        Ok(AnchorChange::Done)
    }

    /// Copies a full node into a larger one, or into one of its size without empty slots.
    fn grow(&mut self, byte: u8, key: &[u8], value: u64) -> Attempt {
        let view = self.lock_with_parent()?;
        expect_same(view.child(byte).is_none() && !view.has_room_for(byte))?;
        let mut image = NodeImage::of(view);
        image.add(byte, TreeRef::NONE);
        let [leaf, node] = self.tree.blocks.claim([leaf::words_for(key.len()), image.words()], 1, Purpose::Insert)?;
        image.set_last(self.tree.new_leaf(leaf, key, value));
        let node = self.tree.new_node(node, &image);
        self.replace_node(node)?;
        self.tree.blocks.retire([(self.place.node, view.header.words())]);
        Ok(AnchorChange::Done)
    }

    /// Replaces a leaf by a node with both anchors' leaves.
    fn part_leaves(&mut self, byte: u8, other: TreeRef, key: &[u8], value: u64) -> Attempt {
        let view = self.locks.lock(self.place.node)?;
        expect_same(view.child(byte) == other)?;
        let mut other_key = super::AnchorKey::new();
        leaf::copy_key(self.tree.leaf_words(other), &mut other_key);
        let depth = self.place.depth + view.header.prefix_bytes() + 1;
        let same = key[depth..].iter().zip(&other_key[depth..]).take_while(|(a, b)| a == b).count();
        let mut image = NodeImage::new(&key[depth..depth + same]);
        add_leaf(&mut image, &other_key, depth + same, other);
        let words = [leaf::words_for(key.len()), image.words()];
        let [leaf, node] = self.tree.blocks.claim(words, 0, Purpose::Insert)?;
        add_leaf(&mut image, key, depth + same, self.tree.new_leaf(leaf, key, value));
        let header = view.put(byte, self.tree.new_node(node, &image));
        self.locks.set_header(self.place.node, header);
        Ok(AnchorChange::Done)
    }

    /// Puts a node above one whose prefix differs from the key at `at`.
    fn part_prefix(&mut self, at: usize, key: &[u8], value: u64) -> Attempt {
        let view = self.lock_with_parent()?;
        let mut below = NodeImage::of(view);
        let mut above = NodeImage::new(&below.prefix()[..at]);
        let byte = below.prefix()[at];
        below.cut_prefix(at + 1);
        above.add(byte, TreeRef::NONE);
        let words = [leaf::words_for(key.len()), below.words(), above.words()];
        let [leaf, below_index, above_index] = self.tree.blocks.claim(words, 1, Purpose::Insert)?;
        above.set_last(self.tree.new_node(below_index, &below));
        add_leaf(&mut above, key, self.place.depth + at, self.tree.new_leaf(leaf, key, value));
        let above = self.tree.new_node(above_index, &above);
        self.replace_node(above)?;
        self.tree.blocks.retire([(self.place.node, view.header.words())]);
        Ok(AnchorChange::Done)
    }

    /// Removes a leaf from a node that stays.
    fn clear(&mut self, view: NodeView<'t, M::Word>, slot: EntrySlot, leaf: TreeRef) -> Attempt {
        let [] = self.tree.blocks.claim([], 1, Purpose::Remove)?;
        let header = match slot {
            EntrySlot::Terminator => view.header.with_terminator(TreeRef::NONE),
            EntrySlot::Child(byte) => view.put(byte, TreeRef::NONE),
        };
        self.locks.set_header(self.place.node, header);
        self.locks.release();
        self.tree.blocks.retire([(leaf.index(), leaf::words_of(self.tree.leaf_words(leaf)))]);
        Ok(AnchorChange::Done)
    }

    /// Removes a leaf from a node, which is replaced by a smaller one or by its only other entry.
    fn shrink(&mut self, view: NodeView<'t, M::Word>, slot: EntrySlot, leaf: TreeRef) -> Attempt {
        let mut image = NodeImage::of(view);
        match slot {
            EntrySlot::Terminator => image.terminator = TreeRef::NONE,
            EntrySlot::Child(byte) => image.remove(byte),
        }
        let retired =
            [(leaf.index(), leaf::words_of(self.tree.leaf_words(leaf))), (self.place.node, view.header.words())];
        let only_entry = match *image.children() {
            [] => Some((None, image.terminator)),
            [(byte, child)] if image.terminator.is_none() => Some((Some(byte), child)),
            _ => None,
        };
        match only_entry {
            None => {
                let [node] = self.tree.blocks.claim([image.words()], 2, Purpose::Remove)?;
                let node = self.tree.new_node(node, &image);
                self.replace_node(node)?;
            }
            Some((_, entry)) if entry.is_leaf() => {
                let [] = self.tree.blocks.claim([], 2, Purpose::Remove)?;
                self.replace_node(entry)?;
            }
            Some((byte, child)) => {
                let byte = byte.expect("a terminator is a leaf");
                return self.pull_up(image.prefix(), byte, child.index(), retired);
            }
        }
        self.tree.blocks.retire(retired);
        Ok(AnchorChange::Done)
    }

    /// Replaces a node with one remaining child by a copy of that child. The copy's prefix begins with the node's prefix and byte.
    fn pull_up(&mut self, prefix: &[u8], byte: u8, child: u32, [leaf, node]: [(u32, usize); 2]) -> Attempt {
        let view = self.locks.lock(child)?;
        let mut image = NodeImage::of(view);
        image.extend_prefix(prefix, byte);
        let [copy] = self.tree.blocks.claim([image.words()], 3, Purpose::Remove)?;
        let copy = self.tree.new_node(copy, &image);
        self.replace_node(copy)?;
        self.locks.set_obsolete(child);
        self.tree.blocks.retire([leaf, node, (child, view.header.words())]);
        Ok(AnchorChange::Done)
    }
}

/// Whether a place's node stays in place when it loses an entry.
fn stays_without_one<W: Word>(place: &KeyPlace, view: NodeView<W>) -> bool {
    if place.node == ROOT {
        return true;
    }
    let children = view.children().count();
    let entries = children + usize::from(!view.header.terminator().is_none());
    let PlaceFound::Anchor(slot, _) = place.found else { return true };
    let children_left = children - usize::from(slot != EntrySlot::Terminator);
    entries > 2 && !view.header.kind().is_roomy_for(children_left)
}
