//! Slot sizes of the tier, and which class has which slab (flash KVS, slide "DRAM Caching").
//!
//! Memory is cut into slabs, a slab into slots of one class. Classes grow by a factor. How long items stay in a class decides where slabs go: the
//! bytes it has ÷ the bytes that lately came in. A class in which they stay less than half as long as in another gets a slab of that one.
//!
//! Places are counted in granules of 64 bytes from the beginning of the memory. Threads: behind the part's lock.

use super::ghosts::Ghosts;
use super::queues::{Queues, TierItems, TierVictim};
use super::slab_class::{SlabClass, SlabQueue};

pub const GRANULE_BYTES: usize = 64;
/// Classes are compared after this many slabs' worth of new items.
const COMPARE_SLABS: u64 = 2;
/// At a comparison, one part in this many of the earlier counts is forgotten. If more were, chance would move slabs to and fro, and each move costs a
/// slab of items, used or not.
const FORGOTTEN_SHARE: u64 = 8;

/// Slot sizes from a granule to a slab, each about `factor` times the one before, in granules.
pub fn slot_sizes(slab_granules: u32, factor: f64) -> Vec<u32> {
    let mut sizes: Vec<u32> = Vec::new();
    let mut size = 1;
    while size < slab_granules {
        sizes.push(size);
        // As large as still gives the same number of slots a slab.
        let next = ((f64::from(size) * factor) as u32).max(size + 1);
        let per_slab = slab_granules / next.min(slab_granules);
        size = slab_granules / per_slab;
    }
    sizes.push(slab_granules);
    sizes
}

#[derive(Default)]
struct Class {
    /// Empty slots that are in no queue.
    fresh: Vec<u32>,
    /// Empty slots that are in a queue.
    emptied: Vec<u32>,
    queues: Queues,
    slabs: u32,
    puts: u64,
    evictions: u64,
    evictions_unused: u64,
    evicted_idle_seconds: u32,
    item_bytes: u64,
    /// Granules of items that came in lately: a part is forgotten whenever classes are compared.
    came_granules: u64,
}

/// The first class whose slots hold `granules`.
pub fn class_of(slot_granules: &[u32], granules: usize) -> Option<usize> {
    let class = slot_granules.partition_point(|slot| (*slot as usize) < granules);
    (class < slot_granules.len()).then_some(class)
}

/// A slot that may be filled.
pub struct Slot {
    pub place: u32,
    /// It is in no queue yet.
    pub is_new: bool,
}

pub struct Classes {
    /// Slot size of each class, in granules.
    slot_granules: Vec<u32>,
    classes: Vec<Class>,
    slab_granules: u32,
    /// The class that has each slab.
    owners: Vec<Option<u8>>,
    came_granules: u64,
    ghosts: Ghosts,
}

impl Classes {
    /// Classes with slots of these sizes in granules, the largest a slab.
    pub fn new(slabs: u32, slot_granules: Vec<u32>, ghosts: Ghosts) -> Classes {
        let slab_granules = *slot_granules.last().expect("the largest slot is a slab");
        let classes: Vec<Class> = slot_granules.iter().map(|_| Class::default()).collect();
        assert!(classes.len() <= usize::from(u8::MAX), "a class has a number of a byte");
        Classes { slot_granules, classes, slab_granules, owners: vec![None; slabs as usize], came_granules: 0, ghosts }
    }

    /// The class for an item of `bytes`, header included; `None` if it is too large.
    pub fn class_of(&self, bytes: usize) -> Option<usize> {
        class_of(&self.slot_granules, bytes.div_ceil(GRANULE_BYTES))
    }

    pub fn class_at(&self, place: u32) -> usize {
        let owner = self.owners[(place / self.slab_granules) as usize];
        usize::from(owner.expect("a place that is used is in a slab that has a class"))
    }

    /// Takes a slot of a class. If none is empty, an item is evicted, and `evict` gets its place. `None` if the class has no slab and no other can
    /// give one. If the index is full, an item is evicted although there is a slot.
    pub fn take(
        &mut self,
        class: usize,
        index_is_full: bool,
        items: &impl TierItems,
        mut evict: impl FnMut(u32),
    ) -> Option<Slot> {
        if index_is_full {
            self.evict_from_largest(items, &mut evict);
        }
        let granules = u64::from(self.slot_granules[class]);
        self.classes[class].came_granules += granules;
        self.came_granules += granules;
        if let Some(slot) = self.empty_slot(class) {
            return Some(slot);
        }
        if self.give_free_slab(class) || self.may_move_slab(class, items, &mut evict) {
            return self.empty_slot(class);
        }
        self.evict_one(class, items, &mut evict).map(|place| Slot { place, is_new: true })
    }

