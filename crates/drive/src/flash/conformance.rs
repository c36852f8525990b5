//! One test body over every backend: what a queue pair promises, whoever moves the bytes.

use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::Flash;
use super::faulty::FaultyFlash;
use super::file::{FileFlash, IoEngine};
use super::memory::MemoryFlash;
use super::overlay::OverlayFlash;
use super::test_path::TestPath;
use crate::env::Env;
use crate::host::{CREDITS, Drive, QueuePair};
use crate::memory::{LocalBuffer, LocalMemory};
use crate::protocol::{Command, Completion, EventId, Opcode, Operation, Status};

const CAPACITY_BYTES: u64 = 4 << 20;
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
/// one.
fn check((flash, _path): Backend) {
    type Open = fn(&Drive, u32) -> io::Result<QueuePair>;
    let ways: [Open; 2] = [Drive::queue_pair, Drive::queue_pair_of_one_thread];
    for (depth, open) in [64, 2].into_iter().flat_map(|depth| ways.map(|open| (depth, open))) {
        let drive = Drive::new(flash.clone(), LocalMemory::new(1 << 20).unwrap(), Vec::new(), Env::system());
        let mut pair = open(&drive, depth).unwrap();
        reads_give_back_what_was_written(&drive, &mut pair);
        many_in_flight_complete_once_each(&drive, &mut pair);
        ranges_are_checked(&drive, &mut pair);
        other_queue_pairs_see_the_bytes(&drive, &mut pair);
        a_chain_has_one_completion(&drive, &mut pair);
        a_broken_chain_names_its_first_failure(&drive, &mut pair);
        waiting_ends(&drive, &mut pair);
        sleeping_ends(&drive, &mut pair, |fd| readable(fd, PATIENCE_MS));
        let edges = pair.event_fd().map(Edges::of);
        sleeping_ends(&drive, &mut pair, |_| edges.as_ref().is_some_and(Edges::next));
        dropping_waits_for_what_is_in_flight(&drive, pair);
        let counters = drive.counters();
        assert_eq!((counters.queue_depth_now, counters.opcode(Opcode::Flush).failed), (0, 0));
    }
    if flash.grow(0).is_ok() {
        an_open_queue_pair_reaches_what_grew(flash);
    }
}

