//! Which extents are free, and who may take them. Lowest first, so that a segment's extents tend to be neighbours.
//!
//! ```text
//! free:  │ reserved, for flushes and collections that have begun · for those to come │ for whoever asks ([`Extents::take`]) │
//!        └─ the floor                                                               ┘
//! ```
//! A flush and a collection never find too few: they reserve what they may need before they begin ([`ExtentReservation`]), and nobody else
//! takes what is reserved, nor any of the floor, of which that is a part.
//!
//! Threads: any, under the lock that a store has for its extents, which is the last in the order of locks.

use crate::media::io::lock;
use std::sync::{Arc, Mutex};
use tapetum_kernels::reference::Run;

#[derive(Debug)]
pub struct Extents {
    /// One bit an extent, set when free.
    free: Vec<u64>,
    free_count: u32,
    /// No extent below this one is free.
    low: u32,
    count: u32,
    /// Free, and promised to reservations.
    reserved: u32,
    /// Free ones that are left to reservations.
    floor: u32,
    /// Recovery may have the floor, too: it needs what it needs, and gives back what it replaces.
    is_recovering: bool,
    /// What was refused last, and has not been taken since: the collector makes room for it.
    wanted: u32,
}

/// Which extents are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentShape {
    Any,
    Neighbours,
}

impl Extents {
    pub fn new(count: u32) -> Extents {
        let mut free = vec![u64::MAX; count.div_ceil(64) as usize];
        if !count.is_multiple_of(64)
            && let Some(last) = free.last_mut()
        {
            *last = (1 << (count % 64)) - 1;
        }
        Extents { free, free_count: count, low: 0, count, reserved: 0, floor: 0, is_recovering: false, wanted: 0 }
    }

    /// Leaves so many free to flushes and collections, from the end of recovery on.
    pub fn set_floor(&mut self, floor: u32) {
        (self.floor, self.is_recovering) = (floor, true);
    }

    pub fn end_recovery(&mut self) {
        self.is_recovering = false;
    }

    /// Takes as many as `count` at once, as runs; nothing where the floor would not be left, or there are none of that shape.
    pub fn take(&mut self, count: u32, shape: ExtentShape) -> Option<Vec<Run>> {
        let taken = match shape {
            _ if self.takable() < count => None,
            ExtentShape::Any => self.allocate_runs(count),
            ExtentShape::Neighbours => self.allocate_neighbours(count).map(|first| vec![Run { first, count }]),
        };
        self.wanted = if taken.is_some() { 0 } else { count };
        taken
    }

    /// Whether [`Extents::take`] finds them.
    pub fn can_take(&self, count: u32, shape: ExtentShape) -> bool {
        self.takable() >= count && (shape == ExtentShape::Any || self.find_neighbours(count).is_some())
    }

    /// What may be taken now.
    fn takable(&self) -> u32 {
        if self.is_recovering { self.unreserved() } else { self.spare() }
    }

    /// Free ones beyond the floor, or what is reserved where that is more.
    pub fn spare(&self) -> u32 {
        self.free_count.saturating_sub(self.floor.max(self.reserved))
    }

    /// Free ones that no reservation has.
    pub fn unreserved(&self) -> u32 {
        self.free_count - self.reserved
    }

    /// Whether somebody was refused who would find room if there were more free extents.
    pub fn are_wanted(&self) -> bool {
        self.wanted > self.takable()
    }

