//! The messages of a queue pair: commands and lists of stages one way, completions the other.
//!
//! Plain data: ids, offsets, lengths; never a pointer or a closure. All have a fixed little-endian form, so a queue pair can run over
//! shared memory or a byte stream. Decoding is strict: every byte without meaning must be zero, so `encode(decode(bytes)) == bytes`, and
//! unused fields stay free for later versions. Decoding checks only the form: the drive checks whether a range lies inside it.

mod command;
mod completion;
mod descriptor;
mod identity;
mod leased;
mod purpose;
mod result;
mod stage;
mod wire;

pub use command::{Command, LocalRange, MemoryAddress, Opcode, Operation, ProgramId, RegionId};
pub use completion::{Completion, Status};
pub use descriptor::{
    ATTACHMENT_BYTES_MAX, PARAMETERS_MAX, PIPELINES_MAX, PROGRAMS_MAX, PipelineDescriptor, PipelineSink,
    PipelineSource, PipelineStage, SOURCE_RANGES_MAX, SourceRange,
};
pub use identity::{CommandSet, Identity, IdentityError, NamespaceIdentity, PROGRAM_NAME_BYTES, ProgramIdentity};
pub use leased::{LEASED_RANGES_MAX, LeasedRanges};
pub use purpose::Purpose;
pub use result::{PipelineFailure, PipelinePlace, PipelineReason, PipelineResult};
pub use stage::{Execution, INPUTS_MAX, STAGES_MAX, Stage};
pub use wire::DecodeError;
pub(crate) use wire::{get, put};

/// The most commands in flight on one queue pair. Enough for the deepest drive many times over, and few enough that the state of each does
/// not count beside the memory that they name.
pub const CREDITS: usize = 4096;
