use super::*;
use crate::engines::empty_clients;
use crate::{Request, Store, StoreOptions, Sync};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::deletion_mark::DeletionMark;
use tapetum_base::manifest::Manifest;
use tapetum_base::manifest::base_marks::MarksEdit;
use tapetum_base::manifest::items::FrameItems;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::superblock::Superblock;
use tapetum_base::recover::read_superblock;
use tapetum_drive::{Env, FaultyFlash, LocalMemory, Opcode, SplitMix64, programs};

pub(super) const CAPACITY_BYTES: u64 = 8 << 20;
const SEGMENT_BYTES: u64 = 64 << 10;

pub(super) fn options(sync: Sync) -> StoreOptions {
    StoreOptions {
        segment_bytes: SEGMENT_BYTES,
        partition_bits: 2,
        sync,
        ..StoreOptions::new(CAPACITY_BYTES, 16 << 20)
    }
}

pub(super) fn drive(flash: &FaultyFlash) -> Drive {
    let local = LocalMemory::new(options(Sync::No).local_memory_bytes() as usize).unwrap();
    Drive::new(Arc::new(flash.clone()), local, programs::built_in(), Env::system())
}

/// A keeper in memory.
#[derive(Default)]
pub(super) struct Kept(Vec<(u64, Vec<u8>)>);

