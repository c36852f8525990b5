//! Chains of commands through a queue pair. Each chain has one buffer, which goes from command to command. The flash completes late, in any
//! order and with errors.
//!
//! ```text
//! a free buffer ─ lent ─► command ─ event ─► command ─ event ─► … ─► the last one's end ─► a free buffer, looked at
//! ```
//! Checked: each command ends once, with an end that is allowed. A buffer comes back once, with its chain's last end, when no command that
//! had it is in flight. Its bytes are the result of the chain's commands. The bytes of free buffers are those that the host left there.

use super::pipelines::{BALKS, all_programs, program_named};
use super::{DeviceSetup, DeviceTally};
use std::sync::Arc;
use tapetum_drive::{
    CREDITS, Command, Completion, Drive, Env, EventId, Execution, Faults, FaultyFlash, Lease, LocalBuffer, LocalMemory,
    LocalRange, MemoryAddress, Operation, ProgramId, QueuePair, Returned, SplitMix64, Stage, Status,
};

const LOCAL_BYTES: usize = 1 << 20;
const BUFFERS: usize = 8;
const BLOCK_BYTES: usize = 2048;
/// Blocks of a buffer; the last one holds a list of stages.
const BLOCKS: usize = 4;
const LIST: usize = BLOCKS - 1;
const CHAIN_MAX: u64 = 4;
/// Blocks of the flash. Each chain has some of its own.
const AREAS: u64 = 64;
const AREAS_OF_CHAIN: usize = 2;
const STEPS_MAX: u64 = 1 << 16;

/// A buffer that the host has, and the bytes that it must hold. `None` allows any byte.
struct HostBuffer {
    buffer: LocalBuffer,
    bytes: Vec<Option<u8>>,
}

/// The effect of a command on its chain's buffer and areas.
#[derive(Clone, Copy, Debug)]
enum ChainStep {
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
    /// Reads into the first block and copies that to the second.
    ReadAndCopy {
        area: usize,
    },
    Identify {
        block: usize,
    },
    Flush,
    /// The drive refuses it with this status.
    Refused(Status),
}

struct ChainCommand {
    tag: u64,
    step: ChainStep,
    is_quiet: bool,
    end: Option<Completion>,
}

struct Chain {
    bytes: Vec<Option<u8>>,
    areas: [u64; AREAS_OF_CHAIN],
    range: LocalRange,
    commands: Vec<ChainCommand>,
}

pub struct ChainWorld {
    // First, so that it is dropped before the memory that its commands name.
    pair: QueuePair,
    flash: FaultyFlash,
    drive: Drive,
    random: SplitMix64,
    balk: ProgramId,
    free: Vec<HostBuffer>,
    chains: Vec<Chain>,
    areas: Vec<Vec<Option<u8>>>,
    areas_free: Vec<u64>,
    tag_next: u64,
    event_next: u16,
    pub tally: DeviceTally,
}

