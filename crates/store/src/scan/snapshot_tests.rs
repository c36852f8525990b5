//! Queries over a hashed keyspace while others write: the items that they see, and the flash that they may keep from writers.

use super::QueryError;
use super::query_task::QueryTask;
use super::tests::{Rows, into, query, rows, sort};
use crate::hashed::collect::victim::tests::store_in_memory;
use crate::{KeyRange, KeyspaceHandle, Store, StoreOptions, Sync};
use tapetum_drive::{Drive, SplitMix64};
use tapetum_kernels::scan::OwnedScalar;

const CAPACITY: u64 = 24 << 20;
/// Two megabytes, less than a query may keep.
const FEW: u32 = 2000;
/// Five, more than that.
const MANY: u32 = 5000;

fn store() -> (Drive, Store) {
    let options = StoreOptions {
        segment_bytes: 256 << 10,
        partition_bits: 2,
        sync: Sync::No,
        ..StoreOptions::new(CAPACITY, 64 << 20)
    };
    store_in_memory(CAPACITY, &options)
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
