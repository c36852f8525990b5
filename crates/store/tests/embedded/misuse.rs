//! Calls that are wrong: each is refused with what to do, and changes nothing.

use crate::common::store_in_memory;
use crate::{CAPACITY, options};
use std::ops::ControlFlow;
use tapetum::{
    Condition, Error, Expiry, KeyRange, KeyspaceError, KeyspaceKind, KeyspaceRef, ListCursor, Outcome, Reply, Request,
    Session, Store, Write,
};

fn store() -> Store {
    store_in_memory(CAPACITY, &options().with_tier(1 << 20)).1
}

fn run(session: &mut Session, keyspace: KeyspaceRef, request: Request<'_>) -> Outcome {
    let mut replies: Vec<Reply> = Vec::new();
    session.submit_to(keyspace, 1, request).unwrap();
    while replies.is_empty() {
        session.poll(&mut replies);
    }
    replies.remove(0).outcome
}

#[test]
fn a_keyspace_of_another_store_is_refused() {
    let [one, other] = [store(), store()];
    let both = [KeyspaceKind::Hashed, KeyspaceKind::Ordered].map(|kind| {
        let [_, other] = [&one, &other].map(|store| {
            let keyspace = store.create_keyspace_of(&kind.to_string(), kind).unwrap();
            keyspace.put(b"key", b"own").unwrap();
            assert_eq!(keyspace.get(b"key").unwrap().unwrap().value, b"own");
            keyspace.keyspace()
        });
        other
    });
    let [hashed, ordered] = both;
    let refused = Error::Keyspace(KeyspaceError::OfOtherStore);
    let mut session = one.session().unwrap();
    let put =
        Request::Put { key: b"key", value: b"foreign", flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
    for keyspace in [hashed, ordered, other.keyspace("default").unwrap().keyspace()] {
        for request in [Request::Get { key: b"key" }, put, Request::DeleteAll { at: 0 }] {
            assert_eq!(run(&mut session, keyspace, request), Outcome::Failed(refused.clone()));
        }
        let write = Write::Put { keyspace, key: b"key", value: b"foreign", flags: 0, expiry: Expiry::NONE };
        assert_eq!(one.batch(&[write]), Err(refused.clone()));
        assert_eq!(one.list_keys(keyspace, &ListCursor::default()).map(drop), Err(refused.clone()));
        assert_eq!(tapetum::locate(&one, keyspace, b"key").map(drop), Err(refused.clone()));
        assert!(session.has_probably(keyspace, b"key"), "a get says more");
    }
    let scanned = tapetum::scan(&one, hashed, b"", |_| ControlFlow::Continue(()));
    assert_eq!(scanned.map(drop), Err(refused.clone()));
    assert_eq!(session.submit_scan(ordered, 1, KeyRange::default(), 1), Err(refused.clone()));
    let digest = session.digest(hashed, b"key");
    let mut shown = Vec::new();
    assert_eq!(session.get_from_dram(hashed, digest, &mut shown, |_, _, _| true), None);
    assert!(refused.to_string().contains("Store::keyspace"), "{refused}");
    for kind in [KeyspaceKind::Hashed, KeyspaceKind::Ordered] {
        assert_eq!(one.keyspace(&kind.to_string()).unwrap().get(b"key").unwrap().unwrap().value, b"own");
    }
}

#[test]
fn a_scan_of_no_items_is_refused() {
    let store = store();
    let orders = store.create_keyspace_of("orders", KeyspaceKind::Ordered).unwrap();
    orders.put(b"key", b"value").unwrap();
    let refused = store.session().unwrap().submit_scan(orders.keyspace(), 1, KeyRange::default(), 0).unwrap_err();
    assert!(refused.to_string().contains("ask for 1 or more"), "{refused}");
}
