//! TLS of one connection, between its socket and its buffers.
//!
//! ```text
//!   socket ─► sealed ─► session ─► plain ─► the door
//!   socket ◄─ sealed ◄─ session ◄─ plain ◄─ OutQueue
//! ```
//! 1. Before the handshake is over the door gets nothing, and nothing of its output is sealed.
//! 2. It holds a part of a record that has not come whole, and at most [`SEALED_BYTES`] of output, and some more for what the session adds.
//! 3. The session counts bytes of the input that it has seen: whoever asks it for anything gives it all of the input that was not taken yet.
//! 4. After an error the session is asked nothing any more.
//! 5. A handshake begins when its worker has a place for it ([`crate::worker`]).
//!
//! Owned by one worker.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus};

use crate::net::out::{OutQueue, Pool};
use crate::os;

/// Bytes of output that are sealed before the socket takes them.
const SEALED_BYTES: usize = 64 << 10;
/// Bytes that a record of 16 KiB has beside them, at the most.
const RECORD_BYTES_MORE: usize = 64;
pub(super) const RECORD_BYTES: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing has come.
    Silent,
    /// For a place in which to shake hands.
    Waits,
    Shakes,
    Ready,
    /// The session is used no more: bytes were no TLS, and it has counted those that are gone.
    Failed,
}

pub struct TlsSide {
    session: UnbufferedServerConnection,
    stage: Stage,
    /// Input that is no whole record yet.
    part: Vec<u8>,
    /// Output, of which so much is sent.
    sealed: Vec<u8>,
    sent_bytes: usize,
    /// The peer has said that it sends nothing more.
    is_closed: bool,
    /// The client's certificate was asked for.
    is_known: bool,
}

impl TlsSide {
    /// # Errors
    /// If the configuration fits no connection.
    pub fn new(config: Arc<ServerConfig>) -> Result<TlsSide, rustls::Error> {
        Ok(TlsSide {
            session: UnbufferedServerConnection::new(config)?,
            stage: Stage::Silent,
            part: Vec::new(),
            sealed: Vec::new(),
            sent_bytes: 0,
            is_closed: false,
            is_known: false,
        })
    }

    pub fn is_silent(&self) -> bool {
        self.stage == Stage::Silent
    }

    /// Something has come, and there is no place yet.
    pub fn wait(&mut self) {
        assert!(self.is_silent(), "it waits once");
        self.stage = Stage::Waits;
    }

    pub fn waits(&self) -> bool {
        self.stage == Stage::Waits
    }

    pub fn shakes(&self) -> bool {
        self.stage == Stage::Shakes
    }

    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    /// There is a place for its handshake now.
    pub fn begin(&mut self) {
        assert!(self.is_silent() || self.waits(), "a handshake begins once");
        self.stage = Stage::Shakes;
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub fn has_part(&self) -> bool {
        !self.part.is_empty()
    }

    pub fn has_unsent(&self) -> bool {
        self.sealed.len() > self.sent_bytes
    }

    pub fn held_bytes(&self) -> usize {
        self.part.capacity() + self.sealed.capacity()
    }

    /// The client's certificate, which was verified; once, when the handshake is over.
    pub fn take_certificate(&mut self) -> Option<&CertificateDer<'static>> {
        if !self.is_ready() || std::mem::replace(&mut self.is_known, true) {
            return None;
        }
        self.session.peer_certificates().and_then(|chain| chain.first())
    }

