//! `scan`: runs a query over the records of a layout at the drive (nKV's `NDP_SCAN`).
//!
//! ```text
//! attachment:  0         1      4          6      8         16     24      28        32       36         40
//!              +---------+------+----------+------+---------+------+-------+---------+--------+----------+
//!              | version | by   | keyspace | zero | deleted | now  | room  | query   | pieces | replaced |
//!              | u8      | row 3| u16      | u16  | u64     | u64  | u32   | u32     | u32    | u32      |
//!              +---------+------+----------+------+---------+------+-------+---------+--------+----------+
//!              | query | piece … | replaced: key length u16 · key … |
//! input:       the bytes of the pieces, one behind the other
//! output:      frames ([`tapetum_kernels::scan::run`])
//! ```
//! `by row`: 1 where each row is to be a frame, and two bytes of zeros.
//! A piece states its layout ([`tapetum_kernels::scan::access`]). The scan skips records of other keyspaces, records
//! with stamps up to `deleted`, records that have expired at `now` (milliseconds since 1970), and records whose keys
//! are among the replaced ones, since their later versions are elsewhere. For a value out of line, the scan gives the
//! key and the reference. For keys that are not where a piece says, it gives their range.
//!
//! If the next frames may take more than `room` bytes, the scan stops, and a frame says where. All of the input was
//! read; another pipeline must scan the rest. If a single batch of records needs more than all of the room, the scan
//! gives nothing, and says how much it needs.
//!
//! Its statuses: [`CORRUPT`]; [`TOO_LARGE`] if groups or ordered rows exceed their limits; [`needs_room`]. A record that does not fit the
//! query ends the walk, if the query says so; the last frame names it.

use super::replaced_keys::ReplacedKeys;
use super::{CORRUPT, TOO_LARGE, inflate, needs_room};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::protocol::Status;
use std::collections::{BTreeSet, VecDeque};
use tapetum_kernels::record::{Codec, Header};
use tapetum_kernels::scan::access::{Entry, EntryAccessor, EntrySink, PlainEntry, decode_piece};
use tapetum_kernels::scan::run::{write_deferred, write_missed, write_stopped};
use tapetum_kernels::scan::wire::{ScanReader, WireError};
use tapetum_kernels::scan::{LentBatch, Query, QueryRun, RowBatch, RunError};

/// Its name, and the version of its attachment.
pub const SCAN: (&str, u16) = ("scan", 6);
pub const SCAN_HEAD_BYTES: usize = 40;
/// The part of its room that a scan keeps for its last frames.
const ROOM_KEPT: u64 = 8;

#[derive(Clone, Debug, Default)]
pub struct ScanRequest<'a> {
    pub keyspace: u16,
    /// Records up to this stamp were deleted together.
    pub deleted_through: u64,
    /// Milliseconds since 1970.
    pub now_ms: u64,
    /// Each row is to be a frame.
    pub is_row_by_row: bool,
    /// Bytes of room for frames; 0 means no limit.
    pub room: u32,
    /// An encoded query.
    pub query: &'a [u8],
    /// Encoded pieces, and their number.
    pub pieces: &'a [u8],
    pub piece_count: u32,
    /// Keys that have a later record elsewhere.
    pub replaced: &'a [&'a [u8]],
}

impl ScanRequest<'_> {
    /// The attachment.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[SCAN.1 as u8, u8::from(self.is_row_by_row), 0, 0]);
        out.extend_from_slice(&self.keyspace.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.deleted_through.to_le_bytes());
        out.extend_from_slice(&self.now_ms.to_le_bytes());
        for number in [self.room, self.query.len() as u32, self.piece_count, self.replaced.len() as u32] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(self.query);
        out.extend_from_slice(self.pieces);
        for key in self.replaced {
            out.extend_from_slice(&(key.len() as u16).to_le_bytes());
            out.extend_from_slice(key);
        }
    }
}

pub struct ScanProgram;

/// Which records count.
struct LiveRecords {
    keyspace: u16,
    deleted_through: u64,
    now_ms: u64,
    replaced: ReplacedKeys,
}

/// State of one task, kept from part to part.
struct ScanTask {
    live: LiveRecords,
    /// Accessors of the pieces to come, each with the input bytes that it still expects.
    accessors: VecDeque<(Box<dyn EntryAccessor + Send>, u64)>,
    pieces: u32,
    taken_bytes: u64,
    work: ScanWork,
    /// No more input is wanted.
    is_enough: bool,
    is_finished: bool,
    /// How many of the pending bytes are given out.
    given: usize,
}

