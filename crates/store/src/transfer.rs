//! A buffer on its way to or from flash, by one command or several. It belongs to the drive until the last is done: whoever
//! gives a transfer up (a task that is dropped, a reader that has seen enough) leaves the buffer with [`Io`] until then.

use crate::error::Error;
use crate::io::{Io, Tag};
use crate::segment::view::Run;
use tapetum_drive::{LocalBuffer, Operation};

/// See the [module](self).
#[must_use]
pub struct Transfer {
    io: Io,
    /// Those that were not seen to end.
    tags: Vec<Tag>,
    buffer: Option<LocalBuffer>,
}

impl Transfer {
    /// Starts to read `runs` into the buffer, from byte `at` of it on.
    pub fn read(io: &Io, buffer: LocalBuffer, at: usize, runs: impl Iterator<Item = Run>) -> Transfer {
        let start = |run: Run| {
            let into = at + run.at as usize;
            assert!(into + run.length as usize <= buffer.len());
            io.start(Operation::Read { flash: run.flash, local: buffer.offset() + into as u64, length: run.length })
        };
        Transfer { io: io.clone(), tags: runs.map(start).collect(), buffer: Some(buffer) }
    }

    /// Starts to write the first `length` bytes of the buffer; they are durable when a flush is.
    pub fn write(io: &Io, buffer: LocalBuffer, length: usize, flash: u64) -> Transfer {
        let tag = io.start_write(flash, &buffer, 0, length, false);
        Transfer { io: io.clone(), tags: vec![tag], buffer: Some(buffer) }
    }

    /// How many commands there are.
    pub fn commands(&self) -> usize {
        self.tags.len()
    }

    /// Waits until all is done; the buffer, and whether it went well.
    pub async fn end(mut self, what: &str) -> (LocalBuffer, Result<(), Error>) {
        let mut result = Ok(());
        while let Some(&tag) = self.tags.last() {
            let completion = self.io.finish(tag).await;
            result = self.io.succeeded(&completion, what).and(result);
            self.tags.pop();
        }
        (self.buffer.take().expect("it is given back once"), result)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.io.abandon(std::mem::take(&mut self.tags), buffer);
        }
    }
}
