//! Reads both zones of the log through local memory into the arenas of the write buffers, and rewrites the end of the log.

use crate::error::Error;
use crate::installer::Clients;
use crate::keyspace::KeyspaceId;
use crate::keyspace::deletion_mark::{DeletionMarks, note_deletion};
use crate::keyspace::hasher::KeyHasher;
use crate::keyspace_kind::KeyspaceKind;
use crate::log::Place;
use crate::log::replay::{Chain, ZoneReader};
use crate::media::geometry::{BUFFERS, Geometry};
use crate::media::io::Io;
use crate::media::superblock::Superblock;
use crate::media::transfer::Transfer;
use std::collections::{BTreeMap, VecDeque};
use tapetum_drive::HostArena;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Codec, Header, Kind};

/// Commands in flight on a log zone, and bytes of each: together half of the smallest local memory.
const ZONE_COMMANDS: usize = 4;
const ZONE_COMMAND_BYTES: usize = 512 << 10;

/// The state that reading the log gave.
pub struct Replayed {
    /// All pages of the arenas are present: recovery has written them.
    pub arenas: [HostArena; BUFFERS as usize],
    /// Places of the records of live keyspaces, in order of writing, by buffer. The keys stay in the arenas, as there may be millions.
    pub records: BTreeMap<u64, Vec<u32>>,
    /// Records whose values lie in extents of their own, with their references; including overwritten ones.
    pub large: Vec<(HashKey, Place, Vec<u8>)>,
    /// The buffer that takes the next write, and the offset there.
    pub active: u64,
    pub position: usize,
    pub chain: Chain,
    /// The crc of the last group before the active buffer.
    pub crc_sealed: u32,
    /// The deletion marks of keyspaces.
    pub deletions: DeletionMarks,
    /// The deletion marks from before the active buffer.
    pub deletions_sealed: DeletionMarks,
}

impl Replayed {
    /// The oldest buffer that is in no segment.
    pub fn oldest(&self) -> u64 {
        self.records.keys().next().copied().unwrap_or(self.active)
    }

    /// The last stamp known to be durable, of a record or of a deletion in the manifest.
    pub fn stamp_durable(&self) -> u64 {
        self.deletions.values().map(|mark| mark.watermark).fold(self.chain.stamp_last, u64::max)
    }
}

pub async fn replay_log(
    io: &Io,
    superblock: &Superblock,
    hasher: &KeyHasher,
    clients: &Clients,
) -> Result<Replayed, Error> {
    let geometry = &superblock.geometry;
    let Clients { marks, keyspaces, .. } = clients;
    let mut replayed = Replayed {
        arenas: io
            .drive()
            .host_arenas(geometry.segment_bytes as usize)
            .map_err(|error| Error::Io(format!("no memory for the write buffers: {error}")))?,
        records: BTreeMap::new(),
        large: Vec::new(),
        active: marks.trim.buffer_next,
        position: 0,
        chain: Chain::new(marks.trim.log_crc, marks.trim.stamp_max),
        crc_sealed: marks.trim.log_crc,
        deletions: marks.deletions.clone(),
        deletions_sealed: marks.deletions.clone(),
    };
    let is_hashed = |header: &Header| {
        let keyspace = keyspaces.get(KeyspaceId::of(header));
        keyspace.is_some_and(|keyspace| keyspace.kind == KeyspaceKind::Hashed)
    };
    let reader = ZoneReader { geometry, store_id: superblock.store_id };
    let first = marks.trim.buffer_next;
    for buffer in first..first + BUFFERS {
        let zone = (buffer % BUFFERS) as usize;
        let image = replayed.arenas[zone].bytes_mut(0, geometry.segment_bytes as usize);
        read_zone(io, geometry, buffer, image).await?;
        let Replayed { ref arenas, ref mut records, ref mut large, ref mut deletions, ref mut chain, .. } = replayed;
        let mut found = Vec::new();
        let crc_before = chain.previous_crc;
        let deletions_before = deletions.clone();
        let image = arenas[zone].bytes(0..arenas[zone].len());
        let end = reader.replay(image, buffer, chain, |place, record| match record.header.kind {
            // A record of a dropped keyspace.
            _ if !keyspaces.is_live(KeyspaceId::of(&record.header)) => {}
            Kind::Control => note_deletion(deletions, &record),
            _ => {
                if record.header.codec == Codec::OutOfLine && is_hashed(&record.header) {
                    let hash = hasher.hash_of(&record.header, record.key);
                    large.push((hash, Place { buffer, place }, record.stored.to_vec()));
                }
                found.push(place);
            }
        })?;
        if end.groups > 0 {
            records.insert(buffer, found);
            (replayed.active, replayed.position) = (buffer, end.position);
            replayed.crc_sealed = crc_before;
            replayed.deletions_sealed = deletions_before;
        }
        reader.refuse_gap(image, buffer, end.position, chain)?;
    }
    Ok(replayed)
}

