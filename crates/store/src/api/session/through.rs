//! Gets whose values go through programs of the drive.

use super::{Busy, Session};
use crate::hashed::session::ItemPipeline;
use tapetum_base::keyspace::states::KeyspaceRef;

impl Session {
    /// As [`Session::submit_to`], for a get whose value goes through programs of the drive; the reply's value is the output of the last. For an item
    /// on flash only this output comes to the host: the drive reads the item, and the programs run where it lies. An item in a write buffer or in the
    /// DRAM tier is the host's own and is copied to the drive first. It does not go into the DRAM tier.
    ///
    /// A failure in the pipeline is [`Error::Pipeline`](crate::Error::Pipeline), by the place among the given stages. While [`Session::is_ready`],
    /// another poll gets further.
    ///
    /// # Errors
    /// As [`Session::submit`].
    pub fn submit_through(
        &mut self,
        keyspace: KeyspaceRef,
        token: u64,
        key: &[u8],
        pipeline: &ItemPipeline,
    ) -> Result<(), Busy> {
        if !self.has_room() {
            return Err(Busy);
        }
        self.hashed.start_through((&mut self.core, &self.hashed_engine), keyspace, token, key, pipeline);
        Ok(())
    }

    /// Gives up the gets through programs that were submitted with this token. Each is replied to all the same: with its result if that was there
    /// already, else with [`Error::Pipeline`](crate::Error::Pipeline), which says that it was cancelled.
    pub fn cancel_through(&mut self, token: u64) {
        self.hashed.cancel_through(&mut self.core, token);
    }
}
