//! Closing a store, and dropping a keyspace, while the ordered engine has commands in flight.

use crate::hashed::collect::victim::tests::{SMALL_BYTES, drive_of, small_options};
use crate::{Store, StoreOptions};
use std::cell::Cell;
use std::sync::Arc;
use tapetum_base::keyspace::changing::KeyspaceWish;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::log::Sync;
use tapetum_base::request::{Condition, Outcome, Request};
use tapetum_drive::{Drive, Env, FaultyFlash, SimClock};
use tapetum_kernels::expiry::Expiry;

/// After so many polls of the drive a store that does not close counts as hung.
pub const PATIENCE: u32 = 20_000;

pub fn drive(flash: &FaultyFlash, options: &StoreOptions) -> (Drive, SimClock) {
    let (env, clock) = Env::simulated(1);
    (drive_of(Arc::new(flash.clone()), options, env), clock)
}

pub fn change(store: &Store, wish: KeyspaceWish) {
    let change = store.begin_keyspace_change(wish).unwrap();
    let made = (0..PATIENCE).find_map(|_| {
        store.maintain();
        change.result()
    });
    made.expect("a change of keyspaces ends").unwrap();
}

fn create(store: &Store) -> KeyspaceRef {
    let (name, kind, options) = (b"ordered".to_vec(), KeyspaceKind::Ordered, Vec::new());
    change(store, KeyspaceWish::Create { name, kind, options });
    store.keyspace("ordered").unwrap().keyspace()
}

/// Lets maintenance do all pending work.
fn maintain(store: &Store) {
    for _ in 0..200 {
        store.maintain();
    }
}

fn put(key: &[u8]) -> Request<'_> {
    Request::Put { key, value: b"value", flags: 0, expiry: Expiry::NONE, condition: Condition::Always }
}

/// A flush of the write-back is in flight when the log needs one, and nobody polls a session any more.
#[test]
fn a_store_closes_whatever_its_images_wait_for() {
    let options = small_options();
    for polls in 0..40 {
        let flash = FaultyFlash::new(SMALL_BYTES, polls);
        let (drive, _) = drive(&flash, &options);
        Store::create_with(&drive, &options, || false).unwrap();
        let store = Store::open_with(&drive, &options, || false).unwrap();
        let keyspace = create(&store);
        let mut session = store.session().unwrap();
        session.submit_to(keyspace, 1, put(b"key")).unwrap();
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

/// Pages of a dropped keyspace that are listed for writing do not count for a later keyspace with its id and its nodes' ids.
#[test]
fn a_keyspace_with_the_id_of_a_dropped_one_is_written_to_its_own_slots() {
    let options = StoreOptions { sync: Sync::EverySecond, ..small_options() };
    let flash = FaultyFlash::new(SMALL_BYTES, 1);
    let (drive, clock) = drive(&flash, &options);
    Store::create_with(&drive, &options, || false).unwrap();
    let store = Store::open_with(&drive, &options, || false).unwrap();
    let mut session = store.session().unwrap();
    let mut ids = Vec::new();
    for key in [&b"of the dropped one"[..], b"of the later one"] {
        let keyspace = create(&store);
        ids.push(keyspace.id());
        session.submit_to(keyspace, 1, put(key)).unwrap();
        let mut replies = Vec::new();
        (0..PATIENCE).find(|_| {
            session.poll(&mut replies);
            !replies.is_empty()
        });
        assert!(matches!(replies[0].outcome, Outcome::Stored { .. }), "{:?}", replies[0].outcome);
        if ids.len() == 1 {
            change(&store, KeyspaceWish::Drop { name: "ordered".into() });
            maintain(&store);
        }
    }
    assert_eq!(ids[0], ids[1]);
    for _ in 0..3 {
        clock.advance_us(1_000_000);
        maintain(&store);
    }
    flash.crash();
    drop((session, store, drive));
    let (drive, _) = self::drive(&flash.reopen(), &options);
    let store = Store::open_with(&drive, &options, || false).unwrap();
    let keyspace = store.keyspace("ordered").unwrap();
    assert_eq!(keyspace.get(b"of the dropped one").unwrap(), None);
    assert_eq!(keyspace.get(b"of the later one").unwrap().map(|item| item.value), Some(b"value".to_vec()));
}
