//! The base's part in opening a store, after a close, a crash or damage; and creating a store.
//!
//! ```text
//! superblock  →  manifest: segments, validity  →  log zones into the write buffers
//!             →  (first writes) fences, made anew where they are damaged; the superblock's older copy; the end of the log
//!                once more, as it is
//!             →  manifest record "opened"
//!             →  index: from a checkpoint that a clean close left, or from key tables
//! ```
//! Nothing is written before superblock, manifest and log were read and found valid, and opening twice gives the same state. A gap is an error that
//! names its place. Opening read-only writes nothing at all: rebuilt pages are in its overlay, and the rest is left to the next opening for writing.

mod create;
pub mod log_zones;
mod stopwatch;

use crate::base::client::ClientList;
use crate::base::pace::Pace;
use crate::base::{Base, Wakeup};
use crate::engine::Engine;
use crate::error::Error;
use crate::installer::{Clients, EngineClients, Installer};
use crate::keyspace::KeyspaceId;
use crate::keyspace::catalogue::Catalogue;
use crate::keyspace::hasher::KeyHasher;
use crate::keyspace::states::KeyspaceStates;
use crate::keyspace_kind::KeyspaceKind;
use crate::log::{Log, Place, Start};
use crate::maintenance::room::set_floors;
use crate::manifest::Manifest;
use crate::manifest::base_marks::{BaseMarks, LogTrim, MarksEdit};
use crate::manifest::items::FrameItems;
use crate::media::extents::Extents;
use crate::media::geometry::{BUFFERS, Geometry, SUPERBLOCK_BYTES};
use crate::media::io::Io;
use crate::media::superblock::{FoundSuperblock, Superblock};
use crate::options::StoreOptions;
pub use create::create;
use log_zones::{Replayed, write_unsure_groups};
pub use log_zones::{read_zone, replay_log};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use stopwatch::Stopwatch;
use tapetum_drive::{Drive, OverlayFlash, ProcessMark, fail_point};

/// Stamps that a restart skips, so that none is given twice even if some were given and lost: at most as many as the write buffers have records, of
/// which each takes at least eight bytes.
fn stamps_skipped(geometry: &Geometry) -> u64 {
    (BUFFERS * geometry.segment_bytes / 8).max(1 << 24)
}

fn no_memory(what: &str) -> Error {
    Error::Options(format!("the budget of memory is too small for {what}: raise it"))
}

pub async fn read_superblock(drive: &Drive, io: &Io) -> Result<FoundSuperblock, Error> {
    let both = 2 * SUPERBLOCK_BYTES as usize;
    if drive.capacity_bytes() < both as u64 {
        return Err(Error::Unusable("the drive is too small to hold a store; nothing was written".into()));
    }
    let mut buffer = drive.local().allocate(both).ok_or_else(|| no_memory("a superblock"))?;
    io.read(0, &mut buffer, 0, both).await?;
    let found = Superblock::read(io.look(&buffer, 0..both), drive.capacity_bytes())?;
    let (made, has) = (found.superblock.geometry.sector_bytes, drive.sector_bytes());
    if made < has {
        return Err(Error::Options(format!(
            "the store was made where sectors have {made} bytes, and this drive has sectors of {has}: put it back there, \
             and copy its items into a new store here (tapetum dump, tapetum load)"
        )));
    }
    Ok(found)
}

/// The segment size of the store on a drive, read before memory for the store is allocated.
pub async fn segment_bytes(drive: &Drive, io: &Io) -> Result<u64, Error> {
    Ok(read_superblock(drive, io).await?.superblock.geometry.segment_bytes)
}

/// An error if the log ends before a stamp that was durable when the store was last opened or closed, or before an install that deleted everything
/// in a keyspace: such a log was damaged. After a crash nobody knows how far the log went since the opening.
pub fn refuse_lost_end(stamp_last: u64, marks: &BaseMarks) -> Result<(), Error> {
    let (opened, known, deleted) = (marks.opening.stamp_opened, marks.stamp_known, marks.stamp_deleted());
    let amiss = match stamp_last {
        _ if stamp_last < opened => format!("stamp {opened} was there when the store was opened"),
        _ if stamp_last < known => format!("stamp {known} was there when the store was closed, or a keyspace dropped"),
        _ if stamp_last < deleted => format!("the manifest has a deletion with stamp {deleted}"),
        _ => return Ok(()),
    };
    Err(Error::Corrupt(format!("the commit log ends at stamp {stamp_last} although {amiss}")))
}

