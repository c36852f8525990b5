//! Key checks: whether the keys of a flush are on flash already, and where (XDP's fee-op, in bulk).
//!
//! Key tables are read, never data. The batch and every key table are sorted by the same hash, so the checks of a batch
//! against one segment are a merge over slices of its table, and neighbouring pages are read together. A key for which
//! the index has no candidate is new and costs nothing.

use crate::catalog::Catalog;
use crate::error::Error;
use crate::io::Io;
use crate::key_reader::{KeyReader, PAGES_PER_READ};
use crate::segment::view::Segment;
use crate::shared::Shared;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_kernels::hash::HashKey;

/// What a key check found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checked {
    /// The key is not on flash, and no entry of the index is near it.
    New,
    /// The key is not on flash; this is the full hash key of the entry that the index takes it for.
    Near(HashKey),
    /// The key is on flash.
    Older { segment: u32, entry: u32, size_bytes: u32 },
}

struct Check {
    segment: Arc<Segment>,
    pages: Range<u32>,
    /// The key's number in the batch.
    key: usize,
}

/// Checks a sorted batch of one partition. The caller holds the installer, so nothing moves meanwhile.
pub async fn check_keys(
    shared: &Arc<Shared>,
    io: &Io,
    catalog: &Catalog,
    batch: &[(HashKey, u32)],
    results: &mut Vec<Checked>,
) -> Result<(), Error> {
    results.clear();
    results.resize(batch.len(), Checked::New);
    let mut checks = Vec::new();
    for (key, (hash, _)) in batch.iter().enumerate() {
        let Some(segment) = shared.candidate(*hash) else { continue };
        let cell = shared.index.cell(*hash);
        let pages = segment.key_pages_between(*cell.start(), *cell.end());
        checks.push(Check { segment, pages, key });
    }
    checks.sort_by_key(|check| (check.segment.descriptor.number, check.pages.start, check.pages.end));
    let mut reader = KeyReader::new(io, shared.drive.local());
    let mut rest = &checks[..];
    while !rest.is_empty() || !reader.is_idle() {
        while reader.has_room() && !rest.is_empty() {
            let (group, pages) = coalesce(rest);
            rest = &rest[group.len()..];
            reader.start(group[0].segment.clone(), pages, group)?;
        }
        let Some(read) = reader.next().await? else { break };
        let mut finder = Finder { shared, catalog, batch, results };
        for check in read.context {
            finder.begin(check);
        }
        for page in read.pages() {
            let page = page?;
            for check in read.context {
                finder.look(check, page)?;
            }
        }
        finder.end(read.context)?;
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
    catalog: &'a Catalog,
    batch: &'a [(HashKey, u32)],
    results: &'a mut Vec<Checked>,
}

impl Finder<'_> {
    fn begin(&mut self, check: &Check) {
        self.results[check.key] = Checked::New;
    }

    /// Looks for a check's key, and for the entry that the index takes it for, in one page.
    fn look(&mut self, check: &Check, page: tapetum_kernels::key_table::KeyPage<'_>) -> Result<(), Error> {
        if matches!(self.results[check.key], Checked::Older { .. }) {
            return Ok(());
        }
        let hash = self.batch[check.key].0;
        let cell = self.shared.index.cell(hash);
        let number = check.segment.descriptor.number;
        let state = self.catalog.segments.get(&number);
        let state =
            state.ok_or_else(|| Error::Corrupt(format!("the index names segment {number}, which is not there")))?;
        for place in page.lower_bound(*cell.start())..page.count() {
            let entry = page.entry(place);
            if entry.hash > *cell.end() {
                break;
            }
            let entry_number = page.first_entry + place as u32;
            if !state.valid.get(entry_number) {
                continue;
            }
            if entry.hash == hash {
                self.results[check.key] =
                    Checked::Older { segment: number, entry: entry_number, size_bytes: entry.size_bytes };
                return Ok(());
            }
            // The candidate shares the longest prefix with the key as the index sees it, up to ties, which are as good.
            let shared_bits = |other: HashKey| self.shared.index.shared_bits(other, hash);
            match self.results[check.key] {
                Checked::Near(near) if shared_bits(near) >= shared_bits(entry.hash) => {}
                _ => self.results[check.key] = Checked::Near(entry.hash),
            }
        }
        Ok(())
    }

    /// Every candidate must have been found: the index names only what is valid.
    fn end(&self, checks: &[Check]) -> Result<(), Error> {
        match checks.iter().find(|check| self.results[check.key] == Checked::New) {
            None => Ok(()),
            Some(check) => Err(Error::Corrupt(format!(
                "the index names segment {} for {:?}, whose key table has no such entry",
                check.segment.descriptor.number, self.batch[check.key].0
            ))),
        }
    }
}
