//! Items: one by its key, those of a range in their order, and all that a keyspace has.

use tapetum::{Item, KeyRange, KeyspaceHandle, ListedKey, SnapshotItems};

use super::OpenStore;
use super::read_keyspace::KeyspaceToRead;
use crate::caller::{Caller, CallerLeft};
use crate::failure::Failure;
use crate::format_check;
use crate::item_limit;
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

pub fn scan(keyspace: &KeyspaceToRead<'_>, asked: Scanning, caller: &mut dyn Caller) -> Result<(), Failure> {
    let items = keyspace.scan(asked.range)?;
    let most = asked.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let mut telling = TellingItems::new(asked.wanted);
    for item in items.take(most) {
        let (key, item) = item.map_err(|error| keyspace.failure(error))?;
        telling.push(key, item, caller)?;
    }
    telling.finish(caller)
}

/// The keys that begin with `prefix`, or their items.
pub fn list(
    keyspace: &KeyspaceToRead<'_>,
    prefix: &[u8],
    wanted: ListWanted,
    caller: &mut dyn Caller,
) -> Result<(), Failure> {
    let mut items = keyspace.items(prefix)?;
    match wanted {
        ListWanted::Keys => {
            let mut telling = TellingKeys::default();
            loop {
                look_on(keyspace, &mut items, caller)?;
                match items.next_key().map_err(|error| keyspace.failure(error))? {
                    Some(listed) => telling.push(listed, caller)?,
                    None => return telling.finish(caller),
                }
            }
        }
        ListWanted::Items => {
            let mut telling = TellingItems::new(ScanWanted::Items);
            loop {
                look_on(keyspace, &mut items, caller)?;
                match items.next().transpose().map_err(|error| keyspace.failure(error))? {
                    Some((key, item)) => telling.push(key, item, caller)?,
                    None => return telling.finish(caller),
                }
            }
        }
    }
}

/// Reads until there is an item. Few of many may be wanted, and nothing is told meanwhile.
fn look_on(keyspace: &KeyspaceToRead<'_>, items: &mut SnapshotItems, caller: &mut dyn Caller) -> Result<(), Failure> {
    while items.needs_part() {
        items.read_part().map_err(|error| keyspace.failure(error))?;
        if caller.has_left() {
            return Err(CallerLeft.into());
        }
    }
    Ok(())
}

/// Tells keys, some at once.
#[derive(Default)]
struct TellingKeys {
    batch: Vec<KeyRow>,
    batch_bytes: usize,
}

impl TellingKeys {
    fn push(&mut self, listed: ListedKey, caller: &mut dyn Caller) -> Result<(), Failure> {
        let ListedKey { key, value_bytes, flags, expiry, .. } = listed;
        self.batch_bytes += key.len();
        self.batch.push(KeyRow { key, value_bytes, flags, expiry });
        if self.batch_bytes >= KEYS_BATCH_BYTES {
            self.batch_bytes = 0;
            caller.take(Reply::Keys(std::mem::take(&mut self.batch)))?;
        }
        if caller.has_left() { Err(CallerLeft.into()) } else { Ok(()) }
    }

    fn finish(self, caller: &mut dyn Caller) -> Result<(), Failure> {
        if self.batch.is_empty() { Ok(()) } else { Ok(caller.take(Reply::Keys(self.batch))?) }
    }
}

/// Tells items, some at once, or counts them.
struct TellingItems {
    wanted: ScanWanted,
    batch: Vec<ItemRow>,
    batch_bytes: usize,
    count: u64,
}

impl TellingItems {
    fn new(wanted: ScanWanted) -> TellingItems {
        TellingItems { wanted, batch: Vec::new(), batch_bytes: 0, count: 0 }
    }

    fn push(&mut self, key: Vec<u8>, item: Item, caller: &mut dyn Caller) -> Result<(), Failure> {
        self.count += 1;
        if self.wanted == ScanWanted::Items {
            self.batch_bytes += key.len() + item.value.len();
            self.batch.push(row(key, item));
            if self.batch_bytes >= BATCH_BYTES {
                self.batch_bytes = 0;
                caller.take(Reply::Items(std::mem::take(&mut self.batch)))?;
            }
        }
        if self.count.is_multiple_of(PROGRESS_ITEMS) {
            if caller.has_left() {
                return Err(CallerLeft.into());
            }
            if self.wanted == ScanWanted::Count {
                caller.take(Reply::Progress { done: self.count, of: 0 })?;
            }
        }
        Ok(())
    }

    fn finish(self, caller: &mut dyn Caller) -> Result<(), Failure> {
        match self.wanted {
            ScanWanted::Items => caller.take(Reply::Items(self.batch))?,
            ScanWanted::Count => caller.take(Reply::Count(self.count))?,
        }
        Ok(())
    }
}

pub fn row(key: Vec<u8>, item: Item) -> ItemRow {
    ItemRow { key, value: item.value, flags: item.flags, expiry: item.expiry }
}
