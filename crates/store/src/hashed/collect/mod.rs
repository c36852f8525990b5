//! The collector: segments with the fewest valid bytes are merged by hash key into a new one; what is dead stays behind.
//!
//! It copies while flushes install, so it rechecks at its own install: what died meanwhile is born dead. Its outputs
//! hold only what survived a collection, which keeps cold records apart from hot ones, and cover the whole hash range.
//!
//! A victim that cannot be read is set aside ([`crate::hashed::segment::unreadable`]): nothing was changed for it, and others are collected.

pub mod victim;

use crate::error::Error;
use crate::hashed::catalog::{Bitmap, Catalog, Install, SegmentState};
use crate::hashed::collect::victim::VictimCursor;
use crate::hashed::flush::{DeathsBySegment, Dying, deaths_of};
use crate::hashed::install::{Moved, apply};
use crate::hashed::key_tables::finish_segment;
use crate::hashed::key_tables::key_reader::{KeyPages, KeyReader};
use crate::hashed::manifest_client::InstallFrame;
use crate::hashed::manifest_room::{is_worth_collecting, large_bytes_max};
use crate::hashed::segment::layout::page_size;
use crate::hashed::segment::unreadable::Part;
use crate::hashed::segment::view::Segment;
use crate::hashed::segment::writer::SegmentWriter;
use crate::installer::Installer;
use crate::keyspace::KeyspaceId;
use crate::maintenance::pace::{COLLECT_MERGE, COLLECT_WRITE};
use crate::media::io::{Io, lock};
use crate::opening::options::Full;
use crate::phase::{Phase, PhaseCell};
use crate::planted::Bug;
use crate::shared::Shared;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::Codec;

/// Segments merged at once.
const VICTIMS_MAX: usize = 8;
/// Segments are merged for their numbers' sake when fewer are left.
const NUMBERS_SCARCE: usize = 8;
/// Entries are collected for the manifest's sake when it has room for fewer flushes.
const MANIFEST_SCARCE: u64 = 3;
/// Where only the manifest is short of room, a collection frees such a part of what it reads, at least.
const FREED_SHARE: u64 = 8;
/// Bytes copied in one step.
const STEP_BYTES: usize = 256 << 10;

struct Victim {
    segment: Arc<Segment>,
    valid: Bitmap,
    live_bytes: u64,
}

/// Why a collection or an eviction did not come to its end.
enum Failure {
    /// A part of the segment with this version cannot be read. Nothing was changed.
    Unreadable(u64, Part, Error),
    /// The store has failed.
    Store(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Store(error)
    }
}

impl Victim {
    /// What an error means that reading a part of it came to.
    fn failure(&self, part: Part, error: Error) -> Failure {
        match error {
            Error::Corrupt(_) | Error::Io(_) => Failure::Unreadable(self.segment.descriptor.version, part, error),
            other => Failure::Store(other),
        }
    }

    fn new(shared: &Shared, state: &SegmentState) -> Option<Victim> {
        let segment = shared.segments[state.descriptor.number as usize].load_full()?;
        Some(Victim { segment, valid: state.valid.clone(), live_bytes: shared.live_bytes(state) })
    }
}

/// Where a record of the output came from.
struct Source {
    hash: HashKey,
    victim: u32,
    entry: u32,
    size_bytes: u32,
}

/// Whether extents, segment numbers or room in the manifest are scarce enough to collect, and there is room for an output beside
/// what a flush that has begun (`flushing`) may still take.
pub fn is_needed(shared: &Shared, flushing: bool) -> bool {
    let free = lock(&shared.extents).free_count();
    let segment = shared.segment_extents();
    let scarce = is_flash_scarce(shared)
        || shared.numbers_left() < NUMBERS_SCARCE
        || shared.is_manifest_tight(3)
        || shared.manifest_room.flushes_now() < MANIFEST_SCARCE;
    scarce && free >= if flushing { 2 * segment } else { segment }
}

fn is_flash_scarce(shared: &Shared) -> bool {
    // Where writes are refused, what can be freed is freed, and the levels are looked at anew.
    lock(&shared.extents).free_count() < 3 * shared.segment_extents()
        || shared.is_flash_tight(3)
        || shared.large_waits_for_collector()
}

