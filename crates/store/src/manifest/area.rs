//! Reads an area of the manifest: frame after frame up to the first that does not hold, and what is behind that, which must not.
//!
//! One task; the window over the area is its own.

use super::client::ManifestClients;
use super::replay::{Replay, each_item};
use super::{
    CHUNK_BYTES, Frame, HEADER_BYTES, Kind, Manifest, PIECE_BYTES, frame_checksum, list_end_max, parse_header,
    snapshot_bytes_max,
};
use crate::error::Error;
use crate::media::flight::Flying;
use crate::media::geometry::Geometry;
use crate::media::io::Io;
use std::ops::Range;
use tapetum_drive::{LocalBuffer, LocalMemory, Purpose};

/// What the manifest says, and where it goes on.
pub struct Recovered<C> {
    pub manifest: Manifest,
    pub clients: C,
}

pub struct AreaReader {
    pub io: Io,
    pub local: LocalMemory,
    pub geometry: Geometry,
    pub store_id: u64,
    /// Where on flash what was read last lies.
    pub window: Option<(u64, LocalBuffer)>,
}

impl AreaReader {
    /// The epoch of an area's first frame, if that is valid.
    pub async fn epoch_of(&mut self, area: usize) -> Result<Option<u64>, Error> {
        let first = self.frame(area, 0, |_, sequence, kind| sequence == 0 && kind != Kind::Edit).await?;
        Ok(first.map(|frame| frame.epoch))
    }

