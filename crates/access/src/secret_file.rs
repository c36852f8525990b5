//! Files with secrets: read if nobody but their owner may read them. Blocks for a disk.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use zeroize::Zeroizing;

/// A file is not longer.
const BYTES_MAX: u64 = 16 << 20;

/// The bytes of a file, which are wiped when they are not needed any more.
///
/// # Errors
/// If others may read it, or it is another user's. Says what to do.
pub fn read(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let (file, found) = open_private(path)?;
    refuse_anothers(&found, path)?;
    bytes_of(file, &found)
}

/// The same, of a file that is edited: root edits another user's file for that user.
///
/// # Errors
/// As [`read`].
pub fn read_to_edit(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let (file, found) = open_private(path)?;
    if !rustix::process::geteuid().is_root() {
        refuse_anothers(&found, path)?;
    }
    bytes_of(file, &found)
}

/// Opens a file, unless others than its owner may use it.
fn open_private(path: &Path) -> io::Result<(File, Metadata)> {
    let file = File::open(path)?;
    let found = file.metadata()?;
    let (mode, shown) = (found.mode() & 0o7777, path.display());
    if mode & 0o077 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("others than its owner may use it (its mode is {mode:o}): chmod 600 {shown}"),
        ));
    }
    Ok((file, found))
}

fn refuse_anothers(found: &Metadata, path: &Path) -> io::Result<()> {
    let (ours, owner, shown) = (rustix::process::geteuid().as_raw(), found.uid(), path.display());
    if owner == ours || owner == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("it is the user's with id {owner}, and this is run by {ours}: chown {ours} {shown}"),
    ))
}

fn bytes_of(file: File, found: &Metadata) -> io::Result<Zeroizing<Vec<u8>>> {
    if found.len() > BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has {} bytes, and {BYTES_MAX} are the most: this is another file", found.len()),
        ));
    }
    // Room for all of it: a buffer that grows would leave copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(found.len() as usize + 1));
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_that_others_may_read_is_refused_with_what_to_do() {
        let path = std::env::temp_dir().join(format!("tapetum-secret-{}", std::process::id()));
        fs::write(&path, "secret").unwrap();
        for (mode, is_read) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            match read(&path) {
                Ok(bytes) => assert!(is_read && **bytes == *b"secret", "{mode:o}"),
                Err(error) => assert!(!is_read && error.to_string().contains("chmod 600 /"), "{mode:o}: {error}"),
            }
        }
        fs::remove_file(path).unwrap();
    }
}
