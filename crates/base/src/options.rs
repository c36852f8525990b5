//! The options with which a store is made and opened.

use crate::error::Error;
use crate::log::Sync;
use crate::media::geometry::PARTITION_BITS_MAX;
use crate::memory::budget::MemoryBudget;
use tapetum_drive::Size;
use tapetum_kernels::record::VALUE_BYTES_MAX;

/// The fate of a write when there is no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Full {
    /// New keys are refused; overwrites while space lasts; reads and deletes always.
    #[default]
    Error,
    /// The coldest segment is evicted. Nothing of ordered keyspaces is evicted: their writes are refused when flash is full.
    Evict,
}

/// The part of the memory for copies in DRAM of items that are asked for often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierSize {
    Bytes(u64),
    Half,
}

impl TierSize {
    /// The tier's size in a budget of `memory_bytes`.
    pub fn bytes_of(self, memory_bytes: u64) -> u64 {
        match self {
            TierSize::Bytes(bytes) => bytes,
            TierSize::Half => memory_bytes / 2,
        }
    }
}

/// How the memory of the DRAM tier is cut: into slabs, and these into slots of one size each.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Slabs {
    /// Bytes of a slot ÷ those of the class before, 1.1 to 16.
    pub factor: f64,
    /// Bytes of a slab, whole 4 KiB: what is larger, with 40 bytes on top, stays out of the tier. `None` is a 64th of what one
    /// lock guards, at most the paper's 10 MB.
    pub slab_bytes: Option<u64>,
}

impl Default for Slabs {
    fn default() -> Slabs {
        Slabs { factor: 1.25, slab_bytes: None }
    }
}

impl Slabs {
    const FACTOR_LEAST: f64 = 1.1;
    const FACTOR_MOST: f64 = 16.0;
    const SLAB_BYTES_LEAST: u64 = 4 << 10;
    const SLAB_BYTES_MOST: u64 = 1 << 30;
    /// Fewer could not be shared between sizes.
    const SLABS_LEAST: u64 = 8;

    /// An error if a tier of `tier_bytes` cannot be cut so.
    pub fn check(&self, tier_bytes: u64) -> Result<(), Error> {
        if !(Slabs::FACTOR_LEAST..=Slabs::FACTOR_MOST).contains(&self.factor) {
            let (least, most) = (Slabs::FACTOR_LEAST, Slabs::FACTOR_MOST);
            return Err(Error::Options(format!(
                "slots of the tier cannot grow by {}: give a factor of {least} to {most}",
                self.factor
            )));
        }
        let Some(slab) = self.slab_bytes else { return Ok(()) };
        let (least, most) = (Slabs::SLAB_BYTES_LEAST, Slabs::SLAB_BYTES_MOST);
        if !(least..=most).contains(&slab) || !slab.is_multiple_of(least) {
            return Err(Error::Options(format!("a slab cannot have {slab} bytes: give whole 4 KiB, at most 1 GiB")));
        }
        if tier_bytes > 0 && tier_bytes / Slabs::SLABS_LEAST < slab {
            let enough = slab * Slabs::SLABS_LEAST;
            return Err(Error::Options(format!(
                "a tier of {} is too small for slabs of {}: give it {} or more, or smaller slabs",
                Size(tier_bytes),
                Size(slab),
                Size::at_least(enough)
            )));
        }
        Ok(())
    }
}

/// The budgets and the behaviour of a store. [`StoreOptions::new`] chooses all options but capacity and memory.
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
    /// How that part is cut.
    pub slabs: Slabs,
    /// The most that key tables may take in memory, of what pools and index leave of the budget.
    pub key_tables_bytes_max: u64,
    /// The most that cached pages of ordered keyspaces take of local memory.
    pub node_cache_bytes_max: u64,
    /// The largest value to take, in bytes, where memory and capacity allow as much.
    pub value_bytes_max: usize,
    /// Nodes of ordered keyspaces are written in place, as they are where the drive promises atomic writes of 4 KiB, though it promises none.
    /// A power failure may lose nodes then.
    pub assume_atomic_writes: bool,
    /// The part of the budget for cached nodes of ordered keyspaces; 0 for a quarter of the drive's local memory.
    pub node_cache_bytes: u64,
    /// A new store takes more of its drive by itself. A store that was made so may do so.
    pub grows: bool,
    /// Key tables of a new store have the slots of keys in a cluster: see [`tapetum_kernels::cluster_slot`].
    pub cluster_slots: bool,
    pub sync: Sync,
    pub full: Full,
}

