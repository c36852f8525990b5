//! Hot items of a part of the tier, for a list that outlives it, and how the items of such a list come in again.
//!
//! An item is hot if it was used since it came or since its last turn, or is in the main queue, into which only used items come. An item of the list
//! goes back into the main queue, where a scan does not reach it, and evicts nothing: items asked for since the store was opened are the better
//! choice.
//!
//! Threads: as in [`super::part`]. The lock is held for a few items at a time.

use super::part::TierPart;
use super::slot;
use std::ops::ControlFlow;
use tapetum_base::media::io::lock;
use tapetum_base::request::item::{Access, ItemHead};
use tapetum_kernels::hash::HashKey;

/// Slots that are looked at under one lock.
const SLOTS_PER_LOCK: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heat {
    /// Asked for since it came, or since its last turn.
    Used,
    /// In the main queue, and not asked for since its last turn.
    Kept,
}

/// The result of putting an item back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    Put,
    /// It was there already.
    There,
    /// Something would have had to be evicted for it.
    NoRoom,
}

impl TierPart {
    /// Shows `visit` the items of this heat, the latest first.
    pub fn hot(&self, heat: Heat, visit: &mut impl FnMut(&[HashKey]) -> ControlFlow<()>) -> ControlFlow<()> {
        let mut hashes = Vec::with_capacity(SLOTS_PER_LOCK);
        let classes = lock(&self.classes).count();
        for class in 0..classes {
            let mut passed = 0;
            while self.hot_of(class, passed, heat, &mut hashes) {
                passed += SLOTS_PER_LOCK;
                if !hashes.is_empty() {
                    visit(&hashes)?;
                }
                hashes.clear();
            }
        }
        ControlFlow::Continue(())
    }

    /// Gathers the items of this heat among the next slots of a class; whether there were any slots.
    fn hot_of(&self, class: usize, passed: usize, heat: Heat, hashes: &mut Vec<HashKey>) -> bool {
        let classes = lock(&self.classes);
        let mut slots = classes.queues(class).latest(passed).take(SLOTS_PER_LOCK).peekable();
        let any = slots.peek().is_some();
        // A slot keeps its place in the queue when its item is taken out.
        hashes.extend(slots.filter_map(|(place, in_main)| {
            let (hash, entry) = self.item_at(place)?;
            let found = if entry.uses() > 0 { Some(Heat::Used) } else { in_main.then_some(Heat::Kept) };
            (found == Some(heat)).then_some(hash)
        }));
        any
    }

    /// Puts an item in if it is not in and nothing has to be evicted for it.
    pub fn put_back(&self, hash: HashKey, now: u32, item: ItemHead, value: &[u8], access: Access) -> Fit {
        let mut classes = lock(&self.classes);
        let bytes = slot::HEADER_BYTES + value.len();
        let Some(class) = classes.class_of(bytes) else { return Fit::NoRoom };
        if self.has(hash) {
            return Fit::There;
        }
        if self.table.is_full() {
            return Fit::NoRoom;
        }
        let Some(slot) = classes.take_free(class) else { return Fit::NoRoom };
        if self.fill(slot.place, hash, now, item, value, access) {
            classes.filled_anew(class, &slot, bytes);
            return Fit::Put;
        }
        classes.give_back(class, slot);
        Fit::NoRoom
    }
}
