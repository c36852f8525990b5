//! The flash that a snapshot holds of a hashed keyspace, and how much of it the snapshot may keep from writers.
//!
//! Segments and large values that a snapshot holds stay where they are, also when nothing else names them any more: such flash is *pinned*.
//! 1. A snapshot pins a limited number of extents: an eighth of all, or as many as its owner said. While somebody waits for extents, the
//!    oldest one of a query that pins any gives them; those of freezes are ended by their job. One that is given up holds nothing from then on, and its readers get the error that it is too
//!    old.
//! 2. A reader holds the segments that it reads from itself, meanwhile.
//!
//! Threads: any. Lock order: retired segments → pins.

use super::view::Segment;
use crate::hashed::large::LargeExtents;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use tapetum_base::media::extents::{ExtentOwner, Extents};
use tapetum_base::media::io::lock;

/// A snapshot may pin one extent of this many.
const PINNED_PART: u64 = 8;

#[derive(Default)]
struct PinnedFlash {
    /// By place; `None`: released.
    segments: Vec<Option<Arc<Segment>>>,
    large: Vec<PinnedLarge>,
    is_too_old: bool,
}

/// A large value's extents, which know how many snapshots have them.
struct PinnedLarge(Arc<LargeExtents>);

impl PinnedLarge {
    fn new(extents: Arc<LargeExtents>) -> PinnedLarge {
        extents.pins.fetch_add(1, Ordering::Relaxed);
        PinnedLarge(extents)
    }

    /// Whether snapshots alone have them.
    fn is_alone(&self) -> bool {
        // First, as whoever takes another share counts it here afterwards.
        let pins = self.0.pins.load(Ordering::SeqCst);
        Arc::strong_count(&self.0) <= pins
    }
}

impl Drop for PinnedLarge {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::Relaxed);
    }
}

/// See the [module](self).
#[derive(Default)]
pub struct SnapshotPins {
    held: Mutex<PinnedFlash>,
    /// The place of each segment, by its number.
    places: HashMap<u32, usize>,
    /// Extents that it may keep from writers; `None`: the usual part of all.
    extents_max: Option<u64>,
}

impl SnapshotPins {
    pub fn new(
        segments: Vec<Arc<Segment>>,
        large: Vec<Arc<LargeExtents>>,
        extents_max: Option<u64>,
    ) -> Arc<SnapshotPins> {
        let number = |(place, segment): (usize, &Arc<Segment>)| (segment.descriptor.number, place);
        let places = segments.iter().enumerate().map(number).collect();
        let segments = segments.into_iter().map(Some).collect();
        let large = large.into_iter().map(PinnedLarge::new).collect();
        let held = Mutex::new(PinnedFlash { segments, large, is_too_old: false });
        Arc::new(SnapshotPins { held, places, extents_max })
    }

    /// The segment in a place; `None`: the snapshot is too old, or released it.
    pub fn segment(&self, place: usize) -> Option<Arc<Segment>> {
        lock(&self.held).segments.get(place)?.clone()
    }

    #[cfg(test)]
    pub fn numbers(&self) -> std::collections::BTreeSet<u32> {
        self.places.keys().copied().collect()
    }

    pub fn release(&self, place: usize) {
        let segment = lock(&self.held).segments.get_mut(place).and_then(Option::take);
        drop(segment);
    }

    pub fn is_too_old(&self) -> bool {
        lock(&self.held).is_too_old
    }

    /// Extents that snapshots alone keep, of those that this one holds: of these retired segments, and of large values.
    pub fn pinned(&self, retired: &[Arc<Segment>]) -> u64 {
        let held = lock(&self.held);
        let own = |number: u32| held.segments.get(*self.places.get(&number)?)?.as_ref();
        let is_held =
            |segment: &&Arc<Segment>| own(segment.descriptor.number).is_some_and(|own| Arc::ptr_eq(own, segment));
        let of_segments = retired.iter().filter(is_held).map(|segment| u64::from(segment.descriptor.extent_count()));
        let alone = held.large.iter().filter(|large| large.is_alone());
        of_segments.sum::<u64>() + alone.map(|large| large.0.count()).sum::<u64>()
    }

    /// Hands the extents of dead large values over to freezes.
    fn hand_over_large(&self, extents: &Mutex<Extents>) {
        for large in lock(&self.held).large.iter().filter(|large| large.is_alone()) {
            let runs = large.0.runs().iter().flat_map(|run| run.first..run.first + run.count);
            lock(extents).hand_over(runs, ExtentOwner::Freeze);
        }
    }

    pub fn give_up(&self) {
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

    pub fn is_empty(&self) -> bool {
        lock(&self.pins).is_empty()
    }

    /// Hands the extents of large values that snapshots alone keep over to freezes.
    pub fn hand_over_large(&self, extents: &Mutex<Extents>) {
        let all: Vec<_> = lock(&self.pins).iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|pins| pins.hand_over_large(extents));
    }

    /// Gives up snapshots that pin too many of these extents. The oldest come first.
    pub fn give_up_old(&self, retired: &[Arc<Segment>], extents: u64, is_short: bool) {
        let usual_max = extents / PINNED_PART;
        let mut snapshots = Vec::new();
        lock(&self.pins).retain(|pins| match pins.upgrade() {
            Some(pins) => {
                snapshots.push(pins);
                true
            }
            None => false,
        });
        for pins in snapshots {
            let pinned = pins.pinned(retired);
            // Freezes are ended by their job, one after the other.
            let gives_room = is_short && pinned > 0 && pins.extents_max.is_none();
            if gives_room || pinned > pins.extents_max.unwrap_or(usual_max) {
                pins.give_up();
            }
            if gives_room {
                break;
            }
        }
    }
}
