use super::super::test_pages::{KEYSPACE, STORE, VERSION, page, slot};
use super::*;
use crate::extent_address::ExtentAddress;
use crate::scan::access::Entry;
use proptest::prelude::*;

/// Three nodes of all keys, out of order, with a page of something else between two of them.
fn three() -> Vec<u8> {
    [
        page(1, 50, "d", Some("m"), &["d", "e", "l"]),
        vec![7; NODE_BYTES],
        page(3, 60, "m", None, &["m", "z"]),
        page(9, 40, "", Some("d"), &["a", "b", "c"]),
    ]
    .concat()
}

fn run(first: u32, stamps: &[u64]) -> ImageRun {
    ImageRun::Slots { first: slot(first), version: VERSION, stamps: stamps.to_vec() }
}

fn piece(from: &str, to: Option<&str>) -> PieceOfImages {
    let (from, to) = (from.into(), to.map(|to| to.as_bytes().to_vec()));
    PieceOfImages { store: STORE, keyspace: KEYSPACE, from, to, runs: vec![run(1, &[50, 0, 60]), run(9, &[40])] }
}

#[derive(Default)]
struct Keys {
    keys: Vec<Vec<u8>>,
    wanted: Option<usize>,
}

impl Keys {
    fn sorted(mut self) -> String {
        self.keys.sort();
        String::from_utf8(self.keys.concat()).unwrap()
    }
}

impl EntrySink for Keys {
    fn entry(&mut self, entry: &dyn Entry) -> bool {
        assert_eq!(entry.header().keyspace, KEYSPACE);
        let mut key = vec![0; entry.header().key_bytes as usize];
        entry.copy_key(&mut key);
        self.keys.push(key);
        self.wanted.is_none_or(|wanted| self.keys.len() < wanted)
    }

    fn missed(&mut self, _: &[u8], _: Option<&[u8]>) {
        panic!("nodes that are held are there");
    }
}

fn walk(piece: &PieceOfImages, bytes: &[u8], part: usize) -> Result<String, AccessError> {
    let (mut accessor, mut keys) = (ImageAccessor::new(piece.clone()), Keys::default());
    assert_eq!(accessor.bytes_total(), bytes.len() as u64);
    for part in bytes.chunks(part) {
        assert!(accessor.take(part, &mut keys)?);
    }
    assert_eq!(accessor.place(), None);
    Ok(keys.sorted())
}

#[test]
fn a_range_shows_its_keys_once_in_whatever_parts_the_bytes_come() {
    for (from, to, expected) in [
        ("", None, "abcdelmz"),
        ("b", None, "bcdelmz"),
        ("", Some("m"), "abcdel"),
        ("c", Some("e"), "cd"),
        ("zz", None, ""),
    ] {
        for part in [1000, 4096, 5000, 32 << 10] {
            assert_eq!(walk(&piece(from, to), &three(), part), Ok(expected.into()), "from {from:?} to {to:?}");
        }
    }
}

#[test]
fn it_says_how_many_nodes_it_showed_when_it_was_ended() {
    for (wanted, shown, place) in [(1, "del", Some(1_u32)), (4, "delmz", Some(2)), (6, "abcdelmz", None)] {
        let (mut accessor, mut keys) = (ImageAccessor::new(piece("", None)), Keys::default());
        assert_eq!(accessor.place(), Some(vec![0; 4]));
        keys.wanted = Some(wanted);
        assert_eq!(accessor.take(&three(), &mut keys), Ok(false));
        assert_eq!(accessor.place(), place.map(|place| place.to_le_bytes().to_vec()));
        assert_eq!(keys.sorted(), shown);
    }
}

#[test]
fn what_is_not_the_image_of_the_moment_is_damage() {
    let (whole, bytes) = (piece("", None), three());
    let later = PieceOfImages { runs: vec![run(1, &[50, 0, 61]), run(9, &[40])], ..whole.clone() };
    assert_eq!(walk(&later, &bytes, 4096), Err(AccessError { page: 2 }));
    let other = PieceOfImages { keyspace: 4, ..whole.clone() };
    assert_eq!(walk(&other, &bytes, 4096), Err(AccessError { page: 0 }));
    let moved = PieceOfImages { runs: vec![run(1, &[50, 0, 60]), run(8, &[40])], ..whole.clone() };
    assert_eq!(walk(&moved, &bytes, 4096), Err(AccessError { page: 0 }));
    let mut damaged = bytes.clone();
    damaged[2 * NODE_BYTES + 1000] ^= 1;
    assert_eq!(walk(&whole, &damaged, 4096), Err(AccessError { page: 2 }));
    let mut longer = bytes;
    longer.extend_from_slice(&[0; NODE_BYTES]);
    assert_eq!(ImageAccessor::new(whole).take(&longer, &mut Keys::default()), Err(AccessError { page: 0 }));
}

#[test]
fn copies_need_no_checksum_and_no_stamp() {
    let mut bytes = three();
    bytes[3 * NODE_BYTES] ^= 1;
    let whole = PieceOfImages { runs: vec![run(1, &[50, 0, 60]), ImageRun::Copies { pages: 1 }], ..piece("", None) };
    assert_eq!(walk(&whole, &bytes, 4096), Ok("abcdelmz".into()));
}

#[test]
fn a_piece_reads_back_and_a_cut_one_does_not() {
    let copies = PieceOfImages { runs: vec![ImageRun::Copies { pages: 9 }, run(2, &[0, 7])], ..piece("b", Some("cc")) };
    for piece in [piece("", None), copies] {
        let mut bytes = Vec::new();
        piece.encode(&mut bytes);
        assert_eq!(bytes[0], LAYOUT_IMAGES);
        for length in 1..bytes.len() {
            assert!(PieceOfImages::decode(&mut ScanReader::new(&bytes[1..length])).is_err(), "{length} bytes");
        }
        assert_eq!(PieceOfImages::decode(&mut ScanReader::new(&bytes[1..])), Ok(piece));
    }
    let mut bytes = Vec::new();
    let first = SlotAddress::new(ExtentAddress::new(0, 3), SlotAddress::PAGES_MAX - 1);
    let run = ImageRun::Slots { first, version: 1, stamps: vec![1, 1] };
    PieceOfImages { runs: vec![run], ..piece("", None) }.encode(&mut bytes);
    assert_eq!(PieceOfImages::decode(&mut ScanReader::new(&bytes[1..])), Err(WireError::Malformed), "a run's end");
}

proptest! {
    #[test]
    fn no_damage_shows_what_is_not_there(
        damage in proptest::collection::vec((0..4 * NODE_BYTES, any::<u8>()), 1..20),
    ) {
        let mut bytes = three();
        damage.iter().for_each(|(at, byte)| bytes[*at] = *byte);
        if let Ok(shown) = walk(&piece("", None), &bytes, 4096) {
            prop_assert_eq!(shown, "abcdelmz");
        }
    }
}
