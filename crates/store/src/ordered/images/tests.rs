use super::*;
use proptest::prelude::*;

/// Images of keys of one byte: (stamp, low, high), where `0` is below all keys, and `200` and more is above them.
fn set_of(images: &[(u64, u8, u8)]) -> NodeImages {
    let mut set = NodeImages::default();
    for (slot, (stamp, low, high)) in images.iter().enumerate() {
        let (low, high) = ([*low], [*high]);
        let low = if low == [0] { &[][..] } else { &low };
        set.push(&ImageHead {
            low,
            high: (high[0] < 200).then_some(&high),
            stamp: *stamp,
            slot: slot as u32,
            id: 7,
            records: 3,
        });
    }
    set
}

/// Tiles as (slot, low, high).
fn tiles(images: &[(u64, u8, u8)]) -> Vec<(u32, u8, u8)> {
    let set = set_of(images);
    let live = set.live().unwrap();
    assert_eq!(live.gaps, []);
    let of = |tile: &Tile| {
        let (low, high) = set.fences_of(tile);
        (set.get(tile.image()).slot, low.first().copied().unwrap_or(0), high.map_or(255, |high| high[0]))
    };
    live.tiles.iter().map(of).collect()
}

const ALL: u8 = 255;

#[test]
fn update_before_image() {
    assert_eq!(tiles(&[(1, 0, ALL)]), [(0, 0, ALL)]);
}

#[test]
fn update_before_free() {
    assert_eq!(tiles(&[(1, 0, ALL), (2, 0, ALL)]), [(1, 0, ALL)]);
    assert_eq!(tiles(&[(2, 0, ALL), (1, 0, ALL)]), [(0, 0, ALL)], "the order of slots says nothing");
}

#[test]
fn images_in_order_are_those_that_there_were() {
    let mut set = set_of(&[(5, 100, ALL), (6, 0, 100), (7, 50, 100), (8, 0, 50)]);
    let heads = |set: &NodeImages, places: &[u32]| -> Vec<(u64, u32)> {
        places.iter().map(|place| (set.get(*place).stamp, set.get(*place).slot)).collect()
    };
    let before = heads(&set, &[0, 1, 2, 3]);
    let live = |set: &NodeImages| -> Vec<_> {
        let tiles = set.live().unwrap().tiles;
        tiles.iter().map(|tile| (set.get(tile.image()).slot, set.fences_of(tile).0.to_vec())).collect()
    };
    let live_before = live(&set);
    let places = set.put_in_order();
    assert_eq!(heads(&set, &places), before);
    assert_eq!(live(&set), live_before);
    let lows: Vec<_> = (0..4).map(|place| set.get(place).low.to_vec()).collect();
    assert!(lows.is_sorted(), "{lows:?}");
}

#[test]
fn split_none_lower_only_upper_only_and_both() {
    let (old, lower, upper) = ((5, 0, ALL), (6, 0, 100), (7, 100, ALL));
    assert_eq!(tiles(&[old]), [(0, 0, ALL)]);
    assert_eq!(tiles(&[old, lower]), [(1, 0, 100), (0, 100, ALL)]);
    assert_eq!(tiles(&[old, upper]), [(0, 0, 100), (1, 100, ALL)]);
    assert_eq!(tiles(&[old, lower, upper]), [(1, 0, 100), (2, 100, ALL)]);
}

#[test]
fn split_then_update_of_one_half() {
    assert_eq!(tiles(&[(5, 0, ALL), (6, 0, 100), (8, 0, 100)]), [(2, 0, 100), (0, 100, ALL)]);
    assert_eq!(tiles(&[(5, 0, ALL), (8, 100, ALL)]), [(0, 0, 100), (1, 100, ALL)]);
}

#[test]
fn merge_before_image() {
    assert_eq!(tiles(&[(5, 0, 100), (4, 100, ALL)]), [(0, 0, 100), (1, 100, ALL)]);
}

#[test]
fn merge_after_image() {
    // Versions of nodes would have chosen the right node's image: it was written more often.
    assert_eq!(tiles(&[(5, 0, 100), (40, 100, ALL), (41, 0, ALL)]), [(2, 0, ALL)]);
}

#[test]
fn merge_then_split() {
    let merged = [(5, 0, 100), (40, 100, ALL), (41, 0, ALL)];
    let with = |half| [&merged[..], &[half]].concat();
    assert_eq!(tiles(&with((42, 0, 150))), [(3, 0, 150), (2, 150, ALL)]);
    assert_eq!(tiles(&with((43, 150, ALL))), [(2, 0, 150), (3, 150, ALL)]);
}

#[test]
fn split_then_merge_before_either() {
    let old = (5, 0, ALL);
    assert_eq!(tiles(&[old, (6, 0, 100)]), [(1, 0, 100), (0, 100, ALL)], "the half, and the old one for the rest");
    assert_eq!(tiles(&[old, (6, 0, 100), (8, 0, ALL)]), [(2, 0, ALL)]);
    assert_eq!(tiles(&[old, (8, 0, ALL)]), [(1, 0, ALL)]);
}

