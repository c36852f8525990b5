//! The block devices that a server offers. Plain data, shared by all workers.

use tapetum::{BLOCK_BYTES, BlockDevice, KeyspaceRef, Store};

use super::protocol::export_flags;
use crate::stats::device_stats::ServedDevice;

/// A block device under the name of its keyspace.
#[derive(Clone, Debug)]
pub struct Export {
    /// Its index among all exports, for its counters.
    pub number: usize,
    pub name: String,
    pub keyspace: KeyspaceRef,
    pub device: BlockDevice,
    pub is_read_only: bool,
}

impl Export {
    /// Its description for figures.
    pub fn served(&self) -> ServedDevice {
        ServedDevice {
            name: self.name.clone(),
            keyspace: self.keyspace.id(),
            blocks: self.size_bytes() / BLOCK_BYTES as u64,
            is_grouped: self.device.group_blocks() > 1,
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

/// All block devices of a store, by name. Those in `read_only` refuse writes.
///
/// # Errors
/// Says what to do if there is no block device, or a name in `read_only` is not one.
pub fn exports_of(store: &Store, read_only: &[String]) -> Result<Vec<Export>, String> {
    let mut exports = Vec::new();
    for keyspace in store.keyspaces() {
        let device = keyspace.block_device().map_err(|error| error.to_string())?;
        // A dropped keyspace is listed but cannot be opened.
        let (Some(device), Ok(handle)) = (device, store.keyspace(&keyspace.name)) else { continue };
        if handle.id() == keyspace.id {
            let (keyspace, name) = (handle.keyspace(), keyspace.name);
            let is_read_only = read_only.contains(&name);
            exports.push(Export { number: 0, name, keyspace, device, is_read_only });
        }
    }
    exports.sort_by(|one, other| one.name.cmp(&other.name));
    exports.iter_mut().enumerate().for_each(|(number, export)| export.number = number);
    if exports.is_empty() {
        return Err("the store has no block device for --nbd to serve: make one with `tapetum keyspace create NAME --block-device \
                    SIZE` while no server runs on it"
            .into());
    }
    match read_only.iter().find(|name| !exports.iter().any(|export| export.name == **name)) {
        None => Ok(exports),
        Some(name) => {
            Err(format!("--nbd-read-only {name}: there is no such block device; `tapetum keyspace list` shows all"))
        }
    }
}
