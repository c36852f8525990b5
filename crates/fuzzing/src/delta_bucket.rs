//! One bucket of the delta table against a map, changed in both ways, searched in both ways.

use std::collections::BTreeMap;
use tapetum::fuzzing::Input;
use tapetum_kernels::bits::Words;
use tapetum_kernels::delta_bucket::edit::{Bucket, Inserted};
use tapetum_kernels::delta_bucket::find::{find, find_portable};
use tapetum_kernels::delta_bucket::splice::{self, NoRoom};
use tapetum_kernels::delta_bucket::{BucketHeader, EntryLayout, SLOTS, slot};

/// Short enough to be filled by an input.
const BUCKET_WORDS: usize = 32;

/// A bucket's words, changed in place; the same bucket taken apart, changed there; and what both must hold.
struct Pair {
    layout: EntryLayout,
    words: Vec<u64>,
    bucket: Bucket,
    map: BTreeMap<u128, u32>,
    /// Payloads are unique, so that a payload tells whose entry it is, as a key table does.
    owners: Vec<u128>,
    was_full: bool,
}

impl Pair {
    fn new(layout: EntryLayout) -> Pair {
        let mut words = vec![0; BUCKET_WORDS];
        let bucket = Bucket::new(layout);
        bucket.encode(0, 0, &mut words).expect("an empty bucket");
        Pair { layout, words, bucket, map: BTreeMap::new(), owners: Vec::new(), was_full: false }
    }

    fn find(&self, tail: u128) -> Option<u32> {
        find_both_ways(&self.words[..], BucketHeader(self.words[0]), self.layout, 0, tail)
    }

    fn next_payload(&mut self, tail: u128) -> u32 {
        self.owners.push(tail);
        self.owners.len() as u32 - 1
    }

    fn put(&mut self, tail: u128) {
        let neighbor = self.find(tail).map(|payload| self.owners[payload as usize]);
        let payload = self.next_payload(tail);
        let before = self.words.clone();
        match splice::insert(&mut self.words, self.layout, 0, tail, payload, neighbor) {
            Ok(done) => {
                let there = self.map.insert(tail, payload).is_some();
                assert_eq!(done == Inserted::Replaced, there);
                assert_eq!(self.bucket.insert(tail, payload, neighbor), done);
            }
            Err(NoRoom) => {
                assert_eq!(self.words, before, "what has no room changes nothing");
                if !self.was_full {
                    let mut too_much = self.map.clone();
                    too_much.insert(tail, payload);
                    assert_ne!(end_of(&too_much, self.layout), Some(SLOTS), "there was room");
                }
                self.was_full = true;
            }
        }
    }

    fn replace(&mut self, tail: u128) {
        let payload = self.next_payload(tail);
        splice::replace(&mut self.words, self.layout, 0, tail, payload);
        let old = self.bucket.replace(tail, payload);
        assert_eq!(self.map.insert(tail, payload), Some(old));
    }

    fn remove(&mut self, tail: u128) {
        splice::remove(&mut self.words, self.layout, 0, tail);
        assert_eq!(self.map.remove(&tail), Some(self.bucket.remove(tail)));
    }

    /// Both hold the same bits, and what they must.
    fn check(&mut self) {
        let mut words = vec![0; BUCKET_WORDS];
        let encoded = self.bucket.encode(0, 0, &mut words).expect("room");
        assert_eq!((encoded.slots_end, encoded.entries_end), (SLOTS, self.map.len()));
        assert_eq!(words, self.words);
        for (&tail, &payload) in &self.map {
            assert_eq!(self.find(tail), Some(payload));
        }
        self.bucket.clear();
        self.bucket.decode(&self.words[..], BucketHeader(self.words[0]), 0);
    }

    /// A tail that is in no entry finds nothing, or an entry with its slot and fingerprint.
    fn check_strange(&self, tail: u128) {
        let layout = self.layout;
        let alike = |other: u128| slot(other) == slot(tail) && layout.fingerprint(other) == layout.fingerprint(tail);
        match self.find(tail) {
            None => assert!(!self.map.keys().any(|&other| alike(other))),
            Some(payload) => assert!(alike(self.owners[payload as usize])),
        }
    }
}

/// The slots of a map's entries for which a bucket has room.
fn end_of(map: &BTreeMap<u128, u32>, layout: EntryLayout) -> Option<u32> {
    let mut bucket = Bucket::new(layout);
    map.iter().for_each(|(&tail, &payload)| bucket.push_last(tail, payload));
    bucket.encode(0, 0, &mut [0; BUCKET_WORDS]).ok().map(|encoded| encoded.slots_end)
}

fn find_both_ways<W: Words + ?Sized>(
    words: &W,
    header: BucketHeader,
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
) -> Option<u32> {
    let found = find(words, header, layout, first_slot, tail);
    assert_eq!(found, find_portable(words, header, layout, first_slot, tail), "pdep and portable differ");
    found
}

/// Tails of which many share long prefixes with others.
fn tail(input: &mut Input<'_>) -> u128 {
    let (stem, shared) = (u128::from(input.u8() % 8), u32::from(input.u8()) % 128);
    let stem = stem.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let below = u128::MAX >> shared;
    let rest = u128::from(input.u16()).wrapping_mul(0xd1b5_4a32_d192_ed03_8cb9_2ba7_2f3d_8dd7);
    stem & !below | rest & below
}

pub fn against_a_map(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut pair = Pair::new(EntryLayout::new(u32::from(input.u8()) % 17, 8 + u32::from(input.u8()) % 25));
    let mut checks = 0;
    while !input.is_empty() && pair.owners.len() < 250 {
        let what = input.u8();
        let existing = match pair.map.len() {
            0 => None,
            len => pair.map.keys().nth(usize::from(what >> 3) % len).copied(),
        };
        match (what & 7, existing) {
            (0, Some(tail)) => pair.remove(tail),
            (1, Some(tail)) => pair.replace(tail),
            (2, _) if checks < 3 => {
                pair.check();
                checks += 1;
            }
            (3, _) => pair.check_strange(tail(&mut input)),
            _ => {
                let tail = tail(&mut input);
                pair.put(tail);
            }
        }
    }
    pair.check();
}

/// Words of anything, as a reader beside a writer may see them: a search ends, both ways alike.
pub fn nonsense(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let layout = EntryLayout::new(u32::from(input.u8()) % 17, 1 + u32::from(input.u8()) % 32);
    let (first_slot, tail) = (input.u8().into(), input.u128());
    let words: Vec<u64> = input.rest().chunks(8).map(|chunk| Input::new(chunk).u64()).collect();
    let header = BucketHeader(words.first().copied().unwrap_or(0));
    find_both_ways(&words[..], header, layout, first_slot, tail);
}
