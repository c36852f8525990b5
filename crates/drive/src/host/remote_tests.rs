//! Drives with threads of their own: the tests of queue pairs once more, and what is theirs alone.

use super::compute_bench::{ComputeBench, FLASH_BYTES, SOURCE, pipeline};
use super::testing::{finish, on_a_drive_thread, once_more, run, submit};
use super::{Drive, Lease};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::device::programs::built_in;
use crate::env::Env;
use crate::event::{Event, is_readable_within};
use crate::flash::memory::MemoryFlash;
use crate::flash::{Flash, FlashError, FlashQueue};
use crate::memory::{LocalMemory, PairMemory};
use crate::protocol::{Command, Completion, LocalRange, MemoryAddress, Operation, ProgramId};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

once_more! {
    on_a_drive_thread;
    cancel_tests:
        all_pipelines_of_a_command_are_cancelled
        one_pipeline_is_cancelled_and_no_other
        nothing_to_cancel_is_no_failure;
    tests:
        a_program_reads_what_was_written
        what_cannot_be_run_is_refused
        counters_outlive_their_queue_pair
        a_pipeline_reads_and_computes_with_one_completion
        a_list_is_copied_when_it_is_submitted
        a_list_that_is_none_is_refused_at_its_stage
        a_stage_that_fails_is_named_and_ends_its_pipeline
        a_drive_says_what_it_is_and_has;
    compute_tests:
        one_command_runs_many_pipelines_and_only_results_cross
        results_are_kept_and_written_to_flash
        what_is_wrong_with_a_pipeline_is_its_own
        a_command_that_is_no_list_of_pipelines_starts_nothing
        flash_that_fails_is_named;
    kept_tests:
        a_batch_reads_what_it_keeps_itself
        readers_and_makers_share_few_sub_buffers
        a_reader_is_told_why_its_maker_failed
        a_later_command_reads_what_was_kept_before_it;
    lease_tests:
        a_command_outside_its_lease_is_refused_and_touches_nothing
        a_stage_outside_the_lease_is_named
        memory_of_another_drive_lends_nothing
        parts_of_a_buffer_are_with_several_commands
        each_command_has_its_own_lease_back_whatever_its_tag;
    region_tests:
        what_is_sealed_is_written_to_flash_while_its_arena_is_filled_on
        what_is_not_leased_of_a_region_is_refused;
}

/// Writes and reads through a queue pair that lives no longer.
fn one_round(drive: &Drive, host: u64, round: u64) {
    let mut pair = drive.queue_pair(4).unwrap();
    let flash = (host << 16) + (round % 16) * 4096;
    for place in 0..8 {
        let mut buffer = drive.local().allocate(512).unwrap();
        buffer.bytes_mut().fill((round ^ place) as u8);
        let local = buffer.offset();
        submit(
            &mut pair,
            place,
            Operation::Write { flash: flash + place * 512, from: MemoryAddress::local(local), length: 512, fua: false },
            buffer,
        );
    }
    for returned in finish(&mut pair, 8) {
        let (place, mut buffer) = (returned.completion.tag, returned.lease.into_buffer());
        buffer.bytes_mut().fill(0);
        let read = Operation::Read { flash: flash + place * 512, local: buffer.offset(), length: 512 };
        assert!(run(&mut pair, read, &mut buffer).is_success());
        assert!(buffer.bytes().iter().all(|byte| *byte == (round ^ place) as u8));
    }
    if round.is_multiple_of(3) {
        // Dropped with a command in flight.
        submit(&mut pair, 0, Operation::Flush, Lease::Nothing);
    }
}

#[test]
fn hosts_on_many_threads_share_few_drive_threads() {
    const HOSTS: u64 = 5;
    const ROUNDS: u64 = 300;
    let (flash, local) = (Arc::new(MemoryFlash::new(HOSTS << 16)), LocalMemory::new(4 << 20).unwrap());
    let drive = Drive::new(flash, local, Vec::new(), Env::system()).with_threads(2).unwrap();
    let host = |number: u64| {
        let theirs = drive.clone();
        drive.env().spawn("host", move || (0..ROUNDS).for_each(|round| one_round(&theirs, number, round))).unwrap()
    };
    let hosts: Vec<_> = (0..HOSTS).map(host).collect();
    hosts.into_iter().for_each(|host| host.join().unwrap());
    assert_eq!(drive.local().bytes_used(), 0);
}

struct Panics;

