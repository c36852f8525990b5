//! Ordered keyspaces on a full drive: which requests are refused, and which go on.

use super::close_tests::{PATIENCE, change, drive};
use crate::api::session::Session;
use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options};
use crate::{Store, StoreOptions};
use tapetum_base::error::Error;
use tapetum_base::keyspace::changing::KeyspaceWish;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::log::Sync;
use tapetum_base::request::{Condition, Outcome, Request};
use tapetum_drive::{Drive, FaultyFlash, SimClock};
use tapetum_kernels::expiry::Expiry;

const VALUE_BYTES: usize = 1000;
/// Tries, a tenth of a second apart, within which deletions free some room.
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

/// The outcome of a request, while the clock stands still.
fn ask(store: &Store, session: &mut Session, keyspace: KeyspaceRef, request: Request<'_>) -> Outcome {
    ask_within(store, session, keyspace, request, || ())
}

/// As [`ask`]; `pass` advances the clock between two polls.
fn ask_within(
    store: &Store,
    session: &mut Session,
    keyspace: KeyspaceRef,
    request: Request<'_>,
    pass: impl Fn(),
) -> Outcome {
    session.submit_to(keyspace, 1, request).unwrap();
    let mut replies = Vec::new();
    for _ in 0..PATIENCE {
        session.poll(&mut replies);
        if let Some(reply) = replies.pop() {
            return reply.outcome;
        }
        pass();
        store.maintain();
    }
    panic!("no reply");
}

