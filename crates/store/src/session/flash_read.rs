//! One key's read from flash: pages into local memory, the match program over them, the value out.
//!
//! ```text
//! Reading ── all pages read ──► Matching ── found ──► value copied out
//!    ▲                              │
//!    └── the next page that a tied fence names ── missing
//! ```
//! Nobody can look at the buffers while read commands name them, and a read that is dropped too early (by a panic, say) leaves
//! them to the drive for good. A program is over when it was submitted.

use crate::buffer::Seen;
use crate::error::Error;
use crate::segment::view::Segment;
use std::ops::Range;
use std::sync::Arc;
use tapetum_drive::programs::MATCH_RECORD;
use tapetum_drive::programs::match_record::{
    CORRUPT, MISSING, Matched, OUTPUT_HEAD_BYTES, OUTPUT_SHORT, Pages, Place, encode_parameters, parameters_bytes,
};
use tapetum_drive::{Command, Completion, LocalBuffer, LocalMemory, LocalRange, Operation, QueuePair, Status};
use tapetum_kernels::data_page::{Trailer, stream_ranges};
use tapetum_kernels::prefetch::prefetch;

/// Buffers of this size are kept from read to read.
pub const BUFFER_BYTES: usize = 16 << 10;
const OUTPUT_ROOM_BYTES: usize = 4 << 10;
/// What flush and collector take at most, beside each other: 32 windows and 20 stages of 256 KiB and what comes with a window, each in
/// a block of a power of two, and 32 reads of 64 KiB.
const MAINTENANCE_BYTES_MAX: usize = 24 << 20;
/// More headers than these have little in common with where they are guessed to be.
const RECORDS_PREFETCHED: usize = 4;

pub struct FlashRead {
    pub segment: Arc<Segment>,
    /// The key in the write buffers when the read began.
    pub seen: Seen,
    /// The install sequence from before the key was looked for.
    pub sequence: u64,
    /// Pages in which the record may start and that were not looked at.
    pages: Range<u32>,
    page: u32,
    span_bytes: u32,
    buffer: Option<LocalBuffer>,
    /// Room for a value that is larger than expected.
    output: Option<LocalBuffer>,
    reads_left: u32,
    /// The longest read command of the page.
    read_max_bytes: u32,
    failed: Option<Error>,
}

/// What came of a step.
pub enum Step {
    /// Completions are on their way.
    Waits,
    /// There is no local memory now: try again.
    NoMemory,
    Found(Matched),
    Missing,
    Failed(Error),
}

/// Local memory for reads, kept by a session between one read and the next. Other sessions, and reads that need more than a spare
/// has, must never wait for it for good: a session keeps none when nothing of it is on its way but what asks, and none when memory is short.
pub struct SpareBuffers {
    local: LocalMemory,
    buffers: Vec<LocalBuffer>,
    kept_max: usize,
    /// With less free none is kept.
    ample_bytes: usize,
    /// What is left to flush and collector, which must not fail for want of memory.
    reserve_bytes: usize,
}

impl SpareBuffers {
    /// Of pools of `pool_bytes` a session keeps a sixteenth, and at most what a deep one needs.
    pub fn new(local: LocalMemory, pool_bytes: usize) -> SpareBuffers {
        let reserve_bytes = (pool_bytes / 2).min(MAINTENANCE_BYTES_MAX);
        SpareBuffers {
            local,
            buffers: Vec::new(),
            kept_max: (pool_bytes / 16 / BUFFER_BYTES).min(256),
            ample_bytes: reserve_bytes + pool_bytes / 4,
            reserve_bytes,
        }
    }

    pub fn take(&mut self, bytes: usize) -> Option<LocalBuffer> {
        if bytes <= BUFFER_BYTES
            && let Some(buffer) = self.buffers.pop()
        {
            return Some(buffer);
        }
        let bytes = bytes.max(BUFFER_BYTES);
        if self.free_bytes() < bytes + self.reserve_bytes { None } else { self.local.allocate(bytes) }
    }