    /// Evicts an item of a class, and takes its slot out of its queue. The class has no slot that is empty and in a queue.
    fn evict_one(&mut self, class: usize, items: &impl TierItems, evict: &mut impl FnMut(u32)) -> Option<u32> {
        let class = &mut self.classes[class];
        let TierVictim { place, was_used } = class.queues.victim(items, &mut self.ghosts)?;
        class.evictions += 1;
        class.evictions_unused += u64::from(!was_used);
        class.evicted_idle_seconds = items.idle_seconds(place);
        class.item_bytes -= items.bytes(place);
        evict(place);
        Some(place)
    }

    /// Evicts an item of the class that has most items: the class of small ones, which fill the index before the memory.
    fn evict_from_largest(&mut self, items: &impl TierItems, evict: &mut impl FnMut(u32)) {
        let full = (0..self.classes.len()).filter(|class| self.classes[*class].emptied.is_empty());
        let Some(largest) = full.max_by_key(|class| self.classes[*class].queues.len()) else { return };
        if let Some(place) = self.evict_one(largest, items, evict) {
            self.classes[largest].fresh.push(place);
        }
    }

    /// A slot of a class for which nothing is evicted. It counts as lately come in, so that slabs stay where they are given.
    pub fn take_free(&mut self, class: usize) -> Option<Slot> {
        self.classes[class].came_granules += u64::from(self.slot_granules[class]);
        self.empty_slot(class).or_else(|| self.give_free_slab(class).then(|| self.empty_slot(class)).flatten())
    }

    fn empty_slot(&mut self, class: usize) -> Option<Slot> {
        let class = &mut self.classes[class];
        if let Some(place) = class.emptied.pop() {
            return Some(Slot { place, is_new: false });
        }
        class.fresh.pop().map(|place| Slot { place, is_new: true })
    }

    /// A slot has its item of `bytes`: it takes its turn from here on. `mark` is the fingerprint that the item would leave as a ghost.
    pub fn filled(&mut self, class: usize, slot: &Slot, bytes: usize, mark: u64) {
        let was_here = self.ghosts.forget(mark);
        self.queue(class, slot, bytes, was_here);
    }

    /// As [`Classes::filled`], with an item that is known to be worth its place.
    pub fn filled_anew(&mut self, class: usize, slot: &Slot, bytes: usize) {
        self.queue(class, slot, bytes, true);
    }

    fn queue(&mut self, class: usize, slot: &Slot, bytes: usize, was_here: bool) {
        let class = &mut self.classes[class];
        class.puts += 1;
        class.item_bytes += bytes as u64;
        if slot.is_new {
            class.queues.push(slot.place, was_here);
        }
    }

    pub fn count(&self) -> usize {
        self.classes.len()
    }

    /// The order in which a class keeps its slots.
    pub fn queues(&self, class: usize) -> &Queues {
        &self.classes[class].queues
    }

    /// Gives back a slot that was taken and not filled.
    pub fn give_back(&mut self, class: usize, slot: Slot) {
        let class = &mut self.classes[class];
        if slot.is_new { class.fresh.push(slot.place) } else { class.emptied.push(slot.place) }
    }

    /// Notes that a filled slot lost its item of `bytes`.
    pub fn emptied(&mut self, place: u32, bytes: u64) {
        let class = self.class_at(place);
        self.classes[class].emptied.push(place);
        self.classes[class].item_bytes -= bytes;
    }

    fn give_free_slab(&mut self, class: usize) -> bool {
        let Some(slab) = self.owners.iter().position(Option::is_none) else { return false };
        self.give_slab(class, slab as u32);
        true
    }

    fn give_slab(&mut self, class: usize, slab: u32) {
        self.owners[slab as usize] = Some(class as u8);
        let slot_granules = self.slot_granules[class];
        let class = &mut self.classes[class];
        class.slabs += 1;
        let first = slab * self.slab_granules;
        let slots = self.slab_granules / slot_granules;
        class.fresh.extend((0..slots).rev().map(|slot| first + slot * slot_granules));
    }

    /// How long items stay in a class, in units of what comes in.
    fn stay(&self, class: usize) -> f64 {
        let class = &self.classes[class];
        f64::from(class.slabs) * f64::from(self.slab_granules) / class.came_granules.max(1) as f64
    }

