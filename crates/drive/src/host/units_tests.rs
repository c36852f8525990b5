//! Drives with compute units: the tests of `Compute` again, and tests of the units.

use super::compute_bench::{BYTES, ComputeBench, FLASH_BYTES, SOURCE, digest, failed, pipeline, written};
use super::testing::{finish, on_units, once_more, run, submit, units_of};
use super::{Drive, QueuePair, Returned};
use crate::device::engine::EngineOptions;
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::device::programs::built_in;
use crate::env::Env;
use crate::event::{Event, is_readable_within};
use crate::flash::Flash;
use crate::flash::file::{FileFlash, IoEngine};
use crate::flash::memory::MemoryFlash;
use crate::flash::test_path::TestPath;
use crate::memory::LocalMemory;
use crate::protocol::{
    Command, LocalRange, Operation, PipelineDescriptor, PipelinePlace, PipelineReason, PipelineResult, PipelineSink,
    Status,
};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

once_more! {
    on_units;
    compute_tests:
        one_command_runs_many_pipelines_and_only_results_cross
        results_are_kept_and_written_to_flash
        what_is_wrong_with_a_pipeline_is_its_own
        a_command_that_is_no_list_of_pipelines_starts_nothing
        flash_that_fails_is_named
        a_queue_pair_is_dropped_in_the_middle_of_its_pipelines
        a_drain_waits_for_pipelines_of_many_parts;
    cancel_tests:
        all_pipelines_of_a_command_are_cancelled
        one_pipeline_is_cancelled_and_no_other
        nothing_to_cancel_is_no_failure;
    tests:
        a_program_reads_what_was_written
        what_cannot_be_run_is_refused
        a_pipeline_reads_and_computes_with_one_completion
        a_list_is_copied_when_it_is_submitted
        a_list_that_is_none_is_refused_at_its_stage
        a_stage_that_fails_is_named_and_ends_its_pipeline;
    kept_tests:
        a_batch_reads_what_it_keeps_itself
        readers_and_makers_share_few_sub_buffers
        a_reader_is_told_why_its_maker_failed
        a_later_command_reads_what_was_kept_before_it;
}

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

/// A gate at which programs wait.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let is_open = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
    }
}

/// A program that calls a function with its parameters and whether it is cancelled, and copies its input to its output.
struct Then<F>(&'static str, F);

impl<F: Fn(&[u8], &dyn Fn() -> bool) + Send + Sync> Program for Then<F> {
    fn run(&self, Context { parameters, inputs, output, task }: Context<'_>) -> ProgramResult {
        (self.1)(parameters, &|| task.is_cancelled());
        output[..inputs[0].len()].copy_from_slice(inputs[0]);
        (Status::Success, [inputs[0].len() as u64, 0])
    }

    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: self.0, version: 1, is_stream: true }
    }
}

fn with_programs(programs: Vec<Box<dyn Program>>) -> Drive {
    let programs = built_in().into_iter().chain(programs).collect();
    let flash = Arc::new(MemoryFlash::new(FLASH_BYTES));
    Drive::new(flash, LocalMemory::new(4 << 20).unwrap(), programs, Env::system())
}

/// Submits pipelines of 100 bytes through this program with one command.
fn submit_many(bench: &mut ComputeBench, tag: u64, pipelines: &[PipelineDescriptor]) {
    let list = bench.put(pipelines);
    submit(&mut bench.pair, tag, Operation::Compute { pipelines: list }, bench.buffer.take());
}

fn finish_one(bench: &mut ComputeBench, count: usize) -> Vec<PipelineResult> {
    bench.buffer = finish(&mut bench.pair, 1).pop().unwrap().lease.into_buffer();
    bench.results(count)
}

