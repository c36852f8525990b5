//! Reads all that a backup consists of, and looks at its digests.

use super::backups;
use super::depot::Depot;
use super::digest::Digest;
use super::error::BackupError;
use super::manifest::{BackupManifest, PackEntry};
use super::name::{self, BackupName};
use std::collections::BTreeSet;

/// What was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Verified {
    pub backups: u64,
    pub packs: u64,
    pub bytes: u64,
}

/// A pack's bytes; `None`: it is gone, cut or rotten.
pub fn read_pack(depot: &dyn Depot, pack: &PackEntry) -> Result<Option<Vec<u8>>, BackupError> {
    let bytes = depot.get(&name::pack(pack.digest))?;
    Ok(bytes.filter(|bytes| bytes.len() == pack.bytes as usize && Digest::of(bytes) == pack.digest))
}

/// The digests of the packs that a backup has pieces in.
pub fn packs_of(manifest: &BackupManifest) -> Vec<PackEntry> {
    let used: BTreeSet<u32> = manifest.parts.iter().flat_map(|part| &part.pieces).map(|piece| piece.pack).collect();
    used.into_iter().map(|place| manifest.packs[place as usize]).collect()
}

/// Verifies these backups. Packs of several are read once.
///
/// # Errors
/// [`BackupError::Damaged`] with all packs of the first backup that lacks some.
pub fn verify(
    depot: &dyn Depot,
    names: &[BackupName],
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Verified, BackupError> {
    let (mut verified, mut whole, mut bad) = (Verified::default(), BTreeSet::new(), BTreeSet::new());
    for name in names {
        let manifest = backups::read(depot, name)?;
        let packs = packs_of(&manifest);
        for pack in &packs {
            if !go_on() {
                return Err(BackupError::Cancelled);
            }
            if whole.contains(&pack.digest) || bad.contains(&pack.digest) {
                continue;
            }
            match read_pack(depot, pack)? {
                Some(bytes) => {
                    whole.insert(pack.digest);
                    verified.packs += 1;
                    verified.bytes += bytes.len() as u64;
                }
                None => drop(bad.insert(pack.digest)),
            }
        }
        let lacking: Vec<String> =
            packs.iter().filter(|pack| bad.contains(&pack.digest)).map(|pack| name::pack(pack.digest)).collect();
        if !lacking.is_empty() {
            return Err(BackupError::Damaged { place: depot.place(), name: *name, packs: lacking });
        }
        verified.backups += 1;
    }
    Ok(verified)
}
