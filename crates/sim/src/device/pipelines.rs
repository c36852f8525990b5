//! Pipelines of the device's simulation: the request of each, and the ends that are right for it.

use std::collections::BTreeSet;
use tapetum_drive::program::{Context, Program, ProgramDescriptor, ProgramResult};
use tapetum_drive::{
    LocalBuffer, PROGRAMS_MAX, PipelineFailure, PipelinePlace, PipelineReason, PipelineResult, PipelineStage,
    ProgramId, SourceRange, SplitMix64, Status, programs,
};
use tapetum_kernels::checksum::crc32c_append;
use tapetum_kernels::sha256::Sha256;
use tapetum_kernels::snappy;
use tapetum_kernels::zstd_stream::FrameEncoder;

/// The simulation's own programs.
pub const BALKS: [&str; 4] = ["balk-1", "balk-2", "balk-3", "balk-4"];
const SOURCE_BYTES_MAX: u64 = 24 << 10; // some sub-buffers
const STEPS_MAX: u64 = 4;

/// Copies its input, but fails with a status before it has copied more bytes than its parameters say.
pub struct Balk(&'static str);

impl Balk {
    fn parameters(after_bytes: u32, status: u16) -> Vec<u8> {
        [&after_bytes.to_le_bytes()[..], &status.to_le_bytes()].concat()
    }
}

impl Program for Balk {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: self.0, version: 1, is_stream: true }
    }

    fn run(&self, Context { parameters, inputs, output, task }: Context<'_>) -> ProgramResult {
        let after = match parameters {
            [] => None,
            &[a, b, c, d, low, high] => Some((u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([low, high]))),
            _ => return (Status::InvalidField, [0; 2]),
        };
        let seen = task.kept.take().and_then(|kept| kept.downcast::<u64>().ok()).map_or(0, |seen| *seen);
        let rest = &inputs[0][task.consumed..];
        let taken = rest.len().min(output.len());
        if let Some((after_bytes, status)) = after
            && seen + taken as u64 > u64::from(after_bytes)
        {
            return (Status::Program(status), [0; 2]);
        }
        output[..taken].copy_from_slice(&rest[..taken]);
        task.kept = Some(Box::new(seen + taken as u64));
        let has_more = taken < rest.len();
        task.consumed = if has_more { task.consumed + taken } else { 0 };
        (if has_more { Status::More } else { Status::Success }, [taken as u64, 0])
    }
}

/// The programs of the simulated drive.
pub fn all_programs() -> Vec<Box<dyn Program>> {
    let balks = BALKS.map(|name| Box::new(Balk(name)) as Box<dyn Program>);
    programs::built_in().into_iter().chain(balks).collect()
}

pub fn program_named(programs: &[Box<dyn Program>], name: &str) -> ProgramId {
    let place = programs.iter().position(|program| program.descriptor().name == name);
    let Some(place) = place else { panic!("the simulation's drive has no program {name}") };
    ProgramId(place as u16)
}

/// The source of a pipeline's bytes.
pub enum DrawnSource {
    /// New bytes, for memory or flash.
    Bytes(Vec<u8>),
    /// Bytes that the flash already holds.
    Flash(Vec<SourceRange>),
    Kept {
        id: u64,
        stays: bool,
    },
}

/// A pipeline to be submitted.
pub struct DrawnPipeline {
    pub source: DrawnSource,
    pub stages: Vec<PipelineStage>,
    /// The output, or the failure, if nothing else ends the pipeline first.
    pub expected: Result<Vec<u8>, PipelineFailure>,
}

struct Drawing<'a> {
    programs: &'a [Box<dyn Program>],
    bytes: Vec<u8>,
    stages: Vec<PipelineStage>,
    failure: Option<PipelineFailure>,
}

