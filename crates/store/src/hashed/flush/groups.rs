//! Groups of a block device in a flush. A write buffer has blocks, each by itself; flash has groups, each one record with one entry of the
//! index. So a flush takes the blocks of a group together and adds those that only flash has, from the group's older record, which dies with
//! the install as any other does.
//!
//! ```text
//!   blocks in the buffer ──┐
//!                          ├─► group ─► record, or a death alone if all of it is holes
//!   older record, if any ──┘
//! ```
//! A *unit* is what has an entry of the index: a key, or a group. Collections may move an older record while it is looked for; nothing else
//! changes it before the install, because flushes are one at a time.

use crate::hashed::HashedEngine;
use crate::hashed::flush::key_check::Checked;
use crate::hashed::segment::view::Segment;
use std::ops::Range;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::io::Io;
use tapetum_base::media::transfer::Transfer;
use tapetum_drive::fail_point;
use tapetum_kernels::block_group::{GROUP_KEY_BYTES, Group, GroupBlock, group_hash, place_of};
use tapetum_kernels::data_page::PageRun;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Header, Kind, Record};

/// How often an older record that cannot be read is tried before the flush fails.
const READS_MAX: u32 = 8;
/// How often a group that collections keep moving is looked for.
const LOOKS_MAX: u32 = 1024;

/// The entries of a sorted buffer that are one unit with the entry at `at`.
pub fn unit_at(engine: &HashedEngine, buffer: u64, batch: &[(HashKey, u32)], at: usize) -> Range<usize> {
    if !engine.keyspaces.has_groups() {
        return at..at + 1;
    }
    // SAFETY: the table gave the place. Only the flush that we are part of releases the buffer, at its end.
    let is_grouped = |entry: &(HashKey, u32)| unsafe { engine.log.record(buffer, entry.1) }.header.grouped;
    if !is_grouped(&batch[at]) {
        return at..at + 1;
    }
    let group = group_hash(batch[at].0);
    let others = batch[at + 1..].iter().take_while(|entry| group_hash(entry.0) == group && is_grouped(entry));
    at..at + 1 + others.count()
}

/// The units of a sorted buffer, each with the place of its first record.
pub fn units_of(engine: &HashedEngine, buffer: u64, batch: Vec<(HashKey, u32)>) -> Vec<(HashKey, u32)> {
    if !engine.keyspaces.has_groups() {
        return batch;
    }
    let (mut units, mut at) = (Vec::with_capacity(batch.len()), 0);
    while at < batch.len() {
        let unit = unit_at(engine, buffer, &batch, at);
        let (hash, place) = batch[at];
        units.push((hash_of_unit(engine, buffer, hash, place), place));
        at = unit.end;
    }
    units
}

/// The hash key of the unit that an entry belongs to.
pub fn hash_of_unit(engine: &HashedEngine, buffer: u64, hash: HashKey, place: u32) -> HashKey {
    // SAFETY: as in `unit_at`.
    let grouped = engine.keyspaces.has_groups() && unsafe { engine.log.record(buffer, place) }.header.grouped;
    if grouped { group_hash(hash) } else { hash }
}

/// Makes records of groups, one after the other.
#[derive(Default)]
pub struct GroupMerger {
    older: Vec<u8>,
    frame: Vec<u8>,
    record: Vec<u8>,
}

