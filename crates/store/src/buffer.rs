//! The write buffer's tables: hash key → place in the arena, split into shards by the hash key's top bits.
//!
//! A shard has a table for each buffer: the active one and, while it is flushed, the sealed one. A reader looks at the
//! active table first, so it sees the latest. Everything of a shard is behind its lock. The shards are the index's
//! partitions, so a sorted shard is a slice of the sorted buffer.

use crate::geometry::BUFFERS;
use crate::large::LargeExtents;
use std::collections::BTreeMap;
use std::sync::Arc;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::prefetch::prefetch;

/// Set beside the place of a record that was read since it was written. An arena ends below.
const READ: u32 = 1 << 31;

/// An open-addressing table of fixed size.
struct Table {
    hashes: Vec<HashKey>,
    /// Place in the arena plus one, and whether it was read; 0 for an empty slot.
    places: Vec<u32>,
    /// A bit for each slot: whether the DRAM tier is to have the item when it is on flash.
    wanted: Vec<u64>,
    count: usize,
    count_max: usize,
}

impl Table {
    fn new(entries_max: usize) -> Table {
        let slots = (entries_max * 4 / 3 + 8).next_power_of_two();
        Table {
            hashes: vec![HashKey::default(); slots],
            places: vec![0; slots],
            wanted: vec![0; slots.div_ceil(64)],
            count: 0,
            count_max: entries_max,
        }
    }

    fn slot(&self, hash: HashKey) -> usize {
        let mask = self.places.len() - 1;
        let mut slot = hash.0 as usize & mask;
        while self.places[slot] != 0 && self.hashes[slot] != hash {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// A key's word; 0 if it is not there.
    fn word(&self, hash: HashKey) -> u32 {
        if self.count == 0 { 0 } else { self.places[self.slot(hash)] }
    }

    fn prefetch(&self, hash: HashKey) {
        let slot = hash.0 as usize & (self.places.len() - 1);
        if self.count > 0 {
            prefetch(&self.places[slot]);
            prefetch(&self.hashes[slot]);
        }
    }

    fn is_full(&self) -> bool {
        self.count >= self.count_max
    }

    fn insert(&mut self, hash: HashKey, place: u32) {
        self.fill(self.slot(hash), hash, place);
    }

    /// Puts a key into its slot.
    fn fill(&mut self, slot: usize, hash: HashKey, place: u32) {
        if self.places[slot] == 0 {
            assert!(self.count < self.places.len() - 1);
            self.count += 1;
            self.hashes[slot] = hash;
        }
        self.places[slot] = place + 1;
    }

    /// Whether the DRAM tier is to have the item of a slot when it is on flash: it was read here, or is wanted. `None` for an
    /// empty slot.
    fn is_wanted(&self, slot: usize) -> Option<bool> {
        let word = self.places[slot];
        (word != 0).then(|| word & READ != 0 || self.wanted[slot / 64] >> (slot % 64) & 1 == 1)
    }

    fn set_wanted(&mut self, slot: usize, wanted: bool) {
        let bit = 1 << (slot % 64);
        let word = &mut self.wanted[slot / 64];
        *word = if wanted { *word | bit } else { *word & !bit };
    }

    fn clear(&mut self) {
        self.places.fill(0);
        self.wanted.fill(0);
        self.count = 0;
    }

    fn bytes(&self) -> usize {
        self.places.len() * (size_of::<HashKey>() + 4) + self.wanted.len() * 8
    }
}

/// The place that a table's word names.
fn place_of(word: u32) -> Option<u32> {
    (word & !READ).checked_sub(1)
}

/// Where a record of a write buffer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub buffer: u64,
    pub place: u32,
}

/// A key as a shard had it once, by which is told whether it has been written since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    place: Option<Place>,
    /// What was written since is in this buffer or a later one.
    active: u64,
    evictions: u64,
}

pub struct Shard {
    tables: [Table; BUFFERS as usize],
    active: u64,
    /// The oldest buffer that is not flushed yet.
    oldest: u64,
    /// Goes up when an eviction begins to take keys of this shard from flash, and when it has: odd between.
    evictions: u64,
    /// The extents of the large values in a buffer, by the record's place; also of records that were written over.
    large: [BTreeMap<u32, Arc<LargeExtents>>; BUFFERS as usize],
}

impl Shard {
    pub fn new(entries_max: usize, buffer: u64) -> Shard {
        let tables = [Table::new(entries_max), Table::new(entries_max)];
        Shard { tables, active: buffer, oldest: buffer, evictions: 0, large: Default::default() }
    }

    fn table(&self, buffer: u64) -> &Table {
        &self.tables[(buffer % BUFFERS) as usize]
    }