struct ScanWork {
    run: QueryRun,
    /// Records that do not lie in one piece.
    batch: RowBatch,
    /// Records in the bytes that an accessor shows.
    lent: LentBatch,
    /// The query wants no more.
    is_over: bool,
    /// Frames that are not given out yet.
    pending: Vec<u8>,
    scratch: Vec<u8>,
    failure: Option<Status>,
    room: ScanRoom,
}

/// The room that is left for frames.
struct ScanRoom {
    bytes: u64,
    /// Bytes of frames that left `pending` already.
    given: u64,
    /// Bytes of frames at the end of the last part of the input, and the most that one part added.
    at_last_part: u64,
    of_a_part: u64,
    is_used_up: bool,
}

impl ScanRoom {
    fn new(bytes: u32) -> ScanRoom {
        let bytes = if bytes == 0 { u64::MAX } else { bytes.into() };
        ScanRoom { bytes, given: 0, at_last_part: 0, of_a_part: 0, is_used_up: false }
    }

    fn left(&self, pending: u64) -> u64 {
        self.bytes.saturating_sub(self.given + pending)
    }

    /// An error if the last frames, in `pending` bytes, exceed the room.
    fn check(&self, pending: u64) -> Result<(), Status> {
        let bytes = self.given + pending;
        if bytes > self.bytes { Err(needs_room(usize::try_from(bytes).unwrap_or(usize::MAX))) } else { Ok(()) }
    }

    /// Whether another batch, or part, of `wanted` bytes has room behind so many pending bytes.
    fn has(&mut self, pending: u64, wanted: u64) -> bool {
        self.is_used_up |= self.left(pending) < wanted.max(self.bytes / ROOM_KEPT);
        !self.is_used_up
    }

    /// To be called after each part of the input. Returns whether the next part has room, if it gives as much as the largest one and a
    /// quarter more.
    fn has_for_next_part(&mut self, pending: u64) -> bool {
        let given = self.given + pending;
        self.of_a_part = self.of_a_part.max(given.saturating_sub(self.at_last_part));
        self.at_last_part = given;
        self.has(pending, self.of_a_part + self.of_a_part / 4)
    }
}

