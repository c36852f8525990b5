//! An inner node: the common prefix of the keys below it, and a child for each byte that may follow.
//!
//! ```text
//! word 0   header: lock 1 bit │ obsolete 1 │ kind 2 │ bytes of the prefix 11 │ slots used 9 │ – 8 │ terminator 32
//! then     the prefix, 8 bytes a word, the last word padded with zeros
//! then, by kind
//!   Node4     key bytes 4, – 4 │ children 4 × 32 bits      4 words without a prefix
//!   Node16    key bytes 16     │ children 16 × 32 bits     11 words
//!   Node48    key bytes 48     │ children 48 × 32 bits     31 words
//!   Node256                      children 256 × 32 bits    129 words
//! ```
//!
//! Key bytes are in the order of insertion. The published Node48 finds a byte's slot in a table of 256 entries; three comparisons of 16 bytes are as
//! fast, and halve the node.
//!
//! A child is a [`TreeRef`]; 0 means none. The **terminator** is the leaf whose key ends where the prefix ends: keys may be prefixes of others.
//!
//! Invariants:
//! 1. Kind and prefix never change, and a slot belongs to one byte for the node's whole life. So the path of bytes to a node never changes, and
//!    every entry that a reader finds there has that path.
//! 2. A removed child leaves its slot empty, for the same byte only. Empty slots disappear when the node is copied.
//! 3. A slot's byte and child are stored before the header that counts the slot as used.
//! 4. An obsolete node does not change any more. It shows the tree as it was when the node was replaced.
//!
//! Threads: words are stored by the holder of the node's lock, one at a time, and read by anyone at any time.

use super::leaf::word_of;
use super::{KEY_BYTES_MAX, TreeRef, match16};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use tapetum_base::memory::memory_word::Word;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NodeKind {
    Node4,
    Node16,
    Node48,
    Node256,
}

use NodeKind::{Node4, Node16, Node48, Node256};

/// Words of the largest block: a node of the largest kind with the longest prefix.
pub const BLOCK_WORDS_MAX: usize = words_for(Node256, KEY_BYTES_MAX);

const _: () = assert!(words_for(Node4, 0) == 4 && words_for(Node16, 0) == 11);
const _: () = assert!(words_for(Node48, 0) == 31 && words_for(Node256, 0) == 129);
const _: () = assert!(super::leaf::words_for(KEY_BYTES_MAX) <= BLOCK_WORDS_MAX);

impl NodeKind {
    const ALL: [NodeKind; 4] = [Node4, Node16, Node48, Node256];

    pub const fn capacity(self) -> usize {
        match self {
            Node4 => 4,
            Node16 => 16,
            Node48 => 48,
            Node256 => 256,
        }
    }

    /// The smallest kind for a number of children.
    pub fn for_children(children: usize) -> NodeKind {
        NodeKind::ALL.into_iter().find(|kind| children <= kind.capacity()).expect("at most a child for each byte")
    }

    /// Whether a node with so few children is replaced by a smaller one. The limit is below half of the smaller one's size, so that no node grows
    /// and shrinks by turns.
    pub fn is_roomy_for(self, children: usize) -> bool {
        match self {
            Node4 => false,
            Node16 => children <= 3,
            Node48 => children <= 12,
            Node256 => children <= 40,
        }
    }

    /// Words between the prefix and the children.
    const fn key_words(self) -> usize {
        match self {
            Node4 => 1,
            Node16 => 2,
            Node48 => 6,
            Node256 => 0,
        }
    }
}

pub const fn words_for(kind: NodeKind, prefix_bytes: usize) -> usize {
    1 + prefix_bytes.div_ceil(8) + kind.key_words() + kind.capacity() / 2
}

/// A node's first word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeHeader(pub u64);

const LOCKED: u64 = 1;
const OBSOLETE: u64 = 2;
const KIND_AT: u32 = 2;
const PREFIX_AT: u32 = 4;
const PREFIX_MASK: u64 = (1 << 11) - 1;
const USED_AT: u32 = 15;
const USED_MASK: u64 = (1 << 9) - 1;
const TERMINATOR_AT: u32 = 32;

