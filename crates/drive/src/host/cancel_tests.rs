//! `Cancel` through a queue pair: pipelines that run, wait or are not there.

use super::Lease;
use super::compute_bench::{BYTES, ComputeBench, FLASH_BYTES, SOURCE, bench, pipeline};
use super::testing::{finish, run_with, submit};
use crate::flash::faulty::FaultyFlash;
use crate::protocol::{
    Completion, Operation, PipelineDescriptor, PipelineReason, PipelineResult, PipelineSink, PipelineStage, Status,
};
use std::sync::Arc;

const COMPUTE: u64 = 7;
const CANCEL: u64 = 8;

/// Pipelines of many parts each, which keep their results under their index.
fn long_pipelines(bench: &mut ComputeBench, count: u64) -> Vec<PipelineDescriptor> {
    let concat: PipelineStage = bench.stage("concat");
    let source = bench.flash(&[(0, 100_000)]);
    (0..count).map(|id| pipeline(&[concat; 8], source, PipelineSink::Kept { id, bytes_max: 100_000 })).collect()
}

fn submit_pipelines(bench: &mut ComputeBench, pipelines: &[PipelineDescriptor]) {
    let list = bench.put(pipelines);
    submit(&mut bench.pair, COMPUTE, Operation::Compute { pipelines: list }, bench.buffer.take());
}

fn cancel(bench: &mut ComputeBench, tag: u64, pipeline: Option<u16>) {
    submit(&mut bench.pair, CANCEL, Operation::Cancel { tag, pipeline }, Lease::Nothing);
}

/// Takes the ends of a `Compute` and of its `Cancel`. Returns which pipelines were cancelled; their number must be the drive's
/// answer.
fn finish_cancelled(bench: &mut ComputeBench, count: usize) -> Vec<bool> {
    let (mut compute, mut cancelled) = (None, None);
    for returned in finish(&mut bench.pair, 2) {
        match returned.completion.tag {
            COMPUTE => {
                assert!(compute.replace(returned.completion).is_none(), "it ends once");
                bench.buffer = returned.lease.into_buffer();
            }
            _ => assert!(cancelled.replace(returned.completion).is_none(), "it ends once"),
        }
    }
    let (compute, cancelled) = (compute.unwrap(), cancelled.unwrap());
    assert!(compute.is_success() && cancelled.is_success());
    let is_cancelled = |result: PipelineResult| match result {
        PipelineResult::Finished { .. } => false,
        PipelineResult::Failed(failure) => {
            assert_eq!(failure.reason, PipelineReason::Cancelled);
            true
        }
    };
    let results: Vec<bool> = bench.results(count).into_iter().map(is_cancelled).collect();
    let failed = results.iter().filter(|is_cancelled| **is_cancelled).count() as u64;
    assert_eq!((cancelled.result, compute.result), ([failed, 0], [failed, 0]));
    results
}

#[test]
pub(super) fn all_pipelines_of_a_command_are_cancelled() {
    let mut bench = bench();
    let before = bench.drive.local().bytes_used();
    let pipelines = long_pipelines(&mut bench, 8);
    submit_pipelines(&mut bench, &pipelines);
    cancel(&mut bench, COMPUTE, None);
    finish_cancelled(&mut bench, 8);
    // The cancelled pipelines left nothing behind: the same numbers can be kept again.
    submit_pipelines(&mut bench, &pipelines);
    let compute = finish(&mut bench.pair, 1).pop().unwrap();
    assert_eq!(compute.completion.result, [0; 2]);
    bench.buffer = compute.lease.into_buffer();
    let ComputeBench { drive, pair, buffer, .. } = bench;
    drop(pair);
    assert_eq!(drive.local().bytes_used(), before);
    drop(buffer);
}

#[test]
pub(super) fn one_pipeline_is_cancelled_and_no_other() {
    let mut bench = bench();
    let pipelines = long_pipelines(&mut bench, 8);
    submit_pipelines(&mut bench, &pipelines);
    cancel(&mut bench, COMPUTE, Some(5));
    let results = finish_cancelled(&mut bench, 8);
    assert!((0..8).all(|number| number == 5 || !results[number]), "{results:?}");
}

#[test]
pub(super) fn nothing_to_cancel_is_no_failure() {
    let mut bench = bench();
    let pipelines = long_pipelines(&mut bench, 2);
    submit_pipelines(&mut bench, &pipelines);
    for (tag, number) in [(COMPUTE + 1, None), (COMPUTE, Some(2)), (COMPUTE, Some(127)), (CANCEL, None)] {
        cancel(&mut bench, tag, number);
    }
    for returned in finish(&mut bench.pair, 5) {
        let Completion { tag, status, result, .. } = returned.completion;
        assert_eq!((status, result), (Status::Success, [0; 2]), "command {tag}");
    }
    let over = run_with(&mut bench.pair, Operation::Cancel { tag: COMPUTE, pipeline: None }, Lease::Nothing);
    assert_eq!((over.completion.status, over.completion.result), (Status::Success, [0; 2]));
    let beyond = run_with(&mut bench.pair, Operation::Cancel { tag: COMPUTE, pipeline: Some(128) }, Lease::Nothing);
    assert_eq!(beyond.completion.status, Status::InvalidField);
}

#[test]
fn a_move_of_bytes_that_runs_is_waited_for() {
    let flash = FaultyFlash::new(FLASH_BYTES, 3);
    let mut bench = ComputeBench::new(Arc::new(flash.clone()));
    let concat = bench.stage("concat");
    let source = bench.local(&[(SOURCE, 50_000)]);
    let sink = PipelineSink::Flash { flash: 512 << 10, bytes: 64 << 10, durable: true };
    submit_pipelines(&mut bench, &[pipeline(&[concat], source, sink)]);
    // Poll until the sink's write is in flight.
    let mut returned = Vec::new();
    let writes = |bench: &ComputeBench| bench.drive.stage_counters().iter().map(|stage| stage.tasks).sum::<u64>();
    while writes(&bench) < 2 {
        bench.pair.poll(&mut returned);
    }
    assert!(returned.is_empty());
    cancel(&mut bench, COMPUTE, None);
    assert_eq!(finish_cancelled(&mut bench, 1), [true]);
    assert_eq!(bench.buffer.len(), BYTES);
}
