//! Queries over a hashed keyspace while others write: the items that they see, and the flash that they may keep from writers.

use super::QueryError;
use super::query_task::QueryTask;
use super::tests::{Rows, into, query, rows, sort};
use crate::hashed::collect::victim::tests::{store_at_rest, store_in_memory};
use crate::{Error, KeyRange, KeyspaceHandle, Phase, Store, StoreOptions, Sync};
use tapetum_drive::{Drive, Env, SplitMix64};
use tapetum_kernels::scan::OwnedScalar;

const CAPACITY: u64 = 24 << 20;
/// Two megabytes, less than a query may keep.
const FEW: u32 = 2000;
/// Five, more than that.
const MANY: u32 = 5000;

fn options() -> StoreOptions {
    StoreOptions {
        segment_bytes: 256 << 10,
        partition_bits: 2,
        sync: Sync::No,
        ..StoreOptions::new(CAPACITY, 64 << 20)
    }
}

fn store() -> (Drive, Store) {
    store_in_memory(CAPACITY, &options())
}

/// Values that are not compressed, a large one now and then.
fn write_all(papers: &KeyspaceHandle, random: &mut SplitMix64, (keys, year): (u32, u16)) {
    for number in 0..keys {
        let mut value = random.bytes(if number % 500 == 7 { 60_000 } else { 1000 });
        value[..2].copy_from_slice(&year.to_le_bytes());
        papers.put(&number.to_be_bytes(), &value).unwrap();
    }
}

/// A query that has frozen the keyspace, and looked at nothing yet.
fn frozen(papers: &KeyspaceHandle, taken: &mut Rows) -> QueryTask {
    let mut task = papers.begin_query(&query(0, rows(None)), &KeyRange::default()).unwrap();
    while !task.is_frozen() {
        assert!(task.step(&mut into(taken)).unwrap().is_none());
    }
    task
}

fn finished(mut task: QueryTask, taken: &mut Rows) -> Result<(), QueryError> {
    while task.step(&mut into(taken))?.is_none() {
        task.wait();
    }
    Ok(())
}

#[test]
fn it_sees_one_moment() {
    let (_drive, store) = store();
    let papers = store.create_keyspace("papers").unwrap();
    let mut random = SplitMix64::new(3);
    write_all(&papers, &mut random, (FEW, 2001));
    let mut taken = Rows::new();
    let task = frozen(&papers, &mut taken);
    write_all(&papers, &mut random, (FEW, 2002));
    finished(task, &mut taken).unwrap();
    sort(&mut taken);
    assert_eq!(taken.len(), FEW as usize);
    assert!(taken.iter().all(|row| row[1] == Some(OwnedScalar::Int(2001))));
}

#[test]
fn those_that_begin_together_share_a_moment_and_each_sees_all_of_it() {
    let (_drive, store) = store();
    let papers = store.create_keyspace("papers").unwrap();
    let mut random = SplitMix64::new(3);
    write_all(&papers, &mut random, (FEW, 2001));
    // Nobody comes by while it is held.
    let engine = store.hashed();
    let installer = loop {
        if let Some(installer) = engine.base.try_take_installer() {
            break installer;
        }
    };
    let begin = || papers.begin_query(&query(0, rows(None)), &KeyRange::default()).unwrap();
    let mut tasks: Vec<(QueryTask, Rows)> = (0..4).map(|_| (begin(), Rows::new())).collect();
    for (task, taken) in &mut tasks {
        assert!(task.step(&mut into(taken)).unwrap().is_none() && !task.is_frozen());
    }
    let gone = tasks.pop();
    drop((gone, installer));
    for (task, taken) in &mut tasks {
        while !task.is_frozen() {
            assert!(task.step(&mut into(taken)).unwrap().is_none());
        }
    }
    assert_eq!(engine.snapshot_desk.turns(), (4 + 1, false), "four waited for one moment, which is kept no more");
    write_all(&papers, &mut random, (FEW, 2002));
    for (task, mut taken) in tasks {
        finished(task, &mut taken).unwrap();
        assert_eq!(taken.len(), FEW as usize);
        assert!(taken.iter().all(|row| row[1] == Some(OwnedScalar::Int(2001))));
    }
    let mut taken = Rows::new();
    finished(begin(), &mut taken).unwrap();
    assert!(taken.iter().all(|row| row[1] == Some(OwnedScalar::Int(2002))));
}

