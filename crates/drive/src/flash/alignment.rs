//! How a file wants its offsets, lengths and memory aligned to move bytes past the page cache (O_DIRECT).
//!
//! The kernel says so (`statx`, since Linux 6.1, where the file system takes part). Elsewhere the transfer itself is tried, at one
//! sector from the start, so that neither offset nor memory is aligned better than what is tried. A new file is written to, with the zeros
//! that it reads as; a file that holds a store is only read, at a place where the store has written: file systems check a read as
//! they check a write, except where nothing was written yet.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;

/// What every drive can do.
const SECTOR_BYTES_MIN: u32 = 512;
/// What a store can do; also what buffers in local memory are aligned to.
const SECTOR_BYTES_MAX: u32 = 4096;

/// Whether a file's bytes are nobody's yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// All zeros, and may be written over with zeros.
    New,
    /// To be left alone.
    Kept,
}

/// What the kernel says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stated {
    Nothing,
    /// O_DIRECT is refused, or falls back to the page cache.
    NotDirect,
    Sectors(u32),
}

/// Switches the page cache off for this descriptor; the sectors in which bytes then move. `None`, with the page cache on, where
/// the file system has no O_DIRECT, or one of larger units than a store can use.
pub(super) fn go_direct(file: &File, contents: Contents) -> io::Result<Option<u32>> {
    let stated = stated(file)?;
    if stated == Stated::NotDirect || set_direct(file, true).is_err() {
        return Ok(None);
    }
    let sector_bytes = match stated {
        Stated::Sectors(sector_bytes) => Some(sector_bytes),
        _ => tried(file, contents)?,
    };
    if sector_bytes.is_none() {
        set_direct(file, false)?;
    }
    Ok(sector_bytes)
}

fn stated(file: &File) -> io::Result<Stated> {
    match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(found) if StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::DIOALIGN) => {
            Ok(sectors_for(found.stx_dio_offset_align, found.stx_dio_mem_align))
        }
        // Kernels before 4.11, and filters of system calls that do not know it.
        Ok(_) | Err(Errno::NOSYS | Errno::INVAL | Errno::PERM) => Ok(Stated::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// `STATX_WRITE_ATOMIC` of Linux 6.11.
const WRITE_ATOMIC: StatxFlags = StatxFlags::from_bits_retain(0x0001_0000);

/// The most that the device writes whole or not at all, if a write of `bytes` is such a one; 0 if the kernel does not say so.
pub(super) fn atomic_write_bytes(file: &File, bytes: u32) -> u32 {
    match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, WRITE_ATOMIC) {
        Ok(found) if StatxFlags::from_bits_retain(found.stx_mask).contains(WRITE_ATOMIC) => {
            let (least, most) = (found.stx_atomic_write_unit_min, found.stx_atomic_write_unit_max);
            if (least..=most).contains(&bytes) { most } else { 0 }
        }
        _ => 0,
    }
}

/// Zero, as the kernel has it, is no O_DIRECT.
fn sectors_for(offset_align_bytes: u32, memory_align_bytes: u32) -> Stated {
    if offset_align_bytes == 0 || memory_align_bytes == 0 {
        return Stated::NotDirect;
    }
    let sector_bytes = offset_align_bytes.max(memory_align_bytes).max(SECTOR_BYTES_MIN);
    match sector_bytes <= SECTOR_BYTES_MAX && sector_bytes.is_power_of_two() {
        true => Stated::Sectors(sector_bytes),
        false => Stated::NotDirect,
    }
}

#[repr(align(4096))]
struct TwoSectors([u8; 2 * SECTOR_BYTES_MAX as usize]);

/// The smallest sector that can be moved.
fn tried(file: &File, contents: Contents) -> io::Result<Option<u32>> {
    let mut memory = TwoSectors([0; 2 * SECTOR_BYTES_MAX as usize]);
    for sector_bytes in [SECTOR_BYTES_MIN, SECTOR_BYTES_MAX] {
        let sector = &mut memory.0[sector_bytes as usize..2 * sector_bytes as usize];
        let wrote = match contents {
            Contents::New => file.write_at(sector, u64::from(sector_bytes)).map(drop),
            Contents::Kept => Ok(()),
        };
        match wrote.and_then(|()| file.read_at(sector, u64::from(sector_bytes))) {
            Ok(_) => return Ok(Some(sector_bytes)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn set_direct(file: &File, direct: bool) -> rustix::io::Result<()> {
    rustix::fs::fcntl_setfl(file, if direct { OFlags::DIRECT } else { OFlags::empty() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_suits_offsets_and_memory_and_a_store() {
        let cases = [(512, 4), (512, 512), (4096, 4), (512, 4096), (1, 1)];
        let sectors = cases.map(|(offset, memory)| sectors_for(offset, memory));
        assert_eq!(sectors, [512, 512, 4096, 4096, 512].map(Stated::Sectors));
        for (offset, memory) in [(0, 0), (0, 4), (512, 0), (16384, 512), (768, 4)] {
            assert_eq!(sectors_for(offset, memory), Stated::NotDirect, "{offset} {memory}");
        }
    }

    #[test]
    fn trying_changes_nothing_and_finds_what_works() {
        let path = crate::flash::test_path::TestPath::new();
        std::fs::write(&*path, [7; 16384]).unwrap();
        let file = File::options().read(true).write(true).open(&*path).unwrap();
        if go_direct(&file, Contents::Kept).unwrap().is_none() {
            return; // No O_DIRECT in the folder for temporary files.
        }
        assert!(tried(&file, Contents::Kept).unwrap().is_some_and(|bytes| bytes <= SECTOR_BYTES_MAX));
        assert!(std::fs::read(&*path).unwrap().iter().all(|byte| *byte == 7));
    }
}
