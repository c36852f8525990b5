//! An item's value through programs at the drive: of an item on flash only the result comes to the host.
//!
//! ```text
//! get ─ on flash ─► pages, match: the value lies in local memory ─┐
//!   ├─ in extents of its own ─ named as they lie on flash ────────┼─► Compute ─► result to the host ─► answer
//!   └─ in a write buffer, or the DRAM tier ─► copied to the drive ┘
//! ```
//! 1. The operation is a get until its value is found: it has its place among the operations of its key, and keeps it until it is answered.
//! 2. At most [`NEAR_MAX`] pipelines of a session are at the drive. Those beyond, and those for which there is no local memory, hold nothing and
//!    start over later.
//! 3. A cancelled one gets its reply like others, when the drive has stopped.
//! 4. The pipeline's source is held until its command has ended: local memory as its lease, extents by this operation. A session that is dropped
//!    waits for the drive first.

use super::flash_read::FlashRead;
use super::large::OutOfLine;
use super::limits::refuse;
use super::{HashedMeans, HashedOp, HashedSession, end_read};
use crate::hashed::HashedEngine;
use crate::hashed::large::verify::corrupt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::request::item::{Access, ItemHead};
use tapetum_base::request::{Outcome, Request};
use tapetum_base::session::engine_session::OWN_TAG_BITS;
use tapetum_base::session::order::OpTarget;
use tapetum_base::session::session_core::SessionCore;
use tapetum_base::session::spare_buffers::BUFFER_BYTES;
use tapetum_base::wake::memory_turns::MemoryTurn;
use tapetum_drive::programs::match_record::Matched;
use tapetum_drive::{
    ATTACHMENT_BYTES_MAX, Command, Lease, LocalBuffer, LocalRange, Operation, PARAMETERS_MAX, PROGRAMS_MAX,
    PipelineDescriptor, PipelineFailure, PipelinePlace, PipelineReason, PipelineResult, PipelineSink, PipelineSource,
    PipelineStage, ProgramId, Purpose, Returned, SOURCE_RANGES_MAX, SourceRange,
};
use tapetum_kernels::record::Codec;
use tapetum_kernels::reference::Reference;

/// Pipelines of one session at the drive: an eighth of what a queue pair takes, and as many as keep its sub-buffers busy.
pub(super) const NEAR_MAX: usize = 32;
/// Set in the tags of commands that run pipelines; the rest is the operation's number.
pub(super) const TAG_NEAR: u64 = 1 << (OWN_TAG_BITS - 2);
/// `Cancel` commands, whose ends tell nothing. No operation has this number.
const TAG_CANCEL: u64 = TAG_NEAR | (TAG_NEAR - 1);

/// The application whose pipelines they are. The drive divides its compute units among applications by their weights. The default stands for all
/// callers that name none; others are named when the store is opened, and found by `Store::application`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Application(pub(crate) u16);

/// The programs that run over an item's value at the drive.
#[derive(Clone, Debug, Default)]
pub struct ItemPipeline {
    /// Programs of the drive and their parameters, in order: at most [`PROGRAMS_MAX`], with [`PARAMETERS_MAX`] bytes each.
    pub stages: Vec<(ProgramId, Vec<u8>)>,
    /// A longer output is an error. This much local memory is taken meanwhile.
    pub output_bytes_max: u32,
    /// From the start of its programs; zero: none.
    pub deadline_us: u64,
    /// Data for all programs that does not fit in parameters. At most [`ATTACHMENT_BYTES_MAX`].
    pub attachment: Vec<u8>,
    pub application: Application,
}

/// State of a get whose value goes through programs.
pub(super) struct NearGet {
    /// The caller's stages.
    stages: Vec<PipelineStage>,
    output_bytes_max: u32,
    deadline_us: u64,
    attachment: Vec<u8>,
    application: Application,
    /// Set while it waits for much local memory.
    turn: Option<MemoryTurn>,
    /// Set while the drive runs the programs.
    running: Option<NearRun>,
    /// Nobody wants the result any more.
    is_cancelled: bool,
}

