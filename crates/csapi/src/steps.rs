//! Requests as steps at the device, in their order.
//!
//! 1. All requests are checked before the first runs: one that is wrong leaves nothing half done.
//! 2. Loads, and computes behind them, become one pipeline command of the drive, as long as one has room for them: the drive reads and
//!    computes, and the host hears of it once. Each other request is a step by itself.
//! 3. What comes of it is what each request by itself, in order, would have given: reads of one command do not overlap.

use crate::handles::Handle;
use crate::operands::{MemoryRange, Operands};
use crate::request::{BlockRange, ComputeRequest, CopyRequest, MemoryPlace, Request, StorageRequest};
use crate::types::CsStatus;
use tapetum_drive::{Execution, LocalRange, ProgramId, Stage};

/// Bytes of device memory for the stages and parameters of one command.
pub const SCRATCH_BYTES: usize = 32 << 10;

/// Requests are checked against these limits.
#[derive(Clone, Copy)]
pub struct Limits {
    pub sector_bytes: u32,
    pub flash_bytes: u64,
    pub stages_max: usize,
    pub inputs_max: usize,
    /// Device memories of one command.
    pub memories_max: usize,
    pub programs: usize,
    /// In the upper half of ids of this device's functions.
    pub tag: u16,
}

/// An id of a function: the tag of its device, and its place there, counted from 1.
pub fn function_id(tag: u16, program: ProgramId) -> u32 {
    u32::from(tag) << 16 | (u32::from(program.0) + 1)
}

/// A program, and where its operands lie. Parameters are in the scratch of the command.
#[derive(Debug, PartialEq, Eq)]
pub struct ProgramStep {
    pub program: ProgramId,
    pub parameters: Vec<u8>,
    pub inputs: Vec<LocalRange>,
    pub output: LocalRange,
}

/// A pipeline command.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CommandStep {
    /// The memories to lend.
    pub memories: Vec<Handle>,
    /// Flash, and where it is read to.
    pub reads: Vec<(u64, LocalRange)>,
    pub programs: Vec<ProgramStep>,
    /// Bytes of the last load.
    pub bytes: u64,
}

impl CommandStep {
    /// Stages and parameters, as they lie in scratch that begins at `offset` of local memory. The first number is how many bytes are
    /// stages.
    pub fn encode(&self, offset: u64) -> (u32, Vec<u8>) {
        let stages_bytes = (self.reads.len() + self.programs.len()) * Stage::ENCODED_BYTES;
        let (mut stages, mut parameters) = (Vec::with_capacity(stages_bytes), Vec::new());
        for (flash, local) in &self.reads {
            stages.extend(Stage::Read { flash: *flash, local: local.offset, length: local.length }.encode());
        }
        for step in &self.programs {
            let at = offset + (stages_bytes + parameters.len()) as u64;
            let range = match step.parameters.len() as u32 {
                0 => LocalRange::EMPTY,
                length => LocalRange { offset: at, length },
            };
            parameters.extend(&step.parameters);
            stages.extend(Stage::Execute(Execution::new(step.program, range, &step.inputs, step.output)).encode());
        }
        stages.append(&mut parameters);
        (stages_bytes as u32, stages)
    }

    fn scratch_bytes(&self) -> usize {
        let parameters: usize = self.programs.iter().map(|step| step.parameters.len()).sum();
        (self.reads.len() + self.programs.len()) * Stage::ENCODED_BYTES + parameters
    }

    /// Whether the other may run in the same command, behind this one.
    fn can_take(&self, other: &CommandStep, limits: &Limits) -> bool {
        let new = other.memories.iter().filter(|memory| !self.memories.contains(memory)).count();
        let is_ascending = match (self.reads.last(), other.reads.first()) {
            (Some((_, before)), Some((_, after))) => before.offset + u64::from(before.length) <= after.offset,
            _ => true,
        };
        let is_in_order = other.reads.is_empty() || self.programs.is_empty();
        let stages = self.reads.len() + self.programs.len() + other.reads.len() + other.programs.len();
        is_ascending
            && is_in_order
            && self.memories.len() + new <= limits.memories_max
            && stages <= limits.stages_max
            && self.scratch_bytes() + other.scratch_bytes() <= SCRATCH_BYTES
    }

    fn take(&mut self, other: CommandStep) {
        let new = other.memories.into_iter().filter(|memory| !self.memories.contains(memory)).collect::<Vec<_>>();
        self.memories.extend(new);
        self.reads.extend(other.reads);
        self.programs.extend(other.programs);
        self.bytes = other.bytes;
    }
}

pub enum Step {
    Copy(CopyRequest),
    /// Flash, and the ranges of one memory that are written there.
    Store {
        memory: Handle,
        writes: Vec<(u64, LocalRange)>,
    },
    Command(CommandStep),
}

