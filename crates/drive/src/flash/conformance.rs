//! One test body over every backend: what a queue pair promises, whoever moves the bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Flash;
use super::faulty::FaultyFlash;
use super::file::{FileFlash, IoEngine};
use super::memory::MemoryFlash;
use super::overlay::OverlayFlash;
use super::redundant::shape::{Redundancy, Shape};
use super::redundant::{RedundantFlash, member_bytes};
use super::set::{SetFlash, SetMember};
use super::test_path::TestPath;
use crate::env::Env;
use crate::host::testing::{finish, run, run_with, submit};
use crate::host::{Drive, Lease, QueuePair, Returned};
use crate::memory::{LocalBuffer, LocalMemory};
use crate::protocol::{Command, Completion, MemoryAddress, Opcode, Operation, Status};

pub(crate) const CAPACITY_BYTES: u64 = 4 << 20;
const BLOCK: u32 = 4096;
/// A wake-up that takes longer is lost.
const PATIENCE_MS: i32 = 20_000;

/// The backend, and the file under it.
type Backend = (Arc<dyn Flash>, Option<TestPath>);

fn file(path: TestPath, engine: IoEngine) -> Backend {
    let flash = FileFlash::create(&path, CAPACITY_BYTES, engine, &Env::system()).unwrap();
    (Arc::new(flash), Some(path))
}

/// Runs the body on a drive over the backend: with a queue deeper and one far shallower than its load, for any thread and for
/// one; polled by the host, and by a thread of the drive's.
fn check((flash, _path): Backend) {
    let drive = || Drive::new(flash.clone(), LocalMemory::new(1 << 20).unwrap(), Vec::new(), Env::system());
    check_drive(drive);
    check_drive(|| drive().with_threads(1).unwrap());
    if flash.grow(0).is_ok() {
        an_open_queue_pair_reaches_what_grew(flash);
    }
}

/// The body, on drives of 1 MiB of local memory over the same [`CAPACITY_BYTES`] of flash.
pub(crate) fn check_drive(drive: impl Fn() -> Drive) {
    type Open = fn(&Drive, u32) -> io::Result<QueuePair>;
    let ways: [Open; 2] = [Drive::queue_pair, Drive::queue_pair_of_one_thread];
    for (depth, open) in [64, 2].into_iter().flat_map(|depth| ways.map(|open| (depth, open))) {
        let drive = drive();
        let mut pair = open(&drive, depth).unwrap();
        reads_give_back_what_was_written(&drive, &mut pair);
        a_write_from_the_hosts_region_is_read_back(&drive, &mut pair);
        many_in_flight_complete_once_each(&drive, &mut pair);
        ranges_are_checked(&drive, &mut pair);
        other_queue_pairs_see_the_bytes(&drive, &mut pair);
        waiting_ends(&drive, &mut pair);
        sleeping_ends(&drive, &mut pair, |fd| readable(fd, PATIENCE_MS));
        let edges = pair.event_fd().map(Edges::of);
        sleeping_ends(&drive, &mut pair, |_| edges.as_ref().is_some_and(Edges::next));
        dropping_waits_for_what_is_in_flight(&drive, pair);
        let counters = drive.counters();
        assert_eq!((counters.queue_depth_now, counters.opcode(Opcode::Flush).failed), (0, 0));
    }
}

fn an_open_queue_pair_reaches_what_grew(flash: Arc<dyn Flash>) {
    let drive = Drive::new(flash, LocalMemory::new(1 << 20).unwrap(), Vec::new(), Env::system());
    let mut pair = drive.queue_pair(2).unwrap();
    let mut buffer = drive.local().allocate(BLOCK as usize).unwrap();
    let (local, length) = (buffer.offset(), BLOCK);
    let write = Operation::Write { flash: CAPACITY_BYTES, from: MemoryAddress::local(local), length, fua: true };
    assert_eq!(run(&mut pair, write, &mut buffer).status, Status::InvalidField);
    drive.grow(2 * CAPACITY_BYTES).unwrap();
    drive.grow(CAPACITY_BYTES).unwrap();
    assert_eq!(drive.capacity_bytes(), 2 * CAPACITY_BYTES, "it never shrinks");
    buffer.bytes_mut().fill(7);
    assert_eq!(run(&mut pair, write, &mut buffer).status, Status::Success);
    let last = 2 * CAPACITY_BYTES - u64::from(BLOCK);
    for (flash, byte) in [(CAPACITY_BYTES, 7), (last, 0)] {
        assert!(run(&mut pair, Operation::Read { flash, local, length }, &mut buffer).is_success());
        assert!(buffer.bytes().iter().all(|found| *found == byte));
    }
    let beyond = Operation::Read { flash: 2 * CAPACITY_BYTES, local, length };
    assert_eq!(run(&mut pair, beyond, &mut buffer).status, Status::InvalidField);
}

