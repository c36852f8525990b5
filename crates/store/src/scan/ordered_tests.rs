//! Queries over ordered keyspaces at the drive, against the same queries on the host.

use super::drive_side::{DriveRun, ResultOptions, scan_tools};
use super::tests::{
    Rows, comes_in_parts, comes_row_by_row, count, fill, fill_evenly, into, ordered, query, reads_once, rows, run,
    run_range, sort, store,
};
use super::{QueryError, QueryReport, QuerySide};
use crate::ordered::frozen::KeySpan;
use crate::ordered::frozen::image_lists::{GapRule, ImageLists};
use crate::{Error, KeyBound, KeyRange, KeyspaceError, Store};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use tapetum_drive::{Drive, Opcode, Purpose, SplitMix64};
use tapetum_kernels::scan::query::QueryOutput;
use tapetum_kernels::scan::{OwnedScalar, QueryResult};

fn range(from: Option<u32>, to: Option<u32>) -> KeyRange {
    let bound = |key: Option<u32>, of: fn(Vec<u8>) -> KeyBound| {
        key.map_or(KeyBound::Unbounded, |key| of(key.to_be_bytes().to_vec()))
    };
    KeyRange { from: bound(from, KeyBound::Included), to: bound(to, KeyBound::Excluded), is_reverse: false }
}

/// Closes a store, and opens it: none of its nodes is cached.
fn reopened(drive: &Drive, store: Store) -> Store {
    store.close().unwrap();
    drop(store);
    let (_, options) = super::tests::options();
    Store::open_with(drive, &options, || false).unwrap()
}

#[test]
fn the_drive_answers_as_the_host_does_from_the_cache_and_from_flash() {
    let (drive, mut store) = store();
    fill(&ordered(&store, "papers"));
    for is_cached in [true, false] {
        if !is_cached {
            store = reopened(&drive, store);
        }
        let papers = store.keyspace("papers").unwrap();
        let ranges =
            [(None, None), (Some(1000), None), (None, Some(1001)), (Some(777), Some(2345)), (Some(9), Some(9))];
        for (from, to) in ranges {
            let range = range(from, to);
            for (from, output) in [(0, rows(None)), (2000, rows(None)), (2015, count()), (3000, rows(None))] {
                let query = query(from, output);
                let (at_drive, report) = run_range(&papers, &query, QuerySide::Drive, &range).unwrap();
                let (at_host, of_host) = run_range(&papers, &query, QuerySide::Host, &range).unwrap();
                assert!(at_drive == at_host, "{range:?}: {} and {} rows", at_drive.len(), at_host.len());
                assert_eq!((report.counts.records, report.counts.kept), (of_host.counts.records, of_host.counts.kept));
                assert_eq!(report.scanned, 0, "{report:?}");
            }
        }
        let (some, _) = run(&papers, &query(0, rows(Some(7))), QuerySide::Drive).unwrap();
        assert_eq!(some.len(), 7);
    }
}

#[test]
fn only_the_result_crosses() {
    let (drive, store) = store();
    fill(&ordered(&store, "papers"));
    let store = reopened(&drive, store);
    let papers = store.keyspace("papers").unwrap();
    let crossed = || drive.counters().purpose(Purpose::Scan).local_to_host;
    let before = crossed();
    let (_, report) = run_range(&papers, &query(2000, count()), QuerySide::Drive, &range(None, Some(4000))).unwrap();
    assert_eq!((report.commands, report.wake_ups, report.scanned), (1, 1, 0));
    assert!(report.flash_bytes > 400 << 10 && report.returned_bytes < 512, "{report:?}");
    assert_eq!(crossed() - before, report.returned_bytes);
    // Places of nodes: 36 bytes for each that does not follow another.
    assert!(report.sent_bytes < 2048 + report.flash_bytes / 4096 * 36, "{report:?}");
}

#[test]
fn a_result_that_is_too_long_for_its_room_comes_in_parts() {
    let (_drive, store) = store();
    comes_in_parts(&ordered(&store, "papers"));
}

/// Nodes lie apart, as their keys came in no order.
#[test]
fn no_byte_is_read_twice_whatever_is_kept() {
    let (drive, store) = store();
    fill_evenly(&ordered(&store, "papers"));
    let store = reopened(&drive, store);
    reads_once(&drive, &store.keyspace("papers").unwrap());
}

