//! Pipeline descriptors: the list of a `Compute` command. Each has room for its result.
//!
//! A command names up to [`PIPELINES_MAX`] descriptors, which lie in local memory one behind the other. Each is a pipeline: a source, up
//! to [`PROGRAMS_MAX`] programs, a sink. When all of them have ended, each has its [`PipelineResult`] written to it, and the command
//! completes.

use super::command::{LocalRange, ProgramId};
use super::result::PipelineResult;
use super::wire::{DecodeError, get, put, same_or_not_zero};

/// The most descriptors of a command: the batch of ProcPIPE.
pub const PIPELINES_MAX: usize = 128;
pub const PROGRAMS_MAX: usize = 8;
/// The most bytes of parameters of a program.
pub const PARAMETERS_MAX: usize = 27; // so that a task packet is a cache line
/// The most bytes of an attachment, such as the query of a scan and the validity of the records that it reads.
pub const ATTACHMENT_BYTES_MAX: usize = 8 << 20;
/// The most ranges of a source: a record of 16 MiB has as many pages.
pub const SOURCE_RANGES_MAX: usize = 4096;

/// The source of a pipeline's bytes. `list` is up to [`SOURCE_RANGES_MAX`] encoded [`SourceRange`]s in local memory, read one behind the
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineSource {
    /// Ranges of local memory, which the host or an earlier command filled.
    Local { list: LocalRange },
    /// Ranges of flash, each of which begins at a sector. A range may say that it is of local memory ([`SourceRange::of_local`]).
    Flash { list: LocalRange },
    /// The kept result of a pipeline of the same queue pair. Reading it frees it, unless it `stays`.
    Kept { id: u64, stays: bool },
}

/// The sink of a pipeline's bytes. Output that exceeds the sink ends the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineSink {
    Host {
        into: LocalRange,
    },
    /// The last sector is padded with zeros. With `durable`, the bytes are durable when the pipeline has ended.
    Flash {
        flash: u64,
        bytes: u64,
        durable: bool,
    },
    /// Kept in local memory under this number, in place of an older result, until a pipeline takes it or the queue pair is dropped.
    Kept {
        id: u64,
        bytes_max: u32,
    },
}

/// A part of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRange {
    pub offset: u64,
    pub bytes: u64,
}

/// Set in an offset of a flash source: the range is of local memory.
const OFFSET_LOCAL: u64 = 1 << 63;

impl SourceRange {
    pub const ENCODED_BYTES: usize = 16;

    /// A range of local memory in a flash source.
    pub fn of_local(range: LocalRange) -> SourceRange {
        SourceRange { offset: range.offset | OFFSET_LOCAL, bytes: range.length.into() }
    }

    /// The range of local memory, if this range of a flash source is one.
    pub fn local(self) -> Option<LocalRange> {
        let is_local = self.offset & OFFSET_LOCAL != 0;
        let length = u32::try_from(self.bytes).ok()?;
        is_local.then_some(LocalRange { offset: self.offset & !OFFSET_LOCAL, length })
    }

    pub fn encode(self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        put(&mut bytes, 0, self.offset.to_le_bytes());
        put(&mut bytes, 8, self.bytes.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> SourceRange {
        SourceRange { offset: u64::from_le_bytes(get(bytes, 0)), bytes: u64::from_le_bytes(get(bytes, 8)) }
    }
}

/// A program of a pipeline, and its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineStage {
    pub program: ProgramId,
    parameters: [u8; PARAMETERS_MAX],
    parameter_bytes: u8,
}

impl PipelineStage {
    const NONE: PipelineStage =
        PipelineStage { program: ProgramId(0), parameters: [0; PARAMETERS_MAX], parameter_bytes: 0 };

    /// `None` when there are more than [`PARAMETERS_MAX`] bytes of parameters.
    pub fn new(program: ProgramId, parameters: &[u8]) -> Option<PipelineStage> {
        let mut all = [0; PARAMETERS_MAX];
        all.get_mut(..parameters.len())?.copy_from_slice(parameters);
        Some(PipelineStage { program, parameters: all, parameter_bytes: parameters.len() as u8 })
    }