impl NodeHeader {
    pub fn new(kind: NodeKind, prefix_bytes: usize, used: usize, terminator: TreeRef) -> NodeHeader {
        debug_assert!(prefix_bytes <= KEY_BYTES_MAX && used <= kind.capacity());
        let counts = (kind as u64) << KIND_AT | (prefix_bytes as u64) << PREFIX_AT | (used as u64) << USED_AT;
        NodeHeader(counts | u64::from(terminator.0) << TERMINATOR_AT)
    }

    pub fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    pub fn is_obsolete(self) -> bool {
        self.0 & OBSOLETE != 0
    }

    pub fn locked(self) -> NodeHeader {
        NodeHeader(self.0 | LOCKED)
    }

    pub fn unlocked(self) -> NodeHeader {
        NodeHeader(self.0 & !LOCKED)
    }

    pub fn obsolete(self) -> NodeHeader {
        NodeHeader(self.0 | OBSOLETE)
    }

    pub fn kind(self) -> NodeKind {
        NodeKind::ALL[(self.0 >> KIND_AT & 3) as usize]
    }

    pub fn prefix_bytes(self) -> usize {
        (self.0 >> PREFIX_AT & PREFIX_MASK) as usize
    }

    fn used(self) -> usize {
        (self.0 >> USED_AT & USED_MASK) as usize
    }

    fn with_one_more_used(self) -> NodeHeader {
        NodeHeader(self.0 + (1 << USED_AT))
    }

    pub fn terminator(self) -> TreeRef {
        TreeRef((self.0 >> TERMINATOR_AT) as u32)
    }

    pub fn with_terminator(self, terminator: TreeRef) -> NodeHeader {
        NodeHeader(self.0 & ((1 << TERMINATOR_AT) - 1) | u64::from(terminator.0) << TERMINATOR_AT)
    }

    pub fn words(self) -> usize {
        words_for(self.kind(), self.prefix_bytes())
    }
}

/// How the rest of a key compares with a node's prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrefixMatch {
    /// The key begins with the prefix.
    Whole,
    /// The key ends within the prefix, or has a smaller byte at this place: it sorts before all keys of the node.
    Before(usize),
    /// The key has a larger byte at this place: it sorts behind all keys of the node.
    Behind(usize),
}

/// A node as it was when its header was read, or newer.
pub struct NodeView<'a, W> {
    words: &'a [W],
    pub header: NodeHeader,
}

impl<W> Clone for NodeView<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for NodeView<'_, W> {}

impl<'a, W: Word> NodeView<'a, W> {
    #[inline(always)]
    pub fn new(words: &'a [W]) -> Self {
        NodeView { words, header: NodeHeader(words[0].load(Acquire)) }
    }

    /// The node in these words. The caller has held its lock since it had this header.
    pub fn locked(words: &'a [W], header: NodeHeader) -> Self {
        NodeView { words, header }
    }

