//! A store with a page that cannot be read any more.

use super::*;
use tapetum_drive::{LocalBuffer, MemoryAddress, QueuePair, Returned};

const CHUNK_BYTES: usize = 256 << 10;
/// Keys in one segment with a damaged page, on which a few of them may lie as well.
const NEIGHBOURS: [&[u8]; 6] =
    [b"neighbour0", b"neighbour1", b"neighbour2", b"neighbour3", b"neighbour4", b"neighbour5"];

/// Flips a bit wherever these bytes lie on the drive, which no store may have open: much is written back around them.
fn damage(drive: &Drive, wanted: &[u8]) {
    damage_within(CAPACITY, drive, wanted);
}

fn damage_within(capacity: u64, drive: &Drive, wanted: &[u8]) {
    let mut queue = drive.queue_pair(1).unwrap();
    let mut buffer = drive.local().allocate(CHUNK_BYTES).unwrap();
    let mut found = 0;
    for flash in (0..capacity).step_by(CHUNK_BYTES) {
        let (local, length) = (buffer.offset(), CHUNK_BYTES as u32);
        perform(&mut queue, Operation::Read { flash, local, length }, &mut buffer);
        let places = buffer.bytes().windows(wanted.len()).enumerate().filter(|(_, bytes)| *bytes == wanted);
        let places: Vec<usize> = places.map(|(at, _)| at).collect();
        if !places.is_empty() {
            places.iter().for_each(|at| buffer.bytes_mut()[*at] ^= 1);
            perform(
                &mut queue,
                Operation::Write { flash, from: MemoryAddress::local(local), length, fua: true },
                &mut buffer,
            );
            found += places.len();
        }
    }
    assert!(found > 0, "they are not there");
}

fn perform(queue: &mut QueuePair, operation: Operation, buffer: &mut LocalBuffer) {
    queue.submit(Command::new(1, operation), buffer.take().into()).unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        queue.poll(&mut done);
    }
    let Some(Returned { completion, lease }) = done.pop() else { unreachable!("it is done") };
    assert_eq!(completion.status, Status::Success);
    *buffer = lease.into_buffer();
}

/// Writes keys over at random, so that the collector comes to every segment when there are many `writes`.
fn write_over(store: &Store, writes: u64) {
    let mut random = tapetum_drive::SplitMix64::new(writes);
    for number in 0..writes {
        store.put(format!("key{}", random.below(4000)).as_bytes(), &noise(number, 800)).unwrap();
    }
}

#[test]
fn one_page_that_cannot_be_read_stops_neither_writes_nor_the_collector() {
    for full in [Full::Error, Full::Evict] {
        let drive = drive_on(flash());
        let options = StoreOptions { full, ..options() };
        let store = new_on(&drive, &options);
        let value = noise(77, 600);
        store.put(b"damaged", &value).unwrap();
        NEIGHBOURS.iter().for_each(|key| store.put(key, b"fine").map(drop).unwrap());
        // In one segment with what will be written over.
        write_over(&store, 4000);
        drop(store);
        damage(&drive, &value[100..132]);
        for _ in 0..2 {
            let store = Store::open_on(&drive, &options).unwrap();
            write_over(&store, 30_000);
            let stats = store.stats();
            assert!(stats.collections > 10, "{stats:?}");
            assert_eq!(stats.segments_unreadable, 1);
            assert!(matches!(store.get(b"damaged"), Err(Error::Corrupt(_))));
            let is_fine = |key: &&&[u8]| store.get(key).is_ok_and(|item| item.unwrap().value == b"fine");
            assert!(NEIGHBOURS.iter().filter(is_fine).count() >= NEIGHBOURS.len() / 2);
            assert_ne!(tapetum::check(&store).unwrap().problems, Vec::<String>::new());
        }
        let store = Store::open_on(&drive, &options).unwrap();
        store.put(b"damaged", &value).unwrap();
        write_over(&store, 30_000);
        NEIGHBOURS.iter().for_each(|key| store.put(key, b"still fine").map(drop).unwrap());
        write_over(&store, 30_000);
        assert_eq!(store.stats().segments_unreadable, 0, "nothing in it is valid any more");
        assert_eq!(tapetum::check(&store).unwrap().problems, Vec::<String>::new());
        assert_eq!(store.get(b"damaged").unwrap().unwrap().value, value);
    }
}

