//! A drive behind its socket, as its hosts see it. Both ends are in the test's process; kill tests have them apart.

use super::testing::{finish, run, run_with, submit};
use super::{AttachedFlash, Attaching, Drive, Lease, QueuePair};
use crate::device::programs;
use crate::env::Env;
use crate::event::Event;
use crate::flash::conformance;
use crate::flash::faulty::FaultyFlash;
use crate::flash::test_path::TestPath;
use crate::flash::{Flash, FlashError, Health};
use crate::link::VERSION;
use crate::link::frame::{CREATE, Frame, Kind};
use crate::link::ring::{RingPutter, RingTaker};
use crate::link::submission::{ENDS_AT, PAIR_BYTES, SUBMISSIONS_AT, Submission, WRITTEN_MAX, decode_end};
use crate::memory::SharedFile;
use crate::protocol::{
    Command, LEASED_RANGES_MAX, LeasedRanges, LocalRange, MemoryAddress, Operation, Purpose, RegionId, Status,
};
use crate::serving::{Serving, ServingOptions};
use crate::{Identity, MemoryFlash, PartedBuffer};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

const MIB: u64 = 1 << 20;

/// A drive that serves, on a thread of its own.
pub(super) struct Served {
    pub path: TestPath,
    copies_results: bool,
    flash: Arc<dyn Flash>,
    stop: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new() -> Served {
        Served::over(Arc::new(MemoryFlash::new(64 * MIB)))
    }

    pub fn over(flash: Arc<dyn Flash>) -> Served {
        Served::with(flash, false)
    }

    fn with(flash: Arc<dyn Flash>, copies_results: bool) -> Served {
        let mut served = Served {
            path: TestPath::new(),
            copies_results,
            flash,
            stop: Arc::new(Event::new().unwrap()),
            thread: None,
        };
        served.start();
        served
    }

    fn start(&mut self) {
        let (options, copies_results) = (ServingOptions::new(self.path.to_path_buf(), 256 * MIB), self.copies_results);
        let options = ServingOptions { copies_results, ..options };
        let serving = Serving::start(vec![self.flash.clone()], &options, &Env::system()).unwrap();
        let stop = self.stop.clone();
        let thread = Env::system().spawn("drive", move || serving.run(stop.as_fd()).unwrap());
        self.thread = Some(thread.unwrap());
    }

    fn end(&mut self) {
        self.stop.raise();
        self.thread.take().unwrap().join().unwrap();
        self.stop.clear();
    }

    fn attach(&self, name: &str, attaching: Attaching) -> Result<Arc<AttachedFlash>, FlashError> {
        AttachedFlash::attach(&self.path, name, attaching, &Env::system()).map(Arc::new)
    }

    pub fn made(&self, name: &str) -> Arc<AttachedFlash> {
        self.attach(name, Attaching { create_bytes: Some(8 * MIB), take_over: false }).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end();
        }
    }
}

pub(super) fn drive(flash: &Arc<AttachedFlash>) -> Drive {
    let flash: Arc<dyn Flash> = flash.clone();
    Drive::over(flash, MIB as usize, Vec::new(), Env::system()).unwrap()
}

fn write(pair: &mut QueuePair, flash: u64, byte: u8) -> Status {
    let mut buffer = pair.drive().local().allocate(4096).unwrap();
    pair.fill(Purpose::Put, &mut buffer, 0..4096).fill(byte);
    let from = MemoryAddress::local(buffer.offset());
    run(pair, Operation::Write { flash, from, length: 4096, fua: false }, &mut buffer).status
}

fn read(pair: &mut QueuePair, flash: u64) -> Vec<u8> {
    let mut buffer = pair.drive().local().allocate(4096).unwrap();
    let read = Operation::Read { flash, local: buffer.offset(), length: 4096 };
    assert_eq!(run(pair, read, &mut buffer).status, Status::Success);
    pair.look(Purpose::Get, &buffer, 0..4096).to_vec()
}

#[test]
fn what_is_written_is_read_and_computed_on_there() {
    for copies_results in [false, true] {
        written_read_and_computed(&Served::with(Arc::new(MemoryFlash::new(64 * MIB)), copies_results));
    }
}

