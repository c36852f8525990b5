//! Fixed little-endian fields, and why bytes are refused.

use super::descriptor::{PARAMETERS_MAX, PROGRAMS_MAX};
use super::stage::INPUTS_MAX;
use std::fmt;

/// Why bytes are not a command, a completion or a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    UnknownOpcode(u8),
    UnknownStatus(u16),
    UnknownStage(u8),
    UnknownPurpose(u8),
    /// A stage cannot have so many inputs.
    TooManyInputs(u8),
    /// A pipeline cannot have so many stages.
    TooManyStages(u8),
    /// A stage of a pipeline cannot have so many bytes of parameters.
    LongParameters(u8),
    UnknownSource(u8),
    UnknownSink(u8),
    /// The byte at this offset belongs to no field of the operation, and is not zero.
    NotZero {
        offset: usize,
    },
    /// A program's status of zero would be success, which has a code of its own.
    ProgramStatusZero,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::UnknownOpcode(opcode) => write!(
                f,
                "opcode {opcode:#04x} is unknown: the two ends of the queue pair differ in version; run the same one on both"
            ),
            DecodeError::UnknownStatus(status) => write!(
                f,
                "status {status} is unknown: the two ends of the queue pair differ in version; run the same one on both"
            ),
            DecodeError::UnknownStage(kind) => write!(
                f,
                "stage kind {kind:#04x} is unknown: the two ends of the queue pair differ in version; run the same one on both"
            ),
            DecodeError::UnknownPurpose(purpose) => write!(
                f,
                "purpose {purpose} is unknown: the two ends of the queue pair differ in version; run the same one on both"
            ),
            DecodeError::TooManyInputs(inputs) => {
                write!(f, "a stage with {inputs} inputs: it has room for {INPUTS_MAX}; join some by a stage before it")
            }
            DecodeError::TooManyStages(stages) => {
                write!(f, "a pipeline of {stages} stages: it has room for {PROGRAMS_MAX}; split it in two")
            }
            DecodeError::LongParameters(bytes) => {
                write!(f, "a stage with {bytes} bytes of parameters: it has room for {PARAMETERS_MAX}")
            }
            DecodeError::UnknownSource(kind) | DecodeError::UnknownSink(kind) => write!(
                f,
                "the kind {kind:#04x} of a source or sink is unknown: the two ends of the queue pair differ in version; run the same one on both"
            ),
            DecodeError::NotZero { offset } => write!(
                f,
                "byte {offset} is reserved and not zero: the sender is newer than this end, or the stream is damaged"
            ),
            DecodeError::ProgramStatusZero => {
                write!(f, "a program status of zero: the sender must send success as success")
            }
        }
    }
}

impl std::error::Error for DecodeError {}

pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, field: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&field);
}

pub(crate) fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

/// Compares decoded bytes with their canonical encoding: a difference is a byte that should have been zero, and that decoding dropped.
pub(super) fn same_or_not_zero(bytes: &[u8], canonical: &[u8]) -> Result<(), DecodeError> {
    match bytes.iter().zip(canonical).position(|(given, expected)| given != expected) {
        None => Ok(()),
        Some(offset) => Err(DecodeError::NotZero { offset }),
    }
}
