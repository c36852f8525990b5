//! The commit log. A store has one, as large as its write buffers: the log zones are images of the buffers.
//!
//! A record is copied once, into the buffer's arena, in the same bytes that go to the log. A group is a range of the arena, sealed before the drive
//! reads it. One group is in flight at a time; meanwhile the next one gathers. The queue pair is shared: any waiting session advances the log
//! ([`Log::advance`]), so no session's progress depends on another one polling.
//!
//! Invariants: stamps ascend in arena order; acknowledged bytes never change; a group never spans buffers; a failed write or flush poisons the log
//! for good.
//!
//! Locks: shard locks come before the log's. Appenders take the log's lock, and nobody holds it across a system call. A sender holds the queue, and
//! takes the log's lock after it. `durable` is read without a lock.

mod arenas;
pub mod client;
pub mod group;
pub mod replay;
mod sender;
pub mod turns;

use crate::error::Error;
use crate::media::geometry::{BUFFERS, Geometry};
use crate::media::io::lock;
use crate::wake::notify::Notifier;
use crate::wake::shared_event::SharedEvent;
use arenas::Arenas;
use group::{GroupHeader, HEADER_BYTES};
use sender::Sender;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use tapetum_drive::{HostArena, QueuePair, fail_point};
use tapetum_kernels::checksum::Salt;
use tapetum_kernels::prefetch::{CACHE_LINE_BYTES, prefetch};
use tapetum_kernels::record::{Header, Record};
use turns::Turns;

/// When a write is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sync {
    /// When it is durable.
    #[default]
    Always,
    /// At once; made durable every second. A process that is killed, or a power failure, loses up to about a second.
    EverySecond,
    /// At once; written within a second, and made durable when its buffer is flushed. A process that is killed loses up to
    /// about a second, a power failure up to a buffer or two.
    No,
}

/// Records to prefetch ahead of an append. Of a large record only the first cache lines.
const APPEND_AHEAD: usize = 4;
const APPEND_AHEAD_BYTES_MAX: usize = 512;
/// Bytes of a group that is sent although nobody waits for it.
const GROUP_BYTES: usize = 64 << 10;
const SECOND_US: u64 = 1_000_000;
/// The most planned deletions for whose marks a buffer reserves room.
const PLANNED_MAX: u32 = 8;

/// A record to append. The log assigns its stamp.
#[derive(Clone, Copy)]
pub struct Draft<'a> {
    pub header: Header,
    pub key: &'a [u8],
    pub stored: &'a [u8],
}

/// The place of a record in the write buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub buffer: u64,
    pub place: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AppendError {
    /// The buffer has no room: seal it.
    BufferFull,
    /// The log takes no records any more: the store failed or was closed.
    Refused(Error),
}

struct OpenGroup {
    start: usize,
    stamp_first: u64,
    records: u32,
}

/// A group that is ready to be sent, or in flight.
struct SealedGroup {
    buffer: u64,
    start: usize,
    length: usize,
    stamp_last: u64,
}

/// The flush of the drive in flight. There is one at a time, whichever queue it is in: a drive whose flush failed may have lost writes of every
/// queue and report the next flush as a success. So nobody begins a flush before the last one's result is known. Forced writes are believed on their
/// own.
enum Flushing {
    /// A flush by the log. It makes the log durable up to this stamp.
    Log(u64),
    /// A flush by another queue. It makes the log durable up to this stamp, the last one written when the flush began.
    Elsewhere(u64),
}

/// The write buffers, as the log knows them.
struct LogBuffers {
    /// The arenas of the buffers, used in turn.
    arenas: [HostArena; BUFFERS as usize],
    active: u64,
    /// The oldest buffer that is not released.
    oldest: u64,
    /// The offset of the next byte in the active arena.
    position: usize,
    /// Bytes that the active buffer's flush may write beyond those in its arena.
    growth: i64,
    /// The crc of the last group in the buffer that was sealed last.
    crc_sealed: u32,
}

struct LogStamps {
    next: u64,
    /// The last stamp of a record.
    last: u64,
    /// The last stamp in the buffer that was sealed last.
    sealed: u64,
    /// The last stamp in the buffers that were released since the store was opened.
    released: u64,
    written: u64,
    /// The last stamp to be written within this second, and at `EverySecond` flushed.
    due: u64,
    /// The last stamp that somebody waits for to be durable, in any sync mode.
    wanted: u64,
}

struct LogState {
    buffers: LogBuffers,
    stamps: LogStamps,
    open: Option<OpenGroup>,
    sealed: VecDeque<SealedGroup>,
    writing: Option<SealedGroup>,
    flushing: Option<Flushing>,
    previous_crc: u32,
    second_began_us: u64,
}

