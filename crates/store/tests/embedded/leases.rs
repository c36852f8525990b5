//! Leases, stale items and what is known of reads: the same wherever the item lies, in a write buffer, in a segment, in the
//! DRAM tier, in extents of its own, and after the store is opened again.

use crate::common::{drive_of, flush, new_on, noise};
use std::sync::Arc;
use tapetum::{Condition, Expiry, Marks, Outcome, Request, Store, StoreOptions, Terms};
use tapetum_drive::{Drive, Env, MemoryFlash};

const CAPACITY: u64 = 8 << 20;
const STALE: Marks = Marks { stale: true, leased: false };
const LEASED: Marks = Marks { stale: false, leased: true };
const BOTH: Marks = Marks { stale: true, leased: true };
const FAR: Expiry = Expiry::from_secs(u32::MAX - 1);

fn options() -> StoreOptions {
    let options = StoreOptions { segment_bytes: 64 << 10, partition_bits: 2, ..StoreOptions::new(CAPACITY, 16 << 20) };
    StoreOptions { tier_bytes: 1 << 20, ..options }
}

fn drive_on(flash: &Arc<MemoryFlash>) -> Drive {
    drive_of(flash.clone(), &options(), Env::system())
}

/// The answer of a get of `key` on these terms: marks, whether it won, and the value.
fn get(store: &Store, key: &[u8], terms: Terms) -> Option<(Marks, bool, Vec<u8>)> {
    match store.run(Request::GetAndLease { key, terms }).unwrap() {
        (Outcome::Leased { marks, won, .. }, value) => Some((marks, won, value)),
        (Outcome::Missing, _) => None,
        other => panic!("{other:?}"),
    }
}

fn marks(store: &Store, key: &[u8], terms: Terms) -> (Marks, bool) {
    get(store, key, terms).map(|(marks, won, ..)| (marks, won)).unwrap()
}

const ON_STALE: Terms =
    Terms { stale: true, recache_before: None, vivify: None, touch: None, touch_first: false, unnoticed: false };

/// One life of an item; `elsewhere` moves it between the steps.
fn life(store: &mut Store, value: &[u8], elsewhere: impl Fn(&mut Store)) {
    let key = b"key";
    let vivify = Terms { vivify: Some(FAR), ..ON_STALE };
    assert_eq!(get(store, key, ON_STALE), None);
    assert_eq!(get(store, key, vivify), Some((LEASED, true, Vec::new())));
    elsewhere(store);
    assert_eq!(marks(store, key, vivify), (LEASED, false));
    store.run(Request::Put { key, value, flags: 7, expiry: FAR, condition: Condition::Present }).unwrap();
    elsewhere(store);
    let soon = Terms { recache_before: Some(Expiry::from_secs(u32::MAX)), unnoticed: true, ..ON_STALE };
    assert_eq!(get(store, key, soon), Some((LEASED, true, value.to_vec())));
    elsewhere(store);
    assert_eq!(get(store, key, soon), Some((LEASED, false, value.to_vec())));
    let invalidated = store.run(Request::Invalidate { key, stamp: None, expiry: None }).unwrap().0;
    assert!(matches!(invalidated, Outcome::Stored { .. }));
    elsewhere(store);
    // A plain get takes no lease.
    assert_eq!(store.get(key).unwrap().unwrap().value, value);
    assert_eq!(marks(store, key, Terms { unnoticed: true, ..Terms::default() }), (STALE, false));
    assert_eq!(marks(store, key, ON_STALE), (BOTH, true));
    elsewhere(store);
    assert_eq!(marks(store, key, ON_STALE), (BOTH, false));
    let stamp = store.get(key).unwrap().unwrap().stamp;
    let older = Condition::StampOrOlder(stamp - 1);
    store.run(Request::Put { key, value: b"older", flags: 1, expiry: Expiry::NONE, condition: older }).unwrap();
    elsewhere(store);
    assert_eq!(marks(store, key, ON_STALE), (BOTH, false));
    let item = store.get(key).unwrap().unwrap();
    assert_eq!((item.value, item.flags, item.expiry), (b"older".to_vec(), 1, FAR));
    store.put(key, b"new").unwrap();
    assert_eq!(marks(store, key, soon), (Marks::NONE, false));
    assert!(store.delete(key).unwrap());
    elsewhere(store);
    assert_eq!(get(store, key, ON_STALE), None);
}

