//! A connection over TCP or a Unix socket: its descriptor, and unconsumed input. An idle connection keeps no buffer. While the client is
//! blocked, its socket is not read: back-pressure. Owned by one worker.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::client::WantedFor;
use super::tls::RECORD_BYTES;
use super::{Client, CloseReason, Connection, TlsSide};
use crate::doors::context::Context;
use crate::net::arrivals::PIECE_BYTES;
use crate::net::limits::{Budget, FREE_BYTES, Limits};
use crate::net::out::Pool;
use crate::os::{self, Interest};
use crate::protocol::kinds;
use crate::stats::observers::{Observers, transport_words};
use crate::stats::{Counters, count};
use tapetum_access::tls::{HANDSHAKE_PATIENCE, name_of};
use zeroize::Zeroize;

/// Bytes read from one client before others get their turn. A request that was answered at once counts as `ANSWER_BYTES`.
const READ_QUOTA_BYTES: usize = 512 << 10;
const ANSWER_BYTES: usize = 256;
/// The first buffer for a frame that arrives in parts.
const INPUT_BYTES_MIN: usize = 4 << 10;
const INPUT_BYTES_STEP: usize = 64 << 10;

/// How long a handshake may take while others wait for its place, and how long they wait.
const CROWDED_SECONDS_MAX: u32 = 3;
const WAIT_SECONDS_MAX: u32 = 30;

pub struct Stream {
    fd: OwnedFd,
    /// `None` for a Unix socket. Stored, because the kernel forgets it when the peer resets the connection.
    peer: Option<SocketAddr>,
    pub connection: Connection,
    /// Boxed: most connections have none.
    tls: Option<Box<TlsSide>>,
    pub(crate) input: Vec<u8>,
    /// The peer sends no more; input that has come is served.
    read_closed: bool,
    counted_as_waiting: bool,
    interest: Interest,
    /// The peer hung up while its socket was not being read; the socket is no longer watched.
    unwatched: bool,
    /// The last read, with all of its parts, brought less than a piece.
    little: bool,
    /// When bytes last moved in either direction, unix seconds.
    moved_at: u32,
    /// When it connected, unix seconds.
    opened_at: u32,
    /// When input was last consumed, unix seconds.
    pub(crate) asked_at: u32,
    /// It is on the worker's list of connections to look after.
    pub queued: bool,
    /// It has one of the worker's places for handshakes.
    pub has_handshake_place: bool,
    /// It is on the worker's list of connections that wait for memory.
    pub listed_as_waiting: bool,
}

