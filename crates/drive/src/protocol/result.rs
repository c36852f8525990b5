//! How a pipeline of a `Compute` command ended. The drive writes it into the pipeline's descriptor.

use super::wire::{DecodeError, get, put, same_or_not_zero};
use std::fmt;
use tapetum_kernels::image_error::ImageError;

/// The part of a pipeline at which it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelinePlace {
    Source,
    /// The program with this index.
    Stage(u8),
    Sink,
}

/// Why a pipeline gave no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum PipelineReason {
    /// The detail is the application's number.
    UnknownApplication = 1,
    NoStages,
    /// The drive has no such program. The detail is its number.
    UnknownProgram,
    NotAStream,
    /// The pipeline may need more sub-buffers than exist. The detail is how many.
    TooLarge,
    /// The application has too many running pipelines.
    QueueFull,
    /// Local memory has no room. The detail is how many bytes were wanted.
    NoLocalMemory,
    /// The queue pair has no kept result under this number.
    UnknownKept,
    /// The queue pair has the most kept results that it may have.
    TooManyKept,
    OutsideFlash,
    /// A flash range that does not begin at a sector, or a sink that is not whole sectors.
    UnalignedFlash,
    /// A range of local memory was not lent with the command, or a list is invalid.
    OutsideLocal,
    /// The program failed; the detail is its status.
    Program,
    /// A part of the output does not fit a sub-buffer.
    OutputOverflow,
    /// The output is longer than the sink. The detail is the size of the sink in bytes.
    OutputTooLong,
    /// The detail is the errno.
    FlashFailed,
    Cancelled,
    DeadlineExceeded,
    /// The unit that ran the stage died.
    UnitLost,
    /// All units of the stage's program died.
    NoUnitLeft,
    /// The pipeline that was to keep the source's result failed; see [`PipelineFailure::maker`].
    KeptFailed,
}

impl PipelineReason {
    const ALL: [PipelineReason; 21] = [
        PipelineReason::UnknownApplication,
        PipelineReason::NoStages,
        PipelineReason::UnknownProgram,
        PipelineReason::NotAStream,
        PipelineReason::TooLarge,
        PipelineReason::QueueFull,
        PipelineReason::NoLocalMemory,
        PipelineReason::UnknownKept,
        PipelineReason::TooManyKept,
        PipelineReason::OutsideFlash,
        PipelineReason::UnalignedFlash,
        PipelineReason::OutsideLocal,
        PipelineReason::Program,
        PipelineReason::OutputOverflow,
        PipelineReason::OutputTooLong,
        PipelineReason::FlashFailed,
        PipelineReason::Cancelled,
        PipelineReason::DeadlineExceeded,
        PipelineReason::UnitLost,
        PipelineReason::NoUnitLeft,
        PipelineReason::KeptFailed,
    ];

    fn of_number(number: u16) -> Option<PipelineReason> {
        PipelineReason::ALL.into_iter().find(|known| *known as u16 == number)
    }
}

/// The place and the reason of a pipeline's failure. The reason defines the meaning of the detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineFailure {
    pub place: PipelinePlace,
    pub reason: PipelineReason,
    pub detail: u32,
}

impl PipelineFailure {
    pub fn new(place: PipelinePlace, reason: PipelineReason) -> PipelineFailure {
        PipelineFailure { place, reason, detail: 0 }
    }

    pub fn with(self, detail: u32) -> PipelineFailure {
        PipelineFailure { detail, ..self }
    }

    /// The failure of a pipeline whose source a failed pipeline was to keep. In a chain of such failures, it names the first.
    pub fn of_reader(self) -> PipelineFailure {
        let detail = match self.reason {
            PipelineReason::KeptFailed => self.detail,
            reason => u32::from(self.place.number()) << 16 | reason as u32,
        };
        PipelineFailure { place: PipelinePlace::Source, reason: PipelineReason::KeptFailed, detail }
    }

    /// The place and the reason of the failure of the pipeline that was to keep the source, without its detail. `None` for other reasons.
    pub fn maker(&self) -> Option<PipelineFailure> {
        let PipelineFailure { reason: PipelineReason::KeptFailed, detail, .. } = self else { return None };
        let reason = PipelineReason::of_number(*detail as u16)?;
        Some(PipelineFailure::new(PipelinePlace::of_number((detail >> 16) as u16), reason))
    }
}

