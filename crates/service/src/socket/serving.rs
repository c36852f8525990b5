//! One client of the socket: greets it, and does what it asks, one request after the other.
//!
//! A client that goes away is noticed while its request is served, and so is a store that is wanted back. One that reads nothing holds one
//! part of its answer, and whoever needs the flash that its query holds takes it. Requests and parts of answers are taken from the server's
//! memory, and wait until there is some.
//!
//! Threads: one for each client.

#![allow(clippy::disallowed_methods)] // Clocks that decide when to look, and nothing that is kept.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::frame::{
    self, FrameHead, FrameKind, GREETING_BYTES, GreetingHead, HEAD_BYTES, PROTOCOL_VERSION, REQUEST_BYTES_MAX,
    framed_data,
};
use super::framing::{FrameCaller, FrameOut};
use super::listener::{CLIENTS_MAX, ListenerShared};
use crate::audit::{self, Asker};
use crate::caller::Caller;
use crate::execute::{OpenStore, execute};
use crate::failure::{Failure, FailureKind};
use crate::reply::Reply;
use crate::request::Request;

/// How often it looks whether the client, or the store, has gone.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// What each client may hold besides, so that small requests go on when there is no memory.
const FREE_BYTES: usize = 16 << 10;
/// After this time a client that does nothing is let go, if others wait for the memory that it holds.
const STALLED: Duration = Duration::from_secs(10);
/// How often it looks whether there is memory again.
const MEMORY_LOOK: Duration = Duration::from_millis(2);
/// A client says which version it is within this time.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);
/// What those are told who speak something else.
const NOT_FOR_PEOPLE: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n\
    this socket is for the commands of tapetum: see `tapetum help`\r\n";

/// Serves a client until it goes, or the server stops.
pub fn serve(stream: &UnixStream, shared: &ListenerShared, number: u64) {
    // A client that breaks off has no one to be told to.
    if let Err(error) = serve_requests(stream, shared, number) {
        tracing::debug!("a command's connection ended: {error}");
    }
}

/// Tells one client too many to come again.
pub fn refuse_full(mut stream: &UnixStream) {
    let told = format!("the server serves {CLIENTS_MAX} commands already: try again when one has ended");
    let frame = framed_data(FrameKind::Failed, &Failure::new(FailureKind::Unavailable, told)).unwrap_or_default();
    // It may have gone already.
    let _ = stream.write_all(&[frame::greeting(), frame].concat());
}

