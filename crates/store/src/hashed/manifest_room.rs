//! Room in the manifest. Its areas keep the size they were made with. A snapshot of the store must always fit, and an install behind it, or the store
//! could not be opened again.
//!
//! A snapshot grows by one bit per entry; dead entries count until they are collected. In a store that has not grown, flash is full before the
//! manifest is. In one that has grown to four times its size, the manifest can be full first, if records are shorter than some 60 bytes. So room in
//! the manifest is counted, like room on flash, in the index and among segment numbers.

use crate::hashed::catalog::{Catalog, encoded_bytes_max};
use crate::hashed::large::value_bytes_max;
use crate::hashed::room::LARGE_NAMED_SEGMENTS;
use crate::hashed::segment::{EXTENT_NUMBER_BYTES, LARGE_HEAD_BYTES, LARGE_RUN_BYTES_MAX};
use std::sync::atomic::{AtomicU64, Ordering};
use tapetum_base::installer::Clients;
use tapetum_base::maintenance::room::segment_extents;
use tapetum_base::manifest::base_marks::{TRIM_BYTES, deletions_bytes};
use tapetum_base::manifest::client::{ManifestClient, ManifestClients};
use tapetum_base::manifest::items::ITEM_HEAD_BYTES;
use tapetum_base::manifest::{HEADER_BYTES, frames_bytes_max, snapshot_bytes_max};
use tapetum_base::media::geometry::{CATALOGUE_BYTES, Geometry};

/// Bytes of a frame beside the lists of its install: an item of the catalog with its kind, and an item that trims the log.
const FRAME_BYTES: u64 = (HEADER_BYTES + 2 * ITEM_HEAD_BYTES + 1) as u64 + TRIM_BYTES;
/// Dead entries up to one part in this many of the area are worth no collection.
const HIDDEN_SHARE: u64 = 64;
/// Most bytes of an entry in a list of deaths, and of the head of each segment's list.
const DEATH_BYTES_MAX: u64 = 5;
const DEATHS_BYTES: u64 = 16;

/// The part of the segments that a collection would keep: entries (one bit each), extents, and descriptions of large values.
#[derive(Clone, Copy, Default)]
pub struct KeptRoom {
    pub entries: u64,
    pub extents: u64,
    pub large_bytes: u64,
}

impl KeptRoom {
    pub fn and(self, other: KeptRoom) -> KeptRoom {
        KeptRoom {
            entries: self.entries + other.entries,
            extents: self.extents + other.extents,
            large_bytes: self.large_bytes + other.large_bytes,
        }
    }
}

/// How many write buffers can be flushed and named, with the longest install behind them. Installs publish it.
#[derive(Default)]
pub struct ManifestRoom {
    /// If nothing is collected.
    flushes_now: AtomicU64,
    /// If everything is collected.
    flushes_at_best: AtomicU64,
    /// If everything is collected, less the room that no collection gains.
    flushes_for_new_keys: AtomicU64,
}

impl ManifestRoom {
    pub fn refresh(&self, geometry: &Geometry, clients: &Clients, kept: KeptRoom) {
        let (catalog, marks) = (clients.of::<Catalog>(), &clients.marks);
        // Two segments that are at most half full can be merged.
        let full = kept.extents * geometry.extent_bytes / geometry.segment_bytes;
        let segments = 2 * (full + 1) * encoded_bytes_max(0, 0);
        let of_others = clients.snapshot_bytes_max() - catalog.snapshot_bytes_max();
        let least = of_others + segments + kept.extents * EXTENT_NUMBER_BYTES + kept.entries / 8 + kept.large_bytes;
        // Hidden room: one extent of data and one of key table in each segment, and dead entries.
        let hidden = 2 * catalog.segments.len() as u64 * EXTENT_NUMBER_BYTES + geometry.manifest_bytes / HIDDEN_SHARE;
        let one_more_frame = HEADER_BYTES as u64 + u64::from(geometry.sector_bytes);
        // An install may repeat the deletions of each keyspace.
        let install = install_bytes_max(geometry) + deletions_bytes(marks.deletions.len());
        let left = geometry.manifest_bytes.saturating_sub(CATALOGUE_BYTES + install + one_more_frame);
        let flushes = |taken: u64| left.saturating_sub(taken) / flushed_bytes_max(geometry);
        let at_best = frames_bytes_max(geometry, least);
        self.flushes_now.store(flushes(snapshot_bytes_max(geometry, clients)), Ordering::Relaxed);
        self.flushes_at_best.store(flushes(at_best), Ordering::Relaxed);
        self.flushes_for_new_keys.store(flushes(at_best + hidden), Ordering::Relaxed);
    }

