//! The manifest: an append-only list of installs in one of two areas, begun anew with a snapshot in the other when it is long.
//!
//! ```text
//!  frame, each on fresh sectors:
//!  0       4     8        16         24      26    28       32     40
//!  +-------+-----+--------+----------+-------+-----+--------+------+---------+---------+
//!  | magic | crc | epoch  | sequence | kind  | 0   | length | 0    | payload | padding |
//!  | "TMAN"| u32 | u64    | u64      | u16   | u16 | u32    | u64  |         |         |
//!  +-------+-----+--------+----------+-------+-----+--------+------+---------+---------+
//!  area: SnapshotBegin · SnapshotSegments × n · SnapshotEnd · (Install | Opened | Checkpoint) × m
//! ```
//! The crc covers the frame behind it, salted with its place and the epoch. An area's frames have one epoch and count
//! their sequence from 0; the area with the highest epoch and a whole snapshot is the manifest. Each frame is durable
//! before the next is written, but for the segments of a snapshot, which are before its end: so a valid frame behind an invalid one
//! means damage, not a crash, unless the snapshot has no end; after a frame whose write failed none is written. A checkpoint of
//! the index holds only as the last frame of the manifest.
//!
//! A list goes on until it is [`LIST_SNAPSHOTS`] times as long as its snapshot, however large the area: opening reads no more.

use crate::catalog::{Catalog, Install, Marks, SegmentState, encode_marks, parse_marks};
use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::flight::Flying;
use crate::geometry::Geometry;
use crate::io::Io;
use crate::manifest_room::snapshot_bytes_max;
use crate::planted::{Bug, Planted};
use crate::wire::{Reader, Short, Writer};
use std::ops::Range;
use tapetum_drive::{LocalBuffer, LocalMemory};
use tapetum_kernels::checksum::{Salt, checksum};

const MAGIC: u32 = u32::from_le_bytes(*b"TMAN");
pub const HEADER_BYTES: usize = 40;
/// A frame of a snapshot ends with the segment that fills so much: most take some hundred bytes, and a frame is whole sectors.
pub const SNAPSHOT_FRAME_BYTES: usize = 16 << 10;
/// What is read or written at once, where it is more than one frame.
const CHUNK_BYTES: usize = 64 << 10;
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
}

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
        encode_marks(catalog.buffer_next, catalog.marks, &mut writer);
        writer.u64(catalog.stamp_base);
        writer.u64(catalog.stamp_opened);
        writer.u64(self.generation);
        writer.u32(catalog.segments.len() as u32);
        self.append(Kind::SnapshotBegin, &writer.bytes).await?;
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
                "the manifest area is too small for the store: create it with a larger --capacity".into(),
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
        let mut buffer = self.io.allocate(frames.len()).await?;
        buffer.bytes_mut()[..frames.len()].copy_from_slice(frames);
        self.io.write_durably(flash, &buffer, frames.len()).await?;
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
        let epoch_last = epochs.last().map_or(0, |last| last.0);
        while let (None, Some((epoch, area))) = (&best, epochs.pop()) {
            best = reader.read_area(area, epoch).await?;
        }
        let mut recovered =
            best.ok_or_else(|| Error::Corrupt("neither manifest area holds a whole snapshot".into()))?;
        recovered.manifest.epoch_last = epoch_last;
        reader.refuse_newer(&recovered).await?;
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

struct AreaReader {
    io: Io,
    local: LocalMemory,
    geometry: Geometry,
    store_id: u64,
    planted: Planted,
    /// Where on flash what was read last lies.
    window: Option<(u64, LocalBuffer)>,
}

impl AreaReader {
    /// The epoch of an area's first frame, if that is valid.
    async fn epoch_of(&mut self, area: usize) -> Result<Option<u64>, Error> {
        let first = self.frame(area, 0, |_, sequence, kind| sequence == 0 && kind == Kind::SnapshotBegin).await?;
        Ok(first.map(|frame| frame.epoch))
    }

