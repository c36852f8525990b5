//! Whole statements: `select … from … where …`, taken apart into the clauses that [`compile`](super::compile) takes.
//!
//! ```text
//! text ─► pieces (bounded) ─► clauses ─► templates ─► words: the text of each clause
//!                                           ▲
//!                                         values, where the parameters stand
//! ```
//! 1. A statement is cut at the keywords between its clauses and never parsed as a whole: what lies inside a clause is looked at by the compiler
//!    of clauses, within its bounds.
//! 2. Work and memory are in proportion to a statement's length, which is bounded, and take no stack.
//! 3. A bound value is written as a literal that stands for that value and no other. The names of columns do not depend on values.
//! 4. What the drive does not do is refused by a sentence that names what does.

mod clauses;
mod constants;
mod error;
mod from;
mod pieces;
mod refusals;
mod template;

use self::clauses::{Clauses, StatementClause};
use self::from::Scope;
use self::pieces::Pieces;
use self::template::{Filling, Template};
use super::QueryText;
use tapetum_kernels::scan::query::MisfitPolicy;
use tapetum_kernels::scan::{OwnedScalar, ScalarType};

pub use error::{StatementError, StatementProblem};

/// Bytes of a statement.
pub const STATEMENT_BYTES_MAX: usize = super::CLAUSE_BYTES_MAX;
/// Parameters of a statement.
pub const PARAMETERS_MAX: usize = super::CLAUSE_TOKENS_MAX;

#[derive(Clone, PartialEq, Debug)]
pub enum Statement {
    Select(SelectStatement),
    /// A select without `from`: one row. Name, value and type of each column.
    Constants(Vec<(String, Option<OwnedScalar>, ScalarType)>),
}

#[derive(Clone, PartialEq, Debug)]
pub struct SelectStatement {
    pub keyspace: String,
    /// The parts of a qualified name before the keyspace, as they were written: catalog, schema.
    pub qualifier: Vec<String>,
    /// The clauses. Parameters stand in them as they were written; a limit that is one is `None`.
    pub words: StatementWords,
    /// The number of values that [`SelectStatement::bind`] takes.
    pub parameters: usize,
    template: Box<Template>,
}

/// A query's text, clause by clause: see [`QueryText`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatementWords {
    pub condition: Option<String>,
    pub select: String,
    pub group_by: Option<String>,
    pub having: Option<String>,
    pub order_by: Option<String>,
    pub limit: Option<u64>,
}

impl Statement {
    /// # Errors
    /// Points at a word, and says what would be right. A clause is looked into when its words are compiled.
    pub fn parse(sql: &str) -> Result<Statement, StatementError> {
        let pieces = Pieces::of(sql)?;
        refusals::check_first_word(&pieces)?;
        let clauses = Clauses::of(&pieces)?;
        let Some(from) = clauses.find(StatementClause::From) else {
            return constants::evaluated(&pieces, &clauses).map(Statement::Constants);
        };
        let scope = Scope::of(&pieces, from)?;
        let template = Template::of(&pieces, &clauses, &scope)?;
        let words = template.words(Filling::Written)?;
        let Scope { keyspace, qualifier, .. } = scope;
        let (parameters, template) = (pieces.parameters, Box::new(template));
        Ok(Statement::Select(SelectStatement { keyspace, qualifier, words, parameters, template }))
    }
}

impl SelectStatement {
    /// The words with values in the place of the parameters; `None` is NULL. A limit takes NULL for none.
    ///
    /// # Errors
    /// The values are too many, too few or too long, or not what a limit takes.
    pub fn bind(&self, values: &[Option<OwnedScalar>]) -> Result<StatementWords, StatementError> {
        if values.len() != self.parameters {
            let problem = StatementProblem::Values { given: values.len(), parameters: self.parameters };
            return Err(StatementError::whole(problem));
        }
        self.template.words(Filling::Values(values))
    }

    /// The words with NULL in the place of each parameter, and a limit of 0. Their compiled columns are those of the bound statement, but for the types of
    /// columns that come from nothing else than parameters.
    pub fn unbound_words(&self) -> StatementWords {
        let Ok(words) = self.template.words(Filling::Nulls) else { unreachable!("NULLs are short, and of any type") };
        words
    }
}

impl StatementWords {
    pub fn text(&self, policy: MisfitPolicy) -> QueryText<'_> {
        QueryText {
            condition: self.condition.as_deref(),
            select: &self.select,
            group_by: self.group_by.as_deref(),
            having: self.having.as_deref(),
            order_by: self.order_by.as_deref(),
            limit: self.limit,
            policy,
        }
    }
}

#[cfg(test)]
mod tests;
