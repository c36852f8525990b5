//! One key's read from flash, by one command: pages into local memory, the match program over them, the value out.
//!
//! ```text
//! Idle ─ pipeline of reads and match ─► in flight ── found ──► value copied out
//!  ▲                                       │ │
//!  │   the next page of a tied fence ◄─ missing
//!  └── the match alone, with more room ◄─────┘
//!
//! The buffer:  pages as read │ list of stages │ parameters │ … │ output
//! ```
//! The buffers are lent to the drive with each command, and come back with its completion.

use crate::hashed::buffer::Seen;
use crate::hashed::segment::view::Segment;
use std::ops::Range;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::session::spare_buffers::SpareBuffers;
use tapetum_drive::programs::match_record::{
    CORRUPT, MISSING, Matched, OUTPUT_HEAD_BYTES, OUTPUT_SHORT, Pages, Place, encode_parameters, parameters_bytes,
};
use tapetum_drive::{
    Command, Completion, Execution, Lease, LocalBuffer, LocalRange, Operation, ProgramId, Purpose, QueueFull,
    QueuePair, Returned, SOURCE_RANGES_MAX, SourceRange, Stage, Status,
};
use tapetum_kernels::data_page::stream_ranges;

/// Room for a value behind a read's pages.
const OUTPUT_ROOM_BYTES: usize = 4 << 10;

pub struct FlashRead {
    match_record: ProgramId,
    /// Runs a query over the record as well, in place of the match alone.
    match_fields: Option<ProgramId>,
    pub segment: Arc<Segment>,
    /// The key in the write buffers when the read began.
    pub seen: Seen,
    /// The install sequence from before the key was looked for.
    pub sequence: u64,
    /// Pages in which the record may start and that were not looked at.
    pages: Range<u32>,
    page: u32,
    span_bytes: u32,
    /// `None` before the first command, and while one is in flight.
    buffer: Option<LocalBuffer>,
    /// The range of the match program's parameters in the buffer.
    parameters: Range<usize>,
    /// Room for a value that is larger than expected.
    output: Option<LocalBuffer>,
    /// The page's reads, and the length of the longest.
    sent: (u32, u32),
}

pub enum ReadStep {
    /// Completions are on their way.
    Waits,
    /// There is no local memory, or no place in the queue: try again.
    NoRoom,
    Found(Matched),
    /// The query over the record went wrong: read without it.
    NoFields,
    Missing,
    Failed(Error),
}

/// The length of the value, inflated, if a completion says that there was no room for it.
pub fn inflated_bytes(completion: &Completion) -> Option<usize> {
    (completion.status == OUTPUT_SHORT).then_some(completion.result[1] as usize)
}

impl FlashRead {
    pub fn new(
        match_record: ProgramId,
        segment: Arc<Segment>,
        seen: Seen,
        sequence: u64,
        pages: Range<u32>,
    ) -> FlashRead {
        FlashRead {
            match_record,
            match_fields: None,
            segment,
            seen,
            sequence,
            pages,
            page: 0,
            span_bytes: 0,
            buffer: None,
            parameters: 0..0,
            output: None,
            sent: (0, 0),
        }
    }

