//! Bytes of the host through programs of a drive: lent to it, computed by one `Compute`, and copied out again.

use std::fmt;

use tapetum_drive::{
    Command, Drive, Identity, Lease, LocalRange, Operation, PARAMETERS_MAX, PROGRAMS_MAX, PipelineDescriptor,
    PipelineFailure, PipelinePlace, PipelineReason, PipelineResult, PipelineSink, PipelineSource, PipelineStage,
    ProgramId, Purpose, SourceRange,
};

/// A range of the source: the drive takes ranges below 4 GiB.
const RANGE_BYTES: usize = 1 << 30;

/// Why a pipeline gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPipelineError {
    TooManyStages(usize),
    /// A stage has so many bytes of parameters.
    LongParameters {
        stage: usize,
        bytes: usize,
    },
    /// With the name of the stage's program.
    Failed(PipelineFailure, Option<String>),
    /// The drive did not take the command.
    Drive(String),
}

impl fmt::Display for HostPipelineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPipelineError::TooManyStages(count) => {
                write!(f, "{count} stages: a pipeline has at most {PROGRAMS_MAX}; split it in two")
            }
            HostPipelineError::LongParameters { stage, bytes } => {
                write!(f, "stage {stage} has {bytes} bytes of parameters, and there is room for {PARAMETERS_MAX}")
            }
            HostPipelineError::Failed(failure, Some(program)) => {
                write!(f, "{}, {program}: {}", failure.place, failure.explain())
            }
            HostPipelineError::Failed(failure, None) => failure.fmt(f),
            HostPipelineError::Drive(error) => write!(f, "the drive ran no pipeline: {error}"),
        }
    }
}

impl std::error::Error for HostPipelineError {}

impl HostPipelineError {
    /// A failure, with the name of its stage's program.
    pub fn of(failure: PipelineFailure, identity: &Identity, stages: &[(ProgramId, Vec<u8>)]) -> HostPipelineError {
        let program = match failure.place {
            PipelinePlace::Stage(stage) => stages.get(usize::from(stage)),
            _ => None,
        };
        let program = program.and_then(|(id, _)| identity.programs.iter().find(|program| program.id == *id));
        HostPipelineError::Failed(failure, program.map(|program| program.name.clone()))
    }
}

fn encoded(stages: &[(ProgramId, Vec<u8>)]) -> Result<Vec<PipelineStage>, HostPipelineError> {
    if stages.len() > PROGRAMS_MAX {
        return Err(HostPipelineError::TooManyStages(stages.len()));
    }
    let stage = |(stage, (program, parameters)): (usize, &(ProgramId, Vec<u8>))| {
        let long = HostPipelineError::LongParameters { stage, bytes: parameters.len() };
        PipelineStage::new(*program, parameters).ok_or(long)
    };
    stages.iter().enumerate().map(stage).collect()
}

/// The output of the pipeline for `source`, at most `output_bytes_max`. Local memory must have room for both.
///
/// # Errors
/// A pipeline that cannot run, or a stage that failed, with the stage's place.
pub fn run(
    drive: &Drive,
    stages: &[(ProgramId, Vec<u8>)],
    source: &[u8],
    output_bytes_max: u32,
) -> Result<Vec<u8>, HostPipelineError> {
    const LIST_AT: usize = PipelineDescriptor::ENCODED_BYTES;
    let encoded_stages = encoded(stages)?;
    let room = |bytes: usize, place| {
        let failure = PipelineFailure::new(place, PipelineReason::NoLocalMemory);
        let failure = failure.with(u32::try_from(bytes).unwrap_or(u32::MAX));
        drive.local().allocate(bytes).ok_or(HostPipelineError::Failed(failure, None))
    };
    let no_drive = |error: String| HostPipelineError::Drive(error);
    let mut pair = drive.queue_pair(1).map_err(|error| no_drive(error.to_string()))?;
    let ranges = source.len().div_ceil(RANGE_BYTES);
    let source_at = LIST_AT + ranges * SourceRange::ENCODED_BYTES;
    let mut work = room(source_at + source.len(), PipelinePlace::Source)?;
    let into = room(output_bytes_max as usize, PipelinePlace::Sink)?;
    let range = |number: usize| {
        let at = number * RANGE_BYTES;
        let bytes = RANGE_BYTES.min(source.len() - at) as u64;
        SourceRange { offset: work.offset() + (source_at + at) as u64, bytes }.encode()
    };
    let list = (0..ranges).flat_map(range).collect::<Vec<u8>>();
    let at = |at: usize, length: usize| LocalRange { offset: work.offset() + at as u64, length: length as u32 };
    let from = PipelineSource::Local { list: at(LIST_AT, list.len()) };
    let sink = PipelineSink::Host { into: LocalRange { offset: into.offset(), length: output_bytes_max } };
    let Some(descriptor) = PipelineDescriptor::new(&encoded_stages, from, sink) else {
        return Err(HostPipelineError::TooManyStages(stages.len()));
    };
    let command = Command::new(0, Operation::Compute { pipelines: at(0, LIST_AT) }).of(Purpose::Pipeline);
    let asked = [&descriptor.encode()[..], &list].concat();
    pair.fill(Purpose::Pipeline, &mut work, 0..source_at).copy_from_slice(&asked);
    pair.fill(Purpose::Pipeline, &mut work, source_at..source_at + source.len()).copy_from_slice(source);
    pair.submit(command, Lease::Buffers([work, into])).map_err(|full| no_drive(full.to_string()))?;
    let mut returned = Vec::new();
    while pair.poll(&mut returned) == 0 {
        pair.wait(None);
    }
    let Some(returned) = returned.pop() else { unreachable!("something was polled") };
    let Lease::Buffers([work, into]) = returned.lease else { unreachable!("two buffers were lent") };
    if !returned.completion.is_success() {
        return Err(no_drive(format!("{:?}", returned.completion.status)));
    }
    let result = pair.copy_array_to_host(Purpose::Pipeline, &work, PipelineDescriptor::RESULT_AT);
    match PipelineResult::decode(&result) {
        Ok(Some(PipelineResult::Finished { bytes })) => {
            let mut output = Vec::with_capacity(bytes as usize);
            pair.copy_to_host(Purpose::Pipeline, &into, 0..bytes as usize, &mut output);
            Ok(output)
        }
        Ok(Some(PipelineResult::Failed(failure))) => Err(HostPipelineError::of(failure, &drive.identity(), stages)),
        Ok(None) | Err(_) => Err(no_drive("a pipeline ended without a result".into())),
    }
}