impl Stream {
    pub fn new(fd: OwnedFd, peer: Option<SocketAddr>, connection: Connection, now: u32) -> Stream {
        Stream {
            fd,
            peer,
            connection,
            tls: None,
            input: Vec::new(),
            read_closed: false,
            counted_as_waiting: false,
            interest: Interest::READ,
            unwatched: false,
            little: true,
            moved_at: now,
            opened_at: now,
            asked_at: now,
            queued: false,
            has_handshake_place: false,
            listed_as_waiting: false,
        }
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn wants_input(&self) -> bool {
        let Client { closing, gone, blocked, begins_tls, .. } = self.connection.client;
        !(closing || self.read_closed || gone || blocked || begins_tls || self.waits_for_handshake())
    }

    /// Everything from now on is TLS.
    pub fn begin_tls(&mut self, tls: TlsSide) {
        self.tls = Some(Box::new(tls));
    }

    /// Whether its protocol goes over to TLS: see [`Client::begin_tls`].
    pub fn goes_over_to_tls(&self) -> bool {
        self.connection.client.begins_tls && !self.connection.client.gone
    }

    /// Sends what there is, and goes over to TLS. A client that does not take the few bytes at once is let go.
    pub fn go_over_to_tls(&mut self, tls: TlsSide, pool: &mut Pool) {
        let client = &mut self.connection.client;
        client.begins_tls = false;
        let sent = client.out.send(&self.fd, pool);
        if sent.is_err() || !client.out.is_empty() || !self.input.is_empty() {
            client.give_up();
        }
        self.begin_tls(tls);
    }

    /// Whether it has TLS, and nothing has come yet.
    pub fn is_silent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_silent())
    }

    /// Something has come, and there is no place for its handshake yet.
    pub fn wait_for_handshake(&mut self) {
        self.tls.iter_mut().for_each(|tls| tls.wait());
    }

    /// Whether its handshake waits for a place.
    pub fn waits_for_handshake(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.waits())
    }

    /// There is a place for its handshake, for which it has its time from now on.
    pub fn begin_handshake(&mut self, now: u32) {
        if let Some(tls) = &mut self.tls {
            tls.begin();
            (self.opened_at, self.has_handshake_place) = (now, true);
        }
    }

    /// Whether its handshake has begun, and is not over.
    pub fn shakes_hands(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.shakes())
    }

    /// The server stops: input that has come is served, and no more is read.
    pub fn stop_reading(&mut self) {
        self.read_closed = true;
    }

    /// Whether it holds memory that others wait for, while the client neither sends nor receives.
    pub fn is_stalled(&self, now: u32, limits: &Limits) -> bool {
        let Client { asked, charged_bytes, .. } = &self.connection.client;
        let on_its_way = self.connection.pending() - asked.len();
        let on_client = on_its_way == 0 && (self.has_unsent() || !self.connection.client.waits());
        on_client && *charged_bytes > 0 && now.saturating_sub(self.moved_at) > limits.stall_seconds
    }

    /// Whether the client has asked for nothing for longer than allowed, and waits for no answer.
    pub fn is_idle(&self, now: u32, limits: &Limits) -> bool {
        let Client { skip_bytes, .. } = &self.connection.client;
        // A value that is arriving, and an answer that is being sent, take as long as the network needs.
        let is_moving = self.has_unsent() || *skip_bytes > 0 || self.is_receiving();
        let since = if is_moving { self.moved_at } else { self.asked_at };
        self.connection.pending() == 0
            && !self.connection.client.waits()
            && now.saturating_sub(since) > limits.idle_seconds
    }

    /// Whether the client has exceeded the time for the protocol's beginning.
    /// `is_crowded`: others wait for a place to shake hands.
    pub fn is_unready(&self, now: u32, is_crowded: bool) -> bool {
        let patience = HANDSHAKE_PATIENCE.as_secs() as u32;
        let of_handshake = match () {
            () if self.is_silent() => Some(patience),
            () if self.waits_for_handshake() => Some(WAIT_SECONDS_MAX),
            () if self.shakes_hands() => Some(if is_crowded { CROWDED_SECONDS_MAX } else { patience }),
            () => None,
        };
        let seconds_max = of_handshake.or_else(|| self.connection.door.ready_seconds());
        seconds_max.is_some_and(|seconds_max| now.saturating_sub(self.opened_at) > seconds_max)
    }

    /// Whether a value is arriving. An incomplete line does not count: its length is unknown, so only one more byte is expected.
    fn is_receiving(&self) -> bool {
        self.connection.client.need_bytes > self.input.len() + 1
    }

    /// Its state, in memcached's words.
    pub fn state(&self) -> &'static str {
        let client = &self.connection.client;
        if client.waits() {
            "conn_waiting"
        } else if self.connection.pending() > 0 {
            "conn_parse_cmd"
        } else if self.has_unsent() {
            "conn_mwrite"
        } else if self.connection.door.is_watching() {
            "conn_watch"
        } else if client.skip_bytes > 0 {
            "conn_swallow"
        } else if self.is_receiving() {
            "conn_nread"
        } else {
            "conn_read"
        }
    }

    /// Tells watchers of connections that it has come.
    pub fn tell_of_arrival(&self, observers: &Observers) {
        self.tell_watchers(observers, "conn_new", "");
    }

    /// Tells watchers of connections that it is closed, and why, in memcached's words.
    pub fn tell_of_close(&self, observers: &Observers) {
        let client = &self.connection.client;
        let reason = match client.close_reason {
            CloseReason::Idle => " reason=idle_timeout",
            CloseReason::Error => " reason=error",
            CloseReason::Normal if client.gone => " reason=error",
            CloseReason::Normal => " reason=normal",
        };
        self.tell_watchers(observers, "conn_close", reason);
    }

    fn tell_watchers(&self, observers: &Observers, what: &str, reason: &str) {
        if !observers.wants(kinds::CONNECTIONS) {
            return;
        }
        let transport = transport_words(self.peer);
        let line = format!("type={what} {transport}{reason} cfd={}", self.fd());
        observers.tell(kinds::CONNECTIONS, |out| out.extend_from_slice(line.as_bytes()));
    }

    /// Whether it stopped only to give others their turn.
    pub fn wants_turn(&self) -> bool {
        let client = &self.connection.client;
        self.connection.door.wants_turn() && !client.closing && !client.gone && !client.waits()
    }

    /// Closes it as if the client had: unsent answers are dropped.
    pub fn kick(&mut self) {
        let has_unsent = self.has_unsent();
        let client = &mut self.connection.client;
        (client.closing, client.close_reason) = (true, CloseReason::Idle);
        client.gone |= has_unsent;
    }

    /// Closes a stalled client. It is told why, if it has taken all of its answers.
    pub fn close_stalled(&mut self) {
        let words = self.connection.door.stalled();
        // In the clear they would be no TLS.
        let is_read = self.tls.is_none() && self.connection.pending() == 0 && !self.has_unsent();
        if !words.is_empty() && is_read {
            // A client that does not take them is closed anyway.
            let _ = os::send(&self.fd, &[io::IoSlice::new(words)]);
        }
        self.connection.client.give_up();
    }

    /// Whether the next read likely brings at most a piece of [`crate::net::arrivals`], and no input waits before it.
    pub fn brings_little(&self) -> bool {
        let is_open = self.tls.as_ref().is_none_or(|tls| tls.is_ready() && !tls.has_part());
        self.little && self.input.is_empty() && self.wants_input() && is_open
    }

    /// Reads a piece of [`crate::net::arrivals`].
    ///
    /// # Errors
    /// Those of the socket; the next [`Stream::read`] comes to them again, or to the end.
    pub fn read_piece(&mut self, piece: &mut [u8], scratch: &mut [u8], plain: &mut Vec<u8>) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return os::read(&self.fd, piece) };
        // Nothing of another client's.
        plain.clear();
        if let Err(error) = tls.receive(&self.fd, scratch, piece.len(), plain) {
            self.connection.client.gone |= error.kind() == io::ErrorKind::InvalidData;
            plain.clear();
            return Err(error);
        }
        // Sealed bytes are more than those that they say.
        let bytes = plain.len();
        piece[..bytes].copy_from_slice(plain);
        plain.clear();
        self.read_closed |= tls.is_closed();
        Ok(bytes)
    }

    /// Takes a piece of [`crate::net::arrivals`]; more may follow. Returns whether the piece has a password in it.
    pub fn take_arrived(&mut self, piece: &[u8], cx: &mut Context<'_>) -> bool {
        self.note_read(piece.len(), cx);
        self.take(piece, cx);
        let has_secret = self.connection.client.take_secret();
        self.connection.client.answered_at_once = 0;
        if piece.len() == PIECE_BYTES {
            self.read(cx);
            self.little = false;
        }
        has_secret
    }

    /// Consumes input from another's buffer, and keeps only the unconsumed rest.
    fn take(&mut self, came: &[u8], cx: &mut Context<'_>) {
        let consumed = self.connection.consume(came, cx);
        if consumed > 0 {
            self.asked_at = cx.now;
        }
        self.input.extend_from_slice(&came[consumed..]);
    }

    fn note_read(&mut self, bytes: usize, cx: &Context<'_>) {
        self.moved_at = cx.now;
        count(&cx.counters.bytes_read, bytes as u64);
    }

    /// The descriptor is readable.
    pub fn read(&mut self, cx: &mut Context<'_>) {
        let (mut quota, mut came_bytes) = (READ_QUOTA_BYTES, 0);
        // Events do not report an unwatched socket's input, so all of it is read.
        while (quota > 0 || self.unwatched) && self.wants_input() {
            let result = if self.input.is_empty() { self.read_scratch(cx) } else { self.read_input(cx) };
            match result {
                Ok(Some((0, _))) => self.read_closed = true,
                Ok(Some((bytes, room))) => {
                    self.note_read(bytes, cx);
                    came_bytes += bytes;
                    let answered = std::mem::take(&mut self.connection.client.answered_at_once);
                    quota = quota.saturating_sub(bytes + answered * ANSWER_BYTES);
                    if bytes < room && !self.unwatched {
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.connection.client.gone = true,
            }
        }
        self.little = came_bytes < PIECE_BYTES;
        if quota == 0 && self.wants_input() {
            count(&cx.counters.conn_yields, 1);
        }
    }

    /// Reads into the worker's buffer.
    fn read_scratch(&mut self, cx: &mut Context<'_>) -> io::Result<Option<(usize, usize)>> {
        let mut scratch = std::mem::take(cx.scratch);
        let result = match self.tls.take() {
            None => {
                let result = os::read(&self.fd, &mut scratch);
                if let Ok(bytes) = result {
                    self.take(&scratch[..bytes], cx);
                    if self.connection.client.take_secret() {
                        scratch[..bytes].zeroize();
                    }
                }
                result.map(|bytes| (bytes, scratch.len()))
            }
            Some(mut tls) => {
                let mut plain = std::mem::take(cx.plain);
                // Nothing of another client's.
                plain.clear();
                let result = tls.receive(&self.fd, &mut scratch, usize::MAX, &mut plain);
                self.read_closed |= tls.is_closed();
                if let Some(certificate) = tls.take_certificate() {
                    self.connection.client.set_certificate_name(name_of(certificate));
                }
                self.tls = Some(tls);
                if !plain.is_empty() {
                    self.take(&plain, cx);
                    if self.connection.client.take_secret() {
                        plain.zeroize();
                        scratch.as_mut_slice().zeroize();
                    }
                }
                plain.clear();
                *cx.plain = plain;
                result
            }
        };
        *cx.scratch = scratch;
        result.map(Some)
    }

    /// Reads behind the waiting input. `None` if the budget has no room for more.
    fn read_input(&mut self, cx: &mut Context<'_>) -> io::Result<Option<(usize, usize)>> {
        if !self.make_room(cx.budget) {
            return Ok(None);
        }
        let room = self.input.capacity() - self.input.len();
        let (bytes, room) = match &mut self.tls {
            None => (os::read_more(&self.fd, &mut self.input)?, room),
            Some(tls) => {
                // A record says nothing before it is whole: to read it by what room is left may take a read a byte.
                let read = tls.receive(&self.fd, cx.scratch, room.max(RECORD_BYTES), &mut self.input);
                self.read_closed |= tls.is_closed();
                read?
            }
        };
        self.consume_input(cx);
        Ok(Some((bytes, room)))
    }

    /// Grows the buffer with input that has arrived, never to a length that was announced.
    fn make_room(&mut self, budget: &Budget) -> bool {
        let (length, capacity) = (self.input.len(), self.input.capacity());
        if capacity > length {
            return true;
        }
        let step = match length {
            ..INPUT_BYTES_MIN => INPUT_BYTES_MIN,
            // The most that needs no budget.
            INPUT_BYTES_MIN..FREE_BYTES => FREE_BYTES,
            _ => (2 * length).max(INPUT_BYTES_STEP),
        };
        let client = &mut self.connection.client;
        let need_bytes = client.need_bytes;
        let target = if need_bytes > length + 1 { step.min(need_bytes) } else { step };
        if target > FREE_BYTES && !client.may_take(target - capacity, WantedFor::Bytes, budget) {
            return false;
        }
        self.input.reserve_exact(target - length);
        client.charge(client.charged_bytes + target - capacity, budget);
        true
    }

    /// Continues with waiting input after something was answered or sent.
    pub fn advance(&mut self, cx: &mut Context<'_>) {
        let connection = &mut self.connection;
        if connection.client.asks() {
            let waited = connection.client.waits();
            connection.client.wait = None;
            connection.allow_asked(cx);
            if waited && !connection.client.waits() {
                // The server was the one that did not read, so the client was not idle.
                self.moved_at = cx.now;
            }
        }
        if let Some(wait) = connection.client.wait {
            if cx.budget.allows(connection.client.who, wait.bytes) {
                self.moved_at = cx.now;
            } else if !connection.client.needs_no_budget(connection.door.load()) {
                return;
            }
        }
        self.consume_input(cx);
        if self.unwatched && self.wants_input() {
            self.read(cx);
        }
    }

    fn consume_input(&mut self, cx: &mut Context<'_>) {
        let mut input = std::mem::take(&mut self.input);
        let consumed = self.connection.consume(&input, cx);
        if self.connection.client.take_secret() {
            input[..consumed].zeroize();
            cx.scratch.as_mut_slice().zeroize();
        }
        if consumed < input.len() {
            // Move the rest only if something was taken, so that a value arriving in parts is not moved each time.
            if consumed > 0 {
                input.drain(..consumed);
            }
            self.input = input;
        }
        if consumed > 0 {
            self.asked_at = cx.now;
        }
    }

    /// Whether answers wait for the socket.
    pub fn has_unsent(&self) -> bool {
        !self.connection.client.out.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.has_unsent())
    }

    /// Sends nothing more: the client learns nothing of what it asked for last.
    pub fn break_off(&mut self, pool: &mut Pool) {
        self.connection.client.gone = true;
        self.connection.client.out.clear(pool);
        self.tls.iter_mut().for_each(|tls| tls.clear());
    }

    /// Sends as much as the socket takes. Returns whether that made room for a blocked request.
    pub fn send(&mut self, pool: &mut Pool, counters: &Counters, now: u32) -> bool {
        if !self.has_unsent() && !self.connection.client.gone {
            return false;
        }
        let client = &mut self.connection.client;
        let sent = match &mut self.tls {
            _ if client.gone => Ok(0),
            None => client.out.send(&self.fd, pool),
            Some(tls) => tls.send(&self.fd, &mut client.out, pool),
        };
        match sent {
            Ok(0) if !client.gone => return false,
            Ok(bytes) if !client.gone => {
                self.moved_at = now;
                count(&counters.bytes_written, bytes as u64);
            }
            _ => client.gone = true,
        }
        if client.gone {
            client.out.clear(pool);
            self.tls.iter_mut().for_each(|tls| tls.clear());
        }
        client.blocked && !client.waits() || client.gone && client.asks()
    }

    /// Charges the budget with the memory held now. Returns whether it became the first to wait for more.
    pub fn settle(&mut self, budget: &Budget) -> bool {
        let connection = &mut self.connection;
        let tls_bytes = self.tls.as_ref().map_or(0, |tls| tls.held_bytes());
        connection.settle(self.input.capacity() + tls_bytes, budget);
        let waits = connection.client.waits();
        let changed = waits != self.counted_as_waiting;
        self.counted_as_waiting = waits;
        changed && budget.change_waiting(waits)
    }

    /// Whether it is finished: all is answered and sent, or the peer is gone.
    pub fn is_finished(&mut self) -> bool {
        let has_unsent = self.has_unsent();
        let Connection { client, door } = &mut self.connection;
        if self.read_closed && !client.blocked && door.needs_input() {
            client.closing = true;
        }
        door.load().pending == 0 && (client.gone || client.closing && !has_unsent)
    }

    /// The events to watch for, if they have changed.
    pub fn interest_change(&mut self) -> Option<Interest> {
        let write = self.has_unsent() && !self.connection.client.gone;
        let interest = Interest { read: self.wants_input(), write, ..Interest::NONE };
        let changed = interest != self.interest && !self.unwatched;
        self.interest = interest;
        changed.then_some(interest)
    }

    /// The peer hung up. While we read, the rest of its input is still read; otherwise the socket need not be watched any more. Returns
    /// whether so.
    pub fn hung_up(&mut self) -> bool {
        let stop_watching = !self.wants_input() && !self.unwatched;
        self.unwatched |= stop_watching;
        stop_watching
    }

    /// Releases all memory and closes the connection, so that unread bytes do not destroy the last reply.
    pub fn finish(mut self, budget: &Budget, pool: &mut Pool, scratch: &mut [u8]) {
        self.connection.client.release(budget, pool);
        if self.counted_as_waiting {
            budget.change_waiting(false);
        }
        if !self.connection.client.gone {
            self.tls.iter_mut().for_each(|tls| tls.say_end(&self.fd));
            os::shut_down_write(&self.fd);
            // Bounded: a client that keeps sending is disconnected.
            for _ in 0..16 {
                if !matches!(os::read(&self.fd, scratch), Ok(1..)) {
                    break;
                }
            }
        }
    }
}
