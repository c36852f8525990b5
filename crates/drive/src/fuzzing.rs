//! Fuzz targets of a queue pair whose ends are two processes: each end beside another that keeps to nothing.

use crate::device::claims::Claims;
use crate::device::far_host::{FarMemory, FarPair};
use crate::device::threads::AttachedController;
use crate::device::{Controller, Device, programs};
use crate::env::Env;
use crate::event::Event;
use crate::flash::Flash;
use crate::flash::memory::MemoryFlash;
use crate::host::on_their_way::OnTheirWay;
use crate::link::ring::{RingPutter, RingTaker, bytes_of};
use crate::link::submission::{
    END_WORDS, ENDS_AT, PAIR_BYTES, SUBMISSION_WORDS, SUBMISSIONS_AT, Submission, WRITTEN_MAX, decode_end, encode_end,
};
use crate::memory::{BLOCK_BYTES, HostRegion, LocalMemory, PairMemory, SharedFile};
use crate::protocol::{
    Command, Completion, LEASED_RANGES_MAX, LeasedRanges, LocalRange, MemoryAddress, Operation, RegionId,
};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCKS: u32 = 8;
const LOCAL_BYTES: usize = BLOCKS as usize * BLOCK_BYTES;
const FLASH_BYTES: u64 = 64 << 10;

/// A host that puts what it likes into its rings: the drive keeps its promises. No block of its memory stays with a command when the
/// queue pair is gone, and no more commands end than were put.
pub fn hostile_host(bytes: &[u8]) {
    let shared = Arc::new(SharedFile::new("fuzz-pair", PAIR_BYTES).expect("memory"));
    let file = Arc::new(SharedFile::new("fuzz-local", 2 * LOCAL_BYTES).expect("memory"));
    let window = SharedFile::new("fuzz-window", LOCAL_BYTES).expect("memory");
    let local = LocalMemory::shared_with_host(file, BLOCKS);
    let memory = Arc::new(FarMemory {
        local: local.clone(),
        window,
        claims: Claims::new(BLOCKS),
        copies_results: bytes.len() % 2 == 1,
    });
    let host = HostRegion::of_other_process(SharedFile::new("fuzz-arena", LOCAL_BYTES).expect("memory"));
    let flash: Arc<dyn Flash> = Arc::new(MemoryFlash::new(FLASH_BYTES));
    let pair_memory = PairMemory { local: local.clone(), host: Some(host.clone()) };
    let queue = flash.open_queue(&pair_memory, 4).expect("a flash in memory has queues");
    let device = Arc::new(Device::new(flash, local, programs::built_in().into(), Env::simulated(1).0));
    let counters = device.counters.free();
    let controller = Controller::new(device, queue, Some(host.clone()), counters).expect("it asks for nothing");
    let (events, socket) = ([(); 2].map(|()| Event::new().expect("an event")), Event::new().expect("an event"));
    let socket = Arc::new(socket.as_fd().try_clone_to_owned().expect("a descriptor"));
    let pair =
        FarPair { memory: memory.clone(), host: Some(host), shared: shared.clone(), events, socket, share: None };
    let mut attached = AttachedController::of_other_process(controller, 0, pair);
    let mut submissions = RingPutter::<SUBMISSION_WORDS>::new(shared.clone(), SUBMISSIONS_AT);
    let mut ends = RingTaker::<END_WORDS>::new(shared.clone(), ENDS_AT);
    let mut ended = 0;
    let mut put = 0;
    let mut is_sound = true;
    let mut input = bytes.iter().copied();
    while let Some(kind) = input.next() {
        let mut entry = submission(&mut input).encode();
        let mut word = || input.next().map_or(0, usize::from);
        match kind % 8 {
            // Torn: any word is another.
            0 => entry[word() % SUBMISSION_WORDS] ^= u64::MAX << (word() % 64),
            1 => shared.word(SUBMISSIONS_AT + 64 * (word() % 2)).store(word() as u32, Ordering::Relaxed),
            2 => shared.word(ENDS_AT + 64 * (word() % 2)).store(word() as u32, Ordering::Relaxed),
            _ => {}
        }
        // A host that changes the counts loses its own ends as well.
        is_sound &= !matches!(kind % 8, 1 | 2);
        put += usize::from(submissions.put(&entry) == Ok(true));
        if kind & 0x40 != 0 {
            attached.advance();
        }
        while let Ok(Some(end)) = ends.take() {
            assert!(!is_sound || decode_end(&end).is_ok(), "the drive ended something that is no command");
            ended += 1;
        }
    }
    for _ in 0..16 {
        attached.advance();
    }
    assert!(!is_sound || ended <= put, "{ended} of {put} commands ended");
    drop(attached);
    let whole = LocalRange { offset: 0, length: LOCAL_BYTES as u32 };
    let mut ranges = [LocalRange::EMPTY; LEASED_RANGES_MAX];
    ranges[0] = whole;
    assert!(memory.claims.take(&LeasedRanges { region: RegionId::LOCAL, ranges }), "a block is with nobody's command");
}

