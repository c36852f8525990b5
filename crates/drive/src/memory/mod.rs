//! Local memory: the drive's own RAM, one aligned and accounted region that is handed out as buffers. And the region of a host
//! ([`HostRegion`]), which the drive reads.
//!
//! Invariants: a region is mapped once and stays mapped until the last handle, buffer and queue is gone; buffers
//! never overlap; every buffer starts on a 4096-byte boundary. Handles and the allocator may be used from any thread.
//!
//! A command is plain data: the compiler does not see which buffers the commands in flight name. So a submitter gives away the buffers that
//! a command names ([`Lease`](crate::Lease)), and gets them back with the completion. Reading or writing a buffer that one owns is
//! therefore safe.

mod buddy;
mod host;
mod mapping;
mod parts;

use std::ops::DerefMut;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::{fmt, io};

use crate::locks::whole;
use crate::process::ProcessMark;
use crate::protocol::{LocalRange, MemoryAddress, RegionId};
use buddy::Buddy;
pub use host::{HostArena, HostRegion, SealedRange};
use mapping::Mapping;
pub use parts::{BufferPart, PartedBuffer};

/// The unit of allocation, and the alignment of every buffer.
pub const BLOCK_BYTES: usize = 4096;

/// A handle to a drive's local memory; clones share it.
#[derive(Clone)]
pub struct LocalMemory {
    region: Arc<LocalRegion>,
}

struct LocalRegion {
    mapping: Mapping,
    blocks: Mutex<Buddy>,
    made: ProcessMark,
}

impl LocalMemory {
    /// Maps `bytes`, rounded up to whole blocks, in huge pages where the system has some, as records are read at random places.
    /// Pages take memory only when they are first used.
    ///
    /// # Errors
    /// The operating system's, when it refuses the mapping.
    pub fn new(bytes: usize) -> io::Result<LocalMemory> {
        let blocks = bytes.div_ceil(BLOCK_BYTES).max(1);
        let (Ok(count), Some(bytes)) = (u32::try_from(blocks), blocks.checked_mul(BLOCK_BYTES)) else {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        };
        let region = LocalRegion {
            mapping: Mapping::new(bytes)?,
            blocks: Mutex::new(Buddy::new(count)),
            made: ProcessMark::now(),
        };
        Ok(LocalMemory { region: Arc::new(region) })
    }

    /// A buffer of `len` bytes, its contents undefined (whatever was there before); `None` when no room of that size
    /// is left in one piece. It costs `len` rounded up to blocks. Below 1 MiB, "one piece" is a free run of the next
    /// power of two, so that allocating stays a few steps.
    pub fn allocate(&self, len: usize) -> Option<LocalBuffer> {
        let length = u32::try_from(len).ok()?;
        let blocks = len.div_ceil(BLOCK_BYTES).max(1) as u32;
        let first = self.region.lock_blocks().allocate(blocks)?;
        Some(LocalBuffer { memory: self.clone(), offset: u64::from(first) * BLOCK_BYTES as u64, length, blocks })
    }

    pub fn bytes_total(&self) -> usize {
        self.region.mapping.bytes()
    }

    /// Bytes handed out, in whole blocks.
    pub fn bytes_used(&self) -> usize {
        self.region.lock_blocks().used() as usize * BLOCK_BYTES
    }

    /// Faults every page in, so that the memory is known to be there and no first use is slow. Contents stay.
    pub fn touch(&self) {
        let region = &*self.region;
        if region.mapping.populate() {
            return;
        }
        // An older kernel. Only blocks that no buffer has: their owners may be at work on the others.
        let blocks = region.lock_blocks();
        for block in blocks.free_runs().flatten() {
            let first = region.mapping.base().as_ptr().wrapping_add(block as usize * BLOCK_BYTES);
            // SAFETY: inside the mapping, and nobody else's while the allocator is locked. The write makes the page present.
            unsafe { first.write_volatile(first.read_volatile()) };
        }
    }

    /// The address of a range, for a backend that moves bytes; `None` unless all of it is inside. Ownership of the bytes is not checked.
    pub fn pointer(&self, range: LocalRange) -> Option<NonNull<u8>> {
        self.region.mapping.pointer(range.offset, range.length)
    }
}

impl LocalRegion {
    fn lock_blocks(&self) -> impl DerefMut<Target = Buddy> + '_ {
        whole(self.blocks.lock())
    }
}

/// The memory that commands of a queue pair may name: the drive's local memory and, if the host has one, its region.
#[derive(Clone)]
pub struct PairMemory {
    pub local: LocalMemory,
    pub host: Option<HostRegion>,
}

impl PairMemory {
    /// The address of a range, for a backend that moves bytes; `None` if the region does not exist, or not all of the range is inside.
    /// Ownership of the bytes is not checked.
    pub fn pointer(&self, from: MemoryAddress, length: u32) -> Option<NonNull<u8>> {
        let range = LocalRange { offset: from.offset, length };
        match from.region {
            RegionId::LOCAL => self.local.pointer(range),
            RegionId::HOST => self.host.as_ref()?.pointer(range),
            _ => None,
        }
    }

    pub fn bytes_total(&self) -> usize {
        self.local.bytes_total() + self.host.as_ref().map_or(0, HostRegion::bytes_total)
    }
}

