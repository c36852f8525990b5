//! Groups of one slot each, for extensions that are larger than those of slabs.
//!
//! ```text
//! session: wants a slot ─► maintenance: a group that nobody has, or new extents ─► edit, durable ─► session: takes the slot
//! ```
//! A group is made for who wants it, with as many extents as it takes, and goes when its extension is dead and nobody else wants one of that
//! size. Nobody looks at a slot of theirs that no live image names, so they are not zeroed. All that is wanted at a time is one edit.
//!
//! Threads: sessions want, and take what they were given. Who gives has the installer.

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

/// A slot that somebody waits for, as long as he keeps this.
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
    /// Whether nothing has become of it yet.
    pub fn waits(&self) -> bool {
        matches!(*lock(&self.given), WantedSlot::Waits)
    }

    /// What became of it; taken by this.
    pub fn take(&self) -> WantedSlot {
        std::mem::take(&mut lock(&self.given))
    }

    fn give(&self, given: WantedSlot) {
        *lock(&self.given) = given;
    }
}

impl SpaceState {
    /// A group with an extension of its size may be given out again: its first extent.
    fn empty_of(&self, extents: u32) -> Option<u32> {
        self.shelves.groups(Shelf::OpenEmpty, Shelf::OpenEmpty).find(|first| self.groups[first].extents == extents)
    }
}

impl SlotSpace {
    /// Wants a slot for an extension of so many pages, of maintenance.
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

    /// Gives slots of groups that nobody has; what is still wanted.
    fn give_empty(&self) -> Vec<Arc<SlotWant>> {
        let mut wants = self.with(|state| std::mem::take(&mut state.wants.large));
        wants.retain(|want| {
            // Who wanted it has given up.
            if Arc::strong_count(want) == 1 {
                return false;
            }
            let empty = self.with(|state| state.empty_of(want.extents));
            empty.into_iter().for_each(|first| self.give(first, want));
            empty.is_none()
        });
        wants
    }

    /// The groups that nobody has; they are not given out any more.
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

/// Gives what is wanted, as far as there are extents, and gives back groups that nobody has.
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
        // Those for which there was no room look again: what was removed may be enough.
        space.with(|state| state.wants.large.append(&mut wants));
        if space.with(|state| state.wants.large.is_empty()) {
            return Ok(());
        }
    }
}
