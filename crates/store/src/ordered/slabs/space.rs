//! The slots of one keyspace and class.

use super::extent_versions::ExtentVersions;
use super::group_table::Group;
use super::promise::SlotPromise;
use super::share::SlotShare;
use super::slot_class::SlotClass;
use super::slot_group::{GroupPhase, SlotGroup};
use super::slot_guards::SlotGuards;
use super::slot_map::SlotMap;
use super::slot_round::SlotRound;
use super::space_state::SpaceState;
use std::sync::{Arc, Mutex};
use tapetum_base::engine::ImageMarks;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::io::lock;
use tapetum_kernels::ordered::{SlotAddress, SlotSalt};

/// Slots of nodes that are reserved when flash is full, for images that recovery rewrites: as many as there may be images in flight, and splits of
/// which one half is durable.
pub const RESERVED_SLOTS: u32 = 64;

/// The most slots that a split needs.
const SPLIT_SLOTS: u32 = 2;

#[derive(Clone, Copy, Debug)]
pub struct SpaceOptions {
    pub store_id: u64,
    pub keyspace: KeyspaceId,
    pub class: SlotClass,
    /// For nodes: open groups together have as many free slots as so many empty groups.
    pub open_groups: u32,
    /// The number of extents of a new group.
    pub group_extents: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SlotCounts {
    pub groups: u32,
    pub groups_open: u32,
    pub slots: u32,
    /// Free slots of all groups.
    pub slots_free: u32,
    /// Slots that can be given out: free ones of open groups that do not rest.
    pub slots_open: u32,
    /// Bytes of the space in memory.
    pub memory_bytes: u64,
}

/// See the [module](super). A cheap handle.
#[derive(Clone)]
pub struct SlotSpace {
    guards: Arc<SlotGuards>,
}

impl SlotSpace {
    /// A space of these groups, whose slots are all free. No slot of nodes is given out before a round begins; `round` is the last one.
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
        let state = SpaceState::new(versions.clone(), round.cloned());
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

    /// Runs `work` on the groups, under the lock.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut SpaceState) -> T) -> T {
        work(&mut lock(&self.guards.state))
    }

    /// Adds a group that the manifest names. Groups of extensions are neither opened nor closed, as nobody reads a slot of theirs that no live image
    /// names.
    pub fn insert(&self, group: &Group) {
        let class = self.options().class;
        let phase = if group.open || class != SlotClass::Nodes { GroupPhase::Open } else { GroupPhase::Closed };
        let slots = class.slots(self.map().pages(group.extents));
        let slots = SlotGroup::new(group.extents, group.version, slots, phase, class != SlotClass::Nodes);
        self.with(|state| state.insert(group.first, slots));
    }

    /// Promises a free slot. `None`: there is none until groups are added or slots are freed ([`SlotSpace::wants_change`]).
    pub fn promise(&self) -> Option<SlotPromise> {
        let may = self.with(|state| {
            let may = state.spare_slots() > 0;
            state.slots.promised += u32::from(may);
            state.wants.slot |= !may;
            may
        });
        may.then(|| SlotPromise::counted(&self.guards))
    }

    /// Takes a free slot of an open group for writing: one close behind `near` if there is one. `None`: there is no slot until groups are opened
    /// ([`SlotSpace::wants_change`]).
    pub fn take(&self, near: Option<SlotAddress>) -> Option<SlotShare> {
        self.take_if(near, |state| state.spare_slots() > 0)
    }

    /// As [`SlotSpace::take`], for a holder of a promise.
    pub fn take_promised(&self, near: Option<SlotAddress>) -> Option<SlotShare> {
        self.take_if(near, |state| state.slots.free > state.slots.held_back)
    }

    fn take_if(&self, near: Option<SlotAddress>, may: impl FnOnce(&SpaceState) -> bool) -> Option<SlotShare> {
        let near = near.and_then(|slot| self.map().number(slot));
        let taken = self.with(|state| {
            if state.is_between_rounds {
                return None;
            }
            let may = may(state);
            let taken = may.then(|| state.take_near(&self.guards, near)).flatten();
            state.wants.slot |= taken.is_none();
            taken
        });
        taken.map(|number| SlotShare::counted(&self.guards, number))
    }

    /// As [`SlotSpace::take`], for recovery, which may use reserved slots.
    pub fn take_kept_back(&self) -> Option<SlotShare> {
        let taken = self.with(|state| match state.is_between_rounds {
            true => None,
            false => state.take_near(&self.guards, None),
        });
        taken.map(|number| SlotShare::counted(&self.guards, number))
    }