impl From<LocalMemory> for PairMemory {
    fn from(local: LocalMemory) -> PairMemory {
        PairMemory { local, host: None }
    }
}

/// A part of local memory with one owner; freed on drop.
pub struct LocalBuffer {
    memory: LocalMemory,
    offset: u64,
    length: u32,
    /// Blocks that the buffer takes; 0 for an empty one that [`LocalBuffer::take`] left.
    blocks: u32,
}

impl LocalBuffer {
    /// Moves the buffer out and leaves an empty one, for example while commands name it.
    pub fn take(&mut self) -> LocalBuffer {
        let none = LocalBuffer { memory: self.memory.clone(), offset: 0, length: 0, blocks: 0 };
        std::mem::replace(self, none)
    }

    pub(crate) fn is_of(&self, memory: &LocalMemory) -> bool {
        Arc::ptr_eq(&self.memory.region, &memory.region)
    }

    /// Bytes from the start of local memory; what commands name.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub fn len(&self) -> usize {
        self.length as usize
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// All of it, as commands name it.
    pub fn range(&self) -> LocalRange {
        LocalRange { offset: self.offset, length: self.length }
    }

    pub fn as_ptr(&self) -> *const u8 {
        // SAFETY: the allocator gave the offset from inside the mapping.
        unsafe { self.memory.region.mapping.base().add(self.offset as usize) }.as_ptr()
    }

    /// Reads through this are not counted: it is for the drive's own code, and for tests. A host uses
    /// [`QueuePair::look`](crate::QueuePair::look).
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: inside the mapping, which is initialised (zero or written), lives as long as `self`, and belongs to
        // this buffer alone. No command in flight writes here: it would have the buffer.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// Like [`LocalBuffer::bytes`]; a host uses [`QueuePair::fill`](crate::QueuePair::fill).
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`; `self` is borrowed exclusively, and no command in flight reads here either.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().cast_mut(), self.len()) }
    }
}

impl fmt::Debug for LocalBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.range().fmt(f)
    }
}

impl Drop for LocalBuffer {
    fn drop(&mut self) {
        // A forked child has a copy of the allocator, which another thread may have locked at the fork.
        if self.blocks > 0 && self.memory.region.made.is_here() {
            let first = (self.offset / BLOCK_BYTES as u64) as u32;
            self.memory.region.lock_blocks().free(first, self.blocks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_apart_and_accounted() {
        let local = LocalMemory::new(100_000).unwrap();
        assert_eq!(local.bytes_total(), 25 * BLOCK_BYTES);
        let mut first = local.allocate(5000).unwrap();
        let mut second = local.allocate(1).unwrap();
        first.bytes_mut().fill(1);
        second.bytes_mut().fill(2);
        assert!(first.bytes().iter().all(|&byte| byte == 1));
        assert_eq!(first.as_ptr() as usize % BLOCK_BYTES, 0);
        assert_eq!(local.bytes_used(), 3 * BLOCK_BYTES);
        drop((first, second));
        assert_eq!(local.bytes_used(), 0);
        assert_eq!(local.allocate(16 * BLOCK_BYTES).unwrap().len(), 16 * BLOCK_BYTES);
        assert!(local.allocate(25 * BLOCK_BYTES + 1).is_none());
    }

    #[test]
    fn touching_keeps_the_contents() {
        let local = LocalMemory::new(1 << 20).unwrap();
        let mut buffer = local.allocate(8192).unwrap();
        buffer.bytes_mut().fill(9);
        local.touch();
        assert!(buffer.bytes().iter().all(|&byte| byte == 9));
    }

    #[test]
    fn a_buffer_that_was_taken_is_the_takers_alone() {
        let local = LocalMemory::new(2 * BLOCK_BYTES).unwrap();
        let mut buffer = local.allocate(BLOCK_BYTES + 1).unwrap();
        let mut taken = buffer.take();
        assert_eq!((buffer.len(), taken.len(), local.bytes_used()), (0, BLOCK_BYTES + 1, 2 * BLOCK_BYTES));
        buffer.bytes_mut().fill(1);
        taken.bytes_mut().fill(2);
        drop(buffer);
        assert!(local.allocate(1).is_none() && taken.bytes().iter().all(|&byte| byte == 2));
        drop(taken);
        assert_eq!(local.bytes_used(), 0);
    }

    #[test]
    fn a_range_must_be_inside() {
        let local = LocalMemory::new(BLOCK_BYTES).unwrap();
        assert!(local.pointer(LocalRange { offset: 0, length: 4096 }).is_some());
        assert!(local.pointer(LocalRange { offset: 4096, length: 0 }).is_some());
        assert!(local.pointer(LocalRange { offset: 1, length: 4096 }).is_none());
        assert!(local.pointer(LocalRange { offset: u64::MAX, length: 2 }).is_none());
    }

    #[test]
    fn a_buffer_keeps_the_mapping() {
        let mut buffer = LocalMemory::new(BLOCK_BYTES).unwrap().allocate(10).unwrap();
        buffer.bytes_mut().fill(3);
        assert_eq!(buffer.bytes(), [3; 10]);
    }
}
