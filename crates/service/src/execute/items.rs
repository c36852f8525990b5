//! Items: one by its key, those of a range in their order, and all that a keyspace has.

use tapetum::{Item, KeyRange, KeyspaceHandle, KeyspaceKind, ListCursor, ListedKey, QueryError};

use super::OpenStore;
use crate::caller::{Caller, CallerLeft};
use crate::failure::{Failure, FailureKind};
use crate::format_check;
use crate::item_limit;
use crate::key_range;
use crate::reply::{ItemRow, KeyRow, Reply};
use crate::request::{ListWanted, ScanWanted};

/// Bytes of items that are told at once.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes of keys that are told at once.
const KEYS_BATCH_BYTES: usize = 64 << 10;
/// How often the caller of a count hears how far it is, in items.
const PROGRESS_ITEMS: u64 = 1 << 14;

pub fn get(open: OpenStore<'_>, keyspace: &str, key: Vec<u8>, caller: &mut dyn Caller) -> Result<(), Failure> {
    let item = open.keyspace(keyspace)?.get(&key).map_err(|error| open.failure(error))?;
    Ok(caller.take(Reply::Items(item.map(|item| row(key, item)).into_iter().collect()))?)
}

pub fn put(open: OpenStore<'_>, name: &str, key: &[u8], value: &[u8]) -> Result<(), Failure> {
    let keyspace = writable(open, name)?;
    if let Some(why) = item_limit::refusal(value.len(), open.store) {
        return Err(Failure::bad(why));
    }
    if let Some(format) = keyspace.format().map_err(|error| open.failure(error))? {
        format_check::check_item(&format, name, key, value).map_err(Failure::bad)?;
    }
    keyspace.put(key, value).map(|_stamp| ()).map_err(|error| open.failure(error))
}

pub fn delete(open: OpenStore<'_>, keyspace: &str, key: &[u8], caller: &mut dyn Caller) -> Result<(), Failure> {
    let is_deleted = writable(open, keyspace)?.delete(key).map_err(|error| open.failure(error))?;
    Ok(caller.take(Reply::Count(u64::from(is_deleted)))?)
}

/// A keyspace whose items clients may change: the keys of a block device are its own.
pub fn writable(open: OpenStore<'_>, name: &str) -> Result<KeyspaceHandle, Failure> {
    let is_device = open.store.keyspaces().iter().any(|keyspace| keyspace.name == name && !keyspace.options.is_empty());
    if is_device {
        return Err(Failure::bad(format!(
            "the keyspace {name:?} is a block device, which clients of `tapetum serve --nbd ADDR` write: give another --keyspace"
        )));
    }
    open.keyspace(name)
}

/// Which items of a range are scanned, and what for.
pub struct Scanning {
    pub range: KeyRange,
    pub limit: Option<u64>,
    pub wanted: ScanWanted,
}

pub fn scan(open: OpenStore<'_>, name: &str, asked: Scanning, caller: &mut dyn Caller) -> Result<(), Failure> {
    let items = open.keyspace(name)?.scan(asked.range).map_err(|error| open.failure(error))?;
    let most = asked.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let items = items.take(most).map(|item| item.map_err(|error| open.failure(error)));
    tell_items(items, asked.wanted, caller)
}

pub fn list(
    open: OpenStore<'_>,
    name: &str,
    prefix: &[u8],
    wanted: ListWanted,
    caller: &mut dyn Caller,
) -> Result<(), Failure> {
    let keyspace = open.keyspace(name)?;
    match (wanted, keyspace.keyspace().kind()) {
        (ListWanted::Keys, KeyspaceKind::Ordered) => list_ordered(open, &keyspace, prefix, caller),
        (ListWanted::Keys, _) => {
            let mut items = keyspace.snapshot_items(prefix).map_err(|error| snapshot_failure(open, error))?;
            let mut next = || items.next_key().map_err(|error| snapshot_failure(open, error));
            tell_keys(std::iter::from_fn(|| next().transpose()), caller)
        }
        (ListWanted::Items, KeyspaceKind::Ordered) => {
            let items = keyspace.scan(key_range::of_prefix(prefix)).map_err(|error| open.failure(error))?;
            tell_items(items.map(|item| item.map_err(|error| open.failure(error))), ScanWanted::Items, caller)
        }
        (ListWanted::Items, _) => {
            let items = keyspace.snapshot_items(prefix).map_err(|error| snapshot_failure(open, error))?;
            let items = items.map(|item| item.map_err(|error| snapshot_failure(open, error)));
            tell_items(items, ScanWanted::Items, caller)
        }
    }
}

/// Keys are read with their values, as a scan of the keyspace has them.
fn list_ordered(
    open: OpenStore<'_>,
    keyspace: &KeyspaceHandle,
    prefix: &[u8],
    caller: &mut dyn Caller,
) -> Result<(), Failure> {
    let mut next = Some(ListCursor::of_range(key_range::of_prefix(prefix)));
    while let Some(cursor) = next {
        let part = open.store.list_keys(keyspace.keyspace(), &cursor).map_err(|error| open.failure(error))?;
        tell_keys(part.keys.into_iter().map(Ok), caller)?;
        next = part.next;
    }
    Ok(())
}

fn snapshot_failure(open: OpenStore<'_>, error: QueryError) -> Failure {
    match error {
        QueryError::Store(error) => open.failure(error),
        error => Failure::new(FailureKind::Store, error.to_string()),
    }
}

fn tell_keys(keys: impl Iterator<Item = Result<ListedKey, Failure>>, caller: &mut dyn Caller) -> Result<(), Failure> {
    let (mut batch, mut batch_bytes) = (Vec::new(), 0);
    for listed in keys {
        let ListedKey { key, value_bytes, flags, expiry, .. } = listed?;
        batch_bytes += key.len();
        batch.push(KeyRow { key, value_bytes, flags, expiry });
        if batch_bytes >= KEYS_BATCH_BYTES {
            caller.take(Reply::Keys(std::mem::take(&mut batch)))?;
            batch_bytes = 0;
        }
        if caller.has_left() {
            return Err(CallerLeft.into());
        }
    }
    if !batch.is_empty() {
        caller.take(Reply::Keys(batch))?;
    }
    Ok(())
}

fn tell_items(
    items: impl Iterator<Item = Result<(Vec<u8>, Item), Failure>>,
    wanted: ScanWanted,
    caller: &mut dyn Caller,
) -> Result<(), Failure> {
    let (mut batch, mut batch_bytes, mut count) = (Vec::new(), 0, 0_u64);
    for item in items {
        let (key, item) = item?;
        count += 1;
        if wanted == ScanWanted::Items {
            batch_bytes += key.len() + item.value.len();
            batch.push(row(key, item));
            if batch_bytes >= BATCH_BYTES {
                caller.take(Reply::Items(std::mem::take(&mut batch)))?;
                batch_bytes = 0;
            }
        }
        if count.is_multiple_of(PROGRESS_ITEMS) {
            if caller.has_left() {
                return Err(CallerLeft.into());
            }
            if wanted == ScanWanted::Count {
                caller.take(Reply::Progress { done: count, of: 0 })?;
            }
        }
    }
    match wanted {
        ScanWanted::Items => caller.take(Reply::Items(batch))?,
        ScanWanted::Count => caller.take(Reply::Count(count))?,
    }
    Ok(())
}

fn row(key: Vec<u8>, item: Item) -> ItemRow {
    ItemRow { key, value: item.value, flags: item.flags, expiry: item.expiry }
}
