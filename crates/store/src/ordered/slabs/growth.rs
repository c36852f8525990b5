//! Makes, opens, closes and removes groups, so that a space has slots to give out and keeps no more extents than it needs.
//!
//! ```text
//! plan → zero-write new groups → flush → a round begins → edits, durable: close, add, open, remove, round → the space
//!   → extents of removed groups are free
//! ```
//! If free extents cannot make up for them, the last slots are reserved for recovery.
//!
//! A change enters the space once it is durable. Exception: a group to close gives out no slots from the plan on. If it cannot be closed yet and
//! extents are lacking, it gives out slots again, as recovery needs slots before the images that it doubts are rewritten. Each change of nodes'
//! groups begins a round. A round also begins by itself, if open groups have resting slots or durable images must be attested. The flush covers
//! writes to closed groups whose holders gave up their shares before they knew them durable.
//!
//! Threads: the caller's. It has the installer, so nobody else changes groups.

use super::group_table::{Group, GroupEdit};
use super::large_groups::grow_large;
use super::shelves::{FREE_PARTS, Shelf};
use super::slot_class::SlotClass;
use super::slot_group::GroupPhase;
use super::slot_round::{RoundSlots, SlotRound};
use super::space::{RESERVED_SLOTS, SlotSpace};
use super::space_state::SpaceState;
use std::sync::Mutex;
use tapetum_base::error::Error;
use tapetum_base::media::extents::{ExtentOwner, ExtentShape, Extents};
use tapetum_base::media::io::{Io, lock};
use tapetum_drive::fail_point;

/// A closed group is opened instead of making a new one if one slot in this many is free. In the long run groups take up to n/(n - 1) of the room of
/// their nodes, if there are enough groups to choose from; half of that overhead is usual.
const REOPEN_PART: u32 = 12;
/// The same limit in the parts that shelves count.
const REOPEN_PARTS: u8 = (FREE_PARTS / REOPEN_PART) as u8;
/// The most groups that are opened in place of a new one that finds no extents.
const INSTEAD_OF_ONE: usize = REOPEN_PART as usize;
/// Open groups have one free slot for this many in use, and at least the minimum below. A round lasts for half of them.
const OPEN_USED_PART: u32 = 16;
const OPEN_SLOTS_MIN: u32 = 64;
/// One group of a slab in this many has slots to give out, so that one manifest write serves many values,
const SLAB_OPEN_PART: u32 = 4;
/// and at most this many groups do.
const SLAB_OPEN_GROUPS_MAX: u32 = 8;
/// Bytes of one write of zeros to a group: they cross to the drive once for all groups that are added together.
const ZERO_BYTES: usize = 64 << 10;

/// The manifest, as far as it makes changes of groups durable.
pub trait GroupLog: Send {
    /// The version of the next group: see [`super::group_table::GroupTable::version_next`].
    fn version_next(&self) -> u64;

    /// Makes all earlier writes to the drive durable.
    fn flush(&mut self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Makes edits durable, all of them or none, and applies them to the table.
    fn append(&mut self, edits: Vec<GroupEdit>) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The planned changes of a space's groups. Groups are named by their first extents.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct GroupPlan {
    pub close: Vec<u32>,
    pub open: Vec<u32>,
    pub remove: Vec<u32>,
    /// New groups, if there are extents for them.
    pub add: u32,
    /// Used if extents are lacking: closed groups with few free slots, to be opened, the emptiest first; and groups that cannot be closed yet, to
    /// stay open.
    pub instead: Vec<u32>,
    /// A round must begin even if no group changes: resting slots must be given out, or durable images attested.
    pub round: bool,
}

impl GroupPlan {
    pub fn is_empty(&self) -> bool {
        let GroupPlan { close, open, remove, add, instead: _, round } = self;
        close.is_empty() && open.is_empty() && remove.is_empty() && *add == 0 && !round
    }
}

impl SpaceState {
    fn on(&self, shelf: Shelf) -> Vec<u32> {
        self.shelves.groups(shelf, shelf).collect()
    }

