//! Requests that ask before they bring a value, wherever that is: in a write buffer, on flash, inflated, or in extents of its own.

use crate::common::store_in_memory;
use tapetum::{
    Ask, Condition, Expiry, KeyspaceKind, Outcome, Reply, Request, Session, Store, StoreOptions, Sync, Terms,
};
use tapetum_drive::{Drive, SplitMix64};

const CAPACITY: u64 = 32 << 20;
const SEGMENT: u64 = 256 << 10;

fn store() -> (Drive, Store) {
    let options = StoreOptions { sync: Sync::No, ..StoreOptions::new(CAPACITY, 24 << 20).with_tier(1 << 20) };
    let options = StoreOptions { segment_bytes: SEGMENT, partition_bits: 2, ..options };
    store_in_memory(CAPACITY, &options)
}

/// Bytes that compress to a half.
fn sparse(bytes: usize) -> Vec<u8> {
    noise(bytes / 2).into_iter().flat_map(|byte| [byte, 0]).collect()
}

fn noise(bytes: usize) -> Vec<u8> {
    SplitMix64::new(bytes as u64).bytes(bytes)
}

/// Short, in its record, in its record compressed to a half and to next to nothing, and out of line.
fn values() -> [(&'static [u8], Vec<u8>); 5] {
    let inflated = vec![b'v'; 300_000];
    [
        (b"short", noise(100)),
        (b"long", noise(20_000)),
        (b"half", sparse(30_000)),
        (b"inflated", inflated),
        (b"large", noise(100_000)),
    ]
}

/// Polls until there are as many replies and asks as wanted.
fn poll(session: &mut Session, replies_wanted: usize, asks_wanted: usize) -> (Vec<Reply>, Vec<Ask>) {
    let (mut replies, mut asks) = (Vec::new(), Vec::new());
    while replies.len() < replies_wanted || asks.len() < asks_wanted {
        session.poll(&mut replies);
        session.take_asks(&mut asks);
    }
    (replies, asks)
}

fn value<'a>(session: &'a Session, reply: &Reply) -> &'a [u8] {
    session.bytes(reply.outcome.value().expect("the item is there"))
}

/// One that shows a value in each way that there is.
fn requests(key: &[u8]) -> [Request<'_>; 4] {
    let lease = |touch| Request::GetAndLease { key, terms: Terms { stale: true, touch, ..Terms::default() } };
    [
        Request::Get { key },
        lease(None),
        lease(Some(Expiry::from_secs(u32::MAX))),
        Request::GetAndTouch { key, expiry: Expiry::NONE },
    ]
}

#[test]
fn a_longer_value_comes_when_it_is_allowed() {
    let (_drive, store) = store();
    for (key, value) in &values() {
        store.put(key, value).unwrap();
    }
    let mut session = store.session().unwrap();
    for flushed in [false, true] {
        if flushed {
            // Enough to send all of it to flash.
            for number in 0..40u8 {
                store.put(&[number], &noise(30_000 + usize::from(number))).unwrap();
            }
        }
        for (key, expected) in &values() {
            for request in requests(key) {
                session.submit_within(tapetum::KeyspaceRef::DEFAULT, 7, request, 1000).unwrap();
                if *key == b"short" {
                    let (replies, asks) = poll(&mut session, 1, 0);
                    assert_eq!((value(&session, &replies[0]), asks), (&expected[..], vec![]));
                    continue;
                }
                let what = format!("{request:?}, flushed: {flushed}");
                let (replies, asks) = poll(&mut session, 0, 1);
                assert!(replies.is_empty() && asks.len() == 1 && session.in_flight() == 1, "{what}");
                assert_eq!(asks, [Ask { token: 7, value_bytes: expected.len() }], "{what}");
                session.allow_value(7, expected.len());
                let (replies, asks) = poll(&mut session, 1, 0);
                assert_eq!((value(&session, &replies[0]), asks), (&expected[..], vec![]), "{what}");
                assert_eq!(session.in_flight(), 0);
                session.submit_within(tapetum::KeyspaceRef::DEFAULT, 8, request, expected.len()).unwrap();
                let (replies, asks) = poll(&mut session, 1, 0);
                assert_eq!((value(&session, &replies[0]), asks), (&expected[..], vec![]), "at once: {what}");
            }
        }
    }
    store.close().unwrap();
}

