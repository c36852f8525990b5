//! A record that lies in one piece: those of data nodes, values out of line, and most of a segment's, which are found without asking for
//! the page of each of their bytes.

use super::Entry;
use crate::checksum::checksum;
use crate::data_page::SegmentSalt;
use crate::record::{Header, Kind};
use std::ops::Range;

pub struct PlainEntry<'a> {
    pub header: Header,
    pub key: &'a [u8],
    pub stored: &'a [u8],
}

/// A record of a segment, with all of its bytes.
pub(super) struct PlainRecord<'a> {
    pub entry: PlainEntry<'a>,
    bytes: &'a [u8],
}

impl<'a> PlainRecord<'a> {
    /// The record at the front of `rest`, which is the rest of a page's stream; `None` where it goes on in the next page, or is none.
    /// Its checksum is not looked at. Inline, for [`Header::parse_inline`]'s reason.
    #[inline(always)]
    pub fn parse(rest: &'a [u8]) -> Option<PlainRecord<'a>> {
        let (header, header_bytes) = Header::parse_inline(rest).ok()?;
        let (key_bytes, stored_bytes) = (header.key_bytes as usize, header.stored_bytes as usize);
        let bytes = rest.get(..header_bytes + key_bytes + stored_bytes)?;
        let (key, stored) = bytes[header_bytes..].split_at(key_bytes);
        let entry = PlainEntry { header, key, stored };
        // Nothing else is in a segment.
        (entry.header.kind == Kind::Value).then_some(PlainRecord { entry, bytes })
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

impl PlainEntry<'_> {
    /// Where its key and its stored bytes lie in the bytes that it was shown in.
    #[inline]
    pub fn places(&self, bytes: &[u8]) -> [Range<u32>; 2] {
        let place = |part: &[u8]| {
            let at = part.as_ptr().addr().wrapping_sub(bytes.as_ptr().addr()) as u32;
            at..at + part.len() as u32
        };
        [place(self.key), place(self.stored)]
    }
}

impl Entry for PlainEntry<'_> {
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
