//! The DRAM tier: copies of items that flash has, for those that are asked for often (flash KVS).
//!
//! Invariant: the tier holds an item only as flash has it, valid and with its newest stamp, or not at all. So a hit is the answer. Three rules keep
//! it, under the lock of the key's shard:
//! 1. An item is put in only if its key was not written since it was read ([`crate::hashed::buffer::Shard::is_on_flash_as`]) or flushed
//!    (`hashed/flush/mod.rs`).
//! 2. A write of the key removes it before the write is seen ([`Tier::remove`]), unless a write buffer has the key and no flush gives it to the tier
//!    yet ([`crate::hashed::buffer::Shard::insert_wanted`]): then it is not here.
//! 3. An eviction from flash removes it before the index forgets the key.
//!
//! An item that the collector moves stays the same item. Expiry and deletions of everything are checked on the way out.
//!
//! Nothing of it is on flash: after a restart it is empty, until items are asked for or it is warmed (see [`hot`]).
//!
//! Threads: readers wait for no lock. See [`part`] for the rest.

pub mod access;
mod classes;
mod ghosts;
mod hit_counts;
mod hot;
#[cfg(test)]
mod models;
mod part;
mod queues;
mod slab_class;
mod slot;
mod table;
pub mod warm;

use classes::{GRANULE_BYTES, slot_sizes};
pub use hit_counts::{HitCounts, Hits};
pub use hot::Fit;
use hot::Heat;
use part::{PART_BYTES_MAX, TierPart};
pub use slab_class::{SlabClass, SlabQueue};
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use table::TierItem;
use tapetum_base::memory::region::Account;
use tapetum_base::options::Slabs;
use tapetum_base::request::item::{Access, ItemHead};
use tapetum_kernels::hash::HashKey;

/// Memory for each part, about: parts are written independently.
const PART_BYTES: usize = 64 << 20;
const PARTS_MAX: usize = 16;
/// A part has at least this many slabs, unless their size was given.
const SLABS_MIN: usize = 64;
/// The paper's slab, and the largest.
const SLAB_BYTES_MAX: usize = 10 << 20;
const SLAB_BYTES_MIN: usize = 4 << 10;

pub struct Copied {
    pub item: ItemHead,
    /// Before it was copied.
    pub access: Access,
    found: TierItem,
}

/// How memory is cut.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The largest item with its header; a whole number of granules.
    pub slab_bytes: usize,
    /// Slots of a class ÷ those of the class before.
    pub factor: f64,
}

impl Shape {
    /// Granules of a slot of each class, the smallest first.
    fn slot_granules(&self) -> Vec<u32> {
        slot_sizes((self.slab_bytes / GRANULE_BYTES) as u32, self.factor)
    }
}

pub struct Tier {
    parts: Box<[TierPart]>,
    hits: Hits,
    account: Account,
}

