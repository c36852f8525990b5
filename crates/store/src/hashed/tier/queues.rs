//! The order in which a class of the tier evicts items: S3-FIFO (Yang et al., SOSP '23) over slots.
//!
//! ```text
//! new ──────────► small ── used again ──► main ─┐ used since: back to its end, one use less
//!  └ was here ───────┼───────────────────► main ◄┘
//!    a moment ago    └ not used ─► out, remembered as a ghost       main ── not used ──► out
//! ```
//! `small` holds a tenth of the class, so items that are asked for once, in a scan of everything, pass through it and leave `main` alone. A slot is
//! in exactly one queue as long as the class has it, also while it is empty: the next item put into it then takes its turn.

use super::ghosts::Ghosts;
use std::collections::VecDeque;

/// `small` is kept at one slot in this many.
const SMALL_SHARE: usize = 10;
/// After this many uses in `small`, an item moves to `main`.
const USES_TO_STAY: u8 = 1;
/// Slots that are passed before one of `main` is evicted, used or not. If all were used, while nothing new came, nobody waits for three turns of all
/// of them.
const PASSED_MAX: usize = 128;

/// The slot whose item is evicted.
pub struct TierVictim {
    pub place: u32,
    /// It was asked for at least once: it is from `main`.
    pub was_used: bool,
}

#[derive(Default)]
pub struct Queues {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    pub moves: Moves,
}

/// Counts of items that moved on instead of being evicted.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Moves {
    pub to_main: u64,
    pub within_main: u64,
}

/// Facts about items that the queues need.
pub trait TierItems {
    /// How often the item in a slot was asked for; from now on it counts as `left` makes of it.
    fn change_uses(&self, place: u32, left: impl FnOnce(u8) -> u8) -> u8;
    /// The mark by which the item in a slot is remembered.
    fn mark(&self, place: u32) -> u64;
    /// Bytes of the item in a slot, its header included.
    fn bytes(&self, place: u32) -> u64;
    /// Seconds since the item in a slot was last asked for.
    fn idle_seconds(&self, place: u32) -> u32;
    /// Whether a slot that is in a queue holds an item.
    fn is_filled(&self, place: u32) -> bool;
}

impl Queues {
    /// A slot that was in neither queue takes an item.
    pub fn push(&mut self, place: u32, was_here: bool) {
        if was_here { self.main.push_back(place) } else { self.small.push_back(place) }
    }

    /// Takes the slot whose item is to be evicted out of its queue.
    pub fn victim(&mut self, items: &impl TierItems, ghosts: &mut Ghosts) -> Option<TierVictim> {
        let mut passed = 0;
        loop {
            let small_first = self.small.len() * SMALL_SHARE >= self.len();
            if small_first || self.main.is_empty() {
                let place = self.small.pop_front()?;
                if items.change_uses(place, |_| 0) >= USES_TO_STAY {
                    self.main.push_back(place);
                    self.moves.to_main += 1;
                    passed += 1;
                    continue;
                }
                ghosts.remember(items.mark(place));
                return Some(TierVictim { place, was_used: false });
            }
            let place = self.main.pop_front()?;
            if items.change_uses(place, |uses| uses.saturating_sub(1)) == 0 || passed >= PASSED_MAX {
                return Some(TierVictim { place, was_used: true });
            }
            self.main.push_back(place);
            self.moves.within_main += 1;
            passed += 1;
        }
    }

    /// The slots of `small` and of `main`, those first whose turn comes first.
    pub fn next(&self) -> [&VecDeque<u32>; 2] {
        [&self.small, &self.main]
    }

    /// Slots and whether they are in `main`: first of `main`, then of `small`, of each the latest first; without the first `skip`.
    pub fn latest(&self, skip: usize) -> impl Iterator<Item = (u32, bool)> {
        let skip_small = skip.saturating_sub(self.main.len());
        let main = self.main.range(..self.main.len().saturating_sub(skip)).rev();
        let small = self.small.range(..self.small.len().saturating_sub(skip_small)).rev();
        main.map(|place| (*place, true)).chain(small.map(|place| (*place, false)))
    }

    /// Takes out every slot for which `gone` says so.
    pub fn drop_slots(&mut self, gone: impl Fn(u32) -> bool) {
        self.small.retain(|place| !gone(*place));
        self.main.retain(|place| !gone(*place));
    }

