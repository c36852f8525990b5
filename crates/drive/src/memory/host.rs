//! The host's region: memory that only the host writes and the drive reads, like NVMe host memory. It is cut into arenas.
//!
//! ```text
//!  an arena
//!  0                               sealed                     length
//!  +-------------------------------+--------------------------+
//!  | written by nobody; leased to  | its owner's to write,    |
//!  | commands that read it         | and then to seal         |
//!  +-------------------------------+--------------------------+
//! ```
//! 1. Nobody writes bytes below an arena's mark until the arena is reset. Until then, the mark only rises.
//! 2. Only bytes below the mark are leased, and an arena is not reset while any of them are leased.
//!
//! So a command may read its lease while the owner writes behind the mark. An arena has one owner; any thread may drop a lease.

use super::BLOCK_BYTES;
use super::mapping::Mapping;
use super::shared_file::SharedFile;
use crate::protocol::{LocalRange, MemoryAddress};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::{fmt, io};

/// A handle on a host's region; clones share it.
#[derive(Clone)]
pub struct HostRegion {
    memory: Arc<HostMemory>,
}

enum HostMemory {
    Own(Mapping),
    /// For a drive in another process, or of a host in one.
    Shared(SharedFile),
}

impl HostRegion {
    /// Maps a region of `N` arenas with `bytes_each`, each beginning at a whole block. Their bytes are zero.
    ///
    /// # Errors
    /// The operating system's, when it refuses the mapping.
    pub fn of_arenas<const N: usize>(bytes_each: usize) -> io::Result<[HostArena; N]> {
        HostRegion::cut(bytes_each, |bytes| Mapping::new(bytes).map(HostMemory::Own))
    }

    /// As [`HostRegion::of_arenas`], in memory that a drive in another process can read.
    pub(crate) fn of_shared_arenas<const N: usize>(bytes_each: usize) -> io::Result<[HostArena; N]> {
        HostRegion::cut(bytes_each, |bytes| SharedFile::new("tapetum-arenas", bytes).map(HostMemory::Shared))
    }

    /// The region of a host in another process.
    pub(crate) fn of_other_process(file: SharedFile) -> HostRegion {
        HostRegion { memory: Arc::new(HostMemory::Shared(file)) }
    }

    fn cut<const N: usize>(
        bytes_each: usize,
        map: impl FnOnce(usize) -> io::Result<HostMemory>,
    ) -> io::Result<[HostArena; N]> {
        let too_large = || io::Error::from_raw_os_error(libc::ENOMEM);
        let length = u32::try_from(bytes_each).map_err(|_| too_large())?;
        let stride = bytes_each.max(1).next_multiple_of(BLOCK_BYTES);
        let bytes = stride.checked_mul(N).ok_or_else(too_large)?;
        let region = HostRegion { memory: Arc::new(map(bytes.max(BLOCK_BYTES))?) };
        Ok(std::array::from_fn(|number| {
            let range = LocalRange { offset: (number * stride) as u64, length };
            let Some(start) = region.pointer(range) else { unreachable!("the region was made for so many") };
            HostArena {
                start,
                length: bytes_each,
                sealed: 0,
                shared: Arc::new(SharedArena { region: region.clone(), range }),
            }
        }))
    }

    pub fn bytes_total(&self) -> usize {
        match &*self.memory {
            HostMemory::Own(mapping) => mapping.bytes(),
            HostMemory::Shared(file) => file.bytes(),
        }
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.pointer(LocalRange::EMPTY).map_or(std::ptr::null(), |first| first.as_ptr())
    }

    /// The file that it lies in, for a drive in another process.
    pub(crate) fn file(&self) -> Option<&SharedFile> {
        match &*self.memory {
            HostMemory::Own(_) => None,
            HostMemory::Shared(file) => Some(file),
        }
    }

    /// The address of a range of the region; `None` unless all of it is inside. Ownership of the bytes is not checked.
    pub(crate) fn pointer(&self, range: LocalRange) -> Option<NonNull<u8>> {
        match &*self.memory {
            HostMemory::Own(mapping) => mapping.pointer(range.offset, range.length),
            HostMemory::Shared(file) => file.pointer(range.offset, range.length),
        }
    }
}

/// State shared by an arena and its leases: if the arena holds the only reference, nothing is leased.
struct SharedArena {
    region: HostRegion,
    /// In the region.
    range: LocalRange,
}

/// A part of a host's region with one owner, who writes it once from front to back. See the [module](self).
pub struct HostArena {
    start: NonNull<u8>,
    length: usize,
    /// Bytes below this are not written until the next reset.
    sealed: usize,
    shared: Arc<SharedArena>,
}

// SAFETY: the pointer is into a mapping that the arena keeps, to bytes that are written by way of this arena alone.
unsafe impl Send for HostArena {}
// SAFETY: as above; whoever shares it only reads.
unsafe impl Sync for HostArena {}

impl HostArena {
    pub fn region(&self) -> &HostRegion {
        &self.shared.region
    }

