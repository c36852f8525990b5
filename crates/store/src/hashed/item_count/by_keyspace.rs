//! Items by keyspace: keys on flash, counted at each install, and an estimate, from a sample of the write buffers, of how many more there are.
//!
//! Invariants:
//! 1. A key counts as on flash while the index maps it to a segment: an install says which keys come in and go out, and an opening counts all of
//!    them, from the checkpoint or from key tables.
//! 2. Items that have expired, or are deleted with everything else, count until flush, collector or purge reclaims their room.
//! 3. An exact count looks each key of the write buffers up in key tables, with the installer held: nothing goes to flash meanwhile.
//! 4. A sample of the write buffers is at most [`KEYS_LOOKED_AT`] keys. If there are no more, each key counts exactly, except keys that the index
//!    takes for others; else the sample stands for the rest.
//!
//! Threads: the holder of the installer changes counts, anyone asks.

use super::KEYS_AT_ONCE;
use crate::hashed::HashedEngine;
use crate::hashed::buffer::{Place, Shard};
use crate::hashed::flush::key_check::{Checked, Relied, check_keys};
use std::sync::{Arc, Mutex};
use tapetum_base::engine::ItemCounts;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::io::{Io, lock};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Kind, Record};

/// Keys of write buffers that one count looks at: a fraction of a millisecond, and right to a few percent.
const KEYS_LOOKED_AT: usize = 4096;

/// Numbers of items by keyspace: counts, or what is to be added to counts.
#[derive(Clone, Default, Debug)]
pub struct ItemTally {
    by_id: Vec<i64>,
}

impl ItemTally {
    pub fn add(&mut self, KeyspaceId(id): KeyspaceId, items: i64) {
        let at = usize::from(id);
        if at >= self.by_id.len() {
            self.by_id.resize(at + 1, 0);
        }
        self.by_id[at] += items;
    }

    pub fn append(&mut self, other: &ItemTally) {
        other.iter().for_each(|(id, items)| self.add(id, items));
    }

    /// Those that are not zero.
    pub fn iter(&self) -> impl Iterator<Item = (KeyspaceId, i64)> + '_ {
        let all = (0..=u16::MAX).map(KeyspaceId).zip(self.by_id.iter().copied());
        all.filter(|(_, items)| *items != 0)
    }

    pub fn sum(&self) -> i64 {
        self.by_id.iter().sum()
    }
}

impl FromIterator<(KeyspaceId, i64)> for ItemTally {
    fn from_iter<I: IntoIterator<Item = (KeyspaceId, i64)>>(items: I) -> ItemTally {
        let mut tally = ItemTally::default();
        items.into_iter().for_each(|(id, items)| tally.add(id, items));
        tally
    }
}

/// Keys on flash, by keyspace.
#[derive(Default)]
pub struct KeyspaceItems {
    on_flash: Mutex<ItemTally>,
}

impl KeyspaceItems {
    pub fn note(&self, changes: &ItemTally) {
        lock(&self.on_flash).append(changes);
    }

    pub fn on_flash(&self) -> ItemTally {
        lock(&self.on_flash).clone()
    }
}

impl HashedEngine {
    /// Adds about how many items each hashed keyspace has. If there is only one, it has at most as many as the store.
    pub fn count_keyspaces(&self, counts: &mut ItemCounts) {
        let keyspaces = self.keyspaces.list();
        let mut hashed = keyspaces.iter().filter(|keyspace| keyspace.kind == KeyspaceKind::Hashed);
        if let (Some(only), None) = (hashed.next(), hashed.next()) {
            counts.insert(only.id, self.items_max(self.index.entries() as u64, self.buffers.entries()));
            return;
        }
        let mut tally = self.item_count.by_keyspace.on_flash();
        tally.append(&self.tally_buffers());
        counts.extend(tally.iter().map(|(id, items)| (id, items.max(0) as u64)));
    }

