//! The lock of a standby: of those who follow backups at a place, or promote what did, one works there at a time.
//!
//! ```text
//!  serve --follow ─► claim ─► drive restored, or opened ─► drive and drive.next exchanged … ─► promoted, or stopped ─► claim dropped
//!  promote ────────► claim, unless the server answers ──► drive, drive.next ─► written to ─────────────────────────► claim dropped
//! ```
//! 1. The lock is on a file beside the drive: the drive exchanges its name with `drive.next`, and so a lock on either says nothing about the place.
//! 2. Nobody reads or writes the drive of a standby to follow or promote it, before the lock is held.
//! 3. The file says who holds the lock. One that a killed process left is unlocked, and is taken over.
//!
//! Threads: the holder's.

// The server is above the simulator: it works on files.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tapetum::Place;
use tapetum_drive::unfinished::folder_of;
use tapetum_drive::{FileClaim, FlashError};
use tapetum_service::backups::described;

use crate::store::follower::FollowError;

/// See the [module](self).
pub struct StandbyClaim {
    /// `None`: at this place there is nothing to lock, and no standby.
    claim: Option<FileClaim>,
    /// The folders that were made for it, the innermost first.
    made: Vec<PathBuf>,
}

impl StandbyClaim {
    /// Takes the lock of the standby at `place`, whether there is one already or not.
    ///
    /// # Errors
    /// [`FollowError::Held`]; if the file cannot be made.
    pub fn take(place: &Place, command: &str) -> Result<StandbyClaim, FollowError> {
        let mut own = StandbyClaim { claim: None, made: Vec::new() };
        let Some(path) = place.standby_lock() else { return Ok(own) };
        let failed = |error: io::Error| FollowError::Io(format!("cannot lock {}: {error}", path.display()));
        if let Place::Directory(directory) = place {
            own.made = directory.ancestors().take_while(|folder| is_absent(folder)).map(Path::to_owned).collect();
            fs::create_dir_all(directory).map_err(failed)?;
        }
        let claim = FileClaim::take(&path, 0o600).map_err(|error| match error {
            FlashError::Locked { .. } => FollowError::Held { path: place.path(), by: holder(&path) },
            FlashError::Io { source, .. } => failed(source),
            other => FollowError::Io(format!("{}: {other}", folder_of(&path).display())),
        })?;
        let mut file = claim.file();
        file.set_len(0).and_then(|()| file.write_all(described(command).as_bytes())).map_err(failed)?;
        own.claim = Some(claim);
        Ok(own)
    }
}

impl Drop for StandbyClaim {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            // One that stays says who was here, and is taken over.
            let _ = claim.remove();
        }
        // Folders in which a store was made are not empty.
        let _ = self.made.iter().try_for_each(fs::remove_dir);
    }
}

fn is_absent(folder: &Path) -> bool {
    !folder.as_os_str().is_empty()
        && folder.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Who holds the lock, as the holder says.
fn holder(path: &Path) -> String {
    let told = fs::read_to_string(path).unwrap_or_default();
    if told.is_empty() { "another process".into() } else { told }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn a_place_is_claimed_by_one_and_looks_as_before_when_that_has_ended() {
        let folder = Folder::new("standby-claim");
        let place = Place::Directory(folder.join("deep/in"));
        let claim = StandbyClaim::take(&place, "tapetum serve").unwrap();
        let held = StandbyClaim::take(&place, "tapetum promote").err().unwrap().to_string();
        assert!(held.contains(&format!("is held by tapetum serve (process {} on ", std::process::id())), "{held}");
        drop(claim);
        assert!(!folder.join("deep").exists());
        // What a killed process left.
        fs::create_dir_all(folder.join("deep/in")).unwrap();
        fs::write(place.standby_lock().unwrap(), "tapetum serve (process 1)").unwrap();
        let claim = StandbyClaim::take(&place, "tapetum promote").unwrap();
        let told = fs::read_to_string(place.standby_lock().unwrap()).unwrap();
        assert!(told.starts_with("tapetum promote "), "{told}");
        fs::write(folder.join("deep/in/drive"), "").unwrap();
        drop(claim);
        assert!(folder.join("deep/in/drive").exists() && !place.standby_lock().unwrap().exists());
    }
}
