//! Requests that DRAM answers at once, in the stages of flash KVS: hash, tags, data. A caller takes many keys through each stage before the next, so
//! that all of them wait for memory at the same time.
//!
//! Invariant: an answer given here is the one that [`Session::submit`] would give, after everything that was submitted before. A request that is not
//! answered here is to be submitted.

use super::Session;
use crate::hashed::session::{KeyDigest, PlainPut};
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::log::Sync;
use tapetum_base::request::item::{Access, ItemHead};

impl Session {
    /// Whether gets are ever answered here: the store has a DRAM tier.
    pub fn answers_from_dram(&self) -> bool {
        self.hashed_engine.tier.is_some()
    }

    /// Whether puts are ever done here: they need not wait to be durable.
    pub fn puts_at_once(&self) -> bool {
        let base = &self.hashed_engine.base;
        // What a fence may take back goes through polls.
        self.hashed_engine.options.sync != Sync::Always && base.fence.get().is_none()
    }

    /// First stage: hashes keys of a keyspace, and prefetches the data of the second stage. `digests` are at least as many.
    pub fn digest_each(&self, keyspace: KeyspaceRef, keys: &[&[u8]], digests: &mut [KeyDigest]) {
        self.hashed.digest_each(&self.hashed_engine, keyspace, keys, digests);
    }

    /// As [`Session::digest_each`], of one key.
    pub fn digest(&self, keyspace: KeyspaceRef, key: &[u8]) -> KeyDigest {
        let mut digest = [KeyDigest::default()];
        self.digest_each(keyspace, &[key], &mut digest);
        digest[0]
    }

    /// Second stage: finds, without waiting for anybody, where the keys are, and prefetches their items. `puts` has a bit for each of the keys, at
    /// most 32, that is set for puts: for these the place of the new record is prefetched.
    pub fn fetch_each(&self, keys: &[KeyDigest], puts: u32) {
        self.hashed.fetch_each(&self.hashed_engine, keys, puts);
    }

    /// Third stage of a get: appends to `out` the output of `head`, which sees the item and its use before, and then the value. Nothing is appended,
    /// and the get is to be submitted, if `head` refuses, if DRAM does not have the item, or if something comes first: an earlier submission, or the
    /// durability of the item.
    pub fn get_from_dram(
        &mut self,
        keyspace: KeyspaceRef,
        digest: KeyDigest,
        out: &mut Vec<u8>,
        head: impl FnMut(&mut Vec<u8>, &ItemHead, &dyn Fn() -> Access) -> bool,
    ) -> Option<ItemHead> {
        self.hashed.get_from_dram(&self.hashed_engine, keyspace, digest, out, head)
    }

    /// Third stage of a put over whatever the key has: its stamp. `None`: nothing was written, and the put is to be submitted, because it has to
    /// wait, for durability too, is refused, or has a long value.
    pub fn put_at_once(&mut self, keyspace: KeyspaceRef, digest: KeyDigest, put: PlainPut<'_>) -> Option<u64> {
        self.hashed.put_at_once(&self.hashed_engine, keyspace, digest, put)
    }
}
