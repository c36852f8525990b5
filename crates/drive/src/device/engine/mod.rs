//! Pipelines over compute units: the arbiter, with threads for the programs that were given some, and for the others whoever waits
//! for a pipeline.
//!
//! ```text
//! run ─► arbiter ─► queue of a program ─► its unit threads, or a thread in `run` ─► arbiter ─► … ─► bytes to the host
//! ```
//! 1. One lock guards arbiter, queues and jobs; it is not held while a program runs.
//! 2. Bytes go in through a first stage of the engine's own, which fills sub-buffers from the host's bytes, and out of the last
//!    stage's output before the arbiter hears that it has ended.
//! 3. A sub-buffer is written by the task whose output it is, and read by the task whose input it is: the arbiter gives it to no
//!    other meanwhile.

#[cfg(test)]
mod tests;

use super::Device;
use super::arbiter::{
    ARGUMENTS_BYTES, Arbiter, ArbiterOptions, PIPELINE_STAGES_MAX, PipelineOutcome, PipelineRefusal, PipelineRequest,
    StageRequest, SubBuffer, TaskCost, TaskOutcome, TaskPacket, UnitCount,
};
use super::program::{Context, Program, TaskState};
use crate::counters::QueueCounters;
use crate::locks::whole;
use crate::memory::LocalBuffer;
use crate::protocol::{ProgramId, Status};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// The first stage of every pipeline here: it brings the host's bytes. No program of a drive has this number.
const SOURCE: ProgramId = ProgramId(u16::MAX);
/// Tasks of one program without threads that the arbiter starts: as many as threads may wait in `run`.
const INLINE_UNITS: u16 = 64;
/// The most stages of a pipeline, beside the one that brings the bytes.
pub const ENGINE_STAGES_MAX: usize = PIPELINE_STAGES_MAX - 1;
/// The most bytes of parameters of a stage: the packet's arguments hold them behind their number.
pub const STAGE_PARAMETERS_MAX: usize = ARGUMENTS_BYTES - 1;

#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Programs that get threads of their own.
    pub units: Vec<UnitCount>,
    /// By application.
    pub weights: Vec<u32>,
    pub sub_buffers: u16,
    pub sub_buffer_bytes: u32,
    /// The most pipelines of an application at once.
    pub pipelines_max: usize,
}

impl Default for EngineOptions {
    /// No threads, one application, and 64 KiB a stage: two pipelines of the greatest length have room at once.
    fn default() -> EngineOptions {
        let sub_buffers = 2 * PIPELINE_STAGES_MAX as u16;
        EngineOptions {
            units: Vec::new(),
            weights: vec![1],
            sub_buffers,
            sub_buffer_bytes: 64 << 10,
            pipelines_max: 64,
        }
    }
}

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
    Refused(PipelineRefusal),
    /// A stage has so many bytes of parameters.
    LongParameters {
        stage: usize,
        bytes: usize,
    },
    NotAStream {
        stage: usize,
        program: String,
    },
    /// The stage said this.
    Failed {
        stage: usize,
        program: String,
        status: u16,
    },
    OutputTooLong {
        limit_bytes: usize,
    },
    DeadlineExceeded {
        stage: usize,
    },
    Stopped,
}

impl fmt::Display for PipelineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PipelineError::Refused(refusal) => refusal.fmt(f),
            PipelineError::LongParameters { stage, bytes } => {
                write!(f, "stage {stage} has {bytes} bytes of parameters, and there is room for {STAGE_PARAMETERS_MAX}")
            }
            PipelineError::NotAStream { stage, program } => {
                write!(f, "stage {stage}, {program}, takes no bytes in parts: choose another program")
            }
            PipelineError::Failed { stage, program, status } => {
                let why = match status {
                    2 => "its input is damaged, or of another format",
                    3 => "its output does not fit a sub-buffer: give the engine larger ones",
                    4 => "its input is longer than it takes",
                    _ => "it failed",
                };
                write!(f, "stage {stage}, {program}: {why} (status {status})")
            }
            PipelineError::OutputTooLong { limit_bytes } => {
                write!(
                    f,
                    "the output is longer than {limit_bytes} bytes: allow more, or end the pipeline with a digest"
                )
            }
            PipelineError::DeadlineExceeded { stage } => write!(f, "the deadline passed in stage {stage}"),
            PipelineError::Stopped => write!(f, "the engine is being stopped: run the pipeline on another"),
        }
    }
}