#[test]
fn the_check_names_a_large_value_that_is_damaged_and_no_other() {
    let drive = drive_on(flash());
    let store = new_on(&drive, &options());
    let values = [noise(1, 300_000), noise(2, 310_000)];
    for (number, value) in values.iter().enumerate() {
        store.put(format!("large{number}").as_bytes(), value).unwrap();
    }
    write_over(&store, 4000);
    store.close().unwrap();
    drop(store);
    let check = || tapetum::check(&Store::open_on(&drive, &options()).unwrap()).unwrap();
    let before = check();
    assert_eq!((before.large_values, before.problems), (2, Vec::new()));
    damage(&drive, &values[1][200_000..200_032]);
    let after = check();
    assert_eq!((after.large_values, after.problems.len()), (2, 1), "{:?}", after.problems);
    assert!(after.problems[0].contains("large value of 310000 bytes"), "{:?}", after.problems);
}

/// What a check says of a store that others use meanwhile.
fn check_in_use(store: &Store) -> tapetum::CheckReport {
    let mut check = tapetum::CheckInUse::new(store).unwrap();
    while check.step().unwrap() {}
    check.report().clone()
}

/// Writes, deletes, makes and drops what a check may come by, at a pace that leaves the check room on any machine.
/// A write that finds no room for a moment does not matter.
fn use_store(store: &Store, ordered: &tapetum::KeyspaceHandle, is_over: &std::sync::atomic::AtomicBool) {
    let goes_on = || {
        store.drive().env().rest();
        !is_over.load(std::sync::atomic::Ordering::Relaxed)
    };
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for number in (0..).take_while(|_| goes_on()) {
                let _ = store.put(format!("key{}", number * 7 % 4000).as_bytes(), &noise(number, 800));
                if number % 200 == 0 {
                    let key = format!("large{}", number / 200 % 5);
                    let _ = store.put(key.as_bytes(), &noise(number, 40_000));
                    let _ = store.delete(format!("large{}", number / 200 % 3).as_bytes());
                }
            }
        });
        threads.spawn(|| {
            let mut random = tapetum_drive::SplitMix64::new(9);
            while goes_on() {
                let key = format!("key{:06}", random.below(20_000));
                match random.below(3) {
                    0 => drop(ordered.delete(key.as_bytes())),
                    _ => drop(ordered.put(key.as_bytes(), &noise(random.next_u64(), 300))),
                }
            }
        });
        threads.spawn(|| {
            for _ in (0..20).take_while(|_| goes_on()) {
                let Ok(other) = store.create_keyspace_of("other", tapetum::KeyspaceKind::Ordered) else { continue };
                (0..100_u32).for_each(|number| drop(other.put(&number.to_be_bytes(), &noise(7, 300))));
                let _ = store.drop_keyspace("other");
            }
        });
    });
}

#[test]
fn a_check_of_a_store_in_use_names_what_is_damaged_and_takes_no_change_for_damage() {
    const ROOM: u64 = 64 << 20;
    for assume_atomic_writes in [false, true] {
        let StoreOptions { segment_bytes, partition_bits, .. } = options();
        let options =
            StoreOptions { segment_bytes, partition_bits, assume_atomic_writes, ..StoreOptions::new(ROOM, 32 << 20) };
        let drive = drive_of(Arc::new(MemoryFlash::new(ROOM)), &options, Env::system());
        let store = new_on(&drive, &options);
        let (value, node_value) = (noise(1, 300_000), noise(1 << 40, 500));
        let ordered = store.create_keyspace_of("ordered", tapetum::KeyspaceKind::Ordered).unwrap();
        store.put(b"large", &value).unwrap();
        write_over(&store, 4000);
        ordered.put(b"node", &node_value).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| use_store(&store, &ordered, &is_over));
            let checked: Vec<_> = (0..3).map(|_| check_in_use(&store)).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            for report in &checked {
                assert_eq!(report.problems, Vec::<String>::new());
                assert!(report.segments > 0 && report.valid_records > 0, "{report:?}");
            }
            // One that moves into a segment of a lower number may be passed over.
            assert!(checked.iter().any(|report| report.large_values > 0), "{checked:?}");
        });
        drop(ordered);
        store.close().unwrap();
        drop(store);
        damage_within(ROOM, &drive, &value[200_000..200_032]);
        damage_within(ROOM, &drive, &node_value[100..132]);
        let store = Store::open_on(&drive, &options).unwrap();
        let problems = check_in_use(&store).problems;
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("large value of 300000 bytes"), "{problems:?}");
        assert!(problems[1].contains("a data node of ordered keyspace"), "{problems:?}");
    }
}
