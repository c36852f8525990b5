//! Keyspaces of an engine that is not the hashed one, beside hashed ones, over one session.

use crate::engine_tests::toy_engine::{TOY, ToyEngine};
use crate::hashed::collect::victim::tests::{SMALL_BYTES, drive_in_memory, small_options};
use crate::{
    Ask, Condition, Error, ItemPipeline, KeyspaceError, KeyspaceRef, Outcome, Reply, Request, Session, Store, Write,
};
use std::sync::Arc;
use tapetum_base::base::Base;
use tapetum_base::engine::{Engine, EngineMaker};
use tapetum_base::keyspace::catalogue::KeyspaceEdit;
use tapetum_base::keyspace::states::testing::create_of;
use tapetum_drive::Env;
use tapetum_kernels::expiry::Expiry;

fn toy() -> (Store, Session, KeyspaceRef) {
    let options = small_options();
    let drive = drive_in_memory(SMALL_BYTES, &options, Env::system());
    Store::create_on(&drive, &options).unwrap();
    let make = |base: &Arc<Base>| -> Arc<dyn Engine> { ToyEngine::new(base) };
    let store = Store::open_on_with_engines(&drive, &options, &[EngineMaker { kind: TOY, make: &make }]).unwrap();
    let session = store.session().unwrap();
    let keyspace = create_of(&store.hashed().keyspaces, TOY, 7, 0);
    (store, session, keyspace)
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
    Request::Put { key, value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always }
}

/// The next replies, in the order of their tokens, with their values.
fn answers(session: &mut Session, count: usize) -> Vec<(Outcome, Vec<u8>)> {
    let (mut all, mut replies) = (Vec::new(), Vec::new());
    while all.len() < count {
        session.poll(&mut replies);
        for Reply { token, outcome, .. } in replies.drain(..) {
            let value = outcome.value().map(|value| session.bytes(value).to_vec()).unwrap_or_default();
            all.push((token, outcome, value));
        }
        if all.len() < count {
            session.wait(None);
        }
    }
    all.sort_by_key(|(token, ..)| *token);
    all.into_iter().map(|(_, outcome, value)| (outcome, value)).collect()
}

fn run(session: &mut Session, keyspace: KeyspaceRef, request: Request<'_>) -> (Outcome, Vec<u8>) {
    session.submit_to(keyspace, 1, request).unwrap();
    answers(session, 1).remove(0)
}

#[test]
fn requests_go_to_the_engine_of_their_keyspace() {
    let (_store, mut session, toy) = toy();
    let get = Request::Get { key: b"key" };
    assert!(matches!(run(&mut session, toy, put(b"key", b"41")).0, Outcome::Stored { .. }));
    assert_eq!(run(&mut session, KeyspaceRef::DEFAULT, get).0, Outcome::Missing);
    assert!(matches!(run(&mut session, KeyspaceRef::DEFAULT, put(b"key", b"hashed")).0, Outcome::Stored { .. }));
    let increment =
        Request::Increment { key: b"key", delta: 1, decrement: false, initial: None, stamp: None, touch: None };
    assert!(matches!(run(&mut session, toy, increment).0, Outcome::Number { number: 42, .. }));
    assert_eq!(run(&mut session, toy, get).1, b"42");
    assert_eq!(run(&mut session, KeyspaceRef::DEFAULT, get).1, b"hashed");
    assert_eq!(run(&mut session, toy, Request::Delete { key: b"key", stamp: None }).0, Outcome::Deleted);
    assert_eq!(run(&mut session, toy, get).0, Outcome::Missing);
    let digest = session.digest(toy, b"key");
    assert_eq!(session.put_at_once(toy, digest, (b"key", b"value"), (0, Expiry::NONE)), None);
    session.submit_through(toy, 1, b"key", &ItemPipeline::default()).unwrap();
    assert!(matches!(answers(&mut session, 1)[0].0, Outcome::Failed(_)));
}

