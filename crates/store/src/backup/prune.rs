//! Removes old backups, and packs that no backup has pieces in.
//!
//! ```text
//! packs listed ─► manifests that stay read ─► noted which go ─► the others removed ─► listed packs that none of those names removed ─► what was cut short removed
//! ```
//! In this order, so that a prune which is cut short leaves whole backups and packs that nobody needs. The caller has the lease when the packs are listed,
//! and so nobody else has put one whose manifest is not there yet. It is asked for again before each removal: the next holder may take over a pack that was listed.

use super::backups;
use super::depot::Depot;
use super::error::BackupError;
use super::name::{self, BackupName};
use super::numbers;
use super::verify::packs_of;
use std::collections::BTreeSet;

/// What was removed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Pruned {
    pub backups: u64,
    pub packs: u64,
    pub bytes: u64,
}

/// Keeps the last backups, and removes the others, and those that are not believed. `is_held`: whether the lease is held for certain, asked before each removal.
///
/// # Errors
/// If a manifest that stays cannot be read: no pack is removed then. [`BackupError::LostLease`].
pub fn prune(depot: &dyn Depot, keep: usize, is_held: &mut dyn FnMut() -> bool) -> Result<Pruned, BackupError> {
    let packs = depot.list(name::PACKS)?;
    if !is_held() {
        return Err(BackupError::LostLease { place: depot.place() });
    }
    let all = backups::list_all(depot)?;
    let believed: Vec<BackupName> = all.iter().filter(|(_, is_believed)| *is_believed).map(|(name, _)| *name).collect();
    let kept: BTreeSet<BackupName> = believed.iter().rev().take(keep.max(1)).copied().collect();
    let mut needed = BTreeSet::new();
    // All are read before anything is removed.
    for name in &kept {
        needed.extend(packs_of(&backups::read(depot, name)?).iter().map(|pack| name::pack(pack.digest)));
    }
    if let Some(first) = kept.first() {
        numbers::note_pruned(depot, &believed, first.sequence)?;
    }
    let mut remove = |name: &str| match is_held() {
        true => Ok(depot.delete(name)?),
        false => Err(BackupError::LostLease { place: depot.place() }),
    };
    let mut pruned = Pruned::default();
    for (name, _) in all.iter().filter(|(name, _)| !kept.contains(name)) {
        remove(&name.object())?;
        pruned.backups += 1;
    }
    for pack in packs.iter().filter(|pack| !needed.contains(&pack.name)) {
        remove(&pack.name)?;
        pruned.packs += 1;
        pruned.bytes += pack.bytes;
    }
    if is_held() {
        depot.clean()?;
    }
    Ok(pruned)
}
