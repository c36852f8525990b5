//! The core, driven by a unit that runs tasks in any order, late or never, and dies.

use super::core::{EngineCore, EngineTask, JobRequest, SinkRequest, SourceRequest};
use super::run::{TaskStep, run_task};
use super::{EngineCounters, EngineOptions, SINK, SOURCE};
use super::{JobEnd, JobResult, TaskResult};
use crate::SplitMix64;
use crate::device::arbiter::UnitCount;
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::device::programs::{self, Concat};
use crate::memory::{LocalBuffer, LocalMemory};
use crate::protocol::{
    LocalRange, Operation, PipelineFailure, PipelinePlace, PipelineReason, PipelineResult, PipelineStage, ProgramId,
    SourceRange, Status,
};
use proptest::prelude::*;
use std::sync::Arc;
use tapetum_kernels::sha256::Sha256;

/// Says "more" of nothing.
struct Endless;

impl Program for Endless {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: "endless", version: 1, is_stream: true }
    }

    fn run(&self, _: Context<'_>) -> ProgramResult {
        (Status::More, [0; 2])
    }
}

/// Passes the first part of its input on, and wants no other.
struct FirstPart;

impl Program for FirstPart {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: "first-part", version: 1, is_stream: true }
    }

    fn run(&self, Context { inputs, output, task, .. }: Context<'_>) -> ProgramResult {
        let input = inputs.concat();
        output[..input.len()].copy_from_slice(&input);
        task.is_enough = true;
        (Status::Success, [input.len() as u64, 0])
    }
}

const CONCAT: ProgramId = ProgramId(0);
const SHA256: ProgramId = ProgramId(1);
const ENDLESS: ProgramId = ProgramId(2);
const MATCH: ProgramId = ProgramId(3);
const FIRST_PART: ProgramId = ProgramId(4);
const FLASH_BYTES: usize = 64 << 10;

fn result_of(end: JobEnd) -> PipelineResult {
    let JobResult::Pipeline(result) = end.result else { panic!("{end:?} is of a pipeline") };
    result
}

struct CoreBench {
    core: EngineCore,
    local: LocalMemory,
    programs: Vec<Box<dyn Program>>,
    counters: Arc<EngineCounters>,
    flash: Vec<u8>,
    flash_fails: bool,
    /// Lent to sources and sinks.
    host: LocalBuffer,
}

impl CoreBench {
    fn new(options: &EngineOptions) -> CoreBench {
        let local = LocalMemory::new(4 << 20).unwrap();
        let programs: Vec<Box<dyn Program>> = vec![
            Box::new(Concat),
            Box::new(programs::Sha256Program),
            Box::new(Endless),
            Box::new(programs::match_record::MatchRecord),
            Box::new(FirstPart),
        ];
        let counters = Arc::new(EngineCounters::new(&programs, options));
        let core = EngineCore::new(&local, 512, &programs, counters.clone(), options).unwrap();
        let mut host = local.allocate(128 << 10).unwrap();
        (0..).zip(host.bytes_mut()).for_each(|(at, byte): (usize, _)| *byte = (at * 7 / 3) as u8);
        let flash = (0..FLASH_BYTES).map(|at| (at * 5 / 3) as u8).collect();
        CoreBench { core, local, programs, counters, flash, flash_fails: false, host }
    }

    fn small() -> CoreBench {
        CoreBench::new(&EngineOptions { sub_buffer_bytes: 4096, ..EngineOptions::default() })
    }

    /// From the first bytes of the buffer to its second half.
    fn request(&self, programs: &[ProgramId], bytes: u64) -> JobRequest {
        let half = self.host.len() / 2;
        JobRequest {
            owner: 1,
            token: 7,
            application: 0,
            deadline_us: None,
            stages: programs.iter().map(|program| PipelineStage::new(*program, &[]).unwrap()).collect(),
            source: SourceRequest::Local(vec![SourceRange { offset: self.host.offset(), bytes }]),
            sink: SinkRequest::Host(LocalRange { offset: self.host.offset() + half as u64, length: half as u32 }),
            attachment: Arc::default(),
        }
    }

    fn run(&mut self, mut task: EngineTask) {
        // SAFETY: nobody is at work in the host's buffer.
        let result = match unsafe { run_task(&mut task, &self.programs, &self.local) } {
            TaskStep::Ended(result) => result,
            TaskStep::Flash if self.flash_fails => TaskResult::FlashFailed { errno: libc::EIO },
            TaskStep::Flash => {
                task.work.flash().iter().for_each(|operation| self.run_flash(*operation));
                TaskResult::Moved
            }
        };
        self.core.complete(task, result, Some(3));
    }

