//! A freeze's hold of the slots that a space had in use at one moment: none of them is given out or written in place before the hold ends.
//!
//! A hold is no share. So a slot can tell whether anybody but freezes needs it, and the groups of a dropped keyspace, whose slots keep their shares,
//! stay as long as a hold does ([`SlotSpace::is_held`]).

use super::space::SlotSpace;
use tapetum_drive::fail_point;

/// Holds of a space at once: each slot counts its own.
pub const HOLDS_MAX: u32 = u16::MAX as u32;

/// See the [module](self). The drop ends it.
pub struct SlotHold {
    space: SlotSpace,
    /// The first extent of each group with slots in use, and these slots, a bit each.
    groups: Vec<(u32, Box<[u64]>)>,
}

impl SlotSpace {
    /// Holds all slots in use.
    pub fn hold(&self) -> SlotHold {
        let is_lost = fail_point!(FreezeWithoutSlots);
        let groups = self.with(|state| {
            assert!(state.holds < HOLDS_MAX, "the list of freezes bounds them");
            state.holds += 1;
            let held = state.groups.iter_mut().filter(|_| !is_lost);
            held.filter_map(|(first, group)| Some((*first, group.hold()?))).collect()
        });
        SlotHold { space: self.clone(), groups }
    }

    /// Whether a freeze holds slots, or would have held some.
    pub fn is_held(&self) -> bool {
        self.with(|state| state.holds > 0)
    }
}

impl SlotHold {
    /// Pages that freezes alone keep from being free, of the slots that this one holds.
    pub fn pages_alone(&self) -> u64 {
        let (map, class) = (self.space.map(), self.space.options().class);
        // Others have the lock between groups.
        let pages = |(first, used): &(u32, Box<[u64]>)| {
            self.space.with(|state| {
                let group = &state.groups[first];
                u64::from(group.count_held_alone(used)) * u64::from(class.slot_pages(map.pages(group.extents)))
            })
        };
        self.groups.iter().map(pages).sum()
    }

    /// Pages of all slots that it holds: of a dropped keyspace, nobody else needs them.
    pub fn pages(&self) -> u64 {
        let (map, class) = (self.space.map(), self.space.options().class);
        self.space.with(|state| {
            let pages = |(first, used): &(u32, Box<[u64]>)| {
                let slots: u32 = used.iter().map(|word| word.count_ones()).sum();
                u64::from(slots) * u64::from(class.slot_pages(map.pages(state.groups[first].extents)))
            };
            self.groups.iter().map(pages).sum()
        })
    }

    /// Bytes of the hold in memory.
    pub fn memory_bytes(&self) -> usize {
        self.groups.iter().map(|(_, used)| size_of_val(&**used) + size_of::<(u32, Box<[u64]>)>()).sum()
    }
}

impl Drop for SlotHold {
    fn drop(&mut self) {
        for (first, used) in &self.groups {
            // Others have the lock between groups.
            self.space.with(|state| state.end_hold(*first, used));
        }
        self.space.with(|state| {
            state.holds -= 1;
            if state.holds == 0 {
                state.groups.values_mut().for_each(|group| group.forget_holds());
            }
        });
    }
}
