//! The collector merges the segments with the fewest valid bytes by hash key into new ones, by keyspace ([`placement`]); dead records stay behind.
//!
//! It copies while flushes install, so it rechecks at its own install: a record that died meanwhile is born dead. Its outputs hold only records that
//! survived a collection, which keeps cold records apart from hot ones, and cover the whole hash range.
//!
//! A victim that cannot be read is set aside ([`crate::hashed::segment::unreadable`]): nothing was changed for it, and others are collected.

pub mod victim;

use crate::hashed::HashedEngine;
use crate::hashed::catalog::{Bitmap, Catalog, Install, SegmentState};
use crate::hashed::collect::victim::VictimCursor;
use crate::hashed::flush::{DeathsBySegment, deaths_of};
use crate::hashed::install::{Moved, MovedKey, apply};
use crate::hashed::key_tables::key_reader::{KeyPages, KeyReader};
use crate::hashed::manifest_client::InstallFrame;
use crate::hashed::manifest_room::{is_worth_collecting, large_bytes_max};
use crate::hashed::placement::{self, OutputPlace, Outputs, RecordShare, RecordShares};
use crate::hashed::room::LivePages;
use crate::hashed::segment::unreadable::UnreadablePart;
use crate::hashed::segment::view::Segment;
use crate::hashed::write_count::WriteTally;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_base::base::pace::{COLLECT_MERGE, COLLECT_WRITE};
use tapetum_base::error::Error;
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::extents::{ExtentOwner, ExtentReservation};
use tapetum_base::media::io::{Io, lock};
use tapetum_base::options::Full;
use tapetum_base::phase::{Phase, PhaseCell};
use tapetum_drive::fail_point;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::Codec;

const VICTIMS_MAX: usize = 8;
/// Segments are merged for their numbers' sake when fewer are left.
const NUMBERS_SCARCE: usize = 8;
/// Entries are collected for the manifest's sake when it has room for fewer flushes.
const MANIFEST_SCARCE: u64 = 3;
/// If only the manifest is short of room, a collection must free at least one extent in this many of those that it reads.
const FREED_SHARE: u64 = 8;
const STEP_BYTES: usize = 256 << 10;

struct Victim {
    segment: Arc<Segment>,
    valid: Bitmap,
    live_bytes: u64,
}

/// Why a collection or an eviction did not come to its end.
enum Failure {
    /// A part of the segment with this version cannot be read. Nothing was changed.
    Unreadable(u64, UnreadablePart, Error),
    /// The store has failed.
    Store(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Store(error)
    }
}

impl Victim {
    /// Classifies an error that came from reading a part of the victim.
    fn failure(&self, part: UnreadablePart, error: Error) -> Failure {
        match error {
            Error::Corrupt(_) | Error::Io(_) => Failure::Unreadable(self.segment.descriptor.version, part, error),
            other => Failure::Store(other),
        }
    }

    fn new(engine: &HashedEngine, state: &SegmentState) -> Option<Victim> {
        let segment = engine.segments.get(state.descriptor.number)?;
        Some(Victim { segment, valid: state.valid.clone(), live_bytes: engine.live_bytes(state) })
    }
}

/// The origin of a record of an output, and its place there.
struct VictimRecord {
    hash: HashKey,
    victim: u32,
    entry: u32,
    size_bytes: u32,
    place: OutputPlace,
}

/// Segments to merge.
struct Chosen {
    victims: Vec<Victim>,
    /// Extents that merging them into one segment frees.
    extents_freed: u64,
}

impl Chosen {
    fn none() -> Chosen {
        Chosen { victims: Vec::new(), extents_freed: 0 }
    }

    /// The shares of keyspaces in what is kept.
    fn shares(&self) -> RecordShares {
        let mut shares = RecordShares::new();
        for Victim { segment, valid, live_bytes } in self.victims.iter().filter(|victim| victim.live_bytes > 0) {
            let left = RecordShare { records: valid.ones().into(), bytes: *live_bytes };
            placement::add_victim(&mut shares, segment, left);
        }
        shares
    }
}

