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
        until_it_ends::<M>(|| self.try_insert(&mut NodeLocks::new(self), key, value))
    }

    pub(super) fn remove(&self, key: &[u8], expected: u64) -> Result<AnchorChange, SearchError> {
        until_it_ends::<M>(|| {
            let place = self.walk(key);
            let PlaceFound::Anchor(slot, leaf) = place.found else { return Ok(AnchorChange::Absent) };
            let mut locks = NodeLocks::new(self);
            let stays = stays_without_one(&place, self.node(place.node));
            let view = if stays { locks.lock(place.node)? } else { self.lock_with_parent(&mut locks, &place)? };
            expect_same(slot.entry(view) == leaf && stays_without_one(&place, view) == stays)?;
            let found = leaf::value(self.leaf_words(leaf));
            if found != expected {
                return Ok(AnchorChange::Found(found));
            }
            if stays {
                self.clear(&mut locks, &place, view, slot, leaf)
            } else {
                self.shrink(&mut locks, &place, view, slot, leaf)
            }
        })
    }

    /// Locks a place's node and its parent. Neither is obsolete, so the parent still leads to the node: replacing the parent, or its slot, would
    /// make one of them obsolete.
    fn lock_with_parent<'t>(
        &'t self,
        locks: &mut NodeLocks<'t, M>,
        place: &KeyPlace,
    ) -> Result<NodeView<'t, M::Word>, ChangeHalt> {
        let (parent, byte) = place.parent.expect("the root is never replaced");
        let above = locks.lock(parent)?;
        let view = locks.lock(place.node)?;
        assert_eq!(above.child(byte), TreeRef::node(place.node), "a locked node is linked");
        Ok(view)
    }

    /// Makes the slot that leads to a place's node lead elsewhere. Both nodes are locked.
    fn replace_node<'t>(
        &'t self,
        locks: &mut NodeLocks<'t, M>,
        place: &KeyPlace,
        by: TreeRef,
    ) -> Result<(), ChangeHalt> {
        let (parent, byte) = place.parent.expect("the root is never replaced");
        let header = locks.lock(parent)?.put(byte, by);
        locks.set_header(parent, header);
        locks.set_obsolete(place.node);
        Ok(())
    }

    fn try_insert<'t>(&'t self, locks: &mut NodeLocks<'t, M>, key: &[u8], value: u64) -> Attempt {
        let place = self.walk(key);
        match place.found {
            PlaceFound::Anchor(_, leaf) => Ok(AnchorChange::Taken(leaf::value(self.leaf_words(leaf)))),
            PlaceFound::Nothing(EntrySlot::Terminator) => self.set_terminator(locks, &place, key, value),
            PlaceFound::Nothing(EntrySlot::Child(byte)) => {
                if self.node(place.node).has_room_for(byte) {
                    self.fill_slot(locks, &place, byte, key, value)
                } else {
                    self.grow(locks, &place, byte, key, value)
                }
            }
            PlaceFound::OtherLeaf(byte, other) => self.part_leaves(locks, &place, byte, other, key, value),
            PlaceFound::OtherPrefix(at) => self.part_prefix(locks, &place, at, key, value),
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

    fn set_terminator<'t>(&'t self, locks: &mut NodeLocks<'t, M>, place: &KeyPlace, key: &[u8], value: u64) -> Attempt {
        let header = locks.lock(place.node)?.header;
        expect_same(header.terminator().is_none())?;
        let [leaf] = self.blocks.claim([leaf::words_for(key.len())], 0, Purpose::Insert)?;
        let leaf = self.new_leaf(leaf, key, value);
        locks.set_header(place.node, header.with_terminator(leaf));
        Ok(AnchorChange::Done)
    }

    fn fill_slot<'t>(
        &'t self,
        locks: &mut NodeLocks<'t, M>,
        place: &KeyPlace,
        byte: u8,
        key: &[u8],
        value: u64,
    ) -> Attempt {
        let view = locks.lock(place.node)?;
        expect_same(view.child(byte).is_none() && view.has_room_for(byte))?;
        let [leaf] = self.blocks.claim([leaf::words_for(key.len())], 0, Purpose::Insert)?;
        let header = view.put(byte, self.new_leaf(leaf, key, value));
        locks.set_header(place.node, header);
        Ok(AnchorChange::Done)
    }

    /// Copies a full node into a larger one, or into one of its size without empty slots.
    fn grow<'t>(&'t self, locks: &mut NodeLocks<'t, M>, place: &KeyPlace, byte: u8, key: &[u8], value: u64) -> Attempt {
        let view = self.lock_with_parent(locks, place)?;
        expect_same(view.child(byte).is_none() && !view.has_room_for(byte))?;
        let mut image = NodeImage::of(view);
        image.add(byte, TreeRef::NONE);
        let [leaf, node] = self.blocks.claim([leaf::words_for(key.len()), image.words()], 1, Purpose::Insert)?;
        image.set_last(self.new_leaf(leaf, key, value));
        let node = self.new_node(node, &image);
        self.replace_node(locks, place, node)?;
        self.blocks.retire([(place.node, view.header.words())]);
        Ok(AnchorChange::Done)
    }

    /// Replaces a leaf by a node with both anchors' leaves.
    fn part_leaves<'t>(
        &'t self,
        locks: &mut NodeLocks<'t, M>,
        place: &KeyPlace,
        byte: u8,
        other: TreeRef,
        key: &[u8],
        value: u64,
    ) -> Attempt {
        let view = locks.lock(place.node)?;
        expect_same(view.child(byte) == other)?;
        let mut other_key = super::AnchorKey::new();
        leaf::copy_key(self.leaf_words(other), &mut other_key);
        let depth = place.depth + view.header.prefix_bytes() + 1;
        let same = key[depth..].iter().zip(&other_key[depth..]).take_while(|(a, b)| a == b).count();
        let mut image = NodeImage::new(&key[depth..depth + same]);
        add_leaf(&mut image, &other_key, depth + same, other);
        let words = [leaf::words_for(key.len()), image.words()];
        let [leaf, node] = self.blocks.claim(words, 0, Purpose::Insert)?;
        add_leaf(&mut image, key, depth + same, self.new_leaf(leaf, key, value));
        let header = view.put(byte, self.new_node(node, &image));
        locks.set_header(place.node, header);
        Ok(AnchorChange::Done)
    }

    /// Puts a node above one whose prefix differs from the key at `at`.
    fn part_prefix<'t>(
        &'t self,
        locks: &mut NodeLocks<'t, M>,
        place: &KeyPlace,
        at: usize,
        key: &[u8],
        value: u64,
    ) -> Attempt {
        let view = self.lock_with_parent(locks, place)?;
        let mut below = NodeImage::of(view);
        let mut above = NodeImage::new(&below.prefix()[..at]);
        let byte = below.prefix()[at];
        below.cut_prefix(at + 1);
        above.add(byte, TreeRef::NONE);
        let words = [leaf::words_for(key.len()), below.words(), above.words()];
        let [leaf, below_index, above_index] = self.blocks.claim(words, 1, Purpose::Insert)?;
        above.set_last(self.new_node(below_index, &below));
        add_leaf(&mut above, key, place.depth + at, self.new_leaf(leaf, key, value));
        let above = self.new_node(above_index, &above);
        self.replace_node(locks, place, above)?;
        self.blocks.retire([(place.node, view.header.words())]);
        Ok(AnchorChange::Done)
    }

    /// Removes a leaf from a node that stays.
    fn clear<'t>(
        &'t self,
        locks: &mut NodeLocks<'t, M>,
        place: &KeyPlace,
        view: NodeView<'t, M::Word>,
        slot: EntrySlot,
        leaf: TreeRef,
    ) -> Attempt {
        let [] = self.blocks.claim([], 1, Purpose::Remove)?;
        let header = match slot {
            EntrySlot::Terminator => view.header.with_terminator(TreeRef::NONE),
            EntrySlot::Child(byte) => view.put(byte, TreeRef::NONE),
        };
        locks.set_header(place.node, header);
        locks.release();
        self.blocks.retire([(leaf.index(), leaf::words_of(self.leaf_words(leaf)))]);
        Ok(AnchorChange::Done)
    }

    /// Removes a leaf from a node, which is replaced by a smaller one or by its only other entry.
    fn shrink<'t>(
        &'t self,
        locks: &mut NodeLocks<'t, M>,
        place: &KeyPlace,
        view: NodeView<'t, M::Word>,
        slot: EntrySlot,
        leaf: TreeRef,
    ) -> Attempt {
        let mut image = NodeImage::of(view);
        match slot {
            EntrySlot::Terminator => image.terminator = TreeRef::NONE,
            EntrySlot::Child(byte) => image.remove(byte),
        }
        let retired = [(leaf.index(), leaf::words_of(self.leaf_words(leaf))), (place.node, view.header.words())];
        let only_entry = match *image.children() {
            [] => Some((None, image.terminator)),
            [(byte, child)] if image.terminator.is_none() => Some((Some(byte), child)),
            _ => None,
        };
        match only_entry {
            None => {
                let [node] = self.blocks.claim([image.words()], 2, Purpose::Remove)?;
                let node = self.new_node(node, &image);
                self.replace_node(locks, place, node)?;
            }
            Some((_, entry)) if entry.is_leaf() => {
                let [] = self.blocks.claim([], 2, Purpose::Remove)?;
                self.replace_node(locks, place, entry)?;
            }
            Some((byte, child)) => {
                let byte = byte.expect("a terminator is a leaf");
                return self.pull_up(locks, place, image.prefix(), byte, child.index(), retired);
            }
        }
        self.blocks.retire(retired);
        Ok(AnchorChange::Done)
    }

    /// Replaces a node with one remaining child by a copy of that child. The copy's prefix begins with the node's prefix and byte.
    fn pull_up<'t>(
        &'t self,
        locks: &mut NodeLocks<'t, M>,
        place: &KeyPlace,
        prefix: &[u8],
        byte: u8,
        child: u32,
        [leaf, node]: [(u32, usize); 2],
    ) -> Attempt {
        let view = locks.lock(child)?;
        let mut image = NodeImage::of(view);
        image.extend_prefix(prefix, byte);
        let [copy] = self.blocks.claim([image.words()], 3, Purpose::Remove)?;
        let copy = self.new_node(copy, &image);
        self.replace_node(locks, place, copy)?;
        locks.set_obsolete(child);
        self.blocks.retire([leaf, node, (child, view.header.words())]);
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