    pub fn get(&self, hash: HashKey) -> Option<Place> {
        self.look(hash).map(|(place, _)| place)
    }

    /// As [`Shard::get`], and whether the record was read since it was written.
    pub fn look(&self, hash: HashKey) -> Option<(Place, bool)> {
        (self.oldest..=self.active).rev().find_map(|buffer| {
            let word = self.table(buffer).word(hash);
            place_of(word).map(|place| (Place { buffer, place }, word & READ != 0))
        })
    }

    /// The record of a key in a buffer counts as read from now on.
    pub fn note_read(&mut self, hash: HashKey) {
        if let Some((place, _)) = self.look(hash) {
            self.tables[(place.buffer % BUFFERS) as usize].insert(hash, place.place | READ);
        }
    }

    /// The DRAM tier is to have this key's item when it is on flash, if it is in a buffer.
    pub fn want(&mut self, hash: HashKey) {
        if let Some((place, _)) = self.look(hash) {
            let table = &mut self.tables[(place.buffer % BUFFERS) as usize];
            let slot = table.slot(hash);
            table.set_wanted(slot, true);
        }
    }

    /// Hash keys and places of a buffer's items that the DRAM tier is to have.
    pub fn wanted(&self, buffer: u64, into: &mut Vec<(HashKey, u32)>) {
        let table = self.table(buffer);
        into.clear();
        let slots = table.hashes.iter().zip(&table.places).enumerate();
        into.extend(slots.filter_map(|(slot, (hash, word))| {
            table.is_wanted(slot).filter(|wanted| *wanted)?;
            place_of(*word).map(|place| (*hash, place))
        }));
    }

    /// Brings what [`Shard::get`] will look at nearer to the processor.
    pub fn prefetch(&self, hash: HashKey) {
        (self.oldest..=self.active).for_each(|buffer| self.table(buffer).prefetch(hash));
    }

    /// Shows `visit` where the latest record of every key is.
    pub fn each(&self, mut visit: impl FnMut(Place)) {
        for buffer in self.oldest..=self.active {
            let table = self.table(buffer);
            for (hash, word) in table.hashes.iter().zip(&table.places) {
                let Some(place) = place_of(*word) else { continue };
                let found = Place { buffer, place };
                if self.get(*hash) == Some(found) {
                    visit(found);
                }
            }
        }
    }

    /// Whether the active table takes no further key.
    pub fn is_full(&self) -> bool {
        self.table(self.active).is_full()
    }

    /// Room left in the active table.
    pub fn has_room_for(&self, entries: usize) -> bool {
        let table = self.table(self.active);
        table.count + entries <= table.count_max
    }

    pub fn insert(&mut self, hash: HashKey, place: u32) {
        self.tables[(self.active % BUFFERS) as usize].insert(hash, place);
    }

    /// As [`Shard::insert`], in a store with a DRAM tier: it is to have the item when that is on flash, if it had the one
    /// before, or was to have it.
    pub fn insert_wanted(&mut self, hash: HashKey, place: u32, tier_had: bool) {
        let active = (self.active % BUFFERS) as usize;
        let slot = self.tables[active].slot(hash);
        let before = || match self.tables[active].is_wanted(slot) {
            None => self.sealed().map(|buffer| self.table(buffer)).and_then(|table| table.is_wanted(table.slot(hash))),
            here => here,
        };
        let wanted = tier_had || before() == Some(true);
        self.tables[active].fill(slot, hash, place);
        self.tables[active].set_wanted(slot, wanted);
    }

    /// Holds the extents that a record names, until its buffer is released.
    pub fn insert_large(&mut self, place: Place, extents: Arc<LargeExtents>) {
        self.large[(place.buffer % BUFFERS) as usize].insert(place.place, extents);
    }

    /// The extents that a record in a buffer names.
    pub fn large(&self, place: Place) -> Option<Arc<LargeExtents>> {
        self.large[(place.buffer % BUFFERS) as usize].get(&place.place).cloned()
    }

    /// The key as it is now.
    pub fn see(&self, hash: HashKey) -> Seen {
        Seen { place: self.get(hash), active: self.active, evictions: self.evictions }
    }

    /// As [`Shard::see`], for a key that was found to be in no buffer.
    pub fn see_absent(&self) -> Seen {
        Seen { place: None, active: self.active, evictions: self.evictions }
    }

    /// Whether the key was not written since it was seen. A key that was in no buffer could have been in one and out
    /// again only if a buffer from then on was flushed; that is taken for a write.
    pub fn is_as(&self, hash: HashKey, seen: Seen) -> bool {
        self.get(hash) == seen.place && (seen.place.is_some() || self.oldest <= seen.active)
    }

