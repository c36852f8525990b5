//! The flush: a sealed write buffer becomes a segment, or several ([`placement`]).
//!
//! ```text
//! check keys · write records  →  flush  →  others checkpointed  →  manifest record (segment, deaths)  →  index merge  →  DRAM tier  →  buffer released,
//!                                                                                                             log trimmed
//! ```
//! The buffer answers reads until the index does. A crash before the manifest record leaves free extents and the log; a
//! crash after it leaves a segment and a log zone nobody replays. Collections may install between a key check and the
//! flush's own install: keys whose check they overtook are checked again, with the installer held.

pub mod checked_keys;
mod groups;
pub mod hash_sort;
pub mod key_check;

use crate::hashed::HashedEngine;
use crate::hashed::buffer::{Place, Shard};
use crate::hashed::catalog::{Catalog, Deaths, Install};
use crate::hashed::flush::checked_keys::{CheckedKey, CheckedKeys};
use crate::hashed::flush::groups::GroupMerger;
use crate::hashed::flush::key_check::{Checked, Relied, check_keys};
use crate::hashed::install::{Moved, MovedKey, apply, forget_large};
use crate::hashed::item_count::by_keyspace::ItemTally;
use crate::hashed::manifest_client::InstallFrame;
use crate::hashed::placement::{self, OutputNumbers, Outputs};
use crate::hashed::segment::view::Segment;
use crate::hashed::write_count::WriteTally;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use tapetum_base::base::log_trim::TrimLeave;
use tapetum_base::base::pace::{FLUSH_KEEP, FLUSH_MERGE, FLUSH_MERGE_TIERED, FLUSH_WRITE};
use tapetum_base::error::Error;
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::extents::{ExtentOwner, ExtentReservation};
use tapetum_base::media::io::{Io, lock};
use tapetum_base::phase::{Phase, PhaseCell};
use tapetum_base::request::item::ItemHead;
use tapetum_drive::fail_point;
use tapetum_kernels::block_group::group_hash;
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Codec, Kind, Record};

/// Records to prefetch ahead of their turn: they lie in the order in which they came.
const PREFETCH_AHEAD: usize = 8;