#[test]
fn an_image_may_be_live_on_both_sides_of_a_newer_one() {
    assert_eq!(tiles(&[(3, 0, ALL), (5, 0, 40), (9, 40, 110)]), [(1, 0, 40), (2, 40, 110), (0, 110, ALL)]);
    assert_eq!(tiles(&[(3, 0, ALL), (9, 40, 110)]), [(0, 0, 40), (1, 40, 110), (0, 110, ALL)]);
    let set = set_of(&[(3, 0, ALL), (9, 40, 110)]);
    let live = set.live().unwrap();
    assert_eq!(live.tiles.iter().map(|tile| set.is_whole(tile)).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn a_key_that_no_image_covers_is_in_a_gap() {
    let gaps = |images: &[(u64, u8, u8)]| {
        let found = set_of(images).live().unwrap().gaps;
        let of = |gap: &Gap| (gap.from.first().copied().unwrap_or(0), gap.to.as_ref().map_or(255, |to| to[0]));
        found.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(gaps(&[]), [], "nothing was ever written");
    assert_eq!(gaps(&[(1, 0, ALL)]), []);
    assert_eq!(gaps(&[(1, 10, ALL)]), [(0, 10)]);
    assert_eq!(gaps(&[(1, 0, 10)]), [(10, ALL)]);
    assert_eq!(gaps(&[(1, 0, 10), (2, 11, ALL)]), [(10, 11)]);
    assert_eq!(gaps(&[(1, 5, 10), (2, 11, 20), (3, 6, 9)]), [(0, 5), (10, 11), (20, ALL)]);
}

#[test]
fn one_stamp_for_two_images_of_a_key_is_damage() {
    let same = |images: &[(u64, u8, u8)]| set_of(images).live();
    assert_eq!(same(&[(7, 0, ALL), (7, 3, 9)]).unwrap_err().stamp, 7);
    let error = same(&[(7, 0, 50), (9, 50, ALL), (7, 49, ALL)]).unwrap_err();
    assert_eq!((error.stamp, error.slots.iter().sum::<u32>()), (7, 2));
    assert!(same(&[(7, 0, 50), (7, 50, ALL)]).is_ok(), "they have no key in common");
}

#[test]
fn sets_of_several_readers_are_one() {
    let (mut all, part) = (set_of(&[(1, 0, 50), (2, 50, ALL)]), set_of(&[(3, 40, 60)]));
    all.append(&part);
    all.append(&set_of(&[]));
    assert_eq!(all.len(), 3);
    assert_eq!(all.get(2), ImageHead { low: &[40], high: Some(&[60]), stamp: 3, slot: 0, id: 7, records: 3 });
    let live = all.live().unwrap();
    assert_eq!(live.tiles.iter().map(Tile::image).collect::<Vec<_>>(), [0, 2, 1]);
    assert_eq!(all.bytes(), 3 * IMAGE_BYTES_MAX + 2 * 4, "a set counts its fences, and what it and the rule will take");
}

#[test]
fn many_images_over_each_other_take_no_more_steps_than_there_are_fences() {
    // Stairs: each image covers one key less than the one before, and is older.
    let mut set = NodeImages::default();
    let count = 30_000_u32;
    for number in 0..count {
        let high = (2 * count - number).to_be_bytes();
        let low = number.to_be_bytes();
        let low = if number == 0 { &[][..] } else { &low };
        set.push(&ImageHead {
            low,
            high: (number > 0).then_some(&high),
            stamp: number.into(),
            slot: number,
            id: 7,
            records: 0,
        });
    }
    let live = set.live().unwrap();
    assert_eq!((live.tiles.len() as u32, live.gaps.len()), (2 * count - 1, 0));
}

proptest! {
    /// Compares with the plain rule: for each key the image with the highest stamp.
    #[test]
    fn each_key_has_the_image_with_the_highest_stamp(
        images in proptest::collection::vec((0..200_u8, 0..=201_u8), 1..40),
        order in any::<u64>(),
    ) {
        let mut images: Vec<(u64, u8, u8)> = images
            .into_iter()
            .map(|(a, b)| (a.min(b), a.max(b).max(a.min(b) + 1)))
            .enumerate()
            .map(|(number, (low, high))| (number as u64 * 3 + 1, low, high))
            .collect();
        let by = order as usize % images.len();
        images.rotate_left(by);
        let set = set_of(&images);
        let live = set.live().unwrap();
        for key in 0..200_u8 {
            let covers = |low: u8, high: u8| low <= key && (high >= 200 || key < high);
            let expected = images.iter().filter(|(_, low, high)| covers(*low, *high)).map(|(stamp, ..)| *stamp).max();
            let holds = |low: &[u8], high: Option<&[u8]>| low <= &[key][..] && high.is_none_or(|high| &[key][..] < high);
            let found: Vec<u64> = live
                .tiles
                .iter()
                .filter(|tile| { let (low, high) = set.fences_of(tile); holds(low, high) })
                .map(|tile| set.get(tile.image()).stamp)
                .collect();
            prop_assert_eq!(&found[..], expected.as_slice(), "key {}", key);
            let gaps = live.gaps.iter().filter(|gap| holds(&gap.from, gap.to.as_deref())).count();
            prop_assert_eq!(gaps, usize::from(expected.is_none()));
        }
        for pair in live.tiles.windows(2) {
            let [(_, high), (low, _)] = [set.fences_of(&pair[0]), set.fences_of(&pair[1])];
            prop_assert!(high.is_some_and(|high| high <= low));
            prop_assert!(pair[0].image() != pair[1].image());
        }
    }
}
