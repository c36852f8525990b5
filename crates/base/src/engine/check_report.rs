//! What an offline check says.

/// Of damage that costs nothing.
pub const MADE_ANEW: &str = "which is made anew when the store is next opened for writing";

/// What a check went through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    pub segments: u64,
    pub records: u64,
    pub valid_records: u64,
    /// Of hashed keyspaces, keys that the write buffers have the last word on: what was read of the log. Some are in segments too.
    pub buffered_records: u64,
    /// Values in extents of their own, each read whole.
    pub large_values: u64,
    /// What does not hold, each naming its place.
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
