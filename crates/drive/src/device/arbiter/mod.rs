//! The arbiter: which task runs next, on a unit of which program, with which sub-buffers (ProcPIPE, sections 3.2 and 3.3).
//!
//! ```text
//! submit ─► waiting ─ its peak of sub-buffers is reserved ─► admitted ─► wait queue ─ a unit is free ─► run queue
//!              │                                                            ▲                              │
//!              │                                     next stage, or part ───┴───────── completed ◄─────────┘
//!              └───────────── cancelled, too late ──────────────────────────► ended ◄── last stage, or failed
//! ```
//! A state machine and nothing else: it is told what was submitted, what completed and how late it is, and asked what to start.
//! The same calls give the same answers.
//!
//! 1. A pipeline is admitted only when all sub-buffers that it may hold at once are reserved for it. So a task that has a unit has
//!    its output too, and no stage holds one sub-buffer while it waits for another: the deadlock of ProcPIPE cannot be.
//! 2. A sub-buffer has one pipeline at a time, and each unit one task.
//! 3. A busy unit keeps nobody waiting but its own program's tasks.
//! 4. Applications are served in the order of their virtual times: what their tasks took, divided by their weights. One that comes
//!    back begins at the time of those that stayed, so nobody saves up and nobody starves. Admission goes in the same order, and
//!    a pipeline that waits for its reservation is not overtaken: large ones do not starve either.
//! 5. Every queue is bounded; what does not fit is refused with its reason.
//! 6. Each pipeline that was accepted ends once: at its deadline at the latest, whatever its units do. An end that is none names
//!    its stage.
//! 7. A sub-buffer that a unit may still write is given to nobody, though its pipeline has ended (see [`quarantine`]).
//!
//! A pipeline may be parked until its source is there. It has a place in its queue and a deadline meanwhile, and neither sub-buffers
//! nor a turn that others would wait behind.
//!
//! A stage may fill its output in parts: the stages behind it take each part before it goes on with the same input.

mod outcome;
mod packet;
mod pipeline;
mod quarantine;
#[cfg(test)]
mod tests;

pub use outcome::{
    OUTPUT_OVERFLOW, PipelineEnd, PipelineOutcome, PipelineRefusal, TaskCost, TaskOutcome, TaskReport, UnknownTask,
};
pub use packet::{ARGUMENTS_BYTES, PIPELINE_STAGES_MAX, SubBuffer, TaskPacket};
pub use pipeline::{PipelineRequest, StageRequest};

use crate::fail_point;
use crate::protocol::ProgramId;
use pipeline::{ScheduledPipeline, StepAfter};
use quarantine::QuarantinedTask;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Virtual time that an application with weight 1 pays for a microsecond of a unit.
const VIRTUAL_PER_US: u64 = 1 << 10;
pub const WEIGHT_MAX: u32 = 1 << 10;

#[derive(Clone, Copy, Debug)]
pub struct UnitCount {
    pub program: ProgramId,
    pub units: u16,
}

#[derive(Clone, Debug)]
pub struct ArbiterOptions {
    pub units: Vec<UnitCount>,
    /// The weight of each application, whose number is its place: 1 to [`WEIGHT_MAX`].
    pub weights: Vec<u32>,
    pub sub_buffers: u16,
    /// The most pipelines of one application that have not ended.
    pub pipelines_max: usize,
    /// Programs of the device itself that move bytes. Their tasks always end, and they touch memory outside sub-buffers, so a pipeline past
    /// its deadline waits for such a task.
    pub movers: Vec<ProgramId>,
    /// Cost of a byte read from flash, in 1/1024 microseconds of unit time.
    pub flash_byte_cost: u64,
}

struct UnitState {
    total: u16,
    busy: u16,
    /// Estimated cost of a task of this program, from recent tasks. A task is charged this much when it starts.
    cost_guess: u64,
    /// Tasks that waited at least one round before they started.
    waits: u64,
}

struct ApplicationState {
    weight: u64,
    virtual_time: u64,
    /// Pipelines not admitted yet, in order.
    waiting: VecDeque<u32>,
    /// Admitted pipelines that have a task to start.
    wait_queue: VecDeque<u32>,
    pipelines: usize,
    /// Pipelines of these that are not released yet.
    parked: usize,
}

