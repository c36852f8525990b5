//! Batches over a whole store, with keyspaces of both engines, whose power fails anywhere: all of a batch survives, or nothing.

use super::store_bench::Bench;
use crate::Error;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::log::Sync;
use tapetum_base::request::Outcome;
use tapetum_base::session::batch::Write;
use tapetum_kernels::expiry::Expiry;

const KEYS: u64 = 60;
/// One batch in this many has a value beyond the slabs.
const LARGE_EVERY: u64 = 4;
const LARGE_BYTES: usize = 150_000;

fn key(number: u64) -> Vec<u8> {
    format!("key {:03}", number % KEYS).into_bytes()
}

/// A value of a generation. One in five needs an extension; the others fit a node.
fn value(generation: u64) -> Vec<u8> {
    let bytes = if generation.is_multiple_of(5) { 2500 } else { 400 };
    let mut value = vec![generation as u8; bytes];
    value[..8].copy_from_slice(&generation.to_le_bytes());
    value
}

fn large(generation: u64) -> Vec<u8> {
    [value(generation), vec![generation as u8; LARGE_BYTES]].concat()
}

fn generation_of(value: Option<&Vec<u8>>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()))
}

fn put<'a>(keyspace: KeyspaceRef, key: &'a [u8], value: &'a [u8]) -> Write<'a> {
    Write::Put { keyspace, key, value, flags: 0, expiry: Expiry::NONE }
}

/// The keys of a batch: some keys of both keyspaces, and one that every batch writes. It also deletes the key of the batch before.
fn keys_of(generation: u64) -> Vec<Vec<u8>> {
    (0..4).map(|number| key(generation * 7 + number * 13)).collect()
}

/// Submits batches, with single writes among them, until the flash crashes after `events` of its events, and checks the store. Returns the number of
/// batches that were acknowledged.
fn crash_after(events: u64, sync: Sync) -> u64 {
    let mut bench = Bench::new(sync, events);
    let orders = bench.orders();
    bench.flash.crash_after(events);
    let mut acknowledged = 0;
    let mut single = 0;
    loop {
        let generation = acknowledged + 1;
        let (keys, value, large) = (keys_of(generation), value(generation), large(generation));
        let gone = format!("gone {:03}", generation - 1).into_bytes();
        let comes = format!("gone {generation:03}").into_bytes();
        let mut writes: Vec<Write<'_>> =
            keys.iter().flat_map(|key| [put(orders, key, &value), put(KeyspaceRef::DEFAULT, key, &value)]).collect();
        writes.push(Write::Delete { keyspace: orders, key: &gone });
        writes.push(put(orders, &comes, &value));
        if generation.is_multiple_of(LARGE_EVERY) {
            writes.push(put(orders, b"large", &large));
        }
        match bench.batch(&writes) {
            Some(Outcome::Done) => acknowledged = generation,
            None => break,
            Some(other) => panic!("{other:?}"),
        }
        if generation % 3 == 0 {
            match bench.put(orders, b"single", &value) {
                Some(Outcome::Stored { .. }) => single = generation,
                None => break,
                Some(other) => panic!("{other:?}"),
            }
        }
    }
    let place = format!("after {events} events, {sync:?}");
    // Checks twice, as the first opening's writes must be valid too.
    for _ in 0..2 {
        bench = bench.reopen();
        let orders = bench.orders();
        let both = [orders, KeyspaceRef::DEFAULT].map(|keyspace| {
            (0..KEYS).map(|number| generation_of(bench.get(keyspace, &key(number)).as_ref())).collect::<Vec<_>>()
        });
        assert_eq!(both[0], both[1], "{place}");
        let last = both[0].iter().copied().max().unwrap();
        let lost = acknowledged.saturating_sub(last);
        assert!(last <= acknowledged + 1 && (lost == 0 || sync != Sync::Always), "{last} of {acknowledged} {place}");
        // Compares with a model of all batches up to that one.
        let mut model = vec![0; KEYS as usize];
        for generation in 1..=last {
            for number in 0..4 {
                model[((generation * 7 + number * 13) % KEYS) as usize] = generation;
            }
        }
        assert_eq!(both[0], model, "{place}");
        for generation in 1..=last + 1 {
            let there = bench.get(orders, format!("gone {generation:03}").as_bytes()).is_some();
            assert_eq!(there, generation == last, "{generation} of {last} {place}");
        }
        let last_large = last / LARGE_EVERY * LARGE_EVERY;
        let found = bench.get(orders, b"large");
        assert!(found == (last_large > 0).then(|| large(last_large)), "{last_large} of {last} {place}");
        let of_single = generation_of(bench.get(orders, b"single").as_ref());
        assert!(of_single >= single || sync != Sync::Always, "{of_single} of {single} {place}");
        assert_eq!(crate::check(&bench.store).unwrap().problems, Vec::<String>::new());
    }
    acknowledged
}

#[test]
fn batch_across_engines() {
    let always: u64 = (1..50).map(|number| crash_after(number * 37, Sync::Always)).sum();
    assert!(always > 500, "{always}");
    let later: u64 = (1..12).map(|number| crash_after(number * 61, Sync::EverySecond)).sum();
    assert!(later > 100, "{later}");
}

