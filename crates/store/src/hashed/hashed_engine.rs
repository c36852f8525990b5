//! The hashed engine: the state that its sessions and its maintenance jobs share.
//!
//! Lock order: shards (ascending) → log → extents; a part of the tier, or the access clock's moments, after a shard.
//! The holder of the [`Installer`] is also the only one that changes the index. Sessions never need it.

use crate::hashed::block_map::BlockMaps;
use crate::hashed::buffer::write_buffers::WriteBuffers;
use crate::hashed::buffer::{Place, Shard};
use crate::hashed::catalog::Catalog;
use crate::hashed::index::GlobalIndex;
use crate::hashed::item_count::ItemCount;
use crate::hashed::large::LargeSpace;
use crate::hashed::manifest_room::ManifestRoom;
use crate::hashed::segment::segment_table::SegmentTable;
use crate::hashed::segment::view::Segment;
use crate::hashed::snapshot::SnapshotDesk;
use crate::hashed::tier::Tier;
use crate::hashed::tier::access::AccessClock;
use crate::hashed::write_count::WriteCounts;
use std::collections::BTreeSet;
use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tapetum_base::base::pace::Room;
use tapetum_base::base::{Base, InstallerGuard};
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::extents::ExtentOwner;
use tapetum_base::media::io::{Io, lock, run};
use tapetum_base::needs::DrivePrograms;
use tapetum_base::request::item::Access;
use tapetum_drive::fail_point;
use tapetum_kernels::block_group::group_hash;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::Kind;

/// Counters of what callers did; monotonic.
#[derive(Default)]
pub struct Counters {
    pub user_write_bytes: AtomicU64,

    pub get_from_flash: AtomicU64,
    pub get_flash_reads: AtomicU64,
    pub get_flash_read_max_bytes: AtomicU64,
    pub key_check_reads: AtomicU64,
    /// Requests that found the record of an item that had expired, or (the next counter) was deleted with everything else.
    pub get_expired: AtomicU64,
    pub get_flushed: AtomicU64,
    /// Expired or deleted items whose room a flush or the collector reclaimed.
    pub reclaimed: AtomicU64,
    pub flushes: AtomicU64,
    pub collections: AtomicU64,
    pub evictions: AtomicU64,
    pub segments_evicted: AtomicU64,
    pub writes_paced: AtomicU64,
    pub partitions_rebuilt: AtomicU64,
    /// Values read from extents of their own.
    pub large_reads: AtomicU64,
    /// Bytes written to such extents.
    pub large_write_bytes: AtomicU64,
}

/// Levels that installs publish for threads that must not take the installer.
#[derive(Default)]
pub struct Levels {
    /// Extents that are free or would be if every dead record were collected.
    pub room_extents: AtomicU64,
    /// When they were last computed on their own, and not after an install.
    pub looked_at_us: AtomicU64,
    /// Segments; each may hide nearly an extent of dead records in its data and one in its key table.
    pub segments: AtomicU64,
    /// Host memory of validity maps, fences and segment descriptions.
    pub segment_index_bytes: AtomicU64,
    /// Index partitions that are being built.
    pub partitions_rebuilding: AtomicU64,
    /// The highest stamp in any segment that was, or was to be, dropped to make room.
    pub evicted_stamp_max: AtomicU64,
    /// Entries that the index can take within its budget.
    pub index_room_entries: AtomicU64,
}

/// The engine of all hashed keyspaces. What it stands on, the [`Base`], is reached through it.
pub struct HashedEngine {
    pub base: Arc<Base>,
    pub programs: DrivePrograms,
    pub buffers: WriteBuffers,
    pub block_maps: BlockMaps,
    pub index: GlobalIndex,
    pub segments: SegmentTable,
    pub snapshot_desk: SnapshotDesk,
    pub tier: Option<Tier>,
    pub access_clock: AccessClock,
    pub item_count: ItemCount,
    pub write_counts: WriteCounts,
    pub large: LargeSpace,
    /// Dropped keyspaces of which no record is left and none can arrive any more.
    pub purged: Mutex<BTreeSet<KeyspaceId>>,
    pub counters: Counters,
    pub levels: Levels,
    pub manifest_room: ManifestRoom,
}

impl Deref for HashedEngine {
    type Target = Base;

    fn deref(&self) -> &Base {
        &self.base
    }
}

impl HashedEngine {
    /// The hash key under which flash has the key of this hash key: its group's, where there are groups.
    #[inline]
    pub fn flash_hash(keyspace: KeyspaceRef, hash: HashKey) -> HashKey {
        if keyspace.is_grouped() { group_hash(hash) } else { hash }
    }

