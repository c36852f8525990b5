//! Queries over the record of one key where local memory is short, and values that are long.

use super::tests::{Rows, into, ordered, query, query_of, rows, store};
use super::{QueryReport, QuerySide};
use crate::api::key_desks::KeyDesks;
use crate::hashed::collect::victim::tests::wait_for_flush;
use crate::{KeyRange, KeyspaceHandle, Store};
use std::sync::Arc;
use tapetum_drive::{Drive, LocalBuffer, Opcode, Purpose};
use tapetum_kernels::scan::Query;
use tapetum_kernels::scan::query::{MisfitPolicy, QueryOutput};

/// Takes all that is left of local memory, in pieces of at least so many bytes.
fn take_all(drive: &Drive, piece_bytes: usize) -> Vec<LocalBuffer> {
    let (mut taken, mut bytes) = (Vec::new(), drive.local().bytes_total());
    while bytes >= piece_bytes {
        match drive.local().allocate(bytes) {
            Some(buffer) => taken.push(buffer),
            None => bytes /= 2,
        }
    }
    taken
}

fn value(bytes: usize) -> Vec<u8> {
    let text = (0..bytes as u32).map(|at| (at.wrapping_mul(at) >> 5) as u8);
    2001_u16.to_le_bytes().into_iter().chain(text).collect()
}

/// A record that lies in its node, one whose value is in an extension, and one that is written later, which stays in the cache.
fn fill(store: &Store) -> KeyspaceHandle {
    let papers = ordered(store, "papers");
    for (key, bytes) in [(1_u32, 100), (2, 50_000)] {
        papers.put(&key.to_be_bytes(), &value(bytes)).unwrap();
    }
    papers
}

fn year() -> QueryOutput {
    QueryOutput::Rows { columns: vec![1, 0], order: None, limit: None }
}

fn get(papers: &KeyspaceHandle, key: u32, output: QueryOutput) -> (Option<QueryReport>, Rows) {
    let mut found = Rows::new();
    let report = papers.get_fields(&key.to_be_bytes(), &query(0, output), QuerySide::Drive, &mut into(&mut found));
    (report.unwrap(), found)
}

#[test]
fn a_query_of_one_key_finds_room_where_local_memory_is_used_up() {
    let (drive, mut store) = store();
    drop(fill(&store));
    for is_cached in [true, false] {
        if !is_cached {
            store.close().unwrap();
            drop(store);
            store = Store::open_on(&drive, &super::tests::options().1).unwrap();
        }
        let papers = store.keyspace("papers").unwrap();
        let expected: Vec<Rows> = [1, 2].map(|key| get(&papers, key, year()).1).into();
        let used_before = drive.local().bytes_used();
        let taken = take_all(&drive, 4096);
        for _ in 0..3 {
            for key in [1, 2] {
                let (report, found) = get(&papers, key, year());
                let report = report.unwrap();
                assert_eq!((found, report.scanned), (expected[key as usize - 1].clone(), 0), "key {key}, {is_cached}");
            }
            assert_eq!(get(&papers, 3, year()), (None, Rows::new()));
        }
        drop(taken);
        // Maintenance may have given back memory that it held when it was measured.
        assert!(drive.local().bytes_used() <= used_before, "a desk is kept, and no more");
    }
}

#[test]
fn the_first_query_of_a_key_waits_for_local_memory() {
    let (drive, store) = store();
    let papers = fill(&store);
    let year = query(0, year());
    let taken = take_all(&drive, 4096);
    let mut task = papers.begin_query(&year, &KeyRange::of_key(&1_u32.to_be_bytes())).unwrap();
    let mut found = Rows::new();
    for _ in 0..5 {
        assert_eq!(task.step(&mut into(&mut found)).unwrap(), None);
        task.wait();
    }
    drop(taken);
    while task.step(&mut into(&mut found)).unwrap().is_none() {
        task.wait();
    }
    assert_eq!(found.len(), 1);
}

/// A query that waited before it has commands in flight would wait for memory, of which it has enough.
#[test]
fn a_query_with_a_desk_asks_the_drive_at_once() {
    let (_, store) = store();
    let papers = fill(&store);
    let mut task = papers.begin_query(&query(0, year()), &KeyRange::of_key(&1_u32.to_be_bytes())).unwrap();
    assert_eq!((task.step(&mut into(&mut Rows::new())).unwrap(), task.commands()), (None, 1));
}

