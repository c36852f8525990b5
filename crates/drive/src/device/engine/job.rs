//! A pipeline's bytes: where the next part comes from, and where the last stage's goes.
//!
//! The first stage of every pipeline fills sub-buffers from its source, and the last empties them into its sink. Both are tasks like
//! others, of two numbers that no program has; their [`TaskWork`] is a move of bytes rather than a program.

use super::kept::KeptResult;
use crate::device::arbiter::{PIPELINE_STAGES_MAX, TaskOutcome};
use crate::device::program::{CancelFlag, TaskState};
use crate::memory::LocalBuffer;
use crate::protocol::{
    LocalRange, MemoryAddress, Operation, PipelineFailure, PipelinePlace, PipelineReason, ProgramId, SourceRange,
};
use std::sync::Arc;

/// The first stage of every pipeline.
pub const SOURCE: ProgramId = ProgramId(u16::MAX - 1);
/// The last.
pub const SINK: ProgramId = ProgramId(u16::MAX);

/// What a task is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskWork {
    /// Its program, over these ranges.
    Run {
        input: LocalRange,
        output: LocalRange,
    },
    Move(ByteMove),
}

/// Bytes to be moved by the device itself: first the copy, then the zeros, then the flash command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteMove {
    /// From here to there, of one length, and apart.
    pub copy: Option<(LocalRange, LocalRange)>,
    pub zeros: LocalRange,
    pub flash: Option<Operation>,
    /// When all of it has succeeded.
    pub outcome: TaskOutcome,
}

impl ByteMove {
    fn nothing(outcome: TaskOutcome) -> ByteMove {
        ByteMove { copy: None, zeros: LocalRange::EMPTY, flash: None, outcome }
    }
}

pub(super) enum SourceKind {
    Local,
    /// With ranges of local memory among those of flash.
    Flash,
    /// Held, so that nobody frees it meanwhile. `None` until the pipeline that keeps it has ended.
    Kept(#[expect(dead_code)] Option<Arc<KeptResult>>),
}

pub(super) struct JobSource {
    kind: SourceKind,
    ranges: Vec<SourceRange>,
    /// The range that is read, and how far.
    number: usize,
    at: u64,
}

impl JobSource {
    pub fn new(kind: SourceKind, mut ranges: Vec<SourceRange>) -> JobSource {
        ranges.retain(|range| range.bytes > 0);
        JobSource { kind, ranges, number: 0, at: 0 }
    }

    pub fn kept(kept: Arc<KeptResult>) -> JobSource {
        let range = kept.range();
        JobSource::new(SourceKind::Kept(Some(kept)), vec![range])
    }

    /// A result that another pipeline is to keep.
    pub fn awaited() -> JobSource {
        JobSource::new(SourceKind::Kept(None), Vec::new())
    }

    /// The move that brings the next part.
    pub fn next_part(&mut self, output: LocalRange, sector_bytes: u32) -> ByteMove {
        let Some(range) = self.ranges.get(self.number).copied() else {
            return ByteMove::nothing(TaskOutcome::Done { bytes: 0 });
        };
        let bytes = (range.bytes - self.at).min(u64::from(output.length)) as u32;
        let from = range.offset + self.at;
        self.at += u64::from(bytes);
        if self.at == range.bytes {
            (self.number, self.at) = (self.number + 1, 0);
        }
        let is_last = self.number == self.ranges.len();
        let outcome = if is_last { TaskOutcome::Done { bytes } } else { TaskOutcome::More { bytes } };
        match self.kind {
            SourceKind::Flash if range.local().is_none() => {
                let length = bytes.next_multiple_of(sector_bytes);
                let read = Operation::Read { flash: from, local: output.offset, length };
                ByteMove { flash: Some(read), ..ByteMove::nothing(outcome) }
            }
            SourceKind::Flash | SourceKind::Local | SourceKind::Kept(_) => {
                let local = range.local().map_or(from, |local| local.offset + (from - range.offset));
                let from = LocalRange { offset: local, length: bytes };
                let to = LocalRange { length: bytes, ..output };
                ByteMove { copy: Some((from, to)), ..ByteMove::nothing(outcome) }
            }
        }
    }
}

pub(super) enum JobSink {
    Host(LocalRange),
    Flash(FlashSink),
    Kept { id: u64, buffer: LocalBuffer },
}

/// Whole sectors are gathered before they are written.
pub(super) struct FlashSink {
    pub flash: u64,
    pub bytes_max: u64,
    pub durable: bool,
    pub staging: LocalBuffer,
    /// Bytes in `staging`.
    pub gathered: u32,
    /// Bytes of the input that was taken in part.
    pub taken: u32,
}

impl JobSink {
    fn bytes_max(&self) -> u64 {
        match self {
            JobSink::Host(into) => u64::from(into.length),
            JobSink::Flash(sink) => sink.bytes_max,
            JobSink::Kept { buffer, .. } => buffer.len() as u64,
        }
    }