impl StoreOptions {
    /// Options for a store of `capacity_bytes` within `memory_bytes`.
    pub fn new(capacity_bytes: u64, memory_bytes: u64) -> StoreOptions {
        let segment: u64 = (memory_bytes / 8).min(capacity_bytes / 128).clamp(64 << 10, 64 << 20);
        let segment_bytes = 1 << segment.ilog2();
        StoreOptions {
            memory_bytes,
            segment_bytes,
            partition_bits: partition_bits(segment_bytes),
            fingerprint_bits: 5,
            tier_bytes: 0,
            slabs: Slabs::default(),
            key_tables_bytes_max: memory_bytes / 4,
            node_cache_bytes_max: u64::MAX,
            value_bytes_max: VALUE_BYTES_MAX,
            assume_atomic_writes: false,
            node_cache_bytes: 0,
            grows: false,
            cluster_slots: false,
            sync: Sync::default(),
            full: Full::default(),
        }
    }

    /// The same options with write buffers of `segment_bytes`, a power of two from 64 KiB to 2 GiB. A record that is overwritten while it is in a
    /// write buffer costs flash only its log record, so large buffers suit few keys that are written often.
    pub fn with_write_buffers_of(self, segment_bytes: u64) -> StoreOptions {
        StoreOptions { segment_bytes, partition_bits: partition_bits(segment_bytes), ..self }
    }

    /// The same options with a DRAM tier of `tier_bytes` on top of the budget.
    pub fn with_tier(self, tier_bytes: u64) -> StoreOptions {
        StoreOptions { memory_bytes: self.memory_bytes + tier_bytes, tier_bytes, ..self }
    }

    /// The same options with `node_cache_bytes` on top of the budget, for cached nodes of ordered keyspaces.
    pub fn with_node_cache(self, node_cache_bytes: u64) -> StoreOptions {
        StoreOptions { memory_bytes: self.memory_bytes + node_cache_bytes, node_cache_bytes, ..self }
    }

    /// The budget, in shares.
    pub fn budget(&self) -> MemoryBudget {
        let StoreOptions { memory_bytes, tier_bytes, node_cache_bytes, .. } = *self;
        MemoryBudget { memory_bytes, tier_bytes, node_cache_bytes }
    }

    /// The local memory that a drive needs for this store, for reads, flushes and collections. Write buffers are in host memory.
    pub fn local_memory_bytes(&self) -> u64 {
        self.budget().local_bytes()
    }

    /// The limit of the index's size.
    pub fn index_bytes_max(&self) -> u64 {
        self.budget().index_bytes_max()
    }

    /// An error if a store with segments of `segment_bytes` does not fit into the budget.
    pub fn check(&self, segment_bytes: u64) -> Result<(), Error> {
        let (memory_bytes, least_bytes) = (self.memory_bytes, self.budget().least_bytes(segment_bytes));
        match memory_bytes >= least_bytes {
            true => Ok(()),
            false => {
                let needed_for = self.pools_in_words(segment_bytes);
                Err(Error::TooLittleMemory { memory_bytes, least_bytes, needed_for })
            }
        }
    }

    /// Describes, for an error, the pools that the budget must hold with segments of `segment_bytes`.
    pub fn pools_in_words(&self, segment_bytes: u64) -> String {
        let beside = [("a DRAM tier", self.tier_bytes), ("a cache of nodes", self.node_cache_bytes)];
        let beside = beside.into_iter().filter(|(_, bytes)| *bytes > 0);
        let beside: String = beside.map(|(what, bytes)| format!("{what} of {}, and ", Size(bytes))).collect();
        format!("{beside}write buffers of {}", Size(segment_bytes))
    }
}

/// The number of partition bits for a size of segments. Large stores have more partitions, so that each is rebuilt in tens of milliseconds.
fn partition_bits(segment_bytes: u64) -> u32 {
    let bytes_log2 = segment_bytes.max(1).ilog2();
    bytes_log2.saturating_sub(13).min(6).max(bytes_log2.saturating_sub(18)).min(PARTITION_BITS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_is_too_small_is_refused_with_what_it_is_to_hold() {
        let refused = |options: StoreOptions| options.check(1 << 20).unwrap_err().to_string();
        let plain = StoreOptions::new(1 << 30, 1 << 20);
        assert!(refused(plain).contains("too few for write buffers of 1MiB"));
        let all = StoreOptions { tier_bytes: 1 << 30, node_cache_bytes: 32 << 20, ..plain };
        let error = refused(all);
        assert!(error.contains("a DRAM tier of 1GiB, and a cache of nodes of 32MiB, and write buffers"), "{error}");
    }

    #[test]
    fn slabs_that_cannot_be_are_refused_with_what_can() {
        let check = |factor, slab_bytes, tier_bytes| match (Slabs { factor, slab_bytes }).check(tier_bytes) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        assert_eq!(check(1.25, None, 0), "");
        assert_eq!(check(16.0, Some(1 << 20), 8 << 20), "");
        assert!(check(1.0, None, 1 << 30).contains("a factor of 1.1 to 16"));
        assert!(check(f64::NAN, None, 1 << 30).contains("a factor of 1.1 to 16"));
        assert!(check(2.0, Some(5000), 1 << 30).contains("whole 4 KiB"));
        assert!(check(2.0, Some(1 << 20), 7 << 20).contains("give it 8MiB or more"));
    }
}