/// Flushes `buffer`, which is sealed, into extents that were reserved for it.
pub async fn flush(
    engine: Arc<HashedEngine>,
    io: Io,
    phase: Arc<PhaseCell>,
    buffer: u64,
    mut reserved: ExtentReservation,
) -> Result<(), Error> {
    phase.set(Phase::Flush);
    std::future::poll_fn(|_| match engine.log.poisoned() {
        Ok(()) if !engine.log.buffer_written(buffer) && !fail_point!(FlushBeforeLog) => {
            engine.log.advance(true, engine.drive.env().now_us());
            Poll::Pending
        }
        done => Poll::Ready(done),
    })
    .await?;
    engine.begin_trim(KeyspaceKind::Hashed);
    let placement = placement::of_buffer(&engine, buffer, &mut reserved);
    let installer = engine.take_installer().await;
    let names = placement.take_names(&engine, installer.of::<Catalog>());
    drop(installer);
    engine.pace.flush_began(engine.log.filled_bytes());
    let outputs = Outputs::new(&engine, &io, &placement, &names, reserved);
    let done = flush_as(&engine, &io, &phase, buffer, outputs).await;
    names.iter().for_each(|name| engine.segments.names.release(name.number));
    engine.pace.flush_ended();
    phase.set(Phase::Idle);
    done?;
    engine.counters.flushes.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Reserves what a flush may take, if it can end and leave the collector's reserve alone: extents, segment numbers (buffers of few live records use
/// these up first), and room in the manifest.
pub fn reserve(engine: &HashedEngine) -> Option<ExtentReservation> {
    let (may_name, segment) = (may_name_another(engine), engine.segment_extents());
    may_name.then(|| ExtentReservation::begin(&engine.extents, ExtentOwner::Flush, segment))?
}

/// The same for a buffer of nothing but deletions, which makes no segment.
pub fn reserve_none(engine: &HashedEngine) -> Option<ExtentReservation> {
    may_name_another(engine).then(|| ExtentReservation::up_to(&engine.extents, ExtentOwner::Flush, 0))
}

fn may_name_another(engine: &HashedEngine) -> bool {
    engine.numbers_left() >= 4 && engine.manifest_room.flushes_now() >= 1
}

/// Whether [`reserve`] finds room.
pub fn has_room(engine: &HashedEngine) -> bool {
    reserve(engine).is_some()
}

/// Whether a sealed buffer holds nothing but deletions.
pub fn is_of_deletions(engine: &HashedEngine, buffer: u64) -> bool {
    let mut batch = Vec::new();
    engine.buffers.shards().iter().all(|shard| {
        lock(shard).sorted(buffer, &mut batch);
        // SAFETY: the table gave the place. Nobody flushes the buffer meanwhile, which alone releases it.
        batch.iter().all(|&(_, place)| unsafe { engine.log.record(buffer, place) }.header.kind != Kind::Value)
    })
}

async fn flush_as(
    engine: &Arc<HashedEngine>,
    io: &Io,
    phase: &PhaseCell,
    buffer: u64,
    mut outputs: Outputs<'_>,
) -> Result<(), Error> {
    let mut relied = Relied::default();
    let mut shards = Vec::with_capacity(engine.buffers.shards().len());
    let (mut batch, mut checked) = (Vec::new(), Vec::new());
    let (groups, written) = (GroupMerger::default(), WriteTally::default());
    let mut writing = UnitWriter { engine, io, buffer, groups, written };
    for (number, shard) in engine.buffers.shards().iter().enumerate() {
        lock(shard).sorted(buffer, &mut batch);
        let generation = engine.index.partition_generation(number);
        let units;
        let of_units: &[(HashKey, u32)] = match engine.keyspaces.has_groups() {
            true => {
                units = groups::units_of(engine, buffer, batch.clone());
                &units
            }
            false => &batch,
        };
        check_keys(engine, io, &mut relied, of_units, &mut checked).await?;
        if fail_point!(FreeLargeEarly) {
            let mut early = DeathsBySegment::new();
            for checked in &checked {
                if let Checked::Older { segment, entry, size_bytes } = *checked {
                    early.entry(segment).or_default().add(entry, size_bytes);
                }
            }
            forget_large(engine, &Install { deaths: deaths_of(early), ..Install::default() });
        }
        let mut keys = CheckedKeys::default();
        let now_ms = engine.now_ms();
        let mut at = 0;
        for &checked in &checked {
            let unit = groups::unit_at(engine, buffer, &batch, at);
            if let Some(&(_, place_ahead)) = batch.get(at + PREFETCH_AHEAD) {
                engine.log.prefetch_record(buffer, place_ahead);
            }
            at = unit.end;
            keys.push(writing.write(&mut outputs, shard, &batch[unit], checked, now_ms).await?);
        }
        keys.shrink();
        shards.push(ShardKeys { generation, keys });
        engine.pace.flushed(FLUSH_WRITE, shards.len() as u64, engine.buffers.shards().len() as u64);
        io.step().await;
    }
    let numbers = outputs.numbers();
    let segments = outputs.finish().await?;
    // The install trims the log.
    let trim = engine.leave_to_trim(KeyspaceKind::Hashed, buffer).await?;
    let mut installer = engine.take_installer().await;
    // Counted before the buffer is released: those that waited for its flush find it counted.
    engine.write_counts.note(&writing.written);
    let output = FlushOutput { segments, numbers, relied, shards };
    let done = install(engine, io, phase, buffer, &trim, &mut installer, output).await;
    drop(installer);
    // Those that wait for this buffer to be in a segment could not see it before.
    engine.log.wake();
    done
}

/// Writes the units of a buffer to segments, one after the other.
struct UnitWriter<'a> {
    engine: &'a Arc<HashedEngine>,
    io: &'a Io,
    buffer: u64,
    groups: GroupMerger,
    written: WriteTally,
}

