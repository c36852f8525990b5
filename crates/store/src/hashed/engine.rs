//! The hashed engine as the store knows it.

use crate::hashed::HashedEngine;
use crate::hashed::check::{check_hashed, check_part};
use crate::hashed::index::checkpoint;
use crate::hashed::jobs::hashed_jobs;
use crate::hashed::locate::locate_hashed;
use crate::hashed::tier::Tier;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tapetum_base::base::client::BaseClient;
use tapetum_base::engine::check_report::{CheckPart, CheckPlace, CheckReport};
use tapetum_base::engine::job::Job;
use tapetum_base::engine::key_place::KeyPlace;
use tapetum_base::engine::{Engine, ItemCounts};
use tapetum_base::error::Error;
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::block_device::group_bytes_max;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::log::Place;
use tapetum_base::log::client::LogClient;
use tapetum_base::media::io::{Io, Task, lock};
use tapetum_base::session::engine_session::{EngineSession, EngineSlot};
use tapetum_base::stats::Stats;
use tapetum_kernels::record::Record;

/// Write buffers that the manifest must be able to name beside the reserve, for one keyspace more.
const KEYSPACE_SEGMENTS: u64 = 3;

impl LogClient for HashedEngine {
    /// Its flush trims the log: what is in it is needed, whosever it is.
    fn stamp_needed(&self) -> u64 {
        self.log.stamp_released() + 1
    }

    fn checkpoint_through(&self, stamp: u64) {
        if self.buffers.sealed().is_none() && stamp >= self.stamp_needed() {
            self.rotate();
        }
        self.wakeup.wake();
    }

    fn hold_writers(&self, change: &mut dyn FnMut() -> Option<u64>) {
        self.buffers.hold(change);
    }
}

impl BaseClient for HashedEngine {
    fn kind(&self) -> KeyspaceKind {
        KeyspaceKind::Hashed
    }

    fn holds(&self, keyspace: KeyspaceId) -> bool {
        !lock(&self.purged).contains(&keyspace)
    }

    fn has_room_for_keyspace(&self) -> bool {
        !self.is_manifest_tight(KEYSPACE_SEGMENTS)
    }

    fn keyspaces_changed(&self) {
        self.forget_count();
        let dropped = self.keyspaces.dropped();
        lock(&self.purged).retain(|id| dropped.contains(id));
    }

    fn installed(&self, installer: &Installer) {
        self.note_levels(installer);
    }

    fn index_bytes(&self) -> u64 {
        HashedEngine::index_bytes(self)
    }
}

impl Engine for HashedEngine {
    fn replay(&self, place: Place, record: &Record<'_>) -> Result<(), Error> {
        let hash = self.hasher.hash_of(&record.header, record.key);
        let mut shard = self.buffers.shard(hash);
        if record.header.grouped {
            let group_bytes = group_bytes_max(self.keyspaces.group_blocks(KeyspaceId::of(&record.header)));
            let growth = shard.group_growth(hash, group_bytes, record.header.record_bytes());
            shard.note_group(hash);
            if self.log.is_active(place.buffer) {
                self.log.note_growth(growth);
            }
        }
        shard.insert(hash, place.place);
        Ok(())
    }

    /// The store's opening has done it all: the catalog is a client of the manifest.
    fn recover(self: Arc<Self>, _: Io, installer: Box<Installer>) -> Task<Result<Box<Installer>, Error>> {
        Box::pin(async { Ok(installer) })
    }

    fn open_session(self: Arc<Self>, _: EngineSlot) -> Result<Box<dyn EngineSession>, Error> {
        unreachable!("sessions hold the part for hashed keyspaces by value")
    }

    fn jobs(self: Arc<Self>, io: &Io) -> Vec<Box<dyn Job>> {
        hashed_jobs(&self, io)
    }

    fn add_counts(&self, counts: &mut ItemCounts) {
        self.count_keyspaces(counts);
    }

    fn count_items(self: Arc<Self>, io: Io) -> Task<Result<ItemCounts, Error>> {
        Box::pin(async move { self.count_each_keyspace(&io).await })
    }