    pub fn parameters(&self) -> &[u8] {
        &self.parameters[..usize::from(self.parameter_bytes)]
    }
}

/// A pipeline as the host asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineDescriptor {
    /// The application that pays for the pipeline's time.
    pub application: u16,
    /// From the start of the command; zero for none.
    pub deadline_us: u64,
    pub source: PipelineSource,
    pub sink: PipelineSink,
    /// Bytes of local memory, up to [`ATTACHMENT_BYTES_MAX`], that all of its programs see: for data that does not fit in parameters.
    pub attachment: LocalRange,
    stages: [PipelineStage; PROGRAMS_MAX],
    stage_count: u8,
}

// A descriptor, little endian, six cache lines:
//
//   0             2        3        4      5       6      8          16       24       28     32     40      48           56           60     64       128
//   | application | stages | source | sink | flags | zero | deadline | source | source | zero | sink | sink  | attachment | attachment | zero | result | stages |
//   | u16         | u8     | u8     | u8   | u8    |      | u64      | at u64 | length |      | at   | bytes | at u64     | length u32 |      |        | 8 × 32 |
//   |             |        |        |      |       |      |          |        | u32    |      | u64  | u64   |            |            |      |        |        |
//
//   source     at        length            sink       at        bytes
//   Local 1    list      of the list       Host 1     into      its length
//   Flash 2    list      of the list       Flash 2    flash     most bytes     flags bit 0: durable
//   Kept 3     id        -                 Kept 3     id        most bytes     flags bit 1: the source stays
//
//   A stage: program u16, bytes of parameters u8, parameters 27 × u8, zero u16
const APPLICATION: usize = 0;
const STAGE_COUNT: usize = 2;
const SOURCE: usize = 3;
const SINK: usize = 4;
const FLAGS: usize = 5;
const DEADLINE: usize = 8;
const SOURCE_AT: usize = 16;
const SOURCE_LENGTH: usize = 24;
const SINK_AT: usize = 32;
const SINK_BYTES: usize = 40;
const ATTACHMENT_AT: usize = 48;
const ATTACHMENT_LENGTH: usize = 56;
const RESULT: usize = 64;
const STAGES: usize = 128;
const STAGE_BYTES: usize = 32;
const _: () = assert!(
    SINK_BYTES + 8 == ATTACHMENT_AT
        && ATTACHMENT_LENGTH + 4 <= RESULT
        && RESULT + PipelineResult::ENCODED_BYTES <= STAGES
);
const _: () = assert!(STAGES + PROGRAMS_MAX * STAGE_BYTES == PipelineDescriptor::ENCODED_BYTES);
const _: () = assert!(3 + PARAMETERS_MAX <= STAGE_BYTES && PipelineDescriptor::ENCODED_BYTES.is_multiple_of(64));

const FLAG_DURABLE: u8 = 1;
const FLAG_STAYS: u8 = 2;

impl PipelineDescriptor {
    pub const ENCODED_BYTES: usize = 384;
    /// Offset of the result in an encoded descriptor.
    pub const RESULT_AT: usize = RESULT;

    /// `None` when there are more than [`PROGRAMS_MAX`] stages.
    pub fn new(stages: &[PipelineStage], source: PipelineSource, sink: PipelineSink) -> Option<PipelineDescriptor> {
        let mut all = [PipelineStage::NONE; PROGRAMS_MAX];
        all.get_mut(..stages.len())?.copy_from_slice(stages);
        Some(PipelineDescriptor {
            application: 0,
            deadline_us: 0,
            source,
            sink,
            attachment: LocalRange::EMPTY,
            stages: all,
            stage_count: stages.len() as u8,
        })
    }

    pub fn stages(&self) -> &[PipelineStage] {
        &self.stages[..usize::from(self.stage_count)]
    }

