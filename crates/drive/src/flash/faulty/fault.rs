//! Faults of single commands: their kinds, how likely each is, and how often each struck.

use std::ops::Range;

/// One way of failing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    ReadError,
    /// The sector cannot be read until it is written again.
    ReadErrorForEver,
    WriteError,
    /// All writes fail from now on.
    WriteErrorForEver,
    FlushError,
    /// The file system is full for a while: writes fail with ENOSPC.
    NoSpace,
    /// A command moves a part of its bytes now, and the rest later.
    ShortRead,
    ShortWrite,
    /// Durable bytes change.
    Rot,
    /// A write succeeds, and its bytes land somewhere else.
    MisplacedWrite,
    /// A write succeeds, and its bytes are lost.
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

/// The most writes for which a file system stays full.
pub const FULL_WRITES_MAX: u64 = 24;

/// How likely each fault is: one command in so many; zero means never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub read_one_in: u64,
    pub write_one_in: u64,
    pub flush_one_in: u64,
    /// The write finds no space, and so do up to [`FULL_WRITES_MAX`] after it.
    pub full_one_in: u64,
    pub short_one_in: u64,
    pub misplace_one_in: u64,
    pub lose_one_in: u64,
    /// Failures are permanent: a failed read loses one of its sectors, and after a failed write all writes fail.
    pub for_ever: bool,
    /// Only commands that begin between these bytes of flash can fail. Both zero: all commands.
    pub within: (u64, u64),
    /// The most writes that are misplaced or lost; zero is no limit.
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

/// Faults that struck since the last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub struck: Struck,
    /// Ranges of flash whose bytes are not those that were written there: rotten, lost, or misplaced.
    pub damaged: Vec<Range<u64>>,
    /// Reads that returned such bytes.
    pub reads_damaged: u64,
}
