//! Flash over another flash that it never writes to: writes stay in memory; reads see them, and elsewhere the flash below.
//!
//! Code that repairs what it reads can run over it without changing the bytes below: for a store that is opened read-only, and for the
//! preview of a repair.
//!
//! Invariants:
//! 1. The flash below gets only reads.
//! 2. A read sees every write that completed before it was submitted, and reads from the flash below only sectors that were never written.
//! 3. At most `limit_bytes` are kept; a write that needs more fails with ENOSPC and changes nothing.
//!
//! Threads: the written sectors are behind one lock, held while one command's bytes are copied.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::Duration;

use super::parts::Parts;
use super::redundant::losses::MemberState;
use super::redundant::rows::Rows;
use super::{Flash, FlashError, FlashQueue};
use crate::locks::whole;
use crate::memory::{LocalMemory, PairMemory};
use crate::protocol::{Command, Completion, LocalRange, MemoryAddress, Operation, Status};

/// A flash whose writes stay in memory. Clones share it.
#[derive(Clone)]
pub struct OverlayFlash {
    base: Arc<dyn Flash>,
    written: Arc<Written>,
}

struct Written {
    sector_bytes: usize,
    sectors_max: usize,
    /// Written sectors, by number.
    sectors: RwLock<BTreeMap<u64, Box<[u8]>>>,
}

impl OverlayFlash {
    /// An overlay over `base`, with memory for `limit_bytes` of writes.
    pub fn new(base: Arc<dyn Flash>, limit_bytes: u64) -> OverlayFlash {
        let sector_bytes = base.sector_bytes() as usize;
        let sectors_max = (limit_bytes / sector_bytes as u64) as usize;
        OverlayFlash { base, written: Arc::new(Written { sector_bytes, sectors_max, sectors: RwLock::default() }) }
    }

    /// The written ranges, ascending; adjacent ones are merged.
    pub fn written(&self) -> Vec<Range<u64>> {
        let sector = self.written.sector_bytes as u64;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for number in self.written.read().keys() {
            let range = number * sector..(number + 1) * sector;
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        ranges
    }

    /// Whether any byte of a range of flash was written.
    pub fn touches(&self, range: Range<u64>) -> bool {
        self.written.read().range(self.written.numbers(range)).next().is_some()
    }

    /// The bytes written at `range`, which must lie within one of [`OverlayFlash::written`].
    pub fn bytes(&self, range: Range<u64>) -> Vec<u8> {
        let sectors = self.written.read();
        sectors.range(self.written.numbers(range)).flat_map(|(_, bytes)| bytes.iter().copied()).collect()
    }
}

impl Written {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Box<[u8]>>> {
        whole(self.sectors.read())
    }

    /// The numbers of the sectors that a range touches.
    fn numbers(&self, range: Range<u64>) -> Range<u64> {
        let sector = self.sector_bytes as u64;
        range.start / sector..range.end.div_ceil(sector)
    }

    /// Stores the bytes of a write. Returns whether there was room.
    fn keep(&self, flash: u64, bytes: &[u8]) -> bool {
        let mut sectors = whole(self.sectors.write());
        let numbers = self.numbers(flash..flash + bytes.len() as u64);
        let fresh = (numbers.end - numbers.start) as usize - sectors.range(numbers.clone()).count();
        if sectors.len() + fresh > self.sectors_max {
            return false;
        }
        for (number, bytes) in numbers.zip(bytes.chunks_exact(self.sector_bytes)) {
            sectors.insert(number, bytes.into());
        }
        true
    }
}

impl Flash for OverlayFlash {
    fn capacity_bytes(&self) -> u64 {
        self.base.capacity_bytes()
    }

    fn grow(&self, _capacity_bytes: u64) -> Result<(), FlashError> {
        Err(FlashError::ReadOnly)
    }

    fn sector_bytes(&self) -> u32 {
        self.base.sector_bytes()
    }

    fn member_starts(&self) -> Vec<u64> {
        self.base.member_starts()
    }

    fn rows(&self) -> Option<&Arc<Rows>> {
        self.base.rows()
    }

    fn members(&self) -> Vec<MemberState> {
        self.base.members()
    }

    fn describe(&self) -> String {
        format!("{}, to read", self.base.describe())
    }

    fn open_queue(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        Ok(OverlayQueue::over(self.base.open_queue(memory, depth)?, &self.written, memory))
    }

    fn open_queue_of_one_thread(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        Ok(OverlayQueue::over(self.base.open_queue_of_one_thread(memory, depth)?, &self.written, memory))
    }
}

struct OverlayQueue {
    // First, so that its reads have ended before the memory that they fill is freed.
    base: Box<dyn FlashQueue>,
    written: Arc<Written>,
    memory: PairMemory,
    /// Reads of which parts come from below.
    split: Parts,
    done: Vec<Completion>,
}

impl OverlayQueue {
    fn over(base: Box<dyn FlashQueue>, written: &Arc<Written>, memory: &PairMemory) -> Box<dyn FlashQueue> {
        let (written, memory) = (written.clone(), memory.clone());
        Box::new(OverlayQueue { base, written, memory, split: Parts::default(), done: Vec::new() })
    }

