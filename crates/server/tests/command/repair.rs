//! Tests of `repair` and `dump --skip-bad` from outside: a store with flipped bits is refused, reports its losses, and serves again.

use std::collections::BTreeSet;
use std::fs;
use std::ops::{Deref, Range};
use std::path::PathBuf;

use crate::outside::{Scratch, failed, tapetum};

struct Patient(Scratch);

impl Deref for Patient {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.0
    }
}

impl Patient {
    /// A store of some thousand items. The last of them are only in the log.
    fn new(name: &str) -> Patient {
        let patient = Patient(Scratch::new(&format!("repair-{name}"), |command, _, data| {
            command.args(["--memory", "32MiB", "--data"]).arg(data);
        }));
        let items = patient.join("items.tsv");
        let lines: String = (0..20_000).map(|number| format!("key{number}\t{}\n", value(number))).collect();
        fs::write(&items, lines).unwrap();
        patient.succeeds(&["load", items.to_str().unwrap(), "--create", "--capacity", "32MiB"]);
        patient.succeeds(&["put", "last", "in the log"]);
        patient
    }

    fn drive(&self) -> PathBuf {
        self.join("data/drive")
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.drive()).unwrap()
    }

    /// Flips a bit in each of `count` sectors that are not empty, in a part of the drive.
    fn harm(&self, part: Range<usize>, count: usize, seed: u64) {
        let (mut bytes, mut state) = (self.bytes(), seed);
        let used: Vec<usize> =
            part.step_by(512).filter(|at| bytes[*at..*at + 512].iter().any(|byte| *byte != 0)).collect();
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        };
        for _ in 0..count {
            bytes[used[random() % used.len()] + random() % 512] ^= 1 << (random() % 8);
        }
        fs::write(self.drive(), bytes).unwrap();
    }

    /// The ends of the manifest, the log and the drive.
    fn parts(&self) -> [usize; 3] {
        let text = self.succeeds(&["inspect", "--json"]);
        let inspection: serde_json::Value = serde_json::from_str(&text).unwrap();
        let areas = inspection["areas"].as_array().unwrap();
        let log = areas.iter().find(|area| area["kind"] == "log").unwrap();
        let start = log["offset_bytes"].as_u64().unwrap() as usize;
        [start, start + log["length_bytes"].as_u64().unwrap() as usize, self.bytes().len()]
    }
}

fn value(number: u32) -> String {
    // A value that hardly compresses.
    (0..20).map(|part| format!("{:08x}", (number + part).wrapping_mul(0x9e37_79b9).rotate_left(part))).collect()
}

/// The items of a dump, each as it must be.
#[track_caller]
fn items(dump: &str) -> BTreeSet<String> {
    let item = |line: &str| {
        let (key, found) = line.split_once('\t').unwrap();
        let number = key.strip_prefix("key").map(|number| number.parse().unwrap());
        assert_eq!(found, number.map_or("in the log".into(), value), "{key}");
        key.to_owned()
    };
    dump.lines().map(item).collect()
}

