//! A store in this process, as an application embeds it, for figures that do not need sockets: its folder, and the common items.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tapetum::{KeyspaceRef, Store, Sync};
use tapetum_bench::embedded::{Pipe, create, keep_full, settle};
use tapetum_bench::random::{Random, key16, mix};

use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace::Scratch;

/// Sizes of the items in every figure at scale, by default.
pub const KEY_BYTES: u64 = 16;
pub const VALUE_BYTES: u64 = 100;

/// A new store, in a folder that is removed with it.
pub struct Embedded {
    // In this order: the store is closed before its folder is removed.
    pub store: Store,
    folder: PathBuf,
    _scratch: Scratch,
}

impl Embedded {
    pub fn start(name: &str, capacity_bytes: u64, memory_bytes: u64) -> Result<Embedded, Failure> {
        let scratch = Scratch::new(name)?;
        let folder = scratch.folder().join("data");
        let store = create(&folder, capacity_bytes, memory_bytes, Sync::Always)?;
        Ok(Embedded { store, folder, _scratch: scratch })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Bytes of the store's file according to `du`.
    pub fn bytes_on_disk(&self) -> Result<u64, Failure> {
        use std::os::unix::fs::MetadataExt;
        Ok(std::fs::metadata(self.folder.join("drive"))?.blocks() * 512)
    }
}

/// The value of an item in its `generation`: incompressible, and computable without storing it.
pub fn fill_value(index: u64, generation: u64, bytes: u64, value: &mut Vec<u8>) {
    value.resize(bytes as usize, 0);
    Random::new(mix(index ^ mix(generation))).fill(value);
}

/// Stores the items of `indexes` in random order of keys. Returns the longest wait for an answer.
pub fn store_items(
    store: &Store,
    keyspace: KeyspaceRef,
    indexes: Range<u64>,
    value_bytes: u64,
    threads: u64,
) -> Result<Duration, Failure> {
    let thread = |number: u64| {
        let mut indexes = (indexes.start + number..indexes.end).step_by(threads as usize);
        let mut value = Vec::new();
        let next = move |pipe: &mut Pipe, now: Instant| {
            let Some(index) = indexes.next() else { return false };
            fill_value(index, 0, value_bytes, &mut value);
            pipe.put(now, &key16(index), &value);
            true
        };
        move || keep_full(store, keyspace, next, |_| Ok(()))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|number| scope.spawn(thread(number))).collect();
        let mut longest = Duration::ZERO;
        for thread in threads {
            longest = longest.max(thread.join().expect("a loading thread panicked")?);
        }
        Ok(longest)
    })
}

/// Overwrites a few keys repeatedly, so that every buffer and pool has been used and almost no index is left.
pub fn touch_pools(store: &Store, arguments: &Arguments) -> Result<(), Failure> {
    const KEYS: u64 = 1000;
    let writes = arguments.sized(2_000_000, 20_000);
    let mut written = 0;
    let mut value = Vec::new();
    let next = |pipe: &mut Pipe, now: Instant| {
        fill_value(written, 0, VALUE_BYTES, &mut value);
        // Keys that `store_items` does not use.
        pipe.put(now, &key16(u64::MAX - written % KEYS), &value);
        written += 1;
        written < writes
    };
    keep_full(store, KeyspaceRef::DEFAULT, next, |_| Ok(()))?;
    settle(store).map(|_| ())
}