impl Drawing<'_> {
    fn stage(&mut self, name: &str, parameters: &[u8]) {
        let stage = PipelineStage::new(program_named(self.programs, name), parameters);
        self.stages.extend(stage);
    }

    /// Adds one or more stages, and applies them to the bytes.
    fn step(&mut self, random: &mut SplitMix64) {
        match random.below(8) {
            0 | 1 => self.stage("concat", &[]),
            2 => {
                self.stage("crc32c", &[]);
                self.bytes = crc32c_append(0, &self.bytes).to_le_bytes().into();
            }
            3 => {
                self.stage("sha256", &[]);
                let mut digest = Sha256::default();
                digest.update(&self.bytes);
                self.bytes = digest.finish().into();
            }
            4 => {
                self.stage("snappy-compress", &[]);
                self.bytes = snappy_of(&self.bytes);
            }
            5 => {
                self.stage("snappy-compress", &[]);
                self.stage("snappy-decompress", &[]);
            }
            // The frame depends on how the bytes are cut into parts.
            6 => {
                self.stage("zstd-compress", &[]);
                self.stage("zstd-decompress", &[]);
            }
            _ => self.stage(BALKS[random.below(4) as usize], &[]),
        }
    }

    fn steps(&mut self, random: &mut SplitMix64) {
        let steps = random.below(STEPS_MAX);
        let balks_at = random.one_in(4).then(|| random.below(steps + 1));
        for step in 0..=steps {
            if balks_at == Some(step) && self.failure.is_none() {
                self.balk(random);
            } else if self.stages.len() + 1 < PROGRAMS_MAX {
                self.step(random);
            }
        }
    }

    /// Adds the single stage that may fail. With two, the first to fail would depend on how the bytes are cut into parts.
    fn balk(&mut self, random: &mut SplitMix64) {
        let after_bytes = random.below(2 * SOURCE_BYTES_MAX) as u32;
        let status = 1 + random.below(1000) as u16;
        let place = PipelinePlace::Stage(self.stages.len() as u8);
        self.stage(BALKS[random.below(4) as usize], &Balk::parameters(after_bytes, status));
        if self.bytes.len() as u64 > u64::from(after_bytes) {
            self.failure = Some(PipelineFailure::new(place, PipelineReason::Program).with(u32::from(status)));
        }
    }
}

fn snappy_of(bytes: &[u8]) -> Vec<u8> {
    let mut stored = vec![0; snappy::compressed_bytes_max(bytes.len())];
    let length = snappy::compress(bytes, &mut stored);
    stored.truncate(length.unwrap_or_else(|error| panic!("snappy takes any bytes: {error:?}")));
    stored
}

fn zstd_of(bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 2 * bytes.len() + 1024];
    let step = FrameEncoder::new(3).and_then(|mut encoder| encoder.step(bytes, &mut frame, true));
    frame.truncate(step.unwrap_or_else(|error| panic!("zstd takes any bytes: {error}")).filled);
    frame
}

impl DrawnPipeline {
    pub fn draw(random: &mut SplitMix64, programs: &[Box<dyn Program>]) -> DrawnPipeline {
        let mut bytes = vec![0; random.below(SOURCE_BYTES_MAX) as usize];
        random.fill(&mut bytes);
        // Half of it is compressible.
        let half = bytes.len() / 2;
        bytes[..half].iter_mut().for_each(|byte| *byte &= 3);
        let mut source = bytes.clone();
        let mut drawing = Drawing { programs, bytes, stages: Vec::new(), failure: None };
        if random.one_in(4) {
            // The source is compressed.
            drawing.stage("zstd-decompress", &[]);
            source = zstd_of(&drawing.bytes);
        } else if random.one_in(16) {
            drawing.stage("snappy-decompress", &[]);
            let place = PipelinePlace::Stage(0);
            let corrupt = PipelineFailure::new(place, PipelineReason::Program).with(2);
            source = vec![0xff; 9];
            drawing.failure = Some(corrupt);
        }
        drawing.steps(random);
        let Drawing { bytes, stages, failure, .. } = drawing;
        DrawnPipeline { source: DrawnSource::Bytes(source), stages, expected: failure.map_or(Ok(bytes), Err) }
    }

    /// A pipeline over existing bytes.
    pub fn over(
        random: &mut SplitMix64,
        programs: &[Box<dyn Program>],
        source: DrawnSource,
        bytes: Vec<u8>,
    ) -> DrawnPipeline {
        let mut drawing = Drawing { programs, bytes, stages: Vec::new(), failure: None };
        drawing.steps(random);
        let Drawing { bytes, stages, failure, .. } = drawing;
        DrawnPipeline { source, stages, expected: failure.map_or(Ok(bytes), Err) }
    }