    /// Looks for the record of a keyspace's key in the next page in which it may start. `asked`: a program that finds it and runs a query over it,
    /// with the query.
    pub fn begin(
        &mut self,
        queue: &mut QueuePair,
        spare: &mut SpareBuffers,
        tag: u64,
        (keyspace, key): (u16, &[u8]),
        asked: Option<(ProgramId, &[u8])>,
    ) -> ReadStep {
        let Some(page) = self.pages.clone().next() else { return ReadStep::Missing };
        let span_bytes = self.segment.span_bytes(page);
        let stages_max = self.segment.data_runs_max(span_bytes) + 1;
        let parameters_at = span_bytes as usize + stages_max * Stage::ENCODED_BYTES;
        let (match_fields, query) = asked.unzip();
        let (query, match_bytes) = (query.unwrap_or_default(), parameters_bytes(key));
        self.match_fields = match_fields;
        self.parameters = parameters_at..parameters_at + match_bytes + query.len();
        let needed = self.parameters.end + OUTPUT_ROOM_BYTES;
        if self.buffer.as_ref().is_none_or(|buffer| buffer.len() < needed) {
            let Some(buffer) = spare.take(needed) else { return ReadStep::NoRoom };
            self.buffer = Some(buffer);
        }
        (self.page, self.span_bytes, self.output) = (page, span_bytes, None);
        let execution = self.execution();
        let Some(buffer) = &mut self.buffer else { unreachable!("it was filled above") };
        let pages = Pages {
            salt: self.segment.salt,
            size: self.segment.page_size(),
            first: page,
            record_bytes: self.segment.record_bytes_mean() as u32,
        };
        let (of_match, of_query) = queue.fill(Purpose::Get, buffer, self.parameters.clone()).split_at_mut(match_bytes);
        encode_parameters(pages, keyspace, key, of_match);
        of_query.copy_from_slice(query);
        let (mut list, mut sent) = (StageList::new(queue, buffer, span_bytes as usize..parameters_at), (0, 0));
        for run in self.segment.data_runs(page, span_bytes) {
            assert!(run.at + run.length <= span_bytes);
            list.push(|buffer| Stage::Read { flash: run.flash, local: buffer + u64::from(run.at), length: run.length });
            sent = (sent.0 + 1, run.length.max(sent.1));
        }
        list.push(|_| execution);
        let stages = list.range();
        if !self.submit(queue, tag, stages) {
            return ReadStep::NoRoom;
        }
        self.pages.start += 1;
        self.sent = sent;
        ReadStep::Waits
    }

    /// Lends the drive the buffers; whether the queue had a place.
    fn submit(&mut self, queue: &mut QueuePair, tag: u64, stages: LocalRange) -> bool {
        let Some(buffer) = self.buffer.take() else { unreachable!("the list is in it") };
        let lease = match self.output.take() {
            Some(output) => Lease::Buffers([buffer, output]),
            None => Lease::Buffer(buffer),
        };
        match queue.submit(Command::new(tag, Operation::Pipeline { stages }).of(Purpose::Get), lease) {
            Ok(()) => true,
            Err(QueueFull { lease }) => {
                self.take_back(lease);
                false
            }
        }
    }

    fn take_back(&mut self, lease: Lease) {
        (self.buffer, self.output) = match lease {
            Lease::Buffer(buffer) => (Some(buffer), None),
            Lease::Buffers([buffer, output]) => (Some(buffer), Some(output)),
            other => unreachable!("{other:?} was not lent here"),
        };
    }

    /// The reads of the page, and the length of the longest.
    pub fn sent(&self) -> (u32, u32) {
        self.sent
    }

    /// The match of the page that was read.
    fn execution(&self) -> Stage {
        let Some(buffer) = &self.buffer else { unreachable!("a read has a buffer") };
        let input = LocalRange { offset: buffer.offset(), length: self.span_bytes };
        let parameters =
            LocalRange { offset: buffer.offset() + self.parameters.start as u64, length: self.parameters.len() as u32 };
        let (output, at) = self.output();
        let output = LocalRange { offset: output.offset() + at as u64, length: (output.len() - at) as u32 };
        let program = self.match_fields.unwrap_or(self.match_record);
        Stage::Execute(Execution::new(program, parameters, &[input], output))
    }

    /// Runs the match once more, with room for a larger value. The pages are there.
    fn match_again(&mut self, queue: &mut QueuePair, tag: u64) -> ReadStep {
        let execution = self.execution();
        let Some(buffer) = &mut self.buffer else { unreachable!("a read has a buffer") };
        let mut list = StageList::new(queue, buffer, self.span_bytes as usize..self.parameters.start);
        list.push(|_| execution);
        let stages = list.range();
        if self.submit(queue, tag, stages) { ReadStep::Waits } else { ReadStep::NoRoom }
    }

