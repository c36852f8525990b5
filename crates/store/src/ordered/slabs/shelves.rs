//! Groups sorted by their free slots, so that a search for groups need not visit all: a store of a terabyte has hundreds of thousands.
//!
//! Invariant: a group is on the shelf of its phase and its number of free slots, or on none if it is closed and full.
//!
//! Threads: with the space's lock held.

use super::slot_group::{GroupPhase, SlotGroup};
use std::collections::BTreeSet;

/// Closed groups are sorted by so many parts of their slots: a group rarely changes its shelf when its slots are freed.
pub const FREE_PARTS: u32 = 48;
/// An open group with less than one free slot in this many counts as full.
const FULL_PART: u32 = 32;

/// A shelf has the groups of one phase with about as many free slots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Shelf {
    /// The groups are full or nearly full.
    OpenFull,
    /// The groups have slots to give out.
    Open,
    OpenEmpty,
    Draining,
    DrainingEmpty,
    /// This number of [`FREE_PARTS`] of the slots are free, rounded down. No group here has all slots in use.
    Closed(u8),
}

impl Shelf {
    pub const CLOSED_EMPTY: Shelf = Shelf::Closed(FREE_PARTS as u8);

    fn of(group: &SlotGroup) -> Option<Shelf> {
        let (free, slots) = (group.free(), group.slots());
        match group.phase {
            GroupPhase::Open if group.is_empty() => Some(Shelf::OpenEmpty),
            GroupPhase::Open if free * FULL_PART < slots || free == 0 => Some(Shelf::OpenFull),
            GroupPhase::Open => Some(Shelf::Open),
            GroupPhase::Draining if group.is_empty() => Some(Shelf::DrainingEmpty),
            GroupPhase::Draining => Some(Shelf::Draining),
            GroupPhase::Closed => (free > 0).then(|| Shelf::Closed((free * FREE_PARTS / slots) as u8)),
        }
    }
}

#[derive(Default)]
pub struct Shelves {
    groups: BTreeSet<(Shelf, u32)>,
    open: u32,
    open_empty: u32,
    draining_empty: u32,
    closed_empty: u32,
}

impl Shelves {
    /// Puts a new or changed group on the shelf of its phase and free slots.
    pub fn put(&mut self, first: u32, group: &mut SlotGroup) {
        let shelf = Shelf::of(group);
        let before = std::mem::replace(&mut group.shelf, shelf);
        if before == shelf {
            return;
        }
        self.remove_from(before, first);
        if let Some(shelf) = shelf {
            self.groups.insert((shelf, first));
            self.count(shelf).into_iter().for_each(|count| *count += 1);
        }
    }

    /// Removes a group.
    pub fn remove(&mut self, first: u32, group: &SlotGroup) {
        self.remove_from(group.shelf, first);
    }

    fn remove_from(&mut self, shelf: Option<Shelf>, first: u32) {
        if let Some(shelf) = shelf {
            assert!(self.groups.remove(&(shelf, first)), "group {first} is on its shelf");
            self.count(shelf).into_iter().for_each(|count| *count -= 1);
        }
    }

    fn count(&mut self, shelf: Shelf) -> Option<&mut u32> {
        match shelf {
            Shelf::Open => Some(&mut self.open),
            Shelf::OpenEmpty => Some(&mut self.open_empty),
            Shelf::DrainingEmpty => Some(&mut self.draining_empty),
            Shelf::CLOSED_EMPTY => Some(&mut self.closed_empty),
            Shelf::OpenFull | Shelf::Draining | Shelf::Closed(_) => None,
        }
    }

    /// The groups of these shelves, shelf by shelf.
    pub fn groups(&self, from: Shelf, to: Shelf) -> impl DoubleEndedIterator<Item = u32> {
        self.groups.range((from, 0)..=(to, u32::MAX)).map(|(_, first)| *first)
    }

    /// The number of open groups with slots to give out.
    pub fn useful(&self) -> u32 {
        self.open + self.open_empty
    }

    pub fn open_empty(&self) -> u32 {
        self.open_empty
    }

    /// The number of closed groups whose slots are all free.
    pub fn closed_empty(&self) -> u32 {
        self.closed_empty
    }

    /// The number of groups named open whose slots are all free.
    pub fn empty(&self) -> u32 {
        self.open_empty + self.draining_empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn each_group_is_where_its_phase_and_its_free_slots_say(
            steps in proptest::collection::vec((0..5u32, 0..3u8, 0..=70u32), 1..200),
        ) {
            let (mut shelves, mut groups) = (Shelves::default(), BTreeMap::new());
            for (first, phase, used) in steps {
                let group = groups.entry(first).or_insert_with(|| SlotGroup::new(1, 1, 70, GroupPhase::Closed, true));
                group.phase = [GroupPhase::Closed, GroupPhase::Open, GroupPhase::Draining][usize::from(phase)];
                for slot in 0..70 {
                    match (slot < used, group.shares(slot) > 0) {
                        (true, false) => group.take(slot, false),
                        (false, true) => group.free_slot(slot),
                        _ => {}
                    }
                }
                shelves.put(first, group);
                let all: Vec<u32> = shelves.groups(Shelf::OpenFull, Shelf::CLOSED_EMPTY).collect();
                prop_assert_eq!(all.len(), groups.values().filter(|group| Shelf::of(group).is_some()).count());
                let is_empty = |phase| groups.values().filter(|group| group.phase == phase && group.is_empty()).count() as u32;
                prop_assert_eq!(shelves.closed_empty(), is_empty(GroupPhase::Closed));
                prop_assert_eq!(shelves.open_empty(), is_empty(GroupPhase::Open));
                prop_assert_eq!(shelves.empty(), is_empty(GroupPhase::Open) + is_empty(GroupPhase::Draining));
                let is_useful = |group: &&SlotGroup| group.phase == GroupPhase::Open && group.free() >= 3;
                prop_assert_eq!(shelves.useful(), groups.values().filter(is_useful).count() as u32);
            }
        }
    }
}
