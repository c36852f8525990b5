//! Keyspaces beside each other: the same keys in all of them, against a model.

use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_in_memory};
use crate::{
    Condition, Error, Item, KeyspaceError, KeyspaceKind, KeyspaceRef, Outcome, Reply, Request, Session, Store,
    StoreOptions, Sync, Write,
};
use std::collections::HashMap;
use tapetum_base::keyspace::catalogue::KeyspaceEdit;
use tapetum_base::keyspace::states::testing::create;
use tapetum_drive::SplitMix64;
use tapetum_kernels::expiry::Expiry;

/// Ids on both sides of a chunk's and of a byte's end.
const IDS: [u16; 12] = [1, 2, 3, 254, 255, 256, 257, 511, 512, 4095, 40_000, u16::MAX];
const KEYS: u64 = 40;

fn answer(session: &mut Session) -> (Outcome, Vec<u8>) {
    let mut replies = Vec::new();
    loop {
        session.poll(&mut replies);
        if let Some(Reply { outcome, .. }) = replies.pop() {
            let value = outcome.value().map(|value| session.bytes(value).to_vec()).unwrap_or_default();
            return (outcome, value);
        }
        session.wait(None);
    }
}

fn run(session: &mut Session, keyspace: KeyspaceRef, request: Request<'_>) -> (Outcome, Vec<u8>) {
    session.submit_to(keyspace, 1, request).unwrap();
    answer(session)
}

fn get(session: &mut Session, keyspace: KeyspaceRef, key: &[u8]) -> Option<Vec<u8>> {
    match run(session, keyspace, Request::Get { key }) {
        (Outcome::Value { .. }, value) => Some(value),
        (Outcome::Missing, _) => None,
        (other, _) => panic!("{other:?}"),
    }
}

