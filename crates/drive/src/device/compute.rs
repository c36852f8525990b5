//! The pipelines of one queue pair. They come in batches and run on the queue pair's own engine, or on the engine that all queue pairs
//! share.
//!
//! ```text
//! Compute ─► descriptors copied, checked ─┬─► own engine ─► tasks, a few a poll ─┬─► ended ─► result into its descriptor
//!                                         │     ▲  └─ moves by the flash queue   │                └─ the last of the batch ─► completion
//!                                         │     └────┘                           │
//!                                         └─► shared engine ─► units ─► mailbox ─┘
//! ```
//! 1. An own engine has its own sub-buffers, so its pipelines wait for no other queue pair. The shared engine divides sub-buffers by the
//!    weights of applications; the queue pair's number keeps results and ends apart.
//! 2. The steps of a poll are bounded.
//! 3. A result is written when its pipeline has ended. The command ends after its last pipeline.

use super::Device;
use super::controller::CommandEnd;
use super::engine::run::{TaskStep, run_task};
use super::engine::shared::{EngineClient, EngineGuard};
use super::engine::{
    EngineCore, EngineOptions, EngineTask, ExecutionResult, JobEnd, JobRequest, JobResult, TaskResult, is_move,
};
use crate::protocol::{
    Execution, LocalRange, Operation, PipelineDescriptor, PipelineFailure, PipelinePlace, PipelineReason,
    PipelineResult,
};
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;

/// The token of a program of a command has this bit, and the place of its pipeline below it.
const EXECUTION: u64 = 1 << 63;
/// Tasks of one poll, each of which takes microseconds to a tenth of a millisecond.
const TASKS_OF_A_POLL: usize = 16;

/// A checked `Compute` command.
pub(super) struct ComputeRequest {
    pub list: LocalRange,
    pub pipelines: Vec<CheckedPipeline>,
}

/// A pipeline of the list, or the reason why it is refused.
pub(super) struct CheckedPipeline {
    pub job: Result<JobRequest, PipelineFailure>,
    /// The number under which others may look for its result.
    pub keeps: Option<u64>,
}

/// A command of a controller, or a part of one, that has ended.
pub(super) enum ComputeEnd {
    Batch(ComputeBatch),
    /// A program of the pipeline in this place of the controller's.
    Execution(u32, ExecutionResult),
}

/// A `Compute` command that is running.
pub(super) struct ComputeBatch {
    pub end: CommandEnd,
    pub submitted_us: u64,
    list: LocalRange,
    left: usize,
    pub failed: u64,
}

/// The engine of one queue pair's pipelines.
enum PairEngine {
    /// `None` if local memory had no room for the sub-buffers at the last attempt.
    Own(Option<Box<EngineCore>>),
    Shared(EngineClient),
}

/// A task whose flash commands are running.
struct MovedTask {
    task: EngineTask,
    left: usize,
    failure: Option<TaskResult>,
}

/// Access to the core of an engine, locked if it is shared.
enum CoreAccess<'a> {
    Own(&'a mut EngineCore),
    Shared(EngineGuard<'a>),
}

/// The compute state of one controller.
pub(super) struct ControllerCompute {
    engine: PairEngine,
    batches: Vec<Option<ComputeBatch>>,
    /// Batches that are still running.
    batches_left: usize,
    /// Programs of other commands that units have.
    executions_left: usize,
    /// Tasks of an own engine whose flash commands are running.
    in_flash: Vec<Option<MovedTask>>,
    /// Tasks started on the own engine.
    tasks: u64,
    /// Bytes that an own engine takes at a time; `None` for the drive's usual size.
    part_bytes: Option<u32>,
    /// The application of the last pipeline that came: an own engine takes turns as its.
    application: u16,
}

impl PairEngine {
    fn core(&mut self) -> Option<CoreAccess<'_>> {
        match self {
            PairEngine::Own(core) => core.as_deref_mut().map(CoreAccess::Own),
            PairEngine::Shared(client) => Some(CoreAccess::Shared(client.lock())),
        }
    }

    fn owner(&self) -> u64 {
        match self {
            PairEngine::Own(_) => 0,
            PairEngine::Shared(client) => client.owner(),
        }
    }

    fn ended(&mut self) -> Option<JobEnd> {
        match self {
            PairEngine::Own(core) => core.as_mut()?.ended(),
            PairEngine::Shared(client) => client.ended(),
        }
    }

    /// The engine whose tasks the polling thread runs.
    fn own(&mut self) -> Option<&mut EngineCore> {
        match self {
            PairEngine::Own(core) => core.as_deref_mut(),
            PairEngine::Shared(_) => None,
        }
    }
}