#[test]
fn the_items_of_a_moment_are_those_of_it_whatever_is_written_meanwhile() {
    let (_drive, store) = store();
    let papers = store.create_keyspace("papers").unwrap();
    let mut random = SplitMix64::new(3);
    write_all(&papers, &mut random, (FEW, 2001));
    papers.delete(&7_u32.to_be_bytes()).unwrap();
    store.put(b"elsewhere", b"").unwrap();
    let (mut of_items, mut of_keys) = (papers.snapshot_items(b"").unwrap(), papers.snapshot_items(b"").unwrap());
    write_all(&papers, &mut random, (FEW, 2002));
    let mut seen = std::collections::BTreeSet::new();
    for found in &mut of_items {
        let (key, item) = found.unwrap();
        let number = u32::from_be_bytes(key[..].try_into().unwrap());
        assert_eq!(item.value[..2], 2001_u16.to_le_bytes());
        assert_eq!(item.value.len(), if number % 500 == 7 { 60_000 } else { 1000 });
        assert!(seen.insert(number), "{number} twice");
    }
    assert!(seen.iter().copied().eq((0..FEW).filter(|number| *number != 7)));
    let mut bytes = 0;
    while let Some(listed) = of_keys.next_key().unwrap() {
        assert!(seen.remove(&u32::from_be_bytes(listed.key[..].try_into().unwrap())));
        bytes += listed.value_bytes;
    }
    assert_eq!((seen.len(), bytes), (0, 3 * 60_000 + u64::from(FEW - 4) * 1000));
    let begun_so = papers.snapshot_items(&[0, 0, 1]).unwrap();
    assert_eq!(begun_so.count(), 256);
}

#[test]
fn items_of_a_moment_that_keeps_too_much_flash_end_with_an_error() {
    let (_drive, store) = store();
    let papers = store.create_keyspace("papers").unwrap();
    let mut random = SplitMix64::new(3);
    write_all(&papers, &mut random, (MANY, 2001));
    let items = papers.snapshot_items(b"").unwrap();
    for round in 0..10 {
        write_all(&papers, &mut random, (MANY, round));
    }
    let found: Vec<_> = items.collect();
    assert!(found.len() < MANY as usize);
    assert_eq!(found.last().unwrap().as_ref().map(drop), Err(&QueryError::SnapshotTooOld));
}

/// Writers go on: what a query keeps is bounded.
#[test]
fn one_that_keeps_too_much_flash_is_too_old() {
    let (_drive, store) = store();
    let papers = store.create_keyspace("papers").unwrap();
    let mut random = SplitMix64::new(3);
    write_all(&papers, &mut random, (MANY, 2001));
    let mut taken = Rows::new();
    let task = frozen(&papers, &mut taken);
    for round in 0..10 {
        write_all(&papers, &mut random, (MANY, round));
    }
    assert_eq!(finished(task, &mut taken), Err(QueryError::SnapshotTooOld));
    assert!(QueryError::SnapshotTooOld.to_string().contains("too old"));
}

/// A store of items in a sealed write buffer that has failed this many steps into the install of their segment; `None`: the install has fewer.
fn failed_amid_an_install(steps: u32) -> Option<Store> {
    let (_drive, store) = store_at_rest(CAPACITY, &options(), Env::simulated(1).0);
    write_all(&store.create_keyspace("papers").unwrap(), &mut SplitMix64::new(3), (100, 2001));
    assert!(store.hashed().rotate());
    while store.phases()[0] != Phase::Merge {
        store.maintain();
    }
    for _ in 0..steps {
        store.maintain();
        if store.phases()[0] != Phase::Merge {
            return None;
        }
    }
    store.hashed().log.poison("a flush", Error::Io("for the test".into()));
    // The flush is given up when the drive has nothing of it any more.
    for _ in 0..20 {
        store.maintain();
    }
    Some(store)
}

/// Before the index has all of an install, a key may be in a write buffer and in a segment that the index does not name for it.
#[test]
fn a_store_that_fails_amid_an_install_shows_no_half_of_it() {
    let mut failures = 0;
    while let Some(store) = failed_amid_an_install(failures) {
        let papers = store.keyspace("papers").unwrap();
        let task = papers.begin_query(&query(0, rows(None)), &KeyRange::default()).unwrap();
        let queried = finished(task, &mut Rows::new());
        assert!(matches!(queried, Err(QueryError::Store(Error::Poisoned(_)))), "{failures} steps: {queried:?}");
        let listed = papers.items().next();
        assert!(matches!(listed, Some(Err(Error::Poisoned(_)))), "{failures} steps: {listed:?}");
        assert_eq!(papers.get(&1u32.to_be_bytes()).unwrap().map(|item| item.value.len()), Some(1000));
        failures += 1;
    }
    assert!(failures > 1, "an install takes a step for each of four partitions");
}
