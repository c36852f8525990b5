//! The controller: the device half of one queue pair.
//!
//! ```text
//! submit ─► copied, checked ─┬─ refused ───────────────────────────────────────────────────────► done
//!                            ├─ moves bytes ─► flash queue ────────────────────────────────────► done
//!                            └─ stages ─► reads ─► all there ─► ready ─► programs, in order ───► done
//!                                           └─ one failed: when the last has ended ────────────► done
//! ```
//! Commands to the flash queue carry tags of the controller's own (a place in `transfers`), so that it can time them and callers
//! may use any tag twice. Places of transfers and pipelines are used again: in a steady state nothing is allocated.

mod checks;
mod computing;
mod sleeping;
mod transfers;

use super::Device;
use super::compute::ControllerCompute;
use super::engine::shared::EngineClient;
use super::flash_share::FlashShare;
use super::program::{Context, PREFETCH_ROUNDS, TaskState};
use crate::counters::QueueCounters;
use crate::event::EventPair;
use crate::fail_point;
use crate::flash::FlashQueue;
use crate::memory::HostRegion;
use crate::protocol::{
    Command, Completion, Execution, INPUTS_MAX, LeasedRanges, LocalRange, Opcode, Operation, Purpose, Status,
};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;
use transfers::{FlashTransfer, TransferOwner};

/// One in this many runs of programs is timed: a clock costs as much as a small program.
const RUNS_TIMED_EVERY: u64 = 16;

#[derive(Clone, Copy)]
pub(crate) struct EndedCommand {
    /// The host's slot of the command.
    pub slot: u32,
    pub completion: Completion,
}

/// How to report the end of a command that was taken.
#[derive(Clone, Copy)]
pub(super) struct CommandEnd {
    pub tag: u64,
    /// The host's slot of the command.
    pub slot: u32,
    pub purpose: Purpose,
}

impl CommandEnd {
    fn of(command: &Command, slot: u32) -> CommandEnd {
        CommandEnd { tag: command.tag, slot, purpose: command.purpose }
    }

    fn ended(self, completion: Completion) -> EndedCommand {
        EndedCommand { slot: self.slot, completion }
    }
}

/// The stage and the status that ended a pipeline early.
#[derive(Clone, Copy)]
struct StageFailure {
    stage: u16,
    status: Status,
    errno: i32,
}

/// A running pipeline, or a free place for one.
struct Pipeline {
    end: CommandEnd,
    /// `Pipeline`, or `Execute` for a command that names one program.
    opcode: Opcode,
    submitted_us: u64,
    reads: u16,
    reads_left: u16,
    failure: Option<StageFailure>,
    /// The stages behind the reads.
    executions: Vec<Execution>,
}

pub(crate) struct Controller {
    // First, so that it is dropped before anything its commands use; the drop waits for those commands.
    queue: Box<dyn FlashQueue>,
    /// Created by the first `Compute`, if the drive has no compute units.
    compute: Option<Box<ControllerCompute>>,
    /// Flash commands of the pipelines that the polling thread runs.
    share: FlashShare,
    /// Readable for completions of flash and for pipelines that ended on the drive's units. `None` without units.
    both_events: Option<EventPair>,
    device: Arc<Device>,
    counters: Arc<QueueCounters>,
    /// The host's memory, if it has a region. The drive only reads it.
    host: Option<HostRegion>,
    capacity_bytes: u64,
    sector_mask: u64,
    transfers: Vec<FlashTransfer>,
    transfers_free: Vec<u32>,
    pipelines: Vec<Pipeline>,
    pipelines_free: Vec<u32>,
    /// Pipelines whose reads have completed.
    ready: Vec<u32>,
    /// The reads of the list that is being checked.
    reads: Vec<(u64, LocalRange)>,
    /// Commands that were refused, and pipelines whose reads failed.
    done: Vec<EndedCommand>,
    flash_done: Vec<Completion>,
    in_flash: usize,
    flash_ended: u64,
    /// Submission time of the commands that the next `poll` or `wait` starts. One clock reading serves all of them.
    started_us: Option<u64>,
    runs: u64,
}

