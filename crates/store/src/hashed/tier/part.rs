//! A part of the tier: memory for slots, the index over it, and the order in which items go.
//!
//! Threads: readers take no lock, except to note a use once in a while, if it is free. Putting in and taking out hold `classes`. The lock is taken
//! after a shard's, and nothing is taken after it.

use super::classes::{Classes, GRANULE_BYTES};
use super::ghosts::Ghosts;
use super::queues::TierItems;
use super::slab_class::SlabClass;
use super::table::TierTable;
use super::{Copied, Shape, slot};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tapetum_base::media::io::lock;
use tapetum_base::memory::region::{Account, Region, page_bytes};
use tapetum_base::request::item::{Access, ItemHead};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::prefetch::{CACHE_LINE_BYTES, prefetch};
use tapetum_kernels::tag_bucket::{PLACES, TagEntry};

/// A use is noted if the one before is this long ago: an item that is asked for all the time is written once a minute.
const ACCESSED_STEP_SECONDS: u32 = 60;
const GRANULE_WORDS: usize = GRANULE_BYTES / 8;
const CACHE_LINE_WORDS: usize = CACHE_LINE_BYTES / 8;
/// Bytes of memory for each entry that the index has room for: smaller items do not fill the memory.
const BYTES_PER_ENTRY: usize = 96;
/// Bytes of memory for each item that left and is remembered.
const BYTES_PER_GHOST: usize = 512;
/// Queues and lists take at most one part in this many of the memory of slots.
const LISTS_SHARE: usize = 10;
/// The most memory that a part can have.
pub const PART_BYTES_MAX: usize = PLACES as usize * GRANULE_BYTES;

pub struct TierPart {
    pub(super) table: TierTable,
    memory: Region,
    slab_words: usize,
    pub(super) classes: Mutex<Classes>,
    /// TierItems that were evicted for others.
    evictions: AtomicU64,
}

/// The items of a part as the queues ask for them.
struct PartItems<'a> {
    memory: &'a Region,
    table: &'a TierTable,
    now: u32,
}

impl PartItems<'_> {
    fn hash(&self, place: u32) -> HashKey {
        slot::hash(words_at(self.memory, place))
    }
}

impl TierItems for PartItems<'_> {
    fn change_uses(&self, place: u32, left: impl FnOnce(u8) -> u8) -> u8 {
        self.table.change_uses(self.hash(place), place, left).unwrap_or(0)
    }

    fn mark(&self, place: u32) -> u64 {
        mark_of(self.hash(place))
    }

    fn bytes(&self, place: u32) -> u64 {
        slot::item_bytes(words_at(self.memory, place)) as u64
    }

    fn idle_seconds(&self, place: u32) -> u32 {
        slot::idle_seconds(words_at(self.memory, place), self.now)
    }

    fn is_filled(&self, place: u32) -> bool {
        self.table.entry_of(self.hash(place), place).is_some()
    }
}

fn access(entry: TagEntry, words: &[AtomicU64], now: u32) -> Access {
    Access { was_read: entry.was_read(), idle_seconds: slot::idle_seconds(words, now) }
}

/// The mark by which an item that left is remembered: bits that do not choose its part.
fn mark_of(hash: HashKey) -> u64 {
    hash.0 as u64 & (u64::MAX >> 16) | (hash.prefix() & 0xffff) << 48
}

fn words_at(memory: &Region, place: u32) -> &[AtomicU64] {
    &memory[place as usize * GRANULE_WORDS..]
}

impl TierPart {
    /// Memory for slots that fits, with all that comes with it, into `bytes`; whole slabs.
    pub fn slots_bytes(bytes: usize, slab_bytes: usize) -> usize {
        let beside = |slots: usize| {
            TierTable::bytes_for(slots / BYTES_PER_ENTRY)
                + Ghosts::bytes_for(slots / BYTES_PER_GHOST)
                + slots / LISTS_SHARE
                + page_bytes()
        };
        let per_slab = slab_bytes + beside(slab_bytes);
        bytes / per_slab * slab_bytes
    }

