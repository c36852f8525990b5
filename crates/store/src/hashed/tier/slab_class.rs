//! A class of the DRAM tier as `stats slabs` and `stats items` show it.

use super::queues::TierItems;
use super::slot::HEADER_BYTES;
use std::collections::VecDeque;

/// Slots of a queue among which one with an item is looked for.
const PLACES_LOOKED_AT: usize = 8;

/// A class of slots of the DRAM tier, as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlabClass {
    pub slot_bytes: usize,
    pub slabs: u64,
    pub slots: u64,
    pub slots_used: u64,
    /// Slots that were filled so far.
    pub puts: u64,
    /// TierItems evicted for others, and those of them that nobody asked for since they came.
    pub evictions: u64,
    pub evictions_unused: u64,
    /// How long the last that left in its turn had not been asked for; of several parts, the longest.
    pub evicted_idle_seconds: u32,
    /// Gets that found their item in one of these slots, of any part.
    pub hits: u64,
    /// Bytes of what the slots hold, with a header each.
    pub item_bytes: u64,
    pub small: SlabQueue,
    pub main: SlabQueue,
    /// TierItems that were asked for again while they were in the small queue, and so came into the main one.
    pub moves_to_main: u64,
    /// Turns of the main queue that let their item stay.
    pub moves_within_main: u64,
}

/// One of the two queues of a class.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SlabQueue {
    /// Slots, empty ones too.
    pub slots: u64,
    /// How long the item whose turn is next has not been asked for; 0 if there is none in the next few slots.
    pub idle_seconds: u32,
}

impl SlabQueue {
    pub(super) fn of(places: &VecDeque<u32>, items: &impl TierItems) -> SlabQueue {
        let next = places.iter().take(PLACES_LOOKED_AT).find(|place| items.is_filled(**place));
        SlabQueue { slots: places.len() as u64, idle_seconds: next.map_or(0, |place| items.idle_seconds(*place)) }
    }

    fn join(&mut self, other: SlabQueue) {
        self.slots += other.slots;
        self.idle_seconds = self.idle_seconds.max(other.idle_seconds);
    }
}

impl SlabClass {
    /// The place among all classes, the smallest first, of the one that keeps an item of this size; `None` if none does.
    pub fn holding(classes: &[SlabClass], value_bytes: u64) -> Option<usize> {
        classes.iter().position(|class| value_bytes + HEADER_BYTES as u64 <= class.slot_bytes as u64)
    }

    /// Takes in the same class of another part.
    pub fn join(&mut self, other: &SlabClass) {
        self.slabs += other.slabs;
        self.slots += other.slots;
        self.slots_used += other.slots_used;
        self.puts += other.puts;
        self.evictions += other.evictions;
        self.evictions_unused += other.evictions_unused;
        self.evicted_idle_seconds = self.evicted_idle_seconds.max(other.evicted_idle_seconds);
        self.item_bytes += other.item_bytes;
        self.small.join(other.small);
        self.main.join(other.main);
        self.moves_to_main += other.moves_to_main;
        self.moves_within_main += other.moves_within_main;
    }
}