/// An error if the kind of a keyspace, or of an engine's root, is not one of these.
pub fn refuse_other_kinds(clients: &Clients, kinds: &[KeyspaceKind]) -> Result<(), Error> {
    clients.keyspaces.refuse_other_kinds(kinds).map_err(Error::Keyspace)?;
    match clients.roots.kinds().find(|kind| !kinds.contains(kind)) {
        None => Ok(()),
        Some(kind) => Err(Error::Unusable(format!(
            "the store has extents of an engine ({kind}) that this version does not have: use the version that made them"
        ))),
    }
}

/// The base as superblock and manifest describe it, read and checked.
pub struct FoundBase {
    pub superblock: Superblock,
    pub hasher: KeyHasher,
    /// The copy of the superblock that must be rewritten.
    behind: Option<u64>,
    pub installer: Box<Installer>,
    /// The generation before this opening.
    pub generation_before: u64,
    pub extents: Extents,
    pub watch: Stopwatch,
}

/// The log as it was read.
pub struct FoundLog {
    pub replayed: Replayed,
    pub stamp_durable: u64,
    stamp_next: u64,
}

/// The engines' part of the base of an open store.
pub struct OfEngines {
    /// The extents, of which engines have claimed theirs.
    pub extents: Arc<Mutex<Extents>>,
    /// Bytes of memory that engines allocate at once.
    pub pools_bytes: u64,
    /// The largest value that engines take.
    pub value_bytes_max: usize,
}

/// The base of an open store, with the log's records for its engines to replay.
pub struct OpenedBase {
    pub base: Arc<Base>,
    pub installer: Box<Installer>,
    /// Places of the log's records, by buffer.
    pub records: BTreeMap<u64, Vec<u32>>,
    pub watch: Stopwatch,
}

impl FoundBase {
    /// Reads superblock and manifest. No extents are claimed yet.
    pub async fn read(
        drive: &Drive,
        io: &Io,
        found: FoundSuperblock,
        of_engines: EngineClients,
    ) -> Result<FoundBase, Error> {
        let watch = Stopwatch::new(drive.env());
        let FoundSuperblock { superblock, behind } = found;
        let (geometry, hasher) = (superblock.geometry, KeyHasher::new(superblock.secret, superblock.features.routes()));
        let empty = || Clients::empty(of_engines);
        let recovered = Manifest::recover(io, drive.local(), &geometry, superblock.store_id, empty).await?;
        let installer = Box::new(Installer::from(recovered));
        let members = drive.flash().member_starts();
        let members = members.into_iter().map(|start| geometry.extents_before(start)).collect();
        let extents = Extents::on_members(geometry.extents(superblock.capacity_bytes), members);
        let mut extents = extents.with_rows(drive.flash().rows().cloned());
        set_floors(&mut extents, &geometry);
        let generation_before = installer.marks.opening.generation;
        Ok(FoundBase { superblock, hasher, behind, installer, generation_before, extents, watch })
    }

    /// Takes the extents. Engines then claim those that the manifest names.
    pub fn take_extents(&mut self) -> Extents {
        std::mem::replace(&mut self.extents, Extents::new(0))
    }

    /// Reads the log.
    pub async fn read_log(&mut self, io: &Io) -> Result<FoundLog, Error> {
        self.watch.lap("manifest");
        let replayed = replay_log(io, &self.superblock, &self.hasher, &self.installer).await?;
        self.watch.lap("log");
        let stamp_durable = replayed.stamp_durable();
        let stamp_base = self.installer.marks.opening.stamp_base;
        let stamp_next = stamp_durable.max(stamp_base) + stamps_skipped(&self.superblock.geometry);
        Ok(FoundLog { replayed, stamp_durable, stamp_next })
    }

    /// An error if the log ends before a stamp that was durable. Without one, the whole state is valid, and writing may begin.
    pub fn believe(&self, log: &FoundLog) -> Result<(), Error> {
        match fail_point!(TrustShortLog) {
            true => Ok(()),
            false => refuse_lost_end(log.replayed.chain.stamp_last, &self.installer.marks),
        }
    }