#[test]
fn two_queue_pairs_share_one_unit_by_the_weights_of_their_applications() {
    const EACH: usize = 60;
    let (gate, log) = (Arc::new(Gate::default()), Arc::new(Mutex::new(Vec::new())));
    let (at, ran) = (gate.clone(), log.clone());
    let record = Then("record", move |parameters: &[u8], _: &dyn Fn() -> bool| {
        at.pass();
        ran.lock().unwrap().push(parameters[0]);
    });
    let drive = with_programs(vec![Box::new(record)]);
    let options = units_of(&drive, &[("record", 1)]);
    // Flash bytes cost so much that the time of tasks does not matter: the order follows the bytes read.
    let application_names = vec!["large".into(), "small".into()];
    let options = EngineOptions { weights: vec![3, 1], application_names, ..options };
    let options = EngineOptions { sub_buffers: 6, flash_byte_cost: 1 << 24, ..options };
    let drive = drive.with_compute_units(&options);
    let mut benches = [0, 1].map(|_| ComputeBench::on(drive.clone()));
    for (application, bench) in (0..).zip(&mut benches) {
        let record = bench.stage_with("record", &[application as u8]);
        let mut one = pipeline(&[record], bench.flash(&[(0, 512)]), bench.sink(0, 512));
        one.application = application;
        submit_many(bench, 1, &[one; EACH]);
    }
    gate.open();
    for bench in &mut benches {
        assert_eq!(finish_one(bench, EACH), vec![PipelineResult::Finished { bytes: 512 }; EACH]);
    }
    let log = log.lock().unwrap();
    assert_eq!(log.len(), 2 * EACH);
    let first = log[..EACH].iter().filter(|application| **application == 0).count();
    assert!((EACH * 3 / 4 - 4..=EACH * 3 / 4 + 4).contains(&first), "{first} of {EACH}, {log:?}");
    let known = drive.applications();
    let told: Vec<_> = known.iter().map(|of| (&of.name[..], of.weight, of.pipelines, of.tasks)).collect();
    // Each pipeline has three tasks: source, program, sink.
    assert_eq!(told, [("large", 3, EACH as u64, 3 * EACH as u64), ("small", 1, EACH as u64, 3 * EACH as u64)]);
}

#[test]
fn a_unit_whose_program_panics_is_dead_and_its_pipeline_says_where() {
    let faulty = |parameters: &[u8], _: &dyn Fn() -> bool| assert!(parameters.is_empty(), "for the test");
    let drive = with_programs(vec![Box::new(Then("faulty", faulty))]);
    let drive = drive.with_compute_units(&units_of(&drive, &[("faulty", 2), ("sha256", 1)]));
    let mut bench = ComputeBench::on(drive.clone());
    let mut other = ComputeBench::on(drive);
    let (good, bad) = (bench.stage("faulty"), bench.stage_with("faulty", &[1]));
    let (concat, sha) = (bench.stage("concat"), bench.stage("sha256"));
    let source = bench.local(&[(SOURCE, 100)]);
    let sink = |bench: &ComputeBench, at| bench.sink(at, 100);
    let lost = PipelineResult::Failed(failed(PipelinePlace::Stage(1), PipelineReason::UnitLost));
    let results = bench.run(&[
        pipeline(&[good, sha], source, bench.sink(0, 32)),
        pipeline(&[concat, bad, sha], source, bench.sink(32, 32)),
        pipeline(&[good], source, sink(&bench, 64)),
    ]);
    let finished = |bytes| PipelineResult::Finished { bytes };
    assert_eq!(results, [finished(32), lost, finished(100)]);
    assert_eq!(bench.output(0, 32), digest(&[&written(SOURCE as usize, 100)]));
    // The last unit dies while pipelines of both queue pairs wait for it: none of them waits for ever.
    let other_source = other.local(&[(SOURCE, 100)]);
    let waiting = pipeline(&[concat, good], other_source, sink(&other, 0));
    submit_many(&mut other, 1, &[waiting; 20]);
    let mut pipelines = vec![pipeline(&[bad], source, sink(&bench, 0))];
    pipelines.extend([pipeline(&[good], source, sink(&bench, 0)); 20]);
    let results = bench.run(&pipelines);
    let first = failed(PipelinePlace::Stage(0), PipelineReason::UnitLost);
    assert_eq!(results[0], PipelineResult::Failed(first));
    for result in results[1..].iter().chain(&finish_one(&mut other, 20)) {
        match result {
            PipelineResult::Finished { .. } => {}
            PipelineResult::Failed(failure) => assert_eq!(failure.reason, PipelineReason::NoUnitLeft),
        }
    }
    let gone = failed(PipelinePlace::Stage(1), PipelineReason::NoUnitLeft);
    let results = bench.run(&[
        pipeline(&[concat, good], source, sink(&bench, 0)),
        pipeline(&[concat, sha], source, bench.sink(0, 32)),
    ]);
    assert_eq!(results, [PipelineResult::Failed(gone), finished(32)]);
}

