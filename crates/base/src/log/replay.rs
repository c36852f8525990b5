//! Reads a log zone back: finds the valid groups, and the damage if valid groups follow invalid ones.
//!
//! A user's value may look like the head of a group, and thousands of them may claim everything behind them. [`RangeChecksums`] avoids a separate
//! checksum pass for each claim.
//!
//! The log ends at the first group that is invalid or does not follow the one before: a crash cut it there. Exception: if a later group says that
//! more was durable already, that is damage, and an error names its place.

use super::group::{self, GroupHeader, HEADER_BYTES};
use super::group_salt;
use crate::error::Error;
use crate::media::geometry::{BUFFERS, Geometry};
use std::collections::VecDeque;
use std::ops::Range;
use tapetum_drive::fail_point;
use tapetum_kernels::range_checksums::RangeChecksums;
use tapetum_kernels::record::Record;

/// The state of the chain of groups while reading.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The crc of the last group; at first, of the last group that is in a segment.
    pub previous_crc: u32,
    /// The last stamp known to have been given.
    pub stamp_last: u64,
    /// Groups that no later group reports as durable.
    pub unsure: VecDeque<UnsureGroup>,
}

impl Chain {
    pub fn new(previous_crc: u32, stamp_last: u64) -> Chain {
        Chain { previous_crc, stamp_last, unsure: VecDeque::new() }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnsureGroup {
    pub buffer: u64,
    /// The group's bytes in the zone, in whole sectors.
    pub bytes: Range<usize>,
    stamp_last: u64,
}

pub struct ZoneReader<'a> {
    pub geometry: &'a Geometry,
    pub store_id: u64,
}

/// The end of the groups in one zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneEnd {
    pub groups: u32,
    /// The offset of the next group, if there were one.
    pub position: usize,
}

