//! The tier's index: hash key → place of its slot and how often it was asked for, in buckets that readers read without a lock.
//!
//! Invariants: an entry lies in its home bucket or in its second. A place is in one bucket, but for the moment in which it
//! moves: then it is in the new one before it leaves the old one. Whoever finds nothing in the home bucket, nothing in the
//! second, and the home bucket unchanged since, has seen a moment at which it was in neither.
//! Threads: any number of readers; one writer, who holds the part's lock. Readers count uses, and write nothing else: a use that
//! the writer's store of the same word overtakes is not counted.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use tapetum_base::memory::memory_word::Word;
use tapetum_base::memory::region::Region;
use tapetum_base::memory::sequence_lock::{is_unchanged, read, write};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::prefetch::prefetch;
use tapetum_kernels::tag_bucket::{
    BUCKET_BYTES, ENTRIES_AT, SLOTS, TAG_WORDS, TAGS_AT, TagEntry, TagHeader, WORDS, home_of, matches, other_of,
    tag_at, tag_of,
};

/// Entries of a bucket that the table is sized for: 90 %.
const SLOTS_FILLED: usize = SLOTS * 9 / 10;

pub struct TierTable<M = Region> {
    pub(super) words: M,
    buckets: u32,
    /// Changed by the writer alone.
    entries: AtomicU32,
}

#[derive(Clone, Copy)]
struct Spot {
    bucket: u32,
    slot: usize,
}

/// An entry, and its place at the time of a look.
#[derive(Clone, Copy)]
pub struct TierItem {
    pub entry: TagEntry,
    at: Spot,
}

impl TierTable {
    pub fn bytes_for(entries: usize) -> usize {
        entries.div_ceil(SLOTS_FILLED).max(1) * BUCKET_BYTES
    }
}

impl<M: Deref<Target = [W]>, W: Word> TierTable<M> {
    /// A table over zeroed words.
    pub fn new(words: M) -> TierTable<M> {
        TierTable::of(words, 0)
    }

    /// A table over words that hold so many entries.
    pub(super) fn of(words: M, entries: u32) -> TierTable<M> {
        let buckets = u32::try_from(words.len() / WORDS).expect("a table of less than 512 GiB");
        assert!(buckets > 0);
        TierTable { words, buckets, entries: AtomicU32::new(entries) }
    }

    fn bucket(&self, number: u32) -> &[W; WORDS] {
        let words = &self.words[number as usize * WORDS..][..WORDS];
        words.try_into().expect("a bucket's words")
    }

    fn tags(bucket: &[W; WORDS]) -> [u64; TAG_WORDS] {
        std::array::from_fn(|n| bucket[TAGS_AT + n].load(Ordering::Relaxed))
    }

    fn entry(bucket: &[W; WORDS], slot: usize) -> TagEntry {
        TagEntry((bucket[ENTRIES_AT + slot / 2].load(Ordering::Relaxed) >> (slot % 2 * 32)) as u32)
    }

    /// Prefetches the home bucket.
    #[inline]
    pub fn prefetch(&self, hash: HashKey) {
        let bucket = self.bucket(home_of(hash, self.buckets));
        prefetch(&bucket[0]);
        prefetch(&bucket[WORDS / 2]);
    }

    /// The place that a look would probably begin with: a hint, which may be anything.
    #[inline]
    pub fn peek(&self, hash: HashKey) -> Option<u32> {
        let bucket = self.bucket(home_of(hash, self.buckets));
        let found = matches(&Self::tags(bucket), tag_of(hash));
        (found != 0).then(|| Self::entry(bucket, found.trailing_zeros() as usize).place())
    }

    /// Shows `look` the entries that may be the key's, until it gives something. The result of a call is believed only if the bucket did not change
    /// meanwhile; `look` may be called again.
    #[inline]
    pub fn find<T>(&self, hash: HashKey, mut look: impl FnMut(TierItem) -> Option<T>) -> Option<T> {
        let tag = tag_of(hash);
        let home = home_of(hash, self.buckets);
        loop {
            let (header, found) = self.find_in(home, tag, &mut look);
            if found.is_some() || header.away() == 0 {
                return found;
            }
            let (_, found) = self.find_in(other_of(home, tag, self.buckets), tag, &mut look);
            if found.is_some() || is_unchanged(&self.bucket(home)[0], header) {
                return found;
            }
        }
    }

