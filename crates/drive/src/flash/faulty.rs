//! Flash that fails as real drives do, decided by a seed: for simulations and tests.
//!
//! - Commands complete in random order, some later than others.
//! - A completed write sits in a volatile cache until a flush submitted after its completion, unless it forces unit
//!   access. A crash loses, keeps or tears it at a grain of 512 bytes, together with the writes still in flight.
//! - Reads, writes and flushes fail when told to, or by chance. A failed write leaves any of its sectors written; a
//!   failed flush leaves writes that no later flush saves, though reads still see them.
//! - A discarded sector keeps its bytes or turns to zero.
//! - Local memory is watched: a command's owner that touches its range before the completion panics here. What a read
//!   will fill holds rubbish until then.
//!
//! All of it is one state behind a mutex, shared by clones and queues, and driven by one thread: the same seed and the
//! same calls give the same run, to which [`FaultyFlash::trace_hash`] testifies.

mod image;

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Flash, FlashError, FlashQueue};
use crate::command::{Command, Completion, LocalRange, Opcode, Operation, Status};
use crate::env::SplitMix64;
use crate::local_memory::LocalMemory;
use image::{Image, SECTOR_BYTES, Sector};

/// What a read's range holds until the read completes.
const RUBBISH: u8 = 0xa5;

/// Kinds of events in the trace.
const SUBMITTED: u64 = 0;
const COMPLETED: u64 = 1;
const FAILED: u64 = 2;

/// How often commands fail by chance: one in so many, never where zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub read_one_in: u64,
    pub write_one_in: u64,
    pub flush_one_in: u64,
}

/// What a crash did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashReport {
    /// A write in flight did not survive whole.
    pub lost_or_torn: bool,
    pub commands_in_flight: u64,
    /// Of these, writes of which nothing survived, a part, all.
    pub writes_lost: u64,
    pub writes_torn: u64,
    pub writes_kept: u64,
    /// Sectors that completed writes had left in the cache, and how many of them did not survive.
    pub sectors_unsynced: u64,
    pub sectors_unsynced_lost: u64,
}

/// A flash to crash. Clones share it.
#[derive(Clone)]
pub struct FaultyFlash {
    state: Arc<Mutex<State>>,
}

struct State {
    capacity_bytes: u64,
    image: Image,
    random: SplitMix64,
    faults: Faults,
    /// The nth command of an opcode from now, counting from one.
    to_fail: Vec<(Opcode, u64)>,
    in_flight: Vec<InFlight>,
    queues: u64,
    writes_completed: u64,
    events: u64,
    crash_at_event: Option<u64>,
    crashed: Option<CrashReport>,
    trace: u64,
}

struct InFlight {
    queue: u64,
    command: Command,
    fails: bool,
    /// Of a write, its bytes. Of a flush, nothing.
    bytes: Vec<u8>,
    /// Writes completed when this was submitted: what a flush covers.
    writes_before: u64,
}

impl FaultyFlash {
    /// A flash of zeros, `capacity_bytes` rounded down to 512, that fails only in a crash.
    pub fn new(capacity_bytes: u64, seed: u64) -> FaultyFlash {
        let capacity_bytes = capacity_bytes - capacity_bytes % SECTOR_BYTES as u64;
        FaultyFlash::with_image(capacity_bytes, Image::default(), SplitMix64::new(seed), Faults::default(), 0)
    }

    fn with_image(capacity_bytes: u64, image: Image, random: SplitMix64, faults: Faults, trace: u64) -> FaultyFlash {
        let state = State {
            capacity_bytes,
            image,
            random,
            faults,
            to_fail: Vec::new(),
            in_flight: Vec::new(),
            queues: 0,
            writes_completed: 0,
            events: 0,
            crash_at_event: None,
            crashed: None,
            trace,
        };
        FaultyFlash { state: Arc::new(Mutex::new(state)) }
    }

