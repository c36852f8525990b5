//! An open device: a drive, one queue pair, the memories that C has of it, and a thread for requests that do not wait.
//!
//! 1. One list of requests runs at a time. Whoever has the lock of the state runs it, to its end.
//! 2. A memory is in the state's map for as long as its handle is valid. During a command the command has it, and the lock is held.
//!
//! Threads: any.

use crate::handles::Handle;
use crate::opening::{OpenFailure, open_drive};
use crate::request::Request;
use crate::steps::{CommandStep, Limits, SCRATCH_BYTES, Step, plan};
use crate::types::CsStatus;
use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};
use tapetum_drive::locks::whole;
use tapetum_drive::programs::OUTPUT_SHORT;
use tapetum_drive::{
    Command, Completion, Drive, Env, Identity, Lease, LocalBuffer, LocalRange, MemoryAddress, Operation, Purpose,
    QueuePair, Returned, Status,
};

/// Buffers of the lease of several ([`Lease::Pages`]).
const LEASED: usize = 4;
/// Copies into one memory before the drive is given them: the host keeps a note of each.
const COPIES_MAX: u32 = 256;

/// How a list of requests ended. The value of a success is that of its last request: bytes moved, or bytes of a program's output. Of a
/// failure it is the program's own status, or the errno, or zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub status: CsStatus,
    pub value: u64,
}

impl Outcome {
    fn done(value: u64) -> Outcome {
        Outcome { status: CsStatus::Success, value }
    }
}

impl From<CsStatus> for Outcome {
    fn from(status: CsStatus) -> Outcome {
        Outcome { status, value: 0 }
    }
}

struct DeviceMemory {
    buffer: LocalBuffer,
    /// Copies into it since a command had it.
    copies: u32,
}

struct DeviceState {
    // Before the buffers: its drop waits for commands.
    pair: QueuePair,
    scratch: LocalBuffer,
    memories: BTreeMap<Handle, DeviceMemory>,
}

pub struct Device {
    pub name: Vec<u8>,
    drive: Drive,
    pub identity: Identity,
    /// A store was made here: its flash is only read.
    is_of_store: bool,
    /// See [`Limits::tag`]; set when the device has a handle.
    tag: OnceLock<u16>,
    state: Mutex<DeviceState>,
}

impl Device {
    pub fn open(name: &[u8], env: &Env) -> Result<Device, OpenFailure> {
        let (drive, is_of_store) = open_drive(name, env)?;
        let io = |error: std::io::Error| OpenFailure::of_io(&error);
        let pair = drive.queue_pair(LEASED as u32).map_err(io)?;
        let scratch = drive.local().allocate(SCRATCH_BYTES);
        let scratch = scratch.ok_or_else(|| io(std::io::Error::other("the drive gave no local memory")))?;
        let identity = drive.identity();
        let state = DeviceState { pair, scratch, memories: BTreeMap::new() };
        let (tag, state) = (OnceLock::new(), Mutex::new(state));
        Ok(Device { name: name.to_vec(), drive, identity, is_of_store, tag, state })
    }

    /// The first call says it.
    pub fn tag(&self, tag: u16) -> u16 {
        *self.tag.get_or_init(|| tag)
    }

    pub fn env(&self) -> &Env {
        self.drive.env()
    }

    pub fn memory_bytes(&self) -> u64 {
        self.drive.local().bytes_total() as u64
    }

    pub fn limits(&self) -> Limits {
        let buffers = usize::from(self.identity.buffers_max).min(LEASED);
        Limits {
            sector_bytes: self.drive.sector_bytes(),
            flash_bytes: self.drive.capacity_bytes(),
            stages_max: usize::from(self.identity.stages_max),
            inputs_max: usize::from(self.identity.inputs_max),
            // One is the scratch.
            memories_max: buffers.saturating_sub(1),
            programs: self.identity.programs.len(),
            tag: self.tag.get().copied().unwrap_or(0),
        }
    }

    /// A buffer for a memory.
    pub fn allocate(&self, bytes: usize, is_cleared: bool) -> Option<LocalBuffer> {
        let mut buffer = self.drive.local().allocate(bytes)?;
        if is_cleared {
            whole(self.state.lock()).pair.fill(Purpose::Other, &mut buffer, 0..bytes).fill(0);
        }
        Some(buffer)
    }

    pub fn keep(&self, memory: Handle, buffer: LocalBuffer) {
        whole(self.state.lock()).memories.insert(memory, DeviceMemory { buffer, copies: 0 });
    }

    pub fn free(&self, memory: Handle) {
        whole(self.state.lock()).memories.remove(&memory);
    }

    /// Runs requests in their order, until one fails.
    pub fn run(&self, requests: &[Request]) -> Outcome {
        let mut state = whole(self.state.lock());
        let find = |memory| state.memories.get(&memory).map(|memory| memory.buffer.range());
        let steps = match plan(requests, &self.limits(), find) {
            Ok(steps) => steps,
            Err(status) => return status.into(),
        };
        if self.is_of_store && steps.iter().any(|step| matches!(step, Step::Store { .. })) {
            return CsStatus::NoPermissions.into();
        }
        let mut value = 0;
        for step in &steps {
            match state.run(step) {
                Outcome { status: CsStatus::Success, value: of_step } => value = of_step,
                failed => return failed,
            }
        }
        Outcome::done(value)
    }
}

