use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_in_memory};
use crate::{Error, KeyspaceError, KeyspaceHandle, KeyspaceState, Request, Store, StoreOptions, Sync, check};
use tapetum_drive::{Drive, SplitMix64};

const KEYS: u32 = 1500;

fn key(number: u32) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

/// A value of a keyspace; one in 500 lies in extents of its own.
fn value(name: &str, number: u32) -> Vec<u8> {
    if number.is_multiple_of(500) {
        return SplitMix64::new(u64::from(number) + name.len() as u64).bytes(20_000);
    }
    format!("{name} {number} ").repeat(8).into_bytes()
}

fn fill(keyspace: &KeyspaceHandle, name: &str) {
    for number in 0..KEYS {
        keyspace.put(&key(number), &value(name, number)).unwrap();
    }
}

fn holds(keyspace: &KeyspaceHandle, name: &str) {
    for number in 0..KEYS {
        let found = keyspace.get(&key(number)).unwrap().map(|item| item.value);
        assert_eq!(found, Some(value(name, number)), "{name} {number}");
    }
}

fn options() -> StoreOptions {
    StoreOptions { sync: Sync::No, ..small_options() }
}

/// Steps maintenance until something is so.
fn maintain_until(store: &Store, is_so: impl Fn() -> bool) {
    const PATIENCE_US: u64 = 20_000_000;
    let until_us = store.drive().env().now_us() + PATIENCE_US;
    while !is_so() {
        assert!(store.drive().env().now_us() < until_us, "{:?}, {:?}", store.keyspaces(), store.stats());
        store.maintain();
        std::thread::yield_now();
    }
}

/// Until nothing that was dropped is left.
fn wait_for_purge(store: &Store) {
    maintain_until(store, || store.keyspaces().iter().all(|keyspace| keyspace.state == KeyspaceState::Live));
}

#[test]
fn a_dropped_keyspace_gives_its_room_and_its_id_back_and_others_lose_nothing() {
    let (drive, store) = store_in_memory(SMALL_BYTES, &options());
    for name in ["a", "b"] {
        fill(&store.create_keyspace(name).unwrap(), name);
    }
    fill(&store.keyspace("default").unwrap(), "default");
    let (entries, dropped) = (store.stats().index_entries, store.keyspace("a").unwrap());
    assert!(store.stats().large_values == 9 && entries > u64::from(2 * KEYS));
    store.drop_keyspace("a").unwrap();
    let gone = Error::Keyspace(KeyspaceError::Gone);
    assert_eq!((dropped.get(&key(0)), dropped.delete(&key(0))), (Err(gone.clone()), Err(gone.clone())));
    assert!(store.keyspace("a").is_err());
    wait_for_purge(&store);
    assert_eq!(check(&store).unwrap().problems, Vec::<String>::new());
    let stats = store.stats();
    assert!(stats.index_entries + stats.buffer_entries <= u64::from(2 * KEYS) && stats.large_values == 6, "{stats:?}");
    let again = store.create_keyspace("a").unwrap();
    assert_eq!(again.id(), dropped.id());
    assert_eq!((again.get(&key(0)), dropped.get(&key(0))), (Ok(None), Err(gone)));
    fill(&again, "anew");
    store.close().unwrap();
    drop((again, dropped, store));
    let store = Store::open_on(&drive, &options()).unwrap();
    for (name, values) in [("a", "anew"), ("b", "b"), ("default", "default")] {
        holds(&store.keyspace(name).unwrap(), values);
    }
    assert_eq!(check(&store).unwrap().problems, Vec::<String>::new());
}

