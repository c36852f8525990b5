//! Kept results that pipelines of the same batch, or of a later command, take as their sources.

use super::compute_bench::{ComputeBench, RANGES, SOURCE, bench, digest, failed, pipeline, written};
use super::testing::{finish, run_with};
use super::{Lease, Returned};
use crate::device::engine::KEPT_RESULTS_MAX;
use crate::protocol::{
    Command, Operation, PipelineDescriptor, PipelineFailure, PipelinePlace, PipelineReason, PipelineResult,
    PipelineSink, PipelineSource, PipelineStage, ProgramId,
};

fn keep(id: u64) -> PipelineSink {
    PipelineSink::Kept { id, bytes_max: 4096 }
}

fn take(id: u64) -> PipelineSource {
    PipelineSource::Kept { id, stays: false }
}

fn look(id: u64) -> PipelineSource {
    PipelineSource::Kept { id, stays: true }
}

/// A pipeline that fails in its second stage, and the failure that is expected.
fn damaged(bench: &mut ComputeBench, id: u64) -> (PipelineDescriptor, PipelineFailure) {
    let (concat, inflate) = (bench.stage("concat"), bench.stage("zstd-decompress"));
    let source = bench.local(&[(SOURCE, 100)]);
    let failure = failed(PipelinePlace::Stage(1), PipelineReason::Program).with(2);
    (pipeline(&[concat, inflate], source, keep(id)), failure)
}

#[test]
pub(super) fn a_batch_reads_what_it_keeps_itself() {
    let mut bench = bench();
    let [compress, inflate, concat, sha] =
        ["zstd-compress", "zstd-decompress", "concat", "sha256"].map(|name| bench.stage(name));
    let source = bench.flash(&[(512, 3000)]);
    let first = written(512, 3000);
    let other = bench.local(&[(SOURCE, 100)]);
    let second = written(SOURCE as usize, 100);
    let results = bench.run(&[
        pipeline(&[compress], source, keep(1)),
        pipeline(&[inflate], take(1), keep(2)),
        pipeline(&[sha], look(2), bench.sink(0, 32)),
        pipeline(&[concat; 8], look(2), bench.sink(32, 3000)),
        // A number means the last result promised before its reader.
        pipeline(&[concat], other, keep(2)),
        pipeline(&[concat], take(2), bench.sink(4096, 3000)),
        pipeline(&[concat], look(2), bench.sink(8192, 3000)),
    ]);
    let finished: Vec<_> = [32, 3000, 100, 100].map(|bytes| PipelineResult::Finished { bytes }).to_vec();
    assert_eq!(results[2..6], finished);
    let gone = failed(PipelinePlace::Source, PipelineReason::UnknownKept);
    assert_eq!(results[6], PipelineResult::Failed(gone), "the one before it took it");
    assert_eq!((bench.output(0, 32), bench.output(32, 3000)), (&digest(&[&first])[..], &first[..]));
    assert_eq!(bench.output(4096, 100), second);
}

#[test]
pub(super) fn readers_and_makers_share_few_sub_buffers() {
    let mut bench = bench();
    let used = bench.drive.local().bytes_used();
    let concat = bench.stage("concat");
    let source = bench.flash(&[(0, 1000)]);
    let count = KEPT_RESULTS_MAX as u64;
    // Readers stand before the pipelines that keep other results, and all of them together need most of the sub-buffers.
    let pair = |id: u64, sink| [pipeline(&[concat; 8], source, keep(id)), pipeline(&[concat; 8], take(id), sink)];
    let pipelines: Vec<_> = (0..count).flat_map(|id| pair(id, bench.sink(id * 1000, 1000))).collect();
    assert_eq!(bench.run(&pipelines), vec![PipelineResult::Finished { bytes: 1000 }; 2 * KEPT_RESULTS_MAX]);
    let engine = bench.drive.local().bytes_used() - used;
    // One more number than allowed.
    let makers: Vec<_> = (0..=count).map(|id| pipeline(&[concat], source, keep(id))).collect();
    let results = bench.run(&makers);
    let many = failed(PipelinePlace::Sink, PipelineReason::TooManyKept);
    assert_eq!(results[KEPT_RESULTS_MAX], PipelineResult::Failed(many));
    assert_eq!(results[..KEPT_RESULTS_MAX], vec![PipelineResult::Finished { bytes: 1000 }; KEPT_RESULTS_MAX]);
    let takers: Vec<_> = (0..=count).map(|id| pipeline(&[concat], take(id), bench.sink(id * 1000, 1000))).collect();
    let results = bench.run(&takers);
    assert_eq!(results[KEPT_RESULTS_MAX], PipelineResult::Failed(many.of_reader()), "the reader is told why");
    assert_eq!(bench.drive.local().bytes_used(), used + engine, "all that was kept is freed");
}

