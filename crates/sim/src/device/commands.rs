//! Commands through a queue pair, each with a buffer of its own. The flash completes late, in any order and with errors.
//!
//! ```text
//! a free buffer ─ lent ─► command ─► its end ─► a free buffer, looked at
//! ```
//! In some runs the boundary of processes is between: what the host writes goes through a window, and the drive sleeps until it is kicked.
//! Checked: each command ends once, with an end that is allowed. A buffer comes back with its command's end, when the drive is done with it.
//! Its bytes are the result of all commands that had it. The bytes of free buffers are those that the host left there.

use super::pipelines::{BALKS, all_programs, program_named};
use super::{DeviceSetup, DeviceTally};
use std::sync::Arc;
use tapetum_drive::{
    CREDITS, Command, Completion, Drive, Env, Execution, Faults, FaultyFlash, Lease, LocalBuffer, LocalMemory,
    LocalRange, MemoryAddress, Operation, ProgramId, Purpose, QueuePair, Returned, SplitMix64, Stage, Status,
};

const LOCAL_BYTES: usize = 1 << 20;
const BUFFERS: usize = 8;
const BLOCK_BYTES: usize = 4096;
/// Blocks of a buffer; the last one holds a list of stages.
const BLOCKS: usize = 4;
const LIST: usize = BLOCKS - 1;
/// Blocks of the flash. A command in flight has some to itself.
const AREAS: u64 = 64;
const AREAS_OF_COMMAND: usize = 2;
const STEPS_MAX: u64 = 1 << 16;

/// A buffer that the host has, and the bytes that it must hold. `None` allows any byte.
struct HostBuffer {
    buffer: LocalBuffer,
    bytes: Vec<Option<u8>>,
}

/// The effect of a command on its buffer and areas.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read {
        area: usize,
        block: usize,
    },
    Write {
        area: usize,
        block: usize,
    },
    /// Copies block to block.
    Copy {
        from: usize,
        to: usize,
    },
    /// Reads both areas into the first two blocks, and copies the first block to the third.
    ReadBothAndCopy,
    Identify {
        block: usize,
    },
    Flush,
    /// The drive refuses it with this status.
    Refused(Status),
}

/// A command in flight.
struct LentCommand {
    tag: u64,
    step: Step,
    /// The buffer's bytes when it was lent.
    bytes: Vec<Option<u8>>,
    areas: [u64; AREAS_OF_COMMAND],
    range: LocalRange,
}

pub struct CommandWorld {
    // First, so that it is dropped before the memory that its commands name.
    pair: QueuePair,
    flash: FaultyFlash,
    drive: Drive,
    random: SplitMix64,
    balk: ProgramId,
    free: Vec<HostBuffer>,
    in_flight: Vec<LentCommand>,
    areas: Vec<Vec<Option<u8>>>,
    areas_free: Vec<u64>,
    tag_next: u64,
    pub tally: DeviceTally,
}

impl CommandWorld {
    pub fn new(setup: &DeviceSetup) -> CommandWorld {
        let mut random = SplitMix64::new(setup.seed ^ 0xc4a1);
        let flash = FaultyFlash::new(AREAS * BLOCK_BYTES as u64, random.next_u64());
        let faults = Faults {
            read_one_in: if random.one_in(3) { 0 } else { 20 },
            write_one_in: if random.one_in(3) { 0 } else { 20 },
            short_one_in: 6,
            ..Faults::default()
        };
        flash.set_faults(faults);
        let (env, _) = Env::simulated(setup.seed);
        let drive = if random.one_in(2) {
            Drive::across(Arc::new(flash.clone()), (LOCAL_BYTES, LOCAL_BYTES), all_programs(), env)
        } else {
            LocalMemory::new(LOCAL_BYTES).map(|local| Drive::new(Arc::new(flash.clone()), local, all_programs(), env))
        };
        let drive = drive.unwrap_or_else(|error| panic!("no memory: {error}"));
        let pair = drive.queue_pair(4).unwrap_or_else(|error| panic!("no queue pair: {error}"));
        let mut fresh = || {
            let Some(mut buffer) = drive.local().allocate(BLOCKS * BLOCK_BYTES) else { panic!("no buffer") };
            let bytes = pair.fill(Purpose::Other, &mut buffer, 0..BLOCKS * BLOCK_BYTES);
            random.fill(bytes);
            let bytes = bytes.iter().copied().map(Some).collect();
            HostBuffer { buffer, bytes }
        };
        let free = (0..BUFFERS).map(|_| fresh()).collect();
        CommandWorld {
            pair,
            flash,
            random,
            balk: program_named(&all_programs(), BALKS[0]),
            free,
            in_flight: Vec::new(),
            areas: vec![vec![Some(0); BLOCK_BYTES]; AREAS as usize],
            areas_free: (0..AREAS).collect(),
            tag_next: 1,
            tally: DeviceTally::default(),
            drive,
        }
    }