    pub fn flushes_now(&self) -> u64 {
        self.flushes_now.load(Ordering::Relaxed)
    }

    pub fn flushes_at_best(&self) -> u64 {
        self.flushes_at_best.load(Ordering::Relaxed)
    }

    pub fn flushes_for_new_keys(&self) -> u64 {
        self.flushes_for_new_keys.load(Ordering::Relaxed)
    }
}

/// Whether dead entries are a large enough share to be worth a collection for the manifest's sake.
pub fn is_worth_collecting(dead_entries: u64, entries: u64) -> bool {
    dead_entries > entries / HIDDEN_SHARE
}

/// Most bytes that the manifest takes for the large values of one segment, flushed or collected.
pub fn large_bytes_max(geometry: &Geometry) -> u64 {
    // A buffer is sealed when it names this many bytes of large values; each may lie in extents that are not neighbours.
    let large_bytes = LARGE_NAMED_SEGMENTS * geometry.segment_bytes + value_bytes_max(geometry, u64::MAX) as u64;
    // No large value, as the client gave it, is smaller than an eighth of a segment.
    large_bytes / geometry.extent_bytes * LARGE_RUN_BYTES_MAX
        + large_bytes / (geometry.segment_bytes / 8) * LARGE_HEAD_BYTES
}

/// Most bytes that a snapshot takes for a write buffer that became a segment.
fn flushed_bytes_max(geometry: &Geometry) -> u64 {
    let extents = u64::from(segment_extents(geometry));
    let bytes = encoded_bytes_max(extents, geometry.buffer_entries_max() as u64) + large_bytes_max(geometry);
    // A quarter more for the frames around it, with the largest sectors.
    bytes + bytes / 4
}