impl std::error::Error for PipelineError {}

/// A pipeline on its way.
struct EngineJob {
    source: Arc<[u8]>,
    source_at: usize,
    /// By stage; away while it runs.
    tasks: [Option<TaskState>; PIPELINE_STAGES_MAX],
    /// By stage: the bytes in its output.
    filled: [usize; PIPELINE_STAGES_MAX],
    sink: Vec<u8>,
    sink_bytes_max: usize,
    is_too_long: bool,
    outcome: Option<PipelineOutcome>,
}

struct EngineState {
    arbiter: Arbiter,
    /// Started by the arbiter, and taken by no unit yet.
    queues: BTreeMap<ProgramId, VecDeque<TaskPacket>>,
    jobs: BTreeMap<u32, EngineJob>,
    stopping: bool,
}

struct EngineShared {
    device: Arc<Device>,
    counters: Arc<QueueCounters>,
    /// All sub-buffers, one behind the other.
    memory: LocalBuffer,
    sub_buffer_bytes: usize,
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
        let bytes = usize::from(options.sub_buffers) * options.sub_buffer_bytes as usize;
        let memory = device.local.allocate(bytes).ok_or_else(|| {
            io::Error::other(format!(
                "local memory has no {bytes} bytes in one piece for sub-buffers: use fewer or smaller ones"
            ))
        })?;
        let threaded: Vec<ProgramId> = options.units.iter().map(|count| count.program).collect();
        let inline = (0..device.programs.len() as u16).map(ProgramId).filter(|program| !threaded.contains(program));
        let inline = inline.chain([SOURCE]).map(|program| UnitCount { program, units: INLINE_UNITS });
        let arbiter = Arbiter::new(&ArbiterOptions {
            units: inline.chain(options.units.iter().copied()).collect(),
            weights: options.weights.clone(),
            sub_buffers: options.sub_buffers,
            pipelines_max: options.pipelines_max,
            movers: vec![SOURCE],
            flash_byte_cost: 0,
        });
        let state = EngineState { arbiter, queues: BTreeMap::new(), jobs: BTreeMap::new(), stopping: false };
        let shared = Arc::new(EngineShared {
            counters: device.free_counters(),
            device,
            memory,
            sub_buffer_bytes: options.sub_buffer_bytes as usize,
            threaded,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let mut engine = PipelineEngine { shared, threads: Vec::new() };
        for UnitCount { program, units } in &options.units {
            for _ in 0..*units {
                let (shared, program) = (engine.shared.clone(), *program);
                let work = move || shared.serve(program);
                engine.threads.push(engine.shared.device.env.spawn("tapetum-unit", work)?);
            }
        }
        Ok(engine)
    }

    /// Runs `source` through the stages, and gives what comes out. Meanwhile this thread does tasks of programs without threads.
    ///
    /// # Errors
    /// What is wrong with the pipeline, or went wrong in it, by the place of its stage.
    pub fn run(&self, work: &PipelineWork, source: &[u8]) -> Result<Vec<u8>, PipelineError> {
        let request = self.shared.request(work)?;
        let mut state = self.shared.lock();
        let sequence = state.arbiter.submit(&request).map_err(|refusal| PipelineError::Refused(of_caller(refusal)))?;
        let job = EngineJob {
            source: source.into(),
            source_at: 0,
            tasks: std::array::from_fn(|_| Some(TaskState::default())),
            filled: [0; PIPELINE_STAGES_MAX],
            sink: Vec::new(),
            sink_bytes_max: work.output_bytes_max,
            is_too_long: false,
            outcome: None,
        };
        state.jobs.insert(sequence, job);
        self.shared.start_all(&mut state);
        loop {
            if state.jobs.get(&sequence).is_none_or(|job| job.outcome.is_some()) {
                let Some(job) = state.jobs.remove(&sequence) else { return Err(PipelineError::Stopped) };
                drop(state);
                return self.shared.outcome(work, job);
            }
            state = match self.shared.take_inline(&mut state) {
                Some(packet) => {
                    drop(state);
                    self.shared.run_task(packet);
                    self.shared.lock()
                }
                None => whole(self.shared.changed.wait(state)),
            };
        }
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

/// Stages as the caller counts them: without the one that brings the bytes.
fn of_caller(refusal: PipelineRefusal) -> PipelineRefusal {
    match refusal {
        PipelineRefusal::NoUnit { stage, program } => {
            PipelineRefusal::NoUnit { stage: stage.saturating_sub(1), program }
        }
        refusal => refusal,
    }
}

impl EngineShared {
    fn lock(&self) -> MutexGuard<'_, EngineState> {
        whole(self.state.lock())
    }

    fn name(&self, program: ProgramId) -> String {
        let program = self.device.programs.get(usize::from(program.0));
        program.map_or_else(|| "unknown".into(), |program| program.descriptor().name.to_owned())
    }

    fn request(&self, work: &PipelineWork) -> Result<PipelineRequest, PipelineError> {
        if work.stages.is_empty() {
            return Err(PipelineError::Refused(PipelineRefusal::NoStages));
        }
        if work.stages.len() > ENGINE_STAGES_MAX {
            return Err(PipelineError::Refused(PipelineRefusal::TooManyStages(work.stages.len())));
        }
        let mut stages = vec![StageRequest { program: SOURCE, arguments: [0; ARGUMENTS_BYTES] }];
        for (stage, (program, parameters)) in work.stages.iter().enumerate() {
            if parameters.len() > STAGE_PARAMETERS_MAX {
                return Err(PipelineError::LongParameters { stage, bytes: parameters.len() });
            }
            let found = self.device.programs.get(usize::from(program.0));
            if found.is_some_and(|program| !program.descriptor().is_stream) {
                return Err(PipelineError::NotAStream { stage, program: self.name(*program) });
            }
            let mut arguments = [0; ARGUMENTS_BYTES];
            arguments[0] = parameters.len() as u8;
            arguments[1..=parameters.len()].copy_from_slice(parameters);
            stages.push(StageRequest { program: *program, arguments });
        }
        let PipelineWork { application, deadline_us, .. } = *work;
        Ok(PipelineRequest { application, stages, in_parts: true, deadline_us })
    }

    fn outcome(&self, work: &PipelineWork, job: EngineJob) -> Result<Vec<u8>, PipelineError> {
        let caller_stage = |stage: u8| usize::from(stage).saturating_sub(1);
        match job.outcome {
            Some(PipelineOutcome::Finished) => Ok(job.sink),
            Some(PipelineOutcome::Failed { .. }) if job.is_too_long => {
                Err(PipelineError::OutputTooLong { limit_bytes: job.sink_bytes_max })
            }
            Some(PipelineOutcome::Failed { stage, status }) => {
                let stage = caller_stage(stage);
                Err(PipelineError::Failed { stage, program: self.name(work.stages[stage].0), status })
            }
            Some(PipelineOutcome::DeadlineExceeded { stage }) => {
                Err(PipelineError::DeadlineExceeded { stage: caller_stage(stage) })
            }
            Some(_) | None => Err(PipelineError::Stopped),
        }
    }

    /// A unit of a program: it takes tasks until the engine is stopped.
    fn serve(&self, program: ProgramId) {
        let mut state = self.lock();
        while !state.stopping {
            state = match state.queues.get_mut(&program).and_then(VecDeque::pop_front) {
                Some(packet) => {
                    drop(state);
                    self.run_task(packet);
                    self.lock()
                }
                None => whole(self.changed.wait(state)),
            };
        }
    }

    fn take_inline(&self, state: &mut EngineState) -> Option<TaskPacket> {
        let inline = state.queues.iter_mut().filter(|(program, _)| !self.threaded.contains(program));
        inline.filter_map(|(_, queue)| queue.pop_front()).next()
    }

    /// Starts what the arbiter starts, and hands out ends.
    fn start_all(&self, state: &mut EngineState) {
        state.arbiter.expire(self.device.env.now_us());
        while let Some(packet) = state.arbiter.start_next() {
            state.queues.entry(packet.program()).or_default().push_back(packet);
        }
        while let Some(end) = state.arbiter.ended() {
            if let Some(job) = state.jobs.get_mut(&end.sequence) {
                job.outcome = Some(end.outcome);
            }
        }
        self.changed.notify_all();
    }

    fn run_task(&self, packet: TaskPacket) {
        let stage = usize::from(packet.stage);
        let (mut task, input_bytes, source) = {
            let mut state = self.lock();
            let Some(job) = state.jobs.get_mut(&packet.sequence) else { unreachable!("a task has a job") };
            let Some(task) = job.tasks[stage].take() else { unreachable!("a stage runs once at a time") };
            let input_bytes = stage.checked_sub(1).map_or(0, |before| job.filled[before]);
            (task, input_bytes, (packet.program() == SOURCE).then(|| (job.source.clone(), job.source_at)))
        };
        let from_us = self.device.env.now_us();
        task.more_input = !packet.input_is_last;
        // SAFETY: the arbiter gave this sub-buffer to this task alone (see the module).
        let output = unsafe { std::slice::from_raw_parts_mut(self.place(packet.output), self.sub_buffer_bytes) };
        let input = packet.input.map_or(&[][..], |input| {
            // SAFETY: the stage before filled it, and nobody writes it before this task has ended.
            unsafe { std::slice::from_raw_parts(self.place(input).cast_const(), input_bytes) }
        });
        let (status, filled) = match source {
            Some((source, at)) => bring(&source[at..], output),
            None => self.run_program(&packet, input, output, &mut task),
        };
        let unit_us = self.device.env.now_us() - from_us;
        let mut state = self.lock();
        let state = &mut *state;
        let Some(job) = state.jobs.get_mut(&packet.sequence) else { unreachable!("a task has a job") };
        (job.filled[stage], job.tasks[stage]) = (filled, Some(task));
        if packet.program() == SOURCE {
            job.source_at += filled;
        }
        let mut outcome = match status {
            Status::Success => TaskOutcome::Done { bytes: filled as u32 },
            Status::More => TaskOutcome::More { bytes: filled as u32 },
            Status::Program(status) => TaskOutcome::Failed { status },
            _ => TaskOutcome::Failed { status: 1 },
        };
        if packet.is_last_stage() && !matches!(outcome, TaskOutcome::Failed { .. }) {
            if job.sink.len() + filled > job.sink_bytes_max {
                job.is_too_long = true;
                outcome = TaskOutcome::Failed { status: 1 };
            } else {
                job.sink.extend_from_slice(&output[..filled]);
                self.counters.moved_local_to_host(filled as u64);
            }
        }
        let cost = TaskCost { unit_us, flash_bytes: 0 };
        let known = state.arbiter.completed(packet.sequence, packet.stage, outcome, cost);
        assert!(known.is_ok(), "the arbiter started this task");
        self.start_all(state);
    }

    fn run_program(
        &self,
        packet: &TaskPacket,
        input: &[u8],
        output: &mut [u8],
        task: &mut TaskState,
    ) -> (Status, usize) {
        let program: &dyn Program = &*self.device.programs[usize::from(packet.program().0)];
        let room = output.len();
        let parameters = &packet.arguments[1..=usize::from(packet.arguments[0])];
        let (status, [filled, _]) = program.run(Context { parameters, inputs: &[input], output, task });
        if matches!(status, Status::Success | Status::More) {
            assert!(filled <= room as u64, "{} filled more than there was", program.descriptor().name);
            return (status, filled as usize);
        }
        (status, 0)
    }

    fn place(&self, SubBuffer(number): SubBuffer) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(usize::from(number) * self.sub_buffer_bytes).cast_mut()
    }
}

/// The first stage: the next of the host's bytes.
fn bring(rest: &[u8], output: &mut [u8]) -> (Status, usize) {
    let taken = rest.len().min(output.len());
    output[..taken].copy_from_slice(&rest[..taken]);
    (if taken < rest.len() { Status::More } else { Status::Success }, taken)
}
