//! Requirements of a session on an engine's part of it, tested on both: on a hashed and on an ordered keyspace over one session.

use super::{STEPS_MAX, both, gone, put, step_until, stored, write};
use crate::ordered::store_bench::Bench;
use crate::{Ask, Expiry, KeyspaceRef, Outcome, PlainPut, Reply, Request, Session, Sync, Write};
use std::collections::BTreeMap;
use tapetum_base::keyspace::catalogue::KeyspaceEdit;

const KEYS: u64 = 5;
const LONG: [u8; 1000] = [7; 1000];

fn key(number: u64) -> Vec<u8> {
    format!("key {}", number % KEYS).into_bytes()
}

/// A store whose keys are on flash alone, in both keyspaces: a request for one waits for a read.
fn cold(seed: u64) -> Bench {
    let mut bench = Bench::new(Sync::Always, seed);
    for keyspace in both(&bench) {
        assert!((0..KEYS).all(|number| stored(bench.put(keyspace, &key(number), &LONG))));
    }
    assert!(bench.store.base().rotate());
    step_until(&mut bench, |bench| bench.store.stats().flushes > 0);
    bench.reopen()
}

/// The next replies, by token, with their values.
fn answers(bench: &mut Bench, count: usize) -> BTreeMap<u64, (Outcome, Vec<u8>)> {
    let (mut all, mut replies) = (BTreeMap::new(), Vec::new());
    while all.len() < count {
        bench.store.maintain();
        bench.session.poll(&mut replies);
        for Reply { token, outcome, .. } in replies.drain(..) {
            let value = outcome.value().map(|value| bench.session.bytes(value).to_vec()).unwrap_or_default();
            assert_eq!(all.insert(token, (outcome, value)), None);
        }
    }
    all
}

fn local_bytes(bench: &Bench) -> u64 {
    bench.store.drive().local().bytes_used() as u64
}

/// Another session in place of that of a bench: what it takes is what it gives back.
fn change_session(bench: &mut Bench) -> Session {
    let session = bench.store.session().unwrap();
    std::mem::replace(&mut bench.session, session)
}

#[test]
fn requests_go_to_the_engine_of_their_keyspace() {
    let mut bench = Bench::new(Sync::EverySecond, 1);
    let [hashed, ordered] = both(&bench);
    for [own, other] in [[hashed, ordered], [ordered, hashed]] {
        assert!(stored(bench.put(own, b"key", b"41")));
        assert_eq!(bench.get(other, b"key"), None);
        assert!(stored(bench.put(other, b"key", b"other")));
        let increment =
            Request::Increment { key: b"key", delta: 1, decrement: false, initial: None, stamp: None, touch: None };
        assert!(matches!(bench.run(own, increment), Some(Outcome::Number { number: 42, .. })));
        assert_eq!(bench.get(own, b"key"), Some(b"42".to_vec()));
        assert_eq!(bench.run(own, Request::Delete { key: b"key", stamp: None }), Some(Outcome::Deleted));
        assert_eq!((bench.get(own, b"key"), bench.get(other, b"key")), (None, Some(b"other".to_vec())));
        bench.run(other, Request::Delete { key: b"key", stamp: None });
    }
    let mut put_at_once = |keyspace| {
        let digest = bench.session.digest(keyspace, b"key");
        bench
            .session
            .put_at_once(keyspace, digest, PlainPut { key: b"key", value: b"value", flags: 0, expiry: Expiry::NONE })
            .is_some()
    };
    assert_eq!([hashed, ordered].map(&mut put_at_once), [true, false]);
}

#[test]
fn operations_of_a_key_take_effect_in_order_while_commands_are_on_their_way() {
    for number in 0..2 {
        let mut bench = cold(2);
        let keyspace = both(&bench)[number];
        let used_bytes = local_bytes(&bench);
        let before = change_session(&mut bench);
        for round in 0..50_u64 {
            bench.session.submit_to(keyspace, 3 * round, Request::Get { key: &key(round) }).unwrap();
            bench.session.submit_to(keyspace, 3 * round + 1, put(&key(round), &round.to_le_bytes())).unwrap();
            bench.session.submit_to(keyspace, 3 * round + 2, Request::Get { key: &key(round) }).unwrap();
        }
        assert_eq!((bench.session.in_flight(), bench.session.tokens_in_flight().len()), (150, 150));
        let answers = answers(&mut bench, 150);
        for round in 0..50_u64 {
            let earlier = round.checked_sub(KEYS).map_or(LONG.to_vec(), |earlier| earlier.to_le_bytes().to_vec());
            assert_eq!(answers[&(3 * round)].1, earlier, "{round}");
            assert!(matches!(answers[&(3 * round + 1)].0, Outcome::Stored { .. }));
            assert_eq!(answers[&(3 * round + 2)].1, round.to_le_bytes());
        }
        assert_eq!(bench.session.in_flight(), 0);
        bench.session = before;
        assert_eq!(local_bytes(&bench), used_bytes);
    }
}

