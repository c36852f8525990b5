//! Gets that the DRAM tier answers at once, in the stages of flash KVS: hash, tags, data. A caller takes many keys through each
//! stage before the next, so that all of them wait for memory at the same time.
//!
//! Invariant: what is answered here is what [`Session::submit`] would answer, after everything that was submitted before. What
//! is not answered here is to be submitted.

use super::Session;
use crate::access::Access;
use crate::planted::Bug;
use crate::request::Request;
use crate::tier::Item;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::hash_each::hash_each;

/// A key as the stages know it: its hash key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyDigest(pub u128);

impl Session {
    /// Whether it ever answers so: the store has a DRAM tier.
    pub fn answers_from_dram(&self) -> bool {
        self.shared.tier.is_some()
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

    /// Second stage: compares tags, and brings the item nearer.
    pub fn prefetch(&self, KeyDigest(digest): KeyDigest) {
        if let Some(tier) = &self.shared.tier {
            tier.prefetch_slot(HashKey(digest));
        }
    }

    /// Third stage: appends to `out` what `head` does, which is shown the item and its use before, and then the value. Nothing is
    /// appended, and the get is to be submitted, where `head` is not content, the tier does not hold the item, or something
    /// submitted before comes first.
    pub fn get_from_dram(
        &mut self,
        KeyDigest(digest): KeyDigest,
        out: &mut Vec<u8>,
        head: impl FnMut(&mut Vec<u8>, &Item, Access) -> bool,
    ) -> Option<Item> {
        let (shared, hash) = (&*self.shared, HashKey(digest));
        let tier = shared.tier.as_ref()?;
        shared.check_watermark();
        let is_behind = self.local.must_wait(hash, &Request::Get { key: &[] });
        if is_behind && !shared.planted.has(Bug::TierJumpsTheQueue) {
            return None;
        }
        let start = out.len();
        let found = tier.get((hash, shared.access_clock.seconds()), out, head)?;
        if !shared.is_live_now(found.stamp, found.expiry) {
            out.truncate(start);
            return None;
        }
        self.local.gets.from_tier += 1;
        Some(found)
    }
}
