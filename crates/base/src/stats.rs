//! The figures of a store at one moment. Plain data.

use tapetum_drive::{Purpose, PurposeAccount};

/// Counters run from when the store was opened; the rest are levels now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items: an upper bound, which is exact when nothing was written for some seconds. In ordered keyspaces all records count, including expired
    /// ones. `Store::keyspace_items` has them by keyspace.
    pub items: u64,
    /// Keys that the index holds.
    pub index_entries: u64,
    /// Keys in the write buffers. The index has some of them too: those are being overwritten or deleted.
    pub buffer_entries: u64,
    /// DRAM of the index, all tables together.
    pub index_bytes: u64,
    /// The part of `index_bytes` that comes with segments: fences, validity maps, descriptions.
    pub index_segment_bytes: u64,
    /// Bits with which an entry names its segment.
    pub index_pointer_bits: u64,
    /// The limit of the index's size.
    pub index_limit_bytes: u64,
    /// New keys that the index can take within that limit.
    pub index_room_entries: u64,
    /// Overflow buckets of the index, chained to those that are full.
    pub index_extensions: u64,
    /// Index partitions that were rebuilt, larger or smaller.
    pub partitions_rebuilt: u64,
    /// Index partitions under rebuilding.
    pub partitions_rebuilding: u64,
    pub memory_limit_bytes: u64,
    pub memory_used_bytes: u64,
    /// The part of `memory_used_bytes` that is key tables, kept where there is room so that flushes need not read them.
    pub key_tables_bytes: u64,
    pub flash_limit_bytes: u64,
    pub flash_used_bytes: u64,
    /// Flash that items never take: superblocks, manifest, log zones, and the working room of flush and collector.
    pub flash_reserve_bytes: u64,
    /// Flash that new keys may still take, including garbage that can be collected.
    pub flash_room_bytes: u64,
    /// Keys and values that callers wrote.
    pub user_write_bytes: u64,
    /// Everything written to flash: log, segments, manifest.
    pub flash_write_bytes: u64,
    /// The commit log's part of `flash_write_bytes`.
    pub log_write_bytes: u64,
    /// The DRAM tier's part of `memory_used_bytes`.
    pub tier_bytes: u64,
    /// Gets answered from the DRAM tier.
    pub get_from_tier: u64,
    /// Items evicted from the DRAM tier.
    pub tier_evictions: u64,
    /// Data nodes of ordered keyspaces.
    pub nodes: u64,
    /// Walks over ordered keyspaces to merge their sparse nodes: those wanted, and the one in progress.
    pub node_sweeps: u64,
    /// Cached nodes of ordered keyspaces, a part of the pools allocated when the store was opened; 0 while there is no such keyspace.
    pub node_cache_bytes: u64,
    /// The part of `node_cache_bytes` in dirty nodes.
    pub node_cache_dirty_bytes: u64,
    /// Accesses to nodes that were cached, and to nodes that were not.
    pub node_cache_hits: u64,
    pub node_cache_misses: u64,
    /// Gets answered from flash rather than from a write buffer.
    pub get_from_flash: u64,
    /// Gets of items that had expired and whose records still existed.
    pub get_expired: u64,
    /// Gets of items that were deleted with everything else and whose records still existed.
    pub get_flushed: u64,
    /// Items, expired or deleted with everything else, whose room was freed.
    pub reclaimed: u64,
    /// Read commands of the gets from flash.
    pub get_flash_reads: u64,
    /// The longest of those reads in bytes.
    pub get_flash_read_max_bytes: u64,
    pub flash_to_local_bytes: u64,
    pub local_to_host_bytes: u64,
    /// Processor time of the process that has the drive, for all of its stores; 0 if that is this process.
    pub drive_process_cpu_us: u64,
    pub drive_process_resident_bytes: u64,
    /// How often a thread of this process woke one of the drive's, which slept.
    pub drive_wakes: u64,
    /// How often one of the drive's woke one of this process.
    pub host_wakes: u64,
    /// Of a set of members with redundancy: those that it goes on without; reads, and writes or flushes, that failed on a member; reads that
    /// others answered in place of one.
    pub members_lost: u64,
    pub member_reads_failed: u64,
    pub member_writes_failed: u64,
    pub member_reads_rebuilt: u64,
    /// Bytes that crossed between flash, the drive's local memory and the host, in the order of [`Purpose::ALL`].
    pub drive_bytes: [PurposeAccount; Purpose::COUNT],
    /// Read commands that looked into key tables before a flush.
    pub key_check_reads: u64,
    /// Values in extents of their own, including those that the next flush will free.
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
    /// Items evicted to make room.
    pub evictions: u64,
    /// Segments evicted to make room.
    pub segments_evicted: u64,
    /// Segments that the collector could not read and that still exist.
    pub segments_unreadable: u64,
    /// Writes that waited for flush or collector before they began.
    pub writes_paced: u64,
    /// Read commands of every kind.
    pub flash_read_commands: u64,
    /// Sealed write buffers that wait for their flush.
    pub buffers_sealed: u64,
    /// Freezes that have not ended.
    pub freezes: u64,
    /// Flash that freezes keep from writers. What two of them keep counts twice.
    pub freeze_flash_bytes: u64,
    /// Memory that freezes hold.
    pub freeze_memory_bytes: u64,
    /// The age of the oldest freeze.
    pub freeze_age_us: u64,
    /// The longest time that writers of ordered keyspaces waited for a freeze.
    pub freeze_pause_us: u64,
}