    /// Makes the recovered state durable by the frame "opened".
    pub async fn make_durable(&mut self, log: &mut FoundLog, io: &Io) -> Result<(), Error> {
        let FoundBase { superblock, installer, .. } = self;
        let FoundLog { replayed, stamp_durable, stamp_next } = log;
        if let Some(copy) = self.behind {
            superblock.write(io, &[copy]).await?;
        }
        if !fail_point!(TrustCachedLog) {
            write_unsure_groups(io, &superblock.geometry, replayed).await?;
        }
        if fail_point!(ForgetReplay) {
            let trim = installer.marks.trim;
            let buffer_next = trim.buffer_next + replayed.records.len() as u64;
            let mut items = FrameItems::default();
            MarksEdit::put(&[MarksEdit::Trim(LogTrim { buffer_next, ..trim })], &mut items);
            installer.append(&items).await?;
        }
        // A checkpoint is valid only until this frame. Nothing is written to its extents before the frame is durable.
        let opened = installer.open(*stamp_next, *stamp_durable).await;
        if !fail_point!(OpenOverFailure) {
            opened?;
        }
        let opening = &mut installer.marks.opening;
        (opening.stamp_base, opening.stamp_opened) = (*stamp_next, *stamp_durable);
        Ok(())
    }

    /// Makes the base of the open store.
    pub fn into_base(
        self,
        log: FoundLog,
        drive: &Drive,
        overlay: Option<OverlayFlash>,
        options: &StoreOptions,
        of_engines: OfEngines,
    ) -> Result<OpenedBase, Error> {
        let FoundBase { superblock, installer, watch, hasher, .. } = self;
        let FoundLog { replayed, stamp_durable, stamp_next } = log;
        let OfEngines { extents, pools_bytes, value_bytes_max } = of_engines;
        let (geometry, oldest) = (superblock.geometry, replayed.oldest());
        let region = replayed.arenas[0].region();
        let queue = drive.queue_pair_with_host(region, 64).map_err(|error| Error::Io(error.to_string()))?;
        let arenas_bytes = region.bytes_total();
        let start = Start {
            buffer: replayed.active,
            oldest,
            position: replayed.position,
            stamp_next,
            stamp_durable,
            previous_crc: replayed.chain.previous_crc,
            crc_sealed: replayed.crc_sealed,
            generation: installer.marks.opening.generation,
        };
        let log = Log::new(queue, replayed.arenas, geometry, superblock.store_id, options.sync, start);
        let catalogue = installer.keyspaces.clone();
        let (deleted, sealed) = (&replayed.deletions, replayed.deletions_sealed);
        let keyspaces = KeyspaceStates::new(superblock.store_id, catalogue, deleted, sealed);
        log.keep_for_planned(keyspaces.planned_count());
        let base = Base {
            made: ProcessMark::now(),
            engines: ClientList::default(),
            memory_turns: Arc::default(),
            pace: Pace::default(),
            drive: drive.clone(),
            overlay,
            geometry,
            store_id: superblock.store_id,
            hasher,
            keyspaces,
            keyspace_changes: Default::default(),
            options: *options,
            log,
            extents,
            installer: Mutex::new(None),
            superblock: Mutex::new(superblock),
            resizing: Mutex::new(None),
            memory_bytes: AtomicU64::new(options.memory_bytes),
            pools_bytes: (drive.local().bytes_total() + arenas_bytes) as u64 + pools_bytes,
            value_bytes_max,
            wakeup: Wakeup::default(),
            fence: OnceLock::new(),
            closed: AtomicBool::new(false),
        };
        Ok(OpenedBase { base: Arc::new(base), installer, records: replayed.records, watch })
    }
}

/// Replays the log's records, each into the engine of its keyspace, buffer by buffer.
pub fn replay_into(
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
            // SAFETY: a record was read from this place, and nothing is released before the store is open.
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
    use crate::media::io::run;
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

    pub const SMALL_BYTES: u64 = 8 << 20;

    /// Options for a store of [`SMALL_BYTES`] with many segments.
    pub fn small_options() -> StoreOptions {
        StoreOptions { segment_bytes: 64 << 10, partition_bits: 2, ..StoreOptions::new(SMALL_BYTES, 16 << 20) }
    }

    /// A drive without a store.
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
            run(&io, create(&old, &io, &options, Vec::new), || false).unwrap().unwrap();
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
}
