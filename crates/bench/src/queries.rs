//! Queries to an embedded store, at the drive or on the host: filtered scans, two fields of a value, betweenness of a graph.

use std::time::Instant;

use tapetum::{GraphOptions, KeyspaceHandle, QueryReport, QuerySide};
use tapetum_drive::{Purpose, PurposeAccount};
use tapetum_kernels::graph::{Direction, Normalization};
use tapetum_kernels::scan::program::{Comparison, Constant, Instruction, Program};
use tapetum_kernels::scan::query::{MisfitPolicy, QueryOutput};
use tapetum_kernels::scan::{Format, OwnedScalar, Query, Scalar, ScalarType};

use crate::Failure;
use crate::fields::{Pair, PairReader};
use crate::filter::{FLASH_BYTES, Filter, KEPT, LOOKED_AT, RETURNED_BYTES, SENT_BYTES, WAKE_UPS};
use crate::graph::{self, EdgeSet};
use crate::latencies::Latencies;
use crate::turn::Turn;
use crate::workload::Key;

/// Key and number of the items that a filter keeps.
pub fn query(filter: Filter) -> Result<Query, Failure> {
    let format = match filter.json {
        true => "key: name bytes; value: number json $.number int",
        false => "key: name bytes; value: number u64le, rest bytes",
    };
    keep_below(format, filter.below, vec![4, 0])
}

/// Columns of the records whose second field is below a number; register 0 has that field, register 4 the first.
pub fn keep_below(format: &str, below: u64, columns: Vec<u16>) -> Result<Query, Failure> {
    let format = Format::parse(format)?;
    let types: Vec<ScalarType> = format.fields().iter().map(|field| field.kind.scalar_type()).collect();
    let below = match types[1] {
        ScalarType::Unsigned => OwnedScalar::Unsigned(below),
        _ => OwnedScalar::Int(below as i64),
    };
    let instructions = vec![
        Instruction::Field(1),
        Instruction::Constant(0),
        Instruction::Compare(Comparison::Less, 0, 1),
        Instruction::Keep(2),
        Instruction::Field(0),
    ];
    let program =
        Program::new(instructions, vec![Constant::of(below)], &types).map_err(|error| format!("{error:?}"))?;
    let output = QueryOutput::Rows { columns, order: None, limit: None };
    Query::new(format, program, output, MisfitPolicy::Fail).map_err(|error| format!("{error:?}").into())
}

/// One after the other, until the turn is over.
pub fn run(
    keyspace: &KeyspaceHandle,
    turn: &Turn,
    items: u64,
    side: QuerySide,
    is_over: impl Fn() -> bool,
) -> Result<Latencies, Failure> {
    let filter = Filter::of(turn, items)?;
    let (query, mut latencies) = (query(filter)?, Latencies::default());
    let begun = Instant::now();
    while !is_over() && begun.elapsed() < turn.time_max() && latencies.operations() < turn.operations_max() {
        let (asked, before) = (Instant::now(), moved(keyspace));
        let mut kept = 0;
        let mut take = |values: &[Option<Scalar<'_>>]| {
            std::hint::black_box(values);
            kept += 1;
        };
        let mut report = keyspace.query(&query, side, &mut take)?;
        latencies.read(asked.elapsed());
        if side == QuerySide::Host {
            // Its report counts the bytes that pipelines move, and there are no pipelines.
            let after = moved(keyspace);
            report.flash_bytes = after.flash_to_local - before.flash_to_local;
            report.sent_bytes = after.host_to_local - before.host_to_local;
            report.returned_bytes = after.local_to_host - before.local_to_host;
        }
        filter.check(kept, items)?;
        count(&mut latencies, &report);
    }
    Ok(latencies)
}

/// The bytes that scans moved, as the drive counts them.
fn moved(keyspace: &KeyspaceHandle) -> PurposeAccount {
    keyspace.store().drive().counters().purpose(Purpose::Scan)
}

/// Gets two fields of one value after the other.
pub struct FieldsGet<'a> {
    keyspace: &'a KeyspaceHandle,
    side: QuerySide,
    query: Query,
}

impl FieldsGet<'_> {
    pub fn new(keyspace: &KeyspaceHandle, side: QuerySide) -> Result<FieldsGet<'_>, Failure> {
        let format = Format::parse("key: name bytes; value: first u64le, second u64le, rest bytes")?;
        let types = [ScalarType::Bytes, ScalarType::Unsigned, ScalarType::Unsigned, ScalarType::Bytes];
        let program = Program::new(vec![Instruction::Field(1), Instruction::Field(2)], Vec::new(), &types);
        let program = program.map_err(|error| format!("{error:?}"))?;
        let output = QueryOutput::Rows { columns: vec![0, 1], order: None, limit: None };
        let query = Query::new(format, program, output, MisfitPolicy::Fail).map_err(|error| format!("{error:?}"))?;
        Ok(FieldsGet { keyspace, side, query })
    }
}

impl PairReader for FieldsGet<'_> {
    fn read(&mut self, key: &Key) -> Result<Option<Pair>, Failure> {
        let mut pair = None;
        let mut take = |values: &[Option<Scalar<'_>>]| {
            if let [Some(Scalar::Unsigned(first)), Some(Scalar::Unsigned(second))] = values {
                pair = Some((*first, *second));
            }
        };
        self.keyspace.get_fields(key, &self.query, self.side, &mut take)?;
        Ok(pair)
    }
}

/// Computes betweenness, again and again until the turn is over; at the drive in so many parts.
pub fn betweenness(keyspace: &KeyspaceHandle, turn: &Turn, side: QuerySide, parts: u8) -> Result<Latencies, Failure> {
    let edges = EdgeSet::of(turn)?;
    let (query, mut latencies) = (edges.query()?, Latencies::default());
    let options = GraphOptions {
        direction: Direction::Directed,
        normalization: Normalization::None,
        sampling: edges.sampling(),
        seed: graph::SEED,
        top: graph::TOP,
        memory_bytes: graph::MEMORY_BYTES,
        parts,
    };
    let begun = Instant::now();
    while begun.elapsed() < turn.time_max() && latencies.operations() < turn.operations_max() {
        let asked = Instant::now();
        let report = keyspace.betweenness(&query, &options, side, &mut |_| true)?;
        latencies.read(asked.elapsed());
        graph::count(&mut latencies, report.summary, &report.top);
        count(&mut latencies, &report.query);
    }
    Ok(latencies)
}

fn count(latencies: &mut Latencies, report: &QueryReport) {
    let QueryReport { counts, returned_bytes, sent_bytes, flash_bytes, wake_ups, .. } = report;
    for (name, more) in [
        (KEPT, counts.kept),
        (LOOKED_AT, counts.records),
        (RETURNED_BYTES, *returned_bytes),
        (SENT_BYTES, *sent_bytes),
        (FLASH_BYTES, *flash_bytes),
        (WAKE_UPS, *wake_ups),
    ] {
        latencies.count(name, more);
    }
}
