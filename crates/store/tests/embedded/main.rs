//! The embedded API on a drive in memory: what an application relies on, with segments of 64 KiB so that everything
//! happens in a short while.

// A test is an application: it may have threads of its own.
#![allow(clippy::disallowed_methods)]

mod asks;
mod at_once;
mod closing;
mod contended;
mod fixtures;
mod forks;
mod formats;
#[cfg(feature = "images")]
mod images;
mod inspect;
mod items;
mod large_values;
mod leases;
mod misuse;
mod ordered;
mod read_only;
mod readme;
mod resources;
mod room;
mod sleeping;
mod unreadable;
mod warming;

#[path = "../common/mod.rs"]
mod common;

use common::{delete, drive_of, flush, new_on, noise, put, store_in_memory};
use std::collections::HashMap;
use std::sync::Arc;
use tapetum::{Condition, Error, Expiry, Full, Outcome, Reply, Request, Session, Store, StoreOptions, Sync, Write};
use tapetum_drive::{Command, Drive, Env, FaultyFlash, Flash, MemoryAddress, MemoryFlash, Opcode, Operation, Status};

const CAPACITY: u64 = 8 << 20;

fn options() -> StoreOptions {
    StoreOptions { segment_bytes: 64 << 10, partition_bits: 2, ..StoreOptions::new(CAPACITY, 16 << 20) }
}

fn drive_on(flash: Arc<MemoryFlash>) -> Drive {
    drive_of(flash, &options(), Env::system())
}

fn flash() -> Arc<MemoryFlash> {
    Arc::new(MemoryFlash::new(CAPACITY))
}

/// Time stands still there, and nothing is maintained but by [`Store::maintain`].
fn faulty_drive(faulty: &FaultyFlash) -> Drive {
    drive_of(Arc::new(faulty.clone()), &options(), Env::simulated(1).0)
}

fn new_store() -> Store {
    store_in_memory(CAPACITY, &options()).1
}

/// A store of `capacity` within 16 MiB of memory, with segments of 64 KiB.
fn store_of(capacity: u64, full: Full) -> Store {
    store_in_memory(capacity, &StoreOptions { full, ..options() }).1
}

#[test]
fn puts_gets_and_deletes() {
    let store = new_store();
    assert_eq!(store.get(b"a").unwrap(), None);
    let stamp = store.put(b"a", b"one").unwrap();
    let item = store.get(b"a").unwrap().unwrap();
    assert_eq!((item.value, item.stamp), (b"one".to_vec(), stamp));
    assert!(store.put(b"a", b"two").unwrap() > stamp);
    assert_eq!(store.compare_and_swap(b"a", b"three", stamp).unwrap(), None);
    assert!(store.delete(b"a").unwrap());
    assert!(!store.delete(b"a").unwrap());
    assert_eq!(store.get(b"a").unwrap(), None);
}

#[test]
fn what_is_asked_for_stays_in_dram_when_it_is_written_over_and_flushed() {
    let options = options().with_tier(4 << 20);
    let drive = drive_on(flash());
    let store = new_on(&drive, &options);
    let (asked, noted, unasked) = (b"asked".as_slice(), b"noted".as_slice(), b"unasked".as_slice());
    let flush = || {
        let before = store.stats().flushes;
        for number in (0u64..).take_while(|_| store.stats().flushes < before + 2) {
            store.put(format!("filler{}", number % 1000).as_bytes(), &noise(number, 300)).unwrap();
        }
    };
    // The value of a get, and how often it came from DRAM (the tier) and from flash.
    let came_from = |key: &[u8]| {
        let before = store.stats();
        let value = store.get(key).unwrap().unwrap().value;
        let after = store.stats();
        (value, after.get_from_tier - before.get_from_tier, after.get_from_flash - before.get_from_flash)
    };
    for key in [asked, noted, unasked] {
        store.put(key, b"first").unwrap();
    }
    // Read in its buffer, so it is in the tier once it is on flash.
    assert_eq!(came_from(noted), (b"first".to_vec(), 0, 0));
    flush();
    assert_eq!(came_from(noted), (b"first".to_vec(), 1, 0));
    assert_eq!(came_from(asked), (b"first".to_vec(), 0, 1));
    for key in [asked, noted, unasked] {
        store.put(key, b"second").unwrap();
        store.put(key, &noise(7, 200).repeat(2)).unwrap();
    }
    flush();
    let value = noise(7, 200).repeat(2);
    assert_eq!(came_from(asked), (value.clone(), 1, 0));
    assert_eq!(came_from(noted), (value.clone(), 1, 0));
    assert_eq!(came_from(unasked), (value.clone(), 0, 1), "nobody asked for it before");
    // Nor is flash read to change what DRAM has.
    let searches = || drive.counters().opcode(Opcode::Execute).completed;
    let before = searches();
    let (appended, _) = store.run(Request::Append { key: asked, value: b"!", stamp: None }).unwrap();
    let (touched, _) = store.run(Request::Touch { key: noted, expiry: Expiry::NONE }).unwrap();
    assert!(
        matches!((&appended, &touched), (Outcome::Stored { .. }, Outcome::Touched { .. })),
        "{appended:?} {touched:?}"
    );
    assert!(store.delete(unasked).unwrap());
    assert_eq!(searches(), before);
    // From its buffer, or from the tier where the touch had no room left in that buffer.
    let (appended, _, from_flash) = came_from(asked);
    assert_eq!((appended, from_flash), ([value, b"!".to_vec()].concat(), 0));
    store.close().unwrap();
}

