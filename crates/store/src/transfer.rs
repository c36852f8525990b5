//! A buffer on its way to or from flash, by one command or several. It belongs to the drive until the last is done: whoever
//! gives a transfer up (a task that is dropped, a reader that has seen enough) leaves the buffer with [`Io`] until then.
//! Nobody can look at it meanwhile.

use crate::error::Error;
use crate::io::{Io, Tag};
use crate::segment::view::Run;
use std::collections::VecDeque;
use tapetum_drive::{LocalBuffer, LocalRange, Operation};

/// See the [module](self).
#[must_use]
pub struct Transfer {
    io: Io,
    /// Those that were not seen to end, the oldest first.
    tags: VecDeque<Tag>,
    buffer: Option<LocalBuffer>,
    /// Where the last command's bytes end in the buffer.
    reached: usize,
}

impl Transfer {
    /// A transfer without commands yet.
    pub fn new(io: &Io, buffer: LocalBuffer) -> Transfer {
        Transfer { io: io.clone(), tags: VecDeque::new(), buffer: Some(buffer), reached: 0 }
    }

    /// Starts to read `runs` into the buffer, from byte `at` of it on.
    pub fn read(io: &Io, buffer: LocalBuffer, at: usize, runs: impl Iterator<Item = Run>) -> Transfer {
        let mut transfer = Transfer::new(io, buffer);
        runs.for_each(|run| transfer.start_read(run.flash, at + run.at as usize, run.length as usize));
        transfer
    }

    /// Starts to write the first `length` bytes of the buffer; they are durable when a flush is.
    pub fn write(io: &Io, buffer: LocalBuffer, length: usize, flash: u64) -> Transfer {
        let mut transfer = Transfer::new(io, buffer);
        transfer.start_write(flash, 0, length, false);
        transfer
    }

    /// Starts to read into the buffer at `at`, behind what the commands before have of it.
    pub fn start_read(&mut self, flash: u64, at: usize, length: usize) {
        self.start(at, length, |local, length| Operation::Read { flash, local, length });
    }

    /// Starts to write from the buffer at `at`, behind what the commands before have of it. `fua`: durable when it is done.
    pub fn start_write(&mut self, flash: u64, at: usize, length: usize, fua: bool) {
        self.start(at, length, |local, length| Operation::Write { flash, local, length, fua });
    }

    /// Starts to have the drive write what it is to all of the buffer.
    pub fn start_identify(&mut self) {
        let length = self.buffer.as_ref().map_or(0, LocalBuffer::len);
        self.start(0, length, |offset, length| Operation::Identify { into: LocalRange { offset, length } });
    }

    fn start(&mut self, at: usize, length: usize, operation: impl FnOnce(u64, u32) -> Operation) {
        let buffer = self.buffer.as_ref().expect("it is given back once");
        assert!(self.reached <= at && at + length <= buffer.len(), "commands take parts of the buffer in order");
        self.reached = at + length;
        let operation = operation(buffer.offset() + at as u64, length as u32);
        // SAFETY: the range is of a buffer that nobody can reach before `end` gives it back or `Io` has seen all commands end,
        // also when this is dropped or forgotten; no other command has a part of it.
        self.tags.push_back(unsafe { self.io.start(operation) });
    }

    /// Commands that were not seen to end.
    pub fn commands(&self) -> usize {
        self.tags.len()
    }

    /// Waits until the oldest command is done.
    pub async fn end_one(&mut self, what: &str) -> Result<(), Error> {
        let Some(&tag) = self.tags.front() else { return Ok(()) };
        let completion = self.io.finish(tag).await;
        self.tags.pop_front();
        self.io.succeeded(&completion, what)
    }

    /// Waits until all is done; the buffer, and whether it went well.
    pub async fn end(mut self, what: &str) -> (LocalBuffer, Result<(), Error>) {
        let mut result = Ok(());
        while !self.tags.is_empty() {
            result = result.and(self.end_one(what).await);
        }
        (self.buffer.take().expect("it is given back once"), result)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.io.abandon(std::mem::take(&mut self.tags).into(), buffer);
        }
    }
}