#[test]
fn names_are_kept_and_what_is_amiss_is_said() {
    let (drive, store) = store_in_memory(SMALL_BYTES, &options());
    let handle = store.create_keyspace("orders").unwrap();
    handle.put(b"key", b"value").unwrap();
    let refusal = |done: Result<(), Error>| done.unwrap_err().to_string();
    assert!(refusal(store.create_keyspace("orders").map(drop)).contains("already"));
    assert!(refusal(store.create_keyspace("").map(drop)).contains("empty"));
    assert!(refusal(store.create_keyspace(&"n".repeat(300)).map(drop)).contains("300 bytes"));
    assert!(refusal(store.drop_keyspace("default")).contains("always there"));
    assert!(refusal(store.drop_keyspace("none")).contains("no keyspace"));
    store.rename_keyspace("orders", "old orders").unwrap();
    assert_eq!(handle.get(b"key").unwrap().unwrap().value, b"value");
    store.close().unwrap();
    drop((handle, store));
    let store = Store::open_on(&drive, &options()).unwrap();
    assert_eq!(store.keyspace("old orders").unwrap().get(b"key").unwrap().unwrap().value, b"value");
    assert!(store.keyspace("orders").is_err());
}

#[test]
fn a_thousand_keyspaces_are_there_after_a_restart_each_with_its_own() {
    let (drive, store) = store_in_memory(SMALL_BYTES, &options());
    for number in 0..1000 {
        let keyspace = store.create_keyspace(&format!("keyspace {number}")).unwrap();
        keyspace.put(b"key", &key(number)).unwrap();
        if number % 3 == 0 {
            keyspace.run(Request::DeleteAll { at: 0 }).unwrap();
        }
    }
    for _ in 0..2 {
        store.put(b"other", &[7; 30_000]).unwrap();
    }
    store.close().unwrap();
    drop(store);
    let store = Store::open_on(&drive, &options()).unwrap();
    for number in 0..1000 {
        let found = store.keyspace(&format!("keyspace {number}")).unwrap().get(b"key").unwrap();
        let expected = if number % 3 == 0 { None } else { Some(key(number)) };
        assert_eq!(found.map(|item| item.value), expected, "{number}");
    }
}

#[test]
fn what_is_deleted_with_everything_of_one_keyspace_goes_from_the_index_while_others_live_on() {
    let (_, store) = store_in_memory(SMALL_BYTES, &options());
    let keyspace = store.create_keyspace("a").unwrap();
    fill(&keyspace, "a");
    fill(&store.keyspace("default").unwrap(), "default");
    keyspace.run(Request::DeleteAll { at: 0 }).unwrap();
    maintain_until(&store, || store.stats().index_entries <= u64::from(KEYS));
    assert_eq!(keyspace.get(&key(7)), Ok(None));
    holds(&store.keyspace("default").unwrap(), "default");
    assert_eq!(check(&store).unwrap().problems, Vec::<String>::new());
}

/// A store without a thread for maintenance, two keyspaces full.
fn without_thread() -> (Drive, Store) {
    let (drive, store) = store_in_memory(SMALL_BYTES, &options());
    for name in ["a", "b"] {
        fill(&store.create_keyspace(name).unwrap(), name);
    }
    store.close().unwrap();
    drop(store);
    let store = Store::open_with(&drive, &options(), || false).unwrap();
    (drive, store)
}

#[test]
fn an_opening_goes_on_with_a_purge_wherever_it_was_cut_off() {
    for steps in (0..400).step_by(13) {
        let (drive, store) = without_thread();
        store.drop_keyspace("a").unwrap();
        for _ in 0..steps {
            store.maintain();
        }
        store.abandon().unwrap();
        let store = Store::open_with(&drive, &options(), || false).unwrap();
        assert!(store.keyspace("a").is_err(), "after {steps} steps");
        wait_for_purge(&store);
        assert_eq!(check(&store).unwrap().problems, Vec::<String>::new(), "after {steps} steps");
        assert_eq!(store.create_keyspace("c").unwrap().get(&key(1)), Ok(None));
        store.abandon().unwrap();
        let store = Store::open_with(&drive, &options(), || false).unwrap();
        assert_eq!(store.keyspace("c").unwrap().get(&key(1)), Ok(None), "after {steps} steps");
        holds(&store.keyspace("b").unwrap(), "b");
    }
}
