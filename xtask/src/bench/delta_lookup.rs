//! Lookups of random keys in the delta table, one depending on the other and in prefetched batches, as multiples of one
//! dependent random read of DRAM; all three in turns.

use std::hint::black_box;
use std::time::Instant;

use tapetum::index::{GlobalIndex, IndexGeometry};
use tapetum_bench::random::{Random, mix};
use tapetum_kernels::hash::HashKey;

use super::outcome::{Outcome, Reach};
use super::series::Spread;
use crate::Failure;
use crate::arguments::Arguments;

const DRAM_BYTES: usize = 4 << 30;
const BATCH: usize = 32;
const LOOKUPS: usize = 1 << 20;
const PAYLOAD_BITS: u32 = 10;
/// The store's default.
const FINGERPRINT_BITS: u32 = 5;
const PARTITION_ENTRIES: u64 = 100_000;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let entries = arguments.number("entries", 100_000_000)?;
    let rounds = arguments.number("rounds", 9)?;
    arguments.finish()?;
    println!("delta-lookup: {entries} entries");
    let (index, sample) = build(entries)?;
    let dram = random_words();
    let mut found = [None; BATCH];
    let (mut single, mut batched, mut nanoseconds) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let keys = &sample[round as usize % (sample.len() / LOOKUPS) * LOOKUPS..][..LOOKUPS];
        let read = each(LOOKUPS, || read_chain(&dram, round as usize));
        let one = each(LOOKUPS, || look_up_chain(&index, keys));
        let many = each(LOOKUPS, || {
            for keys in keys.chunks_exact(BATCH) {
                index.lookup_batch(keys, &mut found);
                black_box(&found);
            }
        });
        single.push(one / read);
        batched.push(many / read);
        nanoseconds.push(read);
    }
    let mut outcome = Outcome::new("delta-lookup", format!("{} entries, keys that are there", index.entries()));
    outcome.hold("one dependent random read of 4 GiB, ns", Spread::of(nanoseconds), Reach::Reported);
    outcome.hold("a lookup in prefetched batches of 32 ÷ that", Spread::of(batched), Reach::AtMost(0.35));
    outcome.hold("a lookup that depends on the last ÷ that", Spread::of(single), Reach::AtMost(2.0));
    let bits = index.bytes() as f64 * 8.0 / index.entries() as f64;
    outcome.hold("bits an entry, pointer included", Spread::of([bits]), Reach::Reported);
    outcome.end()
}

/// An index as full as the store lets it be, and keys in it in no order.
fn build(entries: u64) -> Result<(GlobalIndex, Vec<HashKey>), Failure> {
    let partition_bits = (entries / PARTITION_ENTRIES).max(1).ilog2();
    let geometry = IndexGeometry { partition_bits, fingerprint_bits: FINGERPRINT_BITS, payload_bits: PAYLOAD_BITS };
    let index = GlobalIndex::new(geometry).map_err(|error| format!("no memory for the index: {error:?}"))?;
    let mut random = Random::new(mix(entries));
    let share = (entries as usize / geometry.partitions()).max(1);
    let sampled = (share * geometry.partitions() / (4 * LOOKUPS)).max(1);
    let mut sample = Vec::new();
    for partition in 0..geometry.partitions() {
        let mut hashes: Vec<HashKey> = (0..share).map(|_| hash_in(partition, partition_bits, &mut random)).collect();
        hashes.sort_unstable();
        let payloads = hashes.iter().enumerate().map(|(place, &hash)| (hash, place as u32 % (1 << PAYLOAD_BITS)));
        index.rebuild(partition, payloads, share).map_err(|error| format!("a partition is not built: {error:?}"))?;
        sample.extend(hashes.iter().step_by(sampled).copied());
    }
    if sample.len() < LOOKUPS {
        return Err(format!("give at least {LOOKUPS} --entries").into());
    }
    for place in (1..sample.len()).rev() {
        sample.swap(place, random.below(place as u64 + 1) as usize);
    }
    Ok((index, sample))
}

fn hash_in(partition: usize, partition_bits: u32, random: &mut Random) -> HashKey {
    let bits = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
    HashKey((partition as u128) << (127 - partition_bits) << 1 | bits >> partition_bits)
}

fn random_words() -> Vec<u64> {
    let mut random = Random::new(3);
    (0..DRAM_BYTES / 8).map(|_| random.next_u64()).collect()
}

/// Each read gives the place of the next one.
fn read_chain(words: &[u64], first: usize) {
    let mut at = first;
    for step in 0..LOOKUPS {
        at = (words[at] as usize).wrapping_add(step) % words.len();
    }
    black_box(at);
}

fn look_up_chain(index: &GlobalIndex, keys: &[HashKey]) {
    let mut sum = 0;
    for &hash in keys {
        // The next key depends on the answer to this one, as far as the processor knows.
        let hash = HashKey(hash.0 ^ u128::from(sum >> 40));
        sum += u64::from(index.lookup(hash).expect("a key that is there"));
    }
    black_box(sum);
}

fn each(operations: usize, work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_nanos() as f64 / operations as f64
}
