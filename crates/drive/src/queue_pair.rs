//! The drive and its queue pairs.
//!
//! A [`Drive`] is shared; a [`QueuePair`] belongs to one thread at a time. A queue pair checks every command before a
//! backend sees it, so backends trust their ranges; it runs programs inline, on the thread that submits; it gives
//! commands tags of its own below (a place in `slots`), so that it can time them and callers may use any tag twice.

use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::command::{Command, Completion, LocalRange, Opcode, Operation, Status};
use crate::counters::{CountersSnapshot, QueueCounters};
use crate::env::Env;
use crate::flash::{Flash, FlashQueue};
use crate::local_memory::{LocalBuffer, LocalMemory};
use crate::locks::whole;
use crate::program::Program;

/// The most commands that one queue pair has in flight.
pub const COMMANDS_MAX: usize = 1 << 20;
/// One in this many `Execute` commands is timed.
const EXECUTE_TIMED_EVERY: u64 = 16;

/// A computational storage drive: flash, local memory, programs. Clones share it.
#[derive(Clone)]
pub struct Drive {
    parts: Arc<DriveParts>,
}

struct DriveParts {
    flash: Arc<dyn Flash>,
    local: LocalMemory,
    programs: Arc<[Box<dyn Program>]>,
    env: Env,
    /// One for each queue pair that was ever open at the same time as the others. The list holds one reference; a
    /// queue pair holds the second, so a count of one means free for the next.
    counters: Mutex<Vec<Arc<QueueCounters>>>,
}

impl Drive {
    /// A program's id is its place in `programs`.
    pub fn new(flash: Arc<dyn Flash>, local: LocalMemory, programs: Vec<Box<dyn Program>>, env: Env) -> Drive {
        assert!(programs.len() <= usize::from(u16::MAX) + 1, "{} programs do not fit their ids", programs.len());
        Drive::of(flash, local, programs.into(), env)
    }

    fn of(flash: Arc<dyn Flash>, local: LocalMemory, programs: Arc<[Box<dyn Program>]>, env: Env) -> Drive {
        Drive { parts: Arc::new(DriveParts { flash, local, programs, env, counters: Mutex::new(Vec::new()) }) }
    }

    /// Another drive over `flash` with the local memory, programs and clock of this one. Its counters begin at zero.
    pub fn with_flash(&self, flash: Arc<dyn Flash>) -> Drive {
        let DriveParts { local, programs, env, .. } = &*self.parts;
        Drive::of(flash, local.clone(), programs.clone(), env.clone())
    }

    /// Opens a queue pair that runs about `depth` flash commands at once. More may be submitted; they wait inside.
    ///
    /// # Errors
    /// The operating system's, when it has no more rings, threads or descriptors to give.
    pub fn queue_pair(&self, depth: u32) -> io::Result<QueuePair> {
        Ok(self.pair(self.parts.flash.open_queue(&self.parts.local, depth.max(1))?))
    }

    /// As [`Drive::queue_pair`], for one thread alone: the first that polls it or waits on it must be the one that does so
    /// from then on, and drops it. Completions cost less that way.
    ///
    /// # Errors
    /// As [`Drive::queue_pair`].
    pub fn queue_pair_of_one_thread(&self, depth: u32) -> io::Result<QueuePair> {
        Ok(self.pair(self.parts.flash.open_queue_of_one_thread(&self.parts.local, depth.max(1))?))
    }

    fn pair(&self, queue: Box<dyn FlashQueue>) -> QueuePair {
        let parts = &self.parts;
        let counters = {
            let mut all = whole(parts.counters.lock());
            match all.iter().find(|counters| Arc::strong_count(counters) == 1) {
                Some(free) => free.clone(),
                None => {
                    let fresh = Arc::new(QueueCounters::new());
                    all.push(fresh.clone());
                    fresh
                }
            }
        };
        QueuePair {
            queue,
            counters,
            capacity_bytes: parts.flash.capacity_bytes(),
            sector_mask: u64::from(parts.flash.sector_bytes()) - 1,
            drive: self.clone(),
            slots: Vec::new(),
            slots_free: Vec::new(),
            done: Vec::new(),
            in_flash: 0,
            started_us: None,
            executed: 0,
        }
    }