impl UnitWriter<'_> {
    /// Writes a key's record, or the group of these blocks, if it is to live.
    async fn write(
        &mut self,
        outputs: &mut Outputs<'_>,
        shard: &Mutex<Shard>,
        entries: &[(HashKey, u32)],
        checked: Checked,
        now_ms: u64,
    ) -> Result<CheckedKey, Error> {
        let UnitWriter { engine, io, buffer, ref mut groups, ref mut written } = *self;
        let (hash, place) = entries[0];
        // SAFETY: the table gave the place. The buffer is released at the end of this flush.
        let (Record { header, .. }, bytes) = unsafe { engine.log.record_and_bytes(buffer, place) };
        let keyspace = KeyspaceId::of(&header);
        if header.grouped {
            // SAFETY: as above.
            entries.iter().for_each(|entry| written.buffered(&unsafe { engine.log.record(buffer, entry.1) }.header));
            let merged = groups.merge(engine, io, buffer, entries, checked).await?;
            if let Some((header, record)) = merged {
                written.flushed(&header, record);
                outputs.add(group_hash(hash), &header, record).await?;
            }
            return Ok(CheckedKey { live: merged.is_some(), keyspace, checked });
        }
        let live = header.kind == Kind::Value && engine.is_live(&header, now_ms);
        if live {
            written.buffered(&header);
            written.flushed(&header, bytes);
            let written_at = outputs.add(hash, &header, bytes).await?;
            if header.codec == Codec::OutOfLine {
                let extents = lock(shard).large(Place { buffer, place });
                outputs.own_large(
                    written_at,
                    &header,
                    extents.expect("a buffer holds the extents that its records name"),
                );
            }
        }
        let lapsed = header.kind == Kind::Value && !live;
        engine.counters.reclaimed.fetch_add(lapsed.into(), Ordering::Relaxed);
        Ok(CheckedKey { live, keyspace, checked })
    }
}

/// The segments that a flush wrote, as far as records live, and the keys that it checked.
struct FlushOutput<'a> {
    segments: Vec<Arc<Segment>>,
    numbers: OutputNumbers<'a>,
    relied: Relied,
    shards: Vec<ShardKeys>,
}

/// Makes the segments and the deaths they bring one change.
async fn install(
    engine: &Arc<HashedEngine>,
    io: &Io,
    phase: &PhaseCell,
    buffer: u64,
    trim: &TrimLeave,
    installer: &mut Installer,
    FlushOutput { segments, numbers, mut relied, mut shards }: FlushOutput<'_>,
) -> Result<(), Error> {
    relied.compare(installer.of::<Catalog>());
    for (number, shard) in shards.iter_mut().enumerate() {
        check_again(engine, io, buffer, number, &relied, shard).await?;
    }
    let (deaths, tally) = (deaths_by(&shards), tally_of(&shards));
    let marks = trim.edits(engine, &installer.marks);
    let added = segments.iter().map(|segment| segment.descriptor.clone()).collect();
    let install = Install { added, deaths: deaths_of(deaths), dropped: Vec::new() };
    let frame = InstallFrame { install, marks, tally };
    phase.set(Phase::Install);
    if fail_point!(TrimLogEarly) {
        release(engine, buffer, trim);
    }
    let merge = if engine.tier.is_some() { FLUSH_MERGE_TIERED } else { FLUSH_MERGE };
    apply(engine, io, phase, installer, &frame, segments, |partition| {
        engine.pace.flushed(merge, partition as u64, engine.buffers.shards().len() as u64);
        let mut batch = Vec::new();
        lock(&engine.buffers.shards()[partition]).sorted(buffer, &mut batch);
        let units = groups::units_of(engine, buffer, batch);
        let keys = units.iter().zip(shards[partition].keys.iter());
        keys.map(|((hash, _), key)| {
            let (moved, segment) = (moved(key), numbers.of(key.keyspace));
            MovedKey { hash: *hash, moved, segment }
        })
        .collect()
    })
    .await?;
    if !fail_point!(TrimLogEarly) {
        keep_wanted(engine, io, buffer).await;
        release(engine, buffer, trim);
    }
    Ok(())
}

