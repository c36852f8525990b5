//! The row `checkpoint_of_anchors` of `docs/decisions/ordered-crash.md`, over a whole store.

use super::slabs::slot_class::SlotClass;
use super::store_bench::Bench;
use crate::ordered::slabs::group_table::GroupTable;
use std::collections::BTreeMap;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::log::Sync;
use tapetum_base::media::io::lock;
use tapetum_base::request::{Outcome, Request};
use tapetum_drive::{Purpose, SplitMix64};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Puts and deletions; values of nodes and of extensions.
fn change(bench: &mut Bench, model: &mut Model, seed: u64) {
    let (orders, mut random) = (bench.orders(), SplitMix64::new(seed));
    for _ in 0..150 {
        let key = format!("key {:03}", random.below(300)).into_bytes();
        if random.one_in(4) {
            let was_there = model.remove(&key).is_some();
            let deleted = bench.run(orders, Request::Delete { key: &key, stamp: None });
            assert_eq!(deleted, Some(if was_there { Outcome::Deleted } else { Outcome::Missing }));
            continue;
        }
        let value = vec![seed as u8; if random.one_in(10) { 3000 } else { 150 }];
        assert!(matches!(bench.put(orders, &key, &value), Some(Outcome::Stored { .. })));
        model.insert(key, value);
    }
}

fn assert_has(bench: &mut Bench, model: &Model) {
    let orders = bench.orders();
    for number in 0..300 {
        let key = format!("key {number:03}").into_bytes();
        assert_eq!(bench.get(orders, &key).as_ref(), model.get(&key), "{number}");
    }
    assert_eq!(crate::check(&bench.store).unwrap().problems, Vec::<String>::new());
    assert_eq!(bench.store.keyspace("orders").unwrap().item_count().unwrap(), model.len() as u64);
}

/// Bytes that the opening read, and those of groups of data nodes.
fn read_bytes(bench: &Bench) -> (u64, u64) {
    let shared = bench.store.hashed();
    let read_bytes = shared.drive.counters().purpose(Purpose::Recover).flash_to_local;
    let installer = lock(&shared.installer);
    let groups = installer.as_ref().unwrap().of::<GroupTable>().iter().filter(|group| group.class == SlotClass::Nodes);
    (read_bytes, groups.map(|group| u64::from(group.extents) * shared.geometry.extent_bytes).sum())
}

/// More than the checkpoints of these tests have.
const CHECKPOINT_BYTES: u64 = 32 << 10;

#[test]
fn checkpoint_of_anchors() {
    let mut bench = Bench::new(Sync::Always, 1);
    let mut model = Model::new();
    let (beside, _) = read_bytes(&bench);
    let is_quick = |bench: &Bench| {
        let (read_bytes, group_bytes) = read_bytes(bench);
        let is_quick = read_bytes <= beside + CHECKPOINT_BYTES;
        // An opening that writes images again may have made groups that it has not read.
        assert!(group_bytes > 2 * CHECKPOINT_BYTES && (is_quick || read_bytes >= beside + 2 * CHECKPOINT_BYTES));
        is_quick
    };
    // Each opening after a clean stop begins with the checkpoint, and goes on as any other.
    for round in 0..4 {
        change(&mut bench, &mut model, round);
        bench.store.close().unwrap();
        bench = bench.reopen();
        assert!(is_quick(&bench), "{round}");
        assert_has(&mut bench, &model);
    }
    // An opening ends it: what that wrote is not in it.
    change(&mut bench, &mut model, 9);
    bench = bench.reopen();
    assert!(!is_quick(&bench));
    assert_has(&mut bench, &model);
    // And so does one that wrote nothing.
    bench.store.close().unwrap();
    bench = bench.reopen().reopen();
    assert!(!is_quick(&bench));
    assert_has(&mut bench, &model);
}

#[test]
fn a_crash_while_a_checkpoint_of_anchors_is_written_leaves_one_or_none() {
    for events in 1..30 {
        let mut bench = Bench::new(Sync::EverySecond, events);
        let mut model = Model::new();
        change(&mut bench, &mut model, events);
        // All of it is durable by then.
        bench.store.close_with(|| false).unwrap();
        bench = bench.reopen();
        assert_has(&mut bench, &model);
        let flash = bench.flash.clone();
        flash.crash_after(events);
        let closed = bench.store.close_with(|| flash.crashed());
        assert!(closed.is_ok() || flash.crashed());
        bench = bench.reopen();
        assert_has(&mut bench, &model);
        change(&mut bench, &mut model, events + 100);
        assert_has(&mut bench, &model);
    }
}

#[test]
fn a_checkpoint_of_anchors_that_is_damaged_is_passed_over() {
    let mut bench = Bench::new(Sync::Always, 2);
    let mut model = Model::new();
    let (beside, _) = read_bytes(&bench);
    change(&mut bench, &mut model, 2);
    bench.store.close().unwrap();
    let root = lock(&bench.store.hashed().installer).as_ref().unwrap().roots.get(KeyspaceKind::Ordered).to_vec();
    let first = u32::from_le_bytes(root[28..32].try_into().unwrap());
    let flash = bench.store.hashed().geometry.extent_offset(first);
    bench.flash.flip(flash + 100, 1);
    bench = bench.reopen();
    let (read_bytes, group_bytes) = read_bytes(&bench);
    assert!(read_bytes >= beside + group_bytes);
    assert_has(&mut bench, &model);
}
