//! Requests that DRAM answers at once, in the stages of flash KVS: see [`crate::api::session::staged`].

use super::attempt::{PlainPut, Put, put_record};
use super::limits::refuse;
use super::{HashedSession, KeyDigest};
use crate::hashed::HashedEngine;
use crate::hashed::large::inline_bytes_max;
use crate::hashed::tier::Tier;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::log::{Draft, Sync};
use tapetum_base::request::item::{Access, ItemHead};
use tapetum_base::request::{Condition, Request};
use tapetum_drive::fail_point;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::hash_each::hash_each;

fn for_each_bit(mut bits: u32, mut visit: impl FnMut(usize)) {
    while bits != 0 {
        visit(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

impl HashedSession {
    /// See `Session::digest_each`.
    pub fn digest_each(&self, engine: &HashedEngine, keyspace: KeyspaceRef, keys: &[&[u8]], digests: &mut [KeyDigest]) {
        let tier = engine.tier.as_ref().filter(|_| !self.found_lately.in_buffers());
        hash_each(engine.hasher.secret(keyspace.id), keys, |number, hash| {
            match tier {
                Some(tier) => tier.prefetch_bucket(hash),
                None => engine.buffers.prefetch(hash),
            }
            digests[number] = KeyDigest(hash.0);
        });
    }

    /// See `Session::fetch_each`.
    pub fn fetch_each(&self, engine: &HashedEngine, keys: &[KeyDigest], puts: u32) {
        assert!(keys.len() <= u32::BITS as usize);
        let Some(tier) = &engine.tier else { return };
        match self.found_lately.in_buffers() {
            true => self.fetch_from_buffers_or(engine, tier, keys, puts),
            false => self.fetch_from_tier_or(engine, tier, keys, puts),
        }
    }

    fn fetch_from_tier_or(&self, engine: &HashedEngine, tier: &Tier, keys: &[KeyDigest], puts: u32) {
        let mut elsewhere = 0;
        for (number, key) in keys.iter().enumerate() {
            let (hash, is_put) = (HashKey(key.0), puts >> number & 1 == 1);
            let is_there = tier.prefetch_slot(hash);
            if is_put || !is_there {
                engine.buffers.prefetch(hash);
            }
            if !is_put && !is_there {
                elsewhere |= 1 << number;
            }
        }
        for_each_bit(elsewhere, |number| {
            engine.prefetch_record(HashKey(keys[number].0));
        });
    }

    fn fetch_from_buffers_or(&self, engine: &HashedEngine, tier: &Tier, keys: &[KeyDigest], puts: u32) {
        let mut elsewhere = 0;
        for (number, key) in keys.iter().enumerate() {
            let (hash, is_put) = (HashKey(key.0), puts >> number & 1 == 1);
            // A put to a key that a buffer has leaves the tier alone, as a rule.
            let is_there = if is_put { engine.is_in_buffers(hash) } else { engine.prefetch_record(hash) };
            if !is_there {
                tier.prefetch_bucket(hash);
                elsewhere |= 1 << number;
            }
        }
        for_each_bit(elsewhere, |number| {
            tier.prefetch_slot(HashKey(keys[number].0));
        });
    }

    /// See `Session::get_from_dram`.
    pub fn get_from_dram(
        &mut self,
        engine: &HashedEngine,
        keyspace: KeyspaceRef,
        KeyDigest(digest): KeyDigest,
        out: &mut Vec<u8>,
        mut head: impl FnMut(&mut Vec<u8>, &ItemHead, &dyn Fn() -> Access) -> bool,
    ) -> Option<ItemHead> {
        let hash = HashKey(digest);
        let tier = engine.tier.as_ref()?;
        engine.check_watermark();
        if !engine.keyspaces.is_open(keyspace) {
            return None;
        }
        let is_behind = self.ops.must_wait(hash, &Request::Get { key: &[] });
        if is_behind && !fail_point!(TierJumpsTheQueue) {
            return None;
        }
        // No key is in both, except while a flush hands the item over; then the tier must learn of its uses.
        let buffers_first =
            self.found_lately.in_buffers() && !engine.buffers.glance.is_giving() && engine.is_in_buffers(hash);
        if buffers_first && let Some(found) = self.copy_item_from_buffers(engine, hash, out, &mut head) {
            return Some(found);
        }
        let start = out.len();
        let Some(found) = tier.get(hash, engine.access_clock.seconds(), out, &mut head) else {
            if buffers_first {
                return None;
            }
            return self.copy_item_from_buffers(engine, hash, out, &mut head);
        };
        if !engine.is_live_now(keyspace.id, found.stamp, found.expiry) {
            out.truncate(start);
            return None;
        }
        self.found_lately.note(false);
        self.note_hit(found.value_bytes);
        Some(found)
    }

    /// See `Session::put_at_once`.
    pub fn put_at_once(
        &mut self,
        engine: &HashedEngine,
        keyspace: KeyspaceRef,
        KeyDigest(digest): KeyDigest,
        put: PlainPut<'_>,
    ) -> Option<u64> {
        let hash = HashKey(digest);
        let PlainPut { key, value, flags, expiry } = put;
        let request = Request::Put { key, value, flags, expiry, condition: Condition::Always };
        let is_short = value.len() <= inline_bytes_max(&engine.geometry);
        let is_hashed = keyspace.kind() == KeyspaceKind::Hashed;
        if engine.options.sync == Sync::Always || !is_short || !is_hashed || refuse(engine, keyspace, &request).is_err()
        {
            return None;
        }
        engine.check_watermark();
        let is_behind = self.ops.must_wait(hash, &request);
        if (is_behind && !fail_point!(PutJumpsTheQueue)) || self.is_paced(engine, &request) {
            return None;
        }
        let (header, stored) = self.compress(put);
        let Put::Stored(stamp) = put_record(engine, keyspace, hash, Draft { header, key, stored }) else {
            self.share.give_back(request.payload_bytes() as u64);
            return None;
        };
        Some(stamp)
    }
}
