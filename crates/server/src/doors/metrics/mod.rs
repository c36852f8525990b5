//! Figures for Prometheus: a small HTTP server of its own, off by default.
//!
//! One thread serves up to 64 peers at once and waits for none of them: a peer that neither sends nor reads costs the others nothing, and
//! is closed at its deadline. It shares only the figures, and needs nothing from the workers.

// The server is above the simulator: this is a system thread, and reads the clock.
#![allow(clippy::disallowed_methods)]

mod http;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tapetum_drive::Event;

use crate::net::listen::{Address, Listener};
use crate::os::{self, Epoll, Interest, Ready};
use http::{Peer, PeerProgress};

/// The default address of `--metrics`.
pub const ADDRESS_DEFAULT: &str = "127.0.0.1:9150";
/// The most peers at once. One more replaces the oldest that has sent no request. A few scrape, and port scanners connect too.
const PEERS_MAX: usize = 64;
/// The time in which a peer must send its request, and again take the answer: Prometheus waits as long by default.
const PATIENCE: Duration = Duration::from_secs(10);
/// Peers accepted before connected ones get their turn.
const ACCEPTS_MAX: usize = 16;
/// Pause after accepting failed, most likely because descriptors ran out.
const PAUSE: Duration = Duration::from_millis(100);

const ID_STOP: u64 = u64::MAX;
const ID_LISTENER: u64 = 1 << 32;

/// Gives the page as it is now.
pub type PageSource = Box<dyn Fn() -> String + Send>;

pub struct MetricsServer {
    addresses: Vec<Address>,
    stop: Arc<Event>,
    thread: JoinHandle<()>,
}

impl MetricsServer {
    /// Serves at `listeners`, which are already listening.
    pub fn start(listeners: Vec<Listener>, source: PageSource) -> io::Result<MetricsServer> {
        let (stop, epoll) = (Arc::new(Event::new()?), Epoll::new()?);
        epoll.add(stop.as_raw_fd(), ID_STOP, Interest::READ)?;
        for (at, listener) in listeners.iter().enumerate() {
            epoll.add(listener.as_raw_fd(), ID_LISTENER + at as u64, Interest::READ)?;
        }
        let addresses = listeners.iter().map(Listener::address).collect();
        let mut reception = Reception {
            epoll,
            listeners,
            source,
            peers: (0..PEERS_MAX).map(|_| None).collect(),
            _stop: Arc::clone(&stop),
        };
        let life = move || {
            if let Err(error) = reception.run() {
                tracing::error!(
                    "there are no figures for Prometheus any more: {error}; restart the server to have them again"
                );
            }
        };
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(life)?;
        Ok(MetricsServer { addresses, stop, thread })
    }

    /// The addresses in use; port 0 has become a real one.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    pub fn stop(self) {
        self.stop.raise();
        // A panic of the thread was reported by it, and must not fail the server's stop.
        let _ = self.thread.join();
    }
}

/// All peers, by their places.
struct Reception {
    epoll: Epoll,
    listeners: Vec<Listener>,
    source: PageSource,
    peers: Vec<Option<Peer>>,
    /// Kept open, because the epoll watches it.
    _stop: Arc<Event>,
}

impl Reception {
    fn run(&mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        loop {
            self.epoll.wait(self.timeout_ms(), &mut ready)?;
            for &Ready { id, .. } in &ready {
                match id {
                    ID_STOP => return Ok(()),
                    ID_LISTENER.. => self.accept((id - ID_LISTENER) as usize)?,
                    place => self.look_after(place as usize)?,
                }
            }
            let now = Instant::now();
            for place in 0..self.peers.len() {
                if self.peers[place].as_ref().is_some_and(|peer| peer.deadline <= now) {
                    self.close(place, true);
                }
            }
        }
    }

    /// Time until the first peer's deadline.
    fn timeout_ms(&self) -> i32 {
        let Some(first) = self.peers.iter().flatten().map(|peer| peer.deadline).min() else { return -1 };
        // Rounded up, so that the deadline has passed when the wait ends.
        first.saturating_duration_since(Instant::now()).as_millis() as i32 + 1
    }

    fn accept(&mut self, listener: usize) -> io::Result<()> {
        for _ in 0..ACCEPTS_MAX {
            match os::accept(&self.listeners[listener]) {
                Ok((socket, _)) => self.welcome(socket)?,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED) => return Ok(()),
                    // Most likely descriptors ran out; some will be freed.
                    _ => {
                        std::thread::sleep(PAUSE);
                        return Ok(());
                    }
                },
            }
        }
        Ok(())
    }

    fn welcome(&mut self, socket: OwnedFd) -> io::Result<()> {
        let place = self.peers.iter().position(Option::is_none).unwrap_or_else(|| {
            let oldest =
                |(_, peer): &(usize, &Option<Peer>)| peer.as_ref().map(|peer| (peer.is_answered(), peer.deadline));
            let place = self.peers.iter().enumerate().min_by_key(oldest).map_or(0, |(place, _)| place);
            self.close(place, true);
            place
        });
        self.epoll.add(socket.as_raw_fd(), place as u64, Interest::READ)?;
        self.peers[place] = Some(Peer::new(socket, Instant::now() + PATIENCE));
        Ok(())
    }

    fn look_after(&mut self, place: usize) -> io::Result<()> {
        // It may have been closed earlier in this round.
        let Some(peer) = &mut self.peers[place] else { return Ok(()) };
        let was_answered = peer.is_answered();
        match peer.go_on(&self.source) {
            PeerProgress::Waits if peer.is_answered() != was_answered => {
                peer.deadline = Instant::now() + PATIENCE;
                self.epoll.change(peer.fd(), place as u64, Interest { write: true, ..Interest::NONE })
            }
            PeerProgress::Waits => Ok(()),
            PeerProgress::Done => {
                self.close(place, false);
                Ok(())
            }
        }
    }

    fn close(&mut self, place: usize, is_late: bool) {
        if let Some(peer) = self.peers[place].take() {
            peer.close(is_late);
        }
    }
}
