use super::image::SECTOR_BYTES;
use super::*;
use crate::env::Env;
use crate::host::testing::{run, submit};
use crate::host::{Drive, Lease, QueuePair, Returned};
use crate::memory::{LocalBuffer, LocalMemory};
use crate::protocol::{Completion, MemoryAddress, Status};

const CAPACITY_BYTES: u64 = 1 << 20;
const BLOCK: u32 = 4096;

struct Bench {
    flash: FaultyFlash,
    pair: QueuePair,
    buffer: LocalBuffer,
}

impl Bench {
    fn new(flash: FaultyFlash) -> Bench {
        let local = LocalMemory::new(1 << 20).unwrap();
        let drive = Drive::new(Arc::new(flash.clone()), local, Vec::new(), Env::simulated(0).0);
        let pair = drive.queue_pair(16).unwrap();
        let buffer = drive.local().allocate(BLOCK as usize).unwrap();
        Bench { flash, pair, buffer }
    }

    fn run(&mut self, operation: Operation) -> Completion {
        run(&mut self.pair, operation, &mut self.buffer)
    }

    fn write(&mut self, flash: u64, fill: u8, fua: bool) -> Completion {
        self.buffer.bytes_mut().fill(fill);
        self.run(Operation::Write { flash, from: MemoryAddress::local(self.buffer.offset()), length: BLOCK, fua })
    }

    fn submit_write(&mut self, flash: u64, fill: u8) {
        let mut buffer = self.pair.drive().local().allocate(BLOCK as usize).unwrap();
        buffer.bytes_mut().fill(fill);
        let operation =
            Operation::Write { flash, from: MemoryAddress::local(buffer.offset()), length: BLOCK, fua: false };
        submit(&mut self.pair, 2, operation, buffer);
    }

    fn survivors(&self, flash: u64) -> Vec<u8> {
        self.flash.reopen().peek(flash, u64::from(BLOCK))
    }
}

/// How much of a block holds `fill`, by whole sectors: none, some, all. Anything but `fill` and `before` is an error.
fn outcome(bytes: &[u8], fill: u8, before: u8) -> &'static str {
    let kept = bytes
        .chunks(SECTOR_BYTES)
        .map(|sector| {
            assert!(sector.iter().all(|&byte| byte == sector[0]) && [fill, before].contains(&sector[0]));
            usize::from(sector[0] == fill)
        })
        .sum::<usize>();
    match kept {
        0 => "none",
        kept if kept * SECTOR_BYTES == bytes.len() => "all",
        _ => "some",
    }
}

fn outcomes(one: impl Fn(u64) -> (Vec<u8>, u8)) -> std::collections::BTreeSet<&'static str> {
    (0..100).map(one).map(|(bytes, fill)| outcome(&bytes, fill, 0)).collect()
}

#[test]
fn a_crash_loses_keeps_or_tears_what_no_flush_covered() {
    let seen = outcomes(|seed| {
        let mut bench = Bench::new(FaultyFlash::new(CAPACITY_BYTES, seed));
        assert!(bench.write(8192, 7, false).is_success());
        assert_eq!(bench.flash.peek(8192, 4096), [7; 4096]);
        let report = bench.flash.crash();
        assert_eq!((report.sectors_unsynced, report.commands_in_flight, report.lost_or_torn), (8, 0, false));
        let bytes = bench.survivors(8192);
        let kept = bytes.iter().filter(|&&byte| byte == 7).count() / SECTOR_BYTES;
        assert_eq!(kept as u64, 8 - report.sectors_unsynced_lost);
        (bytes, 7)
    });
    assert_eq!(Vec::from_iter(seen), ["all", "none", "some"]);
}

#[test]
fn a_crash_loses_keeps_or_tears_what_was_in_flight() {
    let seen = outcomes(|seed| {
        let mut bench = Bench::new(FaultyFlash::new(CAPACITY_BYTES, seed));
        bench.submit_write(0, 9);
        let report = bench.flash.crash();
        let bytes = bench.survivors(0);
        let expected = match outcome(&bytes, 9, 0) {
            "none" => (1, 0, 0, true),
            "some" => (0, 1, 0, true),
            _ => (0, 0, 1, false),
        };
        assert_eq!((report.writes_lost, report.writes_torn, report.writes_kept, report.lost_or_torn), expected);
        (bytes, 9)
    });
    assert_eq!(Vec::from_iter(seen), ["all", "none", "some"]);
}

