//! A drive through its queue pair: commands, pipelines, credits, counters.

use super::testing::{drive_of, run, run_with};
use super::{Drive, Lease, QueuePair};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::env::Env;
use crate::flash::faulty::FaultyFlash;
use crate::flash::memory::MemoryFlash;
use crate::memory::{LocalBuffer, LocalMemory};
use crate::protocol::{
    Completion, Execution, Identity, LocalRange, MemoryAddress, Opcode, Operation, ProgramId, Purpose, STAGES_MAX,
    Stage, Status,
};
use std::sync::Arc;

/// Output = input with every byte plus the first parameter; result = bytes, sum.
pub(super) struct AddByte;

impl Program for AddByte {
    fn run(&self, Context { parameters, inputs, output, .. }: Context<'_>) -> ProgramResult {
        let Some(&by) = parameters.first() else { return (Status::Program(1), [0; 2]) };
        let mut sum = 0;
        for (to, from) in output.iter_mut().zip(inputs.iter().copied().flatten()) {
            *to = from.wrapping_add(by);
            sum += u64::from(*to);
        }
        (Status::Success, [output.len() as u64, sum])
    }

    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: "add-byte", version: 9, is_stream: false }
    }
}

fn drive() -> Drive {
    drive_of(Arc::new(MemoryFlash::new(1 << 20)), vec![Box::new(AddByte)], 1)
}

#[test]
pub(super) fn a_program_reads_what_was_written() {
    let drive = drive();
    let mut pair = drive.queue_pair(4).unwrap();
    let mut input = drive.local().allocate(4097).unwrap();
    input.bytes_mut().fill(5);
    input.bytes_mut()[4096] = 2;
    let output = drive.local().allocate(4096).unwrap();
    let range = |at, length| LocalRange { offset: input.offset() + at, length };
    let (of_input, of_output, of_parameter) = (range(0, 4096), output.range(), range(4096, 1));
    let execute =
        |parameters| Operation::Execute { program: ProgramId(0), parameters, input: of_input, output: of_output };
    let returned = run_with(&mut pair, execute(of_parameter), Lease::Buffers([input, output]));
    assert_eq!((returned.completion.status, returned.completion.result), (Status::Success, [4096, 7 * 4096]));
    let Lease::Buffers([input, output]) = returned.lease else { panic!("{:?}", returned.lease) };
    let mut host = vec![1];
    pair.copy_to_host(Purpose::Other, &output, 0..2, &mut host);
    assert_eq!(host, [1, 7, 7]);
    assert_eq!(drive.counters().local_to_host_bytes, 2);
    let returned = run_with(&mut pair, execute(LocalRange::EMPTY), Lease::Buffers([input, output]));
    assert_eq!(returned.completion.status, Status::Program(1));
}

#[test]
pub(super) fn what_cannot_be_run_is_refused() {
    let drive = drive();
    let mut pair = drive.queue_pair(4).unwrap();
    let mut buffer = drive.local().allocate(4096).unwrap();
    let first = buffer.offset();
    let range = |at, length| LocalRange { offset: first + at, length };
    let execute = |program, parameters, input, output| Operation::Execute {
        program: ProgramId(program),
        parameters,
        input,
        output,
    };
    let ok = range(0, 8);
    let unsupported = [execute(1, ok, ok, range(8, 8))];
    let invalid = [
        execute(0, ok, range(1 << 20, 1), range(8, 8)),
        execute(0, ok, range(8, 8), range(15, 8)),
        execute(0, range(8, 8), ok, range(15, 8)),
        Operation::Pipeline { stages: ok },
        Operation::Discard { flash: 0, length: 0 },
        Operation::Discard { flash: 512, length: 1 << 20 },
        Operation::Discard { flash: 100, length: 512 },
    ];
    for operation in unsupported {
        assert_eq!(run(&mut pair, operation, &mut buffer).status, Status::Unsupported, "{operation:?}");
    }
    for operation in invalid {
        assert_eq!(run(&mut pair, operation, &mut buffer).status, Status::InvalidField, "{operation:?}");
    }
    assert_eq!(drive.counters().opcode(Opcode::Discard).failed, 3);
}

#[test]
pub(super) fn counters_outlive_their_queue_pair() {
    let drive = drive();
    let mut buffer = drive.local().allocate(4096).unwrap();
    let write = Operation::Write { flash: 0, from: MemoryAddress::local(buffer.offset()), length: 4096, fua: false };
    let read = Operation::Read { flash: 0, local: buffer.offset(), length: 512 };
    for _ in 0..3 {
        let mut pair = drive.queue_pair(4).unwrap();
        assert!(run(&mut pair, write, &mut buffer).is_success() && run(&mut pair, read, &mut buffer).is_success());
        pair.submit_flush(1).unwrap();
    }
    let snapshot = drive.counters();
    assert_eq!(snapshot.queue_depth_now, 0, "what was in flight went with its queue pair");
    assert_eq!((snapshot.local_to_flash_bytes, snapshot.flash_to_local_bytes), (3 * 4096, 3 * 512));
    assert_eq!(snapshot.opcode(Opcode::Write).completed, 3);
    assert_eq!(snapshot.opcode(Opcode::Read).latency.count(), 3);
}

