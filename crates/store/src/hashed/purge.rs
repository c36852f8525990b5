//! The purge: entries of dropped keyspaces die in bounded steps, so that their room comes back; so do those of keyspaces in which
//! everything was deleted while others live on.
//!
//! ```text
//! targets ─► a segment's key table, some pages ─► deaths by route, installed ─► the next pages … ─► every segment looked at
//!                                                                                      └ nothing can bring more ─► held no more
//! ```
//! 1. A step takes at most [`STEP_PAGES`] pages of one key table, and installs once. No flush is between its key check and its install
//!    meanwhile, or it would kill what is dead.
//! 2. In a keyspace that lives on, a purge looks only at segments in which nothing is younger than the watermark, because the key table
//!    knows no stamps. It leaves the keyspace's other records to the collector. The install that brings the deaths also has the watermark.
//! 3. A dropped keyspace is held until nothing is left of it and nothing can come: every segment was looked at, every write buffer that
//!    was written to before the drop is in a segment, and so is whatever was being flushed or collected then. No later purge
//!    names it: its id is another keyspace's soon.
//!
//! Progress is not persisted: an opening starts over, with the keyspaces that the manifest has as dropped. Threads: maintenance's.

use crate::hashed::HashedEngine;
use crate::hashed::catalog::{Catalog, Install};
use crate::hashed::flush::{DeathsBySegment, deaths_of};
use crate::hashed::install::{MovedKey, apply};
use crate::hashed::key_tables::key_reader::{KeyReader, PAGES_PER_READ};
use crate::hashed::manifest_client::InstallFrame;
use crate::hashed::segment::view::Segment;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::io::{Io, lock};
use tapetum_base::phase::{Phase, PhaseCell};
use tapetum_drive::fail_point;
use tapetum_kernels::data_page::PAGE_BYTES;
use tapetum_kernels::hash::HashKey;

/// Pages of a key table that a step looks at: some 60,000 entries.
const STEP_PAGES: u32 = 256;

/// The records that are to die, and the progress so far.
pub struct Purge {
    /// Records with a stamp up to this one, by keyspace.
    targets: BTreeMap<KeyspaceId, u64>,
    /// Those among them that were dropped.
    dropped: Vec<KeyspaceId>,
    /// Write buffers below this one may have records of dropped keyspaces.
    buffer_next: u64,
    /// Segments that were begun before this version may still get such records.
    version_next: u64,
    /// The versions of segments that were looked at.
    looked_at: BTreeSet<u64>,
    /// The segment that is being looked at, by its version, and the next page.
    at: Option<(u64, u32)>,
    /// A key table could not be read: the entries it names stay.
    is_incomplete: bool,
}

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    More,
    /// Something else must end first.
    Waits,
    Done,
}

/// Which keyspaces were purged up to which watermark.
#[derive(Default)]
pub struct PurgedKeyspaces {
    watermarks: BTreeMap<KeyspaceId, u64>,
    /// The changes of keyspaces that were looked at.
    changes: Option<u64>,
}

impl PurgedKeyspaces {
    /// Begins a purge if keyspaces have changed and there is something to purge.
    pub fn begin(&mut self, engine: &HashedEngine) -> Option<Purge> {
        let changes = engine.keyspaces.changes();
        if self.changes == Some(changes) {
            return None;
        }
        self.changes = Some(changes);
        // An id that is not held any more may be another keyspace's before this purge ends.
        let purged = lock(&engine.purged).clone();
        let dropped: Vec<_> = engine.keyspaces.dropped().into_iter().filter(|id| !purged.contains(id)).collect();
        let mut targets: BTreeMap<KeyspaceId, u64> = dropped.iter().map(|id| (*id, u64::MAX)).collect();
        let floor = engine.keyspaces.floor();
        let marks = engine.keyspaces.marks().into_iter().map(|(id, mark)| (id, mark.watermark));
        let was_purged = |id: &KeyspaceId| self.watermarks.get(id).copied().unwrap_or(0);
        targets.extend(marks.filter(|(id, watermark)| *watermark > floor.max(was_purged(id))));
        if targets.is_empty() {
            return None;
        }
        let active = engine.buffers.active();
        let buffer_next = active + u64::from(!engine.log.active_is_empty());
        let version_next = engine.segments.names.version_next();
        let (looked_at, at) = (BTreeSet::new(), None);
        Some(Purge { targets, dropped, buffer_next, version_next, looked_at, at, is_incomplete: false })
    }

