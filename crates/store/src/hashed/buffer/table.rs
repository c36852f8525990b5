//! A shard's table for one write buffer: hash key → place in the arena.
//!
//! ```text
//!  a line of the cache, in words of 8 bytes
//!  0       2       4       6                   7                          8
//!  +-------+-------+-------+---------+---------+---------+----------------+
//!  | key 0 | key 1 | key 2 | place 0 | place 1 | place 2 | wanted: 3 bits |
//!  +-------+-------+-------+---------+---------+---------+----------------+
//!  key: u128 · place: u32, the arena's plus one, 0 for none; bit 31: READ
//! ```
//! A key is in the first line, from its home line on, that had room for it: entries are removed only all at once. So a look usually fetches one cache
//! line, and as the lines of all tables lie in huge pages, hardly ever an entry of the page tables.
//!
//! Threads: behind the shard's lock, except [`Lines::glance`], which only gives hints.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use tapetum_base::memory::region::{Account, Region, page_bytes};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::prefetch::{CACHE_LINE_BYTES, prefetch};

/// Set beside the place of a record that was read since it was written. An arena ends below.
pub const READ: u32 = 1 << 31;

const LINE_WORDS: usize = CACHE_LINE_BYTES / 8;
const LINE_SLOTS: usize = 3;
const PLACES_WORD: usize = 2 * LINE_SLOTS;
/// Slots that a glance looks at for a key, at most.
const GLANCE_SLOTS: usize = 2 * LINE_SLOTS;
/// The first of the bits that say whether the DRAM tier is to get the items of a line when they are on flash.
const WANTED_SHIFT: usize = 32;
const _: () = assert!(PLACES_WORD + LINE_SLOTS.div_ceil(2) == LINE_WORDS);

/// The place that a table's word names.
pub fn place_of(word: u32) -> Option<u32> {
    (word & !READ).checked_sub(1)
}

/// The word of a slot's line that has the slot's place, and the bit at which the place begins.
fn place_at(slot: usize) -> (usize, usize) {
    let number = slot % LINE_SLOTS;
    (PLACES_WORD + number / 2, number % 2 * 32)
}

/// Lines of one table, open to any thread: a read without the shard's lock is a hint.
#[derive(Clone, Copy)]
pub struct Lines<'a>(&'a [AtomicU64]);

impl<'a> Lines<'a> {
    fn slots(self) -> usize {
        self.0.len() / LINE_WORDS * LINE_SLOTS
    }

    /// The first slot of the key's home line.
    fn home(self, hash: HashKey) -> usize {
        let lines = self.0.len() / LINE_WORDS;
        (((hash.0 as u64 & 0xffff_ffff) * lines as u64) >> 32) as usize * LINE_SLOTS
    }

    fn line(self, slot: usize) -> &'a [AtomicU64; LINE_WORDS] {
        &self.0.as_chunks().0[slot / LINE_SLOTS]
    }

    fn key(self, slot: usize) -> HashKey {
        let (line, at) = (self.line(slot), slot % LINE_SLOTS * 2);
        HashKey(u128::from(line[at].load(Relaxed)) | u128::from(line[at + 1].load(Relaxed)) << 64)
    }

    /// The word of a slot.
    fn word_at(self, slot: usize) -> u32 {
        let (word, shift) = place_at(slot);
        (self.line(slot)[word].load(Relaxed) >> shift) as u32
    }

    /// The slot of a key, or the empty one where it would go.
    fn slot(self, hash: HashKey) -> usize {
        let mut slot = self.home(hash);
        while self.word_at(slot) != 0 && self.key(slot) != hash {
            slot = if slot + 1 == self.slots() { 0 } else { slot + 1 };
        }
        slot
    }

    /// The place of a key's record, found in few lines.
    #[inline]
    pub fn glance(self, hash: HashKey) -> Option<u32> {
        let home = self.home(hash);
        let slots = home..(home + GLANCE_SLOTS).min(self.slots());
        let mut filled = slots.map(|slot| (slot, self.word_at(slot))).take_while(|(_, word)| *word != 0);
        filled.find(|(slot, _)| self.key(*slot) == hash).and_then(|(_, word)| place_of(word))
    }

    pub fn prefetch(self, hash: HashKey) {
        prefetch(self.line(self.home(hash)));
    }

    /// Replaces these bits of a word of the slot's line by those of `to`.
    fn set(self, slot: usize, word: usize, bits: u64, to: u64) {
        let word = &self.line(slot)[word];
        word.store(word.load(Relaxed) & !bits | to, Relaxed);
    }
}

