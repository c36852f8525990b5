//! The answers of tools about a store with ordered keyspaces, compared with known facts.

use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_in_memory};
use crate::tools::inspect::{inspect, inspect_drive};
use crate::tools::locate::locate;
use crate::{Error, KeyspaceHandle, Store};
use tapetum_base::engine::inspection::{AreaKind, SLOT_CLASSES};
use tapetum_base::engine::key_place::{KeyPlace, NodePlace};
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_drive::Drive;

const LARGE_BYTES: usize = 9_000;

/// A thousand small values, and a value beyond a node; half of them only on flash.
fn store() -> (Drive, Store, KeyspaceHandle) {
    let (drive, store) = store_in_memory(SMALL_BYTES, &small_options());
    let sorted = store.create_keyspace_of("sorted", KeyspaceKind::Ordered).unwrap();
    store.put(b"hashed", b"value").unwrap();
    for number in 0..1000 {
        sorted.put(format!("key{number:04}").as_bytes(), &[number as u8; 60]).unwrap();
    }
    sorted.put(b"large", &[7; LARGE_BYTES]).unwrap();
    (drive, store, sorted)
}

fn node(store: &Store, keyspace: &KeyspaceHandle, key: &[u8]) -> NodePlace {
    match locate(store, keyspace.keyspace(), key).unwrap().place {
        KeyPlace::Node(place) => place,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_key_is_found_in_its_node_whose_fences_have_it() {
    let (_, store, sorted) = store();
    let found = node(&store, &sorted, b"key0500");
    assert!(found.low.as_slice() <= b"key0500" && found.high.as_ref().is_some_and(|high| &high[..] > b"key0500"));
    let record = found.record.unwrap();
    assert_eq!((record.value_bytes, record.key_bytes, record.live), (60, 7, true));
    assert!(found.image.is_some_and(|image| image.stamp >= record.stamp), "it was acknowledged");
    assert!(found.records > 1 && found.used_bytes < 4096 && found.extension.is_none());
    let absent = node(&store, &sorted, b"key0500x");
    assert_eq!((absent.node, absent.record), (found.node, None));
    let large = node(&store, &sorted, b"large");
    let extension = large.extension.unwrap();
    assert!(extension.is_whole && extension.length_bytes == 16 << 10, "{extension:?}");
    let location = locate(&store, sorted.keyspace(), b"key0500").unwrap();
    assert_eq!(location.partition, None);
    let hashed = locate(&store, crate::KeyspaceRef::DEFAULT, b"hashed").unwrap();
    assert!(matches!(hashed.place, KeyPlace::Buffer { .. }) && hashed.partition.is_some());
}

#[test]
fn an_overview_counts_groups_slots_nodes_and_levels() {
    let (drive, store, sorted) = store();
    let id = u64::from(sorted.keyspace().id().0);
    let seen = inspect(&store).unwrap();
    let [tree] = seen.trees[..] else { panic!("{:?}", seen.trees) };
    assert_eq!((tree.keyspace, tree.items), (id, 1001));
    assert!(tree.nodes > 15 && tree.depth_max >= 2 && tree.depth_mean_tenths <= 10 * tree.depth_max, "{tree:?}");
    let class = |name: &str| SLOT_CLASSES.iter().position(|class| *class == name).unwrap() as u64;
    let of = |name: &str| *seen.groups.iter().find(|groups| groups.class == class(name)).unwrap();
    assert!(of("nodes").slots_used >= tree.nodes && of("nodes").slots > of("nodes").slots_used);
    assert!(of("nodes").groups_open > 0 && of("nodes").groups_open <= of("nodes").groups);
    assert_eq!(of("16KiB").slots_used, 1);
    store.close().unwrap();
    drop((sorted, store));
    // If nobody has the store open, the tools report the manifest's facts.
    let closed = inspect_drive(&drive).unwrap();
    assert!(closed.trees.is_empty());
    let extents = |kind| {
        let areas = closed.areas.iter().filter(|area| area.kind == kind);
        areas.map(|area| area.length_bytes).sum::<u64>() / closed.field("extent_bytes")
    };
    let named: u64 = closed.groups.iter().map(|groups| groups.extents).sum();
    assert_eq!(extents(AreaKind::Nodes) + extents(AreaKind::Extensions), named);
    assert!(extents(AreaKind::Checkpoint) > 0, "that of anchors");
}

/// Closes a store, and spoils the image of the node of a key.
fn closed_with_spoilt_node(key: &[u8]) -> (Drive, u64) {
    let (drive, store, sorted) = store();
    let image = node(&store, &sorted, key).image.unwrap();
    store.close().unwrap();
    drop((sorted, store));
    let io = tapetum_base::media::io::Io::new(drive.queue_pair(4).unwrap());
    let spoil = async {
        let mut buffer = io.allocate(4096).await.unwrap();
        io.fill(&mut buffer, 0..4096).fill(0xa5);
        io.write(image.flash_bytes, &mut buffer, 4096).await.unwrap();
    };
    tapetum_base::media::io::run(&io, spoil, || false).unwrap();
    (drive, image.flash_bytes)
}

#[test]
fn a_node_that_was_damaged_on_flash_is_named_by_its_place() {
    let (drive, flash_bytes) = closed_with_spoilt_node(b"key0500");
    // The checkpoint of anchors is trusted: nobody has read the node yet.
    let store = Store::open_on(&drive, &small_options()).unwrap();
    let sorted = store.keyspace("sorted").unwrap();
    let error = locate(&store, sorted.keyspace(), b"key0500").unwrap_err().to_string();
    assert!(error.contains(&format!("byte {flash_bytes}")), "{error}");
    assert!(node(&store, &sorted, b"key0001").record.is_some());
}

#[test]
fn a_node_that_is_damaged_under_a_merge_costs_its_neighbours_nothing() {
    let (drive, _) = closed_with_spoilt_node(b"key0500");
    let store = Store::open_on(&drive, &small_options()).unwrap();
    let sorted = store.keyspace("sorted").unwrap();
    let key = |number: u32| format!("key{number:04}").into_bytes();
    let is_there = |number: u32| sorted.get(&key(number)).map(|item| item.is_some());
    // Nodes on both sides of it become sparse, and want to be merged with it.
    let deleted: Vec<_> = (400..600).map(|number| (number, sorted.delete(&key(number)))).collect();
    let damaged: Vec<u32> = deleted.iter().filter(|(_, done)| done.is_err()).map(|(number, _)| *number).collect();
    assert!(damaged.contains(&500) && damaged.len() < 100, "{damaged:?}");
    for number in (0..1000).filter(|number| !damaged.contains(number)) {
        assert_eq!(is_there(number).unwrap(), !(400..600).contains(&number), "{number}");
    }
    for number in &damaged {
        assert!(matches!(is_there(*number), Err(Error::Corrupt(_))), "{number}");
    }
    let free = (400..600).find(|number| !damaged.contains(number)).unwrap();
    sorted.put(&key(free), b"again").unwrap();
    assert!(is_there(free).unwrap());
}
