//! What sessions and maintenance share of the hashed engine.
//!
//! Lock order: shards (ascending) → log → extents; a part of the tier, or the access clock's moments, after a shard.
//! Who holds the [`Installer`] is alone in changing the index, too. Sessions never need it.

use crate::base::Base;
use crate::error::Error;
use crate::hashed::buffer::{Glance, Place, Shard};
use crate::hashed::catalog::Catalog;
use crate::hashed::index::GlobalIndex;
use crate::hashed::item_count::ItemCount;
use crate::hashed::item_count::by_keyspace::KeyspaceItems;
use crate::hashed::key_tables::KeyTables;
use crate::hashed::large::LargeSpace;
use crate::hashed::manifest_room::ManifestRoom;
use crate::hashed::segment::unreadable::Unreadable;
use crate::hashed::segment::view::Segment;
use crate::hashed::tier::Tier;
use crate::hashed::tier::access::AccessClock;
use crate::installer::Installer;
use crate::keyspace::KeyspaceId;
use crate::keyspace::catalogue::KeyspaceKind;
use crate::keyspace::item::Access;
use crate::keyspace::keyspace_error::KeyspaceError;
use crate::keyspace::states::KeyspaceRef;
use crate::maintenance::pace::Room;
use crate::media::io::{Io, lock, run};
use crate::needs::DrivePrograms;
use crate::planted::Bug;
use arc_swap::ArcSwapOption;
use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tapetum_kernels::hash::HashKey;

/// Counters of what callers did; monotonic.
#[derive(Default)]
pub struct Counters {
    pub user_write_bytes: AtomicU64,

    pub get_from_flash: AtomicU64,
    pub get_flash_reads: AtomicU64,
    pub get_flash_read_max_bytes: AtomicU64,
    pub key_check_reads: AtomicU64,
    /// Requests for items that had expired, or were deleted with everything else, and whose records were there still.
    pub get_expired: AtomicU64,
    pub get_flushed: AtomicU64,
    /// Such items whose room flush or collector took back.
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

/// Levels that installs leave behind for whoever must not take the installer.
#[derive(Default)]
pub struct Levels {
    /// Extents that are free or would be if every dead record were collected.
    pub room_extents: AtomicU64,
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

/// The hashed engine's state. What it stands on, the [`Base`], is reached through it.
pub struct Shared {
    pub base: Arc<Base>,
    pub programs: DrivePrograms,
    pub shards: Vec<Mutex<Shard>>,
    pub glance: Glance,
    pub index: GlobalIndex,
    /// By segment number.
    pub segments: Vec<ArcSwapOption<Segment>>,
    /// Goes up before an install clears validity and after it has retired segments. A look at the index and at what it
    /// names is of one piece if this did not change meanwhile.
    pub install_sequence: AtomicU64,
    /// Segments that the manifest does not name any more, until their last reader leaves.
    pub retired: Mutex<Vec<Arc<Segment>>>,
    pub unreadable: Unreadable,
    pub key_tables: KeyTables,
    pub tier: Option<Tier>,
    pub access_clock: AccessClock,
    pub item_count: ItemCount,
    pub keyspace_items: KeyspaceItems,
    pub large: LargeSpace,
    /// Bytes of the extents that the active write buffer names.
    pub large_named_bytes: AtomicU64,
    /// Numbers and versions of segments that are being written.
    pub numbers_taken: Mutex<Vec<(u32, u64)>>,
    /// Numbers below this one may be given: the index has the bits for them.
    pub segments_limit: AtomicU32,
    pub version_next: AtomicU64,
    pub counters: Counters,
    pub levels: Levels,
    pub manifest_room: ManifestRoom,
}

impl Deref for Shared {
    type Target = Base;

    fn deref(&self) -> &Base {
        &self.base
    }
}

impl Shared {
    pub fn hash(&self, keyspace: KeyspaceId, key: &[u8]) -> HashKey {
        self.hasher.hash(keyspace, key)
    }

    pub fn shard(&self, hash: HashKey) -> MutexGuard<'_, Shard> {
        lock(self.shard_of(hash))
    }

    fn shard_number(&self, hash: HashKey) -> usize {
        hash.partition(self.geometry.partition_bits)
    }

    fn shard_of(&self, hash: HashKey) -> &Mutex<Shard> {
        &self.shards[self.shard_number(hash)]
    }

    /// Brings nearer what a look for a key in the write buffers will see.
    pub fn prefetch_in_buffers(&self, hash: HashKey) {
        self.glance.prefetch(self.shard_number(hash), hash);
    }

    /// Whether a write buffer seems to have a key.
    pub fn is_in_buffers(&self, hash: HashKey) -> bool {
        self.glance.look(self.shard_number(hash), hash).is_some()
    }

