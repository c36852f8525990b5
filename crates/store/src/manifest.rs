//! The manifest: an append-only list of installs in one of two areas, begun anew with a snapshot in the other when full.
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
//! before the next is written, so a valid frame behind an invalid one means damage, not a crash; after a frame whose write failed
//! none is written. A checkpoint of the index holds only as the last frame of the manifest.

use crate::catalog::{Catalog, Install, Marks, SegmentState, encode_marks, parse_marks};
use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::flight::Flying;
use crate::geometry::Geometry;
use crate::io::Io;
use crate::manifest_room::snapshot_bytes_max;
use crate::planted::{Bug, Planted};
use crate::wire::{Reader, Short, Writer};
use tapetum_drive::LocalMemory;
use tapetum_kernels::checksum::{Salt, checksum};

const MAGIC: u32 = u32::from_le_bytes(*b"TMAN");
pub const HEADER_BYTES: usize = 40;
/// A frame of a snapshot ends with the segment that fills so much: most take some hundred bytes, and a frame is whole sectors and
/// waits for the one before.
pub const SNAPSHOT_FRAME_BYTES: usize = 16 << 10;

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
            position: geometry.manifest_bytes,
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
        self.generation += 1;
        let mut writer = Writer::default();
        writer.u64(self.generation);
        writer.u64(stamp_next);
        writer.u64(stamp_durable);
        self.append_or_begin_anew(Kind::Opened, &writer.bytes, catalog).await
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
        if self.position + self.frame_bytes(payload.len()) > self.geometry.manifest_bytes {
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
        let mut writer = Writer::default();
        for state in catalog.segments.values() {
            state.encode(&mut writer);
            if writer.bytes.len() >= SNAPSHOT_FRAME_BYTES {
                self.append(Kind::SnapshotSegments, &std::mem::take(&mut writer).bytes).await?;
            }
        }
        if !writer.bytes.is_empty() {
            self.append(Kind::SnapshotSegments, &writer.bytes).await?;
        }
        self.append(Kind::SnapshotEnd, &[]).await
    }

    fn frame_bytes(&self, payload: usize) -> u64 {
        ((HEADER_BYTES + payload) as u64).next_multiple_of(u64::from(self.geometry.sector_bytes))
    }

    async fn append(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Error> {
        let length = self.frame_bytes(payload.len());
        if self.position + length > self.geometry.manifest_bytes {
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
        let flash = self.geometry.manifest_offset(self.area) + self.position;
        let crc = frame_checksum(self.store_id, flash, self.epoch, &header.bytes, payload);
        header.bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        let mut buffer = self.io.allocate(length as usize).await?;
        let image = buffer.bytes_mut();
        image[..HEADER_BYTES].copy_from_slice(&header.bytes);
        image[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(payload);
        image[HEADER_BYTES + payload.len()..length as usize].fill(0);
        self.io.write_durably(flash, &buffer, length as usize).await?;
        self.position += length;
        self.sequence += 1;
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
        let mut reader = AreaReader { io: io.clone(), local: local.clone(), geometry: *geometry, store_id, planted };
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
        reader.refuse_newer(recovered.manifest.area ^ 1, recovered.manifest.epoch).await?;
        Ok(recovered)
    }
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
}

impl AreaReader {
    /// The epoch of an area's first frame, if that is valid.
    async fn epoch_of(&mut self, area: usize) -> Result<Option<u64>, Error> {
        Ok(self.frame(area, 0).await?.filter(|frame| frame.sequence == 0).map(|frame| frame.epoch))
    }

    /// The frame at `position` of an area, if there is a valid one.
    async fn frame(&mut self, area: usize, position: u64) -> Result<Option<Frame>, Error> {
        let sector = self.geometry.sector_bytes as usize;
        let left = (self.geometry.manifest_bytes - position) as usize;
        if left < sector {
            return Ok(None);
        }
        let flash = self.geometry.manifest_offset(area) + position;
        let mut buffer = self.io.allocate(sector).await?;
        self.io.read(flash, &buffer, 0, sector).await?;
        let Some((epoch, sequence, kind, payload)) = parse_header(buffer.bytes()) else { return Ok(None) };
        let length = (HEADER_BYTES + payload).next_multiple_of(sector);
        if length > left {
            return Ok(None);
        }
        if length > sector {
            buffer = self.io.allocate(length).await?;
            self.io.read(flash, &buffer, 0, length).await?;
        }
        let bytes = buffer.bytes();
        let payload = &bytes[HEADER_BYTES..HEADER_BYTES + payload];
        let crc = frame_checksum(self.store_id, flash, epoch, &bytes[..HEADER_BYTES], payload);
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
        while let Some(frame) = self.frame(area, position).await?.filter(|f| f.epoch == epoch && f.sequence == sequence)
        {
            position += frame.length;
            sequence += 1;
            state.apply(&frame)?;
        }
        self.refuse_gap(area, epoch, sequence, position).await?;
        if !state.whole {
            return Ok(None);
        }
        let manifest = Manifest {
            io: self.io.clone(),
            geometry: self.geometry,
            store_id: self.store_id,
            area,
            epoch,
            epoch_last: epoch,
            sequence,
            position,
            generation: state.generation,
            failed: false,
        };
        Ok(Some(Recovered { manifest, catalog: state.catalog, checkpoint: state.checkpoint }))
    }

    /// A later frame behind the end of the list: the list was longer, and damage cut it.
    async fn refuse_gap(&mut self, area: usize, epoch: u64, sequence: u64, end: u64) -> Result<(), Error> {
        let later = self.find(area, end, |found, number, _| found == epoch && number > sequence).await?;
        later.map_or(Ok(()), |number| {
            Err(Error::Corrupt(format!(
                "manifest area {area} breaks off at byte {end} (frame {sequence}) although frame {number} follows"
            )))
        })
    }

    /// A frame that only a whole newer snapshot has before it: the area is the newer one, and damage hides its beginning.
    async fn refuse_newer(&mut self, area: usize, epoch: u64) -> Result<(), Error> {
        let ends = |kind| matches!(kind, Kind::SnapshotEnd | Kind::Install | Kind::Opened | Kind::Checkpoint);
        let newer = self.find(area, 0, |found, _, kind| found > epoch && ends(kind)).await?;
        newer.map_or(Ok(()), |number| {
            Err(Error::Corrupt(format!(
                "manifest area {area} is newer than the other, and damaged before its frame {number}"
            )))
        })
    }

    /// The number of the first valid frame from byte `start` of an area on that is wanted.
    async fn find(
        &mut self,
        area: usize,
        start: u64,
        wanted: impl Fn(u64, u64, Kind) -> bool,
    ) -> Result<Option<u64>, Error> {
        let sector = u64::from(self.geometry.sector_bytes);
        let chunk_bytes = (64u64 << 10).min(self.geometry.manifest_bytes);
        let io = self.io.clone();
        let mut flying = Flying::new(&io, &self.local, chunk_bytes as usize);
        // The last chunk ends where the area does, and overlaps the one before.
        let last = self.geometry.manifest_bytes - chunk_bytes;
        let mut to_read = (start.min(last)..self.geometry.manifest_bytes).step_by(chunk_bytes as usize);
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
                if at_area >= start && wanted(epoch, number, kind) && self.frame(area, at_area).await?.is_some() {
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
    use std::sync::Arc;
    use tapetum_drive::{Drive, Env, FaultyFlash, Opcode};

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
}
