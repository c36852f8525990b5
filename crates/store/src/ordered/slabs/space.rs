//! The slots of one keyspace and class.

use super::extent_versions::ExtentVersions;
use super::group_table::Group;
use super::large_groups::SlotWant;
use super::share::SlotShare;
use super::slot_class::SlotClass;
use super::slot_group::{GroupPhase, SlotGroup};
use super::slot_map::SlotMap;
use super::slot_round::{RoundCount, SlotRound};
use crate::keyspace::KeyspaceId;
use crate::keyspace::engine::ImageMarks;
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
    /// Of nodes: open groups have as many free slots together as so many that are empty.
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
    /// That can be given out: of open groups, free ones that do not rest.
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
    /// Of nodes alone.
    versions: Arc<ExtentVersions>,
    state: Mutex<SpaceState>,
}

#[derive(Default)]
pub struct SpaceState {
    /// By first extent.
    pub groups: BTreeMap<u32, SlotGroup>,
    versions: Arc<ExtentVersions>,
    /// Open groups with slots that may be given out.
    available: BTreeSet<u32>,
    /// Slots of open groups that may be given out.
    pub slots_open: u32,
    /// Free slots of open groups that rest until the next round.
    pub slots_rest: u32,
    /// One has ended, and the next one has not begun.
    is_between_rounds: bool,
    /// Slots that were given out before the round and are unsettled: the next one begins when there is none.
    pub flying: u32,
    pub round: RoundCount,
    /// What is durable, and attested.
    pub marks: ImageMarks,
    /// Images that had landed when the round began.
    landed_before: u64,
    /// The round that the manifest named when the store was opened, for recovery.
    pub found_round: Option<SlotRound>,
    /// Slots of all groups, and those of them that are free.
    pub slots: u32,
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
    /// A space of these groups, all slots of which are free. None of nodes is given out before a round begins; `round` is the last one.
    pub fn new<'g>(
        map: SlotMap,
        options: SpaceOptions,
        groups: impl IntoIterator<Item = &'g Group>,
        round: Option<&SlotRound>,
    ) -> SlotSpace {
        let versions = match options.class {
            SlotClass::Nodes => ExtentVersions::new(map.extents_max()),
            _ => ExtentVersions::default(),
        };
        let versions = Arc::new(versions);
        let state = SpaceState { found_round: round.cloned(), versions: versions.clone(), ..SpaceState::default() };
        let guards = Arc::new(SlotGuards { map, options, versions, state: Mutex::new(state) });
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
        let slots = SlotGroup::new(group.extents, group.version, slots, (phase, class != SlotClass::Nodes));
        self.with(|state| state.insert(group.first, slots));
    }

    /// A free slot of an open group, to be written: one close behind `near` if there is one. `None`: there is no such slot before groups
    /// were opened ([`SlotSpace::wants_change`]).
    pub fn take(&self, near: Option<SlotAddress>) -> Option<SlotShare> {
        let near = near.and_then(|slot| self.map().number(slot));
        let taken = self.with(|state| {
            if state.is_between_rounds {
                return None;
            }
            let may = state.slots_free > state.held_back;
            let taken = may.then(|| state.take_near(&self.guards, near)).flatten();
            state.is_wanted |= taken.is_none();
            taken
        });
        taken.map(|number| SlotShare::counted(&self.guards, number))
    }

    /// As [`SlotSpace::take`], for recovery: it may have what is kept back.
    pub fn take_kept_back(&self) -> Option<SlotShare> {
        let taken = self.with(|state| match state.is_between_rounds {
            true => None,
            false => state.take_near(&self.guards, None),
        });
        taken.map(|number| SlotShare::counted(&self.guards, number))
    }

    /// Begins a round that no manifest names, if what was freed rests.
    #[cfg(test)]
    pub fn turn_round(&self, stamp: u64) -> Option<SlotRound> {
        self.with(|state| {
            (state.flying == 0 && state.slots_rest > 0).then(|| {
                state.end_round();
                let round = state.begin_round(self.options().keyspace, &[], stamp);
                state.open_round();
                round
            })
        })
    }

    /// The round that the manifest named when the store was opened.
    pub fn found_round(&self) -> Option<SlotRound> {
        self.with(|state| state.found_round.clone())
    }

    /// How many images of the round are durable that have stamps up to this one, as an image may say; 0 if none may. No image up to that
    /// stamp is on its way, and the stamp never falls.
    pub fn round_images(&self, durable: u64) -> u32 {
        self.with(|state| state.round.through(durable))
    }

    /// An image with this stamp is durable, and attests those up to another one.
    pub fn attested(&self, stamp: u64, through: u64) {
        self.with(|state| {
            if state.round.is_named && stamp > state.round.stamp {
                state.marks.told_stamp = state.marks.told_stamp.max(through);
            }
        });
    }

    /// What is durable, and attested.
    pub fn image_marks(&self) -> ImageMarks {
        self.with(|state| state.marks)
    }

    /// Another share of a slot of which one is kept, and no other. Only while a round lasts: images of an earlier life are counted.
    pub fn share_alone(&self, number: u32) -> Option<SlotShare> {
        if !self.with(|state| state.round.is_named) {
            return None;
        }
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
        self.with(|state| state.slots_open + state.slots_rest == 0 || state.slots_free <= state.held_back)
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

    /// What is in this slot, which is in use, may be in nothing but the drive's cache, and no flush need save it: it counts as flying until it is
    /// free.
    pub fn doubt(&self, number: u32) {
        let _ = self.guards.with_slot(number, |state, first, slot| state.group_mut(first).doubt(slot));
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
        let version = match self.options.class {
            // Each page of an extent is a slot.
            SlotClass::Nodes => self.versions.get(self.map.extent_of(number))?,
            _ => self.with_slot(number, |state, first, _| state.groups[&first].version)?,
        };
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
        let early = self.options.planted.has(Bug::OrderedReuseSlotEarly);
        let dropped = self.with_slot(number, |state, first, slot| {
            let is_freed = state.with_flying(first, |group| match early {
                false => group.drop_share(slot),
                // The bug frees it for all, so the others have nothing to give up.
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

    /// A slot close behind one that may be given out.
    fn free_behind(&self, guards: &SlotGuards, number: u32) -> Option<(u32, u32)> {
        let (first, slot) = guards.place(self, number)?;
        let found = self.available.contains(&first).then(|| self.groups[&first].next_ready(slot + 1))??;
        (found - slot <= NEAR_SLOTS).then_some((first, found))
    }

    /// The first such slot of the first open group that has one.
    fn free_first(&self) -> Option<(u32, u32)> {
        let first = *self.available.first()?;
        Some((first, self.groups[&first].next_ready(0)?))
    }

    /// Whether there is an open group all slots of which may be given out.
    pub fn has_open_empty(&self) -> bool {
        self.available.iter().any(|first| self.groups[first].is_empty())
    }

    /// Gives out a free slot.
    fn take(&mut self, first: u32, slot: u32, unsettled: bool) {
        let group = self.group_mut(first);
        let (phase, was_empty) = (group.phase, group.is_empty());
        let before = (group.ready(), group.free());
        group.take(slot, unsettled);
        let after = (group.ready(), group.free());
        self.slots_free -= 1;
        self.closed_empty -= u32::from(was_empty && phase == GroupPhase::Closed);
        if phase == GroupPhase::Open {
            self.recount(first, before, after);
        }
    }

    /// A slot of this group was freed.
    fn freed(&mut self, first: u32) {
        self.slots_free += 1;
        self.is_full = false;
        let group = self.group_mut(first);
        let (phase, is_empty, is_reused) = (group.phase, group.is_empty(), group.is_reused());
        self.closed_empty += u32::from(is_empty && phase == GroupPhase::Closed);
        if phase != GroupPhase::Open {
            return;
        }
        match is_reused {
            true => {
                self.available.insert(first);
                self.slots_open += 1;
            }
            false => self.slots_rest += 1,
        }
    }

    /// Slots of an open group: so many that may be given out, and so many that are free.
    fn recount(&mut self, first: u32, before: (u32, u32), after: (u32, u32)) {
        self.slots_open = self.slots_open + after.0 - before.0;
        self.slots_rest = self.slots_rest + (after.1 - after.0) - (before.1 - before.0);
        match after.0 {
            0 => self.available.remove(&first),
            _ => self.available.insert(first),
        };
    }

    /// Works on a group, and counts its flying slots anew.
    fn with_flying<T>(&mut self, first: u32, work: impl FnOnce(&mut SlotGroup) -> T) -> T {
        let group = self.group_mut(first);
        let before = group.flying();
        let done = work(group);
        let after = group.flying();
        self.flying = self.flying + after - before;
        done
    }

    /// The round ends: nothing more is told of it, and no slot is given out before the next one begins.
    pub fn end_round(&mut self) {
        (self.round.is_named, self.is_between_rounds) = (false, true);
    }

    /// A round begins that slots of open groups are for, and of those in `open`: what is to be named. Nothing is flying. Images whose
    /// stamps were given before the last round ended have none above `stamp`, and those whose stamps are given from here on have.
    pub fn begin_round(&mut self, keyspace: KeyspaceId, open: &[u32], stamp: u64) -> SlotRound {
        debug_assert_eq!(self.flying, 0, "a round begins when nothing of the one before the last is on its way");
        self.is_between_rounds = false;
        // In the first round of a life nothing is flying but what recovery doubts, and nobody counts that.
        let stamp_before = if self.marks.settled.is_some() { self.round.stamp } else { u64::MAX };
        let stamp = stamp.max(self.marks.landed_stamp);
        self.landed_before = self.marks.landed;
        let mut groups = BTreeMap::new();
        for (first, group) in &mut self.groups {
            let may_give = group.phase == GroupPhase::Open || open.contains(first);
            if may_give || group.unsettled() > 0 || group.has_doubtful() {
                groups.insert(*first, group.begin_round(may_give));
            }
        }
        self.flying = self.groups.values().map(SlotGroup::flying).sum();
        self.round = self.round.next(stamp);
        SlotRound { keyspace, stamp, stamp_before, groups }
    }

    /// The round that has begun is named.
    pub fn open_round(&mut self) {
        let firsts: Vec<u32> = self.groups.keys().copied().collect();
        for first in firsts {
            let group = self.group_mut(first);
            let before = (group.ready(), group.free());
            group.open_round();
            let (phase, after) = (group.phase, (group.ready(), group.free()));
            if phase == GroupPhase::Open {
                self.recount(first, before, after);
            }
        }
        (self.round.is_named, self.found_round) = (true, None);
        (self.marks.settled, self.marks.told_stamp) = (Some(self.landed_before), 0);
    }

    pub fn insert(&mut self, first: u32, mut group: SlotGroup) {
        let phase = std::mem::replace(&mut group.phase, GroupPhase::Closed);
        self.slots += group.slots();
        self.slots_free += group.free();
        self.closed_empty += u32::from(group.is_empty());
        self.versions.set(first..first + group.extents, Some(group.version));
        self.groups.insert(first, group);
        self.set_phase(first, phase);
    }

    pub fn remove(&mut self, first: u32) -> Option<SlotGroup> {
        if self.groups.contains_key(&first) {
            self.set_phase(first, GroupPhase::Closed);
        }
        let removed = self.groups.remove(&first)?;
        self.versions.set(first..first + removed.extents, None);
        self.slots -= removed.slots();
        self.slots_free -= removed.free();
        self.closed_empty -= u32::from(removed.is_empty());
        Some(removed)
    }

    pub fn set_phase(&mut self, first: u32, phase: GroupPhase) {
        let group = self.group_mut(first);
        let is_empty = u32::from(group.is_empty());
        let (ready, free) = (group.ready(), group.free());
        let before = std::mem::replace(&mut group.phase, phase);
        if before == GroupPhase::Closed {
            self.closed_empty -= is_empty;
        }
        if phase == GroupPhase::Closed {
            self.closed_empty += is_empty;
        }
        if before == GroupPhase::Open {
            self.recount(first, (ready, free), (0, 0));
        }
        if phase == GroupPhase::Open {
            self.recount(first, (0, 0), (ready, free));
        }
    }
}
