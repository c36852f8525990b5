//! Names for files that are still being written, and durable names: a name is durable when its folder has been synced, and that folder's
//! own name is durable when its parent has been.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The name of a file while it is being written.
pub fn path_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
}

pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the names of all folders above `path` durable, up to the root of its file system: whoever made one of them may have been stopped
/// before it was durable.
pub fn sync_folders_of(path: &Path) -> io::Result<()> {
    let folder = fs::canonicalize(folder_of(path))?;
    let device = fs::metadata(&folder)?.dev();
    for folder in folder.ancestors() {
        if fs::metadata(folder)?.dev() != device {
            break;
        }
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        match synced {
            // Folders of other users, and file systems that cannot sync a folder.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EINVAL | libc::EROFS)) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Free bytes, for this process, of a folder's file system.
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(folder)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_in_a_folder_that_has_room() {
        assert_eq!(path_of(Path::new("a/drive")), Path::new("a/drive.unfinished"));
        assert_eq!(folder_of(Path::new("a/drive")), Path::new("a"));
        assert_eq!(folder_of(Path::new("drive")), Path::new("."));
        assert!(free_bytes(Path::new("/")).unwrap() > 0);
        assert!(free_bytes(Path::new("/does/not/exist")).is_err());
        sync_folders_of(&std::env::temp_dir().join("drive")).unwrap();
    }
}
