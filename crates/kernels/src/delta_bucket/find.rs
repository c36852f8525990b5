//! Lookup in one bucket: rank and select, no allocation, only the words that it needs.
//!
//! Most lookups read the tenancy up to their slot and one or two entries. Only where several entries of the slot share
//! the fingerprint (1 in 50 at six bits) is the place of the slot's branches worked out, which means counting all
//! branches before it.

use super::{EntryLayout, Header, TENANCY_START, slot};
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
    if has_bmi2() {
        // SAFETY: the machine has the instructions.
        return unsafe { find_bmi2(words, header, layout, first_slot, tail) };
    }
    find_portable(words, header, layout, first_slot, tail)
}

/// [`find`] without special instructions, on any machine.
#[inline]
pub fn find_portable<W: Words + ?Sized>(
    words: &W,
    header: Header,
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
) -> Option<u32> {
    find_with::<Portable, W>(words, header, layout, first_slot, tail)
}

/// Which words of the bucket a lookup of `tail` reads entries from, the first and the last: to ask for them before. `None`
/// if there is nothing to read, as far as can be told while the words may be changing.
#[inline]
pub fn entry_words<W: Words + ?Sized>(words: &W, layout: EntryLayout, tail: u128) -> Option<(usize, usize)> {
    #[cfg(target_arch = "x86_64")]
    if has_bmi2() {
        // SAFETY: the machine has the instructions.
        return unsafe { entry_words_bmi2(words, layout, tail) };
    }
    entry_words_with::<Portable, W>(words, layout, tail)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,popcnt")]
fn entry_words_bmi2<W: Words + ?Sized>(words: &W, layout: EntryLayout, tail: u128) -> Option<(usize, usize)> {
    entry_words_with::<Bmi2, W>(words, layout, tail)
}

#[inline(always)]
fn entry_words_with<S: Select, W: Words + ?Sized>(
    words: &W,
    layout: EntryLayout,
    tail: u128,
) -> Option<(usize, usize)> {
    let slot = Slot::find::<S, W>(words, 0, tail)?;
    let end = (words.count() * 64).checked_sub(slot.rank() * layout.width() as usize + 1)?;
    let start = end.checked_sub(slot.tenants.max(1) * layout.width() as usize - 1)?;
    (slot.tenants > 0).then_some((start / 64, end / 64))
}

/// Where a tail is or would be: for the writer, who must not be misled by the words.
pub(super) fn place(words: &[u64], layout: EntryLayout, first_slot: u32, tail: u128) -> Place {
    let header = Header(words[0]);
    #[cfg(target_arch = "x86_64")]
    if has_bmi2() {
        // SAFETY: the machine has the instructions.
        return unsafe { place_bmi2(words, header, layout, first_slot, tail) }.expect("a bucket that we wrote");
    }
    place_with::<Portable, [u64]>(words, header, layout, first_slot, tail).expect("a bucket that we wrote")
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn has_bmi2() -> bool {
    is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("popcnt")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,popcnt")]
fn find_bmi2<W: Words + ?Sized>(
    words: &W,
    header: Header,
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
) -> Option<u32> {
    find_with::<Bmi2, W>(words, header, layout, first_slot, tail)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,popcnt")]
fn place_bmi2(words: &[u64], header: Header, layout: EntryLayout, first_slot: u32, tail: u128) -> Option<Place> {
    place_with::<Bmi2, [u64]>(words, header, layout, first_slot, tail)
}

#[inline(always)]
fn find_with<S: Select, W: Words + ?Sized>(
    words: &W,
    header: Header,
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
) -> Option<u32> {
    let slot = Slot::find::<S, W>(words, first_slot, tail)?;
    let group = Group::find(words, layout, slot, tail)?;
    let leaf = if group.count == 1 {
        0
    } else {
        let tenancy_end = slot.tenancy_end::<S, W>(words, header, first_slot)?;
        let branches = group.branches::<S, W>(words, layout, tenancy_end)?;
        search(words, layout, branches, group.count, tail)
    };
    let found = entry(words, layout, group.first + leaf);
    Some((found & (u64::MAX >> (64 - layout.payload_bits))) as u32)
}

/// Where a tail is or would be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub slot: Slot,
    /// The entries with its fingerprint in its slot; if there are none, `first` is where one would be.
    pub group: Group,
    pub tenancy_end: usize,
    /// Where the first branch of the group is; unknown if it has none.
    branches: Option<usize>,
    /// At which entry of the group the search ends.
    pub leaf: usize,
}

impl Place {
    /// Where the first branch of the group is or would be. The group must not be empty.
    pub fn branches(&self, words: &[u64], layout: EntryLayout) -> usize {
        self.branches
            .or_else(|| self.group.branches::<Portable, [u64]>(words, layout, self.tenancy_end))
            .expect("a bucket that we wrote")
    }
}

#[inline(always)]
fn place_with<S: Select, W: Words + ?Sized>(
    words: &W,
    header: Header,
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
) -> Option<Place> {
    let slot = Slot::find::<S, W>(words, first_slot, tail)?;
    let tenancy_end = slot.tenancy_end::<S, W>(words, header, first_slot)?;
    let Some(group) = Group::find(words, layout, slot, tail) else {
        let fingerprint = u64::from(layout.fingerprint(tail));
        let below = |rank: &usize| entry(words, layout, *rank) >> layout.payload_bits < fingerprint;
        let first = slot.rank() + (slot.rank()..slot.rank() + slot.tenants).take_while(below).count();
        return Some(Place { slot, group: Group { slot, first, count: 0 }, tenancy_end, branches: None, leaf: 0 });
    };
    let mut place = Place { slot, group, tenancy_end, branches: None, leaf: 0 };
    if group.count > 1 {
        let branches = group.branches::<S, W>(words, layout, tenancy_end)?;
        place.branches = Some(branches);
        place.leaf = search(words, layout, branches, group.count, tail);
    }
    Some(place)
}

/// Reads entry number `rank` of a bucket; 0 if there is no such entry.
#[inline(always)]
pub(super) fn entry<W: Words + ?Sized>(words: &W, layout: EntryLayout, rank: usize) -> u64 {
    match (words.count() * 64).checked_sub((rank + 1) * layout.width() as usize) {
        Some(bit) => read_bits(words, bit, layout.width()),
        None => 0,
    }
}

/// One slot in the tenancy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Slots of this bucket before it.
    before: u32,
    /// Where its ones begin, and how many there are.
    pub start: usize,
    pub tenants: usize,
}

impl Slot {
    #[inline(always)]
    fn find<S: Select, W: Words + ?Sized>(words: &W, first_slot: u32, tail: u128) -> Option<Slot> {
        // Wraps only for a reader misled by a half-written header; then the select finds nothing.
        let before = slot(tail).wrapping_sub(first_slot);
        let start = match before {
            0 => TENANCY_START,
            before => select_zero::<S, W>(words, TENANCY_START, before - 1)? + 1,
        };
        Some(Slot { before, start, tenants: ones_from(words, start) })
    }

    /// The number of its first entry.
    #[inline(always)]
    fn rank(&self) -> usize {
        self.start - TENANCY_START - self.before as usize
    }

    /// Where the tenancy ends and the branches begin.
    #[inline(always)]
    fn tenancy_end<S: Select, W: Words + ?Sized>(&self, words: &W, header: Header, first_slot: u32) -> Option<usize> {
        let after = header.slots_end().checked_sub(first_slot)?.checked_sub(self.before + 1)?;
        Some(select_zero::<S, W>(words, self.start, after)? + 1)
    }
}

/// The entries of one slot that share a fingerprint. They are neighbours, since entries are sorted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    slot: Slot,
    /// The number of the first one in the bucket, and how many there are.
    pub first: usize,
    pub count: usize,
}

impl Group {
    #[inline(always)]
    fn find<W: Words + ?Sized>(words: &W, layout: EntryLayout, slot: Slot, tail: u128) -> Option<Group> {
        let rank = slot.rank();
        if layout.fingerprint_bits == 0 {
            return (slot.tenants > 0).then_some(Group { slot, first: rank, count: slot.tenants });
        }
        let fingerprint = u64::from(layout.fingerprint(tail));
        let is_match = |rank: usize| entry(words, layout, rank) >> layout.payload_bits == fingerprint;
        // Four at a time without a branch on how many there are: mostly there are no more.
        let (mut first, mut count) = (0, 0);
        let mut at = 0;
        while at < slot.tenants {
            let mut matches = 0u32;
            for i in 0..4 {
                matches |= u32::from(is_match(rank + at + i)) << i;
            }
            matches &= 0xf >> 4usize.saturating_sub(slot.tenants - at);
            if count == 0 {
                first = rank + at + matches.trailing_zeros() as usize;
            }
            count += matches.count_ones() as usize;
            at += 4;
        }
        (count > 0).then_some(Group { slot, first, count })
    }

    /// Where the group's first branch is.
    #[inline(always)]
    fn branches<S: Select, W: Words + ?Sized>(
        &self,
        words: &W,
        layout: EntryLayout,
        tenancy_end: usize,
    ) -> Option<usize> {
        match self.branches_before(words, layout) {
            0 => Some(tenancy_end),
            before => Some(select_zero::<S, W>(words, tenancy_end, before - 1)? + 1),
        }
    }

    /// How many branches the bucket has before the group's first entry.
    #[inline(always)]
    fn branches_before<W: Words + ?Sized>(&self, words: &W, layout: EntryLayout) -> u32 {
        // Two ones in a row in the tenancy are two neighbours in a slot. Without fingerprints each is a branch.
        let end = self.slot.start;
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
        // And the neighbours in the group's own slot, up to the group.
        for rank in self.slot.rank()..self.first {
            branches += u32::from(same_fingerprint(words, layout, rank));
        }
        branches
    }
}

/// Whether entries `rank` and `rank + 1`, neighbours in a slot, share a fingerprint.
#[inline(always)]
fn same_fingerprint<W: Words + ?Sized>(words: &W, layout: EntryLayout, rank: usize) -> bool {
    entry(words, layout, rank) >> layout.payload_bits == entry(words, layout, rank + 1) >> layout.payload_bits
}

/// The blind search of a group of `count` entries, whose branches begin at `bit`: to which of them the tail leads.
#[inline(always)]
fn search<W: Words + ?Sized>(words: &W, layout: EntryLayout, mut bit: usize, count: usize, tail: u128) -> usize {
    // At a branch whose bit is zero the search stays to its left and skips what is below it on the right: the
    // branches up to the next one with fewer equal bits.
    let mut leaf = 0;
    let mut skip_above = usize::MAX;
    for i in 1..count {
        let equal_bits = ones_from(words, bit);
        bit += equal_bits + 1;
        if equal_bits > skip_above {
            continue;
        }
        if layout.branch_bit(tail, equal_bits) {
            leaf = i;
            skip_above = usize::MAX;
        } else {
            skip_above = equal_bits;
        }
    }
    leaf
}

const _: () = assert!(TENANCY_START.is_multiple_of(64));

#[cfg(test)]
mod tests {
    use super::super::SLOTS;
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
        let found = find_portable(words, Header(words[0]), layout, 0, tail);
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
            let found = find_portable(&words[..], header, layout, first_slot, tail);
            prop_assert_eq!(find(&words[..], header, layout, first_slot, tail), found);
        }
    }
}
