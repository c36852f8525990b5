//! A query over segments, at the drive: pipelines of one program, flash in, frames out.
//!
//! ```text
//! pieces: segments, or pages of one ─► a pipeline over as many as its sources hold ─► frames within the sink ─► merged
//!                  ▲                                                                    │ too long for the sink
//!                  └──────────────────────── halved ◄───────────────────────────────────┘
//! ```
//! 1. One pipeline is on its way at a time, and its result has bounded room: the host takes it before the next one starts.
//! 2. A pipeline that gave too much is as if it had not run.

use super::query_scan::{QueryError, QueryReport};
use super::snapshot::{SegmentSnapshot, Snapshot};
use crate::error::Error;
use crate::hashed::HashedEngine;
use crate::hashed::segment::view::Segment;
use crate::keyspace::KeyspaceId;
use std::collections::VecDeque;
use std::ops::Range;
use tapetum_drive::programs::TOO_LARGE;
use tapetum_drive::programs::scan::{SCAN, ScanRequest};
use tapetum_drive::{
    ATTACHMENT_BYTES_MAX, Command, Lease, LocalRange, Operation, PipelineDescriptor, PipelineFailure, PipelineReason,
    PipelineResult, PipelineSink, PipelineSource, PipelineStage, Purpose, QueuePair, SOURCE_RANGES_MAX, SourceRange,
    Status,
};
use tapetum_kernels::scan::access::PieceOfSegment;
use tapetum_kernels::scan::query::MisfitPolicy;
use tapetum_kernels::scan::result::RowSink;
use tapetum_kernels::scan::{Query, QueryResult};

/// Room for a result, at first. A large part of a small local memory would keep others waiting.
const SINK_BYTES: usize = 1 << 20;
const SINK_SHARE: usize = 16;
/// The most that a sink grows to, for a record of the greatest length.
const SINK_BYTES_MAX: usize = 64 << 20;

/// Records that start in some pages of a segment.
struct Piece<'s> {
    segment: &'s SegmentSnapshot,
    pages: Range<u32>,
}

impl<'s> Piece<'s> {
    /// The pages that are read: behind those in which records start, those in which the last of them may end.
    fn pages_end(&self) -> u32 {
        let segment = &self.segment.segment;
        let payload = segment.page_size().payload_bytes() as u32;
        let tail = segment.descriptor.record_bytes_max.div_ceil(payload) + 1;
        self.pages.end.saturating_add(tail).min(segment.descriptor.data_pages)
    }

    fn encoded(&self) -> PieceOfSegment {
        let segment = &self.segment.segment;
        PieceOfSegment {
            salt: segment.salt,
            page_size: segment.page_size(),
            first_page: self.pages.start,
            starts_end: self.pages.end,
            pages_end: self.pages_end(),
            entry_first: 0,
            entry_count: segment.descriptor.entries,
            valid: self.segment.valid.clone(),
        }
    }

    fn ranges(&self) -> Vec<SourceRange> {
        let segment: &Segment = &self.segment.segment;
        let bytes = (self.pages_end() - self.pages.start) * segment.page_size().bytes() as u32;
        let range =
            |run: crate::media::flash_run::FlashRun| SourceRange { offset: run.flash, bytes: run.length.into() };
        segment.data_runs(self.pages.start, bytes).map(range).collect()
    }

    fn attachment_bytes(&self) -> usize {
        PieceOfSegment::HEAD_BYTES + self.segment.valid.len() * 8
    }

    fn halves(&self) -> Option<[Piece<'s>; 2]> {
        let middle = self.pages.start + self.pages.len() as u32 / 2;
        let half = |pages| Piece { segment: self.segment, pages };
        (self.pages.len() > 1).then(|| [half(self.pages.start..middle), half(middle..self.pages.end)])
    }
}

pub(super) struct DriveScan<'s> {
    engine: &'s HashedEngine,
    pair: QueuePair,
    stage: PipelineStage,
    keyspace: KeyspaceId,
    query: Vec<u8>,
    snapshot: &'s Snapshot,
    sink_bytes: usize,
    /// The first record that does not fit ends the query.
    is_strict: bool,
    /// Pieces of a pipeline, at most.
    pieces_max: usize,
}