fn serve_requests(stream: &UnixStream, shared: &ListenerShared, number: u64) -> io::Result<()> {
    stream.set_write_timeout(Some(LOOK))?;
    if !greet(stream)? {
        return Ok(());
    }
    stream.set_read_timeout(None)?;
    while let Some(head) = next_head(stream)? {
        let mut caller = FrameCaller::new(ClientStream::new(stream, shared, number));
        let mut is_understood = false;
        let done = match FrameHead::parse(head, REQUEST_BYTES_MAX) {
            Ok(FrameHead { kind: FrameKind::Request, body_bytes }) => {
                let body = caller.out.read_body(body_bytes)?;
                done(&body, shared, &mut caller, &mut is_understood)
            }
            Ok(_) => Err(Failure::bad("clients send requests alone, and this frame is of another kind")),
            Err(why) => Err(Failure::bad(why)),
        };
        // What comes behind a frame that makes no sense makes none either.
        let is_nonsense = matches!(&done, Err(failure) if failure.kind == FailureKind::BadRequest && !is_understood);
        if caller.out.is_broken {
            return Ok(());
        }
        let end = match done {
            // An answer to a read would be as good as before, but nobody knows which it is.
            Ok(()) if shared.source.is_fenced() => framed_data(
                FrameKind::Failed,
                &Failure::new(FailureKind::Unavailable, tapetum::Error::Fenced.to_string()),
            ),
            Ok(()) => framed_data(FrameKind::Done, &()),
            Err(failure) => framed_data(FrameKind::Failed, &failure),
        };
        caller.out.write(&end?)?;
        if is_nonsense {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether the client is of this version.
fn greet(mut stream: &UnixStream) -> io::Result<bool> {
    stream.set_read_timeout(Some(GREETING_PATIENCE))?;
    let mut head = [0; GREETING_BYTES];
    stream.read_exact(&mut head)?;
    let Some(head) = GreetingHead::parse(head) else {
        stream.write_all(NOT_FOR_PEOPLE)?;
        return Ok(false);
    };
    stream.read_exact(&mut vec![0; head.version_bytes])?;
    stream.write_all(&frame::greeting())?;
    // One of another version reads which this is, and says so.
    Ok(head.protocol_version == PROTOCOL_VERSION)
}

/// The head of the next frame; `None` when the client has nothing more to ask.
fn next_head(mut stream: &UnixStream) -> io::Result<Option<[u8; HEAD_BYTES]>> {
    let mut head = [0; HEAD_BYTES];
    match stream.read(&mut head[..1])? {
        0 => Ok(None),
        _ => stream.read_exact(&mut head[1..]).map(|()| Some(head)),
    }
}

fn done(
    body: &[u8],
    shared: &ListenerShared,
    caller: &mut FrameCaller<ClientStream<'_>>,
    is_understood: &mut bool,
) -> Result<(), Failure> {
    let request: Request = postcard::from_bytes(body)
        .map_err(|error| Failure::bad(format!("the request makes no sense to this server: {error}")))?;
    *is_understood = true;
    let Some(what) = audit::words(&request) else { return answered(request, shared, caller) };
    let done = answered(request, shared, caller);
    let (name, from) = peer_of(caller.out.stream);
    let asker = Asker { name: &name, from: &from, door: "the socket of commands" };
    audit::note(asker, &what, &done);
    done
}

/// Whoever asks, as the system knows it.
fn peer_of(stream: &UnixStream) -> (String, String) {
    match rustix::net::sockopt::socket_peercred(stream) {
        Ok(peer) => (format!("uid {}", peer.uid.as_raw()), format!("process {}", peer.pid.as_raw_nonzero())),
        Err(_) => ("unknown".into(), "this machine".into()),
    }
}

fn answered(
    request: Request,
    shared: &ListenerShared,
    caller: &mut FrameCaller<ClientStream<'_>>,
) -> Result<(), Failure> {
    if let Request::Promote { force } = request {
        return Ok(caller.take(Reply::Promoted(shared.source.promote(force)?))?);
    }
    let gone = |error: tapetum::Error| Failure::new(FailureKind::Unavailable, error.to_string());
    let store = shared.source.store().map_err(gone)?;
    let (store, place, compute_units) = (&*store, &shared.place, &shared.compute_units[..]);
    let open = OpenStore { store, place, compute_units, server: Some(&*shared.source) };
    let done = execute(open, request, caller);
    match (done, shared.source.store()) {
        (Err(_), _) if shared.is_stopping.load(Ordering::Acquire) => {
            Err(Failure::new(FailureKind::Unavailable, "the server stops: ask again when it serves again"))
        }
        // The reason is a better one.
        (Err(Failure { kind: FailureKind::Cancelled, .. }), Err(error)) => Err(gone(error)),
        (done, _) => done.and_then(|()| Ok(caller.finish_rows()?)),
    }
}

/// The part of so many bytes that is taken from the server's memory.
fn charged(bytes: usize) -> usize {
    if bytes <= FREE_BYTES { 0 } else { bytes }
}

/// A client's stream, to which an answer goes.
struct ClientStream<'a> {
    stream: &'a UnixStream,
    shared: &'a ListenerShared,
    number: u64,
    /// Bytes of the server's memory that it has taken.
    held_bytes: usize,
    /// A frame was not written to its end: nothing that follows would be understood.
    is_broken: bool,
}

impl<'a> ClientStream<'a> {
    fn new(stream: &'a UnixStream, shared: &'a ListenerShared, number: u64) -> ClientStream<'a> {
        ClientStream { stream, shared, number, held_bytes: 0, is_broken: false }
    }

    /// Waits until the server has so much memory for it.
    ///
    /// # Errors
    /// If the client goes meanwhile, or the store is wanted back.
    fn take_memory(&mut self, bytes: usize) -> io::Result<()> {
        let source = &*self.shared.source;
        let bytes = charged(bytes);
        if bytes == 0 {
            return Ok(());
        }
        if !source.take_memory(self.number, bytes) {
            source.wait_for_memory(true);
            let taken: io::Result<()> = loop {
                std::thread::sleep(MEMORY_LOOK);
                if source.take_memory(self.number, bytes) {
                    break Ok(());
                }
                if self.looks_gone() {
                    break Err(io::ErrorKind::ConnectionAborted.into());
                }
            };
            source.wait_for_memory(false);
            taken?;
        }
        self.held_bytes += bytes;
        Ok(())
    }

    /// Reads the body of a request.
    ///
    /// # Errors
    /// If the client goes meanwhile, or sends nothing while others wait for the memory that it holds.
    fn read_body(&mut self, body_bytes: usize) -> io::Result<Vec<u8>> {
        // As bytes, and as what they say.
        self.take_memory(2 * body_bytes)?;
        let (mut body, mut read) = (vec![0; body_bytes], 0);
        self.stream.set_read_timeout(Some(LOOK))?;
        let mut moved = Instant::now();
        while read < body_bytes {
            match self.stream.read(&mut body[read..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => (read, moved) = (read + more, Instant::now()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stay(moved)?,
                Err(error) => return Err(error),
            }
        }
        self.stream.set_read_timeout(None)?;
        Ok(body)
    }

    /// Whether to wait on for a client that neither sends nor reads.
    ///
    /// # Errors
    /// If not.
    fn stay(&self, moved: Instant) -> io::Result<()> {
        if self.looks_gone() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if self.held_bytes > 0 && moved.elapsed() >= STALLED && self.shared.source.is_memory_wanted() {
            tracing::warn!("let a command go that held memory and neither sent nor read");
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    fn give_memory(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.held_bytes -= bytes;
        self.shared.source.give_memory(self.number, bytes, self.held_bytes == 0);
    }

    /// Writes all of it, unless the client goes, or the store is wanted back.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.take_memory(bytes.len()).and_then(|()| {
            let written = self.write_all(bytes);
            self.give_memory(charged(bytes.len()));
            written
        });
        self.is_broken |= written.is_err();
        written
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut moved = Instant::now();
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(written) => (bytes, moved) = (&bytes[written..], Instant::now()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stay(moved)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn looks_gone(&self) -> bool {
        let mut polled = [PollFd::new(self.stream, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_away = poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0);
        is_away || self.shared.is_stopping.load(Ordering::Acquire) || self.shared.source.store().is_err()
    }
}

impl Drop for ClientStream<'_> {
    fn drop(&mut self) {
        self.give_memory(self.held_bytes);
    }
}

impl FrameOut for ClientStream<'_> {
    fn send(&mut self, frame: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        (self.write(&frame), frame)
    }

    fn looks_gone(&self) -> bool {
        ClientStream::looks_gone(self)
    }
}