    /// Reads at most `bytes_max` into `scratch`, and appends what they say to `plain`. Returns how many bytes came, and how many could.
    ///
    /// # Errors
    /// Those of the socket, and of bytes that are no TLS: the peer was told of these.
    pub fn receive(
        &mut self,
        socket: impl AsFd,
        scratch: &mut [u8],
        bytes_max: usize,
        plain: &mut Vec<u8>,
    ) -> io::Result<(usize, usize)> {
        let held = self.part.len();
        let end = scratch.len().min(held.saturating_add(bytes_max));
        if held >= end {
            // No record, and no message of a handshake, is so long.
            self.fail();
            return Err(io::ErrorKind::InvalidData.into());
        }
        let came = os::read(&socket, &mut scratch[held..end])?;
        scratch[..held].copy_from_slice(&self.part);
        let sealed = &mut scratch[..held + came];
        // Not twice what there is: the buffer may hold a long value already.
        plain.reserve_exact(sealed.len());
        let taken = match self.open(sealed, plain) {
            Ok(taken) => taken,
            Err(error) => {
                // If it takes that at once.
                let _ = os::send(socket, &[IoSlice::new(&self.sealed[self.sent_bytes..])]);
                self.fail();
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        };
        let rest = &sealed[taken..];
        if rest.is_empty() {
            self.part = Vec::new();
        } else {
            self.part.clear();
            self.part.extend_from_slice(rest);
        }
        Ok((came, end - held))
    }

    /// Appends what `sealed` says to `plain`. Returns how much of it was taken. After an error the output ends with what the peer is told.
    fn open(&mut self, sealed: &mut [u8], plain: &mut Vec<u8>) -> Result<usize, rustls::Error> {
        let mut taken = 0;
        loop {
            let UnbufferedStatus { discard, state, .. } = self.session.process_tls_records(&mut sealed[taken..]);
            let mut discard = discard;
            let mut is_done = false;
            let state = match state {
                Ok(state) => state,
                Err(error) => {
                    self.seal_alert(&mut sealed[taken + discard..]);
                    return Err(error);
                }
            };
            match state {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        discard += record.discard;
                        plain.extend_from_slice(record.payload);
                    }
                }
                ConnectionState::EncodeTlsData(data) => encode(data, &mut self.sealed),
                // It is sent before anything that follows.
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::PeerClosed => self.is_closed = true,
                ConnectionState::WriteTraffic(_) => {
                    self.stage = Stage::Ready;
                    is_done = true;
                }
                ConnectionState::BlockedHandshake | ConnectionState::Closed => is_done = true,
                // The configuration allows none.
                ConnectionState::ReadEarlyData(_) => return Err(rustls::Error::General("early data".into())),
                _ => return Err(rustls::Error::General("a state that is not known here".into())),
            }
            taken += discard;
            if is_done {
                return Ok(taken);
            }
        }
    }

    /// Seals output, and sends as much as the socket takes. Returns how many bytes.
    pub fn send(&mut self, socket: impl AsFd, out: &mut OutQueue, pool: &mut Pool) -> io::Result<usize> {
        let mut total = 0;
        loop {
            while self.has_unsent() {
                match os::send(&socket, &[IoSlice::new(&self.sealed[self.sent_bytes..])]) {
                    Ok(bytes) => {
                        self.sent_bytes += bytes;
                        total += bytes;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(total),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            self.sent_bytes = 0;
            if out.is_empty() || !self.is_ready() {
                // An idle connection holds no buffer.
                pool.give(std::mem::take(&mut self.sealed));
                return Ok(total);
            }
            if self.sealed.capacity() == 0 {
                self.sealed = pool.take();
            }
            self.sealed.clear();
            self.seal(out, pool).map_err(|error| {
                self.fail();
                io::Error::other(error)
            })?;
        }
    }

    /// Seals the beginning of `out`.
    fn seal(&mut self, out: &mut OutQueue, pool: &mut Pool) -> Result<(), rustls::Error> {
        let mut taken = 0;
        while taken < SEALED_BYTES {
            let Some(piece) = out.pieces().next() else { break };
            let piece = &piece[..piece.len().min(SEALED_BYTES - taken)];
            let UnbufferedStatus { state, discard, .. } = self.session.process_tls_records(&mut self.part);
            match state? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    let start = self.sealed.len();
                    let records = piece.len().div_ceil(RECORD_BYTES);
                    self.sealed.resize(start + piece.len() + records * RECORD_BYTES_MORE, 0);
                    let sealed = traffic.encrypt(piece, &mut self.sealed[start..]).map_err(of_encrypt)?;
                    self.sealed.truncate(start + sealed);
                    let bytes = piece.len();
                    out.advance(bytes, pool);
                    taken += bytes;
                }
                ConnectionState::EncodeTlsData(data) => encode(data, &mut self.sealed),
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::PeerClosed => self.is_closed = true,
                _ => return Err(rustls::Error::General("nothing can be sent any more".into())),
            }
            self.part.drain(..discard);
            // A queue keeps an empty first chunk for no one.
            if out.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn fail(&mut self) {
        self.clear();
        (self.stage, self.part) = (Stage::Failed, Vec::new());
    }

    /// Drops unsent output.
    pub fn clear(&mut self) {
        (self.sealed, self.sent_bytes) = (Vec::new(), 0);
    }

    /// Tells the peer that nothing more comes, if it takes that at once.
    pub fn say_end(&mut self, socket: impl AsFd) {
        if self.has_unsent() || !self.is_ready() {
            return;
        }
        let UnbufferedStatus { state, .. } = self.session.process_tls_records(&mut self.part);
        let mut words = [0; 2 * RECORD_BYTES_MORE];
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = state
            && let Ok(bytes) = traffic.queue_close_notify(&mut words)
        {
            // It may have gone already.
            let _ = os::send(socket, &[IoSlice::new(&words[..bytes])]);
        }
    }

    /// Seals what the session tells the peer of an error. `rest`: the input that was not taken.
    fn seal_alert(&mut self, rest: &mut [u8]) {
        let UnbufferedStatus { state, .. } = self.session.process_tls_records(rest);
        if let Ok(ConnectionState::EncodeTlsData(data)) = state {
            encode(data, &mut self.sealed);
        }
    }
}

fn encode<D>(mut data: EncodeTlsData<'_, D>, sealed: &mut Vec<u8>) {
    let start = sealed.len();
    match data.encode(&mut []) {
        Ok(0) => {}
        Err(EncodeError::InsufficientSize(needed)) => {
            sealed.resize(start + needed.required_size, 0);
            let written = data.encode(&mut sealed[start..]);
            assert_eq!(written.ok(), Some(needed.required_size), "the session has said how much room it needs");
        }
        other => unreachable!("the session gives each piece once, and needs room for it: {other:?}"),
    }
}

fn of_encrypt(error: EncryptError) -> rustls::Error {
    rustls::Error::General(error.to_string())
}
