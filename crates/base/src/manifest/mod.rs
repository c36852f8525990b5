//! The manifest: a log of frames, kept twice, and started again with a snapshot when it is long.
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
//! The payload is a list of clients' items ([`items`]). The manifest knows only to which client each belongs ([`client`]). The payload of a
//! snapshot's end is the snapshot's number of items, u32. A frame counts whole or not at all, so the items of several clients in one frame take
//! effect together.
//!
//! The crc covers the rest of the frame, salted with its place and the epoch. A list's frames have one epoch and count their sequence from 0. The
//! list with the highest epoch and a whole snapshot is the manifest. Some state of a client is valid only in the last frame of the manifest
//! ([`client::ManifestClient::supersede`]).
//!
//! 1. Both areas have the same list, each frame in the same place of its area. A frame counts if one of them has it whole.
//! 2. An edit is written to both areas at once, and is durable in both before the next one is written. A snapshot is durable in one area before its
//!    copy overwrites the list of the other. So one area has a whole list at any time.
//! 3. So if both areas lack a frame before a valid one, that is damage, not a crash, unless the snapshot has no end. After a frame whose write
//!    failed none is written.
//! 4. If an area lacks frames that the other one has, the next edit starts the list again.
//!
//! A list grows to [`LIST_SNAPSHOTS`] times its snapshot, however large the area: this bounds the bytes that opening reads.
//!
//! Threads: one, the holder of the [`crate::installer::Installer`].

mod area;
pub mod base_marks;
pub mod client;
pub mod engine_roots;
pub mod items;
mod keyspaces;
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
use std::pin::Pin;
use std::task::{Context, Poll};
use tapetum_drive::{LocalMemory, fail_point};
use tapetum_kernels::checksum::{Salt, checksum};

const MAGIC: u32 = u32::from_le_bytes(*b"TMAN");
pub const HEADER_BYTES: usize = 40;
/// A frame of a snapshot ends with the piece that reaches this size, as a frame takes whole sectors.
const SNAPSHOT_FRAME_BYTES: usize = 16 << 10;
/// Bytes of one read or write, if that has more than one frame.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of one transfer. A frame may be longer than the largest buffer of local memory.
const PIECE_BYTES: usize = 256 << 10;
const LIST_SNAPSHOTS: u64 = 4;
/// A list never starts again below this size.
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
const AREAS: usize = 2;

/// The position in the manifest at which the next frame is written.
pub struct Manifest {
    io: Io,
    geometry: Geometry,
    store_id: u64,
    epoch: u64,
    /// The highest epoch that either area has begun, whole or not. Frames of an incomplete snapshot must never mix with others.
    epoch_last: u64,
    sequence: u64,
    /// Offset in the area.
    position: u64,
    /// The end of the list's snapshot in the area.
    snapshot_end: u64,
    /// The missing frames of each area.
    lacking: [Lacking; AREAS],
    /// The write of a frame was begun and did not succeed for certain: the bytes behind the last frame are undefined.
    failed: bool,
}

/// The frames of the list that an area lacks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Lacking {
    pub frames: u64,
    /// The area has a frame behind one that it lacks. A crash cuts only the last frames off, so this is damage, except within a snapshot that has no
    /// end there.
    pub is_damaged: bool,
}

/// The state of the manifest, for tools.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    pub epoch: u64,
    pub sequence: u64,
    pub position: u64,
    pub snapshot_end: u64,
    pub lacking: [Lacking; AREAS],
}

impl Summary {
    /// Names each area that lost frames to damage. The other area has them.
    pub fn copies_damaged(&self) -> impl Iterator<Item = String> {
        let damaged = (0..).zip(self.lacking).filter(|(_, lacking)| lacking.is_damaged);
        damaged
            .map(|(area, lacking): (u32, Lacking)| format!("{} frames of copy {area} of the manifest", lacking.frames))
    }
}

