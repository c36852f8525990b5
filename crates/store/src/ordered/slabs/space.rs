//! The slots of one keyspace and class.

use super::group_table::Group;
use super::large_groups::SlotWant;
use super::share::SlotShare;
use super::slot_class::SlotClass;
use super::slot_group::{GroupPhase, SlotGroup};
use super::slot_map::SlotMap;
use crate::keyspace::KeyspaceId;
use crate::media::io::lock;
use crate::planted::{Bug, Planted};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tapetum_kernels::ordered::{SlotAddress, SlotSalt};

/// How far behind its neighbour a slot counts as near: what a scan reads ahead at once.
const NEAR_SLOTS: u32 = 16;

/// Slots of nodes that are kept back where flash is full, for what recovery writes again: as many as there may be images on their way,
/// and splits of which one half is durable.
pub const RESERVED_SLOTS: u32 = 64;

/// What a space is made with.
#[derive(Clone, Copy, Debug)]
pub struct SpaceOptions {
    pub store_id: u64,
    pub keyspace: KeyspaceId,
    pub class: SlotClass,
    /// Of nodes: open groups have as many free slots together as so many that are empty. Of others: groups with slots to give out.
    pub open_groups: u32,
    /// Extents of a new group.
    pub group_extents: u32,
    /// Free extents that extensions beyond the slabs leave to others.
    pub reserve_extents: u32,
    pub planted: Planted,
}

/// How many slots there are.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SlotCounts {
    pub groups: u32,
    pub groups_open: u32,
    pub slots: u32,
    /// In all groups.
    pub slots_free: u32,
    /// That can be given out: free ones of open groups.
    pub slots_open: u32,
    /// What the space takes in memory.
    pub memory_bytes: u64,
}

/// See the [module](super). A cheap handle.
#[derive(Clone)]
pub struct SlotSpace {
    guards: Arc<SlotGuards>,
}

/// What shares and the space have in common.
pub struct SlotGuards {
    pub map: SlotMap,
    pub options: SpaceOptions,
    state: Mutex<SpaceState>,
}

#[derive(Default)]
pub struct SpaceState {
    /// By first extent.
    pub groups: BTreeMap<u32, SlotGroup>,
    /// Open groups with free slots.
    available: BTreeSet<u32>,
    /// Free slots of open groups.
    pub slots_open: u32,
    /// Free slots of all groups.
    pub slots_free: u32,
    /// So many of them are kept back.
    pub held_back: u32,
    /// Closed groups all slots of which are free.
    pub closed_empty: u32,
    /// Somebody found no slot since the last change of groups.
    pub is_wanted: bool,
    /// There was no slot, and no extents for more, when they were last looked for.
    pub is_full: bool,
    /// Slots beyond the slabs that are waited for.
    pub wants: Vec<Arc<SlotWant>>,
}

