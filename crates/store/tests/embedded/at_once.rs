//! Requests that a session answers at once, without a submission: gets of items that DRAM has, in the tier or in write buffers, and puts that wait
//! for nothing.

use crate::common::drive_of;
use std::sync::Arc;
use tapetum::{Condition, DramItem, Expiry, KeyDigest, Reply, Request, Session, Store, StoreOptions, Sync};
use tapetum_drive::{Drive, Env, MemoryFlash, SimClock, SplitMix64};

const CAPACITY: u64 = 8 << 20;

/// With a DRAM tier, and segments of 64 KiB.
fn options(sync: Sync) -> StoreOptions {
    let options = StoreOptions::new(CAPACITY, 16 << 20).with_tier(1 << 20);
    StoreOptions { segment_bytes: 64 << 10, partition_bits: 2, sync, ..options }
}

/// A store, and its drive in memory.
fn store(sync: Sync) -> (Drive, Store) {
    let drive = drive(sync, Env::system());
    let store = Store::open_on(&drive, &options(sync)).unwrap();
    (drive, store)
}

/// A store whose time stands still, and in which nothing is maintained but by [`Store::maintain`].
fn store_at_rest() -> (Drive, Store, SimClock) {
    let (env, clock) = Env::simulated(1);
    let drive = drive(Sync::No, env);
    let store = Store::open_with(&drive, &options(Sync::No), || false).unwrap();
    (drive, store, clock)
}

/// A drive in memory with a new store on it.
fn drive(sync: Sync, env: Env) -> Drive {
    let options = options(sync);
    let drive = drive_of(Arc::new(MemoryFlash::new(CAPACITY)), &options, env);
    Store::create_on(&drive, &options).unwrap();
    drive
}

/// Bytes that no codec shrinks.
fn noise(bytes: usize) -> Vec<u8> {
    SplitMix64::new(bytes as u64).bytes(bytes)
}

fn digest(session: &Session, key: &[u8]) -> KeyDigest {
    let digest = session.digest(tapetum::KeyspaceRef::DEFAULT, key);
    session.fetch_each(&[digest; 2], 0b01);
    digest
}

fn put(session: &mut Session, key: &[u8], value: &[u8], (flags, expiry): (u32, Expiry)) -> Option<u64> {
    let digest = digest(session, key);
    session.put_at_once(tapetum::KeyspaceRef::DEFAULT, digest, tapetum::PlainPut { key, value, flags, expiry })
}

/// The item, its value, and whether it had been read.
fn get(session: &mut Session, key: &[u8]) -> Option<(DramItem, Vec<u8>, bool)> {
    let digest = digest(session, key);
    let (mut out, mut was_read) = (b"before".to_vec(), None);
    let item = session.get_from_dram(tapetum::KeyspaceRef::DEFAULT, digest, &mut out, |out, _, access| {
        out.extend_from_slice(b" head ");
        was_read = Some(access().was_read);
        true
    });
    let Some(item) = item else {
        assert_eq!(out, b"before", "nothing is left of what was begun");
        return None;
    };
    let value = out.strip_prefix(b"before head ").expect("the head comes first").to_vec();
    assert_eq!(value.len(), item.value_bytes);
    Some((item, value, was_read.unwrap()))
}

fn poll_all(session: &mut Session) -> Vec<Reply> {
    let mut replies = Vec::new();
    while session.in_flight() > 0 {
        session.poll(&mut replies);
    }
    replies
}