    /// Adds extents behind the last, all free.
    pub fn grow(&mut self, count: u32) {
        assert!(count >= self.count, "extents do not go away");
        self.free.resize(count.div_ceil(64) as usize, 0);
        (self.count..count).for_each(|extent| self.free[extent as usize / 64] |= 1 << (extent % 64));
        self.free_count += count - self.count;
        self.low = self.low.min(self.count);
        self.count = count;
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn free_count(&self) -> u32 {
        self.free_count
    }

    pub fn is_free(&self, extent: u32) -> bool {
        self.free[extent as usize / 64] >> (extent % 64) & 1 == 1
    }

    pub fn allocate(&mut self) -> Option<u32> {
        let word = (self.low as usize / 64..self.free.len()).find(|&word| self.free[word] != 0)?;
        let extent = word as u32 * 64 + self.free[word].trailing_zeros();
        self.free[word] &= self.free[word] - 1;
        self.free_count -= 1;
        self.low = extent + 1;
        Some(extent)
    }

    /// As many as `count` at once, as runs of neighbours; nothing when there are not so many.
    fn allocate_runs(&mut self, count: u32) -> Option<Vec<Run>> {
        if self.free_count < count {
            return None;
        }
        let mut runs: Vec<Run> = Vec::new();
        for _ in 0..count {
            let extent = self.allocate()?;
            match runs.last_mut() {
                Some(run) if run.first + run.count == extent => run.count += 1,
                _ => runs.push(Run { first: extent, count: 1 }),
            }
        }
        Some(runs)
    }

    /// The first of `count` neighbours, all taken; nothing when there are not so many side by side.
    fn allocate_neighbours(&mut self, count: u32) -> Option<u32> {
        let first = self.find_neighbours(count)?;
        (first..first + count).for_each(|extent| assert!(self.claim(extent), "it was free"));
        Some(first)
    }

    /// The first of `count` neighbours that are free.
    fn find_neighbours(&self, count: u32) -> Option<u32> {
        let mut first = self.low;
        for extent in self.low..self.count {
            if !self.is_free(extent) {
                first = extent + 1;
            } else if extent + 1 - first == count {
                return Some(first);
            }
        }
        None
    }

    /// The highest free extent.
    pub fn allocate_last(&mut self) -> Option<u32> {
        let word = self.free.iter().rposition(|&word| word != 0)?;
        let bit = 63 - self.free[word].leading_zeros();
        self.free[word] &= !(1 << bit);
        self.free_count -= 1;
        Some(word as u32 * 64 + bit)
    }

    /// Takes an extent that a segment on flash owns; false if it is taken already or there is none such.
    pub fn claim(&mut self, extent: u32) -> bool {
        if extent >= self.count || self.free[extent as usize / 64] >> (extent % 64) & 1 == 0 {
            return false;
        }
        self.free[extent as usize / 64] &= !(1 << (extent % 64));
        self.free_count -= 1;
        true
    }

    pub fn release(&mut self, extent: u32) {
        assert!(
            extent < self.count && self.free[extent as usize / 64] >> (extent % 64) & 1 == 0,
            "extent {extent} freed twice"
        );
        self.free[extent as usize / 64] |= 1 << (extent % 64);
        self.free_count += 1;
        self.low = self.low.min(extent);
    }
}

/// Extents that are sure to be there for a flush or a collection, one by one. What it has not taken goes back with it.
pub struct ExtentReservation {
    extents: Arc<Mutex<Extents>>,
    left: u32,
}

impl ExtentReservation {
    /// Reserves so many, if there are, and `leave` more that nobody has reserved.
    pub fn begin(extents: &Arc<Mutex<Extents>>, count: u32, leave: u32) -> Option<ExtentReservation> {
        let mut free = lock(extents);
        if free.unreserved() < count.saturating_add(leave) {
            return None;
        }
        free.reserved += count;
        Some(ExtentReservation { extents: extents.clone(), left: count })
    }

    /// Reserves so many, or as many as there are.
    pub fn up_to(extents: &Arc<Mutex<Extents>>, count: u32) -> ExtentReservation {
        let mut free = lock(extents);
        let left = count.min(free.unreserved());
        free.reserved += left;
        ExtentReservation { extents: extents.clone(), left }
    }

    /// The next one; one that nobody has reserved where all were taken.
    pub fn take(&mut self) -> Option<u32> {
        let mut extents = lock(&self.extents);
        if self.left > 0 {
            self.left -= 1;
            extents.reserved -= 1;
        } else if extents.unreserved() == 0 {
            return None;
        }
        extents.allocate()
    }

