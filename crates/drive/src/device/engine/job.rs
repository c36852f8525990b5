//! A pipeline's bytes: where its next part comes from, and where the last stage's output goes.
//!
//! The first stage of every pipeline fills sub-buffers from its source, and the last empties them into its sink. Both are ordinary tasks,
//! with two program numbers that no program has; their [`TaskWork`] is a move of bytes rather than a program.

use super::kept::KeptResult;
use super::outcomes::ExecutionResult;
use crate::device::arbiter::{PIPELINE_STAGES_MAX, TaskOutcome};
use crate::device::flash_share::BYTES_BESIDE_GETS;
use crate::device::program::{CancelFlag, TaskState};
use crate::fail_point;
use crate::memory::LocalBuffer;
use crate::protocol::{
    Execution, LocalRange, MemoryAddress, Operation, PipelineFailure, PipelinePlace, PipelineReason, ProgramId,
    SourceRange, Status,
};
use std::sync::Arc;

/// The first stage of every pipeline.
pub const SOURCE: ProgramId = ProgramId(u16::MAX - 1);
/// The last stage of every pipeline.
pub const SINK: ProgramId = ProgramId(u16::MAX);

/// The application that pays for programs of commands.
pub(super) const APPLICATION_OF_COMMANDS: u16 = 0;

/// Ranges that one part is gathered from: 256 KiB of scattered nodes.
const RANGES_OF_A_PART_MAX: usize = 64;

/// Whether this is [`SOURCE`] or [`SINK`].
pub(crate) fn is_move(program: ProgramId) -> bool {
    program == SOURCE || program == SINK
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskWork {
    /// The stage's program, over these ranges.
    Run {
        input: LocalRange,
        output: LocalRange,
    },
    Move(ByteMove),
    /// A command's program, over memory that the host lent.
    Execute(Execution),
}

/// Bytes that the device itself moves: first the copies, then the zeros, then all flash commands at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteMove {
    /// Pairs of (from, to) of the same length, which do not overlap.
    pub copies: Vec<(LocalRange, LocalRange)>,
    pub zeros: LocalRange,
    /// Commands of one kind. No two touch the same bytes.
    pub flash: Vec<Operation>,
    /// The outcome when all of it has succeeded.
    pub outcome: TaskOutcome,
}

impl ByteMove {
    fn nothing(outcome: TaskOutcome) -> ByteMove {
        ByteMove { copies: Vec::new(), zeros: LocalRange::EMPTY, flash: Vec::new(), outcome }
    }
}

impl TaskWork {
    /// The flash commands with which this work ends.
    pub fn flash(&self) -> &[Operation] {
        match self {
            TaskWork::Move(moves) => &moves.flash,
            TaskWork::Run { .. } | TaskWork::Execute(_) => &[],
        }
    }
}

pub(super) enum SourceKind {
    Local,
    /// Ranges of flash, some of which may be of local memory.
    Flash,
    /// A reference, so that nobody frees the result meanwhile. `None` until the pipeline that keeps it has ended.
    Kept(#[expect(dead_code)] Option<Arc<KeptResult>>),
}

pub(super) struct JobSource {
    kind: SourceKind,
    ranges: Vec<SourceRange>,
    /// The current range, and how far it is read.
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

    /// A result that a running pipeline will keep.
    pub fn awaited() -> JobSource {
        JobSource::new(SourceKind::Kept(None), Vec::new())
    }

    /// The move that brings the next part: as many ranges as the output has room for and one command takes.
    pub fn next_part(&mut self, output: LocalRange, sector_bytes: u32) -> ByteMove {
        let (mut part, mut filled) = (ByteMove::nothing(TaskOutcome::Done { bytes: 0 }), 0);
        while let Some(range) = self.ranges.get(self.number).copied() {
            let is_flash = matches!(self.kind, SourceKind::Flash) && range.local().is_none();
            // A part that ends within a sector is the last of its command: flash cannot continue behind it.
            let is_full = filled == output.length
                || part.copies.len() + part.flash.len() == RANGES_OF_A_PART_MAX
                || (is_flash && !filled.is_multiple_of(sector_bytes));
            if is_full {
                break;
            }
            let mut bytes = (range.bytes - self.at).min(u64::from(output.length - filled)) as u32;
            if is_flash {
                // A get that comes meanwhile waits for no more than this.
                bytes = bytes.min(BYTES_BESIDE_GETS);
            }
            let (from, to) = (range.offset + self.at, output.offset + u64::from(filled));
            if is_flash {
                part.flash.push(Operation::Read {
                    flash: from,
                    local: to,
                    length: bytes.next_multiple_of(sector_bytes),
                });
            } else {
                let local = range.local().map_or(from, |local| local.offset + self.at);
                let from = LocalRange { offset: local, length: bytes };
                part.copies.push((from, LocalRange { offset: to, length: bytes }));
            }
            filled += bytes;
            self.at += u64::from(bytes);
            if self.at == range.bytes {
                (self.number, self.at) = (self.number + 1, 0);
            }
        }
        let is_last = self.number == self.ranges.len();
        part.outcome = if is_last { TaskOutcome::Done { bytes: filled } } else { TaskOutcome::More { bytes: filled } };
        part
    }
}

pub(super) enum JobSink {
    Host(LocalRange),
    Flash(FlashSink),
    Kept { id: u64, buffer: LocalBuffer },
}

/// Gathers whole sectors before it writes them.
pub(super) struct FlashSink {
    pub flash: u64,
    pub bytes_max: u64,
    pub durable: bool,
    pub staging: LocalBuffer,
    /// Bytes in `staging`.
    pub gathered: u32,
    /// Bytes of the current input that are taken already.
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

