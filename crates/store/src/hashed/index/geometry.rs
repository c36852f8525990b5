//! The size of a partition for a number of entries.
//!
//! Entries fall into buckets at random, so a bucket's need of bits is spread around its mean. A bucket is loaded until
//! its mean need plus [`SPARE_DEVIATIONS`] standard deviations fill it; the buckets above that push their last few slots
//! into an extension of one cache line. With much less spare room extensions cost more than they save; with much
//! more, the room does.

use tapetum_base::error::Error;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::options::StoreOptions;
use tapetum_kernels::delta_bucket::{BucketHeader, EntryLayout, SLOTS};

/// Words of an extension bucket: one cache line.
pub(super) const EXTENSION_WORDS: usize = 8;
/// Entries per slot for which a bucket's size is chosen. More make the tenancy cheaper and false candidates more frequent.
const ENTRIES_PER_SLOT: f64 = 1.25;
/// The room kept for variance, in standard deviations of a bucket's need.
const SPARE_DEVIATIONS: f64 = 0.45;
/// Extensions that a bucket needs on average when the partition is at its capacity.
const EXTENSIONS_PER_BUCKET: f64 = 0.34;
/// Growth is by an eighth.
const STEP: f64 = 1.125;
/// Entries that the smallest partition has room for.
const ROOM_MIN: f64 = 64.0;
/// Mean bits of a branch: its unary code, the zero included.
const BRANCH_BITS: f64 = 2.4;

/// The shape of a [`GlobalIndex`](super::GlobalIndex).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexGeometry {
    /// The index has 2^`partition_bits` partitions. A partition is what is rebuilt at once.
    pub partition_bits: u32,
    /// Bits of a fingerprint, 0 to 16. With none, a lookup of a strange key in a slot that is not empty always gives a
    /// candidate; with f, about 1.25 in 2^f.
    pub fingerprint_bits: u32,
    /// Bits of a payload, 1 to 32.
    pub payload_bits: u32,
}

impl IndexGeometry {
    /// The index geometry of a store with these options and this geometry.
    pub(crate) fn of(options: &StoreOptions, geometry: &Geometry, capacity_bytes: u64) -> IndexGeometry {
        IndexGeometry {
            partition_bits: geometry.partition_bits,
            fingerprint_bits: options.fingerprint_bits,
            payload_bits: geometry.segment_bits(capacity_bytes),
        }
    }

    /// The index geometry of a store that is made with these options and this capacity.
    pub fn at(options: &StoreOptions, capacity_bytes: u64) -> Result<IndexGeometry, Error> {
        let geometry = Geometry::new(capacity_bytes, options.segment_bytes, options.partition_bits, 512)?;
        Ok(IndexGeometry::of(options, &geometry, capacity_bytes))
    }

    pub const PARTITION_BITS_MAX: u32 = 16;

    pub fn partitions(self) -> usize {
        1 << self.partition_bits
    }

    pub(super) fn layout(self) -> EntryLayout {
        EntryLayout::new(self.fingerprint_bits, self.payload_bits)
    }

    /// Mean bits of an entry: its tenancy bit, itself, and its share of the branches.
    fn entry_bits(self) -> f64 {
        // Entries are spread over cells of slot and fingerprint; all but the first of a cell begin a branch.
        let cell_load = ENTRIES_PER_SLOT / f64::from(1u32 << self.fingerprint_bits);
        let branches = 1.0 - (1.0 - (-cell_load).exp()) / cell_load;
        1.0 + f64::from(self.fingerprint_bits + self.payload_bits) + branches * BRANCH_BITS
    }

    /// Words of a bucket: whole cache lines.
    pub(super) fn bucket_words(self) -> usize {
        let entries = f64::from(SLOTS) * ENTRIES_PER_SLOT;
        let bits = f64::from(64 + SLOTS) + (entries + SPARE_DEVIATIONS * entries.sqrt()) * self.entry_bits();
        ((bits / 512.0).round() as usize).max(2) * 8
    }