impl SlotSpace {
    /// A space of these groups, all slots of which are free.
    pub fn new<'g>(map: SlotMap, options: SpaceOptions, groups: impl IntoIterator<Item = &'g Group>) -> SlotSpace {
        let guards = Arc::new(SlotGuards { map, options, state: Mutex::default() });
        let space = SlotSpace { guards };
        groups.into_iter().for_each(|group| space.insert(group));
        space
    }

    pub fn map(&self) -> &SlotMap {
        &self.guards.map
    }

    pub fn options(&self) -> &SpaceOptions {
        &self.guards.options
    }

    pub(super) fn guards(&self) -> &Arc<SlotGuards> {
        &self.guards
    }

    /// Works on the groups, under the lock.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut SpaceState) -> T) -> T {
        work(&mut lock(&self.guards.state))
    }

    /// Adds a group that the manifest names. Those of extensions are neither opened nor closed: nobody looks at a slot of theirs that no
    /// live image names.
    pub fn insert(&self, group: &Group) {
        let class = self.options().class;
        let phase = if group.open || class != SlotClass::Nodes { GroupPhase::Open } else { GroupPhase::Closed };
        let slots = class.slots(self.map().pages(group.extents));
        let slots = SlotGroup::new(group.extents, group.version, slots, phase);
        self.with(|state| state.insert(group.first, slots));
    }

    /// A free slot of an open group, to be written: one close behind `near` if there is one. `None`: there is no such slot before groups
    /// were opened ([`SlotSpace::wants_change`]).
    pub fn take(&self, near: Option<SlotAddress>) -> Option<SlotShare> {
        let near = near.and_then(|slot| self.map().number(slot));
        let taken = self.with(|state| {
            let may = state.slots_free > state.held_back;
            let taken = may.then(|| state.take_near(&self.guards, near)).flatten();
            state.is_wanted |= taken.is_none();
            taken
        });
        taken.map(|number| SlotShare::counted(&self.guards, number))
    }

    /// As [`SlotSpace::take`], for recovery: it may have what is kept back.
    pub fn take_kept_back(&self) -> Option<SlotShare> {
        let taken = self.with(|state| state.take_near(&self.guards, None));
        taken.map(|number| SlotShare::counted(&self.guards, number))
    }

    /// Another share of a slot of which one is kept, and no other.
    pub fn share_alone(&self, number: u32) -> Option<SlotShare> {
        let kept = self.resume(number);
        let share = kept.is_only().then(|| kept.clone());
        let _ = kept.keep();
        share
    }

    /// Whether there was no slot to give out, and no extents for more, when they were last looked for.
    pub fn is_full(&self) -> bool {
        self.with(|state| state.is_full)
    }

    /// The numbers of all slots that have a share.
    pub fn slots_in_use(&self) -> Vec<u32> {
        self.with(|state| {
            let groups = state.groups.iter();
            let of_group = |(first, group): (&u32, &SlotGroup)| {
                let used = (0..group.slots()).filter(|slot| group.shares(*slot) > 0);
                used.map(|slot| self.guards.number(*first, slot)).collect::<Vec<_>>()
            };
            groups.flat_map(of_group).collect()
        })
    }

    /// Free slots that are not kept back, in open groups and others.
    pub fn spare_slots(&self) -> u32 {
        self.with(|state| state.slots_free.saturating_sub(state.held_back))
    }

    /// Whether recovery would find a free slot for each of so many images, besides those that are on flash.
    pub fn has_room_for(&self, images: usize) -> bool {
        self.with(|state| state.slots_free as usize >= images)
    }

    /// Whether slots are given out of which nobody knows yet that what is written to them is durable.
    pub fn is_settled(&self) -> bool {
        self.with(|state| state.groups.values().all(|group| group.unsettled() == 0))
    }

    /// Whether no slot can be given out, though groups may have some that are kept back.
    pub fn has_none(&self) -> bool {
        self.with(|state| state.slots_open == 0 || state.slots_free <= state.held_back)
    }

    /// Another share of a slot that has one. `None`: it has none, or there is no such slot in this space.
    pub fn share(&self, slot: SlotAddress) -> Option<SlotShare> {
        let number = self.map().number(slot)?;
        let shared = self.with(|state| {
            let (first, slot) = self.guards.place(state, number)?;
            let group = state.groups.get_mut(&first)?;
            (group.shares(slot) > 0).then(|| group.add(slot))
        });
        shared.map(|()| SlotShare::counted(&self.guards, number))
    }

    /// A share of the slot with this number, which is in use, for recovery: of a free one it is the first. `None`: there is no such slot.
    pub fn claim(&self, number: u32) -> Option<SlotShare> {
        self.with(|state| {
            let (first, slot) = self.guards.place(state, number)?;
            match state.groups[&first].shares(slot) {
                0 => state.take(first, slot, false),
                _ => state.group_mut(first).add(slot),
            }
            Some(())
        })?;
        Some(SlotShare::counted(&self.guards, number))
    }

    /// Takes up a share that was kept ([`SlotShare::keep`]).
    ///
    /// # Panics
    /// When nobody keeps a share of this slot.
    pub fn resume(&self, number: u32) -> SlotShare {
        assert!(self.guards.shares(number) > 0, "nobody kept a share of slot {number}");
        SlotShare::counted(&self.guards, number)
    }

    /// Where a slot begins on flash. `None`: it is another member's, or no slot at all.
    pub fn flash_offset(&self, slot: SlotAddress) -> Option<u64> {
        self.map().number(slot).map(|number| self.map().flash(number))
    }

    /// What is in a slot is bound to this. `None`: there is no such slot in this space.
    pub fn salt(&self, slot: SlotAddress) -> Option<SlotSalt> {
        self.guards.salt(self.map().number(slot)?)
    }

    /// The groups, as the manifest has them: those that are to be closed are open.
    pub fn groups(&self) -> Vec<Group> {
        let SpaceOptions { keyspace, class, .. } = *self.options();
        let group = |(first, group): (&u32, &SlotGroup)| Group {
            first: *first,
            extents: group.extents,
            keyspace,
            class,
            version: group.version,
            open: group.phase != GroupPhase::Closed,
        };
        self.with(|state| state.groups.iter().map(group).collect())
    }

    pub fn counts(&self) -> SlotCounts {
        self.with(|state| {
            let mut counts = SlotCounts { slots_open: state.slots_open, ..SlotCounts::default() };
            for group in state.groups.values() {
                counts.groups += 1;
                counts.groups_open += u32::from(group.phase != GroupPhase::Closed);
                counts.slots += group.slots();
                counts.slots_free += group.free();
                counts.memory_bytes += group.bytes();
            }
            counts
        })
    }
}

