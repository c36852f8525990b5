//! Betweenness at the drive against the host's, and fields of one record.

use super::graph_drive::GraphDrive;
use super::tests::{handle, options, ordered, store, store_of};
use super::{GraphOptions, GraphReport, QueryError, QueryReport, QuerySide};
use crate::{KeyspaceHandle, Store};
use std::sync::atomic::{AtomicBool, Ordering};
use tapetum_drive::{Purpose, SplitMix64};
use tapetum_kernels::graph::{Direction, GraphResult, Normalization, Sampling};
use tapetum_kernels::scan::program::{Comparison, Constant, Instruction, Program};
use tapetum_kernels::scan::query::{MisfitPolicy, QueryOutput};
use tapetum_kernels::scan::{Format, OwnedScalar, Query, Scalar, ScalarType};

const OPTIONS: GraphOptions = GraphOptions {
    direction: Direction::Directed,
    normalization: Normalization::None,
    sampling: Sampling::Exact,
    seed: 1,
    top: 10,
    memory_bytes: 64 << 20,
    parts: 1,
};

/// Edges of records whose value is at least `from`.
fn edges(from: i64, columns: Vec<u16>, policy: MisfitPolicy) -> Query {
    let format = Format::parse("key: citing u32be, cited u32be; value: year u16le").unwrap();
    let fields: Vec<ScalarType> = format.fields().iter().map(|field| field.kind.scalar_type()).collect();
    let instructions = vec![
        Instruction::Field(0),
        Instruction::Field(1),
        Instruction::Field(2),
        Instruction::Constant(0),
        Instruction::Compare(Comparison::GreaterOrEqual, 2, 3),
        Instruction::Keep(4),
    ];
    let program = Program::new(instructions, vec![Constant::of(OwnedScalar::Int(from))], &fields).unwrap();
    Query::new(format, program, QueryOutput::Rows { columns, order: None, limit: None }, policy).unwrap()
}

fn all_edges() -> Query {
    edges(2000, vec![0, 1], MisfitPolicy::Fail)
}

fn put(keyspace: &KeyspaceHandle, (from, to): (u32, u32), year: u16) {
    keyspace.put(&[from.to_be_bytes(), to.to_be_bytes()].concat(), &year.to_le_bytes()).unwrap();
}

/// Papers that cite earlier ones: more edges than write buffers hold.
fn fill(keyspace: &KeyspaceHandle) {
    let mut random = SplitMix64::new(5);
    for _ in 0..20_000 {
        let from = 1 + random.below(1500) as u32;
        put(keyspace, (from, random.below(from.into()) as u32), 1990 + random.below(20) as u16);
    }
}

fn run(keyspace: &KeyspaceHandle, options: GraphOptions, side: QuerySide) -> Result<GraphReport, QueryError> {
    keyspace.betweenness(&all_edges(), &options, side, &mut |_| true)
}

fn are_near(a: &[(u64, f64)], b: &[(u64, f64)]) -> bool {
    let is_near = |(a, b): (&(u64, f64), &(u64, f64))| a.0 == b.0 && (a.1 - b.1).abs() <= 1e-9 * b.1.max(1.0);
    a.len() == b.len() && a.iter().zip(b).all(is_near)
}

#[test]
fn the_drive_computes_what_the_host_does() {
    let (drive, store) = store();
    let cites = handle(&store, "cites");
    fill(&cites);
    for (direction, sampling) in [
        (Direction::Directed, Sampling::Exact),
        (Direction::Undirected, Sampling::Exact),
        (Direction::Directed, Sampling::Samples(40)),
    ] {
        let options = GraphOptions { direction, sampling, ..OPTIONS };
        let at_host = run(&cites, options, QuerySide::Host).unwrap();
        assert!(at_host.top.len() == 10 && at_host.top[0].1 > 0.0, "{:?}", at_host.top);
        let crossed = || drive.counters().purpose(Purpose::Scan).local_to_host;
        let before = crossed();
        let at_drive = run(&cites, options, QuerySide::Drive).unwrap();
        assert!(are_near(&at_drive.top, &at_host.top), "{:?}, {:?}", at_drive.top, at_host.top);
        assert_eq!((at_drive.summary, at_drive.query.counts), (at_host.summary, at_host.query.counts));
        let QueryReport { segments, commands, returned_bytes, .. } = at_drive.query;
        assert!(segments > 0 && commands == 1 && returned_bytes < 4096, "{segments} segments, {commands} commands");
        assert_eq!(crossed() - before, returned_bytes);
        let parts = run(&cites, GraphOptions { parts: 3, ..options }, QuerySide::Drive).unwrap();
        assert!(are_near(&parts.top, &at_host.top), "{:?}, {:?}", parts.top, at_host.top);
        assert_eq!((parts.summary, parts.query.commands), (at_host.summary, 3));
        assert!(parts.query.returned_bytes < 4096, "{:?}", parts.query);
    }
}

