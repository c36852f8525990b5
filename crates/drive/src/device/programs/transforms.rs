//! Bytes in, other bytes out: `concat`, `crc32c-check`, and Zstandard and Snappy both ways. All fill their output in parts.
//!
//! Zstandard goes part by part. Snappy's raw format does not: its input is gathered, up to [`WHOLE_BYTES_MAX`], and what comes of
//! it is given out in parts.

use super::{CORRUPT, TOO_LARGE, keep};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::protocol::Status;
use tapetum_kernels::checksum::crc32c_append;
use tapetum_kernels::snappy;
use tapetum_kernels::zstd_stream::{FrameDecoder, FrameEncoder, StreamStep};

/// The most that a program holds whose input must be whole.
pub const WHOLE_BYTES_MAX: usize = 64 << 20;
const ZSTD_LEVEL: i32 = 3;
/// Names and versions of programs that the store looks for.
pub const CRC32C_CHECK: (&str, u16) = ("crc32c-check", 1);
pub const ZSTD_DECOMPRESS: (&str, u16) = ("zstd-decompress", 1);

/// All inputs, one behind the other.
pub struct Concat;
/// All inputs, one behind the other, and at their end [`CORRUPT`] if their checksum is another. The parameters are the checksum that is
/// continued, and the one that is to come of it, as u32.
pub struct Crc32cCheck;
/// The parameter, if there is one, is the level, as i32.
pub struct ZstdCompress;
pub struct ZstdDecompress;
pub struct SnappyCompress;
pub struct SnappyDecompress;

/// Feeds a step the inputs from where the run before left off, until they are used up or the output is full.
fn feed(
    inputs: &[&[u8]],
    output: &mut [u8],
    consumed_before: usize,
    more_input: bool,
    mut step: impl FnMut(&[u8], &mut [u8], bool) -> std::io::Result<StreamStep>,
) -> (Status, usize, usize) {
    let total: usize = inputs.iter().map(|input| input.len()).sum();
    let (mut consumed, mut filled) = (consumed_before.min(total), 0);
    loop {
        // The rest of the input in which `consumed` lies.
        let (mut skip, mut rest) = (consumed, &[][..]);
        for input in inputs {
            if skip < input.len() {
                rest = &input[skip..];
                break;
            }
            skip -= input.len();
        }
        let is_last = !more_input && consumed + rest.len() == total;
        let Ok(done) = step(rest, &mut output[filled..], is_last) else { return (CORRUPT, consumed, filled) };
        consumed += done.consumed;
        filled += done.filled;
        if filled == output.len() && (done.has_more || consumed < total) {
            return (Status::More, consumed, filled);
        }
        if consumed == total && !done.has_more {
            return (Status::Success, 0, filled);
        }
        if done.consumed == 0 && done.filled == 0 {
            return (CORRUPT, consumed, filled);
        }
    }
}

pub(super) fn run_stream<S: Send + 'static>(
    context: Context<'_>,
    begin: impl FnOnce() -> Option<S>,
    mut step: impl FnMut(&mut S, &[u8], &mut [u8], bool) -> std::io::Result<StreamStep>,
) -> ProgramResult {
    let Context { inputs, output, task, .. } = context;
    let (consumed_before, more_input) = (task.consumed, task.more_input);
    let Some(state) = keep(task, begin) else { return (Status::InvalidField, [0; 2]) };
    let (status, consumed, filled) =
        feed(inputs, output, consumed_before, more_input, |from, into, last| step(state, from, into, last));
    task.consumed = consumed;
    (status, [filled as u64, 0])
}

impl Program for Concat {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: "concat", version: 1, is_stream: true }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        run_stream(context, || Some(()), |(), from, into, _| Ok(pass(from, into)))
    }
}

pub(super) fn pass(from: &[u8], into: &mut [u8]) -> StreamStep {
    let taken = from.len().min(into.len());
    into[..taken].copy_from_slice(&from[..taken]);
    StreamStep { consumed: taken, filled: taken, has_more: taken < from.len() }
}