#[test]
fn programs_of_commands_run_on_units_and_where_none_is_left_on_the_thread_that_polls() {
    let ran_on = Arc::new(Mutex::new(Vec::new()));
    let log = ran_on.clone();
    let faulty = move |parameters: &[u8], _: &dyn Fn() -> bool| {
        log.lock().unwrap().push(std::thread::current().name().unwrap_or_default().to_owned());
        assert!(parameters.is_empty(), "for the test");
    };
    let drive = with_programs(vec![Box::new(Then("faulty", faulty))]);
    let drive = drive.with_compute_units(&units_of(&drive, &[("faulty", 2)]));
    let mut bench = ComputeBench::on(drive.clone());
    let program = bench.stage("faulty").program;
    let buffer = bench.buffer.range();
    let at = |offset: u64, length| LocalRange { offset: buffer.offset + offset, length };
    let execute = |parameters| Operation::Execute {
        program,
        parameters: at(0, parameters),
        input: at(SOURCE, 100),
        output: at(SOURCE + 100, 100),
    };
    let (good, bad) = (execute(0), execute(1));
    let statuses =
        [good, bad, good, bad, good].map(|operation| run(&mut bench.pair, operation, &mut bench.buffer).status);
    use Status::{Success, UnitLost};
    assert_eq!(statuses, [Success, UnitLost, Success, UnitLost, Success]);
    assert_eq!(bench.buffer.bytes()[SOURCE as usize + 100..][..100], written(SOURCE as usize, 100));
    let own = std::thread::current().name().unwrap().to_owned();
    let unit = || "tapetum-unit".to_owned();
    assert_eq!(*ran_on.lock().unwrap(), [unit(), unit(), unit(), unit(), own]);
    let stages = drive.stage_counters();
    let faulty = stages.iter().find(|stage| stage.name == "faulty").unwrap();
    assert_eq!((faulty.tasks, faulty.failures), (4, 2));
}

#[test]
fn a_program_without_units_that_panics_takes_nothing_else_along() {
    let faulty = |parameters: &[u8], _: &dyn Fn() -> bool| assert!(parameters.is_empty(), "for the test");
    let drive = with_programs(vec![Box::new(Then("faulty", faulty))]);
    let drive = drive.with_compute_units(&units_of(&drive, &[("sha256", 1)]));
    let mut bench = ComputeBench::on(drive);
    let (good, bad) = (bench.stage("faulty"), bench.stage_with("faulty", &[1]));
    let source = bench.local(&[(SOURCE, 100)]);
    let results =
        bench.run(&[pipeline(&[bad], source, bench.sink(0, 100)), pipeline(&[good], source, bench.sink(0, 100))]);
    let lost = failed(PipelinePlace::Stage(0), PipelineReason::UnitLost);
    assert_eq!(results, [PipelineResult::Failed(lost), PipelineResult::Finished { bytes: 100 }]);
}

