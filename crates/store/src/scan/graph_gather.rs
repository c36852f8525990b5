//! Edges that take more than one list: they are gathered in one buffer at the drive, scan by scan, before anything is computed of them.
//!
//! ```text
//! buffer:  text of a scan · its frames │ text of the next one · its frames │ … room
//!                              └─ heads ─► host: it passes over rows, and takes what else frames say ─┬─► values out of line ─► lists
//!                                                                                                     ├─► missed keys ─► scans, host
//!                                                                                                     └─► the rest of a list ─► lists
//! ```
//! 1. Of rows the host sees only the heads of their frames: eight bytes for up to a thousand rows.
//! 2. Frames that the host has handled are marked, so that a reader of the edges passes over them.
//! 3. A buffer without room is followed by one of twice its length, and the drive copies the frames.

use super::flight::{FlightPlan, ListOf, attachment};
use super::graph_command::descriptor;
use super::graph_drive::{GraphDrive, PartError, no_room};
use super::graph_scan::GraphProgress;
use super::query_scan::{QueryError, check_misfits};
use super::values::ValueLists;
use std::sync::Arc;
use tapetum_base::base::Base;
use tapetum_base::engine::scan_layout::{ListLimits, ScanList};
use tapetum_base::error::Error;
use tapetum_drive::programs::room_needed;
use tapetum_drive::programs::scan::SCAN_HEAD_BYTES;
use tapetum_drive::{
    ATTACHMENT_BYTES_MAX, Command, Lease, LocalBuffer, LocalRange, Operation, PipelineDescriptor, PipelineResult,
    PipelineSink, PipelineSource, Purpose, SOURCE_RANGES_MAX, SourceRange,
};
use tapetum_kernels::scan::result::{DeferredRecord, MissedKeys, StoppedRun};
use tapetum_kernels::scan::run::{FRAME_HEAD_BYTES, FrameKind};
use tapetum_kernels::scan::{QueryResult, Scalar};

/// Approximate bytes that a scan reads, at most.
const READ_BYTES: u64 = 64 << 20;
/// Less room is not worth a scan.
const ROOM_MIN: usize = 64 << 10;

pub(super) struct GatheredEdges {
    pub buffer: LocalBuffer,
    /// Offset and length of each piece of frames in it.
    pub frames: Vec<(usize, usize)>,
    end: usize,
}

/// The state of a gathering.
struct GatherState {
    edges: GatheredEdges,
    values: ValueLists,
    missed: Vec<MissedKeys>,
    /// The result of all frames that are not rows.
    result: QueryResult,
}

type GoOn<'g> = &'g mut dyn FnMut(GraphProgress) -> bool;

