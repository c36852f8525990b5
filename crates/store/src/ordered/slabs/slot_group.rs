//! A group in memory: the free slots, those of them that may be given out, and the shares of the others.

use super::shelves::Shelf;
use super::slot_round::RoundSlots;

/// Marks, beside a slot's shares, that it is given out for writing.
const UNSETTLED: u16 = 1 << 15;
/// The most shares of a slot: its image's, and those of all images made from it that are not durable yet.
pub const SHARES_MAX: u16 = UNSETTLED - 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupPhase {
    /// The manifest does not name the group open: its slots are not given out.
    Closed,
    Open,
    /// The group is still named open, but gives out no more slots, so that it can be closed.
    Draining,
}

pub struct SlotGroup {
    pub extents: u32,
    pub version: u64,
    pub phase: GroupPhase,
    /// The shelf on which the space has the group ([`super::shelves`]).
    pub shelf: Option<Shelf>,
    /// One bit for each slot, set when it is free.
    free_bits: Box<[u64]>,
    free: u32,
    /// The free slots that may be given out.
    ready_bits: Box<[u64]>,
    ready: u32,
    /// The slots that may be given out in the round that is being named.
    next_bits: Option<Box<[u64]>>,
    /// A freed slot may be given out at once, not only in the next round.
    is_reused: bool,
    /// Unsettled slots that were given out before the round.
    flying_bits: Box<[u64]>,
    flying: u32,
    /// Slots whose content recovery doubts. `None` if there are none.
    doubtful_bits: Option<Box<[u64]>>,
    /// The shares of each slot.
    shares: Box<[u16]>,
    /// The number of freezes that hold each slot. Empty while there is no freeze.
    held: Box<[u16]>,
    unsettled: u32,
}

impl SlotGroup {
    /// A group of `slots` slots, all free. They may be given out at once if the group `is_reused`, otherwise when a round begins.
    pub fn new(extents: u32, version: u64, slots: u32, phase: GroupPhase, is_reused: bool) -> SlotGroup {
        let bits = |word: u32| u64::MAX >> (64 - (slots - word * 64).min(64));
        let none: Box<[u64]> = vec![0; slots.div_ceil(64) as usize].into();
        let all: Box<[u64]> = (0..slots.div_ceil(64)).map(bits).collect();
        SlotGroup {
            extents,
            version,
            phase,
            shelf: None,
            ready_bits: if is_reused { all.clone() } else { none.clone() },
            ready: if is_reused { slots } else { 0 },
            next_bits: None,
            is_reused,
            flying_bits: none,
            flying: 0,
            doubtful_bits: None,
            free_bits: all,
            free: slots,
            shares: vec![0; slots as usize].into(),
            held: Box::default(),
            unsettled: 0,
        }
    }

    pub fn slots(&self) -> u32 {
        self.shares.len() as u32
    }

    pub fn free(&self) -> u32 {
        self.free
    }

    /// The number of free slots that may be given out.
    pub fn ready(&self) -> u32 {
        self.ready
    }

    pub fn is_reused(&self) -> bool {
        self.is_reused
    }

    /// The number of unsettled slots that were given out before the round.
    pub fn flying(&self) -> u32 {
        self.flying
    }

    pub fn is_empty(&self) -> bool {
        self.free == self.slots()
    }

    /// The number of slots that are given out for writing.
    pub fn unsettled(&self) -> u32 {
        self.unsettled
    }

    pub fn shares(&self, slot: u32) -> u16 {
        self.shares.get(slot as usize).map_or(0, |shares| shares & !UNSETTLED)
    }

    /// The number of freezes that hold a slot.
    fn holds(&self, slot: u32) -> u16 {
        self.held.get(slot as usize).copied().unwrap_or(0)
    }

    /// Whether a slot has one share and no freeze holds it.
    pub fn is_of_one(&self, slot: u32) -> bool {
        self.shares(slot) == 1 && self.holds(slot) == 0
    }

    /// Holds all slots with shares for a freeze. Returns them, a bit each; `None` if there are none.
    pub fn hold(&mut self) -> Option<Box<[u64]>> {
        let bits = |shares: &[u16]| (0..64).zip(shares).map(|(bit, s)| u64::from(s & !UNSETTLED != 0) << bit).sum();
        let used: Box<[u64]> = self.shares.chunks(64).map(bits).collect();
        if used.iter().all(|word| *word == 0) {
            return None;
        }
        if self.held.is_empty() {
            self.held = vec![0; self.shares.len()].into();
        }
        for (held, word) in self.held.chunks_mut(64).zip(&used) {
            held.iter_mut().enumerate().for_each(|(bit, held)| *held += (word >> bit & 1) as u16);
        }
        Some(used)
    }

