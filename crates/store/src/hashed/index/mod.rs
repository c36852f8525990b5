//! The global index: hash key → a short payload (the segment), in a few bits an entry.
//!
//! It keeps too little of a key to know it again (see [`tapetum_kernels::delta_bucket`]): a lookup gives one *candidate*.
//! For a key that is in the index that is its entry, always. For another key it is nothing, or, rarely, some entry
//! whose key the caller must compare.
//!
//! The index is cut into partitions by the top bits of the hash key. A partition is changed in bulk ([`GlobalIndex::merge`])
//! and does not grow in place: when it is full, it is built anew, larger, from the hash keys on flash
//! ([`GlobalIndex::rebuild`], or in steps with a [`PartitionBuilder`]) and swapped in.
//!
//! # Threads
//! Lookups take no lock and run on any number of threads beside one writer: merges, rebuilds and installs exclude each other by a lock.
//! A merge is seen bucket by bucket, each wholly or not at all; a rebuilt partition is seen all at once.

mod batch;
mod builder;
pub mod checkpoint;
mod geometry;
mod image;
pub mod index_recovery;
mod merge;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod model;
mod partition;
pub mod partition_load;
#[cfg(test)]
mod tests;
mod write;

pub use builder::PartitionBuilder;
pub use geometry::IndexGeometry;
pub use image::{IndexImage, IndexRestorer, PartitionShape};
pub use merge::{IndexChange, MergeDone};

use arc_swap::ArcSwap;
use partition::Partition;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::{fmt, io};
use tapetum_base::media::io::lock;
use tapetum_base::memory::region::{Account, page_bytes};
use tapetum_kernels::delta_bucket::Position;
use tapetum_kernels::hash::HashKey;
use write::Scratch;

/// A partition has no room for a change (or, hardly ever, too many hash keys that are nearly alike): rebuild it with
/// more room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartitionFull;

impl fmt::Display for PartitionFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the index partition is full; rebuild it with more room")
    }
}

impl std::error::Error for PartitionFull {}

/// Why a partition could not be built.
#[derive(Debug)]
pub enum RebuildError {
    /// More room was needed than was asked for: ask for more.
    PartitionFull,
    /// The system gave no memory.
    OutOfMemory(io::Error),
}

impl fmt::Display for RebuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RebuildError::PartitionFull => PartitionFull.fmt(f),
            RebuildError::OutOfMemory(error) => {
                write!(f, "no memory for the index ({error}); give the process more, or raise vm.max_map_count")
            }
        }
    }
}

impl std::error::Error for RebuildError {}

impl From<PartitionFull> for RebuildError {
    fn from(_: PartitionFull) -> RebuildError {
        RebuildError::PartitionFull
    }
}

/// The partitions at one time. All in one table, so that a reader pays once for holding on to it.
struct IndexTable {
    partitions: Box<[Arc<Partition>]>,
}

/// See the [module](self).
pub struct GlobalIndex {
    partition_bits: u32,
    fingerprint_bits: u32,
    /// Payload bits of the partitions that are built from now on.
    payload_bits: AtomicU32,
    table: ArcSwap<IndexTable>,
    writer: Mutex<Scratch>,
    account: Account,
}

impl GlobalIndex {
    /// An empty index, whose partitions have a page or so each.
    pub fn new(geometry: IndexGeometry) -> io::Result<GlobalIndex> {
        assert!(geometry.partition_bits <= IndexGeometry::PARTITION_BITS_MAX, "{geometry:?}");
        let account = Account::default();
        let empty = || Partition::new(geometry, 0, &account).map(Arc::new);
        let partitions = (0..geometry.partitions()).map(|_| empty()).collect::<io::Result<_>>()?;
        Ok(GlobalIndex {
            partition_bits: geometry.partition_bits,
            fingerprint_bits: geometry.fingerprint_bits,
            payload_bits: AtomicU32::new(geometry.payload_bits),
            table: ArcSwap::from_pointee(IndexTable { partitions }),
            writer: Mutex::new(Scratch::new(geometry)),
            account,
        })
    }

    /// The shape of the partitions that are built from now on.
    pub fn geometry(&self) -> IndexGeometry {
        IndexGeometry {
            partition_bits: self.partition_bits,
            fingerprint_bits: self.fingerprint_bits,
            payload_bits: self.payload_bits.load(Ordering::SeqCst),
        }
    }

