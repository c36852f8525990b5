//! The bytes of a faulty flash: durable ones, and above them the versions of sectors that no flush has covered.
//!
//! Durable bytes lie in chunks, which copies of an image share until one of them writes (copy on write).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::SplitMix64;

/// The unit that survives a crash or does not.
pub(super) const SECTOR_BYTES: usize = 512;
const CHUNK_BYTES: usize = 16 * 1024;
const CHUNK_SECTORS: u64 = (CHUNK_BYTES / SECTOR_BYTES) as u64;

pub(super) type Sector = [u8; SECTOR_BYTES];
type Chunk = [u8; CHUNK_BYTES];

/// A version of a sector that is not durable.
#[derive(Clone)]
struct Version {
    /// Number of the write that brought it, in the order of completion.
    completed: u64,
    /// A failed flush dropped it: reads see it until a crash, and no later flush makes it durable.
    dropped: bool,
    bytes: Sector,
}

/// Bytes of the flash. A chunk of durable bytes is allocated by its first write, and is zero before.
#[derive(Clone, Default)]
pub(super) struct Image {
    durable: Vec<Option<Arc<Chunk>>>,
    /// Versions by sector, in the order of completion. No list is empty.
    unsynced: BTreeMap<u64, Vec<Version>>,
    /// Sectors whose bytes are not the last ones written there.
    damaged: BTreeSet<u64>,
    /// Sectors that cannot be read.
    unreadable: BTreeSet<u64>,
    /// A write that covers this many sectors, aligned to that, keeps all or none of them in a crash. With 0 and 1, each sector is decided
    /// by itself.
    pub(super) atomic_sectors: u64,
}

/// Decides which sectors of a torn write survive; sectors of one atomic unit share a decision.
struct Tears {
    atomic_sectors: u64,
    last: Option<(u64, bool)>,
}

impl Tears {
    fn keeps(&mut self, sector: u64, toss: impl FnOnce() -> bool) -> bool {
        let unit = sector / self.atomic_sectors.max(1);
        match self.last {
            Some((of, keeps)) if of == unit => keeps,
            _ => self.last.insert((unit, toss())).1,
        }
    }
}

/// The outcome of one write in a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteFate {
    Lost,
    Kept,
    Torn,
}

impl Image {
    /// The bytes that a read returns: the newest version.
    pub(super) fn read(&self, sector: u64) -> Sector {
        let mut bytes = [0; SECTOR_BYTES];
        self.read_run(sector, &mut bytes);
        bytes
    }

    /// Reads whole sectors from `first` on.
    pub(super) fn read_run(&self, first: u64, into: &mut [u8]) {
        let end = first + (into.len() / SECTOR_BYTES) as u64;
        let mut sector = first;
        while sector < end {
            let (chunk, at) = place(sector);
            let here = (CHUNK_SECTORS - sector % CHUNK_SECTORS).min(end - sector);
            let from = (sector - first) as usize * SECTOR_BYTES;
            let into = &mut into[from..from + here as usize * SECTOR_BYTES];
            match self.durable.get(chunk).and_then(Option::as_ref) {
                Some(chunk) => into.copy_from_slice(&chunk[at..at + into.len()]),
                None => into.fill(0),
            }
            sector += here;
        }
        for (sector, versions) in self.unsynced.range(first..end) {
            if let Some(version) = versions.last() {
                let at = (sector - first) as usize * SECTOR_BYTES;
                into[at..at + SECTOR_BYTES].copy_from_slice(&version.bytes);
            }
        }
    }

    /// Writes into the volatile cache.
    pub(super) fn write(&mut self, sector: u64, bytes: &Sector, completed: u64) {
        self.mend(sector);
        self.unsynced.entry(sector).or_default().push(Version { completed, dropped: false, bytes: *bytes });
    }

    /// Writes durably, past the cache, and replaces every version of the sector.
    pub(super) fn write_durable(&mut self, sector: u64, bytes: &Sector) {
        self.mend(sector);
        self.unsynced.remove(&sector);
        self.settle(sector, bytes);
    }

    fn settle(&mut self, sector: u64, bytes: &Sector) {
        let (chunk, at) = place(sector);
        if self.durable.len() <= chunk {
            self.durable.resize(chunk + 1, None);
        }
        let chunk = self.durable[chunk].get_or_insert_with(|| Arc::new([0; CHUNK_BYTES]));
        Arc::make_mut(chunk)[at..at + SECTOR_BYTES].copy_from_slice(bytes);
    }

    /// Clears the damage of a sector that is written: it holds the new bytes, and can be read again.
    fn mend(&mut self, sector: u64) {
        if !self.damaged.is_empty() || !self.unreadable.is_empty() {
            self.damaged.remove(&sector);
            self.unreadable.remove(&sector);
        }
    }

    /// Marks a sector as holding other bytes than were written there.
    pub(super) fn damage(&mut self, sector: u64) {
        self.damaged.insert(sector);
    }

    pub(super) fn is_damaged(&self, sectors: std::ops::Range<u64>) -> bool {
        self.damaged.range(sectors).next().is_some()
    }

    pub(super) fn make_unreadable(&mut self, sector: u64) {
        self.unreadable.insert(sector);
    }

