//! Locks on files, and what makes them safe: the lock comes before the look.
//!
//! A lock (`flock`) is on a file, a decision is about a path. Whoever waits for a lock may get that of a file that has been removed or
//! replaced since it was opened, so the path is looked at once more under the lock.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags};
use rustix::io::Errno;

use super::error::FlashError;

/// How often a path may come to name another file before it is said to be in use.
const TRIES: usize = 100;

/// A file that was there or has just been made, locked by this process alone and named by its path. Dropping it unlocks it.
pub struct FileClaim {
    file: File,
    path: PathBuf,
}

impl FileClaim {
    /// Claims the file at `path`, and makes an empty one where there is none. What is in it stays.
    pub fn take(path: &Path, mode: u32) -> Result<FileClaim, FlashError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(mode);
        let file = open_locked(&options, path, Lock::Alone)?;
        Ok(FileClaim { file, path: path.into() })
    }

    /// Makes a file and claims it; an error if there is one.
    pub(super) fn take_new(path: &Path, mode: u32) -> Result<FileClaim, FlashError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(mode);
        let file = open_locked(&options, path, Lock::Alone)?;
        Ok(FileClaim { file, path: path.into() })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, which stays locked for as long as it is open.
    pub fn into_file(self) -> File {
        self.file
    }

    pub fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

/// With whom a file is shared while it is open.
#[derive(Clone, Copy)]
pub(super) enum Lock {
    /// Nobody.
    Alone,
    /// Others that have it so.
    Shared,
}

pub(super) fn open_locked(options: &OpenOptions, path: &Path, lock: Lock) -> Result<File, FlashError> {
    let failed = |doing, source| FlashError::Io { path: path.into(), doing, source };
    let operation = match lock {
        Lock::Alone => FlockOperation::NonBlockingLockExclusive,
        Lock::Shared => FlockOperation::NonBlockingLockShared,
    };
    for _ in 0..TRIES {
        let file = options.open(path).map_err(|source| match source.raw_os_error() {
            Some(libc::EEXIST) => FlashError::AlreadyExists { path: path.into() },
            Some(libc::ENOENT) => FlashError::NotFound { path: path.into() },
            Some(libc::EBUSY) => FlashError::DeviceBusy { path: path.into() },
            _ => failed("open", source),
        })?;
        match rustix::io::retry_on_intr(|| rustix::fs::flock(&file, operation)) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(FlashError::Locked { path: path.into() }),
            Err(error) => return Err(failed("lock", error.into())),
        }
        if names(path, &file).map_err(|source| failed("look at", source))? {
            return Ok(file);
        }
    }
    Err(FlashError::Locked { path: path.into() })
}

/// Whether `path` names this very file.
pub(super) fn names(path: &Path, file: &File) -> io::Result<bool> {
    let named = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    let open = file.metadata()?;
    Ok((named.dev(), named.ino()) == (open.dev(), open.ino()))
}

/// Gives a file another name, unless something has that name already.
pub(super) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system cannot do it in one step, but it may have links, which replace nothing either.
        Err(Errno::INVAL | Errno::NOSYS) => {}
        other => return Ok(other?),
    }
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // Nor has it links. Those who make a store hold the lock of `from`, so the look is as good as the step.
        Err(_) if fs::symlink_metadata(to).is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to),
    }
}

/// Makes names in the folder of `path` durable.
pub(super) fn sync_folder_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flash::test_path::TestPath;

    #[test]
    fn one_claim_at_a_time() {
        let path = TestPath::new();
        let claim = FileClaim::take(&path, 0o600).unwrap();
        assert!(matches!(FileClaim::take(&path, 0o600), Err(FlashError::Locked { .. })));
        assert!(matches!(FileClaim::take_new(&path, 0o600), Err(FlashError::AlreadyExists { .. })));
        claim.remove().unwrap();
        assert!(FileClaim::take_new(&path, 0o600).is_ok());
    }

    #[test]
    fn a_file_that_lost_its_name_is_not_taken_for_the_one_that_has_it() {
        let (path, other) = (TestPath::new(), TestPath::new());
        let claim = FileClaim::take(&path, 0o600).unwrap();
        assert!(names(&path, claim.file()).unwrap());
        fs::rename(&*path, &*other).unwrap();
        assert!(!names(&path, claim.file()).unwrap());
        let second = FileClaim::take(&path, 0o600).unwrap();
        assert!(names(&path, second.file()).unwrap() && !names(&path, claim.file()).unwrap());
    }

    #[test]
    fn a_new_name_replaces_nothing() {
        let (from, to) = (TestPath::new(), TestPath::new());
        fs::write(&*from, b"new").unwrap();
        fs::write(&*to, b"old").unwrap();
        assert_eq!(rename_new(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&*to).unwrap(), b"old");
        fs::remove_file(&*to).unwrap();
        rename_new(&from, &to).unwrap();
        assert!(!from.exists() && fs::read(&*to).unwrap() == b"new");
    }
}
