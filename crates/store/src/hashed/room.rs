//! How much room there is on flash, in the index and in the manifest, and who may take it.
//!
//! Threads: any. The levels and figures that installs publish are read without the installer. Lock order as in `hashed_engine.rs`.

use crate::hashed::HashedEngine;
use crate::hashed::buffer::{Place, Shard};
use crate::hashed::catalog::{Catalog, SegmentState};
use crate::hashed::collect;
use crate::hashed::flush;
use crate::hashed::large::{LargeExtents, LargeWant};
use crate::hashed::manifest_room::KeptRoom;
use crate::hashed::segment::Descriptor;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_base::error::Error;
use tapetum_base::maintenance::room::segment_extents;
use tapetum_base::media::extents::{ExtentOwner, ExtentShape};
use tapetum_base::media::geometry::BUFFERS;
use tapetum_base::media::io::lock;
use tapetum_base::options::Full;
use tapetum_kernels::data_page::PAGE_BYTES;

/// The verdict on a write that needs room.
pub enum Admission {
    Go,
    /// Room is being made.
    Wait,
    Refuse(Error),
}

/// Pages of 4 KiB that records take in a segment: of data, and of key table.
#[derive(Clone, Copy, Default)]
pub struct LivePages {
    pub data: u64,
    pub keys: u64,
}

/// The verdict on a large value that needs extents.
pub enum LargeRoom {
    Taken(LargeExtents),
    /// There is room, and it is not taken.
    Unneeded,
    /// The collector makes room if it is told.
    Comes,
    /// There is none, unless records in the write buffers give some back.
    None,
}

/// Segments for which there must always be free extents: one that is flushed, one that is collected.
const RESERVE_SEGMENTS: u64 = 2;
/// Segments more that new keys leave free, so that overwrites go on when they are refused.
const NEW_KEYS_SEGMENTS: u64 = 3;
/// A write buffer is sealed when it names more large bytes than this many segments hold: the values that it overwrites are freed only when it is
/// flushed.
pub const LARGE_NAMED_SEGMENTS: u64 = 2;

impl HashedEngine {
    /// Whether there is room for a write; `overwrites` says whether the key is probably there already.
    ///
    /// Both write buffers must be able to become segments, and the collector to work, whatever comes: an overwrite is
    /// taken while that holds, a new key while there is another segment to spare and room for what overwrites will hide.
    pub fn admit(&self, overwrites: impl FnOnce() -> bool) -> Admission {
        let is_tight = self.is_flash_tight(NEW_KEYS_SEGMENTS)
            || self.is_index_tight(1)
            || self.is_manifest_tight(NEW_KEYS_SEGMENTS);
        if !is_tight {
            return Admission::Go;
        }
        let is_there = overwrites();
        match self.judge(is_there) {
            Admission::Refuse(Error::FullFlash) if self.look_at_room_again() => self.judge(is_there),
            judged => judged,
        }
    }

    /// Decides on a write. `is_there`: its key has an item, as far as is known.
    fn judge(&self, is_there: bool) -> Admission {
        let segment = u64::from(self.segment_extents());
        let flash_tight = self.is_flash_tight(NEW_KEYS_SEGMENTS);
        let flash_full = self.levels.room_extents.load(Ordering::Relaxed) < (RESERVE_SEGMENTS + 2) * segment;
        let index_tight = self.is_index_tight(1);
        let manifest_tight = self.is_manifest_tight(NEW_KEYS_SEGMENTS);
        let manifest_full = self.manifest_room.flushes_at_best() < RESERVE_SEGMENTS;
        match (self.options.full, is_there) {
            (Full::Evict, _) if flash_full || manifest_full => self.wait_for_room(),
            (Full::Evict, false) if index_tight => self.wait_for_room(),
            (Full::Error, _) if flash_full => Admission::Refuse(Error::FullFlash),
            (Full::Error, _) if manifest_full => Admission::Refuse(Error::FullManifest),
            (Full::Error, false) if flash_tight => Admission::Refuse(Error::FullFlash),
            (Full::Error, false) if manifest_tight => Admission::Refuse(Error::FullManifest),
            (_, false) if index_tight => Admission::Refuse(Error::FullIndex),
            _ => Admission::Go,
        }
    }

    /// Recomputes how much room there is, at most once a second, because items expire between installs. Returns whether it did.
    pub fn look_at_room_again(&self) -> bool {
        const PAUSE_US: u64 = 1_000_000;
        let now_us = self.drive.env().now_us();
        if now_us < self.levels.looked_at_us.load(Ordering::Relaxed) + PAUSE_US {
            return false;
        }
        // The holder of the installer recomputes the levels when it gives it back.
        let Some(installer) = self.base.try_take_installer() else { return false };
        drop(installer);
        self.levels.looked_at_us.store(now_us, Ordering::Relaxed);
        true
    }

