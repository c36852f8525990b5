//! Creating a store, and opening one after whatever happened to it.
//!
//! ```text
//! superblock  →  manifest: segments, validity  →  log zones into the write buffers
//!             →  (first writes) fences, made anew where they are damaged; the superblock's older copy; the end of the log
//!                once more, as it is
//!             →  manifest record "opened"
//!             →  index: from a checkpoint that a clean close left, or from key tables
//! ```
//! Nothing is written before superblock, manifest and log were read and believed, and opening twice gives the same state. A gap is an
//! error that says where.

use crate::access::AccessClock;
use crate::buffer::Place;
use crate::buffer::Shard;
use crate::catalog::{Catalog, Install};
use crate::checkpoint::{self, Source};
use crate::error::Error;
use crate::extents::Extents;
use crate::geometry::{BUFFERS, Geometry, SUPERBLOCK_BYTES};
use crate::index::GlobalIndex;
use crate::index_recovery;
use crate::io::{Io, lock, succeeded};
use crate::key_reader::{KeyReader, PAGES_PER_READ};
use crate::key_tables::KeyTables;
use crate::large::{Claims, LargeEntries, LargeExtents, LargeSpace, value_bytes_max};
use crate::log::replay::{Chain, ZoneReader};
use crate::log::{Log, Start};
use crate::manifest::{Manifest, Recovered};
use crate::manifest_room::ManifestRoom;
use crate::options::StoreOptions;
use crate::pace::Pace;
use crate::planted::{Bug, Planted};
use crate::segment::local_index::LocalIndex;
use crate::segment::view::Segment;
use crate::segment::{Descriptor, LargeEntry};
use crate::shared::{Counters, Installer, Levels, Shared, Wakeup};
use crate::superblock::{Found, Superblock};
use crate::tier::Tier;
use crate::unreadable::Unreadable;
use arc_swap::ArcSwapOption;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use tapetum_drive::{Drive, Env, LocalBuffer, Operation};
use tapetum_kernels::data_page::PAGE_BYTES;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Codec, Kind};
use tapetum_kernels::reference::Reference;

/// Stamps that a restart skips, so that none is given twice even where some were given and lost: at most those of the write buffers,
/// of which no record takes less than eight bytes.
fn stamps_skipped(geometry: &Geometry) -> u64 {
    (BUFFERS * geometry.segment_bytes / 8).max(1 << 24)
}

/// Commands on a log zone on their way at once, and bytes of each.
const ZONE_COMMANDS: usize = 8;
const ZONE_COMMAND_BYTES: usize = 1 << 20;

fn no_memory(what: &str) -> Error {
    Error::Options(format!("--memory is too small for {what}: raise it"))
}

/// How long the parts of a recovery took, for the log.
struct Stopwatch {
    env: Env,
    lap_us: u64,
    laps: Vec<(&'static str, u64)>,
}

impl Stopwatch {
    fn new(env: &Env) -> Stopwatch {
        Stopwatch { env: env.clone(), lap_us: env.now_us(), laps: Vec::new() }
    }

    fn lap(&mut self, what: &'static str) {
        let now_us = self.env.now_us();
        self.laps.push((what, now_us - self.lap_us));
        self.lap_us = now_us;
    }
}

impl fmt::Display for Stopwatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum: u64 = self.laps.iter().map(|(_, us)| us).sum();
        write!(f, "{:.3} s (", sum as f64 / 1e6)?;
        for (place, (what, us)) in self.laps.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{what} {:.3}", *us as f64 / 1e6)?;
        }
        f.write_str(")")
    }
}

/// An area of a large drive is not needed whole for a long time, if ever.
const MANIFEST_ZEROED_BYTES_MAX: u64 = 64 << 20;

