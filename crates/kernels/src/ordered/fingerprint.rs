//! Fingerprints: a byte of each key, by which a record is found among the unsorted ones of a node.
//!
//! They are part of the format: their test vectors must never change. Keys that were chosen to have one fingerprint cost a
//! comparison each, of a page's records at most.

/// Fingerprints that are compared at once.
pub const FINGERPRINTS: usize = 16;

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
pub fn fingerprint(key: &[u8]) -> u8 {
    let mut state = key.len() as u64;
    let mut mix = |word: u64| {
        state = (state ^ word).wrapping_mul(MULTIPLIER);
        state ^= state >> 32;
    };
    if let Some(last) = key.last_chunk::<8>() {
        // The last eight bytes overlap those before them.
        let (words, _) = key[..key.len() - 1].as_chunks::<8>();
        words.iter().for_each(|word| mix(u64::from_le_bytes(*word)));
        mix(u64::from_le_bytes(*last));
    } else if let (Some(first), Some(last)) = (key.first_chunk::<4>(), key.last_chunk::<4>()) {
        mix(u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32);
    } else if let (Some(first), Some(last)) = (key.first(), key.last()) {
        mix(u64::from(*first) | u64::from(key[key.len() / 2]) << 8 | u64::from(*last) << 16);
    }
    (state.wrapping_mul(MULTIPLIER) >> 56) as u8
}

/// The places of `wanted`, a bit each.
#[inline]
pub fn matches(fingerprints: &[u8; FINGERPRINTS], wanted: u8) -> u32 {
    #[cfg(target_arch = "x86_64")]
    return matches_sse2(fingerprints, wanted);
    #[cfg(not(target_arch = "x86_64"))]
    matches_portable(fingerprints, wanted)
}

/// [`matches()`], one by one.
pub fn matches_portable(fingerprints: &[u8; FINGERPRINTS], wanted: u8) -> u32 {
    (0..).zip(fingerprints).fold(0, |found, (place, fingerprint)| found | u32::from(*fingerprint == wanted) << place)
}

/// [`matches()`], all at once.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn matches_sse2(fingerprints: &[u8; FINGERPRINTS], wanted: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    // SAFETY: SSE2 is part of x86-64; the load takes the sixteen bytes of the array, at any alignment.
    unsafe {
        let all = _mm_loadu_si128(fingerprints.as_ptr().cast());
        _mm_movemask_epi8(_mm_cmpeq_epi8(all, _mm_set1_epi8(wanted as i8))) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_ways_find_the_same_places(fingerprints: [u8; FINGERPRINTS], place in 0..FINGERPRINTS, other: u8) {
            for wanted in [fingerprints[place], other, 0] {
                let found = matches_portable(&fingerprints, wanted);
                #[cfg(target_arch = "x86_64")]
                prop_assert_eq!(matches_sse2(&fingerprints, wanted), found);
                for (place, fingerprint) in fingerprints.iter().enumerate() {
                    prop_assert_eq!(found >> place & 1 == 1, *fingerprint == wanted);
                }
                prop_assert_eq!(found >> FINGERPRINTS, 0);
            }
        }
    }

    /// As they are on flash.
    #[test]
    fn fingerprints_stay_what_they_are() {
        let keys: [&[u8]; 8] = [b"", b"a", b"ab", b"abc", b"abcd", b"abcdefg", b"abcdefgh", b"user:0000000017"];
        assert_eq!(keys.map(fingerprint), VECTORS);
    }

    const VECTORS: [u8; 8] = [0, 151, 63, 33, 174, 90, 120, 28];

    #[test]
    fn every_byte_of_a_key_counts_and_neighbours_are_apart() {
        for length in [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 100, 1024] {
            let key = vec![0x55; length];
            let mut changed = 0;
            for at in 0..length {
                let mut other = key.clone();
                other[at] ^= 1;
                changed += usize::from(fingerprint(&other) != fingerprint(&key));
            }
            assert!(changed * 20 >= length * 19, "{changed} of {length}");
        }
        let mut counts = [0u32; 256];
        (0..25_600).for_each(|n| counts[usize::from(fingerprint(format!("user:{n:010}").as_bytes()))] += 1);
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(*least >= 50 && *most <= 160, "of 100 each: {least} to {most}");
    }
}