/// The kernel may raise a ring's event after its completion was taken: nobody who sleeps on it is kept awake by that.
#[test]
fn a_late_wake_up_by_a_ring_is_over_soon() {
    let (flash, _path) = file(TestPath::new(), IoEngine::Auto);
    let drive = Drive::new(flash, LocalMemory::new(1 << 20).unwrap(), Vec::new(), Env::system());
    let mut pair = drive.queue_pair_of_one_thread(8).unwrap();
    waiting_ends(&drive, &mut pair);
    let Some(fd) = pair.event_fd() else { return };
    // SAFETY: the queue pair keeps it open meanwhile.
    let Ok(raiser) = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned() else {
        panic!("no descriptor is left")
    };
    if File::from(raiser).write(&1u64.to_ne_bytes()).is_err() {
        return; // The kernel has no such rings.
    }
    let polls = (0..1000).take_while(|_| readable(fd, 0)).map(|_| pair.poll(&mut Vec::new())).count();
    assert!(polls < 100, "{polls} polls for nothing");
    sleeping_ends(&drive, &mut pair, |fd| readable(fd, PATIENCE_MS));
}

#[test]
fn memory() {
    check((Arc::new(MemoryFlash::new(CAPACITY_BYTES)), None));
    check((Arc::new(MemoryFlash::with_sector_bytes(CAPACITY_BYTES, 4096)), None));
}

#[test]
fn faulty_without_faults() {
    for seed in 0..20 {
        check((Arc::new(FaultyFlash::new(CAPACITY_BYTES, seed)), None));
    }
}

#[test]
fn overlay() {
    let over = |(base, path): Backend| -> Backend { (Arc::new(OverlayFlash::new(base, CAPACITY_BYTES)), path) };
    check(over((Arc::new(MemoryFlash::new(CAPACITY_BYTES)), None)));
    check(over((Arc::new(FaultyFlash::new(CAPACITY_BYTES, 1)), None)));
    for engine in [IoEngine::Auto, IoEngine::Blocking] {
        check(over(file(TestPath::new(), engine)));
    }
}

#[test]
fn file_best_engine() {
    check(file(TestPath::new(), IoEngine::Auto));
}

#[test]
fn file_blocking() {
    check(file(TestPath::new(), IoEngine::Blocking));
}

#[test]
fn file_in_memory_backed_file_system() {
    // Where O_DIRECT may be refused, so that the page cache is in between.
    let folder = Path::new("/dev/shm");
    if folder.is_dir() {
        check(file(TestPath::inside(folder), IoEngine::Auto));
        check(file(TestPath::inside(folder), IoEngine::Blocking));
    }
}

fn read(flash: u64, buffer: &LocalBuffer) -> Operation {
    Operation::Read { flash, local: buffer.offset(), length: buffer.len() as u32 }
}

fn write(flash: u64, buffer: &LocalBuffer, fua: bool) -> Operation {
    Operation::Write { flash, from: MemoryAddress::local(buffer.offset()), length: buffer.len() as u32, fua }
}

