//! The computational storage drive: what holds bytes, moves them, and computes beside them.
//!
//! One seam carries everything: a [`QueuePair`] takes [`Command`]s and gives back [`Completion`]s. Both are plain
//! data, so the far end may be this thread, a ring of the kernel, another process or another machine. *Where bytes
//! are* is a [`Flash`]; *how they move* is the [`FlashQueue`] it opens; what they move to is [`LocalMemory`].
//!
//! Nothing here starts a thread, reads a clock or draws a random number except through [`Env`].

pub mod command;
pub mod counters;
pub mod env;
mod event;
pub mod flash;
pub mod local_memory;
pub mod locks;
pub mod program;
pub mod programs;
pub mod queue_pair;

pub use command::{Command, Completion, DecodeError, LocalRange, Opcode, Operation, ProgramId, Status};
pub use counters::{CountersSnapshot, LatencySnapshot, OpcodeSnapshot};
pub use env::{Env, SimClock, SplitMix64};
pub use event::Event;
pub use flash::claim::FileClaim;
pub use flash::faulty::{CrashReport, Cut, FAULTS, Fault, Faults, FaultyFlash, Report, Struck};
pub use flash::file::{FileFlash, IoEngine};
pub use flash::memory::MemoryFlash;
pub use flash::overlay::OverlayFlash;
pub use flash::{Flash, FlashError, FlashQueue, Health, Reservation};
pub use local_memory::{LocalBuffer, LocalMemory};
pub use program::Program;
pub use queue_pair::{Drive, QueuePair};
