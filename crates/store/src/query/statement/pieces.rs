//! A statement's words and signs, each with its text as it was written.

use super::super::text_error::column_and_word;
use super::super::{QueryProblem, parse};
use super::{PARAMETERS_MAX, STATEMENT_BYTES_MAX, StatementError, StatementProblem};
use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Location, Span, Token};

const ONE_STATEMENT: &str = "one statement at a time: send the next one by itself";
const OTHER_PARAMETER: &str = "a parameter is written as ? or $1, the first one being $1";
const NO_VALUE: &str =
    "a parameter stands where a value may: behind a sign, a comma, or a word such as and, not, like, in";
const TWO_KINDS: &str = "parameters are all written as ?, or all as $1";

pub(super) struct Pieces<'a> {
    pub sql: &'a str,
    pub list: Vec<Piece<'a>>,
    /// The number of parameters.
    pub parameters: usize,
}

pub(super) struct Piece<'a> {
    pub token: Token,
    pub text: &'a str,
    pub span: Span,
    /// In characters from 1 on.
    pub column: usize,
    /// Whether white space or a comment stands before it.
    pub is_apart: bool,
    /// The parameter's number, from 0 on.
    pub parameter: Option<usize>,
}

impl Piece<'_> {
    /// [`Keyword::NoKeyword`] for quoted words, and for signs.
    pub fn keyword(&self) -> Keyword {
        match &self.token {
            Token::Word(word) => word.keyword,
            _ => Keyword::NoKeyword,
        }
    }

    /// A name without its quotes.
    pub fn name(&self) -> Option<&str> {
        match &self.token {
            Token::Word(word) => Some(&word.value),
            _ => None,
        }
    }

    /// Whether a value may stand behind it. A value behind another one would make something else of both: -5 behind a field subtracts.
    fn is_before_value(&self) -> bool {
        let is_value =
            matches!(self.token, Token::Number(..) | Token::RParen | Token::RBracket | Token::Placeholder(_))
                || self.text.ends_with(['\'', '"']);
        match self.keyword() {
            Keyword::SELECT
            | Keyword::DISTINCT
            | Keyword::ALL
            | Keyword::FROM
            | Keyword::WHERE
            | Keyword::BY
            | Keyword::HAVING
            | Keyword::LIMIT
            | Keyword::OFFSET
            | Keyword::FIRST
            | Keyword::NEXT
            | Keyword::AND
            | Keyword::OR
            | Keyword::NOT
            | Keyword::IS
            | Keyword::IN
            | Keyword::BETWEEN
            | Keyword::LIKE
            | Keyword::ESCAPE => true,
            _ => self.name().is_none() && !is_value,
        }
    }

    pub fn is_quoted(&self) -> bool {
        matches!(&self.token, Token::Word(word) if word.quote_style.is_some())
    }
}

impl<'a> Pieces<'a> {
    pub fn of(sql: &'a str) -> Result<Pieces<'a>, StatementError> {
        if sql.len() > STATEMENT_BYTES_MAX {
            return Err(StatementError::whole(StatementProblem::TooLong));
        }
        let mut pieces = Pieces { sql, list: Vec::new(), parameters: 0 };
        let tokens = parse::tokens(sql).map_err(|(span, problem)| pieces.error(span, problem.into()))?;
        let mut offsets = Offsets { sql, at: 0, characters: 0, place: Location { line: 1, column: 1 } };
        let mut is_apart = false;
        for token in tokens {
            let (begin, column) = (offsets.of(token.span.start), offsets.characters + 1);
            let text = &sql[begin..offsets.of(token.span.end)];
            let (token, span) = (token.token, token.span);
            let is_space = matches!(token, Token::Whitespace(_));
            if !is_space {
                pieces.list.push(Piece { token, text, span, column, is_apart, parameter: None });
            }
            is_apart = is_space;
        }
        while pieces.list.last().is_some_and(|last| last.token == Token::SemiColon) {
            pieces.list.pop();
        }
        if let Some(end) = pieces.list.iter().find(|piece| piece.token == Token::SemiColon) {
            return Err(pieces.malformed(end, ONE_STATEMENT));
        }
        pieces.number_parameters()?;
        Ok(pieces)
    }

    fn number_parameters(&mut self) -> Result<(), StatementError> {
        let (mut parameters, mut is_numbered) = (0, None);
        for place in 0..self.list.len() {
            let Token::Placeholder(written) = &self.list[place].token else { continue };
            let number = match written.strip_prefix('$') {
                Some(digits) => digits.parse().ok().filter(|number| (1..=PARAMETERS_MAX).contains(number)),
                None => Some(parameters + 1).filter(|number| written == "?" && *number <= PARAMETERS_MAX),
            };
            let has_number = written.starts_with('$');
            let Some(number) = number else { return Err(self.malformed(&self.list[place], OTHER_PARAMETER)) };
            if *is_numbered.get_or_insert(has_number) != has_number {
                return Err(self.malformed(&self.list[place], TWO_KINDS));
            }
            if place > 0 && !self.list[place - 1].is_before_value() {
                return Err(self.malformed(&self.list[place], NO_VALUE));
            }
            parameters = parameters.max(number);
            self.list[place].parameter = Some(number - 1);
        }
        self.parameters = parameters;
        Ok(())
    }

    pub fn error(&self, span: Span, problem: StatementProblem) -> StatementError {
        let (column, word) = column_and_word(self.sql, span);
        StatementError { column, word, problem }
    }

    pub fn malformed(&self, piece: &Piece<'_>, what: &'static str) -> StatementError {
        self.error(piece.span, StatementProblem::Malformed(what))
    }

    pub fn refused(&self, piece: &Piece<'_>, what: &'static str) -> StatementError {
        self.error(piece.span, StatementProblem::Refused(what))
    }
}

impl From<QueryProblem> for StatementProblem {
    fn from(problem: QueryProblem) -> StatementProblem {
        StatementProblem::Query(problem)
    }
}

/// The byte offsets of places that ascend.
struct Offsets<'a> {
    sql: &'a str,
    at: usize,
    characters: usize,
    place: Location,
}

impl Offsets<'_> {
    fn of(&mut self, wanted: Location) -> usize {
        while self.place < wanted
            && let Some(passed) = self.sql[self.at..].chars().next()
        {
            (self.at, self.characters) = (self.at + passed.len_utf8(), self.characters + 1);
            self.place = match passed {
                '\n' => Location { line: self.place.line + 1, column: 1 },
                _ => Location { line: self.place.line, column: self.place.column + 1 },
            };
        }
        self.at
    }
}