/// The steps of requests. `find` says where a memory lies, if it is one of the device's.
pub fn plan(
    requests: &[Request],
    limits: &Limits,
    find: impl Fn(Handle) -> Option<LocalRange>,
) -> Result<Vec<Step>, CsStatus> {
    let mut steps = Vec::new();
    for request in requests {
        let step = match request {
            Request::Copy(copy) => {
                part(&find, copy.at, copy.bytes.into())?;
                Step::Copy(*copy)
            }
            Request::Storage(storage) => storage_step(storage, limits, &find)?,
            Request::Compute(compute) => Step::Command(compute_step(compute, limits, &find)?),
        };
        match (steps.last_mut(), step) {
            (Some(Step::Command(before)), Step::Command(after)) if before.can_take(&after, limits) => {
                before.take(after);
            }
            (_, step) => steps.push(step),
        }
    }
    Ok(steps)
}

/// Bytes of a memory from a place on, as local memory has them.
fn part(find: impl Fn(Handle) -> Option<LocalRange>, at: MemoryPlace, bytes: u64) -> Result<LocalRange, CsStatus> {
    let whole = find(at.memory).ok_or(CsStatus::UnknownMemory)?;
    let end = at.offset.checked_add(bytes).filter(|end| *end <= u64::from(whole.length));
    end.ok_or(CsStatus::InvalidLength)?;
    if bytes == 0 {
        return Err(CsStatus::InvalidLength);
    }
    Ok(LocalRange { offset: whole.offset + at.offset, length: bytes as u32 })
}

fn storage_step(
    storage: &StorageRequest,
    limits: &Limits,
    find: impl Fn(Handle) -> Option<LocalRange>,
) -> Result<Step, CsStatus> {
    let sector = u64::from(limits.sector_bytes);
    if !storage.at.offset.is_multiple_of(sector) {
        return Err(CsStatus::InvalidArg);
    }
    let (mut at, mut moves) = (storage.at, Vec::with_capacity(storage.ranges.len()));
    for BlockRange { lba, blocks } in &storage.ranges {
        let bytes = u64::from(*blocks) * sector;
        let flash = lba.checked_mul(sector).ok_or(CsStatus::InvalidLength)?;
        let end = flash.checked_add(bytes).filter(|end| *end <= limits.flash_bytes);
        end.ok_or(CsStatus::InvalidLength)?;
        moves.push((flash, part(&find, at, bytes)?));
        at.offset += bytes;
    }
    let memory = storage.at.memory;
    Ok(match storage.is_load {
        true => {
            let bytes = at.offset - storage.at.offset;
            Step::Command(CommandStep { memories: vec![memory], reads: moves, programs: Vec::new(), bytes })
        }
        false => Step::Store { memory, writes: moves },
    })
}