impl SlotGuards {
    /// The number of a slot of the group with this first extent.
    pub fn number(&self, first: u32, slot: u32) -> u32 {
        self.map.first_of(first) + slot * self.slot_pages_of_slabs()
    }

    /// Pages from one slot to the next. A group of one slot has no next.
    fn slot_pages_of_slabs(&self) -> u32 {
        self.options.class.slot_pages(0)
    }

    /// The group, and the slot there, that begins at this page.
    pub fn place(&self, state: &SpaceState, number: u32) -> Option<(u32, u32)> {
        let extent = self.map.extent_of(number);
        let (first, group) = state.groups.range(..=extent).next_back()?;
        let page = number - self.map.first_of(*first);
        let slot_pages = self.options.class.slot_pages(self.map.pages(group.extents));
        let (slot, rest) = (page / slot_pages, page % slot_pages);
        (rest == 0 && slot < group.slots()).then_some((*first, slot))
    }

    fn with_slot<T>(&self, number: u32, work: impl FnOnce(&mut SpaceState, u32, u32) -> T) -> Option<T> {
        let mut state = lock(&self.state);
        let (first, slot) = self.place(&state, number)?;
        Some(work(&mut state, first, slot))
    }

    pub fn salt(&self, number: u32) -> Option<SlotSalt> {
        let version = self.with_slot(number, |state, first, _| state.groups[&first].version)?;
        Some(SlotSalt { store: self.options.store_id, slot: self.map.address(number), version })
    }

    /// Pages of a slot; 0 if there is none.
    pub fn pages(&self, number: u32) -> u32 {
        let pages = |state: &mut SpaceState, first: u32, _| {
            self.options.class.slot_pages(self.map.pages(state.groups[&first].extents))
        };
        self.with_slot(number, pages).unwrap_or(0)
    }

    pub fn shares(&self, number: u32) -> u16 {
        self.with_slot(number, |state, first, slot| state.groups[&first].shares(slot)).unwrap_or(0)
    }

    pub fn add_share(&self, number: u32) {
        let added = self.with_slot(number, |state, first, slot| state.group_mut(first).add(slot));
        added.expect("a slot with a share is of a group");
    }

    pub fn settle(&self, number: u32) {
        let settled = self.with_slot(number, |state, first, slot| state.group_mut(first).settle(slot));
        settled.expect("a slot with a share is of a group");
    }

