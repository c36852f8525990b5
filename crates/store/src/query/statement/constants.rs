//! A select without `from`: clients ask for `select 1` to see whether somebody answers.

use super::super::{QueryProblem, QueryText, compile};
use super::clauses::{Clauses, StatementClause};
use super::pieces::Pieces;
use super::{StatementError, StatementProblem};
use tapetum_kernels::scan::program::Instruction;
use tapetum_kernels::scan::{Format, OwnedScalar, QueryResult, QueryRun, RowBatch, Scalar, ScalarType};

const NO_FIELDS: &str = "a statement that reads fields has a from, with a keyspace behind it";
const CONSTANTS_ALONE: &str = "a statement with other clauses than select has a from, with a keyspace behind it";
const NO_PARAMETERS: &str = "a statement with parameters has a from, with a keyspace behind it";

/// Name, value and type of each column.
pub(super) fn evaluated(
    pieces: &Pieces<'_>,
    clauses: &Clauses<'_, '_>,
) -> Result<Vec<(String, Option<OwnedScalar>, ScalarType)>, StatementError> {
    if !clauses.is_select_alone() {
        return Err(StatementError::whole(StatementProblem::Malformed(CONSTANTS_ALONE)));
    }
    if let Some(parameter) = pieces.list.iter().find(|piece| piece.parameter.is_some()) {
        return Err(pieces.malformed(parameter, NO_PARAMETERS));
    }
    let mut select = String::new();
    for piece in clauses.find(StatementClause::Select).unwrap_or_default() {
        if piece.is_apart {
            select.push(' ');
        }
        select.push_str(piece.text);
    }
    let compiled = compile(&Format::plain(), &QueryText { select: select.trim_start(), ..QueryText::default() });
    let compiled = compiled.map_err(|error| {
        StatementError::whole(match error.problem {
            QueryProblem::UnknownField(_) => StatementProblem::Malformed(NO_FIELDS),
            _ => StatementProblem::Constants(error),
        })
    })?;
    let is_field = |instruction: &Instruction| matches!(instruction, Instruction::Field(_));
    if compiled.query.program().instructions().iter().any(is_field) {
        return Err(StatementError::whole(StatementProblem::Malformed(NO_FIELDS)));
    }
    // The row is computed of one record, whatever is in it.
    let (mut batch, mut run, mut frames) = (RowBatch::new(), QueryRun::new(&compiled.query), Vec::new());
    batch.push(&[], &[]);
    let Ok(()) = run.run(&batch, &mut frames) else { unreachable!("a record of no fields fits, and is one group") };
    run.finish(&mut frames);
    let (mut result, mut row) = (QueryResult::new(&compiled.query), Vec::new());
    let mut take =
        |values: &[Option<Scalar<'_>>]| row = values.iter().map(|value| value.map(Scalar::to_owned)).collect();
    let Ok(()) = result.merge(&frames, &mut take) else { unreachable!("a run's frames merge") };
    result.finish(&mut take);
    let column = |column: super::super::ResultColumn| (column.name, row[column.place].clone(), column.scalar_type);
    Ok(compiled.columns.into_iter().map(column).collect())
}