    /// Words behind the prefix.
    #[inline(always)]
    fn body(&self) -> &'a [W] {
        &self.words[1 + self.header.prefix_bytes().div_ceil(8)..]
    }

    #[inline(always)]
    pub fn match_prefix(&self, rest: &[u8]) -> PrefixMatch {
        let prefix_bytes = self.header.prefix_bytes();
        let mut at = 0;
        while at < prefix_bytes {
            let word = self.words[1 + at / 8].load(Relaxed).to_le_bytes();
            for byte in &word[..(prefix_bytes - at).min(8)] {
                match rest.get(at) {
                    Some(key) if key == byte => at += 1,
                    Some(key) if key > byte => return PrefixMatch::Behind(at),
                    _ => return PrefixMatch::Before(at),
                }
            }
        }
        PrefixMatch::Whole
    }

    /// Appends the prefix to `bytes`, which has room for it. Returns its length.
    pub fn copy_prefix(&self, bytes: &mut [u8]) -> usize {
        let len = self.header.prefix_bytes();
        for (piece, word) in bytes[..len].chunks_mut(8).zip(&self.words[1..]) {
            piece.copy_from_slice(&word.load(Relaxed).to_le_bytes()[..piece.len()]);
        }
        len
    }

    #[inline(always)]
    fn slot(&self, slot: usize) -> TreeRef {
        let word = &self.body()[self.header.kind().key_words() + slot / 2];
        TreeRef((word.load(Acquire) >> (slot % 2 * 32)) as u32)
    }

    /// The used slots whose byte matches in a comparison with `byte`, one bit each. Not for the largest kind.
    #[inline(always)]
    fn slots_where(&self, compare: impl Fn([u64; 2], u8) -> u16, byte: u8) -> u64 {
        let body = self.body();
        let keys = |at: usize| body[at].load(Relaxed);
        let group = |at: usize| u64::from(compare([keys(at), keys(at + 1)], byte)) << (at * 8);
        let found = match self.header.kind() {
            Node4 => u64::from(compare([keys(0), 0], byte)),
            Node16 => group(0),
            _ => group(0) | group(2) | group(4),
        };
        found & ((1u64 << self.header.used()) - 1)
    }

    /// The byte of a slot. Not for the largest kind.
    #[inline(always)]
    fn byte_of(&self, slot: usize) -> u8 {
        (self.body()[slot / 8].load(Relaxed) >> (slot % 8 * 8)) as u8
    }

    #[inline(always)]
    fn slot_of(&self, byte: u8) -> Option<usize> {
        if self.header.kind() == Node256 {
            return Some(usize::from(byte));
        }
        let found = self.slots_where(match16::equal, byte);
        (found != 0).then(|| found.trailing_zeros() as usize)
    }

    #[inline(always)]
    pub fn child(&self, byte: u8) -> TreeRef {
        self.slot_of(byte).map_or(TreeRef::NONE, |slot| self.slot(slot))
    }

    /// The child with the greatest byte below `bound`.
    pub fn below(&self, bound: u16) -> Option<(u8, TreeRef)> {
        let greatest = u8::try_from(bound.checked_sub(1)?).expect("a bound is 256 or less");
        if self.header.kind() == Node256 {
            return (0..=greatest).rev().find_map(|byte| self.large_child(byte));
        }
        self.best_of(self.slots_where(match16::at_most, greatest), |byte, best| byte > best)
    }

    /// The child with the smallest byte not below `from`.
    pub fn at_least(&self, from: u16) -> Option<(u8, TreeRef)> {
        let smallest = u8::try_from(from).ok()?;
        if self.header.kind() == Node256 {
            return (smallest..=255).find_map(|byte| self.large_child(byte));
        }
        self.best_of(self.slots_where(match16::at_least, smallest), |byte, best| byte < best)
    }

    fn large_child(&self, byte: u8) -> Option<(u8, TreeRef)> {
        let child = self.slot(usize::from(byte));
        (!child.is_none()).then_some((byte, child))
    }

    /// The best of those slots that have a child.
    fn best_of(&self, mut slots: u64, better: impl Fn(u8, u8) -> bool) -> Option<(u8, TreeRef)> {
        let mut best: Option<(u8, TreeRef)> = None;
        while slots != 0 {
            let slot = slots.trailing_zeros() as usize;
            slots &= slots - 1;
            let byte = self.byte_of(slot);
            if best.is_none_or(|(best, _)| better(byte, best)) {
                let child = self.slot(slot);
                if !child.is_none() {
                    best = Some((byte, child));
                }
            }
        }
        best
    }

    pub fn children(self) -> impl Iterator<Item = (u8, TreeRef)> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let (byte, child) = self.at_least(from)?;
            from = u16::from(byte) + 1;
            Some((byte, child))
        })
    }

    /// Whether [`NodeView::put`] has a slot for a byte.
    pub fn has_room_for(&self, byte: u8) -> bool {
        let kind = self.header.kind();
        kind == Node256 || self.header.used() < kind.capacity() || self.slot_of(byte).is_some()
    }

    /// Stores the child of a byte, under the node's lock. Returns the header with which the node must be unlocked.
    pub fn put(&self, byte: u8, child: TreeRef) -> NodeHeader {
        if let Some(slot) = self.slot_of(byte) {
            self.set_slot(slot, child);
            return self.header;
        }
        let slot = self.header.used();
        debug_assert!(slot < self.header.kind().capacity());
        self.set_slot(slot, child);
        let word = &self.body()[slot / 8];
        let shift = slot % 8 * 8;
        word.store(word.load(Relaxed) & !(0xff << shift) | u64::from(byte) << shift, Release);
        self.header.with_one_more_used()
    }

    fn set_slot(&self, slot: usize, child: TreeRef) {
        let word = &self.body()[self.header.kind().key_words() + slot / 2];
        let shift = slot % 2 * 32;
        word.store(word.load(Relaxed) & !(0xffff_ffff << shift) | u64::from(child.0) << shift, Release);
    }
}

