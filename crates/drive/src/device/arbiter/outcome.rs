//! What the arbiter is told and what it says: why a pipeline is not taken, how a task and a pipeline ended.

use super::PIPELINE_STAGES_MAX;
use crate::protocol::ProgramId;
use std::fmt;

/// Why a pipeline is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineRefusal {
    UnknownApplication(u16),
    NoStages,
    TooManyStages(usize),
    /// No unit runs the program of this stage.
    NoUnit {
        stage: u8,
        program: ProgramId,
    },
    /// It may hold more sub-buffers than there are.
    TooLarge {
        peak: u16,
        sub_buffers: u16,
    },
    /// The application has as many pipelines as it may: take ends first.
    QueueFull,
}

impl fmt::Display for PipelineRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PipelineRefusal::UnknownApplication(number) => {
                write!(f, "application {number} is not registered: give it a weight when the drive is opened")
            }
            PipelineRefusal::NoStages => write!(f, "a pipeline of no stages: name at least one program"),
            PipelineRefusal::TooManyStages(count) => {
                write!(f, "{count} stages: a pipeline has at most {PIPELINE_STAGES_MAX}; split it in two")
            }
            PipelineRefusal::NoUnit { stage, program } => {
                write!(f, "stage {stage} names program {}, which no unit of this drive runs: choose another", program.0)
            }
            PipelineRefusal::TooLarge { peak, sub_buffers } => write!(
                f,
                "the pipeline may hold {peak} sub-buffers at once and the drive has {sub_buffers}: give it more local memory"
            ),
            PipelineRefusal::QueueFull => {
                write!(f, "the application's queue is full: wait for one of its pipelines to end")
            }
        }
    }
}

impl std::error::Error for PipelineRefusal {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskOutcome {
    /// The input is used up; so many bytes of the output are filled.
    Done { bytes: u32 },
    /// The output is filled, and more of it is to come from the same input.
    More { bytes: u32 },
    /// As done, and no further part of the input is wanted.
    Enough { bytes: u32 },
    /// What the program said; never zero.
    Failed { status: u16 },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCost {
    pub unit_us: u64,
    pub flash_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineOutcome {
    Finished,
    /// A program's status, or [`OUTPUT_OVERFLOW`].
    Failed {
        stage: u8,
        status: u16,
    },
    /// While this stage ran, or was to.
    Cancelled {
        stage: u8,
    },
    DeadlineExceeded {
        stage: u8,
    },
    /// The unit that ran this stage died.
    UnitLost {
        stage: u8,
    },
    /// The last unit of this stage's program died before the stage had ended.
    NoUnitLeft {
        stage: u8,
    },
}

/// The status of a stage that had more than its output holds, in a pipeline that was not submitted as one of parts.
pub const OUTPUT_OVERFLOW: u16 = u16::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineEnd {
    pub sequence: u32,
    pub application: u16,
    pub outcome: PipelineOutcome,
}

/// What became of a task that was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskReport {
    Counted,
    /// Its pipeline had ended at its deadline. Its unit and its sub-buffers are free.
    Late,
}

/// A completion of a task that is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownTask;
