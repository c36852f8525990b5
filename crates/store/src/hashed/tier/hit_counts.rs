//! Hits by class. Each session counts its own before it adds them to the tier's, so that a get writes to no shared memory.

use super::classes::{GRANULE_BYTES, class_of};
use super::slot;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Items of fewer granules find their class in a table.
const TABLE_GRANULES: usize = 64;

/// A tier's hits by class, and the classes' slot sizes.
pub struct Hits {
    slot_granules: Arc<[u32]>,
    by_class: Box<[AtomicU64]>,
}

impl Hits {
    pub fn new(slot_granules: Vec<u32>) -> Hits {
        let by_class = slot_granules.iter().map(|_| AtomicU64::new(0)).collect();
        Hits { slot_granules: slot_granules.into(), by_class }
    }

    /// The hits of each class, the smallest first.
    pub fn each(&self) -> impl Iterator<Item = u64> {
        self.by_class.iter().map(|hits| hits.load(Ordering::Relaxed))
    }

    /// Adds the counts of a session.
    pub fn add(&self, counts: &mut HitCounts) {
        if !std::mem::take(&mut counts.any) {
            return;
        }
        for (hits, count) in self.by_class.iter().zip(&mut counts.by_class).filter(|(_, count)| **count > 0) {
            hits.fetch_add(std::mem::take(count), Ordering::Relaxed);
        }
    }

    /// Empty counts for a session.
    pub fn counts(&self) -> HitCounts {
        let class_of = |granules| class_of(&self.slot_granules, granules).map_or(0, |class| class as u8);
        HitCounts {
            slot_granules: self.slot_granules.clone(),
            class_by_granules: std::array::from_fn(class_of),
            by_class: vec![0; self.by_class.len()],
            any: false,
        }
    }
}

pub struct HitCounts {
    slot_granules: Arc<[u32]>,
    class_by_granules: [u8; TABLE_GRANULES],
    by_class: Vec<u64>,
    any: bool,
}

impl HitCounts {
    /// Counts a hit of an item with a value of `value_bytes`.
    #[inline]
    pub fn note(&mut self, value_bytes: usize) {
        let granules = (slot::HEADER_BYTES + value_bytes).div_ceil(GRANULE_BYTES);
        let class = match self.class_by_granules.get(granules) {
            Some(class) => usize::from(*class),
            None => class_of(&self.slot_granules, granules).unwrap_or(0),
        };
        self.by_class[class] += 1;
        self.any = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::tier::classes::slot_sizes;

    #[test]
    fn a_hit_is_counted_in_the_class_of_its_slot_and_told_once() {
        let sizes = slot_sizes(512, 1.25);
        let hits = Hits::new(sizes.clone());
        let mut counts = hits.counts();
        for (class, granules) in sizes.iter().enumerate() {
            // The largest and the least value of a slot of this size.
            let most = *granules as usize * GRANULE_BYTES - slot::HEADER_BYTES;
            let least = if class == 0 { 0 } else { sizes[class - 1] as usize * GRANULE_BYTES - slot::HEADER_BYTES + 1 };
            (0..=class).for_each(|_| counts.note(most));
            counts.note(least);
        }
        (0..2).for_each(|_| hits.add(&mut counts));
        assert!(hits.each().eq((0..sizes.len() as u64).map(|class| class + 2)));
    }
}
