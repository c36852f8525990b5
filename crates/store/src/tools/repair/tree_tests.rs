//! Repairs of stores that hold a hashed and an ordered keyspace: whatever is damaged of data nodes and extensions, each key has its right
//! value, or a loss says why not.

use super::tests::{CAPACITY_BYTES, Kept, drive, options};
use super::*;
use crate::engines::empty_clients;
use crate::ordered::slabs::group_table::GroupTable;
use crate::ordered::slabs::slot_class::SlotClass;
use crate::tools::locate::locate;
use crate::{KeyspaceHandle, Store, Sync, Write};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tapetum_base::engine::key_place::{KeyPlace, NodePlace};
use tapetum_base::installer::Installer;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::manifest::Manifest;
use tapetum_base::recover::read_superblock;
use tapetum_drive::{FaultyFlash, SplitMix64};
use tapetum_kernels::expiry::Expiry;

const NAME: &str = "sorted";
const PAGE_BYTES: u64 = 4096;

/// The writes of each key, in order; `None` is a deletion.
#[derive(Clone, Default)]
struct TreeHistory(BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>);

impl TreeHistory {
    fn last(&self, key: &[u8]) -> Option<&[u8]> {
        self.0[key].last()?.as_deref()
    }

    /// Whether a key may have this value after a repair with these losses.
    fn allows(&self, key: &[u8], found: Option<&[u8]>, losses: &[Loss]) -> bool {
        let is_in = |from: &[u8], to: &Option<Vec<u8>>| from <= key && to.as_ref().is_none_or(|to| key < &to[..]);
        let is_older = losses.iter().any(|loss| match loss {
            Loss::Range { from, to, .. } | Loss::Older { from, to, .. } => is_in(from, to),
            Loss::Writes { .. } => true,
            _ => false,
        });
        let is_gone = losses.iter().any(|loss| matches!(loss, Loss::Item { key: lost, .. } if lost == key));
        let had = |value: &Option<Vec<u8>>| value.as_deref() == found;
        found == self.last(key)
            || is_gone && found.is_none()
            || is_older && (found.is_none() || self.0[key].iter().any(had))
    }
}

fn noise(random: &mut SplitMix64, bytes: u64) -> Vec<u8> {
    let mut value = vec![0; bytes as usize];
    random.fill(&mut value);
    value
}

fn write(keyspace: &KeyspaceHandle, history: &mut TreeHistory, random: &mut SplitMix64) {
    let key = format!("key{:04}", random.below(900)).into_bytes();
    let value = match random.below(24) {
        0..3 => None,
        3 => Some(3_000 + random.below(14_000)),
        4 if random.below(6) == 0 => Some(70_000 + random.below(70_000)),
        _ => Some(random.below(500)),
    };
    let value = value.map(|bytes| noise(random, bytes));
    match &value {
        Some(value) => drop(keyspace.put(&key, value).unwrap()),
        None => drop(keyspace.delete(&key).unwrap()),
    }
    history.0.entry(key).or_default().push(value);
}

/// Several keys at once, some of which the log alone has when the store ends.
fn write_batch(store: &Store, keyspace: &KeyspaceHandle, history: &mut TreeHistory, random: &mut SplitMix64) {
    let mut keys: Vec<u64> = (0..6).map(|_| random.below(900)).collect();
    keys.sort_unstable();
    keys.dedup();
    let items: Vec<(Vec<u8>, Vec<u8>)> = keys
        .into_iter()
        .map(|number| {
            let bytes = if random.below(5) == 0 { 6_000 } else { 200 };
            (format!("key{number:04}").into_bytes(), noise(random, bytes))
        })
        .collect();
    let id = keyspace.keyspace();
    let writes: Vec<Write<'_>> = items
        .iter()
        .map(|(key, value)| Write::Put { keyspace: id, key, value, flags: 0, expiry: Expiry::NONE })
        .collect();
    store.batch(&writes).unwrap();
    items.into_iter().for_each(|(key, value)| history.0.entry(key).or_default().push(Some(value)));
}

