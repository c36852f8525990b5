//! Results that stay in local memory for later pipelines.
//!
//! ```text
//! a pipeline that keeps is taken ─► promised ─┬─ it finished ─► kept ─► taken, replaced, or its owner goes
//!                                             └─ it failed ───► the failure, for the readers to come
//! ```
//! 1. A result belongs to the queue pair whose pipeline made it. The host finds it by the number that it gave. Its size is bounded when the
//!    pipeline is submitted.
//! 2. A number refers to the last pipeline submitted for it: readers submitted afterwards wait for that one. Readers wait only for earlier
//!    pipelines, so none waits for ever.
//! 3. The numbers in use and the remembered failures are bounded.

use crate::memory::LocalBuffer;
use crate::protocol::{PipelineFailure, SourceRange};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The most results of one queue pair, including promised ones.
pub const KEPT_RESULTS_MAX: usize = 64;
/// Failures remembered over all queue pairs; the oldest is forgotten. As many as a batch has pipelines.
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

/// The state of a result's number.
#[derive(Clone)]
pub(super) enum KeptState {
    Kept(Arc<KeptResult>),
    /// The running pipeline of this sequence will keep it.
    Promised(u32),
}

#[derive(Default)]
pub(super) struct KeptResults {
    /// By owner and number.
    all: BTreeMap<(u64, u64), KeptState>,
    /// Why a number has no result; the newest last.
    failed: VecDeque<((u64, u64), PipelineFailure)>,
}

impl KeptResults {
    pub fn get(&self, owner: u64, id: u64) -> Option<&KeptState> {
        self.all.get(&(owner, id))
    }

    /// Why the pipeline that was to keep this result failed.
    pub fn failure(&self, owner: u64, id: u64) -> Option<PipelineFailure> {
        self.failed.iter().find(|(of, _)| *of == (owner, id)).map(|(_, failure)| *failure)
    }

    /// Removes a result that a reader takes for itself.
    pub fn remove(&mut self, owner: u64, id: u64) {
        self.all.remove(&(owner, id));
    }

    /// Whether the owner may keep one under this number.
    pub fn has_room(&self, owner: u64, id: u64) -> bool {
        self.all.contains_key(&(owner, id)) || self.all.range((owner, 0)..=(owner, u64::MAX)).count() < KEPT_RESULTS_MAX
    }

    /// The pipeline of this sequence will keep the result, in place of the current one.
    pub fn promise(&mut self, owner: u64, id: u64, sequence: u32) {
        self.failed.retain(|(of, _)| *of != (owner, id));
        self.all.insert((owner, id), KeptState::Promised(sequence));
    }

    fn is_promised(&self, of: (u64, u64), sequence: u32) -> bool {
        matches!(self.all.get(&of), Some(KeptState::Promised(maker)) if *maker == sequence)
    }

    /// The pipeline of this sequence has finished. Its result is stored, unless another one was promised in its place or a reader takes it
    /// for itself.
    pub fn keep(&mut self, of: (u64, u64), sequence: u32, buffer: LocalBuffer, bytes: u64) -> Arc<KeptResult> {
        let result = Arc::new(KeptResult { buffer, bytes });
        if self.is_promised(of, sequence) {
            self.all.insert(of, KeptState::Kept(result.clone()));
        }
        result
    }

    /// The pipeline of this sequence has failed.
    pub fn break_promise(&mut self, owner: u64, id: u64, sequence: u32, failure: PipelineFailure) {
        if self.is_promised((owner, id), sequence) {
            self.fail(owner, id, failure);
        }
    }

    /// No result will be kept under this number, and the current one is freed.
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