    /// The wanted number of slab groups with slots to give out.
    fn slab_groups_wanted(&self) -> u32 {
        (1 + self.groups.len() as u32 / SLAB_OPEN_PART).min(SLAB_OPEN_GROUPS_MAX)
    }

    /// Whether slots run short, or there are groups to remove.
    fn wants_slabs(&self) -> bool {
        let (useful, wanted) = (self.shelves.useful(), self.slab_groups_wanted());
        let is_used = self.wants.slot || !self.groups.is_empty();
        is_used && (useful == 0 || useful * 2 < wanted) || self.shelves.empty() > wanted
    }

    /// Whether resting slots are worth a round of their own: at least as many rest as can be given out, so that rounds do not begin for a few each.
    fn is_rested(&self) -> bool {
        self.slots.resting > 0 && self.slots.resting >= self.slots.open
    }

    /// The number of free slots in open groups beyond `slots`.
    fn spare(&self, slots: u32) -> u32 {
        (self.slots.open + self.slots.resting).saturating_sub(slots)
    }

    /// Makes empty open groups drain that are not needed for `slots` free slots. They give out no more slots.
    fn drain_spare(&mut self, slots: u32) -> Vec<u32> {
        let mut drained = Vec::new();
        for first in self.on(Shelf::OpenEmpty).into_iter().rev() {
            if self.spare(slots) >= self.groups[&first].slots() {
                self.set_phase(first, GroupPhase::Draining);
                drained.push(first);
            }
        }
        drained
    }

    /// Makes the plan for `slots` free slots in open groups. Full open groups give out no more slots.
    fn plan_nodes(&mut self, slots: u32, group_slots: u32, close_early: bool) -> GroupPlan {
        self.on(Shelf::OpenFull).into_iter().for_each(|first| self.set_phase(first, GroupPhase::Draining));
        let draining = self.shelves.groups(Shelf::Draining, Shelf::DrainingEmpty);
        let (close, kept_open): (Vec<_>, Vec<_>) =
            draining.partition(|first| close_early || self.groups[first].is_settled());
        let mut missing = slots.saturating_sub(self.slots.open + self.slots.resting);
        let (mut open, mut remove) = (Vec::new(), self.on(Shelf::CLOSED_EMPTY));
        // The fullest groups come first: rewritten images leave the others, until those are empty and are removed.
        for first in self.shelves.groups(Shelf::Closed(REOPEN_PARTS), Shelf::CLOSED_EMPTY) {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(self.groups[&first].free());
            open.push(first);
        }
        remove.retain(|first| !open.contains(first));
        let round = self.wants.attesting || self.slots.open < slots && self.is_rested();
        let add = missing.div_ceil(group_slots);
        let poor = self.shelves.groups(Shelf::Closed(0), Shelf::Closed(REOPEN_PARTS - 1)).rev();
        let kept_open = kept_open.into_iter().filter(|first| self.groups[first].free() > 0);
        let instead = poor.chain(kept_open).take(INSTEAD_OF_ONE * add as usize).collect();
        remove.extend(self.drain_spare(2 * slots));
        GroupPlan { close, open, remove, add, instead, round }
    }

    /// Makes the plan. Groups that will be removed give out no more slots.
    fn plan_extensions(&mut self) -> GroupPlan {
        let (useful, open_groups) = (self.shelves.useful(), self.slab_groups_wanted());
        let empty = self.on(Shelf::OpenEmpty);
        let spare = useful.saturating_sub(open_groups) as usize;
        empty.into_iter().rev().take(spare).for_each(|first| self.set_phase(first, GroupPhase::Draining));
        GroupPlan {
            remove: self.on(Shelf::DrainingEmpty),
            add: open_groups.saturating_sub(useful),
            ..GroupPlan::default()
        }
    }
}

impl SlotSpace {
    /// Whether slots run short or there are groups to remove, so that [`grow`] has work.
    pub fn wants_change(&self) -> bool {
        match self.options().class {
            SlotClass::Nodes => self.with(|state| {
                let wanted = self.slots_wanted(state);
                let is_short = state.wants.slot || state.slots.open * 2 < wanted;
                // Empty closed groups may have as many slots as are wanted: opening them again needs no zeroing.
                let is_spare = state.shelves.closed_empty() * self.group_slots() > wanted.max(self.group_slots())
                    || state.spare(2 * wanted) >= self.group_slots() && state.shelves.open_empty() > 0;
                // A round begins when all writes of the round before the last one have ended.
                state.flying == 0 && (is_short || is_spare || state.wants.attesting)
            }),
            SlotClass::Extensions(_) => self.with(|state| state.wants_slabs()),
            SlotClass::Large => self.with(|state| !state.wants.large.is_empty() || state.shelves.empty() > 0),
        }
    }

