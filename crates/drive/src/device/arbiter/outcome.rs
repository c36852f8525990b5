//! Inputs and answers of the arbiter: why it refuses a pipeline, how a task and a pipeline ended.

use super::PIPELINE_STAGES_MAX;
use crate::protocol::ProgramId;
use std::fmt;

/// Why a pipeline is refused.
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
    /// The pipeline may need more sub-buffers than exist.
    TooLarge {
        peak: u16,
        sub_buffers: u16,
    },
    /// The application has the most pipelines that it may have: take ends first.
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
    /// The input is used up. `bytes` of the output are filled.
    Done { bytes: u32 },
    /// The output is filled with `bytes`, and the same input will give more.
    More { bytes: u32 },
    /// Like `Done`, and the program wants no further part of the input.
    Enough { bytes: u32 },
    /// The status that the program returned; never zero.
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
    /// Cancelled while this stage ran or waited to run.
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

/// The status of a stage that produced more than its output holds, in a pipeline that does not work in parts.
pub const OUTPUT_OVERFLOW: u16 = u16::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineEnd {
    pub sequence: u32,
    pub application: u16,
    pub outcome: PipelineOutcome,
}

/// How a task's report was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskReport {
    Counted,
    /// The pipeline had already ended at its deadline. The task's unit and sub-buffers are free again.
    Late,
}

/// A completion of a task that is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownTask;
