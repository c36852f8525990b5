//! The engine without threads: which tasks there are, what each does, and how it ended.
//!
//! ```text
//! submit ─► arbiter ─► queue of a program ─ take ─► a unit ─ complete ─► arbiter ─► … ─► ended
//!                                                     └───── unit_lost ──────┘
//! ```
//! It reads no clock, waits for nothing and touches no byte of a pipeline. Its driver runs the tasks, in any order, late or never, and
//! tells it the time. The same calls give the same answers.
//!
//! 1. A task that was taken is completed once, or lost with its unit, or never comes back. Its pipeline ends at its deadline even so.
//! 2. A sub-buffer is written by the task whose output it is, and read by the task whose input it is: the arbiter gives it to no
//!    other meanwhile, nor after a deadline that passed while the task ran.
//! 3. Memory that the host lent, and flash, is touched by tasks of [`SOURCE`] and [`SINK`], and by programs of commands; a pipeline never
//!    ends before such a task of its own. A program of a command is a pipeline of one task, without a deadline.

use super::EngineOptions;
use super::counters::{EngineCounters, TaskCount, TaskRate};
use super::job::{
    APPLICATION_OF_COMMANDS, EngineJob, FlashSink, JobSink, JobSource, SINK, SOURCE, SourceKind, TaskWork,
};
use super::kept::{KeptResults, KeptState};
use super::outcomes::{JobEnd, JobResult, TaskResult, failed, outcome_of, refused};
use crate::device::arbiter::{
    ARGUMENTS_BYTES, Arbiter, ArbiterOptions, PipelineEnd, PipelineOutcome, PipelineRequest, StageRequest, SubBuffer,
    TaskCost, TaskOutcome, TaskPacket, UnitCount,
};
use crate::device::program::{Program, TaskState};
use crate::memory::{BLOCK_BYTES, LocalBuffer, LocalMemory};
use crate::protocol::{
    Execution, LocalRange, PARAMETERS_MAX, PipelineFailure, PipelinePlace, PipelineReason, PipelineResult,
    PipelineStage, ProgramId, SourceRange, Status,
};
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

const _: () = assert!(PARAMETERS_MAX + 1 == ARGUMENTS_BYTES);
/// Tasks of one program without units of its own that may run at the same time.
const INLINE_UNITS: u16 = 64;

/// The source of a job. Its ranges were checked: they are inside their region, and flash ranges begin at sectors.
pub enum SourceRequest {
    Local(Vec<SourceRange>),
    Flash(Vec<SourceRange>),
    Kept { id: u64, stays: bool },
}

/// The sink of a job. Its ranges were checked.
pub enum SinkRequest {
    Host(LocalRange),
    Flash { flash: u64, bytes_max: u64, durable: bool },
    Kept { id: u64, bytes_max: u32 },
}

/// A pipeline as the core takes it.
pub struct JobRequest {
    /// The owner of the kept results that it reads and writes.
    pub owner: u64,
    /// Returned with the pipeline's end.
    pub token: u64,
    pub application: u16,
    /// On the clock of [`EngineCore::expire`].
    pub deadline_us: Option<u64>,
    pub stages: Vec<PipelineStage>,
    pub source: SourceRequest,
    pub sink: SinkRequest,
    pub attachment: Arc<[u8]>,
}

pub struct EngineTask {
    pub packet: TaskPacket,
    pub work: TaskWork,
    pub state: TaskState,
    /// The unit must measure the task's time.
    pub is_timed: bool,
}

pub struct EngineCore {
    arbiter: Arbiter,
    /// Tasks that the arbiter started and no unit has taken yet.
    queues: BTreeMap<ProgramId, VecDeque<TaskPacket>>,
    jobs: BTreeMap<u32, EngineJob>,
    ended: VecDeque<JobEnd>,
    kept: KeptResults,
    rates: BTreeMap<ProgramId, TaskRate>,
    counters: Arc<EngineCounters>,
    is_stream: Vec<bool>,
    local: LocalMemory,
    /// All sub-buffers, contiguous.
    memory: LocalBuffer,
    sub_buffer_bytes: u32,
    sector_bytes: u32,
    made_way: bool,
}

