//! Values that lie in extents of their own, when they change, go, or compress to little.

use super::*;

#[test]
fn large_values_come_back_from_buffers_from_segments_and_after_reopening() {
    let flash = flash();
    let drive = drive_on(flash.clone());
    Store::create_on(&drive, &options()).unwrap();
    let key = |size: usize| format!("large{size}").into_bytes();
    let value = |size: usize, seed: u64| match seed % 2 {
        0 => noise(seed + size as u64, size),
        // Compressible, but not to an eighth of a segment.
        _ => noise(seed + size as u64, size / 2).into_iter().flat_map(|byte| [byte, byte]).collect(),
    };
    for seed in 0..6 {
        let store = Store::open_on(&drive_on(flash.clone()), &options()).unwrap();
        if seed > 0 {
            for size in LARGE_SIZES {
                assert_eq!(store.get(&key(size)).unwrap().unwrap().value, value(size, seed - 1), "{size}, reopened");
            }
        }
        for size in LARGE_SIZES {
            store.put(&key(size), &value(size, seed)).unwrap();
            assert_eq!(store.get(&key(size)).unwrap().unwrap().value, value(size, seed), "{size}, in a buffer");
        }
        for filler in 0..200 {
            store.put(format!("filler{filler}").as_bytes(), &noise(filler, 900)).unwrap();
        }
        for size in LARGE_SIZES {
            assert_eq!(store.get(&key(size)).unwrap().unwrap().value, value(size, seed), "{size}, flushed");
        }
        let stats = store.stats();
        // The smallest two compress to less than an eighth of a segment, every other time.
        assert!(stats.large_values >= 4 && stats.large_reads >= 8, "{stats:?}");
        store.close().unwrap();
        drop(store);
        let store = Store::open_with(&drive_on(flash.clone()), &options(), || false).unwrap();
        let report = tapetum::check(&store).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
    }
}

#[test]
fn a_large_value_is_written_once() {
    let store = new_store();
    let before = store.stats();
    for number in 0..4u64 {
        store.put(format!("large{number}").as_bytes(), &noise(number, 400_000)).unwrap();
    }
    let after = store.stats();
    let written = after.flash_write_bytes - before.flash_write_bytes;
    assert!(written < 4 * 400_000 * 21 / 20, "{written} bytes written for {} of values", 4 * 400_000);
    assert!(after.log_write_bytes - before.log_write_bytes < 8192, "{after:?}");
}

#[test]
fn large_values_that_are_deleted_or_written_over_give_their_room_back() {
    let store = new_store();
    for round in 0..60u64 {
        for number in 0..4u64 {
            store.put(format!("large{number}").as_bytes(), &noise(round * 4 + number, 200_000)).unwrap();
        }
        let stats = store.stats();
        // Four that live, and what two write buffers name beside one that is written.
        assert!(stats.large_bytes <= 4 * 204_800 + 2 * (128 << 10) + 3 * 204_800, "round {round}: {stats:?}");
    }
    for number in 0..4u64 {
        assert_eq!(
            store.get(format!("large{number}").as_bytes()).unwrap().unwrap().value,
            noise(236 + number, 200_000)
        );
        assert!(store.delete(format!("large{number}").as_bytes()).unwrap());
        assert_eq!(store.get(format!("large{number}").as_bytes()).unwrap(), None);
    }
    // The deaths are durable when the buffer is a segment.
    let mut filler = 0;
    while store.stats().large_values > 0 {
        store.put(format!("filler{}", filler % 50).as_bytes(), &noise(filler, 900)).unwrap();
        filler += 1;
        assert!(filler < 20_000, "{:?}", store.stats());
    }
}

