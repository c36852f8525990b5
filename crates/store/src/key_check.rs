//! Key checks: whether the keys of a flush are on flash already, and where (XDP's fee-op, in bulk).
//!
//! Key tables are read, never data. The batch and every key table are sorted by the same hash, so the checks of a batch
//! against one segment are a merge over slices of its table, and neighbouring pages are read together. A key for which
//! the index has no candidate is new and costs nothing.

use crate::catalog::Catalog;
use crate::error::Error;
use crate::io::Io;
use crate::key_reader::{KeyReader, PAGES_PER_READ};
use crate::segment::Descriptor;
use crate::segment::view::Segment;
use crate::shared::Shared;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_kernels::hash::HashKey;

/// What a key check found.
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

/// The segments that checks relied on, by number and version: whether an install has replaced one since.
#[derive(Default)]
pub struct Relied {
    versions: BTreeMap<u32, u64>,
    replaced: BTreeSet<u32>,
}

impl Relied {
    fn on(&mut self, segment: &Segment) {
        let Descriptor { number, version, .. } = segment.descriptor;
        if *self.versions.entry(number).or_insert(version) != version {
            self.replaced.insert(number);
        }
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

struct Check {
    segment: Arc<Segment>,
    pages: Range<u32>,
    /// The key's number in the batch.
    key: usize,
}

/// Checks a sorted batch of one partition. Installs may come between: `relied` tells afterwards what must be checked again.
pub async fn check_keys(
    shared: &Arc<Shared>,
    io: &Io,
    relied: &mut Relied,
    batch: &[(HashKey, u32)],
    results: &mut Vec<Checked>,
) -> Result<(), Error> {
    results.clear();
    results.resize(batch.len(), Checked::New);
    let mut checks = Vec::new();
    for (key, (hash, _)) in batch.iter().enumerate() {
        let Some(segment) = shared.candidate(*hash) else { continue };
        relied.on(&segment);
        let cell = shared.index.cell(*hash);
        let pages = segment.key_pages_between(*cell.start(), *cell.end());
        results[key] = Checked::Unclear;
        if pages.is_empty() {
            continue;
        }
        checks.push(Check { segment, pages, key });
    }
    checks.sort_by_key(|check| (check.segment.descriptor.number, check.pages.start, check.pages.end));
    let mut reader = KeyReader::new(io, shared.drive.local());
    let mut rest = &checks[..];
    while !rest.is_empty() || !reader.is_idle() {
        while reader.has_room() && !rest.is_empty() {
            let (group, pages) = coalesce(rest);
            rest = &rest[group.len()..];
            reader.start(group[0].segment.clone(), pages, group).await?;
        }
        let Some(read) = reader.next().await? else { break };
        let mut finder = Finder { shared, batch, results };
        for page in read.pages() {
            let page = page?;
            for check in read.context {
                finder.look(check, page);
            }
        }
        reader.recycle(read);
    }
    shared.counters.key_check_reads.fetch_add(reader.reads(), Ordering::Relaxed);
    Ok(())
}

/// The checks at the front that one read serves.
fn coalesce(checks: &[Check]) -> (&[Check], Range<u32>) {
    const GAP_PAGES: u32 = 2;
    let mut pages = checks[0].pages.clone();
    let mut count = 1;
    for check in &checks[1..] {
        let end = pages.end.max(check.pages.end);
        let near = check.pages.start <= pages.end + GAP_PAGES && end - pages.start <= PAGES_PER_READ;
        if check.segment.descriptor.number != checks[0].segment.descriptor.number || !near {
            break;
        }
        pages.end = end;
        count += 1;
    }
    (&checks[..count], pages)
}

struct Finder<'a> {
    shared: &'a Arc<Shared>,
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
        let cell = self.shared.index.cell(hash);
        let segment = check.segment.descriptor.number;
        for place in page.lower_bound(*cell.start())..page.count() {
            let entry = page.entry(place);
            if entry.hash > *cell.end() {
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
            let shared_bits = |other: HashKey| self.shared.index.shared_bits(other, hash);
            match self.results[check.key] {
                Checked::Near { hash: near, .. } if shared_bits(near) >= shared_bits(entry.hash) => {}
                _ => self.results[check.key] = Checked::Near { hash: entry.hash, segment },
            }
        }
    }
}
