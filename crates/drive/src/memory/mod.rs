//! Local memory: the drive's own RAM, one aligned and accounted region that is handed out as buffers. And the region of a host
//! ([`HostRegion`]), which the drive reads.
//!
//! Invariants: a region is mapped once and stays mapped until the last handle, buffer and queue is gone; buffers
//! never overlap; every buffer starts on a 4096-byte boundary. Handles and the allocator may be used from any thread.
//!
//! A command is plain data: the compiler does not see which buffers the commands in flight name. So a submitter gives away the buffers that
//! a command names ([`Lease`](crate::Lease)), and gets them back with the completion. Reading or writing a buffer that one owns is
//! therefore safe.
//!
//! Local memory of a drive in another process is mapped to be read alone. The host writes a buffer at the same place of a *window*, memory
//! of its own which the drive reads, and the buffer remembers which bytes were written; the drive copies those when it takes the command that
//! the buffer is leased to. So what was written there is not read back before a command has had it. A host that is not trusted to read local
//! memory has the window alone: the drive copies to it what a command that has ended may have written.

mod buddy;
mod host;
mod mapping;
mod parts;
mod shared_file;

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
pub(crate) use shared_file::SharedFile;

/// The unit of allocation, and the alignment of every buffer.
pub const BLOCK_BYTES: usize = 4096;

/// A handle to a drive's local memory; clones share it.
#[derive(Clone)]
pub struct LocalMemory {
    region: Arc<LocalRegion>,
}

struct LocalRegion {
    mapping: RegionMemory,
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
        Ok(LocalMemory::over(RegionMemory::Own(Mapping::new(bytes)?), Buddy::new(count)))
    }

    /// Memory of a drive's process, of which the first `host_blocks` are the host's to hand out: nobody gets them here.
    pub(crate) fn shared_with_host(file: Arc<SharedFile>, host_blocks: u32) -> LocalMemory {
        let count = (file.bytes() / BLOCK_BYTES) as u32;
        LocalMemory::over(RegionMemory::Shared(file), Buddy::behind(host_blocks, count))
    }

    /// As [`LocalMemory::shared_with_host`], of `bytes` that the host does not see.
    ///
    /// # Errors
    /// The operating system's, when it refuses the mapping.
    pub(crate) fn beside_host(bytes: usize, host_blocks: u32) -> io::Result<LocalMemory> {
        let count = (bytes / BLOCK_BYTES) as u32;
        Ok(LocalMemory::over(RegionMemory::Own(Mapping::new(bytes)?), Buddy::behind(host_blocks, count)))
    }

    /// Memory of a drive in another process, as its host sees it: `window` is where the host writes. Without a `file`, results are there too.
    pub(crate) fn of_other_process(file: Option<SharedFile>, window: SharedFile, blocks: u32) -> LocalMemory {
        LocalMemory::over(RegionMemory::Elsewhere { file, window }, Buddy::new(blocks))
    }

    fn over(mapping: RegionMemory, blocks: Buddy) -> LocalMemory {
        let region = LocalRegion { mapping, blocks: Mutex::new(blocks), made: ProcessMark::now() };
        LocalMemory { region: Arc::new(region) }
    }

    /// A buffer of `len` bytes, its contents undefined (whatever was there before); `None` when no room of that size
    /// is left in one piece. It costs `len` rounded up to blocks. Below 1 MiB, "one piece" is a free run of the next
    /// power of two, so that allocating stays a few steps.
    pub fn allocate(&self, len: usize) -> Option<LocalBuffer> {
        let length = u32::try_from(len).ok()?;
        let blocks = len.div_ceil(BLOCK_BYTES).max(1) as u32;
        let first = self.region.lock_blocks().allocate(blocks)?;
        let offset = u64::from(first) * BLOCK_BYTES as u64;
        Some(LocalBuffer { memory: self.clone(), offset, length, blocks, written: Written::default() })
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
        // That of another process is the drive's to have there.
        let RegionMemory::Own(mapping) = &region.mapping else { return };
        if mapping.populate() {
            return;
        }
        // An older kernel. Only blocks that no buffer has: their owners may be at work on the others.
        let blocks = region.lock_blocks();
        for block in blocks.free_runs().flatten() {
            let first = mapping.base().as_ptr().wrapping_add(block as usize * BLOCK_BYTES);
            // SAFETY: inside the mapping, and nobody else's while the allocator is locked. The write makes the page present.
            unsafe { first.write_volatile(first.read_volatile()) };
        }
    }

    /// The address of a range, for a backend that moves bytes; `None` unless all of it is inside. Ownership of the bytes is not checked.
    pub fn pointer(&self, range: LocalRange) -> Option<NonNull<u8>> {
        self.region.mapping.pointer(range.offset, range.length)
    }
}

