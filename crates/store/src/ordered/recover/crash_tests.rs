//! The rows of `docs/decisions/ordered-crash.md` on images and groups, each under its name.

use super::crash_site::{CrashSite, Stored};
use crate::ordered::slabs::SlotShare;
use crate::ordered::slabs::group_table::{Group, GroupEdit};
use crate::ordered::slabs::slot_class::SlotClass;
use crate::ordered::slabs::slot_round::RoundSlots;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_kernels::ordered::extension::ExtensionReference;

const ALL: (&str, &str) = ("", "");
const LOWER: (&str, &str) = ("", "m");
const UPPER: (&str, &str) = ("m", "");

const OLD: [(&str, &str); 4] = [("a", "old"), ("c", "old"), ("n", "old"), ("z", "old")];

/// A crash with an old node of all keys, under stamp 5.
fn with_old() -> (CrashSite, SlotShare) {
    let site = CrashSite::new();
    let old = site.values(5, ALL, &OLD);
    (site, old)
}

#[test]
fn update_before_image() {
    let (mut site, old) = with_old();
    let opened = site.recover().unwrap();
    assert_eq!(opened.items(), OLD);
    assert_eq!(opened.nodes[""], (5, old.number()), "where it was");
    assert_eq!((opened.counts.images, opened.counts.rewritten, opened.stamp_next), (1, 0, 5000));
}

#[test]
fn update_torn_image() {
    let (mut site, old) = with_old();
    let new = site.values(6, ALL, &[("a", "new")]);
    site.tear(new.number());
    let opened = site.recover().unwrap();
    assert_eq!(opened.items(), OLD);
    assert_eq!((opened.counts.slots_torn, opened.nodes[""].1), (1, old.number()));
    assert!(opened.is_free(new.number()));
    // Its group can be closed, as nothing torn is left in it.
    let group = site.group_of(new.number());
    site.edit(vec![GroupEdit::Close(vec![group.first])]);
    assert_eq!(site.recover().unwrap().counts.slots_torn, 0);
}

#[test]
fn update_unflushed_image() {
    let (mut site, old) = with_old();
    let new = site.values(7, ALL, &[("a", "new")]);
    site.options.stamp_durable = 6;
    let opened = site.recover().unwrap();
    assert_eq!(opened.items(), [("a", "new")]);
    let (stamp, slot) = opened.nodes[""];
    assert_eq!((stamp, opened.stamp_next, opened.counts.rewritten), (5000, 5001, 1), "under a new stamp");
    assert!(slot != new.number() && slot != old.number(), "into another slot");
    assert!(opened.is_free(old.number()) && opened.is_free(new.number()));
    // There may be several such images: all are protected until recovery's writes are durable.
    let (mut site, old) = with_old();
    let newer = [7, 8, 9].map(|stamp| site.values(stamp, ALL, &[("a", "new")]));
    site.options.stamp_durable = 6;
    let (_, slot) = site.recover().unwrap().nodes[""];
    assert!([&old].into_iter().chain(&newer).all(|share| share.number() != slot), "{slot}");
    // A later image, of other keys too, attests that it was durable.
    let (mut site, _old) = with_old();
    let new = site.values(7, LOWER, &[("a", "new")]);
    (site.options.stamp_durable, site.stamp_durable) = (6, 7);
    let _later = site.values(8, UPPER, &[("n", "later")]);
    let opened = site.recover().unwrap();
    assert_eq!((opened.nodes[""], opened.nodes["m"].0), ((7, new.number()), 5000));
    // It was only in the drive's cache: the old image is there, whole.
    let (mut site, _old) = with_old();
    assert_eq!(site.recover().unwrap().items(), OLD);
}

#[test]
fn update_before_free() {
    let (mut site, old) = with_old();
    let new = site.values(6, ALL, &[("a", "new")]);
    let opened = site.recover().unwrap();
    assert_eq!(opened.items(), [("a", "new")]);
    assert_eq!((opened.nodes[""], opened.counts.images_dead), ((6, new.number()), 1));
    assert!(opened.is_free(old.number()) && !opened.is_free(new.number()));
}