fn an_open_queue_pair_reaches_what_grew(flash: Arc<dyn Flash>) {
    let drive = Drive::new(flash, LocalMemory::new(1 << 20).unwrap(), Vec::new(), Env::system());
    let mut pair = drive.queue_pair(2).unwrap();
    let mut buffer = drive.local().allocate(BLOCK as usize).unwrap();
    let (local, length) = (buffer.offset(), BLOCK);
    let write = Operation::Write { flash: CAPACITY_BYTES, local, length, fua: true };
    assert_eq!(run(&mut pair, write), Status::InvalidField);
    drive.flash().grow(2 * CAPACITY_BYTES).unwrap();
    drive.flash().grow(CAPACITY_BYTES).unwrap();
    assert_eq!(drive.flash().capacity_bytes(), 2 * CAPACITY_BYTES, "it never shrinks");
    buffer.bytes_mut().fill(7);
    assert_eq!(run(&mut pair, write), Status::Success);
    let last = 2 * CAPACITY_BYTES - u64::from(BLOCK);
    for (flash, byte) in [(CAPACITY_BYTES, 7), (last, 0)] {
        assert_eq!(run(&mut pair, Operation::Read { flash, local, length }), Status::Success);
        assert!(buffer.bytes().iter().all(|found| *found == byte));
    }
    let beyond = Operation::Read { flash: 2 * CAPACITY_BYTES, local, length };
    assert_eq!(run(&mut pair, beyond), Status::InvalidField);
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

fn finish(pair: &mut QueuePair, count: usize) -> Vec<Completion> {
    let mut completions = Vec::new();
    while completions.len() < count {
        if pair.poll(&mut completions) == 0 {
            pair.wait(None);
        }
    }
    assert_eq!(completions.len(), count);
    completions
}

fn run(pair: &mut QueuePair, operation: Operation) -> Status {
    assert_eq!(pair.in_flight(), 0);
    submit(pair, u64::MAX, operation);
    let completion = finish(pair, 1)[0];
    assert_eq!((completion.tag, pair.in_flight()), (u64::MAX, 0));
    completion.status
}

fn submit(pair: &mut QueuePair, tag: u64, operation: Operation) {
    // SAFETY: no test here touches a buffer while a command names it, or drops one before its queue pair.
    unsafe { pair.submit(Command::new(tag, operation)) }.unwrap();
}

fn read(flash: u64, buffer: &LocalBuffer) -> Operation {
    Operation::Read { flash, local: buffer.offset(), length: buffer.len() as u32 }
}

fn write(flash: u64, buffer: &LocalBuffer, fua: bool) -> Operation {
    Operation::Write { flash, local: buffer.offset(), length: buffer.len() as u32, fua }
}

fn reads_give_back_what_was_written(drive: &Drive, pair: &mut QueuePair) {
    let before = drive.counters();
    let mut out = drive.local().allocate(BLOCK as usize * 3).unwrap();
    let back = drive.local().allocate(BLOCK as usize * 3).unwrap();
    for (round, fua) in [(1, false), (2, true)] {
        for (place, byte) in out.bytes_mut().iter_mut().enumerate() {
            *byte = (place / 100) as u8 ^ round;
        }
        assert_eq!(run(pair, write(256 * 1024 - 4096, &out, fua)), Status::Success);
        assert_eq!(run(pair, Operation::Flush), Status::Success);
        assert_eq!(run(pair, read(256 * 1024 - 4096, &back)), Status::Success);
        assert!(out.bytes() == back.bytes());
    }
    assert_eq!(run(pair, Operation::Discard { flash: CAPACITY_BYTES - 4096, length: 4096 }), Status::Success);
    let moved_bytes = 2 * out.len() as u64;
    let after = drive.counters();
    assert_eq!(after.flash_to_local_bytes - before.flash_to_local_bytes, moved_bytes);
    assert_eq!(after.local_to_flash_bytes - before.local_to_flash_bytes, moved_bytes);
}

fn many_in_flight_complete_once_each(drive: &Drive, pair: &mut QueuePair) {
    const COUNT: u64 = 100;
    let mut buffers: Vec<_> = (0..COUNT).map(|_| drive.local().allocate(BLOCK as usize).unwrap()).collect();
    for round in [3, 5] {
        for (tag, buffer) in (0..).zip(&mut buffers) {
            buffer.bytes_mut().fill(tag as u8 ^ round);
            let fua = tag % 7 == 0;
            submit(pair, tag, write(tag * 8192, buffer, fua));
            if tag % 10 == 9 {
                submit(pair, COUNT, Operation::Flush);
            }
        }
        assert_eq!(pair.in_flight() as u64, COUNT + COUNT / 10);
        let mut completions = finish(pair, 110);
        assert!(completions.iter().all(Completion::is_success));
        completions.sort_by_key(|completion| completion.tag);
        assert!((0..COUNT).eq(completions[..100].iter().map(|completion| completion.tag)));
        for (tag, buffer) in (0..).zip(&mut buffers) {
            buffer.bytes_mut().fill(0);
            submit(pair, tag, read(tag * 8192, buffer));
        }
        assert!(finish(pair, 100).iter().all(Completion::is_success));
        for (tag, buffer) in (0_u64..).zip(&buffers) {
            assert!(buffer.bytes().iter().all(|&byte| byte == tag as u8 ^ round), "block {tag}");
        }
    }
}

fn ranges_are_checked(drive: &Drive, pair: &mut QueuePair) {
    let buffer = drive.local().allocate(BLOCK as usize).unwrap();
    let (local, local_end) = (buffer.offset(), drive.local().bytes_total() as u64);
    let sector = drive.flash().sector_bytes();
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
        for operation in
            [Operation::Read { flash, local, length }, Operation::Write { flash, local, length, fua: false }]
        {
            assert_eq!(run(pair, operation), Status::InvalidField, "{operation:?}");
        }
    }
    assert_eq!(run(pair, Operation::Read { flash: CAPACITY_BYTES - 4096, local, length: 4096 }), Status::Success);
}

fn other_queue_pairs_see_the_bytes(drive: &Drive, pair: &mut QueuePair) {
    let mut buffer = drive.local().allocate(BLOCK as usize).unwrap();
    let mut other = drive.queue_pair(1).unwrap();
    buffer.bytes_mut().fill(0x3c);
    assert_eq!(run(pair, write(0, &buffer, false)), Status::Success);
    buffer.bytes_mut().fill(0);
    assert_eq!(run(&mut other, read(0, &buffer)), Status::Success);
    assert!(buffer.bytes().iter().all(|&byte| byte == 0x3c));
}