/// One figure of [`Stats`], under the name that `tapetum stats` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFigure {
    pub name: &'static str,
    /// The figure only grows, from the opening of the store on. Otherwise it is a present level.
    pub is_counter: bool,
    /// One sentence, without its full stop.
    pub help: &'static str,
    pub value: u64,
}

const CURR_ITEMS_HELP: &str = "Items: at most so many, and just so many when nothing was written for some seconds";

/// Declares the figures once: one line for each field of [`Stats`], with whether it is a counter.
macro_rules! store_figures {
    ($($name:ident: $is_counter:literal, $help:literal,)*) => {
        impl Stats {
            pub fn figures(&self) -> Vec<StoreFigure> {
                let figure = |name, is_counter, help, value| StoreFigure { name, is_counter, help, value };
                vec![
                    figure("curr_items", false, CURR_ITEMS_HELP, self.items),
                    $(figure(stringify!($name), $is_counter, $help, self.$name),)*
                ]
            }
        }
    };
}

store_figures!(
    index_entries: false, "Keys that the index holds",
    buffer_entries: false, "Keys that the write buffers hold, until they are flushed",
    index_bytes: false, "Memory of the index",
    index_segment_bytes: false, "The part of index_bytes that comes with segments: fences and validity maps",
    index_pointer_bits: false, "The part of an entry of the index that names its segment",
    index_limit_bytes: false, "Memory that the index may grow to",
    index_room_entries: false, "New keys that the index can still take",
    index_extensions: false, "Overflow buckets of the index",
    partitions_rebuilt: true, "Index partitions that were built anew, larger or smaller",
    partitions_rebuilding: false, "Index partitions that are being built",
    memory_limit_bytes: false, "Memory that the store may use",
    memory_used_bytes: false, "Memory that the store uses",
    key_tables_bytes: false, "The part of memory_used_bytes that is key tables, kept where there is room",
    flash_limit_bytes: false, "Flash that the store may use",
    flash_used_bytes: false, "Flash that is taken, also by what is dead until the collector comes by",
    flash_reserve_bytes: false, "Flash that never holds items: superblocks, manifest, log, what flush and collector work in",
    flash_room_bytes: false, "Flash that new keys may still take",
    user_write_bytes: true, "Bytes of keys and values that clients wrote",
    flash_write_bytes: true, "Bytes written to flash: log, segments, manifest",
    log_write_bytes: true, "Bytes written to the log, a part of flash_write_bytes",
    tier_bytes: false, "The part of memory_used_bytes that is the DRAM tier",
    get_from_tier: true, "Gets answered from the DRAM tier",
    tier_evictions: true, "Items that left the DRAM tier for others",
    nodes: false, "Data nodes of ordered keyspaces, 4 KiB each",
    node_sweeps: false, "Walks over ordered keyspaces to merge their sparse nodes: those wanted, and the one in progress",
    node_cache_bytes: false, "Cached nodes of ordered keyspaces",
    node_cache_dirty_bytes: false, "Of node_cache_bytes, nodes that are not on flash as they are",
    node_cache_hits: true, "Looks at nodes of ordered keyspaces that were cached",
    node_cache_misses: true, "Looks at nodes of ordered keyspaces that had to be read",
    get_from_flash: true, "Gets answered from flash rather than from a write buffer",
    get_expired: true, "Gets of items that had expired and were not yet reclaimed",
    get_flushed: true, "Gets of items that flush_all had deleted and that were not yet reclaimed",
    reclaimed: true, "Items that had expired, or were deleted by flush_all, whose room was taken back",
    get_flash_reads: true, "Read commands of those gets",
    get_flash_read_max_bytes: false, "The longest of those reads",
    flash_to_local_bytes: true, "Bytes read from flash into the drive's local memory",
    local_to_host_bytes: true, "Bytes copied from the drive's local memory to the host",
    drive_process_cpu_us: true, "Processor time of the process that has the drive, for all of its stores; 0 if that is the server",
    drive_process_resident_bytes: false, "Memory of that process that is in DRAM",
    drive_wakes: true, "Times that a thread of the server woke one of the drive's, which slept; 0 without such threads or process",
    host_wakes: true, "Times that one of the drive's woke one of the server, which slept",
    members_lost: false, "Drives of a set with redundancy that it goes on without",
    member_reads_failed: true, "Reads that failed on a drive of such a set",
    member_writes_failed: true, "Writes and flushes that failed on a drive of such a set",
    member_reads_rebuilt: true, "Reads that other drives of the set answered in place of one",
    key_check_reads: true, "Read commands that looked into key tables before a flush",
    flash_read_commands: true, "Read commands of every kind",
    large_values: false, "Values that lie in extents of their own, those included that a flush will free",
    large_bytes: false, "Bytes of those extents",
    large_reads: true, "Values read from such extents",
    large_write_bytes: true, "Bytes of values written to such extents, a part of flash_write_bytes",
    flushes: true, "Write buffers that became segments",
    buffers_sealed: false, "Write buffers that wait for their flush",
    freezes: false, "Freezes that have not ended",
    freeze_flash_bytes: false, "Flash that freezes keep from writers; what two of them keep counts twice",
    freeze_memory_bytes: false, "Memory that freezes hold",
    freeze_age_us: false, "The age of the oldest freeze",
    freeze_pause_us: false, "The longest time that writers of ordered keyspaces waited for a freeze",
    collections: true, "Runs of the collector",
    evictions: true, "Items dropped to make room for new ones",
    segments_evicted: true, "Segments that those items were in",
    segments_unreadable: false, "Segments that the collector could not read and that are there still",
    writes_paced: true, "Writes that waited for flush or collector before they began",
);
