//! Ordered keyspaces on a drive that is full: what is refused, and what goes on.

use super::close_tests::{PATIENCE, change, drive};
use crate::error::Error;
use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options};
use crate::keyspace::catalogue::KeyspaceKind;
use crate::keyspace::changing::KeyspaceWish;
use crate::keyspace::request::{Condition, Outcome, Request};
use crate::keyspace::states::KeyspaceRef;
use crate::log::Sync;
use crate::session::Session;
use crate::{Store, StoreOptions};
use tapetum_drive::{Drive, FaultyFlash, SimClock};

const VALUE_BYTES: usize = 1000;
/// Looks for room, a tenth of a second apart, within which what was deleted gives some.
const LOOKS_MAX: u64 = 1000;

fn new_store(options: &StoreOptions) -> (FaultyFlash, (Drive, SimClock), Store) {
    let flash = FaultyFlash::new(4 * SMALL_BYTES, 1);
    let (drive, clock) = drive(&flash, options);
    Store::create_with(&drive, options, || false).unwrap();
    let store = Store::open_with(&drive, options, || false).unwrap();
    (flash, (drive, clock), store)
}

fn options(sync: Sync) -> StoreOptions {
    StoreOptions { sync, ..small_options() }
}

fn create(store: &Store, name: &str) -> KeyspaceRef {
    let kind = KeyspaceKind::Ordered;
    change(store, KeyspaceWish::Create { name: name.into(), kind, options: Vec::new() });
    store.keyspace(name).unwrap().keyspace()
}

/// Keys in no order.
fn key(number: u64) -> Vec<u8> {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec()
}

/// What a request comes to.
fn ask(store: &Store, session: &mut Session, keyspace: KeyspaceRef, request: Request<'_>) -> Outcome {
    session.submit_to(keyspace, 1, request).unwrap();
    let mut replies = Vec::new();
    for _ in 0..PATIENCE {
        session.poll(&mut replies);
        if let Some(reply) = replies.pop() {
            return reply.outcome;
        }
        store.maintain();
    }
    panic!("no reply");
}

fn put(store: &Store, session: &mut Session, keyspace: KeyspaceRef, number: u64) -> Outcome {
    let (key, value) = (key(number), vec![number as u8; VALUE_BYTES]);
    let request = Request::Put { key: &key, value: &value, flags: 0, expiry: 0, condition: Condition::Always };
    ask(store, session, keyspace, request)
}

/// Puts values until one is refused; how many were taken.
fn fill(store: &Store, session: &mut Session, keyspace: KeyspaceRef) -> u64 {
    for number in 0.. {
        match put(store, session, keyspace, number) {
            Outcome::Stored { .. } => {}
            Outcome::Failed(Error::FullFlash) => return number,
            other => panic!("{other:?}"),
        }
    }
    unreachable!("no drive is so large")
}

/// They take one slot after the other, more than are kept back: what was freed is given out again as soon as a round begins.
#[test]
fn deletions_in_a_full_keyspace_wait_for_no_clock() {
    let (_flash, _drive, store) = new_store(&options(Sync::Always));
    let mut session = store.session().unwrap();
    let keyspace = create(&store, "ordered");
    let stored = fill(&store, &mut session, keyspace);
    for number in 0..stored {
        let key = key(number);
        let deleted = ask(&store, &mut session, keyspace, Request::Delete { key: &key, stamp: None });
        assert!(matches!(deleted, Outcome::Deleted), "{number} of {stored}: {deleted:?}");
    }
}

#[test]
fn a_full_store_closes_with_all_that_it_took() {
    let options = options(Sync::EverySecond);
    let (flash, drive, store) = new_store(&options);
    let mut session = store.session().unwrap();
    let keyspace = create(&store, "ordered");
    let stored = fill(&store, &mut session, keyspace);
    store.close_with(|| false).unwrap();
    flash.crash();
    drop((session, store, drive));
    let (drive, _) = super::close_tests::drive(&flash.reopen(), &options);
    let store = Store::open_with(&drive, &options, || false).unwrap();
    let keyspace = store.keyspace("ordered").unwrap();
    for number in 0..stored {
        let found = keyspace.get(&key(number)).unwrap().map(|item| item.value);
        assert_eq!(found, Some(vec![number as u8; VALUE_BYTES]), "{number} of {stored}");
    }
}

#[test]
fn a_new_keyspace_in_a_full_store_takes_nothing() {
    let (_flash, (_drive, clock), store) = new_store(&options(Sync::Always));
    let mut session = store.session().unwrap();
    let full = create(&store, "full");
    let stored = fill(&store, &mut session, full);
    let other = create(&store, "other");
    let refused = put(&store, &mut session, other, 0);
    assert!(matches!(refused, Outcome::Failed(Error::FullFlash)), "{refused:?}");
    for number in 0..stored {
        let key = key(number);
        ask(&store, &mut session, full, Request::Delete { key: &key, stamp: None });
    }
    let taken = (0..LOOKS_MAX).any(|number| {
        clock.advance_us(100_000);
        for _ in 0..100 {
            store.maintain();
        }
        matches!(put(&store, &mut session, other, number), Outcome::Stored { .. })
    });
    assert!(taken, "what was deleted gives room");
}
