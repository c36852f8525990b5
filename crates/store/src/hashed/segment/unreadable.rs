//! Segments that could not be read when they were to be collected or evicted. Nothing is lost by that: intact records are still answered, and
//! requests for others get an error. But their garbage is not counted as room until nothing is left in them that would have to be read; then they are
//! collected as others are.
//!
//! A drive may recover: after a while a segment is tried again. Nothing of this is on flash.
//!
//! Threads: a mutex, held for a look at the map.

use crate::hashed::catalog::SegmentState;
use std::collections::BTreeMap;
use std::sync::Mutex;
use tapetum_base::media::io::lock;

/// A segment is tried again after this time.
const RETRY_SECONDS: u32 = 600;

/// The part of a segment that could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnreadablePart {
    /// Needed to copy live records.
    Data,
    /// Needed to remove keys from the index whose records are not copied.
    KeyTable,
}

#[derive(Clone, Copy)]
struct Noted {
    part: UnreadablePart,
    /// Unix seconds.
    retry_at: u32,
}

#[derive(Default)]
pub struct Unreadable {
    /// By the segment's version.
    noted: Mutex<BTreeMap<u64, Noted>>,
}

impl Unreadable {
    pub fn note(&self, version: u64, part: UnreadablePart, now: u32) {
        lock(&self.noted).insert(version, Noted { part, retry_at: now.saturating_add(RETRY_SECONDS) });
    }

    /// The segment is gone.
    pub fn forget(&self, version: u64) {
        lock(&self.noted).remove(&version);
    }

    /// Whether a segment with so many live bytes cannot be collected, as far as is known.
    pub fn has(&self, state: &SegmentState, live_bytes: u64) -> bool {
        self.noted(state).is_some_and(|noted| noted.stands(state, live_bytes))
    }

    /// Whether the collector leaves such a segment alone now.
    pub fn is_left_alone(&self, state: &SegmentState, live_bytes: u64, now: u32) -> bool {
        self.noted(state).is_some_and(|noted| noted.stands(state, live_bytes) && now < noted.retry_at)
    }

    /// Whether an eviction, which reads nothing but the key table, leaves a segment alone now.
    pub fn cannot_be_evicted(&self, state: &SegmentState, now: u32) -> bool {
        // As if nothing was live in it, because an eviction reads no data.
        self.noted(state).is_some_and(|noted| noted.stands(state, 0) && now < noted.retry_at)
    }

    pub fn count(&self) -> usize {
        lock(&self.noted).len()
    }

    fn noted(&self, state: &SegmentState) -> Option<Noted> {
        lock(&self.noted).get(&state.descriptor.version).copied()
    }
}

impl Noted {
    /// Whether the part would have to be read.
    fn stands(self, state: &SegmentState, live_bytes: u64) -> bool {
        match self.part {
            UnreadablePart::Data => live_bytes > 0,
            UnreadablePart::KeyTable => state.valid_entries > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::catalog::tests::descriptor;

    #[test]
    fn a_segment_is_left_alone_for_a_while_and_its_garbage_counts_for_nothing_meanwhile_or_after() {
        let (unreadable, state) = (Unreadable::default(), SegmentState::new(descriptor(1, 9)));
        assert!(!unreadable.has(&state, 90) && !unreadable.is_left_alone(&state, 90, 1000));
        unreadable.note(state.descriptor.version, UnreadablePart::KeyTable, 1000);
        assert_eq!(unreadable.count(), 1);
        for (now, left_alone) in [(1000, true), (1000 + RETRY_SECONDS - 1, true), (1000 + RETRY_SECONDS, false)] {
            assert_eq!(unreadable.is_left_alone(&state, 90, now), left_alone);
            assert_eq!(unreadable.cannot_be_evicted(&state, now), left_alone);
            assert!(unreadable.has(&state, 90));
        }
        unreadable.forget(state.descriptor.version);
        assert!(!unreadable.has(&state, 90) && unreadable.count() == 0);
    }

    #[test]
    fn what_needs_not_be_read_stands_in_nobodys_way() {
        let (unreadable, state) = (Unreadable::default(), SegmentState::new(descriptor(1, 9)));
        unreadable.note(state.descriptor.version, UnreadablePart::Data, 1000);
        assert!(unreadable.has(&state, 1) && unreadable.is_left_alone(&state, 1, 1000));
        assert!(!unreadable.has(&state, 0) && !unreadable.is_left_alone(&state, 0, 1000), "nothing is copied");
        assert!(!unreadable.cannot_be_evicted(&state, 1000), "an eviction reads no data");
        unreadable.note(state.descriptor.version, UnreadablePart::KeyTable, 1000);
        let emptied = SegmentState { valid_entries: 0, ..state.clone() };
        assert!(unreadable.has(&state, 0) && !unreadable.has(&emptied, 90));
        assert!(unreadable.cannot_be_evicted(&state, 1000) && !unreadable.cannot_be_evicted(&emptied, 1000));
    }
}
