//! Sets with redundancy, held to plain bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::shape::{Redundancy, Shape};
use super::*;
use crate::SplitMix64;
use crate::env::Env;
use crate::flash::faulty::{Faults, FaultyFlash};
use crate::flash::memory::MemoryFlash;
use crate::host::testing::run;
use crate::host::{Drive, QueuePair};
use crate::memory::{LocalBuffer, LocalMemory};
use crate::protocol::{MemoryAddress, Opcode, Operation};

const HEAD: u64 = 4096;
const OWN: u64 = 64 << 10;
const EXTENT: u64 = 32 << 10;

struct Fixture {
    shape: Shape,
    members: Vec<FaultyFlash>,
    flash: RedundantFlash,
    drive: Drive,
    pair: QueuePair,
    buffer: LocalBuffer,
    /// What the others were told.
    told: Arc<AtomicU32>,
}

fn fixture(redundancy: Redundancy, members: usize) -> Fixture {
    let shape = Shape::within(redundancy, members, OWN, EXTENT, 512 << 10);
    let bytes = HEAD + OWN + shape.rows_bytes();
    let members: Vec<_> = (0..members).map(|seed| FaultyFlash::new(bytes, seed as u64)).collect();
    Fixture::over(shape, members, 0)
}

impl Fixture {
    fn over(shape: Shape, members: Vec<FaultyFlash>, lost: u32) -> Fixture {
        let told = Arc::new(AtomicU32::new(lost));
        let tell = told.clone();
        let member = |(number, flash): (usize, &FaultyFlash)| -> SetMember {
            let flash: Arc<dyn Flash> = match lost >> number & 1 {
                0 => Arc::new(flash.clone()),
                _ => Arc::new(MemoryFlash::new(0)),
            };
            SetMember { flash, head_bytes: HEAD, used_bytes: member_bytes(&shape, number) }
        };
        let record = Box::new(move |lost| {
            tell.store(lost, Ordering::Relaxed);
            Ok(())
        });
        let flash = RedundantFlash::new(shape, members.iter().enumerate().map(member).collect(), lost, record);
        let drive =
            Drive::new(Arc::new(flash.clone()), LocalMemory::new(4 << 20).unwrap(), Vec::new(), Env::simulated(1).0);
        let (pair, buffer) = (drive.queue_pair(4).unwrap(), drive.local().allocate(1 << 20).unwrap());
        Fixture { shape, members, flash, drive, pair, buffer, told }
    }

    fn write(&mut self, flash: u64, bytes: &[u8]) -> i32 {
        self.buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let from = MemoryAddress::local(self.buffer.offset());
        let operation = Operation::Write { flash, from, length: bytes.len() as u32, fua: false };
        run(&mut self.pair, operation, &mut self.buffer).errno
    }

    fn read(&mut self, flash: u64, length: usize) -> Result<Vec<u8>, i32> {
        self.buffer.bytes_mut()[..length].fill(0xee);
        let operation = Operation::Read { flash, local: self.buffer.offset(), length: length as u32 };
        match run(&mut self.pair, operation, &mut self.buffer).errno {
            0 => Ok(self.buffer.bytes()[..length].to_vec()),
            errno => Err(errno),
        }
    }

    fn flush(&mut self) -> i32 {
        run(&mut self.pair, Operation::Flush, &mut self.buffer).errno
    }

