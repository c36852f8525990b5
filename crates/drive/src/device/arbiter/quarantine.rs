//! Units that die, and units that do not return from a task in time.
//!
//! A task that runs beyond its pipeline's deadline may still read its input and write its output. The pipeline ends without the task, and
//! these two sub-buffers are **quarantined**: they stay reserved, and nobody gets them, until the unit returns or is known to be dead. A
//! dead unit writes nothing.

use super::pipeline::ScheduledPipeline;
use super::{Arbiter, PipelineOutcome, SubBuffer, TaskCost, TaskReport, UnknownTask, VIRTUAL_PER_US};
use crate::fail_point;
use crate::protocol::ProgramId;

/// A task that still runs after its pipeline has ended, and what it holds.
pub(super) struct QuarantinedTask {
    program: ProgramId,
    application: u16,
    charged: u64,
    sub_buffers: [Option<SubBuffer>; 2],
}

impl QuarantinedTask {
    fn held(&self) -> u16 {
        self.sub_buffers.iter().flatten().count() as u16
    }
}

impl Arbiter {
    /// Ends a pipeline without waiting for its running task.
    pub(super) fn end_without_task(&mut self, sequence: u32, outcome: PipelineOutcome) {
        let Some(pipeline) = self.pipelines.get_mut(&sequence) else { return };
        let ScheduledPipeline { application, charged, .. } = *pipeline;
        let (program, stage) = (pipeline.program(), pipeline.stage());
        let task = QuarantinedTask { program, application, charged, sub_buffers: pipeline.take_running() };
        if fail_point!(NoQuarantine) {
            self.sub_buffers_free.extend(task.sub_buffers.iter().flatten());
        } else {
            self.reserved += task.held();
        }
        self.quarantined.insert((sequence, stage), task);
        self.end(sequence, outcome);
    }

    /// A unit returned from a task whose pipeline had already ended.
    pub(super) fn completed_late(
        &mut self,
        task: (u32, u8),
        cost: Option<TaskCost>,
    ) -> Result<TaskReport, UnknownTask> {
        let Some(quarantined) = self.quarantined.remove(&task) else { return Err(UnknownTask) };
        if !fail_point!(NoQuarantine) {
            self.reserved -= quarantined.held();
            self.sub_buffers_free.extend(quarantined.sub_buffers.iter().flatten());
        }
        let QuarantinedTask { program, application, charged, .. } = quarantined;
        self.unit_is_back(program, application, charged, cost);
        Ok(TaskReport::Late)
    }

    /// Frees a unit. The application pays the measured cost instead of the estimate; for a unit that died no cost is known, and the
    /// estimate stands.
    pub(super) fn unit_is_back(&mut self, program: ProgramId, application: u16, charged: u64, cost: Option<TaskCost>) {
        let Some(unit) = self.units.get_mut(&program) else { unreachable!("a task that runs has a unit") };
        unit.busy -= 1;
        let Some(cost) = cost else { return };
        let spent = cost.unit_us * VIRTUAL_PER_US + cost.flash_bytes * self.flash_byte_cost;
        unit.cost_guess = (3 * unit.cost_guess + spent) / 4;
        let application = &mut self.applications[usize::from(application)];
        application.virtual_time =
            (application.virtual_time + spent / application.weight).saturating_sub(charged / application.weight);
    }

    /// The unit that ran a task is dead: it will not come back, and writes nothing any more. Its pipeline ends.
    ///
    /// # Errors
    /// When no such task is running; nothing is changed.
    pub fn task_lost(&mut self, sequence: u32, stage: u8) -> Result<TaskReport, UnknownTask> {
        let program = match self.pipelines.get(&sequence).filter(|pipeline| pipeline.runs(stage)) {
            Some(pipeline) => pipeline.program(),
            None => self.quarantined.get(&(sequence, stage)).ok_or(UnknownTask)?.program,
        };
        let report = match self.pipelines.get_mut(&sequence).filter(|pipeline| pipeline.runs(stage)) {
            Some(pipeline) => {
                let ScheduledPipeline { application, charged, given_up, .. } = *pipeline;
                pipeline.stops();
                self.unit_is_back(program, application, charged, None);
                self.end(sequence, given_up.unwrap_or(PipelineOutcome::UnitLost { stage }));
                TaskReport::Counted
            }
            None => self.completed_late((sequence, stage), None)?,
        };
        self.unit_lost(program);
        Ok(report)
    }

    /// A unit without a task died. If it was its program's last, pipelines that need the program end.
    pub fn unit_lost(&mut self, program: ProgramId) {
        let Some(unit) = self.units.get_mut(&program) else { return };
        if fail_point!(DeadUnitsCount) {
            return;
        }
        unit.total = unit.total.saturating_sub(1);
        if unit.total > 0 {
            return;
        }
        let needs = |(sequence, pipeline): (&u32, &ScheduledPipeline)| Some((*sequence, pipeline.needs(program)?));
        let needy: Vec<(u32, u8)> = self.pipelines.iter().filter_map(needs).collect();
        for (sequence, stage) in needy {
            self.give_up(sequence, PipelineOutcome::NoUnitLeft { stage });
        }
    }

    /// Sub-buffers that are reserved for admitted pipelines or quarantined.
    pub fn reserved(&self) -> u16 {
        self.reserved
    }

    pub fn sub_buffers_free(&self) -> usize {
        self.sub_buffers_free.len()
    }

    /// Sub-buffers that stay reserved until the units that may still write them return.
    pub fn quarantined(&self) -> usize {
        self.quarantined.values().map(|task| usize::from(task.held())).sum()
    }
}