/// Whether extents, segment numbers or room in the manifest are scarce enough to collect, and there is room for an output beside
/// what a flush that has begun has reserved.
pub fn is_needed(engine: &HashedEngine) -> bool {
    let segment = engine.segment_extents();
    let scarce = is_flash_scarce(engine)
        || engine.numbers_left() < NUMBERS_SCARCE
        || engine.is_manifest_tight(3)
        || engine.manifest_room.flushes_now() < MANIFEST_SCARCE;
    scarce && lock(&engine.extents).room_of(ExtentOwner::Collection) >= segment
}

fn is_flash_scarce(engine: &HashedEngine) -> bool {
    // If writes are refused, a collection frees what it can, and the levels are recomputed.
    let is_short = {
        let extents = lock(&engine.extents);
        extents.free_beside(ExtentOwner::Recovery) < 3 * engine.segment_extents() || extents.are_wanted()
    };
    is_short || engine.is_flash_tight(3) || engine.large_waits_for_collector()
}

/// Whether the coldest segment is to make room, before writers run into the limits of flash, index or manifest.
pub fn must_evict(engine: &HashedEngine) -> bool {
    engine.options.full == Full::Evict
        && (engine.is_flash_tight(4)
            || engine.is_index_tight(2)
            || engine.is_manifest_tight(4)
            || engine.large_waits_for_eviction())
}

/// Collects once; whether there was anything to gain.
pub async fn collect(engine: Arc<HashedEngine>, io: Io, phase: Arc<PhaseCell>) -> Result<bool, Error> {
    let installer = engine.take_installer().await;
    let chosen = choose(&engine, installer.of::<Catalog>());
    let mut reserved = ExtentReservation::up_to(&engine.extents, ExtentOwner::Collection, engine.segment_extents());
    let placement = placement::of_collection(&engine, &chosen.shares(), chosen.extents_freed, &mut reserved);
    let names = placement.take_names(&engine, installer.of::<Catalog>());
    drop(installer);
    let victims = chosen.victims;
    let done = if victims.is_empty() {
        Ok(false)
    } else {
        phase.set(Phase::Collect);
        let extents = victims.iter().map(|victim| u64::from(victim.segment.descriptor.extent_count())).sum();
        engine.pace.collection_began(extents);
        let outputs = Outputs::new(&engine, &io, &placement, &names, reserved);
        let done = collect_as(&engine, &io, &phase, &victims, outputs).await;
        engine.pace.collection_ended();
        engine.counters.collections.fetch_add(1, Ordering::Relaxed);
        match done {
            Err(failure) => set_aside(&engine, failure).await,
            Ok(()) => Ok(true),
        }
    };
    phase.set(Phase::Idle);
    names.iter().for_each(|name| engine.segments.names.release(name.number));
    done
}

/// Sets a segment aside for a while that cannot be read, and expects no room from it. `true`: others are worth another try.
async fn set_aside(engine: &Arc<HashedEngine>, failure: Failure) -> Result<bool, Error> {
    let (version, part, error) = match failure {
        Failure::Unreadable(version, part, error) => (version, part, error),
        Failure::Store(error) => return Err(error),
    };
    tracing::error!("a segment is left as it is, and takes its space until all its items are written anew: {error}");
    engine.segments.unreadable.note(version, part, engine.now());
    // Giving the installer back recomputes the levels.
    drop(engine.take_installer().await);
    Ok(true)
}

