//! Key checks: whether the keys of a flush are on flash already, and where (XDP's fee-op, in bulk).
//!
//! Key tables are looked at, never data: those that are in memory there, the others on flash. The batch and every key table
//! are sorted by the same hash, so the checks of a batch against one segment are a merge over slices of its table, and
//! neighbouring pages are read together. A key for which the index has no candidate is new and costs nothing.

use crate::hashed::HashedEngine;
use crate::hashed::catalog::Catalog;
use crate::hashed::key_tables::find_or_load;
use crate::hashed::key_tables::key_reader::{KeyReader, PAGES_PER_READ};
use crate::hashed::segment::Descriptor;
use crate::hashed::segment::view::Segment;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_base::error::Error;
use tapetum_base::media::io::Io;
use tapetum_kernels::hash::HashKey;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checked {
    /// The key is not on flash, and no entry of the index is near it.
    New,
    /// The key is not on flash; `hash` is the full hash key of the entry that the index takes it for.
    Near { hash: HashKey, segment: u32 },
    /// The key is on flash.
    Older { segment: u32, entry: u32, size_bytes: u32 },
    /// The entry was not where the index said: an install came between. To be checked again.
    Unclear,
}

/// The segments that checks relied on, by number and first version: whether an install has replaced one since.
#[derive(Default)]
pub struct Relied {
    versions: BTreeMap<u32, u64>,
    replaced: BTreeSet<u32>,
}

impl Relied {
    /// Remembers the first version of each segment. A later one still differs at the next [`Relied::compare`], because no version returns.
    fn on(&mut self, segment: &Segment) {
        let Descriptor { number, version, .. } = segment.descriptor;
        self.versions.entry(number).or_insert(version);
    }

    /// Looks at what is there now.
    pub fn compare(&mut self, catalog: &Catalog) {
        let version_now = |number| catalog.segments.get(number).map(|state| state.descriptor.version);
        let gone = self.versions.iter().filter(|(number, version)| version_now(number) != Some(**version));
        self.replaced.extend(gone.map(|(number, _)| *number));
    }

    /// Whether what a check found still holds.
    pub fn holds(&self, checked: Checked) -> bool {
        match checked {
            Checked::New => true,
            Checked::Near { segment, .. } | Checked::Older { segment, .. } => !self.replaced.contains(&segment),
            Checked::Unclear => false,
        }
    }
}

/// Keys whose places in the index are asked for ahead of their lookup.
const PREFETCH_AHEAD: usize = 8;

/// A key whose candidate is to be looked at.
struct Check {
    version: u64,
    /// Pages that may have the candidate's entry.
    pages: Range<u32>,
    cell: RangeInclusive<HashKey>,
    segment: Arc<Segment>,
    /// The key's number in the batch.
    key: usize,
}

/// Checks a sorted batch of one partition. Installs may come between: `relied` tells afterwards what must be checked again.
pub async fn check_keys(
    engine: &Arc<HashedEngine>,
    io: &Io,
    relied: &mut Relied,
    batch: &[(HashKey, u32)],
    results: &mut Vec<Checked>,
) -> Result<(), Error> {
    results.clear();
    results.resize(batch.len(), Checked::New);
    let checks = candidates(engine, batch, results);
    let mut finder = Finder { engine, batch, results };
    let mut reads = Vec::new();
    for of_segment in checks.chunk_by(|a, b| a.version == b.version) {
        relied.on(&of_segment[0].segment);
        match find_or_load(engine, io, &of_segment[0].segment).await? {
            Some(table) => {
                for check in of_segment {
                    check.pages.clone().for_each(|page| finder.look(check, table.page(page)));
                }
            }
            None => reads.extend(Coalesced { checks: of_segment }),
        }
    }
    let mut reads = reads.into_iter().peekable();
    let mut reader = KeyReader::new(io, engine.drive.local(), engine.hasher.clone());
    while reads.peek().is_some() || !reader.is_idle() {
        while reader.has_room()
            && let Some((pages, checks)) = reads.next()
        {
            reader.start(checks[0].segment.clone(), pages, checks).await?;
        }
        let Some(read) = reader.next().await? else { break };
        for (number, page) in (read.first_page()..).zip(read.pages()) {
            let checks = read.context.iter().filter(|check| check.pages.contains(&number));
            checks.for_each(|check| finder.look(check, page));
        }
        reader.recycle(read);
    }
    engine.counters.key_check_reads.fetch_add(reader.reads(), Ordering::Relaxed);
    Ok(())
}