/// Rewrites, unchanged, the groups that may only be in the drive's cache. A failed flush may have left them there, and no later flush saves them.
/// Everything shown from now on must survive a power cut. The frame "opened" flushes the rewritten groups.
pub async fn write_unsure_groups(io: &Io, geometry: &Geometry, replayed: &mut Replayed) -> Result<(), Error> {
    let unsure = &replayed.chain.unsure;
    let (Some(first), Some(last)) = (unsure.front(), unsure.back()) else { return Ok(()) };
    // These groups are the end of the log: all groups of a buffer from the first of them on.
    for buffer in first.buffer..=last.buffer {
        let of_buffer = || unsure.iter().filter(|group| group.buffer == buffer);
        let (Some(from), Some(to)) = (of_buffer().next(), of_buffer().next_back()) else { continue };
        let arena = &replayed.arenas[(buffer % BUFFERS) as usize];
        let mut staging = io.allocate(ZONE_COMMAND_BYTES.min(arena.len())).await?;
        for at in (from.bytes.start..to.bytes.end).step_by(ZONE_COMMAND_BYTES) {
            let piece = arena.bytes(at..(at + ZONE_COMMAND_BYTES).min(to.bytes.end));
            io.fill(&mut staging, 0..piece.len()).copy_from_slice(piece);
            io.write(geometry.zone_offset(buffer) + at as u64, &mut staging, piece.len()).await?;
        }
    }
    Ok(())
}

/// Reads the zone of a buffer into host memory of the same length.
pub async fn read_zone(io: &Io, geometry: &Geometry, buffer: u64, image: &mut [u8]) -> Result<(), Error> {
    let zone = geometry.zone_offset(buffer);
    let mut unread = (0..image.len()).step_by(ZONE_COMMAND_BYTES);
    let mut reading: VecDeque<(usize, usize, Transfer)> = VecDeque::new();
    let mut free = Vec::new();
    loop {
        while reading.len() < ZONE_COMMANDS
            && let Some(at) = unread.next()
        {
            let length = ZONE_COMMAND_BYTES.min(image.len() - at);
            let staging = match free.pop() {
                Some(staging) => staging,
                None => io.allocate(length).await?,
            };
            let mut transfer = Transfer::new(io, staging);
            transfer.start_read(zone + at as u64, 0, length);
            reading.push_back((at, length, transfer));
        }
        let Some((at, length, transfer)) = reading.pop_front() else { return Ok(()) };
        let (staging, ended) = transfer.end("read of the log").await;
        ended?;
        image[at..at + length].copy_from_slice(io.look(&staging, 0..length));
        free.push(staging);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::io::run;
    use std::sync::Arc;
    use tapetum_drive::{Drive, Env, LocalMemory, MemoryFlash, Purpose};

    #[test]
    fn a_zone_crosses_to_the_host_once_and_takes_little_of_local_memory() {
        let geometry = Geometry::new(64 << 20, 4 << 20, 2, 512).unwrap();
        let local = LocalMemory::new(ZONE_COMMANDS * ZONE_COMMAND_BYTES).unwrap();
        let drive = Drive::new(Arc::new(MemoryFlash::new(64 << 20)), local, Vec::new(), Env::simulated(1).0);
        let io = Io::new(drive.queue_pair(16).unwrap());
        let written: Vec<u8> = (0..geometry.segment_bytes).map(|at| (at / 512 * 7) as u8).collect();
        for (number, piece) in written.chunks(ZONE_COMMAND_BYTES).enumerate() {
            let flash = geometry.zone_offset(1) + (number * ZONE_COMMAND_BYTES) as u64;
            let mut buffer = drive.local().allocate(piece.len()).unwrap();
            io.fill(&mut buffer, 0..piece.len()).copy_from_slice(piece);
            run(&io, io.write(flash, &mut buffer, piece.len()), || false).unwrap().unwrap();
        }
        let mut image = vec![0; written.len()];
        let recovering = io.of(Purpose::Recover);
        run(&io, read_zone(&recovering, &geometry, 1, &mut image), || false).unwrap().unwrap();
        assert!(image == written);
        let moved = drive.counters().purpose(Purpose::Recover);
        let zone_bytes = geometry.segment_bytes;
        assert_eq!((moved.flash_to_local, moved.local_to_host, moved.host_to_local), (zone_bytes, zone_bytes, 0));
        assert_eq!(drive.local().bytes_used(), 0);
    }
}
