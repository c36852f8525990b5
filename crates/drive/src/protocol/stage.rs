//! Stages: what one pipeline command does at the drive, step by step.
//!
//! A list is up to [`STAGES_MAX`] stages in local memory, one behind the other. Its reads come first and run at the same time, into
//! ranges that ascend and do not overlap. When the last of them is there, its programs run one after the other. The first stage
//! that does not succeed ends the pipeline, and its completion names it.

use super::command::{LocalRange, ProgramId};
use super::wire::{DecodeError, get, put, same_or_not_zero};

/// The most stages of a list: the pages of the longest record, were each of them read by itself, and a program.
pub const STAGES_MAX: usize = 256;

/// The most ranges that a program reads beside its parameters.
pub const INPUTS_MAX: usize = 3;

/// One step of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Flash to local memory, as the command of this name.
    Read {
        flash: u64,
        local: u64,
        length: u32,
    },
    Execute(Execution),
}

/// A program and the ranges it works on. `output` overlaps none of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    pub program: ProgramId,
    pub parameters: LocalRange,
    pub output: LocalRange,
    inputs: [LocalRange; INPUTS_MAX],
    input_count: u8,
}

impl Execution {
    /// # Panics
    /// When there are more than [`INPUTS_MAX`] inputs.
    #[inline]
    pub fn new(program: ProgramId, parameters: LocalRange, inputs: &[LocalRange], output: LocalRange) -> Execution {
        assert!(inputs.len() <= INPUTS_MAX, "{} inputs: a stage has room for {INPUTS_MAX}", inputs.len());
        // One by one: copied as a whole, they would be loaded before they are stored.
        let all = std::array::from_fn(|place| inputs.get(place).copied().unwrap_or(LocalRange::EMPTY));
        Execution { program, parameters, output, inputs: all, input_count: inputs.len() as u8 }
    }

    pub fn inputs(&self) -> &[LocalRange] {
        &self.inputs[..usize::from(self.input_count)]
    }
}

// A stage, little endian:
//
//   0      1        2         4         8         12        16        20        24        32        40 ...     64
//   | kind | inputs | program | length 0 | length 1 | length 2 | length 3 | length 4 | offset 0 | offset 1 ... |
//   | u8   | u8     | u16     | u32      | u32      | u32      | u32      | u32      | u64      | u64          |
//
//   kind            length 0     length 1   offset 0     offset 1   lengths and offsets 2 to 4
//   Read    0x02    length       -          flash        local      -
//   Execute 0x80    parameters   output     parameters   output     inputs, as many as `inputs` says
const KIND: usize = 0;
const INPUTS: usize = 1;
const PROGRAM: usize = 2;
const LENGTHS: usize = 4;
const OFFSETS: usize = 24;
const RANGES: usize = 2 + INPUTS_MAX;
const _: () = assert!(LENGTHS + 4 * RANGES == OFFSETS && OFFSETS + 8 * RANGES == Stage::ENCODED_BYTES);

const KIND_READ: u8 = 0x02;
const KIND_EXECUTE: u8 = 0x80;

impl Stage {
    /// Bytes of an encoded stage: a cache line.
    pub const ENCODED_BYTES: usize = 64;

    pub fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        match self {
            Stage::Read { flash, local, length } => {
                bytes[KIND] = KIND_READ;
                put_range(&mut bytes, 0, LocalRange { offset: *flash, length: *length });
                put_range(&mut bytes, 1, LocalRange { offset: *local, length: 0 });
            }
            Stage::Execute(execution) => {
                bytes[KIND] = KIND_EXECUTE;
                bytes[INPUTS] = execution.input_count;
                put(&mut bytes, PROGRAM, execution.program.0.to_le_bytes());
                put_range(&mut bytes, 0, execution.parameters);
                put_range(&mut bytes, 1, execution.output);
                for (place, input) in (2..).zip(execution.inputs) {
                    put_range(&mut bytes, place, input);
                }
            }
        }
        bytes
    }

    /// Checks the form alone.
    pub fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Result<Stage, DecodeError> {
        let stage = match bytes[KIND] {
            KIND_READ => {
                let (flash, local) = (get_range(bytes, 0), get_range(bytes, 1));
                Stage::Read { flash: flash.offset, local: local.offset, length: flash.length }
            }
            KIND_EXECUTE => {
                let input_count = bytes[INPUTS];
                if usize::from(input_count) > INPUTS_MAX {
                    return Err(DecodeError::TooManyInputs(input_count));
                }
                let mut inputs = [LocalRange::EMPTY; INPUTS_MAX];
                for (place, input) in inputs.iter_mut().enumerate().take(usize::from(input_count)) {
                    *input = get_range(bytes, 2 + place);
                }
                Stage::Execute(Execution {
                    program: ProgramId(u16::from_le_bytes(get(bytes, PROGRAM))),
                    parameters: get_range(bytes, 0),
                    output: get_range(bytes, 1),
                    inputs,
                    input_count,
                })
            }
            unknown => return Err(DecodeError::UnknownStage(unknown)),
        };
        same_or_not_zero(bytes, &stage.encode())?;
        Ok(stage)
    }
}

