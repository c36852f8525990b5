//! Counts by keyspace beside models of what the keyspaces have.

use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_at_rest};
use crate::{KeyspaceHandle, Store, StoreOptions, Sync, Write};
use std::collections::BTreeSet;
use tapetum_drive::{Drive, Env, SplitMix64};
use tapetum_kernels::expiry::Expiry;

const NAMES: [&str; 3] = ["default", "a", "b"];

fn options() -> StoreOptions {
    StoreOptions { sync: Sync::No, ..small_options() }
}

struct CountBench {
    drive: Drive,
    store: Store,
    models: [BTreeSet<u64>; 3],
}

impl CountBench {
    fn new() -> CountBench {
        let (drive, store) = store_at_rest(SMALL_BYTES, &options(), Env::simulated(1).0);
        for name in &NAMES[1..] {
            store.create_keyspace(name).unwrap();
        }
        CountBench { drive, store, models: Default::default() }
    }

    fn keyspace(&self, number: usize) -> KeyspaceHandle {
        self.store.keyspace(NAMES[number]).unwrap()
    }

    /// Puts and deletes at random.
    fn change(&mut self, random: &mut SplitMix64, times: u64) {
        for _ in 0..times {
            let (number, key) = (random.below(3) as usize, random.below(300));
            let (keyspace, name) = (self.keyspace(number), format!("key{key}"));
            if random.below(3) == 0 {
                assert_eq!(keyspace.delete(name.as_bytes()).unwrap(), self.models[number].remove(&key));
            } else {
                keyspace.put(name.as_bytes(), &[7; 100]).unwrap();
                self.models[number].insert(key);
            }
        }
    }

    fn flush(&self) {
        // A purge may have sealed a buffer.
        while !self.store.hashed().rotate() {
            self.store.maintain();
        }
        while self.store.hashed().buffers.sealed().is_some() {
            self.store.maintain();
        }
        while self.store.maintain() != crate::Step::Idle {}
    }

    fn reopen(mut self, closes: bool) -> CountBench {
        if closes {
            self.store.close_with(|| false).unwrap();
        } else {
            self.store.hashed().log.advance(true, 0);
            while self.store.log_is_busy() {
                self.store.hashed().log.advance(true, 0);
            }
        }
        drop(self.store);
        self.store = Store::open_with(&self.drive, &options(), || false).unwrap();
        self
    }

    fn counts(&self) -> [u64; 3] {
        let all = self.store.keyspace_items();
        NAMES.map(|name| all.iter().find(|(keyspace, _)| keyspace.name == name).map_or(0, |(_, items)| *items))
    }

    #[track_caller]
    fn assert_exact(&self) {
        assert_eq!(self.counts(), [0, 1, 2].map(|number| self.models[number].len() as u64));
    }
}

#[test]
fn keys_on_flash_are_counted_for_their_keyspaces_over_flushes_and_openings() {
    let (mut bench, mut random) = (CountBench::new(), SplitMix64::new(7));
    for turn in 0..6 {
        bench.change(&mut random, 400);
        bench.flush();
        bench.assert_exact();
        bench = bench.reopen(turn % 2 == 0);
        bench.assert_exact();
    }
    let collections = bench.store.stats().collections;
    while bench.store.stats().collections < collections + 3 {
        bench.change(&mut random, 400);
        bench.flush();
        bench.assert_exact();
    }
}

#[test]
fn what_the_write_buffers_have_is_counted_once_and_not_where_it_was_deleted() {
    let mut bench = CountBench::new();
    let (a, b) = (bench.keyspace(1), bench.keyspace(2));
    for number in 0..3_u64 {
        a.put(format!("key{number}").as_bytes(), b"one").unwrap();
        a.put(format!("key{number}").as_bytes(), b"two").unwrap();
    }
    b.put(b"gone", b"value").unwrap();
    b.delete(b"gone").unwrap();
    assert_eq!(bench.counts(), [0, 3, 0]);
    bench.flush();
    // Over what is on flash.
    a.put(b"key1", b"three").unwrap();
    a.delete(b"key2").unwrap();
    b.put(b"key1", b"of b").unwrap();
    assert_eq!(bench.counts(), [0, 2, 1]);
    bench = bench.reopen(false);
    assert_eq!(bench.counts(), [0, 2, 1]);
}

#[test]
fn a_dropped_keyspace_counts_nothing_and_one_that_was_emptied_nothing_either() {
    let (mut bench, mut random) = (CountBench::new(), SplitMix64::new(9));
    bench.change(&mut random, 600);
    bench.flush();
    let a = bench.keyspace(1);
    a.run(crate::Request::DeleteAll { at: 0 }).unwrap();
    assert_eq!(bench.counts()[1], 0);
    a.put(b"new", b"value").unwrap();
    assert_eq!(bench.counts()[1], 1, "there was one write since");
    bench.store.drop_keyspace("b").unwrap();
    assert_eq!(bench.counts()[2], 0);
    while bench.store.maintain() != crate::Step::Idle {}
    bench.store.create_keyspace("b").unwrap();
    assert_eq!(bench.counts()[2], 0);
    (bench.models[1], bench.models[2]) = (BTreeSet::from([1000]), BTreeSet::new());
    bench.flush();
    bench.assert_exact();
    bench = bench.reopen(true);
    bench.assert_exact();
}

#[test]
fn many_keys_in_the_write_buffer_are_estimated() {
    let options = StoreOptions { segment_bytes: 2 << 20, ..options() };
    let (_drive, store) = store_at_rest(64 << 20, &options, Env::simulated(1).0);
    let items = [6_000_u64, 0, 2_000];
    for name in ["a", "b"] {
        store.create_keyspace(name).unwrap();
    }
    for (name, items) in NAMES.iter().zip(items) {
        let keyspace = store.keyspace(name).unwrap().keyspace();
        for number in 0..items {
            let key = format!("key{number}");
            let put = Write::Put { keyspace, key: key.as_bytes(), value: b"v", flags: 0, expiry: Expiry::NONE };
            store.batch(&[put]).unwrap();
        }
    }
    assert_eq!(store.stats().flushes, 0, "all of it is in the buffer");
    for ((keyspace, counted), items) in store.keyspace_items().iter().zip(items) {
        assert!(
            counted.abs_diff(items) <= items / 10,
            "{} has {items} items, and {counted} are counted",
            keyspace.name
        );
    }
}