    fn run_flash(&mut self, operation: Operation) {
        let at = |local, length| self.local.pointer(LocalRange { offset: local, length }).unwrap().as_ptr();
        match operation {
            Operation::Read { flash, local, length } => {
                let from = &self.flash[flash as usize..][..length as usize];
                // SAFETY: a sub-buffer of this task's.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at(local, length), from.len()) };
            }
            Operation::Write { flash, from, length, .. } => {
                assert!(length.is_multiple_of(512));
                // SAFETY: as above.
                let bytes = unsafe { std::slice::from_raw_parts(at(from.offset, length), length as usize) };
                self.flash[flash as usize..][..length as usize].copy_from_slice(bytes);
            }
            other => panic!("{other:?} moves nothing"),
        }
    }

    fn run_all(&mut self) {
        while let Some(task) = self.core.take_any(|_| true) {
            self.run(task);
        }
    }

    fn finish(&mut self, request: JobRequest) -> PipelineResult {
        match self.core.submit(request) {
            Err(failure) => PipelineResult::Failed(failure),
            Ok(_) => {
                self.run_all();
                assert_eq!((self.core.in_flight(), self.core.quarantined()), (0, 0));
                result_of(self.core.ended().unwrap())
            }
        }
    }

    fn output(&self, bytes: usize) -> &[u8] {
        &self.host.bytes()[self.host.len() / 2..][..bytes]
    }

    fn tasks(&self, name: &str) -> u64 {
        self.counters.snapshot().into_iter().find(|stage| stage.name == name).unwrap().tasks
    }
}

fn failed(place: PipelinePlace, reason: PipelineReason) -> PipelineFailure {
    PipelineFailure::new(place, reason)
}

#[test]
fn bytes_go_from_any_source_to_any_sink() {
    let mut bench = CoreBench::small();
    let ranges = vec![(512, 10_000), (0, 0), (20_480, 700)];
    let ranges: Vec<_> = ranges.into_iter().map(|(offset, bytes)| SourceRange { offset, bytes }).collect();
    let expected: Vec<u8> = [&bench.flash[512..10_512], &bench.flash[20_480..21_180]].concat();
    let kept = JobRequest {
        source: SourceRequest::Flash(ranges),
        sink: SinkRequest::Kept { id: 5, bytes_max: 20_000 },
        ..bench.request(&[CONCAT], 0)
    };
    assert_eq!(bench.finish(kept), PipelineResult::Finished { bytes: 10_700 });
    let written = JobRequest {
        source: SourceRequest::Kept { id: 5, stays: true },
        sink: SinkRequest::Flash { flash: 32_768, bytes_max: 12_288, durable: true },
        ..bench.request(&[CONCAT, CONCAT], 0)
    };
    assert_eq!(bench.finish(written), PipelineResult::Finished { bytes: 10_700 });
    assert_eq!(bench.flash[32_768..][..10_700], expected);
    assert!(bench.flash[32_768 + 10_700..32_768 + 10_752].iter().all(|byte| *byte == 0), "to the end of the sector");
    assert_eq!(bench.flash[32_768 + 10_752], ((32_768 + 10_752) * 5 / 3) as u8);
    let digest = JobRequest { source: SourceRequest::Kept { id: 5, stays: false }, ..bench.request(&[SHA256], 0) };
    assert_eq!(bench.finish(digest), PipelineResult::Finished { bytes: 32 });
    let mut sha = Sha256::default();
    sha.update(&expected);
    assert_eq!(bench.output(32), sha.finish());
    let again = JobRequest { source: SourceRequest::Kept { id: 5, stays: false }, ..bench.request(&[SHA256], 0) };
    let unknown = failed(PipelinePlace::Source, PipelineReason::UnknownKept);
    assert_eq!(bench.finish(again), PipelineResult::Failed(unknown));
    let source = bench.counters.snapshot().into_iter().find(|stage| stage.name == "source").unwrap();
    assert_eq!((source.bytes_out, source.failures), (3 * 10_700, 0));
    assert_eq!(bench.local.bytes_used(), (128 << 10) + 20 * 4096, "what was kept is freed");
}