    pub fn trace_hash(&self) -> u64 {
        self.flash.trace_hash()
    }

    pub fn run(&mut self, steps: u64) -> Result<(), String> {
        for _ in 0..steps {
            match self.random.below(4) {
                0 | 1 => self.begin(),
                2 => self.scribble(),
                _ => {}
            }
            self.poll()?;
        }
        for _ in 0..STEPS_MAX {
            if self.pair.in_flight() == 0 {
                break;
            }
            self.pair.wait(None);
            self.poll()?;
        }
        if self.pair.credits() != CREDITS || !self.in_flight.is_empty() || self.free.len() != BUFFERS {
            let (left, free) = (self.pair.in_flight(), self.free.len());
            return Err(format!("{left} commands have not ended, {free} buffers are back"));
        }
        Ok(())
    }

    /// The host writes to a buffer that it has.
    fn scribble(&mut self) {
        if self.free.is_empty() {
            return;
        }
        let place = self.random.below(self.free.len() as u64) as usize;
        let HostBuffer { buffer, bytes } = &mut self.free[place];
        let byte = self.random.next_u64() as u8;
        let from = self.random.below(buffer.len() as u64) as usize;
        let end = buffer.len();
        self.pair.fill(Purpose::Other, buffer, from..end).fill(byte);
        bytes[from..].fill(Some(byte));
    }

    fn draw_step(&mut self) -> Step {
        let block = self.random.below(LIST as u64) as usize;
        let area = self.random.below(AREAS_OF_COMMAND as u64) as usize;
        match self.random.below(12) {
            0..3 => Step::Read { area, block },
            3..6 => Step::Write { area, block },
            6 | 7 => Step::Copy { from: block, to: (block + 1) % LIST },
            8 => Step::ReadBothAndCopy,
            9 => Step::Identify { block },
            10 => Step::Flush,
            _ if self.random.one_in(2) => Step::Refused(Status::OutsideLease),
            _ => Step::Refused(Status::InvalidField),
        }
    }

    fn operation(&self, range: LocalRange, areas: [u64; AREAS_OF_COMMAND], step: Step) -> Operation {
        let block = |number: usize| LocalRange {
            offset: range.offset + (number * BLOCK_BYTES) as u64,
            length: BLOCK_BYTES as u32,
        };
        let flash = |area: usize| areas[area] * BLOCK_BYTES as u64;
        let length = BLOCK_BYTES as u32;
        match step {
            Step::Read { area, block: into } => {
                Operation::Read { flash: flash(area), local: block(into).offset, length }
            }
            Step::Write { area, block: from } => Operation::Write {
                flash: flash(area),
                from: MemoryAddress::local(block(from).offset),
                length,
                fua: false,
            },
            Step::Copy { from, to } => Operation::Execute {
                program: self.balk,
                parameters: LocalRange::EMPTY,
                input: block(from),
                output: block(to),
            },
            Step::ReadBothAndCopy => {
                let bytes = 3 * Stage::ENCODED_BYTES as u32;
                Operation::Pipeline { stages: LocalRange { length: bytes, ..block(LIST) } }
            }
            Step::Identify { block: into } => Operation::Identify { into: block(into) },
            Step::Flush => Operation::Flush,
            // A range in the next buffer, or in the one before.
            Step::Refused(Status::OutsideLease) => {
                let other = if range.offset == 0 { BLOCKS * BLOCK_BYTES } else { 0 };
                Operation::Read { flash: flash(0), local: other as u64, length }
            }
            Step::Refused(_) => Operation::Read { flash: flash(0) + 1, local: block(0).offset, length },
        }
    }

    /// The stages of [`Step::ReadBothAndCopy`].
    fn list(&self, range: LocalRange, areas: [u64; AREAS_OF_COMMAND]) -> Vec<u8> {
        let reads = [0, 1].map(|number| {
            let step = Step::Read { area: number, block: number };
            let Operation::Read { flash, local, length } = self.operation(range, areas, step) else {
                unreachable!("a read is a read")
            };
            Stage::Read { flash, local, length }
        });
        let Operation::Execute { program, parameters, input, output } =
            self.operation(range, areas, Step::Copy { from: 0, to: 2 })
        else {
            unreachable!("a copy is an execution")
        };
        let copy = Stage::Execute(Execution::new(program, parameters, &[input], output));
        [reads[0], reads[1], copy].map(|stage| stage.encode()).concat()
    }

