//! Local memory for reads, which a session keeps from one read to the next.
//!
//! Other sessions, and reads larger than a spare buffer, must never wait for this memory for good. So a session keeps none while its only operations
//! are those that ask, and none when memory is short.

use tapetum_drive::{LocalBuffer, LocalMemory};

/// The size of kept buffers.
pub const BUFFER_BYTES: usize = 16 << 10;
/// The most memory of flush and collector together: 32 windows and 20 stages of 256 KiB, each with its overhead in a block of a power of two, and 32
/// reads of 64 KiB.
const MAINTENANCE_BYTES_MAX: usize = 24 << 20;

/// Queue pairs keep one such part of local memory for the parts of their pipelines and for the work of queries of one key.
const PIPELINES_SHARE: usize = 16;

pub struct SpareBuffers {
    local: LocalMemory,
    buffers: Vec<LocalBuffer>,
    kept_max: usize,
    /// No buffer is kept while fewer bytes are free.
    ample_bytes: usize,
    /// Bytes left to flush and collector, which must not fail for want of memory.
    reserve_bytes: usize,
}

impl SpareBuffers {
    /// A session keeps a sixteenth of the pools, and at most the need of a deep one.
    pub fn new(local: LocalMemory, pool_bytes: usize) -> SpareBuffers {
        let reserve_bytes = (pool_bytes / 2).min(MAINTENANCE_BYTES_MAX);
        SpareBuffers {
            local,
            buffers: Vec::new(),
            kept_max: (pool_bytes / 16 / BUFFER_BYTES).min(256),
            ample_bytes: reserve_bytes + pool_bytes / 4,
            reserve_bytes,
        }
    }

    pub fn take(&mut self, bytes: usize) -> Option<LocalBuffer> {
        if bytes <= BUFFER_BYTES
            && let Some(buffer) = self.buffers.pop()
        {
            return Some(buffer);
        }
        self.allocate(bytes.max(BUFFER_BYTES))
    }

    /// Allocates a buffer of exactly `bytes` bytes, never a kept one.
    pub fn allocate(&self, bytes: usize) -> Option<LocalBuffer> {
        if self.free_bytes() < bytes + self.reserve_bytes { None } else { self.local.allocate(bytes) }
    }

    /// Whether a request of `bytes` could ever succeed, given the memory that others never give back.
    pub fn could_take(&self, bytes: usize, kept_bytes: usize) -> bool {
        let total = self.local.bytes_total();
        bytes + kept_bytes + total / PIPELINES_SHARE + self.reserve_bytes <= total
    }

    pub fn give(&mut self, buffer: LocalBuffer) {
        if buffer.len() == BUFFER_BYTES && self.buffers.len() < self.kept_max && self.free_bytes() >= self.ample_bytes {
            self.buffers.push(buffer);
        }
    }

    /// Nothing is in flight: frees the kept buffers.
    pub fn rest(&mut self) {
        self.buffers.clear();
    }

    fn free_bytes(&self) -> usize {
        self.local.bytes_total() - self.local.bytes_used()
    }
}