impl Tier {
    /// A tier that takes at most `bytes`; `None` where that is too little for any.
    pub fn new(bytes: u64, slabs: Slabs) -> io::Result<Option<Tier>> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let slab_asked = slabs.slab_bytes.map(usize::try_from).transpose().map_err(io::Error::other)?;
        let parts = (bytes / PART_BYTES.max(slab_asked.unwrap_or(0) * SLABS_MIN)).clamp(1, PARTS_MAX);
        let parts = parts.max(bytes.div_ceil(PART_BYTES_MAX));
        let part_bytes = bytes / parts;
        let slab_fitting = (part_bytes / SLABS_MIN).clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX);
        let slab_bytes = slab_asked.unwrap_or(slab_fitting / SLAB_BYTES_MIN * SLAB_BYTES_MIN);
        let slots_bytes = TierPart::slots_bytes(part_bytes, slab_bytes);
        if slots_bytes == 0 {
            return Ok(None);
        }
        let (shape, account) = (Shape { slab_bytes, factor: slabs.factor }, Account::default());
        let parts = (0..parts).map(|_| TierPart::new(slots_bytes, shape, &account)).collect::<io::Result<_>>()?;
        let hits = Hits::new(shape.slot_granules());
        Ok(Some(Tier { parts, hits, account }))
    }

    #[inline]
    fn part(&self, hash: HashKey) -> &TierPart {
        let chosen = (hash.0 >> 48) as u16;
        &self.parts[(usize::from(chosen) * self.parts.len()) >> 16]
    }

    /// First step of a look: prefetches the index's bucket.
    #[inline]
    pub fn prefetch_bucket(&self, hash: HashKey) {
        self.part(hash).prefetch_bucket(hash);
    }

    /// Second step: prefetches the item; whether it is probably here.
    #[inline]
    pub fn prefetch_slot(&self, hash: HashKey) -> bool {
        self.part(hash).prefetch_slot(hash)
    }

    /// Appends to `out` what `head` does, which is shown the item and its use before, and then the value, if the item is here and
    /// `head` does not refuse it. `now` is the Unix second, as everywhere here.
    #[inline]
    pub fn get(
        &self,
        hash: HashKey,
        now: u32,
        out: &mut Vec<u8>,
        head: impl FnMut(&mut Vec<u8>, &ItemHead, &dyn Fn() -> Access) -> bool,
    ) -> Option<ItemHead> {
        self.part(hash).get(hash, now, out, head)
    }

    /// Counts a use of an item that was copied.
    pub fn note_use(&self, hash: HashKey, now: u32, copied: &Copied) {
        self.part(hash).note_use(hash, now, copied);
    }

    /// Whether the item is here.
    pub fn has(&self, hash: HashKey) -> bool {
        self.part(hash).has(hash)
    }

    /// The item, its value appended to `out`. No use is counted.
    pub fn copy(&self, hash: HashKey, now: u32, out: &mut Vec<u8>) -> Option<Copied> {
        self.part(hash).copy(hash, now, out)
    }

    /// The known use of an item, if it is here.
    pub fn access(&self, hash: HashKey, now: u32) -> Option<Access> {
        self.part(hash).access(hash, now)
    }

    /// Puts an item in, if it is not in yet; others may be evicted. The caller holds the lock of the key's shard, and knows that flash has this item.
    pub fn put(&self, hash: HashKey, now: u32, item: ItemHead, value: &[u8], access: Access) -> bool {
        self.part(hash).put(hash, now, item, value, access)
    }

    /// As [`Tier::put`], for an item that was asked for before the store was opened: nothing is evicted for it.
    pub fn put_back(&self, hash: HashKey, now: u32, item: ItemHead, value: &[u8], access: Access) -> Fit {
        self.part(hash).put_back(hash, now, item, value, access)
    }

    /// Shows `visit` the items that are worth their place, some at a time, the most used first, until it breaks off. Items that come, go or move
    /// meanwhile may be missing or come twice.
    pub fn hot(&self, mut visit: impl FnMut(&[HashKey]) -> ControlFlow<()>) {
        let turns =
            [Heat::Used, Heat::Kept].into_iter().flat_map(|heat| self.parts.iter().map(move |part| (heat, part)));
        // `visit` keeps its own reason for breaking off.
        let _ = turns.into_iter().try_for_each(|(heat, part)| part.hot(heat, &mut visit));
    }

    /// Takes an item out, if it is in; whether it was. The caller holds the lock of the key's shard.
    pub fn remove(&self, hash: HashKey) -> bool {
        self.part(hash).remove(hash)
    }

    /// Gets that found their item here, as far as sessions have reported them.
    pub fn hits(&self) -> &Hits {
        &self.hits
    }

    /// Items that were evicted for others.
    pub fn evictions(&self) -> u64 {
        self.parts.iter().map(TierPart::evictions).sum()
    }

    /// Memory that the tier takes.
    pub fn bytes(&self) -> u64 {
        let lists: usize = self.parts.iter().map(TierPart::lists_bytes).sum();
        (self.account.load(Ordering::Relaxed) + lists) as u64
    }

    /// Its classes, the smallest first, all parts together.
    pub fn slabs(&self, now: u32) -> Vec<SlabClass> {
        let mut parts = self.parts.iter().map(|part| part.slabs(now));
        let mut classes = parts.next().unwrap_or_default();
        for part in parts {
            classes.iter_mut().zip(part).for_each(|(class, other)| class.join(&other));
        }
        classes.iter_mut().zip(self.hits.each()).for_each(|(class, hits)| class.hits = hits);
        classes
    }
}

#[cfg(test)]
mod tests;
