//! A deterministic generator (SplitMix64) and what the loads make with it. Everything is a pure function of a seed, so
//! that a value can be checked without having been kept.

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `0..bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0);
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Incompressible bytes.
    pub fn fill(&mut self, into: &mut [u8]) {
        for chunk in into.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// A bijection of 64 bits that leaves no pattern of its input.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The `index`th key: 16 hexadecimal digits, distinct for distinct indexes.
pub fn key16(index: u64) -> [u8; 16] {
    let mut key = [0; 16];
    let digits = mix(index);
    for (position, byte) in key.iter_mut().enumerate() {
        *byte = b"0123456789abcdef"[(digits >> (60 - 4 * position) & 15) as usize];
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_are_distinct_and_printable() {
        let keys: BTreeSet<[u8; 16]> = (0..10_000).map(key16).collect();
        assert_eq!(keys.len(), 10_000);
        assert!(keys.iter().flatten().all(u8::is_ascii_hexdigit));
    }

    #[test]
    fn below_reaches_every_value_and_no_other() {
        let mut random = Random::new(7);
        let seen: BTreeSet<u64> = (0..1000).map(|_| random.below(10)).collect();
        assert_eq!(seen, (0..10).collect());
    }

    #[test]
    fn fill_covers_a_ragged_end() {
        let mut bytes = [0; 13];
        Random::new(1).fill(&mut bytes);
        let mut again = [0; 13];
        Random::new(1).fill(&mut again);
        assert_eq!(bytes, again);
        assert!(bytes[8..].iter().any(|byte| *byte != 0));
    }
}