/// From flash and from local memory, with an end within a sector among them.
#[test]
fn a_part_is_gathered_from_many_ranges() {
    let mut bench = CoreBench::small();
    let local = SourceRange::of_local(LocalRange { offset: bench.host.offset(), length: 700 });
    let flash = |at: u64, bytes| SourceRange { offset: at * 512, bytes };
    let ranges = vec![flash(9, 512), flash(3, 1024), local, flash(70, 700), flash(5, 512), flash(1, 512)];
    let expected: Vec<u8> = ranges
        .iter()
        .flat_map(|range| match range.local() {
            Some(_) => bench.host.bytes()[..700].to_vec(),
            None => bench.flash[range.offset as usize..][..range.bytes as usize].to_vec(),
        })
        .collect();
    let request = JobRequest { source: SourceRequest::Flash(ranges), ..bench.request(&[CONCAT], 0) };
    assert_eq!(bench.finish(request), PipelineResult::Finished { bytes: expected.len() as u64 });
    assert_eq!(bench.output(expected.len()), expected);
    // Behind 2236 and 700 bytes no sector begins.
    assert_eq!(bench.tasks("concat"), 3);
}

#[test]
fn a_program_that_has_enough_is_brought_no_more() {
    let mut bench = CoreBench::small();
    for stages in [&[FIRST_PART][..], &[CONCAT, FIRST_PART, CONCAT]] {
        assert_eq!(bench.finish(bench.request(stages, 5 * 4096)), PipelineResult::Finished { bytes: 4096 });
        assert_eq!(bench.output(4096), &bench.host.bytes()[..4096]);
    }
    assert_eq!((bench.tasks("first-part"), bench.tasks("concat")), (2, 2));
}

#[test]
fn what_a_host_kept_is_its_own() {
    let mut bench = CoreBench::small();
    let keep = |bench: &CoreBench, id| JobRequest {
        sink: SinkRequest::Kept { id, bytes_max: 100 },
        ..bench.request(&[CONCAT], 100)
    };
    for id in 0..64 {
        let request = keep(&bench, id);
        assert_eq!(bench.finish(request), PipelineResult::Finished { bytes: 100 });
    }
    let (again, more) = (keep(&bench, 3), keep(&bench, 64));
    assert_eq!(bench.finish(again), PipelineResult::Finished { bytes: 100 });
    assert_eq!(bench.finish(more), PipelineResult::Failed(failed(PipelinePlace::Sink, PipelineReason::TooManyKept)));
    let huge = JobRequest { sink: SinkRequest::Kept { id: 1, bytes_max: 64 << 20 }, ..bench.request(&[CONCAT], 1) };
    let no_room = failed(PipelinePlace::Sink, PipelineReason::NoLocalMemory).with(64 << 20);
    assert_eq!(bench.finish(huge), PipelineResult::Failed(no_room));
    let source = SourceRequest::Kept { id: 1, stays: true };
    let other = JobRequest { owner: 2, source, ..bench.request(&[CONCAT], 0) };
    assert_eq!(bench.finish(other), PipelineResult::Failed(failed(PipelinePlace::Source, PipelineReason::UnknownKept)));
    bench.core.cancel_all(1);
    assert_eq!(bench.local.bytes_used(), (128 << 10) + 20 * 4096);
}

#[test]
fn a_reader_waits_for_its_maker_no_longer_than_its_deadline() {
    let mut bench = CoreBench::small();
    let kept = JobRequest { sink: SinkRequest::Kept { id: 1, bytes_max: 100 }, ..bench.request(&[CONCAT], 100) };
    bench.core.submit(kept).unwrap();
    let makers = bench.core.take(SOURCE).unwrap();
    let source = || SourceRequest::Kept { id: 1, stays: true };
    let request = |bench: &CoreBench, token| JobRequest { token, source: source(), ..bench.request(&[CONCAT], 0) };
    let hasty = JobRequest { deadline_us: Some(10), ..request(&bench, 1) };
    let patient = request(&bench, 2);
    bench.core.submit(hasty).unwrap();
    bench.core.submit(patient).unwrap();
    let of_others = JobRequest { owner: 2, ..request(&bench, 3) };
    let unknown = failed(PipelinePlace::Source, PipelineReason::UnknownKept);
    assert_eq!(bench.core.submit(of_others), Err(unknown), "another's is none");
    assert_eq!(bench.core.reserved(), 3, "who waits has reserved nothing");
    bench.core.expire(10);
    let late = PipelineResult::Failed(failed(PipelinePlace::Source, PipelineReason::DeadlineExceeded));
    assert_eq!(bench.core.ended(), Some(JobEnd { owner: 1, token: 1, result: JobResult::Pipeline(late) }));
    bench.run(makers);
    bench.run_all();
    let result = PipelineResult::Finished { bytes: 100 };
    for token in [7, 2] {
        assert_eq!(bench.core.ended(), Some(JobEnd { owner: 1, token, result: JobResult::Pipeline(result) }));
    }
    assert_eq!((bench.core.in_flight(), bench.core.reserved()), (0, 0));
}