/// What a pipeline gave.
enum Given {
    Frames(Vec<u8>),
    /// More than the sink holds.
    TooLong,
}

impl<'s> DriveScan<'s> {
    pub fn new(
        engine: &'s HashedEngine,
        (keyspace, query): (KeyspaceId, &Query),
        snapshot: &'s Snapshot,
        sink_bytes: Option<usize>,
    ) -> Result<DriveScan<'s>, QueryError> {
        let pair = engine.drive.queue_pair(1).map_err(|error| Error::Io(error.to_string()))?;
        let identity = engine.drive.identity();
        let program = identity.programs.iter().find(|program| (&program.name[..], program.version) == SCAN);
        let program = program.ok_or_else(|| Error::Io(format!("the drive has no program {} {}", SCAN.0, SCAN.1)))?;
        let Some(stage) = PipelineStage::new(program.id, &[]) else { unreachable!("it has no parameters") };
        let mut encoded = Vec::new();
        query.encode(&mut encoded);
        let usual = SINK_BYTES.min(engine.drive.local().bytes_total() / SINK_SHARE);
        let sink_bytes = sink_bytes.unwrap_or(usual);
        let (is_strict, pieces_max) = (query.policy() == MisfitPolicy::Fail, usize::MAX);
        Ok(DriveScan { engine, pair, stage, keyspace, query: encoded, snapshot, sink_bytes, is_strict, pieces_max })
    }

    pub fn run(
        &mut self,
        result: &mut QueryResult,
        rows: &mut dyn RowSink,
        report: &mut QueryReport,
    ) -> Result<(), QueryError> {
        let whole = |segment: &'s SegmentSnapshot| Piece { segment, pages: 0..segment.segment.descriptor.data_pages };
        let mut pieces: VecDeque<Piece<'s>> = self.snapshot.segments.iter().map(whole).collect();
        while !pieces.is_empty() && !result.is_done() {
            if self.is_strict && result.counts().first_misfit.is_some() {
                break;
            }
            let (count, ranges, attachment) = self.next_pipeline(&pieces)?;
            match self.pipeline(&ranges, &attachment, report)? {
                Given::Frames(frames) => {
                    result.merge(&frames, rows)?;
                    pieces.drain(..count);
                }
                Given::TooLong if count > 1 => self.pieces_max = count / 2,
                Given::TooLong => {
                    let Some(piece) = pieces.pop_front() else { unreachable!("a pipeline has a piece") };
                    match piece.halves() {
                        Some([first, second]) => {
                            pieces.push_front(second);
                            pieces.push_front(first);
                        }
                        None if self.sink_bytes < SINK_BYTES_MAX => {
                            self.sink_bytes *= 2;
                            pieces.push_front(piece);
                        }
                        None => return Err(QueryError::ResultTooLarge),
                    }
                }
            }
        }
        Ok(())
    }

    /// As many pieces as a pipeline takes: how many, their ranges, and the attachment.
    fn next_pipeline(&self, pieces: &VecDeque<Piece<'_>>) -> Result<(usize, Vec<SourceRange>, Vec<u8>), QueryError> {
        let (mut taken, mut ranges) = (Vec::new(), Vec::new());
        let replaced: usize = self.snapshot.replaced.iter().map(|key| 2 + key.len()).sum();
        let mut bytes = tapetum_drive::programs::scan::SCAN_HEAD_BYTES + self.query.len() + replaced;
        for piece in pieces.iter().take(self.pieces_max) {
            let (more, more_bytes) = (piece.ranges(), piece.attachment_bytes());
            let has_room = ranges.len() + more.len() <= SOURCE_RANGES_MAX && bytes + more_bytes <= ATTACHMENT_BYTES_MAX;
            if !has_room {
                break;
            }
            bytes += more_bytes;
            ranges.extend(more);
            taken.push(piece.encoded());
        }
        if taken.is_empty() {
            return Err(QueryError::TooManyReplaced);
        }
        let mut attachment = Vec::with_capacity(bytes);
        let request = ScanRequest {
            keyspace: self.keyspace.0,
            deleted_through: self.snapshot.deleted_through,
            now: self.snapshot.now,
            query: &self.query,
            replaced: &self.snapshot.replaced,
        };
        request.encode(&taken, &mut attachment);
        Ok((taken.len(), ranges, attachment))
    }

    fn pipeline(
        &mut self,
        ranges: &[SourceRange],
        attachment: &[u8],
        report: &mut QueryReport,
    ) -> Result<Given, QueryError> {
        const LIST_AT: usize = PipelineDescriptor::ENCODED_BYTES;
        let attachment_at = LIST_AT + ranges.len() * SourceRange::ENCODED_BYTES;
        let room = |bytes: usize| {
            let no_room =
                || Error::Options(format!("local memory has no {bytes} bytes for a scan: give the store more memory"));
            self.engine.drive.local().allocate(bytes).ok_or_else(no_room)
        };
        let (mut work, into) = (room(attachment_at + attachment.len())?, room(self.sink_bytes)?);
        let at = |at: usize, length: usize| LocalRange { offset: work.offset() + at as u64, length: length as u32 };
        let source = PipelineSource::Flash { list: at(LIST_AT, attachment_at - LIST_AT) };
        let sink = PipelineSink::Host { into: LocalRange { offset: into.offset(), length: self.sink_bytes as u32 } };
        let Some(mut descriptor) = PipelineDescriptor::new(&[self.stage], source, sink) else {
            unreachable!("a pipeline takes one program")
        };
        descriptor.attachment = at(attachment_at, attachment.len());
        let mut asked = descriptor.encode().to_vec();
        ranges.iter().for_each(|range| asked.extend_from_slice(&range.encode()));
        asked.extend_from_slice(attachment);
        let command = Command::new(0, Operation::Compute { pipelines: at(0, LIST_AT) }).of(Purpose::Scan);
        self.pair.fill(Purpose::Scan, &mut work, 0..asked.len()).copy_from_slice(&asked);
        if self.pair.submit(command, Lease::Buffers([work, into])).is_err() {
            return Err(Error::Io("a queue of one place was full".into()).into());
        }
        report.commands += 1;
        report.sent_bytes += asked.len() as u64;
        let mut returned = Vec::new();
        while self.pair.poll(&mut returned) == 0 {
            self.pair.wait(None);
        }
        let Some(returned) = returned.pop() else { unreachable!("something was polled") };
        let Lease::Buffers([work, into]) = returned.lease else { unreachable!("two buffers were lent") };
        if returned.completion.status != Status::Success {
            return Err(Error::of_command(&self.engine.drive, "scan", &returned.completion).into());
        }
        let encoded = self.pair.copy_array_to_host(Purpose::Scan, &work, PipelineDescriptor::RESULT_AT);
        report.returned_bytes += encoded.len() as u64;
        report.flash_bytes += ranges.iter().map(|range| range.bytes).sum::<u64>();
        match PipelineResult::decode(&encoded) {
            Ok(Some(PipelineResult::Finished { bytes })) => {
                let mut frames = Vec::with_capacity(bytes as usize);
                self.pair.copy_to_host(Purpose::Scan, &into, 0..bytes as usize, &mut frames);
                report.returned_bytes += frames.len() as u64;
                Ok(Given::Frames(frames))
            }
            Ok(Some(PipelineResult::Failed(PipelineFailure { reason: PipelineReason::OutputTooLong, .. }))) => {
                Ok(Given::TooLong)
            }
            Ok(Some(PipelineResult::Failed(failure))) => Err(failed(failure)),
            Ok(None) | Err(_) => Err(Error::Io("the drive gave no result of a scan that has ended".into()).into()),
        }
    }
}

fn failed(failure: PipelineFailure) -> QueryError {
    let is_of_program = failure.reason == PipelineReason::Program;
    let says = |status| matches!(status, Status::Program(number) if u32::from(number) == failure.detail);
    if is_of_program && says(TOO_LARGE) {
        return QueryError::TooManyGroups;
    }
    if is_of_program && says(tapetum_drive::programs::CORRUPT) {
        return Error::Corrupt("a record in a segment; `check` says where".into()).into();
    }
    Error::Pipeline(failure).into()
}