    pub fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        put(&mut bytes, APPLICATION, self.application.to_le_bytes());
        bytes[STAGE_COUNT] = self.stage_count;
        put(&mut bytes, DEADLINE, self.deadline_us.to_le_bytes());
        let (kind, at, length, stays) = match self.source {
            PipelineSource::Local { list } => (1, list.offset, list.length, false),
            PipelineSource::Flash { list } => (2, list.offset, list.length, false),
            PipelineSource::Kept { id, stays } => (3, id, 0, stays),
        };
        bytes[SOURCE] = kind;
        put(&mut bytes, SOURCE_AT, at.to_le_bytes());
        put(&mut bytes, SOURCE_LENGTH, length.to_le_bytes());
        let (kind, at, most, durable) = match self.sink {
            PipelineSink::Host { into } => (1, into.offset, u64::from(into.length), false),
            PipelineSink::Flash { flash, bytes, durable } => (2, flash, bytes, durable),
            PipelineSink::Kept { id, bytes_max } => (3, id, u64::from(bytes_max), false),
        };
        bytes[SINK] = kind;
        put(&mut bytes, SINK_AT, at.to_le_bytes());
        put(&mut bytes, SINK_BYTES, most.to_le_bytes());
        put(&mut bytes, ATTACHMENT_AT, self.attachment.offset.to_le_bytes());
        put(&mut bytes, ATTACHMENT_LENGTH, self.attachment.length.to_le_bytes());
        let flag = |is: bool, flag| if is { flag } else { 0 };
        bytes[FLAGS] = flag(durable, FLAG_DURABLE) | flag(stays, FLAG_STAYS);
        for (place, stage) in self.stages.iter().enumerate() {
            let at = STAGES + place * STAGE_BYTES;
            put(&mut bytes, at, stage.program.0.to_le_bytes());
            bytes[at + 2] = stage.parameter_bytes;
            put(&mut bytes, at + 3, stage.parameters);
        }
        bytes
    }

    /// Checks only the form. The room for the result must be zero.
    pub fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Result<PipelineDescriptor, DecodeError> {
        let long = |at: usize| u64::from_le_bytes(get(bytes, at));
        let (at, length) = (long(SOURCE_AT), u32::from_le_bytes(get(bytes, SOURCE_LENGTH)));
        let list = LocalRange { offset: at, length };
        let source = match bytes[SOURCE] {
            1 => PipelineSource::Local { list },
            2 => PipelineSource::Flash { list },
            3 => PipelineSource::Kept { id: at, stays: bytes[FLAGS] & FLAG_STAYS != 0 },
            unknown => return Err(DecodeError::UnknownSource(unknown)),
        };
        let (at, most) = (long(SINK_AT), long(SINK_BYTES));
        let sink = match bytes[SINK] {
            1 => PipelineSink::Host { into: LocalRange { offset: at, length: most as u32 } },
            2 => PipelineSink::Flash { flash: at, bytes: most, durable: bytes[FLAGS] & FLAG_DURABLE != 0 },
            3 => PipelineSink::Kept { id: at, bytes_max: most as u32 },
            unknown => return Err(DecodeError::UnknownSink(unknown)),
        };
        let stage_count = bytes[STAGE_COUNT];
        if usize::from(stage_count) > PROGRAMS_MAX {
            return Err(DecodeError::TooManyStages(stage_count));
        }
        let mut stages = [PipelineStage::NONE; PROGRAMS_MAX];
        for (place, stage) in stages.iter_mut().enumerate().take(usize::from(stage_count)) {
            let at = STAGES + place * STAGE_BYTES;
            let program = ProgramId(u16::from_le_bytes(get(bytes, at)));
            let parameter_bytes = usize::from(bytes[at + 2]);
            if parameter_bytes > PARAMETERS_MAX {
                return Err(DecodeError::LongParameters(bytes[at + 2]));
            }
            let parameters = &bytes[at + 3..at + 3 + parameter_bytes];
            *stage = PipelineStage::new(program, parameters).unwrap_or(PipelineStage::NONE);
        }
        let application = u16::from_le_bytes(get(bytes, APPLICATION));
        let deadline_us = long(DEADLINE);
        let attachment =
            LocalRange { offset: long(ATTACHMENT_AT), length: u32::from_le_bytes(get(bytes, ATTACHMENT_LENGTH)) };
        let descriptor = PipelineDescriptor { application, deadline_us, source, sink, attachment, stages, stage_count };
        same_or_not_zero(bytes, &descriptor.encode())?;
        Ok(descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range() -> impl Strategy<Value = LocalRange> {
        (any::<u64>(), any::<u32>()).prop_map(|(offset, length)| LocalRange { offset, length })
    }

    fn source() -> impl Strategy<Value = PipelineSource> {
        prop_oneof![
            range().prop_map(|list| PipelineSource::Local { list }),
            range().prop_map(|list| PipelineSource::Flash { list }),
            any::<(u64, bool)>().prop_map(|(id, stays)| PipelineSource::Kept { id, stays }),
        ]
    }

    fn sink() -> impl Strategy<Value = PipelineSink> {
        prop_oneof![
            range().prop_map(|into| PipelineSink::Host { into }),
            any::<(u64, u64, bool)>().prop_map(|(flash, bytes, durable)| PipelineSink::Flash { flash, bytes, durable }),
            any::<(u64, u32)>().prop_map(|(id, bytes_max)| PipelineSink::Kept { id, bytes_max }),
        ]
    }

    fn descriptor() -> impl Strategy<Value = PipelineDescriptor> {
        let parameters = proptest::collection::vec(any::<u8>(), 0..=PARAMETERS_MAX);
        let stage = (any::<u16>(), parameters)
            .prop_map(|(program, parameters)| PipelineStage::new(ProgramId(program), &parameters).unwrap());
        let stages = proptest::collection::vec(stage, 0..=PROGRAMS_MAX);
        (stages, source(), sink(), range(), any::<u16>(), any::<u64>()).prop_map(
            |(stages, source, sink, attachment, application, deadline_us)| {
                let descriptor = PipelineDescriptor::new(&stages, source, sink).unwrap();
                PipelineDescriptor { application, deadline_us, attachment, ..descriptor }
            },
        )
    }

    proptest! {
        #[test]
        fn a_descriptor_survives_its_encoding(descriptor in descriptor()) {
            prop_assert_eq!(PipelineDescriptor::decode(&descriptor.encode()), Ok(descriptor));
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(descriptor in descriptor(), at in 0..384_usize, byte: u8) {
            let mut bytes = descriptor.encode();
            bytes[at] = byte;
            if let Ok(decoded) = PipelineDescriptor::decode(&bytes) {
                prop_assert_eq!(decoded.encode(), bytes);
            }
        }
    }

    #[test]
    fn the_layout_does_not_drift() {
        let stage = PipelineStage::new(ProgramId(0x0201), &[3, 4]).unwrap();
        let source = PipelineSource::Flash { list: LocalRange { offset: 5, length: 6 } };
        let sink = PipelineSink::Flash { flash: 7, bytes: 8, durable: true };
        let descriptor = PipelineDescriptor::new(&[stage], source, sink).unwrap();
        let attachment = LocalRange { offset: 12, length: 13 };
        let descriptor = PipelineDescriptor { application: 0x0a09, deadline_us: 11, attachment, ..descriptor };
        let mut expected = [0; 384];
        expected[..6].copy_from_slice(&[9, 10, 1, 2, 2, 1]);
        (expected[8], expected[16], expected[24], expected[32], expected[40]) = (11, 5, 6, 7, 8);
        (expected[48], expected[56]) = (12, 13);
        expected[128..133].copy_from_slice(&[1, 2, 2, 3, 4]);
        assert_eq!(descriptor.encode(), expected);
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let source = PipelineSource::Kept { id: 1, stays: false };
        let sink = PipelineSink::Kept { id: 2, bytes_max: 3 };
        let bytes = PipelineDescriptor::new(&[], source, sink).unwrap().encode();
        let damaged = |at: usize, byte: u8| {
            let mut bytes = bytes;
            bytes[at] = byte;
            PipelineDescriptor::decode(&bytes)
        };
        assert_eq!(damaged(SOURCE, 0), Err(DecodeError::UnknownSource(0)));
        assert_eq!(damaged(SINK, 4), Err(DecodeError::UnknownSink(4)));
        assert_eq!(damaged(STAGE_COUNT, 9), Err(DecodeError::TooManyStages(9)));
        assert_eq!(damaged(FLAGS, FLAG_DURABLE), Err(DecodeError::NotZero { offset: FLAGS }));
        assert_eq!(damaged(SINK_BYTES + 4, 1), Err(DecodeError::NotZero { offset: SINK_BYTES + 4 }));
        assert_eq!(damaged(RESULT, 1), Err(DecodeError::NotZero { offset: RESULT }));
        assert_eq!(damaged(STAGES, 1), Err(DecodeError::NotZero { offset: STAGES }));
        let mut long = bytes;
        (long[STAGE_COUNT], long[STAGES + 2]) = (1, 28);
        assert_eq!(PipelineDescriptor::decode(&long), Err(DecodeError::LongParameters(28)));
    }
}
