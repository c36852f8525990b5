//! Flash in memory: for tests, and for stores that need not outlive the process.
//!
//! Bytes live in chunks that appear when first written; unwritten flash reads as zero. Commands run when submitted, one
//! after the other, and are done by the next poll. Chunks are locked one at a time: a read that crosses chunks may see
//! one half of a concurrent write, as on any drive.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::Duration;

use super::{Flash, FlashError, FlashQueue};
use crate::locks::whole;
use crate::memory::PairMemory;
use crate::protocol::{Command, Completion, LocalRange, MemoryAddress, Operation, Status};

const CHUNK_BYTES: u64 = 256 * 1024;

/// A flash that forgets when it is dropped.
pub struct MemoryFlash {
    chunks: Arc<Chunks>,
}

type Chunk = RwLock<Option<Box<[u8]>>>;

struct Chunks {
    sector_bytes: u32,
    /// Written only to grow.
    room: RwLock<Room>,
}

struct Room {
    capacity_bytes: u64,
    chunks: Vec<Chunk>,
}

impl Room {
    fn grow(&mut self, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
        self.chunks.resize_with(capacity_bytes.div_ceil(CHUNK_BYTES) as usize, Chunk::default);
    }
}

impl Chunks {
    fn room(&self) -> RwLockReadGuard<'_, Room> {
        whole(self.room.read())
    }
}

impl MemoryFlash {
    /// `capacity_bytes` rounded down to sectors of 512 bytes.
    pub fn new(capacity_bytes: u64) -> MemoryFlash {
        MemoryFlash::with_sector_bytes(capacity_bytes, 512)
    }

    /// As `new`, with another sector: a power of two, 512 to 65536.
    pub fn with_sector_bytes(capacity_bytes: u64, sector_bytes: u32) -> MemoryFlash {
        assert!(
            sector_bytes.is_power_of_two() && (512..=65536).contains(&sector_bytes),
            "a sector of {sector_bytes} bytes"
        );
        let mut room = Room { capacity_bytes: 0, chunks: Vec::new() };
        room.grow(capacity_bytes - capacity_bytes % u64::from(sector_bytes));
        MemoryFlash { chunks: Arc::new(Chunks { sector_bytes, room: RwLock::new(room) }) }
    }
}

impl Flash for MemoryFlash {
    fn capacity_bytes(&self) -> u64 {
        self.chunks.room().capacity_bytes
    }

    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        let mut room = whole(self.chunks.room.write());
        let capacity_bytes = capacity_bytes.next_multiple_of(u64::from(self.chunks.sector_bytes));
        if capacity_bytes > room.capacity_bytes {
            room.grow(capacity_bytes);
        }
        Ok(())
    }

    fn sector_bytes(&self) -> u32 {
        self.chunks.sector_bytes
    }

    fn describe(&self) -> String {
        format!("memory, {} bytes, not durable", self.capacity_bytes())
    }

    fn open_queue(&self, memory: &PairMemory, _depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        Ok(Box::new(MemoryQueue { chunks: self.chunks.clone(), memory: memory.clone(), done: Vec::new() }))
    }
}

struct MemoryQueue {
    chunks: Arc<Chunks>,
    memory: PairMemory,
    done: Vec<Completion>,
}

impl FlashQueue for MemoryQueue {
    unsafe fn submit(&mut self, command: &Command) {
        let status = match command.operation {
            // SAFETY: by our caller's word.
            Operation::Read { flash, local, length } => unsafe {
                self.read(flash, LocalRange { offset: local, length })
            },
            // SAFETY: by our caller's word.
            Operation::Write { flash, from, length, .. } => unsafe { self.write(flash, from, length) },
            Operation::Flush | Operation::Discard { .. } => Status::Success,
            Operation::Execute { .. }
            | Operation::Pipeline { .. }
            | Operation::Compute { .. }
            | Operation::Cancel { .. }
            | Operation::Identify { .. } => Status::Unsupported,
        };
        self.done.push(Completion::new(command.tag, status));
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
    }

    fn wait(&mut self, _timeout: Option<Duration>) {}

    fn event_fd(&self) -> Option<RawFd> {
        None
    }
}

impl MemoryQueue {
    /// # Safety
    /// Nobody else reads or writes the range of local memory.
    unsafe fn read(&self, flash: u64, range: LocalRange) -> Status {
        let Some(local) = self.memory.local.pointer(range) else { return Status::InvalidField };
        // SAFETY: inside local memory, and ours alone by our caller's word.
        let mut local = unsafe { std::slice::from_raw_parts_mut(local.as_ptr(), range.length as usize) };
        let room = self.chunks.room();
        for (chunk, at, take) in pieces(flash, range.length) {
            let (piece, rest) = local.split_at_mut(take);
            match &*whole(room.chunks[chunk].read()) {
                Some(bytes) => piece.copy_from_slice(&bytes[at..at + take]),
                None => piece.fill(0),
            }
            local = rest;
        }
        Status::Success
    }

    /// # Safety
    /// Nobody writes the range of memory.
    unsafe fn write(&self, flash: u64, from: MemoryAddress, length: u32) -> Status {
        let Some(memory) = self.memory.pointer(from, length) else { return Status::InvalidField };
        // SAFETY: inside its region, and written by nobody by our caller's word.
        let mut left = unsafe { std::slice::from_raw_parts(memory.as_ptr(), length as usize) };
        let room = self.chunks.room();
        for (chunk, at, take) in pieces(flash, length) {
            let (piece, rest) = left.split_at(take);
            let mut bytes = whole(room.chunks[chunk].write());
            let bytes = bytes.get_or_insert_with(|| vec![0; CHUNK_BYTES as usize].into_boxed_slice());
            bytes[at..at + take].copy_from_slice(piece);
            left = rest;
        }
        Status::Success
    }
}

/// The chunks that a range of flash touches: (chunk, offset in it, bytes).
fn pieces(flash: u64, length: u32) -> impl Iterator<Item = (usize, usize, usize)> {
    let (mut at, end) = (flash, flash + u64::from(length));
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let offset = at % CHUNK_BYTES;
        let take = (CHUNK_BYTES - offset).min(end - at);
        let piece = ((at / CHUNK_BYTES) as usize, offset as usize, take as usize);
        at += take;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_range_once() {
        let pieces: Vec<_> = pieces(CHUNK_BYTES - 512, CHUNK_BYTES as u32 + 1024).collect();
        let chunk = CHUNK_BYTES as usize;
        assert_eq!(pieces, [(0, chunk - 512, 512), (1, 0, chunk), (2, 0, 512)]);
    }
}
