//! The flash that a snapshot holds of a hashed keyspace, and how much of it the snapshot may keep from writers.
//!
//! Segments and large values that a snapshot holds stay where they are, also when nothing else names them any more: such flash is *pinned*.
//! 1. A snapshot pins a limited number of extents, and none while the free extents are not enough for a segment. One that pins more is given up: it
//!    holds nothing from then on, and its readers get the error that it is too old.
//! 2. A reader holds the segments that it reads from itself, meanwhile.
//!
//! Threads: any. Lock order: retired segments → pins.

use super::view::Segment;
use crate::hashed::large::LargeExtents;
use std::sync::{Arc, Mutex, Weak};
use tapetum_base::media::extents::Extents;
use tapetum_base::media::io::lock;

/// A snapshot may pin one extent of this many.
const PINNED_PART: u64 = 8;

#[derive(Default)]
struct PinnedFlash {
    /// By place; `None`: released.
    segments: Vec<Option<Arc<Segment>>>,
    large: Vec<Arc<LargeExtents>>,
    is_too_old: bool,
}

/// See the [module](self).
#[derive(Default)]
pub struct SnapshotPins {
    held: Mutex<PinnedFlash>,
}

impl SnapshotPins {
    pub fn new(segments: Vec<Arc<Segment>>, large: Vec<Arc<LargeExtents>>) -> Arc<SnapshotPins> {
        let segments = segments.into_iter().map(Some).collect();
        Arc::new(SnapshotPins { held: Mutex::new(PinnedFlash { segments, large, is_too_old: false }) })
    }

    /// The segment in a place; `None`: the snapshot is too old, or released it.
    pub fn segment(&self, place: usize) -> Option<Arc<Segment>> {
        lock(&self.held).segments.get(place)?.clone()
    }

    pub fn release(&self, place: usize) {
        let segment = lock(&self.held).segments.get_mut(place).and_then(Option::take);
        drop(segment);
    }

    pub fn is_too_old(&self) -> bool {
        lock(&self.held).is_too_old
    }

    /// Extents that only the snapshot keeps: of these retired segments, and of large values.
    fn pinned(&self, retired: &[Arc<Segment>]) -> u64 {
        let held = lock(&self.held);
        let is_held = |segment: &&Arc<Segment>| held.segments.iter().flatten().any(|own| Arc::ptr_eq(own, segment));
        let of_segments = retired.iter().filter(is_held).map(|segment| u64::from(segment.descriptor.extent_count()));
        let alone = held.large.iter().filter(|extents| Arc::strong_count(extents) == 1);
        of_segments.sum::<u64>() + alone.map(|extents| extents.count()).sum::<u64>()
    }

    fn give_up(&self) {
        let gone =
            std::mem::replace(&mut *lock(&self.held), PinnedFlash { is_too_old: true, ..PinnedFlash::default() });
        drop(gone);
    }
}

#[derive(Default)]
pub struct SnapshotList {
    pins: Mutex<Vec<Weak<SnapshotPins>>>,
}

impl SnapshotList {
    pub fn add(&self, pins: &Arc<SnapshotPins>) {
        lock(&self.pins).push(Arc::downgrade(pins));
    }

    /// Gives up snapshots that pin too many of these extents.
    pub fn give_up_old(&self, retired: &[Arc<Segment>], extents: &Mutex<Extents>) {
        if lock(&self.pins).is_empty() {
            return;
        }
        let pinned_max = {
            let extents = lock(extents);
            let segment_extents = retired.first().map_or(0, |segment| {
                let geometry = segment.geometry();
                geometry.segment_bytes / geometry.extent_bytes
            });
            let is_short = u64::from(extents.free_count()) < segment_extents;
            if is_short { 0 } else { u64::from(extents.count()) / PINNED_PART }
        };
        let mut snapshots = Vec::new();
        lock(&self.pins).retain(|pins| match pins.upgrade() {
            Some(pins) => {
                snapshots.push(pins);
                true
            }
            None => false,
        });
        for pins in snapshots {
            if pins.pinned(retired) > pinned_max {
                pins.give_up();
            }
        }
    }
}
