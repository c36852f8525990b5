//! The rows of `docs/decisions/ordered-crash.md` on telling torn writes from damage, each under its name.

use super::crash_site::CrashSite;
use crate::ordered::slabs::SlotShare;
use tapetum_base::error::Error;
use tapetum_kernels::ordered::NODE_BYTES;

const LOWER: (&str, &str) = ("", "m");
const UPPER: (&str, &str) = ("m", "");

/// Three durable images: two of one node, stamps 5 and 6, and one of another node, stamp 4.
fn with_three() -> (CrashSite, [SlotShare; 3]) {
    let site = CrashSite::new();
    let other = site.values(4, UPPER, &[("n", "other")]);
    let old = site.values(5, LOWER, &[("a", "old")]);
    let new = site.values(6, LOWER, &[("a", "new")]);
    (site, [other, old, new])
}

/// An image that attests that `images` images up to this stamp are durable.
fn tell(site: &mut CrashSite, stamp: u64, (images, durable): (u32, u64)) -> SlotShare {
    (site.stamp_durable, site.round_images) = (durable, images);
    let share = site.values(stamp, UPPER, &[("n", "later")]);
    (site.stamp_durable, site.round_images) = (0, 0);
    share
}

fn blank(site: &CrashSite, share: &SlotShare) {
    site.media.write(share.flash_offset(), &[0; NODE_BYTES]);
}

fn damage(site: &mut CrashSite) -> String {
    match site.recover().map(|opened| opened.items) {
        Err(Error::Corrupt(what)) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn damaged_after_another_image_told() {
    let (mut site, [.., new]) = with_three();
    let _later = tell(&mut site, 7, (3, 6));
    assert_eq!(site.recover().unwrap().items(), [("a", "new"), ("n", "later")]);
    site.tear(new.number());
    let what = damage(&mut site);
    assert!(what.contains("1 data nodes") && what.contains(&format!("slot 0 of extent {} ", new.number())), "{what}");
}

#[test]
fn never_written_after_another_image_told() {
    let (mut site, [.., new]) = with_three();
    let _later = tell(&mut site, 7, (3, 6));
    blank(&site, &new);
    assert!(damage(&mut site).contains("1 data nodes of keyspace 3 were written, and are not there"));
}

#[test]
fn damaged_before_another_image_told() {
    // No image attests the last flush: it counts as if it had not happened.
    let (mut site, [.., new]) = with_three();
    let _later = tell(&mut site, 7, (2, 5));
    site.tear(new.number());
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.slots_torn), (vec![("a", "old"), ("n", "later")], 1));
}

#[test]
fn damaged_in_an_earlier_round() {
    let (mut site, [_other, old, new]) = with_three();
    drop(old);
    site.turn_round(6);
    assert_eq!(site.recover().unwrap().items(), [("a", "new"), ("n", "other")]);
    site.tear(new.number());
    let what = damage(&mut site);
    assert!(what.contains(&format!("slot 0 of extent {} ", new.number())) && what.contains("no write"), "{what}");
}

#[test]
fn torn_where_a_dead_image_was() {
    let (mut site, [_other, old, _new]) = with_three();
    let _later = tell(&mut site, 7, (3, 6));
    let number = old.number();
    drop(old);
    site.turn_round(7);
    // Attestations of the previous round do not count for this one.
    let torn = site.values(8, LOWER, &[("a", "newer")]);
    assert_eq!(torn.number(), number, "its slot is given out again");
    site.tear(torn.number());
    assert_eq!(site.recover().unwrap().items(), [("a", "new"), ("n", "later")]);
    // The next opening begins a round, whose count starts at zero.
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.slots_torn), (vec![("a", "new"), ("n", "later")], 0));
}

#[test]
fn doubted_by_a_recovery_that_was_cut_short() {
    let (mut site, [.., new]) = with_three();
    site.options.stamp_durable = 5;
    assert_eq!(site.recover().unwrap().counts.rewritten, 1);
    // The recovery's round names the slot, although an intact image was in it: a flush need not have saved that image.
    site.tear(new.number());
    let opened = site.recover().unwrap();
    assert_eq!((opened.items(), opened.counts.slots_torn), (vec![("a", "new"), ("n", "other")], 1));
}

#[test]
fn on_its_way_when_a_round_began() {
    let flying = |is_there: bool| {
        let (mut site, [_other, old, _new]) = with_three();
        let share = site.slots.nodes().take(None).unwrap();
        let bytes = site.image_bytes(share.salt(), 7, LOWER, &[("a", super::crash_site::Stored::Value("newer"))]);
        drop(old);
        site.turn_round(7);
        site.media.write(share.flash_offset(), &bytes);
        share.settle(7);
        if !is_there {
            site.tear(share.number());
        }
        (site, share)
    };
    let (mut site, _newer) = flying(true);
    assert_eq!(site.recover().unwrap().items()[0], ("a", "newer"));
    let (mut site, _newer) = flying(false);
    assert_eq!(site.recover().unwrap().items()[0], ("a", "new"), "it may have been cut short");
    for is_there in [true, false] {
        let (mut site, _newer) = flying(is_there);
        let _later = tell(&mut site, 8, (1, 7));
        assert_eq!(site.recover().is_ok(), is_there);
    }
}