fn put_range(bytes: &mut [u8; Stage::ENCODED_BYTES], place: usize, range: LocalRange) {
    put(bytes, LENGTHS + 4 * place, range.length.to_le_bytes());
    put(bytes, OFFSETS + 8 * place, range.offset.to_le_bytes());
}

fn get_range(bytes: &[u8; Stage::ENCODED_BYTES], place: usize) -> LocalRange {
    LocalRange {
        offset: u64::from_le_bytes(get(bytes, OFFSETS + 8 * place)),
        length: u32::from_le_bytes(get(bytes, LENGTHS + 4 * place)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range() -> impl Strategy<Value = LocalRange> {
        (any::<u64>(), any::<u32>()).prop_map(|(offset, length)| LocalRange { offset, length })
    }

    fn stage() -> impl Strategy<Value = Stage> {
        let inputs = proptest::collection::vec(range(), 0..=INPUTS_MAX);
        prop_oneof![
            (any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(flash, local, length)| Stage::Read {
                flash,
                local,
                length
            }),
            (any::<u16>(), range(), inputs, range()).prop_map(|(program, parameters, inputs, output)| {
                Stage::Execute(Execution::new(ProgramId(program), parameters, &inputs, output))
            }),
        ]
    }

    proptest! {
        #[test]
        fn a_stage_survives_its_encoding(stage in stage()) {
            prop_assert_eq!(Stage::decode(&stage.encode()), Ok(stage));
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(stage in stage(), at in 0..64_usize, byte: u8) {
            let mut bytes = stage.encode();
            bytes[at] = byte;
            if let Ok(decoded) = Stage::decode(&bytes) {
                prop_assert_eq!(decoded.encode(), bytes);
            }
        }
    }

    #[test]
    fn the_layout_does_not_drift() {
        let range = |offset, length| LocalRange { offset, length };
        let execution = Execution::new(ProgramId(0x0201), range(3, 4), &[range(5, 6)], range(7, 8));
        let mut expected = [0; 64];
        expected[..4].copy_from_slice(&[0x80, 1, 1, 2]);
        (expected[4], expected[8], expected[12]) = (4, 8, 6);
        (expected[24], expected[32], expected[40]) = (3, 7, 5);
        assert_eq!(Stage::Execute(execution).encode(), expected);
        let mut expected = [0; 64];
        (expected[0], expected[4], expected[24], expected[32]) = (2, 9, 10, 11);
        assert_eq!(Stage::Read { flash: 10, local: 11, length: 9 }.encode(), expected);
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let read = Stage::Read { flash: 0, local: 0, length: 512 }.encode();
        let damaged = |at: usize, byte: u8| {
            let mut bytes = read;
            bytes[at] = byte;
            Stage::decode(&bytes)
        };
        assert_eq!(damaged(KIND, 0x7f), Err(DecodeError::UnknownStage(0x7f)));
        assert_eq!(damaged(INPUTS, 1), Err(DecodeError::NotZero { offset: INPUTS }));
        assert_eq!(damaged(LENGTHS + 4, 1), Err(DecodeError::NotZero { offset: LENGTHS + 4 }));
        let mut bytes = [0; 64];
        (bytes[KIND], bytes[INPUTS]) = (KIND_EXECUTE, 4);
        assert_eq!(Stage::decode(&bytes), Err(DecodeError::TooManyInputs(4)));
        bytes[INPUTS] = 2;
        bytes[LENGTHS + 4 * 4] = 1;
        assert_eq!(Stage::decode(&bytes), Err(DecodeError::NotZero { offset: LENGTHS + 4 * 4 }));
    }
}