impl Controller {
    /// # Errors
    /// On a drive with compute units: the operating system's error when it has no more descriptors or threads, and an error when local
    /// memory has no room for the sub-buffers.
    pub fn new(
        device: Arc<Device>,
        queue: Box<dyn FlashQueue>,
        host: Option<HostRegion>,
        counters: Arc<QueueCounters>,
    ) -> io::Result<Controller> {
        let client = device.shared_engine()?.map(EngineClient::join).transpose()?;
        let both_events = match (&client, queue.event_fd()) {
            (Some(client), Some(flash)) => Some(EventPair::new([flash, client.event_fd()])?),
            _ => None,
        };
        Ok(Controller {
            queue,
            host,
            compute: client.map(|client| Box::new(ControllerCompute::shared(client))),
            share: FlashShare::default(),
            both_events,
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
            flash_ended: 0,
            started_us: None,
            runs: 0,
        })
    }

    /// Sets how many bytes its pipelines take at a time.
    pub fn take_parts_of(&mut self, part_bytes: u32) {
        self.compute.get_or_insert_with(|| Box::new(ControllerCompute::alone())).take_parts_of(part_bytes);
    }

    /// Takes local memory for its pipelines at once rather than with the first one. Returns whether there is room.
    pub fn make_engine(&mut self) -> bool {
        self.compute.get_or_insert_with(|| Box::new(ControllerCompute::alone())).make_engine(&self.device)
    }

    pub fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    /// Takes a command, for which the host has a `slot`. An invalid command ends with a completion that says so.
    ///
    /// # Safety
    /// The leased ranges are inside their region. Until [`Controller::poll`] has given its end, or this is
    /// dropped, nobody else reads, writes or frees what the command writes, and nobody writes or frees what it reads. Nobody writes or
    /// frees its list of stages until this returns.
    pub unsafe fn submit(&mut self, command: Command, slot: u32, leased: &LeasedRanges) {
        let end = CommandEnd::of(&command, slot);
        match command.operation {
            Operation::Execute { program, parameters, input, output } => {
                self.submit_execute(end, Execution::new(program, parameters, &[input], output), leased);
            }
            // SAFETY: by our caller's word.
            Operation::Pipeline { stages } => unsafe { self.submit_pipeline(end, stages, leased) },
            // SAFETY: by our caller's word.
            Operation::Compute { pipelines } => unsafe { self.submit_compute(end, pipelines, leased) },
            operation => match self.check_plain(&operation, leased) {
                // SAFETY: it was checked, and the ranges it names are leased.
                Ok(()) => unsafe { self.start_plain(end, operation) },
                Err(status) => self.refuse(end, operation.opcode(), 0, status),
            },
        }
    }

    /// Starts a command without programs.
    ///
    /// # Safety
    /// The command was checked. Until it has ended, what it writes nobody else touches, and what it reads nobody writes or frees.
    unsafe fn start_plain(&mut self, end: CommandEnd, operation: Operation) {
        let ended = match operation {
            // SAFETY: by our caller's word.
            Operation::Identify { into } => unsafe { self.identify(end, into) },
            Operation::Cancel { tag, pipeline } => self.cancel(end, tag, pipeline),
            // SAFETY: by our caller's word.
            operation => return unsafe { self.submit_to_flash(TransferOwner::Command(end), operation) },
        };
        self.done.push(ended);
    }

    /// Starts submitted commands, runs pipelines that are ready, and appends the commands that have ended.
    pub fn poll(&mut self, ended: &mut Vec<EndedCommand>) {
        ended.append(&mut self.done);
        self.started_us = None;
        let mut now_us = None;
        if self.in_flash > 0 {
            self.queue.poll(&mut self.flash_done);
            if !self.flash_done.is_empty() {
                let now_us = *now_us.insert(self.device.env.now_us());
                self.take_flash_done(now_us, ended);
            }
        } else {
            self.queue.rest();
        }
        if !self.ready.is_empty() {
            let now_us = now_us.unwrap_or_else(|| self.device.env.now_us());
            self.run_ready(now_us, ended);
        }
        if self.compute.as_ref().is_some_and(|compute| compute.is_busy()) {
            self.advance_compute(ended);
        }
    }

