//! Reads the manifest: frame after frame, from either area, up to the first that is valid in neither. Behind that there must be no later frame.
//!
//! One task, which owns the windows over the areas.

use super::client::ManifestClients;
use super::replay::{Replay, each_item};
use super::{
    AREAS, CHUNK_BYTES, Frame, HEADER_BYTES, Kind, Lacking, Manifest, PIECE_BYTES, frame_checksum, list_end_max,
    parse_header, snapshot_bytes_max,
};
use crate::error::Error;
use crate::media::flight::Flying;
use crate::media::geometry::Geometry;
use crate::media::io::Io;
use std::collections::BTreeSet;
use std::ops::Range;
use tapetum_drive::{LocalBuffer, LocalMemory, Purpose};

/// The recovered manifest and the states of its clients.
pub struct Recovered<C> {
    pub manifest: Manifest,
    pub clients: C,
}

pub struct AreaReader {
    io: Io,
    local: LocalMemory,
    geometry: Geometry,
    store_id: u64,
    /// For each area, the last bytes read and their flash address.
    windows: [Option<(u64, LocalBuffer)>; AREAS],
}

impl AreaReader {
    pub fn new(io: &Io, local: &LocalMemory, geometry: &Geometry, store_id: u64) -> AreaReader {
        AreaReader { io: io.clone(), local: local.clone(), geometry: *geometry, store_id, windows: [None, None] }
    }

    /// The epochs of the areas' valid first frames.
    pub async fn epochs(&mut self) -> Result<BTreeSet<u64>, Error> {
        let mut epochs = BTreeSet::new();
        for area in 0..AREAS {
            let first = self.frame(area, 0, |_, sequence, kind| sequence == 0 && kind != Kind::Edit).await?;
            epochs.extend(first.map(|frame| frame.epoch));
        }
        Ok(epochs)
    }

    /// Reads `length` bytes of flash. Reads ahead, but not beyond the end of the area.
    async fn bytes(&mut self, area: usize, flash: u64, length: usize) -> Result<&[u8], Error> {
        let area_end = self.geometry.manifest_offset(area + 1);
        let window = &mut self.windows[area];
        let end = flash + length as u64;
        let has = |window: &(u64, LocalBuffer)| window.0 <= flash && end <= window.0 + window.1.len() as u64;
        if !window.as_ref().is_some_and(has) {
            *window = None;
            let bytes = length.max(CHUNK_BYTES).min((area_end - flash) as usize);
            let mut buffer = self.io.allocate(bytes).await?;
            self.io.read(flash, &mut buffer, 0, bytes).await?;
            *window = Some((flash, buffer));
        }
        let Some((start, buffer)) = window else { unreachable!("it was just read") };
        let at = (flash - *start) as usize;
        Ok(self.io.look(buffer, at..at + length))
    }