struct NearRun {
    item: ItemHead,
    shown_by: u64,
    /// Stages before the caller's.
    prefix: usize,
    /// Offset of the result in the buffer.
    sink_at: usize,
    /// Held, so that its extents stay.
    large: Option<(OutOfLine, Reference)>,
}

/// The place of a value that is to go through programs.
pub(super) enum NearValue {
    /// With the host.
    Host(Vec<u8>),
    /// In local memory, in these parts.
    Local(LocalBuffer, Vec<SourceRange>),
    /// On flash, to be checked and inflated by the stages of `prefix`.
    Large { value: OutOfLine, reference: Reference, prefix: Vec<PipelineStage> },
}

impl NearGet {
    fn new(pipeline: &ItemPipeline) -> Result<NearGet, Error> {
        let stage = |(program, parameters): &(ProgramId, Vec<u8>)| {
            let long =
                || Error::Options(format!("a stage has more than {PARAMETERS_MAX} bytes of parameters: give it fewer"));
            PipelineStage::new(*program, parameters).ok_or_else(long)
        };
        if pipeline.stages.len() > PROGRAMS_MAX {
            return Err(Error::Options(format!("a pipeline has at most {PROGRAMS_MAX} programs: split it in two")));
        }
        if pipeline.attachment.len() > ATTACHMENT_BYTES_MAX {
            return Err(Error::Options(format!(
                "an attachment has at most {ATTACHMENT_BYTES_MAX} bytes: attach fewer"
            )));
        }
        let stages = pipeline.stages.iter().map(stage).collect::<Result<Vec<_>, Error>>()?;
        let ItemPipeline { output_bytes_max, deadline_us, ref attachment, application, .. } = *pipeline;
        let attachment = attachment.clone();
        let (turn, running, is_cancelled) = (None, None, false);
        Ok(NearGet { stages, output_bytes_max, deadline_us, attachment, application, turn, running, is_cancelled })
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

    /// The stages that check and inflate a large value at the drive. `None` if the host has to: the drive lacks a program, or the pipeline has no
    /// room for it.
    pub fn prefix_of_large(&self, engine: &HashedEngine, reference: &Reference) -> Option<Vec<PipelineStage>> {
        let programs = engine.programs.large?;
        let crcs = [reference.crc_of_none(engine.store_id), reference.sums.whole].map(u32::to_le_bytes).concat();
        let mut prefix = vec![PipelineStage::new(programs.crc32c_check, &crcs)?];
        if reference.codec == Codec::Zstd {
            prefix.push(PipelineStage::new(programs.zstd_decompress, &[])?);
        }
        let has_room = prefix.len() + self.stages.len() <= PROGRAMS_MAX && reference.runs.len() <= SOURCE_RANGES_MAX;
        has_room.then_some(prefix)
    }
}

/// The item that a get through programs found.
#[derive(Clone, Copy)]
pub(super) struct NearItem {
    pub item: ItemHead,
    /// An answer that shows the item waits until this stamp is durable.
    pub shown_by: u64,
}

/// The stored bytes of a large value, run by run.
fn ranges_of(geometry: &Geometry, reference: &Reference) -> Vec<SourceRange> {
    let mut left = u64::from(reference.stored_bytes);
    let range = |run: &tapetum_kernels::reference::Run| {
        let bytes = left.min(u64::from(run.count) * geometry.extent_bytes);
        left -= bytes;
        SourceRange { offset: geometry.extent_offset(run.first), bytes }
    };
    reference.runs.iter().map(range).collect()
}

impl HashedSession {
    /// Starts a get whose value goes through programs of the drive.
    pub fn start_through(
        &mut self,
        (core, engine): HashedMeans<'_>,
        keyspace: KeyspaceRef,
        token: u64,
        key: &[u8],
        pipeline: &ItemPipeline,
    ) {
        let request = Request::Get { key };
        let refused = refuse(engine, keyspace, &request);
        let near = match refused.and_then(|()| refuse_other_kinds(keyspace)).and_then(|()| NearGet::new(pipeline)) {
            Ok(near) => near,
            Err(error) => return core.answer(token, Outcome::Failed(error)),
        };
        engine.check_watermark();
        let hash = engine.hash(keyspace.id, key);
        let goes_on = !self.ops.must_wait(hash, &request);
        let target = OpTarget { token, keyspace, hash, value_bytes_allowed: usize::MAX };
        let (number, mut op) = self.ops.keep_at_hand(target, &request);
        op.kept.near = Some(Box::new(near));
        self.ops.put(number, op);
        match goes_on {
            true => self.gathered.push(number),
            false => self.ops.wait_for_turn(hash, number),
        }
    }

