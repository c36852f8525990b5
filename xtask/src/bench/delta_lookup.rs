//! Lookups of random keys in the delta table, in turns: each depending on the one before, and in prefetched batches, as multiples of one
//! dependent random read of DRAM. Also the table's other costs: bits per entry, false candidates, merges.
//!
//! The array for the DRAM reads is allocated like the index, in pages of the same size.

use std::hint::black_box;
use std::time::Instant;

use tapetum::index::{GlobalIndex, IndexChange, IndexGeometry};
use tapetum_bench::random::{Random, mix};
use tapetum_kernels::hash::HashKey;

use super::dram::{self, each};
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;

const BATCH: usize = 32;
const LOOKUPS: usize = 1 << 20;
const PAYLOAD_BITS: u32 = 10;
/// The store's default.
const FINGERPRINT_BITS: u64 = 5;
const PARTITION_ENTRIES: u64 = 100_000;
/// A merge brings one new key for so many entries, so few buckets get more than one.
const ENTRIES_PER_INSERT: usize = 500;

/// Measurements of each round, in nanoseconds.
#[derive(Default)]
struct Rounds {
    dram: Vec<f64>,
    /// A dependent random read in an array as large as the index.
    alike: Vec<f64>,
    single: Vec<f64>,
    batched: Vec<f64>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let entries = arguments.number("entries", 100_000_000)?;
    let rounds = arguments.number("rounds", 9)?;
    let fingerprint_bits = arguments.number("fingerprint-bits", FINGERPRINT_BITS)? as u32;
    arguments.finish()?;
    let about = format!("{entries} entries, fingerprints of {fingerprint_bits} bits, keys that are there");
    let mut outcome = Outcome::new(arguments, "delta-lookup", about);
    let mut random = Random::new(mix(entries));
    let (index, sample) = build(entries, fingerprint_bits, &mut random)?;
    let found = measure(arguments, &index, &sample, rounds as usize);
    let bits = index.bytes() as f64 * 8.0 / index.entries() as f64;
    outcome.hold("one dependent random read of 4 GiB, ns", Spread::of(found.dram.clone()), Reach::Reported);
    outcome.hold(
        "a lookup in prefetched batches of 32 ÷ that",
        ratio(&found.batched, &found.dram),
        Reach::AtMost(0.35),
    );
    outcome.hold("a lookup that depends on the last ÷ that", ratio(&found.single, &found.dram), Reach::AtMost(2.0));
    outcome.hold(
        "one dependent random read of as many bytes as the table, ns",
        Spread::of(found.alike.clone()),
        Reach::Reported,
    );
    outcome.hold("a lookup in prefetched batches ÷ that", ratio(&found.batched, &found.alike), Reach::Reported);
    outcome.hold("a lookup in prefetched batches, ns", Spread::of(found.batched), Reach::Reported);
    outcome.hold("a lookup that depends on the last, ns", Spread::of(found.single), Reach::Reported);
    outcome.report("bits an entry, pointer included", bits);
    outcome.report("strange keys with a candidate", false_candidates(&index, &mut random));
    outcome.report("a merge, ns an insert", merge(&index, &mut random)?);
    outcome.end()
}

fn measure(arguments: &Arguments, index: &GlobalIndex, sample: &[HashKey], rounds: usize) -> Rounds {
    let words = dram::words(arguments);
    let alike = &words[..(index.bytes() / 8).min(words.len())];
    let mut found = [None; BATCH];
    let mut done = Rounds::default();
    for round in 0..rounds {
        let keys = &sample[round % (sample.len() / LOOKUPS) * LOOKUPS..][..LOOKUPS];
        done.dram.push(dram::read_ns(&words, LOOKUPS, round));
        done.alike.push(dram::read_ns(alike, LOOKUPS, round));
        done.single.push(each(LOOKUPS, || look_up_chain(index, keys)));
        done.batched.push(each(LOOKUPS, || {
            for keys in keys.chunks_exact(BATCH) {
                index.lookup_batch(keys, &mut found);
                black_box(&found);
            }
        }));
    }
    done
}

fn ratio(these: &[f64], those: &[f64]) -> Spread {
    Spread::of(these.iter().zip(those).map(|(this, that)| this / that))
}

/// An index as full as the store allows, and its keys in random order.
fn build(entries: u64, fingerprint_bits: u32, random: &mut Random) -> Result<(GlobalIndex, Vec<HashKey>), Failure> {
    let partition_bits = (entries / PARTITION_ENTRIES).max(1).ilog2();
    let geometry = IndexGeometry { partition_bits, fingerprint_bits, payload_bits: PAYLOAD_BITS };
    let index = GlobalIndex::new(geometry).map_err(|error| format!("no memory for the index: {error:?}"))?;
    let share = (entries as usize / geometry.partitions()).max(1);
    let sampled = (share * geometry.partitions() / (4 * LOOKUPS)).max(1);
    let mut sample = Vec::new();
    for partition in 0..geometry.partitions() {
        let mut hashes: Vec<HashKey> = (0..share).map(|_| hash_in(partition, partition_bits, random)).collect();
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

/// The share of absent keys for which the index gives a candidate.
fn false_candidates(index: &GlobalIndex, random: &mut Random) -> f64 {
    let candidates = (0..LOOKUPS).filter(|_| index.lookup(hash_in(0, 0, random)).is_some()).count();
    candidates as f64 / LOOKUPS as f64
}

/// Merges new keys that are spread over the index. Keys with a candidate are left out, because there is no key table here to identify the
/// candidate.
fn merge(index: &GlobalIndex, random: &mut Random) -> Result<f64, Failure> {
    let bits = index.geometry().partition_bits;
    let new = (0..index.entries() / ENTRIES_PER_INSERT).map(|_| hash_in(0, 0, random));
    let mut new: Vec<HashKey> = new.filter(|&hash| index.lookup(hash).is_none()).collect();
    new.sort_unstable();
    let begun = Instant::now();
    for hashes in new.chunk_by(|a, b| a.partition(bits) == b.partition(bits)) {
        let changes = hashes.iter().map(|&hash| IndexChange::Insert { hash, payload: 1, neighbor: None });
        index.merge(hashes[0].partition(bits), changes)?;
    }
    Ok(begun.elapsed().as_nanos() as f64 / new.len() as f64)
}

fn look_up_chain(index: &GlobalIndex, keys: &[HashKey]) {
    let mut sum = 0;
    for &hash in keys {
        // Makes the next key depend on this answer, as far as the processor can see.
        let hash = HashKey(hash.0 ^ u128::from(sum >> 40));
        sum += u64::from(index.lookup(hash).expect("a key that is there"));
    }
    black_box(sum);
}
