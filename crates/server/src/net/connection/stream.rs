//! A client over TCP or a Unix socket: its descriptor, and what it sent and is not consumed yet. At rest it keeps no buffer. It
//! stops reading, so that the client feels it, while its connection is blocked. Owned by one worker.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::{Connection, Context, ManyKeys, Protocol, WantedFor};
use crate::net::arrivals::PIECE_BYTES;
use crate::net::limits::{Budget, FREE_BYTES, Limits};
use crate::net::out::Pool;
use crate::os::{self, Interest};
use crate::stats::{Counters, count};
use crate::store::engine::Session;

/// What one client sends before others have their turn, with so much for each request that was answered at once.
const READ_QUOTA_BYTES: usize = 512 << 10;
const ANSWER_BYTES: usize = 256;
/// The first room for a frame that comes in parts.
const INPUT_BYTES_MIN: usize = 4 << 10;
const INPUT_BYTES_STEP: usize = 64 << 10;

pub struct Stream {
    fd: OwnedFd,
    pub connection: Connection,
    input: Vec<u8>,
    /// Nothing more will come, but what came is served.
    read_closed: bool,
    counted_as_waiting: bool,
    interest: Interest,
    /// The peer hung up while we were not reading: no longer watched.
    unwatched: bool,
    /// Whether what came last, in one go, was less than a piece.
    little: bool,
    /// When bytes last moved either way, unix seconds.
    moved_at: u32,
    /// When something of what it sent was last taken, unix seconds.
    asked_at: u32,
    /// On the worker's list of connections to look after.
    pub queued: bool,
    /// On the worker's list of connections that wait for memory.
    pub listed_as_waiting: bool,
}