fn written_read_and_computed(served: &Served) {
    let flash = served.made("a");
    let drive = drive(&flash);
    let mut pair = drive.queue_pair(8).unwrap();
    assert_eq!(write(&mut pair, 0, 7), Status::Success);
    assert_eq!(write(&mut pair, 8 * MIB - 4096, 8), Status::Success);
    assert_eq!((read(&mut pair, 0), read(&mut pair, 8 * MIB - 4096)), (vec![7; 4096], vec![8; 4096]));
    let program = drive.identity().program("crc32c", 1).unwrap();
    let [input, output] = [4096, 8].map(|bytes| drive.local().allocate(bytes).unwrap());
    let mut buffers = [input, output];
    pair.fill(Purpose::Put, &mut buffers[0], 0..9).copy_from_slice(b"123456789");
    let [input, output] = buffers.each_ref().map(|buffer| buffer.range());
    let input = LocalRange { length: 9, ..input };
    let execute = Operation::Execute { program, parameters: LocalRange::EMPTY, input, output };
    let returned = run_with(&mut pair, execute, Lease::Buffers(buffers));
    let Lease::Buffers([_, output]) = returned.lease else { panic!("another lease") };
    assert_eq!(returned.completion.status, Status::Success);
    assert_eq!(pair.look(Purpose::Get, &output, 0..4), 0xe306_9283_u32.to_le_bytes());
    let counters = drive.counters();
    assert_eq!((counters.local_to_flash_bytes, counters.flash_to_local_bytes), (8192, 8192));
    let usage = counters.process.unwrap();
    assert!(usage.cpu_us > 0 && usage.resident_bytes > 0, "{usage:?}");
}

#[test]
fn it_keeps_the_promises_of_every_backend() {
    for copies_results in [false, true] {
        let served = Served::with(Arc::new(MemoryFlash::new(64 * MIB)), copies_results);
        let create_bytes = Some(conformance::CAPACITY_BYTES);
        let flash = served.attach("a", Attaching { create_bytes, take_over: false }).unwrap();
        conformance::check_drive(|| drive(&flash));
    }
}

#[test]
fn without_a_process_between_it_keeps_them_too() {
    for seed in 0..10 {
        let flash = FaultyFlash::new(conformance::CAPACITY_BYTES, seed);
        let bytes = (MIB as usize, MIB as usize);
        let across = || Drive::across(Arc::new(flash.clone()), bytes, programs::built_in(), Env::system()).unwrap();
        conformance::check_drive(across);
    }
}

#[test]
fn its_identity_is_the_drives_own() {
    let served = Served::new();
    let drive = drive(&served.made("a"));
    let mut pair = drive.queue_pair(1).unwrap();
    let mut buffer = drive.local().allocate(64 << 10).unwrap();
    let into = buffer.range();
    let completion = run(&mut pair, Operation::Identify { into }, &mut buffer);
    let bytes = pair.look(Purpose::Other, &buffer, 0..completion.result[0] as usize);
    let identity = Identity::decode(bytes).unwrap();
    assert_eq!((identity.flash_bytes, identity.programs.len()), (8 * MIB, programs::built_in().len()));
    assert_eq!(identity, drive.identity());
}

#[test]
fn many_ranges_and_parts_reach_the_drive_with_their_commands() {
    let served = Served::new();
    let drive = drive(&served.made("a"));
    let mut pair = drive.queue_pair(8).unwrap();
    let mut buffer = drive.local().allocate(8192).unwrap();
    for at in (0..8192).step_by(512) {
        pair.fill(Purpose::Put, &mut buffer, at..at + 100).fill((at / 512) as u8 + 1);
    }
    let mut parts = PartedBuffer::new(buffer);
    // Some of them share a page.
    for at in [0, 1024, 3072, 6144] {
        let length = if at == 0 { 1024 } else { 2048 };
        let part = parts.cut(at, length);
        let (from, length) = (MemoryAddress::local(part.range().offset), length as u32);
        submit(&mut pair, 0, Operation::Write { flash: at as u64, from, length, fua: true }, Lease::Part(part));
    }
    let mut returned = finish(&mut pair, 4);
    let gap = parts.join();
    assert!(gap.is_err(), "parts are with what has ended");
    returned.iter_mut().for_each(|returned| drop(std::mem::take(&mut returned.lease)));
    let mut buffer = gap.or_else(|parts| parts.join()).unwrap();
    let from = MemoryAddress::local(buffer.offset() + 5120);
    assert!(run(&mut pair, Operation::Write { flash: 5120, from, length: 1024, fua: false }, &mut buffer).is_success());
    assert!(returned.iter().all(|returned| returned.completion.is_success()));
    let bytes = [read(&mut pair, 0), read(&mut pair, 4096)].concat();
    for at in (0..8192).step_by(512) {
        assert!(bytes[at..at + 100].iter().all(|byte| *byte == (at / 512) as u8 + 1), "{at}");
    }
}

