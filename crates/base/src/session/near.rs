//! A get whose value goes through programs of the drive: what engines have in common.
//!
//! ```text
//! an engine finds the value ─► NearGet::start ─► Compute ─► NearGet::ended ─► the result, for the engine to answer with
//! ```
//! 1. At most [`NEAR_MAX`] pipelines of a session are at the drive. Those beyond, and those for which there is no local memory, hold nothing and
//!    start over later.
//! 2. A cancelled one ends like others, when the drive has stopped.
//! 3. Flash ranges stay what they are while the drive reads them, by the engine's care, or the stages of the prefix find that they changed.
//!
//! Threads: the session's.

use super::engine_session::EngineSlot;
use super::session_core::SessionCore;
use super::spare_buffers::BUFFER_BYTES;
use crate::error::Error;
use crate::request::ValueRange;
use crate::wake::memory_turns::MemoryTurn;
use tapetum_drive::{
    Command, Lease, LocalBuffer, LocalRange, Operation, PROGRAMS_MAX, PipelineDescriptor, PipelineFailure,
    PipelinePlace, PipelineReason, PipelineResult, PipelineSink, PipelineSource, PipelineStage, ProgramId, Purpose,
    Returned, SourceRange,
};

/// Pipelines of one session at the drive: an eighth of what a queue pair takes, and as many as keep its sub-buffers busy.
pub const NEAR_MAX: usize = 32;

/// The programs that a caller wants run over a value, and their limits.
#[derive(Clone, Debug)]
pub struct NearRequest {
    /// At most [`PROGRAMS_MAX`].
    pub stages: Vec<PipelineStage>,
    pub output_bytes_max: u32,
    /// From the start of its programs; zero: none.
    pub deadline_us: u64,
    pub attachment: Vec<u8>,
    pub application: u16,
}

/// See the [module](self).
pub struct NearGet {
    request: NearRequest,
    /// Set while it waits for much local memory.
    turn: Option<MemoryTurn>,
    /// Set while the drive runs the programs.
    running: Option<NearRun>,
    /// Nobody wants the result any more.
    is_cancelled: bool,
}

struct NearRun {
    /// Stages before the caller's.
    prefix: usize,
    /// Offset of the result in the buffer.
    sink_at: usize,
}

/// The value that goes through the programs.
pub enum NearSource {
    /// With the host.
    Host(Vec<u8>),
    /// In local memory, in these parts.
    Local(LocalBuffer, Vec<SourceRange>),
    /// On flash. The stages of `prefix` check it, and give the value.
    Flash { ranges: Vec<SourceRange>, prefix: Vec<PipelineStage> },
}

pub enum NearStart {
    Runs,
    /// Try again later: too many run, or local memory is short.
    NoRoom,
    Failed(Error),
}

pub enum NearEnd {
    Value(ValueRange),
    /// Try again later: others have the drive's queue, or the local memory for its parts.
    NoRoom,
    /// A stage of the prefix refused what is on flash.
    Damaged,
    Failed(Error),
}

impl NearGet {
    pub fn new(request: NearRequest) -> NearGet {
        NearGet { request, turn: None, running: None, is_cancelled: false }
    }

    /// Its attachment, if it has this program alone, without parameters, for as long as it takes.
    pub fn attachment_of(&self, program: ProgramId) -> Option<&[u8]> {
        let NearRequest { stages, deadline_us, attachment, .. } = &self.request;
        let is_alone = matches!(&stages[..], [stage] if stage.program == program && stage.parameters().is_empty());
        (is_alone && *deadline_us == 0 && !self.is_cancelled).then_some(attachment)
    }

    /// Whether a result of so many bytes that came without a pipeline is its answer: not if it is longer than it may be, or nobody wants it any more.
    pub fn takes(&self, bytes: u32) -> bool {
        bytes <= self.request.output_bytes_max && !self.is_cancelled
    }

    /// Whether the pipeline has room for so many stages more.
    pub fn has_room_for(&self, stages: usize) -> bool {
        self.request.stages.len() + stages <= PROGRAMS_MAX
    }

