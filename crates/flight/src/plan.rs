//! Plans: a descriptor's command as work, and the schema of its rows.
//!
//! Threads: any; a plan reads what the store says of a keyspace.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use tapetum::query::{ResultColumn, SelectStatement, Statement, StatementWords};
use tapetum::{KeyRange, OwnedScalar, Store};
use tapetum_kernels::scan::ScalarType;
use tapetum_kernels::scan::query::QueryOutput;
use tapetum_service::failure::Failure;
use tapetum_service::reply::{FormatRow, Reply};
use tapetum_service::request::{ListWanted, Query, QueryWords, Range, Request, ScanWanted, Side};
use tapetum_service::statements::{PLAIN_FORMAT, check_qualifier, parse, query_of};

use crate::answering::{item_schema, row_schema, too_old};
use crate::call::Call;
use crate::command::{Bytes, Command, ItemsCommand, QueryCommand};
use crate::ticket::Work;

/// A keyspace is read by so many tickets at most.
const RANGES_MAX: usize = 8;

/// Work for a client.
#[derive(Debug)]
pub struct Plan {
    pub schema: SchemaRef,
    pub work: Work,
}

impl Plan {
    /// The plan of a command in JSON.
    pub fn of_command(call: &Call, command: Command) -> Result<Plan, Failure> {
        match command {
            Command::Query(asked) => Plan::of_query(call, asked),
            Command::Items(asked) => Plan::of_items(call, asked),
            Command::Put(_) => Err(Failure::bad("items are put with DoPut, and this asks for rows")),
        }
    }

    fn of_query(call: &Call, asked: QueryCommand) -> Result<Plan, Failure> {
        let fields = match &asked.fields {
            Some(fields) => fields.clone(),
            None => fields_of(call, &asked.keyspace, asked.freeze)?,
        };
        Plan::of_words(call, asked.query(fields)?)
    }

    /// The plan of a statement whose parameters have values.
    pub fn of_statement(call: &Call, sql: &str, values: &[Option<OwnedScalar>]) -> Result<Plan, Failure> {
        match parse(sql)? {
            Statement::Select(select) => {
                let words = select.bind(values).map_err(|error| Failure::bad(error.to_string()))?;
                Plan::of_select(call, &select, words)
            }
            Statement::Constants(columns) => {
                Ok(Plan { schema: constant_schema(&columns), work: Work::Constants(sql.into()) })
            }
        }
    }

    /// The plan of a statement for its schema alone: its parameters have no values yet.
    pub fn of_unbound(call: &Call, sql: &str) -> Result<(Plan, usize), Failure> {
        match parse(sql)? {
            Statement::Select(select) => {
                Ok((Plan::of_select(call, &select, select.unbound_words())?, select.parameters))
            }
            Statement::Constants(_) => Ok((Plan::of_statement(call, sql, &[])?, 0)),
        }
    }

    fn of_select(call: &Call, select: &SelectStatement, words: StatementWords) -> Result<Plan, Failure> {
        check_qualifier(select)?;
        let fields = fields_of(call, &select.keyspace, None)?;
        Plan::of_words(call, query_of(&select.keyspace, words, fields, Side::Drive))
    }

    fn of_words(call: &Call, query: Query) -> Result<Plan, Failure> {
        let compiled = query.words.compile()?;
        Plan::of_request(call, row_schema(&compiled.columns), Request::Query(query), None)
    }

    fn of_items(call: &Call, asked: ItemsCommand) -> Result<Plan, Failure> {
        let ItemsCommand { keyspace, freeze, prefix, limit, range } = asked;
        let range = range.range()?;
        let request = match (prefix, range == Range::default()) {
            (None, false) => Request::Scan { keyspace, freeze, range, limit, wanted: ScanWanted::Items },
            (Some(_), false) => return Err(Failure::bad("give a prefix or a range, not both")),
            (prefix, true) => {
                let is_ordered = format_of(call, &keyspace, freeze)?.is_ordered;
                let Bytes(prefix) = prefix.unwrap_or_default();
                match is_ordered && prefix.is_empty() {
                    true => Request::Scan { keyspace, freeze, range, limit, wanted: ScanWanted::Items },
                    false => Request::List { keyspace, freeze, prefix, wanted: ListWanted::Items },
                }
            }
        };
        Plan::of_request(call, item_schema(), request, limit)
    }

    /// The plan of a request that the asker may have done: what is found out about its keyspace from here on may be told.
    fn of_request(call: &Call, schema: SchemaRef, request: Request, rows_max: Option<u64>) -> Result<Plan, Failure> {
        call.asker.allow(&request)?;
        Ok(Plan { schema, work: Work::Request { request, rows_max } })
    }
}

impl Work {
    /// The freeze that it reads, if one was named.
    pub fn freeze(&self) -> Option<u64> {
        match self {
            Work::Request {
                request:
                    Request::Query(Query { freeze, .. }) | Request::Scan { freeze, .. } | Request::List { freeze, .. },
                ..
            } => *freeze,
            _ => None,
        }
    }