/// Makes an empty store on the drive. What was there is lost.
pub async fn create(drive: &Drive, io: &Io, options: &StoreOptions) -> Result<(), Error> {
    let flash = drive.flash();
    let geometry =
        Geometry::new(flash.capacity_bytes(), options.segment_bytes, options.partition_bits, flash.sector_bytes())?;
    let mut secret = [0; 16];
    drive.env().random_bytes(&mut secret);
    let (store_id, capacity_bytes) = (drive.env().random_u64(), geometry.created_bytes);
    let superblock = Superblock { store_id, generation: 1, secret, capacity_bytes, geometry };
    for area in 0..2 {
        zero(drive, io, geometry.manifest_offset(area), geometry.manifest_bytes.min(MANIFEST_ZEROED_BYTES_MAX)).await?;
    }
    zero(drive, io, geometry.zone_offset(0), BUFFERS * geometry.segment_bytes).await?;
    io.flush().await?;
    Manifest::create(io, &geometry, superblock.store_id).await?;
    superblock.write(io, &[0, 1]).await
}

/// Manifest and log are zero-written once, so that their later writes allocate nothing.
async fn zero(drive: &Drive, io: &Io, from: u64, length: u64) -> Result<(), Error> {
    let chunk = length.min(1 << 20);
    let mut buffer = drive.local().allocate(chunk as usize).ok_or_else(|| no_memory("a write"))?;
    buffer.bytes_mut().fill(0);
    let mut at = 0;
    while at < length {
        let bytes = chunk.min(length - at) as usize;
        let tag = io.start_write(from + at, &buffer, 0, bytes, false);
        succeeded(io.finish(tag).await, "write")?;
        at += bytes as u64;
    }
    Ok(())
}

pub async fn read_superblock(drive: &Drive, io: &Io) -> Result<Found, Error> {
    let both = 2 * SUPERBLOCK_BYTES as usize;
    if drive.flash().capacity_bytes() < both as u64 {
        return Err(Error::Unusable("the drive is too small to hold a store; nothing was written".into()));
    }
    let buffer = drive.local().allocate(both).ok_or_else(|| no_memory("a superblock"))?;
    io.read(0, &buffer, 0, both).await?;
    let found = Superblock::read(&buffer.bytes()[..both], drive.flash().capacity_bytes())?;
    let (made, has) = (found.superblock.geometry.sector_bytes, drive.flash().sector_bytes());
    if made < has {
        return Err(Error::Options(format!(
            "the store was made where sectors have {made} bytes, and this drive has sectors of {has}: put it back there, \
             and copy its items into a new store here (tapetum dump, tapetum load)"
        )));
    }
    Ok(found)
}

/// The segment size of the store on a drive, before there is memory for it.
pub async fn segment_bytes(drive: &Drive, io: &Io) -> Result<u64, Error> {
    Ok(read_superblock(drive, io).await?.superblock.geometry.segment_bytes)
}

/// What the log gave back.
struct Replayed {
    arenas: [LocalBuffer; BUFFERS as usize],
    /// Hash keys and places, in order of writing, by buffer.
    records: BTreeMap<u64, Vec<(HashKey, u32)>>,
    /// Records whose values lie in extents of their own, and their references; also those that were written over.
    large: Vec<(HashKey, Place, Vec<u8>)>,
    /// The buffer that takes the next write, and from where.
    active: u64,
    position: usize,
    chain: Chain,
    /// The crc of the last group before the active buffer.
    crc_sealed: u32,
    watermark: u64,
    watermark_at: u32,
    /// Both before the active buffer.
    watermark_sealed: (u64, u32),
}

async fn replay_log(
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
        read_zone(io, geometry, buffer, &replayed.arenas[zone]).await?;
        let Replayed { arenas, records, large, watermark, watermark_at, chain, .. } = &mut replayed;
        let mut found = Vec::new();
        let crc_before = chain.previous_crc;
        let watermark_before = (*watermark, *watermark_at);
        let end = reader.replay(arenas[zone].bytes(), buffer, chain, |place, record| match record.header.kind {
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
                let hash = HashKey::of(&superblock.secret, record.key);
                if record.header.codec == Codec::OutOfLine {
                    large.push((hash, Place { buffer, place }, record.stored.to_vec()));
                }
                found.push((hash, place));
            }
        })?;
        if end.groups > 0 {
            records.insert(buffer, found);
            (replayed.active, replayed.position) = (buffer, end.position);
            replayed.crc_sealed = crc_before;
            replayed.watermark_sealed = watermark_before;
        }
        let from = if end.groups > 0 { end.position } else { 0 };
        reader.refuse_gap(replayed.arenas[zone].bytes(), buffer, from, &replayed.chain)?;
        if end.groups == 0 && buffer > first {
            break;
        }
    }
    Ok(replayed)
}