/// Whether the coldest segment is to make room, before writers run into the limits of flash, index or manifest.
pub fn must_evict(shared: &Shared) -> bool {
    shared.options.full == Full::Evict
        && (shared.is_flash_tight(4)
            || shared.is_index_tight(2)
            || shared.is_manifest_tight(4)
            || shared.large_waits_for_eviction())
}

/// Collects once; whether there was anything to gain.
pub async fn collect(shared: Arc<Shared>, io: Io, phase: Arc<PhaseCell>) -> Result<bool, Error> {
    let installer = shared.take_installer().await;
    let victims = choose(&shared, &installer.catalog);
    let name = shared.name_segment(&installer.catalog);
    shared.return_installer(installer);
    let done = if victims.is_empty() {
        Ok(false)
    } else {
        phase.set(Phase::Collect);
        let extents = victims.iter().map(|victim| u64::from(victim.segment.descriptor.extent_count())).sum();
        shared.pace.victim_extents.store(extents, Ordering::Relaxed);
        let done = collect_as(&shared, &io, &phase, &victims, name).await;
        shared.pace.collect.reset();
        shared.counters.collections.fetch_add(1, Ordering::Relaxed);
        match done {
            Err(failure) => set_aside(&shared, failure).await,
            Ok(()) => Ok(true),
        }
    };
    phase.set(Phase::Idle);
    shared.release_number(name.0);
    done
}

/// Leaves a segment alone that cannot be read for a while, and expects no room of it. `true`: others are worth another try.
async fn set_aside(shared: &Arc<Shared>, failure: Failure) -> Result<bool, Error> {
    let (version, part, error) = match failure {
        Failure::Unreadable(version, part, error) => (version, part, error),
        Failure::Store(error) => return Err(error),
    };
    tracing::error!("a segment is left as it is, and takes its space until all its items are written anew: {error}");
    shared.unreadable.note(version, part, shared.now());
    let installer = shared.take_installer().await;
    shared.return_installer(installer);
    Ok(true)
}

/// Drops the coldest segment whole, with whatever is valid in it; whether there was one.
pub async fn evict(shared: Arc<Shared>, io: Io, phase: Arc<PhaseCell>) -> Result<bool, Error> {
    let mut installer = shared.take_installer().await;
    phase.set(Phase::Evict);
    let now = shared.now();
    let states = || installer.catalog.segments.values();
    let readable = states().filter(|state| !shared.unreadable.cannot_be_evicted(state, now));
    let coldest = readable.min_by_key(|state| state.descriptor.stamp_max);
    let none_is_readable = coldest.is_none() && states().next().is_some();
    let entries = coldest.map_or(0, |state| u64::from(state.valid_entries));
    if let Some(state) = coldest {
        shared.levels.evicted_stamp_max.fetch_max(state.descriptor.stamp_max, Ordering::SeqCst);
    }
    let victim = coldest.and_then(|state| Victim::new(&shared, state));
    let done = match victim {
        // Nobody would make room for those who wait for it.
        None if none_is_readable => Err(Failure::Store(Error::Io("no segment can be read".into()))),
        None => Ok(false),
        Some(victim) => install_output(&shared, &io, &phase, &mut installer, &[victim], &[], None).await.map(|()| true),
    };
    shared.return_installer(installer);
    phase.set(Phase::Idle);
    match done {
        Ok(true) => {
            shared.counters.evictions.fetch_add(entries, Ordering::Relaxed);
            shared.counters.segments_evicted.fetch_add(1, Ordering::Relaxed);
            Ok(true)
        }
        Ok(false) => Ok(false),
        Err(failure) => set_aside(&shared, failure).await,
    }
}

/// Extents that a segment holds, but for those of large values that live on.
fn all_extents(shared: &Shared, state: &SegmentState) -> u64 {
    u64::from(state.descriptor.extent_count()) + shared.large_expired_extents(state)
}

