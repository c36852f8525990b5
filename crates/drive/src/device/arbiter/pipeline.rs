//! A pipeline on its way through its stages, part by part.
//!
//! ```text
//! outputs:   stage 0 ──► stage 1 ──► stage 2      Stage 0 said "more": it goes on when 1 and 2 have taken its part, unless one of them
//!                                                has enough.
//!            [more]      [done]      [runs]       The last stage with more, before the one that has just ended, runs next.
//! ```

use super::packet::{ARGUMENTS_BYTES, PIPELINE_STAGES_MAX, SubBuffer, TaskPacket};
use super::{OUTPUT_OVERFLOW, PipelineOutcome, PipelineRefusal, TaskOutcome};
use crate::protocol::ProgramId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageRequest {
    pub program: ProgramId,
    pub arguments: [u8; ARGUMENTS_BYTES],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineRequest {
    pub application: u16,
    pub stages: Vec<StageRequest>,
    /// Stages may fill their outputs in parts. Such a pipeline reserves one sub-buffer a stage; otherwise two are enough.
    pub in_parts: bool,
    pub deadline_us: Option<u64>,
}

pub(super) struct ScheduledPipeline {
    pub application: u16,
    pub deadline_us: Option<u64>,
    /// The most sub-buffers that it holds at once.
    pub peak: u16,
    /// The pipeline waits to be released.
    pub parked: bool,
    pub admitted: bool,
    /// The cost that its running task was charged at its start.
    pub charged: u64,
    /// The outcome with which the pipeline ends when its running task has ended.
    pub given_up: Option<PipelineOutcome>,
    /// The arbiter's round in which its next task was put into the wait queue.
    pub queued_round: u64,
    programs: [ProgramId; PIPELINE_STAGES_MAX],
    arguments: [[u8; ARGUMENTS_BYTES]; PIPELINE_STAGES_MAX],
    stage_count: u8,
    in_parts: bool,
    /// The stage that runs or runs next.
    stage: u8,
    running: bool,
    /// By stage: the output that it fills now, or filled and the next stage has not used up.
    outputs: [Option<SubBuffer>; PIPELINE_STAGES_MAX],
    /// By stage: it has more to produce from its current input.
    has_more: [bool; PIPELINE_STAGES_MAX],
}

/// The step after a task.
pub(super) enum StepAfter {
    Run,
    End(PipelineOutcome),
}

impl ScheduledPipeline {
    pub fn new(request: &PipelineRequest) -> Result<ScheduledPipeline, PipelineRefusal> {
        let count = request.stages.len();
        if count == 0 {
            return Err(PipelineRefusal::NoStages);
        }
        if count > PIPELINE_STAGES_MAX {
            return Err(PipelineRefusal::TooManyStages(count));
        }
        let mut programs = [ProgramId(0); PIPELINE_STAGES_MAX];
        let mut arguments = [[0; ARGUMENTS_BYTES]; PIPELINE_STAGES_MAX];
        for (place, stage) in request.stages.iter().enumerate() {
            (programs[place], arguments[place]) = (stage.program, stage.arguments);
        }
        Ok(ScheduledPipeline {
            application: request.application,
            deadline_us: request.deadline_us,
            // In parts, every stage may hold an output. Otherwise only the running stage's input and output are held.
            peak: if request.in_parts { count } else { count.min(2) } as u16,
            parked: true,
            admitted: false,
            charged: 0,
            given_up: None,
            queued_round: 0,
            programs,
            arguments,
            stage_count: count as u8,
            in_parts: request.in_parts,
            stage: 0,
            running: false,
            outputs: [None; PIPELINE_STAGES_MAX],
            has_more: [false; PIPELINE_STAGES_MAX],
        })
    }

    pub fn programs(&self) -> &[ProgramId] {
        &self.programs[..usize::from(self.stage_count)]
    }

    pub fn program(&self) -> ProgramId {
        self.programs[usize::from(self.stage)]
    }

    pub fn stage(&self) -> u8 {
        self.stage
    }

    pub fn runs(&self, stage: u8) -> bool {
        self.running && self.stage == stage
    }

    pub fn is_running(&self) -> bool {
        self.running
    }

    pub fn start(&mut self, sequence: u32, output: SubBuffer, charged: u64) -> TaskPacket {
        let stage = usize::from(self.stage);
        assert!(!self.running && self.outputs[stage].is_none(), "a stage runs once at a time");
        (self.running, self.charged, self.outputs[stage]) = (true, charged, Some(output));
        TaskPacket {
            sequence,
            stage: self.stage,
            stage_count: self.stage_count,
            application: self.application,
            input: stage.checked_sub(1).and_then(|before| self.outputs[before]),
            output,
            input_is_last: !self.has_more[..stage].contains(&true),
            resumes: std::mem::take(&mut self.has_more[stage]),
            stages: self.programs,
            arguments: self.arguments[stage],
        }
    }

    /// The running task has ended; sub-buffers that nobody needs any more go to `free`.
    pub fn completed(&mut self, outcome: TaskOutcome, free: &mut Vec<SubBuffer>) -> StepAfter {
        self.running = false;
        let stage = usize::from(self.stage);
        if let Some(outcome) = self.given_up {
            return StepAfter::End(outcome);
        }
        let bytes = match outcome {
            TaskOutcome::Failed { status } => return self.fails(status),
            // A stage that says "more" and fills nothing would never end.
            TaskOutcome::More { bytes } if !self.in_parts || bytes == 0 => return self.fails(OUTPUT_OVERFLOW),
            TaskOutcome::More { bytes } => {
                self.has_more[stage] = true;
                bytes
            }
            TaskOutcome::Done { bytes } => {
                // The stage has used up its input.
                if let Some(before) = stage.checked_sub(1) {
                    free.extend(self.outputs[before].take());
                }
                bytes
            }
            TaskOutcome::Enough { bytes } => {
                self.has_more[..stage].fill(false);
                free.extend(self.outputs[..stage].iter_mut().filter_map(Option::take));
                bytes
            }
        };
        let is_last_stage = self.stage + 1 == self.stage_count;
        let is_last_part = !self.has_more[..=stage].contains(&true);
        if !is_last_stage && (bytes > 0 || is_last_part) {
            self.stage += 1;
            return StepAfter::Run;
        }
        // The next stage has taken the output, or it is empty.
        free.extend(self.outputs[stage].take());
        match self.has_more[..=stage].iter().rposition(|more| *more) {
            Some(before) => {
                self.stage = before as u8;
                StepAfter::Run
            }
            None => StepAfter::End(PipelineOutcome::Finished),
        }
    }

    /// The first stage that has this program and may still run: one behind a stage with more runs again.
    pub fn needs(&self, program: ProgramId) -> Option<u8> {
        let first_with_more = self.has_more.iter().position(|more| *more);
        let from = first_with_more.map_or(self.stage, |stage| self.stage.min(stage as u8));
        (from..self.stage_count).find(|stage| self.programs[usize::from(*stage)] == program)
    }

    /// The running task will not come back.
    pub fn stops(&mut self) {
        self.running = false;
    }

    /// Takes away the sub-buffers of the running task: its input and its output.
    pub fn take_running(&mut self) -> [Option<SubBuffer>; 2] {
        let stage = usize::from(self.stage);
        let input = stage.checked_sub(1).and_then(|before| self.outputs[before].take());
        [input, self.outputs[stage].take()]
    }

    fn fails(&self, status: u16) -> StepAfter {
        StepAfter::End(PipelineOutcome::Failed { stage: self.stage, status })
    }

    pub fn free_all(&mut self, free: &mut Vec<SubBuffer>) {
        free.extend(self.outputs.iter_mut().filter_map(Option::take));
    }
}
