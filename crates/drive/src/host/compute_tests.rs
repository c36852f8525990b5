//! `Compute` through a queue pair: batches of pipelines, and what is wrong with them.

use super::compute_bench::{
    BYTES, ComputeBench, FLASH_BYTES, RANGES, SOURCE, bench, digest, failed, pipeline, written,
};
use super::testing::{finish, has_units, run, submit};
use super::{Drive, Lease};
use crate::device::programs::built_in;
use crate::env::Env;
use crate::flash::faulty::FaultyFlash;
use crate::protocol::{
    Completion, LocalRange, Opcode, Operation, PIPELINES_MAX, PipelineDescriptor, PipelinePlace, PipelineReason,
    PipelineResult, PipelineSink, PipelineSource, PipelineStage, ProgramId, Status,
};
use std::sync::Arc;

#[test]
pub(super) fn one_command_runs_many_pipelines_and_only_results_cross() {
    let mut bench = bench();
    let before = bench.drive.counters();
    let sha = bench.stage("sha256");
    let mut pipelines = Vec::new();
    for number in 0..PIPELINES_MAX as u64 {
        let source = bench.flash(&[(512 * number, 700), (8192, 4096)]);
        pipelines.push(pipeline(&[sha], source, bench.sink(32 * number, 32)));
    }
    let results = bench.run(&pipelines);
    assert_eq!(results, vec![PipelineResult::Finished { bytes: 32 }; PIPELINES_MAX]);
    for number in 0..PIPELINES_MAX {
        let expected = digest(&[&written(512 * number, 700), &written(8192, 4096)]);
        assert_eq!(bench.output(32 * number as u64, 32), expected);
    }
    let after = bench.drive.counters();
    assert_eq!(after.opcode(Opcode::Compute).completed - before.opcode(Opcode::Compute).completed, 1);
    let moved = after.flash_to_local_bytes - before.flash_to_local_bytes;
    assert_eq!(moved, PIPELINES_MAX as u64 * (1024 + 4096), "whole sectors");
    assert_eq!(after.local_to_host_bytes, before.local_to_host_bytes, "nothing was copied out yet");
    let stages = bench.drive.stage_counters();
    let of = |name: &str| stages.iter().find(|stage| stage.name == name).unwrap().clone();
    assert_eq!((of("sha256").tasks, of("sha256").bytes_out), (2 * PIPELINES_MAX as u64, 32 * PIPELINES_MAX as u64));
    assert_eq!((of("source").bytes_out, of("sink").failures), (PIPELINES_MAX as u64 * 4796, 0));
}

#[test]
pub(super) fn results_are_kept_and_written_to_flash() {
    let mut bench = bench();
    let (compress, inflate) = (bench.stage("zstd-compress"), bench.stage("zstd-decompress"));
    let source = bench.local(&[(SOURCE, 50_000), (SOURCE + 60_000, 10)]);
    let expected = [written(SOURCE as usize, 50_000), written(SOURCE as usize + 60_000, 10)].concat();
    let kept = PipelineSink::Kept { id: 9, bytes_max: 60_000 };
    assert!(matches!(bench.run(&[pipeline(&[compress], source, kept)])[..], [PipelineResult::Finished { .. }]));
    let flash = PipelineSink::Flash { flash: 512 << 10, bytes: 50_176, durable: true };
    let again = pipeline(&[inflate], PipelineSource::Kept { id: 9, stays: false }, flash);
    assert_eq!(bench.run(&[again]), [PipelineResult::Finished { bytes: 50_010 }]);
    let gone = failed(PipelinePlace::Source, PipelineReason::UnknownKept);
    assert_eq!(bench.run(&[again]), [PipelineResult::Failed(gone)]);
    let source = bench.flash(&[(512 << 10, 50_010)]);
    let concat = bench.stage("concat");
    assert_eq!(
        bench.run(&[pipeline(&[concat], source, bench.sink(0, 50_010))])[0],
        PipelineResult::Finished { bytes: 50_010 }
    );
    assert_eq!(bench.output(0, 50_010), expected);
}

