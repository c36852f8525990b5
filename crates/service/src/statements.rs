//! Statements of SQL as requests. Pure, but for the format of the keyspace, which the caller asks for.

use tapetum::query::{SelectStatement, Statement, StatementWords};

use crate::failure::Failure;
use crate::request::{Query, QueryWords, Range, Side};

pub const CATALOG: &str = "tapetum";
pub const SCHEMA: &str = "main";
/// The format of a keyspace whose records have none: items as they are.
pub const PLAIN_FORMAT: &str = "key: key bytes; value: value bytes";

/// Takes a statement apart.
///
/// # Errors
/// Names the wrong word.
pub fn parse(sql: &str) -> Result<Statement, Failure> {
    Statement::parse(sql).map_err(|error| Failure::bad(error.to_string()))
}

/// An error if a statement names its keyspace in another schema or catalog.
///
/// # Errors
/// Names the schema that there is.
pub fn check_qualifier(select: &SelectStatement) -> Result<(), Failure> {
    let parts: Vec<&str> = select.qualifier.iter().map(String::as_str).collect();
    match parts[..] {
        [] | [SCHEMA] | [CATALOG, SCHEMA] => Ok(()),
        _ => Err(Failure::bad(format!(
            "there is no {}: keyspaces are in the schema {SCHEMA:?} of the catalog {CATALOG:?}; their names alone do as well",
            parts.join(".")
        ))),
    }
}

/// The query of a statement whose parameters have values, over records of this format.
pub fn query_of(keyspace: &str, words: StatementWords, fields: String, side: Side) -> Query {
    let StatementWords { condition, select, group_by, having, order_by, limit } = words;
    Query {
        keyspace: keyspace.into(),
        freeze: None,
        words: QueryWords { fields, condition, select, group_by, having, order_by, limit, skips_misfits: false },
        range: Range::default(),
        side,
        application: None,
    }
}
