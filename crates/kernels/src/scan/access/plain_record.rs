//! A record of a segment that lies in one piece: most do, and are found without asking for the page of each of their bytes.

use super::Entry;
use crate::checksum::checksum;
use crate::data_page::SegmentSalt;
use crate::record::{Header, Kind};

#[derive(Clone, Copy)]
pub(super) struct PlainRecord<'a> {
    header: Header,
    key: &'a [u8],
    stored: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> PlainRecord<'a> {
    /// The record at the front of `rest`, which is the rest of a page's stream; `None` where it goes on in the next page, or is none.
    /// Its checksum is not looked at.
    #[inline]
    pub fn parse(rest: &'a [u8]) -> Option<PlainRecord<'a>> {
        let (header, header_bytes) = Header::parse(rest).ok()?;
        let (key_bytes, stored_bytes) = (header.key_bytes as usize, header.stored_bytes as usize);
        let bytes = rest.get(..header_bytes + key_bytes + stored_bytes)?;
        let (key, stored) = bytes[header_bytes..].split_at(key_bytes);
        // Nothing else is in a segment.
        (header.kind == Kind::Value).then_some(PlainRecord { header, key, stored, bytes })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether it has the checksum of a record at this address of the segment's stream.
    #[inline]
    pub fn is_intact(&self, salt: SegmentSalt, address: u64) -> bool {
        let (crc, covered) = self.bytes.split_at(4);
        *crc == checksum(salt.at(address), &[covered]).to_le_bytes()
    }
}

impl Entry for PlainRecord<'_> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn copy_key(&self, out: &mut [u8]) {
        out.copy_from_slice(self.key);
    }

    fn copy_stored(&self, out: &mut [u8]) {
        out.copy_from_slice(self.stored);
    }
}
