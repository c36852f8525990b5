//! What the sockets of one report have brought, where that is little: read from all of them before any of it is looked at.
//!
//! ```text
//!   read · read · read ─► items fetched ─► answer · answer · answer
//! ```
//! So the items of all are on their way from memory at once, and neither the kernel's code for a read nor ours for an answer drives the
//! other out of the processor's cache for each request. Owned by one worker.

use std::os::fd::AsFd;

use crate::os;

/// Room for what one socket brings. Who sends as much has a batch of his own.
pub const PIECE_BYTES: usize = 4 << 10;

/// By default it has no room.
#[derive(Default)]
pub struct Arrivals {
    pieces: Vec<[u8; PIECE_BYTES]>,
    /// Whose they are, and how long.
    came: Vec<(u32, usize)>,
}

impl Arrivals {
    /// With room for all of one report.
    pub fn new() -> Arrivals {
        Arrivals { pieces: vec![[0; PIECE_BYTES]; os::EVENTS_MAX], came: Vec::with_capacity(os::EVENTS_MAX) }
    }

    /// Reads what the socket of connection `id` has, at most a piece; whether it had any.
    pub fn read(&mut self, id: u32, socket: impl AsFd) -> bool {
        match os::read(socket, &mut self.pieces[self.came.len()]) {
            Ok(bytes @ 1..) => {
                self.came.push((id, bytes));
                true
            }
            // Whoever reads next deals with what there is instead.
            Ok(0) | Err(_) => false,
        }
    }

    /// Whose they are, and what they are.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> + Clone {
        self.came.iter().zip(&self.pieces).map(|(&(id, bytes), piece)| (id, &piece[..bytes]))
    }

    pub fn clear(&mut self) {
        self.came.clear();
    }
}