impl Stream {
    pub fn new(fd: OwnedFd, worker: usize, id: u32, now: u32) -> Stream {
        Stream {
            fd,
            connection: Connection::new(worker, id),
            input: Vec::new(),
            read_closed: false,
            counted_as_waiting: false,
            interest: Interest::READ,
            unwatched: false,
            little: true,
            moved_at: now,
            asked_at: now,
            queued: false,
            listed_as_waiting: false,
        }
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn wants_input(&self) -> bool {
        let Connection { closing, gone, blocked, .. } = self.connection;
        !(closing || self.read_closed || gone || blocked)
    }

    /// The server is going down: what has come is served, nothing more is read.
    pub fn stop_reading(&mut self) {
        self.read_closed = true;
    }

    /// Holds memory that others wait for, and its client has let it lie.
    pub fn is_stalled(&self, now: u32, limits: &Limits) -> bool {
        let Connection { slots, out, asked, charged_bytes, .. } = &self.connection;
        let on_its_way = slots.pending() - asked.len();
        let on_client = on_its_way == 0 && (!out.is_empty() || !self.connection.waits());
        on_client && *charged_bytes > 0 && now.saturating_sub(self.moved_at) > limits.stall_seconds
    }

    /// Has asked for nothing for longer than it may, and takes no answer.
    pub fn is_idle(&self, now: u32, limits: &Limits) -> bool {
        let Connection { slots, out, need_bytes, skip_bytes, .. } = &self.connection;
        // A value that comes, and an answer that goes, take as long as the line needs.
        let is_moving = !out.is_empty() || *skip_bytes > 0 || *need_bytes > self.input.len() + 1;
        let since = if is_moving { self.moved_at } else { self.asked_at };
        slots.pending() == 0 && !self.connection.waits() && now.saturating_sub(since) > limits.idle_seconds
    }

    /// Closes it as if the client had: what the client has not taken of its answers by now it will not take.
    pub fn kick(&mut self) {
        self.connection.closing = true;
        self.connection.gone |= !self.connection.out.is_empty();
    }

    /// Tells a client that is to be closed why, if it is the client's turn to be told something.
    pub fn say_why(&self, complaint: &[u8]) {
        let Connection { slots, out, protocol, .. } = &self.connection;
        if *protocol == Protocol::Text && slots.is_empty() && out.is_empty() {
            // One that does not take it is closed all the same.
            let _ = os::send(self.fd(), &[io::IoSlice::new(complaint)]);
        }
    }

    /// Whether it is likely that what is to be read is a piece of [`crate::net::arrivals`], and nothing waits before it.
    pub fn brings_little(&self) -> bool {
        self.little && self.input.is_empty() && self.wants_input()
    }

    /// Takes a piece of [`crate::net::arrivals`], of which there may be more.
    pub fn take_arrived<S: Session>(&mut self, piece: &[u8], cx: &mut Context<'_, S>) {
        self.note_read(piece.len(), cx);
        self.take(piece, cx);
        self.connection.answered_at_once = 0;
        if piece.len() == PIECE_BYTES {
            self.read(cx);
            self.little = false;
        }
    }

    /// Consumes what was read into another's buffer, and keeps only what is left of it.
    fn take<S: Session>(&mut self, came: &[u8], cx: &mut Context<'_, S>) {
        let consumed = self.connection.consume(came, cx);
        if consumed > 0 {
            self.asked_at = cx.now;
        }
        self.input.extend_from_slice(&came[consumed..]);
    }

    fn note_read<S>(&mut self, bytes: usize, cx: &Context<'_, S>) {
        self.moved_at = cx.now;
        count(&cx.counters.bytes_read, bytes as u64);
    }

    /// The descriptor is readable.
    pub fn read<S: Session>(&mut self, cx: &mut Context<'_, S>) {
        let (mut quota, mut came_bytes) = (READ_QUOTA_BYTES, 0);
        // Nobody tells of what an unwatched one has: all of it is read.
        while (quota > 0 || self.unwatched) && self.wants_input() {
            let result = if self.input.is_empty() { self.read_scratch(cx) } else { self.read_input(cx) };
            match result {
                Ok(Some((0, _))) => self.read_closed = true,
                Ok(Some((bytes, room))) => {
                    self.note_read(bytes, cx);
                    came_bytes += bytes;
                    let answered = std::mem::take(&mut self.connection.answered_at_once);
                    quota = quota.saturating_sub(bytes + answered * ANSWER_BYTES);
                    if bytes < room && !self.unwatched {
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.connection.gone = true,
            }
        }
        self.little = came_bytes < PIECE_BYTES;
        if quota == 0 && self.wants_input() {
            count(&cx.counters.conn_yields, 1);
        }
    }

    /// Reads into the worker's buffer.
    fn read_scratch<S: Session>(&mut self, cx: &mut Context<'_, S>) -> io::Result<Option<(usize, usize)>> {
        let mut scratch = std::mem::take(cx.scratch);
        let result = os::read(self.fd(), &mut scratch);
        if let Ok(bytes) = result {
            self.take(&scratch[..bytes], cx);
        }
        let room = scratch.len();
        *cx.scratch = scratch;
        Ok(Some((result?, room)))
    }

    /// Reads on behind what is there already; `None` if there may be no room for more.
    fn read_input<S: Session>(&mut self, cx: &mut Context<'_, S>) -> io::Result<Option<(usize, usize)>> {
        if !self.make_room(cx.budget) {
            return Ok(None);
        }
        let room = self.input.capacity() - self.input.len();
        let bytes = os::read_more(self.fd(), &mut self.input, room)?;
        self.consume_input(cx);
        Ok(Some((bytes, room)))
    }

    /// Grows with what has arrived, never with what was announced.
    fn make_room(&mut self, budget: &Budget) -> bool {
        let (length, capacity) = (self.input.len(), self.input.capacity());
        if capacity > length {
            return true;
        }
        let step = match length {
            ..INPUT_BYTES_MIN => INPUT_BYTES_MIN,
            // As much as needs no budget.
            INPUT_BYTES_MIN..FREE_BYTES => FREE_BYTES,
            _ => (2 * length).max(INPUT_BYTES_STEP),
        };
        let need_bytes = self.connection.need_bytes;
        let target = if need_bytes > length + 1 { step.min(need_bytes) } else { step };
        if target > FREE_BYTES && !self.connection.may_take(target - capacity, WantedFor::Bytes, budget) {
            return false;
        }
        self.input.reserve_exact(target - length);
        self.connection.charge(self.connection.charged_bytes + target - capacity, budget);
        true
    }

    /// Goes on with what has arrived, after something was answered or sent.
    pub fn advance<S: Session>(&mut self, cx: &mut Context<'_, S>) {
        let connection = &mut self.connection;
        if connection.asks() {
            let waited = connection.waits();
            connection.wait = None;
            connection.allow_asked(cx);
            if waited && !connection.waits() {
                // Until now it was we who did not read.
                self.moved_at = cx.now;
            }
        }
        if let Some(wait) = connection.wait {
            if cx.budget.allows(connection.who, wait.bytes) {
                self.moved_at = cx.now;
            } else if !connection.needs_no_budget() {
                return;
            }
        }
        self.consume_input(cx);
        if self.unwatched && self.wants_input() {
            self.read(cx);
        }
    }

    fn consume_input<S: Session>(&mut self, cx: &mut Context<'_, S>) {
        let mut input = std::mem::take(&mut self.input);
        let consumed = self.connection.consume(&input, cx);
        if consumed < input.len() {
            // Only what has been taken moves the rest: a value that comes in parts stays where it is.
            if consumed > 0 {
                input.drain(..consumed);
            }
            self.input = input;
        }
        if consumed > 0 {
            self.asked_at = cx.now;
        }
    }

    /// Sends what there is; whether that made room for something that was blocked.
    pub fn send(&mut self, pool: &mut Pool, counters: &Counters, now: u32) -> bool {
        let connection = &mut self.connection;
        if connection.out.is_empty() && !connection.gone {
            return false;
        }
        match connection.out.send(self.fd.as_raw_fd(), pool) {
            Ok(0) if !connection.gone => return false,
            Ok(bytes) if !connection.gone => {
                self.moved_at = now;
                count(&counters.bytes_written, bytes as u64);
            }
            _ => connection.gone = true,
        }
        if connection.gone {
            connection.out.clear(pool);
        }
        connection.blocked && !connection.waits() || connection.gone && connection.asks()
    }

    /// Charges the budget with what is held now; whether this made it the first to wait for more.
    pub fn settle(&mut self, budget: &Budget) -> bool {
        let connection = &mut self.connection;
        connection.settle(self.input.capacity(), budget);
        let changed = connection.waits() != self.counted_as_waiting;
        self.counted_as_waiting = connection.waits();
        changed && budget.change_waiting(connection.waits())
    }

    /// Whether it is over: all answered and sent, or nobody there to send to.
    pub fn is_finished(&mut self) -> bool {
        let waits_for_input = self.connection.many.as_ref().is_none_or(ManyKeys::is_spent);
        if self.read_closed && !self.connection.blocked && waits_for_input {
            self.connection.closing = true;
        }
        let Connection { gone, closing, slots, out, .. } = &self.connection;
        if *gone { self.connection.pending() == 0 } else { *closing && slots.is_empty() && out.is_empty() }
    }

    /// What to be woken for, if that has changed.
    pub fn interest_change(&mut self) -> Option<Interest> {
        let write = !self.connection.out.is_empty() && !self.connection.gone;
        let interest = Interest { read: self.wants_input(), write, ..Interest::NONE };
        let changed = interest != self.interest && !self.unwatched;
        self.interest = interest;
        changed.then_some(interest)
    }

    /// The peer hung up. What it sent is still read, if we are reading; else it need not be watched.
    pub fn hung_up(&mut self) -> bool {
        let stop_watching = !self.wants_input() && !self.unwatched;
        self.unwatched |= stop_watching;
        stop_watching
    }

    /// Gives everything back and says goodbye, so that the last reply is not lost to bytes that we never read.
    pub fn finish(mut self, budget: &Budget, pool: &mut Pool, scratch: &mut [u8]) {
        self.connection.release(budget, pool);
        if self.counted_as_waiting {
            budget.change_waiting(false);
        }
        if !self.connection.gone {
            os::shut_down_write(self.fd());
            // Bounded: a client that keeps sending is cut off.
            for _ in 0..16 {
                if !matches!(os::read(self.fd(), scratch), Ok(1..)) {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