/// Bytes on their way through flash and back, twice: each command waits for the one before it.
fn chain(buffers: &[LocalBuffer; 3]) -> [Operation; 4] {
    let [from, between, to] = buffers;
    [write(0, from, false), read(0, between), write(64 << 10, between, false), read(64 << 10, to)]
}

fn event(number: u16) -> EventId {
    EventId::new(number).unwrap()
}

/// Submits each to start after the one before it; all but the last are quiet.
fn submit_chain(pair: &mut QueuePair, operations: &[Operation]) {
    for (number, operation) in (1..).zip(operations) {
        let mut command = Command::new(u64::from(number), *operation).signals(event(number));
        if let Some(before) = EventId::new(number - 1) {
            command = command.after(before);
        }
        if usize::from(number) < operations.len() {
            command = command.quiet();
        }
        // SAFETY: no test here touches a buffer while a command names it, or drops one before its queue pair.
        unsafe { pair.submit(command) }.unwrap();
    }
}

/// How many times the host has to act until nothing is in flight: each time it takes completions.
fn turns(pair: &mut QueuePair, completions: &mut Vec<Completion>) -> usize {
    let mut turns = 0;
    while pair.in_flight() > 0 {
        match pair.poll(completions) {
            0 => pair.wait(None),
            _ => turns += 1,
        }
    }
    turns
}

fn a_chain_has_one_completion(drive: &Drive, pair: &mut QueuePair) {
    let mut buffers = [0; 3].map(|_| drive.local().allocate(BLOCK as usize * 4).unwrap());
    for round in 0..20 {
        buffers[0].bytes_mut().fill(round);
        buffers[2].bytes_mut().fill(!round);
        let mut completions = Vec::new();
        submit_chain(pair, &chain(&buffers));
        assert_eq!((turns(pair, &mut completions), completions.len()), (1, 1));
        assert_eq!(completions[0], Completion::success(4));
        assert!(buffers[2].bytes().iter().all(|&byte| byte == round), "round {round}");
    }
    // Without events the host waits for each.
    let mut alone = 0;
    for operation in chain(&buffers) {
        submit(pair, 1, operation);
        alone += turns(pair, &mut Vec::new());
    }
    assert_eq!(alone, 4);
    // Quiet commands give their credits back.
    for _ in 0..3 {
        submit_chain(pair, &[Operation::Flush; 40]);
        submit(pair, 0, Operation::Flush);
        turns(pair, &mut Vec::new());
        assert_eq!(pair.credits(), CREDITS);
    }
}

fn a_broken_chain_names_its_first_failure(drive: &Drive, pair: &mut QueuePair) {
    let buffers = [0; 3].map(|_| drive.local().allocate(BLOCK as usize).unwrap());
    let mut operations = chain(&buffers);
    operations[1] = Operation::Read { flash: CAPACITY_BYTES, local: buffers[1].offset(), length: BLOCK };
    submit_chain(pair, &operations);
    let mut completions = Vec::new();
    turns(pair, &mut completions);
    completions.sort_by_key(|completion| completion.tag);
    let ends: Vec<_> = completions.iter().map(|end| (end.tag, end.status, end.result[0])).collect();
    assert_eq!(ends, [(2, Status::InvalidField, 0), (3, Status::Aborted, 2), (4, Status::Aborted, 2)]);
}

fn waiting_ends(drive: &Drive, pair: &mut QueuePair) {
    pair.wait(None); // Nothing is in flight.
    let buffer = drive.local().allocate(BLOCK as usize).unwrap();
    submit(pair, 1, read(0, &buffer));
    pair.wait(Some(Duration::from_secs(600)));
    let mut completions = Vec::new();
    while pair.poll(&mut completions) == 0 {
        let Some(event_fd) = pair.event_fd() else { continue };
        assert!(readable(event_fd, PATIENCE_MS));
    }
    assert_eq!(completions.len(), 1);
    if let Some(event_fd) = pair.event_fd() {
        assert!(!readable(event_fd, 0), "a queue with nothing to give must let its owner sleep");
    }
}

