//! Makes, opens, closes and removes groups, so that a space has slots to give out and keeps no more extents than it needs.
//!
//! ```text
//! plan → zero-write new groups → flush → a round begins → edits, durable: close, add, open, remove, round → the space
//!   → extents of removed groups are free
//! ```
//! Where free extents do not make up for them, the last slots are kept back for recovery.
//!
//! A change is in the space only after it is durable, but for one: a group that is to be closed gives out no slots from the plan on. Where
//! extents are lacking it does so again, if it cannot be closed yet: recovery needs slots before what it doubts is durable. Each change of groups
//! of nodes begins a round, as does one of nothing else where open groups have slots that rest, or what is durable is to be attested. The
//! flush covers what was written to groups that are closed, by holders that gave up their shares before they knew it durable.
//!
//! Threads: the caller's. It has the installer, so it is alone in changing groups.

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

/// A closed group is opened rather than a new one made if one in so many of its slots is free. Groups take up to n/(n - 1) of the room of
/// their nodes in the long run, if there are enough groups to choose from: half of that is usual.
const REOPEN_PART: u32 = 12;
/// The same in parts as shelves count them.
const REOPEN_PARTS: u8 = (FREE_PARTS / REOPEN_PART) as u8;
/// Groups that are opened at most in place of a new one for which there are no extents.
const INSTEAD_OF_ONE: usize = REOPEN_PART as usize;
/// Open groups have one free slot for so many that are in use, and so many at least: a round lasts for half of them.
const OPEN_USED_PART: u32 = 16;
const OPEN_SLOTS_MIN: u32 = 64;
/// Of slabs, one in so many groups has slots to give out, so that the manifest is written for many values at once;
const SLAB_OPEN_PART: u32 = 4;
/// and no more than so many.
const SLAB_OPEN_GROUPS_MAX: u32 = 8;
/// Bytes written at once where groups are zeroed.
const ZERO_BYTES: usize = 256 << 10;

/// Where changes of groups are made durable: the manifest.
pub trait GroupLog: Send {
    /// The version of the next group: see [`super::group_table::GroupTable::version_next`].
    fn version_next(&self) -> u64;

    /// Makes durable all that was written to the drive before.
    fn flush(&mut self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Makes edits durable, all of them or none, and makes them in the table.
    fn append(&mut self, edits: Vec<GroupEdit>) -> impl Future<Output = Result<(), Error>> + Send;
}

/// What is to be done with the groups of a space. Groups are named by their first extents.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct GroupPlan {
    pub close: Vec<u32>,
    pub open: Vec<u32>,
    pub remove: Vec<u32>,
    /// New groups, if there are extents for them.
    pub add: u32,
    /// For lack of extents: closed groups with few free slots, to be opened, the emptiest first, and groups that cannot be closed yet, to
    /// stay open.
    pub instead: Vec<u32>,
    /// A round is to begin whatever becomes of groups: slots that rest are to be given out, or what is durable is to be attested.
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

    /// Groups of slabs that are to have slots to give out.
    fn slab_groups_wanted(&self) -> u32 {
        (1 + self.groups.len() as u32 / SLAB_OPEN_PART).min(SLAB_OPEN_GROUPS_MAX)
    }

    /// Whether slots run short, or there are groups to give back.
    fn wants_slabs(&self) -> bool {
        let (useful, wanted) = (self.shelves.useful(), self.slab_groups_wanted());
        let is_used = self.wants.slot || !self.groups.is_empty();
        is_used && (useful == 0 || useful * 2 < wanted) || self.shelves.empty() > wanted
    }

    /// Whether slots that rest are worth a round of their own: so many more than can be given out that rounds are not begun for a few each.
    fn is_rested(&self) -> bool {
        self.slots.resting > 0 && self.slots.resting >= self.slots.open
    }

    /// Free slots of open groups beyond so many.
    fn spare(&self, slots: u32) -> u32 {
        (self.slots.open + self.slots.resting).saturating_sub(slots)
    }

    /// Open groups that are empty and not needed for so many free slots; they give out no more.
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