/// A store with a past, closed or crashed.
fn patient(closed: bool) -> (FaultyFlash, TreeHistory) {
    let flash = FaultyFlash::new(CAPACITY_BYTES, 3);
    Store::create_on(&drive(&flash), &options(Sync::Always)).unwrap();
    let (mut history, mut random) = (TreeHistory::default(), SplitMix64::new(11));
    for round in 0..2 {
        let store = Store::open_on(&drive(&flash), &options(Sync::Always)).unwrap();
        let sorted = match round {
            0 => store.create_keyspace_of(NAME, KeyspaceKind::Ordered).unwrap(),
            _ => store.keyspace(NAME).unwrap(),
        };
        for number in 0..2200 {
            write(&sorted, &mut history, &mut random);
            if number % 50 == 0 {
                store.put(format!("hashed{number}").as_bytes(), &[round; 300]).unwrap();
                write_batch(&store, &sorted, &mut history, &mut random);
            }
        }
        if round == 0 || closed {
            store.close().unwrap();
        }
    }
    (flash, history)
}

/// The places of pages of groups that the manifest names: of data nodes, or of others. Pages that may hold torn images are among them if `open_too`.
fn pages(flash: &FaultyFlash, of_nodes: bool, open_too: bool) -> Vec<u64> {
    let drive = drive(flash);
    let io = Io::new(drive.queue_pair(16).unwrap());
    let read = async {
        let superblock = read_superblock(&drive, &io).await.unwrap().superblock;
        let (geometry, id) = (superblock.geometry, superblock.store_id);
        let recovered = Manifest::recover(&io, drive.local(), &geometry, id, empty_clients).await.unwrap();
        let installer = Installer::from(recovered);
        let groups = installer.of::<GroupTable>().iter().filter(|group| (group.class == SlotClass::Nodes) == of_nodes);
        let pages = groups.flat_map(|group| {
            let begin = geometry.extent_offset(group.first);
            let end = begin + u64::from(group.extents) * geometry.extent_bytes;
            let round = installer.of::<GroupTable>().round(group.keyspace).filter(|_| group.open && !open_too);
            let is_wanted = move |slot: u32| round.is_none_or(|round| !round.may_be_torn(group.first, slot));
            let all = (0..).zip((begin..end).step_by(PAGE_BYTES as usize));
            all.filter(move |(slot, _)| is_wanted(*slot)).map(|(_, at)| at)
        });
        pages.collect()
    };
    run(&io, read, || false).unwrap()
}

fn read_page(flash: &FaultyFlash, at: u64) -> Vec<u8> {
    let drive = drive(flash);
    let io = Io::new(drive.queue_pair(4).unwrap());
    let read = async {
        let mut buffer = io.allocate(PAGE_BYTES as usize).await.unwrap();
        io.read(at, &mut buffer, 0, PAGE_BYTES as usize).await.unwrap();
        io.look(&buffer, 0..PAGE_BYTES as usize).to_vec()
    };
    run(&io, read, || false).unwrap()
}

fn write_page(flash: &FaultyFlash, at: u64, bytes: &[u8]) {
    let drive = drive(flash);
    let io = Io::new(drive.queue_pair(4).unwrap());
    let write = async {
        let mut buffer = io.allocate(bytes.len()).await.unwrap();
        io.fill(&mut buffer, 0..bytes.len()).copy_from_slice(bytes);
        io.write(at, &mut buffer, bytes.len()).await.unwrap();
        io.flush().await.unwrap();
    };
    run(&io, write, || false).unwrap();
}

/// The same store on another drive.
fn copy_of(flash: &FaultyFlash) -> FaultyFlash {
    let copy = FaultyFlash::new(CAPACITY_BYTES, 3);
    for at in (0..CAPACITY_BYTES).step_by(PAGE_BYTES as usize) {
        write_page(&copy, at, &read_page(flash, at));
    }
    copy
}

