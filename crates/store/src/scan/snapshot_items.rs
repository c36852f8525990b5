//! The items of a hashed keyspace as they were at one moment.
//!
//! A part is in memory at a time; the first one has the records of the write buffers. Writes, flush and collector go on meanwhile; what they replace stays on flash until it has been shown, as far
//! as there is room for both.

use super::QueryError;
use crate::api::blocking::{Item, KeyspaceHandle};
use crate::api::key_listing::ListedKey;
use crate::hashed::snapshot_walk::{SnapshotWalk, WalkedRecord};
use std::collections::VecDeque;
use tapetum_base::error::Error;
use tapetum_base::media::io::Io;
use tapetum_drive::Purpose;

/// Commands on their way at once.
const DEPTH: u32 = 64;

/// See the [module](self). Each item comes once, in no order that means anything.
///
/// # Errors
/// [`QueryError::SnapshotTooOld`], if so much is written meanwhile that the space is needed that the moment keeps. An error ends it.
pub struct SnapshotItems {
    keyspace: KeyspaceHandle,
    io: Io,
    walk: SnapshotWalk,
    found: VecDeque<WalkedRecord>,
    has_more: bool,
}

impl KeyspaceHandle {
    /// The items of this keyspace, which is hashed, whose keys begin with `prefix`, as they are now.
    pub fn snapshot_items(&self, prefix: &[u8]) -> Result<SnapshotItems, QueryError> {
        self.store().refuse_forked()?;
        let engine = self.store().hashed();
        engine.refuse_unservable(self.keyspace())?;
        let queue = engine.drive.queue_pair(DEPTH).map_err(|error| Error::Io(error.to_string()))?;
        let io = Io::new(queue).of(Purpose::Scan);
        let begun = SnapshotWalk::begin(engine.clone(), io.clone(), self.keyspace(), prefix);
        let walk = engine.run_beside_maintenance(&io, begun)??;
        Ok(SnapshotItems { keyspace: self.clone(), io, walk, found: VecDeque::new(), has_more: true })
    }
}

impl SnapshotItems {
    /// The next key, and what is known of its item without reading its value.
    pub fn next_key(&mut self) -> Result<Option<ListedKey>, QueryError> {
        Ok(self.next_record()?.map(|WalkedRecord { key, header, .. }| ListedKey {
            key,
            value_bytes: header.raw_bytes.into(),
            flags: header.flags,
            expiry: header.expiry,
            stamp: header.stamp,
        }))
    }

    fn next_item(&mut self) -> Result<Option<(Vec<u8>, Item)>, QueryError> {
        let Some(record) = self.next_record()? else { return Ok(None) };
        let engine = self.keyspace.store().hashed();
        let value = engine.run_beside_maintenance(&self.io, self.walk.read(&record))??;
        let WalkedRecord { key, header, .. } = record;
        Ok(Some((key, Item { value, flags: header.flags, expiry: header.expiry, stamp: header.stamp })))
    }

    fn next_record(&mut self) -> Result<Option<WalkedRecord>, QueryError> {
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
        let (store, engine) = (self.keyspace.store(), self.keyspace.store().hashed());
        store.refuse_forked()?;
        engine.refuse_unservable(self.keyspace.keyspace())?;
        // An error ends it.
        self.has_more = false;
        let mut found = Vec::new();
        self.has_more = engine.run_beside_maintenance(&self.io, self.walk.step(&mut found))??;
        self.found.extend(found);
        Ok(())
    }
}

impl Iterator for SnapshotItems {
    type Item = Result<(Vec<u8>, Item), QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_item().transpose()
    }
}
