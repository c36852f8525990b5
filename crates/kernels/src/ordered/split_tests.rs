//! Nodes that are split and merged.

use super::testing::{Numbers, blank, node, outside_header, raw, reference, salt, split};
use super::{
    Arrival, ImageSeal, NODE_KEY_BYTES_MAX, NODE_RECORD_BYTES_MAX, NodeCut, NodeError, NodeMut, NodeOrder, NodePage,
    NodeRef, SplitSide, merge, merged_bytes, node_record_bytes, separator, split_rest,
};
use crate::record::{Header, Record};

/// The most splits that a record was seen to need, among 300,000 nodes made to be bad.
const SPLITS_MAX: usize = 3;

fn try_split(
    page: &NodePage,
    arrival: Option<Arrival<'_>>,
) -> Result<(super::NodeSplit, [Box<NodePage>; 2]), NodeError> {
    let node = NodeRef::look(&page[..])?;
    let mut order = NodeOrder::default();
    order.sort(&node)?;
    split(&node, &order, NodeCut::For(arrival))
}

/// Checks two halves against what was split.
pub(super) fn check_halves(page: &NodePage, halves: &mut [Box<NodePage>; 2]) {
    for half in halves.iter_mut() {
        NodeMut::look(&mut half[..]).unwrap().seal(salt(1), ImageSeal { stamp: 1, durable: 0, round_images: 0 });
    }
    let [left, right] = halves.each_ref().map(|half| NodeRef::check(&half[..], salt(1)).unwrap());
    let whole = NodeRef::look(&page[..]).unwrap();
    assert_eq!((left.low_fence(), right.high_fence()), (whole.low_fence(), whole.high_fence()));
    assert_eq!(left.high_fence(), Some(right.low_fence()));
    assert_eq!((left.id(), right.id(), left.keyspace(), right.keyspace()), (whole.id(), 18, 3, 3));
    assert_eq!(left.count() + right.count(), whole.count());
    for record in whole.records() {
        let record = record.unwrap();
        let half = if left.covers(record.key) { left } else { right };
        let moved = half.get(record.key).unwrap().unwrap();
        assert_eq!((moved.header, moved.stored), (record.header, record.stored));
    }
}

/// Splits until there is room for the record, as a host does; how often.
fn make_room(page: &NodePage, record: &Record<'_>) -> usize {
    let mut page = Box::new(*page);
    for splits in 0.. {
        match NodeMut::look(&mut page[..]).unwrap().put(record) {
            Ok(_) => return splits,
            Err(NodeError::NoRoom) => {}
            Err(error) => panic!("{error:?}"),
        }
        assert!(splits < SPLITS_MAX, "{:?}", record.header);
        let arrival = Arrival { key: record.key, record_bytes: node_record_bytes(&record.header) };
        let (done, mut halves) = try_split(&page, Some(arrival)).unwrap();
        check_halves(&page, &mut halves);
        let [left, right] = halves;
        page = if done.side == SplitSide::Left { left } else { right };
        assert!(NodeRef::look(&page[..]).unwrap().covers(record.key));
        if done.has_room {
            assert!(NodeMut::look(&mut page[..]).unwrap().put(record).is_ok(), "it was said to have room");
        }
    }
    unreachable!()
}

#[test]
fn a_separator_is_the_shortest_key_between() {
    let pairs: [(&[u8], &[u8], &[u8]); 5] = [
        (b"abc", b"abd", b"abd"),
        (b"a", b"abcdef", b"ab"),
        (b"abcdef", b"b", b"b"),
        (b"user:0017", b"user:0021:name", b"user:002"),
        (b"a\xff\xff", b"b\0\0", b"b"),
    ];
    for (low, high, expected) in pairs {
        assert_eq!(separator(low, high), expected);
        assert!(low < expected && expected <= high);
    }
}

#[test]
fn a_full_node_is_cut_near_its_middle_with_a_short_separator() {
    let mut page = node(b"", Some(b"zz"));
    let mut writer = NodeMut::look(&mut page[..]).unwrap();
    let mut numbers = Numbers::new(1);
    while writer.put(&raw(1, format!("user:{:08}:x", numbers.below(100_000_000)).as_bytes(), &[7; 100])).is_ok() {}
    let (done, mut halves) = try_split(&page, None).unwrap();
    check_halves(&page, &mut halves);
    let [left, right] = halves.each_ref().map(|half| NodeRef::look(&half[..]).unwrap());
    assert_eq!((done.side, done.has_room), (SplitSide::Left, true));
    assert!(left.used_bytes().abs_diff(right.used_bytes()) <= 1300, "{} {}", left.used_bytes(), right.used_bytes());
    assert!(right.low_fence().len() <= 7, "{:?}", right.low_fence());
}