    /// Brings the record nearer that a write buffer has of a key; whether one seems to have any.
    pub fn prefetch_record(&self, hash: HashKey) -> bool {
        let found = self.glance.look(self.shard_number(hash), hash);
        found.inspect(|Place { buffer, place }| self.log.prefetch_record(*buffer, *place)).is_some()
    }

    /// Lets readers find a record of the log, and takes what the DRAM tier has of its key out. An item that was there, or was
    /// asked for since, will be there again when it is on flash. The caller holds the key's shard, which is `shard`.
    pub fn insert(&self, shard: &mut Shard, hash: HashKey, place: u32) {
        if self.tier.is_none() {
            return shard.insert(hash, place);
        }
        shard.insert_wanted(hash, place, || self.forget_in_tier(hash));
    }

    /// Takes a key out of the DRAM tier that is about to change; whether it was there. The caller holds its shard.
    pub fn forget_in_tier(&self, hash: HashKey) -> bool {
        let tier = self.tier.as_ref().filter(|_| !self.planted.has(Bug::TierOutlivesWrite));
        tier.is_some_and(|tier| tier.remove(hash))
    }

    /// What memory knows of the use of a key's item with this stamp. `shard` is the key's.
    pub fn access(&self, shard: &Shard, hash: HashKey, stamp: u64) -> Access {
        if let Some((_, was_read)) = shard.look(hash) {
            return self.access_by_stamp(was_read, stamp);
        }
        let tier_knows = self.tier.as_ref().and_then(|tier| tier.access(hash, self.access_clock.seconds()));
        tier_knows.unwrap_or_else(|| self.access_by_stamp(false, stamp))
    }

    /// What is known of the use of an item that the DRAM tier does not hold.
    pub fn access_by_stamp(&self, was_read: bool, stamp: u64) -> Access {
        Access { was_read, idle_seconds: self.access_clock.written_seconds_ago(stamp) }
    }

    /// An error if a keyspace was dropped, or is of another kind.
    pub fn refuse_unservable(&self, keyspace: KeyspaceRef) -> Result<(), Error> {
        self.refuse_dropped(keyspace)?;
        match keyspace.kind() {
            KeyspaceKind::Hashed => Ok(()),
            kind => Err(Error::Keyspace(KeyspaceError::OtherKind { kind })),
        }
    }

    /// Waits for the installer and takes it.
    pub fn take_installer(self: &Arc<Self>) -> impl Future<Output = Box<Installer>> + Send + use<> {
        self.base.take_installer()
    }

    /// Runs a task that takes the installer, on the caller's thread. A store that has failed may never give it back.
    pub fn run_beside_maintenance<T>(&self, io: &Io, task: impl Future<Output = T>) -> Result<T, Error> {
        let gone = || {
            // Nothing tells that the installer is free: others go first until it is.
            std::thread::yield_now();
            self.log.poisoned().is_err() && lock(&self.installer).is_none() && io.in_flight() == 0
        };
        let stopped = || Error::Io("the drive stopped answering".into());
        run(io, task, gone).ok_or_else(|| self.log.poisoned().err().unwrap_or_else(stopped))
    }

    /// Gives the installer back, and leaves the levels where others see them.
    pub fn return_installer(&self, installer: Box<Installer>) {
        let catalog = &installer.catalog;
        self.levels.segments.store(catalog.segments.len() as u64, Ordering::Relaxed);
        let reclaimable = self.reclaimable_extents_of(catalog);
        let going =
            |segment: &Arc<Segment>| u64::from(segment.descriptor.extent_count()) + segment.large_extents_alone();
        let retired: u64 = lock(&self.retired).iter().map(going).sum();
        {
            // Under the allocator's lock, as `take_large` has it: what it took is in one of the two figures.
            let extents = lock(&self.extents);
            let room = u64::from(extents.free_count()) + retired + reclaimable;
            self.levels.room_extents.store(room, Ordering::Relaxed);
        }
        self.manifest_room.refresh(&self.geometry, &installer, self.kept_of(catalog));
        let local: usize = catalog
            .segments
            .values()
            .map(|state| {
                let fences =
                    self.segments[state.descriptor.number as usize].load().as_ref().map_or(0, |s| s.index_bytes());
                let large = state.descriptor.large.len() * LARGE_ENTRY_BYTES;
                state.valid.bytes()
                    + fences
                    + large
                    + size_of::<Segment>()
                    + state.descriptor.extent_count() as usize * 8
            })
            .sum();
        self.levels.segment_index_bytes.store(local as u64, Ordering::Relaxed);
        let index_bytes_max = self.index_bytes_max() as usize;
        let index_room = self.index.room_within(index_bytes_max.saturating_sub(local));
        self.levels.index_room_entries.store(index_room as u64, Ordering::Relaxed);
        *lock(&self.installer) = Some(installer);
    }

