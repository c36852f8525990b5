//! Closing a store while the ordered engine has something on its way.

use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options};
use crate::keyspace::catalogue::KeyspaceKind;
use crate::keyspace::changing::KeyspaceWish;
use crate::keyspace::request::{Condition, Request};
use crate::{Store, StoreOptions};
use std::cell::Cell;
use std::sync::Arc;
use tapetum_drive::{Drive, Env, FaultyFlash, LocalMemory, programs};

/// Looks at the drive after which a store that does not close hangs.
const PATIENCE: u32 = 20_000;

fn drive(flash: &FaultyFlash, options: &StoreOptions) -> Drive {
    let local = LocalMemory::new(options.local_memory_bytes() as usize).unwrap();
    Drive::new(Arc::new(flash.clone()), local, programs::built_in(), Env::simulated(1).0)
}

/// A flush of the write-back is on its way when the log's turn comes, and nobody polls a session any more.
#[test]
fn a_store_closes_whatever_its_images_wait_for() {
    let options = small_options();
    for polls in 0..40 {
        let flash = FaultyFlash::new(SMALL_BYTES, polls);
        let drive = drive(&flash, &options);
        Store::create_with(&drive, &options, || false).unwrap();
        let store = Store::open_with(&drive, &options, || false).unwrap();
        let (name, kind, options) = (b"ordered".to_vec(), KeyspaceKind::Ordered, Vec::new());
        let change = store.begin_keyspace_change(KeyspaceWish::Create { name, kind, options }).unwrap();
        while change.result().is_none() {
            store.maintain();
        }
        let keyspace = store.keyspace("ordered").unwrap().keyspace();
        let mut session = store.session().unwrap();
        let put = Request::Put { key: b"key", value: b"value", flags: 0, expiry: 0, condition: Condition::Always };
        session.submit_to(keyspace, 1, put).unwrap();
        for _ in 0..polls {
            session.poll(&mut Vec::new());
            store.maintain();
        }
        let looks = Cell::new(0);
        let hangs = || {
            looks.set(looks.get() + 1);
            looks.get() > PATIENCE
        };
        store.close_with(hangs).unwrap_or_else(|error| panic!("after {polls} polls: {error}"));
    }
}
