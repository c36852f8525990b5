//! Rounds: how recovery tells a torn write from damage.
//!
//! ```text
//! edit: free slots, flying ones ─► each free one given out once ─► freed ones rest ─► next edit: free slots, flying ones ─► …
//!       └───────────────────────────────── a round ─────────────────────────────┘
//! ```
//! While a round lasts, no image that was written in it is written over, and none of an earlier one but for those that were dead, and their
//! slots free, when it began. So after a crash
//!
//! 1. a slot that the round's edit names neither free nor *flying* (given out in the round before, and not known to be durable) is whole, as
//!    are all of closed groups: a bad checksum there is damage;
//! 2. all images of the round up to a stamp that was durable are there. Each image says how many these are ([`RoundCount`]): if there are
//!    fewer, one of them is damaged, or was never written though the drive said so;
//! 3. what else holds no intact image was written when the power failed, or after the last flush of which an image tells.
//!
//! An image is of the round if its stamp is above the round's and its slot was free, or if its stamp is above the round's before and its slot
//! was flying: what was in those slots has stamps up to these. A round begins when nothing is unsettled that was given out before the last one.

use std::collections::{BTreeMap, BTreeSet};
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::wire::{Reader, Short, Writer};
use tapetum_kernels::ordered::NodeRef;

/// Words of bits of a group at most: more than an extent has slots, and few enough to be allocated on a damaged edit's word.
const WORDS_MAX: u32 = 1 << 12;

/// What an edit says when a round begins. See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotRound {
    pub keyspace: KeyspaceId,
    /// Images that are given slots in the round have higher stamps; what was in free slots has not.
    pub stamp: u64,
    /// The same of the round before.
    pub stamp_before: u64,
    /// Of open groups, by first extent.
    pub groups: BTreeMap<u32, RoundSlots>,
}

/// Slots of a group, a bit each.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RoundSlots {
    /// Each may be given out, once.
    pub free: Box<[u64]>,
    /// Given out in the round before, and not known to be durable.
    pub flying: Box<[u64]>,
}

impl RoundSlots {
    /// Those of a new group.
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

    /// One in which nothing may be written.
    pub fn none(keyspace: KeyspaceId, stamp: u64) -> SlotRound {
        SlotRound { keyspace, stamp, stamp_before: stamp, groups: BTreeMap::new() }
    }

    /// Whether a slot of an open group may hold what was cut short.
    pub fn may_be_torn(&self, first: u32, slot: u32) -> bool {
        self.groups.get(&first).is_some_and(|slots| has(&slots.free, slot) || has(&slots.flying, slot))
    }

    /// Whether an image with this stamp in this slot was written in the round.
    pub fn has_image(&self, (first, slot): (u32, u32), stamp: u64) -> bool {
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
    /// The manifest names the round. Before, what is counted is told to nobody.
    pub is_named: bool,
    /// Images up to some stamp.
    counted: u32,
    /// Stamps of the others.
    landed: BTreeSet<u64>,
}

impl RoundCount {
    /// A round that is to be named, behind this one.
    pub fn next(&self, stamp: u64) -> RoundCount {
        RoundCount { stamp, ..RoundCount::default() }
    }

    /// An image of the round is durable.
    pub fn landed(&mut self, stamp: u64) {
        self.landed.insert(stamp);
    }

    /// How many there are up to a stamp up to which no image is on its way; 0 if that is not to be told. The stamp never falls.
    pub fn through(&mut self, stamp: u64) -> u32 {
        while self.landed.first().is_some_and(|first| *first <= stamp) {
            self.landed.pop_first();
            self.counted += 1;
        }
        if self.is_named { self.counted } else { 0 }
    }
}

/// The images of a round that were found, and how many one of them tells of.
#[derive(Default)]
pub struct RoundImages {
    stamps: Vec<u64>,
    /// The most images that one says were durable, and up to which stamp.
    told: (u32, u64),
}

impl RoundImages {
    /// Counts an intact image, if it is of the round, and takes its word for what was.
    pub fn look(&mut self, round: &SlotRound, slot: (u32, u32), node: &NodeRef<'_>) {
        if round.has_image(slot, node.stamp()) {
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

    /// How many are missing that were durable when the newest image was made that tells.
    pub fn missing(&self) -> u32 {
        let (images, durable) = self.told;
        let there = self.stamps.iter().filter(|stamp| **stamp <= durable).count() as u32;
        images.saturating_sub(there)
    }

    /// What it takes in memory.
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
        let of = |slot, stamp| round.has_image((7, slot), stamp);
        assert_eq!([of(0, 101), of(0, 100), of(64, 101)], [true, false, true]);
        assert_eq!([of(2, 51), of(2, 50), of(3, 200), of(200, 200)], [true, false, false, false]);
        assert!(!round.has_image((8, 0), 101));
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
