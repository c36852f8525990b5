//! One pipeline of a query in flight: its request, and its result.

use super::query_scan::QueryError;
use crate::api::key_desks::ScanTools;
use crate::api::session::Application;
use tapetum_base::engine::scan_layout::ScanList;
use tapetum_base::error::Error;
use tapetum_drive::programs::scan::ScanRequest;
use tapetum_drive::programs::{CORRUPT, TOO_LARGE, room_needed};
use tapetum_drive::{
    Command, Drive, Lease, LocalBuffer, LocalRange, Operation, PipelineDescriptor, PipelineFailure, PipelinePlace,
    PipelineReason, PipelineResult, PipelineSink, PipelineSource, PipelineStage, Purpose, QueuePair, Returned,
    SourceRange, Status,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ListOf {
    Layout,
    Values,
}

pub(super) struct Flight {
    pub tag: u64,
    pub of: ListOf,
    /// The number of the list.
    pub id: u64,
    /// The result's place in the buffer.
    into: LocalRange,
    work_offset: u64,
    /// Ranges that it reads.
    ranges: Vec<SourceRange>,
    pub ended: Option<Result<FlightEnd, QueryError>>,
    /// The buffers that the drive was lent, once it has ended: that of its result, and copies.
    pub work: Option<LocalBuffer>,
    pub copies: Option<LocalBuffer>,
}

pub(super) enum FlightEnd {
    /// Bytes of frames.
    Frames(usize),
    /// No frames: there is room for less than this.
    TooLong(usize),
    /// It did not begin: local memory had no room for its sub-buffers.
    NoSubBuffers,
}

/// The parameters of a pipeline beside its list.
pub(super) struct FlightPlan<'a> {
    pub stage: PipelineStage,
    /// Whose pipeline it is.
    pub application: Application,
    pub keyspace: u16,
    /// The encoded query.
    pub query: &'a [u8],
    pub is_row_by_row: bool,
    /// Bytes of frames that the scan stops before; 0: it goes to its end.
    pub room: u32,
}

const LIST_AT: usize = PipelineDescriptor::ENCODED_BYTES;

pub(super) fn attachment(plan: &FlightPlan<'_>, list: &ScanList) -> Vec<u8> {
    let replaced: Vec<&[u8]> = list.replaced.iter().map(|key| &key[..]).collect();
    let mut attachment = Vec::new();
    let request = ScanRequest {
        keyspace: plan.keyspace,
        deleted_through: list.deleted_through,
        now_ms: list.now_ms,
        is_row_by_row: plan.is_row_by_row,
        room: plan.room,
        query: plan.query,
        pieces: &list.pieces,
        piece_count: list.piece_count,
        replaced: &replaced,
    };
    request.encode(&mut attachment);
    attachment
}

impl Flight {
    /// Submits a pipeline over a list, and how many bytes were sent; gives the list back if there is no room for it now.
    pub fn submit(
        drive: &Drive,
        tools: &mut ScanTools,
        plan: &FlightPlan<'_>,
        tag: u64,
        of: ListOf,
        mut list: Box<ScanList>,
    ) -> Result<(Flight, u64), Box<ScanList>> {
        let attachment = attachment(plan, &list);
        let attachment_at = LIST_AT + list.ranges.len() * SourceRange::ENCODED_BYTES;
        let sink_at = (attachment_at + attachment.len()).next_multiple_of(8);
        let Some(mut work) = tools.take_work(drive, sink_at + plan.room as usize) else { return Err(list) };
        let at = |at: usize, length: usize| LocalRange { offset: work.offset() + at as u64, length: length as u32 };
        let source = PipelineSource::Flash { list: at(LIST_AT, attachment_at - LIST_AT) };
        let into = at(sink_at, plan.room as usize);
        let Some(mut descriptor) = PipelineDescriptor::new(&[plan.stage], source, PipelineSink::Host { into }) else {
            unreachable!("a pipeline takes one program")
        };
        descriptor.attachment = at(attachment_at, attachment.len());
        descriptor.application = plan.application.0;
        let (work_offset, pipelines) = (work.offset(), at(0, LIST_AT));
        let mut asked = descriptor.encode().to_vec();
        list.ranges.iter().for_each(|range| asked.extend_from_slice(&range.encode()));
        asked.extend_from_slice(&attachment);
        let pair = tools.pair();
        pair.fill(Purpose::Scan, &mut work, 0..asked.len()).copy_from_slice(&asked);
        let lease = match list.copies.take() {
            Some(copies) => Lease::Buffers([work, copies]),
            None => Lease::Buffer(work),
        };
        let command = Command::new(tag, Operation::Compute { pipelines }).of(Purpose::Scan);
        let submitted = pair.submit(command, lease);
        assert!(submitted.is_ok(), "the queue has a place for each pipeline");
        let (id, ranges) = (list.id, list.ranges);
        let flight = Flight { tag, of, id, into, work_offset, ranges, ended: None, work: None, copies: None };
        Ok((flight, asked.len() as u64))
    }