#[test]
fn a_view_has_what_was_read_and_what_the_host_wrote_over_it() {
    let served = Served::new();
    let drive = drive(&served.made("a"));
    let mut pair = drive.queue_pair(1).unwrap();
    assert_eq!(write(&mut pair, 0, 6), Status::Success);
    let mut buffer = drive.local().allocate(4096).unwrap();
    let read = Operation::Read { flash: 0, local: buffer.offset(), length: 4096 };
    assert_eq!(run(&mut pair, read, &mut buffer).status, Status::Success);
    pair.fill(Purpose::Put, &mut buffer, 100..200).fill(0);
    let mut view = pair.view(Purpose::Get, buffer, 50..250);
    let wanted = [[6; 50].as_slice(), &[0; 100], &[6; 50]].concat();
    assert_eq!(view.bytes(), wanted);
    pair.prepend(Purpose::Get, &mut view, b"ab");
    assert_eq!(view.bytes(), [b"ab", &wanted[..]].concat());
}

#[test]
fn what_the_host_wrote_wholly_is_looked_at_before_a_command_has_had_it() {
    let served = Served::new();
    let drive = drive(&served.made("a"));
    let pair = drive.queue_pair(1).unwrap();
    let mut buffer = drive.local().allocate(8192).unwrap();
    pair.fill(Purpose::Put, &mut buffer, 0..4096).fill(3);
    assert_eq!(pair.look(Purpose::Get, &buffer, 0..4096), [3; 4096]);
    assert_eq!(pair.look(Purpose::Get, &buffer, 4096..8192).len(), 4096);
}

#[test]
fn a_drive_writes_from_the_hosts_arenas() {
    let served = Served::new();
    let drive = drive(&served.made("a"));
    let [mut arena] = drive.host_arenas(8192).unwrap();
    arena.bytes_mut(0, 4096).fill(5);
    arena.seal(4096);
    let mut pair = drive.queue_pair_with_host(arena.region(), 4).unwrap();
    let sealed = arena.lease(0..4096);
    let write = Operation::Write { flash: 4096, from: sealed.address(), length: 4096, fua: false };
    assert!(run_with(&mut pair, write, Lease::Sealed(sealed)).completion.is_success());
    assert_eq!(read(&mut pair, 4096), [5; 4096]);
    let outside = Operation::Write { flash: 0, from: MemoryAddress::host(8192), length: 4096, fua: false };
    assert_eq!(run_with(&mut pair, outside, Lease::Nothing).completion.status, Status::InvalidField);
}

#[test]
fn a_partition_has_one_host_until_it_ends() {
    let served = Served::new();
    let first = served.made("a");
    let held = served.attach("a", Attaching::default());
    assert!(matches!(held, Err(FlashError::Held { .. })));
    assert!(matches!(served.attach("b", Attaching::default()), Err(FlashError::NotFound { .. })));
    let mut pair = drive(&first).queue_pair(1).unwrap();
    assert_eq!(write(&mut pair, 0, 1), Status::Success);
    drop((pair, first));
    let second = served.attach("a", Attaching::default()).unwrap();
    assert_eq!(read(&mut drive(&second).queue_pair(1).unwrap(), 0), [1; 4096]);
}

#[test]
pub(super) fn who_takes_a_partition_over_leaves_the_other_host_none() {
    let served = Served::new();
    let first = served.made("a");
    let drive_of_first = drive(&first);
    let mut pair = drive_of_first.queue_pair(1).unwrap();
    assert_eq!(write(&mut pair, 0, 1), Status::Success);
    let second = served.attach("a", Attaching { take_over: true, ..Attaching::default() }).unwrap();
    let mut buffer = drive_of_first.local().allocate(4096).unwrap();
    let from = MemoryAddress::local(buffer.offset());
    let completion = run(&mut pair, Operation::Write { flash: 0, from, length: 4096, fua: false }, &mut buffer);
    assert_eq!((completion.status, completion.errno), (Status::Failed, libc::ENODEV));
    assert_eq!(first.health(), Health::Away);
    assert_eq!(read(&mut drive(&second).queue_pair(1).unwrap(), 0), [1; 4096]);
    drop(second);
    let flash: Arc<dyn Flash> = first.clone();
    let Err(refused) = Drive::over(flash, 4096, Vec::new(), Env::system()) else {
        panic!("a host that was replaced has its partition again")
    };
    assert!(refused.to_string().contains("another host has had partition a since"), "{refused}");
}

