//! Rounds, by which recovery tells a torn write from damage.
//!
//! ```text
//! edit: free slots, flying ones ─► each free one given out once ─► freed ones rest ─► next edit: free slots, flying ones ─► …
//!       └───────────────────────────────── a round ─────────────────────────────┘
//! ```
//! During a round no image written in it is overwritten. Of earlier images only those are overwritten that were dead, with their slots free, when
//! the round began. So after a crash
//!
//! 1. a slot that the round's edit names neither free nor *flying* (given out in the round before, and not known to be durable) is whole, as are all
//!    slots of closed groups: a bad checksum there is damage;
//! 2. all images of the round up to a durable stamp exist. Each image records their number ([`RoundCount`]): if there are fewer, one of them is
//!    damaged, or was never written although the drive reported success;
//! 3. any other slot without an intact image was being written when the power failed, or after the last flush that an image attests.
//!
//! An image belongs to the round in two cases: its stamp is above the round's and its slot was free, or its stamp is above the previous round's and
//! its slot was flying. Older contents of those slots have stamps up to these. A round begins when no slot given out before the last round is
//! unsettled.

use std::collections::{BTreeMap, BTreeSet};
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::wire::{Reader, Short, Writer};
use tapetum_kernels::ordered::NodeRef;

/// The most words of bits of a group: more than an extent has slots, and few enough that a damaged edit cannot cause a huge allocation.
const WORDS_MAX: u32 = 1 << 12;

/// The edit that begins a round. See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotRound {
    pub keyspace: KeyspaceId,
    /// Images that get slots in the round have higher stamps; old contents of free slots have not.
    pub stamp: u64,
    /// The stamp of the round before.
    pub stamp_before: u64,
    /// The slots of open groups, by first extent.
    pub groups: BTreeMap<u32, RoundSlots>,
}

/// Slots of a group, one bit each.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RoundSlots {
    /// Slots that may be given out, once each.
    pub free: Box<[u64]>,
    /// Slots given out in the round before, and not known to be durable.
    pub flying: Box<[u64]>,
}

impl RoundSlots {
    /// The slots of a new group.
    pub fn all_free(slots: u32) -> RoundSlots {
        let words = slots.div_ceil(64);
        let bits = |word: u32| u64::MAX >> (64 - (slots - word * 64).min(64));
        RoundSlots { free: (0..words).map(bits).collect(), flying: vec![0; words as usize].into() }
    }
}

fn has(bits: &[u64], slot: u32) -> bool {
    bits.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 != 0)
}

impl SlotRound {
    pub fn encode(&self, writer: &mut Writer) {
        writer.u16(self.keyspace.0);
        writer.u64(self.stamp);
        writer.u64(self.stamp_before);
        writer.u32(self.groups.len() as u32);
        for (first, RoundSlots { free, flying }) in &self.groups {
            writer.u32(*first);
            writer.varint(free.len() as u32);
            free.iter().chain(flying).for_each(|word| writer.u64(*word));
        }
    }

    pub fn parse(reader: &mut Reader<'_>) -> Result<SlotRound, Short> {
        let (keyspace, stamp, stamp_before) = (KeyspaceId(reader.u16()?), reader.u64()?, reader.u64()?);
        let mut groups = BTreeMap::new();
        for _ in 0..reader.u32()? {
            let (first, words) = (reader.u32()?, reader.varint()?);
            if words > WORDS_MAX {
                return Err(Short);
            }
            let mut bits = || (0..words).map(|_| reader.u64()).collect::<Result<Box<[u64]>, Short>>();
            groups.insert(first, RoundSlots { free: bits()?, flying: bits()? });
        }
        Ok(SlotRound { keyspace, stamp, stamp_before, groups })
    }

    pub fn encoded_bytes_max(&self) -> u64 {
        let words = |slots: &RoundSlots| (slots.free.len() + slots.flying.len()) as u64;
        2 + 8 + 8 + 4 + self.groups.values().map(|slots| 4 + 5 + 8 * words(slots)).sum::<u64>()
    }

    /// A round in which no slot may be written.
    pub fn none(keyspace: KeyspaceId, stamp: u64) -> SlotRound {
        SlotRound { keyspace, stamp, stamp_before: stamp, groups: BTreeMap::new() }
    }