impl LogState {
    fn may_rotate(&self) -> bool {
        self.buffers.active - self.buffers.oldest + 1 < BUFFERS
    }
}

pub struct Log {
    sender: Turns<AtomicU64, Sender>,
    /// Readable when the log may have made progress.
    pub event: SharedEvent,
    state: Mutex<LogState>,
    arenas: Arenas,
    geometry: Geometry,
    store_id: u64,
    generation: u32,
    sync: Sync,
    durable: AtomicU64,
    /// The fill of the active buffer in bytes, for readers without the lock.
    filled_bytes: AtomicU64,
    /// The number of planned deletions.
    planned: AtomicU32,
    log_write_bytes: AtomicU64,
    /// The error that the store returns since it failed.
    poison: OnceLock<Error>,
    /// The store is closing: no record is taken.
    is_closed: AtomicBool,
    waiters: Mutex<Vec<Arc<Notifier>>>,
}

/// A place between two groups of the log.
#[derive(Clone, Copy, Debug)]
pub struct LogCut {
    oldest: u64,
    active: u64,
    position: usize,
}

/// The groups of one buffer, as they stand in its zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogZone {
    pub buffer: u64,
    /// Whole groups, each padded, from the zone's beginning on.
    pub groups: Vec<u8>,
}

/// The place where the log continues, found by recovery.
pub struct Start {
    pub buffer: u64,
    /// The oldest buffer of which anything is needed.
    pub oldest: u64,
    pub position: usize,
    pub stamp_next: u64,
    /// The last durable stamp when the log was read.
    pub stamp_durable: u64,
    pub previous_crc: u32,
    /// The crc of the last group of the previous buffer, if that is still to be flushed.
    pub crc_sealed: u32,
    pub generation: u64,
}

impl Log {
    pub fn new(
        queue: QueuePair,
        mut arenas: [HostArena; BUFFERS as usize],
        geometry: Geometry,
        store_id: u64,
        sync: Sync,
        start: Start,
    ) -> Log {
        // Recovered bytes are published: they are not written again. The other buffer's arena is not written before it is reset.
        for (number, arena) in (0..).zip(&mut arenas) {
            arena.seal(if number == start.buffer % BUFFERS { start.position } else { arena.len() });
        }
        let readable = Arenas::new(&arenas);
        let buffers = LogBuffers {
            arenas,
            active: start.buffer,
            oldest: start.oldest,
            position: start.position,
            growth: 0,
            crc_sealed: start.crc_sealed,
        };
        let (next, durable) = (start.stamp_next, start.stamp_durable);
        let stamps = LogStamps { next, last: durable, sealed: 0, released: 0, written: durable, due: 0, wanted: 0 };
        let state = LogState {
            buffers,
            stamps,
            open: None,
            sealed: VecDeque::new(),
            writing: None,
            flushing: None,
            previous_crc: start.previous_crc,
            second_began_us: 0,
        };
        Log {
            event: SharedEvent::new(queue.event_fd()),
            sender: Turns::new(Sender::new(queue)),
            durable: AtomicU64::new(start.stamp_durable),
            filled_bytes: AtomicU64::new(start.position as u64),
            planned: AtomicU32::new(0),
            state: Mutex::new(state),
            arenas: readable,
            geometry,
            store_id,
            generation: start.generation as u32,
            sync,
            log_write_bytes: AtomicU64::new(0),
            poison: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            waiters: Mutex::new(Vec::new()),
        }
    }

