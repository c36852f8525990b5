//! The manifest: an append-only list of installs in one of two areas, begun anew with a snapshot in the other when it is long.
//!
//! ```text
//!  frame, each on fresh sectors:
//!  0       4     8        16         24      26    28       32     40
//!  +-------+-----+--------+----------+-------+-----+--------+------+---------+---------+
//!  | magic | crc | epoch  | sequence | kind  | 0   | length | 0    | payload | padding |
//!  | "TMAN"| u32 | u64    | u64      | u16   | u16 | u32    | u64  |         |         |
//!  +-------+-----+--------+----------+-------+-----+--------+------+---------+---------+
//!  area: SnapshotBegin · SnapshotKeyspaces × k · SnapshotSegments × n · SnapshotEnd · (Install | Opened | Checkpoint | Keyspace) × m
//! ```
//! The crc covers the frame behind it, salted with its place and the epoch. An area's frames have one epoch and count
//! their sequence from 0; the area with the highest epoch and a whole snapshot is the manifest. Each frame is durable
//! before the next is written, but for the segments of a snapshot, which are before its end: so a valid frame behind an invalid one
//! means damage, not a crash, unless the snapshot has no end; after a frame whose write failed none is written. A checkpoint of
//! the index holds only as the last frame of the manifest.
//!
//! A list goes on until it is [`LIST_SNAPSHOTS`] times as long as its snapshot, however large the area: opening reads no more.

mod area;
pub mod keyspaces;
pub mod manifest_room;
mod readable;
mod replay;

use self::area::AreaReader;
use crate::error::Error;
use crate::hashed::catalog::{Catalog, Install, encode_marks};
use crate::hashed::index::checkpoint::Checkpoint;
use crate::keyspace::catalogue::KeyspaceEdit;
use crate::manifest::keyspaces::{encode_keyspace, in_snapshot};
use crate::manifest::manifest_room::snapshot_bytes_max;
use crate::media::geometry::Geometry;
use crate::media::io::Io;
use crate::media::wire::{Reader, Short, Writer};
use crate::planted::Planted;
use tapetum_drive::LocalMemory;
use tapetum_kernels::checksum::{Salt, checksum};

const MAGIC: u32 = u32::from_le_bytes(*b"TMAN");
pub const HEADER_BYTES: usize = 40;
/// A frame of a snapshot ends with the segment that fills so much: most take some hundred bytes, and a frame is whole sectors.
pub const SNAPSHOT_FRAME_BYTES: usize = 16 << 10;
/// What is read or written at once, where it is more than one frame.
const CHUNK_BYTES: usize = 64 << 10;
/// What is moved at once: a frame may be longer than local memory has in one piece.
const PIECE_BYTES: usize = 256 << 10;
const LIST_SNAPSHOTS: u64 = 4;
/// But not before it has so many bytes.
const LIST_BYTES_MIN: u64 = 256 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
enum Kind {
    SnapshotBegin = 1,
    /// One or more.
    SnapshotSegments = 2,
    SnapshotEnd = 3,
    Install = 4,
    Opened = 5,
    Checkpoint = 6,
    /// A change of the catalogue of keyspaces.
    Keyspace = 7,
    /// None where there is only the default one.
    SnapshotKeyspaces = 8,
}

const KINDS: [Kind; 8] = [
    Kind::SnapshotBegin,
    Kind::SnapshotSegments,
    Kind::SnapshotEnd,
    Kind::Install,
    Kind::Opened,
    Kind::Checkpoint,
    Kind::Keyspace,
    Kind::SnapshotKeyspaces,
];

/// Where the next frame goes.
pub struct Manifest {
    io: Io,
    geometry: Geometry,
    store_id: u64,
    area: usize,
    epoch: u64,
    /// The highest epoch either area has begun, whole or not: frames of a snapshot cut short must never mix with others.
    epoch_last: u64,
    sequence: u64,
    /// Offset in the area.
    position: u64,
    /// Where the list goes on behind its snapshot.
    snapshot_end: u64,
    generation: u64,
    /// A frame was begun and not written, or not known to be: what is on flash behind the last one is anything.
    failed: bool,
}

/// Where the manifest stands, for tools.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    pub area: usize,
    pub epoch: u64,
    pub sequence: u64,
    pub position: u64,
    pub generation: u64,
}

struct Frame {
    epoch: u64,
    sequence: u64,
    kind: Kind,
    payload: Vec<u8>,
    /// Bytes on flash.
    length: u64,
}