fn compute_step(
    compute: &ComputeRequest,
    limits: &Limits,
    find: impl Fn(Handle) -> Option<LocalRange>,
) -> Result<CommandStep, CsStatus> {
    let place = (compute.function & 0xffff).checked_sub(1).filter(|place| (*place as usize) < limits.programs);
    let place = place.filter(|_| compute.function >> 16 == u32::from(limits.tag));
    let program = ProgramId(place.ok_or(CsStatus::UnknownComputeFunction)? as u16);
    let operands = Operands::new(&compute.arguments, |memory| find(memory).map(|range| range.length))?;
    if operands.inputs.len() > limits.inputs_max {
        return Err(CsStatus::InvalidArg);
    }
    let local = |range: &MemoryRange| {
        let whole = find(range.memory).ok_or(CsStatus::UnknownMemory)?;
        Ok(LocalRange { offset: whole.offset + u64::from(range.offset), length: range.bytes })
    };
    let mut memories: Vec<Handle> =
        operands.inputs.iter().chain([&operands.output]).map(|range| range.memory).collect();
    memories.sort_unstable();
    memories.dedup();
    if memories.len() > limits.memories_max {
        return Err(CsStatus::InvalidArg);
    }
    let inputs = operands.inputs.iter().map(local).collect::<Result<Vec<_>, CsStatus>>()?;
    let step = ProgramStep { program, parameters: operands.parameters, inputs, output: local(&operands.output)? };
    Ok(CommandStep { memories, reads: Vec::new(), programs: vec![step], bytes: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Argument;

    const LIMITS: Limits = Limits {
        sector_bytes: 512,
        flash_bytes: 1 << 20,
        stages_max: 4,
        inputs_max: 3,
        memories_max: 2,
        programs: 5,
        tag: 7,
    };

    /// Memories 1 to 4 have 4 KiB each, one behind the other.
    fn find(memory: Handle) -> Option<LocalRange> {
        (1..5).contains(&memory.0).then_some(LocalRange { offset: memory.0 << 12, length: 4096 })
    }

    fn place(memory: u64, offset: u64) -> MemoryPlace {
        MemoryPlace { memory: Handle(memory), offset }
    }

    fn load(memory: u64, offset: u64, lba: u64, blocks: u32) -> Request {
        let ranges = vec![BlockRange { lba, blocks }];
        Request::Storage(StorageRequest { device: Handle(0), is_load: true, at: place(memory, offset), ranges })
    }

    fn store(memory: u64) -> Request {
        let Request::Storage(storage) = load(memory, 0, 0, 1) else { unreachable!() };
        Request::Storage(StorageRequest { is_load: false, ..storage })
    }

    fn compute(function: u32, memories: &[u64]) -> Request {
        let arguments = memories.iter().map(|memory| Argument::Memory(place(*memory, 0))).collect();
        Request::Compute(ComputeRequest { function, arguments })
    }

    fn function(program: u16) -> u32 {
        function_id(LIMITS.tag, ProgramId(program))
    }

    /// Reads and programs of each command; zeros for other steps.
    fn shape(requests: &[Request]) -> Vec<(usize, usize)> {
        let steps = plan(requests, &LIMITS, find).unwrap();
        let of = |step: &Step| match step {
            Step::Command(command) => (command.reads.len(), command.programs.len()),
            _ => (0, 0),
        };
        steps.iter().map(of).collect()
    }

    fn refusal(request: Request) -> Option<CsStatus> {
        plan(&[request], &LIMITS, find).err()
    }

    #[test]
    fn loads_and_computes_are_one_command() {
        let both = [load(1, 0, 0, 1), load(1, 512, 9, 1), compute(function(4), &[1, 2])];
        assert_eq!(shape(&both), [(2, 1)]);
        let more = [&both[..], &[store(2), load(1, 0, 0, 1)]].concat();
        assert_eq!(shape(&more), [(2, 1), (0, 0), (1, 0)]);
    }

    #[test]
    fn what_does_not_fit_one_command_is_the_next() {
        assert_eq!(shape(&[load(1, 512, 0, 1), load(1, 0, 0, 1)]), [(1, 0), (1, 0)], "it does not ascend");
        assert_eq!(shape(&[load(1, 0, 0, 2), load(1, 512, 0, 1)]), [(1, 0), (1, 0)], "it overlaps");
        assert_eq!(shape(&[compute(function(0), &[1, 2]), load(3, 0, 0, 1)]), [(0, 1), (1, 0)]);
        assert_eq!(shape(&[load(1, 0, 0, 1), compute(function(0), &[2, 3])]), [(1, 0), (0, 1)], "three memories");
        let five: Vec<_> = (0..5).map(|at| load(1, 512 * at, 0, 1)).collect();
        assert_eq!(shape(&five), [(4, 0), (1, 0)]);
    }

    #[test]
    fn a_wrong_request_is_refused_before_the_first_runs() {
        assert_eq!(plan(&[store(1), load(1, 0, 2047, 2)], &LIMITS, find).err(), Some(CsStatus::InvalidLength));
        assert_eq!(refusal(load(1, 0, u64::MAX / 512, 2)), Some(CsStatus::InvalidLength));
        assert_eq!(refusal(load(1, 0, 1 << 60, 1)), Some(CsStatus::InvalidLength));
        assert_eq!(refusal(load(1, 0, 0, 0)), Some(CsStatus::InvalidLength));
        assert_eq!(refusal(load(1, 0, 0, 9)), Some(CsStatus::InvalidLength));
        assert_eq!(refusal(load(1, 4096, 0, 1)), Some(CsStatus::InvalidLength));
        assert_eq!(refusal(load(1, u64::MAX - 511, 0, 1)), Some(CsStatus::InvalidLength));
        assert_eq!(refusal(load(1, 100, 0, 1)), Some(CsStatus::InvalidArg));
        assert_eq!(refusal(load(5, 0, 0, 1)), Some(CsStatus::UnknownMemory));
        assert_eq!(refusal(compute(0, &[1, 2])), Some(CsStatus::UnknownComputeFunction));
        assert_eq!(refusal(compute(function(5), &[1, 2])), Some(CsStatus::UnknownComputeFunction));
        assert_eq!(refusal(compute(function(0) ^ 1 << 16, &[1, 2])), Some(CsStatus::UnknownComputeFunction));
        assert_eq!(refusal(compute(function(0), &[1, 2, 3])), Some(CsStatus::InvalidArg), "three memories");
        assert_eq!(refusal(compute(function(0), &[1, 1, 1, 1, 1])), Some(CsStatus::InvalidArg), "four inputs");
    }

    #[test]
    fn stages_lie_before_their_parameters() {
        let Request::Compute(mut compute) = compute(function(2), &[1, 2]) else { unreachable!() };
        compute.arguments.insert(0, Argument::Value32(9));
        let steps = plan(&[load(1, 0, 3, 1), Request::Compute(compute)], &LIMITS, find).unwrap();
        let [Step::Command(command)] = &steps[..] else { panic!("one command") };
        let (stages_bytes, bytes) = command.encode(1 << 20);
        assert_eq!((stages_bytes, bytes.len()), (128, 132));
        assert_eq!(bytes[128..], [9, 0, 0, 0]);
        let stage = Stage::decode(bytes[64..].first_chunk().unwrap()).unwrap();
        let range = |offset, length| LocalRange { offset, length };
        let inputs = [range(4096, 4096)];
        let wanted = Execution::new(ProgramId(2), range((1 << 20) + 128, 4), &inputs, range(8192, 4096));
        assert_eq!(stage, Stage::Execute(wanted));
    }
}
