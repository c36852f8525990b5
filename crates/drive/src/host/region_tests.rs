//! A host's region: the drive reads what is leased of it, and nothing else.

use super::testing::{drive_of, finish, run, run_with, submit};
use super::{Drive, Lease, QueuePair};
use crate::flash::memory::MemoryFlash;
use crate::memory::{BLOCK_BYTES, HostArena, HostRegion};
use crate::protocol::{Command, MemoryAddress, Operation, Purpose, RegionId, Status};
use std::sync::Arc;

/// A drive, two arenas of ones and twos, the second half of each not sealed yet, and a queue pair that reads them.
fn bench() -> (Drive, [HostArena; 2], QueuePair) {
    let drive = drive_of(Arc::new(MemoryFlash::new(1 << 20)), Vec::new(), 1);
    let mut arenas = HostRegion::of_arenas::<2>(2 * BLOCK_BYTES).unwrap();
    for (byte, arena) in (1..).zip(&mut arenas) {
        arena.bytes_mut(0, 2 * BLOCK_BYTES).fill(byte);
        arena.seal(BLOCK_BYTES);
    }
    let pair = drive.queue_pair_with_host(arenas[0].region(), 4).unwrap();
    (drive, arenas, pair)
}

fn write(from: MemoryAddress, length: u32) -> Operation {
    Operation::Write { flash: 0, from, length, fua: true }
}

fn first_bytes(drive: &Drive, count: usize) -> Vec<u8> {
    let mut buffer = drive.local().allocate(BLOCK_BYTES).unwrap();
    let read = Operation::Read { flash: 0, local: buffer.offset(), length: BLOCK_BYTES as u32 };
    assert!(run(&mut drive.queue_pair(1).unwrap(), read, &mut buffer).is_success());
    buffer.bytes()[..count].to_vec()
}

#[test]
pub(super) fn what_is_sealed_is_written_to_flash_while_its_arena_is_filled_on() {
    let (drive, [_, mut arena], mut pair) = bench();
    let lease = arena.lease(512..1536);
    let operation = write(lease.address(), 1024);
    pair.submit(Command::new(1, operation).of(Purpose::Log), Lease::Sealed(lease)).unwrap();
    arena.bytes_mut(BLOCK_BYTES, BLOCK_BYTES).fill(3);
    arena.seal(2 * BLOCK_BYTES);
    assert!(finish(&mut pair, 1).iter().all(|returned| returned.completion.is_success()));
    assert_eq!(first_bytes(&drive, 1025), [[2; 1024].as_slice(), &[0]].concat());
    let moved = drive.counters().purpose(Purpose::Log);
    assert_eq!((moved.host_to_local, moved.local_to_flash, moved.local_to_host), (1024, 1024, 0));
    arena.reset();
}

#[test]
pub(super) fn what_is_not_leased_of_a_region_is_refused() {
    let (drive, [arena, next], mut pair) = bench();
    let other = HostRegion::of_arenas::<1>(BLOCK_BYTES).unwrap().map(|mut arena| {
        arena.seal(BLOCK_BYTES);
        arena
    });
    let region_bytes = arena.region().bytes_total() as u64;
    let refused = [
        // Outside its lease, and of the arena next to it.
        (write(MemoryAddress::host(512), 1024), arena.lease(0..1024), Status::OutsideLease),
        (write(MemoryAddress::host(next.offset()), 512), arena.lease(0..1024), Status::OutsideLease),
        // The same place in another region.
        (write(MemoryAddress::local(0), 512), arena.lease(0..1024), Status::OutsideLease),
        (write(MemoryAddress::host(0), 512), other[0].lease(0..1024), Status::OutsideLease),
        (write(MemoryAddress::host(region_bytes), 512), arena.lease(0..1024), Status::InvalidField),
        (write(MemoryAddress::host(1), 512), arena.lease(0..1024), Status::InvalidField),
        (write(MemoryAddress { region: RegionId(2), offset: 0 }, 512), arena.lease(0..1024), Status::UnknownRegion),
        // The drive writes nothing there.
        (Operation::Read { flash: 0, local: 0, length: 512 }, arena.lease(0..1024), Status::OutsideLease),
    ];
    for (operation, lease, status) in refused {
        assert_eq!(run_with(&mut pair, operation, Lease::Sealed(lease)).completion.status, status, "{operation:?}");
    }
    let mut buffer = drive.local().allocate(BLOCK_BYTES).unwrap();
    assert_eq!(run(&mut pair, write(MemoryAddress::host(0), 512), &mut buffer).status, Status::OutsideLease);
    assert_eq!((first_bytes(&drive, 4096), arena.bytes(0..4096)), (vec![0; 4096], &[1; 4096][..]));
    let mut without = drive.queue_pair(1).unwrap();
    let status = |pair: &mut QueuePair, operation, lease| run_with(pair, operation, lease).completion.status;
    let from_host = write(MemoryAddress::host(0), 512);
    assert_eq!(status(&mut without, from_host, Lease::Sealed(arena.lease(0..512))), Status::UnknownRegion);
    assert_eq!(status(&mut pair, from_host, Lease::Sealed(arena.lease(0..512))), Status::Success);
}

#[test]
#[should_panic(expected = "reset while commands read it")]
fn an_arena_is_not_written_anew_while_a_command_reads_it() {
    let (_, [mut arena, _], mut pair) = bench();
    let lease = arena.lease(0..512);
    submit(&mut pair, 1, write(lease.address(), 512), Lease::Sealed(lease));
    arena.reset();
}
