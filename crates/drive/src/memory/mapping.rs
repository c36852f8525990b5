//! Memory of the process's own, in huge pages where the system has some, or of a file that another process maps too: mapped once,
//! unmapped on drop.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory with no thread of its own. Whose its bytes are is what its users keep.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes`, whole pages, at least one. They are zero, and take memory only when they are first used.
    pub fn new(bytes: usize) -> io::Result<Mapping> {
        let mapping =
            Mapping::map(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        if cfg!(not(miri)) {
            // SAFETY: advice about the mapping just made, whole. A kernel without huge pages says so, and small ones do.
            let _ = unsafe { libc::madvise(mapping.base.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Ok(mapping)
    }

    /// Maps the first `bytes` of a file, which is not cut short for as long as this lives.
    pub fn of_file(file: BorrowedFd<'_>, bytes: usize, is_written: bool) -> io::Result<Mapping> {
        let access = if is_written { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        Mapping::map(bytes, access, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(bytes: usize, access: libc::c_int, flags: libc::c_int, file: libc::c_int) -> io::Result<Mapping> {
        // SAFETY: asks for new memory at an address of the kernel's choice; touches none that exists.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, file, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match NonNull::new(base.cast::<u8>()) {
            Some(base) => Ok(Mapping { base, bytes }),
            None => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
        }
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of a range; `None` unless all of it is inside.
    pub fn pointer(&self, offset: u64, length: u32) -> Option<NonNull<u8>> {
        let end = offset.checked_add(u64::from(length))?;
        if end > self.bytes as u64 {
            return None;
        }
        // SAFETY: the offset is at most the mapping's length.
        Some(unsafe { self.base.add(offset as usize) })
    }

    /// Faults every page in and changes no contents; whether the kernel can.
    pub fn populate(&self) -> bool {
        // SAFETY: the range is exactly the mapping, and populating it changes no contents.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, libc::MADV_POPULATE_WRITE) == 0 }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody holds it any more. Unmapping a whole mapping that we made cannot fail.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
