//! Queries at the drive against the same queries on the host.

use super::{QueryError, QueryReport, QuerySide};
use crate::hashed::collect::victim::tests::{drive_in_memory, new_on, store_in_memory};
use crate::{Error, KeyRange, KeyspaceHandle, KeyspaceKind, Store, StoreOptions, Sync};
use tapetum_drive::arbiter::UnitCount;
use tapetum_drive::engine::EngineOptions;
use tapetum_drive::{Drive, Env, Purpose, SplitMix64};
use tapetum_kernels::scan::aggregate::AggregateKind;
use tapetum_kernels::scan::program::{Comparison, Constant, Instruction, Program};
use tapetum_kernels::scan::query::{Aggregate, MisfitPolicy, QueryOutput, RowOrder};
use tapetum_kernels::scan::rows::write_row;
use tapetum_kernels::scan::{Format, Misfit, OwnedScalar, Query, Scalar, ScalarType};

const CAPACITY: u64 = 64 << 20;

pub(super) fn options() -> (u64, StoreOptions) {
    let options = StoreOptions {
        segment_bytes: 256 << 10,
        partition_bits: 2,
        sync: Sync::No,
        ..StoreOptions::new(CAPACITY, 64 << 20)
    };
    (CAPACITY, options)
}

pub(super) fn store() -> (Drive, Store) {
    let (capacity, options) = options();
    store_in_memory(capacity, &options)
}

/// With units for these programs.
pub(super) fn store_of(units: &[(&str, u16)]) -> (Drive, Store) {
    let (capacity, options) = options();
    let drive = with_units(drive_in_memory(capacity, &options, Env::system()), units);
    let store = new_on(&drive, &options);
    (drive, store)
}

fn with_units(drive: Drive, units: &[(&str, u16)]) -> Drive {
    let programs = drive.identity().programs;
    let unit = |(name, units): &(&str, u16)| {
        let program = programs.iter().find(|program| program.name == *name).unwrap().id;
        UnitCount { program, units: *units }
    };
    drive.with_compute_units(&EngineOptions::with_units(units.iter().map(unit).collect()))
}

/// Values of many lengths, some of which shrink.
fn value(random: &mut SplitMix64, year: u16) -> Vec<u8> {
    let mut value = year.to_le_bytes().to_vec();
    let length = random.next_u64() % 200;
    if length.is_multiple_of(2) {
        value.extend("mirror ".bytes().cycle().take(length as usize * 3));
    } else {
        value.extend((0..length).map(|_| b'a' + (random.next_u64() % 26) as u8));
    }
    value
}

/// Papers on flash and in buffers: written once, written over, deleted, with large values among them.
pub(super) fn fill(keyspace: &KeyspaceHandle) {
    let mut random = SplitMix64::new(7);
    for round in 0..3 {
        for number in 0..4000u32 {
            let is_written = round == 0 || random.one_in(4);
            let key = number.to_be_bytes();
            if is_written {
                let year = 1990 + (random.next_u64() % 30) as u16;
                keyspace.put(&key, &value(&mut random, year)).unwrap();
            } else if random.one_in(10) {
                keyspace.delete(&key).unwrap();
            }
        }
        for number in 0..5u32 {
            let mut large = vec![b'x'; 60_000];
            random.fill(&mut large[2..50_000]);
            large[..2].copy_from_slice(&2000u16.to_le_bytes());
            keyspace.put(&(100_000 + number).to_be_bytes(), &large).unwrap();
        }
    }
}

/// Registers: 0 id, 1 year, and 2 all behind it, of records with `year >= from`.
pub(super) fn query(from: i64, output: QueryOutput) -> Query {
    query_of("key: id u32be; value: year u16le, text bytes", from, output, MisfitPolicy::Fail)
}

pub(super) fn query_of(format: &str, from: i64, output: QueryOutput, policy: MisfitPolicy) -> Query {
    let format = Format::parse(format).unwrap();
    let fields: Vec<ScalarType> = format.fields().iter().map(|field| field.kind.scalar_type()).collect();
    let instructions = vec![
        Instruction::Field(0),
        Instruction::Field(1),
        Instruction::Constant(0),
        Instruction::Compare(Comparison::GreaterOrEqual, 1, 2),
        Instruction::Keep(3),
        Instruction::Field(2),
    ];
    let program = Program::new(instructions, vec![Constant::of(OwnedScalar::Int(from))], &fields).unwrap();
    Query::new(format, program, output, policy).unwrap()
}

