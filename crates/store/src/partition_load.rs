//! Reads a partition's slice of every key table: the valid entries, sorted. Growth and recovery build the index from it.

use crate::catalog::Catalog;
use crate::error::Error;
use crate::io::Io;
use crate::key_reader::{KeyReader, PAGES_PER_READ};
use crate::shared::Shared;
use std::sync::Arc;
use tapetum_kernels::hash::HashKey;

/// The first and the last hash key of a partition.
fn bounds(partition: usize, bits: u32) -> (HashKey, HashKey) {
    if bits == 0 {
        return (HashKey(0), HashKey(u128::MAX));
    }
    let low = (partition as u128) << (128 - bits);
    (HashKey(low), HashKey(low | u128::MAX >> bits))
}

/// The valid entries of a partition with their segments, sorted by hash key.
pub async fn load_partition(
    shared: &Arc<Shared>,
    io: &Io,
    catalog: &Catalog,
    partition: usize,
) -> Result<Vec<(HashKey, u32)>, Error> {
    let (low, high) = bounds(partition, shared.geometry.partition_bits);
    let mut slices = Vec::new();
    for number in catalog.segments.keys() {
        let segment = shared.segments[*number as usize].load_full();
        let segment = segment.ok_or_else(|| Error::Corrupt(format!("segment {number} is not open")))?;
        let pages = segment.key_pages_between(low, high);
        for start in pages.clone().step_by(PAGES_PER_READ as usize) {
            slices.push((segment.clone(), start..pages.end.min(start + PAGES_PER_READ)));
        }
    }
    let mut slices = slices.into_iter().peekable();
    let mut entries = Vec::new();
    let mut reader = KeyReader::new(io, shared.drive.local());
    loop {
        while reader.has_room()
            && let Some((segment, pages)) = slices.next()
        {
            reader.start(segment, pages, ())?;
        }
        let Some(read) = reader.next().await? else { break };
        let number = read.segment.descriptor.number;
        let valid = &catalog.segments[&number].valid;
        for page in read.pages() {
            let page = page?;
            let within = (page.lower_bound(low)..page.count()).map(|place| (place, page.entry(place)));
            for (place, entry) in within.take_while(|(_, entry)| entry.hash <= high) {
                if valid.get(page.first_entry + place as u32) {
                    entries.push((entry.hash, number));
                }
            }
        }
        reader.recycle(read);
    }
    entries.sort_unstable_by_key(|entry| entry.0);
    match entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        None => Ok(entries),
        Some(pair) => Err(Error::Corrupt(format!(
            "the key {:?} is valid in segments {} and {} at once",
            pair[0].0, pair[0].1, pair[1].1
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_tile_the_hash_space() {
        assert_eq!(bounds(0, 0), (HashKey(0), HashKey(u128::MAX)));
        for bits in [1, 6] {
            let mut next = 0u128;
            for partition in 0..1usize << bits {
                let (low, high) = bounds(partition, bits);
                assert_eq!((low.0, low.partition(bits), high.partition(bits)), (next, partition, partition));
                next = high.0.wrapping_add(1);
            }
            assert_eq!(next, 0);
        }
    }
}
