//! Leases: a command can name nothing else, and gets its lease back.

use super::testing::{drive_of, finish, run, run_with, submit};
use super::{Drive, Lease, QueuePair};
use crate::flash::faulty::FaultyFlash;
use crate::flash::memory::MemoryFlash;
use crate::memory::{BLOCK_BYTES, LocalBuffer, PartedBuffer};
use crate::programs::built_in;
use crate::protocol::CREDITS;
use crate::protocol::{Command, Execution, LocalRange, MemoryAddress, Opcode, Operation, ProgramId, Stage, Status};
use std::sync::Arc;

fn drive_over(flash: Arc<dyn crate::Flash>) -> Drive {
    drive_of(flash, built_in(), 1)
}

/// A drive whose flash is filled with threes, and a queue pair of it.
fn bench() -> (Drive, QueuePair) {
    let drive = drive_over(Arc::new(MemoryFlash::new(1 << 20)));
    let mut pair = drive.queue_pair(4).unwrap();
    let mut buffer = filled(&drive, 3);
    let write = Operation::Write { flash: 0, from: MemoryAddress::local(buffer.offset()), length: 4096, fua: true };
    assert!(run(&mut pair, write, &mut buffer).is_success());
    (drive, pair)
}

fn filled(drive: &Drive, byte: u8) -> LocalBuffer {
    let mut buffer = drive.local().allocate(BLOCK_BYTES).unwrap();
    buffer.bytes_mut().fill(byte);
    buffer
}

fn part(buffer: &LocalBuffer, at: u64, length: u32) -> LocalRange {
    LocalRange { offset: buffer.offset() + at, length }
}

#[test]
pub(super) fn a_command_outside_its_lease_is_refused_and_touches_nothing() {
    let (drive, mut pair) = bench();
    let (mut own, others) = (filled(&drive, 1), filled(&drive, 2));
    let (ours, theirs) = (own.offset(), others.offset());
    let empty = LocalRange::EMPTY;
    let execute = |parameters, input, output| Operation::Execute { program: ProgramId(0), parameters, input, output };
    let outside = [
        Operation::Read { flash: 0, local: theirs, length: 512 },
        Operation::Read { flash: 0, local: ours + 3584, length: 1024 },
        Operation::Write { flash: 0, from: MemoryAddress::local(theirs), length: 512, fua: true },
        Operation::Pipeline { stages: part(&others, 0, 64) },
        Operation::Identify { into: part(&others, 0, 4096) },
        execute(part(&others, 0, 1), empty, empty),
        execute(empty, part(&others, 0, 1), empty),
        execute(empty, empty, part(&others, 0, 1)),
    ];
    for operation in outside {
        assert_eq!(run(&mut pair, operation, &mut own).status, Status::OutsideLease, "{operation:?}");
        assert_eq!(run_with(&mut pair, operation, Lease::Nothing).completion.status, Status::OutsideLease);
    }
    assert!(others.bytes().iter().all(|byte| *byte == 2) && own.bytes().iter().all(|byte| *byte == 1));
    assert!(run(&mut pair, Operation::Read { flash: 0, local: ours, length: 512 }, &mut own).is_success());
    assert_eq!(own.bytes()[..513], [[3; 512].as_slice(), &[1]].concat(), "nothing was written to flash");
    assert_eq!(drive.counters().opcode(Opcode::Read).failed, 4);
}

#[test]
pub(super) fn a_stage_outside_the_lease_is_named() {
    let (drive, mut pair) = bench();
    let (mut own, others) = (filled(&drive, 1), filled(&drive, 2));
    let read = |local| Stage::Read { flash: 0, local, length: 512 };
    let execute = |input, output| Stage::Execute(Execution::new(ProgramId(0), LocalRange::EMPTY, &[input], output));
    let (inside, outside) = (read(own.offset() + 1024), read(others.offset()));
    let lists = [
        ([inside, outside], 1),
        ([outside, inside], 0),
        ([inside, execute(part(&own, 0, 8), part(&others, 0, 8))], 1),
        ([inside, execute(part(&others, 0, 8), part(&own, 0, 8))], 1),
        ([inside, execute(part(&own, 4095, 2), LocalRange::EMPTY)], 1),
    ];
    for (stages, stage) in lists {
        for (at, encoded) in own.bytes_mut().chunks_exact_mut(64).zip(stages) {
            at.copy_from_slice(&encoded.encode());
        }
        let stages = part(&own, 0, 128);
        let completion = run(&mut pair, Operation::Pipeline { stages }, &mut own);
        assert_eq!((completion.status, completion.stage), (Status::OutsideLease, stage));
    }
    assert!(others.bytes().iter().all(|byte| *byte == 2) && own.bytes()[1024..].iter().all(|byte| *byte == 1));
    assert_eq!(drive.counters().opcode(Opcode::Read).completed, 0, "what is refused starts nothing");
}

