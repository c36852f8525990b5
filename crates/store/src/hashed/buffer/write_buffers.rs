//! The write buffers' tables as one: all shards, and the glance at them.
//!
//! Threads: any. Lock order: shards, ascending.

use super::{Glance, Place, Shard};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use tapetum_base::error::Error;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::lock;
use tapetum_kernels::hash::HashKey;

pub struct WriteBuffers {
    shards: Vec<Mutex<Shard>>,
    pub glance: Glance,
    partition_bits: u32,
    /// Bytes of the extents that the active buffer names.
    large_named_bytes: AtomicU64,
}

impl WriteBuffers {
    /// Empty buffers; the first is `buffer`.
    pub fn new(geometry: &Geometry, buffer: u64) -> Result<WriteBuffers, Error> {
        let entries = geometry.buffer_entries_max() / geometry.partitions();
        let (shards, glance) = Shard::many(geometry.partitions(), entries, buffer)
            .map_err(|error| Error::Io(format!("no memory for the write buffers' tables: {error}")))?;
        let shards = shards.into_iter().map(Mutex::new).collect();
        let (partition_bits, large_named_bytes) = (geometry.partition_bits, AtomicU64::new(0));
        Ok(WriteBuffers { shards, glance, partition_bits, large_named_bytes })
    }

    /// All of them: as many as the index has partitions, in the order of hash keys.
    pub fn shards(&self) -> &[Mutex<Shard>] {
        &self.shards
    }

    pub fn shard(&self, hash: HashKey) -> MutexGuard<'_, Shard> {
        lock(&self.shards[self.number(hash)])
    }

    fn number(&self, hash: HashKey) -> usize {
        hash.partition(self.partition_bits)
    }

    /// The place at which a buffer seems to have a key's record. Takes no lock.
    pub fn glance(&self, hash: HashKey) -> Option<Place> {
        self.glance.look(self.number(hash), hash)
    }

    /// Prefetches the line that a look for a key reads first.
    pub fn prefetch(&self, hash: HashKey) {
        self.glance.prefetch(self.number(hash), hash);
    }

    /// The buffer that takes the next write.
    pub fn active(&self) -> u64 {
        lock(&self.shards[0]).active()
    }

    /// The oldest buffer that is in no segment.
    pub fn oldest(&self) -> u64 {
        lock(&self.shards[0]).oldest()
    }

    /// The buffer that is sealed and waits for its flush.
    pub fn sealed(&self) -> Option<u64> {
        lock(&self.shards[0]).sealed()
    }

    /// Keys in all of them; those in both count twice.
    pub fn entries(&self) -> u64 {
        self.shards.iter().map(|shard| lock(shard).entries() as u64).sum()
    }

    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).bytes()).sum()
    }

    /// Makes a change while every shard is held; goes on to the buffer that it gives.
    pub fn hold(&self, change: &mut dyn FnMut() -> Option<u64>) {
        let mut shards: Vec<_> = self.shards.iter().map(lock).collect();
        let Some(buffer) = change() else { return };
        self.large_named_bytes.store(0, Ordering::Relaxed);
        shards.iter_mut().for_each(|shard| shard.rotate(buffer));
        self.glance.rotate(buffer);
    }

    /// Forgets a buffer that is in a segment.
    pub fn release(&self, buffer: u64) {
        self.shards.iter().for_each(|shard| lock(shard).release(buffer));
        self.glance.release(buffer);
    }

    /// Adds to the large bytes that the active buffer names.
    pub fn name_large(&self, bytes: u64) {
        self.large_named_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn large_named_bytes(&self) -> u64 {
        self.large_named_bytes.load(Ordering::Relaxed)
    }
}
