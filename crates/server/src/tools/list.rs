//! `list` and `dump`: the keys of a keyspace, or its items, as lines that `load` reads. In no order that means anything where the keyspace
//! is hashed, and in the order of the keys where it is ordered.

use std::io::{self, Write};
use std::ops::ControlFlow;
use tapetum::Expiry;

use tapetum::{Error, Item, KeyspaceHandle, KeyspaceKind, Scanned};

use super::item_lines::{self, Format, ItemLine};
use super::key_text::KeyText;
use super::scan;

/// Bytes that are gathered before they are written, and items that are read from flash at once.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_KEYS: usize = 256;

#[derive(Debug)]
pub enum ListError {
    Store(Error),
    Output(io::Error),
    /// The store lists this key, and has no item for it.
    Lost(Vec<u8>),
}

impl From<Error> for ListError {
    fn from(error: Error) -> ListError {
        ListError::Store(error)
    }
}

impl std::fmt::Display for ListError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ListError::Store(error) => write!(f, "{error}"),
            ListError::Output(error) => write!(f, "{error}"),
            ListError::Lost(key) => write!(
                f,
                "\"{}\" is in the store's tables of keys, and its item cannot be found: run tapetum check",
                item_lines::escaped(key)
            ),
        }
    }
}

impl std::error::Error for ListError {}

/// Writes the gathered lines. A reader that has closed the output (`| head`) has seen enough.
pub(super) fn write_out(out: &mut dyn Write, text: &mut Vec<u8>) -> Result<ControlFlow<()>, ListError> {
    let written = out.write_all(text).and_then(|()| out.flush());
    text.clear();
    match written {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(ListError::Output(error)),
    }
}

/// Lists the keys that begin with `prefix`, one a line; `long` adds bytes of the value, flags and expiry.
pub fn list(keyspace: &KeyspaceHandle, prefix: &[u8], long: bool, out: &mut dyn Write) -> Result<(), ListError> {
    let keys = KeyText::of(keyspace)?;
    if keyspace.keyspace().kind() == KeyspaceKind::Ordered {
        return list_ordered(keyspace, prefix, &keys, long, out);
    }
    let mut text = Vec::new();
    let walked = walk(keyspace, prefix, |item| {
        let Scanned { value_bytes, flags, expiry, .. } = item;
        write_key(&keys, item.key, long.then_some((value_bytes, flags, expiry)), &mut text);
        if text.len() >= BATCH_BYTES { write_out(out, &mut text) } else { Ok(ControlFlow::Continue(())) }
    })?;
    match walked {
        ControlFlow::Continue(()) => write_out(out, &mut text).map(|_| ()),
        ControlFlow::Break(()) => Ok(()),
    }
}

/// Calls `each` with the items of a hashed keyspace until it breaks off or fails, and returns its last answer.
fn walk(
    keyspace: &KeyspaceHandle,
    prefix: &[u8],
    mut each: impl FnMut(Scanned<'_>) -> Result<ControlFlow<()>, ListError>,
) -> Result<ControlFlow<()>, ListError> {
    let mut said = Ok(ControlFlow::Continue(()));
    tapetum::scan(keyspace.store(), keyspace.keyspace(), prefix, |item: Scanned<'_>| {
        said = each(item);
        if matches!(said, Ok(ControlFlow::Continue(()))) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    said
}

/// Appends a line with a key, and, if wanted, the bytes of its value, flags and expiry.
fn write_key(keys: &KeyText, key: &[u8], of_value: Option<(u64, u32, Expiry)>, text: &mut Vec<u8>) {
    keys.print(key, text);
    if let Some((value_bytes, flags, expiry)) = of_value {
        text.extend_from_slice(format!("\t{value_bytes}\t{flags}\t{expiry}").as_bytes());
    }
    text.push(b'\n');
}

fn list_ordered(
    keyspace: &KeyspaceHandle,
    prefix: &[u8],
    keys: &KeyText,
    long: bool,
    out: &mut dyn Write,
) -> Result<(), ListError> {
    let mut text = Vec::new();
    for item in keyspace.scan(scan::of_prefix(prefix))? {
        let (key, Item { value, flags, expiry, .. }) = item?;
        write_key(keys, &key, long.then_some((value.len() as u64, flags, expiry)), &mut text);
        if text.len() >= BATCH_BYTES && write_out(out, &mut text)?.is_break() {
            return Ok(());
        }
    }
    write_out(out, &mut text).map(|_| ())
}

/// A key whose item is to be dumped.
struct DumpKey {
    key: Vec<u8>,
    expiry: Expiry,
}

impl DumpKey {
    /// Its item; `None` if it has expired since it was listed.
    fn line(self, item: Option<Item>) -> Result<Option<ItemLine>, ListError> {
        let DumpKey { key, expiry } = self;
        match item {
            Some(Item { value, flags, expiry, .. }) => Ok(Some(ItemLine { key, value, flags, expiry })),
            None if !expiry.is_none() => Ok(None),
            None => Err(ListError::Lost(key)),
        }
    }
}

/// Writes the items whose keys begin with `prefix`.
pub fn dump(keyspace: &KeyspaceHandle, prefix: &[u8], format: Format, out: &mut dyn Write) -> Result<(), ListError> {
    if keyspace.keyspace().kind() == KeyspaceKind::Ordered {
        return scan::print(keyspace, scan::of_prefix(prefix), None, format, out).map(|_| ());
    }
    let mut keys: Vec<DumpKey> = Vec::new();
    let mut values_bytes = 0;
    let walked = walk(keyspace, prefix, |item| {
        keys.push(DumpKey { key: item.key.to_vec(), expiry: item.expiry });
        values_bytes += item.value_bytes as usize;
        if keys.len() < BATCH_KEYS && values_bytes < BATCH_BYTES {
            return Ok(ControlFlow::Continue(()));
        }
        values_bytes = 0;
        dump_items(keyspace, &mut keys, format, out)
    })?;
    match walked {
        ControlFlow::Continue(()) => dump_items(keyspace, &mut keys, format, out).map(|_| ()),
        ControlFlow::Break(()) => Ok(()),
    }
}

/// Reads the values of `keys`, all at once, and writes them.
fn dump_items(
    keyspace: &KeyspaceHandle,
    keys: &mut Vec<DumpKey>,
    format: Format,
    out: &mut dyn Write,
) -> Result<ControlFlow<()>, ListError> {
    let names: Vec<&[u8]> = keys.iter().map(|listed| &listed.key[..]).collect();
    let items = keyspace.multi_get(&names)?;
    let mut text = Vec::new();
    for (listed, item) in keys.drain(..).zip(items) {
        if let Some(line) = listed.line(item)? {
            item_lines::write(format, &line, &mut text);
        }
    }
    write_out(out, &mut text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_that_is_listed_and_not_found_is_told_unless_it_may_have_expired() {
        let key = |expiry| DumpKey { key: b"key".to_vec(), expiry: Expiry::from_secs(expiry) };
        assert!(matches!(key(7).line(None), Ok(None)));
        let error = key(0).line(None).err().unwrap().to_string();
        assert!(error.contains("\"key\"") && error.contains("tapetum check"), "{error}");
    }
}