fn reads_give_back_what_was_written(drive: &Drive, pair: &mut QueuePair) {
    let before = drive.counters();
    let mut out = drive.local().allocate(BLOCK as usize * 3).unwrap();
    let mut back = drive.local().allocate(BLOCK as usize * 3).unwrap();
    let mut nothing = back.take();
    std::mem::swap(&mut nothing, &mut back);
    for (round, fua) in [(1, false), (2, true)] {
        for (place, byte) in out.bytes_mut().iter_mut().enumerate() {
            *byte = (place / 100) as u8 ^ round;
        }
        assert!(run(pair, write(256 * 1024 - 4096, &out, fua), &mut out).is_success());
        assert!(run(pair, Operation::Flush, &mut nothing).is_success());
        assert!(run(pair, read(256 * 1024 - 4096, &back), &mut back).is_success());
        assert!(out.bytes() == back.bytes());
    }
    let discard = Operation::Discard { flash: CAPACITY_BYTES - 4096, length: 4096 };
    assert!(run(pair, discard, &mut nothing).is_success());
    let moved_bytes = 2 * out.len() as u64;
    let after = drive.counters();
    assert_eq!(after.flash_to_local_bytes - before.flash_to_local_bytes, moved_bytes);
    assert_eq!(after.local_to_flash_bytes - before.local_to_flash_bytes, moved_bytes);
}

fn a_write_from_the_hosts_region_is_read_back(drive: &Drive, pair: &mut QueuePair) {
    let [_, mut arena] = drive.host_arenas::<2>(64 << 10).unwrap();
    let mut host_pair = drive.queue_pair_with_host(arena.region(), 4).unwrap();
    arena.bytes_mut(0, 64 << 10).fill(77);
    arena.seal(64 << 10);
    let lease = arena.lease(4096..64 << 10);
    let write = Operation::Write { flash: 0, from: lease.address(), length: 60 << 10, fua: true };
    assert!(run_with(&mut host_pair, write, Lease::Sealed(lease)).completion.is_success());
    let mut back = drive.local().allocate(60 << 10).unwrap();
    assert!(run(pair, read(0, &back), &mut back).is_success() && back.bytes().iter().all(|byte| *byte == 77));
}

fn many_in_flight_complete_once_each(drive: &Drive, pair: &mut QueuePair) {
    const COUNT: u64 = 100;
    let mut buffers: Vec<_> = (0..COUNT).map(|_| drive.local().allocate(BLOCK as usize).unwrap()).collect();
    for round in [3, 5] {
        for (tag, mut buffer) in (0..).zip(buffers.drain(..)) {
            buffer.bytes_mut().fill(tag as u8 ^ round);
            let fua = tag % 7 == 0;
            submit(pair, tag, write(tag * 8192, &buffer, fua), buffer);
            if tag % 10 == 9 {
                submit(pair, COUNT, Operation::Flush, Lease::Nothing);
            }
        }
        assert_eq!(pair.in_flight() as u64, COUNT + COUNT / 10);
        let mut returned = finish(pair, 110);
        assert!(returned.iter().all(|returned| returned.completion.is_success()));
        returned.sort_by_key(|returned| returned.completion.tag);
        assert!((0..COUNT).eq(returned[..100].iter().map(|returned| returned.completion.tag)));
        for (tag, returned) in (0..).zip(returned.drain(..100)) {
            let mut buffer = returned.lease.into_buffer();
            buffer.bytes_mut().fill(0);
            submit(pair, tag, read(tag * 8192, &buffer), buffer);
        }
        for Returned { completion, lease } in finish(pair, 100) {
            let buffer = lease.into_buffer();
            assert!(completion.is_success());
            assert!(buffer.bytes().iter().all(|&byte| byte == completion.tag as u8 ^ round), "{completion:?}");
            buffers.push(buffer);
        }
    }
}

