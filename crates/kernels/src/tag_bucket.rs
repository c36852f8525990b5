//! The bucket of the DRAM tier's index: 20 tags, which are compared at once, and 20 entries (flash KVS, slide
//! "Hashing").
//!
//! ```text
//!  word 0             sequence u32 | second, 20 bits | away, 12 bits
//!  words 1 to 5       20 tags of 16 bits; 0: the slot is free
//!  words 6 to 15      20 entries of 32 bits: place, 29 bits | uses, 2 bits | read, 1 bit
//! ```
//! A bucket has 128 bytes: two neighbouring cache lines. An entry lies in one of two buckets: its *home*, or its
//! *second*, which home and tag give. Bit n of `second` says that slot n holds an entry whose home is elsewhere. `away`
//! counts the entries whose home this bucket is and that lie in their second, so that a lookup of a missing item ends
//! with one bucket. The table decides where an entry lies; this module has only functions of words.

use crate::hash::HashKey;

pub const SLOTS: usize = 20;
pub const WORDS: usize = 16;
pub const BUCKET_BYTES: usize = WORDS * 8;
pub const TAG_WORDS: usize = SLOTS / 4;
/// The words at which tags and entries begin.
pub const TAGS_AT: usize = 1;
pub const ENTRIES_AT: usize = TAGS_AT + TAG_WORDS;
const _: () = assert!(ENTRIES_AT + SLOTS / 2 == WORDS && BUCKET_BYTES == 128);

/// Places are below this.
pub const PLACES: u32 = 1 << USES_SHIFT;
const USES_SHIFT: u32 = 29;
/// The highest count of an item's uses.
pub const USES_MAX: u8 = 3;
const READ: u32 = 1 << 31;
const _: () = assert!((USES_MAX as u32) << USES_SHIFT == READ - PLACES);

const SECOND_SHIFT: u32 = 32;
const AWAY_SHIFT: u32 = SECOND_SHIFT + SLOTS as u32;
const AWAY_MAX: u64 = u64::MAX >> AWAY_SHIFT;
const ALL_SLOTS: u32 = (1 << SLOTS) - 1;

/// The first word of a bucket. Its sequence is odd while the bucket is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TagHeader(pub u64);

impl TagHeader {
    pub fn sequence(self) -> u32 {
        self.0 as u32
    }

    pub fn with_sequence(self, sequence: u32) -> TagHeader {
        TagHeader(self.0 & !u64::from(u32::MAX) | u64::from(sequence))
    }

    /// The slots whose entries have their home elsewhere.
    pub fn second(self) -> u32 {
        (self.0 >> SECOND_SHIFT) as u32 & ALL_SLOTS
    }

    pub fn with_second(self, slot: usize, is_second: bool) -> TagHeader {
        let bit = 1 << (SECOND_SHIFT + slot as u32);
        TagHeader(if is_second { self.0 | bit } else { self.0 & !bit })
    }

    /// The number of entries whose home this bucket is and that lie elsewhere.
    pub fn away(self) -> u64 {
        self.0 >> AWAY_SHIFT
    }

    /// Whether one more entry may lie elsewhere.
    pub fn may_send(self) -> bool {
        self.away() < AWAY_MAX
    }

    pub fn with_away(self, away: u64) -> TagHeader {
        assert!(away <= AWAY_MAX, "{away} entries away from one bucket");
        TagHeader(self.0 & !(AWAY_MAX << AWAY_SHIFT) | away << AWAY_SHIFT)
    }
}

/// The index's entry of an item: the place of its slot, the number of its uses since its last turn, and whether it was
/// read since it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TagEntry(pub u32);

impl TagEntry {
    /// The entry of an item that nobody has asked for yet.
    pub fn new(place: u32, was_read: bool) -> TagEntry {
        assert!(place < PLACES, "place {place} is beyond what an entry can name");
        TagEntry(place | if was_read { READ } else { 0 })
    }

    #[inline]
    pub fn place(self) -> u32 {
        self.0 & (PLACES - 1)
    }

    pub fn uses(self) -> u8 {
        (self.0 >> USES_SHIFT) as u8 & USES_MAX
    }

    pub fn with_uses(self, uses: u8) -> TagEntry {
        assert!(uses <= USES_MAX);
        TagEntry(self.0 & (READ | (PLACES - 1)) | u32::from(uses) << USES_SHIFT)
    }

    pub fn was_read(self) -> bool {
        self.0 & READ != 0
    }

    /// The entry after one more use.
    #[inline]
    pub fn used(self) -> TagEntry {
        // The place has the low bits, so an entry with all uses is the greatest with its place.
        let more = if self.0 | READ | (PLACES - 1) == u32::MAX { self.0 } else { self.0 + PLACES };
        TagEntry(more | READ)
    }
}

/// The tag of a hash key: 16 bits that choose neither its shard nor its home, never 0.
#[inline]
pub fn tag_of(hash: HashKey) -> u16 {
    (hash.0 as u16).max(1)
}

/// The home bucket of a hash key among `buckets`.
#[inline]
pub fn home_of(hash: HashKey, buckets: u32) -> u32 {
    ((u64::from((hash.0 >> 16) as u32) * u64::from(buckets)) >> 32) as u32
}