    pub fn new(slots_bytes: usize, shape: Shape, account: &Account) -> io::Result<TierPart> {
        let table_bytes = TierTable::bytes_for(slots_bytes / BYTES_PER_ENTRY).next_multiple_of(page_bytes());
        let slabs = (slots_bytes / shape.slab_bytes) as u32;
        let ghosts = Ghosts::new(slots_bytes / BYTES_PER_GHOST);
        Ok(TierPart {
            table: TierTable::new(Region::new_huge(table_bytes / 8, account)?),
            memory: Region::new_huge(slots_bytes / 8, account)?,
            slab_words: shape.slab_bytes / 8,
            classes: Mutex::new(Classes::new(slabs, shape.slot_granules(), ghosts)),
            evictions: AtomicU64::new(0),
        })
    }

    #[inline]
    pub fn prefetch_bucket(&self, hash: HashKey) {
        self.table.prefetch(hash);
    }

    /// Prefetches the slot of the entry with the key's tag; whether there is one.
    #[inline]
    pub fn prefetch_slot(&self, hash: HashKey) -> bool {
        let Some(words) = self.table.peek(hash).and_then(|place| self.slot_words(place)) else { return false };
        // Two lines are enough to read the length: the processor prefetches the rest by itself.
        words.iter().step_by(CACHE_LINE_WORDS).take(2).for_each(|word| prefetch(word));
        true
    }

    /// The item; this counts as a use of it.
    #[inline]
    pub fn get(
        &self,
        hash: HashKey,
        now: u32,
        out: &mut Vec<u8>,
        head: impl FnMut(&mut Vec<u8>, &ItemHead, &dyn Fn() -> Access) -> bool,
    ) -> Option<ItemHead> {
        let copied = self.look(hash, now, out, head)?;
        self.note_use(hash, now, &copied);
        Some(copied.item)
    }

    #[inline]
    pub fn note_use(&self, hash: HashKey, now: u32, copied: &Copied) {
        self.table.note_use(copied.found);
        if copied.access.idle_seconds >= ACCESSED_STEP_SECONDS {
            self.note_accessed(hash, copied.found.entry.place(), now);
        }
    }

    /// Notes when an item was used, if nobody is changing the part.
    #[cold]
    fn note_accessed(&self, hash: HashKey, place: u32, now: u32) {
        let Ok(_classes) = self.classes.try_lock() else { return };
        let words = words_at(&self.memory, place);
        if slot::hash(words) == hash && self.table.entry_of(hash, place).is_some() {
            slot::set_accessed(words, now);
        }
    }

    /// As [`TierPart::get`], and nothing is counted.
    pub fn copy(&self, hash: HashKey, now: u32, out: &mut Vec<u8>) -> Option<Copied> {
        self.look(hash, now, out, |_, _, _| true)
    }

    /// Looks up an item and its entry; its value is appended to `out` behind what `head` appends.
    #[inline]
    fn look(
        &self,
        hash: HashKey,
        now: u32,
        out: &mut Vec<u8>,
        mut head: impl FnMut(&mut Vec<u8>, &ItemHead, &dyn Fn() -> Access) -> bool,
    ) -> Option<Copied> {
        let start = out.len();
        let found = self.table.find(hash, |found| {
            // An earlier look may have copied nonsense.
            out.truncate(start);
            let words = self.slot_words(found.entry.place())?;
            let (item, value) = slot::read(words, hash)?;
            let access = access(found.entry, words, now);
            let taken = head(out, &item, &|| access);
            if taken {
                slot::append_value(value, item.value_bytes, out);
            }
            Some((Copied { item, access, found }, taken))
        });
        let Some((copied, true)) = found else {
            out.truncate(start);
            return None;
        };
        Some(copied)
    }

    pub fn has(&self, hash: HashKey) -> bool {
        self.entry_of(hash).is_some()
    }

