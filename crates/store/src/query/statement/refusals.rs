//! Statements of SQL that the drive does not run, each with the program that does.

use super::StatementError;
use super::pieces::Pieces;
use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::Token;

const NOTHING: &str = "there is no statement: a statement is select … from a keyspace";
const SELECT_FIRST: &str = "a statement begins with select";
const STORES: &str = "statements do not store: put items with DoPut, which ADBC calls ingest, or with tapetum load";
const CHANGES: &str = "statements do not change items: put them again with DoPut, which ADBC calls ingest";
const DELETES: &str =
    "statements do not delete: tapetum delete deletes an item, tapetum keyspace drop a whole keyspace";
const CREATES: &str = "statements do not create: tapetum keyspace create makes a keyspace";
const ALTERS: &str = "statements do not change keyspaces: tapetum keyspace format and tapetum keyspace rename do";
const DROPS: &str = "statements do not drop: tapetum keyspace drop drops a keyspace";
const EXPLAINS: &str = "statements do not explain: tapetum scan --explain tells what a query took";
const SHOWS: &str = "statements do not list: GetTables does, and tapetum keyspace list";
const TRANSACTIONS: &str = "there are no transactions: each statement sees its keyspace as it is at one moment";
const SETTINGS: &str = "there are no settings of a session";
const WITH: &str =
    "there is no with: a statement is one select; DuckDB, Polars or Ray do the rest, reading the keyspace over Flight";
pub(super) const SUBQUERIES: &str =
    "there are no queries within queries: DuckDB, Polars or Ray do them, reading the keyspace over Flight";
const UNIONS: &str = "there are no unions of queries: DuckDB, Polars or Ray do them, reading each keyspace over Flight";
const WINDOWS: &str = "there are no window functions: DuckDB, Polars or Ray do them, reading the keyspace over Flight";
pub(super) const JOINS: &str =
    "a statement reads one keyspace: DuckDB, Polars or Ray join several, reading each over Flight";
const DISTINCT_ON: &str = "there is no distinct on: group by its expressions, or select distinct";

/// A statement that is no select is refused by its first word.
pub(super) fn check_first_word(pieces: &Pieces<'_>) -> Result<(), StatementError> {
    let Some(first) = pieces.list.first() else {
        return Err(StatementError::whole(super::StatementProblem::Malformed(NOTHING)));
    };
    let sentence = match first.keyword() {
        Keyword::SELECT => return Ok(()),
        Keyword::WITH => WITH,
        Keyword::INSERT | Keyword::COPY | Keyword::MERGE | Keyword::REPLACE | Keyword::LOAD => STORES,
        Keyword::UPDATE => CHANGES,
        Keyword::DELETE | Keyword::TRUNCATE => DELETES,
        Keyword::CREATE => CREATES,
        Keyword::ALTER | Keyword::RENAME => ALTERS,
        Keyword::DROP => DROPS,
        Keyword::EXPLAIN | Keyword::ANALYZE => EXPLAINS,
        Keyword::SHOW | Keyword::DESCRIBE | Keyword::DESC | Keyword::USE => SHOWS,
        Keyword::BEGIN
        | Keyword::START
        | Keyword::COMMIT
        | Keyword::END
        | Keyword::ROLLBACK
        | Keyword::SAVEPOINT
        | Keyword::RELEASE => TRANSACTIONS,
        Keyword::SET | Keyword::RESET | Keyword::PRAGMA => SETTINGS,
        _ => return Err(pieces.malformed(first, SELECT_FIRST)),
    };
    Err(pieces.refused(first, sentence))
}

/// Refuses what a word behind the first begins, if the drive does not do it.
pub(super) fn check(pieces: &Pieces<'_>, place: usize) -> Result<(), StatementError> {
    let list = &pieces.list[..];
    let keyword = |place: usize| list.get(place).map_or(Keyword::NoKeyword, |piece| piece.keyword());
    let is = |place: usize, token: Token| list.get(place).is_some_and(|piece| piece.token == token);
    let is_select = |place| matches!(keyword(place), Keyword::SELECT | Keyword::VALUES | Keyword::WITH);
    let sentence = match keyword(place) {
        Keyword::SELECT | Keyword::VALUES | Keyword::WITH if is(place - 1, Token::LParen) => SUBQUERIES,
        Keyword::UNION | Keyword::INTERSECT | Keyword::EXCEPT | Keyword::MINUS
            if is_select(place + 1)
                || is(place + 1, Token::LParen) && is_select(place + 2)
                || matches!(keyword(place + 1), Keyword::ALL | Keyword::DISTINCT) && is_select(place + 2) =>
        {
            UNIONS
        }
        Keyword::OVER if is(place - 1, Token::RParen) => WINDOWS,
        Keyword::WINDOW if keyword(place + 2) == Keyword::AS && is(place + 3, Token::LParen) => WINDOWS,
        Keyword::DISTINCT if keyword(place + 1) == Keyword::ON && is(place + 2, Token::LParen) => DISTINCT_ON,
        _ => return Ok(()),
    };
    Err(pieces.refused(&list[place], sentence))
}
