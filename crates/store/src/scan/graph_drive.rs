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
//! 2. Edges that are more than one scan gives, or lie in values out of line, and those of ordered keyspaces, are gathered first, by as many
//!    scans as it takes ([`super::graph_gather`]); the second pipeline is a command of its own then, over local memory.

use super::drive_side::{CONCAT, FLASH_DEPTH, part_bytes};
use super::graph_command::{CommandText, descriptor};
use super::graph_gather::{GatheredEdges, extend_attached};
use super::graph_scan::{GraphOptions, GraphProgress, failure_error, frames_of, slices_of};
use super::graph_source::{WholeScan, graph_layout, whole_scan};
use super::moment::{MissedRead, MomentLayout, moment_io};
use super::query_scan::{QueryError, QueryReport};
use crate::api::blocking::{Item, KeyspaceHandle};
use crate::ordered::frozen::FrozenTree;
use std::sync::Arc;
use std::time::Duration;
use tapetum_base::base::Base;
use tapetum_base::engine::scan_layout::ScanLayout;
use tapetum_base::error::Error;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_drive::programs::TOO_LARGE;
use tapetum_drive::programs::betweenness::{BETWEENNESS, ELSEWHERE};
use tapetum_drive::programs::scan::SCAN;
use tapetum_drive::{
    Command, Lease, LocalBuffer, LocalRange, Operation, PipelineDescriptor, PipelineFailure, PipelineReason,
    PipelineResult, PipelineSink, PipelineSource, PipelineStage, ProgramId, Purpose, QueuePair, SourceRange, Status,
};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::graph::{GraphFailure, GraphStep};
use tapetum_kernels::scan::Query;

/// The number under which the edges are kept.
const EDGES: u64 = 1;
/// Room for edges, at first: a quarter of a million.
const EDGES_BYTES: usize = 4 << 20;
/// The input of one scan takes at most one part in this many of local memory: edges are shorter than the records that have them.
const EDGES_SHARE: usize = 8;
/// Beside the nodes that are shown: frames' heads, ends with the key of a record that does not fit, slices.
const RESULT_BYTES: usize = 8 << 10;
const PAIR_BYTES: usize = 16;
/// How often the caller hears how far it is.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

pub(super) struct GraphDrive<'a> {
    base: Arc<Base>,
    pub(super) handle: KeyspaceHandle,
    pub(super) keyspace: u16,
    pub(super) pair: QueuePair,
    pub(super) query: &'a Query,
    options: &'a GraphOptions,
    pub(super) scan: PipelineStage,
    betweenness: ProgramId,
    pub(super) concat: ProgramId,
    /// The scan of all segments, if one scan may do.
    flash: Option<WholeScan>,
    /// All edges that the drive has, if they were gathered.
    gathered: Option<GatheredEdges>,
    /// Holds what the drive reads.
    pub(super) layout: Box<dyn ScanLayout>,
    /// Of an ordered keyspace, for keys that scans missed.
    tree: Option<Arc<FrozenTree>>,
    /// Frames of what the host has: of write buffers, and of keys that scans missed.
    buffered: Vec<u8>,
    pub(super) report: &'a mut QueryReport,
    /// Bytes that the program had given out before.
    given_before: u64,
    /// Room for edges, at first.
    edges_bytes: usize,
    /// Edges are gathered even if one scan would do, for tests.
    gathers: bool,
}

