//! The items of a keyspace as they were at one moment.
//!
//! A part is in memory at a time; of a hashed keyspace the first one has the records of the write buffers. Writes, flush and collector go on
//! meanwhile; what they replace stays on flash until it has been shown, as far as there is room for both.

use super::moment::{moment_io, refuse_ended, refuse_unreadable, take_moment};
use super::query_scan::{QueryError, check_range};
use crate::api::blocking::{Item, KeyspaceHandle};
use crate::api::key_listing::ListedKey;
use crate::freeze::FrozenPart;
use crate::hashed::snapshot_walk::{SnapshotWalk, WalkedRecord};
use crate::ordered::frozen::KeySpan;
use crate::ordered::frozen::scan::{FrozenRecord, FrozenScan};
use std::collections::VecDeque;
use tapetum_base::engine::scan_layout::LayoutError;
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::io::{Io, Task, poll_once};
use tapetum_base::request::key_range::{KeyBound, KeyRange};
use tapetum_drive::OfProcess;
use tapetum_kernels::record::Header;

/// See the [module](self). Each item comes once: in the order of the keys, or against it, from an ordered keyspace; in no order that means anything from
/// a hashed one.
///
/// # Errors
/// [`QueryError::SnapshotTooOld`], if so much is written meanwhile that the space is needed that the moment keeps, or its freeze ends. An error ends
/// it.
pub struct SnapshotItems {
    keyspace: KeyspaceHandle,
    io: Io,
    walk: OfProcess<Walk>,
    found: VecDeque<FoundRecord>,
    has_more: bool,
}

enum Walk {
    Hashed(Box<SnapshotWalk>),
    Ordered(Box<FrozenScan>),
    /// Nobody had written to the keyspace.
    Nothing,
}

enum FoundRecord {
    Hashed(WalkedRecord),
    Ordered(FrozenRecord),
}

impl FoundRecord {
    fn into_key(self) -> (Vec<u8>, Header) {
        match self {
            FoundRecord::Hashed(WalkedRecord { key, header, .. }) => (key, header),
            FoundRecord::Ordered(FrozenRecord { key, header, .. }) => (key, header),
        }
    }
}

impl Walk {
    fn of(
        part: FrozenPart,
        keyspace: &KeyspaceHandle,
        io: &Io,
        prefix: &[u8],
        range: &KeyRange,
    ) -> Result<Walk, Error> {
        Ok(match part {
            FrozenPart::Hashed(snapshot) => {
                let engine = keyspace.store().hashed().clone();
                let walk = SnapshotWalk::new(engine, io.clone(), keyspace.id(), snapshot, prefix);
                Walk::Hashed(Box::new(walk))
            }
            FrozenPart::Ordered(Some(tree)) => Walk::Ordered(Box::new(FrozenScan::new(tree, io.clone(), range)?)),
            FrozenPart::Ordered(None) => Walk::Nothing,
        })
    }

    /// All items that are left.
    async fn read_all(mut self) -> Result<KeyedItems, LayoutError> {
        let (mut items, mut found, mut has_more) = (Vec::new(), VecDeque::new(), true);
        while has_more {
            has_more = self.step(&mut found).await?;
            for record in found.drain(..) {
                let value = self.read(&record).await?;
                let (key, Header { flags, expiry, stamp, .. }) = record.into_key();
                items.push((key, Item { value, flags, expiry, stamp }));
            }
        }
        Ok(items)
    }

    async fn step(&mut self, into: &mut VecDeque<FoundRecord>) -> Result<bool, LayoutError> {
        match self {
            Walk::Hashed(walk) => {
                let mut found = Vec::new();
                let has_more = walk.step(&mut found).await?;
                into.extend(found.into_iter().map(FoundRecord::Hashed));
                Ok(has_more)
            }
            Walk::Ordered(scan) => {
                let mut found = Vec::new();
                let has_more = scan.step(&mut found).await?;
                into.extend(found.into_iter().map(FoundRecord::Ordered));
                Ok(has_more)
            }
            Walk::Nothing => Ok(false),
        }
    }

    async fn read(&self, record: &FoundRecord) -> Result<Vec<u8>, LayoutError> {
        match (self, record) {
            (Walk::Hashed(walk), FoundRecord::Hashed(record)) => walk.read(record).await,
            (Walk::Ordered(scan), FoundRecord::Ordered(record)) => scan.read(record).await,
            _ => unreachable!("a record is of its walk"),
        }
    }
}

impl KeyspaceHandle {
    /// The items of this keyspace whose keys begin with `prefix`, as they are now.
    pub fn snapshot_items(&self, prefix: &[u8]) -> Result<SnapshotItems, QueryError> {
        match self.keyspace().kind() {
            KeyspaceKind::Hashed => SnapshotItems::begin(self, prefix, &KeyRange::default()),
            _ => SnapshotItems::begin(self, b"", &range_of_prefix(prefix)),
        }
    }

    /// The items of a range of an ordered keyspace's keys, as they are now.
    ///
    /// # Errors
    /// [`KeyspaceError::Unordered`] if it is a hashed one, whose keys have no order.
    pub fn scan(&self, range: KeyRange) -> Result<SnapshotItems, QueryError> {
        if self.keyspace().kind() != KeyspaceKind::Ordered {
            return Err(Error::Keyspace(KeyspaceError::Unordered).into());
        }
        SnapshotItems::begin(self, b"", &range)
    }

    /// The items of a range, which has all keys of a hashed keyspace.
    pub(super) fn items_of_range(&self, range: &KeyRange) -> Result<SnapshotItems, QueryError> {
        check_range(self, range)?;
        SnapshotItems::begin(self, b"", range)
    }
}