    /// Begins a round that no manifest names, if freed slots rest.
    #[cfg(test)]
    pub fn turn_round(&self, stamp: u64) -> Option<SlotRound> {
        self.with(|state| {
            (state.flying == 0 && state.slots.resting > 0).then(|| {
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

    /// The number of the round's durable images with stamps up to `durable`, for an image to attest; 0 if it may not. No image up to that stamp is
    /// in flight, and the stamp never falls.
    pub fn round_images(&self, durable: u64) -> u32 {
        self.with(|state| state.round.through(durable))
    }

    /// Notes that an image with this stamp is durable, which attests images up to another stamp.
    pub fn attested(&self, stamp: u64, through: u64) {
        self.with(|state| {
            if state.round.is_named && stamp > state.round.stamp {
                state.marks.told_stamp = state.marks.told_stamp.max(through);
            }
        });
    }

    /// The stamps and numbers of durable and attested images.
    pub fn image_marks(&self) -> ImageMarks {
        self.with(|state| state.marks)
    }

    /// Requests that the manifest attests the durable images: maintenance begins a round.
    pub fn attest_images(&self) {
        self.with(|state| state.wants.attesting = true);
    }

    /// Another share of a slot of which exactly one share is kept. Only while a round lasts: images of an earlier life are counted.
    pub fn share_alone(&self, number: u32) -> Option<SlotShare> {
        if !self.with(|state| state.round.is_named) {
            return None;
        }
        let kept = self.resume(number);
        let share = kept.is_only().then(|| kept.clone());
        let _ = kept.keep();
        share
    }

    /// Whether the last search found no slot to give out, and no extents for more.
    pub fn is_full(&self) -> bool {
        self.with(|state| state.wants.cannot_be_met)
    }

    /// Whether slots must wait for a round, which gives out free ones: no extents are needed.
    pub fn wants_round(&self) -> bool {
        self.with(|state| state.slots.open == 0 && state.slots.free > 0 && state.flying == 0)
    }

    /// The numbers of all slots with a share.
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

    /// The number of free slots that are neither reserved nor promised, in open groups and others.
    pub fn spare_slots(&self) -> u32 {
        self.with(|state| state.spare_slots())
    }

    /// Whether recovery would find a free slot for each of `images` images, besides those on flash.
    pub fn has_room_for(&self, images: usize) -> bool {
        self.with(|state| state.slots.free as usize >= images)
    }

    /// Whether no slot is given out for a write that may be in flight.
    pub fn is_settled(&self) -> bool {
        self.with(|state| state.slots.unsettled == 0)
    }

    /// Whether the halves of a split would find no two slots, though groups may have reserved or promised ones.
    pub fn has_none(&self) -> bool {
        self.with(|state| state.slots.open + state.slots.resting == 0 || state.spare_slots() < SPLIT_SLOTS)
    }

    /// Another share of a slot that has one. `None`: it has none, or this space has no such slot.
    pub fn share(&self, slot: SlotAddress) -> Option<SlotShare> {
        let number = self.map().number(slot)?;
        let shared = self.with(|state| {
            let (first, slot) = self.guards.place(state, number)?;
            let group = state.groups.get_mut(&first)?;
            (group.shares(slot) > 0).then(|| group.add(slot))
        });
        shared.map(|()| SlotShare::counted(&self.guards, number))
    }

    /// Recovery's share of a slot in use; it may be the slot's first. `None`: there is no such slot.
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

    /// Notes that the content of this slot, which is in use, may be only in the drive's cache, where no flush need save it. The slot counts as
    /// flying until it is free.
    pub fn doubt(&self, number: u32) {
        let _ = self.guards.with_slot(number, |state, first, slot| state.doubt(first, slot));
    }

    /// Takes up a share that was kept ([`SlotShare::keep`]).
    ///
    /// # Panics
    /// If nobody keeps a share of this slot.
    pub fn resume(&self, number: u32) -> SlotShare {
        assert!(self.guards.shares(number) > 0, "nobody kept a share of slot {number}");
        SlotShare::counted(&self.guards, number)
    }

    /// The offset of a slot on flash. `None`: it is on another member, or is no slot at all.
    pub fn flash_offset(&self, slot: SlotAddress) -> Option<u64> {
        self.map().number(slot).map(|number| self.map().flash(number))
    }

    /// The salt that binds content to a slot. `None`: this space has no such slot.
    pub fn salt(&self, slot: SlotAddress) -> Option<SlotSalt> {
        self.guards.salt(self.map().number(slot)?)
    }

    /// The groups as the manifest has them: those that will be closed are open.
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
            let mut counts = SlotCounts { slots_open: state.slots.open, ..SlotCounts::default() };
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