/// Where a region lies.
enum RegionMemory {
    /// In this process alone.
    Own(Mapping),
    /// In this one, a drive's, and a host reads it.
    Shared(Arc<SharedFile>),
    /// In a drive's process; this one, the host's, writes the window, and reads the file, or what the drive copies to the window.
    Elsewhere { file: Option<SharedFile>, window: SharedFile },
}

impl RegionMemory {
    fn bytes(&self) -> usize {
        match self {
            RegionMemory::Own(mapping) => mapping.bytes(),
            RegionMemory::Shared(file) => file.bytes(),
            // The rest of the file is the drive's own.
            RegionMemory::Elsewhere { window, .. } => window.bytes(),
        }
    }

    #[inline]
    fn pointer(&self, offset: u64, length: u32) -> Option<NonNull<u8>> {
        match self {
            RegionMemory::Own(mapping) => mapping.pointer(offset, length),
            RegionMemory::Shared(file) => file.pointer(offset, length),
            RegionMemory::Elsewhere { file, window } => file.as_ref().unwrap_or(window).pointer(offset, length),
        }
    }

    /// The address at which the host writes, and whether what is written there is yet to reach the region.
    #[inline]
    fn pointer_to_write(&self, offset: u64, length: u32) -> (Option<NonNull<u8>>, bool) {
        match self {
            RegionMemory::Elsewhere { window, .. } => (window.pointer(offset, length), true),
            other => (other.pointer(offset, length), false),
        }
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
    /// Bytes that were written into the window and that no command has had: in the drive's own process, none.
    written: Written,
}

/// Ranges of local memory, in the order of their writing. Most buffers have none.
#[derive(Debug, Default)]
#[expect(clippy::box_collection)] // A word in each buffer, of which most have none.
pub(crate) struct Written(Option<Box<Vec<LocalRange>>>);

impl Written {
    fn add(&mut self, range: LocalRange) {
        let ranges = self.0.get_or_insert_default();
        match ranges.last_mut() {
            Some(last) if last.end() == range.offset => last.length += range.length,
            Some(last) if last.offset <= range.offset && range.end() <= last.end() => {}
            _ if range.length > 0 => ranges.push(range),
            _ => {}
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|ranges| ranges.is_empty())
    }

    fn is_all_of(&self, range: LocalRange) -> bool {
        self.0.as_ref().is_some_and(|ranges| matches!(ranges[..], [one] if one == range))
    }

    /// Takes those parts of them out that are inside `range`.
    fn take_inside(&mut self, range: LocalRange) -> Written {
        let found = self.inside(range);
        if !found.is_empty() {
            let mut rest = Written::default();
            for written in self.0.iter().flat_map(|ranges| &**ranges) {
                let before = written.end().min(range.offset).saturating_sub(written.offset);
                let from = written.offset.max(range.end());
                rest.add(LocalRange { offset: written.offset, length: before as u32 });
                rest.add(LocalRange { offset: from, length: written.end().saturating_sub(from) as u32 });
            }
            *self = rest;
        }
        found
    }

    /// Moves them to `into`.
    pub fn take_into(&mut self, into: &mut Vec<LocalRange>) {
        if let Some(ranges) = &mut self.0 {
            into.append(ranges);
        }
    }