pub struct Arbiter {
    units: BTreeMap<ProgramId, UnitState>,
    applications: Vec<ApplicationState>,
    pipelines: BTreeMap<u32, ScheduledPipeline>,
    sub_buffers_free: Vec<SubBuffer>,
    sub_buffers: u16,
    /// Sub-buffers reserved for admitted pipelines.
    reserved: u16,
    ended: VecDeque<PipelineEnd>,
    pipelines_max: usize,
    flash_byte_cost: u64,
    movers: Vec<ProgramId>,
    /// Deadlines of the pipelines that have one: (deadline in microseconds, sequence).
    deadlines: BTreeSet<(u64, u32)>,
    quarantined: BTreeMap<(u32, u8), QuarantinedTask>,
    /// Rounds so far. A round ends when no further task can start.
    round: u64,
    sequence_next: u32,
    /// The least virtual time of the applications that have work. It never goes back.
    virtual_now: u64,
}

impl Arbiter {
    /// # Panics
    /// When a weight is zero or beyond [`WEIGHT_MAX`].
    pub fn new(options: &ArbiterOptions) -> Arbiter {
        let unit =
            |count: &UnitCount| (count.program, UnitState { total: count.units, busy: 0, cost_guess: 0, waits: 0 });
        let application = |weight: &u32| {
            assert!((1..=WEIGHT_MAX).contains(weight), "a weight of {weight}: they go from 1 to {WEIGHT_MAX}");
            let (waiting, wait_queue) = (VecDeque::new(), VecDeque::new());
            ApplicationState {
                weight: u64::from(*weight),
                virtual_time: 0,
                waiting,
                wait_queue,
                pipelines: 0,
                parked: 0,
            }
        };
        Arbiter {
            units: options.units.iter().filter(|count| count.units > 0).map(unit).collect(),
            applications: options.weights.iter().map(application).collect(),
            pipelines: BTreeMap::new(),
            sub_buffers_free: (0..options.sub_buffers).rev().map(SubBuffer).collect(),
            sub_buffers: options.sub_buffers,
            reserved: 0,
            ended: VecDeque::new(),
            pipelines_max: options.pipelines_max,
            flash_byte_cost: options.flash_byte_cost,
            movers: options.movers.clone(),
            deadlines: BTreeSet::new(),
            quarantined: BTreeMap::new(),
            round: 0,
            sequence_next: 0,
            virtual_now: 0,
        }
    }

    /// Takes a pipeline; its number names it from here on.
    ///
    /// # Errors
    /// When it cannot be run, or not now; nothing is changed.
    pub fn submit(&mut self, request: &PipelineRequest) -> Result<u32, PipelineRefusal> {
        let sequence = self.submit_parked(request)?;
        self.release(sequence);
        Ok(sequence)
    }

    /// Whether a pipeline of one task of this program would start at once, and keep nobody waiting that came before.
    pub fn would_start(&self, program: ProgramId) -> bool {
        let is_idle = self.units.get(&program).is_some_and(|unit| unit.busy < unit.total);
        let nobody_waits = self.applications.iter().all(|application| application.waiting.is_empty());
        is_idle && nobody_waits && self.reserved < self.sub_buffers
    }

    /// Takes a pipeline that starts when it is released.
    ///
    /// # Errors
    /// As [`Arbiter::submit`].
    pub fn submit_parked(&mut self, request: &PipelineRequest) -> Result<u32, PipelineRefusal> {
        let Some(application) = self.applications.get_mut(usize::from(request.application)) else {
            return Err(PipelineRefusal::UnknownApplication(request.application));
        };
        let pipeline = ScheduledPipeline::new(request)?;
        for (stage, program) in (0..).zip(pipeline.programs()) {
            if self.units.get(program).is_none_or(|unit| unit.total == 0) {
                return Err(PipelineRefusal::NoUnit { stage, program: *program });
            }
        }
        if pipeline.peak > self.sub_buffers {
            return Err(PipelineRefusal::TooLarge { peak: pipeline.peak, sub_buffers: self.sub_buffers });
        }
        if application.pipelines == self.pipelines_max {
            return Err(PipelineRefusal::QueueFull);
        }
        application.pipelines += 1;
        application.parked += 1;
        let is_used = |sequence: u32| {
            let late = self.quarantined.range((sequence, 0)..=(sequence, u8::MAX)).next();
            self.pipelines.contains_key(&sequence) || late.is_some()
        };
        while is_used(self.sequence_next) {
            self.sequence_next = self.sequence_next.wrapping_add(1);
        }
        let sequence = self.sequence_next;
        self.sequence_next = self.sequence_next.wrapping_add(1);
        self.deadlines.extend(pipeline.deadline_us.map(|deadline_us| (deadline_us, sequence)));
        self.pipelines.insert(sequence, pipeline);
        Ok(sequence)
    }