/// Their keys came in no order, so neighbours by key lie apart. In so small a store most slots are free.
#[test]
fn nodes_that_lie_near_each_other_are_read_together() {
    let (drive, store) = store();
    fill_evenly(&ordered(&store, "papers"));
    let store = reopened(&drive, store);
    let papers = store.keyspace("papers").unwrap();
    let span = KeySpan::default();
    let tree = store.ordered().freeze_now(papers.keyspace(), &span).unwrap().unwrap();
    let rule = GapRule { pages_max: 64, wanted_each: 0 };
    for (query, results, commands) in [
        (query(0, count()), ResultOptions::default(), 1),
        (query(0, rows(None)), ResultOptions { sink_bytes: Some(64 << 10), ..ResultOptions::default() }, 4),
    ] {
        let layout = Box::new(ImageLists::of(&tree, &span, rule).unwrap().unwrap());
        let tools = scan_tools(&drive).unwrap();
        let mut run = DriveRun::new(store.base(), papers.id(), &query, layout, results, tools).unwrap();
        let (mut result, mut seen) = (QueryResult::new(&query), Rows::new());
        let mut report = QueryReport::of(QuerySide::Drive);
        let reads = || drive.counters().opcode(Opcode::Read).completed;
        let before = reads();
        while !run.step(&mut result, &mut into(&mut seen), &mut report).unwrap() {
            run.wait();
        }
        result.finish(&mut into(&mut seen));
        sort(&mut seen);
        let reads = reads() - before;
        // By key, some two thousand.
        assert!(reads < 1000, "{reads} reads: {report:?}");
        assert!(report.commands >= commands && run.take_missed().is_empty(), "{report:?}");
        assert!(seen == self::run(&papers, &query, QuerySide::Host).unwrap().0, "{} rows", seen.len());
    }
}

#[test]
fn rows_come_one_by_one_if_asked_for() {
    let (_drive, store) = store();
    let papers = ordered(&store, "papers");
    fill(&papers);
    comes_row_by_row(&papers);
}

/// In a cached node, in one on flash, and in an extension; and nothing of a key that is not there.
#[test]
fn of_a_record_only_the_chosen_fields_cross() {
    let (drive, mut store) = store();
    fill(&ordered(&store, "papers"));
    for is_cached in [true, false] {
        if !is_cached {
            store = reopened(&drive, store);
        }
        let papers = store.keyspace("papers").unwrap();
        let get = |key: u32, output, side| {
            let mut rows = Rows::new();
            let found = papers.get_fields(&key.to_be_bytes(), &query(0, output), side, &mut into(&mut rows));
            found.map(|report| (report, rows))
        };
        let year = || QueryOutput::Rows { columns: vec![1, 0], order: None, limit: None };
        for key in [1, 2, 3999, 100_003] {
            let crossed = || drive.counters().purpose(Purpose::Scan).local_to_host;
            let before = crossed();
            let (report, at_drive) = get(key, year(), QuerySide::Drive).unwrap();
            let crossed = crossed() - before;
            let (of_host, at_host) = get(key, year(), QuerySide::Host).unwrap();
            assert_eq!((at_drive, report.is_some()), (at_host, of_host.is_some()), "key {key}");
            let Some(report) = report else { continue };
            let (commands, bytes) = if key < 100_000 { (1, 150) } else { (2, 350) };
            assert!(crossed == report.returned_bytes && crossed < bytes, "{report:?}");
            assert_eq!((report.side, report.commands, report.scanned), (QuerySide::Drive, commands, 0));
        }
        for side in [QuerySide::Drive, QuerySide::Host] {
            assert_eq!(get(5_000_000, count(), side).unwrap(), (None, Rows::new()));
        }
    }
}

