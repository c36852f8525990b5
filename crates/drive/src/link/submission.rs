//! The entries of the two rings of a queue pair, and the layout of the shared memory that they lie in.
//!
//! ```text
//!  a submission, little endian, in words of eight bytes
//!  0 .. 7             8                                       9 .. 14            15 .. 22
//!  +-----------------+---------------------------------------+------------------+-------------------+
//!  | command, as it  | slot u32 | region u8 | kind u8 | count | 4 leased ranges  | 5 written ranges  |
//!  | is encoded      |          |           |         | u8, 0 | of 12 bytes      | of 12 bytes, zero |
//!  +-----------------+---------------------------------------+------------------+-------------------+
//!
//!  an end:  0 .. 5  completion, as it is encoded | 6  slot u32, zero | 7  zero
//!
//!  the memory of a queue pair
//!  0               64             4096
//!  +---------------+--------------+-----------------------+----------------------+
//!  | drive listens | host listens | ring of submissions   | ring of ends         |
//!  +---------------+--------------+-----------------------+----------------------+
//! ```

use super::ring::{self, RingBroken};
use crate::protocol::{
    Command, Completion, DecodeError, LEASED_RANGES_MAX, LeasedRanges, LocalRange, RegionId, Status,
};

/// Ranges that the drive copies from the host's window before it takes the command. Whoever wrote more sends them before.
pub const WRITTEN_MAX: usize = 5;
pub const SUBMISSION_WORDS: usize = 23;
pub const END_WORDS: usize = 8;

pub const DRIVE_LISTENS_AT: usize = 0;
pub const HOST_LISTENS_AT: usize = 64;
pub const SUBMISSIONS_AT: usize = 4096;
pub const ENDS_AT: usize = (SUBMISSIONS_AT + ring::bytes_of(SUBMISSION_WORDS)).next_multiple_of(4096);
pub const PAIR_BYTES: usize = (ENDS_AT + ring::bytes_of(END_WORDS)).next_multiple_of(4096);

const COMMAND_WORDS: usize = Command::ENCODED_BYTES / 8;
const RANGE_BYTES: usize = 12;
const RANGES_AT: usize = Command::ENCODED_BYTES + 8;
const SLOT_WORD_OF_END: usize = Completion::ENCODED_BYTES / 8;
const _: () = assert!(COMMAND_WORDS == 8 && SLOT_WORD_OF_END == 6);
const _: () = assert!(RANGES_AT + (LEASED_RANGES_MAX + WRITTEN_MAX) * RANGE_BYTES <= SUBMISSION_WORDS * 8);

const KIND_COMMAND: u8 = 0;
const KIND_WRITTEN: u8 = 1;

/// A command that a host submits, or bytes that it has written for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission {
    /// `None`: only the written ranges, of the command that follows.
    pub command: Option<Command>,
    pub slot: u32,
    pub leased: LeasedRanges,
    pub written: [LocalRange; WRITTEN_MAX],
    /// How many of them there are.
    pub written_count: usize,
}

/// Why an entry is no submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmissionError {
    /// The command has no meaning: it ends so.
    Refused { slot: u32, tag: u64, status: Status },
    /// The host does not keep to the form.
    Broken,
}

impl From<RingBroken> for SubmissionError {
    fn from(RingBroken: RingBroken) -> SubmissionError {
        SubmissionError::Broken
    }
}

impl Submission {
    pub fn written(&self) -> &[LocalRange] {
        &self.written[..self.written_count]
    }

    pub fn encode(&self) -> [u64; SUBMISSION_WORDS] {
        let mut bytes = [0; SUBMISSION_WORDS * 8];
        let kind = match &self.command {
            Some(command) => {
                bytes[..Command::ENCODED_BYTES].copy_from_slice(&command.encode());
                KIND_COMMAND
            }
            None => KIND_WRITTEN,
        };
        let place = &mut bytes[Command::ENCODED_BYTES..RANGES_AT];
        place[..4].copy_from_slice(&self.slot.to_le_bytes());
        (place[4], place[5], place[6]) = (self.leased.region.0, kind, self.written_count as u8);
        let ranges = self.leased.ranges.iter().chain(&self.written);
        for (range, place) in ranges.zip(bytes[RANGES_AT..].chunks_exact_mut(RANGE_BYTES)) {
            place[..8].copy_from_slice(&range.offset.to_le_bytes());
            place[8..].copy_from_slice(&range.length.to_le_bytes());
        }
        words(&bytes)
    }