/// Puts wanted items into the DRAM tier when they are on flash, so that they need not be read from there. The buffer is not released yet, so a record
/// that is still its key's latest is the one on flash.
async fn keep_wanted(engine: &HashedEngine, io: &Io, buffer: u64) {
    // Copies in DRAM are a help: without memory for them the flush goes on.
    let (Some(tier), Ok(mut decompressor)) = (&engine.tier, Decompressor::new()) else { return };
    let (mut wanted, mut value) = (Vec::new(), Vec::new());
    engine.buffers.glance.begin_giving();
    for (number, shard) in engine.buffers.shards().iter().enumerate() {
        {
            let mut shard = lock(shard);
            if !fail_point!(TierKeepsGiven) {
                shard.begin_giving();
            }
            shard.wanted(buffer, &mut wanted);
        }
        for (at, &(hash, place)) in wanted.iter().enumerate() {
            if let Some(&(hash_ahead, place_ahead)) = wanted.get(at + PREFETCH_AHEAD) {
                engine.log.prefetch_record(buffer, place_ahead);
                tier.prefetch_bucket(hash_ahead);
            }
            // SAFETY: the table gave the place. The buffer is released after this.
            let record = unsafe { engine.log.record(buffer, place) };
            let header = &record.header;
            if !header.holds_value() || !engine.is_live(header, engine.now_ms()) {
                continue;
            }
            let inflated = decompressor.inflate(&record, &mut value);
            assert!(inflated.is_ok(), "the arena holds what was compressed");
            let shard = lock(shard);
            match shard.look(hash) {
                Some((latest, was_read)) if latest == (Place { buffer, place }) || fail_point!(TierKeepsFlushed) => {
                    let (now, access) = (engine.access_clock.seconds(), engine.access_by_stamp(was_read, header.stamp));
                    tier.put(hash, now, ItemHead::of(header), &value, access);
                }
                _ => {}
            }
        }
        engine.pace.flushed(FLUSH_KEEP, number as u64 + 1, engine.buffers.shards().len() as u64);
        io.step().await;
    }
}

/// The keys of a shard in order, as they were checked while the index's partition had this generation.
struct ShardKeys {
    generation: u64,
    keys: CheckedKeys,
}

/// Checks those keys again whose checks an install has overtaken. Nothing moves meanwhile: the caller holds the installer.
async fn check_again(
    engine: &Arc<HashedEngine>,
    io: &Io,
    buffer: u64,
    number: usize,
    relied: &Relied,
    shard: &mut ShardKeys,
) -> Result<(), Error> {
    let rebuilt = engine.index.partition_generation(number) != shard.generation;
    let overtaken = |key: CheckedKey| rebuilt || !relied.holds(key.checked);
    if !shard.keys.iter().any(overtaken) {
        return Ok(());
    }
    let (mut batch, mut checked) = (Vec::new(), Vec::new());
    lock(&engine.buffers.shards()[number]).sorted(buffer, &mut batch);
    let mut batch = groups::units_of(engine, buffer, batch);
    let mut keep = shard.keys.iter().map(overtaken);
    batch.retain(|_| keep.next() == Some(true));
    drop(keep);
    check_keys(engine, io, &mut Relied::default(), &batch, &mut checked).await?;
    if let Some((_, (hash, _))) = checked.iter().zip(&batch).find(|(checked, _)| **checked == Checked::Unclear) {
        return Err(Error::Corrupt(format!(
            "the index names a segment for {hash:?} whose key table has no such entry"
        )));
    }
    let mut again = checked.into_iter();
    let anew = |key: CheckedKey| match overtaken(key) {
        true => CheckedKey { checked: again.next().expect("each that was overtaken was checked"), ..key },
        false => key,
    };
    shard.keys = shard.keys.iter().map(anew).collect();
    Ok(())
}

/// A key that is to be forgotten by a planted bug, or not.
fn is_forgotten(key: CheckedKey) -> bool {
    !key.live && fail_point!(ForgetTombstone)
}

/// Deaths of older records, by segment.
fn deaths_by(shards: &[ShardKeys]) -> DeathsBySegment {
    let mut deaths = DeathsBySegment::new();
    for key in shards.iter().flat_map(|shard| shard.keys.iter()).filter(|key| !is_forgotten(*key)) {
        if let Checked::Older { segment, entry, size_bytes } = key.checked {
            deaths.entry(segment).or_default().add(entry, size_bytes);
        }
    }
    deaths
}