#[test]
fn an_append_to_a_value_out_of_line_asks_for_both_values() {
    let (_drive, store) = store();
    let ordered = store.create_keyspace_of("ordered", KeyspaceKind::Ordered).unwrap();
    let hashed = store.keyspace("default").unwrap();
    for keyspace in [hashed, ordered] {
        let place = keyspace.keyspace();
        let mut session = store.session().unwrap();
        let long = noise(100_000);
        keyspace.put(b"key", &long).unwrap();
        let append = Request::Append { key: b"key", value: b"end", stamp: None };
        session.submit_within(place, 1, append, long.len()).unwrap();
        let (replies, asks) = poll(&mut session, 0, 1);
        assert_eq!((replies, asks), (vec![], vec![Ask { token: 1, value_bytes: 2 * long.len() }]));
        session.allow_value(1, 2 * long.len());
        assert!(matches!(poll(&mut session, 1, 0).0[0].outcome, Outcome::Stored { .. }));
        session.submit_within(place, 2, append, 0).unwrap();
        poll(&mut session, 0, 1);
        session.give_up_value(2);
        assert_eq!(poll(&mut session, 1, 0).0[0].outcome, Outcome::Missing);
        // Nobody asks unless told, and what fits does not ask.
        session.submit_to(place, 3, append).unwrap();
        assert!(matches!(poll(&mut session, 1, 0).0[0].outcome, Outcome::Stored { .. }));
        session.submit_within(place, 4, append, 2 * (long.len() + 6)).unwrap();
        assert!(matches!(poll(&mut session, 1, 0).0[0].outcome, Outcome::Stored { .. }));
        assert_eq!(keyspace.get(b"key").unwrap().unwrap().value, [&long[..], b"endendend"].concat());
    }
}

#[test]
fn what_asks_keeps_nobody_waiting_and_takes_its_place_anew() {
    let (_drive, store) = store();
    let [_, (key, long), ..] = values();
    store.put(key, &long).unwrap();
    let (mut session, mut other) = (store.session().unwrap(), store.session().unwrap());
    for (token, request) in (0..).zip(requests(key)) {
        session.submit_within(tapetum::KeyspaceRef::DEFAULT, token, request, 100).unwrap();
    }
    let (_, asks) = poll(&mut session, 0, 4);
    let mut asked: Vec<u64> = asks.iter().map(|ask| ask.token).collect();
    asked.sort_unstable();
    assert_eq!(asked, [0, 1, 2, 3]);
    other.submit(4, Request::Get { key }).unwrap();
    let (replies, asks_of_other) = poll(&mut other, 1, 0);
    assert_eq!((value(&other, &replies[0]), asks_of_other), (&long[..], vec![]), "nobody asks unless told");

    session
        .submit(5, Request::Put { key, value: b"next", flags: 0, expiry: Expiry::NONE, condition: Condition::Always })
        .unwrap();
    session.submit(6, Request::Get { key }).unwrap();
    let (mut replies, _) = poll(&mut session, 2, 0);
    replies.sort_by_key(|reply| reply.token);
    assert!(matches!(replies[0], Reply { token: 5, outcome: Outcome::Stored { .. }, .. }));
    assert_eq!((replies[1].token, value(&session, &replies[1])), (6, &b"next"[..]));
    for token in 0..4 {
        // A put before it that is not decided yet, too.
        let next = format!("next {token}");
        session
            .submit(
                7,
                Request::Put {
                    key,
                    value: next.as_bytes(),
                    flags: 0,
                    expiry: Expiry::NONE,
                    condition: Condition::Always,
                },
            )
            .unwrap();
        session.allow_value(token, long.len());
        let (replies, _) = poll(&mut session, 2, 0);
        assert_eq!((replies[1].token, value(&session, &replies[1])), (token, next.as_bytes()));
    }
    assert_eq!(session.in_flight(), 0);
}

#[test]
fn an_item_that_has_grown_meanwhile_is_asked_for_again() {
    let (_drive, store) = store();
    let [_, (key, long), .., (_, longer), _] = values();
    store.put(key, &long).unwrap();
    let mut session = store.session().unwrap();
    for request in requests(key) {
        store.put(key, &long).unwrap();
        session.submit_within(tapetum::KeyspaceRef::DEFAULT, 1, request, 100).unwrap();
        poll(&mut session, 0, 1);
        store.put(key, &longer).unwrap();
        session.allow_value(1, long.len());
        let (_, asks) = poll(&mut session, 0, 1);
        session.allow_value(1, asks[0].value_bytes);
        let (replies, _) = poll(&mut session, 1, 0);
        assert_eq!(value(&session, &replies[0]), &longer[..]);
    }
}

#[test]
fn one_that_is_given_up_did_nothing_and_a_deletion_of_everything_waits_for_none() {
    let (_drive, store) = store();
    let [.., (key, large)] = values();
    store.put(key, &large).unwrap();
    let mut session = store.session().unwrap();
    let item = store.get(key).unwrap().unwrap();
    for (token, request) in (0..).zip(requests(key)) {
        session.submit_within(tapetum::KeyspaceRef::DEFAULT, token, request, 100).unwrap();
    }
    let (replies, _) = poll(&mut session, 0, 4);
    assert_eq!(replies.len(), 0);
    session.give_up_value(0);
    let (replies, _) = poll(&mut session, 1, 0);
    assert_eq!((replies[0].token, &replies[0].outcome), (0, &Outcome::Missing));
    assert_eq!(store.get(key).unwrap(), Some(item));

    session.submit(9, Request::DeleteAll { at: 0 }).unwrap();
    let (replies, _) = poll(&mut session, 1, 0);
    assert_eq!((replies[0].token, &replies[0].outcome), (9, &Outcome::Done));
    (1..4).for_each(|token| session.allow_value(token, large.len()));
    let (replies, asks) = poll(&mut session, 3, 0);
    assert!(asks.is_empty() && replies.iter().all(|reply| reply.outcome == Outcome::Missing), "{replies:?}");
    assert_eq!(session.in_flight(), 0);
}