/// The queries are as many as there may be desks.
#[test]
fn queries_of_one_key_share_local_memory() {
    let (drive, store) = store();
    fill(&ordered(&store, "papers"));
    let store = reopened(&drive, store);
    let papers = store.keyspace("papers").unwrap();
    let year = query(0, QueryOutput::Rows { columns: vec![1, 0], order: None, limit: None });
    let used_before = drive.local().bytes_used();
    let begin = |key: u32| papers.begin_query(&year, &KeyRange::of_key(&key.to_be_bytes())).unwrap();
    let mut tasks: Vec<_> = (1..=16).map(|number| begin(number * 7)).collect();
    let (mut rows, mut bytes_most) = (Rows::new(), 0);
    while !tasks.is_empty() {
        tasks.retain_mut(|task| {
            let report = task.step(&mut into(&mut rows)).unwrap();
            assert!(report.as_ref().is_none_or(|report| report.commands == 1), "{report:?}");
            bytes_most = bytes_most.max(drive.local().bytes_used() - used_before);
            report.is_none()
        });
    }
    let is_there = |number: &u32| papers.get(&(number * 7).to_be_bytes()).unwrap().is_some();
    assert_eq!(rows.len(), (1..=16).filter(is_there).count());
    assert!(bytes_most < 16 * (320 << 10), "{bytes_most} bytes of local memory");
}

/// Writers split and merge nodes meanwhile, and have them written.
#[test]
#[expect(clippy::disallowed_methods, reason = "the point is real threads")]
fn keys_that_stay_are_seen_once_beside_writers() {
    let (_drive, store) = store();
    let papers = ordered(&store, "papers");
    let value = |year: u16| [&year.to_le_bytes()[..], &[b'x'; 60]].concat();
    let staying = |key: u32| key.is_multiple_of(3);
    for key in (0..6000_u32).filter(|key| staying(*key)) {
        papers.put(&key.to_be_bytes(), &value(2000)).unwrap();
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = SplitMix64::new(9);
            while !is_over.load(Ordering::Relaxed) {
                let first = (random.next_u64() % 6000) as u32;
                let deletes = random.one_in(2);
                for key in (first..first + 300).filter(|key| !staying(*key)) {
                    match deletes {
                        true => drop(papers.delete(&key.to_be_bytes()).unwrap()),
                        false => drop(papers.put(&key.to_be_bytes(), &value(1999)).unwrap()),
                    }
                }
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                store.maintain();
            }
        });
        for _ in 0..30 {
            let (rows, report) = run(&papers, &query(0, rows(None)), QuerySide::Drive).unwrap();
            let mut seen = BTreeMap::<i64, (usize, i64)>::new();
            for row in &rows {
                let [Some(OwnedScalar::Int(id)), Some(OwnedScalar::Int(year)), _] = &row[..] else {
                    panic!("{row:?}");
                };
                seen.entry(*id).or_insert((0, *year)).0 += 1;
            }
            for (id, (times, year)) in &seen {
                assert_eq!((*times, *year), (1, if staying(*id as u32) { 2000 } else { 1999 }), "key {id}, {report:?}");
            }
            let stayed = seen.keys().filter(|id| staying(**id as u32)).count();
            assert_eq!(stayed, 2000, "{report:?}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_range_is_of_ordered_keyspaces_and_a_dropped_one_is_not_scanned() {
    let (_drive, store) = store();
    let (papers, hashed) = (ordered(&store, "papers"), store.create_keyspace("hashed").unwrap());
    for side in [QuerySide::Drive, QuerySide::Host] {
        let ended = run_range(&hashed, &query(0, count()), side, &range(Some(3), None));
        assert_eq!(ended.unwrap_err(), QueryError::Store(Error::Keyspace(KeyspaceError::Unordered)));
    }
    store.drop_keyspace("papers").unwrap();
    let ended = run(&papers, &query(0, count()), QuerySide::Drive);
    assert_eq!(ended.unwrap_err(), QueryError::Store(Error::Keyspace(KeyspaceError::Gone)));
}

#[test]
fn a_request_of_hashed_keyspaces_names_the_one_of_ordered_ones() {
    let (_drive, store) = store();
    let papers = ordered(&store, "papers");
    papers.put(b"key", b"value").unwrap();
    let listed = papers.items_with_prefix(b"k").next().unwrap().unwrap_err();
    assert_eq!(listed, Error::Keyspace(KeyspaceError::Ordered));
    assert!(listed.to_string().contains("KeyspaceHandle::scan"), "{listed}");
}
