//! The memory budget of a store, in named shares.
//!
//! ```text
//!  │ DRAM tier │ local memory: cached nodes, ¼ of the rest │ write buffers │ index: up to ¼ of the rest │ key tables: what is left │ lists: 1/16 │
//!  └─────────── pools: taken when the store is opened ───────┘
//! ```
//! 1. Pools keep their size until the store is opened again. The other shares are limits that follow a resize of the budget.
//! 2. Key tables take nothing that another share may still need.

/// Write buffers, and so log zones: one takes writes while the other is flushed.
pub const BUFFERS: u64 = 2;
/// The share of cached nodes is one such part of local memory, unless options set it.
const NODE_CACHE_PART: u64 = 4;
const LOCAL_BYTES_MIN: u64 = 4 << 20;
/// The least budget, without the tier.
const MEMORY_BYTES_MIN: u64 = 16 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryBudget {
    /// The whole budget.
    pub memory_bytes: u64,
    /// The DRAM tier's share.
    pub tier_bytes: u64,
    /// The share of cached nodes in local memory. 0: a quarter of the local memory that the other shares give.
    pub node_cache_bytes: u64,
}

impl MemoryBudget {
    /// The shares of tier and cached nodes. Options may ask for more than the budget: such options are refused, so the sum must not overflow.
    fn beside_bytes(&self) -> u64 {
        self.tier_bytes.saturating_add(self.node_cache_bytes)
    }

    /// The budget without the shares of tier and cached nodes.
    fn rest_bytes(&self) -> u64 {
        self.memory_bytes.saturating_sub(self.beside_bytes())
    }

    /// The drive's local memory: for reads, flushes, collections and cached nodes.
    pub fn local_bytes(&self) -> u64 {
        self.working_bytes().saturating_add(self.node_cache_bytes)
    }

    /// The drive's local memory without the share that options give to cached nodes.
    pub fn working_bytes(&self) -> u64 {
        (self.rest_bytes() / 4).max(LOCAL_BYTES_MIN)
    }

    /// Bytes of cached nodes, once there is an ordered keyspace.
    pub fn cached_nodes_bytes(&self) -> u64 {
        if self.node_cache_bytes > 0 { self.node_cache_bytes } else { self.working_bytes() / NODE_CACHE_PART }
    }

    /// The write buffers of a store with segments of `segment_bytes`, and their tables.
    pub fn write_buffers_bytes(segment_bytes: u64) -> u64 {
        BUFFERS * segment_bytes + segment_bytes / 2
    }

    pub fn index_bytes_max(&self) -> u64 {
        self.rest_bytes() / 4
    }

    /// Bytes of the temporary lists of flush, collector and sessions.
    pub fn lists_bytes(&self) -> u64 {
        self.memory_bytes / 16
    }

    /// The most bytes that recovery may take for a while, beside the pools and half of the indexes' share: lists and key tables do not exist yet,
    /// and indexes are being built.
    pub fn recovery_bytes_max(&self, pools_bytes: u64) -> u64 {
        self.memory_bytes.saturating_sub(pools_bytes + self.index_bytes_max() / 2)
    }

    /// The most bytes of key tables, beside the pools and the index.
    pub fn key_tables_bytes_max(&self, pools_bytes: u64, index_bytes: u64) -> u64 {
        self.memory_bytes.saturating_sub(pools_bytes + index_bytes + self.lists_bytes())
    }

    /// The least budget for a store with segments of `segment_bytes`, this tier and these cached nodes.
    ///
    /// Beside these two the budget must hold its pools, local memory and write buffers, one and a half times. Local memory is a quarter of
    /// what must hold them, so that is at least 1.5 ÷ (1 − 1.5 ÷ 4) = 2.4 times the write buffers.
    pub fn least_bytes(&self, segment_bytes: u64) -> u64 {
        let rest_bytes = (MemoryBudget::write_buffers_bytes(segment_bytes) * 12).div_ceil(5).max(MEMORY_BYTES_MIN);
        rest_bytes.saturating_add(self.beside_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_budget_that_is_large_enough_fit_into_it() {
        for (memory_bytes, tier_bytes, segment_bytes, node_cache_bytes) in [
            (16 << 20, 0, 64 << 10, 0),
            (64 << 20, 0, 4 << 20, 0),
            (1 << 30, 512 << 20, 32 << 20, 0),
            (1 << 30, 256 << 20, 32 << 20, 256 << 20),
        ] {
            let budget = MemoryBudget { memory_bytes, tier_bytes, node_cache_bytes };
            assert!(budget.cached_nodes_bytes() > 0 && budget.cached_nodes_bytes() < budget.local_bytes());
            assert!(budget.least_bytes(segment_bytes) <= memory_bytes);
            let pools = budget.tier_bytes + budget.local_bytes() + MemoryBudget::write_buffers_bytes(segment_bytes);
            let key_tables = budget.key_tables_bytes_max(pools, budget.index_bytes_max());
            assert!(key_tables > 0 && budget.recovery_bytes_max(pools) > budget.index_bytes_max() / 2);
            assert_eq!(pools + budget.index_bytes_max() + key_tables + budget.lists_bytes(), memory_bytes);
        }
    }

    #[test]
    fn the_least_budget_holds_its_pools_one_and_a_half_times_and_less_does_not() {
        for segment_bytes in (16..=30).map(|bits| 1u64 << bits) {
            let least = MemoryBudget { memory_bytes: 0, tier_bytes: 0, node_cache_bytes: 0 }.least_bytes(segment_bytes);
            let holds = |memory_bytes| {
                let budget = MemoryBudget { memory_bytes, tier_bytes: 0, node_cache_bytes: 0 };
                let pools = budget.working_bytes() + MemoryBudget::write_buffers_bytes(segment_bytes);
                memory_bytes >= MEMORY_BYTES_MIN && 2 * memory_bytes >= 3 * pools
            };
            assert!(holds(least) && !holds(least - 8), "{segment_bytes}");
        }
    }

    #[test]
    fn a_budget_beyond_all_memory_needs_the_most_that_there_is() {
        for (tier_bytes, node_cache_bytes) in [(u64::MAX - 5, 0), (0, u64::MAX), (u64::MAX, u64::MAX)] {
            let budget = MemoryBudget { memory_bytes: 1 << 30, tier_bytes, node_cache_bytes };
            assert_eq!((budget.least_bytes(1 << 20), budget.index_bytes_max()), (u64::MAX, 0));
            assert!(budget.local_bytes() >= LOCAL_BYTES_MIN);
        }
    }

    #[test]
    fn a_tier_leaves_the_other_shares_as_they_are() {
        let plain = MemoryBudget { memory_bytes: 64 << 20, tier_bytes: 0, node_cache_bytes: 0 };
        let tiered = MemoryBudget { memory_bytes: 96 << 20, tier_bytes: 32 << 20, node_cache_bytes: 0 };
        let cached = MemoryBudget { memory_bytes: 96 << 20, tier_bytes: 0, node_cache_bytes: 32 << 20 };
        assert_eq!(plain.local_bytes(), cached.working_bytes());
        assert_eq!(
            (plain.index_bytes_max(), plain.least_bytes(1 << 20) + (32 << 20)),
            (cached.index_bytes_max(), cached.least_bytes(1 << 20))
        );
        assert_eq!(plain.local_bytes(), tiered.local_bytes());
        assert_eq!(plain.index_bytes_max(), tiered.index_bytes_max());
        assert_eq!(plain.least_bytes(1 << 20) + (32 << 20), tiered.least_bytes(1 << 20));
    }
}