#[test]
fn a_lease_is_given_once_wherever_the_item_lies() {
    let flash = Arc::new(MemoryFlash::new(CAPACITY));
    let mut store = new_on(&drive_on(&flash), &options());
    for value in [noise(1, 300), vec![b'a'; 3000], noise(2, 50_000)] {
        life(&mut store, &value, |_| {});
        life(&mut store, &value, |store| flush(store));
        life(&mut store, &value, |store| {
            flush(store);
            // From flash, and so into the tier.
            store.get(b"key").unwrap();
        });
        life(&mut store, &value, |store| {
            store.close().unwrap();
            *store = Store::open_on(&drive_on(&flash), &options()).unwrap();
        });
    }
}

#[test]
fn an_item_counts_as_read_while_memory_knows_it() {
    let flash = Arc::new(MemoryFlash::new(CAPACITY));
    let store = new_on(&drive_on(&flash), &options());
    let was_read = |terms| match store.run(Request::GetAndLease { key: b"key", terms }).unwrap().0 {
        Outcome::Leased { access, .. } => access.was_read,
        other => panic!("{other:?}"),
    };
    let unnoticed = Terms { unnoticed: true, ..Terms::default() };
    store.put(b"key", b"one").unwrap();
    assert!(!was_read(unnoticed) && !was_read(unnoticed) && !was_read(Terms::default()));
    assert!(was_read(unnoticed));
    store.run(Request::Invalidate { key: b"key", stamp: None, expiry: None }).unwrap();
    assert!(was_read(ON_STALE), "neither another mark nor a lease makes it unread");
    assert!(was_read(ON_STALE));
    flush(&store);
    assert!(was_read(unnoticed), "the flush put it into the tier");
    store.put(b"key", b"two").unwrap();
    assert!(!was_read(unnoticed));
    flush(&store);
    assert!(
        !was_read(unnoticed) && !was_read(Terms::default()),
        "it was put into the tier, and not read since it was written"
    );
    assert!(was_read(unnoticed));
    store.put(b"key", b"three").unwrap();
    flush(&store);
    // A read that writes, too, tells what was before it.
    let touching = Terms { touch: Some(FAR), ..Terms::default() };
    assert!(!was_read(touching) && was_read(touching));
}

#[test]
fn how_long_ago_an_item_was_asked_for_is_known_wherever_it_lies() {
    let flash = Arc::new(MemoryFlash::new(CAPACITY));
    let store = new_on(&drive_on(&flash), &options());
    let unnoticed = Terms { unnoticed: true, ..Terms::default() };
    let idle_seconds = || match store.run(Request::GetAndLease { key: b"key", terms: unnoticed }).unwrap().0 {
        Outcome::Leased { access, .. } => access.idle_seconds,
        other => panic!("{other:?}"),
    };
    store.put(b"key", b"value").unwrap();
    assert!(idle_seconds() <= 1);
    let wait = || {
        while idle_seconds() < 3 {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    wait();
    flush(&store);
    let on_flash = store.stats().get_from_tier;
    assert!(idle_seconds() >= 3, "a flush is no use of it");
    assert_eq!(store.stats().get_from_tier, on_flash);
    // From flash, and so into the tier.
    store.get(b"key").unwrap();
    assert!(idle_seconds() <= 2);
    assert_eq!(store.stats().get_from_tier, on_flash + 1);
    wait();
    store.put(b"key", b"another").unwrap();
    assert!(idle_seconds() <= 2);
}

#[test]
fn of_many_who_ask_at_once_one_gets_the_lease() {
    let flash = Arc::new(MemoryFlash::new(CAPACITY));
    let store = new_on(&drive_on(&flash), &options());
    for round in 0..50u32 {
        let key = format!("key{}", round % 5).into_bytes();
        if round % 10 == 9 {
            flush(&store);
        }
        store.run(Request::Invalidate { key: &key, stamp: None, expiry: None }).unwrap();
        let won: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let (store, key) = (store.clone(), key.clone());
                    let terms = Terms { vivify: Some(FAR), ..ON_STALE };
                    scope.spawn(move || usize::from(get(&store, &key, terms).unwrap().1))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(won, 1, "round {round}");
    }
}