    /// # Errors
    /// See [`SubmissionError`].
    pub fn decode(entry: &[u64; SUBMISSION_WORDS]) -> Result<Submission, SubmissionError> {
        let bytes: [u8; SUBMISSION_WORDS * 8] = bytes(entry);
        let (encoded, rest) = bytes.split_first_chunk::<{ Command::ENCODED_BYTES }>().ok_or(SubmissionError::Broken)?;
        let (place, ranges) = rest.split_first_chunk::<8>().ok_or(SubmissionError::Broken)?;
        let slot = u32::from_le_bytes([place[0], place[1], place[2], place[3]]);
        let mut ranges = ranges.as_chunks::<RANGE_BYTES>().0.iter().map(|bytes| {
            let [a, b, c, d, e, f, g, h, length @ ..] = *bytes;
            LocalRange { offset: u64::from_le_bytes([a, b, c, d, e, f, g, h]), length: u32::from_le_bytes(length) }
        });
        let mut range = || ranges.next().unwrap_or_default();
        let leased = LeasedRanges { region: RegionId(place[4]), ranges: std::array::from_fn(|_| range()) };
        let written: [LocalRange; WRITTEN_MAX] = std::array::from_fn(|_| range());
        let written_count = usize::from(place[6]);
        if written_count > WRITTEN_MAX || place[7] != 0 {
            return Err(SubmissionError::Broken);
        }
        let command = match place[5] {
            KIND_WRITTEN => None,
            KIND_COMMAND => Some(Command::decode(encoded).map_err(|_| {
                let tag = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at| encoded[at]));
                SubmissionError::Refused { slot, tag, status: Status::InvalidField }
            })?),
            _ => return Err(SubmissionError::Broken),
        };
        Ok(Submission { command, slot, leased, written, written_count })
    }
}

pub fn encode_end(slot: u32, completion: &Completion) -> [u64; END_WORDS] {
    let mut bytes = [0; END_WORDS * 8];
    bytes[..Completion::ENCODED_BYTES].copy_from_slice(&completion.encode());
    let mut entry = words(&bytes);
    entry[SLOT_WORD_OF_END] = u64::from(slot);
    entry
}

/// The slot and the completion.
///
/// # Errors
/// If it is no end of a command.
pub fn decode_end(entry: &[u64; END_WORDS]) -> Result<(u32, Completion), DecodeError> {
    let bytes: [u8; END_WORDS * 8] = bytes(entry);
    let mut encoded = [0; Completion::ENCODED_BYTES];
    encoded.copy_from_slice(&bytes[..Completion::ENCODED_BYTES]);
    Ok((entry[SLOT_WORD_OF_END] as u32, Completion::decode(&encoded)?))
}

fn words<const WORDS: usize>(bytes: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

fn bytes<const WORDS: usize, const BYTES: usize>(words: &[u64; WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Operation, Purpose};
    use proptest::prelude::*;

    fn range() -> impl Strategy<Value = LocalRange> {
        (any::<u64>(), any::<u32>()).prop_map(|(offset, length)| LocalRange { offset, length })
    }

    proptest! {
        #[test]
        fn a_submission_survives_its_encoding(
            tag: u64, slot: u32, region in 0..2_u8, leased in proptest::array::uniform4(range()),
            written in proptest::array::uniform5(range()), written_count in 0..=WRITTEN_MAX, is_command: bool,
        ) {
            let command = is_command.then_some(Command::new(tag, Operation::Flush).of(Purpose::Log));
            let leased = LeasedRanges { region: RegionId(region), ranges: leased };
            let submission = Submission { command, slot, leased, written, written_count };
            prop_assert_eq!(Submission::decode(&submission.encode()), Ok(submission));
        }

        #[test]
        fn any_entry_is_refused_or_taken(entry in proptest::array::uniform23(any::<u64>())) {
            if let Ok(submission) = Submission::decode(&entry) {
                prop_assert!(submission.written().len() <= WRITTEN_MAX);
            }
        }

        #[test]
        fn an_end_survives_its_encoding(tag: u64, slot: u32, result: [u64; 2], errno: i32) {
            let completion = Completion { result, ..Completion::failed(tag, errno) };
            prop_assert_eq!(decode_end(&encode_end(slot, &completion)), Ok((slot, completion)));
        }
    }

    #[test]
    fn a_command_of_no_meaning_ends_with_its_tag() {
        let leased = LeasedRanges { region: RegionId::LOCAL, ranges: [LocalRange::EMPTY; LEASED_RANGES_MAX] };
        let written = [LocalRange::EMPTY; WRITTEN_MAX];
        let command = Some(Command::new(77, Operation::Flush));
        let mut entry = Submission { command, slot: 5, leased, written, written_count: 0 }.encode();
        entry[1] = 0xee;
        let refused = SubmissionError::Refused { slot: 5, tag: 77, status: Status::InvalidField };
        assert_eq!(Submission::decode(&entry), Err(refused));
        entry[8] |= 9 << 48;
        assert_eq!(Submission::decode(&entry), Err(SubmissionError::Broken));
    }
}