impl EngineCore {
    /// `None` when local memory has no room for the sub-buffers.
    pub(crate) fn new(
        local: &LocalMemory,
        sector_bytes: u32,
        programs: &[Box<dyn Program>],
        counters: Arc<EngineCounters>,
        options: &EngineOptions,
    ) -> Option<EngineCore> {
        let sub_buffer_bytes = options.sub_buffer_bytes.next_multiple_of(sector_bytes.max(BLOCK_BYTES as u32));
        let memory = local.allocate(usize::from(options.sub_buffers) * sub_buffer_bytes as usize)?;
        let has_units = |program: &ProgramId| options.units.iter().any(|count| count.program == *program);
        let inline = (0..programs.len() as u16).map(ProgramId).filter(|program| !has_units(program));
        let inline = inline.chain([SOURCE, SINK]).map(|program| UnitCount { program, units: INLINE_UNITS });
        let arbiter = Arbiter::new(&ArbiterOptions {
            units: inline.chain(options.units.iter().copied()).collect(),
            weights: options.weights.clone(),
            sub_buffers: options.sub_buffers,
            pipelines_max: options.pipelines_max,
            movers: vec![SOURCE, SINK],
            flash_byte_cost: options.flash_byte_cost,
        });
        Some(EngineCore {
            arbiter,
            queues: BTreeMap::new(),
            jobs: BTreeMap::new(),
            ended: VecDeque::new(),
            kept: KeptResults::default(),
            rates: BTreeMap::new(),
            counters,
            is_stream: programs.iter().map(|program| program.descriptor().is_stream).collect(),
            local: local.clone(),
            memory,
            sub_buffer_bytes,
            sector_bytes,
            made_way: false,
        })
    }

    /// An engine whose caller plays all of its units, for a simulator. `None` as in [`EngineCore::new`].
    pub fn alone(
        local: &LocalMemory,
        sector_bytes: u32,
        programs: &[Box<dyn Program>],
        options: &EngineOptions,
    ) -> Option<EngineCore> {
        EngineCore::new(local, sector_bytes, programs, Arc::new(EngineCounters::new(programs, options)), options)
    }

    /// Takes a pipeline. The returned number is for [`EngineCore::cancel`].
    ///
    /// # Errors
    /// Says why the pipeline is refused. Nothing is changed.
    pub fn submit(&mut self, request: JobRequest) -> Result<u32, PipelineFailure> {
        let JobRequest { owner, token, application, deadline_us, stages, source, sink, attachment } = request;
        if stages.is_empty() {
            return Err(PipelineFailure::new(PipelinePlace::Source, PipelineReason::NoStages));
        }
        for (place, stage) in (0..).zip(&stages) {
            if self.is_stream.get(usize::from(stage.program.0)) == Some(&false) {
                return Err(PipelineFailure::new(PipelinePlace::Stage(place), PipelineReason::NotAStream));
            }
            let is_known = usize::from(stage.program.0) < self.is_stream.len();
            if is_known && self.arbiter.units(stage.program) == 0 {
                return Err(PipelineFailure::new(PipelinePlace::Stage(place), PipelineReason::NoUnitLeft));
            }
        }
        let taken = if let SourceRequest::Kept { id, stays: false } = source { Some(id) } else { None };
        let (source, maker) = self.source(owner, source)?;
        let sink = self.sink(owner, sink)?;
        let stage = |stage: &PipelineStage| {
            let mut arguments = [0; ARGUMENTS_BYTES];
            let parameters = stage.parameters();
            arguments[0] = parameters.len() as u8;
            arguments[1..=parameters.len()].copy_from_slice(parameters);
            StageRequest { program: stage.program, arguments }
        };
        let mover = |program| StageRequest { program, arguments: [0; ARGUMENTS_BYTES] };
        let stages: Vec<StageRequest> =
            [mover(SOURCE)].into_iter().chain(stages.iter().map(stage)).chain([mover(SINK)]).collect();
        let stage_count = stages.len() as u8;
        let request = PipelineRequest { application, stages, in_parts: true, deadline_us };
        let sequence = self.arbiter.submit_parked(&request).map_err(refused)?;
        taken.into_iter().for_each(|id| self.kept.remove(owner, id));
        if let JobSink::Kept { id, .. } = sink {
            self.kept.promise(owner, id, sequence);
        }
        match maker.and_then(|maker| self.jobs.get_mut(&maker)) {
            Some(maker) => maker.readers.push(sequence),
            None => self.arbiter.release(sequence),
        }
        self.jobs.insert(sequence, EngineJob::new(owner, token, application, stage_count, &attachment, source, sink));
        self.start();
        Ok(sequence)
    }

