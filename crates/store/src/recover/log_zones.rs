//! Both zones of the log, read straight into the arenas of the write buffers, and their end written once more.

use super::no_memory;
use crate::error::Error;
use crate::hashed::buffer::Place;
use crate::log::replay::{Chain, ZoneReader};
use crate::manifest::Recovered;
use crate::media::geometry::{BUFFERS, Geometry};
use crate::media::io::Io;
use crate::media::superblock::Superblock;
use crate::media::transfer::Transfer;
use crate::opening::options::StoreOptions;
use std::collections::BTreeMap;
use std::ops::Range;
use tapetum_drive::{Drive, LocalBuffer};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Codec, Kind};

/// Commands on a log zone on their way at once, and bytes of each.
const ZONE_COMMANDS: usize = 8;
const ZONE_COMMAND_BYTES: usize = 1 << 20;

/// What the log gave back.
pub struct Replayed {
    pub arenas: [LocalBuffer; BUFFERS as usize],
    /// Places of items and deletions, in order of writing, by buffer. Their keys are in the arenas: there may be millions.
    pub records: BTreeMap<u64, Vec<u32>>,
    /// Records whose values lie in extents of their own, and their references; also those that were written over.
    pub large: Vec<(HashKey, Place, Vec<u8>)>,
    /// The buffer that takes the next write, and from where.
    pub active: u64,
    pub position: usize,
    pub chain: Chain,
    /// The crc of the last group before the active buffer.
    pub crc_sealed: u32,
    pub watermark: u64,
    pub watermark_at: u32,
    /// Both before the active buffer.
    pub watermark_sealed: (u64, u32),
}

pub async fn replay_log(
    drive: &Drive,
    io: &Io,
    superblock: &Superblock,
    recovered: &Recovered,
    options: &StoreOptions,
) -> Result<Replayed, Error> {
    let geometry = &superblock.geometry;
    let marks = recovered.catalog.marks;
    let arena =
        || drive.local().allocate(geometry.segment_bytes as usize).ok_or_else(|| no_memory("the write buffers"));
    let mut replayed = Replayed {
        arenas: [arena()?, arena()?],
        records: BTreeMap::new(),
        large: Vec::new(),
        active: recovered.catalog.buffer_next,
        position: 0,
        // A watermark that an install made durable ahead of the log counts: groups written since say so.
        chain: Chain::new(marks.log_crc, marks.stamp_max.max(marks.watermark)),
        crc_sealed: marks.log_crc,
        watermark: marks.watermark,
        watermark_at: marks.watermark_at,
        watermark_sealed: (marks.watermark, marks.watermark_at),
    };
    let reader = ZoneReader { geometry, store_id: superblock.store_id, planted: options.planted };
    let first = recovered.catalog.buffer_next;
    for buffer in first..first + BUFFERS {
        let zone = (buffer % BUFFERS) as usize;
        read_zone(io, geometry, buffer, &mut replayed.arenas[zone]).await?;
        let Replayed {
            ref arenas,
            ref mut records,
            ref mut large,
            ref mut watermark,
            ref mut watermark_at,
            ref mut chain,
            ..
        } = replayed;
        let mut found = Vec::new();
        let crc_before = chain.previous_crc;
        let watermark_before = (*watermark, *watermark_at);
        let image = io.look(&arenas[zone], 0..arenas[zone].len());
        let end = reader.replay(image, buffer, chain, |place, record| match record.header.kind {
            // An install may have made a later watermark durable than the log has: that ended older plans.
            Kind::Control if record.header.stamp <= *watermark => {}
            Kind::Control => {
                let mut at = [0; 4];
                at[..record.stored.len().min(4)].copy_from_slice(&record.stored[..record.stored.len().min(4)]);
                *watermark_at = u32::from_le_bytes(at);
                if *watermark_at == 0 {
                    *watermark = record.header.stamp;
                }
            }
            _ => {
                if record.header.codec == Codec::OutOfLine {
                    let hash = HashKey::of(&superblock.secret, record.key);
                    large.push((hash, Place { buffer, place }, record.stored.to_vec()));
                }
                found.push(place);
            }
        })?;
        if end.groups > 0 {
            records.insert(buffer, found);
            (replayed.active, replayed.position) = (buffer, end.position);
            replayed.crc_sealed = crc_before;
            replayed.watermark_sealed = watermark_before;
        }
        reader.refuse_gap(image, buffer, end.position, chain)?;
    }
    Ok(replayed)
}

/// Writes again, as they are, the groups that may be in nothing but the drive's cache. A flush that failed may have left them
/// there, where no later one saves them; what is shown from now on must be there after a power cut. "Opened" flushes it.
pub async fn write_unsure_groups(io: &Io, geometry: &Geometry, replayed: &mut Replayed) -> Result<(), Error> {
    let unsure = &replayed.chain.unsure;
    let (Some(first), Some(last)) = (unsure.front(), unsure.back()) else { return Ok(()) };
    // They are the end of the log: all groups of a buffer from the first of them on.
    for buffer in first.buffer..=last.buffer {
        let of_buffer = || unsure.iter().filter(|group| group.buffer == buffer);
        let (Some(from), Some(to)) = (of_buffer().next(), of_buffer().next_back()) else { continue };
        let arena = &mut replayed.arenas[(buffer % BUFFERS) as usize];
        let write = |transfer: &mut Transfer, flash, at, length| transfer.start_write(flash, at, length, false);
        move_zone(io, geometry, buffer, arena, from.bytes.start..to.bytes.end, "write", write).await?;
    }
    Ok(())
}

pub async fn read_zone(io: &Io, geometry: &Geometry, buffer: u64, arena: &mut LocalBuffer) -> Result<(), Error> {
    let read = Transfer::start_read;
    move_zone(io, geometry, buffer, arena, 0..geometry.segment_bytes as usize, "read", read).await
}

/// Moves bytes of a zone between flash and its arena, by commands from flash place, place in the arena and length.
async fn move_zone(
    io: &Io,
    geometry: &Geometry,
    buffer: u64,
    arena: &mut LocalBuffer,
    bytes: Range<usize>,
    what: &str,
    start: impl Fn(&mut Transfer, u64, usize, usize),
) -> Result<(), Error> {
    let what = format!("{what} of the log");
    let mut transfer = Transfer::new(io, arena.take());
    let mut result = Ok(());
    for at in bytes.clone().step_by(ZONE_COMMAND_BYTES) {
        if transfer.commands() == ZONE_COMMANDS {
            result = transfer.end_one(&what).await;
        }
        if result.is_err() {
            break;
        }
        start(&mut transfer, geometry.zone_offset(buffer) + at as u64, at, ZONE_COMMAND_BYTES.min(bytes.end - at));
    }
    let ended;
    (*arena, ended) = transfer.end(&what).await;
    result.and(ended)
}
