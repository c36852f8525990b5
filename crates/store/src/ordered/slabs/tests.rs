use super::group_table::Group;
use super::large_groups::WantedSlot;
use super::slot_class::{PAGE_BYTES, SlotClass};
use super::{RESERVED_SLOTS, SlotShare, SlotSpace};
use crate::ordered::testing::{KEYSPACE, TestMedia};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tapetum_base::error::Error;
use tapetum_base::media::extents::ExtentOwner;
use tapetum_base::media::io::lock;
use tapetum_kernels::extent_address::ExtentAddress;
use tapetum_kernels::ordered::SlotAddress;

fn group(first: u32, extents: u32, open: bool) -> Group {
    let version = u64::from(first) + 1000;
    Group { first, extents, keyspace: KEYSPACE, class: SlotClass::Nodes, version, open }
}

fn space_of(groups: &[Group]) -> SlotSpace {
    let space = SlotSpace::new(TestMedia::new().map, TestMedia::options(SlotClass::Nodes, 8), groups, None);
    space.turn_round(0);
    space
}

#[derive(Clone, Debug)]
enum Step {
    Take { near: Option<u8> },
    Clone(u8),
    Find(u8),
    Keep(u8),
    Settle(u8),
    Drop(u8),
    Round,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => proptest::option::of(any::<u8>()).prop_map(|near| Step::Take { near }),
        2 => any::<u8>().prop_map(Step::Clone),
        1 => any::<u8>().prop_map(Step::Find),
        1 => any::<u8>().prop_map(Step::Keep),
        1 => any::<u8>().prop_map(Step::Settle),
        4 => any::<u8>().prop_map(Step::Drop),
        1 => Just(Step::Round),
    ]
}

proptest! {
    #[test]
    fn no_slot_is_given_twice_while_a_share_lives(steps in proptest::collection::vec(step(), 1..400)) {
        let space = space_of(&[group(10, 5, true), group(20, 70, true), group(100, 30, false)]);
        let mut shares: Vec<SlotShare> = Vec::new();
        let mut held: BTreeMap<u32, u32> = BTreeMap::new();
        // Slots of open groups that rest until the next round.
        let mut resting = BTreeSet::new();
        for step in steps {
            let some = |number: u8, shares: &[SlotShare]| (!shares.is_empty()).then(|| number as usize % shares.len().max(1));
            match step {
                Step::Take { near } => {
                    let near = near.and_then(|near| some(near, &shares)).map(|place| shares[place].address());
                    let taken = space.take(near);
                    prop_assert_eq!(taken.is_some(), held.len() + resting.len() < 75, "as long as there are free ones of open groups");
                    let Some(share) = taken else { continue };
                    let number = share.number();
                    prop_assert_eq!(held.insert(number, 1), None, "{} was given twice", number);
                    prop_assert!((10..15).contains(&number) || (20..90).contains(&number), "{} is of no open group", number);
                    shares.push(share);
                }
                Step::Clone(number) => {
                    if let Some(place) = some(number, &shares) {
                        shares.push(shares[place].clone());
                        *held.get_mut(&shares[place].number()).unwrap() += 1;
                    }
                }
                Step::Find(number) => {
                    let address = space.map().address(u32::from(number) + 8);
                    let found = space.share(address);
                    prop_assert_eq!(found.is_some(), held.contains_key(&(u32::from(number) + 8)));
                    if let Some(share) = found {
                        *held.get_mut(&share.number()).unwrap() += 1;
                        shares.push(share);
                    }
                }
                Step::Round => {
                    let before = space.counts().slots_open;
                    space.turn_round(1);
                    // Writes of the previous round may be in flight.
                    if space.counts().slots_open > before {
                        resting.clear();
                    }
                }
                Step::Keep(number) => {
                    if let Some(place) = some(number, &shares) {
                        let number = shares.swap_remove(place).keep();
                        shares.push(space.resume(number));
                    }
                }
                Step::Settle(number) => some(number, &shares).into_iter().for_each(|place| shares[place].settle(1)),
                Step::Drop(number) => {
                    if let Some(place) = some(number, &shares) {
                        let share = shares.swap_remove(place);
                        let count = held.get_mut(&share.number()).unwrap();
                        prop_assert_eq!(share.is_only(), *count == 1);
                        *count -= 1;
                        if *count == 0 {
                            held.remove(&share.number());
                            resting.insert(share.number());
                        }
                    }
                }
            }
            let counts = space.counts();
            prop_assert_eq!(counts.slots_free as usize, 105 - held.len());
            prop_assert_eq!(counts.slots_open as usize, 75 - held.len() - resting.len());
        }
    }
}