#[test]
fn overwritten_keys_stay_right_through_flush_collection_and_reopening() {
    let flash = Arc::new(MemoryFlash::new(25 << 17));
    let drive = drive_on(flash.clone());
    Store::create_on(&drive, &options()).unwrap();
    let mut truth: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    let mut random = tapetum_drive::SplitMix64::new(1);
    for round in 0..4 {
        let store = Store::open_on(&drive_on(flash.clone()), &options()).unwrap();
        for _ in 0..20_000 {
            let key = format!("key{}", random.below(6_000)).into_bytes();
            if random.one_in(10) {
                assert_eq!(store.delete(&key).unwrap(), truth.remove(&key).is_some());
            } else {
                let value = noise(random.next_u64(), random.below(400) as usize);
                store.put(&key, &value).unwrap();
                truth.insert(key, value);
            }
        }
        for number in 0..6_000 {
            let key = format!("key{number}").into_bytes();
            let item = store.get(&key).unwrap().map(|item| item.value);
            assert_eq!(item.as_ref(), truth.get(&key), "round {round}, key {number}");
        }
        let stats = store.stats();
        assert!(stats.flushes > 10 && stats.collections > 0, "{stats:?}");
        store.close().unwrap();
    }
}

/// A store with keys on flash, and opened again: whether the index was built from key tables.
fn index_is_built_when_opened(end: impl FnOnce(&Drive, &Store)) -> bool {
    let drive = drive_on(flash());
    let store = new_on(&drive, &options());
    let key = |number: u64| format!("key{number}").into_bytes();
    for number in 0..4000 {
        store.put(&key(number % 3000), &noise(number, 100)).unwrap();
    }
    assert!(store.stats().flushes > 3);
    end(&drive, &store);
    drop(store);
    let store = Store::open_on(&drive, &options()).unwrap();
    for number in 1000..4000 {
        assert_eq!(store.get(&key(number % 3000)).unwrap().unwrap().value, noise(number, 100));
    }
    assert_eq!(store.get(b"stranger").unwrap(), None);
    let is_built = store.stats().partitions_rebuilt > 0;
    assert_eq!(tapetum::check(&store).unwrap().problems, Vec::<String>::new());
    is_built
}

#[test]
fn a_store_that_was_closed_opens_from_its_checkpoint_and_any_other_builds_its_index() {
    assert!(index_is_built_when_opened(|_, _| {}), "it was not closed");
    assert!(!index_is_built_when_opened(|_, store| store.close().unwrap()));
    let reopened = |drive: &Drive, store: &Store| {
        store.close().unwrap();
        drop(Store::open_on(drive, &options()).unwrap());
    };
    assert!(index_is_built_when_opened(reopened), "opening ended the checkpoint");
    let twice = |drive: &Drive, store: &Store| {
        store.close().unwrap();
        Store::open_on(drive, &options()).unwrap().close().unwrap();
    };
    assert!(!index_is_built_when_opened(twice));
}

