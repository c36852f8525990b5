//! Opening a store after whatever happened to it; and creating one.
//!
//! ```text
//! superblock  →  manifest: segments, validity  →  log zones into the write buffers
//!             →  (first writes) fences, made anew where they are damaged; the superblock's older copy; the end of the log
//!                once more, as it is
//!             →  manifest record "opened"
//!             →  index: from a checkpoint that a clean close left, or from key tables
//! ```
//! Nothing is written before superblock, manifest and log were read and believed, and opening twice gives the same state. A gap is an
//! error that says where. An opening to read writes nothing at all: pages that are made anew are in its overlay, the rest is
//! left to the next opening that writes.

mod claims;
mod create;
mod fences;
mod log_zones;
mod stopwatch;

use crate::base::{Base, Wakeup};
use crate::error::Error;
use crate::hashed::buffer::{Glance, Shard};
use crate::hashed::catalog::Catalog;
use crate::hashed::index::GlobalIndex;
use crate::hashed::index::checkpoint::{self, Checkpoint, Source};
use crate::hashed::index::index_recovery;
use crate::hashed::key_tables::KeyTables;
use crate::hashed::large::{Claims, LargeExtents, LargeSpace, value_bytes_max};
use crate::hashed::manifest_room::ManifestRoom;
use crate::hashed::segment::unreadable::Unreadable;
use crate::hashed::segment::view::Segment;
use crate::hashed::tier::Tier;
use crate::hashed::tier::access::AccessClock;
use crate::installer::{Clients, Installer};
use crate::keyspace::KeyspaceId;
use crate::keyspace::catalogue::{Catalogue, KeyspaceKind};
use crate::keyspace::engine::{Engine, EngineList, EngineMaker};
use crate::keyspace::hasher::KeyHasher;
use crate::keyspace::states::KeyspaceStates;
use crate::log::{Log, Place, Start};
use crate::maintenance::pace::Pace;
use crate::manifest::Manifest;
use crate::manifest::base_marks::{BaseMarks, LogTrim, MarksEdit};
use crate::manifest::items::FrameItems;
use crate::media::extents::Extents;
use crate::media::geometry::{BUFFERS, Geometry, SUPERBLOCK_BYTES};
use crate::media::io::{Io, lock};
use crate::media::superblock::{Found, Superblock};
use crate::needs::DrivePrograms;
use crate::opening::options::StoreOptions;
use crate::ordered::engine::ORDERED;
use crate::planted::Bug;
use crate::shared::{Counters, Levels, Shared};
use arc_swap::ArcSwapOption;
pub use claims::{claim_extents, claim_groups, claim_large, claim_log};
pub use create::create;
use fences::{open_segments, segment_table};
use log_zones::{Replayed, write_unsure_groups};
pub use log_zones::{read_zone, replay_log};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use stopwatch::Stopwatch;
use tapetum_drive::{Drive, OverlayFlash};
use tapetum_kernels::hash::HashKey;

/// Stamps that a restart skips, so that none is given twice even where some were given and lost: at most those of the write buffers,
/// of which no record takes less than eight bytes.
fn stamps_skipped(geometry: &Geometry) -> u64 {
    (BUFFERS * geometry.segment_bytes / 8).max(1 << 24)
}

fn no_memory(what: &str) -> Error {
    Error::Options(format!("the budget of memory is too small for {what}: raise it"))
}

