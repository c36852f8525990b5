//! Units with threads, and callers that wait for their pipelines.
//!
//! 1. One lock guards the core; it is not held while a task runs.
//! 2. A unit whose program panics is dead: its thread ends, and its task's pipeline says so.
//! 3. Whoever waits wakes for the next deadline.

use super::core::{EngineCore, EngineTask, JobEnd, JobRequest, SinkRequest, SourceRequest};
use super::run::{TaskStep, run_task};
use super::{EngineOptions, SINK, SOURCE};
use crate::counters::QueueCounters;
use crate::device::Device;
use crate::device::arbiter::UnitCount;
use crate::locks::whole;
use crate::protocol::{
    LocalRange, PARAMETERS_MAX, PROGRAMS_MAX, PipelineFailure, PipelinePlace, PipelineReason, PipelineResult,
    PipelineStage, ProgramId, Purpose, SourceRange,
};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a pipeline does to the bytes it is given.
#[derive(Clone, Debug, Default)]
pub struct PipelineWork {
    pub application: u16,
    /// Programs and their parameters, in order.
    pub stages: Vec<(ProgramId, Vec<u8>)>,
    /// By the drive's clock.
    pub deadline_us: Option<u64>,
    /// A longer output ends the pipeline.
    pub output_bytes_max: usize,
}

/// Why a pipeline gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PipelineError {
    TooManyStages(usize),
    /// A stage has so many bytes of parameters.
    LongParameters {
        stage: usize,
        bytes: usize,
    },
    /// With the name of the stage's program.
    Failed(PipelineFailure, Option<String>),
}

impl fmt::Display for PipelineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PipelineError::TooManyStages(count) => {
                write!(f, "{count} stages: a pipeline has at most {PROGRAMS_MAX}; split it in two")
            }
            PipelineError::LongParameters { stage, bytes } => {
                write!(f, "stage {stage} has {bytes} bytes of parameters, and there is room for {PARAMETERS_MAX}")
            }
            PipelineError::Failed(failure, Some(program)) => {
                write!(f, "{}, {program}: {}", failure.place, failure.explain())
            }
            PipelineError::Failed(failure, None) => failure.fmt(f),
        }
    }
}

impl std::error::Error for PipelineError {}

struct EngineState {
    core: EngineCore,
    ended: BTreeMap<u64, PipelineResult>,
    token_next: u64,
    stopping: bool,
}

struct EngineShared {
    device: Arc<Device>,
    counters: Arc<QueueCounters>,
    threaded: Vec<ProgramId>,
    state: Mutex<EngineState>,
    changed: Condvar,
}

/// See the [module](self). Dropping it waits for its threads.
pub struct PipelineEngine {
    shared: Arc<EngineShared>,
    threads: Vec<JoinHandle<()>>,
}

