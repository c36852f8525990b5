//! `scan`: the items of a range of keys of an ordered keyspace, in the order of their keys, as lines that `load` reads; or their number.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};
use tapetum::{KeyBound, KeyRange, KeyspaceHandle};

use super::item_lines::{self, Format, ItemLine};
use super::list::{ListError, write_out};

/// Bytes of lines that are gathered before they are written.
const BATCH_BYTES: usize = 1 << 20;
/// How often the bar moves, in items.
const BAR_ITEMS: u64 = 1024;

/// Prints up to `limit` items of a range; how many they were.
pub fn print(
    keyspace: &KeyspaceHandle,
    range: KeyRange,
    limit: Option<u64>,
    format: Format,
    out: &mut dyn Write,
) -> Result<u64, ListError> {
    let (bar, mut text, mut printed) = (progress(), Vec::new(), 0);
    for item in keyspace.scan(range)?.take(most(limit)) {
        let (key, item) = item?;
        let line = ItemLine { key, value: item.value, flags: item.flags, expiry: item.expiry };
        item_lines::write(format, &line, &mut text);
        printed += 1;
        if text.len() >= BATCH_BYTES && write_out(out, &mut text)?.is_break() {
            return Ok(printed);
        }
        if printed % BAR_ITEMS == 0 {
            bar.set_position(printed);
        }
    }
    bar.finish_and_clear();
    write_out(out, &mut text).map(|_| printed)
}

/// How many items a range has, up to `limit`.
pub fn count(keyspace: &KeyspaceHandle, range: KeyRange, limit: Option<u64>) -> Result<u64, ListError> {
    let (bar, mut counted) = (progress(), 0);
    for item in keyspace.scan(range)?.take(most(limit)) {
        item?;
        counted += 1;
        if counted % BAR_ITEMS == 0 {
            bar.set_position(counted);
        }
    }
    bar.finish_and_clear();
    Ok(counted)
}

fn most(limit: Option<u64>) -> usize {
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// A count of items where someone looks at it, and no line of the items goes to the same place.
fn progress() -> ProgressBar {
    if !io::stderr().is_terminal() || io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    match ProgressStyle::with_template("{spinner} {human_pos} items, {per_sec}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// The keys that begin with `prefix`, in their order.
pub fn of_prefix(prefix: &[u8]) -> KeyRange {
    let from = if prefix.is_empty() { KeyBound::Unbounded } else { KeyBound::Included(prefix.to_vec()) };
    KeyRange { from, to: successor(prefix).map_or(KeyBound::Unbounded, KeyBound::Excluded), is_reverse: false }
}

/// The first key behind all that begin with `prefix`; `None` if there is none.
pub fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_prefix_of_the_highest_bytes_has_no_end() {
        assert_eq!(successor(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!((successor(b"\xff"), successor(b"")), (None, None));
    }
}
