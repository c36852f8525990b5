//! Lookup in one bucket: rank and select, no allocation, only the words that it needs.
//!
//! A lookup finds its slot in the tenancy ([`Slot::find`]) and then reads one or two entries. Only where several entries
//! of the slot share the fingerprint (1 in 25 at five bits) it needs the trie ([`group`](super::group)). Between the two steps the
//! entries' words can be asked for.

use super::entries::{Window, entry};
use super::group::Group;
use super::{EntryLayout, Header, TENANCY_START, slot};
#[cfg(target_arch = "x86_64")]
use crate::bits::Bmi2;
use crate::bits::{Portable, Select, Words, ones_from, select_zero};

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
pub fn find_portable<W: Words + ?Sized>(
    words: &W,
    header: Header,
    layout: EntryLayout,
    first_slot: u32,
    tail: u128,
) -> Option<u32> {
    find_with::<Portable, W>(words, header, layout, first_slot, tail)
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
fn slot_bmi2<W: Words + ?Sized>(words: &W, first_slot: u32, tail: u128) -> Option<Slot> {
    Slot::find_with::<Bmi2, W>(words, first_slot, tail)
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
    let slot = Slot::find_with::<S, W>(words, first_slot, tail)?;
    match slot.candidate(words, layout, tail) {
        Candidate::None => None,
        Candidate::Only(payload) => Some(payload),
        Candidate::Several => slot.search::<S, W>(words, header, layout, first_slot, tail),
    }
}

/// Where a tail is or would be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub slot: Slot,
    /// The entries with its fingerprint in its slot; if there are none, `first` is where one would be.
    pub group: Group,
    pub tenancy_end: usize,
    /// At which entry of the group the search ends.
    pub leaf: usize,
}

impl Place {
    /// Where the first branch of the group is or would be. The group must not be empty.
    pub fn branches(&self, words: &[u64], layout: EntryLayout) -> usize {
        self.group.branches::<Portable, [u64]>(words, layout, self.tenancy_end).expect("a bucket that we wrote")
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
    let slot = Slot::find_with::<S, W>(words, first_slot, tail)?;
    let tenancy_end = slot.tenancy_end::<S, W>(words, header, first_slot)?;
    let Some(group) = Group::find(words, layout, slot, tail) else {
        let fingerprint = u64::from(layout.fingerprint(tail));
        let below = |rank: &usize| entry(words, layout, *rank) >> layout.payload_bits < fingerprint;
        let first = slot.rank() + (slot.rank()..slot.rank() + slot.tenants).take_while(below).count();
        return Some(Place { slot, group: Group { slot, first, count: 0 }, tenancy_end, leaf: 0 });
    };
    let leaf = group.leaf::<S, W>(words, layout, tenancy_end, tail)?;
    Some(Place { slot, group, tenancy_end, leaf })
}

/// What the entries of a slot say about a tail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Candidate {
    /// None has its fingerprint.
    None,
    /// One has, and this is its payload.
    Only(u32),
    /// Several have.
    Several,
}

/// One slot in the tenancy of a bucket.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Slots of this bucket before it.
    before: u32,
    /// Where its ones begin, and how many there are.
    pub(super) start: usize,
    pub(super) tenants: usize,
}

impl Slot {
    /// The slot of `tail`, which must be one that this bucket holds itself. `None` if the words are not those of a bucket.
    #[inline(always)]
    pub fn find<W: Words + ?Sized>(words: &W, first_slot: u32, tail: u128) -> Option<Slot> {
        #[cfg(target_arch = "x86_64")]
        if has_bmi2() {
            // SAFETY: the machine has the instructions.
            return unsafe { slot_bmi2(words, first_slot, tail) };
        }
        Slot::find_with::<Portable, W>(words, first_slot, tail)
    }

    #[inline(always)]
    fn find_with<S: Select, W: Words + ?Sized>(words: &W, first_slot: u32, tail: u128) -> Option<Slot> {
        // Wraps only for a reader misled by a half-written header; then the select finds nothing.
        let before = slot(tail).wrapping_sub(first_slot);
        // The zero before the tenancy is the header's highest bit.
        let start = select_zero::<S, W>(words, TENANCY_START - 1, before)? + 1;
        Some(Slot { before, start, tenants: ones_from(words, start) })
    }

    /// The number of its first entry.
    #[inline(always)]
    pub(super) fn rank(&self) -> usize {
        self.start - TENANCY_START - self.before as usize
    }

    /// Where the tenancy ends and the branches begin.
    #[inline(always)]
    fn tenancy_end<S: Select, W: Words + ?Sized>(&self, words: &W, header: Header, first_slot: u32) -> Option<usize> {
        let after = header.slots_end().checked_sub(first_slot)?.checked_sub(self.before + 1)?;
        Some(select_zero::<S, W>(words, self.start, after)? + 1)
    }

    /// The payload of that one of its entries with the fingerprint of `tail` to which the trie leads.
    #[inline(always)]
    fn search<S: Select, W: Words + ?Sized>(
        &self,
        words: &W,
        header: Header,
        layout: EntryLayout,
        first_slot: u32,
        tail: u128,
    ) -> Option<u32> {
        let tenancy_end = self.tenancy_end::<S, W>(words, header, first_slot)?;
        let group = Group::find(words, layout, *self, tail)?;
        let leaf = group.leaf::<S, W>(words, layout, tenancy_end, tail)?;
        let found = entry(words, layout, group.first + leaf);
        Some((found & (u64::MAX >> (64 - layout.payload_bits))) as u32)
    }

    /// Which words of a bucket of so many a look at its entries reads, the first and the last. Nonsense for words that are
    /// not those of a bucket.
    #[inline(always)]
    pub fn entry_words(&self, word_count: usize, layout: EntryLayout) -> (usize, usize) {
        let end = (word_count * 64).saturating_sub(self.rank() * layout.width() as usize + 1);
        let read = (self.tenants * layout.width() as usize).max(64);
        ((end + 1).saturating_sub(read) / 64, end / 64)
    }

    /// Which of its entries has the fingerprint of `tail`.
    #[inline(always)]
    pub fn candidate<W: Words + ?Sized>(&self, words: &W, layout: EntryLayout, tail: u128) -> Candidate {
        let fingerprint = layout.fingerprint(tail);
        let mut candidate = Candidate::None;
        for at in (0..self.tenants).step_by(layout.fields.count) {
            let Some(window) = Window::read(words, layout, self.rank() + at) else { return Candidate::None };
            let matches = window.matches(layout, fingerprint, self.tenants - at);
            if matches != 0 {
                if candidate != Candidate::None || !matches.is_power_of_two() {
                    return Candidate::Several;
                }
                candidate = Candidate::Only(window.payload(layout, matches));
            }
        }
        candidate
    }
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