/// Drops the coldest segment whole, with whatever is valid in it; whether there was one.
pub async fn evict(engine: Arc<HashedEngine>, io: Io, phase: Arc<PhaseCell>) -> Result<bool, Error> {
    let mut installer = engine.take_installer().await;
    phase.set(Phase::Evict);
    let now = engine.now();
    let states = || installer.of::<Catalog>().segments.values();
    let readable = states().filter(|state| !engine.segments.unreadable.cannot_be_evicted(state, now));
    let coldest = readable.min_by_key(|state| state.descriptor.stamp_max);
    let none_is_readable = coldest.is_none() && states().next().is_some();
    let entries = coldest.map_or(0, |state| u64::from(state.valid_entries));
    if let Some(state) = coldest {
        engine.levels.evicted_stamp_max.fetch_max(state.descriptor.stamp_max, Ordering::SeqCst);
    }
    let victim = coldest.and_then(|state| Victim::new(&engine, state));
    let done = match victim {
        // Nobody would make room for those who wait for it.
        None if none_is_readable => Err(Failure::Store(Error::Io("no segment can be read".into()))),
        None => Ok(false),
        Some(victim) => {
            let output = CollectOutput::default();
            install_output(&engine, &io, &phase, &mut installer, &[victim], output).await.map(|()| true)
        }
    };
    drop(installer);
    phase.set(Phase::Idle);
    match done {
        Ok(true) => {
            engine.counters.evictions.fetch_add(entries, Ordering::Relaxed);
            engine.counters.segments_evicted.fetch_add(1, Ordering::Relaxed);
            Ok(true)
        }
        Ok(false) => Ok(false),
        Err(failure) => set_aside(&engine, failure).await,
    }
}

/// Extents that a segment holds, but for those of large values that live on.
fn all_extents(engine: &HashedEngine, state: &SegmentState) -> u64 {
    u64::from(state.descriptor.extent_count()) + engine.large_expired_extents(state)
}

/// Segments to merge: those with the least valid share, where there are few numbers left those with the fewest bytes, and where
/// the manifest is short of room those with the most dead entries. None if that would gain nothing.
fn choose(engine: &HashedEngine, catalog: &Catalog) -> Chosen {
    let share = |part: u64, whole: u64| part * 1_000_000 / whole.max(1);
    let live_share = |state: &SegmentState| {
        let extents = all_extents(engine, state);
        // A deletion of everything may come meanwhile, hence the saturation.
        share(extents.saturating_sub(engine.reclaimable_extents(state)), extents)
    };
    let valid_share = |state: &SegmentState| share(state.valid_entries.into(), state.descriptor.entries.into());
    // Numbers run out before space does only when there are many small segments.
    let numbers_scarce = engine.numbers_left() < NUMBERS_SCARCE;
    let first = match numbers_scarce {
        true => gather(engine, catalog, |state| engine.live_bytes(state)),
        false => gather(engine, catalog, live_share),
    };
    let least_freed = if is_flash_scarce(engine) { 1 } else { (first.extents / FREED_SHARE).max(1) };
    if first.extents_freed >= least_freed || (numbers_scarce && first.states.len() > 1) {
        return first.chosen(engine);
    }
    let flushes = engine.manifest_room.flushes_now();
    if flushes >= MANIFEST_SCARCE {
        return Chosen::none();
    }
    let dead = gather(engine, catalog, valid_share);
    let (dead_entries, entries) = dead.entries();
    // A flush that waits is worth any collection.
    if is_worth_collecting(dead_entries, entries) || (flushes == 0 && dead_entries > 0) {
        return dead.chosen(engine);
    }
    let small = gather(engine, catalog, |state| engine.live_bytes(state));
    if small.states.len() > 1 { small.chosen(engine) } else { Chosen::none() }
}

/// Segments that fill one output.
struct Gathered<'a> {
    states: Vec<&'a SegmentState>,
    extents: u64,
    extents_freed: u64,
}

impl Gathered<'_> {
    fn chosen(self, engine: &HashedEngine) -> Chosen {
        let victims = self.states.into_iter().filter_map(|state| Victim::new(engine, state)).collect();
        Chosen { victims, extents_freed: self.extents_freed }
    }

    /// How many are dead, of how many.
    fn entries(&self) -> (u64, u64) {
        let sum = |of: fn(&SegmentState) -> u32| self.states.iter().map(|state| u64::from(of(state))).sum::<u64>();
        let (entries, valid) = (sum(|state| state.descriptor.entries), sum(|state| state.valid_entries));
        (entries - valid, entries)
    }
}

