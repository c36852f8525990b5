//! The places at which the clauses of a statement begin and end.

use super::super::QueryProblem;
use super::super::parse::NESTING_MAX;
use super::pieces::{Piece, Pieces};
use super::{StatementError, refusals};
use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::Token;

const OTHER_ORDER: &str = "a statement is select, from, where, group by, having, order by, limit, each once and in this order; \
                           a field that has such a name is written in double quotes";
const NOT_OPENED: &str = "this parenthesis closes none";
const NOT_CLOSED: &str = "this parenthesis is never closed";

/// In the order in which they stand; the last three, in any.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(super) enum StatementClause {
    Select,
    From,
    Where,
    GroupBy,
    Having,
    OrderBy,
    Limit,
    Offset,
    Fetch,
}

/// The pieces of each clause, behind its keywords.
pub(super) struct Clauses<'p, 'a> {
    list: Vec<(StatementClause, &'p [Piece<'a>])>,
}

impl<'p, 'a> Clauses<'p, 'a> {
    /// The first piece is `select`.
    pub fn of(pieces: &'p Pieces<'a>) -> Result<Clauses<'p, 'a>, StatementError> {
        let list = &pieces.list[..];
        let mut clauses = Clauses { list: Vec::new() };
        let (mut clause, mut begin, mut opened) = (StatementClause::Select, 1, Vec::new());
        let mut place = 1;
        while place < list.len() {
            let piece = &list[place];
            match piece.token {
                Token::LParen if opened.len() == NESTING_MAX => {
                    return Err(pieces.error(piece.span, QueryProblem::TooDeep.into()));
                }
                Token::LParen => opened.push(piece),
                Token::RParen if opened.pop().is_none() => return Err(pieces.malformed(piece, NOT_OPENED)),
                _ => {}
            }
            refusals::check(pieces, place)?;
            match opened.is_empty().then(|| beginning(list, place)).flatten() {
                None => place += 1,
                Some((next, keywords)) => {
                    clauses.list.push((clause, &list[begin..place]));
                    if clauses.find(next).is_some() || next <= clause && next < StatementClause::Limit {
                        return Err(pieces.malformed(piece, OTHER_ORDER));
                    }
                    (clause, begin) = (next, place + keywords);
                    place = begin;
                }
            }
        }
        if let Some(open) = opened.last() {
            return Err(pieces.malformed(open, NOT_CLOSED));
        }
        clauses.list.push((clause, &list[begin..]));
        Ok(clauses)
    }

    pub fn find(&self, wanted: StatementClause) -> Option<&'p [Piece<'a>]> {
        self.list.iter().find(|(clause, _)| *clause == wanted).map(|(_, pieces)| *pieces)
    }

    /// Whether no other clause stands behind `select`.
    pub fn is_select_alone(&self) -> bool {
        self.list.len() == 1
    }
}

/// The clause that begins at a place, and how many keywords it begins with.
fn beginning(list: &[Piece<'_>], place: usize) -> Option<(StatementClause, usize)> {
    let keyword = |place: usize| list.get(place).map_or(Keyword::NoKeyword, Piece::keyword);
    Some(match (keyword(place), keyword(place + 1)) {
        // `a is distinct from b`
        (Keyword::FROM, _) if place > 2 && is_is_distinct(keyword(place - 2), keyword(place - 1)) => return None,
        (Keyword::FROM, _) => (StatementClause::From, 1),
        (Keyword::WHERE, _) => (StatementClause::Where, 1),
        (Keyword::GROUP, Keyword::BY) => (StatementClause::GroupBy, 2),
        (Keyword::HAVING, _) => (StatementClause::Having, 1),
        (Keyword::ORDER, Keyword::BY) => (StatementClause::OrderBy, 2),
        (Keyword::LIMIT, _) => (StatementClause::Limit, 1),
        (Keyword::OFFSET, _) => (StatementClause::Offset, 1),
        (Keyword::FETCH, Keyword::FIRST | Keyword::NEXT) => (StatementClause::Fetch, 2),
        _ => return None,
    })
}

fn is_is_distinct(before: Keyword, last: Keyword) -> bool {
    last == Keyword::DISTINCT && matches!(before, Keyword::IS | Keyword::NOT)
}
