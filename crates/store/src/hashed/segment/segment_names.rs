//! Numbers and versions of segments. A writer of a segment holds them from before its first write until its install.
//!
//! 1. Nobody else is given a number that is in the catalog or taken.
//! 2. A number is below the limit: the index has the bits for it.
//! 3. A version is given once in a store's life.
//!
//! Threads: any.

use crate::hashed::catalog::Catalog;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tapetum_base::media::io::lock;
use tapetum_drive::fail_point;

/// The number and the version of a segment.
#[derive(Clone, Copy)]
pub struct SegmentName {
    pub number: u32,
    pub version: u64,
}

pub struct SegmentNames {
    /// Names of segments that are being written.
    taken: Mutex<Vec<SegmentName>>,
    limit: AtomicU32,
    version_next: AtomicU64,
}

impl SegmentNames {
    /// Names of numbers below `limit`, in the generation of a store that is opened.
    pub fn new(limit: u32, generation: u64) -> SegmentNames {
        SegmentNames {
            taken: Mutex::default(),
            limit: AtomicU32::new(limit),
            // Unique in the store's life without being persisted: no generation comes twice, unless damage hid one.
            version_next: AtomicU64::new(generation << 32 | 1),
        }
    }

    /// A name for a new segment.
    pub fn take(&self, catalog: &Catalog) -> SegmentName {
        let mut taken = lock(&self.taken);
        let numbers: Vec<u32> = taken.iter().map(|name| name.number).collect();
        let is_taken = |number: &u32| numbers.contains(number);
        let limit = self.limit();
        let number = match fail_point!(KeepPayloadBits) {
            true => (0..limit).rev().find(|number| !catalog.segments.contains_key(number) && !is_taken(number)),
            false => None,
        };
        let number = number.unwrap_or_else(|| catalog.number_free(&numbers));
        assert!(number < limit, "a segment is begun only where there is a number to spare");
        let version = match fail_point!(SameVersion) {
            true => 1,
            false => self.version_next.fetch_add(1, Ordering::SeqCst),
        };
        let name = SegmentName { number, version };
        taken.push(name);
        name
    }

    /// The segment was installed, or given up.
    pub fn release(&self, number: u32) {
        lock(&self.taken).retain(|name| name.number != number);
    }

    /// Numbers left beside those of so many installed segments.
    pub fn left(&self, installed: usize) -> usize {
        (self.limit() as usize).saturating_sub(installed + lock(&self.taken).len())
    }

    /// Whether a segment is being written that was begun before this version.
    pub fn is_writing_older(&self, version: u64) -> bool {
        lock(&self.taken).iter().any(|name| name.version < version)
    }

    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::SeqCst)
    }

    /// Numbers below this one may be given from now on.
    pub fn raise_limit(&self, limit: u32) {
        self.limit.fetch_max(limit, Ordering::SeqCst);
    }

    #[cfg(test)]
    pub fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::SeqCst);
    }

    /// A version for data that is written beside segments.
    pub fn version(&self) -> u64 {
        self.version_next.fetch_add(1, Ordering::Relaxed)
    }

    /// The next version: everything begun from here on has it or a later one.
    pub fn version_next(&self) -> u64 {
        self.version_next.load(Ordering::SeqCst)
    }
}
