//! Builds a partition of the index from its slice of every key table: growth, shrinking and recovery alike.
//!
//! The slice streams through memory in *cuts* of the hash space: the entries of one cut are gathered from every segment,
//! sorted and pushed into the builder, so that memory is bounded by a cut whatever the size of the partition, and a step is
//! short.

use crate::hashed::HashedEngine;
use crate::hashed::catalog::Catalog;
use crate::hashed::flush::hash_sort::{Entry, HashSort, STEP_ENTRIES};
use crate::hashed::index::RebuildError;
use crate::hashed::item_count::by_keyspace::ItemTally;
use crate::hashed::key_tables::key_reader::{KeyReader, PAGES_PER_READ};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::io::Io;
use tapetum_drive::fail_point;
use tapetum_kernels::hash::HashKey;

/// Entries of a cut, about: 64 bytes each while they are sorted.
const CUT_ENTRIES: usize = 64 << 10;

/// Builds a partition anew, sized for the entries it has, while the old one serves; with `depth` reads on their way. Its keys by keyspace.
pub async fn rebuild(
    engine: &Arc<HashedEngine>,
    io: &Io,
    catalog: &Catalog,
    partition: usize,
    depth: usize,
) -> Result<ItemTally, Error> {
    let valid: u64 = catalog.segments.values().map(|state| u64::from(state.valid_entries)).sum();
    // Hash keys are uniform, so a partition's share is known but for its deviation.
    let share = valid as f64 / engine.geometry.partitions() as f64;
    let mut entries = (share + 3.0 * share.sqrt()) as usize;
    engine.levels.partitions_rebuilding.fetch_add(1, Ordering::Relaxed);
    let tally = loop {
        match build(engine, io, catalog, partition, entries, depth).await? {
            Some(tally) => break tally,
            None => entries += entries / 16 + 16,
        }
    };
    engine.levels.partitions_rebuilding.fetch_sub(1, Ordering::Relaxed);
    engine.counters.partitions_rebuilt.fetch_add(1, Ordering::Relaxed);
    Ok(tally)
}

/// Builds a partition for about so many entries; `None` when it needs more room.
async fn build(
    engine: &Arc<HashedEngine>,
    io: &Io,
    catalog: &Catalog,
    partition: usize,
    entries: usize,
    depth: usize,
) -> Result<Option<ItemTally>, Error> {
    let failed = |error: RebuildError| match error {
        RebuildError::PartitionFull => Ok(None),
        RebuildError::OutOfMemory(_) => Err(Error::Io(error.to_string())),
    };
    let mut builder = match engine.index.builder(partition, engine.index.room_for(partition, entries)) {
        Ok(builder) => builder,
        Err(error) => return failed(error),
    };
    let (mut cut, mut sort, mut tally) = (Vec::new(), HashSort::default(), ItemTally::default());
    for bounds in cuts(partition, engine.geometry.partition_bits, entries.div_ceil(CUT_ENTRIES).max(1)) {
        load_cut(engine, io, catalog, bounds.clone(), depth, &mut cut, &mut tally).await?;
        let sorted = sort.sort(io, &cut, &bounds).await;
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let ((hash, one), (_, other)) = (twice[0], twice[1]);
            return Err(Error::Corrupt(format!("the key {hash:?} is valid in segments {one} and {other} at once")));
        }
        for step in sorted.chunks(STEP_ENTRIES) {
            for &(hash, segment) in step {
                if builder.push(hash, segment).is_err() {
                    return Ok(None);
                }
            }
            io.step().await;
        }
    }
    engine.index.install(builder).map_or_else(failed, |()| Ok(Some(tally)))
}

/// Cuts the hash keys of a partition into `count` ranges.
fn cuts(partition: usize, bits: u32, count: usize) -> impl Iterator<Item = RangeInclusive<HashKey>> {
    let all = u128::MAX >> bits;
    let start = (partition as u128) << (127 - bits) << 1;
    // No cut is finer than 2^-64 of the partition.
    let edge = move |number: usize| start + ((number as u128) << 64) / count as u128 * ((all >> 64) + 1);
    (0..count).map(move |number| {
        let last = if number + 1 < count { edge(number + 1) - 1 } else { start | all };
        HashKey(edge(number))..=HashKey(last)
    })
}

/// The valid entries within `bounds`, in no order, which are added to the tally.
async fn load_cut(
    engine: &Arc<HashedEngine>,
    io: &Io,
    catalog: &Catalog,
    bounds: RangeInclusive<HashKey>,
    depth: usize,
    entries: &mut Vec<Entry>,
    tally: &mut ItemTally,
) -> Result<(), Error> {
    entries.clear();
    let (low, high) = bounds.into_inner();
    // Segments made since the store was opened: with them a partition is grown, not recovered.
    let generation = engine.segments.names.version_next() >> 32;
    let is_new = |number: &u32| catalog.segments[number].descriptor.version >> 32 == generation;
    let newest = catalog
        .segments
        .keys()
        .filter(|number| is_new(number))
        .max_by_key(|number| catalog.segments[number].descriptor.version);
    let forgotten = newest.copied().filter(|_| fail_point!(GrowWithoutNewest));
    let numbers = catalog.segments.keys().filter(move |number| Some(**number) != forgotten);
    let mut slices = numbers.flat_map(|number| {
        let Some(segment) = engine.segments.get(*number) else {
            unreachable!("segment {number} of the catalog is not open")
        };
        let pages = segment.key_pages_between(low, high);
        let reads = pages.clone().step_by(PAGES_PER_READ as usize);
        reads.map(move |start| (segment.clone(), start..pages.end.min(start + PAGES_PER_READ)))
    });
    let mut reader = KeyReader::with_depth(io, engine.drive.local(), engine.hasher.clone(), depth);
    loop {
        while reader.has_room()
            && let Some((segment, pages)) = slices.next()
        {
            reader.start(segment, pages, ()).await?;
        }
        let Some(read) = reader.next().await? else { break };
        let number = read.segment.descriptor.number;
        let valid = &catalog.segments[&number].valid;
        for page in read.pages() {
            let within = (page.lower_bound(low)..page.count()).map(|place| (place, page.entry(place)));
            for (place, entry) in within.take_while(|(_, entry)| entry.hash <= high) {
                let revived = fail_point!(GrowWithDead) && is_new(&number);
                if valid.get(page.first_entry + place as u32) || revived {
                    entries.push((entry.hash, number));
                    tally.add(KeyspaceId(entry.keyspace()), 1);
                }
            }
        }
        reader.recycle(read);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_tile_the_hash_space() {
        for (bits, count) in [(0, 1), (0, 3), (1, 1), (6, 7), (6, 64), (12, 1000)] {
            let mut next = 0u128;
            for partition in 0..1usize << bits {
                for cut in cuts(partition, bits, count) {
                    assert_eq!((cut.start().0, cut.start().partition(bits)), (next, partition));
                    assert_eq!(cut.end().partition(bits), partition);
                    assert!(cut.end().0 - next >= (u128::MAX >> bits) / count as u128 / 2);
                    next = cut.end().0.wrapping_add(1);
                }
            }
            assert_eq!(next, 0);
        }
    }
}