    /// Partitions that are built from now on take payloads of at least `payload_bits`. Existing ones keep theirs: a payload that does not fit them
    /// all may come only when each [`is_wide`](Self::is_wide).
    pub fn widen(&self, payload_bits: u32) {
        assert!(payload_bits <= 32, "payloads of {payload_bits} bits");
        self.payload_bits.fetch_max(payload_bits, Ordering::SeqCst);
    }

    /// Whether a partition takes payloads as long as one that is built now.
    pub fn is_wide(&self, partition: usize) -> bool {
        let payload_bits = self.table.load().partitions[partition].geometry().payload_bits;
        payload_bits >= self.payload_bits.load(Ordering::SeqCst)
    }

    #[inline(always)]
    fn locate<'a>(&self, table: &'a IndexTable, hash: HashKey) -> (&'a Partition, Position) {
        let partition = &*table.partitions[hash.partition(self.partition_bits)];
        (partition, partition.position(hash))
    }

    /// The candidate for a hash key: its payload if it is in the index; if not, `None` or the payload of some other entry.
    #[inline]
    pub fn lookup(&self, hash: HashKey) -> Option<u32> {
        let table = self.table.load();
        let (partition, position) = self.locate(&table, hash);
        partition.prefetch(position);
        partition.lookup(position)
    }

    /// The range of hash keys, first and last, that has the candidate of `hash`, if there is one. It holds until the partition is rebuilt. Of the
    /// keys of the index in the range, the candidate is one with the most [`shared_bits`](Self::shared_bits).
    pub fn cell(&self, hash: HashKey) -> RangeInclusive<HashKey> {
        self.table.load().partitions[hash.partition(self.partition_bits)].cell(hash)
    }

    /// How many leading bits two hash keys of one partition have in common *as the table sees them*: hash keys are scaled to
    /// the number of buckets, so this is not the common prefix of the hash keys themselves, and the entry that is nearest by
    /// that may be the wrong neighbor for [`IndexChange::Insert`]. Among entries with equally many bits any will do.
    pub fn shared_bits(&self, a: HashKey, b: HashKey) -> u32 {
        let bits = self.partition_bits;
        assert!(a.partition(bits) == b.partition(bits), "{a:?} and {b:?} are of two partitions");
        let table = self.table.load();
        let partition = &table.partitions[a.partition(bits)];
        let (a, b) = (partition.position(a), partition.position(b));
        if a.bucket == b.bucket { (a.tail ^ b.tail).leading_zeros() } else { 0 }
    }

    /// Prefetches the lines that a lookup of `hash` will read.
    #[inline]
    pub fn prefetch(&self, hash: HashKey) {
        let table = self.table.load();
        let (partition, position) = self.locate(&table, hash);
        partition.prefetch(position);
    }

    /// Applies changes, which come in ascending order of their hash keys, to their partition.
    ///
    /// On an error some of the changes have been made and some have not. Lookups of keys that the changes do not name
    /// stay exact; then the partition is rebuilt with the state after the changes.
    pub fn merge(
        &self,
        partition: usize,
        changes: impl IntoIterator<Item = IndexChange>,
    ) -> Result<MergeDone, PartitionFull> {
        let mut scratch = self.lock_writer();
        let table = self.table.load_full();
        let bits = self.partition_bits;
        let changes = changes.into_iter().inspect(|change| {
            assert!(change.hash().partition(bits) == partition, "{change:?} is not of partition {partition}");
        });
        merge::merge(&table.partitions[partition], &mut scratch, changes)
    }

    /// Builds a partition anew from all its entries, in ascending order, with room for `room_for` of them, and swaps it in.
    /// On an error the partition is as it was.
    pub fn rebuild(
        &self,
        partition: usize,
        entries: impl IntoIterator<Item = (HashKey, u32)>,
        room_for: usize,
    ) -> Result<(), RebuildError> {
        let mut builder = self.builder(partition, room_for)?;
        for (hash, payload) in entries {
            builder.push(hash, payload)?;
        }
        self.install(builder)
    }

    /// Begins to build a partition anew.
    pub fn builder(&self, partition: usize, room_for: usize) -> Result<PartitionBuilder, RebuildError> {
        assert!(partition < 1 << self.partition_bits, "partition {partition}");
        PartitionBuilder::new(self.geometry(), partition, room_for, &self.account).map_err(RebuildError::OutOfMemory)
    }

    /// Puts a built partition in the place of the old one, whose memory is freed when its last reader has left. A change merged into the old one
    /// since the builder began is lost unless the builder was given it too.
    pub fn install(&self, builder: PartitionBuilder) -> Result<(), RebuildError> {
        let (number, mut partition) = builder.finish()?;
        let _writer = self.lock_writer();
        let mut partitions = self.table.load().partitions.clone();
        partition.generation = partitions[number].generation + 1;
        partitions[number] = Arc::new(partition);
        self.table.store(Arc::new(IndexTable { partitions }));
        Ok(())
    }

    fn lock_writer(&self) -> std::sync::MutexGuard<'_, Scratch> {
        // The scratch is filled anew by each merge, so one that panicked leaves nothing behind.
        lock(&self.writer)
    }

    /// Changes whenever a partition is built anew: then candidates and cells may be others.
    pub fn partition_generation(&self, partition: usize) -> u64 {
        self.table.load().partitions[partition].generation
    }

    pub fn partition_entries(&self, partition: usize) -> usize {
        self.table.load().partitions[partition].entries()
    }

    /// Entries that a partition holds in comfort. Beyond that it soon runs out of extension buckets.
    pub fn partition_capacity(&self, partition: usize) -> usize {
        self.table.load().partitions[partition].capacity()
    }

    /// Entries to build a partition for that has `entries`.
    pub fn room_for(&self, partition: usize, entries: usize) -> usize {
        self.geometry().room_for(partition, entries)
    }

    /// Whether a partition is of the right size for so many entries: large enough, and not larger by two steps than it need be.
    pub fn fits(&self, partition: usize, entries: usize) -> bool {
        let capacity = self.partition_capacity(partition);
        let geometry = self.table.load().partitions[partition].geometry();
        let next = |entries: usize| geometry.room_for(partition, entries) + 1;
        let most = geometry.capacity(geometry.buckets_for(next(next(next(entries)))));
        entries <= capacity && capacity <= most
    }

    /// Entries that the index can take beside those it has, if it may grow to `bytes`. Free room in one partition does not help another: a full one
    /// grows although others are not full.
    pub fn room_within(&self, bytes: usize) -> usize {
        let capacity: usize = self.table.load().partitions.iter().map(|partition| partition.capacity()).sum();
        let growth = bytes.saturating_sub(self.bytes()) as f64 / self.geometry().entry_bytes();
        (capacity + growth as usize).min(self.entries_within(bytes)).saturating_sub(self.entries())
    }

    /// How many entries an index of so many bytes has, its partitions being of the sizes that they grow in; no fewer than one that was just
    /// made has room for.
    fn entries_within(&self, bytes: usize) -> usize {
        // Between two sizes, a partition has half a step more than it needs.
        let fits = |entries: usize| self.bytes_for(entries + entries / 16) <= bytes;
        let (mut most, mut too_many) = (0, bytes);
        while most + 1 < too_many {
            let middle = most.midpoint(too_many);
            if fits(middle) { most = middle } else { too_many = middle }
        }
        let geometry = self.geometry();
        most.max(geometry.partitions() * geometry.capacity(geometry.buckets_for(1)))
    }

    pub fn entries(&self) -> usize {
        self.table.load().partitions.iter().map(|partition| partition.entries()).sum()
    }

    /// Bytes that the index takes now: the partitions, those that are being built, those that a reader still holds, and the table.
    pub fn bytes(&self) -> usize {
        self.account.load(Ordering::Relaxed) + self.table_bytes()
    }

    fn table_bytes(&self) -> usize {
        // An Arc has two counters beside its content.
        self.geometry().partitions() * (size_of::<Partition>() + 16 + size_of::<Arc<Partition>>())
    }

    /// Bytes that the index would take for so many entries, with each partition sized for its share.
    pub fn bytes_for(&self, entries: usize) -> usize {
        let geometry = self.geometry();
        let share = entries.div_ceil(geometry.partitions());
        let words = geometry.partition_words(geometry.buckets_for(share), page_bytes());
        geometry.partitions() * words * 8 + self.table_bytes()
    }

    pub fn extension_buckets_used(&self) -> usize {
        self.table.load().partitions.iter().map(|partition| partition.extensions_used()).sum()
    }
}