    /// So many bytes of flash, of which no more than the area's end is read.
    async fn bytes(&mut self, flash: u64, length: usize, area_end: u64) -> Result<&[u8], Error> {
        let end = flash + length as u64;
        let has = |window: &(u64, LocalBuffer)| window.0 <= flash && end <= window.0 + window.1.len() as u64;
        if !self.window.as_ref().is_some_and(has) {
            self.window = None;
            let bytes = length.max(CHUNK_BYTES).min((area_end - flash) as usize);
            let buffer = self.io.allocate(bytes).await?;
            self.io.read(flash, &buffer, 0, bytes).await?;
            self.window = Some((flash, buffer));
        }
        let Some((start, buffer)) = &self.window else { unreachable!("it was just read") };
        Ok(&buffer.bytes()[(flash - start) as usize..][..length])
    }

    /// The frame at `position` of an area, if there is a valid one that is wanted by its epoch, sequence and kind.
    async fn frame(
        &mut self,
        area: usize,
        position: u64,
        wanted: impl FnOnce(u64, u64, Kind) -> bool,
    ) -> Result<Option<Frame>, Error> {
        let sector = self.geometry.sector_bytes as usize;
        let left = (self.geometry.manifest_bytes - position) as usize;
        if left < sector {
            return Ok(None);
        }
        let flash = self.geometry.manifest_offset(area) + position;
        let area_end = flash + left as u64;
        let Some((epoch, sequence, kind, payload)) = parse_header(self.bytes(flash, sector, area_end).await?) else {
            return Ok(None);
        };
        let length = (HEADER_BYTES + payload).next_multiple_of(sector);
        if length > left || !wanted(epoch, sequence, kind) {
            return Ok(None);
        }
        let store_id = self.store_id;
        let bytes = self.bytes(flash, length, area_end).await?;
        let payload = &bytes[HEADER_BYTES..HEADER_BYTES + payload];
        let crc = frame_checksum(store_id, flash, epoch, &bytes[..HEADER_BYTES], payload);
        if bytes[4..8] != crc.to_le_bytes() {
            return Ok(None);
        }
        Ok(Some(Frame { epoch, sequence, kind, payload: payload.to_vec(), length: length as u64 }))
    }

    /// `None` when the area's snapshot is not whole: its writing was cut short, and the other area holds.
    async fn read_area(&mut self, area: usize, epoch: u64) -> Result<Option<Recovered>, Error> {
        let mut state = Replay { planted: self.planted, ..Replay::default() };
        let mut position = 0;
        let mut sequence = 0;
        let mut snapshot_end = 0;
        while let Some(frame) = self.frame(area, position, |of, number, _| of == epoch && number == sequence).await? {
            position += frame.length;
            sequence += 1;
            state.apply(&frame)?;
            if frame.kind == Kind::SnapshotEnd {
                snapshot_end = position;
            }
        }
        if !state.whole {
            return Ok(None);
        }
        let end_max = list_end_max(&self.geometry, snapshot_end);
        // Earlier builds went on to the area's end.
        let end_max = if position > end_max { self.geometry.manifest_bytes } else { end_max };
        self.refuse_gap(area, epoch, sequence, position..end_max).await?;
        let manifest = Manifest {
            io: self.io.clone(),
            geometry: self.geometry,
            store_id: self.store_id,
            area,
            epoch,
            epoch_last: epoch,
            sequence,
            position,
            snapshot_end,
            generation: state.generation,
            failed: false,
        };
        Ok(Some(Recovered { manifest, catalog: state.catalog, checkpoint: state.checkpoint }))
    }

