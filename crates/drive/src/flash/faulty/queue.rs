//! The queue of a faulty flash: which outcome each command has, and when.

use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::time::Duration;

use super::fault::Fault;
use super::image::SECTOR_BYTES;
use super::{Fate, FaultyFlash, FaultyState, InFlight, mix, shuffle};
use crate::flash::FlashQueue;
use crate::memory::PairMemory;
use crate::protocol::{Command, Completion, MemoryAddress, Operation, Status};

/// A read's range is filled with this until the read completes.
const RUBBISH: u8 = 0xa5;

/// Kinds of events in the trace.
const SUBMITTED: u64 = 0;
const COMPLETED: u64 = 1;
const FAILED: u64 = 2;
const MOVED_SHORT: u64 = 3;

pub(super) struct FaultyQueue {
    pub(super) flash: FaultyFlash,
    pub(super) memory: PairMemory,
    pub(super) number: u64,
    /// Somebody waits: the next poll must complete something.
    pub(super) impatient: bool,
}

impl FlashQueue for FaultyQueue {
    unsafe fn submit(&mut self, command: &Command) {
        let mut state = self.flash.lock();
        if state.crashed.is_some() {
            return;
        }
        let bytes = match command.operation {
            // SAFETY: by our caller's word nobody writes them.
            Operation::Write { from, length, .. } => unsafe { written_from(&self.memory, from, length) }.to_vec(),
            Operation::Read { local, length, .. } => {
                // SAFETY: by our caller's word they are ours alone.
                unsafe { read_into(&self.memory, local, length) }.fill(RUBBISH);
                Vec::new()
            }
            _ => Vec::new(),
        };
        let fate = state.draw_fate(&command.operation);
        let stalled_polls = state.draw_stall(&command.operation);
        let (queue, writes_before) = (self.number, state.writes_completed);
        state.trace = mix(state.trace, &bytes);
        let flying = InFlight { queue, command: *command, fate, stalled_polls, moved: 0, bytes, writes_before };
        state.in_flight.push(flying);
        state.submitted[command.operation.opcode().index()] += 1;
        state.event(command, SUBMITTED);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let mut state = self.flash.lock();
        let state = &mut *state;
        let flying = state.in_flight.iter_mut().enumerate();
        let mut mine = Vec::new();
        for (place, flying) in flying.filter(|(_, flying)| flying.queue == self.number) {
            match flying.stalled_polls {
                0 => mine.push(place),
                _ => flying.stalled_polls -= 1,
            }
        }
        if mine.is_empty() {
            return;
        }
        shuffle(&mut mine, &mut state.random);
        let count = state.random.below(mine.len() as u64 + 1).max(u64::from(self.impatient));
        self.impatient = false;
        mine.truncate(count as usize);
        for turn in 0..mine.len() {
            let place = mine[turn];
            let InFlight { command, fate, .. } = state.in_flight[place];
            let kind = match fate {
                Fate::Succeeds => COMPLETED,
                Fate::Fails | Fate::NoSpace => FAILED,
                Fate::Short => MOVED_SHORT,
            };
            if state.event(&command, kind) {
                return; // It was still in flight when the power went.
            }
            let mut flying = state.in_flight.swap_remove(place);
            let moved = state.in_flight.len();
            mine[turn..].iter_mut().filter(|later| **later == moved).for_each(|later| *later = place);
            match fate {
                Fate::Short => {
                    state.move_short(&mut flying, &self.memory);
                    state.in_flight.push(flying);
                }
                Fate::Succeeds | Fate::Fails | Fate::NoSpace => completions.push(state.complete(&flying, &self.memory)),
            }
        }
    }

    fn wait(&mut self, _timeout: Option<Duration>) {
        self.impatient = true;
    }

    fn event_fd(&self) -> Option<RawFd> {
        None
    }
}

