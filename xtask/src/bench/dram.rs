//! The limit of what looks things up in memory: reads of DRAM of which each gives the place of the next.

use std::hint::black_box;
use std::time::Instant;

use tapetum_bench::random::Random;

use crate::arguments::Arguments;

const DRAM_BYTES: usize = 4 << 30;
const SMOKE_BYTES: usize = 4 << 20;

/// 4 GiB of random words.
pub fn words(arguments: &Arguments) -> Vec<u64> {
    let mut random = Random::new(3);
    (0..arguments.sized(DRAM_BYTES, SMOKE_BYTES) / 8).map(|_| random.next_u64()).collect()
}

/// Nanoseconds of a dependent random read among `words`.
pub fn read_ns(words: &[u64], reads: usize, first: usize) -> f64 {
    each(reads, || {
        let mut at = first;
        for step in 0..reads {
            at = (words[at] as usize).wrapping_add(step) % words.len();
        }
        black_box(at);
    })
}

/// Nanoseconds of one of the `operations` that `work` does.
pub fn each(operations: usize, work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_nanos() as f64 / operations as f64
}
