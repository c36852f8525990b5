//! Commands in JSON: what clients ask of this door beside Flight SQL. `docs/FLIGHT.md` lists them.
//!
//! Keys are base64. Unknown members are refused, so that a word that was mistyped is not ignored.
//!
//! Pure.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer};
use tapetum_service::failure::Failure;
use tapetum_service::request::{Bound, Query, QueryWords, Range, Side};

/// A descriptor's command is not longer.
pub const COMMAND_BYTES_MAX: usize = 1 << 20;

/// The meaning of a descriptor.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    Query(QueryCommand),
    Items(ItemsCommand),
    Put(PutCommand),
}

/// Rows of a query, whose texts are those of `tapetum scan`.
#[derive(Debug, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueryCommand {
    pub keyspace: String,
    pub freeze: Option<u64>,
    /// The format of the records; that of the keyspace, if it is not given.
    pub fields: Option<String>,
    pub select: Option<String>,
    #[serde(rename = "where")]
    pub condition: Option<String>,
    pub group_by: Option<String>,
    pub having: Option<String>,
    pub order_by: Option<String>,
    pub limit: Option<u64>,
    pub skip_misfits: bool,
    pub application: Option<String>,
    pub range: RangeCommand,
}

/// Items as they are: keys and values.
#[derive(Debug, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ItemsCommand {
    pub keyspace: String,
    pub freeze: Option<u64>,
    pub prefix: Option<Bytes>,
    pub limit: Option<u64>,
    pub range: RangeCommand,
}

/// A range of the keys of an ordered keyspace.
#[derive(Debug, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RangeCommand {
    pub from: Option<Bytes>,
    /// As `from`, without this key: where a scan goes on.
    pub after: Option<Bytes>,
    pub to: Option<Bytes>,
    pub before: Option<Bytes>,
    pub reverse: bool,
}

/// Items that follow as rows.
#[derive(Debug, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PutCommand {
    pub keyspace: String,
    pub keep_existing: bool,
}

/// Bytes, in JSON as base64.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Bytes(pub Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let bytes = BASE64_STANDARD.decode(text.as_bytes());
        bytes.map(Bytes).map_err(|error| serde::de::Error::custom(format!("bytes are given as base64: {error}")))
    }
}

impl Command {
    /// Whether these bytes begin as a command in JSON does.
    pub fn is_json(bytes: &[u8]) -> bool {
        bytes.first() == Some(&b'{')
    }

    /// # Errors
    /// Says what is wrong, and where.
    pub fn parse(bytes: &[u8]) -> Result<Command, Failure> {
        serde_json::from_slice(bytes).map_err(|error| Failure::bad(format!("the command makes no sense: {error}")))
    }
}

impl RangeCommand {
    /// # Errors
    /// If an end is given twice.
    pub fn range(self) -> Result<Range, Failure> {
        if self.from.is_some() && self.after.is_some() || self.to.is_some() && self.before.is_some() {
            return Err(Failure::bad("an end of a range is given once: from or after, to or before"));
        }
        let bound = |included: Option<Bytes>, excluded: Option<Bytes>| match (included, excluded) {
            (_, Some(Bytes(key))) => Bound::Excluded(key),
            (Some(Bytes(key)), None) => Bound::Included(key),
            (None, None) => Bound::Unbounded,
        };
        Ok(Range { from: bound(self.from, self.after), to: bound(self.to, self.before), is_reverse: self.reverse })
    }
}

impl QueryCommand {
    /// The query, of records of a format.
    ///
    /// # Errors
    /// As [`RangeCommand::range`].
    pub fn query(self, fields: String) -> Result<Query, Failure> {
        let words = QueryWords {
            fields,
            condition: self.condition,
            select: self.select.unwrap_or_else(|| "*".into()),
            group_by: self.group_by,
            having: self.having,
            order_by: self.order_by,
            limit: self.limit,
            skips_misfits: self.skip_misfits,
        };
        let (keyspace, freeze, range) = (self.keyspace, self.freeze, self.range.range()?);
        Ok(Query { keyspace, freeze, words, range, side: Side::Drive, application: self.application })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_says_what_it_wants_and_words_that_are_unknown_are_refused() {
        let text = br#"{"items": {"keyspace": "k", "range": {"after": "YQ=="}, "limit": 3}}"#;
        let Command::Items(items) = Command::parse(text).unwrap() else { panic!("items were asked for") };
        assert_eq!((&*items.keyspace, items.limit), ("k", Some(3)));
        assert_eq!(items.range.range().unwrap().from, Bound::Excluded(b"a".to_vec()));
        for (text, told) in [
            (&br#"{"items": {"keyspace": "k", "limitt": 3}}"#[..], "limitt"),
            (br#"{"itemz": {}}"#, "itemz"),
            (br#"{"query": {"keyspace": "k", "range": {"from": "?"}}}"#, "base64"),
            (b"{", "EOF"),
        ] {
            let failure = Command::parse(text).unwrap_err();
            assert!(failure.message.contains(told), "{failure}");
        }
    }
}