    /// Appends records to one group of the active buffer. `placed` gets each record's number, stamp and place in the arena.
    pub fn append(&self, drafts: &[Draft<'_>], placed: impl FnMut(usize, u64, u32)) -> Result<(), AppendError> {
        self.append_within(self.unplanned_end(), 0, drafts, placed)
    }

    /// As [`Log::append`], for records with which the flush of the buffer writes `growth` bytes more than their own, or fewer if negative. A buffer
    /// is also full when a segment could not hold the output of its flush.
    pub fn append_growing(
        &self,
        growth: i64,
        drafts: &[Draft<'_>],
        placed: impl FnMut(usize, u64, u32),
    ) -> Result<(), AppendError> {
        self.append_within(self.unplanned_end(), growth, drafts, placed)
    }

    /// Adds the growth of records that recovery found in the active buffer: bytes that the flush writes beyond the records.
    pub fn note_growth(&self, growth: i64) {
        lock(&self.state).buffers.growth += growth;
    }

    /// The largest record that fits an empty buffer.
    pub fn record_bytes_max(&self) -> usize {
        self.arenas.bytes_each() - self.planned_bytes(self.planned_max()) - HEADER_BYTES
    }

    /// The most deletions that may be planned at once, one a keyspace. Their marks take a sixteenth of a buffer at most.
    pub fn planned_max(&self) -> u32 {
        let sectors = self.arenas.bytes_each() / 16 / self.geometry.sector_bytes as usize;
        (sectors as u32).clamp(1, PLANNED_MAX)
    }

    /// Bytes that the marks of planned deletions take: padding, and a group for each.
    fn planned_bytes(&self, planned: u32) -> usize {
        (1 + planned as usize) * self.geometry.sector_bytes as usize
    }

    /// Sets the number of planned deletions. The caller holds all shards, or nobody appends.
    pub fn keep_for_planned(&self, planned: u32) {
        self.planned.store(planned, Ordering::SeqCst);
    }

    /// The end of the room for other records. The rest is reserved for the marks of planned deletions, which cannot wait for room, and of one that
    /// is about to be planned.
    fn unplanned_end(&self) -> usize {
        let planned = self.planned.load(Ordering::SeqCst) + 1;
        self.arenas.bytes_each() - self.planned_bytes(planned.min(self.planned_max()))
    }

    /// Appends the mark of a deletion that is due. There is room: each was planned by an [`Log::append`].
    pub fn append_planned(&self, draft: Draft<'_>, placed: impl FnMut(usize, u64, u32)) -> Result<(), AppendError> {
        self.append_within(self.arenas.bytes_each(), 0, &[draft], placed)
    }

    fn append_within(
        &self,
        end: usize,
        growth: i64,
        drafts: &[Draft<'_>],
        mut placed: impl FnMut(usize, u64, u32),
    ) -> Result<(), AppendError> {
        self.poisoned().map_err(AppendError::Refused)?;
        let mut state = lock(&self.state);
        // Closing sets it under this lock: no record comes after that.
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(AppendError::Refused(Error::Closed));
        }
        let bytes: usize = drafts.iter().map(|draft| draft.header.record_bytes()).sum();
        let head = if state.open.is_some() { 0 } else { HEADER_BYTES };
        let filled = state.buffers.position + head + bytes;
        let grown = state.buffers.growth + growth;
        if filled > end || (growth > 0 && filled as i64 + grown > end as i64) {
            return Err(AppendError::BufferFull);
        }
        state.buffers.growth = grown;
        for (number, draft) in drafts.iter().enumerate() {
            if fail_point!(SplitBatch) && number == drafts.len() / 2 {
                self.seal(&mut state);
            }
            let (stamp, place) = self.append_one(&mut state, draft);
            placed(number, stamp, place);
        }
        let filled_bytes = state.buffers.position as u64 + state.buffers.growth.max(0) as u64;
        self.filled_bytes.store(filled_bytes, Ordering::Relaxed);
        Ok(())
    }

    fn append_one(&self, state: &mut LogState, draft: &Draft<'_>) -> (u64, u32) {
        let stamp = state.stamps.next;
        state.stamps.next += 1;
        state.stamps.last = stamp;
        if state.open.is_none() {
            state.open = Some(OpenGroup { start: state.buffers.position, stamp_first: stamp, records: 0 });
            state.buffers.position += HEADER_BYTES;
        }
        if let Some(open) = &mut state.open {
            open.records += 1;
        }
        let header = Header { stamp, ..draft.header };
        let place = state.buffers.position;
        let length = header.record_bytes();
        let bytes = state.buffers.arenas[(state.buffers.active % BUFFERS) as usize].bytes_mut(place, length);
        Record { header, key: draft.key, stored: draft.stored }.encode(bytes);
        // Prefetches the cache lines of later records of this size. Otherwise each release of a lock waits for them.
        let ahead = bytes.as_ptr().wrapping_add(APPEND_AHEAD * length);
        state.buffers.position += length;
        (0..length.min(APPEND_AHEAD_BYTES_MAX))
            .step_by(CACHE_LINE_BYTES)
            .for_each(|at| prefetch(ahead.wrapping_add(at)));
        (stamp, place as u32)
    }

    /// The record at a place that `append` or recovery gave.
    ///
    /// # Safety
    /// `place` is a place in this buffer that `append` or recovery gave. The buffer is not released while the record is used: the caller holds the
    /// lock under which its engine forgets the record, or is the flush that releases the buffer.
    pub unsafe fn record(&self, buffer: u64, place: u32) -> Record<'_> {
        // SAFETY: the caller guarantees it.
        unsafe { self.arenas.record(buffer, place) }.0
    }

    /// As [`Log::record`], with the bytes that encode it.
    ///
    /// # Safety
    /// As [`Log::record`].
    pub unsafe fn record_and_bytes(&self, buffer: u64, place: u32) -> (Record<'_>, &[u8]) {
        // SAFETY: the caller guarantees it.
        unsafe { self.arenas.record(buffer, place) }
    }

    /// Prefetches the beginning of the record at a place; all of a small record.
    pub fn prefetch_record(&self, buffer: u64, place: u32) {
        self.arenas.prefetch_record(buffer, place);
    }

    /// Closes the open group. The next record goes into another one.
    fn seal(&self, state: &mut LogState) {
        let Some(open) = state.open.take() else { return };
        let length = state.buffers.position - open.start;
        let header = GroupHeader {
            crc: 0,
            buffer: state.buffers.active,
            position: open.start as u32,
            length: length as u32,
            stamp_first: open.stamp_first,
            records: open.records,
            generation: self.generation,
            previous_crc: state.previous_crc,
            durable_stamp: self.durable_stamp(),
        };
        let salt = group_salt(&self.geometry, self.store_id, state.buffers.active, open.start);
        let padded = length.next_multiple_of(self.geometry.sector_bytes as usize);
        let end = (open.start + padded).min(self.arenas.bytes_each());
        let arena = &mut state.buffers.arenas[(state.buffers.active % BUFFERS) as usize];
        let (head, crc) = group::seal(&header, salt, arena.bytes(open.start + HEADER_BYTES..state.buffers.position));
        // Nobody else reads the head and the padding of a group.
        arena.bytes_mut(open.start, HEADER_BYTES).copy_from_slice(&head);
        arena.bytes_mut(state.buffers.position, end - state.buffers.position).fill(0);
        arena.seal(end);
        state.previous_crc = crc;
        let stamp_last = state.stamps.last;
        state.sealed.push_back(SealedGroup {
            buffer: state.buffers.active,
            start: open.start,
            length: end - open.start,
            stamp_last,
        });
        state.buffers.position = end;
    }

    /// Continues in the next buffer, if that is free.
    pub fn rotate(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        if !state.may_rotate() {
            return None;
        }
        self.seal(&mut state);
        state.stamps.sealed = state.stamps.last;
        state.buffers.crc_sealed = state.previous_crc;
        state.buffers.active += 1;
        let next = (state.buffers.active % BUFFERS) as usize;
        state.buffers.arenas[next].reset();
        (state.buffers.position, state.buffers.growth) = (0, 0);
        self.filled_bytes.store(0, Ordering::Relaxed);
        Some(state.buffers.active)
    }

    /// Frees the zone and the arena of the oldest buffer, which is sealed and of which nothing is needed after a crash.
    ///
    /// # Safety
    /// All of the buffer was written, and nobody holds or reads a record of it.
    pub unsafe fn release(&self, buffer: u64) {
        let mut state = lock(&self.state);
        assert!(buffer == state.buffers.oldest && buffer < state.buffers.active, "buffers are released in turn");
        state.buffers.oldest += 1;
        state.stamps.released = state.stamps.sealed;
    }

    /// The log holds no record up to this stamp.
    pub fn stamp_released(&self) -> u64 {
        lock(&self.state).stamps.released
    }

    /// Whether the next write goes to this buffer.
    pub fn is_active(&self, buffer: u64) -> bool {
        lock(&self.state).buffers.active == buffer
    }

    /// Whether nothing was appended to the active buffer.
    pub fn active_is_empty(&self) -> bool {
        lock(&self.state).buffers.position == 0
    }

    /// Whether no group of `buffer` is gathering, waiting or in flight.
    pub fn buffer_written(&self, buffer: u64) -> bool {
        let state = lock(&self.state);
        state.buffers.active > buffer && state.sealed.iter().chain(&state.writing).all(|group| group.buffer > buffer)
    }

    /// Assigns a stamp to something that is not a record. It is above all stamps given before. The log does not make that thing durable.
    pub fn give_stamp(&self) -> u64 {
        let mut state = lock(&self.state);
        let stamp = state.stamps.next;
        state.stamps.next += 1;
        stamp
    }

    /// Continues the stamps above this one, which something outside the log has.
    pub fn go_on_above(&self, stamp: u64) {
        let mut state = lock(&self.state);
        state.stamps.next = state.stamps.next.max(stamp + 1);
    }

    /// The time at which a write is acknowledged.
    pub fn sync(&self) -> Sync {
        self.sync
    }

    /// The last stamp of a record.
    pub fn stamp_last(&self) -> u64 {
        lock(&self.state).stamps.last
    }

    /// The last stamp that was given, to a record or to something else.
    pub fn stamp_given(&self) -> u64 {
        lock(&self.state).stamps.next - 1
    }

    /// Everything up to this stamp is durable, by the log or by an install.
    pub fn durable_stamp(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    /// Records up to this stamp are written. The next flush to begin makes them durable, whichever queue begins it.
    pub fn written_stamp(&self) -> u64 {
        lock(&self.state).stamps.written
    }

    /// Whether an answer that shows the record with `stamp` may go out.
    pub fn may_acknowledge(&self, stamp: u64) -> bool {
        self.sync != Sync::Always || stamp <= self.durable_stamp()
    }

    /// Ends the open group: what is appended from here on comes into another.
    pub fn cut(&self) -> LogCut {
        let mut state = lock(&self.state);
        self.seal(&mut state);
        LogCut { oldest: state.buffers.oldest, active: state.buffers.active, position: state.buffers.position }
    }

    /// The log's zones as they were at a cut: groups, one behind the other. No buffer was released since.
    pub fn zones(&self, cut: LogCut) -> Vec<LogZone> {
        (cut.oldest..=cut.active).map(|buffer| self.zone(cut, buffer)).collect()
    }

    fn zone(&self, cut: LogCut, buffer: u64) -> LogZone {
        let end = if buffer == cut.active { cut.position } else { self.arenas.bytes_each() };
        let mut groups = Vec::new();
        // Appenders have the lock between groups.
        while groups.len() + HEADER_BYTES <= end {
            let at = groups.len();
            let state = lock(&self.state);
            let arena = &state.buffers.arenas[(buffer % BUFFERS) as usize];
            // Behind the last group lies what an earlier buffer had there.
            let header = group::parse(arena.bytes(at..at + HEADER_BYTES));
            let Some(header) = header.filter(|header| header.buffer == buffer && header.position as usize == at) else {
                break;
            };
            let padded = (header.length as usize).next_multiple_of(self.geometry.sector_bytes as usize);
            groups.extend_from_slice(arena.bytes(at..(at + padded).min(end)));
        }
        assert!(buffer < cut.active || groups.len() == end, "a cut is behind a whole group");
        LogZone { buffer, groups }
    }

    /// The last stamp in the buffer that was sealed last, and the crc of that buffer's last group.
    pub fn sealed(&self) -> (u64, u32) {
        let state = lock(&self.state);
        (state.stamps.sealed, state.buffers.crc_sealed)
    }

    /// Whether there are unsent records, or a write or flush of the log in flight.
    pub fn has_pending(&self) -> bool {
        let state = lock(&self.state);
        let flushes = matches!(state.flushing, Some(Flushing::Log(_)));
        state.open.is_some() || !state.sealed.is_empty() || state.writing.is_some() || flushes
    }

    pub fn filled_bytes(&self) -> u64 {
        self.filled_bytes.load(Ordering::Relaxed)
    }

    pub fn log_write_bytes(&self) -> u64 {
        self.log_write_bytes.load(Ordering::Relaxed)
    }

    /// Refuses records from here on, as the store is closing. Earlier records are still made durable.
    pub fn close(&self) {
        let _state = lock(&self.state);
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// An error if the store takes no changes any more: it has failed, or is closing.
    pub fn refuse_changes(&self) -> Result<(), Error> {
        self.poisoned()?;
        if self.is_closed.load(Ordering::SeqCst) { Err(Error::Closed) } else { Ok(()) }
    }

    /// The reason why the store takes no more writes, as an error if there is one.
    pub fn poisoned(&self) -> Result<(), Error> {
        self.poison.get().map_or(Ok(()), |why| Err(why.clone()))
    }

    /// Stops all writes, because `what` failed with `error`. Only the first reason is kept.
    pub fn poison(&self, what: &str, error: Error) {
        let _ = self.poison.set(error.poisoning(what));
        self.wake();
    }

    pub fn register(&self, notifier: Arc<Notifier>) {
        lock(&self.waiters).push(notifier);
    }

    pub fn unregister(&self, notifier: &Arc<Notifier>) {
        lock(&self.waiters).retain(|other| !Arc::ptr_eq(other, notifier));
    }

    /// Wakes the waiting sessions, as something changed.
    pub fn wake(&self) {
        lock(&self.waiters).iter().for_each(|notifier| notifier.notify());
    }
}

/// The salt that binds a group's checksum to its store and place.
pub fn group_salt(geometry: &Geometry, store_id: u64, buffer: u64, position: usize) -> Salt {
    Salt { store: store_id, address: geometry.zone_offset(buffer) + position as u64, version: buffer }
}

#[cfg(test)]
mod tests;