pub(super) fn rows(limit: Option<u64>) -> QueryOutput {
    QueryOutput::Rows { columns: vec![0, 1, 5], order: None, limit }
}

pub(super) fn count() -> QueryOutput {
    QueryOutput::Groups { keys: vec![], aggregates: vec![Aggregate { kind: AggregateKind::Count, register: None }] }
}

pub(super) type Rows = Vec<Vec<Option<OwnedScalar>>>;

/// Takes rows.
pub(super) fn into(rows: &mut Rows) -> impl FnMut(&[Option<Scalar<'_>>]) {
    |values| rows.push(values.iter().map(|value| value.map(Scalar::to_owned)).collect())
}

pub(super) fn run(
    keyspace: &KeyspaceHandle,
    query: &Query,
    side: QuerySide,
) -> Result<(Rows, QueryReport), QueryError> {
    run_range(keyspace, query, side, &KeyRange::default())
}

pub(super) fn run_range(
    keyspace: &KeyspaceHandle,
    query: &Query,
    side: QuerySide,
    range: &KeyRange,
) -> Result<(Rows, QueryReport), QueryError> {
    let mut rows = Rows::new();
    let report = keyspace.query_range(query, side, range, &mut into(&mut rows))?;
    sort(&mut rows);
    Ok((rows, report))
}

/// In the order of their ids.
pub(super) fn sort(rows: &mut Rows) {
    rows.sort_by_cached_key(|row| format!("{row:?}"));
}

pub(super) fn handle(store: &Store, name: &str) -> KeyspaceHandle {
    store.create_keyspace(name).unwrap()
}

pub(super) fn ordered(store: &Store, name: &str) -> KeyspaceHandle {
    store.create_keyspace_of(name, KeyspaceKind::Ordered).unwrap()
}

#[test]
fn the_drive_answers_as_the_host_does() {
    let (_drive, store) = store();
    let (papers, others) = (handle(&store, "papers"), handle(&store, "others"));
    fill(&papers);
    for number in 0..2000u32 {
        others.put(&number.to_be_bytes(), &[0xcf, 7, 1]).unwrap();
    }
    let order = Some(RowOrder { by: 0, is_descending: true });
    let top = QueryOutput::Rows { columns: vec![0], order, limit: Some(20) };
    let sum = Aggregate { kind: AggregateKind::Sum, register: Some(0) };
    let distinct = Aggregate { kind: AggregateKind::CountDistinct, register: Some(0) };
    let years = QueryOutput::Groups { keys: vec![1], aggregates: vec![sum, distinct] };
    for from in [0, 2000, 2015, 3000] {
        for output in [rows(None), count(), top.clone(), years.clone()] {
            let query = query(from, output);
            let (at_drive, report) = run(&papers, &query, QuerySide::Drive).unwrap();
            let (at_host, of_host) = run(&papers, &query, QuerySide::Host).unwrap();
            assert!(at_drive == at_host, "from {from}: {} and {} rows", at_drive.len(), at_host.len());
            assert_eq!((report.counts.records, report.counts.kept), (of_host.counts.records, of_host.counts.kept));
            assert!(report.segments > 0 && report.commands > 0, "{report:?}");
        }
    }
    let (some, _) = run(&papers, &query(0, rows(Some(7))), QuerySide::Drive).unwrap();
    assert_eq!(some.len(), 7);
}

/// Ids of the records whose text is like a pattern.
fn like(pattern: &str) -> Query {
    let format = Format::parse("key: id u32be; value: year u16le, text bytes").unwrap();
    let fields: Vec<ScalarType> = format.fields().iter().map(|field| field.kind.scalar_type()).collect();
    let pattern = Constant::of(OwnedScalar::Bytes(pattern.as_bytes().into()));
    let instructions =
        vec![Instruction::Field(2), Instruction::Like(0, 0), Instruction::Keep(1), Instruction::Field(0)];
    let program = Program::new(instructions, vec![pattern], &fields).unwrap();
    let output = QueryOutput::Rows { columns: vec![3], order: None, limit: None };
    Query::new(format, program, output, MisfitPolicy::Fail).unwrap()
}

#[test]
fn the_drive_finds_patterns_on_flash_as_the_host_does() {
    let (_drive, store) = store();
    for papers in [handle(&store, "papers"), ordered(&store, "ordered")] {
        fill(&papers);
        for pattern in ["%rror mi%", "m_rror%", "%r ", "%q%z%", "%e_e%", "mirror", "%xxxx", "%"] {
            let query = like(pattern);
            let (at_drive, report) = run(&papers, &query, QuerySide::Drive).unwrap();
            let (at_host, of_host) = run(&papers, &query, QuerySide::Host).unwrap();
            assert!(at_drive == at_host, "{pattern}: {} and {} rows", at_drive.len(), at_host.len());
            assert_eq!(report.counts.kept, of_host.counts.kept, "{pattern}");
            assert!(report.commands > 0 && (pattern == "mirror" || !at_drive.is_empty()), "{pattern}: {report:?}");
        }
    }
}

/// Several pipelines, on units, each with groups of its own, which the host merges.
#[test]
fn each_part_of_a_query_brings_its_groups_and_no_rows() {
    const NUMBERS: u32 = 40_000;
    let options = StoreOptions { sync: Sync::No, ..StoreOptions::new(512 << 20, 256 << 20) };
    let drive = with_units(drive_in_memory(512 << 20, &options, Env::system()), &[("scan", 2)]);
    let store = new_on(&drive, &options);
    let sum = Aggregate { kind: AggregateKind::Sum, register: Some(0) };
    let distinct = Aggregate { kind: AggregateKind::CountDistinct, register: Some(0) };
    let years = query(1995, QueryOutput::Groups { keys: vec![1], aggregates: vec![sum, distinct] });
    for papers in [handle(&store, "papers"), ordered(&store, "ordered")] {
        let mut random = SplitMix64::new(7);
        for number in 0..NUMBERS {
            let mut value = random.bytes(1800);
            value[..2].copy_from_slice(&(1990 + (number % 30) as u16).to_le_bytes());
            papers.put(&number.to_be_bytes(), &value).unwrap();
        }
        let (at_drive, report) = run(&papers, &years, QuerySide::Drive).unwrap();
        assert_eq!(at_drive, run(&papers, &years, QuerySide::Host).unwrap().0);
        assert_eq!((at_drive.len(), report.counts.records), (25, u64::from(NUMBERS)));
        // A number a row crosses for those that are counted once, and no more of the row.
        let is_small = report.returned_bytes < u64::from(NUMBERS) * 24;
        assert!(report.commands > 1 && report.flash_bytes > 32 << 20 && is_small, "{report:?}");
    }
}

#[test]
fn only_the_result_crosses() {
    let (drive, store) = store();
    let papers = handle(&store, "papers");
    fill(&papers);
    let crossed = || drive.counters().purpose(Purpose::Scan).local_to_host;
    let before = crossed();
    let (_, report) = run(&papers, &query(2000, count()), QuerySide::Drive).unwrap();
    // One for segments, one for values out of line.
    assert_eq!((report.commands, report.wake_ups), (2, 2));
    assert!(report.flash_bytes > 100 << 10 && report.returned_bytes < 1024, "{report:?}");
    assert_eq!(crossed() - before, report.returned_bytes);
}

/// A twentieth of the rows' bytes more, and 4 KiB.
#[test]
fn rows_cross_and_little_else() {
    let (drive, store) = store();
    for keyspace in [handle(&store, "papers"), ordered(&store, "ordered")] {
        fill(&keyspace);
        for from in [1990, 2005, 2019, 3000] {
            let before = drive.counters().purpose(Purpose::Scan).local_to_host;
            let (rows, report) = run(&keyspace, &query(from, rows(None)), QuerySide::Drive).unwrap();
            let mut bytes = Vec::new();
            for row in &rows {
                write_row(row.len(), row.iter().map(|value| value.as_ref().map(OwnedScalar::as_scalar)), &mut bytes);
            }
            let crossed = drive.counters().purpose(Purpose::Scan).local_to_host - before;
            assert!(crossed <= bytes.len() as u64 * 21 / 20 + 4096, "{crossed} for {}: {report:?}", bytes.len());
        }
    }
}

/// As often as the rows of several pages, of one, and none of one fit.
pub(super) fn comes_in_parts(keyspace: &KeyspaceHandle) {
    fill(keyspace);
    let query = query(0, rows(None));
    let (expected, _) = run(keyspace, &query, QuerySide::Host).unwrap();
    for sink_bytes in [64 << 10, 4096, 512] {
        let mut rows = Rows::new();
        let report = keyspace.query_within(&query, sink_bytes, &mut into(&mut rows)).unwrap();
        sort(&mut rows);
        assert!(rows == expected, "{} and {} rows", rows.len(), expected.len());
        assert!(report.commands > 3, "{report:?}");
    }
}

#[test]
fn a_result_that_is_too_long_for_its_room_comes_in_parts() {
    let (_drive, store) = store();
    comes_in_parts(&handle(&store, "papers"));
}

/// Some megabytes of small records, whose keys come in no order.
pub(super) fn fill_evenly(keyspace: &KeyspaceHandle) {
    let mut random = SplitMix64::new(3);
    for number in 0..30_000u32 {
        keyspace.put(&number.wrapping_mul(0x9e37_79b1).to_be_bytes(), &random.bytes(152)).unwrap();
    }
}

/// A query that keeps all records, most of whose bytes come from flash, reads each byte once; its result comes in full buffers.
pub(super) fn reads_once(drive: &Drive, keyspace: &KeyspaceHandle) {
    let read = || drive.counters().purpose(Purpose::Pipeline).flash_to_local;
    let before = read();
    let (_, counted) = run(keyspace, &query(0, count()), QuerySide::Drive).unwrap();
    let data_bytes = read() - before;
    assert!(data_bytes > 3 << 20 && counted.flash_bytes == data_bytes, "{data_bytes} bytes, {counted:?}");
    let (rows, report) = run(keyspace, &query(0, rows(None)), QuerySide::Drive).unwrap();
    assert_eq!((rows.len() as u64, report.scanned), (counted.counts.records, 0));
    let again_bytes = read() - before - data_bytes;
    assert!(again_bytes <= data_bytes * 11 / 10, "{again_bytes} of {data_bytes} bytes");
    assert_eq!(report.flash_bytes, again_bytes);
    let half_a_sink = (drive.local().bytes_total() / 128) as u64;
    assert!(report.wake_ups <= 5 + report.returned_bytes / half_a_sink, "{report:?}");
}

#[test]
fn no_byte_is_read_twice_whatever_is_kept() {
    let (drive, store) = store();
    let papers = handle(&store, "papers");
    fill_evenly(&papers);
    reads_once(&drive, &papers);
}

/// The same rows as in bulk, and one wake-up more for each.
pub(super) fn comes_row_by_row(keyspace: &KeyspaceHandle) {
    let all = query(2000, rows(None));
    let (in_bulk, bulk) = run(keyspace, &all, QuerySide::Drive).unwrap();
    let (by_record, single) = run(keyspace, &all, QuerySide::DriveByRecord).unwrap();
    assert!(in_bulk == by_record && !in_bulk.is_empty(), "{} and {} rows", in_bulk.len(), by_record.len());
    let at_host = run(keyspace, &all, QuerySide::Host).unwrap().0.len() as u64;
    assert_eq!((bulk.wake_ups, at_host), (bulk.commands, in_bulk.len() as u64));
    let from_buffers = in_bulk.len() as u64 - (single.wake_ups - single.commands);
    assert!(from_buffers <= single.buffered && single.wake_ups > 3 * single.commands, "{single:?}");
    assert_eq!((bulk.side, single.side), (QuerySide::Drive, QuerySide::DriveByRecord));
    let (some, _) = run(keyspace, &query(2000, rows(Some(7))), QuerySide::DriveByRecord).unwrap();
    assert_eq!(some.len(), 7);
    let (counted, _) = run(keyspace, &query(2000, count()), QuerySide::DriveByRecord).unwrap();
    assert_eq!(counted, [[Some(OwnedScalar::Int(in_bulk.len() as i64))]]);
}

#[test]
fn rows_come_one_by_one_if_asked_for() {
    let (_drive, store) = store();
    let papers = handle(&store, "papers");
    fill(&papers);
    comes_row_by_row(&papers);
}

/// A bitmap is sent where records are dead, and as far as it is not known to the drive that they were shown.
#[test]
fn what_is_sent_is_a_small_part_of_what_is_read() {
    let (_drive, store) = store();
    let papers = handle(&store, "papers");
    fill_evenly(&papers);
    let (_, report) = run(&papers, &query(0, rows(None)), QuerySide::Drive).unwrap();
    let pieces = report.segments + report.commands;
    assert!(report.sent_bytes < pieces * 3000 && report.sent_bytes < report.flash_bytes / 10, "{report:?}");
}

#[test]
fn a_record_that_does_not_fit_is_named_or_counted() {
    let (_drive, store) = store();
    let papers = handle(&store, "papers");
    fill(&papers);
    papers.put(b"odd", b"x").unwrap();
    for number in 0..40_000u32 {
        papers.put(format!("{number:04}").as_bytes(), &[1; 40]).unwrap();
    }
    let format = "key: id u32be; value: year u16le, text bytes";
    let failing = query_of(format, 0, count(), MisfitPolicy::Fail);
    match run(&papers, &failing, QuerySide::Drive) {
        Err(error @ QueryError::Misfit { .. }) => {
            let QueryError::Misfit { first, field_name } = &error else { unreachable!() };
            assert_eq!((&first.key[..], first.misfit), (&b"odd"[..], Misfit::Short));
            assert_eq!(field_name, "id");
            assert!(error.to_string().contains("at the field id: the record ends"), "{error}");
        }
        other => panic!("{:?}", other.map(|(_, report)| report)),
    }
    // In a write buffer, which is looked at before segments.
    papers.put(b"odd", b"x").unwrap();
    let skipping = query_of(format, 0, count(), MisfitPolicy::Skip);
    let (at_drive, report) = run(&papers, &skipping, QuerySide::Drive).unwrap();
    assert_eq!((report.counts.misfits, report.counts.first_misfit.unwrap().key), (1, Box::from(*b"odd")));
    assert_eq!(at_drive, run(&papers, &skipping, QuerySide::Host).unwrap().0);
}

#[test]
fn groups_without_end_are_refused() {
    let (_drive, store) = store();
    let papers = handle(&store, "papers");
    for number in 0..70_000u32 {
        papers.put(&number.to_be_bytes(), &[1; 4]).unwrap();
    }
    let output = QueryOutput::Groups {
        keys: vec![0],
        aggregates: vec![Aggregate { kind: AggregateKind::Count, register: None }],
    };
    assert_eq!(run(&papers, &query(0, output), QuerySide::Drive).unwrap_err(), QueryError::TooManyGroups);
    let distinct = Aggregate { kind: AggregateKind::CountDistinct, register: Some(0) };
    let counted = QueryOutput::Groups { keys: vec![], aggregates: vec![distinct] };
    for side in [QuerySide::Drive, QuerySide::Host] {
        let (rows, _) = run(&papers, &query(0, counted.clone()), side).unwrap();
        assert_eq!(rows, [[Some(OwnedScalar::Int(70_000))]], "{side:?}");
    }
}

#[test]
fn a_dropped_keyspace_is_not_scanned() {
    let (_drive, store) = store();
    let papers = handle(&store, "papers");
    store.drop_keyspace("papers").unwrap();
    let ended = run(&papers, &query(0, count()), QuerySide::Drive);
    assert!(matches!(ended, Err(QueryError::Store(Error::Keyspace(_)))), "{ended:?}");
}

/// Its caller goes away in the middle.
#[test]
fn a_query_that_is_given_up_leaves_nothing_behind() {
    let (drive, store) = store();
    let (hashed, ordered) = (handle(&store, "papers"), ordered(&store, "ordered"));
    [&hashed, &ordered].into_iter().for_each(fill);
    for keyspace in [&hashed, &ordered] {
        let used = drive.local().bytes_used();
        for steps in [0, 1, 2, 5, 20] {
            let mut task = keyspace.begin_query(&query(0, rows(None)), &KeyRange::default()).unwrap();
            for _ in 0..steps {
                if task.step(&mut into(&mut Rows::new())).unwrap().is_some() {
                    break;
                }
            }
        }
        // Flush and collector have memory of their own, for a while.
        let is_back = || drive.local().bytes_used() <= used;
        (0..10_000_000).take_while(|_| !is_back()).for_each(|_| std::thread::yield_now());
        assert!(is_back(), "{} bytes, {used} before", drive.local().bytes_used());
        assert!(run(keyspace, &query(0, count()), QuerySide::Drive).is_ok());
    }
}