/// The keys that have a candidate, in the order of its segments and key tables. Their results are unclear for now.
fn candidates(engine: &HashedEngine, batch: &[(HashKey, u32)], results: &mut [Checked]) -> Vec<Check> {
    let mut checks = Vec::new();
    for (key, (hash, _)) in batch.iter().enumerate() {
        if let Some((ahead, _)) = batch.get(key + PREFETCH_AHEAD) {
            engine.index.prefetch(*ahead);
        }
        let Some(segment) = engine.candidate(*hash) else { continue };
        results[key] = Checked::Unclear;
        let cell = engine.index.cell(*hash);
        let pages = segment.key_pages_between(*cell.start(), *cell.end());
        checks.push(Check { version: segment.descriptor.version, pages, cell, segment, key });
    }
    checks.sort_unstable_by_key(|check| (check.version, check.pages.start, check.pages.end));
    checks
}

/// Cuts the checks of one segment into reads, each with the checks that it serves.
struct Coalesced<'a> {
    checks: &'a [Check],
}

impl<'a> Iterator for Coalesced<'a> {
    type Item = (Range<u32>, &'a [Check]);

    fn next(&mut self) -> Option<(Range<u32>, &'a [Check])> {
        const GAP_PAGES: u32 = 2;
        while self.checks.first()?.pages.is_empty() {
            self.checks = &self.checks[1..];
        }
        let mut pages = self.checks[0].pages.clone();
        let mut count = 1;
        for check in &self.checks[1..] {
            let end = pages.end.max(check.pages.end);
            if check.pages.start > pages.end + GAP_PAGES || end - pages.start > PAGES_PER_READ {
                break;
            }
            pages.end = end;
            count += 1;
        }
        let (checks, rest) = self.checks.split_at(count);
        self.checks = rest;
        Some((pages, checks))
    }
}

struct Finder<'a> {
    engine: &'a Arc<HashedEngine>,
    batch: &'a [(HashKey, u32)],
    results: &'a mut Vec<Checked>,
}

