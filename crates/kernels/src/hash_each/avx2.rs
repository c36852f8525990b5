//! Four keys side by side, by AVX2.

use super::{start, words_of_last};
use crate::hash::HashKey;
use std::arch::x86_64::{
    __m256i, _mm256_add_epi64, _mm256_or_si256, _mm256_set_epi64x, _mm256_set1_epi64x, _mm256_setr_epi8,
    _mm256_shuffle_epi8, _mm256_shuffle_epi32, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_xor_si256,
};

/// Keys that are hashed side by side.
const LANES: usize = 4;

/// SipHash's state, of four keys.
#[derive(Clone, Copy)]
struct State([__m256i; 4]);

impl State {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn new(secret: &[u8; 16]) -> State {
        State(start(secret).map(|word| _mm256_set1_epi64x(word as i64)))
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

#[target_feature(enable = "avx2")]
#[inline]
fn rotate_left<const BITS: i32, const REST: i32>(words: __m256i) -> __m256i {
    const { assert!(BITS + REST == 64) };
    _mm256_or_si256(_mm256_slli_epi64::<BITS>(words), _mm256_srli_epi64::<REST>(words))
}

#[target_feature(enable = "avx2")]
#[inline]
fn rotate_left_16(words: __m256i) -> __m256i {
    let bytes = _mm256_setr_epi8(
        6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13, 6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13,
    );
    _mm256_shuffle_epi8(words, bytes)
}

#[target_feature(enable = "avx2")]
#[inline]
fn rotate_left_32(words: __m256i) -> __m256i {
    _mm256_shuffle_epi32::<0b10_11_00_01>(words)
}

/// The digests of keys with equally many whole words.
#[target_feature(enable = "avx2")]
pub fn hash_four(secret: &[u8; 16], keys: &[&[u8]; LANES]) -> [HashKey; LANES] {
    let [(a, a_rest), (b, b_rest), (c, c_rest), (d, d_rest)] = keys.map(<[u8]>::as_chunks::<8>);
    let mut state = State::new(secret);
    for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
        state.absorb([*a, *b, *c, *d].map(u64::from_le_bytes));
    }
    state.absorb(words_of_last(keys, [a_rest, b_rest, c_rest, d_rest]));
    let low = state.squeeze(2, 0xee);
    let high = state.squeeze(1, 0xdd);
    std::array::from_fn(|lane| HashKey(u128::from(low[lane]) | u128::from(high[lane]) << 64))
}