    /// The same, at a freeze, unless it is of one already.
    pub fn at(mut self, moment: u64) -> Work {
        if let Work::Request {
            request: Request::Query(Query { freeze, .. }) | Request::Scan { freeze, .. } | Request::List { freeze, .. },
            ..
        } = &mut self
        {
            freeze.get_or_insert(moment);
        }
        self
    }

    /// Whether it is to read a moment, and none was named.
    pub fn needs_moment(&self) -> bool {
        matches!(self, Work::Request { .. }) && self.freeze().is_none()
    }

    /// Whether its rows come in the order of keys.
    pub fn is_in_order(&self) -> bool {
        matches!(self, Work::Request { request: Request::Scan { .. }, .. })
    }

    /// The same by ranges of keys, in their order: where each row is one of its own, and all are wanted.
    pub fn by_ranges(self, store: &Store) -> Result<Vec<Work>, Failure> {
        let (name, freeze, range) = match &self {
            Work::Request {
                request: Request::Scan { keyspace, freeze: Some(freeze), range, limit: None, .. }, ..
            } => (keyspace, *freeze, range.clone()),
            Work::Request { request: Request::Query(query), .. } if rows_stand_alone(query)? => {
                (&query.keyspace, query.freeze.unwrap_or_default(), query.range.clone())
            }
            _ => return Ok(vec![self]),
        };
        let view = store.frozen(freeze).map_err(|error| too_old(&error))?;
        // Whoever reads the keyspace hears of an error in it.
        let Ok(keyspace) = view.keyspace(name) else { return Ok(vec![self]) };
        let Ok(ranges) = keyspace.ranges(&range.into(), RANGES_MAX) else { return Ok(vec![self]) };
        let of_range = |of: KeyRange| {
            let mut work = self.clone();
            if let Work::Request {
                request: Request::Scan { range, .. } | Request::Query(Query { range, .. }), ..
            } = &mut work
            {
                *range = of.into();
            }
            work
        };
        Ok(ranges.into_iter().map(of_range).collect())
    }

    /// The schema of its rows.
    pub fn schema(&self) -> Result<SchemaRef, Failure> {
        match self {
            Work::Request { request: Request::Query(query), .. } => Ok(row_schema(&query.words.compile()?.columns)),
            Work::Request { .. } => Ok(item_schema()),
            Work::Constants(sql) => match parse(sql)? {
                Statement::Constants(columns) => Ok(constant_schema(&columns)),
                Statement::Select(_) => Err(Failure::bad("the statement has a FROM")),
            },
        }
    }
}

/// Whether a query's rows are those of its ranges together.
fn rows_stand_alone(query: &Query) -> Result<bool, Failure> {
    let words = &query.words;
    let is_whole = words.limit.is_none() && query.freeze.is_some();
    Ok(is_whole && matches!(words.compile()?.query.output(), QueryOutput::Rows { .. }))
}

/// A column of a statement without FROM: its name, its one value, and its type.
pub type ConstantColumn = (String, Option<OwnedScalar>, ScalarType);

pub fn constant_columns(columns: &[ConstantColumn]) -> Vec<ResultColumn> {
    let column = |(place, (name, _, scalar_type)): (usize, &ConstantColumn)| ResultColumn {
        name: name.clone(),
        place,
        scalar_type: *scalar_type,
    };
    columns.iter().enumerate().map(column).collect()
}

fn constant_schema(columns: &[ConstantColumn]) -> SchemaRef {
    row_schema(&constant_columns(columns))
}

pub fn format_of(call: &Call, keyspace: &str, freeze: Option<u64>) -> Result<FormatRow, Failure> {
    let told = call.gather(Request::Format { keyspace: keyspace.into(), freeze })?;
    match told.into_iter().next() {
        Some(Reply::Format(row)) => Ok(row),
        _ => Ok(FormatRow::default()),
    }
}

/// The format of a keyspace's records; items as they are, if it has none.
pub fn fields_of(call: &Call, keyspace: &str, freeze: Option<u64>) -> Result<String, Failure> {
    Ok(format_of(call, keyspace, freeze)?.fields.unwrap_or_else(|| PLAIN_FORMAT.into()))
}

/// The columns of a keyspace.
pub fn columns_of(fields: Option<&str>) -> Result<SchemaRef, Failure> {
    let words =
        QueryWords { fields: fields.unwrap_or(PLAIN_FORMAT).into(), select: "*".into(), ..QueryWords::default() };
    Ok(row_schema(&words.compile()?.columns))
}

/// The parameters of a statement: nobody knows their types before they have values.
pub fn parameter_schema(parameters: usize) -> SchemaRef {
    let field = |number| Field::new(format!("${number}"), DataType::Null, true);
    Arc::new(Schema::new((1..=parameters).map(field).collect::<Vec<_>>()))
}