#[test]
fn latency_is_what_the_clock_says() {
    let (env, clock) = Env::simulated(1);
    let local = LocalMemory::new(4096).unwrap();
    let drive = Drive::new(Arc::new(MemoryFlash::new(4096)), local, Vec::new(), env);
    let mut pair = drive.queue_pair(1).unwrap();
    pair.submit_flush(1).unwrap();
    assert_eq!(drive.counters().queue_depth_now, 1);
    clock.advance_us(1000);
    pair.poll(&mut Vec::new());
    let snapshot = drive.counters();
    assert_eq!(snapshot.opcode(Opcode::Flush).latency.sum_us, 1000);
    assert_eq!((snapshot.queue_depth_now, snapshot.queue_depth_max), (0, 1));
}

/// A drive whose first 64 KiB of flash hold bytes that count up, and a buffer: the list of stages in its first half.
struct PipelineBench {
    drive: Drive,
    pair: QueuePair,
    buffer: LocalBuffer,
}

const LIST_BYTES: usize = 32 << 10;
const HALF: u64 = LIST_BYTES as u64;

impl PipelineBench {
    fn new(drive: Drive) -> PipelineBench {
        let mut pair = drive.queue_pair(4).unwrap();
        let mut buffer = drive.local().allocate(2 * LIST_BYTES).unwrap();
        (0..).zip(buffer.bytes_mut()).for_each(|(at, byte): (usize, _)| *byte = (at / 512) as u8);
        let write = Operation::Write {
            flash: 0,
            from: MemoryAddress::local(buffer.offset()),
            length: 2 * LIST_BYTES as u32,
            fua: true,
        };
        assert!(run(&mut pair, write, &mut buffer).is_success());
        PipelineBench { drive, pair, buffer }
    }

    fn at(&self, offset: u64, length: u32) -> LocalRange {
        LocalRange { offset: self.buffer.offset() + HALF + offset, length }
    }

    fn read(&self, flash: u64, at: u64, length: u32) -> Stage {
        Stage::Read { flash, local: self.at(at, 0).offset, length }
    }

    /// Adds one to every byte. The parameter is the byte behind all else.
    fn add_one(&mut self, input: LocalRange, output: LocalRange) -> Stage {
        self.buffer.bytes_mut()[2 * LIST_BYTES - 1] = 1;
        Stage::Execute(Execution::new(ProgramId(0), self.at(HALF - 1, 1), &[input], output))
    }

    fn list(&mut self, stages: &[Stage]) -> LocalRange {
        for (place, stage) in stages.iter().enumerate() {
            let at = place * Stage::ENCODED_BYTES;
            self.buffer.bytes_mut()[at..at + Stage::ENCODED_BYTES].copy_from_slice(&stage.encode());
        }
        LocalRange { offset: self.buffer.offset(), length: (stages.len() * Stage::ENCODED_BYTES) as u32 }
    }

    fn run(&mut self, stages: &[Stage]) -> Completion {
        let stages = self.list(stages);
        run(&mut self.pair, Operation::Pipeline { stages }, &mut self.buffer)
    }
}

#[test]
pub(super) fn a_pipeline_reads_and_computes_with_one_completion() {
    let mut bench = PipelineBench::new(drive());
    let before = bench.drive.counters();
    let (first, second) = (bench.read(512, 0, 512), bench.read(2048, 512, 1024));
    let (input, middle, output) = (bench.at(0, 1536), bench.at(4096, 1536), bench.at(8192, 1536));
    let (once, twice) = (bench.add_one(input, middle), bench.add_one(middle, output));
    let completion = bench.run(&[first, second, once, twice]);
    let sum = 512 * 3 + 512 * 6 + 512 * 7;
    assert_eq!((completion.status, completion.stage, completion.result), (Status::Success, 0, [1536, sum]));
    let from = LIST_BYTES + 8192;
    assert_eq!(bench.buffer.bytes()[from..from + 1536].chunks(512).map(|part| part[0]).collect::<Vec<_>>(), [3, 6, 7]);
    let after = bench.drive.counters();
    let done = |opcode| after.opcode(opcode).completed - before.opcode(opcode).completed;
    assert_eq!([Opcode::Read, Opcode::Execute, Opcode::Pipeline].map(done), [2, 2, 1]);
    assert_eq!(after.flash_to_local_bytes - before.flash_to_local_bytes, 1536);
}

#[test]
pub(super) fn a_list_is_copied_when_it_is_submitted() {
    let mut bench = PipelineBench::new(drive());
    let read = bench.read(512, 0, 512);
    let over_list = Stage::Read { flash: 0, local: bench.buffer.offset(), length: 512 };
    let add = bench.add_one(bench.at(0, 512), bench.at(4096, 512));
    let completion = bench.run(&[over_list, read, add]);
    assert_eq!((completion.status, completion.result), (Status::Success, [512, 1024]));
    assert_eq!(bench.buffer.bytes()[..512], [0; 512]);
}

