//! Completions: how a command ended.

use super::wire::{DecodeError, get, put, same_or_not_zero};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Success,
    /// The flash refused or lost it; [`Completion::errno`] says why. What a failed write left behind is undefined.
    Failed,
    /// The drive has no such operation or program.
    Unsupported,
    /// A range is outside flash or its region of memory, a length is zero, an offset is misaligned, or a list of stages is invalid. Nothing
    /// was done.
    InvalidField,
    /// A range of memory was not lent with the command. Nothing was done.
    OutsideLease,
    /// The queue pair has no such region of memory. Nothing was done.
    UnknownRegion,
    /// A program filled its output and has more to give.
    More,
    /// The compute unit that ran the program died. The program's output is undefined.
    UnitLost,
    /// A program's own status other than success; never zero.
    Program(u16),
}

/// The end of a command. `errno` is zero unless `status` is [`Status::Failed`]. `result` is the program's; for a pipeline the last
/// program's. `stage` is zero except for a pipeline that failed: the index in its list of the stage that ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub tag: u64,
    pub status: Status,
    pub errno: i32,
    pub result: [u64; 2],
    pub stage: u16,
}

impl Completion {
    /// A completion with neither an errno nor a result.
    pub fn new(tag: u64, status: Status) -> Completion {
        Completion { tag, status, errno: 0, result: [0; 2], stage: 0 }
    }

    pub fn success(tag: u64) -> Completion {
        Completion::new(tag, Status::Success)
    }

    pub fn failed(tag: u64, errno: i32) -> Completion {
        Completion { tag, status: Status::Failed, errno, result: [0; 2], stage: 0 }
    }

    pub fn is_success(&self) -> bool {
        self.status == Status::Success
    }

    /// Whether a write failed because the file system or a quota is full: the drive itself is sound.
    pub fn is_no_space(&self) -> bool {
        self.status == Status::Failed && matches!(self.errno, libc::ENOSPC | libc::EDQUOT)
    }
}

// A completion, little endian:
//
//   0        8             10             12      16         24         32          34     48
//   | tag u64 | status u16 | program u16 | errno | result 0 | result 1 | stage u16 | zero |
//   |         |            | status      | i32   | u64      | u64      |           |      |
const TAG: usize = 0;
const STATUS: usize = 8;
const PROGRAM_STATUS: usize = 10;
const ERRNO: usize = 12;
const RESULTS: [usize; 2] = [16, 24];
const STAGE: usize = 32;
const COMPLETION_END: usize = 34;
const _: () = assert!(ERRNO + 4 == RESULTS[0] && RESULTS[1] + 8 == STAGE && STAGE + 2 == COMPLETION_END);
const _: () = assert!(COMPLETION_END <= Completion::ENCODED_BYTES);

const STATUS_SUCCESS: u16 = 0;
const STATUS_FAILED: u16 = 1;
const STATUS_UNSUPPORTED: u16 = 2;
const STATUS_INVALID_FIELD: u16 = 3;
const STATUS_PROGRAM: u16 = 4;
const STATUS_MORE: u16 = 5;
const STATUS_OUTSIDE_LEASE: u16 = 6;
const STATUS_UNKNOWN_REGION: u16 = 7;
const STATUS_UNIT_LOST: u16 = 8;

impl Completion {
    pub const ENCODED_BYTES: usize = 48;

    pub fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let (status, program_status) = match self.status {
            Status::Success => (STATUS_SUCCESS, 0),
            Status::Failed => (STATUS_FAILED, 0),
            Status::Unsupported => (STATUS_UNSUPPORTED, 0),
            Status::InvalidField => (STATUS_INVALID_FIELD, 0),
            Status::OutsideLease => (STATUS_OUTSIDE_LEASE, 0),
            Status::UnknownRegion => (STATUS_UNKNOWN_REGION, 0),
            Status::More => (STATUS_MORE, 0),
            Status::UnitLost => (STATUS_UNIT_LOST, 0),
            Status::Program(status) => (STATUS_PROGRAM, status),
        };
        let mut bytes = [0; Self::ENCODED_BYTES];
        put(&mut bytes, TAG, self.tag.to_le_bytes());
        put(&mut bytes, STATUS, status.to_le_bytes());
        put(&mut bytes, PROGRAM_STATUS, program_status.to_le_bytes());
        put(&mut bytes, ERRNO, self.errno.to_le_bytes());
        put(&mut bytes, RESULTS[0], self.result[0].to_le_bytes());
        put(&mut bytes, RESULTS[1], self.result[1].to_le_bytes());
        put(&mut bytes, STAGE, self.stage.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Result<Completion, DecodeError> {
        let program_status = u16::from_le_bytes(get(bytes, PROGRAM_STATUS));
        let status = match u16::from_le_bytes(get(bytes, STATUS)) {
            STATUS_SUCCESS => Status::Success,
            STATUS_FAILED => Status::Failed,
            STATUS_UNSUPPORTED => Status::Unsupported,
            STATUS_INVALID_FIELD => Status::InvalidField,
            STATUS_OUTSIDE_LEASE => Status::OutsideLease,
            STATUS_UNKNOWN_REGION => Status::UnknownRegion,
            STATUS_PROGRAM if program_status == 0 => return Err(DecodeError::ProgramStatusZero),
            STATUS_MORE => Status::More,
            STATUS_UNIT_LOST => Status::UnitLost,
            STATUS_PROGRAM => Status::Program(program_status),
            unknown => return Err(DecodeError::UnknownStatus(unknown)),
        };
        let completion = Completion {
            tag: u64::from_le_bytes(get(bytes, TAG)),
            status,
            errno: i32::from_le_bytes(get(bytes, ERRNO)),
            result: [u64::from_le_bytes(get(bytes, RESULTS[0])), u64::from_le_bytes(get(bytes, RESULTS[1]))],
            stage: u16::from_le_bytes(get(bytes, STAGE)),
        };
        same_or_not_zero(bytes, &completion.encode())?;
        Ok(completion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status() -> impl Strategy<Value = Status> {
        prop_oneof![
            Just(Status::Success),
            Just(Status::Failed),
            Just(Status::Unsupported),
            Just(Status::InvalidField),
            Just(Status::OutsideLease),
            Just(Status::UnknownRegion),
            Just(Status::UnitLost),
            Just(Status::More),
            (1..=u16::MAX).prop_map(Status::Program),
        ]
    }

    proptest! {
        #[test]
        fn a_completion_survives_its_encoding(
            tag: u64, status in status(), errno: i32, result: [u64; 2], stage: u16,
        ) {
            let completion = Completion { tag, status, errno, result, stage };
            prop_assert_eq!(Completion::decode(&completion.encode()), Ok(completion));
        }
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let mut bytes = Completion::success(7).encode();
        bytes[STATUS] = 4;
        assert_eq!(Completion::decode(&bytes), Err(DecodeError::ProgramStatusZero));
        bytes[STATUS] = 200;
        assert_eq!(Completion::decode(&bytes), Err(DecodeError::UnknownStatus(200)));
        bytes[STATUS] = 0;
        bytes[47] = 1;
        assert_eq!(Completion::decode(&bytes), Err(DecodeError::NotZero { offset: 47 }));
    }
}
