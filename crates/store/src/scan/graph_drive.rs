//! `SCAN → BC` at the drive: one command, in which the edges stay there.
//!
//! ```text
//! command:  flash ─► scan ─► kept frames ─┬─► betweenness, part 0 ─► local memory
//!           frames of what write buffers  └─► betweenness, part 1 ─► local memory
//!           had: an attachment of these                 │
//! one part:  its result is the nodes with the most ─────┼─► host
//! several:   a second command merges their sums, there ─┴─► the nodes with the most ─► host
//! ```
//! 1. The host learns of the edges no more than their bytes.
//! 2. Frames that are longer than there was room for are scanned again, with more room, as far as local memory goes.

use super::flight::{FlightPlan, attachment};
use super::graph_scan::{GraphOptions, GraphProgress, failure_error, frames_of, slices_of};
use super::layout::{ListLimits, ScanLayout};
use super::query_scan::{QueryError, QueryReport};
use super::segment_lists::SegmentLists;
use super::snapshot::Snapshot;
use crate::blocking::{Item, KeyspaceHandle};
use crate::error::Error;
use crate::hashed::HashedEngine;
use crate::media::io::Io;
use std::sync::Arc;
use std::time::Duration;
use tapetum_drive::programs::TOO_LARGE;
use tapetum_drive::programs::betweenness::{BETWEENNESS, ELSEWHERE};
use tapetum_drive::programs::scan::{SCAN, SCAN_HEAD_BYTES};
use tapetum_drive::{
    ATTACHMENT_BYTES_MAX, Command, Lease, LocalBuffer, LocalRange, Operation, PipelineDescriptor, PipelineFailure,
    PipelineReason, PipelineResult, PipelineSink, PipelineSource, PipelineStage, Purpose, QueuePair, SourceRange,
    Status,
};
use tapetum_kernels::graph::{GraphFailure, GraphStep};
use tapetum_kernels::scan::Query;

/// The number under which the edges are kept.
const EDGES: u64 = 1;
/// Room for edges, at first: a quarter of a million.
const EDGES_BYTES: u32 = 4 << 20;
/// Beside the nodes that are shown: frames' heads, ends with the key of a record that does not fit, slices.
const RESULT_BYTES: usize = 8 << 10;
const PAIR_BYTES: usize = 16;
/// How often the caller hears how far it is.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

pub(super) struct GraphDrive<'a> {
    engine: Arc<HashedEngine>,
    pair: QueuePair,
    query: &'a Query,
    options: &'a GraphOptions,
    scan: PipelineStage,
    betweenness: tapetum_drive::ProgramId,
    /// Of all segments. `None`, if there are none.
    flash: Option<WholeScan>,
    /// Holds what the drive reads.
    layout: SegmentLists,
    /// Frames of what write buffers had.
    buffered: Vec<u8>,
    report: &'a mut QueryReport,
    /// What the program had given out before.
    given_before: u64,
}

/// What a pipeline over all segments reads, and is told.
struct WholeScan {
    ranges: Vec<SourceRange>,
    attachment: Vec<u8>,
}

/// Descriptors, lists and attachments of a command, gathered before it is known where they lie.
struct CommandText {
    base: u64,
    descriptors: Vec<PipelineDescriptor>,
    /// Behind the descriptors.
    tail: Vec<u8>,
    tail_at: usize,
}

impl CommandText {
    fn new(base: u64, pipelines: usize) -> CommandText {
        let tail_at = pipelines * PipelineDescriptor::ENCODED_BYTES;
        CommandText { base, descriptors: Vec::new(), tail: Vec::new(), tail_at }
    }

    fn push(&mut self, bytes: &[u8]) -> LocalRange {
        if bytes.is_empty() {
            return LocalRange::EMPTY;
        }
        let offset = self.base + (self.tail_at + self.tail.len()) as u64;
        self.tail.extend_from_slice(bytes);
        LocalRange { offset, length: bytes.len() as u32 }
    }

    fn push_ranges(&mut self, ranges: &[SourceRange]) -> LocalRange {
        let encoded: Vec<u8> = ranges.iter().flat_map(|range| range.encode()).collect();
        self.push(&encoded)
    }

