//! Backups of stores of both engines in memory, restored onto other drives.

use super::*;
use crate::api::store::Store;
use crate::folder::Folder;
use crate::hashed::catalog::Catalog;
use crate::hashed::collect::victim::tests::store_at_rest;
use crate::{FreezeOptions, KeyspaceKind, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tapetum_base::options::StoreOptions;
use tapetum_drive::{Drive, Env, LocalMemory, MemoryFlash, programs};
use tapetum_kernels::expiry::Expiry;

const CAPACITY_BYTES: u64 = 32 << 20;

struct Bench {
    folder: Folder,
    store: Store,
    depot: Arc<dyn Depot>,
}

type Items = BTreeMap<(String, Vec<u8>), Vec<u8>>;

fn options() -> StoreOptions {
    StoreOptions { segment_bytes: 256 << 10, partition_bits: 2, ..StoreOptions::new(CAPACITY_BYTES, 32 << 20) }
}

fn blank_drive() -> Drive {
    let local = LocalMemory::new(options().local_memory_bytes() as usize).unwrap();
    Drive::new(Arc::new(MemoryFlash::new(CAPACITY_BYTES)), local, programs::built_in(), Env::system())
}

impl Bench {
    fn new(name: &str) -> Bench {
        let drive = blank_drive();
        Store::create_on(&drive, &options()).unwrap();
        let store = Store::open_on(&drive, &options()).unwrap();
        for (name, kind) in [("hashed", KeyspaceKind::Hashed), ("ordered", KeyspaceKind::Ordered)] {
            store.create_keyspace_of(name, kind).unwrap();
        }
        let folder = Folder::new(name);
        let depot: Arc<dyn Depot> = Arc::new(FolderDepot::make(&folder).unwrap());
        Bench { folder, store, depot }
    }

    fn put(&self, keyspace: &str, number: u32, bytes: usize) {
        let value: Vec<u8> = (0..bytes).map(|at| (at as u32 * 7 + number * 13 + (at as u32 >> 8)) as u8).collect();
        self.store.keyspace(keyspace).unwrap().put(format!("key {number:05}").as_bytes(), &value).unwrap();
    }

    fn backup(&self) -> BackupReport {
        self.store.backup(&self.depot, &BackupOptions { generation: 1, anew: false }, &mut |_| true).unwrap()
    }

    fn restored(&self, sequence: Option<u64>) -> Store {
        let drive = blank_drive();
        self.restore(&drive, sequence, Restore::Whole);
        opened(&drive)
    }

    fn restore(&self, drive: &Drive, sequence: Option<u64>, how: Restore<'_>) -> BackupManifest {
        restore_from(&*self.depot, drive, sequence, how)
    }
}

fn restore_from(depot: &dyn Depot, drive: &Drive, sequence: Option<u64>, how: Restore<'_>) -> BackupManifest {
    let name = find(depot, sequence).unwrap();
    let manifest = read(depot, &name).unwrap();
    restore_onto(drive, depot, (&name, &manifest), how, || false).unwrap();
    manifest
}

fn opened(drive: &Drive) -> Store {
    let store = Store::open_on(drive, &options()).unwrap();
    assert_eq!(crate::check(&store).unwrap().problems, Vec::<String>::new());
    store
}

fn items(store: &Store) -> Items {
    let mut items = Items::new();
    let freeze = store.freeze(&FreezeOptions::default()).unwrap();
    for keyspace in freeze.keyspaces() {
        for item in keyspace.items(b"").unwrap() {
            let (key, item) = item.unwrap();
            items.insert((keyspace.entry().name.clone(), key), item.value);
        }
    }
    items
}

#[test]
fn a_restored_store_has_what_the_store_had_at_the_backups_moment() {
    let bench = Bench::new("backup-moment");
    for number in 0..3000 {
        bench.put("hashed", number, 40 + number as usize % 900);
        bench.put("ordered", number, 30 + number as usize % 500);
    }
    // Large values: of extents of their own, and of extensions.
    for number in 0..6 {
        bench.put("hashed", 9000 + number, 100_000 + number as usize);
        bench.put("ordered", 9000 + number, 5_000 << number);
    }
    for number in (0..3000).step_by(7) {
        let key = format!("key {number:05}");
        assert!(bench.store.keyspace("hashed").unwrap().delete(key.as_bytes()).unwrap());
        assert!(bench.store.keyspace("ordered").unwrap().delete(key.as_bytes()).unwrap());
    }
    let had = items(&bench.store);
    let first = bench.backup();
    assert_eq!((first.name.sequence, first.keyspaces), (1, 3));
    for number in 0..500 {
        bench.put("hashed", number, 77);
        bench.put("ordered", number, 77);
    }
    let has = items(&bench.store);
    let second = bench.backup();
    assert!(second.copied_bytes < first.copied_bytes / 2, "{} after {}", second.copied_bytes, first.copied_bytes);
    assert_eq!(items(&bench.restored(Some(1))), had);
    assert_eq!(items(&bench.restored(None)), has);
    assert_eq!(list(&*bench.depot).unwrap().len(), 2);
    assert_eq!(verify(&*bench.depot, &list(&*bench.depot).unwrap(), &mut || true).unwrap().backups, 2);
    drop(bench.folder);
}

#[test]
fn a_drive_with_one_backup_is_brought_to_another_in_either_direction() {
    let bench = Bench::new("backup-over");
    let mut had = Vec::new();
    for round in 0..4 {
        for number in 0..1500 {
            bench.put("hashed", number * (round + 1), 40 + (number as usize + round as usize * 50) % 900);
            bench.put("ordered", number * (4 - round), 30 + number as usize % 500);
        }
        bench.put("ordered", 9000 + round, 20_000);
        bench.put("hashed", 9000, 90_000);
        bench.store.keyspace("ordered").unwrap().delete(format!("key {:05}", 9000 + round).as_bytes()).unwrap();
        had.push(items(&bench.store));
        bench.backup();
    }
    let drive = blank_drive();
    let mut has = bench.restore(&drive, Some(1), Restore::Whole);
    for sequence in [2, 4, 3, 1, 4] {
        has = bench.restore(&drive, Some(sequence), Restore::Over(&has));
        let overlaid = Store::open_read_only_on(&drive, &options()).unwrap();
        assert_eq!(items(&overlaid), had[sequence as usize - 1], "backup {sequence}");
        assert_eq!(crate::check(&overlaid).unwrap().problems, Vec::<String>::new());
    }
    assert_eq!(items(&opened(&drive)), had[3]);
}

#[test]
fn backups_beside_a_writer_are_whole_whatever_became_of_others() {
    let drive = blank_drive();
    let options = StoreOptions { sync: crate::Sync::EverySecond, ..options() };
    Store::create_on(&drive, &options).unwrap();
    let store = Store::open_on(&drive, &options).unwrap();
    let keyspace = store.create_keyspace_of("ordered", KeyspaceKind::Ordered).unwrap();
    let folder = Folder::new("backup-writer");
    let is_over = Arc::new(AtomicBool::new(false));
    let writer = drive.env().spawn("writer", {
        let (keyspace, is_over) = (keyspace.clone(), is_over.clone());
        move || {
            let mut number = 0u64;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                let key = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 5000).to_be_bytes();
                keyspace.put(&key, &[number as u8; 400]).unwrap();
            }
        }
    });
    for round in 0..40 {
        let depot: Arc<dyn Depot> = Arc::new(FolderDepot::make(&folder.join(format!("{round}"))).unwrap());
        let mut steps = 0;
        let made = store.backup(&depot, &BackupOptions { generation: 1, anew: true }, &mut |_| {
            steps += 1;
            round % 3 != 0 || steps < 20 + round
        });
        match made {
            Ok(made) if round % 8 == 1 => {
                let manifest = read(&*depot, &made.name).unwrap();
                let onto = blank_drive();
                restore_onto(&onto, &*depot, (&made.name, &manifest), Restore::Whole, || false).unwrap();
                opened(&onto);
            }
            Ok(_) | Err(BackupError::Cancelled) => {}
            Err(error) => panic!("round {round}: {error}"),
        }
    }
    is_over.store(true, Ordering::Relaxed);
    writer.unwrap().join().unwrap();
}