/// A node that is being made: a changed copy of another one's contents.
pub struct NodeImage {
    pub prefix: [u8; KEY_BYTES_MAX],
    pub prefix_bytes: usize,
    pub terminator: TreeRef,
    children: [(u8, TreeRef); 256],
    count: usize,
}

impl NodeImage {
    pub fn new(prefix: &[u8]) -> NodeImage {
        let mut image = NodeImage {
            prefix: [0; KEY_BYTES_MAX],
            prefix_bytes: prefix.len(),
            terminator: TreeRef::NONE,
            children: [(0, TreeRef::NONE); 256],
            count: 0,
        };
        image.prefix[..prefix.len()].copy_from_slice(prefix);
        image
    }

    /// A copy of a node whose lock the caller holds.
    pub fn of<W: Word>(view: NodeView<W>) -> NodeImage {
        let mut image = NodeImage::new(&[]);
        image.prefix_bytes = view.copy_prefix(&mut image.prefix);
        image.terminator = view.header.terminator();
        view.children().for_each(|(byte, child)| image.add(byte, child));
        image
    }

    /// Adds a child for a byte without one.
    pub fn add(&mut self, byte: u8, child: TreeRef) {
        self.children[self.count] = (byte, child);
        self.count += 1;
    }

    /// Sets the child that was added last.
    pub fn set_last(&mut self, child: TreeRef) {
        self.children[self.count - 1].1 = child;
    }

    pub fn remove(&mut self, byte: u8) {
        let at = self.children().iter().position(|child| child.0 == byte).expect("a child to remove");
        self.children.copy_within(at + 1..self.count, at);
        self.count -= 1;
    }

    pub fn children(&self) -> &[(u8, TreeRef)] {
        &self.children[..self.count]
    }

    pub fn prefix(&self) -> &[u8] {
        &self.prefix[..self.prefix_bytes]
    }

    /// Removes the first bytes of the prefix.
    pub fn cut_prefix(&mut self, bytes: usize) {
        self.prefix.copy_within(bytes..self.prefix_bytes, 0);
        self.prefix_bytes -= bytes;
    }

    /// Puts bytes before the prefix.
    pub fn extend_prefix(&mut self, before: &[u8], byte: u8) {
        let more = before.len() + 1;
        self.prefix.copy_within(..self.prefix_bytes, more);
        self.prefix[..more - 1].copy_from_slice(before);
        self.prefix[more - 1] = byte;
        self.prefix_bytes += more;
    }

    fn kind(&self) -> NodeKind {
        NodeKind::for_children(self.count)
    }

    /// Words of the smallest node with this content.
    pub fn words(&self) -> usize {
        words_for(self.kind(), self.prefix_bytes)
    }

    /// Writes the node into a block before anybody can reach it.
    pub fn write<W: Word>(&self, words: &[W]) {
        self.write_as(self.kind(), words);
    }

    /// As [`NodeImage::write`], as a node of this kind.
    pub fn write_as<W: Word>(&self, kind: NodeKind, words: &[W]) {
        let header = NodeHeader::new(kind, self.prefix_bytes, self.count, self.terminator);
        words[0].store(header.0, Relaxed);
        let prefix_words = self.prefix_bytes.div_ceil(8);
        for (word, piece) in words[1..].iter().zip(self.prefix().chunks(8)) {
            word.store(word_of(piece), Relaxed);
        }
        let (keys, slots) = words[1 + prefix_words..].split_at(kind.key_words());
        let slots = &slots[..kind.capacity() / 2];
        let mut key_bytes = [0u8; 48];
        let mut refs = [0u32; 256];
        for (at, &(byte, child)) in self.children().iter().enumerate() {
            match kind {
                Node256 => refs[usize::from(byte)] = child.0,
                _ => (key_bytes[at], refs[at]) = (byte, child.0),
            }
        }
        for (word, bytes) in keys.iter().zip(key_bytes.chunks(8)) {
            word.store(word_of(bytes), Relaxed);
        }
        for (word, pair) in slots.iter().zip(refs.chunks(2)) {
            word.store(u64::from(pair[0]) | u64::from(pair[1]) << 32, Relaxed);
        }
    }
}