#[test]
pub(super) fn what_is_wrong_with_a_pipeline_is_its_own() {
    let mut bench = bench();
    let (sha, concat) = (bench.stage("sha256"), bench.stage("concat"));
    let right = |bench: &mut ComputeBench| {
        let source = bench.local(&[(SOURCE, 100)]);
        pipeline(&[sha], source, bench.sink(0, 32))
    };
    let out = FLASH_BYTES;
    let unknown = PipelineStage::new(ProgramId(99), &[]).unwrap();
    let wrong_level = PipelineStage::new(bench.stage("zstd-compress").program, &[1, 2, 3]).unwrap();
    let record = bench.stage("match-record");
    let whole = PipelinePlace::Source;
    let (source, sink) = (right(&mut bench).source, right(&mut bench).sink);
    let with_flash = |bench: &mut ComputeBench, range| pipeline(&[sha], bench.flash(&[range]), sink);
    let to_flash = |flash, bytes| pipeline(&[concat], source, PipelineSink::Flash { flash, bytes, durable: false });
    use PipelineReason as Reason;
    let mut foreign = right(&mut bench);
    foreign.application = 5;
    let wrong = vec![
        (pipeline(&[], source, sink), failed(whole, Reason::NoStages)),
        (pipeline(&[concat, unknown], source, sink), failed(PipelinePlace::Stage(1), Reason::UnknownProgram).with(99)),
        (pipeline(&[record], source, sink), failed(PipelinePlace::Stage(0), Reason::NotAStream)),
        (pipeline(&[sha, wrong_level], source, sink), failed(PipelinePlace::Stage(1), Reason::Program).with(1)),
        (
            pipeline(&[concat; 8], source, bench.sink(0, 99)),
            failed(PipelinePlace::Sink, Reason::OutputTooLong).with(99),
        ),
        (with_flash(&mut bench, (100, 512)), failed(whole, Reason::UnalignedFlash)),
        (with_flash(&mut bench, (out, 1)), failed(whole, Reason::OutsideFlash)),
        (with_flash(&mut bench, (512, u64::MAX)), failed(whole, Reason::OutsideFlash)),
        (to_flash(100, 512), failed(PipelinePlace::Sink, Reason::UnalignedFlash)),
        (to_flash(0, 100), failed(PipelinePlace::Sink, Reason::UnalignedFlash)),
        (to_flash(out - 512, 1024), failed(PipelinePlace::Sink, Reason::OutsideFlash)),
        (pipeline(&[sha], PipelineSource::Kept { id: 3, stays: true }, sink), failed(whole, Reason::UnknownKept)),
        (pipeline(&[sha], bench.local(&[(BYTES as u64 - 1, 2)]), sink), failed(whole, Reason::OutsideLocal)),
        (
            pipeline(&[sha], PipelineSource::Local { list: bench.at(RANGES, 17) }, sink),
            failed(whole, Reason::OutsideLocal),
        ),
        (
            pipeline(&[sha], source, PipelineSink::Host { into: LocalRange { offset: 1 << 40, length: 9 } }),
            failed(PipelinePlace::Sink, Reason::OutsideLocal),
        ),
        (
            pipeline(&[concat], source, PipelineSink::Kept { id: 1, bytes_max: 64 << 20 }),
            failed(PipelinePlace::Sink, Reason::NoLocalMemory).with(64 << 20),
        ),
        (foreign, failed(whole, Reason::UnknownApplication).with(5)),
    ];
    // All at once, each between two that are right.
    let mut pipelines = vec![right(&mut bench)];
    for (pipeline, _) in &wrong {
        pipelines.extend([*pipeline, right(&mut bench)]);
    }
    let results = bench.run(&pipelines);
    for (number, result) in results.iter().enumerate() {
        match number % 2 {
            0 => assert_eq!(*result, PipelineResult::Finished { bytes: 32 }),
            _ => assert_eq!(*result, PipelineResult::Failed(wrong[number / 2].1), "{:?}", wrong[number / 2].0),
        }
    }
    assert_eq!(bench.output(0, 32), digest(&[&written(SOURCE as usize, 100)]));
}

#[test]
pub(super) fn a_command_that_is_no_list_of_pipelines_starts_nothing() {
    let mut bench = bench();
    let sha = bench.stage("sha256");
    let source = bench.local(&[(SOURCE, 100)]);
    let list = bench.put(&[pipeline(&[sha], source, bench.sink(0, 32)); 3]);
    let refusal = |bench: &mut ComputeBench, list: LocalRange| {
        let Completion { status, stage, .. } =
            run(&mut bench.pair, Operation::Compute { pipelines: list }, &mut bench.buffer);
        (status, stage)
    };
    let long = ((PIPELINES_MAX + 1) * PipelineDescriptor::ENCODED_BYTES) as u32;
    for length in [0, 383, 385, long] {
        assert_eq!(refusal(&mut bench, LocalRange { length, ..list }), (Status::InvalidField, 0));
    }
    assert_eq!(refusal(&mut bench, LocalRange { offset: list.offset + 4, length: 384 }), (Status::InvalidField, 0));
    let outside = LocalRange { offset: bench.buffer.offset() + BYTES as u64, length: 384 };
    assert_eq!(refusal(&mut bench, outside), (Status::OutsideLease, 0));
    bench.buffer.bytes_mut()[2 * PipelineDescriptor::ENCODED_BYTES + 3] = 9;
    assert_eq!(refusal(&mut bench, list), (Status::InvalidField, 2));
    assert_eq!(bench.drive.stage_counters().iter().map(|stage| stage.tasks).sum::<u64>(), 0);
    assert_eq!(bench.drive.counters().opcode(Opcode::Compute).failed, 7);
}

