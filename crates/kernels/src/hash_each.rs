//! [`HashKey`]s of many keys: where AVX2 is there, four at a time, of keys that are equally many words long. One key keeps a core
//! waiting for its own results; four side by side, in the lanes of a register, take hardly longer.
//!
//! The digests are those of [`HashKey::of`], whichever way they are made.

use crate::hash::HashKey;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, _mm256_add_epi64, _mm256_or_si256, _mm256_set_epi64x, _mm256_set1_epi64x, _mm256_setr_epi8,
    _mm256_shuffle_epi8, _mm256_shuffle_epi32, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_xor_si256,
};

/// Keys that are hashed side by side.
const LANES: usize = 4;

/// Gives `each` every key's number and digest, in their order.
#[inline]
pub fn hash_each(secret: &[u8; 16], keys: &[&[u8]], mut each: impl FnMut(usize, HashKey)) {
    let (fours, rest) = keys.as_chunks::<LANES>();
    let mut number = 0;
    for four in fours {
        for hash in hash_four(secret, four) {
            each(number, hash);
            number += 1;
        }
    }
    for key in rest {
        each(number, HashKey::of(secret, key));
        number += 1;
    }
}

#[inline]
fn hash_four(secret: &[u8; 16], keys: &[&[u8]; LANES]) -> [HashKey; LANES] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && keys.iter().all(|key| key.len() / 8 == keys[0].len() / 8) {
        // SAFETY: the machine has the instructions.
        return unsafe { hash_four_avx2(secret, keys) };
    }
    keys.map(|key| HashKey::of(secret, key))
}

/// SipHash's state, of four keys.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct State([__m256i; 4]);

#[cfg(target_arch = "x86_64")]
impl State {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn new(secret: &[u8; 16]) -> State {
        let (words, _) = secret.as_chunks::<8>();
        let [k0, k1] = [0, 1].map(|n| u64::from_le_bytes(words[n]));
        let start = [
            k0 ^ 0x736f_6d65_7073_6575,
            // What makes a digest of 128 bits another one.
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        State([
            _mm256_set1_epi64x(start[0] as i64),
            _mm256_set1_epi64x(start[1] as i64),
            _mm256_set1_epi64x(start[2] as i64),
            _mm256_set1_epi64x(start[3] as i64),
        ])
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn round(&mut self) {
        let State([v0, v1, v2, v3]) = self;
        *v0 = _mm256_add_epi64(*v0, *v1);
        *v2 = _mm256_add_epi64(*v2, *v3);
        *v1 = _mm256_xor_si256(rotate_left::<13, 51>(*v1), *v0);
        *v3 = _mm256_xor_si256(rotate_left_16(*v3), *v2);
        *v0 = rotate_left_32(*v0);
        *v2 = _mm256_add_epi64(*v2, *v1);
        *v0 = _mm256_add_epi64(*v0, *v3);
        *v1 = _mm256_xor_si256(rotate_left::<17, 47>(*v1), *v2);
        *v3 = _mm256_xor_si256(rotate_left::<21, 43>(*v3), *v0);
        *v2 = rotate_left_32(*v2);
    }

    /// Takes in a word of each key.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn absorb(&mut self, [a, b, c, d]: [u64; LANES]) {
        let words = _mm256_set_epi64x(d as i64, c as i64, b as i64, a as i64);
        self.0[3] = _mm256_xor_si256(self.0[3], words);
        self.round();
        self.0[0] = _mm256_xor_si256(self.0[0], words);
    }

    /// Half of the digests.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn squeeze(&mut self, into: usize, mark: i64) -> [u64; LANES] {
        self.0[into] = _mm256_xor_si256(self.0[into], _mm256_set1_epi64x(mark));
        self.round();
        self.round();
        self.round();
        let State([v0, v1, v2, v3]) = *self;
        let half = _mm256_xor_si256(_mm256_xor_si256(v0, v1), _mm256_xor_si256(v2, v3));
        // SAFETY: both are 32 bytes, of which every value is valid.
        unsafe { std::mem::transmute::<__m256i, [u64; LANES]>(half) }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn rotate_left<const BITS: i32, const REST: i32>(words: __m256i) -> __m256i {
    const { assert!(BITS + REST == 64) };
    _mm256_or_si256(_mm256_slli_epi64::<BITS>(words), _mm256_srli_epi64::<REST>(words))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn rotate_left_16(words: __m256i) -> __m256i {
    let bytes = _mm256_setr_epi8(
        6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13, 6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13,
    );
    _mm256_shuffle_epi8(words, bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn rotate_left_32(words: __m256i) -> __m256i {
    _mm256_shuffle_epi32::<0b10_11_00_01>(words)
}

/// The digests of keys with equally many whole words.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn hash_four_avx2(secret: &[u8; 16], keys: &[&[u8]; LANES]) -> [HashKey; LANES] {
    let [(a, a_rest), (b, b_rest), (c, c_rest), (d, d_rest)] = keys.map(<[u8]>::as_chunks::<8>);
    let mut state = State::new(secret);
    for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
        state.absorb([*a, *b, *c, *d].map(u64::from_le_bytes));
    }
    let rests = [a_rest, b_rest, c_rest, d_rest];
    let mut last = [0; LANES];
    for (last, (key, rest)) in last.iter_mut().zip(keys.iter().zip(rests)) {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        word[7] = key.len() as u8;
        *last = u64::from_le_bytes(word);
    }
    state.absorb(last);
    let low = state.squeeze(2, 0xee);
    let high = state.squeeze(1, 0xdd);
    std::array::from_fn(|lane| HashKey(u128::from(low[lane]) | u128::from(high[lane]) << 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digests(secret: &[u8; 16], keys: &[&[u8]]) -> Vec<HashKey> {
        let mut digests = Vec::new();
        hash_each(secret, keys, |number, hash| {
            assert_eq!(number, digests.len());
            digests.push(hash);
        });
        digests
    }

    proptest! {
        #[test]
        fn agrees_with_one_at_a_time(
            secret: [u8; 16],
            keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..20),
            length in 0usize..260,
        ) {
            // As they come, and all of about one length.
            let alike: Vec<Vec<u8>> = keys
                .iter()
                .enumerate()
                .map(|(n, key)| key.iter().cycle().chain(&[7; 260]).copied().take(length / 8 * 8 + n % 8).collect())
                .collect();
            for keys in [keys, alike] {
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let one_by_one: Vec<HashKey> = keys.iter().map(|key| HashKey::of(&secret, key)).collect();
                prop_assert_eq!(digests(&secret, &keys), one_by_one);
            }
        }
    }

    #[test]
    fn every_length_has_the_digest_that_is_on_flash() {
        let (secret, bytes) = ([9; 16], [5; 256]);
        for length in 0..=250 {
            let keys = [&bytes[..length]; 4];
            assert_eq!(digests(&secret, &keys), [HashKey::of(&secret, keys[0]); 4], "length {length}");
        }
    }
}