#[test]
fn a_drive_that_ended_is_attached_again_when_it_is_back() {
    let mut served = Served::new();
    let flash = served.made("a");
    flash.say_made().unwrap();
    let before = drive(&flash);
    let mut pair = before.queue_pair(4).unwrap();
    assert_eq!(write(&mut pair, 4096, 3), Status::Success);
    served.end();
    assert_eq!(run_with(&mut pair, Operation::Flush, Lease::Nothing).completion.errno, libc::ENODEV);
    assert_eq!(flash.health(), Health::Away);
    drop((pair, before));
    served.start();
    let after = drive(&flash);
    assert_eq!(flash.health(), Health::Sound);
    assert_eq!(read(&mut after.queue_pair(1).unwrap(), 4096), [3; 4096]);
    drop((after, flash));
    assert!(served.attach("a", Attaching::default()).unwrap().was_made());
}

#[test]
fn a_partition_ends_where_the_next_begins() {
    let served = Served::new();
    let (first, second) = (served.made("a"), served.made("b"));
    let mut pairs = [&first, &second].map(|flash| drive(flash).queue_pair(1).unwrap());
    assert_eq!(write(&mut pairs[1], 0, 9), Status::Success);
    assert_eq!(write(&mut pairs[0], 8 * MIB, 1), Status::InvalidField);
    assert_eq!(write(&mut pairs[0], 8 * MIB - 4096, 1), Status::Success);
    assert_eq!(read(&mut pairs[1], 0), [9; 4096]);
    assert!(matches!(first.grow(9 * MIB), Err(FlashError::NoSpace { .. })));
    second.grow(9 * MIB).unwrap();
    assert_eq!((second.capacity_bytes(), write(&mut pairs[1], 8 * MIB, 2)), (9 * MIB, Status::Success));
}

#[test]
fn two_drives_do_not_share_a_socket() {
    let served = Served::new();
    let options = ServingOptions::new(served.path.to_path_buf(), MIB);
    let flash: Arc<dyn Flash> = Arc::new(MemoryFlash::new(4 * MIB));
    let taken = Serving::start(vec![flash], &options, &Env::system()).err().unwrap().to_string();
    assert!(taken.contains("is taken"), "{taken}");
}

/// A host that speaks by itself.
struct Rogue(OwnedFd);

impl Rogue {
    fn connect(path: &Path) -> Rogue {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Rogue(socket)
    }

    fn ask<const N: usize>(&self, kind: Kind, numbers: [u64; N], text: &str, files: &[&SharedFile]) -> Option<Frame> {
        let files: Vec<_> = files.iter().map(|file| file.file()).collect();
        Frame::new(kind, numbers).with_text(text).send(&self.0, &files).unwrap();
        Frame::receive(&self.0).unwrap()
    }

    fn attached(path: &Path, name: &str) -> Rogue {
        let rogue = Rogue::connect(path);
        let answer = rogue.ask(Kind::Attach, [VERSION, CREATE, MIB, 0], name, &[]).unwrap();
        assert_eq!(answer.kind, Kind::Done);
        rogue
    }

    fn is_refused<const N: usize>(&self, kind: Kind, numbers: [u64; N], text: &str, files: &[&SharedFile]) -> bool {
        self.ask(kind, numbers, text, files).is_some_and(|answer| answer.kind == Kind::Refused)
    }
}