    /// Bytes from the start of the region.
    pub fn offset(&self) -> u64 {
        self.shared.range.offset
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// # Panics
    /// When the range is not inside the arena.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} of an arena of {} bytes", self.length);
        // SAFETY: inside the mapping, which is initialised and lives as long as `self`. Bytes are written by way of
        // `bytes_mut` alone, which borrows the arena exclusively.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// `length` bytes from `at` on, to write.
    ///
    /// # Panics
    /// When they are not inside the arena, or some of them are sealed.
    #[inline]
    pub fn bytes_mut(&mut self, at: usize, length: usize) -> &mut [u8] {
        assert!(
            self.sealed <= at && at <= self.length && length <= self.length - at,
            "bytes {at}+{length} of an arena of {} bytes, of which {} are sealed, are not to be written",
            self.length,
            self.sealed
        );
        // SAFETY: inside the mapping, and borrowed exclusively; the drive reads below the mark alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(at), length) }
    }

    /// Bytes below `to` are written no more before the arena is reset.
    ///
    /// # Panics
    /// When the mark was beyond `to`, or the arena ends before it.
    pub fn seal(&mut self, to: usize) {
        assert!(self.sealed <= to && to <= self.length, "{to} of {} bytes, after {}", self.length, self.sealed);
        self.sealed = to;
    }

    /// Sealed bytes, for a command to read.
    ///
    /// # Panics
    /// When not all of them are sealed.
    pub fn lease(&self, range: Range<usize>) -> SealedRange {
        assert!(range.start <= range.end && range.end <= self.sealed, "{range:?}, of which {} are sealed", self.sealed);
        let offset = self.shared.range.offset + range.start as u64;
        SealedRange { shared: self.shared.clone(), range: LocalRange { offset, length: range.len() as u32 } }
    }

    /// All bytes are to be written anew.
    ///
    /// # Panics
    /// When some of them are leased.
    pub fn reset(&mut self) {
        assert!(Arc::get_mut(&mut self.shared).is_some(), "an arena is reset while commands read it");
        self.sealed = 0;
    }
}

impl fmt::Debug for HostArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostArena").field("range", &self.shared.range).field("sealed", &self.sealed).finish()
    }
}

/// Bytes of an arena that nobody writes for as long as this lives.
pub struct SealedRange {
    shared: Arc<SharedArena>,
    /// In the region.
    range: LocalRange,
}

impl SealedRange {
    /// The start of the range, in the form that commands use.
    pub fn address(&self) -> MemoryAddress {
        MemoryAddress::host(self.range.offset)
    }

    pub fn len(&self) -> usize {
        self.range.length as usize
    }

    pub fn is_empty(&self) -> bool {
        self.range.length == 0
    }

    pub(crate) fn range(&self) -> LocalRange {
        self.range
    }

    pub(crate) fn is_of(&self, region: &HostRegion) -> bool {
        Arc::ptr_eq(&self.shared.region.memory, &region.memory)
    }
}

impl fmt::Debug for SealedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.range.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena() -> HostArena {
        let [arena] = HostRegion::of_arenas(BLOCK_BYTES).unwrap();
        arena
    }

    #[test]
    fn arenas_are_aligned_and_apart() {
        let [mut first, mut second] = HostRegion::of_arenas::<2>(5000).unwrap();
        first.bytes_mut(0, 5000).fill(1);
        second.bytes_mut(0, 5000).fill(2);
        assert!(first.bytes(0..5000).iter().all(|byte| *byte == 1));
        assert_eq!([first.offset(), second.offset()], [0, 2 * BLOCK_BYTES as u64]);
        assert_eq!((first.len(), first.region().bytes_total()), (5000, 4 * BLOCK_BYTES));
    }

    #[test]
    fn what_is_sealed_is_leased_while_the_rest_is_written_and_all_of_it_is_written_again_later() {
        let mut arena = arena();
        arena.bytes_mut(0, 1024).fill(1);
        arena.seal(1024);
        let lease = arena.lease(512..1024);
        assert_eq!((lease.address(), lease.len()), (MemoryAddress::host(512), 512));
        arena.bytes_mut(1024, 1024).fill(2);
        arena.seal(2048);
        assert_eq!(arena.bytes(1023..1025), [1, 2]);
        drop(lease);
        arena.reset();
        arena.bytes_mut(0, 1).fill(3);
        assert_eq!(arena.bytes(0..2), [3, 1]);
    }

    #[test]
    #[should_panic(expected = "of which 512 are sealed, are not to be written")]
    fn what_is_sealed_is_not_written() {
        let mut arena = arena();
        arena.seal(512);
        arena.bytes_mut(511, 2);
    }

    #[test]
    #[should_panic(expected = "of which 512 are sealed")]
    fn what_is_not_sealed_is_not_leased() {
        let mut arena = arena();
        arena.seal(512);
        arena.lease(0..513);
    }

    #[test]
    #[should_panic(expected = "reset while commands read it")]
    fn what_is_leased_is_not_reset() {
        let mut arena = arena();
        arena.seal(512);
        let _lease = arena.lease(0..512);
        arena.reset();
    }

    #[test]
    #[should_panic(expected = "not to be written")]
    fn an_arena_ends() {
        arena().bytes_mut(BLOCK_BYTES - 1, 2);
    }
}