    fn begin(&mut self) {
        if self.free.is_empty() || self.areas_free.len() < AREAS_OF_COMMAND {
            return;
        }
        let place = self.random.below(self.free.len() as u64) as usize;
        let HostBuffer { mut buffer, mut bytes } = self.free.swap_remove(place);
        let mut area = || {
            let place = self.random.below(self.areas_free.len() as u64) as usize;
            self.areas_free.swap_remove(place)
        };
        let areas = [area(), area()];
        let (step, range, tag) = (self.draw_step(), buffer.range(), self.tag_next);
        if matches!(step, Step::ReadBothAndCopy) {
            let (list, at) = (self.list(range, areas), LIST * BLOCK_BYTES);
            self.pair.fill(Purpose::Other, &mut buffer, at..at + list.len()).copy_from_slice(&list);
            bytes.splice(at..at + list.len(), list.into_iter().map(Some));
        }
        self.tag_next += 1;
        let command = Command::new(tag, self.operation(range, areas, step));
        let submitted = self.pair.submit(command, buffer.into());
        assert!(submitted.is_ok(), "there are more credits than commands");
        self.tally.commands += 1;
        self.in_flight.push(LentCommand { tag, step, bytes, areas, range });
    }

    fn poll(&mut self) -> Result<(), String> {
        let mut returned = Vec::new();
        self.pair.poll(&mut returned);
        for Returned { completion, lease } in returned {
            self.hear(completion, lease)?;
        }
        for HostBuffer { buffer, bytes } in &self.free {
            if let Some(at) = differs(&self.bytes_of(buffer), bytes) {
                return Err(format!("a buffer that the host has, at {}, changed at {at}", buffer.offset()));
            }
        }
        Ok(())
    }

    /// The bytes of a buffer that the host has.
    fn bytes_of(&self, buffer: &LocalBuffer) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.pair.copy_to_host(Purpose::Other, buffer, 0..buffer.len(), &mut bytes);
        bytes
    }

    fn hear(&mut self, completion: Completion, lease: Lease) -> Result<(), String> {
        let Some(place) = self.in_flight.iter().position(|command| command.tag == completion.tag) else {
            return Err(format!("{completion:?} of nothing that is on its way"));
        };
        let command = self.in_flight.swap_remove(place);
        let is_right = match (completion.status, command.step) {
            (status, Step::Refused(expected)) => status == expected,
            (Status::Success, _) => true,
            (Status::Failed, Step::Read { .. } | Step::Write { .. } | Step::ReadBothAndCopy) => true,
            _ => false,
        };
        if !is_right {
            return Err(format!("{completion:?} of {:?}", command.step));
        }
        self.tally.flash_failed += u64::from(completion.status == Status::Failed);
        self.tally.refused += u64::from(matches!(completion.status, Status::OutsideLease | Status::InvalidField));
        match lease {
            Lease::Buffer(buffer) => self.look(command, &completion, buffer),
            lease => Err(format!("{completion:?} came back with {lease:?}")),
        }
    }

    /// Checks the bytes that a command has left.
    fn look(&mut self, command: LentCommand, completion: &Completion, buffer: LocalBuffer) -> Result<(), String> {
        let LentCommand { step, mut bytes, areas, range, .. } = command;
        if buffer.range() != range {
            return Err(format!("the buffer at {range:?} was lent, and {:?} came back", buffer.range()));
        }
        let block = |number: usize| number * BLOCK_BYTES..(number + 1) * BLOCK_BYTES;
        let (is_done, undefined) = (completion.is_success(), vec![None; BLOCK_BYTES]);
        let read = |area: usize| if is_done { &self.areas[areas[area] as usize] } else { &undefined };
        match step {
            Step::Read { area, block: into } => bytes[block(into)].copy_from_slice(read(area)),
            Step::ReadBothAndCopy => {
                (0..2).for_each(|number| bytes[block(number)].copy_from_slice(read(number)));
                if is_done {
                    bytes.copy_within(block(0), 2 * BLOCK_BYTES);
                }
            }
            Step::Write { area, block: from } => {
                let written = if is_done { bytes[block(from)].to_vec() } else { undefined };
                self.areas[areas[area] as usize] = written;
            }
            Step::Copy { from, to } => bytes.copy_within(block(from), to * BLOCK_BYTES),
            Step::Identify { block: into } => {
                let identity = self.drive.identity().encode();
                let known = identity.into_iter().map(Some).collect::<Vec<_>>();
                bytes[into * BLOCK_BYTES..][..known.len()].copy_from_slice(&known);
            }
            Step::Flush | Step::Refused(_) => {}
        }
        let found = self.bytes_of(&buffer);
        if let Some(at) = differs(&found, &bytes) {
            return Err(format!("the buffer differs at {at} after {step:?}, {completion:?}"));
        }
        // From here on, take the bytes that are there as known.
        let bytes = found.into_iter().map(Some).collect();
        self.areas_free.extend(areas);
        self.free.push(HostBuffer { buffer, bytes });
        Ok(())
    }
}

/// The first wrong byte.
fn differs(found: &[u8], expected: &[Option<u8>]) -> Option<usize> {
    found.iter().zip(expected).position(|(found, expected)| expected.is_some_and(|expected| expected != *found))
}
