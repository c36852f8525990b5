//! Eight keys side by side, by AVX-512, which rotates in one instruction.

use super::lanes::hash_lanes;
use super::{start, words_of_last};
use crate::hash::HashKey;
use std::arch::x86_64::{
    __m512i as Register, _mm512_add_epi64 as add, _mm512_rol_epi64 as rotate_left, _mm512_set1_epi64 as splat,
    _mm512_xor_epi64 as xor,
};

/// Keys that are hashed side by side.
const LANES: usize = 8;

hash_lanes!("avx512f");
