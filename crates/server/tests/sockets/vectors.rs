//! tests/vectors through the request path over packets in memory, over a real store.

use std::collections::BTreeMap;

use tapetum::StoreOptions;
use tapetum_server::doors::memcached::packets::Packets;

const VECTORS: &str = include_str!("../../../../tests/vectors/binary.txt");
const STAMP_BYTES: usize = 8;
const CAPACITY_BYTES: u64 = 256 << 20;
const MEMORY_BYTES: u64 = 32 << 20;

/// Stamps by the letters that stand for them.
type Stamps = BTreeMap<char, [u8; STAMP_BYTES]>;

/// The bytes of a line. `received`: at this place of it are the stamps whose letters come first here.
fn bytes(line: &str, stamps: &mut Stamps, received: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for group in line.split_whitespace() {
        if let Some(letter) = group.strip_prefix('{') {
            let letter = letter.chars().next().expect("a letter");
            let there = received.and_then(|received| received.get(out.len()..)?.first_chunk().copied());
            let known = stamps.get(&letter).copied();
            let stamp = known.or(there).unwrap_or_else(|| panic!("{{{letter}}} is nowhere before {line}"));
            if known.is_none() {
                assert!(
                    stamp != [0; STAMP_BYTES] && !stamps.values().any(|other| *other == stamp),
                    "{{{letter}}}: {stamp:?}"
                );
                stamps.insert(letter, stamp);
            }
            out.extend(stamp);
        } else {
            let digits = |at: usize| u8::from_str_radix(&group[at..at + 2], 16).expect("hexadecimal");
            out.extend((0..group.len()).step_by(2).map(digits));
        }
    }
    out
}

#[test]
fn every_vector_is_answered_as_it_stands() {
    let options = StoreOptions::new(CAPACITY_BYTES, MEMORY_BYTES).with_tier(1 << 20);
    let (_drive, store) = crate::common::store_in_memory(CAPACITY_BYTES, &options);
    let mut packets = Packets::new(&store).unwrap();
    let (mut stamps, mut vectors) = (Stamps::new(), 0);
    for vector in VECTORS.split("\n\n").skip(1) {
        let lines = |mark| vector.lines().filter_map(move |line| line.strip_prefix(mark));
        let sent: Vec<u8> = lines("> ").flat_map(|line| bytes(line, &mut stamps, None)).collect();
        let mut received = Vec::new();
        packets.take(&sent, |piece| received.extend_from_slice(piece));
        let mut expected = Vec::new();
        for line in lines("< ") {
            let rest = received.get(expected.len()..).unwrap_or_default();
            expected.extend(bytes(line, &mut stamps, Some(rest)));
        }
        assert_eq!(received, expected, "{vector}");
        vectors += 1;
    }
    assert!(vectors > 30, "{vectors} vectors");
    drop(packets);
    store.close().unwrap();
}
