//! The steps of a block device's request on one block. They are pure; the caller has the session.
//!
//! ```text
//!   a whole block:    put, delete or get ─► done
//!   a part of one:    get ─► put under its stamp ─► done
//!                      ▲          └─ another write came between
//!                      └──────────┘
//! ```
//! Plain data of one thread.

use super::{Condition, Outcome, Request};
use crate::keyspace::block_device::BLOCK_BYTES;
use std::ops::Range;
use tapetum_kernels::expiry::Expiry;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A part of a block, or all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPiece {
    pub block: u64,
    pub within: Range<usize>,
}

impl BlockPiece {
    /// The first piece of a range of a device's bytes, which is not empty.
    pub fn first_of(bytes: &Range<u64>) -> BlockPiece {
        let block = bytes.start / BLOCK;
        let from = (bytes.start % BLOCK) as usize;
        let to = (bytes.end - block * BLOCK).min(BLOCK) as usize;
        BlockPiece { block, within: from..to }
    }

    pub fn is_whole(&self) -> bool {
        self.within.len() == BLOCK_BYTES
    }
}

/// The new content of a part of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Patch {
    Bytes(Vec<u8>),
    /// Zeros. An absent block stays absent, as it reads as zeros.
    Zeros,
}

enum ChangeState {
    Reads,
    Writes { block: Box<[u8]>, condition: Condition },
}

/// The caller's next step after an outcome of a change's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeStep {
    Done,
    /// Submit the change's next request.
    GoesOn,
    /// The value is no block: its writer does not use the keyspace as a block device.
    NoBlock,
}

/// The change of a part of a block.
pub struct BlockChange {
    within: Range<usize>,
    patch: Patch,
    state: ChangeState,
}

impl BlockChange {
    pub fn new(within: Range<usize>, patch: Patch) -> BlockChange {
        BlockChange { within, patch, state: ChangeState::Reads }
    }

    /// Whether its next request, or the one in flight, is a get.
    pub fn reads(&self) -> bool {
        matches!(self.state, ChangeState::Reads)
    }

    /// Its next request.
    pub fn request<'a>(&'a self, key: &'a [u8]) -> Request<'a> {
        match &self.state {
            ChangeState::Reads => Request::Get { key },
            ChangeState::Writes { block, condition } => {
                Request::Put { key, value: block, flags: 0, expiry: Expiry::NONE, condition: *condition }
            }
        }
    }

    /// Takes the outcome of its request, which has not failed. `value` is the value that a get found.
    pub fn take(&mut self, outcome: &Outcome, value: Option<&[u8]>) -> ChangeStep {
        let next = match (&self.state, outcome, value) {
            (ChangeState::Reads, Outcome::Value { .. }, Some(value)) if value.len() != BLOCK_BYTES => {
                return ChangeStep::NoBlock;
            }
            (ChangeState::Reads, Outcome::Value { stamp, .. }, Some(value)) => self.patched(Some((value, *stamp))),
            (ChangeState::Reads, ..) => self.patched(None),
            (ChangeState::Writes { .. }, Outcome::Stored { .. }, _) => None,
            (ChangeState::Writes { .. }, ..) => Some(ChangeState::Reads),
        };
        match next {
            None => ChangeStep::Done,
            Some(state) => {
                self.state = state;
                ChangeStep::GoesOn
            }
        }
    }

    /// The write that follows the get: the new block and the condition under which it may replace the old one. `None`: there is nothing to do.
    fn patched(&self, found: Option<(&[u8], u64)>) -> Option<ChangeState> {
        let (mut block, condition) = match found {
            Some((value, stamp)) => (Box::<[u8]>::from(value), Condition::Stamp(stamp)),
            None => (vec![0; BLOCK_BYTES].into_boxed_slice(), Condition::Absent),
        };
        let part = &mut block[self.within.clone()];
        match (&self.patch, found) {
            (Patch::Bytes(bytes), _) => part.copy_from_slice(bytes),
            (Patch::Zeros, Some(_)) => part.fill(0),
            (Patch::Zeros, None) => return None,
        }
        Some(ChangeState::Writes { block, condition })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::ValueRange;

    const VALUE: Outcome =
        Outcome::Value { flags: 0, stamp: 7, expiry: Expiry::NONE, value: ValueRange { start: 0, end: 0 } };

    #[test]
    fn a_range_is_cut_at_blocks() {
        let cut = |start, end| BlockPiece::first_of(&(start..end));
        assert_eq!(cut(4000, 9000), BlockPiece { block: 0, within: 4000..4096 });
        assert_eq!(cut(4096, 9000), BlockPiece { block: 1, within: 0..4096 });
        assert_eq!(cut(8192, 9000), BlockPiece { block: 2, within: 0..808 });
        assert!(cut(4096, 8192).is_whole() && !cut(4097, 8192).is_whole());
    }

    #[test]
    fn a_change_that_another_write_overtook_begins_again() {
        let mut change = BlockChange::new(1..3, Patch::Bytes(vec![8, 9]));
        assert_eq!(change.request(b"k"), Request::Get { key: b"k" });
        assert_eq!(change.take(&VALUE, Some(&[1; BLOCK_BYTES])), ChangeStep::GoesOn);
        let Request::Put { value, condition, .. } = change.request(b"k") else { panic!("it writes") };
        assert_eq!((&value[..4], condition), (&[1, 8, 9, 1][..], Condition::Stamp(7)));
        assert_eq!(change.take(&Outcome::Exists, None), ChangeStep::GoesOn);
        assert!(change.reads());
        assert_eq!(change.take(&Outcome::Missing, None), ChangeStep::GoesOn);
        let Request::Put { value, condition, .. } = change.request(b"k") else { panic!("it writes") };
        assert_eq!((&value[..4], condition), (&[0, 8, 9, 0][..], Condition::Absent));
        assert_eq!(change.take(&Outcome::Stored { stamp: 9 }, None), ChangeStep::Done);
    }

    #[test]
    fn zeros_leave_a_hole_and_other_values_are_no_blocks() {
        let mut change = BlockChange::new(0..4, Patch::Zeros);
        assert_eq!(change.take(&Outcome::Missing, None), ChangeStep::Done);
        assert_eq!(BlockChange::new(0..4, Patch::Zeros).take(&VALUE, Some(b"x")), ChangeStep::NoBlock);
    }
}