#[test]
fn what_goes_wrong_is_named_and_disturbs_nobody() {
    let mut bench = CoreBench::small();
    let sinks = [
        SinkRequest::Host(LocalRange { offset: bench.host.offset(), length: 9000 }),
        SinkRequest::Flash { flash: 0, bytes_max: 9216, durable: false },
        SinkRequest::Kept { id: 0, bytes_max: 9000 },
    ];
    for (sink, holds) in sinks.into_iter().zip([9000, 9216, 9000]) {
        let request = JobRequest { sink, ..bench.request(&[CONCAT], 10_000) };
        let too_long = failed(PipelinePlace::Sink, PipelineReason::OutputTooLong).with(holds);
        assert_eq!(bench.finish(request), PipelineResult::Failed(too_long));
    }
    let wrong = [
        (vec![], failed(PipelinePlace::Source, PipelineReason::NoStages)),
        (vec![CONCAT, MATCH], failed(PipelinePlace::Stage(1), PipelineReason::NotAStream)),
        (vec![ProgramId(9)], failed(PipelinePlace::Stage(0), PipelineReason::UnknownProgram).with(9)),
        (vec![CONCAT, ENDLESS], failed(PipelinePlace::Stage(1), PipelineReason::OutputOverflow)),
    ];
    for (programs, failure) in wrong {
        let request = bench.request(&programs, 100);
        assert_eq!(bench.finish(request), PipelineResult::Failed(failure));
    }
    let unknown = JobRequest { application: 3, ..bench.request(&[CONCAT], 1) };
    let failure = failed(PipelinePlace::Source, PipelineReason::UnknownApplication).with(3);
    assert_eq!(bench.finish(unknown), PipelineResult::Failed(failure));
    bench.flash_fails = true;
    let read = SourceRequest::Flash(vec![SourceRange { offset: 0, bytes: 512 }]);
    let read = JobRequest { source: read, ..bench.request(&[CONCAT], 0) };
    let failure = failed(PipelinePlace::Source, PipelineReason::FlashFailed).with(libc::EIO as u32);
    assert_eq!(bench.finish(read), PipelineResult::Failed(failure));
    let write = SinkRequest::Flash { flash: 0, bytes_max: 512, durable: true };
    let write = JobRequest { sink: write, ..bench.request(&[CONCAT], 100) };
    let failure = failed(PipelinePlace::Sink, PipelineReason::FlashFailed).with(libc::EIO as u32);
    assert_eq!(bench.finish(write), PipelineResult::Failed(failure));
    let small = EngineOptions { sub_buffers: 2, sub_buffer_bytes: 4096, ..EngineOptions::default() };
    let mut bench = CoreBench::new(&small);
    let request = bench.request(&[CONCAT], 1);
    let too_large = failed(PipelinePlace::Source, PipelineReason::TooLarge).with(3);
    assert_eq!(bench.finish(request), PipelineResult::Failed(too_large));
}