    fn encode(&self) -> Vec<u8> {
        let mut encoded: Vec<u8> = self.descriptors.iter().flat_map(|descriptor| descriptor.encode()).collect();
        // Of a scan there may be none.
        encoded.resize(self.tail_at, 0);
        encoded.extend_from_slice(&self.tail);
        encoded
    }
}

fn descriptor(
    stage: PipelineStage,
    (source, attachment): (PipelineSource, LocalRange),
    sink: PipelineSink,
) -> PipelineDescriptor {
    let Some(mut descriptor) = PipelineDescriptor::new(&[stage], source, sink) else {
        unreachable!("a pipeline takes one program")
    };
    descriptor.attachment = attachment;
    descriptor
}

impl<'a> GraphDrive<'a> {
    pub fn new(
        keyspace: &KeyspaceHandle,
        (query, options): (&'a Query, &'a GraphOptions),
        report: &'a mut QueryReport,
    ) -> Result<GraphDrive<'a>, QueryError> {
        let engine = keyspace.store().hashed().clone();
        engine.refuse_unservable(keyspace.keyspace())?;
        let mut snapshot = {
            let queue = engine.drive.queue_pair(16).map_err(|error| Error::Io(error.to_string()))?;
            let io = Io::new(queue).of(Purpose::Scan);
            engine.run_beside_maintenance(&io, Snapshot::take(engine.clone(), io.clone(), keyspace.keyspace()))??
        };
        (report.segments, report.buffered) = {
            let buffered = snapshot.buffered.len() + snapshot.elsewhere.len();
            (snapshot.segments.len() as u64, buffered as u64)
        };
        let buffered = buffered_frames(keyspace, query, &mut snapshot)?;
        let program = |(name, version): (&str, u16)| {
            let identity = engine.drive.identity();
            let found =
                identity.programs.iter().find(|program| (&program.name[..], program.version) == (name, version));
            let missing = || Error::Io(format!("the drive has no program {name} {version}"));
            found.map(|program| program.id).ok_or_else(missing)
        };
        let (scan, betweenness) = (program(SCAN)?, program(BETWEENNESS)?);
        let Some(scan) = PipelineStage::new(scan, &[]) else { unreachable!("it has no parameters") };
        let mut layout = SegmentLists::new(snapshot);
        let flash = whole_scan(&mut layout, scan, (keyspace.id().0, query))?;
        // A place more, to cancel by.
        let pair = engine.drive.queue_pair(2).map_err(|error| Error::Io(error.to_string()))?;
        let given_before = given(&engine);
        Ok(GraphDrive {
            engine,
            pair,
            query,
            options,
            scan,
            betweenness,
            flash,
            layout,
            buffered,
            report,
            given_before,
        })
    }

    /// The frames that a [`tapetum_kernels::graph::GraphResult`] is read from.
    pub fn run(&mut self, go_on: &mut dyn FnMut(GraphProgress) -> bool) -> Result<Vec<u8>, QueryError> {
        let mut edges_bytes = EDGES_BYTES;
        loop {
            let ran = match self.options.parts {
                1 => self.run_at_once(edges_bytes, go_on),
                _ => self.run_in_parts(edges_bytes, go_on),
            };
            match ran {
                Err(PartError::Query(error)) => {
                    self.layout.check()?;
                    return Err(error);
                }
                // As far as numbers of 32 bits, and local memory, go.
                Err(PartError::EdgesTooLong) => match edges_bytes.checked_mul(2) {
                    Some(more) => edges_bytes = more,
                    None => return Err(QueryError::GraphTooLarge { memory_bytes: u64::from(edges_bytes) }),
                },
                Ok(frames) => return Ok(frames),
            }
        }
    }

    /// One command: its last pipeline gives the result.
    fn run_at_once(
        &mut self,
        edges_bytes: u32,
        go_on: &mut dyn FnMut(GraphProgress) -> bool,
    ) -> Result<Vec<u8>, PartError> {
        let sink_bytes = self.result_bytes();
        let (buffer, mut text) = self.begin(2, sink_bytes)?;
        self.put_scan(&mut text, edges_bytes);
        let stage = self.stage(GraphStep::Compute, 0);
        self.put_part(&mut text, stage, false);
        let (ends, buffer) = self.command(buffer, text, (sink_bytes, None), go_on)?;
        let Some((at, bytes)) = ends.last().copied() else { unreachable!("each pipeline has an end") };
        Ok(self.take_result(&buffer, at, bytes))
    }

    /// A command for the edges, one for all parts, one that merges what they gave.
    fn run_in_parts(
        &mut self,
        edges_bytes: u32,
        go_on: &mut dyn FnMut(GraphProgress) -> bool,
    ) -> Result<Vec<u8>, PartError> {
        let mut edges = self.buffered.len();
        if self.flash.is_some() {
            let (buffer, mut text) = self.begin(1, 0)?;
            self.put_scan(&mut text, edges_bytes);
            let (ends, _) = self.command(buffer, text, (0, None), go_on)?;
            edges += ends[0].1;
        }
        // An edge has more bytes than a node, and two nodes at most.
        let sink_bytes = 2 * edges + RESULT_BYTES;
        let parts = self.options.parts;
        let (buffer, mut text) = self.begin(parts.into(), sink_bytes)?;
        for part in 0..parts {
            let stage = self.stage(GraphStep::Compute, part);
            self.put_part(&mut text, stage, true);
        }
        let (ends, sums) = self.command(buffer, text, (sink_bytes, None), go_on)?;
        let result_bytes = self.result_bytes();
        let (buffer, mut text) = self.begin(1, result_bytes)?;
        let range =
            |(at, bytes): &(usize, usize)| SourceRange { offset: sums.offset() + *at as u64, bytes: *bytes as u64 };
        let ranges: Vec<SourceRange> = ends.iter().map(range).collect();
        let list = text.push_ranges(&ranges);
        let into = PipelineSink::Host { into: LocalRange::EMPTY };
        let source = (PipelineSource::Local { list }, LocalRange::EMPTY);
        text.descriptors.push(descriptor(self.stage(GraphStep::Merge, 0), source, into));
        let (ends, buffer) = self.command(buffer, text, (result_bytes, Some(sums)), go_on)?;
        Ok(self.take_result(&buffer, ends[0].0, ends[0].1))
    }

    fn result_bytes(&self) -> usize {
        RESULT_BYTES + PAIR_BYTES * self.options.top as usize
    }

    /// A buffer with room for so many descriptors, for what belongs to them, and for a result of each.
    fn begin(&self, pipelines: usize, sink_bytes: usize) -> Result<(LocalBuffer, CommandText), PartError> {
        let flash = self
            .flash
            .as_ref()
            .map_or(0, |WholeScan { ranges, attachment }| ranges.len() * SourceRange::ENCODED_BYTES + attachment.len());
        let list = pipelines.max(usize::from(self.options.parts)) * SourceRange::ENCODED_BYTES;
        let each = PipelineDescriptor::ENCODED_BYTES + sink_bytes;
        let bytes = pipelines * each + flash + list + self.buffered.len();
        let buffer = self.engine.drive.local().allocate(bytes);
        let buffer = buffer.ok_or_else(|| PartError::Query(no_room(bytes as u64)))?;
        let text = CommandText::new(buffer.offset(), pipelines);
        Ok((buffer, text))
    }

    fn stage(&self, step: GraphStep, part: u8) -> PipelineStage {
        let plan = self.options.plan(step, part, self.query.policy());
        let Some(stage) = PipelineStage::new(self.betweenness, &plan.encode()) else {
            unreachable!("a plan fits parameters")
        };
        stage
    }

    fn put_scan(&self, text: &mut CommandText, bytes_max: u32) {
        let Some(WholeScan { ranges, attachment }) = &self.flash else { return };
        let (list, attachment) = (text.push_ranges(ranges), text.push(attachment));
        let sink = PipelineSink::Kept { id: EDGES, bytes_max };
        text.descriptors.push(descriptor(self.scan, (PipelineSource::Flash { list }, attachment), sink));
    }

    fn put_part(&self, text: &mut CommandText, stage: PipelineStage, stays: bool) {
        let source = match self.flash {
            Some(_) => PipelineSource::Kept { id: EDGES, stays },
            None => PipelineSource::Local { list: LocalRange::EMPTY },
        };
        // The host's edges are attached once, and all parts are shown them.
        let attached = text.descriptors.iter().map(|before| before.attachment).next_back();
        let attachment = match attached {
            Some(attachment)
                if text.descriptors.iter().all(|before| matches!(before.sink, PipelineSink::Host { .. })) =>
            {
                attachment
            }
            _ => text.push(&self.buffered),
        };
        text.descriptors.push(descriptor(stage, (source, attachment), PipelineSink::Host { into: LocalRange::EMPTY }));
    }

    /// Runs a command; of each of its pipelines, where in the buffer its result is and how long. `source` is what they read beside it.
    fn command(
        &mut self,
        mut buffer: LocalBuffer,
        mut text: CommandText,
        (sink_bytes, source): (usize, Option<LocalBuffer>),
        go_on: &mut dyn FnMut(GraphProgress) -> bool,
    ) -> Result<(Vec<(usize, usize)>, LocalBuffer), PartError> {
        let first_sink = text.tail_at + text.tail.len();
        let sink_at = |place: usize| first_sink + place * sink_bytes;
        for (place, descriptor) in text.descriptors.iter_mut().enumerate() {
            if let PipelineSink::Host { into } = &mut descriptor.sink {
                *into = LocalRange { offset: text.base + sink_at(place) as u64, length: sink_bytes as u32 };
            }
        }
        let count = text.descriptors.len();
        let asked = text.encode();
        self.pair.fill(Purpose::Scan, &mut buffer, 0..asked.len()).copy_from_slice(&asked);
        let length = (count * PipelineDescriptor::ENCODED_BYTES) as u32;
        let pipelines = LocalRange { offset: buffer.offset(), length };
        let command = Command::new(0, Operation::Compute { pipelines }).of(Purpose::Scan);
        let lease = match source {
            Some(source) => Lease::Buffers([buffer, source]),
            None => Lease::Buffer(buffer),
        };
        if self.pair.submit(command, lease).is_err() {
            return Err(PartError::Query(Error::Io("a queue of two places was full".into()).into()));
        }
        self.report.commands += 1;
        self.report.wake_ups += 1;
        self.report.sent_bytes += asked.len() as u64;
        let buffer = self.wait(go_on)?;
        let mut ends = Vec::new();
        for place in 0..count {
            let at = place * PipelineDescriptor::ENCODED_BYTES + PipelineDescriptor::RESULT_AT;
            let encoded = self.pair.copy_array_to_host(Purpose::Scan, &buffer, at);
            self.report.returned_bytes += encoded.len() as u64;
            match PipelineResult::decode(&encoded) {
                Ok(Some(PipelineResult::Finished { bytes })) => ends.push((sink_at(place), bytes as usize)),
                Ok(Some(PipelineResult::Failed(failure))) => return Err(self.failed(failure)),
                Ok(None) | Err(_) => {
                    let none = Error::Io("the drive gave no result of a pipeline that has ended".into());
                    return Err(PartError::Query(none.into()));
                }
            }
        }
        if text.descriptors.iter().any(|descriptor| matches!(descriptor.sink, PipelineSink::Kept { .. }))
            && let Some(WholeScan { ranges, .. }) = &self.flash
        {
            self.report.flash_bytes += ranges.iter().map(|range| range.bytes).sum::<u64>();
        }
        Ok((ends, buffer))
    }

    /// Waits for the command, and tells how far it is.
    fn wait(&mut self, go_on: &mut dyn FnMut(GraphProgress) -> bool) -> Result<LocalBuffer, PartError> {
        let (mut returned, mut is_cancelled) = (Vec::new(), false);
        loop {
            self.pair.poll(&mut returned);
            let ended = returned.iter().position(|returned| !matches!(returned.lease, Lease::Nothing));
            if let Some(ended) = ended {
                let returned = returned.swap_remove(ended);
                if returned.completion.status != Status::Success {
                    let error = Error::of_command(&self.engine.drive, "graph", &returned.completion);
                    return Err(PartError::Query(error.into()));
                }
                return Ok(match returned.lease {
                    Lease::Buffers([buffer, _]) => buffer,
                    lease => lease.into_buffer(),
                });
            }
            let slices = self.options.slices();
            let slices_done = slices_of(given(&self.engine).saturating_sub(self.given_before)).min(slices);
            if !is_cancelled && !go_on(GraphProgress { slices_done, slices }) {
                is_cancelled = true;
                let cancel = Command::new(1, Operation::Cancel { tag: 0, pipeline: None }).of(Purpose::Scan);
                // The queue has a place for it.
                let _ = self.pair.submit(cancel.quiet(), Lease::Nothing);
            }
            self.pair.wait(Some(PROGRESS_EVERY));
        }
    }

    fn take_result(&mut self, buffer: &LocalBuffer, at: usize, bytes: usize) -> Vec<u8> {
        let mut frames = Vec::with_capacity(bytes);
        self.pair.copy_to_host(Purpose::Scan, buffer, at..at + bytes, &mut frames);
        self.report.returned_bytes += bytes as u64;
        frames
    }

    fn failed(&self, failure: PipelineFailure) -> PartError {
        let is_of_program = failure.reason == PipelineReason::Program;
        let says = |status| matches!(status, Status::Program(number) if u32::from(number) == failure.detail);
        PartError::Query(match failure.reason {
            PipelineReason::OutputTooLong => return PartError::EdgesTooLong,
            PipelineReason::Cancelled => QueryError::Cancelled,
            PipelineReason::NoLocalMemory => no_room(failure.detail.into()),
            _ if is_of_program && says(TOO_LARGE) => failure_error(GraphFailure::TooLarge, self.options),
            _ if is_of_program && says(ELSEWHERE) => failure_error(GraphFailure::Elsewhere, self.options),
            _ if is_of_program && says(tapetum_drive::programs::CORRUPT) => {
                Error::Corrupt("a record in a segment; `check` says where".into()).into()
            }
            _ => Error::Pipeline(failure).into(),
        })
    }
}

