//! The flash of an attached partition, carried to this process: for tools, which look at a store that nobody serves, in memory of their own.
//!
//! Each byte crosses from one process to the other, so a store that is served has its drive where its flash is ([`Drive::over`]).

use super::{AttachedFlash, Drive, Lease, QueuePair, Returned};
use crate::flash::{Flash, FlashError, FlashQueue, Health};
use crate::memory::{LocalBuffer, PairMemory};
use crate::protocol::{Command, Completion, LocalRange, MemoryAddress, Operation, Purpose, Status};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that cross at a time.
const PIECE_BYTES: u32 = 256 << 10;

pub struct CarriedFlash(Arc<AttachedFlash>);

impl CarriedFlash {
    pub fn new(flash: AttachedFlash) -> CarriedFlash {
        CarriedFlash(Arc::new(flash))
    }
}

impl Flash for CarriedFlash {
    fn capacity_bytes(&self) -> u64 {
        self.0.capacity_bytes()
    }

    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        self.0.grow(capacity_bytes)
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn sector_bytes(&self) -> u32 {
        self.0.sector_bytes()
    }

    fn atomic_write_bytes(&self) -> u32 {
        self.0.atomic_write_bytes()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn place(&self) -> String {
        self.0.place()
    }

    fn open_queue(&self, memory: &PairMemory, _depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        let flash: Arc<dyn Flash> = self.0.clone();
        let drive = Drive::over(flash, PIECE_BYTES as usize, Vec::new(), self.0.env().clone())?;
        let piece = drive.local().allocate(PIECE_BYTES as usize);
        let piece = piece.ok_or_else(|| io::Error::other("the drive gave no local memory"))?;
        Ok(Box::new(CarriedQueue { pair: drive.queue_pair(1)?, piece, memory: memory.clone(), waiting: Vec::new() }))
    }
}

/// Does each command in `poll`, as a queue does that has no help of the kernel.
struct CarriedQueue {
    // First, so that it is dropped before its buffer.
    pair: QueuePair,
    piece: LocalBuffer,
    memory: PairMemory,
    waiting: Vec<Command>,
}

impl FlashQueue for CarriedQueue {
    unsafe fn submit(&mut self, command: &Command) {
        self.waiting.push(*command);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        for command in std::mem::take(&mut self.waiting) {
            let done = match command.operation {
                Operation::Read { flash, local, length } => self.read(flash, MemoryAddress::local(local), length),
                Operation::Write { flash, from, length, fua } => self.write(flash, from, length, fua),
                other => self.run(other, Lease::Nothing).map(drop),
            };
            let completion = done.err().unwrap_or_else(|| Completion::success(command.tag));
            completions.push(Completion { tag: command.tag, ..completion });
        }
    }

    fn wait(&mut self, _timeout: Option<Duration>) {}

    fn event_fd(&self) -> Option<RawFd> {
        None
    }
}

impl CarriedQueue {
    fn read(&mut self, flash: u64, into: MemoryAddress, length: u32) -> Result<(), Completion> {
        for (at, bytes) in pieces(length) {
            let read = Operation::Read { flash: flash + u64::from(at), local: self.piece.offset(), length: bytes };
            let lease = Lease::Buffer(self.piece.take());
            self.piece = self.run(read, lease)?.into_buffer();
            let found = self.pair.look(Purpose::Other, &self.piece, 0..bytes as usize);
            let into = MemoryAddress { offset: into.offset + u64::from(at), ..into };
            let pointer = self.memory.pointer(into, bytes).ok_or_else(outside)?;
            // SAFETY: inside the memory, and ours until the command's end, by the word of who submitted it.
            unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), pointer.as_ptr(), found.len()) };
        }
        Ok(())
    }

    fn write(&mut self, flash: u64, from: MemoryAddress, length: u32, fua: bool) -> Result<(), Completion> {
        for (at, bytes) in pieces(length) {
            let from = MemoryAddress { offset: from.offset + u64::from(at), ..from };
            let pointer = self.memory.pointer(from, bytes).ok_or_else(outside)?;
            // SAFETY: inside the memory, and nobody writes it until the command's end, by the word of who submitted it.
            let given = unsafe { std::slice::from_raw_parts(pointer.as_ptr(), bytes as usize) };
            self.pair.fill(Purpose::Other, &mut self.piece, 0..bytes as usize).copy_from_slice(given);
            let LocalRange { offset, .. } = self.piece.range();
            let from = MemoryAddress::local(offset);
            let write = Operation::Write { flash: flash + u64::from(at), from, length: bytes, fua };
            let lease = Lease::Buffer(self.piece.take());
            self.piece = self.run(write, lease)?.into_buffer();
        }
        Ok(())
    }

    /// An error is the end of a command that failed. Its buffer is kept.
    fn run(&mut self, operation: Operation, lease: Lease) -> Result<Lease, Completion> {
        let mut returned = Vec::new();
        if self.pair.submit(Command::new(0, operation), lease).is_ok() {
            self.pair.drain_into(&mut returned);
        }
        match returned.pop() {
            Some(Returned { completion, lease }) if completion.is_success() => Ok(lease),
            Some(Returned { completion, lease }) => {
                if let Lease::Buffer(piece) = lease {
                    self.piece = piece;
                }
                Err(completion)
            }
            None => Err(Completion::failed(0, libc::EIO)),
        }
    }
}

fn outside() -> Completion {
    Completion::new(0, Status::InvalidField)
}

/// The beginning of each piece, and its bytes.
fn pieces(length: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..length).step_by(PIECE_BYTES as usize).map(move |at| (at, PIECE_BYTES.min(length - at)))
}
