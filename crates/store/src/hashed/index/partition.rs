//! One partition of the delta table: its buckets, and the pool of extension buckets for those that overflow.
//!
//! ```text
//! words: bucket 0 | bucket 1 | … | bucket n-1 | extension 0 | extension 1 | … | (rest of the page)
//! ```
//! # Threads
//! Any number of readers, one writer (whoever holds the index's writer lock). A bucket and its chain of extensions change
//! under the sequence in the bucket's header ([`sequence_lock`]), so a reader sees a bucket as it was before or after a merge,
//! never between. An extension moves to another bucket only when the bucket that it leaves has been written without it, so
//! that bucket's readers notice.

use super::PartitionFull;
use super::geometry::{EXTENSION_WORDS, IndexGeometry};
use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use tapetum_base::memory::region::{Account, Region, page_bytes};
use tapetum_base::memory::sequence_lock;
use tapetum_kernels::bits::LINE_WORDS;
use tapetum_kernels::delta_bucket::find::find;
use tapetum_kernels::delta_bucket::{BucketHeader, EntryLayout, Position, SLOT_BITS, SLOTS, TENANCY_START, slot};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::prefetch::prefetch;

/// The end of the list of free extensions.
pub(super) const NONE: u32 = u32::MAX;

/// How many slots' tenancy fits into a bucket's first cache line, in all but one of forty buckets, at this load. The tenancy takes one bit per slot
/// and one per entry.
fn slots_near(bucket_load: f64) -> u32 {
    let line_bits = (LINE_WORDS * 64 - TENANCY_START) as f64;
    let slot_bits = 1.0 + bucket_load / f64::from(SLOTS);
    ((line_bits - 2.0 * bucket_load.sqrt()) / slot_bits).clamp(0.0, f64::from(SLOTS)) as u32
}

pub(super) struct Partition {
    pub(super) region: Region,
    pub(super) buckets: usize,
    pub(super) bucket_words: usize,
    pub(super) layout: EntryLayout,
    geometry: IndexGeometry,
    /// The expected place of the middle slot's entry, in words from the end of a bucket, times 2^16: for prefetching.
    slot_stride: usize,
    /// The tenancy of a slot below this one is very likely in the first cache line.
    pub(super) slots_near: u32,
    capacity: usize,
    /// Distinguishes this partition from earlier and later ones in its place.
    pub generation: u64,
    entries: AtomicUsize,
    // The writer's: the list of extensions given back (linked through their word 1), and the first never used one.
    pub(super) extensions_free: AtomicU32,
    pub(super) extensions_fresh: AtomicU32,
    pub(super) extensions_used: AtomicUsize,
}

impl Partition {
    pub fn new(geometry: IndexGeometry, room_for: usize, account: &Account) -> io::Result<Partition> {
        Partition::with_buckets(geometry, geometry.buckets_for(room_for), account)
    }

    pub fn with_buckets(geometry: IndexGeometry, buckets: usize, account: &Account) -> io::Result<Partition> {
        let region = Region::new(geometry.partition_words(buckets, page_bytes()), account)?;
        let bits_per_slot = geometry.bucket_load() * 0.95 / f64::from(SLOTS) * f64::from(geometry.layout().width());
        Ok(Partition {
            region,
            buckets,
            bucket_words: geometry.bucket_words(),
            layout: geometry.layout(),
            geometry,
            slot_stride: (bits_per_slot * 1024.0) as usize,
            slots_near: slots_near(geometry.bucket_load()),
            capacity: geometry.capacity(buckets),
            generation: 0,
            entries: AtomicUsize::new(0),
            extensions_free: AtomicU32::new(NONE),
            extensions_fresh: AtomicU32::new(0),
            extensions_used: AtomicUsize::new(0),
        })
    }