    /// Kernels that copy their input, by their indexes in [`BALKS`].
    pub fn of_kernels(kernels: &[usize], programs: &[Box<dyn Program>]) -> DrawnPipeline {
        let stage = |kernel: &usize| PipelineStage::new(program_named(programs, BALKS[*kernel]), &[]);
        let source = vec![7; 100];
        let stages = kernels.iter().filter_map(stage).collect();
        DrawnPipeline { stages, expected: Ok(source.clone()), source: DrawnSource::Bytes(source) }
    }
}

/// The sink of a pipeline's bytes.
pub enum SimSink {
    Host(LocalBuffer),
    /// A slot of the simulated flash.
    Flash {
        at: u64,
    },
    Kept {
        id: u64,
    },
}

/// The state of a kept result's number.
pub enum SimKept {
    Kept(Vec<u8>),
    /// The pipeline with this token will keep it, with this outcome.
    Promised(u64, Result<Vec<u8>, PipelineFailure>),
    Failed(PipelineFailure),
}

impl SimKept {
    /// The bytes that a reader would get if nothing fails.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            SimKept::Kept(bytes) | SimKept::Promised(_, Ok(bytes)) => bytes.clone(),
            SimKept::Promised(_, Err(_)) | SimKept::Failed(_) => Vec::new(),
        }
    }
}

/// A pipeline that was accepted and has not ended.
pub struct SimPipeline {
    pub sequence: u32,
    pub application: u16,
    /// Its slot of the flash.
    pub slot: u64,
    pub fate: PipelineFate,
    /// Held until the end, because tasks read it.
    pub _source: Option<LocalBuffer>,
    pub sink: SimSink,
}

/// The expected outcome of a pipeline, and the events that may change it.
pub struct PipelineFate {
    pub stages: Vec<PipelineStage>,
    pub deadline_us: Option<u64>,
    pub expected: Result<Vec<u8>, PipelineFailure>,
    pub cancelled: bool,
    pub flash_failed: bool,
    /// The token of the pipeline whose kept result it waits for.
    pub awaits: Option<u64>,
    /// The failure of that pipeline, with which this one ends too.
    pub maker_failure: Option<PipelineFailure>,
    /// Indexes of stages whose unit died.
    pub lost: BTreeSet<u8>,
}

impl PipelineFate {
    pub fn new(
        stages: Vec<PipelineStage>,
        deadline_us: Option<u64>,
        expected: Result<Vec<u8>, PipelineFailure>,
    ) -> PipelineFate {
        PipelineFate {
            stages,
            deadline_us,
            expected,
            cancelled: false,
            flash_failed: false,
            awaits: None,
            maker_failure: None,
            lost: BTreeSet::new(),
        }
    }

    /// Whether it may have ended with this result by now. `gone`: no unit of the program is alive.
    pub fn may_end(&self, result: &PipelineResult, now_us: u64, gone: impl Fn(ProgramId) -> bool) -> bool {
        if let Some(maker) = self.maker_failure {
            return *result == PipelineResult::Failed(maker.of_reader());
        }
        let failure = match *result {
            PipelineResult::Finished { .. } if self.awaits.is_some() => return false,
            PipelineResult::Finished { bytes } => {
                let is_whole = self.expected.as_ref().is_ok_and(|expected| expected.len() as u64 == bytes);
                return is_whole && !self.cancelled && self.deadline_us.is_none_or(|deadline_us| deadline_us > now_us);
            }
            PipelineResult::Failed(failure) => failure,
        };
        let stage = match failure.place {
            PipelinePlace::Stage(stage) => self.stages.get(usize::from(stage)),
            PipelinePlace::Source | PipelinePlace::Sink => None,
        };
        if matches!(failure.place, PipelinePlace::Stage(_)) && stage.is_none() {
            return false;
        }
        match failure.reason {
            PipelineReason::Cancelled => self.cancelled,
            PipelineReason::DeadlineExceeded => self.deadline_us.is_some_and(|deadline_us| deadline_us <= now_us),
            PipelineReason::FlashFailed => self.flash_failed && stage.is_none(),
            PipelineReason::NoUnitLeft => stage.is_some_and(|stage| gone(stage.program)),
            PipelineReason::UnitLost => {
                matches!(failure.place, PipelinePlace::Stage(stage) if self.lost.contains(&stage))
            }
            _ => self.expected == Err(failure) && !self.cancelled && self.awaits.is_none(),
        }
    }
}