impl DeviceState {
    fn run(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Copy(copy) => {
                let range = copy.at.offset as usize..copy.at.offset as usize + copy.bytes as usize;
                let Some(memory) = self.memories.get_mut(&copy.at.memory) else {
                    return CsStatus::UnknownMemory.into();
                };
                if copy.is_to_device {
                    copy.host.copy_to(self.pair.fill(Purpose::Other, &mut memory.buffer, range));
                    memory.copies += 1;
                    if memory.copies == COPIES_MAX {
                        return self.give(copy.at.memory, copy.bytes.into());
                    }
                } else {
                    // Bytes that the drive has, and those that it is yet to be given.
                    let mut view = self.pair.view(Purpose::Other, memory.buffer.take(), range);
                    copy.host.copy_from(view.bytes());
                    memory.buffer = view.take();
                }
                Outcome::done(copy.bytes.into())
            }
            Step::Store { memory, writes } => {
                for (flash, local) in writes {
                    let from = MemoryAddress::local(local.offset);
                    let write = Operation::Write { flash: *flash, from, length: local.length, fua: true };
                    let outcome = self.submit(write, &[*memory], false);
                    if outcome.status != CsStatus::Success {
                        return outcome;
                    }
                }
                Outcome::done(writes.iter().map(|(_, local)| u64::from(local.length)).sum())
            }
            Step::Command(command) => self.run_command(command),
        }
    }

    /// The drive takes what was copied into a memory, with a command that does nothing.
    fn give(&mut self, memory: Handle, bytes: u64) -> Outcome {
        let outcome = self.submit(Operation::Cancel { tag: u64::MAX, pipeline: None }, &[memory], false);
        if outcome.status == CsStatus::Success { Outcome::done(bytes) } else { outcome }
    }

    fn run_command(&mut self, command: &CommandStep) -> Outcome {
        let (stages_bytes, bytes) = command.encode(self.scratch.offset());
        self.pair.fill(Purpose::Other, &mut self.scratch, 0..bytes.len()).copy_from_slice(&bytes);
        let stages = LocalRange { offset: self.scratch.offset(), length: stages_bytes };
        let outcome = self.submit(Operation::Pipeline { stages }, &command.memories, true);
        match outcome.status {
            CsStatus::Success if command.programs.is_empty() => Outcome::done(command.bytes),
            _ => outcome,
        }
    }

    /// Runs one command, which is lent memories, and the scratch if it needs that.
    fn submit(&mut self, operation: Operation, memories: &[Handle], with_scratch: bool) -> Outcome {
        // What `take` leaves is an empty buffer.
        let scratch = self.scratch.take();
        let mut pages: Box<[LocalBuffer; LEASED]> = Box::new(std::array::from_fn(|_| self.scratch.take()));
        self.scratch = scratch;
        for (page, memory) in pages.iter_mut().zip(memories) {
            if let Some(found) = self.memories.get_mut(memory) {
                (*page, found.copies) = (found.buffer.take(), 0);
            }
        }
        if with_scratch {
            pages[LEASED - 1] = self.scratch.take();
        }
        let mut returned = Vec::new();
        let completion = match self.pair.submit(Command::new(0, operation), Lease::Pages(pages)) {
            Ok(()) => {
                self.pair.drain_into(&mut returned);
                returned.pop()
            }
            // In a forked child.
            Err(full) => Some(Returned { completion: Completion::failed(0, 0), lease: full.lease }),
        };
        let Some(Returned { completion, lease: Lease::Pages(mut pages) }) = completion else {
            return CsStatus::DeviceNotAvailable.into();
        };
        for (page, memory) in pages.iter_mut().zip(memories) {
            if let Some(found) = self.memories.get_mut(memory) {
                found.buffer = page.take();
            }
        }
        if with_scratch {
            self.scratch = pages[LEASED - 1].take();
        }
        outcome_of(&completion)
    }
}

/// Errnos that mean that the device is gone, rather than that a request failed.
const ENODEV: i32 = 19;

fn outcome_of(completion: &Completion) -> Outcome {
    let status = match completion.status {
        Status::Success => return Outcome::done(completion.result[0]),
        Status::Failed if matches!(completion.errno, 0 | ENODEV) => CsStatus::DeviceNotAvailable,
        Status::Failed if completion.is_no_space() => CsStatus::OutOfResources,
        Status::Failed => CsStatus::DeviceError,
        Status::Unsupported => CsStatus::UnknownComputeFunction,
        Status::InvalidField | Status::OutsideLease | Status::UnknownRegion => CsStatus::InvalidArg,
        // Its output is too small.
        Status::More | OUTPUT_SHORT => return Outcome { status: CsStatus::InvalidLength, value: completion.result[0] },
        Status::UnitLost | Status::Program(_) => CsStatus::ErrorInExecution,
    };
    let value = match completion.status {
        Status::Program(status) => status.into(),
        _ => u64::from(completion.errno.unsigned_abs()),
    };
    Outcome { status, value }
}