    pub fn hash(&self, keyspace: KeyspaceId, key: &[u8]) -> HashKey {
        self.hasher.hash(keyspace, key)
    }

    /// Whether a write buffer seems to have a key.
    pub fn is_in_buffers(&self, hash: HashKey) -> bool {
        self.buffers.glance(hash).is_some()
    }

    /// Prefetches the record that a write buffer has of a key; whether one seems to have any.
    pub fn prefetch_record(&self, hash: HashKey) -> bool {
        let found = self.buffers.glance(hash);
        found.inspect(|Place { buffer, place }| self.log.prefetch_record(*buffer, *place)).is_some()
    }

    /// Makes a record of the log visible to readers, and removes its key from the DRAM tier. If the item was there, or was asked for since, it
    /// returns to the tier when it is on flash. The caller holds the key's shard, which is `shard`.
    pub fn insert(&self, shard: &mut Shard, hash: HashKey, place: u32) {
        if self.tier.is_none() {
            return shard.insert(hash, place);
        }
        shard.insert_wanted(hash, place, || self.forget_in_tier(hash));
    }

    /// Removes a key that is about to change from the DRAM tier; whether it was there. The caller holds its shard.
    pub fn forget_in_tier(&self, hash: HashKey) -> bool {
        let tier = self.tier.as_ref().filter(|_| !fail_point!(TierOutlivesWrite));
        tier.is_some_and(|tier| tier.remove(hash))
    }

    /// The known use of a key's item with this stamp. `shard` is the key's.
    pub fn access(&self, shard: &Shard, hash: HashKey, stamp: u64) -> Access {
        if let Some((_, was_read)) = shard.look(hash) {
            return self.access_by_stamp(was_read, stamp);
        }
        let tier_knows = self.tier.as_ref().and_then(|tier| tier.access(hash, self.access_clock.seconds()));
        tier_knows.unwrap_or_else(|| self.access_by_stamp(false, stamp))
    }

    /// The known use of an item that the DRAM tier does not hold.
    pub fn access_by_stamp(&self, was_read: bool, stamp: u64) -> Access {
        Access { was_read, idle_seconds: self.access_clock.written_seconds_ago(stamp) }
    }

    /// An error if a keyspace was dropped, is of another kind, or keeps its items in groups.
    pub fn refuse_unservable(&self, keyspace: KeyspaceRef) -> Result<(), Error> {
        self.refuse_dropped(keyspace)?;
        match keyspace.kind() {
            KeyspaceKind::Hashed if keyspace.is_grouped() => Err(Error::Keyspace(KeyspaceError::IsGrouped)),
            KeyspaceKind::Hashed => Ok(()),
            KeyspaceKind::Ordered => Err(Error::Keyspace(KeyspaceError::Ordered)),
            kind => Err(Error::Keyspace(KeyspaceError::OtherKind { kind })),
        }
    }

    /// Waits for the installer and takes it.
    pub fn take_installer(self: &Arc<Self>) -> impl Future<Output = InstallerGuard> + Send + use<> {
        self.base.take_installer()
    }

    /// Runs a task that takes the installer, on the caller's thread. A store that has failed may never give it back.
    pub fn run_beside_maintenance<T>(&self, io: &Io, task: impl Future<Output = T>) -> Result<T, Error> {
        let gone = || {
            // Nothing signals that the installer is free: the thread yields until it is.
            std::thread::yield_now();
            self.log.poisoned().is_err() && lock(&self.installer).is_none() && io.in_flight() == 0
        };
        let stopped = || Error::Io("the drive stopped answering".into());
        run(io, task, gone).ok_or_else(|| self.log.poisoned().err().unwrap_or_else(stopped))
    }

    /// An error if a task that takes the installer goes no further: the store has failed, and nobody gives the installer back.
    pub fn refuse_stopped(&self, io: &Io) -> Result<(), Error> {
        let is_gone = lock(&self.installer).is_none() && io.in_flight() == 0;
        self.log.poisoned().or_else(|error| if is_gone { Err(error) } else { Ok(()) })
    }