impl PipelineEngine {
    pub(crate) fn new(device: Arc<Device>, options: &EngineOptions) -> io::Result<PipelineEngine> {
        let memory = (&device.local, device.flash.sector_bytes());
        let core = EngineCore::new(memory, &device.programs, device.stages.clone(), options).ok_or_else(|| {
            io::Error::other("local memory has no room for the sub-buffers: use fewer or smaller ones")
        })?;
        let state = EngineState { core, ended: BTreeMap::new(), token_next: 0, stopping: false };
        let shared = Arc::new(EngineShared {
            counters: device.free_counters(),
            device,
            threaded: options.units.iter().map(|count| count.program).collect(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let mut engine = PipelineEngine { shared, threads: Vec::new() };
        let mut cores = options.pin.then(Cores::allowed).unwrap_or_default();
        for UnitCount { program, units } in &options.units {
            for _ in 0..*units {
                let (shared, program) = (engine.shared.clone(), *program);
                let core = cores.next();
                let work = move || {
                    core.into_iter().for_each(Cores::stay_on);
                    shared.serve(program);
                };
                engine.threads.push(engine.shared.device.env.spawn_drive_thread("tapetum-unit", work)?);
            }
        }
        Ok(engine)
    }

    /// Runs `source` through the stages, and gives what comes out. Meanwhile this thread does tasks of programs without threads.
    /// Local memory must have room for the source and the longest output.
    ///
    /// # Errors
    /// What is wrong with the pipeline, or went wrong in it, by the place of its stage.
    pub fn run(&self, work: &PipelineWork, source: &[u8]) -> Result<Vec<u8>, PipelineError> {
        let shared = &*self.shared;
        let stages = stages(work)?;
        let room = |bytes: usize, place| {
            let failure = PipelineFailure::new(place, PipelineReason::NoLocalMemory).with(bytes as u32);
            shared.device.local.allocate(bytes).ok_or(PipelineError::Failed(failure, None))
        };
        let mut from = room(source.len(), PipelinePlace::Source)?;
        from.bytes_mut().copy_from_slice(source);
        let into = room(work.output_bytes_max, PipelinePlace::Sink)?;
        let mut state = shared.lock();
        shared.counters.moved_host_to_local(Purpose::Pipeline, source.len() as u64);
        let token = state.token_next;
        state.token_next += 1;
        let range = SourceRange { offset: from.offset(), bytes: source.len() as u64 };
        let request = JobRequest {
            owner: 0,
            token,
            application: work.application,
            deadline_us: work.deadline_us,
            stages,
            source: SourceRequest::Local(vec![range]),
            sink: SinkRequest::Host(LocalRange { offset: into.offset(), length: into.len() as u32 }),
        };
        state.core.submit(request).map_err(|failure| shared.error(work, failure))?;
        shared.changed.notify_all();
        loop {
            shared.settle(&mut state);
            if let Some(result) = state.ended.remove(&token) {
                if let PipelineResult::Finished { bytes } = result {
                    shared.counters.moved_local_to_host(Purpose::Pipeline, bytes);
                }
                drop(state);
                return match result {
                    PipelineResult::Finished { bytes } => Ok(into.bytes()[..bytes as usize].to_vec()),
                    PipelineResult::Failed(failure) => Err(shared.error(work, failure)),
                };
            }
            state = match state.core.take_any(|program| !shared.threaded.contains(&program)) {
                Some(task) => {
                    drop(state);
                    shared.run(task).0
                }
                None => shared.wait(state),
            };
        }
    }
}

/// Cores that this process may run on, one after the other and round again.
#[derive(Default)]
struct Cores {
    all: Vec<usize>,
    given: usize,
}

impl Cores {
    fn allowed() -> Cores {
        let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Cores::default() };
        let all = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
        Cores { all, given: 0 }
    }

    fn next(&mut self) -> Option<usize> {
        let core = self.all.get(self.given.checked_rem(self.all.len())?).copied();
        self.given += 1;
        core
    }

    /// Pins this thread. Where the system refuses, it runs where it is put.
    fn stay_on(core: usize) {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

impl Drop for PipelineEngine {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.changed.notify_all();
        self.threads.drain(..).for_each(|thread| {
            // A unit that panicked has said so.
            let _ = thread.join();
        });
    }
}

fn stages(work: &PipelineWork) -> Result<Vec<PipelineStage>, PipelineError> {
    if work.stages.len() > PROGRAMS_MAX {
        return Err(PipelineError::TooManyStages(work.stages.len()));
    }
    let stage = |(stage, (program, parameters)): (usize, &(ProgramId, Vec<u8>))| {
        let long = PipelineError::LongParameters { stage, bytes: parameters.len() };
        PipelineStage::new(*program, parameters).ok_or(long)
    };
    work.stages.iter().enumerate().map(stage).collect()
}

impl EngineShared {
    fn lock(&self) -> MutexGuard<'_, EngineState> {
        whole(self.state.lock())
    }

    fn error(&self, work: &PipelineWork, failure: PipelineFailure) -> PipelineError {
        let program = match failure.place {
            PipelinePlace::Stage(stage) => work.stages.get(usize::from(stage)),
            _ => None,
        };
        let program = program.and_then(|(program, _)| self.device.programs.get(usize::from(program.0)));
        PipelineError::Failed(failure, program.map(|program| program.descriptor().name.to_owned()))
    }

    /// Deadlines, and ends for those who wait for them.
    fn settle(&self, state: &mut EngineState) {
        if state.core.deadline_next_us().is_some() {
            state.core.expire(self.device.env.now_us());
        }
        while let Some(JobEnd { token, result, .. }) = state.core.ended() {
            state.ended.insert(token, result);
            self.changed.notify_all();
        }
    }

    /// Waits for something to change, or the next deadline.
    fn wait<'a>(&self, mut state: MutexGuard<'a, EngineState>) -> MutexGuard<'a, EngineState> {
        let had_ended = state.ended.len();
        self.settle(&mut state);
        if state.core.take_made_way() {
            self.changed.notify_all();
            return state;
        }
        if state.ended.len() > had_ended {
            return state;
        }
        match state.core.deadline_next_us() {
            None => whole(self.changed.wait(state)),
            Some(deadline_us) => {
                let timeout = Duration::from_micros(deadline_us.saturating_sub(self.device.env.now_us()).max(1));
                whole(self.changed.wait_timeout(state, timeout)).0
            }
        }
    }

    /// A unit of a program: it takes tasks until the engine is stopped, or it dies.
    fn serve(&self, program: ProgramId) {
        let mut state = self.lock();
        while !state.stopping {
            state = match state.core.take(program) {
                Some(task) => {
                    drop(state);
                    let (state, is_alive) = self.run(task);
                    if !is_alive {
                        return;
                    }
                    state
                }
                None => self.wait(state),
            };
        }
    }

    /// Runs a task and gives it back. Whether the unit has survived it.
    fn run(&self, mut task: EngineTask) -> (MutexGuard<'_, EngineState>, bool) {
        let timed_from_us = task.is_timed.then(|| self.device.env.now_us());
        let place = (task.packet.program(), task.packet.sequence, task.packet.stage);
        let ran = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: just taken from the core; source and sink are in the waiting caller's buffers.
            let step = unsafe { run_task(&mut task, &self.device.programs, &self.device.local) };
            (task, step)
        }));
        let unit_us = timed_from_us.map(|from_us| self.device.env.now_us() - from_us);
        let mut state = self.lock();
        // There may be other tasks now, and ends.
        self.changed.notify_all();
        let Ok((task, step)) = ran else {
            let (program, sequence, stage) = place;
            assert!(![SOURCE, SINK].contains(&program), "moves do not panic");
            state.core.unit_lost(program, Some((sequence, stage)));
            return (state, false);
        };
        let result = match step {
            TaskStep::Ended(result) => result,
            TaskStep::Flash(operation) => unreachable!("{operation:?} of a pipeline from the host to the host"),
        };
        state.core.complete(task, result, unit_us);
        (state, true)
    }
}
