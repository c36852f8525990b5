//! Closing beside writers: what was acknowledged is there when the store is opened again, and nothing is acknowledged behind its end.

use crate::common::{put, store_in_memory};
use crate::{CAPACITY, options};
use std::sync::atomic::{AtomicBool, Ordering};
use tapetum::{Condition, Error, Expiry, KeyspaceKind, Outcome, Request, Store, StoreOptions, Sync};

#[test]
fn a_store_that_was_closed_refuses_writes_and_shows_what_it_holds() {
    let options = StoreOptions { sync: Sync::EverySecond, ..options() };
    let (drive, store) = store_in_memory(CAPACITY, &options);
    let mut session = store.session().unwrap();
    store.put(b"before", b"kept").unwrap();
    store.close().unwrap();
    let writes = [
        Request::Put { key: b"after", value: b"lost", flags: 0, expiry: Expiry::NONE, condition: Condition::Always },
        Request::Append { key: b"before", value: b"lost", stamp: None },
        Request::Delete { key: b"before", stamp: None },
        Request::DeleteAll { at: 0 },
    ];
    for request in writes {
        assert_eq!(store.run(request).map(|(outcome, _)| outcome), Err(Error::Closed), "{request:?}");
    }
    assert_eq!(store.batch(&[put(b"after", b"lost")]), Err(Error::Closed));
    session.submit(1, Request::Delete { key: b"before", stamp: None }).unwrap();
    let mut replies = Vec::new();
    while replies.is_empty() {
        session.poll(&mut replies);
    }
    assert_eq!(replies[0].outcome, Outcome::Failed(Error::Closed));
    assert_eq!(store.get(b"before").unwrap().unwrap().value, b"kept");
    drop((session, store));
    let store = Store::open_on(&drive, &options).unwrap();
    assert_eq!(store.get(b"before").unwrap().unwrap().value, b"kept");
    assert_eq!(store.get(b"after").unwrap(), None);
}

#[test]
fn what_writers_were_told_while_the_store_closed_is_there_when_it_is_opened() {
    for sync in [Sync::No, Sync::EverySecond] {
        for kind in [KeyspaceKind::Hashed, KeyspaceKind::Ordered] {
            for round in 0..8 {
                closes_beside_writers(sync, kind, round);
            }
        }
    }
}

fn closes_beside_writers(sync: Sync, kind: KeyspaceKind, round: u64) {
    let options = StoreOptions { sync, ..StoreOptions::new(32 << 20, 24 << 20) };
    let (drive, store) = store_in_memory(32 << 20, &options);
    store.create_keyspace_of("written", kind).unwrap();
    let begun = AtomicBool::new(false);
    let key = |thread: u64, number: u64| format!("{thread} {number}").into_bytes();
    let written: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|thread| {
                let (store, begun) = (&store, &begun);
                scope.spawn(move || {
                    let keyspace = store.keyspace("written").unwrap();
                    for number in 0.. {
                        if let Err(error) = keyspace.put(&key(thread, number), b"value") {
                            assert_eq!(error, Error::Closed);
                            return number;
                        }
                        begun.store(true, Ordering::SeqCst);
                    }
                    unreachable!("the store is closed some day")
                })
            })
            .collect();
        while !begun.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        std::thread::sleep(std::time::Duration::from_micros(300 * round));
        store.close().unwrap();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    drop(store);
    let store = Store::open_on(&drive, &options).unwrap();
    let keyspace = store.keyspace("written").unwrap();
    for (thread, written) in (0..).zip(written) {
        for number in 0..written {
            assert!(keyspace.get(&key(thread, number)).unwrap().is_some(), "{sync:?} {kind:?}: {number} of {written}");
        }
    }
}