#[test]
pub(super) fn a_reader_is_told_why_its_maker_failed() {
    let mut bench = bench();
    let (concat, sha) = (bench.stage("concat"), bench.stage("sha256"));
    let source = bench.local(&[(SOURCE, 100)]);
    assert_eq!(bench.run(&[pipeline(&[concat], source, keep(1))]), [PipelineResult::Finished { bytes: 100 }]);
    let (damaged, failure) = damaged(&mut bench, 1);
    let unknown = PipelineStage::new(ProgramId(99), &[]).unwrap();
    let outside = PipelineSource::Local { list: bench.at(RANGES, 17) };
    let results = bench.run(&[
        damaged,
        pipeline(&[concat], look(1), keep(2)),
        pipeline(&[sha], take(2), bench.sink(0, 32)),
        pipeline(&[sha], look(1), bench.sink(0, 32)),
        // Refused pipelines have readers too.
        pipeline(&[unknown], source, keep(3)),
        pipeline(&[sha], take(3), bench.sink(0, 32)),
        pipeline(&[sha], outside, keep(4)),
        pipeline(&[sha], take(4), bench.sink(0, 32)),
        // Readers submitted right afterwards read the newly kept result.
        pipeline(&[concat], source, keep(4)),
        pipeline(&[sha], take(4), bench.sink(0, 32)),
    ]);
    let of_reader = PipelineResult::Failed(failure.of_reader());
    assert_eq!(results[..4], [PipelineResult::Failed(failure), of_reader, of_reader, of_reader]);
    let reason = |number: usize| match results[number] {
        PipelineResult::Failed(failure) => failure.maker().map(|maker| (maker.place, maker.reason)),
        PipelineResult::Finished { .. } => None,
    };
    assert_eq!(reason(5), Some((PipelinePlace::Stage(0), PipelineReason::UnknownProgram)));
    assert_eq!(reason(7), Some((PipelinePlace::Source, PipelineReason::OutsideLocal)));
    assert_eq!(results[9], PipelineResult::Finished { bytes: 32 });
    let later = bench.run(&[pipeline(&[sha], look(1), bench.sink(0, 32))]);
    assert_eq!(later, [of_reader], "the result before it is gone, and the reason stays");
}

/// Runs a command that keeps a result, and one that reads it.
fn kept_and_read(bench: &mut ComputeBench, maker: PipelineDescriptor) -> PipelineResult {
    let sha = bench.stage("sha256");
    bench.run(&[maker]);
    bench.run(&[pipeline(&[sha], take(1), bench.sink(0, 32))])[0]
}

#[test]
pub(super) fn a_later_command_reads_what_was_kept_before_it() {
    let mut bench = bench();
    let concat = bench.stage("concat");
    let kept = pipeline(&[concat], PipelineSource::Kept { id: 9, stays: true }, keep(1));
    let source = bench.flash(&[(0, 300)]);
    assert_eq!(bench.run(&[pipeline(&[concat], source, keep(9))]), [PipelineResult::Finished { bytes: 300 }]);
    assert_eq!(kept_and_read(&mut bench, kept), PipelineResult::Finished { bytes: 32 });
    assert_eq!(bench.output(0, 32), digest(&[&written(0, 300)]));
    let inflate = bench.stage("zstd-decompress");
    let damaged = pipeline(&[inflate], PipelineSource::Kept { id: 9, stays: true }, keep(1));
    let failure = failed(PipelinePlace::Stage(0), PipelineReason::Program).with(2);
    assert_eq!(kept_and_read(&mut bench, damaged), PipelineResult::Failed(failure.of_reader()));
}

#[test]
fn a_reader_hears_that_its_maker_was_cancelled() {
    let mut bench = bench();
    let concat = bench.stage("concat");
    let source = bench.flash(&[(0, 1000)]);
    let list = bench.put(&[pipeline(&[concat], source, keep(1)), pipeline(&[concat], take(1), bench.sink(0, 1000))]);
    bench.pair.submit(Command::new(1, Operation::Compute { pipelines: list }), bench.buffer.take().into()).unwrap();
    let cancel = Operation::Cancel { tag: 1, pipeline: Some(0) };
    bench.pair.submit(Command::new(2, cancel), Lease::Nothing).unwrap();
    for Returned { completion, lease } in finish(&mut bench.pair, 2) {
        match completion.tag {
            1 => bench.buffer = lease.into_buffer(),
            _ => assert_eq!(completion.result, [1, 0], "the reader fails by itself"),
        }
    }
    let cancelled = failed(PipelinePlace::Source, PipelineReason::Cancelled);
    let expected = [cancelled, cancelled.of_reader()].map(PipelineResult::Failed);
    assert_eq!(bench.results(2), expected);
    let list = bench.put(&[pipeline(&[concat], source, keep(1)), pipeline(&[concat], take(1), bench.sink(0, 1000))]);
    bench.pair.submit(Command::new(1, Operation::Compute { pipelines: list }), bench.buffer.take().into()).unwrap();
    bench.pair.submit(Command::new(2, Operation::Cancel { tag: 1, pipeline: None }), Lease::Nothing).unwrap();
    for Returned { completion, lease } in finish(&mut bench.pair, 2) {
        match completion.tag {
            1 => bench.buffer = lease.into_buffer(),
            _ => assert_eq!(completion.result, [2, 0], "each is cancelled by itself"),
        }
    }
    assert_eq!(bench.results(2), [PipelineResult::Failed(cancelled); 2]);
    let over = run_with(&mut bench.pair, Operation::Cancel { tag: 1, pipeline: None }, Lease::Nothing);
    assert_eq!(over.completion.result, [0, 0]);
}