    pub fn local(&self) -> &LocalMemory {
        &self.parts.local
    }

    pub fn flash(&self) -> &Arc<dyn Flash> {
        &self.parts.flash
    }

    pub fn env(&self) -> &Env {
        &self.parts.env
    }

    pub fn counters(&self) -> CountersSnapshot {
        let mut snapshot = CountersSnapshot::default();
        for counters in whole(self.parts.counters.lock()).iter() {
            counters.add_to(&mut snapshot);
        }
        snapshot
    }
}

/// A command that the flash queue holds. `length` is zero for what moves no bytes.
#[derive(Clone, Copy)]
struct Slot {
    tag: u64,
    opcode: Opcode,
    length: u32,
    submitted_us: u64,
}

/// Submission and completion of commands to one drive. Dropping it waits for what is in flight.
pub struct QueuePair {
    // First, so that it is dropped, and its commands are over, before anything they use goes.
    queue: Box<dyn FlashQueue>,
    drive: Drive,
    counters: Arc<QueueCounters>,
    capacity_bytes: u64,
    sector_mask: u64,
    slots: Vec<Slot>,
    slots_free: Vec<u32>,
    /// What ended without the flash queue: programs, and commands refused.
    done: Vec<Completion>,
    in_flash: usize,
    /// When the commands were submitted that the next `poll` or `wait` starts: one clock for all of them.
    started_us: Option<u64>,
    executed: u64,
}

impl QueuePair {
    /// Takes a command; never blocks and never fails: what is wrong with it comes out as its completion. Flash commands
    /// start at the next `poll` or `wait`. A program runs now, and its completion comes out of the next `poll`.
    ///
    /// # Safety
    /// From here until `poll` has given the completion, or this queue pair is dropped, and however the caller ends:
    /// - what the command writes (of a `Read` the range, of an `Execute` the output) nobody else reads, writes or frees;
    /// - what it reads (of a `Write` the range, of an `Execute` parameters and input) nobody writes or frees.
    ///
    /// # Panics
    /// When [`COMMANDS_MAX`] commands are in flight: whoever submits has a limit of its own.
    pub unsafe fn submit(&mut self, command: Command) {
        assert!(self.in_flight() < COMMANDS_MAX, "{COMMANDS_MAX} commands are in flight on one queue pair");
        match command.operation {
            // SAFETY: the ranges are nobody's but the drive's by our caller's word.
            Operation::Execute { .. } => unsafe { self.execute(command) },
            Operation::Pipeline { .. } => self.done_now(command, Completion::new(command.tag, Status::Unsupported)),
            _ if !self.is_valid(&command.operation) && !self.is_valid_by_now(&command.operation) => {
                self.done_now(command, Completion::new(command.tag, Status::InvalidField));
            }
            // SAFETY: the ranges are inside flash and local memory, and nobody's but the drive's by our caller's word.
            _ => unsafe { self.submit_to_flash(command) },
        }
        self.counters.depth(self.in_flight() as u64);
    }

    /// Submits a `Flush`.
    pub fn submit_flush(&mut self, tag: u64) {
        // SAFETY: a flush names no memory.
        unsafe { self.submit(Command { tag, operation: Operation::Flush }) };
    }