    #[inline]
    fn find_in<T>(
        &self,
        number: u32,
        tag: u16,
        look: &mut impl FnMut(TierItem) -> Option<T>,
    ) -> (TagHeader, Option<T>) {
        let bucket = self.bucket(number);
        read(&bucket[0], |header: TagHeader| {
            let mut found = matches(&Self::tags(bucket), tag);
            while found != 0 {
                let at = Spot { bucket: number, slot: found.trailing_zeros() as usize };
                let seen = look(TierItem { entry: Self::entry(bucket, at.slot), at });
                if seen.is_some() {
                    return (header, seen);
                }
                found &= found - 1;
            }
            (header, None)
        })
    }

    /// Counts a use of a found entry, if it is still as it was found.
    #[inline]
    pub fn note_use(&self, TierItem { entry, at }: TierItem) {
        let used = entry.used();
        if used == entry {
            return;
        }
        let (word, shift) = (&self.bucket(at.bucket)[ENTRIES_AT + at.slot / 2], at.slot % 2 * 32);
        let mut seen = word.load(Ordering::Relaxed);
        while (seen >> shift) as u32 == entry.0 {
            let new = seen ^ u64::from(entry.0 ^ used.0) << shift;
            match word.replace(seen, new) {
                Ok(_) => return,
                // Somebody counted a use of the entry beside it, which has only a few to count, or of this one.
                Err(now) => seen = now,
            }
        }
    }

    /// The entry of a key, if its slot is this one.
    pub fn entry_of(&self, hash: HashKey, place: u32) -> Option<TagEntry> {
        self.spot_of(hash, place).map(|at| Self::entry(self.bucket(at.bucket), at.slot))
    }

    /// How often a key's item was used, if its slot is this one; from now on it counts as `left` makes of it.
    pub fn change_uses(&self, hash: HashKey, place: u32, left: impl FnOnce(u8) -> u8) -> Option<u8> {
        let Spot { bucket, slot } = self.spot_of(hash, place)?;
        let bucket = self.bucket(bucket);
        let entry = Self::entry(bucket, slot);
        let (uses, left) = (entry.uses(), left(entry.uses()));
        if left != uses {
            // The word holds another entry too, and a reader that sees that one by this store must see its header as well.
            W::fence(Ordering::Release);
            put_entry(bucket, slot, entry.with_uses(left));
        }
        Some(uses)
    }

    /// Whether it has as many entries as it is sized for. More may go in, if there is a slot for them.
    pub fn is_full(&self) -> bool {
        self.entries.load(Ordering::Relaxed) as usize >= self.buckets as usize * SLOTS_FILLED
    }

