//! Warming on a drive in memory: the items that are listed before a store is closed, and those of them that DRAM has after.

use crate::common::drive_of;
use std::ops::ControlFlow;
use std::sync::Arc;
use tapetum::{KeyDigest, Store, StoreOptions, Warmed};
use tapetum_drive::{Env, MemoryFlash, SplitMix64};

const CAPACITY: u64 = 16 << 20;
const KEYS: usize = 2000;

fn options(tier_bytes: u64) -> StoreOptions {
    StoreOptions { segment_bytes: 64 << 10, partition_bits: 2, ..StoreOptions::new(CAPACITY, 16 << 20) }
        .with_tier(tier_bytes)
}

fn open(flash: &Arc<MemoryFlash>, tier_bytes: u64) -> Store {
    let options = options(tier_bytes);
    let drive = drive_of(flash.clone(), &options, Env::system());
    if Store::segment_bytes(&drive).is_err() {
        Store::create_on(&drive, &options).unwrap();
    }
    Store::open_on(&drive, &options).unwrap()
}

fn key(number: usize) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

/// A value; values have many lengths, and some compress.
fn value(number: usize, version: u64) -> Vec<u8> {
    let mut value = format!("{number} as of {version} ").repeat(1 + number % 40).into_bytes();
    if number.is_multiple_of(2) {
        SplitMix64::new(number as u64 ^ version << 32).fill(&mut value);
    }
    value
}

fn fill(store: &Store) {
    put(store, 0..KEYS, 1);
    flush(store, 0);
}

/// Writes so much more that both write buffers are on flash.
fn flush(store: &Store, salt: u64) {
    for number in 0..60 {
        let noise = SplitMix64::new(number ^ salt << 20).bytes(4000);
        store.put(format!("filler:{number}").as_bytes(), &noise).unwrap();
    }
    while store.stats().buffers_sealed > 0 {
        std::thread::yield_now();
    }
}

fn put(store: &Store, numbers: std::ops::Range<usize>, version: u64) {
    for number in numbers {
        store.put(&key(number), &value(number, version)).unwrap();
    }
}

fn delete(store: &Store, numbers: std::ops::Range<usize>) {
    for number in numbers {
        store.delete(&key(number)).unwrap();
    }
}

/// Reads these keys often enough that they are hot.
fn read(store: &Store, numbers: impl Iterator<Item = usize> + Clone) {
    for _ in 0..3 {
        numbers.clone().for_each(|number| drop(store.get(&key(number)).unwrap()));
    }
}

fn hot_keys(store: &Store) -> Vec<KeyDigest> {
    let mut keys = Vec::new();
    store.hot_keys(|more| {
        keys.extend_from_slice(more);
        ControlFlow::Continue(())
    });
    keys
}

fn warm(store: &Store, keys: &[KeyDigest]) -> Warmed {
    let mut warming = store.warm(keys.to_vec()).unwrap();
    while !warming.step() {
        warming.wait();
    }
    warming.warmed()
}

/// Reads keys, which must be as given; how many of them DRAM answered.
fn read_from_dram(store: &Store, expected: impl Iterator<Item = (usize, Option<Vec<u8>>)>) -> u64 {
    let before = store.stats().get_from_tier;
    for (number, expected) in expected {
        assert_eq!(store.get(&key(number)).unwrap().map(|item| item.value), expected, "key {number}");
    }
    store.stats().get_from_tier - before
}

#[test]
fn what_was_hot_is_in_dram_again_and_as_it_is_now() {
    let flash = Arc::new(MemoryFlash::new(CAPACITY));
    let store = open(&flash, 4 << 20);
    fill(&store);
    read(&store, 0..500);
    // Asked for once: not hot.
    (500..600).for_each(|number| drop(store.get(&key(number)).unwrap()));
    let list = hot_keys(&store);
    assert_eq!(list.len(), 500);
    store.close().unwrap();
    drop(store);

    let store = open(&flash, 4 << 20);
    assert_eq!(hot_keys(&store), []);
    // Changes after the list was made: keys written over and in a buffer; deleted; both of them on flash by now.
    put(&store, 100..150, 2);
    delete(&store, 200..250);
    flush(&store, 1);
    put(&store, 110..160, 3);
    delete(&store, 210..260);
    let warmed = warm(&store, &list);
    // Some are in the buffers: they come into DRAM when they are flushed.
    assert_eq!((warmed.put + warmed.there, warmed.gone), (440, 60), "{warmed:?}");
    flush(&store, 2);
    let as_now = |number: usize| match number {
        100..110 => Some(value(number, 2)),
        110..160 => Some(value(number, 3)),
        200..260 => None,
        _ => Some(value(number, 1)),
    };
    assert_eq!(read_from_dram(&store, (0..500).map(|number| (number, as_now(number)))), 440);
    assert_eq!(read_from_dram(&store, (500..600).map(|number| (number, as_now(number)))), 0);
    // Again: all of it is there.
    assert_eq!(warm(&store, &list), Warmed { there: 440, gone: 60, ..Warmed::default() });
    // Items that came from the list are worth a place in the next one.
    assert!(hot_keys(&store).len() >= 440);
}

#[test]
fn a_list_of_anything_is_passed_over() {
    let flash = Arc::new(MemoryFlash::new(CAPACITY));
    let store = open(&flash, 4 << 20);
    fill(&store);
    let strange: Vec<KeyDigest> = (0..5000u128).map(|n| KeyDigest(n.wrapping_mul(u128::MAX / 5003))).collect();
    assert_eq!(warm(&store, &strange), Warmed { gone: 5000, ..Warmed::default() });
    assert_eq!(warm(&store, &[]), Warmed::default());
    assert_eq!(store.stats().get_from_tier, 0);
}

#[test]
fn nothing_goes_for_what_comes_back_and_the_hottest_come_first() {
    let flash = Arc::new(MemoryFlash::new(CAPACITY));
    let store = open(&flash, 4 << 20);
    fill(&store);
    read(&store, 0..KEYS);
    let list = hot_keys(&store);
    assert_eq!(list.len(), KEYS);
    store.close().unwrap();
    drop(store);
    let store = open(&flash, 256 << 10);
    read(&store, 0..20);
    let (first, rest) = list.split_at(200);
    assert_eq!(warm(&store, first).no_room, 0);
    let warmed = warm(&store, rest);
    assert!(warmed.no_room > 100, "{warmed:?}");
    assert_eq!(store.stats().tier_evictions, 0);
    assert_eq!(read_from_dram(&store, (0..20).map(|number| (number, Some(value(number, 1))))), 20);
}

#[test]
fn a_warming_that_is_dropped_leaves_a_store_that_works() {
    let flash = Arc::new(MemoryFlash::new(CAPACITY));
    let store = open(&flash, 4 << 20);
    fill(&store);
    read(&store, 0..KEYS);
    let list = hot_keys(&store);
    store.close().unwrap();
    drop(store);
    let store = open(&flash, 4 << 20);
    for steps in 0..5 {
        let mut warming = store.warm(list.clone()).unwrap();
        for _ in 0..steps {
            warming.step();
        }
    }
    let all = (0..KEYS).map(|number| (number, Some(value(number, 1))));
    read_from_dram(&store, all.clone());
    assert_eq!(read_from_dram(&store, all), KEYS as u64);
    store.close().unwrap();
}