/// Takes segments in the order of a key as long as one output holds them. One that names so many large values that the install
/// would be longer than the manifest keeps room for is passed over.
fn gather<'a>(engine: &HashedEngine, catalog: &'a Catalog, key: impl Fn(&SegmentState) -> u64) -> Gathered<'a> {
    let now = engine.now();
    let left_alone =
        |state: &SegmentState| engine.segments.unreadable.is_left_alone(state, engine.live_bytes(state), now);
    let readable = catalog.segments.values().filter(|state| !left_alone(state));
    let mut in_order: Vec<&SegmentState> = readable.collect();
    // Keys are cached, because the values that they depend on, time included, keep changing.
    in_order.sort_by_cached_key(|state| (key(state), state.descriptor.version));
    let mut states: Vec<&SegmentState> = Vec::new();
    let (mut bytes, mut pages, mut extents, mut large_bytes) = (0, LivePages::default(), 0, 0);
    for state in in_order {
        let more_large_bytes = large_bytes + state.large_bytes_max();
        if !states.is_empty() && more_large_bytes > large_bytes_max(&engine.geometry) {
            continue;
        }
        let live = engine.live_pages(state);
        let more_bytes = bytes + engine.live_bytes(state);
        let more_pages = LivePages { data: pages.data + live.data, keys: pages.keys + live.keys };
        let too_large = more_bytes > engine.geometry.segment_bytes
            || engine.extents_for(more_pages) > u64::from(engine.segment_extents());
        if states.len() >= VICTIMS_MAX || (!states.is_empty() && too_large) {
            break;
        }
        (bytes, pages, large_bytes) = (more_bytes, more_pages, more_large_bytes);
        extents += all_extents(engine, state);
        states.push(state);
    }
    Gathered { states, extents, extents_freed: extents.saturating_sub(engine.extents_for(pages)) }
}

async fn collect_as(
    engine: &Arc<HashedEngine>,
    io: &Io,
    phase: &PhaseCell,
    victims: &[Victim],
    mut outputs: Outputs<'_>,
) -> Result<(), Failure> {
    let mut written = WriteTally::default();
    let sources = match merge(engine, io, victims, &mut outputs, &mut written).await {
        Ok(sources) => sources,
        Err(failure) => {
            outputs.give_up().await?;
            return Err(failure);
        }
    };
    let numbers = outputs.numbers().all();
    let output = CollectOutput { sources, numbers, segments: outputs.finish().await? };
    let mut installer = engine.take_installer().await;
    let done = install_output(engine, io, phase, &mut installer, victims, output).await;
    drop(installer);
    engine.write_counts.note(&written);
    done
}

/// The segments that a collection wrote, and the origins of their records. An eviction has none.
#[derive(Default)]
struct CollectOutput {
    /// In the order of their hash keys.
    sources: Vec<VictimRecord>,
    /// Segment numbers by output.
    numbers: Vec<u32>,
    segments: Vec<Arc<Segment>>,
}

impl CollectOutput {
    /// The segment that has a record.
    fn segment(&self, source: &VictimRecord) -> u32 {
        self.numbers[usize::from(source.place.output)]
    }

    /// Whether each record is alive where it came from. Those that died since the choice are born dead.
    fn alive(&self, catalog: &Catalog, victims: &[Victim], deaths: &mut DeathsBySegment) -> Vec<bool> {
        let look = |source: &VictimRecord| {
            let number = victims[source.victim as usize].segment.descriptor.number;
            let alive = catalog.segments[&number].valid.get(source.entry);
            if !alive && !fail_point!(SkipRecheck) {
                deaths.entry(self.segment(source)).or_default().add(source.place.entry, source.size_bytes);
            }
            alive
        };
        self.sources.iter().map(look).collect()
    }
}