    /// Whether what was read of the key's item on flash is still what there is: not written over, and not evicted, which
    /// others may have been told.
    pub fn is_on_flash_as(&self, hash: HashKey, seen: Seen) -> bool {
        let evicted = seen.place.is_none() && (seen.evictions != self.evictions || seen.evictions % 2 == 1);
        self.is_as(hash, seen) && !evicted
    }

    /// An eviction begins to take keys of this shard from flash, or has.
    pub fn turn_eviction(&mut self) {
        self.evictions += 1;
    }

    /// The buffer that takes the next write.
    pub fn active(&self) -> u64 {
        self.active
    }

    /// The oldest buffer that is in no segment.
    pub fn oldest(&self) -> u64 {
        self.oldest
    }

    /// The buffer that is sealed and not flushed yet.
    pub fn sealed(&self) -> Option<u64> {
        (self.oldest < self.active).then_some(self.oldest)
    }

    /// Whether the next buffer is free.
    pub fn may_rotate(&self) -> bool {
        self.active - self.oldest + 1 < BUFFERS
    }

    pub fn rotate(&mut self, buffer: u64) {
        assert!(self.may_rotate() && buffer == self.active + 1);
        self.active = buffer;
        assert_eq!(self.table(buffer).count, 0);
    }

    /// Forgets the oldest buffer, which is in a segment now.
    pub fn release(&mut self, buffer: u64) {
        assert!(buffer == self.oldest && buffer < self.active);
        self.tables[(buffer % BUFFERS) as usize].clear();
        self.large[(buffer % BUFFERS) as usize].clear();
        self.oldest += 1;
    }

    /// Hash keys and places of a buffer, sorted by hash key.
    pub fn sorted(&self, buffer: u64, into: &mut Vec<(HashKey, u32)>) {
        let table = self.table(buffer);
        into.clear();
        into.extend(table.hashes.iter().zip(&table.places).filter_map(|(hash, word)| Some((*hash, place_of(*word)?))));
        into.sort_unstable_by_key(|entry| entry.0);
    }

    /// Keys in both tables.
    pub fn entries(&self) -> usize {
        self.tables.iter().map(|table| table.count).sum()
    }

    pub fn bytes(&self) -> usize {
        self.tables.iter().map(Table::bytes).sum()
    }

