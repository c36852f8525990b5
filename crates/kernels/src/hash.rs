//! The hash key: a 128-bit digest of a key, by which everything in a `hashed` keyspace is placed and sorted.
//!
//! Equal hash keys are taken for equal keys, so nobody may be able to make two keys that collide. The digest is
//! therefore SipHash-1-3 with a 128-bit result, under a secret of the keyspace, which is derived from the store's. So
//! the same key has two digests in two keyspaces. Digests are part of the format (key tables on flash hold them), so
//! the test vectors must never change.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::fmt;
use std::hash::Hasher;

/// A 128-bit digest of a key. Its numeric order is the order of key tables, of records and of the index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HashKey(pub u128);

/// The label from which a keyspace's secret is derived. The keyspace's id follows it, in two bytes, little-endian.
const KEYSPACE_LABEL: &[u8; 16] = b"tapetum-keyspace";

/// The secret of a keyspace: the digest of label and id under the store's secret, little-endian. No key is hashed under the
/// store's own secret, so no digest of a key is ever a secret.
pub fn keyspace_secret(store_secret: &[u8; 16], keyspace: u16) -> [u8; 16] {
    let mut hasher = SipHasher13::new_with_key(store_secret);
    hasher.write(KEYSPACE_LABEL);
    hasher.write(&keyspace.to_le_bytes());
    hasher.finish128().as_u128().to_le_bytes()
}

impl HashKey {
    /// The digest of `key` under a keyspace's `secret`.
    #[inline]
    pub fn of(secret: &[u8; 16], key: &[u8]) -> HashKey {
        let mut hasher = SipHasher13::new_with_key(secret);
        hasher.write(key);
        HashKey(hasher.finish128().as_u128())
    }

    /// The partition of an index of 2^`bits` partitions that this key belongs to: its top bits.
    #[inline]
    pub fn partition(self, bits: u32) -> usize {
        debug_assert!(bits <= 32);
        if bits == 0 { 0 } else { (self.0 >> (128 - bits)) as usize }
    }

    /// The top 64 bits.
    #[inline]
    pub fn prefix(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HashKey({:032x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    /// SipHash-1-3-128 written out plainly from its definition, which the library must agree with.
    fn siphash13_128(secret: &[u8; 16], key: &[u8]) -> u128 {
        fn round(v: &mut [u64; 4]) {
            v[0] = v[0].wrapping_add(v[1]);
            v[1] = v[1].rotate_left(13) ^ v[0];
            v[0] = v[0].rotate_left(32);
            v[2] = v[2].wrapping_add(v[3]);
            v[3] = v[3].rotate_left(16) ^ v[2];
            v[0] = v[0].wrapping_add(v[3]);
            v[3] = v[3].rotate_left(21) ^ v[0];
            v[2] = v[2].wrapping_add(v[1]);
            v[1] = v[1].rotate_left(17) ^ v[2];
            v[2] = v[2].rotate_left(32);
        }
        let k0 = u64::from_le_bytes(secret[..8].try_into().unwrap());
        let k1 = u64::from_le_bytes(secret[8..].try_into().unwrap());
        let mut v =
            [k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d ^ 0xee, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573];
        let mut padded = key.to_vec();
        padded.resize(key.len() / 8 * 8 + 7, 0);
        padded.push(key.len() as u8);
        for chunk in padded.chunks_exact(8) {
            let m = u64::from_le_bytes(chunk.try_into().unwrap());
            v[3] ^= m;
            round(&mut v);
            v[0] ^= m;
        }
        v[2] ^= 0xee;
        (0..3).for_each(|_| round(&mut v));
        let low = v[0] ^ v[1] ^ v[2] ^ v[3];
        v[1] ^= 0xdd;
        (0..3).for_each(|_| round(&mut v));
        let high = v[0] ^ v[1] ^ v[2] ^ v[3];
        u128::from(low) | u128::from(high) << 64
    }

    #[test]
    fn agrees_with_the_definition_at_every_length() {
        let bytes: Vec<u8> = (0..=255).collect();
        for length in 0..bytes.len() {
            let key = &bytes[..length];
            assert_eq!(HashKey::of(&SECRET, key).0, siphash13_128(&SECRET, key), "length {length}");
        }
    }

    #[test]
    fn the_secret_matters() {
        assert_ne!(HashKey::of(&SECRET, b"key"), HashKey::of(&[0; 16], b"key"));
    }

    #[test]
    fn secrets_of_keyspaces_are_those_of_the_format() {
        let vectors = [
            (0, "5895347dcc546966b9337921b0d54028"),
            (1, "3f53ae550bfc4469112d97bbd115583b"),
            (256, "a5c87933940b141f86bf44a141c4266f"),
            (65_535, "101283dfbe5282515c761147e7b6afe2"),
        ];
        for (keyspace, secret) in vectors {
            let [low, high] = u16::to_le_bytes(keyspace);
            let plain = siphash13_128(&SECRET, &[&b"tapetum-keyspace"[..], &[low, high]].concat());
            assert_eq!(keyspace_secret(&SECRET, keyspace), plain.to_le_bytes());
            let hex: String = plain.to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, secret, "keyspace {keyspace}");
        }
        let key = HashKey::of(&keyspace_secret(&SECRET, 7), b"key");
        assert_eq!(format!("{key:?}"), "HashKey(cae130550f382ca0d5dc7ed0bc7243d0)");
    }

    #[test]
    fn partitions_are_contiguous_slices_of_the_order() {
        assert_eq!(HashKey(u128::MAX).partition(0), 0);
        assert_eq!(HashKey(u128::MAX).partition(10), 1023);
        assert_eq!(HashKey(1 << 118).partition(10), 1);
        assert_eq!(HashKey((1 << 118) - 1).partition(10), 0);
    }
}
