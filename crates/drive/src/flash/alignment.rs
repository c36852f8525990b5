//! How a file wants its offsets, lengths and memory aligned to move bytes past the page cache (O_DIRECT).
//!
//! The kernel reports it (`statx`, since Linux 6.1, if the file system supports that). Otherwise a transfer is tried, at one sector from
//! the start, so that neither offset nor memory is aligned better than the size that is tried. The trial writes to a new file the zeros
//! that it reads as. A file that holds a store is only read, where the store has written: file systems check a read as they check a write,
//! except where nothing was written yet.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;

/// Every drive supports this sector size.
const SECTOR_BYTES_MIN: u32 = 512;
/// The largest sector that a store supports, and the alignment of buffers in local memory.
const SECTOR_BYTES_MAX: u32 = 4096;

/// Whether a file has contents to protect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// All zeros, and may be overwritten with zeros.
    New,
    /// Must not be changed.
    Kept,
}

/// The kernel's answer about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stated {
    Nothing,
    /// O_DIRECT is refused, or falls back to the page cache.
    NotDirect,
    Sectors(u32),
}

/// Opens this descriptor for O_DIRECT, and returns the sector size. `None`, with the page cache on, if the file system has no O_DIRECT, or
/// needs larger sectors than a store supports.
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

/// The largest write that the device does atomically, if it does so for a write of `bytes`; otherwise, and if the kernel does not know, 0.
pub(super) fn atomic_write_bytes(file: &File, bytes: u32) -> u32 {
    match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, WRITE_ATOMIC) {
        Ok(found) if StatxFlags::from_bits_retain(found.stx_mask).contains(WRITE_ATOMIC) => {
            let (least, most) = (found.stx_atomic_write_unit_min, found.stx_atomic_write_unit_max);
            if (least..=most).contains(&bytes) { most } else { 0 }
        }
        _ => 0,
    }
}

/// The kernel reports zero if there is no O_DIRECT.
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

/// The smallest sector size that a transfer succeeds with.
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
