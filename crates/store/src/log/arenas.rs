//! The arenas of the write buffers: sessions append to them, readers look at records, and the drive writes groups out, all at once.
//!
//! ```text
//!  +------+--------+--------+------+---------+------+--------+---------------------+
//!  | head | record | record | head | padding | head | record | free                |
//!  +------+--------+--------+------+---------+------+--------+---------------------+
//!                                            └─ open group ──┘
//!  records: written once, then published; looked at by anybody until their buffer is released
//!  all else: of whoever holds the log's lock, and of the drive while it writes a sealed group
//! ```
//! Invariants:
//! 1. The bytes of a published record are not written before its buffer is released and the arena is taken for another.
//! 2. Bytes behind the last record are written under the log's lock and looked at by nobody.
//! 3. No slice spans bytes of both kinds: a reader sees exactly one record.

use crate::media::geometry::BUFFERS;
use tapetum_drive::LocalBuffer;
use tapetum_kernels::prefetch::{CACHE_LINE_BYTES, prefetch};
use tapetum_kernels::record::{Header, Record};

/// Lines of the cache that a record of some 130 bytes is in.
const SMALL_RECORD_LINES: usize = 3;

pub struct Arenas {
    buffers: [LocalBuffer; BUFFERS as usize],
}

impl Arenas {
    pub fn new(buffers: [LocalBuffer; BUFFERS as usize]) -> Arenas {
        Arenas { buffers }
    }

    /// Bytes of each.
    pub fn bytes_each(&self) -> usize {
        self.buffers[0].len()
    }

    /// Where a buffer's arena begins in local memory.
    pub fn offset(&self, buffer: u64) -> u64 {
        self.arena(buffer).offset()
    }

    fn arena(&self, buffer: u64) -> &LocalBuffer {
        &self.buffers[(buffer % BUFFERS) as usize]
    }

    fn pointer(&self, buffer: u64, at: usize, length: usize) -> *const u8 {
        let arena = self.arena(buffer);
        assert!(at <= arena.len() && length <= arena.len() - at);
        arena.as_ptr().wrapping_add(at)
    }

    /// # Safety
    /// The bytes are those of published records of one group, and their buffer is not released while the slice lives.
    pub unsafe fn published(&self, buffer: u64, at: usize, length: usize) -> &[u8] {
        // SAFETY: in bounds, and written by nobody (invariant 1).
        unsafe { std::slice::from_raw_parts(self.pointer(buffer, at, length), length) }
    }

    /// # Safety
    /// The bytes belong to no published record and to no group on its way, and nobody else looks at them while the slice lives:
    /// the caller holds the log's lock.
    #[allow(clippy::mut_from_ref)] // The borrow is of the mapping; whose the bytes are is the caller's word.
    pub unsafe fn unpublished(&self, buffer: u64, at: usize, length: usize) -> &mut [u8] {
        // SAFETY: in bounds, and the caller's alone (invariant 2). No reference to the whole arena is ever made.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(buffer, at, length).cast_mut(), length) }
    }

    /// A record and its bytes.
    ///
    /// # Safety
    /// A record was published at this place of the buffer, and the buffer is not released while what is returned lives.
    pub unsafe fn record(&self, buffer: u64, place: u32) -> (Record<'_>, &[u8]) {
        let start = place as usize;
        // SAFETY: the caller has a record there, of which the header's length is found by its own bytes; they are in bounds,
        // and written by nobody (invariant 1).
        let byte = |at: usize| unsafe { self.pointer(buffer, start + at, 1).read() };
        let header_bytes = Header::length_of(byte);
        // SAFETY: these are the record's.
        let head = unsafe { self.published(buffer, start, header_bytes) };
        let Ok((header, key_at)) = Header::parse(head) else { unreachable!("the arena holds what was encoded") };
        // SAFETY: these, too.
        let bytes = unsafe { self.published(buffer, start, header.record_bytes()) };
        let (key, stored) = bytes[key_at..].split_at(header.key_bytes as usize);
        assert_eq!(stored.len(), header.stored_bytes as usize, "the arena holds what was encoded");
        (Record { header, key, stored }, bytes)
    }

    /// Brings the beginning of the record at a place nearer to the processor, of small ones all.
    pub fn prefetch_record(&self, buffer: u64, place: u32) {
        let start = self.arena(buffer).as_ptr().wrapping_add(place as usize);
        (0..SMALL_RECORD_LINES).for_each(|line| prefetch(start.wrapping_add(line * CACHE_LINE_BYTES)));
    }
}
