//! Removes old backups, and packs that no backup has pieces in.
//!
//! ```text
//! old manifests removed ─► packs that no manifest names removed ─► what was cut short removed
//! ```
//! In this order, so that a prune which is cut short leaves whole backups and packs that nobody needs. The caller has the lease: nobody puts meanwhile.

use super::backups;
use super::depot::Depot;
use super::error::BackupError;
use super::name::{self, BackupName};
use super::verify::packs_of;
use std::collections::BTreeSet;

/// What was removed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Pruned {
    pub backups: u64,
    pub packs: u64,
    pub bytes: u64,
}

/// Keeps the last backups, and removes the others, and those that are not believed.
///
/// # Errors
/// If a manifest that stays cannot be read: no pack is removed then.
pub fn prune(depot: &dyn Depot, keep: usize) -> Result<Pruned, BackupError> {
    let all = backups::list_all(depot)?;
    let believed: Vec<BackupName> = all.iter().filter(|(_, is_believed)| *is_believed).map(|(name, _)| *name).collect();
    let kept: BTreeSet<BackupName> = believed.iter().rev().take(keep.max(1)).copied().collect();
    let mut needed = BTreeSet::new();
    // All are read before anything is removed.
    for name in &kept {
        needed.extend(packs_of(&backups::read(depot, name)?).iter().map(|pack| name::pack(pack.digest)));
    }
    let mut pruned = Pruned::default();
    for (name, _) in all.iter().filter(|(name, _)| !kept.contains(name)) {
        depot.delete(&name.object())?;
        pruned.backups += 1;
    }
    for pack in depot.list(name::PACKS)?.iter().filter(|pack| !needed.contains(&pack.name)) {
        depot.delete(&pack.name)?;
        pruned.packs += 1;
        pruned.bytes += pack.bytes;
    }
    depot.clean()?;
    Ok(pruned)
}