impl Deref for CoreAccess<'_> {
    type Target = EngineCore;

    fn deref(&self) -> &EngineCore {
        match self {
            CoreAccess::Own(core) => core,
            CoreAccess::Shared(guard) => guard,
        }
    }
}

impl DerefMut for CoreAccess<'_> {
    fn deref_mut(&mut self) -> &mut EngineCore {
        match self {
            CoreAccess::Own(core) => core,
            CoreAccess::Shared(guard) => guard,
        }
    }
}

pub(super) enum ComputeStep {
    /// No task can run.
    Rests,
    Goes,
    /// Commands for the flash queue were submitted.
    Flash,
}

impl ControllerCompute {
    /// With an own engine, which the first batch creates.
    pub fn alone() -> ControllerCompute {
        ControllerCompute::on(PairEngine::Own(None))
    }

    /// On the engine that all queue pairs of the drive share.
    pub fn shared(client: EngineClient) -> ControllerCompute {
        ControllerCompute::on(PairEngine::Shared(client))
    }

    fn on(engine: PairEngine) -> ControllerCompute {
        ControllerCompute {
            engine,
            batches: Vec::new(),
            batches_left: 0,
            executions_left: 0,
            in_flash: Vec::new(),
            tasks: 0,
            part_bytes: None,
            application: 0,
        }
    }

    /// Sets how many bytes an own engine takes at a time.
    pub fn take_parts_of(&mut self, part_bytes: u32) {
        self.part_bytes = Some(part_bytes);
    }

    /// Creates the own engine if there is to be one and there is none yet. Returns whether one exists.
    pub fn make_engine(&mut self, device: &Device) -> bool {
        let PairEngine::Own(core) = &mut self.engine else { return true };
        if core.is_none() {
            let sector_bytes = device.flash.sector_bytes();
            let make = |options: &EngineOptions| {
                EngineCore::new(&device.local, sector_bytes, &device.programs, device.stages.clone(), options)
            };
            let wanted =
                self.part_bytes.map(|sub_buffer_bytes| EngineOptions { sub_buffer_bytes, ..device.engine.clone() });
            *core = wanted.and_then(|wanted| make(&wanted)).or_else(|| make(&device.engine)).map(Box::new);
        }
        core.is_some()
    }

    pub fn tasks(&self) -> u64 {
        self.tasks
    }

    /// Whether a batch is running, or a unit has a program.
    pub fn is_busy(&self) -> bool {
        self.batches_left > 0 || self.executions_left > 0
    }

    /// Whether another poll would make progress at once.
    pub fn has_task(&self) -> bool {
        match &self.engine {
            PairEngine::Own(core) => {
                core.as_ref().is_some_and(|core| core.waiting().next().is_some() || core.has_ended())
            }
            PairEngine::Shared(client) => client.has_ended(),
        }
    }

    /// A descriptor that is readable while pipelines have ended on the shared engine. `None` for an own engine.
    pub fn event_fd(&self) -> Option<RawFd> {
        match &self.engine {
            PairEngine::Own(_) => None,
            PairEngine::Shared(client) => Some(client.event_fd()),
        }
    }

    /// The next time at which [`ControllerCompute::expire`] has something to do. `None` for the shared engine, which keeps its own
    /// deadlines.
    pub fn deadline_next_us(&self) -> Option<u64> {
        match &self.engine {
            PairEngine::Own(core) => core.as_ref()?.deadline_next_us(),
            PairEngine::Shared(_) => None,
        }
    }

