//! What can go wrong with a command besides a crash, how often it does, and how often it did.

use std::ops::Range;

/// One way of failing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    ReadError,
    /// A sector that is never read again, until it is written anew.
    ReadErrorForEver,
    WriteError,
    /// No write succeeds any more.
    WriteErrorForEver,
    FlushError,
    /// The file system is full for a while: writes fail with ENOSPC.
    NoSpace,
    /// A command moves a part of its bytes now, and the rest later.
    ShortRead,
    ShortWrite,
    /// Durable bytes change.
    Rot,
    /// A write succeeds, and its bytes are somewhere else.
    MisplacedWrite,
    /// A write succeeds, and its bytes are nowhere.
    LostWrite,
}

pub const FAULTS: [(Fault, &str); 11] = [
    (Fault::ReadError, "read error, once"),
    (Fault::ReadErrorForEver, "read error, for ever"),
    (Fault::WriteError, "write error, once"),
    (Fault::WriteErrorForEver, "write error, for ever"),
    (Fault::FlushError, "flush error"),
    (Fault::NoSpace, "no space, for a while"),
    (Fault::ShortRead, "short read"),
    (Fault::ShortWrite, "short write"),
    (Fault::Rot, "bit rot"),
    (Fault::MisplacedWrite, "misplaced write"),
    (Fault::LostWrite, "lost write"),
];

/// For how many writes a file system stays full at most.
pub const FULL_WRITES_MAX: u64 = 24;

/// How often commands fail by chance: one in so many, never where zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub read_one_in: u64,
    pub write_one_in: u64,
    pub flush_one_in: u64,
    /// A write that finds no space, and so do up to [`FULL_WRITES_MAX`] behind it.
    pub full_one_in: u64,
    pub short_one_in: u64,
    pub misplace_one_in: u64,
    pub lose_one_in: u64,
    /// What fails, goes on failing: of a read one of its sectors, of a write all writes.
    pub for_ever: bool,
    /// Only commands that begin between these bytes of flash are struck; all of them where both are zero.
    pub within: (u64, u64),
    /// After so many writes were misplaced or lost, no more are; zero is no limit.
    pub astray_max: u64,
}

impl Faults {
    pub(super) fn reach(&self, flash: u64) -> bool {
        self.within == (0, 0) || (self.within.0..self.within.1).contains(&flash)
    }
}

/// How often each fault struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Struck([u64; FAULTS.len()]);

impl Struck {
    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    pub(super) fn count(&mut self, fault: Fault) {
        self.0[fault as usize] += 1;
    }
}

/// What a flash did wrong since it was last asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub struck: Struck,
    /// Bytes of flash that are not what was written there: rotten, lost, or from elsewhere.
    pub damaged: Vec<Range<u64>>,
    /// Reads that were given such bytes.
    pub reads_damaged: u64,
}
