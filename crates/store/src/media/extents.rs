//! Which extents are free. Lowest first, so that a segment's extents tend to be neighbours.

use tapetum_kernels::reference::Run;

#[derive(Debug)]
pub struct Extents {
    /// One bit an extent, set when free.
    free: Vec<u64>,
    free_count: u32,
    /// No extent below this one is free.
    low: u32,
    count: u32,
}

impl Extents {
    pub fn new(count: u32) -> Extents {
        let mut free = vec![u64::MAX; count.div_ceil(64) as usize];
        if !count.is_multiple_of(64)
            && let Some(last) = free.last_mut()
        {
            *last = (1 << (count % 64)) - 1;
        }
        Extents { free, free_count: count, low: 0, count }
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
    pub fn allocate_runs(&mut self, count: u32) -> Option<Vec<Run>> {
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
    pub fn allocate_neighbours(&mut self, count: u32) -> Option<u32> {
        let mut first = self.low;
        for extent in self.low..self.count {
            if !self.is_free(extent) {
                first = extent + 1;
            } else if extent + 1 - first == count {
                (first..=extent).for_each(|extent| assert!(self.claim(extent), "it was free"));
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

#[cfg(test)]
mod tests {
    use super::*;

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