    /// The buffer that the program writes to, and from where: to its end.
    fn output(&self) -> (&LocalBuffer, usize) {
        match (&self.output, &self.buffer) {
            (Some(output), _) => (output, 0),
            (None, Some(buffer)) => (buffer, buffer.len() - OUTPUT_ROOM_BYTES),
            (None, None) => unreachable!("a read has a buffer"),
        }
    }

    /// The command has ended: takes the buffers back.
    pub fn ended(&mut self, Returned { completion, lease }: Returned) -> Completion {
        self.take_back(lease);
        completion
    }

    /// Looks at the completion of a command that has ended.
    pub fn look(
        &mut self,
        completion: Completion,
        queue: &mut QueuePair,
        spare: &mut SpareBuffers,
        tag: u64,
    ) -> ReadStep {
        match completion.status {
            Status::Success => {
                let (output, at) = self.output();
                let head: [u8; OUTPUT_HEAD_BYTES] = queue.copy_array_to_host(Purpose::Get, output, at);
                ReadStep::Found(Matched::parse(&head))
            }
            MISSING => ReadStep::Missing,
            OUTPUT_SHORT => match spare.take(completion.result[0] as usize) {
                Some(output) => {
                    self.output = Some(output);
                    self.match_again(queue, tag)
                }
                None => ReadStep::NoRoom,
            },
            CORRUPT => ReadStep::Failed(Error::Corrupt(format!(
                "data page {} of segment {}",
                self.page, self.segment.descriptor.number
            ))),
            Status::Program(_) | Status::InvalidField if self.match_fields.is_some() => ReadStep::NoFields,
            status => {
                let Completion { errno, stage, .. } = completion;
                ReadStep::Failed(Error::Io(format!("stage {stage} of a read ended with {status:?} (errno {errno})")))
            }
        }
    }

    /// Whether what was found is the result of a query over the record.
    pub fn has_fields(&self) -> bool {
        self.match_fields.is_some()
    }

    /// Whether a further page may hold the record.
    pub fn has_more_pages(&self) -> bool {
        !self.pages.is_empty()
    }

    /// Copies the value out of local memory, or the reference to one that is elsewhere.
    pub fn copy_value(&self, matched: &Matched, queue: &QueuePair, into: &mut Vec<u8>) {
        let length = matched.value_bytes as usize;
        match (matched.place, &self.buffer) {
            (Place::Output, _) => {
                let (output, at) = self.output();
                let at = at + OUTPUT_HEAD_BYTES;
                queue.copy_to_host(Purpose::Get, output, at..at + length, into);
            }
            (Place::Stream(address) | Place::OutOfLine(address), Some(buffer)) => {
                for (at, length) in stream_ranges(self.segment.page_size(), self.page, address, length) {
                    queue.copy_to_host(Purpose::Get, buffer, at..at + length, into);
                }
            }
            (Place::Stream(_) | Place::OutOfLine(_), None) => unreachable!("a read has a buffer"),
        }
    }

    /// Takes the buffer with the value, and the value's ranges in it. `None` if these are more parts than a pipeline's source has.
    pub fn take_value(&mut self, matched: &Matched) -> Option<(LocalBuffer, Vec<SourceRange>)> {
        let length = matched.value_bytes as usize;
        let parts: Vec<(usize, usize)> = match matched.place {
            Place::Output => vec![(self.output().1 + OUTPUT_HEAD_BYTES, length)],
            Place::Stream(address) | Place::OutOfLine(address) => {
                stream_ranges(self.segment.page_size(), self.page, address, length).collect()
            }
        };
        if parts.len() > SOURCE_RANGES_MAX {
            return None;
        }
        let output = if matched.place == Place::Output { self.output.take() } else { None };
        let Some(buffer) = output.or_else(|| self.buffer.take()) else { unreachable!("a read has a buffer") };
        let range = |(at, bytes): (usize, usize)| {
            assert!(at + bytes <= buffer.len(), "a value lies inside its buffer");
            SourceRange { offset: buffer.offset() + at as u64, bytes: bytes as u64 }
        };
        let ranges = parts.into_iter().map(range).collect();
        Some((buffer, ranges))
    }

