//! Buffers of one size in flight to or from flash, several at once, taken in the order of sending: the long reads and writes of recovery and close.

use crate::error::Error;
use crate::media::flash_run::FlashRun;
use crate::media::io::Io;
use crate::media::transfer::Transfer;
use std::collections::VecDeque;
use tapetum_drive::{LocalBuffer, LocalMemory};

/// The most buffers.
const DEPTH: usize = 8;

/// See the [module](self).
pub struct Flying<'a> {
    io: &'a Io,
    on_their_way: VecDeque<Transfer>,
    /// Free buffers.
    pub spare: Vec<LocalBuffer>,
}

impl<'a> Flying<'a> {
    /// Allocates as many buffers as local memory allows, up to [`DEPTH`].
    pub fn new(io: &'a Io, local: &LocalMemory, chunk_bytes: usize) -> Flying<'a> {
        let spare = (0..DEPTH).map_while(|_| local.allocate(chunk_bytes)).collect();
        Flying { io, on_their_way: VecDeque::new(), spare }
    }

    /// Reads as many bytes as the buffer holds.
    pub fn read(&mut self, flash: u64, buffer: LocalBuffer) {
        let run = FlashRun { flash, at: 0, length: buffer.len() as u32 };
        self.on_their_way.push_back(Transfer::read(self.io, buffer, 0, std::iter::once(run)));
    }

    /// Writes all of the buffer. The next flush makes it durable.
    pub fn write(&mut self, flash: u64, buffer: LocalBuffer) {
        let length = buffer.len();
        self.on_their_way.push_back(Transfer::write(self.io, buffer, length, flash));
    }

    /// Waits for the buffer that was sent first; `None` if none is in flight.
    pub async fn next(&mut self, what: &str) -> Result<Option<LocalBuffer>, Error> {
        let Some(transfer) = self.on_their_way.pop_front() else { return Ok(None) };
        let (buffer, result) = transfer.end(what).await;
        result.map(|()| Some(buffer))
    }
}
