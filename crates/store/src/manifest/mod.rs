//! The manifest: a log of frames in one of two areas, begun anew with a snapshot in the other when it is long.
//!
//! ```text
//!  frame, each on fresh sectors:
//!  0       4     8        16         24      26    28       32     40
//!  +-------+-----+--------+----------+-------+-----+--------+------+---------+---------+
//!  | magic | crc | epoch  | sequence | kind  | 0   | length | 0    | payload | padding |
//!  | "TMAN"| u32 | u64    | u64      | u16   | u16 | u32    | u64  |         |         |
//!  +-------+-----+--------+----------+-------+-----+--------+------+---------+---------+
//!  area: Snapshot × n · SnapshotEnd · Edit × m
//! ```
//! The payload is items of clients ([`items`]), of which the manifest knows no more than whose they are ([`client`]); that of the end of
//! a snapshot is how many items the snapshot has, u32. A frame counts whole or not at all, so what one frame says of several clients
//! comes true together.
//!
//! The crc covers the frame behind it, salted with its place and the epoch. An area's frames have one epoch and count
//! their sequence from 0; the area with the highest epoch and a whole snapshot is the manifest. Each frame is durable
//! before the next is written, but for those of a snapshot, which are before its end: so a valid frame behind an invalid one
//! means damage, not a crash, unless the snapshot has no end; after a frame whose write failed none is written. What a client says may
//! hold only as the last frame of the manifest ([`client::ManifestClient::supersede`]).
//!
//! A list goes on until it is [`LIST_SNAPSHOTS`] times as long as its snapshot, however large the area: opening reads no more.
//!
//! Threads: one, that of whoever holds the [`crate::installer::Installer`].

mod area;
pub mod base_marks;
pub mod client;
pub mod engine_roots;
pub mod items;
mod readable;
mod replay;

use self::area::AreaReader;
pub use self::area::Recovered;
use self::client::ManifestClients;
use self::items::{FrameItems, ITEM_HEAD_BYTES};
use crate::error::Error;
use crate::media::geometry::Geometry;
use crate::media::io::Io;
use crate::media::wire::{Reader, Short, Writer};
use tapetum_drive::LocalMemory;
use tapetum_kernels::checksum::{Salt, checksum};

const MAGIC: u32 = u32::from_le_bytes(*b"TMAN");
pub const HEADER_BYTES: usize = 40;
/// A frame of a snapshot ends with the piece that fills so much: a frame is whole sectors.
const SNAPSHOT_FRAME_BYTES: usize = 16 << 10;
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
    /// Pieces of clients' states.
    Snapshot = 1,
    SnapshotEnd = 2,
    /// Changes of clients' states.
    Edit = 3,
}

const KINDS: [Kind; 3] = [Kind::Snapshot, Kind::SnapshotEnd, Kind::Edit];

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
}

struct Frame {
    epoch: u64,
    sequence: u64,
    kind: Kind,
    payload: Vec<u8>,
    /// Bytes on flash.
    length: u64,
}

impl Manifest {
    /// Writes the first snapshot of an empty store.
    pub async fn create(
        io: &Io,
        geometry: &Geometry,
        store_id: u64,
        clients: &impl ManifestClients,
    ) -> Result<(), Error> {
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
            failed: false,
        };
        manifest.snapshot(clients).await
    }

    pub fn summary(&self) -> Summary {
        let Manifest { area, epoch, sequence, position, .. } = *self;
        Summary { area, epoch, sequence, position }
    }

    /// Makes durable what was written to the drive without a frame.
    pub async fn flush(&self) -> Result<(), Error> {
        self.io.flush().await
    }

    /// Makes edits durable, all of them or none. `clients` are as they were before.
    pub async fn append(&mut self, clients: &impl ManifestClients, edits: &FrameItems) -> Result<(), Error> {
        if self.failed {
            return Err(Error::Io("a write of the manifest failed before".into()));
        }
        self.failed = true;
        let end = self.position + self.frame_bytes(edits.payload().len());
        if end > list_end_max(&self.geometry, self.snapshot_end) {
            self.snapshot(clients).await?;
        }
        self.write_frame(Kind::Edit, edits.payload()).await?;
        self.failed = false;
        Ok(())
    }

    /// The same of edits that the store can do without. `false` when there is no room for them behind a snapshot.
    pub async fn append_if_room(&mut self, clients: &impl ManifestClients, edits: &FrameItems) -> Result<bool, Error> {
        let snapshot = snapshot_bytes_max(&self.geometry, clients);
        if self.frame_bytes(edits.payload().len()) + snapshot > self.geometry.manifest_bytes {
            return Ok(false);
        }
        self.append(clients, edits).await?;
        Ok(true)
    }

    /// Writes the whole state to the other area and goes on there.
    async fn snapshot(&mut self, clients: &impl ManifestClients) -> Result<(), Error> {
        self.area ^= 1;
        self.epoch_last += 1;
        self.epoch = self.epoch_last;
        self.sequence = 0;
        self.position = 0;
        let (mut items, mut count, mut frames) = (FrameItems::default(), 0u32, Vec::new());
        for client in clients.each() {
            for piece in client.snapshot() {
                items.put(client.id(), |writer| writer.bytes.extend_from_slice(&piece));
                count += 1;
                if items.payload().len() >= SNAPSHOT_FRAME_BYTES {
                    self.encode(Kind::Snapshot, std::mem::take(&mut items).payload(), &mut frames)?;
                }
                if frames.len() + 2 * SNAPSHOT_FRAME_BYTES > CHUNK_BYTES {
                    self.write(&std::mem::take(&mut frames)).await?;
                }
            }
        }
        if !items.payload().is_empty() {
            self.encode(Kind::Snapshot, items.payload(), &mut frames)?;
        }
        if !frames.is_empty() {
            self.write(&frames).await?;
        }
        self.write_frame(Kind::SnapshotEnd, &count.to_le_bytes()).await?;
        self.snapshot_end = self.position;
        Ok(())
    }

    fn frame_bytes(&self, payload: usize) -> u64 {
        ((HEADER_BYTES + payload) as u64).next_multiple_of(u64::from(self.geometry.sector_bytes))
    }

    async fn write_frame(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Error> {
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
    pub async fn recover<C: ManifestClients>(
        io: &Io,
        local: &LocalMemory,
        geometry: &Geometry,
        store_id: u64,
    ) -> Result<Recovered<C>, Error> {
        let mut reader =
            AreaReader { io: io.clone(), local: local.clone(), geometry: *geometry, store_id, window: None };
        let mut best: Option<Recovered<C>> = None;
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

/// What a snapshot takes of an area at most.
pub fn snapshot_bytes_max(geometry: &Geometry, clients: &impl ManifestClients) -> u64 {
    frames_bytes_max(geometry, clients.snapshot_bytes_max())
}

/// What a snapshot takes whose pieces have so many bytes.
pub fn frames_bytes_max(geometry: &Geometry, pieces_bytes: u64) -> u64 {
    // Each client's last piece may be short, and so may the last frame.
    let frames = pieces_bytes / SNAPSHOT_FRAME_BYTES as u64 + 4;
    pieces_bytes + frames * ((HEADER_BYTES + 2 * ITEM_HEAD_BYTES) as u64 + u64::from(geometry.sector_bytes))
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
pub mod tests;