    /// Publishes the levels.
    pub fn note_levels(&self, installer: &Installer) {
        let catalog = installer.of::<Catalog>();
        self.levels.segments.store(catalog.segments.len() as u64, Ordering::Relaxed);
        let reclaimable = self.reclaimable_extents_of(catalog);
        let retired = self.segments.extents_going();
        {
            // Under the allocator's lock, as in `take_large`: each extent is counted in exactly one of the two figures.
            let extents = lock(&self.extents);
            let room = u64::from(extents.free_beside(ExtentOwner::Recovery)) + retired + reclaimable;
            self.levels.room_extents.store(room, Ordering::Relaxed);
        }
        self.manifest_room.refresh(&self.geometry, installer, self.kept_of(catalog));
        let local: usize = catalog
            .segments
            .values()
            .map(|state| {
                let fences = self.segments.index_bytes(state.descriptor.number);
                let large = state.descriptor.large.len() * LARGE_ENTRY_BYTES;
                state.valid.bytes()
                    + fences
                    + large
                    + size_of::<Segment>()
                    + state.descriptor.extent_count() as usize * 8
            })
            .sum();
        self.levels.segment_index_bytes.store(local as u64, Ordering::Relaxed);
        let others = self.engines.others_index_bytes(KeyspaceKind::Hashed) as usize;
        let index_bytes_max = self.index_bytes_max() as usize;
        let index_room = self.index.room_within(index_bytes_max.saturating_sub(local + others));
        self.levels.index_room_entries.store(index_room as u64, Ordering::Relaxed);
    }

    /// The candidate for a hash key: the segment in which its record is, if it has one on flash.
    pub fn candidate(&self, hash: HashKey) -> Option<Arc<Segment>> {
        loop {
            let sequence = self.segments.sequence();
            let number = self.index.lookup(hash)?;
            if let Some(segment) = self.segments.hold(number, sequence) {
                return Some(segment);
            }
            std::hint::spin_loop();
        }
    }

    /// Counts a request that found a value which is not live.
    pub fn note_lapsed(&self, keyspace: KeyspaceId, stamp: u64) {
        let flushed = stamp <= self.keyspaces.watermark(keyspace);
        let counter = if flushed { &self.counters.get_flushed } else { &self.counters.get_expired };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub fn numbers_left(&self) -> usize {
        self.segments.names.left(self.levels.segments.load(Ordering::Relaxed) as usize)
    }

    pub fn index_bytes_max(&self) -> u64 {
        self.budget().index_bytes_max()
    }

    /// Most memory that key tables may take at present.
    pub fn key_tables_bytes_max(&self) -> u64 {
        let bytes_max = self.budget().key_tables_bytes_max(self.pools_bytes, self.index_bytes());
        bytes_max.min(self.options.key_tables_bytes_max)
    }

    /// Whether every buffer below this one is in a segment, and the levels say so.
    pub fn is_installed_below(&self, buffer: u64) -> bool {
        self.buffers.oldest() >= buffer && lock(&self.installer).is_some()
    }

    /// Whether a key is probably there already, on flash under `on_flash`. The caller holds its shard, which is `shard`.
    pub fn has_probably(&self, shard: &Shard, hash: HashKey, on_flash: HashKey) -> bool {
        shard.get(hash).is_some() || self.index.lookup(on_flash).is_some()
    }

    /// As [`HashedEngine::has_probably`], but a deletion or a dead item in a write buffer counts as absent. The caller holds the shard.
    pub fn has_live_probably(&self, shard: &Shard, hash: HashKey, on_flash: HashKey) -> bool {
        let Some(place) = shard.get(hash) else { return self.index.lookup(on_flash).is_some() };
        // SAFETY: the shard has the record as long as the caller holds it.
        let header = unsafe { self.log.record(place.buffer, place.place) }.header;
        header.kind == Kind::Value && self.is_live(&header, self.now_ms())
    }

    pub fn index_bytes(&self) -> u64 {
        self.index.bytes() as u64 + self.levels.segment_index_bytes.load(Ordering::Relaxed)
    }

    /// Paces writers by the progress of flush and collector.
    pub fn set_pace(&self, is_collecting: bool) {
        let segment = u64::from(self.segment_extents());
        let free = u64::from(lock(&self.extents).free_beside(ExtentOwner::Recovery));
        let gained = self.pace.gained_extents();
        let free_bytes = (free + gained).saturating_sub(2 * segment) * self.geometry.segment_bytes / segment;
        let room = Room {
            buffer_bytes: self.geometry.segment_bytes,
            is_sealed: self.buffers.sealed().is_some(),
            free_bytes: is_collecting.then_some(free_bytes),
        };
        if self.pace.set(&room) {
            self.log.wake();
        }
    }
}

/// Host memory that a large value of a segment takes, about.
const LARGE_ENTRY_BYTES: usize = 256;
