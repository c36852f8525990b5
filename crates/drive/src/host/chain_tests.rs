//! Commands that wait for commands.

use super::testing::{drive_of, run};
use super::tests::AddByte;
use super::{CREDITS, Drive, Lease, QueuePair, Returned};
use crate::flash::faulty::FaultyFlash;
use crate::memory::{LocalBuffer, PartedBuffer};
use crate::protocol::{
    Command, Completion, EventId, Execution, LocalRange, MemoryAddress, Opcode, Operation, ProgramId, Stage, Status,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;

const BLOCK: u32 = 4096;

/// A drive that completes late, in any order, and sometimes in parts; and four blocks of local memory.
struct ChainBench {
    flash: FaultyFlash,
    drive: Drive,
    pair: QueuePair,
    buffer: LocalBuffer,
}

fn event(number: u16) -> EventId {
    EventId::new(number).unwrap()
}

impl ChainBench {
    fn new(seed: u64) -> ChainBench {
        let flash = FaultyFlash::new(1 << 20, seed);
        let drive = drive_of(Arc::new(flash.clone()), vec![Box::new(AddByte)], seed);
        let pair = drive.queue_pair(4).unwrap();
        let buffer = drive.local().allocate(4 * BLOCK as usize).unwrap();
        ChainBench { flash, drive, pair, buffer }
    }

    fn block(&self, number: usize) -> LocalRange {
        LocalRange { offset: self.buffer.offset() + (number * BLOCK as usize) as u64, length: BLOCK }
    }

    fn bytes(&mut self, number: usize) -> &mut [u8] {
        let from = number * BLOCK as usize;
        &mut self.buffer.bytes_mut()[from..from + BLOCK as usize]
    }

    fn read(&self, flash: u64, block: usize) -> Operation {
        Operation::Read { flash, local: self.block(block).offset, length: BLOCK }
    }

    fn write(&self, flash: u64, block: usize) -> Operation {
        Operation::Write { flash, from: MemoryAddress::local(self.block(block).offset), length: BLOCK, fua: true }
    }

    /// A command that adds the first byte of the last block.
    fn add(&self, input: usize, output: usize) -> Operation {
        let parameters = LocalRange { length: 1, ..self.block(3) };
        let (input, output) = (self.block(input), self.block(output));
        Operation::Execute { program: ProgramId(0), parameters, input, output }
    }

    /// Submits a command with the memory of the command that it waits for. If it waits for none, it is lent the buffer, or nothing if it
    /// names no memory.
    fn submit(&mut self, command: Command) {
        let names_memory = !matches!(command.operation, Operation::Flush | Operation::Discard { .. });
        let lease = match command.events.after {
            _ if !names_memory => Lease::Nothing,
            Some(_) => Lease::Inherited,
            None => Lease::Buffer(self.buffer.take()),
        };
        self.pair.submit(command, lease).unwrap();
    }

    /// Like [`ChainBench::submit`], but always lends the buffer.
    fn submit_with_buffer(&mut self, command: Command) {
        let lease = Lease::Buffer(self.buffer.take());
        self.pair.submit(command, lease).unwrap();
    }

    /// Takes all completions until nothing is in flight, ordered by tag. The buffer is back afterwards.
    fn finish(&mut self) -> Vec<Completion> {
        let mut returned = Vec::new();
        while self.pair.in_flight() > 0 {
            if self.pair.poll(&mut returned) == 0 {
                self.pair.wait(None);
            }
        }
        assert_eq!((self.pair.credits(), self.drive.counters().queue_depth_now), (CREDITS, 0));
        returned.sort_by_key(|returned| returned.completion.tag);
        let mut take = |Returned { completion, lease }| {
            if let Lease::Buffer(buffer) = lease {
                assert!(self.buffer.is_empty() && !buffer.is_empty());
                self.buffer = buffer;
            }
            completion
        };
        returned.into_iter().map(&mut take).collect()
    }

    /// Tag, status and the tag that failed first.
    fn ends(&mut self) -> Vec<(u64, Status, u64)> {
        self.finish().iter().map(|end| (end.tag, end.status, end.result[0])).collect()
    }
}

#[test]
pub(super) fn reads_programs_and_writes_make_one_chain() {
    for seed in 0..50 {
        let mut bench = ChainBench::new(seed);
        bench.bytes(0).fill(7);
        bench.bytes(3).fill(2);
        let write = bench.write(0, 0);
        assert!(run(&mut bench.pair, write, &mut bench.buffer).is_success());
        bench.bytes(0).fill(0);
        bench.submit(Command::new(1, bench.read(0, 0)).signals(event(1)).quiet());
        bench.submit(Command::new(2, bench.add(0, 1)).after(event(1)).signals(event(2)).quiet());
        bench.submit(Command::new(3, bench.write(8192, 1)).after(event(2)).signals(event(3)).quiet());
        bench.submit(Command::new(4, bench.read(8192, 2)).after(event(3)));
        assert_eq!(bench.finish(), [Completion::success(4)], "seed {seed}");
        assert!(bench.bytes(2).iter().all(|byte| *byte == 9), "seed {seed}");
        let counters = bench.drive.counters();
        let done = [Opcode::Read, Opcode::Write, Opcode::Execute].map(|opcode| counters.opcode(opcode).completed);
        assert_eq!(done, [2, 2, 1]);
    }
}

#[test]
pub(super) fn pipelines_and_identify_wait_too() {
    let mut bench = ChainBench::new(3);
    bench.bytes(0).fill(1);
    bench.bytes(3)[0] = 4;
    let parameters = LocalRange { length: 1, ..bench.block(3) };
    let stages = [
        Stage::Read { flash: 0, local: bench.block(1).offset, length: BLOCK },
        Stage::Execute(Execution::new(ProgramId(0), parameters, &[bench.block(1)], bench.block(2))),
    ];
    for (place, stage) in stages.iter().enumerate() {
        let at = 512 + place * Stage::ENCODED_BYTES;
        bench.bytes(3)[at..at + Stage::ENCODED_BYTES].copy_from_slice(&stage.encode());
    }
    let list = LocalRange { offset: bench.block(3).offset + 512, length: 2 * Stage::ENCODED_BYTES as u32 };
    bench.submit(Command::new(1, bench.write(0, 0)).signals(event(1)).quiet());
    bench.submit(Command::new(2, Operation::Pipeline { stages: list }).after(event(1)).signals(event(2)));
    let into = bench.block(0);
    bench.submit(Command::new(3, Operation::Identify { into }).after(event(2)));
    let completions = bench.finish();
    assert_eq!(completions.len(), 2);
    assert_eq!((completions[0].status, completions[0].result), (Status::Success, [4096, 5 * 4096]));
    assert!(crate::Identity::decode(bench.bytes(0)).is_ok());
}

#[test]
pub(super) fn many_wait_for_one_event() {
    for seed in 0..20 {
        let mut bench = ChainBench::new(seed);
        bench.bytes(0).fill(9);
        let mut parted = PartedBuffer::new(bench.buffer.take());
        let mut parts = (0..3).map(|number| parted.cut(number * BLOCK as usize, BLOCK as usize));
        let (from, others) = (parts.next().unwrap(), [parts.next().unwrap(), parts.next().unwrap()]);
        let write =
            Operation::Write { flash: 4096, from: MemoryAddress::local(from.range().offset), length: BLOCK, fua: true };
        bench.pair.submit(Command::new(0, write).signals(event(7)).quiet(), Lease::Part(from)).unwrap();
        for (tag, part) in (1..).zip(others) {
            let read = Operation::Read { flash: 4096, local: part.range().offset, length: BLOCK };
            bench.pair.submit(Command::new(tag, read).after(event(7)), Lease::Part(part)).unwrap();
        }
        assert_eq!(bench.finish().len(), 2);
        // The event keeps the lease of the quiet command.
        parted = parted.join().unwrap_err();
        bench.submit(Command::new(3, bench.read(4096, 1)).after(event(7)).signals(event(7)));
        assert_eq!(bench.finish()[0].status, Status::OutsideLease, "the part is of another block");
        bench.buffer = parted.join().unwrap();
        assert!(bench.bytes(1)[..] == [9; 4096] && bench.bytes(2)[..] == [9; 4096]);
        // A done event holds up nobody, and can be signalled again.
        bench.submit(Command::new(2, Operation::Flush).signals(event(7)).quiet());
        bench.submit_with_buffer(Command::new(3, bench.read(4096, 1)).after(event(7)).signals(event(7)));
        bench.submit(Command::new(4, Operation::Flush).after(event(7)));
        assert_eq!(bench.finish().len(), 2);
    }
}

#[test]
pub(super) fn a_failure_aborts_what_waits_for_it_and_nothing_else() {
    let mut bench = ChainBench::new(5);
    bench.flash.fail_nth(Opcode::Read, 1);
    bench.submit(Command::new(10, Operation::Flush).signals(event(1)).quiet());
    bench.submit_with_buffer(Command::new(11, bench.read(0, 0)).after(event(1)).signals(event(2)).quiet());
    bench.submit(Command::new(12, bench.add(0, 1)).after(event(2)).signals(event(3)).quiet());
    bench.submit(Command::new(13, bench.write(0, 1)).after(event(3)));
    bench.submit(Command::new(14, Operation::Flush).after(event(1)).signals(event(4)));
    bench.submit(Command::new(15, Operation::Flush).after(event(4)).quiet());
    let expected =
        [(11, Status::Failed, 0), (12, Status::Aborted, 11), (13, Status::Aborted, 11), (14, Status::Success, 0)];
    assert_eq!(bench.ends(), expected);
    // Commands submitted later fail too, until the event is signalled again.
    bench.submit(Command::new(20, Operation::Flush).after(event(3)));
    assert_eq!(bench.ends(), [(20, Status::Aborted, 11)]);
    bench.submit(Command::new(21, Operation::Flush).signals(event(3)));
    bench.submit(Command::new(22, Operation::Flush).after(event(3)));
    assert_eq!(bench.ends(), [(21, Status::Success, 0), (22, Status::Success, 0)]);
    let counters = bench.drive.counters();
    assert_eq!((counters.opcode(Opcode::Execute).failed, counters.opcode(Opcode::Write).failed), (1, 1));
}

#[test]
pub(super) fn a_program_that_says_no_breaks_its_chain() {
    let mut bench = ChainBench::new(6);
    let Operation::Execute { program, input, output, .. } = bench.add(0, 1) else { unreachable!() };
    let refuses = Operation::Execute { program, parameters: LocalRange::EMPTY, input, output };
    bench.submit(Command::new(1, bench.read(0, 0)).signals(event(1)).quiet());
    bench.submit(Command::new(2, refuses).after(event(1)).signals(event(2)).quiet());
    bench.submit(Command::new(3, bench.write(0, 1)).after(event(2)).quiet());
    assert_eq!(bench.ends(), [(2, Status::Program(1), 0), (3, Status::Aborted, 2)]);
}

#[test]
fn events_that_are_none_are_refused() {
    let mut bench = ChainBench::new(7);
    let flush = |tag| Command::new(tag, Operation::Flush);
    bench.submit(flush(1).signals(event(1)));
    bench.submit(flush(2).signals(event(1)).quiet());
    bench.submit(flush(3).after(event(2)).signals(event(3)));
    bench.submit(flush(4).after(event(3)));
    bench.submit(flush(5).after(event(EventId::MAX + 1)));
    bench.submit(flush(6).signals(event(EventId::MAX + 1)));
    bench.submit(flush(7).signals(event(5)).after(event(5)));
    bench.submit(flush(8).after(event(1)));
    let invalid = |tag| (tag, Status::InvalidEvent, 0);
    let expected = [
        (1, Status::Success, 0),
        invalid(2),
        invalid(3),
        (4, Status::Aborted, 3),
        invalid(5),
        invalid(6),
        invalid(7),
        (8, Status::Success, 0),
    ];
    assert_eq!(bench.ends(), expected);
    // A command refused for another reason breaks its chain too.
    bench.submit(Command::new(9, bench.read(1 << 20, 0)).signals(event(1)));
    bench.submit(flush(10).after(event(1)));
    assert_eq!(bench.ends(), [(9, Status::InvalidField, 0), (10, Status::Aborted, 9)]);
}

#[test]
pub(super) fn quiet_commands_hold_credits_until_they_end() {
    let mut bench = ChainBench::new(8);
    bench.submit(Command::new(0, Operation::Flush).signals(event(1)).quiet());
    for tag in 1..CREDITS as u64 {
        bench.submit(Command::new(tag, Operation::Flush).after(event(1)).quiet());
    }
    assert!(bench.pair.submit_flush(9).is_err() && bench.pair.credits() == 0);
    assert_eq!(bench.finish(), []);
    assert_eq!(bench.drive.counters().opcode(Opcode::Flush).completed, CREDITS as u64);
}

#[test]
pub(super) fn a_queue_pair_is_dropped_with_commands_that_wait() {
    let mut bench = ChainBench::new(9);
    bench.bytes(0).fill(1);
    bench.submit(Command::new(0, bench.write(0, 0)).signals(event(1)));
    bench.submit(Command::new(1, bench.read(0, 1)).after(event(1)));
    let ChainBench { drive, pair, .. } = bench;
    drop(pair);
    assert_eq!(drive.local().bytes_used(), 0);
}

/// The expected end of each command, if all are submitted before the first poll: its status, and the tag that failed first.
fn model(commands: &[(u16, u16, bool)]) -> Vec<(Status, u64)> {
    // By event: pending, or ended at once with the tag that failed first.
    let mut states = [None; 8];
    // How each pending event will end.
    let mut ends = Vec::new();
    for (tag, (after, signals, is_valid)) in (0..).zip(commands) {
        let (after, signals) = (usize::from(*after), usize::from(*signals));
        let before: Option<(bool, Option<u64>)> = states[after];
        if signals > 0 && matches!(states[signals], Some((true, _))) || after > 0 && before.is_none() {
            if signals > 0 && !matches!(states[signals], Some((true, _))) {
                states[signals] = Some((false, Some(tag)));
            }
            ends.push((Status::InvalidEvent, 0));
            continue;
        }
        let failed_before = before.and_then(|(_, failed)| failed);
        let (status, first) = match failed_before {
            _ if !is_valid => (Status::InvalidField, None),
            Some(first) => (Status::Aborted, Some(first)),
            None => (Status::Success, None),
        };
        let is_pending = *is_valid && before.is_none_or(|(is_pending, failed)| is_pending || failed.is_none());
        if signals > 0 {
            let failed = if status == Status::InvalidField { Some(tag) } else { first };
            states[signals] = Some((is_pending, failed));
        }
        ends.push((status, first.unwrap_or(0)));
    }
    ends
}

proptest! {
    #[test]
    fn chains_end_as_their_model_does(
        commands in vec((0..8_u16, 0..8_u16, any::<bool>(), 0..6_u8), 1..60), seed: u64,
    ) {
        let mut bench = ChainBench::new(seed);
        let mut plain = Vec::new();
        let mut quiet = Vec::new();
        for (tag, (after, signals, is_quiet, valid)) in (0..).zip(commands) {
            let flash = if valid > 0 { 0 } else { 1 << 20 };
            let mut command = Command::new(tag, Operation::Discard { flash, length: 512 });
            (command.events.after, command.events.signals) = (EventId::new(after), EventId::new(signals));
            command.events.is_quiet = is_quiet;
            bench.submit(command);
            plain.push((after, signals, valid > 0));
            quiet.push(is_quiet);
        }
        let ends = (0..).zip(model(&plain)).map(|(tag, (status, first))| (tag, status, first));
        let expected: Vec<_> = ends.filter(|end| !quiet[end.0 as usize] || end.1 != Status::Success).collect();
        prop_assert_eq!(bench.ends(), expected);
    }
}