#[test]
fn a_slot_close_behind_its_neighbour_is_given_first() {
    let space = space_of(&[group(0, 8, true), group(40, 40, true)]);
    let at = |number: u32| Some(space.map().address(number));
    let taken: Vec<SlotShare> =
        [at(45), at(45), at(46), None].into_iter().map(|near| space.take(near).unwrap()).collect();
    assert_eq!(taken.iter().map(SlotShare::number).collect::<Vec<_>>(), [46, 47, 48, 0]);
    let all: Vec<SlotShare> = (0..16).map(|_| space.take(at(48)).unwrap()).collect();
    assert_eq!(all.last().unwrap().number(), 64);
    let far = [at(48), at(79), at(30)].map(|near| space.take(near).unwrap());
    assert_eq!(far.map(|share| share.number()), [1, 2, 3], "17 slots behind is not near, nor what is of no group");
}

#[test]
fn a_slot_has_an_address_a_place_and_a_salt() {
    let space = space_of(&[group(3, 4, true)]);
    let share = space.take(None).unwrap();
    let address = SlotAddress::new(ExtentAddress::new(0, 3), 0);
    assert_eq!((share.address(), share.number()), (address, 3));
    assert_eq!(Some(share.flash_offset()), space.flash_offset(address));
    assert_eq!((share.salt().version, share.salt().slot), (1003, address));
    assert_eq!(space.salt(address), Some(share.salt()));
    assert!(share.is_of(&space) && !share.is_of(&space_of(&[])));
    for none in [SlotAddress::new(ExtentAddress::new(0, 7), 0), SlotAddress::new(ExtentAddress::new(1, 3), 0)] {
        assert!(space.salt(none).is_none() && space.share(none).is_none());
    }
}

#[test]
fn slots_of_extensions_begin_at_multiples_of_their_size() {
    let class = SlotClass::Extensions(2);
    let group = Group { class, ..group(16, 18, false) };
    let space = SlotSpace::new(TestMedia::new().map, TestMedia::options(class, 18), [&group], None);
    let taken: Vec<SlotShare> = std::iter::from_fn(|| space.take(None)).collect();
    assert_eq!(taken.iter().map(SlotShare::number).collect::<Vec<_>>(), [16, 20, 24, 28]);
    let named = |number: u32| space.share(space.map().address(number)).is_some();
    assert_eq!([16, 17, 18, 20, 28, 32, 33].map(named), [true, false, false, true, true, false, false]);
}

#[test]
fn recovery_claims_slots_of_closed_groups_too() {
    let space = space_of(&[group(0, 4, true), group(8, 4, false)]);
    let (one, two) = (space.claim(9).unwrap(), space.claim(9).unwrap());
    let open = space.claim(0).unwrap();
    assert!([4, 7, 12, u32::MAX].iter().all(|none| space.claim(*none).is_none()));
    assert_eq!((space.counts().slots_free, space.counts().slots_open), (6, 3));
    drop((one, open));
    assert_eq!((space.counts().slots_free, space.counts().slots_open), (7, 3), "what is freed rests");
    assert!(two.is_only());
}

#[test]
fn a_planted_bug_frees_a_slot_under_its_shares() {
    let given_twice = || {
        let options = TestMedia::options(SlotClass::Nodes, 8);
        let space = SlotSpace::new(TestMedia::new().map, options, [&group(0, 1, true)], None);
        space.turn_round(0);
        let share = space.take(None).unwrap();
        drop(share.clone());
        space.turn_round(0);
        assert_eq!(space.take(None).map(|share| share.number()), Some(0), "it is given twice");
    };
    // SAFETY: no drive is used.
    unsafe { tapetum_drive::planted::with("OrderedReuseSlotEarly", given_twice) };
}

/// Checks the invariants between the space, the table and the extents.
fn check_groups(media: &TestMedia, space: &SlotSpace, shares: &[SlotShare], extents_free: u32) {
    let table = &media.log.table;
    let taken: u32 = table.iter().map(|group| group.extents).sum();
    assert_eq!(lock(&media.extents).free_count() + taken, extents_free, "each extent is free or of a group");
    for share in shares {
        let number = share.number();
        let group = table.iter().find(|group| (group.first..group.first + group.extents).contains(&number));
        assert!(group.is_some(), "slot {number} is of a group that the table has");
    }
    assert_eq!(space.counts().groups as usize, table.iter().count());
}

