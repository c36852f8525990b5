//! What a faulty flash holds: durable bytes, and above them the versions of sectors that no flush has covered.

use std::collections::BTreeMap;

use crate::env::SplitMix64;

/// The grain at which a write survives a crash or does not.
pub(super) const SECTOR_BYTES: usize = 512;
const CHUNK_BYTES: usize = 64 * 1024;

pub(super) type Sector = [u8; SECTOR_BYTES];

/// Bytes of a sector that are not durable.
struct Version {
    /// The write that brought it; orders versions by when their writes completed.
    completed: u64,
    /// A failed flush dropped it: it is read until a crash, and no later flush saves it.
    dropped: bool,
    bytes: Sector,
}

/// Durable bytes appear in chunks when first written, and are zero before.
#[derive(Default)]
pub(super) struct Image {
    durable: BTreeMap<u64, Box<[u8]>>,
    /// By sector, in the order of completion, never an empty list.
    unsynced: BTreeMap<u64, Vec<Version>>,
}

/// What became of one write in a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lost,
    Kept,
    Torn,
}

impl Image {
    /// What a read sees: the newest version.
    pub(super) fn read(&self, sector: u64) -> Sector {
        match self.unsynced.get(&sector).and_then(|versions| versions.last()) {
            Some(version) => version.bytes,
            None => self.read_durable(sector),
        }
    }

    pub(super) fn read_durable(&self, sector: u64) -> Sector {
        let (chunk, at) = place(sector);
        let mut bytes = [0; SECTOR_BYTES];
        if let Some(chunk) = self.durable.get(&chunk) {
            bytes.copy_from_slice(&chunk[at..at + SECTOR_BYTES]);
        }
        bytes
    }

    /// Into the volatile cache.
    pub(super) fn write(&mut self, sector: u64, bytes: &Sector, completed: u64) {
        self.unsynced.entry(sector).or_default().push(Version { completed, dropped: false, bytes: *bytes });
    }

    /// Past the cache, over every version of the sector.
    pub(super) fn write_durable(&mut self, sector: u64, bytes: &Sector) {
        self.unsynced.remove(&sector);
        let (chunk, at) = place(sector);
        let chunk = self.durable.entry(chunk).or_insert_with(|| vec![0; CHUNK_BYTES].into_boxed_slice());
        chunk[at..at + SECTOR_BYTES].copy_from_slice(bytes);
    }

    /// Makes durable what writes up to `through` brought, except what a failed flush dropped.
    pub(super) fn flush(&mut self, through: u64) {
        for (sector, mut versions) in std::mem::take(&mut self.unsynced) {
            let covered = |version: &Version| version.completed <= through && !version.dropped;
            if let Some(newest) = versions.iter().rposition(covered) {
                let bytes = versions[newest].bytes;
                versions.retain(|version| !covered(version));
                self.write_durable(sector, &bytes);
            }
            if !versions.is_empty() {
                self.unsynced.insert(sector, versions);
            }
        }
    }

    /// A flush that failed leaves each version in doubt: some are dropped from the cache's list of what to write.
    pub(super) fn fail_flush(&mut self, through: u64, random: &mut SplitMix64) {
        for version in self.unsynced.values_mut().flatten() {
            if version.completed <= through && random.one_in(2) {
                version.dropped = true;
            }
        }
    }

    /// Settles the cache: each write is lost, kept or torn, and of a torn one each sector is tossed for. Says how many
    /// sector versions there were and how many did not survive.
    pub(super) fn crash(&mut self, random: &mut SplitMix64) -> (u64, u64) {
        let (mut unsynced, mut lost) = (0, 0);
        let mut fates = BTreeMap::new();
        for (sector, versions) in std::mem::take(&mut self.unsynced) {
            for version in versions {
                let fate = *fates.entry(version.completed).or_insert_with(|| Fate::draw(random));
                unsynced += 1;
                if !version.dropped && fate.keeps_sector(random) {
                    self.write_durable(sector, &version.bytes);
                } else {
                    lost += 1;
                }
            }
        }
        (unsynced, lost)
    }

    /// Settles a write that had not completed: how many of its sectors survived.
    pub(super) fn crash_write(&mut self, first: u64, bytes: &[u8], random: &mut SplitMix64) -> u64 {
        let fate = Fate::draw(random);
        let mut kept = 0;
        for (sector, bytes) in (first..).zip(bytes.as_chunks::<SECTOR_BYTES>().0) {
            if fate.keeps_sector(random) {
                self.write_durable(sector, bytes);
                kept += 1;
            }
        }
        kept
    }
}

impl Fate {
    fn draw(random: &mut SplitMix64) -> Fate {
        match random.below(4) {
            0 => Fate::Lost,
            1 => Fate::Kept,
            _ => Fate::Torn,
        }
    }

    fn keeps_sector(self, random: &mut SplitMix64) -> bool {
        match self {
            Fate::Lost => false,
            Fate::Kept => true,
            Fate::Torn => random.one_in(2),
        }
    }
}

fn place(sector: u64) -> (u64, usize) {
    let at = sector * SECTOR_BYTES as u64;
    (at / CHUNK_BYTES as u64, (at % CHUNK_BYTES as u64) as usize)
}