impl<'a> GraphDrive<'a> {
    pub fn new(
        keyspace: &KeyspaceHandle,
        query: &'a Query,
        options: &'a GraphOptions,
        report: &'a mut QueryReport,
    ) -> Result<GraphDrive<'a>, QueryError> {
        let base = keyspace.store().hashed().base.clone();
        let is_hashed = keyspace.keyspace().kind() == KeyspaceKind::Hashed;
        let (MomentLayout { mut layout, tree, .. }, buffered) = graph_layout(keyspace, query, report)?;
        let program = |(name, version): (&str, u16)| {
            let identity = base.drive.identity();
            let found =
                identity.programs.iter().find(|program| (&program.name[..], program.version) == (name, version));
            let missing = || Error::Io(format!("the drive has no program {name} {version}"));
            found.map(|program| program.id).ok_or_else(missing)
        };
        let (scan, betweenness, concat) = (program(SCAN)?, program(BETWEENNESS)?, program(CONCAT)?);
        let Some(scan) = PipelineStage::new(scan, &[]) else { unreachable!("it has no parameters") };
        let keyspace_id = keyspace.id().0;
        let flash = if is_hashed { whole_scan(&mut *layout, scan, keyspace_id, query)? } else { None };
        // A place more, to cancel by.
        let pair = base.drive.queue_pair_of_parts(FLASH_DEPTH, part_bytes(&base.drive));
        let pair = pair.map_err(|error| Error::Io(error.to_string()))?;
        let given_before = given(&base);
        Ok(GraphDrive {
            base,
            handle: keyspace.clone(),
            keyspace: keyspace_id,
            pair,
            query,
            options,
            scan,
            betweenness,
            concat,
            flash,
            gathered: None,
            layout,
            tree,
            buffered,
            report,
            given_before,
            edges_bytes: EDGES_BYTES,
            gathers: false,
        })
    }

    /// Begins with little room for edges.
    #[cfg(test)]
    pub fn within(self, edges_bytes: usize) -> GraphDrive<'a> {
        GraphDrive { edges_bytes, gathers: true, ..self }
    }

    /// The frames that a [`tapetum_kernels::graph::GraphResult`] is read from.
    pub fn run(&mut self, go_on: &mut dyn FnMut(GraphProgress) -> bool) -> Result<Vec<u8>, QueryError> {
        let is_gathered = !self.fits_one_scan();
        if is_gathered {
            self.gather_again(go_on)?;
        }
        match self.run_parts(go_on) {
            Err(PartError::EdgesTooLong | PartError::Elsewhere) if !is_gathered => {
                self.gather_again(go_on)?;
                self.run_parts(go_on).map_err(|error| self.query_error(error))
            }
            ran => ran.map_err(|error| self.query_error(error)),
        }
    }

    /// Whether the edges of all that is read surely have room, in a part of local memory.
    fn fits_one_scan(&self) -> bool {
        let share = self.base.drive.local().bytes_total() / EDGES_SHARE;
        !self.gathers && self.flash.as_ref().is_some_and(|flash| flash.bytes() <= share.max(self.edges_bytes) as u64)
    }

    fn run_parts(&mut self, go_on: &mut dyn FnMut(GraphProgress) -> bool) -> Result<Vec<u8>, PartError> {
        let bytes = self.flash.as_ref().map_or(0, WholeScan::bytes).max(self.edges_bytes as u64) as u32;
        match self.options.parts {
            1 => self.run_at_once(bytes, go_on),
            _ => self.run_in_parts(bytes, go_on),
        }
    }

    fn query_error(&self, error: PartError) -> QueryError {
        match (error, self.layout.check()) {
            (_, Err(error)) => error.into(),
            (PartError::Query(error), Ok(())) => error,
            (PartError::EdgesTooLong | PartError::Elsewhere, Ok(())) => QueryError::Result,
        }
    }

    /// Has all edges in one buffer at the drive, and what the scans missed with the host.
    fn gather_again(&mut self, go_on: &mut dyn FnMut(GraphProgress) -> bool) -> Result<(), QueryError> {
        if let Some(WholeScan { id, .. }) = self.flash.take() {
            self.layout.again(id, None)?;
        }
        let base = self.base.clone();
        let gathered = self.gather(&base, self.edges_bytes, go_on);
        let (edges, missed) = gathered.map_err(|error| self.query_error(PartError::Query(error)))?;
        self.gathered = Some(edges);
        if !missed.is_empty() {
            let mut frames = std::mem::take(&mut self.buffered);
            let Some(tree) = self.tree.clone() else { return Err(QueryError::Result) };
            let io = moment_io(&self.handle)?;
            let mut left = Some(MissedRead::new(tree, io.clone(), missed));
            while let Some(reading) = left {
                let (items, rest) = self.handle.store().hashed().run_beside_maintenance(&io, reading.part())??;
                left = rest;
                self.report.scanned += items.len() as u64;
                let item = |(key, value)| Ok((key, Item { value, flags: 0, expiry: Expiry::NONE, stamp: 0 }));
                frames_of(items.into_iter().map(item), self.query, &mut |more| extend_attached(&mut frames, more))?;
            }
            self.buffered = frames;
        }
        Ok(())
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
        let edges = self.gathered.take().map(|edges| edges.buffer);
        let (ends, buffer) = self.command(buffer, text, sink_bytes, edges, go_on)?;
        let Some((at, bytes)) = ends.last().copied() else { unreachable!("each pipeline has an end") };
        Ok(self.take_result(&buffer, at, bytes))
    }

    /// Runs a command for the edges, one for all parts, and one that merges the parts' results.
    fn run_in_parts(
        &mut self,
        edges_bytes: u32,
        go_on: &mut dyn FnMut(GraphProgress) -> bool,
    ) -> Result<Vec<u8>, PartError> {
        let gathered = self.gathered.as_ref().map_or(&[][..], |edges| &edges.frames);
        let mut edges = self.buffered.len() + gathered.iter().map(|(_, bytes)| bytes).sum::<usize>();
        if self.flash.is_some() {
            let (buffer, mut text) = self.begin(1, 0)?;
            self.put_scan(&mut text, edges_bytes);
            let (ends, _) = self.command(buffer, text, 0, None, go_on)?;
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
        let gathered = self.gathered.take().map(|edges| edges.buffer);
        let (ends, sums) = self.command(buffer, text, sink_bytes, gathered, go_on)?;
        let result_bytes = self.result_bytes();
        let (buffer, mut text) = self.begin(1, result_bytes)?;
        let range =
            |(at, bytes): &(usize, usize)| SourceRange { offset: sums.offset() + *at as u64, bytes: *bytes as u64 };
        let ranges: Vec<SourceRange> = ends.iter().map(range).collect();
        let list = text.push_ranges(&ranges);
        let into = PipelineSink::Host { into: LocalRange::EMPTY };
        let (stage, source) = (self.stage(GraphStep::Merge, 0), PipelineSource::Local { list });
        text.descriptors.push(descriptor(stage, source, LocalRange::EMPTY, into));
        let (ends, buffer) = self.command(buffer, text, result_bytes, Some(sums), go_on)?;
        Ok(self.take_result(&buffer, ends[0].0, ends[0].1))
    }

    fn result_bytes(&self) -> usize {
        RESULT_BYTES + PAIR_BYTES * self.options.top as usize
    }

    /// A buffer with room for `pipelines` descriptors, for the data that belongs to them, and for a result of each.
    fn begin(&self, pipelines: usize, sink_bytes: usize) -> Result<(LocalBuffer, CommandText), PartError> {
        let flash = self.flash.as_ref().map_or(0, |WholeScan { ranges, attachment, .. }| {
            ranges.len() * SourceRange::ENCODED_BYTES + attachment.len()
        });
        let gathered = self.gathered.as_ref().map_or(0, |edges| edges.frames.len());
        let list = (pipelines.max(usize::from(self.options.parts)) + gathered) * SourceRange::ENCODED_BYTES;
        let each = PipelineDescriptor::ENCODED_BYTES + sink_bytes;
        let bytes = pipelines * each + flash + list + self.buffered.len();
        let buffer = self.base.drive.local().allocate(bytes);
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
        let Some(WholeScan { ranges, attachment, .. }) = &self.flash else { return };
        let (list, attachment) = (text.push_ranges(ranges), text.push(attachment));
        let sink = PipelineSink::Kept { id: EDGES, bytes_max };
        text.descriptors.push(descriptor(self.scan, PipelineSource::Flash { list }, attachment, sink));
    }

    fn put_part(&self, text: &mut CommandText, stage: PipelineStage, stays: bool) {
        let list_before = text.descriptors.iter().find_map(|before| match before.source {
            PipelineSource::Local { list } => Some(list),
            _ => None,
        });
        let source = match (&self.flash, &self.gathered) {
            (Some(_), _) => PipelineSource::Kept { id: EDGES, stays },
            (None, None) => PipelineSource::Local { list: LocalRange::EMPTY },
            // All parts are shown one list.
            (None, Some(edges)) => PipelineSource::Local {
                list: list_before.unwrap_or_else(|| {
                    let offset = edges.buffer.offset();
                    let range = |(at, bytes): &(usize, usize)| SourceRange {
                        offset: offset + *at as u64,
                        bytes: *bytes as u64,
                    };
                    text.push_ranges(&edges.frames.iter().map(range).collect::<Vec<_>>())
                }),
            },
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
        text.descriptors.push(descriptor(stage, source, attachment, PipelineSink::Host { into: LocalRange::EMPTY }));
    }

    /// Runs a command. Gives, for each of its pipelines, the offset and length of its result in the buffer. `source` is read by them beside it.
    fn command(
        &mut self,
        mut buffer: LocalBuffer,
        mut text: CommandText,
        sink_bytes: usize,
        source: Option<LocalBuffer>,
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
        let application = self.handle.application().0;
        text.descriptors.iter_mut().for_each(|descriptor| descriptor.application = application);
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

    /// Waits for the command, and reports its progress.
    pub(super) fn wait(&mut self, go_on: &mut dyn FnMut(GraphProgress) -> bool) -> Result<LocalBuffer, PartError> {
        let (mut returned, mut is_cancelled) = (Vec::new(), false);
        loop {
            self.pair.poll(&mut returned);
            let ended = returned.iter().position(|returned| !matches!(returned.lease, Lease::Nothing));
            if let Some(ended) = ended {
                let returned = returned.swap_remove(ended);
                if returned.completion.status != Status::Success {
                    let error = Error::of_command(&self.base.drive, "graph", &returned.completion);
                    return Err(PartError::Query(error.into()));
                }
                return Ok(match returned.lease {
                    Lease::Buffers([buffer, _]) => buffer,
                    lease => lease.into_buffer(),
                });
            }
            if !is_cancelled && !go_on(self.progress()) {
                is_cancelled = true;
                let cancel = Command::new(1, Operation::Cancel { tag: 0, pipeline: None }).of(Purpose::Scan);
                // The queue has a place for it.
                let _ = self.pair.submit(cancel, Lease::Nothing);
            }
            self.pair.wait(Some(PROGRESS_EVERY));
        }
    }

    pub(super) fn progress(&self) -> GraphProgress {
        let slices = self.options.slices();
        let slices_done = slices_of(given(&self.base).saturating_sub(self.given_before)).min(slices);
        GraphProgress { slices_done, slices }
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
        match failure.reason {
            PipelineReason::OutputTooLong => PartError::EdgesTooLong,
            _ if is_of_program && says(ELSEWHERE) => PartError::Elsewhere,
            _ => PartError::Query(self.in_words(failure)),
        }
    }

    pub(super) fn in_words(&self, failure: PipelineFailure) -> QueryError {
        let is_of_program = failure.reason == PipelineReason::Program;
        let says = |status| matches!(status, Status::Program(number) if u32::from(number) == failure.detail);
        match failure.reason {
            PipelineReason::Cancelled => QueryError::Cancelled,
            PipelineReason::NoLocalMemory => no_room(failure.detail.into()),
            _ if is_of_program && says(TOO_LARGE) => failure_error(GraphFailure::TooLarge, self.options),
            _ if is_of_program && says(tapetum_drive::programs::CORRUPT) => {
                Error::Corrupt("a record in a segment; `check` says where".into()).into()
            }
            _ => Error::Pipeline(failure).into(),
        }
    }
}

/// Why a try gave no result.
pub(super) enum PartError {
    /// More edges than there was room for.
    EdgesTooLong,
    /// Some lie in values out of line.
    Elsewhere,
    Query(QueryError),
}

pub(super) fn no_room(bytes: u64) -> QueryError {
    let mib = (bytes >> 20).max(1);
    Error::Options(format!(
        "local memory has no {mib}MiB for a graph: give the store more memory, or narrow the condition"
    ))
    .into()
}

/// Bytes that the program has given out since the drive was made.
fn given(base: &Base) -> u64 {
    let stages = base.drive.stage_counters();
    stages.iter().find(|stage| stage.name == BETWEENNESS.0).map_or(0, |stage| stage.bytes_out)
}