#[test]
fn a_host_that_asks_nonsense_is_refused_and_others_go_on() {
    let served = Served::new();
    let good = served.made("good");
    let mut pair = drive(&good).queue_pair(1).unwrap();
    let rogue = Rogue::connect(&served.path);
    assert!(rogue.is_refused(Kind::Attach, [VERSION + 1], "x", &[]));
    assert!(rogue.is_refused(Kind::Attach, [VERSION, CREATE, 1 << 60, 0], "x", &[]));
    assert!(rogue.is_refused(Kind::Attach, [VERSION, CREATE, MIB, 0], "a/b", &[]));
    assert!(rogue.is_refused(Kind::Attach, [VERSION, 0, 0, 0], "good", &[]), "it has a host");
    let window = SharedFile::new("window", 8192).unwrap();
    assert!(rogue.is_refused(Kind::Memory, [8192], "", &[&window]), "nothing is attached");
    let rogue = Rogue::attached(&served.path, "rogue");
    assert!(rogue.is_refused(Kind::Memory, [8192], "", &[]), "no window");
    assert!(rogue.is_refused(Kind::Memory, [16384], "", &[&window]), "a short one");
    assert!(rogue.is_refused(Kind::Memory, [1 << 40], "", &[&window]), "more than there is");
    assert!(rogue.is_refused(Kind::Memory, [100], "", &[&window]), "no blocks");
    let memory = rogue.ask(Kind::Memory, [8192], "", &[&window]).unwrap();
    let (number, shared) = (memory.numbers[0], SharedFile::new("pair", PAIR_BYTES).unwrap());
    assert!(rogue.is_refused(Kind::Pair, [number + 1, 1], "", &[&shared]), "no such memory");
    assert!(rogue.is_refused(Kind::Pair, [number, 1], "", &[&window]), "a short pair");
    assert!(rogue.is_refused(Kind::Pair, [number, 1, 0, 0, 1 << 20], "", &[&shared]), "no region");
    let theirs = SharedFile::of_other(memory.files.into_iter().next().unwrap(), 8192, true);
    assert!(theirs.is_err(), "local memory is not a host's to write");
    rustix::net::send(&rogue.0, b"nonsense", SendFlags::NOSIGNAL).unwrap();
    assert!(Frame::receive(&rogue.0).unwrap().is_none(), "the connection ends");
    assert_eq!(write(&mut pair, 0, 1), Status::Success);
}

#[test]
fn rings_that_are_broken_end_the_connection() {
    let served = Served::new();
    let good = served.made("good");
    let mut pair = drive(&good).queue_pair(1).unwrap();
    let counts = |shared: &SharedFile| shared.word(SUBMISSIONS_AT).store(u32::MAX, Ordering::SeqCst);
    let kinds = |shared: &SharedFile| {
        shared.long_word(SUBMISSIONS_AT + 128 + 8 * 8).store(u64::MAX, Ordering::SeqCst);
        shared.word(SUBMISSIONS_AT).store(1, Ordering::SeqCst);
    };
    let breakings: [&dyn Fn(&SharedFile); 2] = [&counts, &kinds];
    for breaking in breakings {
        let rogue = Rogue::attached(&served.path, "rogue");
        let window = SharedFile::new("window", 8192).unwrap();
        let memory = rogue.ask(Kind::Memory, [8192], "", &[&window]).unwrap().numbers[0];
        let shared = SharedFile::new("pair", PAIR_BYTES).unwrap();
        let opened = rogue.ask(Kind::Pair, [memory, 1], "", &[&shared]).unwrap();
        breaking(&shared);
        Event::of_other(opened.files.into_iter().next().unwrap()).raise();
        assert!(Frame::receive(&rogue.0).unwrap().is_none());
    }
    assert_eq!(write(&mut pair, 0, 1), Status::Success);
}

#[test]
fn two_commands_do_not_have_one_buffer() {
    let served = Served::new();
    let rogue = Rogue::attached(&served.path, "rogue");
    let window = SharedFile::new("window", 1 << 20).unwrap();
    let memory = rogue.ask(Kind::Memory, [1 << 20], "", &[&window]).unwrap().numbers[0];
    let shared = Arc::new(SharedFile::new("pair", PAIR_BYTES).unwrap());
    let opened = rogue.ask(Kind::Pair, [memory, 4], "", &[&shared]).unwrap();
    let (mut putter, mut taker) = (RingPutter::new(shared.clone(), SUBMISSIONS_AT), RingTaker::new(shared, ENDS_AT));
    let mut ranges = [LocalRange::EMPTY; LEASED_RANGES_MAX];
    ranges[0] = LocalRange { offset: 4096, length: 1 << 18 };
    let leased = LeasedRanges { region: RegionId::LOCAL, ranges };
    let count = 100;
    for slot in 0..count {
        let read = Operation::Read { flash: 0, local: 4096, length: 1 << 18 };
        let command = Some(Command::new(u64::from(slot), read));
        let written = [LocalRange::EMPTY; WRITTEN_MAX];
        let entry = Submission { command, slot, leased, written, written_count: 0 }.encode();
        assert_eq!(putter.put(&entry), Ok(true));
    }
    Event::of_other(opened.files.into_iter().next().unwrap()).raise();
    let mut ends = Vec::new();
    while ends.len() < count as usize {
        ends.extend(taker.take().unwrap().map(|entry| decode_end(&entry).unwrap().1.status));
        std::thread::yield_now();
    }
    assert!(ends.contains(&Status::Success) && ends.contains(&Status::OutsideLease), "{ends:?}");
    assert!(ends.iter().all(|status| matches!(status, Status::Success | Status::OutsideLease)), "{ends:?}");
}
