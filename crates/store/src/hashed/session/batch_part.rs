//! The hashed engine's part of a batch: its records, and the shards of their keys, locked in ascending order.

use super::HashedSession;
use crate::hashed::HashedEngine;
use crate::hashed::buffer::Shard;
use crate::hashed::large::inline_raw_bytes_max;
use crate::hashed::room::Admission;
use std::sync::MutexGuard;
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::log::Draft;
use tapetum_base::media::io::lock;
use tapetum_base::session::batch::{BatchPart, BatchStop, Write};
use tapetum_base::session::session_core::SessionCore;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::Codec;

pub struct HashedBatch<'a> {
    engine: &'a HashedEngine,
    writes: &'a [Write<'a>],
    hashes: Vec<HashKey>,
    /// The values as they are stored.
    values: Vec<(Codec, Vec<u8>)>,
    /// The numbers of the shards, ascending.
    numbers: Vec<usize>,
    /// Locked.
    shards: Vec<MutexGuard<'a, Shard>>,
}

impl HashedSession {
    /// Admits writes of a batch, and compresses their values.
    pub fn prepare<'a>(
        &mut self,
        engine: &'a HashedEngine,
        writes: &'a [Write<'a>],
    ) -> Result<HashedBatch<'a>, BatchStop> {
        if writes.iter().any(|write| write.keyspace().is_grouped()) {
            return Err(BatchStop::Refused(Error::Keyspace(KeyspaceError::IsGrouped)));
        }
        let hashes: Vec<HashKey> = writes.iter().map(|write| engine.hash(write.keyspace().id, write.key())).collect();
        let waits = engine.is_paced() || self.ops.deletes_all();
        if !writes.is_empty() && (waits || hashes.iter().any(|hash| self.ops.has_undecided(*hash))) {
            return Err(BatchStop::Busy);
        }
        if writes.iter().any(Write::is_put) {
            let has_probably = |hash| engine.has_probably(&engine.buffers.shard(hash), hash, hash);
            let overwrites = || writes.iter().zip(&hashes).all(|(write, &hash)| !write.is_put() || has_probably(hash));
            match engine.admit(overwrites) {
                Admission::Go => {}
                Admission::Wait => return Err(BatchStop::Busy),
                Admission::Refuse(error) => return Err(BatchStop::Refused(error)),
            }
        }
        let mut values = Vec::with_capacity(writes.len());
        for write in writes {
            let value = write.value();
            let (codec, stored) = match value.len() > inline_raw_bytes_max(&engine.geometry) {
                true => (Codec::Raw, value),
                false => self.compressor.compress(value),
            };
            values.push((codec, stored.to_vec()));
        }
        let bits = engine.geometry.partition_bits;
        let mut numbers: Vec<usize> = hashes.iter().map(|hash| hash.partition(bits)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Ok(HashedBatch { engine, writes, hashes, values, numbers, shards: Vec::new() })
    }
}

impl BatchPart for HashedBatch<'_> {
    fn lock(&mut self, _: &mut SessionCore) -> Result<(), BatchStop> {
        self.shards = self.numbers.iter().map(|number| lock(&self.engine.buffers.shards()[*number])).collect();
        if self.shards.iter().all(|shard| shard.has_room_for(self.writes.len())) {
            return Ok(());
        }
        // Room comes with a flush, and after a failure there is none.
        Err(self.engine.log.poisoned().map_or_else(BatchStop::Refused, |()| BatchStop::Full))
    }

    fn add_drafts<'a>(&'a self, drafts: &mut Vec<Draft<'a>>) {
        let drafted = |(write, (codec, stored)): (&Write<'a>, &'a (Codec, Vec<u8>))| write.draft(*codec, stored);
        drafts.extend(self.writes.iter().zip(&self.values).map(drafted));
    }

    fn appended(&mut self, _: &mut SessionCore, records: &[(u64, u32)]) {
        let bits = self.engine.geometry.partition_bits;
        for ((write, hash), (_, place)) in self.writes.iter().zip(&self.hashes).zip(records) {
            if write.is_put() {
                self.engine.block_maps.note_written(write.keyspace().id, write.key());
            }
            if let Ok(at) = self.numbers.binary_search(&hash.partition(bits)) {
                self.engine.insert(&mut self.shards[at], *hash, *place);
            }
        }
    }
}