    /// Submits a batch to the engine. Returns it if all of its pipelines have ended already.
    pub fn start(
        &mut self,
        device: &Device,
        end: CommandEnd,
        request: ComputeRequest,
        now_us: u64,
    ) -> Option<ComputeBatch> {
        self.make_engine(device);
        let ComputeRequest { list, pipelines } = request;
        let mut batch = ComputeBatch { end, submitted_us: now_us, list, left: pipelines.len(), failed: 0 };
        let place = match self.batches.iter().position(Option::is_none) {
            Some(place) => place,
            None => {
                self.batches.push(None);
                self.batches.len() - 1
            }
        };
        let owner = self.engine.owner();
        let mut core = self.engine.core();
        for (number, CheckedPipeline { job, keeps }) in pipelines.into_iter().enumerate() {
            let submitted = job.and_then(|mut job| {
                let no_memory = PipelineFailure::new(PipelinePlace::Source, PipelineReason::NoLocalMemory);
                let core = core.as_mut().ok_or(no_memory)?;
                job.owner = owner;
                job.token = (place as u64) << 8 | number as u64;
                job.deadline_us = job.deadline_us.map(|deadline_us| now_us.saturating_add(deadline_us));
                let application = job.application;
                core.submit(job).inspect(|_| self.application = application)
            });
            if let Err(failure) = submitted {
                batch.ended(device, number, PipelineResult::Failed(failure));
                if let (Some(id), Some(core)) = (keeps, &mut core) {
                    core.fail_kept(owner, id, failure);
                }
            }
        }
        if batch.left == 0 {
            return Some(batch);
        }
        self.batches[place] = Some(batch);
        self.batches_left += 1;
        None
    }

    /// Gives a program of a command to a unit. Returns whether one will run it; the program then ends with [`ComputeEnd::Execution`].
    pub fn execute(&mut self, place: u32, execution: Execution) -> bool {
        let PairEngine::Shared(client) = &self.engine else { return false };
        let token = EXECUTION | u64::from(place);
        let is_taken =
            client.has_units(execution.program) && client.lock().submit_execution(client.owner(), token, execution);
        self.executions_left += usize::from(is_taken);
        is_taken
    }

    /// Cancels one pipeline, or all, of the batches with this tag. Returns how many.
    pub fn cancel(&mut self, tag: u64, pipeline: Option<u16>) -> u64 {
        let owner = self.engine.owner();
        let Some(mut core) = self.engine.core() else { return 0 };
        let batches = self.batches.iter().enumerate().filter_map(|(place, batch)| Some((place, batch.as_ref()?)));
        let places = batches.filter(|(_, batch)| batch.end.tag == tag).map(|(place, _)| (place as u64) << 8);
        let tokens = |first: u64| match pipeline {
            Some(number) => first | u64::from(number)..=first | u64::from(number),
            None => first..=first | 0xff,
        };
        places.map(|first| core.cancel_tokens(owner, tokens(first))).sum()
    }

    /// Ends pipelines past their deadline. The clock is read only if a pipeline has one.
    pub fn expire(&mut self, device: &Device) {
        if let Some(core) = self.engine.own().filter(|core| core.deadline_next_us().is_some()) {
            core.expire(device.env.now_us());
        }
    }

    /// Runs up to a poll's tasks, and passes their flash commands to `flash`. After such commands, programs wait for the next poll, which
    /// starts the commands first: so flash and programs work at the same time.
    pub fn advance(&mut self, device: &Device, flash: impl FnMut(u32, Operation)) {
        // Threads of the drive's own look after many: they are as many as may compute at once.
        let wants_turn = device.threads.is_none() && self.has_waiting_task();
        let Some(turns) = device.turns.as_ref().filter(|_| wants_turn) else { return self.run_tasks(device, flash) };
        let (application, from_us) = (self.application, device.env.now_us());
        // The host's thread would ask again at once.
        if turns.begin_or_rest(application, from_us) {
            self.run_tasks(device, flash);
            let now_us = device.env.now_us();
            turns.end(application, now_us - from_us, now_us);
        }
    }