#[test]
fn a_store_with_four_hundred_turned_bits_says_what_it_lost_and_serves_again() {
    let patient = Patient::new("flips");
    let [log, extents, end] = patient.parts();
    patient.harm(extents..end, 390, 1);
    patient.harm(log..extents, 10, 2);
    let harmed = patient.bytes();
    let refused = patient.fails(&["check"]);
    assert!(refused.contains("tapetum repair") && refused.contains("dump --skip-bad"), "{refused}");

    let dumped = patient.run(&["dump", "--skip-bad", "--format", "tsv"]);
    let (dump, told) = (String::from_utf8(dumped.stdout).unwrap(), String::from_utf8(dumped.stderr).unwrap());
    assert_eq!(dumped.status.code(), Some(1), "not all was dumped");
    assert!(told.contains("not dumped: ") && told.contains("not dumped in all: "), "{told}");
    let salvaged = items(&dump);
    assert!(salvaged.len() > 15_000 && salvaged.len() < 20_001, "{} items", salvaged.len());

    let look = patient.succeeds(&["repair"]);
    assert!(look.contains("would be lost: the item of key \"key") && look.contains("nothing was written"), "{look}");
    assert!(patient.bytes() == harmed, "a look has changed something");

    let done = patient.succeeds(&["repair", "--yes"]);
    assert!(done.contains("drive.before-repair-1") && done.contains("is lost: "), "{done}");
    assert!(patient.succeeds(&["check"]).contains("no damage found"));
    assert_eq!(patient.succeeds(&["repair"]), "no damage found\n");
    assert!(patient.succeeds(&["repair", "--yes"]).starts_with("no damage found"));
    assert!(!patient.join("data/drive.before-repair-2").exists(), "there was nothing to keep");
    assert!(items(&patient.succeeds(&["dump", "--format", "tsv"])) == salvaged);
    // Missing items were reported, by key or in the number of those whose keys are unreadable.
    let (missing, all) =
        (20_001 - salvaged.len(), done.lines().find_map(|line| line.strip_prefix("lost in all: ")).unwrap());
    let lost: usize = all.split(' ').next().unwrap().parse().unwrap();
    // A group of the log holds some hundred of these items.
    let in_log = if done.contains("writes and deletions") { 2000 } else { 0 };
    assert!((1..=lost + in_log).contains(&missing), "{missing} are missing and {all}");
    let named: Vec<u32> = (0..20_000).filter(|number| done.contains(&format!("\"key{number}\""))).collect();
    assert!(named.iter().all(|number| !salvaged.contains(&format!("key{number}"))));
    assert!(named.len() > 100, "{} are named", named.len());

    let kept = patient.join("data/drive.before-repair-1");
    let repaired = patient.bytes();
    patient.succeeds(&["repair", "--undo", kept.to_str().unwrap()]);
    assert_eq!(patient.succeeds(&["repair"]), look);

    // A store that was written to since the repair is in no state that the repair left.
    fs::write(patient.drive(), repaired).unwrap();
    patient.succeeds(&["put", "after", "the repair"]);
    let written = patient.bytes();
    let refused = patient.fails(&["repair", "--undo", kept.to_str().unwrap()]);
    assert!(refused.contains("was written to since") && refused.contains("nothing was written"), "{refused}");
    assert!(patient.bytes() == written);
    assert_eq!(patient.succeeds(&["get", "after"]), "the repair");
}

#[test]
fn a_repair_is_undone_of_its_own_store_alone() {
    let (patient, other) = (Patient::new("undo"), Patient::new("undo-other"));
    let [_, extents, end] = patient.parts();
    patient.harm(extents..end, 50, 1);
    patient.succeeds(&["repair", "--yes"]);
    let kept = patient.join("data/drive.before-repair-1");
    let before = other.bytes();
    let refused = other.fails(&["repair", "--undo", kept.to_str().unwrap()]);
    assert!(refused.contains("of another store") && refused.contains("nothing was written"), "{refused}");
    assert!(other.bytes() == before);
    // Nor is a file that is not a store overwritten.
    let letters = patient.join("letters");
    fs::write(&letters, vec![b'x'; 1 << 20]).unwrap();
    let words = ["repair", "--undo", kept.to_str().unwrap(), "--drive", letters.to_str().unwrap()];
    let refused = failed(tapetum(&words).output().unwrap());
    assert!(refused.contains("is another one") && refused.contains("nothing was written"), "{refused}");
    assert!(fs::read(&letters).unwrap() == vec![b'x'; 1 << 20]);
}

