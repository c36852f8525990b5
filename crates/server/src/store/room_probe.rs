//! Tests whether a file system that was full has room again. Its own count of free bytes is not enough, because it ignores quotas, reserves
//! and copy on write. So the store's blocks are reserved. If a reservation proves nothing, as many bytes are written as the store will need
//! soon.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use tapetum_drive::{Flash, FlashError, Reservation};

use crate::store::unfinished;

/// The part of the store's size that is written as a test: about two write buffers.
const PROBED_PART: u64 = 64;
const PROBED_BYTES_MIN: u64 = 4 << 20;
const PROBED_BYTES_MAX: u64 = 64 << 20;

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// All of the store's blocks are reserved.
    Reserved,
    /// The bytes that the store needs soon could be written beside it.
    Written,
    /// Only the store itself can find out.
    Unknown,
    No,
    /// Fewer bytes could be written than the test wants. The test wears the drive, so the next one must wait.
    TooLittle,
}

/// Tests for room. `trusts_reservation`: after a successful reservation, no store has found the file system full again.
pub fn look(flash: &dyn Flash, path: &Path, trusts_reservation: bool) -> Result<Room, FlashError> {
    match flash.reserve() {
        Ok(Reservation::Held) if trusts_reservation => Ok(Room::Reserved),
        Ok(_) => Ok(write_beside(path, flash.capacity_bytes())),
        Err(FlashError::NoSpace { .. } | FlashError::NotReserved { .. }) => Ok(Room::No),
        Err(error) => Err(error),
    }
}

/// Writes a file beside the store, and removes it.
fn write_beside(path: &Path, capacity_bytes: u64) -> Room {
    if !fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return Room::Unknown;
    }
    let bytes = (capacity_bytes / PROBED_PART).clamp(PROBED_BYTES_MIN, PROBED_BYTES_MAX);
    // If the file system counts too few free bytes, leave these to others. Some file systems do not count.
    if unfinished::free_bytes(unfinished::folder_of(path)).is_ok_and(|free| (1..bytes).contains(&free)) {
        return Room::No;
    }
    let probe = unfinished::path_of(path);
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&probe) {
        // It may be somebody else's file.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Room::Unknown,
        Err(error) if is_full(&error) => Room::No,
        Err(_) => Room::Unknown,
        Ok(mut file) => {
            // Not zeros, because a file system may not allocate blocks for zeros.
            let piece = vec![0xa5; 1 << 20];
            let written = (0..bytes >> 20).try_for_each(|_| file.write_all(&piece)).and_then(|()| file.sync_all());
            let removed = fs::remove_file(&probe);
            match written.and(removed) {
                Ok(()) => Room::Written,
                Err(error) if is_full(&error) => Room::TooLittle,
                Err(_) => Room::Unknown,
            }
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum_drive::MemoryFlash;

    #[test]
    fn what_is_written_to_see_whether_there_is_room_goes_away() {
        let folder = crate::folder::Folder::new("room");
        let path = folder.join("drive");
        let flash = MemoryFlash::new(1 << 20);
        assert_eq!(look(&flash, &path, true).unwrap(), Room::Reserved);
        assert_eq!(look(&flash, &path, false).unwrap(), Room::Unknown, "no file");
        fs::write(&path, b"x").unwrap();
        assert_eq!(look(&flash, &path, false).unwrap(), Room::Written);
        assert_eq!(fs::read_dir(&*folder).unwrap().count(), 1);
        fs::write(unfinished::path_of(&path), b"theirs").unwrap();
        assert_eq!(look(&flash, &path, false).unwrap(), Room::Unknown, "in the way");
        assert_eq!(fs::read(unfinished::path_of(&path)).unwrap(), b"theirs");
    }
}