/// Nodes split for a batch, values of extensions, the same key twice.
#[test]
fn a_batch_is_seen_as_a_whole_however_many_nodes_it_takes() {
    let mut bench = Bench::new(Sync::Always, 3);
    let orders = bench.orders();
    for round in 0..6_u64 {
        let keys: Vec<Vec<u8>> = (0..26).map(|number| format!("{number:02}:{round}").into_bytes()).collect();
        let values: Vec<Vec<u8>> = (0..26).map(|number| vec![round as u8; 170 * number % 2600]).collect();
        let mut writes: Vec<Write<'_>> = keys.iter().zip(&values).map(|(key, value)| put(orders, key, value)).collect();
        writes.push(put(orders, &keys[3], b"again"));
        writes.push(Write::Delete { keyspace: orders, key: &keys[5] });
        assert_eq!(bench.batch(&writes), Some(Outcome::Done));
        for (number, (key, value)) in keys.iter().zip(&values).enumerate() {
            let expected = match number {
                3 => Some(b"again".to_vec()),
                5 => None,
                _ => Some(value.clone()),
            };
            assert_eq!(bench.get(orders, key), expected, "{round} {number}");
        }
    }
    let too_long = vec![1; bench.store.value_bytes_max() + 1];
    let refused = bench.batch(&[put(orders, b"k", b"v"), put(orders, b"long", &too_long)]);
    assert!(matches!(refused, Some(Outcome::Failed(Error::ValueTooLarge { .. }))), "{refused:?}");
    let refused = bench.batch(&[put(orders, b"k", b"v"), put(orders, &[1; 1025], b"")]);
    assert!(matches!(refused, Some(Outcome::Failed(Error::KeyTooLong { limit_bytes: 1024 }))), "{refused:?}");
    assert_eq!(bench.get(orders, b"k"), None);
}

/// Values for each slab, beyond the slabs, and as large as any put takes. A batch takes as many slots as it names, and keeps none that it replaces.
#[test]
fn a_batch_takes_values_of_all_sizes_and_gives_back_those_that_it_replaces() {
    let mut bench = Bench::new(Sync::Always, 7);
    let orders = bench.orders();
    let sizes = [5_000, 40_000, 65_000, 66_000, 200_000, bench.store.value_bytes_max()];
    for round in 0..5_u8 {
        let values: Vec<Vec<u8>> = sizes.iter().map(|bytes| vec![round; *bytes]).collect();
        let keys: Vec<Vec<u8>> = sizes.iter().map(|bytes| format!("of {bytes}").into_bytes()).collect();
        let writes: Vec<Write<'_>> = keys.iter().zip(&values).map(|(key, value)| put(orders, key, value)).collect();
        assert_eq!(bench.batch(&writes), Some(Outcome::Done), "round {round}");
        assert!(keys.iter().zip(&values).all(|(key, value)| bench.get(orders, key).as_ref() == Some(value)));
    }
    bench = bench.reopen();
    let orders = bench.orders();
    for bytes in sizes {
        assert_eq!(bench.get(orders, format!("of {bytes}").as_bytes()), Some(vec![4; bytes]), "{bytes}");
    }
    assert_eq!(crate::check(&bench.store).unwrap().problems, Vec::<String>::new());
}

/// A batch whose values were prepared, and that is not submitted again, keeps no room.
#[test]
fn values_of_a_batch_that_is_given_up_are_free_again() {
    let mut bench = Bench::new(Sync::Always, 9);
    let orders = bench.orders();
    let large = vec![3; bench.store.value_bytes_max()];
    for number in 0..40_u32 {
        // Its writes in flight are given up.
        let key = format!("given up {number}").into_bytes();
        for _ in 0..number % 7 {
            let _ =
                bench.session.submit_batch(1, &[put(orders, &key, &large)]).is_ok_and(|()| bench.answer().is_some());
            bench.step().unwrap();
        }
        let writes = [put(orders, b"kept", &large)];
        assert_eq!(bench.batch(&writes), Some(Outcome::Done), "{number}");
        bench.run(orders, crate::Request::Delete { key: &key, stamp: None }).unwrap();
    }
    assert_eq!(bench.get(orders, b"kept"), Some(large));
}

/// The log is trimmed while batches of ordered keys come: their pages are written first.
#[test]
fn the_log_is_trimmed_when_pages_have_what_it_has() {
    for sync in [Sync::Always, Sync::EverySecond, Sync::No] {
        let mut bench = Bench::new(sync, 5);
        let orders = bench.orders();
        for generation in 1..400 {
            let (keys, value) = (keys_of(generation), vec![generation as u8; 700]);
            let writes: Vec<Write<'_>> = keys
                .iter()
                .flat_map(|key| [put(orders, key, &value), put(KeyspaceRef::DEFAULT, key, &value)])
                .collect();
            assert_eq!(bench.batch(&writes), Some(Outcome::Done));
        }
        assert!(bench.store.stats().flushes > 5, "{sync:?}: {}", bench.store.stats().flushes);
        bench.store.close().unwrap();
        let bench = &mut bench.reopen();
        let last = keys_of(399);
        assert!(last.iter().all(|key| bench.get(orders, key) == Some(vec![399_u16 as u8; 700])), "{sync:?}");
    }
}
