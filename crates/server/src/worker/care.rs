//! A worker's care for its connections between events: it sends, continues blocked requests, and closes.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::{io, mem};

use super::Worker;
use crate::doors::connection::TlsSide;
use crate::doors::open_keyspaces::OpenKeyspaces;
use crate::net::census::{self, Census};
use crate::net::mailbox::Mailbox;
use crate::protocol::kinds;
use crate::stats::count;
use crate::store::errands::Answer;
use tapetum_access::tls::Follows;

impl Worker {
    /// To be called before input is taken: a client that knows of a change sees it.
    pub(super) fn look_at_keyspaces(&mut self) {
        if self.seat.session().is_some_and(|session| session.keyspace_edits() != self.keyspace_edits) {
            self.follow_keyspaces(false);
        }
    }

    /// Lets the doors look their keyspaces up again. Without a store they keep what they have, and every request is refused.
    pub(super) fn follow_keyspaces(&mut self, is_new_store: bool) {
        let Some(session) = self.seat.session() else { return };
        // The count first: an edit after it is seen the next time.
        self.keyspace_edits = session.keyspace_edits();
        let open = OpenKeyspaces::new(session.open_keyspaces(), is_new_store);
        self.options.iter_mut().for_each(|options| options.follow(&open, session));
        self.connections.iter_mut().flatten().for_each(|stream| stream.connection.door.follow(&open));
        self.datagrams.iter_mut().for_each(|datagrams| datagrams.follow(&open));
    }

    pub(super) fn look_after_queued(&mut self, connections_max: usize) -> io::Result<()> {
        for _ in 0..connections_max {
            let Some(id) = self.queue.pop_front() else { break };
            self.look_after(id)?;
        }
        Ok(())
    }

    /// When the store's fence has passed, breaks off with clients that have unsent answers: what was acknowledged in them may not count. The store
    /// acknowledges nothing in the polls from then on.
    pub(super) fn look_at_fence(&mut self) {
        let is_fenced = self.seat.is_fenced();
        if is_fenced == mem::replace(&mut self.is_fenced, is_fenced) || !is_fenced {
            return;
        }
        for id in 0..self.connections.len() {
            if let Some(stream) = &mut self.connections[id]
                && stream.has_unsent()
            {
                stream.break_off(&mut self.pool);
                self.enqueue(id as u32);
            }
        }
    }

    /// Continues blocked requests, sends, and closes a finished connection.
    fn look_after(&mut self, id: u32) -> io::Result<()> {
        let Some(mut stream) = self.connections[id as usize].take() else { return Ok(()) };
        stream.queued = false;
        stream.advance(&mut self.context());
        let budget = &self.shared.budget;
        let counters = &self.shared.figures.counters[self.index];
        if stream.has_unsent() && !self.is_fenced && self.seat.is_fenced() {
            stream.break_off(&mut self.pool);
        }
        let go_on = stream.send(&mut self.pool, counters, self.now) | stream.wants_turn();
        if stream.settle(budget) {
            // Another worker's client may hold the memory, while that worker sleeps.
            self.shared.mailboxes.iter().for_each(Mailbox::wake);
        }
        if stream.goes_over_to_tls() {
            let tls = self.shared.tls.as_ref().map(|tls| TlsSide::new(tls.config(Follows::Unnamed)));
            match tls {
                Some(Ok(tls)) => stream.go_over_to_tls(tls, &mut self.pool),
                Some(Err(_)) | None => stream.connection.client.give_up(),
            }
        }
        let is_finished = stream.is_finished();
        if stream.has_handshake_place && (is_finished || !stream.shakes_hands()) {
            stream.has_handshake_place = false;
            self.end_handshake();
        }
        let budget = &self.shared.budget;
        if is_finished {
            stream.tell_of_close(&self.shared.figures.observers);
            stream.finish(budget, &mut self.pool, &mut self.scratch);
            self.free.push(id);
            self.shared.mailboxes[self.index].discount_connection();
            self.shared.figures.connections.fetch_sub(1, Ordering::Relaxed);
            tracing::debug!("worker {}: client {id} is gone", self.index);
            return Ok(());
        }
        if let Some(interest) = stream.interest_change() {
            self.epoll.change(stream.fd(), u64::from(id), interest)?;
        }
        if stream.connection.client.waits() && !mem::replace(&mut stream.listed_as_waiting, true) {
            self.waiting.push(id);
        }
        if stream.connection.client.capped() {
            self.capped.push(id);
        }
        self.connections[id as usize] = Some(stream);
        if go_on {
            self.enqueue(id);
        }
        Ok(())
    }

    /// A place is free: the next that waits has it, if it is still there.
    fn end_handshake(&mut self) {
        let connections = &self.connections;
        let waits = |id: u32| connections[id as usize].as_ref().is_some_and(|stream| stream.waits_for_handshake());
        if let Some(id) = self.handshakes.give_place(waits)
            && let Some(stream) = &mut self.connections[id as usize]
        {
            stream.begin_handshake(self.now);
            self.enqueue(id);
        }
    }

