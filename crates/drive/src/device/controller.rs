//! The controller: the device half of one queue pair.
//!
//! ```text
//! submit ─► checked ─┬─ refused ───────────────────────────────────────────► done
//!                    ├─ moves bytes ─► flash queue ─────────────────────────► done
//!                    └─ stages ─► copied, checked ─► reads ─► all there ─► ready ─► programs, first to last ─► done
//!                                                      └─ one failed: when the last has ended ────────────────► done
//! ```
//! Commands to the flash queue carry tags of the controller's own (a place in `transfers`), so that it can time them and callers
//! may use any tag twice. Places of transfers and pipelines are used again: in a steady state nothing is allocated.

use super::Device;
use super::program::{Context, PREFETCH_ROUNDS, TaskState};
use super::ranges::{copy_stage, end, overlap};
use crate::counters::QueueCounters;
use crate::flash::FlashQueue;
use crate::protocol::{
    Command, Completion, Execution, INPUTS_MAX, LocalRange, Opcode, Operation, STAGES_MAX, Stage, Status,
};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// One in this many runs of programs is timed: a clock costs as much as a small program.
const RUNS_TIMED_EVERY: u64 = 16;

/// Whose a transfer is.
#[derive(Clone, Copy)]
enum TransferOwner {
    Command { tag: u64 },
    Stage { pipeline: u32, stage: u16 },
}

/// A command that the flash queue holds. `length` is zero for what moves no bytes.
#[derive(Clone, Copy)]
struct FlashTransfer {
    owner: TransferOwner,
    opcode: Opcode,
    length: u32,
    submitted_us: u64,
}

/// What ended a pipeline early.
#[derive(Clone, Copy)]
struct StageFailure {
    stage: u16,
    status: Status,
    errno: i32,
}

/// A pipeline on its way, or a place for one.
struct Pipeline {
    tag: u64,
    /// `Pipeline`, or `Execute` of a command that names one program.
    opcode: Opcode,
    submitted_us: u64,
    reads: u16,
    reads_left: u16,
    failure: Option<StageFailure>,
    /// The stages behind the reads.
    executions: Vec<Execution>,
}

pub(crate) struct Controller {
    // First, so that it is dropped, and its commands are over, before anything they use goes.
    queue: Box<dyn FlashQueue>,
    device: Arc<Device>,
    counters: Arc<QueueCounters>,
    capacity_bytes: u64,
    sector_mask: u64,
    transfers: Vec<FlashTransfer>,
    transfers_free: Vec<u32>,
    pipelines: Vec<Pipeline>,
    pipelines_free: Vec<u32>,
    /// Pipelines whose reads are there.
    ready: Vec<u32>,
    /// The reads of the list that is being checked.
    reads: Vec<(u64, LocalRange)>,
    /// What was refused, and pipelines whose reads failed.
    done: Vec<Completion>,
    flash_done: Vec<Completion>,
    in_flash: usize,
    /// When the commands were submitted that the next `poll` or `wait` starts: one clock for all of them.
    started_us: Option<u64>,
    runs: u64,
}

impl Controller {
    pub fn new(device: Arc<Device>, queue: Box<dyn FlashQueue>, counters: Arc<QueueCounters>) -> Controller {
        Controller {
            queue,
            counters,
            capacity_bytes: device.flash.capacity_bytes(),
            sector_mask: u64::from(device.flash.sector_bytes()) - 1,
            device,
            transfers: Vec::new(),
            transfers_free: Vec::new(),
            pipelines: Vec::new(),
            pipelines_free: Vec::new(),
            ready: Vec::new(),
            reads: Vec::new(),
            done: Vec::new(),
            flash_done: Vec::new(),
            in_flash: 0,
            started_us: None,
            runs: 0,
        }
    }