#[test]
pub(super) fn memory_of_another_drive_lends_nothing() {
    let (drive, mut pair) = bench();
    let other = drive_over(Arc::new(MemoryFlash::new(4096)));
    let (buffer, mut foreign) = (filled(&drive, 1), filled(&other, 1));
    assert_eq!(buffer.offset(), foreign.offset());
    let read = Operation::Read { flash: 0, local: foreign.offset(), length: 512 };
    assert_eq!(run(&mut pair, read, &mut foreign).status, Status::OutsideLease);
    assert_eq!((buffer.bytes()[0], foreign.bytes()[0]), (1, 1));
}

#[test]
pub(super) fn parts_of_a_buffer_are_with_several_commands() {
    let (drive, mut pair) = bench();
    let mut parted = PartedBuffer::new(filled(&drive, 1));
    for (tag, at) in [(1, 0), (2, 1024)] {
        let part = parted.cut(at, 512);
        let LocalRange { offset, length } = part.range();
        submit(&mut pair, tag, Operation::Read { flash: 0, local: offset, length }, Lease::Part(part));
    }
    let part = parted.cut(2048, 512);
    let beside = Operation::Read { flash: 0, local: part.range().offset, length: 1024 };
    submit(&mut pair, 3, beside, Lease::Part(part));
    let parted = parted.join().unwrap_err();
    for returned in finish(&mut pair, 3) {
        let expected = if returned.completion.tag == 3 { Status::OutsideLease } else { Status::Success };
        assert_eq!(returned.completion.status, expected);
    }
    let buffer = parted.join().unwrap();
    let changed: Vec<u8> = buffer.bytes().chunks(512).map(|sector| sector[0]).collect();
    assert_eq!(changed, [3, 1, 3, 1, 1, 1, 1, 1]);
}

#[test]
fn a_full_queue_says_so_and_gives_the_lease_back() {
    let (drive, mut pair) = bench();
    (0..CREDITS as u64).for_each(|tag| pair.submit_flush(tag).unwrap());
    assert!(pair.submit_flush(9).is_err() && pair.credits() == 0);
    let buffer = filled(&drive, 1);
    let read = Operation::Read { flash: 0, local: buffer.offset(), length: 512 };
    let full = pair.submit(Command::new(9, read), buffer.into()).unwrap_err();
    let mut returned = Vec::new();
    while pair.in_flight() > 0 {
        pair.poll(&mut returned);
    }
    assert_eq!((returned.len(), pair.credits()), (CREDITS, CREDITS));
    assert_eq!(full.lease.into_buffer().bytes(), [1; BLOCK_BYTES]);
    assert!(pair.submit_flush(9).is_ok());
}

#[test]
pub(super) fn each_command_has_its_own_lease_back_whatever_its_tag() {
    let (drive, mut pair) = bench();
    for round in 0..3 {
        for _ in 0..5 {
            let buffer = filled(&drive, 1);
            submit(&mut pair, round, Operation::Read { flash: 0, local: buffer.offset(), length: 512 }, buffer);
        }
        let offsets: std::collections::BTreeSet<u64> = finish(&mut pair, 5)
            .into_iter()
            .map(|returned| {
                assert_eq!(returned.completion.tag, round);
                returned.lease.into_buffer().offset()
            })
            .collect();
        assert_eq!((offsets.len(), pair.in_flight()), (5, 0));
    }
}

#[test]
fn a_queue_pair_that_is_dropped_frees_what_it_was_lent() {
    // This flash panics if somebody touches a buffer that a command in flight names.
    let flash = FaultyFlash::new(1 << 20, 1);
    for crashes in [false, true] {
        let drive = drive_over(Arc::new(flash.clone()));
        let mut pair = drive.queue_pair(4).unwrap();
        let buffer = filled(&drive, 1);
        submit(&mut pair, 1, Operation::Read { flash: 0, local: buffer.offset(), length: 4096 }, buffer);
        if crashes {
            flash.crash();
            pair.drain();
        }
        assert_eq!(drive.local().bytes_used(), BLOCK_BYTES, "the drive has it");
        drop(pair);
        assert_eq!(drive.local().bytes_used(), 0);
    }
}
