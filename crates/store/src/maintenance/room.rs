//! What of the flash is left to flush and collector, whoever else takes extents. Plain numbers.

use crate::media::geometry::Geometry;

/// Both write buffers become segments, and then a flush and a collection have room for one each.
const FLOOR_SEGMENTS: u32 = 4;

/// Free extents that whoever else takes some leaves to flush and collector.
pub fn floor_extents(geometry: &Geometry) -> u32 {
    FLOOR_SEGMENTS * segment_extents(geometry)
}

/// Extents of one full segment, its key table included at its largest usual share.
pub fn segment_extents(geometry: &Geometry) -> u32 {
    (geometry.segment_bytes / geometry.extent_bytes) as u32 * 5 / 4 + 2
}