#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let spoil = |drive: &Drive, store: &Store| {
        store.close().unwrap();
        // The checkpoint lies at the end of the drive.
        let mut queue = drive.queue_pair(1).unwrap();
        let buffer = drive.local().allocate(4096).unwrap();
        let operation = Operation::Write {
            flash: CAPACITY - 4096,
            from: MemoryAddress::local(buffer.offset()),
            length: 4096,
            fua: true,
        };
        queue.submit(Command::new(1, operation), buffer.into()).unwrap();
        let mut done = Vec::new();
        while done.is_empty() {
            queue.poll(&mut done);
        }
        assert_eq!(done[0].completion.status, Status::Success);
    };
    assert!(index_is_built_when_opened(spoil));
}

#[test]
fn a_store_without_room_for_a_checkpoint_closes_without_one() {
    let full = |_: &Drive, store: &Store| {
        let mut number = 0u64;
        while store.put(format!("more{number}").as_bytes(), &noise(number, 3000)).is_ok() {
            number += 1;
        }
        store.close().unwrap();
    };
    // Whichever it is: it opens, and everything is there.
    index_is_built_when_opened(full);
}

#[test]
fn values_of_every_size_come_back() {
    let store = new_store();
    let sizes = [0, 1, 63, 64, 65, 1000, 4000, 4088, 4096, 5000, 10_000, 30_000];
    for round in 0..3 {
        for (number, size) in sizes.into_iter().enumerate() {
            let value = if round % 2 == 0 { noise(number as u64, size) } else { vec![7; size] };
            store.put(format!("key{number}").as_bytes(), &value).unwrap();
            for filler in 0..20 {
                store.put(format!("filler{filler}").as_bytes(), &noise(filler, 1500)).unwrap();
            }
            assert_eq!(store.get(format!("key{number}").as_bytes()).unwrap().unwrap().value, value);
        }
        for filler in 0..200 {
            store.put(format!("more{filler}").as_bytes(), &noise(filler, 900)).unwrap();
        }
        for (number, size) in sizes.into_iter().enumerate() {
            let value = if round % 2 == 0 { noise(number as u64, size) } else { vec![7; size] };
            assert_eq!(store.get(format!("key{number}").as_bytes()).unwrap().unwrap().value, value, "{size}");
        }
    }
    let limit = store.value_bytes_max();
    let error = store.put(b"large", &vec![0; limit + 1]).unwrap_err();
    assert_eq!(error, Error::ValueTooLarge { limit_bytes: limit });
}

#[test]
fn a_batch_is_seen_whole_and_many_keys_are_read_at_once() {
    let store = new_store();
    for round in 0..200u32 {
        let keys: Vec<Vec<u8>> = (0..10).map(|key| format!("batch{key}").into_bytes()).collect();
        let value = noise(u64::from(round), 300);
        let writes: Vec<Write<'_>> = keys
            .iter()
            .map(|key| Write::Put {
                keyspace: tapetum::KeyspaceRef::DEFAULT,
                key,
                value: &value,
                flags: round,
                expiry: Expiry::NONE,
            })
            .collect();
        store.batch(&writes).unwrap();
        let names: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let items = store.multi_get(&names).unwrap();
        assert!(items.iter().all(|item| item.as_ref().is_some_and(|item| item.flags == round && item.value == value)));
    }
    store.batch(&[delete(b"batch0"), delete(b"batch1")]).unwrap();
    assert_eq!(store.get(b"batch1").unwrap(), None);
    for too_large in [vec![put(b"batch0", &[1; 1000]); 1000], vec![delete(b"batch0"); 100_000]] {
        assert!(matches!(store.batch(&too_large), Err(Error::BatchTooLarge { .. })));
    }
    assert_eq!(store.get(b"batch0").unwrap(), None);
}

#[test]
fn a_full_store_refuses_new_keys_with_a_way_out_and_still_reads_overwrites_and_deletes() {
    let store = new_store();
    let mut stored = 0u64;
    let error = loop {
        match store.put(format!("key{stored}").as_bytes(), &noise(stored, 1000)) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 20_000, "8 MiB never fill");
    };
    assert_eq!(error, Error::FullFlash);
    assert!(stored > 4_000, "only {stored} kilobytes fit on 8 MiB");
    for number in 0..2_000 {
        store.put(format!("key{number}").as_bytes(), &noise(number + 1, 1000)).unwrap();
    }
    for number in 0..stored {
        let seed = if number < 2_000 { number + 1 } else { number };
        assert_eq!(store.get(format!("key{number}").as_bytes()).unwrap().unwrap().value, noise(seed, 1000), "{number}");
    }
    let over = |key| put(key, b"from a batch");
    store.batch(&[over(b"key7"), over(b"key8")]).expect("it overwrites");
    assert_eq!(store.get(b"key8").unwrap().unwrap().value, b"from a batch");
    // A collection may meanwhile have left room for a few.
    let value = noise(0, 1000);
    let refused = (0..1000)
        .map(|number| format!("another{number}").into_bytes())
        .find(|key| store.batch(&[over(b"key7"), put(key, &value)]).is_err_and(|error| error == Error::FullFlash));
    assert_eq!(store.get(&refused.expect("a full store refuses new keys in batches")).unwrap(), None);
    for number in 0..stored {
        assert!(store.delete(format!("key{number}").as_bytes()).unwrap());
    }
    store.put(b"new again", &noise(0, 1000)).unwrap();
}