#[test]
fn large_values_are_changed_as_small_ones_are() {
    use tapetum::Outcome;
    let store = new_store();
    let value = noise(1, 50_000);
    let stamp = store.put(b"key", &value).unwrap();
    let writes_before = store.stats().large_write_bytes;
    for flushed in [false, true] {
        if flushed {
            for filler in 0..300 {
                store.put(format!("filler{filler}").as_bytes(), &noise(filler, 900)).unwrap();
            }
        }
        assert_eq!(store.compare_and_swap(b"key", b"small", 1).unwrap(), None);
        assert!(matches!(
            store.run(Request::Touch { key: b"key", expiry: Expiry::NONE }).unwrap().0,
            Outcome::Touched { .. }
        ));
        let (shown, bytes) =
            store.run(Request::GetAndTouch { key: b"key", expiry: Expiry::from_secs(u32::MAX) }).unwrap();
        assert!(
            matches!(shown, Outcome::Value { expiry, .. } if expiry == Expiry::from_secs(u32::MAX)) && bytes == value
        );
        assert_eq!(
            store
                .run(Request::Increment {
                    key: b"key",
                    delta: 1,
                    decrement: false,
                    initial: None,
                    stamp: None,
                    touch: None
                })
                .unwrap()
                .0,
            Outcome::NotNumber
        );
        assert_eq!(store.get(b"key").unwrap().unwrap().value, value);
    }
    assert_eq!(store.stats().large_write_bytes, writes_before, "a touch moves no value");
    let mut expected = value;
    for round in 0..10u8 {
        let more = vec![round; 3000];
        store.run(Request::Append { key: b"key", value: &more, stamp: None }).unwrap();
        store.run(Request::Prepend { key: b"key", value: b"head", stamp: None }).unwrap();
        expected.extend_from_slice(&more);
        expected = [b"head", &expected[..]].concat();
        assert_eq!(store.get(b"key").unwrap().unwrap().value, expected);
    }
    let now = store.get(b"key").unwrap().unwrap().stamp;
    assert!(now > stamp);
    let next = noise(2, 70_000);
    assert!(store.compare_and_swap(b"key", &next, now).unwrap().is_some());
    assert_eq!(store.compare_and_swap(b"key", &noise(3, 70_000), now).unwrap(), None);
    assert_eq!(store.get(b"key").unwrap().unwrap().value, next);
    // Small values that grow large, and large ones that become small.
    store.put(b"grows", b"x").unwrap();
    for round in 0..40 {
        store.run(Request::Append { key: b"grows", value: &noise(round, 500), stamp: None }).unwrap();
    }
    assert_eq!(store.get(b"grows").unwrap().unwrap().value.len(), 1 + 40 * 500);
    store.put(b"grows", b"7").unwrap();
    assert_eq!(store.increment(b"grows", 1).unwrap(), Some(8));
}

#[test]
fn a_full_store_refuses_large_values_and_an_evicting_one_takes_them_for_ever() {
    let store = new_store();
    let key = |number: u64| format!("large{number}").into_bytes();
    let mut stored = 0;
    let error = loop {
        match store.put(&key(stored), &noise(stored, 100_000)) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100, "8 MiB never fill");
    };
    assert_eq!(error, Error::FullFlash);
    assert!(stored > 30, "only {stored} values of 100 kB fit on 8 MiB");
    for number in 0..stored {
        assert_eq!(store.get(&key(number)).unwrap().unwrap().value, noise(number, 100_000), "{number}");
    }
    (0..stored).for_each(|number| assert!(store.delete(&key(number)).unwrap()));
    // The segments of those that are gone are collected first.
    let begun = std::time::Instant::now();
    while store.put(b"again", &noise(0, 100_000)).is_err() {
        assert!(begun.elapsed().as_secs() < 20, "there is still no room: {:?}", store.stats());
    }

    let drive = drive_on(flash());
    Store::create_on(&drive, &options()).unwrap();
    let store = Store::open_on(&drive, &StoreOptions { full: Full::Evict, ..options() }).unwrap();
    for number in 0..300 {
        store.put(&key(number), &noise(number, 100_000)).unwrap();
    }
    assert_eq!(store.get(&key(299)).unwrap().unwrap().value, noise(299, 100_000));
    assert!(store.get(&key(0)).unwrap().is_none() && store.stats().evictions > 0);
}

#[test]
fn a_value_at_the_limit_that_compresses_to_nothing_is_read_and_changed_in_a_segment() {
    use tapetum::Outcome;
    let store = store_of(64 << 20, Full::Error);
    let limit = store.value_bytes_max();
    assert_eq!(limit, 2 << 20);
    for size in [limit, 1 << 20, (512 << 10) + 1, 512 << 10, 100_000] {
        let key = format!("key{size}").into_bytes();
        let mut value = vec![7; size - 10];
        store.put(&key, &value).unwrap();
        flush(&store);
        assert_eq!(store.get(&key).unwrap().unwrap().value, value, "{size}");
        let touched = store.run(Request::Touch { key: &key, expiry: Expiry::NONE }).unwrap().0;
        assert!(matches!(touched, Outcome::Touched { .. }));
        flush(&store);
        store.run(Request::Append { key: &key, value: b"0123456789", stamp: None }).unwrap();
        value.extend_from_slice(b"0123456789");
        flush(&store);
        assert_eq!(store.get(&key).unwrap().unwrap().value, value, "{size}, appended to");
    }
    assert_eq!(tapetum::check(&store).unwrap().problems, Vec::<String>::new());
}