    /// Faults every page of the tables in, so that memory does not grow as they fill.
    pub fn touch(&mut self) {
        for table in &mut self.tables {
            table.places.fill(0);
            table.hashes.fill(HashKey(u128::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_active_buffer_hides_the_sealed_one_until_that_is_released() {
        let mut shard = Shard::new(100, 7);
        let (a, b) = (HashKey(1 << 70), HashKey(2 << 70));
        shard.insert(a, 0);
        shard.insert(b, 8);
        let (a_seen, b_seen) = (shard.see(a), shard.see(b));
        shard.rotate(8);
        assert!(!shard.may_rotate());
        shard.insert(a, 16);
        assert!(!shard.is_as(a, a_seen) && shard.is_as(b, b_seen));
        assert_eq!(shard.get(a), Some(Place { buffer: 8, place: 16 }));
        assert_eq!(shard.get(b), Some(Place { buffer: 7, place: 8 }));
        let mut sorted = Vec::new();
        shard.sorted(7, &mut sorted);
        assert_eq!(sorted, vec![(a, 0), (b, 8)]);
        shard.release(7);
        assert_eq!(shard.get(b), None);
        assert!(!shard.is_as(b, b_seen), "it is elsewhere now");
        assert!(shard.may_rotate());
    }

    #[test]
    fn tables_take_what_is_counted_for_them() {
        // Of 16 bytes of hash key, 4 of place and a bit each.
        let slots = 256;
        assert_eq!(Shard::new(100, 7).bytes(), 2 * (slots * 20 + slots / 8));
        let mut shard = Shard::new(100, 7);
        let most = (0..slots).take_while(|entries| shard.has_room_for(*entries)).last().unwrap();
        assert!(most >= 100);
        for taken in 0..most {
            assert!(!shard.is_full());
            assert!(shard.has_room_for(most - taken) && !shard.has_room_for(most - taken + 1), "{taken}");
            shard.insert(HashKey((taken as u128) << 70), taken as u32);
        }
        assert!(shard.is_full() && !shard.has_room_for(1));
    }

    #[test]
    fn what_an_eviction_came_between_is_not_on_flash_as_it_was_seen() {
        let (mut shard, key) = (Shard::new(100, 7), HashKey(1 << 70));
        let before = shard.see(key);
        assert!(shard.is_on_flash_as(key, before));
        shard.turn_eviction();
        let amid = shard.see_absent();
        assert!(!shard.is_on_flash_as(key, before) && !shard.is_on_flash_as(key, amid));
        shard.turn_eviction();
        assert!([before, amid].map(|seen| shard.is_on_flash_as(key, seen)) == [false, false]);
        let after = shard.see(key);
        assert!(shard.is_on_flash_as(key, after));
        shard.insert(key, 0);
        assert!(!shard.is_on_flash_as(key, after), "it was written over");
        // What a buffer has is the same before an eviction and after it.
        let written = shard.see(key);
        shard.turn_eviction();
        assert!(shard.is_on_flash_as(key, written));
    }

    #[test]
    fn a_record_counts_as_read_until_another_is_written() {
        let mut shard = Shard::new(100, 7);
        let (a, b) = (HashKey(1 << 70), HashKey(2 << 70));
        shard.insert(a, 0);
        shard.insert(b, 8);
        let place = Place { buffer: 7, place: 0 };
        assert_eq!(shard.look(a), Some((place, false)));
        shard.note_read(a);
        assert_eq!(shard.look(a), Some((place, true)));
        assert_eq!(shard.look(b).map(|(_, was_read)| was_read), Some(false));
        assert_eq!(shard.get(a), Some(place));
        let mut sorted = Vec::new();
        shard.sorted(7, &mut sorted);
        assert_eq!(sorted, vec![(a, 0), (b, 8)]);
        shard.rotate(8);
        assert_eq!(shard.look(a), Some((place, true)));
        shard.insert(a, 16);
        assert_eq!(shard.look(a), Some((Place { buffer: 8, place: 16 }, false)));
        shard.note_read(HashKey(3 << 70));
        assert_eq!(shard.look(HashKey(3 << 70)), None);
    }

    #[test]
    fn what_was_read_or_wanted_is_wanted_of_the_buffer_that_has_it() {
        let mut shard = Shard::new(100, 7);
        let [a, b, c] = [1, 2, 3].map(|n| HashKey(n << 70));
        let wanted = |shard: &Shard, buffer| {
            let mut wanted = Vec::new();
            shard.wanted(buffer, &mut wanted);
            wanted.sort_unstable();
            wanted
        };
        for (place, hash) in [(0, a), (8, b), (16, c)] {
            shard.insert_wanted(hash, place, hash == b);
        }
        shard.note_read(a);
        assert_eq!(wanted(&shard, 7), vec![(a, 0), (b, 8)]);
        shard.rotate(8);
        shard.want(HashKey(4 << 70));
        // What was wanted before is wanted still, whichever buffer has it, and what comes new is not.
        for (place, hash) in [(0, a), (8, b), (16, c), (24, b), (32, HashKey(4 << 70))] {
            shard.insert_wanted(hash, place, false);
        }
        assert_eq!(wanted(&shard, 7), vec![(a, 0), (b, 8)]);
        assert_eq!(wanted(&shard, 8), vec![(a, 0), (b, 24)]);
        shard.want(c);
        shard.release(7);
        assert_eq!(wanted(&shard, 8), vec![(a, 0), (b, 24), (c, 16)]);
        shard.rotate(9);
        shard.release(8);
        shard.insert_wanted(b, 0, false);
        assert_eq!(wanted(&shard, 9), vec![], "it was in no buffer any more");
    }

    #[test]
    fn a_key_that_was_in_no_buffer_is_as_seen_until_it_is_written() {
        let mut shard = Shard::new(100, 7);
        let (a, b) = (HashKey(1 << 70), HashKey(2 << 70));
        let (a_seen, b_seen) = (shard.see(a), shard.see(b));
        shard.insert(a, 0);
        assert!(!shard.is_as(a, a_seen) && shard.is_as(b, b_seen));
        shard.rotate(8);
        shard.release(7);
        assert!(!shard.is_as(a, a_seen), "it was written and flushed");
        assert!(shard.is_as(b, shard.see(b)));
    }

    #[test]
    fn colliding_slots_are_told_apart_and_fullness_is_seen_in_time() {
        let mut shard = Shard::new(10, 0);
        let hashes: Vec<HashKey> = (0..).map(|n: u128| HashKey(n << 64)).take(64).collect();
        let mut inserted = 0;
        while !shard.is_full() {
            shard.insert(hashes[inserted], inserted as u32);
            inserted += 1;
        }
        assert_eq!(inserted, 10);
        for (place, hash) in hashes.iter().enumerate() {
            assert_eq!(shard.get(*hash).map(|found| found.place), (place < inserted).then_some(place as u32));
        }
    }
}