/// The memory of all tables of a store, one behind the other, each with room for the same number of entries.
pub struct Tables {
    region: Region,
    /// Words of each table.
    words: usize,
    entries_max: usize,
}

impl Tables {
    pub fn new(count: usize, entries_max: usize) -> io::Result<Tables> {
        // A quarter more slots stay free, and there are always some.
        let words = (entries_max * 4 / 3 + 8).div_ceil(LINE_SLOTS) * LINE_WORDS;
        let region = Region::new_huge((count * words).next_multiple_of(page_bytes() / 8), &Account::default())?;
        // Written once, so that memory does not grow as they fill.
        region.iter().for_each(|word| word.store(0, Relaxed));
        Ok(Tables { region, words, entries_max })
    }

    #[inline]
    pub fn lines(&self, number: usize) -> Lines<'_> {
        Lines(&self.region[number * self.words..][..self.words])
    }
}

/// Open addressing, of fixed size.
pub struct BufferTable {
    tables: Arc<Tables>,
    number: usize,
    count: usize,
}

impl BufferTable {
    pub fn new(tables: &Arc<Tables>, number: usize) -> BufferTable {
        BufferTable { tables: tables.clone(), number, count: 0 }
    }

    fn lines(&self) -> Lines<'_> {
        self.tables.lines(self.number)
    }

    /// The slot of a key, and its word.
    pub fn find(&self, hash: HashKey) -> Option<(usize, u32)> {
        if self.count == 0 {
            return None;
        }
        let lines = self.lines();
        let slot = lines.slot(hash);
        Some((slot, lines.word_at(slot))).filter(|(_, word)| *word != 0)
    }

    /// Marks the record of a slot as read.
    pub fn note_read(&mut self, slot: usize) {
        let (word, shift) = place_at(slot);
        self.lines().set(slot, word, 0, u64::from(READ) << shift);
    }

    pub fn is_full(&self) -> bool {
        self.count >= self.tables.entries_max
    }

    pub fn has_room_for(&self, entries: usize) -> bool {
        self.count + entries <= self.tables.entries_max
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// The slot of a key, or the empty one where it goes.
    pub fn slot(&self, hash: HashKey) -> usize {
        self.lines().slot(hash)
    }

    /// Puts a key into its slot.
    pub fn fill(&mut self, slot: usize, hash: HashKey, place: u32) {
        let lines = self.lines();
        let is_new = lines.word_at(slot) == 0;
        if is_new {
            assert!(self.count < lines.slots() - 1);
            let (line, at) = (lines.line(slot), slot % LINE_SLOTS * 2);
            line[at].store(hash.0 as u64, Relaxed);
            line[at + 1].store((hash.0 >> 64) as u64, Relaxed);
        }
        let (word, shift) = place_at(slot);
        lines.set(slot, word, 0xffff_ffff << shift, u64::from(place + 1) << shift);
        self.count += usize::from(is_new);
    }

    fn wanted_bit(slot: usize) -> u64 {
        1 << (WANTED_SHIFT + slot % LINE_SLOTS)
    }

    /// Whether the DRAM tier is to get the item of a slot when it is on flash: it was read here, or is wanted. `None` for an empty slot.
    pub fn is_wanted(&self, slot: usize) -> Option<bool> {
        let lines = self.lines();
        let word = lines.word_at(slot);
        let wanted = lines.line(slot)[LINE_WORDS - 1].load(Relaxed) & BufferTable::wanted_bit(slot) != 0;
        (word != 0).then_some(word & READ != 0 || wanted)
    }

    /// As [`BufferTable::is_wanted`], for a key; `None` if it is not there.
    pub fn is_key_wanted(&self, hash: HashKey) -> Option<bool> {
        self.is_wanted(self.slot(hash))
    }

    pub fn set_wanted(&mut self, slot: usize, wanted: bool) {
        let bit = BufferTable::wanted_bit(slot);
        self.lines().set(slot, LINE_WORDS - 1, bit, if wanted { bit } else { 0 });
    }

    /// Slots that are filled, each with its key and the place of its record.
    pub fn entries(&self) -> impl Iterator<Item = (usize, HashKey, u32)> {
        let lines = self.lines();
        (0..lines.slots()).filter_map(move |slot| Some((slot, lines.key(slot), place_of(lines.word_at(slot))?)))
    }

    pub fn clear(&mut self) {
        self.lines().0.iter().for_each(|word| word.store(0, Relaxed));
        self.count = 0;
    }

    pub fn bytes(&self) -> usize {
        self.tables.words * 8
    }
}