    pub fn finish(mut self, spare: &mut SpareBuffers) {
        if let Some(buffer) = self.buffer.take() {
            spare.give(buffer);
        }
    }
}

/// Stages written one behind the other into a part of a buffer.
struct StageList<'a> {
    queue: &'a QueuePair,
    buffer: &'a mut LocalBuffer,
    room: Range<usize>,
    end: usize,
}

impl<'a> StageList<'a> {
    fn new(queue: &'a QueuePair, buffer: &'a mut LocalBuffer, room: Range<usize>) -> StageList<'a> {
        StageList { queue, buffer, end: room.start, room }
    }

    /// `stage` gets the offset of the buffer.
    fn push(&mut self, stage: impl FnOnce(u64) -> Stage) {
        let from = self.end;
        self.end += Stage::ENCODED_BYTES;
        assert!(self.end <= self.room.end, "the list has room for all stages");
        let stage = stage(self.buffer.offset());
        self.queue.fill(Purpose::Get, self.buffer, from..self.end).copy_from_slice(&stage.encode());
    }

    fn range(&self) -> LocalRange {
        let offset = self.buffer.offset() + self.room.start as u64;
        LocalRange { offset, length: (self.end - self.room.start) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use crate::hashed::collect::victim::tests::{RECORD_BYTES, store_of_equal_records, wait_for_flush};
    use std::time::Duration;
    use tapetum_base::media::io::lock;
    use tapetum_base::request::Request;
    use tapetum_drive::programs::match_record::OUTPUT_HEAD_BYTES;
    use tapetum_drive::{Purpose, PurposeAccount};

    #[test]
    fn of_a_get_from_flash_its_value_crosses_to_the_host_and_its_pages_do_not() {
        let (drive, store) = store_of_equal_records(64 << 10, RECORD_BYTES);
        wait_for_flush(store.hashed());
        let moved = || drive.counters().purpose(Purpose::Get);
        assert_eq!(moved(), PurposeAccount::default(), "a flush is no get");
        let value = store.get(b"key:0001").unwrap().unwrap().value;
        let PurposeAccount { flash_to_local, local_to_flash, local_to_host, host_to_local, .. } = moved();
        assert!(flash_to_local >= 2048 && local_to_flash == 0);
        assert_eq!(local_to_host, (OUTPUT_HEAD_BYTES + value.len()) as u64);
        assert!(host_to_local > 0 && host_to_local < 512, "a list of stages, and the key");
        let flushed = drive.counters().purpose(Purpose::Flush);
        assert!(flushed.local_to_flash >= 64 << 10 && flushed.host_to_local >= 64 << 10);
        let recovered = drive.counters().purpose(Purpose::Recover);
        assert!(recovered.flash_to_local >= 128 << 10 && recovered.local_to_host >= 128 << 10, "both zones of the log");
        let log = drive.counters().purpose(Purpose::Log);
        assert!(log.local_to_flash >= 64 << 10);
        assert_eq!((log.host_to_local, log.flash_to_local, log.local_to_host), (log.local_to_flash, 0, 0));
    }

    #[test]
    fn a_session_that_goes_while_it_reads_keeps_no_local_memory() {
        let (drive, store) = store_of_equal_records(64 << 10, RECORD_BYTES);
        wait_for_flush(store.hashed());
        while lock(&store.hashed().installer).is_none() {
            std::thread::yield_now();
        }
        let used_before = drive.local().bytes_used();
        let mut session = store.session().unwrap();
        (0..16u64).for_each(|number| {
            session.submit(number, Request::Get { key: format!("key:{number:04x}").as_bytes() }).unwrap()
        });
        // Starts the reads, and leaves their completions in the queue.
        session.wait(Some(Duration::ZERO));
        assert!(drive.local().bytes_used() > used_before, "they are on their way");
        drop(session);
        assert_eq!(drive.local().bytes_used(), used_before);
    }
}