/// Writes again, as they are, the groups that may be in nothing but the drive's cache. A flush that failed may have left them
/// there, where no later one saves them; what is shown from now on must be there after a power cut. "Opened" flushes it.
async fn write_unsure_groups(io: &Io, geometry: &Geometry, replayed: &Replayed) -> Result<(), Error> {
    let unsure = &replayed.chain.unsure;
    let (Some(first), Some(last)) = (unsure.front(), unsure.back()) else { return Ok(()) };
    // They are the end of the log: all groups of a buffer from the first of them on.
    for buffer in first.buffer..=last.buffer {
        let of_buffer = || unsure.iter().filter(|group| group.buffer == buffer);
        let (Some(from), Some(to)) = (of_buffer().next(), of_buffer().next_back()) else { continue };
        let arena = &replayed.arenas[(buffer % BUFFERS) as usize];
        let write = |flash, local, length| Operation::Write { flash, local, length, fua: false };
        move_zone(io, geometry, buffer, arena, from.bytes.start..to.bytes.end, "write", write).await?;
    }
    Ok(())
}

async fn read_zone(io: &Io, geometry: &Geometry, buffer: u64, arena: &LocalBuffer) -> Result<(), Error> {
    let read = |flash, local, length| Operation::Read { flash, local, length };
    move_zone(io, geometry, buffer, arena, 0..geometry.segment_bytes as usize, "read", read).await
}

/// Moves bytes of a zone between flash and its arena, by commands from flash place, local place and length.
async fn move_zone(
    io: &Io,
    geometry: &Geometry,
    buffer: u64,
    arena: &LocalBuffer,
    bytes: Range<usize>,
    what: &str,
    command: impl Fn(u64, u64, u32) -> Operation,
) -> Result<(), Error> {
    let mut chunks = bytes.clone().step_by(ZONE_COMMAND_BYTES);
    let mut on_their_way = VecDeque::new();
    let mut result = Ok(());
    loop {
        while result.is_ok()
            && on_their_way.len() < ZONE_COMMANDS
            && let Some(at) = chunks.next()
        {
            let (flash, local) = (geometry.zone_offset(buffer) + at as u64, arena.offset() + at as u64);
            on_their_way.push_back(io.start(command(flash, local, ZONE_COMMAND_BYTES.min(bytes.end - at) as u32)));
        }
        // All of them, whatever happens: the arena belongs to the drive until the last is done.
        let Some(tag) = on_their_way.pop_front() else { return result };
        result = result.and(succeeded(io.finish(tag).await, &format!("{what} of the log")));
    }
}

fn claim_extents(superblock: &Superblock, catalog: &Catalog) -> Result<Extents, Error> {
    let Superblock { geometry, capacity_bytes, .. } = superblock;
    let mut extents = Extents::new(geometry.extents(*capacity_bytes));
    for descriptor in catalog.segments.values().map(|state| &state.descriptor) {
        let pages_in =
            |extents: &[u32], page_bytes| extents.len() as u64 * u64::from(geometry.pages_per_extent(page_bytes));
        let pages = pages_in(&descriptor.data_extents, descriptor.data_page_size.bytes());
        let key_pages = pages_in(&descriptor.key_extents, PAGE_BYTES);
        let fits = u64::from(descriptor.data_pages) <= pages
            && u64::from(descriptor.key_pages) + u64::from(descriptor.fence_pages) <= key_pages
            && descriptor.fence_pages > 0
            && descriptor.number < geometry.segments(*capacity_bytes);
        if !fits || !descriptor.extents().all(|extent| extents.claim(extent)) {
            return Err(Error::Corrupt(format!(
                "the manifest's description of segment {} makes no sense",
                descriptor.number
            )));
        }
    }
    Ok(extents)
}

