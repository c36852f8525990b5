//! A drive, and a store on it, for the tests from outside.

// Each test takes of it what it needs.
#![allow(dead_code)]

pub mod folder;

use std::sync::Arc;
use tapetum::{Store, StoreOptions, Write};
use tapetum_drive::{Drive, Env, Flash, LocalMemory, MemoryFlash, SplitMix64, programs};

/// With as much local memory as a store of these options asks for.
pub fn drive_of(flash: Arc<dyn Flash>, options: &StoreOptions, env: Env) -> Drive {
    let local = LocalMemory::new(options.local_memory_bytes() as usize).unwrap();
    Drive::new(flash, local, programs::built_in(), env)
}

pub fn new_on(drive: &Drive, options: &StoreOptions) -> Store {
    Store::create_on(drive, options).unwrap();
    Store::open_on(drive, options).unwrap()
}

pub fn store_in_memory(capacity_bytes: u64, options: &StoreOptions) -> (Drive, Store) {
    let drive = drive_of(Arc::new(MemoryFlash::new(capacity_bytes)), options, Env::system());
    let store = new_on(&drive, options);
    (drive, store)
}

pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    SplitMix64::new(seed).bytes(length)
}

/// Writes other items until the earlier ones are in a segment.
pub fn flush(store: &Store) {
    flush_with(store, |number| noise(number, 900));
}

/// [`flush`], with values that the caller makes.
pub fn flush_with(store: &Store, value: impl Fn(u64) -> Vec<u8>) {
    let flushes = store.stats().flushes;
    let mut filler = 0;
    while store.stats().flushes < flushes + 2 {
        store.put(format!("filler{}", filler % 100).as_bytes(), &value(filler)).unwrap();
        filler += 1;
        assert!(filler < 20_000, "{:?}", store.stats());
    }
}

pub fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Write<'a> {
    Write::Put { keyspace: tapetum::KeyspaceRef::DEFAULT, key, value, flags: 0, expiry: tapetum::Expiry::NONE }
}

pub fn delete(key: &[u8]) -> Write<'_> {
    Write::Delete { keyspace: tapetum::KeyspaceRef::DEFAULT, key }
}