pub async fn read_superblock(drive: &Drive, io: &Io) -> Result<Found, Error> {
    let both = 2 * SUPERBLOCK_BYTES as usize;
    if drive.flash().capacity_bytes() < both as u64 {
        return Err(Error::Unusable("the drive is too small to hold a store; nothing was written".into()));
    }
    let mut buffer = drive.local().allocate(both).ok_or_else(|| no_memory("a superblock"))?;
    io.read(0, &mut buffer, 0, both).await?;
    let found = Superblock::read(io.look(&buffer, 0..both), drive.flash().capacity_bytes())?;
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

/// What was durable when the store was last opened, or before an install that deleted everything in a keyspace, is durable still: a log
/// that ends before it was damaged.
pub fn refuse_lost_end(stamp_last: u64, marks: &BaseMarks) -> Result<(), Error> {
    let (opened, deleted) = (marks.opening.stamp_opened, marks.stamp_deleted());
    let amiss = match stamp_last {
        _ if stamp_last < opened => format!("stamp {opened} was there when the store was opened"),
        _ if stamp_last < deleted => format!("the manifest has a deletion with stamp {deleted}"),
        _ => return Ok(()),
    };
    Err(Error::Corrupt(format!("the commit log ends at stamp {stamp_last} although {amiss}")))
}

/// The engines of a store that was opened.
pub struct OpenedEngines {
    pub hashed: Arc<Shared>,
    /// All of them, that of hashed keyspaces first.
    pub all: Vec<Arc<dyn Engine>>,
}

/// An error if the engine of a keyspace, or of a root, is not among those that `makers` make and that of hashed keyspaces.
pub fn refuse_other_kinds(clients: &Clients, makers: &[EngineMaker<'_>]) -> Result<(), Error> {
    let kinds: Vec<_> = makers.iter().map(|maker| maker.kind).chain([KeyspaceKind::Hashed]).collect();
    clients.keyspaces.refuse_other_kinds(&kinds).map_err(Error::Keyspace)?;
    match clients.roots.kinds().find(|kind| !kinds.contains(kind)) {
        None => Ok(()),
        Some(kind) => Err(Error::Unusable(format!(
            "the store has extents of an engine ({kind}) that this version does not have: use the version that made them"
        ))),
    }
}

/// Opens the store on a drive; `makers` make the engines beside that of hashed keyspaces.
pub async fn open(
    drive: &Drive,
    io: &Io,
    options: &StoreOptions,
    makers: &[EngineMaker<'_>],
) -> Result<OpenedEngines, Error> {
    let found = read_superblock(drive, io).await?;
    found.superblock.features.check_write()?;
    let mut found = FoundStore::read(drive, io, options, found, makers).await?;
    found.make_durable(io, options).await?;
    found.into_engines((drive, io), options, None, makers).await
}

/// Opens the store on the drive of an overlay, which takes what is made anew, to read. What was believed is made durable
/// by whoever opens the store to write.
pub async fn open_read_only(
    drive: &Drive,
    io: &Io,
    options: &StoreOptions,
    overlay: OverlayFlash,
) -> Result<OpenedEngines, Error> {
    let found = read_superblock(drive, io).await?;
    let found = FoundStore::read(drive, io, options, found, &[ORDERED]).await?;
    found.into_engines((drive, io), options, Some(overlay), &[ORDERED]).await
}

/// What superblock, manifest, log and fences say, read and believed.
struct FoundStore {
    programs: DrivePrograms,
    superblock: Superblock,
    hasher: KeyHasher,
    /// The copy of the superblock that is to be written again.
    behind: Option<u64>,
    installer: Box<Installer>,
    /// The generation that ends here: a checkpoint was made in it.
    generation_before: u64,
    checkpoint: Option<Checkpoint>,
    replayed: Replayed,
    extents: Arc<Mutex<Extents>>,
    large: LargeSpace,
    large_in_log: Vec<(HashKey, Place, Arc<LargeExtents>)>,
    segments: Vec<ArcSwapOption<Segment>>,
    stamp_durable: u64,
    stamp_next: u64,
    watch: Stopwatch,
}

impl FoundStore {
    /// Reads. Nothing is written but pages of fences that are damaged, after all the rest held.
    async fn read(
        drive: &Drive,
        io: &Io,
        options: &StoreOptions,
        found: Found,
        makers: &[EngineMaker<'_>],
    ) -> Result<FoundStore, Error> {
        let mut watch = Stopwatch::new(drive.env());
        let programs = DrivePrograms::find(io).await?;
        let Found { superblock, behind } = found;
        let (geometry, hasher) = (superblock.geometry, KeyHasher::new(superblock.secret));
        let recovered = Manifest::recover(io, drive.local(), &geometry, superblock.store_id, options.planted).await?;
        let mut installer = Box::new(Installer::from(recovered));
        refuse_other_kinds(&installer, makers)?;
        let mut extents = claim_extents(&superblock, &installer.catalog)?;
        claim_groups(&mut extents, &installer.groups)?;
        watch.lap("manifest");
        let replayed = replay_log(io, &superblock, &hasher, &installer, options).await?;
        let extents = Arc::new(Mutex::new(extents));
        let large = LargeSpace::new(extents.clone());
        let mut claims = Claims::new(large.clone());
        watch.lap("log");
        let mut large_in_segments = Vec::new();
        for descriptor in installer.catalog.segments.values().map(|state| &state.descriptor) {
            large_in_segments.push((descriptor.number, claim_large(&mut claims, descriptor)?));
        }
        let large_in_log = claim_log(&mut claims, &replayed, options.planted)?;
        let checkpoint = installer.catalog.checkpoint.take();
        let checkpoint = checkpoint.filter(|checkpoint| checkpoint.is_apart(&mut lock(&extents)));
        let stamp_durable = replayed.stamp_durable();
        if !options.planted.has(Bug::TrustShortLog) {
            refuse_lost_end(replayed.chain.stamp_last, &installer.marks)?;
        }
        let stamp_next = stamp_durable.max(installer.marks.opening.stamp_base) + stamps_skipped(&geometry);
        // Superblock, manifest and log hold: from here on something is written, fences first where they are damaged.
        let segments = segment_table(&geometry);
        open_segments(drive, io, &superblock, &hasher, &installer.catalog, &segments).await?;
        for (number, large) in large_in_segments {
            if let Some(segment) = segments[number as usize].load_full() {
                segment.own_large(large);
            }
        }
        watch.lap("fences");
        Ok(FoundStore {
            programs,
            superblock,
            hasher,
            behind,
            generation_before: installer.marks.opening.generation,
            installer,
            checkpoint,
            replayed,
            extents,
            large,
            large_in_log,
            segments,
            stamp_durable,
            stamp_next,
            watch,
        })
    }

    /// Makes durable all that was believed, by the record "opened".
    async fn make_durable(&mut self, io: &Io, options: &StoreOptions) -> Result<(), Error> {
        let FoundStore { superblock, installer, replayed, .. } = self;
        if let Some(copy) = self.behind {
            superblock.write(io, &[copy]).await?;
        }
        if !options.planted.has(Bug::TrustCachedLog) {
            write_unsure_groups(io, &superblock.geometry, replayed).await?;
        }
        if options.planted.has(Bug::ForgetReplay) {
            let trim = installer.marks.trim;
            let buffer_next = trim.buffer_next + replayed.records.len() as u64;
            let mut items = FrameItems::default();
            MarksEdit::put(&[MarksEdit::Trim(LogTrim { buffer_next, ..trim })], &mut items);
            installer.append(&items).await?;
        }
        // The checkpoint was made in the generation that ends here, and ends with it; nothing is written to its extents
        // before this is over.
        let opened = installer.open(self.stamp_next, self.stamp_durable).await;
        if !options.planted.has(Bug::OpenOverFailure) {
            opened?;
        }
        let opening = &mut installer.marks.opening;
        (opening.stamp_base, opening.stamp_opened) = (self.stamp_next, self.stamp_durable);
        Ok(())
    }

    /// Brings all of it into memory, and the index.
    async fn into_engines(
        mut self,
        (drive, io): (&Drive, &Io),
        options: &StoreOptions,
        overlay: Option<OverlayFlash>,
        makers: &[EngineMaker<'_>],
    ) -> Result<OpenedEngines, Error> {
        let generation_before = self.generation_before;
        let (large_in_log, checkpoint) = (std::mem::take(&mut self.large_in_log), self.checkpoint.take());
        let records = std::mem::take(&mut self.replayed.records);
        let (shared, mut installer, mut watch) = self.share(drive, options, overlay, records.keys().next().copied())?;
        let all = make_engines(&shared, makers);
        replay_into(&all, &shared.base, &installer.keyspaces, records)?;
        watch.lap("write buffers");
        for (hash, place, extents) in large_in_log {
            let mut shard = shared.shard(hash);
            if place.buffer == shard.active() {
                shared.name_large(&mut shard, place, extents);
            } else {
                shard.insert_large(place, extents);
            }
        }
        let catalog = std::mem::take(&mut installer.catalog);
        installer.catalog = fill_index(&shared, io, catalog, checkpoint, generation_before).await?;
        watch.lap("index");
        let (keys, segments) = (shared.index.entries(), installer.catalog.segments.len());
        tracing::info!("recovered {keys} keys of {segments} segments: {watch}");
        for engine in &all {
            installer = engine.clone().recover(io.clone(), installer).await?;
        }
        shared.return_installer(installer);
        Ok(OpenedEngines { hashed: shared, all })
    }

    /// Everything but the index, which is empty yet.
    fn share(
        self,
        drive: &Drive,
        options: &StoreOptions,
        overlay: Option<OverlayFlash>,
        oldest: Option<u64>,
    ) -> Result<(Arc<Shared>, Box<Installer>, Stopwatch), Error> {
        let FoundStore { superblock, installer, replayed, extents, large, segments, watch, .. } = self;
        let (geometry, stamp_durable) = (superblock.geometry, self.stamp_durable);
        let generation = installer.marks.opening.generation;
        let region = replayed.arenas[0].region();
        let queue = drive.queue_pair_with_host(region, 64).map_err(|error| Error::Io(error.to_string()))?;
        let arenas_bytes = region.bytes_total();
        let oldest = oldest.unwrap_or(replayed.active);
        let start = Start {
            buffer: replayed.active,
            oldest,
            position: replayed.position,
            stamp_next: self.stamp_next,
            stamp_durable,
            previous_crc: replayed.chain.previous_crc,
            crc_sealed: replayed.crc_sealed,
            generation,
        };
        let ids = (geometry, superblock.store_id);
        let log = Log::new(queue, replayed.arenas, ids, options.sync, options.planted, start);
        let (shards, glance) = make_shards(&geometry, oldest)?;
        let index = GlobalIndex::new(options.index_geometry(&geometry, superblock.capacity_bytes))
            .map_err(|error| Error::Io(format!("no memory for the index: {error}")))?;
        let catalogue = installer.keyspaces.clone();
        let keyspaces = KeyspaceStates::new(catalogue, &replayed.deletions, replayed.deletions_sealed);
        log.keep_for_planned(keyspaces.planned_count());
        let tables: usize = shards.iter().map(|shard| lock(shard).bytes()).sum();
        let base = Base {
            engines: EngineList::default(),
            pace: Pace::default(),
            drive: drive.clone(),
            overlay,
            geometry,
            store_id: superblock.store_id,
            hasher: self.hasher,
            keyspaces,
            keyspace_changes: Default::default(),
            options: *options,
            planted: options.planted,
            log,
            extents,
            installer: Mutex::new(None),
            superblock: Mutex::new(superblock),
            resizing: Mutex::new(None),
            memory_bytes: AtomicU64::new(options.memory_bytes),
            value_bytes_max: value_bytes_max(&geometry, options.memory_bytes).min(options.value_bytes_max),
            pools_bytes: (drive.local().bytes_total() + arenas_bytes + tables) as u64 + options.tier_bytes,
            wakeup: Wakeup::default(),
            closed: AtomicBool::new(false),
        };
        let shared = Shared {
            base: Arc::new(base),
            programs: self.programs,
            shards,
            glance,
            index,
            segments,
            install_sequence: AtomicU64::new(0),
            retired: Mutex::new(Vec::new()),
            unreadable: Unreadable::default(),
            key_tables: KeyTables::default(),
            tier: Tier::new(options.tier_bytes, options.slabs)
                .map_err(|error| Error::Io(format!("no memory for the DRAM tier: {error}")))?,
            item_count: Default::default(),
            keyspace_items: Default::default(),
            access_clock: AccessClock::new(stamp_durable, drive.env().unix_seconds()),
            large,
            large_named_bytes: AtomicU64::new(0),
            numbers_taken: Mutex::new(Vec::new()),
            segments_limit: AtomicU32::new(geometry.segments(superblock.capacity_bytes)),
            // Unique in the store's life without being written down: no generation comes twice, unless damage hid one.
            version_next: AtomicU64::new(generation << 32 | 1),
            counters: Counters::default(),
            levels: Levels::default(),
            manifest_room: ManifestRoom::default(),
        };
        Ok((Arc::new(shared), installer, watch))
    }
}

/// Makes the index that of a checkpoint, or builds it from key tables; gives the catalog back.
async fn fill_index(
    shared: &Arc<Shared>,
    io: &Io,
    catalog: Catalog,
    checkpoint: Option<Checkpoint>,
    generation: u64,
) -> Result<Catalog, Error> {
    let source = Source {
        geometry: &shared.geometry,
        store_id: shared.store_id,
        generation,
        entries: catalog.segments.values().map(|state| u64::from(state.valid_entries)).sum(),
        trusting: shared.planted.has(Bug::TrustCheckpoint) || shared.planted.has(Bug::StaleCheckpoint),
    };
    let Some(checkpoint) = checkpoint else { return index_recovery::build(shared, io, catalog).await };
    match checkpoint::load(&source, io, shared.drive.local(), &shared.index, &checkpoint).await {
        Ok(()) => {
            shared.keyspace_items.note(&checkpoint.tally());
            Ok(catalog)
        }
        Err(amiss) => {
            tracing::warn!("the index checkpoint is passed over ({amiss}): the index is built from key tables");
            index_recovery::build(shared, io, catalog).await
        }
    }
}

/// Empty write buffers, of which `buffer` is the first.
fn make_shards(geometry: &Geometry, buffer: u64) -> Result<(Vec<Mutex<Shard>>, Glance), Error> {
    let entries = geometry.buffer_entries_max() / geometry.partitions();
    let (shards, glance) = Shard::many(geometry.partitions(), entries, buffer)
        .map_err(|error| Error::Io(format!("no memory for the write buffers' tables: {error}")))?;
    Ok((shards.into_iter().map(Mutex::new).collect(), glance))
}

/// All engines of a store, that of hashed keyspaces first, and makes them known to their base.
fn make_engines(hashed: &Arc<Shared>, makers: &[EngineMaker<'_>]) -> Vec<Arc<dyn Engine>> {
    let others = makers.iter().map(|maker| (maker.make)(&hashed.base));
    let all: Vec<Arc<dyn Engine>> = std::iter::once(hashed.clone() as Arc<dyn Engine>).chain(others).collect();
    hashed.base.engines.set(&all);
    all
}

/// Gives the log's records back, each to the engine of its keyspace, buffer by buffer.
fn replay_into(
    engines: &[Arc<dyn Engine>],
    base: &Base,
    keyspaces: &Catalogue,
    records: BTreeMap<u64, Vec<u32>>,
) -> Result<(), Error> {
    let first = records.keys().next().copied();
    for (buffer, places) in records {
        if first < Some(buffer) {
            base.engines.hold_writers(&mut || Some(buffer));
        }
        let mut last = None::<(KeyspaceId, &Arc<dyn Engine>)>;
        for place in places {
            // SAFETY: it was replayed from there, and nothing is released before the store is open.
            let record = unsafe { base.log.record(buffer, place) };
            let id = KeyspaceId::of(&record.header);
            if last.is_none_or(|(known, _)| known != id) {
                let kind = keyspaces.get(id).map(|keyspace| keyspace.kind);
                last = engines.iter().find(|engine| Some(engine.kind()) == kind).map(|engine| (id, engine));
            }
            let Some((_, engine)) = last else { unreachable!("each kind of keyspace has an engine") };
            engine.replay(Place { buffer, place }, &record)?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_in_memory};
    use crate::keyspace::KeyspaceId;
    use crate::keyspace::deletion_mark::DeletionMark;
    use crate::media::io::run;
    use crate::planted::Planted;
    use crate::{Request, Store};
    use tapetum_drive::{Env, LocalMemory, MemoryFlash};

    #[test]
    fn as_many_stamps_are_skipped_as_buffers_can_hold_records() {
        for segment_bytes in [64 << 10, 256 << 20] {
            let geometry = Geometry::new(64 * segment_bytes, segment_bytes, 2, 512).unwrap();
            let skipped = stamps_skipped(&geometry);
            let records_max = BUFFERS * segment_bytes / 8;
            assert!((records_max..=records_max.max(1 << 24)).contains(&skipped), "{skipped} of {segment_bytes}");
        }
    }

    /// A drive that no store is on yet.
    pub fn drive(flash: MemoryFlash) -> (Drive, Io) {
        let local = LocalMemory::new(4 << 20).unwrap();
        let drive = Drive::new(Arc::new(flash), local, Vec::new(), Env::simulated(1).0);
        let io = Io::new(drive.queue_pair(16).unwrap());
        (drive, io)
    }

    #[test]
    fn a_drive_of_two_superblocks_is_looked_at_and_a_smaller_one_refused() {
        let refusal = |bytes| {
            let (drive, io) = drive(MemoryFlash::new(bytes));
            run(&io, segment_bytes(&drive, &io), || false).unwrap().unwrap_err().to_string()
        };
        let both = 2 * SUPERBLOCK_BYTES;
        assert!(refusal(both).contains("no valid superblock"));
        assert!(refusal(both - 512).contains("too small") && refusal(512).contains("too small"));
    }

    #[test]
    fn larger_sectors_than_a_store_was_made_with_are_refused_and_smaller_ones_taken() {
        let options = small_options();
        let look = |made: u32, has: u32| {
            let (old, io) = drive(MemoryFlash::with_sector_bytes(SMALL_BYTES, made));
            run(&io, create(&old, &io, &options), || false).unwrap().unwrap();
            let mut buffer = old.local().allocate(1 << 20).unwrap();
            run(&io, io.read(0, &mut buffer, 0, 1 << 20), || false).unwrap().unwrap();
            let (new, io) = drive(MemoryFlash::with_sector_bytes(SMALL_BYTES, has));
            let mut copy = new.local().allocate(1 << 20).unwrap();
            copy.bytes_mut().copy_from_slice(buffer.bytes());
            run(&io, io.write_durably(0, &mut copy, 1 << 20), || false).unwrap().unwrap();
            run(&io, segment_bytes(&new, &io), || false).unwrap()
        };
        assert_eq!([(512, 512), (4096, 512)].map(|(made, has)| look(made, has)), [Ok(64 << 10), Ok(64 << 10)]);
        assert!(look(512, 4096).unwrap_err().to_string().contains("sectors"));
    }

    #[test]
    fn what_an_install_has_deleted_stays_so_whatever_older_marks_the_log_has() {
        let options = small_options();
        let (drive, store) = store_in_memory(SMALL_BYTES, &options);
        store.run(Request::DeleteAll { at: 0 }).unwrap();
        store.run(Request::DeleteAll { at: u32::MAX }).unwrap();
        let ends_both = store.shared().log.stamp_last();
        drop(store);
        let io = Io::new(drive.queue_pair(16).unwrap());
        let delete = async {
            let Superblock { geometry, store_id, .. } = read_superblock(&drive, &io).await?.superblock;
            let recovered = Manifest::recover(&io, drive.local(), &geometry, store_id, Planted::default()).await?;
            let mark = DeletionMark { watermark: ends_both, planned_at: 0 };
            let mut items = FrameItems::default();
            MarksEdit::put(&[MarksEdit::Delete(KeyspaceId::DEFAULT, mark)], &mut items);
            Installer::from(recovered).append(&items).await
        };
        run(&io, delete, || false).unwrap().unwrap();
        let store = Store::open_on(&drive, &options).unwrap();
        let shared = store.shared();
        let mark = DeletionMark { watermark: ends_both, planned_at: 0 };
        assert_eq!(shared.keyspaces.mark(KeyspaceId::DEFAULT), mark);
    }

    #[test]
    fn pools_are_all_that_is_allocated_at_once() {
        let options = StoreOptions::new(64 << 20, 64 << 20).with_tier(16 << 20);
        let (drive, store) = store_in_memory(64 << 20, &options);
        let shared = store.shared();
        let tables: usize = shared.shards.iter().map(|shard| lock(shard).bytes()).sum();
        let arenas_bytes = (BUFFERS * shared.geometry.segment_bytes) as usize;
        let pools_bytes = (drive.local().bytes_total() + arenas_bytes + tables) as u64 + options.tier_bytes;
        assert_eq!(shared.pools_bytes, pools_bytes);
        assert!(tables > 0 && options.tier_bytes > 0);
    }
}