#[test]
fn update_old_slot_reused() {
    for is_torn in [false, true] {
        let (mut site, old) = with_old();
        let slot = old.number();
        let lower = site.values(6, LOWER, &[("a", "new")]);
        let _upper = site.values(7, UPPER, &[("n", "upper")]);
        drop(old);
        site.turn_round(7);
        let reused = site.values(8, UPPER, &[("n", "reused")]);
        assert_eq!(reused.number(), slot, "the lowest free one");
        if is_torn {
            site.tear(slot);
        }
        let opened = site.recover().unwrap();
        let upper = if is_torn { "upper" } else { "reused" };
        assert_eq!(opened.items(), [("a", "new"), ("n", upper)]);
        assert_eq!(opened.nodes[""].1, lower.number());
    }
}

#[test]
fn extension_torn() {
    let (site, _old) = with_old();
    let mut site = site.with_extensions();
    let (_, torn) = site.extension(6, "a", "value");
    site.tear(torn.number());
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.extensions), (OLD.to_vec(), 0));
    assert_eq!(
        opened.slots.of_class(SlotClass::Extensions(0)).take(None).unwrap().number(),
        torn.number(),
        "it is free"
    );
}

#[test]
fn extension_before_node() {
    let (site, _old) = with_old();
    let mut site = site.with_extensions();
    let (_, whole) = site.extension(6, "a", "value");
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.extensions), (OLD.to_vec(), 0));
    assert_eq!(opened.slots.of_class(SlotClass::Extensions(0)).take(None).unwrap().number(), whole.number());
}

#[test]
fn extension_replaced() {
    let mut site = CrashSite::new().with_extensions();
    let (one, first) = site.extension(4, "a", "one");
    let _old = site.image(5, ALL, &[("a", Stored::Extension(one, "one"))]);
    let (two, _second) = site.extension(6, "a", "two");
    let _new = site.image(7, ALL, &[("a", Stored::Extension(two, "two"))]);
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.extensions), (vec![("a", "two")], 1));
    assert_eq!(opened.slots.of_class(SlotClass::Extensions(0)).take(None).unwrap().number(), first.number());
}

#[test]
fn extension_stamp_differs() {
    let mut site = CrashSite::new().with_extensions();
    let (one, first) = site.extension(4, "a", "one");
    let _dead = site.image(5, ALL, &[("a", Stored::Extension(one, "one"))]);
    let slot = first.number();
    drop(first);
    let (two, second) = site.extension(8, "b", "two");
    assert_eq!(second.number(), slot, "the slot is used again");
    let _live = site.image(9, ALL, &[("b", Stored::Extension(two, "two"))]);
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.extensions), (vec![("b", "two")], 1));
}

/// Extensions beyond the slabs: a torn one, one that no image names, one that a dead image names, and a live one. All but the last are freed.
#[test]
fn large_extensions() {
    let mut site = CrashSite::new();
    let text = |byte: char, bytes: usize| String::from_iter(std::iter::repeat_n(byte, bytes));
    let (live, unnamed) = (text('l', 70_000), text('u', 200_000));
    let (replaced, _first) = site.large_extension(3, "a", &text('r', 70_000));
    let _dead = site.image(4, ("", ""), &[("a", Stored::Extension(replaced, &text('r', 70_000)))]);
    let (two, _second) = site.large_extension(5, "a", &live);
    let _new = site.image(6, ("", ""), &[("a", Stored::Extension(two, &live))]);
    let (_, _unnamed) = site.large_extension(7, "b", &unnamed);
    let (_, torn) = site.large_extension(8, "c", &text('t', 131_000));
    site.tear(torn.number() + 20);
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.extensions), (vec![("a", &live[..])], 1));
    let large = opened.slots.of_class(SlotClass::Large);
    assert_eq!(large.counts().groups, 4);
    site.media.grow(large).unwrap();
    assert_eq!((large.counts().groups, large.counts().slots_free), (1, 0), "the others were given back");
    let again = site.recover().unwrap();
    assert_eq!((again.items(), again.counts.extensions), (vec![("a", &live[..])], 1));
}

/// A reference to more bytes than its group has is damage.
#[test]
fn a_group_that_is_too_small_for_its_extension_is_damage() {
    let mut site = CrashSite::new();
    let value = String::from_iter(std::iter::repeat_n('x', 70_000));
    let (reference, _share) = site.large_extension(3, "a", &value);
    let longer = ExtensionReference { stored_bytes: 200_000, ..reference };
    let _image = site.image(4, ("", ""), &[("a", Stored::Extension(longer, &value))]);
    let error = site.recover().err().unwrap().to_string();
    assert!(error.contains("no slot of that size"), "{error}");
}

