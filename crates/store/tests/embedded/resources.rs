//! The memory and the drive that a store takes, and that it leaves both to others.

use super::*;

#[test]
fn sessions_that_rest_keep_no_memory_from_others() {
    let store = new_store();
    let keys: Vec<Vec<u8>> = (0..64).map(|n| format!("key{n}").into_bytes()).collect();
    for (n, key) in keys.iter().enumerate() {
        store.put(key, &noise(n as u64, 500)).unwrap();
    }
    flush(&store);
    let mut sessions: Vec<Session> = (0..16).map(|_| store.session().unwrap()).collect();
    for session in &mut sessions {
        keys.iter().enumerate().for_each(|(token, key)| session.submit(token as u64, Request::Get { key }).unwrap());
        let mut replies = Vec::new();
        while replies.len() < keys.len() {
            session.poll(&mut replies);
            session.wait(Some(std::time::Duration::from_millis(1)));
        }
        assert!(replies.iter().all(|reply| matches!(reply.outcome, Outcome::Value { .. })));
    }
    // One that reads from flash for the first time.
    assert_eq!(store.get(&keys[7]).unwrap().unwrap().value, noise(7, 500));
}

fn store_of_sectors(sector_bytes: u32, capacity: u64, options: &StoreOptions) -> (Arc<MemoryFlash>, Drive) {
    let flash = Arc::new(MemoryFlash::with_sector_bytes(capacity, sector_bytes));
    let drive = drive_of(flash.clone(), options, Env::system());
    Store::create_on(&drive, options).unwrap();
    (flash, drive)
}

#[test]
fn a_record_of_the_largest_key_fits_whatever_the_sector() {
    for sector_bytes in [512, 4096] {
        let (_flash, drive) = store_of_sectors(sector_bytes, CAPACITY, &options());
        let store = Store::open_on(&drive, &options()).unwrap();
        let value = noise(1, 8192);
        let Err(Error::KeyTooLong { limit_bytes }) = store.put(&[b'k'; 60_000], &value) else {
            panic!("it cannot fit")
        };
        let key = vec![b'k'; limit_bytes];
        store.put(&key, &value).unwrap();
        flush(&store);
        assert_eq!(store.get(&key).unwrap().unwrap().value, value);
    }
}

/// Each put has a sector of the log to itself, so a buffer holds few, and its segment next to nothing.
#[test]
fn many_tiny_segments_on_large_sectors_can_be_named() {
    let capacity = 64 << 20;
    let options = StoreOptions { segment_bytes: 512 << 10, ..StoreOptions::new(capacity, 32 << 20) };
    let (_flash, drive) = store_of_sectors(4096, capacity, &options);
    let store = Store::open_on(&drive, &options).unwrap();
    for number in 0..40_000u64 {
        store.put(&[b'a' + (number % 10) as u8], &number.to_le_bytes()).unwrap();
    }
    assert!(store.stats().flushes > 250, "{:?}", store.stats());
    store.close().unwrap();
    drop(store);
    let store = Store::open_on(&drive, &options).unwrap();
    assert_eq!(store.get(b"j").unwrap().unwrap().value, 39_999u64.to_le_bytes());
}

/// Whoever opens the drive again must have it alone.
#[test]
fn a_store_that_was_dropped_is_gone() {
    let flash = flash();
    Store::create_on(&drive_on(flash.clone()), &options()).unwrap();
    for round in 0..20u64 {
        let store = Store::open_on(&drive_on(flash.clone()), &options()).unwrap();
        // Enough that a flush is under way.
        for number in 0..150 + round * 3 {
            store.put(&number.to_le_bytes(), &noise(number, 900)).unwrap();
        }
        drop(store);
        assert_eq!(Arc::strong_count(&flash), 1, "in round {round} somebody still works on the drive");
    }
}

/// In a store that has grown, with tiny items, the list of them is full before flash is.
#[test]
fn a_store_that_can_name_no_more_items_says_so_and_opens_again() {
    let capacity = 8 << 20;
    let options = StoreOptions { segment_bytes: 64 << 10, partition_bits: 2, ..StoreOptions::new(capacity, 64 << 20) };
    let (drive, store) = store_in_memory(capacity, &options);
    store.resize_capacity(4 * capacity).unwrap();
    const BATCH: u32 = 50;
    let keys = |from: u32| (from..from + BATCH).map(u32::to_le_bytes).collect::<Vec<_>>();
    let put = |store: &Store, from: u32, value: &[u8]| {
        store.batch(&keys(from).iter().map(|key| super::put(key, value)).collect::<Vec<_>>())
    };
    let fill = |store: &Store| {
        let error = (0u32..).find_map(|batch| put(store, batch * BATCH, b"1").err().map(|error| (batch, error)));
        error.unwrap()
    };
    let (batches, error) = fill(&store);
    assert_eq!(error, Error::FullManifest, "after {batches} batches");
    // Existing items may be overwritten, and are found again however the store ends.
    for batch in (0..batches).step_by(20) {
        for number in batch * BATCH..(batch + 1) * BATCH {
            store.put(&number.to_le_bytes(), b"2").unwrap();
        }
    }
    drop(store);
    let store = Store::open_on(&drive, &options).unwrap();
    for batch in 0..batches {
        let value: &[u8] = if batch % 20 == 0 { b"2" } else { b"1" };
        let key = (batch * BATCH + batch % BATCH).to_le_bytes();
        assert_eq!(store.get(&key).unwrap().map(|item| item.value), Some(value.to_vec()));
    }
    for batch in 0..batches / 4 {
        store.batch(&keys(batch * BATCH).iter().map(|key| delete(key)).collect::<Vec<_>>()).unwrap();
    }
    put(&store, batches * BATCH, b"new").unwrap();
    store.close().unwrap();
    drop(store);
    let store = Store::open_on(&drive, &options).unwrap();
    // Items that are deleted with everything else make room, too.
    assert_eq!(fill(&store).1, Error::FullManifest);
    store.run(Request::DeleteAll { at: 0 }).unwrap();
    let made_room = |_: &u32| put(&store, batches * BATCH, b"new") != Err(Error::FullManifest);
    let pause = |_: &u32| std::thread::sleep(std::time::Duration::from_millis(10));
    assert!((0..2000).inspect(pause).find(made_room).is_some());
}