#[test]
fn a_space_grows_is_used_again_and_gives_back() {
    let mut media = TestMedia::new();
    let extents_free = lock(&media.extents).free_count();
    let space = media.space(SlotClass::Nodes, 8);
    assert!(space.wants_change() && space.take(None).is_none());
    let mut shares: Vec<SlotShare> = Vec::new();
    for _ in 0..300 {
        if space.wants_change() {
            media.grow(&space).unwrap();
        }
        let share = space.take(None).unwrap();
        let group = media.log.table.get(share.number() / 8 * 8).unwrap();
        assert!(group.open, "slots are given out in open groups");
        share.settle(1);
        shares.push(share);
        check_groups(&media, &space, &shares, extents_free);
    }
    let open = media.log.table.iter().filter(|group| group.open).count();
    assert!(open <= 4, "{open} groups are open");
    assert!(space.counts().groups <= 300 / 8 + 3);
    // Every other slot is freed: groups are reused before there are new ones.
    let groups = space.counts().groups;
    shares.retain(|share| share.number() % 2 == 0);
    for _ in 0..100 {
        if space.wants_change() {
            media.grow(&space).unwrap();
        }
        let share = space.take(None).unwrap();
        share.settle(1);
        shares.push(share);
    }
    assert!(space.counts().groups <= groups, "no new group");
    check_groups(&media, &space, &shares, extents_free);
    // All slots are freed: all groups are removed but the open ones.
    shares.clear();
    assert!(space.wants_change());
    media.grow(&space).unwrap();
    media.grow(&space).unwrap();
    assert!(space.counts().groups <= 4, "{:?}", space.counts());
    check_groups(&media, &space, &shares, extents_free);
}

#[test]
fn group_opened_is_zeroed_before_it_is_named() {
    let mut media = TestMedia::new();
    let dirt: Vec<u8> = vec![0xee; 64 << 10];
    media.write(media.map.flash(0), &dirt);
    let space = media.space(SlotClass::Nodes, 8);
    media.log.failure = Some(Error::Io("for the test".into()));
    assert!(media.grow(&space).is_err());
    assert_eq!((media.log.flushes, media.log.table.iter().count()), (1, 0), "flushed, and not named");
    assert!(space.take(None).is_none(), "nothing is given out of a group that is not durable");
    assert!(media.read(media.map.flash(0), 64 << 10).iter().all(|byte| *byte == 0));
}

#[test]
fn a_group_is_closed_when_what_was_written_to_it_is_durable() {
    let mut media = TestMedia::new();
    let space = media.space(SlotClass::Nodes, 4);
    media.grow(&space).unwrap();
    let shares: Vec<SlotShare> = std::iter::from_fn(|| space.take(None)).collect();
    assert_eq!(shares.len(), 8);
    shares[..7].iter().for_each(|share| share.settle(1));
    let open = |media: &TestMedia| {
        media.log.table.iter().filter(|group| group.open).map(|group| group.first).collect::<Vec<_>>()
    };
    assert_eq!(open(&media), [0, 4]);
    let flushes = media.log.flushes;
    media.grow(&space).unwrap();
    assert_eq!(open(&media), [4, 8, 12], "the first is closed; the second has a slot that is written");
    assert_eq!(media.log.flushes, flushes + 1);
    shares[7].settle(1);
    media.grow(&space).unwrap();
    assert_eq!(open(&media), [8, 12]);
}

#[test]
fn where_extents_are_all_taken_the_emptiest_groups_are_opened_and_the_last_slots_are_kept_back() {
    let mut media = TestMedia::new();
    let space = media.space(SlotClass::Nodes, 16);
    let mut shares = Vec::new();
    loop {
        media.grow(&space).unwrap();
        let Some(share) = space.take(None) else { break };
        share.settle(1);
        shares.push(share);
    }
    let slots_left = lock(&media.extents).free_count() / 16 * 16;
    assert_eq!(space.counts().slots_free + slots_left, RESERVED_SLOTS);
    let mut kept_back: Vec<SlotShare> = Vec::new();
    while kept_back.len() < RESERVED_SLOTS as usize {
        match space.take_kept_back() {
            Some(share) => kept_back.push(share),
            None => media.grow(&space).unwrap(),
        }
        kept_back.iter().for_each(|share| share.settle(1));
    }
    assert!(space.take_kept_back().is_none());
    drop(kept_back);
    assert!(space.take(None).is_none(), "no more than are kept back are free");
    drop(shares.swap_remove(20));
    media.grow(&space).unwrap();
    let _last = space.take(None).unwrap();
    assert!(space.take(None).is_none());
}