/// Nobody polls while the owner sleeps, and yet it is woken: each time, for few commands and for many.
fn sleeping_ends(drive: &Drive, pair: &mut QueuePair, woken: impl Fn(RawFd) -> bool) {
    let Some(event_fd) = pair.event_fd() else { return };
    let buffers: Vec<_> = (0..40).map(|_| drive.local().allocate(BLOCK as usize).unwrap()).collect();
    for round in 0..60 {
        for (tag, buffer) in (0..).zip(&buffers[..1 + round % buffers.len()]) {
            submit(pair, tag, read(tag * 8192, buffer));
        }
        while pair.in_flight() > 0 {
            assert!(pair.poll(&mut Vec::new()) > 0 || woken(event_fd), "nothing woke it in round {round}");
        }
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
    let mut buffers: Vec<_> = (0..32).map(|_| drive.local().allocate(BLOCK as usize).unwrap()).collect();
    for (tag, buffer) in (0..).zip(&buffers) {
        submit(&mut pair, tag, read(tag * 8192, buffer));
    }
    pair.poll(&mut Vec::new());
    drop(pair);
    for buffer in &mut buffers {
        buffer.bytes_mut().fill(0xee);
    }
    // A read still under way would show.
    let mut pair = drive.queue_pair(1).unwrap();
    assert_eq!(run(&mut pair, Operation::Flush), Status::Success);
    assert!(buffers.iter().all(|buffer| buffer.bytes().iter().all(|&byte| byte == 0xee)));
}

/// The drive's side of a byte stream: commands come in, completions go out, local memory is shared.
fn serve(drive: &Drive, mut commands: PipeReader, mut completions: PipeWriter) {
    let mut pair = drive.queue_pair(8).unwrap();
    let mut bytes = [0; Command::ENCODED_BYTES];
    let mut done = Vec::new();
    while commands.read_exact(&mut bytes).is_ok() {
        let Command { tag, operation, .. } = Command::decode(&bytes).unwrap();
        submit(&mut pair, tag, operation);
        pair.poll(&mut done);
        send(&mut completions, &mut done);
    }
    while pair.in_flight() > 0 {
        pair.wait(None);
        pair.poll(&mut done);
        send(&mut completions, &mut done);
    }
}

fn send(stream: &mut PipeWriter, done: &mut Vec<Completion>) {
    for completion in done.drain(..) {
        stream.write_all(&completion.encode()).unwrap();
    }
}

/// Sends commands to a far end and gathers its completions, sorted by tag.
fn exchange(drive: &Drive, operations: impl Iterator<Item = Operation>) -> Vec<Completion> {
    let ((commands_out, mut commands_in), (mut completions_out, completions_in)) = (pipe().unwrap(), pipe().unwrap());
    let far = drive.clone();
    let far_end = drive.env().spawn("far-end", move || serve(&far, commands_out, completions_in)).unwrap();
    for (tag, operation) in (0..).zip(operations) {
        commands_in.write_all(&Command::new(tag, operation).encode()).unwrap();
    }
    drop(commands_in);
    let mut bytes = Vec::new();
    completions_out.read_to_end(&mut bytes).unwrap();
    far_end.join().unwrap();
    let (encoded, rest) = bytes.as_chunks::<{ Completion::ENCODED_BYTES }>();
    assert!(rest.is_empty());
    let mut completions: Vec<_> = encoded.iter().map(|bytes| Completion::decode(bytes).unwrap()).collect();
    completions.sort_by_key(|completion| completion.tag);
    completions
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
    let writes = places().zip(&buffers).map(|(flash, buffer)| write(flash, buffer, true));
    let done = exchange(&drive, writes.chain([Operation::Flush, read(CAPACITY_BYTES, &buffers[0])]));
    let statuses: Vec<_> = done.iter().map(|completion| completion.status).collect();
    assert_eq!(statuses[..51], [Status::Success; 51]);
    assert_eq!(statuses[51..], [Status::InvalidField]);

    buffers.iter_mut().for_each(|buffer| buffer.bytes_mut().fill(0));
    let done = exchange(&drive, places().zip(&buffers).map(|(flash, buffer)| read(flash, buffer)));
    assert!((0..50).eq(done.iter().map(|completion| completion.tag)) && done.iter().all(Completion::is_success));
    for (place, buffer) in (1..).zip(&buffers) {
        assert!(buffer.bytes().iter().all(|&byte| byte == place));
    }
}
