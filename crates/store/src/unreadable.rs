//! Segments that the collector could not read. Nothing is lost by that: what is right in them is still answered, and the rest
//! is an error to whoever asks for it. But nobody can copy what is valid there, so their garbage is not counted as room, until
//! all that was valid has been written over or deleted, when they go without being read.
//!
//! A drive may come round: after a while one is tried again. Nothing of this is on flash.
//!
//! Threads: a mutex, held for a look at the map.

use crate::catalog::SegmentState;
use crate::io::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// One is tried again after so long.
const RETRY_SECONDS: u32 = 600;

#[derive(Default)]
pub struct Unreadable {
    /// By the segment's version: the Unix second from which it is tried again.
    retry_at: Mutex<BTreeMap<u64, u32>>,
}

impl Unreadable {
    pub fn note(&self, version: u64, now: u32) {
        lock(&self.retry_at).insert(version, now.saturating_add(RETRY_SECONDS));
    }

    /// The segment is gone.
    pub fn forget(&self, version: u64) {
        lock(&self.retry_at).remove(&version);
    }

    /// Whether a segment's garbage must not be counted on.
    pub fn has(&self, state: &SegmentState) -> bool {
        state.valid_entries > 0 && lock(&self.retry_at).contains_key(&state.descriptor.version)
    }

    /// Whether the collector leaves a segment alone now.
    pub fn is_left_alone(&self, state: &SegmentState, now: u32) -> bool {
        let retry_at = lock(&self.retry_at).get(&state.descriptor.version).copied();
        state.valid_entries > 0 && retry_at.is_some_and(|retry_at| now < retry_at)
    }

    pub fn count(&self) -> usize {
        lock(&self.retry_at).len()
    }
}