    pub fn give(&mut self, buffer: LocalBuffer) {
        if buffer.len() == BUFFER_BYTES && self.buffers.len() < self.kept_max && self.free_bytes() >= self.ample_bytes {
            self.buffers.push(buffer);
        }
    }

    /// Nothing is on its way.
    pub fn rest(&mut self) {
        self.buffers.clear();
    }

    fn free_bytes(&self) -> usize {
        self.local.bytes_total() - self.local.bytes_used()
    }
}

/// The length of the value, inflated, if a completion says that there was no room for it.
pub fn inflated_bytes(completion: &Completion) -> Option<usize> {
    (completion.status == OUTPUT_SHORT).then_some(completion.result[1] as usize)
}

impl FlashRead {
    pub fn new(segment: Arc<Segment>, (seen, sequence): (Seen, u64), pages: Range<u32>) -> FlashRead {
        FlashRead {
            segment,
            seen,
            sequence,
            pages,
            page: 0,
            span_bytes: 0,
            buffer: None,
            output: None,
            reads_left: 0,
            read_max_bytes: 0,
            failed: None,
        }
    }

    /// Reads the next page in which the record may start.
    ///
    /// # Safety
    /// `read_done` is given the completions of the commands that this submits, each once, and no others.
    pub unsafe fn begin(&mut self, queue: &mut QueuePair, spare: &mut SpareBuffers, tag: u64, key: &[u8]) -> Step {
        let Some(page) = self.pages.clone().next() else { return Step::Missing };
        let span_bytes = self.segment.span_bytes(page);
        let needed = span_bytes as usize + parameters_bytes(key) + OUTPUT_ROOM_BYTES;
        if self.buffer.as_ref().is_none_or(|buffer| buffer.len() < needed) {
            let Some(buffer) = spare.take(needed) else { return Step::NoMemory };
            self.buffer = Some(buffer);
        }
        let Some(buffer) = &mut self.buffer else { unreachable!("it was filled above") };
        self.pages.start += 1;
        (self.page, self.span_bytes, self.read_max_bytes) = (page, span_bytes, 0);
        let at = span_bytes as usize;
        let pages = Pages { salt: self.segment.salt, size: self.segment.page_size(), first: page };
        encode_parameters(pages, key, &mut buffer.bytes_mut()[at..]);
        for run in self.segment.data_runs(page, span_bytes) {
            let local = buffer.offset() + u64::from(run.at);
            let operation = Operation::Read { flash: run.flash, local, length: run.length };
            assert!(run.at + run.length <= span_bytes);
            self.reads_left += 1;
            // SAFETY: inside our buffer, in which no other command has that part. We leave it alone while reads are left, and
            // `drop` does not free it then.
            unsafe { queue.submit(Command { tag, operation }) };
            self.read_max_bytes = self.read_max_bytes.max(run.length);
        }
        Step::Waits
    }

    /// The read commands that `begin` sent, and the length of the longest.
    pub fn sent(&self) -> (u32, u32) {
        (self.reads_left, self.read_max_bytes)
    }

    /// Brings what was read nearer to the processor: the trailer of its first page, by which the search begins.
    pub fn prefetch(&self) {
        if let Some(buffer) = &self.buffer {
            prefetch(buffer.as_ptr().wrapping_add(self.segment.page_size().bytes() - 1));
        }
    }

    /// Brings the headers of the page's records nearer, which lie about where its trailer and their mean length say. For a read
    /// whose last completion is there.
    pub fn prefetch_records(&self) {
        if let (1, Some(buffer)) = (self.reads_left, &self.buffer) {
            let page = &buffer.bytes()[..self.segment.page_size().bytes()];
            let places = (Trailer::first_hint(page)..page.len()).step_by(self.segment.record_bytes_mean());
            places.take(RECORDS_PREFETCHED).for_each(|at| prefetch(&page[at]));
        }
    }

