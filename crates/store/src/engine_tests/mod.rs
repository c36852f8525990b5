//! Two engines in one store: that of hashed keyspaces, and a toy that stands on the base alone.

mod borders;
mod session_tests;
pub mod toy_engine;
mod toy_session;

use crate::hashed::collect::victim::tests::{SMALL_BYTES, drive_of, small_options};
use crate::tools::repair;
use crate::{
    Condition, Error, KeyspaceError, KeyspaceRef, KeyspaceState, KeyspaceWish, Outcome, Request, Session, Store, Write,
    check, scan,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use tapetum_base::base::Base;
use tapetum_base::engine::{Engine, EngineMaker};
use tapetum_base::media::io::lock;
use tapetum_drive::{Drive, Env, FaultyFlash, Opcode, SplitMix64};
use tapetum_kernels::expiry::Expiry;
use toy_engine::{TOY, ToyEngine};

/// Steps after which whatever waits would wait for ever.
const PATIENCE: u32 = 20_000;

fn drive(flash: &FaultyFlash) -> Drive {
    drive_of(Arc::new(flash.clone()), &small_options(), Env::simulated(1).0)
}

fn new_flash(seed: u64) -> FaultyFlash {
    let flash = FaultyFlash::new(SMALL_BYTES, seed);
    Store::create_on(&drive(&flash), &small_options()).unwrap();
    flash
}

fn open(flash: &FaultyFlash) -> Result<(Store, Arc<ToyEngine>), Error> {
    let made = Mutex::new(None);
    let make = |base: &Arc<Base>| -> Arc<dyn Engine> { lock(&made).insert(ToyEngine::new(base)).clone() };
    let crashed = || flash.crashed();
    let store =
        Store::open_with_engines(&drive(flash), &small_options(), &[EngineMaker { kind: TOY, make: &make }], crashed)?;
    let toy = lock(&made).take().expect("it was made");
    Ok((store, toy))
}

struct Bench {
    flash: FaultyFlash,
    store: Store,
    session: Session,
    toy: Arc<ToyEngine>,
    toys: KeyspaceRef,
}

impl Bench {
    /// A new store with a keyspace of toys.
    fn new(seed: u64) -> Bench {
        let flash = new_flash(seed);
        let (store, _) = open(&flash).unwrap();
        create(&store, "toys").unwrap();
        drop(store);
        Bench::open(flash)
    }

    fn open(flash: FaultyFlash) -> Bench {
        let (store, toy) = open(&flash).unwrap();
        let (session, toys) = (store.session().unwrap(), store.keyspace("toys").unwrap().keyspace());
        Bench { flash, store, session, toy, toys }
    }

    /// What a crash leaves, opened again.
    fn crash(self) -> Bench {
        self.flash.crash();
        let flash = self.flash.reopen();
        drop(self);
        Bench::open(flash)
    }

    /// A step of everything; whether something was answered.
    fn step(&mut self) -> Option<Outcome> {
        self.store.maintain();
        let base = &self.store.hashed().base;
        base.log.advance(true, base.drive.env().now_us());
        let mut replies = Vec::new();
        self.session.poll(&mut replies);
        replies.pop().map(|reply| reply.outcome)
    }

    /// Runs a request of a hashed keyspace; `None` if it was not answered in so many steps.
    fn run_within(&mut self, steps: u32, keyspace: KeyspaceRef, request: Request<'_>) -> Option<Outcome> {
        self.session.submit_to(keyspace, 1, request).unwrap();
        (0..steps).find_map(|_| self.step())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Option<Outcome> {
        let request = Request::Put { key, value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
        self.run_within(PATIENCE, KeyspaceRef::DEFAULT, request)
    }

    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        match self.run_within(PATIENCE, KeyspaceRef::DEFAULT, Request::Get { key }) {
            Some(Outcome::Value { value, .. }) => Some(self.session.bytes(value).to_vec()),
            Some(Outcome::Missing) => None,
            other => panic!("{other:?}"),
        }
    }

    /// Writes a toy, and waits until that is durable; `false` where it never is.
    fn write_toy(&mut self, key: &[u8], value: Option<&[u8]>) -> bool {
        let mut stamp = None;
        for _ in 0..PATIENCE {
            stamp = match stamp {
                Some(stamp) => Some(stamp),
                None => match self.toy.write(self.toys, key, value) {
                    Ok(stamp) => stamp,
                    Err(_) => return false,
                },
            };
            let base = &self.store.hashed().base;
            if stamp.is_some_and(|stamp| base.log.may_acknowledge(stamp)) {
                return true;
            }
            self.step();
        }
        false
    }
}

fn create(store: &Store, name: &str) -> Result<(), Error> {
    let wish = KeyspaceWish::Create { name: name.into(), kind: TOY, options: Vec::new() };
    let change = store.begin_keyspace_change(wish)?;
    (0..PATIENCE)
        .find_map(|_| {
            store.maintain();
            change.result()
        })
        .expect("maintenance makes it")
}

#[test]
fn records_of_two_engines_lie_in_one_log_and_come_back_to_their_own() {
    let mut bench = Bench::new(1);
    for number in 0..50 {
        let (key, value) = (format!("key {}", number % 25), format!("value {number}"));
        assert!(matches!(bench.put(key.as_bytes(), value.as_bytes()), Some(Outcome::Stored { .. })));
        assert!(bench.write_toy(key.as_bytes(), Some(format!("toy {number}").as_bytes())));
    }
    assert!(bench.write_toy(b"key 7", None));
    assert_eq!(bench.store.stats().flushes, 0, "all of it is in the log");
    for _ in 0..2 {
        bench = bench.crash();
        for number in 25..50 {
            let key = format!("key {}", number % 25);
            assert_eq!(bench.get(key.as_bytes()), Some(format!("value {number}").into_bytes()));
            let toy = (number != 32).then(|| format!("toy {number}").into_bytes());
            assert_eq!(bench.toy.get(bench.toys, key.as_bytes()), toy);
        }
        let stats = bench.store.stats();
        assert_eq!((stats.buffer_entries, stats.items), (25, 49), "no table of the hashed engine has a toy");
    }
}

#[test]
fn a_zone_is_kept_while_an_engine_needs_it_and_writers_go_on_when_it_has_made_a_checkpoint() {
    let mut bench = Bench::new(2);
    bench.toy.is_stubborn.store(true, Ordering::SeqCst);
    assert!(bench.write_toy(b"old", Some(b"toy")));
    let mut random = SplitMix64::new(1);
    let mut value = vec![0; 1000];
    let mut number = 0;
    // Until nothing goes any more.
    loop {
        random.fill(&mut value);
        let (key, request_value) = (format!("key {number}"), value.clone());
        let (key, value) = (key.as_bytes(), &request_value[..]);
        let request = Request::Put { key, value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
        if bench.run_within(PATIENCE, KeyspaceRef::DEFAULT, request).is_none() {
            break;
        }
        number += 1;
        assert!(number < 1000, "the zone that the toy needs was given to another buffer");
    }
    let base = bench.store.hashed().base.clone();
    assert!(number > 60, "the next buffer was open to writers: {number}");
    assert!(base.log.poisoned().is_ok() && bench.store.stats().flushes == 0 && bench.toy.checkpoints() == 0);
    assert!(!base.rotate());
    assert_eq!(bench.toy.write(bench.toys, b"new", Some(b"toy")), Ok(None), "toys are paced, too");
    bench.toy.is_stubborn.store(false, Ordering::SeqCst);
    assert!((0..PATIENCE).any(|_| bench.step().is_some()), "the put that waited is answered");
    for number in 0..500 {
        random.fill(&mut value);
        assert!(bench.put(format!("key {number}").as_bytes(), &value).is_some());
    }
    let checkpoints = bench.toy.checkpoints();
    assert!(bench.store.stats().flushes > 2 && checkpoints > 0);
    assert!(checkpoints < bench.store.stats().flushes, "it is asked only where it needs something");
    bench = bench.crash();
    assert_eq!(bench.toy.get(bench.toys, b"old"), Some(b"toy".to_vec()));
    assert_eq!(bench.get(b"key 499"), Some(value));
}

/// The number that a value begins with; 0 where there is none.
fn number_of(value: Option<Vec<u8>>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(*value.first_chunk().unwrap()))
}

/// Both engines written at random until a crash; then each acknowledged write is there, or one that came after it.
fn crash_after(commands: u64) -> u64 {
    let mut bench = Bench::new(commands);
    let mut random = SplitMix64::new(commands);
    let mut acknowledged: [BTreeMap<Vec<u8>, u64>; 2] = Default::default();
    let mut value = vec![0; 900];
    bench.flash.crash_after(commands);
    for number in 1..=1200u64 {
        random.fill(&mut value);
        value[..8].copy_from_slice(&number.to_le_bytes());
        let key = format!("key {}", random.next_u64() % 40).into_bytes();
        let is_toy = random.next_u64().is_multiple_of(3);
        let done = match is_toy {
            true => bench.write_toy(&key, Some(&value[..100])),
            false => {
                let request = Request::Put {
                    key: &key,
                    value: &value,
                    flags: 0,
                    expiry: Expiry::NONE,
                    condition: Condition::Always,
                };
                bench.session.submit(1, request).unwrap();
                loop {
                    match bench.step() {
                        Some(Outcome::Stored { .. }) => break true,
                        None if !bench.flash.crashed() => {}
                        _ => break false,
                    }
                }
            }
        };
        if bench.flash.crashed() {
            break;
        }
        assert!(done);
        acknowledged[usize::from(is_toy)].insert(key, number);
    }
    let checkpoints = bench.toy.checkpoints();
    bench = bench.crash();
    assert_eq!(check(&bench.store).unwrap().problems, Vec::<String>::new());
    for (key, number) in &acknowledged[0] {
        assert!(number_of(bench.get(key)) >= *number, "after {commands} commands");
    }
    for (key, number) in &acknowledged[1] {
        assert!(number_of(bench.toy.get(bench.toys, key)) >= *number, "after {commands} commands");
    }
    checkpoints
}

#[test]
fn what_was_acknowledged_of_either_engine_is_there_after_a_crash_anywhere() {
    let checkpoints: u64 = (1..60).map(|number| crash_after(number * 41)).sum();
    assert!(checkpoints > 50, "crashes came before and after checkpoints: {checkpoints}");
}

/// Batches across both engines until a crash; then the last one is whole, whether it was acknowledged or not. How many were.
fn batches_until_a_crash_after(commands: u64) -> u64 {
    const KEYS: u64 = 20;
    let key = |number: u64| format!("key {}", number % KEYS).into_bytes();
    let mut bench = Bench::new(commands);
    bench.flash.crash_after(commands);
    let (mut acknowledged, mut value) = (0, vec![7; 700]);
    'batches: while !bench.flash.crashed() {
        let number: u64 = acknowledged + 1;
        value[..8].copy_from_slice(&number.to_le_bytes());
        let keys = [number, number + 1, number + 2].map(key);
        let write = |(keyspace, key)| Write::Put { keyspace, key, value: &value, flags: 0, expiry: Expiry::NONE };
        let of = |keyspace| keys.iter().map(move |key| (keyspace, &key[..]));
        let writes: Vec<Write<'_>> = of(bench.toys).chain(of(KeyspaceRef::DEFAULT)).map(write).collect();
        let mut is_submitted = false;
        loop {
            is_submitted = is_submitted || bench.session.submit_batch(1, &writes).is_ok();
            match bench.step() {
                Some(Outcome::Done) => break,
                None if !bench.flash.crashed() => {}
                _ => break 'batches,
            }
        }
        acknowledged = number;
    }
    bench = bench.crash();
    let numbers: Vec<u64> = (0..KEYS).map(|number| number_of(bench.get(&key(number)))).collect();
    let toys: Vec<u64> = (0..KEYS).map(|number| number_of(bench.toy.get(bench.toys, &key(number)))).collect();
    assert_eq!(numbers, toys, "after {commands} commands");
    let last = numbers.iter().copied().max().unwrap_or(0);
    assert!(last == acknowledged || last == acknowledged + 1, "{last} of {acknowledged} after {commands} commands");
    let of_last = [last, last + 1, last + 2].map(|number| numbers[(number % KEYS) as usize]);
    assert_eq!(of_last, [last; 3], "after {commands} commands");
    acknowledged
}

#[test]
fn no_crash_parts_a_batch_across_two_engines() {
    let acknowledged: u64 = (1..60).map(|number| batches_until_a_crash_after(number * 23)).sum();
    assert!(acknowledged > 1000, "{acknowledged}");
}

#[test]
fn a_store_with_keyspaces_of_a_kind_without_an_engine_is_refused_before_anything_is_written() {
    let bench = Bench::new(3);
    let flash = bench.flash.clone();
    drop(bench);
    let writes = || flash.submitted(Opcode::Write);
    let before = writes();
    let refused = Store::open_with(&drive(&flash), &small_options(), || false).err().unwrap();
    assert_eq!(refused, Error::Keyspace(KeyspaceError::NoEngine { name: "toys".into(), kind: TOY }));
    assert!(refused.to_string().contains("\"toys\" is of a kind (kind 250)"), "{refused}");
    assert_eq!(Store::open_read_only_on(&drive(&flash), &small_options()).err(), Some(refused.clone()));
    assert_eq!(repair::look(&drive(&flash)).err(), Some(refused));
    assert_eq!(writes(), before);
    open(&flash).unwrap();
    let flash = new_flash(4);
    let store = Store::open_with(&drive(&flash), &small_options(), || false).unwrap();
    let refused = create(&store, "toys").unwrap_err();
    assert_eq!(refused, Error::Keyspace(KeyspaceError::NoEngine { name: "toys".into(), kind: TOY }));
}

#[test]
fn what_a_session_wrote_comes_back_to_the_engine_of_its_keyspace_and_a_batch_is_whole() {
    let mut bench = Bench::new(5);
    let put = |value| Request::Put { key: b"key", value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
    assert!(matches!(bench.run_within(PATIENCE, bench.toys, put(b"toy")), Some(Outcome::Stored { .. })));
    assert!(matches!(bench.put(b"key", b"value"), Some(Outcome::Stored { .. })));
    let write = |keyspace| Write::Put { keyspace, key: b"both", value: b"batch", flags: 0, expiry: Expiry::NONE };
    bench.session.submit_batch(1, &[write(bench.toys), write(KeyspaceRef::DEFAULT)]).unwrap();
    assert!((0..PATIENCE).any(|_| bench.step() == Some(Outcome::Done)));
    let scanned = scan(&bench.store, bench.toys, b"", |_| ControlFlow::Continue(()));
    assert_eq!(scanned, Err(Error::Keyspace(KeyspaceError::OtherKind { kind: TOY })));
    for _ in 0..2 {
        assert_eq!(bench.toy.get(bench.toys, b"key"), Some(b"toy".to_vec()));
        assert_eq!(bench.toy.get(bench.toys, b"both"), Some(b"batch".to_vec()));
        assert_eq!(
            [b"key".as_slice(), b"both"].map(|key| bench.get(key)),
            [b"value", b"batch"].map(|value: &[u8; 5]| Some(value.to_vec()))
        );
        bench = bench.crash();
    }
}

#[test]
fn a_deletion_of_everything_reaches_whatever_engine_has_the_keyspace() {
    let mut bench = Bench::new(6);
    assert!(bench.write_toy(b"old", Some(b"toy")));
    assert!(bench.put(b"old", b"value").is_some());
    let base = bench.store.hashed().base.clone();
    base.mark_deletion(bench.toys, 0).unwrap().unwrap();
    drop(base);
    assert!(bench.write_toy(b"new", Some(b"toy")));
    for _ in 0..2 {
        assert_eq!(bench.toy.get(bench.toys, b"old"), None);
        assert!(bench.toy.get(bench.toys, b"new").is_some() && bench.get(b"old").is_some());
        bench = bench.crash();
    }
}

#[test]
fn the_id_of_a_dropped_keyspace_is_free_when_no_engine_holds_anything_of_it() {
    let mut bench = Bench::new(7);
    assert!(bench.write_toy(b"key", Some(b"toy")));
    bench.toy.is_stubborn.store(true, Ordering::SeqCst);
    let change = bench.store.begin_keyspace_change(KeyspaceWish::Drop { name: "toys".into() }).unwrap();
    while change.result().is_none() {
        bench.step();
    }
    assert_eq!(change.result(), Some(Ok(())));
    assert_eq!(bench.toy.get(bench.toys, b"key"), None);
    assert!(bench.toy.write(bench.toys, b"key", Some(b"toy")).is_err());
    let states = |bench: &Bench| bench.store.keyspaces().iter().map(|keyspace| keyspace.state).collect::<Vec<_>>();
    (0..PATIENCE).for_each(|_| drop(bench.step()));
    assert_eq!(states(&bench), [KeyspaceState::Live, KeyspaceState::Dropping], "the toy holds what it had");
    bench.toy.is_stubborn.store(false, Ordering::SeqCst);
    assert!((0..PATIENCE).any(|_| {
        bench.step();
        states(&bench) == [KeyspaceState::Live]
    }));
    create(&bench.store, "toys").unwrap();
    let flash = bench.flash.clone();
    drop(bench);
    let bench = Bench::open(flash);
    assert_eq!((bench.toys.id().0, bench.toy.get(bench.toys, b"key")), (1, None), "the id was given again");
}