    /// Gives one back that was taken.
    pub fn give_back(&self, extent: u32) {
        lock(&self.extents).release(extent);
    }
}

impl Drop for ExtentReservation {
    fn drop(&mut self) {
        lock(&self.extents).reserved -= self.left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_and_the_floor_are_left_to_whom_they_are_for() {
        let shared = Arc::new(Mutex::new(Extents::new(20)));
        let take = |count, shape| lock(&shared).take(count, shape);
        lock(&shared).set_floor(10);
        assert!(lock(&shared).can_take(20, ExtentShape::Any), "recovery may have all");
        lock(&shared).end_recovery();
        let mut reserved = ExtentReservation::begin(&shared, 4, 10).unwrap();
        assert!(ExtentReservation::begin(&shared, 7, 10).is_none(), "there is one less");
        let of = |figure: fn(&Extents) -> u32| figure(&lock(&shared));
        assert_eq!([of(Extents::unreserved), of(Extents::spare)], [16, 10]);
        assert_eq!(take(11, ExtentShape::Any), None);
        assert!(lock(&shared).are_wanted());
        assert_eq!(take(10, ExtentShape::Neighbours), Some(vec![Run { first: 0, count: 10 }]));
        assert!(!lock(&shared).are_wanted());
        assert!(!lock(&shared).can_take(1, ExtentShape::Any));
        // All that was reserved is there, and then what nobody else has reserved.
        let all: Vec<u32> = std::iter::from_fn(|| reserved.take()).collect();
        assert_eq!(all, (10..20).collect::<Vec<_>>());
        reserved.give_back(19);
        let rest = ExtentReservation::up_to(&shared, 4);
        assert_eq!((reserved.take(), of(Extents::unreserved)), (None, 0));
        drop((rest, reserved));
        assert_eq!([of(Extents::unreserved), of(Extents::free_count)], [1, 1]);
    }

    #[test]
    fn hands_out_each_extent_once_lowest_first() {
        let mut extents = Extents::new(70);
        assert!(extents.is_free(1) && extents.claim(1));
        assert!(!extents.is_free(1) && extents.is_free(2) && extents.is_free(69));
        assert!(!extents.claim(1) && !extents.claim(70));
        let all: Vec<u32> = std::iter::from_fn(|| extents.allocate()).collect();
        assert_eq!(all, std::iter::once(0).chain(2..70).collect::<Vec<_>>());
        assert_eq!(extents.free_count(), 0);
        extents.release(69);
        extents.release(3);
        assert_eq!((extents.allocate(), extents.allocate(), extents.allocate()), (Some(3), Some(69), None));
        extents.release(7);
        extents.release(68);
        assert_eq!(
            [extents.allocate_last(), extents.allocate_last(), extents.allocate_last()],
            [Some(68), Some(7), None]
        );
        assert_eq!(extents.free_count(), 0);
    }

    #[test]
    fn more_extents_come_behind_the_last() {
        let mut extents = Extents::new(3);
        while extents.allocate().is_some() {}
        extents.grow(3);
        assert_eq!(extents.allocate(), None);
        extents.grow(130);
        assert_eq!((extents.count(), extents.free_count()), (130, 127));
        let all: Vec<u32> = std::iter::from_fn(|| extents.allocate()).collect();
        assert_eq!(all, (3..130).collect::<Vec<_>>());
    }

    #[test]
    fn hands_out_runs_of_neighbours_or_nothing() {
        let mut extents = Extents::new(9);
        assert!(extents.claim(2));
        assert_eq!(extents.allocate_runs(9), None);
        let runs = [Run { first: 0, count: 2 }, Run { first: 3, count: 3 }];
        assert_eq!((extents.allocate_runs(5), extents.free_count()), (Some(runs.to_vec()), 3));
        assert_eq!(extents.allocate_runs(3), Some(vec![Run { first: 6, count: 3 }]), "all there are");
    }

    #[test]
    fn hands_out_neighbours_or_nothing() {
        let mut extents = Extents::new(9);
        assert!(extents.claim(2) && extents.claim(6));
        assert_eq!((extents.allocate_neighbours(4), extents.free_count()), (None, 7));
        assert_eq!(extents.allocate_neighbours(3), Some(3));
        assert_eq!([1, 2, 1].map(|count| extents.allocate_neighbours(count)), [Some(0), Some(7), Some(1)]);
        assert_eq!((extents.allocate_neighbours(1), extents.free_count()), (None, 0));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_double_free_is_our_mistake() {
        Extents::new(3).release(2);
    }
}