/// Segments to merge: those with the least valid share, where there are few numbers left those with the fewest bytes, and where
/// the manifest is short of room those with the most dead entries. None if that would gain nothing.
fn choose(shared: &Shared, catalog: &Catalog) -> Vec<Victim> {
    let share = |part: u64, whole: u64| part * 1_000_000 / whole.max(1);
    let live_share = |state: &SegmentState| {
        let extents = all_extents(shared, state);
        // Deletions of everything happen meanwhile.
        share(extents.saturating_sub(shared.reclaimable_extents(state)), extents)
    };
    let valid_share = |state: &SegmentState| share(state.valid_entries.into(), state.descriptor.entries.into());
    // Numbers run out before space does only when there are many small segments.
    let numbers_scarce = shared.numbers_left() < NUMBERS_SCARCE;
    let first = match numbers_scarce {
        true => gather(shared, catalog, |state| shared.live_bytes(state)),
        false => gather(shared, catalog, live_share),
    };
    let least_freed = if is_flash_scarce(shared) { 1 } else { (first.extents / FREED_SHARE).max(1) };
    if first.extents_freed >= least_freed || (numbers_scarce && first.states.len() > 1) {
        return first.victims(shared);
    }
    let flushes = shared.manifest_room.flushes_now();
    if flushes >= MANIFEST_SCARCE {
        return Vec::new();
    }
    let dead = gather(shared, catalog, valid_share);
    let (dead_entries, entries) = dead.entries();
    // A flush that waits is worth any.
    if is_worth_collecting(dead_entries, entries) || (flushes == 0 && dead_entries > 0) {
        return dead.victims(shared);
    }
    let small = gather(shared, catalog, |state| shared.live_bytes(state));
    if small.states.len() > 1 { small.victims(shared) } else { Vec::new() }
}

/// Segments that fill one output.
struct Gathered<'a> {
    states: Vec<&'a SegmentState>,
    extents: u64,
    extents_freed: u64,
}

impl Gathered<'_> {
    fn victims(self, shared: &Shared) -> Vec<Victim> {
        self.states.into_iter().filter_map(|state| Victim::new(shared, state)).collect()
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
fn gather<'a>(shared: &Shared, catalog: &'a Catalog, key: impl Fn(&SegmentState) -> u64) -> Gathered<'a> {
    let now = shared.now();
    let left_alone = |state: &SegmentState| shared.unreadable.is_left_alone(state, shared.live_bytes(state), now);
    let readable = catalog.segments.values().filter(|state| !left_alone(state));
    let mut in_order: Vec<&SegmentState> = readable.collect();
    // Keys are cached: what they are made of, time too, goes on.
    in_order.sort_by_cached_key(|state| (key(state), state.descriptor.version));
    let mut states: Vec<&SegmentState> = Vec::new();
    let (mut bytes, mut pages, mut extents, mut large_bytes) = (0, (0, 0), 0, 0);
    for state in in_order {
        let more_large_bytes = large_bytes + state.large_bytes_max();
        if !states.is_empty() && more_large_bytes > large_bytes_max(&shared.geometry) {
            continue;
        }
        let live = shared.live_pages(state);
        let (more_bytes, more_pages) = (bytes + shared.live_bytes(state), (pages.0 + live.0, pages.1 + live.1));
        let too_large = more_bytes > shared.geometry.segment_bytes
            || shared.extents_for(more_pages) > u64::from(shared.segment_extents());
        if states.len() >= VICTIMS_MAX || (!states.is_empty() && too_large) {
            break;
        }
        (bytes, pages, large_bytes) = (more_bytes, more_pages, more_large_bytes);
        extents += all_extents(shared, state);
        states.push(state);
    }
    Gathered { states, extents, extents_freed: extents.saturating_sub(shared.extents_for(pages)) }
}

async fn collect_as(
    shared: &Arc<Shared>,
    io: &Io,
    phase: &PhaseCell,
    victims: &[Victim],
    name: (u32, u64),
) -> Result<(), Failure> {
    let key_table_bytes_max = shared.key_tables_bytes_max();
    let (geometry, extents) = (&shared.geometry, &shared.extents);
    let (records, record_bytes) = victims
        .iter()
        .fold((0, 0), |(records, bytes), victim| (records + u64::from(victim.valid.ones()), bytes + victim.live_bytes));
    let page_size = page_size(geometry, records, record_bytes);
    let mut writer =
        SegmentWriter::new(io, geometry, shared.store_id, extents, name, page_size, key_table_bytes_max).await?;
    let sources = match merge(shared, io, victims, &mut writer).await {
        Ok(sources) => sources,
        Err(failure) => {
            writer.give_up().await?;
            return Err(failure);
        }
    };
    let segment = if sources.is_empty() { None } else { Some(finish_segment(shared, writer).await?) };
    let mut installer = shared.take_installer().await;
    let done = install_output(shared, io, phase, &mut installer, victims, &sources, segment).await;
    shared.return_installer(installer);
    done
}