#[test]
fn a_stage_that_never_ends_holds_up_nobody_else() {
    let unit = |program, units| UnitCount { program, units };
    let units = vec![unit(SHA256, 2)];
    let options = EngineOptions { units, sub_buffers: 8, sub_buffer_bytes: 4096, ..EngineOptions::default() };
    let mut bench = CoreBench::new(&options);
    let late = JobRequest { deadline_us: Some(50), token: 1, ..bench.request(&[SHA256], 100) };
    bench.core.submit(late).unwrap();
    let source = bench.core.take(SOURCE).unwrap();
    bench.run(source);
    let hangs = bench.core.take(SHA256).unwrap();
    bench.core.expire(49);
    assert_eq!((bench.core.ended(), bench.core.deadline_next_us()), (None, Some(50)));
    assert!(!hangs.state.is_cancelled());
    bench.core.expire(50);
    let result = PipelineResult::Failed(failed(PipelinePlace::Stage(0), PipelineReason::DeadlineExceeded));
    assert_eq!(bench.core.ended(), Some(JobEnd { owner: 1, token: 1, result: JobResult::Pipeline(result) }));
    assert!(hangs.state.is_cancelled(), "its unit is told");
    assert_eq!(bench.core.quarantined(), 2);
    let other = bench.request(&[SHA256], 5000);
    bench.core.submit(other).unwrap();
    bench.run_all();
    assert!(matches!(
        bench.core.ended(),
        Some(JobEnd { result: JobResult::Pipeline(PipelineResult::Finished { bytes: 32 }), .. })
    ));
    bench.run(hangs);
    assert_eq!((bench.core.quarantined(), bench.core.ended()), (0, None));
    assert_eq!(bench.tasks("sha256"), 3);
}

#[test]
fn a_task_that_is_over_before_it_began_makes_way() {
    // One pipeline has room at once.
    let options = EngineOptions { sub_buffers: 3, sub_buffer_bytes: 4096, ..EngineOptions::default() };
    let mut bench = CoreBench::new(&options);
    let late = JobRequest { deadline_us: Some(10), ..bench.request(&[CONCAT], 100) };
    bench.core.submit(late).unwrap();
    let behind = bench.request(&[SHA256], 100);
    bench.core.submit(behind).unwrap();
    let source = bench.core.take(SOURCE).unwrap();
    bench.run(source);
    // Its program's task is started, and nobody takes it in time.
    bench.core.expire(10);
    assert!(matches!(bench.core.ended().map(result_of), Some(PipelineResult::Failed(_))));
    assert_eq!((bench.core.quarantined(), bench.core.take_made_way()), (2, false));
    let next = bench.core.take_any(|_| true).map(|task| task.packet.program());
    assert_eq!((next, bench.core.take_made_way(), bench.core.quarantined()), (Some(SOURCE), true, 0));
}

#[test]
fn units_that_die_are_told_by_their_stage() {
    let units = vec![UnitCount { program: SHA256, units: 2 }];
    let options = EngineOptions { units, sub_buffer_bytes: 4096, ..EngineOptions::default() };
    let mut bench = CoreBench::new(&options);
    for token in 0..4 {
        let request = JobRequest { token, ..bench.request(&[CONCAT, SHA256], 100) };
        bench.core.submit(request).unwrap();
    }
    while let Some(task) = bench.core.take_any(|program| program != SHA256) {
        bench.run(task);
    }
    let task = bench.core.take(SHA256).unwrap();
    let place = (task.packet.sequence, task.packet.stage);
    drop(task);
    bench.core.unit_lost(SHA256, Some(place));
    let result = PipelineResult::Failed(failed(PipelinePlace::Stage(1), PipelineReason::UnitLost));
    assert_eq!(bench.core.ended().map(result_of), Some(result));
    assert_eq!((bench.core.units(SHA256), bench.core.ended()), (1, None));
    bench.core.unit_lost(SHA256, None);
    let reasons: Vec<_> = std::iter::from_fn(|| bench.core.ended()).map(result_of).collect();
    assert_eq!(reasons.len(), 3);
    assert!(reasons.iter().all(|result| matches!(result, PipelineResult::Failed(failure)
        if failure.place == PipelinePlace::Stage(1)
            && matches!(failure.reason, PipelineReason::NoUnitLeft | PipelineReason::UnitLost))));
    assert_eq!((bench.core.in_flight(), bench.core.quarantined()), (0, 0));
    let request = bench.request(&[CONCAT], 100);
    assert_eq!(bench.finish(request), PipelineResult::Finished { bytes: 100 });
}

#[test]
fn what_is_cancelled_hears_of_it() {
    let mut bench = CoreBench::small();
    let sequence = bench.core.submit(bench.request(&[CONCAT], 100)).unwrap();
    let source = bench.core.take(SOURCE).unwrap();
    bench.run(source);
    let task = bench.core.take(CONCAT).unwrap();
    bench.core.cancel(sequence);
    assert!(task.state.is_cancelled() && bench.core.ended().is_none());
    bench.run(task);
    let result = PipelineResult::Failed(failed(PipelinePlace::Stage(0), PipelineReason::Cancelled));
    assert_eq!(bench.core.ended().map(result_of), Some(result));
}

