use super::*;
use crate::extent_address::ExtentAddress;
use crate::ordered::SlotAddress;
use crate::ordered::extension::{EXTENSION_HEAD_BYTES, crc_of_none};
use crate::reference::Run;
use crate::scan::access::Entry;

const STORE: u64 = 5;
const VERSION: u64 = 11;

fn stored() -> Vec<u8> {
    (0..9000_u32).map(|byte| byte as u8).collect()
}

fn of_extents() -> (PieceOfValue, Vec<u8>) {
    let (stored, runs) = (stored(), vec![Run { first: 3, count: 2 }]);
    let stored_bytes = stored.len() as u32;
    let sums = MibSums::of(0, b"");
    let mut reference = Reference { version: 7, sums, stored_bytes, codec: Codec::Raw, runs };
    reference.sums = MibSums::of(reference.crc_of_none(STORE), &stored);
    let home = ValueHome::Extents(reference);
    (PieceOfValue { store: STORE, keyspace: 3, key: b"key".to_vec(), raw_bytes: stored_bytes, home }, stored)
}

fn of_extension() -> (PieceOfValue, Vec<u8>) {
    let (stored, slot) = (stored(), SlotAddress::new(ExtentAddress::new(0, 3), 9));
    let (salt, stored_bytes) = (SlotSalt { store: STORE, slot, version: VERSION }, stored.len() as u32);
    let reference = ExtensionReference { stamp: 9, slot, codec: Codec::Raw, stored_bytes };
    let sums = MibSums::of(crc_of_none(salt), &stored);
    let raw_bytes = stored_bytes;
    let head = ExtensionHead { keyspace: 3, stamp: 9, codec: Codec::Raw, raw_bytes, stored_bytes, sums };
    let mut bytes = vec![0; EXTENSION_HEAD_BYTES + 3];
    head.encode(b"key", salt, &mut bytes);
    bytes.extend_from_slice(&stored);
    let home = ValueHome::Extension(reference, VERSION);
    (PieceOfValue { store: STORE, keyspace: 3, key: b"key".to_vec(), raw_bytes, home }, bytes)
}

#[derive(Default)]
struct Shown {
    values: Vec<Vec<u8>>,
    missed: Vec<Vec<u8>>,
}

impl EntrySink for Shown {
    fn entry(&mut self, entry: &dyn Entry) -> bool {
        let (mut key, mut value) = ([0; 3], vec![0; entry.header().stored_bytes as usize]);
        entry.copy_key(&mut key);
        entry.copy_stored(&mut value);
        assert_eq!((&key, entry.header().keyspace), (b"key", 3));
        self.values.push(value);
        true
    }

    fn missed(&mut self, from: &[u8], to: Option<&[u8]>) {
        assert_eq!(to, Some(&[from, &[0]].concat()[..]));
        self.missed.push(from.to_vec());
    }
}

fn walk(piece: &PieceOfValue, bytes: &[u8], part: usize) -> Result<Shown, AccessError> {
    let (mut accessor, mut shown) = (ValueAccessor::new(piece.clone()), Shown::default());
    assert_eq!(accessor.bytes_total(), bytes.len() as u64);
    for part in bytes.chunks(part) {
        assert!(accessor.take(part, &mut shown)?);
    }
    Ok(shown)
}

#[test]
fn a_value_is_shown_when_all_of_it_is_there() {
    for (piece, bytes) in [of_extents(), of_extension()] {
        for part in [7, 4096, bytes.len()] {
            let shown = walk(&piece, &bytes, part).unwrap();
            assert_eq!((shown.values, shown.missed.len()), (vec![stored()], 0));
        }
        let mut encoded = Vec::new();
        piece.encode(&mut encoded);
        assert_eq!(encoded[0], LAYOUT_VALUE);
        assert_eq!(PieceOfValue::decode(&mut ScanReader::new(&encoded[1..])), Ok(piece));
        for length in 1..encoded.len() - 1 {
            assert!(PieceOfValue::decode(&mut ScanReader::new(&encoded[1..length])).is_err(), "{length} bytes");
        }
    }
}

#[test]
fn other_bytes_are_damage_in_extents_and_missed_in_an_extension() {
    for at in [0, 40, 5000, 8999] {
        let (piece, mut bytes) = of_extents();
        bytes[at] ^= 1;
        assert!(walk(&piece, &bytes, 4096).is_err(), "byte {at}");
        let (piece, mut bytes) = of_extension();
        bytes[at] ^= 1;
        let shown = walk(&piece, &bytes, 4096).unwrap();
        assert_eq!((shown.values.len(), shown.missed), (0, vec![b"key".to_vec()]), "byte {at}");
    }
}
