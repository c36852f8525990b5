//! Short inputs of the sockets that epoll reported: read from all of them before any is parsed.
//!
//! ```text
//!   read · read · read ─► items fetched ─► answer · answer · answer
//! ```
//! So the items of all are on their way from memory at once, and neither the kernel's code for a read nor ours for an answer drives the
//! other out of the processor's cache for each request. Owned by one worker.

use std::io;

use zeroize::Zeroize;

use crate::os;

/// Room for the input of one socket. A client that sends more fills a batch alone.
pub const PIECE_BYTES: usize = 4 << 10;

/// By default it has no room.
#[derive(Default)]
pub struct Arrivals {
    pieces: Vec<[u8; PIECE_BYTES]>,
    /// The connection of each, and its length.
    came: Vec<(u32, usize)>,
}

impl Arrivals {
    /// With room for all sockets of one report.
    pub fn new() -> Arrivals {
        Arrivals { pieces: vec![[0; PIECE_BYTES]; os::EVENTS_MAX], came: Vec::with_capacity(os::EVENTS_MAX) }
    }

    /// Reads what connection `id` has, at most a piece; whether it had any.
    pub fn read(&mut self, id: u32, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> bool {
        match read(&mut self.pieces[self.came.len()]) {
            Ok(bytes @ 1..) => {
                self.came.push((id, bytes));
                true
            }
            // The next reader handles the end or the error.
            Ok(0) | Err(_) => false,
        }
    }

    /// The connection of each, and its bytes.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> + Clone {
        self.came.iter().zip(&self.pieces).map(|(&(id, bytes), piece)| (id, &piece[..bytes]))
    }

    /// Overwrites what came.
    pub fn wipe(&mut self) {
        self.pieces[..self.came.len()].iter_mut().for_each(|piece| piece.zeroize());
    }

    pub fn clear(&mut self) {
        self.came.clear();
    }
}
