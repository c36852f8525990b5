//! The loss allowed to a store that acknowledges before a write is durable: only the end of its log.
//!
//! Stamps are the log's order. If a record with stamp C is there after a crash, every write with a lower stamp took
//! effect: no key may show anything older than its last write up to C.

#[derive(Clone)]
pub struct Prefix {
    keys: Vec<Since>,
    /// A barrier that covers every write up to this stamp was answered.
    synced: u64,
}

/// Events of a key since everything was last durable.
#[derive(Clone, Default)]
struct Since {
    /// Stamps that replies to writes gave.
    stamps: Vec<u64>,
    /// Something may have deleted it, or it may have expired.
    may_be_gone: bool,
    /// The stamp read after the crash. `None` until the key is read.
    read: Option<Option<u64>>,
}

impl Prefix {
    pub fn new(keys: usize) -> Prefix {
        Prefix { keys: vec![Since::default(); keys], synced: 0 }
    }

    /// Every write up to this stamp is durable: a barrier submitted after it was answered.
    pub fn synced(&mut self, stamp: u64) {
        self.synced = self.synced.max(stamp);
    }

    /// The drive has damaged the log: writes that a barrier made durable may be lost with its end.
    pub fn doubt_barriers(&mut self) {
        self.synced = 0;
    }

    /// Everything is durable, and the reads were judged.
    pub fn settle(&mut self) {
        self.keys.fill(Since::default());
    }

    pub fn may_go(&mut self, key: usize) {
        self.keys[key].may_be_gone = true;
    }

    /// The key's item is gone for good, and no earlier one returns.
    pub fn forget(&mut self, key: usize) {
        self.keys[key] = Since::default();
    }

    pub fn may_all_go(&mut self) {
        self.keys.iter_mut().for_each(|key| key.may_be_gone = true);
    }

    pub fn wrote(&mut self, key: usize, stamp: u64) {
        self.keys[key].stamps.push(stamp);
    }

    pub fn read(&mut self, key: usize, stamp: Option<u64>) {
        self.keys[key].read = Some(stamp);
    }

    /// Checks all keys after a crash. All must have been read. An error names the key that is older than another one allows.
    pub fn check(&self) -> Result<(), (usize, String)> {
        let seen_max = self.keys.iter().filter_map(|key| key.read.flatten()).max().unwrap_or(0).max(self.synced);
        for (number, key) in self.keys.iter().enumerate() {
            let Some(read) = key.read else { continue };
            let Some(least) = key.stamps.iter().copied().filter(|stamp| *stamp <= seen_max).max() else { continue };
            let behind = match read {
                Some(stamp) => stamp < least,
                None => !key.may_be_gone,
            };
            if behind {
                let why = format!(
                    "shows {read:?} and not its write {least}, although one with {seen_max} is there or was durable"
                );
                return Err((number, why));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_write_elsewhere_calls_for_the_earlier_one() {
        for (seen_elsewhere, holds) in [(8, true), (11, false)] {
            let mut prefix = Prefix::new(2);
            prefix.wrote(0, 10);
            prefix.read(0, Some(7));
            prefix.read(1, Some(seen_elsewhere));
            assert_eq!(prefix.check().is_ok(), holds);
        }
    }

    #[test]
    fn what_a_barrier_covers_is_called_for() {
        for (synced, holds) in [(9, true), (10, false)] {
            let mut prefix = Prefix::new(1);
            prefix.wrote(0, 10);
            prefix.synced(synced);
            prefix.read(0, Some(7));
            assert_eq!(prefix.check().is_ok(), holds);
        }
    }

    #[test]
    fn only_what_may_be_gone_may_be_missing() {
        let mut prefix = Prefix::new(2);
        prefix.wrote(0, 10);
        prefix.read(0, None);
        prefix.read(1, Some(10));
        assert!(prefix.check().is_err());
        prefix.may_go(0);
        assert!(prefix.check().is_ok());
    }
}