#[test]
fn a_queue_pair_that_leaves_waits_for_its_running_tasks_and_frees_all() {
    let (runs, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (started, ended) = (runs.clone(), over.clone());
    let slow = move |_: &[u8], is_cancelled: &dyn Fn() -> bool| {
        started.fetch_add(1, Ordering::SeqCst);
        while !is_cancelled() {
            std::thread::yield_now();
        }
        // Keep it busy for a while.
        is_readable_within(Event::new().unwrap().as_raw_fd(), Some(Duration::from_millis(20)));
        ended.store(true, Ordering::SeqCst);
    };
    for threads in [0, 1] {
        let mut drive = with_programs(vec![Box::new(Then("slow", slow.clone()))]);
        if threads > 0 {
            drive = drive.with_threads(threads).unwrap();
        }
        let drive = drive.with_compute_units(&units_of(&drive, &[("slow", 1)]));
        let mut bench = ComputeBench::on(drive.clone());
        let used = drive.local().bytes_used();
        let slow = bench.stage("slow");
        let source = bench.local(&[(SOURCE, 100)]);
        let keep = |id| pipeline(&[slow], source, PipelineSink::Kept { id, bytes_max: 100 });
        let before = runs.load(Ordering::SeqCst);
        submit_many(&mut bench, 1, &(0..40).map(keep).collect::<Vec<_>>());
        while runs.load(Ordering::SeqCst) == before {
            assert_eq!(bench.pair.poll(&mut Vec::new()), 0);
        }
        over.store(false, Ordering::SeqCst);
        let ComputeBench { pair, .. } = bench;
        drop(pair);
        assert!(over.load(Ordering::SeqCst), "it is gone before its task has ended");
        assert_eq!(runs.load(Ordering::SeqCst), before + 1, "what had not begun does not");
        assert_eq!(drive.local().bytes_used(), used - BYTES);
    }
}

/// A drive over a file, which has an event for its completions.
fn on_a_file(path: &TestPath, threads: usize) -> Drive {
    let flash: Arc<dyn Flash> = Arc::new(FileFlash::create(path, FLASH_BYTES, IoEngine::Auto, &Env::system()).unwrap());
    let mut drive = Drive::new(flash, LocalMemory::new(8 << 20).unwrap(), built_in(), Env::system());
    if threads > 0 {
        drive = drive.with_threads(threads).unwrap();
    }
    drive.with_compute_units(&units_of(&drive, &[("sha256", 1), ("zstd-compress", 1), ("zstd-decompress", 1)]))
}

fn finish_by_event(pair: &mut QueuePair, count: usize) -> Vec<Returned> {
    let mut returned = Vec::new();
    while returned.len() < count {
        if pair.poll(&mut returned) == 0 && !pair.is_ready() {
            let fd = pair.event_fd().unwrap();
            assert!(is_readable_within(fd, PATIENCE), "the event is lost");
        }
    }
    returned
}

/// Rounds of commands and pipelines, one after the other or together, by a host that sleeps on the one descriptor.
fn rounds_by_event(drive: &Drive, rounds: u64) {
    let mut bench = ComputeBench::on(drive.clone());
    let [compress, inflate, sha] = ["zstd-compress", "zstd-decompress", "sha256"].map(|name| bench.stage(name));
    let mut page = drive.local().allocate(4096).unwrap();
    for round in 0..rounds {
        let (from, length) = (512 * (round % 64), 1000 + 800 * (round % 40));
        let source = bench.flash(&[(from, length)]);
        let list = bench.put(&[pipeline(&[compress, inflate, sha], source, bench.sink(0, 32))]);
        submit(&mut bench.pair, 1, Operation::Compute { pipelines: list }, bench.buffer.take());
        let mut ends = 1;
        if round % 3 > 0 {
            let read = Operation::Read { flash: 0, local: page.offset(), length: 4096 };
            bench.pair.submit(Command::new(2, read), page.take().into()).unwrap();
            ends += 1;
        }
        for returned in finish_by_event(&mut bench.pair, ends) {
            assert!(returned.completion.is_success());
            match returned.completion.tag {
                1 => bench.buffer = returned.lease.into_buffer(),
                _ => page = returned.lease.into_buffer(),
            }
        }
        assert_eq!(bench.results(1), [PipelineResult::Finished { bytes: 32 }]);
        assert_eq!(bench.output(0, 32), digest(&[&written(from as usize, length as usize)]));
    }
}

#[test]
fn one_event_tells_of_flash_and_compute() {
    for threads in [0, 1] {
        let path = TestPath::new();
        rounds_by_event(&on_a_file(&path, threads), 300);
    }
}

#[test]
fn many_hosts_sleep_and_leave_while_units_work() {
    for threads in [0, 2] {
        let path = TestPath::new();
        let drive = on_a_file(&path, threads);
        let engine = drive.queue_pair(1).unwrap();
        let used = drive.local().bytes_used();
        let host = |number: u64| {
            let theirs = drive.clone();
            let work = move || {
                for round in 0..8 {
                    rounds_by_event(&theirs, 15);
                    // Another queue pair leaves in the middle.
                    let mut bench = ComputeBench::on(theirs.clone());
                    let (concat, sha) = (bench.stage("concat"), bench.stage("sha256"));
                    let source = bench.flash(&[(0, 50_000)]);
                    let one = pipeline(&[concat, sha], source, bench.sink(0, 32));
                    submit_many(&mut bench, 1, &[one; 9]);
                    for _ in 0..(number + round) * 7 % 23 {
                        bench.pair.poll(&mut Vec::new());
                    }
                }
            };
            drive.env().spawn("host", work).unwrap()
        };
        let hosts: Vec<_> = (0..4).map(host).collect();
        hosts.into_iter().for_each(|host| host.join().unwrap());
        assert_eq!(drive.local().bytes_used(), used);
        drop(engine);
    }
}

#[test]
fn deadlines_are_kept_while_all_sleep() {
    let gate = Arc::new(Gate::default());
    let at = gate.clone();
    let stuck = Then("stuck", move |_: &[u8], _: &dyn Fn() -> bool| at.pass());
    let drive = with_programs(vec![Box::new(stuck)]);
    let mut bench = ComputeBench::on(drive.with_compute_units(&units_of(&drive, &[("stuck", 1)])));
    let stage = bench.stage("stuck");
    let source = bench.local(&[(SOURCE, 100)]);
    let mut one = pipeline(&[stage], source, bench.sink(0, 100));
    one.deadline_us = 20_000;
    let results = bench.run(&[one; 3]);
    for result in results {
        let PipelineResult::Failed(failure) = result else { panic!("{result:?}") };
        assert_eq!(failure.reason, PipelineReason::DeadlineExceeded);
    }
    gate.open();
    one.deadline_us = 0;
    // The unit is back, and so are its sub-buffers.
    assert_eq!(bench.run(&[one]), [PipelineResult::Finished { bytes: 100 }]);
}

#[test]
fn a_drive_with_too_little_local_memory_for_its_units_says_so() {
    let drive = with_programs(Vec::new());
    let options = EngineOptions { sub_buffers: 1000, ..units_of(&drive, &[("sha256", 1)]) };
    let error = drive.with_compute_units(&options).queue_pair(4).err().unwrap().to_string();
    assert!(error.contains("no 65536000 bytes for sub-buffers"), "{error}");
}