    /// Remembers what was purged.
    pub fn end(&mut self, purge: &Purge) {
        if purge.is_incomplete {
            return;
        }
        self.watermarks.extend(&purge.targets);
        self.watermarks.retain(|id, _| !purge.dropped.contains(id));
    }
}

/// An entry that is to die.
struct Doomed {
    hash: HashKey,
    entry: u32,
    size_bytes: u32,
    keyspace: KeyspaceId,
    is_dropped: bool,
}

pub async fn step(
    engine: Arc<HashedEngine>,
    io: Io,
    phase: Arc<PhaseCell>,
    mut purge: Purge,
) -> (Purge, Result<Progress, Error>) {
    let done = purge.step(&engine, &io, &phase).await;
    phase.set(Phase::Idle);
    (purge, done)
}

impl Purge {
    /// Whether all records of a keyspace in a segment are known to be dead, by its watermark.
    fn reaches(&self, watermark: u64, segment: &Segment) -> bool {
        watermark == u64::MAX || segment.descriptor.stamp_max <= watermark
    }

    async fn step(&mut self, engine: &Arc<HashedEngine>, io: &Io, phase: &PhaseCell) -> Result<Progress, Error> {
        let installer = engine.take_installer().await;
        let next = self.next_segment(engine, &installer);
        drop(installer);
        let Some((segment, page)) = next else { return Ok(self.forget(engine).await) };
        let version = segment.descriptor.version;
        let pages = page..segment.key_pages().min(page + STEP_PAGES);
        let doomed = match self.doomed(engine, io, &segment, pages.clone()).await {
            Ok(doomed) => doomed,
            Err(error @ (Error::Corrupt(_) | Error::Io(_))) => {
                tracing::error!(
                    "a segment keeps what it has of dropped keyspaces until the store is opened again: {error}"
                );
                self.is_incomplete = true;
                self.looked_at.insert(version);
                self.at = None;
                return Ok(Progress::More);
            }
            Err(error) => return Err(error),
        };
        self.kill(engine, io, phase, &segment, doomed).await?;
        self.at = Some((version, pages.end));
        if pages.end >= segment.key_pages() {
            self.looked_at.insert(version);
            self.at = None;
        }
        Ok(Progress::More)
    }

    /// The segment to look at, and from which page on.
    fn next_segment(&mut self, engine: &HashedEngine, installer: &Installer) -> Option<(Arc<Segment>, u32)> {
        if fail_point!(ForgetUnpurged) {
            return None;
        }
        for state in installer.of::<Catalog>().segments.values().filter(|state| state.valid_entries > 0) {
            let Some(segment) = engine.segments.get(state.descriptor.number) else { continue };
            let version = segment.descriptor.version;
            if self.looked_at.contains(&version) {
                continue;
            }
            let may_have = |keyspace: &KeyspaceId| segment.local_index.shares.may_have(*keyspace);
            if !self.targets.iter().any(|(id, watermark)| may_have(id) && self.reaches(*watermark, &segment)) {
                self.looked_at.insert(version);
                continue;
            }
            let page = self.at.filter(|(of, _)| *of == version).map_or(0, |(_, page)| page);
            return Some((segment, page));
        }
        None
    }