/// One that a host might send.
fn submission(input: &mut impl Iterator<Item = u8>) -> Submission {
    let mut byte = || input.next().unwrap_or(0);
    let range = |at: u8, length: u8| LocalRange { offset: u64::from(at) << 8, length: u32::from(length) << 8 };
    let (slot, kind) = (u32::from(byte() % 8), byte());
    let [first, second, third] = [(); 3].map(|()| range(byte(), byte()));
    let operation = match kind % 7 {
        0 => Operation::Read { flash: first.offset, local: second.offset, length: second.length },
        1 => {
            let from = MemoryAddress { region: RegionId(kind >> 7), offset: second.offset };
            Operation::Write { flash: first.offset, from, length: second.length, fua: false }
        }
        2 => Operation::Execute {
            program: crate::ProgramId(u16::from(kind >> 3)),
            parameters: first,
            input: second,
            output: third,
        },
        3 => Operation::Pipeline { stages: first },
        4 => Operation::Compute { pipelines: first },
        5 => Operation::Identify { into: first },
        _ => Operation::Discard { flash: first.offset, length: u64::from(first.length) },
    };
    let mut ranges = [LocalRange::EMPTY; LEASED_RANGES_MAX];
    ranges.iter_mut().take(usize::from(byte() % 5)).for_each(|place| *place = range(byte(), byte()));
    let mut written = [LocalRange::EMPTY; WRITTEN_MAX];
    let written_count = usize::from(byte()) % (WRITTEN_MAX + 1);
    written.iter_mut().take(written_count).for_each(|place| *place = range(byte(), byte()));
    let command = (kind != 255).then_some(Command::new(u64::from(byte()), operation));
    let leased = LeasedRanges { region: RegionId(byte() % 3), ranges };
    Submission { command, slot, leased, written, written_count }
}

/// A drive that says what it likes of commands: the host believes each end once, of a command that is on its way.
pub fn hostile_drive(bytes: &[u8]) {
    const SLOTS: u32 = 8;
    let shared = Arc::new(SharedFile::new("fuzz-ends", bytes_of(END_WORDS)).expect("memory"));
    let mut ends = RingPutter::<END_WORDS>::new(shared.clone(), 0);
    let mut ring = RingTaker::<END_WORDS>::new(shared.clone(), 0);
    let mut commands = OnTheirWay::default();
    (0..SLOTS).for_each(|slot| commands.begin(slot, u64::from(slot) + 100));
    let mut ended = [false; SLOTS as usize];
    for entry in bytes.chunks(4) {
        let [kind, slot, tag, at] = std::array::from_fn(|place| entry.get(place).copied().unwrap_or(0));
        let mut words = encode_end(u32::from(slot), &Completion::success(u64::from(tag)));
        match kind % 4 {
            0 => words[usize::from(at) % END_WORDS] ^= 1 << (at % 64),
            1 => shared.word(64 * usize::from(at % 2)).store(u32::from(slot) << (at % 32), Ordering::Relaxed),
            _ => {}
        }
        // A full or broken ring takes nothing.
        let _ = ends.put(&words);
        let taken = commands.take_from(&mut ring);
        for end in commands.ended().drain(..) {
            assert!(end.slot < SLOTS && end.completion.tag == u64::from(end.slot) + 100, "{}", end.slot);
            assert!(!std::mem::replace(&mut ended[end.slot as usize], true), "slot {} ended twice", end.slot);
        }
        if taken.is_err() {
            break;
        }
    }
    commands.end_all(libc::ENODEV);
    let left = commands.ended().drain(..).filter(|end| !ended[end.slot as usize]).count();
    assert_eq!((left, commands.count()), (ended.iter().filter(|is| !**is).count(), 0));
}
