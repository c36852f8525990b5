//! Figures of the delta table: bits an entry, and the time of a lookup against one dependent random DRAM read.
//!
//! `cargo run --release -p tapetum --example delta_table_figures [ENTRIES[:FINGERPRINT_BITS]…]`, by default 1 and 5 million with
//! several widths of the fingerprint. An index smaller than
//! the last-level cache flatters the times; the DRAM read is always over 4 GiB.
#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::hint::black_box;
use std::time::Instant;
use tapetum::index::{Change, GlobalIndex, IndexGeometry};
use tapetum_kernels::hash::HashKey;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn hash_key(&mut self) -> HashKey {
        HashKey(u128::from(self.next()) << 64 | u128::from(self.next()))
    }
}

const LOOKUPS: usize = 2_000_000;
const PAYLOAD_BITS: u32 = 10;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments = if arguments.is_empty() { vec!["1000000".into(), "5000000".into()] } else { arguments };
    let dram = dram_read_ns();
    println!("one dependent random read of 4 GiB: {dram:.0} ns");
    println!("payload {PAYLOAD_BITS} bits; lookups of keys that are there; DRAM = times the read above");
    for argument in arguments {
        let (entries, bits) = argument.split_once(':').unwrap_or((&argument, "0,4,5,6"));
        let entries = entries.parse().expect("a number of entries");
        for bits in bits.split(',') {
            measure(entries, bits.parse().expect("a number of bits"), dram);
        }
    }
}

/// Each read gives the place of the next one.
fn dram_read_ns() -> f64 {
    const WORDS: usize = 1 << 29;
    let mut words = vec![0u64; WORDS];
    let mut random = Random(3);
    words.iter_mut().for_each(|word| *word = random.next());
    let mut at = 0;
    let start = Instant::now();
    for i in 0..LOOKUPS {
        at = (words[at] as usize).wrapping_add(i) % WORDS;
    }
    black_box(at);
    nanoseconds(start, LOOKUPS)
}

fn nanoseconds(start: Instant, operations: usize) -> f64 {
    start.elapsed().as_nanos() as f64 / operations as f64
}

fn measure(entries: usize, fingerprint_bits: u32, dram: f64) {
    // Partitions of some 100,000 entries.
    let partition_bits = (entries / 100_000).max(1).ilog2();
    let geometry = IndexGeometry { partition_bits, fingerprint_bits, payload_bits: PAYLOAD_BITS };
    let index = GlobalIndex::new(geometry).expect("memory");
    let mut random = Random(entries as u64);
    let mut build = |numerator: usize| {
        let mut sample = Vec::new();
        let partitions = geometry.partitions();
        let mut seconds = 0.0;
        for partition in 0..partitions {
            let share = entries / partitions;
            let mut hashes: Vec<HashKey> = (0..share)
                .map(|_| {
                    HashKey((partition as u128) << (127 - partition_bits) << 1 | random.hash_key().0 >> partition_bits)
                })
                .collect();
            hashes.sort_unstable();
            sample.extend(hashes.iter().step_by((entries / LOOKUPS).max(1)).copied());
            let start = Instant::now();
            let payloads = hashes.iter().enumerate().map(|(i, &hash)| (hash, i as u32 % (1 << PAYLOAD_BITS)));
            index.rebuild(partition, payloads, share * numerator / 8).expect("room");
            seconds += start.elapsed().as_secs_f64();
        }
        (sample, seconds)
    };
    let bits = || index.bytes() as f64 * 8.0 / index.entries() as f64;
    build(9);
    let bits_grown = bits();
    let (mut sample, seconds) = build(8);
    let build_ns = seconds * 1e9 / entries as f64;
    for i in (1..sample.len()).rev() {
        sample.swap(i, random.next() as usize % (i + 1));
    }

    let start = Instant::now();
    let mut sum = 0;
    for &hash in &sample {
        // The next key depends on the answer to this one, as far as the processor knows.
        let hash = HashKey(hash.0 ^ u128::from(sum >> 40));
        sum += u64::from(index.lookup(hash).expect("a key that is there"));
    }
    let single = nanoseconds(start, sample.len());

    let mut found = [None; 32];
    let start = Instant::now();
    for hashes in sample.chunks_exact(32) {
        index.lookup_batch(hashes, &mut found);
        black_box(&found);
    }
    let batch = nanoseconds(start, sample.len());

    let strange: Vec<HashKey> = (0..LOOKUPS / 4).map(|_| random.hash_key()).collect();
    let false_candidates = strange.iter().filter(|&&hash| index.lookup(hash).is_some()).count();

    let bits_full = bits();
    let extensions = index.extension_buckets_used() as f64 * 1000.0 / entries as f64;
    let merge_ns = merge_ns(&index, &mut random);
    println!(
        "{entries:>11} entries, fingerprint {fingerprint_bits}: {bits_full:5.2} bits an entry at capacity, {bits_grown:5.2} with 1/8 more room; \
         {extensions:.2} extensions a 1000 entries; false candidates {:.2} %; lookup {single:4.0} ns = {:.2} DRAM, \
         in batches of 32 {batch:3.0} ns = {:.2} DRAM; build {build_ns:.0} ns; merge {merge_ns:.0} ns an insert",
        false_candidates as f64 * 100.0 / strange.len() as f64,
        single / dram,
        batch / dram,
    );
}

/// New keys, one to 500 entries, spread over all: what a merge costs when few buckets have more than one change. Keys that
/// have a candidate are left out, as there is no key table here to name its owner.
fn merge_ns(index: &GlobalIndex, random: &mut Random) -> f64 {
    let bits = index.geometry().partition_bits;
    let new = (0..index.entries() / 500).map(|_| random.hash_key());
    let mut new: Vec<HashKey> = new.filter(|&hash| index.lookup(hash).is_none()).collect();
    new.sort_unstable();
    let start = Instant::now();
    for hashes in new.chunk_by(|a, b| a.partition(bits) == b.partition(bits)) {
        let changes = hashes.iter().map(|&hash| Change::Insert { hash, payload: 1, neighbor: None });
        index.merge(hashes[0].partition(bits), changes).expect("room for a few");
    }
    nanoseconds(start, new.len())
}