    /// Takes a program of a command. Returns whether a unit will run it at once; if not, all are busy or dead, and whoever has the command runs it.
    pub fn submit_execution(&mut self, owner: u64, token: u64, execution: Execution) -> bool {
        if !self.arbiter.would_start(execution.program) {
            return false;
        }
        let stages = vec![StageRequest { program: execution.program, arguments: [0; ARGUMENTS_BYTES] }];
        let (application, deadline_us) = (APPLICATION_OF_COMMANDS, None);
        let request = PipelineRequest { application, stages, in_parts: false, deadline_us };
        let Ok(sequence) = self.arbiter.submit(&request) else { return false };
        self.jobs.insert(sequence, EngineJob::of_execution(owner, token, execution));
        self.start();
        true
    }

    /// The source of a job, and the pipeline that must end first if the job reads its kept result.
    fn source(&self, owner: u64, source: SourceRequest) -> Result<(JobSource, Option<u32>), PipelineFailure> {
        Ok(match source {
            SourceRequest::Local(ranges) => (JobSource::new(SourceKind::Local, ranges), None),
            SourceRequest::Flash(ranges) => (JobSource::new(SourceKind::Flash, ranges), None),
            SourceRequest::Kept { id, .. } => match self.kept.get(owner, id) {
                Some(KeptState::Kept(kept)) => (JobSource::kept(kept.clone()), None),
                Some(KeptState::Promised(maker)) => (JobSource::awaited(), Some(*maker)),
                None => {
                    let unknown = PipelineFailure::new(PipelinePlace::Source, PipelineReason::UnknownKept);
                    return Err(self.kept.failure(owner, id).map_or(unknown, PipelineFailure::of_reader));
                }
            },
        })
    }

    /// A pipeline that was to keep a result was refused. Its readers fail, and their failures name this one.
    pub fn fail_kept(&mut self, owner: u64, id: u64, failure: PipelineFailure) {
        self.kept.fail(owner, id, failure);
    }

    fn sink(&self, owner: u64, sink: SinkRequest) -> Result<JobSink, PipelineFailure> {
        let failure = |reason| PipelineFailure::new(PipelinePlace::Sink, reason);
        let allocate = |bytes: u32| {
            let buffer = self.local.allocate(bytes as usize);
            buffer.ok_or(failure(PipelineReason::NoLocalMemory).with(bytes))
        };
        Ok(match sink {
            SinkRequest::Host(into) => JobSink::Host(into),
            SinkRequest::Flash { flash, bytes_max, durable } => {
                let staging = allocate(self.sub_buffer_bytes)?;
                JobSink::Flash(FlashSink { flash, bytes_max, durable, staging, gathered: 0, taken: 0 })
            }
            SinkRequest::Kept { id, .. } if !self.kept.has_room(owner, id) => {
                return Err(failure(PipelineReason::TooManyKept));
            }
            SinkRequest::Kept { id, bytes_max } => JobSink::Kept { id, buffer: allocate(bytes_max)? },
        })
    }

