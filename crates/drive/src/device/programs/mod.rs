//! The built-in programs, by their numbers.

pub mod match_record;

use crate::device::program::Program;
use crate::protocol::ProgramId;

/// Finds a key's record in data pages and decompresses its value: what a hashed GET runs at the drive.
pub const MATCH_RECORD: ProgramId = ProgramId(0);

/// The built-in programs, in the order of their numbers.
pub fn built_in() -> Vec<Box<dyn Program>> {
    vec![Box::new(match_record::MatchRecord)]
}