    /// Gives `class` a slab of the class in which items stay longest, if they stay much longer there.
    fn may_move_slab(&mut self, class: usize, items: &impl TierItems, evict: &mut impl FnMut(u32)) -> bool {
        let has_none = self.classes[class].slabs == 0;
        if !has_none && self.came_granules < COMPARE_SLABS * u64::from(self.slab_granules) {
            return false;
        }
        let others = (0..self.classes.len()).filter(|other| *other != class && self.classes[*other].slabs > 0);
        let giver = others.max_by(|a, b| self.stay(*a).total_cmp(&self.stay(*b)));
        let stays_longer = giver.is_some_and(|giver| has_none || self.stay(giver) > 2.0 * self.stay(class));
        self.came_granules = 0;
        self.classes.iter_mut().for_each(|class| class.came_granules -= class.came_granules / FORGOTTEN_SHARE);
        let Some(giver) = giver.filter(|_| stays_longer) else { return false };
        let slab = self.take_slab(giver, items, evict);
        self.give_slab(class, slab);
        true
    }

    /// Empties a slab of a class and takes it.
    fn take_slab(&mut self, class: usize, items: &impl TierItems, evict: &mut impl FnMut(u32)) -> u32 {
        let owned = self.owners.iter().position(|owner| *owner == Some(class as u8));
        let slab = owned.expect("the class has a slab") as u32;
        self.owners[slab as usize] = None;
        let granules = slab * self.slab_granules..(slab + 1) * self.slab_granules;
        let slot_granules = self.slot_granules[class];
        let class = &mut self.classes[class];
        class.slabs -= 1;
        let is_empty = |place: &u32| granules.contains(place);
        let empty: std::collections::HashSet<u32> =
            class.fresh.iter().chain(&class.emptied).copied().filter(is_empty).collect();
        class.fresh.retain(|place| !granules.contains(place));
        class.emptied.retain(|place| !granules.contains(place));
        class.queues.drop_slots(|place| granules.contains(&place));
        // A class that once had many slots does not keep the lists for them.
        class.fresh.shrink_to_fit();
        class.emptied.shrink_to_fit();
        class.queues.shrink_to_fit();
        let slots = self.slab_granules / slot_granules;
        class.evictions += u64::from(slots) - empty.len() as u64;
        let places = (0..slots).map(|slot| granules.start + slot * slot_granules);
        for place in places.filter(|place| !empty.contains(place)) {
            class.item_bytes -= items.bytes(place);
            evict(place);
        }
        slab
    }

    /// Every class, those without slabs too. Hits are counted elsewhere.
    pub fn slabs(&self, items: &impl TierItems) -> impl Iterator<Item = SlabClass> {
        self.classes.iter().zip(&self.slot_granules).map(|(class, slot_granules)| {
            let [small, main] = class.queues.next().map(|places| SlabQueue::of(places, items));
            let slots = u64::from(class.slabs) * u64::from(self.slab_granules / slot_granules);
            let empty = class.fresh.len() + class.emptied.len();
            SlabClass {
                slot_bytes: *slot_granules as usize * GRANULE_BYTES,
                slabs: class.slabs.into(),
                slots,
                slots_used: slots - empty as u64,
                puts: class.puts,
                evictions: class.evictions,
                evictions_unused: class.evictions_unused,
                evicted_idle_seconds: class.evicted_idle_seconds,
                hits: 0,
                item_bytes: class.item_bytes,
                small,
                main,
                moves_to_main: class.queues.moves.to_main,
                moves_within_main: class.queues.moves.within_main,
            }
        })
    }