    /// Takes a command. What is wrong with it comes out as its completion.
    ///
    /// # Safety
    /// As [`QueuePair::submit`](crate::QueuePair::submit).
    pub unsafe fn submit(&mut self, command: Command) {
        let Command { tag, operation } = command;
        match operation {
            Operation::Execute { program, parameters, input, output } => {
                self.submit_execute(tag, Execution::new(program, parameters, &[input], output));
            }
            // SAFETY: the list, and what it names, is the drive's by our caller's word.
            Operation::Pipeline { stages } => unsafe { self.submit_pipeline(tag, stages) },
            // SAFETY: the range is the drive's by our caller's word.
            Operation::Identify { into } => unsafe { self.identify(tag, into) },
            _ if !self.is_valid(&operation) => self.refuse(tag, operation.opcode(), (0, Status::InvalidField)),
            // SAFETY: inside flash and local memory, and the drive's by our caller's word.
            _ => unsafe { self.submit_to_flash(TransferOwner::Command { tag }, operation) },
        }
    }

    /// Starts what was submitted, runs what is ready, and appends what is done.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
        self.started_us = None;
        let mut now_us = None;
        if self.in_flash > 0 {
            self.queue.poll(&mut self.flash_done);
            if !self.flash_done.is_empty() {
                let now_us = *now_us.insert(self.device.env.now_us());
                self.take_flash_done(now_us, completions);
            }
        }
        if !self.ready.is_empty() {
            let now_us = now_us.unwrap_or_else(|| self.device.env.now_us());
            self.run_ready(now_us, completions);
        }
    }

    /// Blocks until `poll` has something, the timeout ends, or nothing is in flight. May return early for no reason.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        self.started_us = None;
        if self.done.is_empty() && self.ready.is_empty() && self.in_flash > 0 {
            self.queue.wait(timeout);
        }
    }

    pub fn event_fd(&self) -> Option<RawFd> {
        self.queue.event_fd()
    }

    /// # Safety
    /// As [`QueuePair::submit`](crate::QueuePair::submit).
    unsafe fn identify(&mut self, tag: u64, into: LocalRange) {
        let Some(at) = self.device.local.pointer(into) else {
            return self.refuse(tag, Opcode::Identify, (0, Status::InvalidField));
        };
        let bytes = self.device.identity().encode();
        if bytes.len() <= into.length as usize {
            // SAFETY: inside the range, and nobody else's by our caller's word.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
        }
        self.counters.completed(Opcode::Identify, Status::Success);
        self.done.push(Completion { result: [bytes.len() as u64, 0], ..Completion::success(tag) });
    }

    fn refuse(&mut self, tag: u64, opcode: Opcode, (stage, status): (u16, Status)) {
        self.counters.completed(opcode, status);
        self.done.push(Completion { stage, ..Completion::new(tag, status) });
    }

    fn is_valid(&mut self, operation: &Operation) -> bool {
        match *operation {
            Operation::Read { flash, local, length } | Operation::Write { flash, local, length, .. } => {
                self.may_transfer(flash, LocalRange { offset: local, length })
            }
            Operation::Discard { flash, length } => self.is_in_flash(flash, length),
            Operation::Flush => true,
            Operation::Execute { .. } | Operation::Pipeline { .. } | Operation::Identify { .. } => false,
        }
    }

    fn may_transfer(&mut self, flash: u64, local: LocalRange) -> bool {
        self.is_in_flash(flash, u64::from(local.length))
            && local.offset & self.sector_mask == 0
            && self.device.local.pointer(local).is_some()
    }

    fn is_in_flash(&mut self, flash: u64, length: u64) -> bool {
        let Some(end) = flash.checked_add(length) else { return false };
        if end > self.capacity_bytes {
            // It may have grown since its size was last asked.
            self.capacity_bytes = self.device.flash.capacity_bytes();
        }
        length > 0 && (flash | length) & self.sector_mask == 0 && end <= self.capacity_bytes
    }

    /// # Safety
    /// As [`FlashQueue::submit`].
    unsafe fn submit_to_flash(&mut self, owner: TransferOwner, operation: Operation) {
        let length = match operation {
            Operation::Read { length, .. } | Operation::Write { length, .. } => length,
            _ => 0,
        };
        let submitted_us = self.started_us();
        let transfer = FlashTransfer { owner, opcode: operation.opcode(), length, submitted_us };
        let place = match self.transfers_free.pop() {
            Some(place) => {
                self.transfers[place as usize] = transfer;
                place
            }
            None => {
                self.transfers.push(transfer);
                self.transfers.len() as u32 - 1
            }
        };
        self.in_flash += 1;
        // SAFETY: by our caller's word.
        unsafe { self.queue.submit(&Command { tag: u64::from(place), operation }) };
    }

    fn started_us(&mut self) -> u64 {
        *self.started_us.get_or_insert_with(|| self.device.env.now_us())
    }

    /// Ends transfers: their commands, and what pipelines waited for.
    fn take_flash_done(&mut self, now_us: u64, completions: &mut Vec<Completion>) {
        let mut flash_done = std::mem::take(&mut self.flash_done);
        for completion in flash_done.drain(..) {
            let transfer = self.transfers[completion.tag as usize];
            self.transfers_free.push(completion.tag as u32);
            self.in_flash -= 1;
            self.counters.completed(transfer.opcode, completion.status);
            self.counters.latency(transfer.opcode, now_us.saturating_sub(transfer.submitted_us));
            match (transfer.opcode, completion.status) {
                (Opcode::Read, Status::Success) => self.counters.moved_flash_to_local(u64::from(transfer.length)),
                (Opcode::Write, Status::Success) => self.counters.moved_local_to_flash(u64::from(transfer.length)),
                _ => {}
            }
            match transfer.owner {
                TransferOwner::Command { tag } => completions.push(Completion { tag, ..completion }),
                TransferOwner::Stage { pipeline, stage } => {
                    let Completion { status, errno, .. } = completion;
                    let failure = (status != Status::Success).then_some(StageFailure { stage, status, errno });
                    self.read_ended(pipeline, failure);
                }
            }
        }
        self.flash_done = flash_done;
    }

    fn read_ended(&mut self, place: u32, failure: Option<StageFailure>) {
        let pipeline = &mut self.pipelines[place as usize];
        pipeline.reads_left -= 1;
        pipeline.failure = pipeline.failure.or(failure);
        if pipeline.reads_left == 0 {
            self.ready.push(place);
        }
    }

    fn submit_execute(&mut self, tag: u64, execution: Execution) {
        if let Err(status) = self.check_execution(&execution) {
            return self.refuse(tag, Opcode::Execute, (0, status));
        }
        let place = self.place_pipeline(tag, Opcode::Execute);
        self.pipelines[place as usize].executions.push(execution);
        self.ready.push(place);
    }

    /// # Safety
    /// As [`QueuePair::submit`](crate::QueuePair::submit).
    unsafe fn submit_pipeline(&mut self, tag: u64, stages: LocalRange) {
        let place = self.place_pipeline(tag, Opcode::Pipeline);
        let mut executions = std::mem::take(&mut self.pipelines[place as usize].executions);
        let mut reads = std::mem::take(&mut self.reads);
        // SAFETY: nobody frees the list by our caller's word.
        let checked = unsafe { self.check_list(stages, &mut reads, &mut executions) };
        let pipeline = &mut self.pipelines[place as usize];
        pipeline.executions = executions;
        match checked {
            Err(refusal) => {
                self.free_pipeline(place);
                self.refuse(tag, Opcode::Pipeline, refusal);
            }
            Ok(()) if reads.is_empty() => self.ready.push(place),
            Ok(()) => {
                (pipeline.reads, pipeline.reads_left) = (reads.len() as u16, reads.len() as u16);
                for (stage, (flash, local)) in (0..).zip(&reads) {
                    let owner = TransferOwner::Stage { pipeline: place, stage };
                    let read = Operation::Read { flash: *flash, local: local.offset, length: local.length };
                    // SAFETY: inside flash and local memory; apart from each other, and the drive's by our caller's word.
                    unsafe { self.submit_to_flash(owner, read) };
                }
            }
        }
        reads.clear();
        self.reads = reads;
    }

    /// Copies a list and checks it. An error is the stage at which the list is wrong, and how.
    ///
    /// # Safety
    /// Nobody frees the list.
    unsafe fn check_list(
        &mut self,
        list: LocalRange,
        reads: &mut Vec<(u64, LocalRange)>,
        executions: &mut Vec<Execution>,
    ) -> Result<(), (u16, Status)> {
        let count = list.length as usize / Stage::ENCODED_BYTES;
        let is_whole = list.length.is_multiple_of(Stage::ENCODED_BYTES as u32) && list.offset.is_multiple_of(8);
        let Some(first) = self.device.local.pointer(list).filter(|_| is_whole && (1..=STAGES_MAX).contains(&count))
        else {
            return Err((0, Status::InvalidField));
        };
        for number in 0..count as u16 {
            // SAFETY: inside the list, which is aligned to eight bytes and inside local memory.
            let bytes = unsafe { copy_stage(first.add(usize::from(number) * Stage::ENCODED_BYTES)) };
            match Stage::decode(&bytes) {
                Ok(Stage::Read { flash, local, length }) => {
                    let local = LocalRange { offset: local, length };
                    let ascends = reads.last().is_none_or(|(_, before)| end(*before) <= local.offset);
                    if !executions.is_empty() || !ascends || !self.may_transfer(flash, local) {
                        return Err((number, Status::InvalidField));
                    }
                    reads.push((flash, local));
                }
                Ok(Stage::Execute(execution)) => {
                    self.check_execution(&execution).map_err(|status| (number, status))?;
                    executions.push(execution);
                }
                Err(_) => return Err((number, Status::InvalidField)),
            }
        }
        Ok(())
    }

    fn check_execution(&self, execution: &Execution) -> Result<(), Status> {
        if usize::from(execution.program.0) >= self.device.programs.len() {
            return Err(Status::Unsupported);
        }
        let Execution { parameters, output, .. } = *execution;
        let is_inside = |range: LocalRange| self.device.local.pointer(range).is_some();
        let is_read = execution.inputs().iter().copied().chain([parameters]);
        let is_valid = is_inside(output) && is_read.clone().all(is_inside);
        if is_valid && !is_read.into_iter().any(|range| overlap(range, output)) {
            return Ok(());
        }
        Err(Status::InvalidField)
    }

    fn place_pipeline(&mut self, tag: u64, opcode: Opcode) -> u32 {
        let submitted_us = self.started_us();
        if let Some(place) = self.pipelines_free.pop() {
            let Pipeline { executions, .. } = &mut self.pipelines[place as usize];
            let executions = std::mem::take(executions);
            self.pipelines[place as usize] =
                Pipeline { tag, opcode, submitted_us, reads: 0, reads_left: 0, failure: None, executions };
            return place;
        }
        let executions = Vec::new();
        self.pipelines.push(Pipeline { tag, opcode, submitted_us, reads: 0, reads_left: 0, failure: None, executions });
        self.pipelines.len() as u32 - 1
    }

    fn free_pipeline(&mut self, place: u32) {
        self.pipelines[place as usize].executions.clear();
        self.pipelines_free.push(place);
    }

    /// Runs the programs of all pipelines that are ready. What they will look at is fetched for all of them first: so they wait for
    /// memory together.
    fn run_ready(&mut self, now_us: u64, completions: &mut Vec<Completion>) {
        let mut ready = std::mem::take(&mut self.ready);
        for round in 0..PREFETCH_ROUNDS {
            ready.iter().for_each(|place| self.prefetch(*place, round));
        }
        for place in ready.drain(..) {
            let completion = self.run_pipeline(place);
            let Pipeline { opcode, submitted_us, .. } = self.pipelines[place as usize];
            if opcode == Opcode::Pipeline {
                self.counters.completed(opcode, completion.status);
                self.counters.latency(opcode, now_us.saturating_sub(submitted_us));
            }
            completions.push(completion);
            self.free_pipeline(place);
        }
        self.ready = ready;
    }

    fn prefetch(&self, place: u32, round: usize) {
        let Pipeline { failure: None, executions, .. } = &self.pipelines[place as usize] else { return };
        if let Some(execution) = executions.first() {
            let program = &self.device.programs[usize::from(execution.program.0)];
            let mut inputs = [&[][..]; INPUTS_MAX];
            // SAFETY: the execution was checked, and its pipeline is not completed.
            let (parameters, inputs) = unsafe { self.look(execution, &mut inputs) };
            program.prefetch(round, parameters, inputs);
        }
    }

    fn run_pipeline(&mut self, place: u32) -> Completion {
        let pipeline = &self.pipelines[place as usize];
        let (tag, reads, count) = (pipeline.tag, pipeline.reads, pipeline.executions.len());
        if let Some(StageFailure { stage, status, errno }) = pipeline.failure {
            return Completion { tag, status, errno, result: [0; 2], stage };
        }
        let mut result = [0; 2];
        for (stage, number) in (reads..).zip(0..count) {
            let execution = self.pipelines[place as usize].executions[number];
            let status;
            // SAFETY: it was checked, and its pipeline is not completed.
            (status, result) = unsafe { self.run_program(&execution) };
            if status != Status::Success {
                return Completion { tag, status, errno: 0, result, stage };
            }
        }
        Completion { tag, status: Status::Success, errno: 0, result, stage: 0 }
    }

    /// # Safety
    /// The execution was checked, and nobody else touches its output or writes what it reads.
    unsafe fn run_program(&mut self, execution: &Execution) -> (Status, [u64; 2]) {
        let timed_from_us = self.runs.is_multiple_of(RUNS_TIMED_EVERY).then(|| self.device.env.now_us());
        self.runs += 1;
        let program = &self.device.programs[usize::from(execution.program.0)];
        let mut task = TaskState::default();
        let mut inputs = [&[][..]; INPUTS_MAX];
        // SAFETY: by our caller's word; the output overlaps nothing that is read.
        let (status, result) = unsafe {
            let (parameters, inputs) = self.look(execution, &mut inputs);
            let output = self.pointer(execution.output).as_ptr();
            let output = std::slice::from_raw_parts_mut(output, execution.output.length as usize);
            program.run(Context { parameters, inputs, output, task: &mut task })
        };
        assert_ne!(status, Status::Program(0), "program {} gave zero, which is success", program.descriptor().name);
        self.counters.completed(Opcode::Execute, status);
        if let Some(from_us) = timed_from_us {
            self.counters.latency(Opcode::Execute, self.device.env.now_us() - from_us);
        }
        (status, result)
    }

    /// The parameters and inputs of an execution.
    ///
    /// # Safety
    /// The execution was checked. Nobody writes these ranges for as long as the slices live.
    unsafe fn look<'a>(
        &self,
        execution: &Execution,
        inputs: &'a mut [&'a [u8]; INPUTS_MAX],
    ) -> (&'a [u8], &'a [&'a [u8]]) {
        let slice = |range: LocalRange| {
            let from = self.pointer(range).as_ptr();
            // SAFETY: inside local memory, which lives as long as the drive; and by our caller's word.
            unsafe { std::slice::from_raw_parts(from, range.length as usize) }
        };
        let ranges = execution.inputs();
        for (input, range) in inputs.iter_mut().zip(ranges) {
            *input = slice(*range);
        }
        (slice(execution.parameters), &inputs[..ranges.len()])
    }

    fn pointer(&self, range: LocalRange) -> NonNull<u8> {
        let Some(pointer) = self.device.local.pointer(range) else {
            unreachable!("{range:?} was checked, and local memory never shrinks");
        };
        pointer
    }
}