    /// Gives up the gets through programs that have this token.
    pub fn cancel_through(&mut self, core: &mut SessionCore, token: u64) {
        for (number, op) in self.ops.iter_mut().filter(|(_, op)| op.token == token) {
            let Some(near) = &mut op.kept.near else { continue };
            near.is_cancelled = true;
            if near.running.is_some() {
                let cancel = Operation::Cancel { tag: TAG_NEAR | number as u64, pipeline: None };
                // Without a place in the queue the pipeline goes on to its end.
                let _ = core.queue.submit(Command::new(TAG_CANCEL, cancel).of(Purpose::Pipeline), Lease::Nothing);
            }
        }
    }
}

fn refuse_other_kinds(keyspace: KeyspaceRef) -> Result<(), Error> {
    if keyspace.is_grouped() {
        return Err(Error::Keyspace(KeyspaceError::IsGrouped));
    }
    match keyspace.kind() {
        KeyspaceKind::Hashed => Ok(()),
        KeyspaceKind::Ordered => Err(Error::Keyspace(KeyspaceError::OrderedThroughPrograms)),
        kind => Err(Error::Keyspace(KeyspaceError::OtherKind { kind })),
    }
}

/// The source of a pipeline: the value, and the offsets of its parts in one buffer: descriptor, ranges, the host's bytes, the attachment, room for
/// the result.
struct NearSource {
    /// The value, if it is with the host.
    host: Option<Vec<u8>>,
    source: Option<LocalBuffer>,
    ranges: Vec<SourceRange>,
    large: Option<(OutOfLine, Reference)>,
    prefix: Vec<PipelineStage>,
}

impl NearSource {
    fn new(engine: &HashedEngine, value: NearValue) -> Result<NearSource, Error> {
        let none = NearSource { host: None, source: None, ranges: Vec::new(), large: None, prefix: Vec::new() };
        Ok(match value {
            NearValue::Host(host) => NearSource { host: Some(host), ..none },
            NearValue::Local(buffer, ranges) => NearSource { source: Some(buffer), ranges, ..none },
            NearValue::Large { value, reference, .. }
                if reference.codec == Codec::Raw && reference.stored_bytes != value.raw_bytes =>
            {
                return Err(corrupt(&reference, None));
            }
            NearValue::Large { value, reference, prefix } => {
                let ranges = ranges_of(&engine.geometry, &reference);
                NearSource { ranges, large: Some((value, reference)), prefix, ..none }
            }
        })
    }

    fn list(&self) -> Range<usize> {
        let ranges = if self.host.is_some() { 1 } else { self.ranges.len() };
        PipelineDescriptor::ENCODED_BYTES..PipelineDescriptor::ENCODED_BYTES + ranges * SourceRange::ENCODED_BYTES
    }

    /// Offset behind descriptor, ranges and the host's bytes.
    fn attachment_at(&self) -> usize {
        self.list().end + self.host.as_ref().map_or(0, Vec::len)
    }