/// Writes the victims' valid records in the order of their hash keys.
async fn merge(
    shared: &Arc<Shared>,
    io: &Io,
    victims: &[Victim],
    writer: &mut SegmentWriter,
) -> Result<Vec<Source>, Failure> {
    let mut cursors = Vec::with_capacity(victims.len());
    // Where nothing is live there is nothing to read.
    for (number, victim) in victims.iter().enumerate().filter(|(_, victim)| victim.live_bytes > 0) {
        let mut cursor =
            VictimCursor::new(victim.segment.clone(), io, shared.drive.local(), shared.hasher.clone()).await?;
        cursor.advance(&victim.valid).await.map_err(|error| victim.failure(Part::Data, error))?;
        cursors.push((number, cursor));
    }
    let mut sources = Vec::new();
    let live_bytes = victims.iter().map(|victim| victim.live_bytes).sum();
    let mut copied_bytes = 0;
    let mut since_step_bytes = 0;
    let mut now = shared.now();
    loop {
        let heads = cursors.iter_mut().filter_map(|(number, cursor)| Some((cursor.head()?, *number, cursor)));
        let Some((hash, number, cursor)) = heads.min_by_key(|(hash, ..)| *hash) else { return Ok(sources) };
        let header = cursor.header();
        // Without its extents a large value has died since the cursor came by.
        let is_large = header.codec == Codec::OutOfLine;
        let large = if is_large { victims[number].segment.large(cursor.entry()) } else { None };
        let gone = is_large && large.is_none();
        if shared.is_live(&header, now) && !gone {
            let record = cursor.record();
            writer.add(hash, &header, record).await?;
            if let Some(extents) = large
                && !shared.planted.has(Bug::DropLargeInCollection)
            {
                writer.own_large(&header, extents);
            }
            sources.push(Source {
                hash,
                victim: number as u32,
                entry: cursor.entry(),
                size_bytes: record.len() as u32,
            });
            since_step_bytes += record.len();
        }
        cursor.advance(&victims[number].valid).await.map_err(|error| victims[number].failure(Part::Data, error))?;
        if since_step_bytes > STEP_BYTES {
            copied_bytes += std::mem::take(&mut since_step_bytes) as u64;
            shared.pace.collect.set(COLLECT_WRITE, copied_bytes, live_bytes);
            io.step().await;
            now = shared.now();
        }
    }
}

