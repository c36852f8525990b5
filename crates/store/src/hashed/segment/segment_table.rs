//! The segments that are open, by number, and what belongs to them all.
//!
//! Invariants:
//! 1. The *sequence* is incremented before an install clears validity and after it has retired segments. A look at the index and at the segments that
//!    it names is consistent if the sequence did not change meanwhile. Between the two increments it is odd, and the index may name segments for
//!    records that have died there.
//! 2. The extents of a retired segment are free when its last reader has left. Snapshots that keep too many are given up
//!    ([`super::snapshot_pins`]).
//!
//! Threads: the holder of the installer opens and retires, anyone looks, without a lock. Lock order: retired → extents.

use super::segment_names::SegmentNames;
use super::snapshot_pins::{SnapshotList, SnapshotPins};
use super::unreadable::Unreadable;
use super::view::Segment;
use crate::hashed::key_tables::KeyTables;
use arc_swap::ArcSwapOption;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tapetum_base::media::extents::{ExtentOwner, Extents};
use tapetum_base::media::io::lock;

pub struct SegmentTable {
    open: Vec<ArcSwapOption<Segment>>,
    sequence: AtomicU64,
    /// Segments that the manifest no longer names, until their last reader leaves.
    retired: Mutex<Vec<Arc<Segment>>>,
    pub snapshots: SnapshotList,
    pub names: SegmentNames,
    pub unreadable: Unreadable,
    /// Key tables that are in memory.
    pub key_tables: KeyTables,
}

impl SegmentTable {
    /// A table of these segments, by number, with room for all that there may come to be.
    pub fn new(open: Vec<ArcSwapOption<Segment>>, names: SegmentNames) -> SegmentTable {
        SegmentTable {
            open,
            sequence: AtomicU64::new(0),
            retired: Mutex::default(),
            snapshots: SnapshotList::default(),
            names,
            unreadable: Unreadable::default(),
            key_tables: KeyTables::default(),
        }
    }

    /// The open segment with a number.
    pub fn get(&self, number: u32) -> Option<Arc<Segment>> {
        self.open[number as usize].load_full()
    }

    pub fn numbers(&self) -> std::ops::Range<u32> {
        0..self.open.len() as u32
    }

    /// The open ones.
    pub fn iter(&self) -> impl Iterator<Item = Arc<Segment>> + '_ {
        self.open.iter().filter_map(|segment| segment.load_full())
    }

    pub fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::SeqCst)
    }

    /// Whether a sequence is one of an install that is under way, or has failed.
    pub fn is_of_install(sequence: u64) -> bool {
        sequence % 2 == 1
    }

    /// An install is about to clear validity.
    pub fn turn(&self) {
        self.sequence.fetch_add(1, Ordering::SeqCst);
    }

    /// A segment that the index named at this sequence, held so that its extents stay; `None` when the index must be asked again.
    pub fn hold(&self, number: u32, sequence: u64) -> Option<Arc<Segment>> {
        let segment = self.open.get(number as usize)?.load_full()?;
        (self.sequence() == sequence).then_some(segment)
    }

    pub fn open(&self, segment: Arc<Segment>) {
        self.open[segment.descriptor.number as usize].store(Some(segment));
    }

    /// Bytes of a segment's fences.
    pub fn index_bytes(&self, number: u32) -> usize {
        self.open[number as usize].load().as_ref().map_or(0, |segment| segment.index_bytes())
    }

    /// Takes segments out of sight. Their extents are free when the last reader has left.
    pub fn retire(&self, numbers: &[u32]) {
        let gone: Vec<_> = numbers.iter().filter_map(|number| self.open[*number as usize].swap(None)).collect();
        self.turn();
        for segment in &gone {
            self.key_tables.forget(segment.descriptor.version);
            self.unreadable.forget(segment.descriptor.version);
        }
        lock(&self.retired).extend(gone);
    }

    /// Gives back a segment that was written and is in no manifest.
    pub fn discard(&self, segment: Arc<Segment>) {
        self.key_tables.forget(segment.descriptor.version);
        lock(&self.retired).push(segment);
    }

    /// For a planted bug: these were given back already.
    pub fn forget_retired(&self, is_gone: impl Fn(&Arc<Segment>) -> bool) {
        lock(&self.retired).retain(|retired| !is_gone(retired));
    }

    pub fn has_retired(&self) -> bool {
        !lock(&self.retired).is_empty()
    }

    /// Extents that come back when the last readers of retired segments leave.
    pub fn extents_going(&self) -> u64 {
        let of = |segment: &Arc<Segment>| u64::from(segment.descriptor.extent_count()) + segment.large_extents_alone();
        lock(&self.retired).iter().map(of).sum()
    }

    /// Hands the extents of dead segments and large values that snapshots keep over to freezes.
    pub fn hand_over_dead(&self, extents: &Mutex<Extents>) {
        // None of them is freed as long as these locks are held.
        let retired = lock(&self.retired);
        for segment in retired.iter() {
            lock(extents).hand_over(segment.descriptor.extents(), ExtentOwner::Freeze);
        }
        self.snapshots.hand_over_large(extents);
    }

    /// Extents that snapshots alone keep, of those that these pins hold.
    pub fn pinned(&self, pins: &SnapshotPins) -> u64 {
        pins.pinned(&lock(&self.retired))
    }

    /// Frees the extents of retired segments that nobody reads any more; whether there were any. `are_wanted`: somebody waits for extents.
    pub fn reap(&self, extents: &Mutex<Extents>, are_wanted: impl FnOnce() -> bool) -> bool {
        // This takes locks of shards, whose holders look at the retired ones.
        let is_short = !self.snapshots.is_empty() && are_wanted();
        let mut retired = lock(&self.retired);
        let before = retired.len();
        let count = lock(extents).count();
        self.snapshots.give_up_old(&retired, count.into(), is_short);
        retired.retain(|segment| {
            if Arc::strong_count(segment) > 1 {
                return true;
            }
            let mut extents = lock(extents);
            segment.descriptor.extents().for_each(|extent| extents.release(extent));
            false
        });
        retired.len() < before
    }
}
