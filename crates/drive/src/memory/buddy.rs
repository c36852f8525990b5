//! The buddy allocator under local memory: numbers of blocks in, numbers of blocks out; it never sees the memory.
//!
//! A free run of `2^order` blocks starts at a multiple of `2^order`; two halves of the same run that are both free are
//! always joined. A request is cut from the smallest run that holds it and what is over goes back at once, so a request
//! costs what it asks for, not the next power of two. Free runs are linked lists through arrays made at the start:
//! no allocation later, and the same calls give the same answers.

use std::ops::Range;

const NONE: u32 = u32::MAX;
const ORDERS: usize = 32;
/// Requests of fewer blocks (1 MiB) get no search beyond the lists: they are the ones made all the time.
const SCAN_MIN_BLOCKS: u32 = 256;

pub(super) struct Buddy {
    blocks: u32,
    used: u32,
    /// First free run of each order.
    heads: [u32; ORDERS],
    /// By block: one more than the order of the free run that starts here, or zero.
    free_order: Vec<u8>,
    next: Vec<u32>,
    previous: Vec<u32>,
}

impl Buddy {
    pub(super) fn new(blocks: u32) -> Buddy {
        Buddy::behind(0, blocks)
    }

    /// Of `blocks` in all, the first `taken` of which are somebody else's.
    pub(super) fn behind(taken: u32, blocks: u32) -> Buddy {
        assert!(taken < blocks, "{taken} of {blocks} blocks are taken");
        assert!(blocks < 1 << (ORDERS - 1), "local memory of {blocks} blocks is beyond the allocator");
        let count = blocks as usize;
        let mut buddy = Buddy {
            blocks,
            used: blocks,
            heads: [NONE; ORDERS],
            free_order: vec![0; count],
            next: vec![NONE; count],
            previous: vec![NONE; count],
        };
        buddy.free(taken, blocks - taken);
        buddy
    }

    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// The blocks that are free, in runs.
    pub(super) fn free_runs(&self) -> impl Iterator<Item = Range<u32>> {
        let begins = self.free_order.iter().enumerate().filter(|(_, order)| **order > 0);
        begins.map(|(first, order)| first as u32..first as u32 + (1 << (order - 1)))
    }

    /// The first of `count` blocks in a row.
    pub(super) fn allocate(&mut self, count: u32) -> Option<u32> {
        assert!(count > 0, "a buffer takes at least a block");
        let wanted = count.checked_next_power_of_two()?.trailing_zeros() as usize;
        let (first, taken) = match (wanted..ORDERS).find(|&order| self.heads[order] != NONE) {
            Some(order) => {
                let first = self.heads[order];
                self.unlink(first, order);
                (first, 1 << order)
            }
            None => self.take_neighbours(count)?,
        };
        self.release(first + count, taken - count);
        self.used += count;
        Some(first)
    }

    /// Takes free runs that lie side by side but do not make a larger run, such as the odd end of the memory: the
    /// first run and how many blocks they have. It walks the whole memory, so it is only for the few large requests.
    fn take_neighbours(&mut self, count: u32) -> Option<(u32, u32)> {
        if count < SCAN_MIN_BLOCKS || count > self.blocks - self.used {
            return None;
        }
        let (mut first, mut end) = (0, 0);
        while end - first < count {
            if end == self.blocks {
                return None;
            }
            match self.free_order[end as usize] {
                0 => {
                    end += 1;
                    first = end;
                }
                order => end += 1 << (order - 1),
            }
        }
        let mut run = first;
        while run < end {
            let order = usize::from(self.free_order[run as usize]) - 1;
            self.unlink(run, order);
            run += 1 << order;
        }
        Some((first, end - first))
    }

    /// Gives back `count` blocks that `allocate` gave.
    pub(super) fn free(&mut self, first: u32, count: u32) {
        assert!(count <= self.used && first + count <= self.blocks, "freed blocks {first}+{count} were never given");
        self.used -= count;
        self.release(first, count);
    }