/// Turns a bit of a page that is in use.
fn flip(flash: &FaultyFlash, pages: &[u64], random: &mut SplitMix64) {
    loop {
        let at = pages[random.below(pages.len() as u64) as usize];
        let mut page = read_page(flash, at);
        if page.iter().any(|byte| *byte != 0) {
            page[random.below(PAGE_BYTES) as usize] ^= 1 << random.below(8);
            return write_page(flash, at, &page);
        }
    }
}

fn salvaged(flash: &FaultyFlash) -> (BTreeMap<Vec<u8>, Vec<u8>>, RepairReport) {
    let mut items = BTreeMap::new();
    let report = salvage(&drive(flash), NAME, |item| {
        assert!(items.insert(item.key.to_vec(), item.value.to_vec()).is_none(), "shown twice");
        ControlFlow::Continue(())
    });
    (items, report.unwrap())
}

/// Repairs, and looks at each key.
fn repaired(flash: &FaultyFlash, history: &TreeHistory) -> RepairReport {
    let looked = look(&drive(flash)).unwrap();
    let (dumped, told) = salvaged(flash);
    let report = repair(&drive(flash), &mut Kept::default()).unwrap();
    assert_eq!(looked.losses, report.losses, "a look says what a repair does");
    assert!(told.losses.iter().all(|loss| report.losses.contains(loss)));
    let again = look(&drive(flash)).unwrap();
    assert!(again.is_clean(), "{again:?} after {report:?}");
    let store = Store::open_on(&drive(flash), &options(Sync::Always)).unwrap();
    assert_eq!(crate::check(&store).unwrap().problems, Vec::<String>::new(), "after {report:?}");
    let sorted = store.keyspace(NAME).unwrap();
    for key in history.0.keys() {
        let found = sorted.get(key).unwrap().map(|item| item.value);
        let shown = String::from_utf8_lossy(key).into_owned();
        assert!(
            history.allows(key, found.as_deref(), &report.losses),
            "{shown}: {:?} {report:?}",
            found.map(|v| v.len())
        );
        assert_eq!(dumped.get(key), found.as_ref(), "{shown} was dumped with another value");
    }
    assert_eq!(sorted.scan(crate::KeyRange::default()).unwrap().count(), dumped.len());
    // It takes writes, and keeps them.
    sorted.put(b"later", b"value").unwrap();
    drop((sorted, store));
    let store = Store::open_on(&drive(flash), &options(Sync::Always)).unwrap();
    assert_eq!(store.keyspace(NAME).unwrap().get(b"later").unwrap().unwrap().value, b"value");
    report
}

