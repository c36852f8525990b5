//! Lookup in one bucket: rank and select, no allocation, only the words that it needs.
//!
//! Most lookups read the tenancy up to their slot and one or two entries. Only where several entries of the slot share
//! the fingerprint (1 in 50 at six bits) is the place of the slot's branches worked out, which means counting all
//! branches before it.

use super::{EntryLayout, Header, SLOTS, TENANCY_START, slot};
#[cfg(target_arch = "x86_64")]
use crate::bits::Bmi2;
use crate::bits::{Portable, Select, Words, ones_from, read_bits, select_zero};

/// The entry at which the search for `tail` ends, if its slot has an entry with its fingerprint: its payload. The slot
/// must be one that this bucket holds itself; `first_slot` is the first that it holds.
#[inline]
pub fn find<W: Words + ?Sized>(
    words: &W,
    header: Header,
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("popcnt") {
        // SAFETY: the machine has the instructions.
        return unsafe { find_bmi2(words, header, layout, first_slot, tail) };
    }
    find_with::<Portable, W>(words, header, layout, first_slot, tail)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,popcnt")]
unsafe fn find_bmi2<W: Words + ?Sized>(
    words: &W,
    header: Header,
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
) -> Option<u32> {
    find_with::<Bmi2, W>(words, header, layout, first_slot, tail)
}

/// Reads entry number `rank` of a bucket; 0 if there is no such entry.
#[inline(always)]
pub(super) fn entry<W: Words + ?Sized>(words: &W, layout: EntryLayout, rank: usize) -> u64 {
    match (words.count() * 64).checked_sub((rank + 1) * layout.width() as usize) {
        Some(bit) => read_bits(words, bit, layout.width()),
        None => 0,
    }
}

#[inline(always)]
fn find_with<S: Select, W: Words + ?Sized>(
    words: &W,
    header: Header,
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
) -> Option<u32> {
    // Wraps only for a reader misled by a half-written header; then the select finds nothing.
    let slots_before = slot(tail).wrapping_sub(first_slot);
    let start = match slots_before {
        0 => TENANCY_START,
        before => select_zero::<S, W>(words, TENANCY_START, before - 1)? + 1,
    };
    let tenants = ones_from(words, start);
    if tenants == 0 {
        return None;
    }
    let rank = start - TENANCY_START - slots_before as usize;
    let (payload_bits, fingerprint) = (layout.payload_bits, u64::from(layout.fingerprint(tail)));

    // The entries of the slot with this fingerprint are a run: they are sorted.
    let (mut first, mut count) = (0, tenants);
    let mut candidate = 0;
    if layout.fingerprint_bits == 0 {
        candidate = entry(words, layout, rank);
    } else {
        count = 0;
        for i in 0..tenants {
            let value = entry(words, layout, rank + i);
            if value >> payload_bits == fingerprint {
                if count == 0 {
                    (first, candidate) = (i, value);
                }
                count += 1;
            }
        }
        if count == 0 {
            return None;
        }
    }
    if count > 1 {
        let group = Group { first: rank + first, count, slot_start: start, slots_before };
        let leaf = search_group::<S, W>(words, header, layout, first_slot, tail, &group)?;
        candidate = entry(words, layout, group.first + leaf);
    }
    Some((candidate & (u64::MAX >> (64 - payload_bits))) as u32)
}

/// The entries of one slot that share a fingerprint.
struct Group {
    /// The number of the first one in the bucket, and how many there are (more than one).
    first: usize,
    count: usize,
    /// Where the tenancy of their slot begins, and how many slots of the bucket come before it.
    slot_start: usize,
    slots_before: u32,
}

/// The blind search of a group's trie: which of its entries the tail leads to.
#[inline(always)]
fn search_group<S: Select, W: Words + ?Sized>(
    words: &W,
    header: Header,
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
    group: &Group,
) -> Option<usize> {
    let slots_left = header.slots_end().checked_sub(first_slot)?.checked_sub(group.slots_before + 1)?;
    let branches_start = select_zero::<S, W>(words, group.slot_start, slots_left)? + 1;
    let before = branches_before(words, layout, group);
    let mut bit = match before {
        0 => branches_start,
        _ => select_zero::<S, W>(words, branches_start, before - 1)? + 1,
    };
    // At a branch whose bit is zero the search stays to its left and skips what is below it on the right: the
    // branches up to the next one with fewer equal bits.
    let mut leaf = 0;
    let mut skip_above = usize::MAX;
    for i in 0..group.count - 1 {
        let equal_bits = ones_from(words, bit);
        bit += equal_bits + 1;
        if equal_bits > skip_above {
            continue;
        }
        if layout.branch_bit(tail, equal_bits) {
            leaf = i + 1;
            skip_above = usize::MAX;
        } else {
            skip_above = equal_bits;
        }
    }
    Some(leaf)
}

/// How many branches the bucket has before the group's first entry.
#[inline(always)]
fn branches_before<W: Words + ?Sized>(words: &W, layout: EntryLayout, group: &Group) -> u32 {
    // Two ones in a row in the tenancy are two neighbours in a slot. Without fingerprints each is a branch.
    let end = group.slot_start;
    let mut branches = 0;
    let mut zeros = 0;
    let mut index = TENANCY_START / 64;
    while index * 64 < end {
        let word = words.word(index);
        let carry = words.word(index + 1) << 63;
        let mut pairs = word & (word >> 1 | carry);
        if end - index * 64 < 64 {
            pairs &= (1 << (end - index * 64)) - 1;
        }
        if layout.fingerprint_bits == 0 {
            branches += pairs.count_ones();
        } else {
            while pairs != 0 {
                let place = pairs.trailing_zeros();
                pairs &= pairs - 1;
                let zeros_before = zeros + (!word & ((1 << place) - 1)).count_ones() as usize;
                let rank = index * 64 - TENANCY_START + place as usize - zeros_before;
                branches += u32::from(same_fingerprint(words, layout, rank));
            }
            zeros += word.count_zeros() as usize;
        }
        index += 1;
    }
    if layout.fingerprint_bits > 0 {
        // And the neighbours in the group's own slot, up to the group.
        let slot_rank = end - TENANCY_START - group.slots_before as usize;
        for rank in slot_rank..group.first {
            branches += u32::from(same_fingerprint(words, layout, rank));
        }
    }
    branches
}

/// Whether entries `rank` and `rank + 1`, neighbours in a slot, share a fingerprint.
#[inline(always)]
fn same_fingerprint<W: Words + ?Sized>(words: &W, layout: EntryLayout, rank: usize) -> bool {
    entry(words, layout, rank) >> layout.payload_bits == entry(words, layout, rank + 1) >> layout.payload_bits
}

const _: () = assert!(SLOTS as usize <= u32::MAX as usize && TENANCY_START.is_multiple_of(64));

#[cfg(test)]
mod tests {
    use super::super::edit::Bucket;
    use super::*;
    use proptest::prelude::*;

    /// Words of a bucket that holds `tails`, each with its number as payload; and the sorted tails.
    fn bucket_of(layout: EntryLayout, mut tails: Vec<u128>) -> (Vec<u64>, Vec<u128>) {
        tails.sort_unstable();
        tails.dedup();
        let mut bucket = Bucket::new(layout);
        for (number, &tail) in tails.iter().enumerate() {
            bucket.push_last(tail, number as u32 & ((1 << layout.payload_bits()) - 1));
        }
        let mut words = vec![0; 4096];
        let end = bucket.encode(0, 0, &mut words).expect("room");
        assert_eq!(end.slots_end, SLOTS);
        (words, tails)
    }

    fn find_both_ways(words: &[u64], layout: EntryLayout, tail: u128) -> Option<u32> {
        let found = find_with::<Portable, [u64]>(words, Header(words[0]), layout, 0, tail);
        assert_eq!(find(words, Header(words[0]), layout, 0, tail), found, "pdep and portable differ");
        found
    }

    /// Tails with long equal prefixes: a few stems, varied below some bit.
    fn tails() -> impl Strategy<Value = Vec<u128>> {
        let alike = (any::<u128>(), 0u32..127, prop::collection::vec(any::<u128>(), 1..12)).prop_map(
            |(stem, shared, rest)| -> Vec<u128> {
                rest.into_iter().map(|r| stem & !(u128::MAX >> shared) | r & (u128::MAX >> shared)).collect()
            },
        );
        (prop::collection::vec(alike, 0..12), prop::collection::vec(any::<u128>(), 0..200))
            .prop_map(|(alike, apart)| alike.into_iter().flatten().chain(apart).collect())
    }

    proptest! {
        #[test]
        fn every_entry_is_found(tails in tails(), fingerprint_bits in 0u32..9) {
            let layout = EntryLayout::new(fingerprint_bits, 10);
            let (words, tails) = bucket_of(layout, tails);
            for (number, &tail) in tails.iter().enumerate() {
                prop_assert_eq!(find_both_ways(&words, layout, tail), Some(number as u32));
            }
        }

        #[test]
        fn a_strange_tail_finds_its_fingerprint_or_nothing(tails in tails(), strange: u128, fingerprint_bits in 0u32..9) {
            let layout = EntryLayout::new(fingerprint_bits, 10);
            let (words, tails) = bucket_of(layout, tails);
            let alike = |t: &u128| slot(*t) == slot(strange) && layout.fingerprint(*t) == layout.fingerprint(strange);
            match find_both_ways(&words, layout, strange) {
                None => prop_assert!(!tails.iter().any(alike)),
                Some(number) => prop_assert!(alike(&tails[number as usize])),
            }
        }

        #[test]
        fn nonsense_never_panics(words in prop::collection::vec(any::<u64>(), 1..100), ones: bool, tail: u128,
                                 first_slot in 0u32..256, fingerprint_bits in 0u32..17) {
            let layout = EntryLayout::new(fingerprint_bits, 32);
            let words: Vec<u64> = if ones { words.iter().map(|w| w | w << 1 | w >> 1).collect() } else { words };
            let header = Header(words[0]);
            let found = find_with::<Portable, [u64]>(&words, header, layout, first_slot, tail);
            prop_assert_eq!(find(&words[..], header, layout, first_slot, tail), found);
        }
    }
}