/// In cached nodes, and in some on flash; some in extensions.
#[test]
fn edges_of_ordered_keyspaces_stay_at_the_drive() {
    let (drive, mut store) = store();
    ordered(&store, "cites");
    for filled in [fill, put_long] {
        filled(&store.keyspace("cites").unwrap());
    }
    for is_cached in [true, false] {
        if !is_cached {
            store.close().unwrap();
            drop(store);
            store = Store::open_with(&drive, &options().1, || false).unwrap();
        }
        let cites = store.keyspace("cites").unwrap();
        let at_host = run(&cites, OPTIONS, QuerySide::Host).unwrap();
        for parts in [1, 3] {
            let at_drive = run(&cites, GraphOptions { parts, ..OPTIONS }, QuerySide::Drive).unwrap();
            assert!(are_near(&at_drive.top, &at_host.top), "{:?}, {:?}", at_drive.top, at_host.top);
            assert_eq!((at_drive.summary, at_drive.query.counts), (at_host.summary, at_host.query.counts.clone()));
            let QueryReport { side, scanned, returned_bytes, .. } = at_drive.query;
            assert!((side, scanned) == (QuerySide::Drive, 0) && returned_bytes < 8192, "{returned_bytes} bytes");
        }
    }
}

/// Edges whose values do not lie with their keys.
fn put_long(keyspace: &KeyspaceHandle) {
    for number in 0..20u32 {
        let mut value = SplitMix64::new(number.into()).bytes(70_000);
        value[..2].copy_from_slice(&2005u16.to_le_bytes());
        keyspace.put(&[(3000 + number).to_be_bytes(), (number * 7).to_be_bytes()].concat(), &value).unwrap();
    }
}

/// More than the first buffer holds, and references among them.
#[test]
fn edges_are_gathered_by_as_many_scans_as_it_takes() {
    let (_drive, store) = store();
    for cites in [handle(&store, "cites"), ordered(&store, "ordered")] {
        fill(&cites);
        put_long(&cites);
        let at_host = run(&cites, OPTIONS, QuerySide::Host).unwrap();
        let at_drive = run(&cites, OPTIONS, QuerySide::Drive).unwrap();
        assert!(are_near(&at_drive.top, &at_host.top), "{:?}, {:?}", at_drive.top, at_host.top);
        for edges_bytes in [80 << 10, 128 << 10] {
            let (edges, mut report) = (all_edges(), QueryReport::of(QuerySide::Drive));
            let graph = GraphDrive::new(&cites, &edges, &OPTIONS, &mut report).unwrap().within(edges_bytes);
            let frames = { graph }.run(&mut |_| true).unwrap();
            let result = GraphResult::decode(&frames).unwrap();
            assert!(are_near(&result.top, &at_host.top), "{:?}, {:?}", result.top, at_host.top);
            assert_eq!(result.summary, at_host.summary);
            assert!(report.commands > 3, "{report:?}");
        }
    }
}