#[test]
fn counters_lose_no_increment_among_threads() {
    let store = new_store();
    store.put(b"counter", b"0").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = store.clone();
            scope.spawn(move || {
                for number in 0..500u64 {
                    store.increment(b"counter", 1).unwrap().unwrap();
                    store.put(format!("other{thread}-{number}").as_bytes(), &noise(number, 700)).unwrap();
                }
            });
        }
    });
    assert_eq!(store.get(b"counter").unwrap().unwrap().value, b"2000");
}

#[test]
fn thousands_of_keys_in_one_read_come_back_each_with_its_own_value() {
    let options = StoreOptions { segment_bytes: 1 << 20, ..StoreOptions::new(64 << 20, 32 << 20) };
    let (_drive, store) = store_in_memory(64 << 20, &options);
    let value = |number: usize| format!("value {number} ").repeat(number % 97 + 1).into_bytes();
    let keys: Vec<Vec<u8>> = (0..6_000).map(|number| format!("key{number}").into_bytes()).collect();
    for (number, key) in keys.iter().enumerate() {
        store.put(key, &value(number)).unwrap();
    }
    let names: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    for _ in 0..3 {
        for (number, item) in store.multi_get(&names).unwrap().into_iter().enumerate() {
            assert_eq!(item.unwrap().value, value(number), "key {number}");
        }
    }
    // Equal keys are read one after the other: with so many, this ends only if none looks at all the others each time.
    let equal = vec![names[7]; 30_000];
    assert!(store.multi_get(&equal).unwrap().into_iter().all(|item| item.unwrap().value == value(7)));
}

#[test]
fn large_segments_whose_extents_are_written_piece_by_piece_come_back_whole() {
    const CAPACITY: u64 = 1 << 30;
    // Extents of 512 KiB, of which 256 KiB are written at once.
    let options = StoreOptions { segment_bytes: 64 << 20, ..StoreOptions::new(CAPACITY, 512 << 20) };
    let flash = Arc::new(MemoryFlash::new(CAPACITY));
    let drive = || drive_of(flash.clone(), &options, Env::system());
    let (key, value) = (|number: u64| number.to_le_bytes(), |number: u64| noise(number, 6000));
    let mut written = 0;
    let store = new_on(&drive(), &options);
    while store.stats().flushes == 0 {
        store.put(&key(written), &value(written)).unwrap();
        written += 1;
    }
    store.close().unwrap();
    drop(store);
    let store = Store::open_on(&drive(), &options).unwrap();
    for number in 0..written {
        assert_eq!(store.get(&key(number)).unwrap().unwrap().value, value(number), "item {number}");
    }
    let stats = store.stats();
    assert_eq!(stats.get_from_flash, stats.index_entries);
    assert!(stats.index_entries > 8000, "a segment is full");
}

#[test]
fn an_evicting_store_takes_new_keys_for_ever_and_keeps_the_latest() {
    let drive = drive_on(flash());
    Store::create_on(&drive, &options()).unwrap();
    let store = Store::open_on(&drive, &StoreOptions { full: Full::Evict, ..options() }).unwrap();
    let count = 20_000u64;
    for number in 0..count {
        store.put(format!("key{number}").as_bytes(), &noise(number, 1000)).unwrap();
    }
    let mut kept = 0;
    for number in 0..count {
        if let Some(item) = store.get(format!("key{number}").as_bytes()).unwrap() {
            assert_eq!(item.value, noise(number, 1000));
            kept += 1;
        } else {
            assert!(number < count - 2_000, "key {number} is one of the latest");
        }
    }
    assert!(kept > 3_000 && store.stats().evictions > 0, "{kept} of {count} kept");
}