impl Program for Panics {
    fn run(&self, _context: Context<'_>) -> ProgramResult {
        panic!("for the test");
    }

    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: "panics", version: 1, is_stream: false }
    }
}

#[test]
fn whoever_waits_hears_that_the_drives_thread_has_panicked() {
    let programs: Vec<Box<dyn Program>> = vec![Box::new(Panics)];
    let local = LocalMemory::new(1 << 20).unwrap();
    let drive = Drive::new(Arc::new(MemoryFlash::new(4096)), local, programs, Env::system()).with_threads(1).unwrap();
    let mut pair = drive.queue_pair(4).unwrap();
    let (parameters, input, output) = (LocalRange::EMPTY, LocalRange::EMPTY, LocalRange::EMPTY);
    submit(&mut pair, 1, Operation::Execute { program: ProgramId(0), parameters, input, output }, Lease::Nothing);
    let waiting = catch_unwind(AssertUnwindSafe(|| finish(&mut pair, 1)));
    let said = *waiting.unwrap_err().downcast::<&str>().unwrap();
    assert!(said.contains("drive's thread has panicked"), "{said}");
    drop((pair, drive));
}

/// Flash whose reads end when its gate is open, and whose event is raised then.
struct GatedFlash {
    memory: MemoryFlash,
    gate: Arc<(AtomicBool, Event)>,
}

struct GatedQueue {
    memory: Box<dyn FlashQueue>,
    gate: Arc<(AtomicBool, Event)>,
}

impl Flash for GatedFlash {
    fn capacity_bytes(&self) -> u64 {
        self.memory.capacity_bytes()
    }

    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        self.memory.grow(capacity_bytes)
    }

    fn sector_bytes(&self) -> u32 {
        self.memory.sector_bytes()
    }

    fn describe(&self) -> String {
        "gated".into()
    }

    fn open_queue(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        Ok(Box::new(GatedQueue { memory: self.memory.open_queue(memory, depth)?, gate: self.gate.clone() }))
    }
}

impl FlashQueue for GatedQueue {
    unsafe fn submit(&mut self, command: &Command) {
        // SAFETY: by our caller's word.
        unsafe { self.memory.submit(command) };
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if self.gate.0.load(Ordering::Acquire) {
            self.memory.poll(completions);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        is_readable_within(self.gate.1.as_raw_fd(), timeout);
    }

    fn event_fd(&self) -> Option<RawFd> {
        Some(self.gate.1.as_raw_fd())
    }
}

/// A pipeline waits for the sub-buffers of another whose read does not end, and nothing but its deadline comes.
fn deadline_that_nothing_else_wakes_for(threads: usize) {
    let gate = Arc::new((AtomicBool::new(true), Event::new().unwrap()));
    let flash = GatedFlash { memory: MemoryFlash::new(FLASH_BYTES), gate: gate.clone() };
    let mut drive = Drive::new(Arc::new(flash), LocalMemory::new(2 << 20).unwrap(), built_in(), Env::system());
    if threads > 0 {
        drive = drive.with_threads(threads).unwrap();
    }
    let (mut bench, mut other) = (ComputeBench::on(drive.clone()), ComputeBench::on(drive));
    gate.0.store(false, Ordering::Release);
    let concat = bench.stage("concat");
    let slow = pipeline(&[concat; 8], bench.flash(&[(0, 512)]), bench.sink(0, 512));
    let mut hasty = pipeline(&[concat; 8], other.local(&[(SOURCE, 100)]), other.sink(0, 100));
    hasty.deadline_us = 20_000;
    let lists = [bench.put(&[slow]), other.put(&[hasty])];
    for ((tag, pipelines), buffer) in (1..).zip(lists).zip([bench.buffer.take(), other.buffer.take()]) {
        submit(&mut bench.pair, tag, Operation::Compute { pipelines }, buffer);
    }
    let hasty = finish(&mut bench.pair, 1).remove(0);
    assert_eq!((hasty.completion.tag, hasty.completion.result), (2, [1, 0]));
    gate.0.store(true, Ordering::Release);
    gate.1.raise();
    let slow = finish(&mut bench.pair, 1).remove(0);
    assert_eq!((slow.completion.tag, slow.completion.result), (1, [0, 0]));
}

#[test]
fn whoever_polls_sleeps_no_longer_than_until_a_deadline() {
    deadline_that_nothing_else_wakes_for(0);
    deadline_that_nothing_else_wakes_for(1);
}