    /// So many bytes of flash, of which no more than the area's end is read.
    async fn bytes(&mut self, flash: u64, length: usize, area_end: u64) -> Result<&[u8], Error> {
        let end = flash + length as u64;
        let has = |window: &(u64, LocalBuffer)| window.0 <= flash && end <= window.0 + window.1.len() as u64;
        if !self.window.as_ref().is_some_and(has) {
            self.window = None;
            let bytes = length.max(CHUNK_BYTES).min((area_end - flash) as usize);
            let mut buffer = self.io.allocate(bytes).await?;
            self.io.read(flash, &mut buffer, 0, bytes).await?;
            self.window = Some((flash, buffer));
        }
        let Some((start, buffer)) = &self.window else { unreachable!("it was just read") };
        let at = (flash - start) as usize;
        Ok(self.io.look(buffer, at..at + length))
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
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let piece = PIECE_BYTES.min(length - bytes.len());
            bytes.extend_from_slice(self.bytes(flash + bytes.len() as u64, piece, area_end).await?);
        }
        bytes.truncate(HEADER_BYTES + payload);
        let crc = frame_checksum(store_id, flash, epoch, &bytes[..HEADER_BYTES], &bytes[HEADER_BYTES..]);
        if bytes[4..8] != crc.to_le_bytes() {
            return Ok(None);
        }
        bytes.drain(..HEADER_BYTES);
        Ok(Some(Frame { epoch, sequence, kind, payload: bytes, length: length as u64 }))
    }

    /// `None` when the area's snapshot is not whole: its writing was cut short, and the other area holds. An error if frames
    /// follow that cannot be reached.
    pub async fn read_area<C: ManifestClients>(
        &mut self,
        area: usize,
        epoch: u64,
    ) -> Result<Option<Recovered<C>>, Error> {
        let found = self.read_beginning(area, epoch).await?;
        if let Some(Recovered { manifest, .. }) = &found {
            let behind = manifest.position..list_end_max(&self.geometry, manifest.snapshot_end);
            self.refuse_gap(area, epoch, manifest.sequence, behind).await?;
        }
        Ok(found)
    }

    /// What an area says up to its first frame that does not hold.
    pub async fn read_beginning<C: ManifestClients>(
        &mut self,
        area: usize,
        epoch: u64,
    ) -> Result<Option<Recovered<C>>, Error> {
        let mut state = Replay::default();
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
        let manifest = Manifest {
            // From here on it is written, as what the store does brings it.
            io: self.io.of(Purpose::Other),
            geometry: self.geometry,
            store_id: self.store_id,
            area,
            epoch,
            epoch_last: epoch,
            sequence,
            position,
            snapshot_end,
            failed: false,
        };
        Ok(Some(Recovered { manifest, clients: state.clients }))
    }

    /// A later frame behind the end of the list: the list was longer, and damage cut it.
    async fn refuse_gap(&mut self, area: usize, epoch: u64, sequence: u64, behind: Range<u64>) -> Result<(), Error> {
        let end = behind.start;
        let later = self.find(area, behind, |found, number, _| found == epoch && number > sequence).await?;
        later.map_or(Ok(()), |(_, Frame { sequence: number, .. })| {
            Err(Error::Corrupt(format!(
                "manifest area {area} breaks off at byte {end} (frame {sequence}) although frame {number} follows"
            )))
        })
    }

    /// The highest epoch that either area has begun. The other one may have frames of a newer snapshot that was cut short, whose
    /// beginning need not be valid any more. A frame that only a whole snapshot has before it is an error: that area is the newer one,
    /// and damage hides its beginning. Its snapshot is of what was recovered.
    pub async fn epoch_last<C: ManifestClients>(&mut self, recovered: &Recovered<C>) -> Result<u64, Error> {
        let (area, epoch) = (recovered.manifest.area ^ 1, recovered.manifest.epoch);
        let ends = |kind| kind != Kind::Snapshot;
        let snapshot_end_max = snapshot_bytes_max(&self.geometry, &recovered.clients);
        let mut list = 0..list_end_max(&self.geometry, snapshot_end_max);
        let mut last = epoch;
        loop {
            let is_newer = |found: u64, _, kind| found > last || found > epoch && ends(kind);
            let Some((position, newer)) = self.find(area, list.clone(), is_newer).await? else { return Ok(last) };
            if ends(newer.kind) {
                return Err(Error::Corrupt(format!(
                    "manifest area {area} is newer than the other, and damaged before its frame {}",
                    newer.sequence
                )));
            }
            last = newer.epoch;
            list.start = position + newer.length;
        }
    }

    /// Takes from the frames of an area that hold, wherever they are, what must not come twice.
    pub async fn survey<C: ManifestClients>(&mut self, area: usize, known: &mut Recovered<C>) -> Result<(), Error> {
        let mut list = 0..self.geometry.manifest_bytes;
        let newest = known.manifest.epoch_last;
        let is_wanted = |epoch: u64, _, kind| epoch > newest || kind == Kind::Edit;
        while let Some((position, frame)) = self.find(area, list.clone(), is_wanted).await? {
            list.start = position + frame.length;
            known.manifest.epoch_last = known.manifest.epoch_last.max(frame.epoch);
            if frame.kind == Kind::Edit {
                each_item(&mut known.clients, &frame, |client, edit| {
                    client.glean(edit);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// The first valid frame that begins there in an area and is wanted, and where it lies.
    async fn find(
        &mut self,
        area: usize,
        list: Range<u64>,
        wanted: impl Fn(u64, u64, Kind) -> bool,
    ) -> Result<Option<(u64, Frame)>, Error> {
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
            let buffer = buffer.ok_or_else(|| {
                Error::Options("the budget of memory is too small to open the store: raise it".into())
            })?;
            let bytes = io.look(&buffer, 0..chunk_bytes as usize);
            for at in (0..chunk_bytes).step_by(sector as usize) {
                let at_area = position.min(last) + at;
                let Some((epoch, number, kind, _)) = parse_header(&bytes[at as usize..]) else { continue };
                if list.contains(&at_area)
                    && wanted(epoch, number, kind)
                    && let Some(frame) = self.frame(area, at_area, &wanted).await?
                {
                    return Ok(Some((at_area, frame)));
                }
            }
            flying.spare.push(buffer);
        }
    }
}
