//! Blocks of a file are reserved when it is made or grows, so that no write finds the file system full; and again when it is opened to be
//! written, because a copy or a restored backup may have left blocks of zeros out (`cp --sparse`, `tar -S`, `rsync -S`).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::error::{FlashError, Size};
use super::{RETRIES_MAX, Reservation};

/// The unit of a file system's block counts, whatever its block size is.
const BLOCK_COUNT_BYTES: u64 = 512;

/// Reserves blocks from `from_bytes` to `capacity_bytes`, and sets the file's length to that.
pub(super) fn reserve(file: &File, path: &Path, from_bytes: u64, capacity_bytes: u64) -> Result<(), FlashError> {
    check_size_limit(path, capacity_bytes)?;
    let needed_bytes = capacity_bytes - from_bytes;
    let (Ok(from), Ok(length)) = (libc::off_t::try_from(from_bytes), libc::off_t::try_from(needed_bytes)) else {
        return Err(FlashError::NoSpace { path: path.into(), needed_bytes });
    };
    // `posix_fallocate` writes zeros if the file system cannot reserve.
    // SAFETY: the descriptor is open; the call touches no memory.
    let errno = uninterrupted(|| match unsafe { libc::posix_fallocate(file.as_raw_fd(), from, length) } {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    });
    match errno {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC | Errno::FBIG | Errno::DQUOT) => Err(FlashError::NoSpace { path: path.into(), needed_bytes }),
        Err(error) => Err(FlashError::Io { path: path.into(), doing: "reserve space for", source: error.into() }),
    }
}

/// Reserves the file's missing blocks. Its bytes and length do not change.
pub(super) fn reserve_missing(file: &File, path: &Path) -> Result<Reservation, FlashError> {
    let failed = |source| FlashError::Io { path: path.into(), doing: "look at", source };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Ok(Reservation::Unsupported);
    }
    check_size_limit(path, metadata.len())?;
    let missing_bytes = missing_bytes(file).map_err(failed)?;
    let not_reserved = || FlashError::NotReserved { path: path.into(), missing_bytes, free_bytes: free_bytes(file) };
    // A reservation that fails halfway would leave the file system full for everyone else.
    if free_bytes(file).is_some_and(|free_bytes| free_bytes < missing_bytes) {
        return Err(not_reserved());
    }
    match uninterrupted(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, metadata.len())) {
        Ok(()) if missing_bytes > 0 => {
            tracing::info!("{} was sparse: {} of blocks are reserved again", path.display(), Size(missing_bytes));
            Ok(Reservation::Held)
        }
        Ok(()) => Ok(Reservation::Held),
        Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Err(not_reserved()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::PERM) => Ok(Reservation::Unsupported),
        Err(error) => Err(FlashError::Io { path: path.into(), doing: "reserve space for", source: error.into() }),
    }
}

/// An error if this process may not write up to `bytes` of a file (RLIMIT_FSIZE): each write there would fail.
fn check_size_limit(path: &Path, bytes: u64) -> Result<(), FlashError> {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(limit_bytes) if limit_bytes < bytes => {
            Err(FlashError::FileSizeLimit { path: path.into(), needed_bytes: bytes, limit_bytes })
        }
        _ => Ok(()),
    }
}

/// Warns if a file lacks blocks and none can be reserved.
pub(super) fn warn_of_missing(file: &File, path: &Path) {
    match missing_bytes(file) {
        Ok(missing_bytes @ 1..) if file.metadata().is_ok_and(|metadata| metadata.is_file()) => tracing::warn!(
            "{} may be sparse: {} of it have no blocks, and its file system does not reserve any; keep as much free there, or writes \
             will fail when it is full",
            path.display(),
            Size(missing_bytes)
        ),
        _ => {}
    }
}

fn missing_bytes(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    Ok(metadata.len().saturating_sub(metadata.blocks() * BLOCK_COUNT_BYTES))
}

/// Free bytes of the file system, if it says so.
fn free_bytes(file: &File) -> Option<u64> {
    let found = rustix::fs::fstatvfs(file).ok()?;
    (found.f_blocks > 0).then(|| found.f_bfree.saturating_mul(found.f_frsize))
}

fn uninterrupted(mut call: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    for _ in 0..RETRIES_MAX {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::INTR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flash::test_path::TestPath;

    #[test]
    fn a_sparse_file_gets_its_blocks_and_keeps_its_bytes() {
        use std::os::unix::fs::FileExt;
        const BYTES: u64 = 1 << 20;
        let path = TestPath::new();
        let file = File::options().read(true).write(true).create_new(true).open(&*path).unwrap();
        file.set_len(BYTES).unwrap();
        file.write_all_at(&[7; 4096], 8192).unwrap();
        assert!(missing_bytes(&file).unwrap() > BYTES / 2);
        reserve_missing(&file, &path).unwrap();
        assert_eq!((missing_bytes(&file).unwrap(), file.metadata().unwrap().len()), (0, BYTES));
        let bytes = std::fs::read(&*path).unwrap();
        assert!(bytes[8192..][..4096].iter().all(|byte| *byte == 7) && bytes[..8192].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_sparse_file_that_cannot_have_its_blocks_says_how_many_are_missing() {
        let path = TestPath::new();
        let file = File::options().read(true).write(true).create_new(true).open(&*path).unwrap();
        let bytes = 8 << 40;
        if file.set_len(bytes).is_err() || free_bytes(&file).is_none_or(|free| free > bytes / 2) {
            return; // A file system with small files, or a very large one.
        }
        let refused = reserve_missing(&file, &path).unwrap_err();
        assert!(matches!(refused, FlashError::NotReserved { missing_bytes, .. } if missing_bytes == bytes));
        assert!(refused.to_string().contains("8TiB"), "{refused}");
        assert_eq!(missing_bytes(&file).unwrap(), bytes, "it took nothing of what is free");
    }

    #[test]
    fn interruptions_are_counted() {
        let mut calls = 0;
        let interrupted = || {
            calls += 1;
            Err(Errno::INTR)
        };
        assert_eq!((uninterrupted(interrupted), calls), (Err(Errno::INTR), RETRIES_MAX));
    }
}