    /// The move that takes `input`, or a part of it, behind the `written` bytes before it.
    fn next_part(&mut self, input: LocalRange, written: u64, (is_last, sector_bytes): (bool, u32)) -> ByteMove {
        let into = match self {
            JobSink::Host(into) => into.offset,
            JobSink::Kept { buffer, .. } => buffer.offset(),
            JobSink::Flash(sink) => return sink.next_part(input, is_last, sector_bytes),
        };
        let to = LocalRange { offset: into + written, length: input.length };
        let copy = (input.length > 0).then_some((input, to));
        ByteMove { copy, ..ByteMove::nothing(TaskOutcome::Done { bytes: input.length }) }
    }
}

impl FlashSink {
    fn next_part(&mut self, input: LocalRange, is_last: bool, sector_bytes: u32) -> ByteMove {
        let staging = self.staging.range();
        let bytes = (input.length - self.taken).min(staging.length - self.gathered);
        let from = LocalRange { offset: input.offset + u64::from(self.taken), length: bytes };
        let to = LocalRange { offset: staging.offset + u64::from(self.gathered), length: bytes };
        self.taken += bytes;
        self.gathered += bytes;
        let has_more = self.taken < input.length;
        let outcome = if has_more { TaskOutcome::More { bytes } } else { TaskOutcome::Done { bytes } };
        let mut next = ByteMove { copy: (bytes > 0).then_some((from, to)), ..ByteMove::nothing(outcome) };
        let is_over = is_last && !has_more;
        if self.gathered > 0 && (self.gathered == staging.length || is_over) {
            let length = self.gathered.next_multiple_of(sector_bytes);
            let end = staging.offset + u64::from(self.gathered);
            next.zeros = LocalRange { offset: end, length: length - self.gathered };
            next.flash = Some(Operation::Write {
                flash: self.flash,
                from: MemoryAddress::local(staging.offset),
                length,
                fua: self.durable,
            });
            self.flash += u64::from(length);
            self.gathered = 0;
        }
        if !has_more {
            self.taken = 0;
        }
        next
    }
}

/// A pipeline on its way.
pub(super) struct EngineJob {
    pub owner: u64,
    pub token: u64,
    /// With source and sink.
    pub stage_count: u8,
    pub source: JobSource,
    pub sink: JobSink,
    /// By stage; away while it runs.
    pub tasks: [Option<TaskState>; PIPELINE_STAGES_MAX],
    /// By stage: the bytes in its output.
    pub filled: [u32; PIPELINE_STAGES_MAX],
    /// Bytes that the sink took.
    pub written: u64,
    pub cancel: CancelFlag,
    /// More than the arbiter knows.
    pub failure: Option<PipelineFailure>,
    /// The source that it waited for does not come.
    pub source_failure: Option<PipelineFailure>,
    /// Pipelines that wait for what this one keeps.
    pub readers: Vec<u32>,
}

impl EngineJob {
    pub fn new(
        (owner, token): (u64, u64),
        (stage_count, attachment): (u8, &Arc<[u8]>),
        source: JobSource,
        sink: JobSink,
    ) -> EngineJob {
        let cancel = CancelFlag::default();
        EngineJob {
            owner,
            token,
            stage_count,
            source,
            sink,
            tasks: std::array::from_fn(|_| Some(TaskState::with_flag(cancel.clone(), attachment.clone()))),
            filled: [0; PIPELINE_STAGES_MAX],
            written: 0,
            cancel,
            failure: None,
            source_failure: None,
            readers: Vec::new(),
        }
    }

    /// The move of what the last program filled.
    pub fn next_sink_part(&mut self, input: LocalRange, is_last: bool, sector_bytes: u32) -> Option<ByteMove> {
        let bytes_max = self.sink.bytes_max();
        let taken = if let JobSink::Flash(sink) = &self.sink { sink.taken } else { 0 };
        if self.written + u64::from(input.length - taken) > bytes_max {
            let failure = PipelineFailure::new(PipelinePlace::Sink, PipelineReason::OutputTooLong);
            self.failure = Some(failure.with(u32::try_from(bytes_max).unwrap_or(u32::MAX)));
            return None;
        }
        let next = self.sink.next_part(input, self.written, (is_last, sector_bytes));
        if let TaskOutcome::Done { bytes } | TaskOutcome::More { bytes } = next.outcome {
            self.written += u64::from(bytes);
        }
        Some(next)
    }
}