    /// Entries a bucket has on average when its partition is at its capacity.
    pub(super) fn bucket_load(self) -> f64 {
        // load + spare * sqrt(load) = room, solved for sqrt(load).
        let room = (self.bucket_words() as f64 * 64.0 - f64::from(64 + SLOTS)) / self.entry_bits();
        let root = ((SPARE_DEVIATIONS * SPARE_DEVIATIONS + 4.0 * room).sqrt() - SPARE_DEVIATIONS) / 2.0;
        root * root
    }

    /// Bytes that an entry takes in a partition at its capacity.
    pub fn entry_bytes(self) -> f64 {
        let words = self.bucket_words() as f64 + EXTENSIONS_PER_BUCKET * EXTENSION_WORDS as f64;
        words * 8.0 / self.bucket_load()
    }

    /// Buckets of a partition with room for `entries`.
    pub(super) fn buckets_for(self, entries: usize) -> usize {
        ((entries as f64 / self.bucket_load()).ceil() as usize).max(1)
    }

    /// Entries of a partition with this many buckets at its capacity.
    pub(super) fn capacity(self, buckets: usize) -> usize {
        (buckets as f64 * self.bucket_load()) as usize
    }

    /// Entries that a partition with `entries` is built to hold: the next size on a grid of steps of [`STEP`]. The grids of partitions are shifted
    /// against each other, so that those that fill at the same pace grow one after another.
    pub(super) fn room_for(self, partition: usize, entries: usize) -> usize {
        // Reversed bits keep partitions that follow each other in an install far apart on the grid.
        let reversed = (partition as u32).reverse_bits() >> 1 >> (31 - self.partition_bits.min(31));
        let shift = f64::from(reversed) / self.partitions() as f64;
        let steps = (entries.max(1) as f64 / ROOM_MIN).log(STEP) - shift;
        (ROOM_MIN * STEP.powf(steps.ceil().max(0.0) + shift)) as usize + 1
    }

    /// Extension buckets that a partition with this many buckets is given at least.
    pub(super) fn extensions_for(self, buckets: usize) -> usize {
        let mean = buckets as f64 * EXTENSIONS_PER_BUCKET;
        let extensions = (mean + 4.0 * mean.sqrt() + 2.0).ceil() as usize;
        extensions.min(BucketHeader::EXTENSIONS_MAX)
    }

    /// Words of a partition with this many buckets: whole pages.
    pub(super) fn partition_words(self, buckets: usize, page_bytes: usize) -> usize {
        let words = buckets * self.bucket_words() + self.extensions_for(buckets) * EXTENSION_WORDS;
        words.next_multiple_of(page_bytes / 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_step_by_an_eighth_and_partitions_grow_at_different_times() {
        let geometry = IndexGeometry { partition_bits: 6, fingerprint_bits: 6, payload_bits: 10 };
        let mut grown = 0;
        for partition in 0..geometry.partitions() {
            for entries in [1, 63, 64, 65, 300, 10_000, 123_456, 1_000_000] {
                let room = geometry.room_for(partition, entries);
                assert!(room >= entries && (entries < 100 || room <= entries * 9 / 8 + 2), "{entries}: {room}");
                assert_eq!(geometry.room_for(partition, room - 1), room, "a size is on its own grid");
            }
            grown += usize::from(geometry.room_for(partition, 100_000) < geometry.room_for(partition, 102_000));
        }
        // 2 % more entries take a sixth of a step.
        assert!((5..18).contains(&grown), "{grown} of 64 partitions grew");
    }

    #[test]
    fn room_for_entries_is_room_for_them() {
        for fingerprint_bits in [0, 4, 6, 12] {
            for payload_bits in [1, 10, 32] {
                let geometry = IndexGeometry { partition_bits: 8, fingerprint_bits, payload_bits };
                for entries in [0, 1, 300, 320, 1000, 50_000, 10_000_000] {
                    assert!(geometry.capacity(geometry.buckets_for(entries)) + 1 >= entries, "{geometry:?} {entries}");
                }
                assert!(geometry.bucket_words().is_multiple_of(8));
            }
        }
    }
}
