//! Space after churn: the flash that ordered keyspaces take after writing, replacing and deleting many times their contents.

use super::store_bench::Bench;
use crate::ordered::slabs::group_table::GroupTable;
use crate::ordered::slabs::slot_class::SlotClass;
use crate::tools::inspect::inspect;
use std::collections::BTreeMap;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::log::Sync;
use tapetum_base::media::io::lock;
use tapetum_base::request::{Outcome, Request};
use tapetum_drive::SplitMix64;

/// Large enough that the slots kept ready are few compared with those in use.
const FLASH_BYTES: u64 = 32 << 20;
const TIMES: u64 = 10;
/// The limit of the space taken, in percent of the bytes of live keys and values.
const SPACE_PERCENT_MAX: u64 = 200;
/// Steps after which all requested and due work has been done.
const SETTLES: u32 = 3000;

struct Churn {
    bench: Bench,
    orders: KeyspaceRef,
    random: SplitMix64,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    data_bytes: u64,
    written_bytes: u64,
}

/// Keys in the order of a hash, so that neighbouring keys come at different times.
fn key_of(number: u64) -> Vec<u8> {
    format!("key {:08}", number.wrapping_mul(0x9e37_79b9) % 100_000_000).into_bytes()
}

impl Churn {
    fn new() -> Churn {
        let bench = Bench::of_bytes(FLASH_BYTES, Sync::No, 1);
        let orders = bench.orders();
        let random = SplitMix64::new(7);
        Churn { bench, orders, random, model: BTreeMap::new(), data_bytes: 0, written_bytes: 0 }
    }

    fn put(&mut self, key: Vec<u8>, value_bytes: u64) {
        let value = self.random.bytes(value_bytes as usize);
        let stored = self.bench.put(self.orders, &key, &value);
        assert!(matches!(stored, Some(Outcome::Stored { .. })), "{stored:?}");
        let (key_bytes, bytes) = (key.len() as u64, (key.len() + value.len()) as u64);
        self.written_bytes += bytes;
        self.data_bytes += bytes;
        let before = self.model.insert(key, value);
        self.data_bytes -= before.map_or(0, |before| key_bytes + before.len() as u64);
    }

    fn delete(&mut self, key: &[u8]) {
        let deleted = self.bench.run(self.orders, Request::Delete { key, stamp: None });
        assert!(matches!(deleted, Some(Outcome::Deleted | Outcome::Missing)), "{deleted:?}");
        let before = self.model.remove(key);
        self.data_bytes -= before.map_or(0, |before| (key.len() + before.len()) as u64);
    }

    fn settle(&mut self) {
        for _ in 0..SETTLES {
            self.bench.step();
        }
    }

    fn check_items(&mut self) {
        let Churn { bench, orders, model, .. } = self;
        for (key, value) in model {
            assert_eq!(bench.get(*orders, key).as_ref(), Some(&*value));
        }
    }

    fn nodes(&self) -> u64 {
        inspect(&self.bench.store).unwrap().trees[0].nodes
    }

    /// Bytes of all groups of the keyspace, in percent of its keys and values.
    fn space_percent(&self) -> u64 {
        let base = self.bench.store.base();
        let installer = lock(&base.installer);
        let extents: u64 =
            installer.as_ref().unwrap().of::<GroupTable>().iter().map(|group| u64::from(group.extents)).sum();
        extents * base.geometry.extent_bytes * 100 / self.data_bytes
    }

    /// A summary of the space's use.
    fn shape(&self) -> String {
        let seen = inspect(&self.bench.store).unwrap();
        let nodes = seen.groups.iter().find(|groups| groups.class == u64::from(SlotClass::Nodes.code())).unwrap();
        let fill = self.data_bytes * 100 / (seen.trees[0].nodes * 4096);
        format!("{} bytes, {} nodes, {fill} % full; {nodes:?}", self.data_bytes, seen.trees[0].nodes)
    }
}

/// The sizes of values, and the distribution of changed keys.
struct ChurnLoad {
    keys: u64,
    value_bytes: (u64, u64),
    /// The first keys are changed most often.
    is_skewed: bool,
}

fn churn(load: &ChurnLoad) -> Churn {
    let mut churn = Churn::new();
    let (least, most) = load.value_bytes;
    // Half of the writes are deletes, so half of all keys exist.
    let end = TIMES * load.keys / 2 * (least + most) / 2;
    while churn.written_bytes < end {
        let mut number = churn.random.below(load.keys);
        if load.is_skewed {
            number = number * churn.random.below(load.keys) / load.keys;
        }
        let key = key_of(number);
        match churn.random.one_in(2) {
            true => churn.delete(&key),
            false => {
                let value_bytes = least + churn.random.below(most - least + 1);
                churn.put(key, value_bytes);
            }
        }
    }
    churn.settle();
    churn
}

#[test]
fn churn_of_ten_times_the_data_deletes_included_keeps_space_within_twice_of_it() {
    let loads = [
        ChurnLoad { keys: 16000, value_bytes: (50, 850), is_skewed: false },
        ChurnLoad { keys: 16000, value_bytes: (50, 850), is_skewed: true },
        ChurnLoad { keys: 8000, value_bytes: (1008, 1008), is_skewed: false },
    ];
    for load in loads {
        let mut churn = churn(&load);
        let percent = churn.space_percent();
        assert!(percent <= SPACE_PERCENT_MAX, "{percent} %: {}", churn.shape());
        churn.check_items();
    }
}

#[test]
fn the_nodes_of_keys_that_were_deleted_become_few_full_ones() {
    for value_bytes in [100, 1008] {
        let mut churn = Churn::new();
        let keys = 2_000_000 / (value_bytes + 12) / if value_bytes < 1000 { 4 } else { 1 };
        (0..keys).for_each(|number| churn.put(key_of(number), value_bytes));
        churn.settle();
        let before = churn.nodes();
        // One key in ten stays.
        (0..keys).filter(|number| number % 10 != 0).for_each(|number| churn.delete(&key_of(number)));
        churn.settle();
        let after = churn.nodes();
        assert!(after * 5 <= before, "of {before} nodes {after} are left: {}", churn.shape());
        churn.check_items();
    }
}