#[test]
pub(super) fn flash_that_fails_is_named() {
    let flash = FaultyFlash::new(FLASH_BYTES, 1);
    let mut bench = ComputeBench::new(Arc::new(flash.clone()));
    let concat = bench.stage("concat");
    let source = bench.flash(&[(0, 100_000)]);
    flash.fail_nth(Opcode::Read, 2);
    let failure = failed(PipelinePlace::Source, PipelineReason::FlashFailed).with(libc::EIO as u32);
    assert_eq!(bench.run(&[pipeline(&[concat], source, bench.sink(0, 50_000))]), [PipelineResult::Failed(failure)]);
    let source = bench.local(&[(SOURCE, 50_000)]);
    flash.fail_nth(Opcode::Write, 1);
    let sink = PipelineSink::Flash { flash: 0, bytes: 64 << 10, durable: false };
    let failure = failed(PipelinePlace::Sink, PipelineReason::FlashFailed).with(libc::EIO as u32);
    assert_eq!(bench.run(&[pipeline(&[concat], source, sink)]), [PipelineResult::Failed(failure)]);
}

#[test]
fn a_deadline_that_has_passed_ends_a_pipeline_and_no_other() {
    let (env, clock) = Env::simulated(1);
    let mut bench = bench();
    bench.drive = Drive::new(bench.drive.flash().clone(), bench.drive.local().clone(), built_in(), env);
    bench.pair = bench.drive.queue_pair(4).unwrap();
    let concat = bench.stage("concat");
    let source = bench.local(&[(SOURCE, 90_000)]);
    let sink = PipelineSink::Kept { id: 0, bytes_max: 90_000 };
    let patient = pipeline(&[concat; 2], source, sink);
    let mut hasty = patient;
    hasty.deadline_us = 10;
    let list = bench.put(&[patient, hasty]);
    submit(&mut bench.pair, 1, Operation::Compute { pipelines: list }, bench.buffer.take());
    clock.advance_us(10);
    let returned = finish(&mut bench.pair, 1).pop().unwrap();
    bench.buffer = returned.lease.into_buffer();
    let results = bench.results(2);
    assert_eq!(results[0], PipelineResult::Finished { bytes: 90_000 });
    let PipelineResult::Failed(failure) = results[1] else { panic!("{results:?}") };
    assert_eq!(failure.reason, PipelineReason::DeadlineExceeded);
}

#[test]
pub(super) fn a_queue_pair_is_dropped_in_the_middle_of_its_pipelines() {
    let mut bench = bench();
    let used = bench.drive.local().bytes_used();
    let concat = bench.stage("concat");
    let source = bench.flash(&[(0, 100_000)]);
    let keep = |id| pipeline(&[concat], source, PipelineSink::Kept { id, bytes_max: 100_000 });
    let pipelines: Vec<_> = (0..9).map(keep).collect();
    let list = bench.put(&pipelines);
    submit(&mut bench.pair, 1, Operation::Compute { pipelines: list }, Lease::Buffer(bench.buffer.take()));
    let mut returned = Vec::new();
    for _ in 0..3 {
        // Units may be done at any time.
        let has_ended = bench.pair.poll(&mut returned) > 0;
        assert!(!has_ended || has_units(), "its steps are bounded");
        assert!(!returned.is_empty() || bench.pair.is_ready() || bench.pair.in_flight() > 0);
    }
    let ComputeBench { drive, pair, .. } = bench;
    drop((pair, returned));
    assert_eq!(drive.local().bytes_used(), used - BYTES);
}

#[test]
pub(super) fn a_drain_waits_for_pipelines_of_many_parts() {
    let mut bench = ComputeBench::new(Arc::new(FaultyFlash::new(FLASH_BYTES, 1)));
    let concat = bench.stage("concat");
    let source = bench.flash(&[(0, BYTES as u64), (0, BYTES as u64)]);
    let sink = PipelineSink::Flash { flash: 512 << 10, bytes: 512 << 10, durable: true };
    let list = bench.put(&[pipeline(&[concat; 4], source, sink)]);
    submit(&mut bench.pair, 1, Operation::Compute { pipelines: list }, bench.buffer.take());
    bench.pair.drain();
    assert_eq!(bench.pair.in_flight(), 0);
}

#[test]
fn a_pair_with_parts_has_its_memory_from_the_start() {
    let drive = bench().drive;
    let pair = drive.queue_pair_with_parts(4, 8 << 10).unwrap().unwrap();
    while drive.local().allocate(64 << 10).map(std::mem::forget).is_some() {}
    assert_eq!(drive.queue_pair_with_parts(4, 8 << 10).unwrap().is_some(), has_units());
    drop(pair);
    assert!(drive.queue_pair_with_parts(4, 8 << 10).unwrap().is_some());
}