    /// A later frame behind the end of the list: the list was longer, and damage cut it.
    async fn refuse_gap(&mut self, area: usize, epoch: u64, sequence: u64, behind: Range<u64>) -> Result<(), Error> {
        let end = behind.start;
        let later = self.find(area, behind, |found, number, _| found == epoch && number > sequence).await?;
        later.map_or(Ok(()), |number| {
            Err(Error::Corrupt(format!(
                "manifest area {area} breaks off at byte {end} (frame {sequence}) although frame {number} follows"
            )))
        })
    }

    /// A frame in the other area that only a whole newer snapshot has before it: that area is the newer one, and damage hides its
    /// beginning. Its snapshot is of what was recovered.
    async fn refuse_newer(&mut self, recovered: &Recovered) -> Result<(), Error> {
        let (area, epoch) = (recovered.manifest.area ^ 1, recovered.manifest.epoch);
        let ends = |kind| matches!(kind, Kind::SnapshotEnd | Kind::Install | Kind::Opened | Kind::Checkpoint);
        let snapshot_end_max = snapshot_bytes_max(&self.geometry, &recovered.catalog);
        let list = 0..list_end_max(&self.geometry, snapshot_end_max);
        let newer = self.find(area, list, |found, _, kind| found > epoch && ends(kind)).await?;
        newer.map_or(Ok(()), |number| {
            Err(Error::Corrupt(format!(
                "manifest area {area} is newer than the other, and damaged before its frame {number}"
            )))
        })
    }

    /// The number of the first valid frame that begins there in an area and is wanted.
    async fn find(
        &mut self,
        area: usize,
        list: Range<u64>,
        wanted: impl Fn(u64, u64, Kind) -> bool,
    ) -> Result<Option<u64>, Error> {
        let sector = u64::from(self.geometry.sector_bytes);
        let chunk_bytes = (CHUNK_BYTES as u64).min(self.geometry.manifest_bytes);
        let io = self.io.clone();
        let mut flying = Flying::new(&io, &self.local, chunk_bytes as usize);
        // The last chunk ends where the area does, and overlaps the one before.
        let last = self.geometry.manifest_bytes - chunk_bytes;
        let mut to_read = (list.start.min(last)..list.end).step_by(chunk_bytes as usize);
        let mut to_scan = to_read.clone();
        loop {
            while let Some(buffer) = flying.spare.pop() {
                let Some(position) = to_read.next() else { break };
                flying.read(self.geometry.manifest_offset(area) + position.min(last), buffer);
            }
            let Some(position) = to_scan.next() else { return Ok(None) };
            let buffer = flying.next("read of the manifest").await?;
            let buffer =
                buffer.ok_or_else(|| Error::Options("--memory is too small to open the store: raise it".into()))?;
            for at in (0..chunk_bytes).step_by(sector as usize) {
                let at_area = position.min(last) + at;
                let Some((epoch, number, kind, _)) = parse_header(&buffer.bytes()[at as usize..]) else { continue };
                if list.contains(&at_area)
                    && wanted(epoch, number, kind)
                    && self.frame(area, at_area, &wanted).await?.is_some()
                {
                    return Ok(Some(number));
                }
            }
            flying.spare.push(buffer);
        }
    }
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
    let kind =
        [Kind::SnapshotBegin, Kind::SnapshotSegments, Kind::SnapshotEnd, Kind::Install, Kind::Opened, Kind::Checkpoint]
            .into_iter()
            .find(|known| *known as u16 == kind)?;
    (magic == MAGIC).then_some((epoch, sequence, kind, length as usize))
}

#[derive(Default)]
struct Replay {
    catalog: Catalog,
    generation: u64,
    segments_expected: usize,
    /// The snapshot has ended.
    whole: bool,
    checkpoint: Option<Checkpoint>,
    planted: Planted,
}

impl Replay {
    fn apply(&mut self, frame: &Frame) -> Result<(), Error> {
        self.parse(frame)?.map_err(|Short| {
            Error::Corrupt(format!(
                "manifest frame {} of epoch {} is valid but makes no sense",
                frame.sequence, frame.epoch
            ))
        })
    }

