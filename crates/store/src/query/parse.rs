//! Text to trees, by `sqlparser`.

use super::text_error::TextPlace;
use super::{CLAUSE_BYTES_MAX, CLAUSE_TOKENS_MAX, Clause, QueryProblem, QueryTextError};
use sqlparser::ast::{Expr, OrderByExpr, SelectItem};
use sqlparser::dialect::AnsiDialect;
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Span, Token, TokenWithSpan, Tokenizer};

/// Parentheses and signs that may lie in each other. A thread has 2 MiB.
pub(super) const NESTING_MAX: usize = 16; // levels; one takes 75 KB of stack in a build without optimisation

pub(super) fn expression(clause: Clause, text: &str) -> Result<Expr, QueryTextError> {
    parse(clause, text, |parser| parser.parse_expr())
}

pub(super) fn expressions(clause: Clause, text: &str) -> Result<Vec<Expr>, QueryTextError> {
    parse(clause, text, |parser| parser.parse_comma_separated(Parser::parse_expr))
}

/// Whether they are to be distinct, and what they are.
pub(super) fn select_items(clause: Clause, text: &str) -> Result<(bool, Vec<SelectItem>), QueryTextError> {
    parse(clause, text, |parser| {
        let is_distinct = is_distinct(parser);
        Ok((is_distinct, parser.parse_comma_separated(Parser::parse_select_item)?))
    })
}

/// Takes `distinct`, unless it is the name of a field.
fn is_distinct(parser: &mut Parser<'_>) -> bool {
    if !parser.parse_keyword(Keyword::DISTINCT) {
        return false;
    }
    let is_name = matches!(parser.peek_token().token, Token::Comma | Token::EOF);
    if is_name {
        parser.prev_token();
    }
    !is_name
}

pub(super) fn orders(clause: Clause, text: &str) -> Result<Vec<OrderByExpr>, QueryTextError> {
    parse(clause, text, |parser| parser.parse_comma_separated(Parser::parse_order_by_expr))
}

fn parse<T>(
    clause: Clause,
    text: &str,
    parse: impl FnOnce(&mut Parser<'_>) -> Result<T, ParserError>,
) -> Result<T, QueryTextError> {
    let at = |span: Span| TextPlace { clause, text, span };
    if text.len() > CLAUSE_BYTES_MAX {
        return Err(at(Span::empty()).error(QueryProblem::TooLong));
    }
    let tokens = tokens(text).map_err(|(span, problem)| at(span).error(problem))?;
    let mut solid = tokens.iter().filter(|token| !matches!(token.token, Token::Whitespace(_)));
    if let Some(surplus) = solid.nth(CLAUSE_TOKENS_MAX) {
        return Err(at(surplus.span).error(QueryProblem::TooLong));
    }
    let mut parser = Parser::new(&AnsiDialect {}).with_recursion_limit(NESTING_MAX).with_tokens_with_locations(tokens);
    let parsed = parse(&mut parser).map_err(|error| {
        let next = parser.peek_token().span;
        match error {
            ParserError::RecursionLimitExceeded => at(next).error(QueryProblem::TooDeep),
            ParserError::ParserError(message) | ParserError::TokenizerError(message) => {
                let (message, span) = place_in(&message).unwrap_or((&message, next));
                at(span).error(QueryProblem::Syntax(message.into()))
            }
        }
    })?;
    let next = parser.peek_token();
    if next.token != Token::EOF {
        let problem = QueryProblem::Syntax("an operator is missing before it, or it is too much".into());
        return Err(at(next.span).error(problem));
    }
    Ok(parsed)
}

/// Words, signs and the white space between them, of a text whose length was checked.
pub(super) fn tokens(text: &str) -> Result<Vec<TokenWithSpan>, (Span, QueryProblem)> {
    Tokenizer::new(&AnsiDialect {}, text)
        .tokenize_with_location()
        .map_err(|error| (Span::new(error.location, error.location), QueryProblem::Syntax(error.message)))
}

/// The place that the parser's message ends with.
fn place_in(message: &str) -> Option<(&str, Span)> {
    let (message, place) = message.rsplit_once(" at Line: ")?;
    let (line, column) = place.split_once(", Column: ")?;
    let start = Location { line: line.parse().ok()?, column: column.trim().parse().ok()? };
    Some((message, Span::new(start, start)))
}
