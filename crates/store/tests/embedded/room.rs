//! How much a session takes on.

use crate::common::store_in_memory;
use tapetum::{Busy, OPERATIONS_MAX, Reply, Request, Session, Store, StoreOptions};
use tapetum_drive::Drive;

const CAPACITY: u64 = 32 << 20;
const SEGMENT: u64 = 256 << 10;
/// A session keeps a quarter of it.
const MEMORY: u64 = 24 << 20;

fn store() -> (Drive, Store) {
    let options = StoreOptions { segment_bytes: SEGMENT, partition_bits: 2, ..StoreOptions::new(CAPACITY, MEMORY) };
    store_in_memory(CAPACITY, &options)
}

/// Submits gets until the session takes no more, and polls until all are answered; how many there were.
fn fill(session: &mut Session, key: &[u8], most: usize) -> usize {
    let taken = (0..=most).take_while(|token| session.submit(*token as u64, Request::Get { key }).is_ok()).count();
    assert_eq!((session.has_room(), session.in_flight()), (taken > most, taken));
    assert_eq!(session.submit_within(tapetum::KeyspaceRef::DEFAULT, 0, Request::Get { key }, 10), Err(Busy));
    let mut replies: Vec<Reply> = Vec::new();
    while replies.len() < taken {
        session.poll(&mut replies);
    }
    let mut tokens: Vec<u64> = replies.iter().map(|reply| reply.token).collect();
    tokens.sort_unstable();
    assert!(tokens.into_iter().eq(0..taken as u64), "each that was taken is answered once, and no other");
    taken
}

#[test]
fn a_session_takes_so_many_operations_and_as_many_again_when_they_are_answered() {
    let (_drive, store) = store();
    let mut session = store.session().unwrap();
    for _ in 0..2 {
        assert_eq!(fill(&mut session, b"key", OPERATIONS_MAX), OPERATIONS_MAX);
    }
}

#[test]
fn a_session_keeps_so_many_bytes_of_keys_and_values() {
    let (_drive, store) = store();
    let mut session = store.session().unwrap();
    let key = vec![b'k'; 8 << 10];
    for _ in 0..2 {
        assert_eq!(fill(&mut session, &key, OPERATIONS_MAX), MEMORY as usize / 4 / key.len());
    }
}

#[test]
fn more_keys_than_a_session_takes_are_read_all_the_same() {
    let (_drive, store) = store();
    store.put(b"there", b"value").unwrap();
    let mut keys: Vec<&[u8]> = vec![b"absent"; OPERATIONS_MAX + 10];
    keys.push(b"there");
    let items = store.multi_get(&keys).unwrap();
    assert_eq!((items.len(), items.iter().flatten().count()), (keys.len(), 1));
    assert_eq!(items.last().unwrap().as_ref().unwrap().value, b"value");
}
