//! Answered changes are on flash, whenever the power fails, if images are written in place. The simulator tests the same for images that go to other
//! slots, and for whole stores; its drives promise no atomic writes.

use super::bench::{Bench, Images, new_flash};
use super::model_tests::put;
use crate::ordered::node_table::NodeId;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tapetum_base::log::Sync;
use tapetum_base::request::{Outcome, Request};
use tapetum_drive::{FaultyFlash, Opcode, SplitMix64};

/// The possible states of a key on flash: that of the last answer, and those submitted since. `None`: absent.
#[derive(Clone)]
struct MayBe {
    values: Vec<Option<Vec<u8>>>,
}

impl Default for MayBe {
    fn default() -> MayBe {
        MayBe { values: vec![None] }
    }
}

struct Run {
    bench: Bench,
    flash: FaultyFlash,
    keys: BTreeMap<Vec<u8>, MayBe>,
}

impl Run {
    fn check(&self, flash: &FaultyFlash) {
        let images = Images::read(&self.bench, flash);
        for (key, may_be) in &self.keys {
            let found = images.get(key);
            let is_right = may_be.values.contains(&found);
            let lengths: Vec<_> = may_be.values.iter().map(|value| value.as_ref().map(Vec::len)).collect();
            assert!(is_right, "{}: {:?} is none of {lengths:?}", key.escape_ascii(), found.map(|found| found.len()));
        }
    }
}

/// The value of a key: none, one that fits a node, or, seldom, one for an extension, in a slab or beyond.
fn value(random: &mut SplitMix64, byte: u8) -> Option<Vec<u8>> {
    let length = match random.below(16) {
        0..4 => return None,
        4 if random.below(6) == 0 => 60_000 + random.below(20_000),
        4 => 2000 + random.below(9000),
        _ => random.below(900),
    };
    Some(vec![byte; length as usize])
}

