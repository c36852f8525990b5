//! The entries of one slot that share a fingerprint, and the trie that tells them apart.
//!
//! With fingerprints of five bits, one lookup in twenty-five needs this. It finds the group's branches by counting all
//! branches before or behind them, that is, all pairs of neighbours in a slot with equal fingerprints.

use super::entries::Window;
use super::find::Slot;
use super::{EntryLayout, TENANCY_START};
use crate::bits::{Select, Words, count_zeros, ones_from, select_zero};

/// The bits at which the parts of a bucket end, and the number of its entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub tenancy_end: usize,
    pub branches_end: usize,
    pub entries: usize,
}

/// The entries of one slot that share a fingerprint. They are neighbours, since entries are sorted.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryGroup {
    pub slot: Slot,
    /// The number of the first entry in the bucket, and the count of entries.
    pub first: usize,
    pub count: usize,
}

impl EntryGroup {
    /// Finds the entries of a slot with the fingerprint of `tail`. `None` if there are none.
    #[inline(always)]
    pub fn find<W: Words + ?Sized>(words: &W, layout: EntryLayout, slot: Slot, tail: u128) -> Option<EntryGroup> {
        let fingerprint = layout.fingerprint(tail);
        let mut group = EntryGroup { slot, first: 0, count: 0 };
        for at in (0..slot.tenants()).step_by(layout.fields.count) {
            let matches =
                Window::read(words, layout, slot.rank() + at)?.matches(layout, fingerprint, slot.tenants() - at);
            if group.count == 0 {
                group.first = slot.rank() + at + (matches.leading_zeros() / layout.width()) as usize;
            }
            group.count += matches.count_ones() as usize;
        }
        (group.count > 0).then_some(group)
    }

    /// The entry of the group at which the search for `tail` ends.
    #[inline(always)]
    pub fn leaf<S: Select, W: Words + ?Sized>(
        &self,
        words: &W,
        layout: EntryLayout,
        extent: Extent,
        tail: u128,
    ) -> Option<usize> {
        match self.count {
            1 => Some(0),
            count => Some(search(words, layout, self.branches::<S, W>(words, layout, extent)?, count, tail)),
        }
    }

    /// The bit at which the group's first branch begins, or would begin.
    #[inline(always)]
    pub fn branches<S: Select, W: Words + ?Sized>(
        &self,
        words: &W,
        layout: EntryLayout,
        extent: Extent,
    ) -> Option<usize> {
        let before = if layout.fingerprint_bits == 0 {
            // Each pair of neighbours in a slot has a branch, and the group is its whole slot.
            neighbors_before(words, self.slot.start())
        } else if self.first <= extent.entries / 2 {
            branches_among::<S, W>(words, layout, 0, self.first)
        } else {
            let last = self.first + self.count - 1;
            let behind = branches_among::<S, W>(words, layout, last, extent.entries.saturating_sub(1));
            let all = count_zeros(words, extent.tenancy_end, extent.branches_end);
            all.saturating_sub(behind + self.count as u32 - 1)
        };
        // The tenancy ends with a zero, which precedes the first branch as each branch's zero precedes the next branch.
        Some(select_zero::<S, W>(words, extent.tenancy_end - 1, before)? + 1)
    }
}

/// The number of entries from `rank` up to `end` that have a branch between them and the next one.
#[inline(always)]
fn branches_among<S: Select, W: Words + ?Sized>(words: &W, layout: EntryLayout, mut rank: usize, end: usize) -> u32 {
    let mut branches = 0;
    let mut tenancy = Tenancy { index: TENANCY_START / 64, before: 0 };
    while rank < end {
        let windows = (Window::read(words, layout, rank), Window::read(words, layout, rank + 1));
        let (Some(window), Some(next)) = windows else { break };
        let mut equal = window.equals(next, layout, end - rank);
        // Few pairs are equal, and even fewer lie in one slot.
        while equal != 0 {
            let place = equal.leading_zeros();
            equal &= !(1 << (63 - place));
            let is_branch = tenancy.has_neighbor::<S, W>(words, rank + (place / layout.width()) as usize);
            branches += u32::from(is_branch);
        }
        rank += layout.fields.count;
    }
    branches
}

/// The number of entries before `end` in the tenancy that have a neighbour behind them in their slot.
#[inline(always)]
fn neighbors_before<W: Words + ?Sized>(words: &W, end: usize) -> u32 {
    // An entry with a neighbour is a one that is followed by another one.
    let mut neighbors = 0;
    for index in TENANCY_START / 64..end.div_ceil(64) {
        let word = words.word(index);
        let mut pairs = word & (word >> 1 | words.word(index + 1) << 63);
        if end - index * 64 < 64 {
            pairs &= (1 << (end - index * 64)) - 1;
        }
        neighbors += pairs.count_ones();
    }
    neighbors
}

/// A walk over the tenancy's ones, one for each entry.
struct Tenancy {
    index: usize,
    /// The number of ones before the word at `index`.
    before: usize,
}

impl Tenancy {
    /// Whether the next entry is in the slot of entry number `rank`. Ranks come in ascending order.
    #[inline(always)]
    fn has_neighbor<S: Select, W: Words + ?Sized>(&mut self, words: &W, rank: usize) -> bool {
        while self.index < words.count() {
            let word = words.word(self.index);
            let ones = word.count_ones() as usize;
            if rank - self.before < ones {
                let place = S::select(word, (rank - self.before) as u32);
                return (word >> 1 | words.word(self.index + 1) << 63) >> place & 1 == 1;
            }
            self.before += ones;
            self.index += 1;
        }
        false
    }
}

/// Runs the blind search of a group of `count` entries, whose branches begin at `bit`. Returns the entry to which the
/// tail leads.
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