#[test]
pub(super) fn a_list_that_is_none_is_refused_at_its_stage() {
    let mut bench = PipelineBench::new(drive());
    let read = bench.read(0, 0, 512);
    let add = bench.add_one(bench.at(0, 512), bench.at(4096, 512));
    let over = bench.add_one(bench.at(0, 512), bench.at(511, 512));
    let outside = bench.add_one(bench.at(0, 512), LocalRange { offset: 1 << 20, length: 1 });
    let unknown = Stage::Execute(Execution::new(ProgramId(1), LocalRange::EMPTY, &[], LocalRange::EMPTY));
    let wrong: [(&[Stage], u16, Status); 9] = [
        (&[], 0, Status::InvalidField),
        (&[read; STAGES_MAX + 1], 0, Status::InvalidField),
        (&[read, add, bench.read(512, 512, 512)], 2, Status::InvalidField),
        (&[read, bench.read(512, 0, 512)], 1, Status::InvalidField),
        (&[read, bench.read(1 << 20, 512, 512)], 1, Status::InvalidField),
        (&[read, bench.read(512, 512, 0)], 1, Status::InvalidField),
        (&[read, add, over], 2, Status::InvalidField),
        (&[add, outside], 1, Status::InvalidField),
        (&[read, add, unknown], 2, Status::Unsupported),
    ];
    for (stages, stage, status) in wrong {
        let completion = bench.run(stages);
        assert_eq!((completion.status, completion.stage), (status, stage), "{stages:?}");
    }
    let LocalRange { offset, .. } = bench.list(&[add]);
    bench.buffer.bytes_mut()[0] = 0x55;
    for (offset, length) in [(offset, 64), (offset, 63), (offset + 4, 64), (1 << 20, 64)] {
        let stages = LocalRange { offset, length };
        let completion = run(&mut bench.pair, Operation::Pipeline { stages }, &mut bench.buffer);
        assert_eq!((completion.status, completion.stage), (Status::InvalidField, 0), "{offset}+{length}");
    }
    assert_eq!(bench.drive.counters().opcode(Opcode::Read).completed, 0, "what is refused starts nothing");
}

#[test]
pub(super) fn a_stage_that_fails_is_named_and_ends_its_pipeline() {
    let mut bench = PipelineBench::new(drive());
    let (read, add) = (bench.read(0, 0, 512), bench.add_one(bench.at(0, 512), bench.at(4096, 512)));
    let no_parameter = Stage::Execute(Execution::new(ProgramId(0), LocalRange::EMPTY, &[], LocalRange::EMPTY));
    let completion = bench.run(&[read, add, no_parameter, add]);
    assert_eq!((completion.status, completion.stage), (Status::Program(1), 2));
    assert_eq!(bench.drive.counters().opcode(Opcode::Execute).completed, 2, "nothing runs behind it");

    let flash = FaultyFlash::new(1 << 20, 1);
    let mut bench = PipelineBench::new(drive_of(Arc::new(flash.clone()), vec![Box::new(AddByte)], 1));
    flash.fail_nth(Opcode::Read, 2);
    let reads = [0, 1, 2].map(|place| bench.read(512 * place, 512 * place, 512));
    let add = bench.add_one(bench.at(0, 512), bench.at(4096, 512));
    let completion = bench.run(&[reads[0], reads[1], reads[2], add]);
    assert_eq!((completion.status, completion.errno), (Status::Failed, libc::EIO));
    assert!(completion.stage < 3);
    assert_eq!(bench.drive.counters().opcode(Opcode::Execute).completed, 0);
}

#[test]
pub(super) fn a_drive_says_what_it_is_and_has() {
    let drive = drive();
    let mut pair = drive.queue_pair(4).unwrap();
    let mut buffer = drive.local().allocate(4096).unwrap();
    let bytes = Identity::encoded_bytes(1);
    let offset = buffer.offset();
    let identify = |length| Operation::Identify { into: LocalRange { offset, length } };
    let completion = run(&mut pair, identify(bytes as u32 - 1), &mut buffer);
    assert_eq!((completion.status, completion.result[0]), (Status::Success, bytes as u64));
    assert!(Identity::decode(buffer.bytes()).is_err(), "nothing was written");
    assert!(run(&mut pair, identify(4096), &mut buffer).is_success());
    let identity = Identity::decode(buffer.bytes()).unwrap();
    assert_eq!((identity.flash_bytes, identity.local_bytes, identity.sector_bytes), (1 << 20, 1 << 20, 512));
    assert_eq!((identity.program("add-byte", 9), identity.program("add-byte", 8)), (Some(ProgramId(0)), None));
    let outside = Operation::Identify { into: LocalRange { offset: 1 << 20, length: 1 } };
    assert_eq!(run(&mut pair, outside, &mut buffer).status, Status::InvalidField);
}
