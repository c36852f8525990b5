//! Restoring a backup at a path: into a file that has another name until it is whole, as a new store.

use super::{OpenError, PROBE_BYTES, Place, creation, drive, open_flash, place};
use crate::api::store::Store;
use crate::backup::{BackupError, BackupManifest, BackupName, Depot, Restore, Restored, restore_onto, superblock};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tapetum_base::debug_as_text;
use tapetum_drive::{Env, Flash};

/// Local memory to write a store with.
const RESTORE_BYTES: usize = 8 * PROBE_BYTES;

#[non_exhaustive]
pub enum RestoreError {
    Backup(BackupError),
    Open(OpenError),
    /// There is a store, or something else.
    Exists {
        path: PathBuf,
    },
}

impl From<BackupError> for RestoreError {
    fn from(error: BackupError) -> RestoreError {
        RestoreError::Backup(error)
    }
}

impl From<OpenError> for RestoreError {
    fn from(error: OpenError) -> RestoreError {
        RestoreError::Open(error)
    }
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::Backup(error) => error.fmt(f),
            RestoreError::Open(error) => error.fmt(f),
            RestoreError::Exists { path } => write!(
                f,
                "there is something at {} already: restore into a new directory or file, and put that in its place when it is whole; \
                 nothing was changed",
                path.display()
            ),
        }
    }
}

debug_as_text!(RestoreError);

impl std::error::Error for RestoreError {}

/// Brings the store at `path`, which holds the backup `has` and which nobody wrote to since, to another backup of the same store.
///
/// # Errors
/// As [`restore_onto`]. There may be no store there then, but what is left of it: it is to be removed.
pub fn restore_over(
    path: &Path,
    depot: &dyn Depot,
    backup: (&BackupName, &BackupManifest),
    has: &BackupManifest,
) -> Result<Restored, RestoreError> {
    let env = Env::system();
    let flash: Arc<dyn Flash> = Arc::new(open_flash(path, &env)?);
    let onto = drive(&flash, RESTORE_BYTES, path, &env)?;
    Ok(restore_onto(&onto, depot, backup, Restore::Over(has), || false)?)
}

/// Restores a backup as a new store at `place`, a directory, a file, or a partition in which no store is.
///
/// # Errors
/// As [`restore_onto`], and when the store cannot be made. There is nothing at the place then; a partition that was made stays, without a
/// store, for the next attempt.
pub fn restore_at(
    place: &Place,
    depot: &dyn Depot,
    backup: (&BackupName, &BackupManifest),
    how: Restore<'_>,
) -> Result<Restored, RestoreError> {
    let (path, env) = (place.given_path()?, Env::system());
    let capacity_bytes = superblock(backup.1).map_err(BackupError::Store)?.capacity_bytes;
    let restore = |flash: &Arc<dyn Flash>| {
        let onto = drive(flash, RESTORE_BYTES, &path, &env)?;
        let restored = restore_onto(&onto, depot, backup, how, || false)?;
        // A drive with larger sectors than the store was made with is told now.
        Store::segment_bytes(&onto).map_err(BackupError::Store)?;
        Ok::<_, RestoreError>(restored)
    };
    if let Place::Partition { socket, name } = place {
        let created = creation::make_in_partition((socket, name), capacity_bytes, &env, restore)?;
        return created.ok_or(RestoreError::Exists { path });
    }
    if place::is_there(&path)? {
        return Err(RestoreError::Exists { path });
    }
    let missing = place::missing_folders(place);
    let made = creation::make_file(place, &env, |_| Ok(capacity_bytes), restore);
    if made.is_err() {
        // One that is not empty stays, with those that it lies in.
        let _ = missing.iter().try_for_each(fs::remove_dir);
    }
    match made? {
        Some(restored) => Ok(restored),
        None => Err(RestoreError::Exists { path }),
    }
}