    fn parse(&mut self, frame: &Frame) -> Result<Result<(), Short>, Error> {
        if !self.planted.has(Bug::StaleCheckpoint) {
            self.checkpoint = None;
        }
        let mut reader = Reader::new(&frame.payload);
        Ok(match frame.kind {
            Kind::SnapshotBegin => self.begin(&mut reader),
            Kind::SnapshotSegments => self.segments(&mut reader),
            Kind::SnapshotEnd => {
                self.whole = self.catalog.segments.len() == self.segments_expected;
                if self.whole { Ok(()) } else { Err(Short) }
            }
            Kind::Install => match Install::parse(&frame.payload) {
                Ok(install) => {
                    self.catalog.install(&install)?;
                    Ok(())
                }
                Err(short) => Err(short),
            },
            Kind::Opened => self.opened(&mut reader),
            Kind::Checkpoint => Checkpoint::parse(&frame.payload).map(|checkpoint| self.checkpoint = Some(checkpoint)),
        })
    }

    fn segments(&mut self, reader: &mut Reader<'_>) -> Result<(), Short> {
        while !reader.is_empty() {
            let state = SegmentState::parse(reader)?;
            self.catalog.segments.insert(state.descriptor.number, state);
        }
        Ok(())
    }

    fn opened(&mut self, reader: &mut Reader<'_>) -> Result<(), Short> {
        self.generation = reader.u64()?;
        self.catalog.stamp_base = reader.u64()?;
        self.catalog.stamp_opened = reader.u64()?;
        Ok(())
    }

    fn begin(&mut self, reader: &mut Reader<'_>) -> Result<(), Short> {
        let (buffer_next, marks): (u64, Marks) = parse_marks(reader)?;
        let (stamp_base, stamp_opened) = (reader.u64()?, reader.u64()?);
        self.catalog = Catalog { buffer_next, marks, stamp_base, stamp_opened, ..Catalog::default() };
        self.generation = reader.u64()?;
        self.segments_expected = reader.u32()? as usize;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::run;
    use crate::segment::Descriptor;
    use std::sync::Arc;
    use tapetum_drive::{Drive, Env, FaultyFlash, MemoryFlash, Opcode};
    use tapetum_kernels::data_page::PageSize;

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

    fn segment(number: u32) -> Descriptor {
        Descriptor {
            number,
            version: number.into(),
            entries: 4000,
            data_pages: 1,
            data_page_size: PageSize::Large,
            key_pages: 1,
            fence_pages: 1,
            record_bytes_max: 10,
            record_bytes: 40_000,
            expiry_max: 0,
            stamp_max: 1,
            data_extents: vec![2 * number],
            key_extents: vec![2 * number + 1],
            large: Vec::new(),
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
            let geometry = Geometry::new(1 << 30, 256 << 10, 2, 512).unwrap();
            let flash = Arc::new(MemoryFlash::new(geometry.manifest_offset(2)));
            let local = LocalMemory::new(4 << 20).unwrap();
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
                    added: vec![segment(number)],
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
            run(&self.io, self.io.read(flash, &buffer, 0, 512), || false).unwrap().unwrap();
            buffer.bytes_mut()[20] ^= 1;
            run(&self.io, self.io.write_durably(flash, &buffer, 512), || false).unwrap().unwrap();
        }

        fn refusal(&self) -> String {
            let recovering = Manifest::recover(&self.io, self.drive.local(), &self.geometry, 7, Planted::default());
            run(&self.io, recovering, || false).unwrap().err().expect("it is damaged").to_string()
        }
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
            let found = recover(&large.io, &large.drive, &large.geometry);
            assert!(found.catalog == large.catalog);
            assert_eq!(found.manifest.summary(), large.manifest.summary());
            assert_eq!(found.manifest.snapshot_end, large.manifest.snapshot_end);
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