fn ranges_are_checked(drive: &Drive, pair: &mut QueuePair) {
    let mut buffer = drive.local().allocate(BLOCK as usize).unwrap();
    let (local, local_end) = (buffer.offset(), drive.local().bytes_total() as u64);
    let sector = drive.sector_bytes();
    let reads = [
        (CAPACITY_BYTES, local, sector),
        (CAPACITY_BYTES - 4096, local, 8192),
        (u64::MAX - 4095, local, 4096),
        (1, local, sector),
        (0, local, sector - 1),
        (0, local, 0),
        (0, local + 1, sector),
        (0, local_end, sector),
        (0, local_end - 4096, 8192),
        (0, u64::MAX - 4095, 4096),
    ];
    for (flash, local, length) in reads {
        for operation in [
            Operation::Read { flash, local, length },
            Operation::Write { flash, from: MemoryAddress::local(local), length, fua: false },
        ] {
            let status = run(pair, operation, &mut buffer).status;
            // A drive elsewhere has memory of its own behind the host's, which is not leased.
            let is_refused = status == Status::InvalidField || status == Status::OutsideLease && drive.is_elsewhere();
            assert!(is_refused, "{operation:?}: {status:?}");
        }
    }
    assert!(run(pair, Operation::Read { flash: CAPACITY_BYTES - 4096, local, length: 4096 }, &mut buffer).is_success());
}

fn other_queue_pairs_see_the_bytes(drive: &Drive, pair: &mut QueuePair) {
    let mut buffer = drive.local().allocate(BLOCK as usize).unwrap();
    let mut other = drive.queue_pair(1).unwrap();
    buffer.bytes_mut().fill(0x3c);
    assert!(run(pair, write(0, &buffer, false), &mut buffer).is_success());
    buffer.bytes_mut().fill(0);
    assert!(run(&mut other, read(0, &buffer), &mut buffer).is_success());
    assert!(buffer.bytes().iter().all(|&byte| byte == 0x3c));
}

fn waiting_ends(drive: &Drive, pair: &mut QueuePair) {
    pair.wait(None); // Nothing is in flight.
    let buffer = drive.local().allocate(BLOCK as usize).unwrap();
    submit(pair, 1, read(0, &buffer), buffer);
    pair.wait(Some(Duration::from_secs(600)));
    let mut returned = Vec::new();
    while pair.poll(&mut returned) == 0 {
        let Some(event_fd) = pair.event_fd() else { continue };
        assert!(readable(event_fd, PATIENCE_MS));
    }
    assert_eq!(returned.len(), 1);
    if let Some(event_fd) = pair.event_fd() {
        assert!(!readable(event_fd, 0), "a queue with nothing to give must let its owner sleep");
    }
}

/// Nobody polls while the owner sleeps, and yet it is woken: each time, for few commands and for many.
fn sleeping_ends(drive: &Drive, pair: &mut QueuePair, woken: impl Fn(RawFd) -> bool) {
    let Some(event_fd) = pair.event_fd() else { return };
    let mut buffers: Vec<_> = (0..40).map(|_| drive.local().allocate(BLOCK as usize).unwrap()).collect();
    for round in 0..60 {
        let count = 1 + round % buffers.len();
        for (tag, buffer) in (0..).zip(buffers.drain(..count)) {
            submit(pair, tag, read(tag * 8192, &buffer), buffer);
        }
        let mut returned = Vec::new();
        while pair.in_flight() > 0 {
            assert!(pair.poll(&mut returned) > 0 || woken(event_fd), "nothing woke it in round {round}");
        }
        buffers.extend(returned.into_iter().map(|returned| returned.lease.into_buffer()));
    }
}

/// An epoll that hears of a descriptor's becoming readable, not of its being so.
struct Edges(OwnedFd);

impl Edges {
    fn of(fd: RawFd) -> Edges {
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        // SAFETY: the new descriptor is ours alone; `event` lives through the call.
        unsafe {
            let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            assert!(epoll >= 0);
            assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event), 0);
            Edges(OwnedFd::from_raw_fd(epoll))
        }
    }

    fn next(&self) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: one live entry.
        ready(|| unsafe { libc::epoll_wait(self.0.as_raw_fd(), &mut event, 1, PATIENCE_MS) })
    }
}

fn readable(fd: RawFd, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live entry.
    ready(|| unsafe { libc::poll(&mut poll, 1, timeout_ms) })
}

/// Whether a wait for one descriptor ended with it. Rings interrupt such waits.
fn ready(mut wait: impl FnMut() -> libc::c_int) -> bool {
    loop {
        match wait() {
            -1 => assert_eq!(io::Error::last_os_error().kind(), io::ErrorKind::Interrupted),
            count => return count == 1,
        }
    }
}

