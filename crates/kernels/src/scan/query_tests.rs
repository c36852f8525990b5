//! Queries over parts of the records, merged, against a plain loop over all of them.

use super::aggregate::AggregateKind;
use super::program::{Comparison, Constant, Instruction, Program};
use super::query::{Aggregate, MisfitPolicy, Query, QueryOutput, RowOrder};
use super::run::{FirstMisfit, RunError};
use super::{Format, Misfit, OwnedScalar, QueryResult, QueryRun, RowBatch, Scalar, ScalarType, ScanCounts};

const FORMAT: &str = "key: id u32be; value: year u16le, venue string8";

/// `year >= 2000`, and then registers 0 id, 1 year, 2 venue.
fn query(output: QueryOutput, policy: MisfitPolicy) -> Query {
    let format = Format::parse(FORMAT).unwrap();
    let fields: Vec<ScalarType> = format.fields().iter().map(|field| field.kind.scalar_type()).collect();
    let instructions = vec![
        Instruction::Field(0),
        Instruction::Field(1),
        Instruction::Field(2),
        Instruction::Constant(0),
        Instruction::Compare(Comparison::GreaterOrEqual, 1, 3),
        Instruction::Keep(4),
    ];
    let program = Program::new(instructions, vec![Constant::of(OwnedScalar::Int(2000))], &fields).unwrap();
    Query::new(format, program, output, policy).unwrap()
}

#[derive(Clone)]
struct Paper {
    id: u32,
    year: u16,
    venue: String,
}

fn papers(count: u32) -> Vec<Paper> {
    let paper = |id: u32| Paper { id, year: 1990 + (id * 7 % 20) as u16, venue: format!("venue {}", id * 5 % 7) };
    (0..count).map(paper).collect()
}

fn push(batch: &mut RowBatch, paper: &Paper) {
    let mut value = paper.year.to_le_bytes().to_vec();
    value.push(paper.venue.len() as u8);
    value.extend_from_slice(paper.venue.as_bytes());
    batch.push(&paper.id.to_be_bytes(), &value);
}

/// The result of papers that are parted into so many runs, each of small batches.
fn result(query: &Query, papers: &[Paper], parts: usize) -> (Vec<Vec<Option<OwnedScalar>>>, ScanCounts) {
    // As it crosses to the drive.
    let mut bytes = Vec::new();
    query.encode(&mut bytes);
    let query = Query::decode(&mut super::wire::ScanReader::new(&bytes)).unwrap();
    let (mut result, mut rows) = (QueryResult::new(&query), Vec::new());
    let mut take = |values: &[Option<Scalar<'_>>]| {
        rows.push(values.iter().map(|value| value.map(Scalar::to_owned)).collect());
    };
    for part in 0..parts {
        let (mut run, mut frames, mut batch) = (QueryRun::new(&query), Vec::new(), RowBatch::new());
        for paper in papers.iter().skip(part).step_by(parts) {
            push(&mut batch, paper);
            if batch.len() == 10 {
                run.run(&batch, &mut frames).unwrap();
                batch.clear();
            }
        }
        run.run(&batch, &mut frames).unwrap();
        run.finish(&mut frames);
        result.merge(&frames, &mut take).unwrap();
    }
    let counts = result.finish(&mut take);
    (rows, counts)
}

fn int(value: impl Into<i64>) -> Option<OwnedScalar> {
    Some(OwnedScalar::Int(value.into()))
}

fn text(value: &str) -> Option<OwnedScalar> {
    Some(OwnedScalar::Text(value.into()))
}

#[test]
fn rows_are_those_that_are_kept() {
    let papers = papers(200);
    let wanted = papers.iter().filter(|paper| paper.year >= 2000);
    let expected: Vec<_> = wanted.map(|paper| vec![text(&paper.venue), int(paper.id)]).collect();
    for parts in [1, 3] {
        let output = QueryOutput::Rows { columns: vec![2, 0], order: None, limit: None };
        let (mut rows, counts) = result(&query(output, MisfitPolicy::Fail), &papers, parts);
        rows.sort_by_key(|row| row[1].clone().and_then(|id| id.as_scalar().integer()));
        assert_eq!(rows, expected);
        assert_eq!((counts.records, counts.kept, counts.misfits), (200, expected.len() as u64, 0));
        let limited = QueryOutput::Rows { columns: vec![0], order: None, limit: Some(7) };
        assert_eq!(result(&query(limited, MisfitPolicy::Fail), &papers, parts).0.len(), 7);
    }
}

