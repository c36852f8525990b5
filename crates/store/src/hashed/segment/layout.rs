//! The place of the next record of a stream: one rule for the writer and for the rebuild of fences from key tables.
//!
//! Records follow each other without gaps, except that a record of at most a quarter of an extent never crosses an
//! extent's end: it starts in the next one. So a small read never needs two commands.

use std::ops::Range;
use tapetum_base::media::geometry::Geometry;
use tapetum_kernels::data_page::PageSize;

/// Mean record sizes for which small pages are used. The fences of small pages, 12 bits a page, are little beside such records, and a read of one is
/// much shorter. For longer records the page is not what makes a read long.
const SMALL_PAGES_RECORD_BYTES: Range<u64> = 512..4096;

/// The size of data pages for `records` records of `record_bytes` together.
pub fn page_size(geometry: &Geometry, records: u64, record_bytes: u64) -> PageSize {
    let mean_bytes = record_bytes / records.max(1);
    let is_readable = geometry.sector_bytes as usize <= PageSize::Small.bytes();
    match is_readable && SMALL_PAGES_RECORD_BYTES.contains(&mean_bytes) {
        true => PageSize::Small,
        false => PageSize::Large,
    }
}

#[derive(Clone, Copy, Debug)]
pub struct StreamLayout {
    extent_payload_bytes: u64,
    address: u64,
}

impl StreamLayout {
    pub fn new(geometry: &Geometry, page_size: PageSize) -> StreamLayout {
        let extent_payload_bytes = page_size.address(geometry.pages_per_extent(page_size.bytes()));
        StreamLayout { extent_payload_bytes, address: 0 }
    }

    /// The layout of a stream that has come to `address`.
    pub fn from(self, address: u64) -> StreamLayout {
        StreamLayout { address, ..self }
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

    /// The possible places of the next record if its length is not known: at the end, or at the start of the next extent.
    pub fn places_next(&self) -> [u64; 2] {
        [self.address, self.address.next_multiple_of(self.extent_payload_bytes)]
    }

    /// The end of the stream so far.
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
        let mut layout = StreamLayout::new(&geometry, PageSize::Large);
        let extent = layout.extent_payload_bytes;
        assert_eq!(layout.place(extent - 10), 0);
        assert_eq!(layout.place(11), extent);
        assert_eq!(layout.place(extent), extent + 11, "a large one crosses");
        assert_eq!(layout.end(), 2 * extent + 11);
        assert_eq!(layout.place(extent - 21), 2 * extent + 11);
        assert_eq!((layout.place(10), layout.end()), (3 * extent - 10, 3 * extent), "as much as is left");
    }

    #[test]
    fn records_of_middling_length_have_small_pages_where_sectors_allow_it() {
        let size = |sector_bytes, mean_bytes: u64| {
            let geometry = Geometry::new(4 << 20, 64 << 10, 2, sector_bytes).unwrap();
            page_size(&geometry, 10, 10 * mean_bytes)
        };
        assert_eq!([0, 511, 4096].map(|mean| size(512, mean)), [PageSize::Large; 3]);
        assert_eq!([512, 1049, 4095].map(|mean| size(512, mean)), [PageSize::Small; 3]);
        assert_eq!((size(2048, 1049), size(4096, 1049)), (PageSize::Small, PageSize::Large));
    }
}