async fn install_output(
    shared: &Arc<Shared>,
    io: &Io,
    phase: &PhaseCell,
    installer: &mut Installer,
    victims: &[Victim],
    sources: &[Source],
    segment: Option<Arc<Segment>>,
) -> Result<(), Failure> {
    if phase.get() != Phase::Evict {
        phase.set(Phase::Install);
    }
    // What died since the choice is born dead in the output.
    let mut born_dead = Dying::default();
    let alive: Vec<bool> = sources
        .iter()
        .enumerate()
        .map(|(place, source)| {
            let number = victims[source.victim as usize].segment.descriptor.number;
            let alive = installer.catalog.segments[&number].valid.get(source.entry);
            if !alive && !shared.planted.has(Bug::SkipRecheck) {
                born_dead.add(place as u32, source.size_bytes);
            }
            alive
        })
        .collect();
    let mut deaths = DeathsBySegment::new();
    if let (Some(segment), false) = (&segment, born_dead.is_none()) {
        deaths.insert(segment.descriptor.number, born_dead);
    }
    let install = Install {
        added: segment.iter().map(|segment| segment.descriptor.clone()).collect(),
        deaths: deaths_of(deaths),
        dropped: victims.iter().map(|victim| victim.segment.descriptor.number).collect(),
    };
    let deletions = &installer.marks.deletions;
    let marks = shared.deletion_edits(deletions, deletions);
    let left_behind = match left_behind(shared, io, installer, victims, sources, &alive).await {
        Ok(left_behind) => left_behind,
        Err(failure) => {
            discard(shared, segment);
            return Err(failure);
        }
    };
    let tally = left_behind.iter().flatten().map(|(_, keyspace)| (*keyspace, -1)).collect();
    let frame = InstallFrame { install, marks, tally };
    let evicts = frame.install.added.is_empty();
    let too_early = shared.planted.has(Bug::ReuseExtentEarly) || (evicts && shared.planted.has(Bug::EvictExtentsEarly));
    if too_early {
        let early = victims.iter().flat_map(|victim| victim.segment.descriptor.extents());
        early.for_each(|extent| lock(&shared.extents).release(extent));
    }
    let bits = shared.geometry.partition_bits;
    apply(shared, io, phase, installer, &frame, segment, |partition| {
        shared.pace.collect.set(COLLECT_MERGE, partition as u64, shared.shards.len() as u64);
        let start = sources.partition_point(|source| source.hash.partition(bits) < partition);
        let own = sources[start..].iter().zip(&alive[start..]);
        let own = own.take_while(|(source, _)| source.hash.partition(bits) == partition);
        let mut moved: Vec<_> =
            own.filter(|(_, alive)| **alive).map(|(source, _)| (source.hash, Moved::Over)).collect();
        if let Some(left_behind) = left_behind.get(partition).filter(|left_behind| !left_behind.is_empty()) {
            moved.extend(left_behind.iter().map(|(hash, _)| (*hash, Moved::Out)));
            moved.sort_unstable_by_key(|(hash, _)| *hash);
        }
        moved
    })
    .await?;
    if phase.get() != Phase::Evict {
        let reclaimed = left_behind.iter().map(|keys| keys.len() as u64).sum();
        shared.counters.reclaimed.fetch_add(reclaimed, Ordering::Relaxed);
    }
    if too_early {
        lock(&shared.retired).retain(|retired| victims.iter().all(|victim| !Arc::ptr_eq(&victim.segment, retired)));
    }
    Ok(())
}

/// Gives back what was written and is in no manifest.
fn discard(shared: &Shared, segment: Option<Arc<Segment>>) {
    segment.iter().for_each(|segment| shared.key_tables.forget(segment.descriptor.version));
    lock(&shared.retired).extend(segment);
}

/// The keys of the victims' valid records that were not copied (expired, or deleted with everything else), by partition:
/// they go out of the index. Empty when there are none.
async fn left_behind(
    shared: &Arc<Shared>,
    io: &Io,
    installer: &Installer,
    victims: &[Victim],
    sources: &[Source],
    alive: &[bool],
) -> Result<Vec<Vec<(HashKey, KeyspaceId)>>, Failure> {
    let state = |victim: &Victim| &installer.catalog.segments[&victim.segment.descriptor.number];
    let valid: usize = victims.iter().map(|victim| state(victim).valid_entries as usize).sum();
    if valid == alive.iter().filter(|alive| **alive).count() {
        return Ok(Vec::new());
    }
    let mut copied = vec![Vec::new(); victims.len()];
    sources.iter().for_each(|source| copied[source.victim as usize].push(source.entry));
    let mut left_behind = vec![Vec::new(); shared.geometry.partitions()];
    for (victim, copied) in victims.iter().zip(&copied).filter(|(victim, _)| state(victim).valid_entries > 0) {
        let valid = &state(victim).valid;
        each_key(shared, io, &victim.segment, |entry, hash, keyspace| {
            if valid.get(entry) && copied.binary_search(&entry).is_err() {
                left_behind[hash.partition(shared.geometry.partition_bits)].push((hash, keyspace));
            }
        })
        .await
        .map_err(|error| victim.failure(Part::KeyTable, error))?;
    }
    Ok(left_behind)
}

/// Reads a key table from front to back.
async fn each_key(
    shared: &Shared,
    io: &Io,
    segment: &Arc<Segment>,
    mut take: impl FnMut(u32, HashKey, KeyspaceId),
) -> Result<(), Error> {
    let mut reader = KeyReader::new(io, shared.drive.local(), shared.hasher.clone());
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
