//! Commands with programs: `Execute`, and lists of reads and programs.
//!
//! 1. Programs of a command run one after the other, on the thread that polls, or each on a unit of its program, if the drive has such.
//! 2. A command whose unit died ends with [`Status::UnitLost`]. A program for which no unit is free runs here: nothing waits for a unit.

use super::transfers::TransferOwner;
use super::{CommandEnd, Controller, EndedCommand};
use crate::device::engine::ExecutionResult;
use crate::device::engine::run::{execute, operands};
use crate::device::program::PREFETCH_ROUNDS;
use crate::fail_point;
use crate::protocol::{Completion, Execution, INPUTS_MAX, LeasedRanges, LocalRange, Opcode, Operation, Status};

/// One in this many runs of programs is timed: a clock costs as much as a small program.
const RUNS_TIMED_EVERY: u64 = 16;

/// The stage and the status that ended a pipeline early.
#[derive(Clone, Copy)]
pub(super) struct StageFailure {
    pub stage: u16,
    pub status: Status,
    pub errno: i32,
}

/// A running pipeline, or a free place for one.
pub(super) struct Pipeline {
    pub end: CommandEnd,
    /// `Pipeline`, or `Execute` for a command that names one program.
    opcode: Opcode,
    submitted_us: u64,
    reads: u16,
    reads_left: u16,
    failure: Option<StageFailure>,
    /// The stages behind the reads.
    executions: Vec<Execution>,
    /// How many of them have ended, with success.
    ran: u16,
    /// The result of the last of these.
    result: [u64; 2],
}

impl Controller {
    pub(super) fn read_ended(&mut self, place: u32, failure: Option<StageFailure>) {
        let pipeline = &mut self.pipelines[place as usize];
        pipeline.reads_left -= 1;
        pipeline.failure = pipeline.failure.or(failure);
        if pipeline.reads_left == 0 || (pipeline.failure.is_some() && fail_point!(LeaseInFlight)) {
            self.ready.push(place);
        }
    }

    pub(super) fn submit_execute(&mut self, end: CommandEnd, execution: Execution, leased: &LeasedRanges) {
        if let Err(status) = self.check_execution(&execution, leased) {
            return self.refuse(end, Opcode::Execute, 0, status);
        }
        let place = self.place_pipeline(end, Opcode::Execute);
        self.pipelines[place as usize].executions.push(execution);
        self.ready.push(place);
    }

    /// # Safety
    /// As [`Controller::submit`].
    pub(super) unsafe fn submit_pipeline(&mut self, end: CommandEnd, stages: LocalRange, leased: &LeasedRanges) {
        let place = self.place_pipeline(end, Opcode::Pipeline);
        let mut executions = std::mem::take(&mut self.pipelines[place as usize].executions);
        let mut reads = std::mem::take(&mut self.reads);
        // SAFETY: by our caller's word.
        let checked = unsafe { self.check_list(stages, leased, &mut reads, &mut executions) };
        self.pipelines[place as usize].executions = executions;
        match checked {
            Err((stage, status)) => {
                self.free_pipeline(place);
                self.refuse(end, Opcode::Pipeline, stage, status);
            }
            // SAFETY: the pipeline was checked, and the ranges it names are leased.
            Ok(()) => unsafe { self.start_pipeline(place, &reads) },
        }
        reads.clear();
        self.reads = reads;
    }

    /// # Safety
    /// As [`Controller::start_plain`].
    unsafe fn start_pipeline(&mut self, place: u32, reads: &[(u64, LocalRange)]) {
        if reads.is_empty() {
            return self.ready.push(place);
        }
        let pipeline = &mut self.pipelines[place as usize];
        (pipeline.reads, pipeline.reads_left) = (reads.len() as u16, reads.len() as u16);
        for (stage, (flash, local)) in (0..).zip(reads) {
            let owner = TransferOwner::Stage { pipeline: place, stage };
            let read = Operation::Read { flash: *flash, local: local.offset, length: local.length };
            // SAFETY: the ranges are inside flash and the lease, and do not overlap.
            unsafe { self.submit_to_flash(owner, read) };
        }
    }

    fn place_pipeline(&mut self, end: CommandEnd, opcode: Opcode) -> u32 {
        let submitted_us = self.started_us();
        let pipeline = |executions| Pipeline {
            end,
            opcode,
            submitted_us,
            reads: 0,
            reads_left: 0,
            failure: None,
            executions,
            ran: 0,
            result: [0; 2],
        };
        if let Some(place) = self.pipelines_free.pop() {
            let free = &mut self.pipelines[place as usize];
            *free = pipeline(std::mem::take(&mut free.executions));
            return place;
        }
        self.pipelines.push(pipeline(Vec::new()));
        self.pipelines.len() as u32 - 1
    }