    /// The known use of an item, if it is here.
    pub fn access(&self, hash: HashKey, now: u32) -> Option<Access> {
        self.table.find(hash, |found| {
            let words = self.slot_words(found.entry.place())?;
            (slot::hash(words) == hash).then(|| access(found.entry, words, now))
        })
    }

    /// Puts an item in, if it is not in and there is a slot for it; whether it was put in.
    pub fn put(&self, hash: HashKey, now: u32, item: ItemHead, value: &[u8], access: Access) -> bool {
        let mut classes = lock(&self.classes);
        let bytes = slot::HEADER_BYTES + value.len();
        let Some(class) = classes.class_of(bytes) else { return false };
        if self.has(hash) {
            return false;
        }
        let mut out = 0;
        let evict = |place| {
            out += 1;
            let taken = self.table.remove(slot::hash(words_at(&self.memory, place)), place);
            assert!(taken, "a filled slot has an entry");
        };
        let slot = classes.take(class, self.table.is_full(), &self.items(now), evict);
        self.evictions.fetch_add(out, Ordering::Relaxed);
        let Some(slot) = slot else { return false };
        let entered = self.fill(slot.place, hash, now, item, value, access);
        if entered {
            classes.filled(class, &slot, bytes, mark_of(hash));
        } else {
            classes.give_back(class, slot);
        }
        entered
    }

    /// Writes an item into a slot that is taken, and names it in the index; false if there is no room there.
    pub(super) fn fill(
        &self,
        place: u32,
        hash: HashKey,
        now: u32,
        item: ItemHead,
        value: &[u8],
        access: Access,
    ) -> bool {
        slot::write(words_at(&self.memory, place), hash, item, value, now.wrapping_sub(access.idle_seconds));
        self.table.insert(hash, TagEntry::new(place, access.was_read))
    }

    /// Takes an item out, if it is in; whether it was. The caller ensures that nobody puts it in meanwhile.
    pub fn remove(&self, hash: HashKey) -> bool {
        // Most written keys are not in the tier: then no lock is taken.
        if !self.has(hash) {
            return false;
        }
        let mut classes = lock(&self.classes);
        let Some(place) = self.entry_of(hash).map(TagEntry::place) else { return false };
        let taken = self.table.remove(hash, place);
        assert!(taken, "an item has an entry");
        classes.emptied(place, slot::item_bytes(words_at(&self.memory, place)) as u64);
        true
    }

    /// The words from a place on that may be a slot, as many as the largest slot has; `None` if there is no such place.
    fn slot_words(&self, place: u32) -> Option<&[AtomicU64]> {
        let start = place as usize * GRANULE_WORDS;
        let end = (start + self.slab_words).min(self.memory.len());
        self.memory.get(start..end)
    }

    fn entry_of(&self, hash: HashKey) -> Option<TagEntry> {
        self.table.find(hash, |found| {
            let words = self.slot_words(found.entry.place())?;
            (slot::hash(words) == hash).then_some(found.entry)
        })
    }

    /// The item in a slot; `None` if it is empty. The caller holds `classes`.
    pub(super) fn item_at(&self, place: u32) -> Option<(HashKey, TagEntry)> {
        let hash = slot::hash(words_at(&self.memory, place));
        self.table.entry_of(hash, place).map(|entry| (hash, entry))
    }

    fn items(&self, now: u32) -> PartItems<'_> {
        PartItems { memory: &self.memory, table: &self.table, now }
    }

    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Memory that is taken beside the mapped regions.
    pub fn lists_bytes(&self) -> usize {
        lock(&self.classes).bytes() + Ghosts::bytes_for(self.memory.bytes() / BYTES_PER_GHOST)
    }

    /// Its classes, the smallest first.
    pub fn slabs(&self, now: u32) -> Vec<SlabClass> {
        lock(&self.classes).slabs(&self.items(now)).collect()
    }
}
