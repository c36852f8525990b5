//! Comparison of one byte with sixteen, for nodes that keep their key bytes side by side.
//!
//! A result has one bit for each byte. SSE2 is part of x86-64; elsewhere the bytes are compared one by one.

#[inline(always)]
pub fn equal(keys: [u64; 2], byte: u8) -> u16 {
    #[cfg(target_arch = "x86_64")]
    return sse2::equal(keys, byte);
    #[cfg(not(target_arch = "x86_64"))]
    portable::equal(keys, byte)
}

/// The bytes that are `byte` or less.
#[inline(always)]
pub fn at_most(keys: [u64; 2], byte: u8) -> u16 {
    #[cfg(target_arch = "x86_64")]
    return sse2::at_most(keys, byte);
    #[cfg(not(target_arch = "x86_64"))]
    portable::at_most(keys, byte)
}

/// The bytes that are `byte` or more.
#[inline(always)]
pub fn at_least(keys: [u64; 2], byte: u8) -> u16 {
    #[cfg(target_arch = "x86_64")]
    return sse2::at_least(keys, byte);
    #[cfg(not(target_arch = "x86_64"))]
    portable::at_least(keys, byte)
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn byte_at(keys: [u64; 2], at: usize) -> u8 {
    (keys[at / 8] >> (at % 8 * 8)) as u8
}

#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use super::byte_at;

    fn matching(keys: [u64; 2], matches: impl Fn(u8) -> bool) -> u16 {
        (0..16).fold(0, |found, at| found | u16::from(matches(byte_at(keys, at))) << at)
    }

    pub fn equal(keys: [u64; 2], byte: u8) -> u16 {
        matching(keys, |key| key == byte)
    }

    pub fn at_most(keys: [u64; 2], byte: u8) -> u16 {
        matching(keys, |key| key <= byte)
    }

    pub fn at_least(keys: [u64; 2], byte: u8) -> u16 {
        matching(keys, |key| key >= byte)
    }
}

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_max_epu8, _mm_min_epu8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8,
    };

    #[inline(always)]
    fn compared(keys: [u64; 2], byte: u8, compare: impl Fn(__m128i, __m128i) -> __m128i) -> u16 {
        // SAFETY: SSE2 is part of x86-64; values only, no memory.
        unsafe {
            let keys = _mm_set_epi64x(keys[1] as i64, keys[0] as i64);
            _mm_movemask_epi8(compare(keys, _mm_set1_epi8(byte as i8))) as u16
        }
    }

    #[inline(always)]
    pub fn equal(keys: [u64; 2], byte: u8) -> u16 {
        // SAFETY: SSE2 is part of x86-64; values only, no memory.
        compared(keys, byte, |keys, wanted| unsafe { _mm_cmpeq_epi8(keys, wanted) })
    }

    #[inline(always)]
    pub fn at_most(keys: [u64; 2], byte: u8) -> u16 {
        // SAFETY: SSE2 is part of x86-64; values only, no memory.
        compared(keys, byte, |keys, bound| unsafe { _mm_cmpeq_epi8(_mm_min_epu8(keys, bound), keys) })
    }

    #[inline(always)]
    pub fn at_least(keys: [u64; 2], byte: u8) -> u16 {
        // SAFETY: SSE2 is part of x86-64; values only, no memory.
        compared(keys, byte, |keys, bound| unsafe { _mm_cmpeq_epi8(_mm_max_epu8(keys, bound), keys) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Both ways of each comparison, against the definition.
    fn check(keys: [u64; 2], byte: u8) {
        let expected = |matches: fn(u8, u8) -> bool| {
            (0..16).fold(0u16, |found, at| found | u16::from(matches(byte_at(keys, at), byte)) << at)
        };
        for (ways, expected) in [
            ([equal(keys, byte), portable::equal(keys, byte)], expected(|key, byte| key == byte)),
            ([at_most(keys, byte), portable::at_most(keys, byte)], expected(|key, byte| key <= byte)),
            ([at_least(keys, byte), portable::at_least(keys, byte)], expected(|key, byte| key >= byte)),
        ] {
            assert_eq!(ways, [expected; 2], "{keys:x?} {byte}");
        }
    }

    #[test]
    fn every_byte_is_compared_without_a_sign() {
        for base in [0, 0x78, 0x80, 0xf0] {
            let keys = [0, 8].map(|from| u64::from_le_bytes(std::array::from_fn(|at| base + from + at as u8)));
            (0..=255).for_each(|byte| check(keys, byte));
        }
    }

    proptest! {
        #[test]
        fn both_ways_compare_alike(keys: [u64; 2], byte: u8, at in 0usize..16) {
            check(keys, byte);
            check(keys, byte_at(keys, at));
        }
    }
}
