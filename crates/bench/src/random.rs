//! Random choices of loads: keys, and which of them are asked for. Everything is a pure function of a seed, so that a value can be checked
//! without having been stored.

pub use tapetum_kernels::random::{SplitMix64 as Random, mix};

/// Draws numbers below a count, the first of them most often: the one of rank r in proportion to 1/r^exponent. It uses the method of Gray
/// and others ("Quickly generating billion-record synthetic databases"), like YCSB.
pub struct Zipfian {
    count: f64,
    exponent: f64,
    /// The sum of 1/r^exponent over all ranks.
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    pub fn new(count: u64, exponent: f64) -> Zipfian {
        assert!(count > 2 && exponent > 0.0 && exponent < 1.0, "{count} numbers, exponent {exponent}");
        let zeta: f64 = (1..=count).map(|rank| (rank as f64).powf(-exponent)).sum();
        let two = 1.0 + 0.5_f64.powf(exponent);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - exponent)) / (1.0 - two / zeta);
        Zipfian { count: count as f64, exponent, zeta, eta }
    }

    pub fn draw(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(self.exponent) {
            return 1;
        }
        let rank = self.count * (self.eta * unit - self.eta + 1.0).powf(1.0 / (1.0 - self.exponent));
        rank.min(self.count - 1.0) as u64
    }
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
    fn zipfian_draws_the_first_ranks_as_often_as_it_should() {
        let zipfian = Zipfian::new(1000, 0.99);
        let mut random = Random::new(3);
        let mut counts = vec![0_u32; 1000];
        for _ in 0..100_000 {
            counts[zipfian.draw(&mut random) as usize] += 1;
        }
        let zeta: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        for rank in [0, 1] {
            let expected = 100_000.0 * f64::from(rank + 1).powf(-0.99) / zeta;
            let found = f64::from(counts[rank as usize]);
            assert!((found / expected - 1.0).abs() < 0.05, "rank {rank}: {found}, expected {expected}");
        }
        assert!(counts[..100].iter().sum::<u32>() > 60_000 && counts[900..].iter().sum::<u32>() > 500);
    }
}
