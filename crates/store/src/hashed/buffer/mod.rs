//! The write buffer's tables: hash key → place in the arena, split into shards by the hash key's top bits.
//!
//! A shard has a table for each buffer: the active one and, while it is flushed, the sealed one. A reader looks at the
//! active table first, so it sees the latest. Everything of a shard is behind its lock, but for what a [`Glance`] sees. The shards
//! are the index's partitions, so a sorted shard is a slice of the sorted buffer.

mod table;
pub mod write_buffers;

use crate::hashed::large::LargeExtents;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use table::{BufferTable, Lines, READ, Tables, place_of};
pub use tapetum_base::log::Place;
use tapetum_base::media::geometry::BUFFERS;
use tapetum_kernels::block_group::group_hash;
use tapetum_kernels::hash::HashKey;

/// A record that was found in a shard's table. It holds until the key is written or its buffer released.
pub struct BufferedPlace {
    pub place: Place,
    /// Whether it was read since it was written.
    pub was_read: bool,
    slot: usize,
}

/// A key's state in a shard at one moment. Later it tells whether the key has been written since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    place: Option<Place>,
    /// The active buffer at that moment: a later write is in this buffer or in a later one.
    active: u64,
    evictions: u64,
}

/// The number of a shard's table for a buffer, among all tables.
fn table_number(shard: usize, buffer: u64) -> usize {
    shard * BUFFERS as usize + (buffer % BUFFERS) as usize
}

/// A look at all shards' tables without a lock, for hints: its answer may be outdated, or may never have been true.
pub struct Glance {
    tables: Arc<Tables>,
    active: AtomicU64,
    oldest: AtomicU64,
    /// The sealed buffer's items are being given to the DRAM tier.
    giving: AtomicBool,
}

impl Glance {
    fn lines(&self, shard: usize, buffer: u64) -> Lines<'_> {
        self.tables.lines(table_number(shard, buffer))
    }

    /// The buffers there are, the latest first.
    fn buffers(&self) -> (u64, Option<u64>) {
        let (active, oldest) = (self.active.load(Relaxed), self.oldest.load(Relaxed));
        (active, (oldest < active).then_some(oldest))
    }

    /// Prefetches the line that a look for a key reads first.
    #[inline]
    pub fn prefetch(&self, shard: usize, hash: HashKey) {
        let (active, sealed) = self.buffers();
        self.lines(shard, active).prefetch(hash);
        if let Some(sealed) = sealed {
            self.lines(shard, sealed).prefetch(hash);
        }
    }

    /// The place of a key's latest record.
    #[inline]
    pub fn look(&self, shard: usize, hash: HashKey) -> Option<Place> {
        let (active, sealed) = self.buffers();
        let place_in = |buffer| self.lines(shard, buffer).glance(hash).map(|place| Place { buffer, place });
        place_in(active).or_else(|| place_in(sealed?))
    }

    pub fn rotate(&self, active: u64) {
        self.active.store(active, Relaxed);
    }

    pub fn release(&self, buffer: u64) {
        self.oldest.store(buffer + 1, Relaxed);
        self.giving.store(false, Relaxed);
    }

    pub fn begin_giving(&self) {
        self.giving.store(true, Relaxed);
    }

    pub fn is_giving(&self) -> bool {
        self.giving.load(Relaxed)
    }
}

pub struct Shard {
    tables: [BufferTable; BUFFERS as usize],
    active: u64,
    /// The oldest buffer that is not flushed yet.
    oldest: u64,
    /// Incremented when an eviction begins to take keys of this shard from flash, and again when it has done so: odd between.
    evictions: u64,
    /// The DRAM tier may have items of the sealed buffer.
    wanted_given: bool,
    /// The extents of the large values in a buffer, by the record's place; those of overwritten records, too.
    large: [BTreeMap<u32, Arc<LargeExtents>>; BUFFERS as usize],
    /// The groups of which a buffer has blocks.
    groups: [HashSet<HashKey>; BUFFERS as usize],
    /// Where keys were that have been written since a moment that somebody copies.
    before: Option<BTreeMap<HashKey, Option<Place>>>,
}