    /// To be called in place of `poll` while nothing is in flight.
    pub fn rest(&mut self) {
        self.queue.rest();
    }

    /// Blocks until `poll` has something, the timeout ends, or nothing is in flight. May return early for no reason.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        self.started_us = None;
        if self.done.is_empty() && !self.is_ready() && (self.in_flash > 0 || self.is_computing()) {
            self.sleep(timeout);
        }
    }

    /// Another `poll` would make progress at once.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty() || self.compute.as_ref().is_some_and(|compute| compute.has_task())
    }

    /// Like [`FlashQueue::event_fd`], and also readable for pipelines that ended on the drive's units.
    pub fn event_fd(&self) -> Option<RawFd> {
        match &self.both_events {
            Some(both) => Some(both.as_raw_fd()),
            None => self.queue.event_fd(),
        }
    }

    /// # Safety
    /// The range was checked, and the drive may write it.
    unsafe fn identify(&mut self, end: CommandEnd, into: LocalRange) -> EndedCommand {
        let bytes = self.device.identity().encode();
        if bytes.len() <= into.length as usize {
            // SAFETY: inside the range, which our caller says nobody else uses.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer(into).as_ptr(), bytes.len()) };
        }
        self.counters.completed(Opcode::Identify, Status::Success);
        end.ended(Completion { result: [bytes.len() as u64, 0], ..Completion::success(end.tag) })
    }

    fn refuse(&mut self, end: CommandEnd, opcode: Opcode, stage: u16, status: Status) {
        self.counters.completed(opcode, status);
        self.done.push(end.ended(Completion { stage, ..Completion::new(end.tag, status) }));
    }

    fn started_us(&mut self) -> u64 {
        *self.started_us.get_or_insert_with(|| self.device.env.now_us())
    }

    fn read_ended(&mut self, place: u32, failure: Option<StageFailure>) {
        let pipeline = &mut self.pipelines[place as usize];
        pipeline.reads_left -= 1;
        pipeline.failure = pipeline.failure.or(failure);
        if pipeline.reads_left == 0 || (pipeline.failure.is_some() && fail_point!(LeaseInFlight)) {
            self.ready.push(place);
        }
    }

    fn submit_execute(&mut self, end: CommandEnd, execution: Execution, leased: &LeasedRanges) {
        if let Err(status) = self.check_execution(&execution, leased) {
            return self.refuse(end, Opcode::Execute, 0, status);
        }
        let place = self.place_pipeline(end, Opcode::Execute);
        self.pipelines[place as usize].executions.push(execution);
        self.ready.push(place);
    }

    /// # Safety
    /// As [`Controller::submit`].
    unsafe fn submit_pipeline(&mut self, end: CommandEnd, stages: LocalRange, leased: &LeasedRanges) {
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
        if let Some(place) = self.pipelines_free.pop() {
            let Pipeline { executions, .. } = &mut self.pipelines[place as usize];
            let executions = std::mem::take(executions);
            self.pipelines[place as usize] =
                Pipeline { end, opcode, submitted_us, reads: 0, reads_left: 0, failure: None, executions };
            return place;
        }
        let executions = Vec::new();
        self.pipelines.push(Pipeline { end, opcode, submitted_us, reads: 0, reads_left: 0, failure: None, executions });
        self.pipelines.len() as u32 - 1
    }

    fn free_pipeline(&mut self, place: u32) {
        self.pipelines[place as usize].executions.clear();
        self.pipelines_free.push(place);
    }

    /// Runs the programs of all pipelines that are ready. First it prefetches what they will read, for all of them, so that their cache
    /// misses overlap.
    fn run_ready(&mut self, now_us: u64, ended: &mut Vec<EndedCommand>) {
        let mut ready = std::mem::take(&mut self.ready);
        for round in 0..PREFETCH_ROUNDS {
            ready.iter().for_each(|place| self.prefetch(*place, round));
        }
        for place in ready.drain(..) {
            let completion = self.run_pipeline(place);
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
        let (tag, reads, count) = (pipeline.end.tag, pipeline.reads, pipeline.executions.len());
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
            // SAFETY: inside local memory, which lives as long as the drive; our caller says that nobody writes there.
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