    /// The number of these slots, which a freeze holds, that have no share.
    pub fn count_held_alone(&self, used: &[u64]) -> u32 {
        let alone = |(shares, word): (&[u16], &u64)| {
            (0..64).zip(shares).filter(|(bit, shares)| word >> bit & 1 == 1 && *shares & !UNSETTLED == 0).count() as u32
        };
        self.shares.chunks(64).zip(used).map(alone).sum()
    }

    /// Gives the memory of the counts back: no freeze holds a slot.
    pub fn forget_holds(&mut self) {
        debug_assert!(self.held.iter().all(|held| *held == 0), "a hold has ended that is counted still");
        self.held = Box::default();
    }

    /// Ends a freeze's hold of a slot. Returns whether the slot is free now.
    pub fn end_hold(&mut self, slot: u32) -> bool {
        self.held[slot as usize] -= 1;
        if self.holds(slot) > 0 || self.shares(slot) > 0 {
            return false;
        }
        self.free_slot(slot);
        true
    }

    /// The first slot from `from` on that may be given out.
    pub fn next_ready(&self, from: u32) -> Option<u32> {
        let mut mask = u64::MAX << (from % 64);
        for word in from as usize / 64..self.ready_bits.len() {
            let found = self.ready_bits[word] & mask;
            if found != 0 {
                return Some(word as u32 * 64 + found.trailing_zeros());
            }
            mask = u64::MAX;
        }
        None
    }

    /// Gives a free slot its first share. `unsettled`: it is given out for writing.
    pub fn take(&mut self, slot: u32, unsettled: bool) {
        let bit = 1 << (slot % 64);
        let word = &mut self.free_bits[slot as usize / 64];
        assert!(*word & bit != 0, "slot {slot} is given out twice");
        *word &= !bit;
        self.free -= 1;
        self.ready -= u32::from(self.ready_bits[slot as usize / 64] & bit != 0);
        self.ready_bits[slot as usize / 64] &= !bit;
        if let Some(next) = &mut self.next_bits {
            next[slot as usize / 64] &= !bit;
        }
        self.shares[slot as usize] = 1 | if unsettled { UNSETTLED } else { 0 };
        self.unsettled += u32::from(unsettled);
    }

    /// Adds a share to a slot that has some.
    pub fn add(&mut self, slot: u32) {
        let shares = &mut self.shares[slot as usize];
        assert!((1..SHARES_MAX).contains(&(*shares & !UNSETTLED)), "slot {slot} has {shares} shares");
        *shares += 1;
    }

    /// Notes that the writes to a slot are durable, or that there will be none. Returns whether that is new.
    pub fn settle(&mut self, slot: u32) -> bool {
        let shares = &mut self.shares[slot as usize];
        let is_unsettled = *shares & UNSETTLED != 0;
        *shares &= !UNSETTLED;
        self.unsettled -= u32::from(is_unsettled);
        let (flying, bit) = (&mut self.flying_bits[slot as usize / 64], 1 << (slot % 64));
        self.flying -= u32::from(*flying & bit != 0);
        *flying &= !bit;
        is_unsettled
    }

    /// Notes that the content of a slot in use may be only in the drive's cache. The slot counts as flying until it is free, and no round waits for
    /// it.
    pub fn doubt(&mut self, slot: u32) {
        let bits = self.doubtful_bits.get_or_insert_with(|| vec![0; self.free_bits.len()].into());
        bits[slot as usize / 64] |= 1 << (slot % 64);
    }

    /// Whether all contents of its slots are known to be durable.
    pub fn is_settled(&self) -> bool {
        self.unsettled == 0 && !self.has_doubtful()
    }

    pub fn has_doubtful(&self) -> bool {
        self.doubtful_bits.iter().flatten().any(|word| *word != 0)
    }

    /// Begins a round and returns its slots. Until the round is named, slots are given out as before, and count for it.
    pub fn begin_round(&mut self, may_give: bool) -> RoundSlots {
        let free = if may_give { self.free_bits.clone() } else { vec![0; self.free_bits.len()].into() };
        for (bits, shares) in self.flying_bits.iter_mut().zip(self.shares.chunks(64)) {
            *bits = (0..64).zip(shares).map(|(bit, shares)| u64::from(shares & UNSETTLED != 0) << bit).sum();
        }
        self.flying = self.unsettled;
        self.next_bits = Some(free.clone());
        let mut flying = self.flying_bits.clone();
        let doubtful = self.doubtful_bits.iter().flatten();
        flying.iter_mut().zip(doubtful).for_each(|(flying, doubtful)| *flying |= doubtful);
        RoundSlots { free, flying }
    }

    /// Closes the group: none of its slots is given out.
    pub fn end_round(&mut self) {
        self.ready_bits.fill(0);
        self.ready = 0;
    }