/// How many keys come to flash and go, by keyspace.
fn tally_of(shards: &[ShardKeys]) -> ItemTally {
    let keys = shards.iter().flat_map(|shard| shard.keys.iter());
    keys.map(|key| (key.keyspace, moved(key).items())).collect()
}

/// The change of a key's place in the index.
fn moved(key: CheckedKey) -> Moved {
    Moved::from_check(key.live && !is_forgotten(key), key.checked)
}

/// Readers find the records by the index from here on; the zone and the arena are free.
fn release(engine: &HashedEngine, buffer: u64, trim: &TrimLeave) {
    engine.buffers.release(buffer);
    // SAFETY: all of it was written before its flush began, and no shard names a record of it any more.
    unsafe { trim.release(engine) };
}

/// Entries of a segment that die, and the bytes of their records.
#[derive(Default)]
pub struct Dying {
    record_bytes: u64,
    entries: Vec<u32>,
}

impl Dying {
    pub fn add(&mut self, entry: u32, size_bytes: u32) {
        self.record_bytes += u64::from(size_bytes);
        self.entries.push(entry);
    }
}

pub type DeathsBySegment = BTreeMap<u32, Dying>;

pub fn deaths_of(by_segment: DeathsBySegment) -> Vec<Deaths> {
    by_segment
        .into_iter()
        .map(|(segment, Dying { record_bytes, mut entries })| {
            entries.sort_unstable();
            Deaths { segment, record_bytes, entries }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::empty_clients;
    use crate::hashed::collect::victim::tests::{
        SMALL_BYTES, small_options, store_at_rest, store_in_memory, wait_for_flush,
    };
    use crate::hashed::manifest_room::KeptRoom;
    use crate::{Store, StoreOptions, Sync};
    use tapetum_base::media::geometry::Geometry;
    use tapetum_base::media::io::run;
    use tapetum_drive::{Env, SplitMix64};
    use tapetum_kernels::data_page::PageSize;

    #[test]
    fn pages_are_as_large_as_the_values_of_a_buffer_ask_for() {
        let options = StoreOptions { sync: Sync::No, ..small_options() };
        let page_size_of = |value_bytes: usize| {
            let (_drive, store) = store_in_memory(SMALL_BYTES, &options);
            let engine = store.hashed();
            let mut random = SplitMix64::new(1);
            // Half of them are deleted again. Deletions take no page.
            for number in 0..(48 << 10) / (value_bytes + 40) / 2 * 2 {
                let key = format!("key {number:05}");
                store.put(key.as_bytes(), &random.bytes(value_bytes)).unwrap();
                if number % 2 == 1 {
                    store.delete(key.as_bytes()).unwrap();
                }
            }
            let buffer = engine.buffers.active();
            let mut reserved = reserve(engine).unwrap();
            let placement = placement::of_buffer(engine, buffer, &mut reserved);
            placement.page_size(placement.output(KeyspaceId::DEFAULT))
        };
        assert_eq!([20, 600, 6 << 10].map(page_size_of), [PageSize::Large, PageSize::Small, PageSize::Large]);
    }

    #[test]
    fn keys_are_checked_again_where_their_partition_was_built_anew_since() {
        let options = small_options();
        let (drive, store) = store_in_memory(SMALL_BYTES, &options);
        let engine = store.hashed();
        let key = |number: u32| format!("key {number}").into_bytes();
        let mut number = 0;
        while store.stats().flushes == 0 {
            store.put(&key(number), &[7; 100]).unwrap();
            number += 1;
        }
        let hash = engine.hash(crate::KeyspaceId::DEFAULT, &key(0));
        store.put(&key(0), b"again").unwrap();
        let (partition, mut batch) = (hash.partition(engine.geometry.partition_bits), Vec::new());
        let buffer = lock(&engine.buffers.shards()[partition]).active();
        lock(&engine.buffers.shards()[partition]).sorted(buffer, &mut batch);
        let place = batch.iter().position(|entry| entry.0 == hash).unwrap();
        let io = Io::new(drive.queue_pair(16).unwrap());
        let _installer = run(&io, engine.take_installer(), || false).unwrap();
        let generation = engine.index.partition_generation(partition);
        let check = |generation| {
            // The result of checks at a time when nothing of the key was on flash.
            let keyspace = KeyspaceId::DEFAULT;
            let keys = batch.iter().map(|_| CheckedKey { live: true, keyspace, checked: Checked::New }).collect();
            let mut keys = ShardKeys { generation, keys };
            let relied = Relied::default();
            let checking = check_again(engine, &io, buffer, partition, &relied, &mut keys);
            run(&io, checking, || false).unwrap().unwrap();
            keys.keys.iter().nth(place).map(|key| key.checked)
        };
        assert_eq!(check(generation), Some(Checked::New), "nothing has come between");
        assert!(matches!(check(generation + 1), Some(Checked::Older { .. })));
    }

    #[test]
    fn a_buffer_of_nothing_but_deletions_makes_no_segment() {
        let options = StoreOptions { sync: Sync::No, ..small_options() };
        let (_drive, store) = store_in_memory(SMALL_BYTES, &options);
        let key = |number: u32| format!("a key of some length {number}").into_bytes();
        for number in 0..20_000 {
            store.put(&key(number), b"value").unwrap();
        }
        let mut deleted = 0;
        let mut delete_until = |flushes| {
            while store.stats().flushes < flushes {
                assert_eq!(store.delete(&key(deleted)), Ok(true));
                deleted += 1;
            }
            store.hashed().levels.segments.load(Ordering::Relaxed)
        };
        // The first buffers have puts before them.
        let flushes = store.stats().flushes;
        let before = delete_until(flushes + 3);
        assert!(delete_until(flushes + 6) <= before);
    }

    #[test]
    fn records_that_end_with_their_page_leave_no_empty_one() {
        let (drive, store) = store_in_memory(SMALL_BYTES, &small_options());
        let engine = store.hashed();
        let (mut random, hash) = (SplitMix64::new(1), engine.hash(crate::KeyspaceId::DEFAULT, b"key"));
        let target = 2 * PageSize::Large.payload_bytes();
        let mut put = |bytes| {
            store.put(b"key", &random.bytes(bytes)).unwrap();
            let Some(Place { buffer, place }) = engine.buffers.shard(hash).get(hash) else {
                unreachable!("it was just written")
            };
            // SAFETY: the table gave the place, and nothing is flushed meanwhile.
            unsafe { engine.log.record(buffer, place) }.header.record_bytes()
        };
        let bytes = target - 60;
        let more = target - put(bytes);
        assert_eq!(put(bytes + more), target);
        assert!(engine.rotate());
        wait_for_flush(engine);
        store.close().unwrap();
        drop(store);
        let store = Store::open_on(&drive, &small_options()).unwrap();
        let segment = store.hashed().candidate(hash).unwrap();
        assert_eq!((segment.page_size(), segment.descriptor.data_pages), (PageSize::Large, 2));
        assert_eq!(store.get(b"key").unwrap().unwrap().value.len(), bytes + more);
    }

    #[test]
    fn a_flush_has_room_only_where_flash_numbers_and_the_manifest_all_have() {
        let (_drive, store) = store_at_rest(SMALL_BYTES, &small_options(), Env::system());
        let engine = store.hashed();
        assert!(has_room(engine));

        let reserve = 2 * engine.segment_extents();
        let mut taken = Vec::new();
        while lock(&engine.extents).free_count() > reserve {
            taken.push(lock(&engine.extents).take_one().unwrap());
        }
        assert!(has_room(engine));
        taken.push(lock(&engine.extents).take_one().unwrap());
        assert!(!has_room(engine), "an extent less than the collector's reserve");
        taken.drain(..).for_each(|extent| lock(&engine.extents).release(extent));

        let numbers = engine.segments.names.limit();
        engine.segments.names.set_limit(numbers - engine.numbers_left() as u32 + 4);
        assert!(has_room(engine));
        engine.segments.names.set_limit(engine.segments.names.limit() - 1);
        assert!(!has_room(engine), "a number less");
        engine.segments.names.set_limit(numbers);

        let geometry = Geometry { manifest_bytes: 0, ..engine.geometry };
        engine.manifest_room.refresh(&geometry, &empty_clients(), KeptRoom::default());
        assert!(!has_room(engine), "the manifest cannot name another segment");
    }
}
