//! Errors in a statement, and their places.

use super::super::{QueryProblem, QueryTextError};
use super::STATEMENT_BYTES_MAX;
use std::fmt;
use tapetum_base::debug_as_text;

/// Points at a word of a statement.
#[derive(Clone, PartialEq, Eq)]
pub struct StatementError {
    /// In characters from 1 on; 0 where the whole statement is meant.
    pub column: usize,
    /// Nothing, where a word is missing.
    pub word: String,
    pub problem: StatementProblem,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StatementProblem {
    /// Not done here. The sentence names what does it.
    Refused(&'static str),
    /// Not a statement. The sentence says what would be right.
    Malformed(&'static str),
    TooLong,
    /// As the compiler of clauses says it.
    Query(QueryProblem),
    /// In a select without `from`.
    Constants(QueryTextError),
    /// A qualifier that is not this keyspace.
    Qualifier(String),
    Values {
        given: usize,
        parameters: usize,
    },
    /// A clause with its values has more bytes than this.
    ValuesTooLong(usize),
}

impl StatementError {
    pub(super) fn whole(problem: StatementProblem) -> StatementError {
        StatementError { column: 0, word: String::new(), problem }
    }
}

impl fmt::Display for StatementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.column, &self.word[..]) {
            (0, _) => {}
            (column, "") => write!(f, "statement, column {column}: ")?,
            (column, word) => write!(f, "statement, column {column}, {word}: ")?,
        }
        match &self.problem {
            StatementProblem::Refused(what) | StatementProblem::Malformed(what) => f.write_str(what),
            StatementProblem::TooLong => {
                write!(f, "the statement is too long: it has at most {} KiB", STATEMENT_BYTES_MAX >> 10)
            }
            StatementProblem::Query(problem) => problem.explain(&self.word, f),
            StatementProblem::Constants(error) => error.fmt(f),
            StatementProblem::Qualifier(keyspace) => {
                write!(f, "the statement reads {keyspace} alone: name its fields without a table, or with this one")
            }
            StatementProblem::Values { given, parameters } => {
                write!(f, "the statement has {parameters} parameters, and {given} values were bound")
            }
            StatementProblem::ValuesTooLong(bytes) => {
                write!(f, "with its values the clause has more than {} KiB: bind shorter ones", bytes >> 10)
            }
        }
    }
}

impl std::error::Error for StatementError {}

debug_as_text!(StatementError);
