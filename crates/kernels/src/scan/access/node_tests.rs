use super::super::test_pages::{KEYSPACE, STORE, VERSION, page, slot};
use super::*;
use crate::extent_address::ExtentAddress;
use crate::scan::access::Entry;
use proptest::prelude::*;

fn piece(from: &str, to: Option<&str>, runs: Vec<NodeRun>) -> PieceOfNodes {
    let (from, to) = (from.into(), to.map(|to| to.as_bytes().to_vec()));
    PieceOfNodes { store: STORE, keyspace: KEYSPACE, stamp_max: 100, from, to, runs }
}

fn slots(first: u32, pages: u32) -> NodeRun {
    NodeRun { place: NodePlace::Slots { first: slot(first), version: VERSION }, pages }
}

/// Keys that are shown, and ranges that are missed.
#[derive(Default)]
struct Shown {
    keys: Vec<String>,
    missed: Vec<(String, Option<String>)>,
    wanted: Option<usize>,
}

impl EntrySink for Shown {
    fn entry(&mut self, entry: &dyn Entry) -> bool {
        let mut key = vec![0; entry.header().key_bytes as usize];
        entry.copy_key(&mut key);
        assert_eq!(entry.header().keyspace, KEYSPACE);
        self.keys.push(String::from_utf8(key).unwrap());
        self.wanted.is_none_or(|wanted| self.keys.len() < wanted)
    }

    fn missed(&mut self, from: &[u8], to: Option<&[u8]>) {
        let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
        self.missed.push((text(from), to.map(text)));
    }
}

fn walk(piece: &PieceOfNodes, bytes: &[u8], part: usize) -> (String, Vec<(String, Option<String>)>) {
    let (mut accessor, mut shown) = (NodeAccessor::new(piece.clone()), Shown::default());
    assert_eq!(accessor.bytes_total(), bytes.len() as u64);
    for part in bytes.chunks(part) {
        assert_eq!(accessor.take(part, &mut shown), Ok(true));
    }
    shown.keys.sort();
    (shown.keys.concat(), shown.missed)
}

fn missed(from: &str, to: Option<&str>) -> (String, Option<String>) {
    (from.into(), to.map(String::from))
}

/// Three nodes of all keys.
fn three() -> Vec<u8> {
    let pages = [
        page(1, 40, "", Some("d"), &["a", "b", "c"]),
        page(2, 50, "d", Some("m"), &["d", "e", "l"]),
        page(3, 60, "m", None, &["m", "z"]),
    ];
    pages.concat()
}

#[test]
fn a_range_shows_its_keys_once_in_whatever_parts_the_bytes_come() {
    for (from, to, expected) in [
        ("", None, "abcdelmz"),
        ("b", None, "bcdelmz"),
        ("", Some("m"), "abcdel"),
        ("b", Some("m"), "bcdel"),
        ("c", Some("e"), "cd"),
        ("cc", Some("dd"), "d"),
        ("zz", None, ""),
    ] {
        for part in [1000, 4096, 5000, 32 << 10] {
            let shown = walk(&piece(from, to, vec![slots(1, 3)]), &three(), part);
            assert_eq!(shown, (expected.into(), vec![]), "from {from:?} to {to:?}");
        }
    }
}

#[test]
fn another_accessor_goes_on_where_one_stopped() {
    for (from, to, expected) in [("", None, "abcdelmz"), ("b", Some("m"), "bcdel"), ("b", Some("e"), "bcd")] {
        for wanted in 1..4 {
            let (mut shown, mut piece) = (Shown::default(), piece(from, to, vec![slots(1, 3)]));
            loop {
                shown.wanted = Some(shown.keys.len() + wanted);
                let mut accessor = NodeAccessor::new(piece.clone());
                let stopped = !accessor.take(&three(), &mut shown).unwrap();
                let Some(place) = accessor.place() else { break };
                assert!(stopped && place > piece.from, "{place:?}");
                piece.from = place;
            }
            shown.keys.sort();
            assert_eq!((shown.keys.concat(), shown.missed), (expected.into(), vec![]));
        }
    }
}

#[test]
fn copies_need_no_checksum() {
    let mut bytes = three();
    bytes[NODE_BYTES] ^= 1;
    let runs = vec![slots(1, 1), NodeRun { place: NodePlace::Copies, pages: 1 }, slots(3, 1)];
    assert_eq!(walk(&piece("", None, runs), &bytes, 4096), ("abcdelmz".into(), vec![]));
}

