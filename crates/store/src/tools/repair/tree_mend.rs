//! The part of a repair that mends ordered keyspaces. What it writes goes to the overlay.

use super::Surgery;
use super::trees::{TreeLog, look_at_tree};
use crate::ordered::recover::mend::{TreeDamage, mend};
use crate::ordered::slabs::group_table::{GroupEdit, GroupTable};
use crate::ordered::slabs::growth::GroupLog;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::catalogue::{Keyspace, KeyspaceState};
use tapetum_base::keyspace_kind::KeyspaceKind;

/// Groups come to count with the manifest that the repair begins anew.
struct RepairGroups<'a> {
    groups: &'a mut GroupTable,
}

impl GroupLog for RepairGroups<'_> {
    fn version_next(&self) -> u64 {
        self.groups.version_next()
    }

    async fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    async fn append(&mut self, edits: Vec<GroupEdit>) -> Result<(), Error> {
        edits.iter().try_for_each(|edit| self.groups.edit(edit)).map_err(Error::Corrupt)
    }
}

/// The ordered keyspaces that are not dropped.
pub fn trees(keyspaces: &tapetum_base::keyspace::catalogue::Catalogue) -> Vec<Keyspace> {
    let is_tree =
        |keyspace: &&Keyspace| keyspace.kind == KeyspaceKind::Ordered && keyspace.state == KeyspaceState::Live;
    keyspaces.iter().filter(is_tree).cloned().collect()
}

impl Surgery<'_> {
    /// Mends all ordered keyspaces.
    pub(super) async fn mend_trees(&mut self) -> Result<(), Error> {
        for keyspace in trees(&self.roots.installer.keyspaces) {
            let mut found = look_at_tree(&self.patient.io, &self.roots, &keyspace, &mut self.report).await?;
            if !found.is_damaged() {
                continue;
            }
            // It names what was live before.
            self.roots.installer.roots.set(KeyspaceKind::Ordered, Vec::new());
            self.roots.is_changed = true;
            self.roots.delete_from_log(&found.lost_in_log);
            let log = TreeLog::of(&self.roots, keyspace.id);
            let records = log.records();
            let stamp_next = self.stamp_next(found.images.stamp_last());
            let damage = TreeDamage { set: &mut found.images, bad: &found.bad, lost: &found.lost, live: &found.live };
            let roots = &mut self.roots;
            let mut groups = RepairGroups { groups: roots.installer.of_mut::<GroupTable>() };
            let extents = &*roots.space.allocator;
            let mended = mend(&self.patient.io, &found.slots, damage, &records, extents, &mut groups, stamp_next);
            let stamp_next = mended.await.map_err(|error| no_room(error, &keyspace))?;
            let opening = &mut self.roots.installer.marks.opening;
            opening.stamp_base = opening.stamp_base.max(stamp_next);
        }
        Ok(())
    }

    /// The stamp for the next image, above all that anything has.
    fn stamp_next(&self, stamp_last: u64) -> u64 {
        let known = self.roots.log.stamp_seen.max(self.roots.installer.marks.opening.stamp_base);
        known.max(stamp_last) + 1
    }
}

fn no_room(error: Error, keyspace: &Keyspace) -> Error {
    match error {
        Error::FullFlash => Error::Options(format!(
            "there is no room to write data nodes of keyspace \"{}\" anew: give the store a larger drive and try again",
            keyspace.name
        )),
        other => other,
    }
}

/// Whether a keyspace has a tree.
pub fn is_ordered(keyspaces: &tapetum_base::keyspace::catalogue::Catalogue, id: KeyspaceId) -> bool {
    keyspaces.get(id).is_some_and(|keyspace| keyspace.kind == KeyspaceKind::Ordered)
}
