//! The holes of a block device, as far as memory knows them.

use super::Session;
use std::ops::Range;
use tapetum_base::keyspace::block_device::{AbsentBlocks, BlockDevice};
use tapetum_base::keyspace::states::KeyspaceRef;

impl Session {
    /// Counts how many of these blocks of a device, from the first on, are certainly absent, by about `looks_max` looks. The range may be longer than
    /// one could ask for by [`Session::has_probably`]. Reads no flash. The first question of a device looks through the write buffers.
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
