//! What DRAM answers at once, in the stages of flash KVS: hash, tags, data. A caller takes many keys through each stage before the
//! next, so that all of them wait for memory at the same time.
//!
//! Invariant: what is answered here is what [`Session::submit`] would answer, after everything that was submitted before. What
//! is not answered here is to be submitted.

use super::attempt::{Put, put_record};
use super::limits::refuse;
use crate::hashed::large::inline_bytes_max;
use crate::hashed::tier::Tier;
use crate::session::Session;
use tapetum_base::keyspace::catalogue::KeyspaceKind;
use tapetum_base::keyspace::item::{Access, ItemHead};
use tapetum_base::keyspace::request::{Condition, Request};
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::log::{Draft, Sync};
use tapetum_drive::fail_point;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::hash_each::hash_each;

/// A key as the stages know it: its hash key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyDigest(pub u128);

/// Where DRAM had the items that were asked for lately, by which is decided where to look first.
#[derive(Default)]
pub(super) struct FoundLately(i8);

impl FoundLately {
    const MOST: i8 = 64;

    pub(super) fn note(&mut self, in_buffers: bool) {
        self.0 = (self.0 + if in_buffers { 1 } else { -1 }).clamp(-FoundLately::MOST, FoundLately::MOST);
    }

    /// Most of them in write buffers, rather than in the tier.
    fn in_buffers(&self) -> bool {
        self.0 > 0
    }
}