    /// After the store has failed nobody makes room.
    fn wait_for_room(&self) -> Admission {
        self.log.poisoned().map_or_else(Admission::Refuse, |()| Admission::Wait)
    }

    /// Whether somebody waits for extents, so that freezes have to give some back.
    pub fn are_extents_wanted(&self) -> bool {
        let waits_for_flush = self.buffers.sealed().is_some() && !flush::has_room(self);
        // Large values that were evicted are room only when no freeze has them.
        let evicts_in_vain = self.levels.segments.load(Ordering::Relaxed) == 0 && collect::must_evict(self);
        waits_for_flush || evicts_in_vain || lock(&self.extents).are_wanted()
    }

    /// Whether there is less room than the reserve, the hidden room, and this many segments more.
    pub fn is_flash_tight(&self, segments: u64) -> bool {
        self.levels.room_extents.load(Ordering::Relaxed) < self.reserve_extents(segments)
    }

    /// Whether the manifest could not name the reserve, the hidden segments, and this many segments more.
    pub fn is_manifest_tight(&self, segments: u64) -> bool {
        self.manifest_room.flushes_for_new_keys() < RESERVE_SEGMENTS + segments
    }

    fn reserve_extents(&self, segments: u64) -> u64 {
        let hidden = 2 * self.levels.segments.load(Ordering::Relaxed);
        (RESERVE_SEGMENTS + segments) * u64::from(self.segment_extents()) + hidden
    }

    /// Whether the index has less room within its budget than `times` the entries that the write buffers may bring.
    pub fn is_index_tight(&self, times: u64) -> bool {
        let buffered = BUFFERS * self.geometry.buffer_entries_max() as u64;
        self.levels.index_room_entries.load(Ordering::Relaxed) < times * buffered
    }

    /// Bytes of flash that never hold items for good.
    pub fn flash_reserve_bytes(&self) -> u64 {
        let working = RESERVE_SEGMENTS * u64::from(self.segment_extents()) * self.geometry.extent_bytes;
        self.geometry.extents_offset() + working
    }

    /// Bytes of flash that new keys may still take.
    pub fn flash_room_bytes(&self) -> u64 {
        let room = self.levels.room_extents.load(Ordering::Relaxed);
        room.saturating_sub(self.reserve_extents(NEW_KEYS_SEGMENTS)) * self.geometry.extent_bytes
    }

    /// Entries that new keys may still take in the index.
    pub fn index_room_entries(&self) -> u64 {
        let buffered = BUFFERS * self.geometry.buffer_entries_max() as u64;
        self.levels.index_room_entries.load(Ordering::Relaxed).saturating_sub(buffered)
    }

    /// Extents that collections would give back. The sum is repeated if everything was deleted amid it: it would miss half of the gain, and if the
    /// rest is room enough, nobody would compute it again.
    pub fn reclaimable_extents_of(&self, catalog: &Catalog) -> u64 {
        loop {
            let changes = self.keyspaces.changes();
            let readable =
                catalog.segments.values().filter(|state| !self.segments.unreadable.has(state, self.live_bytes(state)));
            let sum = readable.map(|state| self.reclaimable_extents(state)).sum();
            if self.keyspaces.changes() == changes {
                return sum;
            }
        }
    }

    /// The part of the segments that collections would keep in the manifest.
    pub fn kept_of(&self, catalog: &Catalog) -> KeptRoom {
        let kept = |state: &SegmentState| match self.live_bytes(state) {
            live_bytes if self.segments.unreadable.has(state, live_bytes) => KeptRoom {
                entries: state.descriptor.entries.into(),
                extents: state.descriptor.extent_count().into(),
                large_bytes: state.large_bytes_max(),
            },
            0 => KeptRoom::default(),
            _ => KeptRoom {
                entries: state.valid_entries.into(),
                extents: self.extents_for(self.live_pages(state)),
                large_bytes: state.large_bytes_max(),
            },
        };
        catalog.segments.values().map(kept).fold(KeptRoom::default(), KeptRoom::and)
    }

    /// Bytes of records that a collection would keep, as far as the catalog knows.
    pub fn live_bytes(&self, state: &SegmentState) -> u64 {
        if self.may_hold_live(&state.descriptor) { state.valid_bytes } else { 0 }
    }

    /// Whether a record of a segment may be live: not all of them have expired or are deleted with everything else of all keyspaces.
    pub fn may_hold_live(&self, descriptor: &Descriptor) -> bool {
        let Descriptor { stamp_max, expiry_max, .. } = *descriptor;
        stamp_max > self.keyspaces.floor() && !expiry_max.has_passed(self.now_ms())
    }

