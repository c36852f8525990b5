//! Large values: those whose stored bytes take more than an eighth of a segment, or that are too large to be inflated in
//! local memory, lie in extents of their own, written once.
//!
//! ```text
//! room taken ─► value written, durable ─► record with its reference in log and buffer ─► segment ─► deaths, collections
//! ```
//! **Who holds the extents.** [`LargeExtents`] gives them back when it is dropped, so they are free exactly when nobody has
//! an `Arc` of it any more. There is one in the operation that writes it, in the write buffer by the record's place until
//! the buffer is released (superseded records too: they are in the log as long), in the segment by the record's entry
//! until its death is durable, in a collection's output before its victims go, and in whoever reads. So nothing that is
//! durable ever names extents that are given out anew, and no reader finds other bytes there.
//!
//! A touch writes another record with the same reference: they share the extents, in memory by their `Arc`. Recovery takes
//! two records that name exactly the same runs for that; any other overlap is damage.
//!
//! Locks: the allocator's alone, last in order.

pub mod pieces;
pub mod verify;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tapetum_base::error::Error;
use tapetum_base::media::extents::{ExtentOwner, Extents};
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::lock;
use tapetum_kernels::record::VALUE_BYTES_MAX;
use tapetum_kernels::reference::Run;

/// Values whose stored bytes are more than this lie out of line.
pub fn inline_bytes_max(geometry: &Geometry) -> usize {
    geometry.segment_bytes as usize / 8
}

/// The largest value, before compression, that lies in a segment compressed: it is inflated in local memory, beside its
/// stored bytes. Any memory in which a store of such segments opens has room for that, also less than it was written with.
pub fn inline_raw_bytes_max(geometry: &Geometry) -> usize {
    inline_bytes_max(geometry).max(512 << 10)
}

/// Whether a value lies in its record.
pub fn is_inline(geometry: &Geometry, stored_bytes: usize, raw_bytes: usize) -> bool {
    stored_bytes <= inline_bytes_max(geometry) && raw_bytes <= inline_raw_bytes_max(geometry)
}

/// Limits of the largest value, in bytes before compression: several copies of it pass through memory, two of them must fit on flash beside
/// everything else, and their references into small records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueLimits {
    /// An eighth of the memory.
    pub by_memory: u64,
    /// A sixteenth of the capacity that the store was made with.
    pub by_capacity: u64,
    /// 64 write buffers of the size that the store was made with.
    pub by_write_buffers: u64,
}

impl ValueLimits {
    pub(crate) fn of(geometry: &Geometry, memory_bytes: u64) -> ValueLimits {
        ValueLimits {
            by_memory: memory_bytes / 8,
            by_capacity: geometry.created_bytes / 16,
            by_write_buffers: geometry.segment_bytes * 64,
        }
    }
}

/// The largest value, in bytes, before compression.
pub fn value_bytes_max(geometry: &Geometry, memory_bytes: u64) -> usize {
    let ValueLimits { by_memory, by_capacity, by_write_buffers } = ValueLimits::of(geometry, memory_bytes);
    by_memory.min(by_capacity).min(by_write_buffers).min(VALUE_BYTES_MAX as u64) as usize
}

/// Room that large values take, for `stats`, and extents that they wait for.
#[derive(Default)]
pub struct LargeLevels {
    pub values: AtomicU64,
    pub extents: AtomicU64,
    wants_made: AtomicU64,
    /// Extents that are waited for, by the want.
    wanted: Mutex<BTreeMap<u64, u64>>,
}

/// A large value waits for extents, until this is dropped.
pub struct LargeWant {
    number: u64,
    levels: Arc<LargeLevels>,
}

impl Drop for LargeWant {
    fn drop(&mut self) {
        lock(&self.levels.wanted).remove(&self.number);
    }
}

/// The allocator as large values use it.
#[derive(Clone)]
pub struct LargeSpace {
    pub allocator: Arc<Mutex<Extents>>,
    pub levels: Arc<LargeLevels>,
}

impl LargeSpace {
    pub fn new(allocator: Arc<Mutex<Extents>>) -> LargeSpace {
        LargeSpace { allocator, levels: Arc::default() }
    }

    pub fn want(&self, extents: u64) -> LargeWant {
        let number = self.levels.wants_made.fetch_add(1, Ordering::Relaxed);
        lock(&self.levels.wanted).insert(number, extents);
        LargeWant { number, levels: self.levels.clone() }
    }

    /// The most extents that a large value waits for; 0 when none does.
    pub fn wanted_extents(&self) -> u64 {
        lock(&self.levels.wanted).values().copied().max().unwrap_or(0)
    }

    /// The owner of runs that were allocated or claimed.
    pub fn own(&self, runs: Vec<Run>) -> LargeExtents {
        let extents = LargeExtents { runs, pins: AtomicUsize::new(0), space: self.clone() };
        self.levels.values.fetch_add(1, Ordering::Relaxed);
        self.levels.extents.fetch_add(extents.count(), Ordering::Relaxed);
        extents
    }
}