    /// Takes the completion of a read; when it was the last, runs the program.
    pub fn read_done(&mut self, completion: Completion, queue: &mut QueuePair, tag: u64, key: &[u8]) -> Step {
        self.reads_left -= 1;
        if completion.status != Status::Success {
            self.failed =
                Some(Error::Io(format!("a read ended with {:?} (errno {})", completion.status, completion.errno)));
        }
        if self.reads_left > 0 {
            return Step::Waits;
        }
        if let Some(error) = self.failed.take() {
            return Step::Failed(error);
        }
        self.execute(queue, tag, key);
        Step::Waits
    }

    fn execute(&mut self, queue: &mut QueuePair, tag: u64, key: &[u8]) {
        let Some(buffer) = &self.buffer else { unreachable!("a read has a buffer") };
        let input = LocalRange { offset: buffer.offset(), length: self.span_bytes };
        let parameters =
            LocalRange { offset: input.offset + u64::from(input.length), length: parameters_bytes(key) as u32 };
        let (output, at) = self.output();
        let output = LocalRange { offset: output.offset() + at as u64, length: (output.len() - at) as u32 };
        let operation = Operation::Execute { program: MATCH_RECORD, parameters, input, output };
        // SAFETY: inside our buffers, which no read command names any more. The program runs within this call.
        unsafe { queue.submit(Command { tag, operation }) };
        // The parameters end at an odd place; the output begins on the next word.
        debug_assert!(parameters.offset + u64::from(parameters.length) <= output.offset || self.output.is_some());
    }

    /// The buffer that the program writes to, and from where: to its end.
    fn output(&self) -> (&LocalBuffer, usize) {
        match (&self.output, &self.buffer) {
            (Some(output), _) => (output, 0),
            (None, Some(buffer)) => (buffer, buffer.len() - OUTPUT_ROOM_BYTES),
            (None, None) => unreachable!("a read has a buffer"),
        }
    }

    /// Takes the program's completion.
    pub fn match_done(
        &mut self,
        completion: Completion,
        queue: &mut QueuePair,
        spare: &mut SpareBuffers,
        tag: u64,
        key: &[u8],
    ) -> Step {
        match completion.status {
            Status::Success => {
                let (output, at) = self.output();
                let head: [u8; OUTPUT_HEAD_BYTES] = queue.copy_array_to_host(output, at);
                Step::Found(Matched::parse(&head))
            }
            MISSING => Step::Missing,
            OUTPUT_SHORT => match spare.take(completion.result[0] as usize) {
                Some(output) => {
                    self.output = Some(output);
                    self.execute(queue, tag, key);
                    Step::Waits
                }
                None => Step::NoMemory,
            },
            CORRUPT => Step::Failed(Error::Corrupt(format!(
                "data page {} of segment {}",
                self.page, self.segment.descriptor.number
            ))),
            status => Step::Failed(Error::Io(format!("the match program ended with {status:?}"))),
        }
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
                queue.copy_to_host(output, at..at + length, into);
            }
            (Place::Stream(address) | Place::OutOfLine(address), Some(buffer)) => {
                for (at, length) in stream_ranges(self.segment.page_size(), self.page, address, length) {
                    queue.copy_to_host(buffer, at..at + length, into);
                }
            }
            (Place::Stream(_) | Place::OutOfLine(_), None) => unreachable!("a read has a buffer"),
        }
    }

    pub fn finish(mut self, spare: &mut SpareBuffers) {
        assert_eq!(self.reads_left, 0, "the drive writes into it");
        if let Some(buffer) = self.buffer.take() {
            spare.give(buffer);
        }
    }

    /// The queue pair is drained: what was on its way is over.
    pub fn drained(&mut self) {
        self.reads_left = 0;
    }
}

impl Drop for FlashRead {
    fn drop(&mut self) {
        if self.reads_left > 0 {
            std::mem::forget(self.buffer.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::io::lock;
    use crate::request::Request;
    use crate::victim::tests::{RECORD_BYTES, store_of_equal_records, wait_for_flush};
    use std::time::Duration;

    #[test]
    fn a_session_that_goes_while_it_reads_keeps_no_local_memory() {
        let (drive, store) = store_of_equal_records(64 << 10, RECORD_BYTES);
        wait_for_flush(store.shared());
        while lock(&store.shared().installer).is_none() {
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
