//! The keyspace of a statement, and the names by which its fields may be qualified.

use super::pieces::{Piece, Pieces};
use super::refusals::{JOINS, SUBQUERIES};
use super::{StatementError, StatementProblem};
use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Span, Token};

const NAMES_KEYSPACE: &str =
    "from names a keyspace; a name of other signs than letters, digits and _ stands in double quotes";
const BEHIND_KEYSPACE: &str = "behind the keyspace stand another name for it, if any, where, group by, having, order by, limit; \
                               a name of other signs than letters, digits and _ stands in double quotes";
const NO_FUNCTION: &str = "there are no functions that make tables: from names a keyspace";

pub(super) struct Scope {
    pub keyspace: String,
    pub qualifier: Vec<String>,
    alias: Option<String>,
}

impl Scope {
    pub fn of(pieces: &Pieces<'_>, from: &[Piece<'_>]) -> Result<Scope, StatementError> {
        let [first, rest @ ..] = from else {
            return Err(pieces.error(Span::empty(), StatementProblem::Malformed(NAMES_KEYSPACE)));
        };
        if let Some(join) = from.iter().find(|piece| matches!(piece.keyword(), Keyword::JOIN | Keyword::LATERAL)) {
            return Err(pieces.refused(join, JOINS));
        }
        if let Some(comma) = from.iter().find(|piece| piece.token == Token::Comma) {
            return Err(pieces.refused(comma, JOINS));
        }
        if first.token == Token::LParen {
            return Err(pieces.refused(first, SUBQUERIES));
        }
        let Some(name) = first.name() else { return Err(pieces.malformed(first, NAMES_KEYSPACE)) };
        let (mut parts, mut rest) = (vec![name.to_string()], rest);
        while let [period, part, behind @ ..] = rest
            && period.token == Token::Period
        {
            let Some(name) = part.name() else { return Err(pieces.malformed(part, NAMES_KEYSPACE)) };
            parts.push(name.into());
            rest = behind;
        }
        let alias = match rest {
            [] => None,
            [word, alias] if word.keyword() == Keyword::AS && alias.name().is_some() => Some(alias),
            [alias] if alias.name().is_some() && alias.keyword() != Keyword::AS => Some(alias),
            [other, ..] if other.token == Token::LParen => return Err(pieces.refused(other, NO_FUNCTION)),
            [.., last] => {
                let sign = rest.iter().find(|piece| piece.name().is_none());
                return Err(pieces.malformed(sign.unwrap_or(last), BEHIND_KEYSPACE));
            }
        };
        let alias = alias.and_then(Piece::name).map(String::from);
        let Some(keyspace) = parts.pop() else { unreachable!("it has one part or more") };
        Ok(Scope { keyspace, qualifier: parts, alias })
    }

    /// Whether a field's qualifier means the keyspace: its other name, its name, or more parts of its qualified name.
    pub fn is_meant_by(&self, qualifier: &[&Piece<'_>]) -> bool {
        let full: Vec<&str> = self.qualifier.iter().map(String::as_str).chain([&self.keyspace[..]]).collect();
        let alias: Vec<&str> = self.alias.iter().map(String::as_str).collect();
        [&alias[..], full.get(full.len().saturating_sub(qualifier.len())..).unwrap_or_default()].iter().any(|names| {
            names.len() == qualifier.len() && names.iter().zip(qualifier).all(|(name, piece)| is_name(piece, name))
        })
    }
}

/// Upper and lower case are one where there are no quotes.
fn is_name(piece: &Piece<'_>, name: &str) -> bool {
    piece.name().is_some_and(|word| word == name || !piece.is_quoted() && word.eq_ignore_ascii_case(name))
}
