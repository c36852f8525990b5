//! How tasks and pipelines ended, for the arbiter and for the host.

use super::job::TaskWork;
use crate::device::arbiter::{OUTPUT_OVERFLOW, PipelineOutcome, PipelineRefusal, TaskOutcome, TaskPacket};
use crate::protocol::{PipelineFailure, PipelinePlace, PipelineReason, PipelineResult, Status};

/// How a unit's work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskResult {
    /// The program returned this status and filled so many bytes.
    Ran {
        status: Status,
        filled: u32,
    },
    /// The program of a command returned this.
    Executed {
        status: Status,
        result: [u64; 2],
    },
    Moved,
    /// A flash command of the move failed.
    FlashFailed {
        errno: i32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobEnd {
    pub owner: u64,
    pub token: u64,
    pub result: JobResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobResult {
    Pipeline(PipelineResult),
    /// The end of a program of a command.
    Execution(ExecutionResult),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionResult {
    Ran {
        status: Status,
        result: [u64; 2],
    },
    /// Its unit died, or it was cancelled: its output is undefined.
    UnitLost,
    /// All units of the program died before one took it. Nothing was done.
    NotBegun,
}

/// The outcome of a task for the arbiter, and the failure for the host.
pub(super) fn outcome_of(
    packet: &TaskPacket,
    work: &TaskWork,
    result: TaskResult,
    is_enough: bool,
) -> (TaskOutcome, Option<PipelineFailure>) {
    let place = place_of(packet.stage, packet.stage_count);
    match (work, result) {
        (TaskWork::Move(moves), TaskResult::Moved) => (moves.outcome, None),
        (_, TaskResult::Ran { status: Status::Success, filled }) if is_enough => {
            (TaskOutcome::Enough { bytes: filled }, None)
        }
        (_, TaskResult::Ran { status: Status::Success, filled }) => (TaskOutcome::Done { bytes: filled }, None),
        (_, TaskResult::Ran { status: Status::More, filled }) => (TaskOutcome::More { bytes: filled }, None),
        (_, TaskResult::FlashFailed { errno }) => {
            let failure = PipelineFailure::new(place, PipelineReason::FlashFailed).with(errno as u32);
            (TaskOutcome::Failed { status: 1 }, Some(failure))
        }
        (_, TaskResult::Ran { status, .. }) => {
            let status = if let Status::Program(status) = status { status } else { 1 };
            let failure = PipelineFailure::new(place, PipelineReason::Program).with(u32::from(status));
            (TaskOutcome::Failed { status }, Some(failure))
        }
        (_, TaskResult::Executed { .. }) => (TaskOutcome::Done { bytes: 0 }, None),
        (TaskWork::Run { .. } | TaskWork::Execute(_), TaskResult::Moved) => unreachable!("a program was to run"),
    }
}

fn place_of(stage: u8, stage_count: u8) -> PipelinePlace {
    match stage {
        0 => PipelinePlace::Source,
        stage if stage + 1 == stage_count => PipelinePlace::Sink,
        stage => PipelinePlace::Stage(stage - 1),
    }
}

/// The failure for the host when the arbiter refuses a pipeline.
pub(super) fn refused(refusal: PipelineRefusal) -> PipelineFailure {
    let whole = |reason| PipelineFailure::new(PipelinePlace::Source, reason);
    match refusal {
        PipelineRefusal::UnknownApplication(number) => {
            whole(PipelineReason::UnknownApplication).with(u32::from(number))
        }
        PipelineRefusal::NoStages | PipelineRefusal::TooManyStages(_) => whole(PipelineReason::NoStages),
        PipelineRefusal::NoUnit { stage, program } => {
            let place = PipelinePlace::Stage(stage.saturating_sub(1));
            PipelineFailure::new(place, PipelineReason::UnknownProgram).with(u32::from(program.0))
        }
        PipelineRefusal::TooLarge { peak, .. } => whole(PipelineReason::TooLarge).with(u32::from(peak)),
        PipelineRefusal::QueueFull => whole(PipelineReason::QueueFull),
    }
}

/// The failure for the host when an accepted pipeline gave no result.
pub(super) fn failed(outcome: PipelineOutcome, stage_count: u8) -> PipelineFailure {
    let (stage, reason) = match outcome {
        PipelineOutcome::Finished => unreachable!("it has not failed"),
        PipelineOutcome::Failed { stage, status: OUTPUT_OVERFLOW } => (stage, PipelineReason::OutputOverflow),
        PipelineOutcome::Failed { stage, .. } => (stage, PipelineReason::Program),
        PipelineOutcome::Cancelled { stage } => (stage, PipelineReason::Cancelled),
        PipelineOutcome::DeadlineExceeded { stage } => (stage, PipelineReason::DeadlineExceeded),
        PipelineOutcome::UnitLost { stage } => (stage, PipelineReason::UnitLost),
        PipelineOutcome::NoUnitLeft { stage } => (stage, PipelineReason::NoUnitLeft),
    };
    PipelineFailure::new(place_of(stage, stage_count), reason)
}