    /// From now on, commands fail by chance.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// The `nth` command of this opcode submitted from now fails with EIO; the next one is the first.
    pub fn fail_nth(&self, opcode: Opcode, nth: u64) {
        assert!(nth > 0, "commands count from one");
        self.lock().to_fail.push((opcode, nth));
    }

    /// Cuts the power at the `nth` event from now; an event is a submission or a completion, the next one is the
    /// first. That command, all others in flight and all later ones never complete.
    pub fn crash_after(&self, nth: u64) {
        assert!(nth > 0, "events count from one");
        let mut state = self.lock();
        state.crash_at_event = Some(state.events + nth);
    }

    /// Cuts the power now, if it is not cut already.
    pub fn crash(&self) -> CrashReport {
        self.lock().crash()
    }

    pub fn crashed(&self) -> bool {
        self.crash_report().is_some()
    }

    pub fn crash_report(&self) -> Option<CrashReport> {
        self.lock().crashed
    }

    /// The flash as the next start finds it after a crash: the surviving bytes, the same faults, and the seed's stream
    /// and the trace going on. Only one such flash can be taken; this one stays dead.
    pub fn reopen(&self) -> FaultyFlash {
        let mut state = self.lock();
        assert!(state.crashed.is_some(), "only a crashed flash is reopened; share this one instead");
        let image = std::mem::take(&mut state.image);
        let random = SplitMix64::new(state.random.next_u64());
        FaultyFlash::with_image(state.capacity_bytes, image, random, state.faults, state.trace)
    }

    /// Submissions and completions so far.
    pub fn events(&self) -> u64 {
        self.lock().events
    }

    /// Writes submitted and not completed: what a crash now may lose or tear.
    pub fn writes_in_flight(&self) -> usize {
        let is_write = |flying: &&InFlight| matches!(flying.command.operation, Operation::Write { .. });
        self.lock().in_flight.iter().filter(is_write).count()
    }

    /// A digest of all submissions and completions with their bytes: two runs that did the same have the same.
    pub fn trace_hash(&self) -> u64 {
        self.lock().trace
    }

    /// What a read would see.
    pub fn peek(&self, flash: u64, length: u64) -> Vec<u8> {
        let state = self.lock();
        state.sectors(flash, length).flat_map(|sector| state.image.read(sector)).collect()
    }