    /// The move that writes `input`, or a part of it, behind the first `written` bytes.
    fn next_part(&mut self, input: LocalRange, written: u64, is_last: bool, sector_bytes: u32) -> ByteMove {
        let into = match self {
            JobSink::Host(into) => into.offset,
            JobSink::Kept { buffer, .. } => buffer.offset(),
            JobSink::Flash(sink) => return sink.next_part(input, is_last, sector_bytes),
        };
        let to = LocalRange { offset: into + written, length: input.length };
        let copies = if input.length > 0 { vec![(input, to)] } else { Vec::new() };
        ByteMove { copies, ..ByteMove::nothing(TaskOutcome::Done { bytes: input.length }) }
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
        let copies = if bytes > 0 { vec![(from, to)] } else { Vec::new() };
        let mut next = ByteMove { copies, ..ByteMove::nothing(outcome) };
        let is_over = is_last && !has_more;
        if self.gathered > 0 && (self.gathered == staging.length || is_over) {
            let length = self.gathered.next_multiple_of(sector_bytes);
            let end = staging.offset + u64::from(self.gathered);
            next.zeros = LocalRange { offset: end, length: length - self.gathered };
            next.flash.push(Operation::Write {
                flash: self.flash,
                from: MemoryAddress::local(staging.offset),
                length,
                fua: self.durable && !fail_point!(SinkNotDurable),
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

/// A running pipeline.
pub(super) struct EngineJob {
    pub owner: u64,
    pub token: u64,
    pub application: u16,
    /// Includes source and sink.
    pub stage_count: u8,
    pub source: JobSource,
    pub sink: JobSink,
    /// By stage. `None` while the task runs.
    pub tasks: [Option<TaskState>; PIPELINE_STAGES_MAX],
    /// By stage: the bytes in its output.
    pub filled: [u32; PIPELINE_STAGES_MAX],
    /// Bytes that the sink took.
    pub written: u64,
    pub cancel: CancelFlag,
    /// More detail than the arbiter's outcome has.
    pub failure: Option<PipelineFailure>,
    /// Why the source that it waited for will not come.
    pub source_failure: Option<PipelineFailure>,
    /// Pipelines that wait for the result which this one keeps.
    pub readers: Vec<u32>,
    /// The work of a job that is one program of a command: it has neither source nor sink.
    pub execution: Option<Execution>,
    /// The status and the result of that program.
    pub executed: Option<(Status, [u64; 2])>,
}

impl EngineJob {
    pub fn new(
        owner: u64,
        token: u64,
        application: u16,
        stage_count: u8,
        attachment: &Arc<[u8]>,
        source: JobSource,
        sink: JobSink,
    ) -> EngineJob {
        let cancel = CancelFlag::default();
        EngineJob {
            owner,
            token,
            application,
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
            execution: None,
            executed: None,
        }
    }

    /// A job that is one program of a command.
    pub fn of_execution(owner: u64, token: u64, execution: Execution) -> EngineJob {
        let (source, sink) = (JobSource::new(SourceKind::Local, Vec::new()), JobSink::Host(LocalRange::EMPTY));
        let job = EngineJob::new(owner, token, APPLICATION_OF_COMMANDS, 1, &Arc::default(), source, sink);
        EngineJob { execution: Some(execution), ..job }
    }

    /// How the program of a command ended.
    pub fn execution_result(&self) -> ExecutionResult {
        match (self.executed, &self.tasks[0]) {
            (Some((status, result)), _) => ExecutionResult::Ran { status, result },
            (None, Some(_)) => ExecutionResult::NotBegun,
            (None, None) => ExecutionResult::UnitLost,
        }
    }

    /// The move that empties the last program's output into the sink.
    pub fn next_sink_part(&mut self, input: LocalRange, is_last: bool, sector_bytes: u32) -> Option<ByteMove> {
        let bytes_max = self.sink.bytes_max();
        let taken = if let JobSink::Flash(sink) = &self.sink { sink.taken } else { 0 };
        if self.written + u64::from(input.length - taken) > bytes_max {
            let failure = PipelineFailure::new(PipelinePlace::Sink, PipelineReason::OutputTooLong);
            self.failure = Some(failure.with(u32::try_from(bytes_max).unwrap_or(u32::MAX)));
            return None;
        }
        let next = self.sink.next_part(input, self.written, is_last, sector_bytes);
        if let TaskOutcome::Done { bytes } | TaskOutcome::More { bytes } = next.outcome {
            self.written += u64::from(bytes);
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_read_of_a_part_is_longer_than_a_get_may_wait_for() {
        let ranges = vec![SourceRange { offset: 8192, bytes: 300 << 10 }, SourceRange { offset: 1 << 20, bytes: 5000 }];
        let mut source = JobSource::new(SourceKind::Flash, ranges);
        let (mut reads, mut filled) = (Vec::new(), 0);
        loop {
            let part = source.next_part(LocalRange { offset: 1 << 24, length: 256 << 10 }, 4096);
            reads.extend(part.flash.iter().map(|read| match read {
                Operation::Read { flash, length, .. } => (*flash, *length),
                other => panic!("{other:?}"),
            }));
            match part.outcome {
                TaskOutcome::More { bytes } => filled += bytes,
                TaskOutcome::Done { bytes } => break filled += bytes,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(filled, (300 << 10) + 5000);
        let of_kib = |flash: u64, kib: u32| (flash, kib << 10);
        let at = |kib: u64| 8192 + (kib << 10);
        assert_eq!(reads, [of_kib(at(0), 128), of_kib(at(128), 128), of_kib(at(256), 44), of_kib(1 << 20, 8)]);
    }
}