impl GroupMerger {
    /// The record of the group that these entries of a buffer belong to, and its header; `None` if nothing of it is left.
    pub async fn merge(
        &mut self,
        engine: &HashedEngine,
        io: &Io,
        buffer: u64,
        entries: &[(HashKey, u32)],
        checked: Checked,
    ) -> Result<Option<(Header, &[u8])>, Error> {
        // SAFETY: the table gave the place. The buffer is released at the end of this flush.
        let record_at = |place: u32| unsafe { engine.log.record(buffer, place) };
        let first = record_at(entries[0].1);
        let keyspace = KeyspaceId::of(&first.header);
        if !engine.is_live_stamp(keyspace, first.header.stamp, Expiry::NONE, 0) {
            return Ok(None);
        }
        let count = engine.keyspaces.group_blocks(keyspace);
        let key = &first.key[..GROUP_KEY_BYTES];
        let misses = entries.len() < count && !fail_point!(BlockTornGroup);
        let is_older = matches!(checked, Checked::Older { .. }) && misses;
        let older = match is_older {
            true => read_older(engine, io, keyspace, key, group_hash(entries[0].0), &mut self.older).await?,
            false => Older::None,
        };
        let mut group = match older {
            Older::None => Group::of(count, GroupBlock::Hole),
            Older::Damaged => Group::of(count, GroupBlock::Lost),
            Older::There => match Group::parse(&self.older) {
                Ok(group) if group.count() == count => group,
                _ => Group::of(count, GroupBlock::Lost),
            },
        };
        let mut stamp = 0;
        for &(hash, place) in entries {
            let record = record_at(place);
            let block = match record.header.kind {
                Kind::Value => GroupBlock::of_record(&record),
                _ if fail_point!(BlockLostHole) => group.block(place_of(hash)),
                _ => GroupBlock::Hole,
            };
            group.set(place_of(hash), block);
            stamp = record.header.stamp.max(stamp);
        }
        if group.is_hole() {
            return Ok(None);
        }
        self.frame.clear();
        group.encode(&mut self.frame);
        let header =
            Header { keyspace: keyspace.0, grouped: true, ..Header::value(stamp, GROUP_KEY_BYTES, self.frame.len()) };
        self.record.clear();
        self.record.resize(header.record_bytes(), 0);
        Record { header, key, stored: &self.frame }.encode(&mut self.record);
        Ok(Some((header, &self.record)))
    }
}

/// The result of a look for a group's older record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Older {
    None,
    There,
    Damaged,
}

/// Reads the frame of a group from where the index has it now.
async fn read_older(
    engine: &HashedEngine,
    io: &Io,
    keyspace: KeyspaceId,
    key: &[u8],
    hash: HashKey,
    frame: &mut Vec<u8>,
) -> Result<Older, Error> {
    let mut failures = 0;
    for _ in 0..LOOKS_MAX {
        let sequence = engine.segments.sequence();
        let Some(segment) = engine.candidate(hash) else { return Ok(Older::None) };
        match find_in(engine, io, &segment, keyspace, key, hash, frame).await {
            Ok(Some(true)) => return Ok(Older::There),
            // The record was moved or evicted.
            Ok(_) if engine.segments.sequence() != sequence => io.step().await,
            Ok(_) => return Ok(Older::None),
            Err(Error::Corrupt(what)) => {
                tracing::error!("blocks of {key:02x?} in {keyspace:?} are lost: {what} is damaged");
                return Ok(Older::Damaged);
            }
            Err(Error::Io(_)) if failures + 1 < READS_MAX => failures += 1,
            // The drive may recover and still have the record: the flush fails, and the log keeps the new data.
            Err(error) => return Err(error),
        }
    }
    Err(Error::Corrupt(format!("the index names segments for {hash:?} in which no such group is")))
}

/// Looks for a group in a segment; whether what was found is valid there.
async fn find_in(
    engine: &HashedEngine,
    io: &Io,
    segment: &Arc<Segment>,
    keyspace: KeyspaceId,
    key: &[u8],
    hash: HashKey,
    frame: &mut Vec<u8>,
) -> Result<Option<bool>, Error> {
    for page in segment.start_pages(hash) {
        let span_bytes = segment.span_bytes(page);
        let buffer = io.allocate(span_bytes as usize).await?;
        let transfer = Transfer::read(io, buffer, 0, segment.data_runs(page, span_bytes));
        let (buffer, result) = transfer.end("read of a group").await;
        result?;
        let bytes = io.look(&buffer, 0..span_bytes as usize);
        let run = PageRun { bytes, first_page: page, page_size: segment.page_size() };
        let corrupt = |_| Error::Corrupt(format!("data page {page} of segment {}", segment.descriptor.number));
        let Some(found) = run.find(segment.salt, keyspace.0, key).map_err(corrupt)? else { continue };
        frame.clear();
        frame.resize(found.header.stored_bytes as usize, 0);
        run.copy(found.stored_address(), frame);
        let is_live = engine.is_live_stamp(keyspace, found.header.stamp, Expiry::NONE, 0);
        return Ok(Some(segment.is_valid(found.entry) && is_live));
    }
    Ok(None)
}

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;