    /// Whether a slot of an open group may hold a write that was cut short.
    pub fn may_be_torn(&self, first: u32, slot: u32) -> bool {
        self.groups.get(&first).is_some_and(|slots| has(&slots.free, slot) || has(&slots.flying, slot))
    }

    /// Whether an image with this stamp in this slot was written in the round.
    pub fn has_image(&self, first: u32, slot: u32, stamp: u64) -> bool {
        let is_of = |slots: &RoundSlots| {
            has(&slots.free, slot) && stamp > self.stamp || has(&slots.flying, slot) && stamp > self.stamp_before
        };
        self.groups.get(&first).is_some_and(is_of)
    }
}

/// Counts the durable images of a round in the order of their stamps.
#[derive(Default)]
pub struct RoundCount {
    /// The round's stamp.
    pub stamp: u64,
    /// The manifest names the round. Before that the count is not published.
    pub is_named: bool,
    /// The number of images up to some stamp.
    counted: u32,
    /// The stamps of later durable images.
    landed: BTreeSet<u64>,
}

impl RoundCount {
    /// The count of the next round, which is not named yet.
    pub fn next(&self, stamp: u64) -> RoundCount {
        RoundCount { stamp, ..RoundCount::default() }
    }

    /// Adds a durable image of the round.
    pub fn landed(&mut self, stamp: u64) {
        self.landed.insert(stamp);
    }

    /// The number of the round's images up to a stamp below which no image is in flight; 0 if the count may not be published. The stamp never falls.
    pub fn through(&mut self, stamp: u64) -> u32 {
        while self.landed.first().is_some_and(|first| *first <= stamp) {
            self.landed.pop_first();
            self.counted += 1;
        }
        if self.is_named { self.counted } else { 0 }
    }
}

/// The images of a round that were found, and the number that one of them attests.
#[derive(Default)]
pub struct RoundImages {
    stamps: Vec<u64>,
    /// The highest number of images that one attests as durable, and up to which stamp.
    told: (u32, u64),
}

impl RoundImages {
    /// Counts an intact image, if it belongs to the round, and takes note of what it attests.
    pub fn look(&mut self, round: &SlotRound, first: u32, slot: u32, node: &NodeRef<'_>) {
        if round.has_image(first, slot, node.stamp()) {
            self.stamps.push(node.stamp());
        }
        if node.stamp() > round.stamp {
            self.told = self.told.max((node.round_images(), node.durable()));
        }
    }

    pub fn append(&mut self, other: RoundImages) {
        self.stamps.extend(other.stamps);
        self.told = self.told.max(other.told);
    }

    /// The number of missing images that were durable according to the newest image that attests some.
    pub fn missing(&self) -> u32 {
        let (images, durable) = self.told;
        let there = self.stamps.iter().filter(|stamp| **stamp <= durable).count() as u32;
        images.saturating_sub(there)
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.stamps.len() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_of_the_round_by_its_stamp_and_its_slot() {
        let slots = RoundSlots { free: [0b0011, 1].into(), flying: [0b0100, 0].into() };
        let groups = BTreeMap::from([(7, slots)]);
        let round = SlotRound { keyspace: KeyspaceId(1), stamp: 100, stamp_before: 50, groups };
        let of = |slot, stamp| round.has_image(7, slot, stamp);
        assert_eq!([of(0, 101), of(0, 100), of(64, 101)], [true, false, true]);
        assert_eq!([of(2, 51), of(2, 50), of(3, 200), of(200, 200)], [true, false, false, false]);
        assert!(!round.has_image(8, 0, 101));
        let torn = [0, 1, 2, 3, 64, 65, 1000].map(|slot| round.may_be_torn(7, slot));
        assert_eq!(torn, [true, true, true, false, true, false, false]);
    }

    #[test]
    fn images_are_counted_in_the_order_of_their_stamps_once_the_round_is_named() {
        let mut count = RoundCount::default().next(10);
        [14, 11, 19].into_iter().for_each(|stamp| count.landed(stamp));
        assert_eq!(count.through(12), 0, "nobody is told");
        count.is_named = true;
        assert_eq!((count.through(12), count.through(18)), (1, 2));
        count.landed(16);
        assert_eq!((count.through(18), count.through(30)), (3, 4));
        assert_eq!(count.next(40).through(50), 0);
    }
}