fn node_of(flash: &FaultyFlash, key: &[u8]) -> NodePlace {
    let store = Store::open_read_only_on(&drive(flash), &options(Sync::Always)).unwrap();
    match locate(&store, store.keyspace(NAME).unwrap().keyspace(), key).unwrap().place {
        KeyPlace::Node(place) => place,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_store_without_damage_is_left_as_it_is() {
    for closed in [true, false] {
        let (flash, history) = patient(closed);
        let report = repaired(&flash, &history);
        assert!(report.is_clean(), "{report:?}");
    }
}

#[test]
fn whatever_is_damaged_of_nodes_and_values_is_right_or_told() {
    let (mut gone, mut older, mut items) = (0, 0, 0);
    let patients = [true, false].map(patient);
    for seed in 0..16 {
        let mut random = SplitMix64::new(seed);
        let closed = seed % 2 == 0;
        let (whole, history) = &patients[usize::from(!closed)];
        let flash = copy_of(whole);
        // In slots that may be written a crash leaves torn images: damage there is not always told from one.
        let (nodes, values) = (pages(&flash, true, closed), pages(&flash, false, true));
        for _ in 0..1 + random.below(12) {
            match random.below(3) {
                0 => flip(&flash, &values, &mut random),
                _ => flip(&flash, &nodes, &mut random),
            }
        }
        let report = repaired(&flash, history);
        gone += report.key_ranges_lost().0;
        older += report.key_ranges_lost().1;
        items += report.items_lost();
    }
    assert!(gone > 0 && older > 0 && items > 0, "{gone} ranges gone, {older} older, {items} items");
}

#[test]
fn after_a_clean_stop_an_image_that_vanished_or_came_back_is_told_too() {
    for replayed in [false, true] {
        let (flash, history) = patient(true);
        let image = node_of(&flash, b"key0450").image.unwrap();
        let another = node_of(&flash, b"key0100").image.unwrap();
        // Zeros are as good as an image that was never written, and another's is no image of this slot.
        let page = if replayed { read_page(&flash, another.flash_bytes) } else { vec![0; PAGE_BYTES as usize] };
        write_page(&flash, image.flash_bytes, &page);
        let report = repaired(&flash, &history);
        let covers = |loss: &Loss| match loss {
            Loss::Range { from, to, .. } | Loss::Older { from, to, .. } => {
                &from[..] <= b"key0450" && to.as_ref().is_none_or(|to| &to[..] > b"key0450")
            }
            _ => false,
        };
        assert!(report.losses.iter().any(covers), "{report:?}");
    }
}

#[test]
fn a_damaged_value_takes_its_key_and_no_other() {
    for closed in [true, false] {
        let (flash, history) = patient(closed);
        let of_extension = |key: &&Vec<u8>| history.last(key).is_some_and(|value| value.len() > 3_000);
        let key = history.0.keys().find(of_extension).unwrap().clone();
        let extension = node_of(&flash, &key).extension.unwrap();
        assert!(extension.is_whole);
        let at = extension.flash_bytes.unwrap();
        let mut page = read_page(&flash, at);
        page[2000] ^= 4;
        write_page(&flash, at, &page);
        let report = repaired(&flash, &history);
        let [Loss::Item { key: lost, place }] = &report.losses[..] else { panic!("{report:?}") };
        assert!(*lost == key && place.contains("keyspace \"sorted\"") && place.contains("extent"), "{place}");
        let store = Store::open_on(&drive(&flash), &options(Sync::Always)).unwrap();
        assert!(store.keyspace(NAME).unwrap().get(&key).unwrap().is_none());
    }
}

#[test]
fn all_nodes_lost_leave_a_keyspace_that_says_so_and_takes_writes() {
    let (flash, history) = patient(true);
    for at in pages(&flash, true, true) {
        let mut page = read_page(&flash, at);
        if page.iter().any(|byte| *byte != 0) {
            page[4] ^= 1;
            write_page(&flash, at, &page);
        }
    }
    let report = repaired(&flash, &history);
    let all = |loss: &Loss| matches!(loss, Loss::Range { from, to: None, .. } if from.is_empty());
    assert!(report.losses.iter().any(all), "{report:?}");
}

/// Zeroes the block that lies at this part of a list of the manifest, in eighths, in both areas or the first. Returns the pages as they were.
fn zero_block_of_manifest(flash: &FaultyFlash, eighths: u64, areas: usize) -> Vec<(u64, Vec<u8>)> {
    let drive = drive(flash);
    let io = Io::new(drive.queue_pair(16).unwrap());
    let find = async {
        let superblock = read_superblock(&drive, &io).await.unwrap().superblock;
        let (geometry, id) = (superblock.geometry, superblock.store_id);
        let recovered = Manifest::recover(&io, drive.local(), &geometry, id, empty_clients).await.unwrap();
        (geometry, Installer::from(recovered).manifest.summary().position * eighths / 8)
    };
    let (geometry, position) = run(&io, find, || false).unwrap();
    let places = (0..areas).map(|area| (geometry.manifest_offset(area) + position) / PAGE_BYTES * PAGE_BYTES);
    let zeroed = places.map(|at| (at, read_page(flash, at))).collect::<Vec<_>>();
    zeroed.iter().for_each(|(at, _)| write_page(flash, *at, &[0; PAGE_BYTES as usize]));
    zeroed
}

fn tells_of_groups(report: &RepairReport) -> bool {
    report.made_anew.iter().any(|what| what.contains("groups of data nodes"))
}

/// Zeroes the first of these blocks of the manifest that names groups of data nodes: its frames lie where the store's threads put them.
fn zero_block_that_names_groups(flash: &FaultyFlash, eighths: &[u64]) {
    for part in eighths {
        let zeroed = zero_block_of_manifest(flash, *part, 2);
        if tells_of_groups(&look(&drive(flash)).unwrap()) {
            return;
        }
        zeroed.iter().for_each(|(at, page)| write_page(flash, *at, page));
    }
    panic!("none of these blocks names groups of data nodes: {eighths:?}");
}

#[test]
fn a_block_of_the_manifest_costs_nothing_and_is_told() {
    for eighths in [0, 3] {
        let (flash, history) = patient(true);
        zero_block_of_manifest(&flash, eighths, 1);
        let report = repaired(&flash, &history);
        assert!(report.losses.is_empty(), "{report:?}");
        assert!(report.made_anew.iter().any(|what| what.contains("of copy 0 of the manifest")), "{report:?}");
        let store = Store::open_on(&drive(&flash), &options(Sync::Always)).unwrap();
        let sorted = store.keyspace(NAME).unwrap();
        for key in history.0.keys() {
            assert_eq!(sorted.get(key).unwrap().map(|item| item.value).as_deref(), history.last(key));
        }
    }
}

#[test]
fn data_nodes_that_a_damaged_manifest_does_not_name_any_more_are_found() {
    for (closed, eighths) in [(true, [4, 3, 5, 2, 6]), (false, [4, 3, 5, 2, 6]), (true, [2, 1, 3, 4, 5])] {
        let (flash, history) = patient(closed);
        zero_block_that_names_groups(&flash, &eighths);
        let report = repaired(&flash, &history);
        assert!(tells_of_groups(&report), "{report:?}");
        let store = Store::open_on(&drive(&flash), &options(Sync::Always)).unwrap();
        let sorted = store.keyspace(NAME).unwrap();
        // Values in extensions lie in other groups.
        let in_nodes = |key: &&Vec<u8>| history.last(key).is_some_and(|value| value.len() < 500);
        let keys: Vec<&Vec<u8>> = history.0.keys().filter(in_nodes).collect();
        let is_kept =
            |key: &&&Vec<u8>| sorted.get(key).unwrap().is_some_and(|item| Some(&item.value[..]) == history.last(key));
        let kept = keys.iter().filter(is_kept).count();
        assert!(10 * kept >= 9 * keys.len(), "{kept} of {} are kept: {report:?}", keys.len());
    }
}

#[test]
fn stamps_of_nodes_between_those_of_the_log_are_no_lost_writes() {
    let (flash, _) = patient(false);
    // A group of the log in the middle is damaged; behind it others are.
    let store_log = {
        let found = crate::inspect_drive(&drive(&flash)).unwrap();
        let area = found.areas.iter().find(|area| area.kind == crate::inspect::AreaKind::Log).unwrap();
        area.offset_bytes..area.offset_bytes + area.length_bytes
    };
    let is_group =
        |at: &u64| read_page(&flash, at / PAGE_BYTES * PAGE_BYTES)[(at % PAGE_BYTES) as usize..].starts_with(b"TLOG");
    let groups: Vec<u64> = store_log.step_by(512).filter(is_group).collect();
    let at = groups[groups.len() / 2];
    let mut page = read_page(&flash, at / PAGE_BYTES * PAGE_BYTES);
    page[(at % PAGE_BYTES) as usize + 60] ^= 1;
    write_page(&flash, at / PAGE_BYTES * PAGE_BYTES, &page);
    let report = repair(&drive(&flash), &mut Kept::default()).unwrap();
    assert!(report.ranges_lost() <= 2, "{report:?}");
    assert!(look(&drive(&flash)).unwrap().is_clean());
}