#[test]
fn operations_of_a_key_take_effect_in_order_while_commands_are_on_their_way() {
    let (store, mut session, toy) = toy();
    let used_bytes = store.drive().local().bytes_used();
    for round in 0..50_u64 {
        let (key, value) = ((round % 5).to_le_bytes(), round.to_le_bytes());
        session.submit_to(toy, 2 * round, put(&key, &value)).unwrap();
        session.submit_to(toy, 2 * round + 1, Request::Get { key: &key }).unwrap();
    }
    assert_eq!((session.in_flight(), session.tokens_in_flight().len()), (100, 100));
    for (round, answers) in (0..50_u64).zip(answers(&mut session, 100).chunks(2)) {
        assert!(matches!(answers[0].0, Outcome::Stored { .. }));
        assert_eq!(answers[1].1, round.to_le_bytes());
    }
    assert_eq!(session.in_flight(), 0);
    drop(session);
    assert_eq!(store.drive().local().bytes_used(), used_bytes);
}

#[test]
fn a_write_is_answered_when_it_is_durable() {
    let (store, mut session, toy) = toy();
    session.submit_to(toy, 1, put(b"key", b"value")).unwrap();
    let mut replies = Vec::new();
    while replies.is_empty() {
        session.poll(&mut replies);
        let durable = store.hashed().log.durable_stamp();
        let is_durable = |reply: &Reply| matches!(reply.outcome, Outcome::Stored { stamp } if stamp <= durable);
        assert!(replies.iter().all(is_durable));
    }
}

#[test]
fn a_long_value_asks_and_a_session_that_goes_takes_its_commands_along() {
    let (store, mut session, toy) = toy();
    run(&mut session, toy, put(b"key", &[7; 1000]));
    let get = Request::Get { key: b"key" };
    let ask = |session: &mut Session| {
        session.submit_within(toy, 1, get, 100).unwrap();
        let mut asks = Vec::new();
        while asks.is_empty() {
            session.poll(&mut Vec::new());
            session.take_asks(&mut asks);
        }
        assert_eq!(asks, [Ask { token: 1, value_bytes: 1000 }]);
    };
    ask(&mut session);
    session.allow_value(1, 1000);
    assert_eq!(answers(&mut session, 1)[0].1, [7; 1000]);
    ask(&mut session);
    session.give_up_value(1);
    assert_eq!(answers(&mut session, 1)[0].0, Outcome::Missing);
    let used_bytes = store.drive().local().bytes_used();
    session.submit_to(toy, 2, get).unwrap();
    drop(session);
    assert!(store.drive().local().bytes_used() <= used_bytes);
}

#[test]
fn a_batch_of_two_engines_is_whole_or_absent() {
    let (store, mut session, toy) = toy();
    let write = |keyspace, key| Write::Put { keyspace, key, value: b"value", flags: 0, expiry: Expiry::NONE };
    let (both, default) = ([toy, KeyspaceRef::DEFAULT], KeyspaceRef::DEFAULT);
    let writes = [write(default, b"a"), write(toy, b"a"), write(default, b"b"), write(toy, b"b")];
    run(&mut session, toy, put(b"c", b"before"));
    let stamp_before = store.hashed().log.stamp_last();
    session.submit_batch(1, &writes).unwrap();
    assert_eq!(answers(&mut session, 1)[0].0, Outcome::Done);
    assert_eq!(store.hashed().log.stamp_last(), stamp_before + 4);
    let get = |session: &mut Session, keyspace, key| run(session, keyspace, Request::Get { key }).1;
    for (keyspace, key) in both.into_iter().flat_map(|keyspace| [(keyspace, b"a"), (keyspace, b"b")]) {
        assert_eq!(get(&mut session, keyspace, key), b"value");
    }
    // Behind an operation of one of its keys it is to come again.
    session.submit_to(toy, 1, Request::Get { key: b"a" }).unwrap();
    assert!(session.submit_batch(2, &writes).is_err());
    answers(&mut session, 1);
    store.hashed().keyspaces.apply(&KeyspaceEdit::Drop(toy.id()), 0).unwrap();
    session.submit_batch(1, &[write(default, b"c"), write(toy, b"c")]).unwrap();
    assert_eq!(answers(&mut session, 1)[0].0, Outcome::Failed(Error::Keyspace(KeyspaceError::Gone)));
    assert_eq!(run(&mut session, default, Request::Get { key: b"c" }).0, Outcome::Missing);
}
