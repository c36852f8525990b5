//! The ids of nodes. A running store reuses ids, so after a crash two live images may have the same id, or two parts of one image.

/// One bit for each id, as ids are dense.
#[derive(Default)]
pub struct NodeIds {
    taken: Vec<u64>,
    /// All ids in the words before this one are taken.
    low: usize,
}

impl NodeIds {
    /// Takes an id. Returns whether it was free.
    pub fn take(&mut self, id: u32) -> bool {
        let (word, bit) = (id as usize / 64, 1 << (id % 64));
        if word >= self.taken.len() {
            self.taken.resize(word + 1, 0);
        }
        let is_free = self.taken[word] & bit == 0;
        self.taken[word] |= bit;
        is_free
    }

    /// Takes the lowest free id.
    pub fn give(&mut self) -> u32 {
        while self.taken.get(self.low).is_some_and(|word| *word == u64::MAX) {
            self.low += 1;
        }
        let free = self.taken.get(self.low).map_or(0, |word| word.trailing_ones());
        let id = self.low as u32 * 64 + free;
        assert!(self.take(id), "it was free");
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_taken_once_and_the_lowest_free_one_is_given() {
        let mut ids = NodeIds::default();
        assert!([1, 200, 0, 63].iter().all(|id| ids.take(*id)));
        assert!(!ids.take(200) && !ids.take(0));
        let given: Vec<u32> = (0..200).map(|_| ids.give()).collect();
        let expected: Vec<u32> = (0..204).filter(|id| ![0, 1, 63, 200].contains(id)).collect();
        assert_eq!(given, expected);
    }
}
