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
//! 6. Each pipeline that was accepted ends once, and an end that is none names its stage.
//!
//! A stage may fill its output in parts: the stages behind it take each part before it goes on with the same input.

mod packet;
mod pipeline;
#[cfg(test)]
mod tests;

pub use packet::{ARGUMENTS_BYTES, PIPELINE_STAGES_MAX, SubBuffer, TaskPacket};
pub use pipeline::{PipelineRequest, StageRequest};

use crate::protocol::ProgramId;
use pipeline::{ScheduledPipeline, StepAfter};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// What an application's virtual time gains by a second of a unit at weight 1.
const VIRTUAL_PER_US: u64 = 1 << 10;
pub const WEIGHT_MAX: u32 = 1 << 10;

/// How many units a program has.
#[derive(Clone, Copy, Debug)]
pub struct UnitCount {
    pub program: ProgramId,
    pub units: u16,
}

/// What an arbiter schedules.
#[derive(Clone, Debug)]
pub struct ArbiterOptions {
    pub units: Vec<UnitCount>,
    /// The weight of each application, whose number is its place: 1 to [`WEIGHT_MAX`].
    pub weights: Vec<u32>,
    pub sub_buffers: u16,
    /// The most pipelines of one application that have not ended.
    pub pipelines_max: usize,
    /// What a byte from flash costs beside a microsecond of a unit, in 1/1024 microseconds.
    pub flash_byte_cost: u64,
}

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

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskOutcome {
    /// The input is used up; so many bytes of the output are filled.
    Done { bytes: u32 },
    /// The output is filled, and more of it is to come from the same input.
    More { bytes: u32 },
    /// What the program said; never zero.
    Failed { status: u16 },
}

/// What a task took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCost {
    pub unit_us: u64,
    pub flash_bytes: u64,
}

/// How a pipeline ended.
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
}

/// The status of a stage that had more than its output holds, in a pipeline that was not submitted as one of parts.
pub const OUTPUT_OVERFLOW: u16 = u16::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineEnd {
    pub sequence: u32,
    pub application: u16,
    pub outcome: PipelineOutcome,
}

/// A completion of a task that is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownTask;

/// Faults that tests plant, to see that they would be noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArbiterBug {
    LostCompletion,
    SubBufferTwice,
    NoReservation,
    StarvedApplication,
}

struct UnitState {
    total: u16,
    busy: u16,
    /// What a task of this program took lately, to charge one before it has ended.
    cost_guess: u64,
}

struct ApplicationState {
    weight: u64,
    virtual_time: u64,
    /// Not admitted yet, in order.
    waiting: VecDeque<u32>,
    /// Admitted, with a task to start.
    wait_queue: VecDeque<u32>,
    pipelines: usize,
}

pub struct Arbiter {
    units: BTreeMap<ProgramId, UnitState>,
    applications: Vec<ApplicationState>,
    pipelines: BTreeMap<u32, ScheduledPipeline>,
    sub_buffers_free: Vec<SubBuffer>,
    sub_buffers: u16,
    /// For the pipelines that are admitted.
    reserved: u16,
    ended: VecDeque<PipelineEnd>,
    pipelines_max: usize,
    flash_byte_cost: u64,
    sequence_next: u32,
    /// The least virtual time of those that have work: it never goes back.
    virtual_now: u64,
    bug: Option<ArbiterBug>,
}

impl Arbiter {
    /// # Panics
    /// When a weight is zero or beyond [`WEIGHT_MAX`].
    pub fn new(options: &ArbiterOptions) -> Arbiter {
        let unit = |count: &UnitCount| (count.program, UnitState { total: count.units, busy: 0, cost_guess: 0 });
        let application = |weight: &u32| {
            assert!((1..=WEIGHT_MAX).contains(weight), "a weight of {weight}: they go from 1 to {WEIGHT_MAX}");
            let (waiting, wait_queue) = (VecDeque::new(), VecDeque::new());
            ApplicationState { weight: u64::from(*weight), virtual_time: 0, waiting, wait_queue, pipelines: 0 }
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
            sequence_next: 0,
            virtual_now: 0,
            bug: None,
        }
    }

    /// Makes one mistake from here on.
    pub fn plant(&mut self, bug: ArbiterBug) {
        self.bug = Some(bug);
    }

    fn has(&self, bug: ArbiterBug) -> bool {
        self.bug == Some(bug)
    }

    /// Takes a pipeline; its number names it from here on.
    ///
    /// # Errors
    /// When it cannot be run, or not now; nothing is changed.
    pub fn submit(&mut self, request: &PipelineRequest) -> Result<u32, PipelineRefusal> {
        let Some(application) = self.applications.get_mut(usize::from(request.application)) else {
            return Err(PipelineRefusal::UnknownApplication(request.application));
        };
        let pipeline = ScheduledPipeline::new(request)?;
        for (stage, program) in (0..).zip(pipeline.programs()) {
            if !self.units.contains_key(program) {
                return Err(PipelineRefusal::NoUnit { stage, program: *program });
            }
        }
        if pipeline.peak > self.sub_buffers {
            return Err(PipelineRefusal::TooLarge { peak: pipeline.peak, sub_buffers: self.sub_buffers });
        }
        if application.pipelines == self.pipelines_max {
            return Err(PipelineRefusal::QueueFull);
        }
        if application.pipelines == 0 {
            // It saved nothing up while it had nothing to do.
            application.virtual_time = application.virtual_time.max(self.virtual_now);
        }
        application.pipelines += 1;
        let sequence = self.sequence_next;
        self.sequence_next = self.sequence_next.wrapping_add(1);
        application.waiting.push_back(sequence);
        self.pipelines.insert(sequence, pipeline);
        Ok(sequence)
    }