    /// The frame at `position` of an area, if it is valid and its epoch, sequence and kind are wanted.
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
        let Some((epoch, sequence, kind, payload)) = parse_header(self.bytes(area, flash, sector).await?) else {
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
            bytes.extend_from_slice(self.bytes(area, flash + bytes.len() as u64, piece).await?);
        }
        bytes.truncate(HEADER_BYTES + payload);
        let crc = frame_checksum(store_id, flash, epoch, &bytes[..HEADER_BYTES], &bytes[HEADER_BYTES..]);
        if bytes[4..8] != crc.to_le_bytes() {
            return Ok(None);
        }
        bytes.drain(..HEADER_BYTES);
        Ok(Some(Frame { epoch, sequence, kind, payload: bytes, length: length as u64 }))
    }

    /// Reads a list. `None` if its snapshot is not whole: writing it was cut short, and the list before it counts. An error if unreachable frames
    /// follow.
    pub async fn read_list<C: ManifestClients>(
        &mut self,
        epoch: u64,
        empty: &impl Fn() -> C,
    ) -> Result<Option<Recovered<C>>, Error> {
        let found = self.read_beginning(epoch, empty).await?;
        if let Some(Recovered { manifest, .. }) = &found {
            self.refuse_gap(manifest).await?;
        }
        Ok(found)
    }

    /// Reads a list up to its first frame that is valid in neither area.
    pub async fn read_beginning<C: ManifestClients>(
        &mut self,
        epoch: u64,
        empty: &impl Fn() -> C,
    ) -> Result<Option<Recovered<C>>, Error> {
        let mut state = Replay::of(empty());
        let (mut position, mut sequence, mut snapshot_end) = (0, 0, 0);
        let mut lacking = [Lacking::default(); AREAS];
        loop {
            let mut frame = None;
            let mut lacks = [false; AREAS];
            for (area, lacks) in lacks.iter_mut().enumerate() {
                let found = self.frame(area, position, |of, number, _| of == epoch && number == sequence).await?;
                *lacks = found.is_none();
                frame = frame.or(found);
            }
            let Some(frame) = frame else { break };
            for (area, lacks) in lacking.iter_mut().zip(lacks) {
                // A write of several frames may be cut anywhere. The end of a snapshot is written when everything before it is durable.
                area.is_damaged |= !lacks && area.frames > 0 && frame.kind != Kind::Snapshot;
                area.frames += u64::from(lacks);
            }
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
            // Later writes of the manifest are counted for the store's own work.
            io: self.io.of(Purpose::Other),
            geometry: self.geometry,
            store_id: self.store_id,
            epoch,
            epoch_last: epoch,
            sequence,
            position,
            snapshot_end,
            lacking,
            failed: false,
        };
        Ok(Some(Recovered { manifest, clients: state.clients }))
    }

    /// An error if a later frame of the list lies behind its end, in either area: the list was longer, and damage cut it.
    async fn refuse_gap(&mut self, list: &Manifest) -> Result<(), Error> {
        let Manifest { epoch, sequence, position, snapshot_end, .. } = *list;
        let behind = position..list_end_max(&self.geometry, snapshot_end);
        for area in 0..AREAS {
            let is_later = |found, number, _| found == epoch && number > sequence;
            if let Some((_, later)) = self.find(area, behind.clone(), is_later).await? {
                return Err(Error::Corrupt(format!(
                    "the manifest breaks off at byte {position} of both its areas (frame {sequence}) although frame {} follows",
                    later.sequence
                )));
            }
        }
        Ok(())
    }

    /// The highest epoch that either area has begun. An area may have frames of a newer snapshot that was cut short and whose beginning is no longer
    /// valid. A newer frame that follows a whole snapshot is an error: that list is the newer one, and damage hides its beginning. Its snapshot
    /// holds the state that was recovered.
    pub async fn epoch_last<C: ManifestClients>(&mut self, recovered: &Recovered<C>) -> Result<u64, Error> {
        let epoch = recovered.manifest.epoch;
        let ends = |kind| kind != Kind::Snapshot;
        let snapshot_end_max = snapshot_bytes_max(&self.geometry, &recovered.clients);
        let mut last = epoch;
        for area in 0..AREAS {
            let mut list = 0..list_end_max(&self.geometry, snapshot_end_max);
            loop {
                let is_newer = |found: u64, _, kind| found > last || found > epoch && ends(kind);
                let Some((position, newer)) = self.find(area, list.clone(), is_newer).await? else { break };
                if ends(newer.kind) {
                    return Err(Error::Corrupt(format!(
                        "area {area} of the manifest has a newer list, which is damaged before its frame {}",
                        newer.sequence
                    )));
                }
                last = newer.epoch;
                list.start = position + newer.length;
            }
        }
        Ok(last)
    }

    /// Collects from all valid frames of an area, wherever they are, the numbers that must not be given twice.
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

    /// The first wanted valid frame of an area within `list`, and its position.
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
        // The last chunk ends with the area, and overlaps the one before.
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