/// What the manifest says, and where it goes on.
pub struct Recovered {
    pub manifest: Manifest,
    pub catalog: Catalog,
    /// The last frame, if it is one.
    pub checkpoint: Option<Checkpoint>,
}

impl Manifest {
    /// Writes the first snapshot of an empty store.
    pub async fn create(io: &Io, geometry: &Geometry, store_id: u64) -> Result<(), Error> {
        let mut manifest = Manifest {
            io: io.clone(),
            geometry: *geometry,
            store_id,
            area: 1,
            epoch: 0,
            epoch_last: 0,
            sequence: 0,
            position: 0,
            snapshot_end: 0,
            generation: 0,
            failed: false,
        };
        manifest.snapshot(&Catalog::default()).await
    }

    pub fn summary(&self) -> Summary {
        let Manifest { area, epoch, sequence, position, generation, .. } = *self;
        Summary { area, epoch, sequence, position, generation }
    }

    /// How often the store was opened.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Makes a change durable. `catalog` is the state before it.
    pub async fn install(&mut self, catalog: &Catalog, install: &Install) -> Result<(), Error> {
        let mut writer = Writer::default();
        install.encode(&mut writer);
        self.append_or_begin_anew(Kind::Install, &writer.bytes, catalog).await
    }

    /// Makes a change of the catalogue of keyspaces durable. `catalog` is the state before it.
    pub async fn edit_keyspaces(&mut self, catalog: &Catalog, edit: &KeyspaceEdit) -> Result<(), Error> {
        let mut writer = Writer::default();
        edit.encode(&mut writer);
        self.append_or_begin_anew(Kind::Keyspace, &writer.bytes, catalog).await
    }

    /// Makes durable that the store was opened once more, and with it all that recovery read and believed.
    /// Stamps from `stamp_next` on are given from now; those up to `stamp_durable` are there.
    pub async fn opened(&mut self, catalog: &Catalog, stamp_next: u64, stamp_durable: u64) -> Result<(), Error> {
        self.io.flush().await?;
        let generation = self.generation + 1;
        let mut writer = Writer::default();
        writer.u64(generation);
        writer.u64(stamp_next);
        writer.u64(stamp_durable);
        self.append_or_begin_anew(Kind::Opened, &writer.bytes, catalog).await?;
        self.generation = generation;
        Ok(())
    }

    /// Makes durable that the index is in extents that the checkpoint names. `false` when there is no room to say so.
    pub async fn checkpoint(&mut self, catalog: &Catalog, checkpoint: &Checkpoint) -> Result<bool, Error> {
        let mut writer = Writer::default();
        checkpoint.encode(&mut writer);
        if self.frame_bytes(writer.bytes.len()) + snapshot_bytes_max(&self.geometry, catalog)
            > self.geometry.manifest_bytes
        {
            return Ok(false);
        }
        self.append_or_begin_anew(Kind::Checkpoint, &writer.bytes, catalog).await?;
        Ok(true)
    }

    async fn append_or_begin_anew(&mut self, kind: Kind, payload: &[u8], catalog: &Catalog) -> Result<(), Error> {
        if self.failed {
            return Err(Error::Io("a write of the manifest failed before".into()));
        }
        self.failed = true;
        let end = self.position + self.frame_bytes(payload.len());
        if end > list_end_max(&self.geometry, self.snapshot_end) {
            self.snapshot(catalog).await?;
        }
        self.append(kind, payload).await?;
        self.failed = false;
        Ok(())
    }

    /// Writes the whole state to the other area and goes on there.
    async fn snapshot(&mut self, catalog: &Catalog) -> Result<(), Error> {
        self.area ^= 1;
        self.epoch_last += 1;
        self.epoch = self.epoch_last;
        self.sequence = 0;
        self.position = 0;
        let mut writer = Writer::default();
        encode_marks(catalog.buffer_next, &catalog.marks, &mut writer);
        writer.u64(catalog.stamp_base);
        writer.u64(catalog.stamp_opened);
        writer.u64(self.generation);
        writer.u32(catalog.segments.len() as u32);
        writer.u32(in_snapshot(&catalog.keyspaces).count() as u32);
        self.append(Kind::SnapshotBegin, &writer.bytes).await?;
        self.snapshot_keyspaces(catalog).await?;
        let (mut writer, mut frames) = (Writer::default(), Vec::new());
        let mut states = catalog.segments.values().peekable();
        while let Some(state) = states.next() {
            state.encode(&mut writer);
            let is_last = states.peek().is_none();
            if writer.bytes.len() >= SNAPSHOT_FRAME_BYTES || is_last {
                self.encode(Kind::SnapshotSegments, &std::mem::take(&mut writer).bytes, &mut frames)?;
            }
            if frames.len() + 2 * SNAPSHOT_FRAME_BYTES > CHUNK_BYTES || is_last {
                self.write(&std::mem::take(&mut frames)).await?;
            }
        }
        self.append(Kind::SnapshotEnd, &[]).await?;
        self.snapshot_end = self.position;
        Ok(())
    }

