//! Room in the manifest, whose areas are as large as they were made: the snapshot of what there is must always fit, and an
//! install behind it, or the store could not be opened again.
//!
//! What grows in a snapshot is a bit an entry, dead ones included until they are collected. A store that has not grown has more
//! flash than it can name entries only where records are shorter than any can be; one that has grown to four times its size, where
//! they are shorter than some 60 bytes. So here is counted what flash, index and segment numbers are each counted for elsewhere.

use crate::catalog::{Catalog, SegmentState, encoded_bytes_max};
use crate::geometry::Geometry;
use crate::manifest::{HEADER_BYTES, SNAPSHOT_FRAME_BYTES};
use crate::segment::LARGE_RUN_BYTES_MAX;
use crate::shared::{LARGE_NAMED_SEGMENTS, segment_extents};
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of an extent.
const EXTENT_BYTES: u64 = 4;
/// A part of the area that dead entries may take which no collection gains by.
const HIDDEN_SHARE: u64 = 64;
/// An entry in a list of deaths, and what comes before the list of each segment, at most.
const DEATH_BYTES_MAX: u64 = 5;
const DEATHS_BYTES: u64 = 16;

/// What of segments a collection would keep: bits an entry, extents, and what is said of large values.
#[derive(Clone, Copy, Default)]
pub struct Kept {
    pub entries: u64,
    pub extents: u64,
    pub large_bytes: u64,
}

/// The lengths of snapshots, left behind by installs.
#[derive(Default)]
pub struct ManifestRoom {
    /// Of what there is.
    now_bytes: AtomicU64,
    /// Of what there would be if everything was collected.
    least_bytes: AtomicU64,
}

impl ManifestRoom {
    pub fn refresh(&self, geometry: &Geometry, catalog: &Catalog, kept: Kept) {
        // Two segments that are half full, or less, can be merged.
        let full = kept.extents * geometry.extent_bytes / geometry.segment_bytes;
        let segments = 2 * (full + 1) * encoded_bytes_max(0, 0);
        let least = segments + kept.extents * EXTENT_BYTES + kept.entries / 8 + kept.large_bytes;
        self.now_bytes.store(snapshot_bytes_max(geometry, catalog), Ordering::Relaxed);
        self.least_bytes.store(frames_bytes_max(geometry, least), Ordering::Relaxed);
    }

    /// Whether so many flushed segments more can be named, if nothing is collected.
    pub fn takes(&self, geometry: &Geometry, segments: u64) -> bool {
        let wanted = self.now_bytes.load(Ordering::Relaxed) + segments * flushed_bytes_max(geometry);
        wanted + install_bytes_max(geometry) <= geometry.manifest_bytes
    }

    /// The same if everything is collected that can be, and an area is so much smaller.
    pub fn takes_at_best(&self, geometry: &Geometry, segments: u64, hidden_bytes: u64) -> bool {
        let wanted = self.least_bytes.load(Ordering::Relaxed) + hidden_bytes + segments * flushed_bytes_max(geometry);
        wanted + install_bytes_max(geometry) <= geometry.manifest_bytes
    }
}

/// What dead entries and extents that are not full may take that no collection gains by.
pub fn hidden_bytes(geometry: &Geometry, segments: u64) -> u64 {
    // One extent of data and one of key table each.
    geometry.manifest_bytes / HIDDEN_SHARE + 2 * segments * EXTENT_BYTES
}

/// Whether so many dead entries among so many are worth a collection for the manifest's sake.
pub fn is_worth_collecting(dead_entries: u64, entries: u64) -> bool {
    dead_entries > entries / HIDDEN_SHARE
}

/// What a snapshot takes of an area.
pub fn snapshot_bytes_max(geometry: &Geometry, catalog: &Catalog) -> u64 {
    let now = catalog.segments.values().map(SegmentState::encoded_bytes_max).sum();
    frames_bytes_max(geometry, now)
}

/// What a snapshot takes whose segments take so much of it.
fn frames_bytes_max(geometry: &Geometry, segments_bytes: u64) -> u64 {
    let frames = segments_bytes / SNAPSHOT_FRAME_BYTES as u64 + 3;
    segments_bytes + frames * (HEADER_BYTES as u64 + u64::from(geometry.sector_bytes))
}

/// What a snapshot says of a write buffer that became a segment.
fn flushed_bytes_max(geometry: &Geometry) -> u64 {
    let extents = u64::from(segment_extents(geometry));
    let large = LARGE_NAMED_SEGMENTS * geometry.segment_bytes / geometry.extent_bytes * LARGE_RUN_BYTES_MAX;
    encoded_bytes_max(extents, geometry.buffer_entries_max() as u64) + large
}

/// The longest install: it adds a segment, and each of its entries kills one, in as many segments as there may be.
fn install_bytes_max(geometry: &Geometry) -> u64 {
    let entries = geometry.buffer_entries_max() as u64;
    let segments = u64::from(geometry.segments(geometry.capacity_max_bytes()));
    let deaths = entries * DEATH_BYTES_MAX + entries.min(segments) * DEATHS_BYTES;
    (deaths + flushed_bytes_max(geometry) + HEADER_BYTES as u64).next_multiple_of(u64::from(geometry.sector_bytes))
}
