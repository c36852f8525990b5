//! The rows of `docs/decisions/ordered-crash.md` on batches, each under its name, as recovery sees them. `ordered/batch_crash_tests.rs` has the same
//! over a whole store whose power fails anywhere.

use super::crash_site::{CrashSite, Logged, Stored};
use crate::ordered::slabs::SlotShare;

const ALL: (&str, &str) = ("", "");
const LOWER: (&str, &str) = ("", "m");
const UPPER: (&str, &str) = ("m", "");
const OLD: [(&str, &str); 4] = [("a", "old"), ("c", "old"), ("n", "old"), ("z", "old")];
const PUT: Logged = Logged::Put(Stored::Value("batch"));

/// Two old nodes, under the stamps 5 and 6.
fn with_two() -> (CrashSite, [SlotShare; 2]) {
    let site = CrashSite::new();
    let both = [site.values(5, LOWER, &OLD[..2]), site.values(6, UPPER, &OLD[2..])];
    (site, both)
}

/// A batch with the stamps 10, 11 and 12: a put in the lower node, a put and a deletion in the upper one.
fn batch(site: &mut CrashSite) {
    site.log = vec![(10, "b", PUT), (11, "n", PUT), (12, "z", Logged::Delete)];
}

const AFTER: [(&str, &str); 4] = [("a", "old"), ("b", "batch"), ("c", "old"), ("n", "batch")];

#[test]
fn batch_before_group() {
    let (mut site, _old) = with_two();
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.made_again), (OLD.to_vec(), 0), "none of the batch");
}

#[test]
fn batch_after_group() {
    let (mut site, _old) = with_two();
    batch(&mut site);
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.made_again, opened.counts.rewritten), (AFTER.to_vec(), 3, 2));
    assert!(opened.nodes.values().all(|(stamp, _)| *stamp >= 5000), "{:?}", opened.nodes);
    // The images include the batch: recovery does not replay the log for them again, whether it still has the records or not.
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.made_again), (AFTER.to_vec(), 0));
    site.log.clear();
    assert_eq!(site.recover().unwrap().items(), AFTER);
    // No image was ever written in the keyspace.
    let mut site = CrashSite::new();
    batch(&mut site);
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.nodes.len()), (vec![("b", "batch"), ("n", "batch")], 1));
}

#[test]
fn batch_some_images() {
    // The upper image has the batch and a later write: only the lower node's part is replayed.
    let (mut site, _old) = with_two();
    batch(&mut site);
    let _new = site.values(13, UPPER, &[("n", "later")]);
    let opened = site.recover().unwrap();
    let later = [("a", "old"), ("b", "batch"), ("c", "old"), ("n", "later")];
    assert_eq!((opened.items(), opened.counts.made_again), (later.to_vec(), 1));
    // The image is only in the drive's cache and vanishes: its part of the batch is replayed, too.
    let (mut site, _old) = with_two();
    batch(&mut site);
    let new = site.values(13, UPPER, &[("n", "later")]);
    site.options.stamp_durable = 9;
    site.tear(new.number());
    assert_eq!(site.recover().unwrap().items(), AFTER);
    // The image did not vanish: it is rewritten, with the batch, under a stamp above the batch's.
    let (mut site, _old) = with_two();
    batch(&mut site);
    let unsure = site.values(8, LOWER, &[("a", "eight")]);
    let _ = unsure.keep();
    site.options.stamp_durable = 7;
    let opened = site.recover().unwrap();
    assert_eq!(opened.items(), [("a", "eight"), ("b", "batch"), ("n", "batch")]);
    site.log.clear();
    assert_eq!(site.recover().unwrap().items(), [("a", "eight"), ("b", "batch"), ("n", "batch")]);
    // One half of a split has an image above the batch. For the rest the old image is live, which is below the batch.
    let mut site = CrashSite::new();
    let _old = site.values(5, ALL, &OLD);
    batch(&mut site);
    let _lower = site.values(13, LOWER, &[("b", "batch")]);
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.made_again), (vec![("b", "batch"), ("n", "batch")], 2));
}

#[test]
fn more_records_than_a_node_takes_become_several_nodes() {
    let (mut site, _old) = with_two();
    let value: &'static str = "v".repeat(1500).leak();
    let keys = ["o", "p", "q", "r", "s", "t", "u"];
    site.log = (20..).zip(keys).map(|(stamp, key)| (stamp, key, Logged::Put(Stored::Value(value)))).collect();
    let opened = site.recover().unwrap();
    assert_eq!(opened.items.len(), OLD.len() + keys.len());
    assert!(opened.nodes.len() >= 5 && opened.items["u"] == value, "{:?}", opened.nodes);
}

#[test]
fn extensions_that_the_log_names_are_live_and_those_that_it_replaces_are_not() {
    let mut site = CrashSite::new().with_extensions();
    let (before, old) = site.extension(3, "a", "in an extension");
    let (written, new) = site.extension(9, "a", "another one");
    let _old = site.image(5, ALL, &[("a", Stored::Extension(before, "in an extension"))]);
    site.log = vec![(10, "a", Logged::Put(Stored::Extension(written, "another one")))];
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.extensions), (vec![("a", "another one")], 1));
    let space = opened.slots.of_class(crate::ordered::slabs::slot_class::SlotClass::Extensions(0));
    assert!(space.share(new.address()).is_some() && space.share(old.address()).is_none());
    // The same for an image that stays: the other extension that it names is live.
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.extensions), (vec![("a", "another one")], 1));
}

/// If flash has few slots left, slots of replaced images are reused, once the replacements are durable.
#[test]
fn a_batch_over_more_nodes_than_slots_are_free_is_made_again() {
    let mut site = CrashSite::new();
    let free = site.slots.nodes().counts().slots_open;
    let letters: Vec<String> = (0..free - 3).map(|number| char::from(b'b' + number as u8).to_string()).collect();
    let mut low = String::new();
    for (number, high) in letters.iter().enumerate() {
        let _ = site.values(5 + number as u64, (&low, high), &[(&format!("{low}a"), "old")]).keep();
        low.clone_from(high);
    }
    let _ = site.values(100, (&low, ""), &[(&format!("{low}a"), "old")]).keep();
    let keys: Vec<&'static str> = letters.iter().map(|low| &*format!("{low}z").leak()).collect();
    site.log = (200..).zip(&keys).map(|(stamp, key)| (stamp, *key, PUT)).collect();
    // No extents are left for other groups.
    while tapetum_base::media::io::lock(&site.media.extents).take_one().is_some() {}
    let opened = site.recover().unwrap();
    assert_eq!(opened.items.len(), letters.len() + 1 + keys.len());
    assert!(keys.iter().all(|key| opened.items[*key] == "batch"));
}