fn put(session: &mut Session, keyspace: KeyspaceRef, key: &[u8], value: &[u8]) {
    let request = Request::Put { key, value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
    assert!(matches!(run(session, keyspace, request).0, Outcome::Stored { .. }));
}

struct Bench {
    store: Store,
    session: Session,
    keyspaces: Vec<KeyspaceRef>,
    model: HashMap<(KeyspaceRef, Vec<u8>), Vec<u8>>,
    random: SplitMix64,
}

impl Bench {
    fn new(seed: u64, tier_bytes: u64) -> Bench {
        let options = StoreOptions { sync: Sync::No, ..small_options() }.with_tier(tier_bytes);
        let (_, store) = store_in_memory(SMALL_BYTES, &options);
        let mut keyspaces = vec![KeyspaceRef::DEFAULT];
        keyspaces.extend(IDS.map(|id| create(&store.hashed().keyspaces, id, 0)));
        let session = store.session().unwrap();
        Bench { store, session, keyspaces, model: HashMap::new(), random: SplitMix64::new(seed) }
    }

    fn keyspace(&mut self) -> KeyspaceRef {
        self.keyspaces[(self.random.next_u64() % self.keyspaces.len() as u64) as usize]
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key {}", self.random.next_u64() % KEYS).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        let long = if self.random.next_u64().is_multiple_of(50) { 20_000 } else { 300 };
        let mut value = vec![0; (self.random.next_u64() % long) as usize];
        self.random.fill(&mut value);
        value
    }

    fn step(&mut self) {
        let (keyspace, key) = (self.keyspace(), self.key());
        match self.random.next_u64() % 100 {
            0..45 => {
                let value = self.value();
                put(&mut self.session, keyspace, &key, &value);
                self.model.insert((keyspace, key), value);
            }
            45..60 => {
                let outcome = run(&mut self.session, keyspace, Request::Delete { key: &key, stamp: None }).0;
                let was_there = self.model.remove(&(keyspace, key)).is_some();
                assert_eq!(outcome == Outcome::Deleted, was_there);
            }
            60..62 => {
                assert_eq!(run(&mut self.session, keyspace, Request::DeleteAll { at: 0 }).0, Outcome::Done);
                self.model.retain(|(other, _), _| *other != keyspace);
            }
            62..70 => self.batch(&key),
            _ => {
                let expected = self.model.get(&(keyspace, key.clone())).cloned();
                assert_eq!(get(&mut self.session, keyspace, &key), expected, "{keyspace:?} {key:?}");
            }
        }
    }

    /// One key of all keyspaces at once.
    fn batch(&mut self, key: &[u8]) {
        let value = self.random.next_u64().to_le_bytes().repeat(20);
        let write = |keyspace| Write::Put { keyspace, key, value: &value, flags: 0, expiry: Expiry::NONE };
        let writes: Vec<Write<'_>> = self.keyspaces.iter().copied().map(write).collect();
        while self.session.submit_batch(1, &writes).is_err() {
            self.session.poll(&mut Vec::new());
        }
        assert_eq!(answer(&mut self.session).0, Outcome::Done);
        for keyspace in &self.keyspaces {
            self.model.insert((*keyspace, key.to_vec()), value.clone());
        }
    }
}

#[test]
fn the_same_key_of_two_keyspaces_is_two_keys() {
    for (seed, tier_bytes) in [(1, 0), (2, 1 << 20)] {
        let mut bench = Bench::new(seed, tier_bytes);
        (0..8000).for_each(|_| bench.step());
        assert!(bench.store.stats().flushes > 5);
        for keyspace in bench.keyspaces.clone() {
            for number in 0..KEYS {
                let key = format!("key {number}").into_bytes();
                let expected = bench.model.get(&(keyspace, key.clone())).cloned();
                assert_eq!(get(&mut bench.session, keyspace, &key), expected);
            }
        }
        let report = crate::check(&bench.store).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
    }
}

#[test]
fn a_dropped_keyspace_refuses_and_shows_nothing() {
    let mut bench = Bench::new(3, 0);
    let keyspace = bench.keyspaces[3];
    put(&mut bench.session, keyspace, b"key", b"value");
    bench.store.hashed().keyspaces.apply(&KeyspaceEdit::Drop(keyspace.id()), 0).unwrap();
    let refused = Outcome::Failed(Error::Keyspace(KeyspaceError::Gone));
    assert_eq!(run(&mut bench.session, keyspace, Request::Get { key: b"key" }).0, refused);
    assert_eq!(run(&mut bench.session, keyspace, Request::DeleteAll { at: 0 }).0, refused);
    let shared = bench.store.hashed();
    shared.keyspaces.apply(&KeyspaceEdit::Forget(keyspace.id()), 0).unwrap();
    let again = create(&shared.keyspaces, keyspace.id().0, shared.log.stamp_last());
    assert_eq!(get(&mut bench.session, again, b"key"), None);
    let write = |keyspace| Write::Put { keyspace, key: b"key", value: b"v", flags: 0, expiry: Expiry::NONE };
    bench.session.submit_batch(1, &[write(again), write(keyspace)]).unwrap();
    assert_eq!(answer(&mut bench.session).0, refused);
    assert_eq!(get(&mut bench.session, again, b"key"), None, "a batch is whole or absent");
}

#[test]
fn a_deletion_for_a_time_that_has_passed_is_done_at_once() {
    let (_, store) = store_in_memory(SMALL_BYTES, &small_options());
    store.create_keyspace_of("ordered", KeyspaceKind::Ordered).unwrap();
    for name in ["default", "ordered"] {
        let keyspace = store.keyspace(name).unwrap();
        for at in [1, store.hashed().now()] {
            keyspace.put(b"before", b"value").unwrap();
            assert_eq!(keyspace.run(Request::DeleteAll { at }).unwrap().0, Outcome::Done);
            assert_eq!(store.hashed().keyspaces.mark(keyspace.id()).planned_at, 0, "{name}: no plan is kept");
            keyspace.put(b"after", b"value").unwrap();
            let there = [b"before".as_slice(), b"after"].map(|key| keyspace.get(key).unwrap().is_some());
            assert_eq!(there, [false, true], "{name}");
        }
    }
}

#[test]
fn a_handle_has_the_calls_of_a_store_for_its_own_keyspace() {
    let (_, store) = store_in_memory(SMALL_BYTES, &small_options());
    let name = |name: &str| store.keyspace(name).map(|handle| handle.id()).map_err(|error| error.to_string());
    assert_eq!(name("default"), Ok(KeyspaceRef::DEFAULT.id()));
    assert!(name("keyspace 300").unwrap_err().contains("there is no keyspace"));
    create(&store.hashed().keyspaces, 300, 0);
    let orders = store.keyspace("keyspace 300").unwrap();
    store.put(b"key", b"of the default").unwrap();
    orders.put(b"key", b"of the orders").unwrap();
    let value = |item: Option<Item>| item.map(|item| item.value);
    assert_eq!(orders.get(b"key").map(value), Ok(Some(b"of the orders".to_vec())));
    assert_eq!(store.get(b"key").map(value), Ok(Some(b"of the default".to_vec())));
    assert_eq!(orders.multi_get(&[b"key", b"none"]).unwrap().iter().flatten().count(), 1);
    let writes = [
        Write::Delete { keyspace: KeyspaceRef::DEFAULT, key: b"key" },
        Write::Put { keyspace: orders.keyspace(), key: b"other", value: b"7", flags: 0, expiry: Expiry::NONE },
    ];
    store.batch(&writes).unwrap();
    assert_eq!((store.get(b"key"), orders.increment(b"other", 1)), (Ok(None), Ok(Some(8))));
    let keys = |keyspace| {
        let mut keys = Vec::new();
        let show = |item: crate::Scanned<'_>| {
            keys.push(item.key.to_vec());
            std::ops::ControlFlow::Continue(())
        };
        crate::scan(&store, keyspace, b"", show).map(|()| {
            keys.sort();
            keys
        })
    };
    assert_eq!(keys(KeyspaceRef::DEFAULT), Ok(vec![]));
    assert_eq!(keys(orders.keyspace()), Ok(vec![b"key".to_vec(), b"other".to_vec()]));
    let place = |keyspace| crate::locate(&store, keyspace, b"key").unwrap();
    assert_ne!(place(KeyspaceRef::DEFAULT).hash, place(orders.keyspace()).hash);
    store.hashed().keyspaces.apply(&KeyspaceEdit::Drop(orders.id()), 0).unwrap();
    let gone = Error::Keyspace(KeyspaceError::Gone);
    assert_eq!((orders.get(b"key"), orders.put(b"key", b"v")), (Err(gone.clone()), Err(gone.clone())));
    assert_eq!((store.batch(&writes), keys(orders.keyspace())), (Err(gone.clone()), Err(gone)));
}