/// Recovery cannot make a group of free extents that are no neighbours, so it needs free slots.
#[test]
fn where_free_extents_are_no_neighbours_the_last_slots_are_kept_back() {
    let mut media = TestMedia::new();
    let space = media.space(SlotClass::Nodes, 16);
    let end = lock(&media.extents).count();
    for extent in (256..end).step_by(16) {
        assert!(lock(&media.extents).claim(ExtentOwner::Large, extent));
    }
    let mut shares = Vec::new();
    loop {
        media.grow(&space).unwrap();
        let Some(share) = space.take(None) else { break };
        share.settle(1);
        shares.push(share);
    }
    assert!(lock(&media.extents).free_count() > 4 * RESERVED_SLOTS);
    for number in 0..RESERVED_SLOTS {
        if space.counts().slots_open == 0 {
            media.grow(&space).unwrap();
        }
        let share = space.take_kept_back();
        let share = share.unwrap_or_else(|| panic!("only {number} slots of {RESERVED_SLOTS} were kept back"));
        share.settle(1);
        shares.push(share);
    }
}

/// Recovery rewrites the images that it doubts, for which it needs slots: those of the groups that it cannot close before.
#[test]
fn where_extents_are_all_taken_groups_that_cannot_be_closed_give_out_what_is_freed() {
    let mut media = TestMedia::new();
    let filling = media.space(SlotClass::Nodes, 16);
    let shares: Vec<SlotShare> = (0..2).fold(Vec::new(), |mut shares, _| {
        media.grow(&filling).unwrap();
        shares.extend(std::iter::from_fn(|| filling.take_kept_back()));
        shares
    });
    let slots: Vec<u32> = shares.into_iter().map(SlotShare::keep).collect();
    while lock(&media.extents).take_one().is_some() {}
    let space = media.space(SlotClass::Nodes, 16);
    let mut found: Vec<SlotShare> = slots.iter().map(|slot| space.claim(*slot).unwrap()).collect();
    let table = media.log.table.clone();
    let is_open = |slot: &u32| table.get(slot / 16 * 16).unwrap().open;
    slots.iter().filter(|slot| is_open(slot)).for_each(|slot| space.doubt(*slot));
    media.grow(&space).unwrap();
    let place = slots.iter().position(is_open).unwrap();
    drop(found.remove(place));
    media.grow(&space).unwrap();
    assert_eq!(space.take_kept_back().map(|share| share.number()), Some(slots[place]));
}

#[test]
fn a_large_extension_has_a_group_of_its_own() {
    let mut media = TestMedia::new();
    let space = media.space(SlotClass::Large, 1);
    let wants = [32, 48, 1 << 20, 32].map(|pages| space.want(pages));
    assert!(space.wants_change() && matches!(wants[0].take(), WantedSlot::Waits));
    let [one, two, none, dropped] = wants;
    drop(dropped);
    media.grow(&space).unwrap();
    assert_eq!(media.log.appends, 1, "all that is wanted is one edit");
    let (WantedSlot::Given(one), WantedSlot::Given(two)) = (one.take(), two.take()) else { panic!("there is room") };
    assert!(matches!(none.take(), WantedSlot::None), "there are not so many extents");
    assert_eq!((one.number(), two.number(), one.pages()), (0, 32, 32));
    assert!(!space.wants_change());
    drop(one);
    assert!(space.wants_change());
    // Its group is given out again as it is.
    let again = space.want(32);
    media.grow(&space).unwrap();
    let WantedSlot::Given(one) = again.take() else { panic!("there is room") };
    assert_eq!((one.number(), media.log.appends), (0, 1));
    drop(one);
    media.grow(&space).unwrap();
    assert_eq!(media.log.table.iter().map(|group| group.first).collect::<Vec<_>>(), [32]);
    assert!(lock(&media.extents).is_free(31) && !lock(&media.extents).is_free(32));
    assert_eq!(two.flash_offset(), media.map.flash(32));
    assert_eq!(two.flash_offset() % PAGE_BYTES, 0);
}

#[test]
fn extension_slabs_have_no_group_before_they_are_asked_for_and_give_back_spare_ones() {
    let mut media = TestMedia::new();
    let space = media.space(SlotClass::Extensions(1), 8);
    assert!(!space.wants_change(), "no extension was ever written");
    let mut shares = Vec::new();
    while shares.len() < 40 {
        match space.take(None) {
            Some(share) => shares.push(share),
            None => media.grow(&space).unwrap(),
        }
    }
    shares.clear();
    assert!(space.wants_change());
    while space.wants_change() {
        media.grow(&space).unwrap();
    }
    assert_eq!(media.log.table.iter().count(), 1);
}

#[test]
fn the_more_extension_slabs_there_are_the_more_are_added_at_once() {
    let mut media = TestMedia::new();
    let space = media.space(SlotClass::Extensions(1), 8);
    let (mut shares, mut changes) = (Vec::new(), 0);
    while shares.len() < 40 * 8 {
        match space.take(None) {
            Some(share) => shares.push(share),
            None => {
                media.grow(&space).unwrap();
                changes += 1;
            }
        }
    }
    assert!(changes <= 20, "{changes} changes of the manifest for 40 groups");
}