#[test]
fn what_a_flush_covers_or_forces_unit_access_always_survives() {
    for seed in 0..100 {
        let mut bench = Bench::new(FaultyFlash::new(CAPACITY_BYTES, seed));
        bench.write(0, 1, false);
        assert!(bench.run(Operation::Flush).is_success());
        bench.write(8192, 2, false);
        bench.write(8192, 3, true);
        bench.submit_write(16384, 4);
        bench.flash.crash();
        let after = bench.flash.reopen();
        assert_eq!(after.peek(0, 4096), [1; 4096]);
        assert_eq!(after.peek(8192, 4096), [3; 4096]);
    }
}

#[test]
fn a_flush_does_not_cover_a_write_still_in_flight_when_it_was_submitted() {
    let seen = outcomes(|seed| {
        let mut bench = Bench::new(FaultyFlash::new(CAPACITY_BYTES, seed));
        bench.submit_write(0, 5);
        submit(&mut bench.pair, 3, Operation::Flush, Lease::Nothing);
        let mut completions = Vec::new();
        while completions.len() < 2 {
            bench.pair.poll(&mut completions);
        }
        assert!(completions.iter().all(|Returned { completion, .. }| completion.is_success()));
        bench.flash.crash();
        (bench.survivors(0), 5)
    });
    assert!(seen.contains("some") && seen.contains("none"));
}

#[test]
fn a_failed_flush_may_lose_what_a_later_one_cannot_save() {
    let seen = outcomes(|seed| {
        let mut bench = Bench::new(FaultyFlash::new(CAPACITY_BYTES, seed));
        bench.flash.fail_nth(Opcode::Flush, 1);
        bench.write(0, 5, false);
        let failed = bench.run(Operation::Flush);
        assert_eq!((failed.status, failed.errno), (Status::Failed, libc::EIO));
        assert!(bench.run(Operation::Flush).is_success());
        assert_eq!(bench.flash.peek(0, 4096), [5; 4096]);
        bench.flash.crash();
        (bench.survivors(0), 5)
    });
    assert!(seen.contains("some"));
}

#[test]
fn commands_fail_when_told_to_and_by_chance() {
    let mut bench = Bench::new(FaultyFlash::new(CAPACITY_BYTES, 1));
    bench.flash.fail_nth(Opcode::Write, 2);
    let statuses: Vec<_> = (0..3).map(|_| bench.write(0, 1, true).status).collect();
    assert_eq!(statuses, [Status::Success, Status::Failed, Status::Success]);
    bench.flash.set_faults(Faults { read_one_in: 3, ..Faults::default() });
    let local = bench.buffer.offset();
    let failed =
        (0..300).filter(|_| !bench.run(Operation::Read { flash: 0, local, length: 4096 }).is_success()).count();
    assert!((50..150).contains(&failed), "{failed} of 300");
}

#[test]
fn nothing_completes_after_the_crash() {
    for nth in 1..=8 {
        let mut bench = Bench::new(FaultyFlash::new(CAPACITY_BYTES, nth));
        bench.flash.crash_after(nth);
        let local = bench.pair.drive().local().clone();
        let buffers: Vec<LocalBuffer> = (0..4).map(|_| local.allocate(BLOCK as usize).unwrap()).collect();
        for (place, buffer) in (0..).zip(buffers) {
            let operation = Operation::Write {
                flash: place * 4096,
                from: MemoryAddress::local(buffer.offset()),
                length: BLOCK,
                fua: true,
            };
            submit(&mut bench.pair, place, operation, buffer);
        }
        let mut completions = Vec::new();
        while !bench.flash.crashed() {
            bench.pair.poll(&mut completions);
        }
        // Events are submissions first; each completion after those is an event too.
        assert_eq!(completions.len() as u64, nth.saturating_sub(5));
        assert_eq!(bench.flash.crash_report().unwrap().commands_in_flight, nth.min(4) - nth.saturating_sub(5));
        bench.pair.wait(None);
        assert_eq!(bench.pair.poll(&mut completions), 0);
        assert_eq!(bench.flash.crash(), bench.flash.crash_report().unwrap());
    }
}