    pub(super) fn heal(&mut self) {
        self.unreadable.clear();
    }

    pub(super) fn is_unreadable(&self, sectors: std::ops::Range<u64>) -> bool {
        self.unreadable.range(sectors).next().is_some()
    }

    /// Makes durable the writes up to number `through`, except those that a failed flush dropped.
    pub(super) fn flush(&mut self, through: u64) {
        for (sector, mut versions) in std::mem::take(&mut self.unsynced) {
            let covered = |version: &Version| version.completed <= through && !version.dropped;
            if let Some(newest) = versions.iter().rposition(covered) {
                self.settle(sector, &versions[newest].bytes);
                // A dropped version below it is overwritten too.
                versions.drain(..=newest);
            }
            if !versions.is_empty() {
                self.unsynced.insert(sector, versions);
            }
        }
    }

    /// A failed flush: the cache drops some of the versions, and no later flush makes those durable.
    pub(super) fn fail_flush(&mut self, through: u64, random: &mut SplitMix64) {
        for version in self.unsynced.values_mut().flatten() {
            if version.completed <= through && random.one_in(2) {
                version.dropped = true;
            }
        }
    }

    /// Sectors that no flush has covered, oldest write first, each with its bytes.
    pub(super) fn unsynced(&self) -> Vec<(u64, Sector)> {
        let versions = self.unsynced.iter().flat_map(|(sector, versions)| versions.iter().map(move |v| (*sector, v)));
        let mut sectors: Vec<_> = versions.filter(|(_, version)| !version.dropped).collect();
        sectors.sort_by_key(|(_, version)| version.completed);
        sectors.into_iter().map(|(sector, version)| (sector, version.bytes)).collect()
    }

    /// Whether the durable bytes are the same, compared by shared chunks. May return `false` for equal bytes.
    pub(super) fn has_same_bytes(&self, other: &Image) -> bool {
        let same = |pair: (&Option<Arc<Chunk>>, &Option<Arc<Chunk>>)| match pair {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        self.durable.len() == other.durable.len() && self.durable.iter().zip(&other.durable).all(same)
    }

    /// The durable bytes alone.
    pub(super) fn without_cache(&self) -> Image {
        Image { durable: self.durable.clone(), atomic_sectors: self.atomic_sectors, ..Image::default() }
    }

    /// Settles the cache: each write is lost, kept or torn. In a torn write each sector is decided by chance.
    pub(super) fn crash(&mut self, random: &mut SplitMix64) -> Cache {
        let mut cache = Cache::default();
        let atomic_sectors = self.atomic_sectors;
        let mut writes: BTreeMap<u64, (WriteFate, bool, bool, Tears)> = BTreeMap::new();
        for (sector, versions) in std::mem::take(&mut self.unsynced) {
            for version in versions {
                let (fate, kept, lost, tears) = writes
                    .entry(version.completed)
                    .or_insert_with(|| (WriteFate::draw(random), false, false, Tears { atomic_sectors, last: None }));
                cache.sectors += 1;
                if !version.dropped && tears.keeps(sector, || fate.keeps_sector(random)) {
                    self.settle(sector, &version.bytes);
                    *kept = true;
                } else {
                    cache.sectors_lost += 1;
                    *lost = true;
                }
            }
        }
        let mut any_lost = false;
        for (_, kept, lost, _) in writes.into_values() {
            cache.reordered |= kept && any_lost;
            cache.torn |= kept && lost;
            any_lost |= lost;
        }
        cache
    }

    /// Settles a write that had not completed. Returns how many of its sectors survived.
    pub(super) fn crash_write(&mut self, first: u64, bytes: &[u8], random: &mut SplitMix64) -> u64 {
        let fate = WriteFate::draw(random);
        let (mut kept, mut tears) = (0, Tears { atomic_sectors: self.atomic_sectors, last: None });
        for (sector, bytes) in (first..).zip(bytes.as_chunks::<SECTOR_BYTES>().0) {
            if tears.keeps(sector, || fate.keeps_sector(random)) {
                self.write_durable(sector, bytes);
                kept += 1;
            }
        }
        kept
    }
}

/// Damage that a crash did to the volatile cache.
#[derive(Default)]
pub(super) struct Cache {
    pub(super) sectors: u64,
    pub(super) sectors_lost: u64,
    /// Only a part of some write survived.
    pub(super) torn: bool,
    /// A write survived, at least in part, and one that completed earlier did not.
    pub(super) reordered: bool,
}

impl WriteFate {
    fn draw(random: &mut SplitMix64) -> WriteFate {
        match random.below(8) {
            0..4 => WriteFate::Lost,
            4 => WriteFate::Kept,
            _ => WriteFate::Torn,
        }
    }

    fn keeps_sector(self, random: &mut SplitMix64) -> bool {
        match self {
            WriteFate::Lost => false,
            WriteFate::Kept => true,
            WriteFate::Torn => random.one_in(2),
        }
    }
}

fn place(sector: u64) -> (usize, usize) {
    ((sector / CHUNK_SECTORS) as usize, (sector % CHUNK_SECTORS) as usize * SECTOR_BYTES)
}
