//! The log group: records that become durable together, so a batch within it is all or nothing.
//!
//! ```text
//!   0 magic "TLOG"      16 position u32 (in the zone)   36 generation u32
//!   4 crc u32           20 length u32 (with this head)  40 previous crc u32, zero u32
//!   8 buffer u64        24 stamp first u64              48 durable stamp u64
//!                       32 records u32                  56 zero u64           64 records …
//! ```
//! Each group starts on a fresh sector of its buffer's zone. The crc covers the group behind it, salted with its place on
//! flash and the buffer's number. `previous crc` chains the groups, across buffers too, so that no stale group is taken
//! for the next one; `durable stamp` is what was durable when the group was sent: a hole below it is damage, not a crash.

use crate::media::wire::{Reader, Short, Writer};
use tapetum_kernels::checksum::{Salt, checksum};
use tapetum_kernels::range_checksums::RangeChecksums;

pub const HEADER_BYTES: usize = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"TLOG");

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupHeader {
    pub crc: u32,
    pub buffer: u64,
    pub position: u32,
    /// Bytes of the group with its head, without padding.
    pub length: u32,
    pub stamp_first: u64,
    pub records: u32,
    pub generation: u32,
    pub previous_crc: u32,
    pub durable_stamp: u64,
}

/// The head for a group of `records`, and its crc.
pub fn seal(header: &GroupHeader, salt: Salt, records: &[u8]) -> ([u8; HEADER_BYTES], u32) {
    assert_eq!(HEADER_BYTES + records.len(), header.length as usize);
    let mut writer = Writer::default();
    writer.u32(MAGIC);
    writer.u32(0);
    writer.u64(header.buffer);
    writer.u32(header.position);
    writer.u32(header.length);
    writer.u64(header.stamp_first);
    writer.u32(header.records);
    writer.u32(header.generation);
    writer.u32(header.previous_crc);
    writer.u32(0);
    writer.u64(header.durable_stamp);
    writer.u64(0);
    let mut head = [0; HEADER_BYTES];
    head.copy_from_slice(&writer);
    let crc = checksum(salt, &[&head[8..], records]);
    head[4..8].copy_from_slice(&crc.to_le_bytes());
    (head, crc)
}

/// Reads the head at the start of `bytes`; `None` when there is none.
pub fn parse(bytes: &[u8]) -> Option<GroupHeader> {
    let mut reader = Reader::new(bytes.get(..HEADER_BYTES)?);
    let mut fields = || -> Result<(u32, GroupHeader), Short> {
        let (magic, crc, buffer) = (reader.u32()?, reader.u32()?, reader.u64()?);
        let (position, length, stamp_first) = (reader.u32()?, reader.u32()?, reader.u64()?);
        let (records, generation, previous_crc) = (reader.u32()?, reader.u32()?, reader.u32()?);
        reader.u32()?;
        let durable_stamp = reader.u64()?;
        Ok((
            magic,
            GroupHeader {
                crc,
                buffer,
                position,
                length,
                stamp_first,
                records,
                generation,
                previous_crc,
                durable_stamp,
            },
        ))
    };
    let (magic, header) = fields().ok()?;
    (magic == MAGIC && header.length as usize >= HEADER_BYTES).then_some(header)
}

/// Whether the whole group at `position` of the zone is what was sealed.
pub fn holds(header: &GroupHeader, salt: Salt, zone: &RangeChecksums<'_>, position: usize) -> bool {
    zone.checksum(salt, position + 8..position + header.length as usize) == Some(header.crc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_holds_and_nothing_else_does() {
        let salt = Salt { store: 1, address: 2, version: 3 };
        let mut header = GroupHeader {
            crc: 0,
            buffer: 3,
            position: 512,
            length: 100,
            stamp_first: 7,
            records: 2,
            generation: 4,
            previous_crc: 5,
            durable_stamp: 6,
        };
        let mut group = vec![9; 100];
        let (head, crc) = seal(&header, salt, &group[HEADER_BYTES..]);
        group[..HEADER_BYTES].copy_from_slice(&head);
        header.crc = crc;
        assert_eq!(parse(&group), Some(header));
        let holds = |salt, group: &[u8]| holds(&header, salt, &RangeChecksums::of(group), 0);
        assert!(holds(salt, &group));
        assert!(!holds(Salt { address: 3, ..salt }, &group));
        assert!(!holds(salt, &group[..99]));
        group[80] ^= 1;
        assert!(!holds(salt, &group));
        assert_eq!(parse(&[0; 64]), None);
        let changed = |at: usize, to: u8| parse(&[&group[..at], &[to], &group[at + 1..]].concat());
        assert_eq!((changed(0, 0), changed(20, HEADER_BYTES as u8 - 1)), (None, None));
        assert!(changed(20, HEADER_BYTES as u8).is_some());
    }
}