impl GraphDrive<'_> {
    /// Gathers all edges of a layout, and what its scans missed.
    pub(super) fn gather(
        &mut self,
        base: &Arc<Base>,
        edges_bytes: usize,
        go_on: GoOn<'_>,
    ) -> Result<(GatheredEdges, Vec<MissedKeys>), QueryError> {
        let buffer = base.drive.local().allocate(edges_bytes).ok_or_else(|| no_room(edges_bytes as u64))?;
        let mut state = GatherState {
            edges: GatheredEdges { buffer, frames: Vec::new(), end: 0 },
            values: ValueLists::default(),
            missed: Vec::new(),
            result: QueryResult::new(self.query),
        };
        let mut query = Vec::new();
        self.query.encode(&mut query);
        let limits = ListLimits::beside(SCAN_HEAD_BYTES + query.len(), READ_BYTES);
        while let Some((of, list)) = self.next_edges(base, &limits, &mut state)? {
            if list.piece_count == 0 {
                state.missed.extend(list.missed);
                self.layout.release(list.id);
                continue;
            }
            state = self.scan_edges(base, of, list, &query, state, go_on)?;
            check_misfits(self.query, &state.result)?;
        }
        Ok((state.edges, state.missed))
    }

    fn next_edges(
        &mut self,
        base: &Base,
        limits: &ListLimits,
        state: &mut GatherState,
    ) -> Result<Option<(ListOf, ScanList)>, QueryError> {
        if let Some(list) = self.layout.next(limits)? {
            return Ok(Some((ListOf::Layout, list)));
        }
        let (store, keyspace, layout) = (base.store_id, self.keyspace, &self.layout);
        let home = |record: &DeferredRecord| layout.value(record);
        let list = state.values.next(limits, store, keyspace, &mut state.missed, home)?;
        Ok(list.map(|list| (ListOf::Values, list)))
    }

    /// One scan behind what was gathered.
    fn scan_edges(
        &mut self,
        base: &Base,
        of: ListOf,
        mut list: ScanList,
        query: &[u8],
        mut state: GatherState,
        go_on: GoOn<'_>,
    ) -> Result<GatherState, QueryError> {
        let (stage, keyspace, application) = (self.scan, self.keyspace, self.handle.application());
        let told = |room| FlightPlan { stage, application, keyspace, query, is_row_by_row: false, room };
        let list_at = PipelineDescriptor::ENCODED_BYTES;
        let attachment_at = list_at + list.ranges.len() * SourceRange::ENCODED_BYTES;
        let sink_at = (attachment_at + attachment(&told(0), &list).len()).next_multiple_of(8);
        let first = state.edges.end.next_multiple_of(8);
        if state.edges.frames.len() == SOURCE_RANGES_MAX {
            return Err(QueryError::GraphTooLarge { memory_bytes: state.edges.end as u64 });
        }
        while first + sink_at + ROOM_MIN > state.edges.buffer.len() {
            state.edges = self.grow(base, state.edges, go_on)?;
        }
        let GatheredEdges { mut buffer, mut frames, .. } = state.edges;
        let room = buffer.len() - first - sink_at;
        let attachment = attachment(&told(room as u32), &list);
        let offset = buffer.offset() + first as u64;
        let at = |at: usize, length: usize| LocalRange { offset: offset + at as u64, length: length as u32 };
        let source = PipelineSource::Flash { list: at(list_at, attachment_at - list_at) };
        let sink = PipelineSink::Host { into: at(sink_at, room) };
        let mut descriptor = descriptor(stage, source, at(attachment_at, attachment.len()), sink);
        descriptor.application = application.0;
        let mut asked = descriptor.encode().to_vec();
        list.ranges.iter().for_each(|range| asked.extend_from_slice(&range.encode()));
        asked.extend_from_slice(&attachment);
        self.pair.fill(Purpose::Scan, &mut buffer, first..first + asked.len()).copy_from_slice(&asked);
        self.report.sent_bytes += asked.len() as u64;
        let lease = match list.copies.take() {
            Some(copies) => Lease::Buffers([buffer, copies]),
            None => Lease::Buffer(buffer),
        };
        let buffer = self.run_command(Operation::Compute { pipelines: at(0, list_at) }, lease, go_on)?;
        let result_at = first + PipelineDescriptor::RESULT_AT;
        let encoded = self.pair.copy_array_to_host(Purpose::Scan, &buffer, result_at);
        self.report.returned_bytes += encoded.len() as u64;
        let bytes = match PipelineResult::decode(&encoded) {
            Ok(Some(PipelineResult::Finished { bytes })) => bytes as usize,
            Ok(Some(PipelineResult::Failed(failure))) => {
                let Some(room) = room_needed(&failure) else { return Err(self.in_words(failure)) };
                self.list_again(of, list.id, None, &mut state.values)?;
                state.edges = GatheredEdges { buffer, frames, end: first };
                while state.edges.buffer.len() < first + sink_at + room {
                    state.edges = self.grow(base, state.edges, go_on)?;
                }
                return Ok(state);
            }
            Ok(None) | Err(_) => {
                return Err(Error::Io("the drive gave no result of a scan that has ended".into()).into());
            }
        };
        while of == ListOf::Layout && !self.layout.may_show(list.id)? {
            self.hear(go_on)?;
            std::thread::yield_now();
        }
        let at = first + sink_at;
        frames.push((at, bytes));
        state.edges = GatheredEdges { buffer, frames, end: at + bytes };
        self.look_at_heads(at, &mut state)?;
        state.values.add(state.result.take_deferred());
        state.missed.extend(state.result.take_missed());
        let stopped = state.result.take_stopped();
        let mut taken_bytes = stopped.as_ref().map_or(u64::MAX, |stopped| stopped.taken_bytes);
        for range in &list.ranges {
            let taken = range.bytes.min(taken_bytes);
            taken_bytes -= taken;
            self.report.flash_bytes += if range.local().is_none() { taken } else { 0 };
        }
        match (stopped, of) {
            (None, ListOf::Layout) => self.layout.release(list.id),
            (None, ListOf::Values) => state.values.release(list.id),
            (stopped, _) => {
                self.list_again(of, list.id, stopped.as_ref(), &mut state.values)?;
                // The rest would take many short scans.
                state.edges = self.grow(base, state.edges, go_on)?;
            }
        }
        Ok(state)
    }

    fn list_again(
        &mut self,
        of: ListOf,
        id: u64,
        stopped: Option<&StoppedRun>,
        values: &mut ValueLists,
    ) -> Result<(), QueryError> {
        match of {
            ListOf::Layout => self.layout.again(id, stopped)?,
            ListOf::Values => values.again(id, stopped),
        }
        Ok(())
    }

    /// Goes from one frame's head to the next: takes the frames that are not rows, and marks them.
    fn look_at_heads(&mut self, mut at: usize, state: &mut GatherState) -> Result<(), QueryError> {
        let mut no_rows = |_: &[Option<Scalar<'_>>]| ();
        while at < state.edges.end {
            if state.edges.end - at < FRAME_HEAD_BYTES {
                return Err(QueryError::Result);
            }
            let head: [u8; FRAME_HEAD_BYTES] = self.pair.copy_array_to_host(Purpose::Scan, &state.edges.buffer, at);
            let [kind, _, _, _, length @ ..] = head;
            let end = at + FRAME_HEAD_BYTES + u32::from_le_bytes(length) as usize;
            if end > state.edges.end {
                return Err(QueryError::Result);
            }
            self.report.returned_bytes += FRAME_HEAD_BYTES as u64;
            if kind != FrameKind::Rows as u8 {
                self.report.returned_bytes += (end - at) as u64;
                let frame = self.pair.look(Purpose::Scan, &state.edges.buffer, at..end);
                state.result.merge(frame, &mut no_rows)?;
                if kind != FrameKind::End as u8 {
                    self.report.sent_bytes += 1;
                    let kind = self.pair.fill(Purpose::Scan, &mut state.edges.buffer, at..at + 1);
                    kind.copy_from_slice(&[FrameKind::Settled as u8]);
                }
            }
            at = end;
        }
        Ok(())
    }

    /// Another buffer of twice the length, with the same bytes at its front.
    fn grow(&mut self, base: &Base, edges: GatheredEdges, go_on: GoOn<'_>) -> Result<GatheredEdges, QueryError> {
        let GatheredEdges { buffer, frames, end } = edges;
        // As far as numbers of 32 bits, and local memory, go.
        let bytes = 2 * buffer.len();
        let more = u32::try_from(bytes).ok().and_then(|_| base.drive.local().allocate(bytes));
        let more = more.ok_or_else(|| no_room(bytes as u64))?;
        if end == 0 {
            return Ok(GatheredEdges { buffer: more, frames, end });
        }
        let input = LocalRange { offset: buffer.offset(), length: end as u32 };
        let output = LocalRange { offset: more.offset(), length: end as u32 };
        let copy = Operation::Execute { program: self.concat, parameters: LocalRange::EMPTY, input, output };
        let buffer = self.run_command(copy, Lease::Buffers([more, buffer]), go_on)?;
        Ok(GatheredEdges { buffer, frames, end })
    }

    /// Runs a command to its end; gives the first buffer that it was lent.
    fn run_command(&mut self, operation: Operation, lease: Lease, go_on: GoOn<'_>) -> Result<LocalBuffer, QueryError> {
        let command = Command::new(0, operation).of(Purpose::Scan);
        if self.pair.submit(command, lease).is_err() {
            return Err(Error::Io("a queue of two places was full".into()).into());
        }
        self.report.commands += 1;
        self.report.wake_ups += 1;
        self.wait(go_on).map_err(|error| match error {
            PartError::Query(error) => error,
            PartError::EdgesTooLong | PartError::Elsewhere => unreachable!("a command tells of itself alone"),
        })
    }

    fn hear(&self, go_on: GoOn<'_>) -> Result<(), QueryError> {
        if go_on(self.progress()) { Ok(()) } else { Err(QueryError::Cancelled) }
    }
}

/// More frames of the host's than are sent with a command are an error.
pub(super) fn extend_attached(frames: &mut Vec<u8>, more: &[u8]) -> Result<(), QueryError> {
    frames.extend_from_slice(more);
    if frames.len() > ATTACHMENT_BYTES_MAX { Err(QueryError::TooManyReplaced) } else { Ok(()) }
}