    /// Own bytes, a stripe in each second extent, whole or in part, and a run of copies; what is there afterwards, by its address.
    fn fill(&mut self, seed: u64) -> Vec<(u64, Vec<u8>)> {
        let mut random = SplitMix64::new(seed);
        let mut bytes =
            move |length: u64| (0..length / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect::<Vec<u8>>();
        let rows = self.flash.rows().unwrap().clone();
        let mut filled = vec![(0, bytes(OWN))];
        let at = |extent: u32| OWN + u64::from(extent) * EXTENT;
        for extent in [0, 2, 7] {
            rows.take_stripe(extent);
            let row_bytes = rows.row_bytes();
            let length = if extent == 2 { row_bytes.clamp(8192, EXTENT) } else { EXTENT };
            filled.push((at(extent), bytes(length)));
        }
        rows.begin_copies(3, 2);
        filled.push((at(3), bytes(2 * EXTENT)));
        for (flash, content) in &filled {
            for (number, piece) in content.chunks(12 << 10).enumerate() {
                assert_eq!(self.write(flash + number as u64 * (12 << 10), piece), 0);
            }
        }
        // In place.
        let (run, again) = (filled.len() - 1, bytes(4096));
        assert_eq!(self.write(at(4) + 8192, &again), 0);
        filled[run].1[EXTENT as usize + 8192..][..4096].copy_from_slice(&again);
        assert_eq!(self.flush(), 0);
        filled
    }

    fn holds(&mut self, filled: &[(u64, Vec<u8>)]) {
        for (flash, content) in filled {
            assert!(self.read(*flash, content.len()).as_ref() == Ok(content), "at {flash}");
            let middle = content.len() / 2 - 1024;
            assert!(self.read(flash + middle as u64, 2048).unwrap() == content[middle..middle + 2048]);
        }
    }
}

/// From now on each command of this member fails.
fn fail(member: &FaultyFlash) {
    member.set_faults(Faults { read_one_in: 1, write_one_in: 1, flush_one_in: 1, ..Faults::default() });
}

const SHAPES: [(Redundancy, usize); 6] = [
    (Redundancy::Raid5, 3),
    (Redundancy::Raid5, 4),
    (Redundancy::Raid5, 6),
    (Redundancy::Mirror, 2),
    (Redundancy::Mirror, 3),
    (Redundancy::Mirror, 5),
];

#[test]
fn any_member_may_be_absent_and_all_is_there() {
    for (redundancy, members) in SHAPES {
        let mut fixture = fixture(redundancy, members);
        let filled = fixture.fill(7);
        fixture.holds(&filled);
        for absent in 0..members {
            let mut without = Fixture::over(fixture.shape, fixture.members.clone(), 1 << absent);
            without.flash.rows().unwrap().begin_copies(3, 2);
            without.holds(&filled);
            let state = without.flash.members()[absent].clone();
            assert!(state.is_lost && (state.rebuilt > 0 || redundancy == Redundancy::Mirror));
        }
    }
}

#[test]
fn a_member_that_fails_is_lost_once_the_others_know_and_work_goes_on() {
    for (redundancy, members) in SHAPES {
        for failing in 0..members {
            let mut fixture = fixture(redundancy, members);
            let before = fixture.fill(3);
            fail(&fixture.members[failing]);
            let after = fixture.fill(4);
            assert_eq!(fixture.told.load(Ordering::Relaxed), 1 << failing);
            fixture.holds(&after);
            assert!(before.iter().zip(&after).all(|(before, after)| before != after));
            let state = fixture.flash.members()[failing].clone();
            assert!(state.is_lost && state.writes_failed > 0);
        }
    }
}

#[test]
fn a_read_that_fails_is_answered_by_the_others_and_the_member_stays() {
    for (redundancy, members) in &SHAPES[..4] {
        let (redundancy, members) = (*redundancy, *members);
        let mut fixture = fixture(redundancy, members);
        let filled = fixture.fill(5);
        for member in 0..members {
            fixture.members[member].fail_nth(Opcode::Read, 1);
            fixture.holds(&filled);
            let state = fixture.flash.members()[member].clone();
            assert!(!state.is_lost && state.reads_failed == state.rebuilt, "{state:?}");
            assert_eq!(state.rebuilt, 1, "{redundancy:?} of {members}");
        }
        assert_eq!(fixture.told.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn after_a_second_loss_what_is_gone_is_an_error_and_the_rest_is_there() {
    let mut fixture = fixture(Redundancy::Raid5, 4);
    let filled = fixture.fill(6);
    fail(&fixture.members[1]);
    assert_eq!(fixture.flush(), 0);
    fail(&fixture.members[2]);
    assert_eq!(fixture.flush(), libc::EIO);
    let (mut there, mut gone) = (0, 0);
    for (flash, content) in filled.iter().flat_map(|(flash, content)| {
        content.chunks(4096).enumerate().map(move |(number, piece)| (flash + number as u64 * 4096, piece))
    }) {
        match fixture.read(flash, 4096) {
            Ok(read) => {
                assert!(read == content, "wrong bytes at {flash}");
                there += 1;
            }
            Err(errno) => {
                assert_eq!(errno, libc::EIO);
                gone += 1;
            }
        }
    }
    assert!(there > gone && gone > 0, "{there} {gone}");
}

#[test]
fn copies_that_a_crash_left_unequal_become_what_the_first_one_is() {
    for (redundancy, members) in [(Redundancy::Raid5, 3), (Redundancy::Mirror, 2)] {
        let mut fixture = fixture(redundancy, members);
        let mut filled = fixture.fill(8);
        assert_eq!(fixture.flash.make_copies_equal().unwrap(), 0);
        // As if a write had come to one member alone: which is the first copy is not known here.
        let alone = vec![9; 4096];
        let mut spoilt = Fixture::over(fixture.shape, fixture.members.clone(), 1 << 1);
        spoilt.flash.rows().unwrap().begin_copies(3, 2);
        for flash in [8192, OWN + 3 * EXTENT + 4096, OWN + 4 * EXTENT] {
            assert_eq!(spoilt.write(flash, &alone), 0);
        }
        assert_eq!(spoilt.flush(), 0);
        assert!(fixture.flash.make_copies_equal().unwrap() > 0);
        assert_eq!(fixture.flash.make_copies_equal().unwrap(), 0);
        for (flash, content) in &mut filled {
            *content = fixture.read(*flash, content.len()).unwrap();
        }
        for absent in 0..members {
            let mut without = Fixture::over(fixture.shape, fixture.members.clone(), 1 << absent);
            without.flash.rows().unwrap().begin_copies(3, 2);
            without.holds(&filled);
        }
        drop(fixture.drive);
    }
}

/// With a bug planted.
fn planted(bug: &'static str, body: impl FnOnce()) {
    // SAFETY: these bugs lend no memory twice.
    unsafe { crate::planted::with(bug, body) }
}

#[test]
#[should_panic(expected = "at ")]
fn a_parity_that_is_forgotten_is_noticed() {
    planted("ParityForgotten", any_member_may_be_absent_and_all_is_there);
}

#[test]
#[should_panic(expected = "at ")]
fn a_copy_that_is_forgotten_is_noticed() {
    planted("CopyForgotten", any_member_may_be_absent_and_all_is_there);
}

#[test]
#[should_panic(expected = "> 0")]
fn copies_that_are_left_unequal_are_noticed() {
    planted("CopiesLeftUnequal", copies_that_a_crash_left_unequal_become_what_the_first_one_is);
}

#[test]
#[should_panic(expected = "left == right")]
fn an_absence_that_is_not_durable_is_noticed() {
    planted("AbsenceNotDurable", a_member_that_fails_is_lost_once_the_others_know_and_work_goes_on);
}