    /// Lets a parked pipeline begin, if it has not ended.
    pub fn release(&mut self, sequence: u32) {
        let Some(pipeline) = self.pipelines.get_mut(&sequence).filter(|pipeline| pipeline.parked) else { return };
        pipeline.parked = false;
        let application = &mut self.applications[usize::from(pipeline.application)];
        if application.pipelines == application.parked {
            // An idle application earns no credit.
            application.virtual_time = application.virtual_time.max(self.virtual_now);
        }
        application.parked -= 1;
        application.waiting.push_back(sequence);
    }

    /// The next task to start, if there is one whose unit is free.
    pub fn start_next(&mut self) -> Option<TaskPacket> {
        self.admit();
        let Some((number, place)) = self.choose() else {
            self.round += 1;
            return None;
        };
        let application = &mut self.applications[number];
        let sequence = application.wait_queue.remove(place)?;
        let pipeline = self.pipelines.get_mut(&sequence)?;
        let program = pipeline.program();
        let output = self.sub_buffers_free.pop()?;
        if fail_point!(SubBufferTwice) && sequence % 7 == 3 {
            self.sub_buffers_free.push(output);
        }
        let unit = self.units.get_mut(&program)?;
        unit.busy += 1;
        unit.waits += u64::from(pipeline.queued_round < self.round);
        let charged = unit.cost_guess;
        application.virtual_time += charged / application.weight;
        Some(pipeline.start(sequence, output, charged))
    }

    /// Admits pipelines whose reservation there is room for, in the order of virtual times; the first that waits holds up the rest.
    fn admit(&mut self) {
        loop {
            let waiting = (0..self.applications.len()).filter(|place| !self.applications[*place].waiting.is_empty());
            let Some(number) = waiting.min_by_key(|place| self.order(*place)) else { return };
            let application = &mut self.applications[number];
            let Some(sequence) = application.waiting.front().copied() else { return };
            let Some(pipeline) = self.pipelines.get_mut(&sequence) else { unreachable!("a waiting pipeline is kept") };
            let peak = if fail_point!(NoReservation) { 0 } else { pipeline.peak };
            if self.reserved + peak > self.sub_buffers {
                return;
            }
            self.reserved += peak;
            (pipeline.admitted, pipeline.queued_round) = (true, self.round);
            application.waiting.pop_front();
            application.wait_queue.push_back(sequence);
        }
    }

    /// The application with the least value is served first.
    fn order(&self, application: usize) -> u64 {
        if fail_point!(StarvedApplication) {
            return application as u64;
        }
        self.applications[application].virtual_time
    }

    /// The application that is served next and which of its tasks: the first whose unit is free.
    fn choose(&mut self) -> Option<(usize, usize)> {
        let is_free = |sequence: &u32| {
            let program = self.pipelines.get(sequence).map(ScheduledPipeline::program);
            program.and_then(|program| self.units.get(&program)).is_some_and(|unit| unit.busy < unit.total)
        };
        if self.sub_buffers_free.is_empty() {
            return None;
        }
        let runnable = self.applications.iter().enumerate().filter_map(|(number, application)| {
            let place = application.wait_queue.iter().position(is_free)?;
            Some((self.order(number), number, place))
        });
        let (_, number, place) = runnable.min()?;
        let active = self.applications.iter().filter(|application| application.pipelines > application.parked);
        if let Some(least) = active.map(|application| application.virtual_time).min() {
            self.virtual_now = self.virtual_now.max(least);
        }
        Some((number, place))
    }

    /// A task has ended. What it left in its output, if it was of the last stage, has been taken.
    ///
    /// # Errors
    /// When no such task is running; nothing is changed.
    pub fn completed(
        &mut self,
        sequence: u32,
        stage: u8,
        outcome: TaskOutcome,
        cost: TaskCost,
    ) -> Result<TaskReport, UnknownTask> {
        let Some(pipeline) = self.pipelines.get(&sequence).filter(|pipeline| pipeline.runs(stage)) else {
            return self.completed_late((sequence, stage), Some(cost));
        };
        let ScheduledPipeline { application, charged, .. } = *pipeline;
        self.unit_is_back(pipeline.program(), application, charged, Some(cost));
        if fail_point!(LostCompletion) && sequence % 11 == 5 {
            return Ok(TaskReport::Counted);
        }
        let Some(pipeline) = self.pipelines.get_mut(&sequence) else { unreachable!("it was there above") };
        match pipeline.completed(outcome, &mut self.sub_buffers_free) {
            StepAfter::Run => {
                pipeline.queued_round = self.round;
                self.applications[usize::from(application)].wait_queue.push_back(sequence);
            }
            StepAfter::End(outcome) => self.end(sequence, outcome),
        }
        Ok(TaskReport::Counted)
    }