impl PipelinePlace {
    fn number(self) -> u16 {
        match self {
            PipelinePlace::Source => PLACE_SOURCE,
            PipelinePlace::Stage(stage) => u16::from(stage),
            PipelinePlace::Sink => PLACE_SINK,
        }
    }

    fn of_number(number: u16) -> PipelinePlace {
        match number {
            PLACE_SOURCE => PipelinePlace::Source,
            PLACE_SINK => PipelinePlace::Sink,
            stage => PipelinePlace::Stage(stage as u8),
        }
    }
}

impl fmt::Display for PipelinePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PipelinePlace::Source => write!(f, "source"),
            PipelinePlace::Stage(stage) => write!(f, "stage {stage}"),
            PipelinePlace::Sink => write!(f, "sink"),
        }
    }
}

/// Says what was wrong, without the place.
impl fmt::Display for PipelineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            PipelineReason::UnknownApplication => {
                "the application is not registered: give it a weight when the drive is opened"
            }
            PipelineReason::NoStages => "a pipeline of no stages: name at least one program",
            PipelineReason::UnknownProgram => "no unit of this drive runs the program: choose another",
            PipelineReason::NotAStream => "the program takes no bytes in parts: choose another program",
            PipelineReason::TooLarge => {
                "the pipeline may hold more sub-buffers at once than the drive has: give it more local memory"
            }
            PipelineReason::QueueFull => "the application's queue is full: wait for one of its pipelines to end",
            PipelineReason::NoLocalMemory => {
                "local memory has no room: give the drive more, or wait until others need less"
            }
            PipelineReason::UnknownKept => "no result is kept under this number: keep one first",
            PipelineReason::TooManyKept => "too many results are kept: read one of them first",
            PipelineReason::OutsideFlash => "the range is not inside the drive's flash",
            PipelineReason::UnalignedFlash => {
                "the range is not aligned: begin it at a sector, and let a sink be whole sectors"
            }
            PipelineReason::OutsideLocal => "the range was not lent with the command: lend the buffer that holds it",
            PipelineReason::Program => "it failed",
            PipelineReason::OutputOverflow => {
                "a part of its output does not fit a sub-buffer: give the drive larger ones"
            }
            PipelineReason::OutputTooLong => {
                "the output is longer than there is room for: allow more, or end the pipeline with a digest"
            }
            PipelineReason::FlashFailed => "the flash failed",
            PipelineReason::Cancelled => "it was cancelled",
            PipelineReason::DeadlineExceeded => "the deadline passed",
            PipelineReason::UnitLost => "the compute unit that ran it died: run the pipeline again",
            PipelineReason::KeptFailed => "the pipeline that was to keep it failed",
            PipelineReason::NoUnitLeft => "all compute units of its program died: open the drive again",
        };
        f.write_str(text)
    }
}

impl PipelineFailure {
    /// Says what was wrong, without the place.
    pub fn explain(&self) -> String {
        let PipelineFailure { reason, detail, .. } = self;
        if let Some(maker) = self.maker() {
            return format!("{reason}: {}: {}", maker.place, maker.reason);
        }
        match (reason, detail) {
            (PipelineReason::Program, 2) => "its input is damaged, or of another format (status 2)".into(),
            (PipelineReason::Program, 3) => {
                "its output does not fit a sub-buffer: give the drive larger ones (status 3)".into()
            }
            (PipelineReason::Program, 4) => "its input is longer than it takes (status 4)".into(),
            (PipelineReason::Program, status) => match ImageError::of_code(*status) {
                Some(error) => error.to_string(),
                None => format!("it failed (status {status})"),
            },
            (PipelineReason::FlashFailed, errno) => format!("the flash failed (errno {errno})"),
            (PipelineReason::OutputTooLong, limit) => format!("{reason} ({limit} bytes)"),
            _ => reason.to_string(),
        }
    }
}

impl fmt::Display for PipelineFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.explain())
    }
}

impl std::error::Error for PipelineFailure {}

/// How a pipeline ended: with so many bytes in its sink, or with a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineResult {
    Finished { bytes: u64 },
    Failed(PipelineFailure),
}

// A result, little endian. All zeros: there is no result yet.
//
//   0            2            4           6      8            12     16          24     32
//   | status u16 | reason u16 | place u16 | zero | detail u32 | zero | bytes u64 | zero |
//
//   status: 1 finished, 2 failed        place: a stage's, 0xfffe the source, 0xffff the sink
const STATUS: usize = 0;
const REASON: usize = 2;
const PLACE: usize = 4;
const DETAIL: usize = 8;
const BYTES: usize = 16;
const _: () = assert!(BYTES + 8 <= PipelineResult::ENCODED_BYTES);

