//! Requirements of the store on its engines, tested on both: on a hashed and on an ordered keyspace in one store.
//!
//! A failure of the power at any other moment is the simulator's to judge (`crates/sim`).

mod session_tests;
mod through_tests;

use crate::hashed::collect::victim::tests::{drive_of, small_options};
use crate::ordered::store_bench::Bench;
use crate::tools::repair;
use crate::{
    Condition, Error, Expiry, KeyspaceError, KeyspaceKind, KeyspaceRef, KeyspaceWish, Outcome, Request, Store, Sync,
    Write, scan,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use tapetum_drive::{Drive, Env, FaultyFlash, Opcode, SplitMix64};

const KINDS: [KeyspaceKind; 2] = [KeyspaceKind::Hashed, KeyspaceKind::Ordered];
/// A kind without an engine.
const OTHER: KeyspaceKind = KeyspaceKind::Other(250);
/// Polls that the write of an image takes: many more than it takes to fill the log.
const STALLED_POLLS: u32 = 200_000;
/// Steps after which a waiting operation counts as waiting for ever.
const STEPS_MAX: u32 = 100_000;
/// Steps without an answer after which a write counts as waiting.
const WAITING_STEPS: u32 = 2000;

/// The keyspaces, in the order of [`KINDS`].
fn both(bench: &Bench) -> [KeyspaceRef; 2] {
    [KeyspaceRef::DEFAULT, bench.orders()]
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
    Request::Put { key, value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always }
}

fn write<'a>(keyspace: KeyspaceRef, key: &'a [u8], value: &'a [u8]) -> Write<'a> {
    Write::Put { keyspace, key, value, flags: 0, expiry: Expiry::NONE }
}

fn stored(outcome: Option<Outcome>) -> bool {
    matches!(outcome, Some(Outcome::Stored { .. }))
}

fn gone() -> Option<Outcome> {
    Some(Outcome::Failed(Error::Keyspace(KeyspaceError::Gone)))
}

fn step_until(bench: &mut Bench, mut is_so: impl FnMut(&Bench) -> bool) {
    assert!((0..STEPS_MAX).any(|_| bench.step().is_some() && is_so(bench)), "it waits for ever");
}

#[test]
fn records_of_two_engines_lie_in_one_log_and_come_back_to_their_own() {
    let mut bench = Bench::new(Sync::Always, 1);
    let [hashed, ordered] = both(&bench);
    for number in 0..50 {
        let (key, values) = (format!("key {}", number % 25), ["hashed", "ordered"].map(|of| format!("{of} {number}")));
        let [in_hashed, in_ordered] = values.each_ref().map(|value| value.as_bytes());
        let writes = [write(hashed, key.as_bytes(), in_hashed), write(ordered, key.as_bytes(), in_ordered)];
        assert_eq!(bench.batch(&writes), Some(Outcome::Done));
    }
    assert_eq!(bench.batch(&[Write::Delete { keyspace: ordered, key: b"key 7" }]), Some(Outcome::Done));
    assert_eq!(bench.store.stats().flushes, 0, "all of it is in the log");
    for _ in 0..2 {
        bench = bench.reopen();
        let [hashed, ordered] = both(&bench);
        for number in 25..50 {
            let key = format!("key {}", number % 25);
            assert_eq!(bench.get(hashed, key.as_bytes()), Some(format!("hashed {number}").into_bytes()));
            let expected = (number != 32).then(|| format!("ordered {number}").into_bytes());
            assert_eq!(bench.get(ordered, key.as_bytes()), expected);
        }
        let stats = bench.store.stats();
        assert_eq!((stats.buffer_entries, stats.items), (25, 49), "no table of the hashed engine has an ordered key");
    }
}

/// Puts hashed values until one has to wait: how many were taken.
fn fill_log(bench: &mut Bench, random: &mut SplitMix64) -> u64 {
    for number in 0..1000 {
        let (key, value) = (format!("key {number}"), random.bytes(1000));
        bench.session.submit(1, put(key.as_bytes(), &value)).unwrap();
        if !(0..WAITING_STEPS).any(|_| bench.step().unwrap().is_some()) {
            return number;
        }
    }
    panic!("the zone that the ordered engine needs was given to another buffer");
}

#[test]
fn a_zone_is_kept_while_an_engine_needs_it_and_writers_go_on_when_it_does_not() {
    let mut bench = Bench::new(Sync::Always, 2);
    let (base, orders) = (bench.store.base().clone(), bench.orders());
    assert!(stored(bench.put(orders, b"old", b"in a slot")));
    assert_eq!(bench.batch(&[write(orders, b"old", b"in the log")]), Some(Outcome::Done));
    bench.flash.stall_nth_write(1, STALLED_POLLS);
    base.engines.checkpoint_others_through(KeyspaceKind::Hashed, base.log.stamp_last());
    // Its image is written when that is asked for.
    step_until(&mut bench, |bench| bench.flash.has_stalled());
    let mut random = SplitMix64::new(1);
    let taken = fill_log(&mut bench, &mut random);
    assert!(bench.flash.has_stalled() && base.engines.others_need(KeyspaceKind::Hashed, base.log.sealed().0));
    assert!(taken > 60, "the next buffer was open to writers: {taken}");
    assert!(base.log.poisoned().is_ok() && bench.store.stats().flushes == 0 && !base.rotate());
    let paced = bench.session.submit_batch(2, &[write(orders, b"new", b"value")]);
    assert!(paced.is_err(), "batches of the engine that needs the zone are paced, too");
    assert!(matches!(bench.answer(), Some(Outcome::Stored { .. })), "the put that waited is answered");
    assert!(!bench.flash.has_stalled());
    let mut last = Vec::new();
    for number in 0..300 {
        last = random.bytes(1000);
        assert!(stored(bench.put(KeyspaceRef::DEFAULT, format!("key {number}").as_bytes(), &last)));
    }
    assert!(bench.store.stats().flushes > 2);
    drop(base);
    bench = bench.reopen();
    let [hashed, ordered] = both(&bench);
    assert_eq!(bench.get(ordered, b"old"), Some(b"in the log".to_vec()));
    assert_eq!(bench.get(hashed, b"key 299"), Some(last));
}

fn drive(flash: &FaultyFlash) -> Drive {
    drive_of(Arc::new(flash.clone()), &small_options(), Env::simulated(1).0)
}

#[test]
fn a_keyspace_of_a_kind_without_an_engine_is_refused_before_anything_is_written() {
    let mut bench = Bench::new(Sync::Always, 3);
    let wish = || KeyspaceWish::Create { name: b"others".to_vec(), kind: OTHER, options: Vec::new() };
    let no_engine = Error::Keyspace(KeyspaceError::NoEngine { name: "others".into(), kind: OTHER });
    assert_eq!(bench.store.begin_keyspace_change(wish()).err().as_ref(), Some(&no_engine));
    assert!(no_engine.to_string().contains("\"others\" is of a kind (kind 250)"), "{no_engine}");
    // As another version has it, which has that engine.
    let change = bench.store.base().keyspace_changes.ask(wish()).unwrap();
    step_until(&mut bench, |_| change.result().is_some());
    let others = bench.store.keyspace("others").unwrap().keyspace();
    let other_kind = Error::Keyspace(KeyspaceError::OtherKind { kind: OTHER });
    let refused = Some(Outcome::Failed(other_kind.clone()));
    assert_eq!(bench.run(others, Request::Get { key: b"key" }), refused);
    assert_eq!(bench.batch(&[write(KeyspaceRef::DEFAULT, b"key", b""), write(others, b"key", b"")]), refused);
    assert_eq!(bench.get(KeyspaceRef::DEFAULT, b"key"), None);
    assert_eq!(scan(&bench.store, others, b"", |_| ControlFlow::Continue(())), Err(other_kind));
    let flash = bench.flash.clone();
    drop(bench);
    let before = flash.submitted(Opcode::Write);
    assert_eq!(Store::open_with(&drive(&flash), &small_options(), || false).err().as_ref(), Some(&no_engine));
    assert_eq!(Store::open_read_only_on(&drive(&flash), &small_options()).err().as_ref(), Some(&no_engine));
    assert_eq!(repair::look(&drive(&flash)).err(), Some(no_engine));
    assert_eq!(flash.submitted(Opcode::Write), before);
}

#[test]
fn a_deletion_of_everything_reaches_the_engine_that_has_the_keyspace_alone() {
    for emptied in 0..2 {
        let mut bench = Bench::new(Sync::Always, 6);
        let keyspaces = both(&bench);
        assert!(keyspaces.iter().all(|keyspace| stored(bench.put(*keyspace, b"old", b"value"))));
        assert_eq!(bench.run(keyspaces[emptied], Request::DeleteAll { at: 0 }), Some(Outcome::Done));
        assert!(keyspaces.iter().all(|keyspace| stored(bench.put(*keyspace, b"new", b"value"))));
        for _ in 0..3 {
            for (number, keyspace) in both(&bench).into_iter().enumerate() {
                assert_eq!(bench.get(keyspace, b"old").is_none(), number == emptied, "{:?}", KINDS[emptied]);
                assert!(bench.get(keyspace, b"new").is_some());
            }
            bench = bench.reopen();
        }
    }
}

#[test]
fn the_id_of_a_dropped_keyspace_is_free_when_no_engine_holds_anything_of_it() {
    for kind in KINDS {
        let mut bench = Bench::new(Sync::Always, 7);
        let dropped = bench.store.create_keyspace_of("dropped", kind).unwrap().keyspace();
        assert!(stored(bench.put(dropped, b"key", b"value")));
        let change = bench.store.begin_keyspace_change(KeyspaceWish::Drop { name: "dropped".into() }).unwrap();
        step_until(&mut bench, |_| change.result().is_some());
        assert_eq!(change.result(), Some(Ok(())));
        assert_eq!(bench.run(dropped, Request::Get { key: b"key" }), gone());
        assert_eq!(bench.run(dropped, put(b"key", b"value")), gone());
        let is_there = |bench: &Bench| bench.store.keyspaces().iter().any(|keyspace| keyspace.id == dropped.id());
        let is_held = |bench: &Bench| bench.store.base().engines.hold(dropped.id());
        assert!(is_there(&bench) && is_held(&bench));
        let mut was_held = true;
        step_until(&mut bench, |bench| {
            let is_over = !is_there(bench);
            assert!(!is_over || !was_held, "{kind:?}: its engine holds what it had");
            was_held = is_held(bench);
            is_over
        });
        let again = bench.store.create_keyspace_of("again", kind).unwrap().keyspace();
        assert_eq!((again.id(), bench.get(again, b"key")), (dropped.id(), None), "the id was given again");
        let mut bench = bench.reopen();
        let again = bench.store.keyspace("again").unwrap().keyspace();
        assert_eq!((again.id(), bench.get(again, b"key")), (dropped.id(), None));
    }
}