    /// The next task to start, if there is one whose unit is free.
    pub fn start_next(&mut self) -> Option<TaskPacket> {
        self.admit();
        let (number, place) = self.choose()?;
        let application = &mut self.applications[number];
        let sequence = application.wait_queue.remove(place)?;
        let pipeline = self.pipelines.get_mut(&sequence)?;
        let program = pipeline.program();
        let output = self.sub_buffers_free.pop()?;
        if self.bug == Some(ArbiterBug::SubBufferTwice) && sequence % 7 == 3 {
            self.sub_buffers_free.push(output);
        }
        let unit = self.units.get_mut(&program)?;
        unit.busy += 1;
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
            let peak = if self.bug == Some(ArbiterBug::NoReservation) { 0 } else { pipeline.peak };
            if self.reserved + peak > self.sub_buffers {
                return;
            }
            self.reserved += peak;
            pipeline.admitted = true;
            application.waiting.pop_front();
            application.wait_queue.push_back(sequence);
        }
    }

    /// Who is served first: the least.
    fn order(&self, application: usize) -> u64 {
        if self.has(ArbiterBug::StarvedApplication) {
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
        let active = self.applications.iter().filter(|application| application.pipelines > 0);
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
    ) -> Result<(), UnknownTask> {
        let Some(pipeline) = self.pipelines.get_mut(&sequence).filter(|pipeline| pipeline.runs(stage)) else {
            return Err(UnknownTask);
        };
        let program = pipeline.program();
        let (charged, number) = (pipeline.charged, usize::from(pipeline.application));
        let Some(unit) = self.units.get_mut(&program) else { unreachable!("a task that runs has a unit") };
        unit.busy -= 1;
        let spent = cost.unit_us * VIRTUAL_PER_US + cost.flash_bytes * self.flash_byte_cost;
        unit.cost_guess = (3 * unit.cost_guess + spent) / 4;
        let application = &mut self.applications[number];
        application.virtual_time =
            (application.virtual_time + spent / application.weight).saturating_sub(charged / application.weight);
        if self.bug == Some(ArbiterBug::LostCompletion) && sequence % 11 == 5 {
            return Ok(());
        }
        match pipeline.completed(outcome, &mut self.sub_buffers_free) {
            StepAfter::Run => application.wait_queue.push_back(sequence),
            StepAfter::End(outcome) => self.end(sequence, outcome),
        }
        Ok(())
    }

    /// Gives a pipeline up: at once, or when its running task has ended.
    pub fn cancel(&mut self, sequence: u32) {
        let Some(pipeline) = self.pipelines.get(&sequence) else { return };
        self.give_up(sequence, PipelineOutcome::Cancelled { stage: pipeline.stage() });
    }

    /// Gives up what should have ended by `now_us`.
    pub fn expire(&mut self, now_us: u64) {
        let is_late = |pipeline: &ScheduledPipeline| pipeline.deadline_us.is_some_and(|deadline| deadline <= now_us);
        let late: Vec<(u32, u8)> = self
            .pipelines
            .iter()
            .filter(|(_, pipeline)| is_late(pipeline))
            .map(|(sequence, pipeline)| (*sequence, pipeline.stage()))
            .collect();
        for (sequence, stage) in late {
            self.give_up(sequence, PipelineOutcome::DeadlineExceeded { stage });
        }
    }

    /// Whether the task of a pipeline that runs is not wanted any more: its unit may stop.
    pub fn is_given_up(&self, sequence: u32) -> bool {
        self.pipelines.get(&sequence).is_none_or(|pipeline| pipeline.given_up.is_some())
    }

    fn give_up(&mut self, sequence: u32, outcome: PipelineOutcome) {
        let Some(pipeline) = self.pipelines.get_mut(&sequence) else { return };
        if pipeline.is_running() {
            pipeline.given_up.get_or_insert(outcome);
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
        if pipeline.admitted && !self.has(ArbiterBug::NoReservation) {
            self.reserved -= pipeline.peak;
        }
        self.applications[usize::from(pipeline.application)].pipelines -= 1;
        self.ended.push_back(PipelineEnd { sequence, application: pipeline.application, outcome });
    }

    /// The next pipeline that has ended. Their number is bounded by that of the pipelines taken, if whoever submits takes ends.
    pub fn ended(&mut self) -> Option<PipelineEnd> {
        self.ended.pop_front()
    }

    /// Pipelines that were taken and have not ended.
    pub fn in_flight(&self) -> usize {
        self.pipelines.len()
    }
}