/// Many pipelines over a few units, whose tasks are run in any order; some units die, some tasks come back late or never.
#[test]
fn what_is_cancelled_by_its_token_ends_with_its_task_and_no_other_task_of_it_runs() {
    let mut bench = CoreBench::small();
    for token in 0..3 {
        let request = JobRequest { token, ..bench.request(&[CONCAT], 100) };
        bench.core.submit(request).unwrap();
    }
    let runs = bench.core.take(SOURCE).unwrap();
    let free = bench.core.sub_buffers_free();
    assert_eq!(bench.core.cancel_tokens(2, 0..=9), 0, "another's");
    assert_eq!(bench.core.cancel_tokens(1, 0..=1), 2);
    assert_eq!(bench.core.cancel_tokens(1, 0..=1), 0, "given up already");
    assert!(bench.core.ended().is_none() && bench.core.sub_buffers_free() == free, "its task may still write");
    bench.run(runs);
    let cancelled = PipelineResult::Failed(failed(PipelinePlace::Source, PipelineReason::Cancelled));
    assert_eq!(bench.core.ended(), Some(JobEnd { owner: 1, token: 0, result: JobResult::Pipeline(cancelled) }));
    bench.run_all();
    assert_eq!(bench.core.ended(), Some(JobEnd { owner: 1, token: 1, result: JobResult::Pipeline(cancelled) }));
    let result = PipelineResult::Finished { bytes: 100 };
    assert_eq!(bench.core.ended(), Some(JobEnd { owner: 1, token: 2, result: JobResult::Pipeline(result) }));
    assert_eq!(bench.tasks("source"), 2, "of the second, none ran");
}

fn any_order(seed: u64) {
    let mut random = SplitMix64::new(seed);
    let units = vec![UnitCount { program: CONCAT, units: 3 }, UnitCount { program: SHA256, units: 2 }];
    let options = EngineOptions { units, sub_buffers: 12, sub_buffer_bytes: 4096, ..EngineOptions::default() };
    let mut bench = CoreBench::new(&options);
    let (mut away, mut submitted, mut ended, mut now_us) = (Vec::new(), 0, 0, 0);
    for _ in 0..200 {
        now_us += random.below(10);
        bench.core.expire(now_us);
        if random.one_in(3) {
            let stages: &[ProgramId] = [&[CONCAT][..], &[SHA256], &[CONCAT, SHA256]][random.below(3) as usize];
            let bytes = random.below(20_000);
            let deadline_us = random.one_in(2).then(|| now_us + random.below(300));
            let kept = SinkRequest::Kept { id: random.below(3), bytes_max: random.below(30_000) as u32 };
            let request = JobRequest { deadline_us, sink: kept, ..bench.request(stages, bytes) };
            submitted += u64::from(bench.core.submit(request).is_ok());
        }
        if let Some(task) = bench.core.take_any(|_| true) {
            away.push(task);
        }
        if !away.is_empty() && !random.one_in(3) {
            let task = away.swap_remove(random.below(away.len() as u64) as usize);
            let program = task.packet.program();
            if random.one_in(40) && ![SOURCE, SINK].contains(&program) {
                bench.core.unit_lost(program, Some((task.packet.sequence, task.packet.stage)));
            } else {
                bench.run(task);
            }
        }
        while let Some(JobEnd { result: JobResult::Pipeline(result), .. }) = bench.core.ended() {
            ended += 1;
            if let PipelineResult::Failed(PipelineFailure { reason, .. }) = result {
                use PipelineReason::{DeadlineExceeded, NoUnitLeft, OutputTooLong, UnitLost};
                assert!([DeadlineExceeded, NoUnitLeft, OutputTooLong, UnitLost].contains(&reason), "{result:?}");
            }
        }
    }
    while bench.core.in_flight() > 0 || !away.is_empty() {
        away.drain(..).for_each(|task| bench.run(task));
        away.extend(bench.core.take_any(|_| true));
        ended += std::iter::from_fn(|| bench.core.ended()).count() as u64;
    }
    assert_eq!((submitted, bench.core.quarantined()), (ended, 0));
    bench.core.cancel_all(1);
    assert_eq!(bench.local.bytes_used(), (128 << 10) + 12 * 4096, "nothing is left");
}

proptest! {
    #[test]
    fn tasks_end_in_any_order_late_or_with_their_units(seed: u64) {
        any_order(seed);
    }
}
