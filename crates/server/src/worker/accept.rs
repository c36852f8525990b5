//! New connections: the listening sockets, pauses of them, and which worker gets a client.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use std::{io, mem};

use super::{ID_LISTENER, Shared, Worker};
use crate::doors::connection::{Client, Connection, Stream, TlsSide};
use crate::doors::door::Door;
use crate::net::mailbox::Accepted;
use crate::os::{self, Interest};
use crate::stats::count;
use tapetum_access::tls::{Follows, Tls};

/// New connections taken before others have their turn.
const ACCEPTS_MAX: usize = 16;

impl Worker {
    pub(super) fn listen(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        for (at, listener) in shared.listeners.iter().enumerate() {
            let interest = Interest { exclusive: true, ..Interest::READ };
            let added = self.epoll.add(listener.as_raw_fd(), ID_LISTENER + at as u64, interest);
            added.inspect_err(|_| {
                // The listeners before it are added again with it.
                shared.listeners[..at].iter().for_each(|before| drop(self.epoll.remove(before.as_raw_fd())));
            })?;
        }
        self.listening = true;
        if let Some(since) = self.paused_since.take() {
            let counters = &shared.figures.counters[self.index];
            count(&counters.time_in_listen_disabled_us, since.elapsed().as_micros() as u64);
        }
        shared.figures.workers_listening.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Accepts nothing for a second.
    pub(super) fn pause_listening(&mut self, error: &io::Error) -> io::Result<()> {
        tracing::warn!("no connection can be accepted: {error}; trying again in a second");
        self.paused_at = self.now;
        self.paused_since.get_or_insert_with(Instant::now);
        count(&self.shared.figures.counters[self.index].listen_disabled_num, 1);
        self.stop_listening()
    }

    pub(super) fn stop_listening(&mut self) -> io::Result<()> {
        if !mem::take(&mut self.listening) {
            return Ok(());
        }
        self.shared.figures.workers_listening.fetch_sub(1, Ordering::Relaxed);
        self.shared.listeners.iter().try_for_each(|listener| self.epoll.remove(listener.as_raw_fd()))
    }

    pub(super) fn accept(&mut self, at: usize) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let Some(listener) = shared.listeners.get(at).filter(|_| self.listening) else { return Ok(()) };
        for _ in 0..ACCEPTS_MAX {
            match os::accept(listener) {
                Ok((fd, peer)) => self.welcome(Accepted { fd, peer, listener: at }),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED) => return Ok(()),
                    _ => return self.pause_listening(&error),
                },
            }
        }
        Ok(())
    }

    /// Gives a client that was accepted to the worker that has the fewest.
    fn welcome(&mut self, client: Accepted) {
        let shared = Arc::clone(&self.shared);
        let counters = &shared.figures.counters[self.index];
        if shared.figures.connections.fetch_add(1, Ordering::Relaxed) >= shared.limits.connections {
            shared.figures.connections.fetch_sub(1, Ordering::Relaxed);
            count(&counters.rejected_connections, 1);
            // In the clear they would be no TLS.
            let has_tls = shared_tls(&shared, client.listener).is_some();
            let words = if has_tls { b"" } else { self.options[client.listener].refusal() };
            if !words.is_empty() {
                // A client that does not take them is closed all the same.
                let _ = os::send(&client.fd, &[io::IoSlice::new(words)]);
            }
            return;
        }
        count(&counters.total_connections, 1);
        os::set_no_delay(&client.fd);
        let load = |at: usize| shared.mailboxes[at].connections();
        let least = (0..shared.mailboxes.len()).min_by_key(|&at| (load(at), at != self.index)).unwrap_or(self.index);
        shared.mailboxes[least].count_connection();
        match least == self.index {
            true => self.adopt(client),
            false => shared.mailboxes[least].hand_over(client),
        }
    }

    pub(super) fn adopt(&mut self, client: Accepted) {
        let Accepted { fd, peer, listener } = client;
        let id = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            (self.connections.len() - 1) as u32
        });
        if let Err(error) = self.epoll.add(fd.as_raw_fd(), u64::from(id), Interest::READ) {
            tracing::warn!("a client is turned away: {error}");
            self.free.push(id);
            self.shared.mailboxes[self.index].discount_connection();
            self.shared.figures.connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let mut client = Client::new(self.index, id);
        client.set_descriptor(fd.as_raw_fd());
        client.set_address(peer.map(|peer| peer.ip()));
        client.set_is_owner(peer.is_none() && os::is_owners(&fd));
        let door = Door::open(&self.options[listener], &mut client, &mut self.pool);
        let mut stream = Box::new(Stream::new(fd, peer, Connection { client, door }, self.now));
        if let Some(tls) = shared_tls(&self.shared, listener) {
            match TlsSide::new(tls.config(Follows::Unnamed)) {
                Ok(tls) => stream.begin_tls(tls),
                Err(error) => {
                    tracing::warn!("a client is turned away: {error}");
                    stream.connection.client.give_up();
                }
            }
        }
        if self.shared.stopping.load(Ordering::Acquire) {
            stream.stop_reading();
        }
        stream.tell_of_arrival(&self.shared.figures.observers);
        self.connections[id as usize] = Some(stream);
        self.enqueue(id);
        tracing::debug!("worker {}: client {id} came, by {}", self.index, self.shared.listeners[listener].address());
    }
}

/// The TLS with which clients of a listener begin.
fn shared_tls(shared: &Shared, listener: usize) -> Option<&Arc<Tls>> {
    shared.tls.as_ref().filter(|_| shared.listeners[listener].may_have_tls() && shared.begins_with_tls[listener])
}