#[test]
fn what_is_not_there_any_more_is_missed() {
    let whole = piece("b", Some("y"), vec![slots(1, 3)]);
    for (changed, expected) in [
        (0, ("delm", missed("b", Some("d")))),
        (1, ("bcm", missed("d", Some("m")))),
        (2, ("bcdel", missed("m", Some("y")))),
    ] {
        let mut bytes = three();
        bytes[changed * NODE_BYTES + 100] ^= 1;
        let (keys, missed) = expected;
        assert_eq!(walk(&whole, &bytes, 4096), (keys.into(), vec![missed]));
    }
    // Written since the list was made, and of another keyspace.
    let later = PieceOfNodes { stamp_max: 55, ..whole.clone() };
    assert_eq!(walk(&later, &three(), 4096), ("bcdel".into(), vec![missed("m", Some("y"))]));
    let other = PieceOfNodes { keyspace: 4, ..whole };
    assert_eq!(walk(&other, &three(), 4096), (String::new(), vec![missed("b", Some("y"))]));
}

#[test]
fn keys_of_two_pages_are_shown_by_the_first_and_a_gap_is_missed() {
    let overlapping = [
        page(1, 40, "", Some("m"), &["a", "d", "e"]),
        page(2, 50, "d", Some("m"), &["d", "f"]),
        page(3, 60, "m", None, &["m"]),
    ];
    let whole = piece("", None, vec![slots(1, 3)]);
    assert_eq!(walk(&whole, &overlapping.concat(), 4096), ("adem".into(), vec![]));
    let reaching = [
        page(1, 40, "", Some("f"), &["a", "e"]),
        page(2, 50, "d", Some("k"), &["d", "e", "g"]),
        page(3, 60, "m", None, &["m"]),
    ];
    assert_eq!(walk(&whole, &reaching.concat(), 4096), ("aegm".into(), vec![missed("k", Some("m"))]));
}

#[test]
fn a_sink_that_has_enough_ends_the_walk() {
    let mut shown = Shown { wanted: Some(4), ..Shown::default() };
    assert_eq!(NodeAccessor::new(piece("", None, vec![slots(1, 3)])).take(&three(), &mut shown), Ok(false));
    // To the end of its node.
    assert_eq!(shown.keys.len(), 6);
}

#[test]
fn more_bytes_than_pages_are_an_error() {
    let mut accessor = NodeAccessor::new(piece("", None, vec![slots(1, 2)]));
    assert_eq!(accessor.take(&three(), &mut Shown::default()), Err(AccessError { page: 0 }));
}

#[test]
fn a_piece_reads_back_and_a_cut_one_does_not() {
    for piece in [
        piece("b", Some("cc"), vec![slots(1, 3), NodeRun { place: NodePlace::Copies, pages: 9 }]),
        piece("", None, vec![]),
    ] {
        let mut bytes = Vec::new();
        piece.encode(&mut bytes);
        let keys = piece.from.len() + piece.to.as_ref().map_or(0, Vec::len);
        assert_eq!(bytes.len(), PieceOfNodes::HEAD_BYTES + keys + piece.runs.len() * PieceOfNodes::RUN_BYTES);
        assert_eq!(bytes[0], LAYOUT_NODES);
        assert_eq!(PieceOfNodes::decode(&mut ScanReader::new(&bytes[1..])), Ok(piece));
        for length in 1..bytes.len() {
            assert!(PieceOfNodes::decode(&mut ScanReader::new(&bytes[1..length])).is_err(), "{length} bytes");
        }
    }
    let mut bytes = Vec::new();
    let first = SlotAddress::new(ExtentAddress::new(0, 3), SlotAddress::PAGES_MAX - 1);
    let run = NodeRun { place: NodePlace::Slots { first, version: 1 }, pages: 2 };
    piece("", None, vec![run]).encode(&mut bytes);
    assert_eq!(PieceOfNodes::decode(&mut ScanReader::new(&bytes[1..])), Err(WireError::Malformed), "a run's end");
}

proptest! {
    #[test]
    fn no_damage_shows_a_key_twice_or_one_that_is_not_there(
        damage in proptest::collection::vec((0..3 * NODE_BYTES, any::<u8>()), 1..20),
        copies in any::<bool>(),
    ) {
        let mut bytes = three();
        damage.iter().for_each(|(at, byte)| bytes[*at] = *byte);
        let place = NodePlace::Slots { first: slot(1), version: VERSION };
        let place = if copies { NodePlace::Copies } else { place };
        let mut shown = Keys::default();
        let mut accessor = NodeAccessor::new(piece("", None, vec![NodeRun { place, pages: 3 }]));
        let taken = accessor.take(&bytes, &mut shown);
        if !copies {
            prop_assert_eq!(taken, Ok(true));
            let count = shown.0.len();
            shown.0.sort();
            shown.0.dedup();
            prop_assert_eq!(count, shown.0.len());
            prop_assert!(shown.0.iter().all(|key| b"abcdelmz".contains(&key[0])));
        }
    }
}

#[derive(Default)]
struct Keys(Vec<Vec<u8>>);

impl EntrySink for Keys {
    fn entry(&mut self, entry: &dyn Entry) -> bool {
        let mut key = vec![0; entry.header().key_bytes as usize];
        entry.copy_key(&mut key);
        self.0.push(key);
        true
    }

    fn missed(&mut self, _: &[u8], _: Option<&[u8]>) {}
}
