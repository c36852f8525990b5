//! The state shared by a space and the shares of its slots: the groups under one lock, and the slot map.

use super::extent_versions::ExtentVersions;
use super::slot_class::SlotClass;
use super::slot_map::SlotMap;
use super::space::SpaceOptions;
use super::space_state::SpaceState;
use std::sync::{Arc, Mutex};
use tapetum_base::media::io::lock;
use tapetum_drive::fail_point;
use tapetum_kernels::ordered::SlotSalt;

/// See the [module](self).
pub struct SlotGuards {
    pub map: SlotMap,
    pub options: SpaceOptions,
    /// Used by nodes only.
    pub versions: Arc<ExtentVersions>,
    pub state: Mutex<SpaceState>,
}

impl SlotGuards {
    /// The number of a slot of the group with this first extent.
    pub fn number(&self, first: u32, slot: u32) -> u32 {
        self.map.first_of(first) + slot * self.slot_pages_of_slabs()
    }

    /// Pages from one slot to the next; irrelevant in a group of one slot.
    fn slot_pages_of_slabs(&self) -> u32 {
        self.options.class.slot_pages(0)
    }

    /// The group and the slot in it that begin at this page.
    pub fn place(&self, state: &SpaceState, number: u32) -> Option<(u32, u32)> {
        let extent = self.map.extent_of(number);
        let (first, group) = state.groups.range(..=extent).next_back()?;
        let page = number - self.map.first_of(*first);
        let slot_pages = self.options.class.slot_pages(self.map.pages(group.extents));
        let (slot, rest) = (page / slot_pages, page % slot_pages);
        (rest == 0 && slot < group.slots()).then_some((*first, slot))
    }

    pub fn with_slot<T>(&self, number: u32, work: impl FnOnce(&mut SpaceState, u32, u32) -> T) -> Option<T> {
        let mut state = lock(&self.state);
        let (first, slot) = self.place(&state, number)?;
        Some(work(&mut state, first, slot))
    }

    pub fn salt(&self, number: u32) -> Option<SlotSalt> {
        let version = match self.options.class {
            // Each page of an extent is a slot.
            SlotClass::Nodes => self.versions.get(self.map.extent_of(number))?,
            _ => self.with_slot(number, |state, first, _| state.groups[&first].version)?,
        };
        Some(SlotSalt { store: self.options.store_id, slot: self.map.address(number), version })
    }

    /// Pages of a slot; 0 if there is no such slot.
    pub fn pages(&self, number: u32) -> u32 {
        let pages = |state: &mut SpaceState, first: u32, _| {
            self.options.class.slot_pages(self.map.pages(state.groups[&first].extents))
        };
        self.with_slot(number, pages).unwrap_or(0)
    }

    pub fn shares(&self, number: u32) -> u16 {
        self.with_slot(number, |state, first, slot| state.groups[&first].shares(slot)).unwrap_or(0)
    }

    /// Whether a slot has one share and no freeze holds it.
    pub fn is_of_one(&self, number: u32) -> bool {
        self.with_slot(number, |state, first, slot| state.groups[&first].is_of_one(slot)).unwrap_or(false)
    }

    pub fn add_share(&self, number: u32) {
        let added = self.with_slot(number, |state, first, slot| state.group_mut(first).add(slot));
        added.expect("a slot with a share is of a group");
    }

    pub fn settle(&self, number: u32, stamp: u64) {
        let settled = self.with_slot(number, |state, first, slot| {
            if state.with_flying(first, |group| group.settle(slot)) && self.options.class == SlotClass::Nodes {
                state.round.landed(stamp);
                state.marks.landed += 1;
                state.marks.landed_stamp = state.marks.landed_stamp.max(stamp);
            }
        });
        settled.expect("a slot with a share is of a group");
    }

    pub fn drop_share(&self, number: u32) {
        let early = fail_point!(OrderedReuseSlotEarly);
        let dropped = self.with_slot(number, |state, first, slot| {
            let is_freed = state.with_flying(first, |group| match early {
                false => group.drop_share(slot),
                // The bug frees the slot for all, so the others have no share to give up.
                true => {
                    group.shares(slot) > 0 && {
                        group.free_slot(slot);
                        true
                    }
                }
            });
            if is_freed {
                state.freed(first);
            }
        });
        // A dropped keyspace's groups may be gone before the last share of their slots.
        debug_assert!(dropped.is_some() || lock(&self.state).groups.is_empty(), "slot {number} is of no group");
    }
}
