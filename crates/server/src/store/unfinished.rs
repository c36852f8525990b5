//! Files that are seen whole or not at all: written under another name, durable, and then given their own. And names that last: a
//! name is durable when its folder has been synced, and that folder's name when the one above it has been.

// The server is above the simulator: it may wait for a lock.
#![allow(clippy::disallowed_methods)]

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
pub use tapetum_drive::unfinished::{folder_of, free_bytes, path_of};
use tapetum_drive::{FileClaim, FlashError};

/// How long somebody else may decide about a name in the same folder: 60 times this.
const WAIT: Duration = Duration::from_millis(50);
const WAITS_MAX: usize = 60;

/// Begins the file that is to be at `path`, under its other name; no other process does meanwhile. A file that `is_ours` accepts is
/// overwritten.
pub fn begin(path: &Path, is_ours: impl FnOnce(&Path) -> io::Result<bool>) -> io::Result<File> {
    let unfinished = path_of(path);
    let claim = FileClaim::take(&unfinished, 0o666).map_err(|error| match error {
        FlashError::Io { source, .. } => source,
        other => io::Error::other(other),
    })?;
    if claim.file().metadata()?.len() > 0 && !is_ours(&unfinished)? {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{} is something else", unfinished.display()),
        ));
    }
    let file = claim.into_file();
    file.set_len(0)?;
    Ok(file)
}

/// Gives the file that is whole and durable under its other name its own, in the place of what was there; durably.
pub fn finish(path: &Path) -> io::Result<()> {
    fs::rename(path_of(path), path)?;
    File::open(folder_of(path))?.sync_all()
}

/// Held while somebody decides about a name in the folder of `path` and carries it out.
pub struct FolderLock {
    _folder: Option<File>,
}

/// Waits a few seconds for others. A folder that cannot be locked, as it may not be read, is not.
pub fn lock_folder_of(path: &Path) -> io::Result<FolderLock> {
    let Ok(folder) = File::open(folder_of(path)) else { return Ok(FolderLock { _folder: None }) };
    for _ in 0..WAITS_MAX {
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(FolderLock { _folder: Some(folder) }),
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(WAIT),
            Err(_) => return Ok(FolderLock { _folder: None }),
        }
    }
    let why = format!("another process keeps {} locked", folder_of(path).display());
    Err(io::Error::new(io::ErrorKind::WouldBlock, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn one_begins_a_file_at_a_time_and_nothing_foreign_is_written_over() {
        let folder = Folder::new("unfinished-begin");
        let path = folder.join("list");
        let ours = |_: &Path| Ok(true);
        let begun = begin(&path, ours).unwrap();
        assert!(begin(&path, ours).is_err(), "another has begun it");
        drop(begun);
        fs::write(path_of(&path), b"foreign").unwrap();
        assert_eq!(begin(&path, |_| Ok(false)).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(path_of(&path)).unwrap(), b"foreign");
        let begun = begin(&path, ours).unwrap();
        assert_eq!(begun.metadata().unwrap().len(), 0);
        finish(&path).unwrap();
        assert!(begin(&path, ours).is_ok(), "the lock went with the file that has its name now");
    }

    #[test]
    fn a_folder_has_one_who_decides() {
        let folder = Folder::new("unfinished-lock");
        let path = folder.join("socket");
        let lock = lock_folder_of(&path).unwrap();
        assert_eq!(lock_folder_of(&path).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        assert!(lock_folder_of(&path).is_ok());
    }
}