    /// Puts an entry in; false if there is no slot for it. It must not be in yet.
    pub fn insert(&self, hash: HashKey, entry: TagEntry) -> bool {
        let inserted = self.find_slot_and_set(hash, entry);
        if inserted {
            self.entries.store(self.entries.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        inserted
    }

    fn find_slot_and_set(&self, hash: HashKey, entry: TagEntry) -> bool {
        let tag = tag_of(hash);
        let home = home_of(hash, self.buckets);
        let second = other_of(home, tag, self.buckets);
        let free = self.free_slot(home).or_else(|| self.send_home(home));
        if let Some(slot) = free {
            self.set(Spot { bucket: home, slot }, tag, entry, false);
            return true;
        }
        if second == home || !self.header(home).may_send() {
            return false;
        }
        if let Some(slot) = self.free_slot(second).or_else(|| self.send_home(second)) {
            self.count_away(home, 1);
            self.set(Spot { bucket: second, slot }, tag, entry, true);
            return true;
        }
        match self.send_away(home) {
            Some(slot) => {
                self.set(Spot { bucket: home, slot }, tag, entry, false);
                true
            }
            None => false,
        }
    }

    /// Takes the entry with this place out; whether it was in.
    pub fn remove(&self, hash: HashKey, place: u32) -> bool {
        let Some(at) = self.spot_of(hash, place) else { return false };
        let was_second = self.header(at.bucket).second() >> at.slot & 1 == 1;
        self.clear(at);
        if was_second {
            self.count_away(home_of(hash, self.buckets), -1);
        }
        self.entries.store(self.entries.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        true
    }

    fn header(&self, bucket: u32) -> TagHeader {
        TagHeader(self.bucket(bucket)[0].load(Ordering::Relaxed))
    }

    fn spot_of(&self, hash: HashKey, place: u32) -> Option<Spot> {
        let tag = tag_of(hash);
        let home = home_of(hash, self.buckets);
        [home, other_of(home, tag, self.buckets)].into_iter().find_map(|number| {
            let bucket = self.bucket(number);
            let found = matches(&Self::tags(bucket), tag);
            let slot = (0..SLOTS).find(|&slot| found >> slot & 1 == 1 && Self::entry(bucket, slot).place() == place)?;
            Some(Spot { bucket: number, slot })
        })
    }

    fn free_slot(&self, bucket: u32) -> Option<usize> {
        let free = matches(&Self::tags(self.bucket(bucket)), 0);
        (free != 0).then(|| free.trailing_zeros() as usize)
    }

    /// Moves an entry that is here in its second bucket to its home, if one's home has room; the slot that it leaves.
    fn send_home(&self, bucket: u32) -> Option<usize> {
        let (header, tags) = (self.header(bucket), Self::tags(self.bucket(bucket)));
        for slot in (0..SLOTS).filter(|slot| header.second() >> slot & 1 == 1) {
            let tag = tag_at(&tags, slot);
            let home = other_of(bucket, tag, self.buckets);
            if let Some(free) = self.free_slot(home) {
                self.set(Spot { bucket: home, slot: free }, tag, Self::entry(self.bucket(bucket), slot), false);
                self.clear(Spot { bucket, slot });
                self.count_away(home, -1);
                return Some(slot);
            }
        }
        None
    }

    /// Moves an entry that is at home here to its second bucket, if one's second has room; the slot that it leaves.
    fn send_away(&self, bucket: u32) -> Option<usize> {
        let (header, tags) = (self.header(bucket), Self::tags(self.bucket(bucket)));
        for slot in (0..SLOTS).filter(|slot| header.second() >> slot & 1 == 0) {
            let tag = tag_at(&tags, slot);
            let second = other_of(bucket, tag, self.buckets);
            if second != bucket
                && let Some(free) = self.free_slot(second)
            {
                self.count_away(bucket, 1);
                self.set(Spot { bucket: second, slot: free }, tag, Self::entry(self.bucket(bucket), slot), true);
                self.clear(Spot { bucket, slot });
                return Some(slot);
            }
        }
        None
    }

    /// Called before an entry goes away, and after it has come back: a look that sees no entry away may end.
    fn count_away(&self, bucket: u32, change: i64) {
        let header = self.header(bucket);
        let away = header.away().checked_add_signed(change).expect("none comes back that did not go");
        write(&self.bucket(bucket)[0], header.with_away(away), || ());
    }

    fn set(&self, at: Spot, tag: u16, entry: TagEntry, is_second: bool) {
        let header = self.header(at.bucket).with_second(at.slot, is_second);
        self.write_slot(at, header, tag, entry);
    }

    fn clear(&self, at: Spot) {
        let header = self.header(at.bucket).with_second(at.slot, false);
        self.write_slot(at, header, 0, TagEntry::default());
    }

    fn write_slot(&self, Spot { bucket, slot }: Spot, header: TagHeader, tag: u16, entry: TagEntry) {
        let bucket = self.bucket(bucket);
        write(&bucket[0], header, || {
            put(&bucket[TAGS_AT + slot / 4], slot % 4 * 16, u64::from(u16::MAX), tag.into());
            put_entry(bucket, slot, entry);
        });
    }

    /// Entries in their home buckets, and in their second ones.
    #[cfg(test)]
    pub fn spread(&self) -> (usize, usize) {
        (0..self.buckets).fold((0, 0), |(home, second), number| {
            let taken = SLOTS - matches(&Self::tags(self.bucket(number)), 0).count_ones() as usize;
            let seconds = self.header(number).second().count_ones() as usize;
            (home + taken - seconds, second + seconds)
        })
    }
}

fn put(word: &impl Word, shift: usize, mask: u64, value: u64) {
    let old = word.load(Ordering::Relaxed);
    word.store(old & !(mask << shift) | value << shift, Ordering::Relaxed);
}

fn put_entry<W: Word>(bucket: &[W; WORDS], slot: usize, entry: TagEntry) {
    put(&bucket[ENTRIES_AT + slot / 2], slot % 2 * 32, u64::from(u32::MAX), entry.0.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use tapetum_base::memory::region::{Account, page_bytes};
    use tapetum_kernels::tag_bucket::USES_MAX;

    fn table(buckets: usize) -> TierTable {
        let words = (buckets * WORDS).next_multiple_of(page_bytes() / 8);
        TierTable::new(Region::new(words, &Account::default()).unwrap())
    }

    fn hash(n: u64) -> HashKey {
        HashKey::of(&[7; 16], &n.to_le_bytes())
    }

    fn entry(place: u64) -> TagEntry {
        TagEntry::new(place as u32, false)
    }

    fn finds(table: &TierTable, n: u64, place: u32) -> bool {
        table.find(hash(n), |found| (found.entry.place() == place).then_some(())).is_some()
    }

    fn chance(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *state >> 33
    }

    /// A table kept at 90 % while entries come and go, beside a map.
    fn churned(table: &TierTable, rounds: usize) -> HashMap<u64, u32> {
        let entries = table.buckets as usize * SLOTS * 9 / 10;
        let (mut held, mut keys, mut state) = (HashMap::new(), Vec::new(), 1);
        for n in 0..(entries * rounds) as u64 {
            while keys.len() >= entries {
                let key = keys.swap_remove(chance(&mut state) as usize % keys.len());
                assert!(table.remove(hash(key), held.remove(&key).unwrap()));
            }
            if table.insert(hash(n), entry(n + 1)) {
                keys.push(n);
                held.insert(n, n as u32 + 1);
            }
        }
        assert!(keys.len() + 10 >= entries, "{} of {entries}", keys.len());
        held
    }

    #[test]
    fn is_a_map_at_nine_tenths_and_a_hit_reads_few_buckets() {
        let table = table(2048);
        let held = churned(&table, 5);
        for (key, place) in &held {
            assert!(finds(&table, *key, *place));
        }
        let (home, second) = table.spread();
        assert_eq!(home + second, held.len());
        assert!(table.is_full());
        let reads = (home + 2 * second) as f64 / held.len() as f64;
        assert!(reads <= 1.1, "{reads} buckets a hit");
        let false_tags: usize = (0..100_000u64)
            .map(|n| {
                let mut shown = 0;
                table.find(hash(n | 1 << 60), |_| {
                    shown += 1;
                    None::<()>
                });
                shown
            })
            .sum();
        assert!(false_tags < 1000, "{false_tags} tags of 100,000 looks for what is not there");
    }

    #[test]
    fn is_empty_again_when_all_is_taken_out() {
        let table = table(64);
        let held = churned(&table, 3);
        held.iter().for_each(|(key, place)| assert!(table.remove(hash(*key), *place)));
        assert_eq!((table.spread(), table.is_full()), ((0, 0), false));
        assert!((0..table.buckets).all(|bucket| table.header(bucket).away() == 0));
    }

    #[test]
    fn what_is_full_takes_no_more_and_loses_nothing() {
        let table = table(2);
        let taken: Vec<u64> = (0..10_000).filter(|n| table.insert(hash(*n), entry(*n))).collect();
        assert!(taken.len() <= table.buckets as usize * SLOTS);
        assert!(taken.iter().all(|n| finds(&table, *n, *n as u32)));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the point is real threads")]
    fn readers_always_find_what_only_moves() {
        let table = table(4);
        let stays: Vec<u64> = (0..20).collect();
        stays.iter().for_each(|n| assert!(table.insert(hash(*n), entry(*n))));
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        for n in &stays {
                            let found =
                                table.find(hash(*n), |found| (found.entry.place() == *n as u32).then_some(found));
                            table.note_use(found.expect("it only moves"));
                        }
                    }
                });
            }
            let mut state = 3;
            let mut others = Vec::new();
            for n in 100..60_000u64 {
                if table.insert(hash(n), entry(n)) {
                    others.push(n);
                }
                if others.len() > 50 || !others.is_empty() && chance(&mut state).is_multiple_of(3) {
                    let n = others.swap_remove(chance(&mut state) as usize % others.len());
                    assert!(table.remove(hash(n), n as u32));
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(stays.iter().all(|n| table.entry_of(hash(*n), *n as u32).is_some()));
    }

    #[test]
    fn uses_go_where_the_entry_goes() {
        let table = table(2);
        let found = |n: u64| table.find(hash(n), |found| (found.entry.place() == n as u32).then_some(found));
        assert!(table.insert(hash(0), TagEntry::new(0, false)));
        table.note_use(found(0).unwrap());
        let most = TierItem { entry: TagEntry::new(0, true).with_uses(USES_MAX), ..found(0).unwrap() };
        table.note_use(most);
        let uses = |n: u64| table.entry_of(hash(n), n as u32).map(|entry| (entry.uses(), entry.was_read()));
        assert_eq!(uses(0), Some((1, true)));
        // Others take every slot: some have to make room, and all keep what was counted.
        let others: Vec<u64> = (1..10_000).filter(|n| table.insert(hash(*n), entry(*n))).collect();
        assert!(others.len() > SLOTS && table.spread().1 > 0);
        assert_eq!(uses(0), Some((1, true)));
        assert!(others.iter().all(|n| uses(*n) == Some((0, false))));
        assert_eq!(table.change_uses(hash(0), 0, |uses| uses - 1), Some(1));
        assert_eq!(uses(0), Some((0, true)));
        // A use of an entry that was removed since is not counted.
        let seen = found(others[0]).unwrap();
        assert!(table.remove(hash(others[0]), others[0] as u32));
        table.note_use(seen);
        assert_eq!(uses(others[0]), None);
        assert!(others[1..].iter().all(|n| uses(*n) == Some((0, false))));
    }
}