#[test]
fn what_is_evicted_from_flash_is_not_answered_from_dram() {
    let options = StoreOptions { full: Full::Evict, ..options().with_tier(4 << 20) };
    let drive = drive_on(flash());
    let store = new_on(&drive, &options);
    store.put(b"asked", b"value").unwrap();
    flush(&store);
    for from_tier in [0, 1] {
        let before = store.stats().get_from_tier;
        assert!(store.get(b"asked").unwrap().is_some());
        assert_eq!(store.stats().get_from_tier - before, from_tier);
    }
    for number in 0..20_000u64 {
        store.put(format!("key{number}").as_bytes(), &noise(number, 1000)).unwrap();
    }
    assert!(store.stats().evictions > 0);
    assert_eq!(store.get(b"asked").unwrap(), None, "flash has nothing so old");
}

#[test]
fn a_failed_write_poisons_the_store_and_reopening_gives_what_was_acknowledged() {
    assert!(matches!(a_put_fails(b"in the log"), Error::Poisoned(_)));
    assert!(matches!(a_put_fails(&noise(2, 40_000)), Error::Io(_)), "in extents of its own");
}

/// The error of a put whose first write fails.
fn a_put_fails(value: &[u8]) -> Error {
    let faulty = FaultyFlash::new(CAPACITY, 1);
    let first = faulty_drive(&faulty);
    Store::create_on(&first, &options()).unwrap();
    let store = Store::open_with(&first, &options(), || false).unwrap();
    store.put(b"before", b"kept").unwrap();
    faulty.fail_nth(Opcode::Write, 1);
    let told = store.put(b"lost", value).unwrap_err();
    assert!(matches!(store.put(b"after", b"refused"), Err(Error::Poisoned(_))));
    drop(store);
    drop(first);
    let store = Store::open_with(&faulty_drive(&faulty), &options(), || false).unwrap();
    assert_eq!(store.get(b"before").unwrap().unwrap().value, b"kept");
    assert_eq!(store.get(b"after").unwrap(), None);
    store.put(b"after", b"taken").unwrap();
    told
}

#[test]
fn a_full_file_system_is_told_as_such_and_reopening_gives_what_was_acknowledged() {
    // It is full for the log, for extents of a large value, and for what a flush writes.
    for value in [Some(vec![1; 100]), Some(noise(2, 40_000)), None] {
        let faulty = FaultyFlash::new(CAPACITY, 1);
        let drive = faulty_drive(&faulty);
        Store::create_on(&drive, &options()).unwrap();
        let store = Store::open_with(&drive, &options(), || false).unwrap();
        store.put(b"before", b"kept").unwrap();
        let told = match value {
            Some(value) => {
                faulty.fill(1);
                store.put(b"lost", &value).unwrap_err()
            }
            None => a_flush_finds_no_space(&store, &faulty),
        };
        let no_space = Error::NoSpace { place: faulty.place() };
        assert_eq!((&told, store.failure().as_ref()), (&no_space, Some(&no_space)));
        assert!(told.to_string().starts_with("no space left on the file system of faulty memory"), "{told}");
        assert_eq!(store.put(b"after", b"refused"), Err(no_space), "though there is room by now");
        assert_eq!(store.get(b"before").unwrap().unwrap().value, b"kept", "reads go on");
        drop((store, drive));
        let store = Store::open_with(&faulty_drive(&faulty), &options(), || false).unwrap();
        assert_eq!((store.failure(), store.get(b"before").unwrap().unwrap().value), (None, b"kept".to_vec()));
        assert_eq!(store.get(b"after").unwrap(), None);
        store.put(b"after", b"taken").unwrap();
    }
}

#[test]
fn a_store_that_is_told_to_fail_keeps_what_it_acknowledged_and_takes_no_more() {
    let faulty = FaultyFlash::new(CAPACITY, 1);
    let drive = faulty_drive(&faulty);
    Store::create_on(&drive, &options()).unwrap();
    let store = Store::open_with(&drive, &StoreOptions { sync: Sync::No, ..options() }, || false).unwrap();
    store.put(b"before", b"kept").unwrap();
    let removed = Error::Removed { place: "drive".into() };
    store.fail(removed.clone());
    assert_eq!(store.failure(), Some(removed.clone()));
    assert_eq!(store.put(b"after", b"refused"), Err(removed.clone()));
    assert_eq!(store.delete(b"before"), Err(removed));
    assert_eq!(store.get(b"before").unwrap().unwrap().value, b"kept", "reads go on");
    drop((store, drive));
    let store = Store::open_with(&faulty_drive(&faulty), &options(), || false).unwrap();
    assert_eq!(store.get(b"before").unwrap().unwrap().value, b"kept", "it was written first");
}

