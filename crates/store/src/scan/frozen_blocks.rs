//! The blocks of a block device as a freeze has them.
//!
//! Where blocks are in groups on flash, a block that write buffers have a word on is theirs, also when it was trimmed; the others are in the record of
//! their group.

use super::query_scan::QueryError;
use super::snapshot_items::SnapshotItems;
use crate::api::blocking::KeyspaceHandle;
use crate::freeze::FrozenPart;
use crate::hashed::session::block_of;
use crate::hashed::snapshot::{BufferedRecords, Snapshot};
use std::collections::VecDeque;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::keyspace::block_device::{BLOCK_BYTES, BlockDevice};
use tapetum_kernels::codec::Decompressor;

/// The blocks that are not all zeros or trimmed, by their numbers, each once, in no order that means anything.
///
/// # Errors
/// As [`SnapshotItems`]. An error ends it.
pub struct FrozenBlocks {
    device: BlockDevice,
    items: SnapshotItems,
    records: Arc<BufferedRecords>,
    deleted_through: u64,
    decompressor: Decompressor,
    found: VecDeque<(u64, Vec<u8>)>,
    is_over: bool,
}

impl FrozenBlocks {
    pub(super) fn new(keyspace: &KeyspaceHandle, device: BlockDevice) -> Result<FrozenBlocks, QueryError> {
        let items = SnapshotItems::of_device(keyspace)?;
        let part = keyspace.frozen().map(|(frozen, entry)| frozen.part(entry));
        let Some(FrozenPart::Hashed(snapshot)) = part else { return Err(QueryError::Result) };
        let decompressor = Decompressor::new().map_err(|error| Error::Io(error.to_string()))?;
        let (records, deleted_through): (_, u64) = (Snapshot::records(&snapshot), snapshot.deleted_through());
        let found = VecDeque::new();
        let mut blocks = FrozenBlocks { device, items, records, deleted_through, decompressor, found, is_over: false };
        blocks.take_buffered()?;
        Ok(blocks)
    }

    fn take_buffered(&mut self) -> Result<(), QueryError> {
        let records = self.records.clone();
        for (key, item) in &records.blocks {
            if let Some(item) = item {
                let (first, place) = parts_of(key)?;
                let value = item.value(&mut self.decompressor)?;
                self.found.push_back((first + place, value));
            }
        }
        Ok(())
    }

    /// Takes the blocks of an item: a group's record, or one block.
    fn take(&mut self, key: &[u8], value: Vec<u8>) -> Result<(), QueryError> {
        let (first, _) = parts_of(key)?;
        if self.device.group_blocks() == 1 {
            self.found.push_back((first, value));
            return Ok(());
        }
        for place in 0..self.device.group_blocks() as usize {
            let (number, mut block) = (first + place as u64, Vec::with_capacity(BLOCK_BYTES));
            if self.records.blocks.contains_key(&self.device.key(number)[..]) {
                continue;
            }
            let found = block_of(&value, place, &mut self.decompressor, &mut block)?;
            if found.is_some_and(|found| found.stamp > self.deleted_through) {
                self.found.push_back((number, block));
            }
        }
        Ok(())
    }

    fn next_block(&mut self) -> Result<Option<(u64, Vec<u8>)>, QueryError> {
        loop {
            if let Some(block) = self.found.pop_front() {
                return Ok(Some(block));
            }
            let Some((key, item)) = self.items.next().transpose()? else { return Ok(None) };
            self.take(&key, item.value)?;
        }
    }
}

impl Iterator for FrozenBlocks {
    type Item = Result<(u64, Vec<u8>), QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let next = self.next_block();
        self.is_over = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

/// The number of a key's first block, and the place behind it.
fn parts_of(key: &[u8]) -> Result<(u64, u64), Error> {
    let malformed = || Error::Corrupt(format!("the key {key:?} of a block device"));
    let (first, place) = key.split_first_chunk::<8>().ok_or_else(malformed)?;
    let place = match place {
        [] => 0,
        [place] => u64::from(*place),
        _ => return Err(malformed()),
    };
    Ok((u64::from_be_bytes(*first), place))
}