/// Most bytes of an install without its deletions: it adds a segment, and each of its entries kills one, in as many segments as there may be.
fn install_bytes_max(geometry: &Geometry) -> u64 {
    let entries = geometry.buffer_entries_max() as u64;
    let segments = u64::from(geometry.segments(geometry.capacity_max_bytes()));
    let deaths = entries * DEATH_BYTES_MAX + entries.min(segments) * DEATHS_BYTES;
    (deaths + flushed_bytes_max(geometry) + FRAME_BYTES).next_multiple_of(u64::from(geometry.sector_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::empty_clients;
    use crate::hashed::catalog::tests::descriptor;
    use crate::hashed::catalog::{Deaths, Install};
    use crate::hashed::manifest_client::InstallFrame;
    use crate::hashed::segment::{Descriptor, LargeEntry};
    use std::sync::Arc;
    use tapetum_base::installer::Installer;
    use tapetum_base::keyspace::KeyspaceId;
    use tapetum_base::manifest::Manifest;
    use tapetum_base::manifest::base_marks::{LogTrim, MarksEdit};
    use tapetum_base::media::io::{Io, run};
    use tapetum_base::media::wire::Writer;
    use tapetum_drive::{Drive, Env, LocalMemory, MemoryFlash};
    use tapetum_kernels::expiry::Expiry;
    use tapetum_kernels::reference::Run;

    /// A manifest on a drive of its own.
    struct Bench {
        io: Io,
        installer: Installer,
    }

    impl Bench {
        fn of(geometry: &Geometry) -> Bench {
            let flash = MemoryFlash::new(geometry.manifest_offset(2));
            let local = LocalMemory::new(4 << 20).unwrap();
            let drive = Drive::new(Arc::new(flash), local, Vec::new(), Env::simulated(1).0);
            let io = Io::new(drive.queue_pair(16).unwrap());
            let empty = empty_clients;
            let make = async {
                Manifest::create(&io, geometry, 7, &empty()).await?;
                Manifest::recover(&io, drive.local(), geometry, 7, empty).await
            };
            let installer = Installer::from(run(&io, make, || false).unwrap().unwrap());
            Bench { io, installer }
        }

        fn install(&mut self, frame: &InstallFrame) {
            run(&self.io, self.installer.append(&frame.items()), || false).unwrap().unwrap();
            frame.apply(&mut self.installer).unwrap();
        }
    }

    /// The frame that trims the log to a buffer.
    fn trim(buffer_next: u64) -> InstallFrame {
        let trim = LogTrim { buffer_next, ..LogTrim::default() };
        InstallFrame { marks: vec![MarksEdit::Trim(trim)], ..InstallFrame::default() }
    }

    #[test]
    fn the_longest_install_is_as_long_as_is_counted_with() {
        // More segments than a buffer has entries; fewer.
        for (capacity_bytes, segment_bytes) in [(1 << 30, 64 << 10), (32 << 20, 1 << 20)] {
            let geometry = Geometry::new(capacity_bytes, segment_bytes, 2, 512).unwrap();
            let segments = geometry.segments(geometry.capacity_max_bytes());
            let entries = geometry.buffer_entries_max() as u32;
            let struck = segments.min(entries);
            let of_each = |segment| {
                // As far apart as they can be: a distance takes the most bytes.
                let count = entries / struck;
                let entries = (1..=count).map(|number| u32::MAX / count * number).collect();
                Deaths { segment, record_bytes: 1, entries }
            };
            let install = Install { deaths: (0..struck).map(of_each).collect(), ..Install::default() };
            let items = InstallFrame { install, ..trim(1) }.items();
            let counted = install_bytes_max(&geometry) - flushed_bytes_max(&geometry);
            let taken = (items.payload().len() + HEADER_BYTES) as u64;
            assert!((counted / 2..=counted).contains(&taken), "{taken} of {counted}");
        }
    }

    #[test]
    fn there_is_room_for_as_many_flushes_as_is_said_and_not_for_many_more() {
        let geometry = Geometry::new(1 << 30, 256 << 10, 2, 512).unwrap();
        let made = Geometry { manifest_bytes: 1 << 20, ..geometry };
        let mut bench = Bench::of(&made);
        let (room, entries, extents) =
            (ManifestRoom::default(), geometry.buffer_entries_max() as u32, segment_extents(&geometry));
        // All is kept, or nothing.
        let refresh = |clients: &Clients, all: bool| {
            let segments = if all { clients.of::<Catalog>().segments.len() as u64 } else { 0 };
            let kept = KeptRoom {
                entries: segments * u64::from(entries),
                extents: segments * u64::from(extents),
                large_bytes: 0,
            };
            room.refresh(&made, clients, kept);
            (room.flushes_now(), room.flushes_at_best(), room.flushes_for_new_keys())
        };
        let empty = refresh(&bench.installer, true);
        let mut flushes = 0;
        loop {
            let (now, at_best, for_new_keys) = refresh(&bench.installer, true);
            assert!(
                now + flushes >= empty.0 && at_best <= now && for_new_keys <= at_best,
                "{now} {at_best} {for_new_keys}"
            );
            if now == 0 {
                break;
            }
            let data_extents = (0..extents - 1).collect();
            let added = Descriptor { data_extents, ..descriptor(flushes as u32, entries) };
            let deaths = bench.installer.of::<Catalog>().segments.keys();
            let deaths =
                deaths.map(|segment| Deaths { segment: *segment, record_bytes: 10, entries: vec![flushes as u32] });
            let install = Install { added: vec![added], deaths: deaths.collect(), ..Install::default() };
            bench.install(&InstallFrame { install, ..trim(flushes) });
            flushes += 1;
        }
        let mut said = Writer::default();
        bench.installer.of::<Catalog>().segments.values().for_each(|state| state.encode(&mut said));
        assert!(said.len() as u64 > made.manifest_bytes / 2, "{} bytes", said.len());
        let (now, at_best, for_new_keys) = refresh(&bench.installer, false);
        assert!(now == 0 && at_best == empty.1 && for_new_keys <= at_best);
    }

    #[test]
    fn what_is_said_of_large_values_is_as_long_as_is_counted_with() {
        for segment_bytes in [64 << 10, 1 << 20] {
            let geometry = Geometry::new(1 << 30, segment_bytes, 2, 512).unwrap();
            // Values as small as large ones are; of one as large as there can be. No extent is a neighbour of another.
            let entry_of = |value_bytes: u64| {
                let runs = vec![Run { first: 1, count: 1 }; (value_bytes / geometry.extent_bytes) as usize];
                LargeEntry { entry: 0, keyspace: KeyspaceId::DEFAULT, expiry: Expiry::NONE, stamp: 0, runs }
                    .encoded_bytes_max()
            };
            let (least, most) = (segment_bytes / 8, value_bytes_max(&geometry, u64::MAX) as u64);
            let small = LARGE_NAMED_SEGMENTS * segment_bytes / least * entry_of(least);
            let (counted, taken) = (large_bytes_max(&geometry), small + entry_of(most));
            assert!((counted * 2 / 5..=counted).contains(&taken), "{taken} of {counted}");
        }
    }

    #[test]
    fn a_collection_for_the_sake_of_the_manifest_takes_more_than_few_dead_entries() {
        let worth = |dead| is_worth_collecting(dead, 6400);
        assert_eq!([0, 100, 101, 6400].map(worth), [false, false, true, true]);
    }
}
