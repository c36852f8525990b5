//! Four keys side by side, by AVX2.

use super::lanes::hash_lanes;
use super::{start, words_of_last};
use crate::hash::HashKey;
use std::arch::x86_64::{
    __m256i as Register, _mm256_add_epi64 as add, _mm256_or_si256, _mm256_set1_epi64x as splat, _mm256_setr_epi8,
    _mm256_shuffle_epi8, _mm256_shuffle_epi32, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_xor_si256 as xor,
};

/// Keys that are hashed side by side.
const LANES: usize = 4;

hash_lanes!("avx2");

/// By a multiple of eight, bytes move; by others it takes two shifts.
#[target_feature(enable = "avx2")]
#[inline]
fn rotate_left<const BITS: i32>(words: Register) -> Register {
    match BITS {
        13 => _mm256_or_si256(_mm256_slli_epi64::<13>(words), _mm256_srli_epi64::<51>(words)),
        16 => rotate_left_16(words),
        17 => _mm256_or_si256(_mm256_slli_epi64::<17>(words), _mm256_srli_epi64::<47>(words)),
        21 => _mm256_or_si256(_mm256_slli_epi64::<21>(words), _mm256_srli_epi64::<43>(words)),
        32 => _mm256_shuffle_epi32::<0b10_11_00_01>(words),
        _ => unreachable!("SipHash does not rotate by {BITS}"),
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn rotate_left_16(words: Register) -> Register {
    let bytes = _mm256_setr_epi8(
        6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13, 6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13,
    );
    _mm256_shuffle_epi8(words, bytes)
}
