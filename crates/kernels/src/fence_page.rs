//! The fence page: 4 KiB of a segment's local index as it lies on flash behind the key table.
//!
//! ```text
//!  0      4                                4096
//!  +------+--------------------------------+
//!  | crc  | 4092 bytes of the local index  |
//!  | u32  |                                |
//!  +------+--------------------------------+
//! ```
//! The store defines the bytes (`store/segment/local_index.rs`). The crc covers them, salted with the page's number
//! among the segment's fence pages and the segment's version.

use crate::checksum::checksum;
use crate::data_page::{Corrupt, PAGE_BYTES, SegmentSalt};

/// Bytes of the local index in a page.
pub const FENCE_PAYLOAD_BYTES: usize = PAGE_BYTES - 4;
/// Keeps fence pages apart from key-table pages, data pages and records in the salt's address.
const ADDRESS_FENCES: u64 = 3 << 62;

/// Writes page `page` with `payload`. The last page's payload is shorter than the page.
pub fn encode(salt: SegmentSalt, page: u32, payload: &[u8], out: &mut [u8]) {
    assert!(payload.len() <= FENCE_PAYLOAD_BYTES && out.len() == PAGE_BYTES);
    out[4..4 + payload.len()].copy_from_slice(payload);
    out[4 + payload.len()..].fill(0);
    let crc = checksum(salt.at(ADDRESS_FENCES | u64::from(page)), &[&out[4..]]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
}

/// The payload of a page, if its checksum is right.
pub fn parse(salt: SegmentSalt, page: u32, bytes: &[u8]) -> Result<&[u8], Corrupt> {
    let bytes = bytes.get(..PAGE_BYTES).ok_or(Corrupt)?;
    let crc = checksum(salt.at(ADDRESS_FENCES | u64::from(page)), &[&bytes[4..]]);
    if bytes[..4] == crc.to_le_bytes() { Ok(&bytes[4..]) } else { Err(Corrupt) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let salt = SegmentSalt { store: 1, version: 2 };
        let mut page = vec![7; PAGE_BYTES];
        encode(salt, 3, b"fences", &mut page);
        let payload = parse(salt, 3, &page).unwrap();
        assert!(payload.starts_with(b"fences\0") && payload.len() == FENCE_PAYLOAD_BYTES);
        assert!(parse(salt, 2, &page).is_err() && parse(SegmentSalt { version: 3, ..salt }, 3, &page).is_err());
        page[4000] ^= 1;
        assert!(parse(salt, 3, &page).is_err());
    }
}