/// Puts and removes, each checked against a power failure at that moment that loses the whole cache of the flash.
#[test]
fn what_is_answered_is_durable_where_images_are_written_in_place() {
    let flash = new_flash(11).with_atomic_writes(4096);
    let bench = Bench::in_place(Arc::new(flash.clone()), 16, 50);
    let mut client = bench.client();
    let mut run = Run { bench, flash, keys: BTreeMap::new() };
    let mut random = SplitMix64::new(11);
    let mut started: HashMap<u64, (Vec<u8>, Option<Vec<u8>>)> = HashMap::new();
    let mut answered = 0;
    for step in 0..6000 {
        if started.len() < 20 {
            let key = format!("k{:03}", random.below(150)).into_bytes();
            // One operation at a time for each key, so that their order is known.
            if started.values().any(|(other, _)| *other == key) {
                client.step();
                continue;
            }
            let value = value(&mut random, step as u8);
            let token = client.start(match &value {
                Some(value) => put(&key, value),
                None => Request::Delete { key: &key, stamp: None },
            });
            run.keys.entry(key.clone()).or_default().values.push(value.clone());
            started.insert(token, (key, value));
        }
        client.step();
        let tokens: Vec<u64> = started.keys().copied().collect();
        for token in tokens {
            let Some((outcome, _)) = client.take_answer(token) else { continue };
            assert!(!matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
            let (key, value) = started.remove(&token).unwrap();
            run.keys.insert(key, MayBe { values: vec![value] });
            answered += 1;
        }
        if step % 40 == 0 {
            run.check(&run.flash.fork_durable(1));
        }
    }
    assert!(answered > 500 && run.bench.state.cache.table.count() > 10, "{answered} answers");
}

/// A crash in which writes in the cache or in flight are lost, kept or torn, by chance.
#[test]
fn a_crash_loses_nothing_where_images_are_written_in_place() {
    crash_in_place(|seed| new_flash(seed).with_atomic_writes(4096));
}

/// The case of the warning: the drive tears pages, and nodes are written in place.
#[test]
#[should_panic(expected = "is none of")]
fn images_in_place_are_lost_where_the_drive_tears_them() {
    crash_in_place(new_flash);
}

fn crash_in_place(new: impl Fn(u64) -> FaultyFlash) {
    for seed in 20..80 {
        let flash = new(seed);
        let bench = Bench::in_place(Arc::new(flash.clone()), 16, 40);
        let mut client = bench.client();
        let mut run = Run { bench, flash: flash.clone(), keys: BTreeMap::new() };
        let mut random = SplitMix64::new(seed);
        flash.crash_after(flash.events() + 200 + 37 * (seed - 20));
        let mut started: HashMap<u64, (Vec<u8>, Option<Vec<u8>>)> = HashMap::new();
        while !flash.crashed() {
            if started.len() < 12 {
                let key = format!("k{:03}", random.below(60)).into_bytes();
                if !started.values().any(|(other, _)| *other == key) {
                    let value = value(&mut random, seed as u8);
                    let token = client.start(match &value {
                        Some(value) => put(&key, value),
                        None => Request::Delete { key: &key, stamp: None },
                    });
                    run.keys.entry(key.clone()).or_default().values.push(value.clone());
                    started.insert(token, (key, value));
                }
            }
            client.step();
            let tokens: Vec<u64> = started.keys().copied().collect();
            for token in tokens {
                let Some((outcome, _)) = client.take_answer(token) else { continue };
                if !matches!(outcome, Outcome::Failed(_)) {
                    let (key, value) = started.remove(&token).unwrap();
                    run.keys.insert(key, MayBe { values: vec![value] });
                }
            }
        }
        run.check(&flash.reopen());
        (0..8).for_each(|other| run.check(&flash.reopen_otherwise(other).0));
    }
}

/// An update of a node is one write, in place and shadowed; no log is written.
#[test]
fn an_update_is_one_write() {
    for in_place in [false, true] {
        let flash = new_flash(12).with_atomic_writes(4096);
        let bench = match in_place {
            true => Bench::in_place(Arc::new(flash.clone()), 16, 50),
            false => Bench::with_slots(Arc::new(flash.clone()), 16, 50),
        };
        let mut client = bench.client();
        for number in 0..20 {
            assert!(matches!(client.run(put(format!("key{number}").as_bytes(), &[1; 900])).0, Outcome::Stored { .. }));
        }
        let homes = || (0..bench.state.cache.table.count()).map(|node| bench.state.cache.table.home(NodeId(node)));
        for number in 0..20 {
            let (before, homes_before) = (flash.submitted(Opcode::Write), homes().collect::<Vec<_>>());
            assert!(matches!(client.run(put(format!("key{number}").as_bytes(), &[2; 900])).0, Outcome::Stored { .. }));
            assert_eq!(flash.submitted(Opcode::Write) - before, 1);
            let moved = homes()
                .zip(homes_before)
                .filter(|(now, before)| now.map(|home| home.slot) != before.map(|home| home.slot));
            assert_eq!(moved.count(), usize::from(!in_place));
        }
    }
}

#[test]
fn a_failed_image_or_flush_ends_all_writes_and_nothing_is_answered() {
    for opcode in [Opcode::Write, Opcode::Flush] {
        let flash = new_flash(50);
        let bench = Bench::new(Arc::new(flash.clone()), 16, Sync::Always);
        let mut client = bench.client();
        assert!(matches!(client.run(put(b"before", b"1")).0, Outcome::Stored { .. }));
        flash.fail_nth(opcode, 1);
        assert!(matches!(client.run(put(b"key", b"2")).0, Outcome::Failed(crate::Error::Poisoned(_))));
        assert!(matches!(client.run(put(b"later", b"3")).0, Outcome::Failed(crate::Error::Poisoned(_))));
        assert!(matches!(client.run(Request::Get { key: b"before" }).0, Outcome::Value { .. }));
        assert!(matches!(client.run(Request::Get { key: b"key" }).0, Outcome::Failed(_)), "it is not durable");
    }
}