impl Program for Crc32cCheck {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: CRC32C_CHECK.0, version: CRC32C_CHECK.1, is_stream: true }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        let Some((first, expected)) = context.parameters.split_first_chunk::<4>() else {
            return (Status::InvalidField, [0; 2]);
        };
        let Ok(expected) = expected.try_into().map(u32::from_le_bytes) else {
            return (Status::InvalidField, [0; 2]);
        };
        run_stream(
            context,
            || Some(u32::from_le_bytes(*first)),
            |crc, from, into, is_last| {
                let step = pass(from, into);
                *crc = crc32c_append(*crc, &from[..step.consumed]);
                let is_wrong = is_last && !step.has_more && *crc != expected;
                if is_wrong { Err(std::io::ErrorKind::InvalidData.into()) } else { Ok(step) }
            },
        )
    }
}

impl Program for ZstdCompress {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: "zstd-compress", version: 1, is_stream: true }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        let level = match context.parameters {
            [] => ZSTD_LEVEL,
            [a, b, c, d] => i32::from_le_bytes([*a, *b, *c, *d]),
            _ => return (Status::InvalidField, [0; 2]),
        };
        run_stream(context, || FrameEncoder::new(level).ok(), FrameEncoder::step)
    }
}

impl Program for ZstdDecompress {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: ZSTD_DECOMPRESS.0, version: ZSTD_DECOMPRESS.1, is_stream: true }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        run_stream(context, || FrameDecoder::new().ok(), FrameDecoder::step)
    }
}

/// Input that is gathered, then what came of it.
#[derive(Default)]
struct Whole {
    gathered: Vec<u8>,
    made: Option<Vec<u8>>,
    given: usize,
}

/// Makes the output of all input at once.
pub(super) fn run_whole(context: Context<'_>, make: impl FnOnce(Vec<u8>) -> Result<Vec<u8>, Status>) -> ProgramResult {
    let Context { inputs, output, task, .. } = context;
    let more_input = task.more_input;
    let Some(whole) = keep(task, || Some(Whole::default())) else { return (Status::InvalidField, [0; 2]) };
    if whole.made.is_none() {
        let bytes: usize = inputs.iter().map(|input| input.len()).sum();
        if whole.gathered.len() + bytes > WHOLE_BYTES_MAX {
            return (TOO_LARGE, [WHOLE_BYTES_MAX as u64, 0]);
        }
        inputs.iter().for_each(|input| whole.gathered.extend_from_slice(input));
        if more_input {
            return (Status::Success, [0; 2]);
        }
        match make(std::mem::take(&mut whole.gathered)) {
            Ok(made) => whole.made = Some(made),
            Err(status) => return (status, [0; 2]),
        }
    }
    let rest = whole.made.as_deref().map_or(&[][..], |made| &made[whole.given..]);
    let taken = rest.len().min(output.len());
    output[..taken].copy_from_slice(&rest[..taken]);
    let has_more = taken < rest.len();
    whole.given += taken;
    (if has_more { Status::More } else { Status::Success }, [taken as u64, 0])
}

impl Program for SnappyCompress {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: "snappy-compress", version: 1, is_stream: true }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        run_whole(context, |raw| {
            let mut stored = vec![0; snappy::compressed_bytes_max(raw.len())];
            let length = snappy::compress(&raw, &mut stored).map_err(|_| TOO_LARGE)?;
            stored.truncate(length);
            Ok(stored)
        })
    }
}