    /// Cancels a pipeline: at once, or when its running task has ended.
    pub fn cancel(&mut self, sequence: u32) {
        let Some(pipeline) = self.pipelines.get(&sequence) else { return };
        self.give_up(sequence, PipelineOutcome::Cancelled { stage: pipeline.stage() });
    }

    /// Ends the pipelines whose deadline has passed. A pipeline whose bytes the device itself is moving ends after that move; sub-buffers
    /// that another task still uses are quarantined.
    pub fn expire(&mut self, now_us: u64) {
        while let Some((deadline_us, sequence)) = self.deadlines.first().copied().filter(|(at_us, _)| *at_us <= now_us)
        {
            self.deadlines.remove(&(deadline_us, sequence));
            let Some(pipeline) = self.pipelines.get(&sequence) else { continue };
            let outcome = pipeline.given_up.unwrap_or(PipelineOutcome::DeadlineExceeded { stage: pipeline.stage() });
            if pipeline.is_running() && !self.movers.contains(&pipeline.program()) {
                self.end_without_task(sequence, outcome);
            } else {
                self.give_up(sequence, outcome);
            }
        }
    }

    /// The next time at which [`Arbiter::expire`] has something to do.
    pub fn deadline_next_us(&self) -> Option<u64> {
        self.deadlines.first().map(|(deadline_us, _)| *deadline_us)
    }

    /// Number of tasks of a program that waited for a unit or a sub-buffer, since the last call.
    pub fn take_waits(&mut self, program: ProgramId) -> u64 {
        self.units.get_mut(&program).map_or(0, |unit| std::mem::take(&mut unit.waits))
    }

    /// Units of a program that are alive.
    pub fn units(&self, program: ProgramId) -> u16 {
        self.units.get(&program).map_or(0, |unit| unit.total)
    }

    /// Whether the running task of a pipeline is cancelled, so that its unit may stop.
    pub fn is_given_up(&self, sequence: u32) -> bool {
        self.pipelines.get(&sequence).is_none_or(|pipeline| pipeline.given_up.is_some())
    }

    fn give_up(&mut self, sequence: u32, outcome: PipelineOutcome) {
        let Some(pipeline) = self.pipelines.get_mut(&sequence) else { return };
        if pipeline.is_running() {
            pipeline.given_up.get_or_insert(outcome);
            if fail_point!(CancelFreesRunning) {
                self.sub_buffers_free.extend(pipeline.take_running().into_iter().flatten());
            }
            return;
        }
        let application = &mut self.applications[usize::from(pipeline.application)];
        application.waiting.retain(|waiting| *waiting != sequence);
        application.wait_queue.retain(|waiting| *waiting != sequence);
        self.end(sequence, outcome);
    }

    fn end(&mut self, sequence: u32, outcome: PipelineOutcome) {
        let Some(mut pipeline) = self.pipelines.remove(&sequence) else { unreachable!("it has not ended yet") };
        pipeline.free_all(&mut self.sub_buffers_free);
        if let Some(deadline_us) = pipeline.deadline_us {
            self.deadlines.remove(&(deadline_us, sequence));
        }
        if pipeline.admitted && !fail_point!(NoReservation) {
            self.reserved -= pipeline.peak;
        }
        let application = &mut self.applications[usize::from(pipeline.application)];
        application.pipelines -= 1;
        application.parked -= usize::from(pipeline.parked);
        self.ended.push_back(PipelineEnd { sequence, application: pipeline.application, outcome });
    }

    /// The next pipeline that has ended. The caller must take ends: then their number stays below that of the pipelines submitted.
    pub fn ended(&mut self) -> Option<PipelineEnd> {
        self.ended.pop_front()
    }

    /// Pipelines that were taken and have not ended.
    pub fn in_flight(&self) -> usize {
        self.pipelines.len()
    }
}