/// Also one that a query was given up with.
#[test]
fn a_desk_is_lent_again() {
    let (drive, store) = store();
    let papers = fill(&store);
    let desks = Arc::new(KeyDesks::default());
    let place = |desks: &Arc<KeyDesks>| desks.take(&drive).unwrap().map(|tools| tools.work.as_ref().unwrap().offset());
    let first = place(&desks);
    let taken = take_all(&drive, 4096);
    assert_eq!(place(&desks), first);
    let lent = desks.take(&drive).unwrap();
    assert!(lent.is_some() && desks.take(&drive).unwrap().is_none(), "there is one, and no memory for another");
    drop((lent, taken));

    let year = query(0, year());
    let begin = || papers.begin_query(&year, &KeyRange::of_key(&2_u32.to_be_bytes())).unwrap();
    for steps in 0..20 {
        let mut task = begin();
        for _ in 0..steps {
            if task.step(&mut into(&mut Rows::new())).unwrap().is_some() {
                break;
            }
        }
        drop(task);
        let taken = take_all(&drive, 4096);
        assert!(steps == 0 || place(store.key_desks()).is_some(), "given up after {steps} steps");
        drop(taken);
    }
}

/// Once to learn how long the result is, and once more.
#[test]
fn a_long_value_is_read_twice_at_most() {
    let (drive, store) = store();
    let (hashed, ordered) = (store.create_keyspace("hashed").unwrap(), ordered(&store, "ordered"));
    let large = value(2_000_000);
    for keyspace in [&hashed, &ordered] {
        keyspace.put(&7_u32.to_be_bytes(), &large).unwrap();
        keyspace.put(&8_u32.to_be_bytes(), &value(9000)).unwrap();
        let read = || {
            let counters = drive.counters();
            [Purpose::Scan, Purpose::Pipeline]
                .map(|purpose| counters.purpose(purpose).flash_to_local)
                .iter()
                .sum::<u64>()
        };
        let before = read();
        let (report, found) = get(keyspace, 7, rows(None));
        assert!(found.len() == 1 && report.unwrap().commands <= 3);
        assert!(read() - before < 2 * 2_000_000 + (128 << 10), "{} bytes", read() - before);
        // Not once more where it has room.
        let (report, found) = get(keyspace, 8, rows(None));
        assert!(found.len() == 1 && report.unwrap().commands <= 2);
    }
}

/// The read of an item on flash finds the record and runs the query over it: nothing else is asked of the drive. A query or a result that is too long
/// for that goes by a pipeline, and gives the same rows.
#[test]
fn fields_of_an_item_on_flash_take_one_command() {
    let (drive, store) = store();
    let papers = store.create_keyspace("papers").unwrap();
    let compressed = [&2001_u16.to_le_bytes()[..], &[b'a'; 900]].concat();
    let values = [value(300), compressed, value(3000), value(6000)];
    for (key, value) in (1_u32..).zip(&values) {
        papers.put(&key.to_be_bytes(), value).unwrap();
    }
    assert!(store.hashed().rotate());
    wait_for_flush(store.hashed());
    let run = |key: u32, query: &Query, side| {
        let (mut found, pipelines) = (Rows::new(), drive.counters().opcode(Opcode::Compute).completed);
        papers.get_fields(&key.to_be_bytes(), query, side, &mut into(&mut found)).unwrap().unwrap();
        (found, drive.counters().opcode(Opcode::Compute).completed - pipelines)
    };
    let many: String = (0..100).map(|number| format!(", a_field_with_a_longer_name_{number} u8")).collect();
    let long = query_of(&format!("key: id u32be; value: year u16le, text u8{many}"), 0, rows(None), MisfitPolicy::Skip);
    for key in 1..=4 {
        for (query, needs_pipeline) in [(query(0, year()), false), (query(0, rows(None)), false), (long.clone(), true)]
        {
            let (expected, _) = run(key, &query, QuerySide::Host);
            let (found, pipelines) = run(key, &query, QuerySide::Drive);
            assert_eq!((found, pipelines), (expected, u64::from(needs_pipeline)), "key {key}");
        }
    }
    assert_eq!(get(&papers, 9, year()), (None, Rows::new()));
}
