//! Flash: the bytes ([`Flash`]), and the queues that move them ([`FlashQueue`]).
//!
//! A flash is shared by all queue pairs of a drive and knows only its geometry; a queue belongs to one queue pair and
//! is used by one thread at a time. Commands in a queue run in any order.

mod alignment;
mod blocking;
pub mod claim;
#[cfg(test)]
pub(crate) mod conformance;
mod data_file;
mod error;
pub mod faulty;
pub mod file;
pub mod memory;
pub mod overlay;
mod parts;
pub mod redundant;
mod reserve;
mod ring_event;
pub mod set;
#[cfg(test)]
pub(crate) mod test_path;
mod uring;

pub use error::{FlashError, Size};

use std::any::Any;
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redundant::losses::MemberState;
use redundant::rows::Rows;

use crate::memory::PairMemory;
use crate::protocol::{Command, Completion};

/// How often a transfer that the kernel defers (EAGAIN, EINTR) is retried before it fails with that error. Enough for a short shortage; so
/// many rounds through the kernel end within a second.
const RETRIES_MAX: u32 = 1000;

/// Whether this error only means "not now".
fn is_put_off(errno: i32) -> bool {
    errno == libc::EAGAIN || errno == libc::EINTR
}

/// Whether the file system has reserved room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    Held,
    /// The file system cannot reserve room: only a write shows whether there is some.
    Unsupported,
}

/// Whether a store can still be found at the path where it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Sound,
    /// Its path names something else, or nothing. The file has another name.
    Renamed,
    /// It was deleted or replaced: it has no name any more, and its bytes are lost when it is closed.
    Removed {
        /// The path of this process's open file, to copy it from.
        rescue: PathBuf,
    },
    /// It is in another process, which has ended, or lets this one have it no more.
    Away,
}

/// Storage for bytes: a file, a block device, memory.
pub trait Flash: Send + Sync {
    /// Addressable bytes; a multiple of the sector. Never shrinks.
    fn capacity_bytes(&self) -> u64;

    /// Makes at least `capacity_bytes` addressable, durably, while queues move bytes. The new part reads as zero; on a block device it
    /// keeps its contents. May block while the operating system reserves the room.
    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError>;

    /// Reserves room for all of it again, because blocks of a file may have been lost since, so that later writes succeed. An error if
    /// there is no room.
    fn reserve(&self) -> Result<Reservation, FlashError> {
        Ok(Reservation::Held)
    }

    /// Whether it can still be opened at its path. To be called regularly, for example every second.
    fn health(&self) -> Health {
        Health::Sound
    }

    /// The unit of addresses and lengths, a power of two of at least 512 bytes.
    fn sector_bytes(&self) -> u32;

    /// Size of an atomic write: a write of this many bytes, at a multiple of this, survives a power failure whole or not at all; so does
    /// one of half as many, down to the sector. 0 promises nothing.
    fn atomic_write_bytes(&self) -> u32 {
        0
    }

    /// One line for the log: what it is and how it moves bytes.
    fn describe(&self) -> String;

    /// Where each member of a set begins, the first at 0: a flash by itself is its only member.
    fn member_starts(&self) -> Vec<u64> {
        vec![0]
    }

    /// What becomes of extents, in a set with redundancy.
    fn rows(&self) -> Option<&Arc<Rows>> {
        None
    }

    /// The members of a set with redundancy; none of others.
    fn members(&self) -> Vec<MemberState> {
        Vec::new()
    }

    /// Makes equal what is there twice, after a crash: to be called when all is known that is needed, and before anything is written. How many
    /// bytes were written. Blocks.
    fn make_copies_equal(&self) -> io::Result<u64> {
        Ok(0)
    }

    /// Its name for error messages: the path of a file.
    fn place(&self) -> String {
        self.describe()
    }

    /// Itself, if it belongs to a drive in another process: that is reached by queue pairs of the host's alone, which knows its type.
    fn elsewhere(&self) -> Option<&dyn Any> {
        None
    }

    /// A queue that moves bytes between this flash and `memory`. About `depth` commands run at once; more may be
    /// submitted, and wait inside. Fails as the operating system does.
    fn open_queue(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>>;

    /// Like [`Flash::open_queue`], for one thread alone: the first that polls it or waits on it. A backend may use this to make completions
    /// cheaper.
    fn open_queue_of_one_thread(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        self.open_queue(memory, depth)
    }
}

/// The queue of a queue pair. Dropping it waits for commands in flight, because the drive must not write into memory that its owner has
/// freed.
pub trait FlashQueue: Send {
    /// Takes a command. Cheap: system calls are left to `poll` and `wait`, so that many commands share one.
    ///
    /// # Safety
    /// It is a `Read`, `Write`, `Flush` or `Discard` whose ranges lie inside the flash and a region of the queue's memory. Until `poll` has
    /// given its completion, or this queue is dropped, nobody else reads, writes or frees the memory of a `Read`, and nobody writes or
    /// frees that of a `Write`.
    unsafe fn submit(&mut self, command: &Command);

    /// Starts submitted commands and appends completions. Never blocks, and makes no system call when there is nothing to start and nothing
    /// has completed.
    fn poll(&mut self, completions: &mut Vec<Completion>);

    /// Starts submitted commands, then blocks until there is a completion, the timeout ends, or nothing is in flight.
    /// May return early for no reason.
    fn wait(&mut self, timeout: Option<Duration>);

    /// A descriptor, for `epoll`, that is readable while there are completions; `poll` makes it unreadable again. It does not report
    /// commands that were submitted and not started: `poll` first, then sleep. `None` if there is no such descriptor: keep polling.
    fn event_fd(&self) -> Option<RawFd>;

    /// To be called in place of `poll` while nothing is in flight: makes the descriptor unreadable again if it was raised late.
    fn rest(&mut self) {}
}
