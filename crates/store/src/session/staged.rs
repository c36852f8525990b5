//! What DRAM answers at once, in the stages of flash KVS: hash, tags, data. A caller takes many keys through each stage before the
//! next, so that all of them wait for memory at the same time.
//!
//! Invariant: what is answered here is what [`Session::submit`] would answer, after everything that was submitted before. What
//! is not answered here is to be submitted.

use super::attempt::{Put, put_record};
use super::{Session, refuse};
use crate::access::Access;
use crate::large::inline_bytes_max;
use crate::log::{Draft, Sync};
use crate::planted::Bug;
use crate::request::{Condition, Request};
use crate::tier::Item;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::hash_each::hash_each;

/// A key as the stages know it: its hash key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyDigest(pub u128);

impl Session {
    /// Whether gets are ever answered so: the store has a DRAM tier.
    pub fn answers_from_dram(&self) -> bool {
        self.shared.tier.is_some()
    }

    /// Whether puts are ever done so: they need not wait to be durable.
    pub fn puts_at_once(&self) -> bool {
        self.shared.options.sync != Sync::Always
    }

    /// First stage: hashes keys, and brings the tier's index nearer. `digests` are at least as many.
    pub fn digest_each(&self, keys: &[&[u8]], digests: &mut [KeyDigest]) {
        hash_each(&self.shared.secret, keys, |number, hash| {
            if let Some(tier) = &self.shared.tier {
                tier.prefetch_bucket(hash);
            }
            digests[number] = KeyDigest(hash.0);
        });
    }

    /// As [`Session::digest_each`], of one key.
    pub fn digest(&self, key: &[u8]) -> KeyDigest {
        let mut digest = [KeyDigest::default()];
        self.digest_each(&[key], &mut digest);
        digest[0]
    }

    /// Second stage of a get: compares tags, and brings the item nearer, or the write buffers' tables where the tier has none.
    pub fn prefetch(&self, KeyDigest(digest): KeyDigest) {
        let hash = HashKey(digest);
        if !self.shared.tier.as_ref().is_some_and(|tier| tier.prefetch_slot(hash)) {
            self.shared.prefetch_in_buffers(hash);
        }
    }

    /// Second stage of a put: brings the item that goes, and the place of the new one, nearer.
    pub fn prefetch_put(&self, KeyDigest(digest): KeyDigest) {
        let hash = HashKey(digest);
        if let Some(tier) = &self.shared.tier {
            tier.prefetch_slot(hash);
        }
        self.shared.prefetch_in_buffers(hash);
    }

    /// Third stage of a get: appends to `out` what `head` does, which is shown the item and its use before, and then the value.
    /// Nothing is appended, and the get is to be submitted, where `head` is not content, DRAM does not have the item, or something
    /// comes first: what was submitted before, or the durability of what would be shown.
    pub fn get_from_dram(
        &mut self,
        KeyDigest(digest): KeyDigest,
        out: &mut Vec<u8>,
        mut head: impl FnMut(&mut Vec<u8>, &Item, &dyn Fn() -> Access) -> bool,
    ) -> Option<Item> {
        let (shared, hash) = (&*self.shared, HashKey(digest));
        let tier = shared.tier.as_ref()?;
        shared.check_watermark();
        let is_behind = self.local.must_wait(hash, &Request::Get { key: &[] });
        if is_behind && !shared.planted.has(Bug::TierJumpsTheQueue) {
            return None;
        }
        let start = out.len();
        let Some(found) = tier.get((hash, shared.access_clock.seconds()), out, &mut head) else {
            return self.local.copy_item_from_buffers(shared, hash, out, head);
        };
        if !shared.is_live_now(found.stamp, found.expiry) {
            out.truncate(start);
            return None;
        }
        self.local.note_hit(found.value_bytes);
        Some(found)
    }

    /// Third stage of a put over whatever the key has: its stamp. `None`: nothing was written, and the put is to be submitted. That
    /// is so where it has to wait, for durability too, where it is refused, and where its value is long.
    pub fn put_at_once(
        &mut self,
        KeyDigest(digest): KeyDigest,
        (key, value): (&[u8], &[u8]),
        (flags, expiry): (u32, u32),
    ) -> Option<u64> {
        let (shared, hash) = (&*self.shared, HashKey(digest));
        let request = Request::Put { key, value, flags, expiry, condition: Condition::Always };
        let is_short = value.len() <= inline_bytes_max(&shared.geometry);
        if !self.puts_at_once() || !is_short || refuse(shared, &request).is_err() {
            return None;
        }
        shared.check_watermark();
        let is_behind = self.local.must_wait(hash, &request);
        if (is_behind && !shared.planted.has(Bug::PutJumpsTheQueue)) || self.local.is_paced(shared, &request) {
            return None;
        }
        let (header, stored) = self.local.compress((key, value, flags, expiry));
        let Put::Stored(stamp) = put_record(shared, hash, Draft { header, key, stored }) else {
            self.local.share.give_back(request.payload_bytes() as u64);
            return None;
        };
        Some(stamp)
    }
}