impl Shard {
    /// Makes `count` shards, each with room for `entries_max` entries of a buffer, and the glance at them. The first buffer is `buffer`. The tables
    /// take all their memory at once.
    pub fn many(count: usize, entries_max: usize, buffer: u64) -> io::Result<(Vec<Shard>, Glance)> {
        let tables = Arc::new(Tables::new(count * BUFFERS as usize, entries_max)?);
        let make = |number: usize| {
            let tables = [0, 1].map(|at| BufferTable::new(&tables, table_number(number, at)));
            let (large, groups) = Default::default();
            Shard {
                tables,
                active: buffer,
                oldest: buffer,
                evictions: 0,
                wanted_given: false,
                large,
                groups,
                before: None,
            }
        };
        let shards = (0..count).map(make).collect();
        let (active, oldest) = (AtomicU64::new(buffer), AtomicU64::new(buffer));
        Ok((shards, Glance { tables, active, oldest, giving: AtomicBool::new(false) }))
    }

    #[cfg(test)]
    fn new(entries_max: usize, buffer: u64) -> Shard {
        Shard::many(1, entries_max, buffer).unwrap().0.remove(0)
    }

    fn table(&self, buffer: u64) -> &BufferTable {
        &self.tables[(buffer % BUFFERS) as usize]
    }

    pub fn get(&self, hash: HashKey) -> Option<Place> {
        self.look(hash).map(|(place, _)| place)
    }

    /// As [`Shard::get`], and whether the record was read since it was written.
    pub fn look(&self, hash: HashKey) -> Option<(Place, bool)> {
        self.find(hash).map(|BufferedPlace { place, was_read, .. }| (place, was_read))
    }

    /// The latest record of a key.
    pub fn find(&self, hash: HashKey) -> Option<BufferedPlace> {
        self.find_in(self.active, hash).or_else(|| self.find_in(self.sealed()?, hash))
    }

    fn find_in(&self, buffer: u64, hash: HashKey) -> Option<BufferedPlace> {
        let (slot, word) = self.table(buffer).find(hash)?;
        Some(BufferedPlace { place: Place { buffer, place: place_of(word)? }, was_read: word & READ != 0, slot })
    }

    /// Marks the found record as read. It must still be there.
    pub fn note_read_of(&mut self, found: &BufferedPlace) {
        self.tables[(found.place.buffer % BUFFERS) as usize].note_read(found.slot);
    }

    /// Marks the record of a key in a buffer as read.
    pub fn note_read(&mut self, hash: HashKey) {
        if let Some(found) = self.find(hash) {
            self.note_read_of(&found);
        }
    }

    /// Asks that the DRAM tier get this key's item when it is on flash, if a buffer has the key.
    pub fn want(&mut self, hash: HashKey) {
        if let Some(BufferedPlace { place, slot, .. }) = self.find(hash) {
            self.tables[(place.buffer % BUFFERS) as usize].set_wanted(slot, true);
        }
    }

    /// The DRAM tier may have items of the sealed buffer from now on.
    pub fn begin_giving(&mut self) {
        self.wanted_given = true;
    }

    /// Whether the DRAM tier may have the item at a place, which is on flash by now too.
    pub fn is_giving(&self, place: Place) -> bool {
        self.wanted_given && self.sealed() == Some(place.buffer)
    }

    /// Hash keys and places of a buffer's items that the DRAM tier is to have.
    pub fn wanted(&self, buffer: u64, into: &mut Vec<(HashKey, u32)>) {
        let table = self.table(buffer);
        into.clear();
        let wanted = table.entries().filter(|(slot, ..)| table.is_wanted(*slot) == Some(true));
        into.extend(wanted.map(|(_, hash, place)| (hash, place)));
    }

