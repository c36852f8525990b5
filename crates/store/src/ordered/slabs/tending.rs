//! Maintenance of the slots of ordered keyspaces.
//!
//! Threads: the maintenance thread, with its I/O, which also writes the manifest. While it has the installer, nobody else changes groups.

use super::growth::grow;
use super::keyspace_slots::KeyspaceSlots;
use super::manifest_client::GroupInstaller;
use super::space::SlotSpace;
use std::sync::Arc;
use tapetum_base::base::Base;
use tapetum_base::error::Error;
use tapetum_base::media::io::Io;

/// Gives the keyspace slots to give out, and frees extents that it does not need. Returns whether there was anything to do. An error leaves the
/// manifest's content in doubt: the caller must poison the log.
pub async fn tend(base: &Arc<Base>, io: &Io, slots: &KeyspaceSlots) -> Result<bool, Error> {
    let mut is_changed = false;
    for space in slots.spaces().filter(|space| space.wants_change()) {
        open_more(base, io, space).await?;
        is_changed = true;
    }
    Ok(is_changed)
}

/// Gives a space more slots, for a caller that found none.
pub async fn open_more(base: &Arc<Base>, io: &Io, space: &SlotSpace) -> Result<(), Error> {
    let mut installer = base.take_installer().await;
    let mut log = GroupInstaller { base, io, installer: &mut installer };

    grow(space, io, &base.extents, &mut log, || base.log.give_stamp()).await
}

#[cfg(test)]
mod tests {
    use super::super::keyspace_slots::SlabOptions;
    use super::super::large_groups::WantedSlot;
    use super::super::slot_class::SlotClass;
    use super::*;
    use crate::KeyspaceId;
    use crate::engines::{engine_clients, open};
    use crate::hashed::HashedEngine;
    use crate::hashed::collect::victim::tests::{SMALL_BYTES, drive_in_memory, small_options};
    use crate::ordered::slabs::group_table::GroupTable;
    use tapetum_base::media::io::{lock, run};
    use tapetum_base::recover::create;
    use tapetum_drive::Env;

    /// The groups of a keyspace, over the extents and the manifest that it shares with the hashed engine.
    #[test]
    fn groups_are_there_again_after_an_opening_and_nobody_else_has_their_extents() {
        let options = small_options();
        let drive = drive_in_memory(SMALL_BYTES, &options, Env::system());
        let io = Io::new(drive.queue_pair(16).unwrap());
        run(&io, create(&drive, &io, &options, engine_clients), || false).unwrap().unwrap();
        let opened = || run(&io, open(&drive, &io, &options), || false).unwrap().unwrap().hashed;
        let keyspace = KeyspaceId(7);
        let slots_of = |hashed: &HashedEngine| {
            let base = hashed.base.clone();
            let slabs = SlabOptions::new(&base.geometry, base.store_id).unwrap();
            let table = lock(&base.installer).as_ref().unwrap().of::<GroupTable>().clone();
            (base, KeyspaceSlots::new(&slabs, keyspace, &table), table)
        };
        let shared = opened();
        let (base, slots, _) = slots_of(&shared);
        let free = lock(&base.extents).free_count();
        assert!(run(&io, tend(&base, &io, &slots), || false).unwrap().unwrap());
        assert!(!run(&io, tend(&base, &io, &slots), || false).unwrap().unwrap(), "there is nothing more to do");
        let share = slots.nodes().take(None).unwrap();
        let want = slots.of_class(SlotClass::Large).want(32);
        assert!(run(&io, tend(&base, &io, &slots), || false).unwrap().unwrap());
        let WantedSlot::Given(large) = want.take() else { panic!("there is room") };
        assert!(lock(&base.extents).free_count() < free - 32);
        let before = (lock(&base.extents).free_count(), slots_of(&shared).2);
        drop((share, large, slots, base, shared));
        let (base, slots, table) = slots_of(&opened());
        assert_eq!((lock(&base.extents).free_count(), table), before);
        assert_eq!(slots.nodes().counts().groups_open, slots.nodes().counts().groups);
        // Nobody has claimed the large slot: its extents are freed.
        run(&io, tend(&base, &io, &slots), || false).unwrap().unwrap();
        assert_eq!(slots.of_class(SlotClass::Large).counts().groups, 0);
        assert!(lock(&base.extents).free_count() > before.0);
    }
}