/// Others than edges come and go meanwhile, so that nodes are split, merged and written.
#[test]
#[expect(clippy::disallowed_methods, reason = "the point is real threads")]
fn a_graph_is_whole_beside_writers() {
    let (_drive, store) = store();
    let cites = ordered(&store, "cites");
    fill(&cites);
    let expected = run(&cites, OPTIONS, QuerySide::Host).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = SplitMix64::new(9);
            while !is_over.load(Ordering::Relaxed) {
                let from = random.below(1500) as u32;
                (2000..2100).for_each(|to| put(&cites, (from, to), 1900));
                (2000..2100u32).for_each(|to| {
                    assert!(cites.delete(&[from.to_be_bytes(), to.to_be_bytes()].concat()).unwrap());
                });
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                store.maintain();
            }
        });
        for _ in 0..10 {
            let found = run(&cites, OPTIONS, QuerySide::Drive);
            let found = found.unwrap_or_else(|error| panic!("{error}"));
            let is_same = are_near(&found.top, &expected.top) && found.summary == expected.summary;
            assert!(is_same, "{:?} {:?} of {:?}", found.query, found.summary, expected.summary);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn units_work_on_parts_at_the_same_time() {
    let (_drive, store) = store_of(&[("betweenness", 2), ("scan", 1)]);
    let cites = handle(&store, "cites");
    fill(&cites);
    let at_host = run(&cites, OPTIONS, QuerySide::Host).unwrap();
    for parts in [1, 2] {
        let at_drive = run(&cites, GraphOptions { parts, ..OPTIONS }, QuerySide::Drive).unwrap();
        assert!(are_near(&at_drive.top, &at_host.top), "{parts}: {:?}, {:?}", at_drive.top, at_host.top);
    }
}

#[test]
fn a_graph_in_write_buffers_alone_is_computed_too() {
    let (_drive, store) = store();
    let cites = handle(&store, "cites");
    for (from, to) in [(1, 2), (2, 3), (3, 4)] {
        put(&cites, (from, to), 2000);
    }
    for parts in [1, 2] {
        let report = run(&cites, GraphOptions { parts, ..OPTIONS }, QuerySide::Drive).unwrap();
        assert_eq!(report.top, [(2, 2.0), (3, 2.0), (1, 0.0), (4, 0.0)]);
        assert_eq!((report.query.segments, report.summary.edges), (0, 3));
    }
    assert_eq!(run(&handle(&store, "empty"), OPTIONS, QuerySide::Drive).unwrap().top, []);
}

#[test]
fn what_is_no_graph_and_what_does_not_fit_is_refused() {
    let (_drive, store) = store();
    let cites = handle(&store, "cites");
    fill(&cites);
    let refused = |query: &Query| cites.betweenness(query, &OPTIONS, QuerySide::Drive, &mut |_| true).unwrap_err();
    assert_eq!(refused(&edges(0, vec![0], MisfitPolicy::Fail)), QueryError::NotEdges);
    assert_eq!(refused(&edges(0, vec![0, 4], MisfitPolicy::Fail)), QueryError::NotEdges);
    for side in [QuerySide::Drive, QuerySide::Host] {
        let tight = run(&cites, GraphOptions { memory_bytes: 0, ..OPTIONS }, side);
        assert_eq!(tight.unwrap_err(), QueryError::GraphTooLarge { memory_bytes: 0 });
    }
    let mut heard = 0;
    let cancelled = cites.betweenness(&all_edges(), &OPTIONS, QuerySide::Drive, &mut |_| {
        heard += 1;
        heard < 3
    });
    assert_eq!((cancelled.unwrap_err(), heard), (QueryError::Cancelled, 3));
    cites.put(b"odd", b"x").unwrap();
    match run(&cites, OPTIONS, QuerySide::Drive) {
        Err(QueryError::Misfit { first, .. }) => assert_eq!(&first.key[..], b"odd"),
        other => panic!("{other:?}"),
    }
    let skipping = edges(2000, vec![0, 1], MisfitPolicy::Skip);
    let report = cites.betweenness(&skipping, &OPTIONS, QuerySide::Drive, &mut |_| true).unwrap();
    assert_eq!(report.query.counts.misfits, 1);
}

#[test]
fn of_a_record_only_the_chosen_fields_cross() {
    let (drive, store) = store();
    let cites = handle(&store, "cites");
    fill(&cites);
    let long = [&2001u16.to_le_bytes()[..], &[b'x'; 8000]].concat();
    put(&cites, (7, 8), 1999);
    let key = |from: u32, to: u32| [from.to_be_bytes(), to.to_be_bytes()].concat();
    cites.put(&key(7, 9), &long).unwrap();
    // To flash.
    fill(&cites);
    let get = |key: &[u8], side| {
        let mut rows = Vec::new();
        let mut take = |row: &[Option<Scalar<'_>>]| {
            rows.push(row.iter().map(|value| value.map(Scalar::to_owned)).collect::<Vec<_>>());
        };
        cites.get_fields(key, &edges(0, vec![2, 0], MisfitPolicy::Fail), side, &mut take).map(|report| (report, rows))
    };
    let row = vec![Some(OwnedScalar::Int(2001)), Some(OwnedScalar::Int(7))];
    let crossed = || {
        let counters = drive.counters();
        [Purpose::Get, Purpose::Pipeline].map(|purpose| counters.purpose(purpose).local_to_host).iter().sum::<u64>()
    };
    for side in [QuerySide::Drive, QuerySide::Host] {
        let before = crossed();
        let (report, rows) = get(&key(7, 9), side).unwrap();
        let report = report.unwrap();
        assert_eq!((rows, report.counts.records), (vec![row.clone()], 1));
        let crossed = crossed() - before;
        assert!((crossed < 200) == (side == QuerySide::Drive), "{crossed} bytes");
        assert!(report.returned_bytes <= crossed);
        assert_eq!(get(&key(7, 10_000), side).unwrap(), (None, Vec::new()));
    }
    cites.put(b"odd", b"x").unwrap();
    assert!(matches!(get(b"odd", QuerySide::Drive), Err(QueryError::Misfit { .. })));
}
