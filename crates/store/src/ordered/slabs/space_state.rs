//! The groups of a space, and the counts of their slots, which change with them. Accessed under the space's lock.

use super::extent_versions::ExtentVersions;
use super::large_groups::SlotWant;
use super::shelves::{Shelf, Shelves};
use super::slot_group::{GroupPhase, SlotGroup};
use super::slot_guards::SlotGuards;
use super::slot_round::{RoundCount, SlotRound};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tapetum_base::engine::ImageMarks;
use tapetum_base::keyspace::KeyspaceId;

/// A slot that is at most so far behind its neighbour counts as near: one read-ahead of a scan covers it.
const NEAR_SLOTS: u32 = 16;

/// Numbers of slots, in all groups unless stated otherwise.
#[derive(Default)]
pub struct SpaceCounts {
    pub all: u32,
    pub free: u32,
    /// Slots of open groups that may be given out.
    pub open: u32,
    /// Free slots of open groups that rest until the next round.
    pub resting: u32,
    /// Slots given out for writing and not settled: a write to one may be in flight.
    pub unsettled: u32,
    /// The number of free slots that are reserved.
    pub held_back: u32,
    /// The number of further free slots that are promised.
    pub promised: u32,
}

/// Unmet requests to a space.
#[derive(Default)]
pub struct SlotWants {
    /// A request found no slot since the last change of groups.
    pub slot: bool,
    /// The last images must be attested, although nobody needs slots.
    pub attesting: bool,
    /// The last search found no slot, and no extents for more.
    pub cannot_be_met: bool,
    /// Pending requests for slots beyond the slabs.
    pub large: Vec<Arc<SlotWant>>,
}

/// See the [module](self).
#[derive(Default)]
pub struct SpaceState {
    /// Groups by first extent.
    pub groups: BTreeMap<u32, SlotGroup>,
    pub shelves: Shelves,
    /// Groups with slots whose content recovery doubted.
    doubted: BTreeSet<u32>,
    versions: Arc<ExtentVersions>,
    /// Open groups with slots that may be given out.
    available: BTreeSet<u32>,
    pub slots: SpaceCounts,
    /// A round has ended, and the next one has not begun.
    pub is_between_rounds: bool,
    /// Unsettled slots that were given out before the round. The next round begins when there is none.
    pub flying: u32,
    pub round: RoundCount,
    /// The number of freezes that hold slots.
    pub holds: u32,
    /// The durable and the attested images.
    pub marks: ImageMarks,
    /// The number of images that had landed when the round began.
    landed_before: u64,
    /// The round that the manifest named when the store was opened, for recovery.
    pub found_round: Option<SlotRound>,
    pub wants: SlotWants,
}

impl SpaceState {
    /// A state without groups, before the first round of a life.
    pub fn new(versions: Arc<ExtentVersions>, found_round: Option<SlotRound>) -> SpaceState {
        SpaceState { versions, found_round, ..SpaceState::default() }
    }

    pub fn group_mut(&mut self, first: u32) -> &mut SlotGroup {
        self.groups.get_mut(&first).expect("it was found there")
    }

    /// Gives out a free slot of an open group, close behind slot `near` if there is one there. Returns its number.
    pub fn take_near(&mut self, guards: &SlotGuards, near: Option<u32>) -> Option<u32> {
        let behind = near.and_then(|number| self.free_behind(guards, number));
        let (first, slot) = behind.or_else(|| self.free_first())?;
        self.take(first, slot, true);
        Some(guards.number(first, slot))
    }

    /// A slot close behind this one that may be given out.
    fn free_behind(&self, guards: &SlotGuards, number: u32) -> Option<(u32, u32)> {
        let (first, slot) = guards.place(self, number)?;
        let found = self.available.contains(&first).then(|| self.groups[&first].next_ready(slot + 1))??;
        (found - slot <= NEAR_SLOTS).then_some((first, found))
    }

    /// The first slot that may be given out, of the first open group that has one.
    fn free_first(&self) -> Option<(u32, u32)> {
        let first = *self.available.first()?;
        Some((first, self.groups[&first].next_ready(0)?))
    }

    /// The number of free slots that are neither reserved nor promised.
    pub fn spare_slots(&self) -> u32 {
        self.slots.free.saturating_sub(self.slots.held_back + self.slots.promised)
    }

    /// Puts a group on the shelf of its phase and free slots.
    fn shelve(&mut self, first: u32) {
        self.shelves.put(first, self.groups.get_mut(&first).expect("it was found there"));
    }

    /// The groups that a round may name, and possibly more.
    fn of_rounds(&self) -> BTreeSet<u32> {
        let named_open = self.shelves.groups(Shelf::OpenFull, Shelf::DrainingEmpty);
        named_open.chain(self.doubted.iter().copied()).collect()
    }

    /// Notes that recovery doubts the content of a slot in use.
    pub fn doubt(&mut self, first: u32, slot: u32) {
        self.group_mut(first).doubt(slot);
        self.doubted.insert(first);
    }

