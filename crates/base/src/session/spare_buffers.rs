//! Local memory for reads, kept by a session between one read and the next.
//!
//! Other sessions, and reads that need more than a spare has, must never wait for it for good: a session keeps none when nothing of
//! it is on its way but what asks, and none when memory is short.

use tapetum_drive::{LocalBuffer, LocalMemory};

/// Buffers of this size are kept from read to read.
pub const BUFFER_BYTES: usize = 16 << 10;
/// What flush and collector take at most, beside each other: 32 windows and 20 stages of 256 KiB and what comes with a window, each in
/// a block of a power of two, and 32 reads of 64 KiB.
const MAINTENANCE_BYTES_MAX: usize = 24 << 20;

/// One in so many bytes is what queue pairs keep for the parts of their pipelines, and queries of one key for their work.
const PIPELINES_SHARE: usize = 16;

pub struct SpareBuffers {
    local: LocalMemory,
    buffers: Vec<LocalBuffer>,
    kept_max: usize,
    /// With less free none is kept.
    ample_bytes: usize,
    /// What is left to flush and collector, which must not fail for want of memory.
    reserve_bytes: usize,
}

impl SpareBuffers {
    /// Of pools of `pool_bytes` a session keeps a sixteenth, and at most what a deep one needs.
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

    /// One of exactly so many bytes, which none that is kept is taken for.
    pub fn allocate(&self, bytes: usize) -> Option<LocalBuffer> {
        if self.free_bytes() < bytes + self.reserve_bytes { None } else { self.local.allocate(bytes) }
    }

    /// Whether so much could ever be taken beside what others never give back.
    pub fn could_take(&self, bytes: usize, kept_bytes: usize) -> bool {
        let total = self.local.bytes_total();
        bytes + kept_bytes + total / PIPELINES_SHARE + self.reserve_bytes <= total
    }

    pub fn give(&mut self, buffer: LocalBuffer) {
        if buffer.len() == BUFFER_BYTES && self.buffers.len() < self.kept_max && self.free_bytes() >= self.ample_bytes {
            self.buffers.push(buffer);
        }
    }

    /// Nothing is on its way.
    pub fn rest(&mut self) {
        self.buffers.clear();
    }

    fn free_bytes(&self) -> usize {
        self.local.bytes_total() - self.local.bytes_used()
    }
}
