//! Tests when the collector is needed, what it takes, and how those fare that wait for it.

use super::*;
use crate::engines::empty_clients;
use crate::hashed::catalog::tests::descriptor;
use crate::hashed::catalog::{Catalog, Deaths};
use crate::hashed::collect::victim::tests::{
    RECORD_BYTES, SMALL_BYTES, small_options, store_at_rest, store_in_memory, store_of_equal_records, wait_for_flush,
};
use crate::hashed::key_tables::finish_segment;
use crate::hashed::manifest_room::KeptRoom;
use crate::hashed::placement::Placement;
use crate::hashed::segment::segment_names::SegmentName;
use crate::hashed::segment::writer::tests::fill;
use crate::{StoreOptions, Sync, Write};
use std::collections::BTreeMap;
use tapetum_base::media::extents::ExtentOwner;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::run;
use tapetum_drive::{Env, SplitMix64};
use tapetum_kernels::expiry::Expiry;

#[test]
fn a_collection_is_needed_where_something_is_scarce_and_its_output_has_room() {
    let options = small_options();
    let (drive, store) = store_in_memory(SMALL_BYTES, &options);
    let (engine, io) = (store.hashed(), Io::new(drive.queue_pair(16).unwrap()));
    // Nobody else recomputes the levels.
    let _installer = run(&io, engine.take_installer(), || false).unwrap();
    let needed = || {
        let beside_a_flush = ExtentReservation::up_to(&engine.extents, ExtentOwner::Flush, engine.segment_extents());
        let needed = is_needed(engine);
        drop(beside_a_flush);
        [is_needed(engine), needed]
    };
    assert_eq!(needed(), [false, false]);

    let mut taken = Vec::new();
    let mut leave = |free| {
        while lock(&engine.extents).free_count() > free {
            taken.push(lock(&engine.extents).take_one().unwrap());
        }
    };
    let segment = engine.segment_extents();
    for (free, expected) in [
        (3 * segment, [false, false]),
        (3 * segment - 1, [true, true]),
        // A segment is kept for it, whatever a flush reserves.
        (segment, [true, true]),
        (segment - 1, [false, false]),
    ] {
        leave(free);
        assert_eq!(needed(), expected, "{free} extents are free");
    }
    taken.drain(..).for_each(|extent| lock(&engine.extents).release(extent));

    let limit = engine.segments.names.limit();
    for (left, expected) in [(NUMBERS_SCARCE, false), (NUMBERS_SCARCE - 1, true)] {
        engine.segments.names.set_limit(limit - (engine.numbers_left() - left) as u32);
        assert_eq!((engine.numbers_left(), needed()), (left, [expected; 2]));
        engine.segments.names.set_limit(limit);
    }

    for (flushes, expected) in [(MANIFEST_SCARCE, false), (MANIFEST_SCARCE - 1, true)] {
        leave_room_in_the_manifest(engine, flushes);
        assert_eq!(needed(), [expected; 2]);
    }
}

/// For so many flushes, by dead entries, which a collection would free.
fn leave_room_in_the_manifest(engine: &HashedEngine, flushes: u64) {
    let mut entries = 0;
    while entries == 0 || engine.manifest_room.flushes_now() > flushes {
        entries += 16 << 10;
        let states = BTreeMap::from([(0, SegmentState::new(descriptor(0, entries)))]);
        let catalog = Catalog { segments: states, ..Catalog::default() };
        let mut clients = empty_clients();
        *clients.of_mut::<Catalog>() = catalog;
        engine.manifest_room.refresh(&engine.geometry, &clients, KeptRoom::default());
    }
    assert_eq!(engine.manifest_room.flushes_now(), flushes);
}

#[test]
fn dead_entries_are_collected_for_the_sake_of_the_manifest_where_it_is_short_of_room() {
    // Full segments, of records of 256 bytes.
    let (drive, store) = store_of_equal_records(64 << 10, RECORD_BYTES);
    let (engine, io) = (store.hashed(), Io::new(drive.queue_pair(16).unwrap()));
    wait_for_flush(engine);
    let mut installer = run(&io, engine.take_installer(), || false).unwrap();
    let segment = *installer.of::<Catalog>().segments.keys().next().expect("some were flushed");
    let few = installer.of::<Catalog>().segments[&segment].descriptor.entries / 64;
    for dead in [0, 1, few, few + 1] {
        let before = installer.of::<Catalog>().segments[&segment].descriptor.entries
            - installer.of::<Catalog>().segments[&segment].valid_entries;
        let entries: Vec<u32> = (before..dead).collect();
        let deaths = Deaths { segment, record_bytes: entries.len() as u64 * RECORD_BYTES, entries };
        let install = Install { deaths: vec![deaths], ..Install::default() };
        installer.of_mut::<Catalog>().install(&install).unwrap();
        for flushes in [0, 1, MANIFEST_SCARCE - 1, MANIFEST_SCARCE] {
            leave_room_in_the_manifest(engine, flushes);
            let gains = flushes < MANIFEST_SCARCE && (dead > few || flushes == 0 && dead > 0);
            let victims = choose(engine, installer.of::<Catalog>()).victims;
            let taken = victims.iter().any(|victim| victim.segment.descriptor.number == segment);
            assert_eq!(taken, gains, "{dead} dead, room for {flushes} flushes");
        }
    }
}