impl Keeper for Kept {
    fn keep(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.0.push((offset, bytes.to_vec()));
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn end(&mut self, _: u64, _: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// A stamp, and a value unless it is a deletion.
type Write = (u64, Option<Vec<u8>>);

/// The writes of every key, in order.
#[derive(Default)]
struct History {
    writes: BTreeMap<String, Vec<Write>>,
    stamp: u64,
}

impl History {
    fn put(&mut self, store: &Store, key: String, value: Vec<u8>) {
        self.stamp = store.put(key.as_bytes(), &value).unwrap();
        self.writes.entry(key).or_default().push((self.stamp, Some(value)));
    }

    fn delete(&mut self, store: &Store, key: String) {
        if store.delete(key.as_bytes()).unwrap() {
            // The next one: nobody else writes.
            self.stamp += 1;
            self.writes.entry(key).or_default().push((self.stamp, None));
        }
    }

    /// Whether a key may have this value after a repair with these losses, having the hash key `hash`.
    fn allows(&self, key: &str, hash: u128, found: Option<&[u8]>, losses: &[Loss]) -> bool {
        let writes = &self.writes[key];
        let is_taken_back = |stamp: u64| {
            losses.iter().any(|loss| matches!(loss, Loss::Writes { stamps, .. } if stamps.contains(&stamp)))
        };
        // The last write that was not taken back counts.
        let counts = writes.iter().rev().find(|(stamp, _)| !is_taken_back(*stamp));
        let is_lost = losses.iter().any(|loss| match loss {
            Loss::Item { key: lost, .. } => lost == key.as_bytes(),
            Loss::Items { hashes, .. } => hashes.contains(&hash),
            _ => false,
        });
        let value = counts.and_then(|(_, value)| value.as_deref());
        // Writes of a range that is listed as taken back may be there in part.
        let later = writes
            .iter()
            .rev()
            .take_while(|(stamp, _)| is_taken_back(*stamp))
            .any(|(_, value)| value.as_deref() == found);
        found == value || later || is_lost && found.is_none()
    }
}

/// A store with a past, whose last writes only the log knows: crashed, or closed.
fn patient(closed: bool) -> (FaultyFlash, History) {
    let flash = FaultyFlash::new(CAPACITY_BYTES, 3);
    Store::create_on(&drive(&flash), &options(Sync::No)).unwrap();
    let mut history = History::default();
    let mut random = SplitMix64::new(7);
    let noise = |random: &mut SplitMix64, length: u64| {
        let mut value = vec![0; length as usize];
        random.fill(&mut value);
        value
    };
    for round in 0..2 {
        let store = Store::open_on(&drive(&flash), &options(Sync::No)).unwrap();
        for number in 0..3500 {
            let key = format!("key{}", random.below(1500));
            match random.below(40) {
                0..4 => history.delete(&store, key),
                4 if number % 3 == 0 => {
                    let length = 9_000 + random.below(8_000);
                    history.put(&store, key, noise(&mut random, length));
                }
                _ => {
                    let length = random.below(600);
                    history.put(&store, key, noise(&mut random, length));
                }
            }
        }
        store.close().unwrap();
        drop((store, round));
    }
    let store = Store::open_on(&drive(&flash), &options(Sync::Always)).unwrap();
    for _ in 0..120 {
        let key = format!("key{}", random.below(1500));
        match random.below(6) {
            0 => history.delete(&store, key),
            _ => {
                let length = random.below(400);
                history.put(&store, key, noise(&mut random, length));
            }
        }
    }
    drop(store);
    // Opening says how far the log went: without that, nobody could see that its last group is missing.
    let store = Store::open_on(&drive(&flash), &options(Sync::Always)).unwrap();
    if closed {
        store.close().unwrap();
    }
    drop(store);
    (flash, history)
}

/// Turns bits of bytes that are something, or zeros a sector, within a range of the drive; whether there are any.
fn harm(flash: &FaultyFlash, random: &mut SplitMix64, within: Range<u64>, count: usize) -> bool {
    let bytes = flash.peek(within.start, within.end - within.start);
    let blocks: Vec<u64> = (0..bytes.len() as u64 / 512).collect();
    let used: Vec<u64> = blocks
        .into_iter()
        .filter(|block| bytes[*block as usize * 512..][..512].iter().any(|byte| *byte != 0))
        .collect();
    for _ in 0..count.min(used.len() * count) {
        let block = within.start + used[random.below(used.len() as u64) as usize] * 512;
        if random.below(8) > 0 {
            flash.flip(block + random.below(512), 1 << random.below(8));
            continue;
        }
        // A sector that lost all it had.
        for (at, byte) in (block..).zip(flash.peek(block, 512)) {
            flash.flip(at, byte);
        }
    }
    !used.is_empty()
}

fn found(store: &Store, key: &str) -> Option<Vec<u8>> {
    store.get(key.as_bytes()).unwrap().map(|item| item.value)
}

/// Repairs a store and looks at all that it has after that.
#[track_caller]
fn treat(flash: &FaultyFlash, history: &History, what: &str) -> RepairReport {
    let before = flash.peek(0, CAPACITY_BYTES);
    let looked = look(&drive(flash)).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut salvaged = BTreeMap::new();
    let told = salvage(&drive(flash), crate::DEFAULT_KEYSPACE_NAME, |item| {
        salvaged.insert(String::from_utf8(item.key.to_vec()).unwrap(), item.value.to_vec());
        ControlFlow::Continue(())
    });
    let told = told.unwrap();
    assert!(flash.peek(0, CAPACITY_BYTES) == before, "{what}: a look changed something");
    let mut kept = Kept::default();
    let report = repair(&drive(flash), &mut kept).unwrap();
    assert_eq!(looked, report, "{what}: a look says something else than the repair");
    assert_eq!(told.losses, report.losses, "{what}");
    let again = look(&drive(flash)).unwrap();
    assert!(again.is_clean(), "{what}: the second time there is {again:?}");
    let store = Store::open_on(&drive(flash), &options(Sync::No)).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(crate::check(&store).unwrap().problems, Vec::<String>::new(), "{what}");
    let session = store.session().unwrap();
    for key in history.writes.keys() {
        let (hash, value) = (session.digest(crate::KeyspaceRef::DEFAULT, key.as_bytes()).0, found(&store, key));
        let allowed = history.allows(key, hash, value.as_deref(), &report.losses);
        assert!(allowed, "{what}: {key} has {:?} bytes; {:?}", value.map(|value| value.len()), report.losses);
        let shown = salvaged.get(key).map(Vec::as_slice);
        assert!(history.allows(key, hash, shown, &report.losses), "{what}: {key} is shown with {shown:?}");
    }
    // It works: what is written is there.
    store.put(b"after", b"it works").unwrap();
    assert_eq!(found(&store, "after").as_deref(), Some(&b"it works"[..]));
    report
}

fn geometry() -> Geometry {
    Geometry::new(CAPACITY_BYTES, SEGMENT_BYTES, 2, 512).unwrap()
}

fn log_zones() -> Range<u64> {
    geometry().zone_offset(0)..geometry().zone_offset(0) + 2 * SEGMENT_BYTES
}

#[test]
fn a_whole_store_is_left_as_it_is() {
    for closed in [false, true] {
        let (flash, history) = patient(closed);
        let (before, writes) = (flash.peek(0, CAPACITY_BYTES), flash.submitted(Opcode::Write));
        let mut kept = Kept::default();
        let report = repair(&drive(&flash), &mut kept).unwrap();
        assert!(report.is_clean() && kept.0.is_empty(), "{report:?}");
        assert!(flash.submitted(Opcode::Write) == writes && flash.peek(0, CAPACITY_BYTES) == before);
        assert!(treat(&flash, &history, "whole").is_clean());
    }
}

#[test]
fn four_hundred_turned_bits_cost_what_is_listed_and_nothing_else() {
    let mut ranges_lost = 0;
    for closed in [false, true] {
        let (whole, history) = patient(closed);
        for seed in 0..8 {
            let flash = whole.fork(seed);
            let mut random = SplitMix64::new(seed);
            harm(&flash, &mut random, geometry().extents_offset()..CAPACITY_BYTES, 380);
            harm(&flash, &mut random, log_zones(), 20);
            if seed % 2 == 1 {
                // Most likely that of the list, of which there is more.
                let area = if seed % 4 == 1 { 0 } else { 1 };
                harm(&flash, &mut random, geometry().manifest_offset(area)..geometry().manifest_offset(area + 1), 1);
            }
            if look(&drive(&flash)).is_err_and(|error| error.to_string().contains("neither")) {
                continue;
            }
            let report = treat(&flash, &history, &format!("closed {closed}, seed {seed}"));
            // If the manifest was cut early, few items are known that could be lost.
            assert!(report.items_lost() > 50 || seed % 2 == 1, "{report:?}");
            ranges_lost += report.ranges_lost();
        }
    }
    assert!(ranges_lost > 0, "the log was spared");
}

#[test]
fn a_few_turned_bits_in_one_part_are_repaired() {
    let (whole, history) = patient(false);
    let area = |number| geometry().manifest_offset(number)..geometry().manifest_offset(number + 1);
    let parts = [log_zones(), area(0), area(1), geometry().extents_offset()..CAPACITY_BYTES, 0..8192];
    for seed in 0..60 {
        let flash = whole.fork(seed);
        let mut random = SplitMix64::new(seed);
        let part = parts[seed as usize % parts.len()].clone();
        let copy = if part.end == 8192 { 4096..8192 } else { part };
        let count = 1 + random.below(3) as usize;
        let is_harmed = harm(&flash, &mut random, copy.clone(), count);
        // In a young store only one area has a list.
        let refused = look(&drive(&flash)).is_err_and(|error| error.to_string().contains("neither"));
        if is_harmed && !refused {
            treat(&flash, &history, &format!("seed {seed}, {count} in {copy:?}"));
        }
    }
}

#[test]
fn what_was_kept_brings_the_damage_back() {
    let (flash, _) = patient(false);
    let mut random = SplitMix64::new(1);
    harm(&flash, &mut random, geometry().extents_offset()..CAPACITY_BYTES, 30);
    harm(&flash, &mut random, log_zones(), 3);
    let before = look(&drive(&flash)).unwrap();
    assert!(!before.losses.is_empty());
    let mut kept = Kept::default();
    repair(&drive(&flash), &mut kept).unwrap();
    assert!(look(&drive(&flash)).unwrap().is_clean());
    let drive = drive(&flash);
    let io = Io::new(drive.queue_pair(4).unwrap());
    let undo = async {
        for (offset, bytes) in kept.0.iter().rev() {
            let mut buffer = io.allocate(bytes.len()).await.unwrap();
            buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
            io.write(*offset, &mut buffer, bytes.len()).await.unwrap();
        }
    };
    run(&io, undo, || false).unwrap();
    assert_eq!(look(&drive).unwrap(), before);
}

#[test]
fn a_store_without_a_manifest_is_refused() {
    let (flash, _) = patient(false);
    for area in 0..2 {
        flash.flip(geometry().manifest_offset(area) + 20, 1);
    }
    let before = flash.peek(0, CAPACITY_BYTES);
    let refused = repair(&drive(&flash), &mut Kept::default());
    assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
    assert!(flash.peek(0, CAPACITY_BYTES) == before);
}

#[test]
fn everything_stays_deleted_that_was_deleted_with_everything() {
    let (flash, history) = patient(false);
    let store = Store::open_on(&drive(&flash), &options(Sync::Always)).unwrap();
    store.run(Request::DeleteAll { at: 0 }).unwrap();
    store.put(b"new", b"1").unwrap();
    drop(store);
    harm(&flash, &mut SplitMix64::new(2), geometry().extents_offset()..CAPACITY_BYTES, 20);
    let mut shown = Vec::new();
    salvage(&drive(&flash), crate::DEFAULT_KEYSPACE_NAME, |item| {
        shown.push(item.key.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(shown, [b"new"]);
    repair(&drive(&flash), &mut Kept::default()).unwrap();
    let store = Store::open_on(&drive(&flash), &options(Sync::No)).unwrap();
    assert!(history.writes.keys().all(|key| found(&store, key).is_none()));
    assert_eq!(found(&store, "new").as_deref(), Some(&b"1"[..]));
}

/// A store in which everything of the default keyspace was deleted, which the manifest knows, while the log has all writes; the stamp
/// of that deletion, and of a write to the keyspace `other` before it.
fn partly_deleted() -> (FaultyFlash, u64, u64) {
    let flash = FaultyFlash::new(CAPACITY_BYTES, 3);
    let drive = drive(&flash);
    Store::create_on(&drive, &options(Sync::No)).unwrap();
    let store = Store::open_on(&drive, &options(Sync::Always)).unwrap();
    let other = store.create_keyspace("other").unwrap();
    store.put(b"gone", b"1").unwrap();
    let before = other.put(b"before", b"1").unwrap();
    store.run(Request::DeleteAll { at: 0 }).unwrap();
    let watermark = store.hashed().log.stamp_last();
    other.put(b"behind", b"1").unwrap();
    drop((store, other));
    let io = Io::new(drive.queue_pair(16).unwrap());
    let install = async {
        let Superblock { geometry, store_id, .. } = read_superblock(&drive, &io).await?.superblock;
        let recovered = Manifest::recover(&io, drive.local(), &geometry, store_id, empty_clients).await?;
        let mut items = FrameItems::default();
        let mark = DeletionMark { watermark, planned_at: 0 };
        MarksEdit::put(&[MarksEdit::Delete(KeyspaceId::DEFAULT, mark)], &mut items);
        Installer::from(recovered).append(&items).await
    };
    run(&io, install, || false).unwrap().unwrap();
    (flash, watermark, before)
}

fn salvaged(flash: &FaultyFlash, keyspace: &str) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    salvage(&drive(flash), keyspace, |item| {
        keys.push(item.key.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    keys.sort();
    keys
}

#[test]
fn a_deletion_in_one_keyspace_takes_no_writes_of_the_log_from_others() {
    let (flash, _, _) = partly_deleted();
    assert_eq!(salvaged(&flash, "other"), [&b"before"[..], b"behind"]);
    assert!(salvaged(&flash, crate::DEFAULT_KEYSPACE_NAME).is_empty());
    // The last group of the log is damaged.
    let (zones, sector) = (flash.peek(log_zones().start, 2 * SEGMENT_BYTES), 512);
    let last = zones.chunks(sector).rposition(|bytes| bytes.iter().any(|byte| *byte != 0)).unwrap();
    flash.flip(log_zones().start + (last * sector) as u64 + 8, 1);
    drop(Store::open_on(&drive(&flash), &options(Sync::No)).unwrap());
    assert_eq!(salvaged(&flash, "other"), [b"before"]);
}

#[test]
fn a_log_that_is_lost_after_a_clean_stop_is_missed_and_told() {
    let flash = FaultyFlash::new(CAPACITY_BYTES, 3);
    Store::create_on(&drive(&flash), &options(Sync::No)).unwrap();
    let store = Store::open_on(&drive(&flash), &options(Sync::Always)).unwrap();
    let stamps: Vec<u64> = (0..200u32).map(|n| store.put(&n.to_be_bytes(), b"value").unwrap()).collect();
    store.close().unwrap();
    drop(store);
    // Nothing is amiss yet.
    let store = Store::open_read_only_on(&drive(&flash), &options(Sync::No)).unwrap();
    assert_eq!(store.get(&7u32.to_be_bytes()).unwrap().unwrap().value, b"value");
    drop(store);
    for (at, byte) in (log_zones().start..).zip(flash.peek(log_zones().start, 2 * SEGMENT_BYTES)) {
        flash.flip(at, byte);
    }
    for opened in [Store::open_on, Store::open_read_only_on] {
        let refused = opened(&drive(&flash), &options(Sync::No)).err().unwrap().to_string();
        let told = format!("although stamp {} was there when the store was closed", stamps[199]);
        assert!(refused.contains(&told), "{refused}");
    }
    let report = look(&drive(&flash)).unwrap();
    let is_told = |loss: &Loss| matches!(loss, Loss::Writes { stamps: lost, .. } if lost.contains(&stamps[199]));
    assert!(report.losses.iter().any(is_told), "{:?}", report.losses);
    repair(&drive(&flash), &mut Kept::default()).unwrap();
    let store = Store::open_on(&drive(&flash), &options(Sync::No)).unwrap();
    assert!(store.put(b"new", b"1").unwrap() > stamps[199], "no stamp is given twice");
}

#[test]
fn a_log_that_ends_before_a_deletion_that_the_manifest_knows_is_refused_and_repaired() {
    let (flash, watermark, before) = partly_deleted();
    for (at, byte) in (log_zones().start..).zip(flash.peek(log_zones().start, 2 * SEGMENT_BYTES)) {
        flash.flip(at, byte);
    }
    let refused = Store::open_on(&drive(&flash), &options(Sync::No)).err().unwrap().to_string();
    assert!(refused.contains(&format!("the manifest has a deletion with stamp {watermark}")), "{refused}");
    let report = repair(&drive(&flash), &mut Kept::default()).unwrap();
    let is_told = |loss: &Loss| matches!(loss, Loss::Writes { stamps, .. } if stamps.contains(&before));
    assert!(report.losses.iter().any(is_told), "{:?}", report.losses);
    assert!(look(&drive(&flash)).unwrap().is_clean());
    let store = Store::open_on(&drive(&flash), &options(Sync::No)).unwrap();
    let other = store.keyspace("other").unwrap();
    assert!(other.get(b"before").unwrap().is_none() && found(&store, "gone").is_none());
    assert!(other.put(b"new", b"1").unwrap() > watermark, "no stamp is given twice");
}

#[test]
fn a_log_that_breaks_off_before_what_was_durable_is_refused_and_the_planted_bug_shows() {
    let (whole, _) = patient(false);
    let groups: Vec<u64> = log_zones().step_by(512).filter(|at| whole.peek(*at, 512).starts_with(b"TLOG")).collect();
    let refusals = |bug| {
        let is_refused = |at: &&u64| {
            let flash = whole.fork(1);
            flash.flip(**at + 60, 1);
            let open = || Store::open_with(&drive(&flash), &options(Sync::Always), || false);
            // SAFETY: this bug leaves leases alone.
            let opened = unsafe { tapetum_drive::planted::with(bug, open) };
            opened.is_err_and(|error| error.to_string().contains("breaks off"))
        };
        groups.iter().step_by(7).filter(is_refused).count()
    };
    assert!(refusals("") > 0);
    assert_eq!(refusals("SkipLogGap"), 0);
}