    /// How many items each hashed keyspace has. Nothing is flushed meanwhile.
    pub async fn count_each_keyspace(self: &Arc<Self>, io: &Io) -> Result<ItemCounts, Error> {
        let installer = self.take_installer().await;
        let counted = self.tally_with_buffers(io).await;
        drop(installer);
        Ok(counted?.iter().map(|(id, items)| (id, items.max(0) as u64)).collect())
    }

    async fn tally_with_buffers(self: &Arc<Self>, io: &Io) -> Result<ItemTally, Error> {
        let mut tally = self.item_count.by_keyspace.on_flash();
        let (mut keys, mut checked) = (Vec::new(), Vec::new());
        for number in 0..self.buffers.shards().len() {
            let items = self.keys_of_shard(number);
            for part in items.chunks(KEYS_AT_ONCE) {
                keys.clear();
                keys.extend(part.iter().map(|(hash, ..)| (*hash, 0)));
                check_keys(self, io, &mut Relied::default(), &keys, &mut checked).await?;
                for ((_, keyspace, is_live), checked) in part.iter().zip(&checked) {
                    let is_on_flash = matches!(checked, Checked::Older { .. });
                    tally.add(*keyspace, i64::from(*is_live) - i64::from(is_on_flash));
                }
                io.step().await;
            }
        }
        Ok(tally)
    }

    /// The keys whose latest record is in a shard's write buffers, by hash: their keyspaces, and whether they have an item.
    fn keys_of_shard(&self, number: usize) -> Vec<(HashKey, KeyspaceId, bool)> {
        let now_ms = self.now_ms();
        let shard = lock(&self.buffers.shards()[number]);
        let mut keys: Vec<_> = self.latest_of(&shard, now_ms).collect();
        keys.sort_unstable_by_key(|(hash, ..)| *hash);
        keys
    }

    /// The keys whose latest record is in a shard's write buffers: the keyspace of each, and whether it has an item.
    fn latest_of<'a>(
        &'a self,
        shard: &'a Shard,
        now_ms: u64,
    ) -> impl Iterator<Item = (HashKey, KeyspaceId, bool)> + 'a {
        shard.latest().map(move |(hash, Place { buffer, place })| {
            // SAFETY: the shard's table gave the place, and nothing is released while the shard's lock is held, as whoever has a shard does.
            let Record { header, .. } = unsafe { self.log.record(buffer, place) };
            (hash, KeyspaceId::of(&header), header.kind == Kind::Value && self.is_live(&header, now_ms))
        })
    }

    /// How many keys have no item, of those of the write buffers that one count looks at.
    pub fn lapsed_in_buffers(&self) -> u64 {
        let now_ms = self.now_ms();
        let mut lapsed = 0;
        for shard in self.buffers.shards() {
            let shard = lock(shard);
            let looked_at = self.latest_of(&shard, now_ms).take(KEYS_LOOKED_AT / self.buffers.shards().len());
            lapsed += looked_at.filter(|(.., has_item)| !has_item).count() as u64;
        }
        lapsed
    }

    /// About how many more items there are with what the write buffers have.
    fn tally_buffers(&self) -> ItemTally {
        let (mut tally, now_ms) = (ItemTally::default(), self.now_ms());
        let (mut looked_at, mut entries) = (0, 0);
        for shard in self.buffers.shards() {
            let shard = lock(shard);
            entries += shard.entries();
            for (hash, keyspace, has_item) in self.latest_of(&shard, now_ms).take(KEYS_LOOKED_AT - looked_at) {
                looked_at += 1;
                tally.add(keyspace, i64::from(has_item) - i64::from(self.index.lookup(hash).is_some()));
            }
        }
        if looked_at < KEYS_LOOKED_AT {
            return tally;
        }
        let for_all = |items: i64| (i128::from(items) * entries as i128 / looked_at as i128) as i64;
        tally.iter().map(|(id, items)| (id, for_all(items))).collect()
    }
}
