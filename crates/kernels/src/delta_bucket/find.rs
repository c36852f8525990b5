//! Lookup in one bucket: rank and select, no allocation, only the words that it needs.
//!
//! A lookup finds its slot in the tenancy ([`Slot::find`]) and then reads one or two entries. It needs the trie
//! ([`group`](super::group)) only if several entries of the slot share the fingerprint (1 in 25 at five bits). Between
//! the two steps, a caller can prefetch the entries' words.

use super::entries::{Window, entry};
use super::group::{EntryGroup, Extent};
use super::{BucketHeader, EntryLayout, TENANCY_START, slot};
#[cfg(target_arch = "x86_64")]
use crate::bits::Bmi2;
use crate::bits::{Portable, Select, Words, ones_from, select_zero};

/// The payload of the entry at which the search for `tail` ends, if its slot has an entry with its fingerprint. The
/// slot must be one that this bucket holds itself; `first_slot` is the first that it holds.
#[inline]
pub fn find<W: Words + ?Sized>(
    words: &W,
    header: BucketHeader,
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
pub fn find_portable<W: Words + ?Sized>(
    words: &W,
    header: BucketHeader,
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
) -> Option<u32> {
    find_with::<Portable, W>(words, header, layout, first_slot, tail)
}

/// Finds the position of a tail, present or not. For the writer, whose words are never half-written.
pub(super) fn place(words: &[u64], layout: EntryLayout, first_slot: u32, tail: u128) -> Place {
    let header = BucketHeader(words[0]);
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
fn slot_bmi2<W: Words + ?Sized>(words: &W, number: u32) -> Option<Slot> {
    Slot::find::<Bmi2, W>(words, number)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,popcnt")]
fn find_bmi2<W: Words + ?Sized>(
    words: &W,
    header: BucketHeader,
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
) -> Option<u32> {
    find_with::<Bmi2, W>(words, header, layout, first_slot, tail)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,popcnt")]
fn place_bmi2(words: &[u64], header: BucketHeader, layout: EntryLayout, first_slot: u32, tail: u128) -> Option<Place> {
    place_with::<Bmi2, [u64]>(words, header, layout, first_slot, tail)
}

#[inline(always)]
fn find_with<S: Select, W: Words + ?Sized>(
    words: &W,
    header: BucketHeader,
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
) -> Option<u32> {
    let slot = Slot::find::<S, W>(words, number_in(first_slot, tail))?;
    match slot.candidate(words, &layout, tail) {
        Candidate::None => None,
        Candidate::Only(payload) => Some(payload),
        Candidate::Several => slot.search::<S, W>(words, header, layout, first_slot, tail),
    }
}

/// The number of the tail's slot in a bucket that begins with `first_slot`. Wraps only for a reader misled by a half-written
/// header; then there is no such slot.
#[inline(always)]
fn number_in(first_slot: u32, tail: u128) -> u32 {
    slot(tail).wrapping_sub(first_slot)
}

/// The position of a tail in a bucket, present or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub slot: Slot,
    /// The entries with the tail's fingerprint in its slot. If there are none, `first` is where such an entry would be.
    pub group: EntryGroup,
    pub extent: Extent,
    /// The entry of the group at which the search ends.
    pub leaf: usize,
}

impl Place {
    /// The bit at which the group's first branch begins, or would begin. The group must not be empty.
    pub fn branches(&self, words: &[u64], layout: EntryLayout) -> usize {
        self.group.branches::<Portable, [u64]>(words, layout, self.extent).expect("a bucket that we wrote")
    }
}

#[inline(always)]
fn place_with<S: Select, W: Words + ?Sized>(
    words: &W,
    header: BucketHeader,
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
) -> Option<Place> {
    let slot = Slot::find::<S, W>(words, number_in(first_slot, tail))?;
    let extent = slot.extent::<S, W>(words, header, first_slot)?;
    let Some(group) = EntryGroup::find(words, layout, slot, tail) else {
        let fingerprint = u64::from(layout.fingerprint(tail));
        let below = |rank: &usize| entry(words, layout, *rank) >> layout.payload_bits < fingerprint;
        let first = slot.rank() + (slot.rank()..slot.rank() + slot.tenants()).take_while(below).count();
        return Some(Place { slot, group: EntryGroup { slot, first, count: 0 }, extent, leaf: 0 });
    };
    let leaf = group.leaf::<S, W>(words, layout, extent, tail)?;
    Some(Place { slot, group, extent, leaf })
}

/// The entries of a slot that have a tail's fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Candidate {
    /// No entry has it.
    None,
    /// One entry has it, and this is its payload.
    Only(u32),
    /// Several entries have it.
    Several,
}

/// One slot in the tenancy of a bucket. It is small, since callers keep dozens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The number of slots of this bucket that are before this one.
    number: u32,
    /// The bit at which its ones begin, and their number.
    start: u32,
    tenants: u32,
}

impl Slot {
    /// The fastest function on this machine that finds the slot with a given number in its bucket. It returns `None` if
    /// the words are not those of a bucket.
    #[inline]
    pub fn finder<W: Words + ?Sized>() -> fn(&W, u32) -> Option<Slot> {
        #[cfg(target_arch = "x86_64")]
        if has_bmi2() {
            // SAFETY: the machine has the instructions.
            return |words, number| unsafe { slot_bmi2(words, number) };
        }
        Slot::find::<Portable, W>
    }

    #[inline(always)]
    fn find<S: Select, W: Words + ?Sized>(words: &W, number: u32) -> Option<Slot> {
        // The zero before the tenancy is the header's highest bit.
        let start = select_zero::<S, W>(words, TENANCY_START - 1, number)? + 1;
        Some(Slot { number, start: start as u32, tenants: ones_from(words, start) as u32 })
    }

    #[inline(always)]
    pub(super) fn start(&self) -> usize {
        self.start as usize
    }

    #[inline(always)]
    pub(super) fn tenants(&self) -> usize {
        self.tenants as usize
    }

    /// The number of its first entry.
    #[inline(always)]
    pub(super) fn rank(&self) -> usize {
        self.start as usize - TENANCY_START - self.number as usize
    }

    /// The bits at which the parts of its bucket end.
    #[inline(always)]
    fn extent<S: Select, W: Words + ?Sized>(&self, words: &W, header: BucketHeader, first_slot: u32) -> Option<Extent> {
        let slots = header.slots_end().checked_sub(first_slot)?;
        let tenancy_end = select_zero::<S, W>(words, self.start(), slots.checked_sub(self.number + 1)?)? + 1;
        Some(Extent {
            tenancy_end,
            branches_end: tenancy_end + header.branch_bits() as usize,
            entries: tenancy_end - TENANCY_START - slots as usize,
        })
    }

    /// The payload of the entry to which the trie leads, among the slot's entries with the fingerprint of `tail`.
    #[inline(always)]
    fn search<S: Select, W: Words + ?Sized>(
        &self,
        words: &W,
        header: BucketHeader,
        layout: EntryLayout,
        first_slot: u32,
        tail: u128,
    ) -> Option<u32> {
        let extent = self.extent::<S, W>(words, header, first_slot)?;
        let group = EntryGroup::find(words, layout, *self, tail)?;
        let leaf = group.leaf::<S, W>(words, layout, extent, tail)?;
        Some(payload(words, layout, group.first + leaf))
    }

    /// The first and the last word that a look at the slot's entries reads, in a bucket of `word_count` words. They are
    /// nonsense if the words are not those of a bucket.
    #[inline(always)]
    pub fn entry_words(&self, word_count: usize, layout: EntryLayout) -> (usize, usize) {
        let end = (word_count * 64).saturating_sub(self.rank() * layout.width() as usize);
        // A look reads one window, or several, the last of which begins with the last entry.
        let behind = if self.tenants() > layout.fields.count { self.tenants() - 1 } else { 0 };
        let start = end.saturating_sub(behind * layout.width() as usize + 64);
        (start / 64, end.saturating_sub(1) / 64)
    }

    /// Finds the entries with the fingerprint of `tail`. The layout comes by reference: a copy for the rare case would
    /// slow down the common one.
    #[inline(always)]
    pub fn candidate<W: Words + ?Sized>(&self, words: &W, layout: &EntryLayout, tail: u128) -> Candidate {
        if self.tenants() > layout.fields.count {
            return self.candidate_of_many(words, layout, tail);
        }
        let Some(window) = Window::read(words, *layout, self.rank()) else { return Candidate::None };
        match window.matches(*layout, layout.fingerprint(tail), self.tenants()) {
            0 => Candidate::None,
            matches if matches.is_power_of_two() => Candidate::Only(window.payload(*layout, matches)),
            _ => Candidate::Several,
        }
    }

    /// [`candidate`](Self::candidate) for more entries than a window has.
    #[cold]
    fn candidate_of_many<W: Words + ?Sized>(&self, words: &W, layout: &EntryLayout, tail: u128) -> Candidate {
        match EntryGroup::find(words, *layout, *self, tail) {
            None => Candidate::None,
            Some(group) if group.count == 1 => Candidate::Only(payload(words, *layout, group.first)),
            Some(_) => Candidate::Several,
        }
    }
}

#[inline(always)]
fn payload<W: Words + ?Sized>(words: &W, layout: EntryLayout, rank: usize) -> u32 {
    (entry(words, layout, rank) & (u64::MAX >> (64 - layout.payload_bits))) as u32
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
        let found = find_portable(words, BucketHeader(words[0]), layout, 0, tail);
        assert_eq!(find(words, BucketHeader(words[0]), layout, 0, tail), found, "pdep and portable differ");
        assert_eq!(find_in_steps(words, layout, 0, tail).unwrap_or(found), found, "in steps it differs");
        found
    }

    /// Looks a tail up in two steps, each of which reads only the words that it should. `None` if several entries have its fingerprint.
    fn find_in_steps(words: &[u64], layout: EntryLayout, first_slot: u32, tail: u128) -> Option<Option<u32>> {
        let number = slot(tail).wrapping_sub(first_slot);
        let slot = Slot::finder::<[u64]>()(words, number);
        assert_eq!(slot, Slot::find::<Portable, [u64]>(words, number), "pdep and portable differ");
        let Some(slot) = slot else { return Some(None) };
        let (first, last) = slot.entry_words(words.len(), layout);
        let only: Vec<u64> = words
            .iter()
            .enumerate()
            .map(|(at, &word)| if (first..=last).contains(&at) { word } else { !word })
            .collect();
        let candidate = slot.candidate(words, &layout, tail);
        assert_eq!(slot.candidate(&only[..], &layout, tail), candidate, "words {first} to {last} are not all");
        match candidate {
            Candidate::None => Some(None),
            Candidate::Only(payload) => Some(Some(payload)),
            Candidate::Several => None,
        }
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
            let header = BucketHeader(words[0]);
            let found = find_portable(&words[..], header, layout, first_slot, tail);
            prop_assert_eq!(find(&words[..], header, layout, first_slot, tail), found);
            prop_assert_eq!(find_in_steps(&words, layout, first_slot, tail).unwrap_or(found), found);
        }
    }
}
