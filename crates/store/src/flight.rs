//! Buffers of one size on their way to or from flash, several at once, in the order in which they were sent: long reads and
//! writes of recovery and close. Given up, a buffer stays with the drive until that has let go of it.

use crate::error::Error;
use crate::io::{Io, Tag, succeeded};
use std::collections::VecDeque;
use tapetum_drive::{LocalBuffer, LocalMemory, Operation};

/// Buffers at most.
const DEPTH: usize = 8;

/// See the [module](self).
pub struct Flying<'a> {
    io: &'a Io,
    on_their_way: VecDeque<(Tag, LocalBuffer)>,
    /// Buffers that are free.
    pub spare: Vec<LocalBuffer>,
}

impl<'a> Flying<'a> {
    /// As many buffers as there is local memory for, up to [`DEPTH`].
    pub fn new(io: &'a Io, local: &LocalMemory, chunk_bytes: usize) -> Flying<'a> {
        let spare = (0..DEPTH).map_while(|_| local.allocate(chunk_bytes)).collect();
        Flying { io, on_their_way: VecDeque::new(), spare }
    }

    /// Reads as much as the buffer holds.
    pub fn read(&mut self, flash: u64, buffer: LocalBuffer) {
        let operation = Operation::Read { flash, local: buffer.offset(), length: buffer.len() as u32 };
        self.on_their_way.push_back((self.io.start(operation), buffer));
    }

    /// Writes all of the buffer; durable when a flush is.
    pub fn write(&mut self, flash: u64, buffer: LocalBuffer) {
        let tag = self.io.start_write(flash, &buffer, 0, buffer.len(), false);
        self.on_their_way.push_back((tag, buffer));
    }

    /// The buffer that was sent first, when it is done; `None` when none is on its way.
    pub async fn next(&mut self, what: &str) -> Result<Option<LocalBuffer>, Error> {
        let Some((tag, buffer)) = self.on_their_way.pop_front() else { return Ok(None) };
        let buffer = Given { io: self.io, tag, buffer: Some(buffer) };
        let completion = self.io.finish(tag).await;
        let buffer = buffer.take();
        succeeded(completion, what)?;
        Ok(buffer)
    }
}

impl Drop for Flying<'_> {
    fn drop(&mut self) {
        for (tag, buffer) in self.on_their_way.drain(..) {
            self.io.abandon(vec![tag], buffer);
        }
    }
}

/// A buffer that is the drive's until `take`.
struct Given<'a> {
    io: &'a Io,
    tag: Tag,
    buffer: Option<LocalBuffer>,
}

impl Given<'_> {
    fn take(mut self) -> Option<LocalBuffer> {
        self.buffer.take()
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.io.abandon(vec![self.tag], buffer);
        }
    }
}