    /// # Safety
    /// As [`FlashQueue::submit`].
    unsafe fn read(&mut self, command: &Command, flash: u64, local: u64, length: u32) {
        let sector = self.written.sector_bytes as u64;
        let sectors = self.written.read();
        let numbers = self.written.numbers(flash..flash + u64::from(length));
        if sectors.range(numbers.clone()).next().is_none() {
            // SAFETY: by our caller's word.
            return unsafe { self.base.submit(command) };
        }
        // Start of the next part to be read from below.
        let (mut from, mut parts) = (numbers.start, 0);
        let mut read_below = |from: u64, to: u64| {
            if from < to {
                let at = from * sector;
                let part =
                    Operation::Read { flash: at, local: local + at - flash, length: ((to - from) * sector) as u32 };
                // SAFETY: a part of the command's range, which our caller gave to the drive. No other part overlaps it.
                unsafe { self.base.submit(&Command::new(command.tag, part)) };
                parts += 1;
            }
        };
        for (number, bytes) in sectors.range(numbers.clone()) {
            read_below(from, *number);
            // SAFETY: as above.
            unsafe { copy_to_local(&self.memory.local, local + number * sector - flash, bytes) };
            from = number + 1;
        }
        read_below(from, numbers.end);
        match parts {
            0 => self.done.push(Completion::success(command.tag)),
            _ => self.split.begin(command.tag, parts),
        }
    }

    /// # Safety
    /// Nobody writes the range of memory.
    unsafe fn write(&mut self, tag: u64, flash: u64, from: MemoryAddress, length: u32) -> Completion {
        let Some(memory) = self.memory.pointer(from, length) else { return Completion::new(tag, Status::InvalidField) };
        // SAFETY: inside its region, and written by nobody by our caller's word.
        let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr(), length as usize) };
        match self.written.keep(flash, bytes) {
            true => Completion::success(tag),
            false => Completion::failed(tag, libc::ENOSPC),
        }
    }
}

/// Copies bytes into a read's range.
///
/// # Safety
/// Nobody else uses the range in local memory.
unsafe fn copy_to_local(memory: &LocalMemory, local: u64, bytes: &[u8]) {
    let range = LocalRange { offset: local, length: bytes.len() as u32 };
    let Some(pointer) = memory.pointer(range) else { unreachable!("the queue pair has checked the range") };
    // SAFETY: inside local memory; our caller says that nobody else uses it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer.as_ptr(), bytes.len()) };
}

impl FlashQueue for OverlayQueue {
    unsafe fn submit(&mut self, command: &Command) {
        let done = match command.operation {
            // SAFETY: by our caller's word.
            Operation::Read { flash, local, length } => return unsafe { self.read(command, flash, local, length) },
            Operation::Write { flash, from, length, .. } => {
                // SAFETY: by our caller's word.
                unsafe { self.write(command.tag, flash, from, length) }
            }
            Operation::Flush | Operation::Discard { .. } => Completion::success(command.tag),
            Operation::Execute { .. }
            | Operation::Pipeline { .. }
            | Operation::Compute { .. }
            | Operation::Cancel { .. }
            | Operation::Identify { .. } => Completion::new(command.tag, Status::Unsupported),
        };
        self.done.push(done);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
        let first = completions.len();
        self.base.poll(completions);
        self.split.join(completions, first);
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        if self.done.is_empty() {
            self.base.wait(timeout);
        }
    }

    /// The descriptor of the flash below. Commands that completed without it come out of the next poll, which precedes any sleep.
    fn event_fd(&self) -> Option<RawFd> {
        self.base.event_fd()
    }