/// The range of keys that begin so.
fn range_of_prefix(prefix: &[u8]) -> KeyRange {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX);
    let behind = last.map(|last| [&prefix[..last], &[prefix[last] + 1]].concat());
    let from = if prefix.is_empty() { KeyBound::Unbounded } else { KeyBound::Included(prefix.to_vec()) };
    KeyRange { from, to: behind.map_or(KeyBound::Unbounded, KeyBound::Excluded), is_reverse: false }
}

impl SnapshotItems {
    fn begin(keyspace: &KeyspaceHandle, prefix: &[u8], range: &KeyRange) -> Result<SnapshotItems, QueryError> {
        refuse_unreadable(keyspace)?;
        SnapshotItems::of_readable(keyspace, prefix, range)
    }

    /// The records of a block device that a freeze has, also where those on flash are of groups.
    pub(super) fn of_device(keyspace: &KeyspaceHandle) -> Result<SnapshotItems, QueryError> {
        refuse_ended(keyspace)?;
        SnapshotItems::of_readable(keyspace, b"", &KeyRange::default())
    }

    fn of_readable(keyspace: &KeyspaceHandle, prefix: &[u8], range: &KeyRange) -> Result<SnapshotItems, QueryError> {
        let engine = keyspace.store().hashed();
        let (io, span) = (moment_io(keyspace)?, KeySpan::of(range)?);
        let part = engine.run_beside_maintenance(&io, take_moment(keyspace, span, io.clone()))??;
        let walk = OfProcess::new(Walk::of(part, keyspace, &io, prefix, range)?);
        Ok(SnapshotItems { keyspace: keyspace.clone(), io, walk, found: VecDeque::new(), has_more: true })
    }

    /// The next key, and what is known of its item without reading its value.
    pub fn next_key(&mut self) -> Result<Option<ListedKey>, QueryError> {
        Ok(self.next_record()?.map(|record| {
            let (key, header) = record.into_key();
            let Header { raw_bytes, flags, expiry, stamp, .. } = header;
            ListedKey { key, value_bytes: raw_bytes.into(), flags, expiry, stamp }
        }))
    }

    fn next_item(&mut self) -> Result<Option<(Vec<u8>, Item)>, QueryError> {
        let Some(record) = self.next_record()? else { return Ok(None) };
        let engine = self.keyspace.store().hashed();
        let value = engine.run_beside_maintenance(&self.io, self.walk.read(&record))??;
        let (key, Header { flags, expiry, stamp, .. }) = record.into_key();
        Ok(Some((key, Item { value, flags, expiry, stamp })))
    }

    fn next_record(&mut self) -> Result<Option<FoundRecord>, QueryError> {
        self.keyspace.store().refuse_forked()?;
        while self.needs_part() {
            self.read_part()?;
        }
        Ok(self.found.pop_front())
    }

    /// Whether the next item is to be looked for on flash.
    pub fn needs_part(&self) -> bool {
        self.found.is_empty() && self.has_more
    }

    /// Looks for items in the next part, a MiB or so of flash. For callers that have something else to look at; the others need not call it.
    pub fn read_part(&mut self) -> Result<(), QueryError> {
        // An error ends it.
        self.has_more = false;
        refuse_ended(&self.keyspace)?;
        let engine = self.keyspace.store().hashed();
        let mut found = std::mem::take(&mut self.found);
        self.has_more = engine.run_beside_maintenance(&self.io, self.walk.step(&mut found))??;
        self.found = found;
        Ok(())
    }
}

type KeyedItems = Vec<(Vec<u8>, Item)>;

/// A read of all items of a range of a keyspace of a freeze, step by step. A step never waits. Dropping the task gives it up.
pub struct ItemsTask {
    keyspace: KeyspaceHandle,
    io: Io,
    reading: OfProcess<Task<Result<KeyedItems, LayoutError>>>,
}

impl ItemsTask {
    pub(super) fn begin(keyspace: &KeyspaceHandle, range: &KeyRange) -> Result<ItemsTask, QueryError> {
        refuse_unreadable(keyspace)?;
        check_range(keyspace, range)?;
        let (io, span, of_task, range) = (moment_io(keyspace)?, KeySpan::of(range)?, keyspace.clone(), range.clone());
        let (taking, io_of_task) = (take_moment(keyspace, span, io.clone()), io.clone());
        let reading = Box::pin(async move {
            let walk = Walk::of(taking.await?, &of_task, &io_of_task, b"", &range)?;
            walk.read_all().await
        });
        let reading = OfProcess::new(reading as Task<_>);
        Ok(ItemsTask { keyspace: keyspace.clone(), io, reading })
    }

    /// Goes on as far as that is possible without waiting; all items, when they have been read.
    ///
    /// # Errors
    /// As [`SnapshotItems`].
    ///
    /// # Panics
    /// When it is over.
    pub fn step(&mut self) -> Result<Option<KeyedItems>, QueryError> {
        refuse_unreadable(&self.keyspace)?;
        self.io.pump();
        match poll_once(&mut self.reading) {
            Some(read) => Ok(Some(read?)),
            None => Ok(self.keyspace.store().hashed().refuse_stopped(&self.io).map(|()| None)?),
        }
    }
}

impl Iterator for SnapshotItems {
    type Item = Result<(Vec<u8>, Item), QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.found.is_empty() && !self.has_more {
            return None;
        }
        let next = self.next_item();
        if next.is_err() {
            (self.has_more, self.found) = (false, VecDeque::new());
        }
        next.transpose()
    }
}