    /// The round that has begun is named: its slots may be given out.
    pub fn open_round(&mut self) {
        self.ready_bits = self.next_bits.take().unwrap_or_else(|| vec![0; self.free_bits.len()].into());
        self.ready = self.ready_bits.iter().map(|word| word.count_ones()).sum();
    }

    /// Drops a share. Returns whether it was the last one, so that the slot is free.
    pub fn drop_share(&mut self, slot: u32) -> bool {
        assert!(self.shares(slot) > 0, "slot {slot} is freed twice");
        self.shares[slot as usize] -= 1;
        if self.shares(slot) > 0 {
            return false;
        }
        if self.holds(slot) > 0 {
            self.settle(slot);
            return false;
        }
        self.free_slot(slot);
        true
    }

    /// Frees a slot, whatever shares it has.
    pub fn free_slot(&mut self, slot: u32) {
        self.settle(slot);
        if let Some(doubtful) = &mut self.doubtful_bits {
            doubtful[slot as usize / 64] &= !(1 << (slot % 64));
        }
        self.shares[slot as usize] = 0;
        self.free_bits[slot as usize / 64] |= 1 << (slot % 64);
        self.free += 1;
        if self.is_reused {
            self.ready_bits[slot as usize / 64] |= 1 << (slot % 64);
            self.ready += 1;
        }
    }

    /// Bytes of the group in memory.
    pub fn bytes(&self) -> u64 {
        (size_of::<SlotGroup>() + 3 * size_of_val(&*self.free_bits) + size_of_val(&*self.shares) + self.held.len())
            as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_free_slot_is_found_over_words() {
        for slots in [1, 63, 64, 65, 200] {
            let mut group = SlotGroup::new(1, 1, slots, GroupPhase::Open, true);
            let taken: Vec<u32> = std::iter::from_fn(|| {
                let slot = group.next_ready(0)?;
                group.take(slot, false);
                Some(slot)
            })
            .collect();
            assert_eq!(taken, (0..slots).collect::<Vec<_>>());
            assert_eq!((group.free(), group.next_ready(slots)), (0, None));
            assert!(group.drop_share(slots - 1));
            assert_eq!((group.next_ready(0), group.next_ready(slots - 1)), (Some(slots - 1), Some(slots - 1)));
        }
    }

    #[test]
    fn a_slot_is_free_when_its_last_share_goes() {
        let mut group = SlotGroup::new(1, 1, 4, GroupPhase::Open, true);
        group.take(2, true);
        group.add(2);
        assert_eq!((group.shares(2), group.unsettled(), group.free()), (2, 1, 3));
        group.settle(2);
        group.settle(2);
        assert_eq!(group.unsettled(), 0);
        assert!(!group.drop_share(2) && group.drop_share(2) && group.is_empty());
        group.take(2, true);
        assert!(group.drop_share(2), "never settled");
        assert_eq!(group.unsettled(), 0);
    }

    #[test]
    fn a_slot_is_given_out_once_a_round() {
        let mut group = SlotGroup::new(1, 1, 70, GroupPhase::Open, false);
        assert_eq!((group.next_ready(0), group.ready()), (None, 0), "no round has begun");
        let slots = group.begin_round(true);
        assert_eq!((slots.free.to_vec(), slots.flying.to_vec()), (vec![u64::MAX, 0b11_1111], vec![0, 0]));
        assert_eq!(group.ready(), 0, "it is not named yet");
        group.open_round();
        [0, 1, 69].into_iter().for_each(|slot| group.take(slot, true));
        group.settle(1);
        assert!(group.drop_share(1));
        assert_eq!((group.next_ready(0), group.ready(), group.free()), (Some(2), 67, 68), "what is freed rests");
        let slots = group.begin_round(true);
        assert_eq!((slots.free[0], slots.flying.to_vec()), (u64::MAX - 1, vec![1, 0b10_0000]));
        group.take(2, true);
        assert!(group.drop_share(2), "given out, and freed, before the round was named");
        group.open_round();
        assert_eq!((group.next_ready(0), group.next_ready(2), group.flying()), (Some(1), Some(3), 2));
        assert!(group.settle(69) && !group.settle(69));
        assert_eq!(group.flying(), 1);
        assert_eq!(group.begin_round(false).free.to_vec(), [0, 0]);
    }

    #[test]
    #[should_panic(expected = "given out twice")]
    fn a_slot_given_out_twice_is_our_mistake() {
        let mut group = SlotGroup::new(1, 1, 4, GroupPhase::Open, true);
        group.take(2, true);
        group.take(2, true);
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_slot_freed_twice_is_our_mistake() {
        SlotGroup::new(1, 1, 4, GroupPhase::Open, true).drop_share(1);
    }
}