    /// Rot: changes durable bytes behind everyone's back, by flipping bits of `flash`'s byte.
    pub fn flip(&self, flash: u64, bits: u8) {
        let mut state = self.lock();
        assert!(flash < state.capacity_bytes, "byte {flash} of {}", state.capacity_bytes);
        let (sector, at) = (flash / SECTOR_BYTES as u64, flash as usize % SECTOR_BYTES);
        let mut bytes = state.image.read(sector);
        bytes[at] ^= bits;
        state.image.write_durable(sector, &bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flash for FaultyFlash {
    fn capacity_bytes(&self) -> u64 {
        self.lock().capacity_bytes
    }

    /// At once, and durable; a flash without power stays as it is.
    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        let mut state = self.lock();
        if state.crashed.is_none() {
            let capacity_bytes = capacity_bytes.next_multiple_of(SECTOR_BYTES as u64);
            state.capacity_bytes = state.capacity_bytes.max(capacity_bytes);
            state.trace = mix(state.trace, &state.capacity_bytes.to_le_bytes());
        }
        Ok(())
    }

    fn sector_bytes(&self) -> u32 {
        SECTOR_BYTES as u32
    }

    fn describe(&self) -> String {
        format!("faulty memory for tests, {} bytes", self.capacity_bytes())
    }

    fn open_queue(&self, local: &LocalMemory, _depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        let mut state = self.lock();
        state.queues += 1;
        let number = state.queues;
        Ok(Box::new(FaultyQueue { flash: self.clone(), local: local.clone(), number, impatient: false }))
    }
}

impl State {
    fn sectors(&self, flash: u64, length: u64) -> std::ops::Range<u64> {
        let sector_bytes = SECTOR_BYTES as u64;
        assert!(
            flash.is_multiple_of(sector_bytes)
                && length.is_multiple_of(sector_bytes)
                && flash.checked_add(length).is_some_and(|end| end <= self.capacity_bytes),
            "{flash}+{length} of {}",
            self.capacity_bytes
        );
        flash / sector_bytes..(flash + length) / sector_bytes
    }

    /// Counts an event; true when the power is off, before it takes effect.
    fn event(&mut self, command: &Command, kind: u64) -> bool {
        self.events += 1;
        self.trace = mix(mix(self.trace, &command.encode()), &kind.to_le_bytes());
        if self.crash_at_event.is_some_and(|at| self.events >= at) {
            self.crash();
        }
        self.crashed.is_some()
    }

    fn draw_failure(&mut self, opcode: Opcode) -> bool {
        let one_in = match opcode {
            Opcode::Read => self.faults.read_one_in,
            Opcode::Write => self.faults.write_one_in,
            Opcode::Flush => self.faults.flush_one_in,
            Opcode::Discard | Opcode::Execute | Opcode::Pipeline => 0,
        };
        let mut fails = self.random.one_in(one_in);
        self.to_fail.retain_mut(|(to_fail, nth)| {
            if *to_fail == opcode {
                *nth -= 1;
                fails |= *nth == 0;
            }
            *nth > 0
        });
        fails
    }

    fn crash(&mut self) -> CrashReport {
        if let Some(report) = self.crashed {
            return report;
        }
        let mut report = CrashReport { commands_in_flight: self.in_flight.len() as u64, ..CrashReport::default() };
        (report.sectors_unsynced, report.sectors_unsynced_lost) = self.image.crash(&mut self.random);
        let mut in_flight = std::mem::take(&mut self.in_flight);
        shuffle(&mut in_flight, &mut self.random);
        for InFlight { command, bytes, .. } in in_flight {
            let Operation::Write { flash, .. } = command.operation else { continue };
            let kept = self.image.crash_write(flash / SECTOR_BYTES as u64, &bytes, &mut self.random);
            match kept as usize * SECTOR_BYTES {
                0 => report.writes_lost += 1,
                kept if kept == bytes.len() => report.writes_kept += 1,
                _ => report.writes_torn += 1,
            }
        }
        report.lost_or_torn = report.writes_lost + report.writes_torn > 0;
        self.crashed = Some(report);
        report
    }

    /// Lets a command take effect.
    fn complete(&mut self, done: &InFlight, local: &LocalMemory) -> Completion {
        let tag = done.command.tag;
        match done.command.operation {
            Operation::Read { flash, local: offset, length } => {
                let into = local_bytes(local, offset, length);
                assert!(
                    into.as_chunks::<SECTOR_BYTES>().0.iter().all(|sector| *sector == [RUBBISH; SECTOR_BYTES]),
                    "local memory at {offset}+{length} was touched while a read into it was in flight"
                );
                if done.fails {
                    return Completion::failed(tag, libc::EIO);
                }
                let first = flash / SECTOR_BYTES as u64;
                for (sector, into) in (first..).zip(into.as_chunks_mut::<SECTOR_BYTES>().0) {
                    *into = self.image.read(sector);
                    self.trace = mix(self.trace, into);
                }
            }
            Operation::Write { flash, local: offset, length, fua } => {
                assert!(
                    *local_bytes(local, offset, length) == *done.bytes,
                    "local memory at {offset}+{length} was touched while a write from it was in flight"
                );
                self.writes_completed += 1;
                let first = flash / SECTOR_BYTES as u64;
                for (sector, bytes) in (first..).zip(done.bytes.as_chunks::<SECTOR_BYTES>().0) {
                    self.write_sector(sector, bytes, fua, done.fails);
                }
                if done.fails {
                    return Completion::failed(tag, libc::EIO);
                }
            }
            Operation::Flush if done.fails => {
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
            Operation::Execute { .. } | Operation::Pipeline { .. } => {
                return Completion::new(tag, Status::Unsupported);
            }
        }
        Completion::success(tag)
    }

    fn write_sector(&mut self, sector: u64, bytes: &Sector, fua: bool, fails: bool) {
        if fails {
            if self.random.one_in(2) {
                self.image.write(sector, bytes, self.writes_completed);
            }
        } else if fua {
            self.image.write_durable(sector, bytes);
        } else {
            self.image.write(sector, bytes, self.writes_completed);
        }
    }
}

struct FaultyQueue {
    flash: FaultyFlash,
    local: LocalMemory,
    number: u64,
    /// Somebody waits: the next poll completes something.
    impatient: bool,
}

impl FlashQueue for FaultyQueue {
    fn submit(&mut self, command: &Command) {
        let mut state = self.flash.lock();
        if state.crashed.is_some() {
            return;
        }
        let bytes = match command.operation {
            Operation::Write { local, length, .. } => local_bytes(&self.local, local, length).to_vec(),
            Operation::Read { local, length, .. } => {
                local_bytes(&self.local, local, length).fill(RUBBISH);
                Vec::new()
            }
            _ => Vec::new(),
        };
        let fails = state.draw_failure(command.operation.opcode());
        let writes_before = state.writes_completed;
        state.trace = mix(state.trace, &bytes);
        state.in_flight.push(InFlight { queue: self.number, command: *command, fails, bytes, writes_before });
        state.event(command, SUBMITTED);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let mut state = self.flash.lock();
        let state = &mut *state;
        let mut mine: Vec<usize> =
            (0..state.in_flight.len()).filter(|&place| state.in_flight[place].queue == self.number).collect();
        if mine.is_empty() {
            return;
        }
        shuffle(&mut mine, &mut state.random);
        let count = state.random.below(mine.len() as u64 + 1).max(u64::from(self.impatient));
        self.impatient = false;
        mine.truncate(count as usize);
        for turn in 0..mine.len() {
            let place = mine[turn];
            let command = state.in_flight[place].command;
            let kind = if state.in_flight[place].fails { FAILED } else { COMPLETED };
            if state.event(&command, kind) {
                return; // It was still in flight when the power went.
            }
            let done = state.in_flight.swap_remove(place);
            let moved = state.in_flight.len();
            mine[turn..].iter_mut().filter(|later| **later == moved).for_each(|later| *later = place);
            completions.push(state.complete(&done, &self.local));
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
    /// Each command in flight takes effect or does not; nobody is told, and local memory is left alone.
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
                && state.random.one_in(2)
            {
                state.writes_completed += 1;
                let first = flash / SECTOR_BYTES as u64;
                for (sector, bytes) in (first..).zip(dropped.bytes.as_chunks::<SECTOR_BYTES>().0) {
                    state.image.write(sector, bytes, state.writes_completed);
                }
            }
        }
    }
}

/// A command's range, which the queue pair has checked.
#[allow(clippy::mut_from_ref)] // Local memory is shared with the drive by rule, not by borrow.
fn local_bytes(local: &LocalMemory, offset: u64, length: u32) -> &mut [u8] {
    let Some(memory) = local.pointer(LocalRange { offset, length }) else {
        panic!("local range {offset}+{length} passed the queue pair");
    };
    // SAFETY: inside local memory, which outlives the borrow; the drive's own while the command is in flight, and the
    // simulation has one thread.
    unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), length as usize) }
}

fn shuffle<T>(items: &mut [T], random: &mut SplitMix64) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last as u64 + 1) as usize);
    }
}

/// Folds bytes into a digest: every word changes all bits of what follows.
fn mix(digest: u64, bytes: &[u8]) -> u64 {
    let fold = |digest: u64, word: u64| (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let digest = words.iter().fold(digest, |digest, word| fold(digest, u64::from_le_bytes(*word)));
    fold(fold(digest, u64::from_le_bytes(last)), bytes.len() as u64)
}

#[cfg(test)]
mod tests;