impl ZoneReader<'_> {
    fn group_at(&self, zone: &RangeChecksums<'_>, buffer: u64, position: usize) -> Option<GroupHeader> {
        let bytes = zone.bytes().get(position..)?;
        let header = group::parse(bytes)?;
        let salt = group_salt(self.geometry, self.store_id, buffer, position);
        let is_here = fail_point!(SkipChain) || (header.buffer == buffer && header.position as usize == position);
        let holds = || {
            fail_point!(SkipGroupChecksum)
                || (fail_point!(SkipChain) && {
                    let salt = group_salt(self.geometry, self.store_id, header.buffer, header.position as usize);
                    group::holds(&header, salt, zone, position)
                })
                || group::holds(&header, salt, zone, position)
        };
        (is_here && header.length as usize <= bytes.len() && holds()).then_some(header)
    }

    /// The buffer of the group at `position`, if it is later than `buffer` and the group is valid.
    fn later_buffer_at(&self, zone: &RangeChecksums<'_>, buffer: u64, position: usize) -> Option<u64> {
        let header = group::parse(zone.bytes().get(position..)?)?;
        let is_here = header.buffer % BUFFERS == buffer % BUFFERS && header.position as usize == position;
        if header.buffer <= buffer || !is_here {
            return None;
        }
        let salt = group_salt(self.geometry, self.store_id, header.buffer, position);
        group::holds(&header, salt, zone, position).then_some(header.buffer)
    }

    /// Reads the records of `buffer` from its zone's image, in order; `take` gets each record and its place.
    pub fn replay(
        &self,
        zone: &[u8],
        buffer: u64,
        chain: &mut Chain,
        mut take: impl FnMut(u32, Record<'_>),
    ) -> Result<ZoneEnd, Error> {
        let mut end = ZoneEnd { groups: 0, position: 0 };
        let sums = RangeChecksums::of(zone);
        while let Some(header) = self.group_at(&sums, buffer, end.position) {
            let follows = chain.previous_crc == header.previous_crc;
            if !follows && !fail_point!(SkipChain) {
                break;
            }
            let at = end.position + HEADER_BYTES;
            // Stamps that no record has may lie between those of a group.
            let mut stamp_last = header.stamp_first.saturating_sub(1);
            let records = self.records(&zone[at..end.position + header.length as usize], &header, |place, record| {
                stamp_last = stamp_last.max(record.header.stamp);
                take((at + place) as u32, record);
            });
            if records != header.records && !fail_point!(SkipGroupChecksum) {
                return Err(Error::Corrupt(format!(
                    "the log group at byte {} of buffer {buffer} holds {records} records instead of {}",
                    end.position, header.records
                )));
            }
            chain.previous_crc = header.crc;
            chain.stamp_last = chain.stamp_last.max(stamp_last);
            let next = end.position + (header.length as usize).next_multiple_of(self.geometry.sector_bytes as usize);
            chain.unsure.push_back(UnsureGroup { buffer, bytes: end.position..next, stamp_last });
            while chain.unsure.front().is_some_and(|group| group.stamp_last <= header.durable_stamp) {
                chain.unsure.pop_front();
            }
            end.groups += 1;
            end.position = next;
        }
        Ok(end)
    }

    fn records(&self, bytes: &[u8], header: &GroupHeader, mut take: impl FnMut(usize, Record<'_>)) -> u32 {
        let mut at = 0;
        let mut count = 0;
        while count < header.records {
            let Ok(record) = Record::parse(&bytes[at..]) else { break };
            take(at, record);
            at += record.header.record_bytes();
            count += 1;
        }
        count
    }

    /// An error if a valid group behind `from` shows damage: it was sent when stamps beyond the chain's end were durable, or the zone has gone on to
    /// a later buffer. A later buffer is allowed only if the manifest has the earlier one in a segment.
    pub fn refuse_gap(&self, zone: &[u8], buffer: u64, from: usize, chain: &Chain) -> Result<(), Error> {
        if fail_point!(SkipLogGap) {
            return Ok(());
        }
        let sums = RangeChecksums::of(zone);
        for position in (from..zone.len()).step_by(self.geometry.sector_bytes as usize) {
            if let Some(later) = self.later_buffer_at(&sums, buffer, position) {
                return Err(Error::Corrupt(format!(
                    "the manifest has lost its end: it does not know that buffer {buffer} is in a segment, although the \
                     commit log has gone on to buffer {later}"
                )));
            }
            let Some(header) = self.group_at(&sums, buffer, position) else { continue };
            if header.durable_stamp > chain.stamp_last {
                return Err(Error::Corrupt(format!(
                    "the commit log breaks off at byte {from} of buffer {buffer} (stamp {}) although stamp {} was durable",
                    chain.stamp_last, header.durable_stamp
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_that_has_gone_on_to_a_later_buffer_convicts_a_manifest_that_has_not() {
        let geometry = Geometry::new(4 << 20, 64 << 10, 2, 512).unwrap();
        let reader = ZoneReader { geometry: &geometry, store_id: 7 };
        let chain = Chain::new(0, 9);
        let group_of = |buffer: u64| {
            let header = GroupHeader {
                crc: 0,
                buffer,
                position: 512,
                length: HEADER_BYTES as u32 + 8,
                stamp_first: 5,
                records: 1,
                generation: 1,
                previous_crc: 3,
                durable_stamp: 4,
            };
            let mut zone = vec![0; 2048];
            let (head, _) = group::seal(&header, group_salt(&geometry, 7, buffer, 512), &[1; 8]);
            zone[512..512 + HEADER_BYTES].copy_from_slice(&head);
            zone[512 + HEADER_BYTES..][..8].fill(1);
            zone
        };
        assert_eq!(reader.refuse_gap(&group_of(3), 5, 0, &chain), Ok(()), "an earlier tenant of the zone");
        let mut zone = group_of(7);
        let refused = reader.refuse_gap(&zone, 5, 0, &chain).unwrap_err().to_string();
        assert!(refused.contains("gone on to buffer 7"), "{refused}");
        zone[512 + HEADER_BYTES] ^= 1;
        assert_eq!(reader.refuse_gap(&zone, 5, 0, &chain), Ok(()), "what does not hold says nothing");
        // It does not matter in which opening of the store the group was written: the manifest may have lost the last opening as well.
        let chain = Chain { stamp_last: 3, ..chain };
        let refused = reader.refuse_gap(&group_of(5), 5, 0, &chain).unwrap_err().to_string();
        assert!(refused.contains("although stamp 4 was durable"), "{refused}");
    }
}
