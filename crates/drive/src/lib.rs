//! The computational storage drive: what holds bytes, moves them, and computes beside them.
//!
//! One seam carries everything: a [`QueuePair`] takes [`Command`]s and gives back [`Completion`]s. Both are plain
//! data, so the far end may be this thread, a ring of the kernel, another process or another machine. *Where bytes
//! are* is a [`Flash`]; *how they move* is the [`FlashQueue`] it opens; what they move to is [`LocalMemory`]. What the host
//! writes by and by, such as a log, a drive reads from the host's own memory ([`HostRegion`]).
//!
//! ```text
//! host ──► device ──► flash, memory
//!   └────────┴─────────► protocol
//! ```
//! The *host half* is what the store holds: queue pairs and their credits. The *device half* checks commands, moves bytes and
//! runs programs. Dependencies go along the arrows.
//!
//! Nothing here starts a thread, reads a clock or draws a random number except through [`Env`].

pub mod counters;
mod cpu;
mod device;
pub mod env;
mod event;
pub mod flash;
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod link;
pub mod locks;
pub mod machine;
pub mod memory;
pub mod planted;
mod process;
mod protocol;
pub mod serving;
pub mod unfinished;
mod wakeup;

pub use counters::{CountersSnapshot, LatencySnapshot, OpcodeSnapshot, PurposeAccount};
pub use cpu::{DriveUsage, drive_cpu_us, thread_cpu_us};
pub use device::program::{self, Program};
pub use device::threads::DRIVE_THREADS_MAX;
pub use device::{arbiter, engine, programs};
pub use env::{Env, SimClock};
pub use event::Event;
pub use flash::claim::FileClaim;
pub use flash::faulty::{CrashReport, Cut, FAULTS, Fault, Faults, FaultyFlash, Report, Struck};
pub use flash::file::{FileFlash, IoEngine};
pub use flash::memory::MemoryFlash;
pub use flash::overlay::OverlayFlash;
pub use flash::redundant::absent::AbsentFlash;
pub use flash::redundant::losses::{MemberState, RecordAbsence};
pub use flash::redundant::rows::Rows;
pub use flash::redundant::shape::{Redundancy, Shape};
pub use flash::redundant::{RedundantFlash, member_bytes};
pub use flash::set::{SetFlash, SetMember};
pub use flash::{Flash, FlashError, FlashQueue, Health, Reservation, Size};
pub use host::{AttachedFlash, Attaching, CarriedFlash, Drive, HostView, Lease, QueueFull, QueuePair, Returned};
pub use memory::{BufferPart, HostArena, HostRegion, LocalBuffer, LocalMemory, PairMemory, PartedBuffer, SealedRange};
pub use process::{OfProcess, ProcessMark};
pub use protocol::{
    ATTACHMENT_BYTES_MAX, CREDITS, Command, CommandSet, Completion, DecodeError, Execution, INPUTS_MAX, Identity,
    IdentityError, LocalRange, MemoryAddress, NamespaceIdentity, Opcode, Operation, PARAMETERS_MAX, PIPELINES_MAX,
    PROGRAM_NAME_BYTES, PROGRAMS_MAX, PipelineDescriptor, PipelineFailure, PipelinePlace, PipelineReason,
    PipelineResult, PipelineSink, PipelineSource, PipelineStage, ProgramId, ProgramIdentity, Purpose, RegionId,
    SOURCE_RANGES_MAX, STAGES_MAX, SourceRange, Stage, Status,
};
pub use tapetum_kernels::random::SplitMix64;
