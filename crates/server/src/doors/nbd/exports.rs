//! The block devices that a server offers, shared by all workers. A worker that learns of a change of keyspaces lists them anew; its clients
//! see the new list from their next option on, and those that have an export keep its size.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tapetum::{BLOCK_BYTES, BlockDevice, Keyspace, KeyspaceRef, Store};

use super::protocol::export_flags;
use crate::stats::device_stats::{DeviceCounts, DeviceFigures, ServedDevice};

/// A block device under the name of its keyspace.
#[derive(Clone, Debug)]
pub struct Export {
    pub name: String,
    pub keyspace: KeyspaceRef,
    pub device: BlockDevice,
    pub is_read_only: bool,
    /// Its counters by worker.
    pub counts: Arc<[DeviceCounts]>,
}

impl Export {
    /// Its description for figures.
    fn served(&self) -> ServedDevice {
        ServedDevice {
            name: self.name.clone(),
            keyspace: self.keyspace.id(),
            blocks: self.size_bytes() / BLOCK_BYTES as u64,
            is_grouped: self.device.group_blocks() > 1,
            counts: Arc::clone(&self.counts),
        }
    }

    pub fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    /// Its transmission flags. Several connections may be used as one: an answered write is visible on all of them, and a flush covers all.
    /// The flag for reads in one piece is offered only with structured replies.
    pub fn flags(&self, is_structured: bool) -> u16 {
        use export_flags::*;
        let all = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | CAN_MULTI_CONN;
        all | if self.is_read_only { READ_ONLY } else { 0 } | if is_structured { SEND_DF } else { 0 }
    }
}

/// The export with this name. Without a name, the only one.
pub fn find<'a>(exports: &'a [Export], name: &[u8]) -> Option<&'a Export> {
    match (name, exports) {
        (b"", [only]) => Some(only),
        _ => exports.iter().find(|export| export.name.as_bytes() == name),
    }
}

/// The block devices that a server offers now: all of the store's, by name.
pub struct Exports {
    /// The names of those that refuse writes.
    read_only: Vec<String>,
    workers: usize,
    offered: Mutex<Arc<[Export]>>,
}

impl Exports {
    /// Those of a store, for a server of so many workers. Those with a name in `read_only` refuse writes.
    ///
    /// # Errors
    /// Says what to do if there is no block device, or a name in `read_only` is not one.
    pub fn new(store: &Store, read_only: Vec<String>, workers: usize) -> Result<Exports, String> {
        let known = store.keyspaces().iter().try_for_each(|keyspace| keyspace.block_device().map(|_| ()));
        known.map_err(|error| error.to_string())?;
        let exports = Exports { read_only, workers, offered: Mutex::default() };
        exports.follow(|| store.open_keyspaces());
        let offered = exports.offered();
        if offered.is_empty() {
            return Err(
                "the store has no block device for --nbd to serve: make one with `tapetum keyspace create NAME \
                        --block-device SIZE`"
                    .into(),
            );
        }
        match exports.read_only.iter().find(|name| find(&offered, name.as_bytes()).is_none()) {
            None => Ok(exports),
            Some(name) => {
                Err(format!("--nbd-read-only {name}: there is no such block device; `tapetum keyspace list` shows all"))
            }
        }
    }

    pub fn offered(&self) -> Arc<[Export]> {
        Arc::clone(&lock(&self.offered))
    }

    /// Offers the block devices among the keyspaces that `open` lists. A device keeps its counters. Threads follow one after the other, so that
    /// the last list is what stays.
    pub fn follow(&self, open: impl FnOnce() -> Vec<(Keyspace, KeyspaceRef)>) {
        let mut offered = lock(&self.offered);
        let export_of = |(keyspace, named): (Keyspace, KeyspaceRef)| {
            // The options of some device may be another version's.
            let device = keyspace.block_device().ok().flatten()?;
            let before = offered.iter().find(|export| export.keyspace == named);
            let counts = before.map_or_else(|| self.new_counts(), |export| Arc::clone(&export.counts));
            let is_read_only = self.read_only.contains(&keyspace.name);
            Some(Export { name: keyspace.name, keyspace: named, device, is_read_only, counts })
        };
        let exports = open().into_iter().filter_map(export_of).collect();
        *offered = exports;
    }

    fn new_counts(&self) -> Arc<[DeviceCounts]> {
        (0..self.workers).map(|_| DeviceCounts::default()).collect()
    }

    pub fn figures(&self) -> DeviceFigures {
        DeviceFigures::new(self.offered().iter().map(Export::served).collect())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