    pub fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    pub fn shrink_to_fit(&mut self) {
        self.small.shrink_to_fit();
        self.main.shrink_to_fit();
    }

    pub fn bytes(&self) -> usize {
        (self.small.capacity() + self.main.capacity()) * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::HashMap;

    #[derive(Default)]
    struct Known(RefCell<HashMap<u32, u8>>);

    impl TierItems for Known {
        fn change_uses(&self, place: u32, left: impl FnOnce(u8) -> u8) -> u8 {
            let uses = self.0.borrow().get(&place).copied().unwrap_or(0);
            self.set_uses(place, left(uses));
            uses
        }

        fn mark(&self, place: u32) -> u64 {
            place.into()
        }

        fn bytes(&self, _: u32) -> u64 {
            0
        }

        fn idle_seconds(&self, _: u32) -> u32 {
            0
        }

        fn is_filled(&self, _: u32) -> bool {
            true
        }
    }

    impl Known {
        fn set_uses(&self, place: u32, uses: u8) {
            self.0.borrow_mut().insert(place, uses);
        }
    }

    #[test]
    fn where_all_is_used_few_are_passed_for_one_that_goes() {
        let (items, mut ghosts, mut queues) = (Known::default(), Ghosts::new(1024), Queues::default());
        (0..10_000).for_each(|place| queues.push(place, true));
        (0..10_000).for_each(|place| items.set_uses(place, 3));
        assert_eq!(queues.victim(&items, &mut ghosts).map(|victim| victim.place), Some(PASSED_MAX as u32));
        let passed = (0..10_000).filter(|place| items.change_uses(*place, |uses| uses) < 3).count();
        assert_eq!(passed, PASSED_MAX + 1);
        assert_eq!(queues.moves, Moves { to_main: 0, within_main: PASSED_MAX as u64 });
        // Those that were passed are behind all others.
        assert_eq!(queues.latest(0).next(), Some((PASSED_MAX as u32 - 1, true)));
    }

    #[test]
    fn a_scan_leaves_what_is_used_again() {
        let (items, mut ghosts, mut queues) = (Known::default(), Ghosts::new(1024), Queues::default());
        (0..100).for_each(|place| queues.push(place, false));
        (0..50).for_each(|place| items.set_uses(place, 2));
        // The slots of evicted items take items that are asked for once.
        let mut out = Vec::new();
        for _ in 0..1000 {
            let place = queues.victim(&items, &mut ghosts).unwrap().place;
            items.set_uses(place, 0);
            out.push(place);
            queues.push(place, false);
            (0..50).for_each(|place| items.set_uses(place, 1));
        }
        assert!(out.iter().all(|place| *place >= 50), "what is used stays");
        assert_eq!(queues.moves.to_main, 50);
    }

    #[test]
    fn what_was_here_a_moment_ago_goes_to_main() {
        let (items, mut ghosts, mut queues) = (Known::default(), Ghosts::new(1024), Queues::default());
        (0..10).for_each(|place| queues.push(place, false));
        let place = queues.victim(&items, &mut ghosts).unwrap().place;
        assert!(ghosts.forget(items.mark(place)) && !ghosts.forget(items.mark(place)));
        queues.push(place, true);
        assert_eq!((queues.small.len(), queues.main.len()), (9, 1));
    }

    #[test]
    fn the_latest_come_first_and_those_of_main_before() {
        let mut queues = Queues::default();
        (0..6).for_each(|place| queues.push(place, place % 2 == 0));
        let all: Vec<_> = queues.latest(0).collect();
        assert_eq!(all, vec![(4, true), (2, true), (0, true), (5, false), (3, false), (1, false)]);
        (0..8).for_each(|skip| assert_eq!(queues.latest(skip).collect::<Vec<_>>(), all[skip.min(6)..]));
    }

    #[test]
    fn slots_that_are_gone_are_in_no_queue() {
        let (items, mut ghosts, mut queues) = (Known::default(), Ghosts::new(1024), Queues::default());
        (0..10).for_each(|place| queues.push(place, place % 2 == 0));
        queues.drop_slots(|place| place < 8);
        let mut left: Vec<u32> =
            std::iter::from_fn(|| queues.victim(&items, &mut ghosts)).map(|victim| victim.place).collect();
        left.sort_unstable();
        assert_eq!(left, vec![8, 9]);
    }
}
