//! A store that is opened to read: everything is there that an opening to write would find, and the drive stays as it is.

use super::*;
use std::ops::ControlFlow;
use tapetum_drive::SplitMix64;

const KEYS: u64 = 3000;

/// Time passes there, and maintenance has a thread.
fn drive_on(faulty: &FaultyFlash) -> Drive {
    drive_of(Arc::new(faulty.clone()), &options(), Env::system())
}

/// A store on flash that counts, crashed: its last writes are in the log alone.
fn crashed() -> FaultyFlash {
    let faulty = FaultyFlash::new(CAPACITY, 5);
    let drive = drive_on(&faulty);
    let store = new_on(&drive, &options());
    for first in (0..KEYS).step_by(50) {
        let items: Vec<_> = (first..first + 50).map(|number| (format!("key{number}"), noise(number, 300))).collect();
        store.batch(&items.iter().map(|(key, value)| put(key.as_bytes(), value)).collect::<Vec<_>>()).unwrap();
    }
    store.put(b"large", &noise(9, 100_000)).unwrap();
    for first in (0..KEYS).step_by(150) {
        let keys: Vec<_> = (first..first + 150).step_by(3).map(|number| format!("key{number}")).collect();
        store.batch(&keys.iter().map(|key| delete(key.as_bytes())).collect::<Vec<_>>()).unwrap();
    }
    store.put(b"last", b"in the log").unwrap();
    drop(store);
    faulty
}

/// The store closed as it should be.
fn closed() -> FaultyFlash {
    let faulty = crashed();
    Store::open_on(&drive_on(&faulty), &options()).unwrap().close().unwrap();
    faulty
}

fn changes(faulty: &FaultyFlash) -> u64 {
    [Opcode::Write, Opcode::Flush, Opcode::Discard].into_iter().map(|opcode| faulty.submitted(opcode)).sum()
}

#[derive(PartialEq)]
struct Contents {
    /// The value of every key.
    values: Vec<Option<Vec<u8>>>,
    /// Keys and stamps as a scan shows them.
    shown: Vec<(Vec<u8>, u64)>,
}

fn contents(store: &Store) -> Contents {
    let names = (0..KEYS).map(|number| format!("key{number}")).chain(["large".into(), "last".into(), "absent".into()]);
    let values = names.map(|key| store.get(key.as_bytes()).unwrap().map(|item| item.value)).collect();
    let mut shown = Vec::new();
    let visit = |item: tapetum::Scanned<'_>| {
        shown.push((item.key.to_vec(), item.stamp));
        ControlFlow::Continue(())
    };
    tapetum::scan(store, tapetum::KeyspaceRef::DEFAULT, b"", visit).unwrap();
    shown.sort();
    Contents { values, shown }
}

#[test]
fn a_reader_sees_what_a_writer_would_and_writes_nothing() {
    for faulty in [crashed(), closed()] {
        let (before, image) = (changes(&faulty), faulty.peek(0, CAPACITY));
        let reader = Store::open_read_only_on(&drive_on(&faulty), &options()).unwrap();
        let seen = contents(&reader);
        assert_eq!(tapetum::check(&reader).unwrap().problems, Vec::<String>::new());
        tapetum::inspect(&reader).unwrap();
        tapetum::locate(&reader, tapetum::KeyspaceRef::DEFAULT, b"last").unwrap();
        reader.maintain();
        let stats = reader.stats();
        assert_eq!((stats.flash_write_bytes, stats.log_write_bytes), (0, 0));
        reader.close().unwrap();
        drop(reader);
        assert_eq!(changes(&faulty), before);
        assert!(faulty.peek(0, CAPACITY) == image);
        let writer = Store::open_on(&drive_on(&faulty), &options()).unwrap();
        assert!(changes(&faulty) > before, "what is counted happens");
        let expected = contents(&writer);
        assert!(seen == expected && seen.shown.len() as u64 == KEYS - KEYS / 3 + 2);
    }
}