#[test]
fn a_batch_with_a_value_that_compresses_to_half_is_read_from_a_segment() {
    let segment_bytes = 4 << 20;
    let options = StoreOptions { segment_bytes, partition_bits: 2, ..StoreOptions::new(128 << 20, 24 << 20) };
    let (_drive, store) = store_in_memory(128 << 20, &options);
    let value = [noise(1, 1 << 20), vec![7; (1 << 20) - 100]].concat();
    store.batch(&[put(b"key", &value)]).unwrap();
    let flushes = store.stats().flushes;
    let mut filler = 0;
    while store.stats().flushes < flushes + 2 {
        store.put(format!("filler{filler}").as_bytes(), &noise(filler, 100_000)).unwrap();
        filler += 1;
    }
    assert_eq!(store.get(b"key").unwrap().unwrap().value, value);
}

#[test]
fn a_full_store_refuses_conditional_writes_of_large_values_that_compress_to_small_ones() {
    use tapetum::{Condition, Outcome};
    let store = new_store();
    let mut stored = 0u64;
    while store.put(format!("key{stored}").as_bytes(), &noise(stored, 1000)).is_ok() {
        stored += 1;
    }
    let value = [noise(1, 4000), vec![0; 10_000]].concat();
    let add = |number: u64| {
        let key = format!("new{number}").into_bytes();
        store.run(Request::Put {
            key: &key,
            value: &value,
            flags: 0,
            expiry: Expiry::NONE,
            condition: Condition::Absent,
        })
    };
    for number in 0..20 {
        match add(number) {
            Err(error) => assert_eq!(error, Error::FullFlash),
            Ok((outcome, _)) => panic!("{number}: {outcome:?}"),
        }
    }
    // Existing items are still changed.
    let appended = store.run(Request::Append { key: b"key0", value: &value, stamp: None }).unwrap().0;
    assert!(matches!(appended, Outcome::Stored { .. }), "{appended:?}");
    assert_eq!(store.get(b"key0").unwrap().unwrap().value.len(), 15_000);
}

#[test]
fn conditional_writes_that_waited_for_room_move_their_values_once() {
    use tapetum::Condition;
    let store = new_store();
    let key = |number: u64| format!("large{number}").into_bytes();
    let mut stored = 0;
    while store.put(&key(stored), &noise(stored, 100_000)).is_ok() {
        stored += 1;
    }
    let (value, mut added) = (noise(0, 100_000), 0);
    let before = store.stats().large_write_bytes;
    for round in 0..20 {
        // A refused put flushes the buffers, so that the next one's room comes with the flush of this deletion.
        assert_eq!(store.put(b"too much", &noise(0, 500_000)), Err(Error::FullFlash));
        assert!(store.delete(&key(round)).unwrap());
        let name = key(stored + round);
        let add =
            Request::Put { key: &name, value: &value, flags: 0, expiry: Expiry::NONE, condition: Condition::Absent };
        added += u64::from(store.run(add).is_ok());
    }
    let written = store.stats().large_write_bytes - before;
    assert!(added > 5 && written < added * 120_000, "{written} bytes written for {added} values");
}

#[test]
fn a_full_store_takes_large_values_when_others_have_expired() {
    let (env, clock) = Env::simulated(1);
    let drive = drive_of(flash(), &options(), env);
    Store::create_on(&drive, &options()).unwrap();
    let store = Store::open_with(&drive, &options(), || false).unwrap();
    let now = drive.env().unix_seconds();
    let put = |number: u64, expiry| {
        let (mut session, mut replies) = (store.session().unwrap(), Vec::new());
        let value = noise(number, 300_000);
        let key = number.to_be_bytes();
        session
            .submit(1, Request::Put { key: &key, value: &value, flags: 0, expiry, condition: Condition::Always })
            .unwrap();
        while replies.is_empty() {
            store.maintain();
            session.poll(&mut replies);
        }
        replies.remove(0).outcome
    };
    let refused = |outcome: &Outcome| matches!(outcome, Outcome::Failed(Error::FullFlash));
    let full = (0..1000).find(|number| refused(&put(*number, Expiry::from_secs(now + 100))));
    assert!(full.is_some(), "it is full of what will expire");
    clock.advance_us(200_000_000);
    let outcome = put(2000, Expiry::NONE);
    assert!(!refused(&outcome), "{outcome:?}");
}

#[test]
fn what_was_deleted_with_everything_is_not_counted_after_a_restart() {
    let flash = flash();
    let store = new_on(&drive_on(flash.clone()), &options());
    (0..500u32).for_each(|number| store.put(&number.to_be_bytes(), &noise(number.into(), 2000)).map(drop).unwrap());
    store.run(Request::DeleteAll { at: 0 }).unwrap();
    store.close().unwrap();
    drop(store);
    let store = Store::open_on(&drive_on(flash), &options()).unwrap();
    assert_eq!(store.stats().items, 0);
}