    /// Whether an own engine has a task that nobody has begun.
    fn has_waiting_task(&self) -> bool {
        matches!(&self.engine, PairEngine::Own(Some(core)) if core.waiting().next().is_some())
    }

    fn run_tasks(&mut self, device: &Device, mut flash: impl FnMut(u32, Operation)) {
        let mut waits_for_poll = false;
        for _ in 0..TASKS_OF_A_POLL {
            match self.step(device, waits_for_poll, &mut flash) {
                ComputeStep::Rests => return,
                ComputeStep::Goes => {}
                ComputeStep::Flash => waits_for_poll = true,
            }
        }
    }

    fn step(&mut self, device: &Device, moves_only: bool, flash: &mut impl FnMut(u32, Operation)) -> ComputeStep {
        let Some(core) = self.engine.own() else { return ComputeStep::Rests };
        let Some(mut task) = core.take_any(|program| !moves_only || is_move(program)) else {
            return ComputeStep::Rests;
        };
        self.tasks += 1;
        let from_us = task.is_timed.then(|| device.env.now_us());
        // SAFETY: the task was just taken from the core. The ranges of sources and sinks are leased with the command, which has not ended,
        // and only one task of the queue pair runs at a time.
        match unsafe { run_task(&mut task, &device.programs, &device.local) } {
            TaskStep::Ended(result) => {
                core.complete(task, result, from_us.map(|from_us| device.env.now_us() - from_us));
                ComputeStep::Goes
            }
            TaskStep::Flash => {
                let free = self.in_flash.iter().position(Option::is_none);
                let place = free.unwrap_or(self.in_flash.len());
                if place == self.in_flash.len() {
                    self.in_flash.push(None);
                }
                task.work.flash().iter().for_each(|operation| flash(place as u32, *operation));
                self.in_flash[place] = Some(MovedTask { left: task.work.flash().len(), task, failure: None });
                ComputeStep::Flash
            }
        }
    }

    /// A flash command of a task has succeeded or failed.
    pub fn moved(&mut self, place: u32, result: TaskResult) {
        let place = &mut self.in_flash[place as usize];
        let Some(moved) = place else { unreachable!("a task of the flash is kept") };
        moved.left -= 1;
        if result != TaskResult::Moved {
            moved.failure = Some(result);
        }
        if moved.left > 0 {
            return;
        }
        let (Some(MovedTask { task, failure, .. }), Some(core)) = (place.take(), self.engine.own()) else {
            unreachable!("a task of the flash is an own engine's")
        };
        core.complete(task, failure.unwrap_or(TaskResult::Moved), None);
    }

    /// The next batch, or program of a command, that has ended.
    pub fn ended(&mut self, device: &Device) -> Option<ComputeEnd> {
        while let Some(JobEnd { token, result, .. }) = self.engine.ended() {
            let result = match result {
                JobResult::Pipeline(result) => result,
                JobResult::Execution(result) => {
                    self.executions_left -= 1;
                    return Some(ComputeEnd::Execution(token as u32, result));
                }
            };
            let place = &mut self.batches[(token >> 8) as usize];
            let Some(batch) = place else { unreachable!("a batch waits for its pipelines") };
            batch.ended(device, (token & 0xff) as usize, result);
            if batch.left == 0 {
                self.batches_left -= 1;
                return place.take().map(ComputeEnd::Batch);
            }
        }
        None
    }
}

impl ComputeBatch {
    fn ended(&mut self, device: &Device, number: usize, result: PipelineResult) {
        self.left -= 1;
        self.failed += u64::from(matches!(result, PipelineResult::Failed(_)));
        let at = number * PipelineDescriptor::ENCODED_BYTES + PipelineDescriptor::RESULT_AT;
        let bytes = result.encode();
        let into = LocalRange { offset: self.list.offset + at as u64, length: bytes.len() as u32 };
        let Some(into) = device.local.pointer(into) else { unreachable!("the list was checked") };
        // SAFETY: the range is inside the list, which is leased with the command, and the command has not ended.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.as_ptr(), bytes.len()) };
    }
}