fn dropping_waits_for_what_is_in_flight(drive: &Drive, mut pair: QueuePair) {
    let used_before = drive.local().bytes_used();
    let allocate = || -> Vec<_> { (0..32).map(|_| drive.local().allocate(BLOCK as usize).unwrap()).collect() };
    for (tag, buffer) in (0..).zip(allocate()) {
        submit(&mut pair, tag, read(tag * 8192, &buffer), buffer);
    }
    pair.poll(&mut Vec::new());
    drop(pair);
    assert_eq!(drive.local().bytes_used(), used_before, "what was lent is free");
    let mut buffers = allocate();
    for buffer in &mut buffers {
        buffer.bytes_mut().fill(0xee);
    }
    // A read still under way would show.
    let mut pair = drive.queue_pair(1).unwrap();
    pair.submit_flush(1).unwrap();
    assert!(finish(&mut pair, 1)[0].completion.is_success());
    let all = 0..BLOCK as usize;
    assert!(buffers.iter().all(|buffer| buffer.looked_at(all.clone()).iter().all(|&byte| byte == 0xee)));
}

/// The drive's side of a byte stream: commands come in, completions go out. Local memory is shared: the host has lent the buffers
/// of its commands, in their order, and has them back, by tag.
fn serve(
    drive: &Drive,
    mut commands: PipeReader,
    mut completions: PipeWriter,
    leases: Vec<LocalBuffer>,
) -> BTreeMap<u64, Lease> {
    let mut pair = drive.queue_pair(8).unwrap();
    let mut bytes = [0; Command::ENCODED_BYTES];
    let (mut leases, mut returned) = (leases.into_iter(), Vec::new());
    while commands.read_exact(&mut bytes).is_ok() {
        let Command { tag, operation, .. } = Command::decode(&bytes).unwrap();
        submit(&mut pair, tag, operation, leases.next().map_or(Lease::Nothing, Lease::Buffer));
        pair.poll(&mut returned);
    }
    while pair.in_flight() > 0 {
        pair.wait(None);
        pair.poll(&mut returned);
    }
    let send = |Returned { completion, lease }| {
        completions.write_all(&completion.encode()).unwrap();
        (completion.tag, lease)
    };
    returned.into_iter().map(send).collect()
}

/// Sends commands to a far end and gathers its completions, sorted by tag. Each of the first is lent one of the buffers.
fn exchange(
    drive: &Drive,
    buffers: &mut Vec<LocalBuffer>,
    operations: impl Iterator<Item = Operation>,
) -> Vec<Completion> {
    let ((commands_out, mut commands_in), (mut completions_out, completions_in)) = (pipe().unwrap(), pipe().unwrap());
    let (far, leases, given_back) = (drive.clone(), std::mem::take(buffers), Arc::new(OnceLock::new()));
    let give_back = given_back.clone();
    let far_end = move || give_back.set(serve(&far, commands_out, completions_in, leases)).unwrap();
    let far_end = drive.env().spawn("far-end", far_end).unwrap();
    for (tag, operation) in (0..).zip(operations) {
        commands_in.write_all(&Command::new(tag, operation).encode()).unwrap();
    }
    drop(commands_in);
    let mut bytes = Vec::new();
    completions_out.read_to_end(&mut bytes).unwrap();
    far_end.join().unwrap();
    let given_back = Arc::into_inner(given_back).and_then(OnceLock::into_inner).unwrap();
    buffers.extend(given_back.into_values().filter(|lease| !matches!(lease, Lease::Nothing)).map(Lease::into_buffer));
    let (encoded, rest) = bytes.as_chunks::<{ Completion::ENCODED_BYTES }>();
    assert!(rest.is_empty());
    let mut completions: Vec<_> = encoded.iter().map(|bytes| Completion::decode(bytes).unwrap()).collect();
    completions.sort_by_key(|completion| completion.tag);
    completions
}