    fn rest(&mut self) {
        self.base.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Env;
    use crate::flash::faulty::FaultyFlash;
    use crate::host::{Drive, QueuePair, testing};
    use crate::memory::LocalBuffer;
    use crate::protocol::Opcode;

    const CAPACITY_BYTES: u64 = 1 << 20;

    /// A flash whose first sectors contain their numbers, and a drive with an overlay on it.
    fn numbered(limit_bytes: u64) -> (FaultyFlash, OverlayFlash, Drive) {
        let base = FaultyFlash::new(CAPACITY_BYTES, 1);
        let drive = |flash| Drive::new(flash, LocalMemory::new(1 << 20).unwrap(), Vec::new(), Env::simulated(1).0);
        let below = drive(Arc::new(base.clone()));
        let mut buffer = below.local().allocate(32 << 10).unwrap();
        for (number, sector) in buffer.bytes_mut().chunks_exact_mut(512).enumerate() {
            sector.fill(number as u8);
        }
        assert_eq!(run(&mut below.queue_pair(1).unwrap(), write(0, &buffer, 0..64), &mut buffer), 0);
        let overlay = OverlayFlash::new(Arc::new(base.clone()), limit_bytes);
        let above = drive(Arc::new(overlay.clone()));
        (base, overlay, above)
    }

    fn read(sector: u64, buffer: &LocalBuffer, count: u32) -> Operation {
        Operation::Read { flash: sector * 512, local: buffer.offset(), length: count * 512 }
    }

    fn write(sector: u64, buffer: &LocalBuffer, part: Range<u64>) -> Operation {
        let from = MemoryAddress::local(buffer.offset() + part.start * 512);
        let length = (part.end - part.start) as u32 * 512;
        Operation::Write { flash: sector * 512, from, length, fua: true }
    }

    /// The errno of a command.
    fn run(pair: &mut QueuePair, operation: Operation, buffer: &mut LocalBuffer) -> i32 {
        testing::run(pair, operation, buffer).errno
    }

    fn ranges(overlay: &OverlayFlash) -> Vec<(u64, u64)> {
        overlay.written().into_iter().map(|range| (range.start, range.end)).collect()
    }

    fn firsts(buffer: &LocalBuffer, count: usize) -> Vec<u8> {
        buffer.bytes().chunks_exact(512).take(count).map(|sector| sector[511]).collect()
    }

    #[test]
    fn what_is_written_is_read_and_what_lies_below_stays() {
        let (base, overlay, drive) = numbered(CAPACITY_BYTES);
        let before = base.peek(0, CAPACITY_BYTES);
        let mut pair = drive.queue_pair(4).unwrap();
        let mut buffer = drive.local().allocate(8 << 10).unwrap();
        buffer.bytes_mut().fill(200);
        for (sector, count) in [(3, 2), (7, 1), (8, 1), (4, 1)] {
            assert_eq!(run(&mut pair, write(sector, &buffer, 0..count), &mut buffer), 0);
        }
        assert_eq!(run(&mut pair, Operation::Flush, &mut buffer), 0);
        assert_eq!(run(&mut pair, Operation::Discard { flash: 0, length: 512 }, &mut buffer), 0);
        assert_eq!(run(&mut pair, read(0, &buffer, 10), &mut buffer), 0);
        assert_eq!(firsts(&buffer, 10), [0, 1, 2, 200, 200, 5, 6, 200, 200, 9]);
        assert_eq!(run(&mut pair, read(3, &buffer, 2), &mut buffer), 0);
        assert_eq!(firsts(&buffer, 2), [200, 200]);
        assert_eq!(ranges(&overlay), [(1536, 2560), (3584, 4608)]);
        assert!(overlay.touches(2048..6000) && !overlay.touches(2560..3584));
        assert_eq!(overlay.bytes(3584..4608), [200; 1024]);
        assert!(matches!(overlay.grow(2 * CAPACITY_BYTES), Err(FlashError::ReadOnly)));
        assert!(base.peek(0, CAPACITY_BYTES) == before);
        assert_eq!([Opcode::Write, Opcode::Flush, Opcode::Discard].map(|opcode| base.submitted(opcode)), [1, 0, 0]);
    }

    #[test]
    fn a_part_that_cannot_be_read_fails_the_read_and_what_covers_it_does_not() {
        let (base, _, drive) = numbered(CAPACITY_BYTES);
        let mut pair = drive.queue_pair(4).unwrap();
        let mut buffer = drive.local().allocate(8 << 10).unwrap();
        assert_eq!(run(&mut pair, write(2, &buffer, 0..1), &mut buffer), 0);
        for nth in [1, 2] {
            base.fail_nth(Opcode::Read, nth);
            assert_eq!(run(&mut pair, read(0, &buffer, 6), &mut buffer), libc::EIO);
            assert_eq!(run(&mut pair, read(0, &buffer, 6), &mut buffer), 0);
        }
        base.fail_nth(Opcode::Read, 1);
        assert_eq!(run(&mut pair, read(2, &buffer, 1), &mut buffer), 0);
    }

    #[test]
    fn writes_beyond_the_limit_fail_and_change_nothing() {
        let (_, overlay, drive) = numbered(4 * 512);
        let mut pair = drive.queue_pair(4).unwrap();
        let mut buffer = drive.local().allocate(8 << 10).unwrap();
        assert_eq!(run(&mut pair, write(0, &buffer, 0..3), &mut buffer), 0);
        assert_eq!(run(&mut pair, write(2, &buffer, 0..3), &mut buffer), libc::ENOSPC);
        assert_eq!(ranges(&overlay), [(0, 1536)]);
        assert_eq!(run(&mut pair, write(1, &buffer, 0..3), &mut buffer), 0);
        assert_eq!(ranges(&overlay), [(0, 2048)]);
    }
}
