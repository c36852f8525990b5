//! The extents reserved for flush and collector, whoever else allocates. Plain numbers.

use crate::media::extents::{ExtentOwner, Extents};
use crate::media::geometry::Geometry;

/// Segments: two for both write buffers, and one for another flush. One more is kept for a collection.
const FLUSH_FLOOR_SEGMENTS: u32 = 3;
const COLLECTION_FLOOR_SEGMENTS: u32 = 1;

/// Reserves extents for flush and collector.
pub fn set_floors(extents: &mut Extents, geometry: &Geometry) {
    let segment = segment_extents(geometry);
    extents.set_floor(ExtentOwner::Collection, COLLECTION_FLOOR_SEGMENTS * segment);
    extents.set_floor(ExtentOwner::Flush, FLUSH_FLOOR_SEGMENTS * segment);
}

/// Extents of one full segment, its key table included at its largest usual share.
pub fn segment_extents(geometry: &Geometry) -> u32 {
    (geometry.segment_bytes / geometry.extent_bytes) as u32 * 5 / 4 + 2
}