    async fn snapshot_keyspaces(&mut self, catalog: &Catalog) -> Result<(), Error> {
        let (mut writer, mut keyspaces) = (Writer::default(), in_snapshot(&catalog.keyspaces).peekable());
        while let Some(keyspace) = keyspaces.next() {
            encode_keyspace(keyspace, &mut writer);
            if writer.bytes.len() >= SNAPSHOT_FRAME_BYTES || keyspaces.peek().is_none() {
                self.append(Kind::SnapshotKeyspaces, &std::mem::take(&mut writer).bytes).await?;
            }
        }
        Ok(())
    }

    fn frame_bytes(&self, payload: usize) -> u64 {
        ((HEADER_BYTES + payload) as u64).next_multiple_of(u64::from(self.geometry.sector_bytes))
    }

    async fn append(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Error> {
        let mut frame = Vec::new();
        self.encode(kind, payload, &mut frame)?;
        self.write(&frame).await
    }

    /// Appends the next frame to those in `frames`, which are not written yet.
    fn encode(&mut self, kind: Kind, payload: &[u8], frames: &mut Vec<u8>) -> Result<(), Error> {
        let position = self.position + frames.len() as u64;
        let length = self.frame_bytes(payload.len());
        if position + length > self.geometry.manifest_bytes {
            return Err(Error::Options(
                "the manifest area is too small for the store: create it with a larger capacity".into(),
            ));
        }
        let mut header = Writer::default();
        header.u32(MAGIC);
        header.u32(0);
        header.u64(self.epoch);
        header.u64(self.sequence);
        header.u16(kind as u16);
        header.u16(0);
        header.u32(payload.len() as u32);
        header.u64(0);
        let flash = self.geometry.manifest_offset(self.area) + position;
        let crc = frame_checksum(self.store_id, flash, self.epoch, &header.bytes, payload);
        header.bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        let padded = frames.len() + length as usize;
        frames.extend_from_slice(&header.bytes);
        frames.extend_from_slice(payload);
        frames.resize(padded, 0);
        self.sequence += 1;
        Ok(())
    }

    /// Makes frames durable.
    async fn write(&mut self, frames: &[u8]) -> Result<(), Error> {
        let flash = self.geometry.manifest_offset(self.area) + self.position;
        let mut buffer = self.io.allocate(frames.len().min(PIECE_BYTES)).await?;
        for (number, piece) in frames.chunks(PIECE_BYTES).enumerate() {
            self.io.fill(&mut buffer, 0..piece.len()).copy_from_slice(piece);
            self.io.write_durably(flash + (number * PIECE_BYTES) as u64, &mut buffer, piece.len()).await?;
        }
        self.position += frames.len() as u64;
        Ok(())
    }

    /// Reads both areas and finds the state they hold.
    pub async fn recover(
        io: &Io,
        local: &LocalMemory,
        geometry: &Geometry,
        store_id: u64,
        planted: Planted,
    ) -> Result<Recovered, Error> {
        let mut reader =
            AreaReader { io: io.clone(), local: local.clone(), geometry: *geometry, store_id, planted, window: None };
        let mut best: Option<Recovered> = None;
        let mut epochs = Vec::new();
        for area in 0..2 {
            let Some(epoch) = reader.epoch_of(area).await? else { continue };
            epochs.push((epoch, area));
        }
        epochs.sort_unstable();
        while let (None, Some((epoch, area))) = (&best, epochs.pop()) {
            best = reader.read_area(area, epoch).await?;
        }
        let mut recovered =
            best.ok_or_else(|| Error::Corrupt("neither manifest area holds a whole snapshot".into()))?;
        recovered.manifest.epoch_last = reader.epoch_last(&recovered).await?;
        Ok(recovered)
    }
}

/// No frame of a list begins at or behind this byte of its area, unless it is the first behind the snapshot.
fn list_end_max(geometry: &Geometry, snapshot_end: u64) -> u64 {
    (LIST_SNAPSHOTS * snapshot_end).max(LIST_BYTES_MIN).min(geometry.manifest_bytes)
}

fn frame_checksum(store_id: u64, flash: u64, epoch: u64, header: &[u8], payload: &[u8]) -> u32 {
    checksum(Salt { store: store_id, address: flash, version: epoch }, &[&header[8..], payload])
}

fn parse_header(bytes: &[u8]) -> Option<(u64, u64, Kind, usize)> {
    let mut reader = Reader::new(bytes);
    let mut fields = || -> Result<_, Short> {
        let magic = reader.u32()?;
        reader.u32()?;
        let (epoch, sequence, kind) = (reader.u64()?, reader.u64()?, reader.u16()?);
        reader.u16()?;
        Ok((magic, epoch, sequence, kind, reader.u32()?))
    };
    let (magic, epoch, sequence, kind, length) = fields().ok()?;
    let kind = KINDS.into_iter().find(|known| *known as u16 == kind)?;
    (magic == MAGIC).then_some((epoch, sequence, kind, length as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::catalog::Deaths;
    use crate::hashed::catalog::tests::descriptor;
    use crate::hashed::segment::Descriptor;
    use crate::maintenance::room::segment_extents;
    use crate::manifest::manifest_room::{Kept, ManifestRoom};
    use crate::media::io::run;
    use std::sync::Arc;
    use tapetum_drive::{Drive, Env, FaultyFlash, MemoryFlash, Opcode};

    /// What `Manifest::recover` gives of a flash.
    fn recover(io: &Io, drive: &Drive, geometry: &Geometry) -> Recovered {
        let recovering = Manifest::recover(io, drive.local(), geometry, 7, Planted::default());
        run(io, recovering, || false).unwrap().unwrap()
    }

    #[test]
    fn nothing_follows_a_frame_whose_write_failed() {
        let geometry = Geometry { manifest_bytes: 8 << 10, ..Geometry::new(2 << 20, 64 << 10, 2, 512).unwrap() };
        // The frame that fails is one of an area, the first of a snapshot, or one within it; some of its bytes may be written.
        for seed in 0..60 {
            let faulty = FaultyFlash::new(64 << 10, seed);
            let local = LocalMemory::new(256 << 10).unwrap();
            let drive = Drive::new(Arc::new(faulty.clone()), local, Vec::new(), Env::simulated(seed).0);
            let io = Io::new(drive.queue_pair(16).unwrap());
            run(&io, Manifest::create(&io, &geometry, 7), || false).unwrap().unwrap();
            let Recovered { mut manifest, mut catalog, .. } = recover(&io, &drive, &geometry);
            faulty.fail_nth(Opcode::Write, 1 + seed / 2);
            let mut install = |buffer_next: u64| {
                let install = Install { buffer_next, ..Install::default() };
                let done = run(&io, manifest.install(&catalog, &install), || false).unwrap();
                done.and_then(|()| catalog.install(&install))
            };
            let failed = (1..).find(|number| install(*number).is_err()).unwrap();
            assert!(install(failed + 1).is_err(), "seed {seed}: a frame was written after it");
            let found = recover(&io, &drive, &geometry).catalog.buffer_next;
            assert!([failed - 1, failed].contains(&found), "seed {seed}: {found}, though {failed} failed");
        }
    }

    /// A store of a gigabyte, whose manifest areas have 8 MiB, and its first list.
    struct Large {
        geometry: Geometry,
        drive: Drive,
        io: Io,
        manifest: Manifest,
        catalog: Catalog,
    }

    impl Large {
        fn new() -> Large {
            Large::of(Geometry::new(1 << 30, 256 << 10, 2, 512).unwrap(), 4 << 20)
        }

        fn of(geometry: Geometry, local_bytes: usize) -> Large {
            let flash = Arc::new(MemoryFlash::new(geometry.manifest_offset(2)));
            let local = LocalMemory::new(local_bytes).unwrap();
            let drive = Drive::new(flash, local, Vec::new(), Env::simulated(1).0);
            let io = Io::new(drive.queue_pair(16).unwrap());
            run(&io, Manifest::create(&io, &geometry, 7), || false).unwrap().unwrap();
            let Recovered { manifest, catalog, .. } = recover(&io, &drive, &geometry);
            Large { geometry, drive, io, manifest, catalog }
        }

        fn install(&mut self, install: Install) {
            run(&self.io, self.manifest.install(&self.catalog, &install), || false).unwrap().unwrap();
            self.catalog.install(&install).unwrap();
        }

        /// Adds segments until a snapshot has many frames, and goes on to the next list.
        fn grow(&mut self) {
            for number in 0..600 {
                self.install(Install {
                    added: vec![descriptor(number, 4000)],
                    buffer_next: number.into(),
                    ..Install::default()
                });
            }
            let area = self.manifest.area;
            while self.manifest.area == area {
                self.install(Install { buffer_next: 1 + self.catalog.buffer_next, ..Install::default() });
            }
        }

        /// Spoils a sector of the manifest.
        fn damage(&self, area: usize, position: u64) {
            let mut buffer = self.drive.local().allocate(512).unwrap();
            let flash = self.geometry.manifest_offset(area) + position;
            run(&self.io, self.io.read(flash, &mut buffer, 0, 512), || false).unwrap().unwrap();
            buffer.bytes_mut()[20] ^= 1;
            run(&self.io, self.io.write_durably(flash, &mut buffer, 512), || false).unwrap().unwrap();
        }

        fn refusal(&self) -> String {
            let recovering = Manifest::recover(&self.io, self.drive.local(), &self.geometry, 7, Planted::default());
            run(&self.io, recovering, || false).unwrap().err().expect("it is damaged").to_string()
        }
    }

    #[test]
    fn a_frame_longer_than_local_memory_is_written_and_read() {
        let mut large = Large::of(Geometry::new(1 << 30, 256 << 10, 2, 512).unwrap(), 512 << 10);
        // Each fifth record of a segment dies.
        let entries: Vec<u32> = (0..5 * large.drive.local().bytes_total() as u32).step_by(5).collect();
        let (count, record_bytes) = (*entries.last().unwrap() + 1, entries.len() as u64);
        let key_extents = (1..100).collect();
        let segment = Descriptor { entries: count, record_bytes, key_extents, ..descriptor(0, 4000) };
        large.install(Install { added: vec![segment], ..Install::default() });
        let deaths = vec![Deaths { segment: 0, record_bytes, entries }];
        let before = large.manifest.position;
        large.install(Install { deaths, buffer_next: 7, ..Install::default() });
        assert!(large.manifest.position - before > large.drive.local().bytes_total() as u64);
        assert_eq!(recover(&large.io, &large.drive, &large.geometry).catalog, large.catalog);
    }

    #[test]
    fn lists_stay_short_in_large_areas() {
        let mut large = Large::new();
        large.grow();
        let snapshot_end = large.manifest.snapshot_end;
        assert!(snapshot_end > 2 * CHUNK_BYTES as u64, "{snapshot_end}");
        for _ in 0..2 {
            while large.manifest.position + 512 <= LIST_SNAPSHOTS * snapshot_end {
                large.install(Install { buffer_next: 1 + large.catalog.buffer_next, ..Install::default() });
            }
            let area = large.manifest.area;
            large.install(Install { buffer_next: 1 + large.catalog.buffer_next, ..Install::default() });
            assert_ne!(large.manifest.area, area, "the list is {LIST_SNAPSHOTS} times as long as its snapshot");
            let reads = || large.drive.counters().opcode(Opcode::Read).completed;
            let before = reads();
            let found = recover(&large.io, &large.drive, &large.geometry);
            let windows = large.geometry.manifest_bytes / CHUNK_BYTES as u64;
            assert!(reads() - before <= 4 * windows, "{} reads", reads() - before);
            assert!(found.catalog == large.catalog);
            assert_eq!(found.manifest.summary(), large.manifest.summary());
            assert_eq!(found.manifest.snapshot_end, large.manifest.snapshot_end);
        }
    }

    #[test]
    fn a_checkpoint_is_named_where_the_snapshot_fits_behind_it() {
        let geometry = Geometry::new(1 << 30, 256 << 10, 2, 512).unwrap();
        let mut large = Large::of(Geometry { manifest_bytes: 64 << 10, ..geometry }, 4 << 20);
        let left = (large.geometry.manifest_bytes - snapshot_bytes_max(&large.geometry, &large.catalog)) / 512 * 512;
        // What the lists say is looked at when the index is read.
        let mut name = |bytes: u64| {
            let mut writer = Writer::default();
            let extents = vec![1; (bytes as usize - HEADER_BYTES - 20) / 4];
            [8, 4096, 0].into_iter().for_each(|number| writer.u32(number));
            writer.list(&extents);
            writer.list(&[]);
            let checkpoint = Checkpoint::parse(&writer.bytes).unwrap();
            run(&large.io, large.manifest.checkpoint(&large.catalog, &checkpoint), || false).unwrap().unwrap()
        };
        assert!(name(512) && name(left));
        assert!(!name(left + 4) && !name(2 * left));
    }

    #[test]
    fn there_is_room_for_as_many_flushes_as_is_said_and_not_for_many_more() {
        let geometry = Geometry::new(1 << 30, 256 << 10, 2, 512).unwrap();
        let mut large = Large::of(Geometry { manifest_bytes: 1 << 20, ..geometry }, 4 << 20);
        let (room, entries, extents) =
            (ManifestRoom::default(), geometry.buffer_entries_max() as u32, segment_extents(&geometry));
        // All is kept, or nothing.
        let refresh = |catalog: &Catalog, all: bool| {
            let segments = if all { catalog.segments.len() as u64 } else { 0 };
            let kept =
                Kept { entries: segments * u64::from(entries), extents: segments * u64::from(extents), large_bytes: 0 };
            room.refresh(&large.geometry, catalog, kept);
            (room.flushes_now(), room.flushes_at_best(), room.flushes_for_new_keys())
        };
        let empty = refresh(&large.catalog, true);
        let mut flushes = 0;
        loop {
            let (now, at_best, for_new_keys) = refresh(&large.catalog, true);
            assert!(
                now + flushes >= empty.0 && at_best <= now && for_new_keys <= at_best,
                "{now} {at_best} {for_new_keys}"
            );
            if now == 0 {
                break;
            }
            let data_extents = (0..extents - 1).collect();
            let added = Descriptor { data_extents, ..descriptor(flushes as u32, entries) };
            let deaths = large.catalog.segments.keys();
            let deaths =
                deaths.map(|segment| Deaths { segment: *segment, record_bytes: 10, entries: vec![flushes as u32] });
            let install =
                Install { added: vec![added], deaths: deaths.collect(), buffer_next: flushes, ..Install::default() };
            run(&large.io, large.manifest.install(&large.catalog, &install), || false).unwrap().unwrap();
            large.catalog.install(&install).unwrap();
            flushes += 1;
        }
        let mut said = Writer::default();
        large.catalog.segments.values().for_each(|state| state.encode(&mut said));
        assert!(said.bytes.len() as u64 > large.geometry.manifest_bytes / 2, "{} bytes", said.bytes.len());
        let (now, at_best, for_new_keys) = refresh(&large.catalog, false);
        assert!(now == 0 && at_best == empty.1 && for_new_keys <= at_best);
    }

    #[test]
    fn no_epoch_is_begun_twice_though_the_beginning_of_a_snapshot_cut_short_is_damaged() {
        let mut large = Large::new();
        large.grow();
        let Manifest { area, epoch, snapshot_end, .. } = large.manifest;
        // As if the snapshot had been cut short: its end, and the list.
        large.damage(area, snapshot_end - 512);
        large.damage(area, snapshot_end);
        for beginning_is_damaged in [false, true] {
            if beginning_is_damaged {
                large.damage(area, 0);
            }
            let found = recover(&large.io, &large.drive, &large.geometry).manifest;
            assert_eq!((found.area, found.epoch, found.epoch_last), (area ^ 1, epoch - 1, epoch));
        }
    }

    #[test]
    fn damage_is_seen_from_behind_it_wherever_it_strikes() {
        for place in 0..3 {
            let mut large = Large::new();
            large.grow();
            let newer = "is newer than the other, and damaged before";
            let (position, message) = match place {
                0 => (0, newer),
                1 => (large.manifest.snapshot_end / 2 / 512 * 512, newer),
                _ => (large.manifest.snapshot_end, "although frame"),
            };
            for _ in 0..3 {
                large.install(Install { buffer_next: 1 + large.catalog.buffer_next, ..Install::default() });
            }
            large.damage(large.manifest.area, position);
            let refusal = large.refusal();
            assert!(refusal.contains(message), "{refusal}");
        }
    }
}
