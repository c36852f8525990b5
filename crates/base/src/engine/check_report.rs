//! The report of an offline check.

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