    /// Passes a value to the drive's programs, by a command with this tag.
    pub fn start(&mut self, core: &mut SessionCore, tag: u64, source: NearSource) -> NearStart {
        if self.is_cancelled {
            let cancelled = PipelineFailure::new(PipelinePlace::Source, PipelineReason::Cancelled);
            return NearStart::Failed(Error::Pipeline(cancelled));
        }
        let attachment_at = source.attachment_at();
        let sink_at = attachment_at + self.request.attachment.len();
        let bytes = sink_at + self.request.output_bytes_max as usize;
        if !core.spare_buffers.could_take(bytes, core.base.engines.local_bytes() as usize) {
            let error = format!("local memory never has {bytes} bytes for a pipeline: give the store more memory");
            return NearStart::Failed(Error::Options(error));
        }
        let is_free = core.near_in_flight < NEAR_MAX && self.is_next(core, bytes);
        let work = if is_free { core.spare_buffers.take(bytes) } else { None };
        let Some(mut work) = work else {
            self.stand_in_line(core, bytes);
            return NearStart::NoRoom;
        };
        let asked = source.encode(&self.request, work.offset());
        core.queue.fill(Purpose::Pipeline, &mut work, 0..asked.len()).copy_from_slice(&asked);
        if let NearSource::Host(host) = &source {
            core.queue.fill(Purpose::Pipeline, &mut work, asked.len()..attachment_at).copy_from_slice(host);
        }
        let attachment = &self.request.attachment;
        if !attachment.is_empty() {
            core.queue.fill(Purpose::Pipeline, &mut work, attachment_at..sink_at).copy_from_slice(attachment);
        }
        let pipelines = LocalRange { offset: work.offset(), length: PipelineDescriptor::ENCODED_BYTES as u32 };
        let (lease, prefix) = match source {
            NearSource::Local(source, _) => (Lease::Buffers([work, source]), 0),
            NearSource::Flash { prefix, .. } => (Lease::Buffer(work), prefix.len()),
            NearSource::Host(_) => (Lease::Buffer(work), 0),
        };
        let command = Command::new(tag, Operation::Compute { pipelines }).of(Purpose::Pipeline);
        if core.queue.submit(command, lease).is_err() {
            return NearStart::NoRoom;
        }
        self.turn = None;
        self.running = Some(NearRun { prefix, sink_at });
        core.near_in_flight += 1;
        NearStart::Runs
    }

    /// Takes the completion of its command.
    pub fn ended(&mut self, core: &mut SessionCore, Returned { completion, lease }: Returned) -> NearEnd {
        core.near_in_flight -= 1;
        let Some(run) = self.running.take() else { unreachable!("a completion has a pipeline") };
        let (work, source) = match lease {
            Lease::Buffers([work, source]) => (work, Some(source)),
            lease => (lease.into_buffer(), None),
        };
        source.into_iter().for_each(|buffer| core.spare_buffers.give(buffer));
        if !completion.is_success() {
            return NearEnd::Failed(Error::of_command(core.queue.drive(), "pipeline", &completion));
        }
        let encoded = core.queue.copy_array_to_host(Purpose::Pipeline, &work, PipelineDescriptor::RESULT_AT);
        match PipelineResult::decode(&encoded) {
            Ok(Some(PipelineResult::Finished { bytes })) => {
                let values = core.values.current();
                let start = values.len();
                let bytes = bytes.min(self.request.output_bytes_max.into()) as usize;
                core.queue.copy_to_host(Purpose::Pipeline, &work, run.sink_at..run.sink_at + bytes, values);
                core.spare_buffers.give(work);
                NearEnd::Value(core.values.range_from(start))
            }
            Ok(Some(PipelineResult::Failed(failure))) => run.failed(failure),
            Ok(None) | Err(_) => {
                let error = "the drive gave no result of a pipeline that has ended".into();
                NearEnd::Failed(Error::Io(error))
            }
        }
    }