#[test]
fn ordered_rows_are_the_same_however_the_records_are_parted() {
    let papers = papers(200);
    for is_descending in [false, true] {
        let mut sorted: Vec<_> = papers.iter().filter(|paper| paper.year >= 2000).collect();
        sorted.sort_by(|a, b| if is_descending { b.venue.cmp(&a.venue) } else { a.venue.cmp(&b.venue) });
        let expected: Vec<_> = sorted[..5].iter().map(|paper| vec![text(&paper.venue)]).collect();
        for parts in [1, 4] {
            let order = Some(RowOrder { by: 2, is_descending });
            let output = QueryOutput::Rows { columns: vec![2], order, limit: Some(5) };
            assert_eq!(result(&query(output, MisfitPolicy::Fail), &papers, parts).0, expected);
        }
    }
}

#[test]
fn groups_are_the_same_however_the_records_are_parted() {
    let papers = papers(200);
    let of = |kind, register| Aggregate { kind, register };
    let aggregates = vec![
        of(AggregateKind::Count, None),
        of(AggregateKind::Sum, Some(0)),
        of(AggregateKind::Min, Some(2)),
        of(AggregateKind::Average, Some(1)),
        of(AggregateKind::CountDistinct, Some(2)),
        of(AggregateKind::CountDistinct, Some(1)),
    ];
    let mut expected = Vec::new();
    for year in 2000..2010u16 {
        let of: Vec<_> = papers.iter().filter(|paper| paper.year == year).collect();
        let least = of.iter().map(|paper| &paper.venue).min().unwrap();
        let sum: u32 = of.iter().map(|paper| paper.id).sum();
        let average = Some(OwnedScalar::Float(year.into()));
        let venues = of.iter().map(|paper| &paper.venue).collect::<std::collections::BTreeSet<_>>().len();
        expected.push(vec![
            int(year),
            int(of.len() as i64),
            int(sum),
            text(least),
            average,
            int(venues as i64),
            int(1),
        ]);
    }
    for parts in [1, 3] {
        let output = QueryOutput::Groups { keys: vec![1], aggregates: aggregates.clone() };
        assert_eq!(result(&query(output, MisfitPolicy::Fail), &papers, parts).0, expected);
    }
    let none = QueryOutput::Groups { keys: vec![], aggregates: vec![of(AggregateKind::Count, None)] };
    assert_eq!(result(&query(none.clone(), MisfitPolicy::Fail), &[], 2).0, [[int(0)]]);
    assert_eq!(result(&query(none, MisfitPolicy::Fail), &papers, 2).0, [[int(100)]]);
}

#[test]
fn a_record_that_does_not_fit_is_counted_or_ends_the_run() {
    let output = QueryOutput::Rows { columns: vec![0], order: None, limit: None };
    let (mut batch, mut out) = (RowBatch::new(), Vec::new());
    push(&mut batch, &Paper { id: 1, year: 2001, venue: "v".into() });
    batch.push(b"\0\0\0\x02", b"\xd1\x07\x05shor");
    batch.push(b"short", b"");
    let first = FirstMisfit { field: 2, misfit: Misfit::Short, key: Box::new(*b"\0\0\0\x02") };
    let mut failing = QueryRun::new(&query(output.clone(), MisfitPolicy::Fail));
    assert_eq!(failing.run(&batch, &mut out), Err(RunError::Misfit(first.clone())));
    let mut skipping = QueryRun::new(&query(output, MisfitPolicy::Skip));
    skipping.run(&batch, &mut out).unwrap();
    let expected = ScanCounts { records: 3, kept: 1, misfits: 2, first_misfit: Some(first) };
    assert_eq!(skipping.counts(), &expected);
}

#[test]
fn frames_of_anything_are_merged_or_refused() {
    let output = QueryOutput::Rows { columns: vec![2], order: None, limit: None };
    let query = query(output, MisfitPolicy::Fail);
    let (mut run, mut frames, mut batch) = (QueryRun::new(&query), Vec::new(), RowBatch::new());
    papers(30).iter().for_each(|paper| push(&mut batch, paper));
    run.run(&batch, &mut frames).unwrap();
    run.finish(&mut frames);
    for at in 0..frames.len() {
        for bit in 0..8 {
            let mut damaged = frames.clone();
            damaged[at] ^= 1 << bit;
            // Or refused.
            let _ = QueryResult::new(&query).merge(&damaged, &mut |_: &[Option<Scalar<'_>>]| ());
        }
        assert!(
            at == 0
                || QueryResult::new(&query).merge(&frames[..at], &mut |_: &[Option<Scalar<'_>>]| ()).is_err()
                || frames[at] == 3
        );
    }
}
