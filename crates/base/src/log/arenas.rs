//! The arenas of the write buffers, as readers see them: they look at records while sessions append behind these and the drive reads
//! groups. Whoever writes has the arenas themselves ([`HostArena`]), with the log's lock.
//!
//! ```text
//!  +------+--------+--------+------+---------+------+--------+---------------------+
//!  | head | record | record | head | padding | head | record | free                |
//!  +------+--------+--------+------+---------+------+--------+---------------------+
//!                                            └─ open group ──┘
//!  records: written once, then published; looked at by anybody until their buffer is released
//!  all else: of whoever holds the log's lock; sealed groups, of the drive too
//! ```
//! Invariants:
//! 1. The bytes of a published record are not written before its buffer is released and the arena is reset for another.
//! 2. Bytes behind the last record, heads and padding are looked at by nobody but who holds the log's lock.
//! 3. No slice spans bytes of both kinds: a reader sees exactly one record.

use crate::media::geometry::BUFFERS;
use tapetum_drive::{HostArena, HostRegion};
use tapetum_kernels::prefetch::{CACHE_LINE_BYTES, prefetch};
use tapetum_kernels::record::{Header, Record};

/// Lines of the cache that a record of some 130 bytes is in.
const SMALL_RECORD_LINES: usize = 3;

pub struct Arenas {
    region: HostRegion,
    offsets: [usize; BUFFERS as usize],
    bytes_each: usize,
}

impl Arenas {
    pub fn new(arenas: &[HostArena; BUFFERS as usize]) -> Arenas {
        let [first, second] = arenas;
        assert_eq!(first.len(), second.len());
        let offsets = [first.offset() as usize, second.offset() as usize];
        Arenas { region: first.region().clone(), offsets, bytes_each: first.len() }
    }

    /// Bytes of each.
    pub fn bytes_each(&self) -> usize {
        self.bytes_each
    }

    fn start(&self, buffer: u64) -> *const u8 {
        self.region.as_ptr().wrapping_add(self.offsets[(buffer % BUFFERS) as usize])
    }

    fn pointer(&self, buffer: u64, at: usize, length: usize) -> *const u8 {
        assert!(at <= self.bytes_each && length <= self.bytes_each - at);
        self.start(buffer).wrapping_add(at)
    }

    /// # Safety
    /// The bytes are those of published records of one group, and their buffer is not released while the slice lives.
    unsafe fn published(&self, buffer: u64, at: usize, length: usize) -> &[u8] {
        // SAFETY: in bounds, and written by nobody (invariant 1).
        unsafe { std::slice::from_raw_parts(self.pointer(buffer, at, length), length) }
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
        let start = self.start(buffer).wrapping_add(place as usize);
        (0..SMALL_RECORD_LINES).for_each(|line| prefetch(start.wrapping_add(line * CACHE_LINE_BYTES)));
    }
}