#[test]
fn what_was_put_at_once_is_there_at_once_for_everyone() {
    let (_drive, store) = store(Sync::EverySecond);
    let (mut writer, mut reader) = (store.session().unwrap(), store.session().unwrap());
    let compressible = vec![b'v'; 4000];
    let first = put(&mut writer, b"key", b"value", (7, Expiry::NONE)).unwrap();
    let other = put(&mut writer, b"other", &compressible, (0, Expiry::from_secs(u32::MAX))).unwrap();
    assert!(other > first);

    let (item, value, was_read) = get(&mut reader, b"key").unwrap();
    assert_eq!(
        (item.flags, item.expiry, item.stamp, &value[..], was_read),
        (7, Expiry::NONE, first, &b"value"[..], false)
    );
    assert!(get(&mut writer, b"key").unwrap().2, "it was read since");
    let (item, value, _) = get(&mut reader, b"other").unwrap();
    assert_eq!((item.expiry, item.stamp, value), (Expiry::from_secs(u32::MAX), other, compressible.clone()));
    assert_eq!(store.get(b"other").unwrap().unwrap().value, compressible);

    let second = put(&mut writer, b"key", b"", (0, Expiry::NONE)).unwrap();
    let (item, value, was_read) = get(&mut reader, b"key").unwrap();
    assert_eq!((item.flags, item.stamp, value, was_read), (0, second, Vec::new(), false));
    put(&mut writer, b"key", b"gone", (0, Expiry::from_secs(1))).unwrap();
    assert_eq!(get(&mut reader, b"key"), None, "it has expired");
    assert_eq!(store.get(b"key").unwrap(), None);
    put(&mut writer, b"key", b"deleted", (0, Expiry::NONE)).unwrap();
    store.delete(b"key").unwrap();
    assert_eq!(get(&mut reader, b"key"), None);
    assert_eq!(get(&mut reader, b"never"), None);
}

#[test]
fn a_put_at_once_outlives_flush_and_restart() {
    let (drive, store) = store(Sync::No);
    let mut session = store.session().unwrap();
    let key = |number: u64| format!("key {number}").into_bytes();
    let value = |round: u64, number: u64| SplitMix64::new(round << 32 | number).bytes(300 + number as usize);
    let mut at_once = 0;
    for (round, number) in (0..10).flat_map(|round| (0..400).map(move |number| (round, number))) {
        let (key, value, flags) = (key(number), value(round, number), round as u32);
        if put(&mut session, &key, &value, (flags, Expiry::NONE)).is_some() {
            at_once += 1;
        } else {
            // A put that has to wait is submitted like any other.
            let condition = Condition::Always;
            session
                .submit(0, Request::Put { key: &key, value: &value, flags, expiry: Expiry::NONE, condition })
                .unwrap();
            poll_all(&mut session);
        }
    }
    assert!(at_once > 400 && store.stats().flushes > 5, "{at_once}, {:?}", store.stats());
    drop(session);
    store.close().unwrap();
    drop(store);
    let store = Store::open_on(&drive, &options(Sync::No)).unwrap();
    for number in 0..400 {
        let item = store.get(&key(number)).unwrap().unwrap();
        assert_eq!((item.flags, item.value), (9, value(9, number)));
    }
}

#[test]
fn nothing_is_done_at_once_before_what_was_submitted_earlier() {
    let (_drive, store) = store(Sync::EverySecond);
    let mut session = store.session().unwrap();
    put(&mut session, b"key", b"1", (0, Expiry::NONE)).unwrap();
    session.submit(1, Request::Get { key: b"key" }).unwrap();
    assert_eq!(put(&mut session, b"key", b"2", (0, Expiry::NONE)), None, "the get would show it");
    assert_eq!(get(&mut session, b"key"), None);
    assert!(put(&mut session, b"other", b"3", (0, Expiry::NONE)).is_some() && get(&mut session, b"other").is_some());
    assert_eq!(poll_all(&mut session).len(), 1);
    assert!(put(&mut session, b"key", b"2", (0, Expiry::NONE)).is_some() && get(&mut session, b"key").is_some());
}

