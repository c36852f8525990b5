//! Eight keys side by side, by AVX-512, which rotates in one instruction.

use super::{start, words_of_last};
use crate::hash::HashKey;
use std::arch::x86_64::{
    __m512i, _mm512_add_epi64, _mm512_loadu_epi64, _mm512_rol_epi64, _mm512_set1_epi64, _mm512_ternarylogic_epi64,
    _mm512_xor_epi64,
};

/// Keys that are hashed side by side.
const LANES: usize = 8;

/// SipHash's state, of eight keys.
#[derive(Clone, Copy)]
struct State([__m512i; 4]);

impl State {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn new(secret: &[u8; 16]) -> State {
        State(start(secret).map(|word| _mm512_set1_epi64(word as i64)))
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn round(&mut self) {
        let State([v0, v1, v2, v3]) = self;
        *v0 = _mm512_add_epi64(*v0, *v1);
        *v2 = _mm512_add_epi64(*v2, *v3);
        *v1 = _mm512_xor_epi64(_mm512_rol_epi64::<13>(*v1), *v0);
        *v3 = _mm512_xor_epi64(_mm512_rol_epi64::<16>(*v3), *v2);
        *v0 = _mm512_rol_epi64::<32>(*v0);
        *v2 = _mm512_add_epi64(*v2, *v1);
        *v0 = _mm512_add_epi64(*v0, *v3);
        *v1 = _mm512_xor_epi64(_mm512_rol_epi64::<17>(*v1), *v2);
        *v3 = _mm512_xor_epi64(_mm512_rol_epi64::<21>(*v3), *v0);
        *v2 = _mm512_rol_epi64::<32>(*v2);
    }

    /// Takes in a word of each key.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn absorb(&mut self, words: [u64; LANES]) {
        // SAFETY: reads the 64 bytes of the array.
        let words = unsafe { _mm512_loadu_epi64(words.as_ptr().cast()) };
        self.0[3] = _mm512_xor_epi64(self.0[3], words);
        self.round();
        self.0[0] = _mm512_xor_epi64(self.0[0], words);
    }

    /// Half of the digests.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn squeeze(&mut self, into: usize, mark: i64) -> [u64; LANES] {
        const XOR_OF_THREE: i32 = 0x96;
        self.0[into] = _mm512_xor_epi64(self.0[into], _mm512_set1_epi64(mark));
        self.round();
        self.round();
        self.round();
        let State([v0, v1, v2, v3]) = *self;
        let half = _mm512_ternarylogic_epi64::<XOR_OF_THREE>(_mm512_xor_epi64(v0, v1), v2, v3);
        // SAFETY: both are 64 bytes, of which every value is valid.
        unsafe { std::mem::transmute::<__m512i, [u64; LANES]>(half) }
    }
}

/// The digests of keys with equally many whole words.
#[target_feature(enable = "avx512f")]
pub fn hash_eight(secret: &[u8; 16], keys: &[&[u8]; LANES]) -> [HashKey; LANES] {
    let parts = keys.map(<[u8]>::as_chunks::<8>);
    let mut state = State::new(secret);
    for at in 0..parts[0].0.len() {
        state.absorb(parts.map(|(words, _)| u64::from_le_bytes(words[at])));
    }
    state.absorb(words_of_last(keys, parts.map(|(_, rest)| rest)));
    let low = state.squeeze(2, 0xee);
    let high = state.squeeze(1, 0xdd);
    std::array::from_fn(|lane| HashKey(u128::from(low[lane]) | u128::from(high[lane]) << 64))
}
