//! Flash: where bytes are ([`Flash`]), apart from how they move ([`FlashQueue`]).
//!
//! A flash is shared by all queue pairs of a drive and knows only its geometry; a queue belongs to one queue pair and
//! is used by one thread at a time. Commands in a queue run in any order.

mod alignment;
mod blocking;
pub mod claim;
#[cfg(test)]
mod conformance;
mod data_file;
mod error;
pub mod faulty;
pub mod file;
pub mod memory;
pub mod overlay;
mod reserve;
mod ring_event;
#[cfg(test)]
pub(crate) mod test_path;
mod uring;

pub use error::{FlashError, Size};

use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::memory::PairMemory;
use crate::protocol::{Command, Completion};

/// How often a transfer that the kernel puts off (EAGAIN, EINTR) is tried again before it fails with that error. Enough for a
/// moment's shortage; so many rounds through the kernel end within a second.
const RETRIES_MAX: u32 = 1000;

/// Whether the kernel says no more than "not now".
fn is_put_off(errno: i32) -> bool {
    errno == libc::EAGAIN || errno == libc::EINTR
}

/// Whether room is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    Held,
    /// The file system reserves nothing: only a write shows whether there is room.
    Unsupported,
}

/// Whether what bytes lie on can still be found where it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Sound,
    /// Its path names something else, or nothing; it has another name.
    Renamed,
    /// It was deleted or replaced: it has no name any more, and is gone when it is closed.
    Removed {
        /// Where this process still has it, to be copied from.
        rescue: PathBuf,
    },
}

/// A place of bytes: a file, a block device, memory.
pub trait Flash: Send + Sync {
    /// Bytes that can be addressed; a multiple of the sector. Never shrinks.
    fn capacity_bytes(&self) -> u64;

    /// Makes at least `capacity_bytes` addressable, durably, while queues move bytes; what is new reads as zero (on a block
    /// device, as whatever was there). May block for as long as the operating system takes to reserve the room.
    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError>;

    /// Reserves room for all of it again, so that a later write finds some: of a file, blocks may have been taken since. An error
    /// where there is none.
    fn reserve(&self) -> Result<Reservation, FlashError> {
        Ok(Reservation::Held)
    }

    /// Looks whether it is still there for the next who opens it. To be asked now and then, such as every second.
    fn health(&self) -> Health {
        Health::Sound
    }

    /// The unit of addresses and lengths, a power of two of at least 512 bytes.
    fn sector_bytes(&self) -> u32;

    /// A write of so many bytes, at a multiple of so many, is there whole or not at all after a power failure; so is one of half as many, to
    /// the sector. 0 promises nothing.
    fn atomic_write_bytes(&self) -> u32 {
        0
    }

    /// One line for the log: what it is and how it moves bytes.
    fn describe(&self) -> String;

    /// Where it is, as an error names it: the path of a file.
    fn place(&self) -> String {
        self.describe()
    }

    /// A queue that moves bytes between this flash and `memory`. About `depth` commands run at once; more may be
    /// submitted, and wait inside. Fails as the operating system does.
    fn open_queue(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>>;

    /// As [`Flash::open_queue`], for one thread alone: the first that polls it or waits on it. What that spares is the
    /// backend's to know.
    fn open_queue_of_one_thread(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        self.open_queue(memory, depth)
    }
}

/// The moving part of a queue pair. Dropping it waits for what is in flight, because a drive that still writes into memory
/// must not outlive its owner's interest in that memory.
pub trait FlashQueue: Send {
    /// Takes a command. Cheap: what costs a system call is left for `poll` or `wait`, so that many share one.
    ///
    /// # Safety
    /// It is a `Read`, `Write`, `Flush` or `Discard` whose ranges lie inside the flash and a region of the queue's memory. Until its completion
    /// came out of `poll`, or this queue is dropped, nobody else reads, writes or frees the memory of a `Read`, and nobody
    /// writes or frees that of a `Write`.
    unsafe fn submit(&mut self, command: &Command);

    /// Starts what was submitted and appends what is done. Never blocks, and makes no system call when there is
    /// nothing to start and nothing done.
    fn poll(&mut self, completions: &mut Vec<Completion>);

    /// Starts what was submitted, then blocks until a completion is there, the timeout ends, or nothing is in flight.
    /// May return early for no reason.
    fn wait(&mut self, timeout: Option<Duration>);

    /// A descriptor that polls readable while completions are there, for `epoll`; `poll` makes it unreadable again.
    /// It says nothing about commands that were submitted and not started: `poll` first, then sleep. `None` where
    /// there is nothing to sleep for: keep polling.
    fn event_fd(&self) -> Option<RawFd>;

    /// Called in place of `poll` while nothing is in flight: makes the descriptor unreadable again if it was raised late.
    fn rest(&mut self) {}
}
