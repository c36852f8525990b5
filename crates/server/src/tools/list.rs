//! `list` and `dump`: the keys of a store, or its items, as lines that `load` reads. In no order that means anything.

use std::io::{self, Write};
use std::ops::ControlFlow;

use tapetum::{Error, Scanned, Store};

use super::item_lines::{self, Format, ItemLine};

/// What is gathered before it is written, or read from flash at once.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_KEYS: usize = 256;

#[derive(Debug)]
pub enum ListError {
    Store(Error),
    Output(io::Error),
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
            ListError::Output(error) => write!(f, "cannot write: {error}"),
        }
    }
}

impl std::error::Error for ListError {}

/// Writes what was gathered; a reader that has gone (`| head`) has seen enough.
fn write_out(out: &mut dyn Write, text: &mut Vec<u8>) -> Result<ControlFlow<()>, ListError> {
    let written = out.write_all(text).and_then(|()| out.flush());
    text.clear();
    match written {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(ListError::Output(error)),
    }
}

/// Lists the keys that begin with `prefix`, one a line; `long` adds bytes of the value, flags and expiry.
pub fn list(store: &Store, prefix: &[u8], long: bool, out: &mut dyn Write) -> Result<(), ListError> {
    let mut text = Vec::new();
    let mut written = Ok(ControlFlow::Continue(()));
    tapetum::scan(store, prefix, |item: Scanned<'_>| {
        item_lines::escape(item.key, &mut text);
        if long {
            let Scanned { value_bytes, flags, expiry, .. } = item;
            text.extend_from_slice(format!("\t{value_bytes}\t{flags}\t{expiry}").as_bytes());
        }
        text.push(b'\n');
        if text.len() >= BATCH_BYTES {
            written = write_out(out, &mut text);
        }
        if matches!(written, Ok(ControlFlow::Continue(()))) {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    match written? {
        ControlFlow::Continue(()) => write_out(out, &mut text).map(|_| ()),
        ControlFlow::Break(()) => Ok(()),
    }
}

/// Writes the items whose keys begin with `prefix`.
pub fn dump(store: &Store, prefix: &[u8], format: Format, out: &mut dyn Write) -> Result<(), ListError> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut values_bytes = 0;
    let mut written = Ok(ControlFlow::Continue(()));
    tapetum::scan(store, prefix, |item: Scanned<'_>| {
        keys.push(item.key.to_vec());
        values_bytes += item.value_bytes as usize;
        if keys.len() >= BATCH_KEYS || values_bytes >= BATCH_BYTES {
            written = dump_items(store, &mut keys, format, out);
            values_bytes = 0;
        }
        if matches!(written, Ok(ControlFlow::Continue(()))) {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    match written? {
        ControlFlow::Continue(()) => dump_items(store, &mut keys, format, out).map(|_| ()),
        ControlFlow::Break(()) => Ok(()),
    }
}

/// Reads the values of `keys`, all at once, and writes them.
fn dump_items(
    store: &Store,
    keys: &mut Vec<Vec<u8>>,
    format: Format,
    out: &mut dyn Write,
) -> Result<ControlFlow<()>, ListError> {
    let names: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let items = store.multi_get(&names)?;
    let mut text = Vec::new();
    for (key, item) in keys.drain(..).zip(items) {
        // One that expired since is gone.
        let Some(item) = item else { continue };
        let line = ItemLine { key, value: item.value, flags: item.flags, expiry: item.expiry };
        item_lines::write(format, &line, &mut text);
    }
    write_out(out, &mut text)
}