#[test]
fn a_manifest_that_is_cut_does_not_take_the_store_with_it() {
    let patient = Patient::new("manifest");
    let whole = items(&patient.succeeds(&["dump", "--format", "tsv"])).len();
    let [log, _, _] = patient.parts();
    // Both copies of a frame of the list; the first frame holds the snapshot.
    let (bytes, area_bytes) = (patient.bytes(), (log - 8192) / 2);
    let is_frame = |at: &usize| bytes[*at..*at + 4] == *b"TMAN";
    let frames: Vec<usize> = (8192..8192 + area_bytes).step_by(512).filter(is_frame).collect();
    let frame = frames[frames.len() / 2];
    patient.harm(frame..frame + 512, 1, 3);
    assert!(patient.fails(&["check"]).contains("frames of copy 0 of the manifest"));
    assert_eq!(items(&patient.succeeds(&["dump", "--format", "tsv"])).len(), whole);
    let copy = frame + area_bytes;
    patient.harm(copy..copy + 512, 1, 3);
    let refused = patient.fails(&["get", "key1"]);
    assert!(refused.contains("manifest") && refused.contains("tapetum repair"), "{refused}");
    let told = patient.run(&["dump", "--skip-bad", "--format", "tsv"]);
    let salvaged = items(&String::from_utf8(told.stdout).unwrap());
    assert!(patient.succeeds(&["repair", "--yes"]).contains("writes and deletions with stamps"));
    assert!(patient.succeeds(&["check"]).contains("no damage found"));
    assert!(items(&patient.succeeds(&["dump", "--format", "tsv"])) == salvaged);
}

#[test]
fn an_ordered_keyspace_says_which_keys_it_lost_and_serves_again() {
    let patient = Patient::new("ordered");
    let items = patient.join("items.tsv");
    patient.succeeds(&["keyspace", "create", "sorted", "--index", "ordered"]);
    let of_sorted = ["--keyspace", "sorted"];
    patient.succeeds(&[&["load", items.to_str().unwrap(), "--create", "--capacity", "32MiB"][..], &of_sorted].concat());
    let report = patient.succeeds(&["inspect"]);
    assert!(report.contains("groups of ordered keyspaces") && report.contains("trees"), "{report}");
    let place = patient.succeeds(&[&["inspect", "key777"][..], &of_sorted].concat());
    assert!(place.contains("place data node") && place.contains("low_fence key"), "{place}");
    let figure = |name: &str| {
        let line = place.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap().parse::<usize>().unwrap()
    };
    let at = figure("flash_at");
    assert_eq!(patient.succeeds(&["repair"]), "no damage found\n");
    patient.harm(at..at + 512, 1, 4);
    let dumped = patient.run(&[&["dump", "--skip-bad", "--format", "tsv"][..], &of_sorted].concat());
    let (dump, told) = (String::from_utf8(dumped.stdout).unwrap(), String::from_utf8(dumped.stderr).unwrap());
    assert_eq!(dumped.status.code(), Some(1));
    let is_named =
        |told: &str| told.contains("of keyspace \"sorted\"") && told.contains(&format!("byte {at} of the drive"));
    assert!(told.contains("not dumped: ") && is_named(&told), "{told}");
    let done = patient.succeeds(&["repair", "--yes"]);
    assert!(done.contains("is lost: ") && is_named(&done), "{done}");
    assert!(patient.succeeds(&["check"]).contains("no damage found"));
    assert_eq!(patient.succeeds(&["repair"]), "no damage found\n");
    let after = patient.succeeds(&[&["dump", "--format", "tsv"][..], &of_sorted].concat());
    assert!(after == dump, "what was dumped is what is left");
    assert!(after.lines().count() > 19_000, "{}", after.lines().count());
    assert!(!after.lines().any(|line| line.starts_with("key777\t") && !line.ends_with(&value(777))));
}

#[test]
fn a_block_device_wants_a_file_and_an_old_one_is_left_alone() {
    let patient = Patient::new("keep");
    let [_, extents, end] = patient.parts();
    patient.harm(extents..end, 50, 1);
    let kept = patient.join("kept");
    fs::write(&kept, b"mine").unwrap();
    let refused = patient.fails(&["repair", "--yes", "--keep", kept.to_str().unwrap()]);
    assert!(refused.contains("exists already"), "{refused}");
    assert_eq!(fs::read(&kept).unwrap(), b"mine");
    let refused = patient.fails(&["repair", "--undo", kept.to_str().unwrap()]);
    assert!(refused.contains("nothing was written"), "{refused}");
}