    /// Starts what was submitted, appends what is done, and says how many that was. Never blocks. The order is the
    /// drive's.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let first = completions.len();
        completions.append(&mut self.done);
        self.started_us = None;
        if self.in_flash > 0 {
            let first_of_flash = completions.len();
            self.queue.poll(completions);
            self.account(&mut completions[first_of_flash..]);
        }
        let count = completions.len() - first;
        if count > 0 {
            self.counters.depth(self.in_flight() as u64);
        }
        count
    }

    /// Blocks until `poll` has something, the timeout ends, or nothing is in flight. May return early for no reason.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        self.started_us = None;
        if self.done.is_empty() && self.in_flash > 0 {
            self.queue.wait(timeout);
        }
    }

    /// Waits until the drive has let go of everything that was submitted, and drops what comes.
    pub fn drain(&mut self) {
        let mut completions = Vec::new();
        while self.in_flight() > 0 {
            self.wait(Some(Duration::from_millis(10)));
            completions.clear();
            if self.poll(&mut completions) == 0 && self.event_fd().is_none() {
                // A simulated drive that stopped never answers, and never writes either.
                return;
            }
        }
    }

    /// A descriptor that polls readable while flash completions are there, for `epoll`. Before sleeping on it, `poll`
    /// until that gives nothing: it neither speaks of programs run nor of commands not started. `None` where there is
    /// nothing to sleep for: keep polling.
    pub fn event_fd(&self) -> Option<RawFd> {
        self.queue.event_fd()
    }

    /// Commands submitted whose completions `poll` has not given yet.
    pub fn in_flight(&self) -> usize {
        self.in_flash + self.done.len()
    }

    /// The explicit step by which a result leaves the drive: appends bytes of a buffer, counting them.
    pub fn copy_to_host(&self, buffer: &LocalBuffer, bytes: Range<usize>, into: &mut Vec<u8>) {
        self.counters.moved_local_to_host(bytes.len() as u64);
        into.extend_from_slice(&buffer.bytes()[bytes]);
    }

    /// [`QueuePair::copy_to_host`] of a few bytes whose number is known.
    pub fn copy_array_to_host<const N: usize>(&self, buffer: &LocalBuffer, at: usize) -> [u8; N] {
        self.counters.moved_local_to_host(N as u64);
        let mut bytes = [0; N];
        bytes.copy_from_slice(&buffer.bytes()[at..at + N]);
        bytes
    }

    pub fn drive(&self) -> &Drive {
        &self.drive
    }

    fn is_valid(&self, operation: &Operation) -> bool {
        let flash_is_valid = |flash: u64, length: u64| {
            length > 0
                && (flash | length) & self.sector_mask == 0
                && flash.checked_add(length).is_some_and(|end| end <= self.capacity_bytes)
        };
        match *operation {
            Operation::Read { flash, local, length } | Operation::Write { flash, local, length, .. } => {
                flash_is_valid(flash, u64::from(length))
                    && local & self.sector_mask == 0
                    && self.drive.parts.local.pointer(LocalRange { offset: local, length }).is_some()
            }
            Operation::Discard { flash, length } => flash_is_valid(flash, length),
            Operation::Flush => true,
            Operation::Execute { .. } | Operation::Pipeline { .. } => false,
        }
    }

    /// The flash may have grown since its size was last asked.
    fn is_valid_by_now(&mut self, operation: &Operation) -> bool {
        self.capacity_bytes = self.drive.parts.flash.capacity_bytes();
        self.is_valid(operation)
    }

    /// # Safety
    /// As [`FlashQueue::submit`].
    unsafe fn submit_to_flash(&mut self, command: Command) {
        let length = match command.operation {
            Operation::Read { length, .. } | Operation::Write { length, .. } => length,
            _ => 0,
        };
        let slot = Slot {
            tag: command.tag,
            opcode: command.operation.opcode(),
            length,
            submitted_us: *self.started_us.get_or_insert_with(|| self.drive.parts.env.now_us()),
        };
        let place = match self.slots_free.pop() {
            Some(place) => {
                self.slots[place as usize] = slot;
                place
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        };
        self.in_flash += 1;
        // SAFETY: by our caller's word.
        unsafe { self.queue.submit(&Command { tag: u64::from(place), operation: command.operation }) };
    }

    /// Gives flash completions their callers' tags back, and counts them.
    fn account(&mut self, completions: &mut [Completion]) {
        if completions.is_empty() {
            return;
        }
        let now_us = self.drive.parts.env.now_us();
        for completion in completions {
            let slot = self.slots[completion.tag as usize];
            self.slots_free.push(completion.tag as u32);
            self.in_flash -= 1;
            completion.tag = slot.tag;
            self.counters.completed(slot.opcode, completion.status);
            self.counters.latency(slot.opcode, now_us.saturating_sub(slot.submitted_us));
            match (slot.opcode, completion.status) {
                (Opcode::Read, Status::Success) => self.counters.moved_flash_to_local(u64::from(slot.length)),
                (Opcode::Write, Status::Success) => self.counters.moved_local_to_flash(u64::from(slot.length)),
                _ => {}
            }
        }
    }

    /// # Safety
    /// As [`QueuePair::submit`].
    unsafe fn execute(&mut self, command: Command) {
        let timed_from_us = self.executed.is_multiple_of(EXECUTE_TIMED_EVERY).then(|| self.drive.parts.env.now_us());
        self.executed += 1;
        // SAFETY: by our caller's word.
        let completion = unsafe { self.run_program(&command) };
        if let Some(from_us) = timed_from_us {
            self.counters.latency(Opcode::Execute, self.drive.parts.env.now_us() - from_us);
        }
        self.done_now(command, completion);
    }

    /// # Safety
    /// As [`QueuePair::submit`].
    unsafe fn run_program(&self, command: &Command) -> Completion {
        let parts = &self.drive.parts;
        let Operation::Execute { program, parameters, input, output } = command.operation else {
            return Completion::new(command.tag, Status::Unsupported);
        };
        let Some(program) = parts.programs.get(usize::from(program.0)) else {
            return Completion::new(command.tag, Status::Unsupported);
        };
        let places = (parts.local.pointer(parameters), parts.local.pointer(input), parts.local.pointer(output));
        let (Some(parameters_at), Some(input_at), Some(output_at)) = places else {
            return Completion::new(command.tag, Status::InvalidField);
        };
        if overlap(parameters, output) || overlap(input, output) {
            return Completion::new(command.tag, Status::InvalidField);
        }
        // SAFETY: all three are inside local memory, which lives as long as the drive; the output overlaps neither
        // input; and by our caller's word nobody writes these or touches that until this command completes.
        let (status, result) = unsafe {
            program.run(
                std::slice::from_raw_parts(parameters_at.as_ptr(), parameters.length as usize),
                std::slice::from_raw_parts(input_at.as_ptr(), input.length as usize),
                std::slice::from_raw_parts_mut(output_at.as_ptr(), output.length as usize),
            )
        };
        assert_ne!(status, Status::Program(0), "program {} gave zero, which is success", program.name());
        Completion { tag: command.tag, status, errno: 0, result }
    }

    fn done_now(&mut self, command: Command, completion: Completion) {
        self.counters.completed(command.operation.opcode(), completion.status);
        self.done.push(completion);
    }
}

