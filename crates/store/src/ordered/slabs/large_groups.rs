//! Groups of one slot each, for extensions that are too large for slabs.
//!
//! ```text
//! session: wants a slot ─► maintenance: a group that nobody has, or new extents ─► edit, durable ─► session: takes the slot
//! ```
//! A group is made for one request, with as many extents as it needs. It is removed when its extension is dead and nobody else wants one of that
//! size. Such slots are not zeroed, as nobody reads a slot that no live image names. One edit serves all pending requests.
//!
//! Threads: sessions request slots, and take the ones they were given. The giver has the installer.

use super::SlotShare;
use super::group_table::{Group, GroupEdit};
use super::growth::{GroupLog, group_of, release};
use super::shelves::Shelf;
use super::slot_class::SlotClass;
use super::slot_group::GroupPhase;
use super::space::SlotSpace;
use super::space_state::SpaceState;
use std::sync::{Arc, Mutex};
use tapetum_base::error::Error;
use tapetum_base::media::extents::{ExtentOwner, ExtentShape, Extents};
use tapetum_base::media::io::lock;

/// A pending request for a slot. Dropping it cancels the request.
pub struct SlotWant {
    extents: u32,
    given: Mutex<WantedSlot>,
}

#[derive(Default)]
pub enum WantedSlot {
    #[default]
    Waits,
    Given(SlotShare),
    /// There are no such extents.
    None,
}

impl SlotWant {
    /// Whether the request is still pending.
    pub fn waits(&self) -> bool {
        matches!(*lock(&self.given), WantedSlot::Waits)
    }

    /// Takes the result of the request.
    pub fn take(&self) -> WantedSlot {
        std::mem::take(&mut lock(&self.given))
    }

    fn give(&self, given: WantedSlot) {
        *lock(&self.given) = given;
    }
}

impl SpaceState {
    /// The first extent of an empty group of this size, whose slot can be given out again.
    fn empty_of(&self, extents: u32) -> Option<u32> {
        self.shelves.groups(Shelf::OpenEmpty, Shelf::OpenEmpty).find(|first| self.groups[first].extents == extents)
    }
}

impl SlotSpace {
    /// Requests a slot for an extension of `pages` pages from maintenance.
    pub fn want(&self, pages: u32) -> Arc<SlotWant> {
        debug_assert_eq!(self.options().class, SlotClass::Large);
        let want = Arc::new(SlotWant { extents: self.map().extents_of(pages), given: Mutex::default() });
        self.with(|state| state.wants.large.push(want.clone()));
        want
    }

    fn give(&self, first: u32, want: &SlotWant) {
        let share = self.claim(self.map().first_of(first)).expect("the group is there");
        want.give(WantedSlot::Given(share));
    }

    /// Gives out slots of empty groups. Returns the requests that are still pending.
    fn give_empty(&self) -> Vec<Arc<SlotWant>> {
        let mut wants = self.with(|state| std::mem::take(&mut state.wants.large));
        wants.retain(|want| {
            // The requester has given up.
            if Arc::strong_count(want) == 1 {
                return false;
            }
            let empty = self.with(|state| state.empty_of(want.extents));
            empty.into_iter().for_each(|first| self.give(first, want));
            empty.is_none()
        });
        wants
    }

    /// The empty groups. They give out no more slots.
    fn drain_empty(&self) -> Vec<u32> {
        self.with(|state| {
            let open = state.shelves.groups(Shelf::OpenEmpty, Shelf::OpenEmpty);
            let draining = state.shelves.groups(Shelf::DrainingEmpty, Shelf::DrainingEmpty);
            let empty: Vec<u32> = open.chain(draining).collect();
            empty.iter().for_each(|first| state.set_phase(*first, GroupPhase::Draining));
            empty
        })
    }
}

/// Serves the requests as far as there are extents, and removes empty groups.
pub async fn grow_large(space: &SlotSpace, extents: &Mutex<Extents>, log: &mut impl GroupLog) -> Result<(), Error> {
    loop {
        let mut wants = space.give_empty();
        let remove = space.drain_empty();
        let mut added: Vec<(Group, Arc<SlotWant>)> = Vec::new();
        let version = log.version_next();
        wants.retain(|want| {
            let taken = lock(extents).take(ExtentOwner::Slots, want.extents, ExtentShape::Neighbours);
            let Some([run]) = taken.as_deref() else { return true };
            let group = group_of(space, run.first, want.extents, version + added.len() as u64);
            added.push((group, want.clone()));
            false
        });
        if added.is_empty() && remove.is_empty() {
            wants.iter().for_each(|want| want.give(WantedSlot::None));
            return Ok(());
        }
        let mut edits = vec![GroupEdit::Remove(remove.clone())];
        edits.extend(added.iter().map(|(group, _)| GroupEdit::Add(*group)));
        log.append(edits).await?;
        for first in &remove {
            let removed = space.with(|state| state.remove(*first)).expect("it is drained by this alone");
            release(extents, *first, removed.extents);
        }
        for (group, want) in &added {
            space.insert(group);
            space.give(group.first, want);
        }
        // Requests without room are tried again: removed groups may have freed enough.
        space.with(|state| state.wants.large.append(&mut wants));
        if space.with(|state| state.wants.large.is_empty()) {
            return Ok(());
        }
    }
}
