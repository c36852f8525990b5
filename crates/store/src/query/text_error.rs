//! Errors in a query's text, and their places.

use super::Clause;
use sqlparser::tokenizer::Span;
use std::fmt;
use tapetum_base::debug_as_text;
use tapetum_kernels::scan::{Format, ScalarType};

/// The beginning of the parser's message about a word behind `is`. The other words that the message names are not supported here.
const PARSER_WANTS_TRUTH: &str = "Expected: [NOT] NULL";

/// Points at a word of a clause.
#[derive(Clone, PartialEq, Eq)]
pub struct QueryTextError {
    pub clause: Clause,
    /// In characters from 1 on.
    pub column: usize,
    /// Nothing, where a word is missing.
    pub word: String,
    pub problem: QueryProblem,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QueryProblem {
    /// In the parser's words.
    Syntax(String),
    TooLong,
    /// Parentheses and signs that lie in each other.
    TooDeep,
    /// With the names there are.
    UnknownField(Vec<String>),
    /// Two that do not compare, or are not added.
    Types(&'static str, &'static str),
    /// A condition of another type.
    NotCondition(&'static str),
    NotNumber(&'static str),
    NotText(&'static str),
    Timestamp,
    Float,
    Number,
    HexBytes,
    Pattern,
    /// It ends with its escape.
    PatternEnd,
    PatternTooLong(usize),
    EscapeCharacter,
    Unsupported(&'static str),
    TooManyInstructions,
    /// An aggregate where none is.
    Aggregate,
    AggregateArgument(&'static str),
    /// None, several, or another thing than an expression.
    AggregateArguments,
    /// An aggregate that takes a value as often as it is there, of distinct ones.
    DistinctAggregate,
    /// Selected beside aggregates, and not grouped by.
    NotGrouped,
    OneOrder,
    OrderNeedsLimit(usize),
    OrderOfGroups,
    /// An order by the same for all records. With how many columns may be named by their places.
    OrderConstant(usize),
    /// Two different columns have the name that rows are ordered by.
    OrderByTwo,
    /// A condition on groups names a field that they do not have.
    NotOfGroups,
    /// Two different columns have a name.
    NameOfTwo,
    NothingSelected,
    TooManyColumns,
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Clause::Where => "where",
            Clause::Select => "select",
            Clause::GroupBy => "group by",
            Clause::Having => "having",
            Clause::OrderBy => "order by",
        })
    }
}

impl fmt::Display for QueryTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.word.is_empty() {
            write!(f, "{}, column {}: ", self.clause, self.column)?;
        } else {
            write!(f, "{}, column {}, {}: ", self.clause, self.column, self.word)?;
        }
        self.problem.explain(&self.word, f)
    }
}

impl std::error::Error for QueryTextError {}

debug_as_text!(QueryTextError);

impl QueryProblem {
    pub(super) fn unknown_field(format: &Format) -> QueryProblem {
        QueryProblem::UnknownField(format.fields().iter().map(|field| field.name.to_string()).collect())
    }

    pub(super) fn types(a: ScalarType, b: ScalarType) -> QueryProblem {
        QueryProblem::Types(a.name(), b.name())
    }

