//! Freezes of a store under load: what they show, what they keep, and how they end.

#![expect(clippy::disallowed_methods, reason = "the point is real threads and clocks")]

use super::QuerySide;
use super::tests::{Rows, fill, into, ordered, query, rows, sort, store};
use crate::hashed::collect::victim::tests::store_in_memory;
use crate::{
    BlockDevice, Error, Expiry, FREEZES_OF_OWNER_MAX, Freeze, FreezeEnd, FreezeError, FreezeOptions, FrozenKeyspace,
    FrozenView, KeyBound, KeyRange, KeyspaceError, KeyspaceHandle, KeyspaceKind, QueryError, Request, Store,
    StoreOptions, Sync, Terms, Write,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tapetum_drive::{Drive, SplitMix64};

type Items = Vec<(Vec<u8>, Vec<u8>)>;

const CAPACITY: u64 = 256 << 20;

fn new_store(capacity_bytes: u64, sync: Sync) -> (Drive, Store) {
    let options = StoreOptions {
        segment_bytes: 256 << 10,
        partition_bits: 2,
        sync,
        ..StoreOptions::new(capacity_bytes, 64 << 20)
    };
    store_in_memory(capacity_bytes, &options)
}

fn freeze(store: &Store) -> Freeze {
    store.freeze(&FreezeOptions { flash_bytes_max: Some(u64::MAX), ..FreezeOptions::default() }).unwrap()
}

fn items_of(keyspace: &FrozenKeyspace) -> Items {
    let items = keyspace.items(b"").unwrap();
    let mut items: Items = items.map(|item| item.unwrap()).map(|(key, item)| (key, item.value)).collect();
    items.sort();
    items
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

/// Values of all kinds: short ones, those of extensions of a few pages, and now and then a long one.
fn value(random: &mut SplitMix64) -> Vec<u8> {
    let bytes = match random.next_u64() % 80 {
        0 => 70_000,
        1..4 => 5000 + random.next_u64() as usize % 30_000,
        _ => random.next_u64() as usize % 900,
    };
    random.bytes(bytes)
}

/// Writes and deletes at random, in the keyspace and in the model.
fn churn(keyspace: &KeyspaceHandle, random: &mut SplitMix64, count: u32, model: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
    for _ in 0..count {
        let key = key(random.next_u64() as u32 % 3000);
        if random.next_u64().is_multiple_of(4) {
            keyspace.delete(&key).unwrap();
            model.remove(&key);
        } else {
            let value = value(random);
            keyspace.put(&key, &value).unwrap();
            model.insert(key, value);
        }
    }
}

#[test]
fn a_freeze_of_both_kinds_shows_its_moment_again_and_again() {
    for sync in [Sync::No, Sync::Always] {
        let (_drive, store) = new_store(CAPACITY, sync);
        let sorted = store.create_keyspace_of("sorted", KeyspaceKind::Ordered).unwrap();
        let plain = store.create_keyspace("plain").unwrap();
        let (mut random, mut of_sorted, mut of_plain) = (SplitMix64::new(7), BTreeMap::new(), BTreeMap::new());
        let count = if sync == Sync::No { 4000 } else { 300 };
        let mut kept = Vec::new();
        for _ in 0..4 {
            churn(&sorted, &mut random, count, &mut of_sorted);
            churn(&plain, &mut random, count, &mut of_plain);
            let expected: [Items; 2] = [&of_sorted, &of_plain].map(|model| model.clone().into_iter().collect());
            kept.push((freeze(&store), expected));
            for (freeze, expected) in &kept {
                let shown = ["sorted", "plain"].map(|name| items_of(&freeze.keyspace(name).unwrap()));
                assert!(shown == *expected, "{sync:?}, {:?}", freeze.report());
            }
        }
        let reports = store.freezes();
        assert_eq!(reports.len(), 4);
        assert!(reports[0].flash_bytes > 0 && reports[0].memory_bytes > 0, "{reports:?}");
        drop(kept);
        assert_eq!(store.freezes().len(), 0);
    }
}

#[test]
fn an_ordered_freeze_is_scanned_in_order_and_against_it() {
    let (_drive, store) = new_store(CAPACITY, Sync::No);
    let sorted = store.create_keyspace_of("sorted", KeyspaceKind::Ordered).unwrap();
    let (mut random, mut model) = (SplitMix64::new(3), BTreeMap::new());
    churn(&sorted, &mut random, 5000, &mut model);
    let freeze = freeze(&store);
    let frozen: Vec<_> = model.clone().into_iter().collect();
    churn(&sorted, &mut random, 5000, &mut model);
    let of = freeze.keyspace("sorted").unwrap();
    for (from, to) in [(0, 3000), (17, 18), (100, 2000), (2999, 5000), (40, 40)] {
        let (low, high) = (key(from), key(to));
        let expected: Items = frozen.iter().filter(|(key, _)| (&low..&high).contains(&key)).cloned().collect();
        for is_reverse in [false, true] {
            let range =
                KeyRange { from: KeyBound::Included(low.clone()), to: KeyBound::Excluded(high.clone()), is_reverse };
            let mut shown: Items =
                of.scan(range).unwrap().map(|item| item.unwrap()).map(|(key, item)| (key, item.value)).collect();
            if is_reverse {
                shown.reverse();
            }
            assert!(shown == expected, "{from}..{to} {is_reverse}: {} of {}", shown.len(), expected.len());
        }
    }
    let some = of.items(b"key 0001").unwrap().count();
    assert_eq!(some, frozen.iter().filter(|(key, _)| key.starts_with(b"key 0001")).count());
}

#[test]
fn queries_and_graphs_of_a_freeze_give_the_same_rows_at_the_drive_and_on_the_host() {
    let (_drive, store) = store();
    let papers = [store.create_keyspace("plain").unwrap(), ordered(&store, "sorted")];
    papers.iter().for_each(fill);
    let freeze = freeze(&store);
    let all_rows = |keyspace: &FrozenKeyspace, side| {
        let mut taken = Rows::new();
        let ran =
            keyspace
                .query_while(&query(0, rows(None)), side, &KeyRange::default(), &mut into(&mut taken), &mut || true);
        ran.unwrap();
        sort(&mut taken);
        taken
    };
    let frozen = ["plain", "sorted"].map(|name| freeze.keyspace(name).unwrap());
    let before = frozen.each_ref().map(|keyspace| all_rows(keyspace, QuerySide::Drive));
    assert!(before.iter().all(|rows| rows.len() > 1000) && before[0] == before[1]);
    for keyspace in &papers {
        for number in 0..2000u32 {
            keyspace.delete(&number.to_be_bytes()).unwrap();
        }
    }
    for side in [QuerySide::Drive, QuerySide::DriveByRecord, QuerySide::Host] {
        let after = frozen.each_ref().map(|keyspace| all_rows(keyspace, side));
        assert!(after == before, "{side:?}");
    }
}

/// Threads write pairs of keys, one of each kind, the ordered one first: with a hashed one there is the ordered one. Batches have both or none.
#[test]
fn a_freeze_has_with_a_write_all_that_was_acknowledged_before() {
    let (_drive, store) = new_store(CAPACITY, Sync::No);
    let is_over = AtomicBool::new(false);
    let sorted = store.create_keyspace_of("sorted", KeyspaceKind::Ordered).unwrap();
    let plain = store.create_keyspace("plain").unwrap();
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (ended, store, rounds) = (&is_over, &store, &rounds);
        for thread in 0..2u32 {
            let (sorted, plain) = (sorted.clone(), plain.clone());
            scope.spawn(move || {
                for round in 0u64.. {
                    let value = round.to_be_bytes();
                    let of = |name: &str| [name.as_bytes(), &thread.to_be_bytes()].concat();
                    sorted.put(&of("first"), &value).unwrap();
                    plain.put(&of("second"), &value).unwrap();
                    sorted.put(&of("third"), &value).unwrap();
                    let key = of("batch");
                    let (key, value) = (&key[..], &value[..]);
                    let put = |keyspace: &KeyspaceHandle| Write::Put {
                        keyspace: keyspace.keyspace(),
                        key,
                        value,
                        flags: 0,
                        expiry: Expiry::NONE,
                    };
                    store.batch(&[put(&sorted), put(&plain)]).unwrap();
                    // Nodes are split and merged meanwhile.
                    let many = 1 + round as u32 % 300;
                    match round % 600 < 300 {
                        true => drop(sorted.put(&key_of(thread, many), &[7; 800]).unwrap()),
                        false => drop(sorted.delete(&key_of(thread, many)).unwrap()),
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        for _ in 0..60 {
            let before = rounds.load(Ordering::Relaxed);
            let freeze = freeze(store);
            let of = |name: &str| -> BTreeMap<Vec<u8>, Vec<u8>> {
                items_of(&freeze.keyspace(name).unwrap()).into_iter().collect()
            };
            let (of_sorted, of_plain) = (of("sorted"), of("plain"));
            for thread in 0..2u32 {
                let round = |items: &BTreeMap<Vec<u8>, Vec<u8>>, name: &str| {
                    let found = items.get(&[name.as_bytes(), &thread.to_be_bytes()].concat());
                    found.map_or(0, |value| 1 + u64::from_be_bytes(value[..].try_into().unwrap()))
                };
                let [first, third, batch] = ["first", "third", "batch"].map(|name| round(&of_sorted, name));
                let (second, of_batch) = (round(&of_plain, "second"), round(&of_plain, "batch"));
                assert!(first >= second && second >= third && third >= batch, "{first} {second} {third} {batch}");
                assert_eq!(batch, of_batch, "half a batch");
            }
            while rounds.load(Ordering::Relaxed) < before + 20 {
                std::thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

fn key_of(thread: u32, number: u32) -> Vec<u8> {
    format!("node {thread} {number:06}").into_bytes()
}

#[test]
fn dropped_keyspaces_stay_in_a_freeze_also_when_their_names_are_given_again() {
    let (_drive, store) = new_store(CAPACITY, Sync::No);
    let (mut random, mut expected) = (SplitMix64::new(5), Vec::new());
    let names = [("sorted", KeyspaceKind::Ordered), ("plain", KeyspaceKind::Hashed)];
    for (name, kind) in names {
        let (keyspace, mut model) = (store.create_keyspace_of(name, kind).unwrap(), BTreeMap::new());
        churn(&keyspace, &mut random, 3000, &mut model);
        expected.push(model.into_iter().collect::<Items>());
    }
    let freeze = freeze(&store);
    for (name, kind) in names {
        store.drop_keyspace(name).unwrap();
        let again = store.create_keyspace_of(name, kind).unwrap();
        let mut other = BTreeMap::new();
        churn(&again, &mut random, 3000, &mut other);
        (0..2000).for_each(|_| _ = store.maintain());
    }
    for ((name, _), expected) in names.iter().zip(&expected) {
        assert!(items_of(&freeze.keyspace(name).unwrap()) == *expected, "{name}");
    }
    let held = freeze.report().flash_bytes;
    let free = |store: &Store| store.stats().flash_limit_bytes - store.stats().flash_used_bytes;
    let before = free(&store);
    drop(freeze);
    for _ in 0..500 {
        if free(&store) > before {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(held > 0 && free(&store) > before, "{held} were held: {before}, {}", free(&store));
}

#[test]
fn the_oldest_ends_when_writers_need_its_flash_and_they_go_on() {
    for kind in [KeyspaceKind::Ordered, KeyspaceKind::Hashed] {
        let (_drive, store) = new_store(16 << 20, Sync::No);
        let keyspace = store.create_keyspace_of("some", kind).unwrap();
        let mut random = SplitMix64::new(9);
        let mut write = |count: u32| {
            for number in 0..count {
                keyspace.put(&key(number % 7500), &random.bytes(900)).unwrap();
            }
        };
        write(7500);
        let lasting = FreezeOptions { flash_bytes_max: Some(u64::MAX), ..FreezeOptions::default() };
        let (first, second) = (store.freeze(&lasting).unwrap(), store.freeze(&lasting).unwrap());
        let items = first.keyspace("some").unwrap().items(b"").unwrap();
        write(60_000);
        assert_eq!(first.check(), Err(FreezeError::Ended { id: first.id(), why: FreezeEnd::FlashNeeded }), "{kind:?}");
        let last = items.last().unwrap();
        assert!(
            matches!(last, Err(QueryError::SnapshotTooOld | QueryError::Freeze(_))),
            "{kind:?}: {:?}",
            last.map(drop)
        );
        let refused = first.keyspace("some").unwrap().items(b"").map(drop);
        assert!(matches!(refused, Err(QueryError::Freeze(FreezeError::Ended { .. }))), "{kind:?}: {refused:?}");
        let bounded = FreezeOptions { flash_bytes_max: Some(1 << 20), ..FreezeOptions::default() };
        drop(second);
        let bounded = store.freeze(&bounded).unwrap();
        write(20_000);
        assert!(bounded.check().is_err(), "{kind:?}");
    }
}

#[test]
fn freezes_end_when_their_time_is_over_and_are_counted() {
    let (_drive, store) = new_store(CAPACITY, Sync::No);
    store.put(b"key", b"value").unwrap();
    let of = |owner: &str, lasts| FreezeOptions { owner: owner.into(), lasts, ..FreezeOptions::default() };
    let short = store.freeze(&of("one", Duration::from_millis(1))).unwrap();
    std::thread::sleep(Duration::from_millis(150));
    store.maintain();
    let expired = FreezeError::Ended { id: short.id(), why: FreezeEnd::Expired };
    assert_eq!((short.check(), short.renew(Duration::from_secs(9))), (Err(expired.clone()), Err(expired)));
    let kept: Vec<Freeze> =
        (0..FREEZES_OF_OWNER_MAX).map(|_| store.freeze(&of("one", Duration::from_secs(60))).unwrap()).collect();
    let refused = store.freeze(&of("one", Duration::from_secs(60))).map(drop);
    assert_eq!(refused, Err(FreezeError::TooManyOfOwner { owner: "one".into(), limit: FREEZES_OF_OWNER_MAX }));
    let other = store.freeze(&of("other", Duration::from_secs(60))).unwrap();
    kept[0].renew(Duration::from_secs(3600)).unwrap();
    assert!(kept[0].report().left_us > 3_000_000_000);
    assert!(matches!(kept[0].renew(Duration::from_secs(1 << 20)), Err(FreezeError::Lasts { .. })));
    let id = kept[1].id();
    store.release_freeze(id).unwrap();
    assert_eq!(store.release_freeze(id), Err(FreezeError::Ended { id, why: FreezeEnd::Released }));
    assert_eq!(store.frozen(u64::MAX).map(drop), Err(FreezeError::Unknown { id: u64::MAX }));
    let left: FrozenView = other.leave();
    drop(kept);
    assert_eq!(store.freezes().iter().map(|report| report.id).collect::<Vec<_>>(), [left.id()]);
    assert_eq!(store.frozen(left.id()).unwrap().keyspace("default").unwrap().items(b"").unwrap().count(), 1);
    assert!(matches!(left.keyspace("none"), Err(Error::Keyspace(_))));
    store.close().unwrap();
    assert_eq!(left.check(), Err(FreezeError::Ended { id: left.id(), why: FreezeEnd::Closed }));
}

/// An image is not written over the one of a freeze, where images are written in place.
#[test]
fn nothing_is_written_in_place_under_a_freeze() {
    let options = StoreOptions { assume_atomic_writes: true, sync: Sync::No, ..StoreOptions::new(CAPACITY, 64 << 20) };
    let (_drive, store) = store_in_memory(CAPACITY, &options);
    let sorted = store.create_keyspace_of("sorted", KeyspaceKind::Ordered).unwrap();
    let (mut random, mut model) = (SplitMix64::new(7), BTreeMap::new());
    let mut kept = Vec::new();
    for _ in 0..5 {
        churn(&sorted, &mut random, 2000, &mut model);
        (0..200).for_each(|_| _ = store.maintain());
        kept.push((freeze(&store), model.clone().into_iter().collect::<Items>()));
    }
    for (freeze, expected) in &kept {
        assert!(items_of(&freeze.keyspace("sorted").unwrap()) == *expected);
    }
}

/// Some blocks are in groups on flash, some in write buffers, some were trimmed there.
#[test]
fn a_block_device_is_there_as_it_was() {
    for group_blocks in [1, 8] {
        let (_drive, store) = new_store(CAPACITY, Sync::No);
        let device = BlockDevice::new(8 << 20).unwrap().in_groups_of(group_blocks).unwrap();
        let disk = store.create_block_device("disk", device).unwrap();
        let (mut random, mut model) = (SplitMix64::new(13), BTreeMap::new());
        let mut write = |count: u32, model: &mut BTreeMap<u64, Vec<u8>>| {
            for _ in 0..count {
                let number = random.next_u64() % 2048;
                if random.next_u64() % 5 == 0 {
                    disk.delete(&device.key(number)).unwrap();
                    model.remove(&number);
                } else {
                    let block = vec![random.next_u64() as u8; 4096];
                    disk.put(&device.key(number), &block).unwrap();
                    model.insert(number, block);
                }
            }
        };
        write(3000, &mut model);
        while !store.hashed().rotate() {
            std::thread::yield_now();
        }
        write(40, &mut model);
        let (freeze, frozen) = (freeze(&store), model.clone());
        write(4000, &mut model);
        for _ in 0..2 {
            let blocks = freeze.keyspace("disk").unwrap().blocks().unwrap();
            let blocks: BTreeMap<u64, Vec<u8>> = blocks.map(Result::unwrap).collect();
            assert!(blocks == frozen, "{group_blocks}: {} of {}", blocks.len(), frozen.len());
        }
        let items = freeze.keyspace("disk").unwrap().items(b"").map(drop);
        let grouped = QueryError::Store(Error::Keyspace(KeyspaceError::IsGrouped));
        assert_eq!(items.err(), (group_blocks > 1).then_some(grouped));
        assert!(freeze.keyspace("default").unwrap().blocks().is_err());
    }
}

#[test]
fn a_query_of_one_key_of_a_freeze_never_shows_what_came_later() {
    let (_drive, store) = store();
    let papers = ordered(&store, "sorted");
    fill(&papers);
    let freeze = freeze(&store);
    let frozen = freeze.keyspace("sorted").unwrap();
    let key = 1000u32.to_be_bytes();
    let rows_of = |frozen: &FrozenKeyspace| {
        let mut taken = Rows::new();
        let range = KeyRange::of_key(&key);
        let ran =
            frozen.query_while(&query(0, rows(None)), QuerySide::Drive, &range, &mut into(&mut taken), &mut || true);
        ran.map(|_| taken)
    };
    let before = rows_of(&frozen).unwrap();
    assert_eq!(before.len(), 1);
    for number in 0..2000u32 {
        papers.delete(&number.to_be_bytes()).unwrap();
    }
    assert_eq!(rows_of(&frozen), Ok(before));
    let task = frozen.begin_query(&query(0, rows(None)), &KeyRange::of_key(&key)).unwrap();
    freeze.release();
    for number in 0..2000u32 {
        papers.put(&number.to_be_bytes(), b"another").unwrap();
    }
    let (mut task, mut taken) = (task, Rows::new());
    let ended = loop {
        match task.step(&mut into(&mut taken)) {
            Ok(None) => task.wait(),
            ended => break ended.map(drop),
        }
    };
    assert_eq!((ended, taken.len()), (Err(QueryError::SnapshotTooOld), 0));
    assert!(matches!(rows_of(&frozen), Err(QueryError::Freeze(FreezeError::Ended { .. }))));
}

/// A get that leases a key that is not there writes: it waits for a freeze to be made, as any write.
#[test]
fn leases_are_writes_to_a_freeze() {
    let (_drive, store) = new_store(CAPACITY, Sync::No);
    let sorted = store.create_keyspace_of("sorted", KeyspaceKind::Ordered).unwrap();
    sorted.put(b"key", b"value").unwrap();
    let gate = store.ordered().close_gate().unwrap().unwrap();
    let mut session = store.session().unwrap();
    let terms = Terms { vivify: Some(Expiry::NONE), ..Terms::default() };
    let lease = Request::GetAndLease { key: b"absent", terms };
    session.submit_to(sorted.keyspace(), 1, lease).unwrap();
    session.submit_to(sorted.keyspace(), 2, Request::Get { key: b"key" }).unwrap();
    let mut replies = Vec::new();
    for _ in 0..100 {
        session.poll(&mut replies);
    }
    assert_eq!(replies.iter().map(|reply| reply.token).collect::<Vec<_>>(), [2], "a get goes on");
    drop(gate);
    while replies.len() < 2 {
        session.poll(&mut replies);
    }
    drop(session);
}