impl Finder<'_> {
    /// Looks for a check's key, and for the entry that the index takes it for, in one page.
    fn look(&mut self, check: &Check, page: tapetum_kernels::key_table::KeyPage<'_>) {
        if matches!(self.results[check.key], Checked::Older { .. }) {
            return;
        }
        let hash = self.batch[check.key].0;
        let segment = check.segment.descriptor.number;
        for place in page.lower_bound(*check.cell.start())..page.count() {
            let entry = page.entry(place);
            if entry.hash > *check.cell.end() {
                break;
            }
            let entry_number = page.first_entry + place as u32;
            if !check.segment.is_valid(entry_number) {
                continue;
            }
            if entry.hash == hash {
                self.results[check.key] = Checked::Older { segment, entry: entry_number, size_bytes: entry.size_bytes };
                return;
            }
            // The candidate shares the longest prefix with the key as the index sees it, up to ties, which are as good.
            let shared_bits = |other: HashKey| self.engine.index.shared_bits(other, hash);
            match self.results[check.key] {
                Checked::Near { hash: near, .. } if shared_bits(near) >= shared_bits(entry.hash) => {}
                _ => self.results[check.key] = Checked::Near { hash: entry.hash, segment },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::catalog::Bitmap;
    use crate::hashed::catalog::tests::descriptor;
    use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_in_memory};
    use crate::hashed::segment::local_index::LocalIndex;
    use tapetum_base::media::geometry::Geometry;
    use tapetum_kernels::data_page::{PAGE_BYTES, SegmentSalt};
    use tapetum_kernels::key_table::{Entry, KeyPage, PageBuilder};

    /// The result of checking a key, two thirds into its cell, against a page with hash keys at these distances from the cell's start. `distances`
    /// gets the cell's width.
    fn looked(distances: impl Fn(u128) -> Vec<u128>) -> (Checked, Vec<HashKey>) {
        let (_drive, store) = store_in_memory(SMALL_BYTES, &small_options());
        let engine = store.hashed();
        let cell = engine.index.cell(HashKey(5 << 90));
        let width = cell.end().0 - cell.start().0;
        let hashes: Vec<HashKey> = distances(width).iter().map(|distance| HashKey(cell.start().0 + distance)).collect();
        let (mut builder, mut bytes) = (PageBuilder::default(), vec![0; PAGE_BYTES]);
        hashes.iter().for_each(|hash| builder.push(Entry { hash: *hash, size_bytes: 130, route: 0 }));
        builder.encode(SegmentSalt { store: 1, version: 11 }, 0, 0, &mut bytes);
        let segment = Segment::new(descriptor(1, hashes.len() as u32), 1, engine.geometry, LocalIndex::empty());
        segment.attach(&Bitmap::full(hashes.len() as u32));
        let batch = [(HashKey(cell.start().0 + width / 100 * 67), 0)];
        let mut results = vec![Checked::Unclear];
        let check = Check { version: 11, pages: 0..1, cell, segment: Arc::new(segment), key: 0 };
        Finder { engine, batch: &batch, results: &mut results }.look(&check, KeyPage::trusted(&bytes));
        (results[0], hashes)
    }

    #[test]
    fn of_several_entries_in_a_cell_the_nearest_is_the_candidate() {
        let near = |(checked, hashes): (Checked, Vec<HashKey>), nearest: usize| {
            assert_eq!(checked, Checked::Near { hash: hashes[nearest], segment: 1 });
        };
        let parts = |hundredths: &'static [u128]| {
            looked(move |width| hundredths.iter().map(|part| width / 100 * part).collect())
        };
        // Those in another half or quarter of the cell have fewer bits in common with it.
        near(parts(&[0, 20, 60, 68, 90]), 3);
        near(parts(&[68, 90]), 0);
        near(parts(&[20, 60, 68]), 2);
        near(looked(|width| vec![width]), 0);
        assert_eq!(looked(|width| vec![width + 1]).0, Checked::Unclear);
    }

    #[test]
    fn neighbouring_pages_are_read_together_as_far_as_a_read_goes() {
        let geometry = Geometry::new(4 << 20, 64 << 10, 2, 512).unwrap();
        let segment = Arc::new(Segment::new(descriptor(1, 9), 1, geometry, LocalIndex::empty()));
        let reads_of = |pages: &[Range<u32>]| {
            let check = |(key, pages): (usize, &Range<u32>)| {
                let (pages, cell, segment) = (pages.clone(), HashKey(0)..=HashKey(0), segment.clone());
                Check { version: 1, pages, cell, segment, key }
            };
            let checks: Vec<Check> = pages.iter().enumerate().map(check).collect();
            let reads = Coalesced { checks: &checks };
            reads.map(|(pages, checks)| (pages, checks.iter().map(|check| check.key).collect())).collect::<Vec<_>>()
        };
        let far_apart = [(0..5, vec![0, 1, 2]), (8..9, vec![3])];
        assert_eq!(reads_of(&[0..1, 0..2, 4..5, 8..9]), far_apart);
        assert_eq!(reads_of(&[3..4, 5..6, 7..9, 10..12, 13..15, 16..19]), [(3..19, vec![0, 1, 2, 3, 4, 5])]);
        assert_eq!(
            reads_of(&[3..4, 5..6, 7..9, 10..12, 13..15, 16..20]),
            [(3..15, vec![0, 1, 2, 3, 4]), (16..20, vec![5])]
        );
        assert_eq!(reads_of(&[2..2, 4..5]), [(4..5, vec![1])]);
    }
}
