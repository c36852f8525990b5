//! Where the next record of a stream goes: one rule for the writer and for whoever rebuilds fences from key tables.
//!
//! Records follow each other without gaps, except that a record of at most a quarter of an extent never crosses an
//! extent's end: it starts in the next one. So a small read never needs two commands.

use crate::geometry::Geometry;
use tapetum_kernels::data_page::PAGE_PAYLOAD_BYTES;

#[derive(Clone, Copy, Debug)]
pub struct StreamLayout {
    extent_payload_bytes: u64,
    address: u64,
}

impl StreamLayout {
    pub fn new(geometry: &Geometry) -> StreamLayout {
        let extent_payload_bytes = u64::from(geometry.pages_per_extent()) * PAGE_PAYLOAD_BYTES as u64;
        StreamLayout { extent_payload_bytes, address: 0 }
    }

    /// The longest record that never crosses an extent's end, in bytes.
    pub fn small_bytes_max(&self) -> u64 {
        self.extent_payload_bytes / 4
    }

    /// Places a record of `size_bytes`; returns its address in the stream.
    pub fn place(&mut self, size_bytes: u64) -> u64 {
        let left = self.extent_payload_bytes - self.address % self.extent_payload_bytes;
        if size_bytes > left && size_bytes <= self.small_bytes_max() {
            self.address += left;
        }
        let address = self.address;
        self.address += size_bytes;
        address
    }

    /// Where the stream ends now.
    pub fn end(&self) -> u64 {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_records_stay_within_an_extent_and_large_ones_follow_without_a_gap() {
        let geometry = Geometry::new(4 << 20, 64 << 10, 2, 512).unwrap();
        let mut layout = StreamLayout::new(&geometry);
        let extent = layout.extent_payload_bytes;
        assert_eq!(layout.place(extent - 10), 0);
        assert_eq!(layout.place(11), extent);
        assert_eq!(layout.place(extent), extent + 11, "a large one crosses");
        assert_eq!(layout.end(), 2 * extent + 11);
    }
}