    /// Makes the plan: as many free slots in open groups as `slots`. Open groups that are full give out no more slots.
    fn plan_nodes(&mut self, slots: u32, group_slots: u32, close_early: bool) -> GroupPlan {
        self.on(Shelf::OpenFull).into_iter().for_each(|first| self.set_phase(first, GroupPhase::Draining));
        let draining = self.shelves.groups(Shelf::Draining, Shelf::DrainingEmpty);
        let (close, kept_open): (Vec<_>, Vec<_>) =
            draining.partition(|first| close_early || self.groups[first].is_settled());
        let mut missing = slots.saturating_sub(self.slots.open + self.slots.resting);
        let (mut open, mut remove) = (Vec::new(), self.on(Shelf::CLOSED_EMPTY));
        // The fullest first: images that are written again leave the others, until those are empty and go.
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

    /// Makes the plan; groups that are to be removed give out no more slots.
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
    /// Whether slots run short, or there are groups to give back: [`grow`] has something to do.
    pub fn wants_change(&self) -> bool {
        match self.options().class {
            SlotClass::Nodes => self.with(|state| {
                let wanted = self.slots_wanted(state);
                let is_short = state.wants.slot || state.slots.open * 2 < wanted;
                // As many slots as are wanted may be of closed groups that are empty: they need not be zeroed to be opened again.
                let is_spare = state.shelves.closed_empty() * self.group_slots() > wanted.max(self.group_slots())
                    || state.spare(2 * wanted) >= self.group_slots() && state.shelves.open_empty() > 0;
                // A round begins when the one before the last is over.
                state.flying == 0 && (is_short || is_spare || state.wants.attesting)
            }),
            SlotClass::Extensions(_) => self.with(|state| state.wants_slabs()),
            SlotClass::Large => self.with(|state| !state.wants.large.is_empty() || state.shelves.empty() > 0),
        }
    }

    /// Keeps as many slots of nodes back as cannot be made of free extents, and notes whether there is none to give out, where so many groups
    /// found no extents. Where all did, others may have taken what they have meanwhile: that is not full.
    fn note_room(&self, extents: &Mutex<Extents>, missing: usize) {
        let options = self.options();
        let groups_left = lock(extents).room_of(ExtentOwner::Slots) / options.group_extents;
        let slots_left = groups_left.saturating_mul(self.map().pages(options.group_extents));
        self.with(|state| {
            if options.class == SlotClass::Nodes {
                state.slots.held_back = RESERVED_SLOTS.saturating_sub(slots_left);
            }
            state.wants.cannot_be_met = state.slots.open == 0 && missing > 0;
        });
    }

    /// Whether there are extents for a new group.
    pub fn finds_extents(&self, extents: &Mutex<Extents>) -> bool {
        lock(extents).can_take(ExtentOwner::Slots, self.options().group_extents, ExtentShape::Neighbours)
    }

    fn group_slots(&self) -> u32 {
        self.options().class.slots(self.map().pages(self.options().group_extents))
    }

    /// Free slots that open groups are to have: those that are promised, and as many as fits what is in use, or as many again: while many
    /// are promised, many will be.
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

/// Does what the space needs: afterwards it has slots to give out, if there are extents or free slots.
/// `stamp` gives one that is above all that were given, and below those that are given later.
pub async fn grow(
    space: &SlotSpace,
    io: &Io,
    extents: &Mutex<Extents>,
    (log, stamp): (&mut impl GroupLog, impl Fn() -> u64),
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
    for group in &added {
        if let Err(error) = zero(space, io, group).await {
            added.iter().for_each(|group| release(extents, group.first, group.extents));
            return Err(error);
        }
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

/// Takes extents for so many groups, or fewer.
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

/// Writes zeros to all slots of a group. A flush makes them durable.
async fn zero(space: &SlotSpace, io: &Io, group: &Group) -> Result<(), Error> {
    let begin = space.map().flash(space.map().first_of(group.first));
    let end = space.map().flash(space.map().first_of(group.first + group.extents));
    let mut buffer = io.allocate(ZERO_BYTES.min((end - begin) as usize)).await?;
    let length = buffer.len();
    io.fill(&mut buffer, 0..length).fill(0);
    for flash in (begin..end).step_by(length) {
        io.write(flash, &mut buffer, length.min((end - flash) as usize)).await?;
    }
    Ok(())
}

/// Begins a round: as the manifest is to name it.
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

/// Makes in memory what is durable.
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