impl Program for SnappyDecompress {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: "snappy-decompress", version: 1, is_stream: true }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        run_whole(context, |stored| {
            let raw_bytes = snappy::raw_bytes(&stored).map_err(|_| CORRUPT)?;
            if raw_bytes > WHOLE_BYTES_MAX {
                return Err(TOO_LARGE);
            }
            let mut raw = vec![0; raw_bytes];
            snappy::decompress(&stored, &mut raw).map_err(|_| CORRUPT)?;
            Ok(raw)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::built_in;
    use super::*;
    use crate::device::program::TaskState;
    use proptest::prelude::*;
    use tapetum_kernels::checksum::crc32c_append;

    /// Runs a program over input in parts, with little room.
    fn run(name: &str, input: &[u8], part: usize, room: usize) -> Result<Vec<u8>, Status> {
        run_with(name, &[], input, part, room)
    }

    fn run_with(name: &str, parameters: &[u8], input: &[u8], part: usize, room: usize) -> Result<Vec<u8>, Status> {
        let programs = built_in();
        let program = programs.iter().find(|program| program.descriptor().name == name).unwrap();
        let (mut task, mut out, mut output) = (TaskState::default(), Vec::new(), vec![0; room]);
        let parts: Vec<&[u8]> = if input.is_empty() { vec![input] } else { input.chunks(part).collect() };
        for (number, part) in parts.iter().enumerate() {
            task.more_input = number + 1 < parts.len();
            loop {
                // In two ranges: programs take several.
                let (low, high) = part.split_at(part.len() / 2);
                let context = Context { parameters, inputs: &[low, high], output: &mut output, task: &mut task };
                let (status, [filled, _]) = program.run(context);
                out.extend_from_slice(&output[..filled as usize]);
                match status {
                    Status::Success => break,
                    Status::More => assert!(filled > 0, "more without anything"),
                    status => return Err(status),
                }
            }
        }
        Ok(out)
    }

    proptest! {
        #[test]
        fn any_parts_make_the_same(raw in proptest::collection::vec(0..4_u8, 0..2000), part in 1..500_usize, room in 32..500_usize) {
            prop_assert_eq!(run("concat", &raw, part, room), Ok(raw.clone()));
            for (there, back) in [("zstd-compress", "zstd-decompress"), ("snappy-compress", "snappy-decompress")] {
                let stored = run(there, &raw, part, room).unwrap();
                prop_assert_eq!(run(back, &stored, room, part), Ok(raw.clone()));
            }
            prop_assert_eq!(run("sha256", &raw, part, room), run("sha256", &raw, raw.len().max(1), 32));
            let crc = crc32c_append(0, &raw).to_le_bytes().to_vec();
            let parameters = |first: u32, expected: u32| [first.to_le_bytes(), expected.to_le_bytes()].concat();
            let (first, expected) = (77, crc32c_append(77, &raw));
            let check = |first, expected| run_with("crc32c-check", &parameters(first, expected), &raw, part, room);
            prop_assert_eq!(check(first, expected), Ok(raw.clone()));
            prop_assert_eq!(check(first, expected ^ 1), Err(CORRUPT));
            prop_assert_eq!(run("crc32c", &raw, part, room), Ok(crc));
        }

        #[test]
        fn damage_is_told_and_never_panics(bytes in proptest::collection::vec(any::<u8>(), 1..200), part in 1..100_usize) {
            for name in ["zstd-decompress", "snappy-decompress"] {
                let _ = run(name, &bytes, part, 64);
            }
        }
    }

    #[test]
    fn damaged_frames_are_corrupt() {
        assert_eq!(run("zstd-decompress", b"no frame at all", 100, 100), Err(CORRUPT));
        assert_eq!(run("snappy-decompress", &[0xff; 9], 100, 100), Err(CORRUPT));
        let mut huge = vec![0xff, 0xff, 0xff, 0x7f];
        huge.extend([0; 8]);
        assert_eq!(run("snappy-decompress", &huge, 100, 100), Err(TOO_LARGE));
        assert_eq!(run_with("crc32c-check", &[0; 7], b"x", 1, 1), Err(Status::InvalidField));
        assert_eq!(run_with("crc32c-check", &[0; 9], b"x", 1, 1), Err(Status::InvalidField));
    }
}