impl ScanTask {
    fn decode(attachment: &[u8]) -> Result<ScanTask, WireError> {
        let mut reader = ScanReader::new(attachment);
        let [version, by_row @ 0..=1, 0, 0] = reader.array()? else { return Err(WireError::Malformed) };
        if u16::from(version) != SCAN.1 {
            return Err(WireError::Version(version));
        }
        let (keyspace, zero) = (reader.u16()?, reader.u16()?);
        let (deleted_through, now_ms) = (reader.u64()?, reader.u64()?);
        let (room, query_bytes) = (ScanRoom::new(reader.u32()?), reader.u32()? as usize);
        let (pieces, replaced) = (reader.u32()?, reader.u32()?);
        let mut query = ScanReader::new(reader.take(query_bytes)?);
        let run = QueryRun::new(&Query::decode(&mut query)?).row_by_row(by_row == 1);
        let accessor = |reader: &mut ScanReader<'_>| {
            let accessor = decode_piece(reader)?;
            let bytes = accessor.bytes_total();
            Ok((accessor, bytes))
        };
        let accessors = (0..pieces).map(|_| accessor(&mut reader)).collect::<Result<VecDeque<_>, WireError>>()?;
        let key = |reader: &mut ScanReader<'_>| -> Result<Box<[u8]>, WireError> {
            let length = reader.u16()?;
            reader.take(length.into()).map(Box::from)
        };
        let replaced = (0..replaced).map(|_| key(&mut reader)).collect::<Result<BTreeSet<_>, WireError>>()?;
        if zero != 0 || !query.is_empty() || !reader.is_empty() {
            return Err(WireError::Malformed);
        }
        let live = LiveRecords { keyspace, deleted_through, now_ms, replaced: ReplacedKeys::new(replaced) };
        let (batch, lent, pending, scratch) = (RowBatch::new(), LentBatch::default(), Vec::new(), Vec::new());
        let work = ScanWork { run, batch, lent, is_over: false, pending, scratch, failure: None, room };
        let taken_bytes = 0;
        Ok(ScanTask { live, accessors, pieces, taken_bytes, work, is_enough: false, is_finished: false, given: 0 })
    }

    /// Takes input. An error is the status with which the program ends.
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Status> {
        self.taken_bytes += bytes.len() as u64;
        while !bytes.is_empty() && !self.is_enough {
            let Some((accessor, left)) = self.accessors.front_mut() else { return Err(Status::InvalidField) };
            let (now, later) = bytes.split_at(bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX)));
            *left -= now.len() as u64;
            bytes = later;
            let mut sink = LiveSink { live: &self.live, work: &mut self.work };
            let wants_more = accessor.take(now, &mut sink).map_err(|_| CORRUPT)?;
            if let Some(failure) = self.work.failure {
                return Err(failure);
            }
            self.is_enough = !wants_more;
            if *left == 0 && wants_more {
                self.accessors.pop_front();
            }
        }
        Ok(())
    }

    /// To be called after each part of the input. Returns whether to take another one.
    fn wants_more(&mut self) -> bool {
        let has_room = self.work.room.has_for_next_part(self.work.held_bytes());
        self.is_enough |= !has_room;
        !self.is_enough
    }

    fn finish(&mut self) -> Result<(), Status> {
        if !self.is_enough {
            // The input was shorter than the pieces.
            if !self.accessors.is_empty() {
                return Err(Status::InvalidField);
            }
        }
        // The last batch also runs if the room is used up, because the walk goes on for a few records after that.
        if !self.work.is_over {
            self.work.run_batch();
        }
        self.work.failure.map_or(Ok(()), Err)?;
        self.work.run.finish(&mut self.work.pending);
        if self.is_enough {
            self.say_stopped();
        }
        self.is_finished = true;
        self.work.room.check(self.work.pending.len() as u64)
    }

    /// Writes the frame that says where the scan stopped. A scan that stopped for another reason than room leaves nothing for others.
    fn say_stopped(&mut self) {
        let mut place = None;
        while self.work.room.is_used_up && place.is_none() {
            let Some((accessor, _)) = self.accessors.front() else { break };
            place = accessor.place();
            if place.is_none() {
                self.accessors.pop_front();
            }
        }
        let left = if place.is_some() { self.accessors.len() as u32 } else { 0 };
        let (pieces, place) = (self.pieces - left, place.unwrap_or_default());
        write_stopped(self.taken_bytes, pieces, &place, &mut self.work.pending);
    }

    /// Copies pending bytes into `output`. Returns how many.
    fn give(&mut self, output: &mut [u8]) -> usize {
        let pending = &self.work.pending[self.given..];
        let bytes = pending.len().min(output.len());
        output[..bytes].copy_from_slice(&pending[..bytes]);
        self.given += bytes;
        if self.given == self.work.pending.len() {
            self.work.room.given += self.given as u64;
            self.work.pending.clear();
            self.given = 0;
        }
        bytes
    }
}

impl ScanWork {
    /// Bytes of frames, including those that are written at the end.
    fn held_bytes(&self) -> u64 {
        (self.pending.len() + self.run.held_bytes()) as u64
    }

    /// Whether the rows that wait may take half of the room.
    fn may_take_half(&self) -> bool {
        (self.batch.row_bytes() + self.lent.row_bytes()) as u64 > self.room.left(self.held_bytes()) / 2
    }

    /// Runs the rows of the batch. Returns whether more are wanted, and have room.
    fn run_batch(&mut self) -> bool {
        let ran = self.run.run(&self.batch, &mut self.pending);
        self.batch.clear();
        self.has_run(ran)
    }

    /// As [`ScanWork::run_batch`], of the rows that lie in these bytes.
    fn run_lent(&mut self, bytes: &[u8]) -> bool {
        let ran = self.run.run(self.lent.rows(bytes), &mut self.pending);
        self.lent.clear();
        self.has_run(ran)
    }

    fn has_run(&mut self, ran: Result<(), RunError>) -> bool {
        // The run's counts include a misfit.
        self.is_over |= ran.is_err() || self.run.is_done();
        if matches!(ran, Err(RunError::TooManyGroups | RunError::TopTooLarge)) {
            self.failure = Some(TOO_LARGE);
        }
        let held_bytes = self.held_bytes();
        !self.is_over && self.room.has(held_bytes, 0)
    }
}