const STATUS_FINISHED: u16 = 1;
const STATUS_FAILED: u16 = 2;
const PLACE_SOURCE: u16 = 0xfffe;
const PLACE_SINK: u16 = 0xffff;

impl PipelineResult {
    pub const ENCODED_BYTES: usize = 32;

    pub fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        match *self {
            PipelineResult::Finished { bytes: count } => {
                put(&mut bytes, STATUS, STATUS_FINISHED.to_le_bytes());
                put(&mut bytes, BYTES, count.to_le_bytes());
            }
            PipelineResult::Failed(PipelineFailure { place, reason, detail }) => {
                put(&mut bytes, STATUS, STATUS_FAILED.to_le_bytes());
                put(&mut bytes, REASON, (reason as u16).to_le_bytes());
                put(&mut bytes, PLACE, place.number().to_le_bytes());
                put(&mut bytes, DETAIL, detail.to_le_bytes());
            }
        }
        bytes
    }

    /// `None` if no result has been written yet.
    pub fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Result<Option<PipelineResult>, DecodeError> {
        let short = |at: usize| u16::from_le_bytes(get(bytes, at));
        let result = match short(STATUS) {
            0 => {
                same_or_not_zero(bytes, &[0; Self::ENCODED_BYTES])?;
                return Ok(None);
            }
            STATUS_FINISHED => PipelineResult::Finished { bytes: u64::from_le_bytes(get(bytes, BYTES)) },
            STATUS_FAILED => {
                let reason = short(REASON);
                let place = PipelinePlace::of_number(short(PLACE));
                let reason = PipelineReason::of_number(reason).ok_or(DecodeError::UnknownStatus(reason))?;
                let detail = u32::from_le_bytes(get(bytes, DETAIL));
                PipelineResult::Failed(PipelineFailure { place, reason, detail })
            }
            unknown => return Err(DecodeError::UnknownStatus(unknown)),
        };
        same_or_not_zero(bytes, &result.encode())?;
        Ok(Some(result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn result() -> impl Strategy<Value = PipelineResult> {
        let place = prop_oneof![
            Just(PipelinePlace::Source),
            any::<u8>().prop_map(PipelinePlace::Stage),
            Just(PipelinePlace::Sink)
        ];
        prop_oneof![
            any::<u64>().prop_map(|bytes| PipelineResult::Finished { bytes }),
            (place, 0..PipelineReason::ALL.len(), any::<u32>()).prop_map(|(place, reason, detail)| {
                let reason = PipelineReason::ALL[reason];
                PipelineResult::Failed(PipelineFailure { place, reason, detail })
            }),
        ]
    }

    proptest! {
        #[test]
        fn a_result_survives_its_encoding(result in result()) {
            prop_assert_eq!(PipelineResult::decode(&result.encode()), Ok(Some(result)));
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(result in result(), at in 0..32_usize, byte: u8) {
            let mut bytes = result.encode();
            bytes[at] = byte;
            if let Ok(decoded) = PipelineResult::decode(&bytes) {
                prop_assert_eq!(decoded.map_or([0; 32], |result| result.encode()), bytes);
            }
        }
    }

    #[test]
    fn a_reader_names_the_first_that_failed() {
        let first = PipelineFailure::new(PipelinePlace::Stage(1), PipelineReason::Program).with(2);
        let second = first.of_reader();
        let without_detail = PipelineFailure { detail: 0, ..first };
        assert_eq!((second.place, second.maker()), (PipelinePlace::Source, Some(without_detail)));
        assert_eq!((second.of_reader(), first.maker()), (second, None));
        assert_eq!(second.to_string(), "source: the pipeline that was to keep it failed: stage 1: it failed");
        assert_eq!(second.with(9999).maker(), None, "a reason of a later version");
    }

    #[test]
    fn reasons_have_the_numbers_of_their_places() {
        for (place, reason) in (1..).zip(PipelineReason::ALL) {
            assert_eq!(reason as u16, place);
            assert!(!reason.to_string().is_empty());
        }
        assert_eq!(PipelineResult::decode(&[0; 32]), Ok(None));
    }
}