    /// Retries connections that wait for memory. While there is none, many waiting connections cost the others next to nothing.
    pub(super) fn ask_again(&mut self) {
        let mut waiting = mem::take(&mut self.waiting);
        waiting.retain(|&id| {
            let Some(stream) = &mut self.connections[id as usize] else { return false };
            if !stream.connection.may_go_on(&self.shared.budget) {
                return true;
            }
            stream.listed_as_waiting = false;
            self.enqueue(id);
            false
        });
        self.waiting = waiting;
    }

    /// Reports this worker's clients and datagram sockets to a census. The first worker reports listeners too.
    pub(super) fn tell_census(&mut self, census: &Census) {
        let now = self.now;
        let clients = self.connections.iter().flatten().map(|stream| {
            let (state, idle_seconds) = (stream.state(), now.saturating_sub(stream.asked_at));
            census::client_lines(stream.socket(), stream.peer(), state, idle_seconds)
        });
        let mut told: Vec<_> = clients.collect();
        let seconds = now.saturating_sub(self.shared.figures.started_unix_seconds);
        let sockets = self.datagrams.iter().flat_map(|datagrams| datagrams.sockets());
        told.extend(sockets.map(|socket| census::datagram_lines(socket, seconds)));
        if self.index == 0 {
            told.extend(self.shared.listeners.iter().map(|listener| census::listener_lines(listener, seconds)));
        }
        if let Some(lines) = census.take(told) {
            let (worker, token) = census.asker;
            self.shared.mailboxes[worker].answer(token, Answer::Lines(lines));
        }
    }

    /// Looks after a client for which something is ready. If the client has left and its number is reused, the other client is looked after
    /// without need.
    pub(super) fn wake_client(&mut self, id: u32) {
        if (id as usize) < self.connections.len() {
            self.enqueue(id);
        }
    }

    /// Whether this worker tells watchers of evictions: the first worker does.
    pub(super) fn tells_of_evictions(&self) -> bool {
        self.index == 0 && self.shared.figures.observers.wants(kinds::EVICTIONS)
    }

    /// Tells watchers how much was evicted since the last look.
    fn look_for_evictions(&mut self) {
        let stats = (self.shared.figures.store)();
        let (segments, items) = (stats.segments_evicted, stats.evictions);
        let (segments_before, items_before) = mem::replace(&mut self.evictions, (segments, items));
        let more = (segments.saturating_sub(segments_before), items.saturating_sub(items_before));
        // The first look has nothing to compare with.
        if mem::replace(&mut self.evictions_looked_at, self.now) != 0 && more.0 > 0 {
            let line = format!("type=segment_eviction segments={} items={}", more.0, more.1);
            self.shared.figures.observers.tell(kinds::EVICTIONS, |out| out.extend_from_slice(line.as_bytes()));
        }
    }

    /// Rare checks: paused listeners, and clients that hold memory that others wait for.
    pub(super) fn look_around(&mut self) -> io::Result<()> {
        let stopping = self.shared.stopping.load(Ordering::Acquire);
        if !self.listening
            && !stopping
            && self.now != self.paused_at
            && let Err(error) = self.listen()
        {
            self.pause_listening(&error)?;
        }
        if self.shared.budget.someone_waits() && self.looked_at != self.now {
            self.looked_at = self.now;
            for id in 0..self.connections.len() {
                let Some(stream) = &mut self.connections[id] else { continue };
                if stream.is_stalled(self.now, &self.shared.limits) {
                    tracing::warn!("closed a client that held memory and neither sent nor read");
                    stream.close_stalled();
                    self.enqueue(id as u32);
                }
            }
        }
        match self.tells_of_evictions() {
            true if self.evictions_looked_at != self.now => self.look_for_evictions(),
            true => {}
            false => self.evictions_looked_at = 0,
        }
        if self.kicks && self.kicked_at != self.now {
            self.kicked_at = self.now;
            self.kick_idle();
        }
        Ok(())
    }

    fn kick_idle(&mut self) {
        let is_crowded = self.handshakes.someone_waits();
        for id in 0..self.connections.len() {
            let Some(stream) = &mut self.connections[id] else { continue };
            if stream.is_unready(self.now, is_crowded) {
                stream.connection.client.give_up();
                self.enqueue(id as u32);
            } else if self.shared.limits.idle_seconds > 0 && stream.is_idle(self.now, &self.shared.limits) {
                count(&self.shared.figures.counters[self.index].idle_kicks, 1);
                stream.kick();
                self.enqueue(id as u32);
            }
        }
    }

    pub(super) fn begin_stop(&mut self) -> io::Result<()> {
        self.stop_listening()?;
        let sockets = self.datagrams.iter().flat_map(|datagrams| datagrams.sockets());
        sockets.map(|socket| socket.as_raw_fd()).try_for_each(|fd| self.epoll.remove(fd))?;
        for id in 0..self.connections.len() {
            if let Some(stream) = &mut self.connections[id] {
                stream.stop_reading();
                self.enqueue(id as u32);
            }
        }
        Ok(())
    }
}