    pub fn drop_share(&self, number: u32) {
        let early = self.options.planted.has(Bug::OrderedReuseSlotEarly);
        let dropped = self.with_slot(number, |state, first, slot| {
            let group = state.group_mut(first);
            // The bug frees it for all, so the others have nothing to give up.
            if early && group.shares(slot) > 0 {
                group.free_slot(slot);
            } else if early || !group.drop_share(slot) {
                return;
            }
            state.freed(first);
        });
        // A dropped keyspace's groups may be gone before the last of its shares.
        debug_assert!(dropped.is_some() || lock(&self.state).groups.is_empty(), "slot {number} is of no group");
    }
}

impl SpaceState {
    pub fn group_mut(&mut self, first: u32) -> &mut SlotGroup {
        self.groups.get_mut(&first).expect("it was found there")
    }

    /// Gives out a free slot of an open group, close behind the one with this number if there is one there; its number.
    fn take_near(&mut self, guards: &SlotGuards, near: Option<u32>) -> Option<u32> {
        let behind = near.and_then(|number| self.free_behind(guards, number));
        let (first, slot) = behind.or_else(|| self.free_first())?;
        self.take(first, slot, true);
        Some(guards.number(first, slot))
    }

    /// A free slot close behind one.
    fn free_behind(&self, guards: &SlotGuards, number: u32) -> Option<(u32, u32)> {
        let (first, slot) = guards.place(self, number)?;
        let found = self.available.contains(&first).then(|| self.groups[&first].next_free(slot + 1))??;
        (found - slot <= NEAR_SLOTS).then_some((first, found))
    }

    /// The first free slot of the first open group that has one.
    fn free_first(&self) -> Option<(u32, u32)> {
        let first = *self.available.first()?;
        Some((first, self.groups[&first].next_free(0)?))
    }

    /// Gives out a free slot.
    fn take(&mut self, first: u32, slot: u32, unsettled: bool) {
        let group = self.group_mut(first);
        let (phase, was_empty) = (group.phase, group.is_empty());
        group.take(slot, unsettled);
        let is_full = group.free() == 0;
        self.slots_free -= 1;
        self.closed_empty -= u32::from(was_empty && phase == GroupPhase::Closed);
        if phase == GroupPhase::Open {
            self.slots_open -= 1;
            if is_full {
                self.available.remove(&first);
            }
        }
    }

    /// A slot of this group was freed.
    fn freed(&mut self, first: u32) {
        self.slots_free += 1;
        self.is_full = false;
        let group = self.group_mut(first);
        let (phase, is_empty) = (group.phase, group.is_empty());
        self.closed_empty += u32::from(is_empty && phase == GroupPhase::Closed);
        if phase == GroupPhase::Open {
            self.available.insert(first);
            self.slots_open += 1;
        }
    }

    pub fn insert(&mut self, first: u32, mut group: SlotGroup) {
        let phase = std::mem::replace(&mut group.phase, GroupPhase::Closed);
        self.slots_free += group.free();
        self.closed_empty += u32::from(group.is_empty());
        self.groups.insert(first, group);
        self.set_phase(first, phase);
    }

    pub fn remove(&mut self, first: u32) -> Option<SlotGroup> {
        if self.groups.contains_key(&first) {
            self.set_phase(first, GroupPhase::Closed);
        }
        let removed = self.groups.remove(&first)?;
        self.slots_free -= removed.free();
        self.closed_empty -= u32::from(removed.is_empty());
        Some(removed)
    }

    pub fn set_phase(&mut self, first: u32, phase: GroupPhase) {
        let group = self.group_mut(first);
        let is_empty = u32::from(group.is_empty());
        let (free, before) = (group.free(), std::mem::replace(&mut group.phase, phase));
        if before == GroupPhase::Closed {
            self.closed_empty -= is_empty;
        }
        if phase == GroupPhase::Closed {
            self.closed_empty += is_empty;
        }
        if before == GroupPhase::Open {
            self.slots_open -= free;
            self.available.remove(&first);
        }
        if phase == GroupPhase::Open && free > 0 {
            self.slots_open += free;
            self.available.insert(first);
        }
    }
}