    /// Memory of lists and queues.
    pub fn bytes(&self) -> usize {
        let lists = |class: &Class| (class.fresh.capacity() + class.emptied.capacity()) * 4 + class.queues.bytes();
        self.classes.iter().map(lists).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const ITEM_BYTES: u64 = 60;

    struct Unused;

    impl TierItems for Unused {
        fn change_uses(&self, _: u32, _: impl FnOnce(u8) -> u8) -> u8 {
            0
        }

        fn mark(&self, place: u32) -> u64 {
            u64::from(place) << 32
        }

        fn bytes(&self, _: u32) -> u64 {
            ITEM_BYTES
        }

        fn idle_seconds(&self, place: u32) -> u32 {
            place
        }

        fn is_filled(&self, _: u32) -> bool {
            true
        }
    }

    fn fill(classes: &mut Classes, class: usize, held: &mut HashSet<u32>) -> usize {
        let mut evicted = Vec::new();
        let slot = classes.take(class, false, &Unused, |place| evicted.push(place)).expect("a slot");
        evicted.iter().for_each(|place| assert!(held.remove(place), "{place} holds nothing"));
        assert!(held.insert(slot.place), "{} was full", slot.place);
        classes.filled(class, &slot, ITEM_BYTES as usize, u64::from(slot.place) << 40);
        evicted.len()
    }

    #[test]
    fn slots_grow_by_the_factor_up_to_a_slab() {
        assert_eq!(slot_sizes(16, 2.0), vec![1, 2, 4, 8, 16]);
        let sizes = slot_sizes(16384, 1.25);
        assert!(sizes.windows(2).all(|pair| pair[0] < pair[1] && pair[1] <= 2 * pair[0]));
        assert_eq!(sizes.last(), Some(&16384));
        assert!(sizes.len() < 60);
    }

    #[test]
    fn an_item_goes_to_the_least_slot_that_holds_it() {
        let classes = Classes::new(4, slot_sizes(16, 2.0), Ghosts::new(16));
        assert_eq!(classes.class_of(1), Some(0));
        assert_eq!(classes.class_of(64), Some(0));
        assert_eq!(classes.class_of(65), Some(1));
        assert_eq!(classes.class_of(1024), Some(4));
        assert_eq!(classes.class_of(1025), None);
    }

    #[test]
    fn a_full_class_lets_one_go_for_each_that_comes() {
        let mut classes = Classes::new(2, slot_sizes(16, 2.0), Ghosts::new(16));
        let mut held = HashSet::new();
        for n in 0..200 {
            assert_eq!(fill(&mut classes, 0, &mut held), usize::from(n >= 32));
        }
        assert_eq!(held.len(), 32);
    }

    #[test]
    fn memory_goes_to_the_class_that_needs_it() {
        let mut classes = Classes::new(8, slot_sizes(16, 2.0), Ghosts::new(16));
        let mut held = HashSet::new();
        (0..200).for_each(|_| {
            fill(&mut classes, 0, &mut held);
        });
        let whole = SlabClass {
            slot_bytes: 64,
            slabs: 8,
            slots: 128,
            slots_used: 128,
            puts: 200,
            evictions: 72,
            evictions_unused: 72,
            // With `Unused` the idle time is the place itself: the 72nd item that was filled was evicted last, and the 73rd is next. The items that
            // came instead have the marks of the evicted ones, and so are in the main queue.
            evicted_idle_seconds: 71,
            hits: 0,
            item_bytes: 128 * ITEM_BYTES,
            small: SlabQueue { slots: 56, idle_seconds: 72 },
            main: SlabQueue { slots: 72, idle_seconds: 0 },
            moves_to_main: 0,
            moves_within_main: 0,
        };
        assert_eq!(classes.slabs(&Unused).next(), Some(whole));
        (0..200).for_each(|_| {
            fill(&mut classes, 2, &mut held);
        });
        let (slabs, item_bytes): (Vec<u64>, Vec<u64>) =
            classes.slabs(&Unused).map(|class| (class.slabs, class.item_bytes)).unzip();
        assert_eq!(item_bytes.iter().sum::<u64>(), held.len() as u64 * ITEM_BYTES);
        assert!(slabs[2] >= 6 && slabs.iter().sum::<u64>() == 8, "{slabs:?}");
        let holding = |granules: u32| held.iter().filter(|place| *place % granules == 0).count();
        assert!(holding(1) <= slabs[0] as usize * 16 + slabs[2] as usize * 4);
    }

    #[test]
    fn emptied_slots_are_filled_again_before_anything_goes() {
        let mut classes = Classes::new(1, slot_sizes(16, 2.0), Ghosts::new(16));
        let mut held = HashSet::new();
        (0..16).for_each(|_| {
            fill(&mut classes, 0, &mut held);
        });
        held.remove(&3);
        classes.emptied(3, ITEM_BYTES);
        assert_eq!(fill(&mut classes, 0, &mut held), 0);
        assert_eq!(fill(&mut classes, 0, &mut held), 1);
        assert_eq!(held.len(), 16);
        assert_eq!(classes.slabs(&Unused).next().map(|class| class.item_bytes), Some(16 * ITEM_BYTES));
    }
}