/// Members whose ends cut blocks in two.
fn set_of(members: [Arc<dyn Flash>; 3]) -> Backend {
    let used = [(1 << 20) + 512, (1 << 20) + 1024];
    let used = [used[0], used[1], CAPACITY_BYTES - used[0] - used[1]];
    let heads = [0, 4096, 512];
    let member = |((flash, head_bytes), used_bytes)| SetMember { flash, head_bytes, used_bytes };
    (Arc::new(SetFlash::new(members.into_iter().zip(heads).zip(used).map(member).collect())), None)
}

#[test]
fn a_set_of_members() {
    check(set_of([(); 3].map(|()| Arc::new(MemoryFlash::new(CAPACITY_BYTES)) as Arc<dyn Flash>)));
    check(set_of([1, 2, 3].map(|seed| Arc::new(FaultyFlash::new(CAPACITY_BYTES, seed)) as Arc<dyn Flash>)));
    let files = [IoEngine::Auto, IoEngine::Blocking, IoEngine::Auto].map(|engine| file(TestPath::new(), engine));
    if files.iter().all(|(flash, _)| flash.sector_bytes() == 512) {
        check(set_of(files.each_ref().map(|(flash, _)| flash.clone())));
    }
}

#[test]
fn a_set_with_redundancy() {
    for (redundancy, count) in [(Redundancy::Mirror, 2), (Redundancy::Raid5, 3)] {
        let shape = Shape { redundancy, members: count, own_bytes: 64 << 10, extent_bytes: 64 << 10, extents: 63 };
        assert_eq!(shape.capacity_bytes(), CAPACITY_BYTES);
        let member = |number: usize, flash: Arc<dyn Flash>| SetMember {
            flash,
            head_bytes: 4096,
            used_bytes: member_bytes(&shape, number),
        };
        let set = |make: &dyn Fn(u64) -> Arc<dyn Flash>| -> Backend {
            let members = (0..count).map(|number| member(number, make(number as u64))).collect();
            let flash = RedundantFlash::new(shape, members, 0, Box::new(|_| panic!("no member fails")));
            // All is written in place.
            flash.rows().unwrap().begin_copies(0, 31);
            (Arc::new(flash), None)
        };
        check(set(&|_| Arc::new(MemoryFlash::new(2 * CAPACITY_BYTES))));
        check(set(&|seed| Arc::new(FaultyFlash::new(2 * CAPACITY_BYTES, seed))));
        let paths: Vec<_> = (0..count).map(|_| TestPath::new()).collect();
        check(set(&|number| {
            let flash = FileFlash::create(&paths[number as usize], 2 * CAPACITY_BYTES, IoEngine::Auto, &Env::system());
            Arc::new(flash.unwrap())
        }));
    }
}

#[test]
fn a_drive_at_the_far_end_of_a_pipe() {
    let (flash, _path) = file(TestPath::new(), IoEngine::Auto);
    let drive = Drive::new(flash, LocalMemory::new(1 << 20).unwrap(), Vec::new(), Env::system());
    let mut buffers: Vec<_> = (0..50).map(|_| drive.local().allocate(BLOCK as usize).unwrap()).collect();
    for (place, buffer) in (1..).zip(&mut buffers) {
        buffer.bytes_mut().fill(place);
    }
    let places = || (0..).map(|place| place * 8192);
    let writes: Vec<_> = places().zip(&buffers).map(|(flash, buffer)| write(flash, buffer, true)).collect();
    let beyond = read(CAPACITY_BYTES, &buffers[0]);
    let done = exchange(&drive, &mut buffers, writes.into_iter().chain([Operation::Flush, beyond]));
    let statuses: Vec<_> = done.iter().map(|completion| completion.status).collect();
    assert_eq!(statuses[..51], [Status::Success; 51]);
    assert_eq!(statuses[51..], [Status::InvalidField]);

    buffers.iter_mut().for_each(|buffer| buffer.bytes_mut().fill(0));
    let reads: Vec<_> = places().zip(&buffers).map(|(flash, buffer)| read(flash, buffer)).collect();
    let done = exchange(&drive, &mut buffers, reads.into_iter());
    assert!((0..50).eq(done.iter().map(|completion| completion.tag)) && done.iter().all(Completion::is_success));
    for (place, buffer) in (1..).zip(&buffers) {
        assert!(buffer.bytes().iter().all(|&byte| byte == place));
    }
}
