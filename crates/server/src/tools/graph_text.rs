//! The text that defines a graph's edges: `citing, cited from refs where year >= 2015`.

use tapetum::checked_keyspace_name;
use tapetum_kernels::scan::Format;
use tapetum_kernels::scan::format::Part;

/// `COLUMNS from KEYSPACE where CONDITION`; only `from KEYSPACE` is required.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgesText {
    pub columns: Option<String>,
    pub keyspace: String,
    pub condition: Option<String>,
}

impl EdgesText {
    /// # Errors
    /// Says what is missing.
    pub fn parse(text: &str) -> Result<EdgesText, String> {
        let shape = "write edges as \"FROM, TO from KEYSPACE where CONDITION\", with from KEYSPACE at least";
        let (columns, rest) = split_at_word(text, "from").ok_or(shape)?;
        let (name, condition) = match split_at_word(rest, "where") {
            Some((name, condition)) => (name, Some(condition.trim().to_owned())),
            None => (rest, None),
        };
        let name = name.trim();
        let name = name.strip_prefix('"').and_then(|name| name.strip_suffix('"')).unwrap_or(name);
        let keyspace = checked_keyspace_name(name.as_bytes()).map_err(|error| format!("{error}; {shape}"))?.to_owned();
        let columns = Some(columns.trim()).filter(|columns| !columns.is_empty()).map(str::to_owned);
        Ok(EdgesText { columns, keyspace, condition })
    }

    /// The two columns; by default the first two fields of the format's key.
    ///
    /// # Errors
    /// If no columns are given, and the key has fewer fields.
    pub fn columns(&self, format: &Format) -> Result<String, String> {
        if let Some(columns) = &self.columns {
            return Ok(columns.clone());
        }
        let mut of_key = format.fields().iter().filter(|field| field.part == Part::Key);
        match (of_key.next(), of_key.next()) {
            (Some(from), Some(to)) => Ok(format!("{}, {}", from.name, to.name)),
            _ => Err(format!(
                "the key of {0} has one field: say which columns an edge leads from and to, as in --edges 'a, b from {0}'",
                self.keyspace
            )),
        }
    }
}

/// The text before and behind the first occurrence of this word, in any case.
fn split_at_word<'a>(text: &'a str, word: &str) -> Option<(&'a str, &'a str)> {
    let is_between = |byte: Option<&u8>| byte.is_none_or(|byte| byte.is_ascii_whitespace());
    let bytes = text.as_bytes();
    let is_there = |at: &usize| {
        let found = bytes.get(*at..at + word.len()).is_some_and(|found| found.eq_ignore_ascii_case(word.as_bytes()));
        found && (*at == 0 || is_between(bytes.get(at - 1))) && is_between(bytes.get(at + word.len()))
    };
    let at = (0..bytes.len()).find(is_there)?;
    Some((&text[..at], &text[at + word.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(columns: Option<&str>, keyspace: &str, condition: Option<&str>) -> Result<EdgesText, String> {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Ok(EdgesText { columns: owned(columns), keyspace: keyspace.into(), condition: owned(condition) })
    }

    #[test]
    fn an_edge_has_columns_a_keyspace_and_a_condition() {
        let parse = EdgesText::parse;
        assert_eq!(parse("from refs"), edges(None, "refs", None));
        assert_eq!(
            parse("citing, cited FROM refs Where year > 1"),
            edges(Some("citing, cited"), "refs", Some("year > 1"))
        );
        assert_eq!(parse("a, b from \"my refs\""), edges(Some("a, b"), "my refs", None));
        assert_eq!(
            parse("from_a, b from refs where a = ' from '"),
            edges(Some("from_a, b"), "refs", Some("a = ' from '"))
        );
        for wrong in ["", "refs", "a, b from", "from  where a = 1"] {
            assert!(parse(wrong).unwrap_err().contains("from KEYSPACE"), "{wrong}");
        }
        let format = Format::parse("key: a u8, b u16; value: c string").unwrap();
        assert_eq!(parse("from refs").unwrap().columns(&format).unwrap(), "a, b");
        let format = Format::parse("key: a u8").unwrap();
        assert!(parse("from refs").unwrap().columns(&format).unwrap_err().contains("'a, b from refs'"));
    }
}