fn a_flush_finds_no_space(store: &Store, faulty: &FaultyFlash) -> Error {
    let mut number = 0;
    while store.stats().buffers_sealed == 0 {
        store.put(format!("filler{number}").as_bytes(), &noise(number, 900)).unwrap();
        number += 1;
    }
    faulty.fill(1);
    while store.failure().is_none() {
        store.maintain();
    }
    store.failure().unwrap()
}

/// Submits small puts, whose number fills a buffer before their bytes do, until some wait for room.
fn fill_with_small_puts(session: &mut Session) -> Vec<Reply> {
    let mut replies = Vec::new();
    for number in 0..3_000u64 {
        let key = format!("key{number}");
        let condition = Condition::Always;
        session
            .submit(
                number,
                Request::Put { key: key.as_bytes(), value: b"v", flags: 0, expiry: Expiry::NONE, condition },
            )
            .unwrap();
        session.poll(&mut replies);
    }
    replies
}

#[test]
fn writes_that_wait_for_room_end_when_the_store_fails() {
    let faulty = FaultyFlash::new(CAPACITY, 1);
    let drive = faulty_drive(&faulty);
    Store::create_on(&drive, &options()).unwrap();
    let store = Store::open_with(&drive, &options(), || false).unwrap();
    let mut session = store.session().unwrap();
    let mut replies = fill_with_small_puts(&mut session);
    assert!(session.in_flight() > 1_000, "nobody flushes yet");
    faulty.fail_nth(Opcode::Write, 1);
    for _ in 0..10_000 {
        store.maintain();
        session.poll(&mut replies);
    }
    assert_eq!((session.in_flight(), replies.len()), (0, 3_000));
    assert!(matches!(replies[2_999].outcome, Outcome::Failed(Error::Poisoned(_))), "{:?}", replies[2_999].outcome);
    assert!(matches!(store.batch(&[delete(b"key2999")]), Err(Error::Poisoned(_))));
}

#[test]
fn a_session_that_outlives_its_store_is_told_so_when_it_needs_room() {
    let store = new_store();
    let mut session = store.session().unwrap();
    drop(store);
    let mut replies = fill_with_small_puts(&mut session);
    for _ in 0..1_000 {
        if session.in_flight() > 0 {
            session.wait(Some(std::time::Duration::from_millis(10)));
            session.poll(&mut replies);
        }
    }
    assert_eq!((session.in_flight(), replies.len()), (0, 3_000));
    assert!(replies.iter().any(|reply| reply.outcome == Outcome::Failed(Error::Closed)));
}

#[test]
fn no_value_is_larger_than_the_store_was_told_however_it_comes() {
    let drive = drive_on(flash());
    let store = new_on(&drive, &options());
    store.put(b"before", &noise(1, 2_000)).unwrap();
    store.close().unwrap();
    drop(store);
    let store = Store::open_on(&drive, &StoreOptions { value_bytes_max: 1_000, ..options() }).unwrap();
    assert_eq!(store.value_bytes_max(), 1_000);
    assert_eq!(store.put(b"a", &[1; 1_001]), Err(Error::ValueTooLarge { limit_bytes: 1_000 }));
    store.put(b"a", &[1; 600]).unwrap();
    let append = Request::Append { key: b"a", value: &[1; 401], stamp: None };
    assert_eq!(store.run(append).unwrap_err(), Error::ValueTooLarge { limit_bytes: 1_000 });
    store.run(Request::Append { key: b"a", value: &[1; 400], stamp: None }).unwrap();
    // An item that is larger already stays, and can be touched.
    store.run(Request::Touch { key: b"before", expiry: Expiry::NONE }).unwrap();
    assert_eq!(store.get(b"before").unwrap().unwrap().value, noise(1, 2_000));
}

