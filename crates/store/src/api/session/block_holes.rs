//! What memory knows of the holes of a block device.

use super::Session;
use std::ops::Range;
use tapetum_base::keyspace::block_device::{AbsentBlocks, BlockDevice};
use tapetum_base::keyspace::states::KeyspaceRef;

impl Session {
    /// How many of the first of these blocks of a device are absent for certain, also where that is more than one could ask for by
    /// [`Session::has_probably`], by about `looks_max` looks. Reads no flash. The first question of a device looks through the write buffers.
    pub fn absent_blocks(
        &self,
        keyspace: KeyspaceRef,
        device: BlockDevice,
        blocks: Range<u64>,
        looks_max: usize,
    ) -> AbsentBlocks {
        self.hashed_engine.absent_blocks(keyspace, device, blocks, looks_max)
    }
}
