//! A group in memory: which of its slots are free, and how many shares the others have.

/// Marks a slot, beside its shares, that is given out to be written.
const UNSETTLED: u16 = 1 << 15;
/// Shares of a slot at most: of an image, and of all that are made from it and not durable yet.
pub const SHARES_MAX: u16 = UNSETTLED - 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupPhase {
    /// Not named open: its slots are not given out.
    Closed,
    Open,
    /// Still named open. None of its slots is given out any more, so that it can be closed.
    Draining,
}

pub struct SlotGroup {
    pub extents: u32,
    pub version: u64,
    pub phase: GroupPhase,
    /// A bit a slot, set when it is free.
    free_bits: Box<[u64]>,
    free: u32,
    /// By slot.
    shares: Box<[u16]>,
    unsettled: u32,
}

impl SlotGroup {
    /// A group of `slots` slots, all free.
    pub fn new(extents: u32, version: u64, slots: u32, phase: GroupPhase) -> SlotGroup {
        let bits = |word: u32| u64::MAX >> (64 - (slots - word * 64).min(64));
        SlotGroup {
            extents,
            version,
            phase,
            free_bits: (0..slots.div_ceil(64)).map(bits).collect(),
            free: slots,
            shares: vec![0; slots as usize].into(),
            unsettled: 0,
        }
    }

    pub fn slots(&self) -> u32 {
        self.shares.len() as u32
    }

    pub fn free(&self) -> u32 {
        self.free
    }

    pub fn is_empty(&self) -> bool {
        self.free == self.slots()
    }

    /// Slots that are given out to be written.
    pub fn unsettled(&self) -> u32 {
        self.unsettled
    }

    pub fn shares(&self, slot: u32) -> u16 {
        self.shares.get(slot as usize).map_or(0, |shares| shares & !UNSETTLED)
    }

    /// The first free slot of those from `from` on.
    pub fn next_free(&self, from: u32) -> Option<u32> {
        let mut mask = u64::MAX << (from % 64);
        for word in from as usize / 64..self.free_bits.len() {
            let found = self.free_bits[word] & mask;
            if found != 0 {
                return Some(word as u32 * 64 + found.trailing_zeros());
            }
            mask = u64::MAX;
        }
        None
    }

    /// Gives a free slot its first share; `unsettled`: to be written.
    pub fn take(&mut self, slot: u32, unsettled: bool) {
        let bit = 1 << (slot % 64);
        let word = &mut self.free_bits[slot as usize / 64];
        assert!(*word & bit != 0, "slot {slot} is given out twice");
        *word &= !bit;
        self.free -= 1;
        self.shares[slot as usize] = 1 | if unsettled { UNSETTLED } else { 0 };
        self.unsettled += u32::from(unsettled);
    }

    /// Adds a share to those that a slot has.
    pub fn add(&mut self, slot: u32) {
        let shares = &mut self.shares[slot as usize];
        assert!((1..SHARES_MAX).contains(&(*shares & !UNSETTLED)), "slot {slot} has {shares} shares");
        *shares += 1;
    }

    pub fn settle(&mut self, slot: u32) {
        let shares = &mut self.shares[slot as usize];
        if *shares & UNSETTLED != 0 {
            *shares &= !UNSETTLED;
            self.unsettled -= 1;
        }
    }

    /// Gives up a share; whether it was the last, and the slot is free.
    pub fn drop_share(&mut self, slot: u32) -> bool {
        assert!(self.shares(slot) > 0, "slot {slot} is freed twice");
        self.shares[slot as usize] -= 1;
        if self.shares(slot) > 0 {
            return false;
        }
        self.free_slot(slot);
        true
    }

    /// Frees a slot, whatever shares it has.
    pub fn free_slot(&mut self, slot: u32) {
        self.settle(slot);
        self.shares[slot as usize] = 0;
        self.free_bits[slot as usize / 64] |= 1 << (slot % 64);
        self.free += 1;
    }

    /// Bytes that the group takes in memory.
    pub fn bytes(&self) -> u64 {
        (size_of::<SlotGroup>() + size_of_val(&*self.free_bits) + size_of_val(&*self.shares)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_free_slot_is_found_over_words() {
        for slots in [1, 63, 64, 65, 200] {
            let mut group = SlotGroup::new(1, 1, slots, GroupPhase::Open);
            let taken: Vec<u32> = std::iter::from_fn(|| {
                let slot = group.next_free(0)?;
                group.take(slot, false);
                Some(slot)
            })
            .collect();
            assert_eq!(taken, (0..slots).collect::<Vec<_>>());
            assert_eq!((group.free(), group.next_free(slots)), (0, None));
            assert!(group.drop_share(slots - 1));
            assert_eq!((group.next_free(0), group.next_free(slots - 1)), (Some(slots - 1), Some(slots - 1)));
        }
    }

    #[test]
    fn a_slot_is_free_when_its_last_share_goes() {
        let mut group = SlotGroup::new(1, 1, 4, GroupPhase::Open);
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
    #[should_panic(expected = "given out twice")]
    fn a_slot_given_out_twice_is_our_mistake() {
        let mut group = SlotGroup::new(1, 1, 4, GroupPhase::Open);
        group.take(2, true);
        group.take(2, true);
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_slot_freed_twice_is_our_mistake() {
        SlotGroup::new(1, 1, 4, GroupPhase::Open).drop_share(1);
    }
}
