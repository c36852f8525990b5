//! Single nodes.

use super::layout::{HEAD_BYTES, NODE_RECORD_BYTES_MAX};
use super::testing::{blank, node, outside_header, raw, reference, salt, split};
use super::{
    ImageSeal, NODE_BYTES, NODE_KEY_BYTES_MAX, NODE_SLOTS_MAX, NewNode, NodeCut, NodeError, NodeMut, NodeOrder,
    NodePage, NodeRef, ReplacedRecord, SlotSalt, node_record_bytes,
};
use crate::checksum::checksum;
use crate::expiry::Expiry;
use crate::record::{Codec, Header, Marks, Record};
use proptest::prelude::*;

fn seal(page: &mut NodePage) {
    NodeMut::look(page).unwrap().seal(salt(1), ImageSeal { stamp: 99, durable: 88, round_images: 77 });
}

fn reseal(page: &mut NodePage) {
    let crc = checksum(salt(1).of_node(), &[&page[4..]]);
    page[..4].copy_from_slice(&crc.to_le_bytes());
}

fn check(page: &NodePage) -> Result<(), NodeError> {
    NodeRef::check(page, salt(1)).map(|_| ())
}

/// As it is on flash.
#[test]
fn a_node_has_its_bytes() {
    let mut page = node(b"ab", Some(b"xyz"));
    let mut writer = NodeMut::look(&mut page[..]).unwrap();
    let mut header = Header::value(0x0605_0403_0201, 3, 2);
    header.flags = 7;
    assert_eq!(writer.put(&Record { header, key: b"key", stored: b"vw" }), Ok(None));
    writer.seal(salt(1), ImageSeal { stamp: 0x1122, durable: 0x33, round_images: 0 });
    let fields = [1, 0, 3, 0, 17, 0, 0, 0, 0, 0, 0, 0, 0x22, 0x11, 0, 0, 0, 0, 0, 0, 0x33, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(page[4..32], fields);
    let heap = NODE_BYTES - 5 - 18;
    assert_eq!(page[32..48], [1, 0, heap as u8, (heap >> 8) as u8, 0, 0, 2, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[48], super::fingerprint::fingerprint(b"key"));
    assert_eq!(page[64..66], [heap as u8, (heap >> 8) as u8]);
    let record = [&[1 << 4, 1, 2, 3, 4, 5, 6, 3, 2, 7, 0, 0, 0][..], b"key", b"vw"].concat();
    assert_eq!(page[heap..NODE_BYTES - 5], record);
    assert_eq!(page[NODE_BYTES - 5..], *b"xyzab");
    assert_eq!(page[..4], checksum(salt(1).of_node(), &[&page[4..]]).to_le_bytes());
}

#[test]
fn what_is_put_is_found_replaced_and_removed() {
    let mut page = node(b"", None);
    let mut writer = NodeMut::look(&mut page[..]).unwrap();
    assert_eq!(writer.put(&raw(1, b"key", b"first")), Ok(None));
    assert_eq!(writer.put(&raw(2, b"key2", b"other")), Ok(None));
    let replaced = |stamp| Ok(Some(ReplacedRecord { stamp, extension: None }));
    assert_eq!(writer.put(&raw(3, b"key", b"longer than the first")), replaced(1));
    assert_eq!(writer.put(&raw(4, b"key", b"short")), replaced(3));
    let header = outside_header(5, b"key3");
    let outside = Record { header, key: b"key3", stored: &reference(5).encode() };
    assert_eq!(writer.put(&outside), Ok(None));
    let found = writer.view().get(b"key3").unwrap().unwrap();
    assert_eq!((found.header, found.extension()), (header, Ok(Some(reference(5)))));
    assert_eq!(writer.view().extensions().collect::<Vec<_>>(), [Ok((reference(5), 4))]);
    seal(&mut page);
    let reader = NodeRef::check(&page[..], salt(1)).unwrap();
    assert_eq!((reader.count(), reader.id(), reader.keyspace()), (3, 17, 3));
    assert_eq!((reader.stamp(), reader.durable(), reader.round_images()), (99, 88, 77));
    let found = reader.get(b"key").unwrap().unwrap();
    assert_eq!((found.header.stamp, found.key, found.stored), (4, &b"key"[..], &b"short"[..]));
    assert_eq!(page[found.stored_at()..][..5], *b"short");
    for absent in [&b"ke"[..], b"key1", b"key22", b"x"] {
        assert!(reader.get(absent).unwrap().is_none());
    }
    let mut writer = NodeMut::look(&mut page[..]).unwrap();
    assert_eq!(writer.remove(b"key"), replaced(4));
    assert_eq!(writer.remove(b"key"), Ok(None));
    let removed = Ok(Some(ReplacedRecord { stamp: 5, extension: Some(reference(5)) }));
    assert_eq!(writer.remove(b"key3"), removed);
    assert_eq!(writer.view().get(b"key2").unwrap().unwrap().stored, b"other");
    assert_eq!(writer.remove(b"key2"), replaced(2));
    assert!(writer.view().is_empty());
    writer.compact().unwrap();
    writer.seal(salt(1), ImageSeal::default());
    let mut empty = node(b"", None);
    seal(&mut empty);
    NodeMut::look(&mut empty[..]).unwrap().seal(salt(1), ImageSeal::default());
    assert_eq!(page, empty);
}

#[test]
fn a_record_fills_a_node_to_the_last_byte_and_no_further() {
    let room = NODE_BYTES - HEAD_BYTES - 48;
    let overhead = node_record_bytes(&Header::value(1, 1, 1000)) - 1000;
    let half = room / 2 - overhead;
    for (second, expected) in
        [(room - room / 2 - overhead, Ok(None)), (room - room / 2 - overhead + 1, Err(NodeError::NoRoom))]
    {
        let mut page = node(b"", None);
        let mut writer = NodeMut::look(&mut page[..]).unwrap();
        // Longer than a record may be, so in two.
        let (one, two) = (vec![1; half / 2], vec![2; half - half / 2 - overhead]);
        assert_eq!(writer.put(&raw(1, b"a", &one)), Ok(None));
        assert_eq!(writer.put(&raw(1, b"b", &two)), Ok(None));
        let (three, four) = (vec![3; second / 2], vec![4; second - second / 2 - overhead]);
        assert_eq!(writer.put(&raw(1, b"c", &three)), Ok(None));
        assert_eq!(writer.put(&raw(1, b"d", &four)), expected);
        let is_full = expected.is_ok();
        assert_eq!(writer.view().free_bytes() == 0, is_full);
        assert_eq!(writer.view().used_bytes() == NODE_BYTES, is_full);
    }
}

#[test]
fn a_longer_value_has_room_when_the_bytes_of_dead_ones_are_put_together() {
    let mut page = node(b"", None);
    let mut writer = NodeMut::look(&mut page[..]).unwrap();
    let value = vec![7; 900];
    for key in [b"a", b"b", b"c", b"d"] {
        writer.put(&raw(1, key, &value)).unwrap();
    }
    // Nine hundred bytes in two holes, and some in the gap.
    writer.put(&raw(2, b"b", &value[..400])).unwrap();
    writer.put(&raw(2, b"d", &value[..400])).unwrap();
    assert!(writer.put(&raw(3, b"a", &[9; 1800])).unwrap().is_some(), "it was compacted");
    assert_eq!(writer.put(&raw(3, b"c", &[9; 1900])), Err(NodeError::NoRoom));
    let stored = |key: &[u8]| writer.view().get(key).unwrap().unwrap().stored.len();
    assert_eq!([b"a", b"b", b"c", b"d"].map(|key| stored(key)), [1800, 400, 900, 400]);
    seal(&mut page);
    assert_eq!(check(&page), Ok(()));
}

#[test]
fn as_many_of_the_shortest_records_fit_as_there_is_room_for() {
    let mut page = node(b"", None);
    let mut writer = NodeMut::look(&mut page[..]).unwrap();
    let keys = (0..=255_u8).map(|byte| vec![byte]).chain((0..=255).map(|byte| vec![7, byte]));
    let taken = keys.take_while(|key| writer.put(&raw(1, key, b"")).is_ok()).count();
    assert!((290..NODE_SLOTS_MAX).contains(&taken), "{taken}");
    assert_eq!(writer.view().count(), taken);
    seal(&mut page);
    assert_eq!(check(&page), Ok(()));
    let node = NodeRef::look(&page[..]).unwrap();
    let mut order = NodeOrder::default();
    order.sort(&node).unwrap();
    assert_eq!(order.lower_bound(&node, b"\x07"), 7);
    assert_eq!(order.lower_bound(&node, b"\x08"), 8 + taken - 256);
}

#[test]
fn records_that_no_node_takes_are_refused() {
    let mut page = node(b"b", Some(b"d"));
    let mut writer = NodeMut::look(&mut page[..]).unwrap();
    let long = vec![b'c'; NODE_KEY_BYTES_MAX + 1];
    let header = |change: fn(&mut Header)| {
        let mut header = Header::value(1, 1, 20);
        change(&mut header);
        Record { header, key: b"c", stored: &[0xff; 20] }
    };
    let unfit = [
        raw(1, b"", b""),
        raw(1, &long, b""),
        raw(1, b"c", &[0; NODE_RECORD_BYTES_MAX - 10]),
        header(|header| header.keyspace = 1),
        header(|header| header.codec = Codec::OutOfLine),
        header(|header| header.stored_bytes = 19),
        Record { header: Header::tombstone(1, 1), key: b"c", stored: b"" },
    ];
    for record in unfit {
        assert_eq!(writer.put(&record), Err(NodeError::Unfit), "{:?}", record.header);
    }
    for key in [&b"a"[..], b"azz", b"d", b"e"] {
        assert_eq!(writer.put(&raw(1, key, b"")), Err(NodeError::OutsideFences));
        assert!(!writer.view().covers(key));
    }
    for key in [&b"b"[..], b"b\0", &long[..1024], b"c\xff\xff"] {
        assert_eq!(writer.put(&raw(1, key, b"")), Ok(None));
    }
    assert_eq!(writer.put(&raw(1, b"c", &[0; NODE_RECORD_BYTES_MAX - 11])), Ok(None), "the longest");
}

#[test]
fn fences_are_of_no_bytes_to_1024_and_leave_a_key_between_them() {
    let longest = [0xff; NODE_KEY_BYTES_MAX];
    let format = |low_fence: &[u8], high_fence: Option<&[u8]>| {
        let node = NewNode { keyspace: 0, id: 1, low_fence, high_fence };
        let mut page = blank();
        let formatted = NodeMut::format(&mut page, &node).map(|_| ());
        if formatted.is_ok() {
            seal(&mut page);
            let reader = NodeRef::check(&page[..], salt(1)).unwrap();
            assert_eq!((reader.low_fence(), reader.high_fence()), (low_fence, high_fence));
        }
        formatted
    };
    assert_eq!(format(b"", None), Ok(()));
    assert_eq!(format(&longest[..1023], Some(&longest)), Ok(()));
    assert_eq!(format(&longest, None), Ok(()));
    for (low, high) in [(&b""[..], Some(&b""[..])), (b"b", Some(b"b")), (b"c", Some(b"b")), (&[7; 1025], None)] {
        assert_eq!(format(low, high), Err(NodeError::Unfit));
    }
}

#[test]
fn every_bit_another_slot_and_another_tenant_are_seen() {
    let mut page = node(b"a", Some(b"x"));
    let mut writer = NodeMut::look(&mut page[..]).unwrap();
    for n in 0..20 {
        writer.put(&raw(n, format!("key{n}").as_bytes(), &[n as u8; 30])).unwrap();
    }
    assert_eq!(check(&blank()), Err(NodeError::Blank));
    assert_eq!(check(&page), Err(NodeError::Checksum), "not sealed");
    seal(&mut page);
    assert_eq!(check(&page), Ok(()));
    for bit in 0..8 * NODE_BYTES {
        page[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(check(&page), Err(NodeError::Checksum), "bit {bit}");
        page[bit / 8] ^= 1 << (bit % 8);
    }
    for another in [salt(2), SlotSalt { store: 6, ..salt(1) }, SlotSalt { version: 1, ..salt(1) }] {
        assert_eq!(NodeRef::check(&page[..], another).map(|_| ()), Err(NodeError::Checksum));
    }
    assert_eq!(NodeRef::check(&page[..4095], salt(1)).map(|_| ()), Err(NodeError::Damaged));
}

#[test]
fn a_node_that_adds_up_and_makes_no_sense_is_an_error() {
    let damaged = |change: fn(&mut NodePage)| {
        let mut page = node(b"b", Some(b"d"));
        let mut writer = NodeMut::look(&mut page[..]).unwrap();
        writer.put(&raw(1, b"c", b"value")).unwrap();
        let outside = Record { header: outside_header(1, b"cc"), key: b"cc", stored: &reference(1).encode() };
        writer.put(&outside).unwrap();
        change(&mut page);
        reseal(&mut page);
        check(&page)
    };
    assert_eq!(damaged(|_| ()), Ok(()));
    assert_eq!(damaged(|page| page[4] = 2), Err(NodeError::Version(2)));
    let changes: [fn(&mut NodePage); 16] = [
        |page| page[5] = 2,
        |page| page[5] = 1,
        |page| page[32] = 3,
        |page| page[33] = 2,
        |page| page[34] ^= 1,
        |page| page[35] = 0x10,
        |page| page[36] = 1,
        |page| page[38] = 0,
        |page| page[39] = 5,
        |page| page[40] = 0,
        |page| page[43] = 1,
        |page| page[48] ^= 1,
        |page| page[64] ^= 1,
        |page| page[NODE_BYTES - 2] = b'a',
        |page| page[NODE_BYTES - 1] = b'd',
        |page| page[NODE_BYTES - 2] = b'c',
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert_eq!(damaged(change), Err(NodeError::Damaged), "change {number}");
    }
}

#[test]
fn marks_and_expiry_stay_with_a_record() {
    let mut page = node(b"", None);
    let mut header = Header::value(1, 1, 3);
    (header.codec, header.raw_bytes, header.expiry) = (Codec::Zstd, 100, Expiry::from_millis(77));
    header.marks = Marks { stale: true, leased: false };
    NodeMut::look(&mut page[..]).unwrap().put(&Record { header, key: b"k", stored: b"abc" }).unwrap();
    seal(&mut page);
    assert_eq!(NodeRef::check(&page[..], salt(1)).unwrap().get(b"k").unwrap().unwrap().header, header);
}

/// All that can be done to a page of anything.
pub(super) fn exercise(page: &mut NodePage, key: &[u8]) {
    let _ = NodeRef::check(&page[..], salt(1));
    let mut order = NodeOrder::default();
    if let Ok(node) = NodeRef::look(&page[..]) {
        let _ = (node.get(key), node.covers(key), node.record_hint(key), node.used_bytes(), node.free_bytes());
        let _ = node.extensions().filter(Result::is_ok).count();
        if order.sort(&node).is_ok() {
            let from = order.lower_bound(&node, key);
            assert!(order.records(node, from..order.count()).rev().all(|record| record.is_ok()));
            let arrival = super::Arrival { key, record_bytes: 100 };
            for cut in [NodeCut::For(None), NodeCut::For(Some(arrival)), NodeCut::At(key)] {
                let _ = split(&node, &order, cut);
            }
            let _ = super::merge(&node, &node, &mut blank());
        }
    }
    if let Ok(mut node) = NodeMut::look(&mut page[..]) {
        for value in [&[1; 3][..], &[2; 300], &[3; 1900], &[4; 10]] {
            let _ = node.put(&raw(1, key, value));
        }
        let _ = (node.remove(key), node.compact());
        let _ = node.put(&raw(1, key, &[5; 50]));
        node.seal(salt(1), ImageSeal { stamp: 1, durable: 0, round_images: 0 });
        assert!(NodeRef::look(&page[..]).is_ok());
    }
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(
        head in any::<[u8; 32]>(),
        counts in any::<[u8; 16]>(),
        noise in proptest::collection::vec(any::<u8>(), 500),
        key in proptest::collection::vec(any::<u8>(), 0..5),
        shape: u8,
    ) {
        let mut page = blank();
        page.iter_mut().zip(noise.iter().cycle()).for_each(|(to, from)| *to = *from);
        page[..32].copy_from_slice(&head);
        page[32..48].copy_from_slice(&counts);
        // Likely ones: heads that hold together.
        (page[4], page[5]) = (1, shape & 1);
        page[42..48].fill(0);
        (page[33], page[39], page[41]) = (page[33] & 1, page[39] & 3, page[41] & 3);
        if shape & 1 == 1 { (page[40], page[41]) = (0, 0); }
        (page[35], page[37]) = (4 + (page[35] & 7), page[37] & 3);
        exercise(&mut page, &key);
    }

    #[test]
    fn a_damaged_page_in_memory_never_panics(
        keys in proptest::collection::btree_set(proptest::collection::vec(any::<u8>(), 1..12), 1..40),
        damage in proptest::collection::vec((0..NODE_BYTES, any::<u8>()), 1..6),
        near in proptest::collection::vec((0..400_usize, any::<u8>()), 0..6),
    ) {
        let mut page = node(b"", None);
        let mut writer = NodeMut::look(&mut page[..]).unwrap();
        for key in &keys {
            let _ = writer.put(&raw(1, key, &key.repeat(7)));
        }
        damage.iter().for_each(|(at, byte)| page[*at] ^= byte);
        let heap = usize::from(u16::from_le_bytes([page[34], page[35]]));
        near.iter().for_each(|(at, byte)| if let Some(place) = page.get_mut(heap + at) { *place = *byte });
        exercise(&mut page, keys.first().unwrap());
    }
}