    /// Every key, and where its latest record is.
    pub fn latest(&self) -> impl Iterator<Item = (HashKey, Place)> + '_ {
        let of = |buffer| self.table(buffer).entries().map(move |(_, hash, place)| (hash, Place { buffer, place }));
        (self.oldest..=self.active).flat_map(of).filter(|(hash, place)| self.get(*hash) == Some(*place))
    }

    /// From here on it notes where keys were before they are written, until [`Shard::at_moment`].
    pub fn begin_moment(&mut self) {
        self.before = Some(BTreeMap::new());
    }

    /// As [`Shard::latest`], at the moment of [`Shard::begin_moment`]. No buffer may have been released since.
    pub fn at_moment(&mut self) -> impl Iterator<Item = (HashKey, Place)> + '_ {
        let before = self.before.take().unwrap_or_default();
        let written: Vec<_> = before.iter().filter_map(|(hash, place)| Some((*hash, (*place)?))).collect();
        self.latest().filter(move |(hash, _)| !before.contains_key(hash)).chain(written)
    }

    fn note_before(&mut self, hash: HashKey) {
        let place = self.get(hash);
        if let Some(before) = &mut self.before {
            before.entry(hash).or_insert(place);
        }
    }

    /// Whether the active table takes no further key.
    pub fn is_full(&self) -> bool {
        self.table(self.active).is_full()
    }

    /// Room left in the active table.
    pub fn has_room_for(&self, entries: usize) -> bool {
        self.table(self.active).has_room_for(entries)
    }

    pub fn insert(&mut self, hash: HashKey, place: u32) {
        if self.before.is_some() {
            self.note_before(hash);
        }
        let table = &mut self.tables[(self.active % BUFFERS) as usize];
        let slot = table.slot(hash);
        table.fill(slot, hash, place);
    }

    /// As [`Shard::insert`], in a store with a DRAM tier. The tier gets the item when it is on flash, if it had the previous one or was to get it.
    /// `tier_had` is called only for a key that the tier can have: a key in a buffer only if the tier was given that buffer's item.
    pub fn insert_wanted(&mut self, hash: HashKey, place: u32, tier_had: impl FnOnce() -> bool) {
        if self.before.is_some() {
            self.note_before(hash);
        }
        let active = (self.active % BUFFERS) as usize;
        let slot = self.tables[active].slot(hash);
        let wanted = self.tables[active].is_wanted(slot).unwrap_or_else(|| {
            let sealed = self.sealed().map(|buffer| self.table(buffer));
            match sealed.and_then(|table| table.is_key_wanted(hash)) {
                Some(was_wanted) if !self.wanted_given => was_wanted,
                was_wanted => tier_had() || was_wanted == Some(true),
            }
        });
        self.tables[active].fill(slot, hash, place);
        self.tables[active].set_wanted(slot, wanted);
    }

    /// Holds the extents that a record names until its buffer is released.
    pub fn insert_large(&mut self, place: Place, extents: Arc<LargeExtents>) {
        self.large[(place.buffer % BUFFERS) as usize].insert(place.place, extents);
    }

    /// The extents that a record in a buffer names.
    pub fn large(&self, place: Place) -> Option<Arc<LargeExtents>> {
        self.large[(place.buffer % BUFFERS) as usize].get(&place.place).cloned()
    }

    /// How many bytes more a flush writes than it would from the records alone, if a block's record of `record_bytes` goes to the active buffer. The
    /// block's group may take `group_bytes`. Once the record is in the buffer, the caller calls [`Shard::note_group`].
    pub fn group_growth(&self, hash: HashKey, group_bytes: usize, record_bytes: usize) -> i64 {
        let is_known = self.groups[(self.active % BUFFERS) as usize].contains(&group_hash(hash));
        let group_bytes = if is_known { 0 } else { group_bytes as i64 };
        group_bytes - record_bytes as i64
    }

    /// Notes that the active buffer has a block of this hash key.
    pub fn note_group(&mut self, hash: HashKey) {
        self.groups[(self.active % BUFFERS) as usize].insert(group_hash(hash));
    }

    /// The state of the key at this moment.
    pub fn see(&self, hash: HashKey) -> Seen {
        Seen { place: self.get(hash), active: self.active, evictions: self.evictions }
    }

    /// As [`Shard::see`], for a key that was found to be in no buffer.
    pub fn see_absent(&self) -> Seen {
        Seen { place: None, active: self.active, evictions: self.evictions }
    }

    /// Whether the key was not written since it was seen. A key that was in no buffer could have been in one and out again only if a later buffer was
    /// flushed; that counts as a write.
    pub fn is_as(&self, hash: HashKey, seen: Seen) -> bool {
        self.get(hash) == seen.place && (seen.place.is_some() || self.oldest <= seen.active)
    }

    /// Whether the item that was read from flash is still the key's item: not overwritten, and not evicted, since others may already have been told
    /// that an evicted item is gone.
    pub fn is_on_flash_as(&self, hash: HashKey, seen: Seen) -> bool {
        let evicted = seen.place.is_none() && (seen.evictions != self.evictions || seen.evictions % 2 == 1);
        self.is_as(hash, seen) && !evicted
    }

    /// Notes that an eviction begins to take keys of this shard from flash, or has ended.
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
        assert_eq!(self.table(buffer).count(), 0);
    }

    /// Forgets the oldest buffer, which has become a segment.
    pub fn release(&mut self, buffer: u64) {
        assert!(buffer == self.oldest && buffer < self.active);
        self.tables[(buffer % BUFFERS) as usize].clear();
        self.large[(buffer % BUFFERS) as usize].clear();
        self.groups[(buffer % BUFFERS) as usize].clear();
        self.oldest += 1;
        self.wanted_given = false;
    }

    /// Hash keys and places of a buffer, sorted by hash key.
    pub fn sorted(&self, buffer: u64, into: &mut Vec<(HashKey, u32)>) {
        into.clear();
        into.extend(self.table(buffer).entries().map(|(_, hash, place)| (hash, place)));
        into.sort_unstable_by_key(|entry| entry.0);
    }

    /// Keys in both tables.
    pub fn entries(&self) -> usize {
        self.tables.iter().map(|table| table.count()).sum()
    }

    pub fn bytes(&self) -> usize {
        self.tables.iter().map(BufferTable::bytes).sum()
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
    fn a_moment_has_what_was_there_whatever_is_written_before_it_is_copied() {
        let mut shard = Shard::new(100, 7);
        let [a, b, c, d] = [1, 2, 3, 4].map(|n| HashKey(n << 70));
        shard.insert(a, 0);
        shard.insert(b, 8);
        shard.rotate(8);
        shard.insert(b, 0);
        shard.begin_moment();
        shard.insert(a, 8);
        shard.insert(b, 16);
        shard.insert(b, 24);
        shard.insert_wanted(c, 32, || false);
        let mut found: Vec<_> = shard.at_moment().collect();
        found.sort_unstable_by_key(|(hash, _)| *hash);
        assert_eq!(found, [(a, Place { buffer: 7, place: 0 }), (b, Place { buffer: 8, place: 0 })]);
        shard.insert(d, 40);
        assert_eq!(shard.at_moment().count(), 4, "it notes nothing any more");
    }

    #[test]
    fn the_tier_is_asked_only_of_keys_that_it_can_have() {
        let mut shard = Shard::new(100, 7);
        let key = HashKey(1 << 70);
        let insert = |shard: &mut Shard| {
            let mut asked = false;
            shard.insert_wanted(key, 0, || std::mem::replace(&mut asked, true));
            asked
        };
        assert!(insert(&mut shard), "no buffer has it");
        assert!(!insert(&mut shard), "the active one has it");
        shard.rotate(8);
        assert!(!insert(&mut shard), "the sealed one has it");
        shard.release(7);
        shard.rotate(9);
        shard.begin_giving();
        assert!(insert(&mut shard), "the tier may have been given it");
        shard.release(8);
        shard.rotate(10);
        assert!(!insert(&mut shard), "of this one the tier was given nothing yet");
        shard.release(9);
        shard.rotate(11);
        shard.release(10);
        assert!(insert(&mut shard), "no buffer has it");
    }

    #[test]
    fn a_glance_sees_the_latest_record_of_a_key() {
        let (mut shards, glance) = Shard::many(3, 100, 7).unwrap();
        let [a, b] = [1, 2].map(|n| HashKey(n << 70));
        let found = |buffer, place| Some(Place { buffer, place });
        shards[2].insert(a, 0);
        shards[2].insert(b, 8);
        assert_eq!([0, 1, 2].map(|shard| glance.look(shard, a)), [None, None, found(7, 0)]);
        shards.iter_mut().for_each(|shard| shard.rotate(8));
        glance.rotate(8);
        shards[2].insert(a, 16);
        shards[2].note_read(a);
        assert_eq!([a, b].map(|key| glance.look(2, key)), [found(8, 16), found(7, 8)]);
        shards.iter_mut().for_each(|shard| shard.release(7));
        glance.release(7);
        assert_eq!([a, b].map(|key| glance.look(2, key)), [found(8, 16), None]);
    }

    #[test]
    fn tables_take_what_is_counted_for_them() {
        // Three entries share a cache line. A quarter of the slots and some more stay free.
        let slots: usize = 100 * 4 / 3 + 8;
        assert_eq!(Shard::new(100, 7).bytes(), 2 * slots.div_ceil(3) * 64);
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
        // An eviction does not change the state of a key in a buffer.
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
            shard.insert_wanted(hash, place, || hash == b);
        }
        shard.note_read(a);
        assert_eq!(wanted(&shard, 7), vec![(a, 0), (b, 8)]);
        shard.rotate(8);
        shard.want(HashKey(4 << 70));
        // Items that were wanted are still wanted, whichever buffer has them. New ones are not.
        for (place, hash) in [(0, a), (8, b), (16, c), (24, b), (32, HashKey(4 << 70))] {
            shard.insert_wanted(hash, place, || false);
        }
        assert_eq!(wanted(&shard, 7), vec![(a, 0), (b, 8)]);
        assert_eq!(wanted(&shard, 8), vec![(a, 0), (b, 24)]);
        shard.want(c);
        shard.release(7);
        assert_eq!(wanted(&shard, 8), vec![(a, 0), (b, 24), (c, 16)]);
        shard.rotate(9);
        shard.release(8);
        shard.insert_wanted(b, 0, || false);
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
