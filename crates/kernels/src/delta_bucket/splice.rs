//! Changes to a bucket in place: bits move aside, and unchanged parts are never decoded.
//!
//! A merge uses this for a bucket with few changes. It takes a twentieth of the time that [`edit`](super::edit) takes.
//! It works on a private copy of the words of one bucket, whose word 0 is its header, and on the slots that this bucket
//! holds itself. Each function leaves the same bits as decoding, changing and encoding would.

use super::edit::Inserted;
use super::entries::entry;
use super::find::{Place, place};
use super::{BucketHeader, EntryLayout, slot};
use crate::bits::{BitWriter, clear_bits, move_down, move_up, ones_from, write_bits};

/// The bucket has no room for the entry. It is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

fn entry_start(words: &[u64], layout: EntryLayout, rank: usize) -> usize {
    words.len() * 64 - (rank + 1) * layout.width() as usize
}

/// The bit at which the entries begin if there are `entries` of them.
fn entries_start(words: &[u64], layout: EntryLayout, entries: usize) -> usize {
    words.len() * 64 - entries * layout.width() as usize
}

/// Adds an entry, or replaces the payload of the one that the key has. `neighbor` is the tail of the entry at which
/// [`find`](super::find::find) ends for this tail; it is needed unless find gives nothing.
pub fn insert(
    words: &mut [u64],
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
    payload: u32,
    neighbor: Option<u128>,
) -> Result<Inserted, NoRoom> {
    debug_assert!(u64::from(payload) >> layout.payload_bits == 0, "payload {payload} is too large");
    let place = place(words, layout, first_slot, tail);
    let mut rank = place.group.first;
    let mut branch = None;
    if place.group.count > 0 {
        let neighbor = neighbor.expect("a key that shares its fingerprint comes with its neighbor's hash key");
        assert!(
            slot(neighbor) == slot(tail) && layout.fingerprint(neighbor) == layout.fingerprint(tail),
            "the neighbor of a key lies in its slot and has its fingerprint"
        );
        if neighbor == tail {
            set_payload(words, layout, rank + place.leaf, payload);
            return Ok(Inserted::Replaced);
        }
        let equal_bits = layout.equal_bits(neighbor, tail) as usize;
        let (at, bit) = branch_place(words, layout, &place, equal_bits, layout.branch_bit(tail, equal_bits));
        rank += at;
        branch = Some((bit, equal_bits));
    }
    let mut branches_end = place.extent.branches_end;
    let entries_start = entries_start(words, layout, place.extent.entries);
    let branch_bits = branch.map_or(0, |(_, equal_bits)| equal_bits + 1);
    if entries_start - branches_end < 1 + layout.width() as usize + branch_bits {
        return Err(NoRoom);
    }

    let bit = entry_start(words, layout, rank);
    move_down(words, entries_start, bit + layout.width() as usize, layout.width());
    let value = u64::from(layout.fingerprint(tail)) << layout.payload_bits | u64::from(payload);
    write_bits(words, bit, layout.width(), value);
    if let Some((bit, equal_bits)) = branch {
        let mut left = branch_bits;
        while left > 0 {
            let step = left.min(63);
            move_up(words, bit, branches_end, step as u32);
            branches_end += step;
            left -= step;
        }
        BitWriter::new(words, bit).push_unary(equal_bits);
    }
    move_up(words, place.slot.start(), branches_end, 1);
    write_bits(words, place.slot.start(), 1, 1);
    set_branch_bits(words, |bits| bits + branch_bits);
    Ok(Inserted::New)
}

/// The number in its group of a new entry that shares `equal_bits` bits with the leaf, and the bit at which its branch
/// goes.
fn branch_place(
    words: &[u64],
    layout: EntryLayout,
    place: &Place,
    equal_bits: usize,
    goes_right: bool,
) -> (usize, usize) {
    // Entries that share more than `equal_bits` bits with the leaf stay together, on one side of the new entry.
    let mut bit = place.branches(words, layout);
    if goes_right {
        for _ in 0..place.leaf {
            bit += ones_from(words, bit) + 1;
        }
        let mut at = place.leaf + 1;
        while at < place.group.count {
            let branch = ones_from(words, bit);
            if branch <= equal_bits {
                break;
            }
            bit += branch + 1;
            at += 1;
        }
        (at, bit)
    } else {
        let mut found = (0, bit);
        for i in 0..place.leaf {
            let branch = ones_from(words, bit);
            bit += branch + 1;
            if branch <= equal_bits {
                found = (i + 1, bit);
            }
        }
        found
    }
}

/// Replaces the payload of a key that is there.
pub fn replace(words: &mut [u64], layout: EntryLayout, first_slot: u32, tail: u128, payload: u32) {
    debug_assert!(u64::from(payload) >> layout.payload_bits == 0, "payload {payload} is too large");
    let place = place(words, layout, first_slot, tail);
    assert!(place.group.count > 0, "only a key that is there is replaced");
    set_payload(words, layout, place.group.first + place.leaf, payload);
}