    pub fn geometry(&self) -> IndexGeometry {
        self.geometry
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn entries(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    pub fn set_entries(&self, entries: usize) {
        self.entries.store(entries, Ordering::Relaxed);
    }

    pub fn extensions_used(&self) -> usize {
        self.extensions_used.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub fn position(&self, hash: HashKey) -> Position {
        Position::of(hash, self.geometry.partition_bits, self.buckets)
    }

    /// The hash keys that share the bucket, slot and fingerprint of `hash`: the first and the last.
    pub fn cell(&self, hash: HashKey) -> RangeInclusive<HashKey> {
        let position = self.position(hash);
        let cell_bits = 64 - SLOT_BITS - self.layout.fingerprint_bits();
        let start = (position.bucket as u128) << 64 | (position.tail >> 64 >> cell_bits << cell_bits);
        let end = start + (1 << cell_bits) - 1;
        let (first, last) = (start.div_ceil(self.buckets as u128), end / self.buckets as u128);
        let top = hash.0 & !(u128::MAX.checked_shr(self.geometry.partition_bits).unwrap_or(0));
        let whole = |rest: u128| HashKey(top | rest >> self.geometry.partition_bits);
        whole(first << 64)..=whole(last << 64 | u128::from(u64::MAX))
    }

    #[inline(always)]
    pub(super) fn bucket(&self, number: usize) -> &[AtomicU64] {
        &self.region[number * self.bucket_words..][..self.bucket_words]
    }

    /// An extension, unless a half-written header named one that does not exist.
    #[inline(always)]
    pub(super) fn extension(&self, number: u32) -> Option<&[AtomicU64]> {
        let start = self.buckets * self.bucket_words + number as usize * EXTENSION_WORDS;
        self.region.get(start..start + EXTENSION_WORDS)
    }

    /// Prefetches the cache lines that a lookup of this position will read, as far as they can be foreseen.
    #[inline(always)]
    pub fn prefetch(&self, position: Position) {
        let words = self.bucket(position.bucket);
        let middle = slot(position.tail) as usize * self.slot_stride / (1024 * 64);
        let entry = words.len().saturating_sub(middle + 1);
        prefetch(&words[0]);
        prefetch(&words[LINE_WORDS]);
        // The line where the entry is expected, and the nearer of its neighbours.
        prefetch(&words[entry]);
        let near = if entry % 8 < 4 { entry.saturating_sub(8) } else { entry + 8 };
        prefetch(&words[near.min(words.len() - 1)]);
    }

    #[inline]
    pub fn lookup(&self, position: Position) -> Option<u32> {
        let words = self.bucket(position.bucket);
        sequence_lock::read(&words[0], |header: BucketHeader| self.search_chain(header, words, position.tail))
    }

    #[inline(always)]
    fn search_chain<'a>(&'a self, mut header: BucketHeader, mut words: &'a [AtomicU64], tail: u128) -> Option<u32> {
        let mut first_slot = 0;
        while header.slots_end() <= slot(tail) {
            words = self.extension(header.extension()?)?;
            first_slot = header.slots_end();
            header = BucketHeader(words[0].load(Ordering::Relaxed));
            if header.slots_end() <= first_slot {
                return None; // a half-written chain, which may be a ring
            }
        }
        find(words, header, self.layout, first_slot, tail)
    }

    // Only the writer calls the functions below.

    /// Adds extensions to the chain until it has at least `len`, or adds none.
    pub(super) fn lengthen_chain(&self, chain: &mut Vec<u32>, len: usize) -> Result<(), PartitionFull> {
        let had = chain.len();
        while chain.len() < len {
            match self.take_extension() {
                Some(extension) => chain.push(extension),
                None => {
                    chain.drain(had..).for_each(|extension| self.free_extension(extension));
                    return Err(PartitionFull);
                }
            }
        }
        Ok(())
    }

    fn take_extension(&self) -> Option<u32> {
        let free = self.extensions_free.load(Ordering::Relaxed);
        let taken = if free != NONE {
            let next = self.extension(free).expect("an extension that was freed")[1].load(Ordering::Relaxed);
            self.extensions_free.store(next as u32, Ordering::Relaxed);
            free
        } else {
            let fresh = self.extensions_fresh.load(Ordering::Relaxed);
            self.extension(fresh)?;
            if fresh as usize >= BucketHeader::EXTENSIONS_MAX {
                return None;
            }
            self.extensions_fresh.store(fresh + 1, Ordering::Relaxed);
            fresh
        };
        self.extensions_used.fetch_add(1, Ordering::Relaxed);
        Some(taken)
    }

    /// The words of a free extension may still be read by somebody who followed an older chain, whose header has changed.
    pub(super) fn free_extension(&self, extension: u32) {
        let head = self.extensions_free.load(Ordering::Relaxed);
        self.extension(extension).expect("an extension that we own")[1].store(head.into(), Ordering::Relaxed);
        self.extensions_free.store(extension, Ordering::Relaxed);
        self.extensions_used.fetch_sub(1, Ordering::Relaxed);
    }
}
