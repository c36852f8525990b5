//! Leases: what of memory a command may touch. It goes with the command and comes back with its completion.

use crate::memory::{BufferPart, LocalBuffer, PairMemory, SealedRange};
use crate::protocol::{Completion, LeasedRanges, LocalRange, RegionId};

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
    /// Bytes of the host's region, for a `Write`. The host goes on writing elsewhere in the arena.
    Sealed(SealedRange),
    /// What the command was lent that signals the event for which this one waits, unless another has taken that over. That command
    /// comes back without it. What a quiet command was lent stays with its event until the event is signalled anew.
    Inherited,
}

impl Lease {
    /// As the drive checks them. What is of another drive's memory, or another host's, is none of them.
    pub(super) fn ranges_in(&self, memory: &PairMemory) -> LeasedRanges {
        let of = |buffer: &LocalBuffer, range| if buffer.is_of(&memory.local) { range } else { LocalRange::EMPTY };
        let whole = |buffer: &LocalBuffer| of(buffer, buffer.range());
        let ranges = match self {
            Lease::Nothing | Lease::Inherited => [LocalRange::EMPTY; 2],
            Lease::Buffer(buffer) => [whole(buffer), LocalRange::EMPTY],
            Lease::Buffers([first, second]) => [whole(first), whole(second)],
            Lease::Part(part) => [of(part.whole(), part.range()), LocalRange::EMPTY],
            Lease::Sealed(sealed) => {
                let is_ours = memory.host.as_ref().is_some_and(|region| sealed.is_of(region));
                let range = if is_ours { sealed.range() } else { LocalRange::EMPTY };
                return LeasedRanges { region: RegionId::HOST, ranges: [range, LocalRange::EMPTY] };
            }
        };
        LeasedRanges { region: RegionId::LOCAL, ranges }
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
