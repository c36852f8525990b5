//! Results that stay in local memory, for pipelines to come.
//!
//! A result belongs to the queue pair whose pipeline made it, and is found by the number that the host gave it. Its size was
//! bounded when the pipeline was submitted.

use crate::memory::LocalBuffer;
use crate::protocol::SourceRange;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most results of one queue pair.
pub const KEPT_RESULTS_MAX: usize = 64;

pub(super) struct KeptResult {
    buffer: LocalBuffer,
    bytes: u64,
}

impl KeptResult {
    pub fn range(&self) -> SourceRange {
        SourceRange { offset: self.buffer.offset(), bytes: self.bytes }
    }
}

#[derive(Default)]
pub(super) struct KeptResults {
    /// By owner and number.
    all: BTreeMap<(u64, u64), Arc<KeptResult>>,
}

impl KeptResults {
    pub fn get(&self, owner: u64, id: u64) -> Option<&Arc<KeptResult>> {
        self.all.get(&(owner, id))
    }

    pub fn remove(&mut self, owner: u64, id: u64) {
        self.all.remove(&(owner, id));
    }

    /// Whether the owner may keep one under this number.
    pub fn has_room(&self, owner: u64, id: u64) -> bool {
        self.all.contains_key(&(owner, id)) || self.all.range((owner, 0)..=(owner, u64::MAX)).count() < KEPT_RESULTS_MAX
    }

    pub fn keep(&mut self, (owner, id): (u64, u64), buffer: LocalBuffer, bytes: u64) {
        self.all.insert((owner, id), Arc::new(KeptResult { buffer, bytes }));
    }

    pub fn forget(&mut self, owner: u64) {
        self.all.retain(|(of, _), _| *of != owner);
    }
}