#[test]
fn what_would_change_the_store_is_refused() {
    let faulty = crashed();
    let store = Store::open_read_only_on(&drive_on(&faulty), &options()).unwrap();
    let before = changes(&faulty);
    let key: &[u8] = b"last";
    let (value, flags, expiry, stamp): (&[u8], u32, Expiry, Option<u64>) = (b"1", 0, Expiry::NONE, None);
    let increment = Request::Increment { key, delta: 1, decrement: false, initial: None, stamp, touch: None };
    let requests = [
        Request::Put { key, value, flags, expiry, condition: Condition::Always },
        Request::Put { key, value, flags, expiry, condition: Condition::Absent },
        Request::Append { key, value, stamp },
        Request::Prepend { key, value, stamp },
        increment,
        Request::Touch { key, expiry },
        Request::GetAndTouch { key, expiry },
        Request::GetAndLease { key, terms: tapetum::Terms::default() },
        Request::Invalidate { key, stamp, expiry: None },
        Request::Delete { key, stamp },
        Request::Delete { key: b"absent", stamp },
        Request::DeleteAll { at: 0 },
        Request::DeleteAll { at: u32::MAX },
    ];
    for request in requests {
        assert_eq!(store.run(request), Err(Error::ReadOnly), "{request:?}");
    }
    assert_eq!(store.batch(&[put(key, value)]), Err(Error::ReadOnly));
    assert_eq!(store.resize_capacity(2 * CAPACITY), Err(Error::ReadOnly));
    let mut session = store.session().unwrap();
    let digest = session.digest(tapetum::KeyspaceRef::DEFAULT, key);
    assert_eq!(
        session.put_at_once(
            tapetum::KeyspaceRef::DEFAULT,
            digest,
            tapetum::PlainPut { key, value, flags: 0, expiry: Expiry::NONE }
        ),
        None
    );
    assert_eq!(store.get(key).unwrap().unwrap().value, b"in the log");
    assert_eq!(changes(&faulty), before);
}

#[test]
fn pages_of_key_tables_that_are_damaged_are_made_anew_in_memory_alone() {
    let faulty = crashed();
    let expected = contents(&Store::open_on(&drive_on(&faulty), &options()).unwrap());
    // Two pages of every key table, of which the last holds the fences.
    let areas = tapetum::inspect_drive(&drive_on(&faulty)).unwrap().areas;
    let tables: Vec<_> = areas.into_iter().filter(|area| area.kind == tapetum::inspect::AreaKind::Keys).collect();
    assert!(tables.len() > 3);
    let mut random = SplitMix64::new(1);
    for table in &tables {
        for page in (0..table.length_bytes).step_by(4096) {
            faulty.flip(table.offset_bytes + page + random.below(256), 1);
        }
    }
    let image = faulty.peek(0, CAPACITY);
    let reader = Store::open_read_only_on(&drive_on(&faulty), &options()).unwrap();
    assert!(contents(&reader) == expected);
    let problems = tapetum::check(&reader).unwrap().problems;
    assert!(problems.len() >= tables.len(), "{problems:?}");
    assert!(problems.iter().all(|problem| problem.contains("made anew when the store is next opened")), "{problems:?}");
    drop(reader);
    assert!(faulty.peek(0, CAPACITY) == image);
    drop(Store::open_on(&drive_on(&faulty), &options()).unwrap());
    let reader = Store::open_read_only_on(&drive_on(&faulty), &options()).unwrap();
    assert_eq!(tapetum::check(&reader).unwrap().problems, Vec::<String>::new());
}

#[test]
fn the_check_names_a_damaged_copy_of_the_superblock() {
    let faulty = crashed();
    faulty.flip(4096 + 20, 1);
    let reader = Store::open_read_only_on(&drive_on(&faulty), &options()).unwrap();
    let problems = tapetum::check(&reader).unwrap().problems;
    assert!(problems.len() == 1 && problems[0].contains("copy 1 of the superblock"), "{problems:?}");
}

#[test]
fn everything_is_gone_for_a_reader_too_when_its_time_comes() {
    let faulty = FaultyFlash::new(CAPACITY, 5);
    let (env, clock) = Env::simulated(1);
    let drive = || drive_of(Arc::new(faulty.clone()), &options(), env.clone());
    Store::create_on(&drive(), &options()).unwrap();
    let store = Store::open_with(&drive(), &options(), || false).unwrap();
    store.put(b"a", b"1").unwrap();
    store.run(Request::DeleteAll { at: env.unix_seconds() + 10 }).unwrap();
    drop(store);
    let before = changes(&faulty);
    let reader = Store::open_read_only_on(&drive(), &options()).unwrap();
    assert_eq!(reader.get(b"a").unwrap().unwrap().value, b"1");
    clock.advance_us(11_000_000);
    assert_eq!(reader.get(b"a").unwrap(), None);
    assert_eq!(changes(&faulty), before);
}