fn for_each_bit(mut bits: u32, mut visit: impl FnMut(usize)) {
    while bits != 0 {
        visit(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

impl Session {
    /// Whether gets are ever answered so: the store has a DRAM tier.
    pub fn answers_from_dram(&self) -> bool {
        self.hashed_engine.tier.is_some()
    }

    /// Whether puts are ever done so: they need not wait to be durable.
    pub fn puts_at_once(&self) -> bool {
        self.hashed_engine.options.sync != Sync::Always
    }

    /// First stage: hashes keys of a keyspace, and brings nearer what the second will look at. `digests` are at least as many.
    pub fn digest_each(&self, keyspace: KeyspaceRef, keys: &[&[u8]], digests: &mut [KeyDigest]) {
        let engine = &*self.hashed_engine;
        let tier = engine.tier.as_ref().filter(|_| !self.hashed.found_lately.in_buffers());
        hash_each(engine.hasher.secret(keyspace.id), keys, |number, hash| {
            match tier {
                Some(tier) => tier.prefetch_bucket(hash),
                None => engine.buffers.prefetch(hash),
            }
            digests[number] = KeyDigest(hash.0);
        });
    }

    /// As [`Session::digest_each`], of one key.
    pub fn digest(&self, keyspace: KeyspaceRef, key: &[u8]) -> KeyDigest {
        let mut digest = [KeyDigest::default()];
        self.digest_each(keyspace, &[key], &mut digest);
        digest[0]
    }

    /// Second stage: looks, without waiting for anybody, where the keys are, and brings that nearer. `puts` has a bit for each of
    /// the keys, at most 32, that is set for those that are put: of these it is the place of the new record.
    pub fn fetch_each(&self, keys: &[KeyDigest], puts: u32) {
        assert!(keys.len() <= u32::BITS as usize);
        let Some(tier) = &self.hashed_engine.tier else { return };
        match self.hashed.found_lately.in_buffers() {
            true => self.fetch_from_buffers_or(tier, keys, puts),
            false => self.fetch_from_tier_or(tier, keys, puts),
        }
    }

    fn fetch_from_tier_or(&self, tier: &Tier, keys: &[KeyDigest], puts: u32) {
        let mut elsewhere = 0;
        for (number, key) in keys.iter().enumerate() {
            let (hash, is_put) = (HashKey(key.0), puts >> number & 1 == 1);
            let is_there = tier.prefetch_slot(hash);
            if is_put || !is_there {
                self.hashed_engine.buffers.prefetch(hash);
            }
            if !is_put && !is_there {
                elsewhere |= 1 << number;
            }
        }
        for_each_bit(elsewhere, |number| {
            self.hashed_engine.prefetch_record(HashKey(keys[number].0));
        });
    }

    fn fetch_from_buffers_or(&self, tier: &Tier, keys: &[KeyDigest], puts: u32) {
        let mut elsewhere = 0;
        for (number, key) in keys.iter().enumerate() {
            let (hash, is_put) = (HashKey(key.0), puts >> number & 1 == 1);
            // Over what a buffer has, a put leaves the tier alone, as a rule.
            let is_there =
                if is_put { self.hashed_engine.is_in_buffers(hash) } else { self.hashed_engine.prefetch_record(hash) };
            if !is_there {
                tier.prefetch_bucket(hash);
                elsewhere |= 1 << number;
            }
        }
        for_each_bit(elsewhere, |number| {
            tier.prefetch_slot(HashKey(keys[number].0));
        });
    }

    /// Third stage of a get: appends to `out` what `head` does, which is shown the item and its use before, and then the value.
    /// Nothing is appended, and the get is to be submitted, where `head` is not content, DRAM does not have the item, or something
    /// comes first: what was submitted before, or the durability of what would be shown.
    pub fn get_from_dram(
        &mut self,
        keyspace: KeyspaceRef,
        KeyDigest(digest): KeyDigest,
        out: &mut Vec<u8>,
        mut head: impl FnMut(&mut Vec<u8>, &ItemHead, &dyn Fn() -> Access) -> bool,
    ) -> Option<ItemHead> {
        let (engine, hash) = (&*self.hashed_engine, HashKey(digest));
        let tier = engine.tier.as_ref()?;
        engine.check_watermark();
        let is_behind = self.hashed.ops.must_wait(hash, &Request::Get { key: &[] });
        if is_behind && !fail_point!(TierJumpsTheQueue) {
            return None;
        }
        // No key is in both, but while a flush hands the item over, whose uses the tier is told then.
        let buffers_first =
            self.hashed.found_lately.in_buffers() && !engine.buffers.glance.is_giving() && engine.is_in_buffers(hash);
        if buffers_first && let Some(found) = self.hashed.copy_item_from_buffers(engine, hash, out, &mut head) {
            return Some(found);
        }
        let start = out.len();
        let Some(found) = tier.get((hash, engine.access_clock.seconds()), out, &mut head) else {
            if buffers_first {
                return None;
            }
            return self.hashed.copy_item_from_buffers(engine, hash, out, &mut head);
        };
        if !engine.is_live_now(keyspace.id, found.stamp, found.expiry) {
            out.truncate(start);
            return None;
        }
        self.hashed.found_lately.note(false);
        self.hashed.note_hit(found.value_bytes);
        Some(found)
    }

    /// Third stage of a put over whatever the key has: its stamp. `None`: nothing was written, and the put is to be submitted. That
    /// is so where it has to wait, for durability too, where it is refused, and where its value is long.
    pub fn put_at_once(
        &mut self,
        keyspace: KeyspaceRef,
        KeyDigest(digest): KeyDigest,
        (key, value): (&[u8], &[u8]),
        (flags, expiry): (u32, u32),
    ) -> Option<u64> {
        let (engine, hash) = (&*self.hashed_engine, HashKey(digest));
        let request = Request::Put { key, value, flags, expiry, condition: Condition::Always };
        let is_short = value.len() <= inline_bytes_max(&engine.geometry);
        let is_hashed = keyspace.kind() == KeyspaceKind::Hashed;
        if !self.puts_at_once() || !is_short || !is_hashed || refuse(engine, keyspace, &request).is_err() {
            return None;
        }
        engine.check_watermark();
        let is_behind = self.hashed.ops.must_wait(hash, &request);
        if (is_behind && !fail_point!(PutJumpsTheQueue)) || self.hashed.is_paced(engine, &request) {
            return None;
        }
        let (header, stored) = self.hashed.compress((key, value, flags, expiry));
        let Put::Stored(stamp) = put_record(engine, (keyspace, hash), Draft { header, key, stored }) else {
            self.hashed.share.give_back(request.payload_bytes() as u64);
            return None;
        };
        Some(stamp)
    }
}