#[test]
fn keys_that_come_in_order_fill_the_last_node() {
    let mut page = node(b"m", None);
    let mut writer = NodeMut::look(&mut page[..]).unwrap();
    let keys: Vec<String> = (0..1000).map(|n| format!("m{n:06}")).collect();
    let full = keys.iter().take_while(|key| writer.put(&raw(1, key.as_bytes(), &[7; 100])).is_ok()).count();
    let arrival = |key: &'static [u8]| Some(Arrival { key, record_bytes: 120 });
    let (done, halves) = try_split(&page, arrival(b"m999999")).unwrap();
    assert_eq!((done.side, done.has_room), (SplitSide::Right, true));
    assert_eq!(halves.each_ref().map(|half| NodeRef::look(&half[..]).unwrap().count()), [full, 0]);
    let (done, halves) = try_split(&page, arrival(b"m000000")).unwrap();
    assert_eq!(done.side, SplitSide::Left);
    assert!(NodeRef::look(&halves[1][..]).unwrap().count() > full / 3, "only where they come in order");
}

/// The worst that there is: fences of 1024 bytes, keys of 1024 bytes, and references with all fields.
#[test]
fn a_split_makes_room_for_the_longest_keys_between_the_longest_fences() {
    let key = |last: u8| {
        let mut key = [0x55; NODE_KEY_BYTES_MAX];
        key[NODE_KEY_BYTES_MAX - 1] = last;
        key
    };
    let outside = reference(1).encode();
    let (low, high) = (key(0), key(200));
    for place in [10, 50, 100] {
        let mut page = node(&low, Some(&high));
        let mut writer = NodeMut::look(&mut page[..]).unwrap();
        let present = key(50);
        let one = Record { header: outside_header(1, &present), key: &present, stored: &outside };
        assert_eq!(writer.put(&one), Ok(None));
        let second = key(place);
        let two = Record { header: outside_header(1, &second), key: &second, stored: &outside };
        assert_eq!(make_room(&page, &two), usize::from(place != 50));
        // The longest record of all, beside it and in its place.
        let value = vec![1; NODE_RECORD_BYTES_MAX + 1000 - node_record_bytes(&Header::value(1, 1024, 1000))];
        let longest = raw(1, &second, &value);
        assert_eq!(node_record_bytes(&longest.header), NODE_RECORD_BYTES_MAX);
        assert_eq!(make_room(&page, &longest), usize::from(place != 50));
        let mut alone = node(&low, Some(&high));
        assert_eq!(NodeMut::look(&mut alone[..]).unwrap().put(&longest), Ok(None));
        assert_eq!(NodeRef::look(&alone[..]).unwrap().free_bytes(), 0, "to the last byte");
    }
}

/// Two records with a third one between them that fits beside neither.
#[test]
fn an_arrival_that_fits_in_no_half_takes_a_second_split() {
    let key = |last: u8| {
        let mut key = [0x55; NODE_KEY_BYTES_MAX];
        key[NODE_KEY_BYTES_MAX - 1] = last;
        key
    };
    let keys = [10, 50, 100].map(key);
    let mut page = node(&key(0), None);
    let mut writer = NodeMut::look(&mut page[..]).unwrap();
    writer.put(&raw(1, &keys[0], &[7; 420])).unwrap();
    writer.put(&raw(1, &keys[2], &[7; 420])).unwrap();
    let value = [8; 910];
    assert_eq!(make_room(&page, &raw(1, &keys[1], &value)), 2);
}

