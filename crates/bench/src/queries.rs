//! Filtered scans of an embedded store, at the drive or on the host.

use std::time::Instant;

use tapetum::{KeyspaceHandle, QueryReport, QuerySide};
use tapetum_kernels::scan::program::{Comparison, Constant, Instruction, Program};
use tapetum_kernels::scan::query::{MisfitPolicy, QueryOutput};
use tapetum_kernels::scan::{Format, OwnedScalar, Query, Scalar, ScalarType};

use crate::Failure;
use crate::filter::{FLASH_BYTES, Filter, KEPT, LOOKED_AT, RETURNED_BYTES, SENT_BYTES, WAKE_UPS};
use crate::latencies::Latencies;
use crate::turn::Turn;

/// Key and number of the items that a filter keeps.
pub fn query(filter: Filter) -> Result<Query, Failure> {
    let format = Format::parse("key: name bytes; value: number u64le, rest bytes")?;
    let instructions = vec![
        Instruction::Field(1),
        Instruction::Constant(0),
        Instruction::Compare(Comparison::Less, 0, 1),
        Instruction::Keep(2),
        Instruction::Field(0),
    ];
    let constants = vec![Constant::of(OwnedScalar::Unsigned(filter.below))];
    let types = [ScalarType::Bytes, ScalarType::Unsigned, ScalarType::Bytes];
    let program = Program::new(instructions, constants, &types).map_err(|error| format!("{error:?}"))?;
    let output = QueryOutput::Rows { columns: vec![4, 0], order: None, limit: None };
    Query::new(format, program, output, MisfitPolicy::Fail).map_err(|error| format!("{error:?}").into())
}

/// One after the other, until the turn is over.
pub fn run(
    keyspace: &KeyspaceHandle,
    turn: &Turn,
    (items, side): (u64, QuerySide),
    is_over: impl Fn() -> bool,
) -> Result<Latencies, Failure> {
    let filter = Filter::of(turn, items)?;
    let (query, mut latencies) = (query(filter)?, Latencies::default());
    let begun = Instant::now();
    while !is_over() && begun.elapsed() < turn.time_max() && latencies.operations() < turn.operations_max() {
        let asked = Instant::now();
        let mut kept = 0;
        let mut take = |values: &[Option<Scalar<'_>>]| {
            std::hint::black_box(values);
            kept += 1;
        };
        let report = keyspace.query(&query, side, &mut take)?;
        latencies.read(asked.elapsed());
        filter.check(kept, items)?;
        count(&mut latencies, &report);
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