/// The extents of one large value; free when this is dropped.
pub struct LargeExtents {
    runs: Vec<Run>,
    /// The number of snapshots that hold it.
    pub pins: AtomicUsize,
    space: LargeSpace,
}

impl LargeExtents {
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub fn count(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.count)).sum()
    }
}

impl Drop for LargeExtents {
    fn drop(&mut self) {
        self.space.levels.values.fetch_sub(1, Ordering::Relaxed);
        self.space.levels.extents.fetch_sub(self.count(), Ordering::Relaxed);
        let mut allocator = lock(&self.space.allocator);
        for run in &self.runs {
            (run.first..run.first + run.count).for_each(|extent| allocator.release(extent));
        }
    }
}

impl std::fmt::Debug for LargeExtents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.runs)
    }
}

/// The large values of a segment: extents by the record's entry.
pub type LargeEntries = BTreeMap<u32, Arc<LargeExtents>>;

/// Claims the extents that references on flash name, while a store is opened.
pub struct Claims {
    space: LargeSpace,
    /// By the first extent.
    claimed: BTreeMap<u32, Arc<LargeExtents>>,
}

impl Claims {
    pub fn new(space: LargeSpace) -> Claims {
        Claims { space, claimed: BTreeMap::new() }
    }

    /// Planted: the owner of runs that are not claimed.
    pub fn forget(&mut self, runs: &[Run]) -> Arc<LargeExtents> {
        let elsewhere = LargeSpace::new(Arc::new(Mutex::new(Extents::new(1 << 16))));
        let mut claims = Claims::new(elsewhere);
        claims.claim(runs, String::new).unwrap_or_else(|_| Arc::new(self.space.own(Vec::new())))
    }

    /// The owner of `runs`, which `whose` names.
    pub fn claim(&mut self, runs: &[Run], whose: impl FnOnce() -> String) -> Result<Arc<LargeExtents>, Error> {
        if let Some(engine) = self.claimed.get(&runs[0].first).filter(|engine| engine.runs == runs) {
            return Ok(engine.clone());
        }
        let mut allocator = lock(&self.space.allocator);
        let all = runs.iter().flat_map(|run| run.first..run.first.saturating_add(run.count));
        if !all.into_iter().all(|extent| allocator.claim(ExtentOwner::Large, extent)) {
            return Err(Error::Corrupt(format!("{} names extents that are not its own", whose())));
        }
        drop(allocator);
        let extents = Arc::new(self.space.own(runs.to_vec()));
        self.claimed.insert(runs[0].first, extents.clone());
        Ok(extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum_base::media::extents::ExtentShape;

    fn run(first: u32, count: u32) -> Run {
        Run { first, count }
    }

    #[test]
    fn extents_are_wanted_as_long_as_somebody_waits_for_them() {
        let space = LargeSpace::new(Arc::new(Mutex::new(Extents::new(10))));
        assert_eq!(space.wanted_extents(), 0);
        let (less, more) = (space.want(3), space.want(7));
        assert_eq!(space.wanted_extents(), 7);
        drop(more);
        assert_eq!(space.wanted_extents(), 3);
        drop(less);
        assert_eq!(space.wanted_extents(), 0);
    }

    #[test]
    fn extents_are_free_when_the_last_holder_lets_go() {
        let space = LargeSpace::new(Arc::new(Mutex::new(Extents::new(10))));
        let runs = lock(&space.allocator).take(ExtentOwner::Large, 4, ExtentShape::Any).unwrap();
        let first = Arc::new(space.own(runs));
        let second = first.clone();
        drop(first);
        assert_eq!((lock(&space.allocator).free_count(), space.levels.extents.load(Ordering::Relaxed)), (6, 4));
        drop(second);
        assert_eq!((lock(&space.allocator).free_count(), space.levels.values.load(Ordering::Relaxed)), (10, 0));
    }

    #[test]
    fn the_same_runs_are_shared_and_others_must_not_touch_them() {
        let space = LargeSpace::new(Arc::new(Mutex::new(Extents::new(10))));
        let mut claims = Claims::new(space.clone());
        let first = claims.claim(&[run(2, 2), run(7, 1)], String::new).unwrap();
        let again = claims.claim(&[run(2, 2), run(7, 1)], String::new).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert!(claims.claim(&[run(2, 2)], String::new).is_err());
        assert!(claims.claim(&[run(7, 1)], String::new).is_err());
        assert!(claims.claim(&[run(9, u32::MAX)], || "it".into()).unwrap_err().to_string().contains("it names"));
    }

    #[test]
    fn an_eighth_of_the_memory_bounds_a_value() {
        let geometry = Geometry::new(1 << 30, 8 << 20, 6, 512).unwrap();
        assert_eq!(value_bytes_max(&geometry, 56 << 20), 7 << 20);
        assert_eq!(value_bytes_max(&geometry, 128 << 20), 16 << 20);
    }
}