#[test]
fn what_is_overwritten_and_flushed_while_a_backup_is_copied_stays_in_it() {
    let bench = Bench::new("backup-beside");
    for number in 0..3000 {
        bench.put("hashed", number, 300 + number as usize % 200);
        bench.put("ordered", number, 30 + number as usize % 500);
    }
    let (had, mut is_overwritten) = (items(&bench.store), false);
    let mut overwrite = |bytes| {
        if bytes > 0 && !is_overwritten {
            is_overwritten = true;
            // Their segments clear the bits of all records that the backup has.
            (0..2).for_each(|_| (0..3000).for_each(|number| bench.put("hashed", number, 333)));
        }
        true
    };
    bench.store.backup(&bench.depot, &BackupOptions { generation: 1, anew: false }, &mut overwrite).unwrap();
    assert!(is_overwritten);
    assert_eq!(items(&bench.restored(None)).len(), had.len());
    assert_eq!(items(&bench.restored(None)), had);
}

#[test]
fn a_backups_moment_holds_a_segment_whose_items_have_expired() {
    let (env, clock) = Env::simulated(1);
    let (_drive, store) = store_at_rest(CAPACITY_BYTES, &options(), env);
    let expiry = Expiry::from_millis(store.drive().env().unix_millis() + 1000);
    for key in 0..200u32 {
        store.put_until(&key.to_be_bytes(), &[7; 900], expiry).unwrap();
    }
    assert!(store.hashed().rotate());
    while store.maintain() != Step::Idle {}
    clock.advance_us(2_000_000);
    let mut task = store.begin_backup_freeze(&FreezeOptions::default()).unwrap();
    let freeze = loop {
        match task.step().unwrap() {
            Some(freeze) => break freeze,
            None => drop(store.maintain()),
        }
    };
    let frozen = freeze.frozen_store();
    let named = frozen.image().unwrap().clients.of::<Catalog>().segments.keys();
    assert_eq!(named.len(), 1);
    // Whoever opens a copy of the store reads it.
    assert_eq!(named.copied().collect::<BTreeSet<_>>(), frozen.segments_held());
}