    /// Reserves as many slots of nodes as cannot be made from free extents. Notes whether there is none to give out, if `missing` groups found no
    /// extents. If none is missing, the space is not full, even if others have taken those extents meanwhile.
    fn note_room(&self, extents: &Mutex<Extents>, missing: usize) {
        let is_of_nodes = self.options().class == SlotClass::Nodes;
        let slots_left = if is_of_nodes { self.slots_left(extents, RESERVED_SLOTS) } else { 0 };
        self.with(|state| {
            if is_of_nodes {
                state.slots.held_back = RESERVED_SLOTS.saturating_sub(slots_left);
            }
            state.wants.cannot_be_met = state.slots.open == 0 && missing > 0;
        });
    }

    /// How many slots new groups would have. Free extents that are no neighbours make no group. The count stops at the first group with which it
    /// reaches `slots_max`.
    pub fn slots_left(&self, extents: &Mutex<Extents>, slots_max: u32) -> u32 {
        let groups_max = slots_max.div_ceil(self.group_slots());
        let groups = lock(extents).runs_of(ExtentOwner::Slots, self.options().group_extents, groups_max);
        groups * self.group_slots()
    }

    /// Whether there are extents for a new group.
    pub fn finds_extents(&self, extents: &Mutex<Extents>) -> bool {
        lock(extents).can_take(ExtentOwner::Slots, self.options().group_extents, ExtentShape::Neighbours)
    }

    fn group_slots(&self) -> u32 {
        self.options().class.slots(self.map().pages(self.options().group_extents))
    }

    /// The wanted number of free slots in open groups: the promised ones, and more in proportion to the slots in use; at least as many again as are
    /// promised, as further promises will follow.
    fn slots_wanted(&self, state: &SpaceState) -> u32 {
        let wanted = ((state.slots.all - state.slots.free) / OPEN_USED_PART).max(OPEN_SLOTS_MIN);
        let wanted = wanted.min(self.options().open_groups * self.group_slots());
        state.slots.promised + wanted.max(state.slots.promised)
    }

