//! Queries as text: expressions of SQL, checked against a format and compiled to a program.
//!
//! ```text
//! statement ─► clauses
//! text of a clause ─► tokens (bounded) ─► sqlparser's tree ─► instructions, constants ─► Query
//! ```
//! 1. Every error names a clause, a place in its text and the word there, and says what would be right.
//! 2. Texts are bounded in bytes and tokens, so no tree is deep. A compiled query passes the check that the drive makes of it.
//! 3. A condition's parts that are joined by `and` are compiled to one `keep` each, in their order. Later instructions run, and fields are read, only
//!    for the records that are left.
//!
//! Pure.
//!
//! ```
//! use tapetum::query::{OrderedRows, QueryText, compile};
//! use tapetum::{Format, OwnedScalar, QuerySide, Scalar};
//! # use tapetum::{Options, Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("tapetum-query-{}", std::process::id()));
//! # let store = Options::new().capacity_bytes(64 << 20).memory_bytes(32 << 20).open(&path)?;
//! let papers = store.keyspace_or_create("papers")?;
//! for (id, year, venue, title) in [(1u32, 1979u16, "TODS", "a"), (2, 1986, "VLDB", "b"), (3, 1991, "VLDB", "c")] {
//!     let value = [&year.to_le_bytes()[..], &[venue.len() as u8], venue.as_bytes(), title.as_bytes()].concat();
//!     papers.put(&id.to_be_bytes(), &value)?;
//! }
//! // What such records are made of; kept with the keyspace, `papers.format()` gives it back.
//! let format = Format::parse("key: id u32be; value: year u16le, venue string8, title string")?;
//! store.set_keyspace_format("papers", Some(&format))?;
//!
//! let text = QueryText {
//!     condition: Some("year >= 1970"),
//!     select: "venue, count(*) as papers",
//!     group_by: Some("venue"),
//!     order_by: Some("papers desc"),
//!     ..QueryText::default()
//! };
//! let compiled = compile(&format, &text)?;
//! let mut shown = Vec::new();
//! let mut show = |values: &[Option<Scalar<'_>>]| {
//!     let row = compiled.columns.iter().map(|column| values[column.place].map(Scalar::to_owned));
//!     shown.push(row.collect::<Vec<_>>());
//! };
//! // The drive groups; order and limit of groups are the host's.
//! let mut rows = OrderedRows::new(compiled.group_order.clone());
//! papers.query(&compiled.query, QuerySide::Drive, &mut |values: &[Option<Scalar<'_>>]| rows.push(values, &mut show))?;
//! rows.finish(&mut show);
//! let row = |venue: &str, papers| vec![Some(OwnedScalar::Text(venue.into())), Some(OwnedScalar::Int(papers))];
//! assert_eq!(shown, [row("VLDB", 2), row("TODS", 1)]);
//! # store.close()?;
//! # drop((papers, store));
//! # std::fs::remove_dir_all(&path)?;
//! # Ok(())
//! # }
//! ```

mod compile;
mod having;
mod like;
mod literals;
mod ordered_rows;
mod parse;
mod select;
mod statement;
mod text_error;

use self::compile::Compiler;
use self::text_error::TextPlace;
use tapetum_kernels::scan::query::MisfitPolicy;
use tapetum_kernels::scan::{Format, Program, Query, ScalarType};

pub use literals::timestamp_text;
pub use ordered_rows::OrderedRows;
pub use statement::{
    PARAMETERS_MAX, STATEMENT_BYTES_MAX, SelectStatement, Statement, StatementError, StatementProblem, StatementWords,
};
pub use text_error::{QueryProblem, QueryTextError};

/// Bytes of one clause.
pub const CLAUSE_BYTES_MAX: usize = 64 << 10;
/// Words and signs of one clause.
pub const CLAUSE_TOKENS_MAX: usize = 1024;

/// A part of a query's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clause {
    Where,
    Select,
    GroupBy,
    Having,
    OrderBy,
}

/// The text of a query, clause by clause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueryText<'a> {
    /// A condition. None: all records.
    pub condition: Option<&'a str>,
    /// Expressions, each with a name behind `as` if it is to have one; or `*`, all fields. Behind `distinct` each row comes once.
    pub select: &'a str,
    /// Expressions, or names and places of columns.
    pub group_by: Option<&'a str>,
    /// A condition on groups.
    pub having: Option<&'a str>,
    /// One expression, or the name or place of a column, and perhaps `desc`. Rows that are ordered need a limit.
    pub order_by: Option<&'a str>,
    pub limit: Option<u64>,
    pub policy: MisfitPolicy,
}

impl Default for QueryText<'_> {
    fn default() -> Self {
        let (condition, group_by, having, order_by, limit) = (None, None, None, None, None);
        QueryText { condition, select: "*", group_by, having, order_by, limit, policy: MisfitPolicy::Fail }
    }
}

/// A column that is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResultColumn {
    pub name: String,
    /// Its place among the columns of the query's result.
    pub place: usize,
    pub scalar_type: ScalarType,
}

/// Groups are chosen and put in order where they are shown: they are few.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GroupOrder {
    /// A program over the columns of the query's result, which keeps a group.
    pub having: Option<Program>,
    /// By a column of the query's result, and whether from the greatest to the least.
    pub by: Option<(usize, bool)>,
    pub limit: Option<u64>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct CompiledQuery {
    pub query: Query,
    pub columns: Vec<ResultColumn>,
    pub group_order: GroupOrder,
}

/// Compiles a query for records of a format.
///
/// # Errors
/// At the word that is wrong.
pub fn compile(format: &Format, text: &QueryText<'_>) -> Result<CompiledQuery, QueryTextError> {
    let mut compiler = Compiler::new(format);
    if let Some(condition) = text.condition {
        compiler.condition(Clause::Where, condition)?;
    }
    let selected = compiler.select(text)?;
    let fields: Vec<ScalarType> = format.fields().iter().map(|field| field.kind.scalar_type()).collect();
    let (program, output) = (compiler.program(&fields)?, selected.output);
    let query = Query::new(format.clone(), program, output, text.policy)
        .map_err(|_| TextPlace::end(Clause::Select, text.select).error(QueryProblem::TooManyColumns))?;
    let types = query.result_types();
    let column = |(name, place): (String, usize)| ResultColumn { name, place, scalar_type: types[place] };
    let columns = selected.columns.into_iter().map(column).collect();
    Ok(CompiledQuery { query, columns, group_order: selected.group_order })
}

#[cfg(test)]
mod group_tests;
#[cfg(test)]
mod tests;
