//! What a store is made and opened with.

use crate::error::Error;
use crate::geometry::Geometry;
use crate::index::IndexGeometry;
use crate::log::Sync;
use crate::planted::Planted;

/// What happens to a write when there is no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Full {
    /// New keys are refused; overwrites while space lasts; reads and deletes always.
    #[default]
    Error,
    /// The coldest segment makes room.
    Evict,
}

#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// The budget for everything the store keeps in memory, in bytes.
    pub memory_bytes: u64,
    /// The size of a write buffer and the most of a segment, in bytes: a power of two. Only used at creation.
    pub segment_bytes: u64,
    /// The index has 2^this many partitions. Only used at creation.
    pub partition_bits: u32,
    pub fingerprint_bits: u32,
    /// The part of the budget for copies in DRAM of items that are asked for often; 0 for none.
    pub tier_bytes: u64,
    /// Sizes of the slots that they lie in: each class's ÷ the one's before.
    pub tier_factor: f64,
    /// The most that key tables may take in memory, of what pools and index leave of the budget.
    pub key_tables_bytes_max: u64,
    pub sync: Sync,
    pub full: Full,
    /// Test only.
    pub planted: Planted,
}

impl StoreOptions {
    /// Options for a store of `capacity_bytes` within `memory_bytes`.
    pub fn new(capacity_bytes: u64, memory_bytes: u64) -> StoreOptions {
        let segment: u64 = (memory_bytes / 8).min(capacity_bytes / 128).clamp(64 << 10, 64 << 20);
        StoreOptions {
            memory_bytes,
            segment_bytes: 1 << segment.ilog2(),
            // Large stores have more, so that one is rebuilt in tens of milliseconds.
            partition_bits: (segment.ilog2() - 13).min(6).max(segment.ilog2().saturating_sub(18)),
            fingerprint_bits: 5,
            tier_bytes: 0,
            tier_factor: 1.25,
            key_tables_bytes_max: memory_bytes / 4,
            sync: Sync::default(),
            full: Full::default(),
            planted: Planted::default(),
        }
    }

    /// With a DRAM tier of so many bytes more.
    pub fn with_tier(self, tier_bytes: u64) -> StoreOptions {
        StoreOptions { memory_bytes: self.memory_bytes + tier_bytes, tier_bytes, ..self }
    }

    /// The budget but for the DRAM tier.
    fn rest_bytes(&self) -> u64 {
        self.memory_bytes.saturating_sub(self.tier_bytes)
    }

    /// Local memory beside the write buffers: reads, flush and collection on their way.
    pub fn pool_bytes(&self) -> u64 {
        (self.rest_bytes() / 4).max(4 << 20)
    }

    /// The largest local memory a drive needs for this store.
    pub fn local_memory_bytes(&self, segment_bytes: u64) -> u64 {
        crate::geometry::BUFFERS * segment_bytes + self.pool_bytes()
    }

    /// The shape of the index of a store with these options.
    pub(crate) fn index_geometry(&self, geometry: &Geometry, capacity_bytes: u64) -> IndexGeometry {
        IndexGeometry {
            partition_bits: geometry.partition_bits,
            fingerprint_bits: self.fingerprint_bits,
            payload_bits: geometry.segment_bits(capacity_bytes),
        }
    }

    /// The shape of the index that a store of `capacity_bytes` is made with.
    pub fn index_geometry_at(&self, capacity_bytes: u64) -> Result<IndexGeometry, Error> {
        let geometry = Geometry::new(capacity_bytes, self.segment_bytes, self.partition_bits, 512)?;
        Ok(self.index_geometry(&geometry, capacity_bytes))
    }

    /// What the index may grow to.
    pub fn index_bytes_max(&self) -> u64 {
        self.rest_bytes() / 4
    }

    /// An error if a store with segments of `segment_bytes` does not fit into the budget.
    pub fn check(&self, segment_bytes: u64) -> Result<(), Error> {
        let pools = self.local_memory_bytes(segment_bytes) + segment_bytes / 2;
        let least = (pools + pools / 2).max(16 << 20) + self.tier_bytes;
        if self.memory_bytes < least {
            return Err(Error::Options(format!(
                "{} bytes of memory are too few for write buffers of {}: give --memory {} or more",
                self.memory_bytes, segment_bytes, least
            )));
        }
        Ok(())
    }
}