/// Both ranges are known to be inside local memory, so their ends do not overflow.
fn overlap(one: LocalRange, other: LocalRange) -> bool {
    let end = |range: LocalRange| range.offset + u64::from(range.length);
    one.length > 0 && other.length > 0 && one.offset < end(other) && other.offset < end(one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::ProgramId;
    use crate::flash::memory::MemoryFlash;

    /// Output = input with every byte plus the first parameter; result = bytes, sum.
    struct AddByte;

    impl Program for AddByte {
        fn run(&self, parameters: &[u8], input: &[u8], output: &mut [u8]) -> (Status, [u64; 2]) {
            let Some(&by) = parameters.first() else { return (Status::Program(1), [0; 2]) };
            let mut sum = 0;
            for (to, from) in output.iter_mut().zip(input) {
                *to = from.wrapping_add(by);
                sum += u64::from(*to);
            }
            (Status::Success, [output.len() as u64, sum])
        }

        fn name(&self) -> &'static str {
            "add-byte"
        }
    }

    fn drive() -> Drive {
        let local = LocalMemory::new(1 << 20).unwrap();
        Drive::new(Arc::new(MemoryFlash::new(1 << 20)), local, vec![Box::new(AddByte)], Env::simulated(1).0)
    }

    fn run(pair: &mut QueuePair, operation: Operation) -> Completion {
        // SAFETY: no test here touches a buffer before this returns.
        unsafe { pair.submit(Command { tag: 77, operation }) };
        let mut completions = Vec::new();
        while pair.poll(&mut completions) == 0 {
            pair.wait(None);
        }
        assert_eq!((completions.len(), completions[0].tag, pair.in_flight()), (1, 77, 0));
        completions[0]
    }

    #[test]
    fn a_program_reads_what_was_written() {
        let drive = drive();
        let mut pair = drive.queue_pair(4).unwrap();
        let mut input = drive.local().allocate(4096).unwrap();
        input.bytes_mut().fill(5);
        let mut parameters = drive.local().allocate(1).unwrap();
        parameters.bytes_mut()[0] = 2;
        let output = drive.local().allocate(4096).unwrap();
        let execute = |parameters| Operation::Execute {
            program: ProgramId(0),
            parameters,
            input: input.range(),
            output: output.range(),
        };
        let completion = run(&mut pair, execute(parameters.range()));
        assert_eq!((completion.status, completion.result), (Status::Success, [4096, 7 * 4096]));
        let mut host = vec![1];
        pair.copy_to_host(&output, 0..2, &mut host);
        assert_eq!(host, [1, 7, 7]);
        assert_eq!(drive.counters().local_to_host_bytes, 2);
        assert_eq!(run(&mut pair, execute(LocalRange::EMPTY)).status, Status::Program(1));
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        let drive = drive();
        let mut pair = drive.queue_pair(4).unwrap();
        let range = |offset, length| LocalRange { offset, length };
        let execute = |program, parameters, input, output| Operation::Execute {
            program: ProgramId(program),
            parameters,
            input,
            output,
        };
        let ok = range(0, 8);
        let unsupported = [execute(1, ok, ok, range(8, 8)), Operation::Pipeline { stages: ok }];
        let invalid = [
            execute(0, ok, range(1 << 20, 1), range(8, 8)),
            execute(0, ok, range(8, 8), range(15, 8)),
            execute(0, range(8, 8), ok, range(15, 8)),
            Operation::Discard { flash: 0, length: 0 },
            Operation::Discard { flash: 512, length: 1 << 20 },
            Operation::Discard { flash: 100, length: 512 },
        ];
        for operation in unsupported {
            assert_eq!(run(&mut pair, operation).status, Status::Unsupported, "{operation:?}");
        }
        for operation in invalid {
            assert_eq!(run(&mut pair, operation).status, Status::InvalidField, "{operation:?}");
        }
        assert_eq!(drive.counters().opcode(Opcode::Discard).failed, 3);
    }

    #[test]
    fn counters_outlive_their_queue_pair() {
        let drive = drive();
        let buffer = drive.local().allocate(4096).unwrap();
        let write = Operation::Write { flash: 0, local: buffer.offset(), length: 4096, fua: false };
        let read = Operation::Read { flash: 0, local: buffer.offset(), length: 512 };
        for _ in 0..3 {
            let mut pair = drive.queue_pair(4).unwrap();
            assert!(run(&mut pair, write).is_success() && run(&mut pair, read).is_success());
        }
        let snapshot = drive.counters();
        assert_eq!((snapshot.local_to_flash_bytes, snapshot.flash_to_local_bytes), (3 * 4096, 3 * 512));
        assert_eq!(snapshot.opcode(Opcode::Write).completed, 3);
        assert_eq!(snapshot.opcode(Opcode::Read).latency.count(), 3);
        assert_eq!(drive.parts.counters.lock().unwrap().len(), 1);
    }

    #[test]
    fn latency_is_what_the_clock_says() {
        let (env, clock) = Env::simulated(1);
        let local = LocalMemory::new(4096).unwrap();
        let drive = Drive::new(Arc::new(MemoryFlash::new(4096)), local, Vec::new(), env);
        let mut pair = drive.queue_pair(1).unwrap();
        pair.submit_flush(1);
        assert_eq!(drive.counters().queue_depth_now, 1);
        clock.advance_us(1000);
        pair.poll(&mut Vec::new());
        let snapshot = drive.counters();
        assert_eq!(snapshot.opcode(Opcode::Flush).latency.sum_us, 1000);
        assert_eq!((snapshot.queue_depth_now, snapshot.queue_depth_max), (0, 1));
    }
}