    /// Descriptor and ranges, for a buffer at this offset.
    fn encode(&self, near: &NearGet, buffer: u64) -> Vec<u8> {
        let at = |at: usize, length: u32| LocalRange { offset: buffer + at as u64, length };
        let list = at(self.list().start, self.list().len() as u32);
        let from = if self.large.is_some() { PipelineSource::Flash { list } } else { PipelineSource::Local { list } };
        let sink_at = self.attachment_at() + near.attachment.len();
        let into = PipelineSink::Host { into: at(sink_at, near.output_bytes_max) };
        let stages = [&self.prefix[..], &near.stages[..]].concat();
        let Some(mut descriptor) = PipelineDescriptor::new(&stages, from, into) else {
            unreachable!("the stages were counted")
        };
        descriptor.deadline_us = near.deadline_us;
        descriptor.application = near.application.0;
        if !near.attachment.is_empty() {
            descriptor.attachment = at(self.attachment_at(), near.attachment.len() as u32);
        }
        let mut bytes = descriptor.encode().to_vec();
        self.ranges.iter().for_each(|range| bytes.extend_from_slice(&range.encode()));
        if let Some(host) = &self.host {
            let (offset, length) = (buffer + self.list().end as u64, host.len() as u64);
            bytes.extend_from_slice(&SourceRange { offset, bytes: length }.encode());
        }
        bytes
    }
}

impl HashedSession {
    /// A get has found its value on flash, and it lies in local memory.
    pub(super) fn compute_found(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        mut op: Box<HashedOp>,
        found: NearItem,
        matched: &Matched,
    ) {
        let Some(read) = &mut op.kept.read else { unreachable!("the operation reads") };
        let value = match FlashRead::take_value(read, matched) {
            Some((buffer, ranges)) => NearValue::Local(buffer, ranges),
            // The value is in more parts than a source has.
            None => {
                let mut value = Vec::with_capacity(matched.value_bytes as usize);
                read.copy_value(matched, &core.queue, &mut value);
                NearValue::Host(value)
            }
        };
        self.compute((core, engine), number, op, found, value);
    }

    /// Passes a value that was found to the drive's programs, or has the get start over when there is room.
    pub(super) fn compute(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        mut op: Box<HashedOp>,
        NearItem { item, shown_by }: NearItem,
        value: NearValue,
    ) {
        end_read(core, &mut op);
        let Some(near) = &mut op.kept.near else { unreachable!("the get goes through programs") };
        if near.is_cancelled {
            let cancelled = PipelineFailure::new(PipelinePlace::Source, PipelineReason::Cancelled);
            return self.refuse(core, number, op, Error::Pipeline(cancelled));
        }
        let source = match NearSource::new(engine, value) {
            Ok(source) => source,
            Err(error) => return self.refuse(core, number, op, error),
        };
        let attachment_at = source.attachment_at();
        let sink_at = attachment_at + near.attachment.len();
        let bytes = sink_at + near.output_bytes_max as usize;
        if !core.spare_buffers.could_take(bytes, core.base.engines.local_bytes() as usize) {
            let error = format!("local memory never has {bytes} bytes for a pipeline: give the store more memory");
            return self.refuse(core, number, op, Error::Options(error));
        }
        let is_free = self.near_in_flight < NEAR_MAX && near.is_next(core, bytes);
        let work = if is_free { core.spare_buffers.take(bytes) } else { None };
        let Some(mut work) = work else {
            near.stand_in_line(core, bytes);
            return self.wait_for_room(core, number, op);
        };
        let asked = source.encode(near, work.offset());
        core.queue.fill(Purpose::Pipeline, &mut work, 0..asked.len()).copy_from_slice(&asked);
        if let Some(host) = &source.host {
            core.queue.fill(Purpose::Pipeline, &mut work, asked.len()..attachment_at).copy_from_slice(host);
        }
        if !near.attachment.is_empty() {
            core.queue.fill(Purpose::Pipeline, &mut work, attachment_at..sink_at).copy_from_slice(&near.attachment);
        }
        let pipelines = LocalRange { offset: work.offset(), length: PipelineDescriptor::ENCODED_BYTES as u32 };
        let NearSource { source, large, prefix, .. } = source;
        let lease = match source {
            Some(source) => Lease::Buffers([work, source]),
            None => Lease::Buffer(work),
        };
        let command = Command::new(TAG_NEAR | number as u64, Operation::Compute { pipelines }).of(Purpose::Pipeline);
        if core.queue.submit(command, lease).is_err() {
            return self.wait_for_room(core, number, op);
        }
        near.turn = None;
        near.running = Some(NearRun { item, shown_by, prefix: prefix.len(), sink_at, large });
        self.near_in_flight += 1;
        self.ops.put(number, op);
    }