impl LiveRecords {
    fn has(&self, header: &Header) -> bool {
        let is_there = header.stamp > self.deleted_through && !header.expiry.has_passed(self.now_ms);
        header.keyspace == self.keyspace && is_there
    }
}

/// Gathers live records into batches.
struct LiveSink<'a> {
    live: &'a LiveRecords,
    work: &'a mut ScanWork,
}

impl EntrySink for LiveSink<'_> {
    fn entry(&mut self, entry: &dyn Entry) -> bool {
        let (header, work) = (*entry.header(), &mut *self.work);
        if work.is_over || !self.live.has(&header) {
            return !work.is_over;
        }
        let key_bytes = header.key_bytes as usize;
        let is_elsewhere = header.codec == Codec::OutOfLine;
        if is_elsewhere || !self.live.replaced.is_empty() {
            work.scratch.resize(key_bytes, 0);
            entry.copy_key(&mut work.scratch);
            if self.live.replaced.contains(&work.scratch[..]) {
                return true;
            }
            if is_elsewhere {
                let mut reference = vec![0; header.stored_bytes as usize];
                entry.copy_stored(&mut reference);
                write_deferred(&work.scratch, header.raw_bytes, &reference, &mut work.pending);
                return work.room.has(work.held_bytes(), 0) || work.run_batch();
            }
        }
        let scratch = &mut work.scratch;
        let filled = work.batch.push_with(key_bytes, header.raw_bytes as usize, |key, value| {
            entry.copy_key(key);
            match header.codec {
                Codec::Raw => {
                    entry.copy_stored(value);
                    true
                }
                Codec::Zstd => {
                    scratch.resize(header.stored_bytes as usize, 0);
                    entry.copy_stored(scratch);
                    inflate(scratch, value)
                }
                Codec::OutOfLine => false,
            }
        });
        if !filled {
            work.failure = Some(CORRUPT);
            return false;
        }
        let is_full = work.batch.is_full() || work.may_take_half();
        !is_full || work.run_batch()
    }

    fn plain(&mut self, entry: &PlainEntry<'_>, bytes: &[u8]) -> bool {
        let (header, work) = (&entry.header, &mut *self.work);
        if header.codec != Codec::Raw || work.is_over {
            return self.entry(entry);
        }
        let is_replaced = !self.live.replaced.is_empty() && self.live.replaced.contains(entry.key);
        if is_replaced || !self.live.has(header) {
            return true;
        }
        let [key, value] = entry.places(bytes);
        work.lent.push(key, value);
        let has_room = !work.may_take_half() || work.run_batch();
        // Rows may come though there is no room: an accessor ends behind a node.
        let is_full = work.lent.is_full() || work.may_take_half();
        (!is_full || work.run_lent(bytes)) && has_room
    }

    fn leave(&mut self, bytes: &[u8]) -> bool {
        if self.work.is_over {
            self.work.lent.clear();
        }
        self.work.lent.is_empty() || self.work.run_lent(bytes)
    }

    fn missed(&mut self, from: &[u8], to: Option<&[u8]>) {
        write_missed(from, to, &mut self.work.pending);
    }
}

impl Program for ScanProgram {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: SCAN.0, version: SCAN.1, is_stream: true }
    }

    fn run(&self, Context { inputs, output, task, .. }: Context<'_>) -> ProgramResult {
        let attachment = task.attachment.clone();
        let (consumed, more_input) = (task.consumed, task.more_input);
        let kept = super::keep(task, || ScanTask::decode(&attachment).ok());
        let Some(scan) = kept else { return (Status::InvalidField, [0; 2]) };
        // The first run with these inputs takes all of them. Later runs only give out its frames.
        if consumed == 0 {
            let mut taken = inputs.iter().try_for_each(|input| scan.take(input));
            if taken.is_ok() && !scan.is_finished && !(more_input && scan.wants_more()) {
                taken = scan.finish();
            }
            if let Err(status) = taken {
                return (status, [0; 2]);
            }
        }
        let filled = scan.give(output) as u64;
        let is_more = !scan.work.pending.is_empty();
        let is_finished = scan.is_finished;
        let total: usize = inputs.iter().map(|input| input.len()).sum();
        // `consumed` is at least 1 while output is left, so that an input of no bytes is not taken twice.
        task.consumed = if is_more { total.max(1) } else { 0 };
        task.is_enough = is_finished;
        (if is_more { Status::More } else { Status::Success }, [filled, 0])
    }
}
