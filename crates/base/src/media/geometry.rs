//! The layout of a store on flash: the places and sizes of its parts.
//!
//! ```text
//!  0         8 KiB                                                                             capacity
//!  +----+----+------------+------------+--------+--------+----------+----------+--- ... ---+----------+
//!  | sb | sb | manifest A | manifest B | zone 0 | zone 1 | extent 0 | extent 1 |           | extent n |
//!  +----+----+------------+------------+--------+--------+----------+----------+--- ... ---+----------+
//! ```
//! A store that grows gets more extents behind the last one; everything else stays in place. So the parts before the extents are sized by the
//! capacity at creation, and a store grows to at most [`GROWTH_MAX`] times that.
//!
//! The superblock is kept twice. A log zone is as large as a write buffer: the buffer is the zone's image. A segment is at most as large as a write
//! buffer and lives in extents, which need not be neighbours.

use crate::error::Error;
pub use crate::memory::budget::BUFFERS;
use tapetum_drive::Size;
use tapetum_kernels::extent_address::EXTENTS_MAX;

/// The index has at most 2^this many partitions.
pub const PARTITION_BITS_MAX: u32 = 12;
pub const SUPERBLOCK_BYTES: u64 = 4096;
const EXTENTS_PER_SEGMENT: u64 = 128;
const PAGE: u64 = 4096;
/// The part of a manifest area for the names of keyspaces: enough for a thousand names of 48 bytes.
pub const CATALOGUE_BYTES: u64 = 64 << 10;
/// The smallest segment. The simulator uses it, so that collections and recoveries take kilobytes.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;
pub const SEGMENT_BYTES_MAX: u64 = 2 << 30;
pub const EXTENT_BYTES_MAX: u64 = SEGMENT_BYTES_MAX / EXTENTS_PER_SEGMENT;
/// The largest capacity ÷ the capacity at creation. The manifest areas have room for as many segments.
pub const GROWTH_MAX: u64 = 4;
/// The least number of segments, so that the collector has room to write.
const SEGMENTS_MIN: u64 = 12;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The capacity at creation. The superblock has the present one.
    pub created_bytes: u64,
    /// The most bytes of a segment, and the size of a write buffer and a log zone.
    pub segment_bytes: u64,
    pub extent_bytes: u64,
    pub manifest_bytes: u64,
    pub sector_bytes: u32,
    /// The index has 2^this many partitions.
    pub partition_bits: u32,
}

