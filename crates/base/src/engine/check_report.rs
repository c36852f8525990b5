//! Reports of checks, and the places that a check of a store in use goes on from.

use std::collections::VecDeque;
use tapetum_kernels::reference::Reference;

/// The words for damage that costs nothing.
pub const MADE_ANEW: &str = "which is made anew when the store is next opened for writing";

/// Counts of the checked objects, and the problems found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    pub segments: u64,
    pub records: u64,
    pub valid_records: u64,
    /// Hashed keyspaces: keys whose newest record is in a write buffer, read from the log. Segments have older records of some of them.
    pub buffered_records: u64,
    /// Values in extents of their own. Each was read whole.
    pub large_values: u64,
    /// The problems found. Each names its place.
    pub problems: Vec<String>,
}

/// Where a check of a store that is in use goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckPlace {
    /// A segment, or an ordered keyspace.
    pub number: u32,
    /// In an ordered keyspace.
    pub key: Vec<u8>,
    /// Large values of the segment that are to be checked yet.
    pub large: VecDeque<CheckedValue>,
}

/// A value in extents of its own that a record names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedValue {
    /// The version of its segment: a later segment may have the number.
    pub version: u64,
    /// The record's number in the segment.
    pub entry: u32,
    pub raw_bytes: u32,
    pub reference: Reference,
}

/// A part of such a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckPart {
    pub report: CheckReport,
    /// `None`: it was the last one.
    pub next: Option<CheckPlace>,
}

impl CheckReport {
    pub fn add(&mut self, other: CheckReport) {
        self.segments += other.segments;
        self.records += other.records;
        self.valid_records += other.valid_records;
        self.buffered_records += other.buffered_records;
        self.large_values += other.large_values;
        self.problems.extend(other.problems);
    }
}
