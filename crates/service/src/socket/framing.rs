//! Answers as frames, wherever they go: through the socket, or another door of the server.
//!
//! Threads: one, the caller's.

#![allow(clippy::disallowed_methods)] // Clocks that decide when to look, and nothing that is kept.

use std::io;
use std::time::Instant;

use tapetum_kernels::scan::Scalar;

use super::frame::{FrameKind, HEAD_BYTES, finish, framed_data_in};
use super::rows::{RowReader, RowWriter};
use super::serving::LOOK;
use crate::caller::{Caller, CallerLeft};
use crate::reply::Reply;

/// A buffer is kept for the next part of an answer, unless it has more than this.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// The way to whoever asked.
pub trait FrameOut {
    /// Sends a frame, and gives its buffer back. After an error nothing more is sent.
    fn send(&mut self, frame: Vec<u8>) -> (io::Result<()>, Vec<u8>);

    /// Whether nobody waits for the rest.
    fn looks_gone(&self) -> bool;
}

/// Sends what it is told as frames.
pub struct FrameCaller<O> {
    pub out: O,
    rows: Option<RowWriter>,
    /// The buffer of the last frame, used again for the next one.
    buffer: Vec<u8>,
    /// When it was last looked for.
    looked: Instant,
    has_left: bool,
}

impl<O: FrameOut> FrameCaller<O> {
    pub fn new(out: O) -> FrameCaller<O> {
        FrameCaller { out, rows: None, buffer: Vec::new(), looked: Instant::now(), has_left: false }
    }

    fn send(&mut self, frame: io::Result<Vec<u8>>) -> Result<(), CallerLeft> {
        let sent = frame.and_then(|frame| {
            let (sent, frame) = self.out.send(frame);
            // A large one is one value's, most likely.
            if frame.capacity() <= BUFFER_BYTES_MAX {
                self.buffer = frame;
            }
            sent
        });
        self.has_left |= sent.is_err();
        sent.map_err(|_| CallerLeft)
    }

    fn send_rows(&mut self, part: Vec<u8>) -> Result<(), CallerLeft> {
        if part.len() <= HEAD_BYTES { Ok(()) } else { self.send(finish(FrameKind::Rows, part)) }
    }

    /// Sends what is left of the rows.
    ///
    /// # Errors
    /// If whoever asked has left.
    pub fn finish_rows(&mut self) -> Result<(), CallerLeft> {
        let Some(rows) = self.rows.take() else { return Ok(()) };
        let last = rows.finish().map_err(|_| CallerLeft)?;
        self.send_rows(last)
    }
}

impl<O: FrameOut> Caller for FrameCaller<O> {
    fn take(&mut self, reply: Reply) -> Result<(), CallerLeft> {
        if let Reply::Columns(columns) = &reply {
            self.rows = Some(RowWriter::new(columns).map_err(|_| CallerLeft)?);
        } else {
            self.finish_rows()?;
        }
        let buffer = std::mem::take(&mut self.buffer);
        self.send(framed_data_in(buffer, FrameKind::Reply, &reply))
    }

    fn row(&mut self, values: &[Option<Scalar<'_>>]) {
        if self.has_left {
            return;
        }
        let Some(rows) = &mut self.rows else { unreachable!("rows come behind their columns") };
        match rows.push(values) {
            Ok(None) => {}
            // Whoever asks whether the client has left notices what could not be sent.
            Ok(Some(part)) => drop(self.send_rows(part)),
            Err(_) => self.has_left = true,
        }
    }

    fn has_left(&mut self) -> bool {
        if !self.has_left && self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.has_left = self.out.looks_gone();
        }
        self.has_left
    }
}

/// Whether an answer goes on behind a frame.
pub enum Told {
    More,
    Done,
}

/// Hands the frames of an answer on to whoever asked.
#[derive(Default)]
pub struct AnswerReader {
    rows: RowReader,
}

/// Why a frame is no part of an answer.
pub enum FrameError {
    Failed(crate::failure::Failure),
    Nonsense(String),
}

impl AnswerReader {
    /// # Errors
    /// The failure that the server tells; or the frame makes no sense; or the caller has left.
    pub fn take(&mut self, kind: FrameKind, body: &mut Vec<u8>, caller: &mut dyn Caller) -> Result<Told, FrameError> {
        let nonsense = |why: &dyn std::fmt::Display| FrameError::Nonsense(why.to_string());
        match kind {
            FrameKind::Reply => {
                let reply = postcard::from_bytes(body).map_err(|error| nonsense(&error))?;
                caller.take(in_order(reply)).map_err(|left| FrameError::Failed(left.into()))?;
            }
            FrameKind::Rows => {
                let read = self.rows.read(std::mem::take(body), &mut |values| caller.row(values));
                read.map_err(|error| nonsense(&error))?;
                if caller.has_left() {
                    return Err(FrameError::Failed(CallerLeft.into()));
                }
            }
            FrameKind::Done => return Ok(Told::Done),
            FrameKind::Failed => {
                let failure = postcard::from_bytes(body).map_err(|error| nonsense(&error))?;
                return Err(FrameError::Failed(failure));
            }
            FrameKind::Request => return Err(FrameError::Nonsense("a request from a server".into())),
        }
        Ok(Told::More)
    }
}

/// Rows come with their columns in order.
fn in_order(reply: Reply) -> Reply {
    match reply {
        Reply::Columns(mut columns) => {
            columns.iter_mut().enumerate().for_each(|(place, column)| column.place = place);
            Reply::Columns(columns)
        }
        reply => reply,
    }
}
