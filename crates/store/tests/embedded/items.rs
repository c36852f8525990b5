//! The iterator over items: each once, whatever goes on meanwhile.

use super::*;
use std::collections::BTreeMap;

const KEYS: u64 = 4000;

fn key(number: u64) -> Vec<u8> {
    format!("key{number}").into_bytes()
}

fn all(items: tapetum::Items) -> Vec<(Vec<u8>, Vec<u8>)> {
    items.map(|item| item.unwrap()).map(|(key, item)| (key, item.value)).collect()
}

/// The same as a map; panics where a key comes twice.
fn map(items: tapetum::Items) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut map = BTreeMap::new();
    for (key, value) in all(items) {
        assert!(map.insert(key.clone(), value).is_none(), "{key:?} is shown twice");
    }
    map
}

fn filled(store: &Store) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut model = BTreeMap::new();
    for number in 0..KEYS {
        let value = noise(number, (number % 700) as usize);
        store.put(&key(number), &value).unwrap();
        model.insert(key(number), value);
    }
    // Some deleted, some written over: in the write buffers, on flash, or both.
    for number in (0..KEYS).step_by(7) {
        store.delete(&key(number)).unwrap();
        model.remove(&key(number));
    }
    for number in (0..KEYS).step_by(5) {
        let value = noise(KEYS + number, 60);
        store.put(&key(number), &value).unwrap();
        model.insert(key(number), value);
    }
    let large = noise(1, 100_000);
    store.put(b"large", &large).unwrap();
    model.insert(b"large".to_vec(), large);
    model
}

#[test]
fn every_item_of_its_keyspace_is_shown_once_with_its_value() {
    let store = new_store();
    let model = filled(&store);
    let other = store.create_keyspace("other").unwrap();
    other.put(b"key1", b"another's").unwrap();
    store.put_until(b"expired", b"value", Expiry::from_secs(1)).unwrap();
    assert!(map(store.items()) == model);
    assert_eq!(all(other.items()), [(b"key1".to_vec(), b"another's".to_vec())]);
    let with_prefix = model.range(b"key3".to_vec()..b"key4".to_vec()).map(|(key, value)| (key.clone(), value.clone()));
    assert!(map(store.items_with_prefix(b"key3")) == with_prefix.collect());
    assert_eq!(all(new_store().items()), []);
}

#[test]
fn who_iterates_may_write_as_much_as_there_is_room_for() {
    let store = new_store();
    let mut model = filled(&store);
    let mut shown = BTreeMap::new();
    for (turn, item) in store.items().enumerate() {
        let (key, item) = item.unwrap();
        // More than both write buffers take: flush and collector go on.
        store.put(format!("other{}", turn % 500).as_bytes(), &noise(turn as u64, 400)).unwrap();
        assert!(shown.insert(key.clone(), item.value).is_none(), "{key:?} is shown twice");
    }
    shown.retain(|key, _| !key.starts_with(b"other"));
    model.retain(|key, _| !key.starts_with(b"other"));
    assert!(shown == model);
    assert!(store.stats().flushes > 10);
}

#[test]
fn a_dropped_keyspace_ends_the_iteration_with_an_error() {
    let store = new_store();
    let other = store.create_keyspace("other").unwrap();
    other.put(b"key", b"value").unwrap();
    let mut items = other.items();
    store.drop_keyspace("other").unwrap();
    assert!(matches!(items.next(), Some(Err(Error::Keyspace(tapetum::KeyspaceError::Gone)))));
    assert!(items.next().is_none());
}
