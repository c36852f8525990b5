//! Fingerprints of items that left the tier lately. Each has the one place that its hash gives, and the latest one wins.

pub struct Ghosts {
    marks: Box<[u32]>,
}

impl Ghosts {
    /// Room for at most `count` marks.
    pub fn new(count: usize) -> Ghosts {
        Ghosts { marks: vec![0; count.max(1)].into() }
    }

    pub fn bytes_for(count: usize) -> usize {
        count * size_of::<u32>()
    }

    fn at(&mut self, mark: u64) -> (&mut u32, u32) {
        let place = ((mark >> 32) * self.marks.len() as u64) >> 32;
        (&mut self.marks[place as usize], (mark as u32).max(1))
    }

    pub fn remember(&mut self, mark: u64) {
        let (slot, fingerprint) = self.at(mark);
        *slot = fingerprint;
    }

    /// Forgets a mark; whether it was remembered.
    pub fn forget(&mut self, mark: u64) -> bool {
        let (slot, fingerprint) = self.at(mark);
        let found = *slot == fingerprint;
        if found {
            *slot = 0;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_until_another_takes_the_place() {
        let mut ghosts = Ghosts::new(1);
        ghosts.remember(7);
        assert!(!ghosts.forget(8) && ghosts.forget(7) && !ghosts.forget(7));
        ghosts.remember(7);
        ghosts.remember(9);
        assert!(!ghosts.forget(7) && ghosts.forget(9));
    }
}