#[test]
fn a_prune_that_loses_its_lease_removes_nothing_more() {
    let bench = Bench::new("backup-prune-lost");
    for number in 0..4 {
        bench.put("hashed", number, 5000);
        bench.backup();
    }
    let packs = bench.depot.list(name::PACKS).unwrap();
    let mut asked = 0;
    // Once when the packs are listed, and once before the first removal.
    let pruned = prune(&*bench.depot, 1, &mut || {
        asked += 1;
        asked <= 2
    });
    assert!(matches!(pruned, Err(BackupError::LostLease { .. })), "{pruned:?}");
    assert_eq!(list(&*bench.depot).unwrap().len(), 3);
    assert_eq!(bench.depot.list(name::PACKS).unwrap(), packs);
    prune(&*bench.depot, 1, &mut || true).unwrap();
    assert_eq!(list(&*bench.depot).unwrap().len(), 1);
}

#[test]
fn a_caller_who_says_no_at_any_step_has_no_backup() {
    let bench = Bench::new("backup-said-no");
    bench.put("ordered", 1, 500);
    for last in 0..10_000 {
        let mut steps = 0;
        let made = bench.store.backup(&bench.depot, &BackupOptions { generation: 1, anew: false }, &mut |_| {
            steps += 1;
            steps <= last
        });
        match made {
            // It was asked after the last pack as well.
            Ok(_) => return assert!(last > 0, "nobody was asked"),
            Err(error) => assert_eq!(error, BackupError::Cancelled),
        }
        assert!(list(&*bench.depot).unwrap().is_empty(), "said no at step {last}");
    }
    panic!("no backup was made");
}