    fn free_pipeline(&mut self, place: u32) {
        self.pipelines[place as usize].executions.clear();
        self.pipelines_free.push(place);
    }

    /// Runs the programs of all pipelines that are ready. First it prefetches what they will read, for all of them, so that their cache
    /// misses overlap.
    pub(super) fn run_ready(&mut self, now_us: u64, ended: &mut Vec<EndedCommand>) {
        let mut ready = std::mem::take(&mut self.ready);
        for round in 0..PREFETCH_ROUNDS {
            ready.iter().for_each(|place| self.prefetch(*place, round));
        }
        for place in ready.drain(..) {
            let Some(completion) = self.run_pipeline(place) else { continue };
            let Pipeline { end, opcode, submitted_us, .. } = self.pipelines[place as usize];
            if opcode == Opcode::Pipeline {
                self.counters.completed(opcode, completion.status);
                self.counters.latency(opcode, now_us.saturating_sub(submitted_us));
            }
            ended.push(end.ended(completion));
            self.free_pipeline(place);
        }
        self.ready = ready;
    }

    fn prefetch(&self, place: u32, round: usize) {
        let Pipeline { failure: None, executions, ran, .. } = &self.pipelines[place as usize] else { return };
        if let Some(execution) = executions.get(usize::from(*ran)) {
            let program = &self.device.programs[usize::from(execution.program.0)];
            let mut inputs = [&[][..]; INPUTS_MAX];
            // SAFETY: the execution was checked, and its pipeline is not completed.
            let (parameters, inputs) = unsafe { operands(execution, &self.device.local, &mut inputs) };
            program.prefetch(round, parameters, inputs);
        }
    }

    /// Runs the programs that are left. `None`: a unit has the next one.
    fn run_pipeline(&mut self, place: u32) -> Option<Completion> {
        loop {
            let Pipeline { end, failure, ref executions, ran, result, .. } = self.pipelines[place as usize];
            if let Some(StageFailure { stage, status, errno }) = failure {
                return Some(Completion { tag: end.tag, status, errno, result, stage });
            }
            let Some(execution) = executions.get(usize::from(ran)).copied() else {
                return Some(Completion { result, ..Completion::success(end.tag) });
            };
            if self.compute.as_mut().is_some_and(|compute| compute.execute(place, execution)) {
                return None;
            }
            // SAFETY: it was checked, and its pipeline is not completed.
            let (status, result) = unsafe { self.run_program(&execution) };
            self.program_ended(place, status, result);
        }
    }

    /// A unit has ended a program of a pipeline, or died: the pipeline goes on.
    pub(super) fn unit_ended(&mut self, place: u32, ended: ExecutionResult) {
        match ended {
            ExecutionResult::Ran { status, result } => {
                self.counters.completed(Opcode::Execute, status);
                self.program_ended(place, status, result);
            }
            ExecutionResult::UnitLost => {
                self.counters.completed(Opcode::Execute, Status::UnitLost);
                self.program_ended(place, Status::UnitLost, [0; 2]);
            }
            // It is tried again, here where no unit is left.
            ExecutionResult::NotBegun => {}
        }
        self.ready.push(place);
    }

    fn program_ended(&mut self, place: u32, status: Status, result: [u64; 2]) {
        let pipeline = &mut self.pipelines[place as usize];
        pipeline.result = result;
        match status {
            Status::Success => pipeline.ran += 1,
            status => {
                let stage = pipeline.reads + pipeline.ran;
                pipeline.failure = Some(StageFailure { stage, status, errno: 0 });
            }
        }
    }

    /// # Safety
    /// The execution was checked, and nobody else touches its output or writes what it reads.
    unsafe fn run_program(&mut self, execution: &Execution) -> (Status, [u64; 2]) {
        let timed_from_us = self.runs.is_multiple_of(RUNS_TIMED_EVERY).then(|| self.device.env.now_us());
        self.runs += 1;
        // SAFETY: by our caller's word.
        let (status, result) = unsafe { execute(execution, &self.device.programs, &self.device.local) };
        self.counters.completed(Opcode::Execute, status);
        if let Some(from_us) = timed_from_us {
            self.counters.latency(Opcode::Execute, self.device.env.now_us() - from_us);
        }
        (status, result)
    }
}