#[test]
fn deleting_everything_makes_room_in_a_full_store() {
    let store = new_store();
    let mut stored = 0u64;
    while store.put(format!("key{stored}").as_bytes(), &noise(stored, 1000)).is_ok() {
        stored += 1;
    }
    store.run(Request::DeleteAll { at: 0 }).unwrap();
    assert_eq!(store.get(b"key1").unwrap(), None);
    // The collector finds it out by itself, without another write.
    let begun = std::time::Instant::now();
    while store.stats().flash_room_bytes < CAPACITY / 2 {
        assert!(begun.elapsed().as_secs() < 20, "there is still no room");
        std::thread::yield_now();
    }
    for number in 0..stored / 2 {
        store.put(format!("again{number}").as_bytes(), &noise(number, 1000)).unwrap();
    }
}

#[test]
fn every_second_is_kept_although_writes_keep_coming() {
    let faulty = FaultyFlash::new(CAPACITY, 7);
    let (env, clock) = Env::simulated(7);
    let every_second = StoreOptions { sync: tapetum::Sync::EverySecond, ..options() };
    let drive = drive_of(Arc::new(faulty.clone()), &every_second, env);
    Store::create_on(&drive, &every_second).unwrap();
    let store = Store::open_with(&drive, &every_second, || false).unwrap();
    for number in 0..60u32 {
        store.put(format!("key{number}").as_bytes(), b"value").unwrap();
        clock.advance_us(100_000);
        (0..4).for_each(|_| {
            store.maintain();
        });
    }
    faulty.crash();
    let drive = drive_of(Arc::new(faulty.reopen()), &every_second, Env::simulated(8).0);
    let store = Store::open_with(&drive, &every_second, || false).unwrap();
    for number in 0..40 {
        assert!(store.get(format!("key{number}").as_bytes()).unwrap().is_some(), "key {number} is seconds old");
    }
}

#[test]
fn a_store_grows_while_it_serves_and_is_as_large_when_it_is_opened_again() {
    let flash = Arc::new(MemoryFlash::new(25 << 17));
    let drive = drive_on(flash.clone());
    let options = StoreOptions { segment_bytes: 64 << 10, partition_bits: 2, ..StoreOptions::new(3 << 20, 16 << 20) };
    let store = new_on(&drive, &options);
    let key = |number: u32| format!("key-{number}").into_bytes();
    let value = |number: u32| noise(u64::from(number), 700);
    let fill = |mut number: u32| loop {
        match store.put(&key(number), &value(number)) {
            Ok(_) => number += 1,
            Err(error) => {
                assert_eq!(error, Error::FullFlash);
                return number;
            }
        }
    };
    let before = fill(0);
    let refused = |bytes| store.resize_capacity(bytes).unwrap_err().to_string();
    assert!(refused(2 << 20).contains("cannot shrink"));
    assert!(refused(13 << 20).contains("can grow to"));
    let serving = store.clone();
    let reader = std::thread::spawn(move || {
        for number in (0..before).cycle().take(20_000) {
            assert_eq!(serving.get(&key(number)).unwrap().unwrap().value, value(number));
        }
    });
    store.resize_capacity(12 << 20).unwrap();
    assert_eq!(store.stats().flash_limit_bytes, (12 << 20) - 4096);
    let after = fill(before);
    assert!(after > 3 * before, "{before} items of 3 MiB, {after} of 12");
    reader.join().unwrap();
    let all_there = |store: &Store| {
        (0..after).for_each(|number| assert_eq!(store.get(&key(number)).unwrap().unwrap().value, value(number)));
        assert_eq!(tapetum::check(store).unwrap().problems, Vec::<String>::new());
    };
    all_there(&store);
    store.close().unwrap();
    drop(store);
    let store = Store::open_on(&drive, &options).unwrap();
    assert_eq!(store.stats().flash_limit_bytes, (12 << 20) - 4096);
    all_there(&store);
}

#[test]
fn the_budget_of_memory_changes_while_the_store_serves() {
    let store = new_store();
    let limit_bytes = store.stats().index_limit_bytes;
    store.resize_memory(64 << 20).unwrap();
    assert_eq!((store.stats().index_limit_bytes, store.stats().memory_limit_bytes), (4 * limit_bytes, 64 << 20));
    store.resize_memory(16 << 20).unwrap();
    assert_eq!(store.stats().index_limit_bytes, limit_bytes);
    assert!(store.resize_memory(1 << 20).unwrap_err().to_string().contains("are too few for"));
}

/// Larger than an eighth of a segment, and as large as a store of 8 MiB takes.
const LARGE_SIZES: [usize; 6] = [8193, 12_288, 40_000, 100_000, 300_001, 512 << 10];