    fn plan(&self) -> GroupPlan {
        self.with(|state| match self.options().class {
            SlotClass::Nodes => {
                let close_early = fail_point!(OrderedCloseEarly);
                state.plan_nodes(self.slots_wanted(state), self.group_slots(), close_early)
            }
            SlotClass::Extensions(_) => state.plan_extensions(),
            SlotClass::Large => unreachable!("their groups are made one by one"),
        })
    }
}

/// Changes the groups as the space needs. Afterwards the space has slots to give out, if there are extents or free slots. `stamp` gives a stamp
/// above all earlier ones and below all later ones.
pub async fn grow(
    space: &SlotSpace,
    io: &Io,
    extents: &Mutex<Extents>,
    log: &mut impl GroupLog,
    stamp: impl Fn() -> u64,
) -> Result<(), Error> {
    if space.options().class == SlotClass::Large {
        return grow_large(space, extents, log).await;
    }
    if space.with(|state| state.flying > 0) {
        return Ok(());
    }
    space.with(|state| state.wants.slot = false);
    let mut plan = space.plan();
    let added = allocate(space, extents, plan.add, log.version_next());
    let missing = plan.add as usize - added.len();
    plan.open.extend(plan.instead.iter().take(missing * INSTEAD_OF_ONE));
    plan.add = added.len() as u32;
    if plan.is_empty() {
        space.note_room(extents, missing);
        return Ok(());
    }
    if let Err(error) = zero(space, io, &added).await {
        added.iter().for_each(|group| release(extents, group.first, group.extents));
        return Err(error);
    }
    if !added.is_empty() || !plan.close.is_empty() {
        log.flush().await?;
    }
    let mut edits = vec![GroupEdit::Close(plan.close.clone()), GroupEdit::Remove(plan.remove.clone())];
    edits.extend(added.iter().map(|group| GroupEdit::Add(*group)));
    if space.options().class == SlotClass::Nodes {
        let firsts = added.iter().map(|group| group.first);
        edits.push(GroupEdit::Open(plan.open.iter().copied().chain(firsts).collect()));
        edits.push(GroupEdit::Round(begin_round(space, &plan, &added, &stamp)));
    }
    log.append(edits).await?;
    apply(space, extents, &plan, &added);
    space.note_room(extents, missing);
    Ok(())
}

pub(super) fn group_of(space: &SlotSpace, first: u32, extents: u32, version: u64) -> Group {
    let options = space.options();
    Group {
        first,
        extents,
        keyspace: options.keyspace,
        class: options.class,
        version,
        open: options.class == SlotClass::Nodes,
    }
}

/// Takes extents for `count` groups, or for fewer.
fn allocate(space: &SlotSpace, extents: &Mutex<Extents>, count: u32, version_next: u64) -> Vec<Group> {
    let group_extents = space.options().group_extents;
    let mut extents = lock(extents);
    let taken = (0..count).map_while(|_| extents.take(ExtentOwner::Slots, group_extents, ExtentShape::Neighbours));
    let firsts = taken.flatten().map(|run| run.first);
    firsts.zip(version_next..).map(|(first, version)| group_of(space, first, group_extents, version)).collect()
}

pub(super) fn release(extents: &Mutex<Extents>, first: u32, count: u32) {
    let mut extents = lock(extents);
    (first..first + count).for_each(|extent| extents.release(extent));
}

/// Writes zeros to all slots of groups. A flush makes them durable.
async fn zero(space: &SlotSpace, io: &Io, groups: &[Group]) -> Result<(), Error> {
    if groups.is_empty() {
        return Ok(());
    }
    let mut buffer = io.allocate(ZERO_BYTES).await?;
    io.fill(&mut buffer, 0..ZERO_BYTES).fill(0);
    for group in groups {
        let begin = space.map().flash(space.map().first_of(group.first));
        let end = space.map().flash(space.map().first_of(group.first + group.extents));
        for flash in (begin..end).step_by(ZERO_BYTES) {
            io.write(flash, &mut buffer, ZERO_BYTES.min((end - flash) as usize)).await?;
        }
    }
    Ok(())
}

/// Begins a round. Returns it in the form that the manifest gets.
fn begin_round(space: &SlotSpace, plan: &GroupPlan, added: &[Group], stamp: impl Fn() -> u64) -> SlotRound {
    let keyspace = space.options().keyspace;
    space.with(SpaceState::end_round);
    let stamp = stamp();
    let mut round = space.with(|state| state.begin_round(keyspace, &plan.open, stamp));
    for group in added {
        let slots = RoundSlots::all_free(space.options().class.slots(space.map().pages(group.extents)));
        round.groups.insert(group.first, slots);
    }
    round
}

/// Applies durable changes in memory.
fn apply(space: &SlotSpace, extents: &Mutex<Extents>, plan: &GroupPlan, added: &[Group]) {
    let removed = space.with(|state| {
        plan.close.iter().for_each(|first| state.set_phase(*first, GroupPhase::Closed));
        plan.open.iter().for_each(|first| state.set_phase(*first, GroupPhase::Open));
        let remove = |first: &u32| state.remove(*first).map(|group| (*first, group.extents));
        plan.remove.iter().filter_map(remove).collect::<Vec<_>>()
    });
    removed.into_iter().for_each(|(first, count)| release(extents, first, count));
    added.iter().for_each(|group| space.insert(group));
    if space.options().class == SlotClass::Nodes {
        space.with(|state| {
            added.iter().for_each(|group| drop(state.group_mut(group.first).begin_round(true)));
            state.open_round();
        });
    }
}