    /// A segment that the index named, held so that its extents stay; `None` when the index must be asked again.
    pub fn hold(&self, number: u32, sequence: u64) -> Option<Arc<Segment>> {
        let segment = self.segments.get(number as usize)?.load_full()?;
        (self.install_sequence.load(Ordering::SeqCst) == sequence).then_some(segment)
    }

    /// The candidate for a hash key: the segment in which its record is, if it has one on flash.
    pub fn candidate(&self, hash: HashKey) -> Option<Arc<Segment>> {
        loop {
            let sequence = self.install_sequence.load(Ordering::SeqCst);
            let number = self.index.lookup(hash)?;
            if let Some(segment) = self.hold(number, sequence) {
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

    /// A number and a version for a new segment.
    pub fn name_segment(&self, catalog: &Catalog) -> (u32, u64) {
        let mut taken = lock(&self.numbers_taken);
        let numbers: Vec<u32> = taken.iter().map(|(number, _)| *number).collect();
        let is_taken = |number: &u32| numbers.contains(number);
        let limit = self.segments_limit.load(Ordering::SeqCst);
        let number = match self.planted.has(Bug::KeepPayloadBits) {
            true => (0..limit).rev().find(|number| !catalog.segments.contains_key(number) && !is_taken(number)),
            false => None,
        };
        let number = number.unwrap_or_else(|| catalog.number_free(&numbers));
        assert!(number < limit, "a segment is begun only where there is a number to spare");
        let version = match self.planted.has(Bug::SameVersion) {
            true => 1,
            false => self.version_next.fetch_add(1, Ordering::SeqCst),
        };
        taken.push((number, version));
        (number, version)
    }

    /// Segment numbers that nobody has.
    pub fn numbers_left(&self) -> usize {
        let used = self.levels.segments.load(Ordering::Relaxed) as usize + lock(&self.numbers_taken).len();
        (self.segments_limit.load(Ordering::SeqCst) as usize).saturating_sub(used)
    }

    pub fn release_number(&self, number: u32) {
        lock(&self.numbers_taken).retain(|(other, _)| *other != number);
    }

    /// What the index may grow to.
    pub fn index_bytes_max(&self) -> u64 {
        self.budget().index_bytes_max()
    }

    /// What key tables may take in memory now.
    pub fn key_tables_bytes_max(&self) -> u64 {
        let bytes_max = self.budget().key_tables_bytes_max(self.pools_bytes, self.index_bytes());
        bytes_max.min(self.options.key_tables_bytes_max)
    }

    /// Whether every buffer below this one is in a segment, and the levels say so.
    pub fn is_installed_below(&self, buffer: u64) -> bool {
        lock(&self.shards[0]).oldest() >= buffer && lock(&self.installer).is_some()
    }

    /// Whether a key is probably there already. The caller holds its shard, which is `shard`.
    pub fn has_probably(&self, shard: &Shard, hash: HashKey) -> bool {
        shard.get(hash).is_some() || self.index.lookup(hash).is_some()
    }

    pub fn index_bytes(&self) -> u64 {
        self.index.bytes() as u64 + self.levels.segment_index_bytes.load(Ordering::Relaxed)
    }

    /// Lets writers go as far as flush and collector have come.
    pub fn set_pace(&self, is_collecting: bool) {
        let segment = u64::from(self.segment_extents());
        let free = u64::from(lock(&self.extents).free_count());
        let gained = self.pace.collect.of(self.pace.victim_extents.load(Ordering::Relaxed));
        let free_bytes = (free + gained).saturating_sub(2 * segment) * self.geometry.segment_bytes / segment;
        let room = Room {
            buffer_bytes: self.geometry.segment_bytes,
            is_sealed: self.sealed_buffer().is_some(),
            free_bytes: is_collecting.then_some(free_bytes),
        };
        if self.pace.set(&room) {
            self.log.wake();
        }
    }

    /// The buffer that is sealed and waits for its flush.
    pub fn sealed_buffer(&self) -> Option<u64> {
        lock(&self.shards[0]).sealed()
    }

    /// Frees the extents of retired segments that nobody reads any more.
    pub fn reap_retired(&self) -> bool {
        let mut retired = lock(&self.retired);
        let before = retired.len();
        retired.retain(|segment| {
            if Arc::strong_count(segment) > 1 {
                return true;
            }
            let mut extents = lock(&self.extents);
            segment.descriptor.extents().for_each(|extent| extents.release(extent));
            false
        });
        retired.len() < before
    }
}

/// Host memory that a large value of a segment takes, about.
const LARGE_ENTRY_BYTES: usize = 256;