impl ChainWorld {
    pub fn new(setup: &DeviceSetup) -> ChainWorld {
        let mut random = SplitMix64::new(setup.seed ^ 0xc4a1);
        let flash = FaultyFlash::new(AREAS * BLOCK_BYTES as u64, random.next_u64());
        let faults = Faults {
            read_one_in: if random.one_in(3) { 0 } else { 20 },
            write_one_in: if random.one_in(3) { 0 } else { 20 },
            short_one_in: 6,
            ..Faults::default()
        };
        flash.set_faults(faults);
        let local = LocalMemory::new(LOCAL_BYTES).unwrap_or_else(|error| panic!("no memory: {error}"));
        let (env, _) = Env::simulated(setup.seed);
        let drive = Drive::new(Arc::new(flash.clone()), local, all_programs(), env);
        let pair = drive.queue_pair(4).unwrap_or_else(|error| panic!("no queue pair: {error}"));
        let mut fresh = || {
            let Some(mut buffer) = drive.local().allocate(BLOCKS * BLOCK_BYTES) else { panic!("no buffer") };
            random.fill(buffer.bytes_mut());
            let bytes = buffer.bytes().iter().copied().map(Some).collect();
            HostBuffer { buffer, bytes }
        };
        let free = (0..BUFFERS).map(|_| fresh()).collect();
        ChainWorld {
            pair,
            flash,
            random,
            balk: program_named(&all_programs(), BALKS[0]),
            free,
            chains: Vec::new(),
            areas: vec![vec![Some(0); BLOCK_BYTES]; AREAS as usize],
            areas_free: (0..AREAS).collect(),
            tag_next: 1,
            event_next: 1,
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
                0 | 1 => self.begin_chain(),
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
        if self.pair.credits() != CREDITS || !self.chains.is_empty() || self.free.len() != BUFFERS {
            let (left, chains) = (self.pair.in_flight(), self.chains.len());
            return Err(format!(
                "{left} commands of {chains} chains have not ended, {} buffers are back",
                self.free.len()
            ));
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
        buffer.bytes_mut()[from..].fill(byte);
        bytes[from..].fill(Some(byte));
    }

    fn draw_step(&mut self) -> ChainStep {
        let block = self.random.below(LIST as u64) as usize;
        let area = self.random.below(AREAS_OF_CHAIN as u64) as usize;
        match self.random.below(12) {
            0..3 => ChainStep::Read { area, block },
            3..6 => ChainStep::Write { area, block },
            6 | 7 => ChainStep::Copy { from: block, to: (block + 1) % LIST },
            8 => ChainStep::ReadAndCopy { area },
            9 => ChainStep::Identify { block },
            10 => ChainStep::Flush,
            _ if self.random.one_in(2) => ChainStep::Refused(Status::OutsideLease),
            _ => ChainStep::Refused(Status::InvalidField),
        }
    }

    fn operation(&self, chain: &Chain, step: ChainStep) -> Operation {
        let block = |number: usize| LocalRange {
            offset: chain.range.offset + (number * BLOCK_BYTES) as u64,
            length: BLOCK_BYTES as u32,
        };
        let flash = |area: usize| chain.areas[area] * BLOCK_BYTES as u64;
        let length = BLOCK_BYTES as u32;
        match step {
            ChainStep::Read { area, block: into } => {
                Operation::Read { flash: flash(area), local: block(into).offset, length }
            }
            ChainStep::Write { area, block: from } => Operation::Write {
                flash: flash(area),
                from: MemoryAddress::local(block(from).offset),
                length,
                fua: false,
            },
            ChainStep::Copy { from, to } => Operation::Execute {
                program: self.balk,
                parameters: LocalRange::EMPTY,
                input: block(from),
                output: block(to),
            },
            ChainStep::ReadAndCopy { .. } => {
                let bytes = 2 * Stage::ENCODED_BYTES as u32;
                Operation::Pipeline { stages: LocalRange { length: bytes, ..block(LIST) } }
            }
            ChainStep::Identify { block: into } => Operation::Identify { into: block(into) },
            ChainStep::Flush => Operation::Flush,
            // A range in the next buffer, or in the one before.
            ChainStep::Refused(Status::OutsideLease) => {
                let other = if chain.range.offset == 0 { BLOCKS * BLOCK_BYTES } else { 0 };
                Operation::Read { flash: flash(0), local: other as u64, length }
            }
            ChainStep::Refused(_) => Operation::Read { flash: flash(0) + 1, local: block(0).offset, length },
        }
    }

    /// The stages of a chain's only list.
    fn list(&self, chain: &Chain, area: usize) -> Vec<u8> {
        let Operation::Read { flash, local, length } = self.operation(chain, ChainStep::Read { area, block: 0 }) else {
            unreachable!("a read is a read")
        };
        let Operation::Execute { program, parameters, input, output } =
            self.operation(chain, ChainStep::Copy { from: 0, to: 1 })
        else {
            unreachable!("a copy is an execution")
        };
        let copy = Execution::new(program, parameters, &[input], output);
        [Stage::Read { flash, local, length }, Stage::Execute(copy)].map(|stage| stage.encode()).concat()
    }

    fn begin_chain(&mut self) {
        if self.free.is_empty() || self.areas_free.len() < AREAS_OF_CHAIN {
            return;
        }
        let place = self.random.below(self.free.len() as u64) as usize;
        let HostBuffer { mut buffer, mut bytes } = self.free.swap_remove(place);
        let mut area = || {
            let place = self.random.below(self.areas_free.len() as u64) as usize;
            self.areas_free.swap_remove(place)
        };
        let areas = [area(), area()];
        let count = 1 + self.random.below(CHAIN_MAX);
        let mut steps: Vec<ChainStep> = (0..count).map(|_| self.draw_step()).collect();
        let mut lists = 0;
        for step in &mut steps {
            // At most one list for a chain.
            lists += u32::from(matches!(step, ChainStep::ReadAndCopy { .. }));
            if lists > 1 && matches!(step, ChainStep::ReadAndCopy { .. }) {
                *step = ChainStep::Flush;
            }
        }
        let chain = Chain { bytes: Vec::new(), areas, range: buffer.range(), commands: Vec::new() };
        for step in &steps {
            if let ChainStep::ReadAndCopy { area } = step {
                let list = self.list(&chain, *area);
                let at = LIST * BLOCK_BYTES;
                buffer.bytes_mut()[at..at + list.len()].copy_from_slice(&list);
                bytes[at..at + list.len()].copy_from_slice(&list.into_iter().map(Some).collect::<Vec<_>>());
            }
        }
        self.submit_chain(Chain { bytes, ..chain }, steps, buffer);
    }

    fn submit_chain(&mut self, mut chain: Chain, steps: Vec<ChainStep>, buffer: LocalBuffer) {
        let (mut lease, mut before, count) = (Lease::Buffer(buffer), None, steps.len());
        for (place, step) in steps.into_iter().enumerate() {
            let (tag, is_last) = (self.tag_next, place + 1 == count);
            self.tag_next += 1;
            let mut command = Command::new(tag, self.operation(&chain, step));
            if let Some(event) = before {
                command = command.after(event);
            }
            if !is_last {
                let Some(event) = EventId::new(self.event_next) else { unreachable!("events are counted from one") };
                self.event_next = self.event_next % EventId::MAX + 1;
                command = command.signals(event);
                before = Some(event);
            }
            let is_quiet = !is_last && self.random.one_in(2);
            if is_quiet {
                command = command.quiet();
            }
            let lent = std::mem::replace(&mut lease, Lease::Inherited);
            let submitted = self.pair.submit(command, lent);
            assert!(submitted.is_ok(), "there are more credits than commands");
            self.tally.commands += 1;
            chain.commands.push(ChainCommand { tag, step, is_quiet, end: None });
        }
        self.chains.push(chain);
    }

    fn poll(&mut self) -> Result<(), String> {
        let mut returned = Vec::new();
        self.pair.poll(&mut returned);
        for Returned { completion, lease } in returned {
            self.hear(completion, lease)?;
        }
        for HostBuffer { buffer, bytes } in &self.free {
            if let Some(at) = differs(buffer.bytes(), bytes) {
                return Err(format!("a buffer that the host has, at {}, changed at {at}", buffer.offset()));
            }
        }
        Ok(())
    }

    fn hear(&mut self, completion: Completion, lease: Lease) -> Result<(), String> {
        let has = |chain: &Chain| chain.commands.iter().position(|command| command.tag == completion.tag);
        let found = self.chains.iter().enumerate().find_map(|(place, chain)| Some((place, has(chain)?)));
        let Some((place, number)) = found else { return Err(format!("{completion:?} of nothing that is on its way")) };
        let chain = &mut self.chains[place];
        let is_last = number + 1 == chain.commands.len();
        let (earlier, rest) = chain.commands.split_at_mut(number);
        let command = &mut rest[0];
        if command.end.is_some() || (command.is_quiet && completion.is_success()) {
            return Err(format!("{completion:?} of {:?} came twice, or was not wanted", command.step));
        }
        let failed = |command: &ChainCommand| {
            let end = command.end.filter(|end| !end.is_success() && end.status != Status::Aborted);
            end.is_some() && command.tag == completion.result[0]
        };
        let is_right = match (completion.status, command.step) {
            (Status::Aborted, _) => earlier.iter().any(failed),
            (status, ChainStep::Refused(expected)) => status == expected,
            (Status::Success, _) => true,
            (Status::Failed, ChainStep::Read { .. } | ChainStep::Write { .. } | ChainStep::ReadAndCopy { .. }) => true,
            _ => false,
        };
        if !is_right {
            return Err(format!("{completion:?} of {:?}", command.step));
        }
        self.tally.flash_failed += u64::from(completion.status == Status::Failed);
        self.tally.refused += u64::from(matches!(completion.status, Status::OutsideLease | Status::InvalidField));
        command.end = Some(completion);
        match (lease, is_last) {
            (Lease::Buffer(buffer), true) => {
                let chain = self.chains.swap_remove(place);
                self.end_chain(chain, buffer)
            }
            (Lease::Nothing, false) => Ok(()),
            (lease, _) => Err(format!("{completion:?}, number {number} of its chain, came back with {lease:?}")),
        }
    }

    /// Checks the bytes that a chain has left, after all of its commands have ended.
    fn end_chain(&mut self, chain: Chain, buffer: LocalBuffer) -> Result<(), String> {
        let Chain { mut bytes, areas, range, commands } = chain;
        if buffer.range() != range {
            return Err(format!("the buffer at {range:?} was lent, and {:?} came back", buffer.range()));
        }
        let block = |number: usize| number * BLOCK_BYTES..(number + 1) * BLOCK_BYTES;
        let undefined = vec![None; BLOCK_BYTES];
        for ChainCommand { step, is_quiet, end, .. } in &commands {
            let status = end.map(|end| end.status);
            let (is_done, has_failed) = match status {
                None if *is_quiet => (true, false),
                None => return Err(format!("{step:?} has not ended, and its buffer is back")),
                Some(status) => (status == Status::Success, status == Status::Failed),
            };
            if !is_done && !has_failed {
                continue;
            }
            let read = |area: usize| if is_done { &self.areas[areas[area] as usize] } else { &undefined };
            match *step {
                ChainStep::Read { area, block: into } => bytes[block(into)].copy_from_slice(read(area)),
                ChainStep::ReadAndCopy { area } => {
                    bytes[block(0)].copy_from_slice(read(area));
                    if is_done {
                        bytes.copy_within(block(0), BLOCK_BYTES);
                    }
                }
                ChainStep::Write { area, block: from } => {
                    let written = if is_done { bytes[block(from)].to_vec() } else { undefined.clone() };
                    self.areas[areas[area] as usize] = written;
                }
                ChainStep::Copy { from, to } => bytes.copy_within(block(from), to * BLOCK_BYTES),
                ChainStep::Identify { block: into } => {
                    let identity = self.drive.identity().encode();
                    let known = identity.into_iter().map(Some).collect::<Vec<_>>();
                    bytes[into * BLOCK_BYTES..][..known.len()].copy_from_slice(&known);
                }
                ChainStep::Flush | ChainStep::Refused(_) => {}
            }
        }
        if let Some(at) = differs(buffer.bytes(), &bytes) {
            let steps: Vec<_> = commands.iter().map(|command| (command.step, command.end)).collect();
            return Err(format!("the buffer differs at {at} after {steps:?}"));
        }
        // From here on, take the bytes that are there as known.
        let bytes = buffer.bytes().iter().copied().map(Some).collect();
        self.areas_free.extend(areas);
        self.free.push(HostBuffer { buffer, bytes });
        Ok(())
    }
}

/// The first wrong byte.
fn differs(found: &[u8], expected: &[Option<u8>]) -> Option<usize> {
    found.iter().zip(expected).position(|(found, expected)| expected.is_some_and(|expected| expected != *found))
}
