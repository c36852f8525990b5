//! Ordered keyspaces: point reads and writes, as hashed ones have them, over openings, crashes and drops.

use super::*;
use std::collections::BTreeMap;
use tapetum::{KeyBound, KeyRange, KeyspaceError, KeyspaceHandle, KeyspaceKind, QueryError};
use tapetum_drive::SplitMix64;

const KEYS: u64 = 600;

fn ordered(store: &Store) -> KeyspaceHandle {
    store.create_keyspace_of("orders", KeyspaceKind::Ordered).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

/// Writes, overwrites and deletes at random; what is there afterwards.
fn filled(keyspace: &KeyspaceHandle, seed: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (mut random, mut model) = (SplitMix64::new(seed), BTreeMap::new());
    for turn in 0..3 * KEYS {
        let key = key(random.below(KEYS));
        if random.below(4) == 0 {
            assert_eq!(keyspace.delete(&key).unwrap(), model.remove(&key).is_some());
            continue;
        }
        let value = noise(turn, random.below(600) as usize);
        keyspace.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    model
}

fn assert_has(keyspace: &KeyspaceHandle, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    assert_eq!(keyspace.item_count().unwrap(), model.len() as u64);
    for number in 0..KEYS {
        let key = key(number);
        let value = keyspace.get(&key).unwrap().map(|item| item.value);
        assert!(value.as_ref() == model.get(&key), "{}", key.escape_ascii());
    }
}

/// For seconds; who calls it looks again.
fn wait_until(is_so: impl Fn() -> bool) {
    for _ in (0..10_000).take_while(|_| !is_so()) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn an_ordered_keyspace_has_what_was_put_and_not_what_was_deleted_after_every_opening() {
    let flash = flash();
    Store::create_on(&drive_on(flash.clone()), &options()).unwrap();
    let mut model = BTreeMap::new();
    for opening in 0..4 {
        let store = Store::open_on(&drive_on(flash.clone()), &options()).unwrap();
        let orders = if opening == 0 { ordered(&store) } else { store.keyspace("orders").unwrap() };
        if opening > 0 {
            assert_has(&orders, &model);
        }
        for number in 0..KEYS {
            orders.delete(&key(number)).unwrap();
        }
        model = filled(&orders, opening);
        store.put(b"hashed", &noise(opening, 3000)).unwrap();
        assert_has(&orders, &model);
        // Every other time it is not closed.
        if opening % 2 == 0 {
            store.close().unwrap();
        }
    }
}

#[test]
fn requests_with_conditions_are_answered_as_those_of_hashed_keyspaces() {
    let store = new_store();
    let orders = ordered(&store);
    let stamp = orders.put(b"number", b"41").unwrap();
    assert_eq!(orders.increment(b"number", 1).unwrap(), Some(42));
    assert_eq!(orders.compare_and_swap(b"number", b"7", stamp).unwrap(), None);
    let stamp = orders.get(b"number").unwrap().unwrap().stamp;
    assert!(orders.compare_and_swap(b"number", b"7", stamp).unwrap().is_some());
    let run = |request| orders.run(request).unwrap().0;
    let append = Request::Append { key: b"number", value: b"0", stamp: None };
    assert!(matches!(run(append), Outcome::Stored { .. }));
    assert_eq!(orders.get(b"number").unwrap().unwrap().value, b"70");
    let add = Request::Put { key: b"number", value: b"", flags: 0, expiry: Expiry::NONE, condition: Condition::Absent };
    assert_eq!(run(add), Outcome::NotStored);
    orders.put_until(b"gone", b"value", Expiry::from_secs(1)).unwrap();
    assert_eq!(orders.get(b"gone").unwrap(), None);
    assert_eq!(run(Request::DeleteAll { at: 0 }), Outcome::Done);
    assert_eq!(orders.get(b"number").unwrap(), None);
    store.put(b"number", b"of another keyspace").unwrap();
    assert_eq!(orders.get(b"number").unwrap(), None);
}

#[test]
fn keys_and_values_that_no_node_takes_are_refused() {
    let store = new_store();
    let orders = ordered(&store);
    assert!(matches!(orders.put(b"", b"value"), Err(Error::KeyEmpty)));
    orders.put(&[b'k'; 1024], b"value").unwrap();
    assert_eq!(orders.get(&[b'k'; 1024]).unwrap().unwrap().value, b"value");
    assert!(matches!(orders.put(&[b'k'; 1025], b"value"), Err(Error::KeyTooLong { limit_bytes: 1024 })));
}

#[test]
fn a_dropped_ordered_keyspace_gives_its_room_back() {
    let store = new_store();
    let before = store.stats().flash_used_bytes;
    let orders = ordered(&store);
    filled(&orders, 1);
    assert!(store.stats().flash_used_bytes > before);
    store.drop_keyspace("orders").unwrap();
    assert!(matches!(orders.get(b"key"), Err(Error::Keyspace(KeyspaceError::Gone))));
    wait_until(|| store.keyspaces().len() == 1 && store.stats().flash_used_bytes == before);
    assert_eq!((store.keyspaces().len(), store.stats().flash_used_bytes), (1, before));
    let again = ordered(&store);
    assert_eq!(again.get(&key(1)).unwrap(), None);
    let model = filled(&again, 2);
    assert_has(&again, &model);
}

fn scanned(keyspace: &KeyspaceHandle, range: KeyRange) -> Vec<(Vec<u8>, Vec<u8>)> {
    keyspace.scan(range).unwrap().map(|item| item.unwrap()).map(|(key, item)| (key, item.value)).collect()
}

#[test]
fn a_scan_shows_a_range_in_order_either_way_and_while_its_nodes_split() {
    let store = new_store();
    let orders = ordered(&store);
    let model = filled(&orders, 3);
    let all: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    assert!(scanned(&orders, KeyRange::default()) == all);
    let (from, to) = (KeyBound::Included(key(100)), KeyBound::Excluded(key(400)));
    let part: Vec<_> = all.iter().filter(|(key, _)| (self::key(100)..self::key(400)).contains(key)).cloned().collect();
    assert!(scanned(&orders, KeyRange { from: from.clone(), to: to.clone(), is_reverse: false }) == part);
    let backwards: Vec<_> = part.into_iter().rev().collect();
    assert!(scanned(&orders, KeyRange { from, to, is_reverse: true }) == backwards);
    let crossed = KeyRange { from: KeyBound::Included(key(2)), to: KeyBound::Excluded(key(1)), is_reverse: false };
    assert!(scanned(&orders, crossed).is_empty());
    let mut shown = Vec::new();
    for (turn, item) in orders.scan(KeyRange::default()).unwrap().enumerate() {
        let (key, _) = item.unwrap();
        orders.put(format!("key{turn:05}~{turn}").as_bytes(), &noise(turn as u64, 300)).unwrap();
        shown.push(key);
        assert!(shown.len() < 3 * KEYS as usize);
    }
    assert!(shown.is_sorted() && model.keys().all(|key| shown.binary_search(key).is_ok()));
    shown.dedup();
    assert!(matches!(
        store.keyspace("default").unwrap().scan(KeyRange::default()),
        Err(QueryError::Store(Error::Keyspace(KeyspaceError::Unordered)))
    ));
}

#[test]
fn values_of_every_size_come_back_after_an_opening() {
    let flash = flash();
    let store = new_on(&drive_on(flash.clone()), &options());
    let orders = ordered(&store);
    let sizes =
        [0, 1, 1000, 1900, 1960, 2000, 3000, 4040, 4096, 5000, 8100, 8192, 16_000, 32_000, 65_536, 65_537, 400_000];
    for (number, size) in sizes.into_iter().enumerate() {
        orders.put(&key(number as u64), &noise(size as u64, size)).unwrap();
    }
    drop((orders, store));
    let store = Store::open_on(&drive_on(flash), &options()).unwrap();
    let orders = store.keyspace("orders").unwrap();
    for (number, size) in sizes.into_iter().enumerate() {
        assert!(orders.get(&key(number as u64)).unwrap().unwrap().value == noise(size as u64, size), "{size}");
    }
    assert!(tapetum::check(&store).unwrap().problems.is_empty());
}

/// Values to 16 MiB, over openings, with and without a close: all at once in one node, replaced, appended to and deleted.
#[test]
fn values_to_sixteen_mebibytes_come_back_and_give_their_room_back() {
    const MAX: usize = 16 << 20;
    let wide = StoreOptions { segment_bytes: 1 << 20, ..StoreOptions::new(512 << 20, 160 << 20) };
    let flash = Arc::new(MemoryFlash::new(512 << 20));
    let drive = || drive_of(flash.clone(), &wide, Env::system());
    let store = new_on(&drive(), &wide);
    assert_eq!(store.value_bytes_max(), MAX);
    let orders = ordered(&store);
    orders.put(b"small", b"").unwrap();
    let before = store.stats().flash_used_bytes;
    let sizes = [65_537, 1 << 20, (1 << 20) + 1, 5_000_000, MAX - 1, MAX];
    let value = |number: usize| noise(number as u64, sizes[number]);
    for number in 0..sizes.len() {
        orders.put(&key(number as u64), &value(number)).unwrap();
    }
    assert!(matches!(orders.put(b"k", &vec![0; MAX + 1]), Err(Error::ValueTooLarge { limit_bytes: MAX })));
    let append = |orders: &KeyspaceHandle, number: u64| {
        let key = key(number);
        orders.run(Request::Append { key: &key, value: b"!", stamp: None }).map(|(outcome, _)| outcome)
    };
    assert!(matches!(append(&orders, 5), Err(Error::ValueTooLarge { .. })));
    assert!(matches!(append(&orders, 4), Ok(Outcome::Stored { .. })));
    drop((orders, store));
    for _ in 0..2 {
        let store = Store::open_on(&drive(), &wide).unwrap();
        let orders = store.keyspace("orders").unwrap();
        for number in 0..sizes.len() {
            let expected = if number == 4 { [value(4), b"!".to_vec()].concat() } else { value(number) };
            assert!(orders.get(&key(number as u64)).unwrap().unwrap().value == expected, "{number}");
        }
        assert_eq!(scanned(&orders, KeyRange::default()).len(), sizes.len() + 1);
        assert!(tapetum::check(&store).unwrap().problems.is_empty());
        store.close().unwrap();
    }
    let store = Store::open_on(&drive(), &wide).unwrap();
    let orders = store.keyspace("orders").unwrap();
    (0..sizes.len()).for_each(|number| assert!(orders.delete(&key(number as u64)).unwrap()));
    // A group or two are kept ready, or not yet.
    let most = before + (1 << 20);
    wait_until(|| store.stats().flash_used_bytes <= most);
    assert!(store.stats().flash_used_bytes <= most, "{} of {most} bytes", store.stats().flash_used_bytes);
}

/// Every put is answered, also of nodes that split as the last slot went; after deletions there is room again.
#[test]
fn a_full_keyspace_refuses_puts_and_takes_them_again() {
    let store = new_store();
    let orders = ordered(&store);
    let scattered = |number: u64| key(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20);
    let mut stored = 0;
    let error = loop {
        match orders.put(&scattered(stored), &noise(stored, 900)) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::FullFlash), "{error}");
    for number in (0..stored).step_by(7) {
        assert!(orders.get(&scattered(number)).unwrap().unwrap().value == noise(number, 900), "{number}");
    }
    (0..stored / 2).for_each(|number| assert!(orders.delete(&scattered(number)).unwrap(), "{number}"));
    let put_again = || orders.put(b"again", b"there is room");
    wait_until(|| put_again().is_ok());
    put_again().unwrap();
    assert!(tapetum::check(&store).unwrap().problems.is_empty());
}

/// A value that takes more extents than are side by side is refused, and neither waits nor takes any.
#[test]
fn a_value_for_which_there_is_no_room_is_refused() {
    let store = new_store();
    let orders = ordered(&store);
    let most = store.value_bytes_max();
    let refused =
        (0..).find_map(|number| orders.put(&key(number), &noise(number, most)).err().map(|error| (number, error)));
    let (number, error) = refused.unwrap();
    assert!(matches!(error, Error::FullFlash) && number > 3, "{number}: {error}");
    assert!(orders.get(&key(0)).unwrap().unwrap().value == noise(0, most));
    assert!(orders.delete(&key(0)).unwrap());
    wait_until(|| orders.put(b"again", &noise(7, most)).is_ok());
    assert!(orders.get(b"again").unwrap().unwrap().value == noise(7, most));
    // Nor does it stay full for others.
    assert!(orders.delete(b"again").unwrap());
    wait_until(|| store.put(b"hashed", b"value").is_ok());
    assert!(store.get(b"hashed").unwrap().is_some());
}

#[test]
fn what_was_answered_before_it_was_durable_is_there_after_a_clean_close() {
    let flash = flash();
    let lazily = StoreOptions { sync: Sync::EverySecond, ..options() };
    Store::create_on(&drive_on(flash.clone()), &lazily).unwrap();
    // Nobody maintains it: at the close there are no slots yet, and all is in the first node, which needs one to be split.
    const OF_A_NODE: u64 = 20;
    let store = Store::open_with(&drive_on(flash.clone()), &lazily, || false).unwrap();
    let orders = ordered(&store);
    for number in 0..OF_A_NODE {
        orders.put(&key(number), &noise(number, 100)).unwrap();
    }
    store.close().unwrap();
    drop((orders, store));
    let store = Store::open_on(&drive_on(flash), &lazily).unwrap();
    let orders = store.keyspace("orders").unwrap();
    for number in 0..OF_A_NODE {
        assert!(orders.get(&key(number)).unwrap().unwrap().value == noise(number, 100));
    }
}

#[test]
fn an_opening_after_a_drop_gives_back_the_room_that_was_left() {
    let flash = flash();
    Store::create_on(&drive_on(flash.clone()), &options()).unwrap();
    // Nothing is maintained but until a change of keyspaces is made, so the groups are there when the store goes.
    let store = Store::open_with(&drive_on(flash.clone()), &options(), || false).unwrap();
    let before = store.stats().flash_used_bytes;
    let orders = ordered(&store);
    while store.stats().flash_used_bytes == before {
        drop(orders.run(Request::Get { key: b"key" }));
        store.maintain();
    }
    store.drop_keyspace("orders").unwrap();
    assert!(store.stats().flash_used_bytes > before, "the groups are given back later");
    drop((orders, store));
    let store = Store::open_on(&drive_on(flash), &options()).unwrap();
    wait_until(|| store.keyspaces().len() == 1 && store.stats().flash_used_bytes == before);
    assert_eq!((store.keyspaces().len(), store.stats().flash_used_bytes), (1, before));
}

#[test]
fn a_batch_over_keyspaces_of_both_kinds_is_there_as_a_whole_and_many_keys_are_read_at_once() {
    let flash = flash();
    let store = new_on(&drive_on(flash.clone()), &options());
    let orders = ordered(&store);
    let keyspaces = [orders.keyspace(), tapetum::KeyspaceRef::DEFAULT];
    let keys: Vec<Vec<u8>> = (0..KEYS / 20).map(|number| key(7 * number)).collect();
    for round in 0..20_u64 {
        // One of them is in an extension.
        let value = |number: usize| noise(round, if number == 3 { 3000 } else { 100 });
        let values: Vec<Vec<u8>> = (0..keys.len()).map(value).collect();
        let put = |keyspace, number: usize| Write::Put {
            keyspace,
            key: &keys[number],
            value: &values[number],
            flags: round as u32,
            expiry: Expiry::NONE,
        };
        let mut writes: Vec<Write<'_>> =
            (0..keys.len()).flat_map(|number| keyspaces.map(|keyspace| put(keyspace, number))).collect();
        writes.extend(keyspaces.map(|keyspace| Write::Delete { keyspace, key: &keys[5] }));
        store.batch(&writes).unwrap();
        let asked: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        for items in [orders.multi_get(&asked).unwrap(), store.multi_get(&asked).unwrap()] {
            for (number, item) in items.into_iter().enumerate() {
                let expected = (number != 5).then(|| (values[number].clone(), round as u32));
                assert_eq!(item.map(|item| (item.value, item.flags)), expected, "{round} {number}");
            }
        }
    }
    let too_large = noise(1, store.value_bytes_max() + 1);
    let too_large =
        [Write::Put { keyspace: keyspaces[0], key: b"k", value: &too_large, flags: 0, expiry: Expiry::NONE }];
    assert!(matches!(store.batch(&too_large), Err(Error::ValueTooLarge { .. })));
    assert!(matches!(
        store.batch(&[Write::Delete { keyspace: keyspaces[0], key: &[1; 1025] }]),
        Err(Error::KeyTooLong { limit_bytes: 1024 })
    ));
    // It is not closed: what no image has yet comes from the log.
    drop((orders, store));
    let store = Store::open_on(&drive_on(flash), &options()).unwrap();
    let orders = store.keyspace("orders").unwrap();
    let there = |keyspace: &dyn Fn(&[u8]) -> Option<Vec<u8>>| keys.iter().map(|key| keyspace(key)).collect::<Vec<_>>();
    let of_orders = there(&|key| orders.get(key).unwrap().map(|item| item.value));
    assert_eq!(of_orders, there(&|key| store.get(key).unwrap().map(|item| item.value)));
    assert!(of_orders[3] == Some(noise(19, 3000)) && of_orders[5].is_none());
    store.drop_keyspace("orders").unwrap();
    let late = [Write::Delete { keyspace: orders.keyspace(), key: b"k" }];
    assert_eq!(store.batch(&late), Err(Error::Keyspace(KeyspaceError::Gone)));
}

#[test]
fn batches_of_many_threads_beside_single_writes_leave_each_batch_whole() {
    const THREADS: u64 = 3;
    let store = new_store();
    let orders = ordered(&store);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, orders) = (&store, &orders);
            scope.spawn(move || {
                for turn in 0..150_u64 {
                    let value = [thread.to_le_bytes(), turn.to_le_bytes()].concat();
                    let keys: Vec<Vec<u8>> = (0..8).map(|number| key(70 * number)).collect();
                    let put = |key| Write::Put {
                        keyspace: orders.keyspace(),
                        key,
                        value: &value,
                        flags: 0,
                        expiry: Expiry::NONE,
                    };
                    store.batch(&keys.iter().map(|key| put(&key[..])).collect::<Vec<_>>()).unwrap();
                    orders.put(&key(1 + turn % 60 + 70 * thread), &noise(turn, 300)).unwrap();
                }
            });
        }
    });
    let values: Vec<_> = (0..8).map(|number| orders.get(&key(70 * number)).unwrap().unwrap().value).collect();
    assert!(values.iter().all(|value| *value == values[0]), "the last batch is whole: {values:?}");
}