impl Geometry {
    /// Lays out a drive of `created_bytes`.
    pub fn new(
        created_bytes: u64,
        segment_bytes: u64,
        partition_bits: u32,
        sector_bytes: u32,
    ) -> Result<Geometry, Error> {
        if !segment_bytes.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes) {
            return Err(Error::Options(format!(
                "a segment of {segment_bytes} bytes is not a power of two between 64KiB and 2GiB: choose one that is"
            )));
        }
        if sector_bytes > PAGE as u32 || !sector_bytes.is_power_of_two() || sector_bytes < 512 {
            return Err(Error::Options(format!(
                "the drive's sectors of {sector_bytes} bytes are not supported: use 512 to 4096"
            )));
        }
        if partition_bits > PARTITION_BITS_MAX || segment_bytes >> partition_bits < 8 << 10 {
            return Err(Error::Options(format!(
                "2^{partition_bits} index partitions are too many for segments of {}: use fewer",
                Size(segment_bytes)
            )));
        }
        let created_bytes = whole_pages(created_bytes);
        let extent_bytes = (segment_bytes / EXTENTS_PER_SEGMENT).max(PAGE);
        if created_bytes.checked_mul(GROWTH_MAX).is_none_or(|most| most / extent_bytes > EXTENTS_MAX.into()) {
            return Err(Error::Options(format!(
                "a capacity of {} is too large for segments of {}: use larger ones",
                Size(created_bytes),
                Size(segment_bytes)
            )));
        }
        let geometry = Geometry {
            created_bytes,
            segment_bytes,
            extent_bytes,
            manifest_bytes: (created_bytes / 128 + segment_bytes / 4 + (64 << 10) + CATALOGUE_BYTES)
                .next_multiple_of(PAGE),
            sector_bytes,
            partition_bits,
        };
        let least = geometry.extents_offset() + SEGMENTS_MIN * segment_bytes;
        if created_bytes < least {
            return Err(Error::Options(format!(
                "a capacity of {} is too small for segments of {}: give {} or more",
                Size(created_bytes),
                Size(segment_bytes),
                Size::at_least(least)
            )));
        }
        Ok(geometry)
    }

    pub fn manifest_offset(&self, area: usize) -> u64 {
        2 * SUPERBLOCK_BYTES + area as u64 * self.manifest_bytes
    }

    pub fn zone_offset(&self, buffer: u64) -> u64 {
        self.manifest_offset(2) + buffer % BUFFERS * self.segment_bytes
    }

    pub fn extents_offset(&self) -> u64 {
        (self.manifest_offset(2) + BUFFERS * self.segment_bytes).next_multiple_of(self.extent_bytes)
    }

    /// The number of extents of a store of `capacity_bytes`, grown or not.
    pub fn extents(&self, capacity_bytes: u64) -> u32 {
        ((capacity_bytes - self.extents_offset()) / self.extent_bytes) as u32
    }

    /// The number of extents that begin before this place on flash.
    pub fn extents_before(&self, flash: u64) -> u32 {
        flash.saturating_sub(self.extents_offset()).div_ceil(self.extent_bytes) as u32
    }

    pub fn extent_offset(&self, extent: u32) -> u64 {
        self.extents_offset() + u64::from(extent) * self.extent_bytes
    }

    pub fn pages_per_extent(&self, page_bytes: usize) -> u32 {
        (self.extent_bytes / page_bytes as u64) as u32
    }

    /// The number of segment numbers: twice as many as full segments fit, since part-full ones can be merged in pairs.
    pub fn segments(&self, capacity_bytes: u64) -> u32 {
        (u64::from(self.extents(capacity_bytes)) * self.extent_bytes / self.segment_bytes * 2 + 8) as u32
    }

    /// Bits of the index's payload: any segment number of a store of `capacity_bytes`.
    pub fn segment_bits(&self, capacity_bytes: u64) -> u32 {
        self.segments(capacity_bytes).ilog2() + 1
    }

    /// The largest capacity that the store may grow to.
    pub fn capacity_max_bytes(&self) -> u64 {
        GROWTH_MAX * self.created_bytes
    }

    pub fn partitions(&self) -> usize {
        1 << self.partition_bits
    }

    /// The most entries of a write buffer, however small they are. A buffer with so many is sealed.
    pub fn buffer_entries_max(&self) -> usize {
        (self.segment_bytes / 96) as usize
    }
}

pub fn whole_pages(bytes: u64) -> u64 {
    bytes / PAGE * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_fill_the_drive() {
        for (capacity, segment, partition_bits) in
            [(2 << 20, 64 << 10, 2), (10 << 30, 32 << 20, 6), (1 << 40, 1 << 30, 8)]
        {
            let geometry = Geometry::new(capacity, segment, partition_bits, 512).unwrap();
            assert_eq!(geometry.manifest_offset(1) - geometry.manifest_offset(0), geometry.manifest_bytes);
            assert_eq!(geometry.zone_offset(1) - geometry.zone_offset(0), segment);
            assert_eq!(geometry.zone_offset(2), geometry.zone_offset(0));
            assert!(geometry.extents_offset() >= geometry.zone_offset(1) + segment);
            for capacity in [capacity, geometry.capacity_max_bytes()] {
                let end = geometry.extent_offset(geometry.extents(capacity));
                assert!(end <= capacity && capacity - end < geometry.extent_bytes);
                assert!(geometry.segments(capacity) - 1 <= u32::MAX >> (32 - geometry.segment_bits(capacity)));
            }
            assert_eq!(geometry.extents_offset() % geometry.extent_bytes, 0);
        }
    }

    #[test]
    fn what_cannot_work_is_refused_with_a_way_out() {
        let refused = |capacity, segment| Geometry::new(capacity, segment, 6, 512).unwrap_err().to_string();
        assert!(refused(10 << 30, 1000).contains("power of two"));
        assert!(refused(1 << 20, 1 << 20).contains("or more"));
        assert!(refused(10 << 30, 64 << 10).contains("use fewer"));
        assert!(refused(8 << 40, 1 << 20).contains("use larger ones"), "more extents than have a number");
        assert!(refused(u64::MAX, 1 << 20).contains("use larger ones"));
    }
}