    /// The drive has run the programs over an operation's value.
    pub(super) fn computed(&mut self, (core, engine): HashedMeans<'_>, Returned { completion, lease }: Returned) {
        if completion.tag == TAG_CANCEL {
            return;
        }
        let number = (completion.tag & !TAG_NEAR) as usize;
        self.near_in_flight -= 1;
        let mut op = self.ops.take(number);
        let run = op.kept.near.as_mut().and_then(|near| near.running.take());
        let Some(run) = run else { unreachable!("a completion has a pipeline") };
        let (work, source) = match lease {
            Lease::Buffers([work, source]) => (work, Some(source)),
            lease => (lease.into_buffer(), None),
        };
        source.into_iter().for_each(|buffer| core.spare_buffers.give(buffer));
        if !completion.is_success() {
            return self.refuse(core, number, op, Error::of_command(&engine.drive, "pipeline", &completion));
        }
        let result_at = PipelineDescriptor::RESULT_AT;
        let encoded = core.queue.copy_array_to_host(Purpose::Pipeline, &work, result_at);
        match PipelineResult::decode(&encoded) {
            Ok(Some(PipelineResult::Finished { bytes })) => {
                let values = core.values.current();
                let start = values.len();
                let at = run.sink_at..run.sink_at + bytes as usize;
                core.queue.copy_to_host(Purpose::Pipeline, &work, at, values);
                core.spare_buffers.give(work);
                engine.counters.large_reads.fetch_add(u64::from(run.large.is_some()), Ordering::Relaxed);
                let outcome = op.request.found(run.item, Access::default, core.values.range_from(start));
                core.answer_after(op.token, run.shown_by, outcome);
                self.forget(core, number, op);
            }
            // Others hold the drive's queue, or the local memory for its parts.
            Ok(Some(PipelineResult::Failed(PipelineFailure {
                place: PipelinePlace::Source,
                reason: PipelineReason::QueueFull | PipelineReason::NoLocalMemory,
                ..
            }))) => self.wait_for_room(core, number, op),
            Ok(Some(PipelineResult::Failed(failure))) => self.refuse(core, number, op, run.error(failure)),
            Ok(None) | Err(_) => {
                let error = "the drive gave no result of a pipeline that has ended".into();
                self.refuse(core, number, op, Error::Io(error));
            }
        }
    }
}

impl NearRun {
    /// A failure in terms of the stages that the caller gave.
    fn error(&self, failure: PipelineFailure) -> Error {
        let place = match (failure.place, &self.large) {
            (PipelinePlace::Stage(stage), Some((_, reference))) if usize::from(stage) < self.prefix => {
                if failure.reason == PipelineReason::Program {
                    return corrupt(reference, None);
                }
                PipelinePlace::Source
            }
            (PipelinePlace::Stage(stage), _) => PipelinePlace::Stage(stage - self.prefix as u8),
            (place, _) => place,
        };
        Error::Pipeline(PipelineFailure { place, ..failure })
    }
}