/// Takes the extents of the large values of a segment.
fn claim_large(claims: &mut Claims, descriptor: &Descriptor) -> Result<LargeEntries, Error> {
    let claim = |large: &LargeEntry| {
        let extents =
            claims.claim(&large.runs, || format!("record {} of segment {}", large.entry, descriptor.number))?;
        Ok((large.entry, extents))
    };
    descriptor.large.iter().map(claim).collect()
}

/// Takes the extents that log records name.
fn claim_log(
    claims: &mut Claims,
    replayed: &Replayed,
    planted: Planted,
) -> Result<Vec<(HashKey, Place, Arc<LargeExtents>)>, Error> {
    let mut owned = Vec::with_capacity(replayed.large.len());
    for (hash, place, reference) in &replayed.large {
        let whose = || format!("the log record at byte {} of buffer {}", place.place, place.buffer);
        let Ok(reference) = Reference::parse(reference) else {
            return Err(Error::Corrupt(format!("{} names a large value that makes no sense", whose())));
        };
        let extents = match planted.has(Bug::ForgetLargeInLog) {
            true => claims.forget(&reference.runs),
            false => claims.claim(&reference.runs, whose)?,
        };
        owned.push((*hash, *place, extents));
    }
    Ok(owned)
}

/// Room for every segment that the store may come to have.
fn segment_table(geometry: &Geometry) -> Vec<ArcSwapOption<Segment>> {
    (0..geometry.segments(geometry.capacity_max_bytes())).map(|_| ArcSwapOption::empty()).collect()
}

/// Opens the segments of the catalog: their fences lie behind their key tables. Many reads are on their way at once.
async fn open_segments(
    drive: &Drive,
    io: &Io,
    superblock: &Superblock,
    catalog: &Catalog,
    segments: &[ArcSwapOption<Segment>],
) -> Result<(), Error> {
    let mut reader = KeyReader::new(io, drive.local(), superblock.secret);
    // A view without fences serves to read the pages that hold them.
    let blind = |descriptor: &Descriptor| {
        Arc::new(Segment::new(descriptor.clone(), superblock.store_id, superblock.geometry, LocalIndex::empty()))
    };
    let mut reads = catalog.segments.values().map(|state| blind(&state.descriptor)).flat_map(|segment| {
        let pages = segment.fence_pages();
        let starts = pages.clone().step_by(PAGES_PER_READ as usize);
        starts.map(move |start| (segment.clone(), start..pages.end.min(start + PAGES_PER_READ)))
    });
    let mut fences = Vec::new();
    loop {
        while reader.has_room()
            && let Some((segment, pages)) = reads.next()
        {
            let is_last = pages.end == segment.fence_pages().end;
            reader.start(segment, pages, is_last).await?;
        }
        let Some(read) = reader.next().await? else { return Ok(()) };
        for payload in read.fences() {
            fences.extend_from_slice(payload?);
        }
        if read.context {
            let segment = open_segment(superblock, &read.segment.descriptor, &fences)?;
            segment.attach(&catalog.segments[&segment.descriptor.number].valid);
            segments[segment.descriptor.number as usize].store(Some(Arc::new(segment)));
            fences.clear();
        }
        reader.recycle(read);
    }
}

fn open_segment(superblock: &Superblock, descriptor: &Descriptor, fences: &[u8]) -> Result<Segment, Error> {
    let fits = |index: &LocalIndex| index.data.pages() == descriptor.data_pages;
    let local_index = LocalIndex::parse(fences, descriptor.key_pages).filter(fits).ok_or_else(|| {
        Error::Corrupt(format!("the fences of segment {} do not fit its description", descriptor.number))
    })?;
    Ok(Segment::new(descriptor.clone(), superblock.store_id, superblock.geometry, local_index))
}

/// What was durable when the store was last opened is durable still: a log that ends before it was damaged.
fn refuse_lost_end(stamp_durable: u64, stamp_opened: u64) -> Result<(), Error> {
    if stamp_durable < stamp_opened {
        return Err(Error::Corrupt(format!(
            "the commit log ends at stamp {stamp_durable} although stamp {stamp_opened} was there when the store was opened"
        )));
    }
    Ok(())
}

