//! Files that are seen whole or not at all: written under another name, durable, and then given their own. And names that last: a
//! name is durable when its folder has been synced, and that folder's name when the one above it has been.

// The server is above the simulator: it may wait for a lock.
#![allow(clippy::disallowed_methods)]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use tapetum_drive::{FileClaim, FlashError};

/// How long somebody else may decide about a name in the same folder: 60 times this.
const WAIT: Duration = Duration::from_millis(50);
const WAITS_MAX: usize = 60;

/// What a file is called until it is whole.
pub fn path_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
}

/// Begins the file that is to be at `path`, under its other name; nobody else does meanwhile. What `is_ours` knows is written over.
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

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the names of the folders that `path` is in durable, up to the root of its file system. All of them, as who made one may have
/// been stopped before it was durable.
pub fn sync_folders_of(path: &Path) -> io::Result<()> {
    let folder = fs::canonicalize(folder_of(path))?;
    let device = fs::metadata(&folder)?.dev();
    for folder in folder.ancestors() {
        if fs::metadata(folder)?.dev() != device {
            break;
        }
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        match synced {
            // Folders of others, and file systems that have nothing to sync there.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EINVAL | libc::EROFS)) => {}
            other => other?,
        }
    }
    Ok(())
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

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("tapetum-unfinished-{name}-{}", std::process::id()));
            fs::create_dir(&folder).unwrap();
            Folder(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn one_begins_a_file_at_a_time_and_nothing_foreign_is_written_over() {
        let folder = Folder::new("begin");
        let path = folder.0.join("list");
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
        let folder = Folder::new("lock");
        let path = folder.0.join("socket");
        let lock = lock_folder_of(&path).unwrap();
        assert_eq!(lock_folder_of(&path).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        assert!(lock_folder_of(&path).is_ok());
        sync_folders_of(&path).unwrap();
    }
}
