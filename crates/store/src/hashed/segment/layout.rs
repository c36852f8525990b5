//! How a segment's stream is laid out: the size of its pages, and the bytes that an extent takes of it.

use std::ops::Range;
use tapetum_base::media::geometry::Geometry;
use tapetum_kernels::data_page::PageSize;
use tapetum_kernels::stream_layout::StreamLayout;

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

/// The stream of a segment with pages of this size, from its start on.
pub fn stream_layout(geometry: &Geometry, page_size: PageSize) -> StreamLayout {
    StreamLayout::new(page_size.address(geometry.pages_per_extent(page_size.bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

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