    /// Room for its result.
    pub fn sink_bytes(&self) -> usize {
        self.into.length as usize
    }

    /// The part of its input's first `taken_bytes` that was read from flash.
    pub fn flash_bytes(&self, mut taken_bytes: u64) -> u64 {
        let mut flash_bytes = 0;
        for range in &self.ranges {
            let taken = range.bytes.min(taken_bytes);
            taken_bytes -= taken;
            flash_bytes += if range.local().is_none() { taken } else { 0 };
        }
        flash_bytes
    }

    /// Its command has ended; how many bytes came back.
    pub fn end(&mut self, drive: &Drive, pair: &QueuePair, returned: Returned) -> u64 {
        let Returned { completion, lease } = returned;
        let (work, copies) = match lease {
            Lease::Buffers([work, copies]) => (work, Some(copies)),
            lease => (lease.into_buffer(), None),
        };
        self.copies = copies;
        let work = self.work.insert(work);
        if completion.status != Status::Success {
            self.ended = Some(Err(Error::of_command(drive, "scan", &completion).into()));
            return 0;
        }
        let encoded = pair.copy_array_to_host(Purpose::Scan, work, PipelineDescriptor::RESULT_AT);
        let ended = match PipelineResult::decode(&encoded) {
            Ok(Some(PipelineResult::Finished { bytes })) => Ok(FlightEnd::Frames(bytes as usize)),
            Ok(Some(PipelineResult::Failed(failure))) if has_no_sub_buffers(&failure) => Ok(FlightEnd::NoSubBuffers),
            Ok(Some(PipelineResult::Failed(failure))) => match room_needed(&failure) {
                Some(bytes) => Ok(FlightEnd::TooLong(bytes)),
                None => Err(failed(failure)),
            },
            Ok(None) | Err(_) => Err(Error::Io("the drive gave no result of a scan that has ended".into()).into()),
        };
        self.ended = Some(ended);
        encoded.len() as u64
    }

    /// Offset of the frames in its buffer.
    pub fn frames_at(&self) -> usize {
        (self.into.offset - self.work_offset) as usize
    }

    /// Its frames, which come to the host.
    pub fn frames(&self, pair: &QueuePair, bytes: usize) -> &[u8] {
        let Some(work) = &self.work else { unreachable!("it has ended") };
        let at = self.frames_at();
        pair.look(Purpose::Scan, work, at..at + bytes)
    }
}

fn has_no_sub_buffers(failure: &PipelineFailure) -> bool {
    failure.place == PipelinePlace::Source && failure.reason == PipelineReason::NoLocalMemory
}

fn failed(failure: PipelineFailure) -> QueryError {
    let is_of_program = failure.reason == PipelineReason::Program;
    let says = |status| matches!(status, Status::Program(number) if u32::from(number) == failure.detail);
    if is_of_program && says(TOO_LARGE) {
        return QueryError::TooManyGroups;
    }
    if is_of_program && says(CORRUPT) {
        return Error::Corrupt("a record; `check` says where".into()).into();
    }
    Error::Pipeline(failure).into()
}