    pub(super) fn explain(&self, word: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueryProblem::Syntax(message) if message.starts_with(PARSER_WANTS_TRUTH) => {
                f.write_str("is and is not take null, true or false: compare with other values by = or <>")
            }
            QueryProblem::Syntax(message) => f.write_str(message),
            QueryProblem::TooLong => {
                f.write_str("it is too long: a clause has at most 1024 words and signs, in 64 KiB")
            }
            QueryProblem::TooDeep => f.write_str("parentheses and signs lie in each other, more than 16 of them"),
            QueryProblem::UnknownField(names) => {
                f.write_str("the format has no such field")?;
                match nearest(word, names) {
                    Some(name) => write!(f, "; {name} is one"),
                    None => write!(f, "; there are {}", names.join(", ")),
                }
            }
            QueryProblem::Types(a, b) => write!(f, "{a} and {b} do not go together"),
            QueryProblem::NotCondition(of) => {
                write!(f, "a condition is true or false, and this is of type {of}: compare it with something")
            }
            QueryProblem::NotNumber(of) => write!(f, "numbers are computed with, and this is of type {of}"),
            QueryProblem::NotText(of) => write!(f, "like takes a string or bytes, and this is of type {of}"),
            QueryProblem::Timestamp => {
                f.write_str("a time is written as '2000-12-31' or '2000-12-31 23:59:59.5', in UTC")
            }
            QueryProblem::Float => f.write_str("a float is written as 1.5, 1e300, float 'NaN' or float '-inf'"),
            QueryProblem::Number => f.write_str("an integer is between -2^63 and 2^64 - 1"),
            QueryProblem::HexBytes => f.write_str("bytes are written as X'00ff', two hexadecimal digits each"),
            QueryProblem::Pattern => f.write_str(
                "a pattern is a text in quotes: % stands for any characters, _ for one, and \\ takes the next one as it is",
            ),
            QueryProblem::PatternEnd => {
                f.write_str("the pattern ends with its escape: write that twice, or say escape '' for none")
            }
            QueryProblem::PatternTooLong(bytes) => write!(f, "a pattern has at most {bytes} bytes"),
            QueryProblem::EscapeCharacter => {
                f.write_str("escape takes one character, such as escape '!', or '' for none")
            }
            QueryProblem::Unsupported(what) => write!(f, "{what}"),
            QueryProblem::TooManyInstructions => {
                f.write_str("the query computes too much: at most 256 steps and 1024 constants of 64 KiB together")
            }
            QueryProblem::Aggregate => f.write_str("an aggregate stands alone, and only in what is selected"),
            QueryProblem::AggregateArgument(of) => write!(f, "sum and avg take numbers, and this is of type {of}"),
            QueryProblem::AggregateArguments => f.write_str("an aggregate takes one argument, as sum(field) does, and count also takes *: count(*)"),
            QueryProblem::DistinctAggregate => f.write_str(
                "distinct values are counted, and not added up: count(distinct field) is there, and min and max",
            ),
            QueryProblem::NotGrouped => {
                f.write_str("beside aggregates stand the expressions that are grouped by, written in the same way")
            }
            QueryProblem::OneOrder => f.write_str("rows are ordered by one expression, with NULLs last"),
            QueryProblem::OrderNeedsLimit(rows) => write!(f, "ordered rows need a limit, of at most {rows}"),
            QueryProblem::OrderOfGroups => f.write_str(
                "groups are ordered by something that is selected: as it is written there, its name, or its place",
            ),
            QueryProblem::OrderConstant(columns) => {
                write!(f, "a constant orders nothing: give a field, a column's name, or its place, from 1 to {columns}")
            }
            QueryProblem::OrderByTwo => {
                f.write_str("two columns have this name: give the place of one, or other names")
            }
            QueryProblem::NotOfGroups => f.write_str(
                "a condition on groups takes what is grouped by, aggregates, and names given with as: put others into where",
            ),
            QueryProblem::NameOfTwo => f.write_str("two columns have this name: give them other names with as"),
            QueryProblem::NothingSelected => f.write_str("nothing is selected; * selects all fields"),
            QueryProblem::TooManyColumns => f.write_str("at most 256 columns are selected"),
        }
    }
}

/// The name that is one letter away, more, less or other, or of other case.
fn nearest<'a>(word: &str, names: &'a [String]) -> Option<&'a String> {
    names.iter().find(|name| name.eq_ignore_ascii_case(word)).or_else(|| {
        names.iter().find(|name| {
            let (a, b): (Vec<char>, Vec<char>) = (word.chars().collect(), name.chars().collect());
            let from_front = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
            let (a, b) = (&a[from_front..], &b[from_front..]);
            let from_back = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
            let (left, right) = (a.len() - from_back, b.len() - from_back);
            // Two letters that changed places are the commonest slip.
            left <= 1 && right <= 1 || left == 2 && right == 2 && a[0] == b[1] && a[1] == b[0]
        })
    })
}

#[derive(Clone, Copy)]
pub(super) struct TextPlace<'a> {
    pub clause: Clause,
    pub text: &'a str,
    pub span: Span,
}

impl<'a> TextPlace<'a> {
    /// Behind the last word.
    pub fn end(clause: Clause, text: &'a str) -> TextPlace<'a> {
        TextPlace { clause, text, span: Span::empty() }
    }

    pub fn error(self, problem: QueryProblem) -> QueryTextError {
        let (column, word) = column_and_word(self.text, self.span);
        QueryTextError { clause: self.clause, column, word, problem }
    }
}

/// A place in characters from 1 on, and the word there. An empty span is behind the last word.
pub(super) fn column_and_word(text: &str, span: Span) -> (usize, String) {
    let start = usize::try_from(span.start.column).unwrap_or(0);
    let line = usize::try_from(span.start.line).unwrap_or(0);
    if start == 0 || line == 0 {
        return (text.chars().count() + 1, String::new());
    }
    // Characters before the line; each line has its end.
    let before: usize = text.split_inclusive('\n').take(line - 1).map(|line| line.chars().count()).sum();
    let column = before + start;
    let rest: String = text.chars().skip(column - 1).collect();
    (column, first_word(&rest).into())
}

fn first_word(text: &str) -> &str {
    let Some(first) = text.chars().next() else { return "" };
    let quoted = if first == '\'' || first == '"' { Some(first) } else { None };
    let is_in_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let end = match quoted {
        Some(quote) => text[1..].find(quote).map(|at| at + 2),
        None if is_in_word(first) => text.find(|c| !is_in_word(c)),
        None => Some(first.len_utf8()),
    };
    let word = &text[..end.unwrap_or(text.len())];
    // A long string is not shown whole.
    word.char_indices().nth(40).map_or(word, |(at, _)| &word[..at])
}
