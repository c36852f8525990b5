//! Recovery's reports of damage and of limits.

use super::crash_site::{CrashSite, GROUP_SLOTS, Stored};
use crate::ordered::slabs::growth::GroupLog;
use tapetum_base::error::Error;
use tapetum_kernels::ordered::{NODE_BYTES, NODE_KEY_BYTES_MAX};

const ALL: (&str, &str) = ("", "");

fn corrupt(site: &mut CrashSite) -> String {
    match site.recover().map(|opened| opened.nodes) {
        Err(Error::Corrupt(what)) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_keyspace_without_images_is_empty() {
    let opened = CrashSite::new().recover().unwrap();
    assert_eq!((opened.nodes.len(), opened.counts.images, opened.counts.slots_torn), (0, 0, 0));
}

#[test]
fn a_gap_says_which_keys_are_missing() {
    let mut site = CrashSite::new();
    let _left = site.values(5, ("", "g"), &[]);
    let _right = site.values(6, ("k\u{1}", ""), &[]);
    let what = corrupt(&mut site);
    assert!(what.contains("keys from \"g\" to \"k\\x01\""), "{what}");
    let mut site = CrashSite::new();
    let _only = site.values(5, ("", "g"), &[]);
    assert!(corrupt(&mut site).contains("from \"g\" to the end"));
}

#[test]
fn two_images_of_one_stamp_say_where_they_are() {
    let mut site = CrashSite::new();
    let (one, two) = (site.values(5, ALL, &[]), site.values(5, ("b", "c"), &[]));
    let what = corrupt(&mut site);
    for share in [one, two] {
        assert!(what.contains(&format!("extent {} ", share.number())), "{what}");
    }
}

#[test]
fn an_extension_that_two_live_records_name_or_that_is_in_no_slot_is_damage() {
    let mut site = CrashSite::new().with_extensions();
    let (one, _share) = site.extension(4, "a", "one");
    let named = |key| (key, Stored::Extension(one, "one"));
    let image = site.image(5, ALL, &[named("a"), named("b")]);
    assert!(corrupt(&mut site).contains("names an extension of 1 pages"));
    drop(image);
    let mut site = CrashSite::new();
    let _image = site.image(5, ALL, &[named("a")]);
    assert!(corrupt(&mut site).contains("names an extension"), "there are no groups of extensions");
}

#[test]
fn an_image_of_another_format_is_refused_with_a_way_out() {
    use tapetum_kernels::checksum::checksum;
    let mut site = CrashSite::new();
    let share = site.values(5, ALL, &[]);
    let mut page = site.media.read(share.flash_offset(), NODE_BYTES);
    page[4] = 200;
    let crc = checksum(share.salt().of_node(), &[&page[4..]]);
    page[..4].copy_from_slice(&crc.to_le_bytes());
    site.media.write(share.flash_offset(), &page);
    let Err(Error::OtherFormat(what)) = site.recover().map(|_| ()) else { panic!("it is not known") };
    assert!(what.contains("version 200") && what.contains("newer tapetum"), "{what}");
}

#[test]
fn images_that_take_more_memory_than_there_is_are_refused_with_a_way_out() {
    let mut site = CrashSite::new();
    let _image = site.values(5, ALL, &[]);
    site.options.memory_bytes = 10;
    let Err(Error::Options(what)) = site.recover().map(|_| ()) else { panic!("there is too little memory") };
    assert!(what.contains("more memory"), "{what}");
}

#[test]
fn nothing_is_written_before_all_was_believed() {
    let mut site = CrashSite::new();
    let torn = site.values(6, ALL, &[]);
    site.tear(torn.number());
    let _gap = site.values(5, ("", "g"), &[]);
    let before = site.media.read(torn.flash_offset(), NODE_BYTES);
    corrupt(&mut site);
    assert_eq!(site.media.read(torn.flash_offset(), NODE_BYTES), before);
    assert_eq!(site.media.log.appends, 1, "its groups were made");
}

#[test]
fn groups_grow_where_no_open_slot_is_left_for_what_is_written_again() {
    let mut site = CrashSite::new();
    // The test makes as many nodes as there are slots, each of one letter, none known to be durable.
    let fences: Vec<String> = (0..2 * GROUP_SLOTS as u8).map(|number| char::from(b'a' + number).to_string()).collect();
    for (number, low) in fences.iter().enumerate() {
        let (low, high) =
            (if number == 0 { "" } else { &low[..] }, fences.get(number + 1).map_or("", |high| &high[..]));
        let _ = site.values(number as u64 + 1, (low, high), &[(&fences[number], "value")]).keep();
    }
    site.options.stamp_durable = 0;
    let opened = site.recover().unwrap();
    assert_eq!((opened.items.len(), opened.counts.rewritten), (16, 16));
    assert_eq!(opened.stamp_next, 5016);
    assert!(site.media.log.version_next() >= 4, "two groups more");
}

#[test]
fn a_part_that_longer_fences_leave_too_little_room_for_becomes_two_nodes() {
    let mut site = CrashSite::new();
    let low = "b".repeat(NODE_KEY_BYTES_MAX);
    let high = "y".repeat(NODE_KEY_BYTES_MAX);
    let value = "v".repeat(1200);
    let (one, two, three) = (low.clone(), String::from("m"), String::from("x"));
    let records = [(&two[..], &value[..]), (&three[..], &value[..])];
    let _old = site.values(5, ALL, &[&[("z", "old")], &records[..]].concat());
    let _left = site.values(6, ("", &low), &[("a", "new")]);
    let _right = site.values(7, (&high, ""), &[("z", "new")]);
    let opened = site.recover().unwrap();
    assert_eq!(opened.items().len(), 4);
    assert_eq!((&opened.items["m"], &opened.items["x"]), (&value, &value));
    assert_eq!(opened.nodes.keys().map(|low| &low[..]).collect::<Vec<_>>(), ["", &one[..], "x", &high[..]]);
    assert_eq!(site.recover().unwrap().nodes.len(), 4);
}

#[test]
fn two_live_images_of_one_id_get_two() {
    let mut site = CrashSite::new();
    // An image's id is the first letter of its low fence.
    let _one = site.values(5, ("", "b"), &[("a", "one")]);
    let _two = site.values(6, ("b", "bb"), &[("b", "two")]);
    let _three = site.values(7, ("bb", ""), &[("bb", "three")]);
    let opened = site.recover().unwrap();
    assert_eq!(opened.items(), [("a", "one"), ("b", "two"), ("bb", "three")]);
    assert_eq!(opened.counts.rewritten, 1);
}