    /// Puts a run of any length on the free lists, as the largest aligned pieces it is made of.
    fn release(&mut self, mut first: u32, mut count: u32) {
        while count > 0 {
            let aligned = if first == 0 { ORDERS as u32 - 1 } else { first.trailing_zeros() };
            let order = aligned.min(count.ilog2());
            self.join(first, order as usize);
            first += 1 << order;
            count -= 1 << order;
        }
    }

    fn join(&mut self, mut first: u32, mut order: usize) {
        loop {
            let other = first ^ (1 << order);
            if other >= self.blocks || usize::from(self.free_order[other as usize]) != order + 1 {
                break;
            }
            self.unlink(other, order);
            first = first.min(other);
            order += 1;
        }
        assert_eq!(self.free_order[first as usize], 0, "block {first} freed twice");
        let head = self.heads[order];
        self.free_order[first as usize] = order as u8 + 1;
        self.next[first as usize] = head;
        self.previous[first as usize] = NONE;
        if head != NONE {
            self.previous[head as usize] = first;
        }
        self.heads[order] = first;
    }

    fn unlink(&mut self, first: u32, order: usize) {
        let (next, previous) = (self.next[first as usize], self.previous[first as usize]);
        if previous == NONE {
            self.heads[order] = next;
        } else {
            self.next[previous as usize] = next;
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
        self.free_order[first as usize] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_costs_what_it_asks_for() {
        let mut buddy = Buddy::new(9);
        assert_eq!(buddy.allocate(5), Some(0));
        assert_eq!(buddy.allocate(5), None);
        assert!(buddy.allocate(2).is_some() && buddy.allocate(1).is_some() && buddy.allocate(1).is_some());
        assert_eq!((buddy.used(), buddy.allocate(1)), (9, None));
    }

    #[test]
    fn free_runs_are_what_nobody_has() {
        let mut buddy = Buddy::new(9);
        assert_eq!(buddy.allocate(5), Some(0));
        assert!(buddy.free_runs().flatten().eq(5..9));
        buddy.free(0, 5);
        assert!(buddy.free_runs().flatten().eq(0..9));
    }

    #[test]
    fn a_large_request_may_span_runs() {
        let mut buddy = Buddy::new(1000);
        assert_eq!(buddy.allocate(1000), Some(0));
        buddy.free(0, 1000);
        let low = buddy.allocate(300).unwrap();
        let high = buddy.allocate(600).unwrap();
        assert_eq!((low, high, buddy.allocate(256)), (0, 300, None));
        buddy.free(low, 300);
        assert_eq!(buddy.allocate(400), None);
        buddy.free(high, 600);
        assert_eq!((buddy.used(), buddy.allocate(999)), (0, Some(0)));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn freeing_twice_is_noticed() {
        let mut buddy = Buddy::new(8);
        let first = buddy.allocate(1).unwrap();
        buddy.allocate(3).unwrap();
        buddy.allocate(1).unwrap();
        buddy.free(first, 1);
        buddy.free(first, 1);
    }

    proptest! {
        #[test]
        fn runs_never_overlap_and_everything_comes_back(
            blocks in 1..2000_u32,
            steps in proptest::collection::vec((any::<bool>(), prop_oneof![1..40_u32, 200..900_u32], any::<prop::sample::Index>()), 1..300),
        ) {
            let mut buddy = Buddy::new(blocks);
            let mut owned = vec![false; blocks as usize];
            let mut held = Vec::new();
            for (give_back, count, which) in steps {
                if give_back && !held.is_empty() {
                    let (first, count) = held.swap_remove(which.index(held.len()));
                    owned[first as usize..(first + count) as usize].fill(false);
                    buddy.free(first, count);
                } else if let Some(first) = buddy.allocate(count) {
                    for block in &mut owned[first as usize..(first + count) as usize] {
                        prop_assert!(!*block);
                        *block = true;
                    }
                    held.push((first, count));
                }
                prop_assert_eq!(buddy.used() as usize, owned.iter().filter(|&&block| block).count());
            }
            for (first, count) in held {
                buddy.free(first, count);
            }
            let mut fresh = Buddy::new(blocks);
            prop_assert_eq!(buddy.allocate(1 << blocks.ilog2()), fresh.allocate(1 << blocks.ilog2()));
        }
    }
}