/// Writes the victims' valid records in the order of their hash keys.
async fn merge(
    engine: &Arc<HashedEngine>,
    io: &Io,
    victims: &[Victim],
    outputs: &mut Outputs<'_>,
    written: &mut WriteTally,
) -> Result<Vec<VictimRecord>, Failure> {
    let mut cursors = Vec::with_capacity(victims.len());
    // A victim without live records is not read.
    for (number, victim) in victims.iter().enumerate().filter(|(_, victim)| victim.live_bytes > 0) {
        let mut cursor =
            VictimCursor::new(victim.segment.clone(), io, engine.drive.local(), engine.hasher.clone()).await?;
        cursor.advance(&victim.valid).await.map_err(|error| victim.failure(UnreadablePart::Data, error))?;
        cursors.push((number, cursor));
    }
    let mut sources = Vec::new();
    let live_bytes = victims.iter().map(|victim| victim.live_bytes).sum();
    let mut copied_bytes = 0;
    let mut since_step_bytes = 0;
    let mut now_ms = engine.now_ms();
    loop {
        let heads = cursors.iter_mut().filter_map(|(number, cursor)| Some((cursor.head()?, *number, cursor)));
        let Some((hash, number, cursor)) = heads.min_by_key(|(hash, ..)| *hash) else { return Ok(sources) };
        let header = cursor.header();
        // A large value without its extents has died since the cursor passed it.
        let is_large = header.codec == Codec::OutOfLine;
        let large = if is_large { victims[number].segment.large(cursor.entry()) } else { None };
        let gone = is_large && large.is_none();
        if engine.is_live(&header, now_ms) && !gone {
            let record = cursor.record();
            written.collected(&header, record);
            let place = outputs.add(hash, &header, record).await?;
            if let Some(extents) = large
                && !fail_point!(DropLargeInCollection)
            {
                outputs.own_large(place, &header, extents);
            }
            sources.push(VictimRecord {
                hash,
                victim: number as u32,
                entry: cursor.entry(),
                size_bytes: record.len() as u32,
                place,
            });
            since_step_bytes += record.len();
        }
        cursor
            .advance(&victims[number].valid)
            .await
            .map_err(|error| victims[number].failure(UnreadablePart::Data, error))?;
        if since_step_bytes > STEP_BYTES {
            copied_bytes += std::mem::take(&mut since_step_bytes) as u64;
            engine.pace.collected(COLLECT_WRITE, copied_bytes, live_bytes);
            io.step().await;
            now_ms = engine.now_ms();
        }
    }
}

