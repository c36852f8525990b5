//! Leases: the memory that a command may touch. A lease goes with the command and comes back with its completion.

use crate::memory::{BufferPart, LocalBuffer, PairMemory, SealedRange};
use crate::protocol::{Completion, LEASED_RANGES_MAX, LeasedRanges, LocalRange, RegionId};

/// The memory of one command. Its submitter cannot reach these bytes until they come back.
#[derive(Debug, Default)]
pub enum Lease {
    /// For a command that names no memory.
    #[default]
    Nothing,
    Buffer(LocalBuffer),
    Buffers([LocalBuffer; 2]),
    /// For the few commands that work on several pages.
    Pages(Box<[LocalBuffer; LEASED_RANGES_MAX]>),
    /// A part of a buffer. Other commands may have the other parts.
    Part(BufferPart),
    /// Bytes of the host's region, for a `Write`. The host may write elsewhere in the arena meanwhile.
    Sealed(SealedRange),
}

impl Lease {
    /// The ranges for the drive to check. Memory of another drive or another host gives none.
    pub(super) fn ranges_in(&self, memory: &PairMemory) -> LeasedRanges {
        let of = |buffer: &LocalBuffer, range| if buffer.is_of(&memory.local) { range } else { LocalRange::EMPTY };
        let whole = |buffer: &LocalBuffer| of(buffer, buffer.range());
        let none = LocalRange::EMPTY;
        let ranges = match self {
            Lease::Nothing => [none; LEASED_RANGES_MAX],
            Lease::Buffer(buffer) => [whole(buffer), none, none, none],
            Lease::Buffers([first, second]) => [whole(first), whole(second), none, none],
            Lease::Pages(pages) => pages.each_ref().map(whole),
            Lease::Part(part) => [of(part.whole(), part.range()), none, none, none],
            Lease::Sealed(sealed) => {
                let is_ours = memory.host.as_ref().is_some_and(|region| sealed.is_of(region));
                let range = if is_ours { sealed.range() } else { LocalRange::EMPTY };
                return LeasedRanges { region: RegionId::HOST, ranges: [range, none, none, none] };
            }
        };
        LeasedRanges { region: RegionId::LOCAL, ranges }
    }

    /// Moves the ranges that the host has written and no command has had to `written`.
    pub(super) fn take_written(&mut self, written: &mut Vec<LocalRange>) {
        match self {
            Lease::Nothing | Lease::Sealed(_) => {}
            Lease::Buffer(buffer) => buffer.written().take_into(written),
            Lease::Buffers(buffers) => buffers.iter_mut().for_each(|buffer| buffer.written().take_into(written)),
            Lease::Pages(pages) => pages.iter_mut().for_each(|page| page.written().take_into(written)),
            Lease::Part(part) => part.written().take_into(written),
        }
    }

    /// The buffer of a command that was lent one.
    ///
    /// # Panics
    /// If it was lent something else.
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

/// The end of a command, and its lease.
#[derive(Debug)]
pub struct Returned {
    pub completion: Completion,
    pub lease: Lease,
}