/// The place of the next frame.
struct FramePlace {
    area: usize,
    sequence: u64,
    position: u64,
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
            epoch: 0,
            epoch_last: 0,
            sequence: 0,
            position: 0,
            snapshot_end: 0,
            lacking: Default::default(),
            failed: false,
        };
        manifest.snapshot(clients).await.map(drop)
    }

    pub fn summary(&self) -> Summary {
        let Manifest { epoch, sequence, position, snapshot_end, lacking, .. } = *self;
        Summary { epoch, sequence, position, snapshot_end, lacking }
    }

    /// Makes durable what was written to the drive outside of frames.
    pub async fn flush(&self) -> Result<(), Error> {
        self.io.flush().await
    }

    /// Makes edits durable, all of them or none. `clients` have the state before the edits.
    pub async fn append(&mut self, clients: &impl ManifestClients, edits: &FrameItems) -> Result<(), Error> {
        if self.failed {
            return Err(Error::Io("a write of the manifest failed before".into()));
        }
        self.failed = true;
        let end = self.position + self.frame_bytes(edits.payload().len());
        let lacks = self.lacking != [Lacking::default(); AREAS];
        if lacks || end > list_end_max(&self.geometry, self.snapshot_end) {
            self.snapshot(clients).await?;
        }
        self.write_edit(edits.payload()).await?;
        self.failed = false;
        Ok(())
    }

    /// As [`Manifest::append`], for edits that the store can do without. `false`: there is no room for them behind a snapshot.
    pub async fn append_if_room(&mut self, clients: &impl ManifestClients, edits: &FrameItems) -> Result<bool, Error> {
        let snapshot = snapshot_bytes_max(&self.geometry, clients);
        if self.frame_bytes(edits.payload().len()) + snapshot > self.geometry.manifest_bytes {
            return Ok(false);
        }
        self.append(clients, edits).await?;
        Ok(true)
    }

    /// Starts the list again with the whole state, first in the area that lacks more frames. Returns that area.
    async fn snapshot(&mut self, clients: &impl ManifestClients) -> Result<usize, Error> {
        self.epoch_last += 1;
        self.epoch = self.epoch_last;
        let first = usize::from(self.lacking[1].frames > self.lacking[0].frames);
        if fail_point!(ManifestOldListGone) {
            self.write(1 - first, 0, &vec![0; self.geometry.sector_bytes as usize]).await?;
        }
        for area in [first, 1 - first] {
            let end = self.write_snapshot(area, clients).await?;
            (self.sequence, self.position) = (end.sequence, end.position);
        }
        self.snapshot_end = self.position;
        self.lacking = Default::default();
        Ok(first)
    }

    /// Writes a snapshot to an area. Returns the place behind it.
    async fn write_snapshot(&self, area: usize, clients: &impl ManifestClients) -> Result<FramePlace, Error> {
        let (mut items, mut count, mut frames) = (FrameItems::default(), 0u32, Vec::new());
        let mut next = FramePlace { area, sequence: 0, position: 0 };
        let mut written = 0;
        for client in clients.each() {
            for piece in client.snapshot() {
                items.put(client.id(), |writer| writer.raw(&piece));
                count += 1;
                if items.payload().len() >= SNAPSHOT_FRAME_BYTES {
                    self.encode(&mut next, Kind::Snapshot, std::mem::take(&mut items).payload(), &mut frames)?;
                }
                if frames.len() + 2 * SNAPSHOT_FRAME_BYTES > CHUNK_BYTES {
                    self.write(area, written, &std::mem::take(&mut frames)).await?;
                    written = next.position;
                }
            }
        }
        if !items.payload().is_empty() {
            self.encode(&mut next, Kind::Snapshot, items.payload(), &mut frames)?;
        }
        if !frames.is_empty() {
            self.write(area, written, &frames).await?;
        }
        // The end is written when everything before it is durable.
        let (mut end, at) = (Vec::new(), next.position);
        self.encode(&mut next, Kind::SnapshotEnd, &count.to_le_bytes(), &mut end)?;
        self.write(area, at, &end).await?;
        Ok(next)
    }

    fn frame_bytes(&self, payload: usize) -> u64 {
        ((HEADER_BYTES + payload) as u64).next_multiple_of(u64::from(self.geometry.sector_bytes))
    }

    async fn write_edit(&mut self, payload: &[u8]) -> Result<(), Error> {
        let mut frames = [Vec::new(), Vec::new()];
        let mut end = self.position;
        for (area, frame) in frames.iter_mut().enumerate() {
            let mut next = FramePlace { area, sequence: self.sequence, position: self.position };
            self.encode(&mut next, Kind::Edit, payload, frame)?;
            end = next.position;
        }
        let [first, second] = &frames;
        both(self.write(0, self.position, first), self.write(1, self.position, second)).await?;
        (self.sequence, self.position) = (self.sequence + 1, end);
        Ok(())
    }

    /// Encodes the next frame and appends it to `frames`, which are not written yet.
    fn encode(&self, next: &mut FramePlace, kind: Kind, payload: &[u8], frames: &mut Vec<u8>) -> Result<(), Error> {
        let length = self.frame_bytes(payload.len());
        if next.position + length > self.geometry.manifest_bytes {
            return Err(Error::Options(
                "the manifest area is too small for the store: create it with a larger capacity".into(),
            ));
        }
        let mut header = Writer::default();
        header.u32(MAGIC);
        header.u32(0);
        header.u64(self.epoch);
        header.u64(next.sequence);
        header.u16(kind as u16);
        header.u16(0);
        header.u32(payload.len() as u32);
        header.u64(0);
        let flash = self.geometry.manifest_offset(next.area) + next.position;
        let crc = frame_checksum(self.store_id, flash, self.epoch, &header, payload);
        header.set_u32(4, crc);
        let padded = frames.len() + length as usize;
        frames.extend_from_slice(&header);
        frames.extend_from_slice(payload);
        frames.resize(padded, 0);
        next.sequence += 1;
        next.position += length;
        Ok(())
    }

    /// Writes frames durably, from `position` of an area on.
    async fn write(&self, area: usize, position: u64, frames: &[u8]) -> Result<(), Error> {
        let flash = self.geometry.manifest_offset(area) + position;
        let mut buffer = self.io.allocate(frames.len().min(PIECE_BYTES)).await?;
        for (number, piece) in frames.chunks(PIECE_BYTES).enumerate() {
            self.io.fill(&mut buffer, 0..piece.len()).copy_from_slice(piece);
            self.io.write_durably(flash + (number * PIECE_BYTES) as u64, &mut buffer, piece.len()).await?;
        }
        Ok(())
    }

    /// Reads both areas and finds their state. `empty` makes the state of an empty store.
    pub async fn recover<C: ManifestClients>(
        io: &Io,
        local: &LocalMemory,
        geometry: &Geometry,
        store_id: u64,
        empty: impl Fn() -> C,
    ) -> Result<Recovered<C>, Error> {
        let mut reader = AreaReader::new(io, local, geometry, store_id);
        let mut best: Option<Recovered<C>> = None;
        let mut epochs = reader.epochs().await?;
        while let (None, Some(epoch)) = (&best, epochs.pop_last()) {
            best = reader.read_list(epoch, &empty).await?;
        }
        let mut recovered =
            best.ok_or_else(|| Error::Corrupt("neither manifest area holds a whole snapshot".into()))?;
        recovered.manifest.epoch_last = reader.epoch_last(&recovered).await?;
        Ok(recovered)
    }
}