    /// Gives it up. `tag` is that of its command.
    pub fn cancel(&mut self, core: &mut SessionCore, tag: u64) {
        self.is_cancelled = true;
        if self.running.is_some() {
            let cancel = Command::new(EngineSlot::NOBODY.tag(0), Operation::Cancel { tag, pipeline: None });
            // Without a place in the queue the pipeline goes on to its end.
            let _ = core.queue.submit(cancel.of(Purpose::Pipeline), Lease::Nothing);
        }
    }

    /// Whether no earlier operation waits for memory, if much is needed.
    fn is_next(&self, core: &SessionCore, bytes: usize) -> bool {
        let now_us = || core.base.drive.env().now_us();
        match &self.turn {
            _ if bytes <= BUFFER_BYTES => true,
            Some(turn) => turn.is_next(now_us()),
            None => core.base.memory_turns.are_none(now_us()),
        }
    }

    fn stand_in_line(&mut self, core: &SessionCore, bytes: usize) {
        if bytes > BUFFER_BYTES {
            self.turn.get_or_insert_with(|| core.base.memory_turns.join(core.base.drive.env().now_us()));
        }
    }
}

impl NearRun {
    /// A failure in terms of the stages that the caller gave.
    fn failed(&self, failure: PipelineFailure) -> NearEnd {
        let place = match (failure.place, failure.reason) {
            (PipelinePlace::Source, PipelineReason::QueueFull | PipelineReason::NoLocalMemory) => {
                return NearEnd::NoRoom;
            }
            (PipelinePlace::Stage(stage), reason) if usize::from(stage) < self.prefix => {
                if reason == PipelineReason::Program {
                    return NearEnd::Damaged;
                }
                PipelinePlace::Source
            }
            (PipelinePlace::Stage(stage), _) => PipelinePlace::Stage(stage - self.prefix as u8),
            (place, _) => place,
        };
        NearEnd::Failed(Error::Pipeline(PipelineFailure { place, ..failure }))
    }
}

// The command's buffer: descriptor, ranges, the host's bytes, the attachment, room for the result.
impl NearSource {
    fn ranges(&self) -> &[SourceRange] {
        match self {
            NearSource::Host(_) => &[],
            NearSource::Local(_, ranges) | NearSource::Flash { ranges, .. } => ranges,
        }
    }

    fn list_bytes(&self) -> usize {
        let count = if let NearSource::Host(_) = self { 1 } else { self.ranges().len() };
        count * SourceRange::ENCODED_BYTES
    }

    /// Offset behind descriptor, ranges and the host's bytes.
    fn attachment_at(&self) -> usize {
        let host = if let NearSource::Host(host) = self { host.len() } else { 0 };
        PipelineDescriptor::ENCODED_BYTES + self.list_bytes() + host
    }

    /// Descriptor and ranges, for a buffer at this offset.
    fn encode(&self, request: &NearRequest, buffer: u64) -> Vec<u8> {
        let at = |at: usize, length: u32| LocalRange { offset: buffer + at as u64, length };
        let list = at(PipelineDescriptor::ENCODED_BYTES, self.list_bytes() as u32);
        let (from, prefix) = match self {
            NearSource::Flash { prefix, .. } => (PipelineSource::Flash { list }, &prefix[..]),
            _ => (PipelineSource::Local { list }, &[][..]),
        };
        let sink_at = self.attachment_at() + request.attachment.len();
        let into = PipelineSink::Host { into: at(sink_at, request.output_bytes_max) };
        let stages = [prefix, &request.stages[..]].concat();
        let Some(mut descriptor) = PipelineDescriptor::new(&stages, from, into) else {
            unreachable!("the stages were counted")
        };
        (descriptor.deadline_us, descriptor.application) = (request.deadline_us, request.application);
        if !request.attachment.is_empty() {
            descriptor.attachment = at(self.attachment_at(), request.attachment.len() as u32);
        }
        let mut bytes = descriptor.encode().to_vec();
        self.ranges().iter().for_each(|range| bytes.extend_from_slice(&range.encode()));
        if let NearSource::Host(host) = self {
            let offset = list.offset + u64::from(list.length);
            bytes.extend_from_slice(&SourceRange { offset, bytes: host.len() as u64 }.encode());
        }
        bytes
    }
}