    fn add_stats(&self, stats: &mut Stats) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (index_bytes, index_entries) = (self.index_bytes(), self.index.entries() as u64);
        let buffer_entries = self.buffers.entries();
        stats.items += self.items_max(index_entries, buffer_entries);
        stats.index_entries += index_entries;
        stats.buffer_entries += buffer_entries;
        stats.index_bytes += index_bytes;
        stats.index_segment_bytes += load(&self.levels.segment_index_bytes);
        stats.index_pointer_bits = u64::from(self.index.geometry().payload_bits);
        stats.index_limit_bytes += self.index_bytes_max();
        stats.index_room_entries += self.index_room_entries();
        stats.index_extensions += self.index.extension_buckets_used() as u64;
        stats.partitions_rebuilt += load(&self.counters.partitions_rebuilt);
        stats.partitions_rebuilding += load(&self.levels.partitions_rebuilding);
        stats.memory_used_bytes += index_bytes + self.segments.key_tables.bytes();
        stats.key_tables_bytes += self.segments.key_tables.bytes();
        stats.flash_reserve_bytes += self.flash_reserve_bytes();
        stats.flash_room_bytes += self.flash_room_bytes();
        stats.user_write_bytes += load(&self.counters.user_write_bytes);
        stats.tier_bytes += self.tier.as_ref().map_or(0, Tier::bytes);
        stats.get_from_tier += self.tier.as_ref().map_or(0, |tier| tier.hits().each().sum());
        stats.tier_evictions += self.tier.as_ref().map_or(0, Tier::evictions);
        stats.get_from_flash += load(&self.counters.get_from_flash);
        stats.get_expired += load(&self.counters.get_expired);
        stats.get_flushed += load(&self.counters.get_flushed);
        stats.reclaimed += load(&self.counters.reclaimed);
        stats.get_flash_reads += load(&self.counters.get_flash_reads);
        stats.get_flash_read_max_bytes = load(&self.counters.get_flash_read_max_bytes);
        stats.key_check_reads += load(&self.counters.key_check_reads);
        stats.large_values += load(&self.large.levels.values);
        stats.large_bytes += load(&self.large.levels.extents) * self.geometry.extent_bytes;
        stats.large_reads += load(&self.counters.large_reads);
        stats.large_write_bytes += load(&self.counters.large_write_bytes);
        stats.flushes += load(&self.counters.flushes);
        stats.collections += load(&self.counters.collections);
        stats.evictions += load(&self.counters.evictions);
        stats.segments_evicted += load(&self.counters.segments_evicted);
        stats.segments_unreadable += self.segments.unreadable.count() as u64;
        stats.writes_paced += load(&self.counters.writes_paced);
        stats.buffers_sealed += u64::from(self.buffers.sealed().is_some());
    }

    fn locate(self: Arc<Self>, io: Io, keyspace: KeyspaceId, key: Vec<u8>) -> Task<Result<KeyPlace, Error>> {
        Box::pin(async move { locate_hashed(&self, &io, keyspace, &key).await })
    }

    fn check(self: Arc<Self>, io: Io) -> Task<Result<CheckReport, Error>> {
        Box::pin(async move { check_hashed(&self, &io).await })
    }

    fn check_part(self: Arc<Self>, io: Io, from: CheckPlace) -> Task<Result<CheckPart, Error>> {
        Box::pin(async move { check_part(&self, &io, from).await })
    }

    /// Leaves a checkpoint of the index.
    fn close(self: Arc<Self>, io: Io) -> Task<Result<(), Error>> {
        Box::pin(async move {
            let Some(mut installer) = self.base.try_take_installer() else {
                tracing::info!(
                    "no checkpoint of the index: an install was given up; opening the store builds the index anew"
                );
                return Ok(());
            };
            let written = checkpoint::write(&self, &io, &mut installer).await;
            drop(installer);
            if !written? {
                tracing::info!(
                    "no checkpoint of the index: there is no room for it; opening the store builds the index anew"
                );
            }
            Ok(())
        })
    }
}