/// Runs both futures to their ends.
async fn both(
    first: impl Future<Output = Result<(), Error>>,
    second: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    let mut ends = [None, None];
    std::future::poll_fn(|context| {
        let [of_first, of_second] = &mut ends;
        poll_to_end(first.as_mut(), of_first, context);
        poll_to_end(second.as_mut(), of_second, context);
        match &mut ends {
            [Some(first), Some(second)] => {
                Poll::Ready(std::mem::replace(first, Ok(())).and(std::mem::replace(second, Ok(()))))
            }
            _ => Poll::Pending,
        }
    })
    .await
}

fn poll_to_end(
    future: Pin<&mut impl Future<Output = Result<(), Error>>>,
    end: &mut Option<Result<(), Error>>,
    context: &mut Context<'_>,
) {
    if end.is_none()
        && let Poll::Ready(done) = future.poll(context)
    {
        *end = Some(done);
    }
}

/// No frame of a list begins at or behind this byte of its area, unless it is the first one behind the snapshot.
fn list_end_max(geometry: &Geometry, snapshot_end: u64) -> u64 {
    (LIST_SNAPSHOTS * snapshot_end).max(LIST_BYTES_MIN).min(geometry.manifest_bytes)
}

/// The most bytes that a snapshot takes in an area.
pub fn snapshot_bytes_max(geometry: &Geometry, clients: &impl ManifestClients) -> u64 {
    frames_bytes_max(geometry, clients.snapshot_bytes_max())
}

/// The most bytes in an area of a snapshot whose pieces have `pieces_bytes` bytes.
pub fn frames_bytes_max(geometry: &Geometry, pieces_bytes: u64) -> u64 {
    // The last piece of each client may be short, and so may the last frame.
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
mod tests;