#[test]
fn a_write_is_answered_when_it_is_durable() {
    let mut bench = Bench::new(Sync::Always, 3);
    for round in 0..20_u64 {
        let (key, value) = (key(round), [round as u8; 300]);
        for keyspace in both(&bench) {
            assert!(stored(bench.put(keyspace, &key, &value)));
            assert_eq!(bench.fork_durable().get(keyspace, &key), Some(value.to_vec()));
        }
        let writes = both(&bench).map(|keyspace| write(keyspace, &key, b"batch"));
        assert_eq!(bench.batch(&writes), Some(Outcome::Done));
        let mut fork = bench.fork_durable();
        assert!(both(&fork).iter().all(|keyspace| fork.get(*keyspace, &key) == Some(b"batch".to_vec())));
    }
}

#[test]
fn a_long_value_asks_before_it_is_brought() {
    for number in 0..2 {
        let mut bench = cold(4);
        let keyspace = both(&bench)[number];
        let ask = |bench: &mut Bench, key: &[u8]| {
            bench.session.submit_within(keyspace, 1, Request::Get { key }, 100).unwrap();
            let mut asks = Vec::new();
            for _ in 0..STEPS_MAX {
                bench.session.poll(&mut Vec::new());
                bench.session.take_asks(&mut asks);
                if !asks.is_empty() {
                    break;
                }
            }
            assert_eq!(asks, [Ask { token: 1, value_bytes: LONG.len() }]);
        };
        ask(&mut bench, &key(0));
        bench.session.allow_value(1, LONG.len());
        assert_eq!(answers(&mut bench, 1)[&1].1, LONG);
        ask(&mut bench, &key(0));
        bench.session.give_up_value(1);
        assert_eq!(answers(&mut bench, 1)[&1].0, Outcome::Missing);
    }
}

#[test]
fn a_session_that_goes_takes_its_commands_along() {
    for number in 0..2 {
        let mut in_flight = 0;
        for seed in 10..20 {
            let mut bench = cold(seed);
            let keyspace = both(&bench)[number];
            let used_bytes = local_bytes(&bench);
            let before = change_session(&mut bench);
            for token in 0..KEYS {
                bench.session.submit_to(keyspace, token, Request::Get { key: &key(token) }).unwrap();
            }
            bench.session.poll(&mut Vec::new());
            in_flight += bench.session.in_flight();
            bench.session = before;
            assert!(local_bytes(&bench) <= used_bytes);
        }
        assert!(in_flight > 0);
    }
}

#[test]
fn a_batch_of_two_engines_is_whole_or_absent() {
    let mut bench = cold(6);
    let keyspaces = both(&bench);
    let keys = [key(0), key(1)];
    let writes: Vec<Write<'_>> =
        keys.iter().flat_map(|key| keyspaces.map(|keyspace| write(keyspace, key, b"value"))).collect();
    for keyspace in keyspaces {
        // Behind an operation of one of its keys it is to come again.
        bench.session.submit_to(keyspace, 1, Request::Get { key: &keys[1] }).unwrap();
        assert!(bench.session.submit_batch(2, &writes).is_err());
        assert_eq!(answers(&mut bench, 1)[&1].1, LONG);
    }
    assert_eq!(bench.batch(&writes), Some(Outcome::Done));
    let mut stamps = Vec::new();
    for (keyspace, key) in keyspaces.into_iter().flat_map(|keyspace| keys.each_ref().map(|key| (keyspace, key))) {
        match bench.run(keyspace, Request::Get { key }) {
            Some(Outcome::Value { stamp, value, .. }) if bench.session.bytes(value) == b"value" => stamps.push(stamp),
            other => panic!("{other:?}"),
        }
    }
    assert!(stamps.windows(2).all(|two| two[1] == two[0] + 1), "one group of the log has it: {stamps:?}");
    let hashed = KeyspaceRef::DEFAULT;
    bench.store.hashed().keyspaces.apply(&KeyspaceEdit::Drop(keyspaces[1].id()), 0).unwrap();
    assert_eq!(bench.batch(&[write(hashed, b"other", b""), write(keyspaces[1], b"other", b"")]), gone());
    assert_eq!(bench.get(hashed, b"other"), None);
}
