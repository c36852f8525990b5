//! A buffer on its way to or from flash, by one command or several, each of which is lent its part of the buffer. Nobody can look
//! at the buffer before all parts are back. Whoever gives a transfer up (a task that is dropped, a reader that has seen enough)
//! leaves them to their commands.

use crate::error::Error;
use crate::media::flash_run::FlashRun;
use crate::media::io::{Io, Tag};
use std::collections::VecDeque;
use tapetum_drive::{Completion, Lease, LocalBuffer, LocalRange, MemoryAddress, Operation, PartedBuffer};

/// See the [module](self).
#[must_use]
pub struct Transfer {
    io: Io,
    /// Those that were not seen to end, the oldest first.
    tags: VecDeque<Tag>,
    buffer: Option<PartedBuffer>,
}

impl Transfer {
    /// A transfer without commands yet.
    pub fn new(io: &Io, buffer: LocalBuffer) -> Transfer {
        Transfer { io: io.clone(), tags: VecDeque::new(), buffer: Some(PartedBuffer::new(buffer)) }
    }

    /// Starts to read `runs` into the buffer, from byte `at` of it on.
    pub fn read(io: &Io, buffer: LocalBuffer, at: usize, runs: impl Iterator<Item = FlashRun>) -> Transfer {
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
        self.start(at, length, |LocalRange { offset: local, length }| Operation::Read { flash, local, length });
    }

    /// Starts to write from the buffer at `at`, behind what the commands before have of it. `fua`: durable when it is done.
    pub fn start_write(&mut self, flash: u64, at: usize, length: usize, fua: bool) {
        self.start(at, length, |LocalRange { offset: local, length }| Operation::Write {
            flash,
            from: MemoryAddress::local(local),
            length,
            fua,
        });
    }

    /// Starts to have the drive write what it is to all of the buffer.
    pub fn start_identify(&mut self) {
        let length = self.buffer.as_ref().map_or(0, PartedBuffer::len);
        self.start(0, length, |into| Operation::Identify { into });
    }

    fn start(&mut self, at: usize, length: usize, operation: impl FnOnce(LocalRange) -> Operation) {
        let part = self.buffer.as_mut().expect("it is given back once").cut(at, length);
        self.tags.push_back(self.io.start(operation(part.range()), Lease::Part(part)));
    }

    /// Commands that were not seen to end.
    pub fn commands(&self) -> usize {
        self.tags.len()
    }

    /// Lends all of a buffer to a command that names places in it; its completion.
    pub async fn run(io: &Io, buffer: &mut LocalBuffer, operation: Operation) -> Completion {
        let mut transfer = Transfer::new(io, buffer.take());
        let length = transfer.buffer.as_ref().map_or(0, PartedBuffer::len);
        transfer.start(0, length, |_| operation);
        let completion = transfer.next_completion().await.expect("it was started");
        // The command has ended.
        let _ = transfer.end_into("", buffer).await;
        completion
    }

    /// Waits until the oldest command is done.
    pub async fn end_one(&mut self, what: &str) -> Result<(), Error> {
        let completion = self.next_completion().await;
        completion.map_or(Ok(()), |completion| self.io.succeeded(&completion, what))
    }

    async fn next_completion(&mut self) -> Option<Completion> {
        let tag = *self.tags.front()?;
        let completion = self.io.finish(tag).await;
        self.tags.pop_front();
        Some(completion)
    }

    /// Waits until all is done; the buffer, and whether it went well.
    pub async fn end(mut self, what: &str) -> (LocalBuffer, Result<(), Error>) {
        let mut result = Ok(());
        while !self.tags.is_empty() {
            result = result.and(self.end_one(what).await);
        }
        let joined = self.buffer.take().and_then(|buffer| buffer.join().ok());
        (joined.expect("each command that has ended gave its part back"), result)
    }

    /// As [`Transfer::end`], with the buffer put back to its owner.
    pub async fn end_into(self, what: &str, buffer: &mut LocalBuffer) -> Result<(), Error> {
        let (returned, result) = self.end(what).await;
        *buffer = returned;
        result
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.tags.is_empty() {
            self.io.forget(&self.tags);
        }
    }
}
