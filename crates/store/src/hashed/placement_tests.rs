//! Which keyspaces share a segment, by what flushes and collections write.

use super::*;
use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_at_rest};
use crate::hashed::flush;
use crate::tools::check::check;
use crate::{KeyspaceHandle, Store, StoreOptions, Sync};
use std::sync::atomic::Ordering;
use tapetum_drive::{Drive, Env, SplitMix64};

fn options() -> StoreOptions {
    StoreOptions { sync: Sync::No, ..small_options() }
}

fn store() -> (Drive, Store) {
    store_at_rest(SMALL_BYTES, &options(), Env::system())
}

/// Puts values of `value_bytes` that are not compressed.
fn put(keyspace: &KeyspaceHandle, numbers: impl IntoIterator<Item = u32>, value_bytes: usize) {
    for number in numbers {
        let value = SplitMix64::new(number.into()).bytes(value_bytes);
        keyspace.put(&number.to_be_bytes(), &value).unwrap();
    }
}

fn has_all(keyspace: &KeyspaceHandle, numbers: impl IntoIterator<Item = u32>, value_bytes: usize) {
    for number in numbers {
        let value = SplitMix64::new(number.into()).bytes(value_bytes);
        assert!(keyspace.get(&number.to_be_bytes()).unwrap().is_some_and(|item| item.value == value), "{number}");
    }
}

fn flush_all(store: &Store) {
    assert!(store.hashed().rotate());
    while store.hashed().buffers.sealed().is_some() {
        store.maintain();
    }
}

/// The keyspaces of each segment, by name, in order.
fn keyspaces_of_segments(store: &Store, keyspaces: &[&KeyspaceHandle]) -> Vec<Vec<usize>> {
    let place = |id: KeyspaceId| keyspaces.iter().position(|keyspace| keyspace.id() == id).unwrap();
    let of = |segment: Arc<Segment>| segment.local_index.shares.iter().map(|share| place(share.keyspace)).collect();
    let mut all: Vec<Vec<usize>> = store.hashed().segments.iter().map(of).collect();
    all.sort();
    all
}

#[test]
fn a_keyspace_that_has_a_quarter_of_a_buffer_gets_a_segment_of_its_own() {
    let (drive, store) = store();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| store.create_keyspace(name).unwrap());
    put(&a, 0..50, 400);
    put(&b, 0..60, 350);
    put(&c, 0..15, 400);
    put(&d, 0..5, 400);
    flush_all(&store);
    assert_eq!(keyspaces_of_segments(&store, &[&a, &b, &c, &d]), [vec![0], vec![1], vec![2, 3]]);
    assert_eq!(store.stats().flushes, 1);
    let has_what_was_put = |[a, b, c, d]: [&KeyspaceHandle; 4]| {
        has_all(a, 0..50, 400);
        has_all(b, 0..60, 350);
        has_all(c, 0..15, 400);
        has_all(d, 0..5, 400);
    };
    has_what_was_put([&a, &b, &c, &d]);

    // All of them are there after a crash.
    drop((a, b, c, d, store));
    let store = Store::open_with(&drive, &options(), || false).unwrap();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| store.keyspace(name).unwrap());
    assert_eq!(keyspaces_of_segments(&store, &[&a, &b, &c, &d]), [vec![0], vec![1], vec![2, 3]]);
    has_what_was_put([&a, &b, &c, &d]);
    check(&store).unwrap();
}

#[test]
fn less_than_a_quarter_of_a_buffer_is_not_separated() {
    let (_drive, store) = store();
    let [a, b] = ["a", "b"].map(|name| store.create_keyspace(name).unwrap());
    put(&a, 0..20, 400);
    put(&b, 0..20, 400);
    flush_all(&store);
    assert_eq!(keyspaces_of_segments(&store, &[&a, &b]), [vec![0, 1]]);
}

