//! Results that stay in local memory, for pipelines to come.
//!
//! ```text
//! a pipeline that keeps is taken ─► promised ─┬─ it finished ─► kept ─► taken, replaced, or its owner goes
//!                                             └─ it failed ───► the failure, for the readers to come
//! ```
//! 1. A result belongs to the queue pair whose pipeline made it, and is found by the number that the host gave it. Its size was
//!    bounded when the pipeline was submitted.
//! 2. A number means what the last pipeline that was submitted for it makes of it: readers submitted afterwards wait for that one.
//!    They wait for pipelines before them alone, so none waits for ever.
//! 3. Numbers in use and failures that are remembered are bounded.

use crate::memory::LocalBuffer;
use crate::protocol::{PipelineFailure, SourceRange};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The most results of one queue pair, those included that are promised.
pub const KEPT_RESULTS_MAX: usize = 64;
/// Of these failures of any queue pair the oldest is forgotten. As many as a batch has pipelines.
const KEPT_FAILURES_MAX: usize = 128;

pub(super) struct KeptResult {
    buffer: LocalBuffer,
    bytes: u64,
}

impl KeptResult {
    pub fn range(&self) -> SourceRange {
        SourceRange { offset: self.buffer.offset(), bytes: self.bytes }
    }
}

/// What a number stands for.
#[derive(Clone)]
pub(super) enum KeptState {
    Kept(Arc<KeptResult>),
    /// By the pipeline of this sequence, which has not ended.
    Promised(u32),
}

#[derive(Default)]
pub(super) struct KeptResults {
    /// By owner and number.
    all: BTreeMap<(u64, u64), KeptState>,
    /// Why there is nothing under a number, the newest last.
    failed: VecDeque<((u64, u64), PipelineFailure)>,
}

impl KeptResults {
    pub fn get(&self, owner: u64, id: u64) -> Option<&KeptState> {
        self.all.get(&(owner, id))
    }

    /// Why the pipeline failed that was to keep this.
    pub fn failure(&self, owner: u64, id: u64) -> Option<PipelineFailure> {
        self.failed.iter().find(|(of, _)| *of == (owner, id)).map(|(_, failure)| *failure)
    }

    /// A reader has it for itself.
    pub fn remove(&mut self, owner: u64, id: u64) {
        self.all.remove(&(owner, id));
    }

    /// Whether the owner may keep one under this number.
    pub fn has_room(&self, owner: u64, id: u64) -> bool {
        self.all.contains_key(&(owner, id)) || self.all.range((owner, 0)..=(owner, u64::MAX)).count() < KEPT_RESULTS_MAX
    }

    /// The pipeline of this sequence is to keep it, in place of what is there.
    pub fn promise(&mut self, owner: u64, id: u64, sequence: u32) {
        self.failed.retain(|(of, _)| *of != (owner, id));
        self.all.insert((owner, id), KeptState::Promised(sequence));
    }

    fn is_promised(&self, of: (u64, u64), sequence: u32) -> bool {
        matches!(self.all.get(&of), Some(KeptState::Promised(maker)) if *maker == sequence)
    }

    /// The pipeline of this sequence has finished. Its result stays if no other was promised in its place and no reader has it for
    /// itself.
    pub fn keep(&mut self, of: (u64, u64), sequence: u32, (buffer, bytes): (LocalBuffer, u64)) -> Arc<KeptResult> {
        let result = Arc::new(KeptResult { buffer, bytes });
        if self.is_promised(of, sequence) {
            self.all.insert(of, KeptState::Kept(result.clone()));
        }
        result
    }

    /// The pipeline of this sequence has failed.
    pub fn break_promise(&mut self, (owner, id): (u64, u64), sequence: u32, failure: PipelineFailure) {
        if self.is_promised((owner, id), sequence) {
            self.fail(owner, id, failure);
        }
    }

    /// Nothing will be kept under this number, and what was is gone.
    pub fn fail(&mut self, owner: u64, id: u64, failure: PipelineFailure) {
        self.all.remove(&(owner, id));
        self.failed.retain(|(of, _)| *of != (owner, id));
        if self.failed.len() == KEPT_FAILURES_MAX {
            self.failed.pop_front();
        }
        self.failed.push_back(((owner, id), failure));
    }

    pub fn forget(&mut self, owner: u64) {
        self.all.retain(|(of, _), _| *of != owner);
        self.failed.retain(|((of, _), _)| *of != owner);
    }
}