    /// The entries that are to die among those of some pages, dead ones too.
    async fn doomed(
        &self,
        engine: &HashedEngine,
        io: &Io,
        segment: &Arc<Segment>,
        pages: std::ops::Range<u32>,
    ) -> Result<Vec<Doomed>, Error> {
        let mut doomed = Vec::new();
        let mut take = |page: tapetum_kernels::key_table::KeyPage<'_>| {
            for (number, entry) in (page.first_entry..).zip(page.entries()) {
                let keyspace = KeyspaceId(entry.keyspace());
                let target = self.targets.get(&keyspace);
                if let Some(&watermark) = target.filter(|watermark| self.reaches(**watermark, segment)) {
                    let (hash, size_bytes, is_dropped) = (entry.hash, entry.size_bytes, watermark == u64::MAX);
                    doomed.push(Doomed { hash, entry: number, size_bytes, keyspace, is_dropped });
                }
            }
        };
        if let Some(table) = engine.segments.key_tables.get(segment.descriptor.version) {
            pages.for_each(|page| take(table.page(page)));
            return Ok(doomed);
        }
        let mut reader = KeyReader::new(io, engine.drive.local(), engine.hasher.clone());
        let mut starts = pages.clone().step_by(PAGES_PER_READ as usize).peekable();
        while starts.peek().is_some() || !reader.is_idle() {
            while reader.has_room()
                && let Some(start) = starts.next()
            {
                reader.start(segment.clone(), start..pages.end.min(start + PAGES_PER_READ), ()).await?;
            }
            let Some(read) = reader.next().await? else { break };
            debug_assert!(read.bytes().len().is_multiple_of(PAGE_BYTES));
            read.pages().for_each(&mut take);
            reader.recycle(read);
        }
        Ok(doomed)
    }

    /// Installs the deaths of those entries that are alive.
    async fn kill(
        &self,
        engine: &Arc<HashedEngine>,
        io: &Io,
        phase: &PhaseCell,
        segment: &Segment,
        mut doomed: Vec<Doomed>,
    ) -> Result<(), Error> {
        let mut installer = engine.take_installer().await;
        let number = segment.descriptor.number;
        match installer.of::<Catalog>().segments.get(&number) {
            Some(state) if state.descriptor.version == segment.descriptor.version => {
                doomed.retain(|doomed| state.valid.get(doomed.entry));
            }
            // The segment was collected meanwhile: its output is looked at.
            _ => doomed.clear(),
        }
        if doomed.is_empty() {
            Ok(())
        } else {
            phase.set(Phase::Install);
            install(engine, io, phase, &mut installer, number, &doomed).await
        }
    }

    /// Marks the dropped keyspaces as purged once nothing is left of them and nothing can come.
    async fn forget(&self, engine: &Arc<HashedEngine>) -> Progress {
        if self.dropped.is_empty() || self.is_incomplete {
            return Progress::Done;
        }
        let installer = engine.take_installer().await;
        let is_over = self.may_forget(engine, &installer) || fail_point!(ForgetUnpurged);
        drop(installer);
        if is_over {
            lock(&engine.purged).extend(&self.dropped);
            return Progress::Done;
        }
        // Records written before the drop must get into a segment.
        if engine.buffers.sealed().is_none() && engine.buffers.active() < self.buffer_next {
            engine.rotate();
        }
        Progress::Waits
    }

    fn may_forget(&self, engine: &HashedEngine, installer: &Installer) -> bool {
        let has_unseen = || {
            let states = installer.of::<Catalog>().segments.values().filter(|state| state.valid_entries > 0);
            states.into_iter().any(|state| !self.looked_at.contains(&state.descriptor.version))
        };
        installer.marks.trim.buffer_next >= self.buffer_next
            && !engine.segments.names.is_writing_older(self.version_next)
            && !has_unseen()
    }
}

async fn install(
    engine: &Arc<HashedEngine>,
    io: &Io,
    phase: &PhaseCell,
    installer: &mut Installer,
    segment: u32,
    doomed: &[Doomed],
) -> Result<(), Error> {
    let mut deaths = DeathsBySegment::new();
    let dying = deaths.entry(segment).or_default();
    doomed.iter().for_each(|doomed| dying.add(doomed.entry, doomed.size_bytes));
    let deletions = &installer.marks.deletions;
    let frame = InstallFrame {
        install: Install { deaths: deaths_of(deaths), ..Install::default() },
        marks: engine.deletion_edits(deletions, deletions),
        tally: doomed.iter().map(|doomed| (doomed.keyspace, -1)).collect(),
    };
    for doomed in doomed.iter().filter(|doomed| doomed.is_dropped) {
        let _shard = engine.buffers.shard(doomed.hash);
        engine.forget_in_tier(doomed.hash);
    }
    let bits = engine.geometry.partition_bits;
    apply(engine, io, phase, installer, &frame, Vec::new(), |partition| {
        let start = doomed.partition_point(|doomed| doomed.hash.partition(bits) < partition);
        let own = doomed[start..].iter().take_while(|doomed| doomed.hash.partition(bits) == partition);
        own.map(|doomed| MovedKey::out(doomed.hash)).collect()
    })
    .await
}

#[cfg(test)]
mod tests;