#[test]
fn a_store_that_evicts_makes_room_wherever_it_is_tight() {
    for full in [Full::Error, Full::Evict] {
        let options = StoreOptions { full, ..small_options() };
        let (drive, store) = store_in_memory(SMALL_BYTES, &options);
        let (engine, io) = (store.hashed(), Io::new(drive.queue_pair(16).unwrap()));
        let _installer = run(&io, engine.take_installer(), || false).unwrap();
        assert!(!must_evict(engine));
        let evicts = full == Full::Evict;
        for level in [&engine.levels.room_extents, &engine.levels.index_room_entries] {
            let before = level.swap(0, Ordering::Relaxed);
            assert_eq!(must_evict(engine), evicts);
            level.store(before, Ordering::Relaxed);
        }
        let geometry = Geometry { manifest_bytes: 0, ..engine.geometry };
        engine.manifest_room.refresh(&geometry, &empty_clients(), KeptRoom::default());
        assert_eq!(must_evict(engine), evicts);
    }
}

#[test]
fn who_waits_for_an_eviction_hears_where_no_segment_can_be_read() {
    let options = StoreOptions { full: Full::Evict, ..small_options() };
    let (drive, store) = store_in_memory(SMALL_BYTES, &options);
    let (engine, io) = (store.hashed(), Io::new(drive.queue_pair(16).unwrap()));
    let try_to = || run(&io, evict(engine.clone(), io.clone(), Arc::default()), || false).unwrap();
    assert_eq!(try_to(), Ok(false), "there is none");
    for number in 0.. {
        store.put(format!("key {number}").as_bytes(), &[7; 1000]).unwrap();
        if store.stats().flushes >= 2 {
            break;
        }
    }
    wait_for_flush(engine);
    assert_eq!(try_to(), Ok(true));
    let installer = run(&io, engine.take_installer(), || false).unwrap();
    for state in installer.of::<Catalog>().segments.values() {
        engine.segments.unreadable.note(state.descriptor.version, UnreadablePart::KeyTable, engine.now());
    }
    assert!(!installer.of::<Catalog>().segments.is_empty());
    drop(installer);
    assert!(try_to().unwrap_err().to_string().contains("no segment can be read"));
}

#[test]
fn segments_that_name_many_large_values_are_merged_as_far_as_an_install_may_be_long() {
    const CAPACITY: u64 = 4 << 20;
    let options = StoreOptions {
        segment_bytes: 64 << 10,
        partition_bits: 0,
        sync: Sync::No,
        ..StoreOptions::new(CAPACITY, 32 << 20)
    };
    let (drive, store) = store_in_memory(CAPACITY, &options);
    let mut random = SplitMix64::new(1);
    for number in 0..150 {
        store.put(format!("large:{number}").as_bytes(), &random.bytes(9000)).unwrap();
    }
    let (engine, io) = (store.hashed(), Io::new(drive.queue_pair(16).unwrap()));
    let installer = run(&io, engine.take_installer(), || false).unwrap();
    let named = |states: &mut dyn Iterator<Item = &SegmentState>| -> u64 { states.map(|s| s.large_bytes_max()).sum() };
    let max = large_bytes_max(&engine.geometry);
    assert!(named(&mut installer.of::<Catalog>().segments.values()) > max, "there is more than fits an install");
    let gathered = gather(engine, installer.of::<Catalog>(), |state| engine.live_bytes(state));
    assert!(gathered.states.len() > 1 && named(&mut gathered.states.iter().copied()) <= max);
    drop(gathered);
    drop(installer);
    store.close().unwrap();
}

#[test]
fn an_output_that_is_in_no_manifest_is_given_back() {
    let (drive, store) = store_in_memory(SMALL_BYTES, &small_options());
    let (engine, io) = (store.hashed(), Io::new(drive.queue_pair(16).unwrap()));
    let taken = || (lock(&engine.extents).free_count(), engine.segments.key_tables.bytes());
    let before = taken();
    let writing = async { finish_segment(engine, fill(engine, &io, 1 << 20, 200).await).await.unwrap() };
    let segment = run(&io, writing, || false).unwrap();
    assert!(taken().0 < before.0 && taken().1 > before.1);
    engine.segments.discard(segment);
    engine.segments.reap(&engine.extents, || false);
    assert_eq!(taken(), before);
}

#[test]
fn what_has_expired_since_is_not_copied() {
    let (env, clock) = Env::simulated(1);
    let options = StoreOptions { sync: Sync::No, ..small_options() };
    let (drive, store) = store_at_rest(SMALL_BYTES, &options, env);
    let (engine, io) = (store.hashed(), Io::new(drive.queue_pair(16).unwrap()));
    let expiry = Expiry::from_secs(engine.now() + 10);
    for number in 0..100 {
        let key = format!("key {number}");
        let expiry = if number % 4 == 0 { expiry } else { Expiry::NONE };
        store
            .batch(&[Write::Put {
                keyspace: crate::KeyspaceRef::DEFAULT,
                key: key.as_bytes(),
                value: &[7; 100],
                flags: 0,
                expiry,
            }])
            .unwrap();
    }
    assert!(engine.rotate());
    while engine.buffers.sealed().is_some() {
        store.maintain();
    }
    let installer = run(&io, engine.take_installer(), || false).unwrap();
    let states = installer.of::<Catalog>().segments.values();
    let victims: Vec<Victim> = states.filter_map(|state| Victim::new(engine, state)).collect();
    for (seconds, copied) in [(0, 100), (20, 75)] {
        clock.advance_us(seconds * 1_000_000);
        let merging = async {
            let placement = Placement::shared(engine, &RecordShares::new());
            let names = [SegmentName { number: 0, version: 1 }];
            let reserved = ExtentReservation::up_to(&engine.extents, ExtentOwner::Collection, 8);
            let mut outputs = Outputs::new(engine, &io, &placement, &names, reserved);
            let merged = merge(engine, &io, &victims, &mut outputs, &mut WriteTally::default())
                .await
                .map(|sources| sources.len());
            outputs.give_up().await.unwrap();
            merged
        };
        assert!(matches!(run(&io, merging, || false).unwrap(), Ok(count) if count == copied), "{copied}");
    }
}
