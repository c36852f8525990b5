//! The place of the next record of a segment's stream: one rule for the writer, for the rebuild of fences from key tables, and for whoever
//! looks for records by their sizes.
//!
//! Records follow each other without gaps, except that a record of at most a quarter of an extent never crosses an
//! extent's end: it starts in the next one. So a small read never needs two commands.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLayout {
    extent_payload_bytes: u64,
    address: u64,
}

impl StreamLayout {
    /// A stream in extents that take so many bytes of it each.
    ///
    /// # Panics
    /// If they take none.
    pub fn new(extent_payload_bytes: u64) -> StreamLayout {
        assert!(extent_payload_bytes > 0, "an extent takes bytes of the stream");
        StreamLayout { extent_payload_bytes, address: 0 }
    }

    /// The layout of a stream that has come to `address`.
    pub fn from(self, address: u64) -> StreamLayout {
        StreamLayout { address, ..self }
    }

    pub fn extent_payload_bytes(&self) -> u64 {
        self.extent_payload_bytes
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
        let extent = 16 * 4084;
        let mut layout = StreamLayout::new(extent);
        assert_eq!(layout.place(extent - 10), 0);
        assert_eq!(layout.place(11), extent);
        assert_eq!(layout.place(extent), extent + 11, "a large one crosses");
        assert_eq!(layout.end(), 2 * extent + 11);
        assert_eq!(layout.place(extent - 21), 2 * extent + 11);
        assert_eq!((layout.place(10), layout.end()), (3 * extent - 10, 3 * extent), "as much as is left");
    }
}