#[test]
fn split_none() {
    let (mut site, _old) = with_old();
    let lower = site.values(6, LOWER, &[("a", "lower")]);
    let upper = site.values(7, UPPER, &[("n", "upper")]);
    site.tear(lower.number());
    site.tear(upper.number());
    assert_eq!(site.recover().unwrap().items(), OLD);
}

#[test]
fn split_lower_only() {
    let (mut site, old) = with_old();
    let lower = site.values(6, LOWER, &[("a", "lower")]);
    let opened = site.recover().unwrap();
    assert_eq!(opened.items(), [("a", "lower"), ("n", "old"), ("z", "old")]);
    assert_eq!(opened.nodes[""], (6, lower.number()));
    assert_eq!((opened.nodes["m"].0, opened.counts.rewritten), (5000, 1), "a part is written again");
    assert!(opened.is_free(old.number()));
    assert_eq!(site.recover().unwrap().items(), opened.items());
}

#[test]
fn split_upper_only() {
    let (mut site, old) = with_old();
    let upper = site.values(7, UPPER, &[("n", "upper")]);
    let opened = site.recover().unwrap();
    assert_eq!(opened.items(), [("a", "old"), ("c", "old"), ("n", "upper")]);
    assert_eq!((opened.nodes[""].0, opened.nodes["m"]), (5000, (7, upper.number())));
    assert!(opened.is_free(old.number()));
}

#[test]
fn split_both() {
    let (mut site, old) = with_old();
    let lower = site.values(6, LOWER, &[("a", "lower")]);
    let upper = site.values(7, UPPER, &[("n", "upper")]);
    let opened = site.recover().unwrap();
    assert_eq!(opened.items(), [("a", "lower"), ("n", "upper")]);
    assert_eq!((opened.nodes[""].1, opened.nodes["m"].1), (lower.number(), upper.number()));
    assert!(opened.is_free(old.number()));
    assert_eq!(opened.counts.rewritten, 0);
}

#[test]
fn split_then_update_of_one_half() {
    let (mut site, _old) = with_old();
    let _first = site.values(6, LOWER, &[("a", "first")]);
    let _second = site.values(8, LOWER, &[("a", "second")]);
    assert_eq!(site.recover().unwrap().items(), [("a", "second"), ("n", "old"), ("z", "old")]);
}

/// A crash with two old nodes; the right one has been written more often.
fn with_both() -> (CrashSite, [SlotShare; 2]) {
    let site = CrashSite::new();
    let both = [site.values(5, LOWER, &[("a", "left")]), site.values(40, UPPER, &[("n", "right")])];
    (site, both)
}

#[test]
fn merge_before_image() {
    let (mut site, _both) = with_both();
    let merged = site.values(41, ALL, &[("a", "merged")]);
    site.tear(merged.number());
    assert_eq!(site.recover().unwrap().items(), [("a", "left"), ("n", "right")]);
}

#[test]
fn merge_after_image() {
    let (mut site, both) = with_both();
    let merged = site.values(41, ALL, &[("a", "merged")]);
    let opened = site.recover().unwrap();
    assert_eq!(opened.items(), [("a", "merged")], "what was deleted from the right one does not come back");
    assert_eq!(opened.nodes.len(), 1);
    assert_eq!(opened.nodes[""].1, merged.number());
    assert!(both.iter().all(|share| opened.is_free(share.number())));
}

#[test]
fn merge_then_split() {
    let (mut site, _both) = with_both();
    let _merged = site.values(41, ALL, &[("a", "merged"), ("n", "merged"), ("x", "merged")]);
    let _half = site.values(42, ("q", ""), &[("x", "half")]);
    let opened = site.recover().unwrap();
    assert_eq!(opened.items(), [("a", "merged"), ("n", "merged"), ("x", "half")]);
    assert_eq!((opened.counts.images_dead, opened.counts.rewritten), (2, 1), "both old ones count for nothing");
}

#[test]
fn split_then_merge_before_either() {
    for (has_half, has_merged) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut site, _old) = with_old();
        let half = site.values(6, LOWER, &[("a", "half")]);
        let merged = site.values(8, ALL, &[("a", "merged"), ("n", "merged")]);
        let torn = [(half, has_half), (merged, has_merged)];
        torn.iter().filter(|(_, is_there)| !is_there).for_each(|(share, _)| site.tear(share.number()));
        let expected: &[(&str, &str)] = match (has_half, has_merged) {
            (_, true) => &[("a", "merged"), ("n", "merged")],
            (true, false) => &[("a", "half"), ("n", "old"), ("z", "old")],
            (false, false) => &OLD,
        };
        assert_eq!(site.recover().unwrap().items(), expected);
    }
}