fn put(store: &Store, session: &mut Session, keyspace: KeyspaceRef, number: u64) -> Outcome {
    let (key, value) = (key(number), vec![number as u8; VALUE_BYTES]);
    let request =
        Request::Put { key: &key, value: &value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
    ask(store, session, keyspace, request)
}

/// Puts values until one is refused. Returns the number stored.
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

/// A keyspace that is full refuses writes. Neither one takes the room that a flush needs, for which all writers of both would wait.
#[test]
fn a_hashed_and_an_ordered_keyspace_are_full_side_by_side() {
    for is_hashed_first in [true, false] {
        let (_flash, (drive, _clock), mut store) = new_store(&options(Sync::No));
        let ordered = create(&store, "o");
        let both = if is_hashed_first { [KeyspaceRef::DEFAULT, ordered] } else { [ordered, KeyspaceRef::DEFAULT] };
        let mut session = store.session().unwrap();
        let taken = both.map(|keyspace| fill(&store, &mut session, keyspace));
        let in_hashed = taken[usize::from(!is_hashed_first)];
        for number in 0..2 * in_hashed {
            let outcome = put(&store, &mut session, KeyspaceRef::DEFAULT, number * 7 % in_hashed.max(1));
            assert!(matches!(outcome, Outcome::Stored { .. } | Outcome::Failed(Error::FullFlash)), "{outcome:?}");
        }
        for is_opened_again in [false, true] {
            if is_opened_again {
                drop(session);
                store.close().unwrap();
                drop(store);
                store = Store::open_with(&drive, &options(Sync::No), || false).unwrap();
                session = store.session().unwrap();
            }
            for number in (0..in_hashed).filter(|number| number % 2 == u64::from(is_opened_again)) {
                let key = key(number);
                let request = Request::Delete { key: &key, stamp: None };
                let outcome = ask(&store, &mut session, KeyspaceRef::DEFAULT, request);
                assert!(matches!(outcome, Outcome::Deleted), "{outcome:?}");
            }
        }
        // The room comes when the deletions are flushed. If the ordered keyspace was filled first, it has the room.
        store.hashed().rotate();
        for _ in 0..PATIENCE {
            store.maintain();
        }
        let outcome = put(&store, &mut session, KeyspaceRef::DEFAULT, 0);
        assert_eq!(matches!(outcome, Outcome::Stored { .. }), is_hashed_first, "{outcome:?}");
    }
}

/// As [`fill`], with `at_once` puts at a time, most of them in pages that are not written yet. Returns the keys stored.
fn fill_at_once(store: &Store, session: &mut Session, keyspace: KeyspaceRef, at_once: u64) -> Vec<u64> {
    let (mut next, mut pending, mut refused) = (0, 0, 0);
    let (mut taken, mut replies) = (Vec::new(), Vec::new());
    while pending > 0 || refused == 0 {
        while pending < at_once && refused == 0 {
            let (key, value) = (key(next), vec![next as u8; VALUE_BYTES]);
            let request =
                Request::Put { key: &key, value: &value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
            session.submit_to(keyspace, next, request).unwrap();
            (next, pending) = (next + 1, pending + 1);
        }
        session.poll(&mut replies);
        store.maintain();
        for reply in replies.drain(..) {
            pending -= 1;
            match reply.outcome {
                Outcome::Stored { .. } => taken.push(reply.token),
                Outcome::Failed(Error::FullFlash) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    taken
}

fn reopened(flash: &FaultyFlash, options: &StoreOptions) -> (FaultyFlash, Drive, Store) {
    flash.crash();
    let flash = flash.reopen();
    let (drive, _) = super::close_tests::drive(&flash, options);
    let store = Store::open_with(&drive, options, || false).unwrap();
    (flash, drive, store)
}

/// Deletions take one slot after the other, more than are reserved. Freed slots are reused as soon as a round begins.
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

/// Halves of splits wait for slots, more than are reserved.
#[test]
fn a_store_that_is_filled_at_once_closes_and_opens_with_all_that_it_took() {
    for sync in [Sync::Always, Sync::EverySecond, Sync::No] {
        let options = StoreOptions { memory_bytes: 64 << 20, ..options(sync) };
        let flash = FaultyFlash::new(16 * SMALL_BYTES, 1);
        let (drive, _) = drive(&flash, &options);
        Store::create_with(&drive, &options, || false).unwrap();
        let store = Store::open_with(&drive, &options, || false).unwrap();
        let mut session = store.session().unwrap();
        let keyspace = create(&store, "ordered");
        let taken = fill_at_once(&store, &mut session, keyspace, 64);
        drop(session);
        store.close_with(|| false).unwrap();
        let mut last = (flash, drive, store);
        for opening in 0..3 {
            last = reopened(&last.0, &options);
            let store = &last.2;
            let keyspace = store.keyspace("ordered").unwrap();
            for number in &taken {
                let found = keyspace.get(&key(*number)).unwrap().map(|item| item.value);
                assert_eq!(found, Some(vec![*number as u8; VALUE_BYTES]), "{sync:?}, opening {opening}, {number}");
            }
            store.close_with(|| false).unwrap();
        }
    }
}

#[test]
fn values_in_a_full_keyspace_are_written_over() {
    let (_flash, _drive, store) = new_store(&options(Sync::Always));
    let mut session = store.session().unwrap();
    let keyspace = create(&store, "ordered");
    let stored = fill(&store, &mut session, keyspace);
    for number in 0..stored {
        let (key, value) = (key(number), vec![0xa5; VALUE_BYTES]);
        let request =
            Request::Put { key: &key, value: &value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
        let outcome = ask(&store, &mut session, keyspace, request);
        assert!(matches!(outcome, Outcome::Stored { .. }), "{number} of {stored}: {outcome:?}");
    }
}

#[test]
fn what_was_deleted_at_once_or_has_expired_gives_room_to_what_is_put() {
    for expires in [false, true] {
        let (_flash, (drive, clock), store) = new_store(&options(Sync::EverySecond));
        let mut session = store.session().unwrap();
        let keyspace = create(&store, "ordered");
        let expiry = if expires { Expiry::from_secs(drive.env().unix_seconds() + 100) } else { Expiry::NONE };
        let put = |session: &mut Session, number: u64, expiry| {
            let (key, value) = (key(number), vec![number as u8; VALUE_BYTES]);
            let request = Request::Put { key: &key, value: &value, flags: 0, expiry, condition: Condition::Always };
            ask_within(&store, session, keyspace, request, || clock.advance_us(100))
        };
        let stored =
            (0..).find(|number| !matches!(put(&mut session, *number, expiry), Outcome::Stored { .. })).unwrap();
        if !expires {
            ask(&store, &mut session, keyspace, Request::DeleteAll { at: 0 });
        }
        // Records deleted at once are gone when the deletion is durable.
        clock.advance_us(200_000_000);
        for _ in 0..PATIENCE {
            session.poll(&mut Vec::new());
            store.maintain();
        }
        // Nodes are merged and halved on the way: how many records they have in the end differs by some in a hundred, and does not drift.
        for number in stored..2 * stored - stored / 50 {
            let outcome = put(&mut session, number, Expiry::NONE);
            assert!(matches!(outcome, Outcome::Stored { .. }), "{} of {stored}: {outcome:?}", number - stored);
        }
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