/// The other bucket of an entry that lies, or would lie, in `bucket`: from the home it gives the second, and back. It may
/// be the same one.
#[inline]
pub fn other_of(bucket: u32, tag: u16, buckets: u32) -> u32 {
    let spread = (u64::from(u32::from(tag).wrapping_mul(0x9e37_79b9)) * u64::from(buckets)) >> 32;
    let sum = spread + u64::from(buckets) - u64::from(bucket);
    (if sum >= u64::from(buckets) { sum - u64::from(buckets) } else { sum }) as u32
}

pub fn tag_at(tags: &[u64; TAG_WORDS], slot: usize) -> u16 {
    (tags[slot / 4] >> (slot % 4 * 16)) as u16
}

/// The slots that hold `tag`, a bit each.
#[inline]
pub fn matches(tags: &[u64; TAG_WORDS], tag: u16) -> u32 {
    #[cfg(target_arch = "x86_64")]
    return matches_sse2(tags, tag);
    #[cfg(not(target_arch = "x86_64"))]
    matches_portable(tags, tag)
}

/// [`matches()`], slot by slot.
pub fn matches_portable(tags: &[u64; TAG_WORDS], tag: u16) -> u32 {
    (0..SLOTS).fold(0, |found, slot| found | u32::from(tag_at(tags, slot) == tag) << slot)
}

/// [`matches()`], eight slots at a time.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn matches_sse2(tags: &[u64; TAG_WORDS], tag: u16) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi16, _mm_movemask_epi8, _mm_packs_epi16, _mm_set_epi64x, _mm_set1_epi16};
    let word = |n: usize| tags[n] as i64;
    // SAFETY: SSE2 is part of x86-64; values only, no memory.
    let found = unsafe {
        let wanted = _mm_set1_epi16(tag as i16);
        let low = _mm_cmpeq_epi16(_mm_set_epi64x(word(1), word(0)), wanted);
        let middle = _mm_cmpeq_epi16(_mm_set_epi64x(word(3), word(2)), wanted);
        let high = _mm_cmpeq_epi16(_mm_set_epi64x(0, word(4)), wanted);
        let first_16 = _mm_movemask_epi8(_mm_packs_epi16(low, middle)) as u32;
        let last = _mm_movemask_epi8(_mm_packs_epi16(high, high)) as u32;
        first_16 | last << 16
    };
    found & ALL_SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_ways_find_the_same_slots(tags: [u64; TAG_WORDS], slot in 0..SLOTS, near: u16) {
            for tag in [tag_at(&tags, slot), near, 0] {
                let found = matches_portable(&tags, tag);
                #[cfg(target_arch = "x86_64")]
                prop_assert_eq!(matches_sse2(&tags, tag), found);
                for slot in 0..SLOTS {
                    prop_assert_eq!(found >> slot & 1 == 1, tag_at(&tags, slot) == tag);
                }
                prop_assert_eq!(found & !ALL_SLOTS, 0);
            }
        }

        #[test]
        fn an_entry_keeps_its_place_through_all_uses(place in 0..PLACES, was_read: bool, uses in 0..=USES_MAX) {
            let entry = TagEntry::new(place, was_read);
            prop_assert_eq!((entry.place(), entry.uses(), entry.was_read()), (place, 0, was_read));
            let entry = entry.with_uses(uses);
            prop_assert_eq!((entry.place(), entry.uses(), entry.was_read()), (place, uses, was_read));
            let used = entry.used();
            prop_assert_eq!((used.place(), used.uses(), used.was_read()), (place, (uses + 1).min(USES_MAX), true));
        }

        #[test]
        fn home_and_second_lead_to_each_other(hash: u128, buckets in 1u32..) {
            let hash = HashKey(hash);
            let (home, tag) = (home_of(hash, buckets), tag_of(hash));
            let second = other_of(home, tag, buckets);
            prop_assert!(home < buckets && second < buckets && tag != 0);
            prop_assert_eq!(other_of(second, tag, buckets), home);
        }

        #[test]
        fn the_header_keeps_its_parts_apart(word: u64, slot in 0..SLOTS, away in 0u64..1 << 12, sequence: u32) {
            let header = TagHeader(word).with_second(slot, true).with_away(away).with_sequence(sequence);
            prop_assert_eq!(header.second(), TagHeader(word).second() | 1 << slot);
            prop_assert_eq!((header.away(), header.sequence()), (away, sequence));
            prop_assert_eq!(header.with_second(slot, false).second(), TagHeader(word).second() & !(1 << slot));
        }
    }

    #[test]
    fn seconds_are_spread_over_all_buckets() {
        let buckets = 1000;
        let mut struck = vec![0; buckets as usize];
        (1..=u16::MAX).for_each(|tag| struck[other_of(7, tag, buckets) as usize] += 1);
        let (least, most) = (struck.iter().min().unwrap(), struck.iter().max().unwrap());
        assert!(*least > 40 && *most < 90, "{least} to {most} of 65 in the mean");
    }
}