impl Drop for FaultyQueue {
    /// Decides, for each command in flight, whether it takes effect. Nobody gets a completion, and local memory is not touched.
    fn drop(&mut self) {
        let mut state = self.flash.lock();
        let state = &mut *state;
        let mut place = 0;
        while place < state.in_flight.len() {
            if state.in_flight[place].queue != self.number {
                place += 1;
                continue;
            }
            let dropped = state.in_flight.swap_remove(place);
            if let Operation::Write { flash, .. } = dropped.command.operation
                && !matches!(dropped.fate, Fate::Fails | Fate::NoSpace)
                && state.random.one_in(2)
            {
                state.writes_completed += 1;
                let first = flash / SECTOR_BYTES as u64;
                let rest = (first..).zip(dropped.bytes.as_chunks::<SECTOR_BYTES>().0).skip(dropped.moved);
                for (sector, bytes) in rest {
                    state.image.write(sector, bytes, state.writes_completed);
                }
            }
        }
    }
}

impl FaultyState {
    /// Moves a part of a command's bytes. The rest moves later.
    fn move_short(&mut self, flying: &mut InFlight, memory: &PairMemory) {
        flying.fate = Fate::Succeeds;
        match flying.command.operation {
            Operation::Read { flash, local: offset, length } => {
                self.report.struck.count(Fault::ShortRead);
                // SAFETY: it is in flight, so by the word of who submitted it they are ours alone.
                let into = unsafe { read_into(memory, offset, length) };
                flying.moved = 1 + self.random.below((into.len() / SECTOR_BYTES - 1) as u64) as usize;
                self.read(flash, &mut into[..flying.moved * SECTOR_BYTES]);
            }
            Operation::Write { flash, fua, .. } => {
                self.report.struck.count(Fault::ShortWrite);
                flying.moved = 1 + self.random.below((flying.bytes.len() / SECTOR_BYTES - 1) as u64) as usize;
                self.writes_completed += 1;
                self.write(flash / SECTOR_BYTES as u64, &flying.bytes[..flying.moved * SECTOR_BYTES], fua);
            }
            _ => unreachable!("only reads and writes are long"),
        }
    }

    /// Makes a command take effect.
    fn complete(&mut self, done: &InFlight, memory: &PairMemory) -> Completion {
        let (tag, fails) = (done.command.tag, matches!(done.fate, Fate::Fails | Fate::NoSpace));
        let moved = done.moved * SECTOR_BYTES;
        match done.command.operation {
            Operation::Read { flash, local: offset, length } => {
                // SAFETY: it is in flight, so by the word of who submitted it they are ours alone.
                let into = &mut unsafe { read_into(memory, offset, length) }[moved..];
                assert!(
                    into.as_chunks::<SECTOR_BYTES>().0.iter().all(|sector| *sector == [RUBBISH; SECTOR_BYTES]),
                    "local memory at {offset}+{length} was touched while a read into it was in flight"
                );
                if fails {
                    let part = self.random.below((into.len() / SECTOR_BYTES) as u64) as usize * SECTOR_BYTES;
                    self.read(flash, &mut into[..part]);
                    return Completion::failed(tag, libc::EIO);
                }
                self.read(flash + moved as u64, into);
            }
            Operation::Write { flash, from, length, fua } => {
                // SAFETY: it is in flight, so by the word of who submitted it nobody writes them.
                let bytes = unsafe { written_from(memory, from, length) };
                assert!(
                    *bytes == *done.bytes,
                    "memory at {from:?}+{length} was touched while a write from it was in flight"
                );
                self.writes_completed += 1;
                let first = flash / SECTOR_BYTES as u64;
                if fails {
                    self.write_any(first, &done.bytes);
                    let errno = if done.fate == Fate::NoSpace { libc::ENOSPC } else { libc::EIO };
                    return Completion::failed(tag, errno);
                }
                let (first, bytes) = (first + done.moved as u64, &done.bytes[moved..]);
                match self.draw_place(first, (bytes.len() / SECTOR_BYTES) as u64) {
                    Some(place) if place == first => self.write(first, bytes, fua),
                    astray => self.write_astray(first, astray, bytes, fua),
                }
            }
            Operation::Flush if fails => {
                self.image.fail_flush(done.writes_before, &mut self.random);
                return Completion::failed(tag, libc::EIO);
            }
            Operation::Flush => self.image.flush(done.writes_before),
            Operation::Discard { flash, length } => {
                self.writes_completed += 1;
                let sector_bytes = SECTOR_BYTES as u64;
                for sector in flash / sector_bytes..(flash + length) / sector_bytes {
                    if self.random.one_in(2) {
                        self.image.write(sector, &[0; SECTOR_BYTES], self.writes_completed);
                    }
                }
            }
            Operation::Execute { .. }
            | Operation::Pipeline { .. }
            | Operation::Compute { .. }
            | Operation::Cancel { .. }
            | Operation::Identify { .. } => {
                return Completion::new(tag, Status::Unsupported);
            }
        }
        Completion::success(tag)
    }

