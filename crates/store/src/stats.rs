//! The figures of a store at one moment. Plain data.

use tapetum_drive::{Purpose, PurposeBytes};

/// Counters run from when the store was opened; the rest are levels now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items: an upper bound, which is the number itself when nothing was written for some seconds. Of ordered keyspaces all count whose
    /// records are there, those included that have expired. [`Store::keyspace_items`](crate::Store::keyspace_items) has them by keyspace.
    pub items: u64,
    /// Keys that the index holds.
    pub index_entries: u64,
    /// Keys that the write buffers hold. The index has some of them too: they are being written over, or deleted.
    pub buffer_entries: u64,
    /// DRAM of the index, all of its tables together.
    pub index_bytes: u64,
    /// The part of it that comes with segments: fences, validity maps, descriptions.
    pub index_segment_bytes: u64,
    /// Bits with which an entry names its segment.
    pub index_pointer_bits: u64,
    /// What the index may grow to.
    pub index_limit_bytes: u64,
    /// New keys that the index can still take within that.
    pub index_room_entries: u64,
    /// Overflow buckets of the index, chained to those that are full.
    pub index_extensions: u64,
    /// Index partitions that were built anew, larger or smaller.
    pub partitions_rebuilt: u64,
    /// Those that are being built.
    pub partitions_rebuilding: u64,
    pub memory_limit_bytes: u64,
    pub memory_used_bytes: u64,
    /// The part of it that is key tables, kept where there is room so that flushes need not read them.
    pub key_tables_bytes: u64,
    pub flash_limit_bytes: u64,
    pub flash_used_bytes: u64,
    /// What items never take: superblocks, manifest, log zones, and what flush and collector work in.
    pub flash_reserve_bytes: u64,
    /// What new keys may still take, garbage included that can be collected.
    pub flash_room_bytes: u64,
    /// Keys and values that callers wrote.
    pub user_write_bytes: u64,
    /// Everything written to flash: log, segments, manifest.
    pub flash_write_bytes: u64,
    /// The commit log's part of `flash_write_bytes`.
    pub log_write_bytes: u64,
    /// The DRAM tier's part of `memory_used_bytes`.
    pub tier_bytes: u64,
    /// Gets answered from it.
    pub get_from_tier: u64,
    /// Items that left it for others.
    pub tier_evictions: u64,
    /// Cached nodes of ordered keyspaces, a part of what was allocated when the store was opened; 0 while there is no such keyspace.
    pub node_cache_bytes: u64,
    /// Of these, nodes that were changed and are not on flash as they are.
    pub node_cache_dirty_bytes: u64,
    /// Looks at nodes that were cached, and at nodes that were not.
    pub node_cache_hits: u64,
    pub node_cache_misses: u64,
    /// Gets answered from flash rather than from a write buffer.
    pub get_from_flash: u64,
    /// Gets of items that had expired and whose records were there still.
    pub get_expired: u64,
    /// Gets of items that were deleted with everything else and whose records were there still.
    pub get_flushed: u64,
    /// Items that had expired, or were deleted with everything else, whose room was taken back.
    pub reclaimed: u64,
    /// Read commands that those gets issued.
    pub get_flash_reads: u64,
    /// The longest of them in bytes.
    pub get_flash_read_max_bytes: u64,
    pub flash_to_local_bytes: u64,
    pub local_to_host_bytes: u64,
    /// Bytes that crossed between flash, the drive's local memory and the host, in the order of [`Purpose::ALL`].
    pub drive_bytes: [PurposeBytes; Purpose::COUNT],
    /// Read commands that looked into key tables before a flush.
    pub key_check_reads: u64,
    /// Values in extents of their own, those included that wait for a flush to be free.
    pub large_values: u64,
    /// Bytes of those extents.
    pub large_bytes: u64,
    /// Values read from such extents.
    pub large_reads: u64,
    /// Bytes written to them.
    pub large_write_bytes: u64,
    /// Write buffers that became segments.
    pub flushes: u64,
    /// Runs of the collector.
    pub collections: u64,
    /// Items dropped to make room.
    pub evictions: u64,
    /// The segments that they were in.
    pub segments_evicted: u64,
    /// Segments that the collector could not read and that are there still.
    pub segments_unreadable: u64,
    /// Writes that waited for flush or collector before they began.
    pub writes_paced: u64,
    /// Read commands of every kind.
    pub flash_read_commands: u64,
    /// Write buffers that wait for their flush.
    pub buffers_sealed: u64,
}