async fn install_output(
    engine: &Arc<HashedEngine>,
    io: &Io,
    phase: &PhaseCell,
    installer: &mut Installer,
    victims: &[Victim],
    output: CollectOutput,
) -> Result<(), Failure> {
    if phase.get() != Phase::Evict {
        phase.set(Phase::Install);
    }
    let mut deaths = DeathsBySegment::new();
    let alive = output.alive(installer.of::<Catalog>(), victims, &mut deaths);
    let sources = &output.sources;
    let install = Install {
        added: output.segments.iter().map(|segment| segment.descriptor.clone()).collect(),
        deaths: deaths_of(deaths),
        dropped: victims.iter().map(|victim| victim.segment.descriptor.number).collect(),
    };
    let deletions = &installer.marks.deletions;
    let marks = engine.deletion_edits(deletions, deletions);
    let left_behind = match left_behind(engine, io, installer, victims, sources, &alive).await {
        Ok(left_behind) => left_behind,
        Err(failure) => {
            output.segments.into_iter().for_each(|segment| engine.segments.discard(segment));
            return Err(failure);
        }
    };
    let tally = left_behind.iter().flatten().map(|(_, keyspace)| (*keyspace, -1)).collect();
    let frame = InstallFrame { install, marks, tally };
    let evicts = frame.install.added.is_empty();
    let too_early = fail_point!(ReuseExtentEarly) || (evicts && fail_point!(EvictExtentsEarly));
    if too_early {
        let early = victims.iter().flat_map(|victim| victim.segment.descriptor.extents());
        early.for_each(|extent| lock(&engine.extents).release(extent));
    }
    let bits = engine.geometry.partition_bits;
    apply(engine, io, phase, installer, &frame, output.segments.clone(), |partition| {
        engine.pace.collected(COLLECT_MERGE, partition as u64, engine.buffers.shards().len() as u64);
        let start = sources.partition_point(|source| source.hash.partition(bits) < partition);
        let own = sources[start..].iter().zip(&alive[start..]);
        let own = own.take_while(|(source, _)| source.hash.partition(bits) == partition);
        let over =
            |source: &VictimRecord| MovedKey { hash: source.hash, moved: Moved::Over, segment: output.segment(source) };
        let mut moved: Vec<_> = own.filter(|(_, alive)| **alive).map(|(source, _)| over(source)).collect();
        if let Some(left_behind) = left_behind.get(partition).filter(|left_behind| !left_behind.is_empty()) {
            moved.extend(left_behind.iter().map(|(hash, _)| MovedKey::out(*hash)));
            moved.sort_unstable_by_key(|key| key.hash);
        }
        moved
    })
    .await?;
    if phase.get() != Phase::Evict {
        let reclaimed = left_behind.iter().map(|keys| keys.len() as u64).sum();
        engine.counters.reclaimed.fetch_add(reclaimed, Ordering::Relaxed);
    }
    if too_early {
        let is_gone = |retired: &Arc<Segment>| victims.iter().any(|victim| Arc::ptr_eq(&victim.segment, retired));
        engine.segments.forget_retired(is_gone);
    }
    Ok(())
}

/// The keys of the victims' valid records that were not copied (expired, or deleted with everything else), by partition. They are removed from the
/// index. Empty when there are none.
async fn left_behind(
    engine: &Arc<HashedEngine>,
    io: &Io,
    installer: &Installer,
    victims: &[Victim],
    sources: &[VictimRecord],
    alive: &[bool],
) -> Result<Vec<Vec<(HashKey, KeyspaceId)>>, Failure> {
    let state = |victim: &Victim| &installer.of::<Catalog>().segments[&victim.segment.descriptor.number];
    let valid: usize = victims.iter().map(|victim| state(victim).valid_entries as usize).sum();
    if valid == alive.iter().filter(|alive| **alive).count() {
        return Ok(Vec::new());
    }
    let mut copied = vec![Vec::new(); victims.len()];
    sources.iter().for_each(|source| copied[source.victim as usize].push(source.entry));
    let mut left_behind = vec![Vec::new(); engine.geometry.partitions()];
    for (victim, copied) in victims.iter().zip(&copied).filter(|(victim, _)| state(victim).valid_entries > 0) {
        let valid = &state(victim).valid;
        each_key(engine, io, &victim.segment, |entry, hash, keyspace| {
            if valid.get(entry) && copied.binary_search(&entry).is_err() {
                left_behind[hash.partition(engine.geometry.partition_bits)].push((hash, keyspace));
            }
        })
        .await
        .map_err(|error| victim.failure(UnreadablePart::KeyTable, error))?;
    }
    Ok(left_behind)
}

/// Reads a key table from front to back.
async fn each_key(
    engine: &HashedEngine,
    io: &Io,
    segment: &Arc<Segment>,
    mut take: impl FnMut(u32, HashKey, KeyspaceId),
) -> Result<(), Error> {
    let mut reader = KeyReader::new(io, engine.drive.local(), engine.hasher.clone());
    let look = |read: &KeyPages<()>| {
        for page in read.pages() {
            let entries = (page.first_entry..).zip(page.entries());
            entries.for_each(|(number, entry)| take(number, entry.hash, KeyspaceId(entry.keyspace())));
        }
        Ok(())
    };
    reader.each(segment, look).await
}

#[cfg(test)]
mod tests;