#[test]
fn what_must_wait_or_be_refused_is_left_to_a_request() {
    let (_drive, store_of_seconds) = store(Sync::EverySecond);
    let mut session = store_of_seconds.session().unwrap();
    assert!(session.puts_at_once());
    assert_eq!(put(&mut session, b"", b"value", (0, Expiry::NONE)), None);
    assert_eq!(put(&mut session, &[b'k'; 70_000], b"value", (0, Expiry::NONE)), None);
    assert_eq!(
        put(&mut session, b"large", &[b'v'; 60_000], (0, Expiry::NONE)),
        None,
        "it may lie in extents of its own"
    );
    // A get that is refused by whoever asked for it counts as none.
    put(&mut session, b"key", b"value", (0, Expiry::NONE)).unwrap();
    let key = session.digest(tapetum::KeyspaceRef::DEFAULT, b"key");
    let mut out = Vec::new();
    let refused = session.get_from_dram(tapetum::KeyspaceRef::DEFAULT, key, &mut out, |out, _, _| {
        out.push(b'x');
        false
    });
    assert!(refused.is_none() && out.is_empty());
    assert!(!get(&mut session, b"key").unwrap().2, "nobody has read it");

    let (_drive, durable) = store(Sync::Always);
    let mut session = durable.session().unwrap();
    assert!(!session.puts_at_once());
    assert_eq!(put(&mut session, b"key", b"value", (0, Expiry::NONE)), None);
    assert_eq!(durable.get(b"key").unwrap(), None, "nothing was written");
    let condition = Condition::Always;
    session
        .submit(1, Request::Put { key: b"key", value: b"value", flags: 0, expiry: Expiry::NONE, condition })
        .unwrap();
    assert_eq!(get(&mut session, b"key"), None, "it is not durable yet");
    poll_all(&mut session);
    assert!(get(&mut session, b"key").is_some(), "it is durable");
    session
        .submit(1, Request::Put { key: b"large", value: &noise(60_000), flags: 0, expiry: Expiry::NONE, condition })
        .unwrap();
    poll_all(&mut session);
    assert_eq!(get(&mut session, b"large"), None, "its value is in extents of its own");
}

#[test]
fn writers_who_are_held_back_write_nothing_at_once() {
    let (_drive, store, _) = store_at_rest();
    let mut session = store.session().unwrap();
    let mut stamps = Vec::new();
    while let Some(stamp) = put(&mut session, b"key", &noise(stamps.len()), (0, Expiry::NONE)) {
        stamps.push(stamp);
    }
    assert!(stamps.is_sorted() && stamps.len() > 50, "{}", stamps.len());
    let before = store.stats().user_write_bytes;
    assert_eq!(before as usize, (0..stamps.len()).map(|bytes| b"key".len() + bytes).sum());
    assert_eq!(put(&mut session, b"other", b"value", (0, Expiry::NONE)), None);
    assert_eq!((store.stats().user_write_bytes, get(&mut session, b"other")), (before, None));
    assert_eq!(get(&mut session, b"key").unwrap().0.stamp, stamps[stamps.len() - 1], "gets go on");
    let mut replies = Vec::new();
    for _ in 0..10_000 {
        store.maintain();
        session.poll(&mut replies);
    }
    assert!(put(&mut session, b"other", b"value", (0, Expiry::NONE)).is_some(), "there is room again");
}

#[test]
fn a_put_at_once_comes_after_a_deletion_of_everything_that_is_due() {
    let (_drive, store, clock) = store_at_rest();
    let mut session = store.session().unwrap();
    let at = SimClock::UNIX_SECONDS_AT_START + 10;
    session.submit(0, Request::DeleteAll { at }).unwrap();
    poll_all(&mut session);
    put(&mut session, b"before", b"value", (0, Expiry::NONE)).unwrap();
    assert!(get(&mut session, b"before").is_some());
    clock.advance_us(10_000_000);
    put(&mut session, b"after", b"value", (0, Expiry::NONE)).unwrap();
    assert_eq!(get(&mut session, b"before"), None);
    assert!(get(&mut session, b"after").is_some());
}