/// Opens the store on a drive.
pub async fn open(drive: &Drive, io: &Io, options: &StoreOptions) -> Result<Arc<Shared>, Error> {
    let mut watch = Stopwatch::new(drive.env());
    let Found { superblock, behind } = read_superblock(drive, io).await?;
    let geometry = superblock.geometry;
    let mut recovered = Manifest::recover(io, drive.local(), &geometry, superblock.store_id, options.planted).await?;
    let extents = claim_extents(&superblock, &recovered.catalog)?;
    watch.lap("manifest");
    let mut replayed = replay_log(drive, io, &superblock, &recovered, options).await?;
    let extents = Arc::new(Mutex::new(extents));
    let large = LargeSpace::new(extents.clone());
    let mut claims = Claims::new(large.clone());
    watch.lap("log");
    let mut large_in_segments = Vec::new();
    for descriptor in recovered.catalog.segments.values().map(|state| &state.descriptor) {
        large_in_segments.push((descriptor.number, claim_large(&mut claims, descriptor)?));
    }
    let large_in_log = claim_log(&mut claims, &replayed, options.planted)?;
    let checkpoint = recovered.checkpoint.take().filter(|checkpoint| checkpoint.is_apart(&mut lock(&extents)));
    let stamp_durable = replayed.chain.stamp_last.max(replayed.watermark);
    if !options.planted.has(Bug::TrustShortLog) {
        refuse_lost_end(stamp_durable, recovered.catalog.stamp_opened)?;
    }
    let stamp_next = stamp_durable.max(recovered.catalog.stamp_base) + stamps_skipped(&geometry);
    // Superblock, manifest and log hold: from here on something is written, fences first where they are damaged.
    let segments = segment_table(&geometry);
    open_segments(drive, io, &superblock, &recovered.catalog, &segments).await?;
    for (number, large) in large_in_segments {
        if let Some(segment) = segments[number as usize].load_full() {
            segment.own_large(large);
        }
    }
    watch.lap("fences");
    if let Some(copy) = behind {
        superblock.write(io, &[copy]).await?;
    }
    if !options.planted.has(Bug::TrustCachedLog) {
        write_unsure_groups(io, &geometry, &replayed).await?;
    }
    if options.planted.has(Bug::ForgetReplay) {
        let buffer_next = recovered.catalog.buffer_next + replayed.records.len() as u64;
        let install = Install { buffer_next, marks: recovered.catalog.marks, ..Install::default() };
        recovered.manifest.install(&recovered.catalog, &install).await?;
    }
    // The checkpoint was made in the generation that ends here, and ends with it; nothing is written to its extents before
    // this is over.
    let generation_before = recovered.manifest.generation();
    let opened = recovered.manifest.opened(&recovered.catalog, stamp_next, stamp_durable).await;
    if !options.planted.has(Bug::OpenOverFailure) {
        opened?;
    }
    (recovered.catalog.stamp_base, recovered.catalog.stamp_opened) = (stamp_next, stamp_durable);
    let generation = recovered.manifest.generation();
    let queue = drive.queue_pair(64).map_err(|error| Error::Io(error.to_string()))?;
    let start = Start {
        buffer: replayed.active,
        position: replayed.position,
        stamp_next,
        stamp_durable,
        previous_crc: replayed.chain.previous_crc,
        crc_sealed: replayed.crc_sealed,
        generation,
    };
    let ids = (geometry, superblock.store_id);
    let log = Log::new(queue, replayed.arenas, ids, options.sync, options.planted, start);
    let shards = make_shards(&geometry, &mut replayed.records, replayed.active);
    let index = GlobalIndex::new(options.index_geometry(&geometry, superblock.capacity_bytes))
        .map_err(|error| Error::Io(format!("no memory for the index: {error}")))?;
    watch.lap("write buffers");
    let tables: usize = shards.iter().map(|shard| lock(shard).bytes()).sum();
    let shared = Arc::new(Shared {
        drive: drive.clone(),
        geometry,
        store_id: superblock.store_id,
        secret: superblock.secret,
        options: *options,
        planted: options.planted,
        log,
        shards,
        index,
        segments,
        install_sequence: AtomicU64::new(0),
        retired: Mutex::new(Vec::new()),
        extents,
        unreadable: Unreadable::default(),
        key_tables: KeyTables::default(),
        tier: Tier::new(options.tier_bytes, options.slabs)
            .map_err(|error| Error::Io(format!("no memory for the DRAM tier: {error}")))?,
        access_clock: AccessClock::new(stamp_durable, drive.env().unix_seconds()),
        large,
        value_bytes_max: value_bytes_max(&geometry, options.memory_bytes).min(options.value_bytes_max),
        large_named_bytes: AtomicU64::new(0),
        installer: Mutex::new(None),
        numbers_taken: Mutex::new(Vec::new()),
        segments_limit: AtomicU32::new(geometry.segments(superblock.capacity_bytes)),
        superblock: Mutex::new(superblock),
        resizing: Mutex::new(None),
        memory_bytes: AtomicU64::new(options.memory_bytes),
        // Unique in the store's life without being written down: no generation comes twice, unless damage hid one.
        version_next: AtomicU64::new(generation << 32 | 1),
        watermark: AtomicU64::new(replayed.watermark),
        watermark_at: AtomicU32::new(replayed.watermark_at),
        watermark_sealed: Mutex::new(replayed.watermark_sealed),
        counters: Counters::default(),
        levels: Levels::default(),
        manifest_room: ManifestRoom::default(),
        pace: Pace::default(),
        pools_bytes: (drive.local().bytes_total() + tables) as u64 + options.tier_bytes,
        wakeup: Wakeup::default(),
        closed: AtomicBool::new(false),
    });
    for (hash, place, extents) in large_in_log {
        let mut shard = shared.shard(hash);
        if place.buffer == shard.active() {
            shared.name_large(&mut shard, place, extents);
        } else {
            shard.insert_large(place, extents);
        }
    }
    let source = Source {
        geometry: &geometry,
        store_id: superblock.store_id,
        generation: generation_before,
        entries: recovered.catalog.segments.values().map(|state| u64::from(state.valid_entries)).sum(),
        trusting: options.planted.has(Bug::TrustCheckpoint) || options.planted.has(Bug::StaleCheckpoint),
    };
    let loaded = match &checkpoint {
        Some(checkpoint) => checkpoint::load(&source, io, drive.local(), &shared.index, checkpoint).await,
        None => Err(String::new()),
    };
    let catalog = match loaded {
        Ok(()) => recovered.catalog,
        Err(amiss) => {
            if !amiss.is_empty() {
                tracing::warn!("the index checkpoint is passed over ({amiss}): the index is built from key tables");
            }
            index_recovery::build(&shared, io, recovered.catalog).await?
        }
    };
    let installer = Box::new(Installer { manifest: recovered.manifest, catalog });
    watch.lap("index");
    tracing::info!(
        "recovered {} keys of {} segments: {watch}",
        shared.index.entries(),
        installer.catalog.segments.len()
    );
    shared.return_installer(installer);
    Ok(shared)
}

fn make_shards(
    geometry: &Geometry,
    records: &mut BTreeMap<u64, Vec<(HashKey, u32)>>,
    active: u64,
) -> Vec<Mutex<Shard>> {
    let first = records.keys().next().copied().unwrap_or(active);
    let entries = geometry.buffer_entries_max() / geometry.partitions();
    let mut shards: Vec<Shard> = (0..geometry.partitions())
        .map(|_| {
            let mut shard = Shard::new(entries, first);
            shard.touch();
            shard
        })
        .collect();
    for (buffer, records) in std::mem::take(records) {
        if buffer > first {
            shards.iter_mut().for_each(|shard| shard.rotate(buffer));
        }
        for (hash, place) in records {
            shards[hash.partition(geometry.partition_bits)].insert(hash, place);
        }
    }
    shards.into_iter().map(Mutex::new).collect()
}