    /// Gives out a free slot.
    pub fn take(&mut self, first: u32, slot: u32, unsettled: bool) {
        let group = self.group_mut(first);
        let phase = group.phase;
        let before = (group.ready(), group.free());
        group.take(slot, unsettled);
        let after = (group.ready(), group.free());
        self.slots.free -= 1;
        self.slots.unsettled += u32::from(unsettled);
        self.shelve(first);
        if phase == GroupPhase::Open {
            self.recount(first, before, after);
        }
    }

    /// Counts a freed slot of this group.
    pub fn freed(&mut self, first: u32) {
        self.slots.free += 1;
        self.wants.cannot_be_met = false;
        let group = self.group_mut(first);
        let (phase, is_reused) = (group.phase, group.is_reused());
        self.shelve(first);
        if phase != GroupPhase::Open {
            return;
        }
        match is_reused {
            true => {
                self.available.insert(first);
                self.slots.open += 1;
            }
            false => self.slots.resting += 1,
        }
    }

    /// Ends a freeze's hold of these slots of a group.
    pub fn end_hold(&mut self, first: u32, used: &[u64]) {
        for (word, bits) in used.iter().enumerate() {
            for bit in (0..64).filter(|bit| bits >> bit & 1 == 1) {
                if self.with_flying(first, |group| group.end_hold(word as u32 * 64 + bit)) {
                    self.freed(first);
                }
            }
        }
    }

    /// Updates the counts of an open group's slots: those that may be given out, and the free ones.
    fn recount(&mut self, first: u32, before: (u32, u32), after: (u32, u32)) {
        self.slots.open = self.slots.open + after.0 - before.0;
        self.slots.resting = self.slots.resting + (after.1 - after.0) - (before.1 - before.0);
        match after.0 {
            0 => self.available.remove(&first),
            _ => self.available.insert(first),
        };
    }

    /// Runs `work` on a group, and recounts its flying and its unsettled slots.
    pub fn with_flying<T>(&mut self, first: u32, work: impl FnOnce(&mut SlotGroup) -> T) -> T {
        let group = self.group_mut(first);
        let before = (group.flying(), group.unsettled());
        let done = work(group);
        let after = (group.flying(), group.unsettled());
        self.flying = self.flying + after.0 - before.0;
        self.slots.unsettled = self.slots.unsettled + after.1 - before.1;
        done
    }

    /// Ends the round: its count is not published any more, and no slot is given out before the next one begins.
    pub fn end_round(&mut self) {
        (self.round.is_named, self.is_between_rounds) = (false, true);
    }

    /// Begins a round for the slots of open groups, and of those in `open`, and returns it for the manifest. Nothing is flying. Images with stamps
    /// given before the last round ended have none above `stamp`; images with stamps given from here on have.
    pub fn begin_round(&mut self, keyspace: KeyspaceId, open: &[u32], stamp: u64) -> SlotRound {
        debug_assert_eq!(self.flying, 0, "a round begins when nothing of the one before the last is on its way");
        self.is_between_rounds = false;
        // In the first round of a life only slots that recovery doubts are flying, and nobody counts those.
        let stamp_before = if self.marks.settled.is_some() { self.round.stamp } else { u64::MAX };
        let stamp = stamp.max(self.marks.landed_stamp);
        self.landed_before = self.marks.landed;
        let mut groups = BTreeMap::new();
        let mut firsts = self.of_rounds();
        firsts.extend(open);
        for first in firsts {
            let group = self.group_mut(first);
            let may_give = group.phase == GroupPhase::Open || open.contains(&first);
            if may_give || group.unsettled() > 0 || group.has_doubtful() {
                groups.insert(first, group.begin_round(may_give));
            }
        }
        self.flying = groups.keys().map(|first| self.groups[first].flying()).sum();
        self.round = self.round.next(stamp);
        SlotRound { keyspace, stamp, stamp_before, groups }
    }

    /// The round that has begun is named.
    pub fn open_round(&mut self) {
        for first in self.of_rounds() {
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
        self.wants.attesting = false;
    }

    pub fn insert(&mut self, first: u32, mut group: SlotGroup) {
        let phase = std::mem::replace(&mut group.phase, GroupPhase::Closed);
        self.slots.all += group.slots();
        self.slots.free += group.free();
        self.slots.unsettled += group.unsettled();
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
        self.slots.all -= removed.slots();
        self.slots.free -= removed.free();
        self.slots.unsettled -= removed.unsettled();
        self.shelves.remove(first, &removed);
        self.doubted.remove(&first);
        Some(removed)
    }

    pub fn set_phase(&mut self, first: u32, phase: GroupPhase) {
        let group = self.group_mut(first);
        let (ready, free) = (group.ready(), group.free());
        let before = std::mem::replace(&mut group.phase, phase);
        if phase == GroupPhase::Closed && !group.is_reused() {
            group.end_round();
        }
        self.shelve(first);
        if before == GroupPhase::Open {
            self.recount(first, (ready, free), (0, 0));
        }
        if phase == GroupPhase::Open {
            self.recount(first, (0, 0), (ready, free));
        }
    }
}