    fn read(&mut self, flash: u64, into: &mut [u8]) {
        let sectors = self.sectors(flash, into.len() as u64);
        self.image.read_run(sectors.start, into);
        self.report.reads_damaged += u64::from(self.image.is_damaged(sectors));
    }

    fn write(&mut self, first: u64, bytes: &[u8], fua: bool) {
        for (sector, bytes) in (first..).zip(bytes.as_chunks::<SECTOR_BYTES>().0) {
            if fua {
                self.image.write_durable(sector, bytes);
            } else {
                self.image.write(sector, bytes, self.writes_completed);
            }
        }
    }

    /// A failed write: any of its sectors may be written.
    fn write_any(&mut self, first: u64, bytes: &[u8]) {
        for (sector, bytes) in (first..).zip(bytes.as_chunks::<SECTOR_BYTES>().0) {
            if self.random.one_in(2) {
                self.image.write(sector, bytes, self.writes_completed);
            }
        }
    }

    /// A write whose bytes go to another place, or nowhere.
    fn write_astray(&mut self, first: u64, astray: Option<u64>, bytes: &[u8], fua: bool) {
        let sectors = (bytes.len() / SECTOR_BYTES) as u64;
        if let Some(place) = astray {
            self.write(place, bytes, fua);
            (place..place + sectors).for_each(|sector| self.damage(sector));
        }
        let elsewhere = astray.map_or(0..0, |place| place..place + sectors);
        (first..first + sectors).filter(|sector| !elsewhere.contains(sector)).for_each(|sector| self.damage(sector));
    }
}

/// The address where a command's range begins.
fn place_of(memory: &PairMemory, at: MemoryAddress, length: u32) -> NonNull<u8> {
    memory.pointer(at, length).unwrap_or_else(|| panic!("a range at {at:?}+{length} passed the queue pair"))
}

/// The bytes that a read fills.
///
/// # Safety
/// Nobody else reads or writes them while they are borrowed.
#[allow(clippy::mut_from_ref)] // The borrow is of the mapping; whose the bytes are is the caller's word.
unsafe fn read_into(memory: &PairMemory, offset: u64, length: u32) -> &mut [u8] {
    let place = place_of(memory, MemoryAddress::local(offset), length);
    // SAFETY: inside local memory, which outlives the borrow; ours alone by our caller's word.
    unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), length as usize) }
}

/// The bytes that a write takes.
///
/// # Safety
/// Nobody writes them while they are borrowed.
unsafe fn written_from(memory: &PairMemory, from: MemoryAddress, length: u32) -> &[u8] {
    // SAFETY: inside its region, which outlives the borrow; written by nobody by our caller's word.
    unsafe { std::slice::from_raw_parts(place_of(memory, from, length).as_ptr(), length as usize) }
}
