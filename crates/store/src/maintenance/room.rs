//! What of the flash is left to flush and collector, whoever else takes extents. Plain numbers.

use crate::media::geometry::Geometry;

/// Free extents that large values leave to flush and collector, in segments.
pub const LARGE_FREE_SEGMENTS: u32 = 3;

/// Extents of one full segment, its key table included at its largest usual share.
pub fn segment_extents(geometry: &Geometry) -> u32 {
    (geometry.segment_bytes / geometry.extent_bytes) as u32 * 5 / 4 + 2
}