#[test]
fn a_split_always_makes_room_whatever_the_lengths() {
    let mut numbers = Numbers::new(7);
    let mut most = 0;
    for _ in 0..6000 {
        // Many bytes in common, so that separators are as long as keys.
        let key = |numbers: &mut Numbers| {
            let length = [1 + numbers.below(8), 1 + numbers.below(1024), 1024 - numbers.below(3)][numbers.below(3)];
            let mut key = vec![0x55; length];
            let tail = numbers.below(4).min(length);
            key[length - tail..].iter_mut().for_each(|byte| *byte = numbers.below(256) as u8);
            key
        };
        let mut fences = [key(&mut numbers), key(&mut numbers)];
        fences.sort();
        let [low, high] = &fences;
        let high = (numbers.below(3) > 0 && low < high).then_some(&high[..]);
        let mut page = node(low, high);
        let mut failed = 0;
        while failed < 3 {
            let key = key(&mut numbers);
            let limit = NODE_RECORD_BYTES_MAX + 2001 - node_record_bytes(&Header::value(1, key.len(), 2000));
            let value = vec![1; [numbers.below(30), numbers.below(limit), limit - 1][numbers.below(3)]];
            let record = raw(1, &key, &value);
            match NodeMut::look(&mut page[..]).unwrap().put(&record) {
                Ok(_) => {}
                Err(NodeError::OutsideFences) => failed += 1,
                Err(NodeError::NoRoom) => {
                    most = most.max(make_room(&page, &record));
                    failed += 1;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        if NodeRef::look(&page[..]).unwrap().count() > 1 {
            let (_, mut halves) = try_split(&page, None).unwrap();
            check_halves(&page, &mut halves);
        }
    }
    assert!(most >= 2, "these are not the bad ones");
}

#[test]
fn what_cannot_be_split_says_so() {
    let mut page = node(b"b", Some(b"d"));
    let arrival = |key: &'static [u8], record_bytes| Some(Arrival { key, record_bytes });
    let split = |page: &NodePage, arrival| try_split(page, arrival).map(|_| ());
    assert_eq!(split(&page, None), Err(NodeError::TooFew));
    assert_eq!(split(&page, arrival(b"c", 100)), Err(NodeError::TooFew));
    NodeMut::look(&mut page[..]).unwrap().put(&raw(1, b"c", b"")).unwrap();
    assert_eq!(split(&page, None), Err(NodeError::TooFew));
    assert_eq!(split(&page, arrival(b"c", 100)), Err(NodeError::TooFew), "it takes the other's place");
    assert_eq!(split(&page, arrival(b"cc", 100)), Ok(()));
    assert_eq!(split(&page, arrival(b"d", 100)), Err(NodeError::OutsideFences));
    assert_eq!(split(&page, arrival(b"", 100)), Err(NodeError::Unfit));
    assert_eq!(split(&page, arrival(b"cc", NODE_RECORD_BYTES_MAX + 1)), Err(NodeError::Unfit));
    let reader = NodeRef::look(&page[..]).unwrap();
    let done = super::testing::split(&reader, &NodeOrder::default(), NodeCut::For(None)).map(|_| ());
    assert_eq!(done, Err(NodeError::Damaged), "the order of another node");
}

#[test]
fn a_node_is_cut_in_front_of_any_key_of_its_own() {
    let mut page = node(b"b", Some(b"x"));
    let mut writer = NodeMut::look(&mut page[..]).unwrap();
    (0..20).for_each(|n| assert!(writer.put(&raw(n, format!("k{n:02}").as_bytes(), &[n as u8; 60])).is_ok()));
    let whole = NodeRef::look(&page[..]).unwrap();
    let mut order = NodeOrder::default();
    order.sort(&whole).unwrap();
    let at = |key: &[u8]| split(&whole, &order, NodeCut::At(key));
    for (key, of_left) in [(&b"c"[..], 0), (b"k07", 7), (b"k07x", 8), (b"w", 20)] {
        let (_, mut halves) = at(key).unwrap();
        check_halves(&page, &mut halves);
        let [left, right] = halves.each_ref().map(|half| NodeRef::look(&half[..]).unwrap());
        assert_eq!((right.low_fence(), left.count()), (key, of_left));
    }
    for key in [&b"b"[..], b"a", b"x"] {
        assert_eq!(at(key).map(|_| ()), Err(NodeError::OutsideFences), "{key:?}");
    }
    let other = node(b"k", Some(b"y"));
    let other = NodeRef::look(&other[..]).unwrap();
    assert_eq!(split_rest(&whole, &other, &mut blank()), Err(NodeError::NotNeighbours));
}

#[test]
fn neighbours_that_fit_become_one() {
    let mut page = node(b"b", Some(b"x"));
    let mut writer = NodeMut::look(&mut page[..]).unwrap();
    for n in 0..20 {
        writer.put(&raw(n, format!("k{n}").as_bytes(), &[n as u8; 60])).unwrap();
    }
    let (_, halves) = try_split(&page, None).unwrap();
    let [left, right] = halves.each_ref().map(|half| NodeRef::look(&half[..]).unwrap());
    let mut merged = blank();
    merge(&left, &right, &mut merged).unwrap();
    NodeMut::look(&mut merged[..]).unwrap().seal(salt(1), ImageSeal { stamp: 5, durable: 0, round_images: 0 });
    let whole = NodeRef::check(&merged[..], salt(1)).unwrap();
    assert_eq!(merged_bytes(&left, &right), Ok(whole.used_bytes()));
    assert_eq!((whole.low_fence(), whole.high_fence(), whole.id()), (&b"b"[..], Some(&b"x"[..]), 17));
    for n in 0..20 {
        let key = format!("k{n}");
        assert_eq!(whole.get(key.as_bytes()).unwrap().unwrap().stored, &[n as u8; 60]);
    }
    assert_eq!(merged_bytes(&right, &left), Err(NodeError::NotNeighbours));
    assert_eq!(merge(&left, &left, &mut merged), Err(NodeError::NotNeighbours));
    let mut low = node(b"", Some(b"m"));
    let mut high = node(b"m", None);
    for page in [&mut low, &mut high] {
        let mut writer = NodeMut::look(&mut page[..]).unwrap();
        let first = if writer.view().covers(b"a") { b'a' } else { b'm' };
        (0..40_u8).for_each(|n| assert!(writer.put(&raw(1, &[first, n], &[n; 40])).is_ok()));
    }
    let [low, high] = [&low, &high].map(|page| NodeRef::look(&page[..]).unwrap());
    assert_eq!(merge(&low, &high, &mut merged), Err(NodeError::NoRoom));
}