/// What one pipeline over all segments reads, and is told; none, if there are no segments.
fn whole_scan(
    layout: &mut SegmentLists,
    stage: PipelineStage,
    (keyspace, query): (u16, &Query),
) -> Result<Option<WholeScan>, QueryError> {
    let mut encoded = Vec::new();
    query.encode(&mut encoded);
    let limits = ListLimits::beside(SCAN_HEAD_BYTES + encoded.len(), u64::MAX);
    let Some(list) = layout.next(&limits)? else { return Ok(None) };
    if layout.next(&limits)?.is_some() {
        return Err(QueryError::TooManySegments);
    }
    let plan = FlightPlan { stage, keyspace, query: &encoded, is_row_by_row: false, room: 0 };
    let attachment = attachment(&plan, &list);
    Ok(Some(WholeScan { ranges: list.ranges, attachment }))
}

/// Why a try gave no result.
enum PartError {
    /// More edges than there was room for.
    EdgesTooLong,
    Query(QueryError),
}

fn no_room(bytes: u64) -> QueryError {
    let mib = (bytes >> 20).max(1);
    Error::Options(format!(
        "local memory has no {mib}MiB for a graph: give the store more memory, or narrow the condition"
    ))
    .into()
}

/// What the program has given out since the drive was made.
fn given(engine: &HashedEngine) -> u64 {
    let stages = engine.drive.stage_counters();
    stages.iter().find(|stage| stage.name == BETWEENNESS.0).map_or(0, |stage| stage.bytes_out)
}

/// The query over what write buffers had.
fn buffered_frames(keyspace: &KeyspaceHandle, query: &Query, snapshot: &mut Snapshot) -> Result<Vec<u8>, QueryError> {
    let mut frames = Vec::new();
    let (buffered, elsewhere) = (std::mem::take(&mut snapshot.buffered), std::mem::take(&mut snapshot.elsewhere));
    let item = |value: Vec<u8>| Item { value, flags: 0, expiry: 0, stamp: 0 };
    let here = buffered.into_iter().map(|buffered| Ok((buffered.key, item(buffered.value))));
    // Deleted since, if it is gone.
    let read = |key: Box<[u8]>| keyspace.get(&key).map(|found| found.map(|item| (key.to_vec(), item))).transpose();
    let there = elsewhere.into_iter().filter_map(|record| read(record.key));
    frames_of(here.chain(there), query, &mut |more| {
        frames.extend_from_slice(more);
        if frames.len() > ATTACHMENT_BYTES_MAX { Err(QueryError::TooManyReplaced) } else { Ok(()) }
    })?;
    Ok(frames)
}