    /// Those parts of them that are inside `range`; they stay.
    fn inside(&self, range: LocalRange) -> Written {
        let mut found = Written::default();
        for written in self.0.iter().flat_map(|ranges| &**ranges) {
            let from = written.offset.max(range.offset);
            let to = written.end().min(range.end());
            if from < to {
                found.add(LocalRange { offset: from, length: (to - from) as u32 });
            }
        }
        found
    }
}

impl LocalBuffer {
    /// Moves the buffer out and leaves an empty one, for example while commands name it.
    pub fn take(&mut self) -> LocalBuffer {
        let none =
            LocalBuffer { memory: self.memory.clone(), offset: 0, length: 0, blocks: 0, written: Written::default() };
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
        self.memory.region.mapping.pointer(self.offset, self.length).map_or(std::ptr::null(), |first| first.as_ptr())
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
        self.bytes_to_write(0..self.len())
    }

    /// As [`LocalBuffer::bytes_mut`], of a part of it. Of a buffer of a drive in another process all of these bytes go there with the next
    /// command that has the buffer.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn bytes_to_write(&mut self, bytes: std::ops::Range<usize>) -> &mut [u8] {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len(), "{bytes:?} of a buffer of {}", self.len());
        let range = LocalRange { offset: self.offset + bytes.start as u64, length: bytes.len() as u32 };
        let (first, is_window) = self.memory.region.mapping.pointer_to_write(range.offset, range.length);
        let Some(first) = first else { unreachable!("buffers are inside their region") };
        if is_window {
            self.written.add(range);
        }
        // SAFETY: as `bytes`; `self` is borrowed exclusively, and no command in flight reads here either. Of a window, the drive
        // copies what was written when the buffer is leased, and results before it is given back.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), bytes.len()) }
    }

    /// What is yet to reach the drive.
    pub(crate) fn written(&mut self) -> &mut Written {
        &mut self.written
    }

    /// Appends a copy of these bytes, with those that the host has written since a command had them.
    pub(crate) fn copy_to(&self, bytes: std::ops::Range<usize>, into: &mut Vec<u8>) {
        let range = LocalRange { offset: self.offset + bytes.start as u64, length: bytes.len() as u32 };
        let before = into.len();
        into.extend_from_slice(&self.bytes()[bytes]);
        if self.written.is_empty() {
            return;
        }
        let copy = &mut into[before..];
        for LocalRange { offset, length } in self.written.inside(range).0.into_iter().flat_map(|ranges| *ranges) {
            let (Some(written), _) = self.memory.region.mapping.pointer_to_write(offset, length) else {
                unreachable!("buffers are inside their region")
            };
            // SAFETY: inside the window, where these bytes are this buffer's, and nobody writes them while it is borrowed.
            let written = unsafe { std::slice::from_raw_parts(written.as_ptr(), length as usize) };
            copy[(offset - range.offset) as usize..][..length as usize].copy_from_slice(written);
        }
    }

    /// Bytes of it, where they are: what the host has written and the drive has not had yet is in the window.
    ///
    /// # Panics
    /// If some of them are there and others are not.
    pub(crate) fn looked_at(&self, bytes: std::ops::Range<usize>) -> &[u8] {
        let whole = self.bytes();
        if self.written.is_empty() {
            return &whole[bytes];
        }
        let range = LocalRange { offset: self.offset + bytes.start as u64, length: bytes.len() as u32 };
        let unsent = self.written.inside(range);
        if unsent.is_empty() {
            return &whole[bytes];
        }
        assert!(unsent.is_all_of(range), "of {bytes:?} of {self:?}, the drive has had some alone");
        let (Some(written), _) = self.memory.region.mapping.pointer_to_write(range.offset, range.length) else {
            unreachable!("buffers are inside their region")
        };
        // SAFETY: inside the window, where these bytes are this buffer's, and nobody writes them while it is borrowed.
        unsafe { std::slice::from_raw_parts(written.as_ptr(), range.length as usize) }
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
