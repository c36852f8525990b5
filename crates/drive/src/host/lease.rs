//! Leases: what of local memory a command may touch. It goes with the command and comes back with its completion.

use crate::memory::{BufferPart, LocalBuffer, LocalMemory};
use crate::protocol::{Completion, LeasedRanges, LocalRange};

/// The memory of one command. Whoever has submitted it has nothing by which to reach these bytes until they come back.
#[derive(Debug, Default)]
pub enum Lease {
    /// Of a command that names no memory.
    #[default]
    Nothing,
    Buffer(LocalBuffer),
    Buffers([LocalBuffer; 2]),
    /// A part of a buffer whose other parts are with other commands.
    Part(BufferPart),
    /// What the command was lent that signals the event for which this one waits, unless another has taken that over. That command
    /// comes back without it. What a quiet command was lent stays with its event until the event is signalled anew.
    Inherited,
}

impl Lease {
    /// As the drive checks them. What is of another drive's memory is none of them.
    pub(super) fn ranges_in(&self, local: &LocalMemory) -> LeasedRanges {
        let of = |buffer: &LocalBuffer, range| if buffer.is_of(local) { range } else { LocalRange::EMPTY };
        let whole = |buffer: &LocalBuffer| of(buffer, buffer.range());
        LeasedRanges(match self {
            Lease::Nothing | Lease::Inherited => [LocalRange::EMPTY; 2],
            Lease::Buffer(buffer) => [whole(buffer), LocalRange::EMPTY],
            Lease::Buffers([first, second]) => [whole(first), whole(second)],
            Lease::Part(part) => [of(part.whole(), part.range()), LocalRange::EMPTY],
        })
    }

    /// The buffer of a command that was given one.
    ///
    /// # Panics
    /// When it was given something else.
    pub fn into_buffer(self) -> LocalBuffer {
        match self {
            Lease::Buffer(buffer) => buffer,
            other => panic!("{other:?} is not one buffer"),
        }
    }
}

impl From<LocalBuffer> for Lease {
    fn from(buffer: LocalBuffer) -> Lease {
        Lease::Buffer(buffer)
    }
}

/// The end of a command, and what it was lent.
#[derive(Debug)]
pub struct Returned {
    pub completion: Completion,
    pub lease: Lease,
}