#[test]
fn all_share_a_segment_where_flash_or_numbers_are_scarce() {
    let (_drive, store) = store();
    let [a, b] = ["a", "b"].map(|name| store.create_keyspace(name).unwrap());
    put(&a, 0..50, 400);
    put(&b, 0..50, 400);
    let engine = store.hashed();
    let outputs = || {
        let mut reserved = flush::reserve(engine).unwrap();
        of_buffer(engine, engine.buffers.active(), &mut reserved).outputs()
    };
    assert_eq!(outputs(), 3);

    let room = engine.levels.room_extents.swap(0, Ordering::Relaxed);
    assert_eq!(outputs(), 1);
    engine.levels.room_extents.store(room, Ordering::Relaxed);

    let limit = engine.segments.names.limit();
    engine.segments.names.set_limit(4);
    assert_eq!(outputs(), 3);
    let name = engine.segments.names.take(&Catalog::default());
    engine.segments.names.set_limit(5);
    assert_eq!(outputs(), 3);
    engine.segments.names.set_limit(12);
    let more: Vec<SegmentName> = (0..7).map(|_| engine.segments.names.take(&Catalog::default())).collect();
    assert_eq!(outputs(), 1, "four are left of twelve");
    more.iter().chain([&name]).for_each(|name| engine.segments.names.release(name.number));
    engine.segments.names.set_limit(limit);
    assert_eq!(outputs(), 3);

    let mut taken = Vec::new();
    while lock(&engine.extents).free_count() > 2 * engine.segment_extents() + 3 {
        taken.push(lock(&engine.extents).take_one().unwrap());
    }
    assert_eq!(outputs(), 1, "an extent less than two segments more take");
    taken.drain(..).for_each(|extent| lock(&engine.extents).release(extent));
    assert_eq!(outputs(), 3);
}

#[test]
fn a_collection_separates_what_shared_segments() {
    let (_drive, store) = store();
    let [a, b, c] = ["a", "b", "c"].map(|name| store.create_keyspace(name).unwrap());
    let engine = store.hashed();
    // Small segments, which all share.
    for part in 0..8 {
        put(&a, part * 30..part * 30 + 30, 400);
        put(&b, part * 30..part * 30 + 30, 400);
        put(&c, part..part + 1, 400);
        flush_all(&store);
    }
    assert_eq!(keyspaces_of_segments(&store, &[&a, &b, &c]), vec![vec![0, 1, 2]; 8]);
    // Most records of them die.
    for keyspace in [&a, &b] {
        (0..240).filter(|number| number % 3 > 0).for_each(|number| {
            keyspace.delete(&u32::to_be_bytes(number)).unwrap();
        });
    }
    flush_all(&store);
    while engine.counters.collections.load(Ordering::Relaxed) == 0 {
        // As if there were hardly any.
        engine.levels.room_extents.store(0, Ordering::Relaxed);
        store.maintain();
    }
    let mut all = keyspaces_of_segments(&store, &[&a, &b, &c]);
    all.retain(|keyspaces| keyspaces.len() < 3);
    assert_eq!(all, [vec![0], vec![1], vec![2]], "each has its own");
    for keyspace in [&a, &b] {
        has_all(keyspace, (0..240).filter(|number| number % 3 == 0), 400);
        assert_eq!(keyspace.get(&1u32.to_be_bytes()).unwrap(), None);
    }
    has_all(&c, 0..8, 400);
    check(&store).unwrap();
}

#[test]
fn shares_of_a_victim_are_those_of_its_list() {
    let (_drive, store) = store();
    let [a, b] = ["a", "b"].map(|name| store.create_keyspace(name).unwrap());
    put(&a, 0..30, 400);
    put(&b, 0..10, 400);
    flush_all(&store);
    let segment = store.hashed().segments.iter().next().unwrap();
    let mut shares = RecordShares::new();
    let bytes = segment.descriptor.record_bytes;
    add_victim(&mut shares, &segment, RecordShare { records: 20, bytes: bytes / 2 });
    let of = |keyspace: &KeyspaceHandle| shares[&Some(keyspace.id())];
    assert_eq!((of(&a).records, of(&b).records), (15, 5));
    assert!((bytes * 3 / 8 - 2..=bytes * 3 / 8).contains(&of(&a).bytes), "{} of {bytes}", of(&a).bytes);
}
