//! Keys of which there is a later word elsewhere. Every record that is looked at is asked after, and hardly any is among them.
//!
//! A bit for each hash says so first: sixteen bits a key, of which one is set.

use std::collections::BTreeSet;
use tapetum_kernels::checksum::crc32c_append;

const BITS_A_KEY: usize = 16;

pub struct ReplacedKeys {
    keys: BTreeSet<Box<[u8]>>,
    /// A power of two of bits.
    bits: Box<[u64]>,
}

impl ReplacedKeys {
    pub fn new(keys: BTreeSet<Box<[u8]>>) -> ReplacedKeys {
        let words = (keys.len() * BITS_A_KEY).div_ceil(64).next_power_of_two();
        let mut bits = vec![0_u64; words].into_boxed_slice();
        for key in &keys {
            let (word, bit) = place(key, words);
            bits[word] |= bit;
        }
        ReplacedKeys { keys, bits }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        let (word, bit) = place(key, self.bits.len());
        self.bits[word] & bit != 0 && self.keys.contains(key)
    }
}

fn place(key: &[u8], words: usize) -> (usize, u64) {
    let hash = crc32c_append(0, key) as usize;
    ((hash / 64) & (words - 1), 1 << (hash % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_the_keys_it_was_made_of_and_no_others() {
        for count in [0_u32, 1, 5, 1000] {
            let keys: BTreeSet<Box<[u8]>> = (0..count).map(|number| Box::from(&number.to_le_bytes()[..])).collect();
            let replaced = ReplacedKeys::new(keys);
            assert_eq!(replaced.is_empty(), count == 0);
            assert!((0..count).all(|number| replaced.contains(&number.to_le_bytes())));
            assert!((count..count + 5000).all(|number| !replaced.contains(&number.to_le_bytes())));
            assert!(!replaced.contains(b""));
        }
    }
}
