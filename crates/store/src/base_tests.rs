//! The base under a store with its engines.

use crate::engines::empty_clients;
use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_at_rest, store_in_memory};
use crate::{KeyspaceId, Request, Store, StoreOptions};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tapetum_base::error::Error;
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::deletion_mark::DeletionMark;
use tapetum_base::manifest::Manifest;
use tapetum_base::manifest::base_marks::MarksEdit;
use tapetum_base::manifest::items::FrameItems;
use tapetum_base::media::geometry::BUFFERS;
use tapetum_base::media::io::{Io, run};
use tapetum_base::media::superblock::Superblock;
use tapetum_base::recover::read_superblock;
use tapetum_drive::Env;

#[test]
fn what_an_install_has_deleted_stays_so_whatever_older_marks_the_log_has() {
    let options = small_options();
    let (drive, store) = store_in_memory(SMALL_BYTES, &options);
    store.run(Request::DeleteAll { at: 0 }).unwrap();
    store.run(Request::DeleteAll { at: u32::MAX }).unwrap();
    let ends_both = store.hashed().log.stamp_last();
    drop(store);
    let io = Io::new(drive.queue_pair(16).unwrap());
    let delete = async {
        let Superblock { geometry, store_id, .. } = read_superblock(&drive, &io).await?.superblock;
        let recovered = Manifest::recover(&io, drive.local(), &geometry, store_id, empty_clients).await?;
        let mark = DeletionMark { watermark: ends_both, planned_at: 0 };
        let mut items = FrameItems::default();
        MarksEdit::put(&[MarksEdit::Delete(KeyspaceId::DEFAULT, mark)], &mut items);
        Installer::from(recovered).append(&items).await
    };
    run(&io, delete, || false).unwrap().unwrap();
    let store = Store::open_on(&drive, &options).unwrap();
    let hashed = store.hashed();
    let mark = DeletionMark { watermark: ends_both, planned_at: 0 };
    assert_eq!(hashed.keyspaces.mark(KeyspaceId::DEFAULT), mark);
}

#[test]
fn pools_are_all_that_is_allocated_at_once() {
    let options = StoreOptions::new(64 << 20, 64 << 20).with_tier(16 << 20);
    let (drive, store) = store_in_memory(64 << 20, &options);
    let hashed = store.hashed();
    let tables = hashed.buffers.bytes();
    let arenas_bytes = (BUFFERS * hashed.geometry.segment_bytes) as usize;
    let pools_bytes = (drive.local().bytes_total() + arenas_bytes + tables) as u64 + options.tier_bytes;
    assert_eq!(hashed.pools_bytes, pools_bytes);
    assert!(tables > 0 && options.tier_bytes > 0);
}

#[test]
fn nobody_goes_on_with_what_a_panic_left() {
    let options = small_options();
    let (drive, store) = store_in_memory(SMALL_BYTES, &options);
    store.put(b"key", b"acknowledged").unwrap();
    let shared = store.hashed().clone();
    let panics = || {
        let _shard = shared.buffers.shard(shared.hash(KeyspaceId::DEFAULT, b"key"));
        panic!("for the test");
    };
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    for _ in 0..2 {
        assert!(catch_unwind(AssertUnwindSafe(|| store.put(b"key", b"on top"))).is_err());
    }
    drop((store, shared));
    let store = Store::open_with(&drive, &options, || false).unwrap();
    assert_eq!(store.get(b"key").unwrap().unwrap().value, b"acknowledged");
}

#[test]
fn phases_are_told_while_maintenance_sleeps() {
    const PATIENCE_US: u64 = 10_000_000;
    let (drive, store) = store_in_memory(SMALL_BYTES, &small_options());
    let until_us = drive.env().now_us() + PATIENCE_US;
    // It sleeps for 50 ms at a time: whoever waited for that would need twice as long as this has.
    for _ in 0..400 {
        store.phases();
        assert!(drive.env().now_us() < until_us, "each waits for the end of a sleep");
    }
}

#[test]
fn a_store_that_has_failed_does_not_close_as_if_it_had_not() {
    let (_drive, store) = store_at_rest(SMALL_BYTES, &small_options(), Env::simulated(1).0);
    store.hashed().log.poison("a flush", Error::Io("for the test".into()));
    assert!(store.close().unwrap_err().to_string().contains("for the test"));
}