/// A busy run over random places, with a crash and another busy run after it.
fn trace(seed: u64) -> (u64, u64) {
    let mut flash = FaultyFlash::new(CAPACITY_BYTES, seed);
    flash.set_faults(Faults {
        read_one_in: 50,
        write_one_in: 50,
        flush_one_in: 20,
        short_one_in: 20,
        ..Faults::default()
    });
    let mut random = SplitMix64::new(seed);
    for _ in 0..2 {
        flash.crash_after(150);
        let mut bench = Bench::new(flash.clone());
        let allocate = |tag| (tag, bench.pair.drive().local().allocate(4096).unwrap());
        let mut free: Vec<(u64, LocalBuffer)> = (0..8).map(allocate).collect();
        let mut returned = Vec::new();
        while !flash.crashed() {
            if let Some((tag, buffer)) = free.pop() {
                let (flash, local) = (random.below(256) * 4096, buffer.offset());
                let operation = match random.below(5) {
                    0 => Operation::Flush,
                    1 => Operation::Discard { flash, length: 8 * 512 },
                    2 => Operation::Read { flash, local, length: BLOCK },
                    fua => Operation::Write { flash, from: MemoryAddress::local(local), length: BLOCK, fua: fua == 3 },
                };
                submit(&mut bench.pair, tag, operation, buffer);
            }
            bench.pair.poll(&mut returned);
            let buffer_of = |Returned { completion, lease }| (completion.tag, lease.into_buffer());
            free.extend(returned.drain(..).map(buffer_of));
        }
        flash = flash.reopen();
    }
    let mut bench = Bench::new(flash.clone());
    for flash in (0..CAPACITY_BYTES).step_by(BLOCK as usize) {
        bench.run(Operation::Read { flash, local: bench.buffer.offset(), length: BLOCK });
    }
    (flash.trace_hash(), flash.events())
}

#[test]
fn a_seed_decides_the_whole_run() {
    let traces: Vec<_> = (0..20).map(trace).collect();
    for (seed, expected) in (0..).zip(&traces) {
        assert_eq!(trace(seed), *expected);
    }
    let distinct: std::collections::BTreeSet<_> = traces.iter().map(|(hash, _)| hash).collect();
    assert_eq!(distinct.len(), traces.len());
}

#[test]
fn completions_are_reordered() {
    let mut bench = Bench::new(FaultyFlash::new(CAPACITY_BYTES, 3));
    for tag in 0..16 {
        submit(&mut bench.pair, tag, Operation::Flush, Lease::Nothing);
    }
    let mut completions = Vec::new();
    while completions.len() < 16 {
        bench.pair.poll(&mut completions);
    }
    let mut tags: Vec<_> = completions.iter().map(|returned| returned.completion.tag).collect();
    assert!(!tags.is_sorted());
    tags.sort_unstable();
    assert_eq!(tags, Vec::from_iter(0..16));
}

#[test]
#[should_panic(expected = "touched while a write")]
fn changing_a_buffer_in_flight_is_noticed() {
    let mut bench = Bench::new(FaultyFlash::new(CAPACITY_BYTES, 3));
    let operation =
        Operation::Write { flash: 0, from: MemoryAddress::local(bench.buffer.offset()), length: BLOCK, fua: false };
    let byte = bench.buffer.as_ptr().wrapping_add(5).cast_mut();
    submit(&mut bench.pair, 2, operation, bench.buffer.take());
    // SAFETY: this flash touches local memory within `submit` and `poll` alone, so what is done between them is no race, and no
    // slice of the buffer lives.
    unsafe { byte.write(2) };
    loop {
        bench.pair.poll(&mut Vec::new());
    }
}

#[test]
fn rot_changes_one_byte() {
    let bench = Bench::new(FaultyFlash::new(CAPACITY_BYTES, 3));
    bench.flash.flip(1000, 0x81);
    let bytes = bench.flash.peek(512, 1024);
    assert_eq!(bytes[1000 - 512], 0x81);
    assert_eq!(bytes.iter().filter(|&&byte| byte != 0).count(), 1);
}

#[test]
fn a_dropped_queue_leaves_nothing_in_flight() {
    let mut bench = Bench::new(FaultyFlash::new(CAPACITY_BYTES, 3));
    bench.submit_write(0, 1);
    let Bench { flash, pair, buffer } = bench;
    drop((pair, buffer));
    assert_eq!(flash.crash().commands_in_flight, 0);
}

#[test]
fn a_write_told_to_take_long_is_overtaken_by_others_and_comes_in_the_end() {
    let mut bench = Bench::new(FaultyFlash::new(CAPACITY_BYTES, 3));
    bench.flash.stall_nth_write(2, 50);
    assert!(bench.write(0, 1, false).is_success() && !bench.flash.has_stalled());
    bench.submit_write(8192, 2);
    let other = bench.pair.drive().local().allocate(BLOCK as usize).unwrap();
    let operation = Operation::Read { flash: 0, local: other.offset(), length: BLOCK };
    submit(&mut bench.pair, 3, operation, other);
    let mut completions = Vec::new();
    for _ in 0..50 {
        assert!(bench.flash.has_stalled());
        bench.pair.poll(&mut completions);
    }
    assert!(!bench.flash.has_stalled());
    assert_eq!(completions.drain(..).map(|returned| returned.completion.tag).collect::<Vec<_>>(), [3]);
    while bench.pair.poll(&mut completions) == 0 {
        bench.pair.wait(None);
    }
    assert_eq!(bench.flash.peek(8192, 4096), [2; 4096]);
    assert!(bench.write(0, 3, false).is_success(), "only one is told to");
}