#[test]
fn group_opened() {
    let (mut site, _old) = with_old();
    // The extents have an image of an earlier tenant, written under another group's version. Nobody names them yet.
    let group = Group { version: 99, ..site.group_of(0) };
    let earlier = site.values(900, ALL, &[("a", "earlier")]);
    let page = site.media.read(earlier.flash_offset(), 4096);
    let unnamed = 3 * super::crash_site::GROUP_SLOTS;
    site.media.write(site.media.map.flash(unnamed), &page);
    site.tear(earlier.number());
    assert_eq!(site.recover().unwrap().items(), OLD, "nobody looks at it");
    // The group is there, but its zeros were not written: with its salt the old image is invalid.
    let mut round = site.media.log.table.round(group.keyspace).unwrap().clone();
    round.groups.insert(unnamed, RoundSlots::all_free(super::crash_site::GROUP_SLOTS));
    let added = GroupEdit::Add(Group { first: unnamed, ..group });
    site.edit(vec![added, GroupEdit::Open(vec![unnamed]), GroupEdit::Round(round)]);
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.slots_torn), (OLD.to_vec(), 1));
}

#[test]
fn group_closed() {
    let (mut site, old) = with_old();
    let other = site.values(6, UPPER, &[("n", "new")]);
    let group = site.group_of(old.number());
    site.edit(vec![GroupEdit::Close(vec![group.first])]);
    let expected = [("a", "old"), ("c", "old"), ("n", "new")];
    assert_eq!(site.recover().unwrap().items(), expected, "its images are the same");
    site.tear(other.number());
    let Err(Error::Corrupt(place)) = site.recover() else { panic!("damage is an error") };
    assert!(place.contains(&format!("slot 0 of extent {}", other.number())), "{place}");
    let mut round = site.media.log.table.round(group.keyspace).unwrap().clone();
    round.groups.insert(group.first, RoundSlots::all_free(super::crash_site::GROUP_SLOTS));
    site.edit(vec![GroupEdit::Open(vec![group.first]), GroupEdit::Round(round)]);
    assert_eq!(site.recover().unwrap().items(), OLD, "before the edit, it is a torn slot");
}

#[test]
fn keyspace_dropped() {
    let (mut site, old) = with_old();
    site.edit(vec![GroupEdit::Drop(KeyspaceId(1))]);
    assert_eq!(site.recover().unwrap().items(), OLD, "another keyspace's drop");
    let keyspace = site.group_of(old.number()).keyspace;
    site.edit(vec![GroupEdit::Drop(keyspace)]);
    let opened = site.recover().unwrap();
    assert_eq!((opened.nodes.len(), opened.counts.images, opened.slots.nodes().counts().groups), (0, 0, 0));
}

#[test]
fn recovery_itself() {
    let expected = [("a", "lower"), ("n", "old"), ("z", "old")];
    let with_half = || {
        let (mut site, old) = with_old();
        let _ = old.keep();
        let _ = site.values(7, LOWER, &[("a", "lower")]).keep();
        site.options.stamp_durable = 6;
        site
    };
    // Recoveries run to their end, repeatedly, without an `opened`. Stamps are skipped as an opening does.
    let mut site = with_half();
    for number in 0..20_u64 {
        site.options.stamp_next = 5000 + 100 * number;
        let opened = site.recover().unwrap();
        assert_eq!(opened.items(), expected);
        assert!(opened.nodes.values().all(|(stamp, _)| *stamp >= site.options.stamp_next), "{:?}", opened.nodes);
    }
    // Stamps begin above those of all images, whoever assigned them.
    site.options.stamp_next = 10;
    let highest = site.recover().unwrap().stamp_next;
    assert!(highest > 6900 && site.recover().unwrap().stamp_next > highest, "{highest}");
    // The flush fails, and none or all of the writes survive.
    let mut site = with_half();
    site.media.log.flush_failure = Some(Error::Io("for the test".into()));
    assert!(site.recover().is_err());
    site.options.stamp_next = 6000;
    assert_eq!(site.recover().unwrap().items(), expected);
}
