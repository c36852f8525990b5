//! Computes the [`HashKey`]s of many keys, several at a time: keys that are equally many words long go together, eight
//! with AVX-512 and four with AVX2. A single key keeps a core waiting for its own results. Several keys side by side,
//! in the lanes of a register, take hardly longer.
//!
//! The digests are those of [`HashKey::of`], whichever implementation computes them.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod lanes;

use crate::hash::HashKey;

/// Calls `each` with every key's number and digest, in the keys' order.
#[inline]
pub fn hash_each(secret: &[u8; 16], keys: &[&[u8]], mut each: impl FnMut(usize, HashKey)) {
    let mut number = 0;
    let mut give = |hashes: &[HashKey]| {
        for hash in hashes {
            each(number, *hash);
            number += 1;
        }
        number
    };
    let mut rest = keys;
    while !rest.is_empty() {
        let hashed = hash_group(secret, rest, &mut give);
        rest = &keys[hashed..];
    }
}

/// Hashes the first key, and those behind it that go together with it, and returns the result of `give`.
#[inline]
fn hash_group(secret: &[u8; 16], keys: &[&[u8]], give: &mut impl FnMut(&[HashKey]) -> usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && let Some(eight) = alike(keys)
        {
            // SAFETY: the machine has the instructions.
            return give(&unsafe { avx512::hash_lanes(secret, eight) });
        }
        if is_x86_feature_detected!("avx2")
            && let Some(four) = alike(keys)
        {
            // SAFETY: the machine has the instructions.
            return give(&unsafe { avx2::hash_lanes(secret, four) });
        }
    }
    give(&[HashKey::of(secret, keys[0])])
}

/// The first `LANES` keys, if there are as many and they are equally many words long.
#[cfg(target_arch = "x86_64")]
fn alike<'a, 'b, const LANES: usize>(keys: &'a [&'b [u8]]) -> Option<&'a [&'b [u8]; LANES]> {
    keys.first_chunk().filter(|group| group.iter().all(|key| key.len() / 8 == group[0].len() / 8))
}

/// SipHash's state before the first word.
#[cfg(target_arch = "x86_64")]
fn start(secret: &[u8; 16]) -> [u64; 4] {
    let (words, _) = secret.as_chunks::<8>();
    let [k0, k1] = [0, 1].map(|n| u64::from_le_bytes(words[n]));
    [
        k0 ^ 0x736f_6d65_7073_6575,
        // This constant distinguishes digests of 128 bits from shorter ones.
        k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ]
}

/// The last word of each key: the bytes behind its whole words, and its length.
#[cfg(target_arch = "x86_64")]
fn words_of_last<const LANES: usize>(keys: &[&[u8]; LANES], rests: [&[u8]; LANES]) -> [u64; LANES] {
    std::array::from_fn(|lane| {
        let mut word = [0; 8];
        word[..rests[lane].len()].copy_from_slice(rests[lane]);
        word[7] = keys[lane].len() as u8;
        u64::from_le_bytes(word)
    })
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
            keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..40),
            length in 0usize..260,
        ) {
            // The keys come as generated, and then all of about one length.
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
            let keys = [&bytes[..length]; 13];
            assert_eq!(digests(&secret, &keys), [HashKey::of(&secret, keys[0]); 13], "length {length}");
        }
    }
}
