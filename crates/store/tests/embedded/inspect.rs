//! Tools on a store: a scan shows every key once, a key is located, and a map has every byte of the drive.

use crate::common::{drive_of, new_on};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use tapetum::inspect::AreaKind;
use tapetum::{
    Condition, Expiry, Inspection, KeyPlace, Request, Store, StoreOptions, inspect, inspect_drive, locate, scan,
};
use tapetum_drive::{Drive, Env, MemoryFlash};

const CAPACITY: u64 = 8 << 20;

fn options() -> StoreOptions {
    StoreOptions { segment_bytes: 64 << 10, partition_bits: 2, ..StoreOptions::new(CAPACITY, 16 << 20) }
}

fn drive_on(flash: Arc<MemoryFlash>) -> Drive {
    drive_of(flash, &options(), Env::system())
}

/// A store whose keys are in several segments and in the write buffers, some overwritten, some deleted.
fn filled(drive: &Drive) -> (Store, BTreeMap<Vec<u8>, u64>) {
    let store = new_on(drive, &options());
    let mut truth = BTreeMap::new();
    for round in 0..3u64 {
        for number in (0..2000u64).step_by(1 + round as usize) {
            let key = format!("key:{number}").into_bytes();
            let value = vec![round as u8; (number % 300 + round) as usize];
            let (flags, expiry) = (number as u32 % 3, Expiry::NONE);
            let request = Request::Put { key: &key, value: &value, flags, expiry, condition: Condition::Always };
            store.run(request).unwrap();
            truth.insert(key, value.len() as u64);
        }
    }
    for number in (0..2000).step_by(7) {
        let key = format!("key:{number}").into_bytes();
        assert_eq!(store.delete(&key), Ok(truth.remove(&key).is_some()));
    }
    let gone = Request::Put {
        key: b"key:expired",
        value: b"v",
        flags: 0,
        expiry: Expiry::from_secs(1),
        condition: Condition::Always,
    };
    store.run(gone).unwrap();
    for number in 0..20u64 {
        let key = format!("late:{number}").into_bytes();
        store.put(&key, b"value").unwrap();
        truth.insert(key, 5);
    }
    (store, truth)
}

fn scanned(store: &Store, prefix: &[u8]) -> BTreeMap<Vec<u8>, u64> {
    let mut found = BTreeMap::new();
    scan(store, tapetum::KeyspaceRef::DEFAULT, prefix, |item| {
        assert_eq!(found.insert(item.key.to_vec(), item.value_bytes), None, "a key comes once");
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

#[test]
fn a_scan_shows_every_live_key_once() {
    let flash = Arc::new(MemoryFlash::new(CAPACITY));
    let drive = drive_on(flash.clone());
    let (store, truth) = filled(&drive);
    assert!(store.stats().flushes > 2);
    assert_eq!(scanned(&store, b""), truth);
    let mut some = truth.clone();
    some.retain(|key, _| key.starts_with(b"key:12"));
    assert!(!some.is_empty());
    assert_eq!(scanned(&store, b"key:12"), some);
    let mut left = 3;
    scan(&store, tapetum::KeyspaceRef::DEFAULT, b"", |_| {
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert_eq!(left, 0, "a scan stops when it is told to");
    store.close().unwrap();
    drop((store, drive));
    let store = Store::open_on(&drive_on(flash), &options()).unwrap();
    assert_eq!(scanned(&store, b""), truth);
    store.run(Request::DeleteAll { at: 0 }).unwrap();
    assert_eq!(scanned(&store, b""), BTreeMap::new());
}

#[test]
fn every_key_is_where_it_is_said_to_be() {
    let flash = Arc::new(MemoryFlash::new(CAPACITY));
    let (store, truth) = filled(&drive_on(flash));
    let (mut in_buffers, mut in_segments) = (0, 0);
    for (key, &value_bytes) in &truth {
        let record = match locate(&store, tapetum::KeyspaceRef::DEFAULT, key).unwrap().place {
            KeyPlace::Buffer { record, .. } => {
                in_buffers += 1;
                record
            }
            KeyPlace::Segment(place) => {
                in_segments += 1;
                assert!(place.valid && place.read_bytes >= place.record.record_bytes);
                place.record
            }
            other => panic!("{key:?} is not in a segment: {other:?}"),
        };
        assert!(record.live);
        assert_eq!((record.value_bytes, record.key_bytes), (value_bytes, key.len() as u64));
    }
    assert!(in_buffers > 0 && in_segments > 1000, "{in_buffers} {in_segments}");
    assert!(matches!(
        locate(&store, tapetum::KeyspaceRef::DEFAULT, b"absent").unwrap().place,
        KeyPlace::Nowhere { .. }
    ));
    let dead = match locate(&store, tapetum::KeyspaceRef::DEFAULT, b"key:1995").unwrap().place {
        KeyPlace::Buffer { record, .. } => record,
        other => panic!("{other:?}"),
    };
    assert_eq!((dead.kind.as_str(), dead.live), ("tombstone", false));
}

/// No gap and no overlap, and what the segments say of their extents.
#[track_caller]
fn assert_whole(inspection: &Inspection) {
    let mut end = 0;
    for area in &inspection.areas {
        assert_eq!(area.offset_bytes, end);
        end += area.length_bytes;
    }
    assert_eq!(end, CAPACITY);
    let extent_bytes = inspection.superblock.iter().find(|(name, _)| name == "extent_bytes").unwrap().1;
    for segment in &inspection.segments {
        let bytes = |kind| -> u64 {
            let mine =
                |area: &&tapetum::inspect::Area| area.kind == kind && area.segment == Some(segment.number as u32);
            inspection.areas.iter().filter(mine).map(|area| area.length_bytes).sum()
        };
        assert_eq!(bytes(AreaKind::Data), segment.data_extents * extent_bytes);
        assert_eq!(bytes(AreaKind::Keys), segment.key_extents * extent_bytes);
        assert!(segment.valid_entries <= segment.entries && segment.valid_bytes <= segment.record_bytes);
    }
}

#[test]
fn the_map_covers_the_drive_and_says_the_same_open_and_closed() {
    let flash = Arc::new(MemoryFlash::new(CAPACITY));
    let drive = drive_on(flash.clone());
    let (store, _) = filled(&drive);
    let open = inspect(&store).unwrap();
    assert_whole(&open);
    assert!(open.segments.len() > 2 && open.areas.iter().any(|area| area.kind == AreaKind::Free));
    store.close().unwrap();
    let open = inspect(&store).unwrap();
    drop((store, drive));
    let closed = inspect_drive(&drive_on(flash)).unwrap();
    assert_whole(&closed);
    assert_eq!((&closed.superblock, &closed.segments), (&open.superblock, &open.segments));
    assert!(closed.areas.iter().any(|area| area.kind == AreaKind::Checkpoint), "it was closed in an orderly way");
}
