//! A partition built anew from its sorted entries, aside, while the old one serves.

use super::PartitionFull;
use super::geometry::IndexGeometry;
use super::partition::Partition;
use super::write::Scratch;
use std::io;
use tapetum_base::memory::region::Account;
use tapetum_kernels::hash::HashKey;

/// Takes the entries of one partition in ascending order of their hash keys, as many at a time as the caller likes.
pub struct PartitionBuilder {
    partition: Partition,
    number: usize,
    partition_bits: u32,
    scratch: Scratch,
    /// The bucket whose entries are in `scratch`.
    bucket: usize,
    entries: usize,
    last: Option<HashKey>,
}

impl PartitionBuilder {
    pub(super) fn new(
        geometry: IndexGeometry,
        number: usize,
        room_for: usize,
        account: &Account,
    ) -> io::Result<PartitionBuilder> {
        Ok(PartitionBuilder {
            partition: Partition::new(geometry, room_for, account)?,
            number,
            partition_bits: geometry.partition_bits,
            scratch: Scratch::new(geometry),
            bucket: 0,
            entries: 0,
            last: None,
        })
    }

    /// Appends an entry. After an error the builder is of no use: begin again with more room.
    pub fn push(&mut self, hash: HashKey, payload: u32) -> Result<(), PartitionFull> {
        assert!(hash.partition(self.partition_bits) == self.number, "{hash:?} is not of partition {}", self.number);
        assert!(self.last.is_none_or(|last| last < hash), "entries come in ascending order");
        let position = self.partition.position(hash);
        if position.bucket != self.bucket {
            self.write_bucket()?;
            self.bucket = position.bucket;
        }
        self.scratch.contents.push_last(position.tail, payload);
        self.last = Some(hash);
        self.entries += 1;
        Ok(())
    }

    pub fn entries(&self) -> usize {
        self.entries
    }

    fn write_bucket(&mut self) -> Result<(), PartitionFull> {
        if !self.scratch.contents.is_empty() {
            self.partition.encode(&mut self.scratch)?;
            self.partition.publish(self.bucket, &mut self.scratch);
            self.scratch.clear();
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<(usize, Partition), PartitionFull> {
        self.write_bucket()?;
        self.partition.set_entries(self.entries);
        Ok((self.number, self.partition))
    }
}