    /// Extents of one full segment, its key table included at its largest usual share.
    pub fn segment_extents(&self) -> u32 {
        segment_extents(&self.geometry)
    }

    /// Pages that the live records of a segment take. Trailers and gaps are taken to cost as much as they do in the segment.
    pub fn live_pages(&self, state: &SegmentState) -> LivePages {
        let live = self.live_bytes(state);
        if live == 0 {
            return LivePages::default();
        }
        let Descriptor { data_pages, data_page_size, record_bytes, key_pages, fence_pages, entries, .. } =
            state.descriptor;
        let data_bytes = u64::from(data_pages) * live / record_bytes * data_page_size.bytes() as u64;
        let data = data_bytes.div_ceil(PAGE_BYTES as u64);
        let share =
            |pages: u32| (u64::from(pages) * u64::from(state.valid_entries)).div_ceil(u64::from(entries.max(1)));
        LivePages { data: data.max(1), keys: share(key_pages) + share(fence_pages) }
    }

    /// Extents that this many pages take in a segment of their own.
    pub fn extents_for(&self, LivePages { data, keys }: LivePages) -> u64 {
        let pages = u64::from(self.geometry.pages_per_extent(PAGE_BYTES));
        data.div_ceil(pages) + keys.div_ceil(pages)
    }

    /// Extents that collecting a segment would free: none if all of it is live.
    pub fn reclaimable_extents(&self, state: &SegmentState) -> u64 {
        let own = u64::from(state.descriptor.extent_count()).saturating_sub(self.extents_for(self.live_pages(state)));
        own + self.large_expired_extents(state)
    }

    /// Extents of large values in a segment that have expired, or are deleted with everything else.
    pub fn large_expired_extents(&self, state: &SegmentState) -> u64 {
        let (large, now) = (&state.descriptor.large, self.now_ms());
        let expired = large.iter().filter(|large| !self.is_live_stamp(large.keyspace, large.stamp, large.expiry, now));
        expired.map(|large| large.extent_count()).sum()
    }

    /// Takes the extents for `bytes` of a large value. A new value leaves room to be overwritten once, and every value leaves the reserve.
    /// `overwrites`: the key is probably there already. `needed`: the value is still to be written.
    pub fn take_large(&self, bytes: u64, overwrites: bool, needed: bool) -> LargeRoom {
        let count = self.extents_of(bytes);
        let keep = if overwrites { self.reserve_extents(2) } else { self.reserve_extents(NEW_KEYS_SEGMENTS) + count };
        let mut extents = lock(&self.extents);
        if self.levels.room_extents.load(Ordering::Relaxed) < count + keep {
            return LargeRoom::None;
        }
        if !needed && extents.can_take(ExtentOwner::Large, count as u32, ExtentShape::Any) {
            return LargeRoom::Unneeded;
        }
        let Some(runs) = extents.take(ExtentOwner::Large, count as u32, ExtentShape::Any) else {
            return LargeRoom::Comes;
        };
        self.levels.room_extents.fetch_sub(count, Ordering::Relaxed);
        drop(extents);
        self.counters.large_write_bytes.fetch_add(bytes, Ordering::Relaxed);
        LargeRoom::Taken(self.large.own(runs))
    }

    /// Extents that this many bytes of a large value take.
    pub fn extents_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.geometry.extent_bytes)
    }

    /// Tells maintenance that a large value waits for this many extents.
    pub fn want_large(&self, count: u64) -> LargeWant {
        let want = self.large.want(count);
        self.wakeup.wake();
        want
    }

    /// Whether a large value waits for free extents that the collector could make.
    pub fn large_waits_for_collector(&self) -> bool {
        let wanted = self.large.wanted_extents();
        wanted > 0 && u64::from(lock(&self.extents).room_of(ExtentOwner::Large)) < wanted
    }

    /// Whether a large value waits for room that only evicting can make.
    pub fn large_waits_for_eviction(&self) -> bool {
        let wanted = self.large.wanted_extents();
        let room = self.levels.room_extents.load(Ordering::Relaxed);
        wanted > 0 && room < wanted + self.reserve_extents(NEW_KEYS_SEGMENTS)
    }

    /// Holds the extents that a record which was just appended names. The caller holds the shard.
    pub fn name_large(&self, shard: &mut Shard, place: Place, extents: Arc<LargeExtents>) {
        self.buffers.name_large(extents.count() * self.geometry.extent_bytes);
        shard.insert_large(place, extents);
    }

    /// Whether the active buffer names so many large bytes that it is to be sealed.
    pub fn names_much(&self) -> bool {
        self.buffers.large_named_bytes() > LARGE_NAMED_SEGMENTS * self.geometry.segment_bytes
    }
}