    /// A task of a program, for a free unit.
    pub fn take(&mut self, program: ProgramId) -> Option<EngineTask> {
        loop {
            let packet = self.queues.get_mut(&program)?.pop_front()?;
            if let Some(task) = self.prepare(packet) {
                return Some(task);
            }
            // The pipeline ended before the task began.
            self.made_way = true;
            let outcome = TaskOutcome::Failed { status: 1 };
            let known = self.arbiter.completed(packet.sequence, packet.stage, outcome, TaskCost::default());
            assert!(known.is_ok(), "the arbiter started this task");
            self.start();
        }
    }

    /// A task of any program that `may` allows. Moves come first, so that flash works while programs run.
    pub fn take_any(&mut self, may: impl Fn(ProgramId) -> bool) -> Option<EngineTask> {
        loop {
            let program = self.waiting().filter(|program| may(*program)).max()?;
            if let Some(task) = self.take(program) {
                return Some(task);
            }
            // Tasks of this program had ended before they began; others may have started in their place.
        }
    }

    /// Whether, since the last call, tasks that ended before they began made way for others. If so, units of other programs may have a
    /// task.
    pub fn take_made_way(&mut self) -> bool {
        std::mem::take(&mut self.made_way)
    }

    /// Programs that have a task waiting for a unit.
    pub fn waiting(&self) -> impl Iterator<Item = ProgramId> + '_ {
        self.queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(program, _)| *program)
    }

    fn prepare(&mut self, packet: TaskPacket) -> Option<EngineTask> {
        let job = self.jobs.get_mut(&packet.sequence).filter(|job| !job.cancel.is_raised())?;
        let stage = usize::from(packet.stage);
        let place = |SubBuffer(number): SubBuffer, length| LocalRange {
            offset: self.memory.offset() + u64::from(number) * u64::from(self.sub_buffer_bytes),
            length,
        };
        let output = place(packet.output, self.sub_buffer_bytes);
        let input_bytes = stage.checked_sub(1).map_or(0, |before| job.filled[before]);
        let input = packet.input.map_or(LocalRange::EMPTY, |input| place(input, input_bytes));
        let work = match packet.program() {
            _ if job.execution.is_some() => TaskWork::Execute(job.execution?),
            SOURCE => TaskWork::Move(job.source.next_part(output, self.sector_bytes)),
            SINK => TaskWork::Move(job.next_sink_part(input, packet.input_is_last, self.sector_bytes)?),
            _ => TaskWork::Run { input, output },
        };
        let Some(mut state) = job.tasks[stage].take() else { unreachable!("a stage runs once at a time") };
        state.more_input = !packet.input_is_last;
        let is_timed = self.rates.entry(packet.program()).or_default().begin();
        Some(EngineTask { packet, work, state, is_timed })
    }

    /// A unit has ended a task and is free. `unit_us` is its duration, if it was timed.
    pub fn complete(&mut self, task: EngineTask, result: TaskResult, unit_us: Option<u64>) {
        let EngineTask { packet, work, state, .. } = task;
        let (outcome, failure) = outcome_of(&packet, &work, result, state.is_enough);
        let (filled, failed) = match outcome {
            TaskOutcome::Done { bytes } | TaskOutcome::More { bytes } | TaskOutcome::Enough { bytes } => (bytes, false),
            TaskOutcome::Failed { .. } => (0, true),
        };
        let stage = usize::from(packet.stage);
        let input_bytes = match work {
            TaskWork::Run { input, .. } if packet.resumes => {
                u64::from(input.length).saturating_sub(state.consumed as u64)
            }
            TaskWork::Run { input, .. } => u64::from(input.length),
            TaskWork::Move(_) => u64::from(filled),
            TaskWork::Execute(execution) => execution.inputs().iter().map(|input| u64::from(input.length)).sum(),
        };
        let (output_bytes, failed) = match (&work, result) {
            (TaskWork::Execute(execution), TaskResult::Executed { status, .. }) => {
                (u64::from(execution.output.length), status != Status::Success)
            }
            _ => (u64::from(filled), failed),
        };
        let rate = self.rates.entry(packet.program()).or_default();
        let unit_us = rate.took_us(input_bytes + output_bytes, unit_us);
        let count = TaskCount { bytes_in: input_bytes, bytes_out: output_bytes, unit_us, failed };
        self.counters.ended(packet.program(), count);
        if let Some(job) = self.jobs.get_mut(&packet.sequence) {
            (job.filled[stage], job.tasks[stage]) = (filled, Some(state));
            job.failure = job.failure.or(failure);
            if let TaskResult::Executed { status, result } = result {
                job.executed = Some((status, result));
            }
            self.counters.worked_for(job.application, unit_us);
        }
        let flash_bytes = if work.flash().is_empty() { 0 } else { u64::from(filled) };
        let cost = TaskCost { unit_us, flash_bytes };
        let known = self.arbiter.completed(packet.sequence, packet.stage, outcome, cost);
        assert!(known.is_ok(), "the arbiter started this task");
        self.start();
    }

    /// A unit of a program died, and its task with it.
    pub fn unit_lost(&mut self, program: ProgramId, task: Option<(u32, u8)>) {
        match task {
            Some((sequence, stage)) => {
                let known = self.arbiter.task_lost(sequence, stage);
                assert!(known.is_ok(), "the arbiter started this task");
                self.counters.ended(program, TaskCount { failed: true, ..TaskCount::default() });
            }
            None => self.arbiter.unit_lost(program),
        }
        if self.arbiter.units(program) == 0 {
            // The arbiter started these tasks, and no unit is left to take them.
            for packet in self.queues.remove(&program).unwrap_or_default() {
                let _ = self.arbiter.task_lost(packet.sequence, packet.stage);
            }
        }
        self.start();
    }

    /// Units of a program that are alive.
    pub fn units(&self, program: ProgramId) -> u16 {
        self.arbiter.units(program)
    }

    /// Sets the time: ends pipelines whose deadline has passed.
    pub fn expire(&mut self, now_us: u64) {
        if self.arbiter.deadline_next_us().is_some_and(|deadline_us| deadline_us <= now_us) {
            self.arbiter.expire(now_us);
            self.start();
        }
    }

    /// The next time at which [`EngineCore::expire`] has something to do.
    pub fn deadline_next_us(&self) -> Option<u64> {
        self.arbiter.deadline_next_us()
    }

    /// Cancels a pipeline: it ends now, or when its running task does; that task is told. A task that no unit has taken does not run.
    pub fn cancel(&mut self, sequence: u32) {
        if let Some(job) = self.jobs.get(&sequence) {
            job.cancel.raise();
            self.arbiter.cancel(sequence);
            self.start();
        }
    }

    /// Cancels an owner's pipelines with these tokens. Returns how many were not cancelled before.
    pub fn cancel_tokens(&mut self, owner: u64, tokens: RangeInclusive<u64>) -> u64 {
        let named = |job: &EngineJob| job.owner == owner && tokens.contains(&job.token);
        let wanted = |sequence: &u32| !self.arbiter.is_given_up(*sequence);
        let named = self.jobs.iter().filter(|(_, job)| named(job)).map(|(sequence, _)| *sequence);
        let sequences: Vec<u32> = named.filter(wanted).collect();
        let mut given_up = 0;
        // Cancel readers before the pipelines whose results they wait for; otherwise they would end with another reason.
        for sequence in sequences.into_iter().rev() {
            given_up += u64::from(self.jobs.contains_key(&sequence));
            self.cancel(sequence);
        }
        given_up
    }

    /// The owner is leaving: its pipelines are cancelled and its kept results are freed.
    pub fn cancel_all(&mut self, owner: u64) {
        let of_owner = self.jobs.iter().filter(|(_, job)| job.owner == owner).map(|(sequence, _)| *sequence);
        of_owner.collect::<Vec<u32>>().into_iter().for_each(|sequence| self.cancel(sequence));
        self.kept.forget(owner);
    }

    pub fn ended(&mut self) -> Option<JobEnd> {
        self.ended.pop_front()
    }

    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Pipelines that have not ended.
    pub fn in_flight(&self) -> usize {
        self.jobs.len()
    }

    /// Pipelines of an owner that have not ended.
    pub fn in_flight_of(&self, owner: u64) -> usize {
        self.jobs.values().filter(|job| job.owner == owner).count()
    }

    /// Sub-buffers that are reserved for pipelines or quarantined.
    pub fn reserved(&self) -> u16 {
        self.arbiter.reserved()
    }

    pub fn sub_buffers_free(&self) -> usize {
        self.arbiter.sub_buffers_free()
    }

    /// Sub-buffers of ended pipelines that units may still write.
    pub fn quarantined(&self) -> usize {
        self.arbiter.quarantined()
    }

    /// Queues the tasks that the arbiter starts, and collects the pipelines that ended.
    fn start(&mut self) {
        // Terminates: each round releases parked pipelines, and none is parked meanwhile.
        loop {
            while let Some(packet) = self.arbiter.start_next() {
                let program = packet.program();
                self.counters.waited(program, self.arbiter.take_waits(program));
                self.queues.entry(program).or_default().push_back(packet);
            }
            let mut released = false;
            while let Some(PipelineEnd { sequence, outcome, .. }) = self.arbiter.ended() {
                let Some(job) = self.jobs.remove(&sequence) else { unreachable!("a pipeline has a job") };
                job.cancel.raise();
                released |= !job.readers.is_empty();
                self.end(sequence, job, outcome);
            }
            if !released {
                return;
            }
        }
    }

    fn end(&mut self, sequence: u32, job: EngineJob, outcome: PipelineOutcome) {
        self.counters.pipeline_ended(job.application);
        if job.execution.is_some() {
            let EngineJob { owner, token, .. } = job;
            let result = JobResult::Execution(job.execution_result());
            return self.ended.push_back(JobEnd { owner, token, result });
        }
        let EngineJob { owner, token, stage_count, sink, written, failure, source_failure, readers, .. } = job;
        let result = match (outcome, source_failure.or(failure)) {
            (PipelineOutcome::Finished, _) => PipelineResult::Finished { bytes: written },
            (PipelineOutcome::Failed { .. }, Some(failure)) => PipelineResult::Failed(failure),
            (_, Some(failure)) if source_failure.is_some() => PipelineResult::Failed(failure),
            (outcome, _) => PipelineResult::Failed(failed(outcome, stage_count)),
        };
        self.ended.push_back(JobEnd { owner, token, result: JobResult::Pipeline(result) });
        let JobSink::Kept { id, buffer } = sink else { return };
        match result {
            PipelineResult::Finished { bytes } => {
                let kept = self.kept.keep((owner, id), sequence, buffer, bytes);
                for reader in readers {
                    self.jobs.get_mut(&reader).into_iter().for_each(|job| job.source = JobSource::kept(kept.clone()));
                    self.arbiter.release(reader);
                }
            }
            PipelineResult::Failed(failure) => {
                self.kept.break_promise(owner, id, sequence, failure);
                for reader in readers {
                    let waiting = self.jobs.get_mut(&reader);
                    waiting.into_iter().for_each(|job| job.source_failure = Some(failure.of_reader()));
                    self.arbiter.cancel(reader);
                }
            }
        }
    }
}