/// Removes a key that is there.
pub fn remove(words: &mut [u64], layout: EntryLayout, first_slot: u32, tail: u128) {
    let place = place(words, layout, first_slot, tail);
    assert!(place.group.count > 0, "only a key that is there is removed");
    let mut branches_end = place.extent.branches_end;
    let entries_start = entries_start(words, layout, place.extent.entries);

    // The entries lead to the branches, so these are found before the entries move.
    let branches = (place.group.count > 1).then(|| place.branches(words, layout));
    let bit = entry_start(words, layout, place.group.first + place.leaf);
    clear_bits(words, bit, layout.width());
    move_up(words, entries_start, bit, layout.width());
    if let Some(mut bit) = branches {
        // The entry has a branch on each side. The one with fewer equal bits stays, between the two new neighbours.
        for _ in 1..place.leaf {
            bit += ones_from(words, bit) + 1;
        }
        let mut equal_bits = ones_from(words, bit);
        if place.leaf > 0 && place.leaf + 1 < place.group.count {
            let next = ones_from(words, bit + equal_bits + 1);
            if next > equal_bits {
                bit += equal_bits + 1;
                equal_bits = next;
            }
        }
        let mut left = equal_bits + 1;
        while left > 0 {
            let step = left.min(63);
            clear_bits(words, bit, step as u32);
            move_down(words, bit + step, branches_end, step as u32);
            branches_end -= step;
            left -= step;
        }
        set_branch_bits(words, |bits| bits - equal_bits - 1);
    }
    clear_bits(words, place.slot.start(), 1);
    move_down(words, place.slot.start() + 1, branches_end, 1);
}

fn set_payload(words: &mut [u64], layout: EntryLayout, rank: usize, payload: u32) {
    let value = entry(words, layout, rank) >> layout.payload_bits << layout.payload_bits | u64::from(payload);
    let bit = entry_start(words, layout, rank);
    clear_bits(words, bit, layout.width());
    write_bits(words, bit, layout.width(), value);
}

fn set_branch_bits(words: &mut [u64], change: impl FnOnce(usize) -> usize) {
    let header = BucketHeader(words[0]);
    words[0] = header.with_branch_bits(change(header.branch_bits() as usize)).0;
}

#[cfg(test)]
mod tests {
    use super::super::edit::Bucket;
    use super::super::find::find;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Tails, many of which share long prefixes.
    fn tail() -> impl Strategy<Value = u128> {
        (0u128..6, 0u32..125, any::<u128>()).prop_map(|(stem, shared, rest)| {
            let stem = stem.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            stem & !(u128::MAX >> shared) | rest & (u128::MAX >> shared)
        })
    }

    fn encoded(model: &BTreeMap<u128, u32>, layout: EntryLayout, len: usize) -> Vec<u64> {
        let mut bucket = Bucket::new(layout);
        model.iter().for_each(|(&tail, &payload)| bucket.push_last(tail, payload));
        let mut words = vec![0; len];
        bucket.encode(0, 0, &mut words).expect("room");
        words
    }

    proptest! {
        #[test]
        fn leaves_the_same_bits_as_encoding(
            steps in prop::collection::vec((tail(), any::<prop::sample::Index>(), 0u32..10), 1..120),
            fingerprint_bits in 0u32..9,
        ) {
            const LEN: usize = 1000;
            let layout = EntryLayout::new(fingerprint_bits, 18);
            let mut model = BTreeMap::new();
            let mut owners = Vec::new();
            let mut words = encoded(&model, layout, LEN);
            for (tail, index, kind) in steps {
                let existing = (!model.is_empty()).then(|| *model.keys().nth(index.index(model.len())).unwrap());
                match (kind, existing) {
                    (0, Some(tail)) => {
                        model.remove(&tail);
                        remove(&mut words, layout, 0, tail);
                    }
                    (1, Some(tail)) => {
                        model.insert(tail, owners.len() as u32);
                        replace(&mut words, layout, 0, tail, owners.len() as u32);
                        owners.push(tail);
                    }
                    _ => {
                        let found = find(&words[..], BucketHeader(words[0]), layout, 0, tail);
                        let neighbor = found.map(|payload| owners[payload as usize]);
                        let is_new = model.insert(tail, owners.len() as u32).is_none();
                        let done = insert(&mut words, layout, 0, tail, owners.len() as u32, neighbor);
                        prop_assert_eq!(done, Ok(if is_new { Inserted::New } else { Inserted::Replaced }));
                        owners.push(tail);
                    }
                }
                prop_assert_eq!(&words, &encoded(&model, layout, LEN));
            }
        }

        #[test]
        fn fills_a_bucket_to_the_last_bit_and_then_refuses(tails in prop::collection::vec(any::<u128>(), 400)) {
            let layout = EntryLayout::new(6, 10);
            let mut model = BTreeMap::new();
            let mut words = encoded(&model, layout, 64);
            for tail in tails {
                let before = words.clone();
                let found = find(&words[..], BucketHeader(words[0]), layout, 0, tail);
                let neighbor = found.map(|payload| *model.iter().find(|entry| *entry.1 == payload).unwrap().0);
                match insert(&mut words, layout, 0, tail, model.len() as u32, neighbor) {
                    Ok(_) => {
                        model.insert(tail, model.len() as u32);
                    }
                    Err(NoRoom) => {
                        prop_assert_eq!(&words, &before);
                        model.insert(tail, model.len() as u32);
                        let mut bucket = Bucket::new(layout);
                        model.iter().for_each(|(&tail, &payload)| bucket.push_last(tail, payload));
                        let encoded = bucket.encode(0, 0, &mut words).unwrap();
                        prop_assert!(encoded.slots_end < super::super::SLOTS);
                        return Ok(());
                    }
                }
            }
            prop_assert!(false, "400 entries do not fit");
        }
    }
}
